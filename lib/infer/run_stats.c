/* What a run counted. */
#include "infer/run_stats.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

struct moe_components moe_phase_components(const struct moe_phase_stats *p)
{
    return moe_components_of(p->seconds, p->handling_seconds, p->stall_seconds,
                             p->host_seconds + p->ranks_seconds);
}

double moe_phase_displaced(const struct moe_phase_stats *p)
{
    if (p->processor_seconds <= 0)
        return 0;
    return fmax(0, p->seconds - p->stall_seconds - p->host_seconds - p->ranks_seconds -
                       p->processor_seconds);
}

static void add_counts(struct moe_counts *sum, const struct moe_counts *c)
{
    sum->activations += c->activations;
    sum->cache_hits += c->cache_hits;
    sum->prefetch_hits += c->prefetch_hits;
    sum->prefetch_late += c->prefetch_late;
    sum->misses += c->misses;
    sum->host_computed += c->host_computed;
    sum->elsewhere += c->elsewhere;
    sum->precalculated += c->precalculated;
    sum->skipped += c->skipped;
    sum->low_precision += c->low_precision;
    sum->substituted += c->substituted;
    sum->predicted += c->predicted;
    sum->predicted_right += c->predicted_right;
    sum->prefetches += c->prefetches;
    sum->prefetches_used += c->prefetches_used;
    sum->known += c->known;
    sum->known_prefetches += c->known_prefetches;
    sum->loads += c->loads;
    sum->evictions += c->evictions;
    sum->lent += c->lent;
    sum->prefetch_wasted_bytes += c->prefetch_wasted_bytes;
}

void moe_phase_stats_add(struct moe_phase_stats *sum, const struct moe_phase_stats *p)
{
    sum->tokens += p->tokens;
    sum->seconds += p->seconds;
    sum->joules += p->joules;
    add_counts(&sum->experts, &p->experts);
    sum->over_capacity += p->over_capacity;
    sum->bytes_read += p->bytes_read;
    sum->bytes_uploaded += p->bytes_uploaded;
    sum->host_hits += p->host_hits;
    sum->disk_loads += p->disk_loads;
    sum->read_seconds += p->read_seconds;
    sum->handling_seconds += p->handling_seconds;
    sum->stall_seconds += p->stall_seconds;
    sum->stall_bytes += p->stall_bytes;
    sum->host_seconds += p->host_seconds;
    sum->ranks_seconds += p->ranks_seconds;
    sum->predict_seconds += p->predict_seconds;
    sum->processor_seconds += p->processor_seconds;
}

/* ---- The whole run ---- */

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
    s.answers += sum->answers;
    s.prompt_tokens += sum->prompt_tokens;
    s.generated_tokens += sum->generated_tokens;
    s.loaded_tokens += sum->loaded_tokens;
    s.context_shifts += sum->context_shifts;
    s.dropped_tokens += sum->dropped_tokens;
    s.drafted_tokens += sum->drafted_tokens;
    s.accepted_tokens += sum->accepted_tokens;
    s.stopped_drafts += sum->stopped_drafts;
    s.grammar_tokens += sum->grammar_tokens;
    s.grammar_masks += sum->grammar_masks;
    s.grammar_seconds += sum->grammar_seconds;
    s.grammar_wait_seconds += sum->grammar_wait_seconds;
    s.resident_expert_bytes_max =
        moe_larger(sum->resident_expert_bytes_max, part->resident_expert_bytes_max);
    s.kv_blocks_max = (uint32_t)moe_larger(sum->kv_blocks_max, part->kv_blocks_max);
    s.peak_rss_bytes = moe_larger(sum->peak_rss_bytes, part->peak_rss_bytes);
    *sum = s;
}

/* ---- Exactness ---- */

struct moe_changes moe_stats_changes(const struct moe_stats *s)
{
    const struct moe_phase_stats all = moe_stats_all(s);
    struct moe_changes changes = {
        .of[MOE_CHANGE_BF16_ROWS] = s->bf16_rows,
        .of[MOE_CHANGE_KV_ROWS] = moe_kv_is_inexact(s->settings.kv) ? all.tokens : 0,
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
