/*
 * Qwen2-MoE: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B and models trained in their likeness. Softmax over
 * all experts, top-k with or without renormalisation, a shared expert scaled by its own gate,
 * biases on query, key and value, dense layers mixed in. Keys and defaults are those of the public
 * Qwen2MoeConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

/* With "use_sliding_window", every other layer below max_window_layers has one, the first first. */
static int read_window(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    uint32_t below = 28;
    const struct family_key key = {"max_window_layers", FAMILY_U32, false, UINT32_MAX, &below};
    int status = family_read_keys(path, json, &key, 1, err);
    if (status == MOE_OK)
        status = family_read_qwen_window(c, path, json, err);
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK && c->window && !listed; i++)
        c->layer_is_windowed[i] = i % 2 == 0 && i < below;
    return status;
}

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->qkv_bias = true;
    c->shared_gate = true;
    c->n_kv_heads = 16;
    const struct family_key keys[] = {
        {"num_experts", FAMILY_U32, true, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, true, MOE_MAX_TOP_K, &c->top_k},
        {"moe_intermediate_size", FAMILY_U32, true, MOE_MAX_DIM, &c->expert_ff},
        {"shared_expert_intermediate_size", FAMILY_U32, true, MOE_MAX_DIM, &c->shared_ff},
        {"qkv_bias", FAMILY_BOOL, false, 0, &c->qkv_bias},
        {"norm_topk_prob", FAMILY_BOOL, false, 0, &c->norm_topk},
    };
    int status = family_read_llama(c, path, json, &c->dense_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = read_window(c, path, json, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    if (status == MOE_OK)
        status = family_read_sparse_layers(c, path, json, err);
    return status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)rope;
    return moe_gguf_read_norm_topk(c, gguf, false, err);
}

static const struct moe_source_names names = {
    .dense =
        {
            [MOE_T_SHARED_GATE_PROJ] = {.name =
                                            "model.layers.%u.mlp.shared_expert.gate_proj.weight"},
            [MOE_T_SHARED_UP] = {.name = "model.layers.%u.mlp.shared_expert.up_proj.weight"},
            [MOE_T_SHARED_DOWN] = {.name = "model.layers.%u.mlp.shared_expert.down_proj.weight"},
            [MOE_T_SHARED_GATE] = {.name = "model.layers.%u.mlp.shared_expert_gate.weight"},
        },
};

const struct moe_family moe_family_qwen2_moe = {
    .name = "qwen2_moe",
    .describe = "Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B)",
    .read_hf = read_hf,
    .hf = {&names, &family_names_llama, &family_names_fused},
    .gguf_arch = "qwen2moe",
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
