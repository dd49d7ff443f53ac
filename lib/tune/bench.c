/* moe-run --bench: prompts and decoding timed over several runs. */
#include "tune/bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "infer/forward.h"
#include "infer/stages.h"

struct bench {
    struct moe_session *s;
    const struct moe_bench_options *options;
    struct moe_row *rows; /* [prompt_tokens] */
    float *logits;        /* [moe_logits_stride] */
};

void moe_bench_rows(const struct moe_ids *text, uint32_t vocab, uint32_t first,
                    struct moe_row *rows, uint32_t n)
{
    uint64_t state = 1;
    for (uint32_t i = 0; i < n; i++) {
        /* Knuth's MMIX constants; only the upper half is random enough. */
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t token = (uint32_t)((state >> 32) % vocab);
        if (text && text->n)
            token = text->ids[i % text->n];
        rows[i] = (struct moe_row){0, first + i, token, first + n};
    }
}

static int likeliest(const struct bench *b, uint32_t row, uint32_t *token, struct moe_err *err)
{
    if (b->s->stages->greedy)
        return moe_greedy(b->s, row, token, err);
    int status = moe_logits(b->s, row, 1, b->logits, err);
    *token = 0;
    for (uint32_t i = 1; status == MOE_OK && i < b->s->model->config.vocab; i++)
        if (b->logits[i] > b->logits[*token])
            *token = i;
    return status;
}

/* *token: the likeliest after the prompt. */
static int prefill(const struct bench *b, uint32_t *token, struct moe_err *err)
{
    struct moe_session *s = b->s;
    uint32_t n_prompt = b->options->prompt_tokens, n = 0;
    if (s->prompts)
        moe_sequence_prompt(s, 0, n_prompt, n_prompt);
    for (uint32_t at = 0; at < n_prompt; at += n) {
        n = n_prompt - at < s->batch ? n_prompt - at : s->batch;
        int status = moe_forward(s, MOE_PREFILL, b->rows + at, n, 0, s->model->config.n_layers,
                                 NULL, NULL, err);
        if (status != MOE_OK)
            return status;
        if (moe_progress_stopped(b->options->progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    return likeliest(b, n - 1, token, err);
}

/* The prompt is the encoder's source, where there is one, and the decoder begins after it. */
static int run_once(const struct bench *b, double *prompt, double *decode, struct moe_err *err)
{
    struct moe_session *s = b->s;
    uint32_t first = s->model->config.n_encoder, n_layers = s->model->config.n_layers;
    uint32_t n_prompt = b->options->prompt_tokens, token = s->model->config.decoder_start;
    double began = moe_seconds();
    int status = first ? moe_encode(s, b->rows, n_prompt, NULL, err) : prefill(b, &token, err);
    if (status != MOE_OK)
        return status;
    double middle = moe_seconds();
    for (uint32_t i = 0; i < b->options->decode_tokens; i++) {
        struct moe_row row = {0, first ? i : n_prompt + i, token, 0};
        status = moe_forward(s, MOE_DECODE, &row, 1, first, n_layers, NULL, NULL, err);
        if (status == MOE_OK)
            status = likeliest(b, 0, &token, err);
        if (status != MOE_OK)
            return status;
        if (moe_progress_stopped(b->options->progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    *prompt = n_prompt / (middle - began);
    *decode = b->options->decode_tokens / (moe_seconds() - middle);
    return MOE_OK;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct moe_bench_figure moe_bench_summarize(double *values, uint32_t n)
{
    qsort(values, n, sizeof *values, compare_doubles);
    return (struct moe_bench_figure){
        .median = (values[(n - 1) / 2] + values[n / 2]) / 2,
        .min = values[0],
        .max = values[n - 1],
    };
}

double moe_bench_round(double value)
{
    char text[40];
    snprintf(text, sizeof text, "%.4g", value);
    return strtod(text, NULL);
}

void moe_bench_set_figure(struct moe_figure *f, double *values, uint32_t n)
{
    struct moe_bench_figure b = moe_bench_summarize(values, n);
    f->value = moe_bench_round(b.median);
    f->min = moe_bench_round(b.min);
    f->max = moe_bench_round(b.max);
    f->n_runs = n;
}

int moe_bench(struct moe_session *s, const struct moe_bench_options *options, struct moe_bench *out,
              struct moe_err *err)
{
    double prefill[MOE_BENCH_MAX_RUNS], decode[MOE_BENCH_MAX_RUNS], unused[2];
    uint64_t n_tokens = (uint64_t)options->prompt_tokens + options->decode_tokens;
    if (options->prompt_tokens == 0 || options->decode_tokens == 0 || options->n_runs == 0 ||
        options->n_runs > MOE_BENCH_MAX_RUNS)
        return moe_fail(err, MOE_ERR_USAGE, "a bench needs tokens to compute and 1 to %d runs",
                        MOE_BENCH_MAX_RUNS);
    if (n_tokens > s->context)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%u prompt tokens and %u more do not fit the context of %u",
                        options->prompt_tokens, options->decode_tokens, s->context);
    struct bench b = {.s = s, .options = options};
    b.rows = moe_alloc(options->prompt_tokens, sizeof *b.rows, err);
    b.logits = moe_alloc(moe_logits_stride(&s->model->config), sizeof *b.logits, err);
    int status;
    MOE_STEP(b.rows && b.logits ? MOE_OK : MOE_ERR_MEMORY);
    moe_bench_rows(options->text, s->model->config.vocab, 0, b.rows, options->prompt_tokens);
    MOE_STEP(run_once(&b, &unused[0], &unused[1], err));
    for (uint32_t i = 0; i < options->n_runs; i++) {
        moe_progress_report(options->progress, "bench", i + 1, options->n_runs + 1);
        MOE_STEP(run_once(&b, &prefill[i], &decode[i], err));
    }
    out->prefill = moe_bench_summarize(prefill, options->n_runs);
    out->decode = moe_bench_summarize(decode, options->n_runs);
out:
    free(b.rows);
    free(b.logits);
    return status;
}
