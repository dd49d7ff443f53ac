/* What Gemma-4 computes of its own from its settings: its layers' kinds, heads and rotations. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "family/family_own.h"
#include "fmt/json.h"
#include "model/rope.h"
#include "quant/layout.h"

/* Five local layers, then a global one, where nothing is listed; the last is global anyway. */
static void gemma4_layers(struct moe_config *c, const json_t *json)
{
    bool listed = json_is_array(json_object_get(json, "layer_types"));
    for (uint32_t i = 0; i < c->n_layers && !listed; i++)
        c->layer_is_windowed[i] = (i + 1) % 6 != 0;
    if (c->n_layers > 0)
        c->layer_is_windowed[c->n_layers - 1] = 0;
}

/* "per_layer_config", as newer writers have it: the same for every global layer, and nothing else.
 */
static int gemma4_by_layer(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const json_t *by_layer = json_object_get(json, "per_layer_config");
    uint32_t n_global = 0, wide = 0, heads = 0;
    for (uint32_t i = 0; i < c->n_layers && json_is_object(by_layer); i++) {
        char key[16];
        snprintf(key, sizeof key, "%" PRIu32, i);
        const json_t *own = json_object_get(by_layer, key);
        uint32_t head_dim = c->head_dim, kv_heads = c->n_kv_heads;
        int status = MOE_OK;
        if (own)
            status =
                moe_json_get_u32(path, own, "head_dim", MOE_MAX_HEAD_DIM, false, &head_dim, err);
        if (own && status == MOE_OK)
            status = moe_json_get_u32(path, own, "num_key_value_heads", MOE_MAX_HEADS, false,
                                      &kv_heads, err);
        if (status != MOE_OK)
            return status;
        bool global = !c->layer_is_windowed[i];
        if (global && n_global++ == 0) {
            wide = head_dim;
            heads = kv_heads;
        }
        if (head_dim != (global ? wide : c->head_dim) ||
            kv_heads != (global ? heads : c->n_kv_heads))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'per_layer_config' gives layer %" PRIu32
                            " heads of its own, which only global layers may have, all the same",
                            path, i);
    }
    if (wide) {
        c->global_head_dim = wide;
        c->global_kv_heads = heads;
    }
    return MOE_OK;
}

/* The part of a global head that is rotated ("proportional") has the frequencies that it would have
 * if all were; the other pairs stand still. */
static int gemma4_global_rope(struct moe_config *c, const char *path, const json_t *json,
                              struct moe_err *err)
{
    const json_t *all = json_object_get(json, "rope_parameters");
    const json_t *rope = json_object_get(all, "full_attention");
    double theta = 1e6, partial = 0.25;
    const char *type = "proportional";
    if (json_is_object(rope)) {
        type = "default";
        partial = 1;
    } else if (json_is_object(all)) {
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'rope_parameters' says nothing of 'full_attention'", path);
    }
    int status = MOE_OK;
    if (rope)
        status = moe_json_get_text(path, rope, "rope_type", false, &type, err);
    if (rope && status == MOE_OK)
        status = moe_json_get_double(path, rope, "rope_theta", false, &theta, err);
    if (rope && status == MOE_OK)
        status = moe_json_get_double(path, rope, "partial_rotary_factor", false, &partial, err);
    if (status != MOE_OK)
        return status;
    if (strcmp(type, "default") == 0)
        partial = 1;
    else if (strcmp(type, "proportional") != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: rotary scaling '%.60s' of global layers is not implemented", path,
                        type);
    if (!(partial >= 0 && partial <= 1) || !(theta > 1) ||
        c->global_head_dim / 2 > MOE_MAX_ROPE_PAIRS)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: rotating %g of %" PRIu32
                        " values of a head by theta %g makes no sense",
                        path, partial, c->global_head_dim, theta);
    uint32_t pairs = c->global_head_dim / 2;
    uint32_t turning = (uint32_t)(partial * c->global_head_dim / 2);
    c->n_global_freqs = pairs;
    for (uint32_t i = 0; i < pairs; i++)
        c->global_freqs[i] = i < turning ? pow(theta, -(double)i / pairs) : 0;
    return MOE_OK;
}

int family_gemma4_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    uint32_t by_layer = 256;
    bool has_experts = false;
    int status = moe_json_get_u32(path, json, "hidden_size_per_layer_input", MOE_MAX_HEAD_DIM,
                                  false, &by_layer, err);
    if (status == MOE_OK)
        status = moe_json_get_bool(path, json, "enable_moe_block", false, &has_experts, err);
    if (status == MOE_OK && by_layer != 0)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: embeddings by layer ('hidden_size_per_layer_input' %" PRIu32
                        ") are not implemented",
                        path, by_layer);
    if (status != MOE_OK)
        return status;
    gemma4_layers(c, json);
    c->embed_scale = sqrtf((float)c->hidden);
    if (c->global_head_dim == 0)
        c->global_head_dim = 512;
    if (c->global_kv_heads == 0 || !c->global_keys_are_values)
        c->global_kv_heads = c->n_kv_heads;
    status = gemma4_by_layer(c, path, json, err);
    if (status == MOE_OK)
        status = gemma4_global_rope(c, path, json, err);
    if (has_experts) {
        memset(c->layer_is_moe, 1, c->n_layers);
        c->shared_ff = c->dense_ff;
        c->dense_ff = 0;
        c->own_norms = c->expert_scale = true;
    } else {
        c->n_experts = c->top_k = c->expert_ff = 0;
    }
    return status;
}
