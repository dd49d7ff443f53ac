/*
 * Three tiers: slots on a GPU, filled from the host tier (host_tier.h), which is filled from disk.
 * The channel between the scheduler and two loaders, in place of that of experts_channel.c.
 *
 * A segment that is in the host tier is copied to its slot; any other is read into a place there
 * first. While such transfers take all places, the most urgent waiting one gets the first that
 * becomes free. Internal to the cache.
 */
#ifndef MOE_EXPERTS_EXPERTS_TIERS_H
#define MOE_EXPERTS_EXPERTS_TIERS_H

#include "experts/experts_cached.h"
#include "experts/slot_uses.h"

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
void tiers_host_view(const struct tiers *t, struct moe_expert_view *view);

/* What was read from disk since the last look goes to the cache's phase. */
void tiers_count_traffic(struct tiers *t);

#endif
