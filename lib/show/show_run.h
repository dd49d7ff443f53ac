/* Statistics of a run (experts/run_stats.h): for scripts, for a person, and in one line. */
#ifndef MOE_SHOW_SHOW_RUN_H
#define MOE_SHOW_SHOW_RUN_H

#include "base/buf.h"
#include "experts/run_stats.h"
#include "model/sampling.h"

/* One JSON object with the keys of moe-run-stats(5); totals over both phases, and
 * "prefill"/"decode" objects. */
void moe_show_run_json(const struct moe_stats *stats, struct moe_buf *out);
/* The same for a person, a few lines. */
void moe_show_run(const struct moe_stats *stats, struct moe_buf *out);
/* "temperature 0.5 (asked for), top-p 0.9 (the model's), top-k 40, min-p 0.05 (defaults)", without
 * what has no effect. */
void moe_show_sampling(const struct moe_sampler_options *asked,
                       const struct moe_sampler_options *model, struct moe_buf *out);
/* What matters most, in one line without its newline, for below an answer: tokens/s and the time to
 * the first token; where anything was read, the hit rate and bytes per token; whether results were
 * changed. What does not fit `width` columns is left out from the end. */
void moe_show_run_line(const struct moe_stats *stats, int width, struct moe_buf *out);

#endif
