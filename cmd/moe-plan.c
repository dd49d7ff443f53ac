/* moe-plan: how to run a model within a memory budget, and why. See man/moe-plan.1. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli.h"
#include "plan_explain.h"
#include "plan_make.h"
#include "plan_simulate.h"

/* Tokens of a trace that plans are made from, unless told otherwise: a search tries many. */
enum { PLAN_TOKENS = 4096 };

static struct {
    const char *explain, *simulate, *memory, *experts;
    bool json;
    struct plan_options plan;
} o = {.plan = {.expert_bits = "4", .dense_bits = 8}};

/* ---- Options ---- */

/* clang-format off */
static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Planning"},
    {CLI_OPT_TEXT(0, "memory", "SIZE", &o.memory), .help = "bound of the whole process"},
    {CLI_OPT_BYTES(0, "expert-memory", "SIZE", &o.plan.expert_memory), .shown = "the rest",
     .help = "the expert cache alone"},
    {CLI_OPT_TEXT(0, "stats", "STATS", &o.plan.strategy.statistics),
     .help = "moe-profile's statistics of the model"},
    {CLI_OPT_TEXT(0, "trace", "TRACE", &o.plan.trace), .shown = "one drawn at random",
     .help = "what its routers chose"},
    {CLI_OPT_TEXT(0, "device-profile", "FILE", &o.plan.profile), .shown = "measured now",
     .help = "how fast the machine is"},
    {CLI_OPT_TEXT(0, "calibration", "MAP", &o.plan.calibration),
     .help = "moe-calibrate's: what may be approximated"},
    {CLI_OPT_U32('c', "context", "N", &o.plan.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "positions of context"},
    {CLI_OPT_U32(0, "batch", "N", &o.plan.batch, 1, 65536), .shown = "256, fewer if tight",
     .help = "most prompt tokens at once"},
    {CLI_OPT_TEXT('o', "output", "PLAN", &o.plan.out), .shown = "stdout, as an explanation",
     .help = "plan to write"},

    {.kind = CLI_HEADING, .help = "A model without weights"},
    {CLI_OPT_TEXT(0, "shape", "FILE", &o.plan.shape), .help = "its config.json"},
    {CLI_OPT_TEXT(0, "experts", "BITS[,BITS]", &o.experts), .shown = "4",
     .help = "precisions of experts"},
    {CLI_OPT_U32(0, "dense", "BITS", &o.plan.dense_bits, 2, 16), .shown = "8",
     .help = "of all other weights"},

    {.kind = CLI_HEADING, .help = "Explaining and simulating"},
    {CLI_OPT_TEXT(0, "explain", "FILE", &o.explain), .help = "a plan, statistics or a pack in words"},
    {CLI_OPT_TEXT(0, "simulate", "TRACE", &o.simulate),
     .help = "strategies side by side: --strategy A,B"},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "either of the two for scripts"},
    {CLI_OPT_DOUBLE(0, "layer-seconds", "S", &o.plan.layer_seconds, 1e-9, 1e3),
     .help = "instead of a profile: a layer of a token"},
    {CLI_OPT_BYTES(0, "expert-size", "SIZE", &o.plan.expert_size),
     .help = "of a trace that does not say"},

    {.kind = CLI_HEADING, .help = "Strategy"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &o.plan.strategy.strategy), .shown = "auto",
     .help = "auto, or a row: --strategy help lists them"},
    {STRATEGY_OPT_PART(MOE_PART_CACHE, "cache", "NAME", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_ALLOC, "alloc", "NAME", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PREDICT, "predict", "HOW", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PREFETCH, "prefetch", "LIMITS", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_ON_MISS, "on-miss", "HOW", o.plan.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_PROTECT, "protect", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_CACHE_WEIGHTS, "cache-weights", "LIST", o.plan.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_KEEP_RECORDS, "keep-records", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_LOW_POOL, "low-pool", "SHARE", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_INIT, "init", "NAME", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_CACHE_BITS, "cache-bits", "BITS", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_BUFFER, "buffer", "N", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_SKIP_BELOW, "skip-below", "SHARE", o.plan.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_HOST_DECODES_ONLY, "host-decodes-only", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PREFILL, "prefill", "HOW", o.plan.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_PREFILL_SWAP, "prefill-swap", o.plan.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_PRECALCULATE, "precalculate", o.plan.strategy)},
    {STRATEGY_OPT_PART(MOE_PART_PRECALCULATE_FROM, "precalculate-from", "N", o.plan.strategy)},
    {STRATEGY_OPT_FLAG(MOE_PART_DEGRADE, "degrade", o.plan.strategy)},
    {CLI_OPT_TEXT(0, "without", "PARTS", &o.plan.strategy.without)},
    {CLI_OPT_TEXT(0, "low", "VARIANT", &o.plan.strategy.low)},
    {CLI_OPT_U32(0, "staging", "N", &o.plan.strategy.staging, 1, 65536)},
    {CLI_OPT_FLAG(0, "exact", &o.plan.strategy.exact), .help = "only what cannot change results"},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &o.plan.strategy.device, strategy_device), .shown = "cpu",
     .help = "cpu, or test:SPEED,LINK: a second one"},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &o.plan.link_rate), .shown = "the profile's",
     .help = "of expert loads"},
    {CLI_OPT_U64(0, "max-tokens", "N", &o.plan.max_tokens, 1, UINT64_MAX),
     .shown = "4096; --simulate: all", .help = "of the trace"},
    {CLI_OPT_U64(0, "seed", "N", &o.plan.seed, 0, UINT64_MAX), .shown = "0",
     .help = "of what is random"},
    {.kind = CLI_END},
};
/* clang-format on */

static const struct cli_program program = {
    .name = "moe-plan",
    .summary = "Plans how to run a model within a memory budget, and explains why.",
    .usage =
        (const char *const[]){"PACK --memory SIZE [OPTION]... [-o PLAN]",
                              "--shape FILE --memory SIZE [--device-profile FILE] [OPTION]...",
                              "--explain PLAN|STATS|PACK [--json]",
                              "--simulate TRACE [PACK] [--strategy A,B] [--memory M,M] [--json]",
                              NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-plan tiny.moe --memory 30M --stats s.yaml --trace t.trace -o plan.yaml",
            "moe-plan --explain plan.yaml",
            "moe-plan --simulate t.trace tiny.moe --strategy lru,fate --memory 10%,2x,30M", NULL},
};

/* ---- Checks ---- */

static int check_explain(int n_args)
{
    for (const struct cli_option *row = options; row->kind != CLI_END; row++)
        if (row->name && cli_given(row->name) && strcmp(row->name, "explain") != 0 &&
            strcmp(row->name, "json") != 0)
            return cli_misuse("option --%s: --explain only reads what is in the file", row->name);
    return n_args ? cli_misuse("--explain takes one file") : -1;
}

static int check_machine(void)
{
    if (o.plan.strategy.device.kind == DEVICE_CUDA)
        return cli_misuse("option --device: moe-plan plans for the CPU and for test devices");
    if (o.plan.profile && o.plan.layer_seconds > 0)
        return cli_misuse("options --device-profile and --layer-seconds: one is enough");
    if (o.plan.layer_seconds > 0 && !(o.plan.link_rate > 0))
        return cli_misuse("option --layer-seconds needs a --link-rate");
    return -1;
}

static int check_simulate(int n_args, char **args)
{
    if (o.plan.trace || o.plan.out || o.plan.calibration)
        return cli_misuse("option --%s does not go with --simulate", o.plan.trace ? "trace"
                                                                     : o.plan.calibration
                                                                         ? "calibration"
                                                                         : "output");
    if (o.plan.expert_memory)
        return cli_misuse("option --expert-memory: with --simulate, --memory 10%% or 2x is of the "
                          "experts");
    if (n_args > 1 || (n_args && o.plan.shape))
        return cli_misuse("--simulate takes a trace and one pack or --shape");
    o.plan.pack = n_args ? args[0] : NULL;
    o.plan.trace = o.simulate;
    return check_machine();
}

static int check_plan(int n_args, char **args)
{
    if (o.json || o.plan.expert_size)
        return cli_misuse("option --%s belongs to --%s", o.json ? "json" : "expert-size",
                          o.json ? "explain and --simulate" : "simulate");
    if (n_args > 1 || (n_args && o.plan.shape))
        return cli_misuse("one pack, or --shape");
    if (n_args == 0 && !o.plan.shape)
        return cli_misuse("nothing to do: a PACK, --shape, --explain or --simulate");
    if (o.plan.calibration && o.plan.shape)
        return cli_misuse(
            "option --calibration takes a PACK: a --shape is no model that was measured");
    if (!o.memory && !o.plan.expert_memory)
        return cli_misuse("how much memory? (--memory SIZE)");
    if (o.memory && !moe_parse_bytes(o.memory, &o.plan.memory))
        return cli_misuse("option --memory: '%s' is not a size like 512M or 4GiB", o.memory);
    o.plan.pack = n_args ? args[0] : NULL;
    if (!cli_given("max-tokens"))
        o.plan.max_tokens = PLAN_TOKENS;
    return check_machine();
}

static int check_options(int n_args, char **args)
{
    if (strategy_wants_help(&o.plan.strategy)) {
        strategy_print_help();
        return cli_finish(CLI_DONE);
    }
    if (o.explain && o.simulate)
        return cli_misuse("--explain and --simulate are different things to do");
    if (!o.plan.shape && (o.experts || cli_given("dense")))
        return cli_misuse("option --%s belongs to --shape", o.experts ? "experts" : "dense");
    if (o.experts)
        o.plan.expert_bits = o.experts;
    return o.explain    ? check_explain(n_args)
           : o.simulate ? check_simulate(n_args, args)
                        : check_plan(n_args, args);
}

int main(int argc, char **argv)
{
    char **args;
    int n_args, status = cli_parse(&program, argc, argv, &args, &n_args);
    struct moe_err err = {0};
    if (status < 0)
        status = check_options(n_args, args);
    if (status >= 0)
        return status;
    if (o.explain)
        status = plan_explain(o.explain, o.json, &err);
    else if (o.simulate)
        status = plan_simulate(&o.plan, o.plan.strategy.strategy, o.memory, o.json, &err);
    else
        status = plan_make(&o.plan, &err);
    return cli_finish(status == MOE_OK ? CLI_DONE : cli_error(&err));
}
