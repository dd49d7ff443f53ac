/* moe-quantize: checkpoints to packs, packs to packs, and a look inside. See man/moe-quantize.1. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "fmt/gguf.h"
#include "fmt/pack.h"
#include "model/convert.h"
#include "model/summary.h"

static struct {
    const char *out;
    struct moe_convert_options convert;
    uint32_t zstd_level;
    bool list, verify, json;
} o = {.convert = {.experts = {{4, 4}}, .n_experts = 1, .dense_bits = 8, .group = 64}};

/* ---- Options --------------------------------------------------------------------------------- */

static bool parse_experts(const char *text, void *to, char why[128])
{
    struct moe_convert_options *convert = to;
    const int room = sizeof convert->experts / sizeof convert->experts[0];
    convert->n_experts = 0;
    for (const char *p = text;; p++) {
        char word[16];
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        if (n >= sizeof word || convert->n_experts == room ||
            !moe_parse_bits(word, &convert->experts[convert->n_experts])) {
            snprintf(why, 128, "is not a list of up to %d of 32, 16, 8, 4, 3, 2, 4d8 (down at 8)",
                     room);
            return false;
        }
        convert->n_experts++;
        p += n;
        if (*p == '\0')
            return true;
    }
}

static bool parse_dense(const char *text, void *to, char why[128])
{
    struct moe_bits bits;
    if (!moe_parse_bits(text, &bits) || bits.gate_up != bits.down) {
        snprintf(why, 128, "is not one of 32, 16, 8, 4, 3, 2");
        return false;
    }
    *(int *)to = bits.down;
    return true;
}

static bool parse_method(const char *text, void *to, char why[128])
{
    const struct moe_quant_method *method = moe_quant_method_find(text);
    if (method) {
        *(const struct moe_quant_method **)to = method;
        return true;
    }
    snprintf(why, 128, "is not one of");
    for (int i = 0; (method = moe_quant_method_at(i)) != NULL; i++) {
        size_t n = strlen(why);
        snprintf(why + n, 128 - n, "%s %s", i ? "," : "", method->name);
    }
    return false;
}

static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Converting"},
    {CLI_OPT_TEXT('o', "output", "PACK", &o.out), .shown = "NAME.moe", .help = "file to write"},
    {CLI_OPT_CUSTOM(0, "experts", "BITS[,BITS...]", &o.convert, parse_experts), .shown = "4",
     .help = "bits of routed experts, one variant each"},
    {CLI_OPT_CUSTOM(0, "dense", "BITS", &o.convert.dense_bits, parse_dense), .shown = "8",
     .help = "bits of all other matrices"},
    {CLI_OPT_CUSTOM(0, "method", "NAME", &o.convert.method, parse_method), .shown = "hqq",
     .help = "how: hqq, linear or rtn"},
    {CLI_OPT_U32(0, "group", "N", &o.convert.group, 0, MOE_MAX_GROUP), .shown = "64",
     .help = "weights per scale: 32, 64, 128, ...; 0: a row"},
    {CLI_OPT_U32(0, "zstd", "LEVEL", &o.zstd_level, 0, 22), .shown = "0, off",
     .help = "compress what shrinks by it"},
    {.kind = CLI_HEADING, .help = "Looking"},
    {CLI_OPT_FLAG(0, "list", &o.list), .help = "what is inside (-v: every tensor)"},
    {CLI_OPT_FLAG(0, "verify", &o.verify), .help = "read everything, check every checksum"},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--list for scripts"},
    {.kind = CLI_END},
};

static const struct cli_program program = {
    .name = "moe-quantize",
    .summary = "Makes an expert pack of a checkpoint (Hugging Face directory, GGUF file), or\n"
               "another pack of a pack.\n"
               "BITS: 32, 16 (as stored), 8, 4, 3, 2; 4d8 is 4 with down projections at 8.",
    .usage = (const char *const[]){"[-o PACK] [--experts BITS,...] [OPTION]... CHECKPOINT|PACK",
                                   "--list PACK [--json]", "--verify PACK", NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-quantize OLMoE-1B-7B                     # 4 bits into OLMoE-1B-7B.moe",
            "moe-quantize -o both.moe --experts 4d8,2 OLMoE-1B-7B",
            "moe-quantize -o small.moe --experts 2 --zstd 9 both.moe",
            "moe-quantize --list --json small.moe", NULL},
};

/* ---- Looking --------------------------------------------------------------------------------- */

static int list(const char *path)
{
    struct moe_err err;
    struct moe_pack *pack = NULL;
    struct moe_buf text = {0};
    struct moe_summary *summary = calloc(1, sizeof *summary); /* too large for a stack's taste */
    int status = summary ? moe_pack_open(&pack, path, &err)
                         : moe_fail(&err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK)
        status = moe_summarize(pack, summary, &err);
    if (status == MOE_OK && o.json)
        status = moe_summary_json(pack, summary, cli_verbose, &text, &err);
    else if (status == MOE_OK)
        moe_summary_text(pack, summary, cli_verbose, &text);
    if (status == MOE_OK && text.failed)
        status = moe_fail(&err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK)
        fwrite(text.data, 1, text.size, stdout);
    moe_buf_release(&text);
    moe_pack_close(pack);
    free(summary);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

static int verify(const char *path)
{
    struct moe_err err;
    struct moe_pack *pack = NULL;
    uint64_t bytes = 0;
    double began = moe_seconds();
    int status = moe_pack_open(&pack, path, &err);
    if (status == MOE_OK)
        status = moe_pack_verify(pack, cli_progress(), &bytes, &err);
    cli_progress_done();
    moe_pack_close(pack);
    if (status != MOE_OK)
        return cli_error(&err);
    printf("%s: OK, %llu bytes, %.1f s\n", path, (unsigned long long)bytes, moe_seconds() - began);
    return CLI_DONE;
}

/* ---- Converting ------------------------------------------------------------------------------ */

/* What became of a source's own codes. */
static void say_carried(const char *path, const struct moe_convert_report *report)
{
    const struct moe_ggml_counts *n = &report->carried;
    unsigned long long carried = n->exact + n->rounded, anew = n->fitted + report->requantized;
    if (carried + anew == 0)
        return;
    fprintf(stderr, "%s: of the source's quantized weights %llu carried over", path, carried);
    if (n->rounded)
        fprintf(stderr, " (%llu with scales rounded to f16)", (unsigned long long)n->rounded);
    fprintf(stderr, ", %llu quantized anew\n", anew);
}

/* Opens what was written, which is a first check of it, and says what it is. */
static int say_result(const char *path, const struct moe_convert_report *report, double seconds)
{
    struct moe_err err;
    struct moe_pack *pack = NULL;
    struct moe_buf text = {0};
    struct moe_summary *summary = calloc(1, sizeof *summary);
    char bytes[32];
    int status = summary ? moe_pack_open(&pack, path, &err)
                         : moe_fail(&err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK)
        status = moe_summarize(pack, summary, &err);
    if (status == MOE_OK) {
        moe_summary_line(pack, summary, &text);
        if (!cli_quiet && text.data)
            fprintf(stderr, "%s: %s: %s, %.1f s\n", path, (const char *)text.data,
                    moe_format_bytes(report->pack_bytes, bytes), seconds);
    }
    if (status == MOE_OK && !cli_quiet)
        say_carried(path, report);
    moe_buf_release(&text);
    moe_pack_close(pack);
    free(summary);
    return status == MOE_OK ? CLI_DONE : cli_error(&err);
}

/* `source` is no checkpoint, and nothing says where a pack of it should go. */
static int say_not_a_checkpoint(const char *source)
{
    struct moe_err err;
    uint64_t size;
    int fd = moe_file_open(source, &size, &err);
    if (fd < 0)
        return cli_error(&err);
    close(fd);
    return cli_misuse("%s: a file; re-packing a pack needs -o", source);
}

static int convert(const char *source)
{
    char name[MOE_SOURCE_NAME_BYTES + sizeof ".moe"];
    struct moe_convert_report report;
    struct moe_err err;
    bool checkpoint = moe_path_is_directory(source) || moe_gguf_is(source);
    if (!checkpoint && !o.out)
        return say_not_a_checkpoint(source);
    if (!o.out) {
        moe_convert_source_name(source, name);
        strcat(name, ".moe");
        o.out = name;
    }
    /* Re-packing keeps what no option names. */
    if (!checkpoint && !cli_given("experts"))
        o.convert.n_experts = 0;
    if (!checkpoint && !cli_given("dense"))
        o.convert.dense_bits = 0;
    o.convert.zstd_level = (int)o.zstd_level;
    o.convert.progress = cli_progress();
    cli_catch_termination(); /* an unfinished pack must not stay behind */

    double began = moe_seconds();
    int status = (checkpoint ? moe_convert_checkpoint : moe_convert_pack)(source, o.out, &o.convert,
                                                                          &report, &err);
    cli_progress_done();
    if (status != MOE_OK)
        return cli_error(&err);
    return say_result(o.out, &report, moe_seconds() - began);
}

int main(int argc, char **argv)
{
    char **args;
    int n_args;
    o.convert.method = moe_quant_method_find("hqq");
    int status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status >= 0)
        return status;
    bool converting = cli_given("output") || cli_given("experts") || cli_given("dense") ||
                      cli_given("method") || cli_given("group") || cli_given("zstd");
    if (o.list && o.verify)
        return cli_misuse("--list and --verify exclude each other");
    if (o.json && !o.list)
        return cli_misuse("--json goes with --list");
    if ((o.list || o.verify) && converting)
        return cli_misuse("--%s takes no options for converting", o.list ? "list" : "verify");
    if (n_args != 1)
        return cli_misuse(n_args ? "one checkpoint or pack at a time"
                                 : "no checkpoint or pack given");
    return cli_finish(o.list ? list(args[0]) : o.verify ? verify(args[0]) : convert(args[0]));
}
