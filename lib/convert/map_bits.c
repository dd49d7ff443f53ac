#include "convert/map_bits.h"

#include <inttypes.h>

#include "base/mem.h"

/* The bits of the variants that the map's choice uses. */
static int parse_variants(const struct moe_map *map, const char *path,
                          struct moe_bits bits[MOE_PACK_MAX_VARIANTS], struct moe_err *err)
{
    for (uint64_t i = 0; i < (uint64_t)map->n_layers * map->n_experts; i++) {
        uint8_t variant = map->choice.variant[i];
        if (variant >= map->n_variants)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: its choice names a variant that it does not list", path);
        if (bits[variant].down == 0 && !moe_parse_bits(map->variants[variant], &bits[variant]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: chooses the variant '%s', which is no bitwidth; calibrate a pack "
                            "with variants like 8,4,2",
                            path, map->variants[variant]);
    }
    return MOE_OK;
}

int moe_map_bits(struct moe_expert_map *out, const struct moe_map *map, const char *path,
                 struct moe_err *err)
{
    struct moe_bits bits[MOE_PACK_MAX_VARIANTS] = {{0}};
    *out = (struct moe_expert_map){
        .name = path, .source_fingerprint = map->source_fingerprint, .n_experts = map->n_experts};
    if (!map->choice.there)
        return moe_fail(
            err, MOE_ERR_FORMAT,
            "%s: has importances but no choice of variants; choose first (moe-calibrate "
            "--tolerance)",
            path);
    int status = parse_variants(map, path, bits, err);
    if (status != MOE_OK)
        return status;
    out->n_layers = map->model_layer[map->n_layers - 1] + 1;
    out->bits = moe_alloc((uint64_t)out->n_layers * out->n_experts, sizeof *out->bits, err);
    if (!out->bits)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < map->n_layers; layer++) {
        const uint8_t *from = map->choice.variant + (uint64_t)layer * map->n_experts;
        struct moe_bits *to = out->bits + (uint64_t)map->model_layer[layer] * map->n_experts;
        for (uint32_t e = 0; e < map->n_experts; e++)
            to[e] = bits[from[e]];
    }
    return MOE_OK;
}
