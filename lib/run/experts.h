/*
 * Experts as the forward pass sees them: ask for a layer's experts, get views, give them back.
 *
 * The forward pass does not know where experts live. A provider (today: all in memory; later: a
 * cache over a pack, GPU memory) implements this interface; the pass asks for all experts of a
 * layer at once, takes each when it is ready and releases it after use, so that a provider can load
 * missing ones while present ones are computed.
 */
#ifndef MOE_RUN_EXPERTS_H
#define MOE_RUN_EXPERTS_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "fmt/pack.h"
#include "run/stats.h"

/* A ready expert: borrowed until released. */
struct moe_expert_view {
    uint32_t layer, expert, variant;
    struct moe_mat gate, up, down;
};

/* What the router chose in one layer for a batch. */
struct moe_expert_request {
    uint32_t layer;
    uint32_t n;              /* distinct experts */
    const uint32_t *experts; /* their numbers, ascending */
    const uint32_t *n_rows;  /* rows of the batch that want each */
};

struct moe_experts;

struct moe_experts_ops {
    const char *name;
    /* The router has spoken. Counts each activation into `phase`. */
    int (*begin)(struct moe_experts *self, const struct moe_expert_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err);
    /* Experts of the request that are ready, in any order, each exactly once over all calls: at
     * least one (waits when none is ready), at most max. which[i] is the index in the request. */
    int (*next)(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err);
    /* Done with entry `which`. */
    void (*release)(struct moe_experts *self, uint32_t which);
    void (*close)(struct moe_experts *self);
};

/* First member of every provider. */
struct moe_experts {
    const struct moe_experts_ops *ops;
    uint64_t resident_bytes; /* expert weights held now, at most so far */
    uint64_t resident_bytes_max;
};

/* Strategy `resident`: reads each expert's best variant into memory at once.
 * variant: index into the pack's variants, 0 the best; an expert without it uses the best it has.
 */
int moe_experts_open_resident(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, const struct moe_progress *progress,
                              struct moe_err *err);
void moe_experts_close(struct moe_experts *experts); /* NULL is fine */

#endif
