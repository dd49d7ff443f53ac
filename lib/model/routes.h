/*
 * Static routing: layers that choose their experts by a row's token, whatever its state (Hash
 * Layers, Roller et al. 2021). A table has the experts of every token in the place of a router.
 */
#ifndef MOE_MODEL_ROUTES_H
#define MOE_MODEL_ROUTES_H

#include "base/err.h"
#include "model/config.h"

struct json_t;

/* routes: a layer's table, [vocab][top_k]. Writes the experts of a token in its order, chosen and
 * weights [top_k]: weights are equal and have the sum 1 (the one expert of a Hash Layer counts
 * whole), times routed_scale. */
void moe_routes_choose(const struct moe_config *config, const float *routes, uint32_t token,
                       uint32_t *chosen, float *weights);

/* MOE_ERR_FORMAT unless every token has top_k experts that there are and that differ. `name` (a
 * file's) and `tensor` begin the error's text. */
int moe_routes_check(const struct moe_config *config, const float *routes, const char *name,
                     const char *tensor, struct moe_err *err);

/* Sets static_routing of layers by "static_routing" of a config.json, where it is there: "all",
 * "encoder", "decoder" (their layers with experts), or a list of layers, an encoder's counted
 * first. The layers with experts are set. */
int moe_routes_read_hf(struct moe_config *config, const char *path, const struct json_t *json,
                       struct moe_err *err);

#endif
