/* What DeepSeek-V4 computes of its own from its settings (family_own.h): which layers compress, and
 * by how much, which choose experts by the token, and two sets of rotary frequencies. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "family/family_own.h"
#include "fmt/json.h"
#include "model/config_states.h"
#include "model/rope.h"

static const char *const words[] = {
    [MOE_COMPRESS_NOT] = "sliding_attention",
    [MOE_COMPRESS_ALL] = "heavily_compressed_attention",
    [MOE_COMPRESS_CHOSEN] = "compressed_sparse_attention",
};
enum { N_WORDS = sizeof words / sizeof words[0] };

/* "layer_types" says how each layer attends; as published "compress_ratios" does, by the positions
 * of a group. Without either, the first two layers see all groups, then every second one chooses.
 */
static int read_layers(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    static const json_int_t ratios[N_WORDS] = {0, 128, 4};
    const json_t *types = json_object_get(json, "layer_types");
    bool named = types && !json_is_null(types);
    const json_t *list = named ? types : json_object_get(json, "compress_ratios");
    const char *key = named ? "layer_types" : "compress_ratios";
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_compresses[i] = i < 2 || i % 2 == 0 ? MOE_COMPRESS_ALL : MOE_COMPRESS_CHOSEN;
    if (!list || json_is_null(list))
        return MOE_OK;
    if (!json_is_array(list) || json_array_size(list) < c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " layers", path,
                        key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        const char *type = json_string_value(item);
        uint8_t kind = 0;
        while (kind < N_WORDS &&
               (named ? !type || strcmp(type, words[kind]) != 0
                      : !json_is_integer(item) || json_integer_value(item) != ratios[kind]))
            kind++;
        if (kind == N_WORDS)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%s' item %" PRIu32 " is none of those that are implemented", path,
                            key, i);
        c->layer_compresses[i] = kind;
    }
    return MOE_OK;
}

static int read_ratios(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *rates = json_object_get(json, "compress_rates");
    c->all_ratio = 128;
    c->chosen_ratio = 4;
    int status = MOE_OK;
    if (json_is_object(rates)) {
        status = moe_json_get_u32(path, rates, words[MOE_COMPRESS_ALL], MOE_MAX_RATIO, false,
                                  &c->all_ratio, err);
        if (status == MOE_OK)
            status = moe_json_get_u32(path, rates, words[MOE_COMPRESS_CHOSEN], MOE_MAX_RATIO, false,
                                      &c->chosen_ratio, err);
    }
    if (status == MOE_OK)
        status = moe_json_get_u32(path, json, "compress_rate_hca", MOE_MAX_RATIO, false,
                                  &c->all_ratio, err);
    if (status == MOE_OK)
        status = moe_json_get_u32(path, json, "compress_rate_csa", MOE_MAX_RATIO, false,
                                  &c->chosen_ratio, err);
    return status;
}

/* A model that lacks a kind of layer has none of what belongs to it. */
void family_deepseek_v4_drop(struct moe_config *c)
{
    bool has[N_WORDS] = {false};
    for (uint32_t i = 0; i < c->n_layers; i++)
        has[c->layer_compresses[i]] = true;
    if (!has[MOE_COMPRESS_ALL])
        c->all_ratio = 0;
    if (!has[MOE_COMPRESS_CHOSEN])
        c->chosen_ratio = c->index_heads = c->index_dim = c->index_top = 0;
    if (!moe_config_has_static(c, 0, c->n_layers))
        c->static_weighed = false;
}

/* "mlp_layer_types", or the first "num_hash_layers". */
static int read_static(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *types = json_object_get(json, "mlp_layer_types");
    uint32_t n = 3;
    int status = moe_json_get_u32(path, json, "num_hash_layers", MOE_MAX_LAYERS, false, &n, err);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_static[i] = i < n;
    if (status != MOE_OK || !types || json_is_null(types))
        return status;
    if (!json_is_array(types) || json_array_size(types) < c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'mlp_layer_types' must be a list of %" PRIu32 " layers", path,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, i));
        c->layer_is_static[i] = type && strcmp(type, "hash_moe") == 0;
        if (!c->layer_is_static[i] && (!type || strcmp(type, "moe") != 0))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'mlp_layer_types' item %" PRIu32 " is '%.60s', which is not "
                            "implemented",
                            path, i, type ? type : "?");
    }
    return MOE_OK;
}

int family_deepseek_v4_rotary(struct moe_config *c, struct moe_rope_settings *rope, double theta,
                              const char *name, struct moe_err *err)
{
    if (rope->kind == MOE_ROPE_LONGROPE)
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "%s: LongRoPE is not implemented for this family",
                        name);
    if (c->rope_dim < 2 || c->rope_dim > 2 * MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: %" PRIu32 " rotated values, expected 2 to %d",
                        name, c->rope_dim, 2 * MOE_MAX_ROPE_PAIRS);
    if (rope->kind == MOE_ROPE_YARN && rope->attention_factor == 0)
        rope->attention_factor = 1;
    int status = moe_rope_apply(c, rope, name, err);
    if (status != MOE_OK)
        return status;
    if (c->rope_scale != 1)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: a rotary 'attention_factor' of %g is not implemented", name,
                        c->rope_scale);
    if (moe_config_compressing_layers(c, c->n_layers) > 0)
        c->n_global_freqs = c->rope_dim / 2;
    for (uint32_t i = 0; i < c->n_global_freqs; i++)
        c->global_freqs[i] =
            c->n_rope_freqs ? c->rope_freqs[i] : pow(rope->theta, -2.0 * i / c->rope_dim);
    c->n_rope_freqs = 0;
    moe_rope_settings_init(rope);
    rope->theta = theta;
    return MOE_OK;
}

/* *rope: of layers that compress, but for its base where the file does not have both apart; then of
 * the others, which are not stretched. */
static int read_rope(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *both = json_object_get(json, "rope_parameters");
    const json_t *main = json_object_get(both, "main");
    double theta = 1e4;
    const char *type = "default";
    int status = moe_json_get_double(path, json, "rope_theta", false, &theta, err);
    if (status == MOE_OK && json_is_object(main)) {
        status = moe_json_get_double(path, main, "rope_theta", false, &theta, err);
        if (status == MOE_OK)
            status = moe_json_get_text(path, main, "rope_type", false, &type, err);
    } else if (status == MOE_OK) {
        rope->theta = 160000;
        status = moe_json_get_double(path, json, "compress_rope_theta", false, &rope->theta, err);
    }
    if (status == MOE_OK && strcmp(type, "default") != 0)
        status = moe_fail(err, MOE_ERR_UNSUPPORTED,
                          "%s: this rotary scaling of layers that see a window alone is not "
                          "implemented",
                          path);
    if (c->rope_dim == 0)
        c->rope_dim = (uint32_t)(c->head_dim * rope->partial);
    return status == MOE_OK ? family_deepseek_v4_rotary(c, rope, theta, path, err) : status;
}

int family_deepseek_v4_hf(struct moe_config *c, const char *path, const json_t *json,
                          struct moe_rope_settings *rope, struct moe_err *err)
{
    c->shared_ff = c->expert_ff;
    int status = read_layers(c, path, json, err);
    if (status == MOE_OK)
        status = read_ratios(c, path, json, err);
    if (status == MOE_OK)
        status = read_static(c, path, json, err);
    if (status != MOE_OK)
        return status;
    family_deepseek_v4_drop(c);
    return read_rope(c, path, json, rope, err);
}
