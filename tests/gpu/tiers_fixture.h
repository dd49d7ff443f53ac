/*
 * What the tests of experts on a GPU share: packs of the bundled model, and passes of random
 * requests in place of a model's, each of whose views is fetched from the device by the computing
 * stream, as a kernel would, and compared with the pack when the pass is over.
 */
#ifndef TESTS_GPU_TIERS_FIXTURE_H
#define TESTS_GPU_TIERS_FIXTURE_H

#include <unistd.h>

#include "base/mem.h"
#include "base/par.h"
#include "gpu.h"
#include "infer/experts.h"
#include "kern/kern.h"

#include "../make_pack.h"

enum { LAYERS = 12, EXPERTS = 32, TOP_K = 4, VARIANTS = 2 };
enum { MATRICES = 3, MAX_VIEWS = LAYERS * EXPERTS };

/* ---- Packs ---- */

/* Experts of two precisions; the down matrix of the better one is larger, so that there are several
 * segments and size classes. */
static inline struct moe_pack *tiers_pack(char path[128], int zstd_level)
{
    struct moe_err err = {0};
    struct moe_pack *pack = NULL;
    struct moe_convert_options options = pack_options("4d8,2", 8);
    options.zstd_level = zstd_level;
    snprintf(path, 128, "/tmp/moe-tiers-%d-%d.moe", zstd_level, (int)getpid());
    bundled_pack(path, &options);
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    return pack;
}

/* Every expert as it is in the pack, and as much page-locked room for what comes from a device:
 * from there copies are asked for and not waited for. */
struct tiers_truth {
    uint8_t *memory, *room;
    uint64_t bytes;
    struct moe_expert_view views[LAYERS][EXPERTS][VARIANTS];
};

static inline void tiers_truth_open(struct tiers_truth *t, const struct moe_pack *pack,
                                    struct moe_gpu *gpu)
{
    struct moe_err err = {0};
    struct moe_arena arena = {0};
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < LAYERS * EXPERTS * VARIANTS; i++) {
            struct moe_expert_view *view = &t->views[0][0][0] + i;
            *view = (struct moe_expert_view){i / VARIANTS / EXPERTS, i / VARIANTS % EXPERTS,
                                             i % VARIANTS, .gate_bias = NULL};
            assert_ok(moe_expert_view_read(view, pack, &arena, &err), &err);
        }
        if (round == 0) {
            t->bytes = arena.used;
            t->memory = moe_pages_alloc(t->bytes, &err);
            t->room = moe_pages_alloc(t->bytes, &err);
            assert_ok(moe_gpu_pin(gpu, t->room, t->bytes, &err), &err);
            arena = (struct moe_arena){.base = t->memory, .size = t->bytes};
        }
    }
}

static inline void tiers_truth_close(struct tiers_truth *t, struct moe_gpu *gpu)
{
    moe_gpu_unpin(gpu, t->room);
    moe_pages_free(t->room, t->bytes);
    moe_pages_free(t->memory, t->bytes);
}

static inline const struct moe_mat *tiers_matrix(const struct moe_expert_view *view, int i)
{
    return i == 0 ? &view->gate : i == 1 ? &view->up : &view->down;
}

static inline uint64_t tiers_matrix_bytes(const struct moe_mat *m)
{
    return moe_layout_bytes(m->layout, m->rows, m->cols);
}

static inline void tiers_compare(const struct tiers_truth *t, const struct moe_expert_view *view,
                                 int matrix, const void *bytes)
{
    const struct moe_expert_view *want = &t->views[view->layer][view->expert][view->variant];
    const struct moe_mat *m = tiers_matrix(want, matrix), *got = tiers_matrix(view, matrix);
    if (m->rows != got->rows || m->cols != got->cols ||
        memcmp(&m->layout, &got->layout, sizeof m->layout) != 0)
        fail_msg("layer %u expert %u variant %u: another matrix", view->layer, view->expert,
                 view->variant);
    if (memcmp(bytes, m->data, tiers_matrix_bytes(m)) != 0)
        fail_msg("layer %u expert %u variant %u matrix %d: other bytes than the pack's",
                 view->layer, view->expert, view->variant, matrix);
}

/* ---- Random passes ---- */

struct tiers_drive {
    struct moe_gpu *gpu; /* NULL: views are on the host */
    struct moe_experts *experts;
    const struct tiers_truth *truth;
    uint64_t random;
    bool predicts;
    bool loses_device;      /* at any time: where a pass has not noticed, the next one does */
    double compute_seconds; /* of each expert, in lockstep */
    struct moe_phase_stats phase;

    /* What was fetched in this pass. */
    struct moe_expert_view views[MAX_VIEWS];
    uint8_t *fetched[MAX_VIEWS][MATRICES]; /* in the truth's room */
    uint64_t room_used;
    uint32_t n_views;

    uint64_t n_checked; /* experts */
    uint64_t trail;     /* a hash of everything decided, and when, in lockstep */
};

static inline void tiers_note(struct tiers_drive *d, uint64_t what)
{
    d->trail = (d->trail ^ what) * 0x100000001b3u;
}

static inline void tiers_note_clock(struct tiers_drive *d)
{
    union {
        double seconds;
        uint64_t bits;
    } clock = {.seconds = moe_experts_clock(d->experts)};
    if (d->experts->lockstep)
        tiers_note(d, clock.bits);
}

/* The computing stream reads the matrix, at some later time. */
static inline void tiers_fetch(struct tiers_drive *d, uint32_t view, int matrix)
{
    const struct moe_mat *m = tiers_matrix(&d->views[view], matrix);
    uint64_t bytes = tiers_matrix_bytes(m);
    if (!d->gpu) {
        tiers_compare(d->truth, &d->views[view], matrix, m->data);
        return;
    }
    d->fetched[view][matrix] = d->truth->room + d->room_used;
    d->room_used += bytes;
    assert_true(d->room_used <= d->truth->bytes);
    moe_gpu_download(d->gpu, MOE_GPU_COMPUTE, d->fetched[view][matrix], m->data, bytes);
}

static inline void tiers_predicted(struct tiers_drive *d, uint32_t layer)
{
    struct moe_err err = {0};
    float scores[EXPERTS], unimportance[EXPERTS];
    if (!d->predicts || layer + 1 >= LAYERS)
        return;
    for (uint32_t e = 0; e < EXPERTS; e++) {
        scores[e] = (float)(test_random(&d->random) % 1000) / 1000;
        unimportance[e] = (float)(test_random(&d->random) % 3) / 2;
    }
    const struct moe_prediction p = {layer + 1, 1, scores, unimportance};
    assert_ok(moe_scheduler_predicted(d->experts->scheduler, &p, 1, &err), &err);
}

/* An expert computed on the host lies there, whole. */
static inline void tiers_check_host(struct tiers_drive *d, uint32_t layer, uint32_t expert,
                                    uint32_t variant)
{
    struct moe_expert_view view = {.layer = layer, .expert = expert, .variant = variant};
    d->experts->ops->host_view(d->experts, layer, &view);
    for (int i = 0; i < MATRICES; i++)
        tiers_compare(d->truth, &view, i, tiers_matrix(&view, i)->data);
    d->n_checked++;
}

/* Experts of a request as they come. */
static inline int tiers_take(struct tiers_drive *d, const struct moe_layer_request *request,
                             struct moe_err *err)
{
    const struct moe_experts_ops *ops = d->experts->ops;
    uint32_t left = 0, n;
    const struct moe_entry *entries = moe_scheduler_entries(d->experts->scheduler, &n);
    for (uint32_t i = 0; i < request->n_entries; i++) {
        tiers_note(d, request->kinds[i]);
        left += request->kinds[i] == MOE_ENTRY_SLOT;
        if (request->kinds[i] == MOE_ENTRY_HOST)
            tiers_check_host(d, request->layer, request->needs[i].expert, entries[i].variant);
    }
    while (left > 0) {
        uint32_t which[4];
        struct moe_expert_view views[4];
        int status = ops->next(d->experts, 1 + (uint32_t)(test_random(&d->random) % 4), which,
                               views, &n, err);
        if (status != MOE_OK)
            return status;
        tiers_note_clock(d);
        left -= n;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t view = d->n_views++;
            assert_int_equal(views[i].expert, request->needs[which[i]].expert);
            d->views[view] = views[i];
            tiers_note(d, which[i]);
            tiers_fetch(d, view, 0);
            tiers_fetch(d, view, 1);
            status = moe_scheduler_complete(d->experts->scheduler, which[i], err);
            if (status != MOE_OK)
                return status;
            tiers_fetch(d, view, 2);
            if (d->experts->lockstep)
                ops->computed(d->experts, d->compute_seconds);
            ops->release(d->experts, which[i]);
            d->n_checked++;
        }
        status = moe_scheduler_poll(d->experts->scheduler, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

static inline int tiers_layer(struct tiers_drive *d, uint32_t layer, struct moe_err *err)
{
    struct moe_need needs[EXPERTS];
    uint8_t kinds[EXPERTS] = {0};
    uint32_t n = 0, some = 1 + (uint32_t)(test_random(&d->random) % 6);
    for (uint32_t e = 0; e < EXPERTS; e++)
        if (test_random(&d->random) % EXPERTS < some || (e + 1 == EXPERTS && n == 0))
            needs[n++] = (struct moe_need){e, 1, (float)(test_random(&d->random) % 100) / 100,
                                           .precalculated = false};
    const struct moe_layer_request request = {
        .layer = layer, .moe = layer, .n_entries = n, .needs = needs, .kinds = kinds};
    int status = d->experts->ops->begin(d->experts, &request, &d->phase, err);
    if (status == MOE_OK)
        status = moe_scheduler_request(d->experts->scheduler, layer, needs, n, err);
    const struct moe_entry *entries = moe_scheduler_entries(d->experts->scheduler, &n);
    for (uint32_t i = 0; i < n; i++)
        kinds[i] = (uint8_t)entries[i].kind;
    tiers_note_clock(d);
    if (status == MOE_OK)
        tiers_predicted(d, layer);
    return status == MOE_OK ? tiers_take(d, &request, err) : status;
}

/* Compares what was fetched, unless the pass failed. */
static inline void tiers_look(struct tiers_drive *d, bool compare)
{
    struct moe_err err = {0};
    int status = d->gpu ? moe_gpu_finish(d->gpu, &err) : MOE_OK;
    if (compare && d->loses_device)
        compare = status == MOE_OK;
    else if (compare)
        assert_ok(status, &err);
    for (uint32_t i = 0; i < d->n_views && compare && d->gpu; i++)
        for (int m = 0; m < MATRICES; m++)
            tiers_compare(d->truth, &d->views[i], m, d->fetched[i][m]);
    d->n_views = 0;
    d->room_used = 0;
}

/* One token, or a small batch. */
static inline int tiers_pass(struct tiers_drive *d, struct moe_err *err)
{
    const struct moe_experts_ops *ops = d->experts->ops;
    bool prefill = test_random(&d->random) % 4 == 0;
    int status = MOE_OK;
    ops->begin_tokens(d->experts, 1, prefill, &d->phase);
    for (uint32_t layer = 0; layer < LAYERS && status == MOE_OK; layer++)
        status = tiers_layer(d, layer, err);
    ops->end_tokens(d->experts, 1e-3);
    d->phase.tokens++;
    tiers_look(d, status == MOE_OK);
    return status;
}

/* Opens with these options, or fails the test. */
static inline struct moe_experts *tiers_open(const struct moe_pack *pack,
                                             const struct moe_cache_options *o)
{
    struct moe_err err = {0};
    struct moe_experts *experts = NULL;
    assert_ok(moe_experts_open_cached(&experts, pack, TOP_K, o, NULL, &err), &err);
    return experts;
}

#endif
