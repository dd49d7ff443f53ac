/* Device profiles, moe-device(5): what follows from them, reading and writing. */
#include "profile/device.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const struct moe_component_name names[MOE_N_COMPONENTS] = {
    [MOE_COMPONENT_COMPUTE] = {"computing", "compute_s", "compute_seconds"},
    [MOE_COMPONENT_HANDLING] = {"handling loads", "handling_s", "handling_seconds"},
    [MOE_COMPONENT_STALL] = {"waiting for loads", "stall_s", "stall_seconds"},
    [MOE_COMPONENT_HOST] = {"waiting for the host", "host_wait_s", "host_seconds"},
};

const struct moe_component_name *moe_component_name(enum moe_component component)
{
    return &names[component];
}

struct moe_components moe_components_of(double total, double handling, double stall, double host)
{
    return (struct moe_components){{
        [MOE_COMPONENT_COMPUTE] = total - handling - stall - host,
        [MOE_COMPONENT_HANDLING] = handling,
        [MOE_COMPONENT_STALL] = stall,
        [MOE_COMPONENT_HOST] = host,
    }};
}

/* ---- The profile ---- */

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
    /* Only single reads were measured: what one takes beyond the latency is transfer. */
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
    if (one->seconds.value <
        each) /* a single load is faster than its share of many: take a rate between the two */
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

/*
 * The file of a device profile, moe-device(5): its tables, and its figures, each a number or a
 * one-line mapping.
 */

enum { MAX_FILE_BYTES = 1 << 20, MAX_COUNT = 1 << 24 };
/* The largest figure: in bytes it still fits 64 bits. */
#define MAX_FIGURE 1e18

/* ---- Figures ---- */

static const struct moe_member figure_members[] = {
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_figure, "value", value, -HUGE_VAL, HUGE_VAL),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_figure, "min", min, -HUGE_VAL, HUGE_VAL),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_figure, "max", max, -HUGE_VAL, HUGE_VAL),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_figure, "runs", n_runs, 0, MAX_COUNT),
    MOE_FIELD(MOE_IF_SET, struct moe_figure, "source", source),
};

/* The spread of several runs comes with their number, and only with it. */
static int check_figure(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    static const char *const spread[] = {"min", "max"};
    const struct moe_figure *f = record;
    for (int i = 0; i < 2; i++) {
        bool given = moe_yaml_get(map, spread[i]) != NULL;
        if (given != (f->n_runs > 0))
            return moe_yaml_fail(r->doc, map, r->err,
                                 given ? "'%s' without 'runs'" : "'%s' is missing", spread[i]);
    }
    if (f->n_runs && (f->min <= 0 || f->min > f->value || f->max < f->value))
        return moe_yaml_fail(r->doc, map, r->err, "a median outside of min and max");
    return MOE_OK;
}

static const struct moe_record figure_record = {MOE_RECORD(figure_members), check_figure};

/* A number or a mapping. */
static int read_figure(struct moe_record_reader *r, struct moe_yaml_node *node,
                       struct moe_figure *f)
{
    const char *key = moe_yaml_key(node);
    bool is_mapping = moe_yaml_length(node) > 0;
    MOE_TRY(is_mapping ? moe_record_read_map(r, node, &figure_record, f)
                       : moe_yaml_item_double(r->doc, node, &f->value, r->err));
    if (f->value <= 0)
        return moe_yaml_fail(r->doc, node, r->err,
                             "'%s' must be above zero (leave out what is not known)", key);
    if (f->value > MAX_FIGURE || f->max > MAX_FIGURE)
        return moe_yaml_fail(r->doc, node, r->err, "'%s' must not be above %g", key, MAX_FIGURE);
    return MOE_OK;
}

static int read_figure_member(struct moe_record_reader *r, struct moe_yaml_node *map,
                              const struct moe_member *m, void *record)
{
    struct moe_yaml_node *node = moe_yaml_get(map, m->key);
    return node ? read_figure(r, node, (struct moe_figure *)((char *)record + m->at)) : MOE_OK;
}

static void write_figure(struct moe_record_writer *w, const char *key, const struct moe_figure *f)
{
    if (f->n_runs == 0 && !f->source[0]) {
        moe_emit_double(&w->emit, key, f->value);
        return;
    }
    moe_emit_open_line_map(&w->emit, key);
    moe_record_write_map(w, &figure_record, f);
    moe_emit_close(&w->emit);
}

static void write_figure_member(struct moe_record_writer *w, const struct moe_member *m,
                                const void *record)
{
    write_figure(w, m->key, (const struct moe_figure *)((const char *)record + m->at));
}

static bool figure_is_there(const struct moe_member *m, const void *record)
{
    return ((const struct moe_figure *)((const char *)record + m->at))->value > 0;
}

static const struct moe_member_own figure = {read_figure_member, write_figure_member,
                                             figure_is_there};

#define FIGURE(type, key, field) MOE_OWN(key, offsetof(struct type, field), figure)
#define TEXT(type, key, field) MOE_FIELD(MOE_IF_SET, struct type, key, field)
#define COUNT(type, key, field) MOE_FIELD_IN(MOE_ALWAYS, struct type, key, field, 0, MAX_COUNT)

/* ---- The machine ---- */

static const struct moe_member host_members[] = {
    TEXT(moe_device_host, "source", source),
    TEXT(moe_device_host, "name", name),
    TEXT(moe_device_host, "cpu_level", cpu_level),
    FIGURE(moe_device_host, "cores", cores),
    FIGURE(moe_device_host, "threads", threads),
    FIGURE(moe_device_host, "memory_bytes", memory_bytes),
    FIGURE(moe_device_host, "memory_bytes_per_second", memory_bytes_per_second),
};
static const struct moe_record host_record = {MOE_RECORD(host_members)};

static const struct moe_member accelerator_members[] = {
    TEXT(moe_device_accelerator, "source", source),
    MOE_FIELD(MOE_ALWAYS, struct moe_device_accelerator, "name", name),
    MOE_FIELD(MOE_IF_SET, struct moe_device_accelerator, "shares_host_memory", shares_memory),
    FIGURE(moe_device_accelerator, "memory_bytes", memory_bytes),
    FIGURE(moe_device_accelerator, "memory_bytes_per_second", memory_bytes_per_second),
    FIGURE(moe_device_accelerator, "link_bytes_per_second", link_bytes_per_second),
    FIGURE(moe_device_accelerator, "link_piece_seconds", link_piece_seconds),
    FIGURE(moe_device_accelerator, "launch_seconds", launch_seconds),
    FIGURE(moe_device_accelerator, "trip_seconds", trip_seconds),
};
static const struct moe_record accelerator_record = {MOE_RECORD(accelerator_members)};

static const struct moe_member reads_members[] = {
    MOE_RISING_FIELD(struct moe_device_reads, "in_flight", in_flight, 1, MAX_COUNT),
    FIGURE(moe_device_reads, "bytes_per_second", bytes_per_second),
    FIGURE(moe_device_reads, "seconds", seconds),
};
static const struct moe_record reads_record = {MOE_RECORD(reads_members)};

static const struct moe_member burst_members[] = {
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_device_burst, "loads", loads, 1, MAX_COUNT),
    MOE_FIELD_IN(MOE_ALWAYS, struct moe_device_burst, "bytes", bytes, 1, UINT64_C(1) << 40),
    FIGURE(moe_device_burst, "first_seconds", first_seconds),
    FIGURE(moe_device_burst, "seconds", seconds),
};

static int check_burst(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_device_burst *b = record;
    if (!(b->seconds.value > 0))
        return moe_yaml_fail(r->doc, map, r->err, "'seconds' is missing");
    if (!(b->first_seconds.value > 0 && b->first_seconds.value <= b->seconds.value))
        return moe_yaml_fail(r->doc, map, r->err,
                             "'first_seconds' must be above 0 and at most 'seconds'");
    return MOE_OK;
}

static const struct moe_record burst_record = {MOE_RECORD(burst_members), check_burst};

static const struct moe_member handling_members[] = {
    MOE_RISING_FIELD(struct moe_device_handling, "bytes", bytes, 1, 1 << 30),
    FIGURE(moe_device_handling, "seconds", seconds),
};

static int check_handling(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    return ((const struct moe_device_handling *)record)->seconds.value > 0
               ? MOE_OK
               : moe_yaml_fail(r->doc, map, r->err, "'seconds' is missing");
}

static const struct moe_record handling_record = {MOE_RECORD(handling_members), check_handling};

static const struct moe_member storage_members[] = {
    TEXT(moe_device_storage, "source", source),
    TEXT(moe_device_storage, "name", name),
    MOE_FIELD(MOE_IF_SET, struct moe_device_storage, "direct", direct),
    FIGURE(moe_device_storage, "bytes_per_second", bytes_per_second),
    FIGURE(moe_device_storage, "latency_seconds", latency_seconds),
    FIGURE(moe_device_storage, "read_bytes", read_bytes),
    MOE_LIST(struct moe_device_storage, "reads", reads, n_reads, reads_record),
    MOE_LIST(struct moe_device_storage, "bursts", bursts, n_bursts, burst_record),
    MOE_LIST(struct moe_device_storage, "handling", handling, n_handling, handling_record),
};
static const struct moe_record storage_record = {MOE_RECORD(storage_members)};

/* ---- The model that was measured ---- */

static const struct moe_member variant_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct moe_device_variant, "name", name),
    FIGURE(moe_device_variant, "bytes", bytes),
};

static int check_variant(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_device *d = r->whole;
    const struct moe_device_variant *v = record;
    return moe_device_variant(d, v->name) < 0
               ? MOE_OK
               : moe_yaml_fail(r->doc, map, r->err, "variant '%s' occurs twice", v->name);
}

static const struct moe_record variant_record = {MOE_RECORD(variant_members), check_variant};

/* expert_seconds: a mapping from variants to figures. */
static int read_experts(struct moe_record_reader *r, struct moe_yaml_node *batch,
                        const struct moe_member *m, void *record)
{
    const struct moe_device *d = r->whole;
    struct moe_device_batch *b = record;
    struct moe_yaml_node *map = NULL;
    int status = moe_yaml_get_map(r->doc, batch, m->key, false, &map, r->err);
    if (map)
        b->n_experts = d->model.n_variants;
    for (struct moe_yaml_node *f = map ? moe_yaml_first(map) : NULL; f && status == MOE_OK;
         f = moe_yaml_next(f)) {
        int v = moe_device_variant(d, moe_yaml_key(f));
        status = v < 0 ? moe_yaml_fail(r->doc, f, r->err, "'%.60s' is none of the variants",
                                       moe_yaml_key(f))
                       : read_figure(r, f, &b->experts[v]);
    }
    return status;
}

static void write_experts(struct moe_record_writer *w, const struct moe_member *m,
                          const void *record)
{
    const struct moe_device *d = w->whole;
    const struct moe_device_batch *b = record;
    if (b->n_experts == 0)
        return;
    moe_emit_open_map(&w->emit, m->key);
    for (uint32_t v = 0; v < b->n_experts; v++)
        if (b->experts[v].value > 0)
            write_figure(w, d->model.variants[v].name, &b->experts[v]);
    moe_emit_close(&w->emit);
}

static const struct moe_member_own expert_seconds = {read_experts, write_experts, NULL};

static const struct moe_member batch_members[] = {
    MOE_RISING_FIELD(struct moe_device_batch, "rows", rows, 1, MAX_COUNT),
    FIGURE(moe_device_batch, "attention_seconds", attention),
    FIGURE(moe_device_batch, "router_seconds", router),
    FIGURE(moe_device_batch, "shared_seconds", shared),
    FIGURE(moe_device_batch, "combine_seconds", combine),
    FIGURE(moe_device_batch, "dense_seconds", dense),
    FIGURE(moe_device_batch, "expert_rows", expert_rows),
    MOE_OWN("expert_seconds", 0, expert_seconds),
};
static const struct moe_record batch_record = {MOE_RECORD(batch_members)};

static const struct moe_member model_members[] = {
    TEXT(moe_device, "source", model.source),
    MOE_FINGERPRINT(MOE_ALWAYS, struct moe_device, "source_fingerprint", model.source_fingerprint),
    COUNT(moe_device, "layers", model.layers),
    COUNT(moe_device, "moe_layers", model.moe_layers),
    COUNT(moe_device, "experts_per_token", model.experts_per_token),
    COUNT(moe_device, "positions", model.positions),
    MOE_FIELD_IN(MOE_IF_SET, struct moe_device, "far_positions", model.far_positions, 0, MAX_COUNT),
    FIGURE(moe_device, "far_attention_seconds", model.far_attention),
    FIGURE(moe_device, "head_seconds", model.head_seconds),
    FIGURE(moe_device, "interruptions", model.interruptions),
    FIGURE(moe_device, "loading_slowdown", model.loading_slowdown),
    FIGURE(moe_device, "loading_steal", model.loading_steal),
    FIGURE(moe_device, "wake_seconds", model.wake),
    FIGURE(moe_device, "late_seconds", model.late),
    MOE_LIST(struct moe_device, "variants", model.variants, model.n_variants, variant_record),
    MOE_LIST(struct moe_device, "batches", model.batches, model.n_batches, batch_record),
};

static int check_model(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_device_model *m = &((const struct moe_device *)record)->model;
    if ((m->far_positions > 0) != (m->far_attention.value > 0))
        return moe_yaml_fail(r->doc, map, r->err, "'%s' without '%s'",
                             m->far_positions ? "far_positions" : "far_attention_seconds",
                             m->far_positions ? "far_attention_seconds" : "far_positions");
    if (m->far_positions && m->far_positions <= m->positions)
        return moe_yaml_fail(r->doc, map, r->err, "'far_positions' must be above 'positions'");
    if (m->interruptions.value > 0 && m->interruptions.value < 1)
        return moe_yaml_fail(r->doc, moe_yaml_get(map, "interruptions"), r->err,
                             "'interruptions' must not be below 1");
    return MOE_OK;
}

static const struct moe_record model_record = {MOE_RECORD(model_members), check_model,
                                               MOE_FLAGGED(struct moe_device, has_model)};

/* ---- What others say of models ---- */

static const struct moe_member timed_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct moe_device_timed, "model", model),
    COUNT(moe_device_timed, "moe_layers", moe_layers),
    COUNT(moe_device_timed, "experts", experts),
    COUNT(moe_device_timed, "experts_per_token", experts_per_token),
    FIGURE(moe_device_timed, "layer_seconds", layer),
    FIGURE(moe_device_timed, "load_seconds", load),
    FIGURE(moe_device_timed, "load_bytes", load_bytes),
};

static int check_timed(struct moe_record_reader *r, struct moe_yaml_node *map, void *record)
{
    const struct moe_device *d = r->whole;
    const struct moe_device_timed *t = record;
    if ((t->load.value > 0) != (t->load_bytes.value > 0))
        return moe_yaml_fail(r->doc, map, r->err, "'%s' without '%s'",
                             t->load.value > 0 ? "load_seconds" : "load_bytes",
                             t->load.value > 0 ? "load_bytes" : "load_seconds");
    return moe_device_find_timed(d, t->moe_layers, t->experts, t->experts_per_token)
               ? moe_yaml_fail(r->doc, map, r->err, "a model of this shape occurs twice")
               : MOE_OK;
}

static const struct moe_record timed_record = {MOE_RECORD(timed_members), check_timed};

/* ---- The file ---- */

static const struct moe_member device_members[] = {
    MOE_FIELD(MOE_ALWAYS, struct moe_device, "name", name),
    TEXT(moe_device, "source", source),
    MOE_SECTION(MOE_IF_SET, "host", offsetof(struct moe_device, host), host_record),
    MOE_SECTION(MOE_IF_SET, "accelerator", offsetof(struct moe_device, accelerator),
                accelerator_record),
    MOE_SECTION(MOE_IF_SET, "storage", offsetof(struct moe_device, storage), storage_record),
    MOE_SECTION(MOE_IF_SET, "model", 0, model_record),
    MOE_LIST(struct moe_device, "timed", timed, n_timed, timed_record),
};
static const struct moe_record device_record = {MOE_RECORD(device_members)};

const struct moe_record_format moe_device_format = {.name = "moe-device",
                                                    .title = "Device profile",
                                                    .version = MOE_DEVICE_VERSION,
                                                    .max_bytes = MAX_FILE_BYTES,
                                                    .record = &device_record,
                                                    .bytes = sizeof(struct moe_device)};

int moe_device_write(const struct moe_device *d, bool json, struct moe_buf *out,
                     struct moe_err *err)
{
    return moe_record_write(&moe_device_format, d, json, out, err);
}

int moe_device_read(struct moe_device **out, const char *path, struct moe_err *err)
{
    return moe_record_read(&moe_device_format, out, path, err);
}
