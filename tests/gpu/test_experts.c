/*
 * The GPU's experts against infer/expert_compute.h: the same bits, for lists of jobs whose
 * layouts differ.
 */
#include "products_fixture.h"

#include "infer/expert_compute.h"

enum { MAX_EXPERTS = 40 };

/* An expert on both sides. */
struct expert {
    struct matrix gate, up, down;
    float *biases[3]; /* of the host */
    struct moe_expert_view view;
    struct moe_gpu_gated device;
};

static const float *bias_new(struct gpu_taken *t, struct expert *e, int which, uint32_t rows,
                             uint64_t *seed)
{
    e->biases[which] = draw_rows(1, rows, rows, seed, ORDINARY);
    return gpu_take(t, e->biases[which], rows * sizeof(float));
}

static struct expert expert_new(struct gpu_taken *t, const struct moe_config *c,
                                const struct moe_layout kinds[3], bool biased, uint64_t *seed)
{
    struct expert e = {
        .gate = matrix_new(t, kinds[0], c->expert_ff, c->hidden, seed, ORDINARY),
        .up = matrix_new(t, kinds[1], c->expert_ff, c->hidden, seed, ORDINARY),
        .down = matrix_new(t, kinds[2], c->hidden, c->expert_ff, seed, ORDINARY),
    };
    e.device = (struct moe_gpu_gated){e.gate.device, e.up.device, e.down.device, NULL, NULL, NULL};
    if (biased) {
        e.device.gate_bias = bias_new(t, &e, 0, c->expert_ff, seed);
        e.device.up_bias = bias_new(t, &e, 1, c->expert_ff, seed);
        e.device.down_bias = bias_new(t, &e, 2, c->hidden, seed);
    }
    e.view = (struct moe_expert_view){.gate = e.gate.host,
                                      .up = e.up.host,
                                      .down = e.down.host,
                                      .gate_bias = e.biases[0],
                                      .up_bias = e.biases[1],
                                      .down_bias = e.biases[2]};
    return e;
}

static void expert_free(struct expert *e)
{
    free(e->gate.data);
    free(e->up.data);
    free(e->down.data);
    for (int i = 0; i < 3; i++)
        free(e->biases[i]);
}

/* A batch of rows and room for activations on the device. */
struct batch {
    struct moe_config config;
    float *x, *want; /* of the host; want: [activations][out_stride] */
    uint64_t x_stride;
    uint32_t n_activations;
    struct moe_gpu_act in, mid;
    struct moe_gpu_experts e;
};

static void batch_open(struct batch *b, struct gpu_taken *t, uint32_t n_rows,
                       uint32_t n_activations, uint64_t *seed)
{
    memset(b, 0, sizeof *b);
    struct moe_config *c = &b->config;
    c->hidden = draw_up_to(seed, 150);
    c->expert_ff = draw_up_to(seed, 150);
    if (test_random(seed) % 2) { /* for any layout */
        c->hidden = (uint32_t)moe_round_up(c->hidden, 32);
        c->expert_ff = (uint32_t)moe_round_up(c->expert_ff, 32);
    }
    c->expert_act = test_random(seed) % 2 ? MOE_ACT_SWIGLU : MOE_ACT_SWIGLU_CLAMPED;
    c->act_alpha = 1.702f;
    c->act_limit = 0.5f;
    b->n_activations = n_activations;
    b->x_stride = c->hidden + test_random(seed) % 3;
    b->x = draw_rows(n_rows, c->hidden, b->x_stride, seed, ORDINARY);
    b->in = act_new(t, b->x, n_rows, c->hidden, b->x_stride);
    b->e.ff_stride = moe_round_up(c->expert_ff, MOE_PANEL_ROWS) + test_random(seed) % 3;
    b->e.gate = gpu_take(t, NULL, n_activations * b->e.ff_stride * sizeof(float));
    b->e.up = gpu_take(t, NULL, n_activations * b->e.ff_stride * sizeof(float));
    b->mid = act_room(t, n_activations, c->expert_ff, b->e.gate, b->e.ff_stride);
    b->e.out_stride = moe_round_up(c->hidden, MOE_PANEL_ROWS) + test_random(seed) % 3;
    uint64_t out_bytes = n_activations * b->e.out_stride * sizeof(float);
    b->e.out = gpu_take(t, NULL, out_bytes);
    b->want = take(1, out_bytes);
    memset(b->want, GPU_GUARD_BYTE, out_bytes);
    b->e.in = &b->in;
    b->e.mid = &b->mid;
    b->e.activation = (struct moe_gpu_activation){c->expert_act, c->act_alpha, c->act_limit};
}

/* want[first ..] = the expert's outputs for rows of the batch. */
static void compute_on_host(struct batch *b, const struct moe_expert_view *view,
                            const uint32_t *rows, uint32_t first, uint32_t n)
{
    struct moe_expert_compute *compute;
    struct moe_err err;
    assert_ok(moe_expert_compute_open(&compute, &b->config, n, &err), &err);
    float *out = b->want + first * b->e.out_stride;
    moe_expert_compute(compute, view, b->x, b->x_stride, rows, NULL, n, out, b->e.out_stride);
    moe_expert_compute_close(compute);
}

static void batch_check(struct batch *b, struct gpu_taken *t)
{
    uint64_t n = b->n_activations * b->e.out_stride;
    float *out = take(n, sizeof *out);
    gpu_get(t->g, out, b->e.out, n * sizeof *out);
    assert_same_floats(out, b->want, n);
    free(out);
    gpu_give_back(t);
    free(b->x);
    free(b->want);
}

static struct moe_layout draw_fitting(uint64_t *seed, uint32_t cols)
{
    struct moe_layout layout = draw_layout(seed);
    while (fitting_cols(layout, cols) != cols)
        layout = draw_layout(seed);
    return layout;
}

static void draw_kinds(uint64_t *seed, const struct moe_config *c, struct moe_layout kinds[3])
{
    kinds[0] = draw_fitting(seed, c->hidden);
    kinds[1] = test_random(seed) % 2 ? kinds[0] : draw_fitting(seed, c->hidden);
    kinds[2] = draw_fitting(seed, c->expert_ff);
}

/* Jobs of several experts for gathered rows, most alike, in the order of their results or not. */
static void test_jobs(void **state)
{
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 1;
    for (int round = 0; round < 25; round++) {
        enum { N_ROWS = 30 };
        struct expert experts[MAX_EXPERTS];
        struct moe_gpu_job jobs[MAX_EXPERTS];
        uint32_t rows[MAX_EXPERTS * N_ROWS], n_rows = 0;
        /* One round with more jobs than are listed at once. */
        uint32_t n_jobs = round == 0 ? MAX_EXPERTS : draw_up_to(&seed, 5);
        for (uint32_t k = 0; k < n_jobs; k++) {
            jobs[k].first = n_rows;
            jobs[k].n = round == 0 ? 1 : (uint32_t)(test_random(&seed) % (k % 2 ? N_ROWS : 4));
            n_rows += jobs[k].n;
        }
        for (uint32_t i = 0; i < n_rows; i++)
            rows[i] = (uint32_t)(test_random(&seed) % N_ROWS);
        struct batch b;
        struct moe_layout kinds[3];
        batch_open(&b, &t, N_ROWS, n_rows ? n_rows : 1, &seed);
        draw_kinds(&seed, &b.config, kinds);
        bool biased = test_random(&seed) % 2;
        for (uint32_t k = 0; k < n_jobs; k++) {
            if (test_random(&seed) % 3 == 0)
                draw_kinds(&seed, &b.config, kinds);
            if (round == 0 && k >= 4)
                experts[k] = experts[k % 4]; /* the same matrices again */
            else
                experts[k] = expert_new(&t, &b.config, kinds, biased, &seed);
            jobs[k].weights = experts[k].device;
            if (jobs[k].n)
                compute_on_host(&b, &experts[k].view, rows + jobs[k].first, jobs[k].first,
                                jobs[k].n);
        }
        if (n_jobs > 2 && round % 2) {
            struct moe_gpu_job last = jobs[n_jobs - 1];
            jobs[n_jobs - 1] = jobs[0];
            jobs[0] = last;
        }
        b.e.rows = gpu_take(&t, rows, n_rows * sizeof *rows);
        moe_gpu_experts_in(t.g, &b.e, jobs, n_jobs);
        moe_gpu_experts_out(t.g, &b.e, jobs, n_jobs);
        batch_check(&b, &t);
        for (uint32_t k = 0; k < (round == 0 ? 4 : n_jobs); k++)
            expert_free(&experts[k]);
    }
}

/* A dense feed-forward: row i of the batch is input i. */
static void test_without_rows(void **state)
{
    struct gpu_taken t = {.g = *state};
    uint64_t seed = 2;
    for (int round = 0; round < 10; round++) {
        struct batch b;
        struct moe_layout kinds[3];
        uint32_t n = draw_up_to(&seed, 20), rows[20];
        for (uint32_t i = 0; i < n; i++)
            rows[i] = i;
        batch_open(&b, &t, n, n, &seed);
        draw_kinds(&seed, &b.config, kinds);
        struct expert expert = expert_new(&t, &b.config, kinds, round % 2, &seed);
        struct moe_gpu_job job = {expert.device, 0, n};
        compute_on_host(&b, &expert.view, rows, 0, n);
        moe_gpu_experts_in(t.g, &b.e, &job, 1);
        moe_gpu_experts_out(t.g, &b.e, &job, 1);
        batch_check(&b, &t);
        expert_free(&expert);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jobs),
        cmocka_unit_test(test_without_rows),
    };
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
