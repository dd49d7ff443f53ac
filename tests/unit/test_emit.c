/* Documents in both forms, letter by letter. */
#include "fmt/emit.h"

#include "../test.h"
#include "fmt/yaml.h"

static void put(struct moe_emit *e)
{
    static const uint32_t slots[] = {3, 0, 12};
    static const double seconds[] = {0.1, 2};
    moe_emit_text(e, "name", "a \"b\"\n\xc3\xa9\xff");
    moe_emit_open_map(e, "outer");
    moe_emit_bool(e, "flag", true);
    moe_emit_open_list(e, "items");
    for (uint32_t i = 0; i < 2; i++) {
        moe_emit_open_map(e, NULL);
        moe_emit_u64(e, "i", i);
        moe_emit_open_line_map(e, "x y");
        moe_emit_double(e, "value", 0.5);
        moe_emit_u32s(e, "none", NULL, 0);
        moe_emit_close(e);
        moe_emit_close(e);
    }
    moe_emit_open_line_map(e, NULL);
    moe_emit_u64(e, "i", 2);
    moe_emit_doubles(e, "seconds", seconds, 2);
    moe_emit_close(e);
    moe_emit_text(e, NULL, "word");
    moe_emit_close(e);
    moe_emit_close(e);
    moe_emit_open_list(e, "rows");
    moe_emit_u32s(e, NULL, slots, 3);
    moe_emit_u32s(e, NULL, slots, 0);
    moe_emit_close(e);
    moe_emit_fingerprint(e, "id", 0xab);
}

static const char yaml[] = "# A test.\n"
                           "format: moe-test\n"
                           "version: 7\n"
                           "name: \"a \\\"b\\\"\\x0a\xc3\xa9?\"\n"
                           "outer:\n"
                           "  flag: true\n"
                           "  items:\n"
                           "    - i: 0\n"
                           "      \"x y\": {value: 0.5, none: []}\n"
                           "    - i: 1\n"
                           "      \"x y\": {value: 0.5, none: []}\n"
                           "    - {i: 2, seconds: [0.1, 2]}\n"
                           "    - word\n"
                           "rows:\n"
                           "  - [3, 0, 12]\n"
                           "  - []\n"
                           "id: \"00000000000000ab\"\n";

static const char json[] = "{\"format\":\"moe-test\",\"version\":7,"
                           "\"name\":\"a \\\"b\\\"\\u000a\xc3\xa9?\","
                           "\"outer\":{\"flag\":true,\"items\":["
                           "{\"i\":0,\"x y\":{\"value\":0.5,\"none\":[]}},"
                           "{\"i\":1,\"x y\":{\"value\":0.5,\"none\":[]}},"
                           "{\"i\":2,\"seconds\":[0.1,2]},\"word\"]},"
                           "\"rows\":[[3,0,12],[]],\"id\":\"00000000000000ab\"}\n";

static void one_description_gives_both(void **state)
{
    for (int i = 0; i < 2; i++) {
        struct moe_err err = {0};
        struct moe_buf out = {0};
        struct moe_emit e;
        moe_emit_begin(&e, &out, i, "A test.", "moe-test", 7);
        put(&e);
        assert_ok(moe_emit_end(&e, &err), &err);
        assert_string_equal(out.data, i ? json : yaml);
        moe_buf_release(&out);
    }
}

/* Objects of JSON in each style. */
static void styles(void **state)
{
    static const char *const want[] = {
        "{\"a\":0.5000,\"b\":{\"c\":[{\"x\":0.333333,\"y\":null},[]],\"d\":{}},\"e\":{\"f\":[1,2],"
        "\"g\":null},\"h\":{\"i\":0}}\n",
        "{\"a\": 0.5000, \"b\": {\"c\": [{\"x\": 0.333333, \"y\": null}, []], \"d\": {}}, \"e\": "
        "{\"f\": [1, 2], \"g\": null}, \"h\": {\"i\":0}}\n",
        "{\n"
        "  \"a\": 0.5000,\n"
        "  \"b\": {\n"
        "    \"c\": [\n"
        "      {\n"
        "        \"x\": 0.333333,\n"
        "        \"y\": null\n"
        "      },\n"
        "      []\n"
        "    ],\n"
        "    \"d\": {}\n"
        "  },\n"
        "  \"e\": {\"f\": [1, 2], \"g\": null},\n"
        "  \"h\": {\"i\":0}\n"
        "}\n",
    };
    static const uint32_t f[] = {1, 2};
    for (int style = MOE_EMIT_COMPACT; style <= MOE_EMIT_INDENTED; style++) {
        struct moe_err err = {0};
        struct moe_buf out = {0};
        struct moe_emit e;
        moe_emit_begin_json(&e, &out, style);
        moe_emit_fixed(&e, "a", 4, 0.5);
        moe_emit_open_map(&e, "b");
        moe_emit_open_list(&e, "c");
        moe_emit_open_map(&e, NULL);
        moe_emit_rounded(&e, "x", 6, 1.0 / 3);
        moe_emit_rounded(&e, "y", 6, 0.0 / 0.0);
        moe_emit_close(&e);
        moe_emit_open_list(&e, NULL);
        moe_emit_close(&e);
        moe_emit_close(&e);
        moe_emit_open_map(&e, "d");
        moe_emit_close(&e);
        moe_emit_close(&e);
        moe_emit_open_line_map(&e, "e");
        moe_emit_u32s(&e, "f", f, 2);
        moe_emit_null(&e, "g");
        moe_emit_close(&e);
        moe_emit_json(&e, "h", "{\"i\":0}", 7);
        assert_ok(moe_emit_end(&e, &err), &err);
        assert_string_equal(out.data, want[style]);
        moe_buf_release(&out);
    }
}

/* What is YAML for a line's end, or no character of YAML, comes back from both forms. */
static void any_text_comes_back(void **state)
{
    static const char text[] =
        "\x01 \t\n\r\x1b\x7f \xc2\x85 \xe2\x80\xa8 \xef\xbb\xbf \xef\xbf\xbf "
        "\xc3\xa9 \xf0\x9f\x98\x80";
    for (int i = 0; i < 2; i++) {
        struct moe_err err = {0};
        struct moe_buf out = {0};
        struct moe_emit e;
        struct moe_yaml *doc;
        const char *read = NULL;
        moe_emit_begin(&e, &out, i, "A test.", "moe-test", 7);
        moe_emit_text(&e, "name", text);
        assert_ok(moe_emit_end(&e, &err), &err);
        assert_ok(moe_yaml_parse(&doc, "test", out.data, out.size, &err), &err);
        assert_ok(moe_yaml_get_text(doc, moe_yaml_root(doc), "name", true, &read, &err), &err);
        assert_string_equal(read, text);
        moe_yaml_free(doc);
        moe_buf_release(&out);
    }
}

/* Other writers of JSON leave characters as they are that no terminal shows, and YAML does not
 * have. */
static void json_of_others_is_escaped(void **state)
{
    static const char others[] =
        "[\"\x7f\xc2\x85 \xc3\xa9\\n\", \n\"\xe2\x80\xa8\xf0\x9f\x98\x80\"]";
    struct moe_err err = {0};
    struct moe_buf out = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, &out, MOE_EMIT_LINE);
    moe_emit_json(&e, "list", others, strlen(others));
    assert_ok(moe_emit_end(&e, &err), &err);
    assert_string_equal(out.data, "{\"list\": [\"\\u007f\\u0085 \xc3\xa9\\n\", \n"
                                  "\"\\u2028\xf0\x9f\x98\x80\"]}\n");
    moe_buf_release(&out);
}

static void a_broken_buffer_is_told(void **state)
{
    struct moe_err err = {0};
    struct moe_buf out = {.failed = true};
    struct moe_emit e;
    moe_emit_begin(&e, &out, false, "A test.", "moe-test", 7);
    assert_fails(moe_emit_end(&e, &err), MOE_ERR_MEMORY, "out of memory", &err);
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_description_gives_both), cmocka_unit_test(styles),
        cmocka_unit_test(any_text_comes_back),        cmocka_unit_test(json_of_others_is_escaped),
        cmocka_unit_test(a_broken_buffer_is_told),
    };
    return cmocka_run_group_tests_name("emit", tests, NULL, NULL);
}
