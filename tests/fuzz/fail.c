/*
 * Allocations that fail (fuzz.h): the linker sends the toolkit's own here (-Wl,--wrap). Those
 * inside of libraries that are linked at run time do not pass by and succeed. So do those of
 * jansson's parser, which takes them from us: without memory it asserts that a number or an escape
 * is whole.
 */
#define _GNU_SOURCE
#include <jansson.h>

#include <malloc.h>
#include <time.h>

#include "fuzz.h"

uint64_t fuzz_fails, fuzz_fails_always;
bool fuzz_failed;
uint64_t fuzz_bytes, fuzz_peak;
static uint64_t n_allocations;
static bool counting, failed_before;

/* What each call of the input at hand came to when nothing failed. */
enum { MOST_CALLS = 64 };
static int came_to[MOST_CALLS];
static int n_calls;

void __real_free(void *block);
void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *block, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
json_t *__real_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error);
void __wrap_free(void *block);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *block, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
json_t *__wrap_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error);

static bool fails(void)
{
    bool now = counting && ++n_allocations == fuzz_fails;
    fuzz_failed |= now;
    return now;
}

static void *count(void *block)
{
    fuzz_bytes += block ? malloc_usable_size(block) : 0;
    fuzz_peak = fuzz_bytes > fuzz_peak ? fuzz_bytes : fuzz_peak;
    return block;
}

/* What was not allocated here, but by the C library itself, is freed here too. */
static void uncount(void *block)
{
    uint64_t n = block ? malloc_usable_size(block) : 0;
    fuzz_bytes -= n < fuzz_bytes ? n : fuzz_bytes;
}

void __wrap_free(void *block)
{
    uncount(block);
    __real_free(block);
}

void *__wrap_malloc(size_t n)
{
    return fails() ? NULL : count(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails() ? NULL : count(__real_calloc(n, bytes));
}

void *__wrap_realloc(void *block, size_t n)
{
    uint64_t before = block ? malloc_usable_size(block) : 0;
    void *moved = fails() ? NULL : __real_realloc(block, n);
    if (moved)
        fuzz_bytes -= before < fuzz_bytes ? before : fuzz_bytes;
    return count(moved);
}

void *__wrap_aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : count(__real_aligned_alloc(align, n));
}

json_t *__wrap_json_loadb(const char *text, size_t n, size_t flags, json_error_t *error)
{
    bool counted = counting;
    counting = false;
    json_t *json = __real_json_loadb(text, n, flags, error);
    counting = counted;
    return json;
}

/* ---- Runs that repeat: a fuzzer's seed draws the same inputs each time ---- */

__attribute__((constructor)) static void hash_alike(void)
{
    json_object_seed(1);
}

int __wrap_getentropy(void *buffer, size_t n);
int __wrap_getentropy(void *buffer, size_t n)
{
    memset(buffer, 0x5a, n);
    return 0;
}

time_t __wrap_time(time_t *now);
time_t __wrap_time(time_t *now)
{
    const time_t then = 1800000000;
    if (now)
        *now = then;
    return then;
}

size_t fuzz_begin(const uint8_t *data, size_t n)
{
    bool says = n >= 3 && data[n - 1] == FUZZ_FAILS;
    n_allocations = 0;
    n_calls = 0;
    fuzz_failed = counting = false;
    fuzz_fails = says ? data[n - 2] * 256u + data[n - 3] : 0;
    if (fuzz_fails_always)
        fuzz_fails = fuzz_fails_always;
    return says ? n - 3 : n;
}

void fuzz_try_begin(void)
{
    failed_before = fuzz_failed;
    counting = true;
}

int fuzz_try_end(int status)
{
    int call = n_calls++;
    counting = false;
    if (call >= MOST_CALLS)
        return status;
    if (fuzz_fails == 0)
        came_to[call] = status;
    else if (fuzz_fails_always && fuzz_failed && !failed_before && status == MOE_ERR_FORMAT &&
             came_to[call] == MOE_OK)
        abort(); /* no memory is called damage */
    return status;
}
