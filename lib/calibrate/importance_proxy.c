/*
 * Importance, estimated from one pass over the text under the upper precision.
 *
 * Layer by layer, each activation is also computed with the expert at the lower precision. What
 * that changes in the layer's output, relative to the residual stream h that it is added to, is
 * the activation's error: (weight * |difference| / |h|)^2. An expert's error is the sum over its
 * activations, as errors of many activations add up where they are independent. To make nats of
 * it, the loss of a second pass with all experts at the lower precision is shared out by the
 * errors.
 *
 * Alternatives, by their rank correlation with what is measured on the bundled model: errors that
 * are not relative (worse), their square roots (worse), and a loss for each layer by itself, shared
 * out within it (no better, for a dozen more passes).
 */
#include "calibrate/importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "experts/expert_compute.h"

enum { CHUNK = 64 }; /* activations computed together */

/* What one thread computes with. */
struct worker {
    struct moe_expert_compute *compute;
    float *out; /* [CHUNK][stride] */
};

struct proxy {
    const struct moe_importance_options *options;
    const struct moe_session *session;
    const struct moe_config *config;
    const struct moe_quality *base;
    uint64_t stride; /* of rows here */

    struct moe_expert_view *views; /* [n_experts] of the layer at work, at the lower precision */
    uint8_t *experts;              /* their weights */
    uint64_t experts_bytes;
    float *inputs;          /* [batch][stride] of the layer's experts */
    uint32_t *chosen;       /* [batch][top_k] */
    float *weights;         /* [batch][top_k] */
    double *errors;         /* [n_experts] of the layer, out */
    uint8_t *visited;       /* [n_documents][n_experts] of the layer */
    struct worker *workers; /* [threads] */
    int n_workers;

    /* The pass that was computed, for the loop over experts. */
    const float *outputs;
    const uint32_t *slots;
    uint64_t output_stride;
    uint32_t n_rows;
};

/* ---- Errors of activations ---- */

static double square_distance(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

static double square(const float *a, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)a[i] * a[i];
    return sum;
}

/* Adds the errors of n activations, computed by the expert at the lower precision, in their order.
 */
static void add_errors(struct proxy *p, const struct worker *w, uint32_t expert,
                       const uint32_t *activations, uint32_t n)
{
    const struct moe_states *states = &p->session->states;
    uint32_t hidden = p->config->hidden, rows[CHUNK];
    bool inside = p->config->weigh_inputs;
    float scales[CHUNK];
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = activations[i] / p->config->top_k;
        scales[i] = p->weights[activations[i]];
    }
    moe_expert_compute(w->compute, &p->views[expert], p->inputs, p->stride, rows,
                       inside ? scales : NULL, n, w->out, p->stride);
    for (uint32_t i = 0; i < n; i++) {
        double weight = (inside ? 1 : scales[i]) * (double)p->config->residual_scale;
        double stream = square(states->h + rows[i] * states->stride, hidden);
        double distance = square_distance(p->outputs + p->slots[activations[i]] * p->output_stride,
                                          w->out + i * p->stride, hidden);
        if (stream > 0)
            p->errors[expert] += weight * weight * distance / stream;
    }
}

static void compare_experts(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct proxy *p = ctx;
    uint32_t n_activations = p->n_rows * p->config->top_k;
    for (int64_t e = begin; e < end; e++) {
        uint32_t activations[CHUNK], n = 0;
        for (uint32_t i = 0; i < n_activations; i++) {
            if (p->chosen[i] == e)
                activations[n++] = i;
            if (n == CHUNK || (n > 0 && i + 1 == n_activations)) {
                add_errors(p, &p->workers[thread], (uint32_t)e, activations, n);
                n = 0;
            }
        }
    }
}

/* Observers of the layer's passes: one keeps the experts' inputs, the other compares their outputs
 * before they are added to the stream. */
static void keep_inputs(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                        const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                        uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct proxy *p = ctx;
    uint64_t n = (uint64_t)n_rows * p->config->top_k;
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(p->inputs + i * p->stride, gate_input + i * hidden_stride,
               p->config->hidden * sizeof *p->inputs);
    memcpy(p->chosen, chosen, n * sizeof *chosen);
    memcpy(p->weights, weights, n * sizeof *weights);
}

static void compare_outputs(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                            uint64_t stride, const uint32_t *slots)
{
    struct proxy *p = ctx;
    p->outputs = outputs;
    p->output_stride = stride;
    p->slots = slots;
    p->n_rows = n_rows;
    moe_par_for(p->config->n_experts, 1, compare_experts, p);
}

/* ---- Layers ---- */

/* The layer's experts at the lower precision, from the arena's beginning; an arena without a block
 * only measures. */
static int read_experts(struct proxy *p, struct moe_arena *arena, uint32_t layer,
                        struct moe_err *err)
{
    const struct moe_pack *pack = p->session->model->pack;
    int status = MOE_OK;
    for (uint32_t e = 0; e < p->config->n_experts && status == MOE_OK; e++) {
        uint32_t variant = moe_pack_usable_variant(pack, layer, e, p->options->lower);
        p->views[e] = (struct moe_expert_view){.layer = layer, .expert = e, .variant = variant};
        status = moe_expert_view_read(&p->views[e], pack, arena, err);
    }
    return status;
}

static void assign_upper(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                         const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct proxy *p = ctx;
    memset(variants, (int)p->options->upper, (uint64_t)n_rows * p->config->top_k);
}

static void assign_lower(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                         const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct proxy *p = ctx;
    memset(variants, (int)p->options->lower, (uint64_t)n_rows * p->config->top_k);
}

/* The next layer of r: its experts' errors, and how many documents visit each. */
static int watch_layer(struct proxy *p, struct moe_rerun *r, uint32_t layer, double *errors,
                       uint32_t *n_visitors, struct moe_err *err)
{
    const struct moe_rule rule = {p, assign_upper};
    struct moe_arena arena = {.base = p->experts, .size = p->experts_bytes};
    struct moe_observer *observer = &moe_rerun_session(r)->observer, before = *observer;
    uint32_t n_experts = p->config->n_experts;
    p->errors = errors;
    int status = read_experts(p, &arena, layer, err);
    if (status != MOE_OK)
        return status;
    *observer = (struct moe_observer){.ctx = p, .routed = keep_inputs, .computed = compare_outputs};
    status = moe_rerun_look(r, &rule, p->visited, err);
    *observer = before;
    memset(n_visitors, 0, n_experts * sizeof *n_visitors);
    for (uint32_t d = 0; d < p->base->corpus->n_documents; d++)
        for (uint32_t e = 0; e < n_experts; e++)
            n_visitors[e] += p->visited[(uint64_t)d * n_experts + e];
    return status;
}

/* Errors of all experts, into the map's nats for now. */
static int watch(struct proxy *p, struct moe_rerun *r, struct moe_map *map, struct moe_err *err)
{
    const struct moe_rule rule = {p, assign_upper};
    int status = MOE_OK;
    uint64_t first = 0; /* expert of the layer */
    uint64_t n = (uint64_t)map->n_layers * map->n_experts;
    memset(map->importances.known, 0, n);
    memset(map->importances.nats, 0, n * sizeof *map->importances.nats);
    moe_rerun_rewind(r);
    for (uint32_t layer = 0; layer < p->config->n_layers && status == MOE_OK; layer++) {
        if (p->config->layer_is_moe[layer]) {
            status = watch_layer(p, r, layer, map->importances.nats + first,
                                 map->importances.visited + first, err);
            first += map->n_experts;
        } else {
            status = moe_rerun_look(r, &rule, NULL, err);
        }
        moe_rerun_step(r);
        moe_progress_report(p->options->progress, "importance", layer + 1, p->config->n_layers);
    }
    moe_rerun_rewind(r);
    return status;
}

/* Nats that all experts together cost at the lower precision. */
static int measure_loss(struct proxy *p, struct moe_rerun *r, double *loss, struct moe_err *err)
{
    const struct moe_rule rule = {p, assign_lower};
    struct moe_quality low;
    int status = moe_quality_measure(&low, r, &rule, p->base, err);
    *loss = 0;
    for (uint32_t d = 0; status == MOE_OK && d < p->base->corpus->n_documents; d++)
        *loss += low.nats[d] - p->base->nats[d];
    if (status == MOE_OK)
        moe_quality_release(&low);
    return status;
}

/* From errors to nats. A gain can only be noise: then its size says how large a loss would be. */
static void share_out(struct moe_map *map, double loss)
{
    uint64_t n = (uint64_t)map->n_layers * map->n_experts;
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += map->importances.nats[i];
    for (uint64_t i = 0; i < n; i++)
        map->importances.nats[i] *= sum > 0 ? fabs(loss) / sum : 0;
    memset(map->importances.known, 1, n);
}

/* ---- Memory ---- */

uint64_t moe_importance_bytes(const struct moe_config *config, const struct moe_corpus *corpus,
                              uint32_t batch, uint64_t layer_bytes)
{
    uint64_t stride = moe_round_up(config->hidden, MOE_PANEL_ROWS), d = corpus->n_documents;
    uint64_t visits = d * config->n_experts; /* and jobs for them, when measured */
    uint64_t worker = CHUNK * stride * sizeof(float) + moe_expert_compute_bytes(config, CHUNK);
    return visits * (1 + sizeof(struct moe_job)) + d * sizeof(double) + layer_bytes +
           config->n_experts * sizeof(struct moe_expert_view) +
           batch * (stride * sizeof(float) + config->top_k * (sizeof(uint32_t) + sizeof(float))) +
           (uint64_t)moe_par_threads() * worker;
}

static int open_workers(struct proxy *p, struct moe_err *err)
{
    p->n_workers = moe_par_threads();
    p->workers = moe_alloc((uint64_t)p->n_workers, sizeof *p->workers, err);
    for (int i = 0; p->workers && i < p->n_workers; i++) {
        struct worker *w = &p->workers[i];
        w->out = moe_alloc(CHUNK * p->stride, sizeof *w->out, err);
        if (!w->out || moe_expert_compute_open(&w->compute, p->config, CHUNK, err) != MOE_OK)
            return MOE_ERR_MEMORY;
    }
    return p->workers ? MOE_OK : MOE_ERR_MEMORY;
}

/* Room for the lower experts of the layer that takes most. */
static int allocate_experts(struct proxy *p, const struct moe_map *map, struct moe_err *err)
{
    for (uint32_t l = 0; l < map->n_layers; l++) {
        struct moe_arena arena = {0};
        int status = read_experts(p, &arena, map->model_layer[l], err);
        if (status != MOE_OK)
            return status;
        p->experts_bytes = arena.used > p->experts_bytes ? arena.used : p->experts_bytes;
    }
    p->experts = moe_alloc(p->experts_bytes, 1, err);
    return p->experts ? MOE_OK : MOE_ERR_MEMORY;
}

static int allocate(struct proxy *p, const struct moe_map *map, struct moe_err *err)
{
    uint64_t batch = p->session->batch, pairs = batch * p->config->top_k;
    if (!(p->views = moe_alloc(p->config->n_experts, sizeof *p->views, err)) ||
        !(p->visited = moe_alloc(p->base->corpus->n_documents, p->config->n_experts, err)) ||
        !(p->inputs = moe_alloc(batch * p->stride, sizeof *p->inputs, err)) ||
        !(p->chosen = moe_alloc(pairs, sizeof *p->chosen, err)) ||
        !(p->weights = moe_alloc(pairs, sizeof *p->weights, err)))
        return MOE_ERR_MEMORY;
    int status = allocate_experts(p, map, err);
    return status == MOE_OK ? open_workers(p, err) : status;
}

static void release(struct proxy *p)
{
    for (int i = 0; p->workers && i < p->n_workers; i++) {
        moe_expert_compute_close(p->workers[i].compute);
        free(p->workers[i].out);
    }
    free(p->workers);
    free(p->experts);
    free(p->views);
    free(p->visited);
    free(p->inputs);
    free(p->chosen);
    free(p->weights);
}

int moe_importance_proxy(struct moe_map *map, struct moe_rerun *r, const struct moe_quality *base,
                         const struct moe_importance_options *options, struct moe_err *err)
{
    int status = moe_importance_begin(map, r, base, options, false, err);
    if (status != MOE_OK)
        return status;
    const struct moe_session *session = moe_rerun_session(r);
    const struct moe_config *c = &session->model->config;
    struct proxy p = {
        .options = options,
        .session = session,
        .config = c,
        .base = base,
        .stride = moe_round_up(c->hidden, MOE_PANEL_ROWS),
    };
    double loss = 0;
    status = allocate(&p, map, err);
    if (status == MOE_OK)
        status = measure_loss(&p, r, &loss, err);
    if (status == MOE_OK)
        status = watch(&p, r, map, err);
    if (status == MOE_OK)
        share_out(map, loss);
    release(&p);
    return status;
}
