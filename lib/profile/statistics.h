/*
 * Statistics of routing, moe-stats(5): what experts do on texts, how well predictors guess them.
 */
#ifndef MOE_PROFILE_STATISTICS_H
#define MOE_PROFILE_STATISTICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "profile/origins.h"

/*
 * Requests: which experts single documents chose, a sample of those that statistics are about
 * (MoE-Infinity's collection of activation matrices, arXiv 2401.14361). Of all documents those with
 * the smallest hashes stay, so that neither order nor sharding matters.
 */

enum { MOE_REQUESTS_KEPT = 64 };

struct moe_requests {
    uint32_t n_layers, n_experts; /* MoE layers */
    uint32_t n;
    uint64_t *hashes; /* [MOE_REQUESTS_KEPT] rising, of the documents' tokens */
    uint32_t *counts; /* [MOE_REQUESTS_KEPT][n_layers][n_experts] tokens that chose each expert */
};

/* Bytes that one takes. */
uint64_t moe_requests_bytes(uint32_t n_layers, uint32_t n_experts);
/* Released with moe_requests_release, also after a failure. */
int moe_requests_init(struct moe_requests *r, uint32_t n_layers, uint32_t n_experts,
                      struct moe_err *err);
void moe_requests_release(struct moe_requests *r);

/* A place for one more document, its counts zero, for the caller to fill; NULL: its hash is not
 * among the smallest. A document that is there already has a second place. */
uint32_t *moe_requests_add(struct moe_requests *r, uint64_t hash);
/* Adds those of a part, of the same shape. */
void moe_requests_merge(struct moe_requests *sum, const struct moe_requests *part);

static inline uint32_t *moe_requests_at(const struct moe_requests *r, uint32_t request,
                                        uint32_t layer)
{
    return r->counts + ((uint64_t)request * r->n_layers + layer) * r->n_experts;
}

/*
 * Statistics of what the experts do over a text: the accumulators of moe-stats(5).
 *
 * Pure: fed with the routers' choices and the predictions, layer by layer of a document;
 * what follows from the choices is computed at the document's end. Every sum is a whole
 * number or a fixed-point one, rounded once per item: neither order nor sharding matters, and
 * merging is addition. Percentages, correlations and the like are in
 * statistics_figures.h.
 *
 * Layers here are MoE layers, numbered from 0 without the dense ones between them: an encoder's
 * first. Where there is one a document is a source, whose tokens the encoder's layers see, and a
 * target, whose tokens the decoder's see, all of them decoded. Paths lead through the decoder's
 * layers; nothing is predicted from the encoder's into them (EdgeMoE III-C1).
 */

/* Experts of all layers together that a file of any kind may speak of. */
enum { MOE_RECORD_MAX_EXPERTS = 1 << 20 };

/* What predicts a layer's experts. "Gate" and "residual" apply the layer's own router to another
 * input; "d layers before" are MoE layers. */
enum moe_predictor {
    MOE_PREDICT_PREVIOUS,   /* the experts of the token before, in this layer */
    MOE_PREDICT_GATE_1,     /* the gate's input of the layer before (Fate position 2) */
    MOE_PREDICT_GATE_2,     /* ... 2 layers before */
    MOE_PREDICT_GATE_3,     /* ... 3 layers before */
    MOE_PREDICT_ATTN,       /* the attention's input of the layer itself (Fate position 1) */
    MOE_PREDICT_ATTN_1,     /* ... of the layer before (Fate position 3) */
    MOE_PREDICT_RESIDUAL_1, /* the residual stream at the gate of the layer before, normalized with
                               the layer's own weights */
    MOE_PREDICT_RESIDUAL_2,
    MOE_PREDICT_RESIDUAL_3,
    MOE_PREDICT_PATH,       /* P(expert | experts of the layer before), from another text */
    MOE_PREDICT_PATH_RANK1, /* the rank-1 experts of the two layers before, from another text */
    MOE_PREDICT_TOKEN,      /* the experts of the same token's last use in the document, or without
                               one of the token before, in this layer */
    MOE_N_PREDICTORS
};
/* "gate-1", as files and tables call it. */
const char *moe_predictor_name(enum moe_predictor predictor);

/* Pairs of inputs whose cosine is summed, per layer. */
enum moe_cosine {
    MOE_COSINE_GATE_1, /* this gate's input with that of the layer 1, 2, 3 before */
    MOE_COSINE_GATE_2,
    MOE_COSINE_GATE_3,
    MOE_COSINE_ATTN,   /* this gate's input with this layer's attention input */
    MOE_COSINE_ATTN_1, /* ... with that of the layer before */
    MOE_N_COSINES
};

/* Members of the series below. */
enum moe_accuracy { /* per predictor */
                    MOE_ACC_TOKENS,
                    MOE_ACC_TOP1,         /* the predicted best is the true best */
                    MOE_ACC_IN_K,         /* true experts among as many predicted */
                    MOE_ACC_IN_2K,        /* ... among twice as many */
                    MOE_ACC_IN_P75,       /* ... among the predicted quarter of all experts (75th
                                             percentile) */
                    MOE_ACC_PROMPT_TRUE,  /* distinct experts of a document */
                    MOE_ACC_PROMPT_FOUND, /* ... that some token's predicted k contained */
                    MOE_N_ACCURACIES
};
enum moe_reuse { /* from one token of a document to the next */
                 MOE_REUSE_TOKENS,
                 MOE_REUSE_ACTIVE, /* active experts that were active for the token before */
                 MOE_REUSE_BEST,   /* the token before's best is active */
                 MOE_REUSE_ANY,    /* one of the token before's is active */
                 MOE_REUSE_WAS,    /* the token's best was active for the token before */
                 MOE_N_REUSES
};
enum moe_correlation { /* x: routing weight, y: norm of the weighted output; sums */
                       MOE_CORR_N,
                       MOE_CORR_X,     /* 2^-32 */
                       MOE_CORR_Y,     /* 2^-16 */
                       MOE_CORR_XX,    /* 2^-32 */
                       MOE_CORR_XY_HI, /* 2^-32, in two limbs of 32 bits that are summed apart */
                       MOE_CORR_XY_LO,
                       MOE_CORR_YY_HI,
                       MOE_CORR_YY_LO,
                       MOE_N_CORRELATIONS
};

enum {
    MOE_WEIGHT_BINS = 20,
    MOE_SCORE_BINS = 100,
    MOE_POPULARITY_POINTS = 10,
    MOE_FIXED_BITS = 30,   /* of cosines, similarities and shares */
    MOE_DRIFT_WINDOW = 15, /* tokens (DAOP VI-B) */
};

/* Per-layer series of whole numbers. E experts, k per token. */
enum moe_series {
    MOE_S_ACTIVATIONS,    /* [E] */
    MOE_S_DECODED,        /* [E] activations but those of prompts; all 0 where not counted apart */
    MOE_S_RANK1,          /* [E] times each was the best */
    MOE_S_WEIGHTS,        /* [k] sums of routing weights by rank, 2^-30 */
    MOE_S_WEIGHT_BINS,    /* [20] routing weights in 0..1 */
    MOE_S_SCORE_BINS,     /* [100] HOBBIT's scores (equation 2) of ranks from the second on */
    MOE_S_COSINES,        /* [5] sums, 2^-30, signed */
    MOE_S_COSINE_NUMBERS, /* [5] */
    MOE_S_CORRELATION,    /* [8] */
    MOE_S_REUSE,          /* [5] */
    MOE_S_POPULARITY, /* [1 + 10] documents; sums of the share of activations on the least popular
                         10%, 20%, ... of the active experts, 2^-30 */
    MOE_S_SKEW,       /* [2] documents; sums of the share on the busiest quarter of all, 2^-30 */
    MOE_S_PAIRS,      /* [E][E] expert of the layer before (layer 0: the last layer, token before),
                         expert of this layer */
    MOE_S_ACCURACY,   /* [predictors but the last][7] */
    /* [7] the last one's, by the token; all 0 where tokens' ids were not known */
    MOE_S_TOKEN_ACCURACY,
    MOE_N_SERIES
};

/* Over whole documents. */
enum moe_total {
    MOE_TOTAL_DOCUMENTS,
    MOE_TOTAL_TOKENS,    /* of targets where there is an encoder */
    MOE_TOTAL_SIMILAR_N, /* documents, sums (2^-30) of DAOP's equation 1 */
    MOE_TOTAL_SIMILAR,
    MOE_TOTAL_DRIFT_N, /* windows of 15 decoded tokens against the prompt */
    MOE_TOTAL_DRIFT,
    MOE_TOTAL_NEXT_N, /* ... against the window before */
    MOE_TOTAL_NEXT,
    MOE_TOTAL_HASH,   /* sum of the documents' hashes: identifies the texts counted */
    MOE_TOTAL_SOURCE, /* tokens of sources; 0 without an encoder, and then not in files */
    MOE_N_TOTALS
};

/* Paths are kept as keys: layer, rank-1 experts of the two layers before (EdgeMoE III-C), this
 * layer's, 16 bits each. In the decoder's second layer the first expert is MOE_NO_EXPERT; its first
 * layer has no paths. Whole rank-1 paths over all layers are kept as hashes, and only the smallest
 * of these. */
#define MOE_NO_EXPERT UINT16_MAX
enum { MOE_WHOLE_PATHS = 1 << 16, MOE_STATISTICS_MAX_TOP_K = 64 };

struct moe_path_table; /* statistics.c */

struct moe_statistics_shape {
    uint32_t n_layers, n_experts, top_k;
    uint32_t n_encoder;          /* of the layers, the encoder's; 0: there is none */
    uint64_t source_fingerprint; /* of the model (pack/pack.h) */
    uint32_t max_tokens;         /* per document, of its source and of its target */
    uint32_t prompt_percent;     /* share of a document's tokens taken as its prompt */
};

struct moe_statistics {
    struct moe_statistics_shape shape;
    struct moe_origins origins; /* what was counted; none: not known */
    uint64_t totals[MOE_N_TOTALS];
    uint64_t *series[MOE_N_SERIES]; /* [layers][length]; one block, owned */
    struct moe_path_table *paths, *whole;
    struct moe_requests requests;       /* some documents, each by itself */
    uint64_t read_bytes;                /* that reading its file took beside them; 0: none was */
    const struct moe_statistics *prior; /* borrowed: path statistics of another text, or NULL */
    struct moe_statistics_document *document; /* the one being observed */
};

/* The first layer of the encoder or decoder that a layer belongs to. */
static inline uint32_t moe_first_of_stack(const struct moe_statistics_shape *shape, uint32_t layer)
{
    return layer < shape->n_encoder ? 0 : shape->n_encoder;
}

/* Tokens that the layer has seen. */
static inline uint64_t moe_statistics_tokens(const struct moe_statistics *s, uint32_t layer)
{
    return s->totals[layer < s->shape.n_encoder ? MOE_TOTAL_SOURCE : MOE_TOTAL_TOKENS];
}

/* How many of a document's n tokens count as its prompt: none of a target. */
static inline uint32_t moe_prompt_tokens(const struct moe_statistics_shape *shape, uint32_t n)
{
    return shape->n_encoder ? 0 : (uint32_t)((uint64_t)n * shape->prompt_percent / 100);
}

/* Numbers of one layer in a series. */
uint64_t moe_series_length(const struct moe_statistics_shape *shape, enum moe_series series);
const char *moe_series_name(enum moe_series series);
static inline uint64_t *moe_series_at(const struct moe_statistics *s, enum moe_series series,
                                      uint32_t layer)
{
    return s->series[series] + layer * moe_series_length(&s->shape, series);
}
/* A predictor's seven numbers in a layer. */
static inline uint64_t *moe_accuracy_at(const struct moe_statistics *s, uint32_t layer,
                                        enum moe_predictor predictor)
{
    return predictor == MOE_PREDICT_TOKEN
               ? moe_series_at(s, MOE_S_TOKEN_ACCURACY, layer)
               : moe_series_at(s, MOE_S_ACCURACY, layer) + predictor * MOE_N_ACCURACIES;
}

/* Whether any token counts as decoded; else all are of prompts. */
bool moe_statistics_has_decoded(const struct moe_statistics *s);
/* [n_layers][n_experts] uses that decide where experts are placed (DAOP IV-A): by decoded tokens,
 * or by all where there are none. */
const uint64_t *moe_statistics_placement(const struct moe_statistics *s);

/* Bytes that statistics take, with a document being counted, and that the tables of paths take,
 * which grow with the tokens counted; both with what writing them needs. */
uint64_t moe_statistics_bytes(const struct moe_statistics_shape *shape);
uint64_t moe_statistics_held_bytes(const struct moe_statistics *s);
uint64_t moe_statistics_paths_bytes(const struct moe_statistics_shape *shape, uint64_t n_tokens);
/* The latter for these statistics once a document of n_tokens more is counted. */
uint64_t moe_statistics_paths_bytes_with(const struct moe_statistics *s, uint64_t n_tokens);
int moe_statistics_new(struct moe_statistics **out, const struct moe_statistics_shape *shape,
                       struct moe_err *err);
void moe_statistics_free(struct moe_statistics *s);

/* What one layer did with n consecutive tokens of the document. Arrays by token; what is NULL was
 * not measured. */
struct moe_layer_observation {
    const uint32_t *chosen; /* [n][top_k] by falling weight */
    const float *weights;   /* [n][top_k] */
    const uint32_t *ids;    /* [n] the tokens' in the vocabulary, needed with the first layer of an
                               encoder or decoder */
    bool by_token;          /* static routing: nothing predicts it, and no path ends there */
    const float *predicted[MOE_N_PREDICTORS]; /* [n][stride] scores of all experts; not of the
                                                 predictors that only follow choices */
    uint64_t stride;
    const float *cosines[MOE_N_COSINES]; /* [n] */
    const float *norms;                  /* [n][top_k] of the weighted outputs */
};

/*
 * A document: begin, then for its tokens in order (in batches of any size) the layers in order,
 * then end. Of a source and a target the encoder's layers are observed before the decoder's, and
 * tokens are numbered in each. At most shape.max_tokens tokens; `hash` is of these.
 */
int moe_statistics_begin(struct moe_statistics *s, uint64_t hash, struct moe_err *err);
void moe_statistics_observe(struct moe_statistics *s, uint32_t layer, uint32_t first_token,
                            uint32_t n, const struct moe_layer_observation *seen);
int moe_statistics_end(struct moe_statistics *s, struct moe_err *err);

/* A number for statistics that others were predicted by: other figures, another number. */
uint64_t moe_statistics_fingerprint(const struct moe_statistics *s);
/* MOE_ERR_USAGE: an interrupted run left them; they lack documents of the shards that they name. */
int moe_statistics_check_finished(const struct moe_statistics *s, struct moe_err *err);
/* Whether both are of one model, whatever their settings. */
bool moe_statistics_same_model(const struct moe_statistics_shape *a,
                               const struct moe_statistics_shape *b);
/* Adds the numbers of `part` to `sum`; another model or other settings are MOE_ERR_USAGE. */
int moe_statistics_add(struct moe_statistics *sum, const struct moe_statistics *part,
                       struct moe_err *err);
/* The same for shards of a run, or whole runs over different texts: joins their origins first
 * (moe_origins_join; moe_origins_check follows the last). */
int moe_statistics_merge(struct moe_statistics *sum, const struct moe_statistics *part,
                         struct moe_err *err);

/* The scores that path statistics give the experts of `layer`, after the decoder's first: for
 * MOE_PREDICT_PATH the sum over the k experts `before` (by falling weight) of the layer before of
 * P(expert | before), for MOE_PREDICT_PATH_RANK1 P(expert | before2, before[0]), with back-off to
 * P(expert | before[0]) and to the layer's frequencies where a key was never seen. before2: rank-1
 * expert two layers before, or MOE_NO_EXPERT. scores: [n_experts]. */
void moe_path_scores(const struct moe_statistics *s, enum moe_predictor predictor, uint32_t layer,
                     uint16_t before2, const uint32_t *before, float *scores);

/* As YAML (moe-stats(5)), and back: every key known, shapes, origins and sums checked. `name`
 * begins error texts. */
int moe_statistics_write(const struct moe_statistics *s, struct moe_buf *out, struct moe_err *err);
int moe_statistics_read(struct moe_statistics **out, const char *path, struct moe_err *err);

/*
 * Counts of 64-bit keys: the table of activation paths. With a limit only the keys with the
 * smallest hashes are kept (a bottom-k sketch): which ones depends only on the keys seen, not on
 * their order, so that merged shards equal one run.
 */

struct moe_path_count {
    uint64_t key, n;
};

struct moe_path_table;

/* limit: most keys that are kept, those smallest as numbers; 0: all. */
int moe_path_table_new(struct moe_path_table **out, uint64_t limit, struct moe_err *err);
void moe_path_table_free(struct moe_path_table *table);
/* Makes room for n_keys keys, so that adding them leaves no smaller tables on the heap. */
int moe_path_table_reserve(struct moe_path_table *table, uint64_t n_keys, struct moe_err *err);
int moe_path_table_add(struct moe_path_table *table, uint64_t key, uint64_t n, struct moe_err *err);
uint64_t moe_path_table_get(const struct moe_path_table *table, uint64_t key);
/* The sum of all counts. Adds those of activation paths to layers' (NULL: to none). */
uint64_t moe_path_table_total(const struct moe_path_table *table, uint64_t *layers);
/* Keys in it; between two cuts, up to twice the limit. */
uint64_t moe_path_table_used(const struct moe_path_table *table);
/* Memory that its places take. */
uint64_t moe_path_table_held(const struct moe_path_table *table);
/* Bytes that a table takes at most while it grows to n_keys, with its sorted list. */
uint64_t moe_path_table_bytes(uint64_t n_keys);
/* Whether keys were dropped: the table is a sample then. */
bool moe_path_table_sampled(const struct moe_path_table *table);
void moe_path_table_set_sampled(struct moe_path_table *table);
/* All keys, ascending; *n of them. free() the result; NULL without memory (or when empty: *n 0). */
struct moe_path_count *moe_path_table_sorted(const struct moe_path_table *table, uint64_t *n,
                                             struct moe_err *err);

#endif
