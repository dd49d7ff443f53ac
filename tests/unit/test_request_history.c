/*
 * Request history: whole requests' choices, matched by hand-counted cosines.
 */
#include "sched/request_history.h"

#include <math.h>
#include <stdlib.h>

#include "../test.h"
#include "sched/choice_history.h"

enum { LAYERS = 2, EXPERTS = 3 };

static void *open_history(struct moe_request_history *h)
{
    struct moe_arena arena = {0};
    *h = (struct moe_request_history){.n_layers = LAYERS, .n_experts = EXPERTS};
    moe_request_history_carve(h, &arena);
    void *block = calloc(1, arena.used);
    assert_non_null(block);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    moe_request_history_carve(h, &arena);
    assert_false(arena.overflowed);
    return block;
}

/* A request of one token, one expert a layer. */
static void request(struct moe_request_history *h, uint32_t first, uint32_t second)
{
    moe_request_history_begin(h);
    moe_request_history_add(h, 0, 1, 1, &first);
    moe_request_history_add(h, 1, 1, 1, &second);
}

static void the_most_similar_request_is_found(void **state)
{
    struct moe_request_history h;
    void *block = open_history(&h);
    float p[EXPERTS];
    request(&h, 0, 1);
    assert_int_equal(moe_request_history_match(&h), MOE_REQUESTS_KEPT); /* the first finds none */
    request(&h, 2, 2);
    request(&h, 2, 0); /* under way; what is kept: 0 1, then 2 2 */
    assert_int_equal(h.n, 2);
    assert_int_equal(moe_request_history_match(&h), 1);
    moe_request_history_shares(&h, 1, 1, p);
    assert_true(p[0] == 0 && p[1] == 0 && p[2] == 1);
    /* Two more tokens are like the other one: rows (2 0 1) and (1 2 0) against (1 0 0) and (0 1 0)
     * have cosines of 2/sqrt 5 each, against (0 0 1) and (0 0 1) 1/sqrt 5 and 0. */
    const uint32_t tokens[LAYERS][2] = {{0, 0}, {1, 1}};
    for (uint32_t l = 0; l < LAYERS; l++)
        moe_request_history_add(&h, l, 2, 1, tokens[l]);
    assert_int_equal(moe_request_history_match(&h), 0);
    assert_true(fabs(h.similarity[0] - 2 / sqrt(5)) < 1e-6);
    assert_true(fabs(h.similarity[LAYERS] - 1 / sqrt(5)) < 1e-6);
    free(block);
}

static void shares_are_those_of_all_tokens(void **state)
{
    struct moe_request_history h;
    void *block = open_history(&h);
    float p[EXPERTS];
    const uint32_t prompt[] = {0, 1, 0, 2}; /* two tokens, two experts each */
    moe_request_history_begin(&h);
    moe_request_history_add(&h, 0, 2, 2, prompt);
    moe_request_history_begin(&h);
    moe_request_history_shares(&h, 0, 0, p);
    assert_true(p[0] == 0.5f && p[1] == 0.25f && p[2] == 0.25f);
    moe_request_history_shares(&h, 0, 1, p); /* nothing was counted there */
    assert_true(p[0] == 0 && p[1] == 0 && p[2] == 0);
    free(block);
}

static void a_full_collection_gives_up_what_was_matched_least(void **state)
{
    struct moe_request_history h;
    void *block = open_history(&h);
    for (uint32_t i = 0; i < MOE_REQUESTS_KEPT + 1; i++)
        request(&h, i % EXPERTS, 0);
    assert_int_equal(h.n, MOE_REQUESTS_KEPT);
    for (uint32_t i = 0; i < MOE_REQUESTS_KEPT; i++)
        if (i != 7)
            moe_request_history_note(&h, i);
    request(&h, 1, 1);
    assert_int_equal(h.number[7], MOE_REQUESTS_KEPT + 1);
    assert_int_equal(h.n, MOE_REQUESTS_KEPT);
    request(&h, 1, 1); /* of those matched once the oldest; the new one was not matched at all */
    assert_int_equal(h.number[7], MOE_REQUESTS_KEPT + 2);
    free(block);
}

/* As the strategy's predictor: nothing in the first request, the matched one's experts later. */
static void predictions_follow_the_matched_request(void **state)
{
    struct moe_choice_history r = {
        .by = MOE_PREDICT_BY_REQUESTS, .n_layers = LAYERS, .n_experts = EXPERTS, .top_k = 1};
    struct moe_arena arena = {0};
    moe_choice_history_carve(&r, &arena, 4);
    void *block = calloc(1, arena.used);
    assert_non_null(block);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    moe_choice_history_carve(&r, &arena, 4);
    static const uint32_t chosen[][LAYERS] = {{0, 1}, {2, 0}, {0, 2}};
    const float weight = 1;
    float p[EXPERTS];
    for (int i = 0; i < 3; i++) {
        moe_choice_history_begin_sequence(&r);
        for (uint32_t l = 0; l < LAYERS; l++) {
            moe_choice_history_see(&r, l, 1, &chosen[i][l]);
            uint32_t reach = moe_choice_history_reach(&r, l, 1, LAYERS - 1 - l);
            assert_int_equal(reach, i > 0 && l == 0 ? 1 : 0);
            if (reach > 0)
                moe_choice_history_predict(&r, l, 0, 0, 1, &chosen[i][l], p);
            moe_choice_history_add(&r, l, 1, &chosen[i][l], &weight);
        }
    }
    assert_true(p[1] == 1); /* the third request began like the first */
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_most_similar_request_is_found),
        cmocka_unit_test(shares_are_those_of_all_tokens),
        cmocka_unit_test(a_full_collection_gives_up_what_was_matched_least),
        cmocka_unit_test(predictions_follow_the_matched_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
