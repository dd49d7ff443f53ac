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

struct moe_logit_bias {
    uint32_t id;
    float bias; /* added to its logit; -INFINITY: it is never drawn */
};

/* In a struct of zeros all that is beyond repeat_penalty is off. */
struct moe_sampler_options {
    double temperature;       /* 0: greedy (lowest id wins a tie) */
    uint32_t top_k;           /* keep the k likeliest; 0: all */
    double top_p;             /* keep the smallest set with this share; 1: all */
    double min_p;             /* keep those with at least this share of the likeliest's; 0: all */
    double repeat_penalty;    /* > 1 makes tokens of the recent context less likely; 1: off */
    uint32_t repeat_window;   /* how many recent tokens count, for the next two too */
    double presence_penalty;  /* taken from the logit of each recent token */
    double frequency_penalty; /* ... as often as it came */
    /* DRY: what would continue a repeat of at least dry_allowed_length tokens loses
     * dry_multiplier * dry_base ^ (length - dry_allowed_length); a multiplier of 0: off. */
    double dry_multiplier, dry_base;
    uint32_t dry_allowed_length;
    uint32_t dry_window; /* how many recent tokens are looked at */
    double top_n_sigma;  /* keep logits this many standard deviations below the highest; 0: all */
    double typical_p;    /* keep this share of those nearest to the expected surprise; 0, 1: all */
    double
        xtc_probability; /* how often all but the last above the threshold are left out; 0: off */
    double xtc_threshold;
    double dynatemp_range; /* temperature +- this, by entropy; 0: off */
    double dynatemp_exponent;
    uint32_t mirostat; /* 2: in place of all that keeps tokens; 0: off */
    double mirostat_tau, mirostat_eta;
    uint64_t seed; /* always given */

    /* Borrowed as long as there is a sampler: */
    const struct moe_logit_bias *biases; /* [n_biases] */
    uint32_t n_biases;
    const char *const *dry_breakers; /* texts, NULL-terminated, that no repeat goes beyond; NULL:
                                        a newline, a colon, a quotation mark, an asterisk */
};

/* Sets all values to not given, the seed to 0, and borrows nothing. */
void moe_sampling_unsaid(struct moe_sampler_options *out);
/* Fills what is not given from the model, else by default: temperature 0.8, top-k 40, top-p 0.95,
 * min-p 0.05, windows of 64 tokens, and of DRY all; the rest is off. model: NULL for none. */
void moe_sampling_complete(struct moe_sampler_options *options,
                           const struct moe_sampler_options *model);
/* Refuses a value that cannot be used (MOE_ERR_USAGE). All are given. */
int moe_sampling_check(const struct moe_sampler_options *complete, struct moe_err *err);

/* ---- The values by their names ---- */

struct moe_sampling_field {
    const char *name;   /* in packs and statistics: "top_k" */
    const char *key;    /* in requests, as llama.cpp's server has it */
    const char *option; /* of moe-run, as llama.cpp has it: "top-k" */
    const char *about;  /* what its ends mean: "0: all" */
    bool whole;
    double low, high;
    const char *alias; /* the key as other servers have it; NULL: the same */
};
/* The i-th; NULL past the last. */
const struct moe_sampling_field *moe_sampling_field(int i);
/* Sets the i-th value; -1 of a number of tokens is all. MOE_ERR_FORMAT: it is out of its range;
 * file and key name it in the error. */
int moe_sampling_take(struct moe_sampler_options *out, int i, const char *file, const char *key,
                      double value, struct moe_err *err);

enum moe_sampling_origin { MOE_SAMPLING_DEFAULT, MOE_SAMPLING_OF_MODEL, MOE_SAMPLING_ASKED };

struct moe_sampling_value {
    const struct moe_sampling_field *field;
    double value;
    enum moe_sampling_origin origin;
    bool idle; /* other values leave it without effect */
};
/* The i-th value in use and where it comes from; false past the last. */
bool moe_sampling_value(const struct moe_sampler_options *asked,
                        const struct moe_sampler_options *model, int i,
                        struct moe_sampling_value *out);
/* "default", "model", "asked" */
const char *moe_sampling_origin_name(enum moe_sampling_origin origin);

/* The values as a member: {"temperature": {"value": 0.5, "from": "asked"}, ...}; beyond those that
 * every sampler has, what is in force. */
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
