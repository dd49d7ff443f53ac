#include "record/device.h"

#include <math.h>
#include <string.h>

_Static_assert((int)MOE_DEVICE_MAX_BATCHES <= (int)MOE_LINE_POINTS, "a line holds every batch");

/* ---- Computation ---- */

static double known(const struct moe_figure *f)
{
    return f->value > 0 ? f->value : NAN;
}

/* A layer without a router or a shared expert has a figure of 0 there. */
static double batch_seconds(const struct moe_device_batch *b, enum moe_device_part part)
{
    switch (part) {
    case MOE_DEVICE_ROUTE:
        return known(&b->attention) + known(&b->router);
    case MOE_DEVICE_ATTENTION:
        return known(&b->attention);
    case MOE_DEVICE_ROUTER:
        return known(&b->router);
    case MOE_DEVICE_SHARED:
        return known(&b->shared);
    case MOE_DEVICE_COMBINE:
        return known(&b->combine);
    case MOE_DEVICE_LAYER_DENSE:
        return known(&b->attention) + known(&b->dense);
    case MOE_DEVICE_LAYER_MOE:
        return known(&b->attention) + known(&b->router) + b->shared.value + b->combine.value;
    }
    return NAN;
}

struct moe_line moe_device_part_line(const struct moe_device *d, enum moe_device_part part)
{
    struct moe_line line = {0};
    for (uint32_t i = 0; i < d->model.n_batches; i++)
        moe_line_add(&line, d->model.batches[i].rows, batch_seconds(&d->model.batches[i], part));
    return line;
}

struct moe_line moe_device_expert_line(const struct moe_device *d, uint32_t variant)
{
    struct moe_line line = {0};
    for (uint32_t i = 0; i < d->model.n_batches; i++) {
        const struct moe_device_batch *b = &d->model.batches[i];
        if (variant < b->n_experts)
            moe_line_add(&line, b->expert_rows.value, b->experts[variant].value);
    }
    return line;
}

static double part_seconds(const struct moe_device *d, enum moe_device_part part, double rows)
{
    struct moe_line line = moe_device_part_line(d, part);
    return moe_line_at(&line, rows);
}

double moe_device_layer_seconds(const struct moe_device *d, bool is_moe, double rows)
{
    return part_seconds(d, is_moe ? MOE_DEVICE_LAYER_MOE : MOE_DEVICE_LAYER_DENSE, rows);
}

double moe_device_expert_seconds(const struct moe_device *d, uint32_t variant, double rows)
{
    struct moe_line line = moe_device_expert_line(d, variant);
    return moe_line_at(&line, rows);
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

const struct moe_device_timed *moe_device_find_timed(const struct moe_device *d,
                                                     uint32_t moe_layers, uint32_t experts,
                                                     uint32_t experts_per_token)
{
    for (uint32_t i = 0; i < d->n_timed; i++) {
        const struct moe_device_timed *t = &d->timed[i];
        if (t->moe_layers == moe_layers && t->experts == experts &&
            t->experts_per_token == experts_per_token)
            return t;
    }
    return NULL;
}

/* ---- Loading ---- */

bool moe_device_load_measured(const struct moe_device *d, enum moe_device_tier from)
{
    const struct moe_device_storage *s = &d->storage;
    bool measured = s->bytes_per_second.n_runs > 0;
    if (from == MOE_TIER_HOST)
        return d->accelerator.link_bytes_per_second.n_runs > 0;
    for (uint32_t i = 0; i < s->n_reads; i++)
        measured |= s->reads[i].bytes_per_second.n_runs > 0;
    return measured;
}

/* The median beside the fastest run, less 1: the highest rate, the fewest seconds. The slowest is
 * no measure: one interruption makes it. */
static double spread_of(const struct moe_figure *f, bool seconds)
{
    double fastest = seconds ? f->min : f->max;
    if (f->n_runs < 2 || !(f->value > 0) || !(fastest > 0))
        return 0;
    return (seconds ? f->value / fastest : fastest / f->value) - 1;
}

double moe_device_spread(const struct moe_device *d)
{
    double spread = spread_of(&d->host.memory_bytes_per_second, false);
    for (uint32_t i = 0; i < d->storage.n_reads; i++)
        spread = fmax(spread, spread_of(&d->storage.reads[i].bytes_per_second, false));
    for (uint32_t i = 0; i < d->model.n_batches; i++)
        spread = fmax(spread, spread_of(&d->model.batches[i].attention, true));
    return spread;
}

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

void moe_device_handling(const struct moe_device *d, double *seconds, double *per_byte)
{
    const struct moe_device_storage *s = &d->storage;
    *seconds = *per_byte = 0;
    if (s->n_handling == 0)
        return;
    const struct moe_device_handling *least = &s->handling[0], *most = least + s->n_handling - 1;
    double more = most->seconds.value - least->seconds.value;
    if (most > least && more > 0)
        *per_byte = more / (double)(most->bytes - least->bytes);
    *seconds = fmax(0, least->seconds.value - *per_byte * (double)least->bytes);
}

/* The bursts of one load or of many, the smallest or the largest; NULL: there are none. */
static const struct moe_device_burst *find_burst(const struct moe_device_storage *s, bool many,
                                                 bool large)
{
    const struct moe_device_burst *best = NULL;
    for (uint32_t i = 0; i < s->n_bursts; i++) {
        const struct moe_device_burst *b = &s->bursts[i];
        if ((b->loads > 1) == many &&
            (!best || (large ? b->bytes > best->bytes : b->bytes < best->bytes)))
            best = b;
    }
    return best;
}

/* n loads take latency + n (pieces x piece + bytes / rate): four kinds of bursts tell all three. */
bool moe_device_burst_costs(const struct moe_device *d, uint32_t piece_bytes,
                            struct moe_device_burst_costs *out)
{
    const struct moe_device_storage *s = &d->storage;
    const struct moe_device_burst *one = find_burst(s, false, true),
                                  *many = find_burst(s, true, true),
                                  *small_one = find_burst(s, false, false),
                                  *small = find_burst(s, true, false);
    if (!one || !many || one->bytes != many->bytes || small_one->bytes != small->bytes)
        return false;
    double bytes = (double)many->bytes, fewer = (double)small->bytes;
    double pieces = ceil(bytes / piece_bytes);
    double each = (many->seconds.value - one->seconds.value) / (many->loads - 1);
    double each_small = (small->seconds.value - small_one->seconds.value) / (small->loads - 1);
    if (!(each > 0))
        return false;
    if (one->seconds.value < each) /* one alone is faster than its share of many: between the two */
        each = sqrt(one->seconds.value * many->seconds.value / many->loads);
    double rate = (bytes - pieces * fewer) / (each - pieces * each_small);
    double piece = each_small - fewer / rate;
    bool told = rate > 0 && isfinite(rate) && piece > 0;
    double latency = fmax(0, one->seconds.value - each);
    double together = many->loads * pieces * (many->first_seconds.value - latency) /
                      (many->seconds.value - latency);
    *out = (struct moe_device_burst_costs){.bytes_per_second = told ? rate : bytes / each,
                                           .piece = told ? piece : 0,
                                           .latency = latency,
                                           .together = fmax(together, 1)};
    return true;
}
