#include "run/pass_strategy.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "experts/host.h"
#include "run/layer_predictor.h"
#include "run/lockstep.h"
#include "run/predict_device.h"
#include "run/workspace.h"
#include "sched/placement.h"

/* A job of the host. */
struct promise {
    uint32_t ticket;
    double due; /* lockstep: when it is done on the modelled clock */
};

/* What was foreseen for a layer; foreseen.n 0: nothing. */
struct early {
    uint32_t layer; /* of the model */
    struct moe_predicted foreseen;
    struct promise promises[MOE_MAX_TOP_K]; /* of those computed on the host */
    float *out;                             /* [top_k][hidden_stride] */
};

struct moe_pass_strategy {
    struct moe_session *session;
    struct moe_strategy strategy;
    struct moe_layer_predictor *foresight; /* NULL: nothing predicts */
    struct moe_host *host;                 /* NULL: there is none */
    bool decode;
    bool has_jobs;            /* the host was asked for something since the pass began */
    uint32_t last_ticket;     /* of these jobs */
    struct promise *promises; /* [n_experts] of the layer's host jobs, by entry */
    double host_free_at;      /* lockstep: when the host has done all it was asked for */

    struct early early[2];  /* this layer's and the next one's, by MoE layer modulo 2 */
    uint8_t *precalculated; /* [n_experts] */
    uint8_t *present;       /* [n_experts] */
    uint32_t *order;        /* [n_experts] */
};

/* One block; NULL on an arena that only counts. */
static struct moe_pass_strategy *carve(struct moe_arena *arena, const struct moe_config *c)
{
    uint64_t stride = moe_round_up(c->hidden, MOE_PANEL_ROWS); /* of the workspace's rows */
    struct moe_pass_strategy *place = moe_arena_take(arena, 1, sizeof *place), a = {0};
    a.promises = moe_arena_take(arena, c->n_experts, sizeof *a.promises);
    for (int i = 0; i < 2; i++)
        a.early[i].out = moe_arena_take(arena, c->top_k * stride, sizeof(float));
    a.precalculated = moe_arena_take(arena, c->n_experts, 1);
    a.present = moe_arena_take(arena, c->n_experts, 1);
    a.order = moe_arena_take(arena, c->n_experts, sizeof *a.order);
    if (place)
        *place = a;
    return place;
}

/* Jobs of this layer, one for each activation at most, and ahead of the next. */
static struct moe_host_shape host_shape(const struct moe_config *c, uint32_t batch,
                                        uint32_t n_threads)
{
    return (struct moe_host_shape){
        .max_rows = batch,
        .max_jobs = c->n_experts + c->top_k,
        .max_rows_under_way = ((uint64_t)batch + 1) * c->top_k,
        .n_threads = n_threads,
    };
}

uint64_t moe_pass_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                 const struct moe_strategy *strategy, uint32_t host_threads)
{
    struct moe_arena arena = {0};
    carve(&arena, &model->config);
    uint64_t bytes = arena.used;
    if (strategy->predict != MOE_PREDICT_BY_NOTHING)
        bytes += moe_layer_predictor_bytes(model, batch, strategy);
    if (strategy->needs_host) {
        const struct moe_host_shape shape = host_shape(&model->config, batch, host_threads);
        bytes += moe_host_bytes(&model->config, &shape);
    }
    return bytes;
}

int moe_pass_strategy_open(struct moe_pass_strategy **out, struct moe_session *session,
                           const struct moe_strategy *strategy,
                           const struct moe_statistics *statistics, double host_slowdown,
                           uint32_t host_threads, struct moe_err *err)
{
    *out = NULL;
    if (strategy->needs_host && !(host_slowdown >= 1))
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s computes experts beside the device: it needs a second device "
                        "(--device test:SPEED,LINK rehearses one)",
                        strategy->name);
    const struct moe_config *c = &session->model->config;
    struct moe_arena arena = {0};
    carve(&arena, c);
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, err), .size = arena.used};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_pass_strategy *a = carve(&arena, c);
    a->session = session;
    a->strategy = *strategy;
    int status = MOE_OK;
    if (strategy->predict != MOE_PREDICT_BY_NOTHING)
        status = moe_layer_predictor_open(&a->foresight, session, strategy, statistics, err);
    if (status == MOE_OK && a->foresight)
        status = moe_predict_device_choose(session, a->foresight, err);
    const struct moe_host_shape shape = host_shape(c, session->batch, host_threads);
    if (status == MOE_OK && strategy->needs_host)
        status = moe_host_open(&a->host, c, &shape, host_slowdown, err);
    if (status != MOE_OK) {
        moe_pass_strategy_close(a);
        return status;
    }
    *out = a;
    return MOE_OK;
}

void moe_pass_strategy_close(struct moe_pass_strategy *a)
{
    if (!a)
        return;
    moe_host_close(a->host); /* first: its jobs write into buffers below */
    moe_layer_predictor_close(a->foresight);
    free(a); /* the first of its block */
}

void moe_pass_strategy_begin(struct moe_pass_strategy *a, bool decode, bool first)
{
    a->decode = decode;
    /* A pass that ended in an error has left jobs behind, which write into buffers of this one. */
    if (a->has_jobs)
        moe_host_wait(a->host, a->last_ticket);
    a->has_jobs = false;
    a->early[0].foreseen.n = a->early[1].foreseen.n = 0;
    if (first && a->foresight)
        moe_layer_predictor_begin_sequence(a->foresight);
}

/* ---- The layer's own experts ---- */

/* The predicted probabilities as the model would use them for weights. */
static void set_weights(const struct moe_config *c, const float *scores, float *weights)
{
    float sum = 0;
    for (uint32_t k = 0; k < c->top_k; k++)
        sum += scores[k];
    for (uint32_t k = 0; k < c->top_k; k++)
        weights[k] = (c->norm_topk || c->router_kind == MOE_ROUTER_TOPK_SOFTMAX ? scores[k] / sum
                                                                                : scores[k]) *
                     c->routed_scale;
}

static struct early *early_of(struct moe_pass_strategy *a, uint32_t layer)
{
    return &a->early[moe_config_moe_layers(&a->session->model->config, layer) % 2];
}

uint32_t moe_pass_strategy_choose(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_rows,
                                  const uint8_t **precalculated)
{
    const struct moe_config *c = &a->session->model->config;
    struct moe_workspace *w = a->session->work;
    struct early *early = early_of(a, layer);
    const struct moe_predicted *f = &early->foreseen;
    *precalculated = NULL;
    if (f->n == 0 || early->layer != layer || n_rows != 1) {
        early->foreseen.n = 0;
        return 0;
    }
    uint32_t n_other = moe_predicted_others(f, w->chosen, c->top_k);
    memset(a->precalculated, 0, c->n_experts);
    for (uint32_t k = 0; k < f->n; k++)
        a->precalculated[f->experts[k]] = f->on_host[k];
    memcpy(w->chosen, f->experts, f->n * sizeof *w->chosen);
    set_weights(c, f->scores, w->weights);
    *precalculated = a->precalculated;
    return n_other;
}

static int submit(struct moe_pass_strategy *a, const struct moe_host_job *job,
                  struct promise *promise, struct moe_err *err)
{
    const struct moe_session *s = a->session;
    int status = moe_host_submit(a->host, job, &promise->ticket, err);
    if (status != MOE_OK)
        return status;
    a->has_jobs = true;
    a->last_ticket = promise->ticket;
    if (s->pace)
        promise->due = a->host_free_at = moe_pace_host(s->pace, moe_experts_clock(s->experts),
                                                       a->host_free_at, job->view.variant, job->n);
    return MOE_OK;
}

/* Waits for a job; returns for how long. */
static double keep(struct moe_pass_strategy *a, const struct promise *promise)
{
    double waited = moe_host_wait(a->host, promise->ticket);
    return a->session->pace ? moe_lockstep_wait(a->session, promise->due) : waited;
}

/* Experts that the host computes now, on this layer's state. */
static int begin_host_jobs(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_active,
                           struct moe_err *err)
{
    struct moe_session *s = a->session;
    struct moe_workspace *w = s->work;
    int status = MOE_OK;
    for (uint32_t i = 0; i < n_active && status == MOE_OK; i++) {
        if (w->kinds[i] != MOE_ENTRY_HOST)
            continue;
        struct moe_host_job job = {
            .x = w->xn,
            .x_stride = w->hidden_stride,
            .rows = w->expert_rows + w->first[i],
            .n = w->n_rows[i],
            .out = w->expert_out + w->first[i] * w->hidden_stride,
            .out_stride = w->hidden_stride,
        };
        s->experts->ops->host_view(s->experts, i, layer, w->active[i], &job.view);
        status = submit(a, &job, &a->promises[i], err);
    }
    return status;
}

/* ---- The next layer ---- */

static uint32_t next_moe_layer(const struct moe_config *c, uint32_t layer)
{
    for (layer++; layer < c->n_layers && !c->layer_is_moe[layer];)
        layer++;
    return layer;
}

/* DAOP IV-C: decides the next layer's experts; those on the host begin on this layer's state. */
static int precalculate(struct moe_pass_strategy *a, uint32_t layer, const struct moe_prediction *p,
                        struct moe_err *err)
{
    struct moe_session *s = a->session;
    struct moe_workspace *w = s->work;
    const struct moe_config *c = &s->model->config;
    uint32_t next = next_moe_layer(c, layer);
    struct early *early = early_of(a, next);
    early->layer = next;
    s->experts->ops->present(s->experts, next, a->present);
    moe_predicted_choice(p->scores, a->present, c->n_experts, c->top_k, a->strategy.degrade,
                         &early->foreseen, a->order);
    int status = MOE_OK;
    for (uint32_t k = 0; k < early->foreseen.n && status == MOE_OK; k++) {
        if (!early->foreseen.on_host[k])
            continue;
        struct moe_host_job job = {
            .x = w->xn,
            .x_stride = w->hidden_stride,
            .n = 1,
            .out = early->out + k * w->hidden_stride,
            .out_stride = w->hidden_stride,
        };
        s->experts->ops->host_view(s->experts, UINT32_MAX, next, early->foreseen.experts[k],
                                   &job.view);
        status = submit(a, &job, &early->promises[k], err);
    }
    return status;
}

int moe_pass_strategy_requested(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_rows,
                                uint32_t n_active, struct moe_err *err)
{
    struct moe_session *s = a->session;
    const struct moe_prediction *predictions;
    int status = a->host ? begin_host_jobs(a, layer, n_active, err) : MOE_OK;
    if (status != MOE_OK || !a->foresight)
        return status;
    const struct moe_config *c = &s->model->config;
    bool early = a->strategy.precalculate && a->decode && n_rows == 1 &&
                 next_moe_layer(c, layer) < c->n_layers &&
                 moe_config_moe_layers(c, layer) + 1 >= a->strategy.precalculate_from;
    uint32_t depth = early ? 1 : s->experts->ops->wants_prediction(s->experts, layer);
    double started = moe_seconds();
    /* The token before is remembered even where nothing is asked for. */
    uint32_t n = moe_predict_layers(a->foresight, layer, n_rows, depth, &predictions);
    moe_lockstep_predict(s, n);
    if (n > 0 && early)
        status = precalculate(a, layer, predictions, err);
    else if (n > 0)
        status = s->experts->ops->predicted(s->experts, predictions, n, err);
    s->phase->predict_seconds += moe_seconds() - started;
    return status;
}

void moe_pass_strategy_collect(struct moe_pass_strategy *a, uint32_t layer, uint32_t n_active)
{
    struct moe_workspace *w = a->session->work;
    const struct early *early = early_of(a, layer);
    double waited = 0;
    for (uint32_t i = 0; i < n_active; i++) {
        float *out = w->expert_out + w->first[i] * w->hidden_stride;
        if (w->kinds[i] == MOE_ENTRY_HOST) {
            waited += keep(a, &a->promises[i]);
        } else if (w->kinds[i] == MOE_ENTRY_PRECALCULATED) {
            uint32_t k = 0;
            while (early->foreseen.experts[k] != w->active[i])
                k++;
            waited += keep(a, &early->promises[k]);
            memcpy(out, early->out + k * w->hidden_stride, w->hidden_stride * sizeof *out);
        }
    }
    a->session->phase->host_seconds += waited;
}
