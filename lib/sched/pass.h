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

/* One expert that the host computes: an entry of the layer's request; or, a layer early and for one
 * row, one of the experts predicted for a layer (struct moe_early). */
struct moe_host_work {
    uint32_t layer, moe; /* of the model; its index among MoE layers */
    uint32_t expert, variant, n_rows;
    bool early;
    uint32_t place;       /* index of the entry; early: in the predicted choice */
    uint32_t entry;       /* set when it is waited for */
    const float *weights; /* early: the row's weight of the expert */
};

/* Experts predicted for a layer, which may take the place of its router's choice (DAOP IV-C);
 * choice.n 0: none. */
struct moe_early {
    uint32_t moe;
    struct moe_predicted choice;
    float weights[MOE_MAX_TOP_K];
    double due[MOE_MAX_TOP_K]; /* modelled: when the host has computed each of its experts */
};

/* The caller's operations; `layer` is the model's. Members may be NULL where a comment says so. */
struct moe_pass_ops {
    /* Called when a layer begins. May be NULL. */
    void (*begin_layer)(void *ctx, uint32_t layer);
    /* The stages that compute, here and below. NULL: there is nothing to compute. `attend` calls
     * moe_pass_poll now and then; where it is NULL the driver does, twice. */
    int (*attend)(void *ctx, uint32_t layer, struct moe_err *err);
    int (*dense)(void *ctx, uint32_t layer, struct moe_err *err);
    /* Computes a MoE layer's whole feed-forward and returns true, where it needs no decision. NULL:
     * never. */
    bool (*alone)(void *ctx, uint32_t layer);
    /* Set the request's chosen and weights: `route` after attention, or `choose` before it where
     * routers come first (`route` then only shows them to observers). `known` sets those of a layer
     * with static routing before the pass; NULL: the replay's are used. */
    int (*choose)(void *ctx, uint32_t layer, struct moe_err *err);
    int (*route)(void *ctx, uint32_t layer, struct moe_err *err);
    void (*known)(void *ctx, uint32_t layer);
    /* Computes what does not depend on the router; *any: the layer has that. NULL: it has if the
     * pace does. */
    int (*beside)(void *ctx, uint32_t layer, bool *any, struct moe_err *err);
    /* Computes entries of the request: the part that needs all segments but the last; then, with
     * `last`, the rest. */
    int (*experts)(void *ctx, const uint32_t *which, uint32_t n, bool last, struct moe_err *err);
    int (*combine)(void *ctx, uint32_t layer, struct moe_err *err);

    /* Experts, each may be NULL. `assign` chooses the request's variants, or returns false. `ask`
     * sees the request before the scheduler does. `next`, `release` and `poll` are called in place
     * of the scheduler's. */
    bool (*assign)(void *ctx, uint32_t layer);
    int (*ask)(void *ctx, uint32_t layer, struct moe_err *err);
    int (*next)(void *ctx, uint32_t max, uint32_t *which, uint32_t *n, struct moe_err *err);
    void (*release)(void *ctx, uint32_t which);
    int (*poll)(void *ctx, struct moe_err *err);

    /* Has the host begin an expert; waits until the host has computed it, and returns the seconds
     * waited. NULL: only the pace says how long it takes. */
    int (*begin_on_host)(void *ctx, const struct moe_host_work *work, struct moe_err *err);
    double (*wait_for_host)(void *ctx, const struct moe_host_work *work);

    /* Make predictions, nearest layer first, and return how many: by the pass's tokens, for `depth`
     * MoE layers from `layer` on; by the input of the layer's attention; after the layer's router,
     * for the `depth` next MoE layers (called after every router: it also remembers). A replay's
     * predictions replace them; NULL where there is a replay. */
    uint32_t (*predict_first)(void *ctx, uint32_t layer, uint32_t depth,
                              const struct moe_prediction **predictions);
    uint32_t (*predict_before)(void *ctx, uint32_t layer,
                               const struct moe_prediction **predictions);
    uint32_t (*predict)(void *ctx, uint32_t layer, uint32_t depth,
                        const struct moe_prediction **predictions);
    /* Marks the experts that the pass's tokens used last in a layer; false: none are known. */
    bool (*expects)(void *ctx, uint32_t layer, uint8_t *marks);
    /* Remembers the request's chosen and weights, which are final, with their tokens. */
    void (*note)(void *ctx, uint32_t layer);
    /* Sets early->choice and weights: what the layer's router would choose by the prediction,
     * degraded (moe_predicted_choice). NULL: the best scores, which are the weights. */
    void (*judge)(void *ctx, uint32_t layer, const struct moe_prediction *prediction,
                  const uint8_t *present, struct moe_early *early);
    /* Cache-aware routing: fills in the layer's best experts; weighs those that were preferred.
     * NULL: the replay's experts and probabilities. */
    void (*rank)(void *ctx, uint32_t layer, struct moe_preference *preference);
    void (*weigh)(void *ctx, uint32_t layer, const struct moe_preference *preference);

    /* Where other processes have experts: has them begin those of the request that are theirs;
     * takes in outputs that have come, waiting a moment where there are none (*all: no more are
     * missing); hands predictions on. NULL: this process only computes its own. */
    int (*begin_elsewhere)(void *ctx, struct moe_err *err);
    int (*collect)(void *ctx, bool *all, struct moe_err *err);
    int (*hint)(void *ctx, const struct moe_prediction *predictions, uint32_t n,
                struct moe_err *err);

    /* Advance and read the modelled clock; called where there is a pace. */
    void (*took)(void *ctx, double seconds);
    double (*clock)(void *ctx);
};

/* Which of a model's layers are MoE layers. */
struct moe_pass_shape {
    uint32_t n_layers, n_encoder; /* MoE layers; of these, the encoder's, which are the first */
    struct moe_loop loop;         /* of them: visits are layers here */
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
    const uint8_t *holders; /* [n_listed][n_experts][2] the processes that have each expert
                               (share.h); NULL: this */
    uint8_t self;           /* ... which is this one */

    /* Of the present pass. */
    bool decode;
    uint32_t n_rows, at_once; /* experts that are computed at once, at most MOE_MAX_TOP_K */
    double positions;         /* that its rows attend to */
    struct moe_counts *counts;
    double *host_seconds, *predict_seconds; /* waited for the host; spent on predictions */
    uint32_t moe;                           /* the MoE layer at work */
    bool drafts; /* the layer at work drafts: the strategy does not apply */

    double host_free_at;     /* modelled: when the host has finished all work */
    double *due;             /* [n_experts] ... and each entry that it computes */
    uint8_t *expected;       /* [n_experts] */
    uint8_t *present;        /* [n_experts] */
    uint8_t *precalculated;  /* [n_experts] */
    uint32_t *barred;        /* [n_experts] */
    struct moe_early *early; /* [2] this layer's and the next one's, by layer modulo 2 */
    struct moe_preference preference;
};

/* The model's layer that owns a MoE layer's experts. */
static inline uint32_t moe_pass_owner(const struct moe_pass *p, uint32_t moe)
{
    return p->shape.model_layer[moe_loop_owner(&p->shape.loop, moe)];
}

/* Takes the arrays that the strategy needs; shape and strategy are set. */
void moe_pass_carve(struct moe_pass *p, struct moe_arena *arena);
/* Whether a strategy predicts or remembers. */
bool moe_pass_predicts(const struct moe_strategy *strategy);

struct moe_pass_rows {
    uint32_t n, at_once; /* rows; see moe_pass.at_once */
    bool decode, first;  /* first: their sequence begins */
    double positions;
};
/* Begins a pass over rows; its counts and seconds are added to these. */
void moe_pass_begin(struct moe_pass *p, const struct moe_pass_rows *rows, struct moe_counts *counts,
                    double *host_seconds, double *predict_seconds);
/* Tells the scheduler what is known and expected of the model's layers [begin, end), before them.
 */
int moe_pass_expect(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err);
/* Computes them. */
int moe_pass_layers(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err);

/* Computes this process's experts of one MoE layer, whose choices are in the request: for a process
 * that has some of them and nothing else of the model. */
int moe_pass_own_experts(struct moe_pass *p, uint32_t moe, struct moe_err *err);

/* Takes in loads that have ended and begins others, without waiting: for use during computations.
 */
int moe_pass_poll(const struct moe_pass *p, struct moe_err *err);

#endif
