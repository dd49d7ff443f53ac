/*
 * DAOP's decode (IV-C) against a plain computation: from the inputs that an observer sees of a run,
 * which experts each layer takes, on which state each is computed, with which weights, and the
 * layer's output.
 */
#include <math.h>

#include "infer/expert_compute.h"

#include "strategies_fixture.h"

enum { CACHED = 6, /* experts of each layer on the device */ FIRST_PREDICTED = 2 /* 5/32 of 12 */ };
static const double TOLERANCE = 1e-4; /* of the largest value */

static struct strategies fixture;

struct token {
    float x[LAYERS][HIDDEN];        /* gate inputs */
    float before[LAYERS][HIDDEN];   /* the stream between attention and feed-forward */
    float after[LAYERS][HIDDEN];    /* ... and after the layer */
    uint32_t router[LAYERS][TOP_K]; /* its choice */
    float router_weights[LAYERS][TOP_K];
    float outputs[LAYERS][TOP_K][HIDDEN]; /* of the experts, in the order in which they are added */
};

struct watch {
    struct moe_engine *engine;
    struct token token;
    bool decode;
    uint8_t on_device[LAYERS][EXPERTS];
    uint32_t n_tokens;
    uint64_t n_precalculated, n_on_host, n_substituted; /* by the plain computation */
};

/* ---- Watching ---- */

static void note_stream(const struct watch *w, float *to)
{
    memcpy(to, w->engine->session->states.h, HIDDEN * sizeof *to);
}

static void on_attending(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                         uint64_t stride)
{
    struct watch *w = ctx;
    if (w->decode && layer > 0)
        note_stream(w, w->token.after[layer - 1]);
}

static void on_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                      const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                      uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct watch *w = ctx;
    struct token *t = &w->token;
    if (!w->decode) {
        for (uint32_t i = 0; i < n_rows * TOP_K; i++)
            w->n_on_host += !w->on_device[layer][chosen[i]];
        return;
    }
    memcpy(t->x[layer], gate_input, sizeof t->x[layer]);
    memcpy(t->router[layer], chosen, sizeof t->router[layer]);
    memcpy(t->router_weights[layer], weights, sizeof t->router_weights[layer]);
    note_stream(w, t->before[layer]);
}

static void on_computed(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                        uint64_t stride, const uint32_t *slots)
{
    struct watch *w = ctx;
    for (uint32_t k = 0; w->decode && k < TOP_K; k++)
        memcpy(w->token.outputs[layer][k], outputs + slots[k] * stride,
               sizeof w->token.outputs[layer][k]);
}

/* ---- The plain computation ---- */

static void product(const struct moe_mat *m, const double *x, double *y)
{
    float row[HIDDEN];
    assert_true(m->cols <= HIDDEN && m->rows <= HIDDEN);
    for (uint32_t i = 0; i < m->rows; i++) {
        moe_layout_load_row(m, i, row);
        y[i] = 0;
        for (uint32_t j = 0; j < m->cols; j++)
            y[i] += (double)row[j] * x[j];
    }
}

static void widen(const float *x, double *y)
{
    for (int i = 0; i < HIDDEN; i++)
        y[i] = (double)x[i];
}

/* Probabilities that a layer's router gives for an input. */
static void ask_router(const struct watch *w, uint32_t layer, const float *input, double *p)
{
    double x[HIDDEN], most = -INFINITY, sum = 0;
    widen(input, x);
    product(&w->engine->model->layers[layer].router, x, p);
    for (int e = 0; e < EXPERTS; e++)
        most = p[e] > most ? p[e] : most;
    for (int e = 0; e < EXPERTS; e++)
        sum += p[e] = exp(p[e] - most);
    for (int e = 0; e < EXPERTS; e++)
        p[e] /= sum;
}

/* What a layer computes: experts, their weights, and which of them the host had begun early. */
struct choice {
    uint32_t experts[TOP_K];
    double weights[TOP_K];
    bool early[TOP_K];
};

/* The likeliest expert that is not taken; of the device's alone where `device` says which. */
static int likeliest(const double *p, const bool *taken, const uint8_t *device)
{
    int best = -1;
    for (int e = 0; e < EXPERTS; e++)
        if (!taken[e] && (!device || device[e]) && (best < 0 || p[e] > p[best]))
            best = e;
    return best;
}

/* The predicted best k; of those on the host only the strongest stays, as far as the device has
 * others. */
static void predict(const double *p, const uint8_t *device, struct choice *c)
{
    bool taken[EXPERTS] = {0};
    int n_host = 0;
    for (int k = 0; k < TOP_K; k++) {
        c->experts[k] = (uint32_t)likeliest(p, taken, NULL);
        taken[c->experts[k]] = true;
        n_host += !device[c->experts[k]];
    }
    for (int k = TOP_K - 1; k >= 0; k--) {
        int other = likeliest(p, taken, device);
        if (device[c->experts[k]] || n_host < 2 || other < 0)
            continue;
        c->experts[k] = (uint32_t)other;
        taken[other] = true;
        n_host--;
    }
    for (int k = 0; k < TOP_K; k++) {
        c->weights[k] = p[c->experts[k]]; /* the model does not normalize its best k */
        c->early[k] = !device[c->experts[k]];
    }
}

static void take_routers(const struct token *t, uint32_t layer, struct choice *c)
{
    *c = (struct choice){0};
    for (int k = 0; k < TOP_K; k++) {
        c->experts[k] = t->router[layer][k];
        c->weights[k] = (double)t->router_weights[layer][k];
    }
}

static bool has_host_expert(const struct watch *w, uint32_t layer, const uint32_t *experts)
{
    for (int k = 0; k < TOP_K; k++)
        if (!w->on_device[layer][experts[k]])
            return true;
    return false;
}

static struct choice choose(struct watch *w, uint32_t layer)
{
    const struct token *t = &w->token;
    struct choice c = {0};
    if (layer < FIRST_PREDICTED) {
        take_routers(t, layer, &c);
        for (int k = 0; k < TOP_K; k++)
            w->n_on_host += !w->on_device[layer][c.experts[k]];
        return c;
    }
    double p[EXPERTS];
    ask_router(w, layer, t->x[layer - 1], p);
    predict(p, w->on_device[layer], &c);
    if (!has_host_expert(w, layer, c.experts) && !has_host_expert(w, layer, t->router[layer])) {
        take_routers(t, layer, &c);
        return c;
    }
    for (int k = 0; k < TOP_K; k++) {
        bool routed = false;
        for (int i = 0; i < TOP_K; i++)
            routed |= t->router[layer][i] == c.experts[k];
        w->n_substituted += !routed;
        w->n_precalculated += c.early[k];
    }
    return c;
}

/* The output of one expert, by itself: bit for bit what the engine should have. */
static void check_expert(struct watch *w, struct moe_expert_compute *compute, uint32_t layer,
                         const struct choice *c, int k)
{
    struct moe_err err = {0};
    struct moe_expert_view view = {.layer = layer, .expert = c->experts[k]};
    struct moe_arena measure = {0};
    const float *x = w->token.x[c->early[k] ? layer - 1 : layer];
    float out[HIDDEN];
    assert_ok(moe_expert_view_read(&view, w->engine->model->pack, &measure, &err), &err);
    struct moe_arena arena = {.base = moe_alloc(measure.used, 1, &err), .size = measure.used};
    assert_ok(moe_expert_view_read(&view, w->engine->model->pack, &arena, &err), &err);
    moe_expert_compute(compute, &view, x, HIDDEN, NULL, NULL, 1, out, HIDDEN);
    if (memcmp(out, w->token.outputs[layer][k], sizeof out) != 0)
        fail_msg("token %u, layer %u: output %d is not expert %u's on the input of layer %u",
                 w->n_tokens, layer, k, c->experts[k], c->early[k] ? layer - 1 : layer);
    free(arena.base);
}

/* y += the shared expert of x. */
static void add_shared(const struct moe_layer *l, const float *input, double *y)
{
    double x[HIDDEN], gate[HIDDEN], up[HIDDEN], out[HIDDEN], scale;
    widen(input, x);
    product(&l->gate, x, gate);
    product(&l->up, x, up);
    for (uint32_t i = 0; i < l->gate.rows; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    product(&l->down, gate, out);
    product(&l->shared_gate, x, &scale);
    for (int i = 0; i < HIDDEN; i++)
        y[i] += out[i] / (1 + exp(-scale));
}

static void check_layer(struct watch *w, uint32_t layer, const struct choice *c)
{
    const struct token *t = &w->token;
    double y[HIDDEN], most = 0, error = 0;
    widen(t->before[layer], y);
    for (int k = 0; k < TOP_K; k++)
        for (int i = 0; i < HIDDEN; i++)
            y[i] += c->weights[k] * (double)t->outputs[layer][k][i];
    add_shared(&w->engine->model->layers[layer], t->x[layer], y);
    for (int i = 0; i < HIDDEN; i++) {
        most = fmax(most, fabs(y[i]));
        error = fmax(error, fabs(y[i] - (double)t->after[layer][i]));
    }
    if (!(error <= TOLERANCE * most))
        fail_msg("token %u, layer %u: the output is off by %g of %g", w->n_tokens, layer, error,
                 most);
}

static void check_token(struct watch *w, struct moe_expert_compute *compute)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        struct choice c = choose(w, layer);
        for (int k = 0; k < TOP_K; k++)
            check_expert(w, compute, layer, &c, k);
        check_layer(w, layer, &c);
    }
    w->n_tokens++;
}

/* The most frequent experts of each layer by the decoded tokens of the statistics. */
static void place(struct watch *w)
{
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const uint64_t *uses = moe_series_at(fixture.statistics, MOE_S_DECODED, layer);
        for (int e = 0; e < EXPERTS; e++) {
            int before = 0;
            for (int other = 0; other < EXPERTS; other++)
                before += uses[other] > uses[e] || (uses[other] == uses[e] && other < e);
            w->on_device[layer][e] = before < CACHED;
        }
    }
}

/* ---- Runs ---- */

static void run_document(struct watch *w, const uint32_t *ids)
{
    struct moe_err err = {0};
    struct moe_session *s = w->engine->session;
    struct moe_expert_compute *compute = NULL;
    struct moe_row rows[N_ALL];
    assert_ok(moe_expert_compute_open(&compute, &w->engine->model->config, 1, &err), &err);
    for (uint32_t i = 0; i < N_ALL; i++)
        rows[i] = (struct moe_row){0, i, ids[i], 0};
    w->decode = false;
    assert_ok(moe_forward(s, MOE_PREFILL, rows, N_PROMPT, 0, LAYERS, NULL, NULL, &err), &err);
    w->decode = true;
    for (uint32_t i = N_PROMPT; i < N_ALL; i++) {
        assert_ok(moe_forward(s, MOE_DECODE, &rows[i], 1, 0, LAYERS, NULL,
                              w->token.after[LAYERS - 1], &err),
                  &err);
        check_token(w, compute);
    }
    moe_expert_compute_close(compute);
}

static void check_daop(const char *words, double speed)
{
    struct watch *w = calloc(1, sizeof *w);
    struct moe_engine_options o = strategies_options(&fixture, words, (double)CACHED / TOP_K);
    o.device = (struct moe_device_choice){.test = true, .speed = speed, .link_rate = 8e9};
    w->engine = strategies_open(&fixture, &o);
    w->engine->session->observer = (struct moe_observer){
        .ctx = w, .routed = on_routed, .attending = on_attending, .computed = on_computed};
    place(w);
    for (int i = 0; i < N_DOCUMENTS; i++)
        run_document(w, fixture.ids[i]);
    const struct moe_counts *p = &w->engine->session->stats.prefill.experts;
    const struct moe_counts *d = &w->engine->session->stats.decode.experts;
    assert_int_equal(w->n_tokens, N_DOCUMENTS * N_DECODE);
    assert_int_equal(d->precalculated, w->n_precalculated);
    assert_int_equal(d->substituted, w->n_substituted);
    assert_int_equal(p->host_computed + d->host_computed, w->n_on_host);
    assert_int_equal(d->cache_hits, d->activations - d->precalculated - d->host_computed);
    assert_int_equal(p->loads + d->loads + p->evictions + d->evictions, 0);
    print_message("# %s: %u tokens, %llu precalculated, %llu on the host, %llu substituted\n",
                  words, w->n_tokens, (unsigned long long)w->n_precalculated,
                  (unsigned long long)w->n_on_host, (unsigned long long)w->n_substituted);
    assert_true(w->n_precalculated > 0 && w->n_substituted > 0);
    moe_par_set_threads(2);
    moe_engine_close(w->engine);
    free(w);
}

static void decode_equals_a_plain_computation(void **state)
{
    check_daop("daop prefill-swap=off", 1);
}

static int open_all(void **state)
{
    strategies_set_up(&fixture, "daop", 16);
    return 0;
}

static int close_all(void **state)
{
    strategies_tear_down(&fixture);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_equals_a_plain_computation),
    };
    return cmocka_run_group_tests_name("daop", tests, open_all, close_all);
}
