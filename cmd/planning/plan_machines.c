/* --machines: where a model's experts would lie on several machines, and what that would give. */
#include "planning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "fmt/emit.h"
#include "model/shape.h"
#include "plan/planner.h"
#include "profile/machines.h"
#include "ranks/message.h"
#include "ranks/wire.h"
#include "sched/share.h"

enum {
    TOKEN_LAYERS = 40000, /* of the trace, for each trial */
    FEW_ROWS = 8,         /* of a pass where memory is short */
};

static const uint64_t ANY_MODEL = 1ULL << 50; /* bytes */

/* Without --strategy the fastest of these is taken; who holds all of its experts reads none. */
static const char *const candidates[] = {"lru", "lru+cache=learned", "prefetch"};
enum { N_CANDIDATES = sizeof candidates / sizeof candidates[0] };

/* A model on machines. */
struct cluster {
    const struct plan_inputs *in;
    struct moe_machines *machines;
    struct moe_plan_memory beside; /* of the machine that runs the model */
    struct moe_strategy strategies[N_CANDIDATES];
    uint32_t n_strategies;
    bool automatic;
    enum plan_shares shares;
    const struct moe_device **devices; /* [n] by machine of the file; borrowed */

    /* Of the present trial, [n] each. */
    struct part {
        double dense, kv; /* of the dense weights, and of the KV cache */
    } parts[MOE_MAX_MACHINES];
    uint8_t attends[MOE_MAX_LAYERS];     /* by layer: the machine that has its attention */
    uint8_t owners[MOE_MAX_LAYERS];      /* ... all of it, where whole layers are shared out */
    struct part layers[MOE_MAX_LAYERS];  /* what each has of these then */
    const char *names[MOE_MAX_MACHINES]; /* borrowed */
    struct moe_planner planners[MOE_MAX_MACHINES];
    struct moe_shape_fit fits[MOE_MAX_MACHINES];
    struct moe_inventory own[MOE_MAX_MACHINES]; /* tables shared but for class_of */
    struct moe_pace paces[MOE_MAX_MACHINES];
    struct moe_wire_pace wires[MOE_MAX_MACHINES];
    uint8_t *holders; /* [n_keys][MOE_HOLDERS] */
    uint64_t *uses;   /* [n_keys]; NULL: there are no statistics */
};

struct outcome {
    uint32_t n;
    struct moe_strategy strategy;
    struct moe_trial_run runs[MOE_MAX_MACHINES];
    struct moe_simulated_work work[MOE_MAX_MACHINES];
    uint32_t n_experts[MOE_MAX_MACHINES];
    double uses[MOE_MAX_MACHINES]; /* share of the activations */
};

/* ---- Machines ---- */

/* A machine that is known by two figures. */
static struct moe_device *device_of_figures(const struct moe_machine *m, struct moe_err *err)
{
    struct moe_device *d = moe_alloc(1, sizeof *d, err);
    if (!d)
        return NULL;
    snprintf(d->name, sizeof d->name, "%s", m->name);
    d->host.memory_bytes_per_second.value = m->memory_bytes_per_second;
    d->storage.bytes_per_second.value = m->storage_bytes_per_second;
    return d;
}

static struct moe_device *device_of(const struct moe_machine *m, const char *file,
                                    struct moe_err *err)
{
    struct moe_device *d = NULL;
    const char *slash = strrchr(file, '/');
    char path[2 * MOE_DEVICE_TEXT];
    if (!m->profile[0])
        return device_of_figures(m, err);
    if (m->profile[0] == '/' || !slash)
        snprintf(path, sizeof path, "%s", m->profile);
    else
        snprintf(path, sizeof path, "%.*s/%s", (int)(slash - file), file, m->profile);
    moe_device_read(&d, path, err);
    return d;
}

static struct moe_wire_pace wire_of(const struct moe_machine_link *l)
{
    return (struct moe_wire_pace){.latency = l->latency_seconds,
                                  .byte = l->bytes_per_second > 0 ? 1 / l->bytes_per_second : 0,
                                  .handling = l->handling_seconds,
                                  .handling_byte = l->handling_seconds_per_byte};
}

/* ---- A trial ---- */

static struct moe_plan_memory memory_of(const struct cluster *c, uint32_t i)
{
    struct moe_plan_memory m = c->beside;
    m.dense = (uint64_t)((double)m.dense * c->parts[i].dense);
    m.kv = (uint64_t)((double)m.kv * c->parts[i].kv);
    m.program += c->machines->n > 1 ? MOE_WIRE_MPI_BYTES : 0; /* all are the same program */
    if (i == 0 && c->machines->n > 1) {
        const struct moe_config *model = &c->in->config;
        const bool whole = c->shares == PLAN_SHARES_LAYERS;
        const struct moe_rank_shape shape = {.batch = m.batch,
                                             .top_k = model->top_k,
                                             .stride = whole ? moe_config_state_width(model)
                                                             : model->hidden,
                                             .n_whole = whole ? model->n_layers : 0};
        m.work += moe_rank_unread_bytes(&shape, MOE_WIRE_MPI_AT_ONCE);
    }
    if (i > 0 && c->shares != PLAN_SHARES_LAYERS) {
        m.work = 3 * (uint64_t)m.batch * c->in->config.hidden * sizeof(float) +
                 (c->parts[i].kv > 0 ? c->beside.work : 0);
    }
    m.total = c->machines->machines[i].memory_bytes;
    m.experts = 0;
    return m;
}

/* What a description of the model lacks of another: of the weights by their number, of keys and
 * values by their width. */
static struct part lacks(const struct moe_shape_bytes *some, const struct moe_shape_bytes *whole)
{
    return (struct part){1 - (double)some->dense / (double)whole->dense,
                         1 - (double)some->kv_position / (double)whole->kv_position};
}

/* What each layer has of the weights, and of the KV cache; whose it is will be seen. */
static int measure_layers(struct cluster *c, struct moe_err *err)
{
    static struct moe_config without; /* too large for the stack */
    const struct moe_config *all = &c->in->config;
    const struct moe_bits bits = {16, 16};
    struct moe_shape_bytes whole, some;
    uint8_t owners[MOE_MAX_LAYERS] = {0};
    MOE_TRY(moe_shape_bytes(&whole, all, bits, 16, 64, err));
    for (uint32_t layer = 0; layer < all->n_layers; layer++) {
        without = *all;
        owners[layer] = 1;
        moe_config_share_layers(&without, 0, owners);
        owners[layer] = 0;
        MOE_TRY(moe_shape_bytes(&some, &without, bits, 16, 64, err));
        c->layers[layer] = lacks(&some, &whole);
    }
    return MOE_OK;
}

/* Which machine has each layer's attention, and what each has of the weights and the KV cache,
 * without whole layers, which are shared out later. */
static int share_attention(struct cluster *c, struct moe_err *err)
{
    static struct moe_config first, without; /* too large for the stack */
    const struct moe_config *all = &c->in->config;
    const uint32_t n = c->machines->n;
    const struct moe_bits bits = {16, 16};
    struct moe_shape_bytes whole, some;
    memset(c->attends, 0, sizeof c->attends);
    for (uint32_t i = 0; i < n; i++)
        c->parts[i] = (struct part){i == 0, i == 0};
    for (uint32_t i = 0; i < all->n_layers && c->shares == PLAN_SHARES_LAYERS; i++) {
        c->parts[0].dense -= c->layers[i].dense;
        c->parts[0].kv -= c->layers[i].kv;
    }
    if (c->shares != PLAN_SHARES_ATTENTION)
        return MOE_OK;
    first = *all;
    moe_config_share_attention(&first, 0, n);
    if (n > 1)
        MOE_TRY(moe_config_check_shared(&first, c->in->name, err));
    for (uint32_t layer = 0; layer < all->n_layers; layer++)
        c->attends[layer] = first.layers[layer].elsewhere ? first.layers[layer].elsewhere - 1 : 0;
    MOE_TRY(moe_shape_bytes(&whole, all, bits, 16, 64, err));
    for (uint32_t i = 1; i < n; i++) {
        without = *all;
        for (uint32_t layer = 0; layer < all->n_layers; layer++)
            without.layers[layer].elsewhere = c->attends[layer] == i;
        MOE_TRY(moe_shape_bytes(&some, &without, bits, 16, 64, err));
        c->parts[i] = lacks(&some, &whole);
        c->parts[0].dense -= c->parts[i].dense;
        c->parts[0].kv -= c->parts[i].kv;
    }
    return MOE_OK;
}

static void release_inventories(struct cluster *c)
{
    for (uint32_t i = 0; i < MOE_MAX_MACHINES; i++) {
        free(c->own[i].class_of);
        c->own[i].class_of = NULL;
    }
}

/* The inventory without the experts of others. */
static int own_inventory(struct cluster *c, uint32_t rank, struct moe_err *err)
{
    const struct moe_inventory *all = c->in->inventory;
    struct moe_inventory *own = &c->own[rank];
    const uint32_t n_keys = moe_inventory_n_keys(all);
    free(own->class_of);
    *own = *all;
    own->class_of = moe_alloc((uint64_t)n_keys * all->n_variants, sizeof *own->class_of, err);
    if (!own->class_of)
        return MOE_ERR_MEMORY;
    for (uint32_t key = 0; key < n_keys; key++)
        for (uint32_t v = 0; v < all->n_variants; v++) {
            const uint64_t copy = moe_expert_copy(all->n_variants, key, v);
            own->class_of[copy] =
                moe_rank_holds(c->holders, key, (uint8_t)rank) ? all->class_of[copy] : UINT32_MAX;
        }
    return MOE_OK;
}

/* Gives whole layers to machines, which have the same parts of weights and KV cache then. room:
 * what each has for layers. */
static int share_layers(struct cluster *c, const uint64_t *room, struct moe_err *err)
{
    const struct moe_config *m = &c->in->config;
    uint64_t bytes[MOE_MAX_LAYERS];
    bool parts[MOE_MAX_LAYERS];
    for (uint32_t layer = 0; layer < m->n_layers; layer++) {
        bytes[layer] = (uint64_t)(c->layers[layer].dense * (double)c->beside.dense +
                                  c->layers[layer].kv * (double)c->beside.kv);
        parts[layer] = moe_config_parts_at(m, layer);
    }
    MOE_TRY(moe_share_layers(c->in->inventory, bytes, parts, m->n_layers, room, c->machines->n,
                             c->owners, c->holders, err));
    for (uint32_t layer = 0; layer < m->n_layers; layer++) {
        c->parts[c->owners[layer]].dense += c->layers[layer].dense;
        c->parts[c->owners[layer]].kv += c->layers[layer].kv;
    }
    return MOE_OK;
}

static int share_out(struct cluster *c, struct outcome *out, struct moe_err *err)
{
    const struct plan_inputs *in = c->in;
    const struct moe_statistics *s = in->statistics;
    uint64_t room[MOE_MAX_MACHINES];
    double all_uses = 0;
    char takes[32], has[32];
    for (uint32_t i = 0; i < c->machines->n; i++) {
        const struct moe_plan_memory m = memory_of(c, i);
        const uint64_t beside = m.program + m.dense + m.kv + m.work;
        if (m.total <= beside)
            return moe_fail(err, MOE_ERR_LIMIT,
                            "machine '%s' has no room for %s: it has %s, and %s takes %s%s",
                            c->machines->machines[i].name,
                            c->shares == PLAN_SHARES_LAYERS ? "layers" : "experts",
                            moe_format_bytes(m.total, has), i ? "a process" : "everything else",
                            moe_format_bytes(beside, takes),
                            i ? "" : "; name another one first, or a shorter context -c");
        room[i] = m.total - beside;
        out->n_experts[i] = 0;
        out->uses[i] = 0;
    }
    if (s && !c->uses) {
        c->uses =
            moe_inventory_uses(in->inventory, moe_statistics_placement(s), s->shape.n_layers, err);
        MOE_TRY(c->uses ? MOE_OK : MOE_ERR_MEMORY);
    }
    MOE_TRY(c->shares == PLAN_SHARES_LAYERS
                ? share_layers(c, room, err)
                : moe_share_experts(in->inventory, room, c->machines->n, c->uses, c->holders, err));
    for (uint32_t key = 0; key < moe_inventory_n_keys(in->inventory); key++) {
        const double n = c->uses ? (double)c->uses[key] : 1;
        const uint8_t *h = c->holders + MOE_HOLDERS * key;
        const bool twice = h[1] != MOE_NO_RANK;
        if (h[0] == MOE_NO_RANK)
            continue; /* no expert's */
        out->n_experts[h[0]]++;
        out->uses[h[0]] += twice ? n / 2 : n;
        if (twice) {
            out->n_experts[h[1]]++;
            out->uses[h[1]] += n / 2;
        }
        all_uses += n;
    }
    for (uint32_t i = 0; i < c->machines->n; i++) {
        out->uses[i] /= all_uses > 0 ? all_uses : 1;
        if (out->n_experts[i] == 0)
            return moe_fail(err, MOE_ERR_LIMIT, "machine '%s' has no room for an expert in its %s",
                            c->machines->machines[i].name,
                            moe_format_bytes(c->machines->machines[i].memory_bytes, has));
    }
    return MOE_OK;
}

static int prepare(struct cluster *c, struct outcome *out, struct moe_err *err)
{
    const struct plan_inputs *in = c->in;
    out->n = c->machines->n;
    MOE_TRY(share_attention(c, err));
    if (c->shares == PLAN_SHARES_LAYERS && out->n > 1)
        MOE_TRY(moe_config_check_parts(&in->config, out->n, in->name, err));
    MOE_TRY(share_out(c, out, err));
    for (uint32_t i = 0; i < out->n; i++) {
        MOE_TRY(own_inventory(c, i, err));
        MOE_TRY(plan_pace_of(in, c->devices[i], &c->paces[i], err));
        c->names[i] = c->machines->machines[i].name;
        c->wires[i] = wire_of(&c->machines->machines[i].link);
        c->fits[i] = (struct moe_shape_fit){.inventory = &c->own[i],
                                            .statistics = in->statistics,
                                            .exact = true,
                                            .low = in->options->strategy.low,
                                            .staging = in->options->strategy.staging,
                                            .memory = memory_of(c, i)};
        c->planners[i] = plan_planner(in, PLAN_OF_PROCESS);
        c->planners[i].inventory = &c->own[i];
        c->planners[i].fitter = moe_fitter_of_shape(&c->fits[i]);
        c->planners[i].pace = &c->paces[i];
        c->planners[i].lookups = NULL;
        c->planners[i].exact = true;
    }
    return MOE_OK;
}

/* Whether a machine does not hold all of its experts. */
static bool reads_any(const struct outcome *o)
{
    for (uint32_t i = 0; i < o->n; i++)
        if (!o->runs[i].fitted.strategy.resident)
            return true;
    return false;
}

/* The fastest of the strategies, with passes of that many rows. */
static int try_batch(struct cluster *c, struct outcome *best, struct moe_err *err)
{
    static struct outcome now; /* too large for the stack */
    bool any = false;
    MOE_TRY(prepare(c, &now, err));
    const struct moe_planner_machines machines = {
        .n = now.n,
        .names = c->names,
        .planners = c->planners,
        .wires = c->wires,
        .holders = c->holders,
        .attends = c->attends,
        .owners = c->shares == PLAN_SHARES_LAYERS ? c->owners : NULL,
        .row_bytes = (c->shares == PLAN_SHARES_LAYERS ? moe_config_state_width(&c->in->config)
                                                      : c->in->config.hidden) *
                     sizeof(float),
    };
    bool loads = true;
    for (uint32_t i = 0; i < c->n_strategies && loads; i++) {
        struct moe_err why = {0};
        int status = moe_planner_try_machines(&machines, &c->strategies[i], c->automatic, now.runs,
                                              now.work, &why);
        if (status == MOE_OK && (!any || moe_trial_tokens_per_second(&now.runs[0]) >
                                             moe_trial_tokens_per_second(&best->runs[0]))) {
            now.strategy = c->strategies[i];
            *best = now;
            any = true;
        }
        loads = status != MOE_OK || reads_any(&now);
        if (status != MOE_OK &&
            (c->n_strategies == 1 || (status != MOE_ERR_USAGE && status != MOE_ERR_LIMIT) ||
             (i + 1 == c->n_strategies && !any))) {
            *err = why;
            return status;
        }
    }
    return MOE_OK;
}

/* As ranks do, has prompts read in passes of fewer rows where memory is short of buffers for more.
 */
static int try_cluster(struct cluster *c, struct outcome *best, struct moe_err *err)
{
    const struct moe_plan_memory asked = c->beside;
    struct moe_plan_memory *m = &c->beside;
    struct moe_err why;
    int status = try_batch(c, best, err);
    while (status == MOE_ERR_LIMIT && !c->in->options->batch && m->batch > FEW_ROWS) {
        const uint32_t rows = m->batch / 2 > FEW_ROWS ? m->batch / 2 : FEW_ROWS;
        if (plan_memory_beside(c->in, rows, m, &why) != MOE_OK)
            break;
        status = try_batch(c, best, &why);
    }
    c->beside = asked;
    return status;
}

/* ---- What would change it ---- */

struct change {
    char what[64];
    double tokens_per_second; /* below 0: it does not fit */
};

static void set_networks(struct moe_machines *m, double bytes_per_second, double latency_times)
{
    for (uint32_t i = 0; i < m->n; i++) {
        struct moe_machine_link *l = &m->machines[i].link;
        if (bytes_per_second > 0)
            l->bytes_per_second = bytes_per_second;
        l->latency_seconds *= latency_times;
        l->handling_seconds *= latency_times > 0 ? 1 : 0;
        l->handling_seconds_per_byte *= latency_times > 0 ? 1 : 0;
    }
}

/* Makes the i-th change to the machines, or to what they share out; false: there is none, or it
 * changes nothing here. */
static bool change_machines(struct moe_machines *m, enum plan_shares *shares, uint32_t i,
                            char *what, size_t room)
{
    static const double gigabits[] = {2.5, 10, 25};
    struct moe_machine *last = &m->machines[m->n - 1];
    switch (i) {
    case 0:
        snprintf(what, room, "one more like %.40s", last->name);
        if (m->n == MOE_MAX_MACHINES || (m->n == 1 && !(m->network.bytes_per_second > 0)))
            return false;
        m->machines[m->n] = *last;
        if (!(last->link.bytes_per_second > 0))
            m->machines[m->n].link = m->network;
        m->n++;
        return true;
    case 1:
        snprintf(what, room, "without %.40s", last->name);
        return --m->n > 1;
    case 8:
        snprintf(what, room, "%.40s by itself", m->machines[0].name);
        if (m->n == 1)
            return false;
        m->n = 1;
        return true;
    case 2:
        snprintf(what, room, "twice the memory of each");
        for (uint32_t k = 0; k < m->n; k++)
            m->machines[k].memory_bytes *= 2;
        return true;
    case 3:
    case 4:
    case 5:
        snprintf(what, room, "a network of %g Gbit/s", gigabits[i - 3]);
        if (m->n < 2 || m->machines[1].link.bytes_per_second > 0.8e9 / 8 * gigabits[i - 3])
            return false;
        set_networks(m, 0.94e9 / 8 * gigabits[i - 3], 1);
        return true;
    case 6:
        snprintf(what, room, "half the network's delay");
        set_networks(m, 0, 0.5);
        return m->n > 1;
    case 7:
        snprintf(what, room, "a network without delay");
        set_networks(m, 1e15, 0);
        return m->n > 1;
    case 9:
        snprintf(what, room, "%s --share-layers",
                 *shares == PLAN_SHARES_LAYERS ? "without" : "with");
        *shares = *shares == PLAN_SHARES_LAYERS ? PLAN_SHARES_EXPERTS : PLAN_SHARES_LAYERS;
        return m->n > 1;
    }
    return false;
}

enum { N_CHANGES = 10 };

static int try_changes(struct cluster *c, struct change *changes, uint32_t *n, struct moe_err *err)
{
    static struct outcome out;
    struct moe_machines *before = c->machines;
    const enum plan_shares shares = c->shares;
    struct moe_machines *changed = moe_alloc(1, sizeof *changed, err);
    int status = changed ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < N_CHANGES && status == MOE_OK; i++) {
        struct change *x = &changes[*n];
        struct moe_err why = {0};
        *changed = *before;
        c->shares = shares;
        if (!change_machines(changed, &c->shares, i, x->what, sizeof x->what))
            continue;
        c->machines = changed;
        if (changed->n > before->n)
            c->devices[before->n] = c->devices[before->n - 1];
        status = try_cluster(c, &out, &why);
        x->tokens_per_second = status == MOE_OK ? moe_trial_tokens_per_second(&out.runs[0]) : -1;
        if (status == MOE_ERR_UNSUPPORTED) { /* not with this model, whatever the memory */
            status = MOE_OK;
            continue;
        }
        if (status == MOE_ERR_LIMIT || status == MOE_ERR_USAGE)
            status = MOE_OK;
        if (status != MOE_OK)
            *err = why;
        (*n)++;
    }
    c->machines = before;
    c->shares = shares;
    free(changed);
    return status;
}

/* ---- Saying it ---- */

static double per(double sum, double n)
{
    return n > 0 ? sum / n : 0;
}

static double found_share(const struct outcome *o, uint32_t i)
{
    const struct moe_counts *d = &o->runs[0].simulated.decode.experts;
    const struct moe_simulated_work *w = &o->work[i];
    return i ? per((double)w->hits, (double)w->activations)
             : per((double)(d->cache_hits + d->prefetch_hits),
                   (double)(d->activations - d->elsewhere));
}

static uint64_t bytes_read(const struct outcome *o, uint32_t i)
{
    return i ? o->work[i].bytes : o->runs[0].simulated.decode.bytes;
}

static double busy_seconds(const struct outcome *o, uint32_t i)
{
    const struct moe_simulated_phase *d = &o->runs[0].simulated.decode;
    return i ? o->work[i].busy_seconds : d->seconds - d->host_seconds;
}

static void say_text(const struct cluster *c, const struct outcome *o, const struct change *changes,
                     uint32_t n_changes)
{
    const struct moe_simulated *s = &o->runs[0].simulated;
    const struct moe_simulated_phase *d = &s->decode;
    const double tokens = (double)d->tokens, now = moe_trial_tokens_per_second(&o->runs[0]);
    const struct moe_inventory *inv = c->in->inventory;
    const uint32_t n_all = moe_loop_owners(&inv->loop, inv->n_layers) * inv->n_experts;
    char name[MOE_STRATEGY_BRIEF] = "all in memory", whole[32];
    if (reads_any(o))
        moe_strategy_brief(&o->strategy, name);
    cli_say("%s: %s of experts; %s\n", moe_path_name(c->in->name),
            moe_format_bytes(moe_inventory_all_bytes(c->in->inventory, 0), whole), name);
    cli_say("%-20s %8s %8s %8s %8s %8s %10s\n", "machine", "memory", "experts", "uses", "in memory",
            "at work", "MB/token");
    for (uint32_t i = 0; i < o->n; i++)
        cli_say("%-20.20s %8s %7.1f%% %7.1f%% %8.1f%% %7.1f%% %10.2f\n",
                c->machines->machines[i].name, c->machines->machines[i].memory,
                100.0 * o->n_experts[i] / n_all, 100 * o->uses[i], 100 * found_share(o, i),
                100 * per(busy_seconds(o, i), d->seconds),
                1e-6 * per((double)bytes_read(o, i), tokens));
    cli_say("\n%.3g tokens/s, prompts %.3g; a token takes %.3g ms: computing %.3g, handling loads "
            "%.3g, waiting for the disk %.3g, for other machines %.3g\n",
            now, per((double)s->prefill.tokens, s->prefill.seconds), 1e3 * per(d->seconds, tokens),
            1e3 * per(d->compute_seconds, tokens), 1e3 * per(d->handling_seconds, tokens),
            1e3 * per(d->stall_seconds, tokens), 1e3 * per(d->host_seconds, tokens));
    double messages = 0, there = 0, back = 0;
    for (uint32_t i = 1; i < o->n; i++) {
        messages += (double)o->work[i].messages;
        there += (double)o->work[i].bytes_sent;
        back += (double)o->work[i].bytes_received;
    }
    if (o->n > 1)
        cli_say("a token: %.1f messages, %.1f KB there, %.1f KB back\n", per(messages, tokens),
                1e-3 * per(there, tokens), 1e-3 * per(back, tokens));
    cli_say("\n");
    for (uint32_t i = 0; i < n_changes; i++)
        if (changes[i].tokens_per_second >= 0)
            cli_say("%-44s %8.3g tokens/s, %.2f times\n", changes[i].what,
                    changes[i].tokens_per_second, per(changes[i].tokens_per_second, now));
        else
            cli_say("%-44s does not fit\n", changes[i].what);
}

static int say_json(const struct cluster *c, const struct outcome *o, const struct change *changes,
                    uint32_t n_changes, struct moe_err *err)
{
    const struct moe_simulated *s = &o->runs[0].simulated;
    const struct moe_simulated_phase *d = &s->decode;
    struct moe_buf out = {0};
    struct moe_emit e;
    char name[MOE_STRATEGY_BRIEF] = "resident";
    if (reads_any(o))
        moe_strategy_brief(&o->strategy, name);
    moe_emit_begin_json(&e, &out, MOE_EMIT_INDENTED);
    moe_emit_text(&e, "strategy", name);
    moe_emit_rounded(&e, "decode_tokens_per_s", 9, moe_trial_tokens_per_second(&o->runs[0]));
    moe_emit_rounded(&e, "prefill_tokens_per_s", 9,
                     per((double)s->prefill.tokens, s->prefill.seconds));
    moe_emit_u64(&e, "decode_tokens", d->tokens);
    moe_emit_rounded(&e, "decode_s", 9, d->seconds);
    moe_emit_rounded(&e, "compute_s", 9, d->compute_seconds);
    moe_emit_rounded(&e, "handling_s", 9, d->handling_seconds);
    moe_emit_rounded(&e, "stall_s", 9, d->stall_seconds);
    moe_emit_rounded(&e, "ranks_wait_s", 9, d->host_seconds);
    moe_emit_open_list(&e, "machines");
    for (uint32_t i = 0; i < o->n; i++) {
        const struct moe_simulated_work *w = &o->work[i];
        moe_emit_open_line_map(&e, NULL);
        moe_emit_text(&e, "name", c->machines->machines[i].name);
        moe_emit_u64(&e, "memory_bytes", c->machines->machines[i].memory_bytes);
        moe_emit_u64(&e, "experts", o->n_experts[i]);
        moe_emit_rounded(&e, "uses", 9, o->uses[i]);
        moe_emit_rounded(&e, "hit_rate", 9, found_share(o, i));
        moe_emit_rounded(&e, "busy_s", 9, busy_seconds(o, i));
        moe_emit_u64(&e, "bytes_read", bytes_read(o, i));
        moe_emit_u64(&e, "messages", w->messages);
        moe_emit_u64(&e, "bytes_sent", w->bytes_sent);
        moe_emit_u64(&e, "bytes_received", w->bytes_received);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_open_list(&e, "changes");
    for (uint32_t i = 0; i < n_changes; i++) {
        moe_emit_open_line_map(&e, NULL);
        moe_emit_text(&e, "what", changes[i].what);
        moe_emit_rounded(&e, "decode_tokens_per_s", 9,
                         changes[i].tokens_per_second >= 0 ? changes[i].tokens_per_second : NAN);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    return cli_print(moe_emit_end(&e, err), &out, err);
}

/* ---- All of it ---- */

static int choose_strategies(struct cluster *c, const struct plan_options *o, struct moe_err *err)
{
    bool ignored;
    MOE_TRY(strategy_options_apply(&o->strategy, &c->strategies[0], &c->automatic, err));
    c->n_strategies = 1;
    for (uint32_t i = 0; c->automatic && i < N_CANDIDATES; i++) {
        struct strategy_options one = o->strategy;
        one.strategy = candidates[i];
        MOE_TRY(strategy_options_apply(&one, &c->strategies[i], &ignored, err));
        c->n_strategies = i + 1;
    }
    return MOE_OK;
}

int plan_machines(const struct plan_options *o, const char *path, enum plan_shares shares,
                  bool outlook, bool json, struct moe_err *err)
{
    static struct cluster c; /* too large for the stack */
    static struct outcome out;
    static struct plan_inputs in;
    struct plan_options options = *o;
    struct change changes[N_CHANGES];
    struct moe_device *devices[MOE_MAX_MACHINES + 1] = {0};
    uint32_t n_changes = 0;
    cli_catch_termination();
    int status;
    c = (struct cluster){
        .in = &in, .shares = shares, .devices = (const struct moe_device **)devices};
    MOE_STEP(moe_machines_read(&c.machines, path, err));
    const uint32_t n = c.machines->n;
    for (uint32_t i = 0; i < n; i++) {
        devices[i] = device_of(&c.machines->machines[i], path, err);
        MOE_STEP(devices[i] ? MOE_OK : err->status);
    }
    MOE_STEP(choose_strategies(&c, o, err));
    options.memory = c.machines->machines[0].memory_bytes;
    options.device = devices[0];
    options.on_cpu = true;
    status = plan_inputs_open(&in, &options, err);
    if (status == MOE_ERR_LIMIT) { /* that is of one process: what the first takes is seen below */
        plan_inputs_close(&in);
        options.memory = ANY_MODEL;
        options.batch = FEW_ROWS;
        status = plan_inputs_open(&in, &options, err);
    }
    MOE_STEP(status);
    if (!cli_given("max-tokens"))
        in.excerpt = moe_excerpt_of(in.trace, TOKEN_LAYERS / in.inventory->n_layers + 1);
    MOE_STEP(plan_memory_beside(&in, 0, &c.beside, err));
    if (outlook || shares == PLAN_SHARES_LAYERS)
        MOE_STEP(measure_layers(&c, err));
    c.holders = moe_alloc(moe_inventory_n_keys(in.inventory), MOE_HOLDERS, err);
    MOE_STEP(c.holders ? MOE_OK : MOE_ERR_MEMORY);
    MOE_STEP(try_cluster(&c, &out, err));
    if (outlook)
        MOE_STEP(try_changes(&c, changes, &n_changes, err));
    cli_progress_done();
    if (json)
        MOE_STEP(say_json(&c, &out, changes, n_changes, err));
    else
        say_text(&c, &out, changes, n_changes);
out:
    release_inventories(&c);
    free(c.holders);
    free(c.uses);
    plan_inputs_close(&in);
    for (uint32_t i = 0; c.machines && i < c.machines->n; i++)
        free(devices[i]);
    free(c.machines);
    return status;
}
