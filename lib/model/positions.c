#include "model/positions.h"

#include <math.h>
#include <stdlib.h>

/* ---- Rotary ---- */

uint64_t moe_rope_rows(const struct moe_config *c, uint32_t positions)
{
    if (c->positions != MOE_POSITIONS_ROTARY)
        return 0;
    return positions > c->rope_original ? (uint64_t)c->rope_original + positions : positions;
}

static void fill_pair(double frequency, double scale, uint32_t i, uint32_t pairs,
                      uint32_t n_positions, float *out)
{
    for (uint32_t p = 0; p < n_positions; p++) {
        float *cs = out + ((uint64_t)p * pairs + i) * 2;
        cs[0] = (float)(cos(p * frequency) * scale);
        cs[1] = (float)(sin(p * frequency) * scale);
    }
}

/* far: of texts beyond rope_original */
static void fill_angles(const struct moe_config *c, bool far, uint32_t n_positions, float *out)
{
    uint32_t pairs = c->rope_dim / 2;
    const double *listed = far ? c->rope_freqs_long : c->n_rope_freqs ? c->rope_freqs : NULL;
    double scale = far ? c->rope_scale_long : c->rope_scale;
    for (uint32_t i = 0; i < pairs; i++) {
        double frequency = listed ? listed[i] : pow(c->rope_theta, -2.0 * i / c->rope_dim);
        fill_pair(frequency, scale, i, pairs, n_positions, out);
    }
}

void moe_rope_global_fill(const struct moe_config *c, uint32_t positions, float *rope)
{
    for (uint32_t i = 0; i < c->n_global_freqs; i++)
        fill_pair(c->global_freqs[i], 1, i, c->n_global_freqs, positions, rope);
}

void moe_rope_fill(const struct moe_config *c, uint32_t positions, float *rope)
{
    bool both = moe_rope_rows(c, positions) > positions;
    if (moe_rope_rows(c, positions) == 0)
        return;
    fill_angles(c, false, both ? c->rope_original : positions, rope);
    if (both)
        fill_angles(c, true, positions, rope + (uint64_t)c->rope_original * c->rope_dim);
}

/* ---- By bucketed distance ---- */

uint32_t moe_position_bucket(int64_t distance, bool both_ways, uint32_t n_buckets,
                             uint32_t bucket_distance)
{
    uint32_t n = both_ways ? n_buckets / 2 : n_buckets, first = both_ways && distance > 0 ? n : 0;
    uint32_t n_exact = n / 2;
    int64_t far = both_ways || distance < 0 ? llabs(distance) : 0;
    if (far < n_exact)
        return first + (uint32_t)far;
    /* The logarithm rounded to float, not computed in it: so it does not depend on a library. */
    float grown = (float)log((double)((float)far / (float)n_exact)) /
                  (float)log((double)bucket_distance / n_exact) * (float)(n - n_exact);
    uint32_t bucket = n_exact + (uint32_t)(grown < (float)n ? grown : (float)n);
    return first + (bucket < n ? bucket : n - 1);
}

/* Whether rows of the stack see keys after them. */
static bool sees_after(bool encoder, const struct moe_config *c)
{
    return encoder || c->prefix_lm;
}

uint64_t moe_position_bias_stride(bool encoder, const struct moe_config *c, uint32_t positions)
{
    return sees_after(encoder, c) ? 2 * (uint64_t)positions - 1 : positions;
}

uint64_t moe_position_bias_floats(bool encoder, const struct moe_config *c, uint32_t positions)
{
    bool has = c->positions == MOE_POSITIONS_BUCKETS && (!encoder || c->n_encoder);
    return has ? moe_position_bias_stride(encoder, c, positions) * c->n_heads : 0;
}

void moe_position_bias_fill(bool encoder, const struct moe_config *c, uint32_t positions,
                            const float *weights, float *bias)
{
    uint64_t stride = moe_position_bias_stride(encoder, c, positions);
    int64_t zero = moe_position_bias_zero(positions);
    for (uint64_t i = 0; i < stride; i++) {
        uint32_t bucket =
            moe_position_bucket((int64_t)i - zero, encoder, c->n_buckets, c->bucket_distance);
        for (uint32_t head = 0; head < c->n_heads; head++)
            bias[head * stride + i] = weights[(uint64_t)bucket * c->n_heads + head];
    }
}
