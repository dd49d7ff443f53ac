/* Statistics of a run (experts/run_stats.h): for scripts, for a person, and in one line. */
#ifndef MOE_SHOW_SHOW_RUN_H
#define MOE_SHOW_SHOW_RUN_H

#include "base/buf.h"
#include "experts/run_stats.h"

/* One JSON object with the keys of moe-run-stats(5); totals over both phases, and
 * "prefill"/"decode" objects. */
void moe_show_run_json(const struct moe_stats *stats, struct moe_buf *out);
/* The same for a person, a few lines. */
void moe_show_run(const struct moe_stats *stats, struct moe_buf *out);
/* The same in one line without its newline, for below an answer: tokens/s, time to first token, hit
 * rate, bytes read per token, expert bytes in memory, strategy, whether it was exact as done. */
void moe_show_run_line(const struct moe_stats *stats, struct moe_buf *out);

#endif
