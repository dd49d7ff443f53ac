#include "show/explain_coe.h"

#include <inttypes.h>
#include <stddef.h>

#include "base/text.h"
#include "coe/schedule.h"
#include "show/draw.h"

static void put_executors(const struct moe_coe_plan *plan, struct moe_buf *out)
{
    char experts[32], batches[32];
    bool teams = false;
    for (uint32_t i = 0; i < plan->n_executors; i++)
        teams = teams || plan->executors[i].threads;
    moe_buf_printf(out, "\nExecutors          for experts   for batches   experts in all%s\n",
                   teams ? "   threads" : "");
    for (uint32_t i = 0; i < plan->n_executors; i++) {
        const struct moe_coe_plan_executors *e = &plan->executors[i];
        moe_buf_printf(out, "  %2" PRIu32 " on %-10s %12s  %12s   %14" PRIu32, e->number, e->device,
                       moe_format_bytes(e->expert_bytes, experts),
                       moe_format_bytes(e->batch_bytes, batches), e->experts);
        if (e->threads)
            moe_buf_printf(out, "   %7" PRIu32, e->threads);
        moe_buf_text(out, "\n");
    }
    if (plan->host_bytes)
        moe_buf_printf(out, "  above the disk   %12s\n",
                       moe_format_bytes(plan->host_bytes, experts));
    if (plan->n_batches)
        moe_buf_text(out, "\nLargest batches\n");
    for (uint32_t i = 0; i < plan->n_batches; i++)
        moe_buf_printf(out, "  %-24s on %-6s %6" PRIu32 "\n", plan->batches[i].architecture,
                       plan->batches[i].device, plan->batches[i].requests);
}

static void put_ways(const struct moe_coe_plan *plan, struct moe_screen screen, struct moe_buf *out)
{
    static const char *const leaves[] = {
        [MOE_COE_LRU] = "the one that was not used for the longest time",
        [MOE_COE_FIFO] = "the one that was loaded first",
        [MOE_COE_TWO_STAGE] = "first those that only follow others which are not in memory, the "
                              "largest first, then the least probable"};
    const struct moe_coe_schedule *s = moe_coe_schedule_find(plan->schedule);
    enum moe_coe_evict evict = MOE_COE_LRU;
    moe_coe_evict_find(plan->evict, &evict);
    moe_buf_text(out, "\n");
    moe_draw_paragraph(out, screen, NULL, 0,
                       "Requests go %s (%s). Where an expert needs room, %s leaves "
                       "(%s).%s",
                       s ? s->what : "?", plan->schedule, leaves[evict], plan->evict,
                       plan->prefetch ? " The next expert loads while the present one computes."
                                      : "");
}

static void put_trials(const struct moe_coe_plan *plan, struct moe_screen screen,
                       struct moe_buf *out)
{
    double most = 0;
    if (plan->n_trials)
        moe_buf_text(out, "\nExecutors tried         results/s\n");
    for (uint32_t i = 0; i < plan->n_trials; i++)
        most = plan->trials[i].throughput > most ? plan->trials[i].throughput : most;
    for (uint32_t i = 0; i < plan->n_trials; i++) {
        const struct moe_coe_plan_trial *t = &plan->trials[i];
        moe_buf_printf(out, "  %2" PRIu32 " cuda, %2" PRIu32 " cpu  %14.4g  ", t->cuda, t->cpu,
                       t->throughput);
        moe_draw_bar(out, most > 0 ? t->throughput / most : 0, moe_draw_columns(screen, 30, 60),
                     screen);
        moe_buf_text(out, "\n");
    }
    if (plan->n_points)
        moe_buf_text(out, "\nExperts in memory       results/s\n");
    most = 0;
    for (uint32_t i = 0; i < plan->n_points; i++)
        most = plan->points[i].throughput > most ? plan->points[i].throughput : most;
    for (uint32_t i = 0; i < plan->n_points; i++) {
        const struct moe_coe_plan_point *p = &plan->points[i];
        moe_buf_printf(out, "  %15" PRIu32 "  %14.4g  ", p->experts, p->throughput);
        moe_draw_bar(out, most > 0 ? p->throughput / most : 0, moe_draw_columns(screen, 30, 60),
                     screen);
        moe_buf_text(out, "\n");
    }
}

void moe_explain_coe_plan(const struct moe_coe_plan *plan, struct moe_screen screen,
                          struct moe_buf *out)
{
    char memory[32];
    moe_draw_paragraph(out, screen, NULL, 0, "Plan for %s on %s, in %s",
                       plan->collection[0] ? plan->collection : "a collection",
                       plan->machine[0] ? plan->machine : "a machine",
                       moe_format_bytes(plan->memory_bytes, memory));
    put_executors(plan, out);
    put_ways(plan, screen, out);
    if (plan->n_reasons)
        moe_buf_text(out, "\nWhy\n");
    for (uint32_t i = 0; i < plan->n_reasons; i++)
        moe_draw_paragraph(out, screen, NULL, 2, "%s: %s.", plan->reasons[i].about,
                           plan->reasons[i].text);
    put_trials(plan, screen, out);
    if (plan->throughput > 0)
        moe_buf_printf(out, "\nExpected of the sample: %.4g results/s, %" PRIu64 " switches.\n",
                       plan->throughput, plan->switches);
}
