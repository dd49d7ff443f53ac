/* Mean nats per token of a text, by documents or by windows. */
#include "tune/perplexity.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "infer/forward.h"
#include "tune/answers.h"

enum { DEFAULT_DOC_TOKENS = 256 };

#define MAX_WINDOWS_BYTES (UINT64_C(4) << 30)

struct scorer {
    struct moe_session *s;
    const struct moe_perplexity_options *options;
    struct moe_scores scores;
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
        status = moe_score_rows(&sc->scores, from, n_scored, ids + done + from + 1, sc->nats,
                                sc->best, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t k = 0; k < n_scored; k++) {
            sc->sum += sc->nats[k];
            sc->n_tokens++;
            if (sc->options->token)
                sc->options->token(sc->options->ctx, sc->nats[k], sc->best[k]);
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
    if (options->window)
        return survey_windows(path, options, model->tokenizer, room, bytes, err);
    int status = moe_documents_survey(&documents, &path, 1, room->may_hold, &size, err);
    *bytes = size.bytes;
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
    return status == MOE_OK && sc->options->answers ? open_answers(sc, err) : status;
}

int moe_perplexity(struct moe_session *s, const char *path,
                   const struct moe_perplexity_options *options, struct moe_perplexity *out,
                   struct moe_err *err)
{
    double started = moe_seconds();
    struct scorer sc = {.s = s, .options = options};
    struct moe_buf text = {0};
    struct moe_left_out left_out = {0};
    bool pairs = s->model->config.n_encoder > 0;
    int status;
    MOE_STEP(open_scorer(&sc, err));
    if (pairs ? options->window > 0 : options->answers)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          pairs ? "a file of pairs has no windows"
                                : "only answers of a model with an encoder are judged"));
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
    if (status == MOE_OK)
        *out = (struct moe_perplexity){
            .nll = sc.sum / (double)sc.n_tokens,
            .n_tokens = sc.n_tokens,
            .n_documents = sc.n_documents,
            .left_out = left_out,
            .rouge2 = options->answers ? sc.rouge2 / (double)sc.n_documents : -1,
            .accuracy = options->answers ? (double)sc.n_right / (double)sc.n_documents : -1,
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
