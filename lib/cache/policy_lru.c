/*
 * Policies that keep one list: lru (a use moves to the front), fifo (it does not), pinned (nothing
 * ever leaves: the first experts stay, later ones pass through).
 */
#include "cache/keys.h"

struct one_list {
    struct moe_policy base;
    struct moe_keylists lists;
};

static void close_list(struct moe_policy *p)
{
    struct one_list *o = (struct one_list *)p;
    moe_keylists_release(&o->lists);
    free(o);
}

static int open_list(struct moe_policy **out, const struct moe_policy_ops *ops,
                     const struct moe_policy_params *params, struct moe_err *err)
{
    struct one_list *o = moe_alloc(1, sizeof *o, err);
    if (!o)
        return MOE_ERR_MEMORY;
    o->base.ops = ops;
    int status = moe_keylists_init(&o->lists, params->n_keys, 1, err);
    if (status != MOE_OK) {
        close_list(&o->base);
        return status;
    }
    *out = &o->base;
    return MOE_OK;
}

static void list_to_front(struct moe_policy *p, uint32_t key)
{
    moe_keylists_to_front(&((struct one_list *)p)->lists, key, 0);
}

static void keep_place(struct moe_policy *p, uint32_t key)
{
    (void)p;
    (void)key;
}

static void list_drop(struct moe_policy *p, uint32_t key)
{
    moe_keylists_remove(&((struct one_list *)p)->lists, key);
}

static int64_t oldest(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx)
{
    return moe_keylists_oldest(&((struct one_list *)p)->lists, 0, may, ctx);
}

static int64_t no_victim(struct moe_policy *p, int64_t incoming, moe_evictable_fn may, void *ctx)
{
    return MOE_NO_KEY;
}

const struct moe_policy_ops moe_policy_lru = {
    .name = "lru",
    .describe = "evicts the least recently used",
    .open = open_list,
    .close = close_list,
    .use = list_to_front,
    .admit = list_to_front,
    .drop = list_drop,
    .victim = oldest,
};

const struct moe_policy_ops moe_policy_fifo = {
    .name = "fifo",
    .describe = "the oldest is evicted",
    .open = open_list,
    .close = close_list,
    .use = keep_place,
    .admit = list_to_front,
    .drop = list_drop,
    .victim = oldest,
};

const struct moe_policy_ops moe_policy_pinned = {
    .name = "pinned",
    .describe = "evicts nothing: the initial contents stay",
    .open = open_list,
    .close = close_list,
    .use = keep_place,
    .admit = list_to_front,
    .drop = list_drop,
    .victim = no_victim,
};
