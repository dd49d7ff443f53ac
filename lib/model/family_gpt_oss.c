/*
 * gpt-oss: 20b, 120b. Biases everywhere, attention sinks, windows in every other layer, YaRN,
 * softmax over the chosen experts' scores, a clamped SwiGLU; gate and up projections of all experts
 * interleaved in one tensor, transposed where it is not quantized. Keys and defaults are those of
 * the public GptOssConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static bool every_other(uint32_t layer)
{
    return layer % 2 == 0;
}

/* Without settings the rope is that of the published models. */
static int read_rope(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_err *err)
{
    struct moe_rope_settings settings;
    moe_rope_settings_init(&settings);
    settings.theta = 150000;
    if (!json_is_object(json_object_get(json, "rope_scaling")) &&
        !json_is_object(json_object_get(json, "rope_parameters"))) {
        settings.kind = MOE_ROPE_YARN;
        settings.factor = 32;
        settings.original_context = 4096;
        settings.truncate = false;
    }
    int status = moe_rope_read_hf(&settings, path, json, err);
    return status == MOE_OK ? moe_rope_apply(c, &settings, path, err) : status;
}

static int read_hf(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    c->norm_eps = 1e-5f;
    c->n_kv_heads = 8;
    c->head_dim = 64;
    c->window = 128;
    c->attn_sinks = true;
    c->router_kind = MOE_ROUTER_TOPK_SOFTMAX;
    c->router_bias = true;
    c->expert_bias = true;
    c->expert_act = MOE_ACT_SWIGLU_CLAMPED;
    c->act_alpha = 1.702f;
    c->act_limit = 7;
    c->n_experts = 128;
    c->top_k = 4;
    const struct family_key keys[] = {
        {"num_local_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"sliding_window", FAMILY_U32, false, MOE_MAX_CONTEXT, &c->window},
        {"swiglu_alpha", FAMILY_FLOAT, false, 0, &c->act_alpha},
        {"swiglu_limit", FAMILY_FLOAT, false, 0, &c->act_limit},
    };
    int status = family_read_llama(c, path, json, &c->expert_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, true, err);
    if (status == MOE_OK)
        status = family_read_layer_types(c, path, json, every_other, err);
    if (status == MOE_OK)
        status = read_rope(c, path, json, err);
    family_all_moe(c);
    return status;
}

/* The activation's constants, and which layers are windowed, go without saying in GGUF. */
static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    c->attn_sinks = true;
    c->router_kind = MOE_ROUTER_TOPK_SOFTMAX;
    c->router_bias = true;
    c->expert_bias = true;
    c->expert_act = MOE_ACT_SWIGLU_CLAMPED;
    c->act_alpha = 1.702f;
    c->act_limit = 7;
    c->window = 128;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_windowed[i] = every_other(i);
    rope->truncate = false;
    return moe_gguf_arch_u32(gguf, "attention.sliding_window", MOE_MAX_CONTEXT, false, &c->window,
                             err);
}

#define L "model.layers.%u."
#define EXPERTS L "mlp.experts."

static const struct moe_source_names names = {
    .dense =
        {
            [MOE_T_SINKS] = {.name = L "self_attn.sinks"},
            [MOE_T_ROUTER] = {.name = L "mlp.router.weight"},
            [MOE_T_ROUTER_BIAS] = {.name = L "mlp.router.bias"},
        },
    .expert =
        {
            [MOE_E_GATE] = {EXPERTS "gate_up_proj", MOE_TAKE_EVEN, true},
            [MOE_E_UP] = {EXPERTS "gate_up_proj", MOE_TAKE_ODD, true},
            [MOE_E_DOWN] = {EXPERTS "down_proj", MOE_TAKE_EXPERT, true},
            [MOE_E_GATE_BIAS] = {EXPERTS "gate_up_proj_bias", MOE_TAKE_EVEN, false},
            [MOE_E_UP_BIAS] = {EXPERTS "gate_up_proj_bias", MOE_TAKE_ODD, false},
            [MOE_E_DOWN_BIAS] = {EXPERTS "down_proj_bias", MOE_TAKE_EXPERT, false},
        },
};

const struct moe_family moe_family_gpt_oss = {
    .name = "gpt_oss",
    .describe = "gpt-oss (20b, 120b)",
    .read_hf = read_hf,
    .hf = {&names, &family_names_llama},
    .hf_reads_mxfp4 = true,
    .gguf_arch = "gpt-oss",
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};
