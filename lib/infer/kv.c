/* The KV cache of a session: where keys and values of a row lie. */
#include "infer/kv.h"

#include <ctype.h>
#include <float.h>
#include <string.h>

#include "base/bytes.h"
#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "infer/kv_pool.h"
#include "infer/state.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

/* ---- Kinds of cells ---- */

enum {
    N_KINDS = 4,
    SCALED = 32, /* dimensions that share a scale */
    TURNED = 128 /* ... that are turned and coded at a time: as many as a piece at most */
};

static const uint16_t kinds[N_KINDS] = {MOE_LAYOUT_F32, MOE_LAYOUT_F16, MOE_LAYOUT_Q8,
                                        MOE_LAYOUT_Q4};
static const char *const kind_names[N_KINDS][N_KINDS] = {
    {"f32", "f32,f16", "f32,q8", "f32,q4"},
    {"f16,f32", "f16", "f16,q8", "f16,q4"},
    {"q8,f32", "q8,f16", "q8", "q8,q4"},
    {"q4,f32", "q4,f16", "q4,q8", "q4"},
};

static uint16_t kind_of(int keys, int values)
{
    return keys == values ? kinds[keys] : (uint16_t)(kinds[keys] | kinds[values] << 8);
}

const char *moe_kv_kind_at(int i)
{
    return i < N_KINDS ? kind_names[i][i] : NULL;
}

/* Whether `name` is the kind's, in letters of either size, or what llama.cpp calls it: q8_0 for q8.
 */
static bool is_kind(const char *name, const char *kind)
{
    for (; *kind; kind++) {
        if (tolower((unsigned char)*name++) != *kind)
            return false;
        if (strchr("48", *kind) && strncmp(name, "_0", 2) == 0)
            name += 2;
    }
    return *name == 0;
}

uint16_t moe_kv_kind_find(const char *name)
{
    for (int i = 0; i < N_KINDS * N_KINDS; i++)
        if (is_kind(name, kind_names[i / N_KINDS][i % N_KINDS]))
            return kind_of(i / N_KINDS, i % N_KINDS);
    return MOE_LAYOUT_NONE;
}

const char *moe_kv_kind_name(uint16_t kind)
{
    for (int i = 0; i < N_KINDS * N_KINDS; i++)
        if (kind == kind_of(i / N_KINDS, i % N_KINDS))
            return kind_names[i / N_KINDS][i % N_KINDS];
    return NULL;
}

/* ---- Panels ---- */

/* Bytes of 16 values at a place; of 16 keys' dimension, or for q4 two of them, `item` each. */
static uint32_t row_bytes(uint16_t layout)
{
    return MOE_PANEL_ROWS * (uint32_t)moe_layout_bits(layout) / 8;
}

static uint32_t key_item(uint16_t layout)
{
    return layout == MOE_LAYOUT_Q4 ? 1 : (uint32_t)moe_layout_bits(layout) / 8;
}

static uint32_t key_rows(uint16_t layout, uint32_t dim)
{
    return layout == MOE_LAYOUT_Q4 ? (dim + 1) / 2 : dim;
}

/* Scales of a position's key or value. */
static uint32_t n_scales(uint16_t layout, uint32_t dim)
{
    return moe_kv_has_scales(layout) ? (dim + SCALED - 1) / SCALED : 0;
}

/* Bytes of a panel's keys in front of its scales. */
static uint64_t key_codes(uint16_t layout, uint32_t dim)
{
    return (uint64_t)key_rows(layout, dim) * MOE_PANEL_ROWS * key_item(layout);
}

uint64_t moe_kv_panel_bytes(uint16_t layout, uint32_t dim)
{
    return key_codes(layout, dim) +
           (uint64_t)n_scales(layout, dim) * MOE_PANEL_ROWS * sizeof(uint16_t);
}

static uint8_t *key_panel(const struct moe_kv *kv, const struct moe_kv_cells *c, uint64_t place)
{
    return c->keys + place / MOE_PANEL_ROWS * kv->key_bytes;
}

/* The 16 values at a place from dimension `first` on. */
static uint8_t *value_row(const struct moe_kv *kv, const struct moe_kv_cells *c, uint32_t first,
                          uint64_t place)
{
    return c->values +
           (first / MOE_PANEL_ROWS * c->positions + place) * (uint64_t)row_bytes(kv->values_as);
}

/* The scale of a place's values around dimension d. */
static uint8_t *value_scale(const struct moe_kv *kv, const struct moe_kv_cells *c, uint32_t d,
                            uint64_t place)
{
    return value_row(kv, c, kv->value_padded, 0) +
           (d / SCALED * c->positions + place) * sizeof(uint16_t);
}

uint64_t moe_kv_room_floats(uint16_t kind, uint32_t key_dim)
{
    if (!moe_kv_has_scales(moe_kv_of_keys(kind)) && !moe_kv_has_scales(moe_kv_of_values(kind)))
        return 0;
    return moe_larger((uint32_t)moe_padded(key_dim), MOE_ATTENTION_CHUNK);
}

moe_panel_fn *moe_kv_key_product(const struct moe_kv *kv, int tile_log2)
{
    if (moe_kv_has_scales(kv->keys_as))
        return moe_kern
            .cells[kv->keys_as == MOE_LAYOUT_Q4 ? MOE_CELLS_KEYS_Q4 : MOE_CELLS_KEYS_Q8][tile_log2];
    return moe_kern.panel[moe_kern_layout_index(kv->keys_as)][tile_log2];
}

moe_panel_fn *moe_kv_value_product(const struct moe_kv *kv, int tile_log2)
{
    if (moe_kv_has_scales(kv->values_as))
        return moe_kern.cells[kv->values_as == MOE_LAYOUT_Q4 ? MOE_CELLS_VALUES_Q4
                                                             : MOE_CELLS_VALUES_Q8][tile_log2];
    return moe_kern.panel[moe_kern_layout_index(kv->values_as)][tile_log2];
}

const uint8_t *moe_kv_key_panel(const struct moe_kv *kv, const struct moe_kv_cells *cells,
                                uint64_t place, float *scales)
{
    const uint8_t *panel = key_panel(kv, cells, place);
    const void *halves = panel + key_codes(kv->keys_as, kv->key_dim);
    if (moe_kv_has_scales(kv->keys_as))
        moe_kern.f16_to_f32(halves, n_scales(kv->keys_as, kv->key_dim) * MOE_PANEL_ROWS, scales);
    return panel;
}

const uint8_t *moe_kv_value_panel(const struct moe_kv *kv, const struct moe_kv_cells *cells,
                                  uint32_t first, uint64_t place, uint32_t n, float *scales)
{
    const void *halves = value_scale(kv, cells, first, place);
    if (moe_kv_has_scales(kv->values_as))
        moe_kern.f16_to_f32(halves, n, scales);
    return value_row(kv, cells, first, place);
}

/* ---- Its shape ---- */

/* Layers that draft count as without a window: their rows may come later than a pass's. */
static bool has_window(const struct moe_config *c, uint32_t layer)
{
    return layer < c->n_layers && c->layers[layer].windowed && moe_config_has_keys(c, layer);
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
    pool.n_snapshots = o->n_snapshots;
    pool.window = c->window;
    pool.n_slots = may_lie_apart(c, o) ? moe_kv_windows_slots(&pool, o->batch) : 0;
    return pool;
}

static bool lies_apart(const struct moe_kv *kv, uint32_t layer)
{
    return kv->windows.n_blocks && has_window(kv->config, layer);
}

/* Bytes of keys and of values of 16 positions, of the cache's layers up to `end`, a model's, that
 * lie apart or do not. */
static void add_bytes(const struct moe_kv *kv, uint32_t end, bool apart, uint64_t *keys,
                      uint64_t *values)
{
    const struct moe_config *c = kv->config;
    *keys = *values = 0;
    for (uint32_t layer = kv->first_layer; layer < end; layer++) {
        if (!moe_config_keeps_keys(c, layer) || lies_apart(kv, layer) != apart)
            continue;
        uint64_t heads = moe_config_cache_heads(c, layer);
        uint32_t value = (uint32_t)moe_padded(moe_config_cache_value(c, layer));
        *keys += heads * moe_kv_panel_bytes(kv->keys_as, moe_config_cache_key(c, layer));
        *values += heads * moe_kv_panel_bytes(kv->values_as, value);
        if (moe_config_has_indexer(c, layer)) /* kv may be of a layer without one */
            *keys += moe_kv_panel_bytes(kv->index_as, moe_config_index_cell(c));
    }
}

static void set_heads(struct moe_kv *kv, uint32_t layer)
{
    kv->n_heads = moe_config_cache_heads(kv->config, layer);
    kv->key_dim = moe_config_cache_key(kv->config, layer);
    kv->value_dim = moe_config_cache_value(kv->config, layer);
    kv->value_padded = (uint32_t)moe_padded(kv->value_dim);
    kv->key_bytes = moe_kv_panel_bytes(kv->keys_as, kv->key_dim);
    kv->value_bytes = moe_kv_panel_bytes(kv->values_as, kv->value_padded);
}

struct moe_kv moe_kv_of_layer(const struct moe_kv *kv, uint32_t layer)
{
    struct moe_kv of = *kv;
    of.layer = layer + 1;
    layer = moe_config_keys_of(kv->config, layer);
    of.apart = lies_apart(kv, layer);
    if (kv->index_dim && !moe_config_has_indexer(kv->config, layer))
        of.index_dim = 0;
    if (moe_config_is_global(kv->config, layer) || moe_config_is_drafter(kv->config, layer))
        set_heads(&of, layer);
    add_bytes(kv, layer, of.apart, &of.keys_before, &of.values_before);
    return of;
}

/* Bytes of all keys, or values, of a part; UINT64_MAX: they overflow. */
static uint64_t array_bytes(const struct moe_kv *kv, const struct moe_kv_part *part, uint64_t each)
{
    uint64_t bytes;
    if (!moe_mul_u64(part->n_blocks, kv->block_positions / MOE_PANEL_ROWS * each, &bytes) ||
        bytes > UINT64_MAX - MOE_ALIGN)
        return UINT64_MAX;
    return moe_round_up(bytes, MOE_ALIGN);
}

static uint64_t all_bytes(const struct moe_kv *kv)
{
    const struct moe_kv_part *const parts[] = {&kv->whole, &kv->windows};
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++)
        if (!moe_add_u64(sum, array_bytes(kv, parts[i], parts[i]->key_bytes), &sum) ||
            !moe_add_u64(sum, array_bytes(kv, parts[i], parts[i]->value_bytes), &sum))
            return UINT64_MAX;
    return sum;
}

struct moe_kv moe_kv_shape(const struct moe_config *c, const struct moe_session_options *o)
{
    struct moe_kv_pool pool = moe_kv_pool_shape(c, o);
    struct moe_kv kv = {
        .whole.n_blocks = pool.n_blocks,
        .windows.n_blocks = pool.n_slots,
        .block_positions = pool.block_positions,
        .per_sequence = pool.per_sequence,
        .index_dim = moe_config_picks_positions(c) ? moe_config_index_cell(c) : 0,
        .first_layer = c->n_encoder,
        .n_layers = c->layers[moe_config_all_layers(c)].attention_index -
                    c->layers[c->n_encoder].attention_index,
        .n_drafting = c->n_drafting,
        .config = c,
        .keys_as = moe_kv_of_keys(o->kv_kind),
        .values_as = moe_kv_of_values(o->kv_kind),
    };
    kv.index_as = kv.keys_as == MOE_LAYOUT_F32 ? MOE_LAYOUT_F32 : MOE_LAYOUT_F16;
    set_heads(&kv, MOE_MAX_LAYERS);
    uint32_t end = moe_config_all_layers(c);
    add_bytes(&kv, end, false, &kv.whole.key_bytes, &kv.whole.value_bytes);
    add_bytes(&kv, end, true, &kv.windows.key_bytes, &kv.windows.value_bytes);
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
    uint32_t layer = 0;
    while (layer < c->n_layers && !moe_config_has_indexer(c, layer))
        layer++;
    set_heads(&kv, layer);
    kv.index_dim = 0;
    kv.n_layers = 1;
    kv.whole.key_bytes = kv.n_heads * kv.key_bytes;
    kv.whole.value_bytes = kv.n_heads * kv.value_bytes;
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
        parts[i]->keys = memory;
        parts[i]->values = memory + array_bytes(kv, parts[i], parts[i]->key_bytes);
        memory = parts[i]->values + array_bytes(kv, parts[i], parts[i]->value_bytes);
    }
}

uint32_t moe_kv_layer(const struct moe_kv *kv, uint32_t i)
{
    uint32_t layer = kv->first_layer;
    for (uint32_t left = i; left > 0 || !moe_config_keeps_keys(kv->config, layer); layer++)
        left -= moe_config_keeps_keys(kv->config, layer);
    return layer;
}

static const struct moe_kv_part *part_of(const struct moe_kv *kv, uint32_t layer)
{
    return lies_apart(kv, moe_config_keys_of(kv->config, layer)) ? &kv->windows : &kv->whole;
}

struct moe_kv_cells moe_kv_cells(const struct moe_kv *kv, uint32_t layer, uint32_t block,
                                 uint32_t head)
{
    struct moe_kv other;
    const struct moe_kv *of = kv;
    const struct moe_kv_part *part = part_of(kv, layer);
    uint64_t panels = kv->block_positions / MOE_PANEL_ROWS;
    if (kv->layer != layer + 1) {
        other = moe_kv_of_layer(kv, layer);
        of = &other;
    }
    return (struct moe_kv_cells){
        .keys = part->keys +
                (block * part->key_bytes + of->keys_before + head * of->key_bytes) * panels,
        .values = part->values +
                  (block * part->value_bytes + of->values_before + head * of->value_bytes) * panels,
        .positions = kv->block_positions,
    };
}

uint8_t *moe_kv_keys(const struct moe_kv *kv, uint32_t layer, uint32_t block, uint32_t head)
{
    return moe_kv_cells(kv, layer, block, head).keys;
}

uint8_t *moe_kv_values(const struct moe_kv *kv, uint32_t layer, uint32_t block, uint32_t head)
{
    return moe_kv_cells(kv, layer, block, head).values;
}

uint8_t *moe_kv_index_keys(const struct moe_kv *kv, uint32_t layer, uint32_t block)
{
    return moe_kv_keys(kv, layer, block, kv->n_heads);
}

void moe_kv_spans(const struct moe_kv *kv, const struct moe_kv_part *part,
                  struct moe_kv_span spans[2])
{
    uint64_t panels = kv->block_positions / MOE_PANEL_ROWS;
    spans[0] = (struct moe_kv_span){part->keys, panels * part->key_bytes};
    spans[1] = (struct moe_kv_span){part->values, panels * part->value_bytes};
}

uint64_t moe_kv_block_bytes(const struct moe_kv *kv)
{
    struct moe_kv_span spans[2];
    moe_kv_spans(kv, &kv->whole, spans);
    return spans[0].bytes + spans[1].bytes;
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

struct moe_attention_strides moe_attention_strides(const struct moe_config *c)
{
    /* Where queries have no vector of q_rank, an indexer's input takes its place. */
    bool own = moe_config_picks_positions(c) && !c->q_rank && !moe_config_index_plain(c);
    struct moe_attention_strides s = {
        .q_down = moe_padded(
            moe_larger(own ? c->hidden : (uint64_t)c->q_rank << c->q_twice, c->drafter.q_rank))};
    for (uint32_t layer = 0; layer <= c->n_layers; layer++) { /* the last: one that drafts */
        uint64_t heads = moe_config_heads(c, layer), kept = moe_config_cache_heads(c, layer);
        uint64_t key = moe_config_cache_key(c, layer), value = moe_config_cache_value(c, layer);
        s.q = moe_larger(s.q, moe_padded(heads * moe_config_head_dim(c, layer)));
        s.k = moe_larger(s.k, moe_padded(kept * key));
        /* kv_down's output goes there, too */
        s.v = moe_larger(s.v, moe_padded(moe_config_kv_rank(c, layer) ? key : kept * value));
        s.queries = moe_larger(s.queries, moe_padded(heads * key));
        s.attended = moe_larger(s.attended, moe_padded(heads * value));
        s.out = moe_larger(s.out, moe_padded(heads * moe_config_value_dim(c, layer)));
    }
    return s;
}

/* ---- Storing ---- */

struct store {
    const struct moe_kv *kv;
    uint32_t layer;
    const struct moe_row *rows;
    const struct moe_kv_input *in;
};

/* Writes cell `c` of floats. It is kept finite: an infinity in a cell that a row masks would still
 * make 0 * infinity there. */
static void put_cell(uint16_t layout, uint8_t *cells, uint64_t c, float v)
{
    if (layout == MOE_LAYOUT_F32)
        ((float *)(void *)cells)[c] = v > FLT_MAX ? FLT_MAX : v < -FLT_MAX ? -FLT_MAX : v;
    else
        ((uint16_t *)(void *)cells)[c] = moe_f32_to_f16(v > 65504.0f    ? 65504.0f
                                                        : v < -65504.0f ? -65504.0f
                                                                        : v);
}

/* Sets half a byte. */
static void put_half(uint8_t *byte, bool high, int code)
{
    *byte = (uint8_t)(high ? (*byte & 0x0f) | code << 4 : (*byte & 0xf0) | code);
}

static void put_key_code(uint16_t layout, uint8_t *panel, uint32_t d, uint64_t place, int code)
{
    place %= MOE_PANEL_ROWS;
    if (layout == MOE_LAYOUT_Q8)
        panel[(uint64_t)d * MOE_PANEL_ROWS + place] = (uint8_t)(int8_t)code;
    else
        put_half(&panel[(uint64_t)(d / 2) * MOE_PANEL_ROWS + place], d % 2, code);
}

static void put_value_code(uint16_t layout, uint8_t *row, uint32_t d, int code)
{
    d %= MOE_PANEL_ROWS;
    if (layout == MOE_LAYOUT_Q8)
        row[d] = (uint8_t)(int8_t)code;
    else
        put_half(&row[d % 8], d >= 8, code);
}

/* Codes of 4 bits of n numbers by a scale; returns the sum of their squared errors. */
static float code_by(const float *x, uint32_t n, float scale, int8_t codes[SCALED])
{
    float lane[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++) {
        codes[i] = (int8_t)moe_math_cell_code(4, x[i], scale);
        float error = fmaf(-(float)moe_iq4_numbers[codes[i]], scale, x[i]);
        lane[i % MOE_LANES] = fmaf(error, error, lane[i % MOE_LANES]);
    }
    return moe_math_join(lane);
}

/* Codes of up to SCALED numbers, and their scale, f16. */
static uint16_t code_group(uint16_t layout, const float *x, uint32_t n, int8_t codes[SCALED])
{
    const float m = moe_math_cell_largest(x, n);
    int8_t other[SCALED];
    if (layout == MOE_LAYOUT_Q8) {
        uint16_t half = moe_math_cell_scale(8, m, 0);
        for (uint32_t i = 0; i < n; i++)
            codes[i] = (int8_t)moe_math_cell_code(8, x[i], moe_f16_to_f32(half));
        return half;
    }
    uint16_t first = moe_math_cell_scale(4, m, 0), second = moe_math_cell_scale(4, m, 1);
    float error = code_by(x, n, moe_f16_to_f32(first), codes);
    if (!(code_by(x, n, moe_f16_to_f32(second), other) < error))
        return first;
    memcpy(codes, other, n);
    return second;
}

/* The next TURNED of `left` dimensions, turned. Those behind the last count as of code 0. */
struct coded {
    uint32_t n, n_groups;
    int8_t codes[TURNED];
    uint16_t scales[TURNED / SCALED];
};

static struct coded code_turned(uint16_t layout, const float *x, uint32_t left)
{
    struct coded c = {.n = left < TURNED ? left : TURNED};
    float turned[TURNED];
    memcpy(turned, x, c.n * sizeof *x);
    moe_kern.turn(turned, c.n);
    for (uint32_t d = 0; d < c.n; d += SCALED)
        c.scales[c.n_groups++] =
            code_group(layout, turned + d, c.n - d < SCALED ? c.n - d : SCALED, c.codes + d);
    return c;
}

static void put_key(uint16_t layout, uint32_t dim, uint8_t *panel, uint64_t place, const float *key)
{
    uint8_t *scales = panel + key_codes(layout, dim) + place % MOE_PANEL_ROWS * sizeof(uint16_t);
    for (uint32_t d = 0; !moe_kv_has_scales(layout) && d < dim; d++)
        put_cell(layout, panel, (uint64_t)d * MOE_PANEL_ROWS + place % MOE_PANEL_ROWS, key[d]);
    for (uint32_t d = 0; moe_kv_has_scales(layout) && d < dim; d += TURNED) {
        const struct coded c = code_turned(layout, key + d, dim - d);
        for (uint32_t i = 0; i < c.n; i++)
            put_key_code(layout, panel, d + i, place, c.codes[i]);
        for (uint32_t i = 0; i < c.n_groups; i++, scales += MOE_PANEL_ROWS * sizeof(uint16_t))
            moe_put_u16(scales, c.scales[i]);
    }
}

void moe_kv_put(const struct moe_kv *kv, const struct moe_kv_cells *to, uint64_t place,
                const float *key, const float *value)
{
    const uint16_t layout = kv->values_as;
    put_key(kv->keys_as, kv->key_dim, key_panel(kv, to, place), place, key);
    for (uint32_t d = 0; !moe_kv_has_scales(layout) && d < kv->value_dim; d++)
        put_cell(layout, value_row(kv, to, d, place), d % MOE_PANEL_ROWS, value[d]);
    for (uint32_t d = 0; moe_kv_has_scales(layout) && d < kv->value_dim; d += TURNED) {
        const struct coded c = code_turned(layout, value + d, kv->value_dim - d);
        for (uint32_t i = 0; i < TURNED && d + i < kv->value_padded; i++)
            put_value_code(layout, value_row(kv, to, d + i, place), d + i, c.codes[i]);
        for (uint32_t i = 0; i < c.n_groups; i++)
            moe_put_u16(value_scale(kv, to, d + i * SCALED, place), c.scales[i]);
    }
}

void moe_kv_copy(const struct moe_kv *kv, const struct moe_kv_cells *from, uint64_t at,
                 const struct moe_kv_cells *to, uint64_t place)
{
    uint32_t item = key_item(kv->keys_as), row = row_bytes(kv->values_as);
    uint64_t codes = key_codes(kv->keys_as, kv->key_dim);
    const uint8_t *key = key_panel(kv, from, at);
    uint8_t *to_key = key_panel(kv, to, place);
    for (uint64_t i = 0; i < codes; i += (uint64_t)MOE_PANEL_ROWS * item)
        memcpy(to_key + i + place % MOE_PANEL_ROWS * item, key + i + at % MOE_PANEL_ROWS * item,
               item);
    for (uint64_t i = codes; i < kv->key_bytes; i += 2 * MOE_PANEL_ROWS)
        memcpy(to_key + i + place % MOE_PANEL_ROWS * 2, key + i + at % MOE_PANEL_ROWS * 2, 2);
    for (uint32_t d = 0; d < kv->value_padded; d += MOE_PANEL_ROWS)
        memcpy(value_row(kv, to, d, place), value_row(kv, from, d, at), row);
    for (uint32_t i = 0; i < n_scales(kv->values_as, kv->value_padded); i++)
        memcpy(value_scale(kv, to, i * SCALED, place), value_scale(kv, from, i * SCALED, at), 2);
}

void moe_kv_value_of_key(const struct moe_kv *kv, const struct moe_kv_cells *cells, uint64_t place)
{
    const uint16_t layout = kv->keys_as;
    const uint32_t dim = kv->key_dim, item = key_item(layout);
    const uint64_t in_panel = place % MOE_PANEL_ROWS, codes = key_codes(layout, dim);
    const uint8_t *panel = key_panel(kv, cells, place);
    for (uint32_t d = 0; d < dim; d++) {
        uint8_t *row = value_row(kv, cells, d, place);
        uint64_t at = ((uint64_t)d * MOE_PANEL_ROWS + in_panel) * item;
        if (layout == MOE_LAYOUT_Q4) {
            uint8_t both = panel[(uint64_t)(d / 2) * MOE_PANEL_ROWS + in_panel];
            put_value_code(layout, row, d, d % 2 ? both >> 4 : both & 15);
        } else {
            memcpy(row + d % MOE_PANEL_ROWS * item, panel + at, item);
        }
    }
    for (uint32_t i = 0; i < n_scales(layout, dim); i++)
        memcpy(value_scale(kv, cells, i * SCALED, place),
               panel + codes + (i * MOE_PANEL_ROWS + in_panel) * 2, 2);
}

/* The panel that has the position's key of the indexer. */
static uint8_t *index_panel(const struct moe_kv *kv, uint32_t layer, uint32_t sequence,
                            uint32_t position)
{
    uint8_t *keys = moe_kv_index_keys(kv, layer, moe_kv_block(kv, sequence, position));
    return keys + position % kv->block_positions / MOE_PANEL_ROWS *
                      moe_kv_panel_bytes(kv->index_as, kv->index_dim);
}

void moe_kv_index_put(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t position,
                      const float *key)
{
    put_key(kv->index_as, kv->index_dim, index_panel(kv, layer, sequence, position),
            position % kv->block_positions, key);
}

void moe_kv_index_get(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t position,
                      float *key)
{
    const uint8_t *panel = index_panel(kv, layer, sequence, position);
    uint64_t cell = position % kv->block_positions % MOE_PANEL_ROWS;
    for (uint32_t d = 0; d < kv->index_dim; d++, cell += MOE_PANEL_ROWS)
        key[d] = kv->index_as == MOE_LAYOUT_F32 ? ((const float *)(const void *)panel)[cell]
                                                : moe_f16_to_f32(moe_get_u16(panel + 2 * cell));
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
            const struct moe_kv_cells to = moe_kv_cells(kv, st->layer, block, head);
            moe_kv_put(kv, &to, position, k, v);
        }
        if (!kv->index_dim)
            continue;
        moe_kv_index_put(kv, st->layer, st->rows[i].sequence, st->rows[i].position,
                         st->in->index_keys + (uint64_t)i * st->in->index_stride);
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
    const struct moe_config *c = kv->config;
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) { /* one that drafts is not kept */
        uint64_t each = moe_kv_panel_bytes(kv->keys_as, moe_config_cache_key(c, layer)) +
                        moe_kv_panel_bytes(kv->values_as,
                                           (uint32_t)moe_padded(moe_config_cache_value(c, layer)));
        bytes = moe_larger(bytes, moe_config_cache_heads(c, layer) * each);
    }
    return bytes + (kv->index_dim ? moe_kv_panel_bytes(kv->index_as, kv->index_dim) : 0);
}

/* Where a group lies in the cache: of each head a run of keys, and of values one for every 16
 * dimensions, then for each of their scales; of an indexer a run of keys. */
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
    if (head == kv->n_heads)
        return 1;
    return 1 + kv->value_padded / MOE_PANEL_ROWS + n_scales(kv->values_as, kv->value_padded);
}

struct run {
    uint8_t *at;
    uint64_t bytes;
    uint32_t each; /* bytes of a position; 0: a panel of keys, */
    uint16_t layout;
    uint32_t dim; /* of these */
};

static struct run run_of(const struct moe_kv *kv, struct group g, uint32_t head, uint32_t i)
{
    const struct moe_kv_cells cells = moe_kv_cells(kv, g.layer, g.block, head);
    const uint32_t n_panels = kv->value_padded / MOE_PANEL_ROWS;
    struct run r = {.layout = kv->keys_as, .dim = kv->key_dim};
    if (i == 0 && head == kv->n_heads) {
        r.layout = kv->index_as;
        r.dim = kv->index_dim;
    }
    r.bytes = moe_kv_panel_bytes(r.layout, r.dim);
    r.at = cells.keys + g.place / MOE_PANEL_ROWS * r.bytes;
    if (i > 0) {
        bool scales = i > n_panels;
        r.each = scales ? (uint32_t)sizeof(uint16_t) : row_bytes(kv->values_as);
        r.at = scales ? value_scale(kv, &cells, (i - 1 - n_panels) * SCALED, g.place)
                      : value_row(kv, &cells, (i - 1) * MOE_PANEL_ROWS, g.place);
        r.bytes = (uint64_t)MOE_KV_GROUP * r.each;
        r.layout = scales ? MOE_LAYOUT_F16 : kv->values_as;
    }
    return r;
}

void moe_kv_clear_keys(uint16_t layout, uint32_t dim, uint32_t n, uint8_t *panel)
{
    uint64_t codes = key_codes(layout, dim), item = key_item(layout);
    for (uint64_t i = 0; i < codes; i += MOE_PANEL_ROWS * item)
        memset(panel + i + n * item, 0, (MOE_PANEL_ROWS - n) * item);
    for (uint64_t i = codes; i < moe_kv_panel_bytes(layout, dim); i += 2 * MOE_PANEL_ROWS)
        memset(panel + i + n * 2, 0, (MOE_PANEL_ROWS - n) * 2);
}

void moe_kv_group_get(const struct moe_kv *all, uint32_t layer, uint32_t sequence, uint32_t at,
                      uint32_t n, uint8_t *to)
{
    const struct moe_kv of = moe_kv_of_layer(all, layer), *kv = &of;
    struct group g = group_at(kv, layer, sequence, at);
    memset(to, 0, moe_kv_group_bytes(all));
    for (uint32_t head = 0; head < n_heads(kv); head++)
        for (uint32_t i = 0; i < n_runs(kv, head); i++) {
            const struct run run = run_of(kv, g, head, i);
            memcpy(to, run.at, run.bytes);
            if (run.each)
                memset(to + (uint64_t)n * run.each, 0, run.bytes - (uint64_t)n * run.each);
            else
                moe_kv_clear_keys(run.layout, run.dim, n, to);
            to += run.bytes;
        }
}

/* Codes are always finite. */
static bool all_finite(uint16_t layout, const uint8_t *cells, uint64_t bytes)
{
    bool finite = true;
    if (layout == MOE_LAYOUT_F32)
        for (uint64_t i = 0; i < bytes; i += 4)
            finite &= (moe_get_u32(cells + i) & 0x7f800000) != 0x7f800000;
    if (layout == MOE_LAYOUT_F16)
        for (uint64_t i = 0; i < bytes; i += 2)
            finite &= (moe_get_u16(cells + i) & 0x7c00) != 0x7c00;
    return finite;
}

bool moe_kv_keys_finite(uint16_t layout, uint32_t dim, const uint8_t *panel)
{
    uint64_t codes = key_codes(layout, dim), all = moe_kv_panel_bytes(layout, dim);
    return all_finite(layout, panel, codes) &&
           all_finite(MOE_LAYOUT_F16, panel + codes, all - codes);
}

bool moe_kv_group_put(const struct moe_kv *all, uint32_t layer, uint32_t sequence, uint32_t at,
                      const uint8_t *from)
{
    const struct moe_kv of = moe_kv_of_layer(all, layer), *kv = &of;
    struct group g = group_at(kv, layer, sequence, at);
    const bool here = g.block != MOE_NO_BLOCK;
    const uint8_t *piece = from;
    if (!here)
        g.block = 0; /* runs of any block say what is in a group */
    for (int copies = 0; copies <= here; copies++, from = piece)
        for (uint32_t head = 0; head < n_heads(kv); head++)
            for (uint32_t i = 0; i < n_runs(kv, head); i++) {
                const struct run run = run_of(kv, g, head, i);
                if (copies)
                    memcpy(run.at, from, run.bytes);
                else if (run.each ? !all_finite(run.layout, from, run.bytes)
                                  : !moe_kv_keys_finite(run.layout, run.dim, from))
                    return false;
                from += run.bytes;
            }
    return true;
}
