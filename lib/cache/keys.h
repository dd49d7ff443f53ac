/*
 * Lists of keys (private to policies): every key is in at most one list of a set. The links are two
 * arrays; every operation but a walk takes constant time.
 */
#ifndef MOE_CACHE_KEYS_H
#define MOE_CACHE_KEYS_H

#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"
#include "cache/policy.h"

/* n_lists circular lists over n_keys keys: node n_keys + i is the head of list i. */
struct moe_keylists {
    uint32_t n_keys, n_lists;
    uint32_t *next, *prev;
    uint32_t *list_of; /* [n_keys] the list a key is in; n_lists: none */
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

/* The oldest key of a list that may leave. Pinned keys are few (experts in use), so the walk is
 * short. */
static inline int64_t moe_keylists_oldest(const struct moe_keylists *l, uint32_t list,
                                          moe_evictable_fn may, void *ctx)
{
    for (uint32_t key = l->prev[l->n_keys + list]; key < l->n_keys; key = l->prev[key])
        if (!may || may(ctx, key))
            return key;
    return MOE_NO_KEY;
}

/*
 * Unordered set of keys (private to policies): a dense array, so that a scan or a random draw meets
 * members only. Adding and removing take constant time.
 */

struct moe_keyset {
    uint32_t n;
    uint32_t *keys;  /* [n] members */
    uint32_t *place; /* [n_keys] a member's index in keys */
};

static inline void moe_keyset_release(struct moe_keyset *s)
{
    free(s->keys);
    free(s->place);
}

/* `s` is zeroed; keys will be 0..n_keys-1. Release also after a failure. */
static inline int moe_keyset_init(struct moe_keyset *s, uint32_t n_keys, struct moe_err *err)
{
    s->keys = moe_alloc(n_keys, sizeof *s->keys, err);
    s->place = moe_alloc(n_keys, sizeof *s->place, err);
    return s->keys && s->place ? MOE_OK : MOE_ERR_MEMORY;
}

/* Adds an absent key. */
static inline void moe_keyset_add(struct moe_keyset *s, uint32_t key)
{
    s->place[key] = s->n;
    s->keys[s->n++] = key;
}

/* Removes a member; the last one takes its place. */
static inline void moe_keyset_remove(struct moe_keyset *s, uint32_t key)
{
    uint32_t last = s->keys[--s->n];
    s->keys[s->place[key]] = last;
    s->place[last] = s->place[key];
}

#endif
