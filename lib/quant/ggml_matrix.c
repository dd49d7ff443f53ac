#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "quant/ggml.h"

struct moe_layout moe_ggml_layout(const struct moe_ggml_type *type, int bits)
{
    if (type->number == MOE_GGML_MXFP4 && bits == 4)
        return (struct moe_layout){MOE_LAYOUT_MXFP4, MOE_MX_BLOCK};
    bool carried = type->carry_bits && bits >= type->carry_bits && (bits == 4 || bits == 8);
    if (!carried)
        return (struct moe_layout){0};
    return (struct moe_layout){moe_layout_kind_of_bits(bits), MOE_GGML_GROUP};
}

int moe_ggml_bits(const struct moe_ggml_type *type)
{
    if (type->items == 1)
        return 8 * (int)type->bytes;
    if (type->number == MOE_GGML_MXFP4)
        return 4;
    return type->carry_bits ? type->carry_bits : 8;
}

/* The result of one panel. Results are added up in order, whichever thread computed what. */
struct panel_result {
    struct moe_quant_error error;
    struct moe_ggml_counts counts;
    bool refused; /* because of the weight at row, col */
    uint32_t row, col;
};

struct job {
    const struct moe_ggml_type *type;
    const struct moe_quant_method *method;
    struct moe_layout layout;
    const uint8_t *blocks;
    uint32_t rows, cols;
    uint8_t *out;
    struct panel_result *results; /* [panels] */
};

static void add_errors(const float *values, const struct moe_group_codes *group,
                       struct moe_quant_error *sum)
{
    float d = moe_f16_to_f32(group->d), m = moe_f16_to_f32(group->m);
    for (int i = 0; i < MOE_GGML_GROUP; i++) {
        double e = (double)(d * (float)group->codes[i] + m) - (double)values[i];
        sum->sum_squared_error += e * e;
        sum->sum_squared_weight += (double)values[i] * (double)values[i];
    }
}

/* Fits a group that cannot be carried over; false where that is not possible either. */
static bool fit_group(const struct job *job, const float *values, uint8_t *codes,
                      struct moe_group_codes *group)
{
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        if (!(fabsf(values[i]) <= 65504))
            return false;
    group->codes = codes;
    job->method->fit(values, MOE_GGML_GROUP, moe_layout_bits(job->layout.kind), &group->d,
                     &group->m, codes);
    return isfinite(moe_f16_to_f32(group->d)) && isfinite(moe_f16_to_f32(group->m));
}

/* A block into its own layout; false where it is NaN or has infinite weights. */
static bool encode_mxfp4(const struct job *job, const uint8_t *block, const float *values,
                         uint32_t row, uint32_t b, struct panel_result *result)
{
    uint8_t codes[MOE_GGML_GROUP], exponent;
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        if (!isfinite(values[i]))
            return false;
    moe_ggml_mxfp4(block, codes, &exponent);
    if (!moe_layout_store_mxfp4(job->out, job->cols, row, b, exponent, codes))
        return false;
    result->counts.exact += MOE_GGML_GROUP;
    for (int i = 0; i < MOE_GGML_GROUP; i++)
        result->error.sum_squared_weight += (double)values[i] * (double)values[i];
    return true;
}

static bool encode_group(const struct job *job, const uint8_t *block, uint32_t g,
                         const float *values, uint32_t row, uint32_t group_number,
                         struct panel_result *result)
{
    uint8_t codes[MOE_GGML_GROUP];
    struct moe_group_codes group;
    if (job->layout.kind == MOE_LAYOUT_MXFP4)
        return encode_mxfp4(job, block, values, row, group_number, result);
    switch (moe_ggml_group(job->type, block, g, codes, &group)) {
    case MOE_GGML_CARRY_EXACT:
        result->counts.exact += MOE_GGML_GROUP;
        break;
    case MOE_GGML_CARRY_ROUNDED:
        result->counts.rounded += MOE_GGML_GROUP;
        break;
    case MOE_GGML_CARRY_NO:
        if (!fit_group(job, values, codes, &group))
            return false;
        result->counts.fitted += MOE_GGML_GROUP;
        break;
    }
    moe_layout_store_group(job->out, job->layout, job->cols, row, group_number, &group);
    add_errors(values, &group, &result->error);
    return true;
}

static void encode_row(const struct job *job, uint32_t row, struct panel_result *result)
{
    uint32_t n = job->cols / job->type->items, groups = job->type->items / MOE_GGML_GROUP;
    for (uint32_t b = 0; b < n; b++) {
        float values[MOE_GGML_MAX_ITEMS];
        const uint8_t *block = job->blocks + ((uint64_t)row * n + b) * job->type->bytes;
        moe_ggml_decode(job->type, block, 1, values);
        for (uint32_t g = 0; g < groups; g++)
            if (!encode_group(job, block, g, values + g * MOE_GGML_GROUP, row, b * groups + g,
                              result)) {
                result->refused = true;
                result->row = row;
                result->col = (b * groups + g) * MOE_GGML_GROUP;
                return;
            }
    }
}

static void encode_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *job = ctx;
    (void)thread;
    for (int64_t p = begin; p < end; p++) {
        uint32_t row = (uint32_t)p * MOE_PANEL_ROWS;
        uint32_t last = job->rows - row < MOE_PANEL_ROWS ? job->rows : row + MOE_PANEL_ROWS;
        for (; row < last && !job->results[p].refused; row++)
            encode_row(job, row, &job->results[p]);
    }
}

int moe_ggml_encode_matrix(const struct moe_ggml_type *type, const struct moe_quant_method *method,
                           struct moe_layout layout, const uint8_t *blocks, uint32_t rows,
                           uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                           struct moe_ggml_counts *counts, struct moe_err *err)
{
    struct job job = {type, method, layout, blocks, rows, cols, out, NULL};
    uint32_t panels = moe_panels(rows);
    int status = MOE_OK;
    job.results = moe_alloc(panels, sizeof *job.results, err);
    if (!job.results)
        return MOE_ERR_MEMORY;
    moe_par_for(panels, 1, encode_panels, &job);
    for (uint32_t p = 0; p < panels && status == MOE_OK; p++) {
        const struct panel_result *r = &job.results[p];
        if (r->refused)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "the weights at row %" PRIu32 ", columns %" PRIu32 " to %" PRIu32
                              " are not finite or too large for f16",
                              r->row, r->col, r->col + MOE_GGML_GROUP - 1);
        error->sum_squared_error += r->error.sum_squared_error;
        error->sum_squared_weight += r->error.sum_squared_weight;
        counts->exact += r->counts.exact;
        counts->rounded += r->counts.rounded;
        counts->fitted += r->counts.fitted;
    }
    free(job.results);
    return status;
}
