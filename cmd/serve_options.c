/* The option table of moe-serve. */
#include "serve_options.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "engine/draft.h"
#include "kept_models.h"

enum { DEFAULT_CONTEXT = 4096, MAX_SEQUENCES = 256, MAX_QUEUE = 1 << 20 };

struct serve_options serve_opt = {
    .server = {.evict = MOE_COE_TWO_STAGE,
               .sequences = MOE_SERVER_SEQUENCES,
               .max_queue = MOE_SERVER_MAX_QUEUE,
               .prompt_cache = {.bytes = 4ULL << 30}},
};

/* Parses "cpu:2,cuda:1": a number of executors for each processor. */
static bool parse_executors(const char *text, void *to, struct moe_err *why)
{
    struct serve_executors *e = to;
    e->n = 0;
    for (const char *at = text;; at++) {
        uint64_t n = 1;
        char item[32];
        size_t length = strcspn(at, ",");
        snprintf(item, sizeof item, "%.*s", (int)length, at);
        char *colon = strchr(item, ':');
        if (colon)
            *colon = 0;
        bool cuda = strcmp(item, "cuda") == 0;
        if (length >= sizeof item || (!cuda && strcmp(item, "cpu") != 0) ||
            (colon && !moe_parse_u64(colon + 1, &n)) || n < 1 ||
            n > MOE_SERVER_MAX_EXECUTORS - e->n) {
            moe_fail(why, MOE_ERR_USAGE, "is not a list like cpu:2 or cpu:1,cuda:1, of %d at most",
                     MOE_SERVER_MAX_EXECUTORS);
            return false;
        }
        while (n-- > 0)
            e->of[e->n++].device.cuda = cuda;
        at += length;
        if (!*at)
            return true;
    }
}

static bool parse_schedule(const char *text, void *to, struct moe_err *why)
{
    return (*(const struct moe_coe_schedule **)to = moe_coe_schedule_find(text)) != NULL;
}

static bool parse_evict(const char *text, void *to, struct moe_err *why)
{
    moe_fail(why, MOE_ERR_USAGE, "is not one of lru, fifo, two-stage, queue");
    return moe_coe_evict_find(text, to);
}

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Models"},
    {CLI_OPT_TEXT(0, "coe", "COLLECTION", &serve_opt.collection),
     .help = "serve the models of a moe-coe(5) file"},
    {CLI_OPT_TEXT(0, "name", "NAME", &serve_opt.server.name), .shown = "the pack's",
     .help = "the model's name for clients",
     .excludes = "coe"},
    {CLI_OPT_FLAG(0, "strict-names", &serve_opt.server.strict_names),
     .help = "refuse requests for models of other names",
     .excludes = "any-model-name"},
    {CLI_OPT_FLAG(0, "any-model-name", &serve_opt.server.any_name),
     .help = "answer to any name, as one pack does anyway"},
    {CLI_OPT_TEXTS(0, "alias", "NAME[=MODEL]", &serve_opt.aliases),
     .help = "another name of a model"},
    {CLI_OPT_U32('c', "context", "N", &serve_opt.server.engine.session.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "context of each sequence, in tokens"},
    {CLI_OPT_TEXT(0, "template-file", "FILE", &serve_opt.server.template_file),
     .shown = "each model's", .help = "chat template of all models"},

    {.kind = CLI_HEADING, .help = "Memory and experts"},
    {CLI_OPT_BYTES(0, "memory", "SIZE", &serve_opt.server.engine.memory_bytes),
     .shown = "what is free", .help = "limit for the whole process"},
    {CLI_OPT_BYTES(0, "gpu-memory", "SIZE", &serve_opt.server.engine.gpu_memory_bytes),
     .shown = "what is free", .help = "limit on the GPU, of all executors there"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &serve_opt.strategy.strategy), .shown = "auto",
     .word = strategy_word,
     .help = "for experts within a model; help lists them"},
    {CLI_OPT_TEXT(0, "statistics", "FILE", &serve_opt.strategy.statistics),
     .help = "by moe-profile, for strategies that need them"},
    {CLI_OPT_OUTPUT(0, "learn", "FILE", &serve_opt.server.engine.learn),
     .help = "what the cache learns, kept from run to run", .excludes = "coe"},
    {CLI_OPT_FLAG(0, "exact", &serve_opt.strategy.exact),
     .help = "refuse what may change results (no default does)"},
    {CLI_OPT_SHARE(0, "tolerance", "P", &serve_opt.server.engine.tolerance, 1e-6, 10),
     .help = "lose P at most, where packs have maps for that", .excludes = "exact"},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &serve_opt.strategy.device, strategy_device),
     .word = strategy_device_word,
     .shown = "cpu", .help = "cpu, cuda[:N] or auto"},
    {CLI_OPT_CUSTOM(0, "kv", "KIND", &serve_opt.strategy.kv_kind, strategy_kv),
     .word = moe_kv_kind_at,
     .shown = "f16", .help = "keys and values: f32, f16, q8, q4, or q8,q4"},
    {CLI_OPT_FLAG(0, "reserve-kv", &serve_opt.server.engine.reserve_kv),
     .help = "lend the KV cache's memory to no experts"},
    {CLI_OPT_U32(0, "batch", "N", &serve_opt.server.engine.session.batch, 1, 65536),
     .shown = "256, fewer if tight", .help = "prompt tokens per pass, at most"},
    {CLI_OPT_TEXT(0, "spread", "DIR", &serve_opt.server.engine.spread),
     .help = "other ranks keep their experts there, from rank 0", .excludes = "coe"},
    {CLI_OPT_FLAG(0, "share-attention", &serve_opt.server.engine.share_attention),
     .help = "other ranks have attention and KV cache of layers, too",
     .excludes = "coe cache-dir spread"},
    {CLI_OPT_FLAG(0, "share-layers", &serve_opt.server.engine.share_layers),
     .help = "... whole layers, in place of experts",
     .excludes = "coe cache-dir spread share-attention"},

    {.kind = CLI_HEADING, .help = "Collections"},
    {CLI_OPT_TEXT(0, "plan", "FILE", &serve_opt.plan),
     .help = "executors and memory as planned by moe-plan --coe",
     .needs = "coe", .excludes = "executors"},
    {CLI_OPT_TEXT(0, "costs", "FILE", &serve_opt.costs), .shown = "learnt",
     .help = "of models, measured by moe-profile --coe",
     .needs = "coe"},
    {CLI_OPT_CUSTOM(0, "executors", "LIST", &serve_opt.executors, parse_executors),
     .shown = "cpu:1", .help = "how many on each processor"},
    {CLI_OPT_CUSTOM(0, "schedule", "NAME", &serve_opt.server.schedule, parse_schedule),
     .word = cli_schedule_word,
     .shown = "coserve", .help = "fcfs, round-robin, arrange, coserve or home"},
    {CLI_OPT_CUSTOM(0, "evict", "NAME", &serve_opt.server.evict, parse_evict),
     .word = cli_evict_word,
     .shown = "two-stage", .help = "which model leaves: lru, fifo, two-stage, queue"},
    {CLI_OPT_SHARE(0, "model-share", "SHARE", &serve_opt.server.expert_share, 0.01, 0.99),
     .shown = "75%", .help = "of an executor's memory, for models"},
    {CLI_OPT_FLAG(0, "no-prefetch", &serve_opt.server.no_prefetch),
     .help = "load no model while another one computes"},
    {CLI_OPT_DOUBLE(0, "patience", "SECONDS", &serve_opt.server.patience, 0.001, 1e9),
     .shown = "10", .help = "longest wait of a request for another model"},

    {.kind = CLI_HEADING, .help = "Requests"},
    {CLI_OPT_U32(0, "sequences", "N", &serve_opt.server.sequences, 1, MAX_SEQUENCES), .shown = "8",
     .help = "answers side by side"},
    {CLI_OPT_CUSTOM(0, "draft", "HOW", &serve_opt.draft, strategy_drafter),
     .word = strategy_drafter_word, .shown = "none",
     .help = "tokens drafted and judged with the next: ngram, mtp or a head's file"},
    {CLI_OPT_U32(0, "max-queue", "N", &serve_opt.server.max_queue, 1, MAX_QUEUE), .shown = "1024",
     .help = "requests that may wait or run"},
    {CLI_OPT_TEXT(0, "cache-dir", "DIR", &serve_opt.server.prompt_cache.directory),
     .help = "keep computed prompts here, for later and other runs"},
    {CLI_OPT_BYTES(0, "cache-size", "SIZE", &serve_opt.server.prompt_cache.bytes), .shown = "4G",
     .help = "of these files, at most", .needs = "cache-dir"},
    {CLI_OPT_STREAM(0, "stats-json", "FILE", &serve_opt.stats_json),
     .help = "at the end, what it did: figures as JSON"},
    REQUESTS_OPTIONS(serve_opt.requests, 0),

    {.kind = CLI_HEADING, .help = "HTTP"},
    {CLI_OPT_TEXT(0, "listen", "ADDRESS", &serve_opt.http.http.address), .shown = "127.0.0.1",
     .help = "where connections are accepted; or unix:PATH"},
    {CLI_OPT_U32(0, "socket-mode", "MODE", &serve_opt.http.socket_mode, 0, 777), .shown = "600",
     .help = "who may connect to PATH, in octal"},
    {CLI_OPT_U32(0, "port", "N", &serve_opt.http.port, 0, 65535), .shown = "8080",
     .help = "0: one that is free"},
    {CLI_OPT_TEXT(0, "api-key-file", "FILE", &serve_opt.http.key_file),
     .help = "keys, one a line; without, everyone may ask"},
    {CLI_OPT_FLAG(0, "share-prompts", &serve_opt.http.http.share_prompts),
     .help = "computed prompts serve all keys, not one"},
    {CLI_OPT_TEXTS(0, "allow-origin", "ORIGIN", &serve_opt.http.origins),
     .help = "web pages from elsewhere that may ask"},
    {CLI_OPT_TEXTS(0, "allow-host", "NAME", &serve_opt.http.hosts),
     .help = "a name by which clients may reach it"},
    {CLI_OPT_TEXT(0, "access-log", "FILE", &serve_opt.http.access_log),
     .help = "a JSON line for each request; - for stdout"},
    {CLI_OPT_U32(0, "max-connections", "N", &serve_opt.http.http.max_connections, 1, 1 << 20),
     .shown = "1024", .help = "beyond it the client with most loses one"},
    {CLI_OPT_BYTES(0, "max-body", "SIZE", &serve_opt.http.http.max_body_bytes), .shown = "4M",
     .help = "limit for a request's body"},
    {CLI_OPT_BYTES(0, "http-buffers", "SIZE", &serve_opt.http.http.buffer_bytes), .shown = "16M",
     .help = "for bodies and answers under way"},
    {CLI_OPT_BYTES0(0, "responses-memory", "SIZE", &serve_opt.http.http.responses_bytes),
     .shown = "4M", .help = "for kept /v1/responses; 0: none"},
    {CLI_OPT_DOUBLE(0, "request-timeout", "SECONDS", &serve_opt.http.http.request_seconds, 0.1,
                    86400), .shown = "30", .help = "for a whole request to arrive"},
    {CLI_OPT_DOUBLE(0, "grace", "SECONDS", &serve_opt.http.grace, 0, 50), .shown = "20",
     .help = "for answers to end, after a signal"},
    {.kind = CLI_END},
};
/* clang-format on */

static struct cli_program program = {
    .name = "moe-serve",
    .summary = "Answers requests of many callers with one or many Mixture-of-Experts models.",
    .usage = (const char *const[]){"MODEL | --coe COLLECTION [OPTION]...",
                                   "... --requests FILE [-o FILE [--resume]] [OPTION]...", NULL},
    .options = options,
    .examples = (const char *const[]){"moe-serve tiny.moe", NULL},
    .joins_ranks = true,
};

static int check_options(int n_args, char **args)
{
    if (strategy_wants_help(&serve_opt.strategy)) {
        strategy_print_help();
        return cli_finish(CLI_DONE);
    }
    int most = serve_opt.collection ? 0 : 1;
    if (n_args < most)
        return cli_misuse("no model given: moe-serve MODEL ..., or moe-serve --coe COLLECTION ...");
    if (n_args > most)
        return cli_misuse("unexpected argument '%s'", args[most]);
    bool cuda = serve_opt.strategy.device.cuda || serve_opt.plan;
    for (uint32_t i = 0; i < serve_opt.executors.n; i++)
        cuda = cuda || serve_opt.executors.of[i].device.cuda;
    if (serve_opt.server.engine.gpu_memory_bytes && !cuda)
        return cli_misuse("option --gpu-memory goes with executors on cuda");
    if (serve_opt.strategy.device.test)
        return cli_misuse("option --device: test is for moe-run: a server does not rehearse");
    return strategy_check_kv(&serve_opt.strategy);
}

int serve_options_parse(int argc, char **argv, const char **path)
{
    char **args;
    int n_args;
    serve_opt.server.engine.context_cap = DEFAULT_CONTEXT;
    serve_http_defaults(&serve_opt.http);
    program.more = strategy_part_options(&serve_opt.strategy);
    int status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status < 0)
        status = check_options(n_args, args);
    if (status < 0)
        status = serve_http_check(&serve_opt.http);
    if (status >= 0)
        return status;
    serve_opt.server.draft = serve_opt.draft.drafts ? MOE_DRAFT_MOST : 0;
    serve_opt.server.engine.ahead = serve_opt.draft.ahead;
    serve_opt.server.engine.drafter = serve_opt.draft.head;
    serve_opt.server.engine.draft = serve_opt.draft.name;
    strategy_say_drafts(&serve_opt.draft, serve_opt.server.engine.session.batch);
    serve_opt.server.executors = serve_opt.executors.of;
    serve_opt.server.n_executors = serve_opt.executors.n;
    serve_opt.server.aliases = serve_opt.aliases.items;
    *path = serve_opt.collection ? NULL : args[0];
    const char *asked = *path;
    status = asked ? kept_model_resolve(path) : -1;
    if (*path != asked && !serve_opt.server.name)
        serve_opt.server.name = asked;
    return status;
}
