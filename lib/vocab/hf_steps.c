/*
 * tokenizer.json: normalizer, decoder and post-processor.
 */
#include <string.h>

#include "base/text.h"
#include "vocab/hf.h"

enum { NESTING_MAX = 4 /* of Sequence in Sequence */ };

/* Calls fn for the part itself or, where it is a Sequence, for its members under `key`. */
static int for_each_part(struct moe_hf_reader *r, const json_t *part, const char *key, int depth,
                         int (*fn)(struct moe_hf_reader *r, const json_t *part))
{
    if (moe_hf_absent(part))
        return MOE_OK;
    if (!moe_hf_is_type(part, "Sequence"))
        return fn(r, part);
    const json_t *members = json_object_get(part, key);
    if (!json_is_array(members) || depth == NESTING_MAX)
        return moe_hf_damaged(r, "a Sequence has no members or is nested too deep");
    int status = MOE_OK;
    for (size_t i = 0; i < json_array_size(members) && status == MOE_OK; i++)
        status = for_each_part(r, json_array_get(members, i), key, depth + 1, fn);
    return status;
}

/* ---- Normalizer ---- */

static int set_text(struct moe_hf_reader *r, struct moe_buf *to, const json_t *value)
{
    if (!json_is_string(value))
        return moe_hf_damaged(r, "a pattern or content is not a text");
    moe_buf_append(to, json_string_value(value), json_string_length(value));
    return to->failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

/* Of an expression "X{2,}" for one character X without a meaning of its own the bytes of X, else
 * 0. Converted SentencePiece models have no other. */
static size_t repeated_bytes(const json_t *expression)
{
    static const char twice[] = "{2,}";
    const char *text = json_string_value(expression);
    size_t n = json_string_length(expression), tail = sizeof twice - 1;
    if (!text || n <= tail || strcmp(text + n - tail, twice) != 0 ||
        strchr("\\^$.|?*+()[]{}#", *text))
        return 0;
    int length;
    moe_utf8_decode((const uint8_t *)text, n - tail, &length);
    return (size_t)length == n - tail ? n - tail : 0;
}

static int read_replace(struct moe_hf_reader *r, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const json_t *text = json_object_get(pattern, "String");
    const json_t *expression = json_object_get(pattern, "Regex");
    size_t repeated = text ? 0 : repeated_bytes(expression);
    struct moe_step *step;
    uint8_t kind = text       ? MOE_STEP_REPLACE
                   : repeated ? MOE_STEP_REPLACE_RUNS
                              : MOE_STEP_REPLACE_MATCHES;
    int status = moe_hf_add_step(r, &r->tok->normalizer, kind, &step);
    if (status == MOE_OK && repeated)
        moe_buf_append(&step->text, json_string_value(expression), repeated);
    else if (status == MOE_OK)
        status = set_text(r, &step->text, text ? text : expression);
    return status == MOE_OK ? set_text(r, &step->other, json_object_get(part, "content")) : status;
}

static int read_strip(struct moe_hf_reader *r, const json_t *part)
{
    bool left = true, right = true;
    struct moe_step *step;
    int status = moe_hf_bool(r, part, "strip_left", &left);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "strip_right", &right);
    if (status == MOE_OK)
        status = moe_hf_add_step(r, &r->tok->normalizer, MOE_STEP_STRIP, &step);
    if (status == MOE_OK)
        step->flags = (uint8_t)((left ? MOE_STEP_LEFT : 0) | (right ? MOE_STEP_RIGHT : 0));
    return status;
}

/* The value of a character of base64, or -1. */
static int base64_value(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

static int read_precompiled(struct moe_hf_reader *r, const json_t *part)
{
    const json_t *value = json_object_get(part, "precompiled_charsmap");
    const char *text = json_string_value(value);
    size_t n = json_string_length(value), used = n;
    struct moe_step *step;
    int status = moe_hf_add_step(r, &r->tok->normalizer, MOE_STEP_PRECOMPILED, &step);
    if (status != MOE_OK)
        return status;
    while (used > 0 && n - used < 2 && text[used - 1] == '=')
        used--;
    uint32_t bits = 0;
    for (size_t i = 0; i < used && status == MOE_OK; i++) {
        int digit = base64_value(text[i]);
        bits = bits << 6 | (uint32_t)(digit & 63);
        if (digit < 0)
            status = MOE_ERR_FORMAT;
        else if (i % 4)
            moe_buf_u8(&step->text, (uint8_t)(bits >> (6 - 2 * (i % 4))));
    }
    if (n == 0 || n % 4 || status != MOE_OK)
        return moe_hf_damaged(r, "precompiled_charsmap is no base64");
    return step->text.failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int read_bert(struct moe_hf_reader *r, const json_t *part)
{
    bool clean = true, apart = true, lower = true;
    const json_t *accents = json_object_get(part, "strip_accents");
    struct moe_step *step;
    int status = moe_hf_bool(r, part, "clean_text", &clean);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "handle_chinese_chars", &apart);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "lowercase", &lower);
    bool strip = moe_hf_absent(accents) ? lower : json_is_true(accents);
    const struct {
        bool wanted;
        uint8_t kind, flags;
    } steps[] = {{clean, MOE_STEP_BERT, MOE_STEP_CLEAN},
                 {apart, MOE_STEP_BERT, MOE_STEP_APART},
                 {strip, MOE_STEP_NFD, 0},
                 {strip, MOE_STEP_BERT, MOE_STEP_ACCENTS},
                 {lower, MOE_STEP_LOWERCASE, 0}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps && status == MOE_OK; i++) {
        if (!steps[i].wanted)
            continue;
        status = moe_hf_add_step(r, &r->tok->normalizer, steps[i].kind, &step);
        if (status == MOE_OK)
            step->flags = steps[i].flags;
    }
    return status;
}

static int read_normalizer(struct moe_hf_reader *r, const json_t *part)
{
    static const struct {
        const char *type;
        uint8_t kind;
    } plain[] = {{"NFC", MOE_STEP_NFC},
                 {"NFD", MOE_STEP_NFD},
                 {"NFKC", MOE_STEP_NFKC},
                 {"NFKD", MOE_STEP_NFKD},
                 {"Nmt", MOE_STEP_NMT},
                 {"Lowercase", MOE_STEP_LOWERCASE},
                 {"StripAccents", MOE_STEP_STRIP_MARKS}};
    struct moe_step *step;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (moe_hf_is_type(part, plain[i].type))
            return moe_hf_add_step(r, &r->tok->normalizer, plain[i].kind, &step);
    if (moe_hf_is_type(part, "Replace"))
        return read_replace(r, part);
    if (moe_hf_is_type(part, "Strip"))
        return read_strip(r, part);
    if (moe_hf_is_type(part, "Precompiled"))
        return read_precompiled(r, part);
    if (moe_hf_is_type(part, "BertNormalizer"))
        return read_bert(r, part);
    if (!moe_hf_is_type(part, "Prepend"))
        return moe_hf_unsupported(r, "normalizer", moe_hf_type(part));
    int status = moe_hf_add_step(r, &r->tok->normalizer, MOE_STEP_PREPEND, &step);
    return status == MOE_OK ? set_text(r, &step->text, json_object_get(part, "prepend")) : status;
}

/* ---- Decoder and post-processor ---- */

#define MORE_THAN_ONE "a post_processor that adds more than one first token and one last"

static bool has_text(const json_t *object, const char *key, const char *want)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, want) == 0;
}

/* What a decoder drops of an answer's beginning. */
static int read_drops(struct moe_hf_reader *r, const json_t *part)
{
    bool add_prefix_space = true;
    const char *scheme = "";
    uint32_t start = 0, stop = 0;
    int status = MOE_OK;
    if (moe_hf_is_type(part, "Metaspace")) {
        status = moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space);
        if (status == MOE_OK)
            status = moe_hf_text(r, part, "prepend_scheme", &scheme);
        if (add_prefix_space && strcmp(scheme, "never") != 0)
            r->drops |= MOE_TOKENIZER_DROPS_SPACES;
    } else if (moe_hf_is_type(part, "Strip")) {
        status = moe_json_get_u32(r->name, part, "start", 1, false, &start, r->err);
        if (status == MOE_OK)
            status = moe_json_get_u32(r->name, part, "stop", 0, false, &stop, r->err);
        r->drops |= start ? MOE_TOKENIZER_DROPS_SPACE : 0u;
    }
    return status;
}

/* The model's kind fixes what a token means: the decoder only has to agree. */
static int check_decoder(struct moe_hf_reader *r, const json_t *part)
{
    bool known;
    if (r->byte_level)
        known = moe_hf_is_type(part, "ByteLevel");
    else if (moe_hf_is_type(part, "Replace"))
        known = has_text(json_object_get(part, "pattern"), "String", MOE_METASPACE) &&
                has_text(part, "content", " ");
    else if (moe_hf_is_type(part, "Strip"))
        known = has_text(part, "content", " ");
    else
        known = moe_hf_is_type(part, "ByteFallback") || moe_hf_is_type(part, "Fuse") ||
                moe_hf_is_type(part, "Metaspace");
    return known ? read_drops(r, part) : moe_hf_unsupported(r, "decoder", moe_hf_type(part));
}

/* RobertaProcessing and BertProcessing: [text, id] of the first and the last token. */
static int read_pair(struct moe_hf_reader *r, const json_t *part)
{
    const char *first = json_string_value(json_array_get(json_object_get(part, "cls"), 0));
    const char *last = json_string_value(json_array_get(json_object_get(part, "sep"), 0));
    if (!first || !last)
        return moe_hf_damaged(r, "a post_processor lacks 'cls' or 'sep'");
    if (r->prefix || r->suffix)
        return moe_hf_unsupported(r, MORE_THAN_ONE, NULL);
    r->prefix = first;
    r->suffix = last;
    return MOE_OK;
}

/* The token of a template's name: the file's list says which, where it is another. */
static int template_token(struct moe_hf_reader *r, const json_t *part, const char *id,
                          const char **token)
{
    const json_t *named = json_object_get(json_object_get(part, "special_tokens"), id);
    const json_t *tokens = json_object_get(named, "tokens");
    *token = id;
    if (json_array_size(tokens) > 1)
        return moe_hf_unsupported(r, MORE_THAN_ONE, NULL);
    if (json_is_string(json_array_get(tokens, 0)))
        *token = json_string_value(json_array_get(tokens, 0));
    return MOE_OK;
}

static int read_template(struct moe_hf_reader *r, const json_t *part)
{
    const json_t *single = json_object_get(part, "single");
    if (!json_is_array(single))
        return moe_hf_damaged(r, "TemplateProcessing has no 'single'");
    const char **added = &r->prefix; /* what comes next is this */
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        if (!special) {
            added = &r->suffix;
            continue;
        }
        const char *id = json_string_value(json_object_get(special, "id"));
        if (!id || *added)
            return moe_hf_unsupported(r, MORE_THAN_ONE, NULL);
        int status = template_token(r, part, id, added);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

static int read_post_processor(struct moe_hf_reader *r, const json_t *part)
{
    if (moe_hf_is_type(part, "ByteLevel"))
        return MOE_OK;
    if (moe_hf_is_type(part, "RobertaProcessing") || moe_hf_is_type(part, "BertProcessing"))
        return read_pair(r, part);
    if (moe_hf_is_type(part, "TemplateProcessing"))
        return read_template(r, part);
    return moe_hf_unsupported(r, "post_processor", moe_hf_type(part));
}

/* ---- All of them ---- */

/* Whether what stands first after the normalizer need not have stood first before, which is what
 * "first" means. */
static bool loses_its_beginning(const struct moe_tokenizer *tok)
{
    bool removes = false, first = false;
    for (uint32_t i = 0; i < tok->normalizer.n; i++) {
        const struct moe_step *step = &tok->normalizer.steps[i];
        removes = removes || step->kind == MOE_STEP_NMT || step->kind == MOE_STEP_BERT ||
                  (step->kind == MOE_STEP_STRIP && step->flags & MOE_STEP_LEFT);
    }
    for (uint32_t i = 0; i < tok->pre_tokenizer.n; i++)
        first = first || (tok->pre_tokenizer.steps[i].kind == MOE_STEP_METASPACE &&
                          tok->pre_tokenizer.steps[i].flags & MOE_STEP_PREPEND_FIRST);
    return removes && first;
}

int moe_hf_read_steps(struct moe_hf_reader *r, const json_t *root)
{
    static const struct {
        const char *key, *members;
        int (*read)(struct moe_hf_reader *r, const json_t *part);
    } parts[] = {{"normalizer", "normalizers", read_normalizer},
                 {"pre_tokenizer", "pretokenizers", moe_hf_read_pre_tokenizer},
                 {"decoder", "decoders", check_decoder},
                 {"post_processor", "processors", read_post_processor}};
    int status = MOE_OK;
    r->prefix = r->suffix = NULL;
    r->only = json_object_get(root, "pre_tokenizer");
    for (size_t i = 0; i < sizeof parts / sizeof *parts && status == MOE_OK; i++)
        status = for_each_part(r, json_object_get(root, parts[i].key), parts[i].members, 0,
                               parts[i].read);
    if (status == MOE_OK && loses_its_beginning(r->tok))
        status = moe_hf_unsupported(r,
                                    "Metaspace with prepend_scheme 'first' after a normalizer "
                                    "that may remove a text's beginning",
                                    NULL);
    return status;
}
