/* What tokens chose where they were used last: remembered, forgotten, predicted by. */
#include "../test.h"

#include <math.h>
#include <stdlib.h>

#include "base/float16.h"
#include "sched/history.h"

enum { LAYERS = 3, EXPERTS = 6, TOP_K = 2, BATCH = 4, SETS = MOE_TOKENS_KEPT / MOE_TOKENS_WAYS };

static const float weights[BATCH * TOP_K] = {0.75f, 0.25f, 0.75f, 0.25f, 0.5f, 0.5f, 0.75f, 0.25f};

static void *open_history(struct moe_choice_history *r, enum moe_predict_by by, uint32_t batch)
{
    struct moe_arena arena = {0};
    *r = (struct moe_choice_history){
        .by = by, .recalls = true, .n_layers = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K};
    moe_choice_history_carve(r, &arena, batch);
    void *block = moe_alloc(arena.used, 1, NULL);
    assert_non_null(block);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    moe_choice_history_carve(r, &arena, batch);
    moe_choice_history_begin_sequence(r);
    return block;
}

/* A pass of one token, which chooses `first` and the expert after it in every layer. */
static void use(struct moe_choice_history *r, uint32_t id, uint32_t first)
{
    const uint32_t chosen[TOP_K] = {first, first + 1};
    moe_choice_history_begin_pass(r, &id, 1);
    for (uint32_t l = 0; l < LAYERS; l++) {
        moe_choice_history_note(r, l, 1, chosen, weights);
        moe_choice_history_add(r, l, 1, chosen, weights);
    }
}

static bool knows(struct moe_choice_history *r, uint32_t id, uint32_t first)
{
    const uint16_t *chosen, *halves;
    moe_choice_history_begin_pass(r, &id, 1);
    return moe_token_history_recall(&r->tokens, 0, 1, &chosen, &halves) && chosen[0] == first + 1 &&
           chosen[1] == first + 2 && moe_f16_to_f32(halves[0]) == weights[0];
}

static void the_last_use_counts(void **state)
{
    struct moe_choice_history r;
    void *block = open_history(&r, MOE_PREDICT_BY_TOKEN, BATCH);
    assert_false(knows(&r, 7, 0));
    use(&r, 7, 0);
    use(&r, 8, 2);
    assert_true(knows(&r, 7, 0));
    use(&r, 7, 3);
    moe_choice_history_begin_sequence(&r); /* through all sequences */
    assert_true(knows(&r, 7, 3) && knows(&r, 8, 2));
    free(block);
}

/* Of a set's tokens the one used longest ago makes room, and is unknown when it comes again. */
static void the_oldest_makes_room(void **state)
{
    struct moe_choice_history r;
    void *block = open_history(&r, MOE_PREDICT_BY_TOKEN, BATCH);
    for (uint32_t i = 0; i < MOE_TOKENS_WAYS; i++)
        use(&r, 5 + i * SETS, i);
    use(&r, 5, 0);
    use(&r, 5 + MOE_TOKENS_WAYS * SETS, 4);
    for (uint32_t i = 0; i < MOE_TOKENS_WAYS; i++)
        if (i != 1)
            assert_true(knows(&r, 5 + i * SETS, i));
    assert_true(knows(&r, 5 + MOE_TOKENS_WAYS * SETS, 4));
    assert_false(knows(&r, 5 + SETS, 1));
    free(block);
}

/* In a pass with more of them than a set holds, the first rows know nothing and harm nobody. */
static void a_long_pass(void **state)
{
    enum { ROWS = MOE_TOKENS_WAYS + 2 };
    struct moe_choice_history r;
    uint32_t ids[ROWS], chosen[ROWS * TOP_K];
    float own[ROWS * TOP_K];
    const uint16_t *got, *halves;
    void *block = open_history(&r, MOE_PREDICT_BY_TOKEN, ROWS);
    for (uint32_t i = 0; i < ROWS; i++) {
        ids[i] = 9 + i * SETS;
        for (uint32_t k = 0; k < TOP_K; k++) {
            chosen[i * TOP_K + k] = (i + k) % EXPERTS;
            own[i * TOP_K + k] = weights[k];
        }
    }
    moe_choice_history_begin_pass(&r, ids, ROWS);
    moe_choice_history_note(&r, 1, ROWS, chosen, own);
    for (uint32_t i = 0; i < ROWS; i++)
        assert_int_equal(moe_token_history_recall(&r.tokens, i, 1, &got, &halves), i >= 2);
    for (uint32_t i = 2; i < ROWS - 1; i++)
        assert_true(knows(&r, ids[i], i));
    free(block);
}

/* A pass is predicted before its first layer; a new token's experts are those of the one before. */
static void predictions(void **state)
{
    struct moe_choice_history r;
    float p[EXPERTS];
    void *block = open_history(&r, MOE_PREDICT_BY_TOKEN, BATCH);
    const uint32_t one = 1, other = 2;
    moe_choice_history_begin_pass(&r, &one, 1);
    assert_int_equal(moe_choice_history_reach(&r, MOE_NO_LAYER_YET, 1, LAYERS), 0);
    use(&r, 1, 0);
    use(&r, 3, 3);
    for (int is_new = 0; is_new < 2; is_new++) {
        uint32_t first = is_new ? 3 : 0;
        moe_choice_history_begin_pass(&r, is_new ? &other : &one, 1);
        assert_int_equal(moe_choice_history_reach(&r, MOE_NO_LAYER_YET, 1, LAYERS), LAYERS);
        assert_int_equal(moe_choice_history_reach(&r, 0, 1, 1), 1);
        for (uint32_t d = 0; d < LAYERS; d++) {
            moe_choice_history_predict(&r, MOE_NO_LAYER_YET, d, 0, 1, NULL, p);
            for (uint32_t e = 0; e < EXPERTS; e++)
                assert_true(p[e] == (e == first ? 0.75f : e == first + 1 ? 0.25f : 0));
        }
    }
    moe_choice_history_begin_sequence(&r); /* which has no token before */
    assert_int_equal(moe_choice_history_reach(&r, MOE_NO_LAYER_YET, 1, LAYERS), 0);
    free(block);
}

/* Of several rows, as with drafts, those whose tokens are known say something. */
static void several_rows(void **state)
{
    struct moe_choice_history r;
    float p[EXPERTS];
    uint8_t marks[EXPERTS] = {0};
    void *block = open_history(&r, MOE_PREDICT_BY_TOKEN, BATCH);
    use(&r, 1, 0);
    use(&r, 3, 3);
    const uint32_t ids[3] = {1, 2, 3};
    moe_choice_history_begin_pass(&r, ids, 3);
    assert_int_equal(moe_choice_history_reach(&r, MOE_NO_LAYER_YET, 3, LAYERS), LAYERS);
    for (uint32_t row = 0; row < 3; row++) {
        moe_choice_history_predict(&r, 1, 0, row, 3, NULL, p);
        for (uint32_t e = 0; e < EXPERTS; e++)
            assert_int_equal(p[e] > 0, row != 1 && (e == row * 3 / 2 || e == row * 3 / 2 + 1));
    }
    assert_true(moe_token_history_mark(&r.tokens, 2, marks));
    for (uint32_t e = 0; e < EXPERTS; e++)
        assert_int_equal(marks[e], e != 2 && e != 5);
    const uint32_t fresh[2] = {4, 5};
    moe_choice_history_begin_pass(&r, fresh, 2);
    assert_int_equal(moe_choice_history_reach(&r, MOE_NO_LAYER_YET, 2, LAYERS), 0);
    assert_false(moe_token_history_mark(&r.tokens, 2, marks));
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_use_counts), cmocka_unit_test(the_oldest_makes_room),
        cmocka_unit_test(a_long_pass),         cmocka_unit_test(predictions),
        cmocka_unit_test(several_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
