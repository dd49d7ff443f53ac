/* moe-plan: how to run a model within a memory budget, and why. See man/moe-plan.1. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli.h"
#include "plan_explain.h"
#include "plan_make.h"
#include "plan_simulate.h"

/* Default tokens of a trace for a plan: the search simulates it many times. */
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
    {CLI_OPT_TEXT(0, "memory", "SIZE", &o.memory), .help = "limit for the whole process"},
    {CLI_OPT_BYTES(0, "expert-memory", "SIZE", &o.plan.expert_memory), .shown = "the rest",
     .help = "size of the expert cache alone"},
    {CLI_OPT_TEXT(0, "stats", "STATS", &o.plan.strategy.statistics),
     .help = "statistics of the model, by moe-profile"},
    {CLI_OPT_TEXT(0, "trace", "TRACE", &o.plan.trace), .shown = "drawn at random",
     .help = "routing trace of the model"},
    {CLI_OPT_TEXT(0, "device-profile", "FILE", &o.plan.profile), .shown = "measured now",
     .help = "speed of the machine, by moe-profile"},
    {CLI_OPT_TEXT(0, "calibration", "MAP", &o.plan.calibration),
     .help = "bit map by moe-calibrate: what to approximate"},
    {CLI_OPT_U32('c', "context", "N", &o.plan.context, 2, MOE_MAX_CONTEXT),
     .shown = "the model's, at most 4096", .help = "context length in tokens"},
    {CLI_OPT_U32(0, "batch", "N", &o.plan.batch, 1, 65536), .shown = "256, fewer if tight",
     .help = "prompt tokens per pass, at most"},
    {CLI_OPT_OUTPUT('o', "output", "PLAN", &o.plan.out), .shown = "explain it on stdout",
     .help = "write the plan"},

    {.kind = CLI_HEADING, .help = "A model without weights"},
    {CLI_OPT_TEXT(0, "shape", "FILE", &o.plan.shape), .help = "its config.json"},
    {CLI_OPT_TEXT(0, "experts", "BITS[,BITS]", &o.experts), .shown = "4",
     .help = "bitwidths of its experts"},
    {CLI_OPT_U32(0, "dense", "BITS", &o.plan.dense_bits, 2, 16), .shown = "8",
     .help = "bitwidth of all other weights"},

    {.kind = CLI_HEADING, .help = "Explaining and simulating"},
    {CLI_OPT_TEXT(0, "explain", "FILE", &o.explain), .help = "explain a plan, statistics or a pack"},
    {CLI_OPT_TEXT(0, "simulate", "TRACE", &o.simulate),
     .help = "compare strategies: --strategy A,B"},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--explain, --simulate: as JSON"},
    {CLI_OPT_DOUBLE(0, "layer-seconds", "S", &o.plan.layer_seconds, 1e-9, 1e3),
     .help = "time of one layer for one token, not a profile's"},
    {CLI_OPT_BYTES(0, "expert-size", "SIZE", &o.plan.expert_size),
     .help = "bytes of an expert, if the trace has none"},

    {.kind = CLI_HEADING, .help = "Strategy"},
    {CLI_OPT_TEXT(0, "strategy", "NAME", &o.plan.strategy.strategy), .shown = "auto",
     .help = "fate, fate+cache=lru, ...; help lists them"},
    {CLI_OPT_FLAG(0, "exact", &o.plan.strategy.exact), .help = "refuse what may change results"},
    {CLI_OPT_CUSTOM(0, "device", "WHAT", &o.plan.strategy.device, strategy_device), .shown = "cpu",
     .help = "cpu or test:SPEED,LINK"},
    {CLI_OPT_RATE(0, "link-rate", "RATE", &o.plan.link_rate), .shown = "the profile's",
     .help = "rate of expert loads"},
    {CLI_OPT_U64(0, "max-tokens", "N", &o.plan.max_tokens, 1, UINT64_MAX),
     .shown = "4096; --simulate: all", .help = "use N tokens of the trace"},
    {CLI_OPT_U64(0, "seed", "N", &o.plan.seed, 0, UINT64_MAX), .shown = "0",
     .help = "seed for random choices"},
    {.kind = CLI_ELSEWHERE, .help = "More", .shown = "--strategy help, moe-strategies(7)"},
    {.kind = CLI_END},
};
/* clang-format on */

static struct cli_program program = {
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
    const struct cli_option *const tables[] = {program.options, program.more};
    for (int i = 0; i < 2; i++)
        for (const struct cli_option *p = tables[i]; p->kind != CLI_END; p++)
            if (p->name && cli_given(p->name) && strcmp(p->name, "explain") != 0 &&
                strcmp(p->name, "json") != 0)
                return cli_misuse("option --%s: --explain only reads what is in the file", p->name);
    return n_args ? cli_misuse("--explain takes one file") : -1;
}

static int check_machine(void)
{
    if (o.plan.strategy.device.cuda)
        return cli_misuse("option --device: moe-plan plans for the CPU and for test devices");
    if (o.plan.profile && o.plan.layer_seconds > 0)
        return cli_misuse("options --device-profile and --layer-seconds exclude each other");
    if (o.plan.layer_seconds > 0 && !(o.plan.link_rate > 0))
        return cli_misuse("option --layer-seconds needs --link-rate");
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
        return cli_misuse("option --expert-memory: with --simulate, give --memory 10%% or 2x for "
                          "the experts alone");
    if (n_args > 1 || (n_args && o.plan.shape))
        return cli_misuse("--simulate takes a trace, and one pack or --shape");
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
        return cli_misuse("give either one PACK or --shape");
    if (n_args == 0 && !o.plan.shape)
        return cli_misuse("nothing to do: a PACK, --shape, --explain or --simulate");
    if (o.plan.calibration && o.plan.shape)
        return cli_misuse("option --calibration needs a PACK: nothing was measured on a --shape");
    if (!o.memory && !o.plan.expert_memory)
        return cli_misuse("no budget given (--memory SIZE)");
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
        return cli_misuse("--explain and --simulate exclude each other");
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
    int n_args;
    struct moe_err err = {0};
    program.more = strategy_part_options(&o.plan.strategy);
    int status = cli_parse(&program, argc, argv, &args, &n_args);
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
