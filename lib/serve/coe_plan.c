/* Reads and writes plans for a collection, and slides the window of experts. */
#include "serve/coe_plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "serve/coe_dispatch.h"

/* The line of least squares through the last n points, at x. One that falls is taken as level: a
 * trend that is expected to go on falling would never be missed. */
static double trend_at(const struct moe_coe_window *w, uint32_t n, double x)
{
    const uint32_t *experts = &w->experts[w->n_points - n];
    const double *throughput = &w->throughput[w->n_points - n];
    double mean_x = 0, mean_y = 0, xx = 0, xy = 0;
    for (uint32_t i = 0; i < n; i++) {
        mean_x += experts[i] / (double)n;
        mean_y += throughput[i] / n;
    }
    for (uint32_t i = 0; i < n; i++) {
        xx += (experts[i] - mean_x) * (experts[i] - mean_x);
        xy += (experts[i] - mean_x) * (throughput[i] - mean_y);
    }
    return mean_y + (xy > 0 ? xy / xx : 0) * (x - mean_x);
}

int moe_coe_slide(const struct moe_coe_window_options *options,
                  int (*measure)(void *ctx, uint32_t n_experts, double *throughput,
                                 struct moe_err *err),
                  void *ctx, struct moe_coe_window *out, struct moe_err *err)
{
    uint32_t first = options->first ? options->first : 15;
    uint32_t fitted = options->fitted ? options->fitted : 2;
    double margin = options->margin > 0 ? options->margin : 0.05;
    double size = first, end = 0;
    uint64_t random = options->seed;
    *out = (struct moe_coe_window){0};
    if (first > 99)
        return moe_fail(err, MOE_ERR_USAGE, "a first window of %u experts does not decay (1 to 99)",
                        first);
    for (bool rises = true;
         rises && out->upper < options->most && out->n_points < MOE_COE_MAX_POINTS;) {
        uint32_t n = out->n_points;
        end += size > 1 ? size : 1;
        size *= 1 - first / 100.0;
        out->lower = out->upper;
        out->upper = end < options->most ? (uint32_t)ceil(end) : options->most;
        out->experts[n] = out->upper;
        int status = measure(ctx, out->upper, &out->throughput[n], err);
        if (status != MOE_OK)
            return status;
        if (n >= fitted) {
            out->expected = trend_at(out, fitted, out->upper);
            rises = out->expected - out->throughput[n] <= margin * fabs(out->expected);
        }
        out->n_points++;
    }
    out->chosen = out->lower + 1 + (uint32_t)(moe_random_next(&random) % (out->upper - out->lower));
    return MOE_OK;
}

/* ---- The plan ---- */

enum { MAX_FILE_BYTES = 1 << 20, MAX_REQUESTS = 1 << 20 };
#define MAX_BYTES 1e15

/* ---- The file ---- */

static int check_device(struct moe_record_reader *r, struct moe_yaml_node *map, const char *device)
{
    return strcmp(device, "cpu") == 0 || strcmp(device, "cuda") == 0
               ? MOE_OK
               : moe_yaml_fail(r->doc, moe_yaml_get(map, "device"), r->err,
                               "'device' is cpu or cuda, not '%s'", device);
}

static int check_executors(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_plan *p = r->whole;
    const struct moe_coe_plan_executors *e = record;
    for (uint32_t i = 0; i < p->n_executors; i++)
        if (strcmp(p->executors[i].device, e->device) == 0)
            return moe_yaml_fail(r->doc, moe_yaml_get(map, "device"), r->err, "'%s' occurs twice",
                                 e->device);
    return check_device(r, map, e->device);
}

static int check_batch(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_plan_batch *b = record;
    return check_device(r, map, b->device);
}

static int check_window(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_coe_plan_window *w = record;
    MOE_TRY(check_device(r, map, w->device));
    if (w->lower >= w->chosen || w->chosen > w->upper)
        return moe_yaml_fail(r->doc, map, r->err,
                             "'chosen' must be above 'lower' and at most 'upper'");
    return MOE_OK;
}

static int check_plan(struct moe_record_reader *r, struct moe_yaml_node *root, void *record)
{
    const struct moe_coe_plan *p = record;
    enum moe_coe_evict evict;
    if (!moe_coe_schedule_find(p->schedule))
        return moe_yaml_fail(r->doc, moe_yaml_get(root, "schedule"), r->err,
                             "there is no schedule '%s'", p->schedule);
    if (!moe_coe_evict_find(p->evict, &evict))
        return moe_yaml_fail(r->doc, moe_yaml_get(root, "evict"), r->err,
                             "there is no eviction '%s'", p->evict);
    return p->n_executors ? MOE_OK : moe_yaml_fail(r->doc, root, r->err, "there are no executors");
}

#define TEXT(type, key, field) MOE_FIELD(MOE_IF_SET, struct type, key, field)
#define NAME(type, key, field) MOE_FIELD(MOE_ALWAYS, struct type, key, field)
#define BYTES(presence, type, key, field, min)                                                     \
    MOE_FIELD_IN(presence, struct type, key, field, min, MAX_BYTES)
#define COUNT(presence, type, key, field, min)                                                     \
    MOE_FIELD_IN(presence, struct type, key, field, min, MAX_REQUESTS)

static const struct moe_member executors_members[] = {
    NAME(moe_coe_plan_executors, "device", device),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_plan_executors, "number", number, 1,
                 MOE_COE_MAX_EXECUTORS),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_coe_plan_executors, "threads", threads, 1,
                 MOE_COE_MAX_THREADS),
    BYTES(MOE_ALWAYS, moe_coe_plan_executors, "expert_bytes", expert_bytes, 1),
    BYTES(MOE_IF_SET, moe_coe_plan_executors, "batch_bytes", batch_bytes, 0),
    COUNT(MOE_IF_SET, moe_coe_plan_executors, "experts", experts, 0),
};
static const struct moe_member batch_members[] = {
    NAME(moe_coe_plan_batch, "architecture", architecture),
    NAME(moe_coe_plan_batch, "device", device),
    COUNT(MOE_ALWAYS, moe_coe_plan_batch, "requests", requests, 1),
};
static const struct moe_member window_members[] = {
    NAME(moe_coe_plan_window, "device", device),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_plan_window, "first", first, 1, 99),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_plan_window, "fitted", fitted, 2, MOE_COE_MAX_POINTS),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_coe_plan_window, "margin", margin, 0, 1),
    NAME(moe_coe_plan_window, "seed", seed),
    COUNT(MOE_ALWAYS, moe_coe_plan_window, "lower", lower, 0),
    COUNT(MOE_ALWAYS, moe_coe_plan_window, "upper", upper, 1),
    MOE_FIELD(MOE_IF_SET, struct moe_coe_plan_window, "expected_per_second", expected),
    COUNT(MOE_ALWAYS, moe_coe_plan_window, "chosen", chosen, 1),
};
static const struct moe_member point_members[] = {
    COUNT(MOE_ALWAYS, moe_coe_plan_point, "experts", experts, 1),
    MOE_FIELD(MOE_ALWAYS, struct moe_coe_plan_point, "per_second", throughput),
};
static const struct moe_member trial_members[] = {
    COUNT(MOE_ALWAYS, moe_coe_plan_trial, "cuda", cuda, 0),
    COUNT(MOE_ALWAYS, moe_coe_plan_trial, "cpu", cpu, 0),
    COUNT(MOE_IF_SET, moe_coe_plan_trial, "experts", experts, 0),
    MOE_FIELD(MOE_ALWAYS, struct moe_coe_plan_trial, "per_second", throughput),
};
static const struct moe_member reason_members[] = {
    NAME(moe_coe_plan_reason, "about", about),
    NAME(moe_coe_plan_reason, "text", text),
};

static bool has_window(const void *record)
{
    return ((const struct moe_coe_plan_window *)record)->device[0] != '\0';
}

static const struct moe_record executors_record = {MOE_RECORD(executors_members), check_executors};
static const struct moe_record batch_record = {MOE_RECORD(batch_members), check_batch};
static const struct moe_record window_record = {MOE_RECORD(window_members), check_window,
                                                .is_there = has_window};
static const struct moe_record point_record = {MOE_RECORD(point_members)};
static const struct moe_record trial_record = {MOE_RECORD(trial_members)};
static const struct moe_record reason_record = {MOE_RECORD(reason_members)};

#define LIST(key, field, n_field, record, max)                                                     \
    MOE_OWNED_LINE_LIST(struct moe_coe_plan, key, field, n_field, record, max)

static const struct moe_member members[] = {
    TEXT(moe_coe_plan, "machine", machine),
    TEXT(moe_coe_plan, "collection", collection),
    TEXT(moe_coe_plan, "costs", costs),
    NAME(moe_coe_plan, "schedule", schedule),
    NAME(moe_coe_plan, "evict", evict),
    MOE_FIELD(MOE_IF_SET, struct moe_coe_plan, "prefetch", prefetch),
    BYTES(MOE_IF_SET, moe_coe_plan, "memory_bytes", memory_bytes, 0),
    BYTES(MOE_IF_SET, moe_coe_plan, "host_bytes", host_bytes, 0),
    LIST("executors", executors, n_executors, executors_record, MOE_COE_MAX_PROCESSORS),
    LIST("largest_batches", batches, n_batches, batch_record, MOE_COE_MAX_COSTS),
    MOE_SECTION(MOE_IF_SET, "window", offsetof(struct moe_coe_plan, window), window_record),
    LIST("points", points, n_points, point_record, MOE_COE_MAX_POINTS),
    LIST("trials", trials, n_trials, trial_record, MOE_COE_MAX_TRIALS),
    MOE_FIELD(MOE_IF_SET, struct moe_coe_plan, "expected_per_second", throughput),
    MOE_FIELD(MOE_IF_SET, struct moe_coe_plan, "expected_switches", switches),
    LIST("reasons", reasons, n_reasons, reason_record, MOE_COE_MAX_REASONS),
};
static const struct moe_record whole = {MOE_RECORD(members), check_plan};

static void release_coe_plan(void *record)
{
    struct moe_coe_plan *p = record;
    free(p->executors);
    free(p->batches);
    free(p->points);
    free(p->trials);
    free(p->reasons);
}

const struct moe_record_format moe_coe_plan_format = {.name = "moe-coe-plan",
                                                      .title = "Plan of a collection of experts",
                                                      .version = 1,
                                                      .max_bytes = MAX_FILE_BYTES,
                                                      .record = &whole,
                                                      .page = "moe-coe",
                                                      .bytes = sizeof(struct moe_coe_plan),
                                                      .release = release_coe_plan};

/* ---- Reading and writing ---- */

int moe_coe_plan_read(struct moe_coe_plan **out, const char *path, struct moe_err *err)
{
    return moe_record_read(&moe_coe_plan_format, out, path, err);
}

int moe_coe_plan_write(const struct moe_coe_plan *p, bool json, struct moe_buf *out,
                       struct moe_err *err)
{
    return moe_record_write(&moe_coe_plan_format, p, json, out, err);
}

void moe_coe_plan_free(struct moe_coe_plan *p)
{
    moe_record_free(&moe_coe_plan_format, p);
}

int moe_coe_plan_new(struct moe_coe_plan **out, struct moe_err *err)
{
    struct moe_coe_plan *p = moe_alloc(1, sizeof *p, err);
    *out = NULL;
    if (!p)
        return MOE_ERR_MEMORY;
    p->executors = moe_alloc(MOE_COE_MAX_PROCESSORS, sizeof *p->executors, err);
    p->batches = moe_alloc(MOE_COE_MAX_COSTS, sizeof *p->batches, err);
    p->points = moe_alloc(MOE_COE_MAX_POINTS, sizeof *p->points, err);
    p->trials = moe_alloc(MOE_COE_MAX_TRIALS, sizeof *p->trials, err);
    p->reasons = moe_alloc(MOE_COE_MAX_REASONS, sizeof *p->reasons, err);
    if (p->executors && p->batches && p->points && p->trials && p->reasons) {
        *out = p;
        return MOE_OK;
    }
    moe_coe_plan_free(p);
    return MOE_ERR_MEMORY;
}

void moe_coe_plan_because(struct moe_coe_plan *p, const char *about, const char *format_, ...)
{
    if (p->n_reasons == MOE_COE_MAX_REASONS)
        return;
    struct moe_coe_plan_reason *r = &p->reasons[p->n_reasons++];
    va_list args;
    va_start(args, format_);
    snprintf(r->about, sizeof r->about, "%s", about);
    vsnprintf(r->text, sizeof r->text, format_, args);
    va_end(args);
}
