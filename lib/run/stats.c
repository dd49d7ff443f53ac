#include "run/stats.h"

#include <inttypes.h>
#include <string.h>

#include "base/text.h"

/* 0 where nothing was counted: a script then needs no special case. */
static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static double hit_rate(const struct moe_phase_stats *p)
{
    return ratio((double)(p->cache_hits + p->prefetch_hits), (double)p->expert_activations);
}

static void add_phase(struct moe_phase_stats *sum, const struct moe_phase_stats *p)
{
    sum->tokens += p->tokens;
    sum->seconds += p->seconds;
    sum->expert_activations += p->expert_activations;
    sum->cache_hits += p->cache_hits;
    sum->prefetch_hits += p->prefetch_hits;
    sum->prefetch_late += p->prefetch_late;
    sum->misses += p->misses;
    sum->host_computed += p->host_computed;
    sum->precalculated += p->precalculated;
    sum->skipped += p->skipped;
    sum->low_precision += p->low_precision;
    sum->substituted += p->substituted;
    sum->predicted += p->predicted;
    sum->predicted_right += p->predicted_right;
    sum->prefetch_wasted_bytes += p->prefetch_wasted_bytes;
    sum->loads += p->loads;
    sum->bytes_read += p->bytes_read;
    sum->evictions += p->evictions;
    sum->read_seconds += p->read_seconds;
    sum->stall_seconds += p->stall_seconds;
    sum->stall_bytes += p->stall_bytes;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void moe_stats_add(struct moe_stats *sum, const struct moe_stats *part)
{
    struct moe_stats s = *part;
    s.prefill = sum->prefill;
    s.decode = sum->decode;
    add_phase(&s.prefill, &part->prefill);
    add_phase(&s.decode, &part->decode);
    s.prompt_tokens += sum->prompt_tokens;
    s.generated_tokens += sum->generated_tokens;
    s.resident_expert_bytes_max =
        larger(sum->resident_expert_bytes_max, part->resident_expert_bytes_max);
    s.peak_rss_bytes = larger(sum->peak_rss_bytes, part->peak_rss_bytes);
    *sum = s;
}

static struct moe_phase_stats both_phases(const struct moe_stats *stats)
{
    struct moe_phase_stats all = stats->prefill;
    add_phase(&all, &stats->decode);
    return all;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Our own names: printable, without quotes or backslashes; anything else would be a '?'. */
static void write_name(struct moe_buf *out, const char *key, const char *name)
{
    moe_buf_printf(out, "  \"%s\": \"", key);
    for (; *name; name++)
        moe_buf_u8(out, *name < ' ' || *name == '"' || *name == '\\' ? '?' : (uint8_t)*name);
    moe_buf_text(out, "\",\n");
}

/* The counts that exist for each phase and for both together. */
static void write_counts(struct moe_buf *out, const struct moe_phase_stats *p, const char *indent)
{
    const struct {
        const char *name;
        uint64_t value;
    } counts[] = {
        {"expert_activations", p->expert_activations},
        {"cache_hits", p->cache_hits},
        {"prefetch_hits", p->prefetch_hits},
        {"prefetch_late", p->prefetch_late},
        {"misses", p->misses},
        {"host_computed", p->host_computed},
        {"precalculated", p->precalculated},
        {"skipped", p->skipped},
        {"low_precision", p->low_precision},
        {"substituted", p->substituted},
        {"loads", p->loads},
        {"evictions", p->evictions},
        {"bytes_read", p->bytes_read},
        {"prefetch_wasted_bytes", p->prefetch_wasted_bytes},
    };
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
        moe_buf_printf(out, "%s\"%s\": %" PRIu64 ",\n", indent, counts[i].name, counts[i].value);
    moe_buf_printf(out, "%s\"hit_rate\": %.6f,\n", indent, hit_rate(p));
    moe_buf_printf(out, "%s\"prefetch_accuracy\": %.6f,\n", indent,
                   ratio((double)p->predicted_right, (double)p->expert_activations));
    moe_buf_printf(out, "%s\"read_s\": %.6f,\n", indent, p->read_seconds);
    moe_buf_printf(out, "%s\"stall_s\": %.6f,\n", indent, p->stall_seconds);
    moe_buf_printf(out, "%s\"stall_bytes\": %.0f,\n", indent, p->stall_bytes);
    moe_buf_printf(out, "%s\"compute_s\": %.6f", indent, p->seconds - p->stall_seconds);
}

static void write_phase(struct moe_buf *out, const char *name, const struct moe_phase_stats *p)
{
    moe_buf_printf(out, "  \"%s\": {\n    \"tokens\": %" PRIu64 ",\n", name, p->tokens);
    moe_buf_printf(out, "    \"seconds\": %.6f,\n", p->seconds);
    moe_buf_printf(out, "    \"tokens_per_s\": %.4f,\n", ratio((double)p->tokens, p->seconds));
    moe_buf_printf(out, "    \"bytes_per_token\": %.1f,\n",
                   ratio((double)p->bytes_read, (double)p->tokens));
    write_counts(out, p, "    ");
    moe_buf_text(out, "\n  }");
}

void moe_stats_write_json(const struct moe_stats *stats, struct moe_buf *out)
{
    struct moe_phase_stats all = both_phases(stats);
    moe_buf_text(out, "{\n");
    write_name(out, "strategy", stats->strategy);
    write_name(out, "cache", stats->cache);
    write_name(out, "alloc", stats->alloc);
    write_name(out, "device", stats->device);
    moe_buf_printf(out, "  \"prompt_tokens\": %" PRIu64 ",\n", stats->prompt_tokens);
    moe_buf_printf(out, "  \"generated_tokens\": %" PRIu64 ",\n", stats->generated_tokens);
    moe_buf_printf(out, "  \"ttft_s\": %.6f,\n", stats->ttft_seconds);
    moe_buf_printf(out, "  \"prefill_tokens_per_s\": %.4f,\n",
                   ratio((double)stats->prefill.tokens, stats->prefill.seconds));
    moe_buf_printf(out, "  \"decode_tokens_per_s\": %.4f,\n",
                   ratio((double)stats->decode.tokens, stats->decode.seconds));
    moe_buf_printf(out, "  \"bytes_per_token\": %.1f,\n",
                   ratio((double)stats->decode.bytes_read, (double)stats->decode.tokens));
    write_counts(out, &all, "  ");
    moe_buf_printf(out, ",\n  \"resident_expert_bytes_max\": %" PRIu64 ",\n",
                   stats->resident_expert_bytes_max);
    moe_buf_printf(out, "  \"peak_rss_bytes\": %" PRIu64 ",\n", stats->peak_rss_bytes);
    moe_buf_printf(out, "  \"memory_budget_bytes\": %" PRIu64 ",\n", stats->memory_budget_bytes);
    write_phase(out, "prefill", &stats->prefill);
    moe_buf_text(out, ",\n");
    write_phase(out, "decode", &stats->decode);
    moe_buf_text(out, "\n}\n");
}

/* ---- For people ------------------------------------------------------------------------------ */

/* "lru (cache arc, per-layer)"; strategies without a cache have nothing in brackets. */
static void write_strategy(struct moe_buf *out, const struct moe_stats *stats)
{
    moe_buf_text(out, stats->strategy);
    if (stats->cache[0] && strcmp(stats->cache, "none") != 0)
        moe_buf_printf(out, " (cache %s, %s)", stats->cache, stats->alloc);
}

static void write_speed(struct moe_buf *out, const char *name, const struct moe_phase_stats *p)
{
    moe_buf_printf(out, "%-8s %6" PRIu64 " tokens in %.3f s: %.1f tokens/s\n", name, p->tokens,
                   p->seconds, ratio((double)p->tokens, p->seconds));
}

void moe_stats_write_text(const struct moe_stats *stats, struct moe_buf *out)
{
    struct moe_phase_stats all = both_phases(stats);
    char a[32], b[32];
    moe_buf_text(out, "strategy ");
    write_strategy(out, stats);
    moe_buf_printf(out, " on %s\n", stats->device);
    write_speed(out, "prefill", &stats->prefill);
    write_speed(out, "decode", &stats->decode);
    moe_buf_printf(
        out, "first token after %.3f s; %" PRIu64 " tokens of prompt, %" PRIu64 " generated\n",
        stats->ttft_seconds, stats->prompt_tokens, stats->generated_tokens);
    moe_buf_printf(
        out,
        "experts  %" PRIu64 " activations, hit rate %.2f%%, %" PRIu64
        " loads, %s read (%s per decoded token), %.3f s stalled\n",
        all.expert_activations, 100 * hit_rate(&all), all.loads,
        moe_format_bytes(all.bytes_read, a),
        moe_format_bytes(
            (uint64_t)ratio((double)stats->decode.bytes_read, (double)stats->decode.tokens), b),
        all.stall_seconds);
    moe_buf_printf(out, "memory   %s of experts, peak %s of the process\n",
                   moe_format_bytes(stats->resident_expert_bytes_max, a),
                   moe_format_bytes(stats->peak_rss_bytes, b));
}

void moe_stats_write_line(const struct moe_stats *stats, struct moe_buf *out)
{
    struct moe_phase_stats all = both_phases(stats);
    char a[32], b[32];
    moe_buf_printf(
        out,
        "%.1f tok/s, first token %.2f s, hit rate %.1f%%, %s/token read, %s of "
        "experts in memory, ",
        ratio((double)stats->decode.tokens, stats->decode.seconds), stats->ttft_seconds,
        100 * hit_rate(&all),
        moe_format_bytes(
            (uint64_t)ratio((double)stats->decode.bytes_read, (double)stats->decode.tokens), a),
        moe_format_bytes(stats->resident_expert_bytes_max, b));
    write_strategy(out, stats);
}
