/* Granite: four multipliers, gate and up projections of all experts in one tensor. */
#include "model/family_table.h"

static const struct moe_source_names granite_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.router.layer.weight"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_PART(L "shared_mlp.input_linear.weight", FIRST_HALF),
              [MOE_T_SHARED_UP] = MOE_PART(L "shared_mlp.input_linear.weight", SECOND_HALF),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "shared_mlp.output_linear.weight")},
    .expert = {[MOE_E_GATE] = MOE_PART(L "block_sparse_moe.input_linear.weight", FIRST_HALF),
               [MOE_E_UP] = MOE_PART(L "block_sparse_moe.input_linear.weight", SECOND_HALF),
               [MOE_E_DOWN] = MOE_PART(L "block_sparse_moe.output_linear.weight", EXPERT)},
};
/* As newer writers store Granite. */
static const struct moe_source_names granite_newer_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.router.weight")},
    .expert = {[MOE_E_GATE] = MOE_PART(L "block_sparse_moe.experts.gate_up_proj", FIRST_HALF),
               [MOE_E_UP] = MOE_PART(L "block_sparse_moe.experts.gate_up_proj", SECOND_HALF),
               [MOE_E_DOWN] = MOE_PART(L "block_sparse_moe.experts.down_proj", EXPERT)},
};

/* Granite with a shared expert reads one key more. */
#define GRANITE_SETTINGS                                                                           \
    EXPERT_FF, LOCAL_EXPERTS(8), TOP_K(2), KEY("embedding_multiplier", embed_scale, 0),            \
        KEY("residual_multiplier", residual_scale, 0),                                             \
        USE("attention_multiplier", attn_scale, 1, MOE_NOT_ZERO),                                  \
        USE("logits_scaling", logit_scale, 0, MOE_RECIPROCAL), ATTENTION_BIAS(false)
#define GRANITE_NAMES .names = {&granite_names, &granite_newer_names}

const struct moe_family moe_families_granite[] = {
    /* Granite-3.x 1B-A400M, 3B-A800M: four multipliers, softmax over the chosen experts' scores,
     * gate and up projections of all experts in one tensor. */
    {
        .name = "granitemoe",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX)),
        .hf = {.settings = SETTINGS(CONTEXT(2048), GRANITE_SETTINGS),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL},
        .gguf = {.arch = "granitemoe"},
        .tensors = {[MOE_NAMING_HF] = {GRANITE_NAMES}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    {
        .name = "granitemoeshared",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX)),
        .hf = {.settings = SETTINGS(CONTEXT(2048), GRANITE_SETTINGS,
                                    KEY("shared_intermediate_size", shared_ff, 0)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL},
        .tensors[MOE_NAMING_HF] = {GRANITE_NAMES},
    },
    {.name = NULL},
};
