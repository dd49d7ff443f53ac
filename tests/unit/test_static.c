/*
 * Layers that choose their experts by the token: what checkpoints and packs say of them, which
 * tables are refused, and that their experts are asked for before they are needed.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../static_checkpoint.h"

#include "model/read.h"
#include "model/routes.h"

#include "simulated_fixture.h"

#define SWITCH DRAWN "/switch-b"
#define QWEN DRAWN "/qwen3-moe-a"

/* ---- Descriptions ---- */

static void read_config(struct moe_config *c, const char *from, const char *layers)
{
    struct moe_err err = {0};
    struct static_checkpoint m = {.from = from, .layers = layers};
    static_config(&m, dir);
    assert_ok(moe_config_read_hf(c, dir, &err), &err);
}

static void config_json_names_the_layers(void **state)
{
    static const struct {
        const char *from, *layers;
        const char *is_static;
    } cases[] = {
        {SWITCH, "\"all\"", "1101"}, /* layer 2, the decoder's first, has no experts */
        {SWITCH, "\"encoder\"", "1100"}, {SWITCH, "\"decoder\"", "0001"},
        {SWITCH, "[1, 3]", "0101"},      {SWITCH, "null", "0000"},
        {QWEN, "\"all\"", "1110"},       {QWEN, "\"decoder\"", "1110"},
        {QWEN, "[0]", "1000"},
    };
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_config c, back;
        struct moe_buf text = {0};
        read_config(&c, cases[i].from, cases[i].layers);
        assert_layers_have(c, static_routing, cases[i].is_static);
        moe_config_write(&c, &text);
        assert_ok(moe_config_read(&back, "written", text.data, text.size, &err), &err);
        assert_memory_equal(back.layers, c.layers, sizeof c.layers);
        moe_buf_release(&text);
    }
}

static void config_json_that_makes_no_sense_is_refused(void **state)
{
    static const struct {
        const char *from, *layers, *words;
    } cases[] = {
        {SWITCH, "\"some\"", "must be \"all\", \"encoder\", \"decoder\" or a list"},
        {SWITCH, "7", "must be \"all\""},
        {SWITCH, "[4]", "names no layer at item 0"},
        {SWITCH, "[1, -1]", "names no layer at item 1"},
        {SWITCH, "[1, \"x\"]", "names no layer at item 1"},
        {SWITCH, "[2]", "layer 2 has static routing and no experts"},
        {QWEN, "\"encoder\"", "is \"encoder\", and the model has none"},
    };
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_config c;
        struct static_checkpoint m = {.from = cases[i].from, .layers = cases[i].layers};
        static_config(&m, dir);
        assert_fails(moe_config_read_hf(&c, dir, &err), MOE_ERR_FORMAT, cases[i].words, &err);
    }
    struct moe_config c;
    read_config(&c, QWEN, "\"all\"");
    c.vocab = MOE_MAX_DIM;
    assert_fails(moe_config_check(&c, "x", &err), MOE_ERR_UNSUPPORTED,
                 "a table of 3 experts for each of 16777216 tokens is too large", &err);
}

/* ---- Tables ---- */

static int convert(struct static_checkpoint *m, struct moe_err *err)
{
    const struct moe_convert_options o = pack_options("32", 32);
    struct moe_convert_report report;
    unlink(in_dir("x.moe"));
    make_static_checkpoint(m, dir);
    return moe_convert_checkpoint(dir, in_dir("x.moe"), &o, &report, err);
}

/* Tables of both types, as a matrix and as a list, come into the pack. */
static void packs_hold_the_tables(void **state)
{
    static const struct static_checkpoint cases[] = {
        {.from = SWITCH, .layers = "\"all\"", .type = "I64", .flat = true},
        {.from = SWITCH, .layers = "[0, 3]", .type = "I32"},
        {.from = QWEN, .layers = "[1, 2]", .type = "I64"},
    };
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct static_checkpoint made = cases[i];
        struct moe_model *model = NULL;
        uint64_t random = 3;
        assert_ok(convert(&made, &err), &err);
        assert_ok(moe_model_open(&model, in_dir("x.moe"), 0, NULL, &err), &err);
        const struct moe_config *c = &model->config;
        for (uint32_t layer = 0; layer < c->n_layers; layer++) {
            const struct moe_layer *l = &model->layers[layer];
            uint32_t chosen[MOE_MAX_TOP_K];
            float weights[MOE_MAX_TOP_K];
            assert_int_equal(l->routes != NULL, c->layers[layer].static_routing);
            assert_int_equal(l->router.data != NULL, l->is_moe && !c->layers[layer].static_routing);
            for (uint32_t token = 0; l->routes && token < c->vocab; token++) {
                moe_routes_choose(c, l->routes, token, chosen, weights);
                for (uint32_t k = 0; k < c->top_k; k++)
                    assert_true(chosen[k] < c->n_experts && weights[k] == 1 / (float)c->top_k);
            }
        }
        /* Tensors come by name, the encoder's after the decoder's. */
        uint32_t first = c->n_encoder ? 3 : 1;
        for (uint32_t token = 0; token < c->vocab; token++)
            assert_int_equal(model->layers[first].routes[token * c->top_k],
                             test_random(&random) % c->n_experts);
        moe_model_close(model);
    }
}

static void damaged_tables_of_checkpoints_are_refused(void **state)
{
    static const struct {
        struct static_checkpoint made;
        int status;
        const char *words;
    } cases[] = {
        {{.from = SWITCH, .type = "I64", .spoilt = 16},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is not one of 0 to 15"},
        {{.from = SWITCH, .type = "I64", .spoilt = -1},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is not one"},
        {{.from = SWITCH, .type = "I64", .spoilt = (int64_t)1 << 32},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is not one"},
        {{.from = SWITCH, .type = "I32", .spoilt = INT32_MIN},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is not one"},
        {{.from = QWEN, .type = "I64", .twice = true}, MOE_ERR_FORMAT, "gives token 259 expert"},
        {{.from = SWITCH, .type = "U64"}, MOE_ERR_UNSUPPORTED, "is of type U64, which is not read"},
        {{.from = QWEN, .type = "I64", .flat = true}, MOE_ERR_FORMAT, "do not fit its shape"},
    };
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct static_checkpoint made = cases[i].made;
        made.layers = "\"all\"";
        assert_fails(convert(&made, &err), cases[i].status, cases[i].words, &err);
        assert_false(moe_path_exists(in_dir("x.moe")));
    }
    /* A table that is not there, and one that nothing asks for. */
    struct static_checkpoint made = {.from = SWITCH, .layers = "[0]", .type = "I64"};
    assert_ok(convert(&made, &err), &err);
    const struct moe_convert_options o = pack_options("32", 32);
    struct moe_convert_report report;
    made.layers = "[1]";
    static_config(&made, dir);
    assert_fails(moe_convert_checkpoint(dir, in_dir("y.moe"), &o, &report, &err), MOE_ERR_FORMAT,
                 "encoder.block.0.layer.1.mlp.router.classifier.weight' [16][24] is missing", &err);
    made.layers = "[]";
    static_config(&made, dir);
    assert_fails(moe_convert_checkpoint(dir, in_dir("y.moe"), &o, &report, &err), MOE_ERR_FORMAT,
                 "is missing", &err);
}

/* Draws a model with layers of both kinds. */
static uint64_t draw_mixed(struct random_model *m, uint64_t seed, uint32_t least_k)
{
    for (;; seed++, random_model_free(m)) {
        uint32_t n_moe = 0, n_static = 0;
        random_static_draw(m, seed);
        for (uint32_t i = 0; i < m->c.n_layers; i++) {
            n_moe += m->c.layers[i].moe;
            n_static += m->c.layers[i].static_routing;
        }
        if (n_static && n_static < n_moe && m->c.top_k >= least_k)
            return seed;
    }
}

static uint32_t first_static(const struct moe_config *c)
{
    uint32_t layer = 0;
    while (!c->layers[layer].static_routing)
        layer++;
    return layer;
}

static void damaged_tables_of_packs_are_refused(void **state)
{
    static const struct {
        float value;
        const char *words;
    } cases[] = {
        {-1, "gives token 2 an expert that is not one of 0 to"},
        {0.5f, "gives token 2 an expert that is not one of 0 to"},
        {NAN, "gives token 2 an expert that is not one of 0 to"},
        {INFINITY, "gives token 2 an expert that is not one of 0 to"},
        {12, "gives token 2 an expert that is not one of 0 to"}, /* no model has more */
    };
    struct moe_err err = {0};
    struct random_model m;
    struct moe_model *model = NULL;
    draw_mixed(&m, 1, 2);
    float *routes = m.dense[first_static(&m.c)][MOE_T_ROUTES];
    uint32_t at = 2 * m.c.top_k;
    for (size_t i = 0; i <= N_ITEMS(cases); i++) {
        float right = routes[at];
        routes[at] = i < N_ITEMS(cases) ? cases[i].value : routes[at + 1];
        random_model_write(&m, 32, in_dir("x.moe"));
        assert_fails(moe_model_open(&model, in_dir("x.moe"), 0, NULL, &err), MOE_ERR_FORMAT,
                     i < N_ITEMS(cases) ? cases[i].words : "gives token 2 expert", &err);
        routes[at] = right;
    }
    /* Without the table, and with a router beside it that nothing reads. */
    struct moe_config says = m.c;
    says.layers[first_static(&m.c)].static_routing = 0;
    random_model_write_as(&m, &says, 32, in_dir("x.moe"));
    assert_fails(moe_model_open(&model, in_dir("x.moe"), 0, NULL, &err), MOE_ERR_FORMAT,
                 "router' is missing", &err);
    random_model_free(&m);
}

/* ---- Offloaded ---- */

static void count_known(void *ctx, size_t k, const struct moe_stats *stats)
{
    uint64_t *n_known = ctx;
    const struct moe_phase_stats all = moe_stats_all(stats);
    assert_true(all.experts.known_prefetches <= all.experts.prefetches);
    assert_true(k > 0 || all.experts.known == 0);
    *n_known += all.experts.known_prefetches;
}

/* The same bits whatever is kept, however it is computed; what is known is preloaded. */
static void nothing_changes_a_result(void **state)
{
    static const char *const strategies[] = {"lru",
                                             "prefetch",
                                             "prefetch+predict=previous",
                                             "prefetch+predict=gate-ahead:3",
                                             "prefetch+predict=gate-attention-before",
                                             "prefetch+prefetch=until-router;all"};
    uint64_t seed = 1, n_known = 0;
    for (int i = 0; i < 6; i++, seed++) {
        struct random_model m;
        seed = draw_mixed(&m, seed, 1);
        check_same_bits(&m, seed, i % 2 ? 8 : 32, strategies, N_ITEMS(strategies), count_known,
                        &n_known);
        random_model_free(&m);
    }
    assert_true(n_known > 500);
}

/* With room for them no expert of such a layer is a miss: here no other layer has any. */
static void preloading_leaves_no_misses(void **state)
{
    for (int encoder = 0; encoder < 2; encoder++) {
        struct static_checkpoint made = {
            .from = encoder ? SWITCH : QWEN, .layers = "\"all\"", .type = "I64"};
        struct moe_err err = {0};
        struct moe_row rows[N_IDS];
        uint32_t ids[N_IDS];
        assert_ok(convert(&made, &err), &err);
        const struct moe_config *c = &made.c;
        draw_ids(c, 3, ids);
        uint32_t most = 4 * c->n_experts; /* more than a pass wants */
        struct moe_engine *e = open_engine("prefetch", 8 * (uint64_t)most * 100000, most);
        struct moe_stats *stats = &e->session->stats;
        for (uint32_t i = 0; i < N_IDS; i++)
            rows[i] = (struct moe_row){0, i, ids[i], N_IDS};
        if (encoder)
            assert_ok(moe_encode(e->session, rows, N_IDS, NULL, &err), &err);
        for (uint32_t i = 0; i < N_IDS; i++) {
            rows[i].length = 0;
            assert_ok(moe_forward(e->session, MOE_DECODE, &rows[i], 1, c->n_encoder, c->n_layers,
                                  NULL, NULL, &err),
                      &err);
        }
        const struct moe_phase_stats all = moe_stats_all(stats);
        assert_int_equal(all.experts.misses, 0);
        assert_int_equal(all.experts.known, all.experts.activations);
        assert_int_equal(all.experts.known_prefetches, all.experts.loads);
        assert_int_equal(all.experts.prefetches_used, all.experts.loads);
        assert_int_equal(all.experts.predicted, 0);
        assert_true(all.experts.loads > 0);
        moe_engine_close(e);
    }
}

/* ---- Simulated ---- */

/* Run in lockstep and simulated from a trace, they preload the same; a trace that does not say that
 * layers are static is of another model. */
static void simulations_preload_alike(void **state)
{
    static const struct static_checkpoint models[] = {
        {.from = QWEN, .layers = "[0, 2]", .type = "I64"},
        {.from = QWEN, .layers = "\"all\"", .type = "I64"},
        {.from = DRAWN "/switch-a", .layers = "\"all\"", .type = "I64"},
        {.from = DRAWN "/switch-a", .layers = "\"decoder\"", .type = "I64"},
    };
    static const char *const words[] = {"prefetch", "edgemoe", "prefetch+predict=gate-ahead:2",
                                        "prefetch+predict=previous", "fate+prefill=popularity"};
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(models); i++) {
        struct static_checkpoint made = models[i];
        struct moe_statistics *counted = NULL;
        struct moe_trace *trace = NULL;
        uint32_t ids[N_IDS];
        assert_ok(convert(&made, &err), &err);
        draw_ids(&made.c, 5, ids);
        write_trace(in_dir("x.trace"), &counted, ids);
        assert_ok(moe_trace_open(&trace, in_dir("x.trace"), &err), &err);
        for (size_t k = 0; k < N_ITEMS(words); k++)
            assert_true(compare(words[k], (k + i) % 2 ? 6 : 12, (k + i) % 2 ? 0.3 : 1.5, ids,
                                counted, trace)
                            .decode.experts.known > 0);
        moe_trace_close(trace);
        moe_statistics_free(counted);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_names_the_layers),
        cmocka_unit_test(config_json_that_makes_no_sense_is_refused),
        cmocka_unit_test(packs_hold_the_tables),
        cmocka_unit_test(damaged_tables_of_checkpoints_are_refused),
        cmocka_unit_test(damaged_tables_of_packs_are_refused),
        cmocka_unit_test(nothing_changes_a_result),
        cmocka_unit_test(preloading_leaves_no_misses),
        cmocka_unit_test(simulations_preload_alike),
    };
    moe_kern_select(moe_cpu_detect(), NULL);
    moe_par_set_threads(2);
    return cmocka_run_group_tests_name("static", tests, make_dir, remove_dir);
}
