/* Families with an encoder, or whose prompt sees all of itself. */
#include "family/family_table.h"

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

const struct moe_family moe_families_stacks[] = {
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
    {.name = NULL},
};
