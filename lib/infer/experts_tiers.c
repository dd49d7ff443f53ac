/*
 * Three tiers: GPU, host, disk. Segments of experts take the steps of sched/host_places.h: one
 * loader reads them from disk into a place of the host tier unless they are there, another copies
 * them to their slot.
 */
#include "infer/experts_tiers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

enum { TIERS_AT_ONCE = 32 /* completions taken at a time */ };

struct tiers_load {
    uint32_t handle; /* of the loader that has it */
    int status;      /* failed: why */
    uint32_t next;   /* failed: the one after */
};

struct tiers {
    struct cached *c;
    struct moe_host_tier host;
    struct moe_loader *disk;            /* NULL: the host tier holds everything */
    struct moe_loader_stats seen;       /* of the disk's, as last counted */
    struct moe_transfers transfers;     /* [slots][MOE_PACK_MAX_SEGMENTS]; a number here is a tag */
    struct tiers_load *loads;           /* likewise */
    uint32_t n_reading, n_copying;      /* with the loaders */
    uint32_t first_failed, last_failed; /* in the order in which they are reported */
    struct slot_uses uses;
};

/* ---- One transfer ---- */

/* It will be reported. */
static void note_failed(struct tiers *t, uint32_t tag, int status, const char *why)
{
    struct tiers_load *x = &t->loads[tag];
    x->status = status;
    x->next = MOE_LINK_NONE;
    if (t->first_failed == MOE_LINK_NONE)
        t->first_failed = tag;
    else
        t->loads[t->last_failed].next = tag;
    t->last_failed = tag;
    if (status != MOE_ERR_INTERRUPTED)
        cached_fail(t->c, moe_tag_slot(tag), moe_tag_segment(tag), status, why);
}

/* Submits a step of a transfer, from and to where `step` says, to its loader. */
static bool submit_step(struct tiers *t, uint32_t tag, struct moe_loader *loader,
                        struct moe_load *step, uint32_t *n_with_loader)
{
    const struct moe_transfer *x = &t->transfers.transfers[tag];
    struct moe_err err = {0};
    step->priority = x->priority;
    step->score = x->score;
    step->tag = tag;
    int status = moe_loader_submit(loader, step, &t->loads[tag].handle, &err);
    if (status == MOE_OK)
        ++*n_with_loader;
    else
        note_failed(t, tag, status, err.text);
    return status == MOE_OK;
}

static bool copy_to_slot(void *ctx, uint32_t tag)
{
    struct tiers *t = ctx;
    const struct moe_transfer *x = &t->transfers.transfers[tag];
    const struct moe_expert_segment which = moe_host_tier_segment(&t->host, x->copy, x->segment);
    struct moe_load load = moe_expert_load(t->c->pack, &which);
    uint32_t slot = moe_tag_slot(tag);
    load.stored_bytes = load.raw_bytes;
    load.from = moe_host_tier_at(&t->host, x->place, x->segment);
    load.to = cached_segment_at(t->c, slot, x->segment);
    slot_uses_overwrite(&t->uses, slot);
    return submit_step(t, tag, t->c->loader, &load, &t->n_copying);
}

static bool read_to_place(void *ctx, uint32_t tag)
{
    struct tiers *t = ctx;
    const struct moe_transfer *x = &t->transfers.transfers[tag];
    const struct moe_expert_segment which = moe_host_tier_segment(&t->host, x->copy, x->segment);
    struct moe_load load = moe_expert_load(t->c->pack, &which);
    load.to = moe_host_tier_at(&t->host, x->place, x->segment);
    return submit_step(t, tag, t->disk, &load, &t->n_reading);
}

static bool is_reading(const struct tiers *t, uint32_t tag)
{
    return t->transfers.transfers[tag].state == MOE_TRANSFER_READING;
}

static bool drop_step(void *ctx, uint32_t tag)
{
    struct tiers *t = ctx;
    bool reading = is_reading(t, tag);
    if (!moe_loader_cancel(reading ? t->disk : t->c->loader, t->loads[tag].handle))
        return false;
    --*(reading ? &t->n_reading : &t->n_copying);
    return true;
}

static void promote_step(void *ctx, uint32_t tag)
{
    struct tiers *t = ctx;
    moe_loader_promote(is_reading(t, tag) ? t->disk : t->c->loader, t->loads[tag].handle,
                       MOE_LOAD_DEMAND, 0);
}

static const struct moe_transfer_ops transfer_ops = {
    .read = read_to_place, .copy = copy_to_slot, .drop = drop_step, .promote = promote_step};

/* ---- What has ended ---- */

static void read_ended(struct tiers *t, const struct moe_load_done *done)
{
    bool ok = done->status == MOE_OK;
    t->n_reading--;
    if (!ok)
        note_failed(t, (uint32_t)done->tag, done->status, moe_loader_error(t->disk));
    moe_transfers_read(&t->transfers, (uint32_t)done->tag, ok);
}

static struct moe_arrival copy_ended(struct tiers *t, const struct moe_load_done *done)
{
    const struct moe_arrival a = {.slot = moe_tag_slot(done->tag),
                                  .segment = moe_tag_segment(done->tag),
                                  .status = done->status};
    t->n_copying--;
    if (a.status != MOE_OK && a.status != MOE_ERR_INTERRUPTED)
        cached_fail(t->c, a.slot, a.segment, a.status, moe_loader_error(t->c->loader));
    moe_transfers_copied(&t->transfers, (uint32_t)done->tag, a.status == MOE_OK);
    return a;
}

static uint32_t report_failed(struct tiers *t, struct moe_arrival *arrivals, uint32_t max)
{
    uint32_t n = 0;
    for (; n < max && t->first_failed != MOE_LINK_NONE; n++) {
        uint32_t tag = t->first_failed;
        const struct tiers_load *x = &t->loads[tag];
        t->first_failed = x->next;
        t->transfers.transfers[tag].state = MOE_TRANSFER_NONE;
        arrivals[n] = (struct moe_arrival){
            .slot = moe_tag_slot(tag), .segment = moe_tag_segment(tag), .status = x->status};
    }
    return n;
}

/* A function of the loader that returns what it has done. */
typedef uint32_t look(struct moe_loader *l, struct moe_load_done *done, uint32_t max);

/* Takes in reads, then copies; what was read begins to be copied. */
static uint32_t attend(struct tiers *t, look *at_reads, look *at_copies,
                       struct moe_arrival *arrivals, uint32_t max)
{
    struct moe_load_done done[TIERS_AT_ONCE];
    uint32_t n = t->n_reading ? at_reads(t->disk, done, TIERS_AT_ONCE) : 0;
    for (; n > 0; n = moe_loader_poll(t->disk, done, TIERS_AT_ONCE))
        for (uint32_t i = 0; i < n; i++)
            read_ended(t, &done[i]);
    moe_transfers_go_on(&t->transfers);
    n = report_failed(t, arrivals, max);
    uint32_t n_copied = n < max ? at_copies(t->c->loader, done, max - n) : 0;
    for (uint32_t i = 0; i < n_copied; i++)
        arrivals[n++] = copy_ended(t, &done[i]);
    moe_transfers_go_on(&t->transfers);
    return n;
}

/* ---- Waiting and modelled time ---- */

/* How long a wait watches only copies before it polls the reads again. */
static const double BRIEF_SECONDS = 500e-6;

/* Only decodes what was read, with all computing threads. */
static uint32_t decode(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    return moe_loader_wait_for(l, done, max, 0);
}

static uint32_t wait_briefly(struct moe_loader *l, struct moe_load_done *done, uint32_t max)
{
    return moe_loader_wait_for(l, done, max, BRIEF_SECONDS);
}

/* Advances both clocks to the end of the next piece that is read, or by `most`; returns how far. */
static double step(struct tiers *t, double most)
{
    double seconds = moe_loader_next_piece(t->disk);
    seconds = seconds < most ? seconds : most;
    moe_loader_advance(t->disk, seconds);
    moe_loader_advance(t->c->loader, seconds);
    return seconds;
}

/* Copies end before reads do: while there are any, this sleeps for them, and polls the reads in
 * between. */
static uint32_t wait_for_arrival(struct tiers *t, struct moe_arrival *arrivals, uint32_t max)
{
    uint32_t n =
        attend(t, moe_loader_poll, t->disk ? moe_loader_poll : moe_loader_wait, arrivals, max);
    while (n == 0 && t->n_reading + t->n_copying > 0) {
        look *at_reads = t->n_copying ? decode : moe_loader_wait;
        look *at_copies = t->n_copying ? wait_briefly : moe_loader_poll;
        if (t->c->base.lockstep) {
            step(t, t->n_copying ? moe_loader_next_piece(t->c->loader) : INFINITY);
            at_reads = at_copies = moe_loader_poll;
        }
        n = attend(t, at_reads, at_copies, arrivals, max);
    }
    return n;
}

void tiers_advance(struct tiers *t, double seconds)
{
    if (!t->disk)
        moe_loader_advance(t->c->loader, seconds);
    while (t->disk && seconds > 0) {
        seconds -= step(t, seconds);
        attend(t, moe_loader_poll, moe_loader_poll, NULL, 0);
    }
}

/* ---- The channel ---- */

static int tiers_submit(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                        float score, uint32_t *handle, struct moe_err *err)
{
    struct cached *c = ctx;
    struct tiers *t = c->tiers;
    const struct moe_slot *s = moe_store_slot(c->store, slot);
    uint32_t tag = moe_load_tag(slot, segment);
    uint32_t copy = moe_expert_copy(c->inventory.n_variants, s->key, s->variant);
    if (segment == 0) {
        bool hit = moe_host_places_complete(&t->host.places, &c->inventory, copy);
        c->phase->host_hits += hit;
        c->phase->disk_loads += !hit;
        cached_loading(c, slot);
    }
    *handle = tag;
    moe_transfers_add(&t->transfers, tag, copy, segment, priority, score);
    return MOE_OK; /* a load that its loader refuses is reported as failed */
}

static void tiers_promote(void *ctx, uint32_t handle)
{
    moe_transfers_promote(&((struct cached *)ctx)->tiers->transfers, handle);
}

static bool tiers_cancel(void *ctx, uint32_t handle)
{
    return moe_transfers_cancel(&((struct cached *)ctx)->tiers->transfers, handle);
}

static uint32_t tiers_reap(void *ctx, bool wait, struct moe_arrival *arrivals, uint32_t max)
{
    struct cached *c = ctx;
    max = max < TIERS_AT_ONCE ? max : TIERS_AT_ONCE;
    if (!wait)
        return attend(c->tiers, moe_loader_poll, moe_loader_poll, arrivals, max);
    const struct cached_stall stall = cached_stall_begin(c);
    uint32_t n = wait_for_arrival(c->tiers, arrivals, max);
    cached_stall_end(c, &stall);
    return n;
}

struct moe_channel tiers_channel(struct cached *c)
{
    return (struct moe_channel){.ctx = c,
                                .submit = tiers_submit,
                                .promote = tiers_promote,
                                .cancel = tiers_cancel,
                                .reap = tiers_reap,
                                .loaded = cached_loaded,
                                .failure = cached_failure,
                                .hold = cached_hold,
                                .limit_prefetches = cached_limit_prefetches};
}

/* ---- Opening ---- */

static int check_host_bytes(const struct cached *c, const struct moe_cache_options *o,
                            struct moe_err *err)
{
    const struct moe_expert_pools *p = &c->pools;
    uint64_t beside = moe_expert_pools_beside_bytes(p);
    char need[32];
    if (o->strategy && o->strategy->needs_host && !p->host.whole)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "strategy %s computes experts on the host: all of them must be in host "
                        "memory, which takes %s",
                        o->strategy->name, moe_format_bytes(p->host.all_bytes + beside, need));
    if (o->host_bytes < p->host.least_bytes + beside)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "%s: experts on their way to the GPU need at least %s of host memory",
                        moe_pack_path(c->pack),
                        moe_format_bytes(p->host.least_bytes + beside, need));
    return MOE_OK;
}

static int open_transfers(struct tiers *t, uint32_t n_slots, struct moe_err *err)
{
    uint64_t n = (uint64_t)n_slots * MOE_PACK_MAX_SEGMENTS;
    t->first_failed = MOE_LINK_NONE;
    t->loads = moe_alloc(n, sizeof *t->loads, err);
    if (!t->loads)
        return MOE_ERR_MEMORY;
    t->transfers = (struct moe_transfers){
        .ops = &transfer_ops, .ctx = t, .inventory = &t->c->inventory, .places = &t->host.places};
    MOE_TRY(moe_transfers_open(&t->transfers, (uint32_t)n, err));
    return slot_uses_open(&t->uses, t->c->gpu, n_slots, err);
}

int tiers_open(struct tiers **out, struct cached *c, const struct moe_cache_options *o,
               const uint64_t *frequency, const struct moe_progress *progress, struct moe_err *err)
{
    const struct moe_expert_pools *p = &c->pools;
    MOE_TRY(check_host_bytes(c, o, err));
    struct tiers *t = *out = moe_alloc(1, sizeof *t, err);
    if (!t)
        return MOE_ERR_MEMORY;
    t->c = c;
    MOE_TRY(open_transfers(t, p->pools.n_slots, err));
    MOE_TRY(moe_host_tier_open(&t->host, c->pack, &c->inventory, p, c->gpu, err));
    MOE_TRY(moe_loader_open(&t->disk, &p->disk, err));
    MOE_TRY(moe_host_tier_fill(&t->host, t->disk, p->disk.n_requests, p->high, p->low, frequency,
                               progress, err));
    if (p->host.whole) {
        moe_loader_close(t->disk);
        t->disk = NULL;
    } else {
        t->seen = *moe_loader_stats(t->disk); /* filling is not counted */
        c->disk = t->disk;
    }
    return MOE_OK;
}

void tiers_close(struct tiers *t)
{
    if (!t)
        return;
    moe_loader_close(t->disk); /* first: it writes into the host tier */
    moe_host_tier_close(&t->host);
    slot_uses_close(&t->uses);
    moe_transfers_close(&t->transfers);
    free(t->loads);
    free(t);
}

struct slot_uses *tiers_slot_uses(struct tiers *t)
{
    return &t->uses;
}

/* ---- Views and counters ---- */

void tiers_host_view(const struct tiers *t, uint32_t moe_layer, struct moe_expert_view *view)
{
    const struct moe_expert_extent *x =
        moe_pack_expert(t->c->pack, view->layer, view->expert, view->variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(t->c->pack, x->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    const struct moe_inventory *inv = &t->c->inventory;
    uint32_t key = moe_inventory_key(inv, moe_layer, view->expert);
    uint32_t place =
        moe_host_places_find(&t->host.places, moe_expert_copy(inv->n_variants, key, view->variant));
    for (uint32_t i = 0; i < class_->n_segments; i++)
        segments[i] = moe_host_tier_at(&t->host, place, i);
    moe_expert_view_set(view, class_, segments);
}

void tiers_count_traffic(struct tiers *t)
{
    struct moe_phase_stats *phase = t->c->phase;
    if (!t->disk)
        return;
    const struct moe_loader_stats *now = moe_loader_stats(t->disk);
    phase->bytes_read += now->bytes_read - t->seen.bytes_read;
    phase->experts.prefetch_wasted_bytes += now->cancelled_bytes - t->seen.cancelled_bytes;
    phase->read_seconds += now->read_seconds - t->seen.read_seconds;
    phase->handling_seconds += now->work_seconds - t->seen.work_seconds;
    t->seen = *now;
}

/* ---- Uses of slots ---- */

int slot_uses_open(struct slot_uses *u, struct moe_gpu *gpu, uint32_t n_slots, struct moe_err *err)
{
    *u = (struct slot_uses){.gpu = gpu, .before = moe_alloc(n_slots, 1, err)};
    if (!u->before)
        return MOE_ERR_MEMORY;
    memset(u->before, SLOT_USES_MARKS, n_slots);
    for (uint32_t i = 0; i < SLOT_USES_MARKS; i++)
        MOE_TRY(moe_gpu_mark_open(&u->marks[i], gpu, false, err));
    return MOE_OK;
}

void slot_uses_close(struct slot_uses *u)
{
    for (uint32_t i = 0; i < SLOT_USES_MARKS; i++)
        moe_gpu_mark_close(u->marks[i]);
    free(u->before);
}

static void note(struct slot_uses *u, uint32_t slot)
{
    u->before[slot] = (uint8_t)u->mark;
    u->used = true;
}

void slot_uses_give(struct slot_uses *u, uint32_t slot)
{
    note(u, slot);
    u->n_given++;
}

void slot_uses_take_back(struct slot_uses *u, uint32_t slot)
{
    note(u, slot);
    u->n_given--;
}

static void set_mark(struct slot_uses *u)
{
    if (!u->used)
        return;
    moe_gpu_mark_set(u->marks[u->mark], MOE_GPU_COMPUTE);
    u->mark = (u->mark + 1) % SLOT_USES_MARKS;
    u->used = false;
}

void slot_uses_begin(struct slot_uses *u)
{
    if (u->n_given > 0)
        moe_gpu_finish(u->gpu, NULL); /* a failure shows in the next load */
    u->n_given = 0;
    set_mark(u);
}

void slot_uses_overwrite(struct slot_uses *u, uint32_t slot)
{
    set_mark(u);
    if (u->before[slot] < SLOT_USES_MARKS)
        moe_gpu_stream_after(u->gpu, MOE_GPU_COPY, u->marks[u->before[slot]]);
    u->before[slot] = SLOT_USES_MARKS;
}
