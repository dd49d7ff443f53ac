#include "../test.h"

#include <math.h>
#include <stdbool.h>

#include "base/clock.h"
#include "engine/sampler.h"

static struct moe_sampler_options plain(double temperature)
{
    struct moe_sampler_options o;
    o = (struct moe_sampler_options){
        .temperature = 0.8, .top_p = 1, .repeat_penalty = 1, .repeat_window = 64};
    o.temperature = temperature;
    o.seed = 7;
    return o;
}

static struct moe_sampler *make(const struct moe_sampler_options *o, uint32_t vocab)
{
    struct moe_err err = {0};
    struct moe_sampler *s = NULL;
    assert_ok(moe_sampler_new(&s, o, vocab, &err), &err);
    return s;
}

static uint32_t once(const struct moe_sampler_options *o, const float *logits, uint32_t n)
{
    struct moe_sampler *s = make(o, n);
    uint32_t id = moe_sampler_next(s, logits, NULL, 0);
    moe_sampler_free(s);
    return id;
}

/* Draws many times and compares with the expected shares by chi-square. The limit is the value
 * exceeded with probability 1e-6 at most for up to 15 degrees of freedom; seeds are fixed, so a
 * failure means a change, not bad luck. */
static void check_shares(const struct moe_sampler_options *o, const float *logits, uint32_t n,
                         const double *share)
{
    enum { DRAWS = 200000 };
    struct moe_sampler *s = make(o, n);
    uint32_t *count = calloc(n, sizeof *count);
    double chi = 0;
    for (int i = 0; i < DRAWS; i++) {
        uint32_t id = moe_sampler_next(s, logits, NULL, 0);
        assert_true(id < n);
        count[id]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        double want = share[i] * DRAWS;
        if (share[i] == 0)
            assert_int_equal(count[i], 0);
        else
            chi += (count[i] - want) * (count[i] - want) / want;
    }
    if (chi > 60)
        fail_msg("chi-square %.1f", chi);
    free(count);
    moe_sampler_free(s);
}

static void shares(const float *logits, uint32_t n, double temperature, double *share)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += share[i] = exp(logits[i] / temperature);
    for (uint32_t i = 0; i < n; i++)
        share[i] /= sum;
}

static void keep_only(double *share, uint32_t n, const bool *kept)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += share[i] = kept[i] ? share[i] : 0;
    for (uint32_t i = 0; i < n; i++)
        share[i] /= sum;
}

static const float SIX[] = {0.5f, 2.0f, -1.0f, 1.0f, 2.0f, -3.0f};

static void draws_follow_the_distribution(void **state)
{
    double share[6];
    for (int i = 0; i < 3; i++) {
        double temperature = (double[]){0.5, 0.8, 2}[i];
        struct moe_sampler_options o = plain(temperature);
        shares(SIX, 6, temperature, share);
        check_shares(&o, SIX, 6, share);
        o.top_k = 100; /* more than there are */
        check_shares(&o, SIX, 6, share);
    }
}

static void limits_keep_what_they_should(void **state)
{
    double share[6];
    struct moe_sampler_options o = plain(1);
    o.top_k = 3;
    shares(SIX, 6, 1, share);
    keep_only(share, 6, (bool[]){0, 1, 0, 1, 1, 0});
    check_shares(&o, SIX, 6, share);

    o = plain(1); /* shares: .084 .378 .019 .139 .378 .003 */
    o.top_p = 0.7;
    shares(SIX, 6, 1, share);
    keep_only(share, 6, (bool[]){0, 1, 0, 0, 1, 0});
    check_shares(&o, SIX, 6, share);
    o.top_p = 0.85;
    shares(SIX, 6, 1, share);
    keep_only(share, 6, (bool[]){0, 1, 0, 1, 1, 0});
    check_shares(&o, SIX, 6, share);

    o = plain(1);
    o.min_p = 0.2;
    shares(SIX, 6, 1, share);
    keep_only(share, 6, (bool[]){1, 1, 0, 1, 1, 0});
    check_shares(&o, SIX, 6, share);
    o.top_k = 3; /* after top-k */
    shares(SIX, 6, 1, share);
    keep_only(share, 6, (bool[]){0, 1, 0, 1, 1, 0});
    check_shares(&o, SIX, 6, share);

    o = plain(1); /* a share of nothing still leaves the likeliest, the lower id of two */
    o.top_p = 0;
    for (int i = 0; i < 50; i++) {
        o.seed = (uint64_t)i;
        assert_int_equal(once(&o, SIX, 6), 1);
    }
    o = plain(1);
    o.top_k = 1;
    assert_int_equal(once(&o, SIX, 6), 1);
    o = plain(1);
    o.min_p = 1;
    shares(SIX, 6, 1, share);
    keep_only(share, 6, (bool[]){0, 1, 0, 0, 1, 0});
    check_shares(&o, SIX, 6, share);
}

/* Top-p looks at the likeliest first, and at all tokens where these hold too little. */
static void top_p_reaches_far_on_flat_distributions(void **state)
{
    enum { N = 5000, DRAWS = 5000 }; /* all but one in e^40 times one of the last 20 is drawn */
    float *logits = calloc(N, sizeof *logits);
    struct moe_sampler_options o = plain(1);
    o.top_p = 0.5;
    struct moe_sampler *s = make(&o, N);
    uint32_t highest = 0;
    for (int i = 0; i < DRAWS; i++) {
        uint32_t id = moe_sampler_next(s, logits, NULL, 0);
        highest = id > highest ? id : highest;
    }
    assert_true(highest <= N / 2 + 1 && highest > N / 2 - 20);
    moe_sampler_free(s);
    free(logits);
}

static void large_vocabularies_are_drawn_evenly(void **state)
{
    enum { N = 3000, GROUPS = 12, DRAWS = 240000 };
    float *logits = calloc(N, sizeof *logits);
    struct moe_sampler_options o = plain(1);
    struct moe_sampler *s = make(&o, N);
    uint32_t count[GROUPS] = {0};
    double chi = 0;
    for (int i = 0; i < DRAWS; i++)
        count[moe_sampler_next(s, logits, NULL, 0) / (N / GROUPS)]++;
    for (int g = 0; g < GROUPS; g++)
        chi += pow(count[g] - (double)DRAWS / GROUPS, 2) / ((double)DRAWS / GROUPS);
    assert_true(chi < 60);
    moe_sampler_free(s);
    free(logits);
}

static void greedy_takes_the_lowest_id(void **state)
{
    struct moe_sampler_options o = plain(0);
    float logits[13];
    for (uint32_t n = 1; n <= 13; n++) {
        for (uint32_t i = 0; i < n; i++)
            logits[i] = -1;
        assert_int_equal(once(&o, logits, n), 0);
        for (uint32_t best = 0; best < n; best++) {
            for (uint32_t i = 0; i < n; i++)
                logits[i] = i == best || i == n - 1 ? 5 : -1;
            assert_int_equal(once(&o, logits, n), best);
        }
    }
    assert_int_equal(once(&o, SIX, 6), 1);
}

static void damaged_logits_are_survived(void **state)
{
    const float cases[][5] = {{NAN, 1, NAN, 0, NAN},
                              {NAN, NAN, NAN, NAN, NAN},
                              {-INFINITY, -INFINITY, 2, -INFINITY, -INFINITY},
                              {0, INFINITY, 0, 0, 0},
                              {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY},
                              {3.4e38f, -3.4e38f, 0, NAN, -INFINITY}};
    const uint32_t want[] = {1, 0, 2, 1, 0, 0};
    for (int i = 0; i < 6; i++) {
        struct moe_sampler_options o = plain(0);
        assert_int_equal(once(&o, cases[i], 5), want[i]);
        for (int how = 0; how < 16; how++) {
            o = plain(how & 8 ? 1e-40 : 0.01);
            o.top_k = how & 1 ? 3 : 0;
            o.top_p = how & 2 ? 0.9 : 1;
            o.min_p = how & 4 ? 0.1 : 0;
            uint32_t id = once(&o, cases[i], 5);
            if (i == 1 || i == 4)
                assert_true(id < 5); /* nothing to choose by */
            else
                assert_int_equal(id, want[i]);
        }
    }
}

static void penalty_makes_recent_tokens_less_likely(void **state)
{
    struct moe_sampler_options o = plain(0);
    const float logits[] = {4, 3, -1, -2};
    uint32_t recent[] = {0, 0, 9999, 0};
    o.repeat_penalty = 1.5; /* once, however often the token came: 4 -> 2.67 */
    struct moe_sampler *s = make(&o, 4);
    assert_int_equal(moe_sampler_next(s, logits, recent, 4), 1);
    assert_int_equal(moe_sampler_next(s, logits, recent, 0), 0);
    moe_sampler_free(s);
    o.repeat_penalty = 1.2; /* 4 -> 3.33 */
    s = make(&o, 4);
    assert_int_equal(moe_sampler_next(s, logits, recent, 4), 0);
    moe_sampler_free(s);
    o.repeat_penalty = 3; /* a negative logit becomes lower, not higher */
    s = make(&o, 2);
    assert_int_equal(moe_sampler_next(s, logits + 2, recent, 1), 1);
    moe_sampler_free(s);
    o.repeat_window = 1; /* only the last counts */
    s = make(&o, 4);
    assert_int_equal(moe_sampler_next(s, logits, (uint32_t[]){0, 3}, 2), 0);
    moe_sampler_free(s);
}

static void same_seed_same_tokens(void **state)
{
    struct moe_sampler_options o = plain(1);
    float logits[1000];
    uint64_t seed = 3;
    for (int i = 0; i < 1000; i++)
        logits[i] = 3 * test_uniform(&seed);
    int same = 0;
    struct moe_sampler *a = make(&o, 1000), *b = make(&o, 1000);
    o.seed++;
    struct moe_sampler *c = make(&o, 1000);
    for (int i = 0; i < 500; i++) {
        uint32_t id = moe_sampler_next(a, logits, NULL, 0);
        assert_int_equal(id, moe_sampler_next(b, logits, NULL, 0));
        same += id == moe_sampler_next(c, logits, NULL, 0);
    }
    assert_true(same < 50);
    moe_sampler_free(a);
    moe_sampler_free(b);
    moe_sampler_free(c);
}

static void senseless_options_are_refused(void **state)
{
    struct moe_sampler *s = NULL;
    struct moe_err err = {0};
    struct moe_sampler_options o = plain(-1);
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "temperature", &err);
    o = plain(NAN);
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "temperature", &err);
    o = plain(1);
    o.top_p = 1.5;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "top-p", &err);
    o = plain(1);
    o.min_p = -0.1;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "min-p", &err);
    o = plain(1);
    o.repeat_penalty = 0;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "penalty", &err);
    o = plain(1);
    assert_fails(moe_sampler_new(&s, &o, 0, &err), MOE_ERR_USAGE, "vocabulary", &err);
}

/* Far above what it takes (0.1 to 0.3 ms), so that a busy machine or a sanitizer does not fail it:
 * this is here to catch a full sort. */
static void large_vocabularies_are_quick(void **state)
{
    enum { N = 150000, TIMES = 50 };
    float *logits = calloc(N, sizeof *logits);
    uint64_t seed = 5;
    for (int i = 0; i < N; i++)
        logits[i] = 12 * test_uniform(&seed);
    for (int how = 0; how < 4; how++) {
        struct moe_sampler_options o = plain(how == 3 ? 0 : 0.8);
        o.top_k = how == 1 ? 40 : 0;
        o.top_p = how == 2 ? 0.9 : 1;
        struct moe_sampler *s = make(&o, N);
        double start = moe_seconds();
        for (int i = 0; i < TIMES; i++)
            moe_sampler_next(s, logits, NULL, 0);
        double ms = (moe_seconds() - start) / TIMES * 1e3;
        print_message("%s: %.3f ms of %d\n",
                      (const char *[]){"defaults", "top-k 40", "top-p 0.9", "greedy"}[how], ms, N);
        assert_true(ms < (how == 2 ? 500 : 20));
        moe_sampler_free(s);
    }
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(limits_keep_what_they_should),
        cmocka_unit_test(top_p_reaches_far_on_flat_distributions),
        cmocka_unit_test(large_vocabularies_are_drawn_evenly),
        cmocka_unit_test(greedy_takes_the_lowest_id),
        cmocka_unit_test(damaged_logits_are_survived),
        cmocka_unit_test(penalty_makes_recent_tokens_less_likely),
        cmocka_unit_test(same_seed_same_tokens),
        cmocka_unit_test(senseless_options_are_refused),
        cmocka_unit_test(large_vocabularies_are_quick),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
