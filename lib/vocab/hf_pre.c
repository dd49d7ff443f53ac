/*
 * tokenizer.json: the pre-tokenizer. What is no step of its own is a split at a pattern.
 */
#include <stdio.h>
#include <string.h>

#include "vocab/hf.h"

/* Punctuation as the crate unicode_categories knows it (Unicode 8.0, and two of its own): what is
 * younger is none. */
#define YOUNG                                                                                      \
    "\\x{61d}\\x{9fd}\\x{a76}\\x{c77}\\x{c84}\\x{1b7d}-\\x{1b7e}\\x{2e43}-\\x{2e4f}"               \
    "\\x{2e52}-\\x{2e5d}\\x{10ead}\\x{10f55}-\\x{10f59}\\x{10f86}-\\x{10f89}"                      \
    "\\x{1144b}-\\x{1144f}\\x{1145a}-\\x{1145b}\\x{1145d}\\x{11660}-\\x{1166c}\\x{116b9}"          \
    "\\x{1183b}\\x{11944}-\\x{11946}\\x{119e2}\\x{11a3f}-\\x{11a46}\\x{11a9a}-\\x{11a9c}"          \
    "\\x{11a9e}-\\x{11aa2}\\x{11c41}-\\x{11c45}\\x{11c70}-\\x{11c71}\\x{11ef7}-\\x{11ef8}"         \
    "\\x{11fff}\\x{12ff1}-\\x{12ff2}\\x{16e97}-\\x{16e9a}\\x{16fe2}\\x{1e95e}-\\x{1e95f}"
#define PUNCTUATION "[[\\p{P}!-/:-@\\[-`{-~\\u166d\\x{111c9}]&&[^" YOUNG "]]"

static int add_split(struct moe_hf_reader *r, const char *pattern, uint8_t behavior, uint8_t flags)
{
    return moe_steps_add_split(&r->tok->pre_tokenizer, pattern, behavior, flags)
               ? MOE_OK
               : moe_hf_too_many(r);
}

/* Names of enum moe_split_behavior. */
static int read_behavior(struct moe_hf_reader *r, const json_t *part, uint8_t *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *behavior = "Isolated"; /* what Punctuation's is unless it says */
    int status = moe_hf_text(r, part, "behavior", &behavior);
    for (uint8_t i = 0; i < sizeof names / sizeof *names && status == MOE_OK; i++) {
        *out = i;
        if (strcmp(behavior, names[i]) == 0)
            return MOE_OK;
    }
    return status == MOE_OK ? moe_hf_unsupported(r, "split behavior", behavior) : status;
}

static int read_split(struct moe_hf_reader *r, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *text = NULL;
    bool invert = false;
    uint8_t behavior;
    if (moe_hf_absent(json_object_get(part, "behavior")))
        return moe_hf_damaged(r, "a Split has no behavior");
    int status = read_behavior(r, part, &behavior);
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
    return add_split(r, text, behavior,
                     (uint8_t)((invert ? MOE_STEP_INVERT : 0) | (literal ? MOE_STEP_LITERAL : 0)));
}

static int read_punctuation(struct moe_hf_reader *r, const json_t *part)
{
    uint8_t behavior;
    int status = read_behavior(r, part, &behavior);
    return status == MOE_OK ? add_split(r, PUNCTUATION, behavior, 0) : status;
}

static int read_digits(struct moe_hf_reader *r, const json_t *part)
{
    bool individual = false;
    int status = moe_hf_bool(r, part, "individual_digits", &individual);
    return status == MOE_OK ? add_split(r, individual ? "\\p{N}" : "\\p{N}+", MOE_SPLIT_ISOLATED, 0)
                            : status;
}

static int read_white_space(struct moe_hf_reader *r, const json_t *part)
{
    return add_split(r, "\\s", MOE_SPLIT_REMOVED, 0);
}

/* Runs of characters of words, and of others that are no white space. */
static int read_words(struct moe_hf_reader *r, const json_t *part)
{
    return add_split(r, "[\\w\\u200c\\u200d]+|[^\\w\\s\\u200c\\u200d]+", MOE_SPLIT_REMOVED,
                     MOE_STEP_INVERT);
}

static int read_bert(struct moe_hf_reader *r, const json_t *part)
{
    int status = read_white_space(r, part);
    return status == MOE_OK ? add_split(r, PUNCTUATION, MOE_SPLIT_ISOLATED, 0) : status;
}

static int read_delimiter(struct moe_hf_reader *r, const json_t *part)
{
    const char *delimiter = NULL;
    int status = moe_hf_text(r, part, "delimiter", &delimiter);
    if (status == MOE_OK && (!delimiter || !*delimiter))
        status = moe_hf_damaged(r, "CharDelimiterSplit has no delimiter");
    return status == MOE_OK ? add_split(r, delimiter, MOE_SPLIT_REMOVED, MOE_STEP_LITERAL) : status;
}

static int read_fixed_length(struct moe_hf_reader *r, const json_t *part)
{
    enum { LENGTH_MAX = 65535 /* of a repeat */ };
    uint32_t length = 5;
    char pattern[32];
    int status = moe_json_get_u32(r->name, part, "length", LENGTH_MAX, false, &length, r->err);
    if (status == MOE_OK && length == 0)
        status = moe_hf_damaged(r, "FixedLength has pieces of no length");
    snprintf(pattern, sizeof pattern, "(?m:.{1,%u})", length);
    return status == MOE_OK ? add_split(r, pattern, MOE_SPLIT_ISOLATED, 0) : status;
}

static int read_scripts(struct moe_hf_reader *r, const json_t *part)
{
    struct moe_step *step;
    return moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_SCRIPTS, &step);
}

static int read_byte_level(struct moe_hf_reader *r, const json_t *part)
{
    bool add_prefix_space = true, use_regex = true;
    struct moe_step *step;
    int status = moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space);
    if (status == MOE_OK && part == r->only && r->config) /* as GPT-2's classes have it */
        status = moe_json_get_bool(r->config_name, r->config, "add_prefix_space", false,
                                   &add_prefix_space, r->err);
    if (status == MOE_OK)
        status = moe_hf_bool(r, part, "use_regex", &use_regex);
    if (status == MOE_OK && add_prefix_space)
        status = moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_PREFIX_SPACE, &step);
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
    status = moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_METASPACE, &step);
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

static const struct {
    const char *type;
    int (*read)(struct moe_hf_reader *r, const json_t *part);
    bool keeps; /* adds no character: may come after ByteLevel */
} PARTS[] = {
    {"Split", read_split, true},
    {"ByteLevel", read_byte_level, false},
    {"Metaspace", read_metaspace, false},
    {"Digits", read_digits, true},
    {"Punctuation", read_punctuation, true},
    {"Whitespace", read_words, true},
    {"WhitespaceSplit", read_white_space, true},
    {"BertPreTokenizer", read_bert, true},
    {"CharDelimiterSplit", read_delimiter, true},
    {"FixedLength", read_fixed_length, true},
    {"UnicodeScripts", read_scripts, true},
};

int moe_hf_read_pre_tokenizer(struct moe_hf_reader *r, const json_t *part)
{
    struct moe_step *step;
    int status = MOE_OK;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        if (!moe_hf_is_type(part, PARTS[i].type))
            continue;
        /* After ByteLevel the text is in the alphabet of bytes. */
        if (r->byte_level && !PARTS[i].keeps)
            return moe_hf_unsupported(r, "a pre-tokenizer after ByteLevel:", PARTS[i].type);
        if (r->byte_level && !r->spelled)
            status = moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_ALPHABET, &step);
        r->spelled = r->byte_level;
        return status == MOE_OK ? PARTS[i].read(r, part) : status;
    }
    return moe_hf_unsupported(r, "pre_tokenizer", moe_hf_type(part));
}
