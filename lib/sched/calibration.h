/*
 * Calibration: what a bit map (map.h) says of strategies: HOBBIT's thresholds, weights and pools,
 * Fate's share, ways to load less, and what results lose by them. Pure.
 */
#ifndef MOE_SCHED_CALIBRATION_H
#define MOE_SCHED_CALIBRATION_H

#include "pack/map.h"
#include "sched/inventory.h"
#include "sched/strategy.h"

/* What moe-calibrate measures of a strategy's parts. */
enum moe_finding {
    MOE_FOUND_ON_MISS = 0, /* T1 and T2 (HOBBIT 3.2), as if every activation were a miss */
    MOE_FOUND_PREFILL,     /* p (Fate 4.5) */
    MOE_FOUND_ROUTING,     /* lambda of cache-aware routing, in a cache of one size */
    MOE_N_FINDINGS
};
enum moe_part moe_finding_part(enum moe_finding which);

/* What a plan may rely on. */
struct moe_calibration {
    const struct moe_map *map;
    bool measured; /* only one part may change results, and by no more than the map measured to be
                      within its tolerance */
    double tolerance; /* above 0: only the map's ways to load less may change results, those that it
                         measured to lose no more than this, in its metric */
};

/* Replaces the values of a strategy's parts, except those of the set `named` (bits 1 << part), by
 * what the map found: T1 and T2 where it loads at a low precision on a miss, the low pool and the
 * weights of `hobbit`, p of a hybrid prefill (0: popularity). Where it prefers cached experts by
 * the map ("auto", named or not), lambda. Settle the strategy afterwards. */
void moe_calibration_apply(const struct moe_map *map, uint32_t named, struct moe_strategy *s);

/* Whether a pack with this inventory has the two precisions that a finding is about.
 * MOE_ERR_USAGE: the map has no such finding, or the pack lacks one of them. */
int moe_calibration_serves(const struct moe_map *map, enum moe_finding which,
                           const struct moe_inventory *inventory, struct moe_err *err);

/* What results lose at most by that part of a settled strategy at these precisions (names of
 * variants); NULL: the part changes nothing, or the map did not measure that much. */
const struct moe_loss *moe_calibration_loss(const struct moe_map *map, enum moe_finding which,
                                            const struct moe_strategy *s, const char *high,
                                            const char *low);

/* What a way to load less loses in a cache of that size: the map's measurement, on the texts or on
 * the checks, whichever is worse, in the caches next to that size, at most twice or half as large.
 * NULL: the strategy approximates nothing, or in another way than was measured there. on_checks:
 * set to whether it is that of the checks; may be NULL. */
const struct moe_loss *moe_calibration_saving(const struct moe_map *map,
                                              const struct moe_strategy *s, uint64_t cache_bytes,
                                              const char *high, const char *low, bool *on_checks);

/* Of each kind of ways to load less the strategy that loads least of those within c->tolerance in a
 * cache of that size, without its rest: give its parts to others by moe_calibration_take. Returns
 * how many. MOE_ERR_USAGE: the map has a strategy that there is not. */
enum { MOE_MAX_WAYS = 8 };
int moe_calibration_ways(const struct moe_calibration *c, const struct moe_inventory *inventory,
                         uint64_t cache_bytes, struct moe_strategy ways[MOE_MAX_WAYS], uint32_t *n,
                         struct moe_err *err);
/* Has a strategy approximate as the other one does, and in no other way; settle it afterwards. */
void moe_calibration_take(struct moe_strategy *s, const struct moe_strategy *way);

/* Whether a strategy that is settled and fitted may be planned with a cache of that size: the
 * values it has from the map were found for these variants of the inventory, and, where c->measured
 * or c->tolerance says so, it approximates no more than that. MOE_ERR_USAGE says why not. */
int moe_calibration_check(const struct moe_calibration *c, const struct moe_strategy *s,
                          const struct moe_inventory *inventory, uint64_t cache_bytes,
                          uint32_t high, uint32_t low, struct moe_err *err);

#endif
