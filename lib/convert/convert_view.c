/* The rows of a view (convert_source.h), read from the checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "convert/convert_source.h"

/* Values read at once where only some of them are wanted: 1 MiB of f32, or one line. */
enum { GATHER_ITEMS = 1 << 18 };

/* The place in the source's block of place `i` in the pack's. */
static uint32_t source_place(const struct convert_view *v, uint32_t i)
{
    uint32_t n = v->n_rotated;
    if (i >= v->rotated_to && i - v->rotated_to < n) {
        uint32_t rotated = i - v->rotated_to;
        if (v->paired)
            rotated = rotated < n / 2 ? 2 * rotated : 2 * (rotated - n / 2) + 1;
        return v->rotated_from + rotated;
    }
    uint32_t other = i < v->rotated_to ? i : i - n;
    return other < v->rotated_from ? other : other + n;
}

uint64_t convert_view_line(const struct convert_view *view, uint32_t row)
{
    uint64_t block_line = (uint64_t)(row / view->block) * view->stride;
    return view->first_line + view->step * (block_line + source_place(view, row % view->block));
}

/* Reads lines first, first + 2, ... n of them, through a buffer. */
static int read_every_other(const struct convert_view *v, uint64_t first, uint32_t n, float *buffer,
                            float *out, struct moe_err *err)
{
    int status = moe_checkpoint_read(v->checkpoint, v->tensor, first * v->width,
                                     (2 * (uint64_t)n - 1) * v->width, buffer, err);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        memcpy(out + (uint64_t)i * v->width, buffer + 2 * (uint64_t)i * v->width,
               v->width * sizeof *out);
    return status;
}

/* Rows by runs of lines that follow each other, or every other of which is wanted. */
static int read_lines(const struct convert_view *v, uint32_t first, uint32_t n, float *buffer,
                      uint64_t buffer_items, float *out, struct moe_err *err)
{
    int status = MOE_OK;
    uint64_t most = buffer_items / v->width / 2;
    for (uint32_t i = 0, run; i < n && status == MOE_OK; i += run) {
        uint64_t line = convert_view_line(v, first + i);
        uint64_t apart = i + 1 < n ? convert_view_line(v, first + i + 1) - line : 1;
        if (apart != 1 && (apart != 2 || most < 2))
            apart = 1;
        run = 1;
        while (i + run < n && (apart == 1 || run < most) &&
               convert_view_line(v, first + i + run) == line + apart * run)
            run++;
        float *to = out + (uint64_t)i * v->width;
        status = apart == 1 ? moe_checkpoint_read(v->checkpoint, v->tensor, line * v->width,
                                                  run * v->width, to, err)
                            : read_every_other(v, line, run, buffer, to, err);
    }
    return status;
}

/* Rows of one block out of a transposed tensor: a piece of every line. */
static int read_columns(const struct convert_view *v, uint32_t first, uint32_t n, float *buffer,
                        float *out, struct moe_err *err)
{
    uint64_t line = v->first_line + (uint64_t)(first / v->block) * v->stride;
    uint64_t column = v->first_column + (uint64_t)v->step * (first % v->block);
    uint64_t span = (uint64_t)v->step * (n - 1) + 1;
    int status = MOE_OK;
    for (uint32_t c = 0; c < v->cols && status == MOE_OK; c++) {
        status = moe_checkpoint_read(v->checkpoint, v->tensor, (line + c) * v->width + column, span,
                                     buffer, err);
        for (uint32_t i = 0; i < n && status == MOE_OK; i++)
            out[(uint64_t)i * v->cols + c] = buffer[(uint64_t)v->step * i];
    }
    return status;
}

int convert_view_read(const struct convert_view *view, uint32_t first, uint32_t n, float *out,
                      struct moe_err *err)
{
    /* What is read at once: of a transposed tensor all columns of the rows, else a line or twice
     * those that are wanted, as far as they fit. Tensors are often small. */
    uint64_t items = 2 * (uint64_t)n * view->width;
    items = items < GATHER_ITEMS ? items : GATHER_ITEMS;
    if (view->transposed)
        items = (uint64_t)view->step * n;
    items = items > view->width ? items : view->width;
    float *buffer = moe_alloc(items, sizeof *buffer, err);
    if (!buffer)
        return MOE_ERR_MEMORY;
    int status = MOE_OK;
    if (!view->transposed)
        status = read_lines(view, first, n, buffer, items, out, err);
    for (uint32_t i = 0, run; view->transposed && i < n && status == MOE_OK; i += run) {
        uint32_t left = view->block - (first + i) % view->block;
        run = n - i < left ? n - i : left;
        status = read_columns(view, first + i, run, buffer, out + (uint64_t)i * view->cols, err);
    }
    free(buffer);
    return status;
}

int convert_view_read_blocks(const struct convert_view *view, uint32_t first, uint32_t n,
                             uint8_t *out, struct moe_err *err)
{
    const struct moe_ggml_type *type = moe_dtype_block(view->tensor->dtype);
    uint64_t blocks = view->width / type->items; /* of a line */
    int status = MOE_OK;
    for (uint32_t i = 0, run; i < n && status == MOE_OK; i += run) {
        uint64_t line = convert_view_line(view, first + i);
        run = 1;
        while (i + run < n && convert_view_line(view, first + i + run) == line + run)
            run++;
        status = moe_checkpoint_read_blocks(view->checkpoint, view->tensor, line * blocks,
                                            run * blocks, out + i * blocks * type->bytes, err);
    }
    return status;
}
