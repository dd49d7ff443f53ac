/* Which layers choose positions, and which share what another one chose: DeepSeek-V3.2, GLM-5. */
#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "family/family_own.h"
#include "fmt/json.h"

/* "layer_types", where it is there, says the same of every layer. */
static int check_layer_types(const struct moe_config *c, const char *path, const json_t *json,
                             struct moe_err *err)
{
    const json_t *list = json_object_get(json, "layer_types"), *type;
    size_t i;
    json_array_foreach(list, i, type)
    {
        const char *text = json_string_value(type);
        if (!text || strcmp(text, "indexed_attention") != 0)
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: 'layer_types' item %zu is '%.60s', which is not implemented for "
                            "this family",
                            path, i, text ? text : "?");
    }
    return MOE_OK;
}

int family_deepseek_v32_hf(struct moe_config *c, const char *path, const json_t *json,
                           struct moe_rope_settings *rope, struct moe_err *err)
{
    int status = check_layer_types(c, path, json, err);
    return status == MOE_OK ? family_deepseek_v3_hf(c, path, json, rope, err) : status;
}

/* A list of "full" or "shared" for each layer. */
static int read_types(struct moe_config *c, const char *path, const json_t *list, const char *key,
                      struct moe_err *err)
{
    if (!json_is_array(list) || json_array_size(list) != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' must be a list of %" PRIu32 " layers", path,
                        key, c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *type = json_string_value(json_array_get(list, i));
        c->layer_shares_choice[i] = type && strcmp(type, "shared") == 0;
        if (!c->layer_shares_choice[i] && (!type || strcmp(type, "full") != 0))
            return moe_fail(err, MOE_ERR_UNSUPPORTED,
                            "%s: '%s' item %" PRIu32 " is '%.60s', which is not implemented", path,
                            key, i, type ? type : "?");
    }
    return MOE_OK;
}

/* A letter for each layer: F, or S. */
static int read_pattern(struct moe_config *c, const char *path, const char *pattern,
                        struct moe_err *err)
{
    if (strlen(pattern) != c->n_layers || strspn(pattern, "FS") != c->n_layers)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: 'index_topk_pattern' must be %" PRIu32 " letters F or S", path,
                        c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer_shares_choice[i] = pattern[i] == 'S';
    return MOE_OK;
}

/* The layers up to number `offset` - 1 choose, then every freq-th. */
static int read_step(struct moe_config *c, const char *path, const json_t *json,
                     struct moe_err *err)
{
    uint32_t freq = 1, offset = 2;
    int status = moe_json_get_u32(path, json, "index_topk_freq", MOE_MAX_LAYERS, false, &freq, err);
    if (status == MOE_OK)
        status = moe_json_get_u32(path, json, "index_skip_topk_offset", MOE_MAX_LAYERS, false,
                                  &offset, err);
    for (uint32_t i = 0; i < c->n_layers && freq > 1; i++)
        c->layer_shares_choice[i] = i + 1 > offset && (i + 1 - offset) % freq != 0;
    return status;
}

/* A key that is there and not null. */
static const json_t *given(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return json_is_null(value) ? NULL : value;
}

int family_glm_dsa_hf(struct moe_config *c, const char *path, const json_t *json,
                      struct moe_rope_settings *rope, struct moe_err *err)
{
    const json_t *types = given(json, "indexer_types");
    const json_t *pattern = given(json, "index_topk_pattern");
    int status = family_deepseek_v32_hf(c, path, json, rope, err);
    if (status != MOE_OK)
        return status;
    if (types)
        return read_types(c, path, types, "indexer_types", err);
    if (json_is_string(pattern))
        return read_pattern(c, path, json_string_value(pattern), err);
    if (pattern)
        return read_types(c, path, pattern, "index_topk_pattern", err);
    return read_step(c, path, json, err);
}
