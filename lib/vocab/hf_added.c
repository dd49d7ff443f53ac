/*
 * Added tokens that stand beside tokenizer.json: in tokenizer_config.json's added_tokens_decoder,
 * or where there is none in added_tokens.json; and tokens that the configuration names (its
 * eos_token and the like) though nothing lists them. They join the file's own as transformers'
 * class TokenizersBackend has them join: by text; what is listed anew has the newer flags; what has
 * no id gets the next.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "vocab/hf.h"

struct joined {
    struct moe_hf_reader *r;
    const json_t *vocab;
    json_t *list;    /* added tokens, objects as in tokenizer.json */
    json_t *by_text; /* the same objects */
    uint8_t *used;   /* of ids below n_used */
    json_int_t n_used, next;
};

static const char *const NAMED[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};
static const char *const FLAGS[] = {"lstrip", "rstrip", "normalized", "single_word", "special"};
static const char *const LISTS[] = {"additional_special_tokens", "extra_special_tokens"};

static int no_memory(struct joined *j)
{
    return moe_fail(j->r->err, MOE_ERR_MEMORY, "out of memory");
}

const json_t *moe_hf_named(const struct moe_hf_reader *r, const char *key)
{
    const json_t *older = json_object_get(r->special_map, key);
    bool lists = json_object_get(r->config, "added_tokens_decoder") != NULL;
    return older && !lists ? older : json_object_get(r->config, key);
}

/* The text of a token, given as a text or as {"content": text}; NULL: none. */
static const char *text_of(const json_t *token)
{
    const char *text =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    return text && *text ? text : NULL;
}

static bool is_named(const struct moe_hf_reader *r, const char *text)
{
    for (size_t i = 0; i < sizeof NAMED / sizeof *NAMED; i++) {
        const char *named = text_of(moe_hf_named(r, NAMED[i]));
        if (named && strcmp(named, text) == 0)
            return true;
    }
    return false;
}

/* ---- Ids ---- */

static int mark_used(struct joined *j, json_int_t id)
{
    if (id < 0 || id >= MOE_TOKENS_MAX)
        return moe_fail(j->r->err, MOE_ERR_FORMAT, "%s: added token with id %lld",
                        j->r->config_name, (long long)id);
    j->used[id] = 1;
    j->n_used = id >= j->n_used ? id + 1 : j->n_used;
    return MOE_OK;
}

/* The id of a token that is not listed yet: the vocabulary's, the one given, the next. */
static int choose_id(struct joined *j, const char *text, json_int_t given, json_int_t *id)
{
    const json_t *known = json_object_get(j->vocab, text);
    if (known) {
        *id = json_integer_value(known);
        return MOE_OK;
    }
    *id = given;
    if (given < 0)
        *id = j->next < j->n_used && j->used[j->next] ? j->n_used : j->next;
    else if (given < MOE_TOKENS_MAX && j->used[given])
        return moe_fail(j->r->err, MOE_ERR_FORMAT,
                        "%s: added token %lld '%.60s' does not fit the vocabulary",
                        j->r->config_name, (long long)given, text);
    int status = mark_used(j, *id);
    if (status == MOE_OK && *id >= j->next)
        j->next = *id + 1;
    return status;
}

/* ---- Tokens ---- */

/* Adds a token, or gives the one of its text new flags. flags: an object with them, or NULL: those
 * of a special token, or (plain) of another. */
static int join(struct joined *j, const char *text, json_int_t given, const json_t *flags,
                bool special)
{
    json_t *token = json_object_get(j->by_text, text);
    json_int_t id = -1;
    bool was_special = json_is_true(json_object_get(token, "special"));
    if (!token) {
        int status = choose_id(j, text, given, &id);
        if (status != MOE_OK)
            return status;
        token = json_pack("{s:I, s:s}", "id", id, "content", text);
        if (!token || json_array_append_new(j->list, token) != 0 ||
            json_object_set(j->by_text, text, token) != 0)
            return no_memory(j);
    }
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        const json_t *flag = json_object_get(flags, FLAGS[i]);
        bool is_special = strcmp(FLAGS[i], "special") == 0;
        bool is_normalized = strcmp(FLAGS[i], "normalized") == 0;
        bool on = flag && !json_is_null(flag) ? json_is_true(flag) : is_normalized && !special;
        on = on || (is_special && (special || was_special));
        if (flag && !json_is_null(flag) && !json_is_boolean(flag))
            return moe_fail(j->r->err, MOE_ERR_FORMAT, "%s: %s of '%.60s' is not true or false",
                            j->r->config_name, FLAGS[i], text);
        if (json_object_set_new(token, FLAGS[i], json_boolean(on)) != 0)
            return no_memory(j);
    }
    return MOE_OK;
}

struct numbered {
    json_int_t id;
    const char *text;
    const json_t *flags; /* or NULL */
};

static int compare(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* added_tokens_decoder, {"ID": token}, or added_tokens.json, {"text": ID}, in the order of ids. */
static int collect(struct joined *j, json_t *object, bool by_id, struct numbered *out)
{
    const char *key;
    json_t *value;
    size_t n = 0;
    json_object_foreach(object, key, value)
    {
        char *end = NULL;
        struct numbered *t = &out[n++];
        *t = by_id ? (struct numbered){strtoll(key, &end, 10), text_of(value), value}
                   : (struct numbered){json_integer_value(value), key, NULL};
        if (!t->text || !*t->text || t->id < 0 || (by_id && (*end || !json_is_object(value))) ||
            (!by_id && !json_is_integer(value)))
            return moe_fail(j->r->err, MOE_ERR_FORMAT, "%s: added token '%.60s' is damaged",
                            by_id ? j->r->config_name : j->r->added_name, key);
    }
    qsort(out, n, sizeof *out, compare);
    return MOE_OK;
}

static int join_listed(struct joined *j)
{
    json_t *decoder = json_object_get(j->r->config, "added_tokens_decoder");
    bool by_id = !moe_hf_absent(decoder);
    json_t *object = by_id ? decoder : j->r->added;
    size_t n = json_object_size(object);
    if (object && !json_is_object(object))
        return moe_fail(j->r->err, MOE_ERR_FORMAT, "%s: no list of added tokens",
                        by_id ? j->r->config_name : j->r->added_name);
    if (n == 0)
        return MOE_OK;
    struct numbered *tokens = moe_alloc(n, sizeof *tokens, j->r->err);
    int status = tokens ? collect(j, object, by_id, tokens) : MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const char *text = tokens[i].text;
        /* What tokenizer.json itself lists counts more than the older added_tokens.json. */
        if (by_id || !json_object_get(j->by_text, text))
            status = join(j, text, tokens[i].id, tokens[i].flags, is_named(j->r, text));
    }
    free(tokens);
    return status;
}

static int join_special(struct joined *j, const json_t *token)
{
    const char *text = text_of(token);
    if (!text || json_object_get(j->by_text, text))
        return MOE_OK;
    return join(j, text, -1, json_is_object(token) ? token : NULL, true);
}

static int join_named(struct joined *j)
{
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof NAMED / sizeof *NAMED && status == MOE_OK; i++)
        status = join_special(j, moe_hf_named(j->r, NAMED[i]));
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        const json_t *list = moe_hf_named(j->r, LISTS[i]);
        for (size_t k = 0; k < json_array_size(list) && status == MOE_OK; k++)
            status = join_special(j, json_array_get(list, k));
    }
    return status;
}

/* ---- The whole ---- */

static int begin(struct joined *j, json_t *vocab, const json_t *added)
{
    const char *key;
    json_t *value;
    int status = MOE_OK;
    j->used = moe_alloc(MOE_TOKENS_MAX, 1, j->r->err);
    j->list = json_array();
    j->by_text = json_object();
    if (!j->used || !j->list || !j->by_text)
        return no_memory(j);
    json_object_foreach(vocab, key, value)
    {
        status = status == MOE_OK ? mark_used(j, json_integer_value(value)) : status;
    }
    j->next = (json_int_t)json_object_size(vocab);
    for (size_t i = 0; i < json_array_size(added) && status == MOE_OK; i++) {
        json_t *listed = json_array_get(added, i), *token = json_copy(listed);
        const char *text = text_of(token);
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        status = mark_used(j, id);
        if (status == MOE_OK && id >= j->next)
            j->next = id + 1;
        /* Where memory is short json_copy leaves members out. */
        bool whole = token && json_object_size(token) == json_object_size(listed);
        if (!token || json_array_append_new(j->list, token) != 0 || !whole ||
            (text && json_object_set(j->by_text, text, token) != 0))
            status = no_memory(j);
    }
    return status;
}

int moe_hf_join_added(struct moe_hf_reader *r, json_t *vocab, json_t *added, json_t **out)
{
    struct joined j = {.r = r, .vocab = vocab};
    *out = NULL;
    if (!r->config && !r->added) {
        *out = json_incref(added);
        return MOE_OK;
    }
    int status = begin(&j, vocab, added);
    if (status == MOE_OK)
        status = join_listed(&j);
    if (status == MOE_OK)
        status = join_named(&j);
    free(j.used);
    json_decref(j.by_text);
    if (status == MOE_OK)
        *out = j.list;
    else
        json_decref(j.list);
    return status;
}
