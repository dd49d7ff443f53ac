/*
 * Timeline: what a run did when, as a Chrome trace (chrome://tracing, Perfetto): JSON events in
 * microseconds. Recording allocates; without a timeline (NULL) every call does nothing.
 */
#ifndef MOE_FMT_TIMELINE_H
#define MOE_FMT_TIMELINE_H

#include "base/buf.h"
#include "base/err.h"

/* Lines of the picture. */
enum moe_track { MOE_TRACK_COMPUTE = 1, MOE_TRACK_STALL, MOE_TRACK_LOAD };

struct moe_timeline {
    struct moe_buf events;
    double origin; /* moe_seconds() when it began */
};

void moe_timeline_init(struct moe_timeline *t);
void moe_timeline_release(struct moe_timeline *t);

/* An event from `begin` to `end` (moe_seconds()). */
void moe_timeline_span(struct moe_timeline *t, enum moe_track track, const char *name, double begin,
                       double end);
/* The same for events that overlap others of their track; `id` distinguishes them. */
void moe_timeline_overlapping(struct moe_timeline *t, enum moe_track track, const char *name,
                              unsigned long long id, double begin, double end);

/* Writes the whole trace atomically. */
int moe_timeline_save(const struct moe_timeline *t, const char *path, struct moe_err *err);

#endif
