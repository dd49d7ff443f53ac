/*
 * tokenizer.json: the model, its vocabulary and merges, and the added tokens.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "vocab/hf.h"
#include "vocab/store.h"

/* ---- Tokens ---- */

static int entry_id(struct moe_hf_reader *r, const json_t *value, const char *text, uint32_t *id)
{
    json_int_t v = json_is_integer(value) ? json_integer_value(value) : -1;
    if (v < 0 || v >= MOE_TOKENS_MAX)
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: token '%.60s' has no proper id", r->name,
                        text);
    *id = (uint32_t)v;
    return MOE_OK;
}

static int largest_id(struct moe_hf_reader *r, json_t *vocab, const json_t *added, uint32_t *n)
{
    const char *key;
    json_t *value;
    uint32_t id = 0;
    *n = 0;
    json_object_foreach(vocab, key, value)
    {
        int status = entry_id(r, value, key, &id);
        if (status != MOE_OK)
            return status;
        *n = id >= *n ? id + 1 : *n;
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        int status = entry_id(r, json_object_get(json_array_get(added, i), "id"), "(added)", &id);
        if (status != MOE_OK)
            return status;
        *n = id >= *n ? id + 1 : *n;
    }
    return MOE_OK;
}

static int collect_vocab(struct moe_hf_reader *r, json_t *vocab, struct moe_vocab_entry *entries)
{
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        struct moe_vocab_entry *e = &entries[json_integer_value(value)];
        if (e->flags)
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: tokens '%.60s' and '%.60s' have one id",
                            r->name, e->text, key);
        *e = (struct moe_vocab_entry){.text = key, .n = strlen(key), .flags = MOE_TOKEN_MODEL};
        if (r->tok->flags & MOE_TOKENIZER_BYTE_FALLBACK && moe_token_byte(key, e->n) >= 0)
            e->flags |= MOE_TOKEN_BYTE;
    }
    return MOE_OK;
}

static int added_flags(struct moe_hf_reader *r, const json_t *token, uint8_t *flags)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } known[] = {{"special", MOE_TOKEN_SPECIAL},
                 {"lstrip", MOE_TOKEN_LSTRIP},
                 {"rstrip", MOE_TOKEN_RSTRIP},
                 {"normalized", MOE_TOKEN_NORMALIZED},
                 {"single_word", MOE_TOKEN_SINGLE_WORD}};
    *flags = MOE_TOKEN_ADDED;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool on = false;
        int status = moe_hf_bool(r, token, known[i].key, &on);
        if (status != MOE_OK)
            return status;
        *flags |= on ? known[i].flag : 0;
    }
    return MOE_OK;
}

static int collect_added(struct moe_hf_reader *r, const json_t *vocab, const json_t *added,
                         struct moe_vocab_entry *entries)
{
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        uint32_t id = (uint32_t)json_integer_value(json_object_get(token, "id"));
        const char *text = NULL;
        uint8_t flags = 0;
        int status = moe_hf_text(r, token, "content", &text);
        if (status == MOE_OK)
            status = added_flags(r, token, &flags);
        if (status != MOE_OK)
            return status;
        if (text && moe_token_is_sentinel(text, strlen(text)))
            flags &= (uint8_t)~MOE_TOKEN_SPECIAL;
        size_t n = text ? strlen(text) : 0;
        const json_t *in_vocab = n ? json_object_get(vocab, text) : NULL;
        if (n == 0 || (in_vocab && json_integer_value(in_vocab) != (json_int_t)id) ||
            (!in_vocab && entries[id].flags))
            return moe_fail(r->err, MOE_ERR_FORMAT,
                            "%s: added token %u '%.60s' is empty or does not fit the vocabulary",
                            r->name, id, text ? text : "");
        entries[id].text = text;
        entries[id].n = n;
        entries[id].flags |= flags;
    }
    return MOE_OK;
}

static int read_tokens(struct moe_hf_reader *r, json_t *vocab, json_t *listed)
{
    uint32_t n;
    struct moe_vocab_entry *entries = NULL;
    json_t *added = NULL;
    int status = largest_id(r, vocab, listed, &n);
    if (status == MOE_OK)
        status = moe_hf_join_added(r, vocab, listed, &added);
    if (status == MOE_OK)
        status = largest_id(r, vocab, added, &n);
    if (status == MOE_OK && n == 0)
        status = moe_hf_damaged(r, "the vocabulary is empty");
    if (status == MOE_OK)
        status = moe_tokenizer_allocate(r->tok, n, r->err);
    if (status == MOE_OK && !(entries = moe_alloc(n, sizeof *entries, r->err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = collect_vocab(r, vocab, entries);
    if (status == MOE_OK)
        status = collect_added(r, vocab, added, entries);
    if (status == MOE_OK)
        status = moe_vocab_store(r->tok, r->name, entries, r->err);
    free(entries);
    json_decref(added);
    return status;
}

/* ---- Merges ---- */

/* Merge "a b" or ["a", "b"]. */
static bool read_merge(struct moe_hf_reader *r, const json_t *merge, struct moe_buf *scratch,
                       struct moe_bpe_merge *out)
{
    const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
    if (json_is_string(merge))
        return moe_vocab_merge_line(r->tok, json_string_value(merge), json_string_length(merge),
                                    scratch, out);
    return json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right) &&
           moe_vocab_merge(r->tok, json_string_value(left), json_string_length(left),
                           json_string_value(right), json_string_length(right), scratch, out);
}

static int read_merges(struct moe_hf_reader *r, const json_t *merges)
{
    struct moe_bpe *bpe = &r->tok->bpe;
    struct moe_buf scratch = {0};
    size_t n = json_array_size(merges);
    if (!json_is_array(merges))
        return moe_hf_damaged(r, "model: no list of merges");
    int status = moe_vocab_reserve_merges(r->tok, r->name, n, r->err);
    for (size_t i = 0; i < n && status == MOE_OK; i++)
        if (!read_merge(r, json_array_get(merges, i), &scratch, &bpe->merges[i]))
            status = moe_vocab_no_merge(r->name, i, &scratch, r->err);
    moe_buf_release(&scratch);
    return status;
}

static int check_bpe(struct moe_hf_reader *r, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    int status = MOE_OK;
    if (!moe_hf_absent(json_object_get(model, "dropout")) &&
        json_number_value(json_object_get(model, "dropout")) != 0)
        return moe_hf_unsupported(r, "model: dropout", NULL);
    for (int i = 0; i < 2; i++) {
        const char *affix = "";
        status = moe_hf_text(r, model, affixes[i], &affix);
        if (status != MOE_OK)
            return status;
        if (*affix)
            return moe_hf_unsupported(r, "model:", affixes[i]);
    }
    return MOE_OK;
}

static int read_model_flags(struct moe_hf_reader *r, const json_t *model)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } known[] = {{"ignore_merges", MOE_TOKENIZER_IGNORE_MERGES},
                 {"byte_fallback", MOE_TOKENIZER_BYTE_FALLBACK},
                 {"fuse_unk", MOE_TOKENIZER_FUSE_UNK}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool on = false;
        int status = moe_hf_bool(r, model, known[i].key, &on);
        if (status != MOE_OK)
            return status;
        r->tok->flags |= on ? known[i].flag : 0;
    }
    if (r->byte_level) /* each byte is a token: there is nothing to fall back from */
        r->tok->flags &= ~(uint32_t)MOE_TOKENIZER_BYTE_FALLBACK;
    r->tok->model = r->byte_level ? MOE_TOKENIZER_BYTES : MOE_TOKENIZER_CHARS;
    return MOE_OK;
}

/* ---- Unigram: a vocabulary of texts and scores in the order of their ids ---- */

/* The vocabulary as BPE models have it, from text to id; of a text that comes twice the last id.
 * *least is the least score. */
static int number_texts(struct moe_hf_reader *r, const json_t *list, json_t *vocab, double *least)
{
    int status = vocab ? MOE_OK : moe_fail(r->err, MOE_ERR_MEMORY, "out of memory");
    *least = HUGE_VAL;
    for (size_t i = 0; i < json_array_size(list) && status == MOE_OK; i++) {
        const json_t *pair = json_array_get(list, i), *score = json_array_get(pair, 1);
        const char *text = json_string_value(json_array_get(pair, 0));
        if (json_array_size(pair) != 2 || !text || !json_is_number(score))
            status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: token %zu is no pair of text and score",
                              r->name, i);
        else if (json_object_set_new(vocab, text, json_integer((json_int_t)i)) != 0)
            status = moe_fail(r->err, MOE_ERR_MEMORY, "out of memory");
        else if (moe_vocab_score(json_number_value(score)) < *least)
            *least = moe_vocab_score(json_number_value(score));
    }
    return status;
}

static int read_scores(struct moe_hf_reader *r, const json_t *list)
{
    double *scores = moe_alloc(r->tok->n_tokens, sizeof *scores, r->err);
    r->tok->unigram.scores = scores;
    for (size_t i = 0; scores && i < json_array_size(list); i++)
        scores[i] = moe_vocab_score(json_number_value(json_array_get(json_array_get(list, i), 1)));
    return scores ? MOE_OK : MOE_ERR_MEMORY;
}

static int read_unigram(struct moe_hf_reader *r, const json_t *model, json_t *added)
{
    const json_t *list = json_object_get(model, "vocab");
    struct moe_tokenizer *tok = r->tok;
    bool byte_fallback = false;
    double least;
    if (r->byte_level)
        return moe_hf_unsupported(r, "ByteLevel with the model", "Unigram");
    if (!json_is_array(list) || json_array_size(list) == 0 ||
        json_array_size(list) > MOE_TOKENS_MAX)
        return moe_hf_damaged(r, "model: the vocabulary is no list of tokens, or an absurd one");
    int status = moe_hf_bool(r, model, "byte_fallback", &byte_fallback);
    if (status == MOE_OK)
        status = moe_json_get_u32(r->name, model, "unk_id", (uint32_t)json_array_size(list) - 1,
                                  false, &tok->unk, r->err);
    if (status != MOE_OK)
        return status;
    json_t *vocab = json_object();
    status = number_texts(r, list, vocab, &least);
    tok->model = MOE_TOKENIZER_UNIGRAM;
    tok->flags |=
        MOE_TOKENIZER_FUSE_UNK | r->drops | (byte_fallback ? MOE_TOKENIZER_BYTE_FALLBACK : 0u);
    tok->unigram.unknown = least - MOE_UNIGRAM_PENALTY;
    if (status == MOE_OK)
        status = read_tokens(r, vocab, added);
    if (status == MOE_OK)
        status = read_scores(r, list);
    json_decref(vocab);
    return status;
}

int moe_hf_read_model(struct moe_hf_reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    json_t *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const char *unk = NULL, *type = "BPE"; /* old files name none */
    if (!json_is_object(model))
        return moe_hf_damaged(r, "no tokenizer model");
    int status = moe_hf_text(r, model, "type", &type);
    if (status == MOE_OK && !moe_hf_absent(added) && !json_is_array(added))
        status = moe_hf_damaged(r, "added_tokens is not a list");
    if (status != MOE_OK)
        return status;
    if (strcmp(type, "Unigram") == 0)
        return read_unigram(r, model, added);
    if (strcmp(type, "BPE") != 0)
        return moe_hf_unsupported(r, "tokenizer model", type);
    status = check_bpe(r, model);
    if (status == MOE_OK && !json_is_object(vocab))
        status = moe_hf_damaged(r, "model: no vocabulary");
    if (status == MOE_OK)
        status = read_model_flags(r, model);
    if (status == MOE_OK)
        status = moe_hf_text(r, model, "unk_token", &unk);
    if (status == MOE_OK)
        status = read_tokens(r, vocab, added);
    if (status == MOE_OK)
        status = read_merges(r, json_object_get(model, "merges"));
    if (status == MOE_OK && unk && json_object_get(vocab, unk))
        r->tok->unk = (uint32_t)json_integer_value(json_object_get(vocab, unk));
    return status;
}
