/* Which device is to run a model, and the words of --device for it. */
#ifndef MOE_ENGINE_ENGINE_H
#define MOE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/progress.h"
#include "infer/experts.h"
#include "infer/model.h"
#include "infer/session.h"
#include "plan/plan.h"
#include "profile/statistics.h"
#include "sched/exactness.h"
#include "sched/strategy.h"

struct moe_device_choice {
    bool test;        /* rehearses a device: one core is the device, another its host */
    double speed;     /* of the test device: how many times as fast as its host, at least 1 */
    double link_rate; /* ... and bytes per second from the host's memory to its own */
    bool cuda;        /* GPU number `index`; neither: the plain CPU */
    int index;
    bool automatic; /* with cuda: the plain CPU where no GPU can be used */
};

/* "cpu", "cuda", "cuda:N", "auto", "test:SPEED,LINK". False: it is none of these, and `why` says
 * so, for behind the text. */
bool moe_device_parse(const char *text, struct moe_device_choice *out, struct moe_err *why);

/*
 * Engine: a model, its experts and a session, opened so that the process stays within a budget of
 * memory. One place decides how the budget is split; what it states is what it allocates.
 */

/* What is known of a session before memory is split. */
struct moe_engine_room {
    uint64_t total;    /* the budget; UINT64_MAX: not known */
    uint64_t may_hold; /* bytes of a text that any budget has room for while nothing is loaded */
    uint32_t context;
};

/* For this budget, in a process that takes `program` bytes by itself. */
struct moe_engine_room moe_engine_room_of(uint64_t total, uint64_t program, uint32_t context);

/* What a process that takes `program` bytes by itself may use where no budget is named: most of
 * what is free. UINT64_MAX: not known. */
uint64_t moe_engine_free_bytes(uint64_t program);

/* Where no strategy is named and not everything fits: the exact one that measures best. */
#define MOE_DEFAULT_STRATEGY "prefetch"

/* Bytes of a text, a prompt or a document, that every budget has room for beside everything else.
 */
uint64_t moe_engine_text_room(uint32_t context);

struct moe_ranks;

struct moe_engine_options {
    uint64_t memory_bytes; /* of the whole process, in main memory; 0: what is free */
    /* One of several engines of a process (memory.h): memory_bytes is its own share, for the
     * model's directory, weights and experts. It opens without a session. */
    bool shares;
    bool grows; /* ... with a KV cache that will have no other memory than `session` says
                   (complete): it grows into memory of the experts (infer/state.h, kv_grows) */
    /* The process is one of several that share out the experts, which are met while opening
     * (engine_ranks.h); borrowed while the engine is open. NULL: it has all of them. experts_only:
     * it is not rank 0, and opens without dense weights and without a session, but
     * for those of attention, or of layers, that are shared out. */
    struct moe_ranks *ranks;
    bool experts_only;
    const char *spread; /* a directory where other ranks keep what they got of rank 0's pack; NULL:
                           each has the pack */
    bool share_attention; /* on rank 0: the attention of layers, with keys and values, is shared
                             out, too (moe_model_share_attention) */
    bool share_layers;    /* on rank 0: whole layers are (moe_model_share_layers) */
    /* The pack's file in memory, borrowed while opening; NULL: it is read. */
    const struct moe_pack_image *image;
    uint64_t gpu_memory_bytes;    /* of the GPU; 0: what is free there */
    bool bf16_prompts;            /* on a GPU: prompts by gemms in bf16; not exact */
    uint64_t expert_memory_bytes; /* of the expert cache alone; 0: what memory_bytes leaves */
    /* Settled or not; without a name: resident where everything fits, else the default. */
    struct moe_strategy strategy;
    bool exact;                              /* refuse what may change results */
    const struct moe_statistics *statistics; /* of the model; borrowed while the engine is open;
                                                NULL: none */
    /* Of a pack with maps for several tolerances (moe_pack_map_at): the share that may be lost, and
     * the map is taken that loses least of those with which all experts fit, else the one of the
     * largest tolerance within; 0: none. A plan takes the map that it was made with; so does
     * of_fingerprint, the fingerprint of a pack with its map; 0: not known. */
    double tolerance;
    uint64_t of_fingerprint;
    const char *low_variant; /* name of the lower precision; NULL: the pack's last */
    uint32_t staging;        /* slots for prefetched experts alone; 0: the cache lends them its
                                own, or without one top_k */
    struct moe_device_choice device;
    double link_rate;            /* bytes per second at most for expert loads; 0: no limit */
    bool lockstep;               /* loads end at modelled times; needs a link_rate */
    const struct moe_pace *pace; /* how long computing takes in lockstep; borrowed; NULL: no time */
    /* Its strategy, slots and first contents are used: strategy and expert_memory_bytes above are
     * ignored. So are its memory, context and batch where those here are 0. Borrowed while opening;
     * NULL: none. */
    const struct moe_plan *plan;
    uint64_t program_bytes; /* of the process with the model's directory open; 0: as computed */
    uint32_t queue_depth, piece_bytes; /* of the loader; 0: its defaults */
    bool no_checksums;                 /* of expert loads */
    bool pack_in_ram;                  /* serve expert loads from a copy of the pack in memory,
                                          which the budget does not count: rehearsals only */
    const void *pack_copy;             /* such a copy, if the caller has one; borrowed */
    uint64_t pack_copy_bytes;
    struct moe_timeline *timeline; /* records loads, computation, stalls; borrowed; NULL: none */
    /* A trace of this shape is followed (moe_session.follow, which the caller sets): its experts
     * take the place of those that routers choose, as many a token as it has, whatever the model
     * says. MOE_ERR_USAGE: it is of another model, or of one that chooses otherwise. Borrowed while
     * opening; NULL: none. */
    const struct moe_trace_shape *follows;
    const char *follows_name; /* begins error texts */
    bool reserve_kv; /* the KV cache's memory is its own from the start, and lent to no experts */
    bool measures;   /* what is computed is not looked at: drawn weights (moe_pack_synthesized) will
                        do, else they are refused */
    bool kv_beside;  /* `exact` is not about session.kv_kind: of plans, which seek exact strategies
                        for a cache that was named */
    uint64_t seed;   /* of the random policy */
    /* Where the cache goes on with what it has learnt, if the file is there, and where
     * moe_engine_save_learnt leaves it (cache/learnt.h). MOE_ERR_USAGE: the cache's policy does not
     * learn. NULL: nowhere. */
    const char *learn;
    /* The model's layer that drafts is there (infer/forward.h), its experts among the others behind
     * the cache. MOE_ERR_UNSUPPORTED: the pack has none; MOE_ERR_USAGE: with what does not go with
     * it (a GPU or a test device, lockstep, a trace that is followed). A plan's slots are for all
     * of these experts then, and fewer where it did not count the layer. */
    bool ahead;
    /* ... and with `ahead` the file of a head that drafts in its place (moe_model_take_drafter),
     * which has no experts; borrowed while opening. NULL: the model's own layer. */
    const char *drafter;
    const char *draft; /* who drafts, by name, which ranks compare; NULL: nobody */
    /* On the host, dense weights, and experts of strategy `resident`, may arrive behind the first
     * passes, which wait for those they need; false: opening waits for all. `passes` is told while
     * they wait, and ends them (moe_model_load_behind); borrowed, NULL: nobody is told. */
    bool first_token_first;
    const struct moe_progress *passes;
    /* Called once the model's directory is open, before memory is split: the place to look at
     * texts: one that does not fit room->may_hold must not be read. An error ends the
     * opening. NULL: there is nothing to look at. */
    int (*survey)(void *ctx, const struct moe_model *model, const struct moe_engine_room *room,
                  struct moe_err *err);
    /* Bytes that the caller needs beside the session, for passes of `batch` rows; NULL: none. */
    uint64_t (*beside)(const void *ctx, const struct moe_model *model, uint32_t batch);
    void *beside_ctx; /* of both */
    /* context 0: the model's, at most context_cap; batch 0: 256, or fewer where memory is short. */
    struct moe_session_options session;
    uint32_t context_cap; /* 0: none */
};

/* What an engine takes within its budgets, in bytes. */
struct moe_budget {
    /* Main memory. program: the program itself, directory, tokenizer, buffers of all kinds, and
     * room for something compressed while it is read. dense: dense weights and rope; with a GPU
     * rotary angles, one tensor on its way and the routers that predict. kv: when it is full. work:
     * buffers of a pass, and what the caller needs beside it. experts: slots, or all of them; with
     * a GPU those in the host tier. total: UINT64_MAX: not known. */
    struct moe_plan_memory host;
    struct moe_plan_memory gpu; /* total 0: there is none */
    uint64_t token;             /* bytes of the experts that one token visits */
    uint64_t all;               /* bytes of all experts */
    uint32_t n_slots; /* 0: all experts are in memory, that of the GPU where there is one */
    uint32_t batch;
    bool revisits; /* some layers are visited several times: a token's experts are at most these */
    bool below_token; /* the cache holds less than one token visits: nothing can hit */
};

struct moe_grammar;
struct moe_constraint;
struct moe_ids;
struct moe_vocabulary;

struct moe_engine {
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_budget budget;
    bool memory_named;                /* the user or a plan named the budget */
    struct moe_strategy strategy;     /* as it runs: settled, resolved for this pack and device */
    char parts[512];                  /* its parts, in the words of their options */
    struct moe_run_settings settings; /* but for the session's */
    const char *fallback;             /* which of its parts is replaced, and why; NULL: none */
    /* Of the options, for sessions. */
    const struct moe_statistics *statistics;
    const struct moe_pace *pace;
    struct moe_ranks *ranks;
    struct moe_timeline *timeline;
    double host_slowdown;
    bool exact_required;            /* options.exact */
    bool follows;                   /* a trace's choices */
    uint32_t own_top_k;             /* experts that a token of the model chooses itself */
    struct moe_exactness exactness; /* of the strategy as it runs */
    bool test_device;
    bool apart;            /* options.grows: experts lend the KV cache's memory between sessions */
    bool arriving;         /* resident experts come behind the first passes */
    struct moe_gpu *gpu;   /* NULL: none computes */
    struct moe_err no_gpu; /* why --device auto fell back to the CPU; status MOE_OK: it did not */
    struct moe_energy *energy;
    /* For constraints, once there was one, without and with marks; NULL: none yet. */
    struct moe_vocabulary *vocabulary, *marked_vocabulary;
    const char *learn; /* of the options; borrowed */
    uint64_t
        learnt_tokens; /* that its file had learnt from when it was opened; 0: there was none */
    void *copy;        /* the pack in memory */
    uint64_t copy_bytes;
};

/* Opens all of it. MOE_ERR_LIMIT when the budget is below the floor: the text names the smallest
 * budget that works. Close *out with moe_engine_close. */
int moe_engine_open(struct moe_engine **out, const char *path,
                    const struct moe_engine_options *options, const struct moe_progress *progress,
                    struct moe_err *err);
void moe_engine_close(struct moe_engine *e); /* NULL is fine */

/* On a rank other than 0: opens the experts that rank 0 leaves it within the options' memory, and
 * computes what it asks for until it ends. What fails is told to rank 0, which says it; it is
 * returned, too (err is not NULL). MOE_ERR_INTERRUPTED: rank 0 ended before. */
int moe_engine_serve_rank(const char *path, const struct moe_engine_options *options,
                          struct moe_err *err);

/* Writes what its cache has learnt where options.learn says, if it does. */
int moe_engine_save_learnt(const struct moe_engine *e, struct moe_err *err);

/* A session of an engine that has none, where the engine computes; it lies in e->session. Options:
 * complete but for `gpu`. */
int moe_engine_open_session(struct moe_engine *e, const struct moe_session_options *options,
                            struct moe_err *err);
void moe_engine_close_session(struct moe_engine *e); /* where there is one */

/* A constraint of one answer at a time by the grammar, which it borrows, for the engine's model;
 * free it before both. The first one sorts the vocabulary, once for all. marks: special tokens that
 * the answer shows, always the same of a model; NULL: none. */
int moe_engine_constrain(struct moe_engine *e, const struct moe_grammar *g,
                         const struct moe_ids *marks, struct moe_constraint **out,
                         struct moe_err *err);
/* Memory that n of them take at most, with the vocabulary and without their grammars. */
uint64_t moe_constraints_bytes(const struct moe_config *config, uint32_t n);

/* Completes the figures that the session does not count itself: strategy, budget, peaks. */
void moe_engine_finish_stats(const struct moe_engine *e, struct moe_stats *stats);
/* What the session that is open has done so far that may have changed results. */
struct moe_changes moe_engine_changes(const struct moe_engine *e);

/* How it computes, as context files say it (engine/context_file.h): "" exactly. */
const char *moe_engine_method(const struct moe_engine *e);

/* The split for a person, a few lines. */
void moe_budget_write_text(const struct moe_budget *b, struct moe_buf *out);

#endif
