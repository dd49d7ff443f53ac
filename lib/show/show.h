/*
 * What programs show of their files and runs: as text for people, as JSON for scripts.
 */
#ifndef MOE_SHOW_SHOW_H
#define MOE_SHOW_SHOW_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/emit.h"
#include "infer/run_stats.h"
#include "model/config.h"
#include "model/sampling.h"
#include "pack/convert.h"
#include "pack/map.h"
#include "pack/pack.h"
#include "profile/device.h"
#include "profile/statistics.h"
#include "profile/trace.h"
#include "serve/server.h"
#include "show/draw.h"

/*
 * What a conversion did to the weights of a quantized source, for moe-quantize's closing lines.
 */

/* Appends whole lines that begin with "PATH: ": how many weights were carried over, then for each
 * type and bitwidth which matrices were rounded again, with the relative root of the mean squared
 * error: "PATH: 12 ffn_down_exps, 12 attn_v: Q6_K -> 8 bits, error 0.52%". Nothing for a source of
 * floats. */
void moe_show_source(const struct moe_convert_report *report, const char *path,
                     struct moe_buf *out);

/* A device profile (moe-device(5)) for a person. */

/* What is known, with its spread and sources, and what loads cost against computation. */
void moe_show_device(const struct moe_device *d, struct moe_screen screen, struct moe_buf *out);

/* What a cache has learnt (moe-learn(5)), for a person, or as an object of JSON. */
int moe_show_learnt(const char *path, bool json, struct moe_buf *out, struct moe_err *err);

/* A bit map (moe-map(5)) for a person. */

/* What was measured, what was chosen, and what that costs. */
void moe_show_map(const struct moe_map *map, struct moe_screen screen, struct moe_buf *out);

/* What does not hold on the checks, a clause each: "on the checks +5.25%, +1.76% on the texts";
 * nothing where all does, or nothing was checked. */
void moe_show_map_unheld(const struct moe_map *map, struct moe_buf *out);

/* "weights of 11.20 MiB instead of 13.80 MiB, +1.93% (standard error 0.08)": one line without its
 * newline. */
void moe_show_map_line(const struct moe_map *map, struct moe_buf *out);

/* Statistics of a run (infer/run_stats.h): for scripts, for a person, and in one line. */

/* One JSON object with the keys of moe-run-stats(5); totals over both phases, and
 * "prefill"/"decode" objects. */
void moe_show_run_json(const struct moe_stats *stats, struct moe_buf *out);
/* The same for a person, a few lines. */
void moe_show_run(const struct moe_stats *stats, struct moe_buf *out);
/* "temperature 0.5 (asked for), top-p 0.9 (the model's), top-k 40, min-p 0.05 (defaults)", without
 * what has no effect. */
void moe_show_sampling(const struct moe_sampler_options *asked,
                       const struct moe_sampler_options *model, struct moe_buf *out);
/* What matters most, in one line without its newline, for below an answer: tokens/s and the time to
 * the first token; where anything was read, the hit rate and bytes per token; whether results were
 * changed. What does not fit `width` columns is left out from the end. */
void moe_show_run_line(const struct moe_stats *stats, int width, struct moe_buf *out);

/* Routing statistics (moe-stats(5)): tables for a person, JSON for scripts. */

/* Tables, a heat map and bars. */
int moe_show_statistics(const struct moe_statistics *s, struct moe_screen screen,
                        struct moe_buf *out, struct moe_err *err);
/* All figures as one JSON object. */
int moe_show_statistics_json(const struct moe_statistics *s, struct moe_buf *out,
                             struct moe_err *err);

/* A trace (moe-trace(5)): a few lines for a person, JSON for scripts. */

/* A few lines for a person. */
void moe_show_trace(const struct moe_trace *t, struct moe_buf *out);
/* The same as one JSON object. */
void moe_show_trace_json(const struct moe_trace *t, struct moe_buf *out);

/* What a calibration will take (moe-calibrate --dry-run), for a person or as JSON. */

/* Passes are over all texts; parts of one count as parts. */
struct moe_forecast {
    uint64_t documents, tokens; /* of the texts to choose on; tokens to predict */
    uint64_t tried;             /* documents that were run to know this */
    uint64_t budget;            /* bytes; UINT64_MAX: none */
    uint64_t least, whole;      /* bytes that do; that keep all experts in memory */
    uint32_t shard, n_shards;   /* shard counts from 0 */
    uint64_t experts, in_shard; /* of the model; of the shard */
    uint64_t known;             /* ... of these, by an earlier run */
    double pass_seconds;
    double before; /* passes: references and uniform bitwidths */
    double search; /* passes: importances of the shard that are not known */
    double total;  /* passes: of both, for all shards from their beginning */
    /* Passes, a token at a time, at most: routing towards the cache, and ways to load less. */
    double routing, savings, routing_seconds, savings_seconds;
    bool chooses; /* and then chooses, which takes as many passes as it takes */
};

void moe_show_forecast(const struct moe_forecast *f, struct moe_buf *out);
/* One object, with times in seconds. */
int moe_show_forecast_json(const struct moe_forecast *f, struct moe_buf *out, struct moe_err *err);

/* What a server did, as a JSON object for programs. */

/* The counts, in their words, with the peak of this process. */
int moe_show_server_json(const struct moe_server_counts *c, struct moe_buf *out,
                         struct moe_err *err);

/* What is inside a pack: figures, a table for people, JSON for scripts. */

/* Weights and the bytes they take: raw is what memory needs, stored what the file holds, in whole
 * pages. */
struct moe_weight_sum {
    uint64_t count;   /* tensors, or experts */
    uint64_t weights; /* numbers */
    uint64_t raw_bytes, stored_bytes;
    uint64_t paged_bytes; /* in memory in whole pages, as caches of experts have them */
    uint64_t code_bits;   /* of the codes, without scales and padding */
};

struct moe_pack_summary {
    struct moe_pack *pack;
    struct moe_config config;
    uint32_t n_moe_layers;
    struct moe_weight_sum variants[MOE_MAX_VARIANTS]; /* as the pack numbers them */
    bool mixed[MOE_MAX_VARIANTS]; /* its experts do not all have the same bits */
    struct moe_weight_sum dense;
    struct moe_weight_sum ahead; /* tensors and experts of layers that draft, in no other sum */
    uint64_t tokenizer_bytes;
    bool has_chat_template;
    struct moe_sampler_options sampling; /* as the model's makers published it */
    struct moe_pack_synthesized synthesized;
};

/* Reads the pack's directory only; the pack stays the caller's. */
int moe_pack_summarize(struct moe_pack *pack, struct moe_pack_summary *out, struct moe_err *err);

/* The same of a pack that is opened for it; close *out after errors too. */
int moe_pack_summary_open(struct moe_pack_summary **out, const char *path, struct moe_err *err);
void moe_pack_summary_close(struct moe_pack_summary *s); /* with the pack; NULL: nothing happens */

/* Bits per weight with scales and padding, uncompressed; 0 for no weights. */
double moe_weight_sum_bits(const struct moe_weight_sum *sum);
/* ... of the codes. */
double moe_weight_sum_nominal_bits(const struct moe_weight_sum *sum);

/* "4", "4d8" or "a map's", before "bits"; borrowed. */
const char *moe_show_variant_bits(const struct moe_pack *pack, uint32_t variant);
/* Appends "12 layers, 384 experts at 4 bits (4.50 bits/weight), dense 8.49 bits/weight". */
void moe_show_pack_line(const struct moe_pack_summary *s, struct moe_buf *out);
/* Appends a table of several lines; `tensors`: with every tensor. */
void moe_show_pack(const struct moe_pack_summary *s, bool tensors, struct moe_buf *out);
/* Appends what the i-th of the pack's maps takes and loses; or, once one was taken, that. */
void moe_show_pack_map(const struct moe_pack *pack, uint32_t i, struct moe_buf *out);
/* Appends the bits of each expert of every mixed variant: a line for each MoE layer, a character
 * for each expert, then what the characters mean. With more than MOE_SHOW_DRAWN experts to a layer,
 * how many have which bits. Nothing for packs without mixed variants. In colour: with terminal
 * sequences, warmer for more bits. */
enum { MOE_SHOW_DRAWN = 256 };
void moe_show_pack_bits(const struct moe_pack_summary *s, struct moe_screen screen,
                        struct moe_buf *out);
/* The same as member "map", a list of {"layer": 3, "bits": ["4", "2", ...]}; null for a variant
 * that is not mixed. */
void moe_show_pack_bits_json(const struct moe_pack_summary *s, uint32_t variant,
                             struct moe_emit *e);
/* Appends one JSON object and a newline. */
int moe_show_pack_json(const struct moe_pack_summary *s, bool tensors, struct moe_buf *out,
                       struct moe_err *err);

#endif
