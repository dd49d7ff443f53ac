/* What all conversions share: options, checks of the output, encoding rows, provenance, the
 * report. */
#define _XOPEN_SOURCE 700 /* realpath */

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/float16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/convert_internal.h"

/* ---- Names ---- */

/* Takes the last component of a path; false for ".", ".." and "/". */
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

static bool is_better(const struct convert_variant *a, const struct convert_variant *b)
{
    return a->rank != b->rank ? a->rank > b->rank : a->bits.gate_up > b->bits.gate_up;
}

/* own: the bits are the checkpoint's own; not all of these can be rounded to. */
static int check_bits(const struct moe_convert_options *options, int bits, bool own,
                      struct moe_err *err)
{
    enum { NARROW = 1 /* columns: rows that types have no room in get groups */ };
    const int width = moe_bits_width(bits);
    if (bits == 32 || bits == 16 || (own && moe_layout_kind_of_bits(bits) == MOE_LAYOUT_NONE) ||
        moe_quant_layout_of(options->method, bits, NARROW, options->group, MOE_LAYOUT_BF16).kind !=
            MOE_LAYOUT_NONE)
        return MOE_OK;
    if (moe_layout_kind_of_bits(width) == MOE_LAYOUT_NONE)
        return moe_fail(err, MOE_ERR_USAGE, "method %s does not round to %d bit%s; method %s does",
                        options->method->name, bits, bits == 1 ? "" : "s",
                        bits == 1 ? "best" : "blocks");
    return moe_fail(err, MOE_ERR_USAGE,
                    "%d bits in groups of %" PRIu32 " with method %s cannot be stored (groups "
                    "are 32, 64 or a multiple of 64)",
                    width, options->group, options->method->name);
}

/* What an expert of wide rows takes at these bits: bits a weight with scales, gate, up and down
 * added up. Orders variants. */
static double size_rank(const struct converter *c, struct moe_bits bits)
{
    enum { COLS = 256 /* all layouts fill */ };
    const int parts[] = {bits.gate_up, bits.down};
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        const struct moe_layout layout = convert_layout(c, parts[i], COLS, MOE_LAYOUT_BF16);
        const double each =
            layout.kind == MOE_LAYOUT_NONE
                ? moe_bits_width(parts[i]) /* a checkpoint's own */
                : 8.0 * (double)moe_layout_panel_bytes(layout, COLS) / (MOE_PANEL_ROWS * COLS);
        sum += i == 0 && !c->no_gate ? 2 * each : each;
    }
    return sum;
}

/* The mean of that over the map's experts; 0 for a map of nothing. */
static double map_rank(const struct converter *c)
{
    const struct moe_expert_map *map = c->options->map;
    double sum = 0;
    uint64_t n = 0;
    for (uint64_t i = 0; i < (uint64_t)map->n_layers * map->n_experts; i++) {
        if (map->bits[i].down == 0)
            continue;
        sum += size_rank(c, map->bits[i]);
        n++;
    }
    return n ? sum / (double)n : 0;
}

/* Insertion sort, best first: there are at most eight. */
static int add_variant(struct converter *c, struct moe_bits bits, int option, struct moe_err *err)
{
    int at = c->n_variants;
    struct convert_variant variant = {bits, size_rank(c, bits), option};
    if (bits.down == 0)
        variant.rank = map_rank(c);
    for (int i = 0; i < c->n_variants; i++)
        if (moe_bits_equal(c->variants[i].bits, bits)) {
            char name[MOE_BITS_BYTES];
            moe_format_bits(bits, name);
            return moe_fail(err, MOE_ERR_USAGE, "experts at %s%s are asked for twice", name,
                            moe_bits_unit(name));
        }
    while (at > 0 && is_better(&variant, &c->variants[at - 1])) {
        c->variants[at] = c->variants[at - 1];
        at--;
    }
    c->variants[at] = variant;
    c->n_variants++;
    return MOE_OK;
}

int convert_check_bits(const struct moe_convert_options *options, struct moe_bits bits,
                       struct moe_err *err)
{
    MOE_TRY(check_bits(options, bits.gate_up, options->own_experts, err));
    return check_bits(options, bits.down, options->own_experts, err);
}

/* A map must be given when a variant asks for it, and only then. strict: all of its bits must be
 * those of the method. */
static int check_map(const struct moe_convert_options *options, bool strict, struct moe_err *err)
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
    for (uint64_t i = 0; strict && map && i < (uint64_t)map->n_layers * map->n_experts; i++) {
        if (map->bits[i].down != 0)
            MOE_TRY(convert_check_bits(options, map->bits[i], err));
    }
    return MOE_OK;
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
    if (options->dense_bits)
        MOE_TRY(check_bits(options, options->dense_bits, false, err));
    MOE_TRY(check_map(options, strict, err));
    for (int i = 0; i < options->n_experts; i++) {
        if (strict && options->experts[i].down != 0)
            MOE_TRY(convert_check_bits(options, options->experts[i], err));
        MOE_TRY(add_variant(c, options->experts[i], i, err));
    }
    return MOE_OK;
}

int moe_convert_check_experts(const char *source, uint32_t n_experts,
                              const struct moe_convert_options *options, struct moe_err *err)
{
    if (n_experts > 0)
        return MOE_OK;
    if (options->map)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: made for a model with experts, which %s has not; --dense BITS rounds "
                        "its matrices",
                        options->map->name, source);
    if (options->mean_bits > 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has no experts to share bits among; --target SIZE shares them among "
                        "all matrices, --dense BITS gives these the same",
                        source);
    if (options->target_bytes && options->dense_bits)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has no experts to share bits among; leave out --dense, so that its "
                        "other matrices get theirs",
                        source);
    if (options->n_shards || options->n_joined)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: has no experts to round in parts; leave out --%s (--resume goes on "
                        "where an earlier run ended)",
                        source, options->n_shards ? "shard" : "join");
    return MOE_OK;
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
    const bool kept = c->options->keeps || c->options->n_shards > 0;
    if (!moe_progress_stopped(c->options->progress))
        return MOE_OK;
    return moe_fail(err, MOE_ERR_INTERRUPTED, "%s: stopped; %s", c->out_path,
                    kept ? "what is finished is kept, the same command goes on from it"
                         : "nothing was written");
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

void convert_mix_methods(char sum[MOE_METHOD_BYTES], const char *method)
{
    if (sum[0] == '\0' || strcmp(sum, "copy") == 0)
        snprintf(sum, MOE_METHOD_BYTES, "%s", method);
    else if (strcmp(method, "copy") != 0 && strcmp(method, sum) != 0)
        snprintf(sum, MOE_METHOD_BYTES, "mixed");
}

static void add_methods(const struct converter *c, struct moe_bits bits, char sum[MOE_METHOD_BYTES])
{
    const int parts[] = {bits.gate_up, bits.down};
    for (int i = 0; i < 2 && bits.down; i++)
        convert_mix_methods(sum, moe_bits_width(parts[i]) >= 16
                                     ? "copy"
                                     : moe_quant_method_of(c->options->method, parts[i])->name);
}

void convert_add_methods(const struct converter *c, struct moe_bits bits,
                         char sum[MOE_METHOD_BYTES])
{
    const struct moe_expert_map *map = bits.down ? NULL : c->options->map;
    add_methods(c, bits, sum);
    for (uint64_t i = 0; map && i < (uint64_t)map->n_layers * map->n_experts; i++)
        add_methods(c, map->bits[i], sum);
}

void convert_describe_variant(const struct converter *c, int variant, struct moe_pack_variant *out)
{
    *out = (struct moe_pack_variant){0};
    struct moe_bits bits = c->variants[variant].bits;
    char name[MOE_BITS_BYTES];
    moe_format_bits(bits, name);
    snprintf(out->name, sizeof out->name, "%s", name);
    convert_add_methods(c, bits, out->method);
}

/* ---- Provenance ---- */

void convert_emit_dense(const struct converter *c, struct moe_emit *e)
{
    const int bits = c->options->dense_bits;
    if (moe_bits_kind(bits))
        moe_emit_text(e, "dense", moe_layout_name(moe_bits_kind(bits)));
    else
        moe_emit_i64(e, "dense", bits);
}

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
    MOE_TRY(moe_emit_end_item(e, err));
    return moe_pack_put_section(c->writer, MOE_PACK_PROVENANCE, e->out->data, e->out->size, err);
}

/* Encodes rows into matrices of a pack: the layout each gets, and its codes. */

/* Values read and encoded at a time: 32 MiB of f32, or one panel of a very wide matrix. The source
 * fingerprint depends on it: the hash is chained chunk by chunk. */
enum { CHUNK_ITEMS = 8 << 20 };

/* ---- Layouts ---- */

struct moe_layout convert_layout(const struct converter *c, int bits, uint32_t cols,
                                 uint16_t float16_kind)
{
    if (bits == 32)
        return (struct moe_layout){.kind = MOE_LAYOUT_F32};
    if (bits == 16)
        return (struct moe_layout){.kind = float16_kind};
    return moe_quant_layout_of(c->options->method, bits, cols, c->options->group, float16_kind);
}

struct moe_layout convert_own_layout(const struct row_source *source, int bits)
{
    struct moe_layout own = {0};
    if (source->block)
        own = moe_ggml_layout(source->block, moe_bits_width(bits));
    return moe_bits_kind(bits) && own.kind != moe_bits_kind(bits) ? (struct moe_layout){0} : own;
}

bool convert_carries(const struct row_source *source, struct moe_layout layout)
{
    const struct moe_layout own = convert_own_layout(source, moe_layout_bits(layout.kind));
    return own.kind != MOE_LAYOUT_NONE && own.kind == layout.kind && own.group == layout.group;
}

struct moe_layout convert_source_layout(const struct converter *c, const struct row_source *source,
                                        int bits)
{
    const struct moe_layout own = convert_own_layout(source, bits);
    return own.kind != MOE_LAYOUT_NONE
               ? own
               : convert_layout(c, bits, source->cols, source->float16_kind);
}

/* ---- Rows to matrices ---- */

/* Rows that fit into the chunk: whole panels, since a panel is encoded at once, and no more than
 * the source has. */
static int chunk_rows(struct converter *c, const struct row_source *source, uint32_t *rows,
                      struct moe_err *err)
{
    uint64_t panels = CHUNK_ITEMS / ((uint64_t)MOE_PANEL_ROWS * source->cols);
    uint64_t all = ((uint64_t)source->rows + MOE_PANEL_ROWS - 1) / MOE_PANEL_ROWS;
    panels = panels < all ? panels : all;
    *rows = (uint32_t)(panels ? panels : 1) * MOE_PANEL_ROWS;
    uint64_t items = (uint64_t)*rows * source->cols;
    if (items > c->chunk_items) {
        free(c->chunk);
        c->chunk_items = 0;
        c->chunk = moe_alloc(items, sizeof *c->chunk, err);
        if (!c->chunk)
            return MOE_ERR_MEMORY;
        c->chunk_items = items;
    }
    return MOE_OK;
}

/* Reads the rows into the chunk; where a target carries the source's codes over, the codes go into
 * c->blocks too. */
static int read_chunk(struct converter *c, const struct row_source *source, uint32_t first,
                      uint32_t n, bool carried, struct moe_err *err)
{
    if (!carried)
        return convert_read_rows(source, first, n, c->chunk, err);
    uint64_t n_blocks = (uint64_t)n * source->cols / source->block->items;
    uint64_t bytes = n_blocks * source->block->bytes;
    if (bytes > c->blocks_bytes) {
        free(c->blocks);
        c->blocks_bytes = 0;
        c->blocks = moe_alloc(bytes, 1, err);
        if (!c->blocks)
            return MOE_ERR_MEMORY;
        c->blocks_bytes = bytes;
    }
    MOE_TRY(convert_read_blocks(source, first, n, c->blocks, err));
    moe_ggml_decode(source->block, c->blocks, n_blocks, c->chunk);
    return MOE_OK;
}

/* Encodes the chunk, rows [first, first + n) of the source, into one target; adds to *sum. */
static int encode_chunk(struct converter *c, const struct row_source *source,
                        const struct row_target *target, uint32_t first, uint32_t n,
                        struct moe_quant_error *sum, struct moe_err *err)
{
    struct moe_quant_error error = {0};
    const struct moe_quant_method *method = moe_quant_method_of(c->options->method, target->bits);
    uint8_t *out = target->out +
                   moe_layout_panel_bytes(target->layout, source->cols) * (first / MOE_PANEL_ROWS);
    struct moe_err why = {0};
    int status;
    if (convert_carries(source, target->layout)) {
        status =
            moe_ggml_carry_matrix(source->block, c->blocks, n, source->cols, out, &error, &why);
        c->report->carried += (uint64_t)n * source->cols;
    } else {
        status = moe_quantize_matrix(method, target->layout, source->inputs, c->chunk, n,
                                     source->cols, out, &error, &why);
        if (source->quantized && target->layout.kind != MOE_LAYOUT_F32)
            c->report->requantized += (uint64_t)n * source->cols;
    }
    if (status != MOE_OK)
        return moe_fail(err, status,
                        first ? "%s: tensor '%s', rows from %" PRIu32 " on: %s"
                              : "%s: tensor '%s'%.0" PRIu32 ": %s",
                        c->source_path, source->name, first, why.text);
    convert_add_error(sum, &error);
    return MOE_OK;
}

/* Adds a matrix's error to its target's sums, and notes what was rounded again. */
static void add_matrix_error(struct converter *c, const struct row_source *source,
                             const struct row_target *target, const struct moe_quant_error *error)
{
    if (target->error)
        convert_add_error(target->error, error);
    if (!convert_carries(source, target->layout))
        convert_note_rounding(c, source, target->layout.kind, error);
}

int convert_rows(struct converter *c, const struct row_source *source,
                 const struct row_target *targets, int n_targets, struct moe_err *err)
{
    struct moe_quant_error errors[CONVERT_MAX_VARIANTS] = {{0}};
    const uint64_t work = source->bytes * (source->effort ? source->effort : 1);
    uint32_t step;
    bool carried = false;
    for (int i = 0; i < n_targets; i++)
        carried = carried || convert_carries(source, targets[i].layout);
    int status = chunk_rows(c, source, &step, err);
    for (uint32_t first = 0; first < source->rows && status == MOE_OK; first += step) {
        uint32_t n = source->rows - first < step ? source->rows - first : step;
        status = convert_check_stop(c, err);
        if (status == MOE_OK)
            status = read_chunk(c, source, first, n, carried, err);
        if (status == MOE_OK && !source->mat && !c->ahead)
            c->fingerprint = moe_hash64_chain(c->fingerprint, c->chunk,
                                              (uint64_t)n * source->cols * sizeof *c->chunk);
        for (int i = 0; i < n_targets && status == MOE_OK; i++)
            status = encode_chunk(c, source, &targets[i], first, n, &errors[i], err);
        moe_progress_report(c->options->progress, c->doing ? c->doing : "quantizing",
                            c->done + work / source->rows * (first + n), c->total);
    }
    for (int i = 0; i < n_targets && status == MOE_OK; i++)
        add_matrix_error(c, source, &targets[i], &errors[i]);
    c->done += work;
    c->report->source_bytes += source->bytes;
    return status;
}

int convert_put_matrix(struct converter *c, const struct row_source *source,
                       const struct moe_pack_tensor *entry, struct moe_err *err)
{
    struct row_target target = {
        .layout = entry->layout, .error = &c->report->dense_error, .bits = c->options->dense_bits};
    if (c->in_place)
        return moe_pack_put_tensor(c->writer, entry, NULL, err);
    target.out = moe_alloc(moe_layout_bytes(entry->layout, entry->rows, entry->cols), 1, err);
    if (!target.out)
        return MOE_ERR_MEMORY;
    int status = convert_rows(c, source, &target, 1, err);
    if (status == MOE_OK)
        status = moe_pack_put_tensor(c->writer, entry, target.out, err);
    free(target.out);
    return status;
}

int convert_find_inputs(struct converter *c, const struct moe_matrix_name *matrix, int bits,
                        struct row_source *source, struct moe_err *err)
{
    const struct moe_convert_inputs *inputs = c->options->inputs;
    return inputs && moe_bits_width(bits) < 16 && matrix->layer < c->n_layers &&
                   moe_quant_method_of(c->options->method, bits)->compensates
               ? inputs->factor(inputs->ctx, matrix, &source->inputs, err)
               : MOE_OK;
}

int convert_choose_float16(struct converter *c, struct row_source *source, bool *exact,
                           struct moe_err *err)
{
    uint32_t step;
    bool bf16 = true, f16 = true;
    int status;
    MOE_STEP(chunk_rows(c, source, &step, err));
    for (uint32_t first = 0; first < source->rows && (bf16 || f16); first += step) {
        uint32_t n = source->rows - first < step ? source->rows - first : step;
        MOE_STEP(convert_read_rows(source, first, n, c->chunk, err));
        for (uint64_t i = 0; i < (uint64_t)n * source->cols; i++) {
            uint32_t bits = moe_f32_bits(c->chunk[i]);
            bf16 = bf16 && (bits & 0xffff) == 0;
            f16 = f16 && moe_f32_bits(moe_f16_to_f32(moe_f32_to_f16(c->chunk[i]))) == bits;
        }
    }
out:
    source->float16_kind = !bf16 && f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16;
    if (exact)
        *exact = bf16 || f16;
    return status;
}

void convert_release(struct converter *c)
{
    free(c->chunk);
    free(c->blocks);
    c->chunk = NULL;
    c->blocks = NULL;
}

/* What a conversion rounded again, for its report. */

void convert_add_error(struct moe_quant_error *sum, const struct moe_quant_error *more)
{
    sum->sum_squared_error += more->sum_squared_error;
    sum->sum_squared_weight += more->sum_squared_weight;
    sum->output_plain += more->output_plain;
    sum->output_improved += more->output_improved;
}

/* Takes the part of a name that layers and experts share: what follows its last number, without
 * ".weight". "blk.3.ffn_down_exps.weight" is "ffn_down_exps". */
static void kind_of(const char *name, char out[48])
{
    const char *from = name, *end = name + strlen(name);
    for (const char *p = name; *p;) {
        size_t n = strcspn(p, "."), digits = strspn(p, "0123456789");
        const char *next = p[n] ? p + n + 1 : p + n;
        if (n > 0 && digits == n && *next)
            from = next;
        p = next;
    }
    if (end - from > 7 && strcmp(end - 7, ".weight") == 0)
        end -= 7;
    snprintf(out, 48, "%.*s", (int)(end - from), from);
}

/* Finds the entry for that type and kind of layout; without room, the last entry. */
static struct moe_rounding *find_rounding(struct moe_convert_report *report, const char *type,
                                          uint16_t kind)
{
    uint32_t i = 0;
    while (i < report->n_roundings &&
           (strcmp(report->roundings[i].from, type) != 0 || report->roundings[i].kind != kind))
        i++;
    if (i == MOE_ROUNDINGS)
        return &report->roundings[MOE_ROUNDINGS - 1];
    struct moe_rounding *r = &report->roundings[i];
    if (i == report->n_roundings) {
        snprintf(r->from, sizeof r->from, "%s", type);
        r->kind = kind;
        report->n_roundings++;
    }
    return r;
}

void convert_note_rounding(struct converter *c, const struct row_source *source, uint16_t kind,
                           const struct moe_quant_error *error)
{
    char name_of[48];
    uint32_t i = 0;
    if (!c->quantized || !source->type || error->sum_squared_error == 0)
        return;
    struct moe_rounding *r = find_rounding(c->report, source->type, kind);
    convert_add_error(&r->error, error);
    kind_of(source->part ? source->part : source->name, name_of);
    while (i < r->n_names && strcmp(r->names[i].name, name_of) != 0)
        i++;
    if (i == MOE_ROUNDED_NAMES) {
        r->n_others++;
        return;
    }
    struct moe_rounded_name *name = &r->names[i];
    uint64_t whole = moe_hash64(source->name, strlen(source->name));
    if (i == r->n_names) {
        snprintf(name->name, sizeof name->name, "%s", name_of);
        r->n_names++;
    }
    /* the experts of a layer come one after the other */
    if (name->n == 0 || name->last != whole)
        name->n++;
    name->last = whole;
}
