/* Encoding into the trellis kinds, with feedback of errors. */
#include "quant/trellis.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/par.h"
#include "quant/cholesky.h"
#include "quant/fit.h"

enum {
    BLOCK = MOE_TRELLIS_BLOCK,
    ENTRIES = 65536, /* of the codebook */
    CELL =
        256, /* entries near each other, which stay in the fastest cache for all rows of a task */
    CELLS = ENTRIES / CELL,
    COLUMNS = 8, /* of a group, at most */
    GROUPS = 32, /* of a block, at most */
    LANES = 16,
    ROWS = 2 * MOE_PANEL_ROWS, /* of a task */
    SCALES = 16,               /* scales tried, at most */
    FACTORS = 16,              /* factors of a row tried */
    POLISHED = 2               /* times that all groups are chosen again */
};

/* The result of a task. Results are added up in order, whichever thread computed what. */
struct task_result {
    double squared_error, squared_weight;
};

/* What a search found in each lane. */
struct found {
    float score[LANES];
    int32_t entry[LANES];
};

struct job {
    struct moe_layout layout;
    const double *factor;
    double *d; /* [cols] of the factor */
    const float *w;
    uint32_t rows, cols, n_blocks;
    uint8_t *out;
    uint32_t columns;          /* of a group */
    uint32_t n_entries;        /* among which a group chooses */
    int n_halves;              /* of the codebook, tables: a block chooses one */
    int levels[128], n_levels; /* of scales */
    int highest;               /* the greatest magnitude of a level */
    /* The scales that are tried for weights of deviation 1: n_scales from `lowest` on, in steps. */
    float lowest, step;
    int n_scales;
    float greatest; /* magnitude in the codebook */
    void (*search)(const float *book, uint32_t n, const float *norms, const float *g,
                   uint32_t first, struct found *found);
    void (*norms)(const float *book, uint32_t n, float m[COLUMNS][COLUMNS], uint32_t columns,
                  bool diagonal, float *norms);
    void (*try)(const float *book, uint32_t n, const float *norms, const float *g, const float *a,
                float *least);
    float *book;             /* [CELLS][COLUMNS][CELL] values; magnitudes in IQ3_KT */
    uint32_t *numbers;       /* [ENTRIES] of the book's entries; behind them room to sort */
    uint32_t n_cells;        /* of a trellis kind */
    float *centers;          /* [COLUMNS][CELL] means of cells */
    float spread[COLUMNS];   /* variance of a column within a cell */
    struct scratch *scratch; /* [threads] */
    struct task_result *results;
};

/* A block of columns, with its part of the factor: columns that are missing count nothing. */
struct block {
    uint32_t index, first, n;
    double d[BLOCK], r[BLOCK][BLOCK]; /* r[i][k]: i < k */
};

/* What the values v of a group of a row cost: v M v^T - 2 v L^T. */
struct metric {
    double m[COLUMNS][COLUMNS];
};
struct aim {
    double target[COLUMNS], linear[COLUMNS]; /* the best v that there could be, and L */
    float g[COLUMNS];                        /* for the search */
    int half;
};

/* A row's block as it was rounded: its values over the row's factor, what each column adds to the
 * output's error, numbers, and the sum of that. */
struct rounded {
    float values[BLOCK];
    double seen[BLOCK], cost;
    uint32_t numbers[GROUPS];
};

/* The memory of one thread. */
struct scratch {
    double *weights; /* [ROWS][cols] w_k + the sum over i < k of w_i R_ik */
    double *errors;  /* [ROWS][cols] the same of errors; of columns not rounded yet the sum alone */
    float *values;   /* [ROWS][cols] over the row's factor */
    uint16_t *numbers;        /* [ROWS][groups] */
    uint8_t *levels, *halves; /* [ROWS][blocks] */
    float *norms;             /* [CELL] c M c^T */
    uint32_t wanted[CELLS];   /* a bit for each row that looks into a cell */
    struct rounded rounded[2][ROWS];
    struct found found[ROWS];
};

struct task {
    const struct job *job;
    struct scratch *s;
    uint32_t row, n_rows;
    float factor[ROWS];
};

/* ---- The codebook ---- */

static bool is_trellis(const struct job *job)
{
    return moe_kind_is_trellis(job->layout.kind);
}

static float *book_at(const struct job *job, uint32_t x)
{
    return job->book + (uint64_t)(x / CELL) * COLUMNS * CELL + x % CELL;
}

/* Sorts n numbers by their values in a column. */
static void sort_numbers(const int8_t *values, uint32_t column, uint32_t *numbers, uint32_t n,
                         uint32_t *sorted)
{
    uint32_t at[257] = {0};
    for (uint32_t i = 0; i < n; i++)
        at[values[numbers[i] * COLUMNS + column] + 129]++;
    for (int v = 0; v < 256; v++)
        at[v + 1] += at[v];
    for (uint32_t i = 0; i < n; i++)
        sorted[at[values[numbers[i] * COLUMNS + column] + 128]++] = numbers[i];
    memcpy(numbers, sorted, n * sizeof *numbers);
}

/* Puts entries that are near each other into a cell: column after column, what is together so far
 * is halved at the middle value. `sorted` and `values` have room for all. */
static void fill_trellis(const struct job *job, uint32_t *sorted, int8_t *values)
{
    const int kind = job->layout.kind;
    uint32_t column = 0;
    for (uint32_t x = 0; x < job->n_entries; x++)
        for (uint32_t c = 0; c < job->columns; c += 4) {
            const uint32_t quad = moe_trellis_quad(kind, x + 4096, c, 0, 0);
            memcpy(values + x * COLUMNS + c, &quad, 4);
        }
    for (uint32_t n = job->n_entries; n > CELL; n /= 2, column++)
        for (uint32_t first = 0; first < job->n_entries; first += n)
            sort_numbers(values, column, job->numbers + first, n, sorted);
    for (uint32_t x = 0; x < job->n_entries; x++)
        for (uint32_t c = 0; c < job->columns; c++)
            book_at(job, x)[c * CELL] = (float)values[job->numbers[x] * COLUMNS + c];
}

/* Means of the cells, and the mean of their variances. */
static void measure_cells(struct job *job)
{
    for (uint32_t c = 0; c < job->columns; c++)
        for (uint32_t cell = 0; cell < job->n_cells; cell++) {
            const float *values = book_at(job, cell * CELL) + c * CELL;
            float sum = 0, squares = 0;
            for (uint32_t i = 0; i < CELL; i++) {
                sum += values[i];
                squares += values[i] * values[i];
            }
            job->centers[c * CELL + cell] = sum / CELL;
            job->spread[c] += (squares / CELL - sum * sum / CELL / CELL) / (float)job->n_cells;
        }
}

static void fill_book(struct job *job)
{
    const int kind = job->layout.kind;
    const uint32_t n = job->n_entries * (uint32_t)job->n_halves;
    for (uint32_t x = 0; x < n; x++)
        job->numbers[x] = x;
    for (uint32_t x = 0; x < n && !is_trellis(job); x++)
        *book_at(job, x) = (float)(moe_kind_numbers(kind)[x % job->n_entries] +
                                   (x < job->n_entries ? 0 : moe_kind_shift(kind)));
    if (is_trellis(job)) {
        fill_trellis(job, job->numbers + ENTRIES, (int8_t *)(job->numbers + 2 * ENTRIES));
        measure_cells(job);
    }
    for (uint32_t x = 0; x < n; x++)
        for (uint32_t i = 0; i < job->columns; i++)
            job->greatest = moe_fit_max(fabsf(book_at(job, x)[i * CELL]), job->greatest);
}

static bool has_signs(const struct job *job)
{
    return job->layout.kind == MOE_LAYOUT_IQ3_KT;
}

/* norms[x] = c m c^T for n entries of a cell, m upper triangular; or of its diagonal. */
#define MOE_NORMS(name, reals, clones)                                                             \
    clones static void norms_##name(const float *book, uint32_t n, float m[COLUMNS][COLUMNS],      \
                                    uint32_t columns, bool diagonal, float *norms)                 \
    {                                                                                              \
        for (uint32_t x = 0; x < n; x += sizeof(reals) / sizeof(float)) {                          \
            reals sum = {0};                                                                       \
            for (uint32_t i = 0; i < columns; i++) {                                               \
                reals row = {0};                                                                   \
                for (uint32_t j = i; j < (diagonal ? i + 1 : columns); j++)                        \
                    row += m[i][j] * *(const reals *)(book + j * CELL + x);                        \
                sum += row * *(const reals *)(book + i * CELL + x);                                \
            }                                                                                      \
            *(reals *)(norms + x) = sum;                                                           \
        }                                                                                          \
    }
/* Notes in each lane the entry of a cell with the least norm - g c; `first` is its number. And for
 * several scales at once: least[i] becomes the least norm - a[i] (g c). Once for vectors of 16
 * lanes, once for pairs of 8, which processors without AVX-512 have registers for. */
#define MOE_SEARCH(name, columns, scales, reals, wholes, clones)                                   \
    clones static void search_##name(const float *book, uint32_t n, const float *norms,            \
                                     const float *g, uint32_t first, struct found *found)          \
    {                                                                                              \
        enum { WIDE = sizeof(reals) / sizeof(float), PARTS = LANES / WIDE };                       \
        for (int part = 0; part < PARTS; part++) {                                                 \
            reals best = *(const reals *)(found->score + part * WIDE);                             \
            wholes at = *(const wholes *)(found->entry + part * WIDE);                             \
            for (uint32_t x = 0; x < n; x += LANES) {                                              \
                const float *entry = book + x + part * WIDE;                                       \
                reals score = *(const reals *)(norms + x + part * WIDE);                           \
                for (uint32_t k = 0; k < columns; k++)                                             \
                    score -= g[k] * *(const reals *)(entry + k * CELL);                            \
                wholes less = score < best, here = {0};                                            \
                here += (int32_t)(first + x);                                                      \
                best = (reals)((less & (wholes)score) | (~less & (wholes)best));                   \
                at = (less & here) | (~less & at);                                                 \
            }                                                                                      \
            *(reals *)(found->score + part * WIDE) = best;                                         \
            *(wholes *)(found->entry + part * WIDE) = at;                                          \
        }                                                                                          \
    }                                                                                              \
    clones static void try_##name(const float *book, uint32_t n, const float *norms,               \
                                  const float *g, const float *a, float *least)                    \
    {                                                                                              \
        enum { WIDE = sizeof(reals) / sizeof(float), PARTS = LANES / WIDE };                       \
        for (int part = 0; part < PARTS; part++) {                                                 \
            reals best[scales];                                                                    \
            for (int i = 0; i < scales; i++)                                                       \
                best[i] = *(const reals *)(least + i * LANES + part * WIDE);                       \
            for (uint32_t x = 0; x < n; x += LANES) {                                              \
                const float *entry = book + x + part * WIDE;                                       \
                reals dot = {0}, norm = *(const reals *)(norms + x + part * WIDE);                 \
                for (uint32_t k = 0; k < columns; k++)                                             \
                    dot += g[k] * *(const reals *)(entry + k * CELL);                              \
                for (int i = 0; i < scales; i++) {                                                 \
                    reals score = norm - a[i] * dot;                                               \
                    wholes less = score < best[i];                                                 \
                    best[i] = (reals)((less & (wholes)score) | (~less & (wholes)best[i]));         \
                }                                                                                  \
            }                                                                                      \
            for (int i = 0; i < scales; i++)                                                       \
                *(reals *)(least + i * LANES + part * WIDE) = best[i];                             \
        }                                                                                          \
    }
typedef float reals8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t wholes8 __attribute__((vector_size(32), aligned(4), may_alias));
MOE_NORMS(by_8, reals8, MOE_CLONES)
MOE_SEARCH(1_by_8, 1, 16, reals8, wholes8, MOE_CLONES)
MOE_SEARCH(8_by_8, 8, 8, reals8, wholes8, MOE_CLONES)
#ifdef __x86_64__
typedef float reals16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t wholes16 __attribute__((vector_size(64), aligned(4), may_alias));
#define MOE_WIDE __attribute__((target("avx512f")))
MOE_NORMS(by_16, reals16, MOE_WIDE)
MOE_SEARCH(1_by_16, 1, 16, reals16, wholes16, MOE_WIDE)
MOE_SEARCH(8_by_16, 8, 8, reals16, wholes16, MOE_WIDE)
#endif

/* norms[x] = c M c^T / unit for n entries of a cell; or of the diagonal of M. */
static void set_norms(const struct job *job, const float *book, uint32_t n,
                      const struct metric *metric, double unit, float *norms)
{
    float m[COLUMNS][COLUMNS];
    for (uint32_t i = 0; i < job->columns; i++)
        for (uint32_t j = i; j < job->columns; j++)
            m[i][j] = (float)(unit > 0 ? (i == j ? 1 : 2) * metric->m[i][j] / unit : 0);
    job->norms(book, n, m, job->columns, has_signs(job), norms);
}

/* Chooses the functions for this processor; all find the same. */
static void choose_searches(struct job *job)
{
    job->search = job->columns == 1 ? search_1_by_8 : search_8_by_8;
    job->try = job->columns == 1 ? try_1_by_8 : try_8_by_8;
    job->norms = norms_by_8;
#ifdef __x86_64__
    if (moe_cpu_supports(MOE_CPU_AVX512)) {
        job->search = job->columns == 1 ? search_1_by_16 : search_8_by_16;
        job->try = job->columns == 1 ? try_1_by_16 : try_8_by_16;
        job->norms = norms_by_16;
    }
#endif
}

/* ---- Blocks and groups ---- */

static struct block block_of(const struct job *job, uint32_t index)
{
    struct block b = {.index = index, .first = index * BLOCK};
    b.n = job->cols - b.first < BLOCK ? job->cols - b.first : BLOCK;
    for (uint32_t i = 0; i < b.n; i++) {
        b.d[i] = job->d[b.first + i];
        for (uint32_t k = i + 1; job->factor && k < b.n; k++)
            b.r[i][k] = job->factor[(uint64_t)(b.first + i) * job->cols + b.first + k];
    }
    return b;
}

/* M of a group whose later columns make up for its errors: those of its own columns only count. */
static struct metric metric_of(const struct job *job, const struct block *b, uint32_t first)
{
    struct metric of;
    for (uint32_t i = 0; i < job->columns; i++)
        for (uint32_t j = i; j < job->columns; j++) {
            double sum = 0;
            for (uint32_t k = j; k < job->columns; k++)
                sum += (k == i ? 1 : b->r[first + i][first + k]) * b->d[first + k] *
                       (k == j ? 1 : b->r[first + j][first + k]);
            of.m[i][j] = of.m[j][i] = sum;
        }
    return of;
}

/* Sets the linear part from the target. */
static void aim_at(const struct job *job, const struct metric *metric, struct aim *aim)
{
    for (uint32_t i = 0; i < job->columns; i++) {
        aim->linear[i] = 0;
        for (uint32_t j = 0; j < job->columns; j++)
            aim->linear[i] += metric->m[i][j] * aim->target[j];
    }
}

/* Sets columns [first, first + n) of `target` to weights that make up for all errors before. `w`
 * and `errors` are the block's, of a row. */
static void correct(const struct block *b, const float *w, const double *errors, uint32_t first,
                    uint32_t n, double *target)
{
    double e[BLOCK];
    for (uint32_t k = 0; k < n; k++) {
        double sum = first + k < b->n ? errors[first + k] : 0;
        for (uint32_t i = 0; i < k; i++)
            sum += e[i] * b->r[first + i][first + k];
        e[k] = -sum;
        target[k] = (first + k < b->n ? (double)w[first + k] : 0) - e[k];
    }
}

/* The linear part as the search takes it, for values times `scale`; M as it takes it is divided by
 * `unit`. */
static void set_search(const struct job *job, const struct metric *metric, double unit, float scale,
                       struct aim *aim)
{
    for (uint32_t i = 0; i < job->columns; i++) {
        double linear = has_signs(job) ? metric->m[i][i] * fabs(aim->target[i]) : aim->linear[i];
        aim->g[i] = scale != 0 && unit > 0 ? (float)(2 * linear / unit / (double)scale) : 0;
    }
}

static double unit_of(const struct job *job, const struct metric *metric)
{
    double unit = 0;
    for (uint32_t i = 0; i < job->columns; i++)
        unit = metric->m[i][i] > unit ? metric->m[i][i] : unit;
    return unit;
}

static double cost_of(const struct job *job, const struct metric *metric, const struct aim *aim,
                      float factor, const float *values)
{
    double cost = 0;
    for (uint32_t i = 0; i < job->columns; i++) {
        double sum = -2 * aim->linear[i];
        for (uint32_t j = 0; j < job->columns; j++)
            sum += metric->m[i][j] * (double)(factor * values[j]);
        cost += sum * (double)(factor * values[i]);
    }
    return cost;
}

/* ---- Cells ---- */

/* How far above the best cell's score others are looked into, in the variance within cells, and the
 * same where a scale is tried. On correlated inputs 0.3% (IQ3_KT) to 3% (IQ2_KT) of the outputs'
 * errors are added in 35 to 45% of the time that all cells take. */
static const float REACH = 1.5f, SCALES_REACH = 0.8f;

/* The least norm - a g c among the centers, and whether each cell's is near it. */
MOE_CLONES
static void see_cells(const float *centers, uint32_t n, const float *norms, const float *g, float a,
                      float reach, uint32_t bit, uint32_t *wanted)
{
    float scores[CELLS], least = INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        float dot = 0;
        for (uint32_t k = 0; k < COLUMNS; k++)
            dot += g[k] * centers[k * CELL + i];
        scores[i] = norms[i] - a * dot;
    }
    for (uint32_t i = 0; i < n; i++)
        least = scores[i] < least ? scores[i] : least;
    for (uint32_t i = 0; i < n; i++)
        wanted[i] |= scores[i] <= least + reach ? bit : 0;
}

/* Notes which cells each row looks into for a group, at n_scales of its scales; NULL: at its own.
 * Of tables there is one for all. */
static void choose_cells(struct task *task, const struct metric *metric, double unit,
                         const struct aim aim[ROWS], float (*a)[SCALES])
{
    const struct job *job = task->job;
    struct scratch *s = task->s;
    float reach = 0;
    if (!is_trellis(job)) {
        s->wanted[0] = UINT32_MAX;
        return;
    }
    memset(s->wanted, 0, sizeof s->wanted);
    for (uint32_t i = 0; i < job->columns && unit > 0; i++)
        reach += (a ? SCALES_REACH : REACH) * (float)(metric->m[i][i] / unit) * job->spread[i];
    set_norms(job, job->centers, job->n_cells, metric, unit, s->norms);
    for (uint32_t r = 0; r < task->n_rows; r++)
        for (int i = 0; i < (a ? 3 : 1); i++)
            see_cells(job->centers, job->n_cells, s->norms, aim[r].g,
                      a ? a[r][i * (job->n_scales - 1) / 2] : 1, reach, UINT32_C(1) << r,
                      s->wanted);
}

/* ---- Scales ---- */

/* The level nearest to a magnitude. */
static int nearest_level(const struct job *job, float wanted)
{
    int best = 0;
    for (int i = 1; i < job->n_levels; i++)
        if (fabsf(fabsf((float)job->levels[i]) - wanted) <
            fabsf(fabsf((float)job->levels[best]) - wanted))
            best = i;
    return best;
}

/* The deviation of a block's targets. */
static float deviation(const struct block *b, const double *target)
{
    double sum = 0, all = 0;
    for (uint32_t k = 0; k < b->n; k++) {
        sum += b->d[k] * target[k] * target[k];
        all += b->d[k];
    }
    return all > 0 ? (float)sqrt(sum / all) : 0;
}

/* Whether the greatest of a block's targets is negative. *counts: the greatest magnitude, where
 * one that counts less than the others is as much less. */
static bool reaches_below(const struct block *b, const double *target, float *counts)
{
    double greatest = 0, all = 0, most = 0;
    for (uint32_t k = 0; k < b->n; k++) {
        greatest = fabs(target[k]) > fabs(greatest) ? target[k] : greatest;
        all += b->d[k];
    }
    for (uint32_t k = 0; k < b->n; k++)
        most = fmax(most, fabs(target[k]) * fmin(1, sqrt(b->d[k] * b->n / all)));
    *counts = (float)most;
    return greatest < 0;
}

/* The ith of the scales at which weights are tried. They go as far up as normal weights want, or
 * as the greatest does: a column of outliers, which many models have, is not cut off. */
static float scale_at(const struct job *job, float deviation, float greatest, int i)
{
    const float lowest = deviation * job->lowest,
                usual = deviation * (job->lowest + job->step * (float)(job->n_scales - 1)),
                most = greatest / job->greatest;
    return most > usual ? lowest + (most - lowest) * (float)i / (float)(job->n_scales - 1)
                        : deviation * (job->lowest + job->step * (float)i);
}

/* What scale the weights of a block want, at most. */
static float plain_scale(const struct job *job, const float *w, uint32_t index)
{
    float sum = 0, greatest = 0;
    for (uint32_t k = index * BLOCK; k < job->cols && k < (index + 1) * BLOCK; k++) {
        sum += w[k] * w[k];
        greatest = moe_fit_max(fabsf(w[k]), greatest);
    }
    return scale_at(job, sqrtf(sum / BLOCK), greatest, job->n_scales - 1);
}

/* Chooses the row's factor so that the levels come near to what its blocks want, with room above
 * for what errors add. */
static float choose_factor(const struct job *job, const float *w)
{
    float best = 0, most = 0;
    double least = INFINITY;
    for (uint32_t i = 0; i < job->n_blocks; i++)
        most = moe_fit_max(plain_scale(job, w, i), most);
    for (int f = 0; f < FACTORS && most > 0; f++) {
        float factor = most / ((float)job->highest * (0.85f + 0.0175f * (float)f));
        double sum = 0;
        for (uint32_t i = 0; i < job->n_blocks; i++) {
            float ideal = plain_scale(job, w, i) / factor;
            double off = (fabs((double)job->levels[nearest_level(job, ideal)]) - (double)ideal) *
                         (double)factor;
            sum += off * off;
        }
        if (sum < least) {
            least = sum;
            best = factor;
        }
    }
    return best;
}

/* The scales that a row tries. Tables reach further among the negative numbers: these are for the
 * side on which the weights do. */
static void scales_of(const struct job *job, const struct block *b, const double *target,
                      float factor, int level[SCALES], float a[SCALES])
{
    float greatest;
    const float all = deviation(b, target);
    const bool negative = reaches_below(b, target, &greatest);
    for (int i = 0; i < job->n_scales; i++) {
        const float wanted = scale_at(job, all, greatest, i);
        level[i] = factor > 0 ? nearest_level(job, wanted / factor) : 0;
        if (!is_trellis(job) && (job->levels[level[i]] < 0) == negative)
            level[i] = job->n_levels - 1 - level[i];
        float scale = factor * (float)job->levels[level[i]];
        a[i] = scale != 0 ? 2 / scale : 0;
    }
}

/* Chooses the rows' scales of a block by the errors that they would leave if no group made up for
 * another. */
static void choose_scales(struct task *task, const struct block *b)
{
    const struct job *job = task->job;
    struct scratch *s = task->s;
    const uint32_t cell = job->n_entries < CELL ? job->n_entries : CELL;
    double target[ROWS][BLOCK], cost[ROWS][SCALES] = {{0}};
    int level[ROWS][SCALES];
    float a[ROWS][SCALES];
    for (uint32_t r = 0; r < task->n_rows; r++) {
        correct(b, job->w + (uint64_t)(task->row + r) * job->cols + b->first,
                s->errors + (uint64_t)r * job->cols + b->first, 0, BLOCK, target[r]);
        scales_of(job, b, target[r], task->factor[r], level[r], a[r]);
    }
    for (uint32_t first = 0; first < b->n; first += job->columns) {
        const struct metric metric = metric_of(job, b, first);
        const double unit = unit_of(job, &metric);
        struct aim aim[ROWS];
        float least[ROWS][SCALES][LANES];
        for (uint32_t r = 0; r < task->n_rows; r++) {
            memcpy(aim[r].target, target[r] + first, job->columns * sizeof(double));
            aim_at(job, &metric, &aim[r]);
            set_search(job, &metric, unit, 2, &aim[r]);
            for (int i = 0; i < job->n_scales * LANES; i++)
                least[r][i / LANES][i % LANES] = INFINITY;
        }
        choose_cells(task, &metric, unit, aim, a);
        for (uint32_t x = 0; x < job->n_entries; x += CELL) {
            const float *book = book_at(job, x);
            const uint32_t wanted = s->wanted[x / CELL];
            if (wanted)
                set_norms(job, book, cell, &metric, unit, s->norms);
            for (uint32_t r = 0; r < task->n_rows; r++)
                if (wanted >> r & 1)
                    job->try(book, cell, s->norms, aim[r].g, a[r], least[r][0]);
        }
        for (uint32_t r = 0; r < task->n_rows; r++)
            for (int i = 0; i < job->n_scales; i++) {
                float of_lane = INFINITY, scale = task->factor[r] * (float)job->levels[level[r][i]];
                for (int lane = 0; lane < LANES; lane++)
                    of_lane = moe_fit_min(least[r][i][lane], of_lane);
                cost[r][i] += unit * (double)(scale * scale) * (double)of_lane;
            }
    }
    for (uint32_t r = 0; r < task->n_rows; r++) {
        int best = 0;
        for (int i = 1; i < job->n_scales; i++)
            if (cost[r][i] < cost[r][best])
                best = i;
        s->levels[(uint64_t)r * job->n_blocks + b->index] = (uint8_t)level[r][best];
    }
}

/* ---- Rounding ---- */

/* The scale of a row's block, over the row's factor. */
static float scale_of(const struct task *task, uint32_t r, uint32_t block)
{
    return (float)task->job->levels[task->s->levels[(uint64_t)r * task->job->n_blocks + block]];
}

/* Searches the halves of the codebook that the rows name for the entries that cost them least in a
 * group. */
static void search(struct task *task, const struct metric *metric, uint32_t block,
                   struct aim aim[ROWS])
{
    const struct job *job = task->job;
    struct scratch *s = task->s;
    const double unit = unit_of(job, metric);
    const uint32_t cell = job->n_entries < CELL ? job->n_entries : CELL;
    bool halves[2] = {false, false};
    for (uint32_t r = 0; r < task->n_rows; r++) {
        set_search(job, metric, unit, task->factor[r] * scale_of(task, r, block), &aim[r]);
        for (int lane = 0; lane < LANES; lane++) {
            s->found[r].score[lane] = INFINITY;
            s->found[r].entry[lane] = aim[r].half * (int32_t)job->n_entries;
        }
        halves[aim[r].half] = true;
    }
    choose_cells(task, metric, unit, aim, NULL);
    for (int half = 0; half < job->n_halves; half++)
        for (uint32_t x = (uint32_t)half * job->n_entries;
             halves[half] && x < (uint32_t)(half + 1) * job->n_entries; x += cell) {
            const float *book = book_at(job, x);
            const uint32_t wanted = s->wanted[x / CELL];
            if (wanted)
                set_norms(job, book, cell, metric, unit, s->norms);
            for (uint32_t r = 0; r < task->n_rows; r++)
                if (aim[r].half == half && wanted >> r & 1)
                    job->search(book, cell, s->norms, aim[r].g, x, &s->found[r]);
        }
}

/* Takes the best of what the search found for a group of a row, if it costs less than *least: sets
 * *number and `values`. */
static void take_found(const struct task *task, const struct metric *metric, const struct aim *aim,
                       uint32_t r, uint32_t block, double *least, uint32_t *number, float *values)
{
    const struct job *job = task->job;
    const float scale = scale_of(task, r, block);
    float trial[COLUMNS], best[COLUMNS] = {0};
    double cost_best = INFINITY;
    uint32_t at = 0;
    for (int lane = 0; lane < LANES; lane++) {
        const uint32_t x = (uint32_t)(task->s->found[r].entry[lane] + lane);
        const float *entry = book_at(job, x);
        for (uint32_t k = 0; k < job->columns; k++)
            trial[k] =
                scale * (has_signs(job) && aim->target[k] < 0 ? -entry[k * CELL] : entry[k * CELL]);
        double cost = cost_of(job, metric, aim, task->factor[r], trial);
        if (cost < cost_best) {
            cost_best = cost;
            at = x;
            memcpy(best, trial, sizeof best);
        }
    }
    for (uint32_t k = 0; has_signs(job) && k < job->columns; k++) {
        best[k] = -best[k];
        double cost = cost_of(job, metric, aim, task->factor[r], best);
        if (cost < cost_best)
            cost_best = cost;
        else
            best[k] = -best[k];
    }
    if (!(cost_best < *least))
        return;
    *least = cost_best;
    *number = job->numbers[at];
    memcpy(values, best, job->columns * sizeof *values);
}

/* Rounds a block of all rows by numbers of one half of the codebook, group after group. */
static void round_block(struct task *task, const struct block *b, int half,
                        struct rounded out[ROWS])
{
    const struct job *job = task->job;
    const uint32_t n = job->columns;
    for (uint32_t r = 0; r < task->n_rows; r++) {
        out[r] = (struct rounded){.cost = 0};
        memcpy(out[r].seen, task->s->errors + (uint64_t)r * job->cols + b->first,
               b->n * sizeof(double));
    }
    for (uint32_t first = 0; first < b->n; first += n) {
        const struct metric metric = metric_of(job, b, first);
        struct aim aim[ROWS];
        for (uint32_t r = 0; r < task->n_rows; r++) {
            aim[r].half = half;
            correct(b, job->w + (uint64_t)(task->row + r) * job->cols + b->first, out[r].seen,
                    first, n, aim[r].target);
            aim_at(job, &metric, &aim[r]);
        }
        search(task, &metric, b->index, aim);
        for (uint32_t r = 0; r < task->n_rows; r++) {
            const float *w = job->w + (uint64_t)(task->row + r) * job->cols + b->first;
            double least = INFINITY;
            take_found(task, &metric, &aim[r], r, b->index, &least, &out[r].numbers[first / n],
                       out[r].values + first);
            for (uint32_t k = first; k < first + n && k < b->n; k++) {
                const double e = (double)w[k] - (double)(task->factor[r] * out[r].values[k]);
                out[r].seen[k] += e;
                out[r].cost += b->d[k] * out[r].seen[k] * out[r].seen[k];
                for (uint32_t later = k + 1; later < b->n; later++)
                    out[r].seen[later] += e * b->r[k][later];
            }
        }
    }
}

/* Rounds a block of all rows of a task. */
static void encode_block(struct task *task, const struct block *b)
{
    const struct job *job = task->job;
    struct scratch *s = task->s;
    const uint32_t end = b->first + b->n, n_groups = job->n_blocks * BLOCK / job->columns;
    choose_scales(task, b);
    for (int half = 0; half < job->n_halves; half++)
        round_block(task, b, half, s->rounded[half]);
    for (uint32_t r = 0; r < task->n_rows; r++) {
        const float *w = job->w + (uint64_t)(task->row + r) * job->cols + b->first;
        const uint64_t row = (uint64_t)r * job->cols;
        const int half = job->n_halves > 1 && s->rounded[1][r].cost < s->rounded[0][r].cost;
        const struct rounded *best = &s->rounded[half][r];
        double e[BLOCK];
        s->halves[(uint64_t)r * job->n_blocks + b->index] = (uint8_t)half;
        for (uint32_t g = 0; g < BLOCK / job->columns; g++)
            s->numbers[(uint64_t)r * n_groups + b->first / job->columns + g] =
                (uint16_t)best->numbers[g];
        memcpy(s->values + row + b->first, best->values, b->n * sizeof(float));
        memcpy(s->errors + row + b->first, best->seen, b->n * sizeof(double));
        for (uint32_t k = 0; k < b->n; k++)
            e[k] = (double)w[k] - (double)(task->factor[r] * best->values[k]);
        if (job->factor)
            moe_factor_carry(e, b->n, job->factor + (uint64_t)b->first * job->cols, job->cols, end,
                             job->cols, s->errors + row);
    }
}

/* ---- Rounding again, when all columns are rounded ---- */

/* The sum of a[k] b[k] c[k], in a fixed order. */
MOE_CLONES
static double product(const double *a, const double *b, const double *c, uint32_t n)
{
    double sums[8] = {0}, sum = 0;
    uint32_t k = 0;
    for (; k + 8 <= n; k += 8)
        for (int i = 0; i < 8; i++)
            sums[i] += a[k + (uint32_t)i] * b[k + (uint32_t)i] * c[k + (uint32_t)i];
    for (; k < n; k++)
        sum += a[k] * b[k] * c[k];
    return sum + (((sums[0] + sums[4]) + (sums[1] + sums[5])) +
                  ((sums[2] + sums[6]) + (sums[3] + sums[7])));
}

/* M of a group when all other columns stay: that part of H. */
static struct metric metric_whole(const struct job *job, uint32_t first, uint32_t n)
{
    struct metric of = {{{0}}};
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i; j < n; j++) {
            const double *ri = job->factor + (uint64_t)(first + i) * job->cols;
            const double *rj = job->factor + (uint64_t)(first + j) * job->cols;
            const uint32_t from = first + j;
            double sum = (i == j ? 1 : ri[from]) * job->d[from];
            sum += product(ri + from + 1, rj + from + 1, job->d + from + 1, job->cols - from - 1);
            of.m[i][j] = of.m[j][i] = sum;
        }
    return of;
}

/* Solves M x = b for a positive definite M, by elimination. */
static void solve(const struct metric *metric, uint32_t n, const double *b, double *x)
{
    double m[COLUMNS][COLUMNS];
    memcpy(m, metric->m, sizeof m);
    memcpy(x, b, n * sizeof *x);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n; j++) {
            const double share = m[i][i] > 0 ? m[j][i] / m[i][i] : 0;
            for (uint32_t k = i; k < n; k++)
                m[j][k] -= share * m[i][k];
            x[j] -= share * x[i];
        }
    for (uint32_t i = n; i-- > 0;) {
        for (uint32_t k = i + 1; k < n; k++)
            x[i] -= m[i][k] * x[k];
        x[i] = m[i][i] > 0 ? x[i] / m[i][i] : 0;
    }
}

/* Gives a group of all rows the numbers that cost least while all other columns stay as they are.
 */
static void polish_group(struct task *task, uint32_t first)
{
    const struct job *job = task->job;
    struct scratch *s = task->s;
    const uint32_t n = job->cols - first < job->columns ? job->cols - first : job->columns;
    const uint32_t block = first / BLOCK, n_groups = job->n_blocks * BLOCK / job->columns;
    const struct metric metric = metric_whole(job, first, n);
    struct aim aim[ROWS] = {{{0}, {0}, {0}, 0}};
    for (uint32_t r = 0; r < task->n_rows; r++) {
        const double *errors = s->errors + (uint64_t)r * job->cols;
        const float *values = s->values + (uint64_t)r * job->cols + first;
        double pull[COLUMNS], moved[COLUMNS];
        aim[r].half = s->halves[(uint64_t)r * job->n_blocks + block];
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t at = first + i;
            const double *row = job->factor + (uint64_t)at * job->cols;
            pull[i] = job->d[at] * errors[at] +
                      product(row + at + 1, job->d + at + 1, errors + at + 1, job->cols - at - 1);
        }
        solve(&metric, n, pull, moved);
        for (uint32_t i = 0; i < n; i++)
            aim[r].target[i] = moved[i] + (double)(task->factor[r] * values[i]);
        aim_at(job, &metric, &aim[r]);
    }
    search(task, &metric, block, aim);
    for (uint32_t r = 0; r < task->n_rows; r++) {
        double *errors = s->errors + (uint64_t)r * job->cols;
        float *values = s->values + (uint64_t)r * job->cols + first, old[COLUMNS] = {0},
              now[COLUMNS];
        memcpy(old, values, n * sizeof *values);
        memcpy(now, old, sizeof now);
        double least = cost_of(job, &metric, &aim[r], task->factor[r], old);
        uint32_t number = s->numbers[(uint64_t)r * n_groups + first / job->columns];
        take_found(task, &metric, &aim[r], r, block, &least, &number, now);
        s->numbers[(uint64_t)r * n_groups + first / job->columns] = (uint16_t)number;
        memcpy(values, now, n * sizeof *values);
        for (uint32_t i = 0; i < n; i++) {
            const double e =
                (double)(task->factor[r] * old[i]) - (double)(task->factor[r] * now[i]);
            const uint32_t at = first + i;
            errors[at] += e;
            moe_factor_carry(&e, 1, job->factor + (uint64_t)at * job->cols, 0, at + 1, job->cols,
                             errors);
        }
    }
}

/* ---- Rows ---- */

/* Fits a row's factor to its numbers by least squares. */
static void refit(struct task *task, uint32_t r)
{
    const struct job *job = task->job;
    const double *weights = task->s->weights + (uint64_t)r * job->cols,
                 old = (double)task->factor[r];
    double *errors = task->s->errors + (uint64_t)r * job->cols, both = 0, square = 0;
    for (uint32_t k = 0; k < job->cols && old > 0; k++) {
        const double value = (weights[k] - errors[k]) / old;
        both += job->d[k] * weights[k] * value;
        square += job->d[k] * value * value;
    }
    const float factor = (float)(both / square);
    if (!(both > 0) || !(square > 0) || !isfinite(factor))
        return;
    task->factor[r] = factor;
    for (uint32_t k = 0; k < job->cols; k++)
        errors[k] = weights[k] - (double)factor * ((weights[k] - errors[k]) / old);
}

/* Writes a block into its span (layout.h). */
static void put_codes(const struct job *job, uint32_t b, uint32_t level, uint32_t half,
                      const uint16_t *x, const float *values, struct moe_span_codes *span)
{
    uint8_t *words = span->codes + BLOCK * b;
    uint32_t byte = level, signs = 0;
    switch (job->layout.kind) {
    case MOE_LAYOUT_IQ1_KT:
        for (uint32_t g = 0; g < 4; g++) {
            words[g] = x[g] & 255;
            span->t[2 * b + g / 2] |= (uint8_t)((x[g] >> 8 & 15) << g % 2 * 4);
            byte |= (uint32_t)(x[g] >> 12) << (4 + g);
        }
        break;
    case MOE_LAYOUT_IQ4_KS:
    case MOE_LAYOUT_IQ5_KS:
        for (uint32_t c = 0; c < BLOCK; c++)
            words[c] = (uint8_t)(x[c] - half * job->n_entries);
        span->t[b] = (uint8_t)half;
        break;
    default:
        for (uint32_t j = 0; j < 2; j++)
            moe_put_u32(words + 4 * j, x[2 * j] | (uint32_t)x[2 * j + 1] << 16);
        for (uint32_t c = 0; c < BLOCK; c++)
            signs |= (uint32_t)(values[c] < 0) << (8 * (c % 4) + c / 4);
        if (has_signs(job))
            moe_put_u32(words + 8, signs);
        break;
    }
    span->s[b] = (uint8_t)byte;
}

/* Stores a row, and adds its errors up. */
static void end_row(const struct task *task, uint32_t r, struct task_result *result)
{
    const struct job *job = task->job;
    const struct scratch *s = task->s;
    const float *w = job->w + (uint64_t)(task->row + r) * job->cols;
    const float *values = s->values + (uint64_t)r * job->cols;
    const uint32_t n_groups = BLOCK / job->columns;
    for (uint32_t k = 0; k < job->cols; k++) {
        const double e = (double)w[k] - (double)(task->factor[r] * values[k]);
        result->squared_error += e * e;
        result->squared_weight += (double)w[k] * (double)w[k];
    }
    for (uint32_t b = 0; b < job->n_blocks; b += MOE_MAX_SPAN / BLOCK) {
        struct moe_span_codes span = {.factor = task->factor[r]};
        for (uint32_t i = 0; i < MOE_MAX_SPAN / BLOCK && b + i < job->n_blocks; i++) {
            const uint64_t at = (uint64_t)r * job->n_blocks + b + i;
            float of_block[BLOCK] = {0};
            uint32_t first = (b + i) * BLOCK,
                     n = job->cols - first < BLOCK ? job->cols - first : BLOCK;
            memcpy(of_block, values + first, n * sizeof *values);
            put_codes(job, i, s->levels[at], s->halves[at], s->numbers + at * n_groups, of_block,
                      &span);
        }
        moe_layout_store_span(job->out, job->layout, job->cols, task->row + r,
                              b / (MOE_MAX_SPAN / BLOCK), &span);
    }
}

static void encode_tasks(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *job = ctx;
    struct scratch *s = &job->scratch[thread];
    for (int64_t i = begin; i < end; i++) {
        struct task task = {.job = job, .s = s, .row = (uint32_t)i * ROWS};
        task.n_rows = job->rows - task.row < ROWS ? job->rows - task.row : ROWS;
        memset(s->errors, 0, (uint64_t)ROWS * job->cols * sizeof *s->errors);
        for (uint32_t r = 0; r < task.n_rows; r++) {
            task.factor[r] = choose_factor(job, job->w + (uint64_t)(task.row + r) * job->cols);
            moe_factor_see(job->factor, job->cols, job->w + (uint64_t)(task.row + r) * job->cols,
                           s->weights + (uint64_t)r * job->cols);
        }
        for (uint32_t b = 0; b < job->n_blocks; b++) {
            const struct block block = block_of(job, b);
            encode_block(&task, &block);
        }
        for (int pass = 0; pass <= POLISHED; pass++) {
            for (uint32_t r = 0; r < task.n_rows; r++)
                refit(&task, r);
            for (uint32_t first = 0; job->factor && pass < POLISHED && first < job->cols;
                 first += job->columns)
                polish_group(&task, first);
        }
        for (uint32_t r = 0; r < task.n_rows; r++)
            end_row(&task, r, &job->results[i]);
    }
}

/* ---- A matrix ---- */

static void carve(struct moe_arena *arena, const struct job *job, struct scratch *s)
{
    const uint64_t weights = (uint64_t)ROWS * job->cols, blocks = (uint64_t)ROWS * job->n_blocks;
    s->weights = moe_arena_take(arena, weights, sizeof *s->weights);
    s->errors = moe_arena_take(arena, weights, sizeof *s->errors);
    s->values = moe_arena_take(arena, weights, sizeof *s->values);
    s->numbers = moe_arena_take(arena, blocks * BLOCK / job->columns, sizeof *s->numbers);
    s->levels = moe_arena_take(arena, blocks, sizeof *s->levels);
    s->halves = moe_arena_take(arena, blocks, sizeof *s->halves);
    s->norms = moe_arena_take(arena, CELL, sizeof *s->norms);
}

/* Allocates scratch for all threads in one block; free() *block. */
static int open_scratch(struct job *job, uint8_t **block, struct moe_err *err)
{
    struct moe_arena arena = {0};
    for (int pass = 0; pass < 2; pass++) {
        struct scratch *all = moe_arena_take(&arena, (uint64_t)moe_par_threads(), sizeof *all),
                       counted;
        job->book = moe_arena_take(&arena, (uint64_t)ENTRIES * COLUMNS, sizeof *job->book);
        job->centers = moe_arena_take(&arena, COLUMNS * CELL, sizeof *job->centers);
        job->numbers = moe_arena_take(&arena, (2 + COLUMNS / 4) * ENTRIES, sizeof *job->numbers);
        job->d = moe_arena_take(&arena, job->cols, sizeof *job->d);
        for (int i = 0; i < moe_par_threads(); i++)
            carve(&arena, job, pass ? &all[i] : &counted);
        job->scratch = all;
        if (pass == 0) {
            *block = moe_alloc(arena.used, 1, err);
            if (!*block)
                return MOE_ERR_MEMORY;
            arena = (struct moe_arena){.base = *block, .size = arena.used};
        }
    }
    return MOE_OK;
}

/* What the kind is made of. */
static void set_kind(struct job *job)
{
    const int kind = job->layout.kind;
    job->n_levels = is_trellis(job) ? 16 : 128;
    for (int s = 0; s < job->n_levels; s++) {
        job->levels[s] = is_trellis(job)
                             ? moe_trellis_scale(kind, (uint8_t)s)
                             : moe_kind_scale_step(kind) * s - moe_kind_scale_zero(kind);
        job->highest = abs(job->levels[s]) > job->highest ? abs(job->levels[s]) : job->highest;
    }
    job->columns = is_trellis(job) ? moe_trellis_columns(kind) : 1;
    job->n_halves = is_trellis(job) ? 1 : 2;
    job->n_entries = kind == MOE_LAYOUT_IQ1_KT ? ENTRIES / 8
                     : is_trellis(job)         ? ENTRIES
                                               : 1u << moe_layout_bits(job->layout.kind);
    choose_searches(job);
    job->n_cells = is_trellis(job) ? job->n_entries / CELL : 1;
    /* The values of a trellis have the deviation 36.9; a table's greatest, some 120, is about that
     * of the block. */
    job->n_scales = is_trellis(job) ? 8 : 16;
    job->lowest = is_trellis(job) ? 0.7f / 36.9f : 1.6f / 120;
    job->step = is_trellis(job) ? 0.1f / 36.9f : 0.1f / 120;
}

int moe_trellis_encode(struct moe_layout layout, const double *factor, const float *w,
                       uint32_t rows, uint32_t cols, uint8_t *out, struct moe_quant_error *error,
                       struct moe_err *err)
{
    struct job job = {
        .layout = layout, .factor = factor, .w = w, .rows = rows, .cols = cols, .out = out};
    const uint32_t n_tasks = (rows + ROWS - 1) / ROWS;
    uint8_t *block = NULL;
    int status = MOE_ERR_MEMORY;
    job.n_blocks = (cols + BLOCK - 1) / BLOCK;
    set_kind(&job);
    job.results = moe_alloc(n_tasks, sizeof *job.results, err);
    if (job.results)
        status = open_scratch(&job, &block, err);
    if (status == MOE_OK) {
        fill_book(&job);
        for (uint32_t k = 0; k < cols; k++)
            job.d[k] = factor ? factor[(uint64_t)k * cols + k] : 1;
        moe_par_for(n_tasks, 1, encode_tasks, &job);
    }
    for (uint32_t i = 0; status == MOE_OK && i < n_tasks; i++) {
        error->sum_squared_error += job.results[i].squared_error;
        error->sum_squared_weight += job.results[i].squared_weight;
    }
    free(block);
    free(job.results);
    return status;
}
