/* Sizes of a model from its description (shape.h). */
#include "model/shape.h"

#include <inttypes.h>

#include "base/mem.h"
#include "model/config.h"
#include "model/tensor_roles.h"
#include "quant/quantize.h"

/* How matrices are stored: at these bits, in groups where rows are too narrow for blocks. */
struct stored {
    int bits;
    uint32_t group;
};

static struct moe_layout layout_of(struct stored as, uint32_t cols)
{
    return moe_quant_layout_of(moe_quant_method_find("blocks"), as.bits, cols, as.group,
                               MOE_LAYOUT_BF16);
}

static int check_stored(struct stored as, struct moe_err *err)
{
    enum { NARROW = 1 };
    if (layout_of(as, NARROW).kind != MOE_LAYOUT_NONE)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "%d bits in groups of %" PRIu32
                    " cannot be stored: bits are 32, 16, 8, 6, 5, 4, "
                    "3 or 2, groups 32, 64 or a multiple of 64",
                    as.bits, as.group);
}

/* Bytes of a tensor; 0 where the model (or this layer) has none. */
static uint64_t tensor_bytes(const struct moe_config *c, enum moe_tensor_role role, uint32_t layer,
                             struct stored dense)
{
    uint32_t rows, cols;
    if (!moe_tensor_shape(c, role, layer, &rows, &cols))
        return 0;
    switch (moe_tensor_spec(role)->kind) {
    case MOE_KIND_VECTOR:
        return 4 * (uint64_t)rows;
    case MOE_KIND_ROUTER:
        return moe_layout_bytes((struct moe_layout){.kind = MOE_LAYOUT_BF16}, rows, cols);
    case MOE_KIND_DENSE:
    case MOE_KIND_EXPERT:
        break;
    }
    return moe_layout_bytes(layout_of(dense, cols), rows, cols);
}

static uint64_t roles_bytes(const struct moe_config *c, enum moe_tensor_role first,
                            enum moe_tensor_role last, uint32_t layer, struct stored dense)
{
    uint64_t bytes = 0;
    for (enum moe_tensor_role role = first; role <= last; role++)
        bytes += tensor_bytes(c, role, layer, dense);
    return bytes;
}

static uint64_t roles_parameters(const struct moe_config *c, enum moe_tensor_role first,
                                 enum moe_tensor_role last, uint32_t layer)
{
    uint64_t n = 0;
    for (enum moe_tensor_role role = first; role <= last; role++) {
        uint32_t rows, cols;
        if (moe_tensor_shape(c, role, layer, &rows, &cols))
            n += (uint64_t)rows * cols;
    }
    return n;
}

/* The first layer with, or without, experts, of the decoder if there is one; n_layers: none. */
static uint32_t first_layer(const struct moe_config *c, bool is_moe)
{
    for (uint32_t i = 0; i < c->n_layers; i++) {
        uint32_t layer = (c->n_encoder + i) % c->n_layers;
        if ((c->layers[layer].moe != 0) == is_moe)
            return layer;
    }
    return c->n_layers;
}

/* Makes the sizes of half layers those of their mean. */
static void spread_halves(struct moe_shape_bytes *out, const struct moe_config *c,
                          struct stored dense)
{
    uint32_t n_plain = c->n_layers - c->n_moe_layers;
    out->attention = out->dense_ff = 0;
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        out->attention += roles_bytes(c, MOE_T_ATTN_NORM, MOE_T_FFN_NORM_BIAS, layer, dense);
        out->dense_ff += roles_bytes(c, MOE_T_GATE, MOE_T_DOWN_BIAS, layer, dense);
    }
    out->attention = out->attention / c->n_layers + out->router;
    out->dense_ff = n_plain ? out->dense_ff / n_plain : 0;
}

static void set_dense(struct moe_shape_bytes *out, const struct moe_config *c, struct stored dense)
{
    uint32_t moe = first_layer(c, true), plain = first_layer(c, false);
    uint32_t typical = moe < c->n_layers ? moe : c->n_encoder;
    out->dense = roles_bytes(c, MOE_T_EMBED, MOE_T_HEAD_BIAS, 0, dense);
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        out->dense += roles_bytes(c, MOE_T_ATTN_NORM, MOE_T_BYPASS, layer, dense);
    out->router = roles_bytes(c, MOE_T_ROUTER, MOE_T_CHOICE_BIAS, typical, dense);
    out->attention =
        roles_bytes(c, MOE_T_ATTN_NORM, MOE_T_FFN_NORM_BIAS, typical, dense) + out->router;
    out->shared = roles_bytes(c, MOE_T_SHARED_GATE_PROJ, MOE_T_BYPASS, typical, dense);
    if (plain < c->n_layers)
        out->dense_ff = roles_bytes(c, MOE_T_GATE, MOE_T_DOWN_BIAS, plain, dense);
    out->head = roles_bytes(c, MOE_T_FINAL_NORM, MOE_T_LAST_PROJECTION_BIAS, 0, dense) +
                roles_bytes(c, MOE_T_HEAD, MOE_T_HEAD_BIAS, 0, dense);
    if (c->tied_head)
        out->head += tensor_bytes(c, MOE_T_EMBED, 0, dense);
    if (moe_config_has_halves(c))
        spread_halves(out, c, dense);
    out->parameters = roles_parameters(c, MOE_T_EMBED, MOE_T_HEAD_BIAS, 0);
    for (uint32_t layer = 0; layer < c->n_layers; layer++)
        out->parameters += roles_parameters(c, MOE_T_ATTN_NORM, MOE_T_BYPASS, layer);
    out->attention_parameters = roles_parameters(c, MOE_T_ATTN_NORM, MOE_T_FFN_NORM_BIAS, typical);
}

/* Lays out segments as convert_place_matrices (pack/convert_internal.h) does: gate and up, then
 * down, each with its biases. */
static void set_expert(struct moe_shape_bytes *out, const struct moe_config *c,
                       struct moe_bits bits, uint32_t group)
{
    const struct moe_loop loop = moe_config_moe_loop(c);
    for (int part = 0; part < MOE_E_N_PARTS && c->n_experts > 0; part++) {
        uint32_t rows, cols;
        if (!moe_expert_part_shape(c, (enum moe_expert_part)part, &rows, &cols))
            continue;
        bool is_down = moe_expert_part_is_down(part);
        struct moe_layout layout =
            layout_of((struct stored){is_down ? bits.down : bits.gate_up, group}, cols);
        uint64_t bytes = moe_expert_part_is_bias(part) ? 4 * (uint64_t)rows
                                                       : moe_layout_bytes(layout, rows, cols);
        out->expert_segments[is_down] += moe_round_up(bytes, MOE_ALIGN);
        out->parameters +=
            (uint64_t)rows * cols * c->n_experts * moe_loop_owners(&loop, c->n_moe_layers);
    }
    out->expert = out->expert_segments[0] + out->expert_segments[1];
}

int moe_shape_bytes(struct moe_shape_bytes *out, const struct moe_config *c, struct moe_bits bits,
                    uint32_t dense_bits, uint32_t group, struct moe_err *err)
{
    *out = (struct moe_shape_bytes){0};
    const struct stored dense = {(int)dense_bits, group};
    MOE_TRY(check_stored(dense, err));
    MOE_TRY(check_stored((struct stored){bits.gate_up, group}, err));
    MOE_TRY(check_stored((struct stored){bits.down, group}, err));
    set_dense(out, c, dense);
    set_expert(out, c, bits, group);
    for (uint32_t layer = c->n_encoder; layer < c->n_layers; layer++) {
        uint64_t values = moe_config_cache_key(c, layer) +
                          moe_round_up(moe_config_cache_value(c, layer), MOE_PANEL_ROWS);
        if (moe_config_keeps_keys(c, layer))
            out->kv_position += values * moe_config_cache_heads(c, layer);
        if (c->layers[layer].compression && !c->layers[layer].elsewhere) /* its part of an entry */
            out->kv_position +=
                (values +
                 (c->layers[layer].compression == MOE_COMPRESS_CHOSEN ? c->index_dim : 0)) /
                moe_config_ratio(c, layer);
    }
    out->kv_position += (uint64_t)moe_config_indexers(c, c->n_layers) * moe_config_index_cell(c);
    out->kv_position *= sizeof(float) * (c->n_encoder ? 2 : 1);
    return MOE_OK;
}
