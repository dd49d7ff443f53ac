/*
 * Replay: how a trace is cut into passes, and which predictions a strategy has of it.
 */
#include "script_fixture.h"

#include <math.h>

#include "base/float16.h"
#include "base/rank.h"
#include "sched/history.h"
#include "sched/replay.h"

static struct moe_replay *open_replay(struct moe_trace *t, const char *words, uint32_t batch,
                                      struct moe_excerpt excerpt)
{
    struct moe_replay *r = NULL;
    struct moe_err err = {0};
    const struct moe_strategy s = script_strategy(words, moe_trace_shape(t)->n_layers);
    assert_ok(moe_replay_open(&r, t, excerpt, batch, &s, NULL, &err), &err);
    return r;
}

static struct moe_replay_pass next(struct moe_replay *r)
{
    struct moe_err err = {0};
    struct moe_replay_pass pass;
    assert_ok(moe_replay_next(r, &pass, &err), &err);
    return pass;
}

/* Prompts are letters in capitals, '|' begins a sequence; a pass is as many letters. */
static void passes(void **state)
{
    static const struct {
        const char *trace;
        uint32_t batch;
        struct moe_excerpt excerpt;
        const char *passes; /* '|' also before a pass that is its sequence's first */
    } cases[] = {
        {"|AAAAAaa", 2, {0}, "|AA AA A a a"},
        {"|AAAAAaa", 5, {0}, "|AAAAA a a"},
        {"|AAAAAaa", 9, {0}, "|AAAAA a a"},
        {"|AAAA|AAAa", 3, {0}, "|AAA A |AAA a"},
        {"|AA|AA", 9, {0}, "|AA |AA"},
        {"|aaa|a", 9, {0}, "|a a a |a"},
        {"|Aa|AAa|Aa", 9, {.every = 2}, "|A a |A a"},
        {"|Aa|AAa|Aa", 9, {.max_tokens = 3}, "|A a |A"},
        {"|AAAA|A", 9, {.max_tokens = 3}, "|AAA"},
        {"|AAAA|A", 2, {.every = 3, .max_tokens = 3}, "|AA A"},
        /* One prompt of all texts, cut off or begun again. */
        {"|Aa|AAa", 2, {.prompt = 4}, "|AA AA"},
        {"|Aa|AAa", 4, {.prompt = 12}, "|AAAA AAAA AAAA"},
        {"|Aa|AAa|a", 4, {.prompt = 7, .every = 2}, "|AAAA AAA"},
        {"|Aa|AAa", 9, {.prompt = 8, .max_tokens = 3}, "|AAAAAAAA"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct script s = {.n_layers = 1, .n_experts = 2, .top_k = 1};
        char got[64] = "";
        for (const char *c = cases[i].trace; *c; c++)
            if (*c != '|')
                s.tokens[s.n++] = (struct script_token){.first = c[-1] == '|', .prompt = *c == 'A'};
        struct moe_trace *t = script_trace(&s);
        struct moe_replay *r = open_replay(t, "lru", cases[i].batch, cases[i].excerpt);
        for (struct moe_replay_pass pass; (pass = next(r)).n_rows;) {
            size_t n = strlen(got);
            n += (size_t)snprintf(got + n, sizeof got - n, "%s%s", n ? " " : "",
                                  pass.first ? "|" : "");
            memset(got + n, pass.prompt ? 'A' : 'a', pass.n_rows);
        }
        assert_int_equal(next(r).n_rows, 0); /* and again */
        if (strcmp(got, cases[i].passes) != 0)
            fail_msg("%s by %u: '%s', expected '%s'", cases[i].trace, cases[i].batch, got,
                     cases[i].passes);
        moe_replay_close(r);
        moe_trace_close(t);
    }
    moe_replay_close(NULL);
}

/* A pass has a layer that all of its rows have. */
static void choices_and_gaps(void **state)
{
    struct script s = {.n_layers = 2, .n_experts = 8, .top_k = 2, .n = 4};
    for (uint32_t t = 0; t < 4; t++) {
        s.tokens[t].first = t == 0;
        s.tokens[t].prompt = true;
        for (uint32_t l = 0; l < 2; l++) {
            s.tokens[t].chosen[l][0] = t + l;
            s.tokens[t].chosen[l][1] = 7 - t;
        }
    }
    s.tokens[3].skipped[1] = true;
    struct moe_trace *t = script_trace(&s);
    struct moe_replay *r = open_replay(t, "lru", 2, (struct moe_excerpt){0});
    for (uint32_t first = 0; first < 4; first += 2) {
        uint32_t chosen[4];
        float weights[4];
        assert_int_equal(next(r).n_rows, 2);
        assert_true(moe_replay_has(r, 0));
        assert_int_equal(moe_replay_has(r, 1), first == 0);
        moe_replay_chosen(r, first ? 0 : 1, chosen, weights);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(chosen[2 * i], first + i + (first ? 0 : 1));
            assert_int_equal(chosen[2 * i + 1], 7 - first - i);
            assert_true(weights[2 * i] == 0.5f && weights[2 * i + 1] == 0.25f);
        }
    }
    moe_replay_close(r);
    moe_trace_close(t);
}

/* Scores so close that half precision makes them equal: the order is the trace's, which is that of
 * the run. Here the higher number comes first. */
static void equal_scores_stay_in_order(void **state)
{
    enum { N = 6 };
    static const float scores[N] = {0, 1e-5f, 2e-5f, 3e-5f, 4e-5f, 5e-5f};
    static const uint32_t chosen[1] = {2};
    static const float weights[1] = {1}, router[N] = {0.1f, 0.1f, 0.5f, 0.1f, 0.1f, 0.1f};
    const struct moe_trace_shape shape = {.n_layers = 2,
                                          .n_experts = N,
                                          .top_k = 1,
                                          .keep = 4,
                                          .predictors = 1u << MOE_PREDICT_GATE_1};
    struct moe_trace_writer *w = NULL;
    struct moe_trace *t = NULL;
    struct moe_err err = {0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/moe-replay-%d", (int)getpid());
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    assert_ok(moe_trace_begin(w, &err), &err);
    assert_ok(moe_trace_add(w, 1, 0, &err), &err);
    for (uint32_t l = 0; l < 2; l++) {
        const struct moe_layer_observation seen = {
            .chosen = chosen,
            .weights = weights,
            .predicted = {[MOE_PREDICT_GATE_1] = l ? scores : NULL},
            .stride = N,
        };
        moe_trace_put(w, l, 0, 1, &seen, router, N);
    }
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&t, path, &err), &err);
    struct moe_replay *r = open_replay(t, "prefetch", 1, (struct moe_excerpt){0});
    const struct moe_prediction *p;
    assert_int_equal(next(r).n_rows, 1);
    assert_int_equal(moe_replay_predict(r, 0, 1, chosen, weights, &p), 1);
    assert_true(p->layer == 1 && p->n_rows == 1);
    assert_true(moe_round_f16(p->scores[5]) == moe_round_f16(p->scores[2]));
    assert_true(p->scores[5] > p->scores[4] && p->scores[4] > p->scores[3]);
    assert_true(p->scores[3] > p->scores[2] && p->scores[2] > 0);
    assert_true(p->scores[0] == 0 && p->scores[1] == 0); /* not kept */
    uint32_t best[4];
    moe_best(p->scores, N, 4, best);
    assert_true(best[0] == 5 && best[1] == 4 && best[2] == 3 && best[3] == 2);
    assert_int_equal(moe_replay_predict(r, 1, 1, chosen, weights, &p), 0); /* nothing comes after */
    moe_replay_close(r);
    moe_trace_close(t);
    unlink(path);
}

/* As many layers ahead as are asked for, as the model has, and as the trace has predictions for. */
static void predictions_reach_as_far_as_the_trace(void **state)
{
    struct script s = {.n_layers = 4, .n_experts = 8, .top_k = 1, .keep = 4, .ahead = 3, .n = 2};
    s.tokens[0].first = s.tokens[0].prompt = s.tokens[1].prompt = true;
    for (uint32_t l = 0; l < 4; l++) {
        s.tokens[0].predicted[l][0] = l;
        s.tokens[1].predicted[l][0] = l + 4;
    }
    s.tokens[1].skipped[3] = true;
    struct moe_trace *t = script_trace(&s);
    struct moe_replay *r =
        open_replay(t, "prefetch+predict=gate-ahead:3", 1, (struct moe_excerpt){0});
    const struct moe_prediction *p;
    static const uint32_t chosen[2] = {0, 0};
    static const float weights[2] = {1, 1};
    next(r);
    assert_int_equal(moe_replay_predict(r, 0, 3, chosen, weights, &p), 3);
    for (uint32_t d = 0; d < 3; d++) {
        uint32_t best;
        moe_best(p[d].scores, 8, 1, &best);
        assert_true(p[d].layer == d + 1 && best == d + 1);
    }
    assert_int_equal(moe_replay_predict(r, 0, 2, chosen, weights, &p), 2);
    assert_int_equal(moe_replay_predict(r, 2, 3, chosen, weights, &p), 1);
    next(r);
    assert_int_equal(moe_replay_predict(r, 0, 3, chosen, weights, &p), 2); /* no layer 3 */
    moe_replay_close(r);
    /* Both rows of a prompt: each names one expert. */
    r = open_replay(t, "prefetch", 2, (struct moe_excerpt){0});
    assert_int_equal(next(r).n_rows, 2);
    assert_int_equal(moe_replay_predict(r, 0, 1, chosen, weights, &p), 1);
    assert_true(p->n_rows == 2 && p->scores[1] > 1 && p->scores[5] > 1 && p->scores[0] < 1);
    assert_true(p->unimportance[1] == 0 && p->unimportance[0] > 1);
    assert_int_equal(moe_replay_predict(r, 2, 1, chosen, weights, &p), 0);
    moe_replay_close(r);
    moe_trace_close(t);
}

/* ---- Choice history ---- */

/* What the token before chose in the next layers, its weights made to sum to 1; of a sequence's
 * first token nothing, of several rows nothing. */
static void the_token_before(void **state)
{
    struct moe_choice_history r = {
        .by = MOE_PREDICT_BY_PREVIOUS, .n_layers = 3, .n_experts = 5, .top_k = 2};
    struct moe_arena arena = {0};
    struct moe_err err = {0};
    moe_choice_history_carve(&r, &arena, 4);
    void *block = moe_alloc(arena.used, 1, &err);
    assert_non_null(block);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    moe_choice_history_carve(&r, &arena, 4);
    moe_choice_history_begin_sequence(&r);
    static const uint32_t chosen[3][4] = {{0, 1, 2, 3}, {4, 0, 1, 4}, {3, 1, 2, 0}};
    static const float weights[4] = {0.9f, 0.1f, 0.6f, 0.2f};
    assert_int_equal(moe_choice_history_reach(&r, 0, 1, 2), 0);
    for (uint32_t l = 0; l < 3; l++)
        moe_choice_history_add(&r, l, 2, chosen[l], weights); /* of two rows the last stays */
    assert_int_equal(moe_choice_history_reach(&r, 0, 1, 2), 2);
    assert_int_equal(moe_choice_history_reach(&r, 0, 1, 1), 1);
    assert_int_equal(moe_choice_history_reach(&r, 0, 2, 2), 0);
    float p[5], high = moe_round_f16(0.6f), low = moe_round_f16(0.2f);
    for (uint32_t d = 0; d < 2; d++) {
        moe_choice_history_predict(&r, 0, d, 0, 1, chosen[0], p);
        for (uint32_t e = 0; e < 5; e++) {
            double expected = e == chosen[1 + d][2]   ? high / (high + low)
                              : e == chosen[1 + d][3] ? low / (high + low)
                                                      : 0;
            assert_true(fabs(p[e] - expected) < 1e-6);
        }
    }
    moe_choice_history_begin_sequence(&r);
    assert_int_equal(moe_choice_history_reach(&r, 0, 1, 2), 0);
    free(block);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes),
        cmocka_unit_test(choices_and_gaps),
        cmocka_unit_test(equal_scores_stay_in_order),
        cmocka_unit_test(predictions_reach_as_far_as_the_trace),
        cmocka_unit_test(the_token_before),
    };
    return cmocka_run_group_tests_name("replay", tests, NULL, NULL);
}
