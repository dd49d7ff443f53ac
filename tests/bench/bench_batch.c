/*
 * Many answers side by side: tokens a second of 1, 2, 4, 8 and 16 sequences, all in one run.
 *
 *     bench_batch PACK [THREADS [EXPERT_MIB [TOKENS [PROMPT [TEXT...]]]]]
 *
 * Prompts are pieces of the texts, a piece of each in turn; without texts they are drawn, which
 * spreads their choice of experts as widely as can be. All answers have the same length. What is
 * timed are the decoding steps (their last tokens' logits included). EXPERT_MIB: the experts'
 * cache; 0: all are in memory. Rounds go through all counts, so that a slow moment of the machine
 * hits every count; the median is shown.
 *
 * With a cache, a second table has what a step does, and what it cannot beat: its bytes at the
 * pack's disk rate, and the steps' time with all experts in memory. A step takes at least the
 * longer of both where one hides the other, and their sum where nothing does. Disk and memory are
 * measured in the same run.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/par.h"
#include "base/random.h"
#include "bench_reads.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "infer/experts.h"
#include "kern/kern.h"

enum { N_COUNTS = 5, MOST = 16, ROUNDS = 3, MAX_PROMPT = 4096, MAX_EXPERTS = 1024 };
static const uint32_t counts[N_COUNTS] = {1, 2, 4, 8, MOST};
static const uint64_t READ_BYTES = 512 << 20; /* for the disk's rate */

struct bench {
    const char *path;
    uint64_t expert_bytes, n_tokens;
    uint32_t n_prompt;
    char **texts;
    uint32_t n_texts;
    struct moe_ids *ids; /* [n_texts] */
    struct moe_engine *engine;
    uint64_t n_experts, n_layers; /* wanted by the steps, and the layers that wanted them */
};

/* Of a count of sequences. */
struct figures {
    double rates[ROUNDS], step_seconds, experts, loads, bytes, waited, reading, hits;
};

/* ---- Asking ---- */

static int read_texts(struct bench *b, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < b->n_texts && status == MOE_OK && b->ids[i].n == 0; i++) {
        struct moe_buf text = {0};
        status = moe_file_read_all(b->texts[i], UINT64_MAX, &text, err);
        if (status == MOE_OK)
            status = moe_tokenizer_encode(b->engine->model->tokenizer, (const char *)text.data,
                                          text.size, false, &b->ids[i], err);
        if (status == MOE_OK && b->ids[i].n <= b->n_prompt)
            status = moe_fail(err, MOE_ERR_USAGE, "%s is too short", b->texts[i]);
        moe_buf_release(&text);
    }
    return status;
}

/* Prompt `seed`, another for each. */
static void fill_prompt(const struct bench *b, uint64_t seed, uint32_t *prompt)
{
    const struct moe_ids *text = b->n_texts ? &b->ids[seed % b->n_texts] : NULL;
    uint32_t vocab = b->engine->model->config.vocab;
    uint64_t at = moe_random_next(&seed);
    for (uint32_t i = 0; i < b->n_prompt; i++)
        prompt[i] = text ? text->ids[at % (text->n - b->n_prompt) + i]
                         : (uint32_t)(moe_random_next(&seed) % (vocab / 2));
}

static int add(struct bench *b, struct moe_generator *batch, uint64_t seed, struct moe_err *err)
{
    static uint32_t prompt[MAX_PROMPT];
    const uint32_t vocab = b->engine->model->config.vocab;
    struct moe_sampler_options greedy;
    uint64_t id;
    struct moe_generate_request request = {
        .prompt = prompt,
        .n_prompt = b->n_prompt,
        .options = {.max_tokens = b->n_tokens, .ignore_eos = true},
    };
    fill_prompt(b, seed, prompt);
    greedy = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    greedy.temperature = 0;
    int status = moe_sampler_new(&request.sampler, &greedy, vocab, err);
    if (status == MOE_OK)
        status = moe_generator_add(batch, &request, &id, err);
    if (status != MOE_OK)
        moe_sampler_free(request.sampler);
    return status;
}

/* Counts the experts that a step wants of a layer, each once. */
static void routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                   uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct bench *b = ctx;
    uint8_t seen[MAX_EXPERTS] = {0};
    if (b->engine->session->phase != &b->engine->session->stats.decode)
        return;
    for (uint32_t i = 0; i < n_rows * b->engine->model->config.top_k; i++) {
        b->n_experts += !seen[chosen[i] % MAX_EXPERTS];
        seen[chosen[i] % MAX_EXPERTS] = 1;
    }
    b->n_layers++;
}

/* The answers of n sequences, which nothing is known of yet. */
static int measure(struct bench *b, uint32_t n, uint64_t seed, double *rate, struct figures *f,
                   struct moe_err *err)
{
    struct moe_session *s = b->engine->session;
    struct moe_generator *batch;
    int status = moe_generator_open(&batch, s, s->n_sequences, 0, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < n && status == MOE_OK; i++)
        status = add(b, batch, seed + i, err);
    s->stats = (struct moe_stats){0};
    b->n_experts = b->n_layers = 0;
    while (status == MOE_OK &&
           moe_generator_state(batch)->n_running + moe_generator_state(batch)->n_waiting > 0)
        moe_generator_step(batch);
    moe_generator_close(batch);
    const struct moe_phase_stats *d = &s->stats.decode;
    double n_steps = d->tokens ? (double)d->tokens / n : 1;
    *rate = d->seconds > 0 ? (double)d->tokens / d->seconds : 0;
    *f = (struct figures){
        .step_seconds = d->seconds / n_steps,
        .experts = b->n_layers ? (double)b->n_experts / (double)b->n_layers : 0,
        .loads = (double)d->experts.loads / n_steps,
        .bytes = (double)d->bytes_read / n_steps,
        .waited = d->seconds > 0 ? d->stall_seconds / d->seconds : 0,
        .reading = d->seconds > 0 ? d->read_seconds / d->seconds : 0,
        .hits = d->experts.activations
                    ? (double)(d->experts.cache_hits + d->experts.prefetch_hits) /
                          (double)d->experts.activations
                    : 1,
    };
    return status;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* All counts, ROUNDS times; rates by rising value. */
static int measure_all(struct bench *b, uint64_t expert_bytes, struct figures all[N_COUNTS],
                       struct moe_err *err)
{
    const struct moe_engine_options o = {
        .expert_memory_bytes = expert_bytes,
        .session = {.context = (uint32_t)b->n_tokens + b->n_prompt,
                    .n_sequences = MOST,
                    .batch = 64},
    };
    int status = moe_engine_open(&b->engine, b->path, &o, NULL, err);
    if (status != MOE_OK)
        return status;
    status = read_texts(b, err);
    struct figures f;
    double rates[N_COUNTS][ROUNDS], unused;
    uint64_t seed = 1;
    b->engine->session->observer.ctx = b;
    b->engine->session->observer.routed = routed;
    if (status == MOE_OK)
        status = measure(b, MOST, seed, &unused, &f, err); /* warm */
    for (int round = 0; round < ROUNDS && status == MOE_OK; round++)
        for (int i = 0; i < N_COUNTS && status == MOE_OK; i++)
            status = measure(b, counts[i], seed += MOST, &rates[i][round], &all[i], err);
    for (int i = 0; i < N_COUNTS && status == MOE_OK; i++) {
        memcpy(all[i].rates, rates[i], sizeof rates[i]);
        qsort(all[i].rates, ROUNDS, sizeof all[i].rates[0], by_value);
    }
    printf("%s, %d threads, %" PRIu64 " MiB of experts, %s\n", b->path, moe_par_threads(),
           expert_bytes >> 20, b->engine->strategy.name);
    moe_engine_close(b->engine);
    return status;
}

/* ---- The disk ---- */

static int disk_rate(const char *path, double *rate, struct moe_err *err)
{
    enum { N_LOADS = 256 };
    struct moe_load loads[N_LOADS];
    struct moe_model *m;
    struct read_figures f = {0};
    int status = moe_model_open_directory(&m, path, err);
    if (status != MOE_OK)
        return status;
    struct reads r = {loads, N_LOADS, 0, 88172645463325252u};
    const struct moe_loader_options o = {.fd = moe_pack_fd(m->pack), .path = path};
    for (uint32_t i = 0, layer = 0; i < N_LOADS; i++, layer = (layer + 1) % m->config.n_layers) {
        while (!m->config.layers[layer].moe)
            layer = (layer + 1) % m->config.n_layers;
        const struct moe_expert_segment which = {layer, i % m->config.n_experts, 0, 0};
        loads[i] = moe_expert_load(m->pack, &which);
        r.largest = loads[i].stored_bytes > r.largest ? loads[i].stored_bytes : r.largest;
    }
    status = reads_measure(&r, o, READ_BYTES, &f, err);
    *rate = f.bytes_per_second;
    moe_model_close(m);
    return status;
}

/* ---- Showing ---- */

static void show_rates(const struct figures all[N_COUNTS])
{
    printf("sequences  tokens/s  spread  times one   hits\n");
    for (int i = 0; i < N_COUNTS; i++) {
        const double *r = all[i].rates, median = r[ROUNDS / 2];
        printf("%9u %9.1f   +-%2.0f%%  %8.2fx  %4.0f%%\n", counts[i], median,
               50 * (r[ROUNDS - 1] - r[0]) / median, median / all[0].rates[ROUNDS / 2],
               100 * all[i].hits);
    }
}

/* What a step of a cached run takes and does, beside what it cannot beat. */
static void show_steps(const struct figures all[N_COUNTS], const struct figures resident[N_COUNTS],
                       double rate)
{
    printf(
        "\nA step; the disk gives %.0f MB/s. Milliseconds: as measured, those that it waited for "
        "loads, of its\nbytes at the disk's rate, of computing alone; tokens/s if one hides the "
        "other, and if nothing does\n",
        rate / 1e6);
    printf("sequences  experts a layer  loads  MiB read      ms  waiting  reading  read  compute   "
           "hidden  "
           "in turn\n");
    for (int i = 0; i < N_COUNTS; i++) {
        const struct figures *f = &all[i];
        double compute = counts[i] / resident[i].rates[ROUNDS / 2], read = f->bytes / rate;
        printf("%9u %16.1f %6.1f %9.1f %7.1f %8.1f %8.1f %5.1f %8.1f %8.0f %8.0f\n", counts[i],
               f->experts, f->loads, f->bytes / (1 << 20), 1e3 * counts[i] / f->rates[ROUNDS / 2],
               1e3 * f->waited * f->step_seconds, 1e3 * f->reading * f->step_seconds, 1e3 * read,
               1e3 * compute, counts[i] / fmax(read, compute), counts[i] / (read + compute));
    }
}

static int bench(struct bench *b, struct moe_err *err)
{
    struct figures resident[N_COUNTS], cached[N_COUNTS];
    double rate = 0;
    int status = measure_all(b, 0, resident, err);
    if (status != MOE_OK)
        return status;
    show_rates(resident);
    if (!b->expert_bytes)
        return MOE_OK;
    status = disk_rate(b->path, &rate, err);
    printf("\n");
    if (status == MOE_OK)
        status = measure_all(b, b->expert_bytes, cached, err);
    if (status != MOE_OK)
        return status;
    show_rates(cached);
    show_steps(cached, resident, rate);
    return MOE_OK;
}

int main(int argc, char **argv)
{
    struct moe_err err;
    struct bench b = {.path = argv[1],
                      .expert_bytes = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : 0,
                      .n_tokens = argc > 4 ? strtoull(argv[4], NULL, 10) : 64,
                      .n_prompt = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 32};
    if (argc < 2 || b.n_tokens < 2 || b.n_prompt < 1 || b.n_prompt > MAX_PROMPT) {
        fprintf(stderr,
                "usage: bench_batch PACK [THREADS [EXPERT_MIB [TOKENS [PROMPT [TEXT...]]]]]\n");
        return 2;
    }
    b.texts = argv + 6;
    b.n_texts = argc > 6 ? (uint32_t)argc - 6 : 0;
    b.ids = calloc(b.n_texts + 1, sizeof *b.ids);
    if (!b.ids)
        return 1;
    moe_par_set_threads(argc > 2 ? atoi(argv[2]) : moe_cores_available());
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = bench(&b, &err);
    if (status != MOE_OK)
        fprintf(stderr, "bench_batch: %s\n", err.text);
    for (uint32_t i = 0; i < b.n_texts; i++)
        moe_ids_release(&b.ids[i]);
    free(b.ids);
    return status == MOE_OK ? 0 : 1;
}
