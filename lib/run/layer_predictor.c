#include "run/layer_predictor.h"

#include <stdlib.h>
#include <string.h>

#include "run/host_routers.h"
#include "run/stages.h"
#include "run/workspace.h"
#include "sched/choice_history.h"

_Static_assert((int)MOE_MAX_DEPTH <= (int)MOE_MAX_ROUTERS, "one product for all layers ahead");

struct moe_layer_predictor {
    struct moe_session *session;
    const struct moe_layer *layers; /* whose routers are asked here: the model's, or the copies */
    struct moe_layer *copies;       /* of a model on a gpu; NULL: none */
    enum moe_predict_by by;
    uint32_t depth, batch;
    uint64_t stride, router_stride; /* of the workspace's rows */
    uint32_t n_moe;

    float *probabilities; /* [depth][batch][router_stride] of each row */
    float *scores;        /* [depth][n_experts] what is handed out */
    float *unimportance;  /* [depth][n_experts] */
    float *scratch;       /* [2 * top_k] */
    struct moe_prediction predictions[MOE_MAX_DEPTH];

    /* By residual: the stream under the norms of the layers ahead. */
    float *normalised;    /* [depth][batch][stride] */
    struct moe_act *acts; /* [depth] */

    struct moe_choice_history recollection; /* by choices */
};

/* ---- Memory ---- */

/* Path statistics reach one layer ahead; nobody looks beyond the last. */
static uint32_t usable_depth(const struct moe_strategy *strategy, uint32_t n_moe)
{
    uint32_t depth = moe_predicts_from_paths(strategy->predict) ? 1 : strategy->depth;
    if (depth > MOE_MAX_DEPTH)
        depth = MOE_MAX_DEPTH;
    if (depth > n_moe)
        depth = n_moe;
    return strategy->predict == MOE_PREDICT_BY_NOTHING ? 0 : depth;
}

/* What `by` alone needs. */
static void carve_kind(struct moe_layer_predictor *f, struct moe_arena *arena,
                       const struct moe_config *c)
{
    if (f->by == MOE_PREDICT_BY_RESIDUAL) {
        f->normalised =
            moe_arena_take(arena, f->depth * f->batch * f->stride, sizeof *f->normalised);
        f->acts = moe_arena_take(arena, f->depth, sizeof *f->acts);
        for (uint32_t d = 0; d < f->depth; d++) {
            struct moe_act measure;
            moe_act_carve(f->acts ? &f->acts[d] : &measure, arena, f->batch, c->hidden);
        }
    } else if (moe_predicts_from_choices(f->by)) {
        f->recollection = (struct moe_choice_history){
            .by = f->by,
            .n_layers = f->n_moe,
            .n_experts = c->n_experts,
            .top_k = c->top_k,
        };
        moe_choice_history_carve(&f->recollection, arena, f->batch);
    }
}

/* One block; NULL on an arena that only counts. */
static struct moe_layer_predictor *carve(struct moe_arena *arena, const struct moe_config *c,
                                         uint32_t batch, const struct moe_strategy *strategy)
{
    struct moe_layer_predictor *place = moe_arena_take(arena, 1, sizeof *place);
    struct moe_layer_predictor f = {
        .by = strategy->predict,
        .batch = batch,
        .stride = moe_round_up(c->hidden, MOE_PANEL_ROWS),
        .router_stride = moe_round_up(c->n_experts, MOE_PANEL_ROWS),
        .n_moe = moe_config_moe_layers(c, c->n_layers),
    };
    f.depth = usable_depth(strategy, f.n_moe);
    uint64_t scores = (uint64_t)f.depth * c->n_experts;
    f.probabilities =
        moe_arena_take(arena, f.depth * batch * f.router_stride, sizeof *f.probabilities);
    f.scores = moe_arena_take(arena, scores, sizeof *f.scores);
    f.unimportance = moe_arena_take(arena, scores, sizeof *f.unimportance);
    f.scratch = moe_arena_take(arena, 2 * (uint64_t)c->top_k, sizeof *f.scratch);
    carve_kind(&f, arena, c);
    if (place)
        *place = f;
    return place;
}

uint64_t moe_layer_predictor_bytes(const struct moe_model *model, uint32_t batch,
                                   const struct moe_strategy *strategy)
{
    struct moe_arena arena = {0};
    carve(&arena, &model->config, batch, strategy);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

/* ---- Open and close ---- */

static int check_statistics(const struct moe_model *model, const struct moe_statistics *s,
                            struct moe_err *err)
{
    if (!s)
        return moe_fail(err, MOE_ERR_USAGE,
                        "predicting by paths needs statistics of the model: make a profile");
    if (!moe_model_fits_statistics(model, s))
        return moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model");
    return MOE_OK;
}

int moe_layer_predictor_open(struct moe_layer_predictor **out, struct moe_session *session,
                             const struct moe_strategy *strategy,
                             const struct moe_statistics *statistics, struct moe_err *err)
{
    *out = NULL;
    int status = moe_predicts_from_paths(strategy->predict)
                     ? check_statistics(session->model, statistics, err)
                     : MOE_OK;
    if (status != MOE_OK)
        return status;
    uint64_t bytes = moe_layer_predictor_bytes(session->model, session->batch, strategy);
    struct moe_arena arena = {.base = moe_alloc(bytes, 1, err), .size = bytes};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_layer_predictor *f =
        carve(&arena, &session->model->config, session->batch, strategy);
    f->session = session;
    f->recollection.statistics = statistics;
    if (session->look_depth > 0)
        status = moe_host_routers_read(&f->copies, session->model, err);
    if (status != MOE_OK) {
        moe_layer_predictor_close(f);
        return status;
    }
    f->layers = f->copies ? f->copies : session->model->layers;
    *out = f;
    return MOE_OK;
}

uint32_t moe_layer_predictor_looks(const struct moe_model *model,
                                   const struct moe_strategy *strategy, bool *residual)
{
    const struct moe_config *c = &model->config;
    *residual = strategy->predict == MOE_PREDICT_BY_RESIDUAL;
    return moe_predicts_from_choices(strategy->predict)
               ? 0
               : usable_depth(strategy, moe_config_moe_layers(c, c->n_layers));
}

void moe_layer_predictor_close(struct moe_layer_predictor *f)
{
    if (f)
        free(f->copies);
    free(f); /* the first of its block */
}

void moe_layer_predictor_begin_sequence(struct moe_layer_predictor *f)
{
    moe_choice_history_begin_sequence(&f->recollection);
}

/* ---- Predictions of rows ---- */

struct look {
    struct moe_layer_predictor *f;
    uint32_t m; /* MoE layer whose router has spoken */
    uint32_t n_rows, n;
    const struct moe_layer *ahead[MOE_MAX_DEPTH]; /* the n next MoE layers */
};

static float *probabilities_at(const struct moe_layer_predictor *f, uint64_t d, uint64_t row)
{
    return f->probabilities + (d * f->batch + row) * f->router_stride;
}

static float *normalised_at(const struct moe_layer_predictor *f, uint64_t d, uint64_t row)
{
    return f->normalised + (d * f->batch + row) * f->stride;
}

static void normalise_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct look *k = ctx;
    const struct moe_session *s = k->f->session;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t d = 0; d < k->n; d++)
            moe_norm_row(&s->model->config, s->work->h + (uint64_t)i * s->work->hidden_stride,
                         k->ahead[d]->ffn_norm, k->ahead[d]->ffn_norm_bias,
                         normalised_at(k->f, d, (uint64_t)i));
}

static void softmax_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct look *k = ctx;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t d = 0; d < k->n; d++)
            moe_kern.softmax(probabilities_at(k->f, d, (uint64_t)i),
                             k->f->session->model->config.n_experts);
}

/* The routers ahead, all in one product (HOBBIT's stacked gates). */
static void ask_routers(struct look *k)
{
    struct moe_layer_predictor *f = k->f;
    struct moe_workspace *w = f->session->work;
    struct moe_router_use uses[MOE_MAX_DEPTH];
    bool residual = f->by == MOE_PREDICT_BY_RESIDUAL;
    const struct moe_stages_ops *stages = f->session->stages;
    bool here = k->n_rows <= f->session->predict_device.host_rows;
    if (stages->look && !here) { /* with this layer's router, on the device */
        stages->look(f->session, k->n, k->n_rows, f->probabilities,
                     (uint64_t)f->batch * f->router_stride);
        return;
    }
    if (residual)
        moe_par_for(k->n_rows, 8, normalise_range, k);
    for (uint32_t d = 0; d < k->n; d++) {
        const struct moe_mat *router = &k->ahead[d]->router;
        if (residual)
            moe_act_prepare(&f->acts[d], normalised_at(f, d, 0), f->stride, NULL, k->n_rows,
                            router->cols, moe_act_block_for(router->layout));
        uses[d] = (struct moe_router_use){
            .layer = k->ahead[d],
            .act = residual ? &f->acts[d] : moe_inputs_for(&w->from_hidden, router->layout),
            .scores = probabilities_at(f, d, 0),
        };
    }
    moe_router_scores(uses, k->n, f->router_stride);
    moe_par_for(k->n_rows, 16, softmax_range, k);
}

static void recollect_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct look *k = ctx;
    const struct moe_layer_predictor *f = k->f;
    uint32_t top_k = f->session->model->config.top_k;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t d = 0; d < k->n; d++)
            moe_choice_history_predict(&f->recollection, k->m, d, (uint32_t)i, k->n_rows,
                                       f->session->work->chosen + (uint64_t)i * top_k,
                                       probabilities_at(f, d, (uint64_t)i));
}

/* ---- Looking ---- */

static void predict(struct look *k)
{
    struct moe_layer_predictor *f = k->f;
    if (!moe_predicts_from_choices(f->by)) {
        ask_routers(k);
        return;
    }
    k->n = moe_choice_history_reach(&f->recollection, k->m, k->n_rows, k->n);
    if (k->n > 0)
        moe_par_for(k->n_rows, 8, recollect_range, k);
}

uint32_t moe_predict_layers(struct moe_layer_predictor *f, uint32_t layer, uint32_t n_rows,
                            uint32_t depth, const struct moe_prediction **predictions)
{
    const struct moe_config *c = &f->session->model->config;
    struct look k = {.f = f, .m = moe_config_moe_layers(c, layer), .n_rows = n_rows};
    for (uint32_t l = layer + 1; l < c->n_layers && k.n < depth && k.n < f->depth; l++)
        if (c->layer_is_moe[l])
            k.ahead[k.n++] = &f->layers[l];
    if (k.n > 0)
        predict(&k);
    if (moe_predicts_from_choices(f->by))
        moe_choice_history_add(&f->recollection, k.m, n_rows, f->session->work->chosen,
                               f->session->work->weights);
    for (uint32_t d = 0; d < k.n; d++) {
        uint64_t at = (uint64_t)d * c->n_experts;
        moe_tally(probabilities_at(f, d, 0), f->router_stride, n_rows, c->n_experts, c->top_k,
                  f->scores + at, f->unimportance + at, f->scratch);
        f->predictions[d] = (struct moe_prediction){
            k.m + 1 + d,
            n_rows,
            f->scores + at,
            f->unimportance + at,
        };
    }
    *predictions = f->predictions;
    return k.n;
}
