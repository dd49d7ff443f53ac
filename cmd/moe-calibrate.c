/* moe-calibrate: finds what may be approximated on your texts. See man/moe-calibrate.1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "kept_models.h"
#include "offline.h"
#include "quant/layout.h"
#include "show/show.h"
#include "tune/calibrate.h"

enum { DEFAULT_TOKENS = 256 };

static struct {
    const char *out, *from, *stats, *trace;
    struct cli_texts texts, pairs, checks, without;
    struct moe_calibrate_options calibrate;
    struct offline_shard shard;
    int metric, judge, importance;
    double tolerance, routing_tolerance, measured;
    bool resume, merge, partial, show, json, dry_run;
} o = {.calibrate = {.max_tokens = DEFAULT_TOKENS},
       .shard = {0, 1},
       .tolerance = 0.02,
       .routing_tolerance = -1,
       .measured = -1};

enum { EXACT = 0, PROXY, ADAPTIVE };

/* ---- Options ---- */

static bool is_listed(const struct moe_calibrate_options *c, int bits)
{
    for (uint32_t i = 0; i < c->n_dense_bits; i++)
        if (c->dense_bits[i] == (uint32_t)bits)
            return true;
    return false;
}

static bool parse_dense(const char *text, void *to, struct moe_err *why)
{
    struct moe_calibrate_options *c = to;
    for (c->n_dense_bits = 0; c->n_dense_bits < MOE_CALIBRATE_DENSE;) {
        size_t n = strcspn(text, ",");
        char word[MOE_WIDTH_BYTES];
        snprintf(word, sizeof word, "%.*s", (int)n, text);
        const int bits = n < sizeof word ? moe_parse_width(word) : 0;
        if (!bits || is_listed(c, bits))
            break;
        c->dense_bits[c->n_dense_bits++] = (uint32_t)bits;
        if (text[n] == '\0')
            return true;
        text += n + 1;
    }
    char kinds[MOE_BITS_KINDS_BYTES];
    moe_fail(why, MOE_ERR_USAGE,
             "is not a list of up to %d different ones of 32, 16, 8, 6, 5, 4, 3, 2, 1, %s",
             MOE_CALIBRATE_DENSE, moe_format_bits_kinds(kinds));
    return false;
}

/* Sizes of caches, which the map has in rising order. */
static bool parse_caches(const char *text, void *to, struct moe_err *why)
{
    struct moe_calibrate_options *c = to;
    for (c->n_caches = 0; c->n_caches < MOE_MAP_MAX_CACHES;) {
        size_t n = strcspn(text, ",");
        char word[32];
        uint64_t bytes;
        snprintf(word, sizeof word, "%.*s", (int)n, text);
        if (n >= sizeof word || !moe_parse_bytes(word, &bytes) || bytes == 0 ||
            (c->n_caches && bytes <= c->caches[c->n_caches - 1]))
            break;
        c->caches[c->n_caches++] = bytes;
        if (text[n] == '\0')
            return true;
        text += n + 1;
    }
    moe_fail(why, MOE_ERR_USAGE, "is not a list of up to %d rising sizes like 512M or 4GiB",
             MOE_MAP_MAX_CACHES);
    return false;
}

static const char *const metrics[] = {"nll", "top1", NULL};
static const char *const judges[] = {"nats", "rouge2", "accuracy", NULL};
static const char *const importances[] = {"exact", "proxy", "adaptive", NULL};

/* What it can do beside calibrating, which is usual. */
enum { MERGE = CLI_USUAL << 1, SHOW = CLI_USUAL << 2 };

static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Calibrating"},
    {CLI_OPT_TEXTS(0, "text", "FILE", &o.texts), .help = "documents to choose on; may be repeated",
     .modes = CLI_USUAL, .excludes = "pairs"},
    {CLI_OPT_TEXTS(0, "pairs", "FILE", &o.pairs),
     .help = "pairs to choose on, JSON lines: source, target", .modes = CLI_USUAL},
    {CLI_OPT_TEXTS(0, "check", "FILE", &o.checks),
     .help = "documents, or pairs, to check the choice on"},
    {CLI_OPT_OUTPUT('o', "output", "MAP", &o.out), .help = "bit map to write"},
    {CLI_OPT_SHARE(0, "tolerance", "P", &o.tolerance, 0, 10), .shown = "2%",
     .help = "largest loss to accept"},
    {CLI_OPT_BYTES(0, "target", "SIZE", &o.calibrate.target_bytes),
     .help = "or the size of the pack, at the least loss", .modes = CLI_USUAL,
     .excludes = "tolerance shard"},
    {CLI_OPT_SHARE(0, "routing-tolerance", "P", &o.routing_tolerance, 0, 10),
     .help = "find lambda of --prefer-cached for this loss", .needs = "routing-cache",
     .excludes = "judge"},
    {CLI_OPT_BYTES(0, "routing-cache", "SIZE", &o.calibrate.routing_cache),
     .help = "size of the expert cache to find it with", .needs = "routing-tolerance"},
    {CLI_OPT_CUSTOM(0, "expert-memory", "SIZE[,SIZE...]", &o.calibrate, parse_caches),
     .help = "what loading less loses, in such caches", .modes = CLI_USUAL, .excludes = "judge"},
    {CLI_OPT_CHOICE(0, "metric", "NAME", &o.metric, metrics), .shown = "nll",
     .help = "nll: nats per token; top1: agreement"},
    {CLI_OPT_CHOICE(0, "judge", "BY", &o.judge, judges), .shown = "nats",
     .help = "of tolerance: nats, rouge2, accuracy", .needs = "pairs"},
    {CLI_OPT_CHOICE(0, "importance", "KIND", &o.importance, importances), .shown = "exact",
     .help = "exact; proxy: from one pass; adaptive: both"},
    {CLI_OPT_SHARE(0, "measured", "P", &o.measured, 0.01, 1), .shown = "25%",
     .help = "adaptive: experts to measure at most"},
    {CLI_OPT_CUSTOM(0, "dense", "BITS[,BITS...]", &o.calibrate, parse_dense), .shown = "the pack's",
     .help = "dense bits or types to choose from"},
    {CLI_OPT_CUSTOM(0, "method", "NAME", &o.calibrate.method, cli_parse_method),
     .word = cli_method_word, .shown = "the pack's", .help = "how the dense part gets them",
     .needs = "dense"},
    {CLI_OPT_U32(0, "max-tokens", "N", &o.calibrate.max_tokens, 2, 1 << 24), .shown = "256",
     .help = "cut documents into windows of N tokens"},
    {CLI_OPT_U32(0, "max-windows", "N", &o.calibrate.max_windows, 1, 1 << 24), .shown = "all",
     .help = "of a document: leave out what follows them"},
    {CLI_OPT_TEXT(0, "stats", "STATS", &o.stats),
     .help = "count the bytes of popular experts more"},
    {CLI_OPT_TEXT(0, "trace", "TRACE", &o.trace),
     .help = "find HOBBIT's cache weights on this trace"},
    {CLI_OPT_TEXT(0, "from", "MAP", &o.from), .help = "take the importances from this map"},
    {CLI_OPT_TEXTS(0, "without", "PART[,PART]", &o.without),
     .help = "leave out bits, fate or hobbit"},
    {CLI_OPT_BYTES(0, "memory", "SIZE", &o.calibrate.memory_bytes), .shown = "what is free",
     .help = "limit for the whole process"},
    {.kind = CLI_HEADING, .help = "Long work"},
    {CLI_OPT_CUSTOM(0, "shard", "I/N", &o.shard, offline_parse_shard), .shown = "1/1",
     .alone = true, .help = "every N-th expert, from the I-th on"},
    {CLI_OPT_FLAG(0, "resume", &o.resume), .help = "continue an interrupted run"},
    {CLI_OPT_FLAG(0, "dry-run", &o.dry_run), .help = "say what memory and time it would take",
     .modes = CLI_USUAL},
    {CLI_OPT_FLAG(0, "merge", &o.merge), .help = "merge shards, for a run with --from",
     .mode = MERGE},
    {CLI_OPT_FLAG(0, "partial", &o.partial), .help = "--merge: though shards are missing",
     .modes = MERGE},
    {.kind = CLI_HEADING, .help = "Looking"},
    {CLI_OPT_FLAG(0, "show", &o.show), .help = "print tables and pictures", .mode = SHOW},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--show, --dry-run: as JSON",
     .needs = "show dry-run"},
    {.kind = CLI_END},
};

static const struct cli_program program = {
    .name = "moe-calibrate",
    .summary = "Chooses a bitwidth for each expert, on your texts, within your tolerance.\n"
               "PACK has the bitwidths to choose from: moe-quantize --experts 8,4,2.",
    .usage =
        (const char *const[]){"PACK --text FILE... -o MAP [OPTION]...",
                              "PACK --pairs FILE... -o MAP [OPTION]...",
                              "PACK --text FILE... --dry-run [OPTION]...",
                              "--merge MAP... -o MAP [--partial]", "--show MAP [--json]", NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-quantize -o all.moe --experts 8,4,2 OLMoE-1B-7B",
            "moe-calibrate all.moe --text a.txt --check b.txt --tolerance 1% -o map.yaml",
            "moe-calibrate all.moe --text a.txt --expert-memory 1G -o map.yaml",
            "moe-calibrate --show map.yaml", "moe-quantize --map map.yaml -o mixed.moe all.moe",
            "moe-calibrate all.moe --text a.txt --shard 2/8 -o part2.yaml", NULL},
};

/* ---- Doing ---- */

static int write_map(const struct moe_map *map, const char *path, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_map_write(map, false, &text, err);
    return cli_save(status, &text, path, err);
}

static void say_result(const struct moe_map *map)
{
    struct moe_buf line = {0};
    moe_show_map_line(map, &line);
    moe_buf_u8(&line, 0);
    if (!line.failed)
        cli_note("%s: %s", o.out, (const char *)line.data);
    moe_buf_release(&line);
}

/* The exit status: of a tolerance that does not hold on the checks, after a line that says so and
 * what would help. The map is written all the same: it is what was asked for on the texts. */
static int say_whether_held(const struct moe_map *map, const struct moe_calibrate_advice *advice)
{
    struct moe_buf text = {0};
    struct moe_err err;
    moe_show_map_unheld(map, &text);
    if (text.size == 0)
        return CLI_DONE;
    if (advice->there)
        moe_buf_printf(&text,
                       "; choose on more texts like the checks, or with --tolerance %g%%, whose "
                       "choice loses %.2f%s there",
                       advice->tolerance, advice->check,
                       map->metric == MOE_METRIC_NLL && map->judge == MOE_JUDGE_NATS ? "%"
                                                                                     : " points");
    else if (advice->tolerance > 0)
        moe_buf_printf(&text,
                       "; no smaller one that was tried, down to %g%%, would hold: choose on more "
                       "texts like the checks",
                       advice->tolerance);
    moe_buf_u8(&text, 0);
    moe_fail(&err, MOE_ERR_LIMIT, "%s: %s", o.out, text.failed ? "?" : (const char *)text.data);
    moe_buf_release(&text);
    return cli_error(&err);
}

/* What it would take, on stdout. */
static int forecast(const char *pack, struct moe_err *err)
{
    struct moe_forecast found;
    struct moe_buf text = {0};
    int status = moe_calibrate_forecast(&found, pack, &o.calibrate, err);
    cli_progress_done();
    if (status == MOE_OK && o.json)
        status = moe_show_forecast_json(&found, &text, err);
    else if (status == MOE_OK)
        moe_show_forecast(&found, &text);
    return cli_print(status, &text, err);
}

static int calibrate(const char *pack)
{
    struct moe_err err;
    struct moe_map *map = NULL, *from = NULL;
    struct moe_statistics *statistics = NULL;
    struct moe_left_out left_out = {0};
    struct moe_calibrate_advice advice = {0};
    struct moe_calibrate_options *c = &o.calibrate;
    char *partial = o.out ? offline_partial_name(o.out, &err) : NULL;
    const struct cli_texts *texts = o.pairs.n ? &o.pairs : &o.texts;
    c->texts = texts->items;
    c->n_texts = (uint32_t)texts->n;
    c->pairs = o.pairs.n > 0;
    c->checks = o.checks.items;
    c->n_checks = (uint32_t)o.checks.n;
    c->metric = (enum moe_metric)o.metric;
    c->judge = (enum moe_judge)o.judge;
    c->tolerance = 100 * o.tolerance;
    c->routing_tolerance = 100 * o.routing_tolerance;
    c->exact = o.importance != PROXY;
    c->measured_share = o.importance != ADAPTIVE ? 0 : o.measured < 0 ? 0.25 : o.measured;
    c->shard = o.shard.index;
    c->n_shards = o.shard.n;
    c->trace = o.trace;
    c->partial = partial;
    c->resume = o.resume;
    c->progress = cli_progress();
    c->left_out = &left_out;
    c->advice = &advice;
    cli_catch_termination();
    int held = CLI_DONE, status;
    MOE_STEP(partial || !o.out ? MOE_OK : MOE_ERR_MEMORY);
    if (o.from)
        MOE_STEP(moe_map_read(&from, o.from, &err));
    if (o.stats)
        MOE_STEP(moe_statistics_read(&statistics, o.stats, &err));
    c->from = from;
    c->statistics = statistics;
    MOE_STEP(o.dry_run ? forecast(pack, &err) : moe_calibrate(&map, pack, c, &err));
    cli_progress_done();
    if (map) {
        MOE_STEP(write_map(map, o.out, &err));
        offline_remove_partial(partial);
        offline_note_left_out(&left_out, c->pairs
                                             ? "--max-tokens N takes more of each source and target"
                                             : "--max-windows N takes more of each");
        held = c->target_bytes ? CLI_DONE : say_whether_held(map, &advice);
        say_result(map);
    }
out:
    if (status == MOE_ERR_INTERRUPTED && partial && moe_path_exists(partial))
        cli_note("stopped; %s has the importances measured so far, --resume continues from there; "
                 "what follows them, as ways to load less, begins anew",
                 partial);
    moe_map_free(map);
    moe_map_free(from);
    moe_statistics_free(statistics);
    free(partial);
    return status == MOE_OK ? held : cli_error(&err);
}

/* Adds a shard to those before; *sum: NULL before the first. */
static int add_shard(struct moe_map **sum, const char *path, struct moe_err *err)
{
    struct moe_map *part = NULL;
    MOE_TRY(moe_map_read(&part, path, err));
    int status;
    MOE_STEP(moe_map_check_finished(part, err));
    if (*sum)
        MOE_STEP(moe_map_merge(*sum, part, err));
out:
    if (status != MOE_OK)
        moe_err_prefix(err, "%s", path);
    if (status == MOE_OK && !*sum)
        *sum = part;
    else
        moe_map_free(part);
    return status;
}

static int merge(char **paths, int n)
{
    struct moe_err err;
    struct moe_map *sum = NULL;
    int status = MOE_OK;
    for (int i = 0; i < n; i++)
        MOE_STEP(add_shard(&sum, paths[i], &err));
    if (!o.partial)
        MOE_STEP(moe_map_check_whole(sum, &err));
    MOE_STEP(write_map(sum, o.out, &err));
    say_result(sum);
out:
    moe_map_free(sum);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

static int show_map(const char *path)
{
    struct moe_err err;
    struct moe_map *map = NULL;
    struct moe_buf text = {0};
    int status;
    MOE_STEP(moe_map_read(&map, path, &err));
    if (o.json)
        MOE_STEP(moe_map_write(map, true, &text, &err));
    else
        moe_show_map(map, cli_screen(STDOUT_FILENO), &text);
    if (!o.json)
        cli_fit(STDOUT_FILENO, &text);
out:
    status = cli_print(status, &text, &err);
    moe_map_free(map);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

/* false: something that cannot be left out. */
static bool take_without(void)
{
    static const char *const names[] = {"bits", "fate", "hobbit"};
    struct moe_calibrate_options *c = &o.calibrate;
    bool *const flags[] = {&c->without_bits, &c->without_fate, &c->without_hobbit};
    for (int i = 0; i < o.without.n; i++)
        for (const char *at = o.without.items[i]; at; at = *at ? at + 1 : NULL) {
            size_t n = strcspn(at, ","), which = 0;
            while (which < 3 && (strlen(names[which]) != n || strncmp(at, names[which], n) != 0))
                which++;
            if (which == 3)
                return false;
            *flags[which] = true;
            at += n;
        }
    return true;
}

int main(int argc, char **argv)
{
    char **args;
    int n_args, status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status >= 0)
        return status;
    if (!take_without())
        return cli_misuse("--without takes bits, fate or hobbit");
    if (o.show)
        return n_args == 1 ? cli_finish(show_map(args[0])) : cli_misuse("--show takes one file");
    if (!o.out && !(o.dry_run && o.texts.n + o.pairs.n))
        return cli_misuse(o.merge || o.texts.n + o.pairs.n
                              ? "no output given (-o MAP)"
                              : "nothing to do: --text, --pairs, --merge or --show");
    if (o.merge)
        return n_args >= 1 ? cli_finish(merge(args, n_args))
                           : cli_misuse("--merge needs maps to merge");
    if (o.texts.n + o.pairs.n == 0 || n_args != 1)
        return cli_misuse("give one pack and at least one --text FILE, or --pairs FILE");
    if (o.routing_tolerance >= 0 && o.shard.n > 1)
        return cli_misuse("--routing-tolerance needs a choice, which --shard does not make");
    if (o.shard.n > 1 && (o.calibrate.n_caches || o.calibrate.without_bits))
        return cli_misuse("option --shard measures importances: --expert-memory and --without bits "
                          "are for the run that chooses");
    if (o.shard.n > 1 && o.importance == PROXY)
        return cli_misuse("--shard is for --importance exact");
    if (o.shard.n > 1 && o.importance == ADAPTIVE)
        return cli_misuse(
            "--shard is for --importance exact: which experts adaptive measures depends on "
            "the figures of all");
    if (o.measured >= 0 && o.importance != ADAPTIVE)
        return cli_misuse("--measured is for --importance adaptive");
    if (o.importance == ADAPTIVE && o.metric)
        return cli_misuse("--importance adaptive measures nats: it is for --metric nll");
    if (o.calibrate.target_bytes && o.calibrate.without_bits)
        return cli_misuse("--target chooses bits, which --without leaves out");
    if (o.trace && o.calibrate.without_hobbit)
        return cli_misuse("--trace is for hobbit, which --without leaves out");
    const char *pack = args[0];
    status = kept_model_resolve(&pack);
    return status < 0 ? cli_finish(calibrate(pack)) : status;
}
