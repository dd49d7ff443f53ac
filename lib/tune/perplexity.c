/* Mean nats per token of a text, by documents or by windows. */
#include "tune/perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "infer/forward.h"
#include "tune/answers.h"

enum { DEFAULT_DOC_TOKENS = 256 };

#define MAX_WINDOWS_BYTES (UINT64_C(4) << 30)

/*
 * A file of predictions: "moe logits 1" and the size of the vocabulary (u32), then for each
 * predicted token its id, its place in its text, the most likely one's id (u32 each), and of each
 * token of the vocabulary how far its logit lies below the greatest (f16).
 */
enum { MAGIC_BYTES = 12, HEAD_BYTES = 16, ROW_HEAD_BYTES = 12 };
static const char magic[MAGIC_BYTES + 1] = "moe logits 1";

struct predictions {
    const char *path; /* NULL: there is no such file */
    bool reads;
    struct moe_outfile out;
    int fd;
    uint64_t at, size, row_bytes;
    uint32_t vocab;
    uint8_t *rows; /* [n_logits][row_bytes] */
    /* Of the rows that are looked at. */
    const float *logits;
    uint64_t stride;
    const uint32_t *targets;
    uint32_t place;      /* of the first of them in its text */
    double *divergences; /* [batch] of those since the pass began; n_seen */
    uint32_t n_seen;
    double sum, squares;
    uint64_t n_same;
};

struct scorer {
    struct moe_session *s;
    const struct moe_perplexity_options *options;
    struct moe_scores scores;
    struct predictions predictions;
    struct moe_row *rows; /* [batch] */
    double *nats;         /* [batch] */
    uint32_t *best;       /* [batch] */
    double sum;
    uint64_t n_tokens, n_documents;
    struct moe_answers answers; /* one, of the pair at work */
    void *answers_block;        /* holds its arrays */
    double rouge2;              /* sums */
    uint64_t n_right;
};

/* ---- Predictions in a file ---- */

static uint32_t likeliest(const float *logits, uint32_t n)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[top])
            top = i;
    return top;
}

static void note_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct predictions *p = ctx;
    for (int64_t r = begin; r < end; r++) {
        const float *logits = p->logits + (uint64_t)r * p->stride;
        uint8_t *row = p->rows + (uint64_t)r * p->row_bytes;
        const uint32_t top = likeliest(logits, p->vocab);
        moe_put_u32(row, p->targets[r]);
        moe_put_u32(row + 4, p->place + (uint32_t)r);
        moe_put_u32(row + 8, top);
        for (uint32_t i = 0; i < p->vocab; i++) {
            const float gap = logits[top] - logits[i];
            moe_put_u16(row + ROW_HEAD_BYTES + 2 * (uint64_t)i,
                        moe_f32_to_f16(gap < 65504 ? gap : 65504));
        }
    }
}

/* With gaps g of the file's logits and h of the session's: the sum of p (h - g), and the difference
 * of the logarithms of what exp(-h) and exp(-g) add up to. */
static void compare_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct predictions *p = ctx;
    for (int64_t r = begin; r < end; r++) {
        const float *logits = p->logits + (uint64_t)r * p->stride;
        const uint8_t *row = p->rows + (uint64_t)r * p->row_bytes + ROW_HEAD_BYTES;
        const double top = (double)logits[likeliest(logits, p->vocab)];
        double theirs = 0, ours = 0, apart = 0;
        for (uint32_t i = 0; i < p->vocab; i++) {
            const double g = (double)moe_f16_to_f32(moe_get_u16(row + 2 * (uint64_t)i));
            const double h = top - (double)logits[i], share = exp(-g);
            theirs += share;
            ours += exp(-h);
            apart += share > 0 ? share * (h - g) : 0;
        }
        p->divergences[p->n_seen + r] = apart / theirs + log(ours) - log(theirs);
    }
}

/* Whether the gaps of a row are finite, none is below 0, and the likeliest token's is 0. */
static bool is_prediction(const struct predictions *p, const uint8_t *row)
{
    enum { F16_LARGEST = 0x7bff };
    const uint32_t top = moe_get_u32(row + 8);
    const uint8_t *gaps = row + ROW_HEAD_BYTES;
    if (top >= p->vocab || moe_get_u16(gaps + 2 * (uint64_t)top) != 0)
        return false;
    for (uint32_t i = 0; i < p->vocab; i++)
        if (moe_get_u16(gaps + 2 * (uint64_t)i) > F16_LARGEST)
            return false;
    return true;
}

/* Reads the rows that the file has for these targets. */
static int read_predicted(struct predictions *p, uint32_t n, struct moe_err *err)
{
    if (p->size - p->at < n * p->row_bytes)
        return moe_fail(err, MOE_ERR_USAGE, "%s: has predictions of fewer tokens than these texts",
                        p->path);
    MOE_TRY(moe_file_pread(p->fd, p->path, p->rows, n * p->row_bytes, p->at, err));
    for (uint32_t r = 0; r < n; r++) {
        const uint8_t *row = p->rows + r * p->row_bytes;
        if (moe_get_u32(row) != p->targets[r] || moe_get_u32(row + 4) != p->place + r)
            return moe_fail(err, MOE_ERR_USAGE,
                            "%s: has predictions of other texts, or of other windows of them",
                            p->path);
        if (!is_prediction(p, row))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: is damaged: make it again with --logits",
                            p->path);
    }
    return MOE_OK;
}

static int look_at_rows(void *ctx, const float *logits, uint64_t stride, uint32_t n,
                        const uint32_t *targets, struct moe_err *err)
{
    struct predictions *p = ctx;
    p->logits = logits;
    p->stride = stride;
    p->targets = targets;
    if (p->reads) {
        MOE_TRY(read_predicted(p, n, err));
        moe_par_for(n, 4, compare_rows, p);
        for (uint32_t r = 0; r < n; r++) {
            const double d = p->divergences[p->n_seen++];
            p->sum += d;
            p->squares += d * d;
            p->n_same += moe_get_u32(p->rows + r * p->row_bytes + 8) ==
                         likeliest(logits + r * stride, p->vocab);
        }
    } else {
        moe_par_for(n, 4, note_rows, p);
        MOE_TRY(moe_outfile_write(&p->out, p->rows, n * p->row_bytes, p->at, err));
    }
    p->at += n * p->row_bytes;
    p->place += n;
    return MOE_OK;
}

static int read_head(struct predictions *p, const char *model, struct moe_err *err)
{
    uint8_t head[HEAD_BYTES] = {0};
    p->fd = moe_file_open(p->path, &p->size, err);
    if (p->fd < 0)
        return p->fd;
    if (p->size >= HEAD_BYTES)
        MOE_TRY(moe_file_pread(p->fd, p->path, head, HEAD_BYTES, 0, err));
    if (memcmp(head, magic, MAGIC_BYTES) != 0)
        return moe_file_refuse(p->fd, p->path, "a file of moe-run --logits", err);
    if (moe_get_u32(head + MAGIC_BYTES) != p->vocab)
        return moe_fail(err, MOE_ERR_USAGE, "%s: has predictions of %u tokens, %s has %u", p->path,
                        moe_get_u32(head + MAGIC_BYTES), model, p->vocab);
    return MOE_OK;
}

static int open_predictions(struct scorer *sc, struct moe_err *err)
{
    struct predictions *p = &sc->predictions;
    uint8_t head[HEAD_BYTES];
    p->reads = sc->options->against != NULL;
    p->vocab = sc->s->model->config.vocab;
    p->row_bytes = ROW_HEAD_BYTES + 2 * (uint64_t)p->vocab;
    p->at = HEAD_BYTES;
    if (p->reads)
        p->path = sc->options->against;
    if (p->reads)
        MOE_TRY(read_head(p, moe_pack_path(sc->s->model->pack), err));
    p->rows = moe_alloc(sc->scores.n_logits, p->row_bytes, err);
    p->divergences = moe_alloc(sc->s->batch, sizeof *p->divergences, err);
    if (!p->rows || !p->divergences)
        return MOE_ERR_MEMORY;
    sc->scores.look = look_at_rows;
    sc->scores.ctx = p;
    if (p->reads)
        return MOE_OK;
    MOE_TRY(moe_outfile_open_text(&p->out, sc->options->logits, err));
    p->path = sc->options->logits;
    memcpy(head, magic, MAGIC_BYTES);
    moe_put_u32(head + MAGIC_BYTES, p->vocab);
    return moe_outfile_write(&p->out, head, HEAD_BYTES, 0, err);
}

static int close_predictions(struct predictions *p, int status, struct moe_err *err)
{
    if (status == MOE_OK && p->reads && p->at < p->size)
        status = moe_fail(err, MOE_ERR_USAGE, "%s: has predictions of more tokens than these texts",
                          p->path);
    if (p->reads && p->fd >= 0)
        close(p->fd);
    if (p->path && !p->reads)
        status = moe_outfile_end(&p->out, status, err);
    free(p->rows);
    free(p->divergences);
    return status;
}

/* ---- Scoring ---- */

/* Runs ids[0..n) as one text; scores the predictions of ids[first_scored..n). */
static int score_text(struct scorer *sc, const uint32_t *ids, uint64_t n, uint64_t first_scored,
                      struct moe_err *err)
{
    struct moe_session *s = sc->s;
    uint64_t n_prompt = n - (uint64_t)(sc->options->decode_share * (double)n);
    for (uint64_t done = 0; done + 1 < n;) {
        enum moe_phase phase = done < n_prompt ? MOE_PREFILL : MOE_DECODE;
        uint64_t left = n - 1 - done; /* the last token predicts nothing */
        if (phase == MOE_DECODE)
            left = 1;
        else if (n_prompt - done < left)
            left = n_prompt - done;
        uint32_t n_rows = left < s->batch ? (uint32_t)left : s->batch;
        /* A text that is scored has no prompt that sees all of itself. */
        uint32_t length = s->model->config.prefix_lm ? 0 : (uint32_t)(n - 1);
        for (uint32_t i = 0; i < n_rows; i++)
            sc->rows[i] = (struct moe_row){0, (uint32_t)(done + i), ids[done + i], length};
        int status = moe_forward(s, phase, sc->rows, n_rows, s->model->config.n_encoder,
                                 s->model->config.n_layers, NULL, NULL, err);
        if (status != MOE_OK)
            return status;
        uint32_t from = done + 1 < first_scored ? (uint32_t)(first_scored - 1 - done) : 0;
        uint32_t n_scored = from < n_rows ? n_rows - from : 0;
        sc->predictions.n_seen = 0;
        sc->predictions.place = (uint32_t)done + from + 1;
        status = moe_score_rows(&sc->scores, from, n_scored, ids + done + from + 1, sc->nats,
                                sc->best, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t k = 0; k < n_scored; k++) {
            sc->sum += sc->nats[k];
            sc->n_tokens++;
            if (sc->options->token)
                sc->options->token(sc->options->ctx, sc->nats[k], sc->best[k],
                                   sc->options->against ? sc->predictions.divergences[k] : 0);
        }
        done += n_rows;
    }
    sc->n_documents++;
    return MOE_OK;
}

/* ---- Pairs ---- */

static int score_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct scorer *sc = ctx;
    for (uint32_t i = 0; i < pair->n_source; i++)
        sc->rows[i] =
            (struct moe_row){.position = i, .token = pair->source[i], .length = pair->n_source};
    MOE_TRY(moe_encode(sc->s, sc->rows, pair->n_source, NULL, err));
    MOE_TRY(score_text(sc, pair->target, pair->n_target, 1, err));
    if (!sc->options->answers)
        return MOE_OK;
    struct moe_answer_quality quality;
    sc->answers.begins[0] =
        moe_answers_begin(sc->s->model->tokenizer, pair->target, pair->n_target);
    MOE_TRY(moe_answers_write(&sc->answers, &sc->scores, 1, err));
    MOE_TRY(moe_answers_judge(&sc->answers, sc->s->model->tokenizer, 0, pair->target_text, &quality,
                              err));
    sc->rouge2 += quality.rouge2;
    sc->n_right += quality.right;
    return MOE_OK;
}

/* ---- The two ways to cut a file ---- */

static int score_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    return score_text(ctx, ids, n, 1, err);
}

/* A whole file on its way through windows. */
struct windows {
    struct scorer *sc;
    bool bos;
    uint64_t n_bytes, done_bytes; /* of the text, and of the windows that are done */
};

/* Scores the windows that are complete, and removes them. */
static int take_windows(void *ctx, struct moe_ids *ids, struct moe_err *err)
{
    struct windows *w = ctx;
    struct scorer *sc = w->sc;
    const struct moe_tokenizer *tok = sc->s->model->tokenizer;
    uint32_t window = sc->options->window;
    uint64_t i = 0;
    int status = MOE_OK;
    for (; i + window <= ids->n && status == MOE_OK; i += window) {
        if (w->bos)
            ids->ids[i] = (uint32_t)moe_tokenizer_bos(tok);
        status = score_text(sc, ids->ids + i, window, window / 2 + 1, err);
        for (uint32_t k = 0; k < window; k++) {
            uint32_t length;
            moe_tokenizer_bytes(tok, ids->ids[i + k], &length);
            w->done_bytes += length;
        }
        moe_progress_report(sc->options->progress, "perplexity",
                            w->done_bytes < w->n_bytes ? w->done_bytes : w->n_bytes, w->n_bytes);
        if (status == MOE_OK && moe_progress_stopped(sc->options->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    ids->n -= i;
    memmove(ids->ids, ids->ids + i, ids->n * sizeof *ids->ids);
    return status;
}

static int score_windows(struct scorer *sc, const char *path, const char *text, uint64_t n,
                         struct moe_err *err)
{
    const struct moe_tokenizer *tok = sc->s->model->tokenizer;
    uint32_t window = sc->options->window;
    struct windows w = {
        .sc = sc,
        .bos = moe_tokenizer_adds_bos(tok) && moe_tokenizer_bos(tok) >= 0,
        .n_bytes = n,
    };
    struct moe_ids ids = {0};
    if (window < 2 || window > sc->s->context)
        return moe_fail(err, MOE_ERR_USAGE, "a window of %u tokens does not work: 2 to %u do",
                        window, sc->s->context);
    int status;
    MOE_STEP(w.bos ? moe_ids_push(&ids, (uint32_t)moe_tokenizer_bos(tok), err) : MOE_OK);
    MOE_STEP(moe_tokenizer_encode_parts(tok, text, n, window, take_windows, &w, &ids, err));
    if (sc->n_documents == 0)
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT, "%s: %llu tokens are less than one window of %u",
                          path, (unsigned long long)ids.n, window));
out:
    moe_ids_release(&ids);
    return status;
}

/* ---- Entry ---- */

static struct moe_documents documents_of(const struct moe_perplexity_options *options,
                                         const struct moe_model *model, uint32_t context)
{
    uint32_t limit = options->max_doc_tokens ? options->max_doc_tokens : DEFAULT_DOC_TOKENS;
    return (struct moe_documents){
        .tokenizer = model->tokenizer,
        .max_tokens = limit < context ? limit : context,
        .max_windows = options->max_windows,
        .pairs = model->config.n_encoder > 0,
        .decoder_start = model->config.decoder_start,
        .answer_start = model->config.answer_start,
        .what = "perplexity",
        .progress = options->progress,
    };
}

/* A file in windows is one text, and whole in memory. */
static int survey_windows(const char *path, const struct moe_perplexity_options *options,
                          const struct moe_tokenizer *tok, const struct moe_engine_room *room,
                          uint64_t *bytes, struct moe_err *err)
{
    struct moe_tokenizer_survey survey = {.longest_piece = UINT64_MAX};
    struct moe_buf text = {0};
    uint64_t n = 0;
    int fd = moe_file_open(path, &n, err), status = fd < 0 ? fd : MOE_OK;
    if (fd >= 0)
        close(fd);
    if (status == MOE_OK && n <= room->may_hold) {
        status = moe_file_read_all(path, MAX_WINDOWS_BYTES, &text, err);
        if (status == MOE_OK)
            status = moe_tokenizer_look(tok, (const char *)text.data, text.size, UINT64_MAX,
                                        &survey, err);
        moe_buf_release(&text);
    }
    uint64_t piece = survey.longest_piece < n ? survey.longest_piece : n;
    *bytes = n + moe_tokenizer_memory(tok, n, survey.longest_piece) +
             2 * (options->window + piece) * sizeof(uint32_t);
    return status;
}

int moe_perplexity_survey(const char *path, const struct moe_perplexity_options *options,
                          const struct moe_model *model, const struct moe_engine_room *room,
                          uint64_t *bytes, struct moe_err *err)
{
    const struct moe_documents documents = documents_of(options, model, room->context);
    struct moe_documents_size size;
    int status = options->window
                     ? survey_windows(path, options, model->tokenizer, room, bytes, err)
                     : moe_documents_survey(&documents, &path, 1, room->may_hold, &size, err);
    if (!options->window)
        *bytes = size.bytes;
    if (options->logits || options->against) /* a row takes less than that of its logits */
        *bytes += moe_scores_bytes(&model->config, UINT32_MAX);
    return status;
}

static int open_answers(struct scorer *sc, struct moe_err *err)
{
    const struct moe_documents documents = documents_of(sc->options, sc->s->model, sc->s->context);
    struct moe_arena arena = {0};
    moe_answers_carve(&sc->answers, &arena, 1, documents.max_tokens);
    sc->answers_block = moe_alloc(arena.used, 1, err);
    arena = (struct moe_arena){.base = sc->answers_block, .size = arena.used};
    if (!sc->answers_block)
        return MOE_ERR_MEMORY;
    moe_answers_carve(&sc->answers, &arena, 1, documents.max_tokens);
    return MOE_OK;
}

static int open_scorer(struct scorer *sc, struct moe_err *err)
{
    sc->rows = moe_alloc(sc->s->batch, sizeof *sc->rows, err);
    sc->nats = moe_alloc(sc->s->batch, sizeof *sc->nats, err);
    sc->best = moe_alloc(sc->s->batch, sizeof *sc->best, err);
    int status = sc->rows && sc->nats && sc->best ? moe_scores_open(&sc->scores, sc->s, err)
                                                  : MOE_ERR_MEMORY;
    if (status == MOE_OK && (sc->options->logits || sc->options->against))
        status = open_predictions(sc, err);
    return status == MOE_OK && sc->options->answers ? open_answers(sc, err) : status;
}

int moe_perplexity(struct moe_session *s, const char *path,
                   const struct moe_perplexity_options *options, struct moe_perplexity *out,
                   struct moe_err *err)
{
    double started = moe_seconds();
    struct scorer sc = {.s = s, .options = options, .predictions = {.fd = -1}};
    struct moe_buf text = {0};
    struct moe_left_out left_out = {0};
    bool pairs = s->model->config.n_encoder > 0;
    int status;
    MOE_STEP(open_scorer(&sc, err));
    if (pairs ? options->window > 0 : options->answers)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          pairs ? "a file of pairs has no windows"
                                : "only answers of a model with an encoder are judged"));
    if (options->answers && (options->logits || options->against))
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          "predictions are kept and compared without answers to judge"));
    if (options->window) {
        MOE_STEP(moe_file_read_all(path, MAX_WINDOWS_BYTES, &text, err));
        MOE_STEP(score_windows(&sc, path, (const char *)text.data, text.size, err));
    } else {
        struct moe_documents documents = documents_of(options, s->model, s->context);
        documents.left_out = &left_out;
        MOE_STEP(documents.pairs ? moe_pairs_each(&documents, path, score_pair, &sc, err)
                                 : moe_documents_each(&documents, path, score_document, &sc, err));
    }
    if (sc.n_tokens == 0)
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT, "%s: has no text to predict", path));
    if (!isfinite(sc.sum))
        MOE_STEP(moe_fail(err, MOE_ERR_FORMAT,
                          "%s: the cost of %s is not a number: its weights give logits that are "
                          "not (damaged checkpoint?)",
                          moe_pack_path(s->model->pack), path));
out:
    status = close_predictions(&sc.predictions, status, err);
    const double n = (double)sc.n_tokens, mean = sc.predictions.sum / n;
    if (status == MOE_OK)
        *out = (struct moe_perplexity){
            .nll = sc.sum / n,
            .n_tokens = sc.n_tokens,
            .n_documents = sc.n_documents,
            .left_out = left_out,
            .rouge2 = options->answers ? sc.rouge2 / (double)sc.n_documents : -1,
            .accuracy = options->answers ? (double)sc.n_right / (double)sc.n_documents : -1,
            .divergence = mean,
            .divergence_error = sqrt(fmax(sc.predictions.squares / n - mean * mean, 0) / n),
            .same_top = (double)sc.predictions.n_same / n,
            .seconds = moe_seconds() - started,
        };
    moe_buf_release(&text);
    moe_answers_release(&sc.answers);
    free(sc.answers_block);
    free(sc.rows);
    moe_scores_close(&sc.scores);
    free(sc.nats);
    free(sc.best);
    return status;
}
