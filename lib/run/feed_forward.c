/*
 * Feed-forward: the experts that the router chose (router.c) as they become ready, the shared
 * expert; or a dense layer's.
 *
 * Every expert writes its own rows of expert_out; they are added per token in the router's order at
 * the end, so that the sum does not depend on when an expert arrived.
 */
#include <string.h>

#include "run/ahead.h"
#include "run/expert_compute.h"
#include "run/lockstep.h"
#include "run/workspace.h"
#include "sched/precision.h"

/* Expert and class of an activation as one number; classes are the assigner's variants and, last,
 * what is left out; without an assigner there is one. */
static uint32_t key_of(const struct moe_session *s, uint64_t activation)
{
    const struct moe_workspace *w = s->work;
    uint32_t class_ = 0;
    if (s->assigner) {
        uint32_t variant = w->variants[activation];
        class_ = variant < w->n_classes - 1 ? variant : w->n_classes - 1;
    }
    return w->chosen[activation] * w->n_classes + class_;
}

/* Groups the batch by expert (and class): active ones ascending, and which rows want each. */
static uint32_t group_by_expert(const struct moe_session *s, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct moe_workspace *w = s->work;
    uint64_t n_pairs = (uint64_t)n_rows * c->top_k;
    uint32_t n_active = 0, total = 0, n_keys = c->n_experts * w->n_classes;
    memset(w->cursor, 0, n_keys * sizeof *w->cursor);
    for (uint64_t i = 0; i < n_pairs; i++)
        w->cursor[key_of(s, i)]++;
    for (uint32_t key = 0; key < n_keys; key++) {
        uint32_t count = w->cursor[key];
        if (count == 0)
            continue;
        w->active[n_active] = key / w->n_classes;
        w->entry_classes[n_active] = (uint8_t)(key % w->n_classes);
        w->n_rows[n_active] = count;
        w->first[n_active++] = total;
        w->cursor[key] = total;
        total += count;
    }
    for (uint64_t i = 0; i < n_pairs; i++) {
        uint32_t slot = w->cursor[key_of(s, i)]++;
        w->expert_rows[slot] = (uint32_t)(i / c->top_k);
        w->slot_of[i] = slot;
    }
    return n_active;
}

/* The request as the scheduler wants it: how much each expert matters to the row that it matters to
 * most. */
static void list_needs(struct moe_workspace *w, const struct moe_config *c, uint32_t n_rows,
                       uint32_t n_active, const uint8_t *precalculated)
{
    for (uint32_t i = 0; i < n_active; i++)
        w->unimportance[w->active[i]] = 2;
    moe_least_unimportance(w->chosen, w->weights, n_rows, c->top_k, w->unimportance);
    for (uint32_t i = 0; i < n_active; i++)
        w->needs[i] = (struct moe_need){
            .expert = w->active[i],
            .n_rows = w->n_rows[i],
            .unimportance = w->unimportance[w->active[i]],
            .precalculated = precalculated && precalculated[w->active[i]],
        };
}

/* ---- Computing ---------------------------------------------------------------------------------
 */

/* Rows of gate and up side by side. `views`: the experts they belong to, row i to views[i * step];
 * NULL: not experts'. */
struct activation {
    const struct moe_config *config;
    float *gate, *up;
    uint64_t stride;
    uint32_t width;
    const struct moe_expert_view *views;
    uint32_t step;
};

static void activate_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct activation *a = ctx;
    for (int64_t i = begin; i < end; i++)
        moe_activate_row(a->config, a->views ? &a->views[i * a->step] : NULL, a->width,
                         a->gate + (uint64_t)i * a->stride, a->up + (uint64_t)i * a->stride);
}

/* work->gate[n][ff] = activation of gate x and up x for the n rows of `in`. */
static void gated_in(struct moe_session *s, struct moe_inputs *in, const struct moe_mat *gate,
                     const struct moe_mat *up, const struct moe_expert_view *view)
{
    struct moe_workspace *w = s->work;
    struct moe_mm mm[2] = {
        moe_inputs_mm(in, *gate, w->gate, w->ff_stride),
        moe_inputs_mm(in, *up, w->up, w->ff_stride),
    };
    moe_matmul(mm, 2);
    struct activation a = {&s->model->config, w->gate, w->up, w->ff_stride, gate->rows, view, 0};
    moe_par_for(in->n, 4, activate_rows, &a);
}

/* out[n][hidden_stride] = down times the first n rows of work->gate. */
static void gated_out(struct moe_workspace *w, uint32_t n, const struct moe_mat *down, float *out)
{
    moe_inputs_set(&w->from_ff, w->gate, w->ff_stride, NULL, n, down->cols);
    struct moe_mm mm = moe_inputs_mm(&w->from_ff, *down, out, w->hidden_stride);
    moe_matmul(&mm, 1);
}

/* A dense layer's feed-forward, or the shared expert: into work->sum. */
static void run_dense(struct moe_session *s, const struct moe_layer *l)
{
    struct moe_workspace *w = s->work;
    gated_in(s, &w->from_hidden, &l->gate, &l->up, NULL);
    gated_out(w, w->from_hidden.n, &l->down, w->sum);
}

/* One expert for all rows of a batch that want it. */
static int run_expert(struct moe_session *s, uint32_t which, const struct moe_expert_view *view,
                      struct moe_err *err)
{
    struct moe_workspace *w = s->work;
    float *out = w->expert_out + w->first[which] * w->hidden_stride;
    moe_inputs_set(&w->gathered, w->xn, w->hidden_stride, w->expert_rows + w->first[which],
                   w->n_rows[which], s->model->config.hidden);
    gated_in(s, &w->gathered, &view->gate, &view->up, view);
    moe_lockstep_expert(s, view->variant, w->n_rows[which], false);
    int status = s->experts->ops->complete(s->experts, which, err);
    if (status == MOE_OK) {
        gated_out(w, w->n_rows[which], &view->down, out);
        moe_add_down_bias(view, w->n_rows[which], out, w->hidden_stride);
        moe_lockstep_expert(s, view->variant, w->n_rows[which], true);
    }
    return status;
}

/* Several experts for the one row of a decode step, side by side: three parallel loops in all
 * instead of three an expert. */
static int run_side_by_side(struct moe_session *s, const uint32_t *which,
                            const struct moe_expert_view *views, uint32_t n, struct moe_err *err)
{
    struct moe_workspace *w = s->work;
    struct moe_mm mm[2 * MOE_MAX_TOP_K];
    for (uint32_t i = 0; i < n; i++) {
        float *gate = w->gate + i * w->ff_stride, *up = w->up + i * w->ff_stride;
        mm[2 * i] = moe_inputs_mm(&w->from_hidden, views[i].gate, gate, w->ff_stride);
        mm[2 * i + 1] = moe_inputs_mm(&w->from_hidden, views[i].up, up, w->ff_stride);
    }
    moe_matmul(mm, (int)(2 * n));
    struct activation a = {&s->model->config,  w->gate, w->up, w->ff_stride,
                           views[0].gate.rows, views,   1};
    moe_par_for(n, 4, activate_rows, &a);
    for (uint32_t i = 0; i < n; i++)
        moe_lockstep_expert(s, views[i].variant, 1, false);
    for (uint32_t i = 0; i < n; i++) {
        int status = s->experts->ops->complete(s->experts, which[i], err);
        if (status != MOE_OK)
            return status;
        moe_inputs_set(&w->single[i], w->gate + i * w->ff_stride, w->ff_stride, NULL, 1,
                       views[i].down.cols);
        mm[i] =
            moe_inputs_mm(&w->single[i], views[i].down,
                          w->expert_out + w->first[which[i]] * w->hidden_stride, w->hidden_stride);
    }
    moe_matmul(mm, (int)n);
    for (uint32_t i = 0; i < n; i++) {
        moe_add_down_bias(&views[i], 1, mm[i].y, w->hidden_stride);
        moe_lockstep_expert(s, views[i].variant, 1, true);
    }
    return MOE_OK;
}

/* Experts of the request that are computed here; those left out give nothing. */
static uint32_t count_here(struct moe_workspace *w, uint32_t n_active)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_active; i++) {
        n += w->kinds[i] == MOE_ENTRY_SLOT;
        if (w->kinds[i] == MOE_ENTRY_SKIPPED)
            memset(w->expert_out + w->first[i] * w->hidden_stride, 0,
                   w->n_rows[i] * w->hidden_stride * sizeof *w->expert_out);
    }
    return n;
}

/* Computes the experts of the request that has begun, each as it becomes ready. */
static int run_experts(struct moe_session *s, uint32_t n_rows, uint32_t n_active,
                       struct moe_err *err)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    uint32_t n_here = count_here(s->work, n_active);
    for (uint32_t done = 0, n; done < n_here; done += n) {
        uint32_t which[MOE_MAX_TOP_K];
        struct moe_expert_view views[MOE_MAX_TOP_K];
        /* A batch takes them one by one: each has work enough for all threads. */
        int status = ops->next(s->experts, n_rows == 1 ? MOE_MAX_TOP_K : 1, which, views, &n, err);
        if (status == MOE_OK)
            status = n_rows == 1 ? run_side_by_side(s, which, views, n, err)
                                 : run_expert(s, which[0], &views[0], err);
        if (status != MOE_OK)
            return status;
        for (uint32_t i = 0; i < n; i++)
            ops->release(s->experts, which[i]);
    }
    return MOE_OK;
}

struct combine {
    struct moe_session *s;
    bool shared_gate;
};

/* The stream receives the experts' outputs, added by rank, and the shared expert's, which is
 * already in sum, scaled by its gate. */
static void combine_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct combine *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    struct moe_workspace *w = m->s->work;
    for (int64_t i = begin; i < end; i++) {
        float *sum = w->sum + (uint64_t)i * w->hidden_stride;
        float *h = w->h + (uint64_t)i * w->hidden_stride;
        float *acc = w->xn + (uint64_t)i * w->hidden_stride; /* no longer needed */
        memset(acc, 0, c->hidden * sizeof *acc);
        for (uint32_t k = 0; k < c->top_k; k++)
            moe_kern.axpy(w->weights[(uint64_t)i * c->top_k + k],
                          w->expert_out + w->slot_of[(uint64_t)i * c->top_k + k] * w->hidden_stride,
                          c->hidden, acc);
        if (c->shared_ff) {
            float scale = 1;
            if (m->shared_gate)
                scale = 1 / (1 + moe_expf(-w->shared_scale[i * MOE_PANEL_ROWS]));
            moe_kern.axpy(scale, sum, c->hidden, acc);
        }
        moe_kern.axpy(c->residual_scale, acc, c->hidden, h);
    }
}

int moe_feed_forward(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    struct moe_workspace *w = s->work;
    moe_inputs_set(&w->from_hidden, w->xn, w->hidden_stride, NULL, n_rows, s->model->config.hidden);
    if (!l->is_moe) {
        run_dense(s, l);
        moe_add_to_stream(s, n_rows);
        moe_lockstep_piece(s, MOE_PIECE_DENSE, n_rows);
        return MOE_OK;
    }
    int status = moe_route(s, layer, rows, n_rows, err);
    if (status != MOE_OK)
        return status;
    moe_lockstep_piece(s, MOE_PIECE_ROUTE, n_rows);
    const uint8_t *precalculated = NULL;
    if (s->ahead)
        phase->experts.substituted += moe_ahead_choose(s->ahead, layer, n_rows, &precalculated);
    if (s->assigner)
        s->assigner->assign(s->assigner->ctx, layer, rows, n_rows, w->chosen, w->weights,
                            w->variants);
    uint32_t n_active = group_by_expert(s, n_rows);
    list_needs(w, &s->model->config, n_rows, n_active, precalculated);
    for (uint32_t i = 0; i < n_active; i++)
        w->kinds[i] = s->assigner && w->entry_classes[i] == w->n_classes - 1u ? MOE_ENTRY_SKIPPED
                                                                              : MOE_ENTRY_SLOT;
    const struct moe_expert_request request = {layer, n_active, w->needs, w->kinds,
                                               s->assigner ? w->entry_classes : NULL};
    status = s->experts->ops->begin(s->experts, &request, phase, err);
    if (status == MOE_OK && s->ahead)
        status = moe_ahead_spoken(s->ahead, layer, n_rows, n_active, err);
    if (status != MOE_OK)
        return status;
    /* What does not depend on the router goes first: meanwhile experts are on their way. */
    if (l->has_ffn)
        run_dense(s, l);
    moe_lockstep_piece(s, MOE_PIECE_BESIDE, n_rows);
    if (l->has_ffn && s->experts->ops->poll)
        status = s->experts->ops->poll(s->experts, err);
    if (status != MOE_OK)
        return status;
    if (l->shared_gate.data) {
        struct moe_mm mm =
            moe_inputs_mm(&w->from_hidden, l->shared_gate, w->shared_scale, MOE_PANEL_ROWS);
        moe_matmul(&mm, 1);
    }
    status = run_experts(s, n_rows, n_active, err);
    if (status != MOE_OK)
        return status;
    if (s->ahead)
        moe_ahead_collect(s->ahead, layer, n_active);
    if (s->observer.computed)
        s->observer.computed(s->observer.ctx, layer, n_rows, w->expert_out, w->hidden_stride,
                             w->slot_of);
    struct combine m = {s, l->shared_gate.data != NULL};
    moe_par_for(n_rows, 16, combine_rows, &m);
    moe_lockstep_piece(s, MOE_PIECE_COMBINE, n_rows);
    return MOE_OK;
}
