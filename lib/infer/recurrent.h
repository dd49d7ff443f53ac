/*
 * Recurrent states: what layers of gated DeltaNet, KDA, Mamba, Mamba-2 and short convolutions have
 * of a sequence in the place of keys and values. Their size does not depend on the text's length.
 * Of a sequence and such a layer:
 *
 *   the last conv_width - 1 tokens' inputs of the convolution [conv_width - 1][stride], the oldest
 *   first: queries, keys and values, each part of them padded to whole panels;
 *   each head's state in panels of 16 values, [panel][key_dim][16] (kern.h's delta_step
 *   and scan_step).
 *
 * A short convolution has only the former, of its scaled values; layers with convolutions of keys,
 * values and what their blocks put out have these four parts of it.
 *
 * Behind those of all layers, where a layer has embeddings of n-grams: the inputs of their
 * convolution in the last positions, position p in row p % beside_rows, and the last tokens, the
 * same way (cpu_ngrams.c).
 *
 * A token's row changes the state of the row before it, so that rows must come in their order, and
 * no other than the last one's state is there to go on from, but for states that were kept: the one
 * of a sequence that drafts are taken back to, and snapshots, which any text of the session can
 * begin from (infer/kv_pool.h).
 */
#ifndef MOE_INFER_RECURRENT_H
#define MOE_INFER_RECURRENT_H

#include <stdbool.h>
#include <stdint.h>

#include "infer/compressed.h"
#include "infer/kv.h"
#include "model/config.h"

struct moe_session;
struct moe_row;

struct moe_recurrent {
    float *memory;
    uint32_t n_layers;                           /* of recurrent ones; 0: there are no states */
    uint32_t n_taps;                             /* conv_width - 1 */
    uint32_t n_panels;                           /* of a head */
    uint64_t keys_at, values_at, stride;         /* of a row of the convolution, in floats */
    uint64_t mixed_at, fed_at;                   /* MOE_STATE_TAPS: of what blocks put out */
    uint64_t panel, layer, sequence;             /* floats of each */
    uint64_t beside_rows, beside_stride, beside; /* of n-grams: rows, floats of one and of all */
    uint64_t bytes;                              /* of all; UINT64_MAX: they overflow */
};

/* Floats from one row to the next of what a pass computes: values, numbers of heads (of Mamba-2
 * steps), decays (by head, of KDA by key, of Mamba by value), the vectors that gates and decays are
 * made of in KDA and Mamba; low: that vector's width, 0: there is none. */
struct moe_recurrent_strides {
    uint64_t values, heads, decay;
    uint32_t low;
};
struct moe_recurrent_strides moe_recurrent_strides(const struct moe_config *config);

/* Without memory. n: states, those of sequences and those that are kept. */
struct moe_recurrent moe_recurrent_shape(const struct moe_config *config, uint32_t n);

/* layer: its number among recurrent layers (recurrent_index). */
float *moe_recurrent_taps(const struct moe_recurrent *r, uint32_t sequence, uint32_t layer);
float *moe_recurrent_panel(const struct moe_recurrent *r, uint32_t sequence, uint32_t layer,
                           uint32_t head, uint32_t panel);
/* What is behind the layers. */
static inline float *moe_recurrent_beside(const struct moe_recurrent *r, uint32_t sequence)
{
    return r->memory + sequence * r->sequence + r->n_layers * r->layer;
}
void moe_recurrent_copy(const struct moe_recurrent *r, uint32_t from, uint32_t to);

/* ---- Positions that a session's states have taken in ----
 * Those of groups that are open too (infer/compressed.h): of every layer that keeps one
 * (moe_config_keeps_state). */

enum { MOE_NO_STATE = UINT32_MAX };

/* Checks that rows through layers [begin, end) follow what the states have taken in, or begin at 0.
 * MOE_ERR_USAGE. */
int moe_recurrent_check(const struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t begin, uint32_t end, struct moe_err *err);
/* The layer's states of the rows' sequences have taken in these rows. */
void moe_recurrent_advance(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows);
/* All of a sequence's have taken in its first n positions. */
void moe_recurrent_set(struct moe_session *s, uint32_t sequence, uint32_t n);
/* Where a sequence goes on to compute position n: n, or 0 where a state has taken in fewer or more.
 */
uint32_t moe_recurrent_from(const struct moe_session *s, uint32_t sequence, uint32_t n);

/*
 * A sequence outside of its session: what there is of its first positions, in pieces that are small
 * and do not depend on the context's length, so that any session of the model with the same type of
 * cache can take them (engine/context_file.h). In their order:
 *
 *   keys and values: of every MOE_KV_GROUP positions, layer by layer (infer/kv.h);
 *   states: of each recurrent layer one, and what is beside them (struct moe_recurrent);
 *   of each layer that compresses its entries by sixteens, then what entries to come need of a
 *   position, position by position (infer/compressed.h).
 */

struct moe_kept {
    const struct moe_kv *kv;
    /* NULL, or without layers: the model has none. */
    const struct moe_recurrent *states;
    const struct moe_compressed *compressed;
    uint32_t sequence;
    uint32_t n; /* positions */
    bool far;   /* they are of a text beyond rope_original */
};

enum moe_kept_kind { MOE_KEPT_KEYS, MOE_KEPT_STATE, MOE_KEPT_ENTRIES };
extern const char *const moe_kept_words[]; /* by kind */

struct moe_kept_piece {
    enum moe_kept_kind kind;
    uint32_t layer; /* the model's, of states their number */
    uint32_t part;  /* of the layer */
    uint64_t bytes;
};

/* Layers that have keys and values in pieces. Those of layers that draft are made anew: a context
 * is the same with and without drafts. */
uint32_t moe_kept_kv_layers(const struct moe_kept *p);
/* Layers that have a state, or compress. */
uint32_t moe_kept_state_layers(const struct moe_kept *p);

/* How many pieces there are, and their bytes. */
uint64_t moe_kept_count(const struct moe_kept *p, uint64_t *bytes);
struct moe_kept_piece moe_kept_at(const struct moe_kept *p, uint64_t i);
/* Bytes that any piece takes which does not lie in the session as it is. */
uint64_t moe_kept_room(const struct moe_kept *p);
/* Where the piece's bytes are read and written: in that room, or where the session has them. */
uint8_t *moe_kept_place(const struct moe_kept *p, const struct moe_kept_piece *piece,
                        uint8_t *room);
/* To and from that place. put: the sequence has room for it; false: a cell is not finite, which
 * none must be, and nothing is changed. */
void moe_kept_get(const struct moe_kept *p, const struct moe_kept_piece *piece, uint8_t *place);
bool moe_kept_put(const struct moe_kept *p, const struct moe_kept_piece *piece,
                  const uint8_t *place);

#endif
