/*
 * The table of model families. Keys and defaults are those of the public configuration classes
 * (MixtralConfig, ...) or of the code published with a model; GGUF's are those of the gguf package
 * (constants.py) and of llama.cpp's readers.
 *
 * Over 400 lines: it is one table.
 */
#include <string.h>

#include "model/family.h"
#include "model/family_own.h"

/* ---- Words of the table ---- */

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
/* Latent attention: what heads have that is not rotated, what is, and values; the rotated part is
 * added to head_dim. */
#define LATENT(q, kv, plain, rotated, values)                                                      \
    KEY("q_lora_rank", q_rank, q), KEY("kv_lora_rank", kv_rank, kv),                               \
        KEY("qk_nope_head_dim", head_dim, plain), KEY("qk_rope_head_dim", rope_dim, rotated),      \
        KEY("v_head_dim", value_dim, values)
#define LATENT_GGUF                                                                                \
    KEY("attention.q_lora_rank", q_rank, 0), KEY("attention.kv_lora_rank", kv_rank, 0),            \
        KEY("attention.key_length_mla", head_dim, 0),                                              \
        KEY("attention.value_length_mla", value_dim, 0), GGUF_GROUPS, GGUF_NORM_TOPK(false)
/* DeepSeek-V3's router. The norms inside its attention have an epsilon of 1e-6 whatever the key
 * says. */
#define SIGMOIDS SET(router_kind, MOE_ROUTER_SIGMOID), SET(choice_bias, true)
#define LATENT_SIGMOIDS SIGMOIDS, SET(latent_eps, 1e-6)

#define L "model.layers.%u."

/* ---- Names of their own ---- */

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
static const struct moe_source_names qwen2_moe_names = {
    .dense = {[MOE_T_SHARED_GATE_PROJ] = MOE_ALL(L "mlp.shared_expert.gate_proj.weight"),
              [MOE_T_SHARED_UP] = MOE_ALL(L "mlp.shared_expert.up_proj.weight"),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "mlp.shared_expert.down_proj.weight")},
};
/* Norms of the stream, of queries and keys are stored as what they differ from 1. */
static const struct moe_source_names qwen3_next_names = {
    .dense = {[MOE_T_FINAL_NORM] = MOE_PLUS_ONE("model.norm.weight"),
              [MOE_T_ATTN_NORM] = MOE_PLUS_ONE(L "input_layernorm.weight"),
              [MOE_T_FFN_NORM] = MOE_PLUS_ONE(L "post_attention_layernorm.weight"),
              [MOE_T_Q] = MOE_PART(L "self_attn.q_proj.weight", HEAD_QUERY),
              [MOE_T_Q_NORM] = MOE_PLUS_ONE(L "self_attn.q_norm.weight"),
              [MOE_T_K_NORM] = MOE_PLUS_ONE(L "self_attn.k_norm.weight")},
};
/* As newer writers store Phi-3.5-MoE. */
static const struct moe_source_names phimoe_newer_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "mlp.router.weight")},
};
static const struct moe_source_names granite_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.router.layer.weight"),
              [MOE_T_SHARED_GATE_PROJ] = MOE_PART(L "shared_mlp.input_linear.weight", FIRST_HALF),
              [MOE_T_SHARED_UP] = MOE_PART(L "shared_mlp.input_linear.weight", SECOND_HALF),
              [MOE_T_SHARED_DOWN] = MOE_ALL(L "shared_mlp.output_linear.weight")},
    .expert = {[MOE_E_GATE] = MOE_PART(L "block_sparse_moe.input_linear.weight", FIRST_HALF),
               [MOE_E_UP] = MOE_PART(L "block_sparse_moe.input_linear.weight", SECOND_HALF),
               [MOE_E_DOWN] = MOE_PART(L "block_sparse_moe.output_linear.weight", EXPERT)},
};
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
/* As newer writers store Granite. */
static const struct moe_source_names granite_newer_names = {
    .dense = {[MOE_T_ROUTER] = MOE_ALL(L "block_sparse_moe.router.weight")},
    .expert = {[MOE_E_GATE] = MOE_PART(L "block_sparse_moe.experts.gate_up_proj", FIRST_HALF),
               [MOE_E_UP] = MOE_PART(L "block_sparse_moe.experts.gate_up_proj", SECOND_HALF),
               [MOE_E_DOWN] = MOE_PART(L "block_sparse_moe.experts.down_proj", EXPERT)},
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
/* GGUF calls this norm by its place. */
static const struct moe_source_names placed_norm_names = {
    .dense = {[MOE_T_FFN_NORM] = MOE_ALL("blk.%u.post_attention_norm.weight")},
};

/* Switch Transformers: the sublayers of a block are numbered, and a decoder has one more. */
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

/* Granite with a shared expert reads one key more. */
#define GRANITE_SETTINGS                                                                           \
    EXPERT_FF, LOCAL_EXPERTS(8), TOP_K(2), KEY("embedding_multiplier", embed_scale, 0),            \
        KEY("residual_multiplier", residual_scale, 0),                                             \
        USE("attention_multiplier", attn_scale, 1, MOE_NOT_ZERO),                                  \
        USE("logits_scaling", logit_scale, 0, MOE_RECIPROCAL), ATTENTION_BIAS(false)
#define GRANITE_NAMES .names = {&granite_names, &granite_newer_names}

/* Experts and recurrent states of Qwen3-Next and its successors. */
#define QWEN3_NEXT_SETTINGS                                                                        \
    KEY("moe_intermediate_size", expert_ff, 512),                                                  \
        KEY("shared_expert_intermediate_size", shared_ff, 512),                                    \
        KEY("linear_num_value_heads", state_heads, 32),                                            \
        KEY("linear_num_key_heads", state_key_heads, 16),                                          \
        KEY("linear_key_head_dim", state_key_dim, 128),                                            \
        KEY("linear_value_head_dim", state_value_dim, 128),                                        \
        KEY("linear_conv_kernel_dim", conv_width, 4)

/* ---- The families ---- */

static const struct moe_family families[] = {
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
        .tensors[MOE_NAMING_HF].names = {&qwen2_moe_names},
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
        .tensors[MOE_NAMING_HF].names = {&qwen3_next_names, &qwen2_moe_names},
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
        .tensors[MOE_NAMING_HF].names = {&qwen3_next_names, &qwen2_moe_names},
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
        .hf = {.only = ONLY({"attention_bias", "false"}, {"scoring_func", "sigmoid"},
                            {"topk_method", "noaux_tc"}, {"moe_layer_freq", "1"},
                            {"rope_interleave", "true"}),
               .settings = SETTINGS(
                   CONTEXT(4096), DENSE_FF, KEY("n_routed_experts", n_experts, 256), TOP_K(8),
                   KEY("moe_intermediate_size", expert_ff, 2048), LATENT(1536, 512, 128, 64, 128),
                   GROUPS(8, 4), KEY("norm_topk_prob", norm_topk, true),
                   KEY("routed_scaling_factor", routed_scale, 2.5)),
               .rope_theta = 1e4,
               .expert_layers = MOE_LAYERS_AFTER,
               .n_shared = 1,
               .n_dense = 3,
               .own = family_deepseek_v3_hf},
        .gguf = {.arch = "deepseek2",
                 .sigmoid = true,
                 .settings = SETTINGS(LATENT_GGUF),
                 .own = family_deepseek_v3_gguf},
        .tensors = {[MOE_NAMING_HF] = {.paired = true}, [MOE_NAMING_GGUF] = {.paired = true}},
    },
    /* GLM-4.7-Flash: the same with other widths, one group. GGUF files call it deepseek2, and may
     * say nothing of sigmoids. */
    {
        .name = "glm4_moe_lite",
        .constants = SETTINGS(LATENT_SIGMOIDS),
        .hf = {.only = ONLY({"attention_bias", "false"}, {"scoring_func", "sigmoid"},
                            {"topk_method", "noaux_tc"}, {"moe_layer_freq", "1"},
                            {"rope_interleave", "true"}, {"partial_rotary_factor", "1"}),
               .settings = SETTINGS(CONTEXT(202752), SET(norm_eps, 1e-5), DENSE_FF,
                                    KEY("n_routed_experts", n_experts, 64), TOP_K(4),
                                    KEY("moe_intermediate_size", expert_ff, 1536),
                                    LATENT(768, 512, 192, 64, 256), GROUPS(1, 1),
                                    KEY("norm_topk_prob", norm_topk, true),
                                    KEY("routed_scaling_factor", routed_scale, 1.8)),
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
        .hf = {.only = ONLY({"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},
                            {"moe_layer_freq", "1"}),
               .settings = SETTINGS(CONTEXT(131072), SET(norm_eps, 1e-5), SET(n_kv_heads, 8),
                                    DENSE_FF, KEY("n_routed_experts", n_experts, 128), TOP_K(8),
                                    KEY("moe_intermediate_size", expert_ff, 1408), GROUPS(1, 1),
                                    KEY("norm_topk_prob", norm_topk, true),
                                    KEY("routed_scaling_factor", routed_scale, 1),
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
        .tensors[MOE_NAMING_GGUF].names = {&placed_norm_names},
    },
    /* dots.llm1: Qwen3's attention, DeepSeek-V3's router. */
    {
        .name = "dots1",
        .constants = SETTINGS(SIGMOIDS, SET(qk_norm, MOE_QK_NORM_HEAD)),
        .hf = {.only = ONLY({"scoring_func", "sigmoid|noaux_tc"}, {"topk_method", "noaux_tc"},
                            {"moe_layer_freq", "1"}),
               .settings = SETTINGS(
                   CONTEXT(2048), DENSE_FF, KEY("n_routed_experts", n_experts, 0), TOP_K(0),
                   KEY("moe_intermediate_size", expert_ff, 1408), GROUPS(1, 1), NORM_TOPK,
                   KEY("routed_scaling_factor", routed_scale, 1), ATTENTION_BIAS(false)),
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
    /* Phi-3.5-MoE: layer norms with biases, biases in attention and in the head, two experts chosen
     * by sparsemixer, LongRoPE. GGUF does not have sparsemixer's threshold: that of the published
     * model. */
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
                    [MOE_NAMING_GGUF] = {.names = {&placed_norm_names}}},
    },
    /* Switch Transformers: base-8 to base-256, large-128, xxl-128. T5's stacks with one of many
     * experts for a row. Padding tokens are not computed here, so that ignoring them says nothing;
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
                                   .encoder = &switch_encoder_names,
                                   .copies = {"encoder.embed_tokens.weight",
                                              "decoder.embed_tokens.weight"}},
    },
    /* GPTSAN: a prefix LM whose norms stand behind attention and feed-forward; MoE layers of one
     * expert for a row with a bypass beside it, then perhaps dense layers with positions of their
     * own. Its "spout", a vector beside the text, is not given here, and so computes nothing. */
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

    /* Dense models: the case without experts. */
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
               .windows = {MOE_WINDOW_ALL, 4096}},
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
};

const struct moe_family *moe_family_at(int i)
{
    return i >= 0 && (size_t)i < sizeof families / sizeof families[0] ? &families[i] : NULL;
}

const struct moe_family *moe_family_find(const char *name)
{
    const struct moe_family *family;
    for (int i = 0; (family = moe_family_at(i)) != NULL; i++)
        if (strcmp(family->name, name) == 0 || (family->also && strcmp(family->also, name) == 0))
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
