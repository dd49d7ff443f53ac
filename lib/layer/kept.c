#include "layer/kept.h"

#include "model/config_states.h"

const char *const moe_kept_words[] = {"keys and values", "recurrent states", "entries"};

uint32_t moe_kept_kv_layers(const struct moe_kept *p)
{
    return p->kv->n_layers - p->kv->n_drafting;
}

uint32_t moe_kept_state_layers(const struct moe_kept *p)
{
    return moe_config_state_layers(p->kv->config, p->kv->config->n_layers);
}

/* ---- How many ---- */

static uint64_t n_keys(const struct moe_kept *p)
{
    return ((uint64_t)p->n + MOE_KV_GROUP - 1) / MOE_KV_GROUP * moe_kept_kv_layers(p);
}

static uint64_t n_states(const struct moe_kept *p)
{
    return p->states && p->n ? p->states->n_layers : 0;
}

static uint64_t state_bytes(const struct moe_kept *p)
{
    return p->states->layer * sizeof *p->states->memory;
}

static uint32_t n_compressing(const struct moe_kept *p)
{
    return p->compressed && p->compressed->bytes ? p->kv->config->n_layers : 0;
}

uint64_t moe_kept_count(const struct moe_kept *p, uint64_t *bytes)
{
    uint64_t n = n_keys(p) + n_states(p);
    *bytes = n_keys(p) * moe_kv_group_bytes(p->kv);
    if (n_states(p))
        *bytes += n_states(p) * state_bytes(p);
    for (uint32_t layer = 0; layer < n_compressing(p); layer++) {
        struct moe_compressed_pieces of = moe_compressed_pieces(p->compressed, layer, p->n);
        n += of.n_groups + of.n_rows;
        *bytes += of.n_groups * of.group_bytes + of.n_rows * of.row_bytes;
    }
    return n;
}

struct moe_kept_piece moe_kept_at(const struct moe_kept *p, uint64_t i)
{
    uint32_t n_layers = moe_kept_kv_layers(p), layer = 0;
    if (i < n_keys(p))
        return (struct moe_kept_piece){MOE_KEPT_KEYS, moe_kv_layer(p->kv, (uint32_t)(i % n_layers)),
                                       (uint32_t)(i / n_layers), moe_kv_group_bytes(p->kv)};
    i -= n_keys(p);
    if (i < n_states(p))
        return (struct moe_kept_piece){MOE_KEPT_STATE, (uint32_t)i, 0, state_bytes(p)};
    i -= n_states(p);
    struct moe_compressed_pieces of;
    for (;; layer++) {
        of = moe_compressed_pieces(p->compressed, layer, p->n);
        if (i < of.n_groups + of.n_rows)
            break;
        i -= of.n_groups + of.n_rows;
    }
    return (struct moe_kept_piece){MOE_KEPT_ENTRIES, layer, (uint32_t)i,
                                   i < of.n_groups ? of.group_bytes : of.row_bytes};
}

/* ---- What they are ---- */

uint64_t moe_kept_room(const struct moe_kept *p)
{
    uint64_t most = moe_kv_group_bytes(p->kv);
    for (uint32_t layer = 0; layer < n_compressing(p); layer++) {
        struct moe_compressed_pieces of = moe_compressed_pieces(p->compressed, layer, p->n);
        most = most > of.group_bytes ? most : of.group_bytes;
        most = most > of.row_bytes ? most : of.row_bytes;
    }
    return most;
}

uint8_t *moe_kept_place(const struct moe_kept *p, const struct moe_kept_piece *piece, uint8_t *room)
{
    if (piece->kind != MOE_KEPT_STATE)
        return room;
    return (uint8_t *)moe_recurrent_taps(p->states, p->states_of, piece->layer);
}

void moe_kept_get(const struct moe_kept *p, const struct moe_kept_piece *piece, uint8_t *place)
{
    uint32_t at = piece->part * MOE_KV_GROUP, left = p->n - at;
    if (piece->kind == MOE_KEPT_KEYS)
        moe_kv_group_get(p->kv, piece->layer, p->sequence, at,
                         left < MOE_KV_GROUP ? left : MOE_KV_GROUP, place);
    else if (piece->kind == MOE_KEPT_ENTRIES)
        moe_compressed_piece_get(p->compressed, p->sequence, p->states_of, piece->layer, p->n,
                                 piece->part, place);
}

bool moe_kept_put(const struct moe_kept *p, const struct moe_kept_piece *piece,
                  const uint8_t *place)
{
    if (piece->kind == MOE_KEPT_KEYS)
        return moe_kv_group_put(p->kv, piece->layer, p->sequence, piece->part * MOE_KV_GROUP,
                                place);
    return piece->kind == MOE_KEPT_STATE ||
           moe_compressed_piece_put(p->compressed, p->sequence, piece->layer, p->n, piece->part,
                                    place);
}
