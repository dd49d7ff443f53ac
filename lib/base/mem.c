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

/* Under the address sanitizer, arrays of an arena lie apart, and what lies between them is not to
 * be touched. */
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

/* Memory of the system, at a multiple of HUGE_PAGE where a huge page fits in: older kernels put it
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
    madvise(pages, bytes, MADV_HUGEPAGE); /* a wish: failure costs speed, not correctness */
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
    return block;
}

/* The number after `key` in a /proc file of "Key: N kB" lines, in bytes; 0 when it is not there.
 */
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

uint64_t moe_heap_bytes(void)
{
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
    const struct mallinfo2 info = mallinfo2();
    return (uint64_t)info.uordblks + info.hblkhd;
#else
    return 0;
#endif
}

uint64_t moe_rss_bytes(void)
{
    return proc_kib("/proc/self/status", "VmRSS");
}

/*
 * How much memory is available: by the system, and by every control group of this process.
 */

enum { PATH_BYTES = 4096 };

/* A file that holds one number ("max" or -1: no limit); false when it is not there. */
static bool read_number(const char *dir, const char *name, uint64_t *out)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool found = fscanf(file, "%" SCNu64, out) == 1;
    fclose(file);
    return found;
}

/* Page cache counts as used memory of a group, but is reclaimed when memory is needed. */
static uint64_t reclaimable(const char *dir, const char *key)
{
    char path[PATH_BYTES + 64], line[256];
    snprintf(path, sizeof path, "%s/memory.stat", dir);
    FILE *file = fopen(path, "r");
    uint64_t value = 0;
    size_t n = strlen(key);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0 && sscanf(line + n, " %" SCNu64, &value) == 1)
            break;
    if (file)
        fclose(file);
    return value;
}

/* The files of a version of control groups. */
struct version {
    const char *mount, *limits[2], *usage, *cache_key;
};

/* Version 2 also beside version 1. Above memory.high a group is slowed down until it hardly moves.
 */
static const struct version versions[] = {
    {"/sys/fs/cgroup", {"memory.max", "memory.high"}, "memory.current", "inactive_file"},
    {"/sys/fs/cgroup/unified", {"memory.max", "memory.high"}, "memory.current", "inactive_file"},
    {"/sys/fs/cgroup/memory",
     {"memory.limit_in_bytes", NULL},
     "memory.usage_in_bytes",
     "total_inactive_file"},
};
enum { FIRST_V1 = 2, N_VERSIONS = 3 };

static uint64_t group_leaves(const struct version *v, const char *dir)
{
    uint64_t least = UINT64_MAX, limit, usage;
    for (int i = 0; i < 2 && v->limits[i]; i++)
        if (read_number(dir, v->limits[i], &limit) && limit < least)
            least = limit;
    if (least >= (uint64_t)1 << 60) /* version 1 writes "none" as a huge number */
        return UINT64_MAX;
    if (!read_number(dir, v->usage, &usage))
        return least;
    uint64_t cache = reclaimable(dir, v->cache_key);
    usage = usage > cache ? usage - cache : 0;
    return least > usage ? least - usage : 0;
}

/* The least that the group at path `group`, or any group above it, leaves. In a container the mount
 * may show less of the tree than the path says: what is there counts. */
static uint64_t groups_leave(const char *root, const struct version *v, const char *group)
{
    char dir[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    size_t top = strlen(root) + strlen(v->mount);
    bool outside = strstr(group, "/../") || strncmp(group, "/..", 3) == 0;
    int n = snprintf(dir, sizeof dir, "%s%s%s", root, v->mount,
                     outside || strcmp(group, "/") == 0 ? "" : group);
    if (n < 0 || (size_t)n >= sizeof dir)
        return least;
    for (;;) {
        uint64_t left = group_leaves(v, dir);
        least = left < least ? left : least;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < top)
            return least;
        *slash = '\0';
    }
}

static bool has_memory(const char *controllers)
{
    for (const char *at = controllers; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == strlen("memory") && strncmp(at, "memory", n) == 0)
            return true;
        at += n;
    }
    return false;
}

/* What /proc/self/cgroup lists: "0::/path" for v2, "N:memory:/path" for v1. */
static uint64_t all_groups_leave(const char *root)
{
    uint64_t least = UINT64_MAX;
    char line[PATH_BYTES], name[PATH_BYTES];
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path || path[1] != '/')
            continue;
        *path++ = '\0';
        bool v2 = controllers[1] == '\0';
        for (int i = 0; i < N_VERSIONS; i++) {
            bool is_its = i < FIRST_V1 ? v2 : has_memory(controllers + 1);
            uint64_t left = is_its ? groups_leave(root, &versions[i], path) : UINT64_MAX;
            least = left < least ? left : least;
        }
    }
    if (file)
        fclose(file);
    return least;
}

static uint64_t system_leaves(const char *root)
{
    char line[256], name[PATH_BYTES];
    snprintf(name, sizeof name, "%s/proc/meminfo", root);
    FILE *file = fopen(name, "r");
    uint64_t kib;
    uint64_t bytes = UINT64_MAX;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1 && kib < UINT64_MAX / 1024)
            bytes = kib * 1024;
    if (file)
        fclose(file);
    return bytes;
}

uint64_t moe_available_bytes_in(const char *root)
{
    uint64_t system = system_leaves(root), groups = all_groups_leave(root);
    return groups < system ? groups : system;
}

uint64_t moe_available_bytes(void)
{
    return moe_available_bytes_in("");
}
