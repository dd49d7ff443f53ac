/*
 * Inventory: which experts there are, at which precisions, in slots of which size, and what loading
 * one moves. Made from a pack, or from what a trace knows of another engine's model. Plain data for
 * dividing memory (pools below), running (infer/) and simulating (plan/).
 */
#ifndef MOE_SCHED_INVENTORY_H
#define MOE_SCHED_INVENTORY_H

#include <stdint.h>

#include "base/err.h"
#include "cache/store.h"
#include "pack/pack.h"
#include "profile/trace.h"
#include "sched/strategy.h"

enum { MOE_MAX_CLASSES = 64 };

/* A size class: experts that are stored in the same way. */
struct moe_size_class {
    uint32_t n_segments;
    uint64_t segment_bytes[MOE_PACK_MAX_SEGMENTS]; /* raw */
    uint64_t slot_bytes;                           /* each segment rounded up to pages */
};

/* Where a segment begins in a slot of the class. */
uint64_t moe_size_class_offset(const struct moe_size_class *class_, uint32_t segment);

struct moe_inventory {
    uint32_t n_layers, n_experts, top_k;      /* MoE layers, visit by visit */
    struct moe_loop loop;                     /* ... of which there are none but owners' experts */
    uint32_t n_encoder;                       /* of these, the encoder's, which are the first */
    uint32_t n_model_layers, n_model_encoder; /* all layers; of these, the encoder's */
    uint32_t *model_layer;                    /* [n_layers] rising */
    uint8_t *is_static;  /* [n_layers] whether it chooses experts by the token (model/routes.h) */
    bool routes_early;   /* its routers come before attention (model/config.h) */
    uint32_t n_variants; /* best first */
    char variants[MOE_MAX_VARIANTS][MOE_NAME_BYTES];
    uint32_t n_classes;
    struct moe_size_class classes[MOE_MAX_CLASSES];
    uint32_t *class_of; /* [layer][expert][variant]; UINT32_MAX: no such variant */
    uint64_t *stored;   /* [layer][expert][variant][MOE_PACK_MAX_SEGMENTS] bytes in the file */
};

/* config: the model's (moe_inventory_set_model), or NULL: what the pack says by itself.
 * MOE_ERR_UNSUPPORTED: more than MOE_MAX_CLASSES classes; MOE_ERR_MEMORY. Released with
 * moe_inventory_release, also after a failure. */
int moe_inventory_of_pack(struct moe_inventory *out, const struct moe_pack *pack, uint32_t top_k,
                          const struct moe_config *config, struct moe_err *err);
/* One class for each variant that the trace has sizes of, its slots as large as its experts on
 * average; one segment each. MOE_ERR_USAGE: it has no sizes, and default_bytes is 0;
 * MOE_ERR_FORMAT: impossible sizes. */
int moe_inventory_of_trace(struct moe_inventory *out, const struct moe_trace_shape *shape,
                           uint64_t default_bytes, struct moe_err *err);
/* All experts alike, of bytes[variant] each. */
int moe_inventory_uniform(struct moe_inventory *out, uint32_t n_layers, uint32_t n_experts,
                          uint32_t top_k, const char (*variants)[MOE_NAME_BYTES],
                          const uint64_t *bytes, uint32_t n_variants, struct moe_err *err);
/* Takes over what packs and traces do not say of the model: which layers have experts (as many as
 * the inventory has layers), which are visited again, which are the encoder's, which choose experts
 * by the token, and whether routers come before attention. */
void moe_inventory_set_model(struct moe_inventory *inventory, const struct moe_config *config);
/* Sets the loop: later visits have no experts by themselves. */
void moe_inventory_set_loop(struct moe_inventory *inventory, const struct moe_loop *loop);
/* Makes the first n_model_layers layers an encoder's. */
void moe_inventory_set_encoder(struct moe_inventory *inventory, uint32_t n_model_layers);
void moe_inventory_release(struct moe_inventory *inventory);

/* Uses by expert, [layer][expert] of the n_layers first layers, as uses by key: those of all visits
 * together. NULL: there was no memory. */
uint64_t *moe_inventory_uses(const struct moe_inventory *inventory, const uint64_t *of_layers,
                             uint32_t n_layers, struct moe_err *err);

/* Experts are named by their keys (cache/store.h). */
static inline uint32_t moe_inventory_n_keys(const struct moe_inventory *i)
{
    return i->n_layers * i->n_experts;
}
static inline uint32_t moe_inventory_key(const struct moe_inventory *i, uint32_t layer,
                                         uint32_t expert)
{
    return moe_expert_key(i->n_experts, moe_loop_owner(&i->loop, layer), expert);
}
/* Whether the layer owns its experts: keys that no layer makes are of the others. */
static inline bool moe_inventory_owns(const struct moe_inventory *i, uint32_t layer)
{
    return moe_loop_owner(&i->loop, layer) == layer;
}
/* The model's layer that an expert belongs to, and its number in it: its name in packs and in
 * messages. */
static inline uint32_t moe_inventory_model_layer(const struct moe_inventory *i, uint32_t key)
{
    return i->model_layer[key / i->n_experts];
}
static inline uint32_t moe_inventory_expert(const struct moe_inventory *i, uint32_t key)
{
    return key % i->n_experts;
}

/* Class of an expert at a variant that it has. */
static inline const struct moe_size_class *moe_inventory_class(const struct moe_inventory *i,
                                                               uint32_t key, uint32_t variant)
{
    return &i->classes[i->class_of[moe_expert_copy(i->n_variants, key, variant)]];
}
/* Bytes of its segments as stored in the file. */
static inline const uint64_t *moe_inventory_stored(const struct moe_inventory *i, uint32_t key,
                                                   uint32_t variant)
{
    uint64_t copy = moe_expert_copy(i->n_variants, key, variant);
    return i->stored + copy * MOE_PACK_MAX_SEGMENTS;
}

/* The variant to use for an expert: `variant` where it has it, else the best it has; UINT32_MAX
 * when it has none. */
uint32_t moe_inventory_usable(const struct moe_inventory *i, uint32_t key, uint32_t variant);
/* Whether every expert is used at its best variant (moe_inventory_usable of 0) where `variant` is
 * to be used. */
bool moe_inventory_is_best(const struct moe_inventory *i, uint32_t variant);
/* The variant of that name; n_variants when there is none. */
uint32_t moe_inventory_variant(const struct moe_inventory *i, const char *name);
/* Bytes that loading a segment moves: stored, rounded up to pages. */
uint64_t moe_inventory_load_bytes(const struct moe_inventory *i, uint32_t key, uint32_t variant,
                                  uint32_t segment);
/* ... all segments of an expert, averaged over all experts at that variant. */
double moe_inventory_mean_load(const struct moe_inventory *i, uint32_t variant);
/* Slot of the largest expert at a variant. */
uint64_t moe_inventory_slot_bytes(const struct moe_inventory *i, uint32_t variant);
/* ... averaged over all experts at a variant. */
uint64_t moe_inventory_mean_bytes(const struct moe_inventory *i, uint32_t variant);
/* All experts at a variant, in slots. */
uint64_t moe_inventory_all_bytes(const struct moe_inventory *i, uint32_t variant);

/* What is borrowed of the slots' memory: by a pass of many rows to compute in, row_bytes for each
 * row beyond the first `rows`; by the KV cache for the texts, block_bytes for each block that holds
 * positions, beyond the first own_blocks of n_blocks. Bytes 0: nothing is lent to these. */
struct moe_loan {
    uint32_t rows, own_blocks, n_blocks;
    uint32_t block_positions; /* of each */
    uint64_t row_bytes, block_bytes;
    bool
        apart; /* the KV cache's memory is another's while there is no session: all of it is lent */
};
static inline uint64_t moe_loan_bytes(const struct moe_loan *loan, uint32_t n_rows,
                                      uint32_t n_blocks)
{
    uint64_t rows = n_rows > loan->rows ? n_rows - loan->rows : 0;
    uint64_t blocks = n_blocks > loan->own_blocks ? n_blocks - loan->own_blocks : 0;
    return rows * loan->row_bytes + blocks * loan->block_bytes;
}
/* Sets own_blocks of a loan whose other blocks' numbers are set: one, and those that `unused` bytes
 * have room for. Returns the bytes that the others are lent. */
static inline uint64_t moe_loan_settle(struct moe_loan *loan, uint64_t unused)
{
    const uint64_t own = 1 + unused / loan->block_bytes;
    loan->own_blocks = own < loan->n_blocks ? (uint32_t)own : loan->n_blocks;
    return (loan->n_blocks - loan->own_blocks) * loan->block_bytes;
}
/* Blocks that hold a text of n positions. */
static inline uint32_t moe_loan_blocks(const struct moe_loan *loan, uint64_t n)
{
    uint64_t each = loan->block_positions, blocks = each ? n / each + (n % each > 0) : 0;
    return blocks < loan->n_blocks ? (uint32_t)blocks : loan->n_blocks;
}

/* Slots by class. */
struct moe_pools {
    uint32_t n_classes, n_slots;
    uint64_t bytes; /* of all slots */
    struct moe_loan loan;
    struct moe_pool_params pools[MOE_MAX_CLASSES];
};

/* Whether slots that keep experts can be lent as far as is wanted: to a pass of n_rows, and to all
 * blocks. */
bool moe_pools_can_lend(const struct moe_pools *pools, const struct moe_inventory *inventory,
                        uint32_t n_rows);
/* Divides cache_bytes among classes in proportion to their experts' bytes, those of low precision
 * apart (strategy->low_pool, where it needs a lower precision); each class in use has n_working
 * further slots, at least 1. per_layer is left NULL. */
void moe_pools_size(struct moe_pools *out, const struct moe_inventory *inventory,
                    const struct moe_strategy *strategy, uint32_t high, uint32_t low,
                    uint64_t cache_bytes, uint32_t n_working);

#endif
