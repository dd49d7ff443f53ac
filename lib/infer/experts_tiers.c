/* Three tiers: GPU, host, disk. */
#include "infer/experts_tiers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

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
    t->transfers = moe_alloc(n, sizeof *t->transfers, err);
    t->items = moe_alloc(n, sizeof *t->items, err);
    if (!t->transfers || !t->items)
        return MOE_ERR_MEMORY;
    moe_link_init(&t->waiting, t->items, (uint32_t)n, MOE_LINK_PIECE_BYTES, 0);
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
    free(t->transfers);
    free(t->items);
    free(t);
}

struct slot_uses *tiers_slot_uses(struct tiers *t)
{
    return &t->uses;
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
        uint32_t place = moe_host_places_find(&t->host.places, copy);
        bool hit = place != MOE_NO_PLACE && moe_host_tier_complete(&t->host, place);
        c->phase->host_hits += hit;
        c->phase->disk_loads += !hit;
        cached_loading(c, slot);
    }
    t->transfers[tag] = (struct transfer){
        .state = TRANSFER_WAITING, .copy = copy, .priority = priority, .score = score};
    *handle = tag;
    moe_link_add(&t->waiting, tag, 1, priority, score);
    t->stirred = true;
    transfers_go_on(t);
    return MOE_OK; /* a load that its loader refuses is reported as failed */
}

static void tiers_promote(void *ctx, uint32_t handle)
{
    struct cached *c = ctx;
    struct transfer *x = &c->tiers->transfers[handle];
    x->priority = MOE_LOAD_DEMAND;
    x->score = 0;
    if (x->state == TRANSFER_WAITING)
        moe_link_promote(&c->tiers->waiting, handle, MOE_LOAD_DEMAND, 0);
    else if (x->state == TRANSFER_READING)
        moe_loader_promote(c->tiers->disk, x->handle, MOE_LOAD_DEMAND, 0);
    else if (x->state == TRANSFER_COPYING)
        moe_loader_promote(c->loader, x->handle, MOE_LOAD_DEMAND, 0);
}

static bool tiers_cancel(void *ctx, uint32_t handle)
{
    struct cached *c = ctx;
    struct tiers *t = c->tiers;
    struct transfer *x = &t->transfers[handle];
    switch (x->state) {
    case TRANSFER_NONE:
        return true;
    case TRANSFER_FAILED:
        return false;
    case TRANSFER_WAITING:
        moe_link_drop(&t->waiting, handle);
        break;
    case TRANSFER_READING:
        if (!moe_loader_cancel(t->disk, x->handle))
            return false;
        t->n_reading--;
        t->host.places.places[x->place].loading &= ~(1u << moe_tag_segment(handle));
        transfers_release_place(t, x);
        break;
    case TRANSFER_COPYING:
        if (!moe_loader_cancel(c->loader, x->handle))
            return false;
        t->n_copying--;
        transfers_release_place(t, x);
        break;
    }
    x->state = TRANSFER_NONE;
    return true;
}

static uint32_t tiers_reap(void *ctx, bool wait, struct moe_arrival *arrivals, uint32_t max)
{
    struct cached *c = ctx;
    max = max < TIERS_AT_ONCE ? max : TIERS_AT_ONCE;
    if (!wait)
        return transfers_poll(c->tiers, arrivals, max);
    const struct cached_stall stall = cached_stall_begin(c);
    uint32_t n = transfers_wait(c->tiers, arrivals, max);
    cached_stall_end(c, &stall);
    return n;
}

struct moe_channel tiers_channel(struct cached *c)
{
    return (struct moe_channel){c,          tiers_submit,  tiers_promote,  tiers_cancel,
                                tiers_reap, cached_loaded, cached_failure, cached_hold};
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

/*
 * Transfers of expert segments through their stages: read from disk into a place of the host tier
 * unless they are there, copied to their slot, reported.
 */

/* How long a wait watches only copies before it polls the reads again. */
static const double BRIEF_SECONDS = 500e-6;

/* ---- One transfer ---- */

static struct moe_host_place *place_of(struct tiers *t, const struct transfer *x)
{
    return &t->host.places.places[x->place];
}

void transfers_release_place(struct tiers *t, const struct transfer *x)
{
    moe_host_places_unpin(&t->host.places, x->place);
    t->stirred = true;
}

/* It will be reported. */
static void fail_transfer(struct tiers *t, uint32_t tag, int status, const char *why)
{
    struct transfer *x = &t->transfers[tag];
    transfers_release_place(t, x);
    x->state = TRANSFER_FAILED;
    x->status = status;
    x->next = MOE_LINK_NONE;
    if (t->first_failed == MOE_LINK_NONE)
        t->first_failed = tag;
    else
        t->transfers[t->last_failed].next = tag;
    t->last_failed = tag;
    if (status != MOE_ERR_INTERRUPTED)
        cached_fail(t->c, moe_tag_slot(tag), moe_tag_segment(tag), status, why);
}

/* Submits a stage of a transfer, whose place is pinned, to its loader. */
static void hand_over(struct tiers *t, uint32_t tag, struct moe_loader *loader,
                      const struct moe_load *stage, int state, uint32_t *n_with_loader)
{
    struct transfer *x = &t->transfers[tag];
    struct moe_load load = *stage;
    struct moe_err err = {0};
    load.priority = x->priority;
    load.score = x->score;
    load.tag = tag;
    x->state = state;
    int status = moe_loader_submit(loader, &load, &x->handle, &err);
    if (status == MOE_OK)
        ++*n_with_loader;
    else
        fail_transfer(t, tag, status, err.text);
}

static void copy_to_slot(struct tiers *t, uint32_t tag)
{
    struct transfer *x = &t->transfers[tag];
    uint32_t slot = moe_tag_slot(tag), segment = moe_tag_segment(tag);
    const struct moe_expert_segment which = moe_host_tier_segment(&t->host, x->copy, segment);
    struct moe_load load = moe_expert_load(t->c->pack, &which);
    load.stored_bytes = load.raw_bytes;
    load.from = moe_host_tier_at(&t->host, x->place, segment);
    load.to = cached_segment_at(t->c, slot, segment);
    slot_uses_overwrite(&t->uses, slot);
    hand_over(t, tag, t->c->loader, &load, TRANSFER_COPYING, &t->n_copying);
}

static void read_to_place(struct tiers *t, uint32_t tag)
{
    struct transfer *x = &t->transfers[tag];
    uint32_t segment = moe_tag_segment(tag);
    const struct moe_expert_segment which = moe_host_tier_segment(&t->host, x->copy, segment);
    struct moe_load load = moe_expert_load(t->c->pack, &which);
    load.to = moe_host_tier_at(&t->host, x->place, segment);
    hand_over(t, tag, t->disk, &load, TRANSFER_READING, &t->n_reading);
    if (x->state == TRANSFER_READING)
        place_of(t, x)->loading |= 1u << segment;
}

/* Starts a waiting transfer, if that is possible. */
static void go_on(struct tiers *t, uint32_t tag)
{
    struct transfer *x = &t->transfers[tag];
    struct moe_host_places *places = &t->host.places;
    uint32_t slot = moe_tag_slot(tag), bit = 1u << moe_tag_segment(tag);
    uint32_t place = moe_host_places_find(places, x->copy);
    if (place == MOE_NO_PLACE)
        place =
            moe_host_places_take(places, moe_store_slot(t->c->store, slot)->class_index, x->copy);
    if (place == MOE_NO_PLACE || places->places[place].loading & bit)
        return;
    moe_link_drop(&t->waiting, tag);
    moe_host_places_pin(places, place);
    x->place = place;
    if (places->places[place].arrived & bit)
        copy_to_slot(t, tag);
    else
        read_to_place(t, tag);
}

void transfers_go_on(struct tiers *t)
{
    while (t->stirred) {
        t->stirred = false;
        for (uint32_t i = moe_link_first(&t->waiting), after; i != MOE_LINK_NONE; i = after) {
            after = moe_link_after(&t->waiting, i);
            go_on(t, i);
        }
    }
}

/* ---- What has ended ---- */

static void read_ended(struct tiers *t, const struct moe_load_done *done)
{
    uint32_t tag = (uint32_t)done->tag, bit = 1u << moe_tag_segment(tag);
    struct transfer *x = &t->transfers[tag];
    struct moe_host_place *place = place_of(t, x);
    t->n_reading--;
    t->stirred = true;
    place->loading &= ~bit;
    if (done->status == MOE_OK) {
        place->arrived |= bit;
        copy_to_slot(t, tag);
    } else {
        fail_transfer(t, tag, done->status, moe_loader_error(t->disk));
    }
}

static struct moe_arrival copy_ended(struct tiers *t, const struct moe_load_done *done)
{
    uint32_t tag = (uint32_t)done->tag;
    struct transfer *x = &t->transfers[tag];
    const struct moe_arrival a = {
        .slot = moe_tag_slot(tag), .segment = moe_tag_segment(tag), .status = done->status};
    t->n_copying--;
    x->state = TRANSFER_NONE;
    if (a.status == MOE_OK)
        moe_host_places_copied(&t->host.places, x->place);
    else if (a.status != MOE_ERR_INTERRUPTED)
        cached_fail(t->c, a.slot, a.segment, a.status, moe_loader_error(t->c->loader));
    transfers_release_place(t, x);
    return a;
}

static uint32_t report_failed(struct tiers *t, struct moe_arrival *arrivals, uint32_t max)
{
    uint32_t n = 0;
    for (; n < max && t->first_failed != MOE_LINK_NONE; n++) {
        uint32_t tag = t->first_failed;
        struct transfer *x = &t->transfers[tag];
        t->first_failed = x->next;
        x->state = TRANSFER_NONE;
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
    transfers_go_on(t);
    n = report_failed(t, arrivals, max);
    uint32_t n_copied = n < max ? at_copies(t->c->loader, done, max - n) : 0;
    for (uint32_t i = 0; i < n_copied; i++)
        arrivals[n++] = copy_ended(t, &done[i]);
    transfers_go_on(t);
    return n;
}

/* ---- Waiting and modelled time ---- */

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
uint32_t transfers_wait(struct tiers *t, struct moe_arrival *arrivals, uint32_t max)
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

uint32_t transfers_poll(struct tiers *t, struct moe_arrival *arrivals, uint32_t max)
{
    return attend(t, moe_loader_poll, moe_loader_poll, arrivals, max);
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
