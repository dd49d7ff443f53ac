/*
 * Budget: what reading one text of a client may cost, in steps and bytes, with every part of the
 * reading passing it down. Any thread may end the work early by setting `cancelled`.
 */
#ifndef MOE_BASE_ALLOWANCE_H
#define MOE_BASE_ALLOWANCE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Steps are a few dozen nanoseconds each. */
enum { MOE_READ_STEPS = 8 * 1000 * 1000, MOE_READ_BYTES = 64 << 20 };

struct moe_allowance {
    uint64_t max_steps, max_bytes;
    uint64_t steps, bytes;        /* taken so far; bytes: held now */
    const atomic_bool *cancelled; /* NULL: never */
    int status;                   /* MOE_OK, or what ended the work; sticky */
};

/* For what a user reads on the command line. */
static inline struct moe_allowance moe_allowance_usual(void)
{
    return (struct moe_allowance){.max_steps = MOE_READ_STEPS, .max_bytes = MOE_READ_BYTES};
}

/* Takes n steps; the status, MOE_OK while the work may go on. */
static inline int moe_allowance_step(struct moe_allowance *b, uint64_t n)
{
    b->steps += n;
    if (b->status == MOE_OK && b->steps > b->max_steps)
        b->status = MOE_ERR_LIMIT;
    if (b->status == MOE_OK && b->cancelled &&
        atomic_load_explicit(b->cancelled, memory_order_relaxed))
        b->status = MOE_ERR_INTERRUPTED;
    return b->status;
}

/* Takes bytes of memory; what is freed again is subtracted from b->bytes. */
static inline int moe_allowance_take(struct moe_allowance *b, uint64_t bytes)
{
    b->bytes += bytes;
    if (b->status == MOE_OK && b->bytes > b->max_bytes)
        b->status = MOE_ERR_LIMIT;
    return b->status;
}

/* Says what ended the work on `name`; returns the allowance's status. */
static inline int moe_allowance_say(const struct moe_allowance *b, const char *name,
                                    struct moe_err *err)
{
    if (b->status == MOE_ERR_INTERRUPTED)
        return moe_fail(err, b->status, "%s: stopped while it was read", name);
    if (b->steps > b->max_steps)
        return moe_fail(err, b->status,
                        "%s: reading it takes more than %llu steps: make it simpler", name,
                        (unsigned long long)b->max_steps);
    return moe_fail(err, b->status, "%s: reading it takes more than %llu KiB of memory", name,
                    (unsigned long long)b->max_bytes >> 10);
}

#endif
