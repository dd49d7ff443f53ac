/* Strategies and bit maps: what a map sets in a strategy, which approximations it has measured, and
 * which it has not. */
#include "../test.h"

#include "sched/calibration.h"
#include "sched/strategy.h"

static const char three[3][MOE_NAME_BYTES] = {"8", "4", "2"};
static struct moe_inventory inventory; /* of all three */

static int set_up(void **state)
{
    static const uint64_t bytes[] = {3 * 4096, 2 * 4096, 4096};
    struct moe_err err = {0};
    assert_ok(moe_inventory_uniform(&inventory, 2, 4, 1, three, bytes, 3, &err), &err);
    return 0;
}

static int tear_down(void **state)
{
    moe_inventory_release(&inventory);
    return 0;
}

/* T1 0.5, T2 0.9 and p 10%, of 8 and 2 bits; within the tolerance of 2%. */
static struct moe_map found(void)
{
    struct moe_map map = {
        .n_layers = 2, .n_experts = 4, .top_k = 1, .n_variants = 3, .tolerance = 2};
    memcpy(map.variants, three, sizeof three);
    map.fate = (struct moe_map_fate){
        .there = true, .share = 0.1, .high = 0, .low = 2, .loss = {.tokens = 9, .nll_percent = 2}};
    map.hobbit = (struct moe_map_hobbit){.there = true,
                                         .t1 = 0.5,
                                         .t2 = 0.9,
                                         .high = 0,
                                         .low = 2,
                                         .loss = {.tokens = 9, .nll_percent = 1, .top1_points = 7},
                                         .weighed = true,
                                         .weights = {0.125, 0.5, 0.25, 0.125},
                                         .low_pool = 0.05};
    map.routing = (struct moe_map_routing){.there = true,
                                           .lambda = 0.25,
                                           .keeps = 2,
                                           .tolerance = 1,
                                           .loss = {.tokens = 9, .nll_percent = 1}};
    return map;
}

static struct moe_strategy settled(struct moe_strategy s)
{
    struct moe_err err = {0};
    moe_strategy_drop_idle(&s, 0);
    assert_ok(moe_strategy_settle(&s, &err), &err);
    return s;
}

/* The strategy of this text, with the map's values for the parts that it does not name. */
static struct moe_strategy calibrated(const struct moe_map *map, const char *words)
{
    struct moe_strategy s;
    struct moe_err err = {0};
    uint32_t named;
    assert_ok(moe_strategy_parse(words, &s, &named, &err), &err);
    moe_calibration_apply(map, named, &s);
    return settled(s);
}

static void expect_brief(const struct moe_map *map, const char *words, const char *brief)
{
    char text[MOE_STRATEGY_BRIEF];
    struct moe_strategy s = calibrated(map, words), again = s;
    moe_strategy_brief(&s, text);
    assert_string_equal(text, brief);
    moe_calibration_apply(map, 0, &again); /* twice is as good as once */
    if (strchr(words, '+') == NULL)
        assert_memory_equal(&s, &again, sizeof s);
}

static void rows_take_what_was_found(void **state)
{
    struct moe_map map = found();
    map.hobbit.t2 = 0.97;
    expect_brief(&map, "hobbit",
                 "hobbit+cache-weights=0.125;0.5;0.25;0.125+low-pool=5%+on-miss=load-low:0.5+"
                 "skip-below=3%");
    expect_brief(&map, "hobbit+on-miss=load-low:0.7+low-pool=10%+cache-weights=1;0;0;0",
                 "hobbit+cache-weights=1;0;0;0+low-pool=10%+on-miss=load-low:0.7+skip-below=3%");
    expect_brief(&map, "lru+on-miss=load-low:auto+skip-below=auto",
                 "lru+low-pool=5%+on-miss=load-low:0.5+skip-below=3%");
    expect_brief(&map, "hobbit+skip-below=1%+cache=lru",
                 "hobbit+cache=lru+low-pool=5%+on-miss=load-low:0.5+skip-below=1%");
    expect_brief(&map, "lru+on-miss=load-low:0.6", "lru+low-pool=5%+on-miss=load-low:0.6");
    expect_brief(&map, "lru+cache=hobbit", "lru+cache=hobbit+cache-weights=0.125;0.5;0.25;0.125");
    expect_brief(&map, "fate", "fate+prefill=hybrid:10%;or-popularity");
    expect_brief(&map, "fate+prefill=hybrid:30%", "fate+prefill=hybrid:30%");
    expect_brief(&map, "resident", "resident");
    expect_brief(&map, "lru+prefer-cached", "lru+prefer-cached=0.25:2");
    expect_brief(&map, "lru+prefer-cached=0.5", "lru+prefer-cached=0.5");
    expect_brief(&map, "lru", "lru");
    map.routing.lambda = 0; /* nothing within the tolerance */
    expect_brief(&map, "lru+prefer-cached", "lru");
    map.hobbit.t2 = 1; /* nothing is left out */
    map.hobbit.weighed = false;
    map.fate.share = 0;
    expect_brief(&map, "hobbit", "hobbit+on-miss=load-low:0.5+skip-below=0");
    expect_brief(&map, "fate", "fate+prefill=popularity");
    map.hobbit.there = map.fate.there = false;
    expect_brief(&map, "hobbit", "hobbit");
    expect_brief(&map, "fate", "fate");
}

static double loss_of(const struct moe_map *map, enum moe_finding which, const char *words,
                      const char *high, const char *low)
{
    struct moe_strategy s = calibrated(map, words);
    const struct moe_loss *l = moe_calibration_loss(map, which, &s, high, low);
    return l ? l->nll_percent : -1;
}

/* A measured loss holds for that much approximation and bounds less of it; of more, or of other
 * precisions, it says nothing. */
static void losses_are_bounds(void **state)
{
    struct moe_map map = found();
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit", "8", "2") == 1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit+on-miss=load-low:0.8", "8", "2") == 1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit+skip-below=0.02", "8", "2") == 1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "lru+skip-below=0.02", "8", "2") == 1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit+on-miss=load-low:0.4", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit+skip-below=0.2", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "lru+on-miss=emergency", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit", "8", "4") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "hobbit", "4", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ON_MISS, "fate", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_PREFILL, "fate", "8", "2") == 2);
    assert_true(loss_of(&map, MOE_FOUND_ROUTING, "lru+prefer-cached", "8", "2") == 1);
    assert_true(loss_of(&map, MOE_FOUND_ROUTING, "lru+prefer-cached=0.2:3", "8", "4") == 1);
    assert_true(loss_of(&map, MOE_FOUND_ROUTING, "lru+prefer-cached=0.2:1", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ROUTING, "lru+prefer-cached=0.3:2", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ROUTING, "lru+prefer-cached", "4", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_ROUTING, "lru", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_PREFILL, "fate+prefill=hybrid:5%", "8", "2") == 2);
    assert_true(loss_of(&map, MOE_FOUND_PREFILL, "fate+prefill=hybrid:11%", "8", "2") == -1);
    assert_true(loss_of(&map, MOE_FOUND_PREFILL, "lru", "8", "2") == -1);
    map.fate.loss.tokens = 0;
    assert_true(loss_of(&map, MOE_FOUND_PREFILL, "fate", "8", "2") == -1);
}

static int check(const struct moe_map *map, bool measured, const char *words, uint32_t high,
                 uint32_t low, struct moe_err *err)
{
    const struct moe_calibration c = {.map = map, .measured = measured};
    struct moe_strategy s = calibrated(map, words);
    return moe_calibration_check(&c, &s, &inventory, 0, high, low, err);
}

static void no_more_than_was_measured(void **state)
{
    struct moe_map map = found();
    struct moe_err err = {0};
    assert_ok(check(&map, true, "lru", 0, 2, &err), &err);
    assert_ok(check(&map, true, "resident", 0, 0, &err), &err);
    assert_ok(check(&map, true, "hobbit", 0, 2, &err), &err);
    assert_ok(check(&map, true, "fate", 0, 2, &err), &err);
    assert_fails(check(&map, true, "lru", 1, 2, &err), MOE_ERR_USAGE, "no measurement of all",
                 &err);
    assert_fails(check(&map, true, "hobbit", 1, 2, &err), MOE_ERR_USAGE,
                 "no thresholds for --on-miss where experts are at '4' and, lower, at '2'", &err);
    assert_fails(check(&map, true, "hobbit+prefill=hybrid:5%", 0, 2, &err), MOE_ERR_USAGE,
                 "no measurement of all that strategy hobbit", &err);
    assert_fails(check(&map, true, "lru+on-miss=emergency", 0, 2, &err), MOE_ERR_USAGE,
                 "no thresholds", &err);
    assert_ok(check(&map, true, "lru+prefer-cached", 0, 2, &err), &err);
    assert_fails(check(&map, true, "lru+prefer-cached=0.5", 0, 2, &err), MOE_ERR_USAGE,
                 "no lambda for --prefer-cached where experts are at '8'", &err);
    assert_fails(check(&map, true, "hobbit+prefer-cached", 0, 2, &err), MOE_ERR_USAGE,
                 "no measurement of all that strategy hobbit", &err);
    map.routing.tolerance = 0.9;
    assert_fails(check(&map, true, "lru+prefer-cached", 0, 2, &err), MOE_ERR_USAGE,
                 "lambda for --prefer-cached loses more than its tolerance", &err);
    assert_fails(check(&map, true, "daop", 0, 2, &err), MOE_ERR_USAGE, "no measurement of all",
                 &err);
    assert_fails(check(&map, true, "adapmoe", 0, 2, &err), MOE_ERR_USAGE, "no measurement of all",
                 &err);
    assert_fails(check(&map, true, "hobbit+on-miss=load-low:0.4", 0, 2, &err), MOE_ERR_USAGE,
                 "no thresholds", &err);
    /* Thresholds hold wherever an absent expert is computed. */
    assert_ok(check(&map, true, "hobbit+on-miss=compute-host;load-low:0.6", 0, 2, &err), &err);
    assert_fails(check(&map, true, "hobbit+on-miss=compute-host;load-low:0.4", 0, 2, &err),
                 MOE_ERR_USAGE, "no thresholds", &err);
    map.tolerance = 0.9;
    assert_fails(check(&map, true, "hobbit", 0, 2, &err), MOE_ERR_USAGE,
                 "thresholds for --on-miss loses more than its tolerance", &err);
    map.metric = MOE_METRIC_TOP1;
    map.tolerance = 7;
    assert_ok(check(&map, true, "hobbit", 0, 2, &err), &err);
    map.tolerance = -1;
    assert_fails(check(&map, true, "hobbit", 0, 2, &err), MOE_ERR_USAGE, "tolerance", &err);
}

/* A strategy that the user names approximates as much as the user likes, but not by figures that
 * were measured at other bitwidths. */
static void the_named_may_do_more(void **state)
{
    struct moe_map map = found();
    struct moe_err err = {0};
    map.tolerance = 0.1;
    assert_ok(check(&map, false, "hobbit", 0, 2, &err), &err);
    assert_ok(check(&map, false, "hobbit+on-miss=load-low:0.4+skip-below=0.3", 1, 2, &err), &err);
    assert_ok(check(&map, false, "hobbit+prefill=hybrid:50%", 0, 2, &err), &err);
    assert_ok(check(&map, false, "daop", 1, 2, &err), &err);
    assert_fails(check(&map, false, "hobbit", 1, 2, &err), MOE_ERR_USAGE, "no thresholds", &err);
    assert_fails(check(&map, false, "fate", 0, 1, &err), MOE_ERR_USAGE, "no share", &err);
    assert_ok(check(&map, false, "lru+prefer-cached=0.5", 1, 2, &err), &err);
    assert_fails(check(&map, false, "lru+prefer-cached", 1, 2, &err), MOE_ERR_USAGE, "no lambda",
                 &err);
    map.hobbit.there = map.fate.there = false;
    assert_ok(check(&map, false, "hobbit", 1, 2, &err), &err);
    assert_ok(check(&map, false, "fate", 0, 1, &err), &err);
}

static void packs_have_what_was_measured(void **state)
{
    static const char two[2][MOE_NAME_BYTES] = {"8", "4"};
    static const uint64_t bytes[] = {2 * 4096, 4096};
    struct moe_map map = found();
    struct moe_inventory other;
    struct moe_err err = {0};
    assert_ok(moe_inventory_uniform(&other, 2, 4, 1, two, bytes, 2, &err), &err);
    for (enum moe_finding which = 0; which < MOE_N_FINDINGS; which++) {
        assert_ok(moe_calibration_serves(&map, which, &inventory, &err), &err);
        if (which == MOE_FOUND_ROUTING) { /* at the best precision alone */
            assert_ok(moe_calibration_serves(&map, which, &other, &err), &err);
            continue;
        }
        assert_fails(moe_calibration_serves(&map, which, &other, &err), MOE_ERR_USAGE,
                     "for experts at '8' and, lower, at '2': the pack lacks one", &err);
    }
    map.hobbit.there = false;
    assert_fails(moe_calibration_serves(&map, MOE_FOUND_ON_MISS, &inventory, &err), MOE_ERR_USAGE,
                 "the map has no thresholds for --on-miss", &err);
    moe_inventory_release(&other);
}

/* ---- Ways to load less ---- */

static void add_way(struct moe_map_savings *at, const char *strategy, double bytes, double loss,
                    double check)
{
    struct moe_map_saving *way = &at->ways[at->n_ways++];
    snprintf(way->strategy, sizeof way->strategy, "%s", strategy);
    way->bytes_per_token = bytes;
    way->loss = (struct moe_loss){.tokens = 9, .nll_percent = loss};
    way->check = (struct moe_loss){.tokens = check > 0, .nll_percent = check};
}

/* Through caches of 1000 and 1500 bytes; skipping more loses less in the larger one. */
static struct moe_map with_savings(void)
{
    struct moe_map map = found();
    map.n_savings = 2;
    map.savings[0] = (struct moe_map_savings){.cache_bytes = 1000, .low = 2};
    map.savings[1] = (struct moe_map_savings){.cache_bytes = 1500, .low = 2};
    for (int i = 0; i < 2; i++) {
        add_way(&map.savings[i], "lru+skip-below=0.1", 90, i ? 0.2 : 0.4, 0);
        add_way(&map.savings[i], "lru+skip-below=0.2", 80, i ? 0.6 : 0.8, 0.9);
        add_way(&map.savings[i], "lru+skip-below=0.3", 70, i ? 0.9 : 1.5, 0);
        add_way(&map.savings[i], "lru+prefer-cached=0.3", 75, 0.7, 0);
        add_way(&map.savings[i], "lru+prefer-cached=0.4", 60, 0.9, 1.2);
        add_way(&map.savings[i], "lru+on-miss=load-low:0.6+low-pool=0.2", 85, 1, 0);
    }
    return map;
}

static double saving_of(const struct moe_map *map, const char *words, uint64_t cache_bytes,
                        const char *high, const char *low)
{
    struct moe_strategy s = calibrated(map, words);
    const struct moe_loss *l = moe_calibration_saving(map, &s, cache_bytes, high, low, NULL);
    return l ? l->nll_percent : -1;
}

/* The worse one of texts and checks, in the caches around the plan's; nothing beyond them. */
static void a_saving_is_known_near_its_cache(void **state)
{
    struct moe_map map = with_savings();
    assert_true(saving_of(&map, "lru+skip-below=0.3", 1000, "8", "2") == 1.5);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 1200, "8", "2") == 1.5);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 1500, "8", "2") == 0.9);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 3000, "8", "2") == 0.9);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 3001, "8", "2") == -1);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 500, "8", "2") == 1.5);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 499, "8", "2") == -1);
    assert_true(saving_of(&map, "lru+skip-below=0.2", 1000, "8", "2") == 0.9);
    assert_true(saving_of(&map, "fate+prefill=popularity+cache-bits=0+skip-below=0.3", 1000, "8",
                          "4") == 1.5);
    assert_true(saving_of(&map, "lru+skip-below=0.25", 1000, "8", "2") == -1);
    assert_true(saving_of(&map, "lru+skip-below=0.3+prefer-cached=0.3", 1000, "8", "2") == -1);
    assert_true(saving_of(&map, "lru+on-miss=load-low:0.6+low-pool=0.3", 1000, "8", "2") == 1);
    assert_true(saving_of(&map, "lru+on-miss=load-low:0.6+low-pool=0.3", 1000, "8", "4") == -1);
    assert_true(saving_of(&map, "lru+skip-below=0.3", 1000, "4", "2") == -1);
    assert_true(saving_of(&map, "lru", 1000, "8", "2") == -1);
}

/* Of each kind of ways the one that loads least within the tolerance. */
static void ways_within_a_tolerance(void **state)
{
    struct moe_map map = with_savings();
    struct moe_calibration c = {&map, true, 1};
    struct moe_strategy ways[MOE_MAX_WAYS], taken;
    struct moe_err err = {0};
    uint32_t n;
    assert_ok(moe_calibration_ways(&c, &inventory, 1000, ways, &n, &err), &err);
    assert_int_equal(n, 3);
    assert_true(ways[0].skip_below == 0.2 && ways[1].prefer == 0.3 && ways[2].high_up_to == 0.6);
    assert_ok(moe_calibration_ways(&c, &inventory, 1500, ways, &n, &err), &err);
    assert_true(n == 3 && ways[0].skip_below == 0.3);
    assert_ok(moe_calibration_ways(&c, &inventory, 4000, ways, &n, &err), &err);
    assert_int_equal(n, 0);

    /* What approximates takes their place, all else stays. */
    assert_ok(moe_calibration_ways(&c, &inventory, 1000, ways, &n, &err), &err);
    assert_true(moe_strategy_find("hobbit", &taken));
    moe_calibration_take(&taken, &ways[1]);
    assert_ok(moe_strategy_settle(&taken, &err), &err);
    assert_true(taken.prefer == 0.3 && taken.skip_below == 0 &&
                taken.miss_precision == MOE_MISS_BEST && taken.cache == &moe_policy_hobbit);
    assert_ok(moe_calibration_check(&c, &taken, &inventory, 1000, 0, 2, &err), &err);
    moe_calibration_take(&taken, &ways[2]);
    assert_ok(moe_strategy_settle(&taken, &err), &err);
    assert_true(taken.prefer == 0 && taken.high_up_to == 0.6 && taken.low_pool == 0.2);
    assert_ok(moe_calibration_check(&c, &taken, &inventory, 1000, 0, 2, &err), &err);
    assert_fails(moe_calibration_check(&c, &taken, &inventory, 4000, 0, 2, &err), MOE_ERR_USAGE,
                 "no measurement within 1 of what strategy hobbit", &err);
    c.tolerance = 0.9;
    assert_fails(moe_calibration_check(&c, &taken, &inventory, 1000, 0, 2, &err), MOE_ERR_USAGE,
                 "no measurement within 0.9", &err);
    moe_strategy_find("lru", &taken);
    assert_ok(moe_strategy_settle(&taken, &err), &err);
    assert_ok(moe_calibration_check(&c, &taken, &inventory, 4000, 0, 2, &err), &err);

    snprintf(map.savings[0].ways[0].strategy, MOE_MAP_WAY, "lru+skip=1");
    assert_fails(moe_calibration_ways(&c, &inventory, 1000, ways, &n, &err), MOE_ERR_USAGE, "skip",
                 &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_take_what_was_found),
        cmocka_unit_test(losses_are_bounds),
        cmocka_unit_test(no_more_than_was_measured),
        cmocka_unit_test(the_named_may_do_more),
        cmocka_unit_test(packs_have_what_was_measured),
        cmocka_unit_test(a_saving_is_known_near_its_cache),
        cmocka_unit_test(ways_within_a_tolerance),
    };
    return cmocka_run_group_tests_name("calibration", tests, set_up, tear_down);
}
