/*
 * Reads a GGUF file's vocabulary: the tokenizer.ggml keys of the published GGUF specification, as
 * llama.cpp's converters write them.
 *
 * The format holds less than tokenizer.json: normalizer and pre-tokenizer are one name, an added
 * token is either special or not. The families' tokenizer.json files supply the rest.
 */
#include "text/internal.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "fmt/gguf.h"
#include "text/vocab.h"
#include "text/vocab_store.h"

#define KEY(name) "tokenizer.ggml." name

/* Token types in KEY("token_type"). */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct reader {
    const struct moe_gguf *gguf;
    const char *name; /* the file's name, for error texts */
    struct moe_tokenizer *tok;
    struct moe_err *err;
};

static int damaged(struct reader *r, const char *what)
{
    return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s", r->name, what);
}

/* ---- Tokens ---- */

/* Special tokens of Phi-3's family take the white space after them, except the end of text; GGUF
 * cannot say so. */
static bool takes_white(const char *architecture, const struct moe_vocab_entry *e)
{
    static const char end[] = "<|endoftext|>";
    if (strcmp(architecture, "phi3") != 0 && strcmp(architecture, "phimoe") != 0)
        return false;
    if (e->n == 4 && memcmp(e->text, "</s>", 4) == 0)
        return true;
    return e->n > 4 && memcmp(e->text, "<|", 2) == 0 && memcmp(e->text + e->n - 2, "|>", 2) == 0 &&
           !(e->n == sizeof end - 1 && memcmp(e->text, end, e->n) == 0);
}

static int flags_of(struct reader *r, uint32_t id, double type, const char *architecture,
                    struct moe_vocab_entry *e)
{
    static const uint8_t flags[] = {
        [NORMAL] = MOE_TOKEN_MODEL,
        [UNKNOWN] = MOE_TOKEN_MODEL | MOE_TOKEN_ADDED | MOE_TOKEN_SPECIAL,
        [CONTROL] = MOE_TOKEN_MODEL | MOE_TOKEN_ADDED | MOE_TOKEN_SPECIAL,
        [USER_DEFINED] = MOE_TOKEN_MODEL | MOE_TOKEN_ADDED,
        [UNUSED] = 0,
        [BYTE] = MOE_TOKEN_MODEL | MOE_TOKEN_BYTE,
    };
    if (!(type >= NORMAL && type <= BYTE))
        return moe_fail(r->err, MOE_ERR_FORMAT, "%s: token %u is of unknown type %g", r->name, id,
                        type);
    e->flags = flags[(int)type];
    if (e->flags & MOE_TOKEN_BYTE)
        r->tok->flags |= MOE_TOKENIZER_BYTE_FALLBACK;
    if (moe_token_is_sentinel(e->text, e->n))
        e->flags &= (uint8_t)~MOE_TOKEN_SPECIAL;
    if (e->flags & MOE_TOKEN_ADDED && takes_white(architecture, e))
        e->flags |= MOE_TOKEN_RSTRIP;
    return MOE_OK;
}

static int collect_tokens(struct reader *r, const struct moe_gguf_array *texts,
                          const struct moe_gguf_array *types, struct moe_vocab_entry *entries)
{
    const char *architecture = "";
    MOE_TRY(moe_gguf_get_text(r->gguf, "general.architecture", false, &architecture, r->err));
    for (uint32_t id = 0; id < r->tok->n_tokens; id++) {
        struct moe_vocab_entry *e = &entries[id];
        e->text = moe_gguf_array_text(texts, id, &e->n);
        MOE_TRY(
            flags_of(r, id, types->n ? moe_gguf_array_number(types, id) : NORMAL, architecture, e));
    }
    return MOE_OK;
}

static int read_tokens(struct reader *r)
{
    struct moe_gguf_array texts = {0}, types = {0};
    struct moe_vocab_entry *entries = NULL;
    int status = moe_gguf_get_array(r->gguf, KEY("tokens"), true, &texts, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_array(r->gguf, KEY("token_type"), false, &types, r->err);
    if (status != MOE_OK)
        return status;
    if (!moe_gguf_array_is_text(&texts) || texts.n == 0 || texts.n > MOE_TOKENS_MAX)
        return damaged(r, KEY("tokens") " is not a list of texts, or has an impossible length");
    if (types.n && (moe_gguf_array_is_text(&types) || types.n != texts.n))
        return damaged(r, KEY("token_type") " must be a list of one number per token");
    status = moe_tokenizer_allocate(r->tok, (uint32_t)texts.n, r->err);
    if (status != MOE_OK)
        return status;
    entries = moe_alloc(texts.n, sizeof *entries, r->err);
    status = entries ? collect_tokens(r, &texts, &types, entries) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_vocab_store(r->tok, r->name, entries, r->err);
    free(entries);
    return status;
}

/* ---- Vocabularies with merges, nearly all of them byte-level ---- */

struct merge_lines {
    struct moe_tokenizer *tok;
    const struct moe_gguf_array *lines;
    atomic_llong failed; /* the first that is no merge; n: none */
};

static void find_merges(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct merge_lines *m = ctx;
    struct moe_buf scratch = {0};
    bool found = true;
    for (int64_t i = begin; i < end && found; i++) {
        uint64_t n;
        const char *line = moe_gguf_array_text(m->lines, (uint64_t)i, &n);
        found = moe_vocab_merge_line(m->tok, line, n, &scratch, &m->tok->bpe.merges[i]);
        for (long long first = atomic_load(&m->failed); !found && i < first;)
            if (atomic_compare_exchange_strong(&m->failed, &first, i))
                break;
    }
    moe_buf_release(&scratch);
}

static int read_merges(struct reader *r)
{
    struct moe_gguf_array lines = {0};
    struct moe_buf scratch = {0};
    int status;
    MOE_STEP(moe_gguf_get_array(r->gguf, KEY("merges"), true, &lines, r->err));
    if (lines.n && !moe_gguf_array_is_text(&lines))
        MOE_STEP(damaged(r, KEY("merges") " is not a list of texts"));
    MOE_STEP(moe_vocab_reserve_merges(r->tok, r->name, lines.n, r->err));
    struct merge_lines m = {r->tok, &lines, (long long)lines.n};
    moe_par_for((int64_t)lines.n, 1024, find_merges, &m);
    uint64_t first = (uint64_t)m.failed, n;
    if (first < lines.n) { /* looked up again, for its error */
        const char *line = moe_gguf_array_text(&lines, first, &n);
        bool found = moe_vocab_merge_line(r->tok, line, n, &scratch, &r->tok->bpe.merges[first]);
        MOE_STEP(found ? moe_fail(r->err, MOE_ERR_MEMORY, "out of memory: %s's merges", r->name)
                       : moe_vocab_no_merge(r->name, first, &scratch, r->err));
    }
out:
    moe_buf_release(&scratch);
    return status;
}

/* pre: the pre-tokenizer's name if the file has none. */
static int read_gpt2(struct reader *r, const char *pre)
{
    bool prefix = false;
    MOE_TRY(moe_gguf_get_text(r->gguf, KEY("pre"), false, &pre, r->err));
    MOE_TRY(moe_gguf_get_bool(r->gguf, KEY("add_space_prefix"), false, &prefix, r->err));
    if (!pre)
        return moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                        "%s: no " KEY("pre") ", which says how texts are split (an old file? "
                                             "convert the model again)",
                        r->name);
    if (prefix)
        return moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                        "%s: " KEY("add_space_prefix") " is not implemented for byte-level "
                                                       "vocabularies",
                        r->name);
    MOE_TRY(moe_gguf_pre_tokenizer(r->tok, r->name, pre, r->err));
    MOE_TRY(read_tokens(r));
    return read_merges(r);
}

/* ---- SentencePiece vocabularies, with scores ---- */

/* Reads a score for each token; the caller frees *out. */
static int read_scores(struct reader *r, float **out)
{
    struct moe_gguf_array array = {0};
    uint32_t n = r->tok->n_tokens;
    int status = moe_gguf_get_array(r->gguf, KEY("scores"), true, &array, r->err);
    if (status == MOE_OK && (moe_gguf_array_is_text(&array) || array.n != n))
        status = damaged(r, KEY("scores") " must be a list of one number per token");
    if (status != MOE_OK)
        return status;
    float *scores = *out = moe_alloc(n, sizeof *scores, r->err);
    if (!scores)
        return MOE_ERR_MEMORY;
    for (uint32_t id = 0; id < n && status == MOE_OK; id++) {
        double score = moe_gguf_array_number(&array, id);
        if (!(fabs(score) <= FLT_MAX))
            status = moe_fail(r->err, MOE_ERR_FORMAT, "%s: token %u has a score that is not finite",
                              r->name, id);
        scores[id] = status == MOE_OK ? (float)score : 0;
    }
    return status;
}

/* Replaces spaces by U+2581 and puts one before every text and, as in Llama's tokenizer.json files,
 * after every added token. */
static int add_space_steps(struct reader *r)
{
    bool prefix = true;
    MOE_TRY(moe_gguf_get_bool(r->gguf, KEY("add_space_prefix"), false, &prefix, r->err));
    if (prefix)
        moe_buf_text(&moe_steps_add(&r->tok->normalizer, MOE_STEP_PREPEND)->text, MOE_METASPACE);
    struct moe_step *step = moe_steps_add(&r->tok->normalizer, MOE_STEP_REPLACE);
    moe_buf_text(&step->text, " ");
    moe_buf_text(&step->other, MOE_METASPACE);
    return MOE_OK;
}

static int gguf_merges_by_score(struct moe_tokenizer *tok, const char *file, const float *scores,
                                struct moe_err *err);

static int read_llama(struct reader *r)
{
    static const char *const refused[] = {KEY("remove_extra_whitespaces"),
                                          KEY("precompiled_charsmap")};
    struct moe_tokenizer *tok = r->tok;
    float *scores = NULL;
    tok->model = MOE_TOKENIZER_CHARS;
    tok->flags = MOE_TOKENIZER_FUSE_UNK | MOE_TOKENIZER_ADDS_BOS;
    for (int i = 0; i < 2; i++)
        if (moe_gguf_has(r->gguf, refused[i]))
            return moe_fail(r->err, MOE_ERR_UNSUPPORTED, "%s: %s is not implemented", r->name,
                            refused[i]);
    int status;
    MOE_STEP(add_space_steps(r));
    MOE_STEP(read_tokens(r));
    MOE_STEP(read_scores(r, &scores));
    MOE_STEP(gguf_merges_by_score(r->tok, r->name, scores, r->err));
out:
    free(scores);
    if (status != MOE_OK)
        return status;
    /* SentencePiece's own ids, if a file names none. */
    uint32_t *const ids[] = {&tok->unk, &tok->bos, &tok->eos};
    for (uint32_t i = 0; i < 3; i++)
        *ids[i] = i < tok->n_tokens && tok->token_flags[i] & MOE_TOKEN_SPECIAL ? i : MOE_NO_TOKEN;
    return moe_gguf_get_u32(r->gguf, KEY("unknown_token_id"), tok->n_tokens - 1, false, &tok->unk,
                            r->err);
}

/* ---- Unigram vocabularies (T5) ---- */

/* Adds SentencePiece's changes to a text, as transformers' converter writes them to tokenizer.json.
 */
static int add_unigram_steps(struct reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    struct moe_gguf_array map = {0};
    bool prefix = true, remove = false;
    MOE_TRY(moe_gguf_get_bool(r->gguf, KEY("add_space_prefix"), false, &prefix, r->err));
    MOE_TRY(moe_gguf_get_bool(r->gguf, KEY("remove_extra_whitespaces"), false, &remove, r->err));
    MOE_TRY(moe_gguf_get_array(r->gguf, KEY("precompiled_charsmap"), false, &map, r->err));
    if (map.n && (moe_gguf_array_is_text(&map) || map.n > MOE_CHARSMAP_MAX))
        return damaged(
            r, KEY("precompiled_charsmap") " is not a list of bytes, or has an impossible length");
    if (map.n) {
        struct moe_step *step = moe_steps_add(&tok->normalizer, MOE_STEP_PRECOMPILED);
        for (uint64_t i = 0; i < map.n; i++) {
            double byte = moe_gguf_array_number(&map, i);
            if (!(byte >= INT8_MIN && byte <= UINT8_MAX))
                return damaged(r, KEY("precompiled_charsmap") " is not a list of bytes");
            moe_buf_u8(&step->text, (uint8_t)(int)byte);
        }
    }
    if (remove) {
        moe_steps_add(&tok->normalizer, MOE_STEP_STRIP)->flags = MOE_STEP_RIGHT;
        struct moe_step *step = moe_steps_add(&tok->normalizer, MOE_STEP_REPLACE_RUNS);
        moe_buf_text(&step->text, " ");
        moe_buf_text(&step->other, MOE_METASPACE);
    }
    moe_steps_add(&tok->pre_tokenizer, MOE_STEP_METASPACE)->flags =
        prefix ? 0 : MOE_STEP_PREPEND_NEVER;
    moe_steps_add_split(&tok->pre_tokenizer, MOE_METASPACE, MOE_SPLIT_NEXT, MOE_STEP_LITERAL);
    if (prefix)
        tok->flags |= remove ? MOE_TOKENIZER_DROPS_SPACES : MOE_TOKENIZER_DROPS_SPACE;
    return MOE_OK;
}

/* Drops the scores of tokens that are not ordinary: converters write something. */
static int keep_scores(struct reader *r, const float *scores)
{
    struct moe_tokenizer *tok = r->tok;
    double least = 0;
    tok->unigram.scores = moe_alloc(tok->n_tokens, sizeof *tok->unigram.scores, r->err);
    if (!tok->unigram.scores)
        return MOE_ERR_MEMORY;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint8_t flags = tok->token_flags[id];
        bool ordinary = flags & MOE_TOKEN_MODEL && !(flags & MOE_TOKEN_ADDED);
        double score = ordinary ? moe_vocab_score((double)scores[id]) : 0;
        tok->unigram.scores[id] = score;
        least = score < least ? score : least;
    }
    tok->unigram.unknown = least - MOE_UNIGRAM_PENALTY;
    return MOE_OK;
}

static int read_t5(struct reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    float *scores = NULL;
    tok->model = MOE_TOKENIZER_UNIGRAM;
    tok->flags = MOE_TOKENIZER_FUSE_UNK;
    int status = add_unigram_steps(r);
    if (status == MOE_OK)
        status = read_tokens(r);
    if (status == MOE_OK)
        status = read_scores(r, &scores);
    if (status == MOE_OK)
        status = keep_scores(r, scores);
    free(scores);
    if (status != MOE_OK)
        return status;
    /* T5's own ids, if a file names none. */
    uint32_t *const ids[] = {&tok->pad, &tok->eos, &tok->unk}, last = tok->n_tokens - 1;
    for (uint32_t i = 0; i < 3; i++)
        *ids[i] = i <= last && tok->token_flags[i] & MOE_TOKEN_SPECIAL ? i : MOE_NO_TOKEN;
    status = moe_gguf_get_u32(r->gguf, KEY("unknown_token_id"), last, false, &tok->unk, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(r->gguf, KEY("padding_token_id"), last, false, &tok->pad, r->err);
    return status;
}

/* ---- The whole vocabulary ---- */

static int read_named(struct reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    uint32_t last = tok->n_tokens - 1;
    bool adds_bos = tok->flags & MOE_TOKENIZER_ADDS_BOS;
    bool adds_eos = tok->model == MOE_TOKENIZER_UNIGRAM;
    MOE_TRY(moe_gguf_get_u32(r->gguf, KEY("bos_token_id"), last, false, &tok->bos, r->err));
    MOE_TRY(moe_gguf_get_u32(r->gguf, KEY("eos_token_id"), last, false, &tok->eos, r->err));
    MOE_TRY(moe_gguf_get_bool(r->gguf, KEY("add_bos_token"), false, &adds_bos, r->err));
    MOE_TRY(moe_gguf_get_bool(r->gguf, KEY("add_eos_token"), false, &adds_eos, r->err));
    tok->tail = adds_eos ? tok->eos : MOE_NO_TOKEN;
    tok->flags &= ~(uint32_t)MOE_TOKENIZER_ADDS_BOS;
    if (adds_bos && tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
    return MOE_OK;
}

static int read_vocabulary(struct reader *r)
{
    const char *model = NULL;
    MOE_TRY(moe_gguf_get_text(r->gguf, KEY("model"), true, &model, r->err));
    if (strcmp(model, "gpt2") == 0)
        MOE_TRY(read_gpt2(r, NULL));
    else if (strcmp(model, "gemma4") == 0)
        MOE_TRY(read_gpt2(r, "gemma4"));
    else if (strcmp(model, "llama") == 0)
        MOE_TRY(read_llama(r));
    else if (strcmp(model, "t5") == 0)
        MOE_TRY(read_t5(r));
    else
        return moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                        "%s: " KEY("model") ": tokenizer '%.60s' is not implemented", r->name,
                        model);
    return read_named(r);
}

int moe_tokenizer_read_gguf(struct moe_tokenizer **out, const struct moe_gguf *gguf,
                            struct moe_err *err)
{
    struct reader r = {.gguf = gguf, .name = moe_gguf_path(gguf), .err = err};
    struct moe_err why = {0};
    r.tok = moe_tokenizer_new(err);
    int status = r.tok ? read_vocabulary(&r) : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        status = moe_tokenizer_prepare(r.tok, &why);
        if (status != MOE_OK)
            moe_fail(err, status, "%s: %s", r.name, why.text);
    }
    if (status != MOE_OK) {
        moe_tokenizer_free(r.tok);
        return status;
    }
    if (r.tok->eos == MOE_NO_TOKEN)
        r.tok->eos = r.tok->separator;
    *out = r.tok;
    return MOE_OK;
}

/*
 * Pre-tokenizers by name. GGUF names a vocabulary's pre-tokenizer and leaves its steps to the
 * reader: here are the steps of the models' tokenizer.json files, with the normalizer, which the
 * name implies too. Names are those of llama.cpp's vocabulary reader (src/llama-vocab.cpp, read in
 * version 0.3.36 of llama-cpp-python), which quotes the patterns.
 */

/* The patterns of OpenAI's cl100k and o200k, and their relatives. */
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD_LEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define OTHER " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define WHITE "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Letters listed by DeepSeek's first tokenizers. */
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
/* Digits by threes, counted from the right. */
#define THREES "\\d{1,3}(?=(?:\\d{3})*\\b)"
#define THREES_OF_NUMBERS "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))"
#define LINES "[^\\n]+|[\\n]+"

enum { WHOLE = MOE_TOKENIZER_IGNORE_MERGES, BOS = MOE_TOKENIZER_ADDS_BOS };
/* The units of pieces, beside the patterns. */
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
    /* llama.cpp's fallback for an unrecognized pre-tokenizer. */
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

static const struct pre *find_pre(const char *name)
{
    for (size_t i = 0; i < sizeof PRES / sizeof *PRES; i++)
        if (has_name(&PRES[i], name))
            return &PRES[i];
    return NULL;
}

int moe_gguf_pre_tokenizer(struct moe_tokenizer *tok, const char *file, const char *pre,
                           struct moe_err *err)
{
    const struct pre *p = find_pre(pre);
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

/*
 * SentencePiece's BPE merges the pair that makes the token with the best score. A table of merges
 * does the same; Hugging Face's conversion of such a vocabulary writes it (generate_merges in
 * transformers).
 */

enum { SPLIT_BYTES_MAX = 1024 }; /* every place in a token is tried: bounds the work */

struct candidate {
    float score;
    uint32_t left_n, right_n; /* characters */
    struct moe_bpe_merge merge;
};

static int higher_first(uint32_t a, uint32_t b)
{
    return (a < b) - (a > b);
}

/* Orders by the best score, then the longest left side, then the ids. */
static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    int order = (x->score < y->score) - (x->score > y->score);
    if (!order)
        order = higher_first(x->left_n, y->left_n);
    if (!order)
        order = higher_first(x->right_n, y->right_n);
    if (!order)
        order = higher_first(y->merge.result, x->merge.result);
    return order ? order : higher_first(y->merge.left, x->merge.left);
}

static uint32_t count_characters(const uint8_t *text, uint64_t n)
{
    uint32_t count = 0;
    int length;
    for (uint64_t at = 0; at < n; at += (uint64_t)length, count++)
        moe_utf8_decode(text + at, n - at, &length);
    return count;
}

/* Appends every pair that makes token `id`. */
static void add_splits(const struct moe_tokenizer *tok, uint32_t id, float score,
                       struct moe_buf *out)
{
    uint32_t n, left_n = 0;
    int length;
    const uint8_t *text = moe_token_text(tok, id, &n);
    uint32_t characters = count_characters(text, n);
    moe_utf8_decode(text, n, &length);
    for (uint32_t at = (uint32_t)length; at < n; at += (uint32_t)length) {
        struct candidate c = {.score = score, .left_n = ++left_n};
        c.right_n = characters - left_n;
        c.merge.left = moe_tokenizer_lookup(tok, text, at);
        c.merge.right = moe_tokenizer_lookup(tok, text + at, n - at);
        c.merge.result = id;
        if (c.merge.left != MOE_NO_TOKEN && c.merge.right != MOE_NO_TOKEN)
            moe_buf_append(out, &c, sizeof c);
        moe_utf8_decode(text + at, n - at, &length);
    }
}

/* Whether all scores are equal, as some converters write: then the order of the ids replaces them.
 */
static bool all_alike(const struct moe_tokenizer *tok, const float *scores)
{
    uint32_t first = MOE_NO_TOKEN;
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        if (tok->token_flags[id] != MOE_TOKEN_MODEL)
            continue;
        if (first == MOE_NO_TOKEN)
            first = id;
        if (scores[id] != scores[first])
            return false;
    }
    return true;
}

static int collect_scored(const struct moe_tokenizer *tok, const char *file, const float *scores,
                          struct moe_buf *found, struct moe_err *err)
{
    bool by_id = all_alike(tok, scores);
    for (uint32_t id = 0; id < tok->n_tokens; id++) {
        uint32_t n;
        moe_token_text(tok, id, &n);
        if (!(tok->token_flags[id] & MOE_TOKEN_MODEL))
            continue;
        if (n > SPLIT_BYTES_MAX)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: token %u has %u bytes", file, id, n);
        add_splits(tok, id, by_id ? -(float)id : scores[id], found);
        if (found->size / sizeof(struct candidate) > 2 * (uint64_t)MOE_TOKENS_MAX)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: the tokens imply more merges than are supported", file);
    }
    return found->failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

/* Derives the merges of a vocabulary that has one score per token instead (SentencePiece): every
 * pair of tokens that makes a token, the best score first. Scores are finite; the tokens are
 * already stored. */
static int gguf_merges_by_score(struct moe_tokenizer *tok, const char *file, const float *scores,
                                struct moe_err *err)
{
    struct moe_buf found = {0};
    int status;
    MOE_STEP(collect_scored(tok, file, scores, &found, err));
    uint64_t n = found.size / sizeof(struct candidate);
    struct candidate *candidates = (struct candidate *)found.data;
    MOE_STEP(moe_vocab_reserve_merges(tok, file, n, err));
    if (n)
        qsort(candidates, n, sizeof *candidates, compare_candidates);
    for (uint64_t i = 0; i < n; i++)
        tok->bpe.merges[i] = candidates[i].merge;
out:
    moe_buf_release(&found);
    return status;
}
