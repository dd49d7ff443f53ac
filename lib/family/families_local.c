/*
 * Families whose layers attend to a window or to all of a text, and compute differently in these
 * two kinds: other heads, other rotations, none.
 */
#include "family/family_table.h"

/* With experts the norm before feed-forwards is the shared one's; without, all there is. */
static const struct moe_source_names gemma4_names = {
    .dense = {[MOE_T_ATTN_END_NORM] = MOE_ALL(L "post_attention_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(L "pre_feedforward_layernorm_2.weight"),
              [MOE_T_FFN_END_NORM] = MOE_ALL(L "post_feedforward_layernorm.weight"),
              [MOE_T_LAYER_SCALE] = MOE_ALL(L "layer_scalar"),
              [MOE_T_ROUTER] = MOE_ALL(L "router.proj.weight"),
              [MOE_T_ROUTER_NORM] = MOE_ALL(L "router.scale"),
              [MOE_T_EXPERT_SCALE] = MOE_ALL(L "router.per_expert_scale"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(L "mlp.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "mlp.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "mlp.down_proj.weight"),
              [MOE_T_SHARED_NORM] = MOE_ALL(L "pre_feedforward_layernorm.weight"),
              [MOE_T_SHARED_END_NORM] = MOE_ALL(L "post_feedforward_layernorm_1.weight"),
              [MOE_T_EXPERTS_END_NORM] = MOE_ALL(L "post_feedforward_layernorm_2.weight")},
    .expert = {[MOE_E_GATE] = MOE_PART(L "experts.gate_up_proj", FIRST_HALF),
               [MOE_E_UP] = MOE_PART(L "experts.gate_up_proj", SECOND_HALF),
               [MOE_E_DOWN] = MOE_PART(L "experts.down_proj", EXPERT)},
};
static const struct moe_source_names gemma4_dense_names = {
    .dense = {[MOE_T_FFN_NORM] = MOE_ALL(L "pre_feedforward_layernorm.weight")},
};

/* Of a MoE layer "ffn_norm", "ffn_gate" and so on are the shared expert's. */
static const struct moe_source_names gemma4_gguf_names = {
    .dense = {[MOE_T_ATTN_END_NORM] = MOE_ALL(B "post_attention_norm.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(B "pre_ffw_norm_2.weight"),
              [MOE_T_FFN_END_NORM] = MOE_ALL(B "post_ffw_norm.weight"),
              [MOE_T_LAYER_SCALE] = MOE_ALL(B "layer_output_scale.weight"),
              [MOE_T_ROUTER_NORM] = MOE_ALL(B "ffn_gate_inp.scale"),
              [MOE_T_EXPERT_SCALE] = MOE_ALL(B "ffn_down_exps.scale"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(B "ffn_gate.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(B "ffn_up.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(B "ffn_down.weight"),
              [MOE_T_SHARED_NORM] = MOE_ALL(B "ffn_norm.weight"),
              [MOE_T_SHARED_END_NORM] = MOE_ALL(B "post_ffw_norm_1.weight"),
              [MOE_T_EXPERTS_END_NORM] = MOE_ALL(B "post_ffw_norm_2.weight")},
};

static const struct moe_source_names afmoe_names = {
    .dense = {[MOE_T_ATTN_END_NORM] = MOE_ALL(L "post_attention_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(L "pre_mlp_layernorm.weight"),
              [MOE_T_FFN_END_NORM] = MOE_ALL(L "post_mlp_layernorm.weight"),
              [MOE_T_ATTN_GATE] = MOE_ALL(L "self_attn.gate_proj.weight"),
              [MOE_T_ROUTER] = MOE_ALL(L "mlp.router.gate.weight"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.expert_bias")},
};

static const struct moe_source_names afmoe_gguf_names = {
    .dense = {[MOE_T_ATTN_END_NORM] = MOE_ALL(B "post_attention_norm.weight"),
              [MOE_T_FFN_END_NORM] = MOE_ALL(B "post_ffw_norm.weight"),
              [MOE_T_ATTN_GATE] = MOE_ALL(B "attn_gate.weight")},
};

/* Experts of a layer together, transposed. */
static const struct moe_source_names llama4_names = {
    .dense = {[MOE_T_GATE] = MOE_ALL(L "feed_forward.gate_proj.weight"),
              [MOE_T_UP] = MOE_ALL(L "feed_forward.up_proj.weight"),
              [MOE_T_DOWN] = MOE_ALL(L "feed_forward.down_proj.weight"),
              [MOE_T_ROUTER] = MOE_ALL(L "feed_forward.router.weight"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(L "feed_forward.shared_expert.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "feed_forward.shared_expert.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "feed_forward.shared_expert.down_proj.weight")},
    .expert = {[MOE_E_GATE] = PART_COLUMNS(L "feed_forward.experts.gate_up_proj", FIRST_HALF),
               [MOE_E_UP] = PART_COLUMNS(L "feed_forward.experts.gate_up_proj", SECOND_HALF),
               [MOE_E_DOWN] = PART_COLUMNS(L "feed_forward.experts.down_proj", EXPERT)},
};

static const struct moe_source_names smallthinker_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.primary_router.weight")},
    .expert = {[MOE_E_GATE] = MOE_ALL(L "block_sparse_moe.experts.%u.gate.weight"),
               [MOE_E_UP] = MOE_ALL(L "block_sparse_moe.experts.%u.up.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "block_sparse_moe.experts.%u.down.weight")},
};

static const struct moe_source_names exaone_moe_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.e_score_correction_bias")},
};

const struct moe_family moe_families_local[] = {
    /* SmallThinker, as the code published with it: routers stand before attention, experts are
     * gated by max(x, 0). Which layers rotate and see a window is listed, hence a function. */
    {
        .name = "smallthinker",
        .constants =
            SETTINGS(SET(router_early, true), SET(router_kind, MOE_ROUTER_SIGMOID),
                     SET(norm_topk, true), SET(expert_act, MOE_ACT_REGLU), SET(tied_head, true)),
        .hf = {.architecture = "SmallThinkerForCausalLM",
               .only = ONLY({"moe_enable_early_router", "true"}, {"use_qk_norm", "false"},
                            {"moe_enable_secondary_experts", "false"},
                            {"moe_shared_primary_experts", "0"}),
               .settings = SETTINGS(CONTEXT(131072), SET(n_kv_heads, 2), SET(head_dim, 128),
                                    KEY("moe_num_primary_experts", n_experts, 32),
                                    KEY("moe_num_active_primary_experts", top_k, 4),
                                    KEY("moe_ffn_hidden_size", expert_ff, 768)),
               .rope_theta = 1e6,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_smallthinker_hf},
        .gguf = {.arch = "smallthinker",
                 .says_router = true,
                 .only = ONLY({"attention.sliding_window_pattern", "4"}),
                 .settings = SETTINGS(KEY("attention.sliding_window", window, 0)),
                 .own = family_smallthinker_gguf},
        .tensors[MOE_NAMING_HF].names = {&smallthinker_names},
    },
    /* Llama-4: layers that rotate see their own part of the text alone, the others all of it, with
     * queries scaled by their position; weights multiply what experts take in. Which layers are
     * which is worked out, hence a function. */
    {
        .name = "llama4",
        .also = "llama4_text",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_SIGMOID), SET(weigh_inputs, true),
                              SET(rope_in_windows, true), SET(window_chunks, true)),
        .hf = {.settings =
                   SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(head_dim, 128),
                            LOCAL_EXPERTS(16), TOP_K(1), KEY("intermediate_size", expert_ff, 8192),
                            KEY("intermediate_size_mlp", dense_ff, 16384), ATTENTION_BIAS(false)),
               .rope_theta = 5e5,
               .in_text_config = true,
               .own = family_llama4_hf},
        .gguf = {.arch = "llama4",
                 .only =
                     ONLY({"attention.sliding_window", "8192"}, {"attention.chunk_size", "8192"},
                          {"attention.sliding_window_pattern", "4"}),
                 .own = family_llama4_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&llama4_names}, .paired = true},
                    [MOE_NAMING_GGUF].paired = true},
    },
    /* EXAONE-MoE (K-EXAONE): DeepSeek-V3's router, global layers that know no positions. Which
     * layers are which is worked out, hence a function. */
    {
        .name = "exaone_moe",
        .constants = SETTINGS(SIGMOIDS, SET(qk_norm, MOE_QK_NORM_HEAD), SET(rope_in_windows, true)),
        .hf = {.only = ONLY(SIGMOIDS_ONLY),
               .settings = SETTINGS(CONTEXT(2048), SET(norm_eps, 1e-5), DENSE_FF, EXPERTS(64),
                                    TOP_K(8), KEY("moe_intermediate_size", expert_ff, 1024),
                                    KEY("norm_topk_prob", norm_topk, true),
                                    KEY("routed_scaling_factor", routed_scale, 2.5), GROUPS(1, 1)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .windows = {MOE_WINDOW_ALL, 4096, .listed = true},
               .own = family_exaone_moe_hf},
        .gguf = {.arch = "exaone-moe",
                 .sigmoid = true,
                 .settings = SETTINGS(NEED("attention.sliding_window", window), GGUF_GROUPS,
                                      GGUF_NORM_TOPK(false)),
                 .own = family_exaone_moe_gguf},
        .tensors[MOE_NAMING_HF].names = {&exaone_moe_names},
    },
    /* Command-A with experts: attention and feed-forward take in one norm, which only subtracts the
     * mean and scales; global layers know no positions, but for those without experts. Which layers
     * are which, and the kinds of norm and router, are worked out, hence a function. */
    {
        .name = "cohere2_moe",
        .constants = SETTINGS(SET(parallel_blocks, true), SET(router_early, true),
                              SET(router_kind, MOE_ROUTER_SIGMOID), SET(rope_in_windows, true),
                              SET(norm_kind, MOE_NORM_CENTRED), SET(tied_head, true)),
        .hf = {.only = ONLY({"use_parallel_block", "true"}, {"use_qk_norm", "false"},
                            {"use_gated_activation", "true"}, {"layer_norm_bias", "false"}),
               .settings = SETTINGS(CONTEXT(8192), SET(head_dim, 128),
                                    KEY("layer_norm_eps", norm_eps, 1e-5),
                                    KEY("logit_scale", logit_scale, 0.0625), EXPERT_FF, EXPERTS(8),
                                    TOP_K(2), KEY("prefix_dense_intermediate_size", dense_ff, 0),
                                    ATTENTION_BIAS(false), KEY("norm_topk_prob", norm_topk, true)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .windows = {MOE_WINDOW_ALL, 4096, .listed = true},
               .own = family_cohere2_moe_hf},
        .gguf = {.arch = "cohere2moe",
                 .settings = SETTINGS(NEED("attention.sliding_window", window),
                                      NEED("logit_scale", logit_scale), GGUF_NORM_TOPK(false)),
                 .own = family_cohere2_moe_gguf},
        .tensors = {[MOE_NAMING_HF].paired = true, [MOE_NAMING_GGUF].paired = true},
    },
    /* AFMoE (Trinity): norms on both sides of blocks, gated attention, global layers that know no
     * positions, DeepSeek-V3's router without groups. Which layers are which is worked out, hence a
     * function. */
    {
        .name = "afmoe",
        .constants = SETTINGS(SIGMOIDS, SET(norm_place, MOE_NORM_BOTH), SET(norm_topk, true),
                              SET(qk_norm, MOE_QK_NORM_HEAD), SET(attn_gate, true),
                              SET(rope_in_windows, true)),
        .hf = {.only = ONLY({"score_func", "sigmoid"}, {"route_norm", "true"}, {"n_group", "1"},
                            {"topk_group", "1"}, {"num_expert_groups", "1"},
                            {"num_limited_groups", "1"}),
               .settings =
                   SETTINGS(CONTEXT(16384), SET(norm_eps, 1e-5), SET(head_dim, 128), DENSE_FF,
                            EXPERTS(64), TOP_K(6), KEY("moe_intermediate_size", expert_ff, 1408),
                            KEY("route_scale", routed_scale, 0), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_ALL, 1024, .listed = true},
               .own = family_afmoe_hf},
        .gguf = {.arch = "afmoe",
                 .sigmoid = true,
                 .only = ONLY({"attention.sliding_window_pattern", "4"},
                              {"expert_group_count", "1"}, {"expert_weights_norm", "true"}),
                 .settings = SETTINGS(NEED("attention.sliding_window", window)),
                 .own = family_afmoe_gguf},
        .tensors =
            {[MOE_NAMING_HF].names = {&afmoe_names}, [MOE_NAMING_GGUF].names = {&afmoe_gguf_names}},
    },
    /* Gemma-4: norms on both sides of everything, a dense feed-forward beside the experts, global
     * layers with wider heads whose values are their keys. Which layers these are and what they
     * rotate by is worked out, hence a function. Embeddings by layer (E2B, E4B) and keys that
     * layers share are refused. */
    {
        .name = "gemma4",
        .also = "gemma4_text",
        .constants = SETTINGS(SET(norm_place, MOE_NORM_BOTH), SET(qk_norm, MOE_QK_NORM_HEAD),
                              SET(value_norm, true), SET(attn_scale, 1), SET(layer_scale, true),
                              SET(dense_act, MOE_ACT_GEGLU), SET(expert_act, MOE_ACT_GEGLU),
                              SET(norm_topk, true), SET(tied_head, true)),
        .hf = {.only =
                   ONLY({"hidden_activation", "gelu_pytorch_tanh"},
                        {"use_bidirectional_attention", "vision"}, {"num_kv_shared_layers", "0"}),
               .settings =
                   SETTINGS(CONTEXT(131072), SET(n_kv_heads, 4), SET(head_dim, 256), DENSE_FF,
                            EXPERTS(0), KEY("top_k_experts", top_k, 0),
                            KEY("moe_intermediate_size", expert_ff, 0),
                            KEY("global_head_dim", global_head_dim, 0),
                            KEY("num_global_key_value_heads", global_kv_heads, 0),
                            KEY("attention_k_eq_v", global_keys_are_values, false),
                            KEY("final_logit_softcapping", logit_cap, 0), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .rope_of = "sliding_attention",
               .windows = {MOE_WINDOW_ALL, 512, .listed = true},
               .in_text_config = true,
               .own = family_gemma4_hf},
        .gguf = {.arch = "gemma4",
                 .only = ONLY({"attention.shared_kv_layers", "0"},
                              {"embedding_length_per_layer_input", "0"}),
                 .settings = SETTINGS(NEED("attention.sliding_window", window),
                                      KEY("final_logit_softcapping", logit_cap, 0)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_gemma4_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&gemma4_names, &gemma4_dense_names},
                    [MOE_NAMING_GGUF].names = {&gemma4_gguf_names}},
    },
    {.name = NULL},
};
