/*
 * What a model does with a document, looked at layer by layer.
 */
#include "tune/probe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/par.h"
#include "infer/forward.h"
#include "infer/router.h"
#include "kern/kern.h"

enum { DISTANCES = 3 };

/* Rows of a batch that are kept: rings over MoE layers, by layer number modulo their size. */
enum slot {
    GATE,                             /* gate inputs */
    RESIDUAL = GATE + DISTANCES,      /* the stream at the gate */
    ATTENTION = RESIDUAL + DISTANCES, /* its inputs, this layer's and the last's; or the stream */
    NORMALISED = ATTENTION + 2,       /* RESIDUAL as this layer's router takes it in */
    N_SLOTS = NORMALISED + DISTANCES
};

struct moe_probe {
    struct moe_session *session;
    struct moe_statistics *statistics;
    struct moe_trace_writer *trace; /* NULL: none is written */
    uint32_t batch;
    uint64_t stride, router_stride;
    float *rows;              /* [N_SLOTS][batch][stride] */
    float *lengths;           /* [N_SLOTS][batch] of the rows */
    float *scores;            /* [predictors][batch][router_stride] */
    float *cosines;           /* [MOE_N_COSINES][batch] */
    float *norms;             /* [batch * top_k] */
    uint32_t *gather;         /* [predictors * batch] */
    struct moe_row *pass;     /* [batch] */
    uint32_t *ids;            /* [batch] of its tokens */
    struct moe_inputs inputs; /* gathered rows, in the form that routers take */
    /* With router_dim: what this layer's router found of the rows, and of those gathered. */
    float *before, *gathered; /* [batch], [predictors * batch][stride] */
    struct moe_router_room room;
    uint8_t *block;       /* holds the buffers */
    uint32_t first_token; /* of the pass, in its source or target */
    uint32_t n_before;    /* tokens of the trace's sequence before its target: the source's */
    struct moe_layer_observation seen;
};

/* Of a layer among MoE layers, */
static uint32_t number_of(const struct moe_probe *p, uint32_t layer)
{
    return p->session->model->config.layers[layer].moe_index;
}

/* ... and among those of its encoder or decoder: inputs before the border predict nothing after it.
 */
static uint32_t place_of(const struct moe_probe *p, uint32_t layer)
{
    const struct moe_config *c = &p->session->model->config;
    uint32_t first = moe_config_in_encoder(c, layer) ? 0 : c->n_encoder;
    return number_of(p, layer) - number_of(p, first);
}

static float *row_at(const struct moe_probe *p, uint32_t slot, uint64_t row)
{
    return p->rows + ((uint64_t)slot * p->batch + row) * p->stride;
}

/* ---- Keeping inputs ---- */

struct keep {
    struct moe_probe *p;
    const float *from;
    uint64_t stride;
    uint32_t slot;
};

static void keep_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct keep *k = ctx;
    uint32_t hidden = k->p->session->model->config.hidden;
    for (int64_t i = begin; i < end; i++) {
        float *to = row_at(k->p, k->slot, (uint64_t)i);
        memcpy(to, k->from + (uint64_t)i * k->stride, hidden * sizeof *to);
        k->p->lengths[(uint64_t)k->slot * k->p->batch + (uint64_t)i] =
            sqrtf(moe_kern.dot(to, to, hidden));
    }
}

static void keep_rows(struct moe_probe *p, uint32_t slot, const float *from, uint64_t stride,
                      uint32_t n)
{
    struct keep k = {p, from, stride, slot};
    moe_par_for(n, 16, keep_range, &k);
}

static void on_attending(void *ctx, uint32_t layer, uint32_t n_rows, const float *input,
                         uint64_t stride)
{
    struct moe_probe *p = ctx;
    const struct moe_config *c = &p->session->model->config;
    if (c->layers[layer].moe)
        keep_rows(p, ATTENTION + place_of(p, layer) % 2,
                  c->router_early && !c->parallel_blocks ? p->session->states.h : input, stride,
                  n_rows);
}

/* ---- Predicting ---- */

/* Which rows a predictor applies the router to; N_SLOTS: none in this layer. stream: for routers
 * before attention, whose gate predictors take the normalized stream. */
static uint32_t slot_of_predictor(enum moe_predictor predictor, uint32_t m, bool stream)
{
    switch (predictor) {
    case MOE_PREDICT_GATE_1:
    case MOE_PREDICT_GATE_2:
    case MOE_PREDICT_GATE_3: {
        uint32_t d = (uint32_t)(predictor - MOE_PREDICT_GATE_1) + 1;
        return m < d ? N_SLOTS : stream ? NORMALISED + d - 1 : GATE + (m - d) % DISTANCES;
    }
    case MOE_PREDICT_ATTN:
        return ATTENTION + m % 2;
    case MOE_PREDICT_ATTN_1:
        return m >= 1 ? ATTENTION + (m - 1) % 2 : N_SLOTS;
    case MOE_PREDICT_RESIDUAL_1:
    case MOE_PREDICT_RESIDUAL_2:
    case MOE_PREDICT_RESIDUAL_3: {
        uint32_t d = (uint32_t)(predictor - MOE_PREDICT_RESIDUAL_1) + 1;
        return m >= d ? NORMALISED + d - 1 : N_SLOTS;
    }
    default:
        return N_SLOTS; /* it follows from choices: the statistics do that */
    }
}

struct look {
    struct moe_probe *p;
    const struct moe_layer *layer;
    uint32_t m;
    const float *gate_input;
    uint64_t stride;
};

/* The streams of the layers before, under this layer's norm. */
static void normalize_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct look *k = ctx;
    const struct moe_config *c = &k->p->session->model->config;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t d = 1; d <= DISTANCES && d <= k->m; d++) {
            const float *h = row_at(k->p, RESIDUAL + (k->m - d) % DISTANCES, (uint64_t)i);
            float *out = row_at(k->p, NORMALISED + d - 1, (uint64_t)i);
            moe_router_input_row(c, k->layer, h, out);
        }
}

static void compare_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    static const enum moe_predictor inputs[MOE_N_COSINES] = {
        [MOE_COSINE_GATE_1] = MOE_PREDICT_GATE_1, [MOE_COSINE_GATE_2] = MOE_PREDICT_GATE_2,
        [MOE_COSINE_GATE_3] = MOE_PREDICT_GATE_3, [MOE_COSINE_ATTN] = MOE_PREDICT_ATTN,
        [MOE_COSINE_ATTN_1] = MOE_PREDICT_ATTN_1,
    };
    const struct look *k = ctx;
    struct moe_probe *p = k->p;
    uint32_t hidden = p->session->model->config.hidden;
    for (int64_t i = begin; i < end; i++) {
        const float *x = k->gate_input + (uint64_t)i * k->stride;
        float length = sqrtf(moe_kern.dot(x, x, hidden));
        for (int c = 0; c < MOE_N_COSINES; c++) {
            uint32_t slot = slot_of_predictor(inputs[c], k->m, false);
            if (slot == N_SLOTS)
                continue;
            float both = length * p->lengths[(uint64_t)slot * p->batch + (uint64_t)i];
            p->cosines[(uint64_t)c * p->batch + (uint64_t)i] =
                both > 0 ? moe_kern.dot(x, row_at(p, slot, (uint64_t)i), hidden) / both : 0;
        }
    }
}

static void grade_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct look *k = ctx;
    const struct moe_probe *p = k->p;
    for (int64_t i = begin; i < end; i++)
        moe_router_grade(&p->session->model->config, k->layer->choice_bias,
                         p->scores + (uint64_t)i * p->router_stride);
}

/* One product of the layer's router with all inputs that predictors use. */
static void predict(struct look *k, uint32_t n_rows)
{
    struct moe_probe *p = k->p;
    uint32_t n = 0;
    moe_par_for(n_rows, 8, normalize_range, k);
    for (int i = 0; i < MOE_N_PREDICTORS; i++) {
        uint32_t slot = slot_of_predictor(i, k->m, p->session->model->config.router_early);
        p->seen.predicted[i] = slot == N_SLOTS ? NULL : p->scores + n * p->router_stride;
        for (uint32_t r = 0; slot != N_SLOTS && r < n_rows; r++)
            p->gather[n++] = slot * p->batch + r;
    }
    for (uint32_t i = 0; p->before && i < n; i++)
        memcpy(p->gathered + i * p->stride, p->before + p->gather[i] % p->batch * p->stride,
               p->stride * sizeof *p->gathered);
    const struct moe_mat *entry = moe_router_entry(k->layer);
    moe_inputs_set(&p->inputs, p->rows, p->stride, p->gather, n, entry->cols);
    const struct moe_router_use use = {k->layer,    moe_inputs_for(&p->inputs, entry->layout),
                                       p->scores,   &p->room,
                                       p->gathered, p->stride};
    moe_router_scores(&p->session->model->config, &use, 1, p->router_stride);
    moe_par_for(n, 16, grade_range, k);
}

static void on_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                      const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                      uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct moe_probe *p = ctx;
    const struct moe_states *states = &p->session->states;
    const struct moe_config *c = &p->session->model->config;
    uint32_t m = place_of(p, layer);
    if (c->router_early) { /* what the router took in was kept before attention */
        gate_input = row_at(p, ATTENTION + m % 2, 0);
        hidden_stride = p->stride;
    }
    struct look k = {p, &p->session->model->layers[layer], m, gate_input, hidden_stride};
    p->first_token = rows[0].position;
    for (uint32_t i = 0; i < n_rows; i++)
        p->ids[i] = rows[i].token;
    p->seen = (struct moe_layer_observation){
        .chosen = chosen,
        .weights = weights,
        .ids = p->ids,
        .by_token = c->layers[layer].static_routing,
        .stride = p->router_stride,
        .norms = p->norms,
    };
    if (!c->layers[layer].static_routing)
        predict(&k, n_rows);
    moe_par_for(n_rows, 16, compare_range, &k);
    for (uint32_t i = 0; i < MOE_N_COSINES; i++) {
        bool there = i == MOE_COSINE_ATTN || m >= (i == MOE_COSINE_ATTN_1 ? 1 : i + 1);
        p->seen.cosines[i] = there ? p->cosines + (uint64_t)i * p->batch : NULL;
    }
    if (p->trace)
        moe_trace_put(p->trace, number_of(p, layer),
                      p->first_token + (moe_config_in_encoder(c, layer) ? 0 : p->n_before), n_rows,
                      &p->seen, probabilities, router_stride);
    keep_rows(p, GATE + m % DISTANCES, gate_input, hidden_stride, n_rows);
    keep_rows(p, RESIDUAL + m % DISTANCES, states->h, states->stride, n_rows);
    if (p->before)
        memcpy(p->before, states->routed, n_rows * states->stride * sizeof *p->before);
}

/* ---- The experts' outputs ---- */

struct outputs {
    struct moe_probe *p;
    const float *outputs;
    uint64_t stride;
    const uint32_t *slots;
};

static void measure_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct outputs *o = ctx;
    uint32_t width = moe_config_expert_dim(&o->p->session->model->config);
    for (int64_t i = begin; i < end; i++) {
        const float *y = o->outputs + o->slots[i] * o->stride;
        o->p->norms[i] = o->p->seen.weights[i] * sqrtf(moe_kern.dot(y, y, width));
    }
}

static void on_computed(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                        uint64_t stride, const uint32_t *slots)
{
    struct moe_probe *p = ctx;
    struct outputs o = {p, outputs, stride, slots};
    moe_par_for((int64_t)n_rows * p->statistics->shape.top_k, 32, measure_range, &o);
    moe_statistics_observe(p->statistics, number_of(p, layer), p->first_token, n_rows, &p->seen);
}

/* ---- Opening and running ---- */

void moe_probe_close(struct moe_probe *p)
{
    if (!p)
        return;
    p->session->observer = (struct moe_observer){0};
    free(p->block);
    free(p);
}

/* One function carves the buffers, counting or for real. */
static void place_probe(struct moe_probe *p, struct moe_arena *arena, const struct moe_config *c,
                        uint32_t batch)
{
    p->batch = batch;
    p->stride = moe_round_up(c->hidden, MOE_PANEL_ROWS);
    p->router_stride = moe_router_stride(c);
    uint64_t kept = (uint64_t)N_SLOTS * batch, asked = (uint64_t)MOE_N_PREDICTORS * batch;
    p->rows = moe_arena_take(arena, kept, p->stride * sizeof *p->rows);
    p->lengths = moe_arena_take(arena, kept, sizeof *p->lengths);
    p->scores = moe_arena_take(arena, asked, p->router_stride * sizeof *p->scores);
    p->cosines = moe_arena_take(arena, (uint64_t)MOE_N_COSINES * batch, sizeof *p->cosines);
    p->norms = moe_arena_take(arena, (uint64_t)batch * c->top_k, sizeof *p->norms);
    p->gather = moe_arena_take(arena, asked, sizeof *p->gather);
    p->pass = moe_arena_take(arena, batch, sizeof *p->pass);
    p->ids = moe_arena_take(arena, batch, sizeof *p->ids);
    moe_inputs_carve(&p->inputs, arena, MOE_N_PREDICTORS * batch, c->hidden);
    if (c->router_dim) {
        p->before = moe_arena_take(arena, batch * p->stride, sizeof *p->before);
        p->gathered = moe_arena_take(arena, asked * p->stride, sizeof *p->gathered);
        moe_router_room_carve(&p->room, arena, c, MOE_N_PREDICTORS * batch);
    }
}

uint64_t moe_probe_bytes(const struct moe_config *config, uint32_t batch)
{
    struct moe_probe p = {0};
    struct moe_arena arena = {0};
    place_probe(&p, &arena, config, batch);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

int moe_probe_open(struct moe_probe **out, struct moe_session *session,
                   struct moe_statistics *statistics, struct moe_err *err)
{
    const struct moe_config *c = &session->model->config;
    struct moe_arena arena = {.size = moe_probe_bytes(c, session->batch)};
    *out = NULL;
    struct moe_probe *p = moe_alloc(1, sizeof *p, err);
    if (!p || !(arena.base = p->block = moe_alloc(arena.size, 1, err))) {
        free(p);
        return MOE_ERR_MEMORY;
    }
    p->session = session;
    p->statistics = statistics;
    place_probe(p, &arena, c, session->batch);
    session->observer = (struct moe_observer){
        .ctx = p, .routed = on_routed, .attending = on_attending, .computed = on_computed};
    *out = p;
    return MOE_OK;
}

void moe_probe_set_trace(struct moe_probe *p, struct moe_trace_writer *trace)
{
    p->trace = trace;
}

/* Announces tokens [first, first + n) of a document to the trace, n_prompt of them a prompt's. */
static int add_tokens(struct moe_probe *p, uint32_t first, const uint32_t *ids, uint32_t n,
                      uint32_t n_prompt, struct moe_err *err)
{
    if (p->trace)
        MOE_TRY(moe_trace_add(p->trace, n, n_prompt, err));
    if (p->trace)
        moe_trace_put_ids(p->trace, first, n, ids);
    return MOE_OK;
}

/* The same of a document from its first token on, n_prompt of all being its prompt. */
static int begin_rows(struct moe_probe *p, uint32_t first, const uint32_t *ids, uint32_t n,
                      uint32_t n_prompt, struct moe_err *err)
{
    uint32_t of_prompt = first >= n_prompt ? 0 : n_prompt - first < n ? n_prompt - first : n;
    if (p->trace && first == 0)
        MOE_TRY(moe_trace_begin(p->trace, err));
    return add_tokens(p, first, ids, n, of_prompt, err);
}

/* The decoder's rows, those of any batch alike. */
static int run_target(struct moe_probe *p, const uint32_t *ids, uint32_t n, struct moe_err *err)
{
    const struct moe_config *c = &p->session->model->config;
    for (uint32_t done = 0, n_rows; done < n; done += n_rows) {
        n_rows = n - done < p->batch ? n - done : p->batch;
        for (uint32_t i = 0; i < n_rows; i++)
            p->pass[i] = (struct moe_row){.position = done + i, .token = ids[done + i]};
        MOE_TRY(add_tokens(p, p->n_before + done, ids + done, n_rows, 0, err));
        MOE_TRY(moe_forward(p->session, MOE_PREFILL, p->pass, n_rows, c->n_encoder, c->n_layers,
                            NULL, NULL, err));
    }
    return MOE_OK;
}

uint64_t moe_probe_pair_hash(const uint32_t *source, uint32_t n_source, const uint32_t *target,
                             uint32_t n_target)
{
    uint64_t hash = moe_hash64(source, (uint64_t)n_source * sizeof *source);
    return moe_hash64_chain(hash, target, (uint64_t)n_target * sizeof *target);
}

int moe_probe_pair(struct moe_probe *p, const uint32_t *source, uint32_t n_source,
                   const uint32_t *target, uint32_t n_target, struct moe_err *err)
{
    uint64_t hash = moe_probe_pair_hash(source, n_source, target, n_target);
    int status = moe_statistics_begin(p->statistics, hash, err);
    for (uint32_t i = 0; i < n_source; i++)
        p->pass[i] = (struct moe_row){.position = i, .token = source[i], .length = n_source};
    if (status == MOE_OK)
        status = begin_rows(p, 0, source, n_source, n_source, err);
    if (status == MOE_OK)
        status = moe_encode(p->session, p->pass, n_source, NULL, err);
    p->n_before = n_source;
    if (status == MOE_OK)
        status = run_target(p, target, n_target - 1, err);
    p->n_before = 0;
    return status == MOE_OK ? moe_statistics_end(p->statistics, err) : status;
}

int moe_probe_document(struct moe_probe *p, const uint32_t *ids, uint32_t n, struct moe_err *err)
{
    uint32_t n_prompt = moe_prompt_tokens(&p->statistics->shape, n);
    /* Decoded one by one, a row sees only what is before it. */
    uint32_t length = p->session->model->config.prefix_lm ? 0 : n;
    MOE_TRY(moe_statistics_begin(p->statistics, moe_hash64(ids, (uint64_t)n * sizeof *ids), err));
    for (uint32_t done = 0, n_rows; done < n; done += n_rows) {
        n_rows = n - done < p->batch ? n - done : p->batch;
        for (uint32_t i = 0; i < n_rows; i++)
            p->pass[i] = (struct moe_row){0, done + i, ids[done + i], length};
        MOE_TRY(begin_rows(p, done, ids + done, n_rows, n_prompt, err));
        MOE_TRY(moe_forward(p->session, MOE_PREFILL, p->pass, n_rows,
                            p->session->model->config.n_encoder, p->session->model->config.n_layers,
                            NULL, NULL, err));
    }
    return moe_statistics_end(p->statistics, err);
}
