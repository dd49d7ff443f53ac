/* moe-profile --coe: measures a collection's models. */
#include "profile_coe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli.h"
#include "tune/coe_bench.h"

enum { DEFAULT_PROMPT = 64, DEFAULT_ANSWER = 32 };

/* By the tokenizer of the first expert. */
static int read_samples(const struct moe_coe_bench_options *o, const char *path,
                        struct moe_coe_samples *samples, struct moe_err *err)
{
    struct moe_model *m = NULL;
    char *pack = moe_coe_pack_path(o->directory, &o->collection->models[0], err);
    int status = pack ? moe_model_open_directory(&m, pack, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_coe_samples_read(samples, o->collection, m, path, o->progress, err);
    moe_model_close(m);
    free(pack);
    if (status == MOE_OK && moe_coe_samples_unknown(samples, o->collection))
        status = moe_coe_samples_answer(samples, o->collection, o->directory, path, o->memory_bytes,
                                        o->progress, err);
    return status;
}

static uint32_t tokens(uint32_t given, double mean, uint32_t otherwise)
{
    if (given)
        return given;
    return mean > 0 ? (uint32_t)fmin(ceil(mean), 1 << 20) : otherwise;
}

/* The scheduler does without probabilities, but worse: the user should know. */
static void say_unknown(const struct moe_coe_costs *costs,
                        const struct moe_coe_collection *collection)
{
    double *p = calloc(collection->n_models, sizeof *p);
    bool known = p && moe_coe_probabilities(collection, p);
    uint32_t n = 0;
    for (uint32_t i = 0; i < costs->n_models; i++)
        n += costs->models[i].probability < 0 && !known && collection->models[i].probability < 0;
    if (n > 0)
        cli_note("how often %u of %u experts are used is not known: give --requests, or quantities "
                 "and shares in the collection",
                 n, collection->n_models);
    free(p);
}

static void say_costs(const struct moe_coe_costs *costs)
{
    for (uint32_t i = 0; i < costs->n_costs; i++) {
        const struct moe_coe_kind_cost *c = &costs->costs[i];
        char team[32] = "";
        if (c->threads)
            snprintf(team, sizeof team, ", a team of %" PRIu32, c->threads);
        cli_detail("%s on %s%s: %.3g s a request and %.3g s a batch, up to %" PRIu32
                   " side by side; loaded in %.3g s",
                   c->architecture, c->processor, team, c->cost.per_request, c->cost.per_batch,
                   c->cost.max_batch, c->cost.load);
    }
    cli_detail("peak of the process %" PRIu64 " bytes", moe_peak_rss_bytes());
}

int profile_coe(const char *path, const struct profile_coe *options)
{
    struct moe_err err;
    struct moe_coe_collection *collection = NULL;
    struct moe_coe_costs *costs = NULL;
    struct moe_coe_samples samples = {0};
    struct moe_buf text = {0};
    char *directory = moe_path_directory(path, &err);
    cli_catch_termination();
    int status = directory ? moe_coe_collection_read(&collection, path, &err) : MOE_ERR_MEMORY;
    struct moe_coe_bench_options o = {
        .collection = collection,
        .directory = directory,
        .max_batch = options->max_batch,
        .memory_bytes = options->memory,
        .gpu_memory_bytes = options->gpu_memory,
        .progress = cli_progress(),
    };
    if (status == MOE_OK && options->requests)
        status = read_samples(&o, options->requests, &samples, &err);
    o.samples = options->requests ? &samples : NULL;
    o.prompt_tokens = tokens(options->prompt_tokens, samples.mean_prompt, DEFAULT_PROMPT);
    o.answer_tokens = tokens(options->answer_tokens, samples.mean_answer, DEFAULT_ANSWER);
    if (status == MOE_OK)
        status = moe_coe_bench(&costs, &o, &err);
    cli_progress_done();
    if (status == MOE_OK)
        status = moe_coe_costs_write(costs, false, &text, &err);
    status = cli_save(status, &text, options->out, &err);
    if (status == MOE_OK) {
        say_unknown(costs, collection);
        say_costs(costs);
    }
    moe_coe_costs_free(costs);
    moe_coe_samples_release(&samples);
    moe_coe_collection_free(collection);
    free(directory);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}
