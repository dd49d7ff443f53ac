/*
 * The pass driver: what a forward pass asks for, predicts, computes and counts, layer by layer. The
 * runner (infer/pass_ops.c) computes models through it, the simulator (plan/simulate.c) replays
 * traces: each fills in a table of operations, and the driver calls them in one order.
 *
 *     for each pass: moe_pass_begin, moe_pass_expect, moe_pass_layers
 *
 * A MoE layer goes: predictions by its attention's input; attention; the router; what becomes of
 * its choice (experts computed a layer early, cached ones preferred, the gate); the request; work
 * for the host; predictions for later layers; what does not depend on the router; the experts as
 * they arrive; what the host has computed; their sum. Where routers come before
 * attention, everything up to the request does too, and so do predictions that do not need its
 * result.
 *
 * Sources: Fate 4.2 and table 1 (predictions), DAOP IV-C (experts computed early), HOBBIT 3.2.
 */
#ifndef MOE_SCHED_PASS_H
#define MOE_SCHED_PASS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "sched/layer_request.h"
#include "sched/pace.h"
#include "sched/placement.h"
#include "sched/replay.h"
#include "sched/scheduler.h"
#include "sched/select.h"
#include "sched/strategy.h"

/* An expert for the host to compute: an entry of the layer's request; or, early, a choice of those
 * predicted for a layer (struct moe_early), for one row. */
struct moe_host_work {
    uint32_t layer, moe; /* of the model; its index among MoE layers */
    uint32_t expert, variant, n_rows;
    bool early;
    uint32_t place;       /* of the entry, or early of the choice */
    uint32_t entry;       /* when it is waited for */
    const float *weights; /* early: its one */
};

/* Experts that a layer's predictions put in place of its router's choice; choice.n 0: none. */
struct moe_early {
    uint32_t moe;
    struct moe_predicted choice;
    float weights[MOE_MAX_TOP_K];
    double due[MOE_MAX_TOP_K]; /* when the host has computed those that are its own */
};

/* What a caller does; `layer` is the model's. A member may be NULL where a line says what happens
 * then. */
struct moe_pass_ops {
    /* A layer begins. NULL: nobody is told. */
    void (*begin_layer)(void *ctx, uint32_t layer);
    /* Stages of a layer that compute. NULL: there is nothing to compute. `attend` polls the loads
     * (moe_pass_poll) as it goes; for it the driver then polls twice. */
    int (*attend)(void *ctx, uint32_t layer, struct moe_err *err);
    int (*dense)(void *ctx, uint32_t layer, struct moe_err *err);
    /* Computes a MoE layer's feed-forward without the driver, where that can be. NULL: never. */
    bool (*alone)(void *ctx, uint32_t layer);
    /* The request's chosen and weights: `choose` where routers come before attention, and then
     * `route` only shows what they were. `known`: of static routing, before the pass; NULL: a
     * replay has them. */
    int (*choose)(void *ctx, uint32_t layer, struct moe_err *err);
    int (*route)(void *ctx, uint32_t layer, struct moe_err *err);
    void (*known)(void *ctx, uint32_t layer);
    /* What does not depend on the router; *any: there was something. NULL: the pace says. */
    int (*beside)(void *ctx, uint32_t layer, bool *any, struct moe_err *err);
    /* Entries of the request, up to their last segment or that (last). */
    int (*experts)(void *ctx, const uint32_t *which, uint32_t n, bool last, struct moe_err *err);
    int (*combine)(void *ctx, uint32_t layer, struct moe_err *err);

    /* Experts of a layer. `assign` says whether the request's variants count; `ask` is told of the
     * request before the scheduler; `next` and `release` as the scheduler's, and in its place.
     * NULL: nothing is assigned, nobody told, the scheduler asked. */
    bool (*assign)(void *ctx, uint32_t layer);
    int (*ask)(void *ctx, uint32_t layer, struct moe_err *err);
    int (*next)(void *ctx, uint32_t max, uint32_t *which, uint32_t *n, struct moe_err *err);
    void (*release)(void *ctx, uint32_t which);
    int (*poll)(void *ctx, struct moe_err *err);

    /* The host begins to compute an expert; waits until it has, and returns for how many seconds.
     * NULL: it computes nothing, and the pace says how long that takes. */
    int (*begin_on_host)(void *ctx, const struct moe_host_work *work, struct moe_err *err);
    double (*wait_for_host)(void *ctx, const struct moe_host_work *work);

    /* Predictions, nearest layer first; they return how many. By the pass's tokens for `depth` MoE
     * layers from the first one on; by the input of the layer's attention; for `depth` MoE layers
     * after a router, which is always called: it also remembers. NULL, or replaced: a replay's. */
    uint32_t (*predict_first)(void *ctx, uint32_t layer, uint32_t depth,
                              const struct moe_prediction **predictions);
    uint32_t (*predict_before)(void *ctx, uint32_t layer,
                               const struct moe_prediction **predictions);
    uint32_t (*predict)(void *ctx, uint32_t layer, uint32_t depth,
                        const struct moe_prediction **predictions);
    /* Marks what the pass's tokens used last in a layer; false: nothing is known. */
    bool (*expects)(void *ctx, uint32_t layer, uint8_t *marks);
    /* The request's chosen and weights are final: they are remembered with their tokens. */
    void (*note)(void *ctx, uint32_t layer);
    /* What a router would choose by a prediction, degraded (moe_predicted_choice), and its weights.
     * NULL: the best scores, as they are. */
    void (*judge)(void *ctx, uint32_t layer, const struct moe_prediction *prediction,
                  const uint8_t *present, struct moe_early *early);
    /* Fills in a layer's best experts for cache-aware routing, and weighs what came of it. NULL: by
     * a replay's probabilities. */
    void (*rank)(void *ctx, uint32_t layer, struct moe_preference *preference);
    void (*weigh)(void *ctx, uint32_t layer, const struct moe_preference *preference);

    /* The modelled clock, where there is a pace. */
    void (*took)(void *ctx, double seconds);
    double (*clock)(void *ctx);
};

/* Which of a model's layers are MoE layers. */
struct moe_pass_shape {
    uint32_t n_layers, n_encoder; /* MoE layers; of these, the encoder's, which are the first */
    uint32_t n_experts, top_k;
    uint32_t n_model_layers;
    uint32_t n_listed;           /* n_layers, and those of layers that draft */
    const uint32_t *model_layer; /* [n_listed] rising */
    const uint8_t *is_static;    /* [n_listed] */
    bool routes_early;           /* routers come before attention */
};

struct moe_pass {
    const struct moe_pass_ops *ops;
    void *ctx; /* of the operations */
    struct moe_pass_shape shape;
    struct moe_strategy strategy;      /* {0}: nothing is predicted or replaced */
    struct moe_scheduler *scheduler;   /* NULL: every expert is there */
    struct moe_layer_request *request; /* of the layer at work */
    const struct moe_pace *pace;       /* NULL: there is no modelled clock */
    struct moe_replay *replay;         /* its choices and predictions count; NULL: routers' do */
    struct moe_buf *log;               /* receives each decision, a line for a step; NULL: none */

    /* Of the present pass. */
    bool decode;
    uint32_t n_rows, at_once; /* experts that are computed at once, at most MOE_MAX_TOP_K */
    double positions;         /* that its rows attend to */
    struct moe_counts *counts;
    double *host_seconds, *predict_seconds; /* waited for the host; spent on predictions */
    uint32_t moe;                           /* the MoE layer at work */
    bool drafts; /* a layer that drafts is at work: the strategy has no part in it */

    double host_free_at;     /* modelled: when the host has done all it was given */
    double *due;             /* [n_experts] ... and each entry on the host */
    uint8_t *expected;       /* [n_experts] */
    uint8_t *present;        /* [n_experts] */
    uint8_t *precalculated;  /* [n_experts] */
    uint32_t *barred;        /* [n_experts] */
    struct moe_early *early; /* [2] this layer's and the next one's, by layer modulo 2 */
    struct moe_preference preference;
};

/* The arrays that the strategy needs; ops, ctx, shape and strategy are set. */
void moe_pass_carve(struct moe_pass *p, struct moe_arena *arena);
/* Whether a strategy predicts or remembers. */
bool moe_pass_predicts(const struct moe_strategy *strategy);

struct moe_pass_rows {
    uint32_t n, at_once; /* rows; see moe_pass.at_once */
    bool decode, first;  /* first: their sequence begins */
    double positions;
};
/* A pass over rows begins; what becomes of it goes to the counts and seconds. */
void moe_pass_begin(struct moe_pass *p, const struct moe_pass_rows *rows, struct moe_counts *counts,
                    double *host_seconds, double *predict_seconds);
/* Before its layers [begin, end) of the model: what is known and expected of them. */
int moe_pass_expect(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err);
/* Computes them. */
int moe_pass_layers(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err);

/* Takes in what has been loaded and begins loads, without waiting: called during computations. */
int moe_pass_poll(const struct moe_pass *p, struct moe_err *err);

#endif
