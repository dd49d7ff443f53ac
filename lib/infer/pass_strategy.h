/*
 * A strategy's part in a forward pass beside the device's own work: predictions of the experts of
 * layers to come, experts computed on the host, and DAOP's pre-calculation.
 *
 * The feed-forward calls, per MoE layer: choose (before its experts are asked for), requested
 * (after), collect (before outputs are added). Where routers stand before attention, choose and
 * early come before it and requested after it.
 */
#ifndef MOE_INFER_PASS_STRATEGY_H
#define MOE_INFER_PASS_STRATEGY_H

#include "infer/host.h"
#include "infer/session.h"
#include "profile/statistics.h"
#include "sched/placement.h"
#include "sched/select.h"
#include "sched/strategy.h"

struct moe_pass_strategy;

/* For a session that has computed nothing yet. host_slowdown: 0: there is no host; else 1 or more
 * (infer/host.h), on host_threads. statistics: for path predictions, borrowed; else NULL.
 * MOE_ERR_USAGE when the strategy needs what is not there. */
int moe_pass_strategy_open(struct moe_pass_strategy **out, struct moe_session *session,
                           const struct moe_strategy *strategy,
                           const struct moe_statistics *statistics, double host_slowdown,
                           uint32_t host_threads, struct moe_err *err);
void moe_pass_strategy_close(struct moe_pass_strategy *p); /* NULL is fine */
/* Memory that it takes, statistics not counted. */
uint64_t moe_pass_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                 const struct moe_strategy *strategy, uint32_t host_threads);

/* A pass over rows begins; first: the sequence does. */
void moe_pass_strategy_begin(struct moe_pass_strategy *p, bool decode, bool first,
                             const struct moe_row *rows, uint32_t n_rows);
/* Before its layers [begin, end): hands on what the tokens of its rows say of them. */
int moe_pass_strategy_expect(struct moe_pass_strategy *p, uint32_t begin, uint32_t end,
                             uint32_t n_rows, struct moe_err *err);

/* The attention of a model layer with experts begins: hands on predictions by its input. */
int moe_pass_strategy_attending(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err);

/* The router of a model layer has chosen for n_rows rows: the request's chosen and weights become
 * what was pre-calculated, if anything was, or what is preferred (pass_strategy.h), and what the
 * gate makes of them (moe_gate_below).
 * *precalculated: [n_experts], or NULL. Returns how many activations are not the router's choice.
 */
uint32_t moe_pass_strategy_choose(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                  const uint8_t **precalculated);
/* The layer's experts were asked for, and its attention is to come: hands on predictions that need
 * nothing of it. */
int moe_pass_strategy_early(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                            struct moe_err *err);
/* The layer's experts were asked for: the request's kinds say what became of them. Begins host
 * jobs, hands predictions on, begins pre-calculation for the next layer. */
int moe_pass_strategy_requested(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err);
/* Afterwards the outputs of the layer's experts that the host computes lie in the states'
 * expert_out. */
void moe_pass_strategy_collect(struct moe_pass_strategy *p, uint32_t layer);

/*
 * Host jobs: experts that the host computes beside the device (infer/host.h), and when each is
 * done, by the clock or on the modelled clock of a lockstep run.
 */

struct moe_host_jobs {
    struct moe_session *session; /* borrowed */
    struct moe_host *host;       /* NULL: there is none */
    bool any;                    /* begun since the last wait for all */
    uint32_t last_ticket;        /* of these */
    double free_at;              /* lockstep: when the host has done all of them */
};

/* One job: to be waited for once. */
struct moe_host_ticket {
    uint32_t ticket;
    double due; /* lockstep: when it is done on the modelled clock */
};

/* slowdown: as moe_host_open (infer/host.h). */
int moe_host_jobs_open(struct moe_host_jobs *jobs, struct moe_session *session, double slowdown,
                       uint32_t n_threads, struct moe_err *err);
void moe_host_jobs_close(struct moe_host_jobs *jobs); /* waits for those under way */
uint64_t moe_host_jobs_bytes(const struct moe_config *config, uint32_t batch, uint32_t n_threads);

/* One expert for some rows of the states' xn; out: [n][states' stride]. */
struct moe_host_rows {
    const uint32_t *rows; /* NULL: 0..n-1 */
    const float *scales;  /* as moe_expert_compute's; they stay until the job is done */
    uint32_t n;
    float *out;
};
int moe_host_jobs_begin(struct moe_host_jobs *jobs, const struct moe_expert_view *view,
                        const struct moe_host_rows *rows, struct moe_host_ticket *ticket,
                        struct moe_err *err);
/* Returns for how many seconds it waited. */
double moe_host_jobs_wait(struct moe_host_jobs *jobs, const struct moe_host_ticket *ticket);
/* Waits for all, which write into buffers of the pass that began them. */
void moe_host_jobs_wait_all(struct moe_host_jobs *jobs);

/*
 * DAOP's pre-calculation in decode (IV-C): the predicted experts of the next MoE layer replace its
 * router's choice where the host has any of either, and those that lie on the host alone are
 * computed a layer early, on the state of the layer before.
 *
 * Per MoE layer: choose, when the router has chosen; begin, for the next layer; collect, before the
 * outputs are added. Which experts are on the device is decided by sched/placement.h.
 */

/* What was decided for a layer; choice.n 0: nothing. */
struct moe_precalculated_layer {
    uint32_t layer; /* of the model */
    struct moe_predicted choice;
    float weights[MOE_MAX_TOP_K];                  /* of its experts */
    struct moe_host_ticket tickets[MOE_MAX_TOP_K]; /* of those computed on the host */
    float *out;                                    /* [top_k][states' stride] */
};

struct moe_precalculation {
    struct moe_session *session;              /* borrowed */
    struct moe_host_jobs *jobs;               /* borrowed */
    uint32_t replaces;                        /* experts at most (moe_predicted_choice) */
    struct moe_precalculated_layer layers[2]; /* this and the next, by MoE layer modulo 2 */
    uint8_t *precalculated;                   /* [n_experts] */
    uint8_t *present;                         /* [n_experts] */
    uint32_t *order;                          /* [n_experts] */
    float *scratch;                           /* [3 * n_experts] */
};

/* The experts that a router chooses by predicted scores, degraded (moe_predicted_choice; what lies
 * beyond the router's groups replaces nothing), with the weights that it gives those experts. Where
 * none is replaced both are the router's, bit for bit. A replacement has its own share of the
 * scores, a lower one ("even the next-best expert exhibits a lower score", IV-C); where the model
 * normalises its weights (norm_topk), over the experts that are used. choice_bias: the layer's, on
 * the host; NULL: none. scores: [n_experts] as the router gives them; NULL: of a softmax router, of
 * which probabilities suffice. weights: [top_k]; scratch: [3 * n_experts]; barred: [n_experts]. */
void moe_precalculate_choice(const struct moe_config *config, const float *choice_bias,
                             const float *scores, const float *probabilities,
                             const uint8_t *on_device, uint32_t replaces,
                             struct moe_predicted *choice, float *weights, float *scratch,
                             uint32_t *barred);

void moe_precalculation_carve(struct moe_precalculation *p, struct moe_arena *arena,
                              const struct moe_config *config);
/* A pass begins: nothing is decided yet. */
void moe_precalculation_reset(struct moe_precalculation *p);

/* The request's chosen and weights of a model layer become what was decided for it, if anything
 * was, and if the host has an expert of it or of the router's choice (moe_predicted_pays): then
 * *precalculated is [n_experts], else NULL. Returns how many activations are not the router's
 * choice. */
uint32_t moe_precalculation_choose(struct moe_precalculation *p, uint32_t layer, uint32_t n_rows,
                                   const uint8_t **precalculated);
/* Decides the experts of model layer `next` by the prediction and the scores behind it
 * (moe_predicted_router_scores), with that layer's bias for the choice; those on the host begin. */
int moe_precalculation_begin(struct moe_precalculation *p, uint32_t next,
                             const struct moe_prediction *prediction, const float *choice_bias,
                             const float *scores, struct moe_err *err);
/* Copies the outputs of an expert of the layer to `out` when they are done; returns for how many
 * seconds it waited. */
double moe_precalculation_collect(struct moe_precalculation *p, uint32_t layer, uint32_t expert,
                                  float *out);

/*
 * Cache-aware routing in a pass: what the router made of a decoded row, and what the cache keeps,
 * become a choice (sched/select.h) with the weights that the router gives it.
 */

struct moe_prefer_cached {
    struct moe_preference preference;
    float *scores;        /* [router stride] the session's router_row */
    float *probabilities; /* [router stride] */
    float *scratch;       /* [2 * n_experts] */
    uint32_t *best;       /* [n_experts] */
};

void moe_prefer_cached_carve(struct moe_prefer_cached *p, struct moe_arena *arena,
                             const struct moe_config *config);
/* The request's chosen and weights of a model layer for one decoded row become what is preferred,
 * after its router has chosen. Returns how many are not the router's choice. */
uint32_t moe_prefer_cached_choose(struct moe_prefer_cached *p, struct moe_session *s,
                                  uint32_t layer);

#endif
