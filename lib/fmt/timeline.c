/* Records a run's timeline and writes it as a Chrome trace. */
#include "fmt/timeline.h"

#include <stddef.h>

#include "base/clock.h"
#include "base/file.h"
#include "fmt/emit.h"

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

/* Begins an event. */
static void begin_event(struct moe_emit *e, struct moe_buf *out, const char *phase)
{
    moe_buf_text(out, ",\n");
    moe_emit_begin_json(e, out, MOE_EMIT_COMPACT);
    moe_emit_text(e, "ph", phase);
}

void moe_timeline_span(struct moe_timeline *t, enum moe_track track, const char *name, double begin,
                       double end)
{
    struct moe_emit e;
    if (!t)
        return;
    begin_event(&e, &t->events, "X");
    moe_emit_u64(&e, "pid", 1);
    moe_emit_u64(&e, "tid", track);
    moe_emit_text(&e, "name", name);
    moe_emit_fixed(&e, "ts", 3, (begin - t->origin) * 1e6);
    moe_emit_fixed(&e, "dur", 3, (end - begin) * 1e6);
    moe_emit_end_item(&e, NULL);
}

void moe_timeline_overlapping(struct moe_timeline *t, enum moe_track track, const char *name,
                              unsigned long long id, double begin, double end)
{
    struct moe_emit e;
    for (int i = 0; i < 2 && t; i++) {
        begin_event(&e, &t->events, i ? "e" : "b");
        moe_emit_text(&e, "cat", tracks[track]);
        moe_emit_u64(&e, "pid", 1);
        moe_emit_u64(&e, "tid", track);
        moe_emit_u64(&e, "id", id);
        moe_emit_text(&e, "name", name);
        moe_emit_fixed(&e, "ts", 3, ((i ? end : begin) - t->origin) * 1e6);
        moe_emit_end_item(&e, NULL);
    }
}

/* Names the process (track 0) or a track. */
static void put_name(struct moe_buf *out, int track, const char *name)
{
    struct moe_emit e;
    moe_buf_text(out, track ? ",\n" : "[");
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "ph", "M");
    moe_emit_u64(&e, "pid", 1);
    if (track)
        moe_emit_u64(&e, "tid", (uint64_t)track);
    moe_emit_text(&e, "name", track ? "thread_name" : "process_name");
    moe_emit_open_map(&e, "args");
    moe_emit_text(&e, "name", name);
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}

int moe_timeline_save(const struct moe_timeline *t, const char *path, struct moe_err *err)
{
    struct moe_buf out = {0};
    put_name(&out, 0, "moe-run");
    for (int i = MOE_TRACK_COMPUTE; i <= MOE_TRACK_LOAD; i++)
        put_name(&out, i, tracks[i]);
    moe_buf_append(&out, t->events.data, t->events.size);
    moe_buf_text(&out, "]\n");
    int status = out.failed || t->events.failed
                     ? moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory: the trace", path)
                     : moe_file_write_all(path, out.data, out.size, err);
    moe_buf_release(&out);
    return status;
}
