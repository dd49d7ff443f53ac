/*
 * A whole model against the machine's limits, all in one run: decode as a share of the memory
 * bandwidth, prefill as a share of peak arithmetic.
 *
 *     bench_model PACK [THREADS [PROMPT_TOKENS [DECODE_TOKENS]]]
 *
 * Decode must read, for every token, all dense weights (of the embedding one row, unless it is the
 * head too) and the chosen experts: bytes/token. Prefill must multiply, for every token, each of
 * these matrices once: MAC/token (attention's own products, a few percent, are not counted; the
 * head runs once). Peaks are measured before and after, by loops that do nothing else.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mem.h"
#include "kern/kern.h"
#include "tune/bench.h"

#include "bench_peaks.h"

enum { READ_BYTES = 512 << 20 };

struct demand {
    double bytes_per_token, macs_per_token;
};

static void add_matrix(struct demand *d, const struct moe_mat *m, double times)
{
    if (!m->data)
        return;
    d->bytes_per_token += times * (double)moe_layout_bytes(m->layout, m->rows, m->cols);
    d->macs_per_token += times * (double)m->rows * m->cols;
}

/* Mean over an expert's matrices: those of class 0, which all experts share in such packs. */
static void add_experts(struct demand *d, const struct moe_model *m)
{
    const struct moe_expert_class *class_ = moe_pack_class_at(m->pack, 0);
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *x = &class_->matrices[i];
        d->bytes_per_token +=
            m->config.top_k * (double)moe_layout_bytes(x->layout, x->rows, x->cols);
        d->macs_per_token += m->config.top_k * (double)x->rows * x->cols;
    }
}

static struct demand token_demand(const struct moe_model *m)
{
    struct demand d = {0};
    for (uint32_t i = 0; i < m->config.n_layers; i++) {
        const struct moe_layer *l = &m->layers[i];
        add_matrix(&d, &l->q, 1);
        add_matrix(&d, &l->k, 1);
        add_matrix(&d, &l->v, 1);
        add_matrix(&d, &l->o, 1);
        add_matrix(&d, &l->gate, 1);
        add_matrix(&d, &l->up, 1);
        add_matrix(&d, &l->down, 1);
        add_matrix(&d, &l->router, 1);
        if (l->is_moe)
            add_experts(&d, m);
    }
    d.bytes_per_token += (double)moe_layout_bytes(m->head.layout, m->head.rows, m->head.cols);
    return d;
}

static double best_read_rate(uint8_t *buffer, int threads)
{
    double best = 0;
    for (int i = 0; i < 5; i++) {
        double rate = bench_read_rate(buffer, READ_BYTES, threads);
        best = rate > best ? rate : best;
    }
    return best;
}

static int fail(const struct moe_err *err)
{
    fprintf(stderr, "bench_model: %s\n", err->text);
    return 1;
}

static int measure(struct moe_model *m, struct moe_session *s, int threads,
                   const struct moe_bench_options *options, struct moe_err *err)
{
    struct moe_bench b;
    uint8_t *buffer = moe_pages_alloc(READ_BYTES, err);
    if (!buffer)
        return MOE_ERR_MEMORY;
    memset(buffer, 1, READ_BYTES);
    double before = best_read_rate(buffer, threads);
    const struct bench_peaks peaks = bench_peaks(moe_kern.level, threads);
    int status = moe_bench(s, options, &b, err);
    double after = best_read_rate(buffer, threads);
    moe_pages_free(buffer, READ_BYTES);
    if (status != MOE_OK)
        return status;
    double read = before > after ? before : after;
    struct demand d = token_demand(m);
    bool bytes = !moe_layout_is_float(moe_pack_class_at(m->pack, 0)->matrices[0].layout.kind);
    double peak = bytes ? peaks.dot : peaks.fma;
    printf("%s, %s, %d threads, streaming read %.1f GB/s (%.1f before, %.1f after)\n",
           moe_pack_path(m->pack), moe_cpu_level_name(moe_kern.level), threads, read * 1e-9,
           before * 1e-9, after * 1e-9);
    printf("decode  %8.2f tokens/s (%.2f to %.2f), %.1f MB/token: %.1f GB/s, %.0f%% of the read\n",
           b.decode.median, b.decode.min, b.decode.max, d.bytes_per_token * 1e-6,
           b.decode.median * d.bytes_per_token * 1e-9,
           100 * b.decode.median * d.bytes_per_token / read);
    printf("prefill %8.2f tokens/s (%.2f to %.2f), %.1f MMAC/token: %.0f GMAC/s, %.0f%% of the %s "
           "peak %.0f\n",
           b.prefill.median, b.prefill.min, b.prefill.max, d.macs_per_token * 1e-6,
           b.prefill.median * d.macs_per_token * 1e-9,
           100 * b.prefill.median * d.macs_per_token / peak, bytes ? "byte-dot" : "fma",
           peak * 1e-9);
    return MOE_OK;
}

int main(int argc, char **argv)
{
    struct moe_err err = {0};
    struct moe_model *model = NULL;
    struct moe_experts *experts = NULL;
    struct moe_session *session = NULL;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_model PACK [THREADS [PROMPT_TOKENS [DECODE_TOKENS]]]\n");
        return 2;
    }
    int threads = argc > 2 ? atoi(argv[2]) : moe_cores_available();
    const struct moe_bench_options options = {
        .prompt_tokens = argc > 3 ? (uint32_t)atoi(argv[3]) : 256,
        .decode_tokens = argc > 4 ? (uint32_t)atoi(argv[4]) : 32,
        .n_runs = 5,
    };
    moe_par_set_threads(threads);
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = moe_model_open(&model, argv[1], 0, NULL, &err);
    if (status == MOE_OK)
        status = moe_experts_open_resident(&experts, model->pack, 0, NULL, NULL, &err);
    if (status == MOE_OK)
        status = moe_session_open(&session, model, experts, NULL, &err);
    if (status == MOE_OK)
        status = measure(model, session, threads, &options, &err);
    moe_session_close(session);
    moe_experts_close(experts);
    moe_model_close(model);
    return status == MOE_OK ? 0 : fail(&err);
}
