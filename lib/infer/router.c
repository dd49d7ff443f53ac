/*
 * Routing: from the router's scores to experts and weights, by the kinds of model/kinds.h.
 */
#include "infer/router.h"

#include <math.h>
#include <string.h>

#include "base/par.h"
#include "base/rank.h"
#include "infer/state.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/routes.h"

/* ---- Scores ---- */

/* As MOE_NORM_LAYER without biases: the mean by a sum as in kern.h's layer_norm, then rms_norm. */
static void centred_norm(const float *h, const float *weights, uint32_t n, float eps, float *out)
{
    float lane[MOE_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        lane[i % MOE_LANES] += h[i];
    float mean = moe_math_join(lane) / (float)n;
    for (uint32_t i = 0; i < n; i++)
        out[i] = h[i] - mean;
    moe_kern.rms_norm(out, weights, n, eps, out);
}

void moe_norm_row(const struct moe_config *c, const float *h, const float *weights,
                  const float *bias, float *out)
{
    if (!weights) /* of gated streams */
        memcpy(out, h, c->hidden * sizeof *out);
    else if (c->norm_kind == MOE_NORM_LAYER)
        moe_kern.layer_norm(h, weights, bias, c->hidden, c->norm_eps, out);
    else if (c->norm_kind == MOE_NORM_CENTRED)
        centred_norm(h, weights, c->hidden, c->norm_eps, out);
    else
        moe_kern.rms_norm(h, weights, c->hidden, c->norm_eps, out);
}

void moe_block_input_row(const struct moe_config *c, const float *h, const float *weights,
                         const float *bias, float *out)
{
    if (c->norm_place != MOE_NORM_AFTER)
        moe_norm_row(c, h, weights, bias, out);
    else
        memcpy(out, h, c->hidden * sizeof *out);
}

void moe_router_input_row(const struct moe_config *c, const struct moe_layer *l, const float *h,
                          float *out)
{
    if (c->parallel_blocks) {
        moe_block_input_row(c, h, l->attn_norm, l->attn_norm_bias, out);
        return;
    }
    if (c->router_early) {
        memcpy(out, h, c->hidden * sizeof *out);
        return;
    }
    if (!l->router_norm) {
        moe_block_input_row(c, h, l->ffn_norm, l->ffn_norm_bias, out);
        return;
    }
    moe_norm_row(c, h, l->router_norm, NULL, out);
    moe_kern.scale(1 / sqrtf((float)c->hidden), c->hidden, out);
}

void moe_router_scale_experts(const struct moe_layer *l, const uint32_t *chosen, uint64_t n,
                              float *weights)
{
    for (uint64_t i = 0; l->expert_scale && i < n; i++)
        weights[i] *= l->expert_scale[chosen[i]];
    for (uint64_t i = 0; l->ffn_factor && i < n; i++)
        weights[i] *= *l->ffn_factor;
}

void moe_router_room_carve(struct moe_router_room *room, struct moe_arena *arena,
                           const struct moe_config *c, uint32_t n)
{
    room->stride = moe_padded(c->router_dim);
    room->state = moe_arena_take(arena, n * room->stride, sizeof *room->state);
    room->hidden = moe_arena_take(arena, n * room->stride, sizeof *room->hidden);
    if (c->router_dim)
        moe_inputs_carve(&room->from, arena, n, c->router_dim);
}

/* What ends a product of a router's layers: of the first, what the router before made, and a norm;
 * of the others GELU. */
struct deep {
    const struct moe_config *c;
    const struct moe_router_use *use;
    const float *bias;
    bool first;
};

/* By the error function: in double precision, so that it is the same number everywhere. */
static float gelu(float x)
{
    return (float)(0.5 * (double)x * (1 + erf((double)x * sqrt(0.5))));
}

static void finish_deep_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct deep *d = ctx;
    const struct moe_router_use *use = d->use;
    uint32_t n = d->c->router_dim;
    for (int64_t i = begin; i < end; i++) {
        float *hidden = use->room->hidden + (uint64_t)i * use->room->stride;
        float *state = use->room->state + (uint64_t)i * use->room->stride;
        moe_kern.add(d->bias, n, d->first ? state : hidden);
        if (d->first && use->layer->router_keep)
            moe_kern.mul_add(use->layer->router_keep,
                             use->before + (uint64_t)i * use->before_stride, n, state);
        if (d->first)
            moe_kern.rms_norm(state, use->layer->router_down_norm, n, d->c->norm_eps, hidden);
        for (uint32_t k = 0; !d->first && k < n; k++)
            hidden[k] = gelu(hidden[k]);
    }
}

/* The inputs of the last product, in the room: a norm and two layers. */
static const struct moe_act *deep_inputs(const struct moe_config *c,
                                         const struct moe_router_use *use)
{
    const struct moe_layer *l = use->layer;
    struct moe_router_room *room = use->room;
    const struct moe_mat *layers[] = {&l->router_down, &l->router_first, &l->router_second};
    const float *biases[] = {l->router_down_bias, l->router_first_bias, l->router_second_bias};
    for (int i = 0; i < 3; i++) {
        struct deep d = {c, use, biases[i], i == 0};
        struct moe_mm mm = {*layers[i], use->act, i ? room->hidden : room->state, room->stride};
        if (i > 0)
            mm.act = moe_inputs_for(&room->from, layers[i]->layout);
        moe_matmul(&mm, 1);
        moe_par_for(use->act->n, 4, finish_deep_rows, &d);
        moe_inputs_set(&room->from, room->hidden, room->stride, NULL, use->act->n, c->router_dim);
    }
    return moe_inputs_for(&room->from, l->router.layout);
}

struct biases {
    const struct moe_router_use *use;
    uint64_t stride;
    float scale;
};

static void finish_score_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct biases *b = ctx;
    const struct moe_layer *l = b->use->layer;
    for (int64_t i = begin; i < end; i++) {
        float *scores = b->use->scores + (uint64_t)i * b->stride;
        if (l->router_bias)
            moe_kern.add(l->router_bias, l->router.rows, scores);
        if (b->scale != 1)
            moe_kern.scale(b->scale, l->router.rows, scores);
    }
}

void moe_router_scores(const struct moe_config *c, const struct moe_router_use *uses, uint32_t n,
                       uint64_t router_stride)
{
    struct moe_mm mm[MOE_MAX_ROUTERS] = {0};
    for (uint32_t i = 0; i < n; i++) {
        mm[i] = (struct moe_mm){uses[i].layer->router, uses[i].act, uses[i].scores, router_stride};
        if (c->router_dim) { /* which share a room */
            mm[i].act = deep_inputs(c, &uses[i]);
            moe_matmul(&mm[i], 1);
        }
    }
    if (!c->router_dim)
        moe_matmul(mm, (int)n);
    for (uint32_t i = 0; i < n; i++) {
        struct biases b = {&uses[i], router_stride, c->score_scale};
        if (uses[i].layer->router_bias || c->score_scale != 1)
            moe_par_for(uses[i].act->n, 64, finish_score_rows, &b);
    }
}

/* ---- Choices ---- */

/* How good a group of n experts is. */
static float group_value(const struct moe_config *c, const float *values, uint32_t n)
{
    float first = values[0], second = -INFINITY;
    for (uint32_t e = 1; e < n; e++) {
        second = values[e] > first ? first : values[e] > second ? values[e] : second;
        first = values[e] > first ? values[e] : first;
    }
    return moe_router_is_single(c) ? first + second : first;
}

/* values[e] becomes -INFINITY where e's group is not among the best. best: [n_groups]. */
static void mask_groups(const struct moe_config *c, float *values, float *best)
{
    uint32_t size = c->n_experts / c->n_groups;
    for (uint32_t g = 0; g < c->n_groups; g++)
        best[g] = group_value(c, values + g * size, size);
    for (uint32_t g = 0; g < c->n_groups; g++) {
        uint32_t n_better = 0;
        for (uint32_t i = 0; i < c->n_groups; i++)
            n_better += best[i] > best[g] || (best[i] == best[g] && i < g);
        for (uint32_t e = g * size; e < (g + 1) * size && n_better >= c->top_groups; e++)
            values[e] = -INFINITY;
    }
}

/* The values by which the router ranks experts, -INFINITY for those it cannot choose.
 * scratch: [2 * n_experts], in which the result lies. */
static const float *rank_values(const struct moe_config *c, const float *choice_bias,
                                const float *values, float *scratch)
{
    for (uint32_t e = 0; e < c->n_experts; e++)
        scratch[e] = choice_bias ? values[e] + choice_bias[e] : values[e];
    if (c->n_groups)
        mask_groups(c, scratch, scratch + c->n_experts);
    return scratch;
}

/* The best k by rank_values, then in the order of the values themselves, the lower number first
 * among equals: a bias for the choice says nothing of how much an expert counts. */
static void choose_best(const struct moe_config *c, const float *choice_bias, const float *values,
                        float *scratch, uint32_t *chosen, float *weights)
{
    bool plain = !choice_bias && !c->n_groups;
    moe_best(plain ? values : rank_values(c, choice_bias, values, scratch), c->n_experts, c->top_k,
             chosen);
    for (uint32_t k = 1; choice_bias && k < c->top_k; k++) {
        uint32_t e = chosen[k], at = k;
        for (; at > 0 && (values[e] > values[chosen[at - 1]] ||
                          (values[e] == values[chosen[at - 1]] && e < chosen[at - 1]));
             at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    for (uint32_t k = 0; k < c->top_k; k++)
        weights[k] = values[chosen[k]];
}

/* p: scores on entry, moe_router_probabilities afterwards. scratch: [2 * n_experts]. */
static void choose_by_softmax(const struct moe_config *c, const float *choice_bias, float *p,
                              float *scratch, uint32_t *chosen, float *weights)
{
    moe_kern.softmax(p, c->n_experts);
    choose_best(c, choice_bias, p, scratch, chosen, weights);
}

static void choose_by_score(const struct moe_config *c, const float *choice_bias, float *p,
                            float *scratch, uint32_t *chosen, float *weights)
{
    choose_best(c, NULL, p, scratch, chosen, weights);
    moe_kern.softmax(weights, c->top_k);
    moe_kern.softmax(p, c->n_experts);
}

/* Of a router that gives each score a value of its own. */
static float value_of(const struct moe_config *c, float score)
{
    if (c->router_kind == MOE_ROUTER_SOFTPLUS)
        return sqrtf(moe_math_softplus(score));
    return 1 / (1 + moe_expf(-score));
}

/* Keeps a sum of such values from being 0, as the code published with DeepSeek-V3 does. */
#define LEAST_SUM 1e-20f

/* Values become shares of their sum. */
static void share_values(float *p, uint32_t n)
{
    float lane[MOE_LANES] = {0};
    for (uint32_t e = 0; e < n; e++)
        lane[e % MOE_LANES] += p[e];
    float sum = moe_math_join(lane) + LEAST_SUM;
    for (uint32_t e = 0; e < n; e++)
        p[e] /= sum;
}

static void choose_by_values(const struct moe_config *c, const float *choice_bias, float *p,
                             float *scratch, uint32_t *chosen, float *weights)
{
    /* Large sigmoids are equal where their scores are not: Llama-4, SmallThinker and Kolibri choose
     * by scores. */
    bool by_scores =
        c->weigh_inputs || c->choice_of_scores || (c->router_early && !choice_bias && !c->n_groups);
    if (by_scores)
        choose_best(c, c->choice_of_scores ? choice_bias : NULL, p, scratch, chosen, weights);
    for (uint32_t e = 0; e < c->n_experts; e++)
        p[e] = value_of(c, p[e]);
    if (!by_scores)
        choose_best(c, choice_bias, p, scratch, chosen, weights);
    for (uint32_t k = 0; k < c->top_k; k++)
        weights[k] = p[chosen[k]];
    share_values(p, c->n_experts);
}

/* The best expert but `without`. */
static uint32_t mix_winner(const struct moe_config *c, const float *scores, uint32_t without)
{
    uint32_t winner = without == 0 ? 1 : 0;
    for (uint32_t e = winner + 1; e < c->n_experts; e++)
        if (e != without && scores[e] > scores[winner])
            winner = e;
    return winner;
}

/* An expert's share among those, but `without`, whose distance below it, relative to the larger of
 * the two, is at most twice the jitter. kept: [n_experts] scratch. */
static float mix_share(const struct moe_config *c, const float *scores, uint32_t expert,
                       uint32_t without, float *kept)
{
    for (uint32_t e = 0; e < c->n_experts; e++) {
        float size = fabsf(scores[e]) > scores[expert] ? fabsf(scores[e]) : scores[expert];
        bool far = (scores[expert] - scores[e]) / size > 2 * c->router_jitter;
        kept[e] = far || e == without ? -INFINITY : scores[e];
    }
    moe_kern.softmax(kept, c->n_experts);
    return kept[expert];
}

/* The first is left out where the second is weighed. */
static void mix_weights(const struct moe_config *c, const float *scores, const uint32_t *chosen,
                        float *kept, float *weights)
{
    weights[0] = mix_share(c, scores, chosen[0], UINT32_MAX, kept);
    weights[1] = mix_share(c, scores, chosen[1], chosen[0], kept);
}

/* Phi-3.5-MoE's sparsemixer, as its public implementation evaluates it. */
static void choose_by_mixer(const struct moe_config *c, const float *choice_bias, float *p,
                            float *scratch, uint32_t *chosen, float *weights)
{
    chosen[0] = mix_winner(c, p, UINT32_MAX);
    chosen[1] = mix_winner(c, p, chosen[0]);
    mix_weights(c, p, chosen, scratch, weights);
    moe_kern.softmax(p, c->n_experts);
}

static void (*const choose[])(const struct moe_config *c, const float *choice_bias, float *p,
                              float *scratch, uint32_t *chosen, float *weights) = {
    [MOE_ROUTER_SOFTMAX] = choose_by_softmax,   [MOE_ROUTER_TOPK_SOFTMAX] = choose_by_score,
    [MOE_ROUTER_SPARSEMIXER] = choose_by_mixer, [MOE_ROUTER_SIGMOID] = choose_by_values,
    [MOE_ROUTER_SOFTPLUS] = choose_by_values,
};

/* As the model uses them, of a row's experts. beside: what else is in their sum. */
static void finish_weights(const struct moe_config *c, float beside, float *weights)
{
    float sum = beside;
    for (uint32_t k = 0; k < c->top_k; k++)
        sum += weights[k];
    if (moe_router_is_single(c))
        sum += c->topk_eps > 0 ? c->topk_eps : LEAST_SUM;
    for (uint32_t k = 0; c->norm_topk && k < c->top_k; k++)
        weights[k] /= sum;
    for (uint32_t k = 0; c->routed_scale != 1 && k < c->top_k; k++)
        weights[k] *= c->routed_scale;
}

void moe_route_scores(const struct moe_config *c, const float *choice_bias, float *p,
                      float *scratch, uint32_t *chosen, float *weights)
{
    choose[c->router_kind](c, choice_bias, p, scratch, chosen, weights);
    finish_weights(c, 0, weights);
}

void moe_route_with_sinks(const struct moe_config *c, const float *choice_bias, float *p,
                          float *scratch, uint32_t *chosen, float *weights)
{
    float *sinks = p + c->n_experts, beside = 0, sum = 0;
    choose[c->router_kind](c, choice_bias, p, scratch, chosen, weights);
    for (uint32_t k = 0; k < c->shared_sinks; k++)
        beside += sinks[k] = value_of(c, sinks[k]);
    for (uint32_t k = 0; k < c->top_k; k++)
        sum += weights[k];
    finish_weights(c, beside, weights);
    for (uint32_t k = 0; k < c->shared_sinks; k++)
        sinks[k] = sinks[k] / (sum + beside) * c->routed_scale;
}

/* The best come first, in the order of their values. */
static void insert_by_value(const float *values, uint32_t expert, uint32_t n, uint32_t *chosen)
{
    uint32_t at = n;
    for (; at > 0 && (values[expert] > values[chosen[at - 1]] ||
                      (values[expert] == values[chosen[at - 1]] && expert < chosen[at - 1]));
         at--)
        chosen[at] = chosen[at - 1];
    chosen[at] = expert;
}

void moe_route_with_zeros(const struct moe_config *c, const float *choice_bias, float *p,
                          float *scratch, struct moe_layer_request *r, uint32_t row)
{
    uint32_t n = c->n_experts + c->n_zero, best[MOE_MAX_TOP_K], n_real = 0;
    uint64_t at = (uint64_t)row * c->top_k;
    uint32_t *chosen = r->chosen + at;
    float zero = 0;
    moe_kern.softmax(p, n);
    for (uint32_t e = 0; e < n; e++)
        scratch[e] = choice_bias ? p[e] + choice_bias[e] : p[e];
    moe_best(scratch, n, c->top_k, best);
    for (uint32_t k = 0; k < c->top_k; k++) {
        if (best[k] < c->n_experts)
            insert_by_value(p, best[k], n_real++, chosen);
        else
            zero += p[best[k]];
        scratch[best[k]] = -INFINITY;
    }
    if (n_real < c->top_k)
        moe_best(scratch, c->n_experts, c->top_k - n_real, chosen + n_real);
    for (uint32_t k = 0; k < c->top_k; k++) {
        r->over[at + k] = k >= n_real;
        r->passing[at + k] = k == n_real && !c->zero_skips ? zero * c->routed_scale : 0;
        r->weights[at + k] = k < n_real ? p[chosen[k]] * c->routed_scale : 0;
    }
}

void moe_router_probabilities(const struct moe_config *c, float *p)
{
    if (!moe_router_is_single(c)) {
        moe_kern.softmax(p, c->n_experts);
        return;
    }
    for (uint32_t e = 0; e < c->n_experts; e++)
        p[e] = value_of(c, p[e]);
    share_values(p, c->n_experts);
}

void moe_router_weigh(const struct moe_config *c, const float *scores, const float *p,
                      const uint32_t *chosen, float *scratch, float *weights)
{
    const float *of = c->router_kind == MOE_ROUTER_SOFTMAX ? p : scores;
    for (uint32_t k = 0; k < c->top_k; k++)
        weights[k] = of[chosen[k]];
    for (uint32_t k = 0; moe_router_is_single(c) && k < c->top_k; k++)
        weights[k] = value_of(c, weights[k]);
    if (c->router_kind == MOE_ROUTER_TOPK_SOFTMAX)
        moe_kern.softmax(weights, c->top_k);
    else if (c->router_kind == MOE_ROUTER_SPARSEMIXER)
        mix_weights(c, scores, chosen, scratch, weights);
    finish_weights(c, 0, weights);
}

void moe_router_leave_groups(const struct moe_config *c, const float *choice_bias,
                             const float *scores, float *p, float *scratch)
{
    if (!c->n_groups)
        return;
    for (uint32_t e = 0; e < c->n_experts; e++) {
        scratch[e] = moe_router_is_single(c) ? value_of(c, scores[e]) : p[e];
        scratch[e] += choice_bias ? choice_bias[e] : 0;
    }
    mask_groups(c, scratch, scratch + c->n_experts);
    for (uint32_t e = 0; e < c->n_experts; e++)
        p[e] = scratch[e] == -INFINITY ? -1 : p[e];
}

void moe_route_tokens(const struct moe_model *m, uint32_t layer, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_layer_request *r)
{
    const struct moe_config *c = &m->config;
    for (uint32_t i = 0; i < n_rows; i++) {
        uint64_t at = (uint64_t)i * c->top_k;
        moe_routes_choose(c, m->layers[layer].routes, rows[i].token, r->chosen + at,
                          r->weights + at);
    }
}

int moe_route_check(const struct moe_layer_request *r, uint32_t layer, uint32_t n_rows,
                    struct moe_err *err)
{
    for (uint64_t i = 0; i < (uint64_t)n_rows * r->top_k; i++)
        if (isnan(r->weights[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "layer %u: the router's scores are not numbers (damaged weights?)",
                            layer);
    return MOE_OK;
}

/* ---- Experts' capacity ---- */

/* One row's choices, after those of the rows before it. */
static void limit_row(struct moe_layer_request *r, uint32_t capacity, uint32_t row)
{
    for (uint64_t at = (uint64_t)row * r->top_k, end = at + r->top_k; at < end; at++) {
        r->over[at] = r->cursor[r->chosen[at]]++ >= capacity;
        if (!r->over[at])
            continue;
        if (r->passing)
            r->passing[at] = r->weights[at];
        r->weights[at] = 0;
        r->n_over++;
    }
}

void moe_route_limit(struct moe_layer_request *r, const struct moe_config *c, uint32_t layer,
                     const struct moe_prompt *prompts, const struct moe_row *rows, uint32_t n_rows)
{
    bool limited = c->expert_capacity && (prompts || moe_config_in_encoder(c, layer));
    r->n_over = 0;
    for (uint64_t i = 0; c->n_zero && i < (uint64_t)n_rows * r->top_k; i++)
        r->n_over += r->over[i];
    if (!limited)
        return;
    memset(r->over, 0, (uint64_t)n_rows * r->top_k);
    for (uint32_t i = 0; i < n_rows; i++) {
        if (prompts && rows[i].position >= prompts[rows[i].sequence].n)
            continue;
        if (rows[i].position == 0)
            memset(r->cursor, 0, c->n_experts * sizeof *r->cursor);
        limit_row(r, c->expert_capacity, i);
    }
}

/* ---- Choices that a strategy changes ---- */

void moe_router_choose_predicted(const struct moe_config *c, const float *choice_bias,
                                 const float *scores, const float *probabilities,
                                 const uint8_t *on_device, uint32_t replaces,
                                 struct moe_predicted *choice, float *weights, float *scratch,
                                 uint32_t *barred)
{
    float *p = scratch, *rest = scratch + c->n_experts;
    memcpy(p, scores ? scores : probabilities, c->n_experts * sizeof *p);
    if (scores) {
        moe_route_scores(c, choice_bias, p, rest, choice->experts, weights);
    } else {
        moe_best(p, c->n_experts, c->top_k, choice->experts);
        moe_router_weigh(c, NULL, p, choice->experts, rest, weights);
    }
    moe_router_leave_groups(c, choice_bias, scores, p, rest);
    moe_predicted_choice(p, on_device, c->n_experts, c->top_k, replaces, choice, barred);
    if (choice->substituted > 0)
        moe_router_weigh(c, scores, p, choice->experts, rest, weights);
}

static bool is_among(const uint32_t *experts, uint32_t n, uint32_t expert)
{
    for (uint32_t i = 0; i < n; i++)
        if (experts[i] == expert)
            return true;
    return false;
}

void moe_router_rank(const struct moe_config *c, const float *choice_bias, const float *scores,
                     const uint32_t *chosen, float *p, float *scratch, uint32_t *best,
                     struct moe_preference *to)
{
    memcpy(p, scores, c->n_experts * sizeof *p);
    moe_router_probabilities(c, p);
    moe_router_leave_groups(c, choice_bias, scores, p, scratch);
    moe_best(p, c->n_experts, to->reach, best);
    memcpy(to->experts, chosen, c->top_k * sizeof *chosen);
    to->n = c->top_k;
    for (uint32_t i = 0; i < to->reach && to->n < to->reach; i++)
        if (p[best[i]] >= 0 && !is_among(chosen, c->top_k, best[i]))
            to->experts[to->n++] = best[i];
    for (uint32_t i = 0; i < to->n; i++)
        to->probabilities[i] = p[to->experts[i]];
}

/* ---- Choices that are predicted ---- */

/* How far an expert of the same grade as another stays below it: enough to survive half precision,
 * as traces keep probabilities. */
#define GRADE_MARGIN 0x1p-10f

bool moe_router_is_softmax(const struct moe_config *c)
{
    return !c->n_groups && !c->choice_bias && c->router_kind != MOE_ROUTER_SPARSEMIXER &&
           !moe_router_is_single(c);
}

/* Scores whose order is that of `ranks`, none of them far below the others: all of these above the
 * least, as logarithms. */
static void score_by_rank(const struct moe_config *c, const float *ranks, float *scores)
{
    float least = INFINITY;
    for (uint32_t e = 0; e < c->n_experts; e++)
        least = ranks[e] > -INFINITY ? fminf(least, ranks[e]) : least;
    for (uint32_t e = 0; e < c->n_experts; e++)
        scores[e] = logf((ranks[e] > least ? ranks[e] - least : 0) + GRADE_MARGIN);
}

void moe_router_grade(const struct moe_config *c, const float *choice_bias, float *scores)
{
    uint32_t chosen[MOE_MAX_TOP_K];
    float p[MOE_MAX_EXPERTS], scratch[2 * MOE_MAX_EXPERTS], weights[MOE_MAX_TOP_K];
    bool is_chosen[MOE_MAX_EXPERTS] = {false};
    bool by_weight = c->router_kind == MOE_ROUTER_SPARSEMIXER;
    float least = INFINITY, most = -INFINITY;
    if (moe_router_is_softmax(c))
        return;
    memcpy(p, scores, c->n_experts * sizeof *p);
    choose[c->router_kind](c, choice_bias, p, scratch, chosen, weights);
    if (choice_bias || moe_router_is_single(c)) {
        for (uint32_t e = 0; moe_router_is_single(c) && e < c->n_experts; e++)
            p[e] = c->choice_of_scores ? scores[e] : value_of(c, scores[e]);
        score_by_rank(c, rank_values(c, choice_bias, p, scratch), scores);
        by_weight = true;
    }
    float best = scores[chosen[0]];
    for (uint32_t k = 0; k < c->top_k; k++) {
        is_chosen[chosen[k]] = true;
        if (k > 0 && by_weight)
            scores[chosen[k]] = weights[k] == weights[0]
                                    ? best - GRADE_MARGIN
                                    : best + logf((weights[k] + LEAST_SUM) / weights[0]);
        least = fminf(least, scores[chosen[k]]);
    }
    for (uint32_t e = 0; e < c->n_experts; e++)
        most = is_chosen[e] ? most : fmaxf(most, scores[e]);
    float down = most - least + GRADE_MARGIN;
    for (uint32_t e = 0; e < c->n_experts && down > 0; e++)
        scores[e] -= is_chosen[e] ? 0 : down;
}
