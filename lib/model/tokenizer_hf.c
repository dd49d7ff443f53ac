/*
 * Reading Hugging Face's tokenizer.json and tokenizer_config.json.
 *
 * Every part is either understood or refused by name: a tokenizer that is nearly right gives wrong
 * answers nobody can trace.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/json.h"
#include "model/tokenizer_impl.h"

enum {
    FILE_BYTES_MAX = 256 << 20,
    NESTING_MAX = 4, /* of Sequence in Sequence */
};

static const char METASPACE[] = "\xe2\x96\x81"; /* U+2581 */

struct reader {
    const char *name; /* of the file, for error texts */
    struct moe_tokenizer *tok;
    struct moe_err *err;
    bool byte_level;      /* the pre-tokenizer maps bytes to characters */
    const char *prefix;   /* the token that the post-processor puts first, or NULL */
    int16_t unmap[0x144]; /* character to byte of the byte-level alphabet, -1: none */
};

static int unsupported(struct reader *r, const char *what, const char *which)
{
    return moe_fail(r->err, MOE_ERR_UNSUPPORTED, "%s: %s%s%s%s is not implemented", r->name, what,
                    which ? " '" : "", which ? which : "", which ? "'" : "");
}

static int damaged(struct reader *r, const char *what)
{
    return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s", r->name, what);
}

static bool is_absent(const json_t *value)
{
    return !value || json_is_null(value);
}

static int get_bool(struct reader *r, const json_t *object, const char *key, bool *out)
{
    return moe_json_get_bool(r->name, object, key, false, out, r->err);
}

static int get_text(struct reader *r, const json_t *object, const char *key, const char **out)
{
    return moe_json_get_text(r->name, object, key, false, out, r->err);
}

static const char *type_of(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "?";
}

static bool is_type(const json_t *part, const char *type)
{
    return strcmp(type_of(part), type) == 0;
}

/* Calls fn for the part itself or, where it is a Sequence, for its members under `key`. */
static int for_each_part(struct reader *r, const json_t *part, const char *key, int depth,
                         int (*fn)(struct reader *r, const json_t *part))
{
    if (is_absent(part))
        return MOE_OK;
    if (!is_type(part, "Sequence"))
        return fn(r, part);
    const json_t *members = json_object_get(part, key);
    if (!json_is_array(members) || depth == NESTING_MAX)
        return damaged(r, "a Sequence has no members or is nested too deep");
    int status = MOE_OK;
    for (size_t i = 0; i < json_array_size(members) && status == MOE_OK; i++)
        status = for_each_part(r, json_array_get(members, i), key, depth + 1, fn);
    return status;
}

/* ---- Normalizer and pre-tokenizer -------------------------------------------------------------
 */

static int set_text(struct reader *r, struct moe_buf *to, const json_t *value)
{
    if (!json_is_string(value))
        return damaged(r, "a pattern or content is not a text");
    moe_buf_append(to, json_string_value(value), json_string_length(value));
    return to->failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int add_step(struct reader *r, struct moe_steps *steps, uint8_t kind, struct moe_step **out)
{
    *out = moe_steps_add(steps, kind);
    return *out ? MOE_OK : damaged(r, "too many normalizer or pre-tokenizer steps");
}

static int read_normalizer(struct reader *r, const json_t *part)
{
    struct moe_steps *steps = &r->tok->normalizer;
    struct moe_step *step;
    int status;
    if (is_type(part, "NFC"))
        return add_step(r, steps, MOE_STEP_NFC, &step);
    if (is_type(part, "Prepend")) {
        status = add_step(r, steps, MOE_STEP_PREPEND, &step);
        return status == MOE_OK ? set_text(r, &step->text, json_object_get(part, "prepend"))
                                : status;
    }
    if (!is_type(part, "Replace"))
        return unsupported(r, "normalizer", type_of(part));
    const json_t *pattern = json_object_get(json_object_get(part, "pattern"), "String");
    if (!pattern)
        return unsupported(r, "normalizer 'Replace' with an expression", NULL);
    status = add_step(r, steps, MOE_STEP_REPLACE, &step);
    if (status == MOE_OK)
        status = set_text(r, &step->text, pattern);
    return status == MOE_OK ? set_text(r, &step->other, json_object_get(part, "content")) : status;
}

static int add_split(struct reader *r, const char *pattern, uint8_t behavior, uint8_t flags)
{
    struct moe_step *step;
    int status = add_step(r, &r->tok->pre_tokenizer, MOE_STEP_SPLIT, &step);
    if (status != MOE_OK)
        return status;
    step->behavior = behavior;
    step->flags = flags;
    moe_buf_text(&step->text, pattern);
    return step->text.failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int read_split(struct reader *r, const json_t *part)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(part, "pattern");
    const char *text = NULL, *behavior = "?";
    bool invert = false;
    int status = get_text(r, part, "behavior", &behavior);
    if (status == MOE_OK)
        status = get_bool(r, part, "invert", &invert);
    if (status != MOE_OK)
        return status;
    if (!json_is_object(pattern))
        return damaged(r, "a Split has no pattern");
    bool literal = json_object_get(pattern, "String") != NULL;
    status = get_text(r, pattern, literal ? "String" : "Regex", &text);
    if (status != MOE_OK)
        return status;
    if (!text)
        return unsupported(r, "a Split's kind of pattern", NULL);
    for (uint8_t i = 0; i < 5; i++) {
        if (strcmp(behavior, names[i]) == 0)
            return add_split(
                r, text, i,
                (uint8_t)((invert ? MOE_STEP_INVERT : 0) | (literal ? MOE_STEP_LITERAL : 0)));
    }
    return unsupported(r, "split behavior", behavior);
}

static int read_byte_level(struct reader *r, const json_t *part)
{
    /* GPT-2's pattern, which the type stands for. */
    static const char pattern[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+|"
                                  " ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool add_prefix_space = true, use_regex = true;
    struct moe_step *step;
    int status = get_bool(r, part, "add_prefix_space", &add_prefix_space);
    if (status == MOE_OK)
        status = get_bool(r, part, "use_regex", &use_regex);
    if (status == MOE_OK && add_prefix_space)
        status = add_step(r, &r->tok->pre_tokenizer, MOE_STEP_PREFIX_SPACE, &step);
    if (status == MOE_OK && use_regex)
        status = add_split(r, pattern, MOE_SPLIT_ISOLATED, 0);
    r->byte_level = true;
    return status;
}

static int read_metaspace(struct reader *r, const json_t *part)
{
    const char *replacement = METASPACE, *scheme = NULL;
    bool split = true, add_prefix_space = true;
    struct moe_step *step;
    int status = get_text(r, part, "replacement", &replacement);
    if (status == MOE_OK)
        status = get_text(r, part, "prepend_scheme", &scheme);
    if (status == MOE_OK)
        status = get_bool(r, part, "split", &split);
    if (status == MOE_OK)
        status = get_bool(r, part, "add_prefix_space", &add_prefix_space);
    if (status != MOE_OK)
        return status;
    if (!scheme)
        scheme = add_prefix_space ? "always" : "never";
    if (strcmp(replacement, METASPACE) != 0)
        return unsupported(r, "Metaspace with replacement", replacement);
    status = add_step(r, &r->tok->pre_tokenizer, MOE_STEP_METASPACE, &step);
    if (status != MOE_OK)
        return status;
    if (strcmp(scheme, "first") == 0)
        step->flags = MOE_STEP_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        step->flags = MOE_STEP_PREPEND_NEVER;
    else if (strcmp(scheme, "always") != 0)
        return unsupported(r, "prepend_scheme", scheme);
    return split ? add_split(r, METASPACE, MOE_SPLIT_NEXT, MOE_STEP_LITERAL) : MOE_OK;
}

static int read_pre_tokenizer(struct reader *r, const json_t *part)
{
    /* From here on the text would be in the byte-level alphabet. */
    if (r->byte_level)
        return unsupported(r, "a pre-tokenizer behind ByteLevel:", type_of(part));
    if (is_type(part, "Split"))
        return read_split(r, part);
    if (is_type(part, "ByteLevel"))
        return read_byte_level(r, part);
    if (is_type(part, "Metaspace"))
        return read_metaspace(r, part);
    if (is_type(part, "Digits")) {
        bool individual = false;
        int status = get_bool(r, part, "individual_digits", &individual);
        return status == MOE_OK
                   ? add_split(r, individual ? "\\p{N}" : "\\p{N}+", MOE_SPLIT_ISOLATED, 0)
                   : status;
    }
    return unsupported(r, "pre_tokenizer", type_of(part));
}

/* ---- Decoder and post-processor ---------------------------------------------------------------
 */

static bool has_text(const json_t *object, const char *key, const char *want)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, want) == 0;
}

/* What a token means is fixed by the model's kind: the decoder only has to say the same. */
static int check_decoder(struct reader *r, const json_t *part)
{
    bool known;
    if (r->byte_level)
        known = is_type(part, "ByteLevel");
    else if (is_type(part, "Replace"))
        known = has_text(json_object_get(part, "pattern"), "String", METASPACE) &&
                has_text(part, "content", " ");
    else if (is_type(part, "Strip"))
        known = has_text(part, "content", " ");
    else
        known =
            is_type(part, "ByteFallback") || is_type(part, "Fuse") || is_type(part, "Metaspace");
    return known ? MOE_OK : unsupported(r, "decoder", type_of(part));
}

static int read_post_processor(struct reader *r, const json_t *part)
{
    if (is_type(part, "ByteLevel"))
        return MOE_OK;
    if (!is_type(part, "TemplateProcessing"))
        return unsupported(r, "post_processor", type_of(part));
    const json_t *single = json_object_get(part, "single");
    if (!json_is_array(single))
        return damaged(r, "TemplateProcessing has no 'single'");
    bool text_seen = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        if (!special) {
            text_seen = true;
            continue;
        }
        const char *id = json_string_value(json_object_get(special, "id"));
        if (!id || r->prefix || text_seen)
            return unsupported(r, "a post_processor that adds more than one first token", NULL);
        r->prefix = id;
    }
    return MOE_OK;
}

/* ---- Tokens -----------------------------------------------------------------------------------
 */

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and on. */
static void fill_unmap(struct reader *r)
{
    int next = 0x100;
    for (int c = 0; c < 0x144; c++)
        r->unmap[c] = -1;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        r->unmap[itself ? b : next++] = (int16_t)b;
    }
}

/* Appends the bytes of a byte-level token; false (and nothing appended) when a character is not in
 * the alphabet. */
static bool unmap_token(const struct reader *r, const char *text, size_t n, struct moe_buf *out)
{
    uint64_t before = out->size;
    int length;
    for (size_t at = 0; at < n; at += (size_t)length) {
        uint32_t c = moe_utf8_decode((const uint8_t *)text + at, n - at, &length);
        if (c >= 0x144 || r->unmap[c] < 0) {
            out->size = before;
            return false;
        }
        moe_buf_u8(out, (uint8_t)r->unmap[c]);
    }
    return true;
}

/* Printable ASCII reads the same in the byte-level alphabet. */
static bool means_itself(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] < 33 || text[i] > 126)
            return false;
    }
    return true;
}

/* One id's token while they are collected; texts borrow from the JSON. */
struct entry {
    const char *text;
    size_t n;
    uint8_t flags;
};

static int entry_id(struct reader *r, const json_t *value, const char *text, uint32_t *id)
{
    json_int_t v = json_is_integer(value) ? json_integer_value(value) : -1;
    if (v < 0 || v >= MOE_TOKENS_MAX)
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: token '%.60s' has no proper id", r->name,
                        text);
    *id = (uint32_t)v;
    return MOE_OK;
}

static int largest_id(struct reader *r, json_t *vocab, const json_t *added, uint32_t *n)
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

static int collect_vocab(struct reader *r, json_t *vocab, struct entry *entries)
{
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        struct entry *e = &entries[json_integer_value(value)];
        if (e->flags)
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: tokens '%.60s' and '%.60s' have one id",
                            r->name, e->text, key);
        *e = (struct entry){.text = key, .n = strlen(key), .flags = MOE_TOKEN_MODEL};
    }
    return MOE_OK;
}

static int added_flags(struct reader *r, const json_t *token, uint8_t *flags)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } known[] = {{"special", MOE_TOKEN_SPECIAL},
                 {"lstrip", MOE_TOKEN_LSTRIP},
                 {"rstrip", MOE_TOKEN_RSTRIP},
                 {"normalized", MOE_TOKEN_NORMALIZED},
                 {"single_word", 0}};
    *flags = MOE_TOKEN_ADDED;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool on = false;
        int status = get_bool(r, token, known[i].key, &on);
        if (status != MOE_OK)
            return status;
        if (on && !known[i].flag)
            return unsupported(r, "an added token with", known[i].key);
        *flags |= on ? known[i].flag : 0;
    }
    return MOE_OK;
}

/* An added token that is looked for in normalized text is itself normalized first. */
static int check_normalized(struct reader *r, const char *text, size_t n)
{
    struct moe_buf out = {0};
    const char *normal;
    uint64_t normal_n;
    int status = moe_normalize(&r->tok->normalizer, text, n, &out, &normal, &normal_n, r->err);
    if (status == MOE_OK && (normal_n != n || memcmp(normal, text, n) != 0))
        status = unsupported(r, "a normalizer that changes added token", text);
    moe_buf_release(&out);
    return status;
}

static int collect_added(struct reader *r, const json_t *vocab, const json_t *added,
                         struct entry *entries)
{
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        uint32_t id = (uint32_t)json_integer_value(json_object_get(token, "id"));
        const char *text = NULL;
        uint8_t flags = 0;
        int status = get_text(r, token, "content", &text);
        if (status == MOE_OK)
            status = added_flags(r, token, &flags);
        if (status != MOE_OK)
            return status;
        size_t n = text ? strlen(text) : 0;
        const json_t *in_vocab = n ? json_object_get(vocab, text) : NULL;
        if (n == 0 || (in_vocab && json_integer_value(in_vocab) != (json_int_t)id) ||
            (!in_vocab && entries[id].flags))
            return moe_fail(r->err, MOE_ERR_FORMAT,
                            "%s: added token %u '%.60s' is empty or does not fit the vocabulary",
                            r->name, id, text ? text : "");
        if (flags & MOE_TOKEN_NORMALIZED)
            status = check_normalized(r, text, n);
        if (status != MOE_OK)
            return status;
        entries[id].text = text;
        entries[id].n = n;
        entries[id].flags |= flags;
    }
    return MOE_OK;
}

static bool is_byte_token(const char *text, size_t n)
{
    static const char digits[] = "0123456789ABCDEF";
    return n == 6 && memcmp(text, "<0x", 3) == 0 && strchr(digits, text[3]) &&
           strchr(digits, text[4]) && text[5] == '>';
}

static int store_tokens(struct reader *r, const struct entry *entries)
{
    struct moe_tokenizer *tok = r->tok;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        const struct entry *e = &entries[id];
        uint8_t flags = e->flags;
        if (e->n > MOE_TOKEN_BYTES_MAX)
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: token %u has %zu bytes", r->name, id,
                            e->n);
        bool bytes = r->byte_level && flags & MOE_TOKEN_MODEL && !(flags & MOE_TOKEN_ADDED);
        if (!bytes || !unmap_token(r, e->text, e->n, &tok->text)) {
            moe_buf_append(&tok->text, e->text, e->n);
            /* Outside the alphabet no merge makes it: it only decodes, unless it is added. */
            if (r->byte_level && !means_itself(e->text, e->n))
                flags &= (uint8_t)~MOE_TOKEN_MODEL;
            else if (tok->flags & MOE_TOKENIZER_BYTE_FALLBACK && is_byte_token(e->text, e->n))
                flags |= MOE_TOKEN_BYTE;
        }
        if (e->n == 0)
            flags = 0;
        if (tok->text.size > UINT32_MAX)
            return damaged(r, "tokens of more than 4 GiB");
        tok->token_flags[id] = flags;
        tok->offsets[id + 1] = (uint32_t)tok->text.size;
    }
    return tok->text.failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int read_tokens(struct reader *r, json_t *vocab, const json_t *added)
{
    uint32_t n;
    struct entry *entries = NULL;
    int status = largest_id(r, vocab, added, &n);
    if (status == MOE_OK && n == 0)
        status = damaged(r, "the vocabulary is empty");
    if (status == MOE_OK)
        status = moe_tokenizer_allocate(r->tok, n, r->err);
    if (status != MOE_OK)
        return status;
    entries = moe_alloc(n, sizeof *entries, r->err);
    status = entries ? collect_vocab(r, vocab, entries) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = collect_added(r, vocab, added, entries);
    if (status == MOE_OK)
        status = store_tokens(r, entries);
    free(entries);
    return status;
}

/* ---- Merges -----------------------------------------------------------------------------------
 */

/* The two sides of merge `merge` ("a b" or ["a", "b"]) as texts in `out`, each with its NUL. */
static bool merge_sides(const json_t *merge, struct moe_buf *out, const char **left,
                        const char **right)
{
    const char *text[2] = {NULL, NULL};
    size_t n[2] = {0, 0};
    moe_buf_clear(out);
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        for (size_t i = 0; i < 2; i++) {
            text[i] = json_string_value(json_array_get(merge, i));
            n[i] = text[i] ? json_string_length(json_array_get(merge, i)) : 0;
        }
    } else if (json_is_string(merge)) {
        const char *both = json_string_value(merge), *space = strchr(both, ' ');
        if (space && !strchr(space + 1, ' ')) {
            text[0] = both;
            n[0] = (size_t)(space - both);
            text[1] = space + 1;
            n[1] = json_string_length(merge) - n[0] - 1;
        }
    }
    if (n[0] == 0 || n[1] == 0)
        return false;
    moe_buf_append(out, text[0], n[0]);
    moe_buf_u8(out, 0);
    moe_buf_append(out, text[1], n[1]);
    *left = (const char *)out->data;
    *right = out->failed ? NULL : *left + n[0] + 1;
    return !out->failed;
}

static bool merge_ids(const json_t *vocab, const char *left, const char *right,
                      struct moe_buf *both, struct moe_bpe_merge *merge)
{
    moe_buf_clear(both);
    moe_buf_text(both, left);
    moe_buf_text(both, right);
    if (both->failed)
        return false;
    const json_t *a = json_object_get(vocab, left), *b = json_object_get(vocab, right);
    const json_t *c = json_object_get(vocab, (const char *)both->data);
    if (!a || !b || !c)
        return false;
    *merge =
        (struct moe_bpe_merge){(uint32_t)json_integer_value(a), (uint32_t)json_integer_value(b),
                               (uint32_t)json_integer_value(c)};
    return true;
}

static int read_merges(struct reader *r, const json_t *vocab, const json_t *merges)
{
    struct moe_bpe *bpe = &r->tok->bpe;
    struct moe_buf sides = {0}, both = {0};
    size_t n = json_array_size(merges);
    int status = MOE_OK;
    if (!json_is_array(merges) || n > 2 * (size_t)MOE_TOKENS_MAX)
        return damaged(r, "model: no list of merges, or an absurd one");
    bpe->merges = moe_alloc(n, sizeof *bpe->merges, r->err);
    if (!bpe->merges)
        return MOE_ERR_MEMORY;
    bpe->n_merges = (uint32_t)n;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const char *left, *right;
        if (!merge_sides(json_array_get(merges, i), &sides, &left, &right) ||
            !merge_ids(vocab, left, right, &both, &bpe->merges[i]))
            status = moe_fail(r->err, sides.failed || both.failed ? MOE_ERR_MEMORY : MOE_ERR_FORMAT,
                              "%s: merge %zu is no pair of tokens that make a token", r->name, i);
    }
    moe_buf_release(&sides);
    moe_buf_release(&both);
    return status;
}

static int check_model(struct reader *r, const json_t *model)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = "BPE"; /* old files name none */
    int status = get_text(r, model, "type", &type);
    if (status != MOE_OK)
        return status;
    if (strcmp(type, "BPE") != 0)
        return unsupported(r, "tokenizer model", type);
    if (!is_absent(json_object_get(model, "dropout")) &&
        json_number_value(json_object_get(model, "dropout")) != 0)
        return unsupported(r, "model: dropout", NULL);
    for (int i = 0; i < 2; i++) {
        const char *affix = "";
        status = get_text(r, model, affixes[i], &affix);
        if (status != MOE_OK)
            return status;
        if (*affix)
            return unsupported(r, "model:", affixes[i]);
    }
    return MOE_OK;
}

static int read_model_flags(struct reader *r, const json_t *model)
{
    static const struct {
        const char *key;
        uint32_t flag;
    } known[] = {{"ignore_merges", MOE_TOKENIZER_IGNORE_MERGES},
                 {"byte_fallback", MOE_TOKENIZER_BYTE_FALLBACK},
                 {"fuse_unk", MOE_TOKENIZER_FUSE_UNK}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        bool on = false;
        int status = get_bool(r, model, known[i].key, &on);
        if (status != MOE_OK)
            return status;
        r->tok->flags |= on ? known[i].flag : 0;
    }
    if (r->byte_level && r->tok->flags & MOE_TOKENIZER_BYTE_FALLBACK)
        return unsupported(r, "ByteLevel with byte_fallback", NULL);
    r->tok->model = r->byte_level ? MOE_TOKENIZER_BYTES : MOE_TOKENIZER_CHARS;
    return MOE_OK;
}

static int read_model(struct reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    const json_t *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const char *unk = NULL;
    if (!json_is_object(model))
        return damaged(r, "no tokenizer model");
    int status = check_model(r, model);
    if (status == MOE_OK && !json_is_object(vocab))
        status = damaged(r, "model: no vocabulary");
    if (status == MOE_OK && !is_absent(added) && !json_is_array(added))
        status = damaged(r, "added_tokens is not a list");
    if (status == MOE_OK)
        status = read_model_flags(r, model);
    if (status == MOE_OK)
        status = get_text(r, model, "unk_token", &unk);
    if (status == MOE_OK)
        status = read_tokens(r, vocab, added);
    if (status == MOE_OK)
        status = read_merges(r, vocab, json_object_get(model, "merges"));
    if (status == MOE_OK && unk && json_object_get(vocab, unk))
        r->tok->unk = (uint32_t)json_integer_value(json_object_get(vocab, unk));
    return status;
}

/* ---- tokenizer_config.json --------------------------------------------------------------------
 */

/* A token named in the configuration, as a text or as {"content": text}; *id as it was when none
 * is named or the tokenizer does not have it. */
static int named_token(struct reader *r, const json_t *config, const char *key, uint32_t *id)
{
    const json_t *value = json_object_get(config, key);
    const char *text = NULL;
    if (json_is_object(value)) {
        config = value;
        key = "content";
    }
    int status = config ? get_text(r, config, key, &text) : MOE_OK;
    int64_t found = text ? moe_tokenizer_find(r->tok, text) : -1;
    if (found >= 0)
        *id = (uint32_t)found;
    return status;
}

static int read_named(struct reader *r, const json_t *config)
{
    struct moe_tokenizer *tok = r->tok;
    bool adds_bos = r->prefix != NULL;
    if (r->prefix) {
        int64_t found = moe_tokenizer_find(tok, r->prefix);
        if (found < 0)
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: post_processor names no token: '%.60s'",
                            r->name, r->prefix);
        tok->bos = (uint32_t)found;
    } else if (config) {
        int status = named_token(r, config, "bos_token", &tok->bos);
        if (status != MOE_OK)
            return status;
    }
    tok->eos = tok->separator; /* found by its usual names while no eos was known */
    int status = named_token(r, config, "eos_token", &tok->eos);
    if (status == MOE_OK && config)
        status = get_bool(r, config, "add_bos_token", &adds_bos);
    if (adds_bos && tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
    if (tok->separator == MOE_NO_TOKEN)
        tok->separator = tok->eos;
    return status;
}

/* ---- The whole --------------------------------------------------------------------------------
 */

static int read_root(struct reader *r, const json_t *root)
{
    if (!json_is_object(root))
        return damaged(r, "not a tokenizer");
    int status =
        for_each_part(r, json_object_get(root, "normalizer"), "normalizers", 0, read_normalizer);
    if (status == MOE_OK)
        status = for_each_part(r, json_object_get(root, "pre_tokenizer"), "pretokenizers", 0,
                               read_pre_tokenizer);
    if (status == MOE_OK)
        status = for_each_part(r, json_object_get(root, "decoder"), "decoders", 0, check_decoder);
    if (status == MOE_OK)
        status = for_each_part(r, json_object_get(root, "post_processor"), "processors", 0,
                               read_post_processor);
    return status == MOE_OK ? read_model(r, root) : status;
}

int moe_tokenizer_parse_hf(struct moe_tokenizer **out, const char *name, const void *json,
                           uint64_t n, const char *config_name, const void *config,
                           uint64_t config_n, struct moe_err *err)
{
    struct reader r = {.name = name, .err = err};
    struct moe_err why = {0};
    json_t *root = NULL, *named = NULL;
    int status = MOE_ERR_FORMAT;

    fill_unmap(&r);
    root = moe_json_parse(name, json, n, err);
    if (!root)
        goto out;
    if (config) {
        named = moe_json_parse(config_name, config, config_n, err);
        if (!named)
            goto out;
    }
    r.tok = moe_tokenizer_new(err);
    status = r.tok ? read_root(&r, root) : MOE_ERR_MEMORY;
    if (status != MOE_OK)
        goto out;
    status = moe_tokenizer_prepare(r.tok, &why);
    if (status != MOE_OK) {
        moe_fail(err, status, "%s: %s", name, why.text);
        goto out;
    }
    if (named) {
        r.name = config_name;
        if (!json_is_object(named))
            status = damaged(&r, "not a configuration");
    }
    if (status == MOE_OK)
        status = read_named(&r, named);
out:
    json_decref(root);
    json_decref(named);
    if (status == MOE_OK)
        *out = r.tok;
    else
        moe_tokenizer_free(r.tok);
    return status;
}

int moe_tokenizer_read_hf(struct moe_tokenizer **out, const char *dir, struct moe_err *err)
{
    struct moe_buf json = {0}, config = {0};
    char *path = moe_path_join(dir, "tokenizer.json", err);
    char *config_path = path ? moe_path_join(dir, "tokenizer_config.json", err) : NULL;
    int status = config_path ? moe_file_read_all(path, FILE_BYTES_MAX, &json, err) : MOE_ERR_MEMORY;
    bool has_config = status == MOE_OK && moe_path_exists(config_path);
    if (has_config)
        status = moe_file_read_all(config_path, FILE_BYTES_MAX, &config, err);
    if (status == MOE_OK)
        status = moe_tokenizer_parse_hf(out, path, json.data, json.size, config_path,
                                        has_config && config.data ? config.data : NULL, config.size,
                                        err);
    moe_buf_release(&json);
    moe_buf_release(&config);
    free(path);
    free(config_path);
    return status;
}
