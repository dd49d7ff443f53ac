/*
 * Rotary positions from a GGUF file: keys under "rope.", and the factors that some files have as
 * tensors.
 */

#include "family/family_gguf.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "family/family_own.h"
#include "family/family_settings.h"

/* A vector of one factor per pair. */
static int read_factors(const struct moe_checkpoint *ck, const char *name, double *out, uint32_t *n,
                        struct moe_err *err)
{
    float values[MOE_MAX_ROPE_PAIRS];
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    *n = 0;
    if (!t)
        return MOE_OK;
    if (t->n_dims != 1 || t->n_items > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is no vector of at most %d values",
                        moe_checkpoint_dir(ck), name, MOE_MAX_ROPE_PAIRS);
    int status = moe_checkpoint_get(ck, name, 1, t->dims, &t, err);
    if (status == MOE_OK)
        status = moe_checkpoint_read(ck, t, 0, t->n_items, values, err);
    for (uint64_t i = 0; i < t->n_items && status == MOE_OK; i++) {
        if (!(values[i] > 0) || !isfinite(values[i]))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s': a factor of %g makes no sense",
                            moe_checkpoint_dir(ck), name, (double)values[i]);
        out[i] = (double)values[i];
    }
    *n = (uint32_t)t->n_items;
    return status;
}

static int read_rope_kind(struct moe_rope_settings *s, const struct moe_gguf *gguf,
                          struct moe_err *err)
{
    static const struct {
        const char *name;
        enum moe_rope_kind kind;
    } kinds[] = {
        {"none", MOE_ROPE_PLAIN},
        {"linear", MOE_ROPE_LINEAR},
        {"yarn", MOE_ROPE_YARN},
        {"longrope", MOE_ROPE_LONGROPE},
    };
    const char *type = "none";
    int status = moe_gguf_get_text(gguf, moe_gguf_arch_key(gguf, "rope.scaling.type").text, false,
                                   &type, err);
    if (status != MOE_OK)
        return status;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(type, kinds[i].name) == 0) {
            s->kind = kinds[i].kind;
            return MOE_OK;
        }
    return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: rotary scaling '%.60s' is not implemented",
                    moe_gguf_path(gguf), type);
}

static int read_rope_settings(struct moe_rope_settings *s, const struct moe_gguf *gguf,
                              struct moe_err *err)
{
    double log_mul = 0, extrapolation = 1, linear = 0, attention = 1;
    const struct {
        const char *name;
        double *out;
    } numbers[] = {
        {"rope.freq_base", &s->theta},
        {"rope.scaling.factor", &s->factor},
        {"rope.scale_linear", &linear},
        {"rope.scaling.original_context_length", &s->original_context},
        {"rope.scaling.attn_factor", &attention},
        {"rope.scaling.yarn_attn_factor", &attention},
        {"rope.scaling.yarn_ext_factor", &extrapolation},
        {"rope.scaling.yarn_beta_fast", &s->beta_fast},
        {"rope.scaling.yarn_beta_slow", &s->beta_slow},
        {"rope.scaling.yarn_log_multiplier", &log_mul},
    };
    int status = read_rope_kind(s, gguf, err);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && status == MOE_OK; i++)
        status = moe_gguf_get_double(gguf, moe_gguf_arch_key(gguf, numbers[i].name).text, false,
                                     numbers[i].out, err);
    if (status != MOE_OK)
        return status;
    if (s->kind == MOE_ROPE_PLAIN && linear != 0 && linear != 1) { /* as older files say it */
        s->kind = MOE_ROPE_LINEAR;
        s->factor = linear;
    }
    if (s->kind == MOE_ROPE_YARN && (extrapolation != 1 || attention != 1))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: YaRN with an extrapolation factor of %g and an attention factor of %g "
                        "is not implemented; 1 is",
                        moe_gguf_path(gguf), extrapolation, attention);
    if (s->kind == MOE_ROPE_LONGROPE && attention != 1)
        s->attention_factor = attention;
    if (log_mul != 0) /* a tenth of DeepSeek's "mscale_all_dim", which is its "mscale" too */
        s->mscale = s->mscale_all_dim = 10 * log_mul;
    return MOE_OK;
}

/* Frequencies divided by a factor each, as Llama 3's are stored. */
static int apply_factors(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    double factors[MOE_MAX_ROPE_PAIRS];
    uint32_t n, dim = c->rope_dim ? c->rope_dim : c->head_dim;
    if (dim == 0)
        dim = c->hidden / c->n_heads;
    int status = read_factors(ck, "rope_freqs.weight", factors, &n, err);
    if (status != MOE_OK || n == 0)
        return status;
    if (n != dim / 2)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotary factors for %" PRIu32 " pairs",
                        moe_checkpoint_dir(ck), n, dim / 2);
    for (uint32_t i = 0; i < n; i++) {
        double freq = c->n_rope_freqs ? c->rope_freqs[i] : pow(c->rope_theta, -(double)i / n);
        c->rope_freqs[i] = freq / factors[i];
    }
    c->n_rope_freqs = n;
    return MOE_OK;
}

/* Global layers with heads of their own rotate all of a head by the file's base and factors; those
 * of pairs that stand still are huge, since there is no other word for it. Local layers have a base
 * of their own. */
static int read_global(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *s, struct moe_err *err)
{
    const double still = 1e20;
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    double factors[MOE_MAX_ROPE_PAIRS], theta = s->theta;
    uint32_t n, pairs = c->global_head_dim / 2;
    int status = read_factors(ck, "rope_freqs.weight", factors, &n, err);
    if (status != MOE_OK)
        return status;
    if (s->kind != MOE_ROPE_PLAIN)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: rotary scaling beside global layers with heads of their own is not "
                        "implemented",
                        moe_gguf_path(gguf));
    if ((n != 0 && n != pairs) || pairs > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " rotary factors for %" PRIu32 " pairs of global layers",
                        moe_checkpoint_dir(ck), n, pairs);
    for (uint32_t i = 0; i < pairs; i++)
        c->global_freqs[i] =
            n && factors[i] >= still ? 0 : pow(theta, -(double)i / pairs) / (n ? factors[i] : 1);
    c->n_global_freqs = pairs;
    s->theta = 1e4;
    return moe_gguf_get_double(gguf, moe_gguf_arch_key(gguf, "rope.freq_base_swa").text, false,
                               &s->theta, err);
}

/* DeepSeek-V4's layers that compress have the scaling, and a base of their own. */
static int read_compressing(struct moe_config *c, struct moe_rope_settings *s,
                            const struct moe_gguf *gguf, struct moe_err *err)
{
    double theta = s->theta;
    int status =
        moe_gguf_get_double(gguf, moe_gguf_arch_key(gguf, "attention.compress_rope_freq_base").text,
                            true, &s->theta, err);
    return status == MOE_OK ? family_deepseek_v4_rotary(c, s, theta, moe_gguf_path(gguf), err)
                            : status;
}

/* Layers with a window may have a base of their own; here only Gemma-4's have. */
static int refuse_other_base(const struct moe_rope_settings *s, const struct moe_gguf *gguf,
                             struct moe_err *err)
{
    double base = s->theta;
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "rope.freq_base_swa");
    int status = moe_gguf_get_double(gguf, key.text, false, &base, err);
    if (status == MOE_OK && base != s->theta)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: '%s' %g beside 'rope.freq_base' %g is not implemented for this family",
                        moe_gguf_path(gguf), key.text, base, s->theta);
    return status;
}

int family_gguf_rotary(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *s, struct moe_err *err)
{
    uint32_t n_long = 0;
    int status = read_rope_settings(s, moe_checkpoint_gguf(ck), err);
    if (status == MOE_OK && c->out_groups)
        status = read_compressing(c, s, moe_checkpoint_gguf(ck), err);
    else if (status == MOE_OK)
        status = c->global_head_dim ? read_global(c, ck, s, err)
                                    : refuse_other_base(s, moe_checkpoint_gguf(ck), err);
    if (status == MOE_OK && s->kind == MOE_ROPE_PLAIN &&
        moe_checkpoint_find(ck, "rope_factors_long.weight"))
        s->kind = MOE_ROPE_LONGROPE; /* some files have the factors and name no kind */
    if (status == MOE_OK && s->kind == MOE_ROPE_LONGROPE) {
        status =
            read_factors(ck, "rope_factors_short.weight", s->short_factors, &s->n_factors, err);
        if (status == MOE_OK)
            status = read_factors(ck, "rope_factors_long.weight", s->long_factors, &n_long, err);
        if (status == MOE_OK && n_long != s->n_factors)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "%s: %" PRIu32 " short and %" PRIu32 " long rotary factors",
                              moe_checkpoint_dir(ck), s->n_factors, n_long);
    }
    if (status == MOE_OK)
        status = moe_rope_apply(c, s, moe_checkpoint_dir(ck), err);
    if (status == MOE_OK && !c->global_head_dim)
        status = apply_factors(c, ck, err);
    if (status == MOE_OK && s->mscale_all_dim != 0 && c->attn_scale == 0) {
        double mscale = moe_rope_mscale(c, s);
        c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
    }
    return status;
}
