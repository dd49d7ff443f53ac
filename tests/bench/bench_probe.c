/*
 * What profiling costs: documents through the model without and with the probe, in alternation.
 *
 *     bench_probe PACK TEXT [ROUNDS]
 *
 * Prints seconds of both and their ratio, medians of ROUNDS (5). A trace is not written.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/par.h"
#include "engine/engine.h"
#include "kern/kern.h"
#include "tune/documents.h"
#include "tune/probe.h"

enum { MAX_TOKENS = 256, MAX_ROUNDS = 99 };

struct bench {
    struct moe_session *session;
    struct moe_probe *probe; /* NULL: plain */
    uint64_t tokens;
};

static int run_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct bench *b = ctx;
    struct moe_row rows[MAX_TOKENS];
    b->tokens += n;
    if (b->probe)
        return moe_probe_document(b->probe, ids, (uint32_t)n, err);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, i, ids[i], 0};
    return moe_forward(b->session, MOE_PREFILL, rows, (uint32_t)n, 0,
                       b->session->model->config.n_layers, NULL, NULL, err);
}

/* One pass over the text. */
static int pass(struct bench *b, const char *text, bool probing, double *seconds,
                struct moe_err *err)
{
    const struct moe_documents documents = {
        .tokenizer = b->session->model->tokenizer, .max_tokens = MAX_TOKENS, .max_windows = 1};
    struct moe_statistics *statistics = NULL;
    struct moe_statistics_shape shape = moe_model_statistics_shape(b->session->model);
    shape.max_tokens = MAX_TOKENS;
    shape.prompt_percent = 50;
    int status = probing ? moe_statistics_new(&statistics, &shape, err) : MOE_OK;
    if (status == MOE_OK && probing)
        status = moe_probe_open(&b->probe, b->session, statistics, err);
    double started = moe_seconds();
    b->tokens = 0;
    if (status == MOE_OK)
        status = moe_documents_each(&documents, text, run_document, b, err);
    *seconds = moe_seconds() - started;
    moe_probe_close(b->probe);
    b->probe = NULL;
    moe_statistics_free(statistics);
    return status;
}

static int rising(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_probe PACK TEXT [ROUNDS]\n");
        return 2;
    }
    int rounds = argc > 3 ? atoi(argv[3]) : 5;
    rounds = rounds < 1 ? 1 : rounds > MAX_ROUNDS ? MAX_ROUNDS : rounds;
    double plain[MAX_ROUNDS], probed[MAX_ROUNDS], ignored;
    struct moe_err err = {0};
    struct moe_engine *engine = NULL;
    struct bench b = {0};
    const struct moe_engine_options options = {.session = {.context = MAX_TOKENS}};
    moe_par_set_threads(moe_cores_available());
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = moe_engine_open(&engine, argv[1], &options, NULL, &err);
    if (status == MOE_OK) {
        b.session = engine->session;
        status = pass(&b, argv[2], false, &ignored, &err); /* warms up */
    }
    for (int i = 0; i < rounds && status == MOE_OK; i++) {
        status = pass(&b, argv[2], false, &plain[i], &err);
        if (status == MOE_OK)
            status = pass(&b, argv[2], true, &probed[i], &err);
    }
    moe_engine_close(engine);
    if (status != MOE_OK) {
        fprintf(stderr, "bench_probe: %s\n", err.text);
        return 1;
    }
    qsort(plain, (size_t)rounds, sizeof *plain, rising);
    qsort(probed, (size_t)rounds, sizeof *probed, rising);
    double a = plain[rounds / 2], c = probed[rounds / 2];
    printf("%llu tokens: plain %.3f s (%.3f-%.3f), with the probe %.3f s (%.3f-%.3f): %.2f times\n",
           (unsigned long long)b.tokens, a, plain[0], plain[rounds - 1], c, probed[0],
           probed[rounds - 1], c / a);
    return 0;
}
