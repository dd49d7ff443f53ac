/*
 * Sampling settings: what a caller asks for, what the model's makers published, and the defaults.
 * A value that is not given is NAN, or UINT32_MAX.
 */
#ifndef MOE_MODEL_SAMPLING_H
#define MOE_MODEL_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct moe_emit;
struct moe_gguf;

struct moe_sampler_options {
    double temperature;     /* 0: greedy (lowest id wins a tie) */
    uint32_t top_k;         /* keep the k likeliest; 0: all */
    double top_p;           /* keep the smallest set with this share; 1: all */
    double min_p;           /* keep those with at least this share of the likeliest's; 0: all */
    double repeat_penalty;  /* > 1 makes tokens of the recent context less likely; 1: off */
    uint32_t repeat_window; /* how many recent tokens count */
    uint64_t seed;          /* always given */
};

/* Sets all values to not given, and the seed to 0. */
void moe_sampling_unsaid(struct moe_sampler_options *out);
/* Fills what is not given from the model, else by default: temperature 0.8, top-k 40, top-p 0.95,
 * min-p 0.05, no repeat penalty (window 64). model: NULL for none. */
void moe_sampling_complete(struct moe_sampler_options *options,
                           const struct moe_sampler_options *model);

enum moe_sampling_origin { MOE_SAMPLING_DEFAULT, MOE_SAMPLING_OF_MODEL, MOE_SAMPLING_ASKED };

struct moe_sampling_value {
    const char *name; /* "top_k" */
    double value;
    enum moe_sampling_origin origin;
};
/* The i-th value in use and where it comes from; false past the last. */
bool moe_sampling_value(const struct moe_sampler_options *asked,
                        const struct moe_sampler_options *model, int i,
                        struct moe_sampling_value *out);
/* "default", "model", "asked" */
const char *moe_sampling_origin_name(enum moe_sampling_origin origin);

/* All values as a member: {"temperature": {"value": 0.5, "from": "asked"}, ...}. */
void moe_sampling_emit(struct moe_emit *e, const char *key, const struct moe_sampler_options *asked,
                       const struct moe_sampler_options *model);

/* ---- What makers publish ---- */

/* Reads a checkpoint directory's generation_config.json; do_sample false is temperature 0. */
int moe_sampling_read_hf(struct moe_sampler_options *out, const char *dir, struct moe_err *err);
/* Reads a GGUF file's general.sampling keys. */
int moe_sampling_read_gguf(struct moe_sampler_options *out, const struct moe_gguf *gguf,
                           struct moe_err *err);
/* As packs keep it: a JSON object of the given values, or nothing if there are none. */
int moe_sampling_write(const struct moe_sampler_options *options, struct moe_buf *out,
                       struct moe_err *err);
int moe_sampling_parse(struct moe_sampler_options *out, const char *name, const void *json,
                       uint64_t n, struct moe_err *err);

#endif
