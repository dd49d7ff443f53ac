/* The option table of moe-run, and checks that the table cannot say. */
#define _DEFAULT_SOURCE /* getentropy */
#include "run_options.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/beams.h"
#include "engine/draft.h"
#include "engine/encode.h"
#include "grammar/grammar.h"
#include "kept_models.h"
#include "tune/bench.h"

enum { BENCH_TOKENS = 64 }; /* -n of --bench */

/* Modes: answers that are drawn, which is usual, and those that an option chooses. */
enum {
    BEAMS = CLI_USUAL << 1,
    ENCODE = CLI_USUAL << 2,
    REQUESTS = CLI_USUAL << 3,
    PERPLEXITY = CLI_USUAL << 4,
    BENCH = CLI_USUAL << 5,
    IDS = CLI_USUAL << 6,
    ALL = (CLI_USUAL << 7) - 1,
    LIST = CLI_USUAL << 7,                      /* no model is opened */
    ANSWERS = CLI_USUAL | BEAMS,                /* one text or conversation goes on */
    TEXTS = ANSWERS | ENCODE | BENCH,           /* -p and -f say it */
    DRAWS = ALL & ~(BEAMS | ENCODE | REQUESTS), /* options of sampling matter, or do no harm */
};

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

/* A number of tokens; -1: all, which top-k has 0 for. */
static bool some_tokens(const char *text, void *to, struct moe_err *why)
{
    enum { ALL_TOKENS = 1000000 };
    uint64_t n = to == &opt.sampling.top_k ? 0 : ALL_TOKENS;
    if (strcmp(text, "-1") != 0 && (!moe_parse_u64(text, &n) || n > ALL_TOKENS)) {
        moe_fail(why, MOE_ERR_USAGE, "is neither a number of tokens, at most %d, nor -1 for all",
                 ALL_TOKENS);
        return false;
    }
    *(uint32_t *)to = (uint32_t)n;
    return true;
}

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Text"},
    {CLI_OPT_TEXT('p', "prompt", "TEXT", &opt.prompt), .help = "continue or answer TEXT, then exit",
     .modes = TEXTS, .excludes = "file"},
    {CLI_OPT_TEXT('f', "file", "FILE", &opt.file), .help = "the same with the text of FILE; - is stdin",
     .modes = TEXTS},
    {CLI_OPT_U64('n', "tokens", "N", &opt.n, 0, UINT64_MAX), .shown = "until end of text",
     .help = "generate N tokens at most",
     .modes = ALL & ~(ENCODE | REQUESTS)},
    {CLI_OPT_U32('c', "context", "N", &opt.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "context length in tokens"},
    {.kind = CLI_LIST, .help = "Chat"},
    {CLI_OPT_FLAG(0, "raw", &opt.raw), .modes = ALL & ~REQUESTS, .excludes = "template-file system"},
    {CLI_OPT_TEXT(0, "template-file", "FILE", &opt.template_file), .shown = "own",
     .modes = ALL & ~ENCODE},
    {CLI_OPT_TEXT(0, "prefix-text", "TEXT", &opt.prefix_text),
     .modes = ANSWERS, .excludes = "template-file system"},
    {CLI_OPT_FLAG(0, "ignore-eos", &opt.ignore_eos), .modes = ALL & ~(ENCODE | REQUESTS)},
    {CLI_OPT_TEXT(0, "system", "TEXT", &opt.system), .modes = ALL & ~(ENCODE | REQUESTS)},
    {CLI_OPT_TEXTS(0, "stop", "TEXT", &opt.stops), .modes = ALL & ~(ENCODE | REQUESTS)},
    {CLI_OPT_TEXT(0, "grammar", "FILE", &opt.grammar),
     .modes = CLI_USUAL, .excludes = "json-schema json-object"},
    {CLI_OPT_TEXT(0, "json-schema", "FILE", &opt.json_schema),
     .modes = CLI_USUAL, .excludes = "json-object"},
    {CLI_OPT_FLAG(0, "json-object", &opt.json_object), .modes = CLI_USUAL},
    {CLI_OPT_FLAG(0, "context-shift", &opt.context_shift), .modes = CLI_USUAL},
    {CLI_OPT_TEXT(0, "messages", "FILE", &opt.messages),
     .modes = ANSWERS, .excludes = "prompt file system raw prefix-text"},
    {CLI_OPT_FLAG(0, "show-prompt", &opt.show_prompt), .modes = ANSWERS},
    {CLI_OPT_TEXT(0, "tools", "FILE", &opt.tools),
     .modes = CLI_USUAL, .excludes = "raw prefix-text logprobs"},
    {CLI_OPT_TEXT(0, "tool-choice", "WHICH", &opt.tool_choice), .shown = "auto",
     .modes = CLI_USUAL, .excludes = "grammar json-schema json-object"},
    {CLI_OPT_TEXT(0, "from", "NAME", &opt.source_language), .modes = ANSWERS},
    {CLI_OPT_TEXT(0, "to", "NAME", &opt.target_language), .modes = ANSWERS},
    {.kind = CLI_LIST, .help = "Sampling"},
    {CLI_OPT_DOUBLE(0, "temp", "X", &opt.sampling.temperature, 0, 100), .modes = DRAWS},
    {CLI_OPT_CUSTOM(0, "top-k", "N", &opt.sampling.top_k, some_tokens), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "top-p", "X", &opt.sampling.top_p, 0, 1), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "min-p", "X", &opt.sampling.min_p, 0, 1), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "repeat-penalty", "X", &opt.sampling.repeat_penalty, 0.1, 10), .modes = DRAWS},
    {CLI_OPT_U64(0, "seed", "N", &opt.sampling.seed, 0, UINT64_MAX), .modes = DRAWS},
    {CLI_OPT_U32(0, "logprobs", "N", &opt.logprobs, 0, MOE_MAX_TOP_TOKENS), .modes = CLI_USUAL},
    {CLI_OPT_OUTPUT(0, "prompt-cache", "FILE", &opt.prompt_cache), .modes = CLI_USUAL},
    {.kind = CLI_LIST, .help = "Decoding"},
    {CLI_OPT_U32(0, "beams", "N", &opt.beams.n, 2, MOE_MAX_BEAMS), .shown = "none",
     .mode = BEAMS},
    {CLI_OPT_DOUBLE(0, "length-penalty", "X", &opt.beams.length_penalty, -100, 100), .shown = "1",
     .modes = BEAMS},
    {CLI_OPT_CHOICE(0, "early-stopping", "WHEN", &opt.early_stopping, early), .shown = "no",
     .modes = BEAMS},
    {CLI_OPT_FLAG(0, "encode", &opt.encode), .mode = ENCODE},
    {CLI_OPT_CHOICE(0, "pooling", "WHICH", &opt.pooling, poolings), .shown = "mean", .modes = ENCODE},
    {CLI_OPT_CUSTOM(0, "draft", "HOW", &opt.draft, strategy_drafter),
     .word = strategy_drafter_word, .shown = "none",
     .modes = CLI_USUAL | REQUESTS},
    {.kind = CLI_LIST, .help = "Requests"},
    REQUESTS_OPTIONS(opt.requests, REQUESTS),
    {CLI_OPT_U32(0, "sequences", "N", &opt.sequences, 1, 256), .shown = "8", .modes = REQUESTS},

    {.kind = CLI_HEADING, .help = "Memory and experts"},
    {CLI_OPT_BYTES(0, "memory", "SIZE", &opt.engine.memory_bytes), .shown = "what is free",
     .help = "limit for the whole process"},
    {CLI_OPT_BYTES(0, "expert-memory", "SIZE", &opt.engine.expert_memory_bytes),
     .shown = "the rest", .help = "size of the expert cache alone"},
    {CLI_OPT_TEXT(0, "plan", "FILE", &opt.plan), .help = "run as planned by moe-plan",
     .excludes = "calibration expert-memory strategy tolerance"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &opt.strategy.strategy), .shown = "auto",
     .word = strategy_word,
     .help = "fate, fate+cache=lru, ...; help lists them"},
    {CLI_OPT_FLAG(0, "exact", &opt.strategy.exact),
     .help = "refuse what may change results (no default does)"},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &opt.strategy.device, strategy_device),
     .word = strategy_device_word, .shown = "cpu",
     .help = "cpu, cuda[:N], auto or test:SPEED,LINK"},
    {.kind = CLI_LIST, .help = "Also"},
    {CLI_OPT_CUSTOM(0, "kv", "KIND", &opt.strategy.kv_kind, strategy_kv), .word = moe_kv_kind_at,
     .shown = "f16"},
    {CLI_OPT_FLAG(0, "reserve-kv", &opt.engine.reserve_kv), .modes = ALL & ~REQUESTS},
    {CLI_OPT_TEXT(0, "statistics", "FILE", &opt.strategy.statistics)},
    {CLI_OPT_OUTPUT(0, "learn", "FILE", &opt.engine.learn)},
    {CLI_OPT_SHARE(0, "tolerance", "P", &opt.engine.tolerance, 1e-6, 10), .excludes = "exact"},
    {CLI_OPT_U32(0, "batch", "N", &opt.batch, 1, 65536), .shown = "512"},
    {CLI_OPT_TEXT(0, "spread", "DIR", &opt.engine.spread)},
    {.kind = CLI_LIST, .help = "Rehearsing"},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &opt.engine.link_rate), .modes = ALL & ~REQUESTS},
    {CLI_OPT_FLAG(0, "lockstep", &opt.engine.lockstep), .modes = ALL & ~REQUESTS},
    {CLI_OPT_FLAG(0, "pack-in-ram", &opt.engine.pack_in_ram), .modes = ALL & ~REQUESTS},
    {CLI_OPT_FLAG(0, "no-checksums", &opt.engine.no_checksums)},
    {.kind = CLI_ELSEWHERE, .help = "More", .shown = "moe-strategies(7), moe-sampling(7), moe-gpu(7), moe-ranks(7)"},
    {CLI_OPT_FLAG(0, "share-attention", &opt.engine.share_attention),
     .excludes = "prompt-cache spread"},
    {CLI_OPT_FLAG(0, "share-layers", &opt.engine.share_layers),
     .excludes = "prompt-cache spread share-attention"},
    {CLI_OPT_CUSTOM(0, "repeat-last-n", "N", &opt.sampling.repeat_window, some_tokens), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "presence-penalty", "X", &opt.sampling.presence_penalty, -2, 2), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "frequency-penalty", "X", &opt.sampling.frequency_penalty, -2, 2), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "dry-multiplier", "X", &opt.sampling.dry_multiplier, 0, 100), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "dry-base", "X", &opt.sampling.dry_base, 1, 100), .modes = DRAWS},
    {CLI_OPT_U32(0, "dry-allowed-length", "N", &opt.sampling.dry_allowed_length, 0, 1000), .modes = DRAWS},
    {CLI_OPT_CUSTOM(0, "dry-penalty-last-n", "N", &opt.sampling.dry_window, some_tokens), .modes = DRAWS},
    {CLI_OPT_TEXTS(0, "dry-sequence-breaker", "TEXT", &opt.breakers), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "top-n-sigma", "X", &opt.sampling.top_n_sigma, -1, 1000), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "typical", "X", &opt.sampling.typical_p, 0, 1), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "xtc-probability", "X", &opt.sampling.xtc_probability, 0, 1), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "xtc-threshold", "X", &opt.sampling.xtc_threshold, 0, 1), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "dynatemp-range", "X", &opt.sampling.dynatemp_range, 0, 100), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "dynatemp-exp", "X", &opt.sampling.dynatemp_exponent, 0, 100), .modes = DRAWS},
    {CLI_OPT_U32(0, "mirostat", "N", &opt.sampling.mirostat, 0, 2), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "mirostat-ent", "X", &opt.sampling.mirostat_tau, 0, 100), .modes = DRAWS},
    {CLI_OPT_DOUBLE(0, "mirostat-lr", "X", &opt.sampling.mirostat_eta, 0, 1), .modes = DRAWS},
    {CLI_OPT_TEXTS(0, "logit-bias", "ID(+/-)X", &opt.biases), .modes = DRAWS},
    {CLI_OPT_U64(0, "min-tokens", "N", &opt.min_tokens, 0, UINT64_MAX), .modes = CLI_USUAL},
    {CLI_OPT_TEXTS(0, "stop-token-id", "ID", &opt.stop_token_ids), .modes = CLI_USUAL},
    {CLI_OPT_TEXT(0, "calibration", "MAP", &opt.calibration)},
    {CLI_OPT_BYTES(0, "gpu-memory", "SIZE", &opt.engine.gpu_memory_bytes),
     .shown = "90% of what is free there"},
    {CLI_OPT_FLAG(0, "bf16-prompts", &opt.engine.bf16_prompts)},
    {CLI_OPT_CHOICE(0, "predict-on", "WHERE", &opt.predict_on, places), .shown = "auto"},

    {.kind = CLI_HEADING, .help = "Measuring"},
    {CLI_OPT_FLAG(0, "stats", &opt.stats), .help = "time, memory and expert traffic, on stderr",
     .modes = ALL & ~REQUESTS},
    {CLI_OPT_STREAM(0, "stats-json", "FILE", &opt.stats_json), .help = "the same as a JSON object",
     .modes = ALL & ~REQUESTS},
    {CLI_OPT_TEXT(0, "perplexity", "FILE", &opt.perplexity), .help = "mean nats per token of FILE",
     .mode = PERPLEXITY},
    {CLI_OPT_FLAG(0, "bench", &opt.bench), .help = "tokens/s over several runs; prompt from -p or -f",
     .mode = BENCH},
    {.kind = CLI_LIST, .help = "Details"},
    {CLI_OPT_STREAM(0, "trace-events", "FILE", &opt.trace_events), .modes = ALL & ~REQUESTS},
    {CLI_OPT_TEXT(0, "follow", "TRACE", &opt.follow),
     .modes = BENCH, .excludes = "prompt file prompt-tokens bench-runs"},
    {CLI_OPT_TEXT(0, "ids", "TEXT", &opt.ids), .mode = IDS},
    {CLI_OPT_FLAG(0, "list", &opt.list), .mode = LIST},
    {CLI_OPT_CHOICE(0, "judge", "BY", &opt.judge, judges), .shown = "nats", .modes = PERPLEXITY},
    {CLI_OPT_U32(0, "max-doc-tokens", "N", &opt.max_doc_tokens, 2, MOE_MAX_CONTEXT), .shown = "256",
     .modes = PERPLEXITY},
    {CLI_OPT_U32(0, "max-windows", "N", &opt.max_windows, 1, 1 << 24), .shown = "all",
     .modes = PERPLEXITY},
    {CLI_OPT_U32(0, "window", "N", &opt.window, 2, MOE_MAX_CONTEXT),
     .modes = PERPLEXITY, .excludes = "max-doc-tokens max-windows"},
    {CLI_OPT_FLAG(0, "json", &opt.json), .modes = CLI_USUAL | PERPLEXITY | BENCH,
     .excludes = "raw prefix-text logprobs"},
    {CLI_OPT_SHARE(0, "prompt-share", "P", &opt.prompt_share, 0, 1), .shown = "100%",
     .modes = PERPLEXITY},
    {CLI_OPT_STREAM(0, "token-log", "FILE", &opt.token_log), .modes = PERPLEXITY},
    {CLI_OPT_OUTPUT(0, "logits", "FILE", &opt.logits), .modes = PERPLEXITY,
     .excludes = "against judge"},
    {CLI_OPT_TEXT(0, "against", "FILE", &opt.against), .modes = PERPLEXITY, .excludes = "judge"},
    {CLI_OPT_U32(0, "bench-runs", "N", &opt.bench_runs, 1, MOE_BENCH_MAX_RUNS), .shown = "5",
     .modes = BENCH},
    {CLI_OPT_U32(0, "prompt-tokens", "N", &opt.prompt_tokens, 1, MOE_MAX_CONTEXT), .shown = "256",
     .modes = BENCH},
    {.kind = CLI_END},
};
/* clang-format on */

static struct cli_program program = {
    .name = "moe-run",
    .summary = "Runs a Mixture-of-Experts model: a pack, a .gguf file, a Hugging Face directory.",
    .usage = (const char *const[]){"MODEL [-p TEXT | -f FILE | --requests FILE] [OPTION]...",
                                   "MODEL --perplexity FILE | --bench | --ids TEXT [OPTION]...",
                                   "--list [DIRECTORY]", NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-run model.gguf                          # a prompt; /help lists commands",
            "moe-run tiny.moe --memory 30M -p 'Once upon a time' --stats", NULL},
    .joins_ranks = true,
};

/* Whether a part of a strategy was given. */
static bool names_a_strategy(void)
{
    for (const struct cli_option *p = program.more; p->kind != CLI_END; p++)
        if (cli_given(p->name))
            return true;
    return false;
}

/* Reads "15043-1.5": what is added to the logit of token 15043; with -inf it is never drawn. */
bool run_options_bias(const char *text, struct moe_logit_bias *out)
{
    char id[16];
    uint64_t n = 0;
    double bias = 0;
    const size_t length = strspn(text, "0123456789");
    const char *amount = text + length;
    if (length == 0 || length >= sizeof id || (*amount != '+' && *amount != '-'))
        return false;
    snprintf(id, sizeof id, "%.*s", (int)length, text);
    if (!moe_parse_u64(id, &n) || n > UINT32_MAX)
        return false;
    if (strcmp(amount, "-inf") == 0)
        bias = -INFINITY;
    else if (!moe_parse_double(amount + (*amount == '+'), &bias) || !(fabs(bias) <= 100))
        return false;
    *out = (struct moe_logit_bias){(uint32_t)n, (float)bias};
    return true;
}

/* What repeated options of sampling say. */
static int read_lists(void)
{
    struct moe_err err;
    struct moe_logit_bias *biases = NULL;
    if (opt.biases.n && !(biases = moe_alloc((uint64_t)opt.biases.n, sizeof *biases, &err)))
        return cli_error(&err);
    opt.sampling.biases = biases;
    for (int i = 0; i < opt.biases.n; i++) {
        if (!run_options_bias(opt.biases.items[i], &biases[i]))
            return cli_misuse("option --logit-bias: '%s' is not ID+X or ID-X, a token's id and a "
                              "number up to 100 or inf: 15043-1.5, 15043-inf",
                              opt.biases.items[i]);
        opt.sampling.n_biases++;
    }
    for (int i = 0; i < opt.stop_token_ids.n; i++) {
        uint64_t id;
        if (!moe_parse_u64(opt.stop_token_ids.items[i], &id) || id > UINT32_MAX)
            return cli_misuse("option --stop-token-id: '%s' is not a token's id",
                              opt.stop_token_ids.items[i]);
        if (moe_ids_push(&opt.stop_ids, (uint32_t)id, &err) != MOE_OK)
            return cli_error(&err);
    }
    /* As in llama.cpp "none" says that there are none. */
    static const char *const none[] = {NULL};
    const char *const *breakers = opt.breakers.items;
    if (opt.breakers.n)
        opt.sampling.dry_breakers = strcmp(breakers[0], "none") == 0 ? none : breakers;
    return -1;
}

void run_options_release(void)
{
    free((void *)opt.sampling.biases);
    moe_ids_release(&opt.stop_ids);
    free(opt.stops.items);
    free(opt.biases.items);
    free(opt.breakers.items);
    free(opt.stop_token_ids.items);
}

static int check_options(int n_args, char **args)
{
    if (strategy_wants_help(&opt.strategy)) {
        strategy_print_help();
        return cli_finish(CLI_DONE);
    }
    if (n_args == 0 && !opt.list)
        return cli_misuse("no model given: moe-run MODEL ...");
    if (n_args > 1)
        return cli_misuse("unexpected argument '%s'", args[1]);
    if (opt.list)
        return -1;
    if (!opt.strategy.device.cuda &&
        (opt.engine.gpu_memory_bytes || opt.engine.bf16_prompts || cli_given("predict-on")))
        return cli_misuse("options --gpu-memory, --bf16-prompts and --predict-on go with --device "
                          "cuda or --device auto");
    if (opt.strategy.exact && opt.context_shift)
        return cli_misuse("option --exact: --context-shift may change results: an answer goes on "
                          "without the oldest part of its text");
    if (opt.strategy.exact && opt.follow)
        return cli_misuse("option --exact: with --follow experts are a trace's choices, and there "
                          "is no text that could stay the same");
    if (opt.plan && names_a_strategy())
        return cli_misuse("option --plan: the plan fixes strategy and slots");
    if ((opt.prompt_cache || cli_given("logprobs")) && !opt.prompt && !opt.file &&
        isatty(STDIN_FILENO))
        return cli_misuse("option --%s goes with -p, -f or a text on standard input",
                          opt.prompt_cache ? "prompt-cache" : "logprobs");
    if (opt.json && !opt.perplexity && !opt.bench && !opt.prompt && !opt.file && !opt.messages &&
        isatty(STDIN_FILENO))
        return cli_misuse("option --json goes with -p, -f, --messages, --bench or --perplexity");
    if (opt.tool_choice && !opt.tools && !opt.messages)
        return cli_misuse("option --tool-choice goes with --tools");
    if (opt.requests.input && opt.strategy.device.test)
        return cli_misuse("option --requests: requests are not served by a rehearsal");
    if (opt.sampling.mirostat == 1)
        return cli_misuse("option --mirostat: 1 is not supported, 2 is");
    if (opt.min_tokens > opt.n)
        return cli_misuse("option --min-tokens: -n allows fewer");
    int status = read_lists();
    if (status >= 0)
        return status;
    opt.beams.early = (enum moe_early_stopping)opt.early_stopping;
    return strategy_check_kv(&opt.strategy);
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
    opt.draft_max = opt.draft.drafts ? MOE_DRAFT_MOST : 0;
    opt.engine.ahead = opt.draft.ahead;
    opt.engine.drafter = opt.draft.head;
    opt.engine.draft = opt.draft.name;
    strategy_say_drafts(&opt.draft, opt.batch);
    if (opt.bench && !cli_given("tokens"))
        opt.n = opt.follow ? 0 : BENCH_TOKENS;
    if (!cli_given("seed") && getentropy(&opt.sampling.seed, sizeof opt.sampling.seed) != 0)
        opt.sampling.seed = (uint64_t)(moe_seconds() * 1e9);
    *pack = n_args ? args[0] : NULL;
    return opt.list ? -1 : kept_model_resolve(pack);
}

int run_options_grammar(struct moe_grammar **out, struct moe_err *err)
{
    if (opt.grammar)
        return moe_grammar_read(out, opt.grammar, err);
    if (opt.json_schema) {
        MOE_TRY(moe_grammar_read_schema(out, opt.json_schema, err));
        if (moe_grammar_notes(*out))
            cli_note("%s: %s", opt.json_schema, moe_grammar_notes(*out));
        return MOE_OK;
    }
    return opt.json_object ? moe_grammar_of_objects(out, err) : MOE_OK;
}
