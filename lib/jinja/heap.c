#include "jinja/heap.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { BLOCK_BYTES = 64 << 10, UNIT = 16 };

struct jinja_block {
    struct jinja_block *next;
    uint64_t size, used; /* of what follows */
    _Alignas(UNIT) uint8_t bytes[];
};

_Noreturn static void leave(struct jinja_heap *heap, int status)
{
    heap->status = status;
    longjmp(heap->out, 1);
}

void jinja_fail(struct jinja_heap *heap, struct jinja_place at, int status, const char *format, ...)
{
    char text[384];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    leave(heap, moe_fail(heap->err, status, "%s, line %u, column %u: %s", heap->name, at.line,
                         at.column, text));
}

void *jinja_take(struct jinja_heap *heap, uint64_t n, uint64_t item_bytes)
{
    uint64_t bytes = 0;
    if (!moe_mul_u64(n, item_bytes, &bytes) || bytes > heap->limit ||
        heap->used > heap->limit - bytes)
        leave(heap, moe_fail(heap->err, MOE_ERR_LIMIT,
                             "%s: the template needs more than %llu bytes of memory", heap->name,
                             (unsigned long long)heap->limit));
    bytes = moe_round_up(bytes ? bytes : 1, UNIT);
    struct jinja_block *block = heap->blocks;
    if (!block || block->size - block->used < bytes) {
        uint64_t size = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = calloc(1, sizeof *block + size);
        if (!block)
            leave(heap, moe_fail(heap->err, MOE_ERR_MEMORY, "%s: out of memory", heap->name));
        block->size = size;
        block->next = heap->blocks;
        heap->blocks = block;
    }
    void *at = block->bytes + block->used;
    block->used += bytes;
    heap->used += bytes;
    return at;
}

void *jinja_grow(struct jinja_heap *heap, const void *items, uint64_t n, uint64_t room,
                 uint64_t item_bytes)
{
    void *larger = jinja_take(heap, room, item_bytes);
    if (n)
        memcpy(larger, items, n * item_bytes);
    return larger;
}

void jinja_heap_free(struct jinja_heap *heap)
{
    for (struct jinja_block *block = heap->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    heap->blocks = NULL;
}
