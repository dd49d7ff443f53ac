/*
 * Statistics of a run, exactly as the contract defines them (section 4, moe-run). Cheap enough to
 * be always on. An activation is one (token, layer, routed expert); at the moment the router has
 * spoken it is exactly one of the kinds below, and they add up.
 */
#ifndef MOE_RUN_STATS_H
#define MOE_RUN_STATS_H

#include <stdint.h>

#include "base/buf.h"
#include "sched/scheduler.h"

/* Counted for prefill and decode apart. */
struct moe_phase_stats {
    uint64_t tokens; /* rows computed */
    double seconds;  /* wall time of the forward passes */
    struct moe_counts experts;
    uint64_t bytes_read; /* from disk */
    /* With a GPU: copied to it; loads of experts that lay in host memory, and that did not. */
    uint64_t bytes_uploaded, host_hits, disk_loads;
    double read_seconds;    /* at least one read was in flight; with a GPU those in which a read
                               was, and those in which a copy was, added up */
    double stall_seconds;   /* computing threads waited for a load */
    double stall_bytes;     /* of bytes_read (with a GPU: bytes_uploaded), those moved meanwhile */
    double host_seconds;    /* computing threads waited for the host's experts */
    double predict_seconds; /* predictions and what follows from them took */
};

struct moe_stats {
    struct moe_phase_stats prefill, decode;
    double ttft_seconds; /* request to first token, tokenization included */
    uint64_t prompt_tokens, generated_tokens;
    uint64_t resident_expert_bytes_max;
    uint64_t peak_rss_bytes, memory_budget_bytes;       /* budget 0: none was given */
    uint64_t gpu_memory_bytes, gpu_memory_budget_bytes; /* taken on a GPU, of so many; 0: none */
    uint64_t bf16_rows; /* inputs of products that were computed in bf16 (--bf16-prompts) */
    /* With a GPU and routers ahead: where they were asked, "gpu" or "host", and what either took
     * for one row when that was chosen; "": nothing was to be chosen. */
    char predict_on[8];
    double predict_gpu_seconds, predict_host_seconds;
    char strategy[32], device[32];
    char cache[32], alloc[32]; /* policy of the expert cache, how its slots are shared; "none" */
    char parts[512];           /* all of the strategy's, in the words of their options */
};

/* Adds the counts and times of `part` (an answer, say) to `sum`; the time to first token and the
 * names are those of `part`, maxima are joined. */
void moe_stats_add(struct moe_stats *sum, const struct moe_stats *part);

/* One JSON object with the contract's keys; totals over both phases, and "prefill"/"decode"
 * objects. */
void moe_stats_write_json(const struct moe_stats *stats, struct moe_buf *out);
/* The same for a person, a few lines. */
void moe_stats_write_text(const struct moe_stats *stats, struct moe_buf *out);
/* The same in one line without its newline, for below an answer: tokens/s, time to first token, hit
 * rate, bytes read per token, expert bytes in memory. */
void moe_stats_write_line(const struct moe_stats *stats, struct moe_buf *out);

#endif
