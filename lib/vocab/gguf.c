/*
 * Reading a GGUF file's vocabulary: the tokenizer.ggml keys of the published GGUF specification, as
 * llama.cpp's converters write them.
 *
 * The format holds less than tokenizer.json: normalizer and pre-tokenizer are a name, an added
 * token is either special or not. The rest is filled in from the families' tokenizer.json files.
 */
#include "vocab/gguf.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fmt/gguf.h"
#include "vocab/store.h"

#define KEY(name) "tokenizer.ggml." name

/* Of tokens, in KEY("token_type"). */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

struct reader {
    const struct moe_gguf *gguf;
    const char *name; /* of the file, for error texts */
    struct moe_tokenizer *tok;
    struct moe_err *err;
};

static int damaged(struct reader *r, const char *what)
{
    return moe_fail(r->err, MOE_ERR_FORMAT, "%s: %s", r->name, what);
}

/* ---- Tokens ---- */

/* The special tokens of Phi-3's family take the white space after them, except for the end of text;
 * GGUF cannot say so. */
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

static int collect(struct reader *r, const struct moe_gguf_array *texts,
                   const struct moe_gguf_array *types, struct moe_vocab_entry *entries)
{
    const char *architecture = "";
    int status = moe_gguf_get_text(r->gguf, "general.architecture", false, &architecture, r->err);
    for (uint32_t id = 0; id < r->tok->n_tokens && status == MOE_OK; id++) {
        struct moe_vocab_entry *e = &entries[id];
        e->text = moe_gguf_array_text(texts, id, &e->n);
        status =
            flags_of(r, id, types->n ? moe_gguf_array_number(types, id) : NORMAL, architecture, e);
    }
    return status;
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
        return damaged(r, KEY("tokens") " is no list of texts, or an absurd one");
    if (types.n && (moe_gguf_array_is_text(&types) || types.n != texts.n))
        return damaged(r, KEY("token_type") " is no list of a number for each token");
    status = moe_tokenizer_allocate(r->tok, (uint32_t)texts.n, r->err);
    if (status != MOE_OK)
        return status;
    entries = moe_alloc(texts.n, sizeof *entries, r->err);
    status = entries ? collect(r, &texts, &types, entries) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_vocab_store(r->tok, r->name, entries, r->err);
    free(entries);
    return status;
}

/* ---- Vocabularies with merges, nearly all of them byte-level ---- */

static int read_merges(struct reader *r)
{
    struct moe_gguf_array lines = {0};
    struct moe_buf scratch = {0};
    int status = moe_gguf_get_array(r->gguf, KEY("merges"), true, &lines, r->err);
    if (status == MOE_OK && lines.n && !moe_gguf_array_is_text(&lines))
        status = damaged(r, KEY("merges") " is no list of texts");
    if (status == MOE_OK)
        status = moe_vocab_reserve_merges(r->tok, r->name, lines.n, r->err);
    for (uint64_t i = 0; i < lines.n && status == MOE_OK; i++) {
        uint64_t n;
        const char *line = moe_gguf_array_text(&lines, i, &n);
        if (!moe_vocab_merge_line(r->tok, line, n, &scratch, &r->tok->bpe.merges[i]))
            status = moe_vocab_no_merge(r->name, i, &scratch, r->err);
    }
    moe_buf_release(&scratch);
    return status;
}

/* pre: what the pre-tokenizer is called where the file does not say. */
static int read_gpt2(struct reader *r, const char *pre)
{
    bool prefix = false;
    int status = moe_gguf_get_text(r->gguf, KEY("pre"), false, &pre, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_bool(r->gguf, KEY("add_space_prefix"), false, &prefix, r->err);
    if (status != MOE_OK)
        return status;
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
    status = moe_gguf_pre_tokenizer(r->tok, r->name, pre, r->err);
    if (status == MOE_OK)
        status = read_tokens(r);
    return status == MOE_OK ? read_merges(r) : status;
}

/* ---- SentencePiece vocabularies, with scores ---- */

/* A score for each token; *out is for the caller to free. */
static int read_scores(struct reader *r, float **out)
{
    struct moe_gguf_array array = {0};
    uint32_t n = r->tok->n_tokens;
    int status = moe_gguf_get_array(r->gguf, KEY("scores"), true, &array, r->err);
    if (status == MOE_OK && (moe_gguf_array_is_text(&array) || array.n != n))
        status = damaged(r, KEY("scores") " is no list of a number for each token");
    if (status != MOE_OK)
        return status;
    float *scores = *out = moe_alloc(n, sizeof *scores, r->err);
    if (!scores)
        return MOE_ERR_MEMORY;
    for (uint32_t id = 0; id < n && status == MOE_OK; id++) {
        double score = moe_gguf_array_number(&array, id);
        if (!(fabs(score) <= FLT_MAX))
            status =
                moe_fail(r->err, MOE_ERR_FORMAT, "%s: token %u has no proper score", r->name, id);
        scores[id] = status == MOE_OK ? (float)score : 0;
    }
    return status;
}

/* Spaces are U+2581; one is put before every text and, as in Llama's tokenizer.json files, after
 * every added token. */
static int add_space_steps(struct reader *r)
{
    bool prefix = true;
    int status = moe_gguf_get_bool(r->gguf, KEY("add_space_prefix"), false, &prefix, r->err);
    if (status == MOE_OK && prefix)
        moe_buf_text(&moe_steps_add(&r->tok->normalizer, MOE_STEP_PREPEND)->text, MOE_METASPACE);
    if (status == MOE_OK) {
        struct moe_step *step = moe_steps_add(&r->tok->normalizer, MOE_STEP_REPLACE);
        moe_buf_text(&step->text, " ");
        moe_buf_text(&step->other, MOE_METASPACE);
    }
    return status;
}

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
    int status = add_space_steps(r);
    if (status == MOE_OK)
        status = read_tokens(r);
    if (status == MOE_OK)
        status = read_scores(r, &scores);
    if (status == MOE_OK)
        status = moe_gguf_merges_by_score(r->tok, r->name, scores, r->err);
    free(scores);
    if (status != MOE_OK)
        return status;
    /* SentencePiece's own ids, where a file names none. */
    uint32_t *const ids[] = {&tok->unk, &tok->bos, &tok->eos};
    for (uint32_t i = 0; i < 3; i++)
        *ids[i] = i < tok->n_tokens && tok->token_flags[i] & MOE_TOKEN_SPECIAL ? i : MOE_NO_TOKEN;
    return moe_gguf_get_u32(r->gguf, KEY("unknown_token_id"), tok->n_tokens - 1, false, &tok->unk,
                            r->err);
}

/* ---- Unigram vocabularies (T5) ---- */

/* What SentencePiece does to a text, as transformers' converter puts it into tokenizer.json. */
static int add_unigram_steps(struct reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    struct moe_gguf_array map = {0};
    bool prefix = true, remove = false;
    int status = moe_gguf_get_bool(r->gguf, KEY("add_space_prefix"), false, &prefix, r->err);
    if (status == MOE_OK)
        status =
            moe_gguf_get_bool(r->gguf, KEY("remove_extra_whitespaces"), false, &remove, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_array(r->gguf, KEY("precompiled_charsmap"), false, &map, r->err);
    if (status != MOE_OK)
        return status;
    if (map.n && (moe_gguf_array_is_text(&map) || map.n > MOE_CHARSMAP_MAX))
        return damaged(r, KEY("precompiled_charsmap") " is no list of bytes, or an absurd one");
    if (map.n) {
        struct moe_step *step = moe_steps_add(&tok->normalizer, MOE_STEP_PRECOMPILED);
        for (uint64_t i = 0; i < map.n; i++) {
            double byte = moe_gguf_array_number(&map, i);
            if (!(byte >= INT8_MIN && byte <= UINT8_MAX))
                return damaged(r, KEY("precompiled_charsmap") " is no list of bytes");
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

/* Tokens that are not ordinary ones have none of their own: converters write something. */
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
    /* T5's own ids, where a file names none. */
    uint32_t *const ids[] = {&tok->pad, &tok->eos, &tok->unk}, last = tok->n_tokens - 1;
    for (uint32_t i = 0; i < 3; i++)
        *ids[i] = i <= last && tok->token_flags[i] & MOE_TOKEN_SPECIAL ? i : MOE_NO_TOKEN;
    status = moe_gguf_get_u32(r->gguf, KEY("unknown_token_id"), last, false, &tok->unk, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(r->gguf, KEY("padding_token_id"), last, false, &tok->pad, r->err);
    return status;
}

/* ---- The whole ---- */

static int read_named(struct reader *r)
{
    struct moe_tokenizer *tok = r->tok;
    uint32_t last = tok->n_tokens - 1;
    bool adds_bos = tok->flags & MOE_TOKENIZER_ADDS_BOS;
    bool adds_eos = tok->model == MOE_TOKENIZER_UNIGRAM;
    int status = moe_gguf_get_u32(r->gguf, KEY("bos_token_id"), last, false, &tok->bos, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_u32(r->gguf, KEY("eos_token_id"), last, false, &tok->eos, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_bool(r->gguf, KEY("add_bos_token"), false, &adds_bos, r->err);
    if (status == MOE_OK)
        status = moe_gguf_get_bool(r->gguf, KEY("add_eos_token"), false, &adds_eos, r->err);
    tok->tail = adds_eos ? tok->eos : MOE_NO_TOKEN;
    tok->flags &= ~(uint32_t)MOE_TOKENIZER_ADDS_BOS;
    if (adds_bos && tok->bos != MOE_NO_TOKEN)
        tok->flags |= MOE_TOKENIZER_ADDS_BOS;
    return status;
}

static int read_vocabulary(struct reader *r)
{
    const char *model = NULL;
    int status = moe_gguf_get_text(r->gguf, KEY("model"), true, &model, r->err);
    if (status != MOE_OK)
        return status;
    if (strcmp(model, "gpt2") == 0)
        status = read_gpt2(r, NULL);
    else if (strcmp(model, "gemma4") == 0)
        status = read_gpt2(r, "gemma4");
    else if (strcmp(model, "llama") == 0)
        status = read_llama(r);
    else if (strcmp(model, "t5") == 0)
        status = read_t5(r);
    else
        status =
            moe_fail(r->err, MOE_ERR_UNSUPPORTED,
                     "%s: " KEY("model") ": tokenizer '%.60s' is not implemented", r->name, model);
    return status == MOE_OK ? read_named(r) : status;
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
