/*
 * Simulator: replays a trace through the same code that decides in moe-run (sched/scheduler.h), on
 * a modelled link (cache/link.h) and a modelled clock (pace.h). It needs no weights and no file but
 * the trace; the same inputs always give the same figures.
 *
 * A sequence's prompt tokens are computed in passes of at most `batch` rows, the others one by one;
 * a source in one, through the encoder's layers, and each token of its target through the
 * decoder's. If a strategy may change results (low precision, skipping, substitution), what routers
 * chose and scored still stays as it was recorded. Cache-aware routing goes by these scores, of
 * whatever group an expert is, which a trace does not say.
 */
#ifndef MOE_PLAN_SIMULATE_H
#define MOE_PLAN_SIMULATE_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "profile/statistics.h"
#include "profile/trace.h"
#include "sched/pace.h"
#include "sched/replay.h"
#include "sched/scheduler.h"

/* What simulations of the same choices share of what their caches learn (cache/usage.h), up to that
 * many bytes: side by side, or one after the other, they give the same results. */
struct moe_tapes;
int moe_tapes_open(struct moe_tapes **out, uint64_t room, struct moe_err *err);
void moe_tapes_close(struct moe_tapes *t); /* NULL is fine */

/* The way of messages from the machine that runs the model to another, and back. */
struct moe_wire_pace {
    double latency;  /* seconds until a small message was taken in */
    double byte;     /* seconds of each byte */
    double handling; /* of the machine that runs the model, for each further message of a layer */
    double handling_byte; /* of either end, for each byte that it sends or takes in */
};

struct moe_simulation;

/* Another machine, which has some of the experts and computes them (ranks/ranks.h). */
struct moe_simulated_rank {
    const struct moe_simulation *in; /* scheduler, pace, host_bytes: its experts, its times */
    struct moe_wire_pace wire;
};

/* ... and what it did for decoded tokens. */
struct moe_simulated_work {
    uint64_t activations, hits, bytes; /* bytes: of loads */
    /* By the machine that runs the model; of whole layers to it, from whichever was before. */
    uint64_t messages, bytes_sent, bytes_received;
    double busy_seconds; /* it computed, or waited for loads */
};

struct moe_simulation {
    struct moe_trace *trace;                 /* rewound; of the inventory's shape */
    struct moe_excerpt excerpt;              /* of it; {0}: all */
    struct moe_scheduler_options scheduler;  /* all but the channel */
    const struct moe_statistics *statistics; /* for path predictions; NULL: none */
    struct moe_tapes *tapes; /* of simulations of the same trace and `learnt`; NULL: none */
    const char *learnt;      /* a file that the cache begins with, where it learns; NULL: none */
    const struct moe_pace *pace;
    uint32_t batch;       /* at least 1 */
    uint32_t piece_bytes; /* of the links; 0: the loader's */
    uint64_t host_bytes;  /* for experts behind a device's slots, where the pace has a storage */
    /* Where the inventory has not all experts: who has each, [n_keys][2] (share.h), 0 this machine,
     * i + 1 that of ranks[i]; and the bytes of a row that goes there or comes back. */
    const uint8_t *holders;
    /* By layer of the model: which of the machines, counted so, computes its attention, in the time
     * that this one would take; NULL: this one computes all. */
    const uint8_t *attends;
    /* By layer of the model: which of them computes all of it, in its own time, the first of them
     * this one: they are rank 0's, then rank 1's, ... (moe_share_layers); NULL: this one computes
     * all but experts. */
    const uint8_t *owners;
    const struct moe_simulated_rank *ranks;
    uint32_t n_ranks;
    uint64_t row_bytes;
    struct moe_simulated_work *work;     /* [n_ranks], added to */
    const struct moe_progress *progress; /* NULL: none */
    struct moe_buf *log;                 /* receives each decision (sched/pass.h); NULL: none */
};

struct moe_simulated_phase {
    uint64_t tokens;
    double seconds; /* modelled */
    struct moe_counts experts;
    uint64_t bytes;          /* of loads that began in this phase */
    double handling_seconds; /* the components (device.h) */
    double stall_seconds;
    double host_seconds;
    double compute_seconds;
    double link_seconds; /* the link was busy */
    double positions;    /* that its tokens attend to, in all */
    /* With a storage behind the host: loads that found their expert there or did not, bytes that
     * came from storage first (they count as `bytes` too), and how long its link was busy. */
    uint64_t host_hits, disk_loads, storage_bytes;
    double storage_seconds;
};

struct moe_simulated {
    struct moe_simulated_phase prefill, decode; /* of the sequences that count (trace.h) */
    uint64_t token_layers;                      /* of all sequences that were replayed */
};

/* By MoE layer, of decoded tokens. */
struct moe_simulated_layer {
    uint64_t activations, hits;          /* hits: cache and prefetch hits */
    uint64_t predicted, predicted_right; /* of the activations */
    double stall_seconds;
};

/* layers: [n_layers] or NULL. MOE_ERR_USAGE: the strategy needs something that the trace (scores of
 * its predictor), the statistics or the pace (a host) lack; the text says what to do. Errors of the
 * trace's reader. */
int moe_simulate(const struct moe_simulation *in, struct moe_simulated *out,
                 struct moe_simulated_layer *layers, struct moe_err *err);

#endif
