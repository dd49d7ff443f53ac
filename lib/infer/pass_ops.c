/*
 * The runner's operations of a pass: a layer's stages, experts from their provider, the host,
 * predictions.
 */
#include "infer/pass_ops.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "infer/host.h"
#include "infer/layer_predictor.h"
#include "infer/router.h"
#include "infer/stages.h"
#include "ranks/ranks.h"

/* What a session keeps for its strategy: a predictor, a host, and room for both. */
struct moe_strategy_work {
    struct moe_layer_predictor *predictor; /* NULL: nothing predicts or is remembered */
    struct moe_host *host;                 /* NULL: there is none */
    bool asked;                            /* jobs have begun since the last wait for all */
    uint32_t last_ticket;                  /* of these */
    uint32_t *tickets;                     /* [n_experts] of the layer's own jobs, by entry */
    struct early_jobs {
        uint32_t tickets[MOE_MAX_TOP_K]; /* by predicted choice */
        float *out;                      /* [top_k][states' stride] */
    } early[2];                          /* this layer's and the next one's, by layer modulo 2 */
    float *scratch;                      /* [3 * n_experts] */
    float *router_row;                   /* [router stride] the session's router_row */
    float *probabilities;                /* [router stride] */
    uint32_t *best;                      /* [n_experts] */
};

/* ---- Memory, open and close ---- */

static void shape_pass(struct moe_pass *p, const struct moe_config *c,
                       const struct moe_strategy *strategy)
{
    p->strategy = *strategy;
    p->shape.n_layers = c->n_moe_layers;
    p->shape.n_experts = c->n_experts;
    p->shape.top_k = c->top_k;
}

/* One block, which holds the driver's arrays too; NULL on an arena that only counts. */
static struct moe_strategy_work *carve_work(struct moe_arena *arena, const struct moe_config *c,
                                            struct moe_pass *pass)
{
    struct moe_strategy_work *place = moe_arena_take(arena, 1, sizeof *place), w = {0};
    moe_pass_carve(pass, arena);
    w.tickets = moe_arena_take(arena, c->n_experts, sizeof *w.tickets);
    for (int i = 0; i < 2; i++)
        w.early[i].out = moe_arena_take(arena, c->top_k * moe_padded(c->hidden), sizeof(float));
    w.scratch = moe_arena_take(arena, 3 * (uint64_t)c->n_experts, sizeof *w.scratch);
    if (pass->strategy.prefer > 0) {
        uint64_t stride = moe_router_stride(c);
        w.router_row = moe_arena_take(arena, stride, sizeof *w.router_row);
        w.probabilities = moe_arena_take(arena, stride, sizeof *w.probabilities);
        w.best = moe_arena_take(arena, c->n_experts, sizeof *w.best);
    }
    if (place)
        *place = w;
    return place;
}

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

uint64_t moe_session_strategy_bytes(const struct moe_model *model, uint32_t batch,
                                    const struct moe_strategy *strategy, uint32_t host_threads)
{
    const struct moe_config *c = &model->config;
    const struct moe_host_shape host = host_shape(c, batch, host_threads);
    struct moe_arena arena = {0};
    struct moe_pass pass = {0};
    shape_pass(&pass, c, strategy);
    carve_work(&arena, c, &pass);
    return arena.used +
           (moe_pass_predicts(strategy) ? moe_layer_predictor_bytes(model, batch, strategy) : 0) +
           (strategy->needs_host ? moe_host_bytes(c, &host) : 0);
}

int moe_session_take_strategy(struct moe_session *s, const struct moe_strategy *strategy,
                              const struct moe_statistics *statistics, double host_slowdown,
                              uint32_t host_threads, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_host_shape host = host_shape(c, s->batch, host_threads);
    struct moe_arena arena = {0};
    if (strategy->needs_host && !(host_slowdown >= 1))
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s computes experts beside the device: it needs a second device "
                        "(--device test:SPEED,LINK rehearses one)",
                        strategy->name);
    if (strategy->precalculate && c->expert_dim)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "strategy %s computes experts a layer early, which is not implemented for "
                        "experts in a space of their own",
                        strategy->name);
    if ((c->n_zero || c->shared_sinks) &&
        (strategy->precalculate || strategy->prefer > 0 || strategy->gate_below > 0))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "strategy %s changes the router's choice, which is not implemented beside "
                        "%s",
                        strategy->name,
                        c->n_zero ? "experts that give back what they take in"
                                  : "shared experts that the router weighs with the others");
    shape_pass(&s->pass, c, strategy);
    carve_work(&arena, c, &s->pass);
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, err), .size = arena.used};
    s->strategy = arena.base ? carve_work(&arena, c, &s->pass) : NULL;
    int status;
    MOE_STEP(s->strategy ? MOE_OK : MOE_ERR_MEMORY);
    struct moe_strategy_work *w = s->strategy;
    if (moe_pass_predicts(strategy))
        MOE_STEP(moe_layer_predictor_open(&w->predictor, s, strategy, statistics, err));
    if (w->predictor && s->stages->choose_predict_device)
        MOE_STEP(s->stages->choose_predict_device(s, w->predictor, err));
    if (strategy->needs_host)
        MOE_STEP(moe_host_open(&w->host, c, &host, host_slowdown, err));
out:
    if (status == MOE_OK)
        s->router_row = w->router_row;
    else
        moe_session_drop_strategy(s);
    return status;
}

void moe_session_drop_strategy(struct moe_session *s)
{
    struct moe_strategy_work *w = s->strategy;
    s->pass.strategy = (struct moe_strategy){0};
    s->router_row = NULL;
    s->strategy = NULL;
    if (!w)
        return;
    moe_host_close(w->host); /* first: its jobs write into buffers of this block */
    moe_layer_predictor_close(w->predictor);
    free(w); /* the first of its block */
}

/* ---- A pass ---- */

void moe_session_begin_pass(struct moe_session *s, bool decode, bool first)
{
    struct moe_strategy_work *w = s->strategy;
    struct moe_phase_stats *phase = s->phase;
    struct moe_pass_rows rows = {.n = s->n_rows, .decode = decode, .first = first};
    rows.at_once = s->stages->at_once(s, rows.n);
    for (uint32_t i = 0; s->pass.pace && i < rows.n; i++)
        rows.positions += s->rows[i].position + 1;
    moe_pass_begin(&s->pass, &rows, &phase->experts, &phase->host_seconds, &phase->predict_seconds);
    if (w && w->asked) /* a pass that ended in an error has left some */
        moe_host_wait(w->host, w->last_ticket);
    if (w)
        w->asked = false;
    if (!w || !w->predictor)
        return;
    if (first)
        moe_layer_predictor_begin_sequence(w->predictor);
    moe_layer_predictor_begin_pass(w->predictor, s->rows, rows.n);
}

void moe_session_count_alone(struct moe_session *s, uint32_t n_layers)
{
    uint64_t n = (uint64_t)n_layers * s->n_rows * s->model->config.top_k;
    s->phase->experts.activations += n;
    s->phase->experts.cache_hits += n;
}

/* ---- Stages of a layer ---- */

static void reached(struct moe_session *s, uint32_t layer, const char *part)
{
    if (s->timeline)
        s->stages->reached(s, layer, part);
}

static bool is_drafting(const struct moe_session *s, uint32_t layer)
{
    return layer >= s->model->config.n_layers;
}

static void begin_layer(void *ctx, uint32_t layer)
{
    reached(ctx, layer, NULL);
}

/* Dense weights may arrive behind the first passes, and a text that is read may need most experts.
 */
int moe_session_await(struct moe_session *s, enum moe_dense_group group, uint32_t layer,
                      struct moe_err *err)
{
    if (s->phase != &s->stats.decode && !s->state_ends && moe_progress_stopped(s->model->passes))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    if (!s->model->dense)
        return MOE_OK;
    const double began = moe_seconds();
    int status = group == MOE_DENSE_TABLES
                     ? moe_model_await_tokens(s->model, s->rows, s->n_rows, err)
                     : moe_model_await(s->model, group, layer, err);
    s->phase->stall_seconds += moe_seconds() - began;
    return status;
}

static int attend_layer(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = ctx;
    MOE_TRY(moe_session_await(s, MOE_DENSE_LAYER, layer, err));
    MOE_TRY(s->stages->attend(s, layer, s->rows, s->n_rows, err));
    if (!is_drafting(s, layer))
        reached(s, layer, "attention");
    return MOE_OK;
}

static void end_feed_forward(struct moe_session *s, uint32_t layer)
{
    reached(s, layer, is_drafting(s, layer) ? "drafts" : "feed-forward");
}

static int compute_dense(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = ctx;
    if (!s->model->config.layers[layer].no_ffn)
        MOE_TRY(s->stages->dense(s, layer, s->n_rows, err));
    end_feed_forward(s, layer);
    return MOE_OK;
}

static bool compute_alone(void *ctx, uint32_t layer)
{
    struct moe_session *s = ctx;
    if (!s->stages->alone || !s->stages->alone(s, layer, s->n_rows))
        return false;
    moe_session_count_alone(s, 1);
    end_feed_forward(s, layer);
    return true;
}

static int choose_early(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = ctx;
    MOE_TRY(moe_session_await(s, MOE_DENSE_LAYER, layer, err));
    return s->stages->choose(s, layer, s->rows, s->n_rows, err);
}

static int route_layer(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = ctx;
    return s->stages->route(s, layer, s->rows, s->n_rows, err);
}

static void choose_known(void *ctx, uint32_t layer)
{
    struct moe_session *s = ctx;
    if (!s->pass.replay)
        moe_route_tokens(s->model, layer, s->rows, s->n_rows, &s->request);
    moe_route_limit(&s->request, &s->model->config, layer, s->prompts, s->rows, s->n_rows);
}

/* Meanwhile experts are on their way. */
static int compute_beside(void *ctx, uint32_t layer, bool *any, struct moe_err *err)
{
    struct moe_session *s = ctx;
    *any = s->model->layers[layer].has_ffn;
    return s->stages->beside(s, layer, s->n_rows, err);
}

/* ---- Experts ---- */

static bool assign_variants(void *ctx, uint32_t layer)
{
    struct moe_session *s = ctx;
    struct moe_layer_request *r = &s->request;
    if (s->assigner)
        s->assigner->assign(s->assigner->ctx, layer, s->rows, s->n_rows, r->chosen, r->weights,
                            r->variants);
    return s->assigner != NULL;
}

static int ask_provider(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = ctx;
    struct moe_layer_request *r = &s->request;
    s->phase->over_capacity += s->model->config.n_zero ? 0 : r->n_over;
    if (s->stages->grouped)
        s->stages->grouped(s, s->n_rows);
    for (uint32_t i = 0; i < s->n_rows; i++)
        r->sequences[i] = s->rows[i].sequence;
    return s->experts->ops->begin(s->experts, r, s->phase, err);
}

static int next_ready(void *ctx, uint32_t max, uint32_t *which, uint32_t *n, struct moe_err *err)
{
    struct moe_session *s = ctx;
    if (s->ranks)
        MOE_TRY(moe_ranks_go_on(s->ranks, err));
    return s->experts->ops->next(s->experts, max, which, s->views, n, err);
}

static int compute_experts(void *ctx, const uint32_t *which, uint32_t n, bool last,
                           struct moe_err *err)
{
    struct moe_session *s = ctx;
    return s->stages->experts(s, s->n_rows, which, s->views, n, last, err);
}

static void release_entry(void *ctx, uint32_t which)
{
    struct moe_session *s = ctx;
    s->experts->ops->release(s->experts, which);
}

static int poll_loads(void *ctx, struct moe_err *err)
{
    struct moe_session *s = ctx;
    struct moe_experts *e = s->experts;
    if (s->ranks)
        MOE_TRY(moe_ranks_go_on(s->ranks, err));
    return e->ops->poll   ? e->ops->poll(e, err)
           : e->scheduler ? moe_scheduler_poll(e->scheduler, err)
                          : MOE_OK;
}

/* Fills in the outputs that the device did not compute: the host's, zeros of what was left out,
 * zeros or inputs of choices beyond a capacity. */
static void finish_outputs(struct moe_session *s)
{
    const struct moe_layer_request *r = &s->request;
    uint64_t stride = s->states.stride, n_chosen = 0;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        n_chosen += r->n_rows[i];
        if (r->kinds[i] != MOE_ENTRY_SLOT && s->stages->take)
            s->stages->take(s, i);
        else if (r->kinds[i] == MOE_ENTRY_SKIPPED)
            memset(s->states.expert_out + r->first[i] * stride, 0,
                   r->n_rows[i] * stride * sizeof(float));
    }
    for (uint64_t slot = n_chosen; slot < n_chosen + r->n_over; slot++) {
        float *out = s->states.expert_out + slot * stride;
        if (r->passing)
            memcpy(out, s->states.xn + r->rows[slot] * stride, stride * sizeof *out);
        else
            memset(out, 0, stride * sizeof *out);
    }
}

static int combine_experts(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct moe_session *s = ctx;
    finish_outputs(s);
    if (s->observer.computed)
        s->observer.computed(s->observer.ctx, layer, s->n_rows, s->states.expert_out,
                             s->states.stride, s->request.slot_of);
    MOE_TRY(s->stages->combine(s, layer, s->n_rows, err));
    end_feed_forward(s, layer);
    return MOE_OK;
}

/* ---- The host ---- */

static struct early_jobs *early_jobs_of(struct moe_session *s, const struct moe_host_work *work)
{
    return &s->strategy->early[work->moe % 2];
}

static int begin_on_host(void *ctx, const struct moe_host_work *work, struct moe_err *err)
{
    struct moe_session *s = ctx;
    struct moe_strategy_work *w = s->strategy;
    const struct moe_layer_request *r = &s->request;
    uint64_t stride = s->states.stride;
    struct early_jobs *early = early_jobs_of(s, work);
    uint32_t first = work->early ? 0 : r->first[work->place];
    uint32_t *ticket = work->early ? &early->tickets[work->place] : &w->tickets[work->place];
    const float *scales = work->early ? work->weights : r->scales + first;
    struct moe_host_job job = {
        .view = {.layer = moe_pass_owner(&s->pass, work->moe),
                 .expert = work->expert,
                 .variant = work->variant},
        .x = s->states.expert_in ? s->states.expert_in : s->states.xn,
        .x_stride = stride,
        .rows = work->early ? NULL : r->rows + first,
        .scales = r->scales ? scales : NULL,
        .n = work->n_rows,
        .out =
            work->early ? early->out + work->place * stride : s->states.expert_out + first * stride,
        .out_stride = stride,
    };
    s->experts->ops->host_view(s->experts, work->moe, &job.view);
    MOE_TRY(moe_host_submit(w->host, &job, ticket, err));
    w->asked = true;
    w->last_ticket = *ticket;
    return MOE_OK;
}

static double wait_for_host(void *ctx, const struct moe_host_work *work)
{
    struct moe_session *s = ctx;
    struct moe_strategy_work *w = s->strategy;
    if (!work->early)
        return moe_host_wait(w->host, w->tickets[work->place]);
    const struct early_jobs *early = early_jobs_of(s, work);
    uint64_t stride = s->states.stride;
    double waited = moe_host_wait(w->host, early->tickets[work->place]);
    memcpy(s->states.expert_out + s->request.first[work->entry] * stride,
           early->out + work->place * stride, stride * sizeof(float));
    return waited;
}

/* ---- Other ranks ---- */

static int begin_elsewhere(void *ctx, struct moe_err *err)
{
    struct moe_session *s = ctx;
    return moe_ranks_ask(s->ranks, &s->request, s->n_rows, s->states.expert_in, err);
}

static int collect(struct moe_session *s, float *out, bool *all, struct moe_err *err)
{
    double began = moe_seconds();
    int status = moe_ranks_collect(s->ranks, out, all, err);
    s->phase->ranks_seconds += moe_seconds() - began;
    return status;
}

static int collect_elsewhere(void *ctx, bool *all, struct moe_err *err)
{
    struct moe_session *s = ctx;
    return collect(s, s->states.expert_out, all, err);
}

int moe_session_tell_table(struct moe_session *s, struct moe_err *err)
{
    const struct moe_kv_pool *pool = &s->kv_pool;
    return moe_ranks_tell_table(s->ranks, pool->table, pool->n_slots ? pool->slot_of : NULL,
                                pool->n_changes, err);
}

/* Has other ranks compute layers [begin, end), or the attention of `begin`, for the rows at work:
 * of x[n_rows] becomes out[n_rows], which may be the same. */
static int compute_elsewhere(struct moe_session *s, enum moe_rank_kind kind, uint32_t begin,
                             uint32_t end, const float *x, float *out, struct moe_err *err)
{
    const uint32_t rank = s->model->config.layers[begin].elsewhere - 1;
    struct moe_rank_attend to;
    MOE_TRY(moe_session_tell_table(s, err));
    MOE_TRY(moe_ranks_begin_rows(s->ranks, s->n_rows, &to, err));
    for (uint32_t i = 0; i < s->n_rows; i++)
        to.rows[i] = (struct moe_rank_row){s->rows[i].sequence, s->rows[i].position,
                                           s->rows[i].length, s->rows[i].token};
    MOE_TRY(moe_ranks_send_rows(s->ranks, rank, kind, begin, end, s->n_rows, x, err));
    for (bool all = false; !all;) {
        MOE_TRY(collect(s, out, &all, err));
        MOE_TRY(moe_pass_poll(&s->pass, err));
    }
    return MOE_OK;
}

int moe_session_attend_elsewhere(struct moe_session *s, uint32_t layer, float *out,
                                 struct moe_err *err)
{
    return compute_elsewhere(s, MOE_RANK_ATTEND, layer, layer + 1, s->states.expert_in, out, err);
}

int moe_session_layers_elsewhere(struct moe_session *s, uint32_t begin, uint32_t end,
                                 struct moe_err *err)
{
    MOE_TRY(s->stages->leave(s, s->n_rows, s->passing, err));
    MOE_TRY(compute_elsewhere(s, MOE_RANK_LAYERS, begin, end, s->passing, s->passing, err));
    for (uint32_t layer = begin; layer < end; layer++)
        if (moe_config_keeps_state(&s->model->config, layer))
            moe_recurrent_advance(s, layer, s->rows, s->n_rows);
    const uint64_t n = moe_ranks_take_activations(s->ranks);
    s->phase->experts.activations += n;
    s->phase->experts.elsewhere += n;
    return s->stages->enter(s, s->rows, s->n_rows, s->passing, err);
}

static int hint_ranks(void *ctx, const struct moe_prediction *predictions, uint32_t n,
                      struct moe_err *err)
{
    return moe_ranks_hint(((struct moe_session *)ctx)->ranks, predictions, n, err);
}

/* ---- Predictions ---- */

static uint32_t predict_first(void *ctx, uint32_t layer, uint32_t depth,
                              const struct moe_prediction **predictions)
{
    struct moe_session *s = ctx;
    return moe_predict_first(s->strategy->predictor, layer, s->n_rows, depth, predictions);
}

static uint32_t predict_before(void *ctx, uint32_t layer, const struct moe_prediction **predictions)
{
    struct moe_session *s = ctx;
    return moe_predict_before_attention(s->strategy->predictor, layer, s->n_rows, predictions);
}

static uint32_t predict_after(void *ctx, uint32_t layer, uint32_t depth,
                              const struct moe_prediction **predictions)
{
    struct moe_session *s = ctx;
    return moe_predict_layers(s->strategy->predictor, layer, s->n_rows, depth, predictions);
}

static bool mark_expected(void *ctx, uint32_t layer, uint8_t *marks)
{
    return moe_layer_predictor_expects(((struct moe_session *)ctx)->strategy->predictor, layer,
                                       marks);
}

static void note_choice(void *ctx, uint32_t layer)
{
    struct moe_session *s = ctx;
    moe_layer_predictor_note(s->strategy->predictor, layer, s->n_rows);
}

static void judge_prediction(void *ctx, uint32_t layer, const struct moe_prediction *prediction,
                             const uint8_t *present, struct moe_early *early)
{
    struct moe_session *s = ctx;
    struct moe_strategy_work *w = s->strategy;
    moe_router_choose_predicted(&s->model->config, moe_predicted_choice_bias(w->predictor, layer),
                                moe_predicted_router_scores(w->predictor), prediction->scores,
                                present, moe_strategy_replaces(&s->pass.strategy), &early->choice,
                                early->weights, w->scratch, s->pass.barred);
    moe_router_scale_experts(&s->model->layers[layer], early->choice.experts, early->choice.n,
                             early->weights);
}

static void rank_experts(void *ctx, uint32_t layer, struct moe_preference *to)
{
    struct moe_session *s = ctx;
    struct moe_strategy_work *w = s->strategy;
    const struct moe_config *c = &s->model->config;
    moe_router_rank(c, s->model->layers[layer].choice_bias, w->router_row, s->request.chosen,
                    w->probabilities, w->scratch, w->best, to);
}

static void weigh_preferred(void *ctx, uint32_t layer, const struct moe_preference *preference)
{
    struct moe_session *s = ctx;
    const struct moe_strategy_work *w = s->strategy;
    const struct moe_config *c = &s->model->config;
    struct moe_layer_request *r = &s->request;
    moe_router_weigh(c, w->router_row, w->probabilities, r->chosen, w->scratch, r->weights);
    moe_router_scale_experts(&s->model->layers[layer], r->chosen, c->top_k, r->weights);
}

/* ---- The modelled clock ---- */

static void took(void *ctx, double seconds)
{
    struct moe_session *s = ctx;
    if (s->experts->ops->computed)
        s->experts->ops->computed(s->experts, seconds);
}

static double clock_now(void *ctx)
{
    return moe_experts_clock(((struct moe_session *)ctx)->experts);
}

const struct moe_pass_ops moe_runner_ops = {
    .begin_layer = begin_layer,
    .attend = attend_layer,
    .dense = compute_dense,
    .alone = compute_alone,
    .choose = choose_early,
    .route = route_layer,
    .known = choose_known,
    .beside = compute_beside,
    .experts = compute_experts,
    .combine = combine_experts,
    .assign = assign_variants,
    .ask = ask_provider,
    .next = next_ready,
    .release = release_entry,
    .poll = poll_loads,
    .begin_on_host = begin_on_host,
    .wait_for_host = wait_for_host,
    .predict_first = predict_first,
    .predict_before = predict_before,
    .predict = predict_after,
    .expects = mark_expected,
    .note = note_choice,
    .judge = judge_prediction,
    .rank = rank_experts,
    .weigh = weigh_preferred,
    .begin_elsewhere = begin_elsewhere,
    .collect = collect_elsewhere,
    .hint = hint_ranks,
    .took = took,
    .clock = clock_now,
};
