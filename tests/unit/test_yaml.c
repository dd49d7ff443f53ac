/* The strict YAML reader: values, errors with line and column, what it refuses; and the writer. */
#include "../test.h"

#include "fmt/emit.h"
#include "fmt/yaml.h"

static struct moe_yaml *parse(const char *text)
{
    struct moe_err err = {0};
    struct moe_yaml *doc = NULL;
    assert_ok(moe_yaml_parse(&doc, "x.yaml", text, strlen(text), &err), &err);
    return doc;
}

static void refused(const char *text, const char *part)
{
    struct moe_err err = {0};
    struct moe_yaml *doc = NULL;
    assert_int_equal(moe_yaml_parse(&doc, "x.yaml", text, strlen(text), &err), MOE_ERR_FORMAT);
    assert_null(doc);
    if (!strstr(err.text, part))
        fail_msg("'%s' does not say '%s'", err.text, part);
}

static void values_are_read(void **state)
{
    struct moe_err err = {0};
    struct moe_yaml *doc = parse("format: moe-test\n"
                                 "version: 2\n"
                                 "big: 18446744073709551615\n"
                                 "negative: -7\n"
                                 "x: 2.5e-3\n"
                                 "yes: true\n"
                                 "text: \"a \\\"b\\\" \\x41\"\n"
                                 "nothing: ~\n"
                                 "row: [1, 2, 3]\n"
                                 "layers:\n"
                                 "  - {name: a, n: 1}\n"
                                 "  - name: b\n"
                                 "    n: 2\n");
    struct moe_yaml_node *root = moe_yaml_root(doc), *list = NULL;
    uint64_t big = 0, n = 0;
    uint32_t row[3] = {0};
    int64_t negative = 0;
    double x = 0;
    bool yes = false;
    const char *text = NULL, *nothing = "kept";
    uint32_t sum = 0;
    assert_ok(moe_yaml_check_format(doc, "moe-test", 2, &err), &err);
    assert_int_equal(moe_yaml_check_format(doc, "moe-test", 1, &err), MOE_ERR_VERSION);
    assert_int_equal(moe_yaml_check_format(doc, "moe-test", 3, &err), MOE_ERR_VERSION);
    assert_int_equal(moe_yaml_check_format(doc, "moe-other", 2, &err), MOE_ERR_FORMAT);
    assert_ok(moe_yaml_get_u64(doc, root, "big", UINT64_MAX, true, &big, &err), &err);
    assert_true(big == UINT64_MAX);
    assert_ok(moe_yaml_item_i64(doc, moe_yaml_get(root, "negative"), &negative, &err), &err);
    assert_int_equal(negative, -7);
    assert_ok(moe_yaml_get_double(doc, root, "x", true, &x, &err), &err);
    assert_true(x == 2.5e-3);
    assert_ok(moe_yaml_get_bool(doc, root, "yes", true, &yes, &err), &err);
    assert_true(yes);
    assert_ok(moe_yaml_get_text(doc, root, "text", true, &text, &err), &err);
    assert_string_equal(text, "a \"b\" A");
    assert_ok(moe_yaml_get_text(doc, root, "nothing", false, &nothing, &err), &err);
    assert_string_equal(nothing, "kept");
    assert_ok(moe_yaml_get_list_of(doc, root, "row", 3, &list, &err), &err);
    assert_ok(moe_yaml_list_u32s(doc, list, 3, true, row, &err), &err);
    assert_int_equal(row[2], 3);
    assert_ok(moe_yaml_get_list(doc, root, "layers", true, &list, &n, &err), &err);
    assert_int_equal(n, 2);
    for (struct moe_yaml_node *m = moe_yaml_first(list); m; m = moe_yaml_next(m)) {
        uint32_t each = 0;
        assert_ok(moe_yaml_item_map(doc, m, &err), &err);
        assert_ok(moe_yaml_get_u32(doc, m, "n", 10, true, &each, &err), &err);
        sum += each;
    }
    assert_int_equal(sum, 3);
    /* Nobody asked for the names yet. */
    assert_int_equal(moe_yaml_check_known(doc, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "x.yaml: line 11 column 12: unknown key 'name'"));
    for (struct moe_yaml_node *m = moe_yaml_first(list); m; m = moe_yaml_next(m))
        assert_ok(moe_yaml_get_text(doc, m, "name", true, &text, &err), &err);
    assert_ok(moe_yaml_check_known(doc, &err), &err);
    moe_yaml_free(doc);
}

static void wrong_values_say_where(void **state)
{
    struct moe_err err = {0};
    struct moe_yaml *doc = parse("n: 5\nt: [1]\nq: \"5\"\nf: 1x\nrow: [1, 2]\n");
    struct moe_yaml_node *root = moe_yaml_root(doc), *row = NULL;
    uint64_t n = 9;
    double x = 9;
    const char *text = NULL;
    assert_int_equal(moe_yaml_get_u64(doc, root, "n", 4, true, &n, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "line 1 column 4: 'n' must be a whole number from 0 to 4"));
    assert_int_equal(moe_yaml_get_u64(doc, root, "q", 9, true, &n, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_yaml_get_double(doc, root, "f", true, &x, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "line 4"));
    assert_int_equal(moe_yaml_get_text(doc, root, "t", true, &text, &err), MOE_ERR_FORMAT);
    assert_int_equal(moe_yaml_get_list_of(doc, root, "row", 3, &row, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "must have 3 items, not 2"));
    assert_int_equal(moe_yaml_get_u64(doc, root, "none", 4, true, &n, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, "'none' is missing"));
    assert_ok(moe_yaml_get_u64(doc, root, "none", 4, false, &n, &err), &err);
    assert_int_equal(n, 9);
    moe_yaml_free(doc);
}

static void what_is_no_plain_yaml_is_refused(void **state)
{
    char deep[200] = "a: ";
    refused("", "not one YAML document");
    refused("- 1\n- 2\n", "not a mapping");
    refused("just a text\n", "not a mapping");
    refused("a: 1\na: 2\n", "line 2 column 1: 'a' occurs twice");
    refused("a: &x 1\nb: *x\n", "anchors");
    refused("a: !!str 1\n", "anchors, aliases and tags");
    refused("a: [1, 2\n", "line");
    refused("a: 1\n---\nb: 2\n", "not one YAML document");
    refused("? [1, 2]\n: 3\n", "a key must be a plain word");
    refused("a: \"x\\0y\"\n", "NUL");
    refused("a: \xff\xfe\n", "not a text file: byte 4: ");
    refused("a: 1\nb: \x01\n", "not a text file: byte 9: ");
    for (int i = 0; i < 40; i++)
        strcat(deep, "[");
    refused(deep, "nested too deeply");
}

static void text_comes_back(const char *text)
{
    struct moe_err err = {0};
    struct moe_buf out = {0};
    struct moe_yaml *doc = NULL;
    const char *back = NULL;
    moe_buf_text(&out, "t: ");
    moe_scalar_text(&out, text, false);
    moe_buf_text(&out, "\n");
    assert_ok(moe_yaml_parse(&doc, "x", out.data, out.size, &err), &err);
    assert_ok(moe_yaml_get_text(doc, moe_yaml_root(doc), "t", true, &back, &err), &err);
    assert_string_equal(back, text);
    moe_yaml_free(doc);
    moe_buf_release(&out);
}

static void texts_and_numbers_come_back(void **state)
{
    static const char *const texts[] = {
        "word",           "with space",  "no", "5", "", "a: b # c", "quote \" and \\",
        "tab\tnewline\n", "caf\xc3\xa9", "~"};
    static const char *const odd[] = {"\x7f a\xc2\x80", "\xc2\x85 \xe2\x80\xa8 \xe2\x80\xa9",
                                      "\xef\xbb\xbf\xef\xbf\xbe", "\xf0\x9f\x8c\x8d\xef\xbf\xbd"};
    static const double numbers[] = {0, 1, -2.5, 0.1, 1e300, 5e-324, 1.0 / 3, 123456789.125};
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(texts); i++)
        text_comes_back(texts[i]);
    for (size_t i = 0; i < N_ITEMS(odd); i++)
        text_comes_back(odd[i]);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        struct moe_buf out = {0};
        struct moe_yaml *doc = NULL;
        double back = 77;
        moe_buf_text(&out, "x: ");
        moe_scalar_double(&out, numbers[i]);
        assert_ok(moe_yaml_parse(&doc, "x", out.data, out.size, &err), &err);
        assert_ok(moe_yaml_get_double(doc, moe_yaml_root(doc), "x", true, &back, &err), &err);
        assert_true(back == numbers[i]);
        moe_yaml_free(doc);
        moe_buf_release(&out);
    }
}

static void numbers_are_short_and_plain(void **state)
{
    static const struct {
        double value;
        const char *text;
    } expected[] = {{10, "10"},
                    {0, "0"},
                    {-120000, "-120000"},
                    {0.1, "0.1"},
                    {1e9, "1e+09"},
                    {2.5e-5, "2.5e-05"},
                    {1073741824, "1073741824"}};
    for (size_t i = 0; i < N_ITEMS(expected); i++) {
        struct moe_buf out = {0};
        moe_scalar_double(&out, expected[i].value);
        assert_string_equal(out.data, expected[i].text);
        moe_buf_release(&out);
    }
}

static void bytes_that_are_no_text_are_marked(void **state)
{
    struct moe_buf out = {0};
    moe_scalar_text(&out, "caf\xc3", false);
    assert_string_equal(out.data, "\"caf?\"");
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(wrong_values_say_where),
        cmocka_unit_test(what_is_no_plain_yaml_is_refused),
        cmocka_unit_test(texts_and_numbers_come_back),
        cmocka_unit_test(numbers_are_short_and_plain),
        cmocka_unit_test(bytes_that_are_no_text_are_marked),
    };
    return cmocka_run_group_tests_name("yaml", tests, NULL, NULL);
}
