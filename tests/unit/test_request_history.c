/*
 * Request history: whole requests' choices, matched by hand-counted cosines.
 */
#include "sched/history.h"

#include <math.h>
#include <stdlib.h>

#include "../test.h"

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

/* Documents of one token, whose experts follow from the hash. */
static void add_document(struct moe_requests *r, uint64_t hash)
{
    uint32_t *counts = moe_requests_add(r, hash);
    if (counts)
        counts[hash % EXPERTS] = counts[EXPERTS + hash / EXPERTS % EXPERTS] = 1;
}

/* Of all documents those with the smallest hashes, in whatever order and parts they come. */
static void statistics_keep_the_same_documents(void **state)
{
    enum { N = 200, PARTS = 3 };
    struct moe_requests whole, sum, parts[PARTS];
    struct moe_err err = {0};
    uint64_t random = 1, hashes[N], larger = 0;
    assert_ok(moe_requests_init(&whole, LAYERS, EXPERTS, &err), &err);
    assert_ok(moe_requests_init(&sum, LAYERS, EXPERTS, &err), &err);
    for (int p = 0; p < PARTS; p++)
        assert_ok(moe_requests_init(&parts[p], LAYERS, EXPERTS, &err), &err);
    for (int i = 0; i < N; i++) {
        hashes[i] = i % 10 == 9 ? hashes[i - 1] : test_random(&random); /* some twice */
        add_document(&whole, hashes[i]);
        add_document(&parts[i % PARTS], hashes[i]);
    }
    for (int p = PARTS - 1; p >= 0; p--)
        moe_requests_merge(&sum, &parts[p]);
    assert_int_equal(whole.n, MOE_REQUESTS_KEPT);
    assert_int_equal(sum.n, MOE_REQUESTS_KEPT);
    assert_memory_equal(sum.hashes, whole.hashes, MOE_REQUESTS_KEPT * sizeof *sum.hashes);
    assert_memory_equal(sum.counts, whole.counts,
                        MOE_REQUESTS_KEPT * LAYERS * EXPERTS * sizeof *sum.counts);
    for (uint32_t i = 0; i < MOE_REQUESTS_KEPT; i++) {
        uint64_t hash = whole.hashes[i];
        assert_true(i == 0 || whole.hashes[i - 1] <= hash);
        assert_int_equal(moe_requests_at(&whole, i, 0)[hash % EXPERTS], 1);
        assert_int_equal(moe_requests_at(&whole, i, 1)[hash / EXPERTS % EXPERTS], 1);
    }
    for (int i = 0; i < N; i++)
        larger += hashes[i] > whole.hashes[MOE_REQUESTS_KEPT - 1];
    assert_true(larger <= N - MOE_REQUESTS_KEPT && larger >= N - MOE_REQUESTS_KEPT - 1);
    moe_requests_release(&whole);
    moe_requests_release(&sum);
    for (int p = 0; p < PARTS; p++)
        moe_requests_release(&parts[p]);
}

/* The first request finds the documents of statistics. */
static void statistics_are_earlier_requests(void **state)
{
    struct moe_request_history h;
    struct moe_requests known;
    struct moe_err err = {0};
    void *block = open_history(&h);
    const uint32_t first = 1;
    assert_ok(moe_requests_init(&known, LAYERS, EXPERTS, &err), &err);
    add_document(&known, 3); /* experts 0, 1 */
    add_document(&known, 7); /* 1, 2 */
    moe_request_history_seed(&h, &known);
    moe_request_history_begin(&h);
    assert_int_equal(h.n, 2); /* nothing else has joined */
    moe_request_history_add(&h, 0, 1, 1, &first);
    assert_int_equal(moe_request_history_match(&h), 1);
    float p[EXPERTS];
    moe_request_history_shares(&h, 1, 1, p);
    assert_true(p[0] == 0 && p[1] == 0 && p[2] == 1);
    moe_requests_release(&known);
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
        cmocka_unit_test(statistics_keep_the_same_documents),
        cmocka_unit_test(statistics_are_earlier_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
