/*
 * How much memory is available: by the system, and by every control group of this process.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

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

/* The least that the group at path `group` below `root`, or any group above it, leaves. */
static uint64_t groups_leave(const char *root, const char *group, const char *limit_name,
                             const char *usage_name, const char *cache_key)
{
    char dir[PATH_BYTES];
    uint64_t least = UINT64_MAX;
    int n = snprintf(dir, sizeof dir, "%s%s", root, group);
    if (n < 0 || (size_t)n >= sizeof dir)
        return least;
    for (size_t end = strlen(dir); end >= strlen(root);) {
        uint64_t limit, usage;
        if (read_number(dir, limit_name, &limit) && limit < (uint64_t)1 << 60 &&
            read_number(dir, usage_name, &usage)) {
            uint64_t cache = reclaimable(dir, cache_key);
            usage = usage > cache ? usage - cache : 0;
            uint64_t left = limit > usage ? limit - usage : 0;
            least = left < least ? left : least;
        }
        char *slash = strrchr(dir, '/');
        if (!slash || (size_t)(slash - dir) < strlen(root))
            break;
        *slash = '\0';
        end = (size_t)(slash - dir);
    }
    return least;
}

/* What /proc/self/cgroup lists: "0::/path" for v2, "N:memory:/path" for v1. */
static uint64_t all_groups_leave(void)
{
    uint64_t least = UINT64_MAX;
    char line[PATH_BYTES];
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *path++ = '\0';
        path = strcmp(path, "/") == 0 ? path + 1 : path;
        uint64_t left = UINT64_MAX;
        if (controllers[1] == '\0')
            left = groups_leave("/sys/fs/cgroup", path, "memory.max", "memory.current",
                                "inactive_file");
        else if (strstr(controllers + 1, "memory"))
            left = groups_leave("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                                "memory.usage_in_bytes", "total_inactive_file");
        least = left < least ? left : least;
    }
    if (file)
        fclose(file);
    return least;
}

static uint64_t system_leaves(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    uint64_t kib;
    uint64_t bytes = UINT64_MAX;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            bytes = kib * 1024;
    if (file)
        fclose(file);
    return bytes;
}

uint64_t moe_available_bytes(void)
{
    uint64_t system = system_leaves(), groups = all_groups_leave();
    return groups < system ? groups : system;
}
