/*
 * Memory: the law and its few tools.
 *
 * Who creates frees, with the free function beside the create function; every free accepts NULL.
 * Views (struct moe_mat, const pointers out of a pack) borrow and never outlive their source.
 * Sizes that come from a file are multiplied and added only through the checked forms below.
 */
#ifndef MOE_BASE_MEM_H
#define MOE_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { MOE_ALIGN = 64 }; /* a cache line, and the widest vector */

/* Checked arithmetic: false on overflow, *out then untouched. */
static inline bool moe_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b != 0 && a > UINT64_MAX / b)
        return false;
    *out = a * b;
    return true;
}

static inline bool moe_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a > UINT64_MAX - b)
        return false;
    *out = a + b;
    return true;
}

/* `value` rounded up to a multiple of `unit` (a power of two); the caller knows it fits. */
static inline uint64_t moe_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) & ~(unit - 1);
}

/* Zeroed memory for n items of item_bytes, MOE_ALIGN-aligned; release with free().
 * NULL on overflow or out of memory, and then `err` says how much was wanted. n = 0 gives a valid
 * pointer. */
void *moe_alloc(uint64_t n, uint64_t item_bytes, struct moe_err *err);

/* Page-aligned, zero-filled memory straight from the system, for weights and caches; asks for huge
 * pages. Release with moe_pages_free and the same size. */
void *moe_pages_alloc(uint64_t bytes, struct moe_err *err);
void moe_pages_free(void *pages, uint64_t bytes);
/* Gives the whole pages among `bytes` at `at`, part of such memory, back to the system: they read
 * as zeros when they are used again, and until then take no memory, nor do huge pages fill them. */
void moe_pages_drop(void *at, uint64_t bytes);
/* They are used again as before: huge pages may fill them. */
void moe_pages_take_back(void *at, uint64_t bytes);

/* A copy of the n bytes at `text` followed by a NUL; free() it. NULL: out of memory. */
char *moe_strndup(const char *text, uint64_t n, struct moe_err *err);

/*
 * Arena: one block, carved front to back, freed at once.
 *
 * An arena without a block only counts: run the carving code on a zeroed arena to learn the size,
 * then on one with memory. The size that a plan states and the size that is allocated thus come
 * from the same lines. Under the address sanitizer a red zone follows each array.
 */
struct moe_arena {
    uint8_t *base;    /* NULL: counting only */
    uint64_t size;    /* bytes at base */
    uint64_t used;    /* bytes carved so far, a multiple of MOE_ALIGN */
    uint32_t n_taken; /* arrays */
    bool overflowed;  /* a size overflowed or did not fit; sticky */
    bool packed;      /* without red zones, for a block that is copied as a whole */
};

/* n items of item_bytes, MOE_ALIGN-aligned; NULL when counting or on overflow (check `overflowed`
 * once at the end). */
void *moe_arena_take(struct moe_arena *arena, uint64_t n, uint64_t item_bytes);

/* Gives memory that was freed back to the system, as far as malloc can. */
void moe_heap_trim(void);
/* The process's current resident set in bytes; 0 if unknown. */
uint64_t moe_rss_bytes(void);
/* The process's peak resident set in bytes so far (VmHWM); 0 where it is not known. */
uint64_t moe_peak_rss_bytes(void);

static inline uint64_t moe_larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif
