#include "sched/device.h"

#include <math.h>
#include <string.h>

/* ---- Computation -------------------------------------------------------------------------------
 */

static double known(const struct moe_figure *f)
{
    return f->value > 0 ? f->value : NAN;
}

/* The line through points of rising x: between the two nearest; before the first as the first;
 * beyond the last on as between the last two, but never falling. A single point: proportional. */
static double interpolate(const double *x, const double *y, uint32_t n, double at)
{
    if (n == 0)
        return NAN;
    if (at <= x[0])
        return y[0];
    if (n == 1)
        return y[0] * at / x[0];
    uint32_t i = 1;
    while (i + 1 < n && at > x[i])
        i++;
    double slope = (y[i] - y[i - 1]) / (x[i] - x[i - 1]);
    if (at > x[i] && slope < 0)
        slope = 0;
    return at > x[i] ? y[i] + slope * (at - x[i]) : y[i - 1] + slope * (at - x[i - 1]);
}

enum part { ROUTE_DENSE, ROUTE_MOE, LAYER_DENSE, LAYER_MOE };

/* What has no router, shared expert, or anything to combine has a figure of 0 there. */
static double batch_seconds(const struct moe_device_batch *b, enum part part)
{
    double seconds = known(&b->attention);
    if (part == ROUTE_MOE || part == LAYER_MOE)
        seconds += known(&b->router);
    if (part == LAYER_MOE)
        seconds += b->shared.value + b->combine.value;
    if (part == LAYER_DENSE)
        seconds += known(&b->dense);
    return seconds;
}

static double part_seconds(const struct moe_device *d, enum part part, double rows)
{
    double x[MOE_DEVICE_MAX_BATCHES], y[MOE_DEVICE_MAX_BATCHES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->model.n_batches; i++) {
        x[n] = d->model.batches[i].rows;
        y[n] = batch_seconds(&d->model.batches[i], part);
        n += !isnan(y[n]);
    }
    return interpolate(x, y, n, rows);
}

double moe_device_route_seconds(const struct moe_device *d, bool is_moe, double rows)
{
    return part_seconds(d, is_moe ? ROUTE_MOE : ROUTE_DENSE, rows);
}

double moe_device_layer_seconds(const struct moe_device *d, bool is_moe, double rows)
{
    return part_seconds(d, is_moe ? LAYER_MOE : LAYER_DENSE, rows);
}

double moe_device_expert_seconds(const struct moe_device *d, uint32_t variant, double rows)
{
    double x[MOE_DEVICE_MAX_BATCHES], y[MOE_DEVICE_MAX_BATCHES];
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->model.n_batches; i++) {
        const struct moe_device_batch *b = &d->model.batches[i];
        if (variant >= b->n_experts || b->expert_rows.value <= 0 || b->experts[variant].value <= 0)
            continue;
        /* Batches that differ little may give an expert just as many rows. */
        if (n > 0 && b->expert_rows.value <= x[n - 1])
            continue;
        x[n] = b->expert_rows.value;
        y[n++] = b->experts[variant].value;
    }
    return interpolate(x, y, n, rows);
}

double moe_device_head_seconds(const struct moe_device *d)
{
    return known(&d->model.head_seconds);
}

int moe_device_variant(const struct moe_device *d, const char *name)
{
    for (uint32_t i = 0; i < d->model.n_variants; i++)
        if (strcmp(d->model.variants[i].name, name) == 0)
            return (int)i;
    return -1;
}

/* ---- Loading -----------------------------------------------------------------------------------
 */

double moe_device_load_rate(const struct moe_device *d, enum moe_device_tier from)
{
    if (from == MOE_TIER_HOST)
        return known(&d->accelerator.link_bytes_per_second);
    double best = d->storage.bytes_per_second.value;
    for (uint32_t i = 0; i < d->storage.n_reads; i++)
        best = fmax(best, d->storage.reads[i].bytes_per_second.value);
    return best > 0 ? best : NAN;
}

double moe_device_load_seconds(const struct moe_device *d, enum moe_device_tier from,
                               uint64_t bytes)
{
    const struct moe_device_storage *s = &d->storage;
    double latency = s->latency_seconds.value;
    if (from == MOE_TIER_HOST)
        return (double)bytes / moe_device_load_rate(d, from);
    /* One read alone was measured: what it takes beyond the latency is transfer. */
    if (s->n_reads > 0 && s->reads[0].in_flight == 1 && s->reads[0].seconds.value > latency &&
        s->read_bytes.value > 0)
        return latency +
               (s->reads[0].seconds.value - latency) * ((double)bytes / s->read_bytes.value);
    return latency + (double)bytes / moe_device_load_rate(d, from);
}
