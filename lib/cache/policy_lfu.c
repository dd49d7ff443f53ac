/*
 * lfu: the least frequently used leaves; among equals the least recently used. Counts start at
 * zero when an expert is admitted.
 *
 * A binary heap by (count, time of last use): both grow only, so a use sifts one way.
 */
#include "cache/keylist.h"

struct lfu {
    struct moe_policy base;
    uint32_t n;
    uint32_t *heap;  /* [n] keys, the next to leave first */
    uint32_t *place; /* [n_keys] index in heap */
    uint64_t *count; /* [n_keys] uses since admission */
    uint64_t *used;  /* [n_keys] time of the last use */
    uint64_t now;
};

static void close_lfu(struct moe_policy *p)
{
    struct lfu *f = (struct lfu *)p;
    free(f->heap);
    free(f->place);
    free(f->count);
    free(f->used);
    free(f);
}

static int open_lfu(struct moe_policy **out, const struct moe_policy_params *params,
                    struct moe_err *err)
{
    struct lfu *f = moe_alloc(1, sizeof *f, err);
    if (!f)
        return MOE_ERR_MEMORY;
    f->base.ops = &moe_policy_lfu;
    f->heap = moe_alloc(params->n_keys, sizeof *f->heap, err);
    f->place = moe_alloc(params->n_keys, sizeof *f->place, err);
    f->count = moe_alloc(params->n_keys, sizeof *f->count, err);
    f->used = moe_alloc(params->n_keys, sizeof *f->used, err);
    if (!f->heap || !f->place || !f->count || !f->used) {
        close_lfu(&f->base);
        return MOE_ERR_MEMORY;
    }
    *out = &f->base;
    return MOE_OK;
}

static bool leaves_before(const struct lfu *f, uint32_t a, uint32_t b)
{
    return f->count[a] != f->count[b] ? f->count[a] < f->count[b] : f->used[a] < f->used[b];
}

static void put(struct lfu *f, uint32_t at, uint32_t key)
{
    f->heap[at] = key;
    f->place[key] = at;
}

static void sift_up(struct lfu *f, uint32_t at, uint32_t key)
{
    for (; at > 0 && leaves_before(f, key, f->heap[(at - 1) / 2]); at = (at - 1) / 2)
        put(f, at, f->heap[(at - 1) / 2]);
    put(f, at, key);
}

static void sift_down(struct lfu *f, uint32_t at, uint32_t key)
{
    for (uint32_t child; (child = 2 * at + 1) < f->n; at = child) {
        if (child + 1 < f->n && leaves_before(f, f->heap[child + 1], f->heap[child]))
            child++;
        if (!leaves_before(f, f->heap[child], key))
            break;
        put(f, at, f->heap[child]);
    }
    put(f, at, key);
}

static void use(struct moe_policy *p, uint32_t key)
{
    struct lfu *f = (struct lfu *)p;
    f->count[key]++;
    f->used[key] = ++f->now;
    sift_down(f, f->place[key], key);
}

static void admit(struct moe_policy *p, uint32_t key)
{
    struct lfu *f = (struct lfu *)p;
    f->count[key] = 1;
    f->used[key] = ++f->now;
    sift_up(f, f->n++, key);
}

static void drop(struct moe_policy *p, uint32_t key)
{
    struct lfu *f = (struct lfu *)p;
    uint32_t at = f->place[key], last = f->heap[--f->n];
    if (last == key)
        return;
    if (at > 0 && leaves_before(f, last, f->heap[(at - 1) / 2]))
        sift_up(f, at, last);
    else
        sift_down(f, at, last);
}

/* The heap's front, or, while that is pinned, the least of the others by a scan. */
static int64_t victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx)
{
    struct lfu *f = (struct lfu *)p;
    int64_t best = MOE_NO_KEY;
    for (uint32_t i = 0; i < f->n; i++) {
        uint32_t key = f->heap[i];
        if (may && !may(ctx, key))
            continue;
        if (i == 0)
            return key;
        if (best < 0 || leaves_before(f, key, (uint32_t)best))
            best = key;
    }
    return best;
}

const struct moe_policy_ops moe_policy_lfu = {
    .name = "lfu",
    .describe = "the least frequently used is evicted",
    .open = open_lfu,
    .close = close_lfu,
    .use = use,
    .admit = admit,
    .drop = drop,
    .victim = victim,
};
