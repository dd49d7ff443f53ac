/* Rows, wherever they come from, into matrices of a pack: the layout each gets, and its encoding.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/float16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "convert/convert_parts.h"
#include "quant/gptq.h"

/* Values read and encoded at a time: 32 MiB of f32, or one panel of a very wide matrix. The source
 * fingerprint depends on it: the hash is chained chunk by chunk. */
enum { CHUNK_ITEMS = 8 << 20 };

/* ---- Layouts ---- */

struct moe_layout convert_layout(const struct converter *c, int bits, uint16_t float16_kind)
{
    if (bits == 32)
        return (struct moe_layout){.kind = MOE_LAYOUT_F32};
    if (bits == 16)
        return (struct moe_layout){.kind = float16_kind};
    return moe_quant_layout(c->options->method, bits, c->options->group, float16_kind);
}

/* Whether the source's codes are carried over into that layout. */
static bool carries(const struct row_source *source, struct moe_layout layout)
{
    if (!source->block)
        return false;
    struct moe_layout own = moe_ggml_layout(source->block, moe_layout_bits(layout.kind));
    return own.kind != MOE_LAYOUT_NONE && own.kind == layout.kind && own.group == layout.group;
}

struct moe_layout convert_source_layout(const struct converter *c, const struct row_source *source,
                                        int bits)
{
    struct moe_layout own = {0};
    if (source->block)
        own = moe_ggml_layout(source->block, bits);
    return own.kind != MOE_LAYOUT_NONE ? own : convert_layout(c, bits, source->float16_kind);
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
        return source->read(source, first, n, c->chunk, err);
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
    int status = source->read_blocks(source, first, n, c->blocks, err);
    if (status == MOE_OK)
        moe_ggml_decode(source->block, c->blocks, n_blocks, c->chunk);
    return status;
}

/* Encodes the chunk, rows [first, first + n) of the source, into one target; adds to *sum. */
static int encode_chunk(struct converter *c, const struct row_source *source,
                        const struct row_target *target, uint32_t first, uint32_t n,
                        struct moe_quant_error *sum, struct moe_err *err)
{
    struct moe_quant_error error = {0};
    const struct moe_quant_method *method = c->options->method;
    uint8_t *out = target->out +
                   moe_layout_panel_bytes(target->layout, source->cols) * (first / MOE_PANEL_ROWS);
    struct moe_err why = {0};
    int status;
    if (carries(source, target->layout)) {
        status = moe_ggml_encode_matrix(source->block, method, target->layout, c->blocks, n,
                                        source->cols, out, &error, &c->report->carried, &why);
        convert_add_error(&c->report->carried_error, &error);
    } else {
        status = moe_quantize_matrix(method, target->layout, c->chunk, n, source->cols, out, &error,
                                     &why);
        if (status == MOE_OK && source->inputs && !moe_layout_is_float(target->layout.kind))
            status = moe_gptq_improve(target->layout, source->inputs, c->chunk, n, source->cols,
                                      out, &error, &why);
        if (source->block && target->layout.kind != MOE_LAYOUT_F32)
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

/* Adds a matrix's error to its target's sums, and notes what was rounded again; `fitted`: groups
 * of a matrix that was carried over. */
static void book(struct converter *c, const struct row_source *source,
                 const struct row_target *target, bool fitted, const struct moe_quant_error *error)
{
    if (target->error)
        convert_add_error(target->error, error);
    if (fitted || !carries(source, target->layout))
        convert_note_rounding(c, source, moe_layout_bits(target->layout.kind), error);
}

int convert_rows(struct converter *c, const struct row_source *source,
                 const struct row_target *targets, int n_targets, struct moe_err *err)
{
    struct moe_quant_error errors[CONVERT_MAX_VARIANTS] = {{0}};
    uint64_t fitted = c->report->carried.fitted;
    uint32_t step;
    bool carried = false;
    for (int i = 0; i < n_targets; i++)
        carried = carried || carries(source, targets[i].layout);
    int status = chunk_rows(c, source, &step, err);
    for (uint32_t first = 0; first < source->rows && status == MOE_OK; first += step) {
        uint32_t n = source->rows - first < step ? source->rows - first : step;
        status = convert_check_stop(c, err);
        if (status == MOE_OK)
            status = read_chunk(c, source, first, n, carried, err);
        if (status == MOE_OK && source->hashed)
            c->fingerprint = moe_hash64_chain(c->fingerprint, c->chunk,
                                              (uint64_t)n * source->cols * sizeof *c->chunk);
        for (int i = 0; i < n_targets && status == MOE_OK; i++)
            status = encode_chunk(c, source, &targets[i], first, n, &errors[i], err);
        moe_progress_report(c->options->progress, "quantizing",
                            c->done + source->bytes / source->rows * (first + n), c->total);
    }
    for (int i = 0; i < n_targets && status == MOE_OK; i++)
        book(c, source, &targets[i], c->report->carried.fitted > fitted, &errors[i]);
    c->done += source->bytes;
    c->report->source_bytes += source->bytes;
    return status;
}

int convert_put_matrix(struct converter *c, const struct row_source *source,
                       const struct moe_pack_tensor *entry, struct moe_err *err)
{
    struct row_target target = {entry->layout, NULL, &c->report->dense_error};
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
    return inputs && bits < 16 && matrix->layer < c->n_layers
               ? inputs->factor(inputs->ctx, matrix, &source->inputs, err)
               : MOE_OK;
}

int convert_choose_float16(struct converter *c, const struct row_source *source, uint16_t *kind,
                           bool *exact, struct moe_err *err)
{
    uint32_t step;
    bool bf16 = true, f16 = true;
    int status = chunk_rows(c, source, &step, err);
    for (uint32_t first = 0; first < source->rows && status == MOE_OK && (bf16 || f16);
         first += step) {
        uint32_t n = source->rows - first < step ? source->rows - first : step;
        status = source->read(source, first, n, c->chunk, err);
        for (uint64_t i = 0; i < (uint64_t)n * source->cols && status == MOE_OK; i++) {
            uint32_t bits = moe_f32_bits(c->chunk[i]);
            bf16 = bf16 && (bits & 0xffff) == 0;
            f16 = f16 && moe_f32_bits(moe_f16_to_f32(moe_f32_to_f16(c->chunk[i]))) == bits;
        }
    }
    *kind = !bf16 && f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_BF16;
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
