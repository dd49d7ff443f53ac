/*
 * Random descriptions over all switches of model/config.h, random weights for them, and packs of
 * these, written with the pack writer alone.
 */
#ifndef TESTS_RANDOM_MODEL_H
#define TESTS_RANDOM_MODEL_H

#include <math.h>
#include <unistd.h>

#include "base/bytes.h"
#include "model/config.h"
#include "model/tensor_roles.h"
#include "pack/pack.h"
#include "quant/quantize.h"

#include "../test.h"

enum { RANDOM_MAX_LAYERS = 4, RANDOM_MAX_EXPERTS = 12 };

struct random_model {
    struct moe_config c;
    /* Row-major; NULL where the model has none. Tensors of no layer stand at layer 0. */
    float *dense[RANDOM_MAX_LAYERS][MOE_T_N_ROLES];
    float *expert[RANDOM_MAX_LAYERS][RANDOM_MAX_EXPERTS][MOE_E_N_PARTS];
};

static inline uint32_t random_below(uint64_t *random, uint32_t n)
{
    return (uint32_t)(test_random(random) % n);
}

static inline bool random_chance(uint64_t *random, uint32_t one_in)
{
    return random_below(random, one_in) == 0;
}

/* ---- Descriptions ---- */

static inline void random_rope(struct moe_config *c, uint64_t *random)
{
    c->rope_theta = random_chance(random, 2) ? 10000 : 50;
    c->rope_scale = random_chance(random, 2) ? 1 : 1.19;
    if (random_chance(random, 3))
        return;
    c->n_rope_freqs = c->rope_dim / 2;
    for (uint32_t i = 0; i < c->n_rope_freqs; i++)
        c->rope_freqs[i] = 0.02 + fabs((double)test_uniform(random));
    if (random_chance(random, 2))
        return;
    c->rope_original = 16 + random_below(random, 64); /* contexts are on both sides of it */
    c->rope_scale_long = 0.9;
    c->n_rope_freqs_long = c->rope_dim / 2;
    for (uint32_t i = 0; i < c->n_rope_freqs_long; i++)
        c->rope_freqs_long[i] = 0.01 + fabs((double)test_uniform(random)) / 2;
}

static inline void random_attention(struct moe_config *c, uint64_t *random)
{
    static const uint32_t widths[] = {8, 16, 20, 32};
    c->n_kv_heads = 1 + random_below(random, 3);
    c->n_heads = c->n_kv_heads * (1 + random_below(random, 4));
    c->head_dim = widths[random_below(random, N_ITEMS(widths))];
    c->rope_dim = random_chance(random, 3) ? c->head_dim / 4 * 2 : c->head_dim;
    c->attn_scale = random_chance(random, 2) ? 0 : 0.11f;
    c->attn_sinks = random_chance(random, 3);
    c->o_bias = random_chance(random, 3);
    if (random_chance(random, 2)) {
        c->window = 1 + random_below(random, 30);
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = random_chance(random, 2);
    }
    if (random_chance(random, 3)) {
        c->kv_rank = 16 * (1 + random_below(random, 3));
        c->q_rank = random_chance(random, 2) ? 24 : 0;
        c->n_kv_heads = c->n_heads;
        c->value_dim = 16 * (1 + random_below(random, 2));
        c->rope_dim = 4 + 2 * random_below(random, 4);
        c->head_dim = c->rope_dim + 4 + random_below(random, 20);
        return;
    }
    c->qkv_bias = random_chance(random, 2);
    c->qk_norm = random_below(random, 3);
    c->clip_qkv = random_chance(random, 3) ? 0.9f : 0;
}

static inline void random_experts(struct moe_config *c, uint64_t *random)
{
    static const uint32_t counts[] = {4, 8, 12};
    c->n_experts = counts[random_below(random, N_ITEMS(counts))];
    c->top_k = 1 + random_below(random, 4);
    c->expert_ff = 16 + random_below(random, 30);
    c->expert_bias = random_chance(random, 3);
    if (random_chance(random, 3)) {
        c->expert_act = MOE_ACT_SWIGLU_CLAMPED;
        c->act_alpha = 1.702f;
        c->act_limit = 0.8f;
    }
    c->shared_ff = random_chance(random, 2) ? 8 + random_below(random, 40) : 0;
    c->shared_gate = c->shared_ff && random_chance(random, 2);
    c->router_kind = random_below(random, 3);
    c->router_bias = random_chance(random, 2);
    c->norm_topk = random_chance(random, 2);
    c->routed_scale = random_chance(random, 2) ? 1 : 1.7f;
    if (c->router_kind == MOE_ROUTER_SPARSEMIXER) {
        c->top_k = 2;
        c->router_jitter = random_chance(random, 2) ? 0.01f : 0.4f;
    } else if (c->router_kind == MOE_ROUTER_SOFTMAX && random_chance(random, 2)) {
        c->n_groups = 4;
        c->top_groups = 1 + random_below(random, 3);
        if (c->top_k > c->n_experts / 4 * c->top_groups)
            c->top_k = c->n_experts / 4 * c->top_groups;
    }
    for (uint32_t i = random_below(random, 2); i < c->n_layers; i++)
        c->layers[i].moe = 1;
}

/* DeepSeek-V3's router in place of a softmax, or a bias for the choice of one. */
static inline void random_sigmoids(struct moe_config *c, uint64_t *random)
{
    bool scores = c->router_kind == MOE_ROUTER_SOFTMAX || c->router_kind == MOE_ROUTER_TOPK_SOFTMAX;
    if (scores && random_chance(random, 3)) {
        c->router_kind = MOE_ROUTER_SIGMOID;
        c->n_groups = random_chance(random, 2) ? 2 : 0;
        c->top_groups = c->n_groups ? 1 + random_below(random, 2) : 0;
        if (c->n_groups && c->top_k > c->n_experts / 2 * c->top_groups)
            c->top_k = c->n_experts / 2 * c->top_groups;
    }
    c->choice_bias = (c->router_kind == MOE_ROUTER_SIGMOID && !random_chance(random, 3)) ||
                     (c->router_kind == MOE_ROUTER_SOFTMAX && random_chance(random, 5));
}

static inline void random_config(struct moe_config *c, uint64_t *random)
{
    moe_config_init(c);
    snprintf(c->family, sizeof c->family, "random");
    c->n_layers = 2 + random_below(random, RANDOM_MAX_LAYERS - 1);
    c->hidden = 24 + random_below(random, 50);
    c->vocab = 20 + random_below(random, 60);
    c->context_max = 64;
    c->norm_kind = random_chance(random, 3) ? MOE_NORM_LAYER : MOE_NORM_RMS;
    c->norm_eps = 1e-5f;
    c->embed_scale = random_chance(random, 2) ? 1 : 3.5f;
    c->residual_scale = random_chance(random, 2) ? 1 : 0.4f;
    c->logit_scale = random_chance(random, 2) ? 1 : 0.3f;
    c->tied_head = random_chance(random, 2);
    c->head_bias = random_chance(random, 3);
    c->dense_ff = 16 + random_below(random, 40);
    random_attention(c, random);
    random_rope(c, random);
    if (!random_chance(random, 6))
        random_experts(c, random);
    /* From a copy of the stream: what is drawn from it afterwards stays the same. */
    uint64_t more = *random;
    if (random_chance(&more, 3))
        c->expert_act = random_chance(&more, 2) ? MOE_ACT_RELU : MOE_ACT_SILU;
    if (random_chance(&more, 3))
        c->dense_act = random_chance(&more, 2) ? MOE_ACT_RELU : MOE_ACT_SILU;
    if (c->n_experts)
        random_sigmoids(c, &more);
    if (c->kv_rank && random_chance(&more, 2))
        c->latent_eps = 1e-3f;
    moe_config_complete(c);
}

/* In a third of the models some layers choose experts by the token: drawn from a copy of the
 * stream. */
static inline void random_static(struct moe_config *c, uint64_t random)
{
    bool some = random_chance(&random, 3);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].static_routing = c->layers[i].moe && random_chance(&random, 2) && some;
}

/* In a third of the models with experts routers stand before attention, and experts may be gated as
 * SmallThinker's are: drawn from a copy of the stream, too. */
static inline void random_early(struct moe_config *c, uint64_t random)
{
    test_random(&random);
    if (c->n_experts == 0 || !random_chance(&random, 3))
        return;
    c->router_early = true;
    if (c->expert_act == MOE_ACT_SWIGLU && random_chance(&random, 2))
        c->expert_act = MOE_ACT_REGLU;
    /* In half of them blocks stand side by side, as Command-A has them. */
    c->parallel_blocks = random_chance(&random, 2);
    if (c->parallel_blocks && c->norm_kind == MOE_NORM_LAYER && random_chance(&random, 2))
        c->norm_kind = MOE_NORM_CENTRED;
    c->moe_scale = c->parallel_blocks && random_chance(&random, 2) ? 0.5f : 1;
}

/* What stacks of NLLB have and T5's have not. */
static inline void random_biases(struct moe_config *c, uint64_t random)
{
    if (c->positions != MOE_POSITIONS_BUCKETS && random_chance(&random, 2)) {
        c->positions = MOE_POSITIONS_SINUSOIDS;
        c->first_position = random_below(&random, 4);
        c->hidden += c->hidden % 2;
    }
    c->norm_kind = random_chance(&random, 2) ? MOE_NORM_LAYER : MOE_NORM_RMS;
    c->qkv_bias = random_chance(&random, 3);
    c->o_bias = random_chance(&random, 3);
    c->dense_bias = !moe_act_is_gated(c->dense_act) && random_chance(&random, 2);
    c->expert_bias = random_chance(&random, 2);
}

/* An encoder before the decoder, as T5's descendants have them: two-matrix or gated feed-forwards,
 * positions by bucketed distance or rotary, an expert's capacity or none. */
static inline void random_stacks_config(struct moe_config *c, uint64_t *random)
{
    static const uint32_t widths[] = {8, 16, 20};
    static const enum moe_act_kind acts[] = {MOE_ACT_RELU, MOE_ACT_RELU, MOE_ACT_SILU,
                                             MOE_ACT_SWIGLU};
    moe_config_init(c);
    snprintf(c->family, sizeof c->family, "random");
    c->n_encoder = 1 + random_below(random, RANDOM_MAX_LAYERS - 1);
    c->n_layers = c->n_encoder + 1 + random_below(random, RANDOM_MAX_LAYERS - c->n_encoder);
    c->hidden = 24 + random_below(random, 50);
    c->vocab = 20 + random_below(random, 60);
    c->decoder_start = random_below(random, c->vocab);
    c->context_max = 64;
    c->norm_eps = 1e-5f;
    c->embed_scale = random_chance(random, 2) ? 1 : 2.5f;
    c->logit_scale = random_chance(random, 2) ? 1 : 0.3f;
    c->tied_head = random_chance(random, 2);
    c->dense_ff = 16 + random_below(random, 40);
    c->dense_act = acts[random_below(random, N_ITEMS(acts))];
    c->n_kv_heads = 1 + random_below(random, 3);
    c->n_heads = c->n_kv_heads * (random_chance(random, 2) ? 1 : 2);
    c->head_dim = widths[random_below(random, N_ITEMS(widths))];
    c->attn_scale = random_chance(random, 2) ? 0 : 0.4f;
    c->rope_theta = 10000;
    if (!random_chance(random, 3)) {
        c->positions = MOE_POSITIONS_BUCKETS;
        c->n_buckets = 4 + 2 * random_below(random, 8);
        c->bucket_distance = c->n_buckets / 2 + 1 + random_below(random, 40);
    }
    c->n_experts = random_chance(random, 2) ? 4 : 8;
    c->top_k = 1 + random_below(random, 2);
    c->expert_ff = 16 + random_below(random, 30);
    c->expert_act = acts[random_below(random, N_ITEMS(acts))];
    c->expert_capacity = random_chance(random, 3) ? 0 : 1 + random_below(random, 12);
    c->router_bias = random_chance(random, 2);
    c->norm_topk = random_chance(random, 3);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].moe = !random_chance(random, 3);
    random_static(c, *random);
    random_biases(c, *random);
    moe_config_complete(c);
}

/* Rows that see all of a prompt, as GPTSAN has them: norms behind blocks, learnt positions, a
 * bypass beside the experts, layers without experts behind those with them. */
static inline void random_prefix_config(struct moe_config *c, uint64_t *random)
{
    static const uint32_t widths[] = {8, 16, 20};
    moe_config_init(c);
    snprintf(c->family, sizeof c->family, "random");
    uint32_t n_moe = 1 + random_below(random, RANDOM_MAX_LAYERS);
    c->n_layers = n_moe + random_below(random, RANDOM_MAX_LAYERS + 1 - n_moe);
    c->prefix_lm = true;
    c->hidden = 24 + random_below(random, 50);
    c->vocab = 20 + random_below(random, 60);
    c->context_max = 64;
    c->norm_kind = random_chance(random, 3) ? MOE_NORM_RMS : MOE_NORM_LAYER;
    c->norm_place = random_chance(random, 4) ? MOE_NORM_BEFORE : MOE_NORM_AFTER;
    c->norm_eps = 1e-5f;
    c->last_projection = !random_chance(random, 4);
    c->tied_head = random_chance(random, 2);
    c->head_bias = random_chance(random, 2);
    c->n_kv_heads = 1 + random_below(random, 3);
    c->n_heads = c->n_kv_heads * (random_chance(random, 2) ? 1 : 2);
    c->head_dim = widths[random_below(random, N_ITEMS(widths))];
    c->rope_theta = 10000;
    if (!random_chance(random, 4)) {
        c->positions = MOE_POSITIONS_LEARNT;
        c->extra_positions = n_moe < c->n_layers && random_chance(random, 2) ? n_moe : 0;
    }
    c->dense_ff = 16 + random_below(random, 40);
    c->dense_act = random_chance(random, 3) ? MOE_ACT_RELU : MOE_ACT_SILU;
    c->dense_bias = !random_chance(random, 3);
    c->n_experts = random_chance(random, 2) ? 4 : 8;
    c->top_k = 1 + random_below(random, 2);
    c->expert_ff = 16 + random_below(random, 30);
    c->expert_act = random_chance(random, 3) ? MOE_ACT_SWIGLU : MOE_ACT_RELU;
    c->expert_capacity = random_chance(random, 3) ? 0 : 1 + random_below(random, 12);
    c->overflow_passes = c->expert_capacity && !random_chance(random, 3);
    c->soft_bypass = !random_chance(random, 3);
    c->router_bias = random_chance(random, 2);
    for (uint32_t i = 0; i < n_moe; i++)
        c->layers[i].moe = 1;
    moe_config_complete(c);
}

/* ---- Weights ---- */

static inline float *random_weights(uint32_t rows, uint32_t cols, float middle, float spread,
                                    uint64_t *random)
{
    float *w = calloc((uint64_t)rows * cols, sizeof *w);
    for (uint64_t i = 0; i < (uint64_t)rows * cols; i++)
        w[i] = middle + spread * test_uniform(random);
    return w;
}

/* For each token distinct experts: 5 has no divisor in common with their numbers. */
static inline float *random_routes(const struct moe_config *c, uint64_t *random)
{
    float *routes = calloc((uint64_t)c->vocab * c->top_k, sizeof *routes);
    for (uint32_t token = 0; token < c->vocab; token++) {
        uint32_t first = random_below(random, c->n_experts);
        for (uint32_t k = 0; k < c->top_k; k++)
            routes[token * c->top_k + k] = (float)((first + 5 * k) % c->n_experts);
    }
    return routes;
}

static inline float *random_tensor(const struct moe_config *c, enum moe_tensor_role role,
                                   uint32_t rows, uint32_t cols, uint64_t *random)
{
    if (role == MOE_T_ROUTES)
        return random_routes(c, random);
    const char *name = moe_tensor_spec(role)->pack_name;
    if (moe_tensor_spec(role)->kind != MOE_KIND_VECTOR)
        return random_weights(rows, cols, 0,
                              (role == MOE_T_ROUTER ? 5.0f : 2.0f) / sqrtf((float)cols), random);
    bool norm = strstr(name, "norm") && !strstr(name, ".bias");
    return random_weights(rows, 1, norm ? 1 : 0, 0.4f, random);
}

/* Weights for the description that m has. */
static inline void random_model_fill(struct random_model *m, uint64_t random)
{
    uint32_t rows, cols;
    for (uint32_t layer = 0; layer < m->c.n_layers; layer++) {
        for (int role = 0; role < MOE_T_N_ROLES; role++)
            if ((layer == 0 || moe_tensor_spec(role)->per_layer) &&
                moe_tensor_shape(&m->c, role, layer, &rows, &cols))
                m->dense[layer][role] = random_tensor(&m->c, role, rows, cols, &random);
        for (uint32_t e = 0; m->c.layers[layer].moe && e < m->c.n_experts; e++)
            for (int part = 0; part < MOE_E_N_PARTS; part++)
                if (moe_expert_part_shape(&m->c, part, &rows, &cols))
                    m->expert[layer][e][part] = random_weights(
                        rows, cols, 0, cols > 1 ? 2 / sqrtf((float)cols) : 0.5f, &random);
    }
}

static inline void random_model_draw(struct random_model *m, uint64_t seed)
{
    uint64_t random = seed;
    *m = (struct random_model){0};
    random_config(&m->c, &random);
    random_model_fill(m, random);
}

/* The same, perhaps with layers that choose experts by the token, or with routers before attention.
 */
static inline void random_static_draw(struct random_model *m, uint64_t seed)
{
    uint64_t random = seed;
    *m = (struct random_model){0};
    random_config(&m->c, &random);
    random_static(&m->c, random);
    random_early(&m->c, random);
    random_model_fill(m, random);
}

/* The same with an encoder. */
static inline void random_stacks_draw(struct random_model *m, uint64_t seed)
{
    uint64_t random = seed;
    *m = (struct random_model){0};
    random_stacks_config(&m->c, &random);
    random_model_fill(m, random);
}

/* A prefix LM. */
static inline void random_prefix_draw(struct random_model *m, uint64_t seed)
{
    uint64_t random = seed;
    *m = (struct random_model){0};
    random_prefix_config(&m->c, &random);
    random_model_fill(m, random);
}

static inline void random_model_free(struct random_model *m)
{
    for (int layer = 0; layer < RANDOM_MAX_LAYERS; layer++) {
        for (int role = 0; role < MOE_T_N_ROLES; role++)
            free(m->dense[layer][role]);
        for (int e = 0; e < RANDOM_MAX_EXPERTS; e++)
            for (int part = 0; part < MOE_E_N_PARTS; part++)
                free(m->expert[layer][e][part]);
    }
}

/* ---- Packs ---- */

/* One token and nothing to merge: these models read token ids. */
static inline void random_put_tokenizer(struct moe_pack_writer *w, struct moe_err *err)
{
    uint8_t section[64 + 4] = "MTOK";
    moe_put_u16(section + 4, 1);
    section[6] = 1;
    moe_put_u32(section + 16 - 4, 1); /* tokens */
    for (int at = 28; at < 40; at += 4)
        moe_put_u32(section + at, UINT32_MAX);
    moe_put_u32(section + 44, 1); /* bytes of text */
    moe_put_u16(section + 64, 1);
    section[66] = 1;
    section[67] = 'a';
    assert_ok(moe_pack_put_section(w, MOE_PACK_TOKENIZER, section, sizeof section, err), err);
}

/* A matrix in the layout of so many bits. */
static inline uint8_t *random_encode(const float *values, uint32_t rows, uint32_t cols,
                                     struct moe_layout layout)
{
    struct moe_err err = {0};
    uint8_t *raw = calloc(1, moe_layout_bytes(layout, rows, cols));
    assert_ok(moe_quantize_matrix(moe_quant_method_find("rtn"), layout, NULL, values, rows, cols,
                                  raw, NULL, &err),
              &err);
    return raw;
}

static inline void random_put_dense(const struct random_model *m, struct moe_pack_writer *w,
                                    struct moe_layout layout)
{
    struct moe_err err = {0};
    for (uint32_t layer = 0; layer < m->c.n_layers; layer++)
        for (int role = 0; role < MOE_T_N_ROLES; role++) {
            struct moe_pack_tensor t = {.is_vector =
                                            moe_tensor_spec(role)->kind == MOE_KIND_VECTOR};
            if (!m->dense[layer][role])
                continue;
            moe_tensor_shape(&m->c, role, layer, &t.rows, &t.cols);
            moe_tensor_pack_name(role, layer, t.name);
            t.layout = t.is_vector ? (struct moe_layout){MOE_LAYOUT_F32, 0} : layout;
            uint8_t *raw =
                t.is_vector ? NULL : random_encode(m->dense[layer][role], t.rows, t.cols, layout);
            assert_ok(
                moe_pack_put_tensor(w, &t, raw ? (const void *)raw : m->dense[layer][role], &err),
                &err);
            free(raw);
        }
}

/* Gate and up with their biases in one segment, down with its in the other. */
static inline void random_class(const struct random_model *m, struct moe_layout layout,
                                struct moe_expert_class *class_)
{
    *class_ = (struct moe_expert_class){.n_segments = 2};
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        struct moe_class_matrix *x = &class_->matrices[class_->n_matrices];
        if (!moe_expert_part_shape(&m->c, part, &x->rows, &x->cols))
            continue;
        bool vector = part >= MOE_E_GATE_BIAS;
        x->role = (uint16_t)(MOE_ROLE_GATE + part);
        x->segment = part == MOE_E_DOWN || part == MOE_E_DOWN_BIAS;
        x->layout = vector ? (struct moe_layout){MOE_LAYOUT_F32, 0} : layout;
        x->offset = class_->segment_bytes[x->segment];
        uint64_t bytes = vector ? 4 * x->rows : moe_layout_bytes(layout, x->rows, x->cols);
        class_->segment_bytes[x->segment] += (bytes + 63) / 64 * 64;
        class_->n_matrices++;
    }
}

static inline struct moe_layout random_layout(int bits)
{
    return moe_quant_layout(moe_quant_method_find("rtn"), bits, bits == 4 ? 32 : 64,
                            MOE_LAYOUT_BF16);
}

/* A variant of the experts: all at so many bits, or, as by a bit map, some at `some` bits. */
struct random_variant {
    const char *name;
    int bits, some; /* some 0: none */
};

static inline void random_put_experts(const struct random_model *m, struct moe_pack_writer *w,
                                      const struct random_variant *v, uint32_t variant)
{
    struct moe_err err = {0};
    for (uint32_t layer = 0; layer < m->c.n_layers; layer++)
        for (uint32_t e = 0; m->c.layers[layer].moe && e < m->c.n_experts; e++) {
            bool other = v->some && (layer + e) % 3 == 0;
            struct moe_layout layout = random_layout(other ? v->some : v->bits);
            struct moe_expert_class class_;
            uint32_t number;
            random_class(m, layout, &class_);
            assert_ok(moe_pack_put_class(w, &class_, &number, &err), &err);
            uint8_t *segments[2] = {calloc(1, class_.segment_bytes[0]),
                                    calloc(1, class_.segment_bytes[1])};
            for (uint32_t i = 0; i < class_.n_matrices; i++) {
                const struct moe_class_matrix *x = &class_.matrices[i];
                const float *values = m->expert[layer][e][x->role - MOE_ROLE_GATE];
                uint8_t *to = segments[x->segment] + x->offset;
                if (x->cols == 1) {
                    memcpy(to, values, x->rows * sizeof *values);
                    continue;
                }
                uint8_t *raw = random_encode(values, x->rows, x->cols, layout);
                memcpy(to, raw, moe_layout_bytes(layout, x->rows, x->cols));
                free(raw);
            }
            assert_ok(moe_pack_put_expert(w, layer, e, variant, number,
                                          (const void *const *)segments, &err),
                      &err);
            free(segments[0]);
            free(segments[1]);
        }
}

/* Writes the model to `path` with the description `says`: its experts in these variants, best
 * first, everything else at so many bits. */
static inline void random_model_write_variants(const struct random_model *m,
                                               const struct moe_config *says, int dense_bits,
                                               const struct random_variant *v, uint32_t n,
                                               const char *path)
{
    struct moe_err err = {0};
    struct moe_buf description = {0};
    struct moe_pack_writer *w = NULL;
    struct moe_pack_variant variants[MOE_MAX_VARIANTS] = {{.name = ""}};
    for (uint32_t i = 0; i < n; i++) {
        snprintf(variants[i].name, sizeof variants[i].name, "%s", v[i].name);
        snprintf(variants[i].method, sizeof variants[i].method, "rtn");
    }
    moe_config_write(says, &description);
    assert_ok(moe_pack_create(&w, path, m->c.n_layers, m->c.n_experts, variants,
                              m->c.n_experts ? n : 0, 1, 0, &err),
              &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_MODEL, description.data, description.size, &err),
              &err);
    random_put_tokenizer(w, &err);
    random_put_dense(m, w, random_layout(dense_bits));
    for (uint32_t i = 0; m->c.n_experts && i < n; i++)
        random_put_experts(m, w, &v[i], i);
    assert_ok(moe_pack_commit(w, &err), &err);
    moe_buf_release(&description);
}

/* ... with all of it at so many bits. */
static inline void random_model_write_as(const struct random_model *m,
                                         const struct moe_config *says, int bits, const char *path)
{
    const struct random_variant all = {"all", bits, 0};
    random_model_write_variants(m, says, bits, &all, 1, path);
}

static inline void random_model_write(const struct random_model *m, int bits, const char *path)
{
    random_model_write_as(m, &m->c, bits, path);
}

#endif
