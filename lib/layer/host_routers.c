#include "layer/host_routers.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"

/* Reads the tensor into the arena, unless that only counts; out->data NULL: there is none. */
static int read_tensor(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer,
                       struct moe_arena *arena, struct moe_mat *out, struct moe_err *err)
{
    char name[MOE_PACK_NAME_BYTES], what[MOE_PACK_NAME_BYTES + 16];
    uint32_t rows, cols;
    *out = (struct moe_mat){0};
    if (!moe_tensor_shape(&m->config, role, layer, &rows, &cols))
        return MOE_OK;
    moe_tensor_pack_name(role, layer, name);
    const struct moe_pack_tensor *t = moe_pack_tensor_find(m->pack, name);
    uint8_t *at = moe_arena_take(arena, t->extent.raw_bytes, 1);
    if (!at)
        return MOE_OK;
    *out = (struct moe_mat){at, t->layout, t->rows, t->cols};
    snprintf(what, sizeof what, "tensor '%s'", name);
    return moe_pack_read(m->pack, &t->extent, at, what, err);
}

static int read_vector(const struct moe_model *m, enum moe_tensor_role role, uint32_t layer,
                       struct moe_arena *arena, const float **out, struct moe_err *err)
{
    struct moe_mat vector;
    int status = read_tensor(m, role, layer, arena, &vector, err);
    *out = (const float *)(const void *)vector.data;
    return status;
}

/* One block, the layers first; *out is NULL on an arena that only counts. */
static int carve(struct moe_layer **out, const struct moe_model *m, struct moe_arena *arena,
                 struct moe_err *err)
{
    const struct moe_config *c = &m->config;
    struct moe_layer *layers = moe_arena_take(arena, c->n_layers, sizeof *layers);
    int status = MOE_OK;
    for (uint32_t i = 0; i < c->n_layers && status == MOE_OK; i++) {
        struct moe_layer layer = {.is_moe = c->layer_is_moe[i]};
        if (!layer.is_moe)
            continue;
        status = read_tensor(m, MOE_T_ROUTER, i, arena, &layer.router, err);
        if (status == MOE_OK)
            status = read_vector(m, MOE_T_ROUTER_BIAS, i, arena, &layer.router_bias, err);
        if (status == MOE_OK)
            status = read_vector(m, MOE_T_CHOICE_BIAS, i, arena, &layer.choice_bias, err);
        if (status == MOE_OK)
            status = read_vector(m, MOE_T_FFN_NORM, i, arena, &layer.ffn_norm, err);
        if (status == MOE_OK)
            status = read_vector(m, MOE_T_FFN_NORM_BIAS, i, arena, &layer.ffn_norm_bias, err);
        if (layers)
            layers[i] = layer;
    }
    *out = layers;
    return status;
}

uint64_t moe_host_routers_bytes(const struct moe_model *model)
{
    struct moe_arena arena = {0};
    struct moe_layer *none;
    carve(&none, model, &arena, NULL);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

int moe_host_routers_read(struct moe_layer **out, const struct moe_model *model,
                          struct moe_err *err)
{
    uint64_t bytes = moe_host_routers_bytes(model);
    struct moe_arena arena = {.base = moe_alloc(bytes, 1, err), .size = bytes};
    *out = NULL;
    if (!arena.base)
        return MOE_ERR_MEMORY;
    int status = carve(out, model, &arena, err);
    if (status != MOE_OK) {
        free(arena.base);
        *out = NULL;
    }
    return status;
}
