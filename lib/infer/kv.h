/*
 * KV cache: its shape and size, where keys and values lie, storing them. The same on every device.
 *
 * It lies in blocks (infer/kv_pool.h) of as many positions as a chunk of attention
 * (MOE_ATTENTION_CHUNK), or, where the context is shorter, of the whole context. Sequences take
 * blocks from a common pool as they grow and give them back when they end, so that many short ones
 * and a few long ones find room in the same memory (paged attention:
 * https://doi.org/10.1145/3600006.3613165); since a chunk lies within a block, a row's result does
 * not depend on which blocks its sequence has.
 *
 * A block is laid out as float weight panels (quant/layout.h), so that attention is two panel
 * products for each chunk:
 *
 *   keys    a matrix [positions][key_dim]: per block, layer and kv head, panels of 16 positions
 *   values  a matrix [value_dim][positions]: per block, layer and kv head, panels of 16 dimensions
 *
 * Cells are f32, f16, or codes of 8 or 4 bits (q8, q4), keys and values each of their kind. Codes
 * are of turned keys and values (`turn` of kern/kern.h), whose dimensions are about alike, and have
 * a scale for every 32 neighbouring dimensions (the last group may be shorter): kern/kern_math.h
 * says which. A cell is code, or number of the code, times scale, exact in f32. Of codes
 *
 *   keys    per panel: q8 codes [key_dim][16], q4 codes [key_dim / 2, rounded up][16] with an even
 *           dimension in a byte's low half and the next in its high half; scales [groups][16], f16
 *   values  panels [positions][16] of q8 codes, [positions][8] of q4 codes with dimension i in a
 *           byte's low half and i + 8 in its high half; behind all panels scales
 *           [groups][positions], f16
 *
 * The keys of a layer's indexer (infer/cpu_sparse.c) lie behind its other keys, as those of one
 * head more.
 *
 * Layers with a window may lie apart: their part of a block is in a slot, laid out in the same way;
 * there are fewer slots than blocks (infer/kv_pool.h).
 *
 * Heads and widths are the cache's (moe_config_cache_heads and its neighbours).
 */
#ifndef MOE_INFER_KV_H
#define MOE_INFER_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "infer/kv_pool.h"
#include "kern/kern.h"
#include "model/config.h"
#include "quant/layout.h"

struct moe_row;
struct moe_session_options;

/* Without its arrays: the pool of a session with these options (complete: no member 0 that has a
 * default). */
struct moe_kv_pool moe_kv_pool_shape(const struct moe_config *config,
                                     const struct moe_session_options *o);

/*
 * Kinds of caches: the layout of keys (MOE_LAYOUT_F32, _F16, _Q8 or _Q4), and where that of values
 * is another, 256 times this one on top.
 */
static inline uint16_t moe_kv_of_keys(uint16_t kind)
{
    return kind & 255;
}
static inline uint16_t moe_kv_of_values(uint16_t kind)
{
    return kind >> 8 ? kind >> 8 : kind;
}
/* What programs take where nothing is said. Against f32, the loss on long texts is below what can
 * be measured (tests/bench/RESULTS.md). */
enum { MOE_KV_DEFAULT = MOE_LAYOUT_F16 };
static inline bool moe_kv_has_scales(uint16_t layout)
{
    return layout == MOE_LAYOUT_Q8 || layout == MOE_LAYOUT_Q4;
}
/* What both can be, as options, plans and statistics name it; NULL after the last. */
const char *moe_kv_kind_at(int i);
/* The kind of that name, "q8" or, keys first, "q8,q4"; MOE_LAYOUT_NONE: there is none. */
uint16_t moe_kv_kind_find(const char *name);
const char *moe_kv_kind_name(uint16_t kind); /* of at most 7 characters; NULL: no such kind */
#define MOE_KV_KINDS "f32, f16, q8 or q4, nor two of these, as q8,q4"
/* Whether GPUs have it, or it is not named; what to say if not, with its name. */
static inline bool moe_kv_on_gpu(uint16_t kind)
{
    return kind >> 8 == 0 || kind == (MOE_LAYOUT_Q8 | MOE_LAYOUT_Q4 << 8);
}
#define MOE_KV_ON_GPU                                                                              \
    "option --kv %s: a GPU keeps keys and values as f32, f16, q8, q4 or q8,q4 (the CPU also each " \
    "of another kind)"
/* Bytes of 16 positions of a head's keys, or values, of `dim` dimensions. */
uint64_t moe_kv_panel_bytes(uint16_t layout, uint32_t dim);

/* Layers that lie together: for each block, or slot, the cells of all of them. */
struct moe_kv_part {
    uint8_t *keys, *values;
    uint64_t key_bytes, value_bytes; /* of 16 positions, all its layers */
    uint32_t n_blocks;
};

struct moe_kv {
    struct moe_kv_part whole, windows;      /* windows.n_blocks 0: no layer lies apart */
    uint16_t keys_as, values_as, index_as;  /* layouts; an indexer's keys are f32 or f16 */
    uint32_t block_positions, per_sequence; /* as the pool's */
    uint32_t key_dim, value_dim;
    uint32_t value_padded; /* rounded up to 16 */
    uint32_t index_dim;    /* of an indexer's key; 0: none */
    uint32_t n_heads; /* as well as the widths of layers that are not global (moe_kv_of_layer) */
    uint32_t layer;   /* + 1, that it is of (moe_kv_of_layer); 0: of any */
    bool apart;       /* that layer lies apart */
    uint64_t key_bytes, value_bytes; /* of 16 positions of a head */
    uint64_t keys_before,
        values_before;               /* bytes of 16 positions before that layer's, in its part */
    uint32_t first_layer, n_layers;  /* of the model, that it is for: the decoder's, of attention */
    uint32_t n_drafting;             /* of these layers, the last: those that draft */
    const struct moe_config *config; /* says which layers it leaves out; borrowed */
    const uint32_t *table, *slot_of; /* the pool's; borrowed */
    uint64_t bytes;                  /* of all arrays; UINT64_MAX: it overflows */
};

/* A cache without memory and table. o: complete, as above. */
struct moe_kv moe_kv_shape(const struct moe_config *config, const struct moe_session_options *o);
/* The same for what the decoder's layers attend to of sources (infer/forward.h): "sequences" are
 * these sources, and a source has blocks of its own, which moe_kv_source_table lists. While the
 * encoder computes a source, the first of these layers has the keys and values of the layer at
 * work. */
struct moe_kv moe_kv_source_shape(const struct moe_config *config,
                                  const struct moe_session_options *o);
/* table: [n_sources][kv->per_sequence] */
void moe_kv_source_table(const struct moe_kv *kv, uint32_t n_sources, uint32_t *table);
/* The same for one layer's keys and values of positions that a row sees among others
 * (infer/cpu_sparse.c): its block i is number i, the positions follow each other as if they were a
 * text. Its first_layer is that layer. n: positions at most. */
struct moe_kv moe_kv_chosen_shape(const struct moe_config *config,
                                  const struct moe_session_options *o, uint32_t n);
/* Its arrays lie in kv->bytes of memory. */
void moe_kv_place(struct moe_kv *kv, uint8_t *memory);

/* The block that holds a sequence's position, which lies in it at position % block_positions; of a
 * layer that lies apart, the slot. */
static inline uint32_t moe_kv_block(const struct moe_kv *kv, uint32_t sequence, uint32_t position)
{
    uint32_t block =
        kv->table[(uint64_t)sequence * kv->per_sequence + position / kv->block_positions];
    return kv->apart ? kv->slot_of[block] : block;
}
/* The cache with the heads and widths of the model's layer. */
struct moe_kv moe_kv_of_layer(const struct moe_kv *kv, uint32_t layer);
/* The model's layer that the cache has as its i-th. */
uint32_t moe_kv_layer(const struct moe_kv *kv, uint32_t i);
/* The keys, or the values, of one layer and kv head in a block, or slot. */
uint8_t *moe_kv_keys(const struct moe_kv *kv, uint32_t layer, uint32_t block, uint32_t head);
uint8_t *moe_kv_values(const struct moe_kv *kv, uint32_t layer, uint32_t block, uint32_t head);
/* Both: what a head has of positions that lie together, a multiple of 16. */
struct moe_kv_cells {
    uint8_t *keys, *values;
    uint64_t positions;
};
struct moe_kv_cells moe_kv_cells(const struct moe_kv *kv, uint32_t layer, uint32_t block,
                                 uint32_t head);
/* The keys of its indexer, which it must have; one position's key, [index_dim]. kv is of the
 * layer. */
uint8_t *moe_kv_index_keys(const struct moe_kv *kv, uint32_t layer, uint32_t block);
void moe_kv_index_get(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t position,
                      float *key);
void moe_kv_index_put(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t position,
                      const float *key);

/* All keys and values of a block follow each other: where block 0's begin in each of the arrays of
 * a part, and the bytes of one block. */
struct moe_kv_span {
    uint8_t *at;
    uint64_t bytes;
};
void moe_kv_spans(const struct moe_kv *kv, const struct moe_kv_part *part,
                  struct moe_kv_span spans[2]);

/* Bytes of a block, without what layers with a window have of it where they lie apart. */
uint64_t moe_kv_block_bytes(const struct moe_kv *kv);

/* A block receives all cells of another, in the processor's memory; those that lie apart where both
 * have slots. */
void moe_kv_copy_block(const struct moe_kv *kv, uint32_t from, uint32_t to);

/* Floats from one row to the next of what attention computes on its way into the cache and out of
 * it: the products q, q_down, k and v; queries and attended as the cache's heads see them (without
 * latent attention these are q and out); its output. */
struct moe_attention_strides {
    uint64_t q, q_down, k, v, queries, attended, out;
};
struct moe_attention_strides moe_attention_strides(const struct moe_config *config);

/* What is stored for each row: [n_rows][stride], the heads side by side. */
struct moe_kv_input {
    const float *keys, *values;
    uint64_t keys_stride, values_stride;
    const float *index_keys; /* where the layer has an indexer */
    uint64_t index_stride;
};
/* Stores a head's key and value at a place among positions that lie together. */
void moe_kv_put(const struct moe_kv *kv, const struct moe_kv_cells *to, uint64_t place,
                const float *key, const float *value);
/* Copies one position's key and value. */
void moe_kv_copy(const struct moe_kv *kv, const struct moe_kv_cells *from, uint64_t at,
                 const struct moe_kv_cells *to, uint64_t place);
/* The panel of the keys at places [place, place + 16), or of 16 values from dimension `first` on at
 * n <= MOE_ATTENTION_CHUNK places. Of codes, their scales go to `scales`, of moe_kv_room_floats. */
const uint8_t *moe_kv_key_panel(const struct moe_kv *kv, const struct moe_kv_cells *cells,
                                uint64_t place, float *scales);
const uint8_t *moe_kv_value_panel(const struct moe_kv *kv, const struct moe_kv_cells *cells,
                                  uint32_t first, uint64_t place, uint32_t n, float *scales);
/* What multiplies such panels by tiles of 1 << tile_log2 columns, whose s are these scales. */
moe_panel_fn *moe_kv_key_product(const struct moe_kv *kv, int tile_log2);
moe_panel_fn *moe_kv_value_product(const struct moe_kv *kv, int tile_log2);
/* Also enough for a key that is turned. */
uint64_t moe_kv_room_floats(uint16_t kind, uint32_t key_dim);
/* Stores the rows' keys (after rope) and values of one layer, at their positions. */
void moe_kv_store(const struct moe_kv *kv, uint32_t layer, const struct moe_row *rows,
                  uint32_t n_rows, const struct moe_kv_input *in);

/* Keys and values of a sequence outside of the cache: of one layer and MOE_KV_GROUP positions from
 * a multiple of it on, as they lie in a block, so that the context's length does not matter. */
enum { MOE_KV_GROUP = 16 };
uint64_t moe_kv_group_bytes(const struct moe_kv *kv);
/* Of positions at, at + 1, ...: the first n hold something, the others become zeros. The
 * sequence has a block there. */
void moe_kv_group_get(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t at,
                      uint32_t n, uint8_t *to);
/* False: a cell is not finite, which the cache must not hold; nothing is changed then. What lies
 * apart and has no slot there is not kept. */
bool moe_kv_group_put(const struct moe_kv *kv, uint32_t layer, uint32_t sequence, uint32_t at,
                      const uint8_t *from);
/* Whether all cells of a panel of 16 keys are finite. */
bool moe_kv_keys_finite(uint16_t layout, uint32_t dim, const uint8_t *panel);
/* Sets the value at a place to the key there, of a cache whose values are its keys. */
void moe_kv_value_of_key(const struct moe_kv *kv, const struct moe_kv_cells *cells, uint64_t place);
/* Only the first n of a panel's 16 keys stay, the others become zeros. */
void moe_kv_clear_keys(uint16_t layout, uint32_t dim, uint32_t n, uint8_t *panel);

#endif
