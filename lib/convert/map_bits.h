/*
 * A map's choice as moe-quantize takes it: bits instead of the variants of the pack that was
 * calibrated.
 */
#ifndef MOE_CONVERT_MAP_BITS_H
#define MOE_CONVERT_MAP_BITS_H

#include "base/err.h"
#include "convert/convert.h"
#include "record/map.h"

/* path: of the map's file, kept in out->name. free() out->bits, also after a failure.
 * MOE_ERR_FORMAT: nothing was chosen, or a chosen variant's name is no bitwidth. */
int moe_map_bits(struct moe_expert_map *out, const struct moe_map *map, const char *path,
                 struct moe_err *err);

#endif
