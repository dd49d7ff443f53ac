/* Places of experts in host memory before they go to a GPU, and transfers through them. */
#include "sched/host_places.h"

#include <stdlib.h>

#include "base/mem.h"

/* ---- How many, and for which experts ---- */

uint32_t moe_expert_low_variant(const struct moe_inventory *i, uint32_t key, uint32_t high,
                                uint32_t low)
{
    uint32_t at_high = moe_inventory_usable(i, key, high);
    uint32_t at_low = moe_inventory_usable(i, key, low);
    return at_high != UINT32_MAX && at_low > at_high ? at_low : UINT32_MAX;
}

/* How many experts of each class are in use. */
static void count_used(const struct moe_inventory *inv, uint32_t high, uint32_t low,
                       uint32_t used[MOE_MAX_CLASSES])
{
    for (uint32_t key = 0; key < moe_inventory_n_keys(inv); key++) {
        const uint32_t variants[2] = {
            moe_inventory_usable(inv, key, high),
            moe_expert_low_variant(inv, key, high, low),
        };
        for (int i = 0; i < 2; i++)
            if (variants[i] != UINT32_MAX)
                used[moe_inventory_class(inv, key, variants[i]) - inv->classes]++;
    }
}

/* As many places of each class as it has working slots; the rest of `room` is divided in proportion
 * to the experts' bytes, and what then remains goes to the first class that can use it. */
static void share_places(struct moe_host_sizes *p, const struct moe_inventory *inv,
                         const uint32_t *used, uint64_t room)
{
    uint64_t left = room > p->least_bytes ? room - p->least_bytes : 0, shared = left;
    for (int round = 0; round < 2; round++) {
        for (uint32_t c = 0; c < inv->n_classes; c++) {
            uint64_t slot_bytes = inv->classes[c].slot_bytes;
            double share = (double)shared * used[c] / (double)p->all_bytes;
            uint64_t n = round == 0 ? (uint64_t)share : left / slot_bytes;
            uint32_t missing = used[c] - p->n[c];
            n = n < missing ? n : missing;
            p->n[c] += (uint32_t)n;
            left -= n * slot_bytes;
        }
    }
}

void moe_host_sizes_of(struct moe_host_sizes *p, const struct moe_inventory *inv,
                       const struct moe_pools *pools, uint32_t high, uint32_t low, uint64_t room)
{
    uint32_t used[MOE_MAX_CLASSES] = {0};
    *p = (struct moe_host_sizes){.whole = true};
    count_used(inv, high, low, used);
    for (uint32_t c = 0; c < inv->n_classes; c++) {
        uint32_t n_working = pools->pools[c].n_working ? pools->pools[c].n_working : 1;
        p->n[c] = n_working < used[c] ? n_working : used[c];
        p->least_bytes += p->n[c] * inv->classes[c].slot_bytes;
        p->all_bytes += used[c] * inv->classes[c].slot_bytes;
    }
    share_places(p, inv, used, room);
    for (uint32_t c = 0; c < inv->n_classes; c++) {
        p->bytes += p->n[c] * inv->classes[c].slot_bytes;
        p->whole &= p->n[c] == used[c];
    }
}

static int more_wanted(const void *a, const void *b)
{
    const struct moe_host_wish *x = a, *y = b;
    if (x->frequency != y->frequency)
        return x->frequency > y->frequency ? -1 : 1;
    return x->turn < y->turn ? -1 : x->turn > y->turn;
}

/* Every expert at its high or at its low precision, the most wanted first; returns how many. */
static uint32_t list_wishes(const struct moe_inventory *inv, uint32_t high, uint32_t low, bool lows,
                            const uint64_t *frequency, struct moe_host_wish *wishes)
{
    uint32_t n = 0;
    for (uint32_t e = 0; e < inv->n_experts; e++) {
        for (uint32_t layer = 0; layer < inv->n_layers; layer++) {
            uint32_t key = moe_expert_key(inv->n_experts, layer, e);
            uint32_t v = lows ? moe_expert_low_variant(inv, key, high, low)
                              : moe_inventory_usable(inv, key, high);
            if (v == UINT32_MAX)
                continue;
            wishes[n] = (struct moe_host_wish){
                .frequency = frequency ? frequency[key] : 0,
                .turn = n,
                .copy = moe_expert_copy(inv->n_variants, key, v),
            };
            n++;
        }
    }
    qsort(wishes, n, sizeof *wishes, more_wanted);
    return n;
}

/* ---- Order of copies ---- */

static void unlink_place(struct moe_host_places *p, uint32_t place)
{
    const struct moe_host_place *x = &p->places[place];
    if (x->older == MOE_NO_PLACE)
        p->classes[x->class_index].oldest = x->newer;
    else
        p->places[x->older].newer = x->newer;
    if (x->newer == MOE_NO_PLACE)
        p->classes[x->class_index].newest = x->older;
    else
        p->places[x->newer].older = x->older;
}

static void link_newest(struct moe_host_places *p, uint32_t place)
{
    struct moe_host_place *x = &p->places[place];
    uint32_t *newest = &p->classes[x->class_index].newest;
    x->older = *newest;
    x->newer = MOE_NO_PLACE;
    if (*newest == MOE_NO_PLACE)
        p->classes[x->class_index].oldest = place;
    else
        p->places[*newest].newer = place;
    *newest = place;
}

static void link_oldest(struct moe_host_places *p, uint32_t place)
{
    struct moe_host_place *x = &p->places[place];
    uint32_t *oldest = &p->classes[x->class_index].oldest;
    x->newer = *oldest;
    x->older = MOE_NO_PLACE;
    if (*oldest == MOE_NO_PLACE)
        p->classes[x->class_index].newest = place;
    else
        p->places[*oldest].older = place;
    *oldest = place;
}

/* ---- The interface ---- */

int moe_host_places_open(struct moe_host_places *p, uint32_t n_copies, const uint32_t *n_in,
                         uint32_t n_classes, struct moe_err *err)
{
    *p = (struct moe_host_places){.n_copies = n_copies};
    for (uint32_t c = 0; c < MOE_MAX_CLASSES; c++)
        p->classes[c].oldest = p->classes[c].newest = MOE_NO_PLACE;
    for (uint32_t c = 0; c < n_classes; c++)
        p->n_places += n_in[c];
    p->places = moe_alloc(p->n_places, sizeof *p->places, err);
    p->of_copy = moe_alloc(n_copies, sizeof *p->of_copy, err);
    if (!p->places || !p->of_copy)
        return MOE_ERR_MEMORY;
    for (uint32_t copy = 0; copy < n_copies; copy++)
        p->of_copy[copy] = MOE_NO_PLACE;
    for (uint32_t c = 0, place = 0; c < n_classes; c++) {
        for (uint32_t i = 0; i < n_in[c]; i++, place++) {
            p->places[place] = (struct moe_host_place){.class_index = c, .copy = MOE_PLACE_EMPTY};
            link_newest(p, place);
        }
    }
    return MOE_OK;
}

void moe_host_places_close(struct moe_host_places *p)
{
    free(p->places);
    free(p->of_copy);
    *p = (struct moe_host_places){0};
}

uint32_t moe_host_places_find(const struct moe_host_places *p, uint32_t copy)
{
    return p->of_copy[copy];
}

bool moe_host_places_complete(const struct moe_host_places *p, const struct moe_inventory *inv,
                              uint32_t copy)
{
    uint32_t place = moe_host_places_find(p, copy), class_ = inv->class_of[copy];
    return place != MOE_NO_PLACE &&
           p->places[place].arrived == (1u << inv->classes[class_].n_segments) - 1;
}

/* What the place holds is forgotten. */
static void empty(struct moe_host_places *p, struct moe_host_place *x)
{
    if (x->copy != MOE_PLACE_EMPTY)
        p->of_copy[x->copy] = MOE_NO_PLACE;
    x->copy = MOE_PLACE_EMPTY;
    x->arrived = 0;
}

uint32_t moe_host_places_take(struct moe_host_places *p, uint32_t class_index, uint32_t copy)
{
    uint32_t place = p->classes[class_index].oldest;
    while (place != MOE_NO_PLACE && p->places[place].pins > 0)
        place = p->places[place].newer;
    if (place == MOE_NO_PLACE)
        return MOE_NO_PLACE;
    empty(p, &p->places[place]);
    p->places[place].copy = copy;
    p->of_copy[copy] = place;
    return place;
}

uint32_t moe_host_places_assign(struct moe_host_places *p, const struct moe_inventory *inv,
                                uint32_t high, uint32_t low, const uint64_t *frequency,
                                struct moe_host_wish *wishes)
{
    uint32_t left[MOE_MAX_CLASSES] = {0}, n_assigned = 0;
    for (uint32_t i = 0; i < p->n_places; i++)
        left[p->places[i].class_index]++;
    uint32_t n = list_wishes(inv, high, low, false, frequency, wishes);
    n += list_wishes(inv, high, low, true, frequency, wishes + n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c = inv->class_of[wishes[i].copy];
        if (left[c] == 0)
            continue;
        left[c]--;
        uint32_t place = moe_host_places_take(p, c, wishes[i].copy);
        moe_host_places_pin(p, place); /* not to be taken again meanwhile */
        wishes[n_assigned++] = wishes[i];
    }
    return n_assigned;
}

void moe_host_places_settle(struct moe_host_places *p, const struct moe_host_wish *wishes,
                            uint32_t n)
{
    while (n-- > 0) {
        uint32_t place = moe_host_places_find(p, wishes[n].copy);
        moe_host_places_unpin(p, place);
        moe_host_places_copied(p, place);
    }
}

void moe_host_places_pin(struct moe_host_places *p, uint32_t place)
{
    p->places[place].pins++;
}

void moe_host_places_unpin(struct moe_host_places *p, uint32_t place)
{
    struct moe_host_place *x = &p->places[place];
    if (--x->pins > 0 || x->arrived)
        return;
    empty(p, x);
    unlink_place(p, place);
    link_oldest(p, place);
}

void moe_host_places_copied(struct moe_host_places *p, uint32_t place)
{
    unlink_place(p, place);
    link_newest(p, place);
}

/* ---- Transfers ---- */

int moe_transfers_open(struct moe_transfers *t, uint32_t n, struct moe_err *err)
{
    t->transfers = moe_alloc(n, sizeof *t->transfers, err);
    t->items = moe_alloc(n, sizeof *t->items, err);
    if (!t->transfers || !t->items)
        return MOE_ERR_MEMORY;
    moe_link_init(&t->waiting, t->items, n, MOE_LINK_PIECE_BYTES, 0);
    return MOE_OK;
}

void moe_transfers_close(struct moe_transfers *t)
{
    free(t->transfers);
    free(t->items);
}

static void release_place(struct moe_transfers *t, const struct moe_transfer *x)
{
    moe_host_places_unpin(t->places, x->place);
    t->stirred = true;
}

static void fail_transfer(struct moe_transfers *t, struct moe_transfer *x)
{
    release_place(t, x);
    x->state = MOE_TRANSFER_FAILED;
}

static void copy_to_slot(struct moe_transfers *t, uint32_t transfer)
{
    struct moe_transfer *x = &t->transfers[transfer];
    x->state = MOE_TRANSFER_COPYING;
    if (!t->ops->copy(t->ctx, transfer))
        fail_transfer(t, x);
}

static void read_to_place(struct moe_transfers *t, uint32_t transfer)
{
    struct moe_transfer *x = &t->transfers[transfer];
    x->state = MOE_TRANSFER_READING;
    if (t->ops->read(t->ctx, transfer))
        t->places->places[x->place].loading |= 1u << x->segment;
    else
        fail_transfer(t, x);
}

/* Begins one that waits, if that is possible. */
static void begin_transfer(struct moe_transfers *t, uint32_t transfer)
{
    struct moe_transfer *x = &t->transfers[transfer];
    struct moe_host_places *places = t->places;
    uint32_t bit = 1u << x->segment, place = moe_host_places_find(places, x->copy);
    if (place == MOE_NO_PLACE)
        place = moe_host_places_take(places, t->inventory->class_of[x->copy], x->copy);
    if (place == MOE_NO_PLACE || places->places[place].loading & bit)
        return;
    moe_link_drop(&t->waiting, transfer);
    moe_host_places_pin(places, place);
    x->place = place;
    if (places->places[place].arrived & bit)
        copy_to_slot(t, transfer);
    else
        read_to_place(t, transfer);
}

void moe_transfers_go_on(struct moe_transfers *t)
{
    while (t->stirred) {
        t->stirred = false;
        for (uint32_t i = moe_link_first(&t->waiting), after; i != MOE_LINK_NONE; i = after) {
            after = moe_link_after(&t->waiting, i);
            begin_transfer(t, i);
        }
    }
}

void moe_transfers_add(struct moe_transfers *t, uint32_t transfer, uint32_t copy, uint32_t segment,
                       enum moe_load_priority priority, float score)
{
    t->transfers[transfer] = (struct moe_transfer){.state = MOE_TRANSFER_WAITING,
                                                   .copy = copy,
                                                   .segment = segment,
                                                   .priority = priority,
                                                   .score = score};
    moe_link_add(&t->waiting, transfer, 1, priority, score);
    t->stirred = true;
    moe_transfers_go_on(t);
}

void moe_transfers_promote(struct moe_transfers *t, uint32_t transfer)
{
    struct moe_transfer *x = &t->transfers[transfer];
    x->priority = MOE_LOAD_DEMAND;
    x->score = 0;
    if (x->state == MOE_TRANSFER_WAITING)
        moe_link_promote(&t->waiting, transfer, MOE_LOAD_DEMAND, 0);
    else if (x->state == MOE_TRANSFER_READING || x->state == MOE_TRANSFER_COPYING)
        t->ops->promote(t->ctx, transfer);
}

bool moe_transfers_cancel(struct moe_transfers *t, uint32_t transfer)
{
    struct moe_transfer *x = &t->transfers[transfer];
    if (x->state == MOE_TRANSFER_FAILED)
        return false;
    if (x->state == MOE_TRANSFER_WAITING)
        moe_link_drop(&t->waiting, transfer);
    if (x->state == MOE_TRANSFER_READING || x->state == MOE_TRANSFER_COPYING) {
        if (!t->ops->drop(t->ctx, transfer))
            return false;
        if (x->state == MOE_TRANSFER_READING)
            t->places->places[x->place].loading &= ~(1u << x->segment);
        release_place(t, x);
    }
    x->state = MOE_TRANSFER_NONE;
    return true;
}

void moe_transfers_read(struct moe_transfers *t, uint32_t transfer, bool ok)
{
    struct moe_transfer *x = &t->transfers[transfer];
    struct moe_host_place *place = &t->places->places[x->place];
    t->stirred = true;
    place->loading &= ~(1u << x->segment);
    if (ok) {
        place->arrived |= 1u << x->segment;
        copy_to_slot(t, transfer);
    } else {
        fail_transfer(t, x);
    }
}

void moe_transfers_copied(struct moe_transfers *t, uint32_t transfer, bool ok)
{
    struct moe_transfer *x = &t->transfers[transfer];
    x->state = MOE_TRANSFER_NONE;
    if (ok)
        moe_host_places_copied(t->places, x->place);
    release_place(t, x);
}
