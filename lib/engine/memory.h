/*
 * The split of an engine's memory, decided before anything is loaded, in three steps: what becomes
 * of the strategy here (engine_strategy.h), what everything but the experts takes, and how many
 * slots the rest gives. Each is a function from what it is given to its result.
 */
#ifndef MOE_ENGINE_MEMORY_H
#define MOE_ENGINE_MEMORY_H

#include "engine/engine.h"
#include "infer/expert_pools.h"
#include "plan/fitting.h"

/* What is asked for, a plan's word before the options', and what there is. */
struct moe_split_inputs {
    const struct moe_model *model;            /* its directory is open */
    struct moe_gpu *gpu;                      /* NULL: none computes */
    const struct moe_engine_options *options; /* but for what follows */

    struct moe_strategy strategy;       /* not settled */
    bool automatic;                     /* none was named: resident where everything fits */
    struct moe_session_options session; /* its context is decided; batch 0: still open */

    /* Bytes. */
    uint64_t total, gpu_total;      /* the budgets; UINT64_MAX: not known */
    bool memory_named;              /* the user or a plan named the host's */
    uint64_t expert_memory;         /* for the expert cache alone; 0: what the budget leaves */
    uint64_t program;               /* the process with the model's directory open */
    bool grown;                     /* ... is larger than is computed */
    uint64_t all, token;            /* all experts at their best variant; those one token visits */
    struct moe_inventory inventory; /* empty where the model has no experts */
};

/* What becomes of the strategy on this pack and device. */
struct moe_resolved {
    struct moe_strategy strategy; /* settled and fitted */
    const char *fallback;         /* which part is replaced here, and why; NULL: none */
    uint32_t high, low;           /* variants that it uses; low is high where it uses one */
    struct moe_exactness exactness;
};

/* Not to be copied: it points into itself. */
struct moe_split {
    struct moe_resolved resolved;
    struct moe_budget budget;
    bool memory_named;
    struct moe_session_options session; /* complete */
    struct moe_cache_options cache;     /* of a strategy that is not resident; complete */
    struct moe_pools planned;           /* of a plan, for `cache` */
    struct moe_expert_pools pools;      /* what `cache` comes to; zero: everything is resident */
};

/* Whether a strategy takes part in passes: predicts, or computes beside the device. */
bool moe_engine_takes_part(const struct moe_strategy *s);

/* Threads that compute experts on the host, where a strategy does. */
uint32_t moe_engine_host_threads(bool on_gpu);

/* gpu: borrowed; NULL: none. MOE_ERR_LIMIT when the budget is too small, MOE_ERR_USAGE where the
 * strategy cannot run, MOE_ERR_FORMAT when the plan is another pack's. */
int moe_engine_split(struct moe_split *out, const struct moe_model *model, struct moe_gpu *gpu,
                     const struct moe_engine_options *options, struct moe_err *err);

/*
 * Second step of a split: what everything but the experts takes.
 */

/* A budget of these inputs with everything but the experts sized for a session of session->batch
 * rows. strategy NULL: it is not resolved yet, and takes nothing. */
struct moe_budget moe_engine_size(const struct moe_split_inputs *in,
                                  const struct moe_session_options *session,
                                  const struct moe_strategy *strategy);

/* What a process with this model's directory open takes before anything else is: computed, so that
 * every program and every run say the same. for_gpu: a program built with CUDA, whatever this one
 * is. */
uint64_t moe_engine_program_bytes(const struct moe_model *model, bool for_gpu);

/* The same with a batch: the session's, or if that is 0 the largest whose buffers take at most an
 * eighth of the budget, and what they take more than the smallest half of the experts' memory. Its
 * floor is that of a cache of least_experts bytes with the smallest batch that may be chosen.
 * *most_experts: bytes that experts get at most, so that a larger budget, which has a larger batch,
 * never has fewer of them; UINT64_MAX: what the budget leaves. */
struct moe_budget moe_engine_size_batch(const struct moe_split_inputs *in,
                                        struct moe_session_options session,
                                        const struct moe_strategy *strategy, uint64_t least_experts,
                                        uint64_t *most_experts);

/* Whether all experts have room beside everything else, with the smallest batch that may be chosen
 * and no strategy. */
bool moe_engine_all_fit(const struct moe_split_inputs *in);

/* Of what is sized: everything on the host; everything where the slots are, which is on the GPU if
 * there is one. */
uint64_t moe_budget_on_host(const struct moe_budget *b);
uint64_t moe_budget_beside_slots(const struct moe_budget *b, bool on_gpu);

/* Whether all experts have room beside so many bytes where the slots are. */
bool moe_engine_has_room_for_all(const struct moe_split_inputs *in, uint64_t beside);

/*
 * Engines that share a process: what each takes of its memory, known before any is opened, so that
 * the caller who opens them (options.shares) can divide a budget. An engine's own share is for the
 * model's directory, weights and experts; a session and a batch come and go apart from it.
 */

/* What an engine that computes on a GPU takes. */
struct moe_engine_gpu_needs {
    /* Of the GPU's memory: a share with all experts there, and with the smallest cache. */
    uint64_t all, least;
    /* Of main memory, the directory included, where all experts are on the GPU: while it is open,
     * and beside that while it is being opened. */
    uint64_t kept, passing;
    /* ... where the GPU has a cache: the least that works, and with which nothing is read from disk
     * again. */
    uint64_t host_least, host_all;
    uint64_t pass_bytes;       /* of main memory, as below */
    bool resident;             /* a share of `all` has no cache */
    struct moe_session_needs { /* of a session where there is a cache (infer/state.h) */
        bool rows, residual;
        uint32_t predict_depth;
    } session;
};

struct moe_engine_needs {
    struct moe_config config;
    uint64_t directory; /* description, tokenizer, tables: what the heap was seen to grow by */
    uint64_t all;       /* a share with all experts in memory, the directory included */
    uint64_t least;     /* ... with the smallest cache that works */
    uint64_t
        pass_bytes; /* that a session takes beside its own where there is a cache: predictions */
    uint64_t file_bytes;                 /* of the pack */
    bool resident;                       /* a share of `all` has no cache */
    struct moe_sampler_options sampling; /* as the model's makers published it */
    struct moe_engine_gpu_needs gpu;
};

/* What an engine with these options takes, on the processor, and on a GPU where one is given (NULL:
 * none); budgets and program_bytes are ignored. Opens the model's directory for that, and closes
 * it: no other thread should allocate meanwhile. */
int moe_engine_needs_of(struct moe_engine_needs *out, const char *path,
                        const struct moe_engine_options *options, struct moe_gpu *gpu,
                        struct moe_err *err);

/* What a session takes of main memory, with the batch that runs in it. o: complete; o->gpu says
 * where it computes. cached: its engine keeps experts in a cache. */
uint64_t moe_engine_session_bytes(const struct moe_engine_needs *needs,
                                  const struct moe_session_options *o, bool cached);

/* Room for a session: in main memory, and on the GPU where it computes there. */
struct moe_session_room {
    uint64_t host, gpu;
};

/* The best session within this room: at most o->n_sequences side by side (fewer where there is
 * not even the smallest context for each), o->batch rows (0: 256, fewer where memory is short),
 * each with o->context positions, in as many blocks of the KV cache as there is room for, one whole
 * context at least. MOE_ERR_LIMIT: *least is the smallest room that works. */
int moe_engine_fit_session(struct moe_session_options *o, const struct moe_engine_needs *needs,
                           bool cached, struct moe_session_room room,
                           struct moe_session_room *least, struct moe_err *err);

/* What a process comes to beside what it is seen to take before it computes: the team of the
 * calling thread, and what malloc and the like add. */
uint64_t moe_engine_process_bytes(void);

/*
 * Fitting a pack: what the engine would make of a strategy and a budget, without loading anything.
 * For the planner (plan/fitting.h).
 */

struct moe_pack_fit;

/* Opens the pack's directory. `options`: as for moe_engine_open; what they borrow stays borrowed.
 * The process counts with what is computed for it, whatever options->program_bytes is. With
 * options->device.cuda for a GPU that need not be here: options->gpu_memory_bytes is named, and
 * moe_fitted.memory is the GPU's, .host the process's. With options->ahead the layer that drafts
 * is counted in all sizes, and is none of the inventory's. */
int moe_pack_fit_open(struct moe_pack_fit **out, const char *path,
                      const struct moe_engine_options *options, struct moe_err *err);
void moe_pack_fit_close(struct moe_pack_fit *f); /* NULL is fine */

struct moe_fitter moe_pack_fit_fitter(struct moe_pack_fit *f);
const struct moe_inventory *moe_pack_fit_inventory(const struct moe_pack_fit *f);
const struct moe_model *moe_pack_fit_model(const struct moe_pack_fit *f);
/* For strategies that need statistics; borrowed. */
void moe_pack_fit_statistics(struct moe_pack_fit *f, const struct moe_statistics *statistics);

#endif
