/*
 * Shards: which parts of a whole a file holds. Work that takes hours is cut into N parts that
 * deal out its items in turn: shard I has items I, I + N, I + 2 N, ... A file says which shards of
 * how many it holds, so that merging can tell a shard that is there twice and one that is missing.
 */
#ifndef MOE_RECORD_SHARDS_H
#define MOE_RECORD_SHARDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/record.h"

enum { MOE_MAX_SHARDS = 1 << 20 };

struct moe_shards {
    uint32_t n;      /* that make the whole; 0: not known, of files of earlier versions */
    uint32_t n_held; /* at least 1 where n is known */
    uint32_t *held;  /* rising, counted from 0; owned */
};

static inline bool moe_shards_whole(const struct moe_shards *s)
{
    return s->n > 0 && s->n_held == s->n;
}

/* One shard of n, or (0 of 1) the whole. *s is not released first; where it fails it is empty. */
int moe_shards_set(struct moe_shards *s, uint32_t shard, uint32_t n, struct moe_err *err);
int moe_shards_copy(struct moe_shards *to, const struct moe_shards *from, struct moe_err *err);
void moe_shards_release(struct moe_shards *s);
bool moe_shards_same(const struct moe_shards *a, const struct moe_shards *b);
bool moe_shards_hold(const struct moe_shards *s, uint32_t shard);
/* How many of so many items the held shards have together. */
uint64_t moe_shards_items(const struct moe_shards *s, uint64_t items);
/* NULL, or what is wrong with them. */
const char *moe_shards_problem(const struct moe_shards *s);

/* Adds the shards of another file. What is whole then is 1 of 1, as if it had never been cut.
 * MOE_ERR_USAGE: cut into another number, or one is there already; `sum` stays as it was. */
int moe_shards_join(struct moe_shards *sum, const struct moe_shards *part, struct moe_err *err);
/* MOE_ERR_USAGE names the shards that are missing, and --partial. */
int moe_shards_check_whole(const struct moe_shards *s, struct moe_err *err);
/* "shard 2 of 7", "shards 1, 3-5 of 7", "all". */
void moe_shards_print(const struct moe_shards *s, struct moe_buf *out);

/* A struct moe_shards as a member of a file: "shards: {of: 7, held: [2, 4]}", counted from 1. Where
 * it is missing they are not known. */
extern const struct moe_member_own moe_shards_member;

#endif
