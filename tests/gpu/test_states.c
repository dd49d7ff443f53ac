/*
 * Recurrent states on a device: convolution, steps, norms and gates give the processor's bits, in
 * shapes that fill more blocks than those of the parity fixtures, for rows of several sequences
 * side by side, and change no other state. (Mamba, whose steps come out of products, is compared by
 * test_device_families alone.)
 */
#include "gpu_fixture.h"
#include "gpu_states.h"

#include "infer/cpu_stages.h"

enum { N_SEQUENCES = 3, N_ROWS = 11, N_LAYERS = 2, LAYER = 1 };

struct shape {
    enum moe_state_kind kind;
    uint32_t heads, key_heads, key_dim, value_dim, conv_width;
    bool bias;
};

static const struct shape shapes[] = {
    {MOE_STATE_DELTA, 18, 9, 40, 70, 4, false},
    {MOE_STATE_DELTA, 300, 5, 3, 1, 2, true},
    {MOE_STATE_DELTA, 2, 1, 130, 128, 4, false},
    {MOE_STATE_KDA, 12, 12, 33, 33, 4, false},
    {MOE_STATE_KDA, 2, 2, 300, 17, 3, false},
    {MOE_STATE_SCAN, 40, 4, 24, 64, 4, true},
    {MOE_STATE_SCAN, 270, 2, 17, 3, 3, false},
    {MOE_STATE_CONV, 1, 1, 0, 1000, 3, false},
    {MOE_STATE_CONV, 1, 1, 0, 129, 5, false},
    {MOE_STATE_CONV, 1, 1, 0, 70, 7, false},
    /* Whose states are held in registers. */
    {MOE_STATE_DELTA, 4, 2, 128, 128, 4, false},
    {MOE_STATE_DELTA, 3, 3, 64, 64, 2, true},
    {MOE_STATE_KDA, 3, 3, 128, 128, 4, false},
    {MOE_STATE_KDA, 2, 2, 64, 192, 3, false},
    {MOE_STATE_SCAN, 6, 2, 128, 64, 4, true},
    {MOE_STATE_SCAN, 4, 4, 64, 128, 4, false},
};

struct states {
    struct gpu_taken taken;
    uint64_t random;
    struct moe_config c;
    struct moe_layer layer;
    struct moe_recurrent r;
    struct cpu_recurrent w;
    struct moe_row rows[N_ROWS];
    void *owned[32];
    int n_owned;
};

static float *draw(struct states *t, uint64_t n, float size)
{
    float *x = calloc(n + MOE_PANEL_ROWS, sizeof *x);
    assert_true(x && t->n_owned < (int)N_ITEMS(t->owned));
    t->owned[t->n_owned++] = x;
    for (uint64_t i = 0; i < n; i++)
        x[i] = size * test_uniform(&t->random);
    return x;
}

static void describe(struct states *t, const struct shape *s)
{
    struct moe_config *c = &t->c;
    moe_config_init(c);
    c->state_kind = s->kind;
    c->n_layers = N_LAYERS;
    c->layers[0].recurrent = c->layers[LAYER].recurrent = 1;
    c->state_heads = s->heads;
    c->state_key_heads = s->key_heads;
    c->state_key_dim = s->key_dim;
    c->state_value_dim = s->value_dim;
    c->conv_width = s->conv_width;
    c->hidden = s->heads * s->value_dim;
    c->norm_eps = 1e-5f;
    moe_config_number_layers(c);
}

/* Weights, states as they stand, and what the products would have made. */
static void fill(struct states *t, const struct shape *s)
{
    const struct moe_config *c = &t->c;
    const struct moe_recurrent_strides strides = moe_recurrent_strides(c);
    uint64_t keys = (uint64_t)s->key_heads * s->key_dim, values = c->hidden, taps = c->conv_width;
    bool kda = s->kind == MOE_STATE_KDA;
    t->layer = (struct moe_layer){
        .state_conv = draw(t, taps * (kda ? values : 2 * keys + values), 1),
        .state_conv_q = kda ? draw(t, taps * keys, 1) : NULL,
        .state_conv_k = kda ? draw(t, taps * keys, 1) : NULL,
        .state_conv_bias = s->bias ? draw(t, 2 * keys + values, 1) : NULL,
        .state_step = draw(t, s->heads * (uint64_t)(kda ? s->key_dim : 1), 1),
        .state_rate = draw(t, s->heads, 1),
        .state_skip = draw(t, s->heads, 1),
        .state_norm = draw(t, s->kind == MOE_STATE_SCAN ? values : s->value_dim, 1),
    };
    t->r = moe_recurrent_shape(c, N_SEQUENCES);
    t->r.memory = draw(t, t->r.bytes / sizeof(float), 1);
    /* Beyond a head's values a panel has zeros. */
    for (uint32_t i = 0; i < N_SEQUENCES * N_LAYERS * s->heads && s->value_dim % MOE_PANEL_ROWS;
         i++) {
        float *panel =
            moe_recurrent_panel(&t->r, i / (N_LAYERS * s->heads), i / s->heads % N_LAYERS,
                                i % s->heads, t->r.n_panels - 1);
        for (uint32_t k = 0; k < s->key_dim; k++)
            memset(panel + k * MOE_PANEL_ROWS + s->value_dim % MOE_PANEL_ROWS, 0,
                   (MOE_PANEL_ROWS - s->value_dim % MOE_PANEL_ROWS) * sizeof *panel);
    }
    t->w = (struct cpu_recurrent){
        .values_stride = strides.values,
        .heads_stride = strides.heads,
        .decay_stride = strides.decay,
        .mixed = draw(t, N_ROWS * t->r.stride, 2),
        .gate = draw(t, N_ROWS * strides.values, 3),
        .out = draw(t, N_ROWS * strides.values, 2),
        .beta = draw(t, N_ROWS * strides.heads, 3),
        .decay = draw(t, N_ROWS * strides.decay, 3),
    };
    /* Sequence 2 goes on from 7; 0 begins, and so does 2 once more, in the middle. */
    static const uint32_t sequences[N_ROWS] = {2, 0, 2, 0, 2, 2, 0, 0, 2, 0, 2};
    uint32_t next[N_SEQUENCES] = {0, 0, 7};
    for (uint32_t i = 0; i < N_ROWS; i++) {
        if (i == 5)
            next[2] = 0;
        t->rows[i] = (struct moe_row){sequences[i], next[sequences[i]]++, 0, 0};
    }
}

static void on_processor(struct states *t)
{
    struct cpu_state_pass p = {&t->c, &t->layer, &t->r, &t->w, t->rows, N_ROWS, LAYER, LAYER};
    if (t->c.state_kind == MOE_STATE_CONV)
        stages_cpu_short_conv(&p);
    else if (t->c.state_kind == MOE_STATE_SCAN)
        stages_cpu_state_scan(&p);
    else
        stages_cpu_state_delta(&p);
}

static void *there(struct states *t, const float *x, uint64_t n)
{
    return x ? gpu_take(&t->taken, x, n * sizeof *x) : NULL;
}

static struct moe_gpu_recurrent on_device(struct states *t)
{
    const struct moe_config *c = &t->c;
    const struct moe_layer *l = &t->layer;
    const struct moe_recurrent *r = &t->r;
    uint64_t keys = (uint64_t)c->state_key_heads * c->state_key_dim, taps = c->conv_width;
    uint64_t channels = l->state_conv_q ? c->hidden : 2 * keys + c->hidden;
    bool kda = c->state_kind == MOE_STATE_KDA;
    struct moe_gpu_row rows[N_ROWS];
    for (uint32_t i = 0; i < N_ROWS; i++)
        rows[i] = (struct moe_gpu_row){t->rows[i].sequence, t->rows[i].position, 0, 0};
    return (struct moe_gpu_recurrent){
        .kind = c->state_kind,
        .n_heads = c->state_heads,
        .n_key_heads = c->state_key_heads,
        .key_dim = c->state_key_dim,
        .value_dim = c->state_value_dim,
        .states = {there(t, r->memory, r->bytes / sizeof(float)), r->n_taps, r->n_panels,
                   r->keys_at, r->values_at, r->stride, r->panel, r->layer, r->sequence},
        .layer = LAYER,
        .rows = gpu_take(&t->taken, rows, sizeof rows),
        .mixed = there(t, t->w.mixed, N_ROWS * r->stride),
        .gate = there(t, t->w.gate, N_ROWS * t->w.values_stride),
        .out = there(t, t->w.out, N_ROWS * t->w.values_stride),
        .beta = there(t, t->w.beta, N_ROWS * t->w.heads_stride),
        .decay = there(t, t->w.decay, N_ROWS * t->w.decay_stride),
        .values_stride = t->w.values_stride,
        .heads_stride = t->w.heads_stride,
        .decay_stride = t->w.decay_stride,
        .conv = there(t, l->state_conv, taps * channels),
        .conv_bias = there(t, l->state_conv_bias, channels),
        .conv_q = there(t, l->state_conv_q, taps * keys),
        .conv_k = there(t, l->state_conv_k, taps * keys),
        .step = there(t, l->state_step, c->state_heads * (uint64_t)(kda ? c->state_key_dim : 1)),
        .rate = there(t, l->state_rate, c->state_heads),
        .skip = there(t, l->state_skip, c->state_heads),
    };
}

/* As lib/gpu asks for it, without the byte forms. */
static void run_device(struct states *t, const struct moe_gpu_recurrent *r)
{
    const struct moe_config *c = &t->c;
    bool scan = r->kind == MOE_STATE_SCAN;
    uint32_t parts = scan ? r->n_key_heads : r->n_heads;
    const struct moe_gpu_norm_parts norms = {
        .x = r->out,
        .stride = r->values_stride,
        .n_parts = parts,
        .cols = c->hidden / parts,
        .weights = there(t, t->layer.state_norm, scan ? c->hidden : r->value_dim),
        .weights_of_parts = scan,
        .eps = c->norm_eps,
    };
    const struct moe_gpu_gate gate = {.x = r->out,
                                      .gate = r->gate,
                                      .x_stride = r->values_stride,
                                      .gate_stride = r->values_stride,
                                      .silu = r->kind != MOE_STATE_KDA,
                                      .act = {.cols = c->hidden}};
    moe_gpu_convolve(t->taken.g, r, N_ROWS);
    if (r->kind == MOE_STATE_CONV)
        return;
    moe_gpu_step_states(t->taken.g, r, N_ROWS);
    if (scan)
        moe_gpu_gate(t->taken.g, &gate, N_ROWS);
    moe_gpu_norm_parts(t->taken.g, &norms, N_ROWS);
    if (!scan)
        moe_gpu_gate(t->taken.g, &gate, N_ROWS);
}

static void check(struct states *t, const float *at, const float *want, uint64_t n)
{
    float *got = calloc(n, sizeof *got);
    gpu_get(t->taken.g, got, at, n * sizeof *got);
    assert_same_floats(got, want, n);
    free(got);
}

static void states_are_the_processors(void **state)
{
    for (size_t i = 0; i < N_ITEMS(shapes); i++) {
        struct states *t = calloc(1, sizeof *t);
        t->taken.g = *state;
        t->random = 11 + i;
        describe(t, &shapes[i]);
        fill(t, &shapes[i]);
        const struct moe_gpu_recurrent device = on_device(t);
        on_processor(t);
        run_device(t, &device);
        check(t, device.states.memory, t->r.memory, t->r.bytes / sizeof(float));
        for (uint32_t row = 0; row < N_ROWS; row++)
            check(t, device.out + row * device.values_stride, t->w.out + row * t->w.values_stride,
                  t->c.hidden);
        gpu_give_back(&t->taken);
        while (t->n_owned > 0)
            free(t->owned[--t->n_owned]);
        free(t);
    }
}

int main(void)
{
    struct moe_err err = {0};
    const struct CMUnitTest tests[] = {cmocka_unit_test(states_are_the_processors)};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return cmocka_run_group_tests(tests, gpu_fixture_open, gpu_fixture_close);
}
