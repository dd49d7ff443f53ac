/*
 * Predictions of layers to come, by routers and by earlier choices.
 */
#include "infer/layer_predictor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "infer/router.h"
#include "infer/stages.h"
#include "kern/kern.h"
#include "sched/history.h"

_Static_assert((int)MOE_MAX_DEPTH <= (int)MOE_MAX_ROUTERS, "one product for all layers ahead");

struct moe_layer_predictor {
    struct moe_session *session;
    const struct moe_layer *layers; /* whose routers are asked here: the model's, or the copies */
    struct moe_layer *copies;       /* of a model on a GPU; NULL: none */
    enum moe_predict_by by;
    uint32_t depth, batch;
    uint64_t stride, router_stride; /* of the states and of routers' scores */
    uint32_t n_moe;

    float *probabilities; /* [depth][batch][router_stride] of each row */
    bool needs_scores;    /* of routers, beyond what is handed out */
    float *router_scores; /* [depth][n_experts] as routers give them, of one row */
    bool has_scores;
    float *scores;       /* [depth][n_experts] what is handed out */
    float *unimportance; /* [depth][n_experts] */
    float *scratch;      /* [2 * top_k] */
    struct moe_prediction predictions[MOE_MAX_DEPTH];

    /* By residual: the stream under the norms of the layers ahead. By attention: under that of a
     * layer's attention. */
    float *normalized;           /* [depth][batch][stride] */
    struct moe_act *acts;        /* [depth] */
    struct moe_router_room room; /* of routers with router_dim */

    struct moe_choice_history history; /* by choices */
    bool first_by_token;               /* a pass's first layer by these, whatever the others */
    bool recalls;                      /* it keeps what tokens chose last */
    uint32_t *ids;                     /* [batch] of the pass's tokens */
};

/* ---- Memory ---- */

/* Path statistics reach one layer ahead; no prediction goes beyond the last layer. */
static uint32_t usable_depth(const struct moe_strategy *strategy, uint32_t n_moe)
{
    uint32_t depth = moe_predicts_from_paths(strategy->predict) ? 1 : strategy->depth;
    if (depth > MOE_MAX_DEPTH)
        depth = MOE_MAX_DEPTH;
    if (depth > n_moe)
        depth = n_moe;
    return strategy->predict == MOE_PREDICT_BY_NOTHING ? 0 : depth;
}

/* Whether it asks routers about what it has normalized itself, not this layer's gate input. */
static bool has_own_inputs(const struct moe_layer_predictor *p, const struct moe_config *c)
{
    return p->by == MOE_PREDICT_BY_RESIDUAL || moe_predicts_from_attention(p->by) ||
           ((c->own_norms || c->router_early) && !moe_predicts_from_choices(p->by));
}

/* What only `by` needs. */
static void carve_kind(struct moe_layer_predictor *p, struct moe_arena *arena,
                       const struct moe_config *c)
{
    if (has_own_inputs(p, c)) {
        p->normalized =
            moe_arena_take(arena, p->depth * p->batch * p->stride, sizeof *p->normalized);
        p->acts = moe_arena_take(arena, p->depth, sizeof *p->acts);
        for (uint32_t d = 0; d < p->depth; d++) {
            struct moe_act measure;
            moe_act_carve(p->acts ? &p->acts[d] : &measure, arena, p->batch, c->hidden);
        }
    }
    if (moe_predicts_from_choices(p->by) || p->recalls) {
        p->history = (struct moe_choice_history){
            .by = p->first_by_token                  ? MOE_PREDICT_BY_TOKEN
                  : moe_predicts_from_choices(p->by) ? p->by
                                                     : MOE_PREDICT_BY_NOTHING,
            .recalls = p->recalls,
            .n_layers = p->n_moe,
            .n_experts = c->n_experts,
            .top_k = c->top_k,
        };
        moe_choice_history_carve(&p->history, arena, p->batch);
    }
    if (p->recalls)
        p->ids = moe_arena_take(arena, p->batch, sizeof *p->ids);
}

/* One block; NULL on an arena that only counts. */
static struct moe_layer_predictor *carve_predictor(struct moe_arena *arena,
                                                   const struct moe_config *c, uint32_t batch,
                                                   const struct moe_strategy *strategy)
{
    struct moe_layer_predictor *place = moe_arena_take(arena, 1, sizeof *place);
    struct moe_layer_predictor p = {
        .by = strategy->predict,
        .first_by_token = moe_strategy_predicts_first(strategy),
        .recalls = moe_strategy_recalls(strategy),
        .batch = batch,
        .stride = moe_round_up(c->hidden, MOE_PANEL_ROWS),
        .router_stride = moe_router_stride(c),
        .n_moe = c->n_moe_layers,
    };
    p.depth = usable_depth(strategy, p.n_moe);
    uint64_t scores = (uint64_t)p.depth * c->n_experts;
    p.probabilities =
        moe_arena_take(arena, p.depth * batch * p.router_stride, sizeof *p.probabilities);
    p.router_scores = moe_arena_take(arena, scores, sizeof *p.router_scores);
    p.scores = moe_arena_take(arena, scores, sizeof *p.scores);
    p.unimportance = moe_arena_take(arena, scores, sizeof *p.unimportance);
    p.scratch = moe_arena_take(arena, 2 * (uint64_t)c->top_k, sizeof *p.scratch);
    carve_kind(&p, arena, c);
    if (!moe_predicts_from_choices(p.by))
        moe_router_room_carve(&p.room, arena, c, batch);
    if (place)
        *place = p;
    return place;
}

uint64_t moe_layer_predictor_bytes(const struct moe_model *model, uint32_t batch,
                                   const struct moe_strategy *strategy)
{
    struct moe_arena arena = {0};
    carve_predictor(&arena, &model->config, batch, strategy);
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
    struct moe_layer_predictor *p =
        carve_predictor(&arena, &session->model->config, session->batch, strategy);
    p->session = session;
    p->history.statistics = statistics;
    moe_choice_history_seed(&p->history);
    p->needs_scores =
        strategy->precalculate && session->model->config.router_kind != MOE_ROUTER_SOFTMAX;
    if (session->model->gpu && p->depth > 0 && !moe_predicts_from_choices(p->by))
        status = moe_host_routers_read(&p->copies, session->model, err);
    if (status != MOE_OK) {
        moe_layer_predictor_close(p);
        return status;
    }
    p->layers = p->copies ? p->copies : session->model->layers;
    *out = p;
    return MOE_OK;
}

uint32_t moe_layer_predictor_depth(const struct moe_model *model,
                                   const struct moe_strategy *strategy, bool *residual)
{
    const struct moe_config *c = &model->config;
    *residual = strategy->predict == MOE_PREDICT_BY_RESIDUAL;
    return moe_predicts_from_choices(strategy->predict) ||
                   moe_predicts_from_attention(strategy->predict)
               ? 0
               : usable_depth(strategy, c->n_moe_layers);
}

void moe_layer_predictor_close(struct moe_layer_predictor *p)
{
    if (p)
        free(p->copies);
    free(p); /* the first of its block */
}

void moe_layer_predictor_begin_sequence(struct moe_layer_predictor *p)
{
    moe_choice_history_begin_sequence(&p->history);
}

void moe_layer_predictor_begin_pass(struct moe_layer_predictor *p, const struct moe_row *rows,
                                    uint32_t n_rows)
{
    if (!p->recalls)
        return;
    for (uint32_t i = 0; i < n_rows; i++)
        p->ids[i] = rows[i].token;
    moe_choice_history_begin_pass(&p->history, p->ids, n_rows);
}

bool moe_layer_predictor_expects(const struct moe_layer_predictor *p, uint32_t layer,
                                 uint8_t *marks)
{
    uint32_t m = p->session->model->config.layers[layer].moe_index;
    return moe_token_history_mark(&p->history.tokens, m, marks);
}

void moe_layer_predictor_note(struct moe_layer_predictor *p, uint32_t layer, uint32_t n_rows)
{
    const struct moe_layer_request *r = &p->session->request;
    uint32_t m = p->session->model->config.layers[layer].moe_index;
    moe_choice_history_note(&p->history, m, n_rows, r->chosen, r->weights);
}

/* ---- Predictions of rows ---- */

struct query {
    struct moe_layer_predictor *p;
    uint32_t m; /* MoE layer whose router has chosen, or whose attention is to come */
    uint32_t n_rows, n;
    const struct moe_layer *attention; /* that layer, by attention; else NULL */
    /* The n next MoE layers that a router chooses for, and their numbers. */
    const struct moe_layer *ahead[MOE_MAX_DEPTH];
    uint32_t target[MOE_MAX_DEPTH];
};

static float *probabilities_at(const struct moe_layer_predictor *p, uint64_t d, uint64_t row)
{
    return p->probabilities + (d * p->batch + row) * p->router_stride;
}

static float *normalized_at(const struct moe_layer_predictor *p, uint64_t d, uint64_t row)
{
    return p->normalized + (d * p->batch + row) * p->stride;
}

static void normalize_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct query *q = ctx;
    const struct moe_session *s = q->p->session;
    const struct moe_layer *a = q->attention;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t d = 0; d < q->n; d++) {
            const struct moe_layer *of = a ? a : q->ahead[d];
            /* Else a layer without attention, or a router that takes in the stream itself. */
            bool before = a && a->attn_norm && !s->model->config.router_early;
            const float *h = s->states.h + (uint64_t)i * s->states.stride;
            float *out = normalized_at(q->p, d, (uint64_t)i);
            if (before && !of->router_norm)
                moe_block_input_row(&s->model->config, h, of->attn_norm, of->attn_norm_bias, out);
            else
                moe_router_input_row(&s->model->config, of, h, out);
        }
}

/* Scores become probabilities that rank and weigh experts as their router would. */
static void grade_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct query *q = ctx;
    const struct moe_config *c = &q->p->session->model->config;
    for (int64_t i = begin; i < end; i++) {
        for (uint32_t d = 0; d < q->n; d++) {
            float *scores = probabilities_at(q->p, d, (uint64_t)i);
            if (q->n_rows == 1)
                memcpy(q->p->router_scores + (uint64_t)d * c->n_experts, scores,
                       c->n_experts * sizeof *scores);
            moe_router_grade(c, q->ahead[d]->choice_bias, scores);
            moe_kern.softmax(scores, c->n_experts);
        }
    }
}

/* The routers of the layers ahead, all in one product (HOBBIT's stacked gates), or on the device
 * with this layer's router. */
static void ask_routers(struct query *q)
{
    struct moe_layer_predictor *p = q->p;
    struct moe_session *s = p->session;
    struct moe_router_use uses[MOE_MAX_DEPTH];
    bool own = has_own_inputs(p, &s->model->config);
    if (s->stages->predict && s->stages->predict(s, q->n, q->n_rows, p->probabilities,
                                                 (uint64_t)p->batch * p->router_stride))
        return;
    p->has_scores = q->n_rows == 1;
    if (own)
        moe_par_for(q->n_rows, 8, normalize_range, q);
    for (uint32_t d = 0; d < q->n; d++) {
        const struct moe_mat *router = moe_router_entry(q->ahead[d]);
        if (own)
            moe_act_prepare(&p->acts[d], normalized_at(p, d, 0), p->stride, NULL, q->n_rows,
                            router->cols, moe_act_block_for(router->layout));
        uses[d] = (struct moe_router_use){
            .layer = q->ahead[d],
            .act = own ? &p->acts[d] : moe_inputs_for(&s->states.inputs, router->layout),
            .scores = probabilities_at(p, d, 0),
            .room = &p->room,
            .before = s->states.routed,
            .before_stride = s->states.stride,
        };
    }
    moe_router_scores(&s->model->config, uses, q->n, p->router_stride);
    moe_par_for(q->n_rows, 16, grade_range, q);
}

static void predict_from_choices(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct query *q = ctx;
    const struct moe_layer_predictor *p = q->p;
    uint32_t top_k = p->session->model->config.top_k;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t d = 0; d < q->n; d++)
            moe_choice_history_predict(&p->history, q->m, q->target[d] - q->m - 1, (uint32_t)i,
                                       q->n_rows, p->session->request.chosen + (uint64_t)i * top_k,
                                       probabilities_at(p, d, (uint64_t)i));
}

/* ---- Predictions of a pass ---- */

static void predict(struct query *q, bool from_choices)
{
    struct moe_layer_predictor *p = q->p;
    p->has_scores = false;
    if (!from_choices) {
        ask_routers(q);
        return;
    }
    uint32_t far = q->target[q->n - 1] - q->m;
    far = moe_choice_history_reach(&p->history, q->m, q->n_rows, far);
    while (q->n > 0 && q->target[q->n - 1] - q->m > far) /* m may be MOE_NO_LAYER_YET */
        q->n--;
    if (q->n > 0)
        moe_par_for(q->n_rows, 8, predict_from_choices, q);
}

const float *moe_predicted_choice_bias(const struct moe_layer_predictor *p, uint32_t layer)
{
    return p->layers[layer].choice_bias;
}

bool moe_layer_predictor_needs_scores(const struct moe_layer_predictor *p)
{
    return p->needs_scores;
}

const float *moe_predicted_router_scores(const struct moe_layer_predictor *p)
{
    return p->has_scores ? p->router_scores : NULL;
}

/* What is handed out. */
static void hand_out(const struct query *q)
{
    struct moe_layer_predictor *p = q->p;
    const struct moe_config *c = &p->session->model->config;
    for (uint32_t d = 0; d < q->n; d++) {
        uint64_t at = (uint64_t)d * c->n_experts;
        moe_tally(probabilities_at(p, d, 0), p->router_stride, q->n_rows, c->n_experts, c->top_k,
                  p->scores + at, p->unimportance + at, p->scratch);
        p->predictions[d] = (struct moe_prediction){
            q->target[d],
            q->n_rows,
            p->scores + at,
            p->unimportance + at,
        };
    }
}

/* The next `depth` MoE layers from model layer `first` on that a router chooses for; q->m is the
 * one before them. */
static void list_ahead(struct query *q, uint32_t first, uint32_t end, uint32_t depth)
{
    const struct moe_config *c = &q->p->session->model->config;
    uint32_t far = 0;
    for (uint32_t l = first; l < end && far < depth && far < q->p->depth; l++) {
        far += c->layers[l].moe;
        if (c->layers[l].moe && !c->layers[l].static_routing) {
            q->target[q->n] = q->m + far;
            q->ahead[q->n++] = &q->p->layers[l];
        }
    }
}

uint32_t moe_predict_first(struct moe_layer_predictor *p, uint32_t layer, uint32_t n_rows,
                           uint32_t depth, const struct moe_prediction **predictions)
{
    const struct moe_config *c = &p->session->model->config;
    uint32_t first = c->layers[layer].moe_index;
    struct query q = {
        .p = p, .m = first - 1, .n_rows = n_rows}; /* MOE_NO_LAYER_YET, or a source's */
    list_ahead(&q, layer, moe_config_stack_end(c, layer), depth);
    if (q.n > 0)
        predict(&q, true);
    hand_out(&q);
    *predictions = p->predictions;
    return q.n;
}

uint32_t moe_predict_layers(struct moe_layer_predictor *p, uint32_t layer, uint32_t n_rows,
                            uint32_t depth, const struct moe_prediction **predictions)
{
    const struct moe_config *c = &p->session->model->config;
    struct query q = {.p = p, .m = c->layers[layer].moe_index, .n_rows = n_rows};
    list_ahead(&q, layer + 1, moe_config_stack_end(c, layer), depth);
    bool from_choices = moe_predicts_from_choices(p->by);
    if (from_choices)
        moe_choice_history_see(&p->history, q.m, n_rows, p->session->request.chosen);
    if (q.n > 0)
        predict(&q, from_choices);
    if (from_choices || p->first_by_token)
        moe_choice_history_add(&p->history, q.m, n_rows, p->session->request.chosen,
                               p->session->request.weights);
    hand_out(&q);
    *predictions = p->predictions;
    return q.n;
}

uint32_t moe_predict_before_attention(struct moe_layer_predictor *p, uint32_t layer,
                                      uint32_t n_rows, const struct moe_prediction **predictions)
{
    const struct moe_config *c = &p->session->model->config;
    bool of_next = p->by == MOE_PREDICT_BY_ATTENTION_BEFORE;
    uint32_t target = layer + of_next;
    uint32_t end = moe_config_stack_end(c, layer);
    while (target < end && !c->layers[target].moe)
        target++;
    /* What a layer's own router chooses before its attention is known, not predicted. */
    if (target == end || c->layers[target].static_routing || (c->router_early && target == layer))
        return 0;
    uint32_t m = c->layers[layer].moe_index;
    struct query q = {.p = p, .m = m, .n_rows = n_rows, .n = 1, .target = {m + of_next}};
    q.attention = &p->layers[layer];
    q.ahead[0] = &p->layers[target];
    ask_routers(&q);
    hand_out(&q);
    *predictions = p->predictions;
    return 1;
}

/* ---- Routers on the host ---- */

/* Reads the tensor into the arena, unless that only counts; out->data NULL: there is none. */
static int read_tensor(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer,
                       struct moe_arena *arena, struct moe_mat *out, struct moe_err *err)
{
    char name[MOE_NAME_BYTES], what[MOE_NAME_BYTES + 16];
    uint32_t rows, cols;
    *out = (struct moe_mat){0};
    if (!moe_tensor_shape(&m->config, role, layer, &rows, &cols))
        return MOE_OK;
    moe_tensor_pack_name(role, layer, name);
    const struct moe_pack_tensor *t = moe_pack_tensor_find(m->pack, name);
    uint8_t *at = moe_arena_take(arena, t->extent.raw_bytes, 1);
    if (!at)
        return MOE_OK;
    *out = (struct moe_mat){at, t->layout, t->rows, t->cols};
    snprintf(what, sizeof what, "tensor '%s'", name);
    return moe_pack_read(m->pack, &t->extent, at, what, err);
}

static int read_vector(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer,
                       struct moe_arena *arena, const float **out, struct moe_err *err)
{
    struct moe_mat vector;
    int status = read_tensor(m, role, layer, arena, &vector, err);
    *out = (const float *)(const void *)vector.data;
    return status;
}

/* One block, the layers first; *out is NULL on an arena that only counts. */
static int carve_host_routers(struct moe_layer **out, const struct moe_model *m,
                              struct moe_arena *arena, struct moe_err *err)
{
    const struct moe_config *c = &m->config;
    struct moe_layer *layers = moe_arena_take(arena, c->n_layers, sizeof *layers);
    *out = layers;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        struct moe_layer layer = {.is_moe = c->layers[i].moe};
        if (!layer.is_moe)
            continue;
        MOE_TRY(read_tensor(m, MOE_T_ROUTER, i, arena, &layer.router, err));
        MOE_TRY(read_vector(m, MOE_T_ROUTER_BIAS, i, arena, &layer.router_bias, err));
        MOE_TRY(read_vector(m, MOE_T_CHOICE_BIAS, i, arena, &layer.choice_bias, err));
        MOE_TRY(read_vector(m, MOE_T_FFN_NORM, i, arena, &layer.ffn_norm, err));
        MOE_TRY(read_vector(m, MOE_T_FFN_NORM_BIAS, i, arena, &layer.ffn_norm_bias, err));
        if (layers)
            layers[i] = layer;
    }
    return MOE_OK;
}

uint64_t moe_host_routers_bytes(const struct moe_model *model)
{
    struct moe_arena arena = {0};
    struct moe_layer *none;
    carve_host_routers(&none, model, &arena, NULL);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

int moe_host_routers_read(struct moe_layer **out, const struct moe_model *model,
                          struct moe_err *err)
{
    uint64_t bytes = moe_host_routers_bytes(model);
    struct moe_arena arena = {.base = moe_alloc(bytes, 1, err), .size = bytes};
    *out = NULL;
    if (!arena.base)
        return MOE_ERR_MEMORY;
    int status = carve_host_routers(out, model, &arena, err);
    if (status != MOE_OK) {
        free(arena.base);
        *out = NULL;
    }
    return status;
}
