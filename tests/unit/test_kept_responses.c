/* Responses that are kept: within their bound the oldest make room, and each is its owner's alone.
 */
#include "../test.h"

#include "serve/kept_responses.h"

static void put(struct kept_responses *k, const char *id, uint64_t owner, uint64_t n)
{
    struct moe_buf response = {0}, conversation = {0};
    moe_buf_text(&response, id);
    for (uint64_t i = 0; i < n; i++)
        moe_buf_u8(&conversation, 'c');
    kept_responses_put(k, id, owner, &response, &conversation, 3);
    moe_buf_release(&response);
    moe_buf_release(&conversation);
}

static bool has(struct kept_responses *k, const char *id, uint64_t owner)
{
    struct moe_buf response = {0}, conversation = {0};
    uint32_t n_asked = 0;
    bool there = kept_responses_get(k, id, owner, &response, &conversation, &n_asked);
    assert_int_equal(n_asked, there ? 3 : 0);
    if (there) {
        assert_int_equal(response.size, strlen(id));
        assert_memory_equal(response.data, id, response.size);
    }
    moe_buf_release(&response);
    moe_buf_release(&conversation);
    return there;
}

static void the_oldest_make_room(void **state)
{
    struct kept_responses *k;
    struct moe_err err;
    char id[16];
    uint32_t n = 0;
    (void)state;
    assert_ok(kept_responses_open(&k, 64 << 10, &err), &err);
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        put(k, id, 1, 4000);
        assert_true(has(k, id, 1));
    }
    assert_false(has(k, "resp_0", 1));
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof id, "resp_%d", i);
        n += has(k, id, 1);
    }
    assert_in_range(n, 5, 16);
    put(k, "large", 1, 70000); /* more than there is for all: nobody makes room for it */
    assert_false(has(k, "large", 1));
    assert_true(has(k, "resp_99", 1));
    kept_responses_close(k);
    assert_ok(kept_responses_open(&k, 0, &err), &err);
    put(k, "none", 1, 1);
    assert_false(has(k, "none", 1));
    kept_responses_close(k);
    kept_responses_close(NULL);
}

static void each_is_its_owners(void **state)
{
    struct kept_responses *k;
    struct moe_err err;
    (void)state;
    assert_ok(kept_responses_open(&k, 64 << 10, &err), &err);
    put(k, "a", 1, 10);
    put(k, "b", 2, 10);
    put(k, "c", 1, 10);
    assert_true(has(k, "a", 1) && has(k, "b", 2) && has(k, "c", 1));
    assert_false(has(k, "a", 2) || has(k, "b", 1) || has(k, "a", 0));
    assert_false(kept_responses_drop(k, "c", 2));
    assert_true(kept_responses_drop(k, "c", 1));
    assert_false(kept_responses_drop(k, "c", 1));
    put(k, "d", 1, 10); /* behind the last that is left */
    assert_true(has(k, "a", 1) && has(k, "b", 2) && has(k, "d", 1) && !has(k, "c", 1));
    kept_responses_close(k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_make_room),
        cmocka_unit_test(each_is_its_owners),
    };
    return cmocka_run_group_tests_name("kept_responses", tests, NULL, NULL);
}
