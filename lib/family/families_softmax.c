/*
 * Families whose router takes a softmax, over all experts or over those it chose, and whose
 * attention keeps keys and values.
 */
#include "family/family_table.h"

/* Also Phi-3.5-MoE's. */
static const struct moe_source_names mixtral_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.gate.weight")},
    .expert = {[MOE_E_GATE] = MOE_ALL(L "block_sparse_moe.experts.%u.w1.weight"),
               [MOE_E_UP] = MOE_ALL(L "block_sparse_moe.experts.%u.w3.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "block_sparse_moe.experts.%u.w2.weight")},
};
static const struct moe_source_names minicpm_names = {
    .expert = {[MOE_E_GATE] = MOE_ALL(L "mlp.experts.%u.w1.weight"),
               [MOE_E_UP] = MOE_ALL(L "mlp.experts.%u.w3.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "mlp.experts.%u.w2.weight")},
};
/* FlexOlmo: norms stand behind blocks. */
static const struct moe_source_names flex_olmo_names = {
    .dense = {[MOE_T_ATTN_NORM] = MOE_ALL(L "post_attention_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(L "post_feedforward_layernorm.weight")},
};
/* Experts of a layer together: transposed as published, as they are in memory as transformers saves
 * them. */
static const struct moe_source_names qwen3_vl_names = {
    .expert = {[MOE_E_GATE] = PART_EITHER(L "mlp.experts.gate_up_proj", FIRST_HALF),
               [MOE_E_UP] = PART_EITHER(L "mlp.experts.gate_up_proj", SECOND_HALF),
               [MOE_E_DOWN] = PART_EITHER(L "mlp.experts.down_proj", EXPERT)},
};
/* The bias is [1][n_experts]. */
static const struct moe_source_names ernie_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_PART(L "mlp.moe_statics.e_score_correction_bias", ROW)},
};
static const struct moe_source_names ernie_newer_names = {
    .dense = {[MOE_T_CHOICE_BIAS] =
                  MOE_PART(L "mlp.gate.moe_statics.e_score_correction_bias", ROW)},
};
static const struct moe_source_names hunyuan_names = {
    .dense = {[MOE_T_Q_NORM] = MOE_ALL(L "self_attn.query_layernorm.weight"),
              [MOE_T_K_NORM] = MOE_ALL(L "self_attn.key_layernorm.weight"),
              [MOE_T_ROUTER] = MOE_ALL(L "mlp.gate.wg.weight"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(L "mlp.shared_mlp.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "mlp.shared_mlp.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "mlp.shared_mlp.down_proj.weight")},
};
/* As newer writers store Phi-3.5-MoE. */
static const struct moe_source_names phimoe_newer_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "mlp.router.weight")},
};
/* Gate and up rows of all experts interleaved in one tensor, transposed where it is not quantized.
 */
static const struct moe_source_names gpt_oss_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "mlp.router.weight"),
              [MOE_T_ROUTER_BIAS] = MOE_ALL(L "mlp.router.bias")},
    .expert = {[MOE_E_GATE] = PART_COLUMNS(L "mlp.experts.gate_up_proj", EVEN),
               [MOE_E_UP] = PART_COLUMNS(L "mlp.experts.gate_up_proj", ODD),
               [MOE_E_DOWN] = PART_COLUMNS(L "mlp.experts.down_proj", EXPERT),
               [MOE_E_GATE_BIAS] = MOE_PART(L "mlp.experts.gate_up_proj_bias", EVEN),
               [MOE_E_UP_BIAS] = MOE_PART(L "mlp.experts.gate_up_proj_bias", ODD),
               [MOE_E_DOWN_BIAS] = MOE_PART(L "mlp.experts.down_proj_bias", EXPERT)},
};

const struct moe_family moe_families_softmax[] = {
    /* Qwen2-MoE: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B and models trained in their likeness. Softmax
     * over all experts, a shared expert scaled by its own gate, dense layers mixed in. */
    {
        .name = "qwen2_moe",
        .hf = {.settings =
                   SETTINGS(CONTEXT(32768), SET(shared_gate, true), SET(n_kv_heads, 16), DENSE_FF,
                            NEED("num_experts", n_experts), NEED("num_experts_per_tok", top_k),
                            NEED("moe_intermediate_size", expert_ff),
                            NEED("shared_expert_intermediate_size", shared_ff),
                            KEY("qkv_bias", qkv_bias, true), NORM_TOPK),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_STEP,
               .windows = {MOE_WINDOW_EVEN_BELOW, 4096, .if_used = true, .listed = true}},
        .gguf = {.arch = "qwen2moe", .settings = SETTINGS(GGUF_NORM_TOPK(false))},
        .tensors[MOE_NAMING_HF].names = {&moe_qwen2_moe_names},
    },
    /* Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B. As Qwen2-MoE, with norms of queries and keys and
     * without shared experts. */
    {
        .name = "qwen3_moe",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.settings =
                   SETTINGS(CONTEXT(32768), SET(n_kv_heads, 4), DENSE_FF, LOCAL_EXPERTS(128),
                            EXPERTS(0), TOP_K(8), KEY("moe_intermediate_size", expert_ff, 768),
                            NORM_TOPK, ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_STEP,
               .windows = {MOE_WINDOW_ALL, 4096, .if_used = true}},
        .gguf = {.arch = "qwen3moe", .settings = SETTINGS(GGUF_NORM_TOPK(true))},
    },
    /* Qwen3-VL with experts: 30B-A3B, 235B-A22B, their text part. As Qwen3-MoE; positions of a text
     * are the same in all sections of its rotary settings. */
    {
        .name = "qwen3_vl_moe_text",
        .also = "qwen3_vl_moe",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(norm_topk, true)),
        .hf = {.only = ONLY({"norm_topk_prob", "true"}),
               .settings =
                   SETTINGS(CONTEXT(128000), SET(n_kv_heads, 16), DENSE_FF, LOCAL_EXPERTS(60),
                            EXPERTS(0), TOP_K(4), KEY("moe_intermediate_size", expert_ff, 1408),
                            ATTENTION_BIAS(false)),
               .rope_theta = 5e5,
               .expert_layers = MOE_LAYERS_STEP,
               .in_text_config = true},
        .gguf = {.arch = "qwen3vlmoe", .settings = SETTINGS(GGUF_NORM_TOPK(true))},
        .tensors[MOE_NAMING_HF].names = {&qwen3_vl_names},
    },
    /* Mixtral: 8x7B, 8x22B. Softmax over all experts, the chosen weights divided by their sum. */
    {
        .name = "mixtral",
        .constants = SETTINGS(SET(norm_topk, true)),
        .hf = {.settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    EXPERT_FF, LOCAL_EXPERTS(8), TOP_K(2)),
               .rope_theta = 1e6,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_ALL, 0}},
        .gguf = {.arch = "llama", .settings = SETTINGS(GGUF_NORM_TOPK(true))},
        .tensors =
            {[MOE_NAMING_HF] = {.names = {&mixtral_names}}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* Hunyuan-A13B. A shared expert beside all others, norms of queries and keys after their
     * rotation, whose base a fixed factor stretches. The base in GGUF files is stretched already.
     */
    {
        .name = "hunyuan_v1_moe",
        .also = "hunyuan",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_ROTATED), SET(norm_topk, true)),
        .hf = {.only = ONLY({"use_qk_norm", "true"}, {"use_cla", "false"}, {"use_mla", "false"},
                            {"mlp_bias", "false"}, {"moe_layer_num_skipped", "0"},
                            {"use_mixed_mlp_moe", "true"}),
               .settings = SETTINGS(CONTEXT(2048), SET(norm_eps, 1e-5), EXPERT_FF,
                                    KEY("attention_head_dim", head_dim, 0), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_hunyuan_hf},
        .gguf = {.arch = "hunyuan-moe", .settings = SETTINGS(GGUF_NORM_TOPK(true))},
        .tensors[MOE_NAMING_HF].names = {&hunyuan_names},
    },
    /* OLMoE-1B-7B. Norms over all queries and over all keys of a position, clipping after them. */
    {
        .name = "olmoe",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_FULL)),
        .hf = {.settings = SETTINGS(CONTEXT(4096), SET(norm_eps, 1e-5), EXPERT_FF,
                                    LOCAL_EXPERTS(64), EXPERTS(0), TOP_K(8), NORM_TOPK,
                                    KEY("clip_qkv", clip_qkv, 0), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL},
        .gguf = {.arch = "olmoe", .settings = SETTINGS(GGUF_NORM_TOPK(false))},
    },
    /* FlexOlmo-7x7B-1T. As OLMoE, with norms behind attention and feed-forward. */
    {
        .name = "flex_olmo",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_FULL), SET(norm_place, MOE_NORM_AFTER)),
        .hf = {.settings = SETTINGS(CONTEXT(4096), EXPERT_FF, LOCAL_EXPERTS(7), EXPERTS(0),
                                    TOP_K(5), NORM_TOPK, ATTENTION_BIAS(false)),
               .rope_theta = 5e5,
               .expert_layers = MOE_LAYERS_ALL},
        .tensors[MOE_NAMING_HF].names = {&flex_olmo_names},
    },
    /* ERNIE-4.5: 21B-A3B, 300B-A47B. A softmax over all experts, a bias for the choice alone, the
     * chosen weights divided by their sum; rotated values in pairs. Layers that predict further
     * tokens are left out. */
    {
        .name = "ernie4_5_moe",
        .constants = SETTINGS(SET(choice_bias, true), SET(norm_topk, true)),
        .hf = {.only = ONLY({"use_bias", "false"}, {"moe_norm_min", "1e-12"},
                            {"moe_gate", "topk|topk_fused"}, {"moe_gate_act", "softmax"},
                            {"moe_norm_gate_logits", "true"}, {"moe_use_aux_free", "true"}),
               .settings =
                   SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 4),
                            SET(tied_head, true), DENSE_FF, KEY("moe_num_experts", n_experts, 64),
                            KEY("moe_k", top_k, 6), KEY("moe_intermediate_size", expert_ff, 1536)),
               .rope_theta = 5e5,
               .own = family_ernie4_5_moe_hf},
        .gguf = {.arch = "ernie4_5-moe", .settings = SETTINGS(GGUF_NORM_TOPK(true))},
        .tensors = {[MOE_NAMING_HF] = {.names = {&ernie_names, &ernie_newer_names}, .paired = true},
                    [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE: layer norms with biases, biases in attention and in
     * the head, two experts chosen by sparsemixer, LongRoPE. GGUF does not have sparsemixer's
     * threshold: that of the published model. */
    {
        .name = "phimoe",
        .constants = SETTINGS(SET(norm_kind, MOE_NORM_LAYER),
                              SET(router_kind, MOE_ROUTER_SPARSEMIXER), SET(router_jitter, 0.01)),
        .hf = {.settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    EXPERT_FF, LOCAL_EXPERTS(16), TOP_K(2),
                                    KEY("router_jitter_noise", router_jitter, 0),
                                    KEY("lm_head_bias", head_bias, false), ATTENTION_BIAS(false)),
               .rope_theta = 1e6,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_ALL, 0}},
        .gguf = {.arch = "phimoe", .windowed = true},
        .tensors[MOE_NAMING_HF].names = {&mixtral_names, &phimoe_newer_names},
    },
    /* MiniCPM-MoE-8x2B and the dense MiniCPM-2B, as the code published with them. Llama's layers
     * with scales at the embedding, at what layers add, and at the head. MiniCPM4 can attend to a
     * selection of blocks. */
    {
        .name = "minicpm",
        .constants = SETTINGS(SET(norm_topk, true)),
        .hf = {.only = ONLY({"sparse_config", "null"}),
               .settings =
                   SETTINGS(CONTEXT(2048), SET(tied_head, true), DENSE_FF, EXPERTS(0), TOP_K(0),
                            KEY("scale_emb", embed_scale, 0), KEY("scale_depth", residual_scale, 0),
                            KEY("dim_model_base", logit_scale, 0), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .own = family_minicpm_hf},
        .gguf = {.arch = "minicpm",
                 .settings = SETTINGS(GGUF_NORM_TOPK(true)),
                 .own = family_minicpm_gguf},
        .tensors =
            {[MOE_NAMING_HF] = {.names = {&minicpm_names}}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* gpt-oss: 20b, 120b. Biases everywhere, attention sinks, windows in every other layer, YaRN,
     * softmax over the chosen experts' scores, a clamped SwiGLU. GGUF says neither the activation's
     * constants nor which layers are windowed. */
    {
        .name = "gpt_oss",
        .constants = SETTINGS(SET(attn_sinks, true), SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX),
                              SET(router_bias, true), SET(expert_bias, true),
                              SET(expert_act, MOE_ACT_SWIGLU_CLAMPED), SET(act_alpha, 1.702),
                              SET(act_limit, 7)),
        .hf = {.settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    SET(head_dim, 64), EXPERT_FF, LOCAL_EXPERTS(128), TOP_K(4),
                                    KEY("swiglu_alpha", act_alpha, 0),
                                    KEY("swiglu_limit", act_limit, 0), ATTENTION_BIAS(true)),
               .rope_theta = 150000,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_EVEN, 128, .listed = true},
               .reads_mxfp4 = true,
               .own = family_gpt_oss_hf},
        .gguf = {.arch = "gpt-oss", .windowed = true, .own = family_gpt_oss_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&gpt_oss_names}},
                    [MOE_NAMING_GGUF] = {.names = {&moe_placed_norm_names}}},
    },
    {.name = NULL},
};
