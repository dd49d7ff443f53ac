/*
 * Belady's optimum: the most hits that any cache that loads only on demand could have on a trace,
 * knowing the future. Pure.
 *
 * Experts that are not worth keeping may bypass the cache. A cache keeps intervals, each from one
 * lookup of an expert to its next, which then is a hit; at most `capacity` may overlap. Where more
 * do, the one that ends last is dropped, which leaves the most (Belady 1966, MIN, with bypassing).
 *
 * A layer's experts are looked up at once: in whatever order a cache takes them, one that was a hit
 * may be evicted for one that was not. So no cache of as many experts that starts empty and loads
 * only on demand has more hits.
 *
 * Only hits of decoded tokens count; prompts fill the cache, but their own hits keep nothing in it.
 * The cache outlives a sequence. How a prompt is cut into passes makes no difference: no interval
 * ends within it, so most overlap at its end, whatever the order.
 */
#ifndef MOE_PLAN_OPTIMAL_H
#define MOE_PLAN_OPTIMAL_H

#include <stdint.h>

#include "base/err.h"
#include "profile/trace.h"

/* Lookups of a trace, kept to answer for several capacities: 8 to 16 bytes each. */
struct moe_lookups;

/* Reads the trace, or an excerpt ({0}: all of it). MOE_ERR_MEMORY, MOE_ERR_LIMIT
 * (2^32 lookups), and the errors of the trace's reader. */
int moe_lookups_read(struct moe_lookups **out, struct moe_trace *trace, struct moe_excerpt excerpt,
                     struct moe_err *err);
void moe_lookups_free(struct moe_lookups *l); /* NULL is fine */
/* Lookups of decoded tokens. */
uint64_t moe_lookups_decoded(const struct moe_lookups *l);

/* Hits of decoded tokens with room for `capacity` experts of all layers together. Takes up to 8
 * more bytes a lookup. MOE_ERR_MEMORY. */
int moe_optimal_hits(const struct moe_lookups *l, uint64_t capacity, uint64_t *hits,
                     struct moe_err *err);

#endif
