/*
 * GGUF names a byte-level vocabulary's pre-tokenizer and leaves its steps to the reader. Here are
 * the steps of the models' tokenizer.json files, with the normalizer, which the name implies too.
 * Names are those of llama.cpp's vocabulary reader.
 */
#include <string.h>

#include "vocab/gguf.h"

/* The patterns of OpenAI's cl100k and o200k, and their relatives. */
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD_LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define OTHER " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define WHITE "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define QWEN2 SHORT_FORMS "|" WORD_LEAD "\\p{L}+|\\p{N}|" OTHER "|" WHITE
#define LLAMA3 SHORT_FORMS "|" WORD_LEAD "\\p{L}+|\\p{N}{1,3}|" OTHER "|" WHITE
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define GPT4O                                                                                      \
    WORD_LEAD UPPER "*" LOWER "+" SHORT_FORMS "?|" WORD_LEAD UPPER "+" LOWER "*" SHORT_FORMS       \
                    "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" WHITE

/* The letters that DeepSeek's first tokenizers list. */
#define CASED                                                                                      \
    "A-Za-z\\u00b5\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u01ba\\u01bc-\\u01bf"                    \
    "\\u01c4-\\u0293\\u0295-\\u02af\\u0370-\\u0373\\u0376\\u0377\\u037b-\\u037d"                   \
    "\\u037f\\u0386\\u0388-\\u038a\\u038c\\u038e-\\u03a1\\u03a3-\\u03f5"                           \
    "\\u03f7-\\u0481\\u048a-\\u052f\\u0531-\\u0556\\u10a0-\\u10c5\\u13a0-\\u13f5"                  \
    "\\u13f8-\\u13fd\\u1c90-\\u1cba\\u1cbd-\\u1cbf\\u1d00-\\u1d2b\\u1d6b-\\u1d77"                  \
    "\\u1d79-\\u1d9a\\u1e00-\\u1f15\\u1f18-\\u1f1d\\u1f20-\\u1f45\\u1f48-\\u1f4d"                  \
    "\\u1f50-\\u1f57\\u1f59\\u1f5b\\u1f5d\\u1f5f-\\u1f7d\\u1f80-\\u1fb4"                           \
    "\\u1fb6-\\u1fbc\\u1fbe\\u1fc2-\\u1fc4\\u1fc6-\\u1fcc\\u1fd0-\\u1fd3"                          \
    "\\u1fd6-\\u1fdb\\u1fe0-\\u1fec\\u1ff2-\\u1ff4\\u1ff6-\\u1ffc\\u2102\\u2107"                   \
    "\\u210a-\\u2113\\u2115\\u2119-\\u211d\\u2124\\u2126\\u2128\\u212a-\\u212d"                    \
    "\\u212f-\\u2134\\u2139\\u213c-\\u213f\\u2145-\\u2149\\u214e\\u2183\\u2184"                    \
    "\\u2c00-\\u2c7b\\u2c7e-\\u2ce4\\u2ceb-\\u2cee\\u2cf2\\u2cf3\\ua640-\\ua66d"                   \
    "\\ua680-\\ua69b\\ua722-\\ua76f\\ua771-\\ua787\\ua78b-\\ua78e\\uab70-\\uabbf"                  \
    "\\ufb00-\\ufb06\\ufb13-\\ufb17\\uff21-\\uff3a\\uff41-\\uff5a"                                 \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}"                              \
    "\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"                              \
    "\\x{1e900}-\\x{1e943}"
#define HAN_AND_HANGUL "[\\u4e00-\\u9fa5\\u0800-\\u4e00\\uac00-\\ud7ff]+"
#define DEEPSEEK3                                                                                  \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" WHITE

static const struct pre {
    const char *name;
    bool nfc;
    uint32_t flags;
    const char *patterns[6]; /* split at in turn, each match a piece */
} PRES[] = {
    {"gpt-2", false, 0, {MOE_PATTERN_GPT2}},
    {"olmo", true, 0, {MOE_PATTERN_GPT2}},
    {"starcoder", false, 0, {"\\p{N}", MOE_PATTERN_GPT2}},
    {"refact", false, 0, {"\\p{N}", MOE_PATTERN_GPT2}}, /* Granite too */
    {"smollm", false, 0, {"\\p{N}", MOE_PATTERN_GPT2}},
    {"qwen2", true, 0, {QWEN2}},
    {"llama-bpe", false, MOE_TOKENIZER_IGNORE_MERGES | MOE_TOKENIZER_ADDS_BOS, {LLAMA3}},
    {"dbrx", false, 0, {LLAMA3}},
    {"gpt-4o", false, 0, {GPT4O}},
    {"deepseek-llm",
     false,
     0,
     {"[\\r\\n]", "\\s?[" CASED "]+",
      "\\s?[!-/:-~\\uff01-\\uff0f\\uff1a-\\uff5e\\u2018-\\u201f\\u3000-\\u3002]+", "\\s+$",
      HAN_AND_HANGUL, "\\p{N}"}},
    {"deepseek-coder",
     false,
     0,
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_HANGUL, "\\p{N}"}},
    {"deepseek-v3", false, 0, {"\\p{N}{1,3}", "[\\u4e00-\\u9fa5\\u3040-\\u30ff]+", DEEPSEEK3}},
    /* As llama.cpp does where its converter knew no name. */
    {"default",
     false,
     0,
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", MOE_PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static const struct pre *find(const char *name)
{
    for (size_t i = 0; i < sizeof PRES / sizeof *PRES; i++)
        if (strcmp(name, PRES[i].name) == 0)
            return &PRES[i];
    return NULL;
}

int moe_gguf_pre_tokenizer(struct moe_tokenizer *tok, const char *file, const char *pre,
                           struct moe_err *err)
{
    const struct pre *p = find(pre);
    if (!p)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: tokenizer.ggml.pre: pre-tokenizer '%.60s' is not implemented", file,
                        pre);
    tok->flags |= p->flags;
    if (p->nfc)
        moe_steps_add(&tok->normalizer, MOE_STEP_NFC);
    for (size_t i = 0; i < sizeof p->patterns / sizeof *p->patterns && p->patterns[i]; i++)
        moe_steps_add_split(&tok->pre_tokenizer, p->patterns[i], MOE_SPLIT_ISOLATED, 0);
    return MOE_OK;
}
