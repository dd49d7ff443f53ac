/* moe-profile --show: statistics for a person. */
#ifndef CMD_PROFILE_SHOW_H
#define CMD_PROFILE_SHOW_H

#include "base/buf.h"
#include "base/err.h"
#include "record/statistics.h"

/* Tables, a heat map and bars; `drawing`: block characters and no plain digits for the map. */
int profile_show_text(const struct moe_statistics *s, bool drawing, struct moe_buf *out,
                      struct moe_err *err);
/* All figures as one JSON object. */
int profile_show_json(const struct moe_statistics *s, struct moe_buf *out, struct moe_err *err);

#endif
