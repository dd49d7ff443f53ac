/*
 * What happened to the experts in one phase of a run: encoding, prefill or decode. Cheap enough to
 * be always on. An activation is one (token, layer, routed expert); once the router has chosen it
 * is exactly one of the kinds that are counted, and they add up.
 */
#ifndef MOE_EXPERTS_PHASE_STATS_H
#define MOE_EXPERTS_PHASE_STATS_H

#include <stdint.h>

#include "record/components.h"
#include "sched/scheduler.h"

struct moe_phase_stats {
    uint64_t tokens; /* rows computed */
    double seconds;  /* wall time of the forward passes */
    double joules;   /* that the processor took meanwhile, where its counters can be read */
    struct moe_counts experts;
    uint64_t over_capacity; /* choices beyond an expert's capacity, which the model leaves out:
                               beside the activations, which they are not */
    uint64_t bytes_read;    /* from disk */
    /* With a GPU: copied to it; loads of experts that were in host memory, and that were not. */
    uint64_t bytes_uploaded, host_hits, disk_loads;
    double read_seconds; /* at least one read was in flight; with a GPU those in which a read
                            was, and those in which a copy was, added up */
    /* Of `seconds`, the components but for computing (record/components.h). */
    double handling_seconds; /* computing threads asked for loads and took them in */
    double stall_seconds;    /* they waited for a load */
    double host_seconds;     /* they waited for the host's experts */
    double stall_bytes;      /* of bytes_read (with a GPU: bytes_uploaded), those moved in stalls */
    double predict_seconds;  /* predictions, and the prefetches begun by them */
};

/* What its seconds are made of. */
struct moe_components moe_phase_components(const struct moe_phase_stats *phase);

/* Adds the counts and times of `part` to `sum`. */
void moe_phase_stats_add(struct moe_phase_stats *sum, const struct moe_phase_stats *part);

#endif
