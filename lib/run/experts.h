/*
 * Experts as the forward pass sees them: ask for a layer's experts, get views, give them back.
 *
 * The forward pass does not know where experts live. A provider (all in memory, or a cache
 * over the pack) implements this interface; the pass asks for all experts of a layer at once, takes
 * each when it is ready and releases it after use, so that a provider can load missing ones while
 * present ones are computed.
 */
#ifndef MOE_RUN_EXPERTS_H
#define MOE_RUN_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"
#include "base/timeline.h"
#include "fmt/pack.h"
#include "io/loader.h"
#include "run/stats.h"
#include "sched/policy.h"

/* A ready expert: borrowed until released. */
struct moe_expert_view {
    uint32_t layer, expert, variant;
    struct moe_mat gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; /* [rows] of their matrix; NULL: none */
};

/* Points the view's matrices and biases into the segments of an expert of this class; false when
 * gate, up or down is not among them. */
bool moe_expert_view_set(struct moe_expert_view *view, const struct moe_expert_class *class_,
                         const uint8_t *const *segments);

/* Reads the expert that view->layer, expert and variant name into memory of the arena and sets the
 * view; an arena without a block only measures. The pack has that variant of it. */
int moe_expert_view_read(struct moe_expert_view *view, const struct moe_pack *pack,
                         struct moe_arena *arena, struct moe_err *err);

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
    /* Experts of the request that can be begun, in any order, each exactly once over all calls: at
     * least one (waits when there is none), at most max. which[i] is the index in the request. Gate
     * and up are there; down may still be on its way. */
    int (*next)(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err);
    /* Waits until entry `which` is there whole. */
    int (*complete)(struct moe_experts *self, uint32_t which, struct moe_err *err);
    /* Done with entry `which`. What was given and not released when the next request begins (after
     * an error) is released then. */
    void (*release)(struct moe_experts *self, uint32_t which);
    /* Experts of a layer to come that may be wanted, best score first. NULL: nothing to fetch. */
    void (*prefetch)(struct moe_experts *self, uint32_t layer, const uint32_t *experts,
                     const float *scores, uint32_t n);
    void (*close)(struct moe_experts *self);
};

/* First member of every provider. */
struct moe_experts {
    const struct moe_experts_ops *ops;
    uint64_t resident_bytes; /* expert weights held now, at most so far */
    uint64_t resident_bytes_max;
    struct moe_timeline *timeline; /* borrowed; NULL: nobody records */
};

/* Strategy `resident`: reads each expert's best variant into memory at once.
 * variant: index into the pack's variants, 0 the best; an expert without it uses the best it has.
 */
int moe_experts_open_resident(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, const struct moe_progress *progress,
                              struct moe_err *err);

enum { MOE_CACHE_MAX_CLASSES = 64 };

/* How experts are cached and loaded. */
struct moe_cache_options {
    const struct moe_policy_ops *policy;
    bool per_layer;       /* equal shares for each layer instead of one pool for all */
    uint64_t cache_bytes; /* of slots that keep experts; 0: nothing is kept */
    uint32_t n_working;   /* further slots: for experts in use that the cache does not keep, and for
                             prefetched ones; at least 1 */
    struct moe_loader_options loader; /* fd, path and sizes are filled in here */
    uint64_t seed;
};

/* Bytes of one slot for the pack's experts at `variant`: segments, each rounded up to pages. The
 * largest where experts differ. */
uint64_t moe_cache_slot_bytes(const struct moe_pack *pack, uint32_t variant);

/* Memory that a cache with these options takes: slots, loader, tables. */
uint64_t moe_cache_bytes(const struct moe_pack *pack, uint32_t variant,
                         const struct moe_cache_options *options);

/* A cache of experts over the pack: loads what is missing as it is asked for. */
int moe_experts_open_cached(struct moe_experts **out, const struct moe_pack *pack, uint32_t variant,
                            const struct moe_cache_options *options, struct moe_err *err);
void moe_experts_close(struct moe_experts *experts); /* NULL is fine */

#endif
