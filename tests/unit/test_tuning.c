/* Tuning HOBBIT's cache: penalties worked by hand, and that the result is never worse. */
#include "script_fixture.h"

#include <math.h>

#include "plan/tuning.h"

enum { EXPERT = 4 * 4096 };

static int try_tune(const struct script *script, const char *words, const uint64_t *sizes,
                    uint32_t n_sizes, struct moe_tuned *out, struct moe_err *err)
{
    struct moe_inventory inventory;
    script_inventory(&inventory, script, EXPERT);
    const struct moe_tuning in = {
        .inventory = &inventory,
        .trace = script_trace(script),
        .strategy = script_strategy(words, script->n_layers),
        .high = 0,
        .low = 1,
        .cache_bytes = sizes,
        .n_sizes = n_sizes,
    };
    int status = moe_tune_hobbit(&in, out, err);
    moe_trace_close(in.trace);
    moe_inventory_release(&inventory);
    return status;
}

static struct moe_tuned tune(const struct script *script, const char *words, const uint64_t *sizes,
                             uint32_t n_sizes)
{
    struct moe_tuned out;
    struct moe_err err = {0};
    assert_ok(try_tune(script, words, sizes, n_sizes, &out, &err), &err);
    return out;
}

static void equals(const char *what, double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12))
        fail_msg("%s: %.15g, by hand %.15g", what, got, expected);
}

static double sum_of_weights(const struct moe_tuned *t)
{
    double sum = 0;
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        sum += t->weights[i];
    return sum;
}

/* One layer, one expert a token, two slots: A A A B C B C B. With equal weights the priority is
 * (R + F + H) / 4T and a constant, H = F:
 *   C comes: A 3 + 6, B 4 + 2: B leaves;   B comes: A 9, C 5 + 2: C leaves;
 *   C comes: A 9, B 6 + 4: A leaves, and B hits: 5 misses of 8.
 * Only weights that evict A at once miss no more than the three there are, and for that w_lru 3 +
 * (w_lfu + w_lhu) 3 must be no more than w_lru 4 + (w_lfu + w_lhu) 1. */
static void recency_is_best(void **state)
{
    static const uint32_t chosen[] = {0, 0, 0, 1, 2, 1, 2, 1};
    static const uint64_t two_slots = 2 * EXPERT;
    struct script s = {.n_layers = 1, .n_experts = 8, .top_k = 1, .n = 8};
    for (uint32_t t = 0; t < s.n; t++)
        s.tokens[t] = (struct script_token){.first = t == 0, .chosen = {{chosen[t]}}};
    struct moe_tuned r = tune(&s, "hobbit+low-pool=0", &two_slots, 1);
    equals("default", r.default_penalty, 5.0 / 8);
    equals("tuned", r.penalty, 3.0 / 8);
    equals("sum of weights", sum_of_weights(&r), 1);
    assert_true(r.weights[MOE_WEIGHT_LRU] >=
                2 * (r.weights[MOE_WEIGHT_LFU] + r.weights[MOE_WEIGHT_LHU]));

    /* Weights of the user's own are where the search begins, on the grid or not. */
    r = tune(&s, "hobbit+low-pool=0+cache-weights=0.7;0.1;0.1;0.1", &two_slots, 1);
    equals("own weights", r.default_penalty, 3.0 / 8);
    equals("... kept", r.weights[MOE_WEIGHT_LRU], 0.7);
    r = tune(&s, "hobbit+low-pool=0+cache-weights=0.1;0.7;0.1;0.1", &two_slots, 1);
    equals("frequency", r.default_penalty, 6.0 / 8);
    equals("... left behind", r.penalty, 3.0 / 8);
}

/* All experts are new. Routing weights 1/2 and 1/4 give scores 0 and 2/3: the second expert is
 * loaded at the low precision, which has half the bytes. */
static void low_misses_cost_less(void **state)
{
    static const uint64_t sizes[] = {2 * EXPERT, 4 * EXPERT};
    struct script s = {.n_layers = 1, .n_experts = 8, .top_k = 2, .n = 4};
    for (uint32_t t = 0; t < s.n; t++)
        s.tokens[t] = (struct script_token){.first = t == 0, .chosen = {{2 * t, 2 * t + 1}}};
    struct moe_tuned r = tune(&s, "hobbit+low-pool=0.2", sizes, 2);
    equals("default", r.default_penalty, 0.75);
    equals("tuned", r.penalty, 0.75);
    equals("equals stay", r.low_pool, 0.2);
    r = tune(&s, "hobbit+on-miss=load-low:0.7", sizes, 2);
    equals("both at the high precision", r.penalty, 1);
    r = tune(&s, "hobbit+skip-below=0.4+on-miss=load-low:0.5", sizes, 2);
    equals("the second left out", r.penalty, 0.5);
}

/* A prompt's misses are not counted, and predictions are not followed. */
static void decoding_on_demand(void **state)
{
    static const uint64_t sizes[] = {2 * EXPERT};
    struct script s = {.n_layers = 2, .n_experts = 8, .top_k = 1, .n = 4, .keep = 2};
    struct moe_tuned r;
    struct moe_err err = {0};
    for (uint32_t t = 0; t < s.n; t++)
        s.tokens[t] = (struct script_token){
            .first = t == 0, .prompt = t < 2, .chosen = {{t}, {t}}, .predicted = {{t}, {t}}};
    r = tune(&s, "hobbit+predict=gate-next", sizes, 1);
    equals("all missed", r.penalty, 1);
    for (uint32_t t = 0; t < s.n; t++)
        s.tokens[t].prompt = true;
    assert_int_equal(try_tune(&s, "hobbit", sizes, 1, &r, &err), MOE_ERR_USAGE);
    assert_string_equal(err.text, "the trace has no decoded token to tune by");
}

static void never_worse(void **state)
{
    static const uint64_t sizes[] = {4 * EXPERT, 8 * EXPERT, 64 * EXPERT};
    uint64_t rng = 11;
    uint32_t gained = 0;
    for (int i = 0; i < 6; i++) {
        struct script s = {.n_layers = 3, .n_experts = 12, .top_k = 2, .n = 60};
        script_random(&s, &rng, 5, 30, false);
        struct moe_tuned a = tune(&s, "hobbit", sizes, 3), b = tune(&s, "hobbit", sizes, 3);
        assert_true(a.penalty <= a.default_penalty);
        assert_true(a.low_pool >= 0 && a.low_pool <= 0.5);
        equals("sum of weights", sum_of_weights(&a), 1);
        assert_memory_equal(&a, &b, sizeof a);
        struct moe_tuned one = tune(&s, "hobbit", sizes, 1),
                         other = tune(&s, "hobbit", sizes + 1, 1);
        struct moe_tuned both = tune(&s, "hobbit", sizes, 2);
        equals("the mean of both", both.default_penalty,
               (one.default_penalty + other.default_penalty) / 2);
        gained += a.penalty < a.default_penalty;
    }
    assert_true(gained > 0);
}

static void refusals(void **state)
{
    static const uint64_t sizes[] = {2 * EXPERT};
    struct script s = {.n_layers = 1, .n_experts = 8, .top_k = 1, .n = 2};
    struct moe_tuned r;
    struct moe_err err = {0};
    s.tokens[0].first = true;
    assert_int_equal(try_tune(&s, "lru", sizes, 1, &r, &err), MOE_ERR_USAGE);
    assert_string_equal(err.text, "only --cache hobbit has weights to tune");
    assert_int_equal(try_tune(&s, "hobbit", sizes, 0, &r, &err), MOE_ERR_USAGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recency_is_best),    cmocka_unit_test(low_misses_cost_less),
        cmocka_unit_test(decoding_on_demand), cmocka_unit_test(never_worse),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests_name("tuning", tests, NULL, NULL);
}
