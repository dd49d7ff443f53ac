/*
 * Trials of what may not pay, fading means, and how many loads the time between two routers pays
 * for.
 */
#include "sched/trial.h"

#include "../test.h"

/* One period in which tokens take as long as they do with and without it. */
static void run_period(struct moe_trial *t, double with, double without)
{
    bool on = moe_trial_on(t);
    for (int i = 0; i < MOE_TRIAL_PERIOD; i++) {
        assert_true(moe_trial_on(t) == on);
        moe_trial_token(t, on ? with : without);
    }
}

/* With, then without, then what was faster, but for every eighth period. */
static void tries_both_and_keeps_the_faster(void **state)
{
    for (int pays = 0; pays < 2; pays++) {
        struct moe_trial t;
        int on = 0;
        moe_trial_init(&t);
        for (int period = 0; period < 8 * MOE_TRIAL_EVERY; period++) {
            bool other = period > 0 && period % MOE_TRIAL_EVERY == 0;
            bool want = period == 0 || (period > 1 && (other ? !pays : pays));
            assert_true(moe_trial_on(&t) == want);
            on += want;
            run_period(&t, pays ? 1 : 3, 2);
        }
        assert_int_equal(t.periods_on, on + moe_trial_on(&t));
        assert_int_equal(t.periods_on + t.periods_off, t.periods);
        assert_int_equal(t.periods, 8 * MOE_TRIAL_EVERY + 1);
        assert_true(t.mean[true] == (pays ? 1 : 3) && t.mean[false] == 2);
    }
}

/* A change of text is noticed: the trials of the slower way show that it no longer is. */
static void changes_its_mind(void **state)
{
    struct moe_trial t;
    int after = 0;
    moe_trial_init(&t);
    for (int period = 0; period < 4 * MOE_TRIAL_EVERY; period++)
        run_period(&t, 3, 2);
    while (t.mean[true] >= t.mean[false] && ++after < 100 * MOE_TRIAL_EVERY)
        run_period(&t, 1, 2);
    /* 3, 2.75, 2.53, 2.34, 2.17, 2.03, 1.90: the sixth trial. */
    assert_in_range(after, 5 * MOE_TRIAL_EVERY, 6 * MOE_TRIAL_EVERY);
    run_period(&t, 1, 2);
    assert_true(moe_trial_on(&t));
}

/* The token that still pays for the way before: 100 s, then 1 s each. */
static void the_first_token_does_not_count(void **state)
{
    struct moe_trial t;
    moe_trial_init(&t);
    for (int i = 0; i < MOE_TRIAL_PERIOD; i++)
        moe_trial_token(&t, i == 0 ? 100 : 1);
    assert_true(t.mean[true] == 1);
    assert_true(t.mean[false] == 0);
}

static void a_mean_fades(void **state)
{
    struct moe_fading f = {0};
    moe_fading_add(&f, 16);
    assert_true(f.value == 16); /* the first is all there is */
    moe_fading_add(&f, 8);
    assert_true(f.value == 15); /* 7/8 of 16, 1/8 of 8 */
    moe_fading_add(&f, 23);
    assert_true(f.value == 16);
}

/* Fate 3.2: 13 ms a block, 6 ms an expert: two loads. */
static void slack_pays_for_whole_loads(void **state)
{
    assert_int_equal(moe_slack_loads(13e-3, 6e-3, 0), 2);
    assert_int_equal(moe_slack_loads(13e-3, 6e-3, 1), 2);
    assert_int_equal(moe_slack_loads(13e-3, 6e-3, 4), 4);
    assert_int_equal(moe_slack_loads(0.5, 0.25, 0), 2); /* just so */
    assert_int_equal(moe_slack_loads(5e-3, 6e-3, 0), 0);
    assert_int_equal(moe_slack_loads(5e-3, 6e-3, 1), 1);
    assert_int_equal(moe_slack_loads(0, 6e-3, 1), 1); /* not measured yet */
    assert_int_equal(moe_slack_loads(0, 6e-3, 0), 1);
    assert_int_equal(moe_slack_loads(13e-3, 0, 0), 1);
    assert_int_equal(moe_slack_loads(13e-3, 0, 3), 3);
    assert_int_equal(moe_slack_loads(1, 1e-300, 0), UINT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tries_both_and_keeps_the_faster), cmocka_unit_test(changes_its_mind),
        cmocka_unit_test(the_first_token_does_not_count),  cmocka_unit_test(a_mean_fades),
        cmocka_unit_test(slack_pays_for_whole_loads),
    };
    return cmocka_run_group_tests_name("trial", tests, NULL, NULL);
}
