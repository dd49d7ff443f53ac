/*
 * Views into checkpoints: every value of every tensor here is its own number in the tensor, so what
 * is read says where it came from.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "pack/convert_internal.h"

#include "../scratch_dir.h"

enum { MAX_ITEMS = 1 << 21 };

static char path[128];
static struct moe_config config;
static struct moe_checkpoint *checkpoint;
static struct convert_source source;
static struct moe_buf header, data;
static float values[MAX_ITEMS], piece[MAX_ITEMS];

/* ---- Checkpoints ---- */

/* `shape` as it stands in the header: "2,3,4". */
static void add_tensor(const char *name, const char *shape, uint64_t n_items)
{
    uint64_t begin = data.size;
    for (uint64_t i = 0; i < n_items; i++) {
        float value = (float)i;
        moe_buf_append(&data, &value, sizeof value);
    }
    moe_buf_printf(
        &header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%s],\"data_offsets\":[%llu,%llu]}",
        begin ? "," : "{", name, shape, (unsigned long long)begin, (unsigned long long)data.size);
}

/* Opens what was added, as a checkpoint of the family. */
static void open_source(const char *family_name)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    moe_buf_text(&header, "}");
    moe_buf_u64(&file, header.size);
    moe_buf_append(&file, header.data, header.size);
    moe_buf_append(&file, data.data, data.size);
    strcpy(path, in_dir("model.safetensors"));
    assert_ok(moe_file_write_all(path, file.data, file.size, &err), &err);
    assert_ok(moe_checkpoint_open(&checkpoint, dir, &err), &err);
    source = (struct convert_source){.checkpoint = checkpoint,
                                     .config = &config,
                                     .family = moe_family_find(family_name),
                                     .naming = MOE_NAMING_HF};
    moe_buf_release(&file);
}

static int start(void **state)
{
    moe_config_init(&config);
    return make_dir(state);
}

static int stop(void **state)
{
    moe_checkpoint_close(checkpoint);
    checkpoint = NULL;
    moe_buf_release(&header);
    moe_buf_release(&data);
    header = data = (struct moe_buf){0};
    unlink(path);
    return remove_empty_dir(state);
}

/* ---- Views ---- */

/* Reads the whole view, and again in pieces of three rows: the same. */
static void read_view(const struct row_source *view)
{
    struct moe_err err = {0};
    assert_true((uint64_t)view->rows * view->cols <= MAX_ITEMS);
    assert_ok(convert_read_rows(view, 0, view->rows, values, &err), &err);
    for (uint32_t first = 0; first < view->rows; first += 3) {
        uint32_t n = view->rows - first < 3 ? view->rows - first : 3;
        assert_ok(convert_read_rows(view, first, n, piece, &err), &err);
        assert_memory_equal(piece, values + (uint64_t)first * view->cols,
                            (uint64_t)n * view->cols * sizeof *piece);
    }
    for (uint32_t r = 0; r < view->rows && !view->transposed; r++)
        assert_true(values[(uint64_t)r * view->cols] ==
                    (float)(convert_source_line(view, r) * view->width));
}

static struct row_source read_dense(enum moe_tensor_role role)
{
    struct moe_err err = {0};
    struct row_source view;
    assert_ok(convert_find_dense(&source, role, 1, &view, &err), &err);
    read_view(&view);
    return view;
}

static struct row_source read_expert(uint32_t expert, enum moe_expert_part part)
{
    struct moe_err err = {0};
    struct row_source view;
    assert_ok(convert_find_expert(&source, 1, expert, part, &view, &err), &err);
    read_view(&view);
    return view;
}

static void assert_value(const struct row_source *view, uint32_t row, uint32_t col, uint64_t want)
{
    float got = values[(uint64_t)row * view->cols + col];
    if (got != (float)want)
        fail_msg("%s: row %u column %u is %g, expected %g", view->tensor->name, row, col,
                 (double)got, (double)want);
}

#define L "model.layers.1."

static void transposed_and_interleaved_experts(void **state)
{
    (void)state;
    enum { EXPERTS = 3, FF = 6, HIDDEN = 5 };
    config.n_experts = EXPERTS;
    config.expert_ff = FF;
    config.hidden = HIDDEN;
    config.expert_bias = true;
    add_tensor(L "mlp.experts.gate_up_proj", "3,5,12", 180);
    add_tensor(L "mlp.experts.down_proj", "3,6,5", 90);
    add_tensor(L "mlp.experts.gate_up_proj_bias", "3,12", 36);
    add_tensor(L "mlp.experts.down_proj_bias", "3,5", 15);
    open_source("gpt_oss");
    for (uint32_t e = 0; e < EXPERTS; e++) {
        for (uint32_t odd = 0; odd < 2; odd++) {
            struct row_source view = read_expert(e, odd ? MOE_E_UP : MOE_E_GATE);
            assert_int_equal(view.bytes, 4 * FF * HIDDEN);
            for (uint32_t r = 0; r < FF; r++)
                for (uint32_t c = 0; c < HIDDEN; c++)
                    assert_value(&view, r, c, e * 60 + c * 12 + 2 * r + odd);
            view = read_expert(e, odd ? MOE_E_UP_BIAS : MOE_E_GATE_BIAS);
            for (uint32_t r = 0; r < FF; r++)
                assert_value(&view, r, 0, e * 12 + 2 * r + odd);
        }
        struct row_source view = read_expert(e, MOE_E_DOWN);
        for (uint32_t r = 0; r < HIDDEN; r++)
            for (uint32_t c = 0; c < FF; c++)
                assert_value(&view, r, c, e * 30 + c * 5 + r);
        view = read_expert(e, MOE_E_DOWN_BIAS);
        for (uint32_t r = 0; r < HIDDEN; r++)
            assert_value(&view, r, 0, e * 5 + r);
    }
}

static void experts_in_halves(void **state)
{
    (void)state;
    config.n_experts = 3;
    config.expert_ff = 6;
    config.hidden = 5;
    config.n_layers = 2;
    config.layers[1].moe = 1;
    config.shared_ff = 4;
    add_tensor(L "block_sparse_moe.input_linear.weight", "3,12,5", 180);
    add_tensor(L "block_sparse_moe.output_linear.weight", "3,5,6", 90);
    add_tensor(L "shared_mlp.input_linear.weight", "8,5", 40);
    open_source("granitemoeshared");
    for (uint32_t e = 0; e < 3; e++) {
        struct row_source view = read_expert(e, MOE_E_GATE);
        assert_value(&view, 5, 4, e * 60 + 5 * 5 + 4);
        view = read_expert(e, MOE_E_UP);
        assert_value(&view, 0, 0, e * 60 + 6 * 5);
        view = read_expert(e, MOE_E_DOWN);
        assert_value(&view, 4, 5, e * 30 + 29);
    }
    struct row_source view = read_dense(MOE_T_SHARED_GATE_PROJ);
    assert_value(&view, 3, 4, 19);
    view = read_dense(MOE_T_SHARED_UP);
    assert_value(&view, 0, 0, 20);
}

/* Where the rotated value i of 6 stands among the pairs. */
static uint32_t pair_place(uint32_t i)
{
    static const uint32_t places[6] = {0, 2, 4, 1, 3, 5};
    return places[i];
}

static void latent_attention(void **state)
{
    (void)state;
    enum { HEADS = 3, NOPE = 4, ROPE = 6, VALUE = 5, RANK = 7, HIDDEN = 8, HEAD = NOPE + ROPE };
    config.hidden = HIDDEN;
    config.n_heads = config.n_kv_heads = HEADS;
    config.head_dim = HEAD;
    config.rope_dim = ROPE;
    config.value_dim = VALUE;
    config.kv_rank = RANK;
    add_tensor(L "self_attn.q_proj.weight", "30,8", 240);
    add_tensor(L "self_attn.kv_a_proj_with_mqa.weight", "13,8", 104);
    add_tensor(L "self_attn.kv_b_proj.weight", "27,7", 189);
    open_source("deepseek_v2");
    struct row_source view = read_dense(MOE_T_Q);
    for (uint32_t r = 0; r < HEADS * HEAD; r++) {
        uint32_t h = r / HEAD, i = r % HEAD;
        uint32_t place = i < ROPE ? NOPE + pair_place(i) : i - ROPE;
        assert_value(&view, r, 3, (h * HEAD + place) * HIDDEN + 3);
    }
    view = read_dense(MOE_T_KV_DOWN);
    for (uint32_t r = 0; r < RANK + ROPE; r++)
        assert_value(&view, r, 2, (r < RANK ? r : RANK + pair_place(r - RANK)) * HIDDEN + 2);
    view = read_dense(MOE_T_K_UP);
    assert_int_equal(view.cols, NOPE);
    for (uint32_t r = 0; r < HEADS * RANK; r++)
        for (uint32_t c = 0; c < NOPE; c++)
            assert_value(&view, r, c, (r / RANK * (NOPE + VALUE) + c) * RANK + r % RANK);
    view = read_dense(MOE_T_V_UP);
    for (uint32_t r = 0; r < HEADS * VALUE; r++)
        assert_value(&view, r, 6, (r / VALUE * (NOPE + VALUE) + NOPE + r % VALUE) * RANK + 6);
}

/* Pairs of a head that rotates only its first 6 of 8 values; lines so long that two do not fit into
 * the buffer; a matrix whose rows stand in two dimensions; a row stored as a vector. */
static void pairs_and_other_shapes(void **state)
{
    (void)state;
    config.hidden = 1 << 17;
    config.n_heads = config.n_kv_heads = 1;
    config.head_dim = config.value_dim = 8;
    config.rope_dim = 6;
    config.qkv_bias = true;
    config.n_layers = 2;
    config.layers[1].moe = 1;
    config.shared_gate = true;
    config.shared_ff = 1;
    add_tensor(L "self_attn.k_proj.weight", "8,131072", 8 << 17);
    add_tensor(L "self_attn.k_proj.bias", "8", 8);
    add_tensor(L "self_attn.v_proj.weight", "2,4,131072", 8 << 17);
    add_tensor(L "mlp.shared_expert_gate.weight", "131072", 1 << 17);
    open_source("qwen2_moe");
    struct moe_family in_pairs = *source.family;
    in_pairs.tensors[MOE_NAMING_HF].paired = true;
    source.family = &in_pairs;
    struct row_source view = read_dense(MOE_T_K);
    for (uint32_t r = 0; r < 8; r++)
        assert_value(&view, r, 9, ((uint64_t)(r < 6 ? pair_place(r) : r) << 17) + 9);
    view = read_dense(MOE_T_K_BIAS);
    for (uint32_t r = 0; r < 8; r++)
        assert_value(&view, r, 0, r < 6 ? pair_place(r) : r);
    view = read_dense(MOE_T_V);
    assert_value(&view, 7, 1, (7 << 17) + 1);
    view = read_dense(MOE_T_SHARED_GATE);
    assert_int_equal(view.rows, 1);
    assert_value(&view, 0, 5, 5);
}

static void the_first_table_that_has_it(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct row_source view;
    config.n_experts = 2;
    config.expert_ff = 3;
    config.hidden = 4;
    config.n_layers = 2;
    config.layers[1].moe = 1;
    config.tied_head = true;
    add_tensor(L "mlp.experts.gate_up_proj", "2,6,4", 48);
    add_tensor(L "mlp.experts.down_proj", "2,3,4", 24);
    add_tensor(L "mlp.router.weight", "2,4", 8);
    open_source("phimoe");
    view = read_expert(1, MOE_E_UP);
    assert_value(&view, 0, 0, 24 + 12);
    view = read_dense(MOE_T_ROUTER);
    assert_fails(convert_find_expert(&source, 1, 0, MOE_E_DOWN, &view, &err), MOE_ERR_FORMAT,
                 "has the shape [2][3][4], expected [2][4][3]", &err);
    assert_fails(convert_find_expert(&source, 0, 1, MOE_E_GATE, &view, &err), MOE_ERR_FORMAT,
                 "'model.layers.0.block_sparse_moe.experts.1.w1.weight' [3][4] is missing", &err);
    assert_fails(convert_find_dense(&source, MOE_T_ROUTER_BIAS, 1, &view, &err),
                 MOE_ERR_UNSUPPORTED, "family phimoe has no tensor 'layers.%u.router.bias'", &err);
    assert_false(convert_may_ignore(&source, "lm_head.weight")); /* it is compared */
    assert_true(convert_may_ignore(&source, "model.layers.31.self_attn.rotary_emb.inv_freq"));
    assert_false(convert_may_ignore(&source, "model.layers.x.self_attn.rotary_emb.inv_freq"));
    assert_false(convert_may_ignore(&source, "model.layers.31.self_attn.rotary_emb."));
    static const char *const buffers[] = {
        "model.rotary_emb.inv_freq",     "model.layers.0.self_attn.rotary_emb.cos_cached",
        "model.layers.0.self_attn.bias", "model.layers.0.self_attn.masked_bias",
        "model.layers.12.attn.bias",     "model.layers.12.attn.masked_bias",
    };
    for (size_t i = 0; i < N_ITEMS(buffers); i++)
        assert_true(convert_may_ignore(&source, buffers[i]));
    assert_false(convert_may_ignore(&source, "model.layers.0.self_attn.q_proj.bias"));
    assert_false(convert_may_ignore(&source, "model.layers.0.self_attn.biases"));
    assert_false(convert_may_ignore(&source, "model.layers.0.mlp.bias"));
}

/* Of qwen3_vl_moe: 2 experts of width 3 in a model of width 4, as published and as saved. */
static void experts_of_either_shape(void **state)
{
    (void)state;
    config.n_experts = 2;
    config.expert_ff = 3;
    config.hidden = 4;
    config.n_layers = 2;
    config.layers[1].moe = 1;
    add_tensor(L "mlp.experts.gate_up_proj", "2,6,4", 48);
    add_tensor(L "mlp.experts.down_proj", "2,3,4", 24); /* each tensor's shape says it */
    open_source("qwen3_vl_moe_text");
    struct row_source view = read_expert(1, MOE_E_UP);
    assert_false(view.transposed);
    assert_value(&view, 1, 2, 24 + 12 + 4 + 2);
    view = read_expert(1, MOE_E_DOWN);
    assert_true(view.transposed);
    assert_value(&view, 2, 1, 12 + 4 + 2);
}

static void compare_head(const char *name, bool want_there, bool want_same)
{
    struct moe_err err = {0};
    const struct moe_tensor *head;
    bool same = false;
    assert_ok(convert_compare_head(&source, &head, &same, &err), &err);
    assert_true((head != NULL) == want_there);
    if (want_there) {
        assert_string_equal(head->name, name);
        assert_true(same == want_same);
    }
}

static void a_head_beside_the_embedding(void **state)
{
    static const struct {
        const char *family, *embedding, *head;
        bool differs;
    } cases[] = {
        {"nemotron_h", "backbone.embeddings.weight", "lm_head.weight", true},
        {"nemotron_h", "backbone.embeddings.weight", "lm_head.weight", false},
        {"qwen3", "model.embed_tokens.weight", "lm_head.weight", true},
        {"gemma4", "model.language_model.embed_tokens.weight", "lm_head.weight", true},
        {"kimi_k25", "language_model.model.embed_tokens.weight", "language_model.lm_head.weight",
         true},
        {"deepseek_v4", "embed.weight", "head.weight", true},
        {"qwen3", "model.embed_tokens.weight", NULL, false},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        if (i > 0) {
            stop(state);
            start(state);
        }
        config.hidden = 4;
        config.vocab = 3;
        config.n_layers = 1;
        config.tied_head = true;
        add_tensor(cases[i].embedding, "3,4", 12);
        if (cases[i].head)
            add_tensor(cases[i].head, "3,4", 12);
        if (cases[i].differs)
            data.data[data.size - 2] ^= 1; /* in the last value */
        open_source(cases[i].family);
        compare_head(cases[i].head, cases[i].head != NULL, !cases[i].differs);
    }
    struct moe_err err = {0};
    const struct moe_tensor *head;
    bool same;
    stop(state);
    start(state);
    config.hidden = 4;
    config.vocab = 3;
    add_tensor("model.embed_tokens.weight", "3,4", 12);
    add_tensor("lm_head.weight", "4,4", 16);
    open_source("qwen3");
    assert_fails(convert_compare_head(&source, &head, &same, &err), MOE_ERR_FORMAT,
                 "'lm_head.weight' has the shape [4][4], expected [3][4]", &err);
}

#define in_fresh_dir(test) cmocka_unit_test_setup_teardown(test, start, stop)

/* Two layers of the encoder and three of the decoder: layer 1 of each. */
static void stacks_have_names_of_their_own(void **state)
{
    (void)state;
    static const char *const there[] = {
        "encoder.block.1.layer.0.SelfAttention.q.weight",
        "decoder.block.1.layer.0.SelfAttention.q.weight",
        "encoder.block.1.layer.1.layer_norm.weight",
        "decoder.block.1.layer.1.layer_norm.weight",
        "decoder.block.1.layer.2.layer_norm.weight",
        "encoder.block.1.layer.1.mlp.experts.expert_2.wo.weight",
        "decoder.block.1.layer.2.mlp.experts.expert_2.wo.weight",
        "encoder.final_layer_norm.weight",
        "decoder.final_layer_norm.weight",
    };
    static const struct {
        int role; /* negative: part -role - 1 of expert 2 */
        uint32_t layer;
        int name;
    } cases[] = {
        {MOE_T_Q, 1, 0},          {MOE_T_Q, 3, 1},
        {MOE_T_FFN_NORM, 1, 2},   {MOE_T_CROSS_NORM, 3, 3},
        {MOE_T_FFN_NORM, 3, 4},   {-MOE_E_DOWN - 1, 1, 5},
        {-MOE_E_DOWN - 1, 3, 6},  {MOE_T_ENCODER_NORM, 0, 7},
        {MOE_T_FINAL_NORM, 0, 8},
    };
    struct moe_err err = {0};
    struct row_source view;
    config = (struct moe_config){.n_layers = 5,
                                 .n_encoder = 2,
                                 .hidden = 6,
                                 .n_heads = 2,
                                 .n_kv_heads = 2,
                                 .head_dim = 3,
                                 .value_dim = 3,
                                 .n_experts = 3,
                                 .expert_ff = 6,
                                 .expert_act = MOE_ACT_RELU};
    for (size_t i = 0; i < N_ITEMS(there); i++)
        add_tensor(there[i], strstr(there[i], "norm") ? "6" : "6,6",
                   strstr(there[i], "norm") ? 6 : 36);
    open_source("switch_transformers");
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        int status =
            cases[i].role >= 0
                ? convert_find_dense(&source, (enum moe_tensor_role)cases[i].role, cases[i].layer,
                                     &view, &err)
                : convert_find_expert(&source, cases[i].layer, 2,
                                      (enum moe_expert_part)(-cases[i].role - 1), &view, &err);
        assert_ok(status, &err);
        assert_string_equal(view.tensor->name, there[cases[i].name]);
        read_view(&view);
    }
    /* What is not there is reported as its stack calls it. */
    assert_fails(convert_find_dense(&source, MOE_T_FFN_NORM, 0, &view, &err), MOE_ERR_FORMAT,
                 "'encoder.block.0.layer.1.layer_norm.weight'", &err);
    assert_fails(convert_find_dense(&source, MOE_T_CROSS_V, 4, &view, &err), MOE_ERR_FORMAT,
                 "'decoder.block.2.layer.1.EncDecAttention.v.weight'", &err);
}

/* A table of buckets is a vector in packs, row by row. */
static void position_tables_of_both_stacks(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct row_source view;
    config = (struct moe_config){.n_layers = 3,
                                 .n_encoder = 2,
                                 .n_heads = 3,
                                 .positions = MOE_POSITIONS_BUCKETS,
                                 .n_buckets = 8};
    add_tensor("encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "8,3", 24);
    add_tensor("decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "3,8", 24);
    open_source("switch_transformers");
    assert_ok(convert_find_dense(&source, MOE_T_POSITION_BIAS, 0, &view, &err), &err);
    assert_int_equal(view.rows, 24);
    assert_int_equal(view.cols, 1);
    read_view(&view);
    for (uint32_t i = 0; i < 24; i++)
        assert_value(&view, i, 0, i);
    assert_fails(convert_find_dense(&source, MOE_T_POSITION_BIAS, 2, &view, &err), MOE_ERR_FORMAT,
                 "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", &err);
}

static void gptsan_names(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct row_source view;
    config = (struct moe_config){.n_layers = 3,
                                 .vocab = 7,
                                 .hidden = 4,
                                 .context_max = 5,
                                 .dense_ff = 3,
                                 .dense_bias = true,
                                 .dense_act = MOE_ACT_SILU,
                                 .head_bias = true,
                                 .n_experts = 2,
                                 .expert_ff = 6,
                                 .soft_bypass = true,
                                 .last_projection = true,
                                 .tied_head = true,
                                 .positions = MOE_POSITIONS_LEARNT,
                                 .extra_positions = 2,
                                 .layers = {{.moe = true}, {.moe = true}}};
    add_tensor("final_logits_bias", "1,7", 7);
    add_tensor("model.position_embeddings.weight", "5,4", 20);
    add_tensor("model.extra_position_embeddings.weight", "5,4", 20);
    add_tensor("model.last_project.weight", "4,4", 16);
    add_tensor("model.blocks.1.feed_forward.soft_bypass_mlp.weight", "4,4", 16);
    add_tensor("model.blocks.2.feed_forward.mlp.wi.bias", "3", 3);
    open_source("gptsan-japanese");
    static const struct {
        enum moe_tensor_role role;
        uint32_t layer, rows;
    } cases[] = {
        {MOE_T_HEAD_BIAS, 0, 7},       {MOE_T_POSITIONS, 0, 5}, {MOE_T_EXTRA_POSITIONS, 0, 5},
        {MOE_T_LAST_PROJECTION, 0, 4}, {MOE_T_BYPASS, 1, 4},    {MOE_T_UP_BIAS, 2, 3},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        assert_ok(convert_find_dense(&source, cases[i].role, cases[i].layer, &view, &err), &err);
        assert_int_equal(view.rows, cases[i].rows);
        read_view(&view);
        assert_value(&view, view.rows - 1, view.cols - 1, (uint64_t)view.rows * view.cols - 1);
    }
    assert_true(convert_may_ignore(&source, "model.spout.0.weight"));
    assert_false(convert_may_ignore(&source, "model.spouts"));
    uint32_t rows, cols;
    assert_false(moe_tensor_shape(&config, MOE_T_FINAL_NORM, 0, &rows, &cols));
    assert_false(moe_tensor_shape(&config, MOE_T_BYPASS, 2, &rows, &cols));
    assert_false(moe_tensor_shape(&config, MOE_T_UP_BIAS, 1, &rows, &cols));
}

/* The embedding may be there three times, with the same values. */
static void copies_of_the_embedding(void **state)
{
    (void)state;
    struct moe_err err = {0};
    bool copy;
    config = (struct moe_config){.n_layers = 2, .n_encoder = 1, .hidden = 3, .vocab = 4};
    add_tensor("shared.weight", "4,3", 12);
    add_tensor("encoder.embed_tokens.weight", "4,3", 12);
    add_tensor("decoder.embed_tokens.weight", "4,3", 12);
    ((uint8_t *)data.data)[data.size - 2] ^= 1; /* the last value of the last one */
    add_tensor("other.weight", "4,3", 12);
    open_source("switch_transformers");
#define CHECK(name) convert_check_copy(&source, moe_checkpoint_find(checkpoint, name), &copy, &err)
    assert_ok(CHECK("encoder.embed_tokens.weight"), &err);
    assert_true(copy);
    assert_ok(CHECK("other.weight"), &err);
    assert_false(copy);
    assert_fails(CHECK("decoder.embed_tokens.weight"), MOE_ERR_UNSUPPORTED,
                 "'decoder.embed_tokens.weight' differs from 'shared.weight'", &err);
#undef CHECK
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_fresh_dir(transposed_and_interleaved_experts),
        in_fresh_dir(experts_in_halves),
        in_fresh_dir(latent_attention),
        in_fresh_dir(pairs_and_other_shapes),
        in_fresh_dir(the_first_table_that_has_it),
        in_fresh_dir(experts_of_either_shape),
        in_fresh_dir(a_head_beside_the_embedding),
        in_fresh_dir(stacks_have_names_of_their_own),
        in_fresh_dir(position_tables_of_both_stacks),
        in_fresh_dir(gptsan_names),
        in_fresh_dir(copies_of_the_embedding),
    };
    return cmocka_run_group_tests_name("source", tests, NULL, NULL);
}
