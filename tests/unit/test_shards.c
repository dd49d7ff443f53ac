/*
 * Shards and origins: what may be merged and what may not, in any order; what messages say.
 */
#include "../test.h"
#include "profile/origins.h"

/* The shards of n that are named, counted from 1; 0 ends. */
static struct moe_shards shards(uint32_t n, ...)
{
    struct moe_err err = {0};
    struct moe_shards s = {0};
    va_list list;
    va_start(list, n);
    for (uint32_t i; (i = va_arg(list, uint32_t)) != 0;) {
        struct moe_shards one;
        assert_ok(moe_shards_set(&one, i - 1, n, &err), &err);
        if (s.n == 0) {
            s = one;
        } else {
            assert_ok(moe_shards_join(&s, &one, &err), &err);
            moe_shards_release(&one);
        }
    }
    va_end(list);
    return s;
}

static void prints(struct moe_shards s, const char *wanted)
{
    struct moe_buf text = {0};
    moe_shards_print(&s, &text);
    assert_string_equal((char *)text.data, wanted);
    moe_buf_release(&text);
    moe_shards_release(&s);
}

static void shards_join_in_any_order(void **state)
{
    for (uint32_t first = 1; first <= 3; first++) {
        struct moe_shards s = shards(3, first, first % 3 + 1, (first + 1) % 3 + 1, 0);
        assert_true(moe_shards_whole(&s) && s.n == 1 && s.n_held == 1 && s.held[0] == 0);
        moe_shards_release(&s);
    }
    prints(shards(7, 5, 2, 0), "shards 2, 5 of 7");
    prints(shards(9, 9, 3, 5, 4, 0), "shards 3-5, 9 of 9");
    prints(shards(4, 2, 1, 0), "shards 1, 2 of 4");
    prints(shards(4, 4, 0), "shard 4 of 4");
    prints(shards(1, 1, 0), "all");
    prints(shards(40, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 0),
           "shards 1, 3, 5, 7, 9, 11, 13, 15, ... of 40");
}

static void no_join(struct moe_shards sum, struct moe_shards part, const char *words)
{
    struct moe_err err = {0};
    uint32_t n_held = sum.n_held;
    assert_fails(moe_shards_join(&sum, &part, &err), MOE_ERR_USAGE, words, &err);
    assert_int_equal(sum.n_held, n_held);
    moe_shards_release(&sum);
    moe_shards_release(&part);
}

static void a_shard_counts_once(void **state)
{
    no_join(shards(3, 1, 0), shards(3, 1, 0), "would count twice: shard 1 of 3 is there already");
    no_join(shards(5, 1, 4, 0), shards(5, 2, 4, 0), "shard 4 of 5 is there already");
    no_join(shards(1, 1, 0), shards(1, 1, 0), "all of it is there already");
    no_join(shards(2, 1, 2, 0), shards(2, 1, 0), "all shards of it are there already");
    no_join(shards(2, 1, 0), shards(1, 1, 0), "it is whole, and shard 1 of 2 is there already");
    no_join(shards(2, 1, 0), shards(3, 2, 0), "was cut into 3 shards, those before into 2");
}

static void what_is_missing_is_named(void **state)
{
    struct moe_err err = {0};
    struct moe_shards s = shards(6, 1, 3, 0);
    assert_fails(moe_shards_check_whole(&s, &err), MOE_ERR_USAGE,
                 "shards 2, 4-6 of 6 are missing (--partial", &err);
    moe_shards_release(&s);
    s = shards(2, 2, 0);
    assert_fails(moe_shards_check_whole(&s, &err), MOE_ERR_USAGE, "shard 1 of 2 is missing", &err);
    moe_shards_release(&s);
}

static void items_are_dealt_out(void **state)
{
    uint64_t sum = 0;
    for (uint32_t i = 1; i <= 7; i++) {
        struct moe_shards s = shards(7, i, 0);
        sum += moe_shards_items(&s, 24);
        assert_int_equal(moe_shards_items(&s, 24), i <= 3 ? 4 : 3);
        assert_int_equal(moe_shards_items(&s, 2), i <= 2);
        moe_shards_release(&s);
    }
    assert_int_equal(sum, 24);
}

static void impossible_shards_are_found(void **state)
{
    static uint32_t twice[] = {1, 1}, beyond[] = {0, 3}, falling[] = {2, 0}, some[] = {0, 2};
    const struct moe_shards good = {3, 2, some}, wrong[] = {
                                                     {3, 2, twice},
                                                     {3, 2, beyond},
                                                     {3, 2, falling},
                                                     {0, 1, some},
                                                     {3, 0, some},
                                                     {1, 2, some},
                                                     {MOE_MAX_SHARDS + 1, 2, some},
                                                 };
    assert_null(moe_shards_problem(&good));
    for (size_t i = 0; i < N_ITEMS(wrong); i++)
        assert_non_null(moe_shards_problem(&wrong[i]));
}

/* ---- Origins ---- */

/* A shard of texts a and b (0: none), of 10 documents. */
static struct moe_origins origin(uint64_t a, uint64_t b, uint32_t shard, uint32_t n,
                                 const char *name)
{
    struct moe_err err = {0};
    struct moe_origins o;
    assert_ok(moe_origins_begin(&o, 2, shard - 1, n, &err), &err);
    o.items->pack_fingerprint = 77;
    o.items->documents = 10;
    o.items->texts[o.items->n_texts++] = a;
    if (b)
        o.items->texts[o.items->n_texts++] = b;
    moe_origins_name(&o, name);
    return o;
}

static int join(struct moe_origins *sum, struct moe_origins part, struct moe_err *err)
{
    int status = moe_origins_join(sum, &part, err);
    moe_origins_release(&part);
    return status;
}

static void no_origins_join(struct moe_origins sum, struct moe_origins part, const char *words)
{
    struct moe_err err = {0};
    assert_fails(join(&sum, part, &err), MOE_ERR_USAGE, words, &err);
    moe_origins_release(&sum);
}

static void wholes_of_different_texts_add_up(void **state)
{
    struct moe_err err = {0};
    struct moe_origins a = origin(5, 0, 1, 1, "a"), b = origin(4, 0, 1, 2, "b");
    assert_ok(join(&a, origin(4, 0, 2, 2, "b2"), &err), &err); /* not whole before the last one */
    assert_fails(moe_origins_check(&a, true, &err), MOE_ERR_USAGE,
                 "b2: is a shard of other texts than a; only whole runs", &err);
    assert_ok(join(&a, origin(4, 0, 1, 2, "b"), &err), &err);
    assert_ok(moe_origins_check(&a, false, &err), &err);
    assert_ok(join(&b, origin(4, 0, 2, 2, "b2"), &err), &err);
    assert_ok(join(&b, origin(5, 0, 1, 1, "a"), &err), &err);
    assert_null(moe_origins_difference(&a, &b));
    assert_null(moe_origins_problem(&a));
    assert_int_equal(moe_origins_documents(&a), 20);
    assert_fails(join(&a, origin(5, 0, 1, 1, "again"), &err), MOE_ERR_USAGE,
                 "all of it is there already", &err);
    moe_origins_release(&a);
    moe_origins_release(&b);
}

static void other_texts_packs_and_options_are_refused(void **state)
{
    struct moe_origins pack = origin(1, 2, 2, 2, "b"), options = origin(1, 2, 2, 2, "b");
    pack.items->pack_fingerprint++;
    options.items->options_fingerprint++;
    no_origins_join(origin(1, 2, 1, 2, "a"), pack,
                    "was made from the texts of a with another pack");
    no_origins_join(origin(1, 2, 1, 2, "a"), options, "the texts of a with other options");
    no_origins_join(origin(1, 2, 1, 2, "a"), origin(2, 1, 2, 2, "b"),
                    "than a, or the same in another");
    no_origins_join(origin(1, 2, 1, 1, "a"), origin(2, 0, 1, 1, "b"), "would count twice");
    no_origins_join(origin(1, 0, 1, 2, "a"), origin(1, 0, 2, 3, "b"), "was cut into 3 shards");
    struct moe_err err = {0};
    struct moe_origins a = origin(1, 2, 1, 2, "a"), b = origin(1, 2, 2, 2, "b");
    assert_string_equal(moe_origins_difference(&a, &b), "another shard");
    assert_ok(moe_origins_check(&a, true, &err), &err);
    assert_fails(moe_origins_check(&a, false, &err), MOE_ERR_USAGE, "shard 2 of 2 is missing",
                 &err);
    moe_origins_release(&a);
    moe_origins_release(&b);
}

/* Empty texts are no texts in common. */
static void empty_texts_do_not_count(void **state)
{
    struct moe_err err = {0};
    struct moe_origins a = origin(0, 3, 1, 1, "a");
    assert_ok(join(&a, origin(0, 4, 1, 1, "b"), &err), &err);
    moe_origins_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shards_join_in_any_order),
        cmocka_unit_test(a_shard_counts_once),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(items_are_dealt_out),
        cmocka_unit_test(impossible_shards_are_found),
        cmocka_unit_test(wholes_of_different_texts_add_up),
        cmocka_unit_test(other_texts_packs_and_options_are_refused),
        cmocka_unit_test(empty_texts_do_not_count),
    };
    return cmocka_run_group_tests_name("shards", tests, NULL, NULL);
}
