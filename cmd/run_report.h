/* What moe-run says of a run when it is over: its statistics, and whether it was exact. */
#ifndef CMD_RUN_REPORT_H
#define CMD_RUN_REPORT_H

#include "base/err.h"
#include "engine/engine.h"
#include "fmt/timeline.h"

/* Completes the statistics, and prints and writes what --stats, --stats-json and --trace-events ask
 * for. */
int run_report(const struct moe_engine *engine, struct moe_stats *stats,
               const struct moe_timeline *timeline, struct moe_err *err);
/* For --exact, of a run that ended with `status`: whatever the engine promised, what was done
 * counts, also in a run that Ctrl-C has ended. engine NULL: none was opened. Returns `status`, or
 * MOE_ERR_LIMIT. */
int run_check_exact(const struct moe_engine *engine, struct moe_stats *stats, int status,
                    struct moe_err *err);

#endif
