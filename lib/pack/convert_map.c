/* The map of a conversion: the bits that each expert gets, and checks that it is for this model;
 * and maps for several tolerances: the program that opens the pack chooses one. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "pack/convert.h"
#include "pack/convert_internal.h"
#include "pack/pack.h"

static struct moe_bits bits_of(const struct moe_expert_map *map, uint32_t layer, uint32_t expert)
{
    bool there = map && layer < map->n_layers && expert < map->n_experts;
    return there ? map->bits[(uint64_t)layer * map->n_experts + expert] : (struct moe_bits){0};
}

static struct moe_bits most_bits(const struct moe_expert_map *map)
{
    struct moe_bits most = {0};
    for (uint64_t i = 0; map && i < (uint64_t)map->n_layers * map->n_experts; i++) {
        const struct moe_bits bits = map->bits[i];
        if (moe_bits_width(bits.gate_up) > moe_bits_width(most.gate_up))
            most.gate_up = bits.gate_up;
        if (moe_bits_width(bits.down) > moe_bits_width(most.down))
            most.down = bits.down;
    }
    return most;
}

struct moe_bits convert_bits(const struct converter *c, int variant, uint32_t layer,
                             uint32_t expert)
{
    struct moe_bits bits = c->variants[variant].bits;
    if (bits.down == 0)
        bits = bits_of(c->options->map, layer, expert);
    return bits.down == 0 && layer >= c->n_layers ? most_bits(c->options->map) : bits;
}

void convert_map_hash(const struct moe_expert_map *map, char out[17])
{
    uint64_t hash = 0;
    for (uint32_t layer = 0; layer < map->n_layers; layer++)
        for (uint32_t e = 0; e < map->n_experts; e++) {
            struct moe_bits bits = bits_of(map, layer, e);
            uint8_t entry[12];
            if (bits.down == 0)
                continue;
            moe_put_u32(entry, layer);
            moe_put_u32(entry + 4, e);
            moe_put_u16(entry + 8, (uint16_t)bits.gate_up);
            moe_put_u16(entry + 10, (uint16_t)bits.down);
            hash = moe_hash64_chain(hash, entry, sizeof entry);
        }
    snprintf(out, 17, "%016" PRIx64, hash);
}

int convert_map_of_pack(struct moe_expert_map *out, const struct moe_pack *pack, uint32_t variant,
                        struct moe_err *err)
{
    *out = (struct moe_expert_map){.name = moe_pack_path(pack),
                                   .source_fingerprint = moe_pack_source_fingerprint(pack),
                                   .n_layers = moe_pack_n_layers(pack),
                                   .n_experts = moe_pack_n_experts(pack)};
    out->bits = moe_alloc((uint64_t)out->n_layers * out->n_experts, sizeof *out->bits, err);
    if (!out->bits)
        return MOE_ERR_MEMORY;
    for (uint32_t layer = 0; layer < out->n_layers; layer++)
        for (uint32_t e = 0; e < out->n_experts; e++) {
            const struct moe_expert_extent *x = moe_pack_expert(pack, layer, e, variant);
            struct moe_bits *bits = &out->bits[(uint64_t)layer * out->n_experts + e];
            if (x->present && !moe_class_types(moe_pack_class_at(pack, x->class_index), bits))
                *bits = (struct moe_bits){0};
        }
    return MOE_OK;
}

int convert_check_map(const struct converter *c, uint32_t n_experts,
                      const struct moe_layer_desc *layers, struct moe_err *err)
{
    const uint32_t n_layers = c->n_layers;
    const struct moe_expert_map *map = c->options->map;
    if (!map)
        return MOE_OK;
    bool fits = map->n_layers <= n_layers && map->n_experts == n_experts;
    for (uint32_t layer = 0; layer < n_layers && fits; layer++)
        for (uint32_t e = 0; e < n_experts && fits; e++)
            fits = (bits_of(map, layer, e).down != 0) == layers[layer].moe;
    if (fits)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: made for a model with other layers or experts than this one's %" PRIu32
                    " and %" PRIu32 "; make a map for this one with moe-calibrate",
                    map->name, n_layers, n_experts);
}

int convert_check_map_source(const struct converter *c, uint64_t source_fingerprint,
                             struct moe_err *err)
{
    const struct moe_expert_map *map = c->options->map;
    if (!map || map->source_fingerprint == source_fingerprint)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_FORMAT,
                    "%s: made for another model (source %016" PRIx64 ", this one's is %016" PRIx64
                    "); make a map for this one with moe-calibrate",
                    map->name, map->source_fingerprint, source_fingerprint);
}

/* ---- Maps for several tolerances ---- */

/* The number of the pack's variant that the map's is; MOE_PACK_NO_VARIANT: it has none of that
 * name. */
static uint8_t variant_of(const struct moe_pack *pack, const char *name)
{
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++)
        if (strcmp(moe_pack_variant_at(pack, v)->name, name) == 0)
            return (uint8_t)v;
    return MOE_PACK_NO_VARIANT;
}

static int check_one_of_several(const struct moe_map_file *f, const struct moe_map *first,
                                const struct moe_pack *pack, struct moe_err *err)
{
    const struct moe_map *map = f->map;
    char dense[MOE_WIDTH_BYTES];
    if (!map->choice.there)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: has importances but no choice of variants; choose first "
                        "(moe-calibrate --tolerance)",
                        f->path);
    if (map->source_fingerprint != moe_pack_source_fingerprint(pack) ||
        map->n_experts != moe_pack_n_experts(pack) ||
        map->model_layer[map->n_layers - 1] >= moe_pack_n_layers(pack))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: a map of another model than %s", f->path,
                        moe_pack_path(pack));
    if (map->choice.dense_bits != map->pack_dense_bits)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: gives the dense part %s%s, which is there only once for several maps "
                        "(moe-calibrate without --dense)",
                        f->path, moe_format_width((int)map->choice.dense_bits, dense),
                        moe_bits_unit(dense));
    if (map->metric != first->metric || map->judge != first->judge)
        return moe_fail(err, MOE_ERR_USAGE, "%s: its tolerance is in another unit than the others'",
                        f->path);
    return MOE_OK;
}

static int compare_maps(const void *a, const void *b)
{
    const struct moe_pack_map *x = a, *y = b;
    return (x->tolerance > y->tolerance) - (x->tolerance < y->tolerance);
}

/* Fills a map's variants, which are MOE_PACK_NO_VARIANT. */
static int translate(uint8_t *to, const struct moe_map_file *f, const struct moe_pack *pack,
                     struct moe_err *err)
{
    const struct moe_map *map = f->map;
    for (uint32_t layer = 0; layer < map->n_layers; layer++)
        for (uint32_t e = 0; e < map->n_experts; e++) {
            const char *name =
                map->variants[map->choice.variant[(uint64_t)layer * map->n_experts + e]];
            const uint8_t v = variant_of(pack, name);
            if (v == MOE_PACK_NO_VARIANT ||
                !moe_pack_expert(pack, map->model_layer[layer], e, v)->present)
                return moe_fail(err, MOE_ERR_FORMAT,
                                "%s: chooses the variant '%s' for layer %" PRIu32 " expert %" PRIu32
                                ", which %s does not have",
                                f->path, name, map->model_layer[layer], e, moe_pack_path(pack));
            to[(uint64_t)map->model_layer[layer] * map->n_experts + e] = v;
        }
    return MOE_OK;
}

int convert_maps(struct moe_buf *out, const struct moe_map_file *maps, uint32_t n,
                 const struct moe_pack *pack, struct moe_err *err)
{
    struct moe_pack_map made[MOE_PACK_MAX_MAPS];
    const uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack);
    const uint64_t each = (uint64_t)n_layers * n_experts;
    if (n > MOE_PACK_MAX_MAPS)
        return moe_fail(err, MOE_ERR_USAGE, "%" PRIu32 " maps; a pack has at most %d", n,
                        MOE_PACK_MAX_MAPS);
    uint8_t *variants = moe_alloc(n, each, err);
    int status;
    MOE_STEP(variants ? MOE_OK : MOE_ERR_MEMORY);
    memset(variants, MOE_PACK_NO_VARIANT, n * each);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_map *map = maps[i].map;
        MOE_STEP(check_one_of_several(&maps[i], maps[0].map, pack, err));
        for (uint32_t j = 0; j < i; j++)
            if (maps[j].map->tolerance == map->tolerance)
                MOE_STEP(moe_fail(err, MOE_ERR_USAGE, "%s: is for a tolerance of %g, as %s is",
                                  maps[i].path, map->tolerance, maps[j].path));
        MOE_STEP(translate(variants + i * each, &maps[i], pack, err));
        made[i] = (struct moe_pack_map){.tolerance = map->tolerance,
                                        .loss = moe_map_loss(map, &map->choice.loss),
                                        .points = map->judge != MOE_JUDGE_NATS ||
                                                  map->metric != MOE_METRIC_NLL,
                                        .checked = map->choice.check.tokens > 0,
                                        .check = moe_map_loss(map, &map->choice.check),
                                        .variants = variants + i * each};
    }
    qsort(made, n, sizeof made[0], compare_maps);
    moe_pack_put_maps(out, made, n, n_layers, n_experts);
out:
    free(variants);
    return status;
}

/* ---- Bits that a map asks for ---- */

/* The bits of the variants that the map's choice uses. */
static int parse_variants(const struct moe_map *map, const char *path,
                          struct moe_bits bits[MOE_MAX_VARIANTS], struct moe_err *err)
{
    for (uint64_t i = 0; i < (uint64_t)map->n_layers * map->n_experts; i++) {
        uint8_t variant = map->choice.variant[i];
        if (variant >= map->n_variants)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: its choice names a variant that it does not list", path);
        if (bits[variant].down == 0 && !moe_parse_bits(map->variants[variant], &bits[variant]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: chooses the variant '%s', which is neither a bitwidth nor a type; "
                            "calibrate a pack with variants like 8,4,2",
                            path, map->variants[variant]);
    }
    return MOE_OK;
}

int moe_map_bits(struct moe_expert_map *out, const struct moe_map *map, const char *path,
                 struct moe_err *err)
{
    struct moe_bits bits[MOE_MAX_VARIANTS] = {{0}};
    *out = (struct moe_expert_map){.name = path,
                                   .source_fingerprint = map->source_fingerprint,
                                   .pack_fingerprint = map->pack_fingerprint,
                                   .n_experts = map->n_experts};
    if (!map->choice.there)
        return moe_fail(
            err, MOE_ERR_FORMAT,
            "%s: has importances but no choice of variants; choose first (moe-calibrate "
            "--tolerance)",
            path);
    MOE_TRY(parse_variants(map, path, bits, err));
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
