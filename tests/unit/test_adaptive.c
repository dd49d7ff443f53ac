/* Which experts adaptive exactness measures: the line, the sample and the nearest, by hand. */
#include <math.h>

#include "../test.h"
#include "pack/map.h"
#include "tune/adaptive.h"

static void a_line_is_found_through_what_was_measured(void **state)
{
    (void)state;
    /* nats = 3 * estimate^2; the expert that was not asked and the one of no estimate lie
     * elsewhere. */
    const double estimates[] = {1, 2, 4, 8, 5, 0}, nats[] = {3, 12, 48, 192, 1e9, 7},
                 errors[6] = {0};
    const uint8_t asked[] = {1, 1, 1, 1, 0, 1};
    const struct moe_importance_line line = moe_importance_fit(estimates, nats, errors, asked, 6);
    assert_true(fabs(line.slope - 2) <= 1e-12);
    assert_true(fabs(line.base - log(3)) <= 1e-12);
    assert_true(fabs(line.spread - 0) <= 1e-12);
    assert_true(fabs(moe_importance_on_line(&line, 5) - 75) <= 1e-9);
    assert_true(fabs(moe_importance_on_line(&line, 0) - 0) <= 0);
}

static void a_gain_counts_as_its_error(void **state)
{
    (void)state;
    const double estimates[] = {1, 2, 4, 8}, nats[] = {3, -12, 48, 1}, errors[] = {1, 12, 5, 192};
    const uint8_t asked[] = {1, 1, 1, 1};
    const struct moe_importance_line line = moe_importance_fit(estimates, nats, errors, asked, 4);
    assert_true(fabs(line.slope - 2) <= 1e-12);
    assert_true(fabs(line.base - log(3)) <= 1e-12);
}

static void the_spread_is_that_of_logarithms(void **state)
{
    (void)state;
    /* Off by the same factor in both directions, and no slope: the figures left are +-log 2. */
    const double estimates[] = {1, 1, 4, 4}, nats[] = {2, 0.5, 2, 0.5}, errors[4] = {0};
    const uint8_t asked[] = {1, 1, 1, 1};
    const struct moe_importance_line line = moe_importance_fit(estimates, nats, errors, asked, 4);
    assert_true(fabs(line.slope - 0) <= 1e-12);
    assert_true(fabs(line.spread - sqrt(4 * log(2) * log(2) / 2)) <= 1e-12);
}

static void a_sample_is_spread_over_the_ranks(void **state)
{
    (void)state;
    struct moe_err err = {0};
    const double estimates[] = {80, 10, 50, 30, 70, 20, 60, 40};
    uint8_t asked[8] = {0};
    assert_ok(moe_importance_sample(asked, estimates, 8, 2, &err), &err);
    const uint8_t wanted[] = {0, 0, 0, 1, 1, 0, 0, 0}; /* ranks 2 and 6 of 0 to 7 */
    assert_memory_equal(asked, wanted, 8);
    assert_ok(moe_importance_sample(asked, estimates, 8, 100, &err), &err);
    for (int i = 0; i < 8; i++)
        assert_int_equal(asked[i], 1);
}

static void the_nearest_that_are_open_are_asked(void **state)
{
    (void)state;
    struct moe_err err = {0};
    const double distances[] = {0.5, 0.1, HUGE_VAL, 0.3, 0.3, 2};
    uint8_t asked[] = {0, 1, 0, 0, 0, 0};
    assert_int_equal(moe_importance_open(asked, distances, 6, 1), 3);
    assert_ok(moe_importance_ask(asked, distances, 6, 1, 1, &err), &err);
    assert_int_equal(asked[3], 1); /* of equals the first */
    assert_int_equal(asked[4] + asked[0], 0);
    assert_ok(moe_importance_ask(asked, distances, 6, 1, 10, &err), &err);
    assert_int_equal(moe_importance_open(asked, distances, 6, 1), 0);
    assert_int_equal(asked[2] + asked[5], 0); /* no measurement would change them */
}

/* A map of two experts measured and one estimated comes back, and gives on the measured ones alone.
 */
static void a_map_says_what_was_measured(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_buf text = {0}, again = {0};
    struct moe_map *map, *read, *to;
    assert_ok(moe_map_new(&map, 1, 3, 1, &err), &err);
    assert_ok(moe_map_new(&to, 1, 3, 1, &err), &err);
    map->n_variants = to->n_variants = 2;
    for (int v = 0; v < 2; v++)
        snprintf(map->variants[v], sizeof map->variants[v], "%d", 4 - 2 * v);
    memcpy(to->variants, map->variants, sizeof map->variants);
    map->pack_dense_bits = map->importances.dense_bits = to->pack_dense_bits = 8;
    map->max_tokens = to->max_tokens = 16;
    map->importances.there = map->importances.exact = true;
    map->importances.lower = 1;
    assert_ok(moe_shards_set(&map->importances.shards, 0, 1, &err), &err);
    for (int i = 0; i < 3; i++) {
        map->importances.known[i] = 1;
        map->importances.nats[i] = i + 0.5;
    }
    map->importances.estimated[1] = 1;
    map->importances.adaptive = (struct moe_adaptive){2, 1, 1, 0.25};
    assert_ok(moe_map_write(map, false, &text, &err), &err);
    assert_ok(moe_record_parse(&moe_map_format, &read, "map", text.data, text.size, &err), &err);
    assert_ok(moe_map_write(read, false, &again, &err), &err);
    assert_int_equal(text.size, again.size);
    assert_memory_equal(text.data, again.data, text.size);
    assert_int_equal(read->importances.adaptive.open, 1);
    assert_ok(moe_map_adopt(to, read, &err), &err);
    assert_int_equal(to->importances.known[0] + to->importances.known[2], 2);
    assert_int_equal(to->importances.known[1], 0);
    moe_map_free(read);
    map->importances.adaptive.measured = 3;
    moe_buf_release(&text);
    text = (struct moe_buf){0};
    assert_ok(moe_map_write(map, false, &text, &err), &err);
    assert_fails(moe_record_parse(&moe_map_format, &read, "map", text.data, text.size, &err),
                 MOE_ERR_FORMAT, "does not count", &err);
    moe_buf_release(&text);
    moe_buf_release(&again);
    moe_map_free(map);
    moe_map_free(to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_found_through_what_was_measured),
        cmocka_unit_test(a_gain_counts_as_its_error),
        cmocka_unit_test(the_spread_is_that_of_logarithms),
        cmocka_unit_test(a_sample_is_spread_over_the_ranks),
        cmocka_unit_test(the_nearest_that_are_open_are_asked),
        cmocka_unit_test(a_map_says_what_was_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
