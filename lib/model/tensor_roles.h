/*
 * The tensors a model can have: one table entry per role says its name in packs, how it may be
 * stored, its shape, which models have it, and what checkpoints call it. Adding a role is an entry
 * here and a place in struct moe_model (infer/model.c).
 */
#ifndef MOE_MODEL_TENSOR_ROLES_H
#define MOE_MODEL_TENSOR_ROLES_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"

/* Every dense tensor a model can have. */
enum moe_tensor_role {
    MOE_T_EMBED,
    MOE_T_POSITIONS,       /* a learnt vector for each position, added to the embedding */
    MOE_T_EXTRA_POSITIONS, /* ... to the input of layer extra_positions */
    MOE_T_FINAL_NORM,
    MOE_T_FINAL_NORM_BIAS,
    MOE_T_LAST_PROJECTION, /* in place of the final norm */
    MOE_T_LAST_PROJECTION_BIAS,
    MOE_T_ENCODER_NORM, /* the last of the encoder */
    MOE_T_LAST_MIX,     /* of several streams, behind the last layer */
    MOE_T_LAST_MIX_BIAS,
    MOE_T_LAST_MIX_SCALE,
    MOE_T_HEAD, /* absent when tied */
    MOE_T_HEAD_BIAS,
    MOE_T_ATTN_NORM,
    MOE_T_ATTN_NORM_BIAS,
    MOE_T_ATTN_END_NORM, /* where norms stand on both sides of blocks */
    MOE_T_Q_DOWN,
    MOE_T_Q_DOWN_NORM,
    MOE_T_Q,
    MOE_T_K,
    MOE_T_V,
    MOE_T_Q_BIAS,
    MOE_T_K_BIAS,
    MOE_T_V_BIAS,
    MOE_T_Q_NORM,
    MOE_T_K_NORM,
    /* Latent attention. The rows of KV_DOWN: the latent vector, then the rotated values. K_UP is,
     * head by head, the transpose of the matrix that makes keys: it carries queries into the
     * latent space. */
    MOE_T_KV_DOWN,
    MOE_T_KV_DOWN_NORM,
    MOE_T_K_UP,
    MOE_T_V_UP,
    /* An indexer (config.h): its queries, keys with a norm, and how much each head counts. */
    MOE_T_INDEX_Q,
    MOE_T_INDEX_K,
    MOE_T_INDEX_K_NORM,
    MOE_T_INDEX_K_NORM_BIAS,
    MOE_T_INDEX_WEIGHTS,
    MOE_T_SINKS,
    MOE_T_O,
    MOE_T_O_BIAS,
    MOE_T_ATTN_GATE,
    /* Shared keys, whose one head K makes. */
    MOE_T_OUT_DOWN, /* [out_groups * out_rank][values of a group of heads] */
    /* What entries are made of: values, the logarithms of their weights, and biases of these by
     * place in the group; where groups overlap each first for the next group, then for its own. */
    MOE_T_ENTRY,
    MOE_T_ENTRY_GATE,
    MOE_T_ENTRY_BIAS, /* [ratio][width] */
    MOE_T_ENTRY_NORM,
    MOE_T_INDEX_ENTRY, /* the same of the entries that an indexer scores */
    MOE_T_INDEX_GATE,
    MOE_T_INDEX_BIAS,
    MOE_T_INDEX_NORM,
    /* Of several streams, before attention and before the feed-forward: the matrix that makes of
     * all of them how they are mixed (in, out, each into each), with biases and three scales. */
    MOE_T_ATTN_MIX,
    MOE_T_ATTN_MIX_BIAS,
    MOE_T_ATTN_MIX_SCALE,
    MOE_T_FFN_MIX,
    MOE_T_FFN_MIX_BIAS,
    MOE_T_FFN_MIX_SCALE,
    /* Layers with a recurrent state, in the place of all of the above but the norm. */
    MOE_T_STATE_Q,
    MOE_T_STATE_K,
    MOE_T_STATE_V,
    MOE_T_STATE_Z,          /* the gate of what the state gives */
    MOE_T_STATE_DECAY_NORM, /* of Mamba: of the vector that steps are made of, of keys, of queries
                             */
    MOE_T_STATE_K_NORM,
    MOE_T_STATE_Q_NORM,
    MOE_T_STATE_Z_DOWN, /* of KDA: into the vector that gates are made of; and decays */
    MOE_T_STATE_DECAY_DOWN,
    MOE_T_STATE_SCALE, /* of a short convolution: what its input's values are scaled by */
    MOE_T_STATE_BETA,  /* how much of a value is written, by head */
    MOE_T_STATE_DECAY, /* ... and of the state forgotten, with the next two */
    MOE_T_STATE_STEP,
    MOE_T_STATE_RATE, /* a logarithm; of Mamba [keys][values] */
    MOE_T_STATE_SKIP, /* by head, or of Mamba by value: how much of a token's values is added to
                         what its state gives */
    MOE_T_STATE_CONV, /* [conv_width][channels], the oldest token's first */
    MOE_T_STATE_CONV_BIAS,
    MOE_T_STATE_CONV_Q, /* of KDA, which has one for each: STATE_CONV is that of values */
    MOE_T_STATE_CONV_K,
    MOE_T_STATE_NORM,
    MOE_T_STATE_O,
    MOE_T_POSITION_BIAS, /* [n_buckets][n_heads], of a stack's first layer: for all of the stack */
    MOE_T_CROSS_NORM,    /* attention to the encoder's output, here and below */
    MOE_T_CROSS_Q,
    MOE_T_CROSS_K,
    MOE_T_CROSS_V,
    MOE_T_CROSS_O,
    MOE_T_FFN_NORM, /* with own_norms of what routed experts take in */
    MOE_T_FFN_END_NORM,
    MOE_T_LAYER_SCALE, /* [1] */
    MOE_T_FFN_NORM_BIAS,
    MOE_T_GATE, /* the feed-forward of dense layers */
    MOE_T_UP,
    MOE_T_DOWN,
    MOE_T_UP_BIAS,
    MOE_T_DOWN_BIAS,
    MOE_T_ROUTER,
    MOE_T_ROUTER_BIAS,
    MOE_T_ROUTER_NORM,
    MOE_T_EXPERT_SCALE, /* what weights are multiplied by, by expert */
    MOE_T_CHOICE_BIAS,  /* for the choice alone */
    MOE_T_ROUTES,       /* [vocab][top_k] experts by token, in place of a router (model/routes.h) */
    MOE_T_SHARED_GATE_PROJ,
    MOE_T_SHARED_UP,
    MOE_T_SHARED_DOWN,
    MOE_T_SHARED_GATE, /* scales the shared expert's output */
    MOE_T_SHARED_NORM, /* own_norms: before it, behind it, behind the sum of the routed ones */
    MOE_T_SHARED_END_NORM,
    MOE_T_EXPERTS_END_NORM,
    MOE_T_BYPASS, /* of MoE layers, beside the experts */
    /* A layer that drafts (infer/forward.h): norms of the next token's embedding and of the state,
     * the matrix [hidden][embedding | state] that joins them, the norm after the layer. */
    MOE_T_AHEAD_TOKEN_NORM,
    MOE_T_AHEAD_STATE_NORM,
    MOE_T_AHEAD_JOIN,
    MOE_T_AHEAD_NORM,
    MOE_T_N_ROLES
};

/* The parts of an expert, in the order of a pack's roles (MOE_ROLE_GATE on): matrices, then their
 * biases. */
enum moe_expert_part {
    MOE_E_GATE,
    MOE_E_UP,
    MOE_E_DOWN,
    MOE_E_GATE_BIAS,
    MOE_E_UP_BIAS,
    MOE_E_DOWN_BIAS,
    MOE_E_N_PARTS
};

/* How a tensor may be stored. */
enum moe_tensor_kind {
    MOE_KIND_VECTOR, /* plain f32: norms, biases */
    MOE_KIND_DENSE,  /* a matrix stored at --dense bits */
    MOE_KIND_ROUTER, /* a matrix that decides routing: kept at 16 bits or better */
    MOE_KIND_EXPERT, /* a matrix of an expert, stored once per variant */
};

/* ---- Where tensors lie in a checkpoint ---- */

/* Which part of a checkpoint's tensor a matrix [rows][cols] (a vector: cols 1, one dimension less)
 * is. Where the name of an expert's tensor has no "%u" for the expert, the tensor holds all of
 * them: n_experts is then its first dimension, before those given here. */
enum moe_take {
    MOE_TAKE_ALL = 0,     /* the tensor is [rows][cols]; the rows may lie in several dimensions */
    MOE_TAKE_EXPERT,      /* [rows][cols], after n_experts */
    MOE_TAKE_FIRST_HALF,  /* [2 * rows][cols]: its first rows */
    MOE_TAKE_SECOND_HALF, /* ... its last rows */
    MOE_TAKE_EVEN,        /* [2 * rows][cols]: rows 0, 2, 4, ... */
    MOE_TAKE_ODD,         /* ... rows 1, 3, 5, ... */
    MOE_TAKE_KEYS, /* [heads * (nope + value_dim)][kv_rank], per head the keys' rows: transposed */
    MOE_TAKE_VALUES, /* ... per head the values' rows */
    /* [2 * rows][cols]: per head the queries' rows, then those of the output's gate */
    MOE_TAKE_HEAD_QUERY,
    MOE_TAKE_HEAD_GATE,
    /* Of a recurrent state, per key head: the rows of queries, keys, values and gates; or of what
     * is written and forgotten. Which of them the role says. */
    MOE_TAKE_STATE_HEADS,
    /* The same of queries, keys and values one after the other, all heads'; of MOE_STATE_SCAN
     * gates, values, keys, queries and decays; of MOE_STATE_SELECT decays, keys and queries. */
    MOE_TAKE_STATE_ROWS,
    MOE_TAKE_ATTENTION, /* [queries + keys + values][cols], by the role */
    MOE_TAKE_THIRD,     /* [3 * rows][cols]: of a short convolution scale, gate and values */
    MOE_TAKE_BUCKETS,   /* a vector that is [n_buckets][n_heads] */
    MOE_TAKE_ROW,       /* a vector that is [1][rows] */
    MOE_TAKE_GROUPS,    /* a vector that is [state_key_heads][rows / state_key_heads] */
    MOE_TAKE_CONV,      /* a vector [conv_width][channels] that is [channels][1][conv_width], or has
                           dimensions of 1 elsewhere or none */
    MOE_TAKE_TURNED,    /* a vector [keys][values] that is [values][keys] */
    MOE_TAKE_PLACES,    /* a vector that is [ratio][width] */
    MOE_TAKE_ROUTES,    /* a vector that is [vocab][top_k], of whole numbers */
};

/* How a vector's values are stored. */
enum moe_stored {
    MOE_STORED_PLAIN = 0,
    MOE_STORED_LESS_ONE,    /* the model computes with 1 + what is there */
    MOE_STORED_NEGATIVE_EXP /* -exp of what the model computes with is there */
};

/* The first "%u" of a name is the layer, the second the expert. */
struct moe_source {
    const char *name; /* NULL: never there */
    enum moe_take take;
    /* The last two dimensions are [cols][rows] (before halves are taken). Not so for types that
     * quantize blocks of columns. */
    bool transposed;
    bool either; /* transposed only where its shape is not that of a tensor which is not */
    enum moe_stored stored;
};

/* How tables spell a source: a whole tensor, or what is taken of one. */
#define MOE_ALL(path)                                                                              \
    {                                                                                              \
        .name = (path)                                                                             \
    }
#define MOE_PART(path, what)                                                                       \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what                                                    \
    }

#define MOE_PLUS_ONE(path)                                                                         \
    {                                                                                              \
        .name = (path), .stored = MOE_STORED_LESS_ONE                                              \
    }

#define MOE_NEGATIVE_EXP(path, what)                                                               \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what, .stored = MOE_STORED_NEGATIVE_EXP                 \
    }

/* Who named a checkpoint's tensors. */
enum moe_naming {
    MOE_NAMING_HF,   /* "model.layers.%u.self_attn.q_proj.weight": Llama's, as most families have */
    MOE_NAMING_GGUF, /* "blk.%u.attn_q.weight" */
    MOE_N_NAMINGS,
};

enum { MOE_MAX_USUAL_NAMES = 3 };

/* ---- The table ---- */

struct moe_tensor_spec {
    const char *pack_name; /* "layers.%u.attn.q": "%u" is the layer; of a part: for people */
    enum moe_tensor_kind kind;
    bool per_layer;
    uint8_t condition, rows, cols; /* tensor_roles.c: which models have it, and its shape */
    /* What checkpoints usually call it, in the order in which names are tried; a family may have
     * names of its own (family.h), tried before these. */
    struct moe_source names[MOE_N_NAMINGS][MOE_MAX_USUAL_NAMES];
};

const struct moe_tensor_spec *moe_tensor_spec(enum moe_tensor_role role);
const struct moe_tensor_spec *moe_expert_part_spec(enum moe_expert_part part);

/* Tensors that may be in a checkpoint and are not needed, '*' at the end for any end; NULL ends
 * them. */
extern const char *const moe_ignored_names[MOE_N_NAMINGS][8];

/* Whether the model has it (in this layer), and its shape; vectors have *cols = 1. */
bool moe_tensor_shape(const struct moe_config *config, enum moe_tensor_role role, uint32_t layer,
                      uint32_t *rows, uint32_t *cols);
/* Writes the pack name into out (MOE_NAME_BYTES of room). */
void moe_tensor_pack_name(enum moe_tensor_role role, uint32_t layer, char *out);
/* Whether the model's experts have this part, and its shape; biases have *cols = 1. */
bool moe_expert_part_shape(const struct moe_config *config, enum moe_expert_part part,
                           uint32_t *rows, uint32_t *cols);

/* Whether the part belongs to the down projection, which has bits and a segment of its own. */
static inline bool moe_expert_part_is_down(enum moe_expert_part part)
{
    return part == MOE_E_DOWN || part == MOE_E_DOWN_BIAS;
}

static inline bool moe_expert_part_is_bias(enum moe_expert_part part)
{
    return part >= MOE_E_GATE_BIAS;
}

#endif
