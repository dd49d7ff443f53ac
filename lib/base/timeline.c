#include "base/timeline.h"

#include "base/clock.h"
#include "base/file.h"

static const char *const tracks[] = {[MOE_TRACK_COMPUTE] = "computation",
                                     [MOE_TRACK_STALL] = "waiting for experts",
                                     [MOE_TRACK_LOAD] = "loads"};

void moe_timeline_init(struct moe_timeline *t)
{
    *t = (struct moe_timeline){.origin = moe_seconds()};
}

void moe_timeline_release(struct moe_timeline *t)
{
    moe_buf_release(&t->events);
}

void moe_timeline_span(struct moe_timeline *t, enum moe_track track, const char *name, double begin,
                       double end)
{
    if (t)
        moe_buf_printf(&t->events,
                       ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,"
                       "\"dur\":%.3f}",
                       track, name, (begin - t->origin) * 1e6, (end - begin) * 1e6);
}

void moe_timeline_overlapping(struct moe_timeline *t, enum moe_track track, const char *name,
                              unsigned long long id, double begin, double end)
{
    static const char format[] =
        ",\n{\"ph\":\"%s\",\"cat\":\"%s\",\"pid\":1,\"tid\":%d,\"id\":%llu,"
        "\"name\":\"%s\",\"ts\":%.3f}";
    if (!t)
        return;
    moe_buf_printf(&t->events, format, "b", tracks[track], track, id, name,
                   (begin - t->origin) * 1e6);
    moe_buf_printf(&t->events, format, "e", tracks[track], track, id, name,
                   (end - t->origin) * 1e6);
}

int moe_timeline_save(const struct moe_timeline *t, const char *path, struct moe_err *err)
{
    struct moe_buf out = {0};
    moe_buf_text(&out, "[{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":"
                       "\"moe-run\"}}");
    for (int i = MOE_TRACK_COMPUTE; i <= MOE_TRACK_LOAD; i++)
        moe_buf_printf(&out,
                       ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":%d,\"name\":\"thread_name\",\"args\":"
                       "{\"name\":\"%s\"}}",
                       i, tracks[i]);
    moe_buf_append(&out, t->events.data, t->events.size);
    moe_buf_text(&out, "]\n");
    int status = out.failed || t->events.failed
                     ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the trace", path)
                     : moe_file_write_all(path, out.data, out.size, err);
    moe_buf_release(&out);
    return status;
}
