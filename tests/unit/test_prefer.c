/*
 * Cache-aware routing (sched/select.h) against a naive computation; and in a pass, for every kind
 * of router: which experts are used, and that each has the weight that its router gives it.
 */
#include <math.h>

#include "base/float16.h"
#include "infer/router.h"
#include "kern/kern.h"

#include "random_model.h"

enum { N_EXPERTS = 32, TOP_K = 4, REACH = 8, N_LAYERS = 2, N_CONFIGS = 3000 };
enum { MAX_EXPERTS = RANDOM_MAX_EXPERTS };

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return 0;
}

static void *open_preference(struct moe_preference *p, double lambda, uint32_t keeps)
{
    struct moe_arena arena = {0};
    *p = (struct moe_preference){.lambda = lambda, .keeps = keeps};
    moe_preference_carve(p, &arena, N_LAYERS, N_EXPERTS, TOP_K);
    void *block = calloc(1, arena.used);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    moe_preference_carve(p, &arena, N_LAYERS, N_EXPERTS, TOP_K);
    assert_int_equal(p->reach, REACH);
    moe_preference_begin_sequence(p);
    return block;
}

/* Experts 10, 11, ... of these probabilities; cached: bits. */
static uint32_t choose(struct moe_preference *p, uint32_t layer, const float *probabilities,
                       uint32_t cached, uint32_t *chosen)
{
    p->n = REACH;
    memset(p->cached, 0, N_EXPERTS);
    for (uint32_t i = 0; i < REACH; i++) {
        p->experts[i] = 10 + i;
        p->probabilities[i] = probabilities[i];
        p->cached[10 + i] = cached >> i & 1;
    }
    return moe_preference_choose(p, layer, chosen);
}

/* Halving probabilities: scores one bit, log 2, apart; the spread is 7 of them. */
static const float halving[REACH] = {0.5f,     0.25f,     0.125f,     0.0625f,
                                     0.03125f, 0.015625f, 0.0078125f, 0.00390625f};

static void some_of_the_choice_is_replaced(void **state)
{
    static const struct {
        double bits; /* that lambda comes to */
        uint32_t keeps, cached, n_others, want[TOP_K];
    } cases[] = {
        {0, 1, 0xf0, 0, {10, 11, 12, 13}},
        {0.9, 1, 0xf0, 0, {10, 11, 12, 13}},
        {1.1, 1, 0xf0, 1, {10, 11, 12, 14}},
        {2.1, 1, 0xf0, 1, {10, 11, 12, 14}},
        {3.1, 1, 0xf0, 2, {10, 11, 14, 15}},
        {100, 1, 0xf0, 3, {10, 14, 15, 16}}, /* the strongest stays */
        {100, 2, 0xf0, 2, {10, 11, 14, 15}},
        {100, 3, 0xf0, 1, {10, 11, 12, 14}},
        {100, 4, 0xf0, 0, {10, 11, 12, 13}},
        {100, 1, 0xff, 0, {10, 11, 12, 13}}, /* all are there */
        {100, 1, 0x00, 0, {10, 11, 12, 13}}, /* none is */
        {100, 1, 0x88, 1, {10, 11, 13, 17}}, /* by falling score of the router */
        {1, 1, 0x10, 0, {10, 11, 12, 13}},   /* of equals the one that ranks higher */
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_preference p;
        uint32_t chosen[TOP_K];
        void *block = open_preference(&p, cases[i].bits / 7, cases[i].keeps);
        assert_int_equal(choose(&p, 0, halving, cases[i].cached, chosen), cases[i].n_others);
        for (uint32_t k = 0; k < TOP_K; k++)
            assert_int_equal(chosen[k], cases[i].want[k]);
        free(block);
    }
}

/* Each layer's is a mean over the tokens of a sequence, the present one included; in the end the
 * oldest fade. What a trace cannot tell from 0 counts as the least that it can. */
static void the_spread_runs_with_the_sequence(void **state)
{
    struct moe_preference p;
    uint32_t chosen[TOP_K];
    float flat[REACH], steep[REACH] = {1};
    void *block = open_preference(&p, 1, 1);
    for (uint32_t i = 0; i < REACH; i++)
        flat[i] = 0.125f;
    double bits = log(2), mean = 0;
    choose(&p, 0, halving, 0, chosen);
    assert_true(fabs(p.spread[0] - 7 * bits) < 1e-12);
    choose(&p, 0, flat, 0, chosen);
    assert_true(fabs(p.spread[0] - 3.5 * bits) < 1e-12);
    choose(&p, 1, steep, 0, chosen);
    assert_true(fabs(p.spread[1] - 24 * bits) < 1e-12 && fabs(p.spread[0] - 3.5 * bits) < 1e-12);
    moe_preference_begin_sequence(&p);
    for (int i = 1; i <= 3 * MOE_PREFER_SPAN; i++) {
        double x = i <= MOE_PREFER_SPAN ? 7 * bits : 0;
        mean += (x - mean) / (i < MOE_PREFER_SPAN ? i : MOE_PREFER_SPAN);
        choose(&p, 0, x > 0 ? halving : flat, 0, chosen);
        assert_true(fabs(p.spread[0] - mean) < 1e-12);
    }
    assert_true(p.spread[0] < 7 * bits * 0.15 && p.spread[0] > 7 * bits * 0.12);
    free(block);
}

/* ---- What routers make of it ---- */

struct drawn {
    struct moe_config config;
    float bias[MAX_EXPERTS];
    const float *choice_bias; /* that, or NULL */
    uint8_t cached[MAX_EXPERTS];
    float scores[MAX_EXPERTS], masked[MAX_EXPERTS], weights[MOE_MAX_TOP_K];
    uint32_t routed[MOE_MAX_TOP_K], chosen[MOE_MAX_TOP_K]; /* the router's, and what became of it */
};

static void draw(struct drawn *d, uint64_t *random)
{
    float p[MAX_EXPERTS], scratch[2 * MAX_EXPERTS];
    struct moe_config *c = &d->config;
    do
        random_config(c, random);
    while (c->n_experts == 0);
    uint32_t one_in = 1 + random_below(random, 4);
    for (uint32_t e = 0; e < c->n_experts; e++) {
        d->scores[e] = (float)random_below(random, 4000) / 1000 - 2;
        d->cached[e] = random_below(random, one_in) == 0;
        d->bias[e] = (float)(e * 7 % 5) / 10;
    }
    const float *choice_bias = d->choice_bias = c->choice_bias ? d->bias : NULL;
    memcpy(p, d->scores, c->n_experts * sizeof *p);
    moe_route_scores(c, choice_bias, p, scratch, d->routed, d->weights);
    memcpy(d->chosen, d->routed, sizeof d->chosen);
    memcpy(d->masked, p, c->n_experts * sizeof *p);
    moe_router_leave_groups(c, choice_bias, d->scores, d->masked, scratch);
}

static bool is_among(const uint32_t *list, uint32_t n, uint32_t e)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == e)
            return true;
    return false;
}

/* Of the router's best, falling: which are used. */
static uint32_t naive(const struct drawn *d, double lambda, uint32_t keeps, bool *used)
{
    const struct moe_config *c = &d->config;
    uint32_t order[MAX_EXPERTS], n = c->top_k, n_others = 0;
    uint32_t reach = moe_preference_reach(c->n_experts, c->top_k);
    double score[MAX_EXPERTS], most = -INFINITY, least = INFINITY;
    memcpy(order, d->routed, n * sizeof *order);
    while (n < reach) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < c->n_experts; e++)
            if (d->masked[e] >= 0 && !is_among(order, n, e) &&
                (best == UINT32_MAX || d->masked[e] > d->masked[best]))
                best = e;
        if (best == UINT32_MAX)
            break;
        order[n++] = best;
    }
    for (uint32_t i = 0; i < n; i++) {
        score[i] = log(fmax(moe_round_f16(d->masked[order[i]]), 0x1p-24));
        most = fmax(most, score[i]);
        least = fmin(least, score[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        score[i] = i < keeps ? INFINITY : score[i] + lambda * (most - least) * d->cached[order[i]];
    memset(used, 0, MAX_EXPERTS * sizeof *used);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t better = 0;
        for (uint32_t j = 0; j < n; j++)
            better += score[j] > score[i] || (score[j] == score[i] && j < i);
        used[order[i]] = better < c->top_k;
        n_others += better < c->top_k && i >= c->top_k;
    }
    return n_others;
}

/* Weights of the experts that are used under the router's own rule, in double precision. */
static void naive_weights(const struct drawn *d, double *want)
{
    const struct moe_config *c = &d->config;
    double sum = 0;
    for (uint32_t k = 0; k < c->top_k; k++) {
        double own = (double)d->scores[d->chosen[k]], all = 0;
        for (uint32_t e = 0; e < c->n_experts; e++) {
            double s = (double)d->scores[e], size = fmax(fabs(s), own);
            bool counts = true;
            if (c->router_kind == MOE_ROUTER_SPARSEMIXER)
                counts = (k == 0 || e != d->chosen[0]) &&
                         !((own - s) / size > 2 * (double)c->router_jitter);
            if (c->router_kind == MOE_ROUTER_TOPK_SOFTMAX)
                counts = is_among(d->chosen, c->top_k, e);
            all += counts ? exp(s - own) : 0;
        }
        want[k] = c->router_kind == MOE_ROUTER_SIGMOID ? 1 / (1 + exp(-own)) : 1 / all;
        sum += want[k];
    }
    for (uint32_t k = 0; k < c->top_k; k++)
        want[k] *= (c->norm_topk ? 1 / sum : 1) * (double)c->routed_scale;
}

static void every_router_weighs_what_is_preferred(void **state)
{
    uint64_t random = 31;
    uint32_t n_of[4] = {0}, n_grouped = 0;
    for (int i = 0; i < N_CONFIGS; i++) {
        struct drawn d = {0};
        struct moe_preference p = {0};
        struct moe_arena arena = {0};
        float probabilities[MAX_EXPERTS], scratch[2 * MAX_EXPERTS];
        uint32_t best[MAX_EXPERTS];
        bool used[MAX_EXPERTS];
        float own[MOE_MAX_TOP_K];
        double want[MOE_MAX_TOP_K];
        draw(&d, &random);
        const struct moe_config *c = &d.config;
        p.lambda = random_below(&random, 100) / 100.0;
        p.keeps = 1 + (random_below(&random, 4) == 0);
        moe_preference_carve(&p, &arena, 1, c->n_experts, c->top_k);
        void *block = calloc(1, arena.used);
        arena = (struct moe_arena){.base = block, .size = arena.used};
        moe_preference_carve(&p, &arena, 1, c->n_experts, c->top_k);
        memcpy(p.cached, d.cached, c->n_experts);
        memcpy(own, d.weights, sizeof own);
        moe_router_rank(c, d.choice_bias, d.scores, d.chosen, probabilities, scratch, best, &p);
        uint32_t n = moe_preference_choose(&p, 0, d.chosen);
        if (n > 0)
            moe_router_weigh(c, d.scores, probabilities, d.chosen, scratch, d.weights);
        assert_int_equal(n, naive(&d, p.lambda, p.keeps, used));
        for (uint32_t k = 0; k < c->top_k; k++)
            assert_true(used[d.chosen[k]] && !is_among(d.chosen, k, d.chosen[k]));
        if (n == 0) { /* as though nothing had been preferred */
            assert_memory_equal(d.chosen, d.routed, c->top_k * sizeof *d.chosen);
            assert_memory_equal(d.weights, own, c->top_k * sizeof *own);
        } else {
            naive_weights(&d, want);
            for (uint32_t k = 0; k < c->top_k; k++)
                assert_true(fabs((double)d.weights[k] - want[k]) <= 1e-5 * fmax(1, want[k]));
            assert_int_equal(d.chosen[0], d.routed[0]);
            n_of[c->router_kind]++;
            n_grouped += c->n_groups > 0;
        }
        free(block);
    }
    assert_true(n_of[0] > 40 && n_of[1] > 40 && n_of[2] > 60 && n_of[3] > 40 && n_grouped > 15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(some_of_the_choice_is_replaced),
        cmocka_unit_test(the_spread_runs_with_the_sequence),
        cmocka_unit_test(every_router_weighs_what_is_preferred),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
