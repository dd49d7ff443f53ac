/* moe-plan: how to run a model within a memory budget, and why. See man/moe-plan.1. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli.h"
#include "kept_models.h"
#include "planning/planning.h"
#include "serve/coe_dispatch.h"
#include "show/explain.h"
#include "show/html.h"

/* Default tokens of a trace for a plan: the search simulates it many times. */
enum { PLAN_TOKENS = 4096 };

static struct {
    const char *explain, *compare, *html, *timeline, *simulate, *memory, *gpu_memory, *experts;
    bool json, no_outlook, share_attention, share_layers;
    const char *machines;
    const char *budgets;   /* of a shape, several; NULL: one plan is made */
    uint32_t coe_requests; /* of --simulate */
    double loss;           /* share; below 0: as little as can be */
    char **packs;          /* to choose among; NULL: there is one at most */
    int n_packs;
    struct plan_options plan;
    struct plan_coe_options coe;
} o = {.loss = -1,
       .plan = {.expert_bits = "4", .dense_bits = 8},
       .coe = {.window = 15, .fitted = 2, .margin = 0.05, .interval = 0.004}};

/* ---- Options ---- */

/* What it can do beside planning for a model, which is usual. */
enum {
    SIMULATE = CLI_USUAL << 1,
    EXPLAIN = CLI_USUAL << 2,
    COE = CLI_USUAL << 3,
    MODELS = CLI_USUAL | SIMULATE,
};

static bool parse_schedule(const char *text, void *to, struct moe_err *why)
{
    (void)why; /* the words are listed */
    *(const char **)to = text;
    return moe_coe_schedule_find(text) != NULL;
}

static bool parse_evict(const char *text, void *to, struct moe_err *why)
{
    enum moe_coe_evict evict;
    moe_fail(why, MOE_ERR_USAGE, "is not one of lru, fifo, two-stage, queue");
    *(const char **)to = text;
    return moe_coe_evict_find(text, &evict);
}

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Planning"},
    {CLI_OPT_TEXT(0, "memory", "SIZE", &o.memory), .shown = "--shape: 4GB,8GB,16GB,32GB",
     .help = "limit for the whole process",
     .modes = MODELS | COE},
    {CLI_OPT_TEXT(0, "gpu-memory", "SIZE", &o.gpu_memory),
     .help = "limit on the GPU (--device cuda)",
     .modes = MODELS},
    {CLI_OPT_BYTES(0, "expert-memory", "SIZE", &o.plan.expert_memory), .shown = "the rest",
     .help = "size of the expert cache alone",
     .modes = CLI_USUAL},
    {CLI_OPT_TEXT(0, "stats", "STATS", &o.plan.strategy.statistics),
     .help = "statistics of the model, by moe-profile",
     .modes = MODELS},
    {CLI_OPT_TEXT(0, "trace", "TRACE", &o.plan.trace), .shown = "drawn at random",
     .help = "routing trace of the model",
     .modes = CLI_USUAL},
    {CLI_OPT_TEXT(0, "learn", "FILE", &o.plan.learn),
     .help = "what the cache begins with, as moe-run --learn",
     .modes = CLI_USUAL},
    {CLI_OPT_TEXT(0, "device-profile", "FILE", &o.plan.profile), .shown = "measured now",
     .help = "speed of the machine, by moe-profile",
     .modes = MODELS},
    {CLI_OPT_TEXT(0, "calibration", "MAP", &o.plan.calibration),
     .help = "bit map by moe-calibrate: what to approximate",
     .modes = CLI_USUAL, .excludes = "shape"},
    {CLI_OPT_SHARE(0, "tolerance", "P", &o.plan.tolerance, 1e-6, 10),
     .help = "lose P at most, by a map or by what --calibration says",
     .modes = CLI_USUAL, .excludes = "exact strategy shape"},
    {CLI_OPT_TEXT(0, "machines", "FILE", &o.machines),
     .help = "several that share out the experts, see moe-device(5)",
     .modes = CLI_USUAL, .excludes = "memory gpu-memory expert-memory device-profile calibration tolerance "
     "output device"},
    {CLI_OPT_FLAG(0, "share-attention", &o.share_attention),
     .help = "--machines: attention and KV cache of layers, too",
     .needs = "machines"},
    {CLI_OPT_FLAG(0, "share-layers", &o.share_layers),
     .help = "... whole layers, in place of experts",
     .needs = "machines", .excludes = "share-attention"},
    {CLI_OPT_FLAG(0, "no-outlook", &o.no_outlook),
     .help = "--machines: leave out what would change it",
     .needs = "machines"},
    {CLI_OPT_SHARE(0, "loss", "P", &o.loss, 0, 1), .shown = "the least",
     .help = "choose among MODEL=LOSS...: the fastest that loses P at most",
     .modes = CLI_USUAL},
    {CLI_OPT_U32('c', "context", "N", &o.plan.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "context length in tokens",
     .modes = MODELS},
    {CLI_OPT_U32(0, "batch", "N", &o.plan.batch, 1, 65536), .shown = "the fastest",
     .help = "prompt tokens per pass, at most",
     .modes = MODELS},
    {CLI_OPT_U32(0, "prompt-tokens", "N", &o.plan.prompt_tokens, 1, MOE_MAX_CONTEXT),
     .shown = "the context", .help = "choose it for prompts of N tokens",
     .modes = CLI_USUAL},
    {CLI_OPT_CUSTOM(0, "kv", "KIND", &o.plan.strategy.kv_kind, strategy_kv),
     .word = moe_kv_kind_at,
     .shown = "f16", .help = "keys and values: f32, f16, q8, q4, or q8,q4",
     .modes = MODELS},
    {CLI_OPT_FLAG(0, "reserve-kv", &o.plan.reserve_kv),
     .help = "lend the KV cache's memory to no experts",
     .modes = MODELS},
    {CLI_OPT_CUSTOM(0, "draft", "HOW", &o.plan.draft, strategy_drafter),
     .word = strategy_drafter_word, .shown = "none",
     .help = "leave room for moe-run --draft HOW",
     .modes = CLI_USUAL},
    {CLI_OPT_STREAM('o', "output", "PLAN", &o.plan.out), .shown = "explain it on stdout",
     .help = "write the plan",
     .modes = CLI_USUAL | COE},

    {.kind = CLI_HEADING, .help = "A model without weights"},
    {CLI_OPT_TEXT(0, "shape", "FILE", &o.plan.shape), .help = "its config.json", .modes = MODELS},
    {CLI_OPT_OUTPUT(0, "draw-trace", "TRACE", &o.plan.drawn), .help = "keep the trace that is drawn",
     .modes = MODELS},
    {CLI_OPT_TEXT(0, "experts", "BITS[,BITS]", &o.experts), .shown = "4",
     .help = "bitwidths of its experts",
     .modes = MODELS, .needs = "shape"},
    {CLI_OPT_CUSTOM(0, "dense", "BITS", &o.plan.dense_bits, cli_parse_width), .shown = "8",
     .help = "bitwidth of all other weights",
     .modes = MODELS, .needs = "shape"},

    {.kind = CLI_HEADING, .help = "A collection of models"},
    {CLI_OPT_TEXT(0, "coe", "COLLECTION", &o.coe.collection),
     .help = "plan how moe-serve runs it, not a MODEL",
     .mode = COE, .needs = "costs"},
    {CLI_OPT_TEXT(0, "costs", "COSTS", &o.coe.costs),
     .help = "what its models cost here, by moe-profile --coe",
     .modes = COE},
    {CLI_OPT_BYTES(0, "device-memory", "SIZE", &o.coe.device_memory), .shown = "the costs'",
     .help = "limit of an accelerator's own memory",
     .modes = COE},
    {CLI_OPT_TEXT(0, "executors", "LIST", &o.coe.executors), .shown = "the best",
     .help = "how many on each processor: cuda:3,cpu:1",
     .modes = COE},
    {CLI_OPT_CUSTOM(0, "schedule", "NAME", &o.coe.schedule, parse_schedule),
     .word = cli_schedule_word, .shown = "the best",
     .help = "home, coserve, arrange, round-robin or fcfs",
     .modes = COE, .excludes = "simulate"},
    {CLI_OPT_CUSTOM(0, "evict", "NAME", &o.coe.evict, parse_evict),
     .word = cli_evict_word, .shown = "the best",
     .help = "queue, two-stage, lru or fifo",
     .modes = COE, .excludes = "simulate"},
    {CLI_OPT_FLAG(0, "no-prefetch", &o.coe.no_prefetch),
     .help = "load no model while another one computes",
     .modes = COE, .excludes = "simulate"},
    {CLI_OPT_FLAG(0, "casual", &o.coe.casual),
     .help = "75% of memory for experts, without a search",
     .modes = COE, .excludes = "resident"},
    {CLI_OPT_U32(0, "resident", "N", &o.coe.resident, 1, 4096), .shown = "by the window",
     .help = "experts in an accelerator's memory",
     .modes = COE},
    {CLI_OPT_U32(0, "window", "N", &o.coe.window, 1, 99), .shown = "15",
     .help = "size of the first window",
     .modes = COE},
    {CLI_OPT_U32(0, "fitted", "N", &o.coe.fitted, 2, 64), .shown = "2",
     .help = "points that make the window's trend",
     .modes = COE},
    {CLI_OPT_SHARE(0, "margin", "SHARE", &o.coe.margin, 0.0001, 1), .shown = "5%",
     .help = "stop the window so far below the trend",
     .modes = COE},
    {CLI_OPT_U32(0, "requests", "N", &o.coe.requests, 1, 10000000), .shown = "1000, or the task's",
     .help = "requests of the sample that plans are tried on",
     .modes = COE},
    {CLI_OPT_DOUBLE(0, "interval", "S", &o.coe.interval, 0, 1e6), .shown = "0.004",
     .help = "seconds between requests",
     .modes = COE},

    {.kind = CLI_HEADING, .help = "Explaining and simulating"},
    {CLI_OPT_TEXT(0, "explain", "FILE", &o.explain),
     .help = "explain a plan, or what programs measured",
     .mode = EXPLAIN},
    {CLI_OPT_TEXT(0, "compare", "FILE", &o.compare),
     .help = "--explain PLAN: beside another, or its run's --stats-json",
     .modes = EXPLAIN},
    {CLI_OPT_TEXT(0, "simulate", "TRACE", &o.simulate),
     .help = "compare strategies: --strategy A,B; --coe: N requests",
     .mode = SIMULATE, .modes = SIMULATE | COE},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--explain, --simulate: as JSON",
     .needs = "explain simulate machines"},
    {CLI_OPT_STREAM(0, "html", "OUT", &o.html), .help = "--explain: as a page with pictures",
     .modes = EXPLAIN, .excludes = "json compare"},
    {CLI_OPT_TEXT(0, "timeline", "FILE", &o.timeline),
     .help = "--html: with a run's --trace-events",
     .needs = "html"},
    {CLI_OPT_DOUBLE(0, "layer-seconds", "S", &o.plan.layer_seconds, 1e-9, 1e3),
     .help = "time of one layer for one token, not a profile's",
     .modes = MODELS},
    {CLI_OPT_DOUBLE(0, "load-seconds", "S", &o.plan.load_seconds, 1e-9, 1e3),
     .help = "time of one expert's load, in place of --link-rate",
     .modes = MODELS},
    {CLI_OPT_BYTES(0, "expert-size", "SIZE", &o.plan.expert_size),
     .help = "bytes of an expert, if the trace has none",
     .modes = SIMULATE},

    {.kind = CLI_HEADING, .help = "Strategy"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &o.plan.strategy.strategy), .shown = "auto",
     .word = strategy_word,
     .help = "fate, fate+cache=lru, ...; help lists them",
     .modes = MODELS},
    {CLI_OPT_FLAG(0, "exact", &o.plan.strategy.exact), .help = "refuse what may change results",
     .modes = MODELS},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &o.plan.strategy.device, strategy_device),
     .word = strategy_device_word, .shown = "cpu; --shape: the profile's",
     .help = "cpu, cuda or test:SPEED,LINK",
     .modes = MODELS},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &o.plan.link_rate), .shown = "the profile's",
     .help = "rate of expert loads",
     .modes = MODELS},
    {CLI_OPT_U64(0, "max-tokens", "N", &o.plan.max_tokens, 1, UINT64_MAX),
     .shown = "4096; --simulate: all", .help = "use N tokens of the trace",
     .modes = MODELS},
    {CLI_OPT_U64(0, "seed", "N", &o.plan.seed, 0, UINT64_MAX), .shown = "0",
     .help = "seed for random choices",
     .modes = MODELS | COE},
    {.kind = CLI_ELSEWHERE, .help = "More", .shown = "--strategy help, moe-strategies(7)"},
    {.kind = CLI_END},
};
/* clang-format on */

static struct cli_program program = {
    .name = "moe-plan",
    .summary = "Plans how to run a model within a memory budget, and explains why.",
    .usage =
        (const char *const[]){"MODEL --memory SIZE [OPTION]... [-o PLAN]",
                              "MODEL=LOSS MODEL=LOSS... --memory SIZE [--loss P] [OPTION]...",
                              "--shape FILE [--memory M[,M]] [--device-profile FILE] [OPTION]...",
                              "MODEL | --shape FILE --machines FILE [OPTION]... [--json]",
                              "--explain PLAN [--compare PLAN|RUN] [--json]",
                              "--explain STATS|TRACE|MAP|DEVICE|LEARNT|MODEL [--json]",
                              "--explain PLAN|STATS|TRACE|MAP|DEVICE --html OUT [--timeline FILE]",
                              "--simulate TRACE [MODEL] [--strategy A,B] [--memory M,M] [--json]",
                              "--coe COLLECTION --costs COSTS [OPTION]... [-o PLAN | --simulate N]",
                              NULL},
    .options = options,
    .more_modes = MODELS,
    .examples =
        (const char *const[]){
            "moe-plan tiny.moe --memory 30M --stats s.yaml --trace t.trace -o plan.yaml",
            "moe-plan tiny.moe --memory 30M --calibration map.yaml --tolerance 1%",
            "moe-plan --explain plan.yaml",
            "moe-plan --simulate t.trace tiny.moe --strategy lru,fate --memory 10%,2x,30M", NULL},
};

/* ---- Checks ---- */

/* Parses the GPU's budget, or the largest of those to simulate, and the host's. */
static int check_gpu_budgets(void)
{
    if (!moe_parse_bytes(o.memory, &o.plan.memory))
        return cli_misuse("option --memory: '%s' is not a size like 512M or 4GiB", o.memory);
    const char *rest = o.gpu_memory;
    while (rest) {
        char size[32];
        uint64_t bytes;
        size_t n = strcspn(rest, o.simulate ? "," : "");
        snprintf(size, sizeof size, "%.*s", (int)n, rest);
        if (n >= sizeof size || !moe_parse_bytes(size, &bytes))
            return cli_misuse("option --gpu-memory: '%s' is not a size like 512M or 4GiB", size);
        o.plan.gpu_memory = bytes > o.plan.gpu_memory ? bytes : o.plan.gpu_memory;
        rest = rest[n] ? rest + n + 1 : NULL;
    }
    return -1;
}

static int check_machine(void)
{
    const struct moe_device_choice *device = &o.plan.strategy.device;
    int kv = strategy_check_kv(&o.plan.strategy);
    if (kv >= 0)
        return kv;
    if (o.plan.draft.drafts && !o.plan.pack && !o.packs)
        return cli_misuse("option --draft goes with a MODEL");
    if (device->cuda && o.packs)
        return cli_misuse("option --device: several packs are compared for the CPU and for test "
                          "devices (for a GPU, one MODEL is planned, or a --shape)");
    if (device->cuda && o.plan.pack && !(o.memory && o.gpu_memory))
        return cli_misuse("option --device: to plan a MODEL for a GPU takes --gpu-memory SIZE, and "
                          "--memory SIZE of the host");
    if (o.gpu_memory && !(device->cuda && o.plan.pack))
        return cli_misuse("option --gpu-memory goes with a MODEL and --device cuda");
    int status = device->cuda && o.plan.pack ? check_gpu_budgets() : -1;
    if (status >= 0)
        return status;
    if (device->cuda && (device->automatic || !o.plan.profile))
        return cli_misuse(
            "option --device: to plan for a GPU takes cuda and --device-profile FILE");
    o.plan.on_cpu = cli_given("device") && !device->cuda && !device->test;
    if (o.plan.load_seconds > 0 && o.plan.link_rate > 0)
        return cli_misuse("options --load-seconds and --link-rate exclude each other");
    if (o.plan.layer_seconds > 0 && !o.plan.profile && !(o.plan.link_rate > 0) &&
        !(o.plan.load_seconds > 0))
        return cli_misuse(
            "option --layer-seconds needs --device-profile, --load-seconds or --link-rate");
    return -1;
}

static int check_simulate(int n_args, char **args)
{
    if (n_args > 1 || (n_args && o.plan.shape))
        return cli_misuse("--simulate takes a trace, and one pack or --shape");
    o.plan.pack = n_args ? args[0] : NULL;
    o.plan.trace = o.simulate;
    int status = o.plan.pack ? kept_model_resolve(&o.plan.pack) : -1;
    return status < 0 ? check_machine() : status;
}

static int check_plan(int n_args, char **args)
{
    bool chooses = n_args > 1 && strchr(args[0], '=');
    if ((n_args > 1 && !chooses) || (n_args && o.plan.shape))
        return cli_misuse("give either one MODEL or --shape, or several MODEL=LOSS");
    if (cli_given("loss") && !chooses)
        return cli_misuse("option --loss chooses among several MODEL=LOSS");
    if (chooses && o.plan.calibration)
        return cli_misuse("option --calibration is of one MODEL");
    if (n_args == 0 && !o.plan.shape)
        return cli_misuse("nothing to do: a MODEL, --shape, --explain or --simulate");
    if (o.machines && chooses)
        return cli_misuse("option --machines is for one MODEL or --shape");
    if (o.plan.shape && !o.machines && !o.plan.expert_memory &&
        (!o.memory || strchr(o.memory, ',')))
        o.budgets = o.memory ? o.memory : PLAN_BUDGETS;
    if (o.budgets && (o.plan.out || o.plan.prompt_tokens))
        return cli_misuse("option --%s needs one budget (--memory SIZE)",
                          o.plan.out ? "output" : "prompt-tokens");
    if (!o.memory && !o.plan.expert_memory && !o.budgets && !o.machines)
        return cli_misuse("no budget given (--memory SIZE)");
    if (o.memory && !o.budgets && !moe_parse_bytes(o.memory, &o.plan.memory))
        return cli_misuse("option --memory: '%s' is not a size like 512M or 4GiB", o.memory);
    o.plan.pack = n_args && !chooses ? args[0] : NULL;
    o.packs = chooses ? args : NULL;
    o.n_packs = n_args;
    if (!cli_given("max-tokens"))
        o.plan.max_tokens = PLAN_TOKENS;
    int status = o.plan.pack ? kept_model_resolve(&o.plan.pack) : -1;
    return status < 0 ? check_machine() : status;
}

static int check_coe(int n_args)
{
    uint64_t n = 1;
    if (n_args)
        return cli_misuse("--coe takes a collection, and no MODEL");
    if (o.memory && !moe_parse_bytes(o.memory, &o.coe.memory))
        return cli_misuse("option --memory: '%s' is not a size like 512M or 4GiB", o.memory);
    if (o.simulate && (!moe_parse_u64(o.simulate, &n) || n < 1 || n > 10000000))
        return cli_misuse("option --simulate: '%s' is not a number of requests up to 10 million",
                          o.simulate);
    o.coe.seed = o.plan.seed;
    o.coe.out = o.plan.out;
    o.coe_requests = (uint32_t)n;
    return -1;
}

static int check_options(int n_args, char **args)
{
    if (strategy_wants_help(&o.plan.strategy)) {
        strategy_print_help();
        return cli_finish(CLI_DONE);
    }
    if (o.experts)
        o.plan.expert_bits = o.experts;
    if (o.explain)
        return n_args ? cli_misuse("--explain takes one file") : -1;
    return o.coe.collection ? check_coe(n_args)
           : o.simulate     ? check_simulate(n_args, args)
                            : check_plan(n_args, args);
}

/* ---- Explaining ---- */

static int plan_explain(const char *path, const char *other, bool json, struct moe_err *err)
{
    const struct moe_screen screen = cli_screen(STDOUT_FILENO);
    struct moe_buf out = {0}, picture = {0};
    int status = other ? moe_compare_files(path, other, json, screen, &out, err)
                       : moe_explain_file(path, json, screen, &out, &picture, err);
    if (!json)
        cli_fit(STDOUT_FILENO, &out);
    status = cli_print(status, &out, err);
    return cli_print_as_is(status, &picture, err);
}

static int plan_page(const char *path, const char *timeline, const char *html, struct moe_err *err)
{
    struct moe_buf out = {0};
    int status = moe_page_of_file(path, timeline, &out, err);
    return cli_save(status, &out, html, err);
}

int main(int argc, char **argv)
{
    char **args;
    int n_args;
    struct moe_err err = {0};
    program.more = strategy_part_options(&o.plan.strategy);
    int status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status < 0)
        status = check_options(n_args, args);
    if (status >= 0)
        return status;
    if (o.explain && o.html)
        status = plan_page(o.explain, o.timeline, o.html, &err);
    else if (o.explain)
        status = plan_explain(o.explain, o.compare, o.json, &err);
    else if (o.coe.collection && o.simulate)
        status = plan_coe_simulate(&o.coe, o.coe_requests, o.json, &err);
    else if (o.coe.collection)
        status = plan_coe_make(&o.coe, &err);
    else if (o.simulate)
        status = plan_simulate(&o.plan, o.plan.strategy.strategy,
                               o.gpu_memory ? o.gpu_memory : o.memory, o.json, &err);
    else if (o.packs)
        status = plan_choose(o.packs, o.n_packs, 100 * o.loss, &o.plan, &err);
    else if (o.machines)
        status = plan_machines(&o.plan, o.machines,
                               o.share_layers      ? PLAN_SHARES_LAYERS
                               : o.share_attention ? PLAN_SHARES_ATTENTION
                                                   : PLAN_SHARES_EXPERTS,
                               !o.no_outlook, o.json, &err);
    else if (o.budgets)
        status = plan_budgets(&o.plan, o.budgets, &err);
    else
        status = plan_make(&o.plan, &err);
    return cli_finish(status == MOE_OK ? CLI_DONE : cli_error(&err));
}
