/*
 * A sequence outside of its session: what there is of its first positions, in pieces that are small
 * and do not depend on the context's length, so that any session of the model with the same type of
 * cache can take them (engine/context_file.h). In their order:
 *
 *   keys and values: of every MOE_KV_GROUP positions, layer by layer (layer/kv.h);
 *   states: of each recurrent layer one (layer/recurrent.h);
 *   of each layer that compresses its entries by sixteens, then what entries to come need of a
 *   position, position by position (layer/compressed.h).
 */
#ifndef MOE_LAYER_KEPT_H
#define MOE_LAYER_KEPT_H

#include "layer/compressed.h"
#include "layer/kv.h"
#include "layer/recurrent.h"

struct moe_kept {
    const struct moe_kv *kv;
    /* NULL, or without layers: the model has none. */
    const struct moe_recurrent *states;
    const struct moe_compressed *compressed;
    uint32_t sequence;
    uint32_t states_of; /* whose states, open groups among them: the sequence's, or its mark's */
    uint32_t n;         /* positions */
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
