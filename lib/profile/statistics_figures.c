/* Shares, means and correlations computed from statistics. */
#include "profile/statistics_figures.h"

#include <math.h>
#include <stdlib.h>

#include "profile/statistics.h"

static uint32_t first_layer(uint32_t layer)
{
    return layer == MOE_ALL_LAYERS ? 0 : layer;
}

static uint32_t end_layer(const struct moe_statistics *s, uint32_t layer)
{
    return layer == MOE_ALL_LAYERS ? s->shape.n_layers : layer + 1;
}

/* Sum of number i of a series over the layers in question. */
static double sum(const struct moe_statistics *s, uint32_t layer, enum moe_series series,
                  uint64_t i)
{
    double total = 0;
    for (uint32_t l = first_layer(layer); l < end_layer(s, layer); l++) {
        uint64_t value = moe_series_at(s, series, l)[i];
        total += series == MOE_S_COSINES ? (double)(int64_t)value : (double)value;
    }
    return total;
}

static double share(double part, double of)
{
    return of > 0 ? part / of : NAN;
}

static double fixed(double x)
{
    return ldexp(x, -MOE_FIXED_BITS);
}

struct moe_accuracy_figures moe_figure_accuracy(const struct moe_statistics *s, uint32_t layer,
                                                enum moe_predictor predictor)
{
    double n[MOE_N_ACCURACIES] = {0};
    for (uint32_t l = first_layer(layer); l < end_layer(s, layer); l++)
        for (int i = 0; i < MOE_N_ACCURACIES; i++)
            n[i] += (double)moe_accuracy_at(s, l, predictor)[i];
    double tokens = n[MOE_ACC_TOKENS], activations = tokens * s->shape.top_k;
    return (struct moe_accuracy_figures){
        .top1 = share(n[MOE_ACC_TOP1], tokens),
        .in_k = share(n[MOE_ACC_IN_K], activations),
        .in_2k = share(n[MOE_ACC_IN_2K], activations),
        .in_p75 = share(n[MOE_ACC_IN_P75], activations),
        .prompt = share(n[MOE_ACC_PROMPT_FOUND], n[MOE_ACC_PROMPT_TRUE]),
    };
}

double moe_figure_cosine(const struct moe_statistics *s, uint32_t layer, enum moe_cosine which)
{
    return share(fixed(sum(s, layer, MOE_S_COSINES, which)),
                 sum(s, layer, MOE_S_COSINE_NUMBERS, which));
}

double moe_figure_correlation(const struct moe_statistics *s, uint32_t layer)
{
    double v[MOE_N_CORRELATIONS];
    for (int i = 0; i < MOE_N_CORRELATIONS; i++)
        v[i] = sum(s, layer, MOE_S_CORRELATION, (uint64_t)i);
    double n = v[MOE_CORR_N], x = ldexp(v[MOE_CORR_X], -32) / n, y = ldexp(v[MOE_CORR_Y], -16) / n;
    double xx = ldexp(v[MOE_CORR_XX], -32) / n - x * x;
    double xy = (v[MOE_CORR_XY_HI] + ldexp(v[MOE_CORR_XY_LO], -32)) / n - x * y;
    double yy = (v[MOE_CORR_YY_HI] + ldexp(v[MOE_CORR_YY_LO], -32)) / n - y * y;
    return n > 0 && xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : NAN;
}

/* The sum of the `most` largest of n counts (most <= n). */
static double sum_of_largest(const uint64_t *counts, uint32_t n, uint32_t most)
{
    uint64_t least = 0; /* of them: bit by bit the largest value that `most` counts reach */
    for (uint64_t bit = UINT64_C(1) << 63; bit; bit >>= 1) {
        uint32_t n_reach = 0;
        for (uint32_t i = 0; i < n; i++)
            n_reach += counts[i] >= (least | bit);
        if (n_reach >= most)
            least |= bit;
    }
    double larger = 0;
    uint32_t n_larger = 0;
    for (uint32_t i = 0; i < n; i++) {
        larger += counts[i] > least ? (double)counts[i] : 0;
        n_larger += counts[i] > least;
    }
    return larger + (double)least * (most - n_larger);
}

double moe_busiest_share(const uint64_t *counts, uint32_t n_layers, uint32_t n_experts)
{
    uint32_t quarter = (n_experts + 3) / 4;
    double all = 0, busiest = 0;
    for (uint32_t l = 0; l < n_layers; l++, counts += n_experts) {
        for (uint32_t e = 0; e < n_experts; e++)
            all += (double)counts[e];
        busiest += sum_of_largest(counts, n_experts, quarter);
    }
    return share(busiest, all);
}

double moe_figure_skew(const struct moe_statistics *s, uint32_t layer)
{
    uint32_t first = first_layer(layer);
    return moe_busiest_share(moe_series_at(s, MOE_S_ACTIVATIONS, first),
                             end_layer(s, layer) - first, s->shape.n_experts);
}

double moe_figure_document_skew(const struct moe_statistics *s, uint32_t layer)
{
    return share(fixed(sum(s, layer, MOE_S_SKEW, 1)), sum(s, layer, MOE_S_SKEW, 0));
}

struct moe_reuse_figures moe_figure_reuse(const struct moe_statistics *s, uint32_t layer)
{
    double k = s->shape.top_k, n = s->shape.n_experts, none = 1;
    double tokens = sum(s, layer, MOE_S_REUSE, MOE_REUSE_TOKENS);
    for (double i = 0; i < k; i++) /* C(n - k, k) / C(n, k) */
        none *= n - k - i > 0 ? (n - k - i) / (n - i) : 0;
    return (struct moe_reuse_figures){
        .active = share(sum(s, layer, MOE_S_REUSE, MOE_REUSE_ACTIVE), tokens * k),
        .best = share(sum(s, layer, MOE_S_REUSE, MOE_REUSE_BEST), tokens),
        .any = share(sum(s, layer, MOE_S_REUSE, MOE_REUSE_ANY), tokens),
        .was = share(sum(s, layer, MOE_S_REUSE, MOE_REUSE_WAS), tokens),
        .chance = k / n,
        .any_chance = 1 - none,
    };
}

void moe_figure_popularity(const struct moe_statistics *s, uint32_t layer,
                           double shares[MOE_POPULARITY_POINTS])
{
    for (uint64_t i = 0; i < MOE_POPULARITY_POINTS; i++)
        shares[i] = share(fixed(sum(s, layer, MOE_S_POPULARITY, 1 + i)),
                          sum(s, layer, MOE_S_POPULARITY, 0));
}

double moe_figure_weight(const struct moe_statistics *s, uint32_t layer, uint32_t rank)
{
    double tokens = 0;
    for (uint32_t l = first_layer(layer); l < end_layer(s, layer); l++)
        tokens += (double)moe_statistics_tokens(s, l);
    return share(fixed(sum(s, layer, MOE_S_WEIGHTS, rank)), tokens);
}

double moe_figure_scores_below(const struct moe_statistics *s, uint32_t layer, double score)
{
    double below = 0, all = 0;
    for (uint64_t i = 0; i < MOE_SCORE_BINS; i++) {
        double n = sum(s, layer, MOE_S_SCORE_BINS, i);
        all += n;
        below += (double)i + 0.5 < score * MOE_SCORE_BINS ? n : 0;
    }
    return share(below, all);
}

struct moe_similarity_figures moe_figure_similarity(const struct moe_statistics *s)
{
    const uint64_t *t = s->totals;
    return (struct moe_similarity_figures){
        .whole = share(fixed((double)t[MOE_TOTAL_SIMILAR]), (double)t[MOE_TOTAL_SIMILAR_N]),
        .drift = share(fixed((double)t[MOE_TOTAL_DRIFT]), (double)t[MOE_TOTAL_DRIFT_N]),
        .next = share(fixed((double)t[MOE_TOTAL_NEXT]), (double)t[MOE_TOTAL_NEXT_N]),
    };
}

/* ---- Paths ---- */

/* Tokens whose rank-1 expert the others with the same two experts before would have predicted: of
 * one key's counts c_e, those of the largest when one is taken off it and it still is the largest.
 * Ties do not count. */
static double right_without_itself(const struct moe_path_count *list, uint64_t n)
{
    uint64_t largest = 0, second = 0;
    for (uint64_t i = 0; i < n; i++) {
        if (list[i].n > largest) {
            second = largest;
            largest = list[i].n;
        } else if (list[i].n > second) {
            second = list[i].n;
        }
    }
    return largest > second + 1 ? (double)largest : 0;
}

static int by_count(const void *a, const void *b)
{
    const struct moe_path_count *x = a, *y = b;
    return x->n > y->n ? -1 : x->n < y->n;
}

/* Least squares of log count over log rank. */
static double log_slope(const struct moe_path_count *list, uint64_t n)
{
    double x = 0, y = 0, xx = 0, xy = 0;
    for (uint64_t i = 0; i < n; i++) {
        double a = log((double)i + 1), b = log((double)list[i].n);
        x += a;
        y += b;
        xx += a * a;
        xy += a * b;
    }
    double count = (double)n, spread = count * xx - x * x;
    return spread > 0 ? (count * xy - x * y) / spread : NAN;
}

int moe_figure_paths(const struct moe_statistics *s, struct moe_path_figures *out,
                     struct moe_err *err)
{
    uint64_t n, n_whole;
    double right = 0, tokens = 0, all = 0, fifth = 0;
    struct moe_path_count *list = moe_path_table_sorted(s->paths, &n, err);
    struct moe_path_count *whole = moe_path_table_sorted(s->whole, &n_whole, err);
    int status;
    MOE_STEP(list && whole ? MOE_OK : MOE_ERR_MEMORY);
    for (uint64_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && list[end].key >> 16 == list[i].key >> 16; end++)
            tokens += (double)list[end].n;
        right += right_without_itself(list + i, end - i);
    }
    qsort(whole, n_whole, sizeof *whole, by_count);
    for (uint64_t i = 0; i < n_whole; i++) {
        all += (double)whole[i].n;
        fifth += i < (n_whole + 4) / 5 ? (double)whole[i].n : 0;
    }
out:
    if (status == MOE_OK)
        *out = (struct moe_path_figures){
            .rank1_right = share(right, tokens),
            .n_paths = n_whole,
            .top_fifth = share(fifth, all),
            .slope = log_slope(whole, n_whole),
            .sampled = moe_path_table_sampled(s->whole),
        };
    free(list);
    free(whole);
    return status;
}
