/*
 * The words that the tables of families are written in (families_*.c). Internal to lib/family.
 */
#ifndef MOE_FAMILY_FAMILY_TABLE_H
#define MOE_FAMILY_FAMILY_TABLE_H

#include "family/family.h"
#include "family/family_own.h"

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
/* What an indexer has: heads, their width, positions that it chooses. */
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
/* Experts beside shared ones, as DeepSeek's descendants spell them. */
#define ROUTED_EXPERTS(number, chosen, width, normalised, scale)                                   \
    KEY("n_routed_experts", n_experts, number), TOP_K(chosen),                                     \
        KEY("moe_intermediate_size", expert_ff, width),                                            \
        KEY("norm_topk_prob", norm_topk, normalised),                                              \
        KEY("routed_scaling_factor", routed_scale, scale)
/* What else there is of DeepSeek-V3's router in config.json, of which one value is implemented. */
#define SIGMOIDS_ONLY                                                                              \
    {"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"},                                      \
    {                                                                                              \
        "moe_layer_freq", "1"                                                                      \
    }
/* DeepSeek-V3's router. The norms inside its attention have an epsilon of 1e-6 whatever the key
 * says. */
#define SIGMOIDS SET(router_kind, MOE_ROUTER_SIGMOID), SET(choice_bias, true)
#define LATENT_SIGMOIDS SIGMOIDS, SET(latent_eps, 1e-6)

/* Of states with several heads, in GGUF. */
#define STATES_GGUF                                                                                \
    KEY("ssm.conv_kernel", conv_width, 0), KEY("ssm.state_size", state_key_dim, 0),                \
        KEY("ssm.group_count", state_key_heads, 0), KEY("ssm.time_step_rank", state_heads, 0)

#define L "model.layers.%u."
#define B "blk.%u."

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

/* GGUF calls the norm before feed-forwards by its place. */
extern const struct moe_source_names moe_placed_norm_names;
/* Tensors of a Mamba-2 layer in GGUF. */
extern const struct moe_source_names moe_mamba_gguf_names;
/* One shared expert, beside routed ones as usual. */
extern const struct moe_source_names moe_qwen2_moe_names;

/* The tables, by what families have in common; an entry without a name ends each. */
extern const struct moe_family moe_families_softmax[]; /* experts chosen by a softmax */
extern const struct moe_family moe_families_granite[];
extern const struct moe_family moe_families_local[];    /* local and global layers */
extern const struct moe_family moe_families_states[];   /* recurrent states in most layers */
extern const struct moe_family moe_families_deepseek[]; /* and those with its router */
extern const struct moe_family moe_families_stacks[];   /* encoders, or half of one */
extern const struct moe_family moe_families_dense[];    /* the case without experts */

#endif
