/* What every unit test includes: cmocka with what it needs, and a few helpers.
 * Tests run from the repository's root. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/err.h"

#define N_ITEMS(array) (sizeof(array) / sizeof(array)[0])

/* The address sanitizer slows tests down many times; it looks at code, not at numbers, and is
 * content with each kind of what a test repeats. */
#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* Asserts success and shows the message otherwise. */
#define assert_ok(call, err)                                                                       \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ != MOE_OK)                                                                     \
            fail_msg("%s: status %d: %s", #call, status_, (err)->text);                            \
    } while (0)

/* Asserts that the call failed with `status` and that its message contains `words`. */
#define assert_fails(call, want, words, err)                                                       \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        if (status_ != (want) || !strstr((err)->text, (words)))                                    \
            fail_msg("%s: status %d (expected %d): '%s' should contain '%s'", #call, status_,      \
                     (want), (err)->text, (words));                                                \
    } while (0)

/* Asserts what a member of a description's first layers is (model/config.h): a digit for each. */
#define assert_layers_have(config, member, digits)                                                 \
    do {                                                                                           \
        for (size_t i_ = 0; (digits)[i_]; i_++)                                                    \
            assert_int_equal((config).layers[i_].member, (digits)[i_] - '0');                      \
    } while (0)

/* A small repeatable generator (splitmix64), for test data. */
static inline uint64_t test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* Seconds of a processor that this process has taken, which other work on the machine does not
 * change: what tests compare with a bound on time. */
static inline double test_cpu_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

/* Uniform in [-1, 1). */
static inline float test_uniform(uint64_t *state)
{
    return (float)((double)(test_random(state) >> 11) * 0x1p-52 - 1.0);
}

#endif
