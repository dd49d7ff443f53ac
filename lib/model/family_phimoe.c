/*
 * Phi-3.5-MoE: layer norms with biases, biases in attention and in the head, two experts chosen by
 * sparsemixer, LongRoPE. Keys and defaults are those of the public PhimoeConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->norm_kind = MOE_NORM_LAYER;
    c->norm_eps = 1e-5f;
    c->n_kv_heads = 8;
    c->router_kind = MOE_ROUTER_SPARSEMIXER;
    c->router_jitter = 0.01f;
    c->n_experts = 16;
    c->top_k = 2;
    const struct family_key keys[] = {
        {"num_local_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"router_jitter_noise", FAMILY_FLOAT, false, 0, &c->router_jitter},
        {"lm_head_bias", FAMILY_BOOL, false, 0, &c->head_bias},
    };
    int status = family_read_llama(c, path, json, &c->expert_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_window(c, path, json, 0, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 1e6, err);
    family_all_moe(c);
    return status;
}

/* The file does not tell sparsemixer's threshold: that of the published model. */
static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    c->norm_kind = MOE_NORM_LAYER;
    c->router_kind = MOE_ROUTER_SPARSEMIXER;
    c->router_jitter = 0.01f;
    int status = moe_gguf_arch_u32(gguf, "attention.sliding_window", MOE_MAX_CONTEXT, false,
                                   &c->window, err);
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++)
        c->layer_is_windowed[i] = c->window > 0;
    return status;
}

#define L "model.layers.%u."

static const struct moe_source_names names = {
    .dense = {[MOE_T_ROUTER] = {.name = L "block_sparse_moe.gate.weight"}},
    .expert =
        {
            [MOE_E_GATE] = {.name = L "block_sparse_moe.experts.%u.w1.weight"},
            [MOE_E_UP] = {.name = L "block_sparse_moe.experts.%u.w3.weight"},
            [MOE_E_DOWN] = {.name = L "block_sparse_moe.experts.%u.w2.weight"},
        },
};

/* As newer writers store them. */
static const struct moe_source_names newer_names = {
    .dense = {[MOE_T_ROUTER] = {.name = L "mlp.router.weight"}},
};

const struct moe_family moe_family_phimoe = {
    .name = "phimoe",
    .describe = "Phi-MoE (Phi-3.5-MoE)",
    .read_hf = read_hf,
    .hf = {&names, &newer_names, &family_names_llama, &family_names_fused},
    .gguf_arch = "phimoe",
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
