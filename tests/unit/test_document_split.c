/* Documents to plan on and to judge by: which are which, and what the former are counted as. */
#include <unistd.h>

#include "profile/document_split.h"

#include "../test.h"

enum { EXPERTS = 8 };

static char path[128];
static struct moe_trace *trace;

/* A word is a sequence, a letter a token, and its expert. */
static const char *const sequences[] = {"abab", "cdcdc", "aab", "efe", "bbc"};

static int set_up(void **state)
{
    static const float weight = 1;
    const struct moe_trace_shape shape = {
        .n_layers = 1, .n_experts = EXPERTS, .top_k = 1, .has_ids = true};
    struct moe_trace_writer *w = NULL;
    struct moe_err err = {0};
    snprintf(path, sizeof path, "/tmp/moe-split-%d", (int)getpid());
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    for (size_t s = 0; s < N_ITEMS(sequences); s++) {
        assert_ok(moe_trace_begin(w, &err), &err);
        for (uint32_t t = 0; sequences[s][t]; t++) {
            uint32_t expert = (uint32_t)(sequences[s][t] - 'a');
            const struct moe_layer_observation seen = {.chosen = &expert, .weights = &weight};
            assert_ok(moe_trace_add(w, 1, 0, &err), &err);
            moe_trace_put_ids(w, t, 1, &expert);
            moe_trace_put(w, 0, t, 1, &seen, NULL, 0);
        }
    }
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&trace, path, &err), &err);
    return 0;
}

static int tear_down(void **state)
{
    moe_trace_close(trace);
    unlink(path);
    return 0;
}

static const struct moe_statistics_shape shape = {
    .n_layers = 1, .n_experts = EXPERTS, .top_k = 1, .max_tokens = 4};

/* Uses of each expert, and documents, in an excerpt of at most 4 tokens a document. */
static void check_counted(struct moe_excerpt e, const uint64_t uses[EXPERTS], uint64_t documents)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    assert_ok(moe_split_count(&s, trace, e, &shape, &err), &err);
    for (uint32_t i = 0; i < EXPERTS; i++)
        assert_int_equal(moe_series_at(s, MOE_S_ACTIVATIONS, 0)[i], uses[i]);
    assert_int_equal(s->totals[MOE_TOTAL_DOCUMENTS], documents);
    moe_statistics_free(s);
}

static void every_other_document_is_counted(void **state)
{
    const struct moe_excerpt all = {0};
    check_counted(all, (const uint64_t[EXPERTS]){4, 5, 3, 2, 2, 1}, 5);
    check_counted(moe_split_judged(all), (const uint64_t[EXPERTS]){4, 5, 1}, 3);
    check_counted(moe_split_counted(all), (const uint64_t[EXPERTS]){0, 0, 2, 2, 2, 1}, 2);
    /* Of an excerpt of every other document, every other one. */
    const struct moe_excerpt odd = {.every = 2, .first = 1};
    check_counted(moe_split_judged(odd), (const uint64_t[EXPERTS]){0, 0, 2, 2}, 1);
    check_counted(moe_split_counted(odd), (const uint64_t[EXPERTS]){0, 0, 0, 0, 2, 1}, 1);
}

/* "abab" and "cdcd": two of three; "aab", "efe", "bbc": one of two. */
static void tokens_predict(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    assert_ok(moe_split_count(&s, trace, (struct moe_excerpt){0}, &shape, &err), &err);
    const uint64_t *seen = moe_accuracy_at(s, 0, MOE_PREDICT_TOKEN);
    assert_int_equal(seen[MOE_ACC_TOKENS], 12);
    assert_int_equal(seen[MOE_ACC_IN_K], 7);
    moe_statistics_free(s);
}

static void other_models_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_statistics *s = NULL;
    struct moe_statistics_shape other = shape;
    other.n_experts = 4;
    assert_fails(moe_split_count(&s, trace, (struct moe_excerpt){0}, &other, &err), MOE_ERR_USAGE,
                 "other models", &err);
    assert_null(s);
}

/* ---- Which documents files hold ---- */

static struct moe_origins origins_of(uint64_t text, uint32_t shard, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_origins o = {0};
    assert_ok(moe_origins_begin(&o, 1, shard, n, &err), &err);
    o.items[0].n_texts = 1;
    o.items[0].texts[0] = text;
    return o;
}

static void check_shared(struct moe_origins a, struct moe_origins b, bool want)
{
    assert_int_equal(moe_split_shared(&a, &b), want);
    assert_int_equal(moe_split_shared(&b, &a), want);
    moe_origins_release(&a);
    moe_origins_release(&b);
}

static void shared_documents_are_found(void **state)
{
    check_shared(origins_of(1, 0, 1), origins_of(1, 0, 1), true);
    check_shared(origins_of(1, 0, 1), origins_of(2, 0, 1), false);
    check_shared(origins_of(1, 0, 2), origins_of(1, 1, 2), false);
    check_shared(origins_of(1, 1, 2), origins_of(1, 1, 2), true);
    check_shared(origins_of(1, 0, 1), origins_of(1, 2, 3), true);
    check_shared(origins_of(1, 0, 1), (struct moe_origins){0}, false); /* not known */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_other_document_is_counted),
        cmocka_unit_test(tokens_predict),
        cmocka_unit_test(other_models_are_refused),
        cmocka_unit_test(shared_documents_are_found),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
