/*
 * Lists of keys, private to the policies: every key is in at most one list of a set, the
 * links are two arrays, every operation but a walk takes constant time.
 */
#ifndef MOE_CACHE_KEYLIST_H
#define MOE_CACHE_KEYLIST_H

#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cache/policy.h"

/* n_lists circular lists over n_keys keys: node n_keys + i is the head of list i. */
struct moe_keylists {
    uint32_t n_keys, n_lists;
    uint32_t *next, *prev;
    uint32_t *list_of; /* [n_keys] which list a key is in; n_lists: none */
    uint32_t *length;  /* [n_lists] */
};

static inline void moe_keylists_release(struct moe_keylists *l)
{
    free(l->next);
    free(l->prev);
    free(l->list_of);
    free(l->length);
}

static inline int moe_keylists_init(struct moe_keylists *l, uint32_t n_keys, uint32_t n_lists,
                                    struct moe_err *err)
{
    l->n_keys = n_keys;
    l->n_lists = n_lists;
    uint64_t n = (uint64_t)n_keys + n_lists;
    l->next = moe_alloc(n, sizeof *l->next, err);
    l->prev = moe_alloc(n, sizeof *l->prev, err);
    l->list_of = moe_alloc(n_keys, sizeof *l->list_of, err);
    l->length = moe_alloc(n_lists, sizeof *l->length, err);
    if (!l->next || !l->prev || !l->list_of || !l->length)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n_keys; i++)
        l->list_of[i] = n_lists;
    for (uint32_t i = 0; i < n_lists; i++)
        l->next[n_keys + i] = l->prev[n_keys + i] = n_keys + i;
    return MOE_OK;
}

static inline bool moe_keylists_in(const struct moe_keylists *l, uint32_t key, uint32_t list)
{
    return l->list_of[key] == list;
}

static inline void moe_keylists_remove(struct moe_keylists *l, uint32_t key)
{
    uint32_t list = l->list_of[key];
    if (list == l->n_lists)
        return;
    l->next[l->prev[key]] = l->next[key];
    l->prev[l->next[key]] = l->prev[key];
    l->list_of[key] = l->n_lists;
    l->length[list]--;
}

/* Moves a key (from wherever it is) to the front, the most recent end, of a list. */
static inline void moe_keylists_to_front(struct moe_keylists *l, uint32_t key, uint32_t list)
{
    moe_keylists_remove(l, key);
    uint32_t head = l->n_keys + list;
    l->next[key] = l->next[head];
    l->prev[key] = head;
    l->prev[l->next[head]] = key;
    l->next[head] = key;
    l->list_of[key] = list;
    l->length[list]++;
}

/* The key at the back, the oldest; MOE_NO_KEY when the list is empty. */
static inline int64_t moe_keylists_back(const struct moe_keylists *l, uint32_t list)
{
    uint32_t key = l->prev[l->n_keys + list];
    return key < l->n_keys ? (int64_t)key : MOE_NO_KEY;
}

/* The oldest key of a list that may leave. Pinned keys are few (a layer's experts at work), so the
 * walk is short. */
static inline int64_t moe_keylists_oldest(const struct moe_keylists *l, uint32_t list,
                                          moe_evictable_fn may, void *ctx)
{
    for (uint32_t key = l->prev[l->n_keys + list]; key < l->n_keys; key = l->prev[key])
        if (!may || may(ctx, key))
            return key;
    return MOE_NO_KEY;
}

#endif
