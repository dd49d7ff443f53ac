#include "run/foresight.h"

#include <stdlib.h>
#include <string.h>

#include "run/probe.h"
#include "run/workspace.h"

_Static_assert((int)MOE_MAX_DEPTH <= (int)MOE_MAX_ROUTERS, "one product for all layers ahead");

struct moe_foresight {
    struct moe_session *session;
    enum moe_predict_by by;
    const struct moe_statistics *statistics; /* of path predictions */
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

    /* By the token before: what it chose in each MoE layer. */
    uint32_t *chosen; /* [n_moe][top_k] */
    float *weights;   /* [n_moe][top_k] */
    bool *known;      /* [n_moe] */

    /* By paths: the best experts of the MoE layer before, of the pass's rows. */
    uint16_t *best;                 /* [batch] */
    uint32_t best_layer, best_rows; /* whose they are; 0 rows: nobody's */
};

/* ---- Memory ------------------------------------------------------------------------------------
 */

static bool by_paths(enum moe_predict_by by)
{
    return by == MOE_PREDICT_BY_PATH || by == MOE_PREDICT_BY_KEYS;
}

/* Path statistics reach one layer ahead; nobody looks beyond the last. */
static uint32_t usable_depth(const struct moe_strategy *strategy, uint32_t n_moe)
{
    uint32_t depth = by_paths(strategy->predict) ? 1 : strategy->depth;
    if (depth > MOE_MAX_DEPTH)
        depth = MOE_MAX_DEPTH;
    if (depth > n_moe)
        depth = n_moe;
    return strategy->predict == MOE_PREDICT_BY_NOTHING ? 0 : depth;
}

/* What `by` alone needs. */
static void carve_kind(struct moe_foresight *f, struct moe_arena *arena, const struct moe_config *c)
{
    if (f->by == MOE_PREDICT_BY_RESIDUAL) {
        f->normalised =
            moe_arena_take(arena, f->depth * f->batch * f->stride, sizeof *f->normalised);
        f->acts = moe_arena_take(arena, f->depth, sizeof *f->acts);
        for (uint32_t d = 0; d < f->depth; d++) {
            struct moe_act measure;
            moe_act_carve(f->acts ? &f->acts[d] : &measure, arena, f->batch, c->hidden);
        }
    } else if (f->by == MOE_PREDICT_BY_PREVIOUS) {
        f->chosen = moe_arena_take(arena, (uint64_t)f->n_moe * c->top_k, sizeof *f->chosen);
        f->weights = moe_arena_take(arena, (uint64_t)f->n_moe * c->top_k, sizeof *f->weights);
        f->known = moe_arena_take(arena, f->n_moe, sizeof *f->known);
    } else if (by_paths(f->by)) {
        f->best = moe_arena_take(arena, f->batch, sizeof *f->best);
    }
}

/* One block; NULL on an arena that only counts. */
static struct moe_foresight *carve(struct moe_arena *arena, const struct moe_config *c,
                                   uint32_t batch, const struct moe_strategy *strategy)
{
    struct moe_foresight *place = moe_arena_take(arena, 1, sizeof *place);
    struct moe_foresight f = {
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

uint64_t moe_foresight_bytes(const struct moe_model *model, uint32_t batch,
                             const struct moe_strategy *strategy)
{
    struct moe_arena arena = {0};
    carve(&arena, &model->config, batch, strategy);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

/* ---- Open and close ----------------------------------------------------------------------------
 */

static int check_statistics(const struct moe_model *model, const struct moe_statistics *s,
                            struct moe_err *err)
{
    if (!s)
        return moe_fail(err, MOE_ERR_USAGE,
                        "predicting by paths needs statistics of the model: make a profile");
    if (!moe_probe_fits(model, s))
        return moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model");
    return MOE_OK;
}

int moe_foresight_open(struct moe_foresight **out, struct moe_session *session,
                       const struct moe_strategy *strategy, const struct moe_statistics *statistics,
                       struct moe_err *err)
{
    *out = NULL;
    int status =
        by_paths(strategy->predict) ? check_statistics(session->model, statistics, err) : MOE_OK;
    if (status != MOE_OK)
        return status;
    uint64_t bytes = moe_foresight_bytes(session->model, session->batch, strategy);
    struct moe_arena arena = {.base = moe_alloc(bytes, 1, err), .size = bytes};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_foresight *f = carve(&arena, &session->model->config, session->batch, strategy);
    f->session = session;
    f->statistics = statistics;
    *out = f;
    return MOE_OK;
}

void moe_foresight_close(struct moe_foresight *f)
{
    free(f); /* the first of its block */
}

void moe_foresight_begin_sequence(struct moe_foresight *f)
{
    if (f->known)
        memset(f->known, 0, f->n_moe * sizeof *f->known);
    f->best_rows = 0;
}

/* ---- Predictions of rows -----------------------------------------------------------------------
 */

struct look {
    struct moe_foresight *f;
    uint32_t m; /* MoE layer whose router has spoken */
    uint32_t n_rows, n;
    const struct moe_layer *ahead[MOE_MAX_DEPTH]; /* the n next MoE layers */
};

static float *probabilities_at(const struct moe_foresight *f, uint64_t d, uint64_t row)
{
    return f->probabilities + (d * f->batch + row) * f->router_stride;
}

static float *normalised_at(const struct moe_foresight *f, uint64_t d, uint64_t row)
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
    struct moe_foresight *f = k->f;
    struct moe_workspace *w = f->session->work;
    struct moe_router_use uses[MOE_MAX_DEPTH];
    bool residual = f->by == MOE_PREDICT_BY_RESIDUAL;
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

static void make_sum_one(float *p, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i];
    if (sum > 0)
        moe_kern.scale(1 / sum, n, p);
}

/* The experts of the token before by their weights; as many layers as are known without a gap. */
static void recall(struct look *k)
{
    struct moe_foresight *f = k->f;
    const struct moe_config *c = &f->session->model->config;
    uint32_t n = 0;
    for (; k->n_rows == 1 && n < k->n && f->known[k->m + 1 + n]; n++) {
        uint64_t from = (uint64_t)(k->m + 1 + n) * c->top_k;
        float *p = probabilities_at(f, n, 0);
        memset(p, 0, c->n_experts * sizeof *p);
        for (uint32_t i = 0; i < c->top_k; i++)
            p[f->chosen[from + i]] = f->weights[from + i];
        make_sum_one(p, c->n_experts);
    }
    k->n = n;
}

static void path_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct look *k = ctx;
    const struct moe_foresight *f = k->f;
    const struct moe_config *c = &f->session->model->config;
    bool pairs = f->by == MOE_PREDICT_BY_PATH && c->top_k > 1;
    bool has_best = k->m > 0 && f->best_layer == k->m - 1 && f->best_rows == k->n_rows;
    for (int64_t i = begin; i < end; i++) {
        float *p = probabilities_at(f, 0, (uint64_t)i);
        moe_path_scores(f->statistics, pairs ? MOE_PREDICT_PATH : MOE_PREDICT_PATH_RANK1, k->m + 1,
                        has_best ? f->best[i] : MOE_NO_EXPERT,
                        f->session->work->chosen + (uint64_t)i * c->top_k, p);
        make_sum_one(p, c->n_experts);
    }
}

/* ---- Looking -----------------------------------------------------------------------------------
 */

/* Keeps what later predictions are made from. */
static void remember(struct moe_foresight *f, uint32_t m, uint32_t n_rows)
{
    const struct moe_workspace *w = f->session->work;
    uint32_t k = f->session->model->config.top_k;
    if (f->by == MOE_PREDICT_BY_PREVIOUS) {
        uint64_t last = (uint64_t)(n_rows - 1) * k, to = (uint64_t)m * k;
        memcpy(f->chosen + to, w->chosen + last, k * sizeof *f->chosen);
        memcpy(f->weights + to, w->weights + last, k * sizeof *f->weights);
        f->known[m] = true;
    } else if (by_paths(f->by)) {
        for (uint64_t i = 0; i < n_rows; i++)
            f->best[i] = (uint16_t)w->chosen[i * k];
        f->best_layer = m;
        f->best_rows = n_rows;
    }
}

static void predict(struct look *k)
{
    switch (k->f->by) {
    case MOE_PREDICT_BY_GATE:
    case MOE_PREDICT_BY_RESIDUAL:
        ask_routers(k);
        return;
    case MOE_PREDICT_BY_PREVIOUS:
        recall(k);
        return;
    case MOE_PREDICT_BY_PATH:
    case MOE_PREDICT_BY_KEYS:
        moe_par_for(k->n_rows, 8, path_range, k);
        return;
    case MOE_PREDICT_BY_NOTHING:
        return; /* and no layer was asked about */
    }
}

uint32_t moe_foresight_look(struct moe_foresight *f, uint32_t layer, uint32_t n_rows,
                            uint32_t depth, const struct moe_prediction **predictions)
{
    const struct moe_model *model = f->session->model;
    const struct moe_config *c = &model->config;
    struct look k = {.f = f, .m = moe_config_moe_layers(c, layer), .n_rows = n_rows};
    for (uint32_t l = layer + 1; l < c->n_layers && k.n < depth && k.n < f->depth; l++)
        if (c->layer_is_moe[l])
            k.ahead[k.n++] = &model->layers[l];
    if (k.n > 0)
        predict(&k);
    remember(f, k.m, n_rows);
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
