/* Pages of HTML: names from files stay text, tags are balanced, pictures are bounded. */
#define _POSIX_C_SOURCE 200809L /* getpid */
#include <math.h>
#include <unistd.h>

#include "../test.h"
#include "show/html.h"

enum { DEEPEST = 32, NAME = 16 };

/* Walks the tags: every one that opens closes, in order. Attributes are in quotes. */
static bool balanced(const char *text)
{
    char open[DEEPEST][NAME];
    int depth = 0;
    if (strncmp(text, "<!DOCTYPE html>", 15) == 0)
        text += 15;
    while ((text = strchr(text, '<'))) {
        bool closes = text[1] == '/', quoted = false;
        const char *name = text + 1 + closes, *end = name;
        size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz123456789");
        while (*end && (quoted || *end != '>')) {
            if (!quoted && *end == '<')
                return false;
            quoted ^= *end++ == '"';
        }
        if (!*end || n == 0 || n >= NAME)
            return false;
        if (closes) {
            if (depth == 0 || strlen(open[depth - 1]) != n ||
                strncmp(open[depth - 1], name, n) != 0)
                return false;
            depth--;
        } else if (end[-1] != '/') {
            if (depth == DEEPEST)
                return false;
            snprintf(open[depth++], NAME, "%.*s", (int)n, name);
        }
        text = end;
    }
    return depth == 0;
}

static void walker(void **state)
{
    assert_true(balanced("<a><b x=\"<>\"/></a>"));
    assert_false(balanced("<a><b></a></b>"));
    assert_false(balanced("<a>"));
    assert_false(balanced("</a>"));
    assert_false(balanced("a < b"));
}

static void escapes(void **state)
{
    struct moe_buf out = {0};
    struct moe_page p = {&out};
    moe_page_text(&p, "<script>\"&'\x1b\xff\n");
    assert_string_equal((const char *)out.data, "&lt;script&gt;&quot;&amp;&#39;\xef\xbf\xbd"
                                                "\xef\xbf\xbd\n");
    moe_buf_release(&out);
}

/* Names in every place that takes one. */
static void hostile_names(void **state)
{
    static const char evil[] = "</title><script>alert(1)</script>\"'>";
    static const char *const cells[] = {evil, evil};
    struct moe_explained_part parts[] = {{"", 1}, {"rest", 2}};
    struct moe_table table;
    const double values[] = {1, 2};
    struct moe_buf out = {0};
    struct moe_page p;
    struct moe_heat heat;
    struct moe_err err;
    assert_ok(moe_heat_init(&heat, 1, 2, &err), &err);
    snprintf(parts[0].name, sizeof parts[0].name, "%s", evil);
    moe_page_begin(&p, &out, evil);
    moe_page_open_section(&p, evil);
    moe_page_say(&p, "%s", evil);
    moe_page_lines(&p, evil, evil);
    moe_table_begin(&table, 2, cells);
    moe_table_row(&table, 0, cells);
    moe_page_table(&p, &table);
    moe_page_heat(&p, &heat, evil, cells);
    moe_page_parts(&p, parts, 2, evil, moe_format_seconds);
    const struct moe_page_curve curve = {evil,   evil,   evil, evil, 2,
                                         values, values, 1.5,  true, moe_format_rate};
    moe_page_curve(&p, &curve);
    moe_page_strip(&p, values, 2, 2, evil);
    moe_page_close_section(&p);
    moe_page_end(&p);
    assert_false(out.failed);
    assert_null(strstr((const char *)out.data, "<script"));
    assert_true(balanced((const char *)out.data));
    moe_heat_release(&heat);
    moe_buf_release(&out);
}

static uint32_t count(const char *text, const char *what)
{
    uint32_t n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

static void heat_maps(void **state)
{
    struct moe_buf out = {0};
    struct moe_page p = {&out};
    struct moe_heat heat;
    struct moe_err err;
    assert_ok(moe_heat_init(&heat, 1, 4, &err), &err);
    memcpy(heat.values, (double[]){NAN, -1, 1, 9}, 4 * sizeof(double));
    moe_page_heat(&p, &heat, "a map", NULL);
    const char *text = (const char *)out.data;
    assert_non_null(strstr(text, "class=\"unknown\"><title>layer 0, expert 0: not known<"));
    assert_non_null(strstr(text, "class=\"below\"><title>layer 0, expert 1: -1<"));
    assert_non_null(strstr(text, "class=\"k4\"><title>layer 0, expert 2: 1<"));
    assert_non_null(strstr(text, "class=\"k8\"><title>layer 0, expert 3: 9<"));
    moe_heat_release(&heat);
    moe_buf_clear(&out);
    /* The most that a file may hold is still a page. */
    assert_ok(moe_heat_init(&heat, 1024, 1024, &err), &err);
    moe_page_heat(&p, &heat, "a map", NULL);
    assert_in_range(count((const char *)out.data, "<rect"), 1000,
                    MOE_HEAT_LINES * MOE_PAGE_COLUMNS);
    moe_heat_release(&heat);
    moe_buf_release(&out);
}

static void plans(void **state)
{
    static const char *const names[] = {"full", "fate", "lru", "resident", "shape"};
    for (size_t i = 0; i < N_ITEMS(names); i++) {
        struct moe_buf out = {0};
        struct moe_err err;
        char path[64];
        snprintf(path, sizeof path, "tests/fuzz/corpus/plan/%s", names[i]);
        assert_ok(moe_page_of_file(path, NULL, &out, &err), &err);
        assert_false(out.failed);
        assert_true(balanced((const char *)out.data));
        moe_buf_release(&out);
    }
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* Storage behind a host without a memory of its own: experts come over the bus, in title and table.
 */
static void a_link_has_one_name(void **state)
{
    struct moe_plan *plan;
    struct moe_err err;
    struct moe_buf text = {0}, out = {0};
    char path[64];
    snprintf(path, sizeof path, "/tmp/moe-test-page-%ld", (long)getpid());
    assert_ok(moe_plan_read(&plan, "tests/fuzz/corpus/plan/full", &err), &err);
    plan->host = (struct moe_plan_memory){0};
    plan->pace.storage_rate = 1e9;
    assert_ok(moe_plan_write(plan, false, &text, &err), &err);
    moe_buf_u8(&text, 0);
    write_file(path, (const char *)text.data);
    assert_ok(moe_page_of_file(path, NULL, &out, &err), &err);
    assert_non_null(strstr((const char *)out.data, "A faster bus or a slower one"));
    assert_non_null(strstr((const char *)out.data, "<th>bus</th>"));
    assert_int_equal(remove(path), 0);
    moe_buf_release(&text);
    moe_buf_release(&out);
    moe_plan_free(plan);
}

static void timelines(void **state)
{
    static const char *const bad[] = {"{}",
                                      "[]",
                                      "[1,null,{\"ph\":5}]",
                                      "[{\"ph\":\"X\",\"tid\":1e300,\"ts\":0,\"dur\":1}]",
                                      "[{\"ph\":\"X\",\"tid\":1,\"ts\":-1e308,\"dur\":1},"
                                      "{\"ph\":\"X\",\"tid\":1,\"ts\":1e308,\"dur\":1}]",
                                      "[{\"ph\":\"X\",\"tid\":1,\"ts\":1,\"dur\":-1}]"};
    char path[64];
    struct moe_err err;
    struct moe_buf out = {0};
    snprintf(path, sizeof path, "/tmp/moe-test-page-%ld", (long)getpid());
    for (size_t i = 0; i < N_ITEMS(bad); i++) {
        write_file(path, bad[i]);
        assert_fails(moe_page_of_file("tests/fuzz/corpus/plan/full", path, &out, &err),
                     MOE_ERR_FORMAT, "events", &err);
        moe_buf_clear(&out);
    }
    /* Computation in the first half, two loads in the second: 120 bars of 240 each. */
    write_file(path, "[{\"ph\":\"X\",\"tid\":1,\"ts\":0,\"dur\":50},"
                     "{\"ph\":\"b\",\"tid\":3,\"id\":1,\"ts\":50},"
                     "{\"ph\":\"b\",\"tid\":3,\"id\":2,\"ts\":50},"
                     "{\"ph\":\"e\",\"tid\":3,\"id\":1,\"ts\":100},"
                     "{\"ph\":\"e\",\"tid\":3,\"id\":2,\"ts\":100}]");
    assert_ok(moe_page_of_file("tests/fuzz/corpus/plan/full", path, &out, &err), &err);
    const char *at = strstr((const char *)out.data, "A run over time");
    assert_non_null(at);
    assert_int_equal(count(at, "height=\"48.00\""), 240);
    assert_non_null(strstr(at, "Loads in flight; full height: 2.00"));
    assert_true(balanced((const char *)out.data));
    remove(path);
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walker),        cmocka_unit_test(escapes),
        cmocka_unit_test(hostile_names), cmocka_unit_test(heat_maps),
        cmocka_unit_test(plans),         cmocka_unit_test(a_link_has_one_name),
        cmocka_unit_test(timelines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
