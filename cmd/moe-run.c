#define _DEFAULT_SOURCE /* getentropy, isatty */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli.h"
#include "engine/engine.h"
#include "measure.h"
#include "prompt.h"
#include "repl.h"
#include "show/show_run.h"
#include "strategy_options.h"

enum { DEFAULT_CONTEXT = 4096 };

/* ---- Options ---- */

static struct {
    const char *prompt, *file, *system, *chat_template, *perplexity, *token_log, *ids, *stats_json,
        *trace_events, *plan;
    struct cli_texts stops;
    uint64_t n;
    uint32_t context, batch, max_doc_tokens, window, prompt_tokens;
    double prompt_share; /* of --perplexity's documents */
    bool raw, ignore_eos, bench, json, stats;
    int predict_on; /* enum moe_predict_on */
    struct strategy_options strategy;
    struct moe_engine_options engine;
    struct moe_sampler_options sampling;
} o = {.n = UINT64_MAX, .max_doc_tokens = 256, .prompt_tokens = 256, .prompt_share = 1};

static const char *const places[] = {
    [MOE_PREDICT_ON_AUTO] = "auto",
    [MOE_PREDICT_ON_GPU] = "gpu",
    [MOE_PREDICT_ON_HOST] = "host",
    NULL,
};

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Text and sampling"},
    {CLI_OPT_TEXT('p', "prompt", "TEXT", &o.prompt), .help = "continue or answer TEXT, then exit"},
    {CLI_OPT_TEXT('f', "file", "FILE", &o.file), .help = "the same with a file's text; - is stdin"},
    {CLI_OPT_U64('n', "tokens", "N", &o.n, 0, UINT64_MAX), .shown = "until it ends",
     .help = "at most N new tokens"},
    {CLI_OPT_U32('c', "context", "N", &o.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "positions of context"},
    {CLI_OPT_TEXT(0, "system", "TEXT", &o.system), .help = "system text of a chat"},
    {CLI_OPT_FLAG(0, "raw", &o.raw), .help = "plain text, no chat template"},
    {CLI_OPT_TEXT(0, "chat-template", "NAME", &o.chat_template), .shown = "the model's",
     .help = "chat template to use"},
    {CLI_OPT_TEXTS(0, "stop", "TEXT", &o.stops), .help = "end the answer before TEXT"},
    {CLI_OPT_FLAG(0, "ignore-eos", &o.ignore_eos), .help = "go on after the model's end of text"},
    {CLI_OPT_DOUBLE(0, "temp", "X", &o.sampling.temperature, 0, 100), .shown = "0.8",
     .help = "temperature; 0 is greedy"},
    {CLI_OPT_U32(0, "top-k", "N", &o.sampling.top_k, 0, 1000000), .shown = "0, all",
     .help = "keep the N likeliest tokens"},
    {CLI_OPT_DOUBLE(0, "top-p", "X", &o.sampling.top_p, 0, 1), .shown = "1",
     .help = "keep the likeliest with share X"},
    {CLI_OPT_DOUBLE(0, "min-p", "X", &o.sampling.min_p, 0, 1), .shown = "0",
     .help = "keep those above X times the best"},
    {CLI_OPT_DOUBLE(0, "repeat-penalty", "X", &o.sampling.repeat_penalty, 0.1, 10), .shown = "1",
     .help = "above 1: repeat less"},
    {CLI_OPT_U64(0, "seed", "N", &o.sampling.seed, 0, UINT64_MAX), .shown = "random",
     .help = "the same seed, the same text"},

    {.kind = CLI_HEADING, .help = "Experts"},
    {CLI_OPT_BYTES(0, "memory", "SIZE", &o.engine.memory_bytes), .shown = "what is free",
     .help = "bound of the whole process"},
    {CLI_OPT_BYTES(0, "expert-memory", "SIZE", &o.engine.expert_memory_bytes),
     .shown = "the rest", .help = "the expert cache alone"},
    {CLI_OPT_TEXT(0, "plan", "FILE", &o.plan), .help = "run as moe-plan's plan says"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &o.strategy.strategy), .shown = "auto",
     .help = "auto, or a row: --strategy help lists them"},
    {STRATEGY_OPT_PART(MOE_PART_CACHE, "cache", "NAME", o.strategy), .shown = "the row's",
     .help = "which expert leaves a full cache"},
    {STRATEGY_OPT_PART(MOE_PART_ALLOC, "alloc", "NAME", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PREDICT, "predict", "HOW", o.strategy), .shown = "the row's",
     .help = "predict the experts of layers to come"},
    {STRATEGY_OPT_PART(MOE_PART_PREFETCH, "prefetch", "LIMITS", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_ON_MISS, "on-miss", "HOW", o.strategy)},
    {CLI_OPT_TEXT(0, "statistics", "FILE", &o.strategy.statistics),
     .help = "moe-profile's, for paths and frequencies"},
    {STRATEGY_OPT_FLAG(MOE_PART_PROTECT, "protect", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_CACHE_WEIGHTS, "cache-weights", "LIST", o.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_KEEP_RECORDS, "keep-records", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_LOW_POOL, "low-pool", "SHARE", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_INIT, "init", "NAME", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_CACHE_BITS, "cache-bits", "BITS", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_BUFFER, "buffer", "N", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_SKIP_BELOW, "skip-below", "SHARE", o.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_HOST_DECODES_ONLY, "host-decodes-only", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PREFILL, "prefill", "HOW", o.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_PREFILL_SWAP, "prefill-swap", o.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_PRECALCULATE, "precalculate", o.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PRECALCULATE_FROM, "precalculate-from", "N", o.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_DEGRADE, "degrade", o.strategy)},
    {CLI_OPT_TEXT(0, "without", "PARTS", &o.strategy.without)},
    {CLI_OPT_TEXT(0, "low", "VARIANT", &o.strategy.low)},
    {CLI_OPT_U32(0, "staging", "N", &o.strategy.staging, 1, 65536)},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &o.strategy.device, strategy_device), .shown = "cpu",
     .help = "cpu, cuda[:N], auto, test:SPEED,LINK"},
    {CLI_OPT_BYTES(0, "gpu-memory", "SIZE", &o.engine.gpu_memory_bytes), .shown = "what is free",
     .help = "bound of what is taken on the GPU"},
    {CLI_OPT_FLAG(0, "bf16-prompts", &o.engine.bf16_prompts),
     .help = "prompts in bf16 on the GPU (not exact)"},
    {CLI_OPT_CHOICE(0, "predict-on", "WHERE", &o.predict_on, places), .shown = "auto",
     .help = "who asks routers ahead: auto, gpu, host"},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &o.engine.link_rate), .shown = "the disk's",
     .help = "slow expert loads down to RATE"},
    {CLI_OPT_FLAG(0, "lockstep", &o.engine.lockstep), .help = "loads in modelled time (--link-rate or --plan)"},
    {CLI_OPT_FLAG(0, "pack-in-ram", &o.engine.pack_in_ram),
     .help = "serve loads from a copy in RAM (rehearsals)"},
    {CLI_OPT_FLAG(0, "no-checksums", &o.engine.no_checksums), .help = "do not verify expert loads"},
    {CLI_OPT_FLAG(0, "exact", &o.strategy.exact), .help = "forbid what may change results (all defaults do)"},
    {CLI_OPT_U32(0, "batch", "N", &o.batch, 1, 65536), .shown = "256, fewer if tight",
     .help = "most prompt tokens at once"},

    {.kind = CLI_HEADING, .help = "Measuring"},
    {CLI_OPT_FLAG(0, "stats", &o.stats), .help = "what it took, on stderr"},
    {CLI_OPT_TEXT(0, "stats-json", "FILE", &o.stats_json), .help = "the same as a JSON object"},
    {CLI_OPT_TEXT(0, "trace-events", "FILE", &o.trace_events),
     .help = "what happened when, as a Chrome trace"},
    {CLI_OPT_TEXT(0, "perplexity", "FILE", &o.perplexity), .help = "mean nats per token of FILE"},
    {CLI_OPT_U32(0, "max-doc-tokens", "N", &o.max_doc_tokens, 2, MOE_MAX_CONTEXT), .shown = "256",
     .help = "cut its documents there"},
    {CLI_OPT_U32(0, "window", "N", &o.window, 2, MOE_MAX_CONTEXT),
     .help = "windows of N instead of documents"},
    {CLI_OPT_SHARE(0, "prompt-share", "SHARE", &o.prompt_share, 0, 1), .shown = "100%",
     .help = "compute the rest token by token"},
    {CLI_OPT_TEXT(0, "token-log", "FILE", &o.token_log), .help = "nats and best id of each token"},
    {CLI_OPT_FLAG(0, "bench", &o.bench), .help = "tokens/s, 5 runs; text from -p or -f"},
    {CLI_OPT_U32(0, "prompt-tokens", "N", &o.prompt_tokens, 1, MOE_MAX_CONTEXT), .shown = "256",
     .help = "prompt of the bench; -n [64]"},
    {CLI_OPT_TEXT(0, "ids", "TEXT", &o.ids), .help = "print the token ids of TEXT"},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--bench, --perplexity: a JSON object"},
    {.kind = CLI_END},
};
/* clang-format on */

static const char *const usage[] = {
    "PACK [-p TEXT | -f FILE] [OPTION]...",
    "PACK --perplexity FILE | --bench | --ids TEXT [OPTION]...",
    NULL,
};
static const char *const examples[] = {
    "moe-run tiny.moe                            # a prompt; /help lists commands",
    "moe-run tiny.moe --memory 30M -p 'Once upon a time' --stats",
    NULL,
};
static const struct cli_program program = {
    .name = "moe-run",
    .summary = "Runs a Mixture-of-Experts model from an expert pack (see moe-quantize).",
    .usage = usage,
    .options = options,
    .examples = examples,
};

/* A plan decides all of the strategy. */
static bool names_a_strategy(void)
{
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++)
        if (o.strategy.parts[part])
            return true;
    return o.strategy.strategy || o.strategy.without || o.strategy.low || o.strategy.staging;
}

static int check_options(int n_args, char **args)
{
    if (strategy_wants_help(&o.strategy)) {
        strategy_print_help();
        return cli_finish(CLI_DONE);
    }
    if (n_args == 0)
        return cli_misuse("which pack? moe-run PACK ...");
    if (n_args > 1)
        return cli_misuse("unexpected argument '%s'", args[1]);
    if (!!o.perplexity + o.bench + !!o.ids > 1)
        return cli_misuse("--perplexity, --bench and --ids are three different runs");
    if (o.prompt && o.file)
        return cli_misuse("options -p and -f: one text is enough");
    if ((o.prompt || o.file) && (o.perplexity || o.ids))
        return cli_misuse("options -p and -f do not go with --perplexity or --ids");
    if (o.window && cli_given("max-doc-tokens"))
        return cli_misuse("options --window and --max-doc-tokens exclude each other");
    if (!o.perplexity &&
        (o.window || o.token_log || cli_given("max-doc-tokens") || cli_given("prompt-share")))
        return cli_misuse(
            "--window, --max-doc-tokens, --prompt-share and --token-log belong to --perplexity");
    if (!o.bench && cli_given("prompt-tokens"))
        return cli_misuse("option --prompt-tokens belongs to --bench");
    if (o.json && !o.bench && !o.perplexity)
        return cli_misuse("option --json belongs to --bench and --perplexity");
    if (o.strategy.device.kind != DEVICE_CUDA &&
        (o.engine.gpu_memory_bytes || o.engine.bf16_prompts || cli_given("predict-on")))
        return cli_misuse("options --gpu-memory, --bf16-prompts and --predict-on go with --device "
                          "cuda or --device auto");
    if (o.plan && (names_a_strategy() || o.engine.expert_memory_bytes))
        return cli_misuse("option --plan: strategy and slots are the plan's");
    if (o.raw && (o.chat_template || o.system))
        return cli_misuse("option --raw: plain text has neither template nor system text");
    return -1;
}

/* ---- Opening ---- */

struct run {
    const char *pack;
    struct moe_engine *engine;
    struct moe_session *session; /* the engine's */
    struct moe_model *model;     /* the engine's */
    struct moe_statistics *statistics;
    struct moe_plan *plan;
    struct moe_stats stats; /* of the whole run */
    struct moe_timeline timeline;
};

/* The context to make room for; 0: the model's, up to the cap. */
static uint32_t wanted_context(uint32_t *cap)
{
    *cap = DEFAULT_CONTEXT;
    if (o.context)
        return o.context;
    if (o.perplexity && (o.window || cli_given("max-doc-tokens")))
        return o.window ? o.window : o.max_doc_tokens;
    if (o.perplexity)
        *cap = o.max_doc_tokens;
    if (o.bench && (uint64_t)o.prompt_tokens + o.n <= MOE_MAX_CONTEXT)
        return o.prompt_tokens + (uint32_t)o.n;
    return 0;
}

/* The engine's options of strategy; with none of them the engine chooses. */
static int choose_strategy(struct run *r, struct moe_err *err)
{
    const struct device_option *device = &o.strategy.device;
    struct moe_strategy strategy;
    bool automatic;
    int status = strategy_options_apply(&o.strategy, &strategy, &automatic, err);
    if (status == MOE_OK && o.strategy.statistics)
        status = moe_statistics_read(&r->statistics, o.strategy.statistics, err);
    if (status != MOE_OK)
        return status;
    if (!automatic)
        o.engine.strategy = strategy;
    o.engine.exact = o.strategy.exact;
    o.engine.statistics = r->statistics;
    o.engine.low_variant = o.strategy.low;
    o.engine.staging = o.strategy.staging;
    o.engine.device = (struct moe_device_choice){.test = device->kind == DEVICE_TEST,
                                                 .speed = device->speed,
                                                 .link_rate = device->link_rate,
                                                 .cuda = device->kind == DEVICE_CUDA,
                                                 .index = device->index,
                                                 .automatic = device->automatic};
    return MOE_OK;
}

/* The plan's part of the engine's options. */
static int read_plan(struct run *r, struct moe_err *err)
{
    int status = moe_plan_read(&r->plan, o.plan, err);
    if (status != MOE_OK)
        return status;
    o.engine.plan = r->plan;
    o.engine.pace = &r->plan->pace;
    if (o.engine.lockstep && o.engine.link_rate <= 0)
        o.engine.link_rate = r->plan->pace.load_rate;
    return MOE_OK;
}

static int open_run(struct run *r, struct moe_err *err)
{
    int status = choose_strategy(r, err);
    if (status == MOE_OK && o.plan)
        status = read_plan(r, err);
    if (status != MOE_OK)
        return status;
    o.engine.session =
        (struct moe_session_options){.context = wanted_context(&o.engine.context_cap),
                                     .n_sequences = 1,
                                     .batch = o.batch,
                                     .predict_on = (enum moe_predict_on)o.predict_on};
    o.engine.seed = o.sampling.seed;
    o.engine.timeline = o.trace_events ? &r->timeline : NULL;
    moe_timeline_init(&r->timeline);
    status = moe_engine_open(&r->engine, r->pack, &o.engine, cli_progress(), err);
    cli_progress_done();
    if (status != MOE_OK)
        return status;
    r->session = r->engine->session;
    r->model = r->engine->model;
    if (r->engine->no_gpu.status)
        cli_note("device auto: the CPU computes: %s", r->engine->no_gpu.text);
    if (r->engine->fallback)
        cli_detail("strategy %s: %s", r->engine->strategy.name, r->engine->fallback);
    if (r->engine->strategy.cache && r->engine->budget.below_token)
        cli_note("the expert cache holds less than one token's experts: nothing can be found in it "
                 "again (more --memory would help)");
    return MOE_OK;
}

static void close_run(struct run *r)
{
    moe_engine_close(r->engine);
    moe_statistics_free(r->statistics);
    moe_plan_free(r->plan);
    moe_timeline_release(&r->timeline);
}

/* ---- Text ---- */

static int answer_once(struct run *r, struct moe_conversation *talk, double started,
                       struct moe_err *err)
{
    struct moe_buf prompt = {0};
    struct moe_sampler *sampler = NULL;
    struct moe_generate_options go = {
        .max_tokens = o.n,
        .ignore_eos = o.ignore_eos,
        .stop_texts = o.stops.items,
        .stop = &cli_stop,
        .started = started,
        .text = repl_stream,
    };
    enum moe_stop_reason why;
    err->text[0] = 0;
    int status = prompt_read(o.prompt, o.file, &prompt, err);
    if (status == MOE_OK)
        status = moe_sampler_new(&sampler, &o.sampling, r->model->config.vocab, err);
    cli_catch_interrupt();
    if (status == MOE_OK)
        status = moe_conversation_ask(talk, (const char *)prompt.data, sampler, &go, &why, err);
    if (status == MOE_OK) {
        if (isatty(STDOUT_FILENO))
            puts("");
        status = cli_flush(err);
        repl_explain_stop(why, r->session->context);
        if (status == MOE_OK && why == MOE_STOP_USER)
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "interrupted");
    } else if (!err->text[0]) {
        status = cli_flush(err); /* the stream's own failure: standard output */
    }
    moe_sampler_free(sampler);
    moe_buf_release(&prompt);
    r->stats = r->session->stats;
    return status;
}

static int generate(struct run *r, double started, struct moe_err *err)
{
    const struct moe_chat_format *format;
    struct moe_conversation talk;
    int status =
        prompt_format(o.chat_template, o.raw, r->model->chat_template, r->pack, &format, err);
    if (status != MOE_OK)
        return status;
    if (!cli_given("seed") && getentropy(&o.sampling.seed, sizeof o.sampling.seed) != 0)
        o.sampling.seed = (uint64_t)(moe_seconds() * 1e9);
    cli_detail("seed %llu", (unsigned long long)o.sampling.seed);
    moe_conversation_init(&talk, r->session, format);
    if (o.system)
        status = moe_conversation_system(&talk, o.system, err);
    if (status == MOE_OK && !o.prompt && !o.file && isatty(STDIN_FILENO)) {
        struct repl repl = {
            .engine = r->engine,
            .pack = r->pack,
            .conversation = &talk,
            .sampling = &o.sampling,
            .max_tokens = o.n,
            .ignore_eos = o.ignore_eos,
            .stop_texts = o.stops.items,
            .total = &r->stats,
        };
        if (repl_run(&repl) != CLI_DONE)
            status = -1; /* it has said why */
    } else if (status == MOE_OK) {
        status = answer_once(r, &talk, started, err);
    }
    moe_conversation_release(&talk);
    return status;
}

/* ---- Measuring ---- */

static int perplexity(struct run *r, struct moe_err *err)
{
    const struct measure_perplexity_options mo = {
        .max_doc_tokens = o.max_doc_tokens,
        .window = o.window,
        .decode_share = 1 - o.prompt_share,
        .token_log = o.token_log,
        .json = o.json,
    };
    int status = measure_perplexity(r->session, o.perplexity, &mo, err);
    r->stats = r->session->stats;
    return status;
}

static int bench(struct run *r, struct moe_err *err)
{
    struct moe_buf prompt = {0};
    int status = o.prompt || o.file ? prompt_read(o.prompt, o.file, &prompt, err) : MOE_OK;
    const struct measure_speed_options mo = {
        .prompt_tokens = o.prompt_tokens,
        .decode_tokens = o.n < UINT32_MAX ? (uint32_t)o.n : UINT32_MAX,
        .text = (const char *)prompt.data,
        .json = o.json,
    };
    if (status == MOE_OK)
        status = measure_speed(r->session, &mo, err);
    moe_buf_release(&prompt);
    r->stats = r->session->stats;
    return status;
}

static int report_stats(struct run *r, struct moe_err *err)
{
    struct moe_buf text = {0}, json = {0};
    int status = MOE_OK;
    moe_engine_finish_stats(r->engine, &r->stats);
    moe_show_run(&r->stats, &text);
    moe_budget_write_text(&r->engine->budget, &text);
    moe_show_run_json(&r->stats, &json);
    if (text.failed || json.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the statistics");
    else if (o.stats)
        fputs((const char *)text.data, stderr);
    if (status == MOE_OK && o.stats_json)
        status = moe_file_write_all(o.stats_json, json.data, json.size, err);
    if (status == MOE_OK && o.trace_events)
        status = moe_timeline_save(&r->timeline, o.trace_events, err);
    moe_buf_release(&text);
    moe_buf_release(&json);
    return status;
}

int main(int argc, char **argv)
{
    double started = moe_seconds();
    char **args;
    int n_args;
    moe_sampler_options_default(&o.sampling);
    int status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status < 0)
        status = check_options(n_args, args);
    if (status >= 0)
        return status;

    struct moe_err err = {0};
    struct run r = {.pack = args[0]};
    if (o.bench && !cli_given("tokens"))
        o.n = 64;
    if (o.ids) {
        status = measure_ids(r.pack, o.ids, &err);
    } else {
        status = open_run(&r, &err);
        if (status == MOE_OK)
            status = o.perplexity ? perplexity(&r, &err)
                     : o.bench    ? bench(&r, &err)
                                  : generate(&r, started, &err);
        if (status == MOE_OK)
            status = report_stats(&r, &err);
    }
    close_run(&r);
    int exit_status = CLI_DONE;
    if (status != MOE_OK)
        exit_status = err.text[0] ? cli_error(&err) : CLI_FAILED;
    free(o.stops.items);
    return cli_finish(exit_status);
}
