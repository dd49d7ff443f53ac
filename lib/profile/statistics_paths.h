/*
 * Counts of 64-bit keys: the table of activation paths. With a limit only the keys with the
 * smallest hashes are kept (a bottom-k sketch): which ones depends on the keys seen alone, not on
 * their order, so that merged shards equal one run.
 */
#ifndef MOE_PROFILE_STATISTICS_PATHS_H
#define MOE_PROFILE_STATISTICS_PATHS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_path_count {
    uint64_t key, n;
};

struct moe_path_table;

/* limit: most keys that are kept, those smallest as numbers; 0: all. */
int moe_path_table_new(struct moe_path_table **out, uint64_t limit, struct moe_err *err);
void moe_path_table_free(struct moe_path_table *table);
int moe_path_table_add(struct moe_path_table *table, uint64_t key, uint64_t n, struct moe_err *err);
uint64_t moe_path_table_get(const struct moe_path_table *table, uint64_t key);
/* Keys in it; between two cuts, up to twice the limit. */
uint64_t moe_path_table_used(const struct moe_path_table *table);
/* Memory that its places take. */
uint64_t moe_path_table_held(const struct moe_path_table *table);
/* Bytes that a table takes at most while it grows to so many keys, and its sorted list with it. */
uint64_t moe_path_table_bytes(uint64_t n_keys);
/* Whether keys were dropped: the table is a sample then. */
bool moe_path_table_sampled(const struct moe_path_table *table);
void moe_path_table_set_sampled(struct moe_path_table *table);
/* All keys, ascending; *n of them. free() the result; NULL without memory (or when empty: *n 0). */
struct moe_path_count *moe_path_table_sorted(const struct moe_path_table *table, uint64_t *n,
                                             struct moe_err *err);

#endif
