#include "run/pass_strategy.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "layer/layer_predictor.h"
#include "layer/lockstep.h"
#include "layer/stages.h"
#include "run/host_jobs.h"
#include "run/precalculate.h"
#include "run/prefer_cached.h"
#include "sched/precision.h"

struct moe_pass_strategy {
    struct moe_session *session;
    struct moe_strategy strategy;
    bool decode;
    struct moe_layer_predictor *predictor; /* NULL: nothing predicts or is remembered */
    uint8_t *expected;                     /* [n_experts] */
    struct moe_host_jobs jobs;
    struct moe_host_ticket *tickets; /* [n_experts] of the layer's own host jobs, by entry */
    struct moe_precalculation precalculation;
    struct moe_prefer_cached prefer;
};

/* One block; NULL on an arena that only counts. */
static struct moe_pass_strategy *carve(struct moe_arena *arena, const struct moe_config *c,
                                       const struct moe_strategy *strategy)
{
    struct moe_pass_strategy *place = moe_arena_take(arena, 1, sizeof *place), p = {0};
    p.tickets = moe_arena_take(arena, c->n_experts, sizeof *p.tickets);
    p.expected = moe_arena_take(arena, c->n_experts, sizeof *p.expected);
    moe_precalculation_carve(&p.precalculation, arena, c);
    if (strategy->prefer > 0)
        moe_prefer_cached_carve(&p.prefer, arena, c);
    if (place)
        *place = p;
    return place;
}

static bool has_predictor(const struct moe_strategy *strategy)
{
    return strategy->predict != MOE_PREDICT_BY_NOTHING || moe_strategy_recalls(strategy);
}

uint64_t moe_pass_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                 const struct moe_strategy *strategy, uint32_t host_threads)
{
    struct moe_arena arena = {0};
    carve(&arena, &model->config, strategy);
    uint64_t bytes = arena.used;
    if (has_predictor(strategy))
        bytes += moe_layer_predictor_bytes(model, batch, strategy);
    if (strategy->needs_host)
        bytes += moe_host_jobs_bytes(&model->config, batch, host_threads);
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
    struct moe_arena arena = {0};
    carve(&arena, &session->model->config, strategy);
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, err), .size = arena.used};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_pass_strategy *p = carve(&arena, &session->model->config, strategy);
    p->session = session;
    p->strategy = *strategy;
    p->precalculation.session = session;
    p->precalculation.jobs = &p->jobs;
    p->precalculation.replaces = moe_strategy_replaces(strategy);
    p->prefer.preference.lambda = strategy->prefer;
    p->prefer.preference.keeps = strategy->prefer_keeps;
    session->router_row = p->prefer.scores;
    int status = MOE_OK;
    if (has_predictor(strategy))
        status = moe_layer_predictor_open(&p->predictor, session, strategy, statistics, err);
    if (status == MOE_OK && p->predictor && session->stages->choose_predict_device)
        status = session->stages->choose_predict_device(session, p->predictor, err);
    if (status == MOE_OK && strategy->needs_host)
        status = moe_host_jobs_open(&p->jobs, session, host_slowdown, host_threads, err);
    if (status != MOE_OK) {
        moe_pass_strategy_close(p);
        return status;
    }
    *out = p;
    return MOE_OK;
}

void moe_pass_strategy_close(struct moe_pass_strategy *p)
{
    if (!p)
        return;
    moe_host_jobs_close(&p->jobs); /* first: its jobs write into buffers of this block */
    moe_layer_predictor_close(p->predictor);
    p->session->router_row = NULL;
    free(p); /* the first of its block */
}

void moe_pass_strategy_begin(struct moe_pass_strategy *p, bool decode, bool first,
                             const struct moe_row *rows, uint32_t n_rows)
{
    p->decode = decode;
    moe_host_jobs_wait_all(&p->jobs); /* a pass that ended in an error has left some */
    moe_precalculation_reset(&p->precalculation);
    if (first && p->predictor)
        moe_layer_predictor_begin_sequence(p->predictor);
    if (first && p->strategy.prefer > 0)
        moe_preference_begin_sequence(&p->prefer.preference);
    if (p->predictor)
        moe_layer_predictor_begin_pass(p->predictor, rows, n_rows);
}

/* What the tokens used last stays until it is used again. A prompt's tokens used nearly all. */
static void protect_expected(struct moe_pass_strategy *p, uint32_t begin, uint32_t end)
{
    struct moe_session *s = p->session;
    const struct moe_config *c = &s->model->config;
    for (uint32_t layer = begin; layer < end; layer++) {
        if (!c->layer_is_moe[layer] || c->layer_is_static[layer] || !moe_follows_layer(s, layer))
            continue;
        memset(p->expected, 0, c->n_experts);
        if (moe_layer_predictor_expects(p->predictor, layer, p->expected))
            s->experts->ops->expected(s->experts, layer, p->expected);
    }
}

int moe_pass_strategy_expect(struct moe_pass_strategy *p, uint32_t begin, uint32_t end,
                             uint32_t n_rows, struct moe_err *err)
{
    struct moe_session *s = p->session;
    const struct moe_experts_ops *ops = s->experts->ops;
    const struct moe_prediction *predictions;
    if (!moe_strategy_recalls(&p->strategy) || begin == end || !ops->wants_first)
        return MOE_OK;
    if (p->strategy.protect_tokens && p->decode)
        protect_expected(p, begin, end);
    uint32_t depth = ops->wants_first(s->experts, begin);
    if (depth == 0)
        return MOE_OK;
    double started = moe_seconds();
    int status = MOE_OK;
    uint32_t n = moe_predict_first(p->predictor, begin, n_rows, depth, &predictions);
    if (s->pace)
        moe_lockstep_took(s, s->pace->predict * n);
    if (n > 0)
        status = ops->predicted(s->experts, predictions, n, err);
    s->phase->predict_seconds += moe_seconds() - started;
    return status;
}

uint32_t moe_pass_strategy_choose(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                  const uint8_t **precalculated)
{
    struct moe_session *s = p->session;
    uint32_t n_other = moe_precalculation_choose(&p->precalculation, layer, n_rows, precalculated);
    bool alone = p->decode && n_rows == 1;
    if (p->strategy.prefer > 0 && alone && !s->model->config.layer_is_static[layer])
        n_other += moe_prefer_cached_choose(&p->prefer, s, layer);
    if (p->strategy.gate_below > 0 && alone)
        moe_gate_below(s->request.weights, s->model->config.top_k, p->strategy.gate_below);
    if (p->predictor)
        moe_layer_predictor_note(p->predictor, layer, n_rows);
    return n_other;
}

/* Experts that the host computes now, on this layer's states. */
static int begin_host_jobs(struct moe_pass_strategy *p, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = p->session;
    const struct moe_layer_request *r = &s->request;
    int status = MOE_OK;
    for (uint32_t i = 0; i < r->n_entries && status == MOE_OK; i++) {
        if (r->kinds[i] != MOE_ENTRY_HOST)
            continue;
        const struct moe_host_rows rows = {
            .rows = r->rows + r->first[i],
            .scales = r->scales ? r->scales + r->first[i] : NULL,
            .n = r->n_rows[i],
            .out = s->states.expert_out + r->first[i] * s->states.stride,
        };
        struct moe_expert_view view;
        s->experts->ops->host_view(s->experts, i, layer, r->experts[i], &view);
        status = moe_host_jobs_begin(&p->jobs, &view, &rows, &p->tickets[i], err);
    }
    return status;
}

/* Of the same stack; its end where there is none. */
static uint32_t next_moe_layer(const struct moe_config *c, uint32_t layer)
{
    uint32_t end = moe_config_stack_end(c, layer);
    for (layer++; layer < end && !c->layer_is_moe[layer];)
        layer++;
    return layer;
}

int moe_pass_strategy_attending(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err)
{
    struct moe_session *s = p->session;
    const struct moe_prediction *predictions;
    int status = MOE_OK;
    if (!p->predictor || !moe_layer_predictor_by_attention(p->predictor) ||
        !moe_follows_layer(s, layer) || !s->experts->ops->wants_prediction(s->experts, layer))
        return MOE_OK;
    double started = moe_seconds();
    uint32_t n = moe_predict_before_attention(p->predictor, layer, n_rows, &predictions);
    if (s->pace)
        moe_lockstep_took(s, s->pace->predict * n);
    if (n > 0)
        status = s->experts->ops->predicted(s->experts, predictions, n, err);
    s->phase->predict_seconds += moe_seconds() - started;
    return status;
}

/* Predicts layers to come by what this layer's router chose, or what it chose by. */
static int predict(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                   struct moe_err *err)
{
    struct moe_session *s = p->session;
    const struct moe_config *c = &s->model->config;
    const struct moe_prediction *predictions;
    int status = MOE_OK;
    uint32_t next = next_moe_layer(c, layer);
    bool precalculates = p->strategy.precalculate && p->decode && n_rows == 1 &&
                         next < moe_config_stack_end(c, layer) && !c->layer_is_static[next] &&
                         moe_config_moe_layers(c, layer) + 1 >=
                             moe_config_moe_layers(c, c->n_encoder) + p->strategy.precalculate_from;
    uint32_t depth = precalculates ? 1 : s->experts->ops->wants_prediction(s->experts, layer);
    double started = moe_seconds();
    /* The token before is remembered even where nothing is asked for. */
    uint32_t n = moe_predict_layers(p->predictor, layer, n_rows, depth, &predictions);
    if (s->pace)
        moe_lockstep_took(s, s->pace->predict * n);
    if (n > 0 && precalculates)
        status = moe_precalculation_begin(&p->precalculation, next, predictions,
                                          moe_predicted_choice_bias(p->predictor, next),
                                          moe_predicted_router_scores(p->predictor), err);
    else if (n > 0)
        status = s->experts->ops->predicted(s->experts, predictions, n, err);
    s->phase->predict_seconds += moe_seconds() - started;
    return status;
}

int moe_pass_strategy_early(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                            struct moe_err *err)
{
    if (!p->predictor || !moe_strategy_predicts_early(&p->strategy))
        return MOE_OK;
    return moe_layer_predictor_by_attention(p->predictor)
               ? moe_pass_strategy_attending(p, layer, n_rows, err)
               : predict(p, layer, n_rows, err);
}

int moe_pass_strategy_requested(struct moe_pass_strategy *p, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err)
{
    const struct moe_config *c = &p->session->model->config;
    int status = p->jobs.host ? begin_host_jobs(p, layer, err) : MOE_OK;
    bool predicted = c->router_early && moe_strategy_predicts_early(&p->strategy);
    if (status != MOE_OK || predicted || !p->predictor ||
        moe_layer_predictor_by_attention(p->predictor))
        return status;
    return predict(p, layer, n_rows, err);
}

void moe_pass_strategy_collect(struct moe_pass_strategy *p, uint32_t layer)
{
    struct moe_session *s = p->session;
    const struct moe_layer_request *r = &s->request;
    double waited = 0;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        float *out = s->states.expert_out + r->first[i] * s->states.stride;
        if (r->kinds[i] == MOE_ENTRY_HOST)
            waited += moe_host_jobs_wait(&p->jobs, &p->tickets[i]);
        else if (r->kinds[i] == MOE_ENTRY_PRECALCULATED)
            waited += moe_precalculation_collect(&p->precalculation, layer, r->experts[i], out);
    }
    s->phase->host_seconds += waited;
}
