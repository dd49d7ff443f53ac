#define _DEFAULT_SOURCE /* getentropy, isatty */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli.h"
#include "measure.h"
#include "prompt.h"
#include "repl.h"
#include "run/engine.h"

enum { DEFAULT_CONTEXT = 4096 };

/* ---- Options ----------------------------------------------------------------------------------
 */

static struct {
    const char *prompt, *file, *system, *chat_template, *perplexity, *token_log, *ids, *stats_json,
        *trace_events;
    struct cli_texts stops;
    uint64_t n;
    uint32_t context, batch, max_doc_tokens, window, prompt_tokens;
    bool raw, ignore_eos, exact, bench, json, stats;
    struct moe_engine_options engine;
    struct moe_sampler_options sampling;
} o = {.n = UINT64_MAX, .max_doc_tokens = 256, .prompt_tokens = 256};

static bool parse_strategy(const char *text, void *to, char why[128])
{
    if (moe_strategy_parse(text, to))
        return true;
    snprintf(why, 128, "is not one of auto, resident, ondemand, lru");
    return false;
}

static bool parse_policy(const char *text, void *to, char why[128])
{
    const struct moe_policy_ops *policy = moe_policy_find(text);
    *(const struct moe_policy_ops **)to = policy;
    if (!policy)
        snprintf(why, 128, "is not one of random, fifo, lru, lfu, arc, pinned");
    return policy != NULL;
}

static bool parse_allocation(const char *text, void *to, char why[128])
{
    *(bool *)to = strcmp(text, "per-layer") == 0;
    if (*(bool *)to || strcmp(text, "global") == 0)
        return true;
    snprintf(why, 128, "is not one of global, per-layer");
    return false;
}

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Text"},
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

    {.kind = CLI_HEADING, .help = "Sampling"},
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
    {CLI_OPT_CUSTOM(0, "strategy", "NAME", &o.engine.strategy, parse_strategy), .shown = "auto",
     .help = "auto, resident, ondemand or lru"},
    {CLI_OPT_CUSTOM(0, "cache", "NAME", &o.engine.policy, parse_policy), .shown = "lru",
     .help = "random, fifo, lru, lfu, arc or pinned"},
    {CLI_OPT_CUSTOM(0, "alloc", "NAME", &o.engine.per_layer, parse_allocation),
     .shown = "global", .help = "the cache's slots: global or per-layer"},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &o.engine.link_rate), .shown = "the disk's",
     .help = "slow expert loads down to RATE"},
    {CLI_OPT_FLAG(0, "lockstep", &o.engine.lockstep), .help = "loads in modelled time, with a --link-rate"},
    {CLI_OPT_FLAG(0, "pack-in-ram", &o.engine.pack_in_ram),
     .help = "serve loads from a copy in RAM (rehearsals)"},
    {CLI_OPT_FLAG(0, "no-checksums", &o.engine.no_checksums), .help = "do not verify expert loads"},
    {CLI_OPT_FLAG(0, "exact", &o.exact), .help = "forbid what may change results (all defaults do)"},
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

static int check_options(int n_args, char **args)
{
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
    if (!o.perplexity && (o.window || o.token_log || cli_given("max-doc-tokens")))
        return cli_misuse("--window, --max-doc-tokens and --token-log belong to --perplexity");
    if (!o.bench && cli_given("prompt-tokens"))
        return cli_misuse("option --prompt-tokens belongs to --bench");
    if (o.json && !o.bench && !o.perplexity)
        return cli_misuse("option --json belongs to --bench and --perplexity");
    if (o.raw && (o.chat_template || o.system))
        return cli_misuse("option --raw: plain text has neither template nor system text");
    return -1;
}

/* ---- Opening ----------------------------------------------------------------------------------
 */

struct run {
    const char *pack;
    struct moe_engine *engine;
    struct moe_session *session; /* the engine's */
    struct moe_model *model;     /* the engine's */
    struct moe_stats stats;      /* of the whole run */
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

static int open_run(struct run *r, struct moe_err *err)
{
    o.engine.session = (struct moe_session_options){
        .context = wanted_context(&o.engine.context_cap), .n_sequences = 1, .batch = o.batch};
    o.engine.seed = o.sampling.seed;
    o.engine.timeline = o.trace_events ? &r->timeline : NULL;
    moe_timeline_init(&r->timeline);
    int status = moe_engine_open(&r->engine, r->pack, &o.engine, cli_progress(), err);
    cli_progress_done();
    if (status != MOE_OK)
        return status;
    r->session = r->engine->session;
    r->model = r->engine->model;
    if (r->engine->strategy == MOE_STRATEGY_LRU && r->engine->budget.below_token)
        cli_note("the expert cache holds less than one token's experts: nothing can be found in it "
                 "again (more --memory would help)");
    return MOE_OK;
}

static void close_run(struct run *r)
{
    moe_engine_close(r->engine);
    moe_timeline_release(&r->timeline);
}

/* ---- Text -------------------------------------------------------------------------------------
 */

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

/* ---- Measuring --------------------------------------------------------------------------------
 */

static int perplexity(struct run *r, struct moe_err *err)
{
    const struct measure_perplexity_options mo = {
        .max_doc_tokens = o.max_doc_tokens,
        .window = o.window,
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
    moe_stats_write_text(&r->stats, &text);
    moe_budget_write_text(&r->engine->budget, &text);
    moe_stats_write_json(&r->stats, &json);
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
