/* Calibration, and its forecast. */
#include "tune/calibrate.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "tune/calibrate_internal.h"
#include "tune/importance.h"
#include "tune/inputs_seen.h"

/* ---- The partial file ---- */

struct saving {
    struct calibration *c;
    struct moe_saving when;
};

static int save_partial(struct calibration *c, struct moe_err *err)
{
    struct moe_buf text = {0};
    if (!c->options->partial)
        return MOE_OK;
    int status = moe_map_write(c->map, false, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(c->options->partial, text.data, text.size, err);
    moe_buf_release(&text);
    return status;
}

static int save_now_and_then(void *ctx, struct moe_err *err)
{
    struct saving *s = ctx;
    if (!moe_saving_due(&s->when, moe_seconds()))
        return MOE_OK;
    int status = save_partial(s->c, err);
    s->when.saved = moe_seconds();
    return status;
}

/* Adopts the importances of this shard that another calibration measured, also one with other
 * bounds. */
static int adopt_importances(struct calibration *c, const struct moe_map *from, const char *name,
                             struct moe_err *err)
{
    struct moe_importances *m = &c->map->importances;
    if (!from->importances.there)
        return moe_fail(err, MOE_ERR_USAGE, "%s: holds no importances", name);
    m->there = true;
    m->exact = from->importances.exact;
    m->upper = from->importances.upper;
    m->lower = from->importances.lower;
    m->dense_bits = from->importances.dense_bits;
    int status = moe_map_adopt(c->map, from, err);
    for (uint64_t e = 0; e < (uint64_t)c->map->n_layers * c->map->n_experts; e++)
        m->known[e] &= e % c->options->n_shards == c->options->shard;
    return status == MOE_OK ? MOE_OK : moe_err_prefix(err, "%s", name);
}

/* What an interrupted run left must be of this shard. */
static int check_shard(const struct calibration *c, const struct moe_map *before,
                       struct moe_err *err)
{
    const struct moe_shards *left = &before->importances.shards;
    struct moe_buf which = {0};
    if (moe_shards_same(left, &c->map->importances.shards))
        return MOE_OK;
    moe_shards_print(left, &which);
    moe_buf_u8(&which, 0);
    int status =
        moe_fail(err, MOE_ERR_USAGE, "%s: was left by another shard (%s); remove it or give that",
                 c->options->partial, which.failed ? "?" : (const char *)which.data);
    moe_buf_release(&which);
    return status;
}

/* Adopts what a stopped run left in the partial file. */
static int resume_partial(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    struct moe_map *before = NULL;
    if (!o->partial || !o->resume || !moe_path_exists(o->partial))
        return MOE_OK;
    int status;
    MOE_STEP(moe_map_read(&before, o->partial, err));
    MOE_STEP(check_shard(c, before, err));
    if (before->importances.there)
        MOE_STEP(adopt_importances(c, before, o->partial, err));
out:
    moe_map_free(before);
    return status;
}

/* ---- Opening ---- */

/* The group that the experts' scales are of; where the layouts have none, that of the pack's last
 * conversion. */
static uint32_t expert_group(const struct calibration *c)
{
    const struct moe_pack *pack = c->model->pack;
    for (uint32_t v = 0; v < c->map->n_variants; v++) {
        const struct moe_expert_extent *e = moe_pack_expert(pack, c->map->model_layer[0], 0, v);
        const struct moe_expert_class *class_ =
            e->present ? moe_pack_class_at(pack, e->class_index) : NULL;
        for (uint32_t i = 0; class_ && i < class_->n_matrices; i++)
            if (moe_layout_is_affine(class_->matrices[i].layout.kind))
                return class_->matrices[i].layout.group;
    }
    return c->dense.group;
}

static int describe_calibration(struct calibration *c, struct moe_err *err)
{
    const struct moe_config *config = &c->model->config;
    const struct moe_pack *pack = c->model->pack;
    MOE_TRY(moe_map_new(&c->map, config->n_moe_layers, config->n_experts, config->top_k, err));
    struct moe_map *map = c->map;
    for (uint32_t l = 0; l < config->n_layers; l++)
        if (config->layers[l].moe)
            map->model_layer[config->layers[l].moe_index] = l;
    map->source_fingerprint = moe_pack_source_fingerprint(pack);
    map->pack_fingerprint = moe_pack_fingerprint(pack);
    map->n_variants = moe_pack_n_variants(pack);
    for (uint32_t v = 0; v < map->n_variants; v++) {
        const struct moe_pack_variant *variant = moe_pack_variant_at(pack, v);
        snprintf(map->variants[v], sizeof map->variants[v], "%s", variant->name);
        snprintf(map->methods[v], sizeof map->methods[v], "%s", variant->method);
    }
    MOE_TRY(calibrate_choose_rounding(c, err));
    map->expert_group = expert_group(c);
    map->metric = c->options->metric;
    map->judge = c->options->judge;
    map->tolerance = c->options->tolerance;
    map->target_bytes = c->options->target_bytes;
    map->max_tokens = c->options->max_tokens;
    return moe_shards_set(&map->importances.shards, c->options->shard, c->options->n_shards, err);
}

static void note_texts(struct moe_map *map, const struct moe_corpus *corpus, bool check)
{
    for (uint32_t t = 0; corpus && t < corpus->n_texts; t++) {
        struct moe_map_text *text = &map->texts[map->n_texts++];
        const char *name = strrchr(corpus->texts[t].path, '/');
        snprintf(text->name, sizeof text->name, "%s", name ? name + 1 : corpus->texts[t].path);
        text->documents = corpus->texts[t].n_documents;
        text->tokens = corpus->texts[t].n_predicted;
        text->hash = corpus->texts[t].hash;
        text->check = check;
    }
}

static int read_texts(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    if (o->n_texts + o->n_checks > MOE_MAP_MAX_TEXTS)
        return moe_fail(err, MOE_ERR_USAGE, "at most %d texts", MOE_MAP_MAX_TEXTS);
    const struct moe_documents documents = calibrate_documents(c);
    int status = moe_corpus_read(&c->corpus, &documents, o->texts, o->n_texts, err);
    if (status == MOE_OK && o->n_checks)
        status = moe_corpus_read(&c->check, &documents, o->checks, o->n_checks, err);
    const struct moe_corpus *const read[] = {c->corpus, c->check};
    for (int i = 0; i < 2 && o->left_out; i++) {
        o->left_out->tokens += read[i] ? read[i]->left_out.tokens : 0;
        o->left_out->of += read[i] ? read[i]->left_out.of : 0;
        o->left_out->documents += read[i] ? read[i]->left_out.documents : 0;
    }
    return status;
}

static int open_own(struct calibration *c, const struct moe_rerun_options *rerun,
                    struct moe_err *err)
{
    c->own = (struct bench_model){
        .dense_bits = c->map->pack_dense_bits,
        .dense_bytes = calibrate_dense_bytes(c, moe_dense_bits(c->model)),
        .model = c->model,
    };
    MOE_TRY(moe_rerun_open(&c->own.rerun, c->model, c->experts, c->corpus, rerun, err));
    const struct moe_rerun_options without_states = calibrate_rerun_options(c, false);
    if (c->check)
        MOE_TRY(moe_rerun_open(&c->own.check_rerun, c->model, c->experts, c->check, &without_states,
                               err));
    return MOE_OK;
}

static int measure_references(struct calibration *c, struct moe_err *err)
{
    MOE_TRY(calibrate_reference(c, c->own.rerun, 0, &c->reference, err));
    if (c->check)
        MOE_TRY(calibrate_reference(c, c->own.check_rerun, 0, &c->check_reference, err));
    return MOE_OK;
}

static int check_pack(const struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const struct moe_pack *pack = c->model->pack;
    uint32_t dense_bits = moe_dense_bits(c->model);
    char wanted[MOE_WIDTH_BYTES];
    if (moe_pack_n_variants(pack) == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a model without experts has no bits of experts to choose",
                        moe_pack_path(pack));
    if (c->model->config.loop.n && !o->without_bits)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: has layers that are visited several times, whose experts' bits are "
                        "not chosen (--without bits for the rest)",
                        moe_pack_path(pack));
    if (moe_pack_n_variants(pack) < 2 && !(o->without_bits && o->without_fate && o->without_hobbit))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has experts at %s%s only, so there is nothing to choose "
                        "(moe-quantize --experts 8,4,2; --without bits,fate,hobbit for the rest)",
                        moe_pack_path(pack), moe_pack_variant_at(pack, 0)->name,
                        moe_bits_unit(moe_pack_variant_at(pack, 0)->name));
    for (uint32_t i = 0; i < o->n_dense_bits; i++)
        if (moe_bits_width((int)o->dense_bits[i]) > (int)dense_bits)
            return moe_fail(
                err, MOE_ERR_USAGE, "%s: the dense part has %u bits, %s cannot be made of them",
                moe_pack_path(pack), dense_bits, moe_format_width((int)o->dense_bits[i], wanted));
    return MOE_OK;
}

static int check_pairs(const struct calibration *c, struct moe_err *err)
{
    bool pairs = c->options->pairs;
    if (pairs == (c->model->config.n_encoder > 0))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    pairs ? "%s: has no encoder: it takes texts (--text FILE)"
                          : "%s: has an encoder: it takes pairs (--pairs FILE)",
                    moe_pack_path(c->model->pack));
}

/* Opens everything and adopts what is known already (`from`, the partial file); nothing is measured
 * yet. Close also after an error; the map stays the caller's. */
static int calibrate_open(struct calibration *c, const char *pack, struct calibration_need *need,
                          struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    uint32_t context = o->max_tokens;
    *need = (struct calibration_need){0};
    MOE_TRY(moe_model_open_directory(&c->model, pack, err));
    MOE_TRY(moe_pack_check_meant(c->model->pack, err));
    if (context > c->model->config.context_max)
        context = c->model->config.context_max;
    const struct moe_rerun_options rerun = calibrate_rerun_options(c, true);
    MOE_TRY(check_pairs(c, err));
    MOE_TRY(calibrate_survey(c, &rerun, context, need, err));
    MOE_TRY(calibrate_check_budget(c, need, err));
    MOE_TRY(moe_model_load(c->model, context, NULL, o->progress, err));
    MOE_TRY(check_pack(c, err));
    MOE_TRY(describe_calibration(c, err));
    MOE_TRY(calibrate_check_target(c, err));
    MOE_TRY(read_texts(c, err));
    note_texts(c->map, c->corpus, false);
    note_texts(c->map, c->check, true);
    MOE_TRY(moe_experts_open_every(&c->experts, c->model->pack, need->budget - need->taken,
                                   o->progress, err));
    MOE_TRY(open_own(c, &rerun, err));
    if (o->from)
        MOE_TRY(adopt_importances(c, o->from, "the importances to start from", err));
    return resume_partial(c, err);
}

static void calibrate_close(struct calibration *c)
{
    moe_quality_release(&c->reference);
    moe_quality_release(&c->check_reference);
    moe_rerun_close(c->own.rerun);
    moe_rerun_close(c->own.check_rerun);
    moe_experts_close(c->experts);
    moe_corpus_free(c->corpus);
    moe_corpus_free(c->check);
    moe_model_close(c->model);
}

/* ---- Importance ---- */

static int measure_importances(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    struct moe_importances *m = &c->map->importances;
    double now = moe_seconds();
    struct saving saving = {c, {now, now}};
    struct moe_quality base;
    if (!m->there) {
        m->there = true;
        m->exact = o->exact;
        m->upper = c->upper;
        m->lower = c->lower;
        m->dense_bits = c->own.dense_bits;
    }
    bool adaptive = m->exact && o->measured_share > 0;
    if (moe_map_complete(c->map) && !adaptive)
        return MOE_OK;
    const struct moe_importance_options options = {
        .upper = m->upper,
        .lower = m->lower,
        .shard = o->shard,
        .n_shards = o->n_shards,
        .progress = o->progress,
        .saved = save_now_and_then,
        .ctx = &saving,
    };
    int status = calibrate_reference(c, c->own.rerun, m->upper, &base, err);
    if (status != MOE_OK)
        return status;
    if (adaptive)
        status = calibrate_adaptive(c, &base, &options, err);
    else if (m->exact)
        status = moe_importance_exact(c->map, c->own.rerun, &base, &options, err);
    else
        status = moe_importance_proxy(c->map, c->own.rerun, &base, &options, err);
    moe_quality_release(&base);
    return status;
}

/* ---- In order ---- */

static int choose_all(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    if (!o->without_bits)
        MOE_TRY(calibrate_choice(c, err));
    if (!o->without_fate)
        MOE_TRY(calibrate_fate(c, err));
    if (!o->without_hobbit)
        MOE_TRY(calibrate_hobbit(c, err));
    if (!o->without_hobbit && o->trace)
        MOE_TRY(calibrate_weights(c, err));
    if (o->routing_tolerance >= 0)
        MOE_TRY(calibrate_routing(c, err));
    return calibrate_savings(c, err);
}

int moe_calibrate(struct moe_map **out, const char *pack,
                  const struct moe_calibrate_options *options, struct moe_err *err)
{
    struct calibration c = {.options = options};
    struct calibration_need need;
    *out = NULL;
    int status;
    MOE_STEP(options->partial ? moe_outfile_try(options->partial, err) : MOE_OK);
    MOE_STEP(calibrate_open(&c, pack, &need, err));
    MOE_STEP(measure_references(&c, err));
    MOE_STEP(calibrate_uniform(&c, err));
    MOE_STEP(calibrate_bounds(&c, err));
    if (!options->without_bits) {
        MOE_STEP(measure_importances(&c, err));
        MOE_STEP(save_partial(&c, err));
    }
    if (options->n_shards <= 1 && options->tolerance >= 0)
        MOE_STEP(choose_all(&c, err));
out:
    if (status != MOE_OK && c.map &&
        c.map->importances.there) { /* what was measured must survive the error */
        struct moe_err later;
        save_partial(&c, &later);
    }
    if (status == MOE_OK)
        *out = c.map;
    else
        moe_map_free(c.map);
    calibrate_close(&c);
    return status;
}

/*
 * Forecasts a calibration: runs some documents through the model, twice, to see who visits which
 * expert and how long a row takes. The search then costs what it counts by itself while it goes
 * (importance.h), with the share of all texts for that of these documents.
 */

enum { TRIED_PASSES = 2 }; /* full passes to try, if the texts have them */

struct trial {
    struct calibration *c;
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
    if (o->without_bits)
        return 0;
    if (!o->exact)
        return ESTIMATING;
    double search = search_cost(t, shard, n_shards, known);
    if (o->measured_share <= 0)
        return search / pass;
    double walks = walks_cost(t, t->config->n_layers);
    return ESTIMATING + (o->measured_share * (search - walks) + GOES * walks) / pass;
}

static int count_forecast(const struct trial *t, const struct calibration_need *need,
                          struct moe_forecast *out, struct moe_err *err)
{
    struct calibration *c = t->c;
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
    if (out->chooses)
        MOE_TRY(calibrate_forecast_decoding(c, out, err));
    out->chooses &= !o->without_bits;
    for (uint64_t i = o->shard; i < out->experts; i += o->n_shards) {
        out->in_shard++;
        out->known += m->known[i];
    }
    for (uint32_t j = 0; j < t->n_jobs; j++)
        tried += moe_importance_job_cost(&t->costs, t->jobs[j].document, 0);
    out->pass_seconds = tried > 0 ? t->seconds / tried * pass : 0;
    out->before = 1 + c->map->n_variants;
    for (uint32_t i = 0; i < o->n_dense_bits; i++)
        out->before += calibrate_dense_bits(c, i) != c->own.dense_bits;
    if (c->check)
        out->before += (double)c->check->n_predicted / (double)c->corpus->n_predicted;
    double each = out->before + 1; /* the reference of the search */
    if (out->known < out->in_shard) {
        out->before = each;
        out->search = importance_passes(t, o->shard, o->n_shards, m->known);
    }
    for (uint32_t shard = 0; shard < o->n_shards; shard++)
        out->total += each + importance_passes(t, shard, o->n_shards, NULL);
    return MOE_OK;
}

int moe_calibrate_forecast(struct moe_forecast *out, const char *pack,
                           const struct moe_calibrate_options *options, struct moe_err *err)
{
    struct calibration c = {.options = options};
    struct calibration_need need;
    struct trial t = {.c = &c};
    int status;
    MOE_STEP(calibrate_open(&c, pack, &need, err));
    t.config = &c.model->config;
    MOE_STEP(moe_importance_cost_open(&t.costs, t.config, c.corpus, err));
    if (!(t.jobs = moe_alloc(c.corpus->n_documents, sizeof *t.jobs, err)))
        MOE_STEP(MOE_ERR_MEMORY);
    choose_documents(&t);
    t.visited = moe_alloc((uint64_t)t.n_jobs * t.config->n_layers, t.config->n_experts, err);
    MOE_STEP(t.visited ? try_documents(&t, err) : MOE_ERR_MEMORY);
    MOE_STEP(count_forecast(&t, &need, out, err));
out:
    moe_importance_cost_close(&t.costs);
    free(t.jobs);
    free(t.visited);
    moe_map_free(c.map);
    calibrate_close(&c);
    return status;
}
