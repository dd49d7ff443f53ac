/* Importance: what a text loses when one expert runs at the lowest bitwidth. */
#include "tune/importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/par.h"
#include "infer/expert_compute.h"
#include "model/shape.h"

/* Each layer and the head take the time of the weights that a token meets there. */
int moe_importance_cost_open(struct moe_importance_cost *c, const struct moe_config *config,
                             const struct moe_corpus *corpus, struct moe_err *err)
{
    struct moe_shape_bytes bytes;
    *c = (struct moe_importance_cost){.config = config, .corpus = corpus};
    c->row = moe_alloc(config->n_layers, sizeof *c->row, err);
    if (!c->row)
        return MOE_ERR_MEMORY;
    MOE_TRY(moe_shape_bytes(&bytes, config, (struct moe_bits){8, 8}, 8, 64, err));
    double moe = (double)(bytes.attention + bytes.shared + config->top_k * bytes.expert);
    double dense = (double)(bytes.attention + bytes.dense_ff);
    double after = (double)bytes.head / moe;
    for (uint32_t layer = config->n_layers; layer-- > 0;) {
        if (layer + 1 == config->n_encoder)
            after = 0;
        after += config->layers[layer].moe ? 1 : dense / moe;
        c->row[layer] = after;
    }
    return MOE_OK;
}

void moe_importance_cost_close(struct moe_importance_cost *c)
{
    free(c->row);
    *c = (struct moe_importance_cost){0};
}

double moe_importance_job_cost(const struct moe_importance_cost *c, uint32_t document,
                               uint32_t layer)
{
    uint32_t n_encoder = c->config->n_encoder;
    double rows = moe_corpus_length(c->corpus, document) - 1;
    if (layer >= n_encoder)
        return rows * c->row[layer];
    return moe_corpus_source(c->corpus, document) * c->row[layer] + rows * c->row[n_encoder];
}

double moe_importance_look_cost(const struct moe_importance_cost *c, uint32_t layer)
{
    return (double)(layer < c->config->n_encoder ? c->corpus->n_source_tokens
                                                 : c->corpus->n_predicted);
}

double moe_importance_pass_cost(const struct moe_importance_cost *c)
{
    double sum = 0;
    for (uint32_t d = 0; d < c->corpus->n_documents; d++)
        sum += moe_importance_job_cost(c, d, 0);
    return sum;
}

/*
 * Importance, measured. Layer by layer, under the upper precision: who visits which expert; then
 * for each expert its visitors once more from that layer on, with this expert alone at the lower
 * precision. A job's tag is that expert.
 */

enum {
    CALL_ROWS = 1 << 15, /* of one call's jobs, about: all passes but the last are full */
    NOWHERE = UINT32_MAX,
};

struct exact {
    const struct moe_importance_options *options;
    const struct moe_corpus *corpus;
    const struct moe_quality *base;
    const struct moe_config *config;
    struct moe_importances *importances;
    uint32_t n_experts, top_k;
    int status; /* of `saved` */
    struct moe_err *err;

    uint32_t layer;       /* of the model, where an expert is changed; NOWHERE: in none */
    uint64_t first;       /* the layer's experts among all importances */
    uint8_t *visited;     /* [n_documents][n_experts] of the layer */
    uint32_t *n_visitors; /* [n_experts] */
    struct moe_job *jobs; /* [n_experts * n_documents] */
    uint64_t n_jobs;      /* of the call being prepared */
    double *differences;  /* [n_documents] of the expert whose jobs are being done */
    uint32_t n_done;      /* ... of its jobs */
    uint32_t changed;     /* ... its changed tokens */

    const char *step; /* for the progress bar */
    struct moe_importance_cost costs;
    double cost;        /* of all jobs */
    double done, total; /* of this step */
};

/* ---- Which experts ---- */

static bool wanted(const struct exact *x, uint64_t index)
{
    const struct moe_importance_options *o = x->options;
    return !x->importances->known[index] && index % o->n_shards == o->shard &&
           (!o->asked || o->asked[index]);
}

static bool layer_wanted(const struct exact *x, uint32_t moe_layer)
{
    bool any = false;
    for (uint32_t e = 0; e < x->n_experts; e++)
        any = any || wanted(x, (uint64_t)moe_layer * x->n_experts + e);
    return any;
}

/* How many of the model's layers must be looked at: up to the last with a wanted expert. */
static uint32_t layers_to_walk(const struct exact *x, const struct moe_map *map)
{
    uint32_t end = 0;
    for (uint32_t l = 0; l < map->n_layers; l++)
        if (layer_wanted(x, l))
            end = map->model_layer[l] + 1;
    return end;
}

/* ---- Progress ---- */

static void report_progress(struct exact *x, double more)
{
    x->done += more;
    moe_progress_report(x->options->progress, x->step, (uint64_t)x->done, (uint64_t)x->total);
}

/* ---- One expert ---- */

static void assign(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct exact *x = ctx;
    (void)weights;
    uint64_t n = (uint64_t)n_rows * x->top_k;
    memset(variants, (int)x->options->upper, n);
    for (uint64_t i = 0; layer == x->layer && i < n; i++)
        if (chosen[i] == job->tag)
            variants[i] = (uint8_t)x->options->lower;
}

/* The sum of what its visitors lose, in their order; documents that do not visit it lose nothing.
 * Documents are taken as independent: the error of a sum of n is sqrt(n * their variance). */
static void finish_expert(struct exact *x, uint32_t expert)
{
    uint64_t i = x->first + expert;
    uint32_t n = x->corpus->n_documents;
    double sum = 0, squares = 0;
    for (uint32_t d = 0; d < n; d++)
        sum += x->differences[d];
    for (uint32_t d = 0; d < n; d++)
        squares += (x->differences[d] - sum / n) * (x->differences[d] - sum / n);
    x->importances->nats[i] = sum;
    x->importances->error[i] = n > 1 ? sqrt(squares * n / (n - 1)) : 0;
    x->importances->changed[i] = x->changed;
    x->importances->visited[i] = x->n_visitors[expert];
    x->importances->known[i] = 1;
    memset(x->differences, 0, n * sizeof *x->differences);
    x->n_done = x->changed = 0;
    if (x->options->saved && x->status == MOE_OK)
        x->status = x->options->saved(x->options->ctx, x->err);
}

static void job_done(void *ctx, const struct moe_job *job, const double *nats, const uint32_t *best,
                     uint32_t n)
{
    struct exact *x = ctx;
    const uint32_t *base_best = x->base->best + moe_corpus_prediction(x->corpus, job->document);
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += nats[i];
        x->changed += best[i] != base_best[i];
    }
    x->differences[job->document] = sum - x->base->nats[job->document];
    report_progress(x, moe_importance_job_cost(&x->costs, job->document, x->layer));
    if (++x->n_done == x->n_visitors[job->tag])
        finish_expert(x, job->tag);
}

/* ---- One layer ---- */

/* Adds a job for each document that visits the expert, and what they cost; returns their rows. */
static uint64_t add_jobs(struct exact *x, uint32_t expert, uint32_t layer, double *cost)
{
    uint64_t rows = 0;
    x->n_visitors[expert] = 0;
    for (uint32_t d = 0; d < x->corpus->n_documents; d++)
        if (x->visited[(uint64_t)d * x->n_experts + expert]) {
            x->jobs[x->n_jobs++] = (struct moe_job){d, expert};
            x->n_visitors[expert]++;
            rows += moe_corpus_length(x->corpus, d) - 1;
            *cost += moe_importance_job_cost(&x->costs, d, layer);
        }
    return rows;
}

/* Runs the collected jobs, of whole experts. */
static int run_jobs(struct exact *x, struct moe_rerun *r, uint32_t layer, struct moe_err *err)
{
    const struct moe_rule rule = {x, assign};
    const struct moe_sink sink = {x, job_done};
    x->layer = layer;
    x->n_done = x->changed = 0;
    int status = moe_rerun_jobs(r, layer, x->jobs, x->n_jobs, &rule, &sink, err);
    x->layer = NOWHERE;
    x->n_jobs = 0;
    return x->status != MOE_OK ? x->status : status;
}

/* All wanted experts of the layer that was looked at. */
static int run_layer(struct exact *x, struct moe_rerun *r, uint32_t layer, struct moe_err *err)
{
    uint64_t rows = 0;
    double cost = 0; /* counted before */
    for (uint32_t e = 0; e < x->n_experts; e++) {
        if (!wanted(x, x->first + e))
            continue;
        rows += add_jobs(x, e, layer, &cost);
        if (x->n_visitors[e] == 0)
            finish_expert(x, e);
        if (rows >= CALL_ROWS) {
            MOE_TRY(run_jobs(x, r, layer, err));
            rows = 0;
        }
    }
    if (x->n_jobs > 0)
        MOE_TRY(run_jobs(x, r, layer, err));
    return x->status;
}

/* ---- All layers ---- */

/* Looks at all layers up to the last with a wanted expert, under the upper precision, and calls fn
 * for each that has one, before the states move on. */
static int walk_layers(struct exact *x, struct moe_rerun *r, uint32_t end,
                       int (*fn)(struct exact *x, struct moe_rerun *r, uint32_t layer,
                                 struct moe_err *err),
                       struct moe_err *err)
{
    const struct moe_rule rule = {x, assign};
    int status = MOE_OK;
    moe_rerun_rewind(r);
    for (uint32_t layer = 0; layer < end && status == MOE_OK; layer++) {
        uint32_t moe_layer = x->config->layers[layer].moe_index;
        bool here = x->config->layers[layer].moe && layer_wanted(x, moe_layer);
        x->first = (uint64_t)moe_layer * x->n_experts;
        status = moe_rerun_look(r, &rule, here ? x->visited : NULL, err);
        report_progress(x, moe_importance_look_cost(&x->costs, layer));
        if (status == MOE_OK && here)
            status = fn(x, r, layer, err);
        if (status == MOE_OK)
            moe_rerun_step(r);
    }
    return status;
}

/* Adds what the layer's experts will cost. */
static int count_layer(struct exact *x, struct moe_rerun *r, uint32_t layer, struct moe_err *err)
{
    for (uint32_t e = 0; e < x->n_experts; e++)
        if (wanted(x, x->first + e))
            add_jobs(x, e, layer, &x->cost);
    x->n_jobs = 0; /* they were only counted */
    return MOE_OK;
}

/* Twice over the layers: the first time, which costs as much as one pass over the text, only to
 * know how long the second will take. */
static int walk_twice(struct exact *x, struct moe_rerun *r, const struct moe_map *map,
                      struct moe_err *err)
{
    uint32_t end = layers_to_walk(x, map);
    double looks = 0;
    for (uint32_t layer = 0; layer < end; layer++)
        looks += moe_importance_look_cost(&x->costs, layer);
    x->step = "routing";
    x->total = looks;
    int status = walk_layers(x, r, end, count_layer, err);
    x->step = "importance";
    x->done = 0;
    x->total = looks + x->cost;
    if (status == MOE_OK)
        status = walk_layers(x, r, end, run_layer, err);
    moe_rerun_rewind(r);
    return status;
}

/* ---- Checks and memory ---- */

/* What both begin with: checks that map, texts and options belong together and says in the map what
 * its importances are, of the pack's own dense part unless it says so already. MOE_ERR_USAGE: they
 * do not, or the map holds importances of another kind. */
static int begin_importances(struct moe_map *map, struct moe_rerun *r,
                             const struct moe_quality *base, const struct moe_importance_options *o,
                             bool exact, struct moe_err *err)
{
    const struct moe_model *model = moe_rerun_session(r)->model;
    const struct moe_config *c = &model->config;
    struct moe_importances *there = &map->importances;
    uint32_t n_variants = moe_pack_n_variants(model->pack);
    if (o->n_shards == 0 || o->shard >= o->n_shards)
        return moe_fail(err, MOE_ERR_USAGE, "there is no shard %u of %u", o->shard, o->n_shards);
    if (o->upper >= n_variants || o->lower >= n_variants)
        return moe_fail(err, MOE_ERR_USAGE, "the pack has %u variants, not a variant %u",
                        n_variants, o->upper > o->lower ? o->upper : o->lower);
    if (map->n_experts != c->n_experts || map->top_k != c->top_k ||
        map->n_layers != c->n_moe_layers)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the map is of a model with %u layers of %u experts, not of this one",
                        map->n_layers, map->n_experts);
    if (base->corpus != moe_rerun_corpus(r) || !base->best)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the quality at the upper precision must be a reference on the same texts");
    if (there->there &&
        (there->exact != exact || there->upper != o->upper || there->lower != o->lower))
        return moe_fail(err, MOE_ERR_USAGE,
                        "the map holds importances that were %s, variant %u under %u; begin with a "
                        "new one",
                        there->exact ? "measured" : "estimated", there->lower, there->upper);
    if (!there->there)
        there->dense_bits = map->pack_dense_bits;
    there->there = true;
    there->exact = exact;
    there->upper = o->upper;
    there->lower = o->lower;
    return MOE_OK;
}

int moe_importance_exact(struct moe_map *map, struct moe_rerun *r, const struct moe_quality *base,
                         const struct moe_importance_options *options, struct moe_err *err)
{
    int status = begin_importances(map, r, base, options, true, err);
    if (status != MOE_OK)
        return status;
    const struct moe_config *c = &moe_rerun_session(r)->model->config;
    const struct moe_corpus *corpus = base->corpus;
    uint64_t n_pairs = (uint64_t)corpus->n_documents * c->n_experts;
    struct exact x = {
        .options = options,
        .corpus = corpus,
        .base = base,
        .config = c,
        .importances = &map->importances,
        .n_experts = c->n_experts,
        .top_k = c->top_k,
        .err = err,
        .layer = NOWHERE,
    };
    if (!(x.visited = moe_alloc(n_pairs, sizeof *x.visited, err)) ||
        !(x.n_visitors = moe_alloc(c->n_experts, sizeof *x.n_visitors, err)) ||
        !(x.jobs = moe_alloc(n_pairs, sizeof *x.jobs, err)) ||
        !(x.differences = moe_alloc(corpus->n_documents, sizeof *x.differences, err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_importance_cost_open(&x.costs, c, corpus, err);
    if (status == MOE_OK)
        status = walk_twice(&x, r, map, err);
    free(x.visited);
    free(x.n_visitors);
    free(x.jobs);
    free(x.differences);
    moe_importance_cost_close(&x.costs);
    return status;
}

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
 * Alternatives, by how well their ranks agree with what is measured on the bundled model: errors
 * that are not relative (worse), their square roots (worse), and a loss for each layer by itself,
 * shared out within it (no better, for a dozen more passes).
 */

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
    for (uint32_t e = 0; e < p->config->n_experts; e++) {
        uint32_t variant = moe_pack_usable_variant(pack, layer, e, p->options->lower);
        p->views[e] = (struct moe_expert_view){.layer = layer, .expert = e, .variant = variant};
        MOE_TRY(moe_expert_view_read(&p->views[e], pack, arena, err));
    }
    return MOE_OK;
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
        if (p->config->layers[layer].moe) {
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

static int allocate_proxy(struct proxy *p, const struct moe_map *map, struct moe_err *err)
{
    uint64_t batch = p->session->batch, pairs = batch * p->config->top_k;
    if (!(p->views = moe_alloc(p->config->n_experts, sizeof *p->views, err)) ||
        !(p->visited = moe_alloc(p->base->corpus->n_documents, p->config->n_experts, err)) ||
        !(p->inputs = moe_alloc(batch * p->stride, sizeof *p->inputs, err)) ||
        !(p->chosen = moe_alloc(pairs, sizeof *p->chosen, err)) ||
        !(p->weights = moe_alloc(pairs, sizeof *p->weights, err)))
        return MOE_ERR_MEMORY;
    MOE_TRY(allocate_experts(p, map, err));
    return open_workers(p, err);
}

static void release_proxy(struct proxy *p)
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
    int status = begin_importances(map, r, base, options, false, err);
    if (status != MOE_OK)
        return status;
    const struct moe_session *session = moe_rerun_session(r);
    const struct moe_config *c = &session->model->config;
    if (c->expert_dim)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "importances of experts in a space of their own can only be measured: use "
                        "--importance exact");
    struct proxy p = {
        .options = options,
        .session = session,
        .config = c,
        .base = base,
        .stride = moe_round_up(c->hidden, MOE_PANEL_ROWS),
    };
    double loss = 0;
    MOE_STEP(allocate_proxy(&p, map, err));
    MOE_STEP(measure_loss(&p, r, &loss, err));
    MOE_STEP(watch(&p, r, map, err));
    share_out(map, loss);
out:
    release_proxy(&p);
    return status;
}
