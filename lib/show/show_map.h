/* A bit map (moe-map(5)) for a person. */
#ifndef MOE_SHOW_SHOW_MAP_H
#define MOE_SHOW_SHOW_MAP_H

#include <stdbool.h>

#include "base/buf.h"
#include "record/map.h"
#include "show/draw.h"

/* What was measured, what was chosen, and what that costs. */
void moe_show_map(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out);

/* What does not hold on the checks, a clause each: "on the checks +5.25%, +1.76% on the texts";
 * nothing where all does, or nothing was checked. */
void moe_show_map_unheld(const struct moe_map *map, struct moe_buf *out);

/* "11.20 MiB instead of 13.80 MiB, +1.93% (standard error 0.08)": one line without its newline. */
void moe_show_map_line(const struct moe_map *map, struct moe_buf *out);

#endif
