/*
 * Tensors that a model can have. Each role has a table entry: its name in packs, how it may be
 * stored, its shape, which models have it, and its names in checkpoints. To add a role, add an
 * entry there and a member of struct moe_model (infer/model.c).
 */
#ifndef MOE_MODEL_TENSOR_ROLES_H
#define MOE_MODEL_TENSOR_ROLES_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"

/* Tensors outside experts. */
enum moe_tensor_role {
    MOE_T_EMBED,
    MOE_T_EMBED_WEIGHT, /* of an embedded token, with MOE_RESIDUAL_WEIGHED or embed_weighed */
    MOE_T_EMBED_BIAS,
    MOE_T_POSITIONS,       /* learnt positions, added to the embedding */
    MOE_T_EXTRA_POSITIONS, /* ... and to the input of layer extra_positions */
    /* Embeddings by layer, side by side, and what each layer has of the embedding beside its own,
     * under a norm. */
    MOE_T_LAYER_EMBED,
    MOE_T_LAYER_EMBED_MIX,
    MOE_T_LAYER_EMBED_NORM,
    MOE_T_FINAL_NORM,
    MOE_T_FINAL_NORM_BIAS,
    MOE_T_LAST_PROJECTION, /* in place of the final norm */
    MOE_T_LAST_PROJECTION_BIAS,
    MOE_T_ENCODER_NORM, /* the encoder's last norm */
    MOE_T_ENCODER_NORM_BIAS,
    MOE_T_LAST_GATE_NORM, /* gated streams: a norm of each, and the matrices of their gates */
    MOE_T_LAST_GATE_DOWN,
    MOE_T_LAST_GATE_UP,
    MOE_T_LAST_MIX, /* of hyper-connections, after the last layer */
    MOE_T_LAST_MIX_BIAS,
    MOE_T_LAST_MIX_SCALE,
    MOE_T_LAST_SCORES, /* of residual attention */
    MOE_T_HEAD,        /* absent if tied */
    MOE_T_HEAD_BIAS,
    MOE_T_ATTN_NORM,
    MOE_T_ATTN_NORM_BIAS,
    MOE_T_ATTN_NORM_DOWN, /* gates of norms (config.h), here and below */
    MOE_T_ATTN_NORM_UP,
    MOE_T_ATTN_END_NORM, /* where norms are before and after blocks */
    MOE_T_ATTN_KEEP,     /* of residuals (enum moe_residual_kind), here and below */
    MOE_T_ATTN_KEEP_BIAS,
    MOE_T_ATTN_WEIGHT,
    MOE_T_ATTN_WEIGHT_BIAS,
    MOE_T_Q_DOWN,
    MOE_T_Q_DOWN_NORM,
    MOE_T_Q,
    MOE_T_K,
    MOE_T_V,
    MOE_T_V_LATE,    /* MOE_STATE_CCA: of values that the next token has, */
    MOE_T_HEAD_CONV, /* ... convolutions by channel of queries and keys, [conv_width][all heads'],
                      */
    MOE_T_HEAD_CONV_BIAS,
    MOE_T_HEAD_MIX, /* ... by head, a row for each of its values, [head_dim][conv_width], */
    MOE_T_HEAD_MIX_BIAS,
    MOE_T_KEY_SCALE,   /* ... of a head's keys */
    MOE_T_ATTN_ROUTER, /* of attn_experts, whose queries and outputs Q and O make */
    MOE_T_REL,         /* of biases by distance: each head's rel_dim numbers, */
    MOE_T_REL_SCALE,   /* ... weights of these, with rel_clip, */
    MOE_T_PROFILES,    /* ... profiles [rel_dim][moe_config_rel_extent] */
    MOE_T_TAPS_K,      /* MOE_STATE_TAPS: convolutions, each [conv_width][channels] */
    MOE_T_TAPS_V,      /* ... of own_taps and layers without a window the latest token first, and */
    MOE_T_TAPS_K_OWN,  /* ... what each token adds to heads' weights */
    MOE_T_TAPS_V_OWN,
    MOE_T_OWN_SINKS, /* of own_sinks */
    MOE_T_K_SCORES,  /* of own_inputs: scores of streams, and norms */
    MOE_T_V_SCORES,
    MOE_T_K_INPUT_NORM,
    MOE_T_V_INPUT_NORM,
    /* Of looped layers, for what queries, keys, values and the feed-forward take in: scores of the
     * pass before, and what makes gates of a message (infer/cpu_streams.c). */
    MOE_T_Q_TOLD_SCORES,
    MOE_T_Q_TOLD_DOWN,
    MOE_T_Q_FORGET,
    MOE_T_Q_TOLD,
    MOE_T_K_TOLD_SCORES,
    MOE_T_K_TOLD_DOWN,
    MOE_T_K_FORGET,
    MOE_T_K_TOLD,
    MOE_T_V_TOLD_SCORES,
    MOE_T_V_TOLD_DOWN,
    MOE_T_V_FORGET,
    MOE_T_V_TOLD,
    MOE_T_FFN_TOLD_SCORES,
    MOE_T_FFN_TOLD_DOWN,
    MOE_T_FFN_FORGET,
    MOE_T_FFN_TOLD,
    MOE_T_TAPS_ATTN,
    MOE_T_TAPS_FFN,
    MOE_T_FFN_FACTOR, /* of ffn_scale, [1] */
    MOE_T_Q_BIAS,
    MOE_T_K_BIAS,
    MOE_T_V_BIAS,
    MOE_T_Q_NORM,
    MOE_T_K_NORM,
    /* MLA. Rows of KV_DOWN: the latent vector, then the rotated values. K_UP is, head by head, the
     * transpose of the matrix that makes keys: it takes queries into the latent space. */
    MOE_T_KV_DOWN,
    MOE_T_KV_DOWN_NORM,
    MOE_T_K_UP,
    MOE_T_V_UP,
    MOE_T_ROPE_LOGS,  /* [rope_dim / 2] of rope_learnt */
    MOE_T_HEAD_SLOPE, /* of tempered_heads, here and of an indexer */
    MOE_T_HEAD_BASE,
    /* An indexer (config.h): queries, with a norm of their input if that is the layer's, keys with
     * a norm, and each head's weight; where it chooses blocks a norm of each head's queries, and no
     * biases and weights. */
    MOE_T_INDEX_SLOPE,
    MOE_T_INDEX_BASE,
    MOE_T_INDEX_Q_NORM,
    MOE_T_INDEX_Q_NORM_BIAS,
    MOE_T_INDEX_Q,
    MOE_T_INDEX_HEAD_NORM,
    MOE_T_INDEX_K,
    MOE_T_INDEX_K_NORM,
    MOE_T_INDEX_K_NORM_BIAS,
    MOE_T_INDEX_WEIGHTS,
    MOE_T_SINKS,
    MOE_T_O,
    MOE_T_O_BIAS,
    MOE_T_ATTN_GATE,
    MOE_T_ATTN_GATE_BIAS,
    /* Compressed attention; K makes its one head of keys. */
    MOE_T_OUT_DOWN, /* [out_groups * out_rank][values of a group of heads] */
    /* Compressed entries: values, the logarithms of their weights, and biases of these by place
     * in the group. Where groups overlap, each tensor has the next group's part first, then its
     * own. */
    MOE_T_ENTRY,
    MOE_T_ENTRY_GATE,
    MOE_T_ENTRY_BIAS, /* [ratio][width] */
    MOE_T_ENTRY_NORM,
    MOE_T_INDEX_ENTRY, /* the same for entries that an indexer scores */
    MOE_T_INDEX_GATE,
    MOE_T_INDEX_BIAS,
    MOE_T_INDEX_NORM,
    /* Hyper-connections, before attention and before the feed-forward: the matrix that computes,
     * from all streams, how they are mixed (in, out, each into each), its biases and three
     * scales. */
    MOE_T_ATTN_MIX,
    MOE_T_ATTN_MIX_BIAS,
    MOE_T_ATTN_MIX_SCALE,
    MOE_T_FFN_MIX,
    MOE_T_FFN_MIX_BIAS,
    MOE_T_FFN_MIX_SCALE,
    MOE_T_ATTN_SCORES, /* residual attention's, in their place */
    MOE_T_FFN_SCORES,
    MOE_T_ATTN_GATE_NORM, /* gated streams', before both blocks */
    MOE_T_ATTN_GATE_DOWN,
    MOE_T_ATTN_GATE_UP,
    MOE_T_FFN_GATE_NORM,
    MOE_T_FFN_GATE_DOWN,
    MOE_T_FFN_GATE_UP,
    /* Embeddings of n-grams (config.h): the table, what makes keys for all streams and a value of
     * them, norms of these keys, of streams and of what is convolved, the convolution. */
    MOE_T_NGRAMS,
    MOE_T_NGRAM_KEY,
    MOE_T_NGRAM_VALUE,
    MOE_T_NGRAM_KEY_NORM,
    MOE_T_NGRAM_QUERY_NORM,
    MOE_T_NGRAM_CONV_NORM,
    MOE_T_NGRAM_CONV,
    /* Recurrent layers, instead of all above but the norm. */
    MOE_T_STATE_Q,
    MOE_T_STATE_K,
    MOE_T_STATE_V,
    MOE_T_STATE_Z,          /* the gate of the state's output */
    MOE_T_STATE_DECAY_NORM, /* Mamba: norms of the vector that steps are computed from, of keys, of
                               queries */
    MOE_T_STATE_K_NORM,
    MOE_T_STATE_Q_NORM,
    MOE_T_STATE_Z_DOWN, /* KDA: the vectors that gates, and decays, are computed from */
    MOE_T_STATE_DECAY_DOWN,
    MOE_T_STATE_SCALE, /* short convolution: the scale of its input */
    MOE_T_STATE_BETA,  /* how much of a value is written, per head */
    MOE_T_STATE_DECAY, /* ... and how much of the state is forgotten, with the next two */
    MOE_T_STATE_STEP,
    MOE_T_STATE_RATE, /* a logarithm; Mamba: [keys][values] */
    MOE_T_STATE_SKIP, /* per head, or Mamba per value: how much of a token's values is added to the
                         state's output */
    MOE_T_STATE_CONV, /* [conv_width][channels], oldest token first */
    MOE_T_STATE_CONV_BIAS,
    MOE_T_STATE_CONV_Q, /* KDA: of queries and of keys; STATE_CONV is then the values' */
    MOE_T_STATE_CONV_K,
    MOE_T_STATE_NORM,
    MOE_T_STATE_O,
    MOE_T_POSITION_BIAS, /* [n_buckets][n_heads], in a stack's first layer, for the whole stack */
    MOE_T_CROSS_NORM,    /* attention to the encoder's output, here and below */
    MOE_T_CROSS_Q,
    MOE_T_CROSS_K,
    MOE_T_CROSS_V,
    MOE_T_CROSS_O,
    MOE_T_CROSS_NORM_BIAS,
    MOE_T_CROSS_Q_BIAS,
    MOE_T_CROSS_K_BIAS,
    MOE_T_CROSS_V_BIAS,
    MOE_T_CROSS_O_BIAS,
    MOE_T_FFN_NORM, /* with own_norms: of the routed experts' input */
    MOE_T_FFN_NORM_DOWN,
    MOE_T_FFN_NORM_UP,
    MOE_T_FFN_END_NORM,
    MOE_T_FFN_KEEP,
    MOE_T_FFN_KEEP_BIAS,
    MOE_T_FFN_WEIGHT,      /* also with weighed_outputs */
    MOE_T_FFN_WEIGHT_BIAS, /* also with moe_bias */
    MOE_T_LAYER_SCALE,     /* [1] */
    MOE_T_EMBED_GATE, /* of the layer's embedding, by the stream; what is added to the stream, and
                         its norm */
    MOE_T_EMBED_OUT,
    MOE_T_EMBED_NORM,
    MOE_T_FFN_NORM_BIAS,
    MOE_T_GATE, /* the feed-forward of dense layers */
    MOE_T_UP,
    MOE_T_DOWN,
    MOE_T_UP_BIAS,
    MOE_T_DOWN_BIAS,
    MOE_T_ROUTER,
    MOE_T_ROUTER_BIAS,
    MOE_T_ROUTER_NORM,
    MOE_T_ROUTER_DOWN, /* router_dim, here and below: the vector that scores are made of, */
    MOE_T_ROUTER_DOWN_BIAS,
    MOE_T_ROUTER_KEEP, /* ... what multiplies the one that the router before made, */
    MOE_T_ROUTER_DOWN_NORM,
    MOE_T_ROUTER_FIRST, /* ... and two layers */
    MOE_T_ROUTER_FIRST_BIAS,
    MOE_T_ROUTER_SECOND,
    MOE_T_ROUTER_SECOND_BIAS,
    MOE_T_EXPERT_SCALE,       /* a factor of weights, per expert */
    MOE_T_CHOICE_BIAS,        /* used only to choose */
    MOE_T_EXPERTS_IN,         /* expert_dim: of what routed experts take in */
    MOE_T_EXPERTS_START_NORM, /* ... a norm of it, */
    MOE_T_EXPERTS_WEIGHT,     /* ... what multiplies the outputs of each, */
    MOE_T_EXPERTS_NORM,       /* ... a norm of their sum, */
    MOE_T_EXPERTS_OUT,        /* ... and what it becomes */
    MOE_T_ADJUGATE_GATE,      /* adjugate experts, one after the other */
    MOE_T_ADJUGATE_UP,
    MOE_T_ADJUGATE_DOWN,
    MOE_T_ROUTES, /* static routing (model/routes.h): [vocab][top_k] experts per token */
    MOE_T_SHARED_GATE_PROJ,
    MOE_T_SHARED_UP,
    MOE_T_SHARED_DOWN,
    MOE_T_SHARED_GATE, /* scales the shared expert's output */
    MOE_T_SHARED_NORM, /* own_norms: of its input, its output, and the sum of the routed ones */
    MOE_T_SHARED_END_NORM,
    MOE_T_EXPERTS_END_NORM,
    MOE_T_BYPASS, /* in MoE layers, beside the experts */
    /* A layer that drafts (infer/forward.h): norms of the next token's embedding and of the state,
     * the matrix [hidden][embedding | state] that joins them, the final norm. */
    MOE_T_AHEAD_TOKEN_NORM,
    MOE_T_AHEAD_STATE_NORM,
    MOE_T_AHEAD_JOIN,
    MOE_T_AHEAD_NORM,
    /* A head that drafts: the norm of the streams it reads, the matrix [hidden][streams side by
     * side] that makes one vector of them, its norm (the token's is ATTN_NORM), the model's token
     * for each of the head's own. */
    MOE_T_READS_NORM,
    MOE_T_READS_JOIN,
    MOE_T_READ_NORM,
    MOE_T_DRAFT_TOKENS,
    /* Of one whose tokens depend on the ones before them: a token's vector, and what is made of the
     * one before for each of the head's own. */
    MOE_T_MARKOV_FROM,
    MOE_T_MARKOV_TO,
    MOE_T_N_ROLES
};

/* Parts of an expert, in the order of a pack's roles (from MOE_ROLE_GATE on): matrices, then their
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
    MOE_KIND_ROUTER, /* a matrix that routes: kept at 16 bits or more */
    MOE_KIND_EXPERT, /* a matrix of an expert, stored once per variant */
};

/* ---- Where tensors lie in a checkpoint ---- */

/* Which part of a checkpoint's tensor a matrix [rows][cols] is (a vector: cols 1, one dimension
 * less). If the name of an expert's tensor has no "%u" for the expert, the tensor holds all
 * experts: n_experts is then a first dimension before those given here. */
enum moe_take {
    MOE_TAKE_ALL = 0,     /* the tensor is [rows][cols]; rows may span several dimensions */
    MOE_TAKE_EXPERT,      /* [rows][cols], after n_experts */
    MOE_TAKE_FIRST,       /* [rows or more][cols]: its first rows */
    MOE_TAKE_FIRST_HALF,  /* [2 * rows][cols]: its first rows */
    MOE_TAKE_SECOND_HALF, /* ... its last rows */
    MOE_TAKE_EVEN,        /* [2 * rows][cols]: rows 0, 2, 4, ... */
    MOE_TAKE_ODD,         /* ... rows 1, 3, 5, ... */
    MOE_TAKE_KEYS,   /* [heads * (nope + value_dim)][kv_rank]: each head's key rows, transposed */
    MOE_TAKE_VALUES, /* ... each head's value rows */
    /* Each head's query rows, then those of the output gate */
    MOE_TAKE_HEAD_QUERY,
    MOE_TAKE_HEAD_GATE,
    /* A recurrent state, per key head: rows of queries, keys, values and gates; or of what is
     * written and forgotten. The role says which. */
    MOE_TAKE_STATE_HEADS,
    /* The same with all heads' queries, then keys, then values. MOE_STATE_SCAN: gates, values,
     * keys, queries, decays. MOE_STATE_SELECT: decays, keys, queries. */
    MOE_TAKE_STATE_ROWS,
    MOE_TAKE_STATE_ALL, /* ... of MOE_STATE_DELTA with gates, betas and decays behind these */
    MOE_TAKE_ATTENTION, /* [queries + keys + values][cols], an indexer's without values; the role
                           says which */
    MOE_TAKE_TAPS,      /* [rows][cols / conv_width][conv_width] */
    MOE_TAKE_THIRD,     /* [3 * rows][cols]: a short convolution's scale, gate and values */
    MOE_TAKE_NUMBERS,   /* a vector of whole numbers */
    MOE_TAKE_BUCKETS,   /* a vector stored as [n_buckets][n_heads] */
    MOE_TAKE_ROW,       /* a vector stored as [1][rows] */
    MOE_TAKE_TEXT,      /* a vector: the first row of [2][rows]; the other is for images */
    MOE_TAKE_GROUPS,    /* a vector stored as [state_key_heads][rows / state_key_heads] */
    MOE_TAKE_CONV,      /* a vector [conv_width][channels] stored as [channels][1][conv_width], with
                           its dimension of 1 elsewhere, or without it */
    MOE_TAKE_JOINED, /* several rows follow each other in one: [rows * n][cols / n] of embeddings of
                        n-grams (moe_config_ngrams_joined), perhaps in numbered tensors */
    MOE_TAKE_TURNED, /* a vector [keys][values] stored as [values][keys] */
    MOE_TAKE_PLACES, /* a vector stored as [ratio][width] */
    MOE_TAKE_PROFILES, /* a vector stored as [rel_dim][width] */
    MOE_TAKE_HEADS,    /* a vector stored as [heads][width] */
    MOE_TAKE_LATEST,   /* a vector stored as [conv_width][channels] */
    MOE_TAKE_INPUT,  /* a vector: the row of queries, keys or values of [3][rows]; of layers with a
                        window all of [rows] */
    MOE_TAKE_SIDES,  /* [shared_sinks][rows][cols / shared_sinks]: side by side */
    MOE_TAKE_ROUTES, /* a vector of whole numbers stored as [vocab][top_k] */
    /* A vector of a looped layer, by its number among these: a row of [layers][4][rows], those of
     * queries, keys, values and the feed-forward; or of [layers * 2][rows], of queries and the
     * feed-forward or of keys and values. */
    MOE_TAKE_MESSAGE,
    MOE_TAKE_MESSAGES,
};

/* How a vector's values are stored. */
enum moe_stored {
    MOE_STORED_PLAIN = 0,
    MOE_STORED_LESS_ONE,     /* computed with the stored value plus 1 */
    MOE_STORED_EXP,          /* the stored value is exp of the one computed with, */
    MOE_STORED_NEGATIVE_EXP, /* or -exp */
    MOE_STORED_LESS_PLACE,   /* computed with the stored value plus its number */
    /* Gates of residuals (Muse Spark): computed with b = sigmoid(stored / 0.3), or with the root of
     * 1 - b squared, which is at least that of 0.001. */
    MOE_STORED_GATE,
    MOE_STORED_GATE_REST,
};

/* The first "%u" of a name is the layer ("%p": the one before it), the second the expert. */
struct moe_source {
    const char *name; /* NULL: never there */
    enum moe_take take;
    /* The last two dimensions are [cols][rows] (before a half is taken). Not for types that
     * quantize blocks of columns. */
    bool transposed;
    bool either; /* transposed only if its shape is not that of an untransposed tensor */
    enum moe_stored stored;
    const char *times; /* a vector: another one, whose values multiply it; NULL: none */
};

/* Sources in tables: a whole tensor, or part of one. */
#define MOE_ALL(path)                                                                              \
    {                                                                                              \
        .name = (path)                                                                             \
    }
#define MOE_PART(path, what)                                                                       \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what                                                    \
    }

/* A vector times another one. */
#define MOE_TIMES(path, other)                                                                     \
    {                                                                                              \
        .name = (path), .times = (other)                                                           \
    }

#define MOE_PLUS_ONE(path)                                                                         \
    {                                                                                              \
        .name = (path), .stored = MOE_STORED_LESS_ONE                                              \
    }

#define MOE_EXP(path)                                                                              \
    {                                                                                              \
        .name = (path), .stored = MOE_STORED_EXP                                                   \
    }

#define MOE_NEGATIVE_EXP(path, what)                                                               \
    {                                                                                              \
        .name = (path), .take = MOE_TAKE_##what, .stored = MOE_STORED_NEGATIVE_EXP                 \
    }

/* Whose names a checkpoint's tensors have. */
enum moe_naming {
    MOE_NAMING_HF,   /* "model.layers.%u.self_attn.q_proj.weight": Llama's names, which most
                        families have */
    MOE_NAMING_GGUF, /* "blk.%u.attn_q.weight" */
    MOE_N_NAMINGS,
};

enum { MOE_MAX_USUAL_NAMES = 3 };

/* ---- The table ---- */

struct moe_tensor_spec {
    const char *pack_name; /* "layers.%u.attn.q", "%u" being the layer; for parts of experts, for
                              people */
    enum moe_tensor_kind kind;
    bool per_layer;
    uint8_t condition, rows, cols; /* which models have it, and its shape (tensor_roles.c) */
    /* Its usual names in checkpoints, in the order they are tried; a family's own names (family.h)
     * come first. */
    struct moe_source names[MOE_N_NAMINGS][MOE_MAX_USUAL_NAMES];
};

const struct moe_tensor_spec *moe_tensor_spec(enum moe_tensor_role role);
const struct moe_tensor_spec *moe_expert_part_spec(enum moe_expert_part part);

/* Tensors of checkpoints that are not needed, with '*' for any ending; NULL ends them. */
extern const char *const moe_ignored_names[MOE_N_NAMINGS][8];

/* Whether the model (or this layer) has it, and its shape; vectors have *cols = 1. */
bool moe_tensor_shape(const struct moe_config *config, enum moe_tensor_role role, uint32_t layer,
                      uint32_t *rows, uint32_t *cols);
/* Whether that is so because this process computes the layer's attention (moe_layer_desc.elsewhere
 * aside). */
bool moe_tensor_is_attention(const struct moe_config *config, enum moe_tensor_role role,
                             uint32_t layer);
/* Writes its name in packs to out (room for MOE_NAME_BYTES). */
void moe_tensor_pack_name(enum moe_tensor_role role, uint32_t layer, char *out);
/* Whether the model's experts have this part, and its shape; biases have *cols = 1. */
bool moe_expert_part_shape(const struct moe_config *config, enum moe_expert_part part,
                           uint32_t *rows, uint32_t *cols);

/* Whether the part belongs to the down projection, which has its own bits and segment. */
static inline bool moe_expert_part_is_down(enum moe_expert_part part)
{
    return part == MOE_E_DOWN || part == MOE_E_DOWN_BIAS;
}

static inline bool moe_expert_part_is_bias(enum moe_expert_part part)
{
    return part >= MOE_E_GATE_BIAS;
}

#endif
