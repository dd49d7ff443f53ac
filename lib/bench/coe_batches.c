#include "bench/coe_batches.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "bench/bench.h"
#include "engine/batch.h"

enum { LEAST_RUNS = 3, MOST_RUNS = 25 };

#define RUN_SECONDS 0.25 /* in all: short ones are measured more often */

#define GAIN 0.05 /* of a request's time: less is none */

/* ---- Figures of a curve ---- */

void moe_coe_batch_fit(const struct moe_coe_batch_curve *c, double *per_request, double *per_batch)
{
    double n = c->n, x = 0, y = 0, xx = 0, xy = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        double r = c->points[i].requests, t = c->points[i].seconds;
        x += r;
        y += t;
        xx += r * r;
        xy += r * t;
    }
    double spread = n * xx - x * x;
    *per_request = spread > 0 ? (n * xy - x * y) / spread : 0;
    *per_batch = (y - *per_request * x) / n;
    if (spread <= 0 || *per_batch < 0) {
        *per_request = xy / xx;
        *per_batch = 0;
    } else if (*per_request < 0) {
        *per_request = 0;
        *per_batch = y / n;
    }
}

static double each(const struct moe_coe_batch_point *p)
{
    return p->seconds / p->requests;
}

/* Of the first n points. */
static double least_each(const struct moe_coe_batch_curve *c, uint32_t n)
{
    double least = each(&c->points[0]);
    for (uint32_t i = 1; i < n; i++)
        least = each(&c->points[i]) < least ? each(&c->points[i]) : least;
    return least;
}

uint32_t moe_coe_batch_level(const struct moe_coe_batch_curve *c)
{
    double least = least_each(c, c->n);
    uint32_t i = 0;
    while (each(&c->points[i]) > (1 + GAIN) * least)
        i++;
    return c->points[i].requests;
}

bool moe_coe_batch_levelled(const struct moe_coe_batch_curve *c)
{
    return c->n > 2 && least_each(c, c->n) > (1 - GAIN) * least_each(c, c->n - 2);
}

uint64_t moe_coe_batch_request_bytes(const struct moe_coe_batch_curve *c)
{
    uint32_t level = moe_coe_batch_level(c), i = 0;
    while (c->points[i].requests != level)
        i++;
    return (c->points[i].bytes + level - 1) / level;
}

/* ---- Measuring ---- */

static void ended(void *ctx, const struct moe_batch_result *result)
{
    struct moe_err *failed = ctx; /* the first that did */
    if (result->status != MOE_OK && failed->status == MOE_OK)
        *failed = *result->err;
}

/* Prompts differ in their first token, run by run: else one would take over what another computed.
 */
static int add_request(struct moe_batch *batch, const struct moe_engine *e,
                       const struct moe_coe_batch_options *o, const struct moe_row *rows,
                       uint32_t *prompt, uint32_t number, struct moe_err *failed,
                       struct moe_err *err)
{
    struct moe_batch_request request = {
        .prompt = prompt,
        .n_prompt = o->prompt_tokens,
        .options = {.max_tokens = o->answer_tokens, .ignore_eos = true, .ctx = failed},
        .ended = ended,
    };
    struct moe_sampler_options greedy;
    uint64_t id;
    for (uint32_t i = 0; i < o->prompt_tokens; i++)
        prompt[i] = rows[i].token;
    prompt[0] = number % e->model->config.vocab;
    moe_sampling_unsaid(&greedy);
    greedy.temperature = 0;
    moe_sampling_complete(&greedy, NULL);
    int status = moe_sampler_new(&request.sampler, &greedy, e->model->config.vocab, err);
    if (status != MOE_OK)
        return status;
    status = moe_batch_add(batch, &request, &id, err);
    if (status != MOE_OK)
        moe_sampler_free(request.sampler);
    return status;
}

/* rows: prompts of all requests, one after the other. */
static int run_once(struct moe_engine *e, const struct moe_coe_batch_options *o,
                    const struct moe_row *rows, uint32_t n, uint32_t run, double *seconds,
                    struct moe_err *err)
{
    struct moe_batch *batch = NULL;
    struct moe_err failed = {0};
    uint32_t *prompt = moe_alloc(o->prompt_tokens, sizeof *prompt, err);
    int status = prompt ? moe_batch_open(&batch, e->session, 0, err) : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        status = add_request(batch, e, o, rows + (uint64_t)i * o->prompt_tokens, prompt,
                             run * n + i, &failed, err);
    double began = moe_seconds();
    while (status == MOE_OK &&
           moe_batch_state(batch)->n_running + moe_batch_state(batch)->n_waiting > 0) {
        moe_batch_step(batch);
        if (moe_progress_stopped(o->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    *seconds = moe_seconds() - began;
    if (status == MOE_OK && failed.status != MOE_OK)
        status = moe_fail(err, failed.status, "%s", failed.text);
    moe_batch_close(batch);
    free(prompt);
    return status;
}

static int measure_point(struct moe_engine *e, const struct moe_coe_batch_options *o,
                         const struct moe_row *rows, struct moe_coe_batch_point *p,
                         struct moe_err *err)
{
    char what[64];
    double seconds[MOST_RUNS], sum = 0;
    uint32_t n = 0;
    snprintf(what, sizeof what, "batches of %u", p->requests);
    moe_progress_report(o->progress, what, 0, LEAST_RUNS + 1);
    int status = run_once(e, o, rows, p->requests, 0, &seconds[0], err); /* does not count */
    while (status == MOE_OK && n < MOST_RUNS && (n < LEAST_RUNS || sum < RUN_SECONDS)) {
        moe_progress_report(o->progress, what, n + 1, n < LEAST_RUNS ? LEAST_RUNS + 1 : n + 2);
        status = run_once(e, o, rows, p->requests, n + 1, &seconds[n], err);
        sum += seconds[n++];
    }
    if (status == MOE_OK)
        p->seconds = moe_bench_summarise(seconds, n).median;
    return status;
}

/* A session for n requests, in room for `room` bytes. *fits false: it takes more. */
static int open_session(struct moe_engine *e, const struct moe_coe_batch_options *o, uint32_t n,
                        uint32_t rows, uint64_t room, bool *fits, uint64_t *bytes,
                        struct moe_err *err)
{
    const struct moe_session_options session = {
        .context = o->prompt_tokens + o->answer_tokens,
        .n_sequences = n,
        .batch = rows > n ? rows : n,
        .gpu = e->gpu,
    };
    const struct moe_config *config = &e->model->config;
    uint64_t on_host = UINT64_MAX;
    *fits = moe_add_u64(moe_session_bytes(config, &session), moe_batch_bytes(config, &session),
                        &on_host);
    *bytes = e->gpu ? moe_session_gpu_bytes(config, &session) : on_host;
    *fits = *fits && *bytes <= room;
    if (!*fits)
        return MOE_OK;
    moe_session_close(e->session);
    e->session = NULL;
    return moe_session_open(&e->session, e->model, e->experts, &session, err);
}

/* What the budget leaves beside the model. */
static uint64_t room_beside(const struct moe_engine *e)
{
    const struct moe_budget *b = &e->budget;
    uint64_t total = e->gpu ? b->gpu.total : b->total;
    uint64_t taken = e->gpu ? b->gpu.dense + b->gpu.experts : b->program + b->dense + b->experts;
    return total == UINT64_MAX ? UINT64_MAX : total > taken ? total - taken : 0;
}

int moe_coe_measure_batches(struct moe_engine *e, const struct moe_coe_batch_options *o,
                            struct moe_coe_batch_curve *out, struct moe_err *err)
{
    const uint64_t room = room_beside(e);
    const uint32_t rows_of_pass = e->session->batch;
    uint64_t n_rows = 0;
    if (!moe_mul_u64(o->most, o->prompt_tokens, &n_rows) || n_rows > UINT32_MAX)
        return moe_fail(err, MOE_ERR_USAGE, "%u prompts of %u tokens are too many", o->most,
                        o->prompt_tokens);
    struct moe_row *rows = moe_alloc(n_rows, sizeof *rows, err);
    int status = rows ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        moe_bench_rows(o->text, e->model->config.vocab, 0, rows, (uint32_t)n_rows);
    out->n = 0;
    for (uint32_t n = 1; n <= o->most && status == MOE_OK; n *= 2) {
        struct moe_coe_batch_point *p = &out->points[out->n];
        bool fits;
        p->requests = n;
        status = open_session(e, o, n, rows_of_pass, room, &fits, &p->bytes, err);
        if (status == MOE_OK && !fits && n > 1)
            break;
        if (status == MOE_OK && !fits)
            status = moe_fail(err, MOE_ERR_LIMIT,
                              "%s: its memory has no room for a request beside the model",
                              moe_pack_path(e->model->pack));
        if (status == MOE_OK)
            status = measure_point(e, o, rows, p, err);
        out->n += status == MOE_OK;
        if (status == MOE_OK && moe_coe_batch_levelled(out))
            break;
    }
    free(rows);
    return status;
}
