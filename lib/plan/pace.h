/*
 * Pace: how long the pieces of a model's work take on a machine, as a modelled clock counts them:
 * the simulator's, and moe-run's under --lockstep. Plain data; a plan carries one.
 *
 * A pass over rows goes, for each MoE layer: (dense layers before it), route, the router speaks,
 * predictions for layers ahead, beside, the routed experts as they come, combine; at its end the
 * head, once. Runner and simulator count these pieces at the same places.
 */
#ifndef MOE_PLAN_PACE_H
#define MOE_PLAN_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/line.h"
#include "fmt/pack.h"
#include "record/device.h"

/* Pieces of a layer, by rows of the pass. */
enum moe_piece {
    MOE_PIECE_ROUTE,   /* attention, norms, router */
    MOE_PIECE_BESIDE,  /* shared expert: computed while the routed ones are on their way */
    MOE_PIECE_COMBINE, /* grouping rows by expert, adding the experts' outputs */
    MOE_PIECE_DENSE,   /* a whole layer without experts */
    MOE_N_PIECES
};
const char *moe_piece_name(enum moe_piece piece); /* "route", as files call it */

/* Of an expert's computation, what comes before its last segment (down) is needed: two of three
 * matrices of the same size. */
#define MOE_PACE_FIRST_PART (2.0 / 3.0)

struct moe_pace {
    struct moe_line pieces[MOE_N_PIECES]; /* no points: the model has no such piece, 0 seconds */
    uint32_t n_variants;                  /* as the pack's, best first */
    struct moe_line experts[MOE_PACK_MAX_VARIANTS]; /* one routed expert, by rows that want it */
    double head;                                    /* final norm and head, one row */
    double predict;                                 /* predicting one layer ahead, one row */
    double load_rate;     /* bytes per second that experts are loaded at */
    double host_slowdown; /* the host takes so many times as long for an expert; 0: there is none */
};

/* Seconds; 0 where the model has no such piece. */
double moe_pace_piece(const struct moe_pace *p, enum moe_piece piece, double rows);
double moe_pace_expert(const struct moe_pace *p, uint32_t variant, double rows);
/* A part of it: the last (down), or what comes before. */
static inline double moe_pace_expert_part(const struct moe_pace *p, uint32_t variant, double rows,
                                          bool last)
{
    return moe_pace_expert(p, variant, rows) *
           (last ? 1 - MOE_PACE_FIRST_PART : MOE_PACE_FIRST_PART);
}
/* When the host has computed an expert for so many rows that it is asked for `now`: after what it
 * was asked for before. */
static inline double moe_pace_host(const struct moe_pace *p, double now, double free_at,
                                   uint32_t variant, double rows)
{
    return (now > free_at ? now : free_at) + p->host_slowdown * moe_pace_expert(p, variant, rows);
}
/* T of Fate 4.3: one decoded token's layer, experts in memory included; the time that loads for the
 * next layer can hide behind. */
double moe_pace_layer(const struct moe_pace *p, uint32_t variant, uint32_t top_k);

/* From a profile with measurements of a model; variants: names of the pack's, best first. What was
 * not measured at a variant takes another's time in proportion to their bytes per expert, where the
 * profile knows both. MOE_ERR_USAGE: it has none of the model's (or no rate of loads, and
 * load_rate is 0); the text says what to do. load_rate: 0: the profile's of that tier. */
int moe_pace_of_device(struct moe_pace *out, const struct moe_device *d,
                       const char (*variants)[MOE_PACK_NAME_BYTES], uint32_t n_variants,
                       enum moe_device_tier from, double load_rate, struct moe_err *err);

/* What a model weighs, for machines that were never measured with it. */
struct moe_weights {
    uint32_t n_layers, n_moe_layers, top_k;
    uint64_t attention_bytes; /* of one layer: projections and router */
    uint64_t router_bytes;    /* ... of these the router */
    uint64_t shared_bytes;    /* shared expert of one MoE layer */
    uint64_t dense_bytes;     /* feed-forward of one layer without experts */
    uint64_t head_bytes;
    uint32_t n_variants;
    uint64_t expert_bytes[MOE_PACK_MAX_VARIANTS];
};

/* From memory bandwidth alone: each piece takes as long as reading its weights once at the share
 * MOE_PACE_BANDWIDTH_SHARE of the bandwidth (the accelerator's where there is one), whatever the
 * rows up to MOE_PACE_FREE_ROWS, from there on in proportion to them. An estimate, and to be called
 * one. MOE_ERR_USAGE: the profile has no bandwidth, or no rate of loads. */
#define MOE_PACE_BANDWIDTH_SHARE 0.7
enum { MOE_PACE_FREE_ROWS = 16 };
int moe_pace_of_bandwidth(struct moe_pace *out, const struct moe_device *d,
                          const struct moe_weights *weights, enum moe_device_tier from,
                          double load_rate, struct moe_err *err);

#endif
