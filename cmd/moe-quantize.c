/* moe-quantize: checkpoints to packs, packs to packs, and their contents. See man/moe-quantize.1.
 */
#define _GNU_SOURCE /* memfd_create */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "fmt/gguf.h"
#include "kept_models.h"
#include "offline.h"
#include "pack/convert.h"
#include "pack/pack.h"
#include "pack/synthesize.h"
#include "show/show.h"
#include "tune/inputs_seen.h"

/* Texts for best where none are given: those that models are calibrated by in tests, put together
 * by the build and read by the assembler. */
__asm__(".section .rodata\n"
        ".global bundled_texts\n"
        "bundled_texts:\n"
        ".incbin \"" BUNDLED_TEXTS "\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char bundled_texts[];

static struct {
    const char *out, *synthesize;
    struct cli_texts maps; /* one for the bits of experts, several for several tolerances */
    struct moe_convert_options convert;
    uint32_t zstd_level;
    struct cli_texts texts;
    uint32_t max_tokens, max_windows;
    uint64_t seed;
    bool sparse, list, verify, json;
    bool measured; /* the map names the method */
    int map_dense; /* bits of the dense part that the map chose; 0: none */
} o = {.convert = {.experts = {{4, 4}}, .n_experts = 1, .dense_bits = 8, .group = 64},
       .max_tokens = MOE_INPUTS_DOC_TOKENS};

/* ---- Options ---- */

static bool parse_experts(const char *text, void *to, struct moe_err *why)
{
    struct moe_convert_options *convert = to;
    const int room = sizeof convert->experts / sizeof convert->experts[0];
    convert->n_experts = 0;
    for (const char *p = text;; p++) {
        char word[MOE_BITS_BYTES];
        size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, p);
        if (n >= sizeof word || convert->n_experts == room ||
            !moe_parse_variant(word, &convert->experts[convert->n_experts])) {
            char kinds[MOE_BITS_KINDS_BYTES];
            moe_fail(why, MOE_ERR_USAGE,
                     "is not a list of up to %d of 32, 16, 8, 6, 5, 4, 3, 2, 1, 4d8 (down at 8), "
                     "map, %s",
                     room, moe_format_bits_kinds(kinds));
            return false;
        }
        convert->n_experts++;
        p += n;
        if (*p == '\0')
            return true;
    }
}

static bool parse_shard(const char *text, void *to, struct moe_err *why)
{
    struct moe_convert_options *convert = to;
    char end;
    if (sscanf(text, "%3" SCNu32 "/%3" SCNu32 "%c", &convert->shard, &convert->n_shards, &end) ==
            2 &&
        convert->shard >= 1 && convert->shard <= convert->n_shards &&
        convert->n_shards <= MOE_CONVERT_MAX_SHARDS)
        return true;
    moe_fail(why, MOE_ERR_USAGE, "is not a part of up to %d, as 1/4 is the first of four",
             MOE_CONVERT_MAX_SHARDS);
    return false;
}

/* What it can do beside converting, which is usual. */
enum {
    SYNTHESIZE = CLI_USUAL << 1,
    LIST = CLI_USUAL << 2,
    VERIFY = CLI_USUAL << 3,
    MAKES = CLI_USUAL | SYNTHESIZE,
};

static const struct cli_option options[] = {
    {.kind = CLI_HEADING, .help = "Converting"},
    {CLI_OPT_OUTPUT('o', "output", "PACK", &o.out), .shown = "NAME.moe", .help = "file to write",
     .modes = MAKES},
    {CLI_OPT_CUSTOM(0, "experts", "BITS[,BITS...]", &o.convert, parse_experts), .shown = "4",
     .help = "bits of routed experts; a variant each", .modes = MAKES},
    {CLI_OPT_DOUBLE(0, "bits", "N", &o.convert.mean_bits, 1, 9),
     .help = "mean bits of experts, by --method best", .modes = CLI_USUAL},
    {CLI_OPT_BYTES(0, "target", "SIZE", &o.convert.target_bytes),
     .help = "size of the pack, by --method best", .modes = CLI_USUAL, .excludes = "bits"},
    {CLI_OPT_CUSTOM(0, "dense", "BITS", &o.convert.dense_bits, cli_parse_width), .shown = "8",
     .help = "bits of all other matrices", .modes = MAKES},
    {CLI_OPT_TEXTS(0, "map", "MAP", &o.maps),
     .help = "bits of each expert, by moe-calibrate; or several", .modes = CLI_USUAL},
    {CLI_OPT_CUSTOM(0, "method", "NAME", &o.convert.method, cli_parse_method), .shown = "blocks",
     .word = cli_method_word, .help = "or best, hqq, linear, rtn; gptq, with texts",
     .modes = MAKES},
    {CLI_OPT_TEXTS(0, "text", "FILE", &o.texts), .shown = "bundled ones",
     .help = "texts for best and gptq, or none", .modes = CLI_USUAL},
    {CLI_OPT_U32(0, "max-tokens", "N", &o.max_tokens, 2, 1 << 20), .shown = "256",
     .help = "cut documents into windows of N tokens", .modes = CLI_USUAL, .needs = "text"},
    {CLI_OPT_U32(0, "max-windows", "N", &o.max_windows, 1, 1 << 24), .shown = "all",
     .help = "of a document: leave out what follows them", .modes = CLI_USUAL, .needs = "text"},
    {CLI_OPT_U32(0, "group", "N", &o.convert.group, 0, MOE_MAX_GROUP), .shown = "64",
     .help = "weights per scale: 32, 64, 128, ...; 0: a row", .modes = MAKES},
    {CLI_OPT_FLAG(0, "no-mtp", &o.convert.no_ahead),
     .help = "leave out the layer that drafts (--draft mtp)", .modes = CLI_USUAL},
    {CLI_OPT_FLAG(0, "resume", &o.convert.keeps),
     .help = "keep what is done, go on from what was kept", .modes = CLI_USUAL},
    {CLI_OPT_CUSTOM(0, "shard", "I/N", &o.convert, parse_shard),
     .help = "round only the Ith of N parts of the experts", .modes = CLI_USUAL,
     .excludes = "resume join"},
    {CLI_OPT_U32(0, "join", "N", &o.convert.n_joined, 1, MOE_CONVERT_MAX_SHARDS),
     .help = "take experts from the files of N shards", .modes = CLI_USUAL},
    {CLI_OPT_U32(0, "zstd", "LEVEL", &o.zstd_level, 0, 22), .shown = "0, off",
     .help = "compress what becomes smaller", .modes = CLI_USUAL},
    {.kind = CLI_HEADING, .help = "A model without weights"},
    {CLI_OPT_TEXT(0, "synthesize", "FILE", &o.synthesize),
     .help = "a config.json: draw weights, for moe-run --bench", .mode = SYNTHESIZE},
    {CLI_OPT_FLAG(0, "sparse", &o.sparse), .help = "experts take no room (nor time to load)",
     .modes = SYNTHESIZE},
    {CLI_OPT_U64(0, "seed", "N", &o.seed, 0, UINT64_MAX), .shown = "0",
     .help = "seed of drawn weights", .modes = SYNTHESIZE},
    {.kind = CLI_HEADING, .help = "Looking"},
    {CLI_OPT_FLAG(0, "list", &o.list), .help = "list the contents (-v: every tensor)",
     .mode = LIST},
    {CLI_OPT_FLAG(0, "verify", &o.verify), .help = "read everything, check every checksum",
     .mode = VERIFY},
    {CLI_OPT_FLAG(0, "json", &o.json), .help = "--list: as JSON", .modes = LIST},
    {.kind = CLI_END},
};

static const struct cli_program program = {
    .name = "moe-quantize",
    .summary = "Makes an expert pack from a checkpoint (Hugging Face directory or GGUF file) or\n"
               "from another pack.\n"
               "BITS: 32, 16 (as stored), 8, 6, 5, 4, 3, 2 (best: 1, too); 4d8 is 4 with down\n"
               "projections at 8. Or a type: q2_k to q6_k, q8_0, iq4_xs, iq1_kt to iq3_kt,\n"
               "iq4_ks, iq5_ks.\n"
               "A quantized checkpoint keeps its own bits, matrix by matrix, without BITS.",
    .usage = (const char *const[]){"[-o PACK] [--experts BITS,...] [OPTION]... CHECKPOINT|PACK",
                                   "[-o PACK] --map MAP [OPTION]... CHECKPOINT|PACK",
                                   "[-o PACK] --synthesize FILE [--sparse] [OPTION]...",
                                   "--list PACK [--json]", "--verify PACK", NULL},
    .options = options,
    .examples =
        (const char *const[]){
            "moe-quantize OLMoE-1B-7B                     # 4 bits into OLMoE-1B-7B.moe",
            "moe-quantize -o both.moe --experts 4d8,2 OLMoE-1B-7B",
            "moe-quantize --method best --bits 3 OLMoE-1B-7B",
            "moe-quantize -o small.moe --experts 2 --zstd 9 both.moe",
            "moe-quantize -o mixed.moe --map map.yaml OLMoE-1B-7B", "moe-quantize --list mixed.moe",
            "moe-quantize -o several.moe --map 1.yaml --map 5.yaml all.moe",
            "moe-quantize --synthesize config.json -o drawn.moe", NULL},
};

/* ---- Looking ---- */

/* A file's name as lines have it, until the next call: a line feed, which would break them, is '?'.
 */
static const char *shown(const char *path)
{
    static char name[4096];
    snprintf(name, sizeof name, "%s", path);
    moe_blank_line_feeds(name);
    return name;
}

static int list(const char *path)
{
    struct moe_err err;
    struct moe_pack_summary *summary;
    struct moe_buf text = {0}, bits = {0};
    int status;
    MOE_STEP(moe_pack_summary_open(&summary, path, &err));
    if (o.json)
        MOE_STEP(moe_show_pack_json(summary, cli_verbose, &text, &err));
    if (!o.json) {
        moe_show_pack(summary, cli_verbose, &text);
        moe_show_pack_bits(summary, cli_screen(STDOUT_FILENO), &bits);
        cli_fit(STDOUT_FILENO, &text);
        cli_fit(STDOUT_FILENO, &bits);
    }
out:
    status = cli_print(status, &text, &err);
    status = cli_print_as_is(status, &bits, &err);
    moe_pack_summary_close(summary);
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
    printf("%s: OK, %llu bytes, %.1f s\n", shown(path), (unsigned long long)bytes,
           moe_seconds() - began);
    return CLI_DONE;
}

/* ---- Converting ---- */

/* What became of the source's quantized weights. */
static void say_source(const char *path, const struct moe_convert_report *report)
{
    struct moe_buf lines = {0};
    moe_show_source(report, path, &lines);
    if (lines.data && !lines.failed)
        fprintf(stderr, "%.*s", (int)lines.size, (const char *)lines.data);
    moe_buf_release(&lines);
}

static void say_output_error(const char *path, const char *what, const char *bits,
                             const struct moe_quant_error *error)
{
    if (error->output_plain > 0)
        fprintf(stderr, "%s: output error of %s%s: %.3f of hqq's\n", path, what, bits,
                error->output_improved / error->output_plain);
}

/* How much error compensation reduced the output error on the texts. */
static void say_output_errors(const char *path, const struct moe_convert_report *report)
{
    for (int i = 0; i < o.convert.n_experts; i++) {
        char bits[MOE_BITS_BYTES];
        moe_format_bits(o.convert.experts[i], bits);
        say_output_error(path, "experts at ", bits, &report->error[i]);
    }
    say_output_error(path, "the dense part", "", &report->dense_error);
}

/* Whether any expert was rounded, now or by the run that this one goes on from. */
static bool rounded(const struct moe_convert_report *report)
{
    bool any = false;
    for (int i = 0; i < o.convert.n_experts; i++)
        any = any || report->error[i].sum_squared_error > 0;
    return any;
}

/* Says where an expert's matrix would take no more bytes at more bits: its rows are narrower than
 * what the layout of few bits is made for. */
static void say_narrow(const char *path, const struct moe_pack *pack)
{
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++) {
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, i);
        for (uint32_t j = 0; j < class_->n_matrices; j++) {
            const struct moe_class_matrix *m = &class_->matrices[j];
            const int bits = moe_layout_bits(m->layout.kind);
            const uint64_t takes = moe_layout_bytes(m->layout, m->rows, m->cols);
            const struct moe_layout more = moe_quant_layout_of(o.convert.method, bits + 1, m->cols,
                                                               o.convert.group, MOE_LAYOUT_BF16);
            if (more.kind == MOE_LAYOUT_NONE || bits + 1 >= 8 ||
                moe_layout_bytes(more, m->rows, m->cols) >= takes)
                continue;
            fprintf(stderr,
                    "%s: rows of %" PRIu32 " columns take more at %d %s than at %d; --experts %d "
                    "is smaller and more exact\n",
                    path, m->cols, bits, bits == 1 ? "bit" : "bits", bits + 1, bits + 1);
            return;
        }
    }
}

/* Says that rows have no room for a type that is asked for, if so. */
static bool say_other_type(const char *path, uint32_t cols, int bits)
{
    const uint16_t kind = moe_bits_kind(bits);
    if (!kind ||
        moe_quant_layout_of(o.convert.method, bits, cols, o.convert.group, MOE_LAYOUT_BF16).kind ==
            kind)
        return false;
    fprintf(stderr,
            "%s: rows of %" PRIu32 " columns are too narrow for %s: they have %d bits by hqq\n",
            path, cols, moe_layout_name(kind), moe_bits_width(bits));
    return true;
}

/* The same of all types and matrices, once. */
static void say_other_types(const char *path, const struct moe_pack *pack)
{
    for (uint32_t i = 0; i < moe_pack_n_classes(pack); i++) {
        const struct moe_expert_class *class_ = moe_pack_class_at(pack, i);
        for (uint32_t j = 0; j < class_->n_matrices; j++)
            for (int v = 0; v < o.convert.n_experts; v++) {
                const struct moe_class_matrix *m = &class_->matrices[j];
                const struct moe_bits bits = o.convert.experts[v];
                if (m->role <= MOE_ROLE_DOWN &&
                    say_other_type(path, m->cols,
                                   m->role == MOE_ROLE_DOWN ? bits.down : bits.gate_up))
                    return;
            }
    }
    for (uint32_t i = 0; i < moe_pack_n_tensors(pack); i++) {
        const struct moe_pack_tensor *t = moe_pack_tensor_at(pack, i);
        if (moe_layout_is_affine(t->layout.kind) &&
            say_other_type(path, t->cols, o.convert.dense_bits))
            return;
    }
}

/* Opens the new pack, which is a first check of it, and prints a summary. */
static int say_result(const char *path, const struct moe_convert_report *report,
                      const struct moe_buf *note, double seconds)
{
    struct moe_err err;
    struct moe_pack_summary *summary;
    struct moe_buf text = {0};
    char bytes[32];
    int status;
    MOE_STEP(moe_pack_summary_open(&summary, path, &err));
    path = shown(path);
    moe_show_pack_line(summary, &text);
    if (!cli_quiet && text.data)
        fprintf(stderr, "%s: %s: %s, %.1f s\n", path, (const char *)text.data,
                moe_format_bytes(report->pack_bytes, bytes), seconds);
    if (!cli_quiet && o.measured && rounded(report))
        fprintf(stderr, "%s: rounded by %s, by which %s was made; --method names another\n", path,
                o.convert.method->name, o.maps.items[0]);
    if (!cli_quiet && cli_given("dense") && o.map_dense && o.map_dense != o.convert.dense_bits) {
        char chosen[MOE_WIDTH_BYTES], named[MOE_WIDTH_BYTES];
        fprintf(stderr,
                "%s: a dense part at %s, as --dense says; %s chose %s for it, and its losses are "
                "of that\n",
                path, moe_format_width(o.convert.dense_bits, named), o.maps.items[0],
                moe_format_width(o.map_dense, chosen));
    }
    if (!cli_quiet && cli_given("experts") && moe_pack_n_experts(summary->pack) == 0)
        fprintf(
            stderr,
            "%s: a model without experts, for which --experts changes nothing: --dense%s rounds "
            "it\n",
            path, o.synthesize ? "" : " or --target");
    if (!cli_quiet && cli_given("experts") && (o.synthesize || rounded(report)))
        say_narrow(path, summary->pack);
    if (!cli_quiet)
        say_other_types(path, summary->pack);
    if (!cli_quiet && note->data)
        fprintf(stderr, "%s: %.*s\n", path, (int)note->size, (const char *)note->data);
    if (!cli_quiet && report->n_missing)
        fprintf(stderr, "%s: %" PRIu32 " %s in no shard, or damaged there: rounded here\n", path,
                report->n_missing,
                report->n_missing == 1 ? "copy of an expert was" : "copies of experts were");
    if (!cli_quiet && report->n_kept_experts + report->n_kept_matrices)
        fprintf(stderr,
                "%s: %" PRIu32 " copies of experts and %" PRIu32 " other matrices were "
                "there already\n",
                path, report->n_kept_experts, report->n_kept_matrices);
    if (cli_verbose)
        say_output_errors(path, report);
    if (!cli_quiet)
        say_source(path, report);
out:
    moe_buf_release(&text);
    moe_pack_summary_close(summary);
    /* The pack is in place: for want of memory it is not looked at, and no worse. */
    return status == MOE_OK || status == MOE_ERR_MEMORY ? CLI_DONE : cli_error(&err);
}

/* A shard is a file of experts, no pack. */
static int say_shard(const struct moe_convert_report *report, double seconds)
{
    const uint32_t i = o.convert.shard, n = o.convert.n_shards;
    if (!cli_quiet)
        fprintf(stderr,
                "%s.%" PRIu32 "-of-%" PRIu32 ": %" PRIu64 " weights of experts, %.1f s; once all "
                "shards are there, the same command with --join %" PRIu32 " makes the pack\n",
                shown(o.out), i, n, report->expert_weights, seconds, n);
    return CLI_DONE;
}

/* `source` is not a checkpoint, and there is no -o. */
static int say_not_a_checkpoint(const char *source)
{
    struct moe_err err;
    uint64_t size;
    int fd = moe_file_open(source, &size, &err);
    if (fd < 0)
        return cli_error(&err);
    char magic[4] = {0};
    int status = MOE_OK;
    if (size < 4 || moe_file_pread(fd, source, magic, 4, 0, &err) != MOE_OK ||
        memcmp(magic, "MOEP", 4) != 0)
        status = moe_file_refuse(fd, source, "a checkpoint or an expert pack", &err);
    close(fd);
    return status != MOE_OK ? cli_error(&err)
                            : cli_misuse("%s: a file; re-packing a pack needs -o", source);
}

/* Takes a method that a map names, of `what`, unless options name one; what a method that looks at
 * texts of its own does without any. */
static int take_method(const struct moe_quant_method *method, uint32_t group, const char *what,
                       struct moe_err *err)
{
    const bool named = cli_given("method");
    if (!named && method->compensates && !method->trellis && o.texts.n == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: its %s rounded by %s: --method %s --text FILE, or another --method",
                        o.maps.items[0], what, method->name, method->name);
    if (!named)
        o.convert.method = method;
    if (!cli_given("group") && !method->per_row)
        o.convert.group = group;
    return MOE_OK;
}

/* The method by which the experts of a map's choice were rounded; NULL: none, or an older map.
 * *several: more than one, or mixed. */
static const struct moe_quant_method *method_of_experts(const struct moe_map *map, bool *several)
{
    const char *found = NULL;
    bool used[MOE_MAX_VARIANTS] = {0};
    *several = false;
    for (uint64_t i = 0; i < (uint64_t)map->n_layers * map->n_experts; i++)
        used[map->choice.variant[i]] = true;
    for (uint32_t v = 0; v < map->n_variants; v++) {
        const char *name = map->methods[v];
        struct moe_bits bits;
        const bool types = moe_parse_bits(map->variants[v], &bits) && moe_bits_kind(bits.gate_up) &&
                           moe_bits_kind(bits.down);
        if (!used[v] || types || !name[0] || strcmp(name, "copy") == 0 ||
            strcmp(name, "carried") == 0)
            continue;
        *several = *several || !moe_quant_method_find(name) || (found && strcmp(found, name) != 0);
        found = name;
    }
    return found ? moe_quant_method_find(found) : NULL;
}

/* What options leave open is rounded as it was measured: experts, and fewer bits of the dense part.
 * A pack that has the experts need not round any, so that nothing is refused because of them. */
static int take_methods(const struct moe_map *map, bool checkpoint, struct moe_err *err)
{
    const bool open = !cli_given("method") && !cli_given("group");
    const int bits = (int)map->choice.dense_bits;
    const bool lowers = !cli_given("dense") && map->choice.dense_bits != map->pack_dense_bits &&
                        (!moe_bits_kind(bits) || moe_quant_method_of(NULL, bits)->compensates);
    bool several;
    const struct moe_quant_method *experts = method_of_experts(map, &several),
                                  *dense = moe_quant_method_find(map->dense_method);
    if (open && checkpoint && (several || (experts && lowers && dense && dense != experts)))
        return moe_fail(
            err, MOE_ERR_USAGE,
            "%s: not all that it chose was rounded by one method, as all of a checkpoint "
            "is: name one by --method, or convert the pack that it was made on",
            o.maps.items[0]);
    if (open && experts && !several) {
        struct moe_err why;
        const int status = take_method(experts, map->expert_group, "experts were", &why);
        if (status != MOE_OK && checkpoint)
            return moe_fail(err, status, "%s", why.text);
        o.measured = status == MOE_OK;
    }
    return lowers && dense ? take_method(dense, map->dense_group, "dense part was", err) : MOE_OK;
}

/* Reads --map. Its variant, its bitwidth of the dense part and how that and the experts were
 * rounded hold unless options name others. free() out->bits. */
static int take_map(struct moe_expert_map *out, bool checkpoint, struct moe_err *err)
{
    struct moe_map *map = NULL;
    int status;
    MOE_STEP(moe_map_read(&map, o.maps.items[0], err));
    MOE_STEP(moe_map_bits(out, map, o.maps.items[0], err));
    if (!cli_given("experts"))
        o.convert.experts[0] = (struct moe_bits){0};
    o.map_dense = (int)map->choice.dense_bits;
    if (!cli_given("dense") && o.map_dense) {
        o.convert.dense_bits = o.map_dense;
        o.convert.dense_of_map = true;
        o.convert.own_dense = false;
    }
    MOE_STEP(take_methods(map, checkpoint, err));
out:
    o.convert.map = out;
    moe_map_free(map);
    return status;
}

/* Reads several maps, which the pack keeps beside all its variants. */
static int read_maps(struct moe_map_file files[MOE_PACK_MAX_MAPS],
                     struct moe_map *maps[MOE_PACK_MAX_MAPS], struct moe_err *err)
{
    if (o.maps.n > MOE_PACK_MAX_MAPS)
        return moe_fail(err, MOE_ERR_USAGE, "at most %d maps", MOE_PACK_MAX_MAPS);
    for (int i = 0; i < o.maps.n; i++) {
        MOE_TRY(moe_map_read(&maps[i], o.maps.items[i], err));
        files[i] = (struct moe_map_file){maps[i], o.maps.items[i]};
    }
    o.convert.maps = files;
    o.convert.n_maps = (uint32_t)o.maps.n;
    return MOE_OK;
}

/* Whether texts are taken that nobody named: best is asked for, and something is to be rounded. */
static bool takes_bundled(bool checkpoint)
{
    static const char *const asking[] = {"experts", "dense", "bits", "target", "map"};
    bool asked = checkpoint;
    for (size_t i = 0; i < sizeof asking / sizeof asking[0]; i++)
        asked = asked || cli_given(asking[i]);
    return asked && o.maps.n <= 1 && o.convert.method->trellis && !cli_given("text");
}

/* Whether texts go with the method, which a map may have named. MOE_ERR_USAGE. */
static int check_texts(bool checkpoint, struct moe_err *err)
{
    const struct moe_quant_method *method = o.convert.method;
    const bool long_run = o.convert.keeps || o.convert.n_shards || o.convert.n_joined;
    if (o.texts.n > 0 && !method->compensates)
        return moe_fail(err, MOE_ERR_USAGE, "--text goes with --method best or gptq");
    if (o.texts.n == 0 && method->compensates && !method->trellis)
        return moe_fail(err, MOE_ERR_USAGE, "--method %s needs texts: --text FILE", method->name);
    if (checkpoint && long_run && o.texts.n == 0 && (!method->trellis || cli_given("text")))
        return moe_fail(err, MOE_ERR_USAGE,
                        "--resume, --shard and --join are for packs, and for checkpoints with "
                        "texts: %s",
                        method->trellis ? "leave out --text none" : "--method best takes them");
    return MOE_OK;
}

/* Has the bundled texts in a file without a name, which ends with the process. */
static int open_bundled(char path[MOE_DESCRIPTOR_PATH], struct moe_err *err)
{
    const size_t n = strlen(bundled_texts);
    const int fd = memfd_create("bundled texts", MFD_CLOEXEC);
    if (fd < 0 || write(fd, bundled_texts, n) != (ssize_t)n)
        return moe_fail(err, MOE_ERR_IO, "the bundled texts: no file in memory for them");
    snprintf(path, MOE_DESCRIPTOR_PATH, "/proc/self/fd/%d", fd);
    return MOE_OK;
}

static int convert(const char *source)
{
    char name[MOE_SOURCE_NAME_BYTES + sizeof ".moe"];
    struct moe_convert_report report;
    struct moe_expert_map map = {0};
    struct moe_map *maps[MOE_PACK_MAX_MAPS] = {0};
    struct moe_map_file files[MOE_PACK_MAX_MAPS];
    struct moe_err err;
    bool checkpoint = moe_path_is_directory(source) || moe_gguf_is(source);
    if (!checkpoint && !o.out)
        return say_not_a_checkpoint(source);
    if (o.maps.n > 1 && (checkpoint || cli_given("experts") || cli_given("bits")))
        return cli_misuse(
            "several maps go into a copy of a pack, with all of its bits: moe-quantize "
            "--experts 8,4,2 makes one");
    if (!o.out) {
        moe_convert_source_name(source, name);
        strcat(name, ".moe");
        o.out = name;
    }
    /* A quantized checkpoint keeps what no option changes; so does a pack. */
    o.convert.own_experts =
        !cli_given("experts") && !cli_given("bits") && !cli_given("target") && o.maps.n != 1;
    o.convert.own_dense = !cli_given("dense") && !cli_given("target");
    if (cli_given("target") && !cli_given("dense"))
        o.convert.dense_bits = 0;
    if (!checkpoint && o.convert.own_experts)
        o.convert.n_experts = 0;
    if (!checkpoint && o.convert.own_dense)
        o.convert.dense_bits = 0;
    o.convert.zstd_level = (int)o.zstd_level;
    o.convert.progress = cli_progress();
    cli_catch_termination(); /* an unfinished pack must not remain */

    double began = moe_seconds();
    char path[MOE_DESCRIPTOR_PATH];
    const char *const texts = path;
    struct moe_left_out left_out[2] = {{0}};
    struct moe_inputs_options inputs = {.texts = o.texts.items,
                                        .n_texts = (uint32_t)o.texts.n,
                                        .max_tokens = o.max_tokens,
                                        .max_windows = o.max_windows,
                                        .progress = cli_progress(),
                                        .left_out = left_out};
    struct moe_buf note = {0};
    int status = o.maps.n > 1    ? read_maps(files, maps, &err)
                 : o.maps.n == 1 ? take_map(&map, checkpoint, &err)
                                 : MOE_OK;
    if (status == MOE_OK)
        status = check_texts(checkpoint, &err);
    if (status == MOE_OK && takes_bundled(checkpoint)) {
        inputs = (struct moe_inputs_options){
            .texts = &texts, .n_texts = 1, .progress = cli_progress(), .bundled = true};
        status = open_bundled(path, &err);
    }
    if (status == MOE_OK)
        status = inputs.n_texts > 0 ? moe_convert_error_aware(source, checkpoint, o.out, &o.convert,
                                                              &inputs, &report, &note, &err)
                 : checkpoint ? moe_convert_checkpoint(source, o.out, &o.convert, &report, &err)
                              : moe_convert_pack(source, o.out, &o.convert, &report, &err);
    cli_progress_done();
    free(map.bits);
    for (int i = 0; i < MOE_PACK_MAX_MAPS; i++)
        moe_map_free(maps[i]);
    if (status == MOE_OK) {
        offline_note_left_out(&left_out[0], "--max-windows N takes more of each");
        offline_note_left_out(&left_out[1], "at most 32768 are taken, evenly from all windows");
    }
    status = status != MOE_OK         ? cli_error(&err)
             : o.convert.n_shards > 0 ? say_shard(&report, moe_seconds() - began)
                                      : say_result(o.out, &report, &note, moe_seconds() - began);
    moe_buf_release(&note);
    return status;
}

static int synthesize(void)
{
    char name[MOE_SOURCE_NAME_BYTES + sizeof ".moe"];
    struct moe_convert_report report;
    struct moe_err err;
    const struct moe_buf note = {0};
    const struct moe_synthesize_options wanted = {
        .convert = &o.convert, .seed = o.seed, .sparse = o.sparse};
    if (!o.out) {
        moe_synthesize_name(o.synthesize, name);
        strcat(name, ".moe");
        o.out = name;
    }
    o.convert.progress = cli_progress();
    cli_catch_termination();
    double began = moe_seconds();
    int status = moe_synthesize(o.synthesize, o.out, &wanted, &report, &err);
    cli_progress_done();
    return status == MOE_OK ? say_result(o.out, &report, &note, moe_seconds() - began)
                            : cli_error(&err);
}

/* -1, or the exit status after a message. */
static int check_synthesize(int n_args)
{
    if (!o.synthesize)
        return -1;
    return n_args ? cli_misuse("option --synthesize takes a description, and no checkpoint or pack")
                  : -1;
}

int main(int argc, char **argv)
{
    char **args;
    int n_args;
    o.convert.method = moe_quant_method_find("blocks");
    int status = cli_parse(&program, argc, argv, &args, &n_args);
    if (status >= 0)
        return status;
    if (!cli_given("method") && cli_given("group")) /* blocks have their own */
        o.convert.method = moe_quant_method_find("hqq");
    status = check_synthesize(n_args);
    if (status >= 0)
        return status;
    if (o.synthesize)
        return cli_finish(synthesize());
    for (int i = 0; i < 2; i++) {
        static const char *const shared[] = {"bits", "target"};
        if (cli_given(shared[i]) && (cli_given("experts") || o.maps.n))
            return cli_misuse("--%s chooses the bits of each expert; leave out %s", shared[i],
                              o.maps.n ? "--map" : "--experts");
        if (cli_given(shared[i]) && !o.convert.method->trellis)
            return cli_misuse("--%s goes with --method best", shared[i]);
    }
    if (cli_given("target") && o.zstd_level)
        return cli_misuse("--target counts what is not compressed; leave out --zstd");
    for (int i = 0; i < o.texts.n; i++) {
        if (strcmp(o.texts.items[i], "none") == 0 && o.texts.n > 1)
            return cli_misuse("--text none is for no texts at all; a file of that name is ./none");
    }
    if (o.texts.n == 1 && strcmp(o.texts.items[0], "none") == 0)
        o.texts.n = 0;
    for (int i = 0; i < 2; i++) {
        static const char *const cutting[] = {"max-tokens", "max-windows"};
        if (o.texts.n == 0 && cli_given(cutting[i]))
            return cli_misuse("--%s cuts texts; leave it out with --text none", cutting[i]);
    }
    if (o.texts.n == 0 && cli_given("text") && (cli_given("bits") || cli_given("target")))
        return cli_misuse("--%s shares bits out by texts; leave out --text none",
                          cli_given("bits") ? "bits" : "target");
    if (n_args != 1)
        return cli_misuse(n_args ? "one checkpoint or pack at a time"
                                 : "no checkpoint or pack given");
    const char *source = args[0];
    status = kept_model_resolve(&source);
    if (status >= 0)
        return status;
    return cli_finish(o.list ? list(source) : o.verify ? verify(source) : convert(source));
}
