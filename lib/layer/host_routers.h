/*
 * Routers on the host: copies for a model whose dense part lies on a GPU, so that the host can
 * predict as it does where it computes alone.
 */
#ifndef MOE_LAYER_HOST_ROUTERS_H
#define MOE_LAYER_HOST_ROUTERS_H

#include "layer/model.h"

/* Memory that they take, of a model whose directory is open; UINT64_MAX on overflow. */
uint64_t moe_host_routers_bytes(const struct moe_model *model);

/* Reads them. *out: [n_layers], of MoE layers router, ffn_norm and their biases, all else empty;
 * one block, released with free(). */
int moe_host_routers_read(struct moe_layer **out, const struct moe_model *model,
                          struct moe_err *err);

#endif
