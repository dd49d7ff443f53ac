/* Granite: four multipliers, gate and up projections of all experts in one tensor. */
#include "family/family_table.h"

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

/* Hybrids without experts have the shared one alone. */
static const struct moe_source_names granite_hybrid_names = {
    .dense =
        {MAMBA(L "mamba."), [MOE_T_GATE] = MOE_PART(L "shared_mlp.input_linear.weight", FIRST_HALF),
         [MOE_T_UP] = MOE_PART(L "shared_mlp.input_linear.weight", SECOND_HALF),
         [MOE_T_DOWN] = MOE_ALL(L "shared_mlp.output_linear.weight")},
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
    /* Granite-4 H: layers with recurrent states (Mamba-2) and a few of attention, which knows no
     * positions as a rule; or dense, and perhaps without states. Which layers are which, what there
     * is without experts, and the width of a state's heads are worked out, hence a function. */
    {
        .name = "granitemoehybrid",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX),
                              SET(positions, MOE_POSITIONS_NONE), SET(state_kind, MOE_STATE_SCAN)),
        .hf = {.only = ONLY({"mamba_proj_bias", "false"}, {"position_embedding_type", "nope|rope"},
                            {"normalization_function", "rmsnorm"}),
               .settings = SETTINGS(CONTEXT(2048), GRANITE_SETTINGS,
                                    KEY("shared_intermediate_size", shared_ff, 1024),
                                    KEY("mamba_n_heads", state_heads, 128),
                                    KEY("mamba_n_groups", state_key_heads, 1),
                                    KEY("mamba_d_state", state_key_dim, 256),
                                    KEY("mamba_d_conv", conv_width, 4),
                                    KEY("mamba_conv_bias", conv_bias, true)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_granite_hybrid_hf},
        .gguf = {.arch = "granitehybrid",
                 .settings = SETTINGS(STATES_GGUF),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_granite_hybrid_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&granite_hybrid_names, &granite_names,
                                             &granite_newer_names},
                    [MOE_NAMING_GGUF] = {.names = {&moe_mamba_gguf_names}, .paired = true}},
    },
    {.name = NULL},
};
