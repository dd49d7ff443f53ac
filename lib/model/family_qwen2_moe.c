/*
 * Qwen2-MoE: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B and models trained in their likeness. Softmax over
 * all experts, top-k with or without renormalisation, a shared expert scaled by its own gate,
 * biases on query, key and value, dense layers mixed in. Keys and defaults are those of the public
 * Qwen2MoeConfig.
 */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "fmt/json.h"
#include "model/family.h"

/* Rotary settings stand at the top level, or (newer files) in "rope_parameters". */
static int read_rope(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_err *err)
{
    c->rope_theta = 10000;
    int status = moe_json_get_double(path, json, "rope_theta", false, &c->rope_theta, err);
    const json_t *scaling = json_object_get(json, "rope_scaling");
    if (!json_is_object(scaling))
        scaling = json_object_get(json, "rope_parameters");
    if (status != MOE_OK || !json_is_object(scaling))
        return status;
    const char *type = "default";
    status = moe_json_get_text(path, scaling, "type", false, &type, err);
    if (status == MOE_OK)
        status = moe_json_get_text(path, scaling, "rope_type", false, &type, err);
    if (status == MOE_OK && strcmp(type, "default") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: rotary scaling '%s' is not implemented",
                        path, type);
    if (status == MOE_OK)
        status = moe_json_get_double(path, scaling, "rope_theta", false, &c->rope_theta, err);
    return status;
}

/* Which layers have experts: every decoder_sparse_step-th, but for those in mlp_only_layers. */
static int read_layers(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    uint32_t step = 1;
    int status =
        moe_json_get_u32(path, json, "decoder_sparse_step", MOE_MAX_LAYERS, false, &step, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = c->n_experts > 0 && step > 0 && (i + 1) % step == 0;
    const json_t *dense = json_object_get(json, "mlp_only_layers"), *item;
    if (!dense || json_is_null(dense))
        return MOE_OK;
    if (!json_is_array(dense))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'mlp_only_layers' is not a list", path);
    size_t i;
    json_array_foreach(dense, i, item)
    {
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'mlp_only_layers' names no layer at item %zu",
                            path, i);
        c->layer_is_moe[layer] = 0;
    }
    return MOE_OK;
}

/* Switches that would change the arithmetic and that nothing here computes. */
static int refuse_unknown_switches(const char *path, const json_t *json, struct moe_err *err)
{
    const char *act = "silu";
    int status = moe_json_get_text(path, json, "hidden_act", false, &act, err);
    if (status != MOE_OK)
        return status;
    if (strcmp(act, "silu") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: activation '%s' is not implemented", path,
                        act);
    bool window = false;
    status = moe_json_get_bool(path, json, "use_sliding_window", false, &window, err);
    if (status == MOE_OK && window)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: sliding-window attention ('use_sliding_window') is not implemented",
                        path);
    const json_t *item;
    size_t i;
    json_array_foreach(json_object_get(json, "layer_types"), i, item)
    {
        const char *type = json_string_value(item);
        if (!type || strcmp(type, "full_attention") != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %zu is '%s', only full_attention is "
                            "implemented",
                            path, i, type ? type : "?");
    }
    return status;
}

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    int status = refuse_unknown_switches(path, json, err);
    if (status != MOE_OK)
        return status;
    const struct {
        const char *key;
        uint32_t *out, max;
        bool required;
    } numbers[] = {
        {"num_hidden_layers", &c->n_layers, MOE_MAX_LAYERS, true},
        {"hidden_size", &c->hidden, MOE_MAX_DIM, true},
        {"vocab_size", &c->vocab, MOE_MAX_DIM, true},
        {"max_position_embeddings", &c->context_max, MOE_MAX_CONTEXT, true},
        {"num_attention_heads", &c->n_heads, MOE_MAX_HEADS, true},
        {"num_key_value_heads", &c->n_kv_heads, MOE_MAX_HEADS, false},
        {"head_dim", &c->head_dim, 1 << 12, false},
        {"intermediate_size", &c->dense_ff, MOE_MAX_DIM, true},
        {"num_experts", &c->n_experts, MOE_MAX_EXPERTS, true},
        {"num_experts_per_tok", &c->top_k, MOE_MAX_TOP_K, true},
        {"moe_intermediate_size", &c->expert_ff, MOE_MAX_DIM, true},
        {"shared_expert_intermediate_size", &c->shared_ff, MOE_MAX_DIM, true},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_json_get_u32(path, json, numbers[i].key, numbers[i].max, numbers[i].required,
                                  numbers[i].out, err);
    if (status != MOE_OK)
        return status;
    c->qkv_bias = true;
    c->shared_gate = true;
    double eps = 1e-6;
    status = moe_json_get_bool(path, json, "qkv_bias", false, &c->qkv_bias, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, json, "norm_topk_prob", false, &c->norm_topk, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, json, "tie_word_embeddings", false, &c->tied_head, err);
    if (status == MOE_OK)
        status = moe_json_get_double(path, json, "rms_norm_eps", false, &eps, err);
    c->norm_eps = (float)eps;
    if (status == MOE_OK)
        status = read_rope(c, path, json, err);
    if (status == MOE_OK)
        status = read_layers(c, path, json, err);
    return status;
}

static const struct moe_source_names hf_names = {
    .dense =
        {
            [MOE_T_EMBED] = {.name = "model.embed_tokens.weight"},
            [MOE_T_FINAL_NORM] = {.name = "model.norm.weight"},
            [MOE_T_HEAD] = {.name = "lm_head.weight"},
            [MOE_T_ATTN_NORM] = {.name = "model.layers.%u.input_layernorm.weight"},
            [MOE_T_Q] = {.name = "model.layers.%u.self_attn.q_proj.weight"},
            [MOE_T_K] = {.name = "model.layers.%u.self_attn.k_proj.weight"},
            [MOE_T_V] = {.name = "model.layers.%u.self_attn.v_proj.weight"},
            [MOE_T_Q_BIAS] = {.name = "model.layers.%u.self_attn.q_proj.bias"},
            [MOE_T_K_BIAS] = {.name = "model.layers.%u.self_attn.k_proj.bias"},
            [MOE_T_V_BIAS] = {.name = "model.layers.%u.self_attn.v_proj.bias"},
            [MOE_T_O] = {.name = "model.layers.%u.self_attn.o_proj.weight"},
            [MOE_T_FFN_NORM] = {.name = "model.layers.%u.post_attention_layernorm.weight"},
            [MOE_T_GATE] = {.name = "model.layers.%u.mlp.gate_proj.weight"},
            [MOE_T_UP] = {.name = "model.layers.%u.mlp.up_proj.weight"},
            [MOE_T_DOWN] = {.name = "model.layers.%u.mlp.down_proj.weight"},
            [MOE_T_ROUTER] = {.name = "model.layers.%u.mlp.gate.weight"},
            [MOE_T_SHARED_GATE_PROJ] = {.name =
                                            "model.layers.%u.mlp.shared_expert.gate_proj.weight"},
            [MOE_T_SHARED_UP] = {.name = "model.layers.%u.mlp.shared_expert.up_proj.weight"},
            [MOE_T_SHARED_DOWN] = {.name = "model.layers.%u.mlp.shared_expert.down_proj.weight"},
            [MOE_T_SHARED_GATE] = {.name = "model.layers.%u.mlp.shared_expert_gate.weight"},
        },
    .expert =
        {
            [MOE_E_GATE] = {.name = "model.layers.%u.mlp.experts.%u.gate_proj.weight"},
            [MOE_E_UP] = {.name = "model.layers.%u.mlp.experts.%u.up_proj.weight"},
            [MOE_E_DOWN] = {.name = "model.layers.%u.mlp.experts.%u.down_proj.weight"},
        },
    .ignored = (const char *const[]){"model.layers.%u.self_attn.rotary_emb.inv_freq", NULL},
};

const struct moe_family moe_family_qwen2_moe = {
    .name = "qwen2_moe",
    .describe = "Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B)",
    .read_hf = read_hf,
    .hf = {&hf_names},
};
