/*
 * Attention over long texts by how keys and values are kept (infer/kv.h): bytes of a position and
 * processor time of one decoded token, a layer.
 *
 *   bench_kv [POSITIONS...]      by default 2048 8192 32768
 *
 * Heads are those of Qwen3-30B-A3B: 32, of 128 dimensions, 4 of keys and values. One thread; the
 * cache is filled with random numbers. For each level of instructions and kind in turn the least of
 * ROUNDS times, of as many passes as take 20 ms at least.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/par.h"
#include "base/random.h"
#include "infer/cpu_stages.h"
#include "infer/session.h"
#include "kern/kern.h"

enum { ROUNDS = 5, BATCH = 64 };

static const char *const kinds[] = {"f32", "f16", "q8", "q8,q4", "q4"};

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void draw(float *x, uint64_t n, uint64_t *seed)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = (float)(moe_random_next(seed) >> 40) * 0x1p-23f - 1;
}

static void fill(struct moe_session *s, uint64_t *seed)
{
    struct cpu_attention *w = &((struct cpu_work *)s->device)->attention;
    struct moe_row rows[BATCH];
    for (uint32_t first = 0; first < s->context; first += BATCH) {
        for (uint32_t i = 0; i < BATCH; i++)
            rows[i] = (struct moe_row){.position = first + i};
        draw(w->k, BATCH * w->stride.k, seed);
        draw(w->v, BATCH * w->stride.v, seed);
        stages_cpu_store(s, 0, rows, BATCH);
    }
    draw(w->q, w->stride.q, seed);
}

static double attend(struct moe_session *s)
{
    const struct moe_row row = {.position = s->context - 1};
    double best = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double begin = cpu_seconds(), taken;
        int n = 0;
        do {
            moe_attention_rows(s, 0, &row, 0, 1, NULL);
            n++;
        } while ((taken = cpu_seconds() - begin) < 0.02);
        best = taken / n < best ? taken / n : best;
    }
    return best;
}

static int measure(const struct moe_config *c, struct moe_layer *layers, uint32_t context,
                   struct moe_err *err)
{
    static const enum moe_cpu_level levels[] = {MOE_CPU_NEON, MOE_CPU_AVX2, MOE_CPU_AVX512};
    struct moe_model model = {.config = *c, .layers = layers, .rope_positions = context};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const struct moe_session_options o = {
            .context = context, .batch = BATCH, .kv_kind = moe_kv_kind_find(kinds[k])};
        struct moe_session *s;
        uint64_t seed = 1;
        MOE_TRY(moe_session_open(&s, &model, NULL, &o, err));
        int status = moe_sequence_reserve(s, 0, context, err);
        if (status == MOE_OK)
            fill(s, &seed);
        printf("%7u %-6s %6llu", context, kinds[k],
               (unsigned long long)(moe_session_kv_bytes(c, &o) / context));
        for (size_t l = 0; l < sizeof levels / sizeof *levels && status == MOE_OK; l++)
            if (moe_cpu_supports(levels[l]) && (status = moe_kern_select(levels[l], err)) == MOE_OK)
                printf(" %s %8.1f us", moe_cpu_level_name(levels[l]), attend(s) * 1e6);
        printf("\n");
        moe_session_close(s);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

int main(int argc, char **argv)
{
    static const char *const usual[] = {"2048", "8192", "32768"};
    struct moe_layer layers[1] = {{0}};
    struct moe_config c;
    struct moe_err err = {0};
    int status = MOE_OK;
    moe_config_init(&c);
    c.n_layers = 1;
    c.hidden = c.vocab = 16;
    c.n_heads = 32;
    c.n_kv_heads = 4;
    c.head_dim = c.value_dim = 128;
    c.attn_scale = 0.0884f;
    moe_config_complete(&c);
    moe_par_set_threads(1);
    printf("positions, kind, bytes of a position, processor time of a token\n");
    for (int i = 0; i < (argc > 1 ? argc - 1 : 3) && status == MOE_OK; i++)
        status = measure(&c, layers, (uint32_t)strtoul(argc > 1 ? argv[i + 1] : usual[i], NULL, 10),
                         &err);
    if (status != MOE_OK)
        fprintf(stderr, "bench_kv: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
