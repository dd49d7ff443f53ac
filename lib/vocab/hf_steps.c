/*
 * tokenizer.json: normalizer, pre-tokenizer, decoder and post-processor.
 */
#include <string.h>

#include "base/text.h"
#include "vocab/hf.h"

enum { NESTING_MAX = 4 /* of Sequence in Sequence */ };

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
static int for_each_part(struct moe_hf_reader *r, const json_t *part, const char *key, int depth,
                         int (*fn)(struct moe_hf_reader *r, const json_t *part))
{
    if (moe_hf_absent(part))
        return MOE_OK;
    if (!is_type(part, "Sequence"))
        return fn(r, part);
    const json_t *members = json_object_get(part, key);
    if (!json_is_array(members) || depth == NESTING_MAX)
        return moe_hf_damaged(r, "a Sequence has no members or is nested too deep");
    int status = MOE_OK;
    for (size_t i = 0; i < json_array_size(members) && status == MOE_OK; i++)
        status = for_each_part(r, json_array_get(members, i), key, depth + 1, fn);
    return status;
}

/* ---- Normalizer and pre-tokenizer ---- */

static int set_text(struct moe_hf_reader *r, struct moe_buf *to, const json_t *value)
{
    if (!json_is_string(value))
        return moe_hf_damaged(r, "a pattern or content is not a text");
    moe_buf_append(to, json_string_value(value), json_string_length(value));
    return to->failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int too_many(struct moe_hf_reader *r)
{
    return moe_hf_damaged(r, "too many normalizer or pre-tokenizer steps");
}

static int add_step(struct moe_hf_reader *r, struct moe_steps *steps, uint8_t kind,
                    struct moe_step **out)
{
    *out = moe_steps_add(steps, kind);
    return *out ? MOE_OK : too_many(r);
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
    if (!text && !repeated)
        return moe_hf_unsupported(r, "normalizer 'Replace' with an expression", NULL);
    int status =
        add_step(r, &r->tok->normalizer, text ? MOE_STEP_REPLACE : MOE_STEP_REPLACE_RUNS, &step);
    if (status == MOE_OK && repeated)
        moe_buf_append(&step->text, json_string_value(expression), repeated);
    else if (status == MOE_OK)
        status = set_text(r, &step->text, text);
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
        status = add_step(r, &r->tok->normalizer, MOE_STEP_STRIP, &step);
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
    int status = add_step(r, &r->tok->normalizer, MOE_STEP_PRECOMPILED, &step);
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
        if (is_type(part, plain[i].type))
            return add_step(r, &r->tok->normalizer, plain[i].kind, &step);
    if (is_type(part, "Replace"))
        return read_replace(r, part);
    if (is_type(part, "Strip"))
        return read_strip(r, part);
    if (is_type(part, "Precompiled"))
        return read_precompiled(r, part);
    if (!is_type(part, "Prepend"))
        return moe_hf_unsupported(r, "normalizer", type_of(part));
    int status = add_step(r, &r->tok->normalizer, MOE_STEP_PREPEND, &step);
    return status == MOE_OK ? set_text(r, &step->text, json_object_get(part, "prepend")) : status;
}

static int add_split(struct moe_hf_reader *r, const char *pattern, uint8_t behavior, uint8_t flags)
{
    return moe_steps_add_split(&r->tok->pre_tokenizer, pattern, behavior, flags) ? MOE_OK
                                                                                 : too_many(r);
}

static int read_split(struct moe_hf_reader *r, const json_t *part)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const json_t *pattern = json_object_get(part, "pattern");
    const char *text = NULL, *behavior = "?";
    bool invert = false;
    int status = moe_hf_text(r, part, "behavior", &behavior);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "invert", &invert);
    if (status != MOE_OK)
        return status;
    if (!json_is_object(pattern))
        return moe_hf_damaged(r, "a Split has no pattern");
    bool literal = json_object_get(pattern, "String") != NULL;
    status = moe_hf_text(r, pattern, literal ? "String" : "Regex", &text);
    if (status != MOE_OK)
        return status;
    if (!text)
        return moe_hf_unsupported(r, "a Split's kind of pattern", NULL);
    for (uint8_t i = 0; i < 5; i++) {
        if (strcmp(behavior, names[i]) == 0)
            return add_split(
                r, text, i,
                (uint8_t)((invert ? MOE_STEP_INVERT : 0) | (literal ? MOE_STEP_LITERAL : 0)));
    }
    return moe_hf_unsupported(r, "split behavior", behavior);
}

static int read_byte_level(struct moe_hf_reader *r, const json_t *part)
{
    bool add_prefix_space = true, use_regex = true;
    struct moe_step *step;
    int status = moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "use_regex", &use_regex);
    if (status == MOE_OK && add_prefix_space)
        status = add_step(r, &r->tok->pre_tokenizer, MOE_STEP_PREFIX_SPACE, &step);
    if (status == MOE_OK && use_regex)
        status = add_split(r, MOE_PATTERN_GPT2, MOE_SPLIT_ISOLATED, 0);
    r->byte_level = true;
    return status;
}

static int read_metaspace(struct moe_hf_reader *r, const json_t *part)
{
    const char *replacement = MOE_METASPACE, *scheme = NULL;
    bool split = true, add_prefix_space = true;
    struct moe_step *step;
    int status = moe_hf_text(r, part, "replacement", &replacement);
    if (status == MOE_OK)
        status = moe_hf_text(r, part, "prepend_scheme", &scheme);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "split", &split);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space);
    if (status != MOE_OK)
        return status;
    if (!scheme)
        scheme = add_prefix_space ? "always" : "never";
    if (strcmp(replacement, MOE_METASPACE) != 0)
        return moe_hf_unsupported(r, "Metaspace with replacement", replacement);
    status = add_step(r, &r->tok->pre_tokenizer, MOE_STEP_METASPACE, &step);
    if (status != MOE_OK)
        return status;
    if (strcmp(scheme, "first") == 0)
        step->flags = MOE_STEP_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        step->flags = MOE_STEP_PREPEND_NEVER;
    else if (strcmp(scheme, "always") != 0)
        return moe_hf_unsupported(r, "prepend_scheme", scheme);
    return split ? add_split(r, MOE_METASPACE, MOE_SPLIT_NEXT, MOE_STEP_LITERAL) : MOE_OK;
}

static int read_pre_tokenizer(struct moe_hf_reader *r, const json_t *part)
{
    /* From here on the text would be in the byte-level alphabet. */
    if (r->byte_level)
        return moe_hf_unsupported(r, "a pre-tokenizer after ByteLevel:", type_of(part));
    if (is_type(part, "Split"))
        return read_split(r, part);
    if (is_type(part, "ByteLevel"))
        return read_byte_level(r, part);
    if (is_type(part, "Metaspace"))
        return read_metaspace(r, part);
    if (is_type(part, "WhitespaceSplit"))
        return add_split(r, "\\s", MOE_SPLIT_REMOVED, 0);
    if (is_type(part, "Digits")) {
        bool individual = false;
        int status = moe_hf_bool(r, part, "individual_digits", &individual);
        return status == MOE_OK
                   ? add_split(r, individual ? "\\p{N}" : "\\p{N}+", MOE_SPLIT_ISOLATED, 0)
                   : status;
    }
    return moe_hf_unsupported(r, "pre_tokenizer", type_of(part));
}

/* ---- Decoder and post-processor ---- */

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
    if (is_type(part, "Metaspace")) {
        status = moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space);
        if (status == MOE_OK)
            status = moe_hf_text(r, part, "prepend_scheme", &scheme);
        if (add_prefix_space && strcmp(scheme, "never") != 0)
            r->drops |= MOE_TOKENIZER_DROPS_SPACES;
    } else if (is_type(part, "Strip")) {
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
        known = is_type(part, "ByteLevel");
    else if (is_type(part, "Replace"))
        known = has_text(json_object_get(part, "pattern"), "String", MOE_METASPACE) &&
                has_text(part, "content", " ");
    else if (is_type(part, "Strip"))
        known = has_text(part, "content", " ");
    else
        known =
            is_type(part, "ByteFallback") || is_type(part, "Fuse") || is_type(part, "Metaspace");
    return known ? read_drops(r, part) : moe_hf_unsupported(r, "decoder", type_of(part));
}

static int read_post_processor(struct moe_hf_reader *r, const json_t *part)
{
    if (is_type(part, "ByteLevel"))
        return MOE_OK;
    if (!is_type(part, "TemplateProcessing"))
        return moe_hf_unsupported(r, "post_processor", type_of(part));
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
            return moe_hf_unsupported(
                r, "a post_processor that adds more than one first token and one last", NULL);
        *added = id;
    }
    return MOE_OK;
}

/* ---- All of them ---- */

/* Whether what stands first after the normalizer need not have stood first before, which is what
 * "first" means. */
static bool loses_its_beginning(const struct moe_tokenizer *tok)
{
    bool removes = false, first = false;
    for (uint32_t i = 0; i < tok->normalizer.n; i++) {
        const struct moe_step *step = &tok->normalizer.steps[i];
        removes = removes || step->kind == MOE_STEP_NMT || step->flags & MOE_STEP_LEFT;
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
                 {"pre_tokenizer", "pretokenizers", read_pre_tokenizer},
                 {"decoder", "decoders", check_decoder},
                 {"post_processor", "processors", read_post_processor}};
    int status = MOE_OK;
    r->prefix = r->suffix = NULL;
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
