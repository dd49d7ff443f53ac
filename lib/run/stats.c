#include "run/stats.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void moe_stats_add(struct moe_stats *sum, const struct moe_stats *part)
{
    struct moe_stats s = *part;
    s.prefill = sum->prefill;
    s.decode = sum->decode;
    moe_phase_stats_add(&s.prefill, &part->prefill);
    moe_phase_stats_add(&s.decode, &part->decode);
    s.prompt_tokens += sum->prompt_tokens;
    s.generated_tokens += sum->generated_tokens;
    s.resident_expert_bytes_max =
        larger(sum->resident_expert_bytes_max, part->resident_expert_bytes_max);
    s.peak_rss_bytes = larger(sum->peak_rss_bytes, part->peak_rss_bytes);
    *sum = s;
}
