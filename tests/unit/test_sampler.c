/* How tokens are drawn: shares by hand, as llama.cpp has them (tests/fixtures/sampling.json), and
 * by definitions written down once more. */
#include "../test.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>

#include "engine/sampler.h"
#include "text/vocab.h"

#include "../make_pack.h" /* TINY_MOE */

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

static uint32_t next(struct moe_sampler *s, const float *logits, const uint32_t *recent, uint64_t n)
{
    const struct moe_drawn_after after = {.recent = recent, .n_recent = n};
    return moe_sampler_draw(s, logits, &after);
}

static uint32_t once(const struct moe_sampler_options *o, const float *logits, uint32_t n)
{
    struct moe_sampler *s = make(o, n);
    uint32_t id = next(s, logits, NULL, 0);
    moe_sampler_free(s);
    return id;
}

/* Draws many times and compares with the expected shares by chi-square. The limit is the value
 * exceeded with probability 1e-6 at most for up to 15 degrees of freedom; seeds are fixed, so a
 * failure means a change, not bad luck. */
static void check_shares_after(const struct moe_sampler_options *o, const float *logits, uint32_t n,
                               const struct moe_drawn_after *after, const double *share, int draws)
{
    struct moe_sampler *s = make(o, n);
    uint32_t *count = calloc(n, sizeof *count);
    double chi = 0;
    for (int i = 0; i < draws; i++) {
        uint32_t id = moe_sampler_draw(s, logits, after);
        assert_true(id < n);
        count[id]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        double want = share[i] * draws;
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

static void check_shares(const struct moe_sampler_options *o, const float *logits, uint32_t n,
                         const double *share)
{
    const struct moe_drawn_after nothing = {0};
    check_shares_after(o, logits, n, &nothing, share, 200000);
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
        uint32_t id = next(s, logits, NULL, 0);
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
        count[next(s, logits, NULL, 0) / (N / GROUPS)]++;
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
    assert_int_equal(next(s, logits, recent, 4), 1);
    assert_int_equal(next(s, logits, recent, 0), 0);
    moe_sampler_free(s);
    o.repeat_penalty = 1.2; /* 4 -> 3.33 */
    s = make(&o, 4);
    assert_int_equal(next(s, logits, recent, 4), 0);
    moe_sampler_free(s);
    o.repeat_penalty = 3; /* a negative logit becomes lower, not higher */
    s = make(&o, 2);
    assert_int_equal(next(s, logits + 2, recent, 1), 1);
    moe_sampler_free(s);
    o.repeat_window = 1; /* only the last counts */
    s = make(&o, 4);
    assert_int_equal(next(s, logits, (uint32_t[]){0, 3}, 2), 0);
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
        uint32_t id = next(a, logits, NULL, 0);
        assert_int_equal(id, next(b, logits, NULL, 0));
        same += id == next(c, logits, NULL, 0);
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
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "top_p", &err);
    o = plain(1);
    o.min_p = -0.1;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "min_p", &err);
    o = plain(1);
    o.repeat_penalty = 0;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "penalty", &err);
    o = plain(1);
    o.mirostat = 1;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "mirostat", &err);
    o = plain(1);
    o.dry_multiplier = 1; /* a base of 0 */
    o.dry_window = 10;
    assert_fails(moe_sampler_new(&s, &o, 5, &err), MOE_ERR_USAGE, "dry_base", &err);
    o = plain(1);
    assert_fails(moe_sampler_new(&s, &o, 0, &err), MOE_ERR_USAGE, "vocabulary", &err);
}

static int field_of(const char *name)
{
    int i = 0;
    while (strcmp(moe_sampling_field(i)->name, name) != 0)
        i++;
    return i;
}

/* Every step, alone and with others, gives llama.cpp's shares. */
static void shares_are_those_of_llama_cpp(void **state)
{
    enum { MOST = 64, DRAWS = 4000 };
    json_error_t why;
    json_t *cases = json_load_file("tests/fixtures/sampling.json", 0, &why), *c, *value;
    const char *const none[] = {NULL};
    const char *name;
    size_t i, k;
    assert_true(json_array_size(cases) > 50);
    json_array_foreach(cases, i, c)
    {
        struct moe_sampler_options o = plain(1);
        struct moe_err err;
        float logits[MOST];
        uint32_t recent[MOST];
        double share[MOST];
        o.seed = i;
        o.dry_breakers = none;
        json_object_foreach(json_object_get(c, "options"), name, value)
            assert_ok(moe_sampling_take(&o, field_of(name), "sampling.json", name,
                                        json_number_value(value), &err),
                      &err);
        json_array_foreach(json_object_get(c, "logits"), k, value) logits[k] =
            (float)json_number_value(value);
        json_array_foreach(json_object_get(c, "p"), k, value) share[k] = json_number_value(value);
        const struct moe_drawn_after after = {
            .recent = recent, .n_recent = json_array_size(json_object_get(c, "recent"))};
        json_array_foreach(json_object_get(c, "recent"), k, value) recent[k] =
            (uint32_t)json_integer_value(value);
        print_message("case %zu\n", i);
        check_shares_after(&o, logits, (uint32_t)json_array_size(json_object_get(c, "p")), &after,
                           share, DRAWS);
    }
    json_decref(cases);
}

static void biases_are_added(void **state)
{
    const struct moe_logit_bias biases[] = {{0, 3.5f}, {4, -INFINITY}, {1, -1}, {1, 0.5f}, {99, 1}};
    struct moe_sampler_options o = plain(1);
    const float changed[] = {SIX[0] + 3.5f, SIX[1] - 0.5f, SIX[2], SIX[3], -INFINITY, SIX[5]};
    double share[6];
    o.biases = biases;
    o.n_biases = 5;
    shares(changed, 6, 1, share);
    check_shares(&o, SIX, 6, share);
    o.temperature = 0;
    assert_int_equal(once(&o, SIX, 6), 0);
}

/* XTC leaves the likeliest out as often as it should. */
static void xtc_happens_by_its_probability(void **state)
{
    struct moe_sampler_options o = plain(1);
    double all[6], left[6];
    o.xtc_probability = 0.3;
    o.xtc_threshold = 0.1; /* shares: .084 .378 .019 .139 .378 .003 */
    shares(SIX, 6, 1, all);
    shares(SIX, 6, 1, left);
    keep_only(left, 6, (bool[]){1, 0, 1, 1, 0, 1});
    for (int i = 0; i < 6; i++)
        all[i] = 0.7 * all[i] + 0.3 * left[i];
    check_shares(&o, SIX, 6, all);
    o.xtc_threshold = 0.2; /* of two that are alike the one with the lower id */
    shares(SIX, 6, 1, all);
    shares(SIX, 6, 1, left);
    keep_only(left, 6, (bool[]){1, 0, 1, 1, 1, 1});
    for (int i = 0; i < 6; i++)
        all[i] = 0.7 * all[i] + 0.3 * left[i];
    check_shares(&o, SIX, 6, all);
    o.temperature = 0;
    o.xtc_probability = 1;
    assert_int_equal(once(&o, SIX, 6), 4);
}

/* Mirostat 2, as its authors have it: a limit of surprise that each draw moves. */
static void mirostat_follows_its_limit(void **state)
{
    enum { N = 400, DRAWS = 3000 };
    struct moe_sampler_options o = plain(0.9);
    float logits[N];
    double limit, sum = 0;
    uint64_t seed = 11;
    for (int i = 0; i < N; i++)
        logits[i] = 6 * test_uniform(&seed);
    o.top_k = 1; /* has no effect */
    o.mirostat = 2;
    o.mirostat_tau = 4;
    o.mirostat_eta = 0.2;
    limit = 2 * o.mirostat_tau;
    struct moe_sampler *s = make(&o, N);
    for (int i = 0; i < DRAWS; i++) {
        double share[N], kept = 0;
        bool stays[N];
        uint32_t id = next(s, logits, NULL, 0);
        shares(logits, N, o.temperature, share);
        for (int k = 0; k < N; k++) {
            stays[k] = -log2(share[k]) <= limit;
            kept += stays[k] ? share[k] : 0;
        }
        const double surprise = kept > 0 ? -log2(share[id] / kept) : 0;
        assert_true(stays[id] || kept == 0);
        limit -= o.mirostat_eta * (surprise - o.mirostat_tau);
        const struct moe_sampler_draws draws = moe_sampler_get_draws(s);
        assert_float_equal(draws.surprise, limit, 1e-2);
        limit = draws.surprise; /* so that rounding does not add up */
        sum += surprise;
    }
    assert_float_equal(sum / DRAWS, o.mirostat_tau, 0.1);
    moe_sampler_free(s);
}

/* What the comma of " the cat sat, the cat sat" loses: by repeats of three tokens or fewer. */
static void breakers_end_repeats(void **state)
{
    static const struct {
        const char *text;
        const char *breakers[2]; /* none: the usual ones */
        double lost;
    } cases[] = {
        {" the cat sat, the cat sat", {NULL}, 2 * 1.75},
        {" the cat sat: the cat sat", {NULL}, 0}, /* what would go on is a breaker */
        {" the cat sat, the cat sat", {" the"}, 2},
        {" the cat sat, the cat sat", {"the cat"}, 0},
        {" the cat sat, the cat sat", {"he c"}, 0},
        {" the cat sat, the cat sat", {"sat"}, 0},
        {" the cat sat, the cat sat", {"the dog"}, 2 * 1.75},
    };
    struct moe_err err;
    struct moe_tokenizer *tok;
    assert_ok(moe_tokenizer_read_hf(&tok, TINY_MOE, &err), &err);
    const uint32_t vocab = moe_tokenizer_n_tokens(tok), other = 0;
    float *logits = calloc(vocab, sizeof *logits);
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_sampler_options o = plain(0);
        struct moe_ids ids = {0};
        o.dry_multiplier = 2;
        o.dry_base = 1.75;
        o.dry_allowed_length = 2;
        o.dry_window = 100;
        o.dry_breakers = cases[i].breakers[0] ? cases[i].breakers : NULL;
        struct moe_sampler *s = make(&o, vocab);
        assert_ok(
            moe_tokenizer_encode(tok, cases[i].text, strlen(cases[i].text), false, &ids, &err),
            &err);
        assert_int_equal(ids.n, 7);
        const struct moe_drawn_after after = {
            .recent = ids.ids, .n_recent = ids.n, .tokenizer = tok};
        for (uint32_t id = 0; id < vocab; id++)
            logits[id] = -100;
        logits[ids.ids[3]] = 0;
        logits[other] = -(float)cases[i].lost - 0.01f;
        assert_int_equal(moe_sampler_draw(s, logits, &after), ids.ids[3]);
        logits[other] = -(float)cases[i].lost + 0.01f;
        assert_int_equal(moe_sampler_draw(s, logits, &after), other);
        moe_sampler_free(s);
        moe_ids_release(&ids);
    }
    free(logits);
    moe_tokenizer_free(tok);
}

/* What ends an answer is left out while it is too short, unless a grammar has nothing else. */
static void some_are_left_out(void **state)
{
    struct moe_sampler_options o = plain(0);
    uint32_t ids[] = {1, 4};
    const struct moe_ids ends = {.ids = ids, .n = 2};
    const uint64_t both = 0x12, few = 0x16;
    struct moe_sampler *s = make(&o, 6);
    struct moe_drawn_after after = {.without = &ends};
    assert_int_equal(moe_sampler_draw(s, SIX, &after), 3);
    after.allowed = &few;
    assert_int_equal(moe_sampler_draw(s, SIX, &after), 2);
    after.allowed = &both;
    assert_int_equal(moe_sampler_draw(s, SIX, &after), 1);
    moe_sampler_free(s);
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
        double start = test_cpu_seconds();
        for (int i = 0; i < TIMES; i++)
            next(s, logits, NULL, 0);
        double ms = (test_cpu_seconds() - start) / TIMES * 1e3;
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
        cmocka_unit_test(shares_are_those_of_llama_cpp),
        cmocka_unit_test(biases_are_added),
        cmocka_unit_test(xtc_happens_by_its_probability),
        cmocka_unit_test(mirostat_follows_its_limit),
        cmocka_unit_test(breakers_end_repeats),
        cmocka_unit_test(some_are_left_out),
        cmocka_unit_test(same_seed_same_tokens),
        cmocka_unit_test(senseless_options_are_refused),
        cmocka_unit_test(large_vocabularies_are_quick),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
