#include "experts/run_stats.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct moe_phase_stats moe_stats_all(const struct moe_stats *stats)
{
    struct moe_phase_stats all = stats->encode;
    moe_phase_stats_add(&all, &stats->prefill);
    moe_phase_stats_add(&all, &stats->decode);
    return all;
}

void moe_stats_add(struct moe_stats *sum, const struct moe_stats *part)
{
    struct moe_stats s = *part;
    s.encode = sum->encode;
    s.prefill = sum->prefill;
    s.decode = sum->decode;
    moe_phase_stats_add(&s.encode, &part->encode);
    moe_phase_stats_add(&s.prefill, &part->prefill);
    moe_phase_stats_add(&s.decode, &part->decode);
    s.prompt_tokens += sum->prompt_tokens;
    s.generated_tokens += sum->generated_tokens;
    s.resident_expert_bytes_max =
        larger(sum->resident_expert_bytes_max, part->resident_expert_bytes_max);
    s.peak_rss_bytes = larger(sum->peak_rss_bytes, part->peak_rss_bytes);
    *sum = s;
}

/* ---- Exactness ---- */

/* Experts that a host computed, the others having been computed by a GPU. */
static uint64_t by_another_device(const struct moe_stats *s)
{
    bool on_gpu = strcmp(s->device, "cuda") == 0;
    return on_gpu ? moe_stats_all(s).experts.host_computed : 0;
}

bool moe_stats_exact(const struct moe_stats *s)
{
    const struct moe_phase_stats all = moe_stats_all(s);
    return !moe_counts_changed(&all.experts) && by_another_device(s) == 0 && s->bf16_rows == 0;
}

int moe_stats_check_exact(const struct moe_stats *s, struct moe_err *err)
{
    const struct moe_phase_stats all = moe_stats_all(s);
    const struct moe_counts *n = &all.experts;
    const struct {
        uint64_t count;
        const char *what;
    } changes[] = {
        {n->low_precision, "at low precision"},
        {n->skipped, "left out"},
        {n->precalculated, "from an earlier state"},
        {n->substituted, "not the router's choice"},
        {by_another_device(s), "on the host beside a GPU"},
    };
    char list[256] = "";
    size_t at = 0;
    if (moe_stats_exact(s))
        return MOE_OK;
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++)
        if (changes[i].count)
            at += (size_t)snprintf(list + at, sizeof list - at, ", %" PRIu64 " %s",
                                   changes[i].count, changes[i].what);
    if (s->bf16_rows)
        snprintf(list + at, sizeof list - at, "; %" PRIu64 " rows in bf16", s->bf16_rows);
    return moe_fail(err, MOE_ERR_LIMIT, "option --exact did not hold: of %" PRIu64 " activations%s",
                    n->activations, at ? list + 1 : list);
}
