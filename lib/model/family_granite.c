/*
 * Granite-3 MoE, with and without a shared expert. Four multipliers, softmax over the chosen
 * experts' scores, gate and up projections of all experts in one tensor. Keys and defaults are
 * those of the public GraniteMoeConfig and GraniteMoeSharedConfig.
 */
#include <jansson.h>

#include "model/family_common.h"
#include "model/family_gguf.h"

static int read_moe(struct moe_config *c, const char *path, const json_t *json, struct moe_err *err)
{
    float divisor = 1;
    c->attn_scale = 1;
    c->router_kind = MOE_ROUTER_TOPK_SOFTMAX;
    c->n_experts = 8;
    c->top_k = 2;
    const struct family_key keys[] = {
        {"num_local_experts", FAMILY_U32, false, MOE_MAX_EXPERTS, &c->n_experts},
        {"num_experts_per_tok", FAMILY_U32, false, MOE_MAX_TOP_K, &c->top_k},
        {"embedding_multiplier", FAMILY_FLOAT, false, 0, &c->embed_scale},
        {"residual_multiplier", FAMILY_FLOAT, false, 0, &c->residual_scale},
        {"attention_multiplier", FAMILY_FLOAT, false, 0, &c->attn_scale},
        {"logits_scaling", FAMILY_FLOAT, false, 0, &divisor},
    };
    int status = family_read_llama(c, path, json, &c->expert_ff, err);
    if (status == MOE_OK)
        status = FAMILY_READ(path, json, keys, err);
    if (status == MOE_OK)
        status = family_read_attention_bias(c, path, json, false, err);
    if (status == MOE_OK)
        status = family_read_rope(c, path, json, 10000, err);
    if (status == MOE_OK && (divisor == 0 || c->attn_scale == 0))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: 'logits_scaling' %g, 'attention_multiplier' %g make no sense", path,
                          (double)divisor, (double)c->attn_scale);
    c->logit_scale = 1 / divisor;
    family_all_moe(c);
    return status;
}

static int read_shared(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const struct family_key key = {"shared_intermediate_size", FAMILY_U32, false, MOE_MAX_DIM,
                                   &c->shared_ff};
    int status = read_moe(c, path, json, err);
    return status == MOE_OK ? family_read_keys(path, json, &key, 1, err) : status;
}

static int read_gguf(struct moe_config *c, const struct moe_gguf *gguf,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    (void)gguf;
    (void)rope;
    (void)err;
    c->router_kind = MOE_ROUTER_TOPK_SOFTMAX;
    return MOE_OK;
}

#define L "model.layers.%u."

static const struct moe_source_names names = {
    .dense =
        {
            [MOE_T_ROUTER] = {.name = L "block_sparse_moe.router.layer.weight"},
            [MOE_T_SHARED_GATE_PROJ] = {.name = L "shared_mlp.input_linear.weight",
                                        .take = MOE_TAKE_FIRST_HALF},
            [MOE_T_SHARED_UP] = {.name = L "shared_mlp.input_linear.weight",
                                 .take = MOE_TAKE_SECOND_HALF},
            [MOE_T_SHARED_DOWN] = {.name = L "shared_mlp.output_linear.weight"},
        },
    .expert =
        {
            [MOE_E_GATE] = {.name = L "block_sparse_moe.input_linear.weight",
                            .take = MOE_TAKE_FIRST_HALF},
            [MOE_E_UP] = {.name = L "block_sparse_moe.input_linear.weight",
                          .take = MOE_TAKE_SECOND_HALF},
            [MOE_E_DOWN] = {.name = L "block_sparse_moe.output_linear.weight",
                            .take = MOE_TAKE_EXPERT},
        },
};

/* As newer writers store them. */
static const struct moe_source_names newer_names = {
    .dense = {[MOE_T_ROUTER] = {.name = L "block_sparse_moe.router.weight"}},
    .expert =
        {
            [MOE_E_GATE] = {.name = L "block_sparse_moe.experts.gate_up_proj",
                            .take = MOE_TAKE_FIRST_HALF},
            [MOE_E_UP] = {.name = L "block_sparse_moe.experts.gate_up_proj",
                          .take = MOE_TAKE_SECOND_HALF},
            [MOE_E_DOWN] = {.name = L "block_sparse_moe.experts.down_proj",
                            .take = MOE_TAKE_EXPERT},
        },
};

const struct moe_family moe_family_granitemoe = {
    .name = "granitemoe",
    .describe = "Granite MoE (Granite-3.x 1B-A400M, 3B-A800M)",
    .read_hf = read_moe,
    .hf = {&names, &newer_names, &family_names_llama},
    .gguf_arch = "granitemoe",
    .gguf_paired = true,
    .read_gguf = read_gguf,
    .gguf = {&moe_gguf_names, &moe_gguf_names_other, &moe_gguf_names_old},
};

const struct moe_family moe_family_granitemoeshared = {
    .name = "granitemoeshared",
    .describe = "Granite MoE with a shared expert",
    .read_hf = read_shared,
    .hf = {&names, &newer_names, &family_names_llama},
};
