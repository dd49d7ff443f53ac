/*
 * Transfers of expert segments through their stages: read from disk into a place of the host tier
 * unless they are there, copied to their slot, reported.
 */
#include <math.h>

#include "experts/experts_tiers_state.h"

/* How long a wait watches copies alone before it polls the reads again. */
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
        cached_fail(t->c, tag / MOE_PACK_MAX_SEGMENTS, tag % MOE_PACK_MAX_SEGMENTS, status, why);
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
    uint32_t slot = tag / MOE_PACK_MAX_SEGMENTS, segment = tag % MOE_PACK_MAX_SEGMENTS;
    const struct moe_expert_segment which = moe_host_tier_segment(&t->host, x->key, segment);
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
    uint32_t segment = tag % MOE_PACK_MAX_SEGMENTS;
    const struct moe_expert_segment which = moe_host_tier_segment(&t->host, x->key, segment);
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
    uint32_t slot = tag / MOE_PACK_MAX_SEGMENTS, bit = 1u << tag % MOE_PACK_MAX_SEGMENTS;
    uint32_t place = moe_host_places_find(places, x->key);
    if (place == MOE_NO_PLACE)
        place =
            moe_host_places_take(places, moe_store_slot(t->c->store, slot)->class_index, x->key);
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
    uint32_t tag = (uint32_t)done->tag, bit = 1u << tag % MOE_PACK_MAX_SEGMENTS;
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
    const struct moe_arrival a = {.slot = tag / MOE_PACK_MAX_SEGMENTS,
                                  .segment = tag % MOE_PACK_MAX_SEGMENTS,
                                  .status = done->status};
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
        arrivals[n] = (struct moe_arrival){.slot = tag / MOE_PACK_MAX_SEGMENTS,
                                           .segment = tag % MOE_PACK_MAX_SEGMENTS,
                                           .status = x->status};
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
