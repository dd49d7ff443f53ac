/*
 * A stand-in for cmocka where the library is missing: cross-built tests that run under an emulator
 * put this directory on the include path. Only what tests/kern uses; a failure ends the program.
 */
#ifndef TESTS_KERN_PLAIN_CMOCKA_H
#define TESTS_KERN_PLAIN_CMOCKA_H

struct CMUnitTest {
    const char *name;
    void (*test_func)(void **state);
};

#define cmocka_unit_test(f)                                                                        \
    {                                                                                              \
#f, f                                                                                      \
    }
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        printf("# %s:%d: ", __FILE__, __LINE__);                                                   \
        printf(__VA_ARGS__);                                                                       \
        printf("\nnot ok\n");                                                                      \
        exit(1);                                                                                   \
    } while (0)
#define assert_true(c)                                                                             \
    do {                                                                                           \
        if (!(c))                                                                                  \
            fail_msg("not true: %s", #c);                                                          \
    } while (0)
#define assert_non_null(p) assert_true((p) != NULL)
#define assert_int_equal(a, b) assert_true((a) == (b))
#define assert_memory_equal(a, b, n) assert_true(memcmp(a, b, n) == 0)

static inline int plain_run(const struct CMUnitTest *tests, size_t n)
{
    printf("1..%zu\n", n);
    for (size_t i = 0; i < n; i++) {
        tests[i].test_func(NULL);
        printf("ok %zu - %s\n", i + 1, tests[i].name);
        fflush(stdout);
    }
    return 0;
}
#define cmocka_run_group_tests(tests, setup, teardown)                                             \
    plain_run(tests, sizeof(tests) / sizeof(tests)[0])

#endif
