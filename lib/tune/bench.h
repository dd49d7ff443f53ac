/*
 * Bench: how fast a model computes here. Measures, changes nothing but the session's context.
 */
#ifndef MOE_TUNE_BENCH_H
#define MOE_TUNE_BENCH_H

#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "infer/session.h"
#include "profile/device.h"
#include "text/tokenizer.h"

enum { MOE_BENCH_MAX_RUNS = 101 };

struct moe_bench_options {
    uint32_t prompt_tokens; /* > 0 */
    uint32_t decode_tokens; /* > 0; together they must fit the context */
    uint32_t n_runs;        /* 1..MOE_BENCH_MAX_RUNS, after one that does not count */
    /* What the prompt consists of, repeated or cut to prompt_tokens; n = 0: ids drawn from the
     * vocabulary, always the same ones (they use experts more evenly than text does). */
    const struct moe_ids *text;
    const struct moe_progress *progress;
};

/* Over the runs, in tokens per second. */
struct moe_bench_figure {
    double median, min, max;
};

/* Median and ends of n > 0 values, which are sorted. */
struct moe_bench_figure moe_bench_summarize(double *values, uint32_t n);
/* To four digits: more is noise. */
double moe_bench_round(double value);
/* The same as a summary, for a device profile, rounded. */
void moe_bench_set_figure(struct moe_figure *f, double *values, uint32_t n);

/* Rows of sequence 0 from position `first` on, with tokens of the text, repeated; or, without one,
 * ids drawn from the vocabulary, always the same ones. */
void moe_bench_rows(const struct moe_ids *text, uint32_t vocab, uint32_t first,
                    struct moe_row *rows, uint32_t n);

struct moe_bench {
    struct moe_bench_figure prefill, decode; /* with an encoder: encoding, decoding */
};

/* Every run computes the prompt from an empty context, then decode_tokens tokens one by one, each
 * the likeliest after the one before, logits included. With an encoder the prompt is its source,
 * and the decoder begins with its first token. */
int moe_bench(struct moe_session *s, const struct moe_bench_options *options, struct moe_bench *out,
              struct moe_err *err);

#endif
