/* What strategies do in a pass: predictions, pre-calculation, cached experts preferred. */
#include "infer/pass_strategy.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rank.h"
#include "infer/layer_predictor.h"
#include "infer/router.h"
#include "infer/stages.h"
#include "infer/state.h"
#include "sched/select.h"

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
        if (!c->layers[layer].moe || c->layers[layer].static_routing ||
            !moe_follows_layer(s, layer))
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
    if (p->strategy.prefer > 0 && alone && !s->model->config.layers[layer].static_routing)
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
    for (layer++; layer < end && !c->layers[layer].moe;)
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
                         next < moe_config_stack_end(c, layer) && !c->layers[next].static_routing &&
                         c->layers[layer].moe_index + 1u >=
                             c->layers[c->n_encoder].moe_index + p->strategy.precalculate_from;
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

/* ---- Pre-calculation ---- */

void moe_precalculation_carve(struct moe_precalculation *p, struct moe_arena *arena,
                              const struct moe_config *c)
{
    for (int i = 0; i < 2; i++)
        p->layers[i].out = moe_arena_take(arena, c->top_k * moe_padded(c->hidden), sizeof(float));
    p->precalculated = moe_arena_take(arena, c->n_experts, 1);
    p->present = moe_arena_take(arena, c->n_experts, 1);
    p->order = moe_arena_take(arena, c->n_experts, sizeof *p->order);
    p->scratch = moe_arena_take(arena, 3 * (uint64_t)c->n_experts, sizeof *p->scratch);
}

void moe_precalculation_reset(struct moe_precalculation *p)
{
    p->layers[0].choice.n = p->layers[1].choice.n = 0;
}

static struct moe_precalculated_layer *layer_of(struct moe_precalculation *p, uint32_t layer)
{
    return &p->layers[p->session->model->config.layers[layer].moe_index % 2];
}

void moe_precalculate_choice(const struct moe_config *c, const float *choice_bias,
                             const float *scores, const float *probabilities,
                             const uint8_t *on_device, uint32_t replaces,
                             struct moe_predicted *choice, float *weights, float *scratch,
                             uint32_t *barred)
{
    float *p = scratch, *rest = scratch + c->n_experts;
    memcpy(p, scores ? scores : probabilities, c->n_experts * sizeof *p);
    if (scores) {
        moe_route_scores(c, choice_bias, p, rest, choice->experts, weights);
    } else {
        moe_best(p, c->n_experts, c->top_k, choice->experts);
        moe_router_weigh(c, NULL, p, choice->experts, rest, weights);
    }
    moe_router_leave_groups(c, choice_bias, scores, p, rest);
    moe_predicted_choice(p, on_device, c->n_experts, c->top_k, replaces, choice, barred);
    if (choice->substituted > 0)
        moe_router_weigh(c, scores, p, choice->experts, rest, weights);
}

uint32_t moe_precalculation_choose(struct moe_precalculation *p, uint32_t layer, uint32_t n_rows,
                                   const uint8_t **precalculated)
{
    struct moe_session *s = p->session;
    const struct moe_config *c = &s->model->config;
    struct moe_precalculated_layer *l = layer_of(p, layer);
    const struct moe_predicted *choice = &l->choice;
    *precalculated = NULL;
    bool has_choice = choice->n > 0 && l->layer == layer && n_rows == 1;
    if (has_choice)
        s->experts->ops->present(s->experts, layer, p->present);
    if (!has_choice || !moe_predicted_pays(choice, s->request.chosen, c->top_k, p->present)) {
        l->choice.n = 0;
        return 0;
    }
    uint32_t n_other = moe_predicted_others(choice, s->request.chosen, c->top_k);
    memset(p->precalculated, 0, c->n_experts);
    for (uint32_t k = 0; k < choice->n; k++)
        p->precalculated[choice->experts[k]] = choice->on_host[k];
    memcpy(s->request.chosen, choice->experts, choice->n * sizeof *s->request.chosen);
    memcpy(s->request.weights, l->weights, choice->n * sizeof *l->weights);
    *precalculated = p->precalculated;
    return n_other;
}

int moe_precalculation_begin(struct moe_precalculation *p, uint32_t next,
                             const struct moe_prediction *prediction, const float *choice_bias,
                             const float *scores, struct moe_err *err)
{
    struct moe_session *s = p->session;
    const struct moe_experts_ops *experts = s->experts->ops;
    const struct moe_config *c = &s->model->config;
    struct moe_precalculated_layer *l = layer_of(p, next);
    l->layer = next;
    experts->present(s->experts, next, p->present);
    moe_precalculate_choice(c, choice_bias, scores, prediction->scores, p->present, p->replaces,
                            &l->choice, l->weights, p->scratch, p->order);
    moe_router_scale_experts(&s->model->layers[next], l->choice.experts, l->choice.n, l->weights);
    int status = MOE_OK;
    for (uint32_t k = 0; k < l->choice.n && status == MOE_OK; k++) {
        if (!l->choice.on_host[k])
            continue;
        const struct moe_host_rows row = {.scales = c->weigh_inputs ? &l->weights[k] : NULL,
                                          .n = 1,
                                          .out = l->out + k * s->states.stride};
        struct moe_expert_view view;
        experts->host_view(s->experts, UINT32_MAX, next, l->choice.experts[k], &view);
        status = moe_host_jobs_begin(p->jobs, &view, &row, &l->tickets[k], err);
    }
    return status;
}

double moe_precalculation_collect(struct moe_precalculation *p, uint32_t layer, uint32_t expert,
                                  float *out)
{
    const struct moe_precalculated_layer *l = layer_of(p, layer);
    uint64_t stride = p->session->states.stride;
    uint32_t k = 0;
    while (l->choice.experts[k] != expert)
        k++;
    double waited = moe_host_jobs_wait(p->jobs, &l->tickets[k]);
    memcpy(out, l->out + k * stride, stride * sizeof *out);
    return waited;
}

/* ---- Cached experts preferred ---- */

void moe_prefer_cached_carve(struct moe_prefer_cached *p, struct moe_arena *arena,
                             const struct moe_config *c)
{
    uint64_t stride = moe_router_stride(c);
    moe_preference_carve(&p->preference, arena, c->n_moe_layers, c->n_experts, c->top_k);
    p->scores = moe_arena_take(arena, stride, sizeof *p->scores);
    p->probabilities = moe_arena_take(arena, stride, sizeof *p->probabilities);
    p->scratch = moe_arena_take(arena, 2 * (uint64_t)c->n_experts, sizeof *p->scratch);
    p->best = moe_arena_take(arena, c->n_experts, sizeof *p->best);
}

static bool is_among(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

/* The router's choice, then those that would count most; none that it never chooses. */
static void rank(struct moe_prefer_cached *p, const struct moe_config *c, const float *choice_bias,
                 const uint32_t *chosen)
{
    struct moe_preference *to = &p->preference;
    memcpy(p->probabilities, p->scores, c->n_experts * sizeof *p->scores);
    moe_router_probabilities(c, p->probabilities);
    moe_router_leave_groups(c, choice_bias, p->scores, p->probabilities, p->scratch);
    moe_best(p->probabilities, c->n_experts, to->reach, p->best);
    memcpy(to->experts, chosen, c->top_k * sizeof *chosen);
    to->n = c->top_k;
    for (uint32_t i = 0; i < to->reach && to->n < to->reach; i++)
        if (p->probabilities[p->best[i]] >= 0 && !is_among(chosen, c->top_k, p->best[i]))
            to->experts[to->n++] = p->best[i];
    for (uint32_t i = 0; i < to->n; i++)
        to->probabilities[i] = p->probabilities[to->experts[i]];
}

uint32_t moe_prefer_cached_choose(struct moe_prefer_cached *p, struct moe_session *s,
                                  uint32_t layer)
{
    const struct moe_config *c = &s->model->config;
    struct moe_layer_request *r = &s->request;
    rank(p, c, s->model->layers[layer].choice_bias, r->chosen);
    s->experts->ops->cached(s->experts, layer, p->preference.cached);
    uint32_t n_others =
        moe_preference_choose(&p->preference, c->layers[layer].moe_index, r->chosen);
    if (n_others > 0) {
        moe_router_weigh(c, p->scores, p->probabilities, r->chosen, p->scratch, r->weights);
        moe_router_scale_experts(&s->model->layers[layer], r->chosen, c->top_k, r->weights);
    }
    return n_others;
}

/* ---- Jobs of the host ---- */

/* Jobs of a layer, one for each activation at most, and those for the next layer. */
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

uint64_t moe_host_jobs_bytes(const struct moe_config *c, uint32_t batch, uint32_t n_threads)
{
    const struct moe_host_shape shape = host_shape(c, batch, n_threads);
    return moe_host_bytes(c, &shape);
}

int moe_host_jobs_open(struct moe_host_jobs *jobs, struct moe_session *session, double slowdown,
                       uint32_t n_threads, struct moe_err *err)
{
    const struct moe_config *c = &session->model->config;
    const struct moe_host_shape shape = host_shape(c, session->batch, n_threads);
    *jobs = (struct moe_host_jobs){.session = session};
    return moe_host_open(&jobs->host, c, &shape, slowdown, err);
}

void moe_host_jobs_close(struct moe_host_jobs *jobs)
{
    moe_host_close(jobs->host);
}

int moe_host_jobs_begin(struct moe_host_jobs *jobs, const struct moe_expert_view *view,
                        const struct moe_host_rows *rows, struct moe_host_ticket *ticket,
                        struct moe_err *err)
{
    const struct moe_session *s = jobs->session;
    const struct moe_host_job job = {
        .view = *view,
        .x = s->states.xn,
        .x_stride = s->states.stride,
        .rows = rows->rows,
        .scales = rows->scales,
        .n = rows->n,
        .out = rows->out,
        .out_stride = s->states.stride,
    };
    int status = moe_host_submit(jobs->host, &job, &ticket->ticket, err);
    if (status != MOE_OK)
        return status;
    jobs->any = true;
    jobs->last_ticket = ticket->ticket;
    if (s->pace)
        ticket->due = jobs->free_at = moe_pace_host(s->pace, moe_experts_clock(s->experts),
                                                    jobs->free_at, view->variant, rows->n);
    return MOE_OK;
}

double moe_host_jobs_wait(struct moe_host_jobs *jobs, const struct moe_host_ticket *ticket)
{
    struct moe_session *s = jobs->session;
    double waited = moe_host_wait(jobs->host, ticket->ticket);
    if (!s->pace)
        return waited;
    waited = ticket->due - moe_experts_clock(s->experts);
    if (waited <= 0)
        return 0;
    moe_lockstep_took(s, waited);
    return waited;
}

void moe_host_jobs_wait_all(struct moe_host_jobs *jobs)
{
    if (jobs->any)
        moe_host_wait(jobs->host, jobs->last_ticket);
    jobs->any = false;
}
