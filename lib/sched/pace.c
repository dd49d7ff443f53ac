/* Paces, from what was measured of a machine with the model, or from its bandwidth. */
#include "sched/pace.h"

#include <math.h>

static const char *const piece_names[MOE_N_PIECES] = {
    [MOE_PIECE_ROUTE] = "route",
    [MOE_PIECE_BESIDE] = "beside",
    [MOE_PIECE_COMBINE] = "combine",
    [MOE_PIECE_DENSE] = "dense",
};

const char *moe_piece_name(enum moe_piece piece)
{
    return piece_names[piece];
}

static double seconds_of(const struct moe_line *line, double rows)
{
    return line->n > 0 ? moe_line_at(line, rows) : 0;
}

double moe_pace_piece(const struct moe_pace *p, enum moe_piece piece, double rows)
{
    return seconds_of(&p->pieces[piece], rows);
}

double moe_pace_expert(const struct moe_pace *p, uint32_t variant, double rows)
{
    return variant < p->n_variants ? seconds_of(&p->experts[variant], rows) : 0;
}

double moe_pace_attention(const struct moe_pace *p, enum moe_piece piece, double rows,
                          double positions)
{
    return moe_pace_piece(p, piece, rows) + p->attend * positions;
}

double moe_pace_layer(const struct moe_pace *p, uint32_t variant, uint32_t top_k)
{
    return moe_pace_attention(p, MOE_PIECE_ROUTE, 1, p->positions) +
           moe_pace_piece(p, MOE_PIECE_BESIDE, 1) + moe_pace_piece(p, MOE_PIECE_COMBINE, 1) +
           p->joint + top_k * moe_pace_expert(p, variant, 1);
}

/* All pieces but the head. */
static void stretch_pieces(struct moe_pace *p, double by)
{
    for (int i = 0; i < MOE_N_PIECES; i++)
        moe_line_stretch(&p->pieces[i], by);
    for (uint32_t v = 0; v < p->n_variants; v++)
        moe_line_stretch(&p->experts[v], by);
    p->predict *= by;
    p->attend *= by;
    p->joint *= by;
}

void moe_pace_stretch(struct moe_pace *p, double by)
{
    stretch_pieces(p, by);
    p->head *= by;
    p->loads.handling *= by;
    p->loads.handling_byte *= by;
    p->loads.wake *= by;
}

void moe_pace_set_layer(struct moe_pace *p, uint32_t top_k, double seconds)
{
    double now = moe_pace_layer(p, 0, top_k);
    if (!(now > 0))
        return;
    stretch_pieces(p, seconds / now);
    p->host_slowdown *= now / seconds;
}

static int set_load_rate(struct moe_pace *p, const struct moe_device *d, enum moe_device_tier from,
                         double load_rate, struct moe_err *err)
{
    p->load_rate = load_rate > 0 ? load_rate : moe_device_load_rate(d, from);
    if (p->load_rate > 0)
        return MOE_OK;
    return moe_fail(
        err, MOE_ERR_USAGE,
        "device profile '%s': no load rate from %s; measure it with moe-profile --device, or "
        "give it with --link-rate",
        d->name, from == MOE_TIER_HOST ? "the host's memory" : "storage");
}

/* ---- From measurements ---- */

/* The measured variant whose bytes are nearest to those of `unmeasured`; -1: none. */
static int nearest_measured(const struct moe_device *d, int unmeasured)
{
    const struct moe_device_model *m = &d->model;
    double bytes = m->variants[unmeasured].bytes.value, least = INFINITY;
    int best = -1;
    for (uint32_t i = 0; i < m->n_variants && bytes > 0; i++) {
        double apart = fabs(m->variants[i].bytes.value - bytes);
        if (m->variants[i].bytes.value > 0 && apart < least && moe_device_expert_line(d, i).n > 0) {
            least = apart;
            best = (int)i;
        }
    }
    return best;
}

static int set_expert(struct moe_line *out, const struct moe_device *d, const char *name,
                      struct moe_err *err)
{
    const struct moe_device_variant *variants = d->model.variants;
    int v = moe_device_variant(d, name), other = -1;
    *out = v >= 0 ? moe_device_expert_line(d, (uint32_t)v) : (struct moe_line){0};
    if (out->n > 0)
        return MOE_OK;
    if (v >= 0)
        other = nearest_measured(d, v);
    if (other < 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no times of experts at '%s'%s; measure this "
                        "machine with the pack: moe-profile --device PACK -o DEVICE",
                        d->name, name, moe_bits_unit(name));
    *out = moe_device_expert_line(d, (uint32_t)other);
    for (uint32_t i = 0; i < out->n; i++)
        out->y[i] *= variants[v].bytes.value / variants[other].bytes.value;
    return MOE_OK;
}

/* Takes what depends on positions out of a piece with attention in it. */
static void take_out(struct moe_line *line, double attend, uint32_t n_positions)
{
    for (uint32_t i = 0; i < line->n; i++) {
        double rows = line->x[i];
        double positions = rows * (n_positions - rows) + rows * (rows + 1) / 2;
        line->y[i] = fmax(0, line->y[i] - attend * positions);
    }
}

/* Of a profile that has attention over few positions and over many. */
static void set_attend(struct moe_pace *p, const struct moe_device *d)
{
    const struct moe_device_model *m = &d->model;
    const struct moe_line attention = moe_device_part_line(d, MOE_DEVICE_ATTENTION);
    double near = m->positions, far = m->far_positions;
    double more = m->far_attention.value - seconds_of(&attention, 1);
    p->positions = near;
    if (!(m->far_attention.value > 0 && attention.n > 0 && far > near && more > 0))
        return;
    p->attend = more / (far - near);
    take_out(&p->pieces[MOE_PIECE_ROUTE], p->attend, m->positions);
    take_out(&p->pieces[MOE_PIECE_DENSE], p->attend, m->positions);
}

/* Loads by a profile without bursts that tell: a single one takes longer than its bytes do at the
 * full rate, and the rest is latency. Pieces arrive together as they are asked for. */
static void set_loads_by_reads(struct moe_pace *p, const struct moe_device_storage *s)
{
    struct moe_link_costs *c = &p->loads;
    if (s->n_reads > 0 && s->reads[0].in_flight == 1)
        c->latency = fmax(0, s->reads[0].seconds.value - s->read_bytes.value / p->load_rate);
    if (s->n_reads > 0) {
        c->demands_in_flight = MOE_LINK_DEMANDS_IN_FLIGHT;
        c->prefetches_in_flight = MOE_LINK_PREFETCHES_IN_FLIGHT;
    }
}

/* False: the profile has no bursts that tell. */
static bool set_loads_by_bursts(struct moe_pace *p, const struct moe_device *d)
{
    struct moe_link_costs *c = &p->loads;
    struct moe_device_burst_costs costs;
    if (!moe_device_burst_costs(d, MOE_LINK_PIECE_BYTES, &costs))
        return false;
    p->load_rate = costs.bytes_per_second;
    c->piece = costs.piece;
    c->latency = costs.latency;
    c->demands_in_flight = (uint32_t)(fmin(costs.together, MOE_LINK_DEMANDS_IN_FLIGHT) + 0.5);
    c->prefetches_in_flight = c->demands_in_flight < MOE_LINK_PREFETCHES_IN_FLIGHT
                                  ? c->demands_in_flight
                                  : MOE_LINK_PREFETCHES_IN_FLIGHT;
    return true;
}

/* Loads that are slower than the storage hide its latency and its pieces, and the loader asks for
 * them in their time. */
static int set_loads(struct moe_pace *p, const struct moe_device *d, double load_rate,
                     struct moe_err *err)
{
    MOE_TRY(set_load_rate(p, d, MOE_TIER_STORAGE, load_rate, err));
    if (p->load_rate >= moe_device_load_rate(d, MOE_TIER_STORAGE) && !set_loads_by_bursts(p, d))
        set_loads_by_reads(p, &d->storage);
    if (load_rate > 0)
        p->load_rate = load_rate;
    moe_device_handling(d, &p->loads.handling, &p->loads.handling_byte);
    p->loads.slowdown = d->model.loading_slowdown.value;
    if (p->loads.slowdown > 0 && p->loads.slowdown < 1) /* noise: loads speed nothing up */
        p->loads.slowdown = 1;
    p->loads.wake = d->model.wake.value;
    p->loads.late = d->model.late.value;
    p->loads.interruptions = d->model.interruptions.value;
    return MOE_OK;
}

int moe_pace_of_device(struct moe_pace *out, const struct moe_device *d,
                       const char (*variants)[MOE_NAME_BYTES], uint32_t n_variants,
                       double load_rate, struct moe_err *err)
{
    static const enum moe_device_part parts[MOE_N_PIECES] = {
        [MOE_PIECE_ROUTE] = MOE_DEVICE_ROUTE,
        [MOE_PIECE_BESIDE] = MOE_DEVICE_SHARED,
        [MOE_PIECE_COMBINE] = MOE_DEVICE_COMBINE,
        [MOE_PIECE_DENSE] = MOE_DEVICE_LAYER_DENSE,
    };
    const struct moe_line router = moe_device_part_line(d, MOE_DEVICE_ROUTER);
    double head = moe_device_head_seconds(d);
    *out = (struct moe_pace){
        .n_variants = n_variants, .head = head > 0 ? head : 0, .predict = seconds_of(&router, 1)};
    for (int i = 0; i < MOE_N_PIECES; i++)
        out->pieces[i] = moe_device_part_line(d, parts[i]);
    if (out->pieces[n_variants ? MOE_PIECE_ROUTE : MOE_PIECE_DENSE].n == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no times of this model's layers; measure this "
                        "machine with the pack: moe-profile --device PACK -o DEVICE",
                        d->name);
    for (uint32_t v = 0; v < n_variants; v++)
        MOE_TRY(set_expert(&out->experts[v], d, variants[v], err));
    set_attend(out, d);
    MOE_TRY(set_loads(out, d, load_rate, err));
    return MOE_OK;
}

/* ---- From bandwidth ---- */

enum moe_device_tier moe_pace_tier(const struct moe_device *d, bool accelerator)
{
    const struct moe_device_accelerator *a = &d->accelerator;
    return accelerator && a->name[0] && !a->shares_memory ? MOE_TIER_HOST : MOE_TIER_STORAGE;
}

/* Bytes per second at which computation reads weights; 0: not known. */
static double weights_rate(const struct moe_device *d, enum moe_device_tier from)
{
    const struct moe_figure *own = &d->accelerator.memory_bytes_per_second;
    return MOE_PACE_BANDWIDTH_SHARE *
           (from == MOE_TIER_HOST ? own : &d->host.memory_bytes_per_second)->value;
}

/* Seconds that come on top, whatever the rows. */
static void add_fixed(struct moe_line *line, double seconds)
{
    if (line->n == 0 || !(seconds > 0))
        return;
    moe_line_add(line, 2 * line->x[0], 2 * line->y[0]); /* it goes on as before */
    for (uint32_t i = 0; i < line->n; i++)
        line->y[i] += seconds;
}

/* What an accelerator's launches and links cost on top of its memory's bandwidth. */
static void add_accelerator(struct moe_pace *p, const struct moe_device *d)
{
    const struct moe_device_accelerator *a = &d->accelerator;
    double launch = a->launch_seconds.value, storage = moe_device_load_rate(d, MOE_TIER_STORAGE);
    add_fixed(&p->pieces[MOE_PIECE_ROUTE],
              MOE_PACE_LAYER_LAUNCHES * launch + a->trip_seconds.value);
    add_fixed(&p->pieces[MOE_PIECE_DENSE],
              (MOE_PACE_LAYER_LAUNCHES + MOE_PACE_EXPERTS_LAUNCHES) * launch);
    p->joint = MOE_PACE_EXPERTS_LAUNCHES * launch;
    p->loads.piece = a->link_piece_seconds.value;
    if (storage > 0)
        p->storage_rate = storage;
}

/* One point: constant up to it, proportional after it; none without bytes. */
static struct moe_line reading(uint64_t bytes, double rate)
{
    struct moe_line line = {0};
    moe_line_add(&line, MOE_PACE_FREE_ROWS, (double)bytes / rate);
    return line;
}

int moe_pace_of_bandwidth(struct moe_pace *out, const struct moe_device *d,
                          const struct moe_weights *w, enum moe_device_tier from, double load_rate,
                          struct moe_err *err)
{
    double rate = weights_rate(d, from);
    *out = (struct moe_pace){.n_variants = w->n_variants};
    if (!(rate > 0))
        return moe_fail(err, MOE_ERR_USAGE,
                        "device profile '%s': no bandwidth of the memory that computation reads "
                        "weights from; add memory_bytes_per_second of the %s",
                        d->name, from == MOE_TIER_HOST ? "accelerator" : "host");
    if (w->n_moe_layers > 0) {
        out->pieces[MOE_PIECE_ROUTE] = reading(w->attention_bytes, rate);
        out->pieces[MOE_PIECE_BESIDE] = reading(w->shared_bytes, rate);
    }
    if (w->n_layers > w->n_moe_layers)
        out->pieces[MOE_PIECE_DENSE] =
            reading(w->attention_bytes - w->router_bytes + w->dense_bytes, rate);
    for (uint32_t v = 0; v < w->n_variants; v++)
        out->experts[v] = reading(w->expert_bytes[v], rate);
    out->head = (double)w->head_bytes / rate;
    out->predict = (double)w->router_bytes / rate;
    if (from == MOE_TIER_HOST)
        add_accelerator(out, d);
    return set_load_rate(out, d, from, load_rate, err);
}
