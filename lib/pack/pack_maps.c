/* Maps of a pack: which precision each expert deserves under several tolerances, chosen at start.
 */
#include <math.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/pack_internal.h"

enum { HEAD_BYTES = 16, MAP_BYTES = 32, CHECKED = 1, POINTS = 2 };

static uint64_t n_experts(const struct moe_pack *pack)
{
    return (uint64_t)pack->n_layers * pack->n_experts;
}

uint32_t moe_pack_n_maps(const struct moe_pack *pack)
{
    uint64_t n;
    const uint8_t *section = moe_pack_section(pack, MOE_PACK_MAPS, &n);
    return n ? moe_get_u32(section) : 0;
}

struct moe_pack_map moe_pack_map_at(const struct moe_pack *pack, uint32_t i)
{
    uint64_t n;
    const uint8_t *p =
        moe_pack_section(pack, MOE_PACK_MAPS, &n) + HEAD_BYTES + i * (MAP_BYTES + n_experts(pack));
    return (struct moe_pack_map){.tolerance = moe_get_f64(p),
                                 .loss = moe_get_f64(p + 8),
                                 .check = moe_get_f64(p + 16),
                                 .points = moe_get_u32(p + 24) & POINTS,
                                 .checked = moe_get_u32(p + 24) & CHECKED,
                                 .variants = p + MAP_BYTES};
}

void moe_pack_put_maps(struct moe_buf *out, const struct moe_pack_map *maps, uint32_t n,
                       uint32_t n_layers, uint32_t n_experts)
{
    moe_buf_u32(out, n);
    moe_buf_u32(out, 0);
    moe_buf_u32(out, n_layers);
    moe_buf_u32(out, n_experts);
    for (uint32_t i = 0; i < n; i++) {
        moe_buf_f64(out, maps[i].tolerance);
        moe_buf_f64(out, maps[i].loss);
        moe_buf_f64(out, maps[i].checked ? maps[i].check : 0);
        moe_buf_u32(out, (maps[i].checked ? CHECKED : 0) | (maps[i].points ? POINTS : 0));
        moe_buf_u32(out, 0);
        moe_buf_append(out, maps[i].variants, (uint64_t)n_layers * n_experts);
    }
}

/* Layers that draft have no place in maps, nor have those without experts: all of them keep what
 * they have. */
static bool fits(const struct moe_pack *pack, const struct moe_pack_map *map)
{
    for (uint32_t layer = 0; layer < pack->n_layers; layer++)
        for (uint32_t e = 0; e < pack->n_experts; e++) {
            const uint8_t v = map->variants[(uint64_t)layer * pack->n_experts + e];
            const bool left = layer >= pack->n_layers - pack->n_ahead ||
                              moe_pack_usable_variant(pack, layer, e, 0) == UINT32_MAX;
            if (left ? v != MOE_PACK_NO_VARIANT : !moe_pack_expert(pack, layer, e, v)->present)
                return false;
        }
    return map->tolerance >= 0 && isfinite(map->tolerance) && isfinite(map->loss) &&
           isfinite(map->check);
}

int pack_check_maps(const struct moe_pack *pack, struct moe_err *err)
{
    uint64_t bytes;
    const uint8_t *p = moe_pack_section(pack, MOE_PACK_MAPS, &bytes);
    const char *damaged = "its maps are not for its experts";
    if (bytes == 0)
        return MOE_OK;
    if (bytes < HEAD_BYTES || moe_get_u32(p) == 0 || moe_get_u32(p) > MOE_PACK_MAX_MAPS ||
        moe_get_u32(p + 4) != 0 || moe_get_u32(p + 8) != pack->n_layers ||
        moe_get_u32(p + 12) != pack->n_experts || pack->n_variants == 0 ||
        bytes != HEAD_BYTES + moe_get_u32(p) * (MAP_BYTES + n_experts(pack)))
        return pack_damaged(pack, err, damaged);
    for (uint32_t v = 0; v < pack->n_variants; v++)
        if (strcmp(pack->variants[v].name, MOE_MAP_VARIANT) == 0)
            return pack_damaged(pack, err, damaged);
    for (uint32_t i = 0; i < moe_get_u32(p); i++) {
        const struct moe_pack_map map = moe_pack_map_at(pack, i);
        const uint8_t *of = map.variants - MAP_BYTES;
        if (!fits(pack, &map) || moe_get_u32(of + 24) > (CHECKED | POINTS) ||
            moe_get_u32(of + 28) != 0 ||
            (i > 0 && map.tolerance <= moe_pack_map_at(pack, i - 1).tolerance))
            return pack_damaged(pack, err, damaged);
    }
    return MOE_OK;
}

/* The variant of a stored expert that a map (NULL: none) takes. */
static uint32_t taken(const struct moe_pack *pack, const struct moe_pack_map *map, uint32_t layer,
                      uint32_t expert)
{
    const uint8_t v =
        map ? map->variants[(uint64_t)layer * pack->n_experts + expert] : MOE_PACK_NO_VARIANT;
    return v != MOE_PACK_NO_VARIANT ? v : moe_pack_usable_variant(pack, layer, expert, 0);
}

uint64_t moe_pack_map_bytes(const struct moe_pack *pack, uint32_t i)
{
    struct moe_pack_map map;
    uint64_t bytes = 0;
    if (i != UINT32_MAX)
        map = moe_pack_map_at(pack, i);
    for (uint32_t j = 0; j < pack->n_stored; j++) {
        const struct pack_expert *e = &pack->experts[j];
        const struct moe_expert_class *class_ = &pack->classes[e->extent.class_index];
        const bool own =
            e->layer < pack->n_layers - pack->n_ahead &&
            e->variant == taken(pack, i == UINT32_MAX ? NULL : &map, e->layer, e->expert);
        for (uint32_t s = 0; own && s < class_->n_segments; s++)
            bytes += moe_round_up(class_->segment_bytes[s], MOE_PACK_ALIGN);
    }
    return bytes;
}

uint64_t moe_pack_map_fingerprint(const struct moe_pack *pack, uint32_t i)
{
    return moe_hash64_chain(pack->fingerprint, moe_pack_map_at(pack, i).variants, n_experts(pack));
}

void moe_pack_take_map(struct moe_pack *pack, uint32_t i)
{
    const struct moe_pack_map map = moe_pack_map_at(pack, i);
    const uint32_t last = pack->n_variants - 1;
    const uint64_t fingerprint = moe_pack_map_fingerprint(pack, i);
    uint32_t n = 0;
    for (uint32_t j = 0, next; j < pack->n_stored; j = next) {
        const uint32_t layer = pack->experts[j].layer, expert = pack->experts[j].expert;
        const uint32_t own = taken(pack, &map, layer, expert);
        struct pack_expert kept[2];
        uint32_t n_kept = 0;
        for (next = j; next < pack->n_stored && pack->experts[next].layer == layer &&
                       pack->experts[next].expert == expert;
             next++)
            if (pack->experts[next].variant == own || pack->experts[next].variant == last)
                kept[n_kept++] = pack->experts[next];
        for (uint32_t k = 0; k < n_kept; k++) {
            pack->experts[n] = kept[k];
            pack->experts[n++].variant = kept[k].variant == own ? 0 : 1;
        }
    }
    pack->n_stored = n;
    pack->variants[1] = pack->variants[last];
    pack->n_variants = last > 0 ? 2 : 1;
    pack->variants[0] = (struct moe_pack_variant){.name = MOE_MAP_VARIANT, .method = "mixed"};
    pack->fingerprint = fingerprint;
    pack->taken = i + 1;
}

uint32_t moe_pack_map_taken(const struct moe_pack *pack)
{
    return pack->taken - 1;
}
