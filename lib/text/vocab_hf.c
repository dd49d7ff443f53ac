/*
 * Reads Hugging Face's tokenizer.json and the files beside it.
 */
#include "text/vocab_hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "text/vocab_store.h"

enum { FILE_BYTES_MAX = 256 << 20 };

/*
 * tokenizer.json: the pre-tokenizer. A part that is not a step of ours becomes a split at a
 * pattern.
 */

/* Punctuation as the crate unicode_categories knows it (Unicode 8.0, and two of its own), without
 * younger characters. */
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

/* Reads a name of enum moe_split_behavior. */
static int read_behavior(struct moe_hf_reader *r, const json_t *part, uint8_t *out)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *behavior = "Isolated"; /* Punctuation's default */
    MOE_TRY(moe_hf_text(r, part, "behavior", &behavior));
    for (uint8_t i = 0; i < sizeof names / sizeof *names; i++) {
        *out = i;
        if (strcmp(behavior, names[i]) == 0)
            return MOE_OK;
    }
    return moe_hf_unsupported(r, "split behavior", behavior);
}

static int read_split(struct moe_hf_reader *r, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern");
    const char *text = NULL;
    bool invert = false;
    uint8_t behavior;
    if (moe_hf_absent(json_object_get(part, "behavior")))
        return moe_hf_damaged(r, "a Split has no behavior");
    MOE_TRY(read_behavior(r, part, &behavior));
    MOE_TRY(moe_hf_bool(r, part, "invert", &invert));
    if (!json_is_object(pattern))
        return moe_hf_damaged(r, "a Split has no pattern");
    bool literal = json_object_get(pattern, "String") != NULL;
    MOE_TRY(moe_hf_text(r, pattern, literal ? "String" : "Regex", &text));
    if (!text)
        return moe_hf_unsupported(r, "a Split's kind of pattern", NULL);
    return add_split(r, text, behavior,
                     (uint8_t)((invert ? MOE_STEP_INVERT : 0) | (literal ? MOE_STEP_LITERAL : 0)));
}

static int read_punctuation(struct moe_hf_reader *r, const json_t *part)
{
    uint8_t behavior;
    MOE_TRY(read_behavior(r, part, &behavior));
    return add_split(r, PUNCTUATION, behavior, 0);
}

static int read_digits(struct moe_hf_reader *r, const json_t *part)
{
    bool individual = false;
    MOE_TRY(moe_hf_bool(r, part, "individual_digits", &individual));
    return add_split(r, individual ? "\\p{N}" : "\\p{N}+", MOE_SPLIT_ISOLATED, 0);
}

static int read_white_space(struct moe_hf_reader *r, const json_t *part)
{
    return add_split(r, "\\s", MOE_SPLIT_REMOVED, 0);
}

/* Splits into runs of word characters, and of others that are not white space. */
static int read_words(struct moe_hf_reader *r, const json_t *part)
{
    return add_split(r, "[\\w\\u200c\\u200d]+|[^\\w\\s\\u200c\\u200d]+", MOE_SPLIT_REMOVED,
                     MOE_STEP_INVERT);
}

static int read_bert_pieces(struct moe_hf_reader *r, const json_t *part)
{
    MOE_TRY(read_white_space(r, part));
    return add_split(r, PUNCTUATION, MOE_SPLIT_ISOLATED, 0);
}

static int read_delimiter(struct moe_hf_reader *r, const json_t *part)
{
    const char *delimiter = NULL;
    MOE_TRY(moe_hf_text(r, part, "delimiter", &delimiter));
    if (!delimiter || !*delimiter)
        return moe_hf_damaged(r, "CharDelimiterSplit has no delimiter");
    return add_split(r, delimiter, MOE_SPLIT_REMOVED, MOE_STEP_LITERAL);
}

static int read_fixed_length(struct moe_hf_reader *r, const json_t *part)
{
    enum { LENGTH_MAX = 65535 /* in a repeat */ };
    uint32_t length = 5;
    char pattern[32];
    MOE_TRY(moe_json_get_u32(r->name, part, "length", LENGTH_MAX, false, &length, r->err));
    if (length == 0)
        return moe_hf_damaged(r, "FixedLength has pieces of no length");
    snprintf(pattern, sizeof pattern, "(?m:.{1,%u})", length);
    return add_split(r, pattern, MOE_SPLIT_ISOLATED, 0);
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
    MOE_TRY(moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space));
    if (part == r->only && r->config) { /* as in GPT-2's classes */
        MOE_TRY(moe_json_get_bool(r->config_name, r->config, "add_prefix_space", false,
                                  &add_prefix_space, r->err));
    }
    MOE_TRY(moe_hf_bool(r, part, "use_regex", &use_regex));
    if (add_prefix_space)
        MOE_TRY(moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_PREFIX_SPACE, &step));
    if (use_regex)
        MOE_TRY(add_split(r, MOE_PATTERN_GPT2, MOE_SPLIT_ISOLATED, 0));
    r->byte_level = true;
    return MOE_OK;
}

static int read_metaspace(struct moe_hf_reader *r, const json_t *part)
{
    const char *replacement = MOE_METASPACE, *scheme = NULL;
    bool split = true, add_prefix_space = true;
    struct moe_step *step;
    MOE_TRY(moe_hf_text(r, part, "replacement", &replacement));
    MOE_TRY(moe_hf_text(r, part, "prepend_scheme", &scheme));
    MOE_TRY(moe_hf_bool(r, part, "split", &split));
    MOE_TRY(moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space));
    if (!scheme)
        scheme = add_prefix_space ? "always" : "never";
    if (strcmp(replacement, MOE_METASPACE) != 0)
        return moe_hf_unsupported(r, "Metaspace with replacement", replacement);
    MOE_TRY(moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_METASPACE, &step));
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
    {"BertPreTokenizer", read_bert_pieces, true},
    {"CharDelimiterSplit", read_delimiter, true},
    {"FixedLength", read_fixed_length, true},
    {"UnicodeScripts", read_scripts, true},
};

/* Reads one part of the pre-tokenizer, not a Sequence. */
static int hf_read_pre_tokenizer(struct moe_hf_reader *r, const json_t *part)
{
    struct moe_step *step;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        if (!moe_hf_is_type(part, PARTS[i].type))
            continue;
        /* After ByteLevel the text is in the alphabet of bytes. */
        if (r->byte_level && !PARTS[i].keeps)
            return moe_hf_unsupported(r, "a pre-tokenizer after ByteLevel:", PARTS[i].type);
        if (r->byte_level && !r->spelled)
            MOE_TRY(moe_hf_add_step(r, &r->tok->pre_tokenizer, MOE_STEP_ALPHABET, &step));
        r->spelled = r->byte_level;
        return PARTS[i].read(r, part);
    }
    return moe_hf_unsupported(r, "pre_tokenizer", moe_hf_type(part));
}

/*
 * tokenizer.json: normalizer, decoder and post-processor.
 */

enum { NESTING_MAX = 4 /* for Sequence in Sequence */ };

/* Calls fn for the part itself or, if it is a Sequence, for its members under `key`. */
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
    for (size_t i = 0; i < json_array_size(members); i++)
        MOE_TRY(for_each_part(r, json_array_get(members, i), key, depth + 1, fn));
    return MOE_OK;
}

/* ---- Normalizer ---- */

static int set_text(struct moe_hf_reader *r, struct moe_buf *to, const json_t *value)
{
    if (!json_is_string(value))
        return moe_hf_damaged(r, "a pattern or content is not a text");
    moe_buf_append(to, json_string_value(value), json_string_length(value));
    return to->failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

/* For an expression "X{2,}" with one ordinary character X: the bytes of X, else 0. Converted
 * SentencePiece models have no other. */
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
    MOE_TRY(moe_hf_add_step(r, &r->tok->normalizer, kind, &step));
    if (repeated)
        moe_buf_append(&step->text, json_string_value(expression), repeated);
    else
        MOE_TRY(set_text(r, &step->text, text ? text : expression));
    return set_text(r, &step->other, json_object_get(part, "content"));
}

static int read_strip(struct moe_hf_reader *r, const json_t *part)
{
    bool left = true, right = true;
    struct moe_step *step;
    MOE_TRY(moe_hf_bool(r, part, "strip_left", &left));
    MOE_TRY(moe_hf_bool(r, part, "strip_right", &right));
    MOE_TRY(moe_hf_add_step(r, &r->tok->normalizer, MOE_STEP_STRIP, &step));
    step->flags = (uint8_t)((left ? MOE_STEP_LEFT : 0) | (right ? MOE_STEP_RIGHT : 0));
    return MOE_OK;
}

/* The value of a base64 character, or -1. */
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

static int read_bert_normalizer(struct moe_hf_reader *r, const json_t *part)
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
        return read_bert_normalizer(r, part);
    if (!moe_hf_is_type(part, "Prepend"))
        return moe_hf_unsupported(r, "normalizer", moe_hf_type(part));
    MOE_TRY(moe_hf_add_step(r, &r->tok->normalizer, MOE_STEP_PREPEND, &step));
    return set_text(r, &step->text, json_object_get(part, "prepend"));
}

/* ---- Decoder and post-processor ---- */

#define MORE_THAN_ONE "a post_processor that adds more than one first token and one last"

static bool has_text(const json_t *object, const char *key, const char *want)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strcmp(text, want) == 0;
}

/* Reads what a decoder drops from an answer's beginning. */
static int read_drops(struct moe_hf_reader *r, const json_t *part)
{
    bool add_prefix_space = true;
    const char *scheme = "";
    uint32_t start = 0, stop = 0;
    if (moe_hf_is_type(part, "Metaspace")) {
        MOE_TRY(moe_hf_bool(r, part, "add_prefix_space", &add_prefix_space));
        MOE_TRY(moe_hf_text(r, part, "prepend_scheme", &scheme));
        if (add_prefix_space && strcmp(scheme, "never") != 0)
            r->drops |= MOE_TOKENIZER_DROPS_SPACES;
    } else if (moe_hf_is_type(part, "Strip")) {
        MOE_TRY(moe_json_get_u32(r->name, part, "start", 1, false, &start, r->err));
        MOE_TRY(moe_json_get_u32(r->name, part, "stop", 0, false, &stop, r->err));
        r->drops |= start ? MOE_TOKENIZER_DROPS_SPACE : 0u;
    }
    return MOE_OK;
}

/* Checks that the decoder agrees with the model's kind, which fixes what tokens mean. */
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

/* Reads the first and last token, [text, id], of RobertaProcessing and BertProcessing. */
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

/* The token of a template's name; the file's list may name another. */
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
    const char **added = &r->prefix; /* the next one read */
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
        MOE_TRY(template_token(r, part, id, added));
    }
    return MOE_OK;
}

/* Whether the file's class is NLLB's, which makes the post-processor anew (put_languages). */
static bool translates(const struct moe_hf_reader *r)
{
    const char *class = json_string_value(json_object_get(r->config, "tokenizer_class"));
    return class && strncmp(class, "Nllb", 4) == 0;
}

static int read_post_processor(struct moe_hf_reader *r, const json_t *part)
{
    if (moe_hf_is_type(part, "ByteLevel") || translates(r))
        return MOE_OK;
    if (moe_hf_is_type(part, "RobertaProcessing") || moe_hf_is_type(part, "BertProcessing"))
        return read_pair(r, part);
    if (moe_hf_is_type(part, "TemplateProcessing"))
        return read_template(r, part);
    return moe_hf_unsupported(r, "post_processor", moe_hf_type(part));
}

/* ---- All of them ---- */

/* Whether a piece that is first after the normalizer may not have been first before, which is what
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

/* Reads normalizer, pre-tokenizer, decoder and post-processor of the file, in this order. */
static int hf_read_steps(struct moe_hf_reader *r, const json_t *root)
{
    static const struct {
        const char *key, *members;
        int (*read)(struct moe_hf_reader *r, const json_t *part);
    } parts[] = {{"normalizer", "normalizers", read_normalizer},
                 {"pre_tokenizer", "pretokenizers", hf_read_pre_tokenizer},
                 {"decoder", "decoders", check_decoder},
                 {"post_processor", "processors", read_post_processor}};
    r->prefix = r->suffix = NULL;
    r->only = json_object_get(root, "pre_tokenizer");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        MOE_TRY(for_each_part(r, json_object_get(root, parts[i].key), parts[i].members, 0,
                              parts[i].read));
    if (loses_its_beginning(r->tok))
        MOE_TRY(moe_hf_unsupported(r,
                                   "Metaspace with prepend_scheme 'first' after a normalizer "
                                   "that may remove a text's beginning",
                                   NULL));
    return MOE_OK;
}

/*
 * Added tokens beside tokenizer.json: in tokenizer_config.json's added_tokens_decoder or, without
 * it, in added_tokens.json; and tokens that the configuration names (its eos_token and the like)
 * though nothing lists them. They join the file's own as in transformers' class TokenizersBackend:
 * by text; a repeated one gets the newer flags; one without an id gets the next.
 */

struct joined {
    struct moe_hf_reader *r;
    const json_t *vocab;
    json_t *list;    /* added tokens, objects as in tokenizer.json */
    json_t *by_text; /* the same objects */
    uint8_t *used;   /* [ids below n_used] */
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

/* The configuration's value for this key or (if it lists no added tokens) that of
 * special_tokens_map.json. */
static const json_t *hf_named(const struct moe_hf_reader *r, const char *key)
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
        const char *named = text_of(hf_named(r, NAMED[i]));
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

/* Chooses the id of a token not yet listed: the vocabulary's, the given one, or the next. */
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
    MOE_TRY(mark_used(j, *id));
    if (*id >= j->next)
        j->next = *id + 1;
    return MOE_OK;
}

/* ---- Tokens ---- */

/* Adds a token, or gives the listed one new flags. flags: an object with them, or NULL: those of a
 * special token, or (plain) of another. */
static int join_token(struct joined *j, const char *text, json_int_t given, const json_t *flags,
                      bool special)
{
    json_t *token = json_object_get(j->by_text, text);
    json_int_t id = -1;
    bool was_special = json_is_true(json_object_get(token, "special"));
    if (!token) {
        MOE_TRY(choose_id(j, text, given, &id));
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

static int compare_ids(const void *a, const void *b)
{
    const struct numbered *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Collects added_tokens_decoder, {"ID": token}, or added_tokens.json, {"text": ID}, in the order of
 * ids. */
static int collect_tokens(struct joined *j, json_t *object, bool by_id, struct numbered *out)
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
    qsort(out, n, sizeof *out, compare_ids);
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
    int status = tokens ? collect_tokens(j, object, by_id, tokens) : MOE_ERR_MEMORY;
    for (size_t i = 0; i < n && status == MOE_OK; i++) {
        const char *text = tokens[i].text;
        /* Tokens listed in tokenizer.json itself take precedence over the older added_tokens.json.
         */
        if (by_id || !json_object_get(j->by_text, text))
            status = join_token(j, text, tokens[i].id, tokens[i].flags, is_named(j->r, text));
    }
    free(tokens);
    return status;
}

static int join_special(struct joined *j, const json_t *token)
{
    const char *text = text_of(token);
    if (!text || json_object_get(j->by_text, text))
        return MOE_OK;
    return join_token(j, text, -1, json_is_object(token) ? token : NULL, true);
}

static int join_named(struct joined *j)
{
    for (size_t i = 0; i < sizeof NAMED / sizeof *NAMED; i++)
        MOE_TRY(join_special(j, hf_named(j->r, NAMED[i])));
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        const json_t *list = hf_named(j->r, LISTS[i]);
        for (size_t k = 0; k < json_array_size(list); k++)
            MOE_TRY(join_special(j, json_array_get(list, k)));
    }
    return MOE_OK;
}

/* ---- The whole ---- */

static int joined_begin(struct joined *j, json_t *vocab, const json_t *added)
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
        /* If memory is short json_copy leaves members out. */
        bool whole = token && json_object_size(token) == json_object_size(listed);
        if (!token || json_array_append_new(j->list, token) != 0 || !whole ||
            (text && json_object_set(j->by_text, text, token) != 0))
            status = no_memory(j);
    }
    return status;
}

/* Joins the list of added tokens (may be NULL) with those that only the files beside it have;
 * checks all ids. The caller releases *out with json_decref. */
static int hf_join_added(struct moe_hf_reader *r, json_t *vocab, json_t *added, json_t **out)
{
    struct joined j = {.r = r, .vocab = vocab};
    *out = NULL;
    if (!r->config && !r->added) {
        *out = json_incref(added);
        return MOE_OK;
    }
    int status;
    MOE_STEP(joined_begin(&j, vocab, added));
    MOE_STEP(join_listed(&j));
    MOE_STEP(join_named(&j));
out:
    free(j.used);
    json_decref(j.by_text);
    if (status == MOE_OK)
        *out = j.list;
    else
        json_decref(j.list);
    return status;
}

/*
 * tokenizer.json: the model, its vocabulary and merges, and the added tokens.
 */

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
        MOE_TRY(moe_hf_bool(r, token, known[i].key, &on));
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
        MOE_TRY(moe_hf_text(r, token, "content", &text));
        MOE_TRY(added_flags(r, token, &flags));
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
    int status;
    MOE_STEP(largest_id(r, vocab, listed, &n));
    MOE_STEP(hf_join_added(r, vocab, listed, &added));
    MOE_STEP(largest_id(r, vocab, added, &n));
    if (n == 0)
        MOE_STEP(moe_hf_damaged(r, "the vocabulary is empty"));
    MOE_STEP(moe_tokenizer_allocate(r->tok, n, r->err));
    entries = moe_alloc(n, sizeof *entries, r->err);
    MOE_STEP(entries ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(collect_vocab(r, vocab, entries));
    MOE_STEP(collect_added(r, vocab, added, entries));
    MOE_STEP(moe_vocab_store(r->tok, r->name, entries, r->err));
out:
    free(entries);
    json_decref(added);
    return status;
}

/* ---- Merges ---- */

/* Reads merge "a b" or ["a", "b"]. */
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
    if (!moe_hf_absent(json_object_get(model, "dropout")) &&
        json_number_value(json_object_get(model, "dropout")) != 0)
        return moe_hf_unsupported(r, "model: dropout", NULL);
    for (int i = 0; i < 2; i++) {
        const char *affix = "";
        MOE_TRY(moe_hf_text(r, model, affixes[i], &affix));
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
        MOE_TRY(moe_hf_bool(r, model, known[i].key, &on));
        r->tok->flags |= on ? known[i].flag : 0;
    }
    if (r->byte_level) /* each byte is a token: there is nothing to fall back from */
        r->tok->flags &= ~(uint32_t)MOE_TOKENIZER_BYTE_FALLBACK;
    r->tok->model = r->byte_level ? MOE_TOKENIZER_BYTES : MOE_TOKENIZER_CHARS;
    return MOE_OK;
}

/* ---- Unigram: a vocabulary of texts and scores in the order of their ids ---- */

/* Turns the list into BPE's form, from text to id; for a text that occurs twice, the last id.
 * *least: the least score. */
static int number_texts(struct moe_hf_reader *r, const json_t *list, json_t *vocab, double *least)
{
    if (!vocab)
        return moe_fail(r->err, MOE_ERR_MEMORY, "out of memory");
    *least = HUGE_VAL;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i), *score = json_array_get(pair, 1);
        const char *text = json_string_value(json_array_get(pair, 0));
        if (json_array_size(pair) != 2 || !text || !json_is_number(score))
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: token %zu is no pair of text and score",
                            r->name, i);
        else if (json_object_set_new(vocab, text, json_integer((json_int_t)i)) != 0)
            return moe_fail(r->err, MOE_ERR_MEMORY, "out of memory");
        else if (moe_vocab_score(json_number_value(score)) < *least)
            *least = moe_vocab_score(json_number_value(score));
    }
    return MOE_OK;
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
    double least = HUGE_VAL;
    if (r->byte_level)
        return moe_hf_unsupported(r, "ByteLevel with the model", "Unigram");
    if (!json_is_array(list) || json_array_size(list) == 0 ||
        json_array_size(list) > MOE_TOKENS_MAX)
        return moe_hf_damaged(
            r, "model: the vocabulary is not a list of tokens, or has an impossible length");
    MOE_TRY(moe_hf_bool(r, model, "byte_fallback", &byte_fallback));
    MOE_TRY(moe_json_get_u32(r->name, model, "unk_id", (uint32_t)json_array_size(list) - 1, false,
                             &tok->unk, r->err));
    json_t *vocab = json_object();
    int status = number_texts(r, list, vocab, &least);
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

/* Reads vocabulary, added tokens and merges; call after the steps, which say how tokens are
 * spelled. */
static int hf_read_model(struct moe_hf_reader *r, const json_t *root)
{
    const json_t *model = json_object_get(root, "model");
    json_t *added = json_object_get(root, "added_tokens");
    json_t *vocab = json_object_get(model, "vocab");
    const char *unk = NULL, *type = "BPE"; /* old files name none */
    if (!json_is_object(model))
        return moe_hf_damaged(r, "no tokenizer model");
    MOE_TRY(moe_hf_text(r, model, "type", &type));
    if (!moe_hf_absent(added) && !json_is_array(added))
        return moe_hf_damaged(r, "added_tokens is not a list");
    if (strcmp(type, "Unigram") == 0)
        return read_unigram(r, model, added);
    if (strcmp(type, "BPE") != 0)
        return moe_hf_unsupported(r, "tokenizer model", type);
    MOE_TRY(check_bpe(r, model));
    if (!json_is_object(vocab))
        return moe_hf_damaged(r, "model: no vocabulary");
    MOE_TRY(read_model_flags(r, model));
    MOE_TRY(moe_hf_text(r, model, "unk_token", &unk));
    MOE_TRY(read_tokens(r, vocab, added));
    MOE_TRY(read_merges(r, json_object_get(model, "merges")));
    if (unk && json_object_get(vocab, unk))
        r->tok->unk = (uint32_t)json_integer_value(json_object_get(vocab, unk));
    return MOE_OK;
}

/* ---- tokenizer_config.json ---- */

/* Finds a token named in the configuration, as a text or as {"content": text}; keeps *id if none is
 * named. */
static int named_token(struct moe_hf_reader *r, const char *key, uint32_t *id)
{
    const json_t *value = hf_named(r, key);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (!moe_hf_absent(value) && !json_is_string(value))
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s is not a text", r->config_name, key);
    int64_t found =
        json_is_string(value) ? moe_tokenizer_find(r->tok, json_string_value(value)) : -1;
    if (found >= 0)
        *id = (uint32_t)found;
    return MOE_OK;
}

/* Finds a token of the post-processor. */
static int added_token(struct moe_hf_reader *r, const char *text, uint32_t *id)
{
    int64_t found = moe_tokenizer_find(r->tok, text);
    if (found < 0)
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s names no token: '%.60s'",
                        translates(r) ? r->config_name : r->name,
                        translates(r) ? "src_lang or eos_token" : "post_processor", text);
    *id = (uint32_t)found;
    return MOE_OK;
}

/* NLLB's class puts a source's language before a text and the end behind it, whatever the files'
 * template and add_bos_token are (transformers 4.57 and 5.24, tokenization_nllb). */
static int put_languages(struct moe_hf_reader *r)
{
    const char *end = text_of(hf_named(r, "eos_token"));
    bool legacy = false;
    r->prefix = "eng_Latn";
    r->suffix = end ? end : "</s>";
    MOE_TRY(
        moe_json_get_bool(r->config_name, r->config, "legacy_behaviour", false, &legacy, r->err));
    if (legacy)
        return moe_hf_unsupported(r, "a language behind a text's end (legacy_behaviour)", NULL);
    return moe_json_get_text(r->config_name, r->config, "src_lang", false, &r->prefix, r->err);
}

static int read_named(struct moe_hf_reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    const bool fixed = translates(r);
    if (fixed)
        MOE_TRY(put_languages(r));
    bool adds_bos = r->prefix != NULL, adds_eos = r->suffix != NULL;
    if (r->prefix)
        MOE_TRY(added_token(r, r->prefix, &tok->bos));
    else
        MOE_TRY(named_token(r, "bos_token", &tok->bos));
    if (r->suffix)
        MOE_TRY(added_token(r, r->suffix, &tok->tail));
    if (tok->model == MOE_TOKENIZER_UNIGRAM) {
        int64_t pad = moe_tokenizer_find(tok, "<pad>");
        tok->pad =
            pad >= 0 && moe_tokenizer_is_special(tok, (uint32_t)pad) ? (uint32_t)pad : MOE_NO_TOKEN;
        MOE_TRY(named_token(r, "pad_token", &tok->pad));
    }
    tok->eos = tok->separator; /* found by its usual names while no eos was known */
    MOE_TRY(named_token(r, "eos_token", &tok->eos));
    if (r->config && !fixed)
        MOE_TRY(moe_json_get_bool(r->config_name, r->config, "add_bos_token", false, &adds_bos,
                                  r->err));
    if (r->config && !fixed)
        MOE_TRY(moe_json_get_bool(r->config_name, r->config, "add_eos_token", false, &adds_eos,
                                  r->err));
    if (adds_bos && tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
    if (!adds_eos)
        tok->tail = MOE_NO_TOKEN;
    else if (!r->suffix)
        tok->tail = tok->eos;
    if (tok->separator == MOE_NO_TOKEN)
        tok->separator = tok->eos;
    return MOE_OK;
}

/* ---- The whole ---- */

static int read_root(struct moe_hf_reader *r, const json_t *root)
{
    if (!json_is_object(root))
        return moe_hf_damaged(r, "not a tokenizer");
    MOE_TRY(hf_read_steps(r, root));
    return hf_read_model(r, root);
}

/* Parses the files beside tokenizer.json. */
static int parse_others(struct moe_hf_reader *r, const struct moe_hf_texts *texts)
{
    const struct {
        const struct moe_hf_text *text;
        json_t **to;
        const char *what;
    } others[] = {{&texts->config, &r->config, "not a configuration"},
                  {&texts->added, &r->added, "not a list of added tokens"},
                  {&texts->special_map, &r->special_map, "not a list of special tokens"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct moe_hf_text *text = others[i].text;
        if (!text->data)
            continue;
        MOE_TRY(moe_json_parse_file(others[i].to, text->name, text->data, text->n,
                                    MOE_JSON_TOKENIZER_CONFIG_MEMORY, r->err));
        if (!json_is_object(*others[i].to))
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s", text->name, others[i].what);
    }
    return MOE_OK;
}

int moe_tokenizer_parse_hf_files(struct moe_tokenizer **out, const struct moe_hf_texts *texts,
                                 struct moe_err *err)
{
    const struct moe_hf_text *file = &texts->tokenizer;
    struct moe_hf_reader r = {.name = file->name,
                              .config_name = texts->config.name,
                              .added_name = texts->added.name,
                              .err = err};
    struct moe_err why = {0};
    json_t *root = NULL;
    int status;
    MOE_STEP(moe_json_parse_file(&root, file->name, file->data, file->n, MOE_JSON_TOKENIZER_MEMORY,
                                 err));
    MOE_STEP(parse_others(&r, texts));
    r.tok = moe_tokenizer_new(err);
    MOE_STEP(r.tok ? read_root(&r, root) : MOE_ERR_MEMORY);
    status = moe_tokenizer_prepare(r.tok, &why);
    if (status != MOE_OK)
        MOE_STEP(moe_fail(err, status, "%s: %s", file->name, why.text));
    MOE_STEP(read_named(&r));
out:
    json_decref(root);
    json_decref(r.config);
    json_decref(r.added);
    json_decref(r.special_map);
    if (status == MOE_OK)
        *out = r.tok;
    else
        moe_tokenizer_free(r.tok);
    return status;
}

int moe_tokenizer_parse_hf(struct moe_tokenizer **out, const char *name, const void *json,
                           uint64_t n, const char *config_name, const void *config,
                           uint64_t config_n, struct moe_err *err)
{
    const struct moe_hf_texts texts = {.tokenizer = {name, json, n},
                                       .config = {config_name, config, config_n}};
    return moe_tokenizer_parse_hf_files(out, &texts, err);
}

/* A directory's files; those from CONFIG on may be missing. */
enum { WORDS, EMOJI, CONFIG, ADDED, SPECIAL_MAP, N_FILES };

static int read_files(const char *dir, const char *const names[N_FILES], char *paths[N_FILES],
                      struct moe_buf files[N_FILES], struct moe_err *err)
{
    for (int i = 0; i < N_FILES; i++) {
        if (!names[i])
            continue;
        paths[i] = moe_path_join(dir, names[i], err);
        if (!paths[i])
            return MOE_ERR_MEMORY;
        else if (i < CONFIG || moe_path_exists(paths[i]))
            MOE_TRY(moe_file_read_all(paths[i], FILE_BYTES_MAX, &files[i], err));
    }
    return MOE_OK;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = moe_path_join(dir, name, NULL);
    bool has = path && moe_path_exists(path);
    free(path);
    return has;
}

int moe_tokenizer_read_hf(struct moe_tokenizer **out, const char *dir, struct moe_err *err)
{
    static const char *const usual[N_FILES] = {"tokenizer.json", NULL, "tokenizer_config.json",
                                               "added_tokens.json", "special_tokens_map.json"};
    static const char *const gptsan[N_FILES] = {"vocab.txt", "emoji.json", "tokenizer_config.json",
                                                NULL, NULL};
    struct moe_buf files[N_FILES] = {{0}};
    char *paths[N_FILES] = {NULL};
    bool is_gptsan = !has_file(dir, usual[WORDS]) && has_file(dir, gptsan[WORDS]) &&
                     has_file(dir, gptsan[EMOJI]);
    int status = read_files(dir, is_gptsan ? gptsan : usual, paths, files, err);
    struct moe_hf_text texts[N_FILES];
    for (int i = 0; i < N_FILES; i++)
        texts[i] = (struct moe_hf_text){paths[i], files[i].data, files[i].size};
    if (status == MOE_OK && is_gptsan) {
        status = moe_tokenizer_parse_gptsan(out, paths[WORDS], &files[WORDS], paths[EMOJI],
                                            &files[EMOJI], paths[CONFIG],
                                            files[CONFIG].data ? &files[CONFIG] : NULL, err);
    } else if (status == MOE_OK) {
        const struct moe_hf_texts all = {.tokenizer = texts[WORDS],
                                         .config = texts[CONFIG],
                                         .added = texts[ADDED],
                                         .special_map = texts[SPECIAL_MAP]};
        status = moe_tokenizer_parse_hf_files(out, &all, err);
    }
    for (int i = 0; i < N_FILES; i++) {
        moe_buf_release(&files[i]);
        free(paths[i]);
    }
    return status;
}
