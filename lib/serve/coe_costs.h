/*
 * Costs: what a collection's expert models cost on a machine, as moe-profile --coe measures them
 * and scheduler and planner need them (expert performance metrics and usage probabilities,
 * CoServe 4.5). Experts of one architecture cost the same and are measured once. moe-coe(5)
 * describes the file.
 *
 * A processor with several threads can compute with several teams of them side by side; costs may
 * be known for teams of several sizes, the largest with all threads.
 */
#ifndef MOE_SERVE_COE_COSTS_H
#define MOE_SERVE_COE_COSTS_H

#include "base/buf.h"
#include "base/err.h"
#include "serve/coe_collection.h"

enum {
    MOE_COE_MAX_PROCESSORS = 2, /* "cpu" and "cuda", as collections name them */
    MOE_COE_MAX_KINDS = 256,
    MOE_COE_MAX_TEAMS = 8, /* team sizes */
    MOE_COE_MAX_COSTS = MOE_COE_MAX_PROCESSORS * MOE_COE_MAX_KINDS * MOE_COE_MAX_TEAMS,
    MOE_COE_MAX_BATCHES = 1 << 15,
    MOE_COE_MAX_THREADS = 1024,
};

struct moe_coe_processor {
    char name[16];         /* "cpu", "cuda" */
    uint64_t memory_bytes; /* its own; 0: it shares the host's */
    uint64_t
        executor_bytes; /* of it, that each executor takes for itself: a context, a framework */
    uint32_t threads;   /* 0: not divided, executors compute in turn */
};

struct moe_coe_kind {
    char name[64];
    char source[320]; /* what was measured, or where the figures come from */
};

/* One architecture on one processor, for a team of `threads` threads. */
struct moe_coe_kind_cost {
    char architecture[64], processor[16];
    uint32_t threads; /* 0: the processor's threads are not divided */
    struct moe_coe_cost cost;
    uint64_t expert_bytes; /* of memory for a loaded expert there */
    uint32_t kind, on;     /* the architecture and the processor */
};

/* A measured batch, from which K, B and the largest batch follow (figures 5, 6 and 12). */
struct moe_coe_kind_batch {
    char architecture[64], processor[16];
    uint32_t threads; /* as above */
    uint32_t requests;
    double seconds;
    uint64_t bytes; /* of memory beside the expert; 0: not given */
};

struct moe_coe_model_cost {
    char name[64]; /* an expert of the collection */
    char architecture[64];
    double probability; /* of a request using it; -1: as in the collection */
    uint32_t kind;
};

struct moe_coe_costs {
    char machine[320], source[320];
    uint64_t memory_bytes; /* the host's */
    uint32_t n_processors, n_kinds, n_costs, n_batches, n_models;
    struct moe_coe_processor *processors;
    struct moe_coe_kind *kinds;
    struct moe_coe_kind_cost *costs;
    struct moe_coe_kind_batch *batches;
    struct moe_coe_model_cost *models;
};

/* Reads a file. MOE_ERR_FORMAT with line and column. The caller frees *out. */
int moe_coe_costs_read(struct moe_coe_costs **out, const char *path, struct moe_err *err);
extern const struct moe_record_format moe_coe_costs_format;
/* Appends the file, or the same as JSON. `kind` and `on` of a caller's struct are ignored: names
 * are written. */
int moe_coe_costs_write(const struct moe_coe_costs *c, bool json, struct moe_buf *out,
                        struct moe_err *err);
void moe_coe_costs_free(struct moe_coe_costs *c); /* NULL is fine; also frees the lists */

/* The processor of that name, or MOE_COE_NONE. */
uint32_t moe_coe_costs_processor(const struct moe_coe_costs *c, const char *name);
/* Sets table[n_kinds] to the costs of a processor for a team of `threads` threads (0: all);
 * max_batch is 0 for an architecture that cannot run there. Between two known teams, K and B lie on
 * the line over 1 / threads (a divided part and a constant one); below the smallest they are
 * divided entirely. */
void moe_coe_costs_table(const struct moe_coe_costs *c, uint32_t processor, uint32_t threads,
                         struct moe_coe_cost *table);
/* Threads for each of n executors of a processor, and how many of these compute at a time. *threads
 * is 0, and one computes at a time, if the processor's threads are not divided. */
void moe_coe_costs_teams(const struct moe_coe_costs *c, uint32_t processor, uint32_t n,
                         uint32_t *threads, uint32_t *at_a_time);

/* The collection's experts for scheduler and pools: bytes are the most of any processor that may
 * run them; probabilities come from the file, else the collection, else 0 (*probable, unless NULL:
 * none was missing). The architecture is that of the file's models, else the collection's.
 * MOE_ERR_USAGE: an expert has no architecture or no processor. Free with moe_coe_experts_free. */
int moe_coe_costs_experts(struct moe_coe_experts **out, const struct moe_coe_costs *c,
                          const struct moe_coe_collection *collection, bool *probable,
                          struct moe_err *err);
void moe_coe_experts_free(struct moe_coe_experts *all); /* NULL is fine */

#endif
