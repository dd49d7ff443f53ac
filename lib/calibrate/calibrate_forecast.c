/*
 * What a calibration will take, before it is begun: some documents are run through the model,
 * twice, for who visits which expert and for the time of a row. The search then costs what it
 * counts by itself while it goes (importance_cost.h), with the share of all texts for that of these
 * documents.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "calibrate/calibrate_private.h"
#include "calibrate/importance_cost.h"

enum { TRIED_PASSES = 2 }; /* so many full ones, if the texts have them */

struct trial {
    const struct calibration *c;
    const struct moe_config *config;
    struct moe_importance_cost costs;
    struct moe_job *jobs; /* [n_documents]; tags count them */
    uint32_t n_jobs;
    uint8_t *visited; /* [n_jobs][model layers][n_experts] */
    double seconds;
};

/* ---- Trying ---- */

static void assign(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    struct trial *t = ctx;
    uint64_t n = (uint64_t)n_rows * t->config->top_k;
    uint64_t layers_before = (uint64_t)job->tag * t->config->n_layers + layer;
    (void)weights;
    memset(variants, 0, n);
    for (uint64_t i = 0; i < n; i++)
        t->visited[layers_before * t->config->n_experts + chosen[i]] = 1;
}

static void job_done(void *ctx, const struct moe_job *job, const double *nats, const uint32_t *best,
                     uint32_t n)
{
    const struct trial *t = ctx;
    (void)nats, (void)best, (void)n;
    moe_progress_report(t->c->options->progress, "trying", job->tag + 1, t->n_jobs);
}

/* Documents from all over the texts. */
static void choose_documents(struct trial *t)
{
    const struct moe_corpus *corpus = t->c->corpus;
    const struct moe_rerun_options rerun = calibrate_rerun_options(t->c, true);
    uint64_t most = (uint64_t)TRIED_PASSES * moe_rerun_rows(corpus, &rerun);
    uint64_t n = corpus->n_documents;
    if (corpus->n_predicted > most)
        n = (most * n + corpus->n_predicted - 1) / corpus->n_predicted;
    for (uint64_t i = 0; i < n; i++)
        t->jobs[i] = (struct moe_job){(uint32_t)(i * corpus->n_documents / n), (uint32_t)i};
    t->n_jobs = (uint32_t)n;
}

static int try_documents(struct trial *t, struct moe_err *err)
{
    const struct moe_rule rule = {t, assign};
    const struct moe_sink sink = {t, job_done};
    struct moe_rerun *r = t->c->own.rerun;
    /* The first time weights come from the disk. */
    int status = moe_rerun_jobs(r, 0, t->jobs, t->n_jobs, &rule, &sink, err);
    double began = moe_seconds();
    if (status == MOE_OK)
        status = moe_rerun_jobs(r, 0, t->jobs, t->n_jobs, &rule, &sink, err);
    t->seconds = moe_seconds() - began;
    return status;
}

/* ---- Counting ---- */

/* Of all texts' documents that visit the expert, as those that were tried do. */
static double expert_cost(const struct trial *t, uint32_t layer, uint32_t expert)
{
    double visitors = 0, tried = 0, all = 0;
    for (uint32_t j = 0; j < t->n_jobs; j++) {
        double cost = moe_importance_job_cost(&t->costs, t->jobs[j].document, layer);
        uint64_t at = (uint64_t)j * t->config->n_layers + layer;
        tried += cost;
        visitors += t->visited[at * t->config->n_experts + expert] ? cost : 0;
    }
    for (uint32_t d = 0; d < t->c->corpus->n_documents; d++)
        all += moe_importance_job_cost(&t->costs, d, layer);
    return tried > 0 ? visitors / tried * all : 0;
}

/* The walks over the layers, up to the model layer `end`, that measuring begins with and goes by.
 */
static double walks_cost(const struct trial *t, uint32_t end)
{
    double cost = 0;
    for (uint32_t layer = 0; layer < end; layer++)
        cost += 2 * moe_importance_look_cost(&t->costs, layer);
    return cost;
}

/* Measuring the experts of one shard, but those that are known; n_shards 1: all. */
static double search_cost(const struct trial *t, uint32_t shard, uint32_t n_shards,
                          const uint8_t *known)
{
    const struct moe_map *map = t->c->map;
    uint32_t end = 0;
    double cost = 0;
    for (uint64_t i = shard; i < (uint64_t)map->n_layers * map->n_experts; i += n_shards) {
        uint32_t layer = map->model_layer[i / map->n_experts];
        if (known && known[i])
            continue;
        end = layer + 1;
        cost += expert_cost(t, layer, (uint32_t)(i % map->n_experts));
    }
    return cost + walks_cost(t, end);
}

/* Passes of what finds the importances. Adaptive: estimates, and a share of the experts in three
 * goes. */
static double importance_passes(const struct trial *t, uint32_t shard, uint32_t n_shards,
                                const uint8_t *known)
{
    enum { ESTIMATING = 2, GOES = 3 };
    const struct moe_calibrate_options *o = t->c->options;
    double pass = moe_importance_pass_cost(&t->costs);
    if (!o->exact)
        return ESTIMATING;
    double search = search_cost(t, shard, n_shards, known);
    if (o->measured_share <= 0)
        return search / pass;
    double walks = walks_cost(t, t->config->n_layers);
    return ESTIMATING + (o->measured_share * (search - walks) + GOES * walks) / pass;
}

static void count(const struct trial *t, const struct calibration_need *need,
                  struct moe_forecast *out)
{
    const struct calibration *c = t->c;
    const struct moe_calibrate_options *o = c->options;
    const struct moe_importances *m = &c->map->importances;
    double tried = 0, pass = moe_importance_pass_cost(&t->costs);
    *out = (struct moe_forecast){
        .documents = c->corpus->n_documents,
        .tokens = c->corpus->n_predicted,
        .tried = t->n_jobs,
        .budget = need->budget,
        .least = calibrate_floor(need),
        .whole = need->taken + need->all,
        .shard = o->shard,
        .n_shards = o->n_shards,
        .experts = (uint64_t)c->map->n_layers * c->map->n_experts,
        .chooses = o->n_shards <= 1 && o->tolerance >= 0,
    };
    for (uint64_t i = o->shard; i < out->experts; i += o->n_shards) {
        out->in_shard++;
        out->known += m->known[i];
    }
    for (uint32_t j = 0; j < t->n_jobs; j++)
        tried += moe_importance_job_cost(&t->costs, t->jobs[j].document, 0);
    out->pass_seconds = tried > 0 ? t->seconds / tried * pass : 0;
    out->before = 1 + c->map->n_variants;
    for (uint32_t i = 0; i < o->n_dense_bits; i++)
        out->before += o->dense_bits[i] != c->own.dense_bits;
    if (c->check)
        out->before += (double)c->check->n_predicted / (double)c->corpus->n_predicted;
    double each = out->before + 1; /* the reference of the search */
    if (out->known < out->in_shard) {
        out->before = each;
        out->search = importance_passes(t, o->shard, o->n_shards, m->known);
    }
    for (uint32_t shard = 0; shard < o->n_shards; shard++)
        out->total += each + importance_passes(t, shard, o->n_shards, NULL);
}

int moe_calibrate_forecast(struct moe_forecast *out, const char *pack,
                           const struct moe_calibrate_options *options, struct moe_err *err)
{
    struct calibration c = {.options = options};
    struct calibration_need need;
    struct trial t = {.c = &c};
    int status = calibrate_open(&c, pack, &need, err);
    if (status == MOE_OK) {
        t.config = &c.model->config;
        status = moe_importance_cost_open(&t.costs, t.config, c.corpus, err);
    }
    if (status == MOE_OK && !(t.jobs = moe_alloc(c.corpus->n_documents, sizeof *t.jobs, err)))
        status = MOE_ERR_MEMORY;
    if (status == MOE_OK) {
        choose_documents(&t);
        t.visited = moe_alloc((uint64_t)t.n_jobs * t.config->n_layers, t.config->n_experts, err);
        status = t.visited ? try_documents(&t, err) : MOE_ERR_MEMORY;
    }
    if (status == MOE_OK)
        count(&t, &need, out);
    moe_importance_cost_close(&t.costs);
    free(t.jobs);
    free(t.visited);
    moe_map_free(c.map);
    calibrate_close(&c);
    return status;
}
