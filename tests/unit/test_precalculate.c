/*
 * What pre-calculation takes from predicted scores, for every kind of router: where the scores are
 * the router's own, its own choice with its own weights, bit for bit; otherwise what a plain
 * computation in double precision gives.
 */
#include <math.h>

#include "infer/router.h"
#include "kern/kern.h"

#include "random_model.h"

enum { N_CONFIGS = 3000, MAX_EXPERTS = RANDOM_MAX_EXPERTS };

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return 0;
}

struct drawn {
    struct moe_config c;
    float scores[MAX_EXPERTS], bias[MAX_EXPERTS];
    const float *choice_bias; /* that, or NULL */
    uint8_t on_device[MAX_EXPERTS];
    /* The router's own. */
    float probabilities[MAX_EXPERTS], weights[MOE_MAX_TOP_K];
    uint32_t chosen[MOE_MAX_TOP_K];
};

static void draw(struct drawn *d, uint64_t *random)
{
    float scratch[2 * MAX_EXPERTS];
    do
        random_config(&d->c, random);
    while (d->c.n_experts == 0);
    uint32_t n = d->c.n_experts, one_in = 1 + random_below(random, 5);
    for (uint32_t e = 0; e < n; e++) {
        d->scores[e] = (float)random_below(random, 4000) / 1000 - 2;
        d->bias[e] = (float)(e * 7 % 5) / 10;
        d->on_device[e] = random_below(random, one_in) == 0;
    }
    memcpy(d->probabilities, d->scores, n * sizeof *d->scores);
    d->choice_bias = d->c.choice_bias ? d->bias : NULL;
    moe_route_scores(&d->c, d->choice_bias, d->probabilities, scratch, d->chosen, d->weights);
}

static struct moe_predicted take(const struct drawn *d, uint32_t replaces, bool has_scores,
                                 float *weights)
{
    struct moe_predicted choice = {0};
    float scratch[3 * MAX_EXPERTS];
    uint32_t barred[MAX_EXPERTS];
    moe_router_choose_predicted(&d->c, d->choice_bias, has_scores ? d->scores : NULL,
                                d->probabilities, d->on_device, replaces, &choice, weights, scratch,
                                barred);
    assert_int_equal(choice.n, d->c.top_k);
    return choice;
}

static void the_routers_choice_has_the_routers_weights(void **state)
{
    uint64_t random = 11;
    uint32_t n_of[4] = {0}, n_grouped = 0;
    for (int i = 0; i < N_CONFIGS; i++) {
        struct drawn d;
        float weights[MOE_MAX_TOP_K];
        draw(&d, &random);
        bool plain = d.c.router_kind == MOE_ROUTER_SOFTMAX && !d.c.n_groups && !d.c.choice_bias;
        for (int has_scores = plain ? 0 : 1; has_scores < 2; has_scores++) {
            const struct moe_predicted f = take(&d, 0, has_scores, weights);
            assert_memory_equal(f.experts, d.chosen, d.c.top_k * sizeof *d.chosen);
            assert_memory_equal(weights, d.weights, d.c.top_k * sizeof *weights);
            for (uint32_t k = 0; k < f.n; k++)
                assert_int_equal(f.on_host[k], !d.on_device[f.experts[k]]);
        }
        n_of[d.c.router_kind]++;
        n_grouped += d.c.n_groups > 0;
    }
    assert_true(n_of[0] > 200 && n_of[1] > 200 && n_of[2] > 300 && n_of[3] > 200);
    assert_true(n_grouped > 100);
}

/* An expert's part before weights are normalized and scaled; `first`: the first of a sparsemixer's
 * two, left out for the other, or NULL. */
static double plain_part(const struct drawn *d, const struct moe_predicted *f, uint32_t expert,
                         const uint32_t *first)
{
    double sum = 0, own = (double)d->scores[expert];
    if (d->c.router_kind == MOE_ROUTER_SIGMOID)
        return 1 / (1 + exp(-own));
    for (uint32_t i = 0; i < d->c.n_experts; i++) {
        double s = (double)d->scores[i], size = fmax(fabs(s), own);
        bool counts = true;
        if (d->c.router_kind == MOE_ROUTER_SPARSEMIXER)
            counts =
                (!first || i != *first) && !((own - s) / size > 2 * (double)d->c.router_jitter);
        if (d->c.router_kind == MOE_ROUTER_TOPK_SOFTMAX) {
            counts = false;
            for (uint32_t k = 0; k < f->n; k++)
                counts |= f->experts[k] == i;
        }
        sum += counts ? exp(s - own) : 0;
    }
    return 1 / sum;
}

/* Degraded: weights of the experts that are used, by the rule of the router. */
static void replacements_have_weights_of_their_own(void **state)
{
    uint64_t random = 12;
    uint32_t n_of[4] = {0}, n_grouped = 0;
    for (int i = 0; i < N_CONFIGS; i++) {
        struct drawn d;
        float weights[MOE_MAX_TOP_K], scratch[2 * MAX_EXPERTS], masked[MAX_EXPERTS];
        double want[MOE_MAX_TOP_K], sum = 0;
        draw(&d, &random);
        const struct moe_predicted f = take(&d, UINT32_MAX, true, weights);
        if (f.substituted == 0)
            continue;
        memcpy(masked, d.probabilities, sizeof masked);
        moe_router_leave_groups(&d.c, d.choice_bias, d.scores, masked, scratch);
        for (uint32_t k = 0; k < f.n; k++) {
            assert_true(masked[f.experts[k]] >= 0); /* never beyond the best groups */
            want[k] = plain_part(&d, &f, f.experts[k], k ? f.experts : NULL);
            sum += want[k];
        }
        for (uint32_t k = 0; k < f.n; k++) {
            double w = want[k] / (d.c.norm_topk ? sum : 1) * (double)d.c.routed_scale;
            if (fabs(w - (double)weights[k]) > 1e-5)
                fail_msg("router %d, expert %u: %g instead of %g", (int)d.c.router_kind, k,
                         (double)weights[k], w);
        }
        n_of[d.c.router_kind]++;
        n_grouped += d.c.n_groups > 0;
    }
    assert_true(n_of[0] > 60 && n_of[1] > 60 && n_of[2] > 100 && n_of[3] > 60 && n_grouped > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_routers_choice_has_the_routers_weights),
        cmocka_unit_test(replacements_have_weights_of_their_own),
    };
    return cmocka_run_group_tests_name("precalculate", tests, set_up, NULL);
}
