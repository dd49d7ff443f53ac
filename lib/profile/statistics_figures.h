/*
 * Figures from statistics: shares, means, correlations, for tables and decisions. Layer
 * MOE_ALL_LAYERS means over all of them. A figure that was not measured is NaN.
 */
#ifndef MOE_PROFILE_STATISTICS_FIGURES_H
#define MOE_PROFILE_STATISTICS_FIGURES_H

#include "profile/statistics.h"

#define MOE_ALL_LAYERS UINT32_MAX

struct moe_accuracy_figures {
    double top1;   /* predicted best is the true best */
    double in_k;   /* share of true experts among as many predicted */
    double in_2k;  /* ... twice as many */
    double in_p75; /* ... above the 75th percentile of the scores */
    double prompt; /* share of a prompt's experts predicted at one of its tokens */
};
struct moe_accuracy_figures moe_figure_accuracy(const struct moe_statistics *s, uint32_t layer,
                                                enum moe_predictor predictor);
/* Mean cosine of two inputs. */
double moe_figure_cosine(const struct moe_statistics *s, uint32_t layer, enum moe_cosine which);
/* Pearson's correlation of routing weight and norm of the weighted output (HOBBIT fig. 5a). */
double moe_figure_correlation(const struct moe_statistics *s, uint32_t layer);
/* Share of activations that fall on the busiest quarter (rounded up) of their layer's experts.
 * counts: [n_layers][n_experts] activations. */
double moe_busiest_share(const uint64_t *counts, uint32_t n_layers, uint32_t n_experts);
/* Share of activations on the busiest quarter of a layer's experts: over all text, and the mean
 * within a document. */
double moe_figure_skew(const struct moe_statistics *s, uint32_t layer);
double moe_figure_document_skew(const struct moe_statistics *s, uint32_t layer);

struct moe_reuse_figures {
    double active; /* an active expert was active for the token before (chance: k / E) */
    double best;   /* the token before's best is active (chance: k / E) */
    double any;    /* one of the token before's is active */
    double was;    /* the token's best was active for the token before (chance: k / E) */
    double chance, any_chance;
};
struct moe_reuse_figures moe_figure_reuse(const struct moe_statistics *s, uint32_t layer);
/* Mean share of a document's activations on the least popular 10%, 20%, ... of its active experts
 * (Fate fig. 9). */
void moe_figure_popularity(const struct moe_statistics *s, uint32_t layer,
                           double shares[MOE_POPULARITY_POINTS]);
/* Mean routing weight of a rank, 0 the best. */
double moe_figure_weight(const struct moe_statistics *s, uint32_t layer, uint32_t rank);
/* Share of HOBBIT's scores of ranks from the second on that are below `score`; bins of 1/100. */
double moe_figure_scores_below(const struct moe_statistics *s, uint32_t layer, double score);
/* DAOP's equation 1 between prompt and rest of a document; windows of 15 tokens of the rest against
 * the prompt, and against the window before. */
struct moe_similarity_figures {
    double whole, drift, next;
};
struct moe_similarity_figures moe_figure_similarity(const struct moe_statistics *s);

/* Activation paths. */
struct moe_path_figures {
    /* The likeliest rank-1 expert given those of the two layers before is the true one, each token
     * predicted from all others (leave one out). */
    double rank1_right;
    uint64_t n_paths; /* different whole paths */
    double top_fifth; /* share of tokens on the 20% most frequent ones */
    double slope;     /* of log count over log rank: a power law's exponent */
    bool sampled;     /* the two above are of a sample of the paths */
};
int moe_figure_paths(const struct moe_statistics *s, struct moe_path_figures *out,
                     struct moe_err *err);

#endif
