/*
 * What models of a collection cost on a machine: batches, loads, memory (moe-profile --coe).
 */
#ifndef MOE_TUNE_COE_BENCH_H
#define MOE_TUNE_COE_BENCH_H

#include "base/progress.h"
#include "engine/engine.h"
#include "infer/model.h"
#include "serve/coe_collection.h"
#include "serve/coe_costs.h"
#include "serve/request.h"

/*
 * Batches of an expert model on a processor: what n requests side by side take (CoServe 4.2, 4.5).
 * A request here is a prompt and an answer of given lengths.
 */

enum { MOE_COE_BATCH_POINTS = 16, MOE_COE_BATCH_MOST = 1 << (MOE_COE_BATCH_POINTS - 1) };

struct moe_coe_batch_point {
    uint32_t requests;
    double seconds;
    uint64_t bytes; /* of memory beside the expert */
};

struct moe_coe_batch_curve {
    uint32_t n; /* points, by rising requests */
    struct moe_coe_batch_point points[MOE_COE_BATCH_POINTS];
};

/* K and B of seconds = K * requests + B, by least squares; neither is below 0: with one point, or
 * where the line would cut below, it goes through the origin or is flat. n > 0. */
void moe_coe_batch_fit(const struct moe_coe_batch_curve *c, double *per_request, double *per_batch);
/* The batch from which on requests no longer get cheaper: the smallest whose time for each is at
 * most 5% above the least of all. n > 0. */
uint32_t moe_coe_batch_level(const struct moe_coe_batch_curve *c);
/* Whether the last two points brought less than 5%, so that larger batches need not be tried. A
 * single one may come from a busy moment. */
bool moe_coe_batch_levelled(const struct moe_coe_batch_curve *c);
/* Memory that each request takes of the largest batch that pays, with its part of what the batch
 * takes as a whole. n > 0. */
uint64_t moe_coe_batch_request_bytes(const struct moe_coe_batch_curve *c);

struct moe_coe_batch_options {
    uint32_t prompt_tokens, answer_tokens; /* > 0 */
    uint32_t most;                         /* requests of a batch, 1..MOE_COE_BATCH_MOST */
    const struct moe_ids *text; /* what prompts consist of; n = 0: drawn from the vocabulary */
    const struct moe_progress *progress;
};

/* Batches of 1, 2, 4, ... requests, each the median of a few runs, until they level off, memory is
 * full or there are `most`. The engine's session is replaced; the engine has been opened for a
 * context of a request's tokens, with all experts in memory. */
int moe_coe_measure_batches(struct moe_engine *e, const struct moe_coe_batch_options *options,
                            struct moe_coe_batch_curve *out, struct moe_err *err);

/*
 * Sample requests of a collection: how often each expert is used, and how long prompts and answers
 * are (CoServe 4.5: routing is run on a small sample of the application's own requests).
 */

struct moe_coe_samples {
    uint64_t n;
    double *usage;          /* [n_models] share of the requests that use it; -1: not known, as it
                               follows results without a share in the collection */
    struct moe_ids prompts; /* all, one after the other */
    double mean_prompt;     /* tokens */
    double mean_answer;     /* ... at most, of the requests that say how many; 0: none does */
};

/* Reads JSON lines of requests (serve/request.h), each by itself or as "body" of a line. Prompts
 * are counted as `model`, an opened directory, takes them (NULL: all are ids). Results go on by the
 * collection's shares; where these are missing but rules test nothing, by the rules. MOE_ERR_FORMAT
 * names the line: no request, or no rule takes it. Release with moe_coe_samples_release, also where
 * it fails. */
int moe_coe_samples_read(struct moe_coe_samples *out, const struct moe_coe_collection *collection,
                         const struct moe_model *model, const char *path,
                         const struct moe_progress *progress, struct moe_err *err);
void moe_coe_samples_release(struct moe_coe_samples *s);

/*
 * Usage of experts by answering sample requests: where rules look at results, and nobody says which
 * share of these passes (CoServe 4.5: "we can run the CoE routing on a small, real-world sample
 * dataset to record each expert's usage probability").
 */

/* Whether some usage is not known without answers. */
bool moe_coe_samples_unknown(const struct moe_coe_samples *s,
                             const struct moe_coe_collection *collection);

/* Serves the requests and counts who answered: usage[n_models] of s is known then. memory_bytes: of
 * the whole process; 0: what is free. */
int moe_coe_samples_answer(struct moe_coe_samples *s, const struct moe_coe_collection *collection,
                           const char *directory, const char *path, uint64_t memory_bytes,
                           const struct moe_progress *progress, struct moe_err *err);

/*
 * Lines of sample requests.
 */

/* Calls fn with each request of a file of JSON lines, by itself or as "body" of a line, until it
 * fails; *request may be taken (then fn sets it to NULL). MOE_ERR_FORMAT names the line; a file
 * without requests is one. */
int moe_coe_each_sample(const char *path,
                        int (*fn)(void *ctx, uint64_t line, struct moe_request **request,
                                  struct moe_err *err),
                        void *ctx, const struct moe_progress *progress, struct moe_err *err);

/* Loads of an expert model: what having it in memory takes (CoServe 4.5). */

struct moe_coe_load {
    double disk, host; /* seconds, from there; host: 0 where it computes in the host's memory */
    uint64_t bytes;    /* of memory that it takes where it computes */
};

/* Opens an engine of these options, from the disk; onto a GPU with memory of its own, through main
 * memory, as a server does, and then from main memory only. */
int moe_coe_measure_load(struct moe_coe_load *out, const char *path,
                         const struct moe_engine_options *options,
                         const struct moe_progress *progress, struct moe_err *err);

/*
 * What the models of a collection cost on this machine (expert performance metrics, CoServe 4.5):
 * seconds of batches, loading, memory, once for every architecture and processor.
 */

struct moe_coe_bench_options {
    const struct moe_coe_collection *collection;
    const char *directory;                   /* where paths of packs begin */
    uint32_t prompt_tokens, answer_tokens;   /* of a request, > 0 */
    uint32_t max_batch;                      /* to be tried, 1..MOE_COE_BATCH_MOST */
    const struct moe_coe_samples *samples;   /* usage and prompts; NULL: there are none */
    uint64_t memory_bytes, gpu_memory_bytes; /* of the whole process; 0: what is free */
    const struct moe_progress *progress;
};

/* The path of an expert's pack; free() it. NULL: out of memory. */
char *moe_coe_pack_path(const char *directory, const struct moe_coe_model *model,
                        struct moe_err *err);

/* Packs of equal shape are of one architecture: those whose collection calls them so, else the
 * packs themselves say. The processors are those of this machine that experts may run on. *out is
 * the caller's to free. Errors of packs name the expert; MOE_ERR_LIMIT: one does not fit the
 * memory; MOE_ERR_FORMAT: experts of one architecture have different shapes. */
int moe_coe_bench(struct moe_coe_costs **out, const struct moe_coe_bench_options *options,
                  struct moe_err *err);

#endif
