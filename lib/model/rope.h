/*
 * Rotary frequencies from a checkpoint's settings ("rope_scaling", "rope_parameters", or GGUF's
 * keys): plain, linear, Llama 3's, YaRN, LongRoPE, dynamic. The result is numbers in struct
 * moe_config; no code after this knows the kinds.
 */
#ifndef MOE_MODEL_ROPE_H
#define MOE_MODEL_ROPE_H

#include "base/err.h"
#include "model/config.h"

struct json_t;

enum moe_rope_kind {
    MOE_ROPE_PLAIN,
    MOE_ROPE_LINEAR,
    MOE_ROPE_LLAMA3,
    MOE_ROPE_YARN,
    MOE_ROPE_LONGROPE,
    MOE_ROPE_ALPHA, /* Hunyuan: the base is stretched by alpha, whatever the length */
};

/* A checkpoint's settings; moe_rope_settings_init sets the defaults. Names as in Hugging Face's
 * files. */
struct moe_rope_settings {
    enum moe_rope_kind kind;
    double theta;
    double factor;           /* 0: not given; for YaRN and LongRoPE then from the contexts */
    double original_context; /* original_max_position_embeddings; 0: the model's context */
    double low_freq_factor, high_freq_factor; /* Llama 3 */
    double beta_fast, beta_slow;              /* YaRN */
    double attention_factor;                  /* YaRN, LongRoPE; 0: from factor (and mscale) */
    double mscale, mscale_all_dim;            /* YaRN, DeepSeek; 0: not given */
    double alpha;                             /* of MOE_ROPE_ALPHA; 0: not given */
    bool truncate;                            /* YaRN: the ramp's ends are rounded outwards */
    double
        partial; /* the part of a head that is rotated; 0: all, and a file may not say otherwise */
    double short_factors[MOE_MAX_ROPE_PAIRS], long_factors[MOE_MAX_ROPE_PAIRS]; /* LongRoPE */
    uint32_t n_factors;
    const char
        *of; /* the member of "rope_parameters" to read; NULL: they are not by kind of layer */
    double short_mscale, long_mscale; /* LongRoPE as Phi-3.5-MoE has it; 0: from factor */
};

void moe_rope_settings_init(struct moe_rope_settings *settings);

/* Reads rotary settings of a config.json: top level and "rope_scaling" or "rope_parameters". An
 * unknown kind is MOE_ERR_UNSUPPORTED and named. */
int moe_rope_read_hf(struct moe_rope_settings *settings, const char *path,
                     const struct json_t *json, struct moe_err *err);

/* How far the context is stretched: settings->factor, or the ratio of the contexts. */
double moe_rope_factor(const struct moe_config *config, const struct moe_rope_settings *settings);
/* The factor by which DeepSeek-V2 multiplies attn_scale, twice, when its context is stretched
 * ("mscale_all_dim"; 1 without it). */
double moe_rope_mscale(const struct moe_config *config, const struct moe_rope_settings *settings);

/* Sets config's rope fields; hidden, heads and context_max are set already (rope_dim may still be
 * 0: then it is head_dim, or the part of it). Does not touch attn_scale. The frequencies are those
 * of transformers' modeling_rope_utils.py, in double precision: it rounds them to 32 bits on the
 * way, which tests/FAMILIES.md says the difference of. */
int moe_rope_apply(struct moe_config *config, const struct moe_rope_settings *settings,
                   const char *name, struct moe_err *err);

#endif
