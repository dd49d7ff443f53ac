/* Who may ask the server: keys, names, origins. */
#define _DEFAULT_SOURCE /* scratch_dir.h */
#include "serve/http_access.h"

#include <sys/stat.h>

#include "../scratch_dir.h"
#include "../test.h"

static void keys_are_lines(void **state)
{
    (void)state;
    static const char text[] = "# ours\n \nsk-one\r\n\tsk-two \t\nlast ";
    struct moe_err err;
    struct moe_access_keys *keys;
    write_in_dir("keys", text, sizeof text - 1);
    assert_int_equal(chmod(in_dir("keys"), 0644), 0);
    assert_fails(moe_access_keys_read(&keys, in_dir("keys"), &err), MOE_ERR_IO, "others", &err);
    assert_int_equal(chmod(in_dir("keys"), 0640), 0); /* the group is its owner's choice */
    assert_ok(moe_access_keys_read(&keys, in_dir("keys"), &err), &err);
    assert_int_equal(moe_access_key_find(keys, "Bearer sk-one", "Bearer "), 1);
    assert_int_equal(moe_access_key_find(keys, "bearer  sk-two", "Bearer "), 2);
    assert_int_equal(moe_access_key_find(keys, "Bearer last", "Bearer "), 3);
    static const char *const others[] = {
        "Bearer sk-on", "Bearer sk-onee", "Bearer ",       "Bearer",        "",
        "sk-one",       "Basic sk-one",   "Bearer # ours", "Bearer SK-ONE", "Bearer sk-one sk-two",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(moe_access_key_find(keys, others[i], "Bearer "), 0);
    assert_int_equal(moe_access_key_find(keys, NULL, "Bearer "), 0);
    assert_int_equal(moe_access_key_find(keys, "sk-one", ""), 1);
    assert_int_equal(moe_access_key_find(keys, "sk-on", ""), 0);
    moe_access_keys_free(keys);
}

static void bad_files_of_keys_are_refused(void **state)
{
    (void)state;
    struct moe_err err;
    struct moe_access_keys *keys;
    static const struct {
        const char *text, *words;
        size_t n;
    } bad[] = {
        {"", "no key", 0},
        {"# nothing\n\n", "no key", 11},
        {"fine\nnot fine\n", "line 2: a key has", 14},
        {"k\303\251y\n", "line 1: a key has", 5},
        {"a\0b\n", "NUL", 4},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_in_dir("keys", bad[i].text, bad[i].n);
        assert_fails(moe_access_keys_read(&keys, in_dir("keys"), &err), MOE_ERR_FORMAT,
                     bad[i].words, &err);
        assert_null(keys);
    }
}

static void loopback_names(void **state)
{
    (void)state;
    static const char *const local[] = {
        "localhost", "localhost:8080", "LOCALHOST:1", "localhost.", "page.localhost:80",
        "127.0.0.1", "127.0.0.1:8080", "127.9.9.9",   "[::1]",      "[::1]:8080",
    };
    static const char *const other[] = {
        "",
        "example.com",
        "127.0.0.1.example.com",
        "localhost.example.com",
        "xlocalhost",
        "128.0.0.1",
        "[::2]:80",
        "::1",
        "[::1",
        "[::1]x",
        "localhost:x",
        "0.0.0.0",
        ":8080",
        "example.com:80",
        "127.1",
        "localhost:80:80",
    };
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        assert_true(moe_access_host_is_local(local[i]));
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        assert_false(moe_access_host_is_local(other[i]));
}

static void hosts_by_which_it_is_reached(void **state)
{
    (void)state;
    static const char *const origins[] = {"https://box.example:8080", NULL};
    static const char *const hosts[] = {"other.example", NULL}, *const any[] = {"*", NULL};
    struct moe_access a = {.loopback = true, .origins = origins, .hosts = hosts};
    for (int local = 1; local >= 0; local--) {
        a.loopback = local;
        assert_true(moe_access_host_fits(&a, "localhost:8080"));
        assert_true(moe_access_host_fits(&a, NULL)); /* no browser */
        assert_true(moe_access_host_fits(&a, "box.example:8080"));
        assert_true(moe_access_host_fits(&a, "Other.Example:99"));
        assert_false(moe_access_host_fits(&a, "box.example"));
        assert_false(moe_access_host_fits(&a, "evil.example:8080"));
        assert_int_equal(moe_access_host_fits(&a, "192.168.1.5:8080"), !local);
        assert_int_equal(moe_access_host_fits(&a, "[2001:db8::1]"), !local);
    }
    a.hosts = any;
    assert_true(moe_access_host_fits(&a, "evil.example:8080"));
}

static void what_a_name_is(void **state)
{
    (void)state;
    static const char *const names[] = {"*", "box", "box.example", "10.0.0.1"};
    static const char *const others[] = {"", "box:80", "http://box", "a b", "box/"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(moe_access_name_is_valid(names[i]));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(moe_access_name_is_valid(others[i]));
}

static void origins_are_the_servers_or_allowed(void **state)
{
    (void)state;
    static const char *const some[] = {"http://a.example", "null", NULL};
    static const char *const all[] = {"*", NULL};
    static const char *const programs[] = {"vscode-webview://", "tauri://localhost",
                                           "chrome-extension://abcdef", NULL};
    struct moe_access a = {.loopback = true};
    bool foreign;
    assert_true(moe_access_origin_fits(&a, NULL, "localhost:80", &foreign));
    assert_false(foreign);
    assert_true(moe_access_origin_fits(&a, "http://localhost:80", "localhost:80", &foreign));
    assert_false(foreign);
    /* behind something that adds TLS */
    assert_true(moe_access_origin_fits(&a, "https://localhost:80", "localhost:80", &foreign));
    assert_false(foreign);
    assert_false(moe_access_origin_fits(&a, "http://localhost:81", "localhost:80", &foreign));
    assert_true(foreign);
    assert_false(moe_access_origin_fits(&a, "http://a.example", "localhost:80", &foreign));
    assert_false(moe_access_origin_fits(&a, "null", "localhost:80", &foreign));
    assert_false(moe_access_origin_fits(&a, "http://localhost:80", NULL, &foreign));
    a.origins = some;
    assert_true(moe_access_origin_fits(&a, "http://a.example", "localhost:80", &foreign));
    assert_true(foreign);
    assert_true(moe_access_origin_fits(&a, "null", "localhost:80", &foreign));
    assert_false(moe_access_origin_fits(&a, "https://a.example", "localhost:80", &foreign));
    a.origins = programs;
    assert_true(moe_access_origin_fits(&a, "vscode-webview://0f3e", "localhost:80", &foreign));
    assert_true(foreign);
    assert_true(moe_access_origin_fits(&a, "tauri://localhost", "localhost:80", &foreign));
    assert_true(moe_access_origin_fits(&a, "chrome-extension://abcdef", "localhost:80", &foreign));
    assert_false(moe_access_origin_fits(&a, "chrome-extension://abcde", "localhost:80", &foreign));
    assert_false(moe_access_origin_fits(&a, "app://localhost", "localhost:80", &foreign));
    a.origins = all;
    assert_true(moe_access_origin_fits(&a, "https://b.example", "localhost:80", &foreign));
    assert_true(foreign);
}

static void what_an_origin_is(void **state)
{
    (void)state;
    assert_true(moe_access_origin_is_valid("*"));
    assert_true(moe_access_origin_is_valid("null"));
    assert_true(moe_access_origin_is_valid("http://a.example"));
    assert_true(moe_access_origin_is_valid("https://[::1]:8443"));
    assert_false(moe_access_origin_is_valid("a.example"));
    assert_false(moe_access_origin_is_valid("http://"));
    assert_false(moe_access_origin_is_valid("http://a.example/"));
    assert_false(moe_access_origin_is_valid("http://a.example:x"));
    assert_true(moe_access_origin_is_valid("app://localhost"));
    assert_true(moe_access_origin_is_valid("moz-extension://"));
    assert_false(moe_access_origin_is_valid("://a.example"));
    assert_false(moe_access_origin_is_valid("app://localhost/x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_lines),    cmocka_unit_test(bad_files_of_keys_are_refused),
        cmocka_unit_test(loopback_names),    cmocka_unit_test(hosts_by_which_it_is_reached),
        cmocka_unit_test(what_a_name_is),    cmocka_unit_test(origins_are_the_servers_or_allowed),
        cmocka_unit_test(what_an_origin_is),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
