/*
 * Working memory of a session, private to run/: the buffers of one pass and the KV cache.
 *
 * Widths are rounded up to whole panels (16) or cache lines, so that kernels may write whole
 * panels;
 * `*_stride` is the distance in floats from one row to the next.
 */
#ifndef MOE_RUN_WORKSPACE_H
#define MOE_RUN_WORKSPACE_H

#include <stdint.h>

#include "base/mem.h"
#include "base/par.h"
#include "kern/inputs.h"
#include "run/session.h"

/*
 * KV cache, laid out as float weight panels (quant/layout.h), so that attention is two panel
 * products:
 *   keys    a matrix [positions][key_dim]: per layer, sequence and kv head, panels of 16 positions
 *   values  a matrix [value_dim][positions]: per layer, sequence and kv head, panels of 16
 * dimensions
 * Heads and widths are the cache's (moe_config_cache_heads and its neighbours).
 */
struct moe_kv {
    uint8_t *keys, *values;
    struct moe_layout layout; /* f32 or f16 */
    uint32_t item_bytes;      /* of a cell: 4 or 2 */
    uint32_t n_positions;     /* context rounded up to 16 */
    uint32_t key_dim, value_dim;
    uint32_t value_padded; /* rounded up to 16 */
    uint32_t n_heads, n_sequences;
    uint64_t bytes; /* of both arrays */
};

/* A column tile of attention: up to 8 (row, head) pairs of one sequence that share a kv head. */
struct moe_attn_tile {
    uint32_t first_row; /* of its run of rows */
    uint32_t first, n;  /* columns: row = first_row + column / group, head = column % group */
};

struct moe_workspace {
    uint8_t *block; /* everything but the KV cache */
    uint64_t block_bytes;
    struct moe_kv kv;

    uint64_t hidden_stride, q_stride, q_down_stride, k_stride, v_stride, queries_stride;
    uint64_t attended_stride, attn_stride, ff_stride, router_stride, logits_stride;
    float *h;             /* [batch][hidden] residual stream */
    float *xn;            /* [batch][hidden] normalised */
    float *q_down;        /* [batch][q_rank] */
    float *q;             /* [batch][heads * head_dim] */
    float *k, *v;         /* [batch][cache heads * key or value width]; latent attention also puts
                             kv_down's output into v, so rows of v are wider there */
    float *queries;       /* [batch][heads * key width]: q, but with latent attention */
    float *attended;      /* [batch][heads * cached value width]: attn, but with latent attention */
    float *attn;          /* [batch][heads * value_dim] */
    float *sum;           /* [batch][hidden] a block's output before it is added */
    float *gate, *up;     /* [max(batch, top_k)][ff] */
    float *probabilities; /* [batch][n_experts] */
    float *router_scratch; /* [threads][2 * router_stride] */
    float *shared_scale;   /* [batch][16] */
    uint32_t *chosen;      /* [batch][top_k] */
    float *weights;        /* [batch][top_k] */
    float *expert_out;     /* [batch * top_k][hidden] one row per activation, grouped by expert */
    uint32_t *expert_rows; /* [batch * top_k] batch rows, grouped by expert */
    uint32_t *slot_of;     /* [batch][top_k] row in expert_out */
    /* The request, an expert once for each class of rows that want it: with an assigner a class is
     * a variant, the last one what is left out; otherwise there is one. entries = n_experts *
     * n_classes. */
    uint32_t n_classes;
    uint8_t *variants; /* [batch][top_k] as assigned */
    uint32_t *active, *n_rows,
        *first;             /* [entries] expert; rows, the first of them in expert_rows */
    uint8_t *entry_classes; /* [entries] */
    uint32_t *cursor;       /* [entries] scratch for grouping */
    struct moe_need *needs; /* [entries] the request, as the scheduler wants it */
    uint8_t *kinds;         /* [entries] what became of it: enum moe_entry_kind */
    float *unimportance;    /* [n_experts] least score of equation 2 (precision.h) */
    struct moe_attn_tile *tiles;
    float *scratch; /* [threads][scratch_floats] of attention */
    uint64_t scratch_floats;

    double reached_at; /* for the timeline: where the last span ended */

    struct moe_inputs from_hidden; /* xn */
    struct moe_inputs from_q_down; /* q_down */
    struct moe_inputs from_attn;   /* attn */
    struct moe_inputs gathered;    /* xn of an expert's rows */
    struct moe_inputs from_ff;     /* gate (after swiglu) */
    struct moe_inputs *single;     /* [top_k] one expert's feed-forward each, in decode */
    struct moe_act *head_acts;     /* [heads] of latent attention: inputs of k_up, then of v_up */
    struct moe_mm *head_products;  /* [heads] */
};

/* One row of the stream under a norm of the model's kind; bias NULL where it has none. */
void moe_norm_row(const struct moe_config *c, const float *h, const float *weights,
                  const float *bias, float *out);

/* work->queries, k and v of the rows, ready for cache and attention, from work->xn. */
void moe_project_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows);
/* work->sum = the layer's output projection of work->attended. */
void moe_project_out(struct moe_session *s, uint32_t layer, uint32_t n_rows);

/* Stores the rows' keys (after rope) and values of one layer. */
void moe_kv_store(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows);
/* work->attended = attention of work->queries over the cache; causal, per sequence. */
void moe_attention(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                   uint32_t n_rows);
/* Floats of scratch one thread needs, and tiles a batch can make. */
uint64_t moe_attention_scratch_floats(const struct moe_config *c);
uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch);

/* A layer's router on some inputs, prepared for its weights: scores[act->n][router_stride], its
 * bias included. */
struct moe_router_use {
    const struct moe_layer *layer;
    const struct moe_act *act;
    float *scores;
};
/* n <= MOE_MAX_ROUTERS of them in one product. */
enum { MOE_MAX_ROUTERS = 8 };
void moe_router_scores(const struct moe_router_use *uses, uint32_t n, uint64_t router_stride);

/* work->probabilities, chosen and weights of one layer's router for work->from_hidden; tells the
 * observer. */
int moe_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
              struct moe_err *err);
/* The stream receives the feed-forward: experts and shared expert, or the dense layer's. */
int moe_feed_forward(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err);
/* Counts the activations of so many MoE layers that a device computed by itself. */
void moe_feed_forward_count_alone(struct moe_session *s, struct moe_phase_stats *phase,
                                  uint32_t n_layers, uint32_t n_rows);

#endif
