/* The KV cache of a session: where keys and values of a row lie. */
#include "infer/kv.h"

#include <float.h>
#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/par.h"
#include "infer/kv_pool.h"
#include "infer/state.h"
#include "kern/kern.h"

/* ---- Kinds of cells ---- */

static const uint16_t kinds[] = {MOE_LAYOUT_F32, MOE_LAYOUT_F16};
enum { N_KINDS = sizeof kinds / sizeof kinds[0] };

const char *moe_kv_kind_at(int i)
{
    return i < N_KINDS ? moe_layout_name(kinds[i]) : NULL;
}

uint16_t moe_kv_kind_find(const char *name)
{
    for (int i = 0; i < N_KINDS; i++)
        if (strcmp(name, moe_kv_kind_at(i)) == 0)
            return kinds[i];
    return MOE_LAYOUT_NONE;
}

/* ---- Its shape ---- */

/* Layers that draft count as without a window: their rows may come later than a pass's. */
static bool has_window(const struct moe_config *c, uint32_t layer)
{
    return layer < c->n_layers && c->layers[layer].windowed && moe_config_attends(c, layer);
}

/* A GPU's attention reads all layers by one table of blocks; sources and prompts that are seen as a
 * whole have no last positions. */
static bool may_lie_apart(const struct moe_config *c, const struct moe_session_options *o)
{
    bool any = false;
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        any |= has_window(c, layer);
    return any && !o->whole_windows && !o->gpu && !c->n_encoder && !c->prefix_lm;
}

struct moe_kv_pool moe_kv_pool_shape(const struct moe_config *c,
                                     const struct moe_session_options *o)
{
    uint32_t positions = (uint32_t)moe_padded(o->context);
    struct moe_kv_pool pool = {.n_sequences = o->n_sequences};
    pool.block_positions = positions < MOE_ATTENTION_CHUNK ? positions : MOE_ATTENTION_CHUNK;
    pool.per_sequence = (positions - 1) / pool.block_positions + 1;
    uint64_t all = (uint64_t)pool.n_sequences * pool.per_sequence;
    all = all < UINT32_MAX ? all : UINT32_MAX;
    pool.n_blocks = o->kv_blocks && o->kv_blocks < all ? o->kv_blocks : (uint32_t)all;
    pool.window = c->window;
    pool.n_slots = may_lie_apart(c, o) ? moe_kv_windows_slots(&pool, o->batch) : 0;
    return pool;
}

static bool lies_apart(const struct moe_kv *kv, uint32_t layer)
{
    return kv->windows.n_blocks && has_window(kv->config, layer);
}

/* Cells of keys and of values of one position, of the cache's layers up to `end`, a model's, that
 * lie apart or do not. */
static void add_cells(const struct moe_kv *kv, uint32_t end, bool apart, uint64_t *keys,
                      uint64_t *values)
{
    const struct moe_config *c = kv->config;
    uint64_t n = 0, n_global = 0, n_indexers = 0;
    for (uint32_t layer = kv->first_layer; layer < end; layer++) {
        if (!moe_config_attends(c, layer) || lies_apart(kv, layer) != apart)
            continue;
        bool global = moe_config_is_global(c, layer);
        n += !global;
        n_global += global;
        n_indexers += moe_config_has_indexer(c, layer);
    }
    *keys = n * moe_config_cache_heads(c) * moe_config_cache_key(c);
    *values = n * moe_config_cache_heads(c) * moe_padded(moe_config_cache_value(c));
    *keys += n_global * c->global_kv_heads * c->global_head_dim;
    *keys += n_indexers * c->index_dim; /* kv may be of a layer without one */
    *values += n_global * c->global_kv_heads * moe_padded(c->global_head_dim);
}

struct moe_kv moe_kv_of_layer(const struct moe_kv *kv, uint32_t layer)
{
    struct moe_kv of = *kv;
    of.apart = lies_apart(kv, layer);
    if (kv->index_dim && !moe_config_has_indexer(kv->config, layer))
        of.index_dim = 0;
    if (moe_config_is_global(kv->config, layer)) {
        of.n_heads = kv->config->global_kv_heads;
        of.key_dim = of.value_dim = kv->config->global_head_dim;
        of.value_padded = (uint32_t)moe_padded(of.value_dim);
    }
    of.layer = layer + 1;
    add_cells(kv, layer, of.apart, &of.keys_before, &of.values_before);
    return of;
}

static uint64_t part_bytes(const struct moe_kv *kv, const struct moe_kv_part *part)
{
    uint64_t cells = (uint64_t)kv->block_positions * (part->key_cells + part->value_cells), bytes;
    return moe_mul_u64(part->n_blocks, cells * kv->item_bytes, &bytes) ? bytes : UINT64_MAX;
}

static uint64_t all_bytes(const struct moe_kv *kv)
{
    uint64_t whole = part_bytes(kv, &kv->whole), windows = part_bytes(kv, &kv->windows), sum;
    return moe_add_u64(whole, windows, &sum) ? sum : UINT64_MAX;
}

struct moe_kv moe_kv_shape(const struct moe_config *c, const struct moe_session_options *o)
{
    struct moe_kv_pool pool = moe_kv_pool_shape(c, o);
    struct moe_kv kv = {
        .whole.n_blocks = pool.n_blocks,
        .windows.n_blocks = pool.n_slots,
        .block_positions = pool.block_positions,
        .per_sequence = pool.per_sequence,
        .key_dim = moe_config_cache_key(c),
        .value_dim = moe_config_cache_value(c),
        .value_padded = (uint32_t)moe_padded(moe_config_cache_value(c)),
        .index_dim = moe_config_picks_positions(c) ? c->index_dim : 0,
        .n_heads = moe_config_cache_heads(c),
        .first_layer = c->n_encoder,
        .n_layers = c->layers[moe_config_all_layers(c)].attention_index -
                    c->layers[c->n_encoder].attention_index,
        .n_drafting = c->n_drafting,
        .config = c,
        .layout = {o->kv_kind, 0},
        .item_bytes = (uint32_t)moe_layout_bits(o->kv_kind) / 8,
    };
    uint32_t end = moe_config_all_layers(c);
    add_cells(&kv, end, false, &kv.whole.key_cells, &kv.whole.value_cells);
    add_cells(&kv, end, true, &kv.windows.key_cells, &kv.windows.value_cells);
    kv.bytes = all_bytes(&kv);
    return kv;
}

struct moe_kv moe_kv_source_shape(const struct moe_config *c, const struct moe_session_options *o)
{
    struct moe_session_options of_sources = *o;
    of_sources.context = o->source_context;
    of_sources.n_sequences = o->n_sources;
    of_sources.kv_blocks = 0;
    return moe_kv_shape(c, &of_sources);
}

struct moe_kv moe_kv_chosen_shape(const struct moe_config *c, const struct moe_session_options *o,
                                  uint32_t n)
{
    struct moe_session_options of_chosen = *o;
    of_chosen.context = n;
    of_chosen.n_sequences = 1;
    of_chosen.kv_blocks = 0;
    of_chosen.whole_windows = true;
    struct moe_kv kv = moe_kv_shape(c, &of_chosen);
    kv.index_dim = 0;
    kv.n_layers = 1;
    kv.whole.key_cells = kv.key_dim;
    kv.whole.value_cells = kv.value_padded;
    kv.bytes = all_bytes(&kv);
    return kv;
}

void moe_kv_source_table(const struct moe_kv *kv, uint32_t n_sources, uint32_t *table)
{
    for (uint32_t i = 0; i < n_sources * kv->per_sequence; i++)
        table[i] = i;
}

void moe_kv_place(struct moe_kv *kv, uint8_t *memory)
{
    struct moe_kv_part *parts[] = {&kv->whole, &kv->windows};
    for (int i = 0; i < 2; i++) {
        uint64_t items = (uint64_t)parts[i]->n_blocks * kv->block_positions * kv->item_bytes;
        parts[i]->keys = memory;
        parts[i]->values = memory + items * parts[i]->key_cells;
        memory = parts[i]->values + items * parts[i]->value_cells;
    }
}

uint32_t moe_kv_layer(const struct moe_kv *kv, uint32_t i)
{
    uint32_t layer = kv->first_layer;
    for (uint32_t left = i; left > 0 || !moe_config_attends(kv->config, layer); layer++)
        left -= moe_config_attends(kv->config, layer);
    return layer;
}

static const struct moe_kv_part *part_of(const struct moe_kv *kv, uint32_t layer)
{
    return lies_apart(kv, layer) ? &kv->windows : &kv->whole;
}

/* Cells of a position before those of the layer's head, in the block of its part. kv: of any
 * layer. */
static void cells_before(const struct moe_kv *kv, uint32_t layer, uint32_t head, uint64_t *keys,
                         uint64_t *values)
{
    struct moe_kv other;
    const struct moe_kv *of = kv;
    if (kv->layer != layer + 1) {
        other = moe_kv_of_layer(kv, layer);
        of = &other;
    }
    *keys = of->keys_before + (uint64_t)head * of->key_dim;
    *values = of->values_before + (uint64_t)head * of->value_padded;
}

uint8_t *moe_kv_keys(const struct moe_kv *kv, uint32_t layer, uint32_t block, uint32_t head)
{
    uint64_t keys, values;
    cells_before(kv, layer, head, &keys, &values);
    const struct moe_kv_part *part = part_of(kv, layer);
    return part->keys + (block * part->key_cells + keys) * kv->block_positions * kv->item_bytes;
}

uint8_t *moe_kv_values(const struct moe_kv *kv, uint32_t layer, uint32_t block, uint32_t head)
{
    uint64_t keys, values;
    cells_before(kv, layer, head, &keys, &values);
    const struct moe_kv_part *part = part_of(kv, layer);
    uint64_t at = (block * part->value_cells + values) * kv->block_positions;
    return part->values + at * kv->item_bytes;
}

uint8_t *moe_kv_index_keys(const struct moe_kv *kv, uint32_t layer, uint32_t block)
{
    return moe_kv_keys(kv, layer, block, kv->n_heads);
}

void moe_kv_spans(const struct moe_kv *kv, const struct moe_kv_part *part,
                  struct moe_kv_span spans[2])
{
    uint64_t items = (uint64_t)kv->block_positions * kv->item_bytes;
    spans[0] = (struct moe_kv_span){part->keys, items * part->key_cells};
    spans[1] = (struct moe_kv_span){part->values, items * part->value_cells};
}

static void copy_cells(const struct moe_kv *kv, const struct moe_kv_part *part, uint32_t from,
                       uint32_t to)
{
    struct moe_kv_span spans[2];
    moe_kv_spans(kv, part, spans);
    for (int i = 0; i < 2; i++)
        memcpy(spans[i].at + to * spans[i].bytes, spans[i].at + from * spans[i].bytes,
               spans[i].bytes);
}

void moe_kv_copy_block(const struct moe_kv *kv, uint32_t from, uint32_t to)
{
    const uint32_t *slots = kv->slot_of;
    copy_cells(kv, &kv->whole, from, to);
    if (kv->windows.n_blocks && slots[from] != MOE_NO_BLOCK && slots[to] != MOE_NO_BLOCK)
        copy_cells(kv, &kv->windows, slots[from], slots[to]);
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

struct moe_attention_strides moe_attention_strides(const struct moe_config *c)
{
    uint32_t heads = moe_config_cache_heads(c);
    uint32_t keys = heads * moe_config_cache_key(c), values = heads * moe_config_cache_value(c);
    uint32_t global = c->global_kv_heads * c->global_head_dim;
    uint32_t outputs = c->n_heads * larger(c->global_head_dim, c->value_dim);
    return (struct moe_attention_strides){
        .q = moe_padded(c->n_heads * moe_config_widest_head(c)),
        .q_down = moe_padded(c->q_rank),
        .k = moe_padded(larger(keys, global)),
        /* kv_down's output goes there, too */
        .v = moe_padded(c->kv_rank ? c->kv_rank + c->rope_dim : larger(values, global)),
        .queries = moe_padded(c->n_heads * larger(c->global_head_dim, moe_config_cache_key(c))),
        .attended = moe_padded(c->n_heads * larger(c->global_head_dim, moe_config_cache_value(c))),
        .out = moe_padded(outputs),
    };
}

/* ---- Storing ---- */

struct store {
    const struct moe_kv *kv;
    uint32_t layer;
    const struct moe_row *rows;
    const struct moe_kv_input *in;
};

/* Writes cell `c` of a head's keys or values. It is kept finite: an infinity in a cell that a row
 * masks would still make 0 * infinity there. */
static void put_cell(const struct moe_kv *kv, uint8_t *cells, uint64_t c, float v)
{
    if (kv->layout.kind == MOE_LAYOUT_F32)
        ((float *)(void *)cells)[c] = v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
    else
        ((uint16_t *)(void *)cells)[c] = moe_f32_to_f16(v > 65504.0f    ? 65504.0f
                                                        : v < -65504.0f ? -65504.0f
                                                                        : v);
}

void moe_kv_put(const struct moe_kv *kv, uint8_t *keys, uint8_t *values, uint64_t positions,
                uint64_t place, const float *key, const float *value)
{
    for (uint32_t c = 0; c < kv->key_dim; c++)
        put_cell(kv, keys, (place / 16 * kv->key_dim + c) * 16 + place % 16, key[c]);
    for (uint32_t c = 0; c < kv->value_dim; c++)
        put_cell(kv, values, (c / 16 * positions + place) * 16 + c % 16, value[c]);
}

static void store_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct store *st = ctx;
    const struct moe_kv *kv = st->kv;
    for (int64_t i = begin; i < end; i++) {
        uint32_t block = moe_kv_block(kv, st->rows[i].sequence, st->rows[i].position);
        uint64_t position = st->rows[i].position % kv->block_positions;
        for (uint32_t head = 0; head < kv->n_heads; head++) {
            const float *k = st->in->keys + (uint64_t)i * st->in->keys_stride + head * kv->key_dim;
            const float *v =
                st->in->values + (uint64_t)i * st->in->values_stride + head * kv->value_dim;
            moe_kv_put(kv, moe_kv_keys(kv, st->layer, block, head),
                       moe_kv_values(kv, st->layer, block, head), kv->block_positions, position, k,
                       v);
        }
        if (!kv->index_dim)
            continue;
        const float *k = st->in->index_keys + (uint64_t)i * st->in->index_stride;
        uint8_t *keys = moe_kv_index_keys(kv, st->layer, block);
        for (uint32_t c = 0; c < kv->index_dim; c++)
            put_cell(kv, keys, (position / 16 * kv->index_dim + c) * 16 + position % 16, k[c]);
    }
}

void moe_kv_store(const struct moe_kv *kv, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, const struct moe_kv_input *in)
{
    const struct moe_kv of = moe_kv_of_layer(kv, layer);
    struct store st = {&of, layer, rows, in};
    moe_par_for(n_rows, 8, store_rows, &st);
}

/* Keys and values of a sequence outside of the cache, in groups of positions (kv.h). */

uint64_t moe_kv_group_bytes(const struct moe_kv *kv)
{
    uint64_t cells = (uint64_t)kv->n_heads * (kv->key_dim + kv->value_padded), global = 0;
    cells += kv->index_dim;
    if (kv->config->global_head_dim)
        global = kv->config->global_kv_heads *
                 (kv->config->global_head_dim + moe_padded(kv->config->global_head_dim));
    return MOE_KV_GROUP * (cells > global ? cells : global) * kv->item_bytes;
}

/* Where a group lies in the cache: of each head a run of keys, and of values one for every 16
 * dimensions; of an indexer a run of keys. */
struct group {
    uint32_t layer, block, place; /* its first position's place in the block */
};

static struct group group_at(const struct moe_kv *kv, uint32_t layer, uint32_t sequence,
                             uint32_t at)
{
    return (struct group){layer, moe_kv_block(kv, sequence, at), at % kv->block_positions};
}

/* Heads, the indexer's among them, and runs of each. */
static uint32_t n_heads(const struct moe_kv *kv)
{
    return kv->n_heads + (kv->index_dim > 0);
}
static uint32_t n_runs(const struct moe_kv *kv, uint32_t head)
{
    return head < kv->n_heads ? 1 + kv->value_padded / MOE_PANEL_ROWS : 1;
}

static uint8_t *run_of(const struct moe_kv *kv, struct group g, uint32_t head, uint32_t run,
                       uint64_t *bytes)
{
    uint64_t item = kv->item_bytes;
    if (run == 0) {
        uint64_t dim = head < kv->n_heads ? kv->key_dim : kv->index_dim;
        *bytes = MOE_KV_GROUP * dim * item;
        return moe_kv_keys(kv, g.layer, g.block, head) + g.place * dim * item;
    }
    uint64_t row = (run - 1) * (uint64_t)kv->block_positions + g.place;
    *bytes = MOE_KV_GROUP * MOE_PANEL_ROWS * item;
    return moe_kv_values(kv, g.layer, g.block, head) + row * MOE_PANEL_ROWS * item;
}

/* Of a run only its first n positions stay: keys have them innermost, values outermost. */
static void clear_rest(uint8_t *cells, uint64_t bytes, bool keys, uint32_t n, uint32_t item)
{
    for (uint64_t i = 0; i < bytes / item; i++)
        if ((keys ? i % MOE_KV_GROUP : i / MOE_PANEL_ROWS) >= n)
            memset(cells + i * item, 0, item);
}

void moe_kv_group_get(const struct moe_kv *all, uint32_t layer, uint32_t sequence, uint32_t at,
                      uint32_t n, uint8_t *to)
{
    const struct moe_kv of = moe_kv_of_layer(all, layer), *kv = &of;
    struct group g = group_at(kv, layer, sequence, at);
    memset(to, 0, moe_kv_group_bytes(all));
    for (uint32_t head = 0; head < n_heads(kv); head++)
        for (uint32_t run = 0; run < n_runs(kv, head); run++) {
            uint64_t bytes;
            const uint8_t *cells = run_of(kv, g, head, run, &bytes);
            memcpy(to, cells, bytes);
            if (n < MOE_KV_GROUP)
                clear_rest(to, bytes, run == 0, n, kv->item_bytes);
            to += bytes;
        }
}

bool moe_kv_all_finite(uint16_t kind, const uint8_t *cells, uint64_t n)
{
    bool finite = true;
    for (uint64_t i = 0; i < n; i++)
        finite &= kind == MOE_LAYOUT_F32 ? (moe_get_u32(cells + 4 * i) & 0x7f800000) != 0x7f800000
                                         : (moe_get_u16(cells + 2 * i) & 0x7c00) != 0x7c00;
    return finite;
}

bool moe_kv_group_put(const struct moe_kv *all, uint32_t layer, uint32_t sequence, uint32_t at,
                      const uint8_t *from)
{
    const struct moe_kv of = moe_kv_of_layer(all, layer), *kv = &of;
    struct group g = group_at(kv, layer, sequence, at);
    if (!moe_kv_all_finite(all->layout.kind, from, moe_kv_group_bytes(all) / all->item_bytes))
        return false;
    if (g.block == MOE_NO_BLOCK)
        return true;
    for (uint32_t head = 0; head < n_heads(kv); head++)
        for (uint32_t run = 0; run < n_runs(kv, head); run++) {
            uint64_t bytes;
            uint8_t *cells = run_of(kv, g, head, run, &bytes);
            memcpy(cells, from, bytes);
            from += bytes;
        }
    return true;
}
