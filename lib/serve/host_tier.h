/*
 * The tier above the disk (CoServe 4.1, 4.3), where executors compute on a GPU, which has memory of
 * its own: packs in main memory, whole as their files are. A pack that is loaded from disk onto the
 * GPU passes through it and stays, so that once it has left the GPU it is loaded from here. Who
 * leaves the tier is decided as for the executors' own memories (coe/pool.h).
 */
#ifndef MOE_SERVE_HOST_TIER_H
#define MOE_SERVE_HOST_TIER_H

#include "serve/state.h"

/* Opens it in s->host, once the dispatch is; where there is no room for it, nothing. */
int host_tier_open(struct moe_server *s, struct moe_err *err);
void host_tier_close(struct moe_server *s);

/* Whether a model's pack is there. Under the mutex. */
bool host_tier_has(const struct moe_server *s, uint32_t model);
/* Memory that packs in it take, and how many these are. Under the mutex. */
void host_tier_count(const struct moe_server *s, uint64_t *bytes, uint32_t *n);

/* A model's pack, held there until it is released: *was_there, or read from disk now. may_read
 * false: only where it is there. image->bytes NULL: it is not, or has no room; then nothing is
 * held.
 */
int host_tier_hold(struct moe_server *s, uint32_t model, bool may_read,
                   struct moe_pack_image *image, bool *was_there, struct moe_err *err);
/* keep false: it is damaged, and leaves. */
void host_tier_release(struct moe_server *s, uint32_t model, bool keep);

/* Reads the likeliest packs that are not there into what room is left. One that cannot be read is
 * left out. MOE_ERR_INTERRUPTED. */
int host_tier_fill(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err);

#endif
