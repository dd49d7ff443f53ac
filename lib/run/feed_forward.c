/*
 * Feed-forward: the experts that the router chose, as they become ready; the shared expert; or a
 * dense layer's. What is computed where is the device's (run/stages.h).
 */
#include <string.h>

#include "run/lockstep.h"
#include "run/pass_strategy.h"
#include "run/stages.h"
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

/* ---- Computing ---- */

/* Experts of the request that the device computes; those left out give nothing. */
static uint32_t count_here(struct moe_session *s, uint32_t n_active)
{
    struct moe_workspace *w = s->work;
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_active; i++) {
        n += w->kinds[i] == MOE_ENTRY_SLOT;
        if (w->kinds[i] != MOE_ENTRY_SKIPPED)
            continue;
        if (s->stages->take)
            s->stages->take(s, i);
        else
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
    uint32_t n_here = count_here(s, n_active), at_once = s->stages->at_once(s, n_rows);
    for (uint32_t done = 0, n; done < n_here; done += n) {
        uint32_t which[MOE_MAX_TOP_K];
        struct moe_expert_view views[MOE_MAX_TOP_K];
        int status = ops->next(s->experts, at_once, which, views, &n, err);
        if (status == MOE_OK)
            status = s->stages->experts(s, n_rows, which, views, n, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t i = 0; i < n; i++)
            ops->release(s->experts, which[i]);
    }
    return MOE_OK;
}

/* What the host computed beside the device goes there. */
static void collect(struct moe_session *s, uint32_t layer, uint32_t n_active)
{
    const struct moe_workspace *w = s->work;
    moe_pass_strategy_collect(s->strategy, layer, n_active);
    for (uint32_t i = 0; s->stages->take && i < n_active; i++)
        if (w->kinds[i] == MOE_ENTRY_HOST || w->kinds[i] == MOE_ENTRY_PRECALCULATED)
            s->stages->take(s, i);
}

/* Asks for the experts of the layer whose router has spoken; *n_active of them. */
static int request_experts(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows, struct moe_phase_stats *phase, uint32_t *n_active,
                           struct moe_err *err)
{
    struct moe_workspace *w = s->work;
    const uint8_t *precalculated = NULL;
    if (s->strategy)
        phase->experts.substituted +=
            moe_pass_strategy_choose(s->strategy, layer, n_rows, &precalculated);
    if (s->assigner)
        s->assigner->assign(s->assigner->ctx, layer, rows, n_rows, w->chosen, w->weights,
                            w->variants);
    uint32_t n = *n_active = group_by_expert(s, n_rows);
    list_needs(w, &s->model->config, n_rows, n, precalculated);
    for (uint32_t i = 0; i < n; i++)
        w->kinds[i] = s->assigner && w->entry_classes[i] == w->n_classes - 1u ? MOE_ENTRY_SKIPPED
                                                                              : MOE_ENTRY_SLOT;
    if (s->stages->grouped)
        s->stages->grouped(s, n_rows);
    const struct moe_expert_request request = {layer, n, w->needs, w->kinds,
                                               s->assigner ? w->entry_classes : NULL};
    int status = s->experts->ops->begin(s->experts, &request, phase, err);
    if (status == MOE_OK && s->strategy)
        status = moe_pass_strategy_requested(s->strategy, layer, n_rows, n, err);
    return status;
}

int moe_feed_forward(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    const struct moe_layer *l = &s->model->layers[layer];
    const struct moe_stages_ops *stages = s->stages;
    struct moe_workspace *w = s->work;
    uint32_t n_active;
    if (!l->is_moe) {
        int status = stages->dense(s, layer, n_rows, err);
        moe_lockstep_piece(s, MOE_PIECE_DENSE, n_rows);
        return status;
    }
    if (stages->alone && stages->alone(s, layer, n_rows)) {
        moe_feed_forward_count_alone(s, phase, 1, n_rows);
        return MOE_OK;
    }
    int status = stages->route(s, layer, rows, n_rows, err);
    if (status != MOE_OK)
        return status;
    moe_lockstep_piece(s, MOE_PIECE_ROUTE, n_rows);
    status = request_experts(s, layer, rows, n_rows, phase, &n_active, err);
    /* What does not depend on the router goes first: meanwhile experts are on their way. */
    if (status == MOE_OK)
        status = stages->beside(s, layer, n_rows, err);
    if (status != MOE_OK)
        return status;
    moe_lockstep_piece(s, MOE_PIECE_BESIDE, n_rows);
    if (l->has_ffn && s->experts->ops->poll)
        status = s->experts->ops->poll(s->experts, err);
    if (status == MOE_OK)
        status = run_experts(s, n_rows, n_active, err);
    if (status != MOE_OK)
        return status;
    if (s->strategy)
        collect(s, layer, n_active);
    if (s->observer.computed)
        s->observer.computed(s->observer.ctx, layer, n_rows, w->expert_out, w->hidden_stride,
                             w->slot_of);
    status = stages->combine(s, layer, n_rows, err);
    moe_lockstep_piece(s, MOE_PIECE_COMBINE, n_rows);
    return status;
}

void moe_feed_forward_count_alone(struct moe_session *s, struct moe_phase_stats *phase,
                                  uint32_t n_layers, uint32_t n_rows)
{
    uint64_t n = (uint64_t)n_layers * n_rows * s->model->config.top_k;
    phase->experts.activations += n;
    phase->experts.cache_hits += n;
}
