/* Drafts: what is looked up, and how long the next one is. */
#include "../test.h"

#include "engine/draft.h"

static void what_followed_the_longest_run(void **state)
{
    /* "5 6" stood twice, "4 5 6" once: the longer run says what follows. */
    static const uint32_t ids[] = {4, 5, 6, 7, 8, 9, 5, 6, 1, 2, 4, 5, 6};
    uint32_t draft[MOE_DRAFT_MOST];
    assert_int_equal(moe_draft_look_up(ids, N_ITEMS(ids), 3, draft), 3);
    assert_int_equal(draft[0], 7);
    assert_int_equal(draft[1], 8);
    assert_int_equal(draft[2], 9);
    /* Of runs as long the last place counts. */
    static const uint32_t twice[] = {5, 6, 7, 5, 6, 8, 5, 6};
    assert_int_equal(moe_draft_look_up(twice, N_ITEMS(twice), 1, draft), 1);
    assert_int_equal(draft[0], 8);
    /* No more than there is: "1 1" ends one token before the end. */
    static const uint32_t ones[] = {1, 1, 1};
    assert_int_equal(moe_draft_look_up(ones, N_ITEMS(ones), 8, draft), 1);
    assert_int_equal(draft[0], 1);
}

static void nothing_where_nothing_repeats(void **state)
{
    static const uint32_t ids[] = {3, 1, 2, 3};
    uint32_t draft[MOE_DRAFT_MOST];
    for (uint64_t n = 0; n <= N_ITEMS(ids); n++)
        assert_int_equal(moe_draft_look_up(ids, n, 8, draft), 0);
    static const uint32_t pairs[] = {1, 2, 9, 1, 2};
    assert_int_equal(moe_draft_look_up(pairs, N_ITEMS(pairs), 0, draft), 0);
}

/* Right to its end: twice as long, up to the most; wrong: half. */
static void a_draft_grows_and_shrinks(void **state)
{
    uint32_t ids[64];
    for (uint32_t i = 0; i < N_ITEMS(ids); i++)
        ids[i] = i % 20;
    struct moe_draft d;
    moe_draft_begin(&d, 6);
    static const uint32_t lengths[] = {2, 4, 6, 6};
    for (size_t k = 0; k < N_ITEMS(lengths); k++) {
        moe_draft_make(&d, ids, 40, 100);
        assert_int_equal(d.n, lengths[k]);
        for (uint32_t i = 0; i < lengths[k]; i++)
            assert_true(moe_draft_judge(&d, i));
        assert_int_equal(d.n, 0);
        assert_false(moe_draft_judge(&d, lengths[k]));
    }
    static const uint32_t fewer[] = {6, 3, 1, 1};
    for (size_t k = 0; k < N_ITEMS(fewer); k++) {
        moe_draft_make(&d, ids, 40, 100);
        assert_int_equal(d.n, fewer[k]);
        assert_false(moe_draft_judge(&d, 19));
        assert_int_equal(d.n, 0);
    }
    /* Right, but cut short by the room: no reason to draft more. */
    moe_draft_begin(&d, 6);
    moe_draft_make(&d, ids, 40, 1);
    assert_int_equal(d.n, 1);
    assert_true(moe_draft_judge(&d, 0));
    moe_draft_make(&d, ids, 41, 100);
    assert_int_equal(d.n, 2);
    moe_draft_make(&d, ids, 41, 0);
    assert_int_equal(d.n, 0);
}

/* Five in a row from the beginning; afterwards right ones make up for four wrong ones each. */
static void wrong_drafts_are_not_worth_it(void **state)
{
    struct moe_draft d;
    moe_draft_begin(&d, 1);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(moe_draft_is_worth(&d));
        d.ids[0] = 7;
        d.n = d.made = 1;
        assert_false(moe_draft_judge(&d, 8));
    }
    assert_false(moe_draft_is_worth(&d));
    moe_draft_begin(&d, 1);
    for (uint32_t i = 0; i < 60; i++) { /* one of four is right */
        d.ids[0] = 7;
        d.n = d.made = 1;
        assert_int_equal(moe_draft_judge(&d, i % 4 ? 8 : 7), i % 4 == 0);
        assert_true(moe_draft_is_worth(&d));
    }
    for (uint32_t i = 0; i < 16; i++) {
        d.ids[0] = 7;
        d.n = d.made = 1;
        moe_draft_judge(&d, 8);
    }
    assert_false(moe_draft_is_worth(&d));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_longest_run),
        cmocka_unit_test(nothing_where_nothing_repeats),
        cmocka_unit_test(a_draft_grows_and_shrinks),
        cmocka_unit_test(wrong_drafts_are_not_worth_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
