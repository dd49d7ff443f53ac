/* The store: slots, lists of free and staged ones, domains and counters, which change together in
 * every step of the protocol (store.h). */
#include "cache/store.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* The cached slots that one policy instance watches: a pool, or a layer's share of one. */
struct domain {
    struct moe_policy *policy;
    uint32_t capacity, n;
    uint32_t whole; /* its capacity while nothing is withdrawn */
};

struct pool {
    uint32_t first, n; /* slots */
    uint64_t slot_bytes;
    uint32_t free; /* head of the free list, MOE_NO_SLOT: empty */
    uint32_t n_free;
    uint32_t n_cache;                   /* slots that the cache may fill, of all domains */
    uint32_t n_working;                 /* further ones */
    uint32_t unfilled;                  /* cache slots over all domains */
    uint32_t staged_first, staged_last; /* ... that it has not filled yet */
    bool per_layer;
    struct domain *domains; /* [n_layers], or one */
};

/* A staged slot: when it was staged, and its neighbours in the pool's list. */
struct staged {
    uint64_t at;
    uint32_t before, after;
};

/* A withdrawn slot, and whose it is. */
struct withdrawn {
    uint32_t slot;
    struct pool *pool;
    struct domain *domain;
};

struct moe_store {
    uint32_t n_layers, n_experts, n_variants, n_classes;
    struct moe_loop loop;
    uint32_t *class_of; /* [layer][expert][variant] */
    uint32_t *slot_of;  /* [layer][expert][variant] */
    struct pool *pools;
    struct moe_slot *slots;
    uint32_t n_slots;
    struct staged *staged;       /* [n_slots] */
    struct withdrawn *withdrawn; /* [n_slots] the last one last */
    uint32_t n_withdrawn;
    uint8_t *protected;        /* [layer][expert] */
    uint64_t now, token_began; /* as in struct staged */
    uint32_t next;             /* the next layer to run in this pass */
    struct moe_store_counts counts;
};

/* ---- Opening ---- */

static int open_domain(struct domain *d, const struct moe_store_params *p, uint32_t capacity,
                       struct moe_err *err)
{
    const struct moe_policy_params params = {
        .n_keys = p->n_layers * p->n_experts,
        .capacity = capacity ? capacity : 1,
        .seed = p->seed,
        .usage = p->usage,
        .weights = p->weights,
        .half_life = p->half_life,
    };
    d->capacity = d->whole = capacity;
    return moe_policy_open(&d->policy, p->policy, &params, err);
}

static int open_pool(struct moe_store *s, struct pool *pool, const struct moe_store_params *p,
                     const struct moe_pool_params *params, struct moe_err *err)
{
    pool->per_layer = params->per_layer != NULL;
    pool->domains = moe_alloc(pool->per_layer ? p->n_layers : 1, sizeof *pool->domains, err);
    if (!pool->domains)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < (pool->per_layer ? p->n_layers : 1); i++) {
        MOE_TRY(open_domain(&pool->domains[i], p,
                            pool->per_layer ? params->per_layer[i] : params->n_cache, err));
        pool->unfilled += pool->domains[i].capacity;
    }
    pool->n_cache = pool->unfilled;
    pool->n_working = pool->n - pool->n_cache;
    pool->free = pool->staged_first = pool->staged_last = MOE_NO_SLOT;
    pool->n_free = pool->n;
    for (uint32_t i = pool->first + pool->n; i-- > pool->first;) {
        s->slots[i].class_index = (uint32_t)(pool - s->pools);
        s->slots[i].next_free = pool->free;
        pool->free = i;
    }
    return MOE_OK;
}

int moe_store_open(struct moe_store **out, const struct moe_store_params *p, struct moe_err *err)
{
    *out = NULL;
    struct moe_store *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    uint64_t n_items = (uint64_t)p->n_layers * p->n_experts * p->n_variants;
    s->n_layers = p->n_layers;
    s->n_experts = p->n_experts;
    s->n_variants = p->n_variants;
    s->loop = p->loop;
    s->n_classes = p->n_classes;
    s->pools = moe_alloc(p->n_classes, sizeof *s->pools, err);
    s->class_of = moe_alloc(n_items, sizeof *s->class_of, err);
    s->slot_of = moe_alloc(n_items, sizeof *s->slot_of, err);
    s->protected = moe_alloc((uint64_t)p->n_layers * p->n_experts, 1, err);
    int status;
    MOE_STEP(s->pools && s->class_of && s->slot_of && s->protected ? MOE_OK : MOE_ERR_MEMORY);
    memcpy(s->class_of, p->class_of, n_items * sizeof *s->class_of);
    for (uint64_t i = 0; i < n_items; i++)
        s->slot_of[i] = MOE_NO_SLOT;
    for (uint32_t i = 0; i < p->n_classes; i++) {
        s->pools[i].first = s->n_slots;
        s->pools[i].n = p->pools[i].n_cache + p->pools[i].n_working;
        s->pools[i].slot_bytes = p->class_bytes ? p->class_bytes[i] : 0;
        s->n_slots += s->pools[i].n;
    }
    s->slots = moe_alloc(s->n_slots, sizeof *s->slots, err);
    s->staged = moe_alloc(s->n_slots, sizeof *s->staged, err);
    s->withdrawn = moe_alloc(s->n_slots, sizeof *s->withdrawn, err);
    MOE_STEP(s->slots && s->staged && s->withdrawn ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t i = 0; i < p->n_classes; i++)
        MOE_STEP(open_pool(s, &s->pools[i], p, &p->pools[i], err));
out:
    if (status != MOE_OK) {
        moe_store_close(s);
        return status;
    }
    *out = s;
    return MOE_OK;
}

void moe_store_close(struct moe_store *s)
{
    if (!s)
        return;
    for (uint32_t i = 0; s->pools && i < s->n_classes; i++) {
        struct pool *pool = &s->pools[i];
        for (uint32_t k = 0; pool->domains && k < (pool->per_layer ? s->n_layers : 1); k++)
            moe_policy_close(pool->domains[k].policy);
        free(pool->domains);
    }
    free(s->pools);
    free(s->class_of);
    free(s->slot_of);
    free(s->slots);
    free(s->staged);
    free(s->withdrawn);
    free(s->protected);
    free(s);
}

/* ---- Queries ---- */

uint32_t moe_store_n_slots(const struct moe_store *s)
{
    return s->n_slots;
}

const struct moe_slot *moe_store_slot(const struct moe_store *s, uint32_t slot)
{
    return &s->slots[slot];
}

const struct moe_store_counts *moe_store_counts(const struct moe_store *s)
{
    return &s->counts;
}

static uint32_t *slot_of(const struct moe_store *s, uint32_t key, uint32_t variant)
{
    return &s->slot_of[moe_expert_copy(s->n_variants, key, variant)];
}

static uint32_t class_of(const struct moe_store *s, uint32_t key, uint32_t variant)
{
    return s->class_of[moe_expert_copy(s->n_variants, key, variant)];
}

uint32_t moe_store_find(const struct moe_store *s, uint32_t key, uint32_t variant)
{
    uint32_t loading = MOE_NO_SLOT;
    for (uint32_t v = 0; v <= variant; v++) {
        uint32_t slot = *slot_of(s, key, v);
        if (slot == MOE_NO_SLOT)
            continue;
        if (s->slots[slot].state == MOE_SLOT_READY)
            return slot;
        if (loading == MOE_NO_SLOT)
            loading = slot;
    }
    return loading;
}

/* ---- Slots come and go ---- */

static uint32_t layer_of(const struct moe_store *s, uint32_t key)
{
    return key / s->n_experts;
}

/* Whether the expert's layer is still to run in this pass. */
static bool runs_again(const struct moe_store *s, uint32_t key)
{
    return moe_loop_next(&s->loop, layer_of(s, key), s->next) >= s->next;
}

static struct domain *domain_of(const struct moe_store *s, const struct pool *pool, uint32_t key)
{
    return &pool->domains[pool->per_layer ? layer_of(s, key) : 0];
}

static uint32_t take_free(struct moe_store *s, struct pool *pool)
{
    uint32_t slot = pool->free;
    if (slot != MOE_NO_SLOT) {
        pool->free = s->slots[slot].next_free;
        pool->n_free--;
    }
    return slot;
}

/* Appends a slot to its pool's list of staged slots. */
static void stage_slot(struct moe_store *s, uint32_t index)
{
    struct pool *pool = &s->pools[s->slots[index].class_index];
    s->slots[index].use = MOE_SLOT_STAGED;
    s->staged[index] = (struct staged){++s->now, pool->staged_last, MOE_NO_SLOT};
    if (pool->staged_last == MOE_NO_SLOT)
        pool->staged_first = index;
    else
        s->staged[pool->staged_last].after = index;
    pool->staged_last = index;
}

static void unstage(struct moe_store *s, uint32_t index)
{
    struct pool *pool = &s->pools[s->slots[index].class_index];
    uint32_t before = s->staged[index].before, after = s->staged[index].after;
    if (before == MOE_NO_SLOT)
        pool->staged_first = after;
    else
        s->staged[before].after = after;
    if (after == MOE_NO_SLOT)
        pool->staged_last = before;
    else
        s->staged[after].before = before;
}

/* Forgets the contents of a slot and frees it. */
static void vacate(struct moe_store *s, uint32_t index)
{
    struct moe_slot *slot = &s->slots[index];
    struct pool *pool = &s->pools[slot->class_index];
    if (slot->use == MOE_SLOT_CACHED) {
        struct domain *d = domain_of(s, pool, slot->key);
        d->policy->ops->drop(d->policy, slot->key);
        d->n--;
        pool->unfilled++;
    } else if (slot->use == MOE_SLOT_STAGED) {
        unstage(s, index);
    }
    *slot_of(s, slot->key, slot->variant) = MOE_NO_SLOT;
    slot->state = MOE_SLOT_FREE;
    slot->pins = 0;
    slot->prefetched = false;
    slot->next_free = pool->free;
    pool->free = index;
    pool->n_free++;
}

struct eviction {
    const struct moe_store *s;
    uint32_t class_index;
};

/* The slot of the class that holds a cached key. */
static uint32_t cached_slot(const struct moe_store *s, uint32_t class_index, uint32_t key)
{
    for (uint32_t v = 0; v < s->n_variants; v++) {
        uint32_t slot = *slot_of(s, key, v);
        if (slot != MOE_NO_SLOT && s->slots[slot].class_index == class_index &&
            s->slots[slot].use == MOE_SLOT_CACHED)
            return slot;
    }
    return MOE_NO_SLOT;
}

static bool evictable(void *ctx, uint32_t key)
{
    const struct eviction *e = ctx;
    uint32_t slot = cached_slot(e->s, e->class_index, key);
    return slot != MOE_NO_SLOT && e->s->slots[slot].pins == 0 &&
           e->s->slots[slot].state == MOE_SLOT_READY && !e->s->protected[key];
}

/* Makes room for one more cached expert in the domain; false when none may leave, or when the
 * policy lets it pass through, which half of the working slots are for: others wait for experts to
 * come. */
static bool make_room(struct moe_store *s, struct pool *pool, struct domain *d, uint32_t key,
                      uint32_t variant)
{
    if (d->n < d->capacity)
        return true;
    if (d->capacity == 0)
        return false;
    struct eviction e = {s, (uint32_t)(pool - s->pools)};
    const struct moe_policy_ops *ops = d->policy->ops;
    bool stays = ops->passes && !moe_store_has_spare(s, key, variant, UINT32_MAX);
    int64_t victim = ops->victim(d->policy, stays ? MOE_NO_KEY : (int64_t)key, evictable, &e);
    if (victim < 0)
        return false;
    vacate(s, cached_slot(s, e.class_index, (uint32_t)victim));
    s->counts.evictions++;
    return true;
}

static void occupy(struct moe_store *s, uint32_t index, uint32_t key, uint32_t variant,
                   enum moe_slot_use use)
{
    struct moe_slot *slot = &s->slots[index];
    slot->state = MOE_SLOT_LOADING;
    slot->use = use;
    slot->key = key;
    slot->variant = variant;
    slot->pins = 0;
    slot->prefetched = false;
    *slot_of(s, key, variant) = index;
}

static void admit(struct moe_store *s, uint32_t index)
{
    struct moe_slot *slot = &s->slots[index];
    struct pool *pool = &s->pools[slot->class_index];
    struct domain *d = domain_of(s, pool, slot->key);
    slot->use = MOE_SLOT_CACHED;
    d->n++;
    pool->unfilled--;
    d->policy->ops->admit(d->policy, slot->key);
}

static void note_miss(struct moe_store *s, struct domain *d, uint32_t key)
{
    if (d->policy->ops->miss)
        d->policy->ops->miss(d->policy, key);
}

/* ---- The protocol ---- */

void moe_store_use(struct moe_store *s, uint32_t index)
{
    struct moe_slot *slot = &s->slots[index];
    struct pool *pool = &s->pools[slot->class_index];
    struct domain *d = domain_of(s, pool, slot->key);
    uint32_t key = slot->key;
    slot->pins++; /* pinned first: making room must not evict it */
    s->counts.staged_used += slot->prefetched;
    slot->prefetched = false;
    if (slot->use == MOE_SLOT_CACHED) {
        d->policy->ops->use(d->policy, key);
    } else if (slot->use == MOE_SLOT_STAGED) {
        unstage(s, index);
        slot->use = MOE_SLOT_TRANSIENT;
        note_miss(s, d, key);
        if (cached_slot(s, slot->class_index, key) == MOE_NO_SLOT &&
            make_room(s, pool, d, key, slot->variant))
            admit(s, index);
    }
}

void moe_store_begin_layer(struct moe_store *s, uint32_t layer)
{
    if (layer < s->next)
        s->token_began = s->now;
    s->next = layer + 1;
}

void moe_store_begin_token(struct moe_store *s)
{
    s->token_began = s->now;
    s->next = 0;
}

/* Whether a staged slot may leave; stale: only if it is stale. */
static bool may_leave(const struct moe_store *s, uint32_t index, bool stale)
{
    const struct moe_slot *slot = &s->slots[index];
    bool fresh = runs_again(s, slot->key) && s->staged[index].at > s->token_began;
    return slot->state == MOE_SLOT_READY && slot->pins == 0 && !(stale && fresh);
}

/* The oldest staged slot of a pool that may leave: a stale one, or any. */
static uint32_t oldest_staged(const struct moe_store *s, const struct pool *pool, bool stale)
{
    for (uint32_t i = pool->staged_first; i != MOE_NO_SLOT; i = s->staged[i].after)
        if (may_leave(s, i, stale))
            return i;
    return MOE_NO_SLOT;
}

bool moe_store_has_spare(const struct moe_store *s, uint32_t key, uint32_t variant, uint32_t keep)
{
    const struct pool *pool = &s->pools[class_of(s, key, variant)];
    uint32_t half = pool->n_working / 2;
    uint32_t spare = pool->n_free > pool->unfilled ? pool->n_free - pool->unfilled : 0;
    for (uint32_t i = pool->staged_first; i != MOE_NO_SLOT; i = s->staged[i].after)
        spare += may_leave(s, i, true);
    return spare > (keep < half ? keep : half);
}

/* Frees the slot of a staged expert. */
static void leave_staged(struct moe_store *s, const struct pool *pool, uint32_t slot)
{
    if (s->slots[slot].prefetched) {
        s->counts.staged_unused++;
        s->counts.staged_unused_bytes += pool->slot_bytes;
    }
    vacate(s, slot);
}

static uint32_t reclaim_staged(struct moe_store *s, struct pool *pool, bool stale)
{
    uint32_t slot = oldest_staged(s, pool, stale);
    if (slot == MOE_NO_SLOT)
        return MOE_NO_SLOT;
    leave_staged(s, pool, slot);
    return take_free(s, pool);
}

uint32_t moe_store_miss(struct moe_store *s, uint32_t key, uint32_t variant, bool again)
{
    struct pool *pool = &s->pools[class_of(s, key, variant)];
    struct domain *d = domain_of(s, pool, key);
    uint32_t class_index = (uint32_t)(pool - s->pools);
    if (!again)
        note_miss(s, d, key);
    /* A pool has one entry for a key: two variants of one class cannot both enter the cache. */
    bool cached =
        cached_slot(s, class_index, key) == MOE_NO_SLOT && make_room(s, pool, d, key, variant);
    uint32_t slot = take_free(s, pool);
    if (slot == MOE_NO_SLOT)
        slot = reclaim_staged(s, pool, true);
    if (slot == MOE_NO_SLOT)
        slot = reclaim_staged(s, pool, false);
    if (slot == MOE_NO_SLOT)
        return MOE_NO_SLOT;
    occupy(s, slot, key, variant, MOE_SLOT_TRANSIENT);
    s->slots[slot].pins = 1;
    if (cached)
        admit(s, slot);
    return slot;
}

/* Cache slots on loan to staged experts: the cache has more places to fill than there are free
 * slots. */
static uint32_t n_lent(const struct pool *pool)
{
    return pool->unfilled > pool->n_free ? pool->unfilled - pool->n_free : 0;
}

/* Like evictable, for an expert that runs again no sooner than in the next pass. */
static bool has_run(void *ctx, uint32_t key)
{
    const struct eviction *e = ctx;
    return !runs_again(e->s, key) && evictable(ctx, key);
}

/* Borrows a slot from the cache. */
static uint32_t borrow(struct moe_store *s, struct pool *pool)
{
    struct eviction e = {s, (uint32_t)(pool - s->pools)};
    for (uint32_t layer = s->next; layer-- > 0 && pool->n_free == 0;) {
        struct domain *d = &pool->domains[pool->per_layer ? layer : 0];
        int64_t victim = d->n > 0 ? d->policy->ops->victim(d->policy, MOE_NO_KEY, has_run, &e) : -1;
        if (victim >= 0) {
            vacate(s, cached_slot(s, e.class_index, (uint32_t)victim));
            s->counts.evictions++;
        }
        if (!pool->per_layer)
            break;
    }
    return take_free(s, pool);
}

uint32_t moe_store_stage(struct moe_store *s, uint32_t key, uint32_t variant, bool replace,
                         bool lend)
{
    struct pool *pool = &s->pools[class_of(s, key, variant)];
    /* Free slots that the cache has not filled yet belong to it. */
    bool own = replace || !lend;
    uint32_t slot = own && pool->n_free > pool->unfilled ? take_free(s, pool) : MOE_NO_SLOT;
    if (slot == MOE_NO_SLOT && replace)
        slot = reclaim_staged(s, pool, true);
    if (slot == MOE_NO_SLOT && lend && n_lent(pool) < pool->n_cache / 2)
        slot = borrow(s, pool);
    if (slot == MOE_NO_SLOT)
        return MOE_NO_SLOT;
    occupy(s, slot, key, variant, MOE_SLOT_STAGED);
    s->slots[slot].prefetched = true;
    stage_slot(s, slot);
    return slot;
}

void moe_store_take_back(struct moe_store *s)
{
    for (uint32_t c = 0; c < s->n_classes; c++) {
        struct pool *pool = &s->pools[c];
        while (n_lent(pool) > 0) {
            uint32_t slot = oldest_staged(s, pool, false);
            if (slot == MOE_NO_SLOT)
                break;
            leave_staged(s, pool, slot);
        }
    }
}

uint32_t moe_store_fill(struct moe_store *s, uint32_t key, uint32_t variant)
{
    struct pool *pool = &s->pools[class_of(s, key, variant)];
    struct domain *d = domain_of(s, pool, key);
    uint32_t slot = d->n < d->capacity ? take_free(s, pool) : MOE_NO_SLOT;
    if (slot != MOE_NO_SLOT) {
        occupy(s, slot, key, variant, MOE_SLOT_CACHED);
        admit(s, slot);
    }
    return slot;
}

uint32_t moe_store_replace(struct moe_store *s, uint32_t out, uint32_t in, uint32_t variant)
{
    uint32_t class_index = class_of(s, in, variant);
    uint32_t slot = cached_slot(s, class_index, out);
    if (slot == MOE_NO_SLOT || s->slots[slot].pins || s->slots[slot].state != MOE_SLOT_READY ||
        *slot_of(s, in, variant) != MOE_NO_SLOT || cached_slot(s, class_index, in) != MOE_NO_SLOT)
        return MOE_NO_SLOT;
    vacate(s, slot);
    s->counts.evictions++;
    slot = take_free(s, &s->pools[class_index]);
    occupy(s, slot, in, variant, MOE_SLOT_CACHED);
    admit(s, slot);
    return slot;
}

/* Like evictable, also of what is protected: a pass is over. */
static bool at_rest(void *ctx, uint32_t key)
{
    const struct eviction *e = ctx;
    uint32_t slot = cached_slot(e->s, e->class_index, key);
    return slot != MOE_NO_SLOT && e->s->slots[slot].pins == 0 &&
           e->s->slots[slot].state == MOE_SLOT_READY;
}

/* The domain that has most of its slots left, the first of equals, and its pool. */
static struct domain *fullest(const struct moe_store *s, struct pool **of)
{
    struct domain *best = NULL;
    for (uint32_t c = 0; c < s->n_classes; c++) {
        for (uint32_t i = 0; i < (s->pools[c].per_layer ? s->n_layers : 1); i++) {
            struct domain *d = &s->pools[c].domains[i];
            bool fuller = d->capacity > 0 && (!best || (uint64_t)d->capacity * best->whole >
                                                           (uint64_t)best->capacity * d->whole);
            best = fuller ? d : best;
            *of = fuller ? &s->pools[c] : *of;
        }
    }
    return best;
}

uint32_t moe_store_withdraw(struct moe_store *s)
{
    struct pool *pool = NULL;
    struct domain *d = fullest(s, &pool);
    uint32_t slot = MOE_NO_SLOT;
    if (!d)
        return MOE_NO_SLOT;
    if (d->n < d->capacity)
        slot = pool->n_free ? take_free(s, pool) : reclaim_staged(s, pool, false);
    if (slot == MOE_NO_SLOT && d->n > 0) {
        struct eviction e = {s, (uint32_t)(pool - s->pools)};
        int64_t victim = d->policy->ops->victim(d->policy, MOE_NO_KEY, at_rest, &e);
        if (victim < 0)
            return MOE_NO_SLOT;
        vacate(s, cached_slot(s, e.class_index, (uint32_t)victim));
        s->counts.evictions++;
        slot = take_free(s, pool);
    }
    if (slot == MOE_NO_SLOT)
        return MOE_NO_SLOT;
    d->capacity--;
    pool->n_cache--;
    pool->unfilled--;
    s->slots[slot].state = MOE_SLOT_WITHDRAWN;
    s->withdrawn[s->n_withdrawn++] = (struct withdrawn){slot, pool, d};
    return slot;
}

uint32_t moe_store_withdrawn(const struct moe_store *s)
{
    return s->n_withdrawn ? s->withdrawn[s->n_withdrawn - 1].slot : MOE_NO_SLOT;
}

void moe_store_restore(struct moe_store *s)
{
    const struct withdrawn *w = &s->withdrawn[--s->n_withdrawn];
    struct moe_slot *slot = &s->slots[w->slot];
    w->domain->capacity++;
    w->pool->n_cache++;
    w->pool->unfilled++;
    slot->state = MOE_SLOT_FREE;
    slot->next_free = w->pool->free;
    w->pool->free = w->slot;
    w->pool->n_free++;
}

void moe_store_protect(struct moe_store *s, uint32_t key, bool protect)
{
    s->protected[key] = protect;
}

void moe_store_ready(struct moe_store *s, uint32_t slot)
{
    s->slots[slot].state = MOE_SLOT_READY;
}

void moe_store_failed(struct moe_store *s, uint32_t slot)
{
    vacate(s, slot);
}

void moe_store_release(struct moe_store *s, uint32_t index)
{
    struct moe_slot *slot = &s->slots[index];
    if (--slot->pins > 0 || slot->use != MOE_SLOT_TRANSIENT)
        return;
    if (slot->state == MOE_SLOT_READY) {
        vacate(s, index);
    } else { /* its bytes are still arriving */
        stage_slot(s, index);
    }
}

/* ---- Invariants ---- */

bool moe_store_check(const struct moe_store *s, struct moe_err *err)
{
    for (uint32_t c = 0; c < s->n_classes; c++) {
        const struct pool *pool = &s->pools[c];
        uint32_t n_free = 0, n_cached = 0, in_domains = 0, n_staged = 0, unfilled = 0;
        for (uint32_t i = pool->first; i < pool->first + pool->n; i++) {
            const struct moe_slot *slot = &s->slots[i];
            if (slot->state == MOE_SLOT_FREE || slot->state == MOE_SLOT_WITHDRAWN) {
                n_free += slot->state == MOE_SLOT_FREE;
                continue;
            }
            if (*slot_of(s, slot->key, slot->variant) != i) {
                moe_fail(err, MOE_ERR_FORMAT, "slot %u is not where its expert is said to be", i);
                return false;
            }
            n_cached += slot->use == MOE_SLOT_CACHED;
            n_staged += slot->use == MOE_SLOT_STAGED;
        }
        for (uint32_t i = 0; i < (pool->per_layer ? s->n_layers : 1); i++) {
            in_domains += pool->domains[i].n;
            unfilled += pool->domains[i].capacity - pool->domains[i].n;
            if (pool->domains[i].n > pool->domains[i].capacity) {
                moe_fail(err, MOE_ERR_FORMAT, "domain %u of pool %u holds more than it may", i, c);
                return false;
            }
        }
        if (n_free != pool->n_free || n_cached != in_domains) {
            moe_fail(err, MOE_ERR_FORMAT, "pool %u: %u free (counted %u), %u cached (counted %u)",
                     c, n_free, pool->n_free, n_cached, in_domains);
            return false;
        }
        for (uint32_t i = pool->staged_first; i != MOE_NO_SLOT; i = s->staged[i].after)
            n_staged -= s->slots[i].use == MOE_SLOT_STAGED;
        if (n_staged != 0 || unfilled != pool->unfilled) {
            moe_fail(err, MOE_ERR_FORMAT, "pool %u: staged slots or free places miscounted", c);
            return false;
        }
    }
    return true;
}
