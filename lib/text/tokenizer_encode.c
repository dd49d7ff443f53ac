/*
 * Text to ids. Added tokens are cut out, the text between them goes through the normalizer and the
 * pre-tokenizer, and every piece is merged. Bytes that are not UTF-8 are separate pieces: the
 * normalizer and the patterns only get valid text.
 */
#include <string.h>

#include "base/text.h"
#include "text/internal.h"

struct encoder {
    const struct moe_tokenizer *tok;
    bool special;     /* special tokens count, outside of `words` */
    const char *text; /* the whole text */
    const struct moe_span *words;
    uint64_t n_words, next_word; /* next_word: the first that does not end before this place */
    struct moe_ids *out;
    uint64_t enough; /* ids in `out` at which `take` is called */
    int (*take)(void *ctx, struct moe_ids *ids, struct moe_err *err);
    void *ctx;
    struct moe_tokenizer_survey *survey; /* not NULL: pieces are only measured, not merged */
    struct moe_bpe_scratch scratch;
    struct moe_unigram_scratch places;
    double score; /* the piece's score up to its next word */
    struct moe_pretokenizer pre;
    struct moe_buf normal;
    bool at_start; /* the text begins with what is being encoded */
};

/* ---- One piece ---- */

static int no_token(uint8_t byte, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_UNSUPPORTED, "the tokenizer has no token for byte 0x%02x", byte);
}

static int start_from_bytes(struct encoder *e, const uint8_t *piece, uint64_t n,
                            struct moe_err *err)
{
    const struct moe_tokenizer *tok = e->tok;
    uint32_t *ids = e->out->ids;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t id = tok->byte_ids[piece[i]];
        if (id == MOE_NO_TOKEN)
            id = tok->unk;
        if (id == MOE_NO_TOKEN)
            return no_token(piece[i], err);
        ids[e->out->n++] = id;
    }
    return MOE_OK;
}

static int add_character(struct encoder *e, const uint8_t *text, int n, bool *was_unknown,
                         struct moe_err *err)
{
    const struct moe_tokenizer *tok = e->tok;
    uint32_t *ids = e->out->ids, id = moe_tokenizer_lookup(tok, text, (uint64_t)n);
    bool fuse = *was_unknown && tok->flags & MOE_TOKENIZER_FUSE_UNK;
    *was_unknown = false;
    if (id != MOE_NO_TOKEN) {
        ids[e->out->n++] = id;
        return MOE_OK;
    }
    if (moe_tokenizer_has_bytes(tok, text, (uint64_t)n)) {
        for (int i = 0; i < n; i++)
            ids[e->out->n++] = tok->byte_ids[text[i]];
        return MOE_OK;
    }
    if (tok->unk == MOE_NO_TOKEN)
        return no_token(text[0], err);
    *was_unknown = true;
    if (!fuse)
        ids[e->out->n++] = tok->unk;
    return MOE_OK;
}

static int start_from_characters(struct encoder *e, const uint8_t *piece, uint64_t n,
                                 struct moe_err *err)
{
    bool was_unknown = false;
    int length = 0;
    for (uint64_t at = 0; at < n; at += (uint64_t)length) {
        moe_utf8_decode(piece + at, n - at, &length);
        MOE_TRY(add_character(e, piece + at, length, &was_unknown, err));
    }
    return MOE_OK;
}

static int merge_piece(struct encoder *e, const char *piece, uint64_t n, struct moe_err *err)
{
    const struct moe_tokenizer *tok = e->tok;
    uint64_t start = e->out->n;
    MOE_TRY(moe_ids_reserve(e->out, n, err));
    if (tok->model == MOE_TOKENIZER_SPELLINGS)
        return moe_spellings_encode(tok, (const uint8_t *)piece, n, e->out, err);
    if (tok->model == MOE_TOKENIZER_UNIGRAM)
        return moe_unigram_encode(tok, &e->places, (const uint8_t *)piece, n, &e->score, e->out,
                                  err);
    MOE_TRY(tok->model == MOE_TOKENIZER_BYTES
                ? start_from_bytes(e, (const uint8_t *)piece, n, err)
                : start_from_characters(e, (const uint8_t *)piece, n, err));
    uint64_t n_ids = e->out->n - start;
    MOE_TRY(moe_bpe_merge(&tok->bpe, &e->scratch, e->out->ids + start, &n_ids, err));
    e->out->n = start + n_ids;
    return MOE_OK;
}

/* The length of a word. A character model's piece is usually a whole text; cut into words, where
 * that changes nothing, it needs no large heap. */
static uint64_t word_length(const char *text, uint64_t n)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint64_t at = 0;
    while (moe_is_metaspace(bytes + at, n - at))
        at += 3;
    while (at < n && !moe_is_metaspace(bytes + at, n - at))
        at++;
    return at;
}

/* Passes on the final ids once there are enough. */
static int pushed(struct encoder *e, struct moe_err *err)
{
    uint64_t n = e->survey ? e->survey->least_ids : e->out->n;
    return n < e->enough ? MOE_OK : e->take(e->ctx, e->out, err);
}

static int push_id(struct encoder *e, uint32_t id, struct moe_err *err)
{
    if (e->survey)
        e->survey->least_ids++;
    else
        MOE_TRY(moe_ids_push(e->out, id, err));
    return pushed(e, err);
}

/* Each merged piece has at least one id. */
static void survey_piece(struct moe_tokenizer_survey *survey, uint64_t n)
{
    survey->least_ids++;
    survey->longest_piece = n > survey->longest_piece ? n : survey->longest_piece;
}

static int add_piece(void *ctx, const char *piece, uint64_t n, struct moe_err *err)
{
    struct encoder *e = ctx;
    const struct moe_tokenizer *tok = e->tok;
    if (tok->flags & MOE_TOKENIZER_IGNORE_MERGES) {
        uint32_t id = moe_tokenizer_lookup(tok, piece, n);
        if (id != MOE_NO_TOKEN && !(tok->token_flags[id] & (MOE_TOKEN_SPECIAL | MOE_TOKEN_BYTE)))
            return push_id(e, id, err);
    }
    e->score = 0;
    for (uint64_t at = 0, length; at < n; at += length) {
        length = tok->words_apart ? word_length(piece + at, n - at) : n;
        if (e->survey)
            survey_piece(e->survey, length);
        else
            MOE_TRY(merge_piece(e, piece + at, length, err));
        MOE_TRY(pushed(e, err));
    }
    return MOE_OK;
}

/* ---- Added tokens ---- */

/* Whether a single-word token may occupy [start, end) of the text. */
static bool is_apart(const uint8_t *text, uint64_t start, uint64_t end, uint64_t n)
{
    int length;
    uint64_t before = start ? moe_character_before(text, 0, start) : 0;
    return !(start && moe_is_word(moe_utf8_decode(text + before, start - before, &length))) &&
           !(end < n && moe_is_word(moe_utf8_decode(text + end, n - end, &length)));
}

static int encode_run(struct encoder *e, const char *text, uint64_t n, struct moe_err *err);

static int encode_normal(struct encoder *e, const char *text, uint64_t n, struct moe_err *err)
{
    MOE_TRY(moe_pretokenize(&e->pre, text, n, e->at_start, err));
    e->at_start = false;
    return MOE_OK;
}

/* Encodes the text between added tokens: runs of valid UTF-8, and single bytes that are not. */
static int encode_raw(struct encoder *e, const char *text, uint64_t n, struct moe_err *err)
{
    const uint8_t *bytes = (const uint8_t *)text;
    uint64_t start = 0, at = 0;
    while (at < n) {
        int length = 1;
        bool valid = bytes[at] < 0x80 || moe_utf8_decode(bytes + at, n - at, &length) != 0xfffd ||
                     length > 1;
        if (!valid) {
            MOE_TRY(at > start ? encode_run(e, text + start, at - start, err) : MOE_OK);
            MOE_TRY(add_piece(e, text + at, 1, err));
            e->at_start = false;
            start = at + 1;
        }
        at += (uint64_t)length;
    }
    if (n > start)
        MOE_TRY(encode_run(e, text + start, n - start, err));
    return MOE_OK;
}

/* How many of the n bytes at `at` in the whole text a special token may occupy. */
static uint64_t special_room(struct encoder *e, uint64_t at, uint64_t n)
{
    while (e->next_word < e->n_words && e->words[e->next_word].at + e->words[e->next_word].n <= at)
        e->next_word++;
    uint64_t until = e->next_word < e->n_words ? e->words[e->next_word].at : UINT64_MAX;
    if (!e->special || until <= at)
        return 0;
    return until - at < n ? until - at : n;
}

/* Cuts added tokens out of a text (level 0: as it is, 1: normalized) and encodes the rest. */
static int cut_added(struct encoder *e, int level, const char *text, uint64_t n,
                     struct moe_err *err)
{
    int (*rest)(struct encoder *, const char *, uint64_t, struct moe_err *) =
        level == 0 ? encode_raw : encode_normal;
    const struct moe_added *added = &e->tok->added[level];
    const uint8_t *bytes = (const uint8_t *)text;
    uint64_t done = 0;
    for (uint64_t at = 0; at < n && added->n;) {
        if (added->first[bytes[at]] == added->first[bytes[at] + 1]) {
            at++;
            continue;
        }
        /* In plain text a special token is skipped whole, including others that begin in it. */
        bool plain = !e->special;
        uint64_t room = level == 0 && !plain ? special_room(e, at, n - at) : n - at;
        const struct moe_added_token *token =
            moe_added_longest(e->tok, added, bytes + at, n - at, room);
        if (!token) {
            at++;
            continue;
        }
        if (plain && e->tok->token_flags[token->id] & MOE_TOKEN_SPECIAL) {
            at += token->n;
            continue;
        }
        uint64_t start = at, end = at + token->n;
        if (e->tok->token_flags[token->id] & MOE_TOKEN_SINGLE_WORD &&
            !is_apart(bytes, start, end, n)) {
            at = end;
            continue;
        }
        if (e->tok->token_flags[token->id] & MOE_TOKEN_LSTRIP)
            start = moe_white_before(bytes, done, start);
        if (e->tok->token_flags[token->id] & MOE_TOKEN_RSTRIP)
            end = moe_white_after(bytes, end, n);
        if (start > done)
            MOE_TRY(rest(e, text + done, start - done, err));
        MOE_TRY(push_id(e, token->id, err));
        e->at_start = false;
        at += token->n; /* white space that it took may be a token too, as in the library */
        done = end;
    }
    if (n > done)
        MOE_TRY(rest(e, text + done, n - done, err));
    return MOE_OK;
}

/* Encodes text without added tokens of level 0; special tokens of level 1 count if `special`. */
static int encode_part(struct encoder *e, const char *text, uint64_t n, bool special,
                       struct moe_err *err)
{
    const char *normal;
    uint64_t normal_n;
    bool before = e->special;
    MOE_TRY(moe_normalize(&e->tok->normalizer, text, n, &e->normal, &normal, &normal_n, err));
    e->special = special;
    MOE_TRY(cut_added(e, 1, normal, normal_n, err));
    e->special = before;
    return MOE_OK;
}

/* Whether the text contains a special token of level 1. */
static int find_marks(struct encoder *e, const char *text, uint64_t n, bool *found,
                      struct moe_err *err)
{
    const struct moe_added *added = &e->tok->added[1];
    const char *normal;
    uint64_t normal_n;
    MOE_TRY(moe_normalize(&e->tok->normalizer, text, n, &e->normal, &normal, &normal_n, err));
    *found = false;
    for (uint64_t at = 0; at < normal_n && !*found; at++) {
        const uint8_t *rest = (const uint8_t *)normal + at;
        const struct moe_added_token *token =
            moe_added_longest(e->tok, added, rest, normal_n - at, normal_n - at);
        *found = token && e->tok->token_flags[token->id] & MOE_TOKEN_SPECIAL;
    }
    return MOE_OK;
}

/*
 * Encodes a run of text and words. Normalizing loses track of where words begin and end, so words
 * are normalized with the text around them, unless they hold a special token: then they are encoded
 * separately. (A special token that begins outside of words and ends inside is not found: templates
 * do not end in half of one.)
 */
static int encode_run(struct encoder *e, const char *text, uint64_t n, struct moe_err *err)
{
    uint64_t start = (uint64_t)(text - e->text), end = start + n, done = start;
    for (uint64_t i = 0; e->special && e->tok->added[1].n && i < e->n_words; i++) {
        uint64_t from = e->words[i].at > done ? e->words[i].at : done;
        uint64_t to = e->words[i].at + e->words[i].n;
        bool marks = false;
        if (from >= end)
            break;
        to = to < end ? to : end;
        if (to > from)
            MOE_TRY(find_marks(e, e->text + from, to - from, &marks, err));
        if (marks && from > done)
            MOE_TRY(encode_part(e, e->text + done, from - done, true, err));
        if (marks)
            MOE_TRY(encode_part(e, e->text + from, to - from, false, err));
        done = marks ? to : done;
    }
    return done < end || n == 0 ? encode_part(e, e->text + done, end - done, e->special, err)
                                : MOE_OK;
}

static int encode(struct encoder *e, uint64_t n, struct moe_err *err)
{
    e->at_start = true;
    e->pre.steps = &e->tok->pre_tokenizer;
    e->pre.emit = add_piece;
    e->pre.ctx = e;
    e->enough = e->take ? e->enough : UINT64_MAX;
    uint64_t before = e->out ? e->out->n : 0;
    int status = cut_added(e, 0, e->text, n, err);
    if (status == MOE_TOKENIZER_ENOUGH)
        status = MOE_OK;
    if (status != MOE_OK && !e->take)
        e->out->n = before;
    moe_pretokenizer_release(&e->pre);
    moe_bpe_scratch_release(&e->scratch);
    moe_unigram_scratch_release(&e->places);
    moe_buf_release(&e->normal);
    return status;
}

int moe_tokenizer_encode(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                         bool parse_special, struct moe_ids *out, struct moe_err *err)
{
    struct encoder e = {.tok = tok, .special = parse_special, .text = text, .out = out};
    return encode(&e, n, err);
}

int moe_tokenizer_encode_whole(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                               bool parse_special, struct moe_ids *out, struct moe_err *err)
{
    if (moe_tokenizer_adds_bos(tok))
        MOE_TRY(moe_ids_push(out, tok->bos, err));
    MOE_TRY(moe_tokenizer_encode(tok, text, n, parse_special, out, err));
    if (tok->tail != MOE_NO_TOKEN)
        MOE_TRY(moe_ids_push(out, tok->tail, err));
    return MOE_OK;
}

int moe_tokenizer_encode_chat(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                              const struct moe_span *words, uint64_t n_words, struct moe_ids *out,
                              struct moe_err *err)
{
    struct encoder e = {
        .tok = tok, .special = true, .text = text, .words = words, .n_words = n_words, .out = out};
    return encode(&e, n, err);
}

/* ---- Parts of a text ---- */

int moe_tokenizer_encode_parts(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                               uint64_t enough,
                               int (*take)(void *ctx, struct moe_ids *ids, struct moe_err *err),
                               void *ctx, struct moe_ids *out, struct moe_err *err)
{
    struct encoder e = {
        .tok = tok, .text = text, .out = out, .enough = enough, .take = take, .ctx = ctx};
    return encode(&e, n, err);
}

static int stop_encoding(void *ctx, struct moe_ids *ids, struct moe_err *err)
{
    (void)ctx, (void)ids, (void)err;
    return MOE_TOKENIZER_ENOUGH;
}

int moe_tokenizer_encode_start(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                               uint64_t enough, struct moe_ids *out, struct moe_err *err)
{
    return moe_tokenizer_encode_parts(tok, text, n, out->n + enough, stop_encoding, NULL, out, err);
}

static int survey(struct encoder *e, uint64_t n, uint64_t enough, struct moe_tokenizer_survey *out,
                  struct moe_err *err)
{
    *out = (struct moe_tokenizer_survey){0};
    e->enough = enough;
    e->take = stop_encoding;
    e->survey = out;
    return encode(e, n, err);
}

int moe_tokenizer_look(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                       uint64_t enough, struct moe_tokenizer_survey *out, struct moe_err *err)
{
    return survey(&(struct encoder){.tok = tok, .text = text}, n, enough, out, err);
}

int moe_tokenizer_look_chat(const struct moe_tokenizer *tok, const char *text, uint64_t n,
                            const struct moe_span *words, uint64_t n_words, uint64_t enough,
                            struct moe_tokenizer_survey *out, struct moe_err *err)
{
    struct encoder e = {
        .tok = tok, .special = true, .text = text, .words = words, .n_words = n_words};
    return survey(&e, n, enough, out, err);
}

uint64_t moe_tokenizer_memory(const struct moe_tokenizer *tok, uint64_t n, uint64_t longest_piece)
{
    uint64_t most = n;
    uint64_t copies = moe_steps_memory(&tok->normalizer, &most);
    copies += moe_steps_memory(&tok->pre_tokenizer, &most);
    uint64_t piece = longest_piece < most ? longest_piece : most;
    return copies + (tok->model == MOE_TOKENIZER_UNIGRAM ? moe_unigram_scratch_bytes(piece)
                                                         : moe_bpe_scratch_bytes(piece));
}
