/* The table of quantizers, and encoding a matrix by one of them. */
#include "quant/quantize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "quant/bits.h"
#include "quant/blocks.h"
#include "quant/gptq.h"
#include "quant/trellis.h"

static const struct moe_quant_method methods[] = {
    {.name = "blocks", .blocks = true, .fit = moe_quant_fit_hqq},
    {.name = "gptq", .compensates = true, .fit = moe_quant_fit_hqq},
    {.name = "hqq", .fit = moe_quant_fit_hqq},
    {.name = "linear", .per_row = true, .fit = moe_quant_fit_linear},
    {.name = "rtn", .fit = moe_quant_fit_rtn},
    {.name = "trellis", .compensates = true, .trellis = true, .fit = moe_quant_fit_hqq},
};

enum { N_METHODS = sizeof methods / sizeof methods[0] };

const struct moe_quant_method *moe_quant_method_find(const char *name)
{
    name = strcmp(name, "best") == 0 ? "trellis" : name;
    for (int i = 0; i < N_METHODS; i++)
        if (strcmp(name, methods[i].name) == 0)
            return &methods[i];
    return NULL;
}

const struct moe_quant_method *moe_quant_method_at(int i)
{
    return i >= 0 && i < N_METHODS ? &methods[i] : NULL;
}

const struct moe_quant_method *moe_quant_method_of(const struct moe_quant_method *method, int bits)
{
    const uint16_t kind = moe_bits_kind(bits);
    if (!kind)
        return method;
    return moe_quant_method_find(moe_trellis_encodes(kind) ? "trellis" : "blocks");
}

struct moe_layout moe_quant_layout(const struct moe_quant_method *method, int bits, uint32_t group,
                                   uint16_t float16_kind)
{
    struct moe_layout layout = {0};
    if (moe_bits_kind(bits))
        return moe_bits_names(moe_bits_kind(bits))
                   ? (struct moe_layout){moe_bits_kind(bits), MOE_BLOCKS_GROUP}
                   : layout;
    if (bits == 32 || bits == 16) {
        layout.kind = bits == 32 ? MOE_LAYOUT_F32 : float16_kind;
        if (moe_layout_bits(layout.kind) != bits)
            layout.kind = MOE_LAYOUT_NONE;
        return layout;
    }
    if (method && method->trellis && bits >= 1 && bits <= 5) {
        static const uint16_t kinds[] = {MOE_LAYOUT_IQ1_KT, MOE_LAYOUT_IQ2_KT, MOE_LAYOUT_IQ3_KT,
                                         MOE_LAYOUT_IQ4_KS, MOE_LAYOUT_IQ5_KS};
        return (struct moe_layout){kinds[bits - 1], MOE_TRELLIS_BLOCK};
    }
    if (method && method->blocks) {
        layout.kind = moe_blocks_kind(bits);
        layout.group = layout.kind ? MOE_BLOCKS_GROUP : 0;
        return layout;
    }
    layout.kind = moe_layout_kind_of_bits(bits);
    layout.group = method && !method->per_row ? group : MOE_GROUP_ROW;
    return method && moe_layout_valid(layout) ? layout : (struct moe_layout){0};
}

struct moe_layout moe_quant_layout_of(const struct moe_quant_method *method, int bits,
                                      uint32_t cols, uint32_t group, uint16_t float16_kind)
{
    const struct moe_quant_method *of = moe_quant_method_of(method, bits);
    const int width = moe_bits_width(bits);
    if (of && of->blocks && cols < MOE_MAX_SPAN && moe_layout_kind_of_bits(width))
        return moe_quant_layout(moe_quant_method_find("hqq"), width, group, float16_kind);
    return moe_quant_layout(method, bits, group, float16_kind);
}

/* ---- A matrix ---- */

/* The result of one panel. Results are kept per panel and added up in order, so that sums do not
 * depend on which thread computed them. */
struct panel_result {
    struct moe_quant_error error;
    bool refused; /* the weight at row, col cannot be stored */
    uint32_t row, col;
};

struct job {
    const struct moe_quant_method *method;
    struct moe_layout layout;
    const float *w;
    uint32_t rows, cols;
    uint8_t *out;
    uint8_t *codes;               /* [threads][group columns] */
    struct panel_result *results; /* [panels] */
};

static uint32_t magnitude_bits(float v)
{
    return moe_f32_bits(v) & 0x7fffffffu;
}

/* The smallest magnitude, as bits of an f32, that a layout cannot hold. */
static uint32_t too_large(uint16_t kind)
{
    switch (kind) {
    case MOE_LAYOUT_F32:
        return 0x7f800000u;
    case MOE_LAYOUT_BF16:
        return 0x7f7f8000u; /* rounds to infinity */
    case MOE_LAYOUT_F16:
        return 0x477ff000u; /* likewise */
    default:
        return 0x477fe001u; /* above 65504, the largest f16 */
    }
}

static uint32_t largest_at(const float *w, uint32_t n)
{
    uint32_t largest = 0;
    for (uint32_t i = 1; i < n; i++)
        if (magnitude_bits(w[i]) > magnitude_bits(w[largest]))
            largest = i;
    return largest;
}

static bool row_fits(const float *w, uint32_t n, uint32_t limit)
{
    uint32_t largest = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = magnitude_bits(w[i]) > largest ? magnitude_bits(w[i]) : largest;
    return largest < limit;
}

static void refuse_weight(struct panel_result *result, uint32_t row, uint32_t col)
{
    result->refused = true;
    result->row = row;
    result->col = col;
}

static void add_error(struct moe_quant_error *sum, const struct moe_quant_error *more)
{
    sum->sum_squared_error += more->sum_squared_error;
    sum->sum_squared_weight += more->sum_squared_weight;
}

/* Adds up squared weights and errors of n weights against d * codes + m. */
static struct moe_quant_error group_error(const float *w, uint32_t n,
                                          const struct moe_group_codes *group)
{
    struct moe_quant_error sum = {0};
    float d = moe_f16_to_f32(group->d), m = moe_f16_to_f32(group->m);
    for (uint32_t i = 0; i < n; i++) {
        double e = (double)(d * (float)group->codes[i] + m) - w[i];
        sum.sum_squared_error += e * e;
        sum.sum_squared_weight += (double)w[i] * w[i];
    }
    return sum;
}

static struct moe_quant_error float_error(const float *w, uint32_t n, uint16_t kind)
{
    struct moe_quant_error sum = {0};
    for (uint32_t i = 0; i < n; i++) {
        float stored = kind == MOE_LAYOUT_F32   ? w[i]
                       : kind == MOE_LAYOUT_F16 ? moe_f16_to_f32(moe_f32_to_f16(w[i]))
                                                : moe_bf16_to_f32(moe_f32_to_bf16(w[i]));
        double e = (double)stored - w[i];
        sum.sum_squared_error += e * e;
        sum.sum_squared_weight += (double)w[i] * w[i];
    }
    return sum;
}

static void encode_spans(const struct job *job, uint32_t row, const float *w,
                         struct panel_result *result)
{
    const int kind = job->layout.kind;
    const uint32_t columns = moe_kind_span(kind);
    for (uint32_t i = 0, first = 0; first < job->cols; i++, first += columns) {
        const uint32_t n = job->cols - first < columns ? job->cols - first : columns;
        struct moe_span_codes span;
        float stored[MOE_MAX_SPAN];
        moe_blocks_fit(kind, w + first, n, &span);
        moe_layout_store_span(job->out, job->layout, job->cols, row, i, &span);
        moe_layout_span_weights((uint16_t)kind, &span, n, stored);
        for (uint32_t k = 0; k < n; k++) {
            const double e = (double)stored[k] - w[first + k];
            result->error.sum_squared_error += e * e;
            result->error.sum_squared_weight += (double)w[first + k] * w[first + k];
        }
    }
}

static void encode_row(const struct job *job, uint32_t row, uint8_t *codes,
                       struct panel_result *result)
{
    const float *w = job->w + (uint64_t)row * job->cols;
    if (moe_layout_is_float(job->layout.kind)) {
        moe_layout_store_row(job->out, job->layout, job->cols, row, w);
        struct moe_quant_error error = float_error(w, job->cols, job->layout.kind);
        add_error(&result->error, &error);
        return;
    }
    if (moe_blocks_encodes(job->layout.kind)) {
        encode_spans(job, row, w, result);
        return;
    }
    uint32_t group = job->layout.group ? job->layout.group : job->cols;
    for (uint32_t g = 0, first = 0; first < job->cols; g++, first += group) {
        uint32_t n = job->cols - first < group ? job->cols - first : group;
        struct moe_group_codes fitted = {.codes = codes};
        job->method->fit(w + first, n, moe_layout_bits(job->layout.kind), &fitted.d, &fitted.m,
                         codes);
        if ((fitted.d & 0x7c00) == 0x7c00 || (fitted.m & 0x7c00) == 0x7c00) {
            refuse_weight(result, row, first + largest_at(w + first, n));
            return;
        }
        moe_layout_store_group(job->out, job->layout, job->cols, row, g, &fitted);
        struct moe_quant_error error = group_error(w + first, n, &fitted);
        add_error(&result->error, &error);
    }
}

/* Of trellis kinds it sees only whether weights can be stored. */
static void encode_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *job = ctx;
    uint32_t group =
        job->layout.group && job->layout.group < job->cols ? job->layout.group : job->cols;
    uint8_t *codes = job->codes + (uint64_t)thread * group;
    uint32_t limit = too_large(job->layout.kind);
    for (int64_t p = begin; p < end; p++) {
        struct panel_result *result = &job->results[p];
        uint32_t row = (uint32_t)p * MOE_PANEL_ROWS;
        uint32_t last = job->rows - row < MOE_PANEL_ROWS ? job->rows : row + MOE_PANEL_ROWS;
        for (; row < last && !result->refused; row++) {
            const float *w = job->w + (uint64_t)row * job->cols;
            if (!row_fits(w, job->cols, limit))
                refuse_weight(result, row, largest_at(w, job->cols));
            else if (!moe_trellis_encodes(job->layout.kind))
                encode_row(job, row, codes, result);
        }
    }
}

/* Writes the error for the weight that a panel could not store. */
static int explain(const struct job *job, const struct panel_result *result, struct moe_err *err)
{
    float w = job->w[(uint64_t)result->row * job->cols + result->col];
    if (!isfinite(w))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "the weight at row %u, column %u is %s (damaged checkpoint?)", result->row,
                        result->col, isnan(w) ? "not a number" : "infinite");
    return moe_fail(err, MOE_ERR_FORMAT,
                    "the weight at row %u, column %u is %g, too large to be stored as %s",
                    result->row, result->col, (double)w, moe_layout_name(job->layout.kind));
}

int moe_quantize_matrix(const struct moe_quant_method *method, struct moe_layout layout,
                        const double *factor, const float *w, uint32_t rows, uint32_t cols,
                        uint8_t *out, struct moe_quant_error *error, struct moe_err *err)
{
    struct job job = {
        .method = method, .layout = layout, .w = w, .rows = rows, .cols = cols, .out = out};
    struct moe_quant_error sum = {0};
    uint32_t panels = moe_panels(rows);
    int status = MOE_OK;
    const bool trellis = moe_trellis_encodes(layout.kind);
    const bool blocks = moe_blocks_encodes(layout.kind);
    if (moe_layout_valid(layout) && !trellis && !blocks &&
        (moe_kind_span(layout.kind) || moe_kind_has_zeros(layout.kind) ||
         moe_kind_is_scaled(layout.kind)))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s is only copied from checkpoints; nothing is quantized to it",
                        moe_layout_name(layout.kind));
    if (!moe_layout_valid(layout) ||
        (!method && !trellis && !blocks && !moe_layout_is_float(layout.kind)))
        return moe_fail(err, MOE_ERR_USAGE, "no such weight layout");
    job.codes = moe_alloc((uint64_t)moe_par_threads(), cols, err);
    job.results = moe_alloc(panels, sizeof *job.results, err);
    if (!job.codes || !job.results) {
        status = MOE_ERR_MEMORY;
        goto done;
    }
    /* A range is worth waking a thread for from some 64K weights on. */
    int64_t panel_weights = (int64_t)MOE_PANEL_ROWS * cols;
    moe_par_for(panels, (65536 + panel_weights - 1) / (panel_weights ? panel_weights : 1),
                encode_panels, &job);
    for (uint32_t p = 0; p < panels && status == MOE_OK; p++) {
        if (job.results[p].refused)
            status = explain(&job, &job.results[p], err);
        add_error(&sum, &job.results[p].error);
    }
    if (status == MOE_OK && trellis)
        status = moe_trellis_encode(layout, factor, w, rows, cols, out, &sum, err);
    else if (status == MOE_OK && factor && moe_layout_is_affine(layout.kind))
        status = moe_gptq_improve(layout, factor, w, rows, cols, out, &sum, err);
    if (status == MOE_OK && error)
        *error = sum;
done:
    free(job.codes);
    free(job.results);
    return status;
}
