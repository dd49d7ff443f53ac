/* DeepSeek's families, and those that have taken its router or its attention. */
#include "family/family_table.h"

static const struct moe_source_names minimax_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.gate.weight"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "block_sparse_moe.e_score_correction_bias")},
    .expert = {[MOE_E_GATE] = MOE_ALL(L "block_sparse_moe.experts.%u.w1.weight"),
               [MOE_E_UP] = MOE_ALL(L "block_sparse_moe.experts.%u.w3.weight"),
               [MOE_E_DOWN] = MOE_ALL(L "block_sparse_moe.experts.%u.w2.weight")},
};
/* As they are in memory, and newer writers may store them. */
static const struct moe_source_names minimax_newer_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.e_score_correction_bias")},
};

static const struct moe_source_names bailing_names = {
    .dense = {[MOE_T_EMBED] = MOE_ALL("model.word_embeddings.weight"),
              [MOE_T_Q] = MOE_PART(L "attention.query_key_value.weight", ATTENTION),
              [MOE_T_K] = MOE_PART(L "attention.query_key_value.weight", ATTENTION),
              [MOE_T_V] = MOE_PART(L "attention.query_key_value.weight", ATTENTION),
              [MOE_T_Q_NORM] = MOE_ALL(L "attention.query_layernorm.weight"),
              [MOE_T_K_NORM] = MOE_ALL(L "attention.key_layernorm.weight"),
              [MOE_T_O] = MOE_ALL(L "attention.dense.weight"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.gate.expert_bias")},
};

static const struct moe_source_names bailing_gguf_names = {
    .dense = {[MOE_T_Q] = MOE_PART(B "attn_qkv.weight", ATTENTION),
              [MOE_T_K] = MOE_PART(B "attn_qkv.weight", ATTENTION),
              [MOE_T_V] = MOE_PART(B "attn_qkv.weight", ATTENTION)},
};

static const struct moe_source_names hy_v3_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "mlp.router.gate.weight"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.expert_bias"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(L "mlp.shared_mlp.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "mlp.shared_mlp.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "mlp.shared_mlp.down_proj.weight")},
};

static const struct moe_source_names hy_v3_gguf_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_ALL(B "exp_probs_b")},
};

/* DeepSeek-V3's settings, in a config.json of its own or as the text part of a larger model. */
#define DEEPSEEK_V3_HF                                                                             \
    .only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"rope_interleave", "true"}),         \
    .settings = SETTINGS(CONTEXT(4096), DENSE_FF, ROUTED_EXPERTS(256, 8, 2048, true, 2.5),         \
                         LATENT(1536, 512, 128, 64, 128), GROUPS(8, 4)),                           \
    .rope_theta = 1e4, .expert_layers = MOE_LAYERS_AFTER, .n_shared = 1, .n_dense = 3,             \
    .own = family_deepseek_v3_hf

/* DeepSeek-V4's layers, as published, and as transformers saves them. */
#define V4_LAYER(path, key_norm)                                                                   \
    [MOE_T_ATTN_NORM] = MOE_ALL(path "attn_norm.weight"),                                          \
    [MOE_T_FFN_NORM] = MOE_ALL(path "ffn_norm.weight"),                                            \
    [MOE_T_ATTN_MIX] = MOE_ALL(path "hc_attn_fn"),                                                 \
    [MOE_T_ATTN_MIX_BIAS] = MOE_ALL(path "hc_attn_base"),                                          \
    [MOE_T_ATTN_MIX_SCALE] = MOE_ALL(path "hc_attn_scale"),                                        \
    [MOE_T_FFN_MIX] = MOE_ALL(path "hc_ffn_fn"),                                                   \
    [MOE_T_FFN_MIX_BIAS] = MOE_ALL(path "hc_ffn_base"),                                            \
    [MOE_T_FFN_MIX_SCALE] = MOE_ALL(path "hc_ffn_scale"),                                          \
    [MOE_T_Q_DOWN] = MOE_ALL(path "attn.wq_a.weight"),                                             \
    [MOE_T_Q_DOWN_NORM] = MOE_ALL(path "attn.q_norm.weight"),                                      \
    [MOE_T_Q] = MOE_ALL(path "attn.wq_b.weight"), [MOE_T_K] = MOE_ALL(path "attn.wkv.weight"),     \
    [MOE_T_K_NORM] = MOE_ALL(path key_norm), [MOE_T_SINKS] = MOE_ALL(path "attn.attn_sink"),       \
    [MOE_T_OUT_DOWN] = MOE_ALL(path "attn.wo_a.weight"),                                           \
    [MOE_T_O] = MOE_ALL(path "attn.wo_b.weight"),                                                  \
    [MOE_T_ENTRY] = MOE_ALL(path "attn.compressor.wkv.weight"),                                    \
    [MOE_T_ENTRY_GATE] = MOE_ALL(path "attn.compressor.wgate.weight"),                             \
    [MOE_T_ENTRY_BIAS] = MOE_PART(path "attn.compressor.ape", PLACES),                             \
    [MOE_T_ENTRY_NORM] = MOE_ALL(path "attn.compressor.norm.weight"),                              \
    [MOE_T_INDEX_ENTRY] = MOE_ALL(path "attn.indexer.compressor.wkv.weight"),                      \
    [MOE_T_INDEX_GATE] = MOE_ALL(path "attn.indexer.compressor.wgate.weight"),                     \
    [MOE_T_INDEX_BIAS] = MOE_PART(path "attn.indexer.compressor.ape", PLACES),                     \
    [MOE_T_INDEX_NORM] = MOE_ALL(path "attn.indexer.compressor.norm.weight"),                      \
    [MOE_T_INDEX_Q] = MOE_ALL(path "attn.indexer.wq_b.weight"),                                    \
    [MOE_T_INDEX_WEIGHTS] = MOE_ALL(path "attn.indexer.weights_proj.weight"),                      \
    [MOE_T_ROUTER] = MOE_ALL(path "ffn.gate.weight"),                                              \
    [MOE_T_CHOICE_BIAS] = MOE_ALL(path "ffn.gate.bias"),                                           \
    [MOE_T_ROUTES] = MOE_PART(path "ffn.gate.tid2eid", ROUTES),                                    \
    [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(path "ffn.shared_experts.w1.weight"),                       \
    [MOE_T_SHARED_UP] = MOE_ALL(path "ffn.shared_experts.w3.weight"),                              \
    [MOE_T_SHARED_DOWN] = MOE_ALL(path "ffn.shared_experts.w2.weight")
#define V4_EXPERTS(path)                                                                           \
    [MOE_E_GATE] = MOE_ALL(path "ffn.experts.%u.w1.weight"),                                       \
    [MOE_E_UP] = MOE_ALL(path "ffn.experts.%u.w3.weight"),                                         \
    [MOE_E_DOWN] = MOE_ALL(path "ffn.experts.%u.w2.weight")
static const struct moe_source_names v4_names = {
    .dense =
        {V4_LAYER("layers.%u.", "attn.kv_norm.weight"), [MOE_T_EMBED] = MOE_ALL("embed.weight"),
         [MOE_T_FINAL_NORM] = MOE_ALL("norm.weight"), [MOE_T_LAST_MIX] = MOE_ALL("hc_head_fn"),
         [MOE_T_LAST_MIX_BIAS] = MOE_ALL("hc_head_base"),
         [MOE_T_LAST_MIX_SCALE] = MOE_ALL("hc_head_scale"), [MOE_T_HEAD] = MOE_ALL("head.weight")},
    .expert = {V4_EXPERTS("layers.%u.")},
};
static const struct moe_source_names v4_saved_names = {
    .dense = {V4_LAYER(L, "attn.norm.weight")},
    .expert = {V4_EXPERTS(L)},
};
/* As they are in memory, where not as usual. */
static const struct moe_source_names v4_newer_names = {
    .dense = {[MOE_T_Q_DOWN_NORM] = MOE_ALL(L "self_attn.q_a_norm.weight"),
              [MOE_T_K] = MOE_ALL(L "self_attn.kv_proj.weight"),
              [MOE_T_K_NORM] = MOE_ALL(L "self_attn.kv_norm.weight"),
              [MOE_T_O] = MOE_ALL(L "self_attn.o_b_proj.weight"),
              [MOE_T_ROUTES] = MOE_PART(L "mlp.gate.tid2eid", ROUTES)},
};
static const struct moe_source_names v4_gguf_names = {
    .dense = {[MOE_T_K] = MOE_ALL(B "attn_kv.weight"),
              [MOE_T_K_NORM] = MOE_ALL(B "attn_kv_a_norm.weight"),
              [MOE_T_O] = MOE_ALL(B "attn_output_b.weight")},
};

const struct moe_family moe_families_deepseek[] = {
    /* DeepSeekMoE-16B, as the code published with it. Ordinary attention, a dense first layer, fine
     * experts and shared ones. */
    {
        .name = "deepseek",
        .hf = {.only = ONLY({"scoring_func", "softmax"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, KEY("n_routed_experts", n_experts, 0),
                                    TOP_K(0), KEY("moe_intermediate_size", expert_ff, 0), NORM_TOPK,
                                    ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER},
        .gguf = {.arch = "deepseek", .settings = SETTINGS(GGUF_NORM_TOPK(false))},
        .tensors[MOE_NAMING_GGUF].paired = true,
    },
    /* DeepSeek-V2, V2-Lite, Coder-V2: latent attention with YaRN, experts as in DeepSeekMoE, chosen
     * within the best groups of them. Where the code published with the model and the public class
     * compute different things, or one of them has a switch alone, the value that both compute is
     * the only one. The norms inside attention have an epsilon of 1e-6 whatever the key says. */
    {
        .name = "deepseek_v2",
        .hf = {.only = ONLY({"attention_bias", "false"}, {"mlp_bias", "false"},
                            {"scoring_func", "softmax"}, {"norm_topk_prob", "false"},
                            {"moe_layer_freq", "1"}, {"rms_norm_eps", "1e-06"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, KEY("n_routed_experts", n_experts, 64),
                                    TOP_K(0), KEY("moe_intermediate_size", expert_ff, 1407),
                                    LATENT(1536, 512, 128, 64, 128), GROUPS(0, 0),
                                    KEY("routed_scaling_factor", routed_scale, 0)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 2,
               .own = family_deepseek_v2_hf},
        .gguf = {.arch = "deepseek2",
                 .settings = SETTINGS(LATENT_GGUF),
                 .own = family_deepseek_v2_gguf},
        .tensors = {[MOE_NAMING_HF] = {.paired = true}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* DeepSeek-V3, R1, Kimi-K2, Moonlight: the same with sigmoids for scores, a bias for the choice
     * and groups ranked by their two best experts. Layers that predict further tokens are left out.
     */
    {
        .name = "deepseek_v3",
        .also = "kimi_k2",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {DEEPSEEK_V3_HF},
        .gguf = {.arch = "deepseek2",
                 .sigmoid = true,
                 .settings = SETTINGS(LATENT_GGUF),
                 .own = family_deepseek_v3_gguf},
        .tensors = {[MOE_NAMING_HF] = {.paired = true}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* DeepSeek-V3.2: the same, and rows see the positions that an indexer chooses, whose queries
     * and keys rotate halves. */
    {
        .name = "deepseek_v32",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {.only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"rope_interleave", "true"},
                            {"indexer_rope_interleave", "false"}, {"mlp_bias", "false"}),
               .settings =
                   SETTINGS(CONTEXT(163840), DENSE_FF, ROUTED_EXPERTS(256, 8, 2048, true, 2.5),
                            LATENT(1536, 512, 128, 64, 128), GROUPS(8, 4), INDEXER(64)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 3,
               .own = family_deepseek_v32_hf},
        .gguf = {.arch = "deepseek32",
                 .sigmoid = true,
                 .settings = SETTINGS(LATENT_GGUF, INDEXER_GGUF),
                 .own = family_deepseek_v3_gguf},
        .tensors = {[MOE_NAMING_HF] = {.paired = true}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* GLM-5: DeepSeek-V3.2 with other widths, an indexer that rotates pairs, and layers that share
     * what another one's chose. */
    {
        .name = "glm_moe_dsa",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {.only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"rope_interleave", "true"},
                            {"indexer_rope_interleave", "true"}, {"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(202752), SET(norm_eps, 1e-5), DENSE_FF,
                                    ROUTED_EXPERTS(256, 8, 2048, true, 2.5),
                                    LATENT(2048, 512, 192, 64, 256), GROUPS(1, 1), INDEXER(32)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 3,
               .own = family_glm_dsa_hf},
        .gguf = {.arch = "glm-dsa",
                 .sigmoid = true,
                 .settings = SETTINGS(LATENT_GGUF, INDEXER_GGUF),
                 .own = family_glm_dsa_gguf},
        .tensors = {[MOE_NAMING_HF] = {.paired = true, .index_paired = true},
                    [MOE_NAMING_GGUF] = {.paired = true, .index_paired = true}},
    },
    /* Kimi-K2.5 and later ones that see images: their text part, which is Kimi-K2. */
    {
        .name = "kimi_k25",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {DEEPSEEK_V3_HF, .in_text_config = true},
        .tensors[MOE_NAMING_HF].paired = true,
    },
    /* DeepSeek-V4: one key for all heads, windows in all layers and compressed positions beyond in
     * most, several residual streams, routers that take roots of softplus; in the first layers
     * experts are those of the token, from a table. */
    {
        .name = "deepseek_v4",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_SOFTPLUS), SET(choice_bias, true),
                              SET(norm_topk, true), SET(static_weighed, true),
                              SET(attn_sinks, true), SET(expert_act, MOE_ACT_SWIGLU_LIMITED),
                              SET(dense_act, MOE_ACT_SWIGLU_LIMITED)),
        .hf = {.only = ONLY({"scoring_func", "sqrtsoftplus"}, {"topk_method", "noaux_tc"},
                            {"norm_topk_prob", "true"}, {"attention_bias", "false"},
                            {"mlp_bias", "false"}, {"n_shared_experts", "1"},
                            {"expert_dtype", "bf16|fp8"}),
               .settings = SETTINGS(
                   CONTEXT(1048576), SET(n_kv_heads, 1), SET(head_dim, 512),
                   ROUTED_EXPERTS(256, 6, 2048, true, 1.5), KEY("swiglu_limit", act_limit, 10),
                   KEY("q_lora_rank", q_rank, 1024), KEY("qk_rope_head_dim", rope_dim, 0),
                   KEY("o_groups", out_groups, 8), KEY("o_lora_rank", out_rank, 1024),
                   KEY("index_n_heads", index_heads, 64), KEY("index_head_dim", index_dim, 128),
                   KEY("index_topk", index_top, 512), KEY("hc_mult", n_streams, 4),
                   KEY("hc_sinkhorn_iters", stream_rounds, 20), KEY("hc_eps", stream_eps, 1e-6)),
               .rope_theta = 1e4,
               .rope_of = "compress",
               .partial_rotary = 0.125,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_ALL, 128},
               .own = family_deepseek_v4_hf},
        .gguf = {.arch = "deepseek4",
                 .only = ONLY({"expert_weights_norm", "true"}, {"expert_shared_count", "1"}),
                 .settings = SETTINGS(INDEXER_GGUF, NEED("attention.q_lora_rank", q_rank),
                                      NEED("attention.output_group_count", out_groups),
                                      NEED("attention.output_lora_rank", out_rank),
                                      NEED("hyper_connection.count", n_streams),
                                      NEED("hyper_connection.sinkhorn_iterations", stream_rounds),
                                      NEED("hyper_connection.epsilon", stream_eps)),
                 .windowed = true,
                 .own = family_deepseek_v4_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&v4_names, &v4_saved_names, &v4_newer_names},
                                       .ignored = {"mtp.*"}},
                    /* The bias is that of images. */
                    [MOE_NAMING_GGUF] = {.names = {&v4_gguf_names},
                                         .ignored = {B "exp_probs_b_vl.bias"}}},
    },
    /* GLM-4.7-Flash: DeepSeek-V3 with other widths, one group. GGUF files call it deepseek2, and
     * may say nothing of sigmoids. */
    {
        .name = "glm4_moe_lite",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {.only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"rope_interleave", "true"},
                            {"partial_rotary_factor", "1"}),
               .settings = SETTINGS(CONTEXT(202752), SET(norm_eps, 1e-5), DENSE_FF,
                                    ROUTED_EXPERTS(64, 4, 1536, true, 1.8),
                                    LATENT(768, 512, 192, 64, 256), GROUPS(1, 1)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .own = family_deepseek_v3_hf},
        .tensors[MOE_NAMING_HF].paired = true,
    },
    /* GLM-4.5, 4.6, Air: ordinary attention of which half of a head is rotated, and norms of
     * queries and keys in the large ones; DeepSeek-V3's router. */
    {
        .name = "glm4_moe",
        .constants = SETTINGS(SIGMOIDS),
        .hf = {.only = ONLY(SIGMOIDS_ONLY),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    DENSE_FF, ROUTED_EXPERTS(128, 8, 1408, true, 1), GROUPS(1, 1),
                                    KEY("attention_bias", qkv_bias, false)),
               .rope_theta = 1e4,
               .partial_rotary = 0.5,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .own = family_sigmoid_hf},
        .gguf = {.arch = "glm4moe",
                 .sigmoid = true,
                 .settings = SETTINGS(GGUF_GROUPS, GGUF_NORM_TOPK(true)),
                 .qk_norm = MOE_QK_NORM_HEAD,
                 .own = family_sigmoid_gguf},
        .tensors[MOE_NAMING_GGUF].names = {&moe_placed_norm_names},
    },
    /* Solar Open: Llama's attention, DeepSeek-V3's router, experts in every layer. GGUF files call
     * it glm4moe, which it is without norms of queries and keys. */
    {
        .name = "solar_open",
        .constants = SETTINGS(SIGMOIDS),
        .hf = {.only =
                   ONLY(SIGMOIDS_ONLY, {"first_k_dense_replace", "0"}, {"use_qk_norm", "false"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    SET(head_dim, 128), ROUTED_EXPERTS(128, 8, 1280, true, 1),
                                    GROUPS(1, 1), KEY("attention_bias", qkv_bias, false)),
               .rope_theta = 1e6,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .own = family_sigmoid_hf},
    },
    /* Ling and Ring 2.0 (BailingMoeV2): as GLM-4.5 with norms of queries and keys. Ling 1 has the
     * same model type and another router, hence a function. */
    {
        .name = "bailing_moe",
        .also = "bailing_moe_v2",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.only = ONLY({"score_function", "sigmoid"}, {"scoring_func", "sigmoid"},
                            {"topk_method", "noaux_tc"}, {"norm_topk_prob", "true"},
                            {"use_qk_norm", "true"}, {"moe_router_enable_expert_bias", "true"},
                            {"use_bias", "false"}, {"use_qkv_bias", "false"},
                            {"norm_head", "false"}, {"use_sliding_window", "false"}),
               .settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 4), DENSE_FF, EXPERTS(256),
                                    TOP_K(8), KEY("moe_intermediate_size", expert_ff, 512),
                                    KEY("routed_scaling_factor", routed_scale, 1), GROUPS(8, 4)),
               .rope_theta = 6e5,
               .partial_rotary = 0.5,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .own = family_bailing_moe_hf},
        .gguf = {.arch = "bailingmoe2",
                 .sigmoid = true,
                 .settings = SETTINGS(GGUF_GROUPS, GGUF_NORM_TOPK(false)),
                 .own = family_sigmoid_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&bailing_names},
                    [MOE_NAMING_GGUF].names = {&bailing_gguf_names}},
    },
    /* Hy3: Qwen3's attention, DeepSeek-V3's router without groups. Shared experts are counted by a
     * key of its own, hence a function. */
    {
        .name = "hy_v3",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.only = ONLY({"route_norm", "true"}, {"qk_norm", "true"}, {"mlp_bias", "false"},
                            {"moe_router_use_sigmoid", "true"},
                            {"moe_router_enable_expert_bias", "true"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    SET(head_dim, 128), DENSE_FF, EXPERTS(192), TOP_K(8),
                                    KEY("moe_intermediate_size", expert_ff, 1536),
                                    KEY("router_scaling_factor", routed_scale, 2.826),
                                    ATTENTION_BIAS(false)),
               .rope_theta = 11158840,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .own = family_hy_v3_hf},
        .gguf = {.arch = "hy_v3", .sigmoid = true, .settings = SETTINGS(GGUF_NORM_TOPK(false))},
        .tensors =
            {[MOE_NAMING_HF].names = {&hy_v3_names}, [MOE_NAMING_GGUF].names = {&hy_v3_gguf_names}},
    },
    /* dots.llm1: Qwen3's attention, DeepSeek-V3's router. */
    {
        .name = "dots1",
        .constants = SETTINGS(SIGMOIDS, SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.only = ONLY({"scoring_func", "sigmoid|noaux_tc"}, {"topk_method", "noaux_tc"},
                            {"moe_layer_freq", "1"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, ROUTED_EXPERTS(0, 0, 1408, false, 1),
                                    GROUPS(1, 1), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .windows = {MOE_WINDOW_FROM, 4096, .listed = true, .from = 62},
               .own = family_sigmoid_hf},
        .gguf = {.arch = "dots1",
                 .sigmoid = true,
                 .settings = SETTINGS(GGUF_GROUPS, GGUF_NORM_TOPK(false)),
                 .own = family_sigmoid_gguf},
    },
    /* MiniMax-M2: a part of each head is rotated, norms over all queries and over all keys of a
     * position; DeepSeek-V3's router without groups. */
    {
        .name = "minimax_m2",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(qk_norm, MOE_QK_NORM_FULL)),
        .hf = {.only = ONLY({"scoring_func", "sigmoid"}, {"use_qk_norm", "true"},
                            {"qk_norm_type", "per_layer"}, {"use_routing_bias", "true"},
                            {"shared_intermediate_size", "0"}),
               .settings =
                   SETTINGS(CONTEXT(196608), SET(n_kv_heads, 8), SET(head_dim, 128), EXPERT_FF,
                            LOCAL_EXPERTS(256), TOP_K(8), KEY("rotary_dim", rope_dim, 0)),
               .rope_theta = 5e6,
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_minimax_m2_hf},
        .gguf = {.arch = "minimax-m2", .sigmoid = true, .settings = SETTINGS(GGUF_NORM_TOPK(true))},
        .tensors[MOE_NAMING_HF].names = {&minimax_names, &minimax_newer_names},
    },
    {.name = NULL},
};
