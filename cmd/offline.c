#include "offline.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/mem.h"

enum { MAX_SHARDS = 1 << 20 };

bool offline_parse_shard(const char *text, void *to, char why[128])
{
    struct offline_shard *shard = to;
    unsigned index = 0, n = 0;
    char rest;
    if (sscanf(text, "%u/%u%c", &index, &n, &rest) == 2 && index >= 1 && index <= n &&
        n <= MAX_SHARDS) {
        *shard = (struct offline_shard){index - 1, n};
        return true;
    }
    snprintf(why, 128, "is not a shard like 2/8");
    return false;
}

char *offline_partial_name(const char *out, struct moe_err *err)
{
    struct moe_buf name = {0};
    moe_buf_printf(&name, "%s.part", out);
    char *copy = name.failed ? NULL : moe_strndup((const char *)name.data, name.size, err);
    if (name.failed)
        moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    moe_buf_release(&name);
    return copy;
}
