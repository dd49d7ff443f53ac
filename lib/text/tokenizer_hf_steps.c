/*
 * tokenizer.json: normalizer, pre-tokenizer, decoder and post-processor.
 */
#include <string.h>

#include "text/tokenizer_hf.h"

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

static int read_normalizer(struct moe_hf_reader *r, const json_t *part)
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
        return moe_hf_unsupported(r, "normalizer", type_of(part));
    const json_t *pattern = json_object_get(json_object_get(part, "pattern"), "String");
    if (!pattern)
        return moe_hf_unsupported(r, "normalizer 'Replace' with an expression", NULL);
    status = add_step(r, steps, MOE_STEP_REPLACE, &step);
    if (status == MOE_OK)
        status = set_text(r, &step->text, pattern);
    return status == MOE_OK ? set_text(r, &step->other, json_object_get(part, "content")) : status;
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
    return known ? MOE_OK : moe_hf_unsupported(r, "decoder", type_of(part));
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
            return moe_hf_unsupported(r, "a post_processor that adds more than one first token",
                                      NULL);
        r->prefix = id;
    }
    return MOE_OK;
}

/* ---- All of them ---- */

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
    for (size_t i = 0; i < sizeof parts / sizeof *parts && status == MOE_OK; i++)
        status = for_each_part(r, json_object_get(root, parts[i].key), parts[i].members, 0,
                               parts[i].read);
    return status;
}
