/*
 * The processor's stages for its table (stages_cpu.c): attention (projections.c, attention.c),
 * router (stages_cpu_route.c), feed-forward (stages_cpu_feed_forward.c). Internal to these; those
 * of the table are described in layer/stages.h.
 */
#ifndef MOE_CPU_STAGES_CPU_H
#define MOE_CPU_STAGES_CPU_H

#include "cpu/cpu_work.h"
#include "layer/stages.h"

extern const struct moe_stages_ops moe_stages_cpu;

/* The attention's queries, k and v of the rows, ready for cache and attention, from the states' xn.
 */
void moe_project_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows);
/* The rows' k and v into the KV cache; an encoder's rows' into the sources'. */
void stages_cpu_store(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows);
/* Its `attended` = attention of its queries over the cache, per sequence: causal, or over the whole
 * text (attention.c); of rows that are those of the pass from `first` on. chosen: the cache that
 * holds what one row sees, which stands for that row at the position of the last; NULL: the pass's.
 */
void moe_attention_rows(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                        uint32_t first, uint32_t n_rows, const struct moe_kv *chosen);
static inline void moe_attention(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                                 uint32_t n_rows)
{
    moe_attention_rows(s, layer, rows, 0, n_rows, NULL);
}
/* In the place of moe_attention where rows see what an indexer chooses: after moe_project_in the
 * indexer's queries, keys and weights, then the choice and `attended` (sparse.c). */
void stages_cpu_index(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows);
int stages_cpu_attend_chosen(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                             uint32_t n_rows, struct moe_err *err);
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
    uint32_t n_rows, state; /* its number among recurrent layers */
};
/* w->out of the kinds of states, from the rest of w. */
void stages_cpu_state_delta(struct cpu_state_pass *p);
void stages_cpu_state_scan(struct cpu_state_pass *p);
void stages_cpu_state_select(struct cpu_state_pass *p);
void stages_cpu_short_conv(struct cpu_state_pass *p);
/* Queries, keys and values (of Mamba these alone) become silu of their convolution over the last
 * tokens. */
void stages_cpu_convolve(struct cpu_state_pass *p);
/* Where a row finds 16 values of a head's state; zeros where its text begins. */
float *stages_cpu_state_panel(const struct cpu_state_pass *p, uint32_t row, uint32_t head,
                              uint32_t panel);

/* Of a layer with shared keys (shared_keys.c): as moe_project_in and moe_project_out. */
void stages_cpu_shared_in(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows);
void stages_cpu_shared_out(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows);
/* ... that compresses: the entries of groups that rows complete (entries.c), and which ones rows
 * choose (index.c). After stages_cpu_shared_in. */
void stages_cpu_compress(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows);
void stages_cpu_choose_entries(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                               uint32_t n_rows);
/* An indexer's queries of a row side by side, eight heads at a time; zeros stand for heads there
 * are not (index.c). */
void stages_cpu_index_tiles(const struct moe_config *c, const float *queries, float *tiles);
/* By these the scores of the first n <= MOE_ATTENTION_CHUNK keys of some panels. weights: of the
 * heads; products: [MOE_TILE][MOE_ATTENTION_CHUNK] scratch. */
void stages_cpu_index_scores(const struct moe_config *c, struct moe_layout layout,
                             const float *tiles, const float *weights, const uint8_t *keys,
                             uint32_t n, float *products, float *scores);
/* Floats of scratch that a thread needs to choose among so many entries. */
uint64_t moe_index_scratch_floats(const struct moe_config *c, uint64_t n_entries);
/* cosines and sines of a row's position in the layer, pair by pair. */
const float *stages_cpu_shared_angles(const struct moe_session *s, uint32_t layer,
                                      uint32_t position);
/* Turns the last rope_dim values of x [width], pairs of neighbours; back: the other way. */
void stages_cpu_turn(const struct moe_config *c, const float *angles, bool back, uint32_t width,
                     float *x);
/* y[i][group * y_width ..] = (rows [group * rows_each ..) of m) x[i][group * x_width ..] for all n
 * groups: one list of products over row blocks of one matrix (projections.c). */
void stages_cpu_multiply_blocks(struct cpu_attention *w, const struct moe_mat *m, uint32_t n,
                                uint32_t n_rows, const float *x, uint64_t x_stride,
                                uint32_t x_width, float *y, uint64_t y_stride, uint32_t y_width);

/* Several streams (streams.c). Of each the rows' embeddings, which lie in the states' h. */
void stages_cpu_streams_begin(struct moe_session *s, uint32_t n_rows);
/* The same from the states of a pass, [n_rows][n_streams * hidden], and back. */
void stages_cpu_streams_set(struct moe_session *s, uint32_t n_rows, const float *states);
void stages_cpu_streams_get(const struct moe_session *s, uint32_t n_rows, float *states);
/* h = what a block takes in of them; of rows [first, first + n). */
void stages_cpu_streams_in(struct moe_session *s, const struct moe_streams_mix *mix, uint32_t first,
                           uint32_t n);
/* The streams of a row become what they are behind the block, whose output is `out`. */
void stages_cpu_streams_out(struct moe_session *s, uint32_t row, const float *out);

/* As the table's join (join.c). */
int stages_cpu_join(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                    uint32_t n_rows, const uint32_t *from, struct moe_err *err);

/* The same for attention to sources. Queries of the rows, from the states' xn. */
void moe_project_cross_in(struct moe_session *s, uint32_t layer, uint32_t n_rows);
void moe_attention_cross(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows);
void moe_project_cross_out(struct moe_session *s, uint32_t layer, uint32_t n_rows);
/* k and v that a decoder's layer makes of an encoder's output, the states' inputs. */
void moe_project_source(struct moe_session *s, uint32_t layer);

/* Floats of scratch that a thread of attention needs, and tiles that a batch can make. */
uint64_t moe_attention_scratch_floats(const struct moe_config *c);
uint64_t moe_attention_max_tiles(const struct moe_config *c, uint32_t batch);

int stages_cpu_choose(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err);
int moe_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
              struct moe_err *err);

/* What ends a block: a bias of its last product, its norm, and what the stream is multiplied by
 * then. What there is not is NULL. */
struct moe_block_end {
    const float *bias, *norm, *norm_bias, *scale;
};
/* Of a layer's attention, and of its feed-forward. */
static inline struct moe_block_end stages_cpu_attention_end(const struct moe_config *c,
                                                            const struct moe_layer *l)
{
    if (c->norm_place == MOE_NORM_AFTER)
        return (struct moe_block_end){.norm = l->attn_norm, .norm_bias = l->attn_norm_bias};
    return (struct moe_block_end){.norm = l->attn_end_norm};
}
static inline struct moe_block_end stages_cpu_ffn_end(const struct moe_config *c,
                                                      const struct moe_layer *l)
{
    if (c->norm_place == MOE_NORM_AFTER)
        return (struct moe_block_end){l->down_bias, l->ffn_norm, l->ffn_norm_bias, l->scale};
    return (struct moe_block_end){l->down_bias, l->ffn_end_norm, NULL, l->scale};
}
/* h += residual_scale * (that of) sum, for the first n_rows rows. */
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
                       const struct moe_expert_view *views, uint32_t n, struct moe_err *err);
int stages_cpu_combine(struct moe_session *s, uint32_t layer, uint32_t n_rows, struct moe_err *err);

#endif
