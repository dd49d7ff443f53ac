/* What Llama-4 computes of its own from its settings: which layers rotate, see a part of the text,
 * have experts. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "family/family_own.h"
#include "fmt/json.h"
#include "model/rope.h"
#include "quant/layout.h"

/* "no_rope_layers": 0 for each layer that rotates nothing; without it every n-th. */
static int read_still_layers(struct moe_config *c, const char *path, const json_t *json,
                             struct moe_err *err)
{
    const json_t *list = json_object_get(json, "no_rope_layers");
    uint32_t every = 4;
    int status =
        moe_json_get_u32(path, json, "no_rope_layer_interval", MOE_MAX_LAYERS, false, &every, err);
    if (status != MOE_OK)
        return status;
    bool listed = json_array_size(list) > 0;
    if (every == 0 || (listed && json_array_size(list) < c->n_layers))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'no_rope_layers' must be a list of %" PRIu32
                        " layers, or 'no_rope_layer_interval' 1 or more",
                        path, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const json_t *item = json_array_get(list, i);
        if (listed && !(json_is_integer(item) && json_integer_value(item) >= 0 &&
                        json_integer_value(item) <= 1))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: 'no_rope_layers' item %" PRIu32 " is neither 0 nor 1", path, i);
        c->layer_is_windowed[i] = listed ? json_integer_value(item) == 1 : (i + 1) % every != 0;
    }
    return MOE_OK;
}

/* "layer_types", as newer writers add it, says of rotating layers that they see a part. */
static int check_layer_types(const struct moe_config *c, const char *path, const json_t *json,
                             struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layer_types");
    for (uint32_t i = 0; i < c->n_layers && json_is_array(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));
        bool part = c->layer_is_windowed[i];
        if (!type || strcmp(type, part ? "chunked_attention" : "full_attention") != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %" PRIu32
                            " is '%.60s' where 'no_rope_layers' has a layer that %s, which is not "
                            "implemented",
                            path, i, type ? type : "?", part ? "rotates" : "does not rotate");
    }
    return MOE_OK;
}

/* "attention_chunk_size"; null: rotating layers see all of a text as well. */
static int read_parts(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_err *err)
{
    const json_t *width = json_object_get(json, "attention_chunk_size");
    c->window = width && json_is_null(width) ? c->context_max : 8192;
    int status = moe_json_get_u32(path, json, "attention_chunk_size", MOE_MAX_CONTEXT, false,
                                  &c->window, err);
    c->window_chunks = memchr(c->layer_is_windowed, 1, c->n_layers) != NULL;
    if (!c->window_chunks) /* no layer rotates: all see all */
        c->window = 0;
    return status;
}

/* "attn_temperature_tuning": a truth value, or a number as first published. */
static int read_query_scale(struct moe_config *c, const char *path, const json_t *json,
                            struct moe_err *err)
{
    const json_t *tuned = json_object_get(json, "attn_temperature_tuning");
    bool on =
        !tuned || json_is_true(tuned) || (json_is_integer(tuned) && json_integer_value(tuned) != 0);
    double scale = 0.1;
    uint32_t step = 8192;
    int status = moe_json_get_u32(path, json, "floor_scale", MOE_MAX_CONTEXT, false, &step, err);
    if (status == MOE_OK)
        status = moe_json_get_double(path, json, "attn_scale", false, &scale, err);
    if (status != MOE_OK || !on)
        return status;
    if (step == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: 'floor_scale' 0 makes no sense", path);
    c->query_step = step;
    c->query_scale = (float)scale;
    return MOE_OK;
}

/* "moe_layers", or every "interleave_moe_layer_step"-th. */
static int read_moe_layers(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_err *err)
{
    const json_t *list = json_object_get(json, "moe_layers"), *item;
    uint32_t step = 1;
    int status = moe_json_get_u32(path, json, "interleave_moe_layer_step", MOE_MAX_LAYERS, false,
                                  &step, err);
    if (status == MOE_OK && step == 0)
        status =
            moe_fail(err, MOE_ERR_FORMAT, "%s: 'interleave_moe_layer_step' 0 makes no sense", path);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_is_moe[i] = !json_is_array(list) && (i + 1) % step == 0;
    size_t i;
    json_array_foreach(list, i, item)
    {
        json_int_t layer = json_is_integer(item) ? json_integer_value(item) : -1;
        if (layer < 0 || layer >= (json_int_t)c->n_layers)
            return moe_fail(err, MOE_ERR_FORMAT, "%s: 'moe_layers' names no layer at item %zu",
                            path, i);
        c->layer_is_moe[layer] = 1;
    }
    return MOE_OK;
}

int family_llama4_hf(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_rope_settings *rope, struct moe_err *err)
{
    bool norm = true;
    (void)rope;
    c->shared_ff = c->expert_ff;
    int status = moe_json_get_bool(path, json, "use_qk_norm", false, &norm, err);
    c->qk_norm = norm ? MOE_QK_NORM_BARE : MOE_QK_NORM_NONE;
    if (status == MOE_OK)
        status = read_still_layers(c, path, json, err);
    if (status == MOE_OK)
        status = check_layer_types(c, path, json, err);
    if (status == MOE_OK)
        status = read_parts(c, path, json, err);
    if (status == MOE_OK)
        status = read_query_scale(c, path, json, err);
    if (status == MOE_OK)
        status = read_moe_layers(c, path, json, err);
    return status;
}
