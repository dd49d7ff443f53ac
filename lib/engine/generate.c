/* Generation of one text, and sources encoded before it. */
#include "engine/generate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/beams.h"
#include "engine/drafting.h"
#include "engine/prompt.h"
#include "infer/forward.h"
#include "infer/stages.h"

/* ---- Source ---- */

/* Has the encoder read it, as source 0, in one pass. */
static int encode_source(struct moe_session *s, const struct moe_generate_options *o,
                         struct moe_err *err)
{
    int status = moe_check_source(s, o->n_source, err);
    if (status != MOE_OK)
        return status;
    struct moe_row *rows = moe_alloc(o->n_source, sizeof *rows, err);
    if (!rows)
        return MOE_ERR_MEMORY;
    moe_source_rows(rows, 0, o->source, (uint32_t)o->n_source);
    status = moe_encode(s, rows, (uint32_t)o->n_source, NULL, err);
    free(rows);
    moe_sequence_attend(s, 0, 0);
    s->stats.prompt_tokens += o->n_source;
    return status;
}

/* ---- Prompt ---- */

/* A recurrent state that stands elsewhere. And LongRoPE: a text that has grown beyond the original
 * context has other frequencies than the rows in the cache, and so has a shorter one after it: all
 * of it is computed again, as the code published with Phi-3.5-MoE does. So a token depends on the
 * text before it alone. */
static void forget_other_states(struct moe_session *s, const struct moe_ids *history,
                                uint64_t *n_done)
{
    uint32_t original = s->model->config.rope_original;
    if (original && s->far != (history->n > original))
        *n_done = 0;
    *n_done = moe_sequence_back(s, 0, (uint32_t)*n_done);
}

/* Computes history[*n_done..end) in batches; *last is the last token's row in the last batch. */
static int compute_until(struct moe_session *s, const struct moe_ids *history, uint64_t *n_done,
                         uint64_t end, const struct moe_generate_options *options, uint32_t *last,
                         struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    uint64_t n_new = end - *n_done;
    /* A decoder's first token is no prompt: that was the source. */
    bool prompt = n_new > 1 || (*n_done == 0 && c->n_encoder == 0);
    struct moe_row *rows = moe_alloc(s->batch, sizeof *rows, err);
    if (!rows)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    while (*n_done < end && status == MOE_OK) {
        uint32_t n_read;
        uint64_t left = end - *n_done;
        uint32_t n = left < s->batch ? (uint32_t)left : s->batch;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, (uint32_t)(*n_done + i), history->ids[*n_done + i],
                                       (uint32_t)history->n};
        if (n_new > s->batch)
            moe_progress_report(options->progress, "reading the prompt", n_new - left, n_new);
        if (options->stop && *options->stop)
            status = MOE_ERR_INTERRUPTED;
        else
            status = moe_drafting_read(s, history, *n_done, &n_read, err);
        if (status == MOE_OK)
            status = moe_forward(s, prompt ? MOE_PREFILL : MOE_DECODE, rows, n, c->n_encoder,
                                 c->n_layers, NULL, NULL, err);
        if (status == MOE_OK) {
            *n_done += n;
            *last = n - 1;
        }
    }
    free(rows);
    return status;
}

static int compute_pending(struct moe_session *s, const struct moe_ids *history, uint64_t *n_done,
                           const struct moe_generate_options *options, uint32_t *last,
                           struct moe_err *err)
{
    return compute_until(s, history, n_done, history->n, options, last, err);
}

/* The prompt, of which all but the last token may be wanted before the states go on. */
static int compute_prompt(struct moe_session *s, const struct moe_ids *history, uint64_t *n_done,
                          const struct moe_generate_options *options, uint32_t *last,
                          struct moe_err *err)
{
    int status = MOE_OK;
    if (options->read && s->stands && *n_done + 1 < history->n) {
        status = compute_until(s, history, n_done, history->n - 1, options, last, err);
        if (status == MOE_OK)
            status = options->read(options->read_ctx, err);
    }
    return status == MOE_OK ? compute_pending(s, history, n_done, options, last, err) : status;
}

/* ---- Drafts ---- */

/* Has the text's last token computed, so that the next token's logits are those of row *last: it
 * may be in the last pass as a draft that was right. */
static int compute_next(struct moe_session *s, const struct moe_ids *history, uint64_t *n_done,
                        const struct moe_answer *answer, struct moe_drafting *d, float *logits,
                        uint32_t *last, struct moe_err *err)
{
    const struct moe_generate_options *options = answer->options;
    const uint64_t done = *n_done;
    bool one = history->n == done + 1;
    if (one && moe_draft_judge(&d->draft, history->ids[done])) {
        ++*n_done;
        ++*last;
        s->stats.accepted_tokens++;
        s->stats.decode.tokens++;
        return MOE_OK;
    }
    d->draft.n = 0;
    forget_other_states(s, history, n_done);
    if (!one || (options->stop && *options->stop))
        return compute_pending(s, history, n_done, options, last, err);
    int status = MOE_OK;
    const uint32_t n_again = (uint32_t)(done - *n_done);
    if (d->draft.most)
        status = moe_drafting_make(d, s, history,
                                   moe_drafting_room(answer, history, s->batch, n_again, s->far),
                                   logits, err);
    if (status != MOE_OK)
        return status;
    bool back = *n_done > 0 && *n_done < done && done - *n_done <= 2 * MOE_DRAFT_MOST;
    return d->draft.n || back ? moe_drafting_compute(d, s, history, n_done, last, err)
                              : compute_pending(s, history, n_done, options, last, err);
}

/* ---- Generation ---- */

/* The token after row `last` of the pass, unless the answer ends before it. */
static int next_token(struct moe_session *s, struct moe_sampler *sampler,
                      const struct moe_ids *history, uint32_t last, struct moe_answer *answer,
                      float *logits, uint32_t *id, struct moe_err *err)
{
    const struct moe_generate_options *o = answer->options;
    if (s->stages->greedy && moe_sampler_is_greedy(sampler) && !o->token && !o->constraint)
        return moe_greedy(s, last, id, err);
    int status = moe_logits(s, last, 1, logits, err);
    if (status == MOE_OK)
        status = moe_answer_draw(answer, sampler, logits, history, id, err);
    return status;
}

/* Samples until something ends the answer; the next logits are those of row `last` of the pass. */
static int generate_loop(struct moe_session *s, struct moe_sampler *sampler,
                         struct moe_ids *history, uint64_t *n_done, struct moe_answer *answer,
                         float *logits, uint32_t last, struct moe_err *err)
{
    const struct moe_generate_options *options = answer->options;
    struct moe_drafting drafting;
    int status = MOE_OK;
    moe_drafting_begin(&drafting, options->draft, options->draft_ahead);
    for (bool first = true; status == MOE_OK && !answer->ended; first = false) {
        uint32_t id;
        uint64_t n_before = answer->n_tokens;
        status = next_token(s, sampler, history, last, answer, logits, &id, err);
        if (status != MOE_OK || answer->ended)
            return status;
        if (first)
            s->stats.ttft_seconds = moe_seconds() - options->started;
        status = moe_answer_take(answer, id, logits, history, err);
        s->stats.generated_tokens += answer->n_tokens - n_before;
        if (status == MOE_OK && answer->ended && answer->why == MOE_STOP_CONTEXT && options->full) {
            bool more = false;
            status = options->full(options->ctx, &more, err);
            answer->ended = !more;
        }
        if (status != MOE_OK || answer->ended)
            return status;
        if (!drafting.draft.n) /* else the states stand where they should if it is right */
            forget_other_states(s, history, n_done);
        status = compute_next(s, history, n_done, answer, &drafting, logits, &last, err);
        if (status == MOE_ERR_INTERRUPTED) {
            answer->ended = true;
            answer->why = MOE_STOP_USER;
            return MOE_OK;
        }
    }
    return status;
}

int moe_generate(struct moe_session *s, struct moe_sampler *sampler, struct moe_ids *history,
                 uint64_t *n_done, const struct moe_generate_options *options,
                 enum moe_stop_reason *why, struct moe_err *err)
{
    if (history->n <= *n_done)
        return moe_fail(err, MOE_ERR_USAGE, "the prompt is empty");
    if (history->n > s->context)
        return moe_prompt_too_long(&s->model->config, history->n, false, s->context, err);
    if (options->beams.n && options->constraint)
        return moe_fail(err, MOE_ERR_USAGE,
                        "a search with beams follows no grammar: leave one of them out");
    struct moe_answer answer;
    uint32_t last = 0;
    int status = moe_drafting_check(s, options, err);
    if (status != MOE_OK)
        return status;
    moe_sequence_prompted(s, 0, (uint32_t)*n_done, (uint32_t)history->n);
    forget_other_states(s, history, n_done);
    float *logits = moe_alloc(moe_logits_stride(&s->model->config), sizeof *logits, err);
    if (!logits)
        return MOE_ERR_MEMORY;
    moe_answer_begin(&answer, s->model, s->context, options);
    if (s->prompts && *n_done == 0) {
        moe_sequence_end(s, 0);
        moe_prompt_mark(s, 0, history->ids, history->n);
    }
    status = options->source ? encode_source(s, options, err) : MOE_OK;
    if (!s->n_sources)
        s->stats.prompt_tokens += history->n - *n_done;
    if (status == MOE_OK)
        status = compute_prompt(s, history, n_done, options, &last, err);
    if (status == MOE_ERR_INTERRUPTED) {
        answer.why = MOE_STOP_USER;
        status = MOE_OK;
    } else if (status == MOE_OK && options->beams.n && !answer.ended) {
        status = moe_beams_search(s, history, n_done, &answer, logits, last, err);
    } else if (status == MOE_OK) {
        status = generate_loop(s, sampler, history, n_done, &answer, logits, last, err);
    }
    moe_answer_count(&answer, &s->stats);
    status = moe_answer_end(&answer, status);
    *why = answer.why;
    free(logits);
    return status;
}

/* ---- Sources ---- */

int moe_check_source(const struct moe_session *s, uint64_t n, struct moe_err *err)
{
    if (n == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the source is empty");
    if (n > s->source_context)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the source of %" PRIu64 " tokens does not fit the context of %" PRIu32, n,
                        s->source_context);
    return MOE_OK;
}

void moe_source_rows(struct moe_row *rows, uint32_t source, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){source, i, ids[i], n};
}

/* The rows of a pass and its output from the arena, or only counted. */
static void carve(struct moe_arena *arena, const struct moe_config *c, uint32_t n,
                  struct moe_row **rows, float **output)
{
    *rows = moe_arena_take(arena, n, sizeof **rows);
    *output = moe_arena_take(arena, (uint64_t)n * c->hidden, sizeof **output);
}

uint64_t moe_encode_bytes(const struct moe_config *config, uint32_t batch)
{
    struct moe_arena arena = {0};
    struct moe_row *rows;
    float *output;
    carve(&arena, config, batch, &rows, &output);
    return arena.used;
}

static void pool(const float *output, uint32_t n, uint32_t hidden, enum moe_pooling pooling,
                 float *out)
{
    uint32_t first = pooling == MOE_POOL_LAST ? n - 1 : 0;
    uint32_t end = pooling == MOE_POOL_FIRST ? 1 : n;
    for (uint32_t i = 0; i < hidden; i++) {
        double sum = 0;
        for (uint32_t row = first; row < end; row++)
            sum += output[(uint64_t)row * hidden + i];
        out[i] = (float)(sum / (end - first));
    }
}

int moe_encode_pooled(struct moe_session *s, const uint32_t *ids, uint64_t n,
                      enum moe_pooling pooling, float *out, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    int status = moe_check_source(s, n, err);
    if (status != MOE_OK)
        return status;
    struct moe_arena arena = {.size = moe_encode_bytes(c, (uint32_t)n)};
    struct moe_row *rows;
    float *output;
    if (!(arena.base = moe_alloc(1, arena.size, err)))
        return MOE_ERR_MEMORY;
    carve(&arena, c, (uint32_t)n, &rows, &output);
    moe_source_rows(rows, 0, ids, (uint32_t)n);
    status = moe_encode(s, rows, (uint32_t)n, output, err);
    s->stats.prompt_tokens += n;
    if (status == MOE_OK)
        pool(output, (uint32_t)n, c->hidden, pooling, out);
    free(arena.base);
    return status;
}
