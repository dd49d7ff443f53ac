/*
 * The inputs of moe-plan: a model (a pack, a description, or what a trace contains), statistics, a
 * trace (drawn at random where there is none), the pace of a machine.
 */
#ifndef CMD_PLAN_INPUTS_H
#define CMD_PLAN_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/memory.h"
#include "model/config.h"
#include "model/shape_file.h"
#include "plan/planner.h"
#include "strategy_options.h"

struct plan_options {
    const char *pack, *shape; /* at most one; neither: the model is what the trace contains */
    const char *trace, *profile, *calibration, *learn, *out;
    const struct moe_device *device; /* in the place of a profile; NULL: there is none */
    const char *drawn;               /* where a trace that is drawn is kept; NULL: nowhere */
    const char *expert_bits;         /* of a shape: one or two bitwidths with a comma */
    int dense_bits;                  /* ... or types, as of experts */
    uint64_t memory, gpu_memory, expert_memory, expert_size, max_tokens, seed;
    uint32_t context, batch, prompt_tokens;
    bool reserve_kv;
    struct strategy_drafter draft; /* what answers will be drafted by */
    bool on_cpu;                   /* the processor was named: no accelerator of a profile */
    double link_rate, layer_seconds, load_seconds;
    double tolerance; /* share that may be lost, by ways to load less where there is a calibration,
                         else by one of the pack's maps; 0: nothing */
    struct strategy_options strategy;
    struct moe_strategy wanted; /* as these options say it; without a name: auto */
};

/* What a size of memory limits. */
enum plan_budget { PLAN_OF_PROCESS = 0, PLAN_OF_EXPERTS, PLAN_N_BUDGETS };

/* The pack as it runs in another memory, and the machine's pace with it. */
struct plan_elsewhere {
    uint64_t bytes;
    struct moe_pack_fit *pack;
    struct moe_pace pace;
};

struct plan_inputs {
    const struct plan_options *options;
    char name[MOE_PLAN_TEXT];
    uint64_t fingerprint, source_fingerprint; /* of the pack; 0 without one */
    bool drawn;                               /* ... its weights mean nothing */
    struct moe_config config;                 /* of pack and shape */
    struct moe_shape_file shape;              /* of a shape */
    struct moe_shape_bytes bytes;
    struct moe_pack_fit *packs[PLAN_N_BUDGETS];
    struct moe_shape_fit shapes[PLAN_N_BUDGETS]; /* without a pack */
    struct moe_fitter fitters[PLAN_N_BUDGETS];
    struct plan_elsewhere elsewhere[4];
    uint32_t n_elsewhere;
    struct moe_inventory own; /* of a shape or a trace */
    const struct moe_inventory *inventory;
    struct moe_statistics *statistics;
    struct moe_statistics *scoring; /* of other documents than the trace's; NULL: the above are */
    struct moe_device *device;
    struct moe_pace pace;
    uint64_t host_bytes; /* for experts behind an accelerator, where the pace has a storage */
    struct moe_trace *trace;
    struct moe_excerpt excerpt; /* of it */
    struct moe_lookups *lookups;
    struct moe_plan_evidence evidence;
};

/* MOE_ERR_*, with what to do in the text. Close it in any case; do not move it while it is open. */
int plan_inputs_open(struct plan_inputs *in, const struct plan_options *o, struct moe_err *err);
void plan_inputs_close(struct plan_inputs *in);

/* The pace of a machine with another profile. */
int plan_pace_of(const struct plan_inputs *in, const struct moe_device *d, struct moe_pace *out,
                 struct moe_err *err);
/* What the machine that runs the model needs beside the experts, with passes of `batch` rows (0: as
 * asked for); total and experts are not set. */
int plan_memory_beside(const struct plan_inputs *in, uint32_t batch, struct moe_plan_memory *out,
                       struct moe_err *err);

/* The inputs as the planner takes them. */
struct moe_planner plan_planner(const struct plan_inputs *in, enum plan_budget budget);

#endif
