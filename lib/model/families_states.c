/* Families of which most layers have a recurrent state in the place of keys and values. */
#include "model/family_table.h"

/* Norms of the stream, of queries and keys are stored as what they differ from 1. */
static const struct moe_source_names qwen3_next_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              [MOE_T_ATTN_NORM] = MOE_PLUS_ONE(L "input_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_PLUS_ONE(L "post_attention_layernorm.weight"),
              [MOE_T_Q] = MOE_PART(L "self_attn.q_proj.weight", HEAD_QUERY),
              [MOE_T_Q_NORM] = MOE_PLUS_ONE(L "self_attn.q_norm.weight"),
              [MOE_T_K_NORM] = MOE_PLUS_ONE(L "self_attn.k_norm.weight")},
};

/* Experts and recurrent states of Qwen3-Next and its successors. */
#define QWEN3_NEXT_SETTINGS                                                                        \
    KEY("moe_intermediate_size", expert_ff, 512),                                                  \
        KEY("shared_expert_intermediate_size", shared_ff, 512),                                    \
        KEY("linear_num_value_heads", state_heads, 32),                                            \
        KEY("linear_num_key_heads", state_key_heads, 16),                                          \
        KEY("linear_key_head_dim", state_key_dim, 128),                                            \
        KEY("linear_value_head_dim", state_value_dim, 128),                                        \
        KEY("linear_conv_kernel_dim", conv_width, 4)

static const struct moe_source_names lfm2_moe_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_ALL("model.embedding_norm.weight"),
              [MOE_T_ATTN_NORM] = MOE_ALL(L "operator_norm.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(L "ffn_norm.weight"),
              [MOE_T_Q_NORM] = MOE_ALL(L "self_attn.q_layernorm.weight"),
              [MOE_T_K_NORM] = MOE_ALL(L "self_attn.k_layernorm.weight"),
              [MOE_T_O] = MOE_ALL(L "self_attn.out_proj.weight"),
              [MOE_T_STATE_SCALE] = MOE_PART(L "conv.in_proj.weight", THIRD),
              [MOE_T_STATE_Z] = MOE_PART(L "conv.in_proj.weight", THIRD),
              [MOE_T_STATE_V] = MOE_PART(L "conv.in_proj.weight", THIRD),
              [MOE_T_STATE_CONV] = MOE_PART(L "conv.conv.weight", CONV),
              [MOE_T_STATE_O] = MOE_ALL(L "conv.out_proj.weight"),
              [MOE_T_GATE] = MOE_ALL(L "feed_forward.w1.weight"),
              [MOE_T_UP] = MOE_ALL(L "feed_forward.w3.weight"),
              [MOE_T_DOWN] = MOE_ALL(L "feed_forward.w2.weight"),
              [MOE_T_ROUTER] = MOE_ALL(L "feed_forward.gate.weight"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "feed_forward.expert_bias")},
    .expert = {[MOE_E_GATE] = MOE_ALL(L "feed_forward.experts.%u.w1.weight"),
               [MOE_E_UP] = MOE_ALL(L "feed_forward.experts.%u.w3.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "feed_forward.experts.%u.w2.weight")},
};

const struct moe_family moe_families_states[] = {
    /* Qwen3-Next: 80B-A3B. Layers with recurrent states (gated DeltaNet), every fourth with gated
     * attention that rotates a quarter of a head; many small experts and a shared one. */
    {
        .name = "qwen3_next",
        .constants =
            SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(attn_gate, true), SET(shared_gate, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}),
               .settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 2), SET(head_dim, 256),
                                    SET(norm_topk, true), DENSE_FF, EXPERTS(512), TOP_K(10),
                                    NORM_TOPK, QWEN3_NEXT_SETTINGS),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_STEP,
               .partial_rotary = 0.25,
               .own = family_qwen3_next_hf},
        .tensors[MOE_NAMING_HF].names = {&qwen3_next_names, &moe_qwen2_moe_names},
    },
    /* Qwen3.5 and 3.6 with experts: 35B-A3B and larger, their text part. As Qwen3-Next, with other
     * tensors; positions of a text are the same in all sections of its rotary settings. */
    {
        .name = "qwen3_5_moe_text",
        .also = "qwen3_5_moe",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(attn_gate, true),
                              SET(shared_gate, true), SET(norm_topk, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"attn_output_gate", "true"}),
               .settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 2), SET(head_dim, 256),
                                    EXPERTS(256), TOP_K(8), QWEN3_NEXT_SETTINGS),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .in_text_config = true,
               .partial_rotary = 0.25,
               .own = family_qwen3_next_hf},
        .tensors[MOE_NAMING_HF].names = {&qwen3_next_names, &moe_qwen2_moe_names},
    },
    /* LFM2 with experts: 8B-A1B, 24B-A2B. Short convolutions, attention in a few layers;
     * DeepSeek-V3's router without groups, with another epsilon. Which layers are which is listed
     * under names of its own, hence a function. */
    {
        .name = "lfm2_moe",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_SIGMOID), SET(topk_eps, 1e-6),
                              SET(qk_norm, MOE_QK_NORM_HEAD), SET(state_kind, MOE_STATE_CONV)),
        .hf = {.only = ONLY({"conv_bias", "false"}),
               .settings =
                   SETTINGS(CONTEXT(128000), SET(n_kv_heads, 8), SET(tied_head, true),
                            KEY("norm_eps", norm_eps, 1e-5), KEY("tie_embedding", tied_head, 0),
                            KEY("intermediate_size", dense_ff, 7168), EXPERTS(32), TOP_K(4),
                            KEY("moe_intermediate_size", expert_ff, 1792),
                            KEY("norm_topk_prob", norm_topk, true),
                            KEY("use_expert_bias", choice_bias, true),
                            KEY("routed_scaling_factor", routed_scale, 1),
                            KEY("conv_L_cache", conv_width, 3)),
               .rope_theta = 1e6,
               .own = family_lfm2_moe_hf},
        .tensors[MOE_NAMING_HF].names = {&lfm2_moe_names},
    },
    {.name = NULL},
};
