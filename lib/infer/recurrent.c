/* Recurrent states, and what is kept of them to go back. */
#include "infer/recurrent.h"

#include <string.h>

#include "base/mem.h"
#include "infer/state.h"
#include "model/config.h"

struct moe_recurrent_strides moe_recurrent_strides(const struct moe_config *c)
{
    bool kda = c->state_kind == MOE_STATE_KDA, select = c->state_kind == MOE_STATE_SELECT;
    struct moe_recurrent_strides s = {
        .values = moe_padded((uint64_t)c->state_heads * c->state_value_dim),
        .heads = moe_padded(c->state_heads),
        .low = kda      ? c->state_key_dim
               : select ? c->state_step_rank
                        : 0,
    };
    s.decay = kda      ? moe_padded((uint64_t)c->state_heads * c->state_key_dim)
              : select ? s.values
                       : s.heads;
    return s;
}

struct moe_recurrent moe_recurrent_shape(const struct moe_config *c, uint32_t n)
{
    struct moe_recurrent r = {.n_layers = c->layers[c->n_layers].recurrent_index};
    if (r.n_layers == 0)
        return r;
    uint64_t keys = moe_padded((uint64_t)c->state_key_heads * c->state_key_dim);
    r.n_taps = c->conv_width - 1;
    if (c->state_kind == MOE_STATE_CCA)
        r.n_taps *= 2; /* of two convolutions */
    r.n_panels = (uint32_t)(moe_padded(c->state_value_dim) / MOE_PANEL_ROWS);
    r.keys_at = keys;
    r.values_at = 2 * keys;
    r.stride = 2 * keys + moe_padded((uint64_t)c->state_heads * c->state_value_dim);
    r.panel = (uint64_t)c->state_key_dim * MOE_PANEL_ROWS;
    if (c->state_kind == MOE_STATE_TAPS) {
        uint64_t width = 0, values = 0;
        for (uint32_t layer = 0; layer < c->n_layers; layer++) {
            uint64_t heads = moe_config_kv_heads(c, layer);
            width = moe_larger(width, moe_padded(heads * moe_config_head_dim(c, layer)));
            values = moe_larger(values, moe_padded(heads * moe_config_value_dim(c, layer)));
        }
        r.values_at = width;
        r.mixed_at = width + values;
        r.fed_at = r.mixed_at + moe_padded(c->hidden);
        r.stride = r.fed_at + moe_padded(c->hidden);
    }
    r.layer = r.n_taps * r.stride + (uint64_t)c->state_heads * r.n_panels * r.panel;
    r.beside_rows = c->ngrams ? (uint64_t)(c->ngram_taps - 1) * c->ngrams : 0;
    r.beside_stride = moe_padded((uint64_t)c->n_streams * c->hidden);
    r.beside = c->ngrams ? r.beside_rows * r.beside_stride + moe_padded(c->ngrams) : 0;
    r.sequence = r.n_layers * r.layer + r.beside;
    if (!moe_mul_u64(r.sequence * sizeof(float), n, &r.bytes))
        r.bytes = UINT64_MAX;
    return r;
}

float *moe_recurrent_taps(const struct moe_recurrent *r, uint32_t sequence, uint32_t layer)
{
    return r->memory + sequence * r->sequence + layer * r->layer;
}

float *moe_recurrent_panel(const struct moe_recurrent *r, uint32_t sequence, uint32_t layer,
                           uint32_t head, uint32_t panel)
{
    return moe_recurrent_taps(r, sequence, layer) + r->n_taps * r->stride +
           ((uint64_t)head * r->n_panels + panel) * r->panel;
}

void moe_recurrent_copy(const struct moe_recurrent *r, uint32_t from, uint32_t to)
{
    memcpy(r->memory + to * r->sequence, r->memory + from * r->sequence,
           r->sequence * sizeof *r->memory);
}

/* ---- What they have taken in ---- */

static uint32_t n_states(const struct moe_session *s)
{
    const struct moe_config *c = &s->model->config;
    return c->layers[c->n_layers].state_index;
}

static int check_layer(const struct moe_session *s, uint32_t state, const struct moe_row *rows,
                       uint32_t n_rows, struct moe_err *err)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t sequence = rows[i].sequence, before = i;
        if (rows[i].position == 0)
            continue;
        while (before > 0 && rows[before - 1].sequence != sequence)
            before--;
        uint32_t end =
            before ? rows[before - 1].position + 1 : s->state_ends[sequence * n_states(s) + state];
        if (end != rows[i].position)
            return moe_fail(err, MOE_ERR_USAGE,
                            "position %u of sequence %u cannot be computed: the state is not that "
                            "of the positions before it (compute the text from its first token on)",
                            rows[i].position, sequence);
    }
    return MOE_OK;
}

int moe_recurrent_check(const struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t begin, uint32_t end, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    int status = MOE_OK;
    for (uint32_t layer = begin; s->state_ends && layer < end && status == MOE_OK; layer++)
        if (moe_config_keeps_state(c, layer))
            status = check_layer(s, c->layers[layer].state_index, rows, n_rows, err);
    return status;
}

void moe_recurrent_advance(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows)
{
    uint32_t state = s->model->config.layers[layer].state_index;
    for (uint32_t i = 0; i < n_rows; i++)
        s->state_ends[rows[i].sequence * n_states(s) + state] = rows[i].position + 1;
}

void moe_recurrent_set(struct moe_session *s, uint32_t sequence, uint32_t n)
{
    for (uint32_t i = 0; s->state_ends && i < n_states(s); i++)
        s->state_ends[sequence * n_states(s) + i] = n;
}

uint32_t moe_recurrent_from(const struct moe_session *s, uint32_t sequence, uint32_t n)
{
    for (uint32_t i = 0; s->state_ends && i < n_states(s); i++)
        if (s->state_ends[sequence * n_states(s) + i] != n)
            return 0;
    return n;
}

/* ---- States that are kept ---- */

const char *const moe_kept_words[] = {"keys and values", "recurrent states", "entries"};

uint32_t moe_kept_kv_layers(const struct moe_kept *p)
{
    return p->kv->n_layers - p->kv->n_drafting;
}

uint32_t moe_kept_state_layers(const struct moe_kept *p)
{
    return p->kv->config->layers[p->kv->config->n_layers].state_index;
}

/* ---- How many ---- */

static uint64_t n_keys(const struct moe_kept *p)
{
    return ((uint64_t)p->n + MOE_KV_GROUP - 1) / MOE_KV_GROUP * moe_kept_kv_layers(p);
}

static uint64_t n_kept_states(const struct moe_kept *p)
{
    return p->states && p->n ? p->states->n_layers + (p->states->beside > 0) : 0;
}

static uint64_t state_bytes(const struct moe_kept *p, uint64_t i)
{
    return (i < p->states->n_layers ? p->states->layer : p->states->beside) *
           sizeof *p->states->memory;
}

static uint32_t n_compressing(const struct moe_kept *p)
{
    return p->compressed && p->compressed->bytes ? p->kv->config->n_layers : 0;
}

uint64_t moe_kept_count(const struct moe_kept *p, uint64_t *bytes)
{
    uint64_t n = n_keys(p) + n_kept_states(p);
    *bytes = n_keys(p) * moe_kv_group_bytes(p->kv);
    if (n_kept_states(p))
        *bytes += p->states->sequence * sizeof *p->states->memory;
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
    if (i < n_kept_states(p))
        return (struct moe_kept_piece){MOE_KEPT_STATE, (uint32_t)i, 0, state_bytes(p, i)};
    i -= n_kept_states(p);
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
    return (uint8_t *)moe_recurrent_taps(p->states, p->sequence, piece->layer);
}

void moe_kept_get(const struct moe_kept *p, const struct moe_kept_piece *piece, uint8_t *place)
{
    uint32_t at = piece->part * MOE_KV_GROUP, left = p->n - at;
    if (piece->kind == MOE_KEPT_KEYS)
        moe_kv_group_get(p->kv, piece->layer, p->sequence, at,
                         left < MOE_KV_GROUP ? left : MOE_KV_GROUP, place);
    else if (piece->kind == MOE_KEPT_ENTRIES)
        moe_compressed_piece_get(p->compressed, p->sequence, piece->layer, p->n, piece->part,
                                 place);
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
