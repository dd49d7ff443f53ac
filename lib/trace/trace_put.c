/*
 * What a trace keeps of each layer and token: experts chosen, the next best ones, predictions.
 */
#include <math.h>

#include "base/float16.h"
#include "base/par.h"
#include "trace/trace_writer.h"

/* NAN and negative numbers become 0, too large ones the largest half. */
static uint16_t to_half(float v)
{
    const float largest = 65504;
    return moe_f32_to_f16(!(v > 0) ? 0 : v < largest ? v : largest);
}

static bool is_among(const uint16_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* The k experts with the largest values, except the n_without of `without`, falling; equal ones by
 * number. Always k different ones, for any values. */
static void pick_top(const float *values, uint32_t n, const uint16_t *without, uint32_t n_without,
                     uint32_t k, uint16_t *ids)
{
    uint32_t found = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (found == k && (k == 0 || !(values[e] > values[ids[k - 1]])))
            continue;
        if (is_among(without, n_without, e))
            continue;
        uint32_t at = found < k ? found++ : k - 1;
        for (; at > 0 && values[e] > values[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = (uint16_t)e;
    }
}

/* The softmax over all n values, of those kept. */
static void put_probabilities(const float *values, uint32_t n, const uint16_t *ids, uint32_t k,
                              uint16_t *scores)
{
    float sum = 0, best = values[ids[0]];
    for (uint32_t e = 0; e < n; e++)
        sum += expf(values[e] - best);
    for (uint32_t i = 0; i < k; i++)
        scores[i] = to_half(expf(values[ids[i]] - best) / sum);
}

struct put {
    struct moe_trace_writer *w;
    uint32_t layer, at; /* of the first row among the waiting tokens */
    const struct moe_layer_observation *seen;
    const float *router;
    uint64_t router_stride;
};

static void put_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct put *p = ctx;
    const struct moe_trace_shape *s = &p->w->shape;
    const struct trace_layout *f = &p->w->layout;
    uint32_t k = s->top_k, n = s->n_experts;
    for (uint64_t r = (uint64_t)begin; r < (uint64_t)end; r++) {
        uint64_t at = (p->at + r) * s->n_layers + p->layer;
        uint16_t *ids = p->w->waiting.ids + at * f->n_ids,
                 *scores = p->w->waiting.scores + at * f->n_scores;
        p->w->waiting.computed[at] = 1;
        for (uint32_t i = 0; i < k; i++) {
            ids[i] = (uint16_t)p->seen->chosen[r * k + i];
            scores[i] = to_half(p->seen->weights[r * k + i]);
        }
        if (s->keep > 0) {
            const float *router = p->router + r * p->router_stride;
            pick_top(router, n, ids, k, f->n_router - k, ids + k);
            for (uint32_t i = 0; i < f->n_router; i++)
                scores[f->router_scores + i] = to_half(router[ids[i]]);
        }
        for (int i = 0; i < MOE_N_PREDICTORS; i++) {
            if (!(s->predictors & 1u << i) || !p->seen->predicted[i] || s->is_static[p->layer])
                continue;
            const float *values = p->seen->predicted[i] + r * p->seen->stride;
            uint16_t *best = ids + f->predicted_ids[i];
            pick_top(values, n, NULL, 0, s->keep, best);
            put_probabilities(values, n, best, s->keep, scores + f->predicted_scores[i]);
        }
    }
}

void moe_trace_put_ids(struct moe_trace_writer *w, uint32_t first, uint32_t n, const uint32_t *ids)
{
    for (uint32_t i = 0; w->shape.has_ids && i < n; i++)
        w->waiting.tokens[first - w->first + i] = ids[i];
}

void moe_trace_put(struct moe_trace_writer *w, uint32_t layer, uint32_t first, uint32_t n,
                   const struct moe_layer_observation *seen, const float *router,
                   uint64_t router_stride)
{
    struct put p = {w, layer, first - w->first, seen, router, router_stride};
    moe_par_for(n, 4, put_range, &p);
}
