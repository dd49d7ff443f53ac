/*
 * Uses of an expert cache's slots on a GPU: a slot is overwritten, on the stream that copies, only
 * after the work queued on the stream that computes has used it, and the host does not wait.
 *
 * A mark is set after all uses since the one before it. There are a few, set in turn: one that is
 * reused waits longer than necessary, never too short.
 */
#ifndef MOE_INFER_EXPERTS_TIERS_H
#define MOE_INFER_EXPERTS_TIERS_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"
#include "infer/experts_cached.h"
#include "infer/host_tier.h"

enum { SLOT_USES_MARKS = 8 };

struct slot_uses {
    struct moe_gpu *gpu; /* borrowed */
    struct moe_gpu_mark *marks[SLOT_USES_MARKS];
    uint32_t mark;    /* the next to be set */
    bool used;        /* a slot, since the last one was set */
    uint8_t *before;  /* [slots] the mark after its last use; SLOT_USES_MARKS: none */
    uint32_t n_given; /* and not taken back */
};

/* MOE_ERR_MEMORY, MOE_ERR_DEVICE. Closed also after that. */
int slot_uses_open(struct slot_uses *u, struct moe_gpu *gpu, uint32_t n_slots, struct moe_err *err);
void slot_uses_close(struct slot_uses *u);

/* Work queued on the compute stream between these two calls uses the slot. */
void slot_uses_give(struct slot_uses *u, uint32_t slot);
void slot_uses_take_back(struct slot_uses *u, uint32_t slot);
/* The next request begins. What was not taken back was given up by an error: waits for the GPU. */
void slot_uses_begin(struct slot_uses *u);

/* Copies queued from now on may overwrite the slot. */
void slot_uses_overwrite(struct slot_uses *u, uint32_t slot);

/*
 * Three tiers: slots on a GPU, filled from the host tier (host_tier.h), which is filled from disk.
 * The channel between the scheduler and two loaders, in place of that of experts_channel.c.
 */

/* Reserves and fills the host tier; c->gpu, pools, store and loader are there, its slots hold
 * nothing yet. frequency: [layer][expert] or NULL. MOE_ERR_LIMIT: too little host memory. Close
 * *out also after a failure. */
int tiers_open(struct tiers **out, struct cached *c, const struct moe_cache_options *options,
               const uint64_t *frequency, const struct moe_progress *progress, struct moe_err *err);
/* After the cache's loader. NULL is fine. */
void tiers_close(struct tiers *t);

struct moe_channel tiers_channel(struct cached *c);

/* Lockstep: computation took `seconds`. */
void tiers_advance(struct tiers *t, double seconds);

/* The record of slots in use on the GPU. */
struct slot_uses *tiers_slot_uses(struct tiers *t);

/* The expert that the view names, in the host tier, which holds all of them. */
void tiers_host_view(const struct tiers *t, uint32_t moe_layer, struct moe_expert_view *view);

/* Adds what was read from disk since the last call to the cache's phase. */
void tiers_count_traffic(struct tiers *t);

#endif
