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
 * A short convolution has the former alone, of its scaled values.
 *
 * A token's row changes the state of the row before it, so that rows must come in their order, and
 * no other than the last one's state is there to go on from.
 */
#ifndef MOE_LAYER_RECURRENT_H
#define MOE_LAYER_RECURRENT_H

#include <stdbool.h>
#include <stdint.h>

#include "model/config.h"

struct moe_session;
struct moe_row;

struct moe_recurrent {
    float *memory;
    uint32_t n_layers;                   /* of recurrent ones; 0: there are no states */
    uint32_t n_taps;                     /* conv_width - 1 */
    uint32_t n_panels;                   /* of a head */
    uint64_t keys_at, values_at, stride; /* of a row of the convolution, in floats */
    uint64_t panel, layer, sequence;     /* floats of each */
    uint64_t bytes;                      /* of all; UINT64_MAX: they overflow */
};

/* Floats from one row to the next of what a pass computes: values, numbers of heads (of Mamba-2
 * steps), decays (by head, of KDA by key, of Mamba by value), the vectors that gates and decays are
 * made of in KDA and Mamba; low: that vector's width, 0: there is none. */
struct moe_recurrent_strides {
    uint64_t values, heads, decay;
    uint32_t low;
};
struct moe_recurrent_strides moe_recurrent_strides(const struct moe_config *config);

/* Without memory. */
struct moe_recurrent moe_recurrent_shape(const struct moe_config *config, uint32_t n_sequences);

/* layer: its number among recurrent layers (moe_config_recurrent_layers). */
float *moe_recurrent_taps(const struct moe_recurrent *r, uint32_t sequence, uint32_t layer);
float *moe_recurrent_panel(const struct moe_recurrent *r, uint32_t sequence, uint32_t layer,
                           uint32_t head, uint32_t panel);
void moe_recurrent_copy(const struct moe_recurrent *r, uint32_t from, uint32_t to);

/* ---- Where the states of a session stand ----
 * Those of groups that are open too (layer/compressed.h): of every layer that keeps one
 * (moe_config_keeps_state). */

/* The position whose state none has. */
enum { MOE_STANDS_NOWHERE = UINT32_MAX };

/* That rows through layers [begin, end) go on from where the states stand, or begin at 0.
 * MOE_ERR_USAGE. */
int moe_recurrent_check(const struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t begin, uint32_t end, struct moe_err *err);
/* The layer's states of the rows' sequences stand behind these rows. */
void moe_recurrent_passed(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows);
/* All of a sequence's stand there. */
void moe_recurrent_stand(struct moe_session *s, uint32_t sequence, uint32_t position);
/* From where a sequence whose first n positions are computed can be gone on from, to compute
 * position n next: n, or 0 where a state stands elsewhere. */
uint32_t moe_recurrent_from(const struct moe_session *s, uint32_t sequence, uint32_t n);

#endif
