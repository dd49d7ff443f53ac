/*
 * Opening packs; and checkpoints in place: as the packs that conversion would make of them, with a
 * directory in memory, and matrices that are arranged out of the checkpoint's files when they are
 * read.
 */
#define _POSIX_C_SOURCE 200809L /* posix_fadvise, st_mtim */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/mem.h"
#include "base/par.h"
#include "fmt/gguf.h"
#include "pack/convert_internal.h"
#include "pack/pack_internal.h"

/* ---- The checkpoint's files ---- */

/* An open file, as it was when it was opened. */
struct source_file {
    uint64_t bytes;
    struct timespec changed;
};

/* Where a part of an expert begins; the rest is that of the layer's first expert. */
struct part_place {
    const struct moe_tensor *tensor;
    uint64_t first_line;
};

/* Which tensor of the model a tensor of the pack is. */
struct dense_place {
    enum moe_tensor_role role;
    uint32_t layer;
};

struct in_place {
    struct pack_in_place base;
    const struct moe_pack *pack; /* which owns this */
    struct checkpoint_source *source;
    const struct convert_source *from;
    struct source_file *files;
    struct dense_place *dense; /* of the pack's tensors */
    struct row_source *parts;  /* [layers, those that draft too][MOE_E_N_PARTS]: first experts' */
    struct part_place *places; /* [stored experts][MOE_E_N_PARTS] */
    uint64_t reading[2];       /* what a thread takes that reads dense weights, experts */
};

static int stamp(const struct moe_checkpoint *ck, int file, struct source_file *out,
                 struct moe_err *err)
{
    const char *path;
    char text[128];
    struct stat st;
    if (fstat(moe_checkpoint_file(ck, file, &path), &st) != 0)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot be looked at: %s", path,
                        moe_errno_text(errno, text, sizeof text));
    *out = (struct source_file){(uint64_t)st.st_size, st.st_mtim};
    return MOE_OK;
}

/* Fails if the file was written to since it was opened. */
static int check_unchanged(const struct in_place *p, int file, struct moe_err *err)
{
    const struct source_file *then = &p->files[file];
    struct source_file now;
    const char *path;
    MOE_TRY(stamp(p->from->checkpoint, file, &now, err));
    if (now.bytes == then->bytes && now.changed.tv_sec == then->changed.tv_sec &&
        now.changed.tv_nsec == then->changed.tv_nsec)
        return MOE_OK;
    moe_checkpoint_file(p->from->checkpoint, file, &path);
    return moe_fail(err, MOE_ERR_IO, "%s: has changed since it was opened; start again", path);
}

static int arranger_fd(const void *ctx, uint32_t file, const char **path)
{
    const struct in_place *p = ctx;
    return moe_checkpoint_file(p->from->checkpoint, (int)file, path);
}

/* ---- Rows into panels ---- */

/* What is wrong with a row of weights: MOE_ERR_FORMAT. */
static int fail_not_finite(const struct row_source *source, uint32_t row, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: tensor '%s': weights of row %" PRIu32 " are not finite (file damaged?)",
                    moe_checkpoint_dir(source->checkpoint), source->name, row);
}

/* Stores n floats, from column `first` on, of row r of a panel, `stride` bytes apart; false: not
 * all are finite. */
static bool store_floats(uint8_t *panel, uint16_t kind, uint32_t first, uint32_t r,
                         const uint8_t *from, uint64_t stride, uint32_t n)
{
    bool finite = true;
    if (kind == MOE_LAYOUT_F32) {
        uint8_t *to = panel + 4 * ((uint64_t)first * MOE_PANEL_ROWS + r);
        for (uint32_t c = 0; c < n; c++, from += stride, to += 4 * MOE_PANEL_ROWS) {
            uint32_t value;
            memcpy(&value, from, sizeof value);
            memcpy(to, &value, sizeof value);
            finite &= (value & 0x7f800000) != 0x7f800000;
        }
        return finite;
    }
    uint32_t all = kind == MOE_LAYOUT_F16 ? 0x7c00 : 0x7f80;
    uint8_t *to = panel + 2 * ((uint64_t)first * MOE_PANEL_ROWS + r);
    for (uint32_t c = 0; c < n; c++, from += stride, to += 2 * MOE_PANEL_ROWS) {
        uint16_t value;
        memcpy(&value, from, sizeof value);
        memcpy(to, &value, sizeof value);
        finite &= (value & all) != all;
    }
    return finite;
}

/* Stores n blocks of each of n_rows rows, from block `first` on, into a panel in which they are
 * rows r, r + 1, ... Returns how many rows were before the first one that is not finite. */
static uint32_t store_blocks(const struct row_source *source, struct moe_layout layout,
                             const uint8_t *const *rows, uint32_t n_rows, uint32_t first,
                             uint32_t n, uint32_t r, uint8_t *panel)
{
    enum { AT_ONCE = 1024 };
    const struct moe_ggml_type *type =
        source->block ? source->block : moe_dtype_block(source->tensor->dtype);
    float values[AT_ONCE];
    uint32_t column = first * type->items, some;
    if (!moe_layout_is_float(layout.kind))
        return moe_ggml_carry_blocks(type, rows, n_rows, first, n, source->cols, r, panel);
    for (uint32_t k = 0; k < n_rows; k++) {
        bool finite = true;
        if (type->kind == layout.kind)
            finite = store_floats(panel, layout.kind, column, r + k, rows[k], type->bytes, n);
        for (uint32_t done = 0; type->kind != layout.kind && done < n; done += some) { /* to F32 */
            some = n - done < AT_ONCE / type->items ? n - done : AT_ONCE / type->items;
            moe_ggml_decode(type, rows[k] + (uint64_t)done * type->bytes, some, values);
            finite &= store_floats(panel, layout.kind, column + done * type->items, r + k,
                                   (const uint8_t *)values, sizeof *values, some * type->items);
        }
        if (!finite)
            return k;
    }
    return n_rows;
}

/* Where a matrix lies in what was read of its ranges: `blocks`, or, of MXFP4 in two tensors, its
 * values and exponents, from number `first` of the tensor on. */
struct read_part {
    const uint8_t *blocks, *exponents;
    uint64_t first;
};

/* The same for whole rows, from `row` on. Blocks that do not lie together are put together first.
 */
static uint32_t store_rows(const struct row_source *source, struct moe_layout layout,
                           const struct read_part *read, uint32_t row, uint32_t n_rows,
                           uint8_t *panel)
{
    enum { PAIRS = 16, BLOCK = 17, MADE = 16 * BLOCK };
    const struct moe_ggml_type *type = moe_dtype_block(source->tensor->dtype);
    const uint64_t in_line = source->width / type->items;
    const uint32_t n = source->cols / type->items;
    const uint32_t at_once = type->factor ? 1 : read->exponents ? MADE / BLOCK : n;
    uint8_t made[MOE_PANEL_ROWS][MADE];
    const uint8_t *rows[MOE_PANEL_ROWS];
    for (uint32_t first = 0, some; first < n; first += some) {
        some = n - first < at_once ? n - first : at_once;
        for (uint32_t k = 0; k < n_rows; k++) {
            uint64_t at = convert_source_line(source, row + k) * in_line - read->first;
            uint8_t *to = made[k];
            rows[k] = read->exponents || type->factor ? to : read->blocks + at * type->bytes;
            if (type->factor)
                moe_ggml_row_blocks(
                    type, read->blocks + at / in_line * moe_ggml_row_bytes(type, source->width),
                    first, 1, to);
            for (uint64_t b = at + first; read->exponents && b < at + first + some; b++) {
                *to = read->exponents[b];
                moe_ggml_from_pairs(read->blocks + PAIRS * b, PAIRS, to + 1);
                to += BLOCK;
            }
        }
        uint32_t finite =
            store_blocks(source, layout, rows, n_rows, first, some, row % MOE_PANEL_ROWS, panel);
        if (finite < n_rows)
            return finite;
    }
    return n_rows;
}

/* Stores a row that is a column of the tensor: plain floats. False: not all are finite. */
static bool store_column(const struct row_source *source, struct moe_layout layout,
                         const struct read_part *read, uint32_t row, uint8_t *panel)
{
    uint64_t item = moe_dtype_block(source->tensor->dtype)->bytes;
    uint64_t line = source->first_line + row / source->block_rows * (uint64_t)source->stride;
    uint64_t column = source->first_column + (uint64_t)source->step * (row % source->block_rows);
    return store_floats(panel, layout.kind, 0, row % MOE_PANEL_ROWS,
                        read->blocks + (line * source->width + column - read->first) * item,
                        source->width * item, source->cols);
}

/* Arranges panels [begin, end) of a matrix out of what was read. */
static int arrange_panels(const struct row_source *source, struct moe_layout layout,
                          const struct read_part *read, uint32_t begin, uint32_t end,
                          uint8_t *matrix, struct moe_err *err)
{
    uint64_t panel_bytes = moe_layout_panel_bytes(layout, source->cols);
    for (uint32_t row = begin * MOE_PANEL_ROWS; row < end * MOE_PANEL_ROWS && row < source->rows;
         row += MOE_PANEL_ROWS) {
        uint8_t *panel = matrix + row / MOE_PANEL_ROWS * panel_bytes;
        uint32_t left = source->rows - row, n = left < MOE_PANEL_ROWS ? left : MOE_PANEL_ROWS;
        uint32_t finite = 0;
        memset(panel, 0, panel_bytes);
        if (!source->transposed)
            finite = store_rows(source, layout, read, row, n, panel);
        while (source->transposed && finite < n &&
               store_column(source, layout, read, row + finite, panel))
            finite++;
        if (finite < n)
            return fail_not_finite(source, row + finite, err);
    }
    return MOE_OK;
}

/* ---- Whole matrices, read as they are arranged ---- */

struct matrix_job {
    const struct row_source *source;
    struct moe_layout layout;
    uint8_t *out;
    const volatile sig_atomic_t *stop; /* NULL: none */
    int status;
    struct moe_err err;
};

/* Whether the rows are computed out of several tensors. */
static bool is_computed(const struct row_source *source)
{
    struct moe_file_range where[2];
    return moe_checkpoint_locate(source->checkpoint, source->tensor, 0, 1, where) == 0;
}

enum { STRIP = 16 /* panels: of what lies in columns, little would be read at a time */ };

/* Whether rows do not lie as lines: they are columns, or stand side by side in several matrices. */
static bool takes_values(const struct row_source *source)
{
    return source->transposed || source->n_sides;
}

/* Rows to read at a time. */
static uint32_t rows_at_once(const struct row_source *source)
{
    return takes_values(source) || is_computed(source) ? STRIP * MOE_PANEL_ROWS : MOE_PANEL_ROWS;
}

static int go_on(const struct matrix_job *job, struct moe_err *err)
{
    return job->stop && __atomic_load_n(job->stop, __ATOMIC_RELAXED)
               ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
               : MOE_OK;
}

/* Rows that are lines. */
static int read_panels(const struct matrix_job *job, uint32_t begin, uint32_t end,
                       struct moe_err *err)
{
    const struct row_source *source = job->source;
    const struct moe_ggml_type *type = moe_dtype_block(source->tensor->dtype);
    uint64_t panel_bytes = moe_layout_panel_bytes(job->layout, source->cols);
    uint32_t n = source->cols / type->items, in_row = n * type->bytes;
    uint32_t last = end * MOE_PANEL_ROWS < source->rows ? end * MOE_PANEL_ROWS : source->rows;
    uint32_t most = rows_at_once(source), rows;
    uint8_t *blocks = moe_alloc(most, in_row, err);
    int status;
    MOE_STEP(blocks ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t row = begin * MOE_PANEL_ROWS; row < last; row += rows) {
        rows = last - row < most ? last - row : most;
        MOE_STEP(go_on(job, err));
        MOE_STEP(convert_read_blocks(source, row, rows, blocks, err));
        for (uint32_t r = 0, some; r < rows; r += some) {
            const uint8_t *of_row[MOE_PANEL_ROWS];
            some = rows - r < MOE_PANEL_ROWS ? rows - r : MOE_PANEL_ROWS;
            for (uint32_t k = 0; k < some; k++)
                of_row[k] = blocks + (uint64_t)(r + k) * in_row;
            uint8_t *panel = job->out + (row + r) / MOE_PANEL_ROWS * panel_bytes;
            memset(panel, 0, panel_bytes);
            uint32_t finite = store_blocks(source, job->layout, of_row, some, 0, n, 0, panel);
            if (finite < some)
                MOE_STEP(fail_not_finite(source, row + r + finite, err));
        }
    }
out:
    free(blocks);
    return status;
}

/* Rows that are no lines: a strip of them at a time. */
static int read_strips(const struct matrix_job *job, uint32_t begin, uint32_t end,
                       struct moe_err *err)
{
    const struct row_source *source = job->source;
    const uint32_t strip = rows_at_once(source);
    const uint64_t panel_bytes = moe_layout_panel_bytes(job->layout, source->cols);
    float *values = moe_alloc((uint64_t)strip * source->cols, sizeof *values, err);
    int status;
    MOE_STEP(values ? MOE_OK : MOE_ERR_MEMORY);
    uint32_t last = end * MOE_PANEL_ROWS < source->rows ? end * MOE_PANEL_ROWS : source->rows;
    for (uint32_t row = begin * MOE_PANEL_ROWS, n; row < last; row += n) {
        n = last - row < strip ? last - row : strip;
        MOE_STEP(go_on(job, err));
        MOE_STEP(convert_read_rows(source, row, n, values, err));
        for (uint64_t i = 0; i < (uint64_t)n * source->cols; i++) {
            if (!(values[i] - values[i] == 0))
                MOE_STEP(fail_not_finite(source, row + (uint32_t)(i / source->cols), err));
        }
        memset(job->out + row / MOE_PANEL_ROWS * panel_bytes, 0, moe_panels(n) * panel_bytes);
        for (uint32_t i = 0; i < n; i++)
            moe_layout_store_row(job->out, job->layout, source->cols, row + i,
                                 values + (uint64_t)i * source->cols);
    }
out:
    free(values);
    return status;
}

/* Panels [begin, end). */
static int read_some(const struct matrix_job *job, uint32_t begin, uint32_t end,
                     struct moe_err *err)
{
    return (takes_values(job->source) ? read_strips : read_panels)(job, begin, end, err);
}

static void read_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    struct matrix_job *job = ctx;
    struct moe_err err;
    int status = read_some(job, (uint32_t)begin, (uint32_t)end, &err);
    (void)thread;
    if (status != MOE_OK && __atomic_exchange_n(&job->status, status, __ATOMIC_ACQ_REL) == MOE_OK)
        job->err = err;
}

static const volatile sig_atomic_t *stop_of(const struct in_place *p)
{
    return __atomic_load_n(&p->pack->stop, __ATOMIC_RELAXED);
}

static int read_matrix(const struct in_place *p, const struct row_source *source,
                       struct moe_layout layout, uint8_t *out, struct moe_err *err)
{
    struct matrix_job job = {.source = source, .layout = layout, .out = out, .stop = stop_of(p)};
    bool strips = rows_at_once(source) > MOE_PANEL_ROWS;
    moe_par_for(moe_panels(source->rows), strips ? STRIP : 4, read_range, &job);
    if (job.status != MOE_OK && err)
        *err = job.err;
    return job.status;
}

/* ---- Extents ---- */

/* The part of an expert, as conversion finds it. */
static struct row_source part_of(const struct in_place *p, uint32_t stored, int part)
{
    const struct pack_expert *e = &p->pack->experts[stored];
    const struct part_place *place = &p->places[(uint64_t)stored * MOE_E_N_PARTS + part];
    struct row_source source = p->parts[(uint64_t)e->layer * MOE_E_N_PARTS + part];
    source.tensor = place->tensor;
    source.name = place->tensor->name;
    source.first_line = place->first_line;
    return source;
}

/* A stored expert's segment. */
struct stored_segment {
    uint32_t stored, segment;
    const struct moe_expert_class *class_;
};

/* Finds the segment at an offset; false: there is none. Experts lie in their order. */
static bool find_segment(const struct in_place *p, uint64_t offset, struct stored_segment *out)
{
    const struct moe_pack *pack = p->pack;
    uint32_t low = 0, high = pack->n_stored;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pack->experts[middle].extent.segments[0].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0)
        return false;
    const struct moe_expert_extent *e = &pack->experts[low - 1].extent;
    *out = (struct stored_segment){low - 1, 0, &pack->classes[e->class_index]};
    while (out->segment < out->class_->n_segments && e->segments[out->segment].offset != offset)
        out->segment++;
    return out->segment < out->class_->n_segments;
}

/* Blocks of the tensor that the source's rows lie in. */
static void blocks_of(const struct row_source *source, uint64_t *first, uint64_t *n)
{
    uint64_t items = moe_dtype_block(source->tensor->dtype)->items, line, end;
    if (source->transposed) {
        line = source->first_line;
        end = line + source->cols;
    } else {
        line = convert_source_line(source, 0);
        end = convert_source_line(source, source->rows - 1) + 1;
    }
    *first = line * source->width / items;
    *n = (end - line) * source->width / items;
}

/* Adds bytes to the ranges: to one of the same file that they overlap or nearly touch, or as a
 * further one. */
static bool add_range(struct moe_file_range *ranges, uint32_t *n, const struct moe_file_range *more)
{
    enum { NEAR = 2 * MOE_RANGE_ALIGN };
    for (uint32_t i = 0; i < *n; i++) {
        struct moe_file_range *r = &ranges[i];
        uint64_t end = r->offset + r->bytes, more_end = more->offset + more->bytes;
        if (r->file != more->file || more->offset > end + NEAR || r->offset > more_end + NEAR)
            continue;
        r->offset = more->offset < r->offset ? more->offset : r->offset;
        r->bytes = (more_end > end ? more_end : end) - r->offset;
        return true;
    }
    if (*n == MOE_MAX_RANGES)
        return false;
    ranges[(*n)++] = *more;
    return true;
}

/* Without looking at the files. */
static int find_ranges(const struct in_place *p, const struct stored_segment *s,
                       struct moe_file_range *ranges, uint32_t *n, struct moe_err *err)
{
    bool fits = true;
    *n = 0;
    for (uint32_t i = 0; i < s->class_->n_matrices; i++) {
        if (s->class_->matrices[i].segment != s->segment)
            continue;
        struct row_source source =
            part_of(p, s->stored, convert_part_of(s->class_->matrices[i].role));
        struct moe_file_range where[2];
        uint64_t first, blocks;
        blocks_of(&source, &first, &blocks);
        int parts = moe_checkpoint_locate(source.checkpoint, source.tensor, first, blocks, where);
        for (int k = 0; k < parts || k == 0; k++)
            fits &= add_range(ranges, n, &where[k]);
    }
    return fits ? MOE_OK
                : moe_fail(err, MOE_ERR_UNSUPPORTED,
                           "%s: its experts cannot be read as they lie; make a pack with "
                           "'moe-quantize %s'",
                           p->pack->path, p->pack->path);
}

/* Has the system read a source's rows into the page cache. */
static void read_rows_ahead(const struct row_source *source)
{
    const struct moe_tensor *t = source->tensor;
    struct moe_file_range where[2];
    uint64_t first, blocks;
    const char *path;
    if (source->numbers) /* few */
        return;
    blocks_of(source, &first, &blocks);
    int parts = moe_checkpoint_locate(source->checkpoint, t, first, blocks, where);
    if (parts == 0) { /* they are computed out of these bytes, and fewer others */
        uint64_t line = convert_source_line(source, 0);
        double begin = (double)line * (double)source->width / (double)t->n_items * (double)t->bytes;
        where[parts++] =
            (struct moe_file_range){(uint32_t)t->file, t->offset + (uint64_t)begin, source->bytes};
    }
    for (int i = 0; i < parts; i++)
        posix_fadvise(moe_checkpoint_file(source->checkpoint, (int)where[i].file, &path),
                      (off_t)where[i].offset, (off_t)where[i].bytes, POSIX_FADV_WILLNEED);
}

/* ... the codes that steps will compute with. */
static void read_ahead(const struct in_place *p, const struct stored_segment *s)
{
    for (uint32_t i = 0; i < s->class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &s->class_->matrices[i];
        struct row_source source = part_of(p, s->stored, convert_part_of(m->role));
        if (m->segment == s->segment && is_computed(&source))
            read_rows_ahead(&source);
    }
}

static int arranger_ranges(const void *ctx, uint64_t name, struct moe_file_range *ranges,
                           uint32_t *n, struct moe_err *err)
{
    const struct in_place *p = ctx;
    struct stored_segment s;
    if (!find_segment(p, name, &s))
        return moe_fail(err, MOE_ERR_USAGE, "%s: no expert is at %" PRIu64, p->pack->path, name);
    MOE_TRY(find_ranges(p, &s, ranges, n, err));
    for (uint32_t i = 0; i < *n; i++)
        MOE_TRY(check_unchanged(p, (int)ranges[i].file, err));
    read_ahead(p, &s);
    return MOE_OK;
}

/* Where bytes of a file are in what was read of the ranges. */
static const uint8_t *find_read(const struct moe_file_range *ranges, uint32_t n,
                                const uint8_t *read, const struct moe_file_range *wanted)
{
    for (uint32_t i = 0; i < n; read += moe_range_read_bytes(&ranges[i++]))
        if (ranges[i].file == wanted->file && ranges[i].offset <= wanted->offset &&
            wanted->offset + wanted->bytes <= ranges[i].offset + ranges[i].bytes)
            return read + (wanted->offset - moe_range_begin(&ranges[i]));
    return NULL;
}

static int arrange_bias(const struct row_source *source, const struct read_part *read, float *out,
                        struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(source->tensor->dtype);
    for (uint32_t i = 0; i < source->rows; i++) {
        uint64_t at = convert_source_line(source, i) - read->first;
        moe_ggml_decode(type, read->blocks + at * type->bytes, 1, &out[i]);
        if (!(out[i] - out[i] == 0))
            return fail_not_finite(source, i, err);
    }
    return MOE_OK;
}

/* Panels that a step arranges: about 32 KiB; of kinds that only codes in several tensors come in, a
 * strip. */
static uint32_t step_panels(const struct moe_class_matrix *m)
{
    if (moe_kind_has_zeros(m->layout.kind) || m->layout.kind == MOE_LAYOUT_NVFP4_T ||
        moe_kind_is_scaled(m->layout.kind))
        return STRIP;
    uint64_t n = (32 << 10) / moe_layout_panel_bytes(m->layout, m->cols);
    return n ? (uint32_t)n : 1;
}

static uint32_t n_steps(const struct moe_class_matrix *m)
{
    uint32_t each = step_panels(m);
    return moe_expert_part_is_bias(convert_part_of(m->role))
               ? 1
               : (moe_panels(m->rows) + each - 1) / each;
}

static int arranger_step(const void *ctx, uint64_t name, const struct moe_file_range *ranges,
                         uint32_t n, const uint8_t *read, uint32_t step, uint8_t *to, bool *more,
                         struct moe_err *err)
{
    const struct in_place *p = ctx;
    const struct moe_class_matrix *m = NULL;
    struct stored_segment s;
    struct moe_file_range where[2];
    struct read_part part = {0};
    uint64_t blocks;
    if (!find_segment(p, name, &s))
        return moe_fail(err, MOE_ERR_USAGE, "%s: no expert is at %" PRIu64, p->pack->path, name);
    *more = false;
    for (uint32_t i = 0; i < s.class_->n_matrices && !*more; i++) {
        const struct moe_class_matrix *next = &s.class_->matrices[i];
        if (next->segment != s.segment)
            continue;
        *more = m != NULL;
        if (!m && step < n_steps(next))
            m = next;
        else if (!m)
            step -= n_steps(next);
    }
    if (!m)
        return MOE_OK;
    *more |= step + 1 < n_steps(m);
    struct row_source source = part_of(p, s.stored, convert_part_of(m->role));
    blocks_of(&source, &part.first, &blocks);
    int parts = moe_checkpoint_locate(source.checkpoint, source.tensor, part.first, blocks, where);
    uint32_t begin = step * step_panels(m), end = begin + step_panels(m);
    end = end < moe_panels(m->rows) ? end : moe_panels(m->rows);
    if (parts == 0) {
        const struct matrix_job job = {
            .source = &source, .layout = m->layout, .out = to + m->offset};
        return read_some(&job, begin, end, err);
    }
    part.blocks = find_read(ranges, n, read, &where[0]);
    part.exponents = parts == 2 ? find_read(ranges, n, read, &where[1]) : NULL;
    if (moe_expert_part_is_bias(convert_part_of(m->role)))
        return arrange_bias(&source, &part, (float *)(void *)(to + m->offset), err);
    return arrange_panels(&source, m->layout, &part, begin, end, to + m->offset, err);
}

static int read_expert(const struct in_place *p, const struct stored_segment *s, uint8_t *to,
                       struct moe_err *err)
{
    for (uint32_t i = 0; i < s->class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &s->class_->matrices[i];
        enum moe_expert_part part = convert_part_of(m->role);
        if (m->segment != s->segment)
            continue;
        struct row_source source = part_of(p, s->stored, part);
        MOE_TRY(check_unchanged(p, source.tensor->file, err));
        MOE_TRY(moe_expert_part_is_bias(part)
                    ? convert_read_vector(p->source, MOE_T_N_ROLES, &source,
                                          (float *)(void *)(to + m->offset), err)
                    : read_matrix(p, &source, m->layout, to + m->offset, err));
    }
    return MOE_OK;
}

/* The tensor whose extent it is; tensors lie in their order, before the experts. */
static uint32_t tensor_at(const struct moe_pack *pack, uint64_t offset)
{
    uint32_t low = 0, high = pack->n_tensors;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (pack->tensors[middle].extent.offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Where a dense tensor comes from; its file is as it was. */
static int find_dense(const struct in_place *p, const struct moe_pack_tensor *t,
                      struct row_source *out, struct moe_err *err)
{
    const struct dense_place *place = &p->dense[t - p->pack->tensors];
    MOE_TRY(convert_find_dense(p->from, place->role, place->layer, out, err));
    return check_unchanged(p, out->tensor->file, err);
}

static int read_extent(struct pack_in_place *in_place, const struct moe_extent *extent, void *to,
                       struct moe_err *err)
{
    const struct in_place *p = (const struct in_place *)in_place;
    uint32_t i = tensor_at(p->pack, extent->offset);
    struct stored_segment s;
    struct row_source source;
    if (i == p->pack->n_tensors || p->pack->tensors[i].extent.offset != extent->offset)
        return find_segment(p, extent->offset, &s)
                   ? read_expert(p, &s, to, err)
                   : moe_fail(err, MOE_ERR_USAGE, "%s: nothing is at %" PRIu64, p->pack->path,
                              extent->offset);
    const struct moe_pack_tensor *t = &p->pack->tensors[i];
    MOE_TRY(find_dense(p, t, &source, err));
    return t->is_vector ? convert_read_vector(p->source, p->dense[i].role, &source, to, err)
                        : read_matrix(p, &source, t->layout, to, err);
}

/* About a MiB, in whole strips; vectors whole. */
static uint32_t part_rows(const struct moe_pack_tensor *t)
{
    enum { PART_BYTES = 1 << 20, LEAST = STRIP * MOE_PANEL_ROWS };
    const uint64_t strip = STRIP * moe_layout_panel_bytes(t->layout, t->cols);
    const uint64_t rows = (1 + PART_BYTES / strip) * LEAST;
    return rows < t->rows && !t->is_vector ? (uint32_t)rows : t->rows;
}

static int read_part(const struct pack_in_place *in_place, const struct moe_pack_tensor *t,
                     uint32_t row, void *to, struct moe_err *err)
{
    const struct in_place *p = (const struct in_place *)in_place;
    const uint32_t left = t->rows - row, each = part_rows(t), n = left < each ? left : each;
    struct row_source source;
    MOE_TRY(find_dense(p, t, &source, err));
    const struct matrix_job job = {
        .source = &source, .layout = t->layout, .out = to, .stop = stop_of(p)};
    return read_some(&job, row / MOE_PANEL_ROWS, row / MOE_PANEL_ROWS + moe_panels(n), err);
}

static struct moe_tokenizer *take_tokenizer(struct pack_in_place *in_place)
{
    return convert_take_tokenizer(((struct in_place *)in_place)->source);
}

static void read_dense_ahead(const struct pack_in_place *in_place, const struct moe_extent *extent)
{
    const struct in_place *p = (const struct in_place *)in_place;
    const uint32_t i = tensor_at(p->pack, extent->offset);
    struct row_source source;
    if (i < p->pack->n_tensors && p->pack->tensors[i].extent.offset == extent->offset &&
        convert_find_dense(p->from, p->dense[i].role, p->dense[i].layer, &source, NULL) == MOE_OK)
        read_rows_ahead(&source);
}

/* ---- Opening ---- */

static void close_in_place(struct pack_in_place *in_place)
{
    struct in_place *p = (struct in_place *)in_place;
    convert_close_source(p->source);
    free(p->files);
    free(p->dense);
    free(p->parts);
    free(p->places);
    free(p);
}

/* Notes what a thread takes that reads the matrix. */
static void note_reading(uint64_t *most, const struct row_source *source)
{
    const uint64_t bytes = (uint64_t)rows_at_once(source) * source->cols * sizeof(float);
    *most = bytes > *most ? bytes : *most;
}

/* Notes which role and layer each tensor of the pack is. */
static void place_dense(struct in_place *p)
{
    const struct moe_config *c = p->from->config;
    char name[MOE_NAME_BYTES];
    for (uint32_t layer = 0; layer < moe_config_all_layers(c); layer++)
        for (int role = 0; role < MOE_T_N_ROLES; role++) {
            uint32_t rows, cols;
            struct row_source source;
            if ((!moe_tensor_spec(role)->per_layer && layer > 0) ||
                !moe_tensor_shape(c, role, layer, &rows, &cols))
                continue;
            moe_tensor_pack_name(role, layer, name);
            const struct moe_pack_tensor *t = moe_pack_tensor_find(p->pack, name);
            p->dense[t - p->pack->tensors] = (struct dense_place){role, layer};
            if (convert_find_dense(p->from, role, layer, &source, NULL) == MOE_OK)
                note_reading(&p->reading[0], &source);
        }
}

static int place_expert(struct in_place *p, uint32_t stored, struct moe_err *err)
{
    const struct pack_expert *e = &p->pack->experts[stored];
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        struct row_source source;
        uint32_t rows, cols;
        if (!moe_expert_part_shape(p->from->config, part, &rows, &cols))
            continue;
        MOE_TRY(convert_find_expert(p->from, e->layer, e->expert, part, &source, err));
        p->places[(uint64_t)stored * MOE_E_N_PARTS + part] =
            (struct part_place){source.tensor, source.first_line};
        if (e->expert == 0)
            p->parts[(uint64_t)e->layer * MOE_E_N_PARTS + part] = source;
        note_reading(&p->reading[1], &source);
    }
    const struct moe_expert_class *class_ = &p->pack->classes[e->extent.class_index];
    for (uint32_t i = 0; i < class_->n_segments; i++) {
        const struct stored_segment s = {stored, i, class_};
        struct moe_file_range ranges[MOE_MAX_RANGES];
        uint64_t sum = 0;
        uint32_t n;
        MOE_TRY(find_ranges(p, &s, ranges, &n, err));
        while (n-- > 0)
            sum += moe_range_read_bytes(&ranges[n]);
        if (sum > p->base.arranger.most_bytes)
            p->base.arranger.most_bytes = sum;
    }
    return MOE_OK;
}

/* The name of the type that most bytes of a .gguf file have; NULL: of no type that is known. */
static const char *type_of_most(const struct moe_checkpoint *ck)
{
    enum { TYPES = 512 }; /* by number */
    uint64_t bytes[TYPES] = {0};
    const struct moe_ggml_type *most = NULL;
    for (uint64_t i = 0; i < moe_checkpoint_n_tensors(ck); i++) {
        const struct moe_tensor *t = moe_checkpoint_at(ck, i);
        const struct moe_ggml_type *type = moe_dtype_block(t->dtype);
        if (!type || type->number >= TYPES)
            continue;
        bytes[type->number] += t->bytes;
        if (!most || bytes[type->number] > bytes[most->number])
            most = type;
    }
    return most ? most->name : NULL;
}

static int prepare(struct in_place *p, struct moe_err *err)
{
    const struct moe_pack *pack = p->pack;
    const struct moe_checkpoint *ck = p->from->checkpoint;
    uint64_t n_parts = (uint64_t)pack->n_layers * MOE_E_N_PARTS;
    uint64_t n_places = (uint64_t)pack->n_stored * MOE_E_N_PARTS;
    int n_files = moe_checkpoint_n_files(ck), status = MOE_OK;
    p->files = moe_alloc((uint64_t)n_files, sizeof *p->files, err);
    p->dense = moe_alloc(pack->n_tensors, sizeof *p->dense, err);
    p->parts = moe_alloc(n_parts, sizeof *p->parts, err);
    p->places = moe_alloc(n_places, sizeof *p->places, err);
    if (!p->files || !p->dense || !p->parts || !p->places)
        return MOE_ERR_MEMORY;
    for (int i = 0; i < n_files && status == MOE_OK; i++)
        status = stamp(ck, i, &p->files[i], err);
    place_dense(p);
    for (uint32_t i = 0; i < pack->n_stored && status == MOE_OK; i++)
        status = place_expert(p, i, err);
    /* Both may arrive at the same time, on all threads and on one that waits for them. */
    p->base.staging_bytes = ((uint64_t)moe_par_threads() + 1) * (p->reading[0] + p->reading[1]);
    p->base.type = moe_checkpoint_gguf(ck) ? type_of_most(ck) : NULL;
    p->base.arranger.ctx = p;
    p->base.arranger.n_files = (uint32_t)n_files;
    p->base.arranger.fd = arranger_fd;
    p->base.arranger.ranges = arranger_ranges;
    p->base.arranger.step = arranger_step;
    p->base.directory_bytes = sizeof *p + (uint64_t)n_files * sizeof *p->files +
                              pack->n_tensors * sizeof *p->dense + n_parts * sizeof *p->parts +
                              n_places * sizeof *p->places + moe_checkpoint_held_bytes(ck);
    return status;
}

static int open_in_place(struct moe_pack **out, const char *path, const char *checkpoint,
                         const struct moe_pack_image *image, struct moe_err *err)
{
    struct moe_pack *pack = NULL;
    uint64_t file_bytes = 0;
    int fd = -1;
    struct in_place *p = moe_alloc(1, sizeof *p, err);
    if (!p)
        return MOE_ERR_MEMORY;
    p->base.read = read_extent;
    p->base.part_rows = part_rows;
    p->base.read_part = read_part;
    p->base.read_ahead = read_dense_ahead;
    p->base.take_tokenizer = take_tokenizer;
    p->base.close = close_in_place;
    int status = convert_plan_in_place(&p->source, checkpoint, &fd, &file_bytes, err);
    moe_heap_trim(); /* vocabularies that were read leave much free memory */
    if (status == MOE_OK)
        status = pack_open_file(&pack, path, fd, file_bytes, NULL, err);
    if (status == MOE_OK) {
        close(pack->fd); /* the tables have been read */
        pack->fd = -1;
        p->pack = pack;
        p->from = convert_source_of(p->source);
        status = prepare(p, err);
    }
    if (status == MOE_OK && image && image->n != file_bytes)
        status = moe_fail(err, MOE_ERR_IO, "%s: has changed since it was read", path);
    if (status != MOE_OK) {
        close_in_place(&p->base);
        moe_pack_close(pack);
        return status;
    }
    pack->in_place = &p->base;
    pack->image = image ? image->bytes : NULL;
    *out = pack;
    return MOE_OK;
}

/* The checkpoint that a path names: a directory, a .gguf file, the directory of a .safetensors
 * file; free() *out, which is NULL for other files. */
static int find_checkpoint(char **out, const char *path, struct moe_err *err)
{
    size_t n = strlen(path);
    *out = NULL;
    if (moe_path_is_directory(path) || moe_gguf_is(path))
        *out = moe_strndup(path, n, err);
    else if (n > 12 && strcmp(path + n - 12, ".safetensors") == 0)
        *out = moe_path_directory(path, err);
    else
        return MOE_OK;
    return *out ? MOE_OK : MOE_ERR_MEMORY;
}

int moe_pack_open(struct moe_pack **out, const char *path, struct moe_err *err)
{
    return moe_pack_open_image(out, path, NULL, err);
}

int moe_pack_open_image(struct moe_pack **out, const char *path, const struct moe_pack_image *image,
                        struct moe_err *err)
{
    char *checkpoint;
    uint64_t n;
    *out = NULL;
    MOE_TRY(find_checkpoint(&checkpoint, path, err));
    if (checkpoint) {
        int status = open_in_place(out, path, checkpoint, image, err);
        free(checkpoint);
        return status;
    }
    int fd = moe_file_open(path, &n, err);
    int status = fd < 0 ? fd : pack_open_file(out, path, fd, n, image, err);
    if (status == MOE_OK && (status = pack_check_maps(*out, err)) != MOE_OK) {
        moe_pack_close(*out);
        *out = NULL;
    }
    return status;
}

/* ---- Images ---- */

enum { PIECE_BYTES = 16 << 20 };

/* Arranges a whole checkpoint as the pack would lie in its file. */
static int read_checkpoint(struct moe_pack_image *out, const char *path, uint64_t most,
                           struct moe_err *err)
{
    struct moe_pack *pack;
    MOE_TRY(moe_pack_open(&pack, path, err));
    uint64_t n = moe_pack_file_bytes(pack);
    uint8_t *bytes = NULL;
    int status;
    MOE_STEP(n > most ? moe_fail(err, MOE_ERR_IO, "%s: has changed since it was opened", path)
                      : MOE_OK);
    bytes = moe_pages_alloc(moe_round_up(n, MOE_PACK_ALIGN), err);
    MOE_STEP(bytes ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(moe_pack_read_all(pack, bytes, err));
out:
    *out = (struct moe_pack_image){bytes, n};
    if (status != MOE_OK)
        moe_pack_image_free(out);
    moe_pack_close(pack);
    return status;
}

int moe_pack_image_read(struct moe_pack_image *out, const char *path, uint64_t most,
                        bool (*stops)(void *ctx), void *ctx, struct moe_err *err)
{
    *out = (struct moe_pack_image){NULL, 0};
    uint64_t n;
    char *checkpoint;
    MOE_TRY(find_checkpoint(&checkpoint, path, err));
    free(checkpoint);
    if (checkpoint)
        return read_checkpoint(out, path, most, err);
    int fd = moe_file_open(path, &n, err);
    if (fd < 0)
        return fd;
    int status = MOE_OK;
    uint8_t *bytes = NULL;
    if (n > most)
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: has %" PRIu64 " bytes, more than the %" PRIu64 " it had before",
                          path, n, most);
    else if (!(bytes = moe_pages_alloc(moe_round_up(n, MOE_PACK_ALIGN), err)))
        status = MOE_ERR_MEMORY;
    for (uint64_t at = 0; status == MOE_OK && at < n; at += PIECE_BYTES) {
        uint64_t some = n - at < PIECE_BYTES ? n - at : PIECE_BYTES;
        status = stops && stops(ctx) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped")
                                     : moe_file_pread(fd, path, bytes + at, some, at, err);
        posix_fadvise(fd, (off_t)at, (off_t)some, POSIX_FADV_DONTNEED);
    }
    close(fd);
    *out = (struct moe_pack_image){bytes, n};
    if (status != MOE_OK)
        moe_pack_image_free(out);
    return status;
}

void moe_pack_image_free(struct moe_pack_image *image)
{
    moe_pages_free((void *)(uintptr_t)image->bytes, moe_round_up(image->n, MOE_PACK_ALIGN));
    *image = (struct moe_pack_image){NULL, 0};
}
