/*
 * Unordered set of keys, private to the policies: a dense array, so that a scan or a random draw
 * meets members only; adding and removing take constant time.
 */
#ifndef MOE_CACHE_KEYSET_H
#define MOE_CACHE_KEYSET_H

#include <stdint.h>
#include <stdlib.h>

#include "base/mem.h"

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

/* `s` is zeroed; keys will be 0..n_keys-1. Released also after a failure. */
static inline int moe_keyset_init(struct moe_keyset *s, uint32_t n_keys, struct moe_err *err)
{
    s->keys = moe_alloc(n_keys, sizeof *s->keys, err);
    s->place = moe_alloc(n_keys, sizeof *s->place, err);
    return s->keys && s->place ? MOE_OK : MOE_ERR_MEMORY;
}

/* An absent key becomes a member. */
static inline void moe_keyset_add(struct moe_keyset *s, uint32_t key)
{
    s->place[key] = s->n;
    s->keys[s->n++] = key;
}

/* A member leaves; the last one takes its place. */
static inline void moe_keyset_remove(struct moe_keyset *s, uint32_t key)
{
    uint32_t last = s->keys[--s->n];
    s->keys[s->place[key]] = last;
    s->place[last] = s->place[key];
}

#endif
