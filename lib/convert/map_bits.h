/*
 * A map's choice as a conversion takes it: bits instead of variants of the calibrated pack.
 */
#ifndef MOE_CONVERT_MAP_BITS_H
#define MOE_CONVERT_MAP_BITS_H

#include "base/err.h"
#include "convert/convert.h"
#include "record/map.h"

/* path: of the map's file, kept in out->name. free() out->bits, also after a failure.
 * MOE_ERR_FORMAT: the map has no choice, or the name of a chosen variant is no bitwidth. */
int moe_map_bits(struct moe_expert_map *out, const struct moe_map *map, const char *path,
                 struct moe_err *err);

#endif
