/*
 * What happened to the experts in one phase of a run: encoding, prefill or decode. Cheap enough to
 * be always on. An activation is one (token, layer, routed expert); once the router has chosen it
 * is exactly one of the kinds that are counted, and they add up.
 */
#ifndef MOE_INFER_RUN_STATS_H
#define MOE_INFER_RUN_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "model/config.h"
#include "profile/device.h"
#include "sched/exactness.h"
#include "sched/scheduler.h"

struct moe_phase_stats {
    uint64_t tokens; /* rows computed */
    double seconds;  /* wall time of the forward passes */
    double joules;   /* that the processor took meanwhile, where its counters can be read */
    struct moe_counts experts;
    uint64_t over_capacity; /* choices beyond an expert's capacity, which the model leaves out:
                               beside the activations, which they are not */
    uint64_t bytes_read;    /* from disk */
    /* With a GPU: copied to it; loads of experts that were in host memory, and that were not. */
    uint64_t bytes_uploaded, host_hits, disk_loads;
    double read_seconds; /* at least one read was in flight; with a GPU those in which a read
                            was, and those in which a copy was, added up */
    /* Of `seconds`, the components but for computing (profile/device.h). */
    double handling_seconds; /* computing threads asked for loads and took them in */
    double stall_seconds;    /* they waited for weights: experts, in first passes dense ones */
    double host_seconds;     /* they waited for the host's experts */
    double ranks_seconds;    /* ... for those of other ranks (ranks/ranks.h) */
    double stall_bytes;      /* of bytes_read (with a GPU: bytes_uploaded), those moved in stalls */
    double predict_seconds;  /* predictions, and the prefetches begun by them */
    double processor_seconds; /* the thread that leads the pass had a processor; 0: on a GPU, or
                                 `seconds` are modelled */
};

/* What its seconds are made of. */
struct moe_components moe_phase_components(const struct moe_phase_stats *phase);
/* Of the seconds of computing and handling, those in which the thread that leads the pass had no
 * processor, or slept until one that helps it had got one: other programs had them. 0: not known.
 */
double moe_phase_displaced(const struct moe_phase_stats *phase);

/* Adds the counts and times of `part` to `sum`. */
void moe_phase_stats_add(struct moe_phase_stats *sum, const struct moe_phase_stats *part);

/*
 * Statistics of a run: of its phases, and of the whole.
 */

struct moe_sampler_options; /* model/sampling.h */
struct moe_rank_report;     /* ranks/ranks.h */

/* What a plan decides as well (plan/plan.h), beside memory and strategy. */
struct moe_run_settings {
    uint32_t context, batch, n_threads; /* positions, rows of a pass, threads that computed */
    char kv[8];                         /* how keys and values were kept: "f32", "f16" */
    /* Blocks of the KV cache where these take memory as texts need it, else 0; positions of one. */
    uint32_t kv_blocks, kv_block_positions;
    /* Precision of the experts, and the lower one where one is taken, as the pack names them. */
    char precision[MOE_NAME_BYTES], low_precision[MOE_NAME_BYTES];
    /* By a map of the pack for a tolerance, which lost so much: percent of the nats, or points. */
    bool mapped, map_points;
    double map_tolerance, map_loss;
    uint64_t cache_slots, working_slots; /* that keep experts, and further ones; 0: all in memory */
};

struct moe_stats {
    struct moe_phase_stats encode; /* of a model with an encoder: its passes over sources */
    struct moe_phase_stats prefill, decode;
    double ttft_seconds; /* request to first token, tokenization included */
    uint64_t answers;    /* that were begun */
    uint64_t prompt_tokens, generated_tokens;
    uint64_t loaded_tokens; /* of prompts that came from a context file, so none of the above */
    /* How often a full context had its oldest tokens dropped, and how many these were. */
    uint64_t context_shifts, dropped_tokens;
    /* Computed beside a certain token because they might follow it, and how many of them did; the
     * others are no decoded tokens (engine/draft.h). */
    uint64_t drafted_tokens, accepted_tokens;
    uint64_t stopped_drafts; /* answers that a head drafts for no more: it was wrong */
    uint32_t beams;          /* of the last answer; 0: it was sampled */
    double beam_score;       /* of it: log probability / length^penalty */
    /* Answers that followed a grammar: tokens drawn, how many of these needed a new mask of allowed
     * tokens, how long making masks took beside the model, and how long the sampler waited. */
    uint64_t grammar_tokens, grammar_masks;
    double grammar_seconds, grammar_wait_seconds;
    uint32_t kv_blocks_max; /* of settings.kv_blocks, that held positions at a time */
    uint64_t resident_expert_bytes_max;
    uint64_t peak_rss_bytes, memory_budget_bytes;       /* budget 0: none was given */
    uint64_t gpu_memory_bytes, gpu_memory_budget_bytes; /* taken on a GPU, out of; 0: none */
    uint64_t unlocked_bytes; /* of the host's memory for a GPU, what could not be page-locked */
    struct moe_run_settings settings;
    const struct moe_rank_report *ranks; /* [n_ranks] the others that computed experts; borrowed */
    uint32_t n_ranks;
    uint64_t bf16_rows; /* inputs of products that were computed in bf16 (--bf16-prompts) */
    /* With a GPU and predictions by routers: where these are asked, "gpu" or "host", and what each
     * took for one row when that was chosen; "": there was no choice. */
    char predict_on[8];
    double predict_gpu_seconds, predict_host_seconds;
    /* How tokens were drawn: what was asked for and what the model's makers published (borrowed);
     * NULL: none were. */
    const struct moe_sampler_options *asked, *published;
    char no_energy[64]; /* why the phases' joules are not known; "": they are */
    char
        followed[64]; /* the trace whose choices were computed in place of the routers'; "": none */
    bool in_place;    /* a checkpoint: its weights are arranged when they are read */
    bool synthesized; /* the pack's weights were drawn: what was computed means nothing */
    char strategy[32], device[32];
    char cache[32], alloc[32]; /* policy of the expert cache, allocation of its slots; "none" */
    const char *model;         /* file of the pack, its name; borrowed */
    uint64_t model_fingerprint;
    const char *learnt;     /* the file that the cache began with; borrowed; NULL: nothing learnt */
    uint64_t learnt_tokens; /* that it had learnt from by then */
    char boundary_from[32]; /* what decided L of the allocation shallow:L; "": it has none, or the
                               strategy names it */
    char thresholds_from[48];        /* ... T1 and T2 of mixed precision */
    char parts[512];                 /* the strategy's parts, in the words of their options */
    bool exact_required;             /* --exact */
    char inexact[MOE_EXACTNESS_WHY]; /* what was asked for that may change results; "": nothing */
};

/* All phases in one. */
struct moe_phase_stats moe_stats_all(const struct moe_stats *stats);
/* Adds the counts and times of `part` (an answer, say) to `sum`; the time to first token and the
 * names are those of `part`, maxima are joined. */
void moe_stats_add(struct moe_stats *sum, const struct moe_stats *part);

/* What was done that may have changed results, and whether nothing was. */
struct moe_changes moe_stats_changes(const struct moe_stats *stats);
bool moe_stats_exact(const struct moe_stats *stats);
int moe_stats_check_exact(const struct moe_stats *stats, struct moe_err *err); /* exactness.h */

#endif
