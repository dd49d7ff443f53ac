/*
 * Tables of what attention adds or turns by where tokens stand: rotary angles, and T5's learnt bias
 * by bucketed distance. Made once, at loading, from the description.
 */
#ifndef MOE_MODEL_ROPE_H
#define MOE_MODEL_ROPE_H

#include "base/err.h"
#include "model/config.h"

/* Rows of the rotary table for so many positions: with LongRoPE those of texts up to rope_original
 * come first, then those of longer ones (moe_math_rope_row in kern/kern_math.h says which row). */
uint64_t moe_rope_rows(const struct moe_config *config, uint32_t positions);
/* rope[rows][rope_dim/2][cos, sin]: of position * frequency, times the scale; in double, rounded
 * once. */
void moe_rope_fill(const struct moe_config *config, uint32_t positions, float *rope);
/* The same of layers without a window, by global_freqs: [positions][n_global_freqs][cos, sin]. */
void moe_rope_global_fill(const struct moe_config *config, uint32_t positions, float *rope);

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

/* The bias of every distance of texts of so many positions: floats from head to head, where
 * distance 0 lies, and the table [heads][that stride] by rising distance. Whether a row sees keys
 * after it, and the buckets then go both ways, depends on the stack. weights: the stack's
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
 * keys): plain, linear, Llama 3's, YaRN, LongRoPE, dynamic. The result is numbers in struct
 * moe_config; no code after this knows the kinds.
 */

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
