/*
 * Working memory of a session whose stages run on the processor (cpu_work.c): the buffers of one
 * pass, the KV cache and that of sources.
 *
 * Widths are rounded up to whole panels (16) or cache lines, so that kernels may write whole
 * panels; `*_stride` is the distance in floats from one row to the next.
 */
#ifndef MOE_INFER_CPU_STAGES_H
#define MOE_INFER_CPU_STAGES_H

#include "infer/compressed.h"
#include "infer/kv.h"
#include "infer/recurrent.h"
#include "infer/router.h"
#include "infer/stages.h"
#include "infer/state.h"
#include "kern/matmul.h"

/* A column tile of attention: up to 8 (row, head) pairs of one sequence that share a kv head. */
struct moe_attn_tile {
    uint32_t first_row; /* of its run of rows */
    uint32_t first, n;  /* columns: row = first_row + column / group, head = column % group */
};

/* What attention computes, from its inputs to its output. */
struct cpu_attention {
    struct moe_attention_strides stride;
    float *q_down;   /* [batch][q_rank], or twice that */
    float *q;        /* [batch][heads * head_dim] */
    float *k, *v;    /* [batch][cache heads * key or value width]; latent attention also puts
                        kv_down's output into v, so rows of v are wider there */
    float *queries;  /* [batch][heads * key width]: q, except in latent attention */
    float *attended; /* [batch][heads * cached value width]: out, except in latent attention */
    float *out;      /* [batch][heads * value_dim] */
    float *gate;     /* [batch][heads * value_dim], where outputs have one */
    float *rel;      /* [batch][rel_stride] of each head the numbers that make its biases */
    uint64_t rel_stride;
    float *own_sinks; /* [batch][sinks_stride] of own_sinks */
    float *own_taps;  /* [batch][taps_stride] what rows add to weights of keys, or of values */
    uint64_t sinks_stride, taps_stride;
    float *own_in; /* [batch][hidden, padded] what keys, or values, are made of, with own_inputs */
    struct moe_inputs from_own;
    struct moe_inputs from_q_down; /* q_down */
    struct moe_inputs from_out;    /* out */
    /* Of attn_experts: scores [batch][scores_stride]; what rows chose, and its weights,
     * [batch][those of a token]; [batch] the rows of one expert, what they take in. */
    float *expert_scores, *expert_weights;
    uint64_t scores_stride;
    uint32_t *expert_chosen, *expert_rows;
    struct moe_inputs from_rows;
    float *low; /* [batch][low_stride] of shared keys: what groups of heads put out */
    uint64_t low_stride;
    struct moe_inputs from_low;   /* low */
    struct moe_act *head_acts;    /* [heads] of latent attention: inputs of k_up, then of v_up; of
                                     shared keys [out_groups] inputs of out_down */
    struct moe_mm *head_products; /* as many */
    struct moe_attn_tile *tiles;
    float *scratch; /* [threads][scratch_floats] */
    uint64_t scratch_floats;
};

/* Of layers whose rows see what an indexer chooses (cpu_sparse.c). */
struct cpu_index {
    uint64_t q_stride, k_stride, weights_stride;
    float *q;       /* [batch][index_heads * index_dim] its queries */
    float *k;       /* [batch][k_stride] keys, with index_pooled their gates behind them */
    float *weights; /* [batch][index_heads] how much each head counts */
    float *cells;   /* [threads][index_block][cell] with index_means, of the block at work */
    /* Where the context is longer than what a row sees: */
    uint32_t top;  /* positions that a row sees; 0: all */
    uint32_t seen; /* ... with those behind the last complete block */
    float *tiles;  /* [index_heads / 8][index_dim][8] a row's queries side by side */
    float *scores; /* [context] of one row; of blocks [index_heads][scores_stride] */
    uint64_t scores_stride;
    float *scratch;   /* [threads][8][chunk] */
    uint32_t *places; /* [batch][places_stride] the positions that a row of the pass sees, rising:
                         [top], or of blocks [index_heads][top / index_block], with
                         index_means [top / index_block + 1] */
    uint64_t places_stride;
    struct moe_row *of;   /* [batch] the rows that these are of */
    struct moe_kv chosen; /* keys and values of one row's */
    uint32_t *table;      /* its */
};

/* A feed-forward's, from the router to the outputs before they are added. */
struct cpu_feed_forward {
    uint64_t stride, router_stride;
    float *probabilities;  /* [batch][router_stride] */
    uint32_t *seen_chosen; /* [batch][top_k] of a router before attention, as it chose: */
    float *seen_weights;   /* ... for observers; not without one */
    float *router_scratch; /* [threads][2 * router_stride] */
    struct moe_router_room router;
    float *shared_scale;         /* [batch][16] */
    float *bypass;               /* [batch][states' stride] its products; not unless soft_bypass */
    float *gate, *up;            /* [max(batch, top_k)][stride] */
    struct moe_inputs gathered;  /* the states' xn of an expert's rows */
    struct moe_inputs from_gate; /* gate, after the activation */
    struct moe_inputs *single;   /* [top_k] one expert's feed-forward each, in decode */
};

/* Of a layer with a recurrent state. */
struct cpu_recurrent {
    uint64_t values_stride, heads_stride, decay_stride, low_stride;
    /* [batch][mixed_stride] queries, keys, values; of MOE_STATE_CCA what the matrices of heads take
     * in */
    float *mixed;
    uint64_t mixed_stride;
    float *gate, *out; /* [batch][values_stride] */
    float *beta;       /* [batch][heads_stride]; of Mamba-2 steps */
    float *decay;      /* [batch][decay_stride], by head, of KDA by key, of Mamba by value */
    float *low[2];     /* [batch][low_stride] of KDA and Mamba: what gates and decays are made of */
    struct moe_inputs from_low[2];
    struct moe_inputs from_out; /* out */
};

/* Of a layer that compresses. */
struct cpu_entries {
    uint64_t made_stride, queries_stride, weights_stride, scratch_stride;
    float *made;         /* [batch][made_stride] as struct moe_compressed_row says */
    float *queries;      /* [batch][queries_stride] the indexer's */
    float *weights;      /* [batch][weights_stride] what each head of them counts */
    float *scratch;      /* [threads][scratch_stride] of a row's choice */
    uint32_t *chosen;    /* [batch][index_top] by rising number */
    uint32_t *n_chosen;  /* [batch] */
    uint32_t *completed; /* [batch] rows that complete a group */
};

/* Of several streams. */
struct cpu_streams {
    uint64_t stride, normed_stride, mix_stride;
    float *streams;             /* [batch][n_streams][hidden], rows stride apart */
    float *normed;              /* the same under a norm, or one of them */
    float *mix;                 /* [batch][mix_stride] in, out, each into each */
    uint32_t block;             /* that has taken them in (moe_config_streams_before) */
    struct moe_inputs from_all; /* normed */
    /* Of gated ones: [batch][normed_stride], and the vectors [batch][low_stride] they are made of.
     */
    uint64_t low_stride;
    float *gates, *low;
    struct moe_inputs from_low;
    /* Of messages, [batch][normed_stride]; [batch][both_stride] what a block takes in and the
     * message side by side, under norms; what is forgotten, as `gates` of the message. */
    uint64_t both_stride;
    float *message, *both, *forget;
    struct moe_inputs from_both;
};

/* Of embeddings of n-grams. */
struct cpu_ngrams {
    uint64_t embeds_stride, keys_stride, value_stride, joined_stride;
    uint32_t *rows;         /* [batch][embeddings of a row] of the table */
    float *joined;          /* [threads][joined_stride] a row of its matrix, or a stream */
    float *embeds;          /* [batch][embeds_stride] */
    float *keys;            /* [batch][keys_stride] of all streams; then what is convolved */
    float *value, *weights; /* [batch][value_stride]; [batch][MOE_MAX_STREAMS] of it */
    struct moe_inputs from_embeds;
};

enum { CPU_JOINED_ROWS = 32 }; /* joined at a time */

struct cpu_work {
    /* Everything but the KV caches, the session's states included: what passes use row by row, and
     * the rest. */
    uint8_t *rows, *other;
    uint64_t rows_bytes, other_bytes;
    uint32_t own_rows;  /* of the session's options */
    uint32_t used_rows; /* of the largest pass since memory was given back */
    struct moe_kv kv, source_kv;
    struct moe_recurrent states;
    struct cpu_recurrent recurrent;
    struct moe_compressed compressed;
    struct cpu_entries entries;
    struct cpu_streams streams;
    struct cpu_ngrams ngrams;
    uint32_t *source_table; /* [n_sources][source_kv.per_sequence] */
    /* [CPU_JOINED_ROWS][joined_stride] of a layer that drafts; where there is one. Of a head that
     * drafts [batch], or with blocks none; and the streams that it reads, [batch][reads_stride],
     * side by side. */
    float *joined, *reads;
    uint64_t joined_stride, reads_stride;
    struct moe_inputs from_joined, from_reads;
    float *markov, *followed; /* [markov_stride] a token's vector, [logits' stride] what is made */
    uint64_t markov_stride;
    struct moe_inputs from_markov;
    /* [batch][layer_stride] what each layer has of the rows' tokens, side by side (layer_embed) */
    float *of_layers, *own_embeds; /* and [threads][layer_stride] */
    uint64_t layer_stride;
    float *late; /* [batch][states' stride] what experts of the layer before put out; or NULL */
    float *sum;  /* [batch][states' stride] a block's output before it is added to the stream */
    struct cpu_attention attention;
    struct cpu_index index;
    struct cpu_feed_forward ff;
    double reached_at; /* for the timeline: where the last span ended */
};

static inline struct cpu_feed_forward *cpu_feed_forward(const struct moe_session *s)
{
    return &((struct cpu_work *)s->device)->ff;
}

/* Bytes that it takes, KV caches included; UINT64_MAX on overflow. o: complete (no member 0 that
 * has a default). */
uint64_t cpu_work_bytes(const struct moe_config *config, const struct moe_session_options *o);
/* ... and those that a pass of n_rows uses row by row. */
uint64_t cpu_work_rows_bytes(const struct moe_config *config, const struct moe_session_options *o,
                             uint32_t n_rows);
/* A pass of n_rows comes: what larger ones borrowed is given back, with all that they left. */
void cpu_work_give_back(struct cpu_work *w, uint32_t n_rows);
/* A block of the KV cache takes memory from here on, or gives back what it takes. */
void cpu_work_hold_block(struct cpu_work *w, uint32_t block, bool held);
/* Also carves the session's states. The sizes do not overflow. */
int cpu_work_open(struct cpu_work **out, struct moe_states *states, const struct moe_config *config,
                  const struct moe_session_options *o, struct moe_err *err);
void cpu_work_close(struct cpu_work *w); /* NULL is fine */

/*
 * The processor's stages, as its table (infer/stages.h) describes them: attention
 * (cpu_projections.c, cpu_sparse.c, cpu_attention.c), recurrent states (cpu_recurrent.c), streams
 * (cpu_streams.c), router and feed-forward (cpu_stages.c).
 */

extern const struct moe_stages_ops moe_stages_cpu;

/* The attention's queries, k and v of the rows, ready for cache and attention, from the states' xn.
 */
void moe_project_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows);
/* ... and only k and v, of the states' inputs. */
void moe_project_keys(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows);
/* The rows' k and v into the KV cache; an encoder's rows' into the sources'. */
/* Queries, keys and values of a layer's inputs, in xn, and its attention, into `sum`. */
int stages_cpu_mix(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                   uint32_t n_rows, struct moe_err *err);
void stages_cpu_store(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows);
/* Its `attended` = attention of its queries over the cache, per sequence: causal, or over the whole
 * text (cpu_attention.c); of rows that are those of the pass from `first` on. chosen: the cache
 * that holds what one row sees, which stands for that row at the position of the last; NULL: the
 * pass's.
 */
void moe_attention_rows(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                        uint32_t first, uint32_t n_rows, const struct moe_kv *chosen);
static inline void moe_attention(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                                 uint32_t n_rows)
{
    moe_attention_rows(s, layer, rows, 0, n_rows, NULL);
}
/* In the place of moe_attention where rows see what an indexer chooses: after moe_project_in the
 * indexer's queries, keys and weights, then the choice and `attended` (cpu_sparse.c). */
void stages_cpu_index(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows);
/* With index_means, after stages_cpu_store: the keys of blocks that rows complete. */
void stages_cpu_index_means(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                            uint32_t n_rows);
int stages_cpu_attend_chosen(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                             uint32_t n_rows, struct moe_err *err);
/* Multiplies the queries of a row, head by head (struct moe_config, tempered_heads). */
void stages_cpu_temper(const float *slope, const float *base, uint32_t n_heads, uint32_t width,
                       uint32_t position, float *queries);
/* x is divided by its root mean square: kern.h's rms_norm without weights. */
void stages_cpu_norm_bare(float *x, uint32_t n, float eps);
/* sum = the layer's output projection of `attended`. */
void moe_project_out(struct moe_session *s, uint32_t layer, uint32_t n_rows);

/* sum = what a layer with a recurrent state makes of the states' xn (recurrent.c). */
void stages_cpu_recurrent(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows);
/* A pass through such a layer, between the products into it and out of it. */
struct cpu_state_pass {
    const struct moe_config *c;
    const struct moe_layer *layer;
    const struct moe_recurrent *r;
    struct cpu_recurrent *w;
    const struct moe_row *rows;
    uint32_t n_rows, number, state; /* the model's layer, its number among recurrent ones */
};
/* w->out of the kinds of states, from the rest of w. */
void stages_cpu_state_delta(struct cpu_state_pass *p);
void stages_cpu_state_scan(struct cpu_state_pass *p);
void stages_cpu_state_select(struct cpu_state_pass *p);
void stages_cpu_short_conv(struct cpu_state_pass *p);
void stages_cpu_state_fade(struct cpu_state_pass *p);
/* A part of MOE_STATE_TAPS: rows of x [n_rows][stride], `at` in the state's rows, each get the
 * convolution of themselves and the rows before added, and are multiplied by `scale`. weights:
 * [conv_width][n]; own: what each row adds to those of its heads, [n_rows][own_stride] with
 * conv_width for each head of `head` channels, both from the latest token on; NULL: nothing. */
struct cpu_taps {
    const float *weights, *own;
    float *x, scale;
    uint64_t at, stride, own_stride;
    uint32_t n, head;
};
void stages_cpu_add_taps(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows, const struct cpu_taps *taps);
/* Queries, keys and values (of Mamba only values) become silu of their convolution over the last
 * tokens. */
void stages_cpu_convolve(struct cpu_state_pass *p);
/* Where a row finds 16 values of a head's state; zeros where its text begins. */
float *stages_cpu_state_panel(const struct cpu_state_pass *p, uint32_t row, uint32_t head,
                              uint32_t panel);

/* Of a layer with shared keys (cpu_attention.c): as moe_project_in and moe_project_out. */
void stages_cpu_shared_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows);
void stages_cpu_shared_out(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows);
/* ... that compresses: the entries of groups that rows complete, and which ones rows choose
 * (cpu_sparse.c). After stages_cpu_shared_in. */
void stages_cpu_compress(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows);
void stages_cpu_choose_entries(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                               uint32_t n_rows);
/* Floats of scratch that a thread needs to choose among this many entries. */
uint64_t moe_index_scratch_floats(const struct moe_config *c, uint64_t n_entries);
/* cosines and sines of a row's position in the layer, pair by pair. */
const float *stages_cpu_shared_angles(const struct moe_session *s, uint32_t layer,
                                      uint32_t position);
/* Turns the last rope_dim values of x [width], pairs of neighbours; back: the other way. */
void stages_cpu_turn(const struct moe_config *c, const float *angles, bool back, uint32_t width,
                     float *x);
/* y[i][group * y_width ..] = (rows [group * rows_each ..) of m) x[i][group * x_width ..] for all n
 * groups: one list of products over row blocks of one matrix (cpu_projections.c). */
void stages_cpu_multiply_blocks(struct cpu_attention *w, const struct moe_mat *m, uint32_t n,
                                uint32_t n_rows, const float *x, uint64_t x_stride,
                                uint32_t x_width, float *y, uint64_t y_stride, uint32_t y_width);

/* Several streams (cpu_streams.c). Of each the rows' embeddings, which lie in the states' h. */
void stages_cpu_streams_begin(struct moe_session *s, uint32_t n_rows);
/* The same from the states of a pass, [n_rows][n_streams * hidden], and back. */
void stages_cpu_streams_set(struct moe_session *s, uint32_t n_rows, const float *states);
void stages_cpu_streams_get(const struct moe_session *s, uint32_t n_rows, float *states);
/* h = what a block takes in of them; of rows [first, first + n). The head counts as the block
 * behind the last. */
void stages_cpu_streams_in(struct moe_session *s, uint32_t block, uint32_t first, uint32_t n);
/* to = the mixture of a layer's streams by these scores (NULL: there is one), and in a later pass
 * through a loop a message, under the norm. */
void stages_cpu_streams_own(struct moe_session *s, uint32_t layer, enum moe_told what,
                            uint32_t n_rows, const float *scores, const float *norm, float *to);
/* Adds to the streams what the layer makes of the last tokens (cpu_ngrams.c). */
void stages_cpu_ngrams(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                       uint32_t n_rows);
/* The streams of a row become what they are behind the block, whose output is `out`. */
void stages_cpu_streams_out(struct moe_session *s, uint32_t row, const float *out);

/* As the table's join, but that a head which drafts blocks only gets the inputs of its keys and
 * values (cpu_projections.c). */
int stages_cpu_join(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows, const uint32_t *from, struct moe_err *err);

/* The same for attention to sources. Queries of the rows, from the states' xn. */
void moe_project_cross_in(struct moe_session *s, uint32_t layer, uint32_t n_rows);
void moe_attention_cross(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows);
void moe_project_cross_out(struct moe_session *s, uint32_t layer, uint32_t n_rows);
/* k and v that a decoder's layer makes of an encoder's output, the n_rows inputs of the states. */
void moe_project_source(struct moe_session *s, uint32_t layer, uint32_t n_rows);

/* Floats of scratch that a thread of attention needs, and tiles that a batch can make. */
uint64_t moe_attention_scratch_floats(const struct moe_config *c, uint16_t kv_kind);
uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch);

int stages_cpu_choose(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err);
int moe_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
              struct moe_err *err);

/* What ends a block: a bias of its last product, its norm, what the stream is multiplied by then,
 * and what is beside these of a residual that is no sum. What there is not is NULL. n_summed: of a
 * mean the number of outputs with this one, else 0. */
struct moe_block_end {
    const float *bias, *norm, *norm_bias, *scale;
    struct moe_residual residual;
    uint32_t n_summed;
};
/* Of a layer's attention, and of its feed-forward. */
static inline struct moe_block_end stages_cpu_attention_end(const struct moe_config *c,
                                                            const struct moe_layer *l)
{
    if (c->norm_place == MOE_NORM_AFTER)
        return (struct moe_block_end){.norm = l->attn_norm, .norm_bias = l->attn_norm_bias};
    return (struct moe_block_end){
        .norm = l->attn_end_norm, .residual = l->attn_residual, .n_summed = l->n_summed};
}
static inline struct moe_block_end stages_cpu_ffn_end(const struct moe_config *c,
                                                      const struct moe_layer *l)
{
    if (c->norm_place == MOE_NORM_AFTER)
        return (struct moe_block_end){l->down_bias, l->ffn_norm, l->ffn_norm_bias,
                                      l->scale,     {0},         0};
    return (struct moe_block_end){.bias = l->down_bias,
                                  .norm = l->ffn_end_norm,
                                  .scale = l->scale,
                                  .residual = l->ffn_residual,
                                  .n_summed = l->n_summed ? l->n_summed + 1 : 0};
}
/* The stream, h, becomes what it is behind a block that put out `sum`: the residual of both, for
 * the first n_rows rows. */
void stages_cpu_add_to_stream(struct moe_session *s, const struct moe_block_end *end,
                              uint32_t n_rows);
int stages_cpu_dense(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
/* Inputs of products: the stream under a norm (NULL: as the layer's router takes it in), which lies
 * in `sum` until something else is put there. */
struct moe_inputs *stages_cpu_normed(struct moe_session *s, const struct moe_layer *layer,
                                     const float *norm, uint32_t n_rows);
int stages_cpu_beside(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);
uint32_t stages_cpu_at_once(const struct moe_session *s, uint32_t n_rows);
int stages_cpu_experts(struct moe_session *s, uint32_t n_rows, const uint32_t *which,
                       const struct moe_expert_view *views, uint32_t n, bool last,
                       struct moe_err *err);
int stages_cpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

#endif
