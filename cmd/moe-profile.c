/* moe-profile: measures what experts do over texts, and machines. See man/moe-profile.1. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cache/learnt.h"
#include "cli.h"
#include "engine/engine.h"
#include "fmt/yaml.h"
#include "join_ranks.h"
#include "kept_models.h"
#include "offline.h"
#include "profile/machines.h"
#include "profile/trace.h"
#include "show/html.h"
#include "show/show.h"
#include "tune/coe_bench.h"
#include "tune/device_bench.h"
#include "tune/profile.h"

enum { DEFAULT_TOKENS = 256 };

static struct {
    const char *out, *path_stats, *trace, *import, *dir, *coe, *requests;
    struct cli_texts texts, pairs;
    uint32_t max_tokens, max_windows, trace_keep;
    uint32_t prompt_tokens,
        answer_tokens; /* of --coe; 0: as the samples have them, else a default */
    uint32_t max_batch;
    double prompt_share;
    struct offline_shard shard;
    uint64_t memory, gpu_memory; /* limits; 0: what is free */
    const char *html;
    bool resume, merge, partial, learn, device, show, json;
} o = {.max_tokens = DEFAULT_TOKENS,
       .trace_keep = MOE_TRACE_KEEP_ENOUGH,
       .prompt_share = 0.5,
       .shard = {0, 1},
       .max_batch = 64};

/* ---- What models of a collection cost ---- */

enum { DEFAULT_PROMPT = 64, DEFAULT_ANSWER = 32 };

/* By the tokenizer of the first expert. */
static int read_samples(const struct moe_coe_bench_options *bench, const char *path,
                        struct moe_coe_samples *samples, struct moe_err *err)
{
    struct moe_model *m = NULL;
    char *pack = moe_coe_pack_path(bench->directory, &bench->collection->models[0], err);
    int status = pack ? moe_model_open_directory(&m, pack, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK)
        status = moe_coe_samples_read(samples, bench->collection, m, path, bench->progress, err);
    moe_model_close(m);
    free(pack);
    if (status == MOE_OK && moe_coe_samples_unknown(samples, bench->collection))
        status = moe_coe_samples_answer(samples, bench->collection, bench->directory, path,
                                        bench->memory_bytes, bench->progress, err);
    return status;
}

static uint32_t tokens_or(uint32_t given, double mean, uint32_t otherwise)
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

static int profile_coe(const char *path)
{
    struct moe_err err;
    struct moe_coe_collection *collection = NULL;
    struct moe_coe_costs *costs = NULL;
    struct moe_coe_samples samples = {0};
    struct moe_buf text = {0};
    char *directory = moe_path_directory(path, &err);
    cli_catch_termination();
    int status = directory ? moe_coe_collection_read(&collection, path, &err) : MOE_ERR_MEMORY;
    struct moe_coe_bench_options bench = {
        .collection = collection,
        .directory = directory,
        .max_batch = o.max_batch,
        .memory_bytes = o.memory,
        .gpu_memory_bytes = o.gpu_memory,
        .progress = cli_progress(),
    };
    if (status == MOE_OK && o.requests)
        status = read_samples(&bench, o.requests, &samples, &err);
    bench.samples = o.requests ? &samples : NULL;
    bench.prompt_tokens = tokens_or(o.prompt_tokens, samples.mean_prompt, DEFAULT_PROMPT);
    bench.answer_tokens = tokens_or(o.answer_tokens, samples.mean_answer, DEFAULT_ANSWER);
    if (status == MOE_OK)
        status = moe_coe_bench(&costs, &bench, &err);
    cli_progress_done();
    if (status == MOE_OK)
        status = moe_coe_costs_write(costs, false, &text, &err);
    status = cli_save(status, &text, o.out, &err);
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

/* ---- Options ---- */

/* What it can do beside profiling texts, which is usual. */
enum {
    MERGE = CLI_USUAL << 1,
    IMPORT = CLI_USUAL << 2,
    DEVICE = CLI_USUAL << 3,
    COE = CLI_USUAL << 4,
    SHOW = CLI_USUAL << 5,
    LEARN = CLI_USUAL << 6,
};

static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Profiling texts"},
    {CLI_OPT_TEXTS(0, "text", "FILE", &o.texts), .help = "documents to run; may be repeated",
     .modes = CLI_USUAL, .excludes = "pairs"},
    {CLI_OPT_TEXTS(0, "pairs", "FILE", &o.pairs),
     .help = "pairs to run, as JSON lines: source, target", .modes = CLI_USUAL},
    {CLI_OPT_OUTPUT('o', "output", "FILE", &o.out),
     .help = "output: statistics, trace, device profile or costs"},
    {CLI_OPT_U32(0, "max-tokens", "N", &o.max_tokens, 2, 1 << 24), .shown = "256",
     .help = "cut documents into windows of N tokens", .modes = CLI_USUAL},
    {CLI_OPT_U32(0, "max-windows", "N", &o.max_windows, 1, 1 << 24), .shown = "all",
     .help = "of a document: leave out what follows them", .modes = CLI_USUAL},
    {CLI_OPT_SHARE(0, "prompt-share", "P", &o.prompt_share, 0, 1), .shown = "50%",
     .help = "share of a document that is its prompt", .modes = CLI_USUAL},
    {CLI_OPT_TEXT(0, "path-stats", "STATS", &o.path_stats),
     .help = "predict paths by another text's statistics", .modes = CLI_USUAL},
    {CLI_OPT_OUTPUT(0, "trace", "TRACE", &o.trace), .help = "also write a routing trace",
     .modes = CLI_USUAL, .needs = "text pairs"},
    {CLI_OPT_U32(0, "trace-keep", "N", &o.trace_keep, 0, 1 << 12),
     .help = "scores kept in it per prediction", .modes = CLI_USUAL, .needs = "text pairs"},
    {CLI_OPT_CUSTOM(0, "shard", "I/N", &o.shard, offline_parse_shard), .shown = "1/1",
     .alone = true, .help = "every N-th document or window, from the I-th on", .modes = CLI_USUAL},
    {CLI_OPT_FLAG(0, "resume", &o.resume), .help = "continue an interrupted run",
     .modes = CLI_USUAL},
    {CLI_OPT_BYTES(0, "memory", "SIZE", &o.memory), .shown = "what is free",
     .help = "limit for the whole process"},
    {.kind = CLI_HEADING, .help = "Measuring this machine"},
    {CLI_OPT_FLAG(0, "device", &o.device), .help = "memory, storage, link; layers of a MODEL",
     .mode = DEVICE},
    {CLI_OPT_TEXT(0, "dir", "DIR", &o.dir), .shown = "the pack itself, or .",
     .help = "where to read a scratch file", .modes = DEVICE},
    {.kind = CLI_HEADING, .help = "Measuring what a collection's models cost"},
    {CLI_OPT_TEXT(0, "coe", "COLLECTION", &o.coe), .help = "batches, loading, memory, usage",
     .mode = COE},
    {CLI_OPT_TEXT(0, "requests", "FILE", &o.requests),
     .help = "sample requests, as JSON lines: usage, lengths", .modes = COE},
    {CLI_OPT_U32(0, "prompt-tokens", "N", &o.prompt_tokens, 1, 1 << 20),
     .shown = "the samples' mean, or 64", .help = "of a request", .modes = COE},
    {CLI_OPT_U32(0, "answer-tokens", "N", &o.answer_tokens, 1, 1 << 20),
     .shown = "the samples' mean, or 32", .help = "of its answer", .modes = COE},
    {CLI_OPT_U32(0, "max-batch", "N", &o.max_batch, 1, 1 << 12), .shown = "64",
     .help = "requests side by side to try, at most", .modes = COE},
    {CLI_OPT_BYTES(0, "gpu-memory", "SIZE", &o.gpu_memory), .shown = "what is free",
     .help = "limit on a GPU", .modes = COE},
    {.kind = CLI_HEADING, .help = "Statistics, traces and device profiles"},
    {CLI_OPT_FLAG(0, "merge", &o.merge), .help = "put shards together: statistics or traces",
     .mode = MERGE},
    {CLI_OPT_FLAG(0, "partial", &o.partial), .help = "--merge: though shards are missing",
     .modes = MERGE},
    {CLI_OPT_TEXT(0, "import", "FILE", &o.import), .help = "convert a trace of another engine",
     .mode = IMPORT},
    {CLI_OPT_FLAG(0, "learn", &o.learn),
     .help = "what a cache learns of traces, for moe-run --learn", .mode = LEARN},
    {CLI_OPT_FLAG(0, "show", &o.show), .help = "print tables and pictures", .mode = SHOW},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--show: as JSON", .modes = SHOW},
    {CLI_OPT_STREAM(0, "html", "OUT", &o.html), .help = "--show: as a page with pictures",
     .modes = SHOW, .excludes = "json"},
    {.kind = CLI_END},
};

static const struct cli_program program = {
    .name = "moe-profile",
    .summary = "Measures what a model's experts do over your own texts, or this machine.",
    .usage = (const char *const[]){"MODEL --text FILE... -o STATS [OPTION]...",
                                   "MODEL --pairs FILE... -o STATS [OPTION]...",
                                   "--merge STATS... -o STATS [--partial]",
                                   "--merge TRACE... -o TRACE [--partial]",
                                   "--import FILE -o TRACE", "--learn TRACE... -o LEARNT",
                                   "--device [--dir DIR] [MODEL] -o DEVICE",
                                   "--coe COLLECTION [--requests FILE] -o COSTS",
                                   "--show STATS|TRACE|DEVICE|LEARNT [--json]",
                                   "--show STATS|TRACE|DEVICE --html OUT", NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-profile tiny.moe --text tests/data/stories.calib.txt -o s.yaml",
            "moe-profile tiny.moe --text big.txt --shard 2/8 -o part2.yaml",
            "moe-profile --merge part*.yaml -o s.yaml", "moe-profile --show s.yaml",
            "moe-profile --device tiny.moe -o device.yaml",
            "moe-profile --coe experts.yaml --requests r.jsonl -o costs.yaml", NULL},
    .joins_ranks = true,
};

/* ---- Doing ---- */

static int write_statistics(const struct moe_statistics *s, const char *path, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_statistics_write(s, &text, err);
    return cli_save(status, &text, path, err);
}

static int survey_texts(void *ctx, const struct moe_model *model,
                        const struct moe_engine_room *room, struct moe_err *err)
{
    return moe_profile_survey(ctx, model, room, err);
}

static uint64_t beside(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    return moe_profile_bytes(ctx, model, batch);
}

static int profile(const char *pack)
{
    struct moe_err err;
    struct moe_engine *engine = NULL;
    struct moe_statistics *prior = NULL, *statistics = NULL;
    struct moe_left_out left_out = {0};
    char *partial = offline_partial_name(o.out, &err);
    struct moe_profile_options p = {
        .texts = o.pairs.n ? o.pairs.items : o.texts.items,
        .n_texts = (uint32_t)(o.pairs.n ? o.pairs.n : o.texts.n),
        .pairs = o.pairs.n > 0,
        .max_tokens = o.max_tokens,
        .max_windows = o.max_windows,
        .prompt_percent = (uint32_t)(100 * o.prompt_share + 0.5),
        .shard = o.shard.index,
        .n_shards = o.shard.n,
        .trace = o.trace,
        .trace_keep = o.trace_keep,
        .partial = partial,
        .resume = o.resume,
        .progress = cli_progress(),
        .left_out = &left_out,
    };
    const struct moe_engine_options engine_options = {
        .memory_bytes = o.memory,
        .session = {.context = o.max_tokens},
        .survey = survey_texts,
        .beside = beside,
        .beside_ctx = &p,
    };
    cli_catch_termination();
    int status;
    MOE_STEP(partial ? MOE_OK : MOE_ERR_MEMORY);
    if (o.path_stats)
        MOE_STEP(moe_statistics_read(&prior, o.path_stats, &err));
    p.prior = prior;
    status = moe_engine_open(&engine, pack, &engine_options, cli_progress(), &err);
    if (status == MOE_ERR_USAGE && cli_given("max-tokens"))
        moe_err_prefix(&err, "option --max-tokens");
    MOE_STEP(status);
    MOE_STEP(moe_profile_texts(engine->session, &p, &statistics, &err));
    cli_progress_done();
    MOE_STEP(write_statistics(statistics, o.out, &err));
    offline_remove_partial(partial);
    offline_note_left_out(&left_out, p.pairs ? "--max-tokens N takes more of each source and target"
                                             : "--max-windows N takes more of each");
    cli_detail("peak of the process %" PRIu64 " bytes", moe_peak_rss_bytes());
out:
    if (status == MOE_ERR_INTERRUPTED && partial && moe_path_exists(partial))
        cli_note("stopped; %s has what is done, --resume continues from there", partial);
    moe_engine_close(engine);
    moe_statistics_free(statistics);
    moe_statistics_free(prior);
    free(partial);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

/* Adds a shard to those before; *sum: NULL before the first. */
static int add_shard(struct moe_statistics **sum, const char *path, struct moe_err *err)
{
    struct moe_statistics *part = NULL;
    MOE_TRY(moe_statistics_read(&part, path, err));
    moe_origins_name(&part->origins, path);
    int status;
    MOE_STEP(moe_statistics_check_finished(part, err));
    if (*sum)
        MOE_STEP(moe_statistics_merge(*sum, part, err));
out:
    if (status != MOE_OK)
        moe_err_prefix(err, "%s", path);
    if (status == MOE_OK && !*sum)
        *sum = part;
    else
        moe_statistics_free(part);
    return status;
}

static int merge_statistics(char **paths, int n, struct moe_err *err)
{
    struct moe_statistics *sum = NULL;
    int status = MOE_OK;
    for (int i = 0; i < n; i++)
        MOE_STEP(add_shard(&sum, paths[i], err));
    MOE_STEP(moe_origins_check(&sum->origins, o.partial, err));
    MOE_STEP(write_statistics(sum, o.out, err));
out:
    moe_statistics_free(sum);
    return status;
}

static int merge(char **paths, int n)
{
    struct moe_err err;
    int n_traces = 0, status;
    for (int i = 0; i < n; i++)
        n_traces += moe_trace_is(paths[i]);
    if (n_traces == 0)
        status = merge_statistics(paths, n, &err);
    else if (n_traces == n)
        status = moe_trace_merge((const char *const *)paths, (uint32_t)n, o.out, o.partial, &err);
    else
        return cli_misuse("--merge takes statistics or traces, not both");
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

static int import(void)
{
    struct moe_err err;
    return moe_trace_import(o.import, o.out, &err) == MOE_OK ? CLI_DONE : cli_error(&err);
}

/* Has the record follow the choices of a trace, token by token. */
static int follow_trace(struct moe_usage *u, const char *path, struct moe_learnt_origin *of,
                        struct moe_err *err)
{
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    uint32_t chosen[MOE_MAX_TOP_K];
    int status;
    MOE_STEP(moe_trace_open(&t, path, err));
    const struct moe_trace_shape *s = moe_trace_shape(t);
    const struct moe_learnt_origin its = {s->source_fingerprint, path, s->n_layers, s->n_experts,
                                          s->top_k};
    if (!u->follower) {
        MOE_STEP(moe_usage_init(u, s->n_layers, s->n_experts, s->top_k, err));
        MOE_STEP(moe_policy_follow(moe_policy_find("learned"), u, 0, err));
        *of = its;
    }
    if (of->source != its.source || of->n_layers != its.n_layers ||
        of->n_experts != its.n_experts || of->top_k != its.top_k)
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE, "%s: is of another model than %s", path, of->name));
    while ((status = moe_trace_next(t, &token, err)) == MOE_OK && token) {
        if (token->index == 0)
            u->follower->begin_sequence(u->follower);
        for (uint32_t layer = 0; layer < s->n_layers; layer++) {
            const uint16_t *experts = moe_trace_step(t, layer).experts;
            const struct moe_choices c = {layer, experts != NULL, chosen, NULL};
            for (uint32_t i = 0; experts && i < s->top_k; i++)
                chosen[i] = experts[i];
            moe_usage_chosen(u, &c);
        }
    }
out:
    moe_trace_close(t);
    return status;
}

static int learn(char **paths, int n)
{
    struct moe_err err;
    struct moe_usage u = {0};
    struct moe_learnt_origin of = {0};
    int status = MOE_OK;
    for (int i = 0; i < n; i++)
        MOE_STEP(follow_trace(&u, paths[i], &of, &err));
    MOE_STEP(moe_learnt_write(o.out, &of, u.follower, &err));
out:
    moe_usage_release(&u);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

static int measure_device(const char *pack, const struct moe_progress *progress,
                          struct moe_buf *text, struct moe_err *err)
{
    const struct moe_device_bench_options what = {.pack = pack, .dir = o.dir, .progress = progress};
    struct moe_device *d = NULL;
    int status = moe_device_bench(&what, &d, err);
    if (status == MOE_OK)
        status = moe_device_write(d, false, text, err);
    free(d);
    return status;
}

static int device(const char *pack)
{
    struct moe_err err;
    struct moe_buf text = {0};
    cli_catch_termination();
    int status = measure_device(pack, cli_progress(), &text, &err);
    cli_progress_done();
    status = cli_save(status, &text, o.out, &err);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

/* ---- Several machines ---- */

enum {
    SMALL_MESSAGE = 4096, /* as those of a decoded token */
    OUTPUTS_MESSAGE = 512 << 10,
    LARGE_MESSAGE = 4 << 20,
};

struct described {
    struct moe_ranks *ranks;
    const char *pack;
};

static void say_measuring(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)what;
    moe_ranks_say_state(ctx, MOE_RANK_LOADING, done, total);
}

static int describe_self(void *ctx, struct moe_buf *out, struct moe_err *err)
{
    const struct described *of = ctx;
    const struct moe_progress progress = {.report = say_measuring, .ctx = of->ranks};
    return measure_device(of->pack, &progress, out, err);
}

/* Messages as a layer's are, and larger ones, to a rank and back; as large as a rate needs. */
static int time_link(struct moe_ranks *ranks, uint32_t rank, struct moe_machine_link *l,
                     struct moe_err *err)
{
    bool fits = false;
    for (uint64_t bytes = 256; bytes <= LARGE_MESSAGE || (!fits && bytes <= MOE_RANKS_MOST_TIMED);
         bytes *= 4) {
        struct moe_machine_message *m = &l->messages[l->n_messages++];
        m->bytes = bytes;
        MOE_TRY(moe_ranks_time_message(ranks, rank, bytes, &m->seconds, err));
        fits = moe_machine_link_fit(l);
    }
    if (!fits)
        cli_note("rank %u: the network's rate was not measured, 64 MiB took hardly longer than a "
                 "small message: write bytes_per_second into %s",
                 rank, o.out);
    return MOE_OK;
}

/* What a byte takes of the processor, of messages as large as those of a prompt's outputs. */
static int time_bytes(struct moe_ranks *ranks, uint32_t rank, struct moe_machine_link *l,
                      struct moe_err *err)
{
    double trip, few, many;
    MOE_TRY(moe_ranks_time_message(ranks, rank, OUTPUTS_MESSAGE, &trip, err));
    MOE_TRY(moe_ranks_time_handling(ranks, rank, SMALL_MESSAGE, trip, &few, err));
    MOE_TRY(moe_ranks_time_handling(ranks, rank, OUTPUTS_MESSAGE, trip, &many, err));
    l->handling_seconds_per_byte = fmax(0, many - few) / (OUTPUTS_MESSAGE - SMALL_MESSAGE);
    return MOE_OK;
}

/* What each further message of a layer takes: all ranks are asked at once. */
static int time_all(struct moe_ranks *ranks, struct moe_machines *all, struct moe_err *err)
{
    double together, longest = 0;
    if (all->n < 3)
        return MOE_OK;
    MOE_TRY(moe_ranks_time_message(ranks, 0, SMALL_MESSAGE, &together, err));
    for (uint32_t i = 1; i < all->n; i++)
        longest = fmax(longest, all->machines[i].link.latency_seconds);
    for (uint32_t i = 1; i < all->n; i++)
        all->machines[i].link.handling_seconds = fmax(0, together - longest) / (all->n - 2);
    return MOE_OK;
}

/* Writes what a rank says of its machine beside the file of all, and names it there. */
static int save_profile(struct moe_machine *m, uint32_t rank, const struct moe_buf *text,
                        struct moe_err *err)
{
    struct moe_device *d = NULL;
    const char *name = moe_path_name(o.out), *dot = strrchr(name, '.');
    const int n = dot ? (int)(dot - name) : (int)strlen(name);
    char path[4096];
    snprintf(m->profile, sizeof m->profile, "%.*s-%u.yaml", n < 200 ? n : 200, name, rank);
    snprintf(path, sizeof path, "%.*s%s", (int)(name - o.out), o.out, m->profile);
    MOE_TRY(moe_file_write_all(path, text->data, text->size, err));
    MOE_TRY(moe_device_read(&d, path, err));
    snprintf(m->name, sizeof m->name, "rank %u", rank);
    m->memory_bytes = (uint64_t)(d->host.memory_bytes.value * 0.9);
    free(d);
    return MOE_OK;
}

/* Ranks of one machine share its memory. */
static void share_memory(const struct moe_ranks *ranks, struct moe_machines *all)
{
    for (uint32_t i = 0; i < all->n; i++) {
        struct moe_machine *m = &all->machines[i];
        const char *host = moe_ranks_host(ranks, i);
        uint32_t n = 0, first = all->n;
        for (uint32_t j = all->n; j-- > 0;)
            if (strcmp(host, moe_ranks_host(ranks, j)) == 0) {
                n++;
                first = j;
            }
        snprintf(m->memory, sizeof m->memory, "%" PRIu64 "M", (m->memory_bytes / n) >> 20);
        if (n > 1 && first == i)
            cli_note("%u ranks are on %s: %s has %s of its memory for each", n, host, o.out,
                     m->memory);
    }
}

/* One rank after the other, since several may be on one machine; then the links to rank 0. */
static int measure_machines(struct moe_ranks *ranks, const char *pack, struct moe_machines *all,
                            struct moe_err *err)
{
    const uint32_t n = moe_ranks_wire(ranks)->n_ranks;
    struct moe_buf text = {0};
    int status = MOE_OK;
    for (uint32_t i = 0; i < n; i++) {
        struct moe_machine *m = &all->machines[all->n++];
        text.size = 0;
        MOE_STEP(i ? moe_ranks_ask_text(ranks, i, cli_progress(), &text, err)
                   : measure_device(pack, cli_progress(), &text, err));
        MOE_STEP(save_profile(m, i, &text, err));
        if (i > 0)
            MOE_STEP(time_link(ranks, i, &m->link, err));
        if (i > 0)
            MOE_STEP(time_bytes(ranks, i, &m->link, err));
    }
    share_memory(ranks, all);
    MOE_STEP(time_all(ranks, all, err));
out:
    moe_buf_release(&text);
    return status;
}

static int machines(struct moe_ranks *ranks, const char *pack)
{
    struct moe_err err;
    struct described self = {ranks, pack};
    struct moe_machines *all = NULL;
    struct moe_buf text = {0};
    int status;
    cli_catch_termination();
    if (moe_ranks_wire(ranks)->rank > 0) {
        status = moe_ranks_be_measured(ranks, describe_self, &self, &err);
        return status == MOE_OK ? CLI_DONE : cli_error(&err);
    }
    all = moe_alloc(1, sizeof *all, &err);
    MOE_STEP(all ? MOE_OK : MOE_ERR_MEMORY);
    if (moe_ranks_wire(ranks)->n_ranks > MOE_MAX_MACHINES)
        MOE_STEP(moe_fail(&err, MOE_ERR_LIMIT, "at most %d machines", MOE_MAX_MACHINES));
    MOE_STEP(measure_machines(ranks, pack, all, &err));
    MOE_STEP(moe_machines_write(all, &text, &err));
    cli_progress_done();
    status = cli_save(MOE_OK, &text, o.out, &err);
out:
    cli_progress_done();
    free(all);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

/* This machine, or all that this was started on. */
static int device_or_machines(struct moe_ranks **ranks, const char *pack)
{
    struct moe_err err;
    if (ranks_join(ranks, &err) != MOE_OK)
        return cli_error(&err);
    if (*ranks && moe_ranks_wire(*ranks)->rank == 0 && strcmp(o.out, "-") == 0)
        return cli_misuse("option --output: several machines are described by several files");
    return *ranks ? machines(*ranks, pack) : device(pack);
}

static int show_trace(const char *path, struct moe_buf *text, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    int status;
    MOE_STEP(moe_trace_open(&t, path, err));
    MOE_STEP(moe_trace_check(t, err));
    (o.json ? moe_show_trace_json : moe_show_trace)(t, text);
out:
    moe_trace_close(t);
    return status;
}

static int show_device(const char *path, struct moe_buf *text, struct moe_err *err)
{
    struct moe_device *d = NULL;
    int status;
    MOE_STEP(moe_device_read(&d, path, err));
    if (o.json)
        MOE_STEP(moe_device_write(d, true, text, err));
    else
        moe_show_device(d, cli_screen(STDOUT_FILENO), text);
out:
    free(d);
    return status;
}

static int show_statistics(const char *path, struct moe_buf *text, struct moe_err *err)
{
    struct moe_statistics *s = NULL;
    int status = moe_statistics_read(&s, path, err);
    if (status == MOE_OK)
        status = o.json ? moe_show_statistics_json(s, text, err)
                        : moe_show_statistics(s, cli_screen(STDOUT_FILENO), text, err);
    moe_statistics_free(s);
    return status;
}

static int show_file(const char *path)
{
    struct moe_err err;
    struct moe_buf text = {0};
    int status = o.html                                 ? moe_page_of_file(path, NULL, &text, &err)
                 : moe_trace_is(path)                   ? show_trace(path, &text, &err)
                 : moe_learnt_is(path)                  ? moe_show_learnt(path, o.json, &text, &err)
                 : moe_yaml_file_is(path, "moe-device") ? show_device(path, &text, &err)
                                                        : show_statistics(path, &text, &err);
    if (!o.json && !o.html)
        cli_fit(STDOUT_FILENO, &text);
    status = o.html ? cli_save(status, &text, o.html, &err) : cli_print(status, &text, &err);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

static int run(int argc, char **argv, struct moe_ranks **ranks)
{
    char **args;
    int n_args, status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status >= 0)
        return status;
    if (o.show)
        return n_args == 1 ? show_file(args[0]) : cli_misuse("--show takes one file");
    if (!o.out)
        return cli_misuse(
            o.merge || o.import || o.learn || o.device || o.coe || o.texts.n + o.pairs.n
                ? "no output given (-o FILE)"
                : "nothing to do: --text, --pairs, --merge, --import, --learn, --device, --coe or "
                  "--show");
    if (o.import)
        return n_args == 0 ? import() : cli_misuse("--import takes one file");
    if (o.coe)
        return n_args == 0 ? profile_coe(o.coe)
                           : cli_misuse("--coe takes one collection and no pack");
    if (o.device)
        return n_args <= 1 ? device_or_machines(ranks, n_args ? args[0] : NULL)
                           : cli_misuse("--device takes one pack at most");
    if (o.merge)
        return n_args >= 1 ? merge(args, n_args) : cli_misuse("--merge needs statistics or traces");
    if (o.learn)
        return n_args >= 1 ? learn(args, n_args) : cli_misuse("--learn needs traces");
    if (o.texts.n + o.pairs.n == 0 || n_args != 1)
        return cli_misuse("give one pack and at least one --text FILE");
    const char *pack = args[0];
    status = kept_model_resolve(&pack);
    return status < 0 ? profile(pack) : status;
}

int main(int argc, char **argv)
{
    struct moe_ranks *ranks = NULL;
    ranks_begin();
    const int status = run(argc, argv, &ranks);
    return ranks_leave(ranks, cli_finish(status));
}
