/*
 * Static routing: layers that choose experts by the token, whatever the state (Hash Layers, Roller
 * et al. 2021). A table lists the experts of every token.
 */
#ifndef MOE_MODEL_ROUTES_H
#define MOE_MODEL_ROUTES_H

#include "base/err.h"
#include "model/config.h"
#include "model/tensor_roles.h"

struct json_t;

/* Writes a token's experts, in their order, and their weights, chosen and weights [top_k], from a
 * layer's table, routes [vocab][top_k]. Weights are equal and sum to 1, times routed_scale: the
 * single expert of a Hash Layer counts whole. */
void moe_routes_choose(const struct moe_config *config, const float *routes, uint32_t token,
                       uint32_t *chosen, float *weights);

/* MOE_ERR_FORMAT unless every token has top_k different experts that exist. `name` (of a file) and
 * `tensor` begin the error. */
int moe_routes_check(const struct moe_config *config, const float *routes, const char *name,
                     const char *tensor, struct moe_err *err);

/* The same for a tensor of any role: of those whose values are whole numbers these, or the tokens
 * of a head that drafts, which must rise. */
int moe_routes_check_numbers(const struct moe_config *config, enum moe_tensor_role role,
                             const float *values, const char *name, const char *tensor,
                             struct moe_err *err);

/* Sets static_routing of layers by "static_routing" of a config.json, if it has one: "all",
 * "encoder", "decoder" (the MoE layers of these) or a list of layers, the encoder's counted first.
 * Which layers have experts is known before. */
int moe_routes_read_hf(struct moe_config *config, const char *path, const struct json_t *json,
                       struct moe_err *err);

#endif
