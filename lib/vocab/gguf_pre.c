/*
 * GGUF names a vocabulary's pre-tokenizer and leaves its steps to the reader. Here are the steps of
 * the models' tokenizer.json files, with the normalizer, which the name implies too. Names are
 * those of llama.cpp's vocabulary reader (src/llama-vocab.cpp, read in version 0.3.36 of
 * llama-cpp-python), which quotes the patterns.
 */
#include <string.h>

#include "vocab/gguf.h"

/* The patterns of OpenAI's cl100k and o200k, and their relatives. */
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD_LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define OTHER " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define WHITE "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
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

#define CL100K(digits) SHORT_FORMS "|" WORD_LEAD "\\p{L}+|" digits "|" OTHER "|" WHITE
#define QWEN2 CL100K("\\p{N}")
#define LLAMA3 CL100K("\\p{N}{1,3}")
#define QWEN35                                                                                     \
    SHORT_FORMS "|" WORD_LEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" WHITE
/* Capitals and the rest, with what follows a word; digits; what may follow other characters. */
#define CASED_WORDS(upper, lower, after, digits, more)                                             \
    WORD_LEAD upper "*" lower "+" after "|" WORD_LEAD upper "+" lower "*" after "|" digits         \
                    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n" more "]*|" WHITE
#define GPT4O CASED_WORDS(UPPER, LOWER, SHORT_FORMS "?", "\\p{N}{1,3}", "/")
#define TEKKEN CASED_WORDS(UPPER, LOWER, "", "\\p{N}", "/")
#define YOUTU CASED_WORDS(UPPER, LOWER, SHORT_FORMS "?", "\\p{N}", "/")
#define KIMI                                                                                       \
    "[\\p{Han}]+|" CASED_WORDS("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]",                \
                               "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]", SHORT_FORMS "?",      \
                               "\\p{N}{1,3}", "")
#define JAIS2                                                                                      \
    SHORT_FORMS                                                                                    \
    "|" WORD_LEAD "\\p{L}+|\\p{N}{1,3}|" OTHER                                                     \
    "|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|\\s{128}(?!\\S)|\\s{64}(?!\\S)"                \
    "|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}"
#define LING                                                                                       \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*"  \
    "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define SEED                                                                                       \
    SHORT_FORMS "|" WORD_LEAD                                                                      \
                "\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define EXAONE_MOE                                                                                 \
    SHORT_FORMS "|" WORD_LEAD "(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}"                       \
                "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"
#define UFAKZEKA WORD_LEAD "\\p{L}+|\\p{N}|" OTHER "|" WHITE
#define SPARK                                                                                      \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?"           \
    "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+|[\\r\\n]|\\s+(?!\\S)|\\s+"
#define BLOOM " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"
#define CHINESE_AND_KANA "[\\u4e00-\\u9fa5\\u3040-\\u30ff]+"
#define ASIAN                                                                                      \
    "[\\u4e00-\\u9fff\\u3400-\\u4dbf\\uf900-\\ufaff\\u3040-\\u30ff\\uff65-\\uff9f\\u2f00-\\u2fdf"  \
    "\\u0e40-\\u0e7f\\u0e80-\\u0eff\\u1780-\\u17ff\\u1000-\\u109f\\uaa60-\\uaa7f\\ua9e0-\\ua9ff"   \
    "\\uac00-\\ud7af\\u1100-\\u11ff]+"
#define YOUTU_SCRIPTS                                                                              \
    "[\\uac00-\\ud7a3\\u3131-\\u318e]+|[\\uff01\\u2026\\u201c\\u201d\\u2018\\u2019\\u2014\\uff1a"  \
    "\\uff1b\\uff0c\\u3001-\\u303f\\ufe30-\\ufe4f]+|[\\u3105-\\u312f]+|" CHINESE_AND_KANA
/* Digits by threes from the right. */
#define THREES "\\d{1,3}(?=(?:\\d{3})*\\b)"
#define THREES_OF_NUMBERS "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"
#define LINES "[^\\n]+|[\\n]+"

enum { WHOLE = MOE_TOKENIZER_IGNORE_MERGES, BOS = MOE_TOKENIZER_ADDS_BOS };
/* What the pieces are made of, beside the patterns. */
enum kind {
    BYTES,     /* bytes */
    NFC_BYTES, /* bytes, of a text brought to NFC */
    SPACED,    /* characters, U+2581 for a space, with byte fallback */
};

struct pre {
    const char *names; /* each with a space after it */
    enum kind kind;
    uint32_t flags;
    const char *patterns[6]; /* split at in turn, each match a piece */
};

static const struct pre PRES[] = {
    {"gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert "
     "exaone4 "
     "jais trillion granite-docling jina-v1-en jina-v2-code roberta-bpe ",
     BYTES,
     0,
     {MOE_PATTERN_GPT2}},
    {"olmo mpt ", NFC_BYTES, 0, {MOE_PATTERN_GPT2}},
    {"starcoder refact smollm codeshell exaone minerva-7b mellum2 ", /* refact: Granite too */
     BYTES,
     0,
     {"\\p{N}", MOE_PATTERN_GPT2}},
    {"command-r ", NFC_BYTES, 0, {"\\p{N}", MOE_PATTERN_GPT2}},
    {"qwen2 stablelm2 deepseek-r1-qwen f2llmv2 ", NFC_BYTES, 0, {QWEN2}},
    {"hunyuan solar-open grok-2 kormo megrez ", BYTES, 0, {QWEN2}},
    {"qwen35 ", NFC_BYTES, 0, {QWEN35}},
    {"laguna ", BYTES, 0, {LINES, QWEN2}},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ",
     BYTES,
     WHOLE | BOS,
     {LLAMA3}},
    {"dbrx smaug-bpe chatglm-bpe ", BYTES, 0, {LLAMA3}},
    {"glm4 glm5 ", BYTES, WHOLE, {LLAMA3}},
    {"minicpm5 ", BYTES, WHOLE, {"\\p{N}{1,3}", CL100K("\\p{N}+")}},
    {"jais-2 ", BYTES, 0, {JAIS2}},
    {"gpt-4o llama4 kanana2 talkie minimax-m2 ", BYTES, 0, {GPT4O}},
    {"granite-embed-multi-97m ", BYTES, WHOLE, {GPT4O}},
    {"tiny_aya cohere2moe ", BYTES, 0, {THREES, GPT4O}},
    {"tekken ", BYTES, WHOLE | BOS, {TEKKEN}},
    {"youtu ", BYTES, WHOLE, {YOUTU_SCRIPTS, YOUTU}},
    {"kimi-k2 ", BYTES, 0, {KIMI}},
    {"bailingmoe bailingmoe2 llada-moe ", BYTES, 0, {LING}},
    {"seed-coder ", BYTES, 0, {SEED}},
    {"exaone-moe ", BYTES, 0, {EXAONE_MOE}},
    {"ufakzeka ", BYTES, 0, {UFAKZEKA}},
    {"superbpe ", BYTES, 0, {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {"bloom poro-chat gpt3-finnish ", BYTES, 0, {BLOOM}},
    {"viking ", BYTES, 0, {BLOOM, "\\p{N}"}},
    {"falcon ", BYTES, 0, {"[\\p{P}$+<=>^~|`]+", MOE_PATTERN_GPT2, "[0-9][0-9][0-9]"}},
    {"chameleon ",
     BYTES,
     BOS,
     {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
      "[\\p{P}!-/:-@\\[-`{-~]", MOE_PATTERN_GPT2}},
    {"deepseek-llm ",
     BYTES,
     0,
     {"[\\r\\n]", "\\s?[" CASED "]+",
      "\\s?[!-/:-~\\uff01-\\uff0f\\uff1a-\\uff5e\\u2018-\\u201f\\u3000-\\u3002]+", "\\s+$",
      HAN_AND_HANGUL, "\\p{N}"}},
    {"deepseek-coder ",
     BYTES,
     0,
     {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", HAN_AND_HANGUL, "\\p{N}"}},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4 ",
     BYTES,
     0,
     {"\\p{N}{1,3}", CHINESE_AND_KANA, DEEPSEEK3}},
    {"spark2_5 ", BYTES, 0, {"\\p{N}{1,3}", CHINESE_AND_KANA, SPARK, "\\p{N}"}},
    {"afmoe ", BYTES, 0, {THREES_OF_NUMBERS, ASIAN, DEEPSEEK3}},
    {"gemma4 ", SPACED, BOS, {LINES}},
    {"sarvam-moe granite-embed-multi-311m ", SPACED, 0, {LINES}},
    /* As llama.cpp does where its converter knew no name. */
    {"default ",
     BYTES,
     0,
     {"[\\p{P}\\$\\+<=>\\^~\\|]+", MOE_PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

static bool has_name(const struct pre *p, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = p->names; *at; at = strchr(at, ' ') + 1)
        if (strncmp(at, name, n) == 0 && at[n] == ' ' && !strchr(name, ' '))
            return true;
    return false;
}

static const struct pre *find(const char *name)
{
    for (size_t i = 0; i < sizeof PRES / sizeof *PRES; i++)
        if (has_name(&PRES[i], name))
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
    tok->model = p->kind == SPACED ? MOE_TOKENIZER_CHARS : MOE_TOKENIZER_BYTES;
    tok->flags |= p->flags;
    if (p->kind == NFC_BYTES)
        moe_steps_add(&tok->normalizer, MOE_STEP_NFC);
    if (p->kind == SPACED) {
        struct moe_step *step = moe_steps_add(&tok->normalizer, MOE_STEP_REPLACE);
        moe_buf_text(&step->text, " ");
        moe_buf_text(&step->other, MOE_METASPACE);
        tok->flags |= MOE_TOKENIZER_BYTE_FALLBACK | MOE_TOKENIZER_FUSE_UNK;
    }
    for (size_t i = 0; i < sizeof p->patterns / sizeof *p->patterns && p->patterns[i]; i++)
        moe_steps_add_split(&tok->pre_tokenizer, p->patterns[i], MOE_SPLIT_ISOLATED, 0);
    return MOE_OK;
}
