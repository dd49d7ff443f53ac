/* Families of which most layers have a recurrent state in the place of keys and values. */
#include "family/family_table.h"

#define B "blk.%u."

/* Norms of the stream, of queries and keys are stored as what they differ from 1. */
static const struct moe_source_names qwen3_next_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              [MOE_T_ATTN_NORM] = MOE_PLUS_ONE(L "input_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_PLUS_ONE(L "post_attention_layernorm.weight"),
              [MOE_T_Q] = MOE_PART(L "self_attn.q_proj.weight", HEAD_QUERY),
              [MOE_T_Q_NORM] = MOE_PLUS_ONE(L "self_attn.q_norm.weight"),
              [MOE_T_K_NORM] = MOE_PLUS_ONE(L "self_attn.k_norm.weight"),
              [MOE_T_AHEAD_TOKEN_NORM] = MOE_PLUS_ONE("mtp.pre_fc_norm_embedding.weight"),
              [MOE_T_AHEAD_STATE_NORM] = MOE_PLUS_ONE("mtp.pre_fc_norm_hidden.weight"),
              [MOE_T_AHEAD_JOIN] = MOE_ALL("mtp.fc.weight"),
              [MOE_T_AHEAD_NORM] = MOE_PLUS_ONE("mtp.norm.weight")},
};

/* llama.cpp adds 1 to norms, and puts tensors of several parts in order, but for queries with the
 * gates of outputs. */
static const struct moe_source_names qwen3_next_gguf_names = {
    .dense = {[MOE_T_Q] = MOE_PART(B "attn_q.weight", HEAD_QUERY),
              [MOE_T_ATTN_GATE] = MOE_PART(B "attn_q.weight", HEAD_GATE)},
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

static const struct moe_source_names kimi_linear_names = {
    .dense = {[MOE_T_STATE_Q] = MOE_ALL(L "self_attn.q_proj.weight"),
              [MOE_T_STATE_K] = MOE_ALL(L "self_attn.k_proj.weight"),
              [MOE_T_STATE_V] = MOE_ALL(L "self_attn.v_proj.weight"),
              [MOE_T_STATE_CONV_Q] = MOE_PART(L "self_attn.q_conv1d.weight", CONV),
              [MOE_T_STATE_CONV_K] = MOE_PART(L "self_attn.k_conv1d.weight", CONV),
              [MOE_T_STATE_CONV] = MOE_PART(L "self_attn.v_conv1d.weight", CONV),
              [MOE_T_STATE_BETA] = MOE_ALL(L "self_attn.b_proj.weight"),
              [MOE_T_STATE_DECAY_DOWN] = MOE_ALL(L "self_attn.f_a_proj.weight"),
              [MOE_T_STATE_DECAY] = MOE_ALL(L "self_attn.f_b_proj.weight"),
              [MOE_T_STATE_STEP] = MOE_ALL(L "self_attn.dt_bias"),
              [MOE_T_STATE_RATE] = MOE_ALL(L "self_attn.A_log"),
              [MOE_T_STATE_Z_DOWN] = MOE_ALL(L "self_attn.g_a_proj.weight"),
              [MOE_T_STATE_Z] = MOE_ALL(L "self_attn.g_b_proj.weight"),
              [MOE_T_STATE_NORM] = MOE_ALL(L "self_attn.o_norm.weight"),
              [MOE_T_STATE_O] = MOE_ALL(L "self_attn.o_proj.weight"),
              [MOE_T_GATE] = MOE_ALL(L "mlp.gate_proj.weight"),
              [MOE_T_UP] = MOE_ALL(L "mlp.up_proj.weight"),
              [MOE_T_DOWN] = MOE_ALL(L "mlp.down_proj.weight"),
              [MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.gate.weight"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "block_sparse_moe.gate.e_score_correction_bias"),
              [MOE_T_SHARED_GATE_PROJ] =
                  MOE_ALL(L "block_sparse_moe.shared_experts.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "block_sparse_moe.shared_experts.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "block_sparse_moe.shared_experts.down_proj.weight")},
    .expert = {[MOE_E_GATE] = MOE_ALL(L "block_sparse_moe.experts.%u.w1.weight"),
               [MOE_E_UP] = MOE_ALL(L "block_sparse_moe.experts.%u.w3.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "block_sparse_moe.experts.%u.w2.weight")},
};

/* As transformers saves dense layers: all feed-forwards are called what those with experts are. */
static const struct moe_source_names kimi_linear_saved_names = {
    .dense = {[MOE_T_GATE] = MOE_ALL(L "block_sparse_moe.gate_proj.weight"),
              [MOE_T_UP] = MOE_ALL(L "block_sparse_moe.up_proj.weight"),
              [MOE_T_DOWN] = MOE_ALL(L "block_sparse_moe.down_proj.weight")},
};

static const struct moe_source_names jamba_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_ALL("model.final_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(L "pre_ff_layernorm.weight"),
              [MOE_T_STATE_V] = MOE_PART(L "mamba.in_proj.weight", FIRST_HALF),
              [MOE_T_STATE_Z] = MOE_PART(L "mamba.in_proj.weight", SECOND_HALF),
              [MOE_T_STATE_DECAY_DOWN] = MOE_PART(L "mamba.x_proj.weight", STATE_ROWS),
              [MOE_T_STATE_K] = MOE_PART(L "mamba.x_proj.weight", STATE_ROWS),
              [MOE_T_STATE_Q] = MOE_PART(L "mamba.x_proj.weight", STATE_ROWS),
              [MOE_T_STATE_DECAY_NORM] = MOE_ALL(L "mamba.dt_layernorm.weight"),
              [MOE_T_STATE_K_NORM] = MOE_ALL(L "mamba.b_layernorm.weight"),
              [MOE_T_STATE_Q_NORM] = MOE_ALL(L "mamba.c_layernorm.weight"),
              [MOE_T_STATE_DECAY] = MOE_ALL(L "mamba.dt_proj.weight"),
              [MOE_T_STATE_STEP] = MOE_ALL(L "mamba.dt_proj.bias"),
              [MOE_T_STATE_RATE] = MOE_PART(L "mamba.A_log", TURNED),
              [MOE_T_STATE_SKIP] = MOE_ALL(L "mamba.D"),
              [MOE_T_STATE_CONV] = MOE_PART(L "mamba.conv1d.weight", CONV),
              [MOE_T_STATE_CONV_BIAS] = MOE_ALL(L "mamba.conv1d.bias"),
              [MOE_T_STATE_O] = MOE_ALL(L "mamba.out_proj.weight"),
              [MOE_T_GATE] = MOE_ALL(L "feed_forward.gate_proj.weight"),
              [MOE_T_UP] = MOE_ALL(L "feed_forward.up_proj.weight"),
              [MOE_T_DOWN] = MOE_ALL(L "feed_forward.down_proj.weight"),
              [MOE_T_ROUTER] = MOE_ALL(L "feed_forward.router.weight")},
    .expert = {[MOE_E_GATE] = MOE_ALL(L "feed_forward.experts.%u.gate_proj.weight"),
               [MOE_E_UP] = MOE_ALL(L "feed_forward.experts.%u.up_proj.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "feed_forward.experts.%u.down_proj.weight")},
};

#define N "backbone.layers.%u."
/* A layer has one norm, and what it consists of is its mixer. */
static const struct moe_source_names nemotron_h_names = {
    .dense =
        {MAMBA(N "mixer."), [MOE_T_EMBED] = MOE_ALL("backbone.embeddings.weight"),
         [MOE_T_FINAL_NORM] = MOE_ALL("backbone.norm_f.weight"),
         [MOE_T_ATTN_NORM] = MOE_ALL(N "norm.weight"), [MOE_T_FFN_NORM] = MOE_ALL(N "norm.weight"),
         [MOE_T_Q] = MOE_ALL(N "mixer.q_proj.weight"), [MOE_T_K] = MOE_ALL(N "mixer.k_proj.weight"),
         [MOE_T_V] = MOE_ALL(N "mixer.v_proj.weight"), [MOE_T_O] = MOE_ALL(N "mixer.o_proj.weight"),
         [MOE_T_UP] = MOE_ALL(N "mixer.up_proj.weight"),
         [MOE_T_DOWN] = MOE_ALL(N "mixer.down_proj.weight"),
         [MOE_T_ROUTER] = MOE_ALL(N "mixer.gate.weight"),
         [MOE_T_CHOICE_BIAS] = MOE_ALL(N "mixer.gate.e_score_correction_bias"),
         [MOE_T_SHARED_UP] = MOE_ALL(N "mixer.shared_experts.up_proj.weight"),
         [MOE_T_SHARED_DOWN] = MOE_ALL(N "mixer.shared_experts.down_proj.weight")},
    .expert = {[MOE_E_UP] = MOE_ALL(N "mixer.experts.%u.up_proj.weight"),
               [MOE_E_DOWN] = MOE_ALL(N "mixer.experts.%u.down_proj.weight")},
};
#undef N

/* GGUF's. What is missing in these tables is called as in others of its files (tensor_roles.c). */
static const struct moe_source_names lfm2_moe_gguf_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_ALL("token_embd_norm.weight"),
              [MOE_T_STATE_SCALE] = MOE_PART(B "shortconv.in_proj.weight", THIRD),
              [MOE_T_STATE_Z] = MOE_PART(B "shortconv.in_proj.weight", THIRD),
              [MOE_T_STATE_V] = MOE_PART(B "shortconv.in_proj.weight", THIRD),
              [MOE_T_STATE_CONV] = MOE_PART(B "shortconv.conv.weight", CONV),
              [MOE_T_STATE_O] = MOE_ALL(B "shortconv.out_proj.weight")},
};

/* Of KDA; layers of attention have some of the same names. */
static const struct moe_source_names kimi_linear_gguf_names = {
    .dense = {[MOE_T_STATE_Q] = MOE_ALL(B "attn_q.weight"),
              [MOE_T_STATE_K] = MOE_ALL(B "attn_k.weight"),
              [MOE_T_STATE_V] = MOE_ALL(B "attn_v.weight"),
              [MOE_T_STATE_CONV_Q] = MOE_PART(B "ssm_conv1d_q.weight", CONV),
              [MOE_T_STATE_CONV_K] = MOE_PART(B "ssm_conv1d_k.weight", CONV),
              [MOE_T_STATE_CONV] = MOE_PART(B "ssm_conv1d_v.weight", CONV),
              [MOE_T_STATE_DECAY_DOWN] = MOE_ALL(B "ssm_f_a.weight"),
              [MOE_T_STATE_DECAY] = MOE_ALL(B "ssm_f_b.weight"),
              [MOE_T_STATE_Z_DOWN] = MOE_ALL(B "ssm_g_a.weight"),
              [MOE_T_STATE_Z] = MOE_ALL(B "ssm_g_b.weight"),
              [MOE_T_STATE_O] = MOE_ALL(B "attn_output.weight")},
};

/* One head's rates, by value. */
static const struct moe_source_names jamba_gguf_names = {
    .dense = {[MOE_T_STATE_V] = MOE_PART(B "ssm_in.weight", FIRST_HALF),
              [MOE_T_STATE_Z] = MOE_PART(B "ssm_in.weight", SECOND_HALF),
              [MOE_T_STATE_DECAY_DOWN] = MOE_PART(B "ssm_x.weight", STATE_ROWS),
              [MOE_T_STATE_K] = MOE_PART(B "ssm_x.weight", STATE_ROWS),
              [MOE_T_STATE_Q] = MOE_PART(B "ssm_x.weight", STATE_ROWS),
              [MOE_T_STATE_DECAY_NORM] = MOE_ALL(B "ssm_dt_norm.weight"),
              [MOE_T_STATE_K_NORM] = MOE_ALL(B "ssm_b_norm.weight"),
              [MOE_T_STATE_Q_NORM] = MOE_ALL(B "ssm_c_norm.weight"),
              [MOE_T_STATE_DECAY] = MOE_ALL(B "ssm_dt.weight"),
              [MOE_T_STATE_RATE] = MOE_NEGATIVE_EXP(B "ssm_a", TURNED)},
};

static const struct moe_source_names nemotron_h_gguf_names = {
    .dense = {[MOE_T_FFN_NORM] = MOE_ALL(B "attn_norm.weight")},
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
        .gguf = {.arch = "qwen3next",
                 .settings = SETTINGS(STATES_GGUF, GGUF_NORM_TOPK(true)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_qwen3_next_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&qwen3_next_names, &moe_qwen2_moe_names},
                    [MOE_NAMING_GGUF].names = {&qwen3_next_gguf_names, &moe_placed_norm_names}},
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
        .gguf = {.arch = "qwen35moe",
                 .settings = SETTINGS(STATES_GGUF),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_qwen3_5_moe_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&qwen3_next_names, &moe_qwen2_moe_names},
                    [MOE_NAMING_GGUF].names = {&qwen3_next_gguf_names, &moe_placed_norm_names}},
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
        .gguf = {.arch = "lfm2moe",
                 .sigmoid = true,
                 .only = ONLY({"attention.sliding_window", "0"}),
                 .settings =
                     SETTINGS(KEY("shortconv.l_cache", conv_width, 0), GGUF_NORM_TOPK(true)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_lfm2_moe_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&lfm2_moe_names},
                    [MOE_NAMING_GGUF].names = {&lfm2_moe_gguf_names}},
    },
    /* Nemotron-H, Nemotron-3: 30B-A3B; and dense ones. Every layer is a half: a state (Mamba-2),
     * attention without positions, experts of two matrices, or a feed-forward. Which is which a
     * pattern of letters or a list says, hence a function. */
    {
        .name = "nemotron_h",
        .constants =
            SETTINGS(SIGMOIDS, SET(positions, MOE_POSITIONS_NONE), SET(state_kind, MOE_STATE_SCAN),
                     SET(dense_act, MOE_ACT_RELU2), SET(expert_act, MOE_ACT_RELU2)),
        .hf = {.only =
                   ONLY({"mlp_hidden_act", "relu2"}, {"mamba_hidden_act", "silu|swish"},
                        {"use_bias", "false"}, {"mlp_bias", "false"}, {"attention_bias", "false"},
                        {"mamba_proj_bias", "false"}, {"sliding_window", "none"},
                        {"moe_latent_size", "none"}, {"n_shared_experts", "1"}),
               .settings = SETTINGS(
                   NEED("hidden_size", hidden), NEED("vocab_size", vocab),
                   NEED("num_attention_heads", n_heads), KEY("num_key_value_heads", n_kv_heads, 8),
                   KEY("head_dim", head_dim, 128),
                   KEY("max_position_embeddings", context_max, 4096),
                   KEY("layer_norm_epsilon", norm_eps, 1e-5),
                   KEY("tie_word_embeddings", tied_head, 0),
                   KEY("intermediate_size", dense_ff, 21504), GROUPS(1, 1),
                   ROUTED_EXPERTS(8, 2, 7688, true, 1),
                   KEY("moe_shared_expert_intermediate_size", shared_ff, 7688),
                   KEY("mamba_num_heads", state_heads, 128),
                   KEY("mamba_head_dim", state_value_dim, 64), KEY("n_groups", state_key_heads, 8),
                   KEY("ssm_state_size", state_key_dim, 128), KEY("conv_kernel", conv_width, 4),
                   KEY("use_conv_bias", conv_bias, true)),
               .own_keys = true,
               .own = family_nemotron_h_hf},
        .gguf = {.arch = "nemotron_h_moe",
                 .sigmoid = true,
                 .only = ONLY({"moe_latent_size", "0"}),
                 .settings = SETTINGS(STATES_GGUF, GGUF_GROUPS, GGUF_NORM_TOPK(false)),
                 .by_layer = {"attention.head_count", "attention.head_count_kv",
                              "feed_forward_length"},
                 .own = family_nemotron_h_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&nemotron_h_names},
                    [MOE_NAMING_GGUF].names = {&nemotron_h_gguf_names, &moe_mamba_gguf_names}},
    },
    /* Kimi-Linear: 48B-A3B. KDA in three of four layers, latent attention without positions in the
     * others; DeepSeek-V3's router. Several keys have two names, layers are counted from 1, and the
     * numbers of KDA stand in an object of their own, hence a function. */
    {
        .name = "kimi_linear",
        .constants = SETTINGS(LATENT_SIGMOIDS, SET(positions, MOE_POSITIONS_NONE),
                              SET(state_kind, MOE_STATE_KDA)),
        .hf = {.only = ONLY(SIGMOIDS_ONLY, {"moe_router_activation_func", "sigmoid"},
                            {"mla_use_nope", "true"}, {"attention_bias", "false"}),
               .settings = SETTINGS(
                   CONTEXT(1048576), SET(norm_eps, 1e-5), SET(state_heads, 32), SET(conv_width, 4),
                   KEY("model_max_length", context_max, 0),
                   KEY("intermediate_size", dense_ff, 9216), LATENT(0, 512, 128, 64, 128),
                   LOCAL_EXPERTS(256), EXPERTS(0), TOP_K(8), KEY("num_experts_per_token", top_k, 0),
                   KEY("moe_intermediate_size", expert_ff, 1024), GROUPS(1, 1),
                   KEY("num_expert_group", n_groups, 0), KEY("norm_topk_prob", norm_topk, true),
                   KEY("moe_renormalize", norm_topk, 0),
                   KEY("routed_scaling_factor", routed_scale, 2.446)),
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .own = family_kimi_linear_hf},
        .gguf = {.arch = "kimi-linear",
                 .sigmoid = true,
                 .only = ONLY({"moe_latent_size", "0"}, {"attn_res_block_size", "0"},
                              {"hidden_act", "silu"}),
                 .settings = SETTINGS(LATENT_GGUF, GGUF_NORM_TOPK(true),
                                      KEY("ssm.conv_kernel", conv_width, 0),
                                      KEY("kda.head_dim", state_key_dim, 0)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_kimi_linear_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&kimi_linear_names, &kimi_linear_saved_names},
                    [MOE_NAMING_GGUF].names = {&kimi_linear_gguf_names}},
    },
    /* Jamba: 1.5 and 1.6, Mini and Large. Mamba with norms inside, attention without positions in
     * every eighth layer, experts in every other. Layers are counted by periods, and widths follow
     * from others, hence a function. */
    {
        .name = "jamba",
        .constants =
            SETTINGS(SET(positions, MOE_POSITIONS_NONE), SET(state_kind, MOE_STATE_SELECT)),
        .hf = {.only = ONLY({"mamba_proj_bias", "false"}, {"mamba_inner_layernorms", "true"},
                            {"sliding_window", "none"}),
               .settings = SETTINGS(
                   CONTEXT(262144),
                   SET(n_kv_heads, 8), KEY("intermediate_size", expert_ff, 14336), EXPERTS(16),
                   LOCAL_EXPERTS(0), TOP_K(2), KEY("mamba_d_state", state_key_dim, 16),
                   KEY("mamba_d_conv", conv_width, 4), KEY("mamba_conv_bias", conv_bias, true)),
               .own = family_jamba_hf},
        .gguf = {.arch = "jamba",
                 .settings = SETTINGS(KEY("ssm.conv_kernel", conv_width, 0),
                                      KEY("ssm.state_size", state_key_dim, 0),
                                      KEY("ssm.time_step_rank", state_step_rank, 0)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_jamba_gguf},
        .tensors =
            {[MOE_NAMING_HF].names = {&jamba_names}, [MOE_NAMING_GGUF].names = {&jamba_gguf_names}},
    },
    {.name = NULL},
};
