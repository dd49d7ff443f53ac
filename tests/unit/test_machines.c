/* Machines that run a model together: round trip, what follows from a file, and damage: each kind
 * is named with the member in one line. */
#include "../test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "profile/machines.h"

static char path[64];

static int read_text(struct moe_machines **out, const char *text, struct moe_err *err)
{
    assert_ok(moe_file_write_all(path, text, strlen(text), err), err);
    return moe_machines_read(out, path, err);
}

#define HEAD "format: moe-machines\nversion: 1\n"
#define NETWORK "network: {latency_seconds: 1e-4, bytes_per_second: 1e8}\n"
#define FIGURES "memory_bytes_per_second: 4e10, storage_bytes_per_second: 2e9"
#define ONE "name: a, memory: 1G, " FIGURES

static void refused(const char *text, const char *words)
{
    struct moe_machines *m = NULL;
    struct moe_err err;
    assert_fails(read_text(&m, text, &err), MOE_ERR_FORMAT, words, &err);
    assert_null(m);
    assert_true(strncmp(err.text, path, strlen(path)) == 0);
    assert_null(strchr(err.text, '\n'));
}

static void machines_are_as_many_as_counted(void **state)
{
    struct moe_machines *m = NULL;
    struct moe_err err;
    assert_ok(read_text(&m,
                        HEAD NETWORK "machines:\n- {" ONE "}\n"
                                     "- {name: b, memory: 2G, profile: b.yaml, count: 3,\n"
                                     "   link: {bytes_per_second: 5e8, handling_seconds: 1e-6,\n"
                                     "          messages: [{bytes: 256, seconds: 2e-4}]}}\n"
                                     "- {name: c, memory: 512M, profile: c.yaml}\n",
                        &err),
              &err);
    assert_int_equal(m->n, 5);
    for (uint32_t i = 1; i < 4; i++) {
        assert_string_equal(m->machines[i].name, "b");
        assert_int_equal(m->machines[i].memory_bytes, 2147483648);
        assert_true(m->machines[i].link.bytes_per_second == 5e8);
        assert_true(m->machines[i].link.latency_seconds == 0);
    }
    assert_true(m->machines[4].link.bytes_per_second == 1e8);
    assert_true(m->machines[4].link.latency_seconds == 1e-4);

    struct moe_buf first = {0}, second = {0};
    assert_ok(moe_machines_write(m, &first, &err), &err);
    free(m);
    /* Three are 'b' now, each by itself. */
    refused((const char *)first.data, "two machines are 'b': several that are alike have 'count'");
    assert_ok(read_text(&m, HEAD NETWORK "machines: [{" ONE ", count: 2}]\n", &err), &err);
    m->n = 1;
    first.size = 0;
    assert_ok(moe_machines_write(m, &first, &err), &err);
    free(m);
    assert_ok(read_text(&m, (const char *)first.data, &err), &err);
    assert_ok(moe_machines_write(m, &second, &err), &err);
    assert_string_equal((const char *)first.data, (const char *)second.data);
    free(m);
    moe_buf_release(&first);
    moe_buf_release(&second);
}

/* ---- Damage ---- */

static const char whole[] = HEAD "machines:\n"
                                 "- name: a\n"
                                 "  memory: 1G\n"
                                 "  count: 2\n"
                                 "  memory_bytes_per_second: 4e10\n"
                                 "  storage_bytes_per_second: 2e9\n"
                                 "  link:\n"
                                 "    latency_seconds: 1e-4\n"
                                 "    bytes_per_second: 1e8\n"
                                 "    handling_seconds: 1e-6\n"
                                 "    handling_seconds_per_byte: 1e-10\n"
                                 "    messages:\n"
                                 "    - bytes: 256\n"
                                 "      seconds: 2e-4\n";

/* The file with another value of one member; NULL: with none. */
static const char *with(const char *key, const char *value)
{
    static char text[2 * sizeof whole];
    char member[64];
    snprintf(member, sizeof member, " %s: ", key);
    const char *at = strstr(whole, member);
    assert_non_null(at);
    const char *end = strchr(at, '\n');
    if (value)
        snprintf(text, sizeof text, "%.*s%s%s%s", (int)(at - whole), whole, member, value, end);
    else
        snprintf(text, sizeof text, "%.*s%s", (int)(at - whole), whole, end);
    return text;
}

static void whole_is_read(void **state)
{
    struct moe_machines *m = NULL;
    struct moe_err err;
    assert_ok(read_text(&m, whole, &err), &err);
    assert_int_equal(m->n, 2);
    assert_int_equal(m->machines[1].link.n_messages, 1);
    free(m);
}

static void numbers_out_of_range_are_named(void **state)
{
    static const char *const keys[] = {
        "count",
        "memory_bytes_per_second",
        "storage_bytes_per_second",
        "latency_seconds",
        "bytes_per_second",
        "handling_seconds",
        "handling_seconds_per_byte",
        "bytes",
        "seconds",
    };
    static const char *const values[] = {"-1",   "-1e-300", "1e300", "1e999",  "nan",
                                         ".nan", "inf",     ".inf",  "\"\"",   "1,5",
                                         "0x10", "1G",      "[1]",   "{a: 1}", "1 2"};
    char words[64];
    for (size_t k = 0; k < N_ITEMS(keys); k++) {
        snprintf(words, sizeof words, "'%s' ", keys[k]);
        for (size_t i = 0; i < N_ITEMS(values); i++)
            refused(with(keys[k], values[i]), words);
        /* Without delay a network may be. */
        if (strcmp(keys[k], "latency_seconds") == 0 || strstr(keys[k], "handling_seconds"))
            continue;
        refused(with(keys[k], "0"), words);
        refused(with(keys[k], "0.0"), words);
        if (strcmp(keys[k], "seconds") != 0)
            refused(with(keys[k], "1e-300"), words);
    }
    refused(with("count", "1.5"), "'count' must be a whole number from 0 to 64");
    refused(with("count", "1000000"), "'count' must be a whole number from 0 to 64");
    refused(with("bytes", "2147483648"), "'bytes' must be a whole number from 0 to 2147483647");
    refused(with("seconds", "0"), "'seconds' must be above 0 and at most 1000");
    refused(with("bytes_per_second", "0"), "'bytes_per_second' must be from 1 to 1e+15");
}

static void texts_are_checked(void **state)
{
    char text[600];
    static const char *const sizes[] = {"0", "-1G", "nan", "inf", "1e300", "1X", "much", "0.1"};
    for (size_t i = 0; i < N_ITEMS(sizes); i++)
        refused(with("memory", sizes[i]), "'memory' is not a size like 512M or 24GiB");
    refused(with("memory", "\"\""), "'memory' is empty");
    refused(with("memory", "[1G]"), "'memory' must be ");
    refused(with("name", "\"\""), "'name' is empty");
    refused(with("name", "{a: b}"), "'name' must be ");
    memset(text, 'n', sizeof text - 1);
    text[sizeof text - 1] = 0;
    refused(with("name", text), "'name' is longer than 63 bytes");
    refused(HEAD "machines: [{name: a, memory: 1G, profile: [a]}]\n", "'profile' must be ");
}

static void what_is_missing_or_too_much_is_named(void **state)
{
    refused(with("memory", NULL), "'memory' is missing");
    refused(with("bytes_per_second", NULL), "'bytes_per_second' is missing");
    refused(with("seconds", NULL), "'seconds' is missing");
    refused(with("memory_bytes_per_second", NULL), "give either 'profile' or ");
    refused(with("storage_bytes_per_second", NULL), "give either 'profile' or ");
    refused(with("count", "2\n  profile: a.yaml"), "give either 'profile' or ");
    refused(with("count", "2\n  cores: 4"), "unknown key 'cores'");
    refused(with("count", "2\n  count: 2"), "'count'");
    refused(with("latency_seconds", "1\n    delay: 4"), "unknown key 'delay'");
    refused(with("bytes", "256\n      n: 4"), "unknown key 'n'");
    refused(with("seconds", "1\n    - {bytes: 256, seconds: 1}"), "'bytes' must be rising");
    refused(HEAD, "'machines' is missing");
    refused(HEAD "machines: []\n", "'machines' is missing");
    refused(HEAD "machines: {name: a}\n", "'machines' must be a list");
    refused(HEAD "machines: [a]\n", "must be a mapping");
    refused(HEAD "machines: [{" ONE "}]\nhosts: []\n", "unknown key 'hosts'");
    refused(HEAD "machines: [{" ONE ", link: 5}]\n", "'link' must be a mapping");
    refused(HEAD "network: 5\nmachines: [{" ONE "}]\n", "'network' must be a mapping");
    refused(HEAD "network: {latency_seconds: 1}\nmachines: [{" ONE "}]\n",
            "'bytes_per_second' is missing");
    refused(HEAD "machines: [{" ONE ", count: 2}]\n",
            "machine 'a' has no 'link', and there is no 'network'");
    refused(HEAD NETWORK "machines: [{" ONE ", count: 40}, {name: b, memory: 1G, " FIGURES
                         ", count: 25}]\n",
            "more than 64 machines");
    refused(HEAD NETWORK "machines: [{" ONE "}, {name: b, memory: 1G, " FIGURES "}, {" ONE "}]\n",
            "two machines are 'a': several that are alike have 'count'");
}

static void long_lists_are_refused(void **state)
{
    struct moe_buf text = {0};
    moe_buf_printf(&text, HEAD NETWORK "machines:\n");
    for (int i = 0; i < 65; i++)
        moe_buf_printf(&text, "- {name: m%d, memory: 1G, " FIGURES "}\n", i);
    refused((const char *)text.data, "'machines' must not have more than 64 items");
    while (text.size < 2 << 20)
        moe_buf_printf(&text, "- {name: m, memory: 1G, " FIGURES "}\n");
    struct moe_machines *m = NULL;
    struct moe_err err;
    assert_fails(read_text(&m, (const char *)text.data, &err), MOE_ERR_FORMAT, path, &err);
    moe_buf_release(&text);
}

/* From the least time of a small message, and of the largest what is more than that. */
static void links_are_fitted_or_have_no_rate(void **state)
{
    struct moe_machine_link l = {.n_messages = 3,
                                 .messages = {{256, 60e-6}, {4096, 50e-6}, {4 << 20, 4244304e-9}}};
    assert_true(moe_machine_link_fit(&l));
    assert_true(fabs(l.latency_seconds - 50e-6) < 1e-12);
    assert_true(fabs(l.bytes_per_second - 1e9) < 1e3);
    l.messages[2].seconds = 90e-6; /* less than twice a small one: noise decides */
    assert_false(moe_machine_link_fit(&l));
    assert_true(l.bytes_per_second == 0);
    l.messages[2].seconds = 40e-6; /* a large one may be the faster one then */
    assert_false(moe_machine_link_fit(&l));
    assert_true(l.bytes_per_second == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_are_as_many_as_counted),
        cmocka_unit_test(whole_is_read),
        cmocka_unit_test(numbers_out_of_range_are_named),
        cmocka_unit_test(texts_are_checked),
        cmocka_unit_test(what_is_missing_or_too_much_is_named),
        cmocka_unit_test(long_lists_are_refused),
        cmocka_unit_test(links_are_fitted_or_have_no_rate),
    };
    snprintf(path, sizeof path, "/tmp/moe-test-machines-%d.yaml", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
