/*
 * Engines that share a process: what each takes of its memory, known before any is opened, so that
 * the caller who opens them (options.shares) can divide a budget. An engine's own share is for the
 * model's directory, weights and experts; a session and a batch come and go apart from it.
 */
#ifndef MOE_ENGINE_ENGINE_SHARE_H
#define MOE_ENGINE_ENGINE_SHARE_H

#include "engine/engine.h"

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
    struct moe_session_needs { /* of a session where there is a cache (layer/session.h) */
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

#endif
