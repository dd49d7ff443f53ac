/*
 * Experts away from the session: computed on one thread, by the caller or by the host beside the
 * session, they are bit for bit what the session makes of them. And how the host takes its jobs.
 */
#define _GNU_SOURCE /* CLOCK_THREAD_CPUTIME_ID in C11 mode */
#include <time.h>

#include "base/clock.h"
#include "base/par.h"
#include "infer/host.h"
#include "infer/session.h"
#include "kern/kern.h"

#include "random_model.h"

enum { BATCH = 9, MAX_JOBS = RANDOM_MAX_EXPERTS, N_MODELS = 24 };

static char path[128];

struct opened {
    struct random_model m;
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_expert_view views[RANDOM_MAX_LAYERS][RANDOM_MAX_EXPERTS];
    uint8_t *weights; /* of the views */
    uint64_t stride;  /* of outputs */
    struct moe_expert_compute *compute;
    struct moe_host *host;
    /* Of the layer under way. */
    float *host_out, *own_out; /* [n_experts][BATCH][stride] */
    uint32_t rows[RANDOM_MAX_EXPERTS][BATCH], n_rows[RANDOM_MAX_EXPERTS], last_ticket;
    const uint32_t *chosen;
    uint32_t n_compared;
};

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(path, sizeof path, "/tmp/moe-host-%d.moe", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    unlink(path);
    return 0;
}

static void read_views(struct opened *o, struct moe_arena *arena)
{
    struct moe_err err = {0};
    for (uint32_t layer = 0; layer < o->m.c.n_layers; layer++)
        for (uint32_t e = 0; o->m.c.layers[layer].moe && e < o->m.c.n_experts; e++) {
            o->views[layer][e] = (struct moe_expert_view){.layer = layer, .expert = e};
            assert_ok(moe_expert_view_read(&o->views[layer][e], o->model->pack, arena, &err), &err);
        }
}

/* A random model with experts. */
static void draw(struct random_model *m, uint64_t *seed)
{
    for (;; (*seed)++) {
        random_model_draw(m, *seed);
        if (m->c.n_experts)
            return;
        random_model_free(m);
    }
}

static void open_all(struct opened *o, uint64_t *seed, int bits, uint32_t n_threads,
                     double slowdown)
{
    struct moe_err err = {0};
    struct moe_arena arena = {0};
    const struct moe_session_options options = {.batch = BATCH};
    *o = (struct opened){0};
    draw(&o->m, seed);
    random_model_write(&o->m, bits, path);
    assert_ok(moe_model_open(&o->model, path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&o->experts, o->model->pack, 0, NULL, NULL, &err), &err);
    assert_ok(moe_session_open(&o->session, o->model, o->experts, &options, &err), &err);
    read_views(o, &arena);
    o->weights = moe_alloc(arena.used, 1, &err);
    arena = (struct moe_arena){.base = o->weights, .size = arena.used};
    read_views(o, &arena);
    o->stride = moe_round_up(o->m.c.hidden, 16);
    o->host_out = moe_alloc(o->m.c.n_experts * BATCH, o->stride * sizeof(float), &err);
    o->own_out = moe_alloc(o->m.c.n_experts * BATCH, o->stride * sizeof(float), &err);
    assert_ok(moe_expert_compute_open(&o->compute, &o->model->config, BATCH, &err), &err);
    const struct moe_host_shape shape = {BATCH, MAX_JOBS, MAX_JOBS * BATCH, n_threads};
    assert_ok(moe_host_open(&o->host, &o->model->config, &shape, slowdown, &err), &err);
}

static void close_all(struct opened *o)
{
    moe_host_close(o->host);
    moe_expert_compute_close(o->compute);
    free(o->own_out);
    free(o->host_out);
    free(o->weights);
    moe_session_close(o->session);
    moe_experts_close(o->experts);
    moe_model_close(o->model);
    random_model_free(&o->m);
}

/* ---- Beside a session ---- */

static float *out_of(const struct opened *o, float *outs, uint32_t expert)
{
    return outs + (uint64_t)expert * BATCH * o->stride;
}

/* The host begins with all of the layer's experts, which the session computes at the same time. */
static void begin_layer(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                        const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                        uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct opened *o = ctx;
    struct moe_err err = {0};
    memset(o->n_rows, 0, sizeof o->n_rows);
    o->chosen = chosen;
    for (uint32_t i = 0; i < n_rows * o->m.c.top_k; i++)
        o->rows[chosen[i]][o->n_rows[chosen[i]]++] = i / o->m.c.top_k;
    for (uint32_t e = 0; e < o->m.c.n_experts; e++) {
        struct moe_host_job job = {
            .view = o->views[layer][e],
            .x = gate_input,
            .x_stride = hidden_stride,
            .rows = o->rows[e],
            .n = o->n_rows[e],
            .out = out_of(o, o->host_out, e),
            .out_stride = o->stride,
        };
        if (job.n == 0)
            continue;
        assert_ok(moe_host_submit(o->host, &job, &o->last_ticket, &err), &err);
        moe_expert_compute(o->compute, &job.view, gate_input, hidden_stride, job.rows, NULL, job.n,
                           out_of(o, o->own_out, e), o->stride);
    }
}

static void compare_layer(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                          uint64_t stride, const uint32_t *slots)
{
    struct opened *o = ctx;
    uint64_t bytes = o->m.c.hidden * sizeof(float);
    uint32_t seen[RANDOM_MAX_EXPERTS] = {0};
    moe_host_wait(o->host, o->last_ticket);
    for (uint32_t i = 0; i < n_rows * o->m.c.top_k; i++) {
        uint32_t e = o->chosen[i];
        uint64_t at = seen[e]++ * o->stride;
        const float *want = outputs + slots[i] * stride;
        assert_memory_equal(out_of(o, o->host_out, e) + at, want, bytes);
        assert_memory_equal(out_of(o, o->own_out, e) + at, want, bytes);
        o->n_compared++;
    }
}

static void experts_equal_the_sessions(void **state)
{
    static const int all_bits[] = {32, 16, 8, 4, 3, 2};
    struct moe_err err = {0};
    for (uint64_t seed = 1, n = 0; n < N_MODELS; seed++, n++) {
        struct opened o;
        uint64_t random = seed;
        open_all(&o, &seed, all_bits[n % N_ITEMS(all_bits)], 1 + n % 4, 1);
        o.session->observer =
            (struct moe_observer){.ctx = &o, .routed = begin_layer, .computed = compare_layer};
        for (uint32_t at = 0, part = BATCH; at < 24; at += part, part = at < 20 ? 1 + at % 4 : 1) {
            struct moe_row rows[BATCH];
            for (uint32_t i = 0; i < part; i++)
                rows[i] = (struct moe_row){0, at + i, random_below(&random, o.m.c.vocab), 0};
            assert_ok(moe_forward(o.session, MOE_PREFILL, rows, part, 0, o.m.c.n_layers, NULL, NULL,
                                  &err),
                      &err);
        }
        assert_true(o.n_compared >= 24 * o.m.c.top_k);
        close_all(&o);
    }
}

/* ---- The host alone ---- */

/* Jobs of random inputs for an expert of the last layer, which always has some. */
static struct moe_host_job job_of(const struct opened *o, uint32_t expert, const float *x,
                                  float *out)
{
    return (struct moe_host_job){
        .view = o->views[o->m.c.n_layers - 1][expert],
        .x = x,
        .x_stride = o->stride,
        .n = BATCH,
        .out = out,
        .out_stride = o->stride,
    };
}

static float *random_inputs(const struct opened *o, uint64_t seed)
{
    float *x = calloc(BATCH * o->stride, sizeof *x);
    for (uint64_t i = 0; i < BATCH * o->stride; i++)
        x[i] = test_uniform(&seed);
    return x;
}

static void assert_result(const struct opened *o, const struct moe_host_job *job, const float *x)
{
    moe_expert_compute(o->compute, &job->view, x, o->stride, NULL, NULL, job->n, o->own_out,
                       o->stride);
    for (uint32_t i = 0; i < job->n; i++)
        assert_memory_equal(job->out + i * o->stride, o->own_out + i * o->stride,
                            o->m.c.hidden * sizeof(float));
}

/* Inputs may change once a job is submitted; of two jobs with one output the later one counts; and
 * waiting for the last job waits for all. */
static void jobs_are_done_in_order(void **state)
{
    struct moe_err err = {0};
    struct opened o;
    uint64_t seed = 1;
    uint32_t ticket;
    open_all(&o, &seed, 4, 1, 3);
    float *x = random_inputs(&o, 5), *kept = random_inputs(&o, 5);
    for (int round = 0; round < 20; round++) {
        const struct moe_host_job first = job_of(&o, 0, x, out_of(&o, o.host_out, 0));
        const struct moe_host_job same = job_of(&o, 1, x, out_of(&o, o.host_out, 0));
        const struct moe_host_job last = job_of(&o, 2, x, out_of(&o, o.host_out, 1));
        memcpy(x, kept, BATCH * o.stride * sizeof *x);
        assert_ok(moe_host_submit(o.host, &first, &ticket, &err), &err);
        assert_ok(moe_host_submit(o.host, &same, &ticket, &err), &err);
        assert_ok(moe_host_submit(o.host, &last, &ticket, &err), &err);
        memset(x, 0, BATCH * o.stride * sizeof *x);
        assert_true(moe_host_wait(o.host, ticket) >= 0);
        assert_true(moe_host_wait(o.host, ticket - 2) == 0);
        assert_result(&o, &same, kept);
        assert_result(&o, &last, kept);
    }
    free(x);
    free(kept);
    close_all(&o);
}

static void closing_finishes_what_is_under_way(void **state)
{
    struct moe_err err = {0};
    struct opened o;
    uint64_t seed = 1;
    uint32_t ticket;
    open_all(&o, &seed, 8, 1, 50);
    float *x = random_inputs(&o, 6);
    struct moe_host_job jobs[3];
    for (uint32_t i = 0; i < 3; i++) {
        jobs[i] = job_of(&o, i, x, out_of(&o, o.host_out, i));
        assert_ok(moe_host_submit(o.host, &jobs[i], &ticket, &err), &err);
    }
    moe_host_close(o.host);
    o.host = NULL;
    for (uint32_t i = 0; i < 3; i++)
        assert_result(&o, &jobs[i], x);
    free(x);
    close_all(&o);
}

/* A job more than max_jobs is refused, or the first was done by then. */
static void full_is_full(void **state)
{
    struct moe_err err = {0};
    struct opened o;
    uint64_t seed = 1;
    uint32_t first, ticket, refused = 0;
    struct moe_host *host = NULL;
    open_all(&o, &seed, 32, 1, 1);
    const struct moe_host_shape two_jobs = {BATCH, 2, 2 * BATCH, 1};
    assert_ok(moe_host_open(&host, &o.model->config, &two_jobs, 300, &err), &err);
    float *x = random_inputs(&o, 7);
    struct moe_host_job job = job_of(&o, 0, x, o.host_out);
    for (int round = 0; round < 50 && !refused; round++) {
        assert_ok(moe_host_submit(host, &job, &first, &err), &err);
        assert_ok(moe_host_submit(host, &job, &ticket, &err), &err);
        int status = moe_host_submit(host, &job, &ticket, &err);
        if (status == MOE_OK)
            assert_true(moe_host_wait(host, first) == 0);
        else
            assert_fails(status, MOE_ERR_LIMIT, "2 jobs", &err);
        refused += status != MOE_OK;
        moe_host_wait(host, ticket);
        assert_ok(moe_host_submit(host, &job, &ticket, &err), &err);
        moe_host_wait(host, ticket);
    }
    assert_int_equal(refused, 1);
    job.n = BATCH + 1;
    assert_fails(moe_host_submit(host, &job, &ticket, &err), MOE_ERR_LIMIT, "at most 9 rows", &err);
    moe_host_close(host);
    host = NULL;
    const struct moe_host_shape least = {1, 1, 1, 1};
    assert_fails(moe_host_open(&host, &o.model->config, &least, 0.5, &err), MOE_ERR_USAGE,
                 "slowdown of at least 1", &err);
    assert_null(host);
    free(x);
    close_all(&o);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A slowed host takes at least half of what it should: other load on the machine only adds. */
static void slowing_down_takes_time(void **state)
{
    enum { SLOWDOWN = 20, N_JOBS = 60 };
    struct moe_err err = {0};
    struct opened o;
    uint64_t seed = 1;
    uint32_t ticket;
    double least = 1;
    open_all(&o, &seed, 4, 1, SLOWDOWN);
    float *x = random_inputs(&o, 8);
    const struct moe_host_job job = job_of(&o, 0, x, o.host_out);
    for (int i = 0; i < 50; i++) {
        double began = processor_seconds();
        moe_expert_compute(o.compute, &job.view, x, o.stride, NULL, NULL, BATCH, o.own_out,
                           o.stride);
        double took = processor_seconds() - began;
        least = took < least ? took : least;
    }
    double began = moe_seconds(), slept = 0;
    for (int i = 0; i < N_JOBS; i++) {
        assert_ok(moe_host_submit(o.host, &job, &ticket, &err), &err);
        slept += moe_host_wait(o.host, ticket);
    }
    double took = moe_seconds() - began, busy = moe_host_busy_seconds(o.host);
    assert_true(least > 0);
    assert_true(busy >= 0.5 * SLOWDOWN * N_JOBS * least - 100e-6);
    assert_true(took >= busy && took >= slept && slept > 0);
    free(x);
    close_all(&o);
}

struct ranges {
    int n_calls, thread;
    int64_t begin, end;
};

static void note_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct ranges *r = ctx;
    *r = (struct ranges){r->n_calls + 1, thread, begin, end};
}

static void a_thread_alone_shares_no_loops(void **state)
{
    struct ranges r = {0};
    assert_false(moe_par_alone(true));
    moe_par_for(1000, 1, note_range, &r);
    assert_true(r.n_calls == 1 && r.thread == 0 && r.begin == 0 && r.end == 1000);
    assert_true(moe_par_alone(false));
    assert_false(moe_par_alone(false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_equal_the_sessions),
        cmocka_unit_test(jobs_are_done_in_order),
        cmocka_unit_test(closing_finishes_what_is_under_way),
        cmocka_unit_test(full_is_full),
        cmocka_unit_test(slowing_down_takes_time),
        cmocka_unit_test(a_thread_alone_shares_no_loops),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
