/*
 * Position tables for attention: rotary angles, and T5's learnt bias by bucketed distance. Filled
 * once, at loading, from the description.
 */
#ifndef MOE_MODEL_ROPE_H
#define MOE_MODEL_ROPE_H

#include "base/err.h"
#include "model/config.h"

/* Rows of the rotary table for this many positions. With LongRoPE the rows for texts up to
 * rope_original come first, then those for longer texts (moe_math_rope_row in kern/kern_math.h). */
uint64_t moe_rope_rows(const struct moe_config *config, uint32_t positions);
/* rope[rows][rope_dim/2][cos, sin] of position * frequency, times the scale; computed in double and
 * rounded once. */
void moe_rope_fill(const struct moe_config *config, uint32_t positions, float *rope);
/* The same for global or compressing layers, by global_freqs: [positions][n_global_freqs][cos,
 * sin]. */
void moe_rope_global_fill(const struct moe_config *config, uint32_t positions, float *rope);

/* What queries at this position are multiplied by, where the description scales them (query_step,
 * query_floor): computed in double and rounded once. */
float moe_rope_query_factor(const struct moe_config *config, uint32_t position);

/*
 * The bucket of a distance, key's position minus query's, as transformers compute T5's: half of the
 * buckets are one distance wide; of the others, with the first half's n distances, bucket
 *   n + floor(log(distance / n) / log(bucket_distance / n) * (n_buckets - n)), at most the last,
 * in float but for the second logarithm, which is rounded to float. Both ways: keys behind the
 * query take the lower half of all buckets, those after it the upper half; else those after it
 * count as distance 0.
 */
uint32_t moe_position_bucket(int64_t distance, bool both_ways, uint32_t n_buckets,
                             uint32_t bucket_distance);

/* The bias of every distance in texts of this many positions: floats from head to head, where
 * distance 0 is, and the table [heads][that stride] by rising distance. Whether a row sees keys
 * after it, and buckets then go both ways, depends on the stack. weights: the stack's
 * MOE_T_POSITION_BIAS, [n_buckets][n_heads]. */
uint64_t moe_position_bias_stride(bool encoder, const struct moe_config *config,
                                  uint32_t positions);
/* Floats of the table; 0 without such a stack or such positions. */
uint64_t moe_position_bias_floats(bool encoder, const struct moe_config *config,
                                  uint32_t positions);
static inline uint32_t moe_position_bias_zero(uint32_t positions)
{
    return positions - 1;
}
void moe_position_bias_fill(bool encoder, const struct moe_config *config, uint32_t positions,
                            const float *weights, float *bias);

/*
 * Rotary frequencies from a checkpoint's settings ("rope_scaling", "rope_parameters", or GGUF's
 * keys): plain, linear, Llama 3, YaRN, LongRoPE, dynamic. They end as numbers in struct
 * moe_config; later code does not know the kinds.
 */

struct json_t;

enum moe_rope_kind {
    MOE_ROPE_PLAIN,
    MOE_ROPE_LINEAR,
    MOE_ROPE_LLAMA3,
    MOE_ROPE_YARN,
    MOE_ROPE_LONGROPE,
    MOE_ROPE_ALPHA, /* Hunyuan: the base is multiplied by a power of alpha, for any length */
};

/* A checkpoint's settings, named as in Hugging Face's files; moe_rope_settings_init sets the
 * defaults. */
struct moe_rope_settings {
    enum moe_rope_kind kind;
    double theta;
    double factor;           /* 0: not given, and for YaRN and LongRoPE the ratio of the contexts */
    double original_context; /* original_max_position_embeddings; 0: the model's context */
    double low_freq_factor, high_freq_factor; /* Llama 3 */
    double beta_fast, beta_slow;              /* YaRN */
    double attention_factor;                  /* YaRN, LongRoPE; 0: from factor (and mscale) */
    double mscale, mscale_all_dim;            /* YaRN, DeepSeek; 0: not given */
    double alpha;                             /* of MOE_ROPE_ALPHA; 0: not given */
    bool truncate;                            /* YaRN: the ramp's ends are rounded outwards */
    double partial; /* the part of a head that rotates; 0: all, and files may not say otherwise */
    double short_factors[MOE_MAX_ROPE_PAIRS], long_factors[MOE_MAX_ROPE_PAIRS]; /* LongRoPE */
    uint32_t n_factors;
    const char
        *of; /* the member of "rope_parameters" to read; NULL: they are not by kind of layer */
    double short_mscale, long_mscale; /* LongRoPE as Phi-3.5-MoE has it; 0: from factor */
};

void moe_rope_settings_init(struct moe_rope_settings *settings);

/* Reads rotary settings of a config.json: its top level and "rope_scaling" or "rope_parameters".
 * MOE_ERR_UNSUPPORTED names an unknown kind. */
int moe_rope_read_hf(struct moe_rope_settings *settings, const char *path,
                     const struct json_t *json, struct moe_err *err);
/* Reads one such object. */
int moe_rope_read_object(struct moe_rope_settings *settings, const char *path,
                         const struct json_t *json, struct moe_err *err);

/* By how much the context is extended: settings->factor, or the ratio of the contexts. */
double moe_rope_factor(const struct moe_config *config, const struct moe_rope_settings *settings);
/* The factor that DeepSeek-V2 multiplies attn_scale by, twice, when the context is extended
 * ("mscale_all_dim"; 1 without it). */
double moe_rope_mscale(const struct moe_config *config, const struct moe_rope_settings *settings);

/* Sets config's rope members. hidden, heads and context_max are set before; rope_dim may be 0, and
 * is then head_dim or part of it. attn_scale stays. Frequencies are those of transformers'
 * modeling_rope_utils.py, in double precision: tests/FAMILIES.md says how much its rounding to 32
 * bits differs. */
int moe_rope_apply(struct moe_config *config, const struct moe_rope_settings *settings,
                   const char *name, struct moe_err *err);
/* Sets the frequencies of global, or compressing, layers, which have as wide heads as others. To be
 * called before moe_rope_apply sets the others'. */
int moe_rope_apply_global(struct moe_config *config, const struct moe_rope_settings *settings,
                          const char *name, struct moe_err *err);

#endif
