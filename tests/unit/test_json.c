#define _DEFAULT_SOURCE /* mkdtemp */
/* JSON as trees: members, what is refused and why, and bounds on size, depth and memory. */
#include <jansson.h>
#include <unistd.h>

#include "../failing_malloc.h"
#include "../scratch_dir.h"
#include "../test.h"

#include "base/file.h"
#include "fmt/json.h"

static struct json_t *parse(const char *text, struct moe_err *err)
{
    struct json_t *json;
    int status = moe_json_parse(&json, "x.json", text, strlen(text), MOE_JSON_CONFIG_MEMORY, err);
    assert_int_equal(status == MOE_OK, json != NULL);
    return json;
}

static struct json_t *read_file(const char *path, uint64_t max_bytes, struct moe_err *err)
{
    struct json_t *json;
    int status = moe_json_read(&json, path, max_bytes, MOE_JSON_CONFIG_MEMORY, err);
    assert_int_equal(status, json ? MOE_OK : err->status);
    return json;
}

static void zero_bytes_are_refused(void **state)
{
    (void)state;
    static const char after_number[] = "[1\0, 2]", at_the_end[] = "{}";
    struct moe_err err = {0};
    struct json_t *json;
    assert_fails(moe_json_parse(&json, "x.json", after_number, sizeof after_number - 1,
                                MOE_JSON_CONFIG_MEMORY, &err),
                 MOE_ERR_FORMAT, "x.json: byte 3 is zero, which is not JSON", &err);
    assert_fails(moe_json_parse(&json, "x.json", at_the_end, sizeof at_the_end,
                                MOE_JSON_CONFIG_MEMORY, &err),
                 MOE_ERR_FORMAT, "byte 3 is zero", &err);
}

static void members_are_read(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct json_t *json =
        parse("{\"n\": 7, \"real\": 1e3, \"x\": 0.5, \"yes\": true, \"t\": \"text\", \"no\": null,"
              " \"max\": 4294967295}",
              &err);
    assert_non_null(json);
    uint32_t n = 0;
    double x = 0;
    bool yes = false;
    const char *text = "default";
    assert_ok(moe_json_get_u32("x", json, "n", 7, true, &n, &err), &err);
    assert_int_equal(n, 7);
    assert_ok(moe_json_get_u32("x", json, "real", 1000, true, &n, &err), &err);
    assert_int_equal(n, 1000);
    assert_ok(moe_json_get_u32("x", json, "max", UINT32_MAX, true, &n, &err), &err);
    assert_int_equal(n, UINT32_MAX);
    assert_ok(moe_json_get_double("x", json, "x", true, &x, &err), &err);
    assert_true(x == 0.5);
    assert_ok(moe_json_get_double("x", json, "n", true, &x, &err), &err);
    assert_true(x == 7);
    assert_ok(moe_json_get_bool("x", json, "yes", true, &yes, &err), &err);
    assert_true(yes);
    assert_ok(moe_json_get_text("x", json, "no", false, &text, &err), &err);
    assert_string_equal(text, "default");
    assert_ok(moe_json_get_text("x", json, "t", true, &text, &err), &err);
    assert_string_equal(text, "text");
    moe_json_free(json);
}

static void wrong_members_are_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct json_t *json = parse("{\"n\": 8, \"x\": 0.5, \"minus\": -1, \"t\": \"a\\u0000b\", "
                                "\"null\": null, \"list\": []}",
                                &err);
    assert_non_null(json);
    uint32_t n = 3;
    double x;
    bool yes;
    const char *text;
    assert_fails(moe_json_get_u32("x", json, "n", 7, true, &n, &err), MOE_ERR_FORMAT,
                 "'n' is 8, expected 0 to 7", &err);
    assert_fails(moe_json_get_u32("x", json, "minus", 7, true, &n, &err), MOE_ERR_FORMAT, "-1",
                 &err);
    assert_fails(moe_json_get_u32("x", json, "x", 7, true, &n, &err), MOE_ERR_FORMAT,
                 "whole number", &err);
    assert_fails(moe_json_get_u32("x", json, "gone", 7, true, &n, &err), MOE_ERR_FORMAT,
                 "'gone' is missing", &err);
    assert_fails(moe_json_get_u32("x", json, "null", 7, true, &n, &err), MOE_ERR_FORMAT,
                 "'null' is missing", &err);
    assert_int_equal(n, 3);
    assert_fails(moe_json_get_double("x", json, "t", false, &x, &err), MOE_ERR_FORMAT, "a text",
                 &err);
    assert_fails(moe_json_get_bool("x", json, "list", false, &yes, &err), MOE_ERR_FORMAT,
                 "an array", &err);
    assert_fails(moe_json_get_text("x", json, "t", true, &text, &err), MOE_ERR_FORMAT, "NUL", &err);
    moe_json_free(json);
    json = parse("[1]", &err);
    assert_non_null(json);
    assert_fails(moe_json_get_u32("x", json, "n", 7, false, &n, &err), MOE_ERR_FORMAT, "an object",
                 &err);
    moe_json_free(json);
}

static void bad_text_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",          "{",          "{\"a\": 1, \"a\": 2}",
                                      "{\"a\" 1}", "[1] [2]",    "\"\xff\"",
                                      "nonsense",  "[1,]",       "7",
                                      "[1e999]",   "{\"a\": 01}"};
    struct moe_err err;
    for (size_t i = 0; i < N_ITEMS(bad); i++) {
        err.text[0] = '\0';
        assert_null(parse(bad[i], &err));
        assert_int_equal(err.status, MOE_ERR_FORMAT);
        assert_non_null(strstr(err.text, "x.json: line "));
    }
    assert_null(parse("{\n  \"a\": 1,\n  \"a\": 2}", &err));
    assert_non_null(strstr(err.text, "line 3 column"));
    assert_null(parse("{\"a\": \"x\ny\"}", &err));
    assert_null(strchr(err.text, '\n'));
}

static void deep_nesting_is_refused(void **state)
{
    (void)state;
    struct moe_err err = {0};
    enum { DEPTH = 100000 };
    char *text = malloc(DEPTH + 1);
    memset(text, '[', DEPTH);
    text[DEPTH] = '\0';
    assert_null(parse(text, &err));
    free(text);
}

/* Hugging Face writes 10^30 for "no limit"; everything else in such a file must still be exact. */
static void huge_integers_do_not_spoil_a_file(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct json_t *json =
        parse("{\"model_max_length\": 1000000000000000019884624838656, \"n\": 4093}", &err);
    assert_non_null(json);
    uint32_t n = 0;
    double huge = 0;
    assert_ok(moe_json_get_u32("x", json, "n", UINT32_MAX, true, &n, &err), &err);
    assert_int_equal(n, 4093);
    assert_ok(moe_json_get_double("x", json, "model_max_length", true, &huge, &err), &err);
    assert_true(huge == 1e30);
    assert_fails(moe_json_get_u32("x", json, "model_max_length", UINT32_MAX, true, &n, &err),
                 MOE_ERR_FORMAT, "expected 0 to", &err);
    moe_json_free(json);
}

/* Numbers come back with the digits that they had, and none more. */
static void numbers_keep_their_digits(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"a\":18446744073709551615,\"b\":[-9223372036854775809,1,0.1,{\"c\":2.5}],\"d\":null}",
        "[1000000000000000000000000000000,9223372036854775807,-9223372036854775808]",
        "[18446744073709551616,\"18446744073709551616\",\"{\\\"x\\\":1.50000000000000000001}\"]",
        "[0.30000000000000004,1e-07,3.0,-0.7,1e+300]",
        "{\"\xEF\xB7\x90\":\"no digits\"}",
        "[{\"\xEF\xB7\x90\":\"1\\\",2]\"}]",
        "[{\"\xEF\xB7\x90\":1}]",
    };
    static const char *const wrong[] = {"18446744073709551616",      "[018446744073709551616]",
                                        "{18446744073709551616:1}",  "[18446744073709551616e]",
                                        "[-18446744073709551616-1]", "[18446744073709551616"};
    struct moe_err err = {0};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        struct json_t *json = parse(same[i], &err), *copy;
        assert_ok(moe_json_copy(&copy, json, &err), &err);
        char *text = moe_json_text(copy, JSON_COMPACT),
             *spaced = moe_json_text(copy, JSON_INDENT(2));
        assert_string_equal(text, same[i]);
        moe_json_free(json);
        json = parse(spaced, &err);
        assert_true(json_equal(json, copy));
        moe_json_free(json);
        moe_json_free(copy);
        free(text);
        free(spaced);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_null(parse(wrong[i], &err));
        assert_true(strlen(err.text) > strlen("x.json: line 1 column 1: "));
    }
    /* Others of the file stay what they are. */
    struct json_t *json = parse("{\"large\":18446744073709551615,\"n\":[1,2.0]}", &err);
    assert_true(json_is_integer(json_array_get(json_object_get(json, "n"), 0)));
    assert_true(json_is_real(json_array_get(json_object_get(json, "n"), 1)));
    assert_string_equal(moe_json_digits(json_object_get(json, "large")), "18446744073709551615");
    assert_null(moe_json_digits(json_object_get(json, "n")));
    moe_json_free(json);
    /* Where a text has that key of its own, they are doubles. */
    json = parse("{\"\\ufdd0\":\"1\",\"n\":18446744073709551615}", &err);
    assert_true(json_is_real(json_object_get(json, "n")));
    moe_json_free(json);
}

/* Python writes numbers that JSON has not: no trouble but where they are read. */
static void numbers_of_python_do_not_spoil_a_file(void **state)
{
    (void)state;
    static const char text[] = "{\"a\": NaN, \"b\": [-Infinity, {\"c\": Infinity}],\n"
                               "\"say\": \"NaN \\\" Infinity\", \"n\": 7}";
    struct moe_err err = {0};
    const char *path = in_dir("python.json"), *say = NULL;
    uint32_t n = 0;
    assert_ok(moe_file_write_all(path, text, strlen(text), &err), &err);
    struct json_t *json = read_file(path, 1000, &err);
    assert_non_null(json);
    assert_ok(moe_json_get_u32("x", json, "n", UINT32_MAX, true, &n, &err), &err);
    assert_int_equal(n, 7);
    assert_ok(moe_json_get_text("x", json, "say", true, &say, &err), &err);
    assert_string_equal(say, "NaN \" Infinity");
    assert_fails(moe_json_get_u32("x", json, "a", UINT32_MAX, false, &n, &err), MOE_ERR_FORMAT,
                 "'a' is NaN, a whole number was expected", &err);
    moe_json_free(json);
    static const char damaged[] = "{\"a\": NaN,\n\"b\" 1}";
    assert_ok(moe_file_write_all(path, damaged, strlen(damaged), &err), &err);
    assert_null(read_file(path, 1000, &err));
    assert_non_null(strstr(err.text, "line 2"));
}

static void files_are_bounded(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct json_t *json = read_file(BUNDLED "/tiny-moe/config.json", 1 << 20, &err);
    assert_non_null(json);
    moe_json_free(json);
    assert_null(read_file(BUNDLED "/tiny-moe/config.json", 10, &err));
    assert_int_equal(err.status, MOE_ERR_FORMAT);
    assert_null(read_file(BUNDLED "/tiny-moe/none.json", 10, &err));
    assert_int_equal(err.status, MOE_ERR_IO);
    assert_null(read_file(BUNDLED, 10, &err));
    assert_int_equal(err.status, MOE_ERR_FORMAT);
}

/* Few bytes may become many: what the tree takes is bounded before it is made. */
static void trees_are_bounded(void **state)
{
    (void)state;
    enum { MANY = 100000 };
    struct moe_err err = {0};
    struct moe_buf text = {0};
    struct json_t *json;
    moe_buf_text(&text, "[\"{}{}{},,,\\\"[[[\"");
    for (int i = 0; i < MANY; i++)
        moe_buf_text(&text, ",{}");
    moe_buf_text(&text, "]");
    assert_fails(
        moe_json_parse(&json, "x.json", text.data, text.size, MOE_JSON_CONFIG_MEMORY, &err),
        MOE_ERR_FORMAT, "of memory, more than the 16.00 MiB that they may", &err);
    assert_null(json);
    assert_ok(moe_json_parse(&json, "x.json", text.data, text.size,
                             MOE_JSON_TOKENIZER_CONFIG_MEMORY, &err),
              &err);
    moe_json_free(json);
    /* Blanks become nothing. */
    char blanks[MANY];
    memset(blanks, ' ', MANY);
    assert_fails(moe_json_parse(&json, "x.json", blanks, MANY, 1000, &err), MOE_ERR_FORMAT,
                 "expected near end of file", &err);
    blanks[0] = '[';
    blanks[MANY - 1] = ']';
    assert_ok(moe_json_parse(&json, "x.json", blanks, MANY, 1000, &err), &err);
    moe_json_free(json);
    moe_buf_release(&text);
}

/* The largest published tokenizers: 262,144 tokens, and half a million merges as pairs. */
static void large_tokenizers_are_parsed(void **state)
{
    (void)state;
    enum { TOKENS = 262144, MERGES = 515000, ADDED = 6400 };
    struct moe_err err = {0};
    struct moe_buf text = {0};
    struct json_t *json;
    moe_buf_text(&text, "{\"added_tokens\": [");
    for (int i = 0; i < ADDED; i++)
        moe_buf_printf(&text,
                       "%s{\"id\": %d, \"content\": \"<unused%d>\", \"single_word\": false, "
                       "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                       "\"special\": true}",
                       i ? ", " : "", i, i);
    moe_buf_text(&text, "], \"vocab\": {");
    for (int i = 0; i < TOKENS; i++)
        moe_buf_printf(&text, "%s\"some token %d\": %d", i ? ", " : "", i, i);
    moe_buf_text(&text, "}, \"merges\": [");
    for (int i = 0; i < MERGES; i++)
        moe_buf_printf(&text, "%s[\"some\", \"token\"]", i ? ", " : "");
    moe_buf_text(&text, "]}");
    assert_false(text.failed);
    assert_ok(moe_json_parse(&json, "tokenizer.json", text.data, text.size,
                             MOE_JSON_TOKENIZER_MEMORY, &err),
              &err);
    moe_json_free(json);
    moe_buf_release(&text);
}

/* Whichever allocation fails: that is no damage. */
static void no_memory_is_not_called_damage(void **state)
{
    (void)state;
    static const char text[] =
        "{\"a\": [1, 2.5, \"text\", {\"b\": null, \"c\": true}], \"d\": \"\\u00e9\", \"e\": {}}";
    struct moe_err err = {0};
    struct json_t *json;
    int status = MOE_ERR_MEMORY;
    long n = 0;
    for (; status != MOE_OK && n < 1000; n++) {
        fail_allocation(n);
        status = moe_json_parse(&json, "x.json", text, strlen(text), MOE_JSON_CONFIG_MEMORY, &err);
        all_allocations_work();
        if (status != MOE_OK) {
            assert_null(json);
            assert_int_equal(status, MOE_ERR_MEMORY);
            assert_string_equal(err.text, "x.json: out of memory");
        }
    }
    assert_true((n > 20 && n < 1000) || !CAN_FAIL);
    moe_json_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_bytes_are_refused),
        cmocka_unit_test(members_are_read),
        cmocka_unit_test(wrong_members_are_refused),
        cmocka_unit_test(bad_text_is_refused),
        cmocka_unit_test(deep_nesting_is_refused),
        cmocka_unit_test(huge_integers_do_not_spoil_a_file),
        cmocka_unit_test(numbers_keep_their_digits),
        cmocka_unit_test_setup_teardown(numbers_of_python_do_not_spoil_a_file, make_dir,
                                        remove_dir),
        cmocka_unit_test(files_are_bounded),
        cmocka_unit_test(trees_are_bounded),
        cmocka_unit_test(large_tokenizers_are_parsed),
        cmocka_unit_test(no_memory_is_not_called_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
