/* A run's events (moe-run --trace-events) as strips over time. However many there are, they are
 * summed up in a fixed number of moments. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fmt/json.h"
#include "fmt/timeline.h"
#include "html/pages.h"
#include "html/pictures.h"
#include "show/draw.h"

enum { MOMENTS = 240, MAX_BYTES = 64 << 20, MAX_MEMORY = 512 << 20, TRACKS = MOE_TRACK_LOAD };

struct tally {
    double begin, end; /* microseconds */
    /* How many events are under way, a change at a time: within the moment, and for all after. */
    double within[TRACKS][MOMENTS], after[TRACKS][MOMENTS + 1];
};

static double number_of(const json_t *event, const char *key)
{
    const json_t *x = json_object_get(event, key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* What an event says: 'X', 'b', 'e'; 0: nothing that is drawn. */
static char phase_of(const json_t *event, double *at, double *seconds, int *track)
{
    const char *phase = json_string_value(json_object_get(event, "ph"));
    double tid = number_of(event, "tid");
    *at = number_of(event, "ts");
    *seconds = number_of(event, "dur");
    if (!phase || strlen(phase) != 1 || !strchr("Xbe", phase[0]) || !(tid >= 1 && tid <= TRACKS) ||
        !isfinite(*at) || (phase[0] == 'X' && !(*seconds >= 0)))
        return 0;
    *track = (int)tid - 1;
    return phase[0];
}

/* One more (or fewer) from then to the end. */
static void change(struct tally *t, int track, double at, double by)
{
    double moment = (at - t->begin) / (t->end - t->begin) * MOMENTS;
    if (!(moment < MOMENTS))
        return;
    int i = moment > 0 ? (int)moment : 0;
    t->within[track][i] += by * (i + 1 - fmax(0, moment));
    t->after[track][i + 1] += by;
}

static void put_track(struct moe_page *p, struct tally *t, int track)
{
    static const char *const captions[TRACKS] = {"Computation: share of the time",
                                                 "Waiting for experts: share of the time",
                                                 "Loads in flight"};
    double under_way = 0, most = 1, values[MOMENTS];
    for (int i = 0; i < MOMENTS; i++) {
        under_way += t->after[track][i];
        values[i] = fmax(0, under_way + t->within[track][i]);
        most = track + 1 == MOE_TRACK_LOAD && values[i] > most ? values[i] : most;
    }
    char caption[120], room[32];
    snprintf(caption, sizeof caption, "%s; full height: %s", captions[track],
             track + 1 == MOE_TRACK_LOAD ? moe_format_speed(most, room) : "all of it");
    moe_page_strip(p, values, MOMENTS, most, caption);
}

int page_timeline(struct moe_page *p, const char *path, struct moe_err *err)
{
    json_t *events = NULL;
    struct tally t = {.begin = INFINITY, .end = -INFINITY};
    double at, length;
    int track;
    int status = moe_json_read(&events, path, MAX_BYTES, MAX_MEMORY, err);
    if (status == MOE_OK && !json_is_array(events))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: not a list of events, as moe-run --trace-events writes", path);
    for (size_t i = 0; status == MOE_OK && i < json_array_size(events); i++)
        if (phase_of(json_array_get(events, i), &at, &length, &track)) {
            t.begin = fmin(t.begin, at);
            t.end = fmax(t.end, isnan(length) ? at : at + length);
        }
    if (status == MOE_OK && !(isfinite(t.end - t.begin) && t.end > t.begin))
        status = moe_fail(err, MOE_ERR_FORMAT,
                          "%s: no events of a run, as moe-run --trace-events writes", path);
    for (size_t i = 0; status == MOE_OK && i < json_array_size(events); i++) {
        char phase = phase_of(json_array_get(events, i), &at, &length, &track);
        if (phase)
            change(&t, track, at, phase == 'e' ? -1 : 1);
        if (phase == 'X')
            change(&t, track, at + length, -1);
    }
    if (status == MOE_OK) {
        char room[32];
        moe_page_open_section(p, "A run over time");
        moe_page_say(p, "%s from the left to the right.",
                     moe_format_seconds(1e-6 * (t.end - t.begin), room));
        for (int i = 0; i < TRACKS; i++)
            put_track(p, &t, i);
        moe_page_close_section(p);
    }
    moe_json_free(events);
    return status;
}
