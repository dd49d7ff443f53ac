/* Static routing (routes.h): tables of experts by token. */
#include "model/routes.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "model/family_internal.h"

void moe_routes_choose(const struct moe_config *c, const float *routes, uint32_t token,
                       uint32_t *chosen, float *weights)
{
    const float *row = routes + (uint64_t)token * c->top_k;
    for (uint32_t k = 0; k < c->top_k; k++) {
        chosen[k] = (uint32_t)row[k];
        weights[k] = c->routed_scale / (float)c->top_k;
    }
}

int moe_routes_check(const struct moe_config *c, const float *routes, const char *name,
                     const char *tensor, struct moe_err *err)
{
    for (uint32_t token = 0; token < c->vocab; token++) {
        const float *row = routes + (uint64_t)token * c->top_k;
        for (uint32_t k = 0; k < c->top_k; k++) {
            bool twice = false;
            for (uint32_t i = 0; i < k; i++)
                twice |= row[i] == row[k];
            if (!(row[k] >= 0 && row[k] < (float)c->n_experts) || row[k] != (float)(uint32_t)row[k])
                return moe_fail(err, MOE_ERR_FORMAT,
                                "%s: tensor '%s' gives token %" PRIu32
                                " an expert that is not one of 0 to %" PRIu32,
                                name, tensor, token, c->n_experts - 1);
            if (twice)
                return moe_fail(err, MOE_ERR_FORMAT,
                                "%s: tensor '%s' gives token %" PRIu32 " expert %" PRIu32 " twice",
                                name, tensor, token, (uint32_t)row[k]);
        }
    }
    return MOE_OK;
}

int moe_routes_check_numbers(const struct moe_config *c, enum moe_tensor_role role,
                             const float *values, const char *name, const char *tensor,
                             struct moe_err *err)
{
    if (role == MOE_T_ROUTES)
        return moe_routes_check(c, values, name, tensor, err);
    for (uint32_t i = 0; role == MOE_T_DRAFT_TOKENS && i < c->draft_vocab; i++)
        if (!(values[i] >= 0 && values[i] < (float)c->vocab) || (i && values[i] <= values[i - 1]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: tensor '%s' makes %.0f of token %" PRIu32
                            " of the head: tokens of 0 to %" PRIu32 " that rise make sense",
                            name, tensor, (double)values[i], i, c->vocab - 1);
    return MOE_OK;
}

/* ---- config.json ---- */

static const char key[] = "static_routing";

int moe_routes_read_hf(struct moe_config *c, const char *path, const json_t *json,
                       struct moe_err *err)
{
    const json_t *value = json_object_get(json, key);
    if (!value || json_is_null(value))
        return MOE_OK;
    if (json_is_array(value))
        return family_read_layers(c, MOE_LAYER(static_routing), 1, path, value, key, err);
    const char *text = json_string_value(value);
    bool encoder = text && strcmp(text, "encoder") == 0, all = text && strcmp(text, "all") == 0;
    if (!all && !encoder && !(text && strcmp(text, "decoder") == 0))
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: '%s' must be \"all\", \"encoder\", \"decoder\" or a list of layers",
                        path, key);
    if (encoder && c->n_encoder == 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: '%s' is \"encoder\", and the model has none",
                        path, key);
    uint32_t begin = all || encoder ? 0 : c->n_encoder, end = encoder ? c->n_encoder : c->n_layers;
    for (uint32_t layer = begin; layer < end; layer++)
        c->layers[layer].static_routing = c->layers[layer].moe;
    return MOE_OK;
}
