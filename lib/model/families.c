/*
 * Tables of model families. Keys and defaults are those of the public configuration classes
 * (MixtralConfig, ...) or of the code published with a model; for GGUF, those of the gguf package
 * (constants.py) and of llama.cpp.
 */
#include <string.h>

#include "model/family_internal.h"

/* ---- The words that the tables are written in ---- */

#define SETTINGS(...) ((const struct moe_setting[]){__VA_ARGS__, {.member = 0}})
#define ONLY(...) ((const struct moe_only[]){__VA_ARGS__, {NULL, NULL}})
/* What a member is without being asked for, or where one of the shared keys is absent. */
#define SET(name, number)                                                                          \
    {                                                                                              \
        .member = MOE_MEMBER(name), .value = (number)                                              \
    }
#define NEED(text, name)                                                                           \
    {                                                                                              \
        .key = (text), .member = MOE_MEMBER(name), .required = true                                \
    }
#define KEY(text, name, number)                                                                    \
    {                                                                                              \
        .key = (text), .member = MOE_MEMBER(name), .value = (number)                               \
    }
#define USE(text, name, number, how)                                                               \
    {                                                                                              \
        .key = (text), .member = MOE_MEMBER(name), .value = (number), .use = (how)                 \
    }
#define PART_EITHER(path, what)                                                                    \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what, .transposed = true, .either = true                \
    }
#define PART_COLUMNS(path, what)                                                                   \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what, .transposed = true                                \
    }

/* Keys that several families have. */
#define LOCAL_EXPERTS(number) KEY("num_local_experts", n_experts, number)
#define EXPERTS(number) KEY("num_experts", n_experts, number)
#define TOP_K(number) KEY("num_experts_per_tok", top_k, number)
#define NORM_TOPK KEY("norm_topk_prob", norm_topk, false)
#define ATTENTION_BIAS(otherwise)                                                                  \
    KEY("attention_bias", qkv_bias, otherwise), KEY("attention_bias", o_bias, otherwise)
#define DENSE_FF NEED("intermediate_size", dense_ff)
#define EXPERT_FF NEED("intermediate_size", expert_ff)
#define CONTEXT(number) SET(context_max, number)
#define GGUF_NORM_TOPK(otherwise) KEY("expert_weights_norm", norm_topk, otherwise)

#define GROUPS(of, used) KEY("n_group", n_groups, of), KEY("topk_group", top_groups, used)
#define GGUF_GROUPS                                                                                \
    KEY("expert_group_count", n_groups, 0), KEY("expert_group_used_count", top_groups, 0)
/* MLA: the values of a head that do not rotate, those that do, and a head's values; the rotated
 * ones are added to head_dim. */
#define LATENT(q, kv, plain, rotated, values)                                                      \
    KEY("q_lora_rank", q_rank, q), KEY("kv_lora_rank", kv_rank, kv),                               \
        KEY("qk_nope_head_dim", head_dim, plain), KEY("qk_rope_head_dim", rope_dim, rotated),      \
        KEY("v_head_dim", value_dim, values)
#define LATENT_GGUF                                                                                \
    KEY("attention.q_lora_rank", q_rank, 0), KEY("attention.kv_lora_rank", kv_rank, 0),            \
        KEY("attention.key_length_mla", head_dim, 0),                                              \
        KEY("attention.value_length_mla", value_dim, 0), GGUF_GROUPS, GGUF_NORM_TOPK(false)
/* An indexer: heads, their width, positions that it chooses. */
#define INDEXER(heads)                                                                             \
    USE("index_topk", index_top, 2048, MOE_NOT_ZERO), KEY("index_n_heads", index_heads, heads),    \
        KEY("index_head_dim", index_dim, 128)
#define INDEXER_GGUF                                                                               \
    NEED("attention.indexer.head_count", index_heads),                                             \
        NEED("attention.indexer.key_length", index_dim),                                           \
    {                                                                                              \
        .key = "attention.indexer.top_k", .member = MOE_MEMBER(index_top), .required = true,       \
        .use = MOE_NOT_ZERO                                                                        \
    }
/* Experts beside shared ones, with the keys of DeepSeek's descendants. */
#define ROUTED_EXPERTS(number, chosen, width, normalized, scale)                                   \
    KEY("n_routed_experts", n_experts, number), TOP_K(chosen),                                     \
        KEY("moe_intermediate_size", expert_ff, width),                                            \
        KEY("norm_topk_prob", norm_topk, normalized),                                              \
        KEY("routed_scaling_factor", routed_scale, scale)
/* DeepSeek-V3's other router keys in config.json, each with one implemented value. */
#define SIGMOIDS_ONLY                                                                              \
    {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},                                      \
    {                                                                                              \
        "moe_layer_freq", "1"                                                                      \
    }
/* DeepSeek-V3's router, without and with MLA, whose inner norms have an epsilon of 1e-6 whatever
 * the key says. */
#define SIGMOIDS SET(router_kind, MOE_ROUTER_SIGMOID), SET(choice_bias, true)
#define LATENT_SIGMOIDS SIGMOIDS, SET(latent_eps, 1e-6)

/* Recurrent states with several heads, in GGUF. */
#define STATES_GGUF                                                                                \
    KEY("ssm.conv_kernel", conv_width, 0), KEY("ssm.state_size", state_key_dim, 0),                \
        KEY("ssm.group_count", state_key_heads, 0), KEY("ssm.time_step_rank", state_heads, 0)

#define L "model.layers.%u."
#define B "blk.%u."
/* A tensor of a layer, or a part of one: its role, and its name without what all of them have in
 * common, in Hugging Face's files and (G) in GGUF. */
#define W(role, name) [MOE_T_##role] = MOE_ALL(L name ".weight")
/* The same of a tensor whose name does not end in ".weight". */
#define V(role, name) [MOE_T_##role] = MOE_ALL(L name)
#define WP(role, name, what) [MOE_T_##role] = MOE_PART(L name ".weight", what)
#define W_LESS_ONE(role, name) [MOE_T_##role] = MOE_PLUS_ONE(L name ".weight")
#define GW(role, name) [MOE_T_##role] = MOE_ALL(B name ".weight")
#define GWP(role, name, what) [MOE_T_##role] = MOE_PART(B name ".weight", what)
/* An expert's part: a tensor of its own, or in one that holds all experts (transposed: EC). */
#define EW(part, name) [MOE_E_##part] = MOE_ALL(L name ".weight")
#define EP(part, name, what) [MOE_E_##part] = MOE_PART(L name, what)
#define EC(part, name, what) [MOE_E_##part] = PART_COLUMNS(L name, what)

/* Tensors of a Mamba-2 layer. */
#define MAMBA(path)                                                                                \
    [MOE_T_STATE_Z] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_V] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_K] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_Q] = MOE_PART(path "in_proj.weight", STATE_ROWS),                                 \
    [MOE_T_STATE_DECAY] = MOE_PART(path "in_proj.weight", STATE_ROWS),                             \
    [MOE_T_STATE_STEP] = MOE_ALL(path "dt_bias"), [MOE_T_STATE_RATE] = MOE_ALL(path "A_log"),      \
    [MOE_T_STATE_SKIP] = MOE_ALL(path "D"),                                                        \
    [MOE_T_STATE_CONV] = MOE_PART(path "conv1d.weight", CONV),                                     \
    [MOE_T_STATE_CONV_BIAS] = MOE_ALL(path "conv1d.bias"),                                         \
    [MOE_T_STATE_NORM] = MOE_ALL(path "norm.weight"),                                              \
    [MOE_T_STATE_O] = MOE_ALL(path "out_proj.weight")

/* ---- Names of tensors that several families share ---- */

/* GGUF's name, by its place, of the norm before feed-forwards. */
static const struct moe_source_names placed_norm_names = {
    .dense = {[MOE_T_FFN_NORM] = MOE_ALL("blk.%u.post_attention_norm.weight")},
};

static const struct moe_source_names mamba_gguf_names = {
    .dense = {GWP(STATE_Z, "ssm_in", STATE_ROWS), GWP(STATE_V, "ssm_in", STATE_ROWS),
              GWP(STATE_K, "ssm_in", STATE_ROWS), GWP(STATE_Q, "ssm_in", STATE_ROWS),
              GWP(STATE_DECAY, "ssm_in", STATE_ROWS), GWP(STATE_NORM, "ssm_norm", GROUPS)},
};

/* One shared expert. */
static const struct moe_source_names qwen2_moe_names = {
    .dense = {W(SHARED_GATE_PROJ, "mlp.shared_expert.gate_proj"),
              W(SHARED_UP, "mlp.shared_expert.up_proj"),
              W(SHARED_DOWN, "mlp.shared_expert.down_proj")},
};

/*
 * Families whose router takes a softmax, over all experts or over the chosen ones, and whose
 * attention keeps keys and values.
 */

/* Also Phi-3.5-MoE's. */
static const struct moe_source_names mixtral_names = {
    .dense = {W(ROUTER, "block_sparse_moe.gate")},
    .expert = {EW(GATE, "block_sparse_moe.experts.%u.w1"), EW(UP, "block_sparse_moe.experts.%u.w3"),
               EW(DOWN, "block_sparse_moe.experts.%u.w2")},
};
/* Arctic: of a layer's second half, attention with a dense feed-forward. */
static const struct moe_source_names arctic_other_names = {
    .dense = {W(FFN_NORM, "residual_layernorm"), W(GATE, "residual_mlp.w1"),
              W(UP, "residual_mlp.w3"), W(DOWN, "residual_mlp.w2")},
};
static const struct moe_source_names arctic_gguf_names = {
    .dense = {GW(FFN_NORM, "ffn_norm_exps")},
};
static const struct moe_source_names arctic_other_gguf_names = {
    .dense = {GW(FFN_NORM, "ffn_norm")},
};
static const struct moe_source_names grok_names = {
    .dense = {W(ATTN_NORM, "pre_attn_norm"), W(ATTN_END_NORM, "post_attn_norm"),
              W(FFN_NORM, "pre_moe_norm"), W(FFN_END_NORM, "post_moe_norm"),
              W(SHARED_GATE_PROJ, "mlp.gate_proj"), W(SHARED_UP, "mlp.up_proj"),
              W(SHARED_DOWN, "mlp.down_proj")},
};
static const struct moe_source_names grok_gguf_names = {
    .dense = {GW(ATTN_END_NORM, "attn_output_norm"), GW(FFN_END_NORM, "layer_output_norm"),
              GW(SHARED_GATE_PROJ, "ffn_gate"), GW(SHARED_UP, "ffn_up"),
              GW(SHARED_DOWN, "ffn_down")},
};
/* Grok-2's norm behind experts. */
static const struct moe_source_names grok2_gguf_names = {
    .dense = {GW(FFN_END_NORM, "post_ffw_norm")},
};
static const struct moe_source_names minicpm_names = {
    .expert = {EW(GATE, "mlp.experts.%u.w1"), EW(UP, "mlp.experts.%u.w3"),
               EW(DOWN, "mlp.experts.%u.w2")},
};
/* FlexOlmo: norms after blocks. */
static const struct moe_source_names flex_olmo_names = {
    .dense = {W(ATTN_NORM, "post_attention_layernorm"), W(FFN_NORM, "post_feedforward_layernorm")},
};
/* All experts of a layer in one tensor: transposed as published, and not as transformers saves
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
/* ERNIE-4.5-VL: numbers of both kinds of experts follow each other, those for text first. */
static const struct moe_source_names ernie_vl_names = {
    .dense = {[MOE_T_ROUTER] = PART_COLUMNS(L "mlp.gate.weight", ALL),
              [MOE_T_CHOICE_BIAS] = MOE_PART(L "mlp.moe_statics.e_score_correction_bias", TEXT)},
};
static const struct moe_source_names hunyuan_names = {
    .dense = {W(Q_NORM, "self_attn.query_layernorm"), W(K_NORM, "self_attn.key_layernorm"),
              W(ROUTER, "mlp.gate.wg"), W(SHARED_GATE_PROJ, "mlp.shared_mlp.gate_proj"),
              W(SHARED_UP, "mlp.shared_mlp.up_proj"), W(SHARED_DOWN, "mlp.shared_mlp.down_proj")},
};
/* Phi-3.5-MoE as newer versions of transformers save it. */
static const struct moe_source_names phimoe_newer_names = {
    .dense = {W(ROUTER, "mlp.router")},
};
/* Gate and up rows of all experts interleaved in one tensor, transposed unless it is quantized. */
static const struct moe_source_names gpt_oss_names = {
    .dense = {W(ROUTER, "mlp.router"), [MOE_T_ROUTER_BIAS] = MOE_ALL(L "mlp.router.bias")},
    .expert = {EC(GATE, "mlp.experts.gate_up_proj", EVEN), EC(UP, "mlp.experts.gate_up_proj", ODD),
               EC(DOWN, "mlp.experts.down_proj", EXPERT),
               EP(GATE_BIAS, "mlp.experts.gate_up_proj_bias", EVEN),
               EP(UP_BIAS, "mlp.experts.gate_up_proj_bias", ODD),
               EP(DOWN_BIAS, "mlp.experts.down_proj_bias", EXPERT)},
};
static const struct moe_source_names flint_names = {
    .dense = {[MOE_T_SINKS] = MOE_ALL(L "self_attn.softmax_offset"),
              W(SHARED_GATE_PROJ, "mlp.shared_expert.gate_proj"),
              W(SHARED_UP, "mlp.shared_expert.up_proj"),
              W(SHARED_DOWN, "mlp.shared_expert.down_proj")},
};
#define BLOCK "transformer.blocks.%u."
static const struct moe_source_names dbrx_names = {
    .dense = {[MOE_T_EMBED] = MOE_ALL("transformer.wte.weight"),
              [MOE_T_FINAL_NORM] = MOE_ALL("transformer.norm_f.weight"),
              [MOE_T_ATTN_NORM] = MOE_ALL(BLOCK "norm_attn_norm.norm_1.weight"),
              [MOE_T_Q] = MOE_PART(BLOCK "norm_attn_norm.attn.Wqkv.weight", ATTENTION),
              [MOE_T_K] = MOE_PART(BLOCK "norm_attn_norm.attn.Wqkv.weight", ATTENTION),
              [MOE_T_V] = MOE_PART(BLOCK "norm_attn_norm.attn.Wqkv.weight", ATTENTION),
              [MOE_T_O] = MOE_ALL(BLOCK "norm_attn_norm.attn.out_proj.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(BLOCK "norm_attn_norm.norm_2.weight"),
              [MOE_T_ROUTER] = MOE_ALL(BLOCK "ffn.router.layer.weight")},
    .expert = {[MOE_E_GATE] = MOE_PART(BLOCK "ffn.experts.mlp.w1", EXPERT),
               [MOE_E_UP] = MOE_PART(BLOCK "ffn.experts.mlp.v1", EXPERT),
               [MOE_E_DOWN] = PART_COLUMNS(BLOCK "ffn.experts.mlp.w2", EXPERT)},
};
#undef BLOCK
static const struct moe_source_names dbrx_gguf_names = {
    .dense = {GWP(Q, "attn_qkv", ATTENTION), GWP(K, "attn_qkv", ATTENTION),
              GWP(V, "attn_qkv", ATTENTION), GW(FFN_NORM, "attn_output_norm")},
};
/* All experts of a layer in two tensors, transposed. */
static const struct moe_source_names aria_names = {
    .dense = {W(ROUTER, "mlp.router")},
    .expert = {EC(GATE, "mlp.experts.fc1.weight", FIRST_HALF),
               EC(UP, "mlp.experts.fc1.weight", SECOND_HALF),
               EC(DOWN, "mlp.experts.fc2.weight", EXPERT)},
};
static const struct moe_source_names aria_newer_names = {
    .expert = {EC(GATE, "mlp.experts.gate_up_proj", FIRST_HALF),
               EC(UP, "mlp.experts.gate_up_proj", SECOND_HALF),
               EC(DOWN, "mlp.experts.down_proj", EXPERT)},
};

/* JetMoE: attention made of experts. */
static const struct moe_source_names jetmoe_names = {
    .dense = {W(ATTN_ROUTER, "self_attention.experts.router.layer"),
              W(Q, "self_attention.experts.input_linear"),
              W(O, "self_attention.experts.output_linear"),
              V(O_BIAS, "self_attention.experts.bias"), WP(K, "self_attention.kv_proj", FIRST_HALF),
              WP(V, "self_attention.kv_proj", SECOND_HALF), W(ROUTER, "mlp.router.layer"),
              V(FFN_WEIGHT_BIAS, "mlp.bias")},
    .expert = {EP(GATE, "mlp.input_linear.weight", FIRST_HALF),
               EP(UP, "mlp.input_linear.weight", SECOND_HALF),
               EP(DOWN, "mlp.output_linear.weight", EXPERT)},
};
static const struct moe_family softmax_families[] = {
    /* Qwen2-MoE: Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B and models like them. Softmax over all experts,
     * a shared expert with a gate of its own, some dense layers. */
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
        .tensors[MOE_NAMING_HF].names = {&qwen2_moe_names},
    },
    /* Qwen3-MoE: Qwen3-30B-A3B, Qwen3-235B-A22B. Qwen2-MoE with norms of queries and keys, without
     * shared experts. */
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
    /* GroveMoE: Qwen3-MoE with adjugate experts. Its published code fixes what llama.cpp's
     * converter writes: two experts share one, as wide as a head, which counts a twentieth. */
    {
        .name = "grove_moe",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(norm_topk, true)),
        .hf = {.architecture = "GroveMoeForCausalLM",
               .only = ONLY({"norm_topk_prob", "true"}),
               .settings =
                   SETTINGS(CONTEXT(32768), SET(n_kv_heads, 4), SET(adjugate_of, 2),
                            SET(adjugate_scale, 0.05), DENSE_FF, LOCAL_EXPERTS(128), EXPERTS(0),
                            TOP_K(8), KEY("moe_intermediate_size", expert_ff, 768),
                            KEY("head_dim", adjugate_ff, 128), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_STEP},
        .gguf = {.arch = "grovemoe",
                 .settings = SETTINGS(NEED("expert_chunk_feed_forward_length", adjugate_ff),
                                      NEED("experts_per_group", adjugate_of),
                                      NEED("expert_group_scale", adjugate_scale))},
        .tensors[MOE_NAMING_HF].ignored = {L "mlp.expert_bias", L "mlp.gate.expert_bias"},
    },
    /* Qwen3-VL with experts: 30B-A3B, 235B-A22B, text part only. Computes as Qwen3-MoE: in a text,
     * all sections of its rotary settings have the same position. */
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
    /* Qwen3-Omni: 30B-A3B, the part that reads and writes text. Computes as Qwen3-MoE; GGUF files
     * call it qwen3vlmoe. */
    {
        .name = "qwen3_omni_moe_text",
        .also = "qwen3_omni_moe|qwen3_omni_moe_thinker",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 4), DENSE_FF, EXPERTS(128),
                                    TOP_K(8), KEY("moe_intermediate_size", expert_ff, 768),
                                    KEY("norm_topk_prob", norm_topk, true), ATTENTION_BIAS(false)),
               .rope_theta = 1e6,
               .expert_layers = MOE_LAYERS_STEP,
               .in_text_config = true},
    },
    /* Flint. Qwen3's attention with sinks, global layers without positions; sigmoids without a bias
     * for the choice; a shared expert. A function, because the kinds of layers have defaults. */
    {
        .name = "flint",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(router_kind, MOE_ROUTER_SIGMOID),
                              SET(attn_sinks, true), SET(rope_in_windows, true)),
        .hf = {.settings =
                   SETTINGS(CONTEXT(262144), SET(n_kv_heads, 4), SET(head_dim, 128), DENSE_FF,
                            EXPERTS(256), TOP_K(6), KEY("moe_intermediate_size", expert_ff, 512),
                            KEY("shared_expert_intermediate_size", shared_ff, 1024),
                            KEY("norm_topk_prob", norm_topk, true), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_STEP,
               .windows = {MOE_WINDOW_ALL, 513, .listed = true},
               .own = family_flint_hf},
        .tensors[MOE_NAMING_HF].names = {&flint_names},
    },
    /* DBRX: norms that subtract the mean, queries, keys and values in one clipped matrix, the rows
     * of all experts of a layer in one tensor. A function, because attention and experts have
     * objects of their own. */
    {
        .name = "dbrx",
        .constants =
            SETTINGS(SET(norm_kind, MOE_NORM_CENTRED), SET(norm_eps, 1e-5), SET(norm_topk, true)),
        .hf = {.own_keys = true,
               .only = ONLY({"tie_word_embeddings", "false"}),
               .settings = SETTINGS(NEED("d_model", hidden), NEED("n_heads", n_heads),
                                    NEED("n_layers", n_layers), NEED("vocab_size", vocab),
                                    KEY("max_seq_len", context_max, 2048)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_dbrx_hf},
        .gguf = {.arch = "dbrx"},
        .tensors =
            {[MOE_NAMING_HF].names = {&dbrx_names}, [MOE_NAMING_GGUF].names = {&dbrx_gguf_names}},
    },
    /* Aria: the part that reads text. Llama's attention, shared experts beside others that are
     * chosen by score. */
    {
        .name = "aria_text",
        .also = "aria",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX)),
        .hf = {.only = ONLY({"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(2048), EXPERT_FF, KEY("moe_num_experts", n_experts, 8),
                                    KEY("moe_topk", top_k, 2), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .shared_key = "moe_num_shared_experts",
               .n_shared = 2,
               .in_text_config = true},
        .tensors[MOE_NAMING_HF].names = {&aria_names, &aria_newer_names},
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
    /* JetMoE: attention made of experts, as many for a token as of its feed-forward. Only the last
     * norm has the epsilon of its settings. */
    {
        .name = "jetmoe",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX), SET(moe_bias, true),
                              SET(o_bias, true)),
        .hf = {.only = ONLY({"activation_function", "silu"}),
               .settings = SETTINGS(
                   NEED("num_hidden_layers", n_layers), NEED("hidden_size", hidden),
                   NEED("vocab_size", vocab), KEY("max_position_embeddings", context_max, 4096),
                   KEY("rms_norm_eps", last_eps, 1e-6), KEY("tie_word_embeddings", tied_head, true),
                   KEY("num_key_value_heads", n_kv_heads, 16), KEY("kv_channels", head_dim, 128),
                   EXPERT_FF, LOCAL_EXPERTS(8), KEY("num_local_experts", attn_experts, 8),
                   TOP_K(2)),
               .own_keys = true,
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_jetmoe_hf},
        .tensors[MOE_NAMING_HF].names = {&jetmoe_names},
    },
    /* Snowflake Arctic: experts that read the stream before attention, beside attention and a dense
     * feed-forward. A layer is two: half a layer with experts, whose outputs are added behind the
     * next one, and one with attention. */
    {
        .name = "arctic",
        .constants = SETTINGS(SET(norm_topk, true), SET(late_experts, true)),
        .hf = {.only = ONLY({"parallel_attn_mlp_res", "true"}, {"moe_layer_frequency", "1"}),
               .settings = SETTINGS(CONTEXT(4096), SET(norm_eps, 1e-5), EXPERT_FF, LOCAL_EXPERTS(8),
                                    TOP_K(1), ATTENTION_BIAS(false)),
               .rope_theta = 1e6,
               .own = family_arctic_hf},
        .gguf = {.arch = "arctic", .own = family_arctic_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&mixtral_names},
                                       .others = &arctic_other_names,
                                       .in_halves = true},
                    [MOE_NAMING_GGUF] = {.names = {&arctic_gguf_names},
                                         .others = &arctic_other_gguf_names,
                                         .paired = true,
                                         .in_halves = true}},
    },
    /* Grok-1, Grok-2: capped scores of attention, norms before and after blocks, a dense
     * feed-forward beside experts (Grok-2). As llama.cpp computes it: weights are divided by their
     * sum, scores of the router have no cap. */
    {
        .name = "grok",
        .constants = SETTINGS(SET(norm_topk, true), SET(norm_place, MOE_NORM_BOTH),
                              SET(expert_act, MOE_ACT_GEGLU), SET(dense_act, MOE_ACT_GEGLU)),
        .hf = {.architecture = "Grok1ForCausalLM",
               .only = ONLY({"sliding_window_size", "-1"}, {"global_attn_every_n", "1"}),
               .settings =
                   SETTINGS(CONTEXT(8192), SET(norm_eps, 1e-5), LOCAL_EXPERTS(8), TOP_K(2),
                            EXPERT_FF, USE("moe_intermediate_size", expert_ff, 0, MOE_UNLESS_ZERO),
                            KEY("attn_output_multiplier", attn_scale, 0),
                            KEY("attn_logit_softcapping", attn_cap, 30),
                            KEY("final_logit_softcapping", logit_cap, 0),
                            NEED("embedding_multiplier_scale", embed_scale),
                            NEED("output_multiplier_scale", logit_scale)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_grok_hf},
        .gguf = {.arch = "grok",
                 .settings =
                     SETTINGS(KEY("attention.output_scale", attn_scale, 0.08838834764831845),
                              KEY("attn_logit_softcapping", attn_cap, 30),
                              KEY("final_logit_softcapping", logit_cap, 0),
                              KEY("embedding_scale", embed_scale, 78.38367176906169),
                              KEY("logit_scale", logit_scale, 0.5773502691896257)),
                 .own = family_grok_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&grok_names, &mixtral_names},
                    [MOE_NAMING_GGUF].names = {&grok_gguf_names, &grok2_gguf_names}},
    },
    /* Hunyuan-A13B. A shared expert, norms of queries and keys after their rotation, whose base is
     * multiplied by a fixed factor; GGUF files have the base with the factor applied. */
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
    /* OLMoE-1B-7B. Norms over all of a position's queries and over all of its keys, then
     * clipping. */
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
    /* FlexOlmo-7x7B-1T. OLMoE with norms after attention and feed-forward. */
    {
        .name = "flex_olmo",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_FULL), SET(norm_place, MOE_NORM_AFTER)),
        .hf = {.settings = SETTINGS(CONTEXT(4096), EXPERT_FF, LOCAL_EXPERTS(7), EXPERTS(0),
                                    TOP_K(5), NORM_TOPK, ATTENTION_BIAS(false)),
               .rope_theta = 5e5,
               .expert_layers = MOE_LAYERS_ALL},
        .tensors[MOE_NAMING_HF].names = {&flex_olmo_names},
    },
    /* ERNIE-4.5: 21B-A3B, 300B-A47B. Softmax over all experts, a bias used only to choose, chosen
     * weights divided by their sum; rotated values in pairs. Layers that predict further tokens are
     * not read. */
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
               .shared_key = "moe_num_shared_experts",
               .n_shared = 2,
               .own = family_ernie4_5_moe_hf},
        .gguf = {.arch = "ernie4_5-moe", .settings = SETTINGS(GGUF_NORM_TOPK(true))},
        .tensors = {[MOE_NAMING_HF] = {.names = {&ernie_names, &ernie_newer_names}, .paired = true},
                    [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* ERNIE-4.5-VL-28B-A3B, text part only: in a text, all sections of its rotary settings have the
     * same position, and no token goes through the experts for images. */
    {
        .name = "ernie4_5_vl_moe_text",
        .also = "ernie4_5_vl_moe",
        .constants = SETTINGS(SET(choice_bias, true), SET(norm_topk, true)),
        .hf = {.only = ONLY({"use_bias", "false"}, {"moe_norm_min", "1e-12"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 4),
                                    SET(tied_head, true), SET(expert_ff, 1536), DENSE_FF,
                                    KEY("moe_num_experts", n_experts, 64), KEY("moe_k", top_k, 6)),
               .rope_theta = 5e5,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .own = family_ernie4_5_vl_hf,
               .in_text_config = true},
        .tensors[MOE_NAMING_HF] = {.names = {&ernie_vl_names},
                                   .ignored = {L "mlp.gate.weight_1"},
                                   .paired = true,
                                   .image_experts = true},
    },
    /* Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE: layer norms with biases, biases in attention and
     * head, two experts chosen by sparsemixer, LongRoPE. GGUF has no key for sparsemixer's
     * threshold: the published model's is used. */
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
    /* MiniCPM-MoE-8x2B and the dense MiniCPM-2B, as in the code published with them. Llama's
     * layers, with scales of the embedding, of what layers add, and of the head. MiniCPM4's sparse
     * attention is not implemented. */
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
    /* gpt-oss: 20b, 120b. Biases everywhere, attention sinks, sliding windows in every other layer,
     * YaRN, softmax over the chosen experts' scores, a clamped SwiGLU. GGUF has neither the
     * activation's constants nor which layers are windowed. */
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
                    [MOE_NAMING_GGUF] = {.names = {&placed_norm_names}}},
    },
    {.name = NULL},
};

/* DeepSeek's families, and others with its router or its attention. */

static const struct moe_source_names minimax_names = {
    .dense = {W(ROUTER, "block_sparse_moe.gate"), [MOE_T_CHOICE_BIAS] = MOE_ALL(
                                                      L
                                                      "block_sparse_moe.e_score_correction_bias")},
    .expert = {EW(GATE, "block_sparse_moe.experts.%u.w1"), EW(UP, "block_sparse_moe.experts.%u.w3"),
               EW(DOWN, "block_sparse_moe.experts.%u.w2")},
};
static const struct moe_source_names minimax_m3_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              W_LESS_ONE(ATTN_NORM, "input_layernorm"),
              W_LESS_ONE(FFN_NORM, "post_attention_layernorm"),
              W_LESS_ONE(Q_NORM, "self_attn.q_norm"),
              W_LESS_ONE(K_NORM, "self_attn.k_norm"),
              W(INDEX_Q, "self_attn.index_q_proj"),
              W(INDEX_K, "self_attn.index_k_proj"),
              W_LESS_ONE(INDEX_HEAD_NORM, "self_attn.index_q_norm"),
              W_LESS_ONE(INDEX_K_NORM, "self_attn.index_k_norm"),
              W(SHARED_GATE_PROJ, "block_sparse_moe.shared_experts.gate_proj"),
              W(SHARED_UP, "block_sparse_moe.shared_experts.up_proj"),
              W(SHARED_DOWN, "block_sparse_moe.shared_experts.down_proj")},
};
static const struct moe_source_names index_blocks_gguf_names = {
    .dense = {GW(INDEX_Q, "indexer.q_proj"), GW(INDEX_K, "indexer.k_proj")},
};
/* Names in memory, under which newer versions of transformers may save. */
static const struct moe_source_names minimax_newer_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.e_score_correction_bias")},
};

static const struct moe_source_names bailing_names = {
    .dense = {[MOE_T_EMBED] = MOE_ALL("model.word_embeddings.weight"),
              WP(Q, "attention.query_key_value", ATTENTION),
              WP(K, "attention.query_key_value", ATTENTION),
              WP(V, "attention.query_key_value", ATTENTION),
              W(Q_NORM, "attention.query_layernorm"),
              W(K_NORM, "attention.key_layernorm"),
              W(O, "attention.dense"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.gate.expert_bias")},
};

static const struct moe_source_names bailing_gguf_names = {
    .dense = {GWP(Q, "attn_qkv", ATTENTION), GWP(K, "attn_qkv", ATTENTION),
              GWP(V, "attn_qkv", ATTENTION)},
};

static const struct moe_source_names hy_v3_names = {
    .dense = {W(ROUTER, "mlp.router.gate"), [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.expert_bias"),
              W(SHARED_GATE_PROJ, "mlp.shared_mlp.gate_proj"),
              W(SHARED_UP, "mlp.shared_mlp.up_proj"), W(SHARED_DOWN, "mlp.shared_mlp.down_proj")},
};

static const struct moe_source_names hy_v3_gguf_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_ALL(B "exp_probs_b")},
};

/* DeepSeek-V3's settings, by themselves in a config.json or as a larger model's text part. */
#define DEEPSEEK_V3_HF                                                                             \
    .only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"rope_interleave", "true"}),         \
    .settings = SETTINGS(CONTEXT(4096), DENSE_FF, ROUTED_EXPERTS(256, 8, 2048, true, 2.5),         \
                         LATENT(1536, 512, 128, 64, 128), GROUPS(8, 4)),                           \
    .rope_theta = 1e4, .expert_layers = MOE_LAYERS_AFTER, .n_shared = 1, .n_dense = 3,             \
    .own = family_deepseek_v3_hf

/* Mistral-Large-4 as published. */
#define LAYER "layers.%u."
static const struct moe_source_names mistral_large4_names = {
    .dense = {[MOE_T_EMBED] = MOE_ALL("tok_embeddings.weight"),
              [MOE_T_FINAL_NORM] = MOE_ALL("norm.weight"),
              [MOE_T_HEAD] = MOE_ALL("output.weight"),
              [MOE_T_ROPE_LOGS] = MOE_ALL("lerope.alpha"),
              [MOE_T_ATTN_NORM] = MOE_ALL(LAYER "attention_norm.weight"),
              [MOE_T_Q] = MOE_ALL(LAYER "attention.wq.weight"),
              [MOE_T_KV_DOWN] = MOE_ALL(LAYER "attention.wkv_a_with_mqa.weight"),
              [MOE_T_KV_DOWN_NORM] = MOE_ALL(LAYER "attention.kv_a_norm.weight"),
              [MOE_T_K_UP] = MOE_PART(LAYER "attention.wkv_b.weight", KEYS),
              [MOE_T_V_UP] = MOE_PART(LAYER "attention.wkv_b.weight", VALUES),
              [MOE_T_HEAD_SLOPE] = MOE_ALL(LAYER "attention.ssmax_scaling.s"),
              [MOE_T_HEAD_BASE] = MOE_ALL(LAYER "attention.ssmax_scaling.b"),
              [MOE_T_INDEX_SLOPE] = MOE_ALL(LAYER "attention.indexer.ssmax_scaling.s"),
              [MOE_T_INDEX_BASE] = MOE_ALL(LAYER "attention.indexer.ssmax_scaling.b"),
              [MOE_T_INDEX_Q_NORM] = MOE_ALL(LAYER "attention.indexer.q_input_norm.weight"),
              [MOE_T_INDEX_Q_NORM_BIAS] = MOE_ALL(LAYER "attention.indexer.q_input_norm.bias"),
              [MOE_T_INDEX_Q] = MOE_ALL(LAYER "attention.indexer.wq_b.weight"),
              [MOE_T_INDEX_K] = MOE_ALL(LAYER "attention.indexer.wk.weight"),
              [MOE_T_INDEX_K_NORM] = MOE_ALL(LAYER "attention.indexer.k_norm.weight"),
              [MOE_T_INDEX_K_NORM_BIAS] = MOE_ALL(LAYER "attention.indexer.k_norm.bias"),
              [MOE_T_INDEX_WEIGHTS] = MOE_ALL(LAYER "attention.indexer.weights_proj.weight"),
              [MOE_T_O] = MOE_ALL(LAYER "attention.wo.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(LAYER "ffn_norm.weight"),
              [MOE_T_GATE] = MOE_ALL(LAYER "feed_forward.w1.weight"),
              [MOE_T_UP] = MOE_ALL(LAYER "feed_forward.w3.weight"),
              [MOE_T_DOWN] = MOE_ALL(LAYER "feed_forward.w2.weight"),
              [MOE_T_ROUTER] = MOE_ALL(LAYER "gate.weight"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_ALL(LAYER "shared_experts.w1.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(LAYER "shared_experts.w3.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(LAYER "shared_experts.w2.weight")},
    .expert = {[MOE_E_GATE] = MOE_ALL(LAYER "experts.%u.w1.weight"),
               [MOE_E_UP] = MOE_ALL(LAYER "experts.%u.w3.weight"),
               [MOE_E_DOWN] = MOE_ALL(LAYER "experts.%u.w2.weight")},
};
#undef LAYER

static const struct moe_source_names dots3_names = {
    .dense = {W(K_NORM, "self_attn.k_rope_only_layernorm"), W(ATTN_GATE, "self_attn.g_proj")},
};
static const struct moe_source_names dots3_gguf_names = {
    .dense = {GW(ATTN_GATE, "attn_gate")},
};

/* DeepSeek-V4's layers as published, and as transformers saves them. */
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
/* Names in memory where they are not the usual ones. */
static const struct moe_source_names v4_newer_names = {
    .dense = {W(Q_DOWN_NORM, "self_attn.q_a_norm"), W(K, "self_attn.kv_proj"),
              W(K_NORM, "self_attn.kv_norm"),
              W(O, "self_attn.o_b_proj"), [MOE_T_ROUTES] = MOE_PART(L "mlp.gate.tid2eid", ROUTES)},
};
static const struct moe_source_names v4_gguf_names = {
    .dense = {GW(K, "attn_kv"), GW(K_NORM, "attn_kv_a_norm"), GW(O, "attn_output_b")},
};

/* What both models of Hy4 have; how wide experts and latent queries are, heads of an indexer. */
#define HY4_PARTS                                                                                  \
    SET(attn_sinks, true), SET(attn_gate, true), SET(expert_act, MOE_ACT_SWIGLU_LIMITED)
#define HY4_ONLY                                                                                   \
    ONLY({"attention_bias", "false"}, {"scoring_func", "sigmoid"}, {"gated_mla", "true"},          \
         {"gating_type", "elementwise"}, {"learnable_sink", "true"}, {"enable_ihc", "true"})
#define HY4_SETTINGS(expert, queries, index_heads)                                                 \
    SETTINGS(CONTEXT(262144), SET(norm_eps, 1e-5), DENSE_FF,                                       \
             ROUTED_EXPERTS(256, 8, expert, true, 2.827), LATENT(queries, 512, 192, 64, 256),      \
             GROUPS(1, 1), INDEXER(index_heads), KEY("hc_mult", n_streams, 4),                     \
             KEY("hc_eps", stream_eps, 1e-6), KEY("hc_magnitude", stream_magnitude, 2),            \
             KEY("swiglu_limit", act_limit, 10))

/* Names as published; others, in memory, are the usual ones. */
static const struct moe_source_names hy_v4_names = {
    .dense = {[MOE_T_SINKS] = MOE_ALL(L "self_attn.learnable_sink_param"),
              W(ATTN_GATE, "self_attn.linear_gate"),
              [MOE_T_ATTN_MIX] = MOE_ALL(L "hc_attn_layer.hc_pre.hc_fn"),
              [MOE_T_ATTN_MIX_BIAS] = MOE_ALL(L "hc_attn_layer.hc_pre.hc_base"),
              [MOE_T_ATTN_MIX_SCALE] = MOE_ALL(L "hc_attn_layer.hc_pre.hc_scale"),
              [MOE_T_FFN_MIX] = MOE_ALL(L "hc_mlp_layer.hc_pre.hc_fn"),
              [MOE_T_FFN_MIX_BIAS] = MOE_ALL(L "hc_mlp_layer.hc_pre.hc_base"),
              [MOE_T_FFN_MIX_SCALE] = MOE_ALL(L "hc_mlp_layer.hc_pre.hc_scale"),
              [MOE_T_LAST_MIX] = MOE_ALL("model.hc_head.hc_head_fn"),
              [MOE_T_LAST_MIX_BIAS] = MOE_ALL("model.hc_head.hc_head_base"),
              [MOE_T_LAST_MIX_SCALE] = MOE_ALL("model.hc_head.hc_head_scale")},
    .expert = {EP(GATE, "mlp.experts.gate_up_proj", FIRST_HALF),
               EP(UP, "mlp.experts.gate_up_proj", SECOND_HALF),
               EP(DOWN, "mlp.experts.down_proj", EXPERT)},
};
static const struct moe_source_names hy_v4_newer_names = {
    .dense = {W(ATTN_GATE, "self_attn.gate_proj")},
};
static const struct moe_source_names hy_v4_gguf_names = {
    .dense = {GW(ATTN_GATE, "attn_gate")},
};

/* Two layers in one: attention and feed-forward of each by number, experts once. */
static const struct moe_source_names longcat_names = {
    .dense = {W(ATTN_NORM, "input_layernorm.%u"), W(FFN_NORM, "post_attention_layernorm.%u"),
              W(Q_DOWN, "self_attn.%u.q_a_proj"), W(Q_DOWN_NORM, "self_attn.%u.q_a_layernorm"),
              W(Q, "self_attn.%u.q_b_proj"), W(KV_DOWN, "self_attn.%u.kv_a_proj_with_mqa"),
              W(KV_DOWN_NORM, "self_attn.%u.kv_a_layernorm"),
              WP(K_UP, "self_attn.%u.kv_b_proj", KEYS), WP(V_UP, "self_attn.%u.kv_b_proj", VALUES),
              W(O, "self_attn.%u.o_proj"), W(GATE, "mlps.%u.gate_proj"), W(UP, "mlps.%u.up_proj"),
              W(DOWN, "mlps.%u.down_proj"), W(SHARED_GATE_PROJ, "mlps.%u.gate_proj"),
              W(SHARED_UP, "mlps.%u.up_proj"), W(SHARED_DOWN, "mlps.%u.down_proj"),
              W(ROUTER, "mlp.router.classifier"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.router.e_score_correction_bias")},
};

static const struct moe_source_names axk1_names = {
    .dense = {W(FFN_END_NORM, "post_mlp_layernorm")},
};

static const struct moe_source_names axk2_names = {
    .dense = {W(ATTN_NORM, "input_layernorm.norm"), W(FFN_NORM, "post_attention_layernorm.norm"),
              WP(Q, "self_attn.q_b_proj", HEAD_QUERY),
              WP(ATTN_GATE, "self_attn.q_b_proj", HEAD_GATE)},
};

static const struct moe_family deepseek_families[] = {
    /* DeepSeekMoE-16B, as in the code published with it. Ordinary attention, a dense first layer,
     * fine-grained experts and shared ones. */
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
    /* DeepSeek-OCR-2: the part that reads and writes text. DeepSeekMoE with DeepSeek-V2's groups.
     */
    {
        .name = "deepseek_ocr2_text",
        .also = "deepseek_ocr2",
        .hf = {.only = ONLY({"scoring_func", "softmax"}, {"norm_topk_prob", "false"},
                            {"mlp_bias", "false"}),
               .settings =
                   SETTINGS(CONTEXT(2048), DENSE_FF, KEY("n_routed_experts", n_experts, 64),
                            TOP_K(0), KEY("moe_intermediate_size", expert_ff, 1407), GROUPS(0, 0),
                            KEY("routed_scaling_factor", routed_scale, 0), ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 2,
               .in_text_config = true,
               .own = family_topk_method_hf},
        .gguf = {.arch = "deepseek2-ocr",
                 .settings = SETTINGS(GGUF_NORM_TOPK(false)),
                 .own = family_deepseek_ocr_gguf},
    },
    /* DeepSeek-V2, V2-Lite, Coder-V2: MLA with YaRN, DeepSeekMoE's experts, chosen within the best
     * groups. Where the published code and the public class differ, only the value with which both
     * compute the same is accepted. The norms inside attention have an epsilon of 1e-6 whatever the
     * key says. */
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
    /* DeepSeek-V3, R1, Kimi-K2, Moonlight: DeepSeek-V2 with sigmoid scores, a bias used only to
     * choose, and groups ranked by their two best experts. Layers that predict further tokens are
     * not read. */
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
    /* A.X-K1: DeepSeek-V3 with a norm behind experts, without a bias for the choice. Published
     * files have such norms in dense layers too, where they do nothing. */
    {
        .name = "axk1",
        .also = "AXK1",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_SIGMOID), SET(latent_eps, 1e-6),
                              SET(moe_norm, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"scoring_func", "sigmoid"},
                            {"rope_interleave", "true"}),
               .settings =
                   SETTINGS(CONTEXT(32768), DENSE_FF, ROUTED_EXPERTS(192, 8, 2048, true, 2.5),
                            LATENT(1536, 512, 128, 64, 128), GROUPS(8, 4)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .own = family_deepseek_v3_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&axk1_names},
                                   .ignored = {L "post_mlp_layernorm.weight"},
                                   .paired = true},
    },
    /* Sarvam-105B: DeepSeek-V3 in one group, with names of keys of its own. */
    {
        .name = "sarvam_mla",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {.only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"rope_interleave", "true"},
                            {"mlp_bias", "false"}),
               .settings =
                   SETTINGS(CONTEXT(4096), DENSE_FF, ROUTED_EXPERTS(128, 8, 2048, true, 2.5),
                            EXPERTS(0), LATENT(0, 512, 128, 64, 128), GROUPS(1, 1)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .shared_key = "num_shared_experts",
               .own = family_deepseek_v3_hf},
        .tensors[MOE_NAMING_HF].paired = true,
    },
    /* DeepSeek-V3.2: DeepSeek-V3 with sparse attention. The indexer's queries and keys rotate as
     * halves. */
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
    /* A.X-K2: DeepSeek-V3.2 with gates of outputs and of norms, queries and gates projected from a
     * vector under a norm and as it was. */
    {
        .name = "axk2",
        .constants = SETTINGS(LATENT_SIGMOIDS, SET(q_twice, true), SET(attn_gate, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}),
               .settings =
                   SETTINGS(CONTEXT(131072), DENSE_FF, ROUTED_EXPERTS(128, 8, 512, true, 2.5),
                            LATENT(384, 128, 64, 32, 64), GROUPS(0, 0), INDEXER(16),
                            KEY("gated_norm_rank", norm_gate_rank, 16)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .own = family_deepseek_v32_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&axk2_names}, .paired = true},
    },
    /* GLM-5: DeepSeek-V3.2 with other widths, an indexer that rotates pairs, and layers that share
     * an earlier layer's choice. */
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
    /* DeepSeek-V4: compressed attention (one key for all heads, sliding windows everywhere,
     * compressed positions beyond them in most layers), hyper-connections, routers that take roots
     * of softplus, static routing in the first layers. */
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
                    /* This bias is for images. */
                    [MOE_NAMING_GGUF] = {.names = {&v4_gguf_names},
                                         .ignored = {B "exp_probs_b_vl.bias"}}},
    },
    /* Mistral-4 (Mistral-Small-4): DeepSeek-V3's attention with queries scaled by their position,
     * softmax over all experts. */
    {
        .name = "mistral4",
        .constants = SETTINGS(SET(latent_eps, 1e-6)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"rope_interleave", "true"},
                            {"n_group", "1"}, {"topk_group", "1"}),
               .settings =
                   SETTINGS(CONTEXT(1048576), DENSE_FF, ROUTED_EXPERTS(128, 4, 2048, true, 1),
                            LATENT(1024, 256, 64, 64, 128)),
               .rope_theta = 1e4,
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .in_text_config = true,
               .own = family_mistral4_hf},
        .gguf = {.arch = "mistral4",
                 .settings =
                     SETTINGS(LATENT_GGUF, KEY("attention.temperature_scale", query_scale, 0),
                              KEY("attention.temperature_length", query_step, 0)),
                 .own = family_mistral4_gguf},
        .tensors = {[MOE_NAMING_HF].paired = true, [MOE_NAMING_GGUF].paired = true},
    },
    /* Mistral-Large-4: GLM-5's layers without low-rank queries; some rotate nothing, some may see
     * an earlier one's vectors; queries scaled by head, learnt rotary frequencies, softmax over all
     * experts. */
    {
        .name = "mistral_large4",
        .also = "mistral_large4_text",
        .constants =
            SETTINGS(SET(norm_topk, true), SET(tempered_heads, true), SET(rope_learnt, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"n_group", "1"}, {"topk_group", "1"}),
               .settings = SETTINGS(
                   CONTEXT(1048576), SET(norm_eps, 1e-5), DENSE_FF,
                   KEY("n_routed_experts", n_experts, 128), TOP_K(4),
                   KEY("moe_intermediate_size", expert_ff, 6144),
                   KEY("routed_scaling_factor", routed_scale, 1), KEY("kv_lora_rank", kv_rank, 512),
                   KEY("qk_nope_head_dim", head_dim, 64), KEY("qk_rope_head_dim", rope_dim, 64),
                   KEY("v_head_dim", value_dim, 128), INDEXER(32),
                   KEY("final_logit_softcapping", logit_cap, 30)),
               .rope_theta = 1e4,
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .in_text_config = true,
               .own = family_mistral_large4_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&mistral_large4_names},
                                   .ignored = {"vision_encoder.*", "vision_language_adapter.*",
                                               "patch_merger.*", "pre_mm_projector_norm.*",
                                               "mtp_dspark.*"},
                                   .paired = true,
                                   .index_paired = true},
    },
    /* dots3-note, the part that reads and writes text: DeepSeek-V3.2 with local layers whose heads
     * and latent vectors are of another shape and which have no indexer; gates of heads, norms of
     * the key that heads share. llama.cpp's indexers rotate halves, transformers' pairs. */
    {
        .name = "dots3_note_text",
        .also = "dots3_note",
        .constants = SETTINGS(SIGMOIDS, SET(latent_key_norm, true), SET(attn_gate, true),
                              SET(gate_by_head, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, SIGMOIDS_ONLY, {"mlp_bias", "false"},
                            {"use_dsa", "true"}, {"k_rope_only_layernorm", "true"},
                            {"apply_mla_qkv_lora_rescale", "true"}, {"use_dynamic_rsf", "false"},
                            {"attention_gate_type", "headwise"},
                            {"swa_attention_gate_type", "headwise"}),
               .settings = SETTINGS(CONTEXT(524288), SET(norm_eps, 1e-5), DENSE_FF,
                                    ROUTED_EXPERTS(256, 8, 1536, true, 1),
                                    LATENT(1024, 512, 128, 64, 128), GROUPS(1, 1), INDEXER(64)),
               .rope_theta = 8e7,
               .rope_of = "indexed_attention",
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .in_text_config = true,
               .own = family_dots3_hf},
        .gguf = {.arch = "dots3note",
                 .sigmoid = true,
                 .settings =
                     SETTINGS(LATENT_GGUF, INDEXER_GGUF, NEED("attention.sliding_window", window)),
                 .by_layer = {"attention.head_count", "attention.head_count_kv"},
                 .own = family_dots3_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&dots3_names},
                                       .ignored = {"model.mtp.*", "vision_encoder.*",
                                                   "audio_encoder.*", "model.vision_encoder.*",
                                                   "model.audio_encoder.*"},
                                       .paired = true,
                                       .index_paired = true},
                    [MOE_NAMING_GGUF] = {.names = {&dots3_gguf_names}, .paired = true}},
    },
    /* LongCat-Flash: layers of two, each with latent attention and a feed-forward; experts beside
     * the first feed-forward, whose outputs are added behind the second one, and experts that give
     * back what they take in. */
    {
        .name = "longcat_flash",
        .constants =
            SETTINGS(SET(choice_bias, true), SET(late_experts, true), SET(latent_eps, 1e-6)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"router_bias", "false"},
                            {"zero_expert_type", "identity"}, {"attention_method", "MLA"},
                            {"norm_topk_prob", "false"}, {"hidden_act", "silu"},
                            {"mla_scale_q_lora", "true"}, {"mla_scale_kv_lora", "true"}),
               .settings = SETTINGS(
                   NEED("num_layers", n_layers), NEED("hidden_size", hidden),
                   NEED("vocab_size", vocab), NEED("num_attention_heads", n_heads),
                   KEY("max_position_embeddings", context_max, 131072),
                   KEY("rms_norm_eps", norm_eps, 1e-5), KEY("tie_word_embeddings", tied_head, 0),
                   KEY("ffn_hidden_size", dense_ff, 12288),
                   KEY("ffn_hidden_size", shared_ff, 12288),
                   KEY("n_routed_experts", n_experts, 512), KEY("zero_expert_num", n_zero, 256),
                   KEY("moe_topk", top_k, 12), KEY("expert_ffn_hidden_size", expert_ff, 2048),
                   KEY("routed_scaling_factor", routed_scale, 6), LATENT(1536, 512, 128, 64, 128)),
               .own_keys = true,
               .rope_theta = 1e7,
               .own = family_longcat_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&longcat_names},
                                   .ignored = {"model.mtp.*"},
                                   .paired = true,
                                   .in_halves = true},
    },
    /* Hy4: GLM-5 with gates and sinks of attention, indexers whose last values rotate, and streams
     * that only blocks mix. Published files have num_key_value_heads 8, which nothing reads. Values
     * that rotate are pairs, as vLLM and llama.cpp have it; transformers' class takes the same rows
     * for halves. */
    {
        .name = "hy_v4",
        .constants = SETTINGS(LATENT_SIGMOIDS, HY4_PARTS),
        .hf = {.only = HY4_ONLY,
               .settings = HY4_SETTINGS(768, 1536, 16),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .own = family_hy_v4_hf},
        .gguf = {.arch = "hy_v4",
                 .sigmoid = true,
                 .settings =
                     SETTINGS(LATENT_GGUF, INDEXER_GGUF, NEED("hyper_connection.count", n_streams),
                              NEED("hyper_connection.epsilon", stream_eps),
                              NEED("hyper_connection.magnitude", stream_magnitude)),
                 .own = family_hy_v4_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&hy_v4_names, &hy_v4_newer_names},
                                       .ignored = {"model.mtp_layers.*"},
                                       .paired = true,
                                       .index_paired = true,
                                       .index_last = true},
                    [MOE_NAMING_GGUF] = {.names = {&hy_v4_gguf_names},
                                         .paired = true,
                                         .index_paired = true,
                                         .index_last = true}},
    },
    /* The text part of Hy4-VL: Hy4 with other widths, whose latent norms have the epsilon of the
     * others; in a text, all sections of its rotary settings have the same position. */
    {
        .name = "hy_v4_vl_text",
        .also = "hy_v4_vl",
        .constants = SETTINGS(SIGMOIDS, HY4_PARTS),
        .hf = {.only = HY4_ONLY,
               .settings = HY4_SETTINGS(2048, 2048, 32),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .own = family_hy_v4_hf,
               .in_text_config = true},
        .tensors[MOE_NAMING_HF] = {.names = {&hy_v4_names, &hy_v4_newer_names},
                                   .ignored = {"model.mtp_layers.*"},
                                   .paired = true,
                                   .index_paired = true,
                                   .index_last = true},
    },
    /* GLM-4.7-Flash: DeepSeek-V3 with other widths and one group. GGUF files call it deepseek2 and
     * may not mention sigmoids. */
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
    /* GLM-4.5, 4.6, Air: ordinary attention that rotates half of a head, norms of queries and keys
     * in the large ones; DeepSeek-V3's router. */
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
                 .qk_norm = MOE_QK_NORM_HEAD},
        .tensors[MOE_NAMING_GGUF].names = {&placed_norm_names},
    },
    /* GLM-4.5V, 4.6V: the part that reads and writes text, which is GLM-4.5 without norms of
     * queries and keys; in a text, all sections of its rotary settings have the same position. */
    {
        .name = "glm4v_moe_text",
        .also = "glm4v_moe",
        .constants = SETTINGS(SIGMOIDS),
        .hf = {.only = ONLY(SIGMOIDS_ONLY, {"use_qk_norm", "false"}),
               .settings = SETTINGS(CONTEXT(65536), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    DENSE_FF, ROUTED_EXPERTS(128, 8, 1408, true, 1), GROUPS(1, 1),
                                    KEY("attention_bias", qkv_bias, true)),
               .rope_theta = 1e4,
               .partial_rotary = 0.5,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .in_text_config = true},
    },
    /* Sarvam-30B: GLM-4.5 whose heads rotate whole, with Ling's names. */
    {
        .name = "sarvam_moe",
        .constants = SETTINGS(SIGMOIDS, SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.only = ONLY(SIGMOIDS_ONLY, {"attention_bias", "false"}, {"use_qkv_bias", "false"},
                            {"use_bias", "false"}, {"score_function", "sigmoid"},
                            {"moe_router_enable_expert_bias", "true"}, {"norm_head", "false"}),
               .settings =
                   SETTINGS(CONTEXT(131072), SET(n_kv_heads, 4), SET(head_dim, 64), DENSE_FF,
                            ROUTED_EXPERTS(128, 6, 1024, true, 2.5), EXPERTS(0), GROUPS(1, 1)),
               .rope_theta = 8e6,
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 1,
               .shared_key = "num_shared_experts",
               .own = family_sigmoid_hf},
        .tensors[MOE_NAMING_HF].names = {&bailing_names},
    },
    /* Solar Open: Llama's attention, DeepSeek-V3's router, experts in every layer. GGUF files call
     * it glm4moe, from which it differs by having no norms of queries and keys. */
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
    /* Ling and Ring 1 (BailingMoe): DeepSeekMoE with weights that may be normalized, under the
     * model type that their successors also have. */
    {
        .name = "bailing_moe_v1",
        .hf = {.architecture = "BailingMoeForCausalLM",
               .only = ONLY({"use_bias", "false"}, {"use_qkv_bias", "false"},
                            {"norm_head", "false"}, {"use_sliding_window", "false"},
                            {"multi_gate", "false"}, {"score_function", "softmax"}),
               .settings = SETTINGS(CONTEXT(16384), DENSE_FF, EXPERTS(64), TOP_K(6),
                                    KEY("moe_intermediate_size", expert_ff, 1408), NORM_TOPK),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .shared_key = "num_shared_experts"},
        .gguf = {.arch = "bailingmoe", .settings = SETTINGS(GGUF_NORM_TOPK(false))},
        .tensors = {[MOE_NAMING_HF].names = {&bailing_names}, [MOE_NAMING_GGUF].paired = true},
    },
    /* Ling and Ring 2.0 (BailingMoeV2): GLM-4.5 with norms of queries and keys. A function, because
     * Ling 1 has the same model type and another router. */
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
               .shared_key = "num_shared_experts",
               .n_shared = 1,
               .own = family_bailing_moe_hf},
        .gguf = {.arch = "bailingmoe2",
                 .sigmoid = true,
                 .settings = SETTINGS(GGUF_GROUPS, GGUF_NORM_TOPK(false))},
        .tensors = {[MOE_NAMING_HF].names = {&bailing_names},
                    [MOE_NAMING_GGUF].names = {&bailing_gguf_names}},
    },
    /* Hy3: Qwen3's attention, DeepSeek-V3's router without groups. */
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
               .shared_key = "num_shared_experts",
               .n_shared = 1},
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
                 .settings = SETTINGS(GGUF_GROUPS, GGUF_NORM_TOPK(false))},
    },
    /* MiniMax-M2: rotates part of each head; norms over all of a position's queries and over all of
     * its keys; DeepSeek-V3's router without groups. */
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
    /* The text part of MiniMax-M3: gpt-oss' activation everywhere, norms by head that are stored
     * minus 1, like all others, dense layers first, a shared expert, an indexer that chooses blocks
     * of positions. */
    {
        .name = "minimax_m3_vl",
        .also = "minimax_m3_vl_text",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(qk_norm, MOE_QK_NORM_HEAD),
                              SET(expert_act, MOE_ACT_SWIGLU_CLAMPED),
                              SET(dense_act, MOE_ACT_SWIGLU_CLAMPED), SET(act_alpha, 1.702),
                              SET(act_limit, 7)),
        .hf = {.only = ONLY({"hidden_act", "swigluoai|silu"}, {"scoring_func", "sigmoid"},
                            {"use_qk_norm", "true"}, {"qk_norm_type", "per_head"},
                            {"use_gemma_norm", "true"}, {"use_routing_bias", "true"}),
               .settings = SETTINGS(
                   CONTEXT(524288),
                   KEY("max_position_embeddings", context_max, 0),
                   NEED("num_hidden_layers", n_layers), NEED("hidden_size", hidden),
                   NEED("vocab_size", vocab), NEED("num_attention_heads", n_heads),
                   KEY("num_key_value_heads", n_kv_heads, 4), KEY("head_dim", head_dim, 128),
                   KEY("rms_norm_eps", norm_eps, 1e-6), KEY("tie_word_embeddings", tied_head, 0),
                   KEY("rotary_dim", rope_dim, 64), KEY("swiglu_alpha", act_alpha, 0),
                   KEY("swiglu_limit", act_limit, 0), KEY("intermediate_size", expert_ff, 3072),
                   KEY("dense_intermediate_size", dense_ff, 12288),
                   KEY("shared_intermediate_size", shared_ff, 3072), LOCAL_EXPERTS(128), TOP_K(4),
                   KEY("routed_scaling_factor", routed_scale, 2)),
               .own_keys = true,
               .rope_theta = 5e6,
               .partial_rotary = 1,
               .in_text_config = true,
               .own = family_minimax_m3_hf},
        .gguf = {.arch = "minimax-m3",
                 .sigmoid = true,
                 .settings = SETTINGS(GGUF_NORM_TOPK(true)),
                 .own = family_minimax_m3_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&minimax_names, &minimax_m3_names},
                    [MOE_NAMING_GGUF].names = {&index_blocks_gguf_names}},
    },
    {.name = NULL},
};

/* Granite: four multipliers, gate and up projections of all experts in one tensor. */

static const struct moe_source_names granite_names = {
    .dense = {W(ROUTER, "block_sparse_moe.router.layer"),
              WP(SHARED_GATE_PROJ, "shared_mlp.input_linear", FIRST_HALF),
              WP(SHARED_UP, "shared_mlp.input_linear", SECOND_HALF),
              W(SHARED_DOWN, "shared_mlp.output_linear")},
    .expert = {EP(GATE, "block_sparse_moe.input_linear.weight", FIRST_HALF),
               EP(UP, "block_sparse_moe.input_linear.weight", SECOND_HALF),
               EP(DOWN, "block_sparse_moe.output_linear.weight", EXPERT)},
};
/* Granite as newer versions of transformers save it. */
static const struct moe_source_names granite_newer_names = {
    .dense = {W(ROUTER, "block_sparse_moe.router")},
    .expert = {EP(GATE, "block_sparse_moe.experts.gate_up_proj", FIRST_HALF),
               EP(UP, "block_sparse_moe.experts.gate_up_proj", SECOND_HALF),
               EP(DOWN, "block_sparse_moe.experts.down_proj", EXPERT)},
};

/* Hybrids without experts have only the shared one. */
static const struct moe_source_names granite_hybrid_names = {
    .dense = {MAMBA(L "mamba."), WP(GATE, "shared_mlp.input_linear", FIRST_HALF),
              WP(UP, "shared_mlp.input_linear", SECOND_HALF), W(DOWN, "shared_mlp.output_linear")},
};

/* Shared experts' gate and up projections in one tensor. */
static const struct moe_source_names granite_swa_gguf_names = {
    .dense = {GWP(SHARED_GATE_PROJ, "ffn_up_shexp", FIRST_HALF),
              GWP(SHARED_UP, "ffn_up_shexp", SECOND_HALF)},
};

/* Granite with a shared expert reads one key more. */
#define GRANITE_SCALES                                                                             \
    KEY("embedding_multiplier", embed_scale, 0), KEY("residual_multiplier", residual_scale, 0),    \
        USE("attention_multiplier", attn_scale, 1, MOE_NOT_ZERO),                                  \
        USE("logits_scaling", logit_scale, 0, MOE_RECIPROCAL), ATTENTION_BIAS(false)
#define GRANITE_SETTINGS EXPERT_FF, LOCAL_EXPERTS(8), TOP_K(2), GRANITE_SCALES
#define GRANITE_NAMES .names = {&granite_names, &granite_newer_names}

static const struct moe_family granite_families[] = {
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
    /* Granite with sliding windows and attention sinks, with experts or without. A function,
     * because a list says which layers rotate. */
    {
        .name = "granitemoe_swa",
        .constants = SETTINGS(SET(router_kind, MOE_ROUTER_TOPK_SOFTMAX), SET(attn_sinks, true)),
        .hf = {.settings = SETTINGS(CONTEXT(2048), GRANITE_SETTINGS,
                                    KEY("shared_intermediate_size", shared_ff, 0)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_ALL, 128, .listed = true},
               .own = family_granite_swa_hf},
        .gguf = {.arch = "granite_swa", .own = family_granite_swa_gguf},
        .tensors = {[MOE_NAMING_HF] = {GRANITE_NAMES},
                    [MOE_NAMING_GGUF] = {.names = {&granite_swa_gguf_names}, .paired = true}},
    },
    {
        .name = "granite_swa",
        .constants = SETTINGS(SET(attn_sinks, true)),
        .hf = {.only = ONLY({"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(8192), SET(norm_eps, 1e-5), SET(n_kv_heads, 4),
                                    SET(tied_head, true), DENSE_FF, GRANITE_SCALES),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_ALL, 128, .listed = true},
               .own = family_granite_swa_hf},
        .gguf = {.arch = "granite_swa", .dense = true, .own = family_granite_swa_gguf},
        .tensors = {[MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* Granite-4 H: recurrent layers (Mamba-2) and a few of attention, mostly without positions;
     * some are dense, some have no states. A function, because the kinds of layers and the width of
     * a state's heads have to be worked out. */
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
                    [MOE_NAMING_GGUF] = {.names = {&mamba_gguf_names}, .paired = true}},
    },
    {.name = NULL},
};

/*
 * Families with local layers, which see a sliding window, and global ones, which see the whole
 * text with other heads, another rotation or none.
 */

/* With experts, the norm before feed-forwards is the shared expert's; without, the only one. */
static const struct moe_source_names gemma4_names = {
    .dense = {W(ATTN_END_NORM, "post_attention_layernorm"),
              W(FFN_NORM, "pre_feedforward_layernorm_2"),
              W(FFN_END_NORM, "post_feedforward_layernorm"),
              [MOE_T_LAYER_SCALE] = MOE_ALL(L "layer_scalar"),
              W(ROUTER, "router.proj"), [MOE_T_ROUTER_NORM] = MOE_ALL(L "router.scale"),
              [MOE_T_EXPERT_SCALE] = MOE_ALL(L "router.per_expert_scale"),
              W(SHARED_GATE_PROJ, "mlp.gate_proj"), W(SHARED_UP, "mlp.up_proj"),
              W(SHARED_DOWN, "mlp.down_proj"), W(SHARED_NORM, "pre_feedforward_layernorm"),
              W(SHARED_END_NORM, "post_feedforward_layernorm_1"),
              W(EXPERTS_END_NORM, "post_feedforward_layernorm_2")},
    .expert = {EP(GATE, "experts.gate_up_proj", FIRST_HALF),
               EP(UP, "experts.gate_up_proj", SECOND_HALF), EP(DOWN, "experts.down_proj", EXPERT)},
};
static const struct moe_source_names gemma4_dense_names = {
    .dense = {W(FFN_NORM, "pre_feedforward_layernorm")},
};

/* In a MoE layer "ffn_norm", "ffn_gate" and so on are the shared expert's. */
static const struct moe_source_names gemma4_gguf_names = {
    .dense = {GW(ATTN_END_NORM, "post_attention_norm"), GW(FFN_NORM, "pre_ffw_norm_2"),
              GW(FFN_END_NORM, "post_ffw_norm"), GW(LAYER_SCALE, "layer_output_scale"),
              [MOE_T_ROUTER_NORM] = MOE_ALL(B "ffn_gate_inp.scale"),
              [MOE_T_EXPERT_SCALE] = MOE_ALL(B "ffn_down_exps.scale"),
              GW(SHARED_GATE_PROJ, "ffn_gate"), GW(SHARED_UP, "ffn_up"),
              GW(SHARED_DOWN, "ffn_down"), GW(SHARED_NORM, "ffn_norm"),
              GW(SHARED_END_NORM, "post_ffw_norm_1"), GW(EXPERTS_END_NORM, "post_ffw_norm_2")},
};

static const struct moe_source_names afmoe_names = {
    .dense = {W(ATTN_END_NORM, "post_attention_layernorm"), W(FFN_NORM, "pre_mlp_layernorm"),
              W(FFN_END_NORM, "post_mlp_layernorm"), W(ATTN_GATE, "self_attn.gate_proj"),
              W(ROUTER, "mlp.router.gate"), [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.expert_bias")},
};

static const struct moe_source_names beam_names = {
    .dense = {W(ATTN_END_NORM, "post_attention_layernorm"),
              W(FFN_NORM, "pre_feedforward_layernorm"),
              W(FFN_END_NORM, "post_feedforward_layernorm"), W(ATTN_GATE, "self_attn.gate_proj")},
};

static const struct moe_source_names kolibri_names = {
    .dense = {W(ATTN_END_NORM, "post_attn_norm"), W(FFN_END_NORM, "post_ffn_norm"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "moe.router.expert_bias")},
};
/* In memory. */
static const struct moe_source_names kolibri_newer_names = {
    .dense = {W(ATTN_END_NORM, "post_self_attn_layernorm"), W(FFN_END_NORM, "post_mlp_layernorm")},
};

static const struct moe_source_names afmoe_gguf_names = {
    .dense = {GW(ATTN_END_NORM, "post_attention_norm"), GW(FFN_END_NORM, "post_ffw_norm"),
              GW(ATTN_GATE, "attn_gate")},
};

/* All experts of a layer in one tensor, transposed. */
static const struct moe_source_names llama4_names = {
    .dense = {W(GATE, "feed_forward.gate_proj"), W(UP, "feed_forward.up_proj"),
              W(DOWN, "feed_forward.down_proj"), W(ROUTER, "feed_forward.router"),
              W(SHARED_GATE_PROJ, "feed_forward.shared_expert.gate_proj"),
              W(SHARED_UP, "feed_forward.shared_expert.up_proj"),
              W(SHARED_DOWN, "feed_forward.shared_expert.down_proj")},
    .expert = {EC(GATE, "feed_forward.experts.gate_up_proj", FIRST_HALF),
               EC(UP, "feed_forward.experts.gate_up_proj", SECOND_HALF),
               EC(DOWN, "feed_forward.experts.down_proj", EXPERT)},
};

static const struct moe_source_names smallthinker_names = {
    .dense = {W(ROUTER, "block_sparse_moe.primary_router")},
    .expert = {EW(GATE, "block_sparse_moe.experts.%u.gate"),
               EW(UP, "block_sparse_moe.experts.%u.up"),
               EW(DOWN, "block_sparse_moe.experts.%u.down")},
};

static const struct moe_source_names exaone_moe_names = {
    .dense = {[MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.e_score_correction_bias")},
};

/* Also Laguna's. */
static const struct moe_source_names head_gate_names = {
    .dense = {W(ATTN_GATE, "self_attn.g_proj"), [MOE_T_CHOICE_BIAS] = MOE_ALL(
                                                    L "mlp.experts.e_score_correction_bias")},
};

static const struct moe_source_names mimo_v2_names = {
    .dense = {[MOE_T_SINKS] = MOE_ALL(L "self_attn.attention_sink_bias")},
};

/* Norms are stored minus 1; experts of a layer in three tensors. */
static const struct moe_source_names step3p5_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              W_LESS_ONE(ATTN_NORM, "input_layernorm"),
              W_LESS_ONE(FFN_NORM, "post_attention_layernorm"),
              W_LESS_ONE(Q_NORM, "self_attn.q_norm"),
              W_LESS_ONE(K_NORM, "self_attn.k_norm"),
              W(ROUTER, "moe.gate"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "moe.router_bias"),
              W(SHARED_GATE_PROJ, "share_expert.gate_proj"),
              W(SHARED_UP, "share_expert.up_proj"),
              W(SHARED_DOWN, "share_expert.down_proj")},
    .expert = {EP(GATE, "moe.gate_proj.weight", EXPERT), EP(UP, "moe.up_proj.weight", EXPERT),
               EP(DOWN, "moe.down_proj.weight", EXPERT)},
};

/* Muse Spark: norms without weights behind blocks, whose place gates of residuals take. */
static const struct moe_source_names muse_spark_names = {
    .dense = {W_LESS_ONE(ATTN_NORM, "input_layernorm"), W(ATTN_GATE, "self_attn.gate_proj"),
              [MOE_T_ATTN_END_NORM] = {.name = L "post_attention_residual_gate.gate",
                                       .stored = MOE_STORED_GATE},
              [MOE_T_ATTN_KEEP] = {.name = L "post_attention_residual_gate.gate",
                                   .stored = MOE_STORED_GATE_REST},
              W_LESS_ONE(FFN_NORM, "pre_feedforward_layernorm"),
              W_LESS_ONE(FFN_WEIGHT, "post_feedforward_layernorm"),
              [MOE_T_FFN_END_NORM] = {.name = L "post_feedforward_residual_gate.gate",
                                      .stored = MOE_STORED_GATE},
              [MOE_T_FFN_KEEP] = {.name = L "post_feedforward_residual_gate.gate",
                                  .stored = MOE_STORED_GATE_REST},
              V(CHOICE_BIAS, "mlp.gate.e_score_correction_bias"),
              W(EXPERTS_IN, "mlp.pre_expert_proj"), W(EXPERTS_OUT, "mlp.post_expert_proj"),
              W_LESS_ONE(EXPERTS_START_NORM, "mlp.pre_expert_norm"),
              W_LESS_ONE(EXPERTS_WEIGHT, "mlp.experts.post_expert_norm")},
};

static const struct moe_family local_families[] = {
    /* Muse Spark, the part that reads text: local layers that rotate and global ones that do not,
     * norms of queries, keys and outputs without weights, gates of outputs; experts in a space of
     * their own, with norms on both sides of each; residuals that gates weigh value by value. */
    {
        .name = "muse_spark_text",
        .also = "muse_spark",
        .constants = SETTINGS(
            SIGMOIDS, SET(norm_topk, true), SET(topk_eps, 1e-15), SET(qk_norm, MOE_QK_NORM_PLAIN),
            SET(out_norm, true), SET(attn_gate, true), SET(rope_in_windows, true),
            SET(norm_place, MOE_NORM_BOTH), SET(embed_norm, true), SET(residual, MOE_RESIDUAL_KEPT),
            SET(weighed_outputs, true), SET(narrow_start_norm, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"residual_gate_temperature", "0.3"}),
               .settings = SETTINGS(CONTEXT(1048576), SET(norm_eps, 1e-5), SET(n_kv_heads, 16),
                                    KEY("head_dim", head_dim, 64), DENSE_FF, LOCAL_EXPERTS(256),
                                    TOP_K(8), KEY("moe_intermediate_size", expert_ff, 4096),
                                    KEY("moe_hidden_size", expert_dim, 4096),
                                    KEY("routed_scaling_factor", routed_scale, 1),
                                    KEY("post_norm_eps", end_eps, 1e-8),
                                    KEY("qk_scale_factor", attn_scale, 5.4730064863875),
                                    KEY("output_multiplier", logit_scale, 0.1767766952966369),
                                    KEY("output_multiplier", score_scale, 0.1767766952966369),
                                    KEY("final_logit_softcapping", logit_cap, 20)),
               .rope_theta = 5e5,
               .windows = {MOE_WINDOW_ALL, 2048, .listed = true},
               .in_text_config = true,
               .own = family_muse_spark_hf},
        .tensors[MOE_NAMING_HF].names = {&muse_spark_names},
    },
    /* Step-3.5-Flash, and the text part of Step-3.7: local and global layers with heads of
     * different numbers and rotations, gates by head, limits of activations in the last layers,
     * DeepSeek-V3's router without groups. A function, because settings are lists by layer. */
    {
        .name = "step3p5",
        .also = "step3p7",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(qk_norm, MOE_QK_NORM_HEAD),
                              SET(attn_gate, true), SET(gate_by_head, true),
                              SET(expert_act, MOE_ACT_SWIGLU_CLIPPED),
                              SET(dense_act, MOE_ACT_SWIGLU_CLIPPED)),
        .hf = {.only = ONLY({"norm_expert_weight", "true"}, {"use_head_wise_attn_gate", "true"},
                            {"moe_router_activation", "sigmoid"}, {"use_moe_router_bias", "true"},
                            {"mlp_bias", "false"}, {"moe_every_n_layer", "1"}),
               .settings = SETTINGS(CONTEXT(128000), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    SET(head_dim, 128), KEY("num_attention_groups", n_kv_heads, 0),
                                    KEY("intermediate_size", dense_ff, 11264),
                                    KEY("n_routed_experts", n_experts, 288),
                                    KEY("moe_num_experts", n_experts, 0), TOP_K(8),
                                    KEY("moe_top_k", top_k, 0),
                                    KEY("moe_intermediate_size", expert_ff, 1280),
                                    KEY("moe_router_scaling_factor", routed_scale, 1),
                                    ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .rope_of = "full_attention",
               .partial_rotary = 1,
               .in_text_config = true,
               .own = family_step3p5_hf},
        .gguf = {.arch = "step35",
                 .sigmoid = true,
                 .settings =
                     SETTINGS(NEED("attention.sliding_window", window), GGUF_NORM_TOPK(false)),
                 .by_layer = {"attention.head_count", "attention.head_count_kv"},
                 .own = family_step3p5_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&step3p5_names, &head_gate_names},
                    [MOE_NAMING_GGUF].names = {&afmoe_gguf_names}},
    },
    /* Mellum 2: Qwen3-MoE with local and global layers, which rotate differently. */
    {
        .name = "mellum",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.settings =
                   SETTINGS(CONTEXT(131072), SET(n_kv_heads, 4), SET(head_dim, 128),
                            KEY("intermediate_size", dense_ff, 7168), LOCAL_EXPERTS(64), EXPERTS(0),
                            TOP_K(8), KEY("moe_intermediate_size", expert_ff, 896),
                            KEY("norm_topk_prob", norm_topk, true), ATTENTION_BIAS(false)),
               .rope_theta = 5e5,
               .rope_of = "full_attention",
               .expert_layers = MOE_LAYERS_AFTER,
               .windows = {MOE_WINDOW_ALL, 1024, .listed = true},
               .own = family_two_rotations_hf},
        .gguf = {.arch = "mellum",
                 .settings =
                     SETTINGS(KEY("attention.sliding_window", window, 0), GGUF_NORM_TOPK(true)),
                 .own = family_two_kinds_gguf},
    },
    /* Maple: Qwen3-MoE with limits of activations, whose local layers alone rotate. The limit is
     * that of the code published with the model, which config.json does not repeat. */
    {
        .name = "maple",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(norm_topk, true),
                              SET(rope_in_windows, true), SET(act_limit, 7),
                              SET(expert_act, MOE_ACT_SWIGLU_LIMITED)),
        .hf = {.only = ONLY({"hidden_act", "silu"}, {"num_shared_experts", "0"},
                            {"norm_topk_prob", "true"}, {"nope_on_global_attention", "true"}),
               .settings =
                   SETTINGS(NEED("num_experts", n_experts), NEED("num_experts_per_tok", top_k),
                            NEED("moe_intermediate_size", expert_ff)),
               .rope_theta = 1e4,
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_ALL, 0, .listed = true}},
        .gguf = {.arch = "maple",
                 .settings = SETTINGS(NEED("attention.sliding_window", window)),
                 .own = family_maple_gguf},
    },
    /* Laguna: local and global layers with heads of different numbers and rotations, outputs gated
     * by softplus, DeepSeek-V3's router without groups. */
    {
        .name = "laguna",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(qk_norm, MOE_QK_NORM_HEAD),
                              SET(attn_gate, true), SET(gate_softplus, true)),
        .hf = {.only = ONLY({"moe_apply_router_weight_on_input", "false"},
                            {"moe_router_logit_softcapping", "0"}),
               .settings =
                   SETTINGS(CONTEXT(131072), SET(n_kv_heads, 8), SET(head_dim, 128),
                            KEY("intermediate_size", dense_ff, 8192), LOCAL_EXPERTS(0),
                            EXPERTS(256), TOP_K(8), KEY("moe_intermediate_size", expert_ff, 512),
                            KEY("moe_routed_scaling_factor", routed_scale, 1),
                            ATTENTION_BIAS(false)),
               .rope_theta = 5e5,
               .rope_of = "full_attention",
               .partial_rotary = 1,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .windows = {MOE_WINDOW_ALL, 512, .listed = true},
               .own = family_laguna_hf},
        .gguf = {.arch = "laguna",
                 .sigmoid = true,
                 .only = ONLY({"expert_weights_norm", "true"}),
                 .settings = SETTINGS(KEY("attention.sliding_window", window, 0)),
                 .by_layer = {"attention.head_count", "attention.head_count_kv"},
                 .own = family_laguna_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&head_gate_names, &qwen2_moe_names},
                    [MOE_NAMING_GGUF].names = {&afmoe_gguf_names}},
    },
    /* MiMo-V2-Flash: local layers with more key/value heads and attention sinks, values narrower
     * than keys, DeepSeek-V3's router. */
    {
        .name = "mimo_v2_flash",
        .also = "mimo_v2",
        .constants = SETTINGS(SIGMOIDS, SET(attn_sinks, true), SET(sinks_in_windows, true)),
        .hf = {.only = ONLY({"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},
                            {"add_swa_attention_sink_bias", "true"},
                            {"add_full_attention_sink_bias", "false"}),
               .settings = SETTINGS(CONTEXT(262144), SET(norm_eps, 1e-5), SET(n_kv_heads, 4),
                                    SET(head_dim, 192), KEY("layernorm_epsilon", norm_eps, 0),
                                    KEY("intermediate_size", dense_ff, 16384), LOCAL_EXPERTS(0),
                                    ROUTED_EXPERTS(256, 8, 2048, true, 1), GROUPS(1, 1),
                                    KEY("v_head_dim", value_dim, 128),
                                    KEY("attention_bias", qkv_bias, false),
                                    KEY("attention_value_scale", value_scale, 0.707)),
               .rope_theta = 5e6,
               .rope_of = "full_attention",
               .partial_rotary = 0.334,
               .windows = {MOE_WINDOW_ALL, 129, .listed = true},
               .own = family_mimo_v2_hf},
        .gguf = {.arch = "mimo2",
                 .sigmoid = true,
                 .settings =
                     SETTINGS(NEED("attention.sliding_window", window),
                              KEY("attention.value_scale", value_scale, 0), GGUF_NORM_TOPK(true)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_mimo_v2_gguf},
        .tensors[MOE_NAMING_HF] = {.names = {&mimo_v2_names}, .ignored = {"model.mtp.*"}},
    },
    /* SmallThinker, as in the code published with it: routers before attention, experts gated by
     * max(x, 0). A function, because lists say which layers rotate and which see a window. */
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
    /* Llama-4: chunked attention in layers that rotate; the others see everything, with queries
     * scaled by their position; weights multiply the experts' inputs. A function, because the kinds
     * of layers have to be worked out. */
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
    /* EXAONE-MoE (K-EXAONE): DeepSeek-V3's router, global layers without positions. A function,
     * because the kinds of layers have to be worked out. */
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
               .shared_key = "num_shared_experts",
               .n_shared = 1,
               .own = family_exaone_moe_hf},
        .gguf = {.arch = "exaone-moe",
                 .sigmoid = true,
                 .settings = SETTINGS(NEED("attention.sliding_window", window), GGUF_GROUPS,
                                      GGUF_NORM_TOPK(false)),
                 .own = family_exaone_moe_gguf},
        .tensors[MOE_NAMING_HF].names = {&exaone_moe_names},
    },
    /* Command-A with experts: attention and feed-forward share one norm, which subtracts the mean
     * and scales; global layers with experts have no positions. A function, because the kinds of
     * layers, norm and router have to be worked out. */
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
               .shared_key = "num_shared_experts",
               .own = family_cohere2_moe_hf},
        .gguf = {.arch = "cohere2moe",
                 .settings = SETTINGS(NEED("attention.sliding_window", window),
                                      NEED("logit_scale", logit_scale), GGUF_NORM_TOPK(false)),
                 .own = family_cohere2_moe_gguf},
        .tensors = {[MOE_NAMING_HF].paired = true, [MOE_NAMING_GGUF].paired = true},
    },
    /* AFMoE (Trinity): norms before and after blocks, gated attention, global layers without
     * positions, DeepSeek-V3's router without groups. A function, because the kinds of layers have
     * to be worked out. */
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
               .shared_key = "num_shared_experts",
               .n_shared = 2,
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
    /* Beam: norms before and after blocks, a stream that is a mean of their outputs, gates of
     * attention with a bias for each head, layers with a window that rotate and others that scale
     * queries by their position; DeepSeek-V3's router. */
    {
        .name = "beam",
        .constants =
            SETTINGS(SIGMOIDS, SET(norm_place, MOE_NORM_BOTH), SET(qk_norm, MOE_QK_NORM_HEAD),
                     SET(attn_gate, true), SET(gate_bias, true), SET(rope_in_windows, true),
                     SET(residual, MOE_RESIDUAL_MEAN), SET(query_step, 2048), SET(query_scale, 0.1),
                     SET(query_power, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}),
               .settings =
                   SETTINGS(CONTEXT(8192), SET(n_kv_heads, 8), SET(head_dim, 128), DENSE_FF,
                            EXPERTS(256), TOP_K(8), KEY("moe_intermediate_size", expert_ff, 2560),
                            KEY("norm_topk_prob", norm_topk, true),
                            KEY("routed_scaling_factor", routed_scale, 2.5), GROUPS(8, 4),
                            KEY("final_logit_softcapping", logit_cap, 30)),
               .rope_theta = 1e4,
               .rope_of = "sliding_attention",
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 3,
               .windows = {MOE_WINDOW_ALL, 512, .listed = true},
               .own = family_beam_hf},
        .tensors[MOE_NAMING_HF].names = {&beam_names},
    },
    /* Kolibri: norms before and after blocks, windows in four of five layers, which alone rotate;
     * the bias for the choice is added to scores, not to sigmoids. */
    {
        .name = "kolibri1",
        .constants = SETTINGS(SIGMOIDS, SET(choice_of_scores, true), SET(norm_place, MOE_NORM_BOTH),
                              SET(qk_norm, MOE_QK_NORM_HEAD), SET(rope_in_windows, true)),
        .hf = {.settings =
                   SETTINGS(CONTEXT(262144), SET(n_kv_heads, 4), SET(head_dim, 128),
                            LOCAL_EXPERTS(384), EXPERTS(0), TOP_K(6),
                            KEY("moe_intermediate_size", expert_ff, 512),
                            KEY("shared_expert_intermediate_size", shared_ff, 512), NORM_TOPK),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .windows = {MOE_WINDOW_ALL, 513, .listed = true},
               .own = family_kolibri_hf},
        .tensors[MOE_NAMING_HF].names = {&kolibri_names, &kolibri_newer_names},
    },
    /* Gemma-4: norms before and after everything, a dense feed-forward beside the experts, global
     * layers with wider heads whose values are their keys. A function, because the kinds of layers
     * and their rotation have to be worked out. E2B and E4B: embeddings by layer, the last layers
     * see earlier ones' keys. */
    {
        .name = "gemma4",
        .also = "gemma4_text",
        .constants = SETTINGS(SET(norm_place, MOE_NORM_BOTH), SET(qk_norm, MOE_QK_NORM_HEAD),
                              SET(value_norm, true), SET(attn_scale, 1), SET(layer_scale, true),
                              SET(dense_act, MOE_ACT_GEGLU), SET(expert_act, MOE_ACT_GEGLU),
                              SET(norm_topk, true), SET(tied_head, true)),
        .hf = {.only = ONLY({"hidden_activation", "gelu_pytorch_tanh"},
                            {"use_bidirectional_attention", "vision"}),
               .settings = SETTINGS(CONTEXT(131072), SET(n_kv_heads, 4), SET(head_dim, 256),
                                    DENSE_FF, EXPERTS(0), KEY("top_k_experts", top_k, 0),
                                    KEY("moe_intermediate_size", expert_ff, 0),
                                    KEY("global_head_dim", global_head_dim, 0),
                                    KEY("num_global_key_value_heads", global_kv_heads, 0),
                                    KEY("attention_k_eq_v", global_keys_are_values, false),
                                    KEY("final_logit_softcapping", logit_cap, 0),
                                    KEY("hidden_size_per_layer_input", layer_embed, 256),
                                    ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .rope_of = "sliding_attention",
               .windows = {MOE_WINDOW_ALL, 512, .listed = true},
               .in_text_config = true,
               .own = family_gemma4_hf},
        .gguf = {.arch = "gemma4",
                 .settings = SETTINGS(NEED("attention.sliding_window", window),
                                      KEY("final_logit_softcapping", logit_cap, 0),
                                      KEY("embedding_length_per_layer_input", layer_embed, 0)),
                 .by_layer = {"attention.head_count_kv", "feed_forward_length"},
                 .own = family_gemma4_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&gemma4_names, &gemma4_dense_names},
                    [MOE_NAMING_GGUF].names = {&gemma4_gguf_names}},
    },
    {.name = NULL},
};

/* Families with an encoder, or whose prompt sees the whole prompt. */

/* Switch Transformers: the sublayers of a block are numbered; a decoder's block has one more. */
#define STACK_NAMES(stack, ffn)                                                                    \
    [MOE_T_ATTN_NORM] = MOE_ALL(stack "0.layer_norm.weight"),                                      \
    [MOE_T_Q] = MOE_ALL(stack "0.SelfAttention.q.weight"),                                         \
    [MOE_T_K] = MOE_ALL(stack "0.SelfAttention.k.weight"),                                         \
    [MOE_T_V] = MOE_ALL(stack "0.SelfAttention.v.weight"),                                         \
    [MOE_T_O] = MOE_ALL(stack "0.SelfAttention.o.weight"),                                         \
    [MOE_T_POSITION_BIAS] =                                                                        \
        MOE_PART(stack "0.SelfAttention.relative_attention_bias.weight", BUCKETS),                 \
    [MOE_T_FFN_NORM] = MOE_ALL(ffn "layer_norm.weight"),                                           \
    [MOE_T_UP] = MOE_ALL(ffn "mlp.wi.weight"), [MOE_T_DOWN] = MOE_ALL(ffn "mlp.wo.weight"),        \
    [MOE_T_ROUTER] = MOE_ALL(ffn "mlp.router.classifier.weight"),                                  \
    [MOE_T_ROUTER_BIAS] = MOE_ALL(ffn "mlp.router.classifier.bias"),                               \
    [MOE_T_ROUTES] = MOE_PART(ffn "mlp.routes", ROUTES)
#define STACK_EXPERTS(ffn)                                                                         \
    [MOE_E_UP] = MOE_ALL(ffn "mlp.experts.expert_%u.wi.weight"),                                   \
    [MOE_E_DOWN] = MOE_ALL(ffn "mlp.experts.expert_%u.wo.weight")
#define ENCODER "encoder.block.%u.layer."
#define DECODER "decoder.block.%u.layer."

static const struct moe_source_names switch_encoder_names = {
    .dense = {STACK_NAMES(ENCODER, ENCODER "1.")},
    .expert = {STACK_EXPERTS(ENCODER "1.")},
};
static const struct moe_source_names switch_names = {
    .dense = {STACK_NAMES(DECODER, DECODER "2."), [MOE_T_EMBED] = MOE_ALL("shared.weight"),
              [MOE_T_ENCODER_NORM] = MOE_ALL("encoder.final_layer_norm.weight"),
              [MOE_T_FINAL_NORM] = MOE_ALL("decoder.final_layer_norm.weight"),
              [MOE_T_CROSS_NORM] = MOE_ALL(DECODER "1.layer_norm.weight"),
              [MOE_T_CROSS_Q] = MOE_ALL(DECODER "1.EncDecAttention.q.weight"),
              [MOE_T_CROSS_K] = MOE_ALL(DECODER "1.EncDecAttention.k.weight"),
              [MOE_T_CROSS_V] = MOE_ALL(DECODER "1.EncDecAttention.v.weight"),
              [MOE_T_CROSS_O] = MOE_ALL(DECODER "1.EncDecAttention.o.weight")},
    .expert = {STACK_EXPERTS(DECODER "2.")},
};

/* GPTSAN */
#define BLOCK "model.blocks.%u."
static const struct moe_source_names gptsan_names = {
    .dense = {[MOE_T_POSITIONS] = MOE_ALL("model.position_embeddings.weight"),
              [MOE_T_EXTRA_POSITIONS] = MOE_ALL("model.extra_position_embeddings.weight"),
              [MOE_T_LAST_PROJECTION] = MOE_ALL("model.last_project.weight"),
              [MOE_T_LAST_PROJECTION_BIAS] = MOE_ALL("model.last_project.bias"),
              [MOE_T_HEAD_BIAS] = MOE_PART("final_logits_bias", ROW),
              [MOE_T_ATTN_NORM] = MOE_ALL(BLOCK "self_attn.norm.weight"),
              [MOE_T_ATTN_NORM_BIAS] = MOE_ALL(BLOCK "self_attn.norm.bias"),
              [MOE_T_Q] = MOE_ALL(BLOCK "self_attn.self_attn.q_proj.weight"),
              [MOE_T_K] = MOE_ALL(BLOCK "self_attn.self_attn.k_proj.weight"),
              [MOE_T_V] = MOE_ALL(BLOCK "self_attn.self_attn.v_proj.weight"),
              [MOE_T_O] = MOE_ALL(BLOCK "self_attn.self_attn.out_proj.weight"),
              [MOE_T_FFN_NORM] = MOE_ALL(BLOCK "feed_forward.norm.weight"),
              [MOE_T_FFN_NORM_BIAS] = MOE_ALL(BLOCK "feed_forward.norm.bias"),
              [MOE_T_UP] = MOE_ALL(BLOCK "feed_forward.mlp.wi.weight"),
              [MOE_T_DOWN] = MOE_ALL(BLOCK "feed_forward.mlp.wo.weight"),
              [MOE_T_UP_BIAS] = MOE_ALL(BLOCK "feed_forward.mlp.wi.bias"),
              [MOE_T_DOWN_BIAS] = MOE_ALL(BLOCK "feed_forward.mlp.wo.bias"),
              [MOE_T_ROUTER] = MOE_ALL(BLOCK "feed_forward.mlp.router.classifier.weight"),
              [MOE_T_ROUTER_BIAS] = MOE_ALL(BLOCK "feed_forward.mlp.router.classifier.bias"),
              [MOE_T_BYPASS] = MOE_ALL(BLOCK "feed_forward.soft_bypass_mlp.weight")},
    .expert = {STACK_EXPERTS(BLOCK "feed_forward.")},
};

/* NLLB-MoE: attention and feed-forwards of both stacks; a decoder also attends to the source. */
#define NLLB_ENCODER "model.encoder.layers.%u."
#define NLLB_DECODER "model.decoder.layers.%u."
#define BOTH(role, name)                                                                           \
    [MOE_T_##role] = MOE_ALL(name ".weight"), [MOE_T_##role##_BIAS] = MOE_ALL(name ".bias")
#define NLLB_STACK(stack)                                                                          \
    BOTH(ATTN_NORM, stack "self_attn_layer_norm"), BOTH(Q, stack "self_attn.q_proj"),              \
        BOTH(K, stack "self_attn.k_proj"), BOTH(V, stack "self_attn.v_proj"),                      \
        BOTH(O, stack "self_attn.out_proj"), BOTH(FFN_NORM, stack "ff_layer_norm"),                \
        BOTH(UP, stack "ffn.fc1"), BOTH(DOWN, stack "ffn.fc2"),                                    \
        BOTH(ROUTER, stack "ffn.router.classifier")
#define NLLB_EXPERTS(stack)                                                                        \
    [MOE_E_UP] = MOE_ALL(stack "ffn.experts.expert_%u.fc1.weight"),                                \
    [MOE_E_DOWN] = MOE_ALL(stack "ffn.experts.expert_%u.fc2.weight"),                              \
    [MOE_E_UP_BIAS] = MOE_ALL(stack "ffn.experts.expert_%u.fc1.bias"),                             \
    [MOE_E_DOWN_BIAS] = MOE_ALL(stack "ffn.experts.expert_%u.fc2.bias")
static const struct moe_source_names nllb_encoder_names = {
    .dense = {NLLB_STACK(NLLB_ENCODER)},
    .expert = {NLLB_EXPERTS(NLLB_ENCODER)},
};
static const struct moe_source_names nllb_names = {
    .dense = {NLLB_STACK(NLLB_DECODER), [MOE_T_EMBED] = MOE_ALL("model.shared.weight"),
              BOTH(ENCODER_NORM, "model.encoder.layer_norm"),
              BOTH(FINAL_NORM, "model.decoder.layer_norm"),
              BOTH(CROSS_NORM, NLLB_DECODER "cross_attention_layer_norm"),
              BOTH(CROSS_Q, NLLB_DECODER "cross_attention.q_proj"),
              BOTH(CROSS_K, NLLB_DECODER "cross_attention.k_proj"),
              BOTH(CROSS_V, NLLB_DECODER "cross_attention.v_proj"),
              BOTH(CROSS_O, NLLB_DECODER "cross_attention.out_proj")},
    .expert = {NLLB_EXPERTS(NLLB_DECODER)},
};

static const struct moe_family stacks_families[] = {
    /* Switch Transformers: base-8 to base-256, large-128, xxl-128. T5's stacks with one expert per
     * row. Padding tokens are never computed here, so the key that ignores them has no effect;
     * gated feed-forwards were never published. */
    {
        .name = "switch_transformers",
        .constants = SETTINGS(SET(positions, MOE_POSITIONS_BUCKETS), SET(dense_act, MOE_ACT_RELU),
                              SET(expert_act, MOE_ACT_RELU), SET(attn_scale, 1), SET(top_k, 1)),
        .hf = {.own_keys = true,
               .only = ONLY({"dense_act_fn", "relu"}, {"feed_forward_proj", "relu"},
                            {"is_gated_act", "false"}, {"is_encoder_decoder", "true"},
                            {"router_dtype", "float32"}, {"router_type", "tokens_masked"},
                            {"batch_prioritized_routing", "false"}),
               .settings = SETTINGS(
                   CONTEXT(512), KEY("n_positions", context_max, 0), NEED("num_layers", n_encoder),
                   NEED("d_model", hidden), NEED("vocab_size", vocab), NEED("num_heads", n_heads),
                   KEY("d_kv", head_dim, 64), NEED("d_ff", dense_ff), NEED("d_ff", expert_ff),
                   EXPERTS(8), USE("expert_capacity", expert_capacity, 64, MOE_NOT_ZERO),
                   KEY("router_bias", router_bias, false), KEY("layer_norm_epsilon", norm_eps, 0),
                   KEY("relative_attention_num_buckets", n_buckets, 32),
                   KEY("relative_attention_max_distance", bucket_distance, 128),
                   KEY("tie_word_embeddings", tied_head, true)),
               .own = family_switch_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&switch_names},
                                   .others = &switch_encoder_names,
                                   .copies = {"encoder.embed_tokens.weight",
                                              "decoder.embed_tokens.weight"}},
    },
    /* GPTSAN: a prefix LM with norms after attention and feed-forward; MoE layers with one expert
     * per row and a bypass, then perhaps dense layers with positions of their own. Its "spout", a
     * vector given beside the text, is not implemented. */
    {
        .name = "gptsan-japanese",
        .also = "gptsan_japanese",
        .constants =
            SETTINGS(SET(positions, MOE_POSITIONS_LEARNT), SET(norm_kind, MOE_NORM_LAYER),
                     SET(norm_place, MOE_NORM_AFTER), SET(prefix_lm, true),
                     SET(last_projection, true), SET(tied_head, true), SET(head_bias, true),
                     SET(dense_act, MOE_ACT_SILU), SET(expert_act, MOE_ACT_RELU),
                     SET(overflow_passes, true), SET(soft_bypass, true), SET(top_k, 1)),
        .hf = {.own_keys = true,
               .only = ONLY({"router_dtype", "float32"}, {"tie_word_embeddings", "true"},
                            {"torchscript", "false"}),
               .settings =
                   SETTINGS(KEY("max_position_embeddings", context_max, 1280),
                            NEED("num_switch_layers", n_layers), NEED("d_model", hidden),
                            NEED("vocab_size", vocab), NEED("num_heads", n_heads),
                            NEED("d_ff", expert_ff), KEY("d_ext", dense_ff, 4096), EXPERTS(16),
                            USE("expert_capacity", expert_capacity, 128, MOE_NOT_ZERO),
                            KEY("router_bias", router_bias, false),
                            KEY("layer_norm_epsilon", norm_eps, 1e-5)),
               .own = family_gptsan_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&gptsan_names}, .ignored = {"model.spout.*"}},
    },
    /* NLLB-MoE: a Transformer with layer norms, biases and sinusoids for positions, in whose every
     * fourth layer a row has two experts. Of what they put out a fifth was left out in training,
     * and all of it counts that much less here. */
    {
        .name = "nllb-moe",
        .also = "nllb_moe",
        .constants = SETTINGS(SET(positions, MOE_POSITIONS_SINUSOIDS),
                              SET(norm_kind, MOE_NORM_LAYER), SET(norm_eps, 1e-5),
                              SET(qkv_bias, true), SET(o_bias, true), SET(dense_act, MOE_ACT_RELU),
                              SET(dense_bias, true), SET(expert_act, MOE_ACT_RELU),
                              SET(expert_bias, true), SET(top_k, 2), SET(norm_topk, true)),
        .hf = {.own_keys = true,
               .only = ONLY({"activation_function", "relu"}, {"is_encoder_decoder", "true"},
                            {"router_dtype", "float32"}, {"second_expert_policy", "all"},
                            {"moe_eval_capacity_token_fraction", "1"}),
               .settings = SETTINGS(
                   KEY("max_position_embeddings", context_max, 1024),
                   KEY("encoder_layers", n_encoder, 12), KEY("d_model", hidden, 1024),
                   KEY("vocab_size", vocab, 128112), KEY("encoder_attention_heads", n_heads, 16),
                   KEY("encoder_ffn_dim", dense_ff, 4096), KEY("encoder_ffn_dim", expert_ff, 4096),
                   EXPERTS(128), KEY("router_bias", router_bias, false),
                   KEY("tie_word_embeddings", tied_head, true)),
               .own = family_nllb_hf},
        .tensors[MOE_NAMING_HF] =
            {.names = {&nllb_names},
             .others = &nllb_encoder_names,
             .bare = true,
             .copies = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight",
                        "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"},
             .ignored = {"model.encoder.embed_positions.*", "model.decoder.embed_positions.*",
                         "encoder.embed_positions.*", "decoder.embed_positions.*"}},
    },
    {.name = NULL},
};

/* Families with a recurrent state in most layers. */

#define B "blk.%u."

/* Norms of the stream, of queries and of keys are stored minus 1. */
static const struct moe_source_names qwen3_next_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              W_LESS_ONE(ATTN_NORM, "input_layernorm"),
              W_LESS_ONE(FFN_NORM, "post_attention_layernorm"),
              WP(Q, "self_attn.q_proj", HEAD_QUERY),
              W_LESS_ONE(Q_NORM, "self_attn.q_norm"),
              W_LESS_ONE(K_NORM, "self_attn.k_norm"),
              [MOE_T_AHEAD_TOKEN_NORM] = MOE_PLUS_ONE("mtp.pre_fc_norm_embedding.weight"),
              [MOE_T_AHEAD_STATE_NORM] = MOE_PLUS_ONE("mtp.pre_fc_norm_hidden.weight"),
              [MOE_T_AHEAD_JOIN] = MOE_ALL("mtp.fc.weight"),
              [MOE_T_AHEAD_NORM] = MOE_PLUS_ONE("mtp.norm.weight")},
};

static const struct moe_source_names qwen4_names = {
    .dense = {WP(INDEX_Q, "self_attn.indexer.index_qk_proj", ATTENTION),
              WP(INDEX_K, "self_attn.indexer.index_qk_proj", ATTENTION),
              W_LESS_ONE(INDEX_HEAD_NORM, "self_attn.indexer.q_layernorm"),
              W_LESS_ONE(INDEX_K_NORM, "self_attn.indexer.k_layernorm")},
};

/* llama.cpp stores norms plus 1, and tensors with several parts reordered, except queries with
 * their output gates. */
static const struct moe_source_names qwen3_next_gguf_names = {
    .dense = {GWP(Q, "attn_q", HEAD_QUERY), GWP(ATTN_GATE, "attn_q", HEAD_GATE)},
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
              W(ATTN_NORM, "operator_norm"),
              W(FFN_NORM, "ffn_norm"),
              W(Q_NORM, "self_attn.q_layernorm"),
              W(K_NORM, "self_attn.k_layernorm"),
              W(O, "self_attn.out_proj"),
              WP(STATE_SCALE, "conv.in_proj", THIRD),
              WP(STATE_Z, "conv.in_proj", THIRD),
              WP(STATE_V, "conv.in_proj", THIRD),
              WP(STATE_CONV, "conv.conv", CONV),
              W(STATE_O, "conv.out_proj"),
              W(GATE, "feed_forward.w1"),
              W(UP, "feed_forward.w3"),
              W(DOWN, "feed_forward.w2"),
              W(ROUTER, "feed_forward.gate"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "feed_forward.expert_bias")},
    .expert = {EW(GATE, "feed_forward.experts.%u.w1"), EW(UP, "feed_forward.experts.%u.w3"),
               EW(DOWN, "feed_forward.experts.%u.w2")},
};

static const struct moe_source_names kimi_linear_names = {
    .dense = {W(STATE_Q, "self_attn.q_proj"),
              W(STATE_K, "self_attn.k_proj"),
              W(STATE_V, "self_attn.v_proj"),
              WP(STATE_CONV_Q, "self_attn.q_conv1d", CONV),
              WP(STATE_CONV_K, "self_attn.k_conv1d", CONV),
              WP(STATE_CONV, "self_attn.v_conv1d", CONV),
              W(STATE_BETA, "self_attn.b_proj"),
              W(STATE_DECAY_DOWN, "self_attn.f_a_proj"),
              W(STATE_DECAY, "self_attn.f_b_proj"),
              [MOE_T_STATE_STEP] = MOE_ALL(L "self_attn.dt_bias"),
              [MOE_T_STATE_RATE] = MOE_ALL(L "self_attn.A_log"),
              W(STATE_Z_DOWN, "self_attn.g_a_proj"),
              W(STATE_Z, "self_attn.g_b_proj"),
              W(STATE_NORM, "self_attn.o_norm"),
              W(STATE_O, "self_attn.o_proj"),
              W(GATE, "mlp.gate_proj"),
              W(UP, "mlp.up_proj"),
              W(DOWN, "mlp.down_proj"),
              W(ROUTER, "block_sparse_moe.gate"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "block_sparse_moe.gate.e_score_correction_bias"),
              W(SHARED_GATE_PROJ, "block_sparse_moe.shared_experts.gate_proj"),
              W(SHARED_UP, "block_sparse_moe.shared_experts.up_proj"),
              W(SHARED_DOWN, "block_sparse_moe.shared_experts.down_proj")},
    .expert = {EW(GATE, "block_sparse_moe.experts.%u.w1"), EW(UP, "block_sparse_moe.experts.%u.w3"),
               EW(DOWN, "block_sparse_moe.experts.%u.w2")},
};

/* Kimi-K3's beside Kimi-Linear's. */
static const struct moe_source_names kimi_k3_names = {
    .dense = {W(ATTN_GATE, "self_attn.g_proj"), W(STATE_Z, "self_attn.g_proj"),
              W(EXPERTS_IN, "block_sparse_moe.routed_expert_down_proj"),
              W(EXPERTS_NORM, "block_sparse_moe.routed_expert_norm"),
              W(EXPERTS_OUT, "block_sparse_moe.routed_expert_up_proj")},
};
static const struct moe_source_names kimi_k3_gguf_names = {
    .dense = {GW(ATTN_GATE, "attn_gate"), GW(STATE_Z, "ssm_g")},
};

/* GLM-5.3's beside Kimi-Linear's. */
static const struct moe_source_names glm5_next_names = {
    .dense = {[MOE_T_ATTN_MIX] = MOE_ALL(L "hc_attn_fn"),
              [MOE_T_ATTN_MIX_BIAS] = MOE_ALL(L "hc_attn_base"),
              [MOE_T_ATTN_MIX_SCALE] = MOE_ALL(L "hc_attn_scale"),
              [MOE_T_FFN_MIX] = MOE_ALL(L "hc_ffn_fn"),
              [MOE_T_FFN_MIX_BIAS] = MOE_ALL(L "hc_ffn_base"),
              [MOE_T_FFN_MIX_SCALE] = MOE_ALL(L "hc_ffn_scale"),
              [MOE_T_INDEX_GATE] = MOE_ALL(L "self_attn.indexer.index_kpool_compress_gate"),
              [MOE_T_INDEX_BIAS] =
                  MOE_PART(L "self_attn.indexer.index_kpool_compress_ape", PLACES)},
};

/* As transformers saves dense layers: under the names of layers with experts. */
static const struct moe_source_names kimi_linear_saved_names = {
    .dense = {W(GATE, "block_sparse_moe.gate_proj"), W(UP, "block_sparse_moe.up_proj"),
              W(DOWN, "block_sparse_moe.down_proj")},
};

static const struct moe_source_names jamba_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_ALL("model.final_layernorm.weight"),
              W(FFN_NORM, "pre_ff_layernorm"),
              WP(STATE_V, "mamba.in_proj", FIRST_HALF),
              WP(STATE_Z, "mamba.in_proj", SECOND_HALF),
              WP(STATE_DECAY_DOWN, "mamba.x_proj", STATE_ROWS),
              WP(STATE_K, "mamba.x_proj", STATE_ROWS),
              WP(STATE_Q, "mamba.x_proj", STATE_ROWS),
              W(STATE_DECAY_NORM, "mamba.dt_layernorm"),
              W(STATE_K_NORM, "mamba.b_layernorm"),
              W(STATE_Q_NORM, "mamba.c_layernorm"),
              W(STATE_DECAY, "mamba.dt_proj"),
              [MOE_T_STATE_STEP] = MOE_ALL(L "mamba.dt_proj.bias"),
              [MOE_T_STATE_RATE] = MOE_PART(L "mamba.A_log", TURNED),
              [MOE_T_STATE_SKIP] = MOE_ALL(L "mamba.D"),
              WP(STATE_CONV, "mamba.conv1d", CONV),
              [MOE_T_STATE_CONV_BIAS] = MOE_ALL(L "mamba.conv1d.bias"),
              W(STATE_O, "mamba.out_proj"),
              W(GATE, "feed_forward.gate_proj"),
              W(UP, "feed_forward.up_proj"),
              W(DOWN, "feed_forward.down_proj"),
              W(ROUTER, "feed_forward.router")},
    .expert = {EW(GATE, "feed_forward.experts.%u.gate_proj"),
               EW(UP, "feed_forward.experts.%u.up_proj"),
               EW(DOWN, "feed_forward.experts.%u.down_proj")},
};

/* Of a head, queries, keys and values. */
static const struct moe_source_names minimax_01_names = {
    .dense = {WP(STATE_Q, "self_attn.qkv_proj", STATE_HEADS),
              WP(STATE_K, "self_attn.qkv_proj", STATE_HEADS),
              WP(STATE_V, "self_attn.qkv_proj", STATE_HEADS), W(STATE_Z, "self_attn.output_gate"),
              W(STATE_NORM, "self_attn.norm"), W(STATE_O, "self_attn.out_proj")},
};
static const struct moe_source_names minimax_01_gguf_names = {
    .dense = {GWP(STATE_Q, "attn_qkv", STATE_HEADS), GWP(STATE_K, "attn_qkv", STATE_HEADS),
              GWP(STATE_V, "attn_qkv", STATE_HEADS), GW(STATE_NORM, "attn_norm_2"),
              GW(STATE_O, "attn_output")},
};

#define N "backbone.layers.%u."
/* Each layer has one norm and one "mixer". */
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
         [MOE_T_EXPERTS_IN] = MOE_ALL(N "mixer.fc1_latent_proj.weight"),
         [MOE_T_EXPERTS_OUT] = MOE_ALL(N "mixer.fc2_latent_proj.weight"),
         [MOE_T_SHARED_UP] = MOE_ALL(N "mixer.shared_experts.up_proj.weight"),
         [MOE_T_SHARED_DOWN] = MOE_ALL(N "mixer.shared_experts.down_proj.weight")},
    .expert = {[MOE_E_UP] = MOE_ALL(N "mixer.experts.%u.up_proj.weight"),
               [MOE_E_DOWN] = MOE_ALL(N "mixer.experts.%u.down_proj.weight")},
};
#undef N

#define LARA_STATE MOE_PART(L "linear_attn.in_proj.weight", STATE_ALL)
static const struct moe_source_names lara_names = {
    .dense = {[MOE_T_STATE_Q] = LARA_STATE,
              [MOE_T_STATE_K] = LARA_STATE,
              [MOE_T_STATE_V] = LARA_STATE,
              [MOE_T_STATE_Z] = LARA_STATE,
              [MOE_T_STATE_BETA] = LARA_STATE,
              [MOE_T_STATE_DECAY] = LARA_STATE,
              W(STATE_NORM, "linear_attn.out_norm"),
              W(SHARED_GATE_PROJ, "mlp.shared_expert.gate_proj"),
              W(SHARED_UP, "mlp.shared_expert.up_proj"),
              W(SHARED_DOWN, "mlp.shared_expert.down_proj")},
};

/* GGUF names; the rest have the usual ones (tensor_roles.c). */
static const struct moe_source_names lfm2_moe_gguf_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_ALL("token_embd_norm.weight"),
              GWP(STATE_SCALE, "shortconv.in_proj", THIRD),
              GWP(STATE_Z, "shortconv.in_proj", THIRD),
              GWP(STATE_V, "shortconv.in_proj", THIRD),
              GWP(STATE_CONV, "shortconv.conv", CONV),
              GW(STATE_O, "shortconv.out_proj")},
};

/* KDA layers; attention layers share some of these names. */
static const struct moe_source_names kimi_linear_gguf_names = {
    .dense = {GW(STATE_Q, "attn_q"), GW(STATE_K, "attn_k"), GW(STATE_V, "attn_v"),
              GWP(STATE_CONV_Q, "ssm_conv1d_q", CONV), GWP(STATE_CONV_K, "ssm_conv1d_k", CONV),
              GWP(STATE_CONV, "ssm_conv1d_v", CONV), GW(STATE_DECAY_DOWN, "ssm_f_a"),
              GW(STATE_DECAY, "ssm_f_b"), GW(STATE_Z_DOWN, "ssm_g_a"), GW(STATE_Z, "ssm_g_b"),
              GW(STATE_O, "attn_output")},
};

/* Ling-3's: everything of attention and of states is "attention". */
static const struct moe_source_names ling3_names = {
    .dense = {[MOE_T_EMBED] = MOE_ALL("model.word_embeddings.weight"),
              W(Q, "attention.q_proj"),
              W(Q_DOWN, "attention.q_a_proj"),
              W(Q_DOWN_NORM, "attention.q_a_layernorm"),
              W(KV_DOWN, "attention.kv_a_proj_with_mqa"),
              W(KV_DOWN_NORM, "attention.kv_a_layernorm"),
              WP(K_UP, "attention.kv_b_proj", KEYS),
              WP(V_UP, "attention.kv_b_proj", VALUES),
              W(ATTN_GATE, "attention.g_proj"),
              W(O, "attention.dense"),
              W(STATE_Q, "attention.q_proj"),
              W(STATE_K, "attention.k_proj"),
              W(STATE_V, "attention.v_proj"),
              WP(STATE_CONV_Q, "attention.q_conv1d", CONV),
              WP(STATE_CONV_K, "attention.k_conv1d", CONV),
              WP(STATE_CONV, "attention.v_conv1d", CONV),
              W(STATE_BETA, "attention.b_proj"),
              W(STATE_DECAY, "attention.f_proj"),
              [MOE_T_STATE_STEP] = MOE_ALL(L "attention.dt_bias"),
              [MOE_T_STATE_RATE] = MOE_ALL(L "attention.A_log"),
              W(STATE_Z, "attention.g_proj"),
              W(STATE_NORM, "attention.o_norm"),
              W(STATE_O, "attention.dense"),
              [MOE_T_CHOICE_BIAS] = MOE_ALL(L "mlp.gate.expert_bias")},
};
static const struct moe_source_names ling3_low_names = {
    .dense = {W(Q, "attention.q_b_proj"), W(O, "attention.o_proj"), W(STATE_O, "attention.o_proj")},
};
static const struct moe_source_names ling3_gguf_names = {
    .dense = {GW(ATTN_GATE, "attn_gate"),
              GW(STATE_DECAY, "ssm_f_a"), [MOE_T_STATE_RATE] = MOE_EXP(B "ssm_a"),
              GW(STATE_Z, "ssm_g_a")},
};

/* Rates of the one head, by value. */
static const struct moe_source_names jamba_gguf_names = {
    .dense = {GWP(STATE_V, "ssm_in", FIRST_HALF), GWP(STATE_Z, "ssm_in", SECOND_HALF),
              GWP(STATE_DECAY_DOWN, "ssm_x", STATE_ROWS), GWP(STATE_K, "ssm_x", STATE_ROWS),
              GWP(STATE_Q, "ssm_x", STATE_ROWS), GW(STATE_DECAY_NORM, "ssm_dt_norm"),
              GW(STATE_K_NORM, "ssm_b_norm"), GW(STATE_Q_NORM, "ssm_c_norm"),
              GW(STATE_DECAY, "ssm_dt"), [MOE_T_STATE_RATE] = MOE_NEGATIVE_EXP(B "ssm_a", TURNED)},
};

static const struct moe_source_names nemotron_h_gguf_names = {
    .dense = {GW(FFN_NORM, "attn_norm")},
};

/* ZAYA: convolutions of queries and keys, routers of several layers, weighed residuals. */
static const struct moe_source_names zaya_names = {
    .dense = {[MOE_T_EMBED_WEIGHT] = MOE_ALL("model.input_hidden_states_scale"),
              [MOE_T_EMBED_BIAS] = MOE_ALL("model.input_hidden_states_bias"),
              W(Q, "self_attn.qkv_proj.q_proj"),
              W(K, "self_attn.qkv_proj.k_proj"),
              W(V, "self_attn.qkv_proj.v_proj_current"),
              W(V_LATE, "self_attn.qkv_proj.v_proj_delayed"),
              WP(HEAD_CONV, "self_attn.qkv_proj.conv_qk_depthwise", CONV),
              V(HEAD_CONV_BIAS, "self_attn.qkv_proj.conv_qk_depthwise.bias"),
              WP(HEAD_MIX, "self_attn.qkv_proj.conv_qk_grouped", TAPS),
              V(HEAD_MIX_BIAS, "self_attn.qkv_proj.conv_qk_grouped.bias"),
              V(KEY_SCALE, "self_attn.qk_norm.temp"),
              V(ATTN_KEEP, "post_attention_residual_scale.residual_scale"),
              V(ATTN_KEEP_BIAS, "post_attention_residual_scale.residual_bias"),
              V(ATTN_WEIGHT, "post_attention_residual_scale.hidden_states_scale"),
              V(ATTN_WEIGHT_BIAS, "post_attention_residual_scale.hidden_states_bias"),
              V(FFN_KEEP, "post_mlp_residual_scale.residual_scale"),
              V(FFN_KEEP_BIAS, "post_mlp_residual_scale.residual_bias"),
              V(FFN_WEIGHT, "post_mlp_residual_scale.hidden_states_scale"),
              V(FFN_WEIGHT_BIAS, "post_mlp_residual_scale.hidden_states_bias"),
              W(ROUTER_DOWN, "mlp.gate.down_proj"),
              V(ROUTER_DOWN_BIAS, "mlp.gate.down_proj.bias"),
              V(ROUTER_KEEP, "mlp.gate.router_states_scale"),
              W(ROUTER_DOWN_NORM, "mlp.gate.router_mlp.norm"),
              W(ROUTER_FIRST, "mlp.gate.router_mlp.fc1"),
              V(ROUTER_FIRST_BIAS, "mlp.gate.router_mlp.fc1.bias"),
              W(ROUTER_SECOND, "mlp.gate.router_mlp.fc2"),
              V(ROUTER_SECOND_BIAS, "mlp.gate.router_mlp.fc2.bias"),
              W(ROUTER, "mlp.gate.router_mlp.out_proj"),
              V(CHOICE_BIAS, "mlp.gate.balancing_biases")},
};

/* Inkling, as transformers saves it and as published. */
static const struct moe_source_names inkling_names = {
    .dense = {[MOE_T_EMBED] = MOE_PART("model.embed_tokens.weight", FIRST),
              [MOE_T_EMBED_WEIGHT] = MOE_ALL("model.embed_tokens.embed_norm.weight"),
              [MOE_T_HEAD] = MOE_PART("lm_head.weight", FIRST),
              V(SHARED_GATE_PROJ, "mlp.shared_experts.gate_proj"),
              V(SHARED_UP, "mlp.shared_experts.up_proj"),
              [MOE_T_SHARED_DOWN] = MOE_PART(L "mlp.shared_experts.down_proj", SIDES)},
};
static const struct moe_source_names inkling_published_names = {
    .dense = {[MOE_T_EMBED] = MOE_PART("model.embed.weight", FIRST),
              [MOE_T_EMBED_WEIGHT] = MOE_ALL("model.embed_norm.weight"),
              [MOE_T_HEAD] = MOE_PART("model.unembed.weight", FIRST),
              W(ATTN_NORM, "attn_norm"),
              W(Q, "attn.wq_du"),
              W(K, "attn.wk_dv"),
              W(V, "attn.wv_dv"),
              W(REL, "attn.wr_du"),
              W(O, "attn.wo_ud"),
              W(Q_NORM, "attn.q_norm"),
              W(K_NORM, "attn.k_norm"),
              WP(TAPS_K, "attn.k_sconv", CONV),
              WP(TAPS_V, "attn.v_sconv", CONV),
              [MOE_T_PROFILES] = MOE_PART(L "attn.rel_logits_proj.proj", PROFILES),
              WP(TAPS_ATTN, "attn_sconv", CONV),
              WP(TAPS_FFN, "mlp_sconv", CONV),
              W(FFN_NORM, "mlp_norm"),
              WP(GATE, "mlp.w13_dn", EVEN),
              WP(UP, "mlp.w13_dn", ODD),
              W(DOWN, "mlp.w2_md"),
              V(CHOICE_BIAS, "mlp.gate.bias"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_PART(L "mlp.shared_experts.shared_w13_weight", EVEN),
              [MOE_T_SHARED_UP] = MOE_PART(L "mlp.shared_experts.shared_w13_weight", ODD),
              [MOE_T_SHARED_DOWN] = MOE_PART(L "mlp.shared_experts.shared_w2_weight", SIDES)},
    .expert = {EP(GATE, "mlp.experts.w13_weight", EVEN), EP(UP, "mlp.experts.w13_weight", ODD),
               EP(DOWN, "mlp.experts.w2_weight", EXPERT)},
};

/* Messages from pass to pass, as transformers saves them and as published: gates, and the scores of
 * all layers in one tensor or in two. */
#define MESSAGE(role, name)                                                                        \
    W(role##_TOLD_DOWN, name "_message_gate.down_proj"),                                           \
        W(role##_FORGET, name "_message_gate.forget_gate_proj"),                                   \
        W(role##_TOLD, name "_message_gate.message_gate_proj"),                                    \
        [MOE_T_##role##_TOLD_SCORES] = MOE_PART("model.message_input.query", MESSAGE)
#define MESSAGE_PUBLISHED(role, name, tensor)                                                      \
    V(role##_TOLD_DOWN, "controllers." name ".down_weight"),                                       \
        V(role##_FORGET, "controllers." name ".forget_weight"),                                    \
        V(role##_TOLD, "controllers." name ".gain_weight"),                                        \
        [MOE_T_##role##_TOLD_SCORES] = MOE_PART("model.middle_cycle_cross_pass_" tensor, MESSAGES)

/* Inkling-2: of layers without a window other norms, and a mixture of streams for queries. */
static const struct moe_source_names inkling2_names = {
    .dense = {[MOE_T_EMBED] = MOE_PART("model.embed_tokens.weight", FIRST),
              [MOE_T_EMBED_WEIGHT] = MOE_ALL("model.embed_tokens.embed_norm.weight"),
              [MOE_T_HEAD] = MOE_PART("lm_head.weight", FIRST),
              [MOE_T_LAST_SCORES] = MOE_ALL("model.final_input.query"),
              [MOE_T_ATTN_SCORES] = MOE_PART(L "attention_input.query", INPUT),
              [MOE_T_K_SCORES] = MOE_PART(L "attention_input.query", INPUT),
              [MOE_T_V_SCORES] = MOE_PART(L "attention_input.query", INPUT),
              V(FFN_SCORES, "mlp_input.query"),
              W(K_INPUT_NORM, "k_input_layernorm"),
              W(V_INPUT_NORM, "v_input_layernorm"),
              W(Q, "self_attn.q_proj.linear"),
              W(K, "self_attn.k_proj.linear"),
              W(V, "self_attn.v_proj.linear"),
              [MOE_T_Q_NORM] = MOE_PART(L "self_attn.q_proj.norm.scale", HEADS),
              W(REL, "self_attn.relative_position_bias.linear"),
              [MOE_T_REL_SCALE] = MOE_PART(L "self_attn.relative_position_bias.norm.scale", HEADS),
              [MOE_T_PROFILES] = MOE_PART(L "self_attn.relative_position_bias.proj", PROFILES),
              WP(TAPS_K, "self_attn.k_proj.sconv.conv1d", CONV),
              WP(TAPS_V, "self_attn.v_proj.sconv.conv1d", CONV),
              W(TAPS_K_OWN, "self_attn.k_proj.sconv.weight_proj"),
              W(TAPS_V_OWN, "self_attn.v_proj.sconv.weight_proj"),
              WP(TAPS_ATTN, "post_attention_convolution.conv1d", CONV),
              WP(TAPS_FFN, "post_mlp_convolution.conv1d", CONV),
              W(OWN_SINKS, "self_attn.sink_proj"),
              W(ATTN_GATE, "self_attn.o_proj.gate_proj"),
              W(O, "self_attn.o_proj.linear"),
              MESSAGE(Q, "q"),
              MESSAGE(K, "k"),
              MESSAGE(V, "v"),
              MESSAGE(FFN, "mlp")},
};
static const struct moe_source_names inkling2_global_names = {
    .dense = {W(ATTN_NORM, "q_input_layernorm"),
              [MOE_T_TAPS_K] = MOE_PART(L "self_attn.k_proj.sconv.static_weight", LATEST),
              [MOE_T_TAPS_V] = MOE_PART(L "self_attn.v_proj.sconv.static_weight", LATEST),
              /* as published, here and below */
              [MOE_T_EMBED] = MOE_PART("model.embed.weight", FIRST),
              [MOE_T_EMBED_WEIGHT] = MOE_ALL("model.embed_norm.weight"),
              [MOE_T_HEAD] = MOE_PART("model.unembed.weight", FIRST),
              [MOE_T_LAST_SCORES] = MOE_ALL("model.attn_res.output_query"),
              [MOE_T_ATTN_SCORES] = MOE_PART("model.attn_res.attn_queries.%p", INPUT),
              [MOE_T_K_SCORES] = MOE_PART("model.attn_res.attn_queries.%p", INPUT),
              [MOE_T_V_SCORES] = MOE_PART("model.attn_res.attn_queries.%p", INPUT),
              [MOE_T_FFN_SCORES] = MOE_ALL("model.attn_res.mlp_queries.%u"),
              W(K_INPUT_NORM, "k_input_norm"), W(V_INPUT_NORM, "v_input_norm"), W(Q, "attn.wq_du"),
              W(K, "attn.wk_dv"),
              W(V, "attn.wv_dv"), [MOE_T_Q_NORM] = MOE_PART(L "attn.q_l2_clip.scale", HEADS),
              W(REL, "attn.wr_du"), [MOE_T_REL_SCALE] = MOE_PART(L "attn.rel_l2_clip.scale", HEADS),
              [MOE_T_PROFILES] = MOE_PART(L "attn.rel_logits_proj.proj", PROFILES),
              V(TAPS_K_OWN, "attn.k_sconv.weight_proj"), V(TAPS_V_OWN, "attn.v_sconv.weight_proj"),
              WP(TAPS_ATTN, "attn_sconv", CONV), WP(TAPS_FFN, "mlp_sconv", CONV),
              W(OWN_SINKS, "attn.attn_sink_proj"), W(ATTN_GATE, "attn.gate_attn"),
              W(O, "attn.wo_ud"), W(FFN_NORM, "mlp_norm"), V(CHOICE_BIAS, "mlp.gate.bias")},
    .expert = {EP(GATE, "mlp.experts.w13_weight", EVEN), EP(UP, "mlp.experts.w13_weight", ODD),
               EP(DOWN, "mlp.experts.w2_weight", EXPERT)},
};
static const struct moe_source_names inkling2_published_names = {
    .dense = {W(ATTN_NORM, "attn_norm"), WP(TAPS_K, "attn.k_sconv", CONV),
              WP(TAPS_V, "attn.v_sconv", CONV), MESSAGE_PUBLISHED(Q, "attn", "queries"),
              MESSAGE_PUBLISHED(K, "k", "kv_queries"), MESSAGE_PUBLISHED(V, "v", "kv_queries"),
              MESSAGE_PUBLISHED(FFN, "mlp", "queries")},
};
static const struct moe_source_names inkling2_published_global_names = {
    .dense =
        {W(ATTN_NORM, "q_input_norm"), [MOE_T_TAPS_K] = MOE_PART(L "attn.k_sconv.static_w", LATEST),
         [MOE_T_TAPS_V] = MOE_PART(L "attn.v_sconv.static_w", LATEST)},
};

#define INKLING2_CONSTANTS                                                                         \
    SIGMOIDS, SET(norm_topk, true), SET(positions, MOE_POSITIONS_NONE),                            \
        SET(qk_norm, MOE_QK_NORM_CLIP), SET(state_kind, MOE_STATE_TAPS), SET(state_heads, 1),      \
        SET(embed_norm, true), SET(embed_weighed, true), SET(own_taps, true),                      \
        SET(attn_sinks, true), SET(own_sinks, true), SET(own_inputs, true),                        \
        SET(stream_normed, true), SET(stream_eps, 1e-6), SET(attn_gate, true),                     \
        SET(value_norm, true), SET(expert_act, MOE_ACT_SITU), SET(dense_act, MOE_ACT_SITU)
#define INKLING2_SETTINGS(floor, experts, width)                                                   \
    CONTEXT(1048576), USE("model_max_length", context_max, 0, MOE_UNLESS_ZERO),                    \
        SET(n_kv_heads, 8), SET(head_dim, 128),                                                    \
        USE("unpadded_vocab_size", vocab, 200058, MOE_NOT_ZERO), KEY("d_rel", rel_dim, 16),        \
        KEY("rel_extent", rel_extent, 1024), KEY("log_scaling_n_floor", query_floor, floor),       \
        KEY("log_scaling_alpha", query_scale, 0.1), KEY("conv_kernel_size", conv_width, 4),        \
        USE("sconv_kernel_size", conv_width, 0, MOE_UNLESS_ZERO),                                  \
        KEY("n_routed_experts", n_experts, experts),                                               \
        USE("num_local_experts", n_experts, 0, MOE_UNLESS_ZERO), TOP_K(8),                         \
        KEY("moe_intermediate_size", expert_ff, width),                                            \
        USE("intermediate_size", expert_ff, 0, MOE_UNLESS_ZERO),                                   \
        KEY("route_scale", routed_scale, 8),                                                       \
        USE("routed_scaling_factor", routed_scale, 0, MOE_UNLESS_ZERO),                            \
        KEY("qk_l2_clip_threshold", qk_clip, 22.627416997969522),                                  \
        KEY("rel_l2_clip_threshold", rel_clip, 8),                                                 \
        KEY("n_layers_per_attn_res_block", stream_layers, 6),                                      \
        KEY("mlp_gate_softcap", act_alpha, 4), KEY("mlp_up_softcap", act_limit, 25),               \
        KEY("final_logit_softcapping", logit_cap, 30)
static const struct moe_family states_families[] = {
    /* Inkling-2, the part that reads text: Inkling with residual attention, heads of limited length
     * in place of norms, sinks and weights of convolutions that tokens make, gates of outputs, and
     * no shared experts. */
    {
        .name = "inkling2_text",
        .also = "inkling2",
        .constants = SETTINGS(INKLING2_CONSTANTS),
        .hf = {.only = ONLY({"scoring_func", "sigmoid"}),
               .settings = SETTINGS(INKLING2_SETTINGS(128000, 384, 2304)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .in_text_config = true,
               .own = family_inkling2_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&inkling2_names, &inkling2_global_names,
                                             &inkling2_published_names,
                                             &inkling2_published_global_names},
                                   .ignored = {"model.mtp.*"}},
    },
    /* Inkling-2 Mini: layers that are visited several times, with messages from visit to visit. */
    {
        .name = "inkling2_loop_text",
        .also = "inkling2_loop",
        .constants = SETTINGS(INKLING2_CONSTANTS),
        .hf = {.only = ONLY({"scoring_func", "sigmoid"}),
               .settings = SETTINGS(INKLING2_SETTINGS(8192, 128, 1152)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .in_text_config = true,
               .own = family_inkling2_loop_hf},
        .tensors[MOE_NAMING_HF] =
            {.names = {&inkling2_names, &inkling2_global_names, &inkling2_published_names,
                       &inkling2_published_global_names},
             /* all but the first of a model whose layers are visited once */
             .ignored = {"model.mtp.*", L "q_message_gate.*", L "k_message_gate.*",
                         L "v_message_gate.*", L "mlp_message_gate.*", "model.message_input.*",
                         L "controllers.*", "model.middle_cycle_cross_pass_*"}},
    },
    /* Inkling, the part that reads text: biases by distance that queries make, local and global
     * layers with heads of their own, convolutions of keys, values and what blocks put out, shared
     * experts that the router weighs with the chosen ones. */
    {
        .name = "inkling_text",
        .also = "inkling_mm_model|inkling",
        .constants = SETTINGS(SIGMOIDS, SET(norm_topk, true), SET(positions, MOE_POSITIONS_NONE),
                              SET(qk_norm, MOE_QK_NORM_HEAD), SET(state_kind, MOE_STATE_TAPS),
                              SET(state_heads, 1), SET(embed_norm, true), SET(embed_weighed, true),
                              SET(ffn_scale, true)),
        .hf = {.only = ONLY({"shared_expert_sink", "true"}),
               .settings = SETTINGS(
                   CONTEXT(131072),
                   USE("model_max_length", context_max, 0, MOE_UNLESS_ZERO), SET(n_kv_heads, 8),
                   SET(head_dim, 128), USE("unpadded_vocab_size", vocab, 0, MOE_UNLESS_ZERO),
                   KEY("intermediate_size", dense_ff, 24576),
                   USE("dense_intermediate_size", dense_ff, 0, MOE_UNLESS_ZERO),
                   KEY("d_rel", rel_dim, 16), KEY("rel_extent", rel_extent, 1024),
                   KEY("log_scaling_n_floor", query_floor, 0),
                   KEY("log_scaling_alpha", query_scale, 0.1),
                   KEY("conv_kernel_size", conv_width, 4),
                   USE("sconv_kernel_size", conv_width, 0, MOE_UNLESS_ZERO),
                   KEY("n_routed_experts", n_experts, 256),
                   USE("num_local_experts", n_experts, 0, MOE_UNLESS_ZERO), TOP_K(6),
                   KEY("moe_intermediate_size", expert_ff, 3072),
                   KEY("route_scale", routed_scale, 8),
                   USE("logits_mup_width_multiplier", logit_scale, 24, MOE_NOT_ZERO),
                   USE("embedding_multiplier", logit_scale, 0, MOE_RECIPROCAL)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 2,
               .in_text_config = true,
               .own = family_inkling_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&inkling_names, &inkling_published_names},
                                   .ignored = {"model.mtp.*"}},
    },
    /* ZAYA1: queries and keys that convolutions mix with those of the tokens before, half of the
     * values of the token before; one expert for a token, or none, chosen by routers of several
     * layers that add what the router before made; residuals that are weighed value by value. */
    {
        .name = "zaya",
        .constants =
            SETTINGS(SET(state_kind, MOE_STATE_CCA), SET(conv_width, 2), SET(choice_bias, true),
                     SET(n_zero, 1), SET(zero_skips, true), SET(residual, MOE_RESIDUAL_WEIGHED)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"cca_time0", "2"}, {"cca_time1", "2"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 2),
                                    KEY("head_dim", head_dim, 128), EXPERTS(16), TOP_K(1),
                                    KEY("moe_intermediate_size", expert_ff, 2048),
                                    KEY("router_hidden_size", router_dim, 256),
                                    KEY("lm_head_bias", head_bias, false),
                                    KEY("tie_word_embeddings", tied_head, true)),
               .rope_theta = 5e6,
               .rope_of = "hybrid",
               .partial_rotary = 0.5,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_zaya_hf},
        .tensors[MOE_NAMING_HF].names = {&zaya_names},
    },
    /* Qwen3-Next: 80B-A3B. Gated DeltaNet, and in every fourth layer gated attention that rotates a
     * quarter of a head; many small experts and a shared one. */
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
        .tensors = {[MOE_NAMING_HF].names = {&qwen3_next_names, &qwen2_moe_names},
                    [MOE_NAMING_GGUF].names = {&qwen3_next_gguf_names, &placed_norm_names}},
    },
    /* Lara: gated DeltaNet beside ordinary attention, in windows, where it rotates, or of all
     * positions. A function, because there are three kinds of layers. */
    {
        .name = "lara_mini",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(rope_in_windows, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}),
               .settings = SETTINGS(CONTEXT(131072), SET(n_kv_heads, 4), SET(head_dim, 128),
                                    SET(tied_head, true), EXPERTS(128), TOP_K(4),
                                    KEY("norm_topk_prob", norm_topk, true),
                                    KEY("moe_intermediate_size", expert_ff, 512),
                                    KEY("shared_expert_intermediate_size", shared_ff, 512),
                                    KEY("linear_num_value_heads", state_heads, 16),
                                    KEY("linear_num_key_heads", state_key_heads, 8),
                                    KEY("linear_key_head_dim", state_key_dim, 128),
                                    KEY("linear_value_head_dim", state_value_dim, 128),
                                    KEY("linear_conv_kernel_dim", conv_width, 4)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_lara_hf},
        .tensors[MOE_NAMING_HF].names = {&lara_names},
    },
    /* Qwen3.5 and 3.6 with experts: 35B-A3B and larger, text part only. Qwen3-Next with other
     * tensors; in a text, all sections of its rotary settings have the same position. */
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
        .tensors = {[MOE_NAMING_HF].names = {&qwen3_next_names, &qwen2_moe_names},
                    [MOE_NAMING_GGUF].names = {&qwen3_next_gguf_names, &placed_norm_names}},
    },
    /* Qwen4, Qwen3.8-Flash-Next: Qwen3.5 with gated streams in place of norms and embeddings of
     * n-grams, and indexers that choose blocks of positions by means of keys; text part only. A
     * function, because hashes are made of settings. */
    {
        .name = "qwen4_exp_text",
        .also = "qwen4_exp",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(attn_gate, true),
                              SET(shared_gate, true), SET(norm_topk, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"attn_output_gate", "true"},
                            {"norm_topk_prob", "true"}),
               .settings =
                   SETTINGS(CONTEXT(32768), SET(n_kv_heads, 2), SET(head_dim, 256), EXPERTS(512),
                            TOP_K(10), QWEN3_NEXT_SETTINGS, KEY("hc_count", n_streams, 4),
                            KEY("hc_lowrank", stream_rank, 320), KEY("ngram_size", ngrams, 3),
                            KEY("heads_per_ngram", ngram_heads, 8),
                            KEY("ple_conv_kernel_size", ngram_taps, 4)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_ALL,
               .in_text_config = true,
               .partial_rotary = 0.25,
               .own = family_qwen4_hf},
        .gguf = {.arch = "qwen4exp",
                 .settings = SETTINGS(
                     STATES_GGUF, NEED("hyper_connection.count", n_streams),
                     NEED("hyper_connection.low_rank", stream_rank),
                     KEY("ple.ngram_size", ngrams, 0), KEY("ple.heads_per_ngram", ngram_heads, 0),
                     KEY("ple.conv_kernel", ngram_taps, 0), KEY("ple.eos_token_id", ngram_end, 0),
                     KEY("embedding_length_per_layer_input", ngram_dim, 0)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_qwen4_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&qwen3_next_names, &qwen2_moe_names, &qwen4_names},
                                       .ignored = {L "ple.ple_embedding.*",
                                                   "model.language_model.layers.%u.ple.ple_"
                                                   "embedding.*"}},
                    [MOE_NAMING_GGUF].names = {&qwen3_next_gguf_names, &index_blocks_gguf_names}},
    },
    /* LFM2 with experts: 8B-A1B, 24B-A2B. Short convolutions, attention in a few layers;
     * DeepSeek-V3's router without groups, with another epsilon. A function, because layers are
     * listed under other names. */
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
    /* Nemotron-H, Nemotron-3: Nano, Super; and dense ones. Every layer is half a layer: a state
     * (Mamba-2), attention without positions, experts of two matrices, or a feed-forward. A
     * function, because a pattern of letters or a list says which. */
    {
        .name = "nemotron_h",
        .constants =
            SETTINGS(SIGMOIDS, SET(positions, MOE_POSITIONS_NONE), SET(state_kind, MOE_STATE_SCAN),
                     SET(dense_act, MOE_ACT_RELU2), SET(expert_act, MOE_ACT_RELU2)),
        .hf = {.only = ONLY({"mlp_hidden_act", "relu2"}, {"mamba_hidden_act", "silu|swish"},
                            {"use_bias", "false"}, {"mlp_bias", "false"},
                            {"attention_bias", "false"}, {"mamba_proj_bias", "false"},
                            {"sliding_window", "none"}, {"n_shared_experts", "1"}),
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
                   KEY("moe_latent_size", expert_dim, 0), KEY("mamba_num_heads", state_heads, 128),
                   KEY("mamba_head_dim", state_value_dim, 64), KEY("n_groups", state_key_heads, 8),
                   KEY("ssm_state_size", state_key_dim, 128), KEY("conv_kernel", conv_width, 4),
                   KEY("use_conv_bias", conv_bias, true)),
               .own_keys = true,
               .own = family_nemotron_h_hf},
        .gguf = {.arch = "nemotron_h_moe",
                 .sigmoid = true,
                 .settings = SETTINGS(STATES_GGUF, GGUF_GROUPS, GGUF_NORM_TOPK(false),
                                      KEY("moe_latent_size", expert_dim, 0)),
                 .by_layer = {"attention.head_count", "attention.head_count_kv",
                              "feed_forward_length"},
                 .own = family_nemotron_h_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&nemotron_h_names},
                    [MOE_NAMING_GGUF].names = {&nemotron_h_gguf_names, &mamba_gguf_names}},
    },
    /* Kimi-Linear: 48B-A3B. KDA in three of four layers, MLA without positions in the others;
     * DeepSeek-V3's router. A function, because keys have two names, layers are counted from 1, and
     * KDA's numbers are in an object of their own. */
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
    /* Kimi-K3: Kimi-Linear with residual attention among what layers give, experts in a space of
     * their own, gates of attention, and SiTU for SwiGLU; its part that reads text. */
    {
        .name = "kimi_k3",
        .constants =
            SETTINGS(LATENT_SIGMOIDS, SET(positions, MOE_POSITIONS_NONE),
                     SET(state_kind, MOE_STATE_KDA), SET(gate_direct, true), SET(attn_gate, true),
                     SET(expert_act, MOE_ACT_SITU), SET(dense_act, MOE_ACT_SITU)),
        .hf = {.architecture = "KimiK3ForConditionalGeneration",
               .only = ONLY({"moe_router_activation_func", "sigmoid"}, {"mla_use_nope", "true"},
                            {"attention_bias", "false"}, {"hidden_act", "situ"}),
               .settings = SETTINGS(
                   CONTEXT(1048576), SET(norm_eps, 1e-5), SET(state_heads, 96), SET(conv_width, 4),
                   KEY("model_max_length", context_max, 0), DENSE_FF,
                   LATENT(1536, 512, 128, 64, 128), EXPERTS(0), TOP_K(0),
                   KEY("num_experts_per_token", top_k, 0), NEED("moe_intermediate_size", expert_ff),
                   KEY("num_expert_group", n_groups, 0), KEY("topk_group", top_groups, 0),
                   KEY("moe_renormalize", norm_topk, true),
                   KEY("routed_scaling_factor", routed_scale, 0),
                   KEY("routed_expert_hidden_size", expert_dim, 0),
                   NEED("activation_situ_beta", act_alpha),
                   NEED("activation_situ_linear_beta", act_limit),
                   NEED("attn_res_block_size", stream_layers)),
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 1,
               .in_text_config = true,
               .own = family_kimi_k3_hf},
        .gguf = {.arch = "kimi-k3",
                 .sigmoid = true,
                 .settings = SETTINGS(LATENT_GGUF, KEY("ssm.conv_kernel", conv_width, 0),
                                      NEED("kda.head_dim", state_key_dim),
                                      KEY("kda.gate_lower_bound", decay_floor, 0),
                                      KEY("expert_latent_length", expert_dim, 0),
                                      NEED("activation.situ_beta", act_alpha),
                                      NEED("activation.situ_linear_beta", act_limit),
                                      NEED("attn_res.block_size", stream_layers)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_kimi_k3_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&kimi_k3_names, &kimi_linear_names},
                    [MOE_NAMING_GGUF].names = {&kimi_k3_gguf_names, &kimi_linear_gguf_names}},
    },
    /* GLM-5.3-Flash: KDA in most layers, latent attention without positions in the others,
     * DeepSeek-V4's hyper-connections, indexers that pool keys; its part that reads text. */
    {
        .name = "glm5_next_text",
        .also = "glm5_next",
        .constants = SETTINGS(SIGMOIDS, SET(positions, MOE_POSITIONS_NONE),
                              SET(state_kind, MOE_STATE_KDA), SET(stream_mean, true),
                              SET(stream_magnitude, 2), SET(expert_act, MOE_ACT_SWIGLU_LIMITED),
                              SET(dense_act, MOE_ACT_SWIGLU_LIMITED), SET(index_means, true),
                              SET(index_pooled, true)),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"qk_rope_head_dim", "0"},
                            {"index_kpool_always_select_tail", "true"}),
               .settings =
                   SETTINGS(CONTEXT(1048576), SET(norm_eps, 1e-5), SET(n_kv_heads, 0), DENSE_FF,
                            SET(state_heads, 64), SET(conv_width, 4),
                            ROUTED_EXPERTS(288, 8, 2048, true, 2.5), GROUPS(1, 1),
                            LATENT(1536, 512, 256, 0, 256), KEY("swiglu_limit", act_limit, 10),
                            KEY("hc_mult", n_streams, 4), KEY("hc_eps", stream_eps, 1e-6),
                            KEY("hc_sinkhorn_iters", stream_rounds, 20), INDEXER(32),
                            KEY("index_kpool", index_block, 16)),
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 3,
               .in_text_config = true,
               .own = family_glm5_next_hf},
        .gguf = {.arch = "glm5-next",
                 .sigmoid = true,
                 .only = ONLY({"attention.indexer.kpool_select_tail", "true"}),
                 .settings = SETTINGS(LATENT_GGUF, INDEXER_GGUF, SET(index_eps, 1e-6),
                                      KEY("attention.layer_norm_epsilon", index_eps, 0),
                                      NEED("attention.indexer.kpool", index_block),
                                      KEY("ssm.conv_kernel", conv_width, 0),
                                      NEED("kda.head_dim", state_key_dim),
                                      KEY("kda.gate_lower_bound", decay_floor, 0),
                                      NEED("hyper_connection.count", n_streams),
                                      NEED("hyper_connection.sinkhorn_iterations", stream_rounds),
                                      NEED("hyper_connection.epsilon", stream_eps)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_glm5_next_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&glm5_next_names, &kimi_linear_names},
                    [MOE_NAMING_GGUF].names = {&kimi_linear_gguf_names}},
    },
    /* Ling-3 (BailingMoeV3): KDA in most layers, whose gates are made of the stream itself, and MLA
     * with gates by head in the others; DeepSeek-V3's router. A function, because layers are
     * counted by groups and widths have two names. */
    {
        .name = "bailing_hybrid",
        .also = "bailing_moe_v3",
        .constants = SETTINGS(LATENT_SIGMOIDS, SET(attn_gate, true), SET(gate_by_head, true),
                              SET(state_kind, MOE_STATE_KDA), SET(state_direct, true),
                              SET(expert_act, MOE_ACT_SWIGLU_CLIPPED),
                              SET(dense_act, MOE_ACT_SWIGLU_CLIPPED)),
        .hf = {.only =
                   ONLY(SIGMOIDS_ONLY, {"score_function", "sigmoid"}, {"attention_bias", "false"},
                        {"no_kda_lora", "true"}, {"moe_router_enable_expert_bias", "true"},
                        {"use_bias", "false"}, {"use_qkv_bias", "false"},
                        {"gated_attention_proj_granularity_type", "head_wise"}),
               .settings = SETTINGS(
                   CONTEXT(262144),
                   SET(n_kv_heads, 0), KEY("model_max_length", context_max, 0),
                   KEY("intermediate_size", dense_ff, 6144), LATENT(0, 512, 128, 64, 128),
                   LOCAL_EXPERTS(512), EXPERTS(0), TOP_K(8), KEY("num_experts_per_token", top_k, 0),
                   KEY("moe_intermediate_size", expert_ff, 768), GROUPS(8, 4),
                   KEY("num_expert_group", n_groups, 0), KEY("norm_topk_prob", norm_topk, true),
                   KEY("moe_renormalize", norm_topk, 0),
                   KEY("routed_scaling_factor", routed_scale, 2.5),
                   KEY("short_conv_kernel_size", conv_width, 4)),
               .rope_theta = 6e6,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_dense = 2,
               .shared_key = "num_shared_experts",
               .n_shared = 1,
               .own = family_bailing_hybrid_hf},
        .gguf = {.arch = "bailingmoe3",
                 .sigmoid = true,
                 .only = ONLY({"kda.safe_gate", "true"}),
                 .settings = SETTINGS(LATENT_GGUF, KEY("ssm.conv_kernel", conv_width, 0),
                                      NEED("kda.head_dim", state_key_dim),
                                      NEED("kda.gate_lower_bound", decay_floor)),
                 .by_layer = {"attention.head_count_kv"},
                 .own = family_bailing_hybrid_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&ling3_names, &ling3_low_names}, .paired = true},
                    [MOE_NAMING_GGUF] = {.names = {&ling3_gguf_names, &kimi_linear_gguf_names},
                                         .paired = true}},
    },
    /* MiniMax-Text-01, M1: lightning attention, and ordinary attention in every eighth layer; the
     * stream becomes its norm before each block; Mixtral's experts. A function, because layers and
     * scales have two names. */
    {
        .name = "minimax",
        .also = "minimax_text_01|minimax_m1",
        .constants = SETTINGS(SET(norm_topk, true), SET(norm_place, MOE_NORM_STREAM),
                              SET(state_kind, MOE_STATE_FADE), SET(conv_width, 1)),
        .hf = {.only = ONLY({"shared_intermediate_size", "0"}, {"postnorm", "true"},
                            {"sliding_window", "none"}, {"attention_bias", "false"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(latent_eps, 1e-6),
                                    SET(n_kv_heads, 8), EXPERT_FF, LOCAL_EXPERTS(8), TOP_K(2),
                                    KEY("rotary_dim", rope_dim, 0)),
               .rope_theta = 1e6,
               .expert_layers = MOE_LAYERS_ALL,
               .own = family_minimax_hf},
        .gguf = {.arch = "minimax-01",
                 .settings = SETTINGS(GGUF_NORM_TOPK(true)),
                 .own = family_minimax_gguf},
        .tensors =
            {[MOE_NAMING_HF] = {.names = {&minimax_01_names, &mixtral_names},
                                .ignored = {L "self_attn.slope_rate", L "self_attn.query_decay",
                                            L "self_attn.key_decay", L "self_attn.diagonal_decay"}},
             [MOE_NAMING_GGUF].names = {&minimax_01_gguf_names}},
    },
    /* Jamba: 1.5 and 1.6, Mini and Large. Mamba with norms inside, attention without positions in
     * every eighth layer, experts in every other. A function, because layers are counted by periods
     * and widths follow from others. */
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

/* Dense models: the case without experts. */

/* Queries, keys and values in one tensor, and both inputs of the activation (also GLM-4's). */
static const struct moe_source_names joined_ffn_names = {
    .dense = {WP(Q, "self_attn.qkv_proj", ATTENTION), WP(K, "self_attn.qkv_proj", ATTENTION),
              WP(V, "self_attn.qkv_proj", ATTENTION), WP(GATE, "mlp.gate_up_proj", FIRST_HALF),
              WP(UP, "mlp.gate_up_proj", SECOND_HALF)},
};
static const struct moe_source_names joined_ffn_gguf_names = {
    .dense = {GWP(Q, "attn_qkv", ATTENTION), GWP(K, "attn_qkv", ATTENTION),
              GWP(V, "attn_qkv", ATTENTION), GWP(GATE, "ffn_up", FIRST_HALF),
              GWP(UP, "ffn_up", SECOND_HALF)},
};
static const struct moe_source_names glm4_names = {
    .dense = {W(ATTN_END_NORM, "post_self_attn_layernorm"), W(FFN_END_NORM, "post_mlp_layernorm")},
};
/* Norms after blocks: OLMo-2, EXAONE-4. */
static const struct moe_source_names after_gguf_names = {
    .dense = {GW(ATTN_NORM, "post_attention_norm"), GW(FFN_NORM, "post_ffw_norm")},
};
/* Norms are stored minus 1. */
static const struct moe_source_names gemma3_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              W_LESS_ONE(ATTN_NORM, "input_layernorm"),
              W_LESS_ONE(ATTN_END_NORM, "post_attention_layernorm"),
              W_LESS_ONE(Q_NORM, "self_attn.q_norm"),
              W_LESS_ONE(K_NORM, "self_attn.k_norm"),
              W_LESS_ONE(FFN_NORM, "pre_feedforward_layernorm"),
              W_LESS_ONE(FFN_END_NORM, "post_feedforward_layernorm")},
};

/* Gemma's settings have defaults that files leave out. */
#define GEMMA_CONSTANTS                                                                            \
    SETTINGS(SET(norm_place, MOE_NORM_BOTH), SET(dense_act, MOE_ACT_GEGLU), SET(tied_head, true))
#define GEMMA_SETTINGS(words, context, ...)                                                        \
    SETTINGS(                                                                                      \
        NEED("num_hidden_layers", n_layers), NEED("hidden_size", hidden),                          \
        KEY("vocab_size", vocab, words), KEY("max_position_embeddings", context_max, context),     \
        KEY("num_attention_heads", n_heads, 8), KEY("num_key_value_heads", n_kv_heads, 4),         \
        KEY("head_dim", head_dim, 256), KEY("rms_norm_eps", norm_eps, 1e-6),                       \
        KEY("tie_word_embeddings", tied_head, 0), DENSE_FF, ATTENTION_BIAS(false), __VA_ARGS__)

/* SpecForge's names of a head's layer, and those of vLLM's speculators. */
#define DRAFTER_NAMES(at)                                                                          \
    {                                                                                              \
        .dense = {                                                                                 \
            [MOE_T_EMBED] = MOE_ALL("embed_tokens.weight"),                                        \
            [MOE_T_FINAL_NORM] = MOE_ALL("norm.weight"),                                           \
            [MOE_T_READ_NORM] = MOE_ALL(at "hidden_norm.weight"),                                  \
            [MOE_T_ATTN_NORM] = MOE_ALL(at "input_layernorm.weight"),                              \
            [MOE_T_Q] = MOE_ALL(at "self_attn.q_proj.weight"),                                     \
            [MOE_T_K] = MOE_ALL(at "self_attn.k_proj.weight"),                                     \
            [MOE_T_V] = MOE_ALL(at "self_attn.v_proj.weight"),                                     \
            [MOE_T_O] = MOE_ALL(at "self_attn.o_proj.weight"),                                     \
            [MOE_T_Q_BIAS] = MOE_ALL(at "self_attn.q_proj.bias"),                                  \
            [MOE_T_K_BIAS] = MOE_ALL(at "self_attn.k_proj.bias"),                                  \
            [MOE_T_V_BIAS] = MOE_ALL(at "self_attn.v_proj.bias"),                                  \
            [MOE_T_O_BIAS] = MOE_ALL(at "self_attn.o_proj.bias"),                                  \
            [MOE_T_FFN_NORM] = MOE_ALL(at "post_attention_layernorm.weight"),                      \
            [MOE_T_GATE] = MOE_ALL(at "mlp.gate_proj.weight"),                                     \
            [MOE_T_UP] = MOE_ALL(at "mlp.up_proj.weight"),                                         \
            [MOE_T_DOWN] = MOE_ALL(at "mlp.down_proj.weight"),                                     \
        },                                                                                         \
    }
/* What heads with latent attention have in place of queries, keys and values. */
#define LATENT_DRAFTER_NAMES(at)                                                                   \
    {                                                                                              \
        .dense = {                                                                                 \
            [MOE_T_Q] = MOE_ALL(at "self_attn.q_b_proj.weight"),                                   \
            [MOE_T_Q_DOWN] = MOE_ALL(at "self_attn.q_a_proj.weight"),                              \
            [MOE_T_Q_DOWN_NORM] = MOE_ALL(at "self_attn.q_a_layernorm.weight"),                    \
            [MOE_T_KV_DOWN] = MOE_ALL(at "self_attn.kv_a_proj_with_mqa.weight"),                   \
            [MOE_T_KV_DOWN_NORM] = MOE_ALL(at "self_attn.kv_a_layernorm.weight"),                  \
            [MOE_T_K_UP] = MOE_PART(at "self_attn.kv_b_proj.weight", KEYS),                        \
            [MOE_T_V_UP] = MOE_PART(at "self_attn.kv_b_proj.weight", VALUES),                      \
        },                                                                                         \
    }
static const struct moe_source_names eagle3_names = DRAFTER_NAMES("midlayer."),
                                     speculators_names = DRAFTER_NAMES("layers.0.");
static const struct moe_source_names latent_eagle3_names = LATENT_DRAFTER_NAMES("midlayer."),
                                     latent_vllm_names = LATENT_DRAFTER_NAMES("layers.0.");
static const struct moe_source_names dflash_names = {
    .dense = {[MOE_T_READS_JOIN] = MOE_ALL("model.fc.weight"),
              [MOE_T_READ_NORM] = MOE_ALL("model.hidden_norm.weight")}};
/* A head with an embedding of its own and no output is tied (llama.cpp's dflash.cpp). */
static const struct moe_source_names dflash_gguf_names = {
    .dense = {[MOE_T_READ_NORM] = MOE_ALL("enc.output_norm.weight"),
              [MOE_T_HEAD] = MOE_ALL("output.weight")}};
static const struct moe_source_names dflash_tied_names = {
    .dense = {[MOE_T_HEAD] = MOE_ALL("token_embd.weight")}};

static const struct moe_family dense_families[] = {
    {
        .name = "llama",
        .hf = {.only = ONLY({"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, ATTENTION_BIAS(false)),
               .rope_theta = 1e4},
        .gguf = {.arch = "llama", .dense = true},
        .tensors[MOE_NAMING_GGUF].paired = true,
    },
    {
        .name = "mistral",
        .hf = {.settings = SETTINGS(CONTEXT(131072), SET(n_kv_heads, 8), DENSE_FF),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_ALL, 4096},
               .in_text_config = true},
    },
    {
        .name = "ministral3",
        .constants = SETTINGS(SET(norm_topk, true)),
        .hf = {.settings = SETTINGS(CONTEXT(262144), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    SET(head_dim, 128), DENSE_FF),
               .rope_theta = 1e6,
               .windows = {MOE_WINDOW_ALL, 0},
               .in_text_config = true,
               .own = family_ministral3_hf},
        .gguf = {.arch = "mistral3",
                 .settings = SETTINGS(KEY("attention.temperature_scale", query_scale, 0),
                                      KEY("rope.scaling.original_context_length", query_step, 0)),
                 .own = family_ministral3_gguf},
        .tensors[MOE_NAMING_GGUF].paired = true,
    },
    {
        .name = "qwen2",
        .hf = {.settings =
                   SETTINGS(CONTEXT(32768), SET(qkv_bias, true), SET(n_kv_heads, 32), DENSE_FF),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_FROM, 4096, .if_used = true, .listed = true}},
        .gguf = {.arch = "qwen2"},
    },
    {
        .name = "qwen3",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 32), SET(head_dim, 128),
                                    DENSE_FF, ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_FROM, 4096, .if_used = true, .listed = true}},
        .gguf = {.arch = "qwen3"},
    },
    /* OLMo-2: norms after attention and feed-forward, and of all of a position's queries and keys.
     */
    {
        .name = "olmo2",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_FULL), SET(norm_place, MOE_NORM_AFTER)),
        .hf = {.settings =
                   SETTINGS(CONTEXT(2048), SET(norm_eps, 1e-5), DENSE_FF, ATTENTION_BIAS(false)),
               .rope_theta = 1e4},
        .gguf = {.arch = "olmo2", .only = ONLY({"attention.sliding_window", "0"})},
        .tensors = {[MOE_NAMING_HF].names = {&flex_olmo_names},
                    [MOE_NAMING_GGUF].names = {&after_gguf_names}},
    },
    /* Phi-3, Phi-4 and their mini ones. */
    {
        .name = "phi3",
        .hf = {.settings = SETTINGS(CONTEXT(4096), SET(norm_eps, 1e-5), DENSE_FF),
               .rope_theta = 1e4,
               .partial_rotary = 1,
               .windows = {MOE_WINDOW_ALL, 0}},
        .gguf = {.arch = "phi3", .windowed = true},
        .tensors = {[MOE_NAMING_HF].names = {&joined_ffn_names},
                    [MOE_NAMING_GGUF].names = {&joined_ffn_gguf_names}},
    },
    /* Granite-3 and 4 without experts: the four multipliers of the others. */
    {
        .name = "granite",
        .hf = {.only = ONLY({"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, GRANITE_SCALES),
               .rope_theta = 1e4},
        .gguf = {.arch = "granite"},
        .tensors[MOE_NAMING_GGUF].paired = true,
    },
    /* GLM-4-0414: norms before and after blocks, half of each head rotates in pairs. */
    {
        .name = "glm4",
        .constants = SETTINGS(SET(norm_place, MOE_NORM_BOTH)),
        .hf = {.settings = SETTINGS(CONTEXT(131072), SET(n_kv_heads, 2), SET(head_dim, 128),
                                    DENSE_FF, KEY("attention_bias", qkv_bias, false)),
               .rope_theta = 1e4,
               .partial_rotary = 0.5},
        .gguf = {.arch = "glm4"},
        .tensors = {[MOE_NAMING_HF] = {.names = {&glm4_names, &joined_ffn_names}, .paired = true},
                    [MOE_NAMING_GGUF] = {.names = {&afmoe_gguf_names, &joined_ffn_gguf_names},
                                         .paired = true}},
    },
    /* ERNIE-4.5-0.3B. */
    {
        .name = "ernie4_5",
        .hf = {.only = ONLY({"use_bias", "false"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 2),
                                    SET(head_dim, 128), SET(tied_head, true), DENSE_FF),
               .rope_theta = 5e5},
        .gguf = {.arch = "ernie4_5"},
        .tensors = {[MOE_NAMING_HF].paired = true, [MOE_NAMING_GGUF].paired = true},
    },
    /* Seed-OSS-36B. */
    {
        .name = "seed_oss",
        .hf = {.only = ONLY({"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(524288), SET(n_kv_heads, 8), SET(head_dim, 128),
                                    DENSE_FF, KEY("attention_bias", qkv_bias, true),
                                    KEY("attention_out_bias", o_bias, false)),
               .rope_theta = 1e4},
        .gguf = {.arch = "seed_oss"},
        .tensors[MOE_NAMING_GGUF].names = {&placed_norm_names},
    },
    /* Command-R, Aya: attention and feed-forward share a norm that subtracts the mean. */
    {
        .name = "cohere",
        .constants = SETTINGS(SET(parallel_blocks, true), SET(norm_kind, MOE_NORM_CENTRED),
                              SET(tied_head, true)),
        .hf = {.only = ONLY({"use_qk_norm", "false"}),
               .settings = SETTINGS(CONTEXT(8192), KEY("layer_norm_eps", norm_eps, 1e-5),
                                    KEY("logit_scale", logit_scale, 0.0625), DENSE_FF,
                                    ATTENTION_BIAS(false)),
               .rope_theta = 1e4},
        .gguf = {.arch = "command-r", .settings = SETTINGS(NEED("logit_scale", logit_scale))},
        .tensors = {[MOE_NAMING_HF].paired = true, [MOE_NAMING_GGUF].paired = true},
    },
    /* Command-R7B, Command-A: the same with local layers, which alone rotate. */
    {
        .name = "cohere2",
        .constants = SETTINGS(SET(parallel_blocks, true), SET(norm_kind, MOE_NORM_CENTRED),
                              SET(tied_head, true)),
        .hf = {.only = ONLY({"use_qk_norm", "false"}),
               .settings = SETTINGS(CONTEXT(8192), KEY("layer_norm_eps", norm_eps, 1e-5),
                                    KEY("logit_scale", logit_scale, 0.0625), DENSE_FF,
                                    ATTENTION_BIAS(false)),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_ALL, 4096, .listed = true},
               .own = family_exaone_moe_hf},
        .gguf = {.arch = "cohere2",
                 .settings = SETTINGS(NEED("logit_scale", logit_scale),
                                      KEY("attention.sliding_window", window, 0)),
                 .own = family_exaone4_gguf},
        .tensors = {[MOE_NAMING_HF].paired = true, [MOE_NAMING_GGUF].paired = true},
    },
    /* SmolLM3: every fourth layer has no positions. */
    {
        .name = "smollm3",
        .hf = {.only = ONLY({"use_sliding_window", "false"}, {"mlp_bias", "false"}),
               .settings = SETTINGS(CONTEXT(32768), SET(n_kv_heads, 4), SET(tied_head, true),
                                    DENSE_FF, ATTENTION_BIAS(false)),
               .rope_theta = 2e6,
               .own = family_smollm3_hf},
        .gguf = {.arch = "smollm3", .own = family_smollm3_gguf},
        .tensors[MOE_NAMING_GGUF].paired = true,
    },
    /* EXAONE-4: norms after blocks, global layers without positions beside local ones. */
    {
        .name = "exaone4",
        .constants = SETTINGS(SET(qk_norm, MOE_QK_NORM_HEAD), SET(norm_place, MOE_NORM_AFTER)),
        .hf = {.settings = SETTINGS(CONTEXT(2048), SET(norm_eps, 1e-5), DENSE_FF),
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_ALL, 4096, .listed = true},
               .own = family_exaone_moe_hf},
        .gguf = {.arch = "exaone4",
                 .settings = SETTINGS(KEY("attention.sliding_window", window, 0)),
                 .own = family_exaone4_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&flex_olmo_names},
                    [MOE_NAMING_GGUF].names = {&after_gguf_names}},
    },
    /* Gemma-2: 2B to 27B. Every second layer is local; caps of scores and logits. */
    {
        .name = "gemma2",
        .constants = GEMMA_CONSTANTS,
        .hf = {.only = ONLY({"hidden_activation", "gelu_pytorch_tanh"},
                            {"use_bidirectional_attention", "false"}),
               .settings = GEMMA_SETTINGS(256000, 8192, KEY("attn_logit_softcapping", attn_cap, 50),
                                          KEY("final_logit_softcapping", logit_cap, 30)),
               .own_keys = true,
               .rope_theta = 1e4,
               .windows = {MOE_WINDOW_EVEN, 4096, .listed = true},
               .own = family_gemma2_hf},
        .gguf = {.arch = "gemma2",
                 .settings = SETTINGS(KEY("attn_logit_softcapping", attn_cap, 50),
                                      KEY("final_logit_softcapping", logit_cap, 30)),
                 .windowed = true,
                 .own = family_gemma2_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&gemma3_names},
                    [MOE_NAMING_GGUF].names = {&afmoe_gguf_names}},
    },
    /* Gemma-3: 270M to 27B, text part only. */
    {
        .name = "gemma3_text",
        .also = "gemma3",
        .constants = GEMMA_CONSTANTS,
        .hf = {.only = ONLY({"hidden_activation", "gelu_pytorch_tanh"},
                            {"use_bidirectional_attention", "false"}),
               .settings = GEMMA_SETTINGS(262208, 131072, SET(qk_norm, MOE_QK_NORM_HEAD),
                                          KEY("attn_logit_softcapping", attn_cap, 0),
                                          KEY("final_logit_softcapping", logit_cap, 0)),
               .own_keys = true,
               .rope_theta = 1e6,
               .rope_of = "full_attention",
               .windows = {MOE_WINDOW_ALL, 4096, .listed = true},
               .in_text_config = true,
               .own = family_gemma3_hf},
        .gguf = {.arch = "gemma3",
                 .qk_norm = MOE_QK_NORM_HEAD,
                 .settings = SETTINGS(KEY("attention.sliding_window", window, 0),
                                      KEY("final_logit_softcapping", logit_cap, 0)),
                 .own = family_gemma3_gguf},
        .tensors = {[MOE_NAMING_HF].names = {&gemma3_names},
                    [MOE_NAMING_GGUF].names = {&afmoe_gguf_names}},
    },
    /* Heads that draft (config.h, drafter_kind): EAGLE-3, arXiv:2503.01840. */
    {
        .name = "eagle3",
        .constants = SETTINGS(SET(drafter_kind, MOE_DRAFTS_EAGLE3), SET(own_head, true)),
        .hf = {.architecture = "LlamaForCausalLMEagle3|Eagle3LlamaForCausalLM|Eagle3Speculator|"
                               "Eagle3DraftModel",
               .only = ONLY({"fc_norm", "false"}, {"norm_output", "false"}),
               .settings = SETTINGS(CONTEXT(2048), DENSE_FF, ATTENTION_BIAS(false),
                                    KEY("draft_vocab_size", draft_vocab, 0),
                                    KEY("norm_before_fc", reads_norm, false),
                                    KEY("norm_before_residual", normed_stream, false)),
               .rope_theta = 1e4,
               .own = family_eagle3_hf},
        .gguf = {.arch = "eagle3",
                 .settings = SETTINGS(KEY("norm_before_fc", reads_norm, false),
                                      KEY("norm_before_residual", normed_stream, false)),
                 .own = family_eagle3_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&eagle3_names, &speculators_names},
                                       .ignored = {"t2d"}},
                    [MOE_NAMING_GGUF].paired = true},
    },
    /* ... with DeepSeek's latent attention (vLLM's and SpecForge's deepseek_eagle3.py). */
    {
        .name = "eagle3_deepseek",
        .constants = SETTINGS(SET(drafter_kind, MOE_DRAFTS_EAGLE3), SET(own_head, true)),
        .hf = {.architecture = "Eagle3DeepseekV2ForCausalLM|Eagle3DeepseekV3ForCausalLM|"
                               "DeepseekV3ForCausalLMEagle3",
               .only = ONLY({"attention_bias", "false"}, {"rope_interleave", "true"},
                            {"fc_norm", "false"}, {"norm_output", "false"}),
               .settings = SETTINGS(CONTEXT(4096), DENSE_FF, LATENT(1536, 512, 128, 64, 128),
                                    KEY("draft_vocab_size", draft_vocab, 0),
                                    KEY("norm_before_residual", normed_stream, false)),
               .rope_theta = 1e4,
               .own = family_eagle3_deepseek_hf},
        .tensors[MOE_NAMING_HF] = {.names = {&latent_eagle3_names, &latent_vllm_names,
                                             &eagle3_names, &speculators_names},
                                   .paired = true,
                                   .ignored = {"t2d"}},
    },
    /* ... and DFlash, arXiv:2602.06036. */
    {
        .name = "dflash",
        .constants = SETTINGS(SET(drafter_kind, MOE_DRAFTS_DFLASH), SET(own_head, true),
                              SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.architecture =
                   "DFlashDraftModel|DFlashSpeculator|DSparkDraftModel|DSparkSpeculator|"
                   "Lfm2DSparkDraftModel|LingDSparkModel|Qwen3DSparkModel",
               .only = ONLY({"rope_is_neox_style", "true"}, {"markov_head_type", "vanilla"}),
               .settings =
                   SETTINGS(CONTEXT(32768), SET(n_kv_heads, 32), SET(head_dim, 128), DENSE_FF,
                            ATTENTION_BIAS(false), KEY("draft_vocab_size", draft_vocab, 0)),
               .rope_theta = 1e4,
               .partial_rotary = 1,
               .windows = {MOE_WINDOW_FROM, 4096, .if_used = true, .listed = true},
               .own = family_dflash_hf},
        .gguf = {.arch = "dflash",
                 .only = ONLY({"hidden_act", "silu"}, {"selector_rank", "0"}),
                 .settings = SETTINGS(KEY("block_size", draft_block, 16),
                                      KEY("attention.sliding_window", window, 0),
                                      KEY("attention.value_scale", value_scale, 0),
                                      KEY("attention.causal", causal_block, false)),
                 .own = family_dflash_gguf},
        .tensors = {[MOE_NAMING_HF] = {.names = {&dflash_names},
                                       .bare = true,
                                       .ignored = {"t2d", "confidence_head.*",
                                                   "model.confidence_head.*"}},
                    [MOE_NAMING_GGUF] = {.names = {&dflash_gguf_names, &dflash_tied_names},
                                         .ignored = {"conf_proj.*"}}},
    },
    {.name = NULL},
};

/* ---- What is not computed ---- */

/* Model types and architectures with experts that are no families here, and what they need. */
static const struct {
    const char *names, *why;
} left_out[] = {
    {"diffusion_gemma|diffusion_gemma_text|dream|llada|llada-moe|llada_moe|rnd1|sdar_moe",
     "it writes all of an answer at once and corrects it (diffusion), and answers are written here "
     "one token after the other"},
    {"nomic-bert-moe|nomic_bert|llama-embed|openai_privacy_filter",
     "it makes vectors or labels of a text and writes none"},
    {"qwen3_omni_moe_talker_text", "it makes sounds of a text"},
    {"DFlash2DraftModel",
     "a head that drafts blocks with convolutions, and chooses among several tokens for each "
     "place; DFlash's own are implemented"},
    {"DeepseekV4DSparkModel|Gemma4DSparkModel",
     "a head that drafts blocks by layers of its model's own kind; those of Qwen3's are "
     "implemented"},
    {"doge",
     "experts that are single columns, chosen by two keys, of which tokens of a prompt choose "
     "some for each other"},
    {"unlimited_ocr|unlimited_ocr_text", "attention that sees all of a prompt and a window of the "
                                         "answer"},
    {"deci", "layers of several shapes"},
};

const char *moe_family_left_out(const char *name)
{
    for (size_t i = 0; i < sizeof left_out / sizeof left_out[0]; i++)
        if (family_is_one_of(name, left_out[i].names))
            return left_out[i].why;
    return NULL;
}

/* ---- Finding a family ---- */

static const struct moe_family *const tables[] = {
    softmax_families,  granite_families, local_families, states_families,
    deepseek_families, stacks_families,  dense_families,
};

const struct moe_family *moe_family_at(int i)
{
    for (size_t t = 0; i >= 0 && t < sizeof tables / sizeof tables[0]; t++)
        for (const struct moe_family *family = tables[t]; family->name; family++)
            if (i-- == 0)
                return family;
    return NULL;
}

const struct moe_family *moe_family_find(const char *name)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (strcmp(family->name, name) == 0 ||
            (family->also && family_is_one_of(name, family->also)))
            return family;
    return NULL;
}

const struct moe_family *moe_family_find_architecture(const char *name)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (family->hf.architecture && family_is_one_of(name, family->hf.architecture))
            return family;
    return NULL;
}

const struct moe_family *moe_family_find_gguf(const char *arch, bool has_experts, bool sigmoid)
{
    const struct moe_family *family, *found = NULL;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (family->gguf.arch && strcmp(family->gguf.arch, arch) == 0 &&
            (!found || (family->gguf.dense == !has_experts && family->gguf.sigmoid == sigmoid)))
            found = family;
    return found;
}
