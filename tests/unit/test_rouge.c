/*
 * Rouge against values of google's rouge_score 0.1.2 (default tokenizer, no stemmer), in fixtures/
 * rouge.json, and against cases counted by hand.
 */
#include <math.h>

#include <jansson.h>

#include "../test.h"
#include "tune/answers.h"

static void assert_close(double got, double expected, const char *what)
{
    if (!(fabs(got - expected) <= 1e-12))
        fail_msg("%s: %.17g, expected %.17g", what, got, expected);
}

static struct moe_rouge rouge(const char *reference, const char *answer, uint32_t n)
{
    struct moe_rouge r;
    struct moe_err err = {0};
    assert_ok(moe_rouge_n(&r, reference, answer, n, &err), &err);
    return r;
}

/* "police kill the gunman" has pairs police-kill, kill-the, the-gunman. */
static void pairs_of_words_by_hand(void **state)
{
    struct moe_rouge r = rouge("Police killed the gunman", "police kill the GUNMAN!", 2);
    assert_close(r.precision, 1.0 / 3, "precision");
    assert_close(r.recall, 1.0 / 3, "recall");
    assert_close(r.f1, 1.0 / 3, "f1");
    r = rouge("the cat the cat the cat", "the cat sat", 2); /* counted once: the-cat */
    assert_close(r.precision, 1.0 / 2, "precision");
    assert_close(r.recall, 1.0 / 5, "recall");
    assert_close(r.f1, 2.0 / 7, "f1");
    r = rouge("a b", "a b", 2);
    assert_close(r.f1, 1, "f1");
    r = rouge("a", "a", 2);
    assert_close(r.f1, 0, "no pairs");
    r = rouge("", "", 1);
    assert_close(r.f1, 0, "nothing");
}

static void equals_rouge_score(void **state)
{
    json_error_t why;
    json_t *cases = json_load_file("tests/fixtures/rouge.json", 0, &why);
    assert_non_null(cases);
    assert_true(json_array_size(cases) > 20);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        const char *reference = json_string_value(json_object_get(c, "reference"));
        const char *answer = json_string_value(json_object_get(c, "answer"));
        for (uint32_t n = 1; n <= 3; n++) {
            char key[8];
            snprintf(key, sizeof key, "rouge%u", n);
            const json_t *want = json_object_get(c, key);
            struct moe_rouge r = rouge(reference, answer, n);
            assert_close(r.precision, json_real_value(json_array_get(want, 0)), answer);
            assert_close(r.recall, json_real_value(json_array_get(want, 1)), answer);
            assert_close(r.f1, json_real_value(json_array_get(want, 2)), answer);
        }
    }
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_of_words_by_hand),
        cmocka_unit_test(equals_rouge_score),
    };
    return cmocka_run_group_tests_name("rouge", tests, NULL, NULL);
}
