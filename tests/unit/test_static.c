/*
 * Layers that choose their experts by the token: what checkpoints and packs say of them, which
 * tables are refused, and that their experts are asked for before they are needed.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../make_pack.h"
#include "../scratch_dir.h"
#include "../static_checkpoint.h"

#include "base/par.h"
#include "fmt/json.h"
#include "kern/kern.h"
#include "model/routes.h"
#include "run/model.h"

#include "random_model.h"

#define SWITCH "tests/fixtures/switch-b"
#define QWEN "tests/fixtures/qwen3-moe-a"

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
        uint8_t is_static[4];
    } cases[] = {
        {SWITCH, "\"all\"", {1, 1, 0, 1}}, /* layer 2, the decoder's first, has no experts */
        {SWITCH, "\"encoder\"", {1, 1, 0, 0}}, {SWITCH, "\"decoder\"", {0, 0, 0, 1}},
        {SWITCH, "[1, 3]", {0, 1, 0, 1}},      {SWITCH, "null", {0, 0, 0, 0}},
        {QWEN, "\"all\"", {1, 1, 1, 0}},       {QWEN, "\"decoder\"", {1, 1, 1, 0}},
        {QWEN, "[0]", {1, 0, 0, 0}},
    };
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_config c, back;
        struct moe_buf text = {0};
        read_config(&c, cases[i].from, cases[i].layers);
        assert_memory_equal(c.layer_is_static, cases[i].is_static, 4);
        moe_config_write(&c, &text);
        assert_ok(moe_config_read(&back, "written", text.data, text.size, &err), &err);
        assert_memory_equal(back.layer_is_static, c.layer_is_static, sizeof c.layer_is_static);
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
        {SWITCH, "[2]", "layer 2 is said to choose experts by the token, and has none"},
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
            assert_int_equal(l->routes != NULL, c->layer_is_static[layer]);
            assert_int_equal(l->router.data != NULL, l->is_moe && !c->layer_is_static[layer]);
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
         "gives token 263 an expert that is none of 0 to 15"},
        {{.from = SWITCH, .type = "I64", .spoilt = -1},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is none"},
        {{.from = SWITCH, .type = "I64", .spoilt = (int64_t)1 << 32},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is none"},
        {{.from = SWITCH, .type = "I32", .spoilt = INT32_MIN},
         MOE_ERR_FORMAT,
         "gives token 263 an expert that is none"},
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
            n_moe += m->c.layer_is_moe[i];
            n_static += m->c.layer_is_static[i];
        }
        if (n_static && n_static < n_moe && m->c.top_k >= least_k)
            return seed;
    }
}

static uint32_t first_static(const struct moe_config *c)
{
    uint32_t layer = 0;
    while (!c->layer_is_static[layer])
        layer++;
    return layer;
}

static void damaged_tables_of_packs_are_refused(void **state)
{
    static const struct {
        float value;
        const char *words;
    } cases[] = {
        {-1, "gives token 2 an expert that is none of 0 to"},
        {0.5f, "gives token 2 an expert that is none of 0 to"},
        {NAN, "gives token 2 an expert that is none of 0 to"},
        {INFINITY, "gives token 2 an expert that is none of 0 to"},
        {12, "gives token 2 an expert that is none of 0 to"}, /* no model has more */
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
    says.layer_is_static[first_static(&m.c)] = 0;
    random_model_write_as(&m, &says, 32, in_dir("x.moe"));
    assert_fails(moe_model_open(&model, in_dir("x.moe"), 0, NULL, &err), MOE_ERR_FORMAT,
                 "router' is missing", &err);
    random_model_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_json_names_the_layers),
        cmocka_unit_test(config_json_that_makes_no_sense_is_refused),
        cmocka_unit_test(packs_hold_the_tables),
        cmocka_unit_test(damaged_tables_of_checkpoints_are_refused),
        cmocka_unit_test(damaged_tables_of_packs_are_refused),
    };
    moe_kern_select(moe_cpu_detect(), NULL);
    moe_par_set_threads(2);
    return cmocka_run_group_tests_name("static", tests, make_dir, remove_dir);
}
