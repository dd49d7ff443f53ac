/* moe-run's --stats and --stats-json, and what --exact promised. */
#include "run_report.h"

#include <stdio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "cli.h"
#include "run_options.h"
#include "show/show.h"

int run_report(const struct moe_engine *engine, struct moe_stats *stats,
               const struct moe_timeline *timeline, struct moe_err *err)
{
    struct moe_buf text = {0}, json = {0};
    int status = MOE_OK;
    moe_engine_finish_stats(engine, stats);
    if (!opt.bench && !opt.perplexity && !opt.encode && !opt.show_prompt && !opt.beams.n) {
        stats->asked = &opt.sampling;
        stats->published = &engine->model->sampling;
    }
    if (opt.stats) {
        moe_show_run(stats, &text);
        moe_budget_write_text(&engine->budget, &text);
    }
    if (opt.stats_json)
        moe_show_run_json(stats, &json);
    cli_fit(STDERR_FILENO, &text);
    if (text.failed || json.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the statistics");
    else if (opt.stats)
        fputs((const char *)text.data, stderr);
    if (status == MOE_OK)
        status = cli_flush(err); /* "-" comes after the answer */
    if (status == MOE_OK && opt.stats_json)
        status = moe_file_write_all(opt.stats_json, json.data, json.size, err);
    if (status == MOE_OK && opt.trace_events)
        status = moe_timeline_save(timeline, opt.trace_events, err);
    moe_buf_release(&text);
    moe_buf_release(&json);
    return status;
}

int run_check_exact(const struct moe_engine *engine, struct moe_stats *stats, int status,
                    struct moe_err *err)
{
    struct moe_err inexact;
    if (status == MOE_ERR_INTERRUPTED && engine)
        moe_engine_finish_stats(engine, stats);
    else if (status != MOE_OK)
        return status;
    int got = moe_stats_check_exact(stats, &inexact);
    if (got == MOE_OK)
        return status;
    *err = inexact;
    return got;
}
