/*
 * Pace: how long the pieces of a model's work take on a machine, for modelled clocks: the
 * simulator's, and moe-run's under --lockstep. Plain data; a plan contains one.
 *
 * A pass over rows goes, for each MoE layer: (dense layers before it), route, predictions for later
 * layers, beside, the routed experts as they arrive, combine; at its end the head, once. Runner and
 * simulator count these pieces in the driver of a pass (pass.h). Where routers come before
 * attention, experts are asked for before "route" is counted, and arrive during it.
 */
#ifndef MOE_SCHED_PACE_H
#define MOE_SCHED_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/text.h"
#include "cache/link.h"
#include "pack/pack.h"
#include "profile/device.h"

/* Pieces of a layer, by rows of the pass. */
enum moe_piece {
    MOE_PIECE_ROUTE,   /* attention, norms, router */
    MOE_PIECE_BESIDE,  /* shared expert: computed while routed experts are loaded */
    MOE_PIECE_COMBINE, /* grouping rows by expert, adding the experts' outputs */
    MOE_PIECE_DENSE,   /* a whole layer without experts */
    MOE_N_PIECES
};
const char *moe_piece_name(enum moe_piece piece); /* as in files: "route" */

/* The share of an expert's computation that does not need its last segment (down): two of three
 * matrices of the same size. */
#define MOE_PACE_FIRST_PART (2.0 / 3.0)

struct moe_pace {
    struct moe_line pieces[MOE_N_PIECES]; /* no points: the model has no such piece, 0 seconds */
    uint32_t n_variants;                  /* those of the pack, best first */
    struct moe_line experts[MOE_MAX_VARIANTS]; /* one routed expert, by its rows */
    double head;                               /* final norm and head, one row */
    double predict;                            /* predicting one layer ahead, one row */
    double joint;     /* what a group of experts computed at once takes on top of their times */
    double load_rate; /* bytes per second of expert loads */
    /* Where the slots are a device's, loads come from the host's memory, and what is not there
     * comes from storage first, over a link of its own. 0: everything is there. */
    double storage_rate, storage_piece_seconds;
    double host_slowdown; /* how many times as long the host takes for an expert; 0: no host */
    double attend; /* attention of a row, for each position it attends to: on top of the pieces */
    double positions;            /* of the row that was measured */
    struct moe_link_costs loads; /* further costs of loads; all 0: none */
};

/* Seconds; 0 where the model has no such piece. */
double moe_pace_piece(const struct moe_pace *p, enum moe_piece piece, double rows);
double moe_pace_expert(const struct moe_pace *p, uint32_t variant, double rows);
/* A piece with attention in it (route, dense); positions: what the rows attend to, in all. */
double moe_pace_attention(const struct moe_pace *p, enum moe_piece piece, double rows,
                          double positions);
/* Positions that n rows attend to which follow each other from position `first` on. */
static inline double moe_pace_positions(uint32_t first, uint32_t n)
{
    return (double)n * first + (double)n * (n + 1) / 2;
}
/* When the host will have computed an expert for `rows` rows if it is asked now: it first finishes
 * earlier work, at free_at. */
static inline double moe_pace_host(const struct moe_pace *p, double now, double free_at,
                                   uint32_t variant, double rows)
{
    return (now > free_at ? now : free_at) + p->host_slowdown * moe_pace_expert(p, variant, rows);
}
/* T of Fate 4.3: one layer of a decoded token, with its experts in memory: the time that can hide
 * loads for the next layer. The token attends to as many positions as the measured one. */
double moe_pace_layer(const struct moe_pace *p, uint32_t variant, uint32_t top_k);

/* Makes that time `seconds`: all pieces but the head become longer or shorter alike, the host's
 * time for an expert stays. */
void moe_pace_set_layer(struct moe_pace *p, uint32_t top_k, double seconds);
/* All that the processor does takes this many times as long, handling loads too. */
void moe_pace_stretch(struct moe_pace *p, double by);

/* From a profile with measurements of a model. variants: the pack's names, best first. A variant
 * that was not measured takes another's time in proportion to the bytes per expert, if the profile
 * has both. These are the processor's times, so experts are loaded from storage, and what loads
 * cost the processor is taken from the profile where it says. load_rate 0: the profile's.
 * MOE_ERR_USAGE: the profile has no times of the model (or no load rate, and load_rate is 0); the
 * text says what to do. */
int moe_pace_of_device(struct moe_pace *out, const struct moe_device *d,
                       const char (*variants)[MOE_NAME_BYTES], uint32_t n_variants,
                       double load_rate, struct moe_err *err);

/* The bytes of a model, for machines that were never measured with it. */
struct moe_weights {
    uint32_t n_layers, n_moe_layers, top_k;
    uint64_t attention_bytes; /* of one layer: projections and router */
    uint64_t router_bytes;    /* ... of these the router */
    uint64_t shared_bytes;    /* shared expert of one MoE layer */
    uint64_t dense_bytes;     /* feed-forward of one layer without experts */
    uint64_t head_bytes;
    uint32_t n_variants;
    uint64_t expert_bytes[MOE_MAX_VARIANTS];
};

/* Where experts are loaded from when the profile's processor computes (accelerator false), or the
 * whole machine with the accelerator that it may have: from the host's memory, over the link, into
 * an accelerator with memory of its own; else from storage. */
enum moe_device_tier moe_pace_tier(const struct moe_device *d, bool accelerator);

/* From memory bandwidth only: each piece takes as long as reading its weights once at the share
 * MOE_PACE_BANDWIDTH_SHARE of the bandwidth of the memory that experts are loaded into, for up to
 * MOE_PACE_FREE_ROWS rows, and in proportion to rows above that. An estimate: say so where it is
 * used. MOE_ERR_USAGE: the profile has no bandwidth, or no load rate. */
#define MOE_PACE_BANDWIDTH_SHARE 0.7
enum { MOE_PACE_FREE_ROWS = 16 };
/* On an accelerator whose profile says what a launch and a round trip take, each layer also takes
 * its launches, those of its experts once for all that are computed together, and MoE layers a
 * round trip; where the profile has storage, it lies behind the host's memory. As many kernels as
 * this engine launches for a token (tests/bench/RESULTS.md, GPU). */
enum { MOE_PACE_LAYER_LAUNCHES = 5, MOE_PACE_EXPERTS_LAUNCHES = 2 };
int moe_pace_of_bandwidth(struct moe_pace *out, const struct moe_device *d,
                          const struct moe_weights *weights, enum moe_device_tier from,
                          double load_rate, struct moe_err *err);

#endif
