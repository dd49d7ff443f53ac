/*
 * A model ready to compute: description, tokenizer, dense weights in memory, experts behind
 * their provider. Opened from a pack; immutable afterwards except for the provider's
 * state.
 */
#ifndef MOE_INFER_MODEL_H
#define MOE_INFER_MODEL_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "model/config.h"
#include "model/sampling.h"
#include "model/tensor_roles.h"
#include "pack/pack.h"
#include "profile/statistics.h"
#include "quant/layout.h"
#include "text/tokenizer.h"

/* How several streams are mixed, before a block or behind the last layer. */
struct moe_streams_mix {
    struct moe_mat of;         /* ... by all of them */
    const float *bias, *scale; /* [of.rows]; [3], behind the last layer [1] */
    const float *scores;       /* [hidden], of residual attention, in place of these */
    /* Of gated streams: the norm of all; what makes gates of them. */
    const float *norm;
    struct moe_mat down, up;
};

/* What a looped layer's queries, keys, values and feed-forward are told by the pass before: scores
 * of its streams, [hidden], and what makes gates of a message (cpu_streams.c). */
enum moe_told { MOE_TELLS_Q, MOE_TELLS_K, MOE_TELLS_V, MOE_TELLS_FFN, MOE_N_MESSAGES };
struct moe_message {
    const float *scores;
    struct moe_mat down, forget, told;
};

/* Embeddings of n-grams (cpu_ngrams.c). */
struct moe_ngrams {
    struct moe_mat table, key, value;
    const float *key_norm, *query_norm, *conv_norm, *conv; /* of all streams */
};

/* What a residual is made of (enum moe_residual_kind), each [hidden]; NULL: not there. */
struct moe_residual {
    const float *keep, *keep_bias, *weight, *bias;
};

/* The dense weights of one layer; shapes in model/tensor_roles.c. Vectors are plain f32 arrays.
 * What the model lacks is NULL (of a matrix: its data). */
struct moe_layer {
    bool is_moe;
    const float *attn_norm, *attn_norm_bias, *ffn_norm, *ffn_norm_bias;
    struct moe_mat attn_norm_down, attn_norm_up, ffn_norm_down, ffn_norm_up; /* gates of norms */
    const float *attn_end_norm, *ffn_end_norm; /* where norms stand on both sides of blocks */
    struct moe_residual attn_residual, ffn_residual;
    uint32_t n_summed; /* MOE_RESIDUAL_MEAN: by the end of its attention; else 0 */
    const float *router_norm, *shared_norm, *shared_end_norm, *experts_end_norm; /* own_norms */
    const float *scale;                   /* of the stream behind the layer, [1] */
    struct moe_mat embed_gate, embed_out; /* of its own embedding of a token (layer_embed) */
    const float *embed_norm;
    struct moe_mat experts_in, experts_out; /* with expert_dim */
    struct moe_mat adjugate_gate, adjugate_up, adjugate_down;
    const float *experts_norm, *experts_start_norm, *experts_weight;
    const float *expert_scale; /* [n_experts] */
    struct moe_mat q_down, q, k, v, kv_down, k_up, v_up, o;
    struct moe_mat index_q, index_k, index_weights; /* of a layer that chooses positions */
    const float *index_q_norm, *index_q_norm_bias, *index_k_norm, *index_k_norm_bias;
    const float *index_head_norm; /* of each of the indexer's queries, where it chooses blocks */
    const float *slope, *base, *index_slope, *index_base; /* tempered_heads: a number for each */
    const float *q_down_norm, *q_norm, *k_norm, *kv_down_norm;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *sinks, *attn_gate_bias;
    /* MOE_STATE_CCA. */
    struct moe_mat v_late, head_mix;
    const float *head_conv, *head_conv_bias, *head_mix_bias, *key_scale;
    struct moe_mat attn_router; /* of attn_experts */
    struct moe_mat rel; /* of biases by distance, and their profiles, the farthest position first */
    const float *profiles;
    struct moe_mat taps_k_own, taps_v_own, own_sinks;
    const float *rel_scale, *k_scores, *v_scores, *k_input_norm, *v_input_norm;
    struct moe_message messages[MOE_N_MESSAGES];         /* of a looped layer */
    const float *taps_k, *taps_v, *taps_attn, *taps_ffn; /* MOE_STATE_TAPS */
    const float *ffn_factor;                             /* [1] of ffn_scale */
    struct moe_mat attn_gate;
    /* Of a layer with a recurrent state; state_rate of Mamba is no logarithm any more. */
    struct moe_mat state_q, state_k, state_v, state_z, state_z_down, state_decay_down, state_scale,
        state_beta, state_decay, state_o;
    const float *state_step, *state_rate, *state_skip, *state_conv, *state_conv_bias,
        *state_decay_norm, *state_k_norm, *state_q_norm, *state_conv_q, *state_conv_k, *state_norm;
    /* Shared keys, and entries of layers that compress. */
    struct moe_mat out_down, entry, entry_gate, index_entry, index_gate;
    const float *entry_bias, *entry_norm, *index_bias, *index_norm;
    struct moe_streams_mix attn_mix, ffn_mix;
    struct moe_ngrams ngrams;
    const float *position_bias; /* [n_buckets][n_heads] of the stack's first layer */
    const float *cross_norm, *cross_norm_bias;
    struct moe_mat cross_q, cross_k, cross_v, cross_o; /* attention to the encoder's output */
    const float *cross_q_bias, *cross_k_bias, *cross_v_bias, *cross_o_bias;
    struct moe_mat gate, up, down; /* dense feed-forward, or the shared expert; perhaps no gate */
    const float *up_bias, *down_bias; /* of a dense layer's */
    struct moe_mat router, shared_gate, bypass;
    struct moe_mat router_down, router_first, router_second; /* with router_dim */
    const float *router_down_bias, *router_keep, *router_down_norm, *router_first_bias,
        *router_second_bias;
    /* Of a layer that drafts (infer/forward.h). */
    const float *ahead_token_norm, *ahead_state_norm, *ahead_norm;
    struct moe_mat ahead_join;
    const float *router_bias, *choice_bias; /* the latter only for the choice */
    const float *routes;                    /* [vocab][top_k], of layers with static routing */
    bool has_ffn;                           /* gate, up, down are there */
};

struct moe_model {
    struct moe_pack *pack; /* owned */
    struct moe_config config;
    struct moe_tokenizer *tokenizer;
    char *chat_template;                         /* Jinja source, "" when none */
    struct moe_sampler_options sampling;         /* as its makers published it */
    struct moe_layer *layers;                    /* [n_layers + n_ahead] */
    struct moe_model *drafter;                   /* a head that drafts, owned; NULL: none */
    const float *embed_weight, *embed_bias;      /* [hidden], of residuals that are weighed */
    struct moe_mat embed, head;                  /* [vocab][hidden]; head is embed when tied */
    struct moe_mat positions, extra_positions;   /* [context_max][hidden] */
    struct moe_mat layer_embed, layer_embed_mix; /* embeddings by layer */
    const float *layer_embed_norm;
    const float *rope_logs;                    /* [rope_dim / 2] of rope_learnt */
    const float *final_norm, *final_norm_bias; /* [hidden]; NULL where last_projection is there */
    struct moe_streams_mix last_mix;
    struct moe_mat last_projection;
    const float *last_projection_bias;             /* [hidden] */
    const float *encoder_norm, *encoder_norm_bias; /* [hidden] */
    const float *head_bias;                        /* [vocab] */
    /* Of a head that drafts (config.h): what it makes of the streams it reads, and the model's
     * token for each of its own, [draft_vocab], or NULL. Its embed and head may be its model's. */
    const float *reads_norm, *read_norm, *draft_tokens;
    struct moe_mat reads_join, markov_from, markov_to;
    /* Made at loading (model/rope.h): [moe_model_rope_rows][rope_dim/2][cos, sin]; and of the
     * decoder and the encoder the bias of every distance, NULL without (and on a GPU). */
    float *rope, *global_rope, *position_bias[2]; /* global: of layers without a window, or NULL */
    uint32_t rope_positions;                      /* the longest context a session may have */
    uint8_t *weights;                             /* one block that holds all dense weights */
    uint64_t weights_bytes;
    uint64_t largest_tensor_bytes; /* of these */
    uint32_t n_tensors;
    uint32_t attends;  /* of another rank than 0: layers whose attention it computes; it has the
                          weights of nothing else then */
    bool whole_layers; /* ... but of all else in these layers, which it computes, too */
    struct moe_dense *dense;           /* how they arrive; NULL: they are there */
    const struct moe_progress *passes; /* (moe_model_load_behind); NULL: none */
    struct moe_gpu *gpu; /* borrowed; not NULL: `weights` lies there, and with it what all matrices
                            and vectors above point to; rope stays on the host */
};

struct moe_gpu;
struct moe_row;

/* Opens the pack: description, tokenizer, chat template. Every tensor and
 * expert that the description implies must be there, with the right size. No weights are read yet.
 * image: the pack's file in memory (moe_pack_open_image); NULL: it is read. */
int moe_model_open_image(struct moe_model **out, const char *path,
                         const struct moe_pack_image *image, struct moe_err *err);
static inline int moe_model_open_directory(struct moe_model **out, const char *path,
                                           struct moe_err *err)
{
    return moe_model_open_image(out, path, NULL, err);
}
/* Before it is loaded: the layers behind the model's that draft (config.h, n_ahead) are part of it,
 * with their experts. MOE_ERR_UNSUPPORTED: the pack has none. */
int moe_model_take_ahead(struct moe_model *model, struct moe_err *err);
/* The same of a head that drafts, out of a file of its own: a pack, or a checkpoint in place. Its
 * layer takes the place of those behind the model's. MOE_ERR_UNSUPPORTED: it is no such head, or
 * the model can have none; MOE_ERR_FORMAT: it drafts for another model. */
int moe_model_take_drafter(struct moe_model *model, const char *path, struct moe_err *err);
/* ... and after that: the attention of layers is shared out among ranks, and this one is number
 * `rank` (moe_config_share_attention). MOE_ERR_UNSUPPORTED, on rank 0: no layer's can be. */
int moe_model_share_attention(struct moe_model *model, uint32_t rank, uint32_t n_ranks,
                              struct moe_err *err);
/* The same of whole layers: owners, [n_layers], says whose each is; NULL: no layer is this rank's
 * yet, so that its bytes are those of all else. */
int moe_model_share_layers(struct moe_model *model, uint32_t rank, const uint8_t *owners,
                           struct moe_err *err);
/* Whether another rank than 0 has weights, and a session, beside its experts. */
static inline bool moe_model_has_session(const struct moe_model *model)
{
    return model->attends > 0 || model->whole_layers;
}
/* An upper bound of what the directory holds in memory, computed from what is in it. */
uint64_t moe_model_directory_bytes(const struct moe_model *model);
/* Bytes that moe_model_load will take: the dense weights, and tables for that many positions. */
uint64_t moe_model_load_bytes(const struct moe_model *model, uint32_t context);
/* Bytes of the host when the dense part goes to a GPU: room for a tensor on its way (while
 * loading), and rope. */
uint64_t moe_model_gpu_host_bytes(const struct moe_model *model, uint32_t context);
/* Rows of the rotary table of a model loaded for that many positions. */
uint32_t moe_model_rope_rows(const struct moe_config *config, uint32_t positions);
/* The bias of distance 0 and head 0 in a layer's attention of a text to itself, with *stride floats
 * from head to head; NULL: its positions are not known by buckets. */
const float *moe_model_position_bias(const struct moe_model *model, uint32_t layer,
                                     uint64_t *stride);
/* Reads the dense part, into memory of the GPU if one is given. context: the longest a session
 * may have; 0 means context_max. */
int moe_model_load(struct moe_model *model, uint32_t context, struct moe_gpu *gpu,
                   const struct moe_progress *progress, struct moe_err *err);

/* The same on the processor, but matrices are read behind the first passes: layer by layer, then
 * what comes at a pass's end, and tables that only rows are taken of. Vectors and routers are there
 * when it returns. The pack stays as it is until the model is closed. One that has something
 * compressed is read at once. passes: told while a pass waits for weights; its `stop` ends with
 * MOE_ERR_INTERRUPTED passes that wait and those that read texts, but where states are recurrent.
 * Borrowed; NULL: nobody is told. */
int moe_model_load_behind(struct moe_model *model, uint32_t context,
                          const struct moe_progress *progress, const struct moe_progress *passes,
                          struct moe_err *err);

/* When matrices are needed: */
enum moe_dense_group {
    MOE_DENSE_READY, /* (they are there) */
    MOE_DENSE_START, /* before the first layer */
    MOE_DENSE_LAYER, /* by that layer */
    MOE_DENSE_END,   /* behind the last one */
    MOE_DENSE_HEAD,  /* by logits */
    MOE_DENSE_TABLES /* row by row (moe_model_await_tokens) */
};
/* Waits for a group, and reads meanwhile; layer: of MOE_DENSE_LAYER. Thread-safe. */
int moe_model_await(const struct moe_model *model, enum moe_dense_group group, uint32_t layer,
                    struct moe_err *err);
/* Waits for what the rows' tokens need before the first layer. Thread-safe. */
int moe_model_await_tokens(const struct moe_model *model, const struct moe_row *rows,
                           uint32_t n_rows, struct moe_err *err);

/* The place of the matrix of a role that the model has (moe_tensor_shape); the model's owner may
 * set it, and then has to have later visits of looped layers (base/loop.h) get it, too. */
struct moe_mat *moe_model_matrix(const struct moe_model *model, enum moe_tensor_role role,
                                 uint32_t layer);
void moe_model_repeat_layers(struct moe_model *model);

/* Opens the pack and reads the dense part. */
int moe_model_open(struct moe_model **out, const char *path, uint32_t context,
                   const struct moe_progress *progress, struct moe_err *err);
void moe_model_close(struct moe_model *model);

/* The shape of statistics of this model; max_tokens and prompt_percent are for the caller to set.
 */
struct moe_statistics_shape moe_model_statistics_shape(const struct moe_model *model);
/* Whether the statistics are of this model. */
bool moe_model_fits_statistics(const struct moe_model *model,
                               const struct moe_statistics *statistics);

#endif
