/* GGUF metadata by layer, rotary settings, and what single families work out from a GGUF file
 * (family.h: gguf.own). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fmt/checkpoint.h"
#include "model/family_internal.h"
#include "quant/layout.h"

const struct moe_tensor *family_gguf_tensor(const struct moe_checkpoint *ck, const char *format,
                                            uint32_t layer)
{
    char name[128];
    const char *mark = strstr(format, "%u");
    if (!mark)
        return moe_checkpoint_find(ck, format);
    snprintf(name, sizeof name, "%.*s%" PRIu32 "%s", (int)(mark - format), format, layer, mark + 2);
    return moe_checkpoint_find(ck, name);
}

static int take_number(const struct moe_gguf *gguf, const char *key,
                       const struct moe_gguf_array *array, uint64_t i, uint32_t most, uint32_t *out,
                       struct moe_err *err)
{
    double value = moe_gguf_array_number(array, i);
    if (!(value >= 0 && value <= most) || value != floor(value))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' is %.17g for layer %" PRIu64 ", 0 to %" PRIu32
                        " is possible",
                        moe_gguf_path(gguf), key, value, i, most);
    *out = (uint32_t)value;
    return MOE_OK;
}

bool family_gguf_is_list(const struct moe_gguf *gguf, const char *name)
{
    struct moe_gguf_array array;
    return moe_gguf_get_array(gguf, moe_gguf_arch_key(gguf, name).text, true, &array, NULL) ==
               MOE_OK &&
           !moe_gguf_array_is_text(&array);
}

int family_gguf_by_layer(const struct moe_config *c, const struct moe_gguf *gguf, const char *name,
                         uint32_t most, uint32_t out[MOE_MAX_LAYERS], struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array array = {0};
    uint32_t all = 0;
    if (!moe_gguf_has(gguf, key.text))
        return MOE_OK;
    bool listed = family_gguf_is_list(gguf, name);
    MOE_TRY(listed ? moe_gguf_get_array(gguf, key.text, true, &array, err)
                   : moe_gguf_get_u32(gguf, key.text, most, true, &all, err));
    if (listed && (array.n < c->n_layers || array.n > c->n_layers + c->n_beyond))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, array.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (listed)
            MOE_TRY(take_number(gguf, key.text, &array, i, most, &out[i], err));
        else
            out[i] = all;
    return MOE_OK;
}

int family_gguf_largest(const struct moe_gguf *gguf, const char *name, uint32_t most, uint32_t *out,
                        struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array array;
    MOE_TRY(moe_gguf_get_array(gguf, key.text, true, &array, err));
    *out = 0;
    for (uint64_t i = 0; i < array.n; i++) {
        uint32_t number = 0;
        MOE_TRY(take_number(gguf, key.text, &array, i, most, &number, err));
        *out = number > *out ? number : *out;
    }
    return MOE_OK;
}

int family_gguf_limits(struct moe_config *c, size_t member, const struct moe_gguf *gguf,
                       const char *name, struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array list = {0};
    double all = 0;
    bool listed = family_gguf_is_list(gguf, name);
    MOE_TRY(listed ? moe_gguf_get_array(gguf, key.text, true, &list, err)
                   : moe_gguf_get_double(gguf, key.text, false, &all, err));
    if (listed && list.n < c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, list.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        *(float *)(void *)((char *)&c->layers[i] + member) =
            (float)(listed ? moe_gguf_array_number(&list, i) : all);
    return MOE_OK;
}

int family_gguf_windows(struct moe_config *c, const struct moe_gguf *gguf, uint32_t every,
                        struct moe_err *err)
{
    const char *name = "attention.sliding_window_pattern";
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    uint32_t windowed[MOE_MAX_LAYERS];
    bool listed = family_gguf_is_list(gguf, name);
    MOE_TRY(listed ? family_gguf_by_layer(c, gguf, name, 1, windowed, err)
                   : moe_gguf_get_u32(gguf, key.text, MOE_MAX_LAYERS, every == 0, &every, err));
    if (!listed && every == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' 0, expected 1 or more",
                        moe_gguf_path(gguf), key.text);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].windowed = listed ? windowed[i] != 0 : (i + 1) % every != 0;
    return MOE_OK;
}

/*
 * Rotary positions from a GGUF file: keys under "rope.", and tensors of factors that some files
 * have.
 */

/* A vector with a factor per pair. */
static int read_factors(const struct moe_checkpoint *ck, const char *name, double *out, uint32_t *n,
                        struct moe_err *err)
{
    float values[MOE_MAX_ROPE_PAIRS];
    const struct moe_tensor *t = moe_checkpoint_find(ck, name);
    *n = 0;
    if (!t)
        return MOE_OK;
    if (t->n_dims != 1 || t->n_items > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: tensor '%s' is not a vector of at most %d values",
                        moe_checkpoint_dir(ck), name, MOE_MAX_ROPE_PAIRS);
    MOE_TRY(moe_checkpoint_get(ck, name, 1, t->dims, &t, err));
    MOE_TRY(moe_checkpoint_read(ck, t, 0, t->n_items, values, err));
    for (uint64_t i = 0; i < t->n_items; i++) {
        if (!(values[i] > 0) || !isfinite(values[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s': a factor of %g, expected above 0",
                            moe_checkpoint_dir(ck), name, (double)values[i]);
        out[i] = (double)values[i];
    }
    *n = (uint32_t)t->n_items;
    return MOE_OK;
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
    MOE_TRY(moe_gguf_get_text(gguf, moe_gguf_arch_key(gguf, "rope.scaling.type").text, false, &type,
                              err));
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
    MOE_TRY(read_rope_kind(s, gguf, err));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        MOE_TRY(moe_gguf_get_double(gguf, moe_gguf_arch_key(gguf, numbers[i].name).text, false,
                                    numbers[i].out, err));
    if (s->kind == MOE_ROPE_PLAIN && linear != 0 && linear != 1) { /* in older files */
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

/* Divides frequencies by a factor each, which is how Llama 3's are stored. */
static int apply_factors(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    double factors[MOE_MAX_ROPE_PAIRS];
    uint32_t n, dim = c->rope_dim ? c->rope_dim : c->head_dim;
    if (dim == 0)
        dim = c->hidden / c->n_heads;
    MOE_TRY(read_factors(ck, "rope_freqs.weight", factors, &n, err));
    if (n == 0)
        return MOE_OK;
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

/* Global layers with their own heads rotate all of a head by the file's base and factors, which are
 * huge for pairs that do not rotate. Local layers have another base. */
static int read_global(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *s, struct moe_err *err)
{
    const double still = 1e20;
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    double factors[MOE_MAX_ROPE_PAIRS], theta = s->theta;
    uint32_t n, pairs = c->global_head_dim / 2;
    MOE_TRY(read_factors(ck, "rope_freqs.weight", factors, &n, err));
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

/* Local and global layers with heads of one width: the file's settings are the global ones', as are
 * factors, local ones have a base and perhaps a number of rotated values of their own. */
static int read_two_rotations(struct moe_config *c, const struct moe_checkpoint *ck,
                              struct moe_rope_settings *s, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    double factors[MOE_MAX_ROPE_PAIRS];
    uint32_t rotated = c->rope_dim, n;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "rope.dimension_count_swa").text,
                             MOE_MAX_HEAD_DIM, false, &rotated, err));
    if (c->n_global_freqs) /* the family's function knows */
        c->rope_dim = 2 * c->n_global_freqs;
    MOE_TRY(moe_rope_apply_global(c, s, moe_gguf_path(gguf), err));
    MOE_TRY(read_factors(ck, "rope_freqs.weight", factors, &n, err));
    if (n != 0 && n < c->n_global_freqs)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " rotary factors for %" PRIu32 " pairs of global layers",
                        moe_gguf_path(gguf), n, c->n_global_freqs);
    for (uint32_t i = 0; n != 0 && i < c->n_global_freqs; i++)
        c->global_freqs[i] /= factors[i];
    c->rope_dim = rotated;
    moe_rope_settings_init(s);
    return moe_gguf_get_double(gguf, moe_gguf_arch_key(gguf, "rope.freq_base_swa").text, false,
                               &s->theta, err);
}

/* DeepSeek-V4's compressing layers have the scaling, and another base. */
static int read_compressing(struct moe_config *c, struct moe_rope_settings *s,
                            const struct moe_gguf *gguf, struct moe_err *err)
{
    double theta = s->theta;
    MOE_TRY(moe_gguf_get_double(gguf,
                                moe_gguf_arch_key(gguf, "attention.compress_rope_freq_base").text,
                                true, &s->theta, err));
    return family_deepseek_v4_rotary(c, s, theta, moe_gguf_path(gguf), err);
}

/* Windowed layers may have another base, which not all families' functions expect. */
static int refuse_other_base(const struct moe_config *c, const struct moe_rope_settings *s,
                             const struct moe_gguf *gguf, struct moe_err *err)
{
    double base = s->theta;
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "rope.freq_base_swa");
    if (moe_config_count_layers(c, MOE_LAYER(windowed)) > 0)
        MOE_TRY(moe_gguf_get_double(gguf, key.text, false, &base, err));
    if (base != s->theta)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: '%s' %g beside 'rope.freq_base' %g is not implemented for this family",
                        moe_gguf_path(gguf), key.text, base, s->theta);
    return MOE_OK;
}

int family_gguf_rotary(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *s, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t n_long = 0;
    MOE_TRY(read_rope_settings(s, gguf, err));
    bool one_width = c->global_head_dim == c->head_dim || c->kv_rank;
    MOE_TRY(c->out_groups         ? read_compressing(c, s, gguf, err)
            : !c->global_head_dim ? refuse_other_base(c, s, gguf, err)
            : one_width           ? read_two_rotations(c, ck, s, err)
                                  : read_global(c, ck, s, err));
    if (s->kind == MOE_ROPE_PLAIN && moe_checkpoint_find(ck, "rope_factors_long.weight"))
        s->kind = MOE_ROPE_LONGROPE; /* some files have the factors and name no kind */
    if (s->kind == MOE_ROPE_LONGROPE) {
        MOE_TRY(
            read_factors(ck, "rope_factors_short.weight", s->short_factors, &s->n_factors, err));
        MOE_TRY(read_factors(ck, "rope_factors_long.weight", s->long_factors, &n_long, err));
        if (n_long != s->n_factors)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: %" PRIu32 " short and %" PRIu32 " long rotary factors",
                            moe_checkpoint_dir(ck), s->n_factors, n_long);
    }
    MOE_TRY(moe_rope_apply(c, s, moe_checkpoint_dir(ck), err));
    if (!c->global_head_dim)
        MOE_TRY(apply_factors(c, ck, err));
    if (s->mscale_all_dim != 0 && c->attn_scale == 0) {
        double mscale = moe_rope_mscale(c, s);
        c->attn_scale = (float)(mscale * mscale / sqrt(c->head_dim));
    }
    return MOE_OK;
}

/* Recurrent states: which layers have them, and how wide they are. */

/* "ssm.inner_size": the values of all heads together. */
static int read_values(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t all = 0;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "ssm.inner_size").text, MOE_MAX_DIM,
                             true, &all, err));
    if ((c->state_heads == 0 || all % c->state_heads != 0))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " heads of a state cannot share %" PRIu32 " values",
                        moe_gguf_path(gguf), c->state_heads, all);
    c->state_value_dim = all / c->state_heads;
    return MOE_OK;
}

/* Layers without key heads have states; the others must all have n_kv_heads. */
static int read_layers(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t heads[MOE_MAX_LAYERS] = {0};
    MOE_TRY(family_gguf_by_layer(c, gguf, "attention.head_count_kv", MOE_MAX_HEADS, heads, err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].recurrent = heads[i] == 0;
        if (heads[i] != 0 && heads[i] != c->n_kv_heads)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: layers with %" PRIu32 " and with %" PRIu32
                            " key heads ('head_count_kv') are not implemented for this family",
                            moe_gguf_path(gguf), c->n_kv_heads, heads[i]);
    }
    return MOE_OK;
}

/* Whether convolutions have biases. */
static void find_biases(struct moe_config *c, const struct moe_checkpoint *ck)
{
    c->conv_bias = false;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->conv_bias |= family_gguf_tensor(ck, "blk.%u.ssm_conv1d.bias", i) != NULL;
}

/* ---- Qwen3-Next and its successors ---- */

/* "attention.recurrent_layers", or every "full_attention_interval"-th layer attends. */
static int read_recurrent(struct moe_config *c, const struct moe_gguf *gguf,
                          uint32_t recurrent[MOE_MAX_LAYERS], struct moe_err *err)
{
    uint32_t interval = 4;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "full_attention_interval").text,
                             MOE_MAX_LAYERS, false, &interval, err));
    if (interval == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'full_attention_interval' must be at least 1",
                        moe_gguf_path(gguf));
    for (uint32_t i = 0; i < c->n_layers; i++)
        recurrent[i] = (i + 1) % interval != 0;
    return family_gguf_by_layer(c, gguf, "attention.recurrent_layers", 1, recurrent, err);
}

/* Files made by ollama also list key heads by layer, sometimes only that; if both are there they
 * must agree. */
static int check_listed_heads(const struct moe_config *c, const struct moe_gguf *gguf,
                              const uint32_t recurrent[MOE_MAX_LAYERS], struct moe_err *err)
{
    if (!moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "full_attention_interval").text) &&
        !moe_gguf_has(gguf, moe_gguf_arch_key(gguf, "attention.recurrent_layers").text))
        return MOE_OK;
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].recurrent != recurrent[i])
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " has %s by 'head_count_kv' and not by other keys",
                            moe_gguf_path(gguf), i, recurrent[i] ? "key heads" : "a state");
    return MOE_OK;
}

/* Heads that share keys follow each other; or the first head of each key head comes first, then the
 * second of each, and so on, and so do the columns of the product after them. llama.cpp uses that
 * order only for Qwen3.5; ollama says which it is. */
static int read_delta(struct moe_config *c, const struct moe_gguf *gguf, bool in_turn,
                      struct moe_err *err)
{
    uint32_t recurrent[MOE_MAX_LAYERS];
    bool listed = family_gguf_is_list(gguf, "attention.head_count_kv");
    MOE_TRY(read_values(c, gguf, err));
    MOE_TRY(moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "ssm.v_head_reordered").text, false,
                              &in_turn, err));
    c->state_keys_in_turn = in_turn && c->state_heads != c->state_key_heads;
    MOE_TRY(read_recurrent(c, gguf, recurrent, err));
    if (listed)
        MOE_TRY(read_layers(c, gguf, err));
    if (listed)
        return check_listed_heads(c, gguf, recurrent, err);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent = recurrent[i] != 0;
    return MOE_OK;
}

int family_qwen3_next_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    return read_delta(c, moe_checkpoint_gguf(ck), false, err);
}

/* ollama uses the same name for Qwen3-Next, without reordering heads; its products of two parts
 * ("ssm_ba") tell. */
int family_qwen3_5_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        if (family_gguf_tensor(ck, "blk.%u.ssm_ba.weight", i))
            return moe_fail(
                err, MOE_ERR_UNSUPPORTED,
                "%s: Qwen3-Next's tensors under Qwen3.5's architecture are not implemented",
                moe_checkpoint_dir(ck));
    return read_delta(c, moe_checkpoint_gguf(ck), true, err);
}

/* Numbers of a list that is as long as said. */
static int read_wholes(const struct moe_gguf *gguf, const char *name, uint32_t n, uint64_t *out,
                       struct moe_err *err)
{
    struct moe_gguf_array array;
    const struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    MOE_TRY(moe_gguf_get_array(gguf, key.text, true, &array, err));
    bool whole = array.n >= n;
    for (uint32_t i = 0; whole && i < n; i++)
        whole = moe_gguf_array_whole(&array, i, &out[i]);
    return whole ? MOE_OK
                 : moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must list %" PRIu32 " whole numbers",
                            moe_gguf_path(gguf), key.text, n);
}

/* Where each embedding of an n-gram has its rows: behind those of the one before. */
static int read_ngrams(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    const struct moe_tensor *table = moe_checkpoint_find(ck, "per_layer_token_embd.weight");
    uint64_t sizes[MOE_MAX_NGRAM_HEADS], offsets[MOE_MAX_NGRAM_HEADS], rows = 0;
    uint32_t n = (c->ngrams ? c->ngrams - 1 : 0) * c->ngram_heads;
    if (c->ngrams > MOE_MAX_NGRAM || n == 0 || n > MOE_MAX_NGRAM_HEADS || !table ||
        table->dims[0] > UINT32_MAX)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: %" PRIu32 " embeddings of n-grams of %" PRIu32 " tokens, or no table "
                        "'per_layer_token_embd.weight' of them",
                        moe_gguf_path(gguf), c->ngram_heads, c->ngrams);
    MOE_TRY(read_wholes(gguf, "ple.layer_multipliers", c->ngrams, c->ngram_factors, err));
    MOE_TRY(read_wholes(gguf, "ple.head_vocab_sizes", n, sizes, err));
    MOE_TRY(read_wholes(gguf, "ple.head_offsets", n, offsets, err));
    c->ngram_rows = (uint32_t)table->dims[0];
    for (uint32_t i = 0; i < n; i++) {
        if (offsets[i] != rows || sizes[i] > UINT32_MAX)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: rows of embeddings of n-grams that do not follow each other are "
                            "not implemented",
                            moe_gguf_path(gguf));
        c->ngram_sizes[i] = (uint32_t)sizes[i];
        rows += sizes[i];
    }
    return MOE_OK;
}

int family_qwen4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    struct moe_gguf_array layers;
    uint32_t budget = 0, ratios[MOE_MAX_LAYERS] = {0}, ratio = 0;
    c->state_sigmoid = true; /* llama.cpp knows no other gate */
    MOE_TRY(read_delta(c, gguf, true, err));
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.indexer.top_k").text,
                             MOE_MAX_CONTEXT, false, &budget, err));
    MOE_TRY(
        family_gguf_by_layer(c, gguf, "attention.compress_ratios", MOE_MAX_CONTEXT, ratios, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        ratio = ratio > ratios[i] ? ratio : ratios[i];
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.indexer.head_count").text,
                             MOE_MAX_HEADS, budget && ratio, &c->index_heads, err));
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.indexer.key_length").text,
                             MOE_MAX_HEAD_DIM, budget && ratio, &c->index_dim, err));
    MOE_TRY(family_index_means(c, moe_gguf_path(gguf), budget, ratio, err));
    MOE_TRY(
        moe_gguf_get_array(gguf, moe_gguf_arch_key(gguf, "ple.layers").text, false, &layers, err));
    MOE_TRY(family_set_ngrams(c, (uint32_t)layers.n, moe_gguf_path(gguf), err));
    if (layers.n == 0)
        return MOE_OK;
    uint64_t at;
    if (!moe_gguf_array_whole(&layers, 0, &at) || at >= c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'ple.layers' lists what is no layer",
                        moe_gguf_path(gguf));
    c->layers[at].ngrams = true;
    return read_ngrams(c, ck, err);
}

/* ---- LFM2 with experts ---- */

int family_lfm2_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                         struct moe_rope_settings *rope, struct moe_err *err)
{
    c->state_heads = 1;
    c->state_value_dim = c->hidden;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->choice_bias |= family_gguf_tensor(ck, "blk.%u.exp_probs_b.bias", i) != NULL;
    return read_layers(c, moe_checkpoint_gguf(ck), err);
}

/* ---- Granite-4 H, Nemotron-H ---- */

/* Rotary positions if "rope.scaling.finetuned" says so; without experts, the shared one is the
 * dense feed-forward. */
int family_granite_hybrid_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                               struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    const char *shared = c->n_experts ? "" : "expert_shared_feed_forward_length";
    bool rotates = true;
    MOE_TRY(read_values(c, gguf, err));
    MOE_TRY(read_layers(c, gguf, err));
    MOE_TRY(moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "rope.scaling.finetuned").text, false,
                              &rotates, err));
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, shared).text, MOE_MAX_DIM, false,
                             &c->dense_ff, err));
    c->positions = rotates ? MOE_POSITIONS_ROTARY : MOE_POSITIONS_NONE;
    if (!rotates)
        c->rope_dim = 0;
    if (c->n_experts == 0)
        c->top_k = 0;
    find_biases(c, ck);
    return MOE_OK;
}

/* A layer with neither key heads nor a feed-forward has a state. */
int family_nemotron_h_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t widths[MOE_MAX_LAYERS] = {0};
    MOE_TRY(read_values(c, gguf, err));
    MOE_TRY(read_layers(c, gguf, err));
    MOE_TRY(family_gguf_by_layer(c, gguf, "feed_forward_length", MOE_MAX_DIM, widths, err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (widths[i] > 0 && !c->layers[i].recurrent)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: layer %" PRIu32 " has key heads and a feed-forward, it must have "
                            "one of them",
                            moe_gguf_path(gguf), i);
        c->layers[i].recurrent &= widths[i] == 0;
        c->layers[i].no_attention = widths[i] > 0;
        c->layers[i].no_ffn = widths[i] == 0;
    }
    find_biases(c, ck);
    return MOE_OK;
}

/* ---- Kimi-Linear, Ling-3 ---- */

int family_kimi_linear_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    c->state_heads = c->state_key_heads = c->n_heads;
    c->state_value_dim = c->state_key_dim;
    MOE_TRY(read_layers(c, moe_checkpoint_gguf(ck), err));
    return family_deepseek_v3_gguf(c, ck, rope, err);
}

int family_kimi_k3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    bool gates = false;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        gates |= family_gguf_tensor(ck, "blk.%u.attn_gate.weight", i) != NULL;
        c->narrow_norm |= family_gguf_tensor(ck, "blk.%u.ffn_routed_norm.weight", i) != NULL;
    }
    c->attn_gate = gates;
    family_keep_streams(c);
    return family_kimi_linear_gguf(c, ck, rope, err);
}

int family_bailing_hybrid_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                               struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    MOE_TRY(family_gguf_limits(c, MOE_LAYER(expert_limit), gguf, "swiglu_clamp_exp", err));
    MOE_TRY(family_gguf_limits(c, MOE_LAYER(dense_limit), gguf, "swiglu_clamp_shexp", err));
    return family_kimi_linear_gguf(c, ck, rope, err);
}

/* ---- Jamba ---- */

int family_jamba_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    c->state_heads = c->state_key_heads = 1;
    if (moe_config_count_layers(c, MOE_LAYER(moe)) == 0) /* one is none */
        c->n_experts = c->top_k = 0;
    find_biases(c, ck);
    MOE_TRY(read_values(c, gguf, err));
    return read_layers(c, gguf, err);
}

/* Local and global layers. */

static void every_fourth_global(struct moe_config *c)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].windowed = (i + 1) % 4 != 0;
}

static int needs_window(const struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_err *err)
{
    if (c->window > 0)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_UNSUPPORTED,
                    "%s: 'attention.sliding_window' 0 is not implemented for this family",
                    moe_checkpoint_dir(ck));
}

/* ---- Local and global layers with heads of one width ---- */

/* Numbers of heads by kind of layer, whose widths are the same. */
static int heads_by_kind(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    static const char *const keys[] = {"attention.head_count", "attention.head_count_kv"};
    uint32_t *const local[] = {&c->n_heads, &c->n_kv_heads};
    uint32_t *const global[] = {&c->global_heads, &c->global_kv_heads};
    uint32_t n_local = moe_config_count_layers(c, MOE_LAYER(windowed));
    bool both = n_local > 0 && n_local < c->n_layers;
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    for (int k = 0; k < 2; k++) {
        uint32_t heads[MOE_MAX_LAYERS], of_kind[2];
        for (uint32_t i = 0; i < c->n_layers; i++)
            heads[i] = *local[k];
        MOE_TRY(family_gguf_by_layer(c, gguf, keys[k], MOE_MAX_HEADS, heads, err));
        MOE_TRY(family_by_kind(c, heads, moe_gguf_path(gguf), keys[k], of_kind, err));
        *local[k] = of_kind[n_local > 0];
        *global[k] = both ? of_kind[0] : 0;
    }
    if (c->head_dim == 0)
        c->head_dim = c->hidden / c->n_heads;
    c->global_head_dim = both ? c->head_dim : 0;
    return MOE_OK;
}

/* Files of models with windows say which layers are local, or all but every n-th from `first` on
 * are. */
static int two_kinds(struct moe_config *c, const struct moe_checkpoint *ck, uint32_t every,
                     uint32_t first, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "attention.sliding_window_pattern");
    if (c->window > 0 && moe_gguf_has(gguf, key.text))
        MOE_TRY(family_gguf_windows(c, gguf, 0, err));
    else
        for (uint32_t i = 0; i < c->n_layers; i++)
            c->layers[i].windowed = c->window > 0 && i % every != first;
    return heads_by_kind(c, gguf, err);
}

int family_two_kinds_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    return two_kinds(c, ck, 4, 3, err);
}

/* Layers' numbers are global ones' on entry. Norms are stored with the scales of their vectors. */
int family_dots3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t rank = c->kv_rank, head = c->head_dim, values = c->value_dim;
    const struct {
        const char *key;
        uint32_t *out;
    } local[] = {{"attention.kv_lora_rank_swa", &c->kv_rank},
                 {"attention.key_length_mla_swa", &c->head_dim},
                 {"attention.value_length_mla_swa", &values}};
    MOE_TRY(family_gguf_windows(c, gguf, 0, err));
    uint32_t n_local = moe_config_count_layers(c, MOE_LAYER(windowed));
    c->n_kv_heads = 0;
    c->latent_key_norm = true;
    for (int i = 0; n_local && i < 3; i++)
        MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, local[i].key).text, MOE_MAX_DIM,
                                 true, local[i].out, err));
    if (n_local == c->n_layers)
        c->index_top = c->index_heads = c->index_dim = 0;
    MOE_TRY(heads_by_kind(c, gguf, err));
    c->n_kv_heads = c->n_heads;
    c->attn_scale = 1 / sqrtf((float)c->head_dim);
    if (values != c->value_dim || rank == 0 || c->kv_rank == 0 || head <= c->rope_dim)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: latent attention of two shapes with values of several widths, or "
                        "without a rank, is not implemented",
                        moe_gguf_path(gguf));
    if (!c->global_head_dim)
        return MOE_OK;
    c->global_kv_heads = c->global_heads;
    c->global_kv_rank = rank;
    c->global_head_dim = head;
    c->global_attn_scale = 1 / sqrtf((float)head);
    return MOE_OK;
}

/* Gates are as many as heads, or as values. */
int family_laguna_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_tensor *gate = family_gguf_tensor(ck, "blk.%u.attn_gate.weight", 0);
    MOE_TRY(two_kinds(c, ck, 4, 0, err));
    c->gate_by_head = gate && gate->dims[0] == moe_config_heads(c, 0);
    return MOE_OK;
}

int family_minimax_m3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    static const char *const keys[FAMILY_N_INDEX] = {"head_count", "key_length", "block_size",
                                                     "top_k", "local_blocks"};
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t n[FAMILY_N_INDEX] = {0};
    for (int i = 0; i < FAMILY_N_INDEX; i++) {
        char key[64];
        snprintf(key, sizeof key, "attention.indexer.%s", keys[i]);
        MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, key).text, MOE_MAX_DIM, true, &n[i],
                                 err));
    }
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].sees_all = !family_gguf_tensor(ck, "blk.%u.indexer.k_proj.weight", i);
    family_index_blocks(c, n);
    return MOE_OK;
}

/* Local layers have sinks, if any do. */
int family_mimo_v2_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    bool sinks = false;
    MOE_TRY(family_gguf_windows(c, moe_checkpoint_gguf(ck), 0, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        sinks |= family_gguf_tensor(ck, "blk.%u.attn_sinks.weight", i) != NULL;
    c->attn_sinks = c->sinks_in_windows = sinks;
    return heads_by_kind(c, moe_checkpoint_gguf(ck), err);
}

/* Half of what the file says of rotated values is what global layers rotate. */
int family_step3p5_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    MOE_TRY(family_gguf_windows(c, gguf, 0, err));
    MOE_TRY(heads_by_kind(c, gguf, err));
    MOE_TRY(family_gguf_limits(c, MOE_LAYER(expert_limit), gguf, "swiglu_clamp_exp", err));
    MOE_TRY(family_gguf_limits(c, MOE_LAYER(dense_limit), gguf, "swiglu_clamp_shexp", err));
    if (c->rope_dim == 0)
        c->rope_dim = c->head_dim;
    if (c->global_head_dim)
        c->n_global_freqs = c->rope_dim / 4;
    return MOE_OK;
}

/* The models with 46 and with 62 layers, both 27B, have another scale of scores. */
int family_gemma2_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    c->embed_scale = sqrtf((float)c->hidden);
    if (c->n_layers == 46 || c->n_layers == 62)
        c->attn_scale = 1 / sqrtf((float)(c->hidden / c->n_heads));
    return MOE_OK;
}

int family_gemma3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(family_gemma2_gguf(c, ck, rope, err));
    return two_kinds(c, ck, 6, 5, err);
}

/* ---- EXAONE-4, SmolLM3 ---- */

int family_exaone4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    c->rope_in_windows = c->window > 0;
    return c->window > 0 ? family_gguf_windows(c, moe_checkpoint_gguf(ck), 4, err) : MOE_OK;
}

/* Every fourth layer does not rotate, though files do not say so; all see everything. */
int family_smollm3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    every_fourth_global(c);
    c->window = c->context_max;
    c->rope_in_windows = moe_config_count_layers(c, MOE_LAYER(windowed)) < c->n_layers;
    return MOE_OK;
}

/* ---- SmallThinker ---- */

/* In files with a window, layers 0, 4, 8, ... have none and do not rotate. */
int family_smallthinker_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                             struct moe_rope_settings *rope, struct moe_err *err)
{
    c->rope_in_windows = c->window > 0;
    for (uint32_t i = 0; i < c->n_layers && c->window > 0; i++)
        c->layers[i].windowed = i % 4 != 0;
    return MOE_OK;
}

/* ---- Gemma-4 ---- */

/* The file's widths of heads are the global layers'; local ones have other keys. Numbers of heads
 * are listed by layer: the same for each kind. */
static int gemma4_heads(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t kv_heads[MOE_MAX_LAYERS] = {0}, of_kind[2];
    c->global_head_dim = c->head_dim;
    if (c->rope_dim != c->global_head_dim)
        return moe_fail(
            err, MOE_ERR_UNSUPPORTED,
            "%s: global heads of %" PRIu32 " values, %" PRIu32
            " of them rotated ('rope.dimension_count'), are not implemented; all must be",
            moe_gguf_path(gguf), c->global_head_dim, c->rope_dim);
    MOE_TRY(family_gguf_by_layer(c, gguf, "attention.head_count_kv", MOE_MAX_HEADS, kv_heads, err));
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.key_length_swa").text,
                             MOE_MAX_HEAD_DIM, true, &c->head_dim, err));
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "rope.dimension_count_swa").text,
                             MOE_MAX_HEAD_DIM, true, &c->rope_dim, err));
    MOE_TRY(
        family_by_kind(c, kv_heads, moe_gguf_path(gguf), "attention.head_count_kv", of_kind, err));
    c->global_kv_heads = of_kind[0] ? of_kind[0] : of_kind[1];
    c->n_kv_heads = of_kind[1] ? of_kind[1] : of_kind[0];
    c->value_dim = 0; /* like keys */
    return MOE_OK;
}

/* Global layers without a matrix for values use their keys as values. */
static int gemma4_values(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    uint32_t n_global = 0, n_with = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        bool own = !c->layers[i].windowed && family_gguf_tensor(ck, "blk.%u.attn_k.weight", i);
        n_global += own;
        n_with += own && family_gguf_tensor(ck, "blk.%u.attn_v.weight", i);
    }
    if (n_with != 0 && n_with != n_global)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: %" PRIu32 " of %" PRIu32 " global layers have values of their own; "
                        "all or none is implemented",
                        moe_checkpoint_dir(ck), n_with, n_global);
    c->global_keys_are_values = n_with == 0;
    return MOE_OK;
}

/* The last "attention.shared_kv_layers" layers see keys of earlier ones. */
static int gemma4_sharing(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t n = 0;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.shared_kv_layers").text,
                             c->n_layers, false, &n, err));
    moe_config_set_layers(c, MOE_LAYER(shares_keys), c->n_layers - n, c->n_layers, 1);
    return MOE_OK;
}

/* Dense feed-forwards have one width, or that and twice it. */
static int gemma4_widths(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    uint32_t widths[MOE_MAX_LAYERS], least = UINT32_MAX;
    MOE_TRY(family_gguf_by_layer(c, gguf, "feed_forward_length", MOE_MAX_DIM, widths, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        least = widths[i] < least ? widths[i] : least;
    c->dense_ff = least;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        c->layers[i].wide_ffn = widths[i] == 2 * (uint64_t)least;
        if (widths[i] != least && !c->layers[i].wide_ffn)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: feed-forwards of %" PRIu32 " and of %" PRIu32
                            " ('feed_forward_length'): one width, and twice it, are implemented",
                            moe_gguf_path(gguf), least, widths[i]);
    }
    return MOE_OK;
}

int family_gemma4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    c->embed_scale = sqrtf((float)c->hidden);
    MOE_TRY(family_gguf_windows(c, gguf, 0, err));
    MOE_TRY(gemma4_heads(c, gguf, err));
    MOE_TRY(gemma4_values(c, ck, err));
    MOE_TRY(gemma4_sharing(c, gguf, err));
    if (c->n_experts > 0) {
        c->own_norms = c->expert_scale = true;
        /* A dense layer's feed-forward is here the shared expert. */
        MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "feed_forward_length").text,
                                 MOE_MAX_DIM, true, &c->shared_ff, err));
        return MOE_OK;
    }
    return gemma4_widths(c, gguf, err);
}

/* ---- Llama-4 ---- */

/* Files do not say which layers see chunks and usually neither how long chunks are nor how queries
 * are scaled: these are as published, and as in llama.cpp. The model with 128 experts has no norms
 * of queries and keys, which some files say. */
int family_llama4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    bool norm = c->n_experts != 128;
    c->window = 8192;
    every_fourth_global(c);
    c->query_step = 8192;
    c->query_scale = 0.1f;
    MOE_TRY(
        moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "use_qk_norm").text, false, &norm, err));
    c->qk_norm = norm ? MOE_QK_NORM_BARE : MOE_QK_NORM_NONE;
    return MOE_OK;
}

/* ---- AFMoE ---- */

/* Every fourth layer is global and embeddings are scaled, though files do not say so. */
int family_afmoe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    every_fourth_global(c);
    if (!moe_gguf_has(moe_checkpoint_gguf(ck),
                      moe_gguf_arch_key(moe_checkpoint_gguf(ck), "embedding_scale").text))
        c->embed_scale = sqrtf((float)c->hidden);
    return needs_window(c, ck, err);
}

/* ---- EXAONE-MoE ---- */

int family_exaone_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    MOE_TRY(needs_window(c, ck, err));
    return family_gguf_windows(c, moe_checkpoint_gguf(ck), 4, err);
}

/* ---- Command-A with experts ---- */

/* The name of the epsilon's key gives the kind of norm. Layers without experts always rotate;
 * shared experts are averaged with the others. */
int family_cohere2_moe_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    double eps = 0;
    MOE_TRY(needs_window(c, ck, err));
    MOE_TRY(moe_gguf_get_double(
        gguf, moe_gguf_arch_key(gguf, "attention.layer_norm_rms_epsilon").text, false, &eps, err));
    if (eps != 0)
        c->norm_kind = MOE_NORM_RMS;
    c->rope_in_dense = true;
    c->moe_scale = c->shared_ff ? 0.5f : 1;
    return family_gguf_windows(c, gguf, 0, err);
}

/* Sparse and compressed attention: which layers share a choice of positions (GLM-5), which compress
 * and how (DeepSeek-V4). */

/* ---- GLM-5 ---- */

/* "attention.indexer.types": 1 for a layer with an indexer, 0 for one that shares. chooses: what
 * holds in files without it. */
static int read_choosing(struct moe_config *c, const struct moe_gguf *gguf,
                         uint32_t chooses[MOE_MAX_LAYERS], struct moe_err *err)
{
    MOE_TRY(family_gguf_by_layer(c, gguf, "attention.indexer.types", 1, chooses, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].shares_choice = !chooses[i];
    return MOE_OK;
}

/* In files that do not say it, all layers of GLM-5 and 5.1 have an indexer; of 5.2, whose context
 * is longer, the first three and then every fourth. */
int family_glm_dsa_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    enum { CONTEXT_OF_5_2 = 1 << 20 };
    uint32_t chooses[MOE_MAX_LAYERS];
    for (uint32_t i = 0; i < c->n_layers; i++)
        chooses[i] = c->context_max < CONTEXT_OF_5_2 || i < 2 || i % 4 == 2;
    MOE_TRY(read_choosing(c, moe_checkpoint_gguf(ck), chooses, err));
    return family_deepseek_v3_gguf(c, ck, rope, err);
}

/* ---- DeepSeek-V4 ---- */

/* All layers of a kind must have one ratio. */
static int take_ratio(uint32_t *all, uint32_t ratio, uint32_t layer, const char *path,
                      struct moe_err *err)
{
    if (ratio > MOE_MAX_RATIO || (*all != 0 && *all != ratio))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: 'compress_ratios' of layer %" PRIu32 " is %" PRIu32 ", which is not "
                        "implemented beside %" PRIu32,
                        path, layer, ratio, *all);
    *all = ratio;
    return MOE_OK;
}

/* "attention.compress_ratios": the positions per entry for each layer (0: only a window), and
 * perhaps for layers that predict further tokens. Layers with an indexer choose among entries: in
 * the published models those with a ratio of 4. */
static int read_ratios(struct moe_config *c, const struct moe_checkpoint *ck, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, "attention.compress_ratios");
    struct moe_gguf_array ratios;
    MOE_TRY(moe_gguf_get_array(gguf, key.text, true, &ratios, err));
    if ((ratios.n < c->n_layers || moe_gguf_array_is_text(&ratios)))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, ratios.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        double number = moe_gguf_array_number(&ratios, i);
        if (!(number >= 0 && number <= UINT32_MAX) || number != floor(number))
            return moe_fail(err, MOE_ERR_FORMAT, "%s: key '%.100s' is %.17g for layer %" PRIu32,
                            moe_gguf_path(gguf), key.text, number, i);
        bool chooses = family_gguf_tensor(ck, "blk.%u.indexer.attn_q_b.weight", i) != NULL;
        uint32_t ratio = (uint32_t)number;
        if (ratio == 0)
            continue;
        c->layers[i].compression = chooses ? MOE_COMPRESS_CHOSEN : MOE_COMPRESS_ALL;
        MOE_TRY(take_ratio(chooses ? &c->chosen_ratio : &c->all_ratio, ratio, i,
                           moe_gguf_path(gguf), err));
    }
    return MOE_OK;
}

/* Limits of activations, by layer, of routed and of shared experts; only a single limit is
 * implemented. */
static int read_limit(struct moe_config *c, const struct moe_gguf *gguf, const char *name,
                      bool required, struct moe_err *err)
{
    struct moe_gguf_key key = moe_gguf_arch_key(gguf, name);
    struct moe_gguf_array list;
    double limit = c->act_limit;
    bool listed = family_gguf_is_list(gguf, name);
    MOE_TRY(listed ? moe_gguf_get_array(gguf, key.text, true, &list, err)
                   : moe_gguf_get_double(gguf, key.text, required, &limit, err));
    if (listed && list.n < c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key '%.100s' has %" PRIu64 " numbers for %" PRIu32 " layers",
                        moe_gguf_path(gguf), key.text, list.n, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        double of_layer = listed ? moe_gguf_array_number(&list, i) : limit;
        if (c->act_limit == 0)
            c->act_limit = (float)of_layer;
        if ((float)of_layer != c->act_limit)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%.100s' is %g for layer %" PRIu32
                            " beside %g; limits that differ "
                            "are not implemented",
                            moe_gguf_path(gguf), key.text, of_layer, i, (double)c->act_limit);
    }
    return MOE_OK;
}

int family_deepseek_v4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t n_static = 0;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "hash_layer_count").text, MOE_MAX_LAYERS,
                             true, &n_static, err));
    MOE_TRY(read_ratios(c, ck, err));
    c->act_limit = 0;
    MOE_TRY(read_limit(c, gguf, "swiglu_clamp_exp", true, err));
    MOE_TRY(read_limit(c, gguf, "swiglu_clamp_shexp", false, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].static_routing = i < n_static;
    family_deepseek_v4_drop(c);
    return MOE_OK;
}

/* ---- GLM-5.3 ---- */

int family_glm5_next_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t chooses[MOE_MAX_LAYERS];
    for (uint32_t i = 0; i < c->n_layers; i++)
        chooses[i] = 1;
    MOE_TRY(read_choosing(c, gguf, chooses, err));
    MOE_TRY(read_limit(c, gguf, "swiglu_clamp_exp", false, err));
    MOE_TRY(read_limit(c, gguf, "swiglu_clamp_shexp", false, err));
    if (c->act_limit == 0)
        c->expert_act = c->dense_act = MOE_ACT_SWIGLU;
    MOE_TRY(family_kimi_linear_gguf(c, ck, rope, err));
    return family_index_pools(c, moe_gguf_path(gguf), err);
}

/* ---- Hy4 ---- */

int family_hy_v4_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    c->index_eps = c->norm_eps;
    MOE_TRY(read_limit(c, moe_checkpoint_gguf(ck), "swiglu_clamp_exp", false, err));
    if (c->act_limit == 0)
        c->expert_act = MOE_ACT_SWIGLU;
    return family_glm_dsa_gguf(c, ck, rope, err);
}

/* ---- Maple, Arctic, Grok ---- */

int family_maple_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    c->act_limit = 0;
    MOE_TRY(read_limit(c, moe_checkpoint_gguf(ck), "swiglu_clamp_exp", true, err));
    return family_gguf_windows(c, moe_checkpoint_gguf(ck), 0, err);
}

int family_arctic_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    return family_arctic_halves(c, moe_checkpoint_dir(ck), err);
}

int family_grok_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_tensor *beside = family_gguf_tensor(ck, "blk.%u.ffn_up.weight", 0);
    if (beside && beside->dims[0] <= MOE_MAX_DIM) {
        c->shared_ff = (uint32_t)beside->dims[0];
        c->moe_scale = sqrtf(0.5f);
    }
    return MOE_OK;
}

/* ---- Granite with windows ---- */

int family_granite_swa_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                            struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t rotates[MOE_MAX_LAYERS];
    bool all = true, windows = true;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "attention.sliding_window").text,
                             MOE_MAX_CONTEXT, true, &c->window, err));
    MOE_TRY(family_gguf_windows(c, gguf, 0, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        rotates[i] = 1;
    MOE_TRY(family_gguf_by_layer(c, gguf, "attention.rope_pattern", 1, rotates, err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        all &= rotates[i] != 0;
        windows &= (rotates[i] != 0) == c->layers[i].windowed;
    }
    c->rope_in_windows = !all;
    return all || windows ? MOE_OK
                          : moe_fail(err, MOE_ERR_UNSUPPORTED,
                                     "%s: 'attention.rope_pattern' turns off other layers than "
                                     "those without a window, which is not implemented",
                                     moe_gguf_path(gguf));
}

/* ---- MiniMax-01 ---- */

/* "residual_scale" is the stream's; the blocks' outputs have none. */
int family_minimax_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                        struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t recurrent[MOE_MAX_LAYERS], interval = 8;
    c->stream_scale = c->residual_scale;
    c->residual_scale = 1;
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "full_attention_interval").text,
                             MOE_MAX_LAYERS, false, &interval, err));
    if (interval == 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: key 'full_attention_interval' 0, expected 1 or more",
                        moe_gguf_path(gguf));
    for (uint32_t i = 0; i < c->n_layers; i++)
        recurrent[i] = (i + 1) % interval != 0;
    MOE_TRY(family_gguf_by_layer(c, gguf, "attention.recurrent_layers", 1, recurrent, err));
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layers[i].recurrent = recurrent[i] != 0;
    family_minimax_states(c);
    return MOE_OK;
}

/* ---- Heads that draft ---- */

static int read_streams(struct moe_config *c, const struct moe_gguf *gguf, struct moe_err *err)
{
    const struct moe_gguf_key key = moe_gguf_arch_key(gguf, "target_layers");
    struct moe_gguf_array layers = {0};
    MOE_TRY(moe_gguf_get_array(gguf, key.text, true, &layers, err));
    if (layers.n == 0 || layers.n > MOE_MAX_READS ||
        (c->drafter_kind == MOE_DRAFTS_EAGLE3 && layers.n != 3))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: key '%s' lists %" PRIu64 " layers, expected %s", moe_gguf_path(gguf),
                        key.text, layers.n, c->drafter_kind == MOE_DRAFTS_EAGLE3 ? "3" : "1 to 16");
    c->n_reads = (uint32_t)layers.n;
    for (uint32_t i = 0; i < c->n_reads; i++)
        MOE_TRY(take_number(gguf, key.text, &layers, i, MOE_MAX_LAYERS, &c->reads[i], err));
    return MOE_OK;
}

/* The tokens that a head's output knows, where it does not know all of them. */
static uint32_t draft_tokens(const struct moe_checkpoint *ck)
{
    const struct moe_tensor *tokens = family_gguf_tensor(ck, "d2t", 0);
    return tokens && tokens->n_items <= MOE_MAX_DIM ? (uint32_t)tokens->n_items : 0;
}

int family_eagle3_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    uint32_t width = c->hidden;
    (void)rope;
    c->tied_head = false;
    c->draft_vocab = draft_tokens(ck);
    MOE_TRY(moe_gguf_get_u32(gguf, moe_gguf_arch_key(gguf, "target_hidden_size").text, MOE_MAX_DIM,
                             false, &width, err));
    MOE_TRY(read_streams(c, gguf, err));
    return family_check_drafter(c, width, true, moe_gguf_path(gguf), err);
}

/* llama.cpp's rows of a block see all of it unless a file says otherwise. */
int family_dflash_gguf(struct moe_config *c, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *rope, struct moe_err *err)
{
    const struct moe_gguf *gguf = moe_checkpoint_gguf(ck);
    (void)rope;
    c->tied_head = false;
    c->draft_vocab = draft_tokens(ck);
    MOE_TRY(moe_gguf_get_u32(gguf, "tokenizer.ggml.mask_token_id", MOE_MAX_DIM, true,
                             &c->mask_token, err));
    c->logit_scale = 1; /* of all logits: it leaves the likeliest token what it is */
    c->from_anchor = true;
    MOE_TRY(moe_gguf_get_bool(gguf, moe_gguf_arch_key(gguf, "sample_from_anchor").text, false,
                              &c->from_anchor, err));
    if (c->window)
        MOE_TRY(family_gguf_windows(c, gguf, 0, err));
    return read_streams(c, gguf, err);
}
