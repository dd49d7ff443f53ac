/* What programs with hours of work share: shards, partial files, what was left out. */
#include "offline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "profile/origins.h"

/* A number that Slurm puts into the environment of an array's tasks. */
static bool task_number(const char *name, uint64_t *out)
{
    const char *text = getenv(name);
    return text && moe_parse_u64(text, out) && *out <= UINT32_MAX;
}

static bool task_shard(struct offline_shard *shard, struct moe_err *why)
{
    uint64_t id, count, first, last;
    if (!task_number("SLURM_ARRAY_TASK_ID", &id) ||
        !task_number("SLURM_ARRAY_TASK_COUNT", &count) ||
        !task_number("SLURM_ARRAY_TASK_MIN", &first) ||
        !task_number("SLURM_ARRAY_TASK_MAX", &last)) {
        moe_fail(why, MOE_ERR_USAGE,
                 "without a value is for a task of a Slurm job array: say which shard, as in 2/8");
        return false;
    }
    if (id < first || id > last || last - first + 1 != count || count > MOE_MAX_SHARDS) {
        moe_fail(why, MOE_ERR_USAGE,
                 "without a value is for a job array without gaps: say which shard, as in 2/8");
        return false;
    }
    *shard = (struct offline_shard){(uint32_t)(id - first), (uint32_t)count};
    return true;
}

bool offline_parse_shard(const char *text, void *to, struct moe_err *why)
{
    struct offline_shard *shard = to;
    unsigned index = 0, n = 0;
    char rest;
    if (!text)
        return task_shard(shard, why);
    if (sscanf(text, "%u/%u%c", &index, &n, &rest) == 2 && index >= 1 && index <= n &&
        n <= MOE_MAX_SHARDS) {
        *shard = (struct offline_shard){index - 1, n};
        return true;
    }
    moe_fail(why, MOE_ERR_USAGE, "is not a shard like 2/8");
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

void offline_remove_partial(const char *partial)
{
    unlink(partial);
}

void offline_note_left_out(const struct moe_left_out *l, const char *but)
{
    if (l->tokens)
        cli_note("%" PRIu64 " of %" PRIu64
                 " tokens (%.1f%%) of the texts were left out, in %" PRIu64 " document%s: %s",
                 l->tokens, l->of, 100 * (double)l->tokens / (double)l->of, l->documents,
                 l->documents == 1 ? "" : "s", but);
}
