/* moe-calibrate --show: a bit map for a person. */
#ifndef CMD_CALIBRATE_SHOW_H
#define CMD_CALIBRATE_SHOW_H

#include <stdbool.h>

#include "base/buf.h"
#include "record/map.h"

/* What was measured, what was chosen, and what that costs. drawing: with block characters. */
void calibrate_show_text(const struct moe_map *map, bool drawing, struct moe_buf *out);

/* "per-expert bits: 11.2 MB instead of 13.8 MB, +1.93% (standard error 0.08%)", one line without
 * its newline. */
void calibrate_show_line(const struct moe_map *map, struct moe_buf *out);

#endif
