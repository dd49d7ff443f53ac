/* JSON without a tree: members one after the other, texts skipped, damage refused. */
#include "../test.h"

#include "fmt/json_scan.h"

/* Reads past the whole text, which is in memory of its own, so that a read beyond it shows. */
static int pass(const char *text, uint64_t n, bool python, struct moe_err *err)
{
    struct moe_json_scan s;
    char *copy = malloc(n ? n : 1);
    memcpy(copy, text, n);
    moe_json_scan_begin(&s, "x.json", copy, n, python, err);
    moe_json_scan_skip(&s);
    int status = moe_json_scan_end(&s);
    free(copy);
    return status;
}

static void members_are_read(void **state)
{
    (void)state;
    static const char text[] = " {\"a\": 7, \"skipped\": [1, {\"a\": [[]]}, \"}\"], "
                               "\"t\\u00e9\\/\": \"x\\ud83d\\ude00\\n\","
                               "\r\n\t\"list\": [0, -0, 9223372036854775807], \"no\": null, "
                               "\"yes\": true, \"empty\": {}}\n";
    struct moe_err err = {0};
    struct moe_json_scan s;
    struct moe_buf key = {0}, value = {0};
    uint64_t n = 0, sum = 0;
    moe_json_scan_begin(&s, "x.json", text, strlen(text), false, &err);
    assert_int_equal(moe_json_scan_peek(&s), MOE_JSON_OBJECT);
    moe_json_scan_enter(&s);
    assert_true(moe_json_scan_next(&s, &key));
    assert_string_equal(key.data, "a");
    assert_true(moe_json_scan_u64(&s, &n));
    assert_int_equal(n, 7);
    assert_true(moe_json_scan_next(&s, &key));
    moe_json_scan_skip(&s);
    assert_true(moe_json_scan_next(&s, &key));
    assert_string_equal(key.data, "t\xc3\xa9/");
    moe_json_scan_text(&s, &value);
    assert_string_equal(value.data, "x\xf0\x9f\x98\x80\n");
    assert_true(moe_json_scan_next(&s, NULL));
    assert_int_equal(moe_json_scan_peek(&s), MOE_JSON_ARRAY);
    moe_json_scan_enter(&s);
    while (moe_json_scan_next(&s, NULL)) {
        assert_true(moe_json_scan_u64(&s, &n));
        sum += n;
    }
    assert_true(sum == INT64_MAX);
    assert_true(moe_json_scan_next(&s, &key));
    assert_int_equal(moe_json_scan_peek(&s), MOE_JSON_NULL);
    assert_false(moe_json_scan_u64(&s, &n));
    moe_json_scan_skip(&s);
    assert_true(moe_json_scan_next(&s, &key));
    assert_int_equal(moe_json_scan_peek(&s), MOE_JSON_TRUTH);
    moe_json_scan_skip(&s);
    assert_true(moe_json_scan_next(&s, &key));
    moe_json_scan_enter(&s);
    assert_false(moe_json_scan_next(&s, &key));
    assert_false(moe_json_scan_next(&s, &key));
    assert_ok(moe_json_scan_end(&s), &err);
    moe_buf_release(&key);
    moe_buf_release(&value);
}

static void sound_texts_are_skipped(void **state)
{
    (void)state;
    static const char *const sound[] = {
        "{}",
        "[]",
        "[[],{}]",
        "[1, -1.5e-3, 0, 0.0, 1E+2, 1e999, 123456789012345678901234567890]",
        "[\"\", \"\\u0000\", \"\xf4\x8f\xbf\xbf\", \"\\\"\\\\\\/\\b\\f\\n\\r\\t\\uD834\\uDD1E\"]",
        "[true, false, null]",
        "7",
        "{\"a\": {\"a\": {\"a\": []}}, \"a\": 1}"};
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(sound); i++)
        assert_ok(pass(sound[i], strlen(sound[i]), false, &err), &err);
    assert_ok(pass("[NaN, Infinity, -Infinity, -1]", 30, true, &err), &err);
}

static void bad_texts_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "line 1 column 1: the text ends where a value was expected"},
        {"{", "line 1 column 2: the text ends where a key was expected"},
        {"{\"a\" 1}", "line 1 column 6: ':' was expected, not '1'"},
        {"{\"a\": 1,}", "a key was expected, not '}'"},
        {"{1: 1}", "a key was expected, not '1'"},
        {"[1,]", "a value was expected, not ']'"},
        {"[1 2]", "',' or ']' was expected"},
        {"[1}", "',' or ']' was expected, not '}'"},
        {"{\"a\": 1\n \"b\": 2}", "line 2 column 2: ',' or '}' was expected"},
        {"[] []", "the end was expected, not '['"},
        {"[01]", "a number that begins with 0"},
        {"[-]", "a digit was expected"},
        {"[1.]", "a digit was expected"},
        {"[1e+]", "a digit was expected"},
        {"[+1]", "a value was expected"},
        {"[.5]", "a value was expected"},
        {"[truth]", "a value was expected"},
        {"[nullnull]", "',' or ']' was expected"},
        {"[NaN]", "a value was expected"},
        {"[-Infinity]", "a digit was expected"},
        {"[\"\xc3\xa9\", \"\xff\"]", "line 1 column 8: a text that is not UTF-8"},
        {"[\"\xed\xa0\x80\"]", "not UTF-8"},
        {"[\"\xc0\x80\"]", "not UTF-8"},
        {"[\"a\nb\"]", "control character 0x0a"},
        {"[\"\\ud800\"]", "an escape"},
        {"[\"\\ud800\\u0041\"]", "an escape"},
        {"[\"\\udc00\"]", "an escape"},
        {"[\"\\u12g4\"]", "an escape"},
        {"[\"\\x\"]", "an escape"},
        {"[\"\\", "an escape"},
        {"[\"abc", "ends within quotes"},
        {"{\"a\\u0000b\": 1}", "a key with a NUL"},
    };
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(bad); i++)
        assert_fails(pass(bad[i].text, strlen(bad[i].text), false, &err), MOE_ERR_FORMAT,
                     bad[i].words, &err);
    assert_fails(pass("[1\0]", 4, false, &err), MOE_ERR_FORMAT, "not byte 0x00", &err);
}

/* Any start of a sound text is refused, and never read beyond. */
static void truncations_are_refused(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\": [1.5e3, \"\\ud83d\\ude00\xc3\xa9\", {\"b\": null}], \"c\": {}}";
    struct moe_err err = {0};
    for (uint64_t n = 0; n < strlen(text); n++)
        assert_int_equal(pass(text, n, false, &err), MOE_ERR_FORMAT);
    assert_ok(pass(text, strlen(text), false, &err), &err);
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    enum { MANY = MOE_JSON_SCAN_DEPTH + 1 };
    char text[2 * MANY];
    struct moe_err err = {0};
    memset(text, '[', MANY);
    memset(text + MANY, ']', MANY);
    assert_fails(pass(text, sizeof text, false, &err), MOE_ERR_FORMAT, "nested more than 2048 deep",
                 &err);
    assert_ok(pass(text + 1, sizeof text - 2, false, &err), &err);
}

static void numbers_that_are_not_whole_are_told_apart(void **state)
{
    (void)state;
    static const char *const others[] = {
        "-1", "1.0", "1e3", "9223372036854775808", "\"1\"", "99999999999999999999999",
        "[]", "null"};
    for (size_t i = 0; i < N_ITEMS(others); i++) {
        struct moe_err err = {0};
        struct moe_json_scan s;
        uint64_t n;
        moe_json_scan_begin(&s, "x.json", others[i], strlen(others[i]), false, &err);
        assert_false(moe_json_scan_u64(&s, &n));
        assert_int_equal(s.status, MOE_OK);
    }
}

/* After an error nothing follows, whatever is asked for. */
static void errors_last(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_json_scan s;
    struct moe_buf key = {0};
    uint64_t n;
    moe_json_scan_begin(&s, "x.json", "{\"a\": ?, \"b\": 1}", 16, false, &err);
    moe_json_scan_enter(&s);
    assert_true(moe_json_scan_next(&s, &key));
    moe_json_scan_skip(&s);
    assert_int_equal(s.status, MOE_ERR_FORMAT);
    assert_false(moe_json_scan_next(&s, &key));
    assert_int_equal(moe_json_scan_peek(&s), MOE_JSON_NONE);
    assert_false(moe_json_scan_u64(&s, &n));
    moe_json_scan_enter(&s);
    moe_json_scan_text(&s, &key);
    moe_json_scan_skip(&s);
    assert_fails(moe_json_scan_end(&s), MOE_ERR_FORMAT, "line 1 column 7", &err);
    moe_buf_release(&key);
}

/* What is kept of a text is bounded, what is skipped is not. */
static void long_texts_are_skipped_only(void **state)
{
    (void)state;
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    struct moe_err err = {0};
    struct moe_json_scan s;
    struct moe_buf out = {0};
    memset(text, 'x', LONG);
    text[0] = text[LONG - 1] = '"';
    assert_ok(pass(text, LONG, false, &err), &err);
    moe_json_scan_begin(&s, "x.json", text, LONG, false, &err);
    moe_json_scan_text(&s, &out);
    assert_fails(moe_json_scan_end(&s), MOE_ERR_FORMAT, "more than 65536 bytes", &err);
    moe_buf_release(&out);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_are_read),
        cmocka_unit_test(sound_texts_are_skipped),
        cmocka_unit_test(bad_texts_are_refused),
        cmocka_unit_test(truncations_are_refused),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(numbers_that_are_not_whole_are_told_apart),
        cmocka_unit_test(errors_last),
        cmocka_unit_test(long_texts_are_skipped_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
