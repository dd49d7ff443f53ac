/* Statistics of a run: JSON, some lines for a person, one line below an answer. */
#include "show/show.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "ranks/ranks.h"
#include "serve/reply.h"

/* 0 where nothing was counted: a script then needs no special case. */
static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

/* Of the activations that were this process's. */
static double hit_rate(const struct moe_phase_stats *p)
{
    return ratio((double)(p->experts.cache_hits + p->experts.prefetch_hits),
                 (double)(p->experts.activations - p->experts.elsewhere));
}

static double tokens_per_second(const struct moe_phase_stats *p)
{
    return ratio((double)p->tokens, p->seconds);
}

static double bytes_per_token(const struct moe_phase_stats *p)
{
    return ratio((double)p->bytes_read, (double)p->tokens);
}

/* ---- For scripts ---- */

/* The counts that exist for each phase and for both together. */
static void put_counts(struct moe_emit *e, const struct moe_phase_stats *p)
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
        {"lent", p->experts.lent},
        {"bytes_read", p->bytes_read},
        {"bytes_uploaded", p->bytes_uploaded},
        {"host_hits", p->host_hits},
        {"disk_loads", p->disk_loads},
        {"prefetch_wasted_bytes", p->experts.prefetch_wasted_bytes},
    };
    for (unsigned i = 0; i < sizeof counts / sizeof counts[0]; i++)
        moe_emit_u64(e, counts[i].name, counts[i].value);
    if (p->experts.known) {
        moe_emit_u64(e, "known", p->experts.known);
        moe_emit_u64(e, "known_prefetches", p->experts.known_prefetches);
    }
    if (p->experts.elsewhere)
        moe_emit_u64(e, "elsewhere", p->experts.elsewhere);
    moe_emit_fixed(e, "hit_rate", 6, hit_rate(p));
    moe_emit_fixed(e, "prefetch_accuracy", 6,
                   ratio((double)p->experts.predicted_right, (double)p->experts.activations));
    moe_emit_fixed(e, "read_s", 6, p->read_seconds);
    const struct moe_components parts = moe_phase_components(p);
    for (enum moe_component i = 0; i < MOE_N_COMPONENTS; i++)
        moe_emit_fixed(e, moe_component_name(i)->run_key, 6, parts.seconds[i]);
    moe_emit_fixed(e, "stall_bytes", 0, p->stall_bytes);
    moe_emit_fixed(e, "predict_s", 6, p->predict_seconds);
    moe_emit_fixed(e, "displaced_s", 6, moe_phase_displaced(p));
}

static void put_phase(struct moe_emit *e, const char *name, const struct moe_phase_stats *p)
{
    moe_emit_open_map(e, name);
    moe_emit_u64(e, "tokens", p->tokens);
    moe_emit_fixed(e, "seconds", 6, p->seconds);
    moe_emit_fixed(e, "tokens_per_s", 4, tokens_per_second(p));
    moe_emit_fixed(e, "bytes_per_token", 1, bytes_per_token(p));
    put_counts(e, p);
    if (p->over_capacity)
        moe_emit_u64(e, "over_capacity", p->over_capacity);
    moe_emit_close(e);
}

static void put_exactness(struct moe_emit *e, const struct moe_stats *stats)
{
    moe_emit_open_map(e, "exact");
    moe_emit_bool(e, "required", stats->exact_required);
    moe_emit_bool(e, "as_asked", stats->inexact[0] == 0);
    moe_emit_bool(e, "as_done", moe_stats_exact(stats));
    moe_emit_text(e, "why", stats->inexact);
    moe_emit_close(e);
}

static void put_joules(struct moe_emit *e, const char *key, bool known, double joules)
{
    if (known)
        moe_emit_fixed(e, key, 6, joules);
    else
        moe_emit_null(e, key);
}

static void put_energy(struct moe_emit *e, const struct moe_stats *stats)
{
    const struct moe_phase_stats *p = &stats->prefill, *d = &stats->decode;
    bool known = stats->no_energy[0] == 0;
    put_joules(e, "energy_joules", known, moe_stats_all(stats).joules);
    put_joules(e, "prefill_joules_per_token", known && p->tokens,
               ratio(p->joules, (double)p->tokens));
    put_joules(e, "decode_joules_per_token", known && d->tokens,
               ratio(d->joules, (double)d->tokens));
    if (!known)
        moe_emit_text(e, "energy_unavailable", stats->no_energy);
}

static void put_ranks(struct moe_emit *e, const struct moe_stats *stats)
{
    moe_emit_open_list(e, "ranks");
    for (uint32_t i = 0; i < stats->n_ranks; i++) {
        const struct moe_rank_report *r = &stats->ranks[i];
        moe_emit_open_line_map(e, NULL);
        moe_emit_u64(e, "rank", i + 1);
        moe_emit_text(e, "host", r->host);
        moe_emit_u64(e, "experts", r->figures.n_experts);
        moe_emit_u64(e, "attention_layers", r->figures.n_attends);
        moe_emit_u64(e, "layers", r->figures.n_layers);
        moe_emit_u64(e, "kv_bytes", r->figures.kv_bytes);
        moe_emit_u64(e, "expert_activations", r->figures.activations);
        moe_emit_u64(e, "hits", r->figures.hits);
        moe_emit_u64(e, "misses", r->figures.misses);
        moe_emit_u64(e, "loads", r->figures.loads);
        moe_emit_u64(e, "bytes_read", r->figures.bytes_read);
        moe_emit_u64(e, "resident_expert_bytes_max", r->figures.resident_bytes);
        moe_emit_u64(e, "peak_rss_bytes", r->figures.peak_rss_bytes);
        moe_emit_fixed(e, "busy_s", 6, r->figures.busy_seconds);
        moe_emit_fixed(e, "waited_s", 6, r->waited_seconds);
        moe_emit_u64(e, "messages", r->messages);
        moe_emit_u64(e, "bytes_sent", r->bytes_sent);
        moe_emit_u64(e, "bytes_received", r->bytes_received);
        moe_emit_u64(e, "messages_on", r->messages_on);
        moe_emit_u64(e, "bytes_on", r->bytes_on);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

static void put_settings(struct moe_emit *e, const struct moe_run_settings *s)
{
    moe_emit_text(e, "kv", s->kv);
    if (s->kv_blocks) {
        moe_emit_u64(e, "kv_blocks", s->kv_blocks);
        moe_emit_u64(e, "kv_block_tokens", s->kv_block_positions);
    }
    moe_emit_u64(e, "context_tokens", s->context);
    moe_emit_u64(e, "batch_tokens", s->batch);
    moe_emit_u64(e, "threads", s->n_threads);
    if (!s->precision[0])
        return;
    moe_emit_text(e, "expert_precision", s->precision);
    if (s->low_precision[0])
        moe_emit_text(e, "expert_low_precision", s->low_precision);
    if (s->mapped) {
        moe_emit_real(e, "expert_map_tolerance", 6, s->map_tolerance);
        moe_emit_real(e, "expert_map_loss", 6, s->map_loss);
        moe_emit_text(e, "expert_map_unit", s->map_points ? "points" : "percent");
    }
    moe_emit_u64(e, "cache_slots", s->cache_slots);
    moe_emit_u64(e, "working_slots", s->working_slots);
}

void moe_show_run_json(const struct moe_stats *stats, struct moe_buf *out)
{
    struct moe_phase_stats all = moe_stats_all(stats);
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_text(&e, "strategy", stats->strategy);
    if (stats->model) {
        moe_emit_text(&e, "model", stats->model);
        moe_emit_fingerprint(&e, "fingerprint", stats->model_fingerprint);
    }
    moe_emit_text(&e, "cache", stats->cache);
    moe_emit_text(&e, "alloc", stats->alloc);
    if (stats->boundary_from[0])
        moe_emit_text(&e, "boundary_from", stats->boundary_from);
    if (stats->thresholds_from[0])
        moe_emit_text(&e, "thresholds_from", stats->thresholds_from);
    moe_emit_text(&e, "parts", stats->parts);
    if (stats->learnt) {
        moe_emit_text(&e, "learnt", stats->learnt);
        moe_emit_u64(&e, "learnt_tokens", stats->learnt_tokens);
    }
    moe_emit_text(&e, "device", stats->device);
    if (stats->followed[0])
        moe_emit_text(&e, "followed", stats->followed);
    if (stats->in_place)
        moe_emit_bool(&e, "in_place", true);
    if (stats->synthesized)
        moe_emit_bool(&e, "synthesized", true);
    put_exactness(&e, stats);
    if (stats->asked)
        moe_sampling_emit(&e, "sampling", stats->asked, stats->published);
    moe_emit_u64(&e, "answers", stats->answers);
    moe_emit_u64(&e, "prompt_tokens", stats->prompt_tokens);
    moe_emit_u64(&e, "generated_tokens", stats->generated_tokens);
    moe_emit_u64(&e, "loaded_tokens", stats->loaded_tokens);
    moe_emit_u64(&e, "context_shifts", stats->context_shifts);
    moe_emit_u64(&e, "dropped_tokens", stats->dropped_tokens);
    if (stats->drafted_tokens) {
        moe_emit_u64(&e, "drafted_tokens", stats->drafted_tokens);
        moe_emit_u64(&e, "accepted_tokens", stats->accepted_tokens);
        moe_emit_u64(&e, "stopped_drafts", stats->stopped_drafts);
    }
    if (stats->beams) {
        moe_emit_u64(&e, "beams", stats->beams);
        moe_emit_fixed(&e, "score", 6, stats->beam_score);
    }
    if (stats->grammar_tokens) {
        moe_emit_u64(&e, "grammar_tokens", stats->grammar_tokens);
        moe_emit_u64(&e, "grammar_masks", stats->grammar_masks);
        moe_emit_fixed(&e, "grammar_s", 6, stats->grammar_seconds);
        moe_emit_fixed(&e, "grammar_wait_s", 6, stats->grammar_wait_seconds);
    }
    moe_emit_fixed(&e, "ttft_s", 6, stats->ttft_seconds);
    moe_emit_fixed(&e, "prefill_tokens_per_s", 4, tokens_per_second(&stats->prefill));
    moe_emit_fixed(&e, "decode_tokens_per_s", 4, tokens_per_second(&stats->decode));
    moe_emit_fixed(&e, "bytes_per_token", 1, bytes_per_token(&stats->decode));
    put_energy(&e, stats);
    put_counts(&e, &all);
    moe_emit_u64(&e, "resident_expert_bytes_max", stats->resident_expert_bytes_max);
    moe_emit_u64(&e, "peak_rss_bytes", stats->peak_rss_bytes);
    moe_emit_u64(&e, "memory_budget_bytes", stats->memory_budget_bytes);
    moe_emit_u64(&e, "gpu_memory_bytes", stats->gpu_memory_bytes);
    moe_emit_u64(&e, "gpu_memory_budget_bytes", stats->gpu_memory_budget_bytes);
    moe_emit_u64(&e, "unlocked_bytes", stats->unlocked_bytes);
    put_settings(&e, &stats->settings);
    if (stats->settings.kv_blocks)
        moe_emit_u64(&e, "kv_blocks_max", stats->kv_blocks_max);
    if (stats->n_ranks)
        put_ranks(&e, stats);
    moe_emit_u64(&e, "bf16_rows", stats->bf16_rows);
    if (stats->predict_on[0]) {
        moe_emit_text(&e, "predict_on", stats->predict_on);
        moe_emit_fixed(&e, "predict_gpu_us", 3, 1e6 * stats->predict_gpu_seconds);
        moe_emit_fixed(&e, "predict_host_us", 3, 1e6 * stats->predict_host_seconds);
    }
    if (stats->encode.tokens)
        put_phase(&e, "encode", &stats->encode);
    put_phase(&e, "prefill", &stats->prefill);
    put_phase(&e, "decode", &stats->decode);
    moe_emit_end(&e, NULL); /* the caller looks at the buffer */
}

/* ---- For people ---- */

/* "lru (cache arc, per-layer)"; "fate (cache arc, shallow:3 (from statistics))"; without these
 * brackets where there is no cache; "..., thresholds from the scores in statistics". */
static void put_strategy(struct moe_buf *out, const struct moe_stats *stats)
{
    moe_buf_text(out, stats->strategy);
    const char *from = stats->boundary_from;
    if (stats->cache[0] && strcmp(stats->cache, "none") != 0)
        moe_buf_printf(out, " (cache %s, %s%s%s%s)", stats->cache, stats->alloc,
                       from[0] ? " (" : "", from, from[0] ? ")" : "");
    if (stats->thresholds_from[0])
        moe_buf_printf(out, ", thresholds %s", stats->thresholds_from);
}

static void put_speed(struct moe_buf *out, const char *name, const struct moe_phase_stats *p)
{
    moe_buf_printf(out, "%-8s %6" PRIu64 " tokens in %.3f s: %.1f tokens/s\n", name, p->tokens,
                   p->seconds, tokens_per_second(p));
}

/* Whether results are those of every expert in memory: by what was asked for, and by what was
 * done. */
static void say_exactness(struct moe_buf *out, const struct moe_stats *stats)
{
    if (moe_stats_exact(stats) && stats->inexact[0] == 0)
        moe_buf_text(out, "exact    yes: nothing that was asked for may change results\n");
    else if (moe_stats_exact(stats))
        moe_buf_printf(out, "exact    as done: nothing was changed; what may: %s\n",
                       stats->inexact);
    else
        moe_buf_printf(out, "exact    no: %s\n", stats->inexact);
}

/* Predictions, and what may have changed results: a line each, where there is something. */
static void put_notes(struct moe_buf *out, const struct moe_phase_stats *all, bool blocks)
{
    const struct moe_counts *n = &all->experts;
    if (n->predicted)
        moe_buf_printf(out,
                       "prefetch %.1f%% of %" PRIu64 " activations predicted, %" PRIu64
                       " prefetches, %" PRIu64 " of them used\n",
                       100 * ratio((double)n->predicted_right, (double)n->predicted), n->predicted,
                       n->prefetches, n->prefetches_used);
    if (n->lent)
        moe_buf_printf(out, "lent     %" PRIu64 " slots of experts to %s\n", n->lent,
                       blocks ? "prompts, to compute in, and to the text"
                              : "prompts, to compute in");
    if (n->known)
        moe_buf_printf(out,
                       "known    %" PRIu64
                       " activations from their tokens, before the router ran, %" PRIu64
                       " prefetches\n",
                       n->known, n->known_prefetches);
    if (n->host_computed + n->precalculated)
        moe_buf_printf(out,
                       "host     %" PRIu64 " activations computed on it, %" PRIu64
                       " of them a layer early\n",
                       n->host_computed + n->precalculated, n->precalculated);
    if (n->low_precision + n->skipped + n->precalculated + n->substituted)
        moe_buf_printf(out,
                       "changed  %" PRIu64 " at low precision, %" PRIu64 " left out, %" PRIu64
                       " from an earlier state, %" PRIu64 " not the router's choice\n",
                       n->low_precision, n->skipped, n->precalculated, n->substituted);
    if (all->over_capacity)
        moe_buf_printf(out,
                       "capacity %" PRIu64 " choices beyond an expert's, which the model leaves "
                       "out\n",
                       all->over_capacity);
}

/* What following a grammar cost, where an answer did. */
static void put_grammar(struct moe_buf *out, const struct moe_stats *stats)
{
    double tokens = (double)stats->grammar_tokens;
    if (stats->grammar_tokens)
        moe_buf_printf(
            out,
            "grammar  %.3f ms a token beside the model, %.3f ms of them waited for; %" PRIu64
            " masks for %" PRIu64 " tokens\n",
            1e3 * stats->grammar_seconds / tokens, 1e3 * stats->grammar_wait_seconds / tokens,
            stats->grammar_masks, stats->grammar_tokens);
}

/* What other ranks computed: a line each. */
static void say_ranks(struct moe_buf *out, const struct moe_stats *stats,
                      const struct moe_phase_stats *all)
{
    char a[32], b[32], c[32];
    const uint64_t tokens = all->tokens ? all->tokens : 1;
    moe_buf_printf(out,
                   "ranks    %.1f%% of the activations on %" PRIu32 " other%s, waited for %.3f s\n",
                   100 * ratio((double)all->experts.elsewhere, (double)all->experts.activations),
                   stats->n_ranks, stats->n_ranks == 1 ? "" : "s", all->ranks_seconds);
    for (uint32_t i = 0; i < stats->n_ranks; i++) {
        const struct moe_rank_report *r = &stats->ranks[i];
        moe_buf_printf(out, "rank %-3" PRIu32 " %" PRIu64 " experts", i + 1, r->figures.n_experts);
        if (r->figures.n_attends)
            moe_buf_printf(out, ", attention of %" PRIu64 " layers with %s of KV cache",
                           r->figures.n_attends, moe_format_bytes(r->figures.kv_bytes, a));
        if (r->figures.n_layers)
            moe_buf_printf(out, ", %" PRIu64 " layers with %s of KV cache", r->figures.n_layers,
                           moe_format_bytes(r->figures.kv_bytes, a));
        moe_buf_printf(
            out,
            " on %s, hit rate %.2f%%, %s read, at work %.3f s; a token: %.1f messages, "
            "%s there, %s back",
            r->host, 100 * ratio((double)r->figures.hits, (double)r->figures.activations),
            moe_format_bytes(r->figures.bytes_read, a), r->figures.busy_seconds,
            (double)r->messages / (double)tokens, moe_format_bytes(r->bytes_sent / tokens, b),
            moe_format_bytes(r->bytes_received / tokens, c));
        if (r->messages_on)
            moe_buf_printf(out, ", %.1f of %s on to rank %" PRIu32,
                           (double)r->messages_on / (double)tokens,
                           moe_format_bytes(r->bytes_on / tokens, a), i + 2);
        moe_buf_text(out, "\n");
    }
}

void moe_show_sampling(const struct moe_sampler_options *asked,
                       const struct moe_sampler_options *model, struct moe_buf *out)
{
    static const struct {
        enum moe_sampling_origin origin;
        const char *words;
    } origins[] = {{MOE_SAMPLING_ASKED, "asked for"},
                   {MOE_SAMPLING_OF_MODEL, "the model's"},
                   {MOE_SAMPLING_DEFAULT, "default"}};
    struct moe_sampling_value v;
    uint32_t n = 0;
    for (size_t o = 0; o < sizeof origins / sizeof origins[0]; o++) {
        uint32_t n_before = n;
        for (int i = 0; moe_sampling_value(asked, model, i, &v); i++) {
            if (v.origin != origins[o].origin || v.idle)
                continue;
            moe_buf_printf(out, "%s%s %.10g", n++ ? ", " : "", v.field->option, v.value);
        }
        if (n > n_before)
            moe_buf_printf(out, " (%s)", origins[o].words);
    }
}

void moe_show_run(const struct moe_stats *stats, struct moe_buf *out)
{
    struct moe_phase_stats all = moe_stats_all(stats);
    char a[32], b[32];
    const bool dense = all.experts.activations == 0 && stats->resident_expert_bytes_max == 0;
    if (dense) /* there is nothing to have a strategy for */
        moe_buf_printf(out, "device   %s\n", stats->device);
    else {
        moe_buf_text(out, "strategy ");
        put_strategy(out, stats);
        moe_buf_printf(out, " on %s\n", stats->device);
    }
    if (stats->learnt)
        moe_buf_printf(out, "learnt   from %" PRIu64 " tokens before this run (--learn %s)\n",
                       stats->learnt_tokens, stats->learnt);
    if (stats->followed[0])
        moe_buf_printf(out, "followed %s: its choices, not the routers', so no text\n",
                       stats->followed);
    if (stats->in_place)
        moe_buf_text(out, "weights  in place: arranged as they arrive, without checksums\n");
    if (stats->synthesized)
        moe_buf_text(out,
                     "weights  drawn (moe-quantize --synthesize): what was computed is no text\n");
    if (stats->asked) {
        moe_buf_text(out, "sampling ");
        moe_show_sampling(stats->asked, stats->published, out);
        moe_buf_u8(out, '\n');
    }
    if (stats->encode.tokens)
        put_speed(out, "encode", &stats->encode);
    put_speed(out, "prefill", &stats->prefill);
    put_speed(out, "decode", &stats->decode);
    moe_buf_printf(out,
                   "first token after %.3f s; %" PRIu64 " prompt tokens, %" PRIu64 " generated\n",
                   stats->ttft_seconds, stats->prompt_tokens, stats->generated_tokens);
    if (stats->loaded_tokens)
        moe_buf_printf(out, "loaded   %" PRIu64 " tokens of the prompt from a context file\n",
                       stats->loaded_tokens);
    if (stats->context_shifts)
        moe_buf_printf(out,
                       "shifted  the context %" PRIu64 " times, %" PRIu64
                       " tokens dropped (--context-shift)\n",
                       stats->context_shifts, stats->dropped_tokens);
    if (stats->drafted_tokens)
        moe_buf_printf(out, "drafts   %" PRIu64 " tokens drafted, %.1f%% of them right",
                       stats->drafted_tokens,
                       100 * ratio((double)stats->accepted_tokens, (double)stats->drafted_tokens));
    if (stats->stopped_drafts)
        moe_buf_printf(out,
                       "; too few in %" PRIu64 " of %" PRIu64 " answers, which drafts stopped in",
                       stats->stopped_drafts, stats->answers);
    if (stats->drafted_tokens)
        moe_buf_printf(out, "\n");
    if (stats->beams)
        moe_buf_printf(out, "beams    %" PRIu32 ", the answer's score %.4f\n", stats->beams,
                       stats->beam_score);
    put_grammar(out, stats);
    if (!dense)
        moe_buf_printf(out,
                       "experts  %" PRIu64 " activations, hit rate %.2f%%, %" PRIu64
                       " loads, %s read (%s per decoded token), %.3f s stalled\n",
                       all.experts.activations, 100 * hit_rate(&all), all.experts.loads,
                       moe_format_bytes(all.bytes_read, a),
                       moe_format_bytes((uint64_t)bytes_per_token(&stats->decode), b),
                       all.stall_seconds);
    if (stats->n_ranks)
        say_ranks(out, stats, &all);
    if (all.bytes_uploaded)
        moe_buf_printf(out,
                       "uploads  %s to the GPU, %" PRIu64 " loads from host memory, %" PRIu64
                       " from disk\n",
                       moe_format_bytes(all.bytes_uploaded, a), all.host_hits, all.disk_loads);
    put_notes(out, &all, stats->settings.kv_blocks > 0);
    say_exactness(out, stats);
    if (dense)
        moe_buf_printf(out, "memory   peak %s of the process\n",
                       moe_format_bytes(stats->peak_rss_bytes, b));
    else
        moe_buf_printf(out, "memory   %s of experts, peak %s of the process\n",
                       moe_format_bytes(stats->resident_expert_bytes_max, a),
                       moe_format_bytes(stats->peak_rss_bytes, b));
    if (stats->no_energy[0])
        moe_buf_printf(out, "energy   unavailable: %s\n", stats->no_energy);
    else
        moe_buf_printf(out,
                       "energy   %.3f J of the processor, %.3f per prompt token, %.3f per decoded "
                       "token\n",
                       all.joules, ratio(stats->prefill.joules, (double)stats->prefill.tokens),
                       ratio(stats->decode.joules, (double)stats->decode.tokens));
    if (stats->gpu_memory_budget_bytes)
        moe_buf_printf(out, "GPU      %s of its memory, %s allowed\n",
                       moe_format_bytes(stats->gpu_memory_bytes, a),
                       moe_format_bytes(stats->gpu_memory_budget_bytes, b));
    if (stats->unlocked_bytes)
        moe_buf_printf(out,
                       "pinning  %s of the host's memory could not be page-locked: copies of it to "
                       "the GPU take longer\n",
                       moe_format_bytes(stats->unlocked_bytes, a));
    if (stats->predict_on[0])
        moe_buf_printf(out,
                       "predict  on the %s; for one row %.1f us on the GPU, %.1f us on the host\n",
                       strcmp(stats->predict_on, "gpu") == 0 ? "GPU" : "host",
                       1e6 * stats->predict_gpu_seconds, 1e6 * stats->predict_host_seconds);
    const char *kv = stats->settings.kv;
    if (kv[0] && strcmp(kv, "f16") != 0)
        moe_buf_printf(out, "kv       keys and values kept as %s (--kv)\n", kv);
    if (stats->settings.kv_blocks)
        moe_buf_printf(out,
                       "kv       at most %u of %u blocks of %u tokens taken; the others' memory "
                       "held experts\n",
                       stats->kv_blocks_max, stats->settings.kv_blocks,
                       stats->settings.kv_block_positions);
    if (stats->bf16_rows)
        moe_buf_printf(out,
                       "bf16     %" PRIu64 " matmul input rows rounded to bf16 (--bf16-prompts)\n",
                       stats->bf16_rows);
}

/* After a comma, if there is room; false: this and what follows is left out. */
static bool put_part(struct moe_buf *out, uint64_t *room, const char *part)
{
    uint64_t n = strlen(part) + (out->size ? 2 : 0);
    if (n > *room)
        return false;
    moe_buf_printf(out, "%s%s", out->size ? ", " : "", part);
    *room -= n;
    return true;
}

/* "90", "9.4", "0.38": at most three digits, no trailing zeros. */
static void put_rate(double rate, char out[32])
{
    snprintf(out, 32, "%.*f", rate < 1 ? 2 : rate < 10 ? 1 : 0, rate);
}

void moe_show_run_line(const struct moe_stats *stats, int width, struct moe_buf *out)
{
    struct moe_phase_stats all = moe_stats_all(stats);
    uint64_t room = out->size + (uint64_t)(width > 0 ? width : 0);
    bool loads = all.experts.loads + all.experts.prefetches > 0;
    char rate[32], bytes[32], parts[5][64];
    int n = 0;
    put_rate(tokens_per_second(&stats->decode), rate);
    if (stats->decode.tokens)
        snprintf(parts[n++], 64, "%s tok/s", rate);
    snprintf(parts[n++], 64, "%.2f s to first token", stats->ttft_seconds);
    if (!moe_stats_exact(stats))
        snprintf(parts[n++], 64, "not exact");
    if (loads) {
        snprintf(parts[n++], 64, "%.0f%% hits", 100 * hit_rate(&all));
        snprintf(parts[n++], 64, "%s/token read",
                 moe_format_bytes((uint64_t)bytes_per_token(&stats->decode), bytes));
    }
    for (int i = 0; i < n && put_part(out, &room, parts[i]); i++)
        continue;
}

/* ---- A server ---- */

static void emit_executor(struct moe_emit *e, const struct moe_server_executor_counts *x)
{
    moe_emit_open_line_map(e, NULL);
    moe_emit_text(e, "device", x->device ? x->device : "cpu");
    moe_emit_u64(e, "switches", x->switches);
    moe_emit_u64(e, "loads", x->loads);
    moe_emit_u64(e, "host_loads", x->host_loads);
    moe_emit_u64(e, "prefetched", x->prefetched);
    moe_emit_u64(e, "bytes_read", x->bytes_read);
    moe_emit_rounded(e, "busy_seconds", 6, x->busy_seconds);
    moe_emit_rounded(e, "load_seconds", 6, x->load_seconds);
    moe_emit_rounded(e, "schedule_seconds", 6, x->schedule_seconds);
    moe_emit_close(e);
}

static void emit_exactness(struct moe_emit *e, const struct moe_server_counts *c)
{
    moe_emit_open_map(e, "exact");
    moe_emit_bool(e, "required", c->exact_required);
    moe_emit_bool(e, "as_asked", c->inexact[0] == 0);
    moe_emit_bool(e, "as_done", moe_changes_none(&c->changes));
    moe_emit_text(e, "why", c->inexact);
    moe_reply_emit_changes(e, &c->changes);
    moe_emit_close(e);
}

int moe_show_server_json(const struct moe_server_counts *c, struct moe_buf *out,
                         struct moe_err *err)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_INDENTED);
    moe_emit_rounded(&e, "seconds", 6, c->seconds);
    moe_emit_u64(&e, "requests", c->requests);
    moe_emit_u64(&e, "refused", c->refused);
    moe_emit_u64(&e, "ended", c->ended);
    moe_emit_u64(&e, "failed", c->failed);
    moe_emit_u64(&e, "cancelled", c->cancelled);
    moe_emit_u64(&e, "preempted", c->preempted);
    moe_emit_u64(&e, "follow_ons", c->follow_ons);
    moe_emit_u64(&e, "prompt_tokens", c->prompt_tokens);
    moe_emit_u64(&e, "cached_tokens", c->cached_tokens);
    moe_emit_u64(&e, "generated_tokens", c->generated_tokens);
    moe_emit_u64(&e, "drafted_tokens", c->drafted_tokens);
    moe_emit_u64(&e, "accepted_tokens", c->accepted_tokens);
    moe_emit_u64(&e, "stopped_drafts", c->stopped_drafts);
    moe_emit_rounded(&e, "schedule_seconds", 6, c->schedule_seconds);
    if (c->memory_bytes == UINT64_MAX)
        moe_emit_null(&e, "memory_bytes");
    else
        moe_emit_u64(&e, "memory_bytes", c->memory_bytes);
    moe_emit_u64(&e, "floor_bytes", c->floor_bytes);
    moe_emit_u64(&e, "peak_rss_bytes", moe_peak_rss_bytes());
    moe_emit_u64(&e, "gpu_memory_bytes", c->gpu_bytes);
    moe_emit_u64(&e, "host_tier_bytes", c->host_bytes);
    moe_emit_u64(&e, "host_tier_models", c->host_models);
    emit_exactness(&e, c);
    moe_emit_open_list(&e, "executors");
    for (uint32_t i = 0; i < c->n_executors; i++)
        emit_executor(&e, &c->executors[i]);
    moe_emit_close(&e);
    return moe_emit_end(&e, err);
}
