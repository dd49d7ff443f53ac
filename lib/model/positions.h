/*
 * Tables of what attention adds or turns by where tokens stand: rotary angles, and T5's learnt bias
 * by bucketed distance. Made once, at loading, from the description.
 */
#ifndef MOE_MODEL_POSITIONS_H
#define MOE_MODEL_POSITIONS_H

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

#endif
