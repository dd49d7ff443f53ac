/*
 * Reads GPTSAN's tokenizer: vocab.txt, a line of spellings for each token, and emoji.json, the
 * kinds of emoji. The normalizer's steps clean the text first.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "text/vocab_hf.h"
#include "text/vocab_store.h"

/* ---- Steps ---- */

#define CLOCK                                                                                      \
    "(\\d{1,2}|:|\\d{1,2}\u6642|\\d{1,2}\u5206|\\(\u65e5\\)|\\(\u6708\\)|\\(\u706b\\)|\\(\u6c34"   \
    "\\)|\\(\u6728\\)|\\(\u91d1\\)|\\(\u571f\\)|\u3230|\u322a|\u322b|\u322c|\u322d|\u322e|\u322f)" \
    "*"
#define MONTH "(0?[1-9]|1[0-2])"
#define DAY "(0?[1-9]|[12][0-9]|3[01])"
#define NUMBER "(0|[1-9]\\d*|[1-9]\\d{0,2}(,\\d{3})+)*"
#define IN(unit) "(" NUMBER unit ")*"

/* Replacements by cleaning, in this order. */
static const char *const CLEANED[][2] = {
    {"(https?|ftp)(://[-_.!~*'()a-zA-Z0-9;/?:@&=+$,%#]+)", "<URL>"},
    {"[A-Za-z0-9._+]*@[-_0-9A-Za-z]+(\\.[A-Za-z]+)*", "<EMAIL>"},
    {"[(]?[0-9]{2,4}[)\\-(]?[0-9]{2,4}[)\\-]?[0-9]{3,4}", "<TEL>"},
    {"([12]\\d{3}[/\\-\u5e74])*" MONTH "[/\\-\u6708](" DAY "\u65e5?)*" CLOCK, "<DATE>"},
    {"(\u660e\u6cbb|\u5927\u6b63|\u662d\u548c|\u5e73\u6210|\u4ee4\u548c|\u337e|\u337d|\u337c|"
     "\u337b|\u32ff)"
     "\\d{1,2}\u5e74" MONTH "\u6708" DAY "\u65e5" CLOCK,
     "<DATE>"},
    {IN("\u5104") IN("\u4e07") IN("\u5343") NUMBER
     "(\u5343\u5186|\u4e07\u5186|\u5343\u4e07\u5186|\u5186|\u5343\u30c9\u30eb|\u4e07\u30c9\u30eb|"
     "\u5343\u4e07\u30c9\u30eb|\u30c9\u30eb|\u5343\u30e6\u30fc\u30ed|\u4e07\u30e6\u30fc\u30ed|"
     "\u5343\u4e07\u30e6\u30fc\u30ed|\u30e6\u30fc\u30ed)+(\\(\u7a0e\u8fbc\\)|\\(\u7a0e\u629c\\)|\\+"
     "tax)*",
     "<PRICE>"},
    /* Lines and blocks to draw with: a run counts once. */
    {"([\u2500-\u2580\u2581-\u2587\u2588\u2589-\u258f\u2590-\u259f]|<BLOCK>)+", "<BLOCK>"},
};

static void add_replace(struct moe_tokenizer *tok, uint8_t kind, const char *from, const char *to)
{
    struct moe_step *step = moe_steps_add(&tok->normalizer, kind);
    moe_buf_text(&step->text, from);
    moe_buf_text(&step->other, to);
}

/* Reads pairs of texts, members of an object, in order. */
static int read_pairs(struct moe_hf_reader *r, const json_t *root, const char *key,
                      struct moe_buf *out)
{
    json_t *pairs = json_object_get(root, key), *value;
    const char *from;
    if (!json_is_object(pairs))
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: no object '%s'", r->name, key);
    json_object_foreach(pairs, from, value)
    {
        if (!json_is_string(value) || !*from)
            return moe_fail(r->err, MOE_ERR_FORMAT, "%s: '%s': '%.40s' stands for no text", r->name,
                            key, from);
        moe_buf_append(out, from, strlen(from) + 1);
        moe_buf_append(out, json_string_value(value), strlen(json_string_value(value)) + 1);
    }
    return out->failed ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int add_steps(struct moe_hf_reader *r, const json_t *emoji, bool clean)
{
    static const char *const plain[][2] = {
        {" ", "<SP>"},  {"\u3000", "<SP>"}, {"\r\n", "<BR>"},     {"\n", "<BR>"},
        {"\r", "<BR>"}, {"\t", "<TAB>"},    {"\u2014", "\u30fc"}, {"\u2212", "\u30fc"}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        add_replace(r->tok, MOE_STEP_REPLACE, plain[i][0], plain[i][1]);
    struct moe_step *step = moe_steps_add(&r->tok->normalizer, MOE_STEP_REPLACE_PAIRS);
    MOE_TRY(read_pairs(r, emoji, "emoji", &step->text));
    MOE_TRY(read_pairs(r, emoji, "emoji_inv", &step->other));
    for (size_t i = 0; clean && i < sizeof CLEANED / sizeof *CLEANED; i++)
        add_replace(r->tok, MOE_STEP_REPLACE_MATCHES, CLEANED[i][0], CLEANED[i][1]);
    return MOE_OK;
}

/* ---- Vocabulary ---- */

/* Bytes of the line at text[0..n), without its end; *next: with it. */
static uint64_t line_bytes(const char *text, uint64_t n, uint64_t *next)
{
    uint64_t size = 0;
    while (size < n && text[size] != '\n' && text[size] != '\r')
        size++;
    *next = size + 1;
    if (size + 1 < n && text[size] == '\r' && text[size + 1] == '\n')
        ++*next;
    return size;
}

/* Reads a special token named in the configuration, or its usual name. */
static int special_name(struct moe_hf_reader *r, const json_t *config, const char *key,
                        const char **name)
{
    const json_t *value = json_object_get(config, key);
    if (!config || moe_hf_absent(value))
        return MOE_OK;
    return json_is_object(value) ? moe_hf_text(r, value, "content", name)
                                 : moe_hf_text(r, config, key, name);
}

static int read_specials(struct moe_hf_reader *r, const json_t *config,
                         struct moe_vocab_entry *entries)
{
    struct moe_tokenizer *tok = r->tok;
    const struct {
        const char *key, *name;
        uint32_t *id;
    } named[] = {{"bos_token", "<|startoftext|>", &tok->bos},
                 {"eos_token", "<|endoftext|>", &tok->eos},
                 {"unk_token", "<|nottoken|>", &tok->unk},
                 {"pad_token", "<|separator|>", &tok->pad},
                 {"sep_token", "<|segmenter|>", &tok->tail}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const char *name = named[i].name;
        MOE_TRY(special_name(r, config, named[i].key, &name));
        for (uint32_t id = 0; id < tok->n_tokens; id++) {
            if (entries[id].n == 0 || entries[id].n != strlen(name) ||
                memcmp(entries[id].text, name, entries[id].n) != 0)
                continue;
            entries[id].flags |= MOE_TOKEN_ADDED | MOE_TOKEN_SPECIAL;
            *named[i].id = id;
        }
    }
    if (tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
    return MOE_OK;
}

static int read_vocab(struct moe_hf_reader *r, const char *name, const struct moe_buf *vocab,
                      const json_t *config)
{
    const char *text = (const char *)vocab->data;
    uint64_t n_tokens = 0, next = 0;
    for (uint64_t at = 0; at < vocab->size; at += next, n_tokens++)
        line_bytes(text + at, vocab->size - at, &next);
    if (n_tokens > MOE_TOKENS_MAX)
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: more lines than can be", name);
    int status = moe_tokenizer_allocate(r->tok, (uint32_t)n_tokens, r->err);
    if (status != MOE_OK)
        return status;
    struct moe_vocab_entry *entries = moe_alloc(n_tokens, sizeof *entries, r->err);
    if (!entries)
        return MOE_ERR_MEMORY;
    uint64_t at = 0;
    for (uint32_t id = 0; id < r->tok->n_tokens; id++, at += next) {
        entries[id].text = text + at;
        entries[id].n = line_bytes(text + at, vocab->size - at, &next);
        entries[id].flags = entries[id].n ? MOE_TOKEN_MODEL : 0;
    }
    status = read_specials(r, config, entries);
    if (status == MOE_OK)
        status = moe_vocab_store(r->tok, name, entries, r->err);
    free(entries);
    return status;
}

/* ---- The whole ---- */

int moe_tokenizer_parse_gptsan(struct moe_tokenizer **out, const char *vocab_name,
                               const struct moe_buf *vocab, const char *emoji_name,
                               const struct moe_buf *emoji, const char *config_name,
                               const struct moe_buf *config, struct moe_err *err)
{
    struct moe_hf_reader r = {.name = config_name, .err = err};
    struct moe_err why = {0};
    json_t *pairs = NULL, *named = NULL;
    bool clean = false;
    int status;
    MOE_STEP(moe_json_parse_file(&pairs, emoji_name, emoji->data, emoji->size,
                                 MOE_JSON_TOKENIZER_MEMORY, err));
    if (config)
        MOE_STEP(moe_json_parse_file(&named, config_name, config->data, config->size,
                                     MOE_JSON_TOKENIZER_CONFIG_MEMORY, err));
    if (named && !json_is_object(named))
        MOE_STEP(moe_hf_damaged(&r, "not a configuration"));
    if (named)
        MOE_STEP(moe_hf_bool(&r, named, "do_clean_text", &clean));
    r.tok = moe_tokenizer_new(err);
    MOE_STEP(r.tok ? MOE_OK : MOE_ERR_MEMORY);
    r.tok->model = MOE_TOKENIZER_SPELLINGS;
    MOE_STEP(read_vocab(&r, vocab_name, vocab, named));
    r.name = emoji_name;
    MOE_STEP(add_steps(&r, pairs, clean));
    status = moe_tokenizer_prepare(r.tok, &why);
    if (status != MOE_OK)
        MOE_STEP(moe_fail(err, status, "%s: %s", vocab_name, why.text));
out:
    json_decref(pairs);
    json_decref(named);
    if (status == MOE_OK)
        *out = r.tok;
    else
        moe_tokenizer_free(r.tok);
    return status;
}
