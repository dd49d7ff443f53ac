/*
 * A tokenizer as a pack's section. Little-endian; nothing is aligned; the parts follow one another
 * and the section ends with the last.
 *
 *   offset size  header
 *        0    4  magic "MTOK"
 *        4    2  version, 1
 *        6    1  model: 1 bytes, 2 characters, 3 unigram, 4 spellings (enum
 *                 moe_tokenizer_model)
 *        7    1  zero
 *        8    4  flags: 1 ignore merges, 2 byte fallback, 4 fuse unknown, 8 adds bos; of a whole
 *                 answer 16 its first spaces are dropped, 32 its first space is
 *       12    4  T, number of tokens (largest id + 1; an id not in use has an empty text)
 *       16    4  M, number of merges
 *       20    4  normalizer steps
 *       24    4  pre-tokenizer steps
 *       28    4  bos id      0xffffffff: none
 *       32    4  eos id      0xffffffff: none
 *       36    4  unknown id  0xffffffff: none
 *       40    4  S, bytes of a score: 4 or 8 (float, double) in a unigram model, else 0
 *       44    4  B, bytes of all tokens' texts
 *       48    4  id of the token that follows a whole text, plus 1; 0: none
 *       52    4  padding id, plus 1; 0: none
 *       56    8  score of an unknown character, double; 0 where S is 0
 *   then
 *           2T  bytes of each token's text, u16
 *            T  flags of each token, u8: 1 in the model's vocabulary, 2 added, 4 special,
 *               8 byte token "<0xNN>", 16 takes white space before, 32 after, 64 normalized,
 *               128 a single word
 *            B  the texts. Model 1: the bytes a token means. 2, 3: UTF-8, U+2581 for a space.
 *               4: its spellings, with commas between
 *          12M  merges in rank order: left, right and resulting id, u32 each
 *           ST  score of each token
 *            .  normalizer steps, then pre-tokenizer steps, each
 *                 1 kind, 1 split behavior, 1 flags, 1 zero, 4 bytes of text A, 4 of text B, A, B
 *
 * Kinds: 1 NFC; 2 prepend A; 3 replace A by B; 4 NFD; 5 NFKC; 6 NFKD; 7 SentencePiece's "nmt"
 * rules; 8 lower case; 9 strip white space; 10 strip combining marks; 11 replace A, twice or more
 * in a row, by B; 12 SentencePiece's precompiled rules A (internal.h); 13 replace matches of
 * pattern A by B; 14 replace texts, pairs of them in A, and back, those in B; 15 one of BERT's
 * rules; 16 split at pattern A; 17 prefix a space; 18 spaces to U+2581; 19 split where another
 * script begins (Unicode 9.0); 20 the steps after this one see GPT-2's characters for bytes.
 * Behaviors of a split: 0 isolated, 1 removed, 2 merged with previous, 3 merged with next, 4
 * contiguous. Flags of a step: 1 inverted, 2 A is plain text; of kind 18: 4 one is put before the
 * text only, 8 never (neither: before every piece between added tokens); of kind 9: 16 at the
 * beginning, 32 at the end; of kind 15: 1 controls dropped, white space to spaces, 2 spaces around
 * Chinese characters, 4 nonspacing marks dropped. Patterns are in the dialect of Hugging Face's
 * tokenizer.json.
 */
#include <string.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "text/internal.h"

enum { VERSION = 1 };

static const char MAGIC[] = "MTOK";

/* ---- Writing ---- */

static void write_steps(const struct moe_steps *steps, struct moe_buf *out)
{
    for (uint32_t i = 0; i < steps->n; i++) {
        const struct moe_step *step = &steps->steps[i];
        moe_buf_u8(out, step->kind);
        moe_buf_u8(out, step->behavior);
        moe_buf_u8(out, step->flags);
        moe_buf_u8(out, 0);
        moe_buf_u32(out, (uint32_t)step->text.size);
        moe_buf_u32(out, (uint32_t)step->other.size);
        moe_buf_append(out, step->text.data, step->text.size);
        moe_buf_append(out, step->other.data, step->other.size);
    }
}

/* Bytes of a score: floats if they hold all of them. */
static uint32_t score_bytes(const struct moe_tokenizer *tok)
{
    if (tok->model != MOE_TOKENIZER_UNIGRAM)
        return 0;
    for (uint32_t id = 0; id < tok->n_tokens; id++)
        if ((double)(float)tok->unigram.scores[id] != tok->unigram.scores[id])
            return 8;
    return 4;
}

static uint32_t id_plus_1(uint32_t id)
{
    return id == MOE_NO_TOKEN ? 0 : id + 1;
}

void moe_tokenizer_write(const struct moe_tokenizer *tok, struct moe_buf *out)
{
    uint32_t size = score_bytes(tok);
    moe_buf_append(out, MAGIC, 4);
    moe_buf_u16(out, VERSION);
    moe_buf_u8(out, tok->model);
    moe_buf_u8(out, 0);
    moe_buf_u32(out, tok->flags);
    moe_buf_u32(out, tok->n_tokens);
    moe_buf_u32(out, tok->bpe.n_merges);
    moe_buf_u32(out, tok->normalizer.n);
    moe_buf_u32(out, tok->pre_tokenizer.n);
    moe_buf_u32(out, tok->bos);
    moe_buf_u32(out, tok->eos);
    moe_buf_u32(out, tok->unk);
    moe_buf_u32(out, size);
    moe_buf_u32(out, (uint32_t)tok->text.size);
    moe_buf_u32(out, id_plus_1(tok->tail));
    moe_buf_u32(out, id_plus_1(tok->pad));
    moe_buf_f64(out, size ? tok->unigram.unknown : 0);
    for (uint32_t i = 0; i < tok->n_tokens; i++)
        moe_buf_u16(out, (uint16_t)(tok->offsets[i + 1] - tok->offsets[i]));
    moe_buf_append(out, tok->token_flags, tok->n_tokens);
    moe_buf_append(out, tok->text.data, tok->text.size);
    for (uint32_t i = 0; i < tok->bpe.n_merges; i++) {
        moe_buf_u32(out, tok->bpe.merges[i].left);
        moe_buf_u32(out, tok->bpe.merges[i].right);
        moe_buf_u32(out, tok->bpe.merges[i].result);
    }
    for (uint32_t i = 0; size && i < tok->n_tokens; i++) {
        if (size == 4)
            moe_buf_f32(out, (float)tok->unigram.scores[i]);
        else
            moe_buf_f64(out, tok->unigram.scores[i]);
    }
    write_steps(&tok->normalizer, out);
    write_steps(&tok->pre_tokenizer, out);
}

/* ---- Reading ---- */

struct header {
    uint32_t n_tokens, n_merges, n_normalizer, n_pre, score_bytes, text_bytes;
};

static float as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static int read_header(struct moe_cursor *c, struct moe_tokenizer *tok, struct header *h,
                       struct moe_err *err)
{
    const uint8_t *magic = moe_cursor_take(c, 4);
    if (!magic || memcmp(magic, MAGIC, 4) != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "no tokenizer begins here");
    uint16_t version = moe_cursor_u16(c);
    if (!c->failed && version != VERSION)
        return moe_fail(err, MOE_ERR_VERSION, "tokenizer version %u (this program reads %d)",
                        version, VERSION);
    tok->model = moe_cursor_u8(c);
    uint8_t zero = moe_cursor_u8(c);
    tok->flags = moe_cursor_u32(c);
    h->n_tokens = moe_cursor_u32(c);
    h->n_merges = moe_cursor_u32(c);
    h->n_normalizer = moe_cursor_u32(c);
    h->n_pre = moe_cursor_u32(c);
    tok->bos = moe_cursor_u32(c);
    tok->eos = moe_cursor_u32(c);
    tok->unk = moe_cursor_u32(c);
    h->score_bytes = moe_cursor_u32(c);
    h->text_bytes = moe_cursor_u32(c);
    tok->tail = moe_cursor_u32(c) - 1; /* 0 becomes MOE_NO_TOKEN */
    tok->pad = moe_cursor_u32(c) - 1;
    tok->unigram.unknown = moe_cursor_f64(c);
    bool unigram = tok->model == MOE_TOKENIZER_UNIGRAM, sized = h->score_bytes != 0;
    if (!c->failed &&
        (zero || unigram != sized || (sized && h->score_bytes != 4 && h->score_bytes != 8) ||
         (!unigram && tok->unigram.unknown != 0)))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the tokenizer has scores or fields that this program does not know");
    /* Checked before these counts are used to allocate. */
    uint64_t least = (uint64_t)h->n_tokens * (3 + (uint64_t)h->score_bytes) + h->text_bytes +
                     (uint64_t)h->n_merges * 12;
    if (c->failed || least > moe_cursor_left(c))
        return moe_fail(err, MOE_ERR_FORMAT, "the tokenizer is cut off: %llu bytes",
                        (unsigned long long)c->size);
    return MOE_OK;
}

static int read_tokens(struct moe_cursor *c, const struct header *h, struct moe_tokenizer *tok,
                       struct moe_err *err)
{
    MOE_TRY(moe_tokenizer_allocate(tok, h->n_tokens, err));
    uint64_t at = 0;
    for (uint32_t i = 0; i < h->n_tokens; i++) {
        at += moe_cursor_u16(c);
        if (at > h->text_bytes)
            return moe_fail(err, MOE_ERR_FORMAT, "the text of token %u lies outside", i);
        tok->offsets[i + 1] = (uint32_t)at;
    }
    if (at != h->text_bytes)
        return moe_fail(err, MOE_ERR_FORMAT, "tokens' texts have %llu bytes, not %u",
                        (unsigned long long)at, h->text_bytes);
    memcpy(tok->token_flags, moe_cursor_take(c, h->n_tokens), h->n_tokens);
    moe_buf_append(&tok->text, moe_cursor_take(c, h->text_bytes), h->text_bytes);
    return tok->text.failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory") : MOE_OK;
}

static int read_merges(struct moe_cursor *c, const struct header *h, struct moe_tokenizer *tok,
                       struct moe_err *err)
{
    tok->bpe.merges = moe_alloc(h->n_merges, sizeof *tok->bpe.merges, err);
    if (!tok->bpe.merges)
        return MOE_ERR_MEMORY;
    tok->bpe.n_merges = h->n_merges;
    for (uint32_t i = 0; i < h->n_merges; i++) {
        tok->bpe.merges[i].left = moe_cursor_u32(c);
        tok->bpe.merges[i].right = moe_cursor_u32(c);
        tok->bpe.merges[i].result = moe_cursor_u32(c);
    }
    return MOE_OK;
}

static int read_scores(struct moe_cursor *c, const struct header *h, struct moe_tokenizer *tok,
                       struct moe_err *err)
{
    if (h->score_bytes == 0)
        return MOE_OK;
    double *scores = moe_alloc(h->n_tokens, sizeof *scores, err);
    tok->unigram.scores = scores;
    for (uint32_t i = 0; scores && i < h->n_tokens; i++)
        scores[i] = h->score_bytes == 4 ? (double)as_float(moe_cursor_u32(c)) : moe_cursor_f64(c);
    return scores ? MOE_OK : MOE_ERR_MEMORY;
}

static int read_steps(struct moe_cursor *c, uint32_t n, struct moe_steps *steps,
                      struct moe_err *err)
{
    for (uint32_t i = 0; i < n; i++) {
        struct moe_step *step = moe_steps_add(steps, moe_cursor_u8(c));
        if (!step)
            return moe_fail(err, MOE_ERR_FORMAT, "%u steps (at most %d can be)", n, MOE_STEPS_MAX);
        step->behavior = moe_cursor_u8(c);
        step->flags = moe_cursor_u8(c);
        uint8_t zero = moe_cursor_u8(c);
        uint32_t text_bytes = moe_cursor_u32(c), other_bytes = moe_cursor_u32(c);
        const uint8_t *text = moe_cursor_take(c, text_bytes);
        const uint8_t *other = moe_cursor_take(c, other_bytes);
        if (c->failed || zero)
            return moe_fail(err, MOE_ERR_FORMAT, "step %u is cut off or damaged", i);
        moe_buf_append(&step->text, text, text_bytes);
        moe_buf_append(&step->other, other, other_bytes);
        if (step->text.failed || step->other.failed)
            return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    }
    return MOE_OK;
}

static int read_section(struct moe_tokenizer *tok, struct moe_cursor *c, struct moe_err *err)
{
    struct header h = {0};
    MOE_TRY(read_header(c, tok, &h, err));
    MOE_TRY(read_tokens(c, &h, tok, err));
    MOE_TRY(read_merges(c, &h, tok, err));
    MOE_TRY(read_scores(c, &h, tok, err));
    MOE_TRY(read_steps(c, h.n_normalizer, &tok->normalizer, err));
    MOE_TRY(read_steps(c, h.n_pre, &tok->pre_tokenizer, err));
    if (moe_cursor_left(c))
        return moe_fail(err, MOE_ERR_FORMAT, "%llu bytes follow the tokenizer's end",
                        (unsigned long long)moe_cursor_left(c));
    return moe_tokenizer_prepare(tok, err);
}

int moe_tokenizer_read(struct moe_tokenizer **out, const char *name, const void *data, uint64_t n,
                       struct moe_err *err)
{
    struct moe_err why = {0};
    struct moe_tokenizer *tok = moe_tokenizer_new(&why);
    struct moe_cursor c = moe_cursor_over(data, n);
    int status = tok ? read_section(tok, &c, &why) : MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        *out = tok;
        return MOE_OK;
    }
    moe_tokenizer_free(tok);
    return moe_fail(err, status, "%s: tokenizer: %s", name, why.text);
}
