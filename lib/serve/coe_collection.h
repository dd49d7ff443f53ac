/*
 * Collaboration of experts (CoServe, https://doi.org/10.1145/3676641.3715986): what scheduler and
 * expert manager know of a collection's models and of the processors that run them. The coe_* files
 * only decide; none loads or computes. Times are seconds, memory is bytes.
 */
#ifndef MOE_SERVE_COE_COLLECTION_H
#define MOE_SERVE_COE_COLLECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/record.h"

enum { MOE_COE_NONE = UINT32_MAX };

/* An expert: a separate model, which requests name as a whole. */
struct moe_coe_expert {
    uint64_t bytes;     /* of memory once loaded */
    double probability; /* of a request using it, 0..1 (4.5) */
    uint32_t kind;      /* its architecture: experts of one kind take the same time */
    uint32_t first_before,
        n_before;    /* those whose results lead to it; none: requests begin there */
    uint32_t not_on; /* processors that must not run it: bit p for processor p */
};

struct moe_coe_experts {
    uint32_t n, n_kinds;
    const struct moe_coe_expert *experts; /* [n] */
    const uint32_t *before;               /* experts, by first_before */
};

/* Whether an expert only runs after others (a subsequent expert, 4.3). */
static inline bool moe_coe_follows(const struct moe_coe_experts *all, uint32_t expert)
{
    return all->experts[expert].n_before > 0;
}

/* The time of a batch of n requests to an expert of a kind on a processor: per_request * n +
 * per_batch (K and B of 4.2). */
struct moe_coe_cost {
    double per_request, per_batch;
    double load;            /* of the expert, from disk */
    double load_from_host;  /* ... from the host's memory; 0: the processor has no tier below it */
    uint32_t max_batch;     /* where further requests stop getting cheaper (4.5) */
    uint64_t request_bytes; /* memory for each request of a batch, beside the expert */
};

/* All experts, [n], by falling probability, equal ones in order; free(). NULL: out of memory. */
uint32_t *moe_coe_rank(const struct moe_coe_experts *all, struct moe_err *err);

static inline double moe_coe_batch_seconds(const struct moe_coe_cost *cost, uint32_t n)
{
    return cost->per_request * n + cost->per_batch;
}

/*
 * Collection of experts: which models there are, which request goes to which, and which results go
 * on to another one. moe-coe(5) describes the file.
 */

enum { MOE_COE_MAX_MODELS = 4096, MOE_COE_MAX_RULES = 1 << 16 };

struct moe_coe_model {
    char name[64];
    char pack[1024];       /* as in the file: relative to its directory */
    char device[16];       /* the processors that may run it: "cpu", "cuda"; "": any */
    double probability;    /* of a request using it; -1: not given */
    char architecture[64]; /* experts of one cost the same; "": as the costs say */
};

/* Passes a text that equals `equals`, or in which the regular expression (PCRE2) matches; both "":
 * any. */
struct moe_coe_test {
    char equals[128], matches[256];
    void *pattern; /* compiled */
};

/* Sends requests whose field passes to the expert; without a field, all. */
struct moe_coe_route {
    char field[32];
    struct moe_coe_test test;
    char expert[64];
    double quantity; /* its share of a task's requests; -1: not given */
    uint32_t to;     /* the expert */
};

/* A router's score of an expert for requests with a field of that value. */
struct moe_coe_score {
    char value[128], expert[64];
    double score;
    uint32_t to;
};

/* Sends results of one expert that pass to the next. */
struct moe_coe_follow {
    char after[64];
    struct moe_coe_test test;
    char expert[64];
    double share; /* of the results of `after`; -1: not given */
    uint32_t from, to;
};

struct moe_coe_collection {
    uint32_t n_models, n_routes, n_scores, n_follows;
    struct moe_coe_model *models;
    struct moe_coe_route *routes;
    char score_field[32];
    struct moe_coe_score *scores;
    struct moe_coe_follow *follows;
};

/* Reads a file. MOE_ERR_FORMAT with line and column, also for unknown experts, results that return
 * to an expert, and experts that nothing leads to. The caller frees *out. */
int moe_coe_collection_read(struct moe_coe_collection **out, const char *path, struct moe_err *err);
extern const struct moe_record_format moe_coe_collection_format;
/* Appends the file, or the same as JSON. */
int moe_coe_collection_write(const struct moe_coe_collection *c, bool json, struct moe_buf *out,
                             struct moe_err *err);
void moe_coe_collection_free(struct moe_coe_collection *c); /* NULL is fine */

/* The expert of that name, or MOE_COE_NONE. */
uint32_t moe_coe_find(const struct moe_coe_collection *c, const char *name);

/* The first expert of a request: by the largest score of its value, else by the first route that
 * accepts it; MOE_COE_NONE: none. field: the request's text of that name, or NULL. */
uint32_t moe_coe_route(const struct moe_coe_collection *c,
                       const char *(*field)(void *ctx, const char *name), void *ctx);
/* The next expert for a result, by the first rule that accepts it; MOE_COE_NONE: it is final. */
uint32_t moe_coe_next_expert(const struct moe_coe_collection *c, uint32_t expert,
                             const char *result, uint64_t n);

/* Sets probabilities[n_models] from the file, or from its quantities and shares (4.5: in closed
 * form). False: some have neither. */
bool moe_coe_probabilities(const struct moe_coe_collection *c, double *probabilities);

#endif
