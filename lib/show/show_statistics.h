/* Routing statistics (moe-stats(5)): tables for a person, JSON for scripts. */
#ifndef MOE_SHOW_SHOW_STATISTICS_H
#define MOE_SHOW_SHOW_STATISTICS_H

#include "base/buf.h"
#include "base/err.h"
#include "record/statistics.h"
#include "show/draw.h"

/* Tables, a heat map and bars. */
int moe_show_statistics(const struct moe_statistics *s, struct moe_screen screen,
                        struct moe_buf *out, struct moe_err *err);
/* All figures as one JSON object. */
int moe_show_statistics_json(const struct moe_statistics *s, struct moe_buf *out,
                             struct moe_err *err);

#endif
