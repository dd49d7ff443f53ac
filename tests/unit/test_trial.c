/*
 * Trials of what may not pay, fading means, and how many loads the time between two routers pays
 * for.
 */
#include "sched/trial.h"

#include "../test.h"

/* One period in which tokens take as long as they do with and without it; whether it was with. */
static bool run_period(struct moe_trial *t, double with, double without, bool saturated)
{
    bool on = moe_trial_on(t);
    for (int i = 0; i < MOE_TRIAL_PERIOD; i++) {
        assert_true(moe_trial_on(t) == on);
        moe_trial_token(t, on ? with : without, saturated);
    }
    return on;
}

/* With, without, with; from then on what was faster, but for trials that become rarer. */
static void tries_both_and_keeps_the_faster(void **state)
{
    for (int pays = 0; pays < 2; pays++) {
        struct moe_trial t;
        int others = 0;
        moe_trial_init(&t);
        for (int period = 0; period < 3 + 4 * MOE_TRIAL_MOST; period++) {
            bool on = run_period(&t, pays ? 1 : 3, 2, true);
            if (period < 3)
                assert_true(on == (period != 1));
            else
                others += on != pays;
        }
        /* 2 (or at once 4), 8, 16, 32, 64, 64, 64 periods apart */
        assert_in_range(others, 6, 8);
    }
}

/* A cache that fills makes every period faster than the one before: that is not the way's merit. */
static void what_becomes_faster_by_itself_decides_nothing(void **state)
{
    struct moe_trial t;
    moe_trial_init(&t);
    for (int period = 0; period < 40; period++) {
        double now = 100 - period;
        bool on = run_period(&t, now, now + 0.5, true);
        assert_true(on || t.after); /* without in trials alone */
    }
}

/* A change of text is noticed at the next trial. */
static void changes_its_mind(void **state)
{
    struct moe_trial t;
    int after = 0;
    moe_trial_init(&t);
    for (int period = 0; period < 8; period++)
        run_period(&t, 3, 2, true);
    assert_false(t.usual);
    for (; !t.usual; after++)
        run_period(&t, 1, 2, false);
    assert_in_range(after, 1, MOE_TRIAL_MOST + 2);
    assert_true(moe_trial_on(&t));
}

/* While the link is idle at times, nothing can be gained by going without. */
static void an_idle_link_needs_no_trial(void **state)
{
    struct moe_trial t;
    moe_trial_init(&t);
    for (int period = 0; period < 100; period++)
        assert_true(run_period(&t, 3, 2, false));
    run_period(&t, 3, 2, true);
    assert_false(moe_trial_on(&t));
}

/* The token that still pays for the way before: 100 s, then 1 s each. */
static void the_first_token_does_not_count(void **state)
{
    struct moe_trial t;
    moe_trial_init(&t);
    for (int i = 0; i < MOE_TRIAL_PERIOD; i++)
        moe_trial_token(&t, i == 0 ? 100 : 1, true);
    assert_true(t.before == 1);
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
        cmocka_unit_test(tries_both_and_keeps_the_faster),
        cmocka_unit_test(what_becomes_faster_by_itself_decides_nothing),
        cmocka_unit_test(changes_its_mind),
        cmocka_unit_test(an_idle_link_needs_no_trial),
        cmocka_unit_test(the_first_token_does_not_count),
        cmocka_unit_test(a_mean_fades),
        cmocka_unit_test(slack_pays_for_whole_loads),
    };
    return cmocka_run_group_tests_name("trial", tests, NULL, NULL);
}
