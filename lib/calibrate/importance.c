/*
 * Importance, measured. Layer by layer, under the upper precision: who visits which expert; then
 * for each expert its visitors once more from that layer on, with this expert alone at the lower
 * precision. A job's tag is that expert.
 */
#include "calibrate/importance.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "calibrate/importance_cost.h"

enum {
    CALL_ROWS = 1 << 15, /* of one call's jobs, about: passes are full but for the last */
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

static void report(struct exact *x, double more)
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
    report(x, moe_importance_job_cost(&x->costs, job->document, x->layer));
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

/* Runs the jobs collected so far, of whole experts. */
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
    int status = MOE_OK;
    for (uint32_t e = 0; e < x->n_experts && status == MOE_OK; e++) {
        if (!wanted(x, x->first + e))
            continue;
        rows += add_jobs(x, e, layer, &cost);
        if (x->n_visitors[e] == 0)
            finish_expert(x, e);
        if (rows >= CALL_ROWS) {
            status = run_jobs(x, r, layer, err);
            rows = 0;
        }
    }
    if (status == MOE_OK && x->n_jobs > 0)
        status = run_jobs(x, r, layer, err);
    return status != MOE_OK ? status : x->status;
}

/* ---- All layers ---- */

/* Looks at all layers up to the last with a wanted expert, under the upper precision, and calls fn
 * for each that has one, before the states move on. */
static int walk(struct exact *x, struct moe_rerun *r, uint32_t end,
                int (*fn)(struct exact *x, struct moe_rerun *r, uint32_t layer,
                          struct moe_err *err),
                struct moe_err *err)
{
    const struct moe_rule rule = {x, assign};
    int status = MOE_OK;
    moe_rerun_rewind(r);
    for (uint32_t layer = 0; layer < end && status == MOE_OK; layer++) {
        uint32_t moe_layer = moe_config_moe_layers(x->config, layer);
        bool here = x->config->layer_is_moe[layer] && layer_wanted(x, moe_layer);
        x->first = (uint64_t)moe_layer * x->n_experts;
        status = moe_rerun_look(r, &rule, here ? x->visited : NULL, err);
        report(x, moe_importance_look_cost(&x->costs, layer));
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
    int status = walk(x, r, end, count_layer, err);
    x->step = "importance";
    x->done = 0;
    x->total = looks + x->cost;
    if (status == MOE_OK)
        status = walk(x, r, end, run_layer, err);
    moe_rerun_rewind(r);
    return status;
}

/* ---- Checks and memory ---- */

int moe_importance_begin(struct moe_map *map, struct moe_rerun *r, const struct moe_quality *base,
                         const struct moe_importance_options *o, bool exact, struct moe_err *err)
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
        map->n_layers != moe_config_moe_layers(c, c->n_layers))
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
    int status = moe_importance_begin(map, r, base, options, true, err);
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
