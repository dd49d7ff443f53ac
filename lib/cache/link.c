/* The order in which loads move over a channel, and a model of the time they take. */
#include "cache/link.h"

#include <math.h>

enum { PAGE = 4096 /* loads begin and end at pages */ };

void moe_link_init(struct moe_link *l, struct moe_link_item *items, uint32_t n_items,
                   uint32_t piece_bytes, double rate)
{
    *l = (struct moe_link){.items = items,
                           .n_items = n_items,
                           .piece_bytes = piece_bytes,
                           .prefetch_bytes = piece_bytes,
                           .prefetch_pieces = UINT32_MAX,
                           .rate = rate,
                           .queue = {MOE_LINK_NONE, MOE_LINK_NONE},
                           .ending = {MOE_LINK_NONE, MOE_LINK_NONE},
                           .arrived = {MOE_LINK_NONE, MOE_LINK_NONE}};
    for (uint32_t i = 0; i < n_items; i++)
        items[i] = (struct moe_link_item){.before = MOE_LINK_NONE, .after = MOE_LINK_NONE};
}

void moe_link_limit_prefetches(struct moe_link *l, double bytes)
{
    double pieces = ceil(bytes / l->piece_bytes);
    double least = fmin(MOE_LINK_LEAST_PIECE_BYTES, l->piece_bytes);
    l->prefetch_pieces = pieces < 1 ? 1 : pieces < UINT32_MAX ? (uint32_t)pieces : UINT32_MAX;
    l->prefetch_bytes = (uint32_t)fmax(least, fmin(bytes, l->piece_bytes));
    if (l->prefetch_bytes > PAGE)
        l->prefetch_bytes -= l->prefetch_bytes % PAGE;
}

/* ---- Order ---- */

static bool more_urgent(const struct moe_link_item *a, const struct moe_link_item *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority;
    if (a->priority != MOE_LOAD_DEMAND && a->score != b->score)
        return a->score > b->score;
    return a->order < b->order;
}

/* Inserts after `before`, which is MOE_LINK_NONE for the front. */
static void list_insert(struct moe_link *l, struct moe_link_list *list, uint32_t before,
                        uint32_t item)
{
    uint32_t after = before == MOE_LINK_NONE ? list->first : l->items[before].after;
    l->items[item].before = before;
    l->items[item].after = after;
    if (before == MOE_LINK_NONE)
        list->first = item;
    else
        l->items[before].after = item;
    if (after == MOE_LINK_NONE)
        list->last = item;
    else
        l->items[after].before = item;
}

static void list_remove(struct moe_link *l, struct moe_link_list *list, uint32_t item)
{
    uint32_t before = l->items[item].before, after = l->items[item].after;
    if (before == MOE_LINK_NONE)
        list->first = after;
    else
        l->items[before].after = after;
    if (after == MOE_LINK_NONE)
        list->last = before;
    else
        l->items[after].before = before;
    l->items[item].before = l->items[item].after = MOE_LINK_NONE;
}

static void enqueue(struct moe_link *l, uint32_t item)
{
    uint32_t before = l->queue.last;
    while (before != MOE_LINK_NONE && more_urgent(&l->items[item], &l->items[before]))
        before = l->items[before].before;
    list_insert(l, &l->queue, before, item);
    l->items[item].state = MOE_LINK_QUEUED;
}

/* Replaces a NaN: with it the order would depend on the path of comparisons. */
static float sane_score(float score)
{
    return isnan(score) ? -INFINITY : score;
}

void moe_link_add(struct moe_link *l, uint32_t item, uint64_t bytes,
                  enum moe_load_priority priority, float score)
{
    l->owed += l->costs.handling;
    l->items[item] = (struct moe_link_item){
        .bytes = bytes, .order = l->next_order++, .priority = priority, .score = sane_score(score)};
    enqueue(l, item);
}

void moe_link_promote(struct moe_link *l, uint32_t item, enum moe_load_priority priority,
                      float score)
{
    struct moe_link_item *x = &l->items[item];
    if (priority == MOE_LOAD_DEMAND && x->priority != MOE_LOAD_DEMAND)
        x->order = l->next_order++;
    x->priority = priority;
    x->score = sane_score(score);
    if (x->state == MOE_LINK_QUEUED) {
        list_remove(l, &l->queue, item);
        enqueue(l, item);
    }
}

void moe_link_drop(struct moe_link *l, uint32_t item)
{
    struct moe_link_item *x = &l->items[item];
    if (x->state == MOE_LINK_QUEUED)
        list_remove(l, &l->queue, item);
    else if (x->state == MOE_LINK_ARRIVED)
        list_remove(l, &l->arrived, item);
    else if (x->state == MOE_LINK_ENDING)
        list_remove(l, &l->ending, item);
    x->state = MOE_LINK_IDLE;
}

uint32_t moe_link_first(const struct moe_link *l)
{
    return l->queue.first;
}

uint32_t moe_link_after(const struct moe_link *l, uint32_t item)
{
    return l->items[item].after;
}

uint64_t moe_link_at(const struct moe_link *l, uint32_t item)
{
    return l->items[item].started;
}

/* Bytes of an item's piece, where it has as many left. */
static uint32_t piece_of(const struct moe_link *l, const struct moe_link_item *x)
{
    return x->priority == MOE_LOAD_DEMAND ? l->piece_bytes : l->prefetch_bytes;
}

uint32_t moe_link_start(struct moe_link *l, uint32_t item, uint64_t most)
{
    struct moe_link_item *x = &l->items[item];
    uint64_t left = x->bytes - x->started < most ? x->bytes - x->started : most;
    uint32_t bytes = left < piece_of(l, x) ? (uint32_t)left : piece_of(l, x);
    x->started += bytes;
    if (x->started == x->bytes) {
        list_remove(l, &l->queue, item);
        x->state = MOE_LINK_STARTED;
    }
    return bytes;
}

/* ---- Modelled time ---- */

static bool may_join(const struct moe_link *l, uint32_t n_pieces, enum moe_load_priority priority)
{
    const struct moe_link_costs *c = &l->costs;
    uint32_t prefetches =
        c->prefetches_in_flight < l->prefetch_pieces ? c->prefetches_in_flight : l->prefetch_pieces;
    return n_pieces == 0 ||
           n_pieces < (priority == MOE_LOAD_DEMAND ? c->demands_in_flight : prefetches);
}

/* The pieces that would start now, and the time they take together. */
static double next_pieces(const struct moe_link *l, uint32_t *n_pieces)
{
    double seconds = 0;
    uint64_t left = 0;
    *n_pieces = 0;
    for (uint32_t i = l->queue.first; i != MOE_LINK_NONE && left == 0; i = l->items[i].after) {
        const struct moe_link_item *x = &l->items[i];
        left = x->bytes - x->started;
        for (; left > 0 && may_join(l, *n_pieces, x->priority); (*n_pieces)++) {
            uint64_t bytes = left < piece_of(l, x) ? left : piece_of(l, x);
            seconds += l->costs.piece + (double)bytes / l->rate;
            left -= bytes;
        }
    }
    return seconds;
}

static void begin_pieces(struct moe_link *l)
{
    uint32_t n;
    double seconds = next_pieces(l, &n);
    while (n-- > 0) {
        uint32_t item = l->queue.first;
        moe_link_start(l, item, UINT64_MAX);
        if (l->items[item].state == MOE_LINK_STARTED) {
            l->items[item].state = MOE_LINK_ENDING;
            list_insert(l, &l->ending, l->ending.last, item);
        }
    }
    l->free_at += seconds;
    l->busy_seconds += seconds;
    l->busy = true;
}

static void end_pieces(struct moe_link *l)
{
    uint32_t item;
    l->busy = false;
    while ((item = l->ending.first) != MOE_LINK_NONE) {
        list_remove(l, &l->ending, item);
        l->items[item].state = MOE_LINK_ARRIVED;
        l->items[item].arrived_at = l->free_at + l->costs.latency;
        list_insert(l, &l->arrived, l->arrived.last, item);
    }
}

/* Runs the link until the clock would show `until`, or until an item has arrived. */
static void link_run(struct moe_link *l, double until, bool to_arrival)
{
    if (!l->busy && l->free_at < l->clock)
        l->free_at = l->clock;
    while (!to_arrival || l->arrived.first == MOE_LINK_NONE) {
        if (!l->busy) {
            if (l->queue.first == MOE_LINK_NONE || l->free_at >= until)
                break;
            begin_pieces(l);
        }
        if (l->free_at > until)
            break;
        end_pieces(l);
    }
}

/* Whether an item can be taken now. */
static bool is_here(const struct moe_link *l)
{
    return l->arrived.first != MOE_LINK_NONE && l->items[l->arrived.first].arrived_at <= l->clock;
}

/* How long the thread takes for `seconds` of work. Others have its processor for all of its time
 * but a share of 1 / interruptions. What of its share it slept through it may take up later, and is
 * not interrupted until it has. */
static double interrupted(struct moe_link *l, double seconds)
{
    double by = l->costs.interruptions;
    if (!(by > 1))
        return seconds;
    double of_others = 1 - 1 / by, free = fmin(seconds, l->credit / of_others);
    l->credit = fmax(0, l->credit - free * of_others);
    return free + (seconds - free) * by;
}

static void sleep_until(struct moe_link *l, double until)
{
    if (l->costs.interruptions > 1)
        l->credit =
            fmin(MOE_LINK_MOST_CREDIT, l->credit + (until - l->clock) / l->costs.interruptions);
    link_run(l, until, false);
    l->clock = until;
    l->slept = true;
}

/* Lets the thread do the handling it owes while the link works. */
static void pay(struct moe_link *l)
{
    double seconds = interrupted(l, l->owed);
    l->owed = 0;
    if (seconds > 0) {
        link_run(l, l->clock + seconds, false);
        l->clock += seconds;
        l->worked_seconds += seconds;
    }
}

/* When computing of `seconds` ends: it is slower while pieces move. */
static double end_of_computing(struct moe_link *l, double seconds)
{
    double slowdown = l->costs.slowdown > 1 ? l->costs.slowdown : 1;
    double until = l->clock + seconds * slowdown;
    link_run(l, until, false);
    if (slowdown > 1 && !l->busy && l->free_at < until) { /* nothing is left to move */
        double moving = l->free_at > l->clock ? l->free_at - l->clock : 0;
        until = l->clock + moving + (seconds - moving / slowdown);
    }
    return until;
}

double moe_link_advance(struct moe_link *l, double seconds)
{
    if (seconds > 0) {
        pay(l);
        seconds += l->slept ? l->costs.wake : 0;
        l->slept = false;
        l->clock = end_of_computing(l, interrupted(l, seconds));
    }
    return l->clock;
}

double moe_link_sleep(struct moe_link *l, double until)
{
    pay(l);
    const double slept = fmax(0, until - l->clock);
    if (slept > 0)
        sleep_until(l, until);
    return slept;
}

double moe_link_wait(struct moe_link *l)
{
    if (is_here(l))
        return l->clock;
    pay(l);
    if (l->arrived.first == MOE_LINK_NONE)
        link_run(l, INFINITY, true);
    if (!is_here(l) && l->arrived.first != MOE_LINK_NONE)
        sleep_until(l, l->items[l->arrived.first].arrived_at + l->costs.late);
    return l->clock;
}

double moe_link_next_piece(const struct moe_link *l)
{
    if (l->arrived.first != MOE_LINK_NONE)
        return fmax(0, l->items[l->arrived.first].arrived_at - l->clock);
    if (l->busy)
        return l->free_at - l->clock;
    if (l->queue.first == MOE_LINK_NONE)
        return INFINITY;
    uint32_t n;
    double from = l->free_at > l->clock ? l->free_at : l->clock;
    return from + next_pieces(l, &n) - l->clock;
}

uint32_t moe_link_take_arrived(struct moe_link *l)
{
    uint32_t item = is_here(l) ? l->arrived.first : MOE_LINK_NONE;
    if (item != MOE_LINK_NONE) {
        l->owed += l->costs.handling_byte * (double)l->items[item].bytes;
        moe_link_drop(l, item);
    }
    return item;
}
