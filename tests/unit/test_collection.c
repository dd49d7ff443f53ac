/* Collections of experts: the file, what is wrong with one, where requests and results go. */
#include "../test.h"

#include <math.h>

#include "serve/coe_collection.h"

#define HEAD "format: moe-coe\nversion: 1\n"
#define EXPERTS                                                                                    \
    "experts:\n"                                                                                   \
    "  - {name: chat, pack: chat.moe}\n"                                                           \
    "  - {name: code, pack: code.moe, device: cpu}\n"                                              \
    "  - {name: check, pack: sub/check.moe, probability: 0.25}\n"
#define ROUTES                                                                                     \
    "routes:\n"                                                                                    \
    "  - {field: topic, equals: code, expert: code, quantity: 30}\n"                               \
    "  - {field: prompt, matches: \"(?i)\\\\bpython\\\\b\", expert: code, quantity: 10}\n"         \
    "  - {expert: chat, quantity: 60}\n"
#define FOLLOWS                                                                                    \
    "follows:\n"                                                                                   \
    "  - {after: code, equals: ok, expert: check, share: 0.5}\n"                                   \
    "  - {after: code, matches: \"^warn\", expert: check, share: 0.25}\n"

static struct moe_coe_collection *parse(const char *text)
{
    struct moe_coe_collection *c;
    struct moe_err err;
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "c.yaml", text, strlen(text), &err),
              &err);
    return c;
}

struct request {
    const char *topic, *prompt;
};

static const char *field(void *ctx, const char *name)
{
    const struct request *r = ctx;
    return strcmp(name, "topic") == 0 ? r->topic : strcmp(name, "prompt") == 0 ? r->prompt : NULL;
}

static void check_route(const char *text, const char *topic, const char *prompt, const char *want)
{
    struct moe_coe_collection *c = parse(text);
    struct request r = {topic, prompt};
    uint32_t to = moe_coe_route(c, field, &r);
    if (want)
        assert_string_equal(to == MOE_COE_NONE ? "nobody" : c->models[to].name, want);
    else
        assert_int_equal(to, MOE_COE_NONE);
    moe_coe_collection_free(c);
}

static void requests_and_results_find_their_expert(void **state)
{
    static const char scores[] = HEAD EXPERTS "routes:\n  - {expert: chat}\n"
                                              "score_field: topic\nscores:\n"
                                              "  - {value: law, expert: chat, score: -3.5}\n"
                                              "  - {value: law, expert: check, score: -1}\n"
                                              "  - {value: law, expert: code, score: -2}\n";
    struct moe_coe_collection *c = parse(HEAD EXPERTS ROUTES FOLLOWS);
    (void)state;
    check_route(HEAD EXPERTS ROUTES FOLLOWS, "code", "x", "code");
    check_route(HEAD EXPERTS ROUTES FOLLOWS, NULL, "Some Python, please", "code");
    check_route(HEAD EXPERTS ROUTES FOLLOWS, "codes", "pythonic", "chat");
    check_route(HEAD EXPERTS ROUTES FOLLOWS, NULL, "\xff python \xfe", "code"); /* no UTF-8 */
    check_route(scores, "law", NULL, "check");
    check_route(scores, "art", NULL, "chat");
    check_route(HEAD "experts:\n  - {name: a, pack: p}\nroutes:\n"
                     "  - {field: topic, equals: x, expert: a}\n",
                "y", NULL, NULL);
    assert_int_equal(moe_coe_next_expert(c, 1, "ok", 2), 2);
    assert_int_equal(moe_coe_next_expert(c, 1, "ok.", 3), MOE_COE_NONE);
    assert_int_equal(moe_coe_next_expert(c, 1, "warning: x", 10), 2);
    assert_int_equal(moe_coe_next_expert(c, 0, "ok", 2), MOE_COE_NONE);
    moe_coe_collection_free(c);
}

static void a_pattern_that_never_ends_does_not_match(void **state)
{
    char prompt[64];
    (void)state;
    memset(prompt, 'a', sizeof prompt - 1);
    prompt[sizeof prompt - 1] = '\0';
    check_route(HEAD "experts:\n  - {name: a, pack: p}\n  - {name: b, pack: p}\nroutes:\n"
                     "  - {field: prompt, matches: \"^(a+)+$b\", expert: a}\n  - {expert: b}\n",
                NULL, prompt, "b");
}

static void probabilities_come_from_quantities(void **state)
{
    struct moe_coe_collection *c = parse(HEAD EXPERTS ROUTES FOLLOWS);
    double p[3];
    (void)state;
    assert_true(moe_coe_probabilities(c, p));
    assert_true(fabs(p[0] - 0.6) < 1e-12 && fabs(p[1] - 0.4) < 1e-12);
    assert_true(p[2] == 0.25); /* said: not 0.3 */
    c->models[2].probability = -1;
    assert_true(moe_coe_probabilities(c, p));
    assert_true(fabs(p[2] - 0.3) < 1e-12);
    c->follows[0].share = -1;
    assert_false(moe_coe_probabilities(c, p));
    moe_coe_collection_free(c);
}

static void files_come_back(void **state)
{
    struct moe_coe_collection *c = parse(HEAD EXPERTS ROUTES FOLLOWS);
    struct moe_buf first = {0}, second = {0};
    struct moe_err err;
    (void)state;
    assert_ok(moe_coe_collection_write(c, false, &first, &err), &err);
    moe_coe_collection_free(c);
    assert_ok(
        moe_record_parse(&moe_coe_collection_format, &c, "again", first.data, first.size, &err),
        &err);
    assert_ok(moe_coe_collection_write(c, false, &second, &err), &err);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    moe_coe_collection_free(c);
    moe_buf_release(&first);
    moe_buf_release(&second);
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {HEAD "routes:\n  - {expert: a}\n", "none of the experts"},
        {HEAD, "there are no experts"},
        {HEAD EXPERTS "  - {name: code, pack: x}\n", "line 7 column"},
        {HEAD EXPERTS "  - {name: code, pack: x}\n", "another expert 'code'"},
        {HEAD EXPERTS "  - {name: d, pack: x, device: tpu}\n", "not 'tpu'"},
        {HEAD EXPERTS "  - {name: d, pack: x, probability: 1.5}\n", "line 7"},
        {HEAD EXPERTS ROUTES, "nothing leads to 'check'"},
        {HEAD EXPERTS ROUTES "  - {field: x, expert: chat}\n", "without a test"},
        {HEAD EXPERTS ROUTES "  - {equals: x, expert: chat}\n", "without a 'field'"},
        {HEAD EXPERTS ROUTES "  - {field: x, equals: y, matches: z, expert: chat}\n", "exclude"},
        {HEAD EXPERTS ROUTES "  - {field: x, matches: \"(\", expert: chat}\n", "parenthesis"},
        {HEAD EXPERTS ROUTES FOLLOWS "  - {after: check, expert: code}\n", "return to it"},
        {HEAD EXPERTS ROUTES FOLLOWS "  - {after: chat, expert: chat}\n", "'chat' may return"},
        {HEAD EXPERTS ROUTES FOLLOWS "  - {after: nobody, expert: chat}\n", "'nobody' is none"},
        {HEAD EXPERTS ROUTES FOLLOWS "score_field: topic\n", "go together"},
        {"format: moe-coe\nversion: 2\n", "version"},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        struct moe_coe_collection *c;
        struct moe_err err = {0};
        int status = moe_record_parse(&moe_coe_collection_format, &c, "c.yaml", rows[i].text,
                                      strlen(rows[i].text), &err);
        if (status == MOE_OK || !strstr(err.text, rows[i].words))
            fail_msg("row %zu: '%s' is not in '%s'", i, rows[i].words, err.text);
        assert_null(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_and_results_find_their_expert),
        cmocka_unit_test(a_pattern_that_never_ends_does_not_match),
        cmocka_unit_test(probabilities_come_from_quantities),
        cmocka_unit_test(files_come_back),
        cmocka_unit_test(what_is_wrong_is_named),
    };
    return cmocka_run_group_tests_name("collection", tests, NULL, NULL);
}
