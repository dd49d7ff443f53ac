/* A device profile as text: figures with their spread and source. */
#include "show/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "show/draw.h"

enum unit { BYTES, RATE, SECONDS, COUNT };

static const char *format_figure(double x, enum unit unit, char room[32])
{
    if (unit == BYTES)
        moe_format_bytes((uint64_t)x, room);
    else if (unit == RATE)
        moe_format_rate(x, room);
    else if (unit == SECONDS)
        moe_format_seconds(x, room);
    else
        snprintf(room, 32, "%g", x);
    return room;
}

static void put_figure(const struct moe_pen *pen, const char *name, const struct moe_figure *f,
                       enum unit unit)
{
    char x[3][32];
    if (f->value <= 0)
        return;
    moe_buf_printf(pen->out, "  %-22s %12s", name, format_figure(f->value, unit, x[0]));
    if (f->n_runs)
        moe_buf_printf(pen->out, "   %s to %s in %" PRIu32 " runs",
                       format_figure(f->min, unit, x[1]), format_figure(f->max, unit, x[2]),
                       f->n_runs);
    moe_buf_text(pen->out, "\n");
    moe_say(pen, 4, "%s", f->source);
}

static void put_heading(const struct moe_pen *pen, const char *title, const char *name,
                        const char *source)
{
    moe_buf_printf(pen->out, "\n%s%s%s\n", title, name[0] ? ": " : "", name);
    moe_say(pen, 4, "%s", source);
}

static void put_host(const struct moe_device_host *h, const struct moe_pen *pen)
{
    if (!h->name[0] && h->cores.value <= 0 && h->memory_bytes.value <= 0 &&
        h->memory_bytes_per_second.value <= 0)
        return;
    put_heading(pen, "Host", h->name, h->source);
    put_figure(pen, "cores", &h->cores, COUNT);
    put_figure(pen, "threads measured with", &h->threads, COUNT);
    if (h->cpu_level[0])
        moe_buf_printf(pen->out, "  %-22s %12s\n", "kernels", h->cpu_level);
    put_figure(pen, "memory", &h->memory_bytes, BYTES);
    put_figure(pen, "memory bandwidth", &h->memory_bytes_per_second, RATE);
}

static void put_accelerator(const struct moe_device_accelerator *a, const struct moe_pen *pen)
{
    if (!a->name[0])
        return;
    put_heading(pen, "Accelerator", a->name, a->source);
    put_figure(pen, a->shares_memory ? "memory, the host's" : "memory", &a->memory_bytes, BYTES);
    put_figure(pen, "memory bandwidth", &a->memory_bytes_per_second, RATE);
    put_figure(pen, "link from the host", &a->link_bytes_per_second, RATE);
    put_figure(pen, "... each piece", &a->link_piece_seconds, SECONDS);
    put_figure(pen, "launch of a kernel", &a->launch_seconds, SECONDS);
    put_figure(pen, "a router's round trip", &a->trip_seconds, SECONDS);
}

static void put_storage(const struct moe_device_storage *s, const struct moe_pen *pen)
{
    if (s->n_reads == 0 && s->bytes_per_second.value <= 0)
        return;
    put_heading(pen, "Storage", s->name, s->source);
    put_figure(pen, "reading", &s->bytes_per_second, RATE);
    put_figure(pen, "latency of 4096 bytes", &s->latency_seconds, SECONDS);
    put_figure(pen, "size of a load", &s->read_bytes, BYTES);
    for (uint32_t i = 0; i < s->n_reads; i++) {
        char name[40];
        snprintf(name, sizeof name, "%" PRIu32 " at a time", s->reads[i].in_flight);
        put_figure(pen, name, &s->reads[i].bytes_per_second, RATE);
        put_figure(pen, "  each takes", &s->reads[i].seconds, SECONDS);
    }
    for (uint32_t i = 0; i < s->n_bursts; i++) {
        char name[48], size[32];
        snprintf(name, sizeof name, "%" PRIu32 " of %s at once", s->bursts[i].loads,
                 moe_format_bytes(s->bursts[i].bytes, size));
        put_figure(pen, name, &s->bursts[i].seconds, SECONDS);
        if (s->bursts[i].loads > 1)
            put_figure(pen, "  the first takes", &s->bursts[i].first_seconds, SECONDS);
    }
    for (uint32_t i = 0; i < s->n_handling; i++) {
        char name[40], size[32];
        snprintf(name, sizeof name, "handling %s", moe_format_bytes(s->handling[i].bytes, size));
        put_figure(pen, name, &s->handling[i].seconds, SECONDS);
    }
}

static void put_batch(const struct moe_device_model *m, const struct moe_device_batch *b,
                      const struct moe_pen *pen)
{
    moe_buf_printf(pen->out, "\nA layer for %" PRIu32 " %s\n", b->rows,
                   b->rows == 1 ? "token" : "tokens of a prompt");
    put_figure(pen, "attention", &b->attention, SECONDS);
    put_figure(pen, "router", &b->router, SECONDS);
    put_figure(pen, "shared expert", &b->shared, SECONDS);
    put_figure(pen, "adding up experts", &b->combine, SECONDS);
    put_figure(pen, "dense feed-forward", &b->dense, SECONDS);
    for (uint32_t v = 0; v < b->n_experts; v++) {
        char name[80];
        snprintf(name, sizeof name, "an expert at %.60s", m->variants[v].name);
        put_figure(pen, name, &b->experts[v], SECONDS);
    }
    if (b->expert_rows.value > 0 && b->rows > 1)
        moe_buf_printf(pen->out, "    each expert in use computed %.3g rows on average\n",
                       b->expert_rows.value);
}

/* What loads cost against computation: whether there is time to hide prefetches in. */
static void put_verdict(const struct moe_device *d, struct moe_buf *out)
{
    const struct moe_device_model *m = &d->model;
    for (uint32_t v = 0; v < m->n_variants; v++) {
        double load =
            moe_device_load_seconds(d, MOE_TIER_STORAGE, (uint64_t)m->variants[v].bytes.value);
        double layer = moe_device_layer_seconds(d, true, 1) +
                       m->experts_per_token * moe_device_expert_seconds(d, v, 1);
        char x[2][32];
        if (!isnan(load) && !isnan(layer))
            moe_buf_printf(
                out, "  loading an expert at %s (%s) takes as long as computing %.2f layers\n",
                m->variants[v].name, format_figure(m->variants[v].bytes.value, BYTES, x[0]),
                load / layer);
    }
}

/* Its pieces were not measured. */
static void put_timed(const struct moe_device_timed *t, const struct moe_pen *pen)
{
    moe_buf_printf(pen->out,
                   "\n%s, as others timed it: %" PRIu32 " layers of %" PRIu32 " experts, %" PRIu32
                   " a token\n",
                   t->model, t->moe_layers, t->experts, t->experts_per_token);
    put_figure(pen, "a layer, one token", &t->layer, SECONDS);
    put_figure(pen, "a load", &t->load, SECONDS);
    put_figure(pen, "... of", &t->load_bytes, BYTES);
}

/* Whether plans for this machine can come true. */
static void put_steal(const struct moe_device_model *m, const struct moe_pen *pen)
{
    char text[256];
    if (m->loading_steal.value < 0.02)
        return;
    snprintf(
        text, sizeof text,
        "This machine's host kept %.0f%% of the processors while loads went on: it is a virtual "
        "one, or other work shares it. Runs that load while they compute can be slower than "
        "their plans.",
        100 * m->loading_steal.value);
    moe_say(pen, 4, "%s", text);
}

void moe_show_device(const struct moe_device *d, struct moe_screen screen, struct moe_buf *out)
{
    const struct moe_pen pen = {out, screen};
    moe_buf_printf(out, "%s\n", d->name);
    moe_say(&pen, 4, "%s", d->source);
    put_host(&d->host, &pen);
    put_accelerator(&d->accelerator, &pen);
    put_storage(&d->storage, &pen);
    for (uint32_t i = 0; i < d->n_timed; i++)
        put_timed(&d->timed[i], &pen);
    if (!d->has_model)
        return;
    moe_buf_printf(out, "\nModel %016" PRIx64 ": %" PRIu32 " layers", d->model.source_fingerprint,
                   d->model.layers);
    if (d->model.moe_layers)
        moe_buf_printf(out, ", %" PRIu32 " with experts, %" PRIu32 " experts a token",
                       d->model.moe_layers, d->model.experts_per_token);
    moe_buf_printf(out, "; up to %" PRIu32 " positions\n", d->model.positions);
    moe_say(&pen, 4, "%s", d->model.source);
    put_figure(&pen, "head, per token", &d->model.head_seconds, SECONDS);
    put_figure(&pen, "slower by interruptions", &d->model.interruptions, COUNT);
    put_figure(&pen, "slower during loads", &d->model.loading_slowdown, COUNT);
    put_figure(&pen, "... taken by the host", &d->model.loading_steal, COUNT);
    put_figure(&pen, "after a wait, more", &d->model.wake, SECONDS);
    put_figure(&pen, "woken too late by", &d->model.late, SECONDS);
    put_steal(&d->model, &pen);
    if (d->model.far_positions)
        moe_buf_printf(out, "  attention to %" PRIu32 " tokens in place of %" PRIu32 "\n",
                       d->model.far_positions, d->model.positions);
    put_figure(&pen, "  for one token", &d->model.far_attention, SECONDS);
    put_verdict(d, out);
    for (uint32_t i = 0; i < d->model.n_batches; i++)
        put_batch(&d->model, &d->model.batches[i], &pen);
}
