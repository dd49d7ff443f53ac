/* A session that computes what a trace recorded, pass by pass. */
#include "tune/followed_run.h"

#include <stdlib.h>

#include "base/mem.h"
#include "infer/forward.h"
#include "infer/stages.h"

int moe_followed_look(struct moe_trace *trace, struct moe_excerpt excerpt,
                      struct moe_followed_survey *out, struct moe_err *err)
{
    const struct moe_trace_token *token;
    uint64_t taken = 0;
    int status;
    *out = (struct moe_followed_survey){0};
    moe_excerpt_begin(trace, excerpt, 0);
    while ((status = moe_excerpt_next(trace, excerpt, &taken, &token, err)) == MOE_OK && token) {
        out->sequences += token->index == 0;
        out->prompt_tokens += token->prompt;
        out->decode_tokens += !token->prompt;
        out->longest = token->index >= out->longest ? token->index + 1 : out->longest;
    }
    return status;
}

/* ---- Passes ---- */

struct follower {
    struct moe_session *s;
    const struct moe_followed *f;
    struct moe_replay *replay;
    struct moe_row *rows; /* [batch] */
    float *logits;        /* [moe_logits_stride] */
    uint32_t position;    /* of the pass's first row */
};

/* A prompt whose rows see each other is one pass. */
static void begin_sequence(struct follower *w, const struct moe_replay_pass *pass)
{
    w->position = 0;
    moe_sequence_rewind(w->s, 0, 0);
    if (w->s->prompts && pass->prompt)
        moe_sequence_prompt(w->s, 0, pass->n_rows, pass->n_rows);
}

static int run_pass(struct follower *w, const struct moe_replay_pass *pass, bool after_prompt,
                    struct moe_err *err)
{
    struct moe_session *s = w->s;
    const struct moe_config *c = &s->model->config;
    bool encodes = c->n_encoder > 0 && pass->prompt;
    uint64_t state = 1;
    if (pass->first)
        begin_sequence(w, pass);
    if (c->n_encoder && after_prompt) /* the target counts from 0 */
        w->position = 0;
    if (pass->n_rows > s->batch || w->position + pass->n_rows > s->context)
        return moe_fail(err, MOE_ERR_LIMIT, "a text of the trace does not fit the context of %u",
                        s->context);
    for (uint32_t i = 0; i < pass->n_rows; i++) {
        uint32_t at = w->position + i;
        state = (at + 1) * UINT64_C(6364136223846793005);
        w->rows[i] = (struct moe_row){0, at, (uint32_t)((state >> 33) % c->vocab),
                                      encodes ? pass->n_rows : 0};
    }
    MOE_TRY(encodes ? moe_encode(s, w->rows, pass->n_rows, NULL, err)
                    : moe_forward(s, pass->prompt ? MOE_PREFILL : MOE_DECODE, w->rows, pass->n_rows,
                                  c->n_encoder, c->n_layers, NULL, NULL, err));
    if (!pass->prompt)
        MOE_TRY(moe_logits(s, 0, 1, w->logits, err));
    w->position += pass->n_rows;
    return MOE_OK;
}

static int run_passes(struct follower *w, struct moe_err *err)
{
    struct moe_replay_pass pass;
    uint64_t done = 0;
    bool prompt = false;
    int status = MOE_OK;
    while (status == MOE_OK && (status = moe_replay_next(w->replay, &pass, err)) == MOE_OK &&
           pass.n_rows > 0) {
        status = run_pass(w, &pass, prompt && !pass.prompt, err);
        prompt = pass.prompt;
        done += pass.n_rows;
        moe_progress_report(w->f->progress, "following", done,
                            moe_trace_totals(w->f->trace)->tokens);
        if (status == MOE_OK && moe_progress_stopped(w->f->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return status;
}

int moe_bench_follow(struct moe_session *s, const struct moe_followed *f, struct moe_err *err)
{
    struct follower w = {.s = s, .f = f};
    w.rows = moe_alloc(s->batch, sizeof *w.rows, err);
    w.logits = moe_alloc(moe_logits_stride(&s->model->config), sizeof *w.logits, err);
    int status = w.rows && w.logits ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_replay_open(&w.replay, f->trace, f->excerpt, s->batch, f->strategy,
                                 f->statistics, err);
    if (status == MOE_OK) {
        s->pass.replay = w.replay;
        status = run_passes(&w, err);
        s->pass.replay = NULL;
    }
    moe_replay_close(w.replay);
    free(w.rows);
    free(w.logits);
    return status;
}
