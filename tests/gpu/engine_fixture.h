/*
 * One pack opened twice, for the processor and for a device: the same rows go through both, and
 * their logits are compared to the bit.
 */
#ifndef TESTS_GPU_ENGINE_FIXTURE_H
#define TESTS_GPU_ENGINE_FIXTURE_H

#include <unistd.h>

#include "gpu.h"
#include "infer/session.h"
#include "infer/stages.h"
#include "kern/kern.h"

#include "../make_pack.h"

enum { CPU, GPU, N_SIDES };
enum { MAX_ROWS = 64 };

/* The device of a group of tests, for cmocka's group setup and teardown. */
static struct moe_gpu *gpu;

static inline int open_gpu(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    return 0;
}

static inline int close_gpu(void **state)
{
    moe_gpu_close(gpu);
    return 0;
}

struct side {
    struct moe_gpu *gpu; /* NULL: the processor */
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
    float *logits; /* [MAX_ROWS][stride] */
};

struct pair {
    char path[128];
    struct side sides[N_SIDES];
    uint64_t random; /* of tokens */
    uint32_t length; /* of the texts that rows are said to be a part of */
    uint64_t n_compared;
};

/* A pack of the checkpoint at these bits. */
static inline void pair_pack(struct pair *p, const char *checkpoint, struct moe_bits experts,
                             int dense)
{
    struct moe_convert_options options = pack_options("", dense);
    options.experts[options.n_experts++] = experts;
    snprintf(p->path, sizeof p->path, "/tmp/moe-pair-%d.moe", (int)getpid());
    make_pack(p->path, checkpoint, &options);
}

/* Both models, for sessions of up to so many positions (0: the model's). */
static inline void pair_load(struct pair *p, struct moe_gpu *device, uint32_t context)
{
    struct moe_err err = {0};
    p->sides[CPU].gpu = NULL;
    p->sides[GPU].gpu = device;
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++) {
        assert_ok(moe_model_open_directory(&s->model, p->path, &err), &err);
        assert_ok(moe_model_load(s->model, context, s->gpu, NULL, &err), &err);
        s->logits = calloc(MAX_ROWS * moe_logits_stride(&s->model->config), sizeof *s->logits);
        assert_non_null(s->logits);
    }
}

/* Resident experts, or (on the device) a cache of about two slots a layer, which the host fills:
 * its own experts are in memory anyhow. */
static inline void pair_experts(struct pair *p, bool cached)
{
    struct moe_err err = {0};
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++) {
        const struct moe_pack *pack = s->model->pack;
        const struct moe_config *c = &s->model->config;
        uint64_t least, all;
        if (!cached || !s->gpu) {
            assert_ok(moe_experts_open_resident(&s->experts, pack, 0, s->gpu, NULL, &err), &err);
            continue;
        }
        struct moe_cache_options o = {
            .cache_bytes = 2 * c->n_layers * moe_cache_slot_bytes(pack, 0),
            .n_working = 2,
            .top_k = c->top_k,
            .gpu = s->gpu,
            .loader = {.verify = true},
        };
        moe_cache_host_bytes(pack, &o, &least, &all);
        o.host_bytes = least + (all - least) / 2;
        assert_ok(moe_experts_open_cached(&s->experts, pack, c->top_k, &o, NULL, &err), &err);
    }
}

/* Sessions of these options; gpu is filled in. */
static inline void pair_sessions(struct pair *p, struct moe_session_options o)
{
    struct moe_err err = {0};
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++) {
        o.gpu = s->gpu;
        assert_ok(moe_session_open(&s->session, s->model, s->experts, &o, &err), &err);
    }
}

static inline void pair_close_sessions(struct pair *p)
{
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++) {
        moe_session_close(s->session);
        s->session = NULL;
    }
}

static inline void pair_close_experts(struct pair *p)
{
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++) {
        moe_experts_close(s->experts);
        s->experts = NULL;
    }
}

static inline void pair_close(struct pair *p)
{
    pair_close_sessions(p);
    pair_close_experts(p);
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++) {
        moe_model_close(s->model);
        free(s->logits);
        assert_true(!s->gpu || moe_gpu_allocated_bytes(s->gpu) == 0);
        *s = (struct side){0};
    }
    unlink(p->path);
}

static inline uint32_t pair_token(struct pair *p)
{
    return (uint32_t)(test_random(&p->random) % p->sides[CPU].model->config.vocab);
}

/* Rows [first, first + n) of a sequence, with random tokens. */
static inline void pair_rows(struct pair *p, struct moe_row *rows, uint32_t sequence,
                             uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){sequence, first + i, pair_token(p), p->length};
}

/* The rows on one side; logits of the last n_logits of them. */
static inline void side_forward(struct side *s, const struct moe_row *rows, uint32_t n,
                                uint32_t n_logits)
{
    struct moe_err err = {0};
    enum moe_phase phase = n > 1 ? MOE_PREFILL : MOE_DECODE;
    assert_ok(
        moe_forward(s->session, phase, rows, n, 0, s->model->config.n_layers, NULL, NULL, &err),
        &err);
    assert_ok(moe_logits(s->session, n - n_logits, n_logits, s->logits, &err), &err);
}

/* That n rows of floats are the same bits. */
static inline void same_rows(const float *got, const float *want, uint64_t stride, uint32_t n,
                             uint32_t cols, const char *what)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < cols; k++)
            if (memcmp(&got[i * stride + k], &want[i * stride + k], sizeof *got) != 0)
                fail_msg("%s: row %u of %u, column %u: %.9g on the device, %.9g on the processor",
                         what, i, n, k, (double)got[i * stride + k], (double)want[i * stride + k]);
}

/* Both sides compute the rows: the last n_logits have the same logits. */
static inline void pair_forward(struct pair *p, const struct moe_row *rows, uint32_t n,
                                uint32_t n_logits, const char *what)
{
    const struct moe_config *c = &p->sides[CPU].model->config;
    for (struct side *s = p->sides; s < p->sides + N_SIDES; s++)
        side_forward(s, rows, n, n_logits);
    same_rows(p->sides[GPU].logits, p->sides[CPU].logits, moe_logits_stride(c), n_logits, c->vocab,
              what);
    p->n_compared += n_logits;
}

#endif
