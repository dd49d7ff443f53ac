/* Memory: checked sizes, arenas, and what this process may use. */
#define _DEFAULT_SOURCE /* madvise, MAP_ANONYMOUS */

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

/* Under the address sanitizer, red zones separate the arrays of an arena. */
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
enum { RED_ZONE = MOE_ALIGN };
#define forbid(at, bytes) ASAN_POISON_MEMORY_REGION(at, bytes)
#define allow(at, bytes) ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#else
enum { RED_ZONE = 0 };
#define forbid(at, bytes) ((void)(at))
#define allow(at, bytes) ((void)(at))
#endif

enum { HUGE_PAGE = 2 << 20 }; /* of x86-64, and of ARM with pages of 4 KiB */

void *moe_alloc(uint64_t n, uint64_t item_bytes, struct moe_err *err)
{
    uint64_t bytes;
    if (!moe_mul_u64(n, item_bytes, &bytes) || bytes > SIZE_MAX - MOE_ALIGN) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: %" PRIu64 " items of %" PRIu64 " bytes", n,
                 item_bytes);
        return NULL;
    }
    bytes = moe_round_up(bytes ? bytes : 1, MOE_ALIGN);
    void *block = aligned_alloc(MOE_ALIGN, bytes);
    if (!block) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: %" PRIu64 " bytes", bytes);
        return NULL;
    }
    memset(block, 0, bytes);
    return block;
}

/* Maps memory of the system at a multiple of HUGE_PAGE if a huge page fits in: older kernels map it
 * anywhere, and its ends then stay small pages. */
static uint8_t *map_pages(uint64_t bytes)
{
    uint64_t spare = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    if (bytes > SIZE_MAX - spare)
        return MAP_FAILED;
    uint8_t *at =
        mmap(NULL, bytes + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || spare == 0)
        return at;
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), used = moe_round_up(bytes, page);
    uint64_t before = -(uintptr_t)at % HUGE_PAGE, after = bytes + spare - before - used;
    if (before)
        munmap(at, before);
    if (after >= page)
        munmap(at + before + used, after);
    return at + before;
}

void *moe_pages_alloc(uint64_t bytes, struct moe_err *err)
{
    if (bytes == 0)
        bytes = 1;
    void *pages = map_pages(bytes);
    if (pages == MAP_FAILED) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: %" PRIu64 " bytes", bytes);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    madvise(pages, bytes, MADV_HUGEPAGE); /* only a hint: failure costs speed, not correctness */
#endif
    return pages;
}

void moe_pages_free(void *pages, uint64_t bytes)
{
    if (!pages)
        return;
    allow(pages, bytes);
    munmap(pages, bytes ? bytes : 1);
}

/* Advises on the whole pages in a range. */
static void advise(void *at, uint64_t bytes, int advice)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = moe_round_up((uintptr_t)at, page),
              end = ((uintptr_t)at + bytes) & ~(page - 1);
    if (begin < end)
        madvise((uint8_t *)at + (begin - (uintptr_t)at), end - begin, advice);
}

void moe_pages_drop(void *at, uint64_t bytes)
{
#ifdef MADV_NOHUGEPAGE
    advise(at, bytes, MADV_NOHUGEPAGE);
#endif
    advise(at, bytes, MADV_DONTNEED);
}

void moe_pages_take_back(void *at, uint64_t bytes)
{
#ifdef MADV_HUGEPAGE
    advise(at, bytes, MADV_HUGEPAGE);
#endif
}

char *moe_strndup(const char *text, uint64_t n, struct moe_err *err)
{
    char *copy = n < SIZE_MAX ? malloc(n + 1) : NULL;
    if (!copy) {
        moe_fail(err, MOE_ERR_MEMORY, "out of memory: %" PRIu64 " bytes", n);
        return NULL;
    }
    if (n)
        memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

void *moe_arena_take(struct moe_arena *arena, uint64_t n, uint64_t item_bytes)
{
    uint64_t bytes, end, zone = arena->packed ? 0 : RED_ZONE;
    if (arena->overflowed || !moe_mul_u64(n, item_bytes, &bytes) ||
        bytes > UINT64_MAX - MOE_ALIGN - zone ||
        !moe_add_u64(arena->used, moe_round_up(bytes, MOE_ALIGN) + zone, &end) ||
        (arena->base && end > arena->size)) {
        arena->overflowed = true;
        return NULL;
    }
    uint8_t *block = arena->base ? arena->base + arena->used : NULL;
    if (block) {
        allow(block, end - arena->used);
        if (!arena->packed)
            forbid(block + bytes, end - arena->used - bytes);
    }
    arena->used = end;
    arena->n_taken++;
    return block;
}

/* The number after `key` in a /proc file of "Key: N kB" lines, in bytes; 0 when missing. */
static uint64_t proc_kib(const char *path, const char *key)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return 0;
    char line[256];
    uint64_t kib = 0;
    size_t n = strlen(key);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, ": %" SCNu64, &kib) == 1)
            break;
    fclose(file);
    return kib * 1024;
}

uint64_t moe_peak_rss_bytes(void)
{
    /* getrusage's ru_maxrss survives exec and would report a parent's peak: read our own. */
    return proc_kib("/proc/self/status", "VmHWM");
}

void moe_heap_trim(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

uint64_t moe_rss_bytes(void)
{
    return proc_kib("/proc/self/status", "VmRSS");
}
