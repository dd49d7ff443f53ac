/* Strategies in one word: there and back, and what is refused. */
#include "../test.h"
#include "sched/strategy.h"

static void expect_back(const char *text, const char *want)
{
    struct moe_err err = {0};
    struct moe_strategy s, again;
    uint32_t named;
    char brief[MOE_STRATEGY_BRIEF], mine[MOE_PART_TEXT_BYTES], its[MOE_PART_TEXT_BYTES];
    assert_ok(moe_strategy_parse(text, &s, &named, &err), &err);
    moe_strategy_brief(&s, brief);
    assert_string_equal(brief, want);
    assert_ok(moe_strategy_parse(brief, &again, &named, &err), &err);
    for (enum moe_part part = 0; part < MOE_N_PARTS; part++) {
        moe_strategy_part_text(&s, part, mine);
        moe_strategy_part_text(&again, part, its);
        assert_string_equal(mine, its);
    }
}

static void there_and_back(void **state)
{
    expect_back("fate", "fate");
    expect_back("fate+cache=lrfu", "fate+cache=lrfu");
    expect_back("fate+cache=arc", "fate"); /* what it has anyway */
    expect_back("fate+alloc=shallow:2+cache=lrfu", "fate+cache=lrfu+alloc=shallow:2");
    expect_back("lru+predict=gate-next+prefetch=percentile:75;slack",
                "lru+predict=gate-next+prefetch=percentile:75;slack");
    expect_back("lru+keep-records", "lru+keep-records=on");
    expect_back("lru+prefer-cached=0.25", "lru+prefer-cached=0.25");
    expect_back("lru+prefer-cached=0.1:1", "lru+prefer-cached=0.1");
    expect_back("lru+prefer-cached=2:3", "lru+prefer-cached=2:3");
    expect_back("lru+prefer-cached", "lru+prefer-cached=auto");
    expect_back("lru+prefer-cached=0:2", "lru");
    for (int i = 0; moe_strategy_name_at(i); i++)
        expect_back(moe_strategy_name_at(i), moe_strategy_name_at(i));
}

/* Numbers are written as people write them. */
static void numbers(void **state)
{
    expect_back("lru+predict=gate-next+prefetch=percentile:50",
                "lru+predict=gate-next+prefetch=percentile:50");
    expect_back("fate+prefetch=percentile:90;slack", "fate+prefetch=percentile:90;slack");
    expect_back("fate+prefetch=percentile:0.00001", "fate+prefetch=percentile:0.00001");
    expect_back("fate+prefetch=percentile:1e-7", "fate+prefetch=percentile:1e-07");
    expect_back("fate+prefetch=percentile:33.3333333333333357",
                "fate+prefetch=percentile:33.333333333333336");
    expect_back("hobbit+skip-below=0.00001", "hobbit+skip-below=0.001%");
    expect_back("hobbit+skip-below=20%", "hobbit+skip-below=20%");
    expect_back("hobbit+on-miss=load-low+skip-below=auto", "hobbit");
    expect_back("lru+on-miss=load-low+skip-below=auto",
                "lru+on-miss=load-low:auto+skip-below=auto");
    expect_back("hobbit+low-pool=1", "hobbit+low-pool=100%");
    expect_back("fate+prefill=hybrid:0.123456789", "fate+prefill=hybrid:0.123456789");
    expect_back("hobbit+cache-weights=0;100;0;300", "hobbit+cache-weights=0;0.25;0;0.75");
    expect_back("lru+cache=lrfu:4.5", "lru+cache=lrfu:4.5");
}

static void what_is_named(void **state)
{
    struct moe_err err = {0};
    struct moe_strategy s;
    uint32_t named;
    assert_ok(moe_strategy_parse("lru+cache=arc+init=frequency", &s, &named, &err), &err);
    assert_int_equal(named, 1u << MOE_PART_CACHE | 1u << MOE_PART_INIT);
    assert_ok(moe_strategy_parse("lru", &s, &named, &err), &err);
    assert_int_equal(named, 0);
}

/* A fitted strategy shows the numbers that the model's depth gave it. */
static void fitted(void **state)
{
    struct moe_strategy s;
    char brief[MOE_STRATEGY_BRIEF];
    assert_true(moe_strategy_find("fate", &s));
    moe_strategy_fit(&s, 24, NULL);
    moe_strategy_brief(&s, brief);
    assert_string_equal(brief, "fate+alloc=shallow:3");
}

static void refusals(void **state)
{
    struct moe_err err = {0};
    struct moe_strategy s;
    uint32_t named;
    char longer[300];
    assert_fails(moe_strategy_parse("", &s, &named, &err), MOE_ERR_USAGE, "'' is not a strategy",
                 &err);
    assert_fails(moe_strategy_parse("magic", &s, &named, &err), MOE_ERR_USAGE,
                 "'magic' is not a strategy", &err);
    assert_fails(moe_strategy_parse("lru+", &s, &named, &err), MOE_ERR_USAGE, "'' is not a part",
                 &err);
    assert_fails(moe_strategy_parse("lru+magic=1", &s, &named, &err), MOE_ERR_USAGE,
                 "'magic' is not a part", &err);
    static const char *const half_lives[] = {"lru:4", "lrfu:", "lrfu:0", "lrfu:x", "lrfu:1e7"};
    for (size_t i = 0; i < sizeof half_lives / sizeof *half_lives; i++) {
        char text[64];
        snprintf(text, sizeof text, "lru+cache=%s", half_lives[i]);
        assert_fails(moe_strategy_parse(text, &s, &named, &err), MOE_ERR_USAGE,
                     "is not none, random", &err);
    }
    assert_fails(moe_strategy_parse("lru+cache=magic", &s, &named, &err), MOE_ERR_USAGE,
                 "cache: 'magic' is not", &err);
    static const char *const values[] = {
        "", "-0.1", "nan", "inf", "0.1:0", "0.1:", "0.1:x", ":2", "auto:2", "0.1;2", "much"};
    for (size_t i = 0; i < N_ITEMS(values); i++) {
        char text[64];
        snprintf(text, sizeof text, "lru+prefer-cached=%s", values[i]);
        assert_fails(moe_strategy_parse(text, &s, &named, &err), MOE_ERR_USAGE, "is not a number",
                     &err);
    }
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    assert_fails(moe_strategy_parse(longer, &s, &named, &err), MOE_ERR_USAGE, "too long", &err);
}

/* How much to prefer experts in the cache: without a bit map nobody knows. */
static void a_preference_needs_an_amount(void **state)
{
    struct moe_err err = {0};
    struct moe_strategy s;
    uint32_t named;
    assert_ok(moe_strategy_parse("lru+prefer-cached", &s, &named, &err), &err);
    assert_fails(moe_strategy_settle(&s, &err), MOE_ERR_USAGE, "no bit map says how much", &err);
    assert_ok(moe_strategy_parse("ondemand+prefer-cached=0.1", &s, &named, &err), &err);
    assert_fails(moe_strategy_settle(&s, &err), MOE_ERR_USAGE, "it needs a --cache", &err);
    assert_ok(moe_strategy_parse("daop+prefer-cached=0.1", &s, &named, &err), &err);
    assert_fails(moe_strategy_settle(&s, &err), MOE_ERR_USAGE, "--precalculate replaces", &err);
}

/* A part that only one of two strategies has sets them further apart than another value of one. */
static void named_by_the_nearest(void **state)
{
    static const char *const rows[][2] = {
        {"prefetch+predict=none+prefetch=none+cache=learned",
         "lru+cache=learned+prefill=popularity"},
        {"ondemand+cache=learned", "lru+cache=learned"},
        {"lru+cache=none", "ondemand"},
        {"lru+predict=gate-next+prefetch=all;measured+prefill=popularity", "prefetch+cache=lru"},
    };
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        struct moe_err err = {0};
        struct moe_strategy s;
        uint32_t named;
        char brief[MOE_STRATEGY_BRIEF];
        assert_ok(moe_strategy_parse(rows[i][0], &s, &named, &err), &err);
        moe_strategy_name_nearest(&s);
        moe_strategy_brief(&s, brief);
        assert_string_equal(brief, rows[i][1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(numbers),
        cmocka_unit_test(what_is_named),
        cmocka_unit_test(fitted),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_preference_needs_an_amount),
        cmocka_unit_test(named_by_the_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
