/* The record of use, over two short sequences. */
#include "cache/store.h"
#include "cache/usage.h"

#include "../test.h"

enum { N_LAYERS = 2, N_EXPERTS = 3 };

static uint32_t key_at(uint32_t layer, uint32_t expert)
{
    return moe_expert_key(N_EXPERTS, layer, expert);
}

static void records_what_was_used(void **state)
{
    struct moe_err err = {0};
    struct moe_usage u;
    assert_ok(moe_usage_init(&u, N_LAYERS, N_EXPERTS, 2, &err), &err);
    moe_usage_begin_sequence(&u);
    moe_usage_begin_tokens(&u, 5); /* a prompt: four of its tokens want (0, 1), two (1, 2) */
    assert_int_equal(u.pass, 5);
    moe_usage_note(&u, key_at(0, 1), 4, true);
    moe_usage_note(&u, key_at(1, 2), 2, false);
    assert_int_equal(u.layer, 1);
    moe_usage_begin_tokens(&u, 1); /* a decoded one */
    moe_usage_note(&u, key_at(0, 1), 1, false);
    assert_int_equal(u.layer, 0);
    assert_int_equal(u.pass, 1);
    assert_int_equal(u.token, 6);
    assert_int_equal(u.tokens, 6);
    static const uint32_t last[] = {0, 6, 0, 0, 0, 5}, count[] = {0, 5, 0, 0, 0, 2};
    static const uint32_t high[] = {0, 4, 0, 0, 0, 0};
    static const uint64_t frequency[] = {0, 5, 0, 0, 0, 2}, last_ever[] = {0, 6, 0, 0, 0, 5};
    assert_memory_equal(u.last, last, sizeof last);
    assert_memory_equal(u.count, count, sizeof count);
    assert_memory_equal(u.high, high, sizeof high);
    assert_memory_equal(u.frequency, frequency, sizeof frequency);
    assert_memory_equal(u.last_ever, last_ever, sizeof last_ever);
    moe_usage_release(&u);
}

static void a_sequence_begins_afresh(void **state)
{
    struct moe_err err = {0};
    struct moe_usage u;
    static const uint32_t nothing[N_LAYERS * N_EXPERTS] = {0};
    assert_ok(moe_usage_init(&u, N_LAYERS, N_EXPERTS, 2, &err), &err);
    u.frequency[3] = 100; /* of a profile */
    moe_usage_begin_tokens(&u, 7);
    moe_usage_note(&u, key_at(1, 0), 3, true);
    moe_usage_begin_sequence(&u);
    assert_int_equal(u.token, 0);
    assert_int_equal(u.tokens, 7);
    assert_memory_equal(u.last, nothing, sizeof nothing);
    assert_memory_equal(u.count, nothing, sizeof nothing);
    assert_memory_equal(u.high, nothing, sizeof nothing);
    assert_int_equal(u.frequency[3], 103);
    assert_int_equal(u.last_ever[3], 7);
    moe_usage_begin_tokens(&u, 1);
    moe_usage_note(&u, key_at(1, 0), 1, true);
    assert_int_equal(u.last[3], 1);
    assert_int_equal(u.count[3], 1);
    assert_int_equal(u.frequency[3], 104);
    assert_int_equal(u.last_ever[3], 8);
    moe_usage_release(&u);
    assert_null(u.last);
}

static void what_ends_beside_others_leaves_them_theirs(void **state)
{
    struct moe_usage u;
    struct moe_err err;
    (void)state;
    assert_ok(moe_usage_init(&u, N_LAYERS, N_EXPERTS, 2, &err), &err);
    moe_usage_begin_tokens(&u, 6);
    moe_usage_note(&u, key_at(1, 1), 6, true);
    moe_usage_begin_tokens(&u, 2);
    moe_usage_note(&u, key_at(1, 2), 2, false);
    uint32_t key = 1 * N_EXPERTS + 1;
    moe_usage_end_sequence(&u, 4); /* of the eight tokens */
    assert_int_equal(u.token, 4);
    assert_int_equal(u.count[key], 3);
    assert_int_equal(u.high[key], 3);
    assert_int_equal(u.last[key], 2); /* two tokens ago, as before */
    assert_int_equal(u.count[key + 1], 1);
    assert_int_equal(u.last[key + 1], 4);
    assert_int_equal(u.frequency[key], 6);
    assert_int_equal(u.sequences, 1); /* so that policies look again */
    moe_usage_end_sequence(&u, 4);
    assert_int_equal(u.token, 0);
    assert_int_equal(u.count[key], 0);
    assert_int_equal(u.last[key + 1], 0);
    moe_usage_release(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_what_was_used),
        cmocka_unit_test(a_sequence_begins_afresh),
        cmocka_unit_test(what_ends_beside_others_leaves_them_theirs),
    };
    return cmocka_run_group_tests_name("usage", tests, NULL, NULL);
}
