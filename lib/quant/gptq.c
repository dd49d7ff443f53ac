/* Error-aware rounding (GPTQ) of a quantized matrix. */
#include "quant/gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/par.h"
#include "quant/cholesky.h"
#include "quant/fit.h"

enum {
    MAX_BLOCK = 64, /* columns after which errors are carried to all others; divides groups */
    CUTS = 15,      /* fits tried: ranges cut by no, one, two, ... steps */
    REFINEMENTS = 4
};
static const float CUT_STEP = 0.05f;

/* The result of a panel's rows: sums of squared weight errors and output errors. */
struct panel_result {
    double squared_plain, squared_improved, output_plain, output_improved;
};

struct job {
    struct moe_layout layout;
    const double *factor;
    const float *w;
    uint32_t rows, cols, group, n_groups;
    uint8_t *out;
    struct scratch *scratch;      /* [threads] */
    struct panel_result *results; /* [panels] */
};

/* The memory of one thread. */
struct scratch {
    double *carried; /* [MOE_PANEL_ROWS][cols] sum over i of e_i R_ik so far */
    float *values;   /* [MOE_PANEL_ROWS][cols] the codes' values */
    float *wanted;   /* [group] the corrected weights */
    float *clipped;  /* [group] */
    uint8_t *codes;  /* [MOE_PANEL_ROWS][cols] */
    uint8_t *trial;  /* [group] */
    uint16_t *d, *m; /* [MOE_PANEL_ROWS][n_groups] */
};

/* One way of rounding the rows of a panel. */
struct walk {
    const struct job *job;
    struct scratch *s;
    bool compensates; /* chooses codes; else measures those in `out` */
    uint32_t row, n_rows;
    double output_error[MOE_PANEL_ROWS], squared[MOE_PANEL_ROWS];
    double e[MOE_PANEL_ROWS][MAX_BLOCK];
};

/* ---- Choosing codes ---- */

/* A group being fitted: the corrected weights, and how much an error in each counts (the diagonal D
 * of the factor, `stride` apart). */
struct group {
    const float *w;
    const double *weights;
    uint64_t stride;
    uint32_t n;
    float top;
};

/* A choice of d and m, as stored, and the sum of weighted squared errors. */
struct fit {
    uint16_t d, m;
    double error;
};

static bool is_finite_f16(uint16_t v)
{
    return (v & 0x7c00) != 0x7c00;
}

/* Replaces *best by d, m if their nearest codes have a smaller error; writes the codes to `codes`.
 */
static void try_fit(const struct group *g, uint16_t d16, uint16_t m16, uint8_t *codes,
                    struct fit *best)
{
    float d = moe_f16_to_f32(d16), m = moe_f16_to_f32(m16);
    double sum = 0;
    if (!is_finite_f16(d16) || !is_finite_f16(m16))
        return;
    moe_fit_codes(g->w, g->n, d, m, 0, g->top, codes);
    for (uint32_t i = 0; i < g->n; i++) {
        double e = (double)g->w[i] - (d * (float)codes[i] + m);
        sum += g->weights[i * g->stride] * e * e;
    }
    if (sum < best->error)
        *best = (struct fit){d16, m16, sum};
}

/* Clips the weights to a share of their range, towards zero, into `out`. */
static void clip_weights(const struct group *g, float share, float *out)
{
    float low, high;
    moe_fit_range(g->w, g->n, &low, &high);
    for (uint32_t i = 0; i < g->n; i++)
        out[i] = moe_fit_min(moe_fit_max(g->w[i], low * share), high * share);
}

/* Improves d and m for the codes by weighted least squares. */
static void refine(const struct group *g, uint8_t *codes, struct fit *best)
{
    double s = 0, sq = 0, sqq = 0, sw = 0, sqw = 0;
    moe_fit_codes(g->w, g->n, moe_f16_to_f32(best->d), moe_f16_to_f32(best->m), 0, g->top, codes);
    for (uint32_t i = 0; i < g->n; i++) {
        double weight = g->weights[i * g->stride], q = codes[i], w = g->w[i];
        s += weight;
        sq += weight * q;
        sqq += weight * q * q;
        sw += weight * w;
        sqw += weight * q * w;
    }
    double det = s * sqq - sq * sq;
    if (!(det > 1e-9 * s * sqq))
        return;
    double d = (s * sqw - sq * sw) / det;
    if (d > 0 && d < 65504)
        try_fit(g, moe_f32_to_f16((float)d), moe_f32_to_f16((float)((sw - d * sq) / s)), codes,
                best);
}

/* Fits d and m of group g of row r to the corrected weights: starts from the better of hqq's and
 * rtn's over ever shorter ranges (with few codes, finer steps for most weights are worth more than
 * range), then alternates least squares and nearest codes. */
static void fit_group(const struct walk *walk, uint32_t r, uint32_t g)
{
    const struct job *job = walk->job;
    struct scratch *s = walk->s;
    uint32_t first = g * job->group;
    int bits = moe_layout_bits(job->layout.kind);
    struct group group = {
        .w = s->wanted,
        .weights = job->factor + (uint64_t)first * job->cols + first,
        .stride = (uint64_t)job->cols + 1,
        .n = job->cols - first < job->group ? job->cols - first : job->group,
        .top = (float)((1 << bits) - 1),
    };
    const float *w = job->w + (uint64_t)(walk->row + r) * job->cols + first;
    const double *carried = s->carried + (uint64_t)r * job->cols + first;
    struct fit best = {.error = INFINITY};
    uint16_t d, m;
    for (uint32_t i = 0; i < group.n; i++)
        s->wanted[i] = (float)(w[i] + carried[i]);
    moe_quant_fit_hqq(s->wanted, group.n, bits, &d, &m, s->trial);
    try_fit(&group, d, m, s->trial, &best);
    for (int i = 0; i < CUTS; i++) {
        clip_weights(&group, 1 - CUT_STEP * (float)i, s->clipped);
        moe_quant_fit_rtn(s->clipped, group.n, bits, &d, &m, s->trial);
        try_fit(&group, d, m, s->trial, &best);
    }
    for (int i = 0; i < REFINEMENTS; i++)
        refine(&group, s->trial, &best);
    s->d[(uint64_t)r * job->n_groups + g] = best.d;
    s->m[(uint64_t)r * job->n_groups + g] = best.m;
}

static void choose_codes(const struct walk *walk, uint32_t r, uint32_t k)
{
    const struct job *job = walk->job;
    struct scratch *s = walk->s;
    uint64_t at = (uint64_t)r * job->n_groups + k / job->group;
    float top = (float)((1 << moe_layout_bits(job->layout.kind)) - 1);
    float d = moe_f16_to_f32(s->d[at]), m = moe_f16_to_f32(s->m[at]);
    float wanted = (float)(job->w[(uint64_t)(walk->row + r) * job->cols + k] +
                           s->carried[(uint64_t)r * job->cols + k]);
    float code = moe_fit_code((wanted - m) * moe_fit_inverse(d), 0, top);
    s->codes[(uint64_t)r * job->cols + k] = (uint8_t)(int)code;
    s->values[(uint64_t)r * job->cols + k] = d * code + m;
}

/* ---- Rows ---- */

/* Rounds or measures columns [begin, end) of row r. */
static void walk_block(struct walk *walk, uint32_t r, uint32_t begin, uint32_t end)
{
    const struct job *job = walk->job;
    struct scratch *s = walk->s;
    const float *w = job->w + (uint64_t)(walk->row + r) * job->cols;
    double *carried = s->carried + (uint64_t)r * job->cols;
    if (walk->compensates && begin % job->group == 0)
        fit_group(walk, r, begin / job->group);
    for (uint32_t k = begin; k < end; k++) {
        const double *factor = job->factor + (uint64_t)k * job->cols;
        if (walk->compensates)
            choose_codes(walk, r, k);
        double e = (double)w[k] - s->values[(uint64_t)r * job->cols + k], all = e + carried[k];
        walk->e[r][k - begin] = e;
        walk->squared[r] += e * e;
        walk->output_error[r] += factor[k] * all * all;
        moe_factor_carry(&e, 1, factor, 0, k + 1, end, carried);
    }
}

static void walk_panel(struct walk *walk)
{
    const struct job *job = walk->job;
    struct scratch *s = walk->s;
    memset(s->carried, 0, (uint64_t)walk->n_rows * job->cols * sizeof *s->carried);
    uint32_t block = moe_layout_block(job->layout);
    for (uint32_t begin = 0, end; begin < job->cols; begin = end) {
        end = job->cols - begin < block ? job->cols : begin + block;
        const double *rest = job->factor + (uint64_t)begin * job->cols;
        for (uint32_t r = 0; r < walk->n_rows; r++) {
            walk_block(walk, r, begin, end);
            moe_factor_carry(walk->e[r], end - begin, rest, job->cols, end, job->cols,
                             s->carried + (uint64_t)r * job->cols);
        }
    }
}

/* Measures the errors of the codes in `out`. */
static void walk_plain(struct walk *walk)
{
    const struct job *job = walk->job;
    const struct moe_mat mat = {job->out, job->layout, job->rows, job->cols};
    for (uint32_t r = 0; r < walk->n_rows; r++)
        moe_layout_load_row(&mat, walk->row + r, walk->s->values + (uint64_t)r * job->cols);
    walk_panel(walk);
}

static void store_row(const struct walk *walk, uint32_t r)
{
    const struct job *job = walk->job;
    const struct scratch *s = walk->s;
    for (uint32_t g = 0; g < job->n_groups; g++) {
        uint64_t at = (uint64_t)r * job->n_groups + g;
        const struct moe_group_codes codes = {
            s->d[at], s->m[at], s->codes + (uint64_t)r * job->cols + (uint64_t)g * job->group};
        moe_layout_store_group(job->out, job->layout, job->cols, walk->row + r, g, &codes);
    }
}

static void improve_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *job = ctx;
    for (int64_t p = begin; p < end; p++) {
        struct panel_result *result = &job->results[p];
        uint32_t row = (uint32_t)p * MOE_PANEL_ROWS;
        uint32_t n = job->rows - row < MOE_PANEL_ROWS ? job->rows - row : MOE_PANEL_ROWS;
        struct walk plain = {.job = job, .s = &job->scratch[thread], .row = row, .n_rows = n};
        struct walk improved = plain;
        improved.compensates = true;
        walk_plain(&plain);
        walk_panel(&improved);
        for (uint32_t r = 0; r < n; r++) {
            bool better = improved.output_error[r] < plain.output_error[r];
            if (better)
                store_row(&improved, r);
            const struct walk *kept = better ? &improved : &plain;
            result->squared_plain += plain.squared[r];
            result->squared_improved += kept->squared[r];
            result->output_plain += plain.output_error[r];
            result->output_improved += kept->output_error[r];
        }
    }
}

/* ---- A matrix ---- */

static void gptq_carve(struct moe_arena *arena, const struct job *job, struct scratch *s)
{
    uint64_t weights = (uint64_t)MOE_PANEL_ROWS * job->cols;
    uint64_t groups = (uint64_t)MOE_PANEL_ROWS * job->n_groups;
    s->carried = moe_arena_take(arena, weights, sizeof *s->carried);
    s->values = moe_arena_take(arena, weights, sizeof *s->values);
    s->wanted = moe_arena_take(arena, job->group, sizeof *s->wanted);
    s->clipped = moe_arena_take(arena, job->group, sizeof *s->clipped);
    s->codes = moe_arena_take(arena, weights, 1);
    s->trial = moe_arena_take(arena, job->group, 1);
    s->d = moe_arena_take(arena, groups, sizeof *s->d);
    s->m = moe_arena_take(arena, groups, sizeof *s->m);
}

/* Allocates scratch for all threads in one block; free() *block. */
static int open_scratch(struct job *job, uint8_t **block, struct moe_err *err)
{
    struct moe_arena arena = {0};
    int threads = moe_par_threads();
    struct scratch measured;
    moe_arena_take(&arena, (uint64_t)threads, sizeof *job->scratch);
    for (int i = 0; i < threads; i++)
        gptq_carve(&arena, job, &measured);
    *block = moe_alloc(arena.used, 1, err);
    if (!*block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = *block, .size = arena.used};
    job->scratch = moe_arena_take(&arena, (uint64_t)threads, sizeof *job->scratch);
    for (int i = 0; i < threads; i++)
        gptq_carve(&arena, job, &job->scratch[i]);
    return MOE_OK;
}

int moe_gptq_improve(struct moe_layout layout, const double *factor, const float *w, uint32_t rows,
                     uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                     struct moe_err *err)
{
    uint32_t group = layout.group && layout.group < cols ? layout.group : cols;
    uint32_t panels = moe_panels(rows);
    struct job job = {.layout = layout,
                      .factor = factor,
                      .w = w,
                      .rows = rows,
                      .cols = cols,
                      .group = group,
                      .n_groups = (cols + group - 1) / group,
                      .out = out};
    uint8_t *block = NULL;
    int status = MOE_ERR_MEMORY;
    job.results = moe_alloc(panels, sizeof *job.results, err);
    if (job.results)
        status = open_scratch(&job, &block, err);
    if (status == MOE_OK)
        moe_par_for(panels, 1, improve_panels, &job);
    for (uint32_t p = 0; status == MOE_OK && error && p < panels; p++) {
        const struct panel_result *result = &job.results[p];
        error->sum_squared_error += result->squared_improved - result->squared_plain;
        error->output_plain += result->output_plain;
        error->output_improved += result->output_improved;
    }
    free(block);
    free(job.results);
    return status;
}
