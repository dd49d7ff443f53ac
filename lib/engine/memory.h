/*
 * What a model takes within a budget: one computation, before anything is loaded, of what is asked
 * for and what there is. Engines allocate what it says, plans state it, servers divide by it.
 * Nothing of it is measured on the running process: every program, every run says the same.
 */
#ifndef MOE_ENGINE_MEMORY_H
#define MOE_ENGINE_MEMORY_H

#include "engine/engine.h"
#include "infer/expert_pools.h"
#include "plan/fitting.h"

/* What is asked for, where a plan overrides the options, and what there is. */
struct moe_memory_inputs {
    const struct moe_model *model;            /* its directory is open */
    struct moe_gpu *gpu;                      /* NULL: none computes */
    const struct moe_engine_options *options; /* but for what follows */

    struct moe_strategy strategy;       /* not settled */
    bool automatic;                     /* none was named: resident where everything fits */
    struct moe_session_options session; /* its context is decided; batch 0: still open */

    /* Bytes. */
    uint64_t total, gpu_total; /* the budgets; UINT64_MAX: not known */
    bool memory_named;         /* the user or a plan named the host's */
    uint64_t expert_memory;    /* for the expert cache alone; 0: what the budget leaves */
    uint64_t program;          /* the process with the model's directory open */
    bool lends;                /* passes and the KV cache may borrow memory of slots */
    const struct moe_statistics *statistics; /* that the process reads and keeps; NULL: none */
    uint64_t all, token;            /* all experts at their best variant; those one token visits */
    struct moe_inventory inventory; /* empty where the model has no experts */
};

/* Not to be copied: it points into itself. */
struct moe_memory {
    struct moe_resolved resolved; /* the strategy as it runs, on this pack and device */
    struct moe_exactness exactness;
    struct moe_budget budget; /* what each part takes, and the smallest budget */
    bool memory_named;
    /* The largest budget that makes a difference, of the memory where the slots are: with all
     * experts there and the largest batch. Whether a strategy that has it is resident. */
    uint64_t most;
    bool whole;
    uint64_t pass_bytes;                /* what the strategy takes of the host to take part in
                                           passes: predictions, experts computed there */
    struct moe_session_options session; /* complete: batch, context, kind of KV cache */
    struct moe_cache_options cache;     /* of a strategy that is not resident; complete */
    struct moe_pools planned;           /* of a plan, for `cache` */
    struct moe_expert_pools pools;      /* slots of each size; zero: everything is resident */
};

/* The one computation. gpu: borrowed; NULL: none. MOE_ERR_LIMIT when the budget is too small: *out
 * then says what would work. MOE_ERR_USAGE where the strategy cannot run, MOE_ERR_FORMAT when the
 * plan is another pack's. */
int moe_memory_of(struct moe_memory *out, const struct moe_model *model, struct moe_gpu *gpu,
                  const struct moe_engine_options *options, struct moe_err *err);

/* MOE_ERR_LIMIT: a budget of m->total is too small, m->floor works. */
int moe_memory_refuse(const struct moe_model *model, const struct moe_plan_memory *m, bool on_gpu,
                      struct moe_err *err);

/* Takes the map that options->tolerance, or a plan, asks for (engine.h). Once the directory is
 * open, before anything is computed of it. */
int moe_engine_take_map(struct moe_model *model, const struct moe_engine_options *options,
                        struct moe_err *err);

/* What a process takes apart from models and threads: code, libraries, the first of its heap.
 * for_gpu: a program built with CUDA, whatever this one is. */
uint64_t moe_program_bytes(bool for_gpu);
/* ... and what n_threads threads that compute take: their stacks, and malloc's own. */
uint64_t moe_threads_bytes(int n_threads);

/* Whether a strategy takes part in passes: predicts, or computes beside the device. */
bool moe_engine_takes_part(const struct moe_strategy *s);

/* Threads that compute experts on the host, where a strategy does. */
uint32_t moe_engine_host_threads(bool on_gpu);

/*
 * Views for engines that share a process: what each takes of its memory, known before any is
 * opened, so that the caller who opens them (options.shares) can divide a budget. An engine's own
 * share is for the model's directory, weights and experts; sessions and batches come and go apart
 * from it.
 */

/* On the processor, or on a GPU: then of its memory, unless said. */
struct moe_needs_on {
    uint64_t least, most; /* a share with the smallest cache, and one that more does not help */
    bool whole;           /* a share of `most` has no cache */
    uint64_t pass_bytes;  /* of main memory, that a session takes beside its own where there is a
                             cache: predictions */
    /* Of main memory beside a GPU, the directory included, where all experts are on the GPU: while
     * it is open, and beside that while it is being opened. */
    uint64_t kept, passing;
    /* ... where the GPU has a cache: the least that works, and with which nothing is read from disk
     * again. */
    uint64_t host_least, host_all;
    struct moe_session_needs { /* of a session where there is a cache (infer/state.h) */
        bool rows, residual;
        uint32_t predict_depth;
    } session;
};

struct moe_needs {
    struct moe_config config;
    uint64_t file_bytes;                 /* of the pack */
    uint64_t fingerprint, parameters;    /* ... and of the model, as model/shape.h counts them */
    char weights[MOE_NAME_BYTES];        /* the layout of most of them: "Q4_K", "BF16" */
    const char *format;                  /* "moe", or of a model in place "gguf", "safetensors" */
    struct moe_sampler_options sampling; /* as the model's makers published it */
    struct moe_needs_on on[2];           /* the processor, a GPU */
};

/* What an engine with these options takes, on the processor, and on a GPU where one is given (NULL:
 * none); budgets are ignored. Opens the model's directory for that, and closes it. */
int moe_needs_of(struct moe_needs *out, const char *path, const struct moe_engine_options *options,
                 struct moe_gpu *gpu, struct moe_err *err);

/* What a session takes of main memory, with the batch that runs in it. o: complete; o->gpu says
 * where it computes. cached: its engine keeps experts in a cache. */
uint64_t moe_needs_session_bytes(const struct moe_needs *needs, const struct moe_session_options *o,
                                 bool cached);

/* Room for a session: in main memory, and on the GPU where it computes there. */
struct moe_session_room {
    uint64_t host, gpu;
};

/* The best session within this room: at most o->n_sequences side by side (fewer where there is
 * not even the smallest context for each), o->batch rows (0: 256, fewer where memory is short),
 * each with o->context positions, in as many blocks of the KV cache as there is room for, one whole
 * context at least. MOE_ERR_LIMIT: *least is the smallest room that works. */
int moe_needs_fit_session(struct moe_session_options *o, const struct moe_needs *needs, bool cached,
                          struct moe_session_room room, struct moe_session_room *least,
                          struct moe_err *err);

/*
 * The view for the planner (plan/fitting.h): what becomes of a strategy and a budget on a pack.
 */

struct moe_pack_fit;

/* Opens the pack's directory. `options`: as for moe_engine_open; what they borrow stays borrowed.
 * With options->device.cuda for a GPU that need not be here: options->gpu_memory_bytes is named,
 * and moe_fitted.memory is the GPU's, .host the process's. With options->ahead the layer that
 * drafts is counted in all sizes, and is none of the inventory's. */
int moe_pack_fit_open(struct moe_pack_fit **out, const char *path,
                      const struct moe_engine_options *options, struct moe_err *err);
void moe_pack_fit_close(struct moe_pack_fit *f); /* NULL is fine */

struct moe_fitter moe_pack_fit_fitter(struct moe_pack_fit *f);
const struct moe_inventory *moe_pack_fit_inventory(const struct moe_pack_fit *f);
const struct moe_model *moe_pack_fit_model(const struct moe_pack_fit *f);
/* For strategies that need statistics; borrowed. */
void moe_pack_fit_statistics(struct moe_pack_fit *f, const struct moe_statistics *statistics);

#endif
