#include "run/feed_forward.h"

#include <string.h>

#include "layer/lockstep.h"
#include "layer/stages.h"
#include "run/pass_strategy.h"

/* Asks for the experts of the layer whose router has chosen. */
static int request_experts(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    struct moe_layer_request *r = &s->request;
    bool assigned = s->assigner != NULL;
    const uint8_t *precalculated = NULL;
    if (s->strategy)
        phase->experts.substituted +=
            moe_pass_strategy_choose(s->strategy, layer, n_rows, &precalculated);
    if (assigned)
        s->assigner->assign(s->assigner->ctx, layer, rows, n_rows, r->chosen, r->weights,
                            r->variants);
    moe_layer_request_fill(r, &s->model->config, n_rows, assigned, precalculated);
    phase->over_capacity += r->n_over;
    if (s->stages->grouped)
        s->stages->grouped(s, n_rows);
    for (uint32_t i = 0; i < n_rows; i++)
        r->sequences[i] = rows[i].sequence;
    const struct moe_expert_request request = {
        layer,  r->n_entries, r->needs,    r->kinds, assigned ? r->classes : NULL,
        n_rows, r->chosen,    r->sequences};
    return s->experts->ops->begin(s->experts, &request, phase, err);
}

/* Experts of the request that the device computes. The outputs of those left out become zero, of
 * choices beyond a capacity zero or their rows. */
static uint32_t count_here(struct moe_session *s)
{
    const struct moe_layer_request *r = &s->request;
    uint64_t stride = s->states.stride, n_chosen = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        n_chosen += r->n_rows[i];
        n += r->kinds[i] == MOE_ENTRY_SLOT;
        if (r->kinds[i] != MOE_ENTRY_SKIPPED)
            continue;
        if (s->stages->take)
            s->stages->take(s, i);
        else
            memset(s->states.expert_out + r->first[i] * stride, 0,
                   r->n_rows[i] * stride * sizeof(float));
    }
    for (uint64_t slot = n_chosen; slot < n_chosen + r->n_over; slot++) {
        float *out = s->states.expert_out + slot * stride;
        if (s->model->config.overflow_passes)
            memcpy(out, s->states.xn + r->rows[slot] * stride, stride * sizeof *out);
        else
            memset(out, 0, stride * sizeof *out);
    }
    return n;
}

/* Computes the experts of the request, each as it becomes ready. */
static int run_experts(struct moe_session *s, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    uint32_t n_here = count_here(s), at_once = s->stages->at_once(s, n_rows);
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

/* The outputs of experts that the host computed go to the device. */
static void collect(struct moe_session *s, uint32_t layer)
{
    const struct moe_layer_request *r = &s->request;
    moe_pass_strategy_collect(s->strategy, layer);
    for (uint32_t i = 0; s->stages->take && i < r->n_entries; i++)
        if (r->kinds[i] == MOE_ENTRY_HOST || r->kinds[i] == MOE_ENTRY_PRECALCULATED)
            s->stages->take(s, i);
}

/* A MoE layer from the choice of its router to the sum of its experts. */
static int run_chosen(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    const struct moe_stages_ops *stages = s->stages;
    bool requested = s->model->config.router_early;
    int status = requested ? MOE_OK : request_experts(s, layer, rows, n_rows, phase, err);
    if (status == MOE_OK && s->strategy)
        status = moe_pass_strategy_requested(s->strategy, layer, n_rows, err);
    /* What does not depend on the router goes first: meanwhile experts are on their way. */
    if (status == MOE_OK)
        status = stages->beside(s, layer, n_rows, err);
    if (status != MOE_OK)
        return status;
    moe_lockstep_piece(s, MOE_PIECE_BESIDE, n_rows);
    if (s->model->layers[layer].has_ffn)
        status = moe_poll_loads(s, err);
    if (status == MOE_OK)
        status = run_experts(s, n_rows, err);
    if (status != MOE_OK)
        return status;
    if (s->strategy)
        collect(s, layer);
    if (s->observer.computed)
        s->observer.computed(s->observer.ctx, layer, n_rows, s->states.expert_out, s->states.stride,
                             s->request.slot_of);
    status = stages->combine(s, layer, n_rows, err);
    moe_lockstep_piece(s, MOE_PIECE_COMBINE, n_rows);
    return status;
}

int moe_feed_forward_early(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                           uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    if (!moe_follows_layer(s, layer))
        return MOE_OK;
    int status = s->stages->choose(s, layer, rows, n_rows, err);
    if (status == MOE_OK)
        status = request_experts(s, layer, rows, n_rows, phase, err);
    if (status == MOE_OK && s->strategy)
        status = moe_pass_strategy_early(s->strategy, layer, n_rows, err);
    return status;
}

int moe_feed_forward(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_phase_stats *phase, struct moe_err *err)
{
    const struct moe_stages_ops *stages = s->stages;
    if (!s->model->layers[layer].is_moe) {
        bool feeds = !s->model->config.layer_no_ffn[layer];
        int status = feeds ? stages->dense(s, layer, n_rows, err) : MOE_OK;
        moe_lockstep_attention(s, MOE_PIECE_DENSE, rows, n_rows);
        return status;
    }
    if (!moe_follows_layer(s, layer))
        return MOE_OK;
    if (stages->alone && stages->alone(s, layer, n_rows)) {
        moe_feed_forward_count_alone(s, phase, 1, n_rows);
        return MOE_OK;
    }
    int status = stages->route(s, layer, rows, n_rows, err);
    if (status != MOE_OK)
        return status;
    moe_lockstep_attention(s, MOE_PIECE_ROUTE, rows, n_rows);
    if (s->model->config.router_early)
        status = moe_poll_loads(s, err); /* those that came during attention make room for others */
    if (status != MOE_OK)
        return status;
    return run_chosen(s, layer, rows, n_rows, phase, err);
}

void moe_feed_forward_count_alone(struct moe_session *s, struct moe_phase_stats *phase,
                                  uint32_t n_layers, uint32_t n_rows)
{
    uint64_t n = (uint64_t)n_layers * n_rows * s->model->config.top_k;
    phase->experts.activations += n;
    phase->experts.cache_hits += n;
}
