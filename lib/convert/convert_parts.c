#define _XOPEN_SOURCE 700 /* realpath */
#include "convert/convert_parts.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

/* ---- Names ---- */

/* The last component of a path that has one: not ".", ".." or "/". */
static bool base_name(const char *path, char *out, size_t room)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    size_t n = end - begin;
    if (n == 0 || n >= room || (n <= 2 && strncmp(path + begin, "..", n) == 0))
        return false;
    memcpy(out, path + begin, n);
    out[n] = '\0';
    if (n > 5 && strcmp(out + n - 5, ".gguf") == 0)
        out[n - 5] = '\0';
    return true;
}

void moe_convert_source_name(const char *path, char out[MOE_SOURCE_NAME_BYTES])
{
    char resolved[PATH_MAX];
    if (base_name(path, out, MOE_SOURCE_NAME_BYTES))
        return;
    if (!realpath(path, resolved) || !base_name(resolved, out, MOE_SOURCE_NAME_BYTES))
        strcpy(out, "model");
}

/* ---- Options ---- */

static bool better(const struct convert_variant *a, const struct convert_variant *b)
{
    return a->rank != b->rank ? a->rank > b->rank : a->bits.gate_up > b->bits.gate_up;
}

static int check_bits(const struct moe_convert_options *options, int bits, struct moe_err *err)
{
    if (bits == 32 || bits == 16)
        return MOE_OK;
    if (moe_quant_layout(options->method, bits, options->group, MOE_LAYOUT_BF16).kind ==
        MOE_LAYOUT_NONE)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%d bits in groups of %" PRIu32 " with method %s cannot be stored (groups "
                        "are 32, 64 or a multiple of 64)",
                        bits, options->group, options->method->name);
    return MOE_OK;
}

/* Insertion sort, best first: there are at most eight. */
static int add_variant(struct converter *c, struct moe_bits bits, int option, struct moe_err *err)
{
    int at = c->n_variants;
    struct convert_variant variant = {bits, moe_bits_sum(bits, !c->no_gate), option};
    if (bits.down == 0)
        variant.rank = convert_map_rank(c->options->map, !c->no_gate, NULL);
    for (int i = 0; i < c->n_variants; i++)
        if (moe_bits_equal(c->variants[i].bits, bits)) {
            char name[16];
            moe_format_bits(bits, name);
            return moe_fail(err, MOE_ERR_USAGE, "experts at %s bits are asked for twice", name);
        }
    while (at > 0 && better(&variant, &c->variants[at - 1])) {
        c->variants[at] = c->variants[at - 1];
        at--;
    }
    c->variants[at] = variant;
    c->n_variants++;
    return MOE_OK;
}

static int check_expert_bits(const struct moe_convert_options *options, struct moe_bits bits,
                             struct moe_err *err)
{
    int status = check_bits(options, bits.gate_up, err);
    return status == MOE_OK ? check_bits(options, bits.down, err) : status;
}

/* A map must be given when a variant asks for it, and only then. */
static int check_map(const struct moe_convert_options *options, struct moe_err *err)
{
    const struct moe_expert_map *map = options->map;
    bool wanted = false;
    for (int i = 0; i < options->n_experts; i++)
        wanted = wanted || options->experts[i].down == 0;
    if (wanted && !map)
        return moe_fail(err, MOE_ERR_USAGE,
                        "experts at the bits of a map are asked for, but no map is given (--map)");
    if (map && !wanted)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a map is given, but the variants asked for do not name '%s'",
                        map->name, MOE_MAP_VARIANT);
    int status = MOE_OK;
    for (uint64_t i = 0; map && i < (uint64_t)map->n_layers * map->n_experts && status == MOE_OK;
         i++)
        if (map->bits[i].down != 0)
            status = check_expert_bits(options, map->bits[i], err);
    return status;
}

int convert_start(struct converter *c, const struct moe_convert_options *options, bool strict,
                  struct moe_err *err)
{
    c->options = options;
    c->n_variants = 0;
    if (strict && (options->n_experts == 0 || options->dense_bits == 0))
        return moe_fail(err, MOE_ERR_USAGE, "the bits of experts and of the dense part are needed");
    if (options->n_experts > CONVERT_MAX_VARIANTS)
        return moe_fail(err, MOE_ERR_USAGE, "at most %d variants of an expert can be stored",
                        CONVERT_MAX_VARIANTS);
    int status = options->dense_bits ? check_bits(options, options->dense_bits, err) : MOE_OK;
    if (status == MOE_OK)
        status = check_map(options, err);
    for (int i = 0; i < options->n_experts && status == MOE_OK; i++) {
        if (options->experts[i].down != 0)
            status = check_expert_bits(options, options->experts[i], err);
        if (status == MOE_OK)
            status = add_variant(c, options->experts[i], i, err);
    }
    return status;
}

int convert_check_output(const struct converter *c, struct moe_err *err)
{
    static const char *const parts[] = {".safetensors", ".json", ".gguf", ".bin"};
    struct stat in, out;
    char target[PATH_MAX]; /* where links lead */
    if (stat(c->out_path, &out) != 0)
        return MOE_OK; /* not there yet; creating it will show any other problem */
    /* Renaming the finished file onto a device or a pipe would replace it. */
    if (!S_ISREG(out.st_mode))
        return moe_fail(err, MOE_ERR_IO, "%s: is not a regular file, cannot be replaced",
                        c->out_path);
    if (!realpath(c->out_path, target))
        snprintf(target, sizeof target, "%s", c->out_path);
    size_t n = strlen(target);
    bool same =
        stat(c->source_path, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t m = strlen(parts[i]);
        same = same || (n > m && strcmp(target + n - m, parts[i]) == 0);
    }
    if (same)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: would be overwritten, but is the input or looks like a part of a "
                        "checkpoint; choose another output",
                        c->out_path);
    return MOE_OK;
}

int convert_check_stop(const struct converter *c, struct moe_err *err)
{
    if (moe_progress_stopped(c->options->progress))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "%s: stopped; nothing was written", c->out_path);
    return MOE_OK;
}

int convert_commit(struct converter *c, struct moe_err *err)
{
    int status = convert_check_stop(c, err);
    if (status != MOE_OK)
        return status;
    struct moe_pack_writer *writer = c->writer;
    c->writer = NULL;
    status = moe_pack_commit(writer, err);
    struct moe_err ignored;
    uint64_t size;
    int fd = status == MOE_OK ? moe_file_open(c->out_path, &size, &ignored) : -1;
    if (fd >= 0) {
        c->report->pack_bytes = size;
        close(fd);
    }
    return status;
}

/* ---- Classes, segments, variants ---- */

void convert_place_matrices(struct moe_expert_class *class_)
{
    for (uint32_t s = 0; s < class_->n_segments; s++)
        class_->segment_bytes[s] = 0;
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        struct moe_class_matrix *m = &class_->matrices[i];
        uint64_t *end = &class_->segment_bytes[m->segment];
        m->offset = *end;
        *end += moe_round_up(moe_expert_part_is_bias(convert_part_of(m->role))
                                 ? 4 * (uint64_t)m->rows
                                 : moe_layout_bytes(m->layout, m->rows, m->cols),
                             MOE_ALIGN);
    }
}

int convert_alloc_segments(const struct moe_expert_class *class_, uint8_t **block,
                           uint8_t *segments[MOE_PACK_MAX_SEGMENTS], struct moe_err *err)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < class_->n_segments; s++)
        bytes += class_->segment_bytes[s];
    *block = moe_alloc(bytes, 1, err);
    if (!*block)
        return MOE_ERR_MEMORY;
    uint64_t at = 0;
    for (uint32_t s = 0; s < class_->n_segments; s++) {
        segments[s] = *block + at;
        at += class_->segment_bytes[s];
    }
    return MOE_OK;
}

void convert_describe_variant(const struct converter *c, int variant, struct moe_pack_variant *out)
{
    *out = (struct moe_pack_variant){0};
    struct moe_bits bits = c->variants[variant].bits;
    char name[16];
    moe_format_bits(bits, name);
    int lowest = bits.gate_up < bits.down ? bits.gate_up : bits.down;
    if (bits.down == 0)
        convert_map_rank(c->options->map, !c->no_gate, &lowest);
    snprintf(out->name, sizeof out->name, "%s", name);
    snprintf(out->method, sizeof out->method, "%s",
             lowest >= 16 ? "copy" : c->options->method->name);
}

/* ---- Provenance ---- */

void convert_emit_experts(const struct converter *c, struct moe_emit *e)
{
    moe_emit_open_line_list(e, "experts");
    for (int i = 0; i < c->n_variants; i++)
        moe_emit_text(e, NULL, c->described[i].name);
    moe_emit_close(e);
}

bool convert_writes_map(const struct converter *c)
{
    for (int v = 0; v < c->n_variants; v++)
        if (strcmp(c->described[v].name, MOE_MAP_VARIANT) == 0)
            return true;
    return false;
}

void convert_emit_map(const struct converter *c, struct moe_emit *e)
{
    char hash[17];
    if (!c->options->map || !convert_writes_map(c))
        return;
    convert_map_hash(c->options->map, hash);
    moe_emit_text(e, "map", hash);
}

int convert_put_provenance(struct converter *c, struct moe_emit *e, struct moe_err *err)
{
    int status = moe_emit_end_item(e, err);
    return status == MOE_OK ? moe_pack_put_section(c->writer, MOE_PACK_PROVENANCE, e->out->data,
                                                   e->out->size, err)
                            : status;
}
