/*
 * Routers that stand before attention (SmallThinker) or beside it (Command-A): their experts are
 * asked for before attention is computed, results are the same whatever is kept, observers see what
 * the router chose, and the simulator does the same.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "base/rank.h"

#include "simulated_fixture.h"

#define SMALLTHINKER DRAWN "/smallthinker-a"
#define COMMAND_A DRAWN "/cohere2-moe-a"

static uint64_t slot_bytes(void)
{
    struct moe_engine *e = open_engine("resident", 0, 0);
    uint64_t slot = moe_cache_slot_bytes(e->model->pack, 0);
    moe_engine_close(e);
    return slot;
}

static void convert(const char *fixture)
{
    const struct moe_convert_options o = pack_options("32", 32);
    make_pack(in_dir("x.moe"), fixture, &o);
}

/* ---- When experts are asked for ---- */

struct order {
    const struct moe_session *s;
    uint32_t n_layers; /* whose attention began, of all tokens */
    uint32_t n_early;  /* their loads had begun by then */
};

static void on_attending(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                         uint64_t stride)
{
    struct order *o = ctx;
    const struct moe_counts *counts = &o->s->phase->experts;
    o->n_layers++;
    assert_int_equal(counts->activations, (uint64_t)o->n_layers * o->s->model->config.top_k);
    assert_int_equal(counts->activations, counts->misses + counts->cache_hits);
    o->n_early += counts->misses > 0 && counts->loads > 0;
}

static void experts_are_asked_for_before_attention(void **state)
{
    struct moe_err err = {0};
    uint32_t ids[N_IDS];
    convert(SMALLTHINKER);
    uint64_t slot = slot_bytes();
    struct moe_engine *e = open_engine("lru", 4 * slot, 0);
    const struct moe_config *c = &e->model->config;
    struct order o = {.s = e->session};
    draw_ids(c, 7, ids);
    e->session->observer = (struct moe_observer){.ctx = &o, .attending = on_attending};
    for (uint32_t i = 0; i < N_IDS; i++) {
        const struct moe_row row = {0, i, ids[i], 0};
        assert_ok(moe_forward(e->session, MOE_DECODE, &row, 1, 0, c->n_layers, NULL, NULL, &err),
                  &err);
    }
    assert_int_equal(o.n_layers, N_IDS * c->n_layers);
    assert_int_equal(o.n_early, o.n_layers);
    e->session->observer = (struct moe_observer){0};
    moe_engine_close(e);
}

/* ---- Results ---- */

/* The same bits whatever is kept and predicted. */
static void nothing_changes_a_result(void **state)
{
    static const char *const strategies[] = {"lru",
                                             "prefetch",
                                             "prefetch+predict=previous",
                                             "prefetch+predict=gate-ahead:3",
                                             "prefetch+predict=gate-residual:2",
                                             "prefetch+predict=gate-attention",
                                             "prefetch+predict=gate-attention-before"};
    uint64_t seed = 1;
    for (int i = 0; i < 8; i++, seed++) {
        struct random_model m;
        for (random_static_draw(&m, seed); !m.c.router_early; random_static_draw(&m, ++seed))
            random_model_free(&m);
        check_same_bits(&m, seed, i % 2 ? 8 : 32, strategies, N_ITEMS(strategies), NULL, NULL);
        random_model_free(&m);
    }
}

/* ---- What observers see ---- */

static void on_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                      const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                      uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    const struct moe_config *c = ctx;
    uint32_t best[MOE_MAX_TOP_K];
    moe_best(probabilities, c->n_experts, c->top_k, best);
    assert_memory_equal(chosen, best, c->top_k * sizeof *best);
}

static void observers_see_what_the_router_chose(void **state)
{
    struct moe_err err = {0};
    uint32_t ids[N_IDS];
    convert(SMALLTHINKER);
    uint64_t slot = slot_bytes();
    struct moe_engine *e = open_engine("lru+prefer-cached=1", 22 * slot, 0);
    struct moe_config *c = &e->model->config;
    draw_ids(c, 9, ids);
    e->session->observer = (struct moe_observer){.ctx = c, .routed = on_routed};
    for (uint32_t i = 0; i < N_IDS; i++) {
        const struct moe_row row = {0, i, ids[i], 0};
        assert_ok(moe_forward(e->session, MOE_DECODE, &row, 1, 0, c->n_layers, NULL, NULL, &err),
                  &err);
    }
    assert_true(e->session->stats.decode.experts.substituted > 20);
    e->session->observer = (struct moe_observer){0};
    moe_engine_close(e);
}

/* ---- Simulated ---- */

/* Run in lockstep and simulated from a trace, they ask for the same at the same time. */
static void simulations_ask_alike(void **state)
{
    const char *fixture = *state;
    static const char *const words[] = {"lru",
                                        "prefetch",
                                        "prefetch+predict=previous",
                                        "prefetch+predict=gate-ahead:2",
                                        "prefetch+prefetch=all+predict=gate-residual:2",
                                        "prefetch+predict=gate-attention",
                                        "prefetch+predict=gate-attention-before",
                                        "fate+prefill=popularity"};
    struct moe_err err = {0};
    struct moe_statistics *counted = NULL;
    struct moe_trace *trace = NULL;
    struct moe_config c;
    uint32_t ids[N_IDS];
    convert(fixture);
    struct moe_engine *e = open_engine("resident", 0, 0);
    c = e->model->config;
    moe_engine_close(e);
    draw_ids(&c, 5, ids);
    write_trace(in_dir("x.trace"), &counted, ids);
    assert_ok(moe_trace_open(&trace, in_dir("x.trace"), &err), &err);
    for (size_t k = 0; k < N_ITEMS(words); k++)
        for (int i = 0; i < 2; i++) {
            struct moe_simulated s =
                compare(words[k], i ? 6 : 12, i ? 0.3 : 1.5, ids, counted, trace);
            /* A layer's own router is asked, not guessed; other routers are. */
            bool own = strstr(words[k], "gate-attention") && !strstr(words[k], "-before");
            assert_true(!own || s.decode.experts.predicted == 0);
            assert_true(!strstr(words[k], "gate-residual") || s.decode.experts.predicted > 100);
        }
    moe_trace_close(trace);
    moe_statistics_free(counted);
}

/* What predictors see: the stream as it came into a layer says exactly what this chooses, under the
 * norm of both blocks where these have one. */
static void probes_see_the_stream(void **state)
{
    const char *fixture = *state;
    struct moe_err err = {0};
    struct moe_statistics *counted = NULL;
    struct moe_trace *trace = NULL;
    const struct moe_trace_token *token;
    uint32_t ids[N_IDS], n = 0, n_right[2] = {0};
    convert(fixture);
    struct moe_engine *e = open_engine("resident", 0, 0);
    const struct moe_config *c = &e->model->config;
    uint32_t n_layers = c->n_moe_layers, top_k = e->model->config.top_k;
    draw_ids(&e->model->config, 5, ids);
    moe_engine_close(e);
    write_trace(in_dir("x.trace"), &counted, ids);
    assert_ok(moe_trace_open(&trace, in_dir("x.trace"), &err), &err);
    for (;;) {
        assert_ok(moe_trace_next(trace, &token, &err), &err);
        if (!token)
            break;
        for (uint32_t layer = 1; layer < n_layers; layer++) {
            const struct moe_trace_step step = moe_trace_step(trace, layer);
            const uint16_t *own = step.predicted[MOE_PREDICT_ATTN].experts;
            const uint16_t *gate = step.predicted[MOE_PREDICT_GATE_1].experts;
            const uint16_t *before = step.predicted[MOE_PREDICT_ATTN_1].experts;
            const uint16_t *residual = step.predicted[MOE_PREDICT_RESIDUAL_1].experts;
            assert_memory_equal(own, step.experts, top_k * sizeof *own);
            assert_memory_equal(gate, residual, top_k * sizeof *gate);
            for (uint32_t k = 0; k < top_k; k++, n++)
                for (uint32_t i = 0; i < top_k; i++) {
                    n_right[0] += before[i] == step.experts[k];
                    n_right[1] += residual[i] == step.experts[k];
                }
        }
    }
    print_message("# of %u chosen experts the layer's before says %u before its attention, %u "
                  "after it\n",
                  n, n_right[0], n_right[1]);
    assert_true(n_right[0] != n_right[1]);
    moe_trace_close(trace);
    moe_statistics_free(counted);
}

/* ---- Refused ---- */

static void what_is_not_computed_is_refused(void **state)
{
    struct moe_err err = {0};
    struct random_model m;
    uint64_t seed = 1;
    for (random_static_draw(&m, seed); !m.c.router_early; random_static_draw(&m, ++seed))
        random_model_free(&m);
    assert_fails(moe_config_check_gpu(&m.c, "x", &err), MOE_ERR_UNSUPPORTED,
                 "routers before attention", &err);
    m.c.layers[0].no_ffn = 1;
    m.c.layers[0].moe = 0;
    assert_fails(moe_config_check(&m.c, "x", &err), MOE_ERR_UNSUPPORTED, "routers before attention",
                 &err);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_asked_for_before_attention),
        cmocka_unit_test(nothing_changes_a_result),
        cmocka_unit_test(observers_see_what_the_router_chose),
        cmocka_unit_test_prestate(simulations_ask_alike, SMALLTHINKER),
        cmocka_unit_test_prestate(simulations_ask_alike, COMMAND_A),
        cmocka_unit_test_prestate(probes_see_the_stream, SMALLTHINKER),
        cmocka_unit_test_prestate(probes_see_the_stream, COMMAND_A),
        cmocka_unit_test(what_is_not_computed_is_refused),
    };
    moe_kern_select(moe_cpu_detect(), NULL);
    moe_par_set_threads(2);
    return cmocka_run_group_tests_name("early", tests, make_dir, remove_dir);
}
