#include "experts/run_stats.h"

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
    s.loaded_tokens += sum->loaded_tokens;
    s.context_shifts += sum->context_shifts;
    s.dropped_tokens += sum->dropped_tokens;
    s.drafted_tokens += sum->drafted_tokens;
    s.accepted_tokens += sum->accepted_tokens;
    s.grammar_tokens += sum->grammar_tokens;
    s.grammar_masks += sum->grammar_masks;
    s.grammar_seconds += sum->grammar_seconds;
    s.grammar_wait_seconds += sum->grammar_wait_seconds;
    s.resident_expert_bytes_max =
        larger(sum->resident_expert_bytes_max, part->resident_expert_bytes_max);
    s.peak_rss_bytes = larger(sum->peak_rss_bytes, part->peak_rss_bytes);
    *sum = s;
}

/* ---- Exactness ---- */

struct moe_changes moe_stats_changes(const struct moe_stats *s)
{
    const struct moe_phase_stats all = moe_stats_all(s);
    bool as_f32 = s->kv[0] == 0 || strcmp(s->kv, "f32") == 0;
    struct moe_changes changes = {
        .of[MOE_CHANGE_BF16_ROWS] = s->bf16_rows,
        .of[MOE_CHANGE_KV_ROWS] = as_f32 ? 0 : all.tokens,
    };
    moe_changes_add_counts(&changes, &all.experts, strcmp(s->device, "cuda") == 0);
    return changes;
}

bool moe_stats_exact(const struct moe_stats *s)
{
    struct moe_changes changes = moe_stats_changes(s);
    return moe_changes_none(&changes) && !s->followed[0];
}

int moe_stats_check_exact(const struct moe_stats *s, struct moe_err *err)
{
    struct moe_changes changes = moe_stats_changes(s);
    return moe_changes_check(&changes, err);
}
