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
