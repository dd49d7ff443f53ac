/*
 * Memory of a parse or a render: taken piece by piece, given back all at once, with a limit. And
 * the way out of both: whatever fails, however deep, leaves by jinja_fail to the one place that
 * frees the heap (jinja.c). Private to this floor.
 */
#ifndef MOE_JINJA_HEAP_H
#define MOE_JINJA_HEAP_H

#include <setjmp.h>
#include <stdint.h>

#include "base/err.h"

struct jinja_block;

struct jinja_heap {
    struct jinja_block *blocks; /* the newest first */
    uint64_t used, limit;       /* bytes */
    const char *name;           /* of the template */
    struct moe_err *err;
    int status;
    jmp_buf out;
};

/* A place in the template, from 1 on. */
struct jinja_place {
    uint32_t line, column;
};

/* Says what is wrong and where, and does not return. */
_Noreturn void jinja_fail(struct jinja_heap *heap, struct jinja_place at, int status,
                          const char *format, ...) MOE_PRINTF(4, 5);

/* Zeroed memory for n items; fails where there is none, so it is never NULL. */
void *jinja_take(struct jinja_heap *heap, uint64_t n, uint64_t item_bytes);
/* A larger array for one of n items, which are kept. */
void *jinja_grow(struct jinja_heap *heap, const void *items, uint64_t n, uint64_t room,
                 uint64_t item_bytes);
void jinja_heap_free(struct jinja_heap *heap);

#endif
