/* Reads the memory and processors left to this process from /proc/meminfo and its control groups.
 */
#include "base/limits.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

static FILE *open_in(const char *dir, const char *name)
{
    char path[PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return fopen(path, "r");
}

/* Reads up to two numbers from a file and returns how many it read: 0 for "max", for -1 and for a
 * missing file. */
static int read_numbers(const char *dir, const char *name, uint64_t out[2])
{
    char text[128];
    FILE *file = open_in(dir, name);
    int n = 0;
    if (!file)
        return 0;
    if (fgets(text, sizeof text, file) && text[0] != '-')
        n = sscanf(text, "%" SCNu64 " %" SCNu64, &out[0], &out[1]);
    fclose(file);
    return n < 0 ? 0 : n;
}

/* Finds the number after `key` and a blank or colon in a file of such lines; false if absent. */
static bool find_number(FILE *file, const char *key, uint64_t *out)
{
    char line[256];
    const size_t n = strlen(key);
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, key, n) == 0 && (line[n] == ' ' || line[n] == ':') &&
            sscanf(line + n + 1, "%" SCNu64, out) == 1)
            return true;
    return false;
}

/* ---- One control group ---- */

/* Memory left under a group's limit. Memory that the kernel reclaims when it runs short (the lines
 * `reclaimable` of memory.stat) does not count as used. */
static uint64_t memory_left(const char *dir, uint64_t limit, const char *usage_name,
                            const char *const *reclaimable)
{
    uint64_t usage[2], bytes;
    if (limit >= (uint64_t)1 << 60) /* version 1 writes "none" as a huge number */
        return UINT64_MAX;
    if (read_numbers(dir, usage_name, usage) == 0)
        return limit;
    for (; *reclaimable; reclaimable++) {
        FILE *file = open_in(dir, "memory.stat");
        if (find_number(file, *reclaimable, &bytes))
            usage[0] -= bytes < usage[0] ? bytes : usage[0];
        if (file)
            fclose(file);
    }
    return limit > usage[0] ? limit - usage[0] : 0;
}

/* Counts memory.high as a limit too: above it the kernel throttles a group nearly to a stop. */
static uint64_t memory_v2(const char *dir)
{
    static const char *const reclaimable[] = {"inactive_file", "active_file", "slab_reclaimable",
                                              NULL};
    uint64_t max[2], high[2], limit = UINT64_MAX;
    if (read_numbers(dir, "memory.max", max))
        limit = max[0];
    if (read_numbers(dir, "memory.high", high) && high[0] < limit)
        limit = high[0];
    return memory_left(dir, limit, "memory.current", reclaimable);
}

static uint64_t memory_v1(const char *dir)
{
    static const char *const reclaimable[] = {"total_inactive_file", "total_active_file", NULL};
    uint64_t limit[2];
    return read_numbers(dir, "memory.limit_in_bytes", limit)
               ? memory_left(dir, limit[0], "memory.usage_in_bytes", reclaimable)
               : UINT64_MAX;
}

static uint64_t cores_of(uint64_t quota, uint64_t period)
{
    return period == 0 ? UINT64_MAX : quota <= period ? 1 : (quota - 1) / period + 1;
}

static uint64_t cores_v2(const char *dir)
{
    uint64_t max[2]; /* quota and period, in microseconds */
    return read_numbers(dir, "cpu.max", max) == 2 ? cores_of(max[0], max[1]) : UINT64_MAX;
}

static uint64_t cores_v1(const char *dir)
{
    uint64_t quota[2], period[2];
    return read_numbers(dir, "cpu.cfs_quota_us", quota) &&
                   read_numbers(dir, "cpu.cfs_period_us", period)
               ? cores_of(quota[0], period[0])
               : UINT64_MAX;
}

/* ---- All groups of this process ---- */

/* Where a version of control groups is mounted, and the function that reads a group's remainder. */
struct hierarchy {
    const char *mount, *controller; /* NULL: version 2, also beside version 1 */
    uint64_t (*leaves)(const char *dir);
};

static const struct hierarchy of_memory[] = {{"/sys/fs/cgroup", NULL, memory_v2},
                                             {"/sys/fs/cgroup/unified", NULL, memory_v2},
                                             {"/sys/fs/cgroup/memory", "memory", memory_v1},
                                             {0}};
static const struct hierarchy of_cores[] = {{"/sys/fs/cgroup", NULL, cores_v2},
                                            {"/sys/fs/cgroup/unified", NULL, cores_v2},
                                            {"/sys/fs/cgroup/cpu", "cpu", cores_v1},
                                            {"/sys/fs/cgroup/cpu,cpuacct", "cpu", cores_v1},
                                            {0}};

/* The smallest remainder of the group at path `group` and the groups above it. In a container the
 * mount may show only part of that path; the part that exists counts. */
static uint64_t groups_leave(const char *root, const struct hierarchy *h, const char *group)
{
    char dir[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    size_t top = strlen(root) + strlen(h->mount);
    bool outside = strstr(group, "/../") || strncmp(group, "/..", 3) == 0;
    int n = snprintf(dir, sizeof dir, "%s%s%s", root, h->mount,
                     outside || strcmp(group, "/") == 0 ? "" : group);
    if (n < 0 || (size_t)n >= sizeof dir)
        return least;
    for (;;) {
        uint64_t left = h->leaves(dir);
        least = left < least ? left : least;
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < top)
            return least;
        *slash = '\0';
    }
}

static bool lists_controller(const char *controllers, const char *name)
{
    for (const char *at = controllers; *at; at += *at == ',') {
        size_t n = strcspn(at, ",");
        if (n == strlen(name) && strncmp(at, name, n) == 0)
            return true;
        at += n;
    }
    return false;
}

/* The smallest remainder of all groups in /proc/self/cgroup, whose lines are "0::/path" for v2 and
 * "N:memory:/path" for v1. */
static uint64_t all_groups_leave(const char *root, const struct hierarchy *hierarchies)
{
    uint64_t least = UINT64_MAX;
    char line[PATH_BYTES];
    FILE *file = open_in(root, "proc/self/cgroup");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path || path[1] != '/')
            continue;
        *path++ = '\0';
        controllers++;
        for (const struct hierarchy *h = hierarchies; h->mount; h++) {
            bool is_its =
                h->controller ? lists_controller(controllers, h->controller) : !*controllers;
            uint64_t left = is_its ? groups_leave(root, h, path) : UINT64_MAX;
            least = left < least ? left : least;
        }
    }
    if (file)
        fclose(file);
    return least;
}

uint64_t moe_available_bytes_in(const char *root)
{
    uint64_t kib, system = UINT64_MAX, groups = all_groups_leave(root, of_memory);
    FILE *file = open_in(root, "proc/meminfo");
    if (find_number(file, "MemAvailable", &kib) && kib < UINT64_MAX / 1024)
        system = kib * 1024;
    if (file)
        fclose(file);
    return groups < system ? groups : system;
}

uint32_t moe_quota_cores_in(const char *root)
{
    uint64_t cores = all_groups_leave(root, of_cores);
    return cores < UINT32_MAX ? (uint32_t)cores : UINT32_MAX;
}

uint64_t moe_available_bytes(void)
{
    return moe_available_bytes_in("");
}

uint32_t moe_quota_cores(void)
{
    return moe_quota_cores_in("");
}
