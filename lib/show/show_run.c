#include "show/show_run.h"

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
    return ratio((double)(p->experts.cache_hits + p->experts.prefetch_hits),
                 (double)p->experts.activations);
}

static struct moe_phase_stats both_phases(const struct moe_stats *stats)
{
    struct moe_phase_stats all = stats->prefill;
    moe_phase_stats_add(&all, &stats->decode);
    return all;
}

/* ---- JSON ---- */

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
        {"expert_activations", p->experts.activations},
        {"cache_hits", p->experts.cache_hits},
        {"prefetch_hits", p->experts.prefetch_hits},
        {"prefetch_late", p->experts.prefetch_late},
        {"misses", p->experts.misses},
        {"host_computed", p->experts.host_computed},
        {"precalculated", p->experts.precalculated},
        {"skipped", p->experts.skipped},
        {"low_precision", p->experts.low_precision},
        {"substituted", p->experts.substituted},
        {"predicted", p->experts.predicted},
        {"predicted_right", p->experts.predicted_right},
        {"prefetches", p->experts.prefetches},
        {"prefetches_used", p->experts.prefetches_used},
        {"loads", p->experts.loads},
        {"evictions", p->experts.evictions},
        {"bytes_read", p->bytes_read},
        {"bytes_uploaded", p->bytes_uploaded},
        {"host_hits", p->host_hits},
        {"disk_loads", p->disk_loads},
        {"prefetch_wasted_bytes", p->experts.prefetch_wasted_bytes},
    };
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
        moe_buf_printf(out, "%s\"%s\": %" PRIu64 ",\n", indent, counts[i].name, counts[i].value);
    moe_buf_printf(out, "%s\"hit_rate\": %.6f,\n", indent, hit_rate(p));
    moe_buf_printf(out, "%s\"prefetch_accuracy\": %.6f,\n", indent,
                   ratio((double)p->experts.predicted_right, (double)p->experts.activations));
    moe_buf_printf(out, "%s\"read_s\": %.6f,\n", indent, p->read_seconds);
    moe_buf_printf(out, "%s\"stall_s\": %.6f,\n", indent, p->stall_seconds);
    moe_buf_printf(out, "%s\"stall_bytes\": %.0f,\n", indent, p->stall_bytes);
    moe_buf_printf(out, "%s\"host_wait_s\": %.6f,\n", indent, p->host_seconds);
    moe_buf_printf(out, "%s\"predict_s\": %.6f,\n", indent, p->predict_seconds);
    moe_buf_printf(out, "%s\"compute_s\": %.6f", indent,
                   p->seconds - p->stall_seconds - p->host_seconds);
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

void moe_show_run_json(const struct moe_stats *stats, struct moe_buf *out)
{
    struct moe_phase_stats all = both_phases(stats);
    moe_buf_text(out, "{\n");
    write_name(out, "strategy", stats->strategy);
    write_name(out, "cache", stats->cache);
    write_name(out, "alloc", stats->alloc);
    write_name(out, "parts", stats->parts);
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
    moe_buf_printf(out, "  \"gpu_memory_bytes\": %" PRIu64 ",\n", stats->gpu_memory_bytes);
    moe_buf_printf(out, "  \"gpu_memory_budget_bytes\": %" PRIu64 ",\n",
                   stats->gpu_memory_budget_bytes);
    moe_buf_printf(out, "  \"bf16_rows\": %" PRIu64 ",\n", stats->bf16_rows);
    if (stats->predict_on[0]) {
        write_name(out, "predict_on", stats->predict_on);
        moe_buf_printf(out, "  \"predict_gpu_us\": %.3f,\n", 1e6 * stats->predict_gpu_seconds);
        moe_buf_printf(out, "  \"predict_host_us\": %.3f,\n", 1e6 * stats->predict_host_seconds);
    }
    write_phase(out, "prefill", &stats->prefill);
    moe_buf_text(out, ",\n");
    write_phase(out, "decode", &stats->decode);
    moe_buf_text(out, "\n}\n");
}

/* ---- For people ---- */

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

/* What was guessed, and whatever may have changed results: a line each, where there is something.
 */
static void write_notes(struct moe_buf *out, const struct moe_counts *n)
{
    if (n->predicted)
        moe_buf_printf(out,
                       "ahead    %.1f%% of %" PRIu64 " activations foretold, %" PRIu64
                       " loads begun ahead, %" PRIu64 " of them of use\n",
                       100 * ratio((double)n->predicted_right, (double)n->predicted), n->predicted,
                       n->prefetches, n->prefetches_used);
    if (n->host_computed + n->precalculated)
        moe_buf_printf(out,
                       "host     %" PRIu64 " activations computed there, %" PRIu64
                       " of them a layer early\n",
                       n->host_computed + n->precalculated, n->precalculated);
    if (n->low_precision + n->skipped + n->precalculated + n->substituted)
        moe_buf_printf(out,
                       "changed  %" PRIu64 " at low precision, %" PRIu64 " left out, %" PRIu64
                       " from an earlier state, %" PRIu64 " not the router's choice\n",
                       n->low_precision, n->skipped, n->precalculated, n->substituted);
}

void moe_show_run(const struct moe_stats *stats, struct moe_buf *out)
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
        all.experts.activations, 100 * hit_rate(&all), all.experts.loads,
        moe_format_bytes(all.bytes_read, a),
        moe_format_bytes(
            (uint64_t)ratio((double)stats->decode.bytes_read, (double)stats->decode.tokens), b),
        all.stall_seconds);
    if (all.bytes_uploaded)
        moe_buf_printf(out,
                       "uploads  %s to the GPU, %" PRIu64 " loads from host memory, %" PRIu64
                       " from disk\n",
                       moe_format_bytes(all.bytes_uploaded, a), all.host_hits, all.disk_loads);
    write_notes(out, &all.experts);
    moe_buf_printf(out, "memory   %s of experts, peak %s of the process\n",
                   moe_format_bytes(stats->resident_expert_bytes_max, a),
                   moe_format_bytes(stats->peak_rss_bytes, b));
    if (stats->gpu_memory_budget_bytes)
        moe_buf_printf(out, "GPU      %s of its memory, %s allowed\n",
                       moe_format_bytes(stats->gpu_memory_bytes, a),
                       moe_format_bytes(stats->gpu_memory_budget_bytes, b));
    if (stats->predict_on[0])
        moe_buf_printf(out,
                       "predict  on the %s; for one row %.1f us on the GPU, %.1f us on the host\n",
                       strcmp(stats->predict_on, "gpu") == 0 ? "GPU" : "host",
                       1e6 * stats->predict_gpu_seconds, 1e6 * stats->predict_host_seconds);
    if (stats->bf16_rows)
        moe_buf_printf(out, "bf16     %" PRIu64 " inputs of products (--bf16-prompts)\n",
                       stats->bf16_rows);
}

void moe_show_run_line(const struct moe_stats *stats, struct moe_buf *out)
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
