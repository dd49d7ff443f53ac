/*
 * Costs: what the expert models of a collection cost on a machine, as moe-profile --coe measures
 * them and scheduler and planner need them (expert performance metrics and usage probabilities,
 * CoServe 4.5). Experts of one architecture cost the same and are measured once. moe-coe(5)
 * describes the file.
 *
 * A processor whose threads can be divided computes with several teams of them side by side; its
 * costs may be known of teams of several sizes, of which the largest has all threads.
 */
#ifndef MOE_SERVE_COE_COSTS_H
#define MOE_SERVE_COE_COSTS_H

#include "base/buf.h"
#include "base/err.h"
#include "serve/coe_collection.h"

enum {
    MOE_COE_MAX_PROCESSORS = 2, /* "cpu" and "cuda", as a collection names them */
    MOE_COE_MAX_KINDS = 256,
    MOE_COE_MAX_TEAMS = 8, /* sizes of teams */
    MOE_COE_MAX_COSTS = MOE_COE_MAX_PROCESSORS * MOE_COE_MAX_KINDS * MOE_COE_MAX_TEAMS,
    MOE_COE_MAX_BATCHES = 1 << 15,
    MOE_COE_MAX_THREADS = 1024,
};

struct moe_coe_processor {
    char name[16];         /* "cpu", "cuda" */
    uint64_t memory_bytes; /* of its own; 0: it shares the host's */
    uint32_t threads;      /* 0: they are not divided, executors compute in turn */
};

struct moe_coe_kind {
    char name[64];
    char source[320]; /* what was measured, or where the figures come from */
};

/* One architecture on one processor, for a team of so many threads. */
struct moe_coe_kind_cost {
    char architecture[64], processor[16];
    uint32_t threads; /* 0: the processor's are not divided */
    struct moe_coe_cost cost;
    uint64_t expert_bytes; /* of memory for a loaded expert there */
    uint32_t kind, on;     /* the architecture and the processor */
};

/* A measured batch: where K, B and the largest batch come from (figures 5, 6 and 12). */
struct moe_coe_kind_batch {
    char architecture[64], processor[16];
    uint32_t threads; /* as above */
    uint32_t requests;
    double seconds;
    uint64_t bytes; /* of memory beside the expert; 0: not said */
};

struct moe_coe_model_cost {
    char name[64]; /* of an expert of the collection */
    char architecture[64];
    double probability; /* that a request uses it; -1: as the collection says */
    uint32_t kind;
};

struct moe_coe_costs {
    char machine[320], source[320];
    uint64_t memory_bytes; /* of the host */
    uint32_t n_processors, n_kinds, n_costs, n_batches, n_models;
    struct moe_coe_processor *processors;
    struct moe_coe_kind *kinds;
    struct moe_coe_kind_cost *costs;
    struct moe_coe_kind_batch *batches;
    struct moe_coe_model_cost *models;
};

/* MOE_ERR_FORMAT with line and column. *out is the caller's to free. */
int moe_coe_costs_read(struct moe_coe_costs **out, const char *path, struct moe_err *err);
/* ... n bytes of text; `name` begins error texts. */
int moe_coe_costs_parse(struct moe_coe_costs **out, const char *name, const void *text, uint64_t n,
                        struct moe_err *err);
/* Appends the file, or the same as JSON. Of a struct of one's own, `kind` and `on` may be anything:
 * names are written. */
int moe_coe_costs_write(const struct moe_coe_costs *c, bool json, struct moe_buf *out,
                        struct moe_err *err);
void moe_coe_costs_free(struct moe_coe_costs *c); /* NULL is fine; frees the lists too */

/* The processor by that name; MOE_COE_NONE. */
uint32_t moe_coe_costs_processor(const struct moe_coe_costs *c, const char *name);
/* The costs of a processor, for a team of so many threads (0: of all), into table[n_kinds]; of an
 * architecture that cannot run there max_batch is 0. Between two teams that are known, K and B lie
 * on the line over 1 / threads (a part that is divided, and one that is not); below the smallest
 * they are divided wholly. */
void moe_coe_costs_table(const struct moe_coe_costs *c, uint32_t processor, uint32_t threads,
                         struct moe_coe_cost *table);
/* Threads of each of n executors of a processor, and how many of these compute at a time. *threads
 * 0, and one at a time, where the processor's are not divided. */
void moe_coe_costs_teams(const struct moe_coe_costs *c, uint32_t processor, uint32_t n,
                         uint32_t *threads, uint32_t *at_a_time);

/* The collection's experts as scheduler and pools take them: bytes are those of the processor that
 * needs most, of those that may run it; probabilities are the file's, else the collection's, else 0
 * (*probable, where not NULL: there was none such). The architecture is that of the file's models,
 * else the collection's own. MOE_ERR_USAGE: an expert has none, or no processor for it.
 * moe_coe_experts_free frees it. */
int moe_coe_costs_experts(struct moe_coe_experts **out, const struct moe_coe_costs *c,
                          const struct moe_coe_collection *collection, bool *probable,
                          struct moe_err *err);
void moe_coe_experts_free(struct moe_coe_experts *all); /* NULL is fine */

#endif
