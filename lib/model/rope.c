/* Rotary positions and T5's biases: tables, and frequencies of each kind of scaling. */
#include "model/rope.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fmt/json.h"

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

/* far: for texts beyond rope_original */
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
        fill_pair(c->global_freqs[i], c->global_rope_scale, i, c->n_global_freqs, positions, rope);
}

float moe_rope_query_factor(const struct moe_config *c, uint32_t position)
{
    if (c->query_floor)
        return (float)(1 + (double)c->query_scale *
                               log(fmax(((double)position + 1) / (double)c->query_floor, 1)));
    if (c->query_power)
        return (float)pow(1 + ((double)position + 1) / (double)c->query_step,
                          (double)c->query_scale);
    uint64_t steps = ((uint64_t)position + !c->query_from_zero) / c->query_step;
    return (float)(1 + (double)c->query_scale * log1p((double)steps));
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
    /* Rounding the logarithm to float, instead of computing it in float, makes the result
     * independent of the library. */
    float grown = (float)log((double)((float)far / (float)n_exact)) /
                  (float)log((double)bucket_distance / n_exact) * (float)(n - n_exact);
    uint32_t bucket = n_exact + (uint32_t)(grown < (float)n ? grown : (float)n);
    return first + (bucket < n ? bucket : n - 1);
}

/* Whether rows of the stack see later keys. */
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

/* ---- Settings ---- */

static const double PI = 3.14159265358979323846;

void moe_rope_settings_init(struct moe_rope_settings *settings)
{
    *settings = (struct moe_rope_settings){
        .theta = 10000,
        .low_freq_factor = 1,
        .high_freq_factor = 4,
        .beta_fast = 32,
        .beta_slow = 1,
        .truncate = true,
    };
}

/* ---- From config.json ---- */

static int read_kind(struct moe_rope_settings *s, const char *path, const json_t *json,
                     struct moe_err *err)
{
    static const char *const names[] = {
        [MOE_ROPE_PLAIN] = "default",     [MOE_ROPE_LINEAR] = "linear",
        [MOE_ROPE_LLAMA3] = "llama3",     [MOE_ROPE_YARN] = "yarn",
        [MOE_ROPE_LONGROPE] = "longrope", [MOE_ROPE_ALPHA] = "dynamic",
    };
    const char *name = names[MOE_ROPE_PLAIN];
    MOE_TRY(moe_json_get_text(path, json, "type", false, &name, err));
    MOE_TRY(moe_json_get_text(path, json, "rope_type", false, &name, err));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(names[i], name) == 0) {
            s->kind = (enum moe_rope_kind)i;
            return MOE_OK;
        }
    if (strcmp(name, "deepseek_yarn") == 0) { /* Sarvam's name of it */
        s->kind = MOE_ROPE_YARN;
        return MOE_OK;
    }
    return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: rotary scaling '%s' is not implemented", path,
                    name);
}

static int read_factors(const char *path, const json_t *json, const char *key, double *out,
                        uint32_t *n, struct moe_err *err)
{
    const json_t *list = json_object_get(json, key);
    if (!json_is_array(list) || json_array_size(list) > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of at most %d numbers", path,
                        key, MOE_MAX_ROPE_PAIRS);
    *n = (uint32_t)json_array_size(list);
    for (uint32_t i = 0; i < *n; i++) {
        const json_t *item = json_array_get(list, i);
        out[i] = json_number_value(item);
        if (!json_is_number(item) || !(out[i] > 0))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' item %" PRIu32 " is not a factor", path,
                            key, i);
    }
    return MOE_OK;
}

static int read_long_rope(struct moe_rope_settings *s, const char *path, const json_t *json,
                          struct moe_err *err)
{
    uint32_t n_long = 0;
    MOE_TRY(read_factors(path, json, "short_factor", s->short_factors, &s->n_factors, err));
    MOE_TRY(read_factors(path, json, "long_factor", s->long_factors, &n_long, err));
    if (n_long != s->n_factors)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " short and %" PRIu32 " long rotary factors", path,
                        s->n_factors, n_long);
    return MOE_OK;
}

static int read_numbers(struct moe_rope_settings *s, const char *path, const json_t *json,
                        struct moe_err *err)
{
    const struct {
        const char *key;
        double *out;
        bool zero_is_default; /* as in the public implementation */
    } numbers[] = {
        {"rope_theta", &s->theta, false},
        {"factor", &s->factor, false},
        {"original_max_position_embeddings", &s->original_context, false},
        {"low_freq_factor", &s->low_freq_factor, false},
        {"high_freq_factor", &s->high_freq_factor, false},
        {"beta_fast", &s->beta_fast, true},
        {"beta_slow", &s->beta_slow, true},
        {"attention_factor", &s->attention_factor, false},
        {"mscale", &s->mscale, false},
        {"mscale_all_dim", &s->mscale_all_dim, false},
        {"short_mscale", &s->short_mscale, false},
        {"long_mscale", &s->long_mscale, false},
        {"alpha", &s->alpha, false},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        double value = *numbers[i].out;
        MOE_TRY(moe_json_get_double(path, json, numbers[i].key, false, &value, err));
        if (value != 0 || !numbers[i].zero_is_default)
            *numbers[i].out = value;
    }
    return MOE_OK;
}

static int read_partial(struct moe_rope_settings *s, const char *path, const json_t *json,
                        struct moe_err *err)
{
    MOE_TRY(moe_json_get_double(path, json, "partial_rotary_factor", false, &s->partial, err));
    if (!(s->partial > 0 && s->partial <= 1))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'partial_rotary_factor' %g, expected above 0 and at most 1", path,
                        s->partial);
    return MOE_OK;
}

/* "dynamic": with 'alpha', Hunyuan's. Without it the base grows with texts longer than
 * max_position_embeddings, which are never computed here (engine/memory.c): plain. */
static int read_dynamic(struct moe_rope_settings *s, const char *path, struct moe_err *err)
{
    if (s->alpha == 0)
        s->kind = MOE_ROPE_PLAIN;
    else if (!(s->alpha > 0 && s->alpha < 1e9))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: rotary scaling 'dynamic' with 'alpha' %g: expected a number above 0, "
                        "or none for a base that grows with the text",
                        path, s->alpha);
    return MOE_OK;
}

/* Refuses switches that are not implemented. */
static int refuse_others(const struct moe_rope_settings *s, const char *path, const json_t *json,
                         struct moe_err *err)
{
    double part = 1;
    MOE_TRY(moe_json_get_double(path, json, "partial_rotary_factor", false, &part, err));
    if (part != 1 && s->partial == 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'partial_rotary_factor' %g is not implemented", path, part);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)json, key, value)
    {
        if (json_is_object(value))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: rotary settings that differ by layer ('%.60s') are not "
                            "implemented",
                            path, key);
    }
    return MOE_OK;
}

int moe_rope_read_object(struct moe_rope_settings *settings, const char *path, const json_t *json,
                         struct moe_err *err)
{
    MOE_TRY(refuse_others(settings, path, json, err));
    if (settings->partial != 0)
        MOE_TRY(read_partial(settings, path, json, err));
    MOE_TRY(read_kind(settings, path, json, err));
    MOE_TRY(read_numbers(settings, path, json, err));
    if (settings->kind == MOE_ROPE_ALPHA)
        MOE_TRY(read_dynamic(settings, path, err));
    MOE_TRY(moe_json_get_bool(path, json, "truncate", false, &settings->truncate, err));
    return settings->kind == MOE_ROPE_LONGROPE ? read_long_rope(settings, path, json, err) : MOE_OK;
}

int moe_rope_read_hf(struct moe_rope_settings *settings, const char *path, const json_t *json,
                     struct moe_err *err)
{
    /* A list by layer is for a function of the family. */
    if (!settings->of || !json_is_array(json_object_get(json, "rope_theta")))
        MOE_TRY(moe_json_get_double(path, json, "rope_theta", false, &settings->theta, err));
    const json_t *scaling = json_object_get(json, "rope_scaling");
    if (!json_is_object(scaling) || json_object_size(scaling) == 0)
        scaling = json_object_get(json, "rope_parameters");
    if (settings->of && json_is_object(json_object_get(scaling, settings->of)))
        scaling = json_object_get(scaling, settings->of);
    if (settings->partial != 0)
        MOE_TRY(read_partial(settings, path, json, err));
    if (json_is_object(scaling))
        MOE_TRY(moe_rope_read_object(settings, path, scaling, err));
    /* The top level takes precedence over the settings (Phi-3). */
    return moe_json_get_double(path, json, "original_max_position_embeddings", false,
                               &settings->original_context, err);
}

/* ---- Frequencies ---- */

/* Frequency of pair i of `pairs`, unscaled. */
static double plain_freq(double theta, uint32_t i, uint32_t pairs)
{
    return pow(theta, -(double)i / pairs);
}

/* The factor on scores in a context extended by `scale`, half of it on each side. */
static double yarn_mscale(double scale, double mscale)
{
    return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1;
}

/* The pair, as a real number, that makes `turns` turns within the original context. */
static double yarn_pair(double turns, uint32_t pairs, double theta, double context)
{
    return pairs * log(context / (turns * 2 * PI)) / log(theta);
}

/* YaRN: fast pairs keep their frequency, slow ones are interpolated, with a ramp between. */
static void apply_yarn(struct moe_config *c, const struct moe_rope_settings *s, double factor,
                       double context, uint32_t pairs)
{
    double low = yarn_pair(s->beta_fast, pairs, s->theta, context);
    double high = yarn_pair(s->beta_slow, pairs, s->theta, context);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, 2.0 * pairs - 1);
    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < pairs; i++) {
        double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
        double freq = plain_freq(s->theta, i, pairs);
        c->rope_freqs[i] = freq / factor * ramp + freq * (1 - ramp);
    }
    if (s->attention_factor != 0)
        c->rope_scale = s->attention_factor;
    else if (s->mscale != 0 && s->mscale_all_dim != 0)
        c->rope_scale = yarn_mscale(factor, s->mscale) / yarn_mscale(factor, s->mscale_all_dim);
    else
        c->rope_scale = yarn_mscale(factor, 1);
}

/* Llama 3: pairs slower than the original context are interpolated, fast ones keep their frequency,
 * with a ramp between unless both factors are the same (Llama-4-Scout). */
static void apply_llama3(struct moe_config *c, const struct moe_rope_settings *s, double context,
                         uint32_t pairs)
{
    for (uint32_t i = 0; i < pairs; i++) {
        double freq = plain_freq(s->theta, i, pairs);
        double turns = context * freq / (2 * PI);
        double smooth = (turns - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
        if (turns < s->low_freq_factor)
            freq /= s->factor;
        else if (turns < s->high_freq_factor)
            freq = (1 - smooth) * freq / s->factor + smooth * freq;
        c->rope_freqs[i] = freq;
    }
}

/* LongRoPE: a factor per pair, and other factors for long texts. */
static int apply_longrope(struct moe_config *c, const struct moe_rope_settings *s, double factor,
                          double context, uint32_t pairs, const char *name, struct moe_err *err)
{
    if (s->n_factors != pairs)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotary factors for %" PRIu32 " pairs",
                        name, s->n_factors, pairs);
    if (!(context >= 1 && context <= MOE_MAX_CONTEXT && context == floor(context)))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an original context of %g, expected a whole number from 1 to %d", name,
                        context, MOE_MAX_CONTEXT);
    for (uint32_t i = 0; i < pairs; i++) {
        double freq = plain_freq(s->theta, i, pairs);
        c->rope_freqs[i] = freq / s->short_factors[i];
        c->rope_freqs_long[i] = freq / s->long_factors[i];
    }
    double scale = s->attention_factor;
    if (scale == 0)
        scale = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(context));
    c->rope_original = (uint32_t)context;
    c->rope_scale = s->short_mscale != 0 ? s->short_mscale : scale;
    c->rope_scale_long = s->long_mscale != 0 ? s->long_mscale : scale;
    c->n_rope_freqs_long = pairs;
    return MOE_OK;
}

static int check_settings(const struct moe_rope_settings *s, double factor, double context,
                          const char *name, struct moe_err *err)
{
    if (!(s->theta > 1))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rope theta %g, expected above 1", name, s->theta);
    if (s->kind == MOE_ROPE_PLAIN)
        return MOE_OK;
    if ((s->kind == MOE_ROPE_LINEAR || s->kind == MOE_ROPE_LLAMA3) && s->factor == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rotary scaling without 'factor'", name);
    if (!(factor > 0 && factor < 1e6) || !(context > 0 && context < 1e9))
        return moe_fail(
            err, MOE_ERR_FORMAT,
            "%s: rotary scaling by %g from a context of %g, expected above 0, below 1e6 and 1e9",
            name, factor, context);
    if (s->kind == MOE_ROPE_LLAMA3 && !(s->high_freq_factor >= s->low_freq_factor))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rotary 'high_freq_factor' %g is below %g", name,
                        s->high_freq_factor, s->low_freq_factor);
    if (s->kind == MOE_ROPE_YARN && !(s->beta_fast > 0 && s->beta_slow > 0))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: rotary betas of %g and %g, expected both above 0",
                        name, s->beta_fast, s->beta_slow);
    return MOE_OK;
}

double moe_rope_factor(const struct moe_config *config, const struct moe_rope_settings *settings)
{
    if (settings->factor != 0 || settings->original_context == 0)
        return settings->factor != 0 ? settings->factor : 1;
    return config->context_max / settings->original_context;
}

double moe_rope_mscale(const struct moe_config *config, const struct moe_rope_settings *settings)
{
    if (settings->kind == MOE_ROPE_PLAIN || settings->mscale_all_dim == 0)
        return 1;
    return yarn_mscale(moe_rope_factor(config, settings), settings->mscale_all_dim);
}

int moe_rope_apply(struct moe_config *config, const struct moe_rope_settings *settings,
                   const char *name, struct moe_err *err)
{
    uint32_t dim = config->rope_dim ? config->rope_dim : config->head_dim;
    if (dim == 0 && config->n_heads > 0)
        dim = config->hidden / config->n_heads;
    if (config->rope_dim == 0 && settings->partial > 0 && settings->partial < 1)
        config->rope_dim = dim = (uint32_t)(dim * settings->partial);
    uint32_t pairs = dim / 2;
    double factor = moe_rope_factor(config, settings);
    double context =
        settings->original_context != 0 ? settings->original_context : (double)config->context_max;
    config->rope_theta = settings->theta;
    if (settings->kind == MOE_ROPE_ALPHA && dim > 2)
        config->rope_theta *= pow(settings->alpha, (double)dim / (dim - 2));
    int status = check_settings(settings, factor, context, name, err);
    if (status != MOE_OK || settings->kind == MOE_ROPE_PLAIN || settings->kind == MOE_ROPE_ALPHA)
        return status;
    if (pairs == 0 || pairs > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotated values, expected 2 to %d",
                        name, dim, 2 * MOE_MAX_ROPE_PAIRS);
    config->n_rope_freqs = pairs;
    switch (settings->kind) {
    case MOE_ROPE_PLAIN:
    case MOE_ROPE_ALPHA:
        break;
    case MOE_ROPE_LINEAR:
        for (uint32_t i = 0; i < pairs; i++)
            config->rope_freqs[i] = plain_freq(settings->theta, i, pairs) / factor;
        break;
    case MOE_ROPE_LLAMA3:
        apply_llama3(config, settings, context, pairs);
        break;
    case MOE_ROPE_YARN:
        apply_yarn(config, settings, factor, context, pairs);
        break;
    case MOE_ROPE_LONGROPE:
        status = apply_longrope(config, settings, factor, context, pairs, name, err);
        break;
    }
    return status;
}

int moe_rope_apply_global(struct moe_config *config, const struct moe_rope_settings *settings,
                          const char *name, struct moe_err *err)
{
    const uint32_t rotated = config->rope_dim;
    if (settings->kind == MOE_ROPE_LONGROPE)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: LongRoPE is not implemented for one kind of layers of several", name);
    MOE_TRY(moe_rope_apply(config, settings, name, err));
    const uint32_t pairs = (config->rope_dim ? config->rope_dim : config->head_dim) / 2;
    if (pairs == 0 || pairs > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotated values, expected 2 to %d",
                        name, 2 * pairs, 2 * MOE_MAX_ROPE_PAIRS);
    for (uint32_t i = 0; i < pairs; i++)
        config->global_freqs[i] =
            config->n_rope_freqs ? config->rope_freqs[i] : plain_freq(config->rope_theta, i, pairs);
    config->n_global_freqs = pairs;
    config->global_rope_scale = config->rope_scale;
    config->rope_dim = rotated;
    config->n_rope_freqs = 0;
    config->rope_scale = 1;
    return MOE_OK;
}
