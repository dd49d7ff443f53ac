/*
 * What layers of compressed attention have of a sequence beside keys and values (DeepSeek-V4).
 * Positions make groups of `ratio`; of each complete group there is an entry, key and value in one,
 * and where the layer chooses entries also a key for the indexer's scores. With x and g what a
 * layer makes of a position's input (entry, entry_gate) and b its biases by place in the group:
 *
 *   e[d] = norm(sum over places j of x_j[d] * w_j[d]), w[d] = softmax over j of g_j[d] + b_j[d],
 *
 * rotated by the angles of the group's first position. Where groups overlap (the layer chooses) x
 * and g are twice as wide, and the sum goes over the group before, of its first half, and then over
 * the group itself, of its second half.
 *
 * A row sees the entries of groups that end with it or before. Of a sequence and such a layer:
 *
 *   x and g of the last positions [n_kept][kept_stride], position p at p % n_kept: the open
 * group's, and where groups overlap those of the one before; the indexer's keys, in panels of 16
 * entries [entries / 16][index_dim][16]; the entries, as attention reads them: as a block of the KV
 * cache (infer/kv.h) lies.
 *
 * A group's entry is made when its last position is computed, so that, as with recurrent states
 * (infer/recurrent.h), rows must come in their order and a text goes on only from its last token.
 */
#ifndef MOE_INFER_COMPRESSED_H
#define MOE_INFER_COMPRESSED_H

#include <stdbool.h>
#include <stdint.h>

#include "infer/kv.h"
#include "model/config.h"

struct moe_session_options;

struct moe_compressed {
    uint8_t *memory;
    const struct moe_config *config; /* borrowed */
    struct moe_kv kv;                /* of one head and layer: how its entries are kept */
    uint32_t context;
    uint64_t sequence; /* bytes of one */
    uint64_t bytes;    /* of all; 0: no layer compresses; UINT64_MAX: they overflow */
};

/* Without memory. o: complete (no member 0 that has a default); as many as there are
 * recurrent states (moe_session_states). */
struct moe_compressed moe_compressed_shape(const struct moe_config *config,
                                           const struct moe_session_options *o);

/* Floats of a position: where each of the four lies that are made of it, and of all together. */
struct moe_compressed_row {
    uint64_t entry, gate, index_entry, index_gate, stride;
};
struct moe_compressed_row moe_compressed_row(const struct moe_config *config, uint32_t layer);

/* What there is of a sequence in a layer that compresses. */
struct moe_compressed_part {
    uint32_t ratio, n_kept, n_entries; /* room for this many, whole panels */
    float *kept;
    float *index; /* NULL: all are seen */
    uint8_t *keys, *values;
};
struct moe_compressed_part moe_compressed_at(const struct moe_compressed *c, uint32_t sequence,
                                             uint32_t layer);

/* Entries that the row at a position sees, or may choose from. */
static inline uint32_t moe_compressed_seen(uint32_t ratio, uint32_t position)
{
    return (position + 1) / ratio;
}

/* What there is of a sequence's first n positions in a layer, as pieces (infer/recurrent.h): of
 * every 16 complete entries, and then of each position that entries to come need. */
struct moe_compressed_pieces {
    uint64_t n_groups, group_bytes; /* of entries */
    uint64_t n_rows, row_bytes;
};
struct moe_compressed_pieces moe_compressed_pieces(const struct moe_compressed *c, uint32_t layer,
                                                   uint32_t n);
/* A piece of a sequence's. An entry is there once, as key and value in one; zeros stand for those
 * that are missing to 16. */
void moe_compressed_piece_get(const struct moe_compressed *c, uint32_t sequence, uint32_t layer,
                              uint32_t n, uint32_t piece, uint8_t *to);
/* False: a cell is not finite; nothing is changed then. */
bool moe_compressed_piece_put(const struct moe_compressed *c, uint32_t sequence, uint32_t layer,
                              uint32_t n, uint32_t piece, const uint8_t *from);

/* A sequence receives what another has; entries: those too, which a text that only goes back to
 * where it stood has itself. */
void moe_compressed_copy(const struct moe_compressed *c, uint32_t from, uint32_t to, bool entries);

#endif
