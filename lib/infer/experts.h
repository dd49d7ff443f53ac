/*
 * Experts as the forward pass sees them: ask for a layer's experts, get views, give them back.
 *
 * The forward pass does not know where experts live. A provider (all in memory, or a cache
 * over the pack) implements this interface; the pass asks for all experts of a layer at once, takes
 * each when it is ready and releases it after use, so that a provider can load missing ones while
 * present ones are computed.
 */
#ifndef MOE_INFER_EXPERTS_H
#define MOE_INFER_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"
#include "fmt/timeline.h"
#include "infer/run_stats.h"
#include "io/loader.h"
#include "model/config.h"
#include "pack/pack.h"
#include "profile/statistics.h"
#include "sched/inventory.h"
#include "sched/layer_request.h"
#include "sched/scheduler.h"
#include "sched/strategy.h"

/* A ready expert: borrowed until released. */
struct moe_expert_view {
    uint32_t layer, expert, variant;
    struct moe_mat gate, up, down; /* gate.data is NULL where the activation has no gate */
    const float *gate_bias, *up_bias, *down_bias; /* [rows] of their matrix; NULL: none */
};

/* Points the view's matrices and biases into the segments of an expert of this class; false when
 * up or down is not among them. (That a gate is there where the model has one was checked when it
 * was opened.) */
bool moe_expert_view_set(struct moe_expert_view *view, const struct moe_expert_class *class_,
                         const uint8_t *const *segments);

/* MOE_ERR_FORMAT unless the class has exactly the matrices and biases that the description implies:
 * any other would be left out of the arithmetic. path: of the pack. */
int moe_expert_class_check(const struct moe_expert_class *class_, const struct moe_config *config,
                           const char *path, struct moe_err *err);

/* Reads the expert that view->layer, expert and variant name into memory of the arena and sets the
 * view; an arena without a block only measures. The pack has that variant of it. */
int moe_expert_view_read(struct moe_expert_view *view, const struct moe_pack *pack,
                         struct moe_arena *arena, struct moe_err *err);

struct moe_experts;

struct moe_experts_ops {
    const char *name;
    /* n rows are computed next, and are counted in `phase`. May be NULL. */
    void (*begin_tokens)(struct moe_experts *self, uint32_t n, bool prefill,
                         struct moe_phase_stats *phase);
    /* The rows are computed; `seconds` are those of the pass. May be NULL. */
    void (*end_tokens)(struct moe_experts *self, double seconds);
    /* Lockstep: something was computed that takes `seconds` on the modelled clock; that clock's
     * time. May be NULL. */
    void (*computed)(struct moe_experts *self, double seconds);
    double (*clock)(struct moe_experts *self);
    /* The router has chosen; the request stays until the next one. A provider without a scheduler
     * counts each activation in `phase`, which is that of begin_tokens. */
    int (*begin)(struct moe_experts *self, const struct moe_layer_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err);
    /* Experts of the request whose computation can begin, in any order, each in a slot exactly once
     * over all calls: at least one (waits when there is none), at most max. which[i] is the index
     * in the request. Gate and up are there; down may still be loading. */
    int (*next)(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err);
    /* Entry `which` is computed. What was not released when the next request begins (after an
     * error) is released then. */
    void (*release)(struct moe_experts *self, uint32_t which);

    /* Takes in what has arrived and begins loads, without waiting: called now and then during
     * computations. NULL: its scheduler does that. */
    int (*poll)(struct moe_experts *self, struct moe_err *err);
    /* Points the view at an expert in the host's memory, by its layer, expert and variant. NULL
     * where the host computes none. */
    void (*host_view)(struct moe_experts *self, uint32_t moe_layer, struct moe_expert_view *view);
    void (*close)(struct moe_experts *self);
};

/* First member of every provider. */
struct moe_experts {
    const struct moe_experts_ops *ops;
    struct moe_scheduler *scheduler; /* decides what is loaded; NULL: every expert is there */
    uint64_t resident_bytes; /* expert weights held now (with a GPU: on it), at most so far */
    uint64_t resident_bytes_max;
    struct moe_timeline *timeline; /* borrowed; NULL: none */
    bool lockstep;                 /* loads end at modelled times: clock and computed count */
};

/* Seconds by the clock that measures waiting and computing: the wall clock, or in lockstep the
 * modelled one. */
double moe_experts_clock(struct moe_experts *self);

/* Strategy `resident`: reads each expert's best variant into memory at once, that of the GPU where
 * there is one (borrowed; NULL: none), in which case views point there.
 * variant: index into the pack's variants, 0 the best; an expert without it uses the best it has.
 */
int moe_experts_open_resident(struct moe_experts **out, const struct moe_pack *pack,
                              uint32_t variant, struct moe_gpu *gpu,
                              const struct moe_progress *progress, struct moe_err *err);
/* The same on the host, but experts are read behind the first passes, by a thread: layer by layer,
 * and first those that a pass waits for. One that cannot be read is an error of the pass that needs
 * it. passes: told while a pass waits, and ends it (moe_model_load_behind); its `stop` becomes the
 * pack's (moe_pack_stop_with). The pack stays as it is until this is closed. */
int moe_experts_open_arriving(struct moe_experts **out, struct moe_pack *pack, uint32_t variant,
                              const struct moe_progress *passes, struct moe_err *err);
/* Host memory that it takes for a GPU, while loading. */
uint64_t moe_experts_resident_host_bytes(const struct moe_pack *pack);
/* Its views, [layers of the model][n_experts] (those of dense layers and absent experts are empty),
 * for routing on the device. Valid until it is closed; NULL for another provider. */
const struct moe_expert_view *moe_experts_resident_views(const struct moe_experts *experts);

/* For calibration: every expert at every variant of the pack, as an assigner asks for them. What
 * fits into `bytes` is kept in memory, the last layers first (re-runs visit them most); of the
 * other layers each expert is read when a request names it, and kept until the next request. 0: as
 * much as there is. */
int moe_experts_open_every(struct moe_experts **out, const struct moe_pack *pack, uint64_t bytes,
                           const struct moe_progress *progress, struct moe_err *err);
/* The least that it works with, and what holds everything. */
void moe_experts_every_bytes(const struct moe_pack *pack, uint64_t *least, uint64_t *all);

/* How experts are cached and loaded. */
struct moe_cache_options {
    const struct moe_strategy *strategy;     /* settled; NULL: `lru` */
    const struct moe_statistics *statistics; /* frequencies; borrowed while opening; NULL: none */
    uint32_t high, low;   /* variants of the pack: the one to use, and the lower one where the
                             strategy takes it; an expert without it has the next better one */
    uint64_t cache_bytes; /* of slots that keep experts; 0: nothing is kept */
    uint32_t n_working;   /* further slots: for experts in use that the cache does not keep, and for
                             prefetched ones; at least 1 */
    uint32_t top_k;       /* experts that a token visits in a layer; only sizes depend on it */
    const struct moe_config *config; /* of the model; borrowed while opening. NULL: it is not known
                                        which layers are an encoder's or choose by the token */
    uint32_t n_staging;   /* of the working slots, those for prefetched ones: for reports */
    struct moe_loan loan; /* of memory in the host */
    /* Of a plan, borrowed while opening: slots by class instead of cache_bytes and n_working, what
     * is loaded first, T and t_expert. NULL and 0: none. */
    const struct moe_pools *pools;
    const uint32_t *contents;
    uint32_t n_contents;
    double layer_seconds, load_seconds;
    struct moe_loader_options loader; /* fd, path and sizes are filled in here */
    uint64_t seed;
    /* Slots in the memory of a GPU (borrowed; NULL: of the host), filled from experts in the host's
     * memory, which are read from disk as far as they do not fit there: host_bytes for them and the
     * loaders. The loader's rate is then that of copies to the GPU, disk_rate that of reads (0: as
     * fast as it goes; in lockstep the same rate). */
    struct moe_gpu *gpu;
    uint64_t host_bytes;
    double disk_rate;
};

/* Bytes of one slot for the pack's experts at `variant`: segments, each rounded up to pages. The
 * largest where experts differ. */
uint64_t moe_cache_slot_bytes(const struct moe_pack *pack, uint32_t variant);

/* Memory that a cache with these options takes: slots, loader, what the policy keeps of choices;
 * with a GPU that of the device, its slots. UINT64_MAX: no cache can be made of them. */
uint64_t moe_cache_bytes(const struct moe_pack *pack, const struct moe_cache_options *options);

/* With a GPU: the least host_bytes that such a cache works with (all of them where the strategy
 * computes experts on the host), and those with which nothing is read from disk any more. */
void moe_cache_host_bytes(const struct moe_pack *pack, const struct moe_cache_options *options,
                          uint64_t *least, uint64_t *all);

/* A cache of experts over the pack: loads what is missing as it is asked for. With initial contents
 * these are loaded here.
 *
 * With a GPU the host tier is filled here, too: with all experts, or the most frequent ones. Views
 * point into the device's memory and must not be read on the host (except host_view's). Work queued
 * on the device's compute stream before `release` still sees the expert; there is no need to wait
 * for it. MOE_ERR_LIMIT: host_bytes are too few; MOE_ERR_DEVICE. */
int moe_experts_open_cached(struct moe_experts **out, const struct moe_pack *pack, uint32_t top_k,
                            const struct moe_cache_options *options,
                            const struct moe_progress *progress, struct moe_err *err);
void moe_experts_close(struct moe_experts *experts); /* NULL is fine */

/*
 * Segments of experts as loads for the loader.
 */

/* One segment of an expert of the pack; the layer is the model's. */
struct moe_expert_segment {
    uint32_t layer, expert, variant, segment;
};

struct moe_expert_segment moe_expert_segment_of(const struct moe_inventory *inventory, uint32_t key,
                                                uint32_t variant, uint32_t segment);

/* Names a load: the slot, or place, that it fills and the segment. */
static inline uint32_t moe_load_tag(uint32_t slot, uint32_t segment)
{
    return slot * MOE_PACK_MAX_SEGMENTS + segment;
}
static inline uint32_t moe_tag_slot(uint64_t tag)
{
    return (uint32_t)(tag / MOE_PACK_MAX_SEGMENTS);
}
static inline uint32_t moe_tag_segment(uint64_t tag)
{
    return (uint32_t)(tag % MOE_PACK_MAX_SEGMENTS);
}

/* How to load it: its place in the file, its sizes and checksum. */
struct moe_load moe_expert_load(const struct moe_pack *pack, const struct moe_expert_segment *s);

/* "layer 3 expert 17 variant 4 segment 1: why" as an error; returns status. */
int moe_expert_load_failed(struct moe_err *err, int status, const struct moe_pack *pack,
                           const struct moe_expert_segment *s, const char *why);

#endif
