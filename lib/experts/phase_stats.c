#include "experts/phase_stats.h"

struct moe_components moe_phase_components(const struct moe_phase_stats *p)
{
    return moe_components_of(p->seconds, p->handling_seconds, p->stall_seconds, p->host_seconds);
}

static void add_counts(struct moe_counts *sum, const struct moe_counts *c)
{
    sum->activations += c->activations;
    sum->cache_hits += c->cache_hits;
    sum->prefetch_hits += c->prefetch_hits;
    sum->prefetch_late += c->prefetch_late;
    sum->misses += c->misses;
    sum->host_computed += c->host_computed;
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
    sum->predict_seconds += p->predict_seconds;
}
