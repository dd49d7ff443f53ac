/*
 * arc: adaptive replacement (Megiddo and Modha, FAST 2003, fig. 4). T1 holds keys requested once
 * lately, T2 those requested more than once; B1 and B2 remember what left them. A miss that B1
 * remembers means T1 was too small and raises its target; one that B2 remembers lowers it.
 *
 * The paper's single routine is spread over the protocol's calls: miss adapts the target (cases II
 * and III), victim is REPLACE's choice, drop makes the ghost, admit files the newcomer and trims
 * the ghosts. Order and effect are the same; the tests compare with the routine written in one
 * piece.
 */
#include "cache/keys.h"

enum { T1, T2, B1, B2, N_LISTS };

struct arc {
    struct moe_policy base;
    struct moe_keylists lists;
    uint32_t capacity;
    double target; /* T1's target length, 0..capacity */
};

static void close_arc(struct moe_policy *p)
{
    struct arc *a = (struct arc *)p;
    moe_keylists_release(&a->lists);
    free(a);
}

static int open_arc(struct moe_policy **out, const struct moe_policy_ops *ops,
                    const struct moe_policy_params *params, struct moe_err *err)
{
    struct arc *a = moe_alloc(1, sizeof *a, err);
    if (!a)
        return MOE_ERR_MEMORY;
    a->base.ops = ops;
    a->capacity = params->capacity;
    int status = moe_keylists_init(&a->lists, params->n_keys, N_LISTS, err);
    if (status != MOE_OK) {
        close_arc(&a->base);
        return status;
    }
    *out = &a->base;
    return MOE_OK;
}

static void arc_use(struct moe_policy *p, uint32_t key)
{
    moe_keylists_to_front(&((struct arc *)p)->lists, key, T2);
}

static void miss(struct moe_policy *p, uint32_t key)
{
    struct arc *a = (struct arc *)p;
    double b1 = a->lists.length[B1], b2 = a->lists.length[B2];
    if (moe_keylists_in(&a->lists, key, B1)) {
        a->target += b2 > b1 ? b2 / b1 : 1;
        if (a->target > a->capacity)
            a->target = a->capacity;
    } else if (moe_keylists_in(&a->lists, key, B2)) {
        a->target -= b1 > b2 ? b1 / b2 : 1;
        if (a->target < 0)
            a->target = 0;
    }
}

static int64_t arc_victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx)
{
    struct arc *a = (struct arc *)p;
    double t1 = a->lists.length[T1];
    bool ghost2 = incoming >= 0 && moe_keylists_in(&a->lists, (uint32_t)incoming, B2);
    bool from_t1 = t1 >= 1 && (t1 > a->target || (ghost2 && t1 == a->target));
    int64_t key = moe_keylists_oldest(&a->lists, from_t1 ? T1 : T2, may, ctx);
    return key >= 0 ? key : moe_keylists_oldest(&a->lists, from_t1 ? T2 : T1, may, ctx);
}

static void arc_drop(struct moe_policy *p, uint32_t key)
{
    struct arc *a = (struct arc *)p;
    moe_keylists_to_front(&a->lists, key, moe_keylists_in(&a->lists, key, T1) ? B1 : B2);
}

static void forget_oldest(struct arc *a, uint32_t list)
{
    int64_t key = moe_keylists_back(&a->lists, list);
    if (key >= 0)
        moe_keylists_remove(&a->lists, (uint32_t)key);
}

static void arc_admit(struct moe_policy *p, uint32_t key)
{
    struct arc *a = (struct arc *)p;
    const uint32_t *n = a->lists.length;
    bool known = moe_keylists_in(&a->lists, key, B1) || moe_keylists_in(&a->lists, key, B2);
    moe_keylists_to_front(&a->lists, key, known ? T2 : T1);
    while (n[B1] > 0 && n[T1] + n[B1] > a->capacity)
        forget_oldest(a, B1);
    while (n[B2] > 0 && n[T1] + n[T2] + n[B1] + n[B2] > 2 * a->capacity)
        forget_oldest(a, B2);
}

const struct moe_policy_ops moe_policy_arc = {
    .name = "arc",
    .describe = "evicts by recency and frequency, weighted by past misses (ARC)",
    .open = open_arc,
    .close = close_arc,
    .use = arc_use,
    .miss = miss,
    .admit = arc_admit,
    .drop = arc_drop,
    .victim = arc_victim,
};
