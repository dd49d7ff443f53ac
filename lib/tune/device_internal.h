/*
 * What the files of the device bench share.
 */
#ifndef MOE_TUNE_DEVICE_INTERNAL_H
#define MOE_TUNE_DEVICE_INTERNAL_H

#include "base/progress.h"
#include "infer/session.h"
#include "pack/pack.h"
#include "profile/device.h"

enum { DEVICE_RUNS = 5, DEVICE_MAX_SAMPLES = 128 };

/* Loads of one expert's size each: of the pack's experts, or of a scratch file in `dir`. */
int moe_device_measure_storage(struct moe_device_storage *s, const struct moe_pack *pack,
                               const char *dir, const struct moe_progress *progress,
                               struct moe_err *err);
/* The first GPU, by name and figures; nothing where there is none (device_bench.c). */
void moe_device_measure_gpu(struct moe_device_accelerator *a);
/* Times the pieces of a layer of the pack's model, in about `seconds`; each gets at least
 * DEVICE_RUNS runs. */
int moe_device_measure_model(struct moe_device_model *out, const char *pack, double seconds,
                             const struct moe_progress *progress, struct moe_err *err);

/* This machine: its processor and cores. Who measured it, and when. */
void moe_device_describe(char name[MOE_DEVICE_TEXT], char source[MOE_DEVICE_TEXT]);

/* ---- Experts in turn (device_model.c) ----
 * A provider that holds a few experts of one variant and hands them out in turn, whichever are
 * requested: all have the same shapes. It takes the time as it is called.
 */
struct device_experts {
    struct moe_experts base;
    struct device_loads *loads;    /* that go on meanwhile; NULL: none */
    struct moe_expert_view *views; /* [n] */
    uint32_t n, at;
    uint8_t *memory;
    uint64_t memory_bytes;
    const struct moe_layer_request *request;
    uint32_t n_given;
    /* Of the last request. */
    double began, first, last;  /* begin was called; next for the first time; the last release */
    double seconds;             /* between next and release, over all experts */
    uint32_t n_experts, n_rows; /* computed */
};

/* Reads experts of the variant; none if the pack has none. */
void moe_device_experts_close(struct device_experts *e);

/* ---- Loads beside computation (device_storage.c) ---- */

enum device_loading {
    DEVICE_QUIET = 0,  /* nothing is loaded */
    DEVICE_BACKGROUND, /* loads go on, nobody waits for them */
    DEVICE_RESTED,     /* nothing is loaded, and each layer comes after a sleep */
};

struct device_loads;
/* Loads of the pack's experts at the variant, by a loader as moe-run's. *out NULL: it has none. */
int moe_device_loads_open(struct device_loads **out, const struct moe_pack *pack, uint32_t variant,
                          uint32_t top_k, struct moe_err *err);
void moe_device_loads_close(struct device_loads *l); /* NULL is fine */
/* From now on; what is under way ends first. */
int moe_device_loads_set(struct device_loads *l, enum device_loading how, struct moe_err *err);

/* The provider tells it that it is time to look. */
int moe_device_loads_poll(struct device_loads *l, struct moe_err *err);
/* Seconds until now that were not computing: handling loads, and asleep. */
double moe_device_loads_seconds(const struct device_loads *l);

#endif
