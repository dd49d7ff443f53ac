/*
 * Many answers side by side: tokens a second of 1, 2, 4, 8 and 16 sequences, all in one run.
 *
 *     bench_batch PACK [THREADS [EXPERT_MIB [TOKENS [PROMPT]]]]
 *
 * Prompts are drawn; all answers have the same length. What is timed are the decoding steps (their
 * last tokens' logits included). EXPERT_MIB: the experts' cache; 0: all are in memory. Rounds go
 * through all counts, so that a slow moment of the machine hits every count; the median is shown.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/par.h"
#include "base/random.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "kern/kern.h"

enum { N_COUNTS = 5, MOST = 16, ROUNDS = 3, MAX_PROMPT = 4096 };
static const uint32_t counts[N_COUNTS] = {1, 2, 4, 8, MOST};

struct bench {
    struct moe_engine *engine;
    uint64_t n_tokens;
    uint32_t n_prompt;
};

static int add(struct bench *b, struct moe_batch *batch, uint64_t seed, struct moe_err *err)
{
    static uint32_t prompt[MAX_PROMPT];
    const uint32_t vocab = b->engine->model->config.vocab;
    struct moe_sampler_options greedy;
    uint64_t id;
    struct moe_batch_request request = {
        .prompt = prompt,
        .n_prompt = b->n_prompt,
        .options = {.max_tokens = b->n_tokens, .ignore_eos = true},
    };
    for (uint32_t i = 0; i < b->n_prompt; i++)
        prompt[i] = (uint32_t)(moe_random_next(&seed) % (vocab / 2));
    moe_sampler_options_default(&greedy);
    greedy.temperature = 0;
    int status = moe_sampler_new(&request.sampler, &greedy, vocab, err);
    if (status == MOE_OK)
        status = moe_batch_add(batch, &request, &id, err);
    if (status != MOE_OK)
        moe_sampler_free(request.sampler);
    return status;
}

/* Tokens a second of n sequences; hit: the share of activations that were in the cache. */
static int measure(struct bench *b, uint32_t n, uint64_t seed, double *rate, double *hit,
                   struct moe_err *err)
{
    struct moe_session *s = b->engine->session;
    struct moe_batch *batch;
    int status = moe_batch_open(&batch, s, 0, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        status = add(b, batch, seed + i, err);
    s->stats = (struct moe_stats){0};
    while (status == MOE_OK &&
           moe_batch_state(batch)->n_running + moe_batch_state(batch)->n_waiting > 0)
        moe_batch_step(batch);
    moe_batch_close(batch);
    const struct moe_phase_stats *d = &s->stats.decode;
    *rate = d->seconds > 0 ? (double)d->tokens / d->seconds : 0;
    *hit =
        d->experts.activations ? (double)d->experts.cache_hits / (double)d->experts.activations : 1;
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    struct moe_err err;
    struct bench b = {.n_tokens = argc > 4 ? strtoull(argv[4], NULL, 10) : 64,
                      .n_prompt = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 32};
    const struct moe_engine_options o = {
        .expert_memory_bytes = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0,
        .session = {.context = (uint32_t)b.n_tokens + b.n_prompt, .n_sequences = MOST, .batch = 64},
    };
    if (argc < 2 || b.n_tokens < 2 || b.n_prompt < 1 || b.n_prompt > MAX_PROMPT) {
        fprintf(stderr, "usage: bench_batch PACK [THREADS [EXPERT_MIB [TOKENS [PROMPT]]]]\n");
        return 2;
    }
    moe_par_set_threads(argc > 2 ? atoi(argv[2]) : moe_cores_available());
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = moe_engine_open(&b.engine, argv[1], &o, NULL, &err);
    double rates[N_COUNTS][ROUNDS], hits[N_COUNTS], unused;
    if (status == MOE_OK)
        status = measure(&b, MOST, 1, &unused, &unused, &err); /* warm */
    for (int round = 0; round < ROUNDS && status == MOE_OK; round++)
        for (int i = 0; i < N_COUNTS && status == MOE_OK; i++)
            status = measure(&b, counts[i], 1, &rates[i][round], &hits[i], &err);
    if (status != MOE_OK) {
        fprintf(stderr, "bench_batch: %s\n", err.text);
        moe_engine_close(b.engine);
        return 1;
    }
    printf("%s, %d threads, %" PRIu64 " MiB of experts, %s\n", argv[1], moe_par_threads(),
           o.expert_memory_bytes >> 20, b.engine->strategy.name);
    printf("sequences  tokens/s  spread  times one   hits\n");
    double one = 0;
    for (int i = 0; i < N_COUNTS; i++) {
        qsort(rates[i], ROUNDS, sizeof rates[i][0], by_value);
        double median = rates[i][ROUNDS / 2];
        one = i ? one : median;
        printf("%9u %9.1f   +-%2.0f%%  %8.2fx  %4.0f%%\n", counts[i], median,
               50 * (rates[i][ROUNDS - 1] - rates[i][0]) / median, median / one, 100 * hits[i]);
    }
    moe_engine_close(b.engine);
    return 0;
}
