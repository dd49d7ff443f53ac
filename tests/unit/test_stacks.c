/*
 * Models with an encoder, and feed-forwards of two matrices: what packs of them say and hold.
 */
#include "infer/expert_compute.h"
#include "infer/model.h"

#include "random_model.h"

enum { N_MODELS = 60 };

static char path[128];

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/moe-stacks-%d.moe", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void assert_equal_configs(const struct moe_config *a, const struct moe_config *b)
{
    struct moe_buf x = {0}, y = {0};
    moe_config_write(a, &x);
    moe_config_write(b, &y);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    moe_buf_release(&x);
    moe_buf_release(&y);
}

static void descriptions_come_back(void **state)
{
    (void)state;
    struct moe_err err = {0};
    uint32_t kinds[3] = {0};
    for (uint64_t seed = 0; seed < N_MODELS; seed++) {
        struct moe_config c, back;
        struct moe_buf text = {0};
        uint64_t random = seed;
        random_stacks_config(&c, &random);
        assert_ok(moe_config_check(&c, "drawn", &err), &err);
        moe_config_write(&c, &text);
        assert_ok(moe_config_read(&back, "written", text.data, text.size, &err), &err);
        assert_equal_configs(&c, &back);
        assert_int_equal(back.n_encoder, c.n_encoder);
        assert_int_equal(back.expert_capacity, c.expert_capacity);
        assert_int_equal(back.decoder_start, c.decoder_start);
        assert_int_equal(back.dense_act, c.dense_act);
        assert_int_equal(back.positions, c.positions);
        kinds[0] += c.positions == MOE_POSITIONS_BUCKETS;
        kinds[1] += c.expert_act == MOE_ACT_RELU;
        kinds[2] += c.expert_capacity > 0;
        moe_buf_release(&text);
    }
    for (int i = 0; i < 3; i++)
        assert_in_range(kinds[i], N_MODELS / 5, N_MODELS * 4 / 5);
}

/* Exactly these tensors are there, with the values that were written; the encoder's layers have
 * no attention to the encoder, and a stack's first layer alone has a table of positions. */
static void packs_hold_both_stacks(void **state)
{
    (void)state;
    struct moe_err err = {0};
    for (uint64_t seed = 0; seed < N_MODELS; seed++) {
        struct random_model m;
        struct moe_model *model;
        random_stacks_draw(&m, seed);
        random_model_write(&m, 32, path);
        assert_ok(moe_model_open(&model, path, 0, NULL, &err), &err);
        for (uint32_t i = 0; i < m.c.n_layers; i++) {
            const struct moe_layer *l = &model->layers[i];
            bool encoder = moe_config_in_encoder(&m.c, i), first = i == 0 || i == m.c.n_encoder;
            bool buckets = m.c.positions == MOE_POSITIONS_BUCKETS;
            assert_int_equal(l->cross_q.data != NULL, !encoder);
            assert_int_equal(l->cross_norm != NULL, !encoder);
            assert_int_equal(l->cross_norm_bias != NULL,
                             !encoder && m.c.norm_kind == MOE_NORM_LAYER);
            assert_int_equal(l->cross_q_bias != NULL, !encoder && m.c.qkv_bias);
            assert_int_equal(l->cross_o_bias != NULL, !encoder && m.c.o_bias);
            assert_int_equal(l->position_bias != NULL, buckets && first);
            if (buckets && first)
                assert_memory_equal(l->position_bias, m.dense[i][MOE_T_POSITION_BIAS],
                                    m.c.n_buckets * m.c.n_heads * sizeof(float));
            assert_int_equal(l->gate.data != NULL, !l->is_moe && moe_act_is_gated(m.c.dense_act));
            assert_int_equal(l->has_ffn, !l->is_moe);
        }
        assert_memory_equal(model->encoder_norm, m.dense[0][MOE_T_ENCODER_NORM],
                            m.c.hidden * sizeof(float));
        assert_int_equal(model->encoder_norm_bias != NULL, m.c.norm_kind == MOE_NORM_LAYER);
        moe_model_close(model);
        random_model_free(&m);
    }
}

/* Norms behind blocks, learnt positions, a bypass, a last projection: there where the description
 * has them. */
static void packs_hold_prefix_models(void **state)
{
    (void)state;
    struct moe_err err = {0};
    for (uint64_t seed = 0; seed < N_MODELS; seed++) {
        struct random_model m;
        struct moe_model *model;
        random_prefix_draw(&m, seed);
        assert_ok(moe_config_check(&m.c, "drawn", &err), &err);
        random_model_write(&m, 32, path);
        assert_ok(moe_model_open(&model, path, 0, NULL, &err), &err);
        assert_equal_configs(&m.c, &model->config);
        assert_int_equal(model->positions.data != NULL, m.c.positions == MOE_POSITIONS_LEARNT);
        assert_int_equal(model->extra_positions.data != NULL, m.c.extra_positions > 0);
        assert_int_equal(model->final_norm != NULL, !m.c.last_projection);
        assert_int_equal(model->last_projection.data != NULL, m.c.last_projection);
        if (m.c.last_projection)
            assert_memory_equal(model->last_projection_bias, m.dense[0][MOE_T_LAST_PROJECTION_BIAS],
                                m.c.hidden * sizeof(float));
        for (uint32_t i = 0; i < m.c.n_layers; i++) {
            const struct moe_layer *l = &model->layers[i];
            assert_int_equal(l->bypass.data != NULL, l->is_moe && m.c.soft_bypass);
            assert_int_equal(l->up_bias != NULL, !l->is_moe && m.c.dense_bias);
            if (l->up_bias)
                assert_memory_equal(l->up_bias, m.dense[i][MOE_T_UP_BIAS],
                                    m.c.dense_ff * sizeof(float));
        }
        moe_model_close(model);
        random_model_free(&m);
    }
}

/* The first seed whose model is so. */
static uint64_t draw_with(struct random_model *m, bool (*is)(const struct moe_config *c))
{
    uint64_t seed = 0;
    for (random_stacks_draw(m, seed); !is(&m->c); random_stacks_draw(m, ++seed))
        random_model_free(m);
    return seed;
}

static bool with_tables(const struct moe_config *c)
{
    return c->positions == MOE_POSITIONS_BUCKETS && c->n_layers > c->n_encoder + 1;
}

static void missing_tensors_are_named(void **state)
{
    (void)state;
    static const struct {
        enum moe_tensor_role role;
        bool decoder;
    } cases[] = {
        {MOE_T_CROSS_NORM, true},     {MOE_T_CROSS_Q, true},       {MOE_T_CROSS_K, true},
        {MOE_T_CROSS_V, true},        {MOE_T_CROSS_O, true},       {MOE_T_ENCODER_NORM, false},
        {MOE_T_POSITION_BIAS, false}, {MOE_T_POSITION_BIAS, true},
    };
    struct moe_err err = {0};
    struct random_model m;
    struct moe_model *model;
    draw_with(&m, with_tables);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t layer = cases[i].decoder ? m.c.n_encoder : 0;
        float *values = m.dense[layer][cases[i].role];
        char name[MOE_NAME_BYTES];
        assert_non_null(values);
        m.dense[layer][cases[i].role] = NULL;
        random_model_write(&m, 32, path);
        m.dense[layer][cases[i].role] = values;
        moe_tensor_pack_name(cases[i].role, layer, name);
        assert_fails(moe_model_open(&model, path, 0, NULL, &err), MOE_ERR_FORMAT, name, &err);
    }
    random_model_free(&m);
}

/* ---- Two matrices ---- */

static bool with_two_matrices(const struct moe_config *c)
{
    return c->expert_act == MOE_ACT_RELU && c->n_moe_layers > 0;
}

/* A pack that holds gates which the description has no use for, or lacks those that it has. */
static void gates_are_there_where_they_are_computed(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct random_model m;
    struct moe_model *model;
    draw_with(&m, with_two_matrices);
    struct moe_config gated = m.c;
    gated.expert_act = MOE_ACT_SWIGLU;
    random_model_write_as(&m, &gated, 32, path);
    assert_fails(moe_model_open(&model, path, 0, NULL, &err), MOE_ERR_FORMAT, "matrix of role 1",
                 &err);
    struct random_model both = m;
    both.c.expert_act = MOE_ACT_SWIGLU;
    for (uint32_t layer = 0; layer < m.c.n_layers; layer++)
        for (uint32_t e = 0; m.c.layers[layer].moe && e < m.c.n_experts; e++)
            both.expert[layer][e][MOE_E_GATE] = both.expert[layer][e][MOE_E_UP];
    random_model_write_as(&both, &m.c, 32, path);
    assert_fails(moe_model_open(&model, path, 0, NULL, &err), MOE_ERR_FORMAT,
                 "an expert class has 3 matrices and biases, the model's have 2", &err);
    random_model_free(&m);
}

/* An expert of the pack computes what its two matrices mean. */
static void experts_of_two_matrices(void **state)
{
    (void)state;
    struct moe_err err = {0};
    for (uint64_t seed = 0; seed < N_MODELS; seed++) {
        struct random_model m;
        struct moe_model *model;
        struct moe_expert_compute *compute;
        struct moe_expert_view view = {0};
        struct moe_arena arena = {0};
        float x[128], out[128];
        random_stacks_draw(&m, seed);
        while (view.layer < m.c.n_layers && !m.c.layers[view.layer].moe)
            view.layer++;
        if (moe_act_is_gated(m.c.expert_act) || view.layer == m.c.n_layers) {
            random_model_free(&m);
            continue;
        }
        random_model_write(&m, 32, path);
        assert_ok(moe_model_open(&model, path, 0, NULL, &err), &err);
        view.expert = m.c.n_experts - 1;
        assert_ok(moe_expert_view_read(&view, model->pack, &arena, &err), &err);
        arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, &err), .size = arena.used};
        uint8_t *block = arena.base;
        assert_ok(moe_expert_view_read(&view, model->pack, &arena, &err), &err);
        assert_null(view.gate.data);
        assert_int_equal(view.up.rows, m.c.expert_ff);
        assert_ok(moe_expert_compute_open(&compute, &m.c, 1, &err), &err);
        uint64_t random = seed;
        for (uint32_t i = 0; i < m.c.hidden; i++)
            x[i] = test_uniform(&random);
        moe_expert_compute(compute, &view, x, m.c.hidden, NULL, NULL, 1, out, 128);
        float *const *e = m.expert[view.layer][view.expert];
        double mid[64];
        for (uint32_t r = 0; r < m.c.expert_ff; r++) {
            double up = m.c.expert_bias ? (double)e[MOE_E_UP_BIAS][r] : 0;
            for (uint32_t c = 0; c < m.c.hidden; c++)
                up += (double)e[MOE_E_UP][r * m.c.hidden + c] * x[c];
            mid[r] = m.c.expert_act == MOE_ACT_RELU ? fmax(up, 0) : up / (1 + exp(-up));
        }
        for (uint32_t r = 0; r < m.c.hidden; r++) {
            double want = m.c.expert_bias ? (double)e[MOE_E_DOWN_BIAS][r] : 0;
            for (uint32_t c = 0; c < m.c.expert_ff; c++)
                want += e[MOE_E_DOWN][r * m.c.expert_ff + c] * mid[c];
            assert_true(fabs(want - out[r]) <= 1e-5);
        }
        moe_expert_compute_close(compute);
        free(block);
        moe_model_close(model);
        random_model_free(&m);
    }
}

/* ---- What no stack can be ---- */

static void impossible_stacks_are_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_config good, c;
    uint64_t random = 0;
    do
        random_stacks_config(&good, &random);
    while (good.positions != MOE_POSITIONS_BUCKETS || good.expert_capacity == 0);
    good.dense_bias = false;
#define REFUSED(change, status, words)                                                             \
    c = good;                                                                                      \
    change;                                                                                        \
    assert_fails(moe_config_check(&c, "drawn", &err), status, words, &err)
    REFUSED(c.n_encoder = c.n_layers, MOE_ERR_FORMAT, "leaves no decoder");
    REFUSED(c.decoder_start = c.vocab, MOE_ERR_FORMAT, "needs a first token");
    REFUSED(c.prefix_lm = true, MOE_ERR_FORMAT, "no prefix");
    REFUSED(c.norm_kind = MOE_NORM_CENTRED, MOE_ERR_UNSUPPORTED,
            "an encoder is implemented with RMS norms and layer norms with biases");
    REFUSED(c.first_position = 2, MOE_ERR_FORMAT, "others no first position");
    REFUSED((c.positions = MOE_POSITIONS_SINUSOIDS, c.hidden |= 1), MOE_ERR_FORMAT,
            "sinusoids for positions need an even width");
    REFUSED(c.attn_sinks = true, MOE_ERR_UNSUPPORTED, "without windows, sinks");
    REFUSED((c.window = 4, c.layers[0].windowed = 1), MOE_ERR_UNSUPPORTED, "without windows");
    REFUSED(c.n_buckets = 2, MOE_ERR_FORMAT, "2 buckets for distances");
    REFUSED(c.bucket_distance = c.n_buckets / 2, MOE_ERR_FORMAT, "a distance above half of them");
    REFUSED(c.rope_dim = 4, MOE_ERR_FORMAT, "rotated values, but positions");
    REFUSED((c.dense_act = MOE_ACT_SWIGLU_CLAMPED, c.act_limit = 0), MOE_ERR_FORMAT,
            "needs limit and alpha");
    REFUSED(c.positions = MOE_POSITIONS_LEARNT, MOE_ERR_UNSUPPORTED, "without learnt positions");
    REFUSED(c.norm_place = MOE_NORM_AFTER, MOE_ERR_UNSUPPORTED, "norms before blocks");
    REFUSED(c.last_projection = true, MOE_ERR_UNSUPPORTED, "last projections");
    REFUSED(c.soft_bypass = true, MOE_ERR_UNSUPPORTED, "bypasses");
    REFUSED(c.extra_positions = 1, MOE_ERR_FORMAT, "more learnt positions before layer 1");
    REFUSED((c.n_encoder = 0), MOE_ERR_UNSUPPORTED, "capacities of experts need an encoder");
    random_prefix_config(&good, &random);
    good.expert_capacity = 0;
    good.overflow_passes = false;
    REFUSED(c.overflow_passes = true, MOE_ERR_FORMAT, "without a capacity");
    good.dense_bias = true;
    REFUSED(c.dense_act = MOE_ACT_SWIGLU, MOE_ERR_UNSUPPORTED, "without gates");
    REFUSED(c.shared_ff = 8, MOE_ERR_UNSUPPORTED, "shared experts");
    REFUSED(c.attn_sinks = true, MOE_ERR_UNSUPPORTED, "ordinary attention");
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptions_come_back),
        cmocka_unit_test(packs_hold_both_stacks),
        cmocka_unit_test(packs_hold_prefix_models),
        cmocka_unit_test(missing_tensors_are_named),
        cmocka_unit_test(gates_are_there_where_they_are_computed),
        cmocka_unit_test(experts_of_two_matrices),
        cmocka_unit_test(impossible_stacks_are_refused),
    };
    return cmocka_run_group_tests_name("stacks", tests, set_up, tear_down);
}
