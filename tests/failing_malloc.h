/*
 * malloc, realloc and aligned_alloc that fail once, when told: fail_allocation(n) has the nth from
 * there on fail (0: the next one), all_allocations_work() ends that and says whether it came to it.
 * Where CAN_FAIL is false (under a sanitizer, which has an allocator of its own, and without glibc)
 * nothing fails. To be included by one file of a program, which must not allocate in threads.
 */
#ifndef TESTS_FAILING_MALLOC_H
#define TESTS_FAILING_MALLOC_H

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define CAN_FAIL true
#else
#define CAN_FAIL false
#endif

static long allocations_left = LONG_MAX;

static inline void fail_allocation(long n)
{
    allocations_left = n;
}

static inline bool all_allocations_work(void)
{
    bool failed = allocations_left < 0;
    allocations_left = LONG_MAX;
    return failed;
}

#if CAN_FAIL
extern void *__libc_malloc(size_t n);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t alignment, size_t n);

void *malloc(size_t n)
{
    return allocations_left-- == 0 ? NULL : __libc_malloc(n);
}

void *realloc(void *p, size_t n)
{
    return allocations_left-- == 0 ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return allocations_left-- == 0 ? NULL : __libc_memalign(alignment, n);
}
#endif

#endif
