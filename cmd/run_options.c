#define _DEFAULT_SOURCE /* getentropy */
#include "run_options.h"

#include <unistd.h>

#include "base/clock.h"
#include "drafters.h"
#include "engine/beams.h"
#include "engine/draft.h"
#include "engine/generate.h"
#include "grammar/grammar.h"
#include "tune/bench.h"

enum { BENCH_TOKENS = 64 }; /* -n of --bench */

struct run_options opt = {
    .n = UINT64_MAX,
    .max_doc_tokens = 256,
    .prompt_tokens = 256,
    .bench_runs = 5,
    .prompt_share = 1,
    .beams = {.length_penalty = 1},
};

/* What --perplexity judges a model by. */
static const char *const judges[] = {"nats", "rouge2", "accuracy", NULL};

static const char *const places[] = {
    [MOE_PREDICT_ON_AUTO] = "auto",
    [MOE_PREDICT_ON_GPU] = "gpu",
    [MOE_PREDICT_ON_HOST] = "host",
    NULL,
};

static const char *const early[] = {
    [MOE_EARLY_NO] = "no",
    [MOE_EARLY_YES] = "yes",
    [MOE_EARLY_NEVER] = "never",
    NULL,
};

static const char *const poolings[] = {
    [MOE_POOL_MEAN] = "mean",
    [MOE_POOL_FIRST] = "first",
    [MOE_POOL_LAST] = "last",
    NULL,
};

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Text"},
    {CLI_OPT_TEXT('p', "prompt", "TEXT", &opt.prompt), .help = "continue or answer TEXT, then exit"},
    {CLI_OPT_TEXT('f', "file", "FILE", &opt.file), .help = "the same with the text of FILE; - is stdin"},
    {CLI_OPT_U64('n', "tokens", "N", &opt.n, 0, UINT64_MAX), .shown = "until end of text",
     .help = "generate N tokens at most"},
    {CLI_OPT_U32('c', "context", "N", &opt.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "context length in tokens"},
    {.kind = CLI_LIST, .help = "Chat"},
    {CLI_OPT_FLAG(0, "raw", &opt.raw)},
    {CLI_OPT_TEXT(0, "template-file", "FILE", &opt.template_file), .shown = "own"},
    {CLI_OPT_TEXT(0, "prefix-text", "TEXT", &opt.prefix_text)},
    {CLI_OPT_FLAG(0, "ignore-eos", &opt.ignore_eos)},
    {CLI_OPT_TEXT(0, "system", "TEXT", &opt.system)},
    {CLI_OPT_TEXTS(0, "stop", "TEXT", &opt.stops)},
    {CLI_OPT_TEXT(0, "grammar", "FILE", &opt.grammar)},
    {CLI_OPT_TEXT(0, "json-schema", "FILE", &opt.json_schema)},
    {CLI_OPT_FLAG(0, "json-object", &opt.json_object)},
    {CLI_OPT_FLAG(0, "context-shift", &opt.context_shift)},
    {CLI_OPT_TEXT(0, "messages", "FILE", &opt.messages)},
    {CLI_OPT_FLAG(0, "show-prompt", &opt.show_prompt)},
    {.kind = CLI_LIST, .help = "Sampling"},
    {CLI_OPT_DOUBLE(0, "temp", "X", &opt.sampling.temperature, 0, 100)},
    {CLI_OPT_U32(0, "top-k", "N", &opt.sampling.top_k, 0, 1000000)},
    {CLI_OPT_DOUBLE(0, "top-p", "X", &opt.sampling.top_p, 0, 1)},
    {CLI_OPT_DOUBLE(0, "min-p", "X", &opt.sampling.min_p, 0, 1)},
    {CLI_OPT_DOUBLE(0, "repeat-penalty", "X", &opt.sampling.repeat_penalty, 0.1, 10)},
    {CLI_OPT_U64(0, "seed", "N", &opt.sampling.seed, 0, UINT64_MAX)},
    {CLI_OPT_U32(0, "logprobs", "N", &opt.logprobs, 0, MOE_MAX_TOP_TOKENS)},
    {CLI_OPT_OUTPUT(0, "prompt-cache", "FILE", &opt.prompt_cache)},
    {.kind = CLI_LIST, .help = "Decoding"},
    {CLI_OPT_U32(0, "beams", "N", &opt.beams.n, 2, MOE_MAX_BEAMS), .shown = "none"},
    {CLI_OPT_DOUBLE(0, "length-penalty", "X", &opt.beams.length_penalty, -100, 100), .shown = "1"},
    {CLI_OPT_CHOICE(0, "early-stopping", "WHEN", &opt.early_stopping, early), .shown = "no"},
    {CLI_OPT_FLAG(0, "encode", &opt.encode)},
    {CLI_OPT_CHOICE(0, "pooling", "WHICH", &opt.pooling, poolings), .shown = "mean"},
    {CLI_OPT_CHOICE(0, "draft", "HOW", &opt.draft, drafters), .shown = "none"},
    {.kind = CLI_LIST, .help = "Requests"},
    REQUESTS_OPTIONS(opt.requests),
    {CLI_OPT_U32(0, "sequences", "N", &opt.sequences, 1, 256), .shown = "8"},

    {.kind = CLI_HEADING, .help = "Memory and experts"},
    {CLI_OPT_BYTES(0, "memory", "SIZE", &opt.engine.memory_bytes), .shown = "what is free",
     .help = "limit for the whole process"},
    {CLI_OPT_BYTES(0, "expert-memory", "SIZE", &opt.engine.expert_memory_bytes),
     .shown = "the rest", .help = "size of the expert cache alone"},
    {CLI_OPT_TEXT(0, "plan", "FILE", &opt.plan), .help = "run as planned by moe-plan"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &opt.strategy.strategy), .shown = "auto",
     .word = strategy_word,
     .help = "fate, fate+cache=lru, ...; help lists them"},
    {CLI_OPT_TEXT(0, "statistics", "FILE", &opt.strategy.statistics),
     .help = "by moe-profile, for strategies that need them"},
    {CLI_OPT_FLAG(0, "exact", &opt.strategy.exact),
     .help = "refuse what may change results (no default does)"},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &opt.strategy.device, strategy_device),
     .word = strategy_device_word, .shown = "cpu",
     .help = "cpu, cuda[:N], auto or test:SPEED,LINK"},
    {CLI_OPT_U32(0, "batch", "N", &opt.batch, 1, 65536), .shown = "256, fewer if tight",
     .help = "prompt tokens per pass, at most"},
    {.kind = CLI_LIST, .help = "Rehearsing"},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &opt.engine.link_rate)},
    {CLI_OPT_FLAG(0, "lockstep", &opt.engine.lockstep)},
    {CLI_OPT_FLAG(0, "pack-in-ram", &opt.engine.pack_in_ram)},
    {CLI_OPT_FLAG(0, "no-checksums", &opt.engine.no_checksums)},
    {.kind = CLI_ELSEWHERE, .help = "More", .shown = "--strategy help, moe-strategies(7); for GPUs moe-gpu(7)"},
    {CLI_OPT_TEXT(0, "calibration", "MAP", &opt.calibration)},
    {CLI_OPT_BYTES(0, "gpu-memory", "SIZE", &opt.engine.gpu_memory_bytes),
     .shown = "90% of what is free there"},
    {CLI_OPT_CUSTOM(0, "kv", "KIND", &opt.strategy.kv_kind, strategy_kv), .word = moe_kv_kind_at,
     .shown = "f32"},
    {CLI_OPT_FLAG(0, "bf16-prompts", &opt.engine.bf16_prompts)},
    {CLI_OPT_CHOICE(0, "predict-on", "WHERE", &opt.predict_on, places), .shown = "auto"},

    {.kind = CLI_HEADING, .help = "Measuring"},
    {CLI_OPT_FLAG(0, "stats", &opt.stats), .help = "time, memory and expert traffic, on stderr"},
    {CLI_OPT_STREAM(0, "stats-json", "FILE", &opt.stats_json), .help = "the same as a JSON object"},
    {CLI_OPT_TEXT(0, "perplexity", "FILE", &opt.perplexity), .help = "mean nats per token of FILE"},
    {CLI_OPT_FLAG(0, "bench", &opt.bench), .help = "tokens/s over several runs; prompt from -p or -f"},
    {.kind = CLI_LIST, .help = "Details"},
    {CLI_OPT_STREAM(0, "trace-events", "FILE", &opt.trace_events)},
    {CLI_OPT_TEXT(0, "follow", "TRACE", &opt.follow)},
    {CLI_OPT_TEXT(0, "ids", "TEXT", &opt.ids)},
    {CLI_OPT_CHOICE(0, "judge", "BY", &opt.judge, judges), .shown = "nats"},
    {CLI_OPT_U32(0, "max-doc-tokens", "N", &opt.max_doc_tokens, 2, MOE_MAX_CONTEXT), .shown = "256"},
    {CLI_OPT_U32(0, "max-windows", "N", &opt.max_windows, 1, 1 << 24), .shown = "all"},
    {CLI_OPT_U32(0, "window", "N", &opt.window, 2, MOE_MAX_CONTEXT)},
    {CLI_OPT_FLAG(0, "json", &opt.json)},
    {CLI_OPT_SHARE(0, "prompt-share", "P", &opt.prompt_share, 0, 1), .shown = "100%"},
    {CLI_OPT_STREAM(0, "token-log", "FILE", &opt.token_log)},
    {CLI_OPT_U32(0, "bench-runs", "N", &opt.bench_runs, 1, MOE_BENCH_MAX_RUNS), .shown = "5"},
    {CLI_OPT_U32(0, "prompt-tokens", "N", &opt.prompt_tokens, 1, MOE_MAX_CONTEXT), .shown = "256"},
    {.kind = CLI_END},
};
/* clang-format on */

static struct cli_program program = {
    .name = "moe-run",
    .summary = "Runs a Mixture-of-Experts model from an expert pack (see moe-quantize).",
    .usage =
        (const char *const[]){"PACK [-p TEXT | -f FILE | --requests FILE] [OPTION]...",
                              "PACK --perplexity FILE | --bench | --ids TEXT [OPTION]...", NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-run tiny.moe                            # a prompt; /help lists commands",
            "moe-run tiny.moe --memory 30M -p 'Once upon a time' --stats", NULL},
};

/* Whether an option of strategies was given. */
static bool names_a_strategy(void)
{
    for (const struct cli_option *p = program.more; p->kind != CLI_END; p++)
        if (cli_given(p->name))
            return true;
    return opt.strategy.strategy;
}

/* -1, or the exit status after a message: an option that each request has for itself, or that a
 * server has not. */
static int check_requests(void)
{
    static const char *const others[] = {
        "prompt",        "file",           "tokens",       "system",      "raw",
        "stop",          "ignore-eos",     "temp",         "top-k",       "top-p",
        "min-p",         "seed",           "stats",        "stats-json",  "bench",
        "ids",           "perplexity",     "trace-events", "link-rate",   "lockstep",
        "pack-in-ram",   "repeat-penalty", "beams",        "encode",      "logprobs",
        "prompt-cache",  "prefix-text",    "grammar",      "json-schema", "json-object",
        "context-shift",
    };
    if (!opt.requests.input && opt.sequences)
        return cli_misuse("option --sequences goes with --requests");
    for (size_t i = 0; i < sizeof others / sizeof others[0] && opt.requests.input; i++)
        if (cli_given(others[i]))
            return cli_misuse("options --requests and --%s exclude each other", others[i]);
    if (opt.requests.input && opt.strategy.device.test)
        return cli_misuse("option --requests: requests are not served by a rehearsal");
    return requests_check(&opt.requests);
}

/* The same of beams, which draw nothing, and of what goes with them alone. */
static int check_beams(void)
{
    static const char *const draws[] = {"temp",  "top-k",          "top-p",
                                        "min-p", "repeat-penalty", "seed"};
    if (!opt.beams.n && (cli_given("length-penalty") || cli_given("early-stopping")))
        return cli_misuse("options --length-penalty and --early-stopping go with --beams");
    for (size_t i = 0; i < sizeof draws / sizeof draws[0] && opt.beams.n; i++)
        if (cli_given(draws[i]))
            return cli_misuse("options --beams and --%s exclude each other: a search draws nothing",
                              draws[i]);
    if (opt.beams.n && (opt.perplexity || opt.bench || opt.ids))
        return cli_misuse("option --beams goes with answers, not with measuring");
    opt.beams.early = (enum moe_early_stopping)opt.early_stopping;
    return -1;
}

/* The same of what an answer may be. */
static int check_grammar(void)
{
    const char *given = opt.grammar ? "grammar" : opt.json_schema ? "json-schema" : "json-object";
    if (!!opt.grammar + !!opt.json_schema + opt.json_object > 1)
        return cli_misuse("options --grammar, --json-schema and --json-object exclude each other");
    if (!opt.grammar && !opt.json_schema && !opt.json_object)
        return -1;
    if (opt.beams.n)
        return cli_misuse(
            "options --beams and --%s exclude each other: a search follows no grammar", given);
    if (opt.perplexity || opt.bench || opt.ids || opt.encode)
        return cli_misuse("option --%s goes with answers, not with measuring or --encode", given);
    return -1;
}

/* The same of --encode: nothing is written that an option of answers could be about. */
static int check_encode(void)
{
    static const char *const others[] = {
        "beams",      "tokens", "system", "template-file", "stop", "ignore-eos",
        "temp",       "top-k",  "top-p",  "min-p",         "seed", "repeat-penalty",
        "perplexity", "bench",  "ids",    "logprobs",
    };
    if (!opt.encode && cli_given("pooling"))
        return cli_misuse("option --pooling goes with --encode");
    for (size_t i = 0; i < sizeof others / sizeof others[0] && opt.encode; i++)
        if (cli_given(others[i]))
            return cli_misuse("options --encode and --%s exclude each other", others[i]);
    return -1;
}

/* The same of messages, which are the whole conversation, and of what is only shown. */
static int check_messages(void)
{
    static const char *const others[] = {"prompt", "file",       "system", "raw", "prefix-text",
                                         "encode", "perplexity", "bench",  "ids", "requests"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (opt.messages && cli_given(others[i]))
            return cli_misuse("options --messages and --%s exclude each other", others[i]);
        if (opt.show_prompt && i >= 5 && cli_given(others[i]))
            return cli_misuse("options --show-prompt and --%s exclude each other", others[i]);
    }
    return -1;
}

/* The same of a prefix: it stands before a plain text that is continued. */
static int check_prefix(void)
{
    static const char *const others[] = {"perplexity", "bench",         "ids",
                                         "encode",     "template-file", "system"};
    for (size_t i = 0; i < sizeof others / sizeof others[0] && opt.prefix_text; i++)
        if (cli_given(others[i]))
            return cli_misuse("options --prefix-text and --%s exclude each other", others[i]);
    return -1;
}

/* The same of what goes with one answer that scripts read. */
static int check_answer(void)
{
    static const char *const others[] = {"beams", "bench", "perplexity", "ids"};
    static const char *const ours[] = {"context-shift", "logprobs", "prompt-cache"};
    bool one = opt.prompt || opt.file || !isatty(STDIN_FILENO);
    if (opt.context_shift && opt.strategy.exact)
        return cli_misuse("option --exact: --context-shift may change results: an answer goes on "
                          "without the oldest part of its text");
    for (size_t k = 0; k < sizeof ours / sizeof ours[0]; k++) {
        if (cli_given(ours[k]) && k > 0 && !one)
            return cli_misuse("option --%s goes with -p, -f or a text on standard input", ours[k]);
        for (size_t i = 0; i < sizeof others / sizeof others[0] && cli_given(ours[k]); i++)
            if (cli_given(others[i]))
                return cli_misuse("options --%s and --%s exclude each other", ours[k], others[i]);
    }
    return -1;
}

/* The same of drafts, of answers that are drawn token by token. */
static int check_draft(void)
{
    static const char *const others[] = {"beams", "bench", "perplexity", "ids", "encode"};
    for (size_t i = 0; i < sizeof others / sizeof others[0] && opt.draft; i++)
        if (cli_given(others[i]))
            return cli_misuse("options --draft and --%s exclude each other", others[i]);
    return -1;
}

static int check_options(int n_args, char **args)
{
    if (strategy_wants_help(&opt.strategy)) {
        strategy_print_help();
        return cli_finish(CLI_DONE);
    }
    if (n_args == 0)
        return cli_misuse("no pack given: moe-run PACK ...");
    if (n_args > 1)
        return cli_misuse("unexpected argument '%s'", args[1]);
    if (!!opt.perplexity + opt.bench + !!opt.ids > 1)
        return cli_misuse("--perplexity, --bench and --ids exclude each other");
    if (opt.prompt && opt.file)
        return cli_misuse("options -p and -f exclude each other");
    if ((opt.prompt || opt.file) && (opt.perplexity || opt.ids))
        return cli_misuse("options -p and -f do not go with --perplexity or --ids");
    if (opt.window && (cli_given("max-doc-tokens") || opt.max_windows))
        return cli_misuse("option --window excludes --max-doc-tokens and --max-windows");
    if (opt.judge && !opt.perplexity)
        return cli_misuse("option --judge belongs to --perplexity");
    if (!opt.perplexity && (opt.window || opt.token_log || opt.max_windows ||
                            cli_given("max-doc-tokens") || cli_given("prompt-share")))
        return cli_misuse("--window, --max-doc-tokens, --max-windows, --prompt-share and "
                          "--token-log belong to --perplexity");
    if (opt.follow && !opt.bench)
        return cli_misuse("option --follow goes with --bench: what follows a trace is no text");
    if (opt.follow && (opt.prompt || opt.file || cli_given("prompt-tokens")))
        return cli_misuse("option --follow: prompts are the trace's, without -p, -f and "
                          "--prompt-tokens");
    if (opt.follow && opt.strategy.exact)
        return cli_misuse("option --exact: with --follow experts are a trace's choices, and there "
                          "is no text that could stay the same");
    if (!opt.bench && (cli_given("prompt-tokens") || cli_given("bench-runs")))
        return cli_misuse("options --prompt-tokens and --bench-runs belong to --bench");
    if (opt.follow && cli_given("bench-runs"))
        return cli_misuse("option --follow: a trace is computed once, without --bench-runs");
    if (opt.json && !opt.bench && !opt.perplexity)
        return cli_misuse("option --json belongs to --bench and --perplexity");
    if (!opt.strategy.device.cuda &&
        (opt.engine.gpu_memory_bytes || opt.engine.bf16_prompts || cli_given("predict-on")))
        return cli_misuse("options --gpu-memory, --bf16-prompts and --predict-on go with --device "
                          "cuda or --device auto");
    if (opt.plan && opt.calibration)
        return cli_misuse("--plan holds what a --calibration said to moe-plan");
    if (opt.plan && (names_a_strategy() || opt.engine.expert_memory_bytes))
        return cli_misuse("option --plan: the plan fixes strategy and slots");
    if (opt.raw && (opt.template_file || opt.system))
        return cli_misuse("option --raw: plain text has neither template nor system text");
    if (opt.prompt_cache && opt.strategy.kv_kind == MOE_LAYOUT_F16)
        return cli_misuse("options --prompt-cache and --kv f16 exclude each other: the file would "
                          "be of a KV cache in a GPU's memory");
    int status = strategy_check_kv(&opt.strategy, opt.strategy.device.cuda);
    if (status < 0)
        status = check_beams();
    if (status < 0)
        status = check_messages();
    if (status < 0)
        status = check_encode();
    if (status < 0)
        status = check_answer();
    if (status < 0)
        status = check_prefix();
    if (status < 0)
        status = check_grammar();
    if (status < 0)
        status = check_draft();
    return status < 0 ? check_requests() : status;
}

int run_options_parse(int argc, char **argv, const char **pack)
{
    char **args;
    int n_args;
    moe_sampling_unsaid(&opt.sampling);
    program.more = strategy_part_options(&opt.strategy);
    int status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status < 0)
        status = check_options(n_args, args);
    if (status >= 0)
        return status;
    opt.draft_max = opt.draft ? MOE_DRAFT_MOST : 0;
    opt.engine.ahead = opt.draft == DRAFT_MTP;
    if (opt.bench && !cli_given("tokens"))
        opt.n = opt.follow ? 0 : BENCH_TOKENS;
    if (!cli_given("seed") && getentropy(&opt.sampling.seed, sizeof opt.sampling.seed) != 0)
        opt.sampling.seed = (uint64_t)(moe_seconds() * 1e9);
    *pack = args[0];
    return -1;
}

int run_options_grammar(struct moe_grammar **out, struct moe_err *err)
{
    if (opt.grammar)
        return moe_grammar_read(out, opt.grammar, err);
    if (opt.json_schema)
        return moe_grammar_read_schema(out, opt.json_schema, err);
    return opt.json_object ? moe_grammar_of_objects(out, err) : MOE_OK;
}
