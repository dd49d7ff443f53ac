/*
 * What a file of measurements was made from: which shards of which texts, with which pack and
 * options.
 */
#ifndef MOE_PROFILE_ORIGINS_H
#define MOE_PROFILE_ORIGINS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "fmt/record.h"

/*
 * Shards: which parts of a whole a file holds. Work that takes hours is cut into N parts that
 * deal out its items in turn: shard I has items I, I + N, I + 2 N, ... A file says which shards of
 * how many it holds, so that merging can tell a shard that occurs twice and one that is missing.
 */

enum { MOE_MAX_SHARDS = 1 << 20 };

struct moe_shards {
    uint32_t n;      /* that make the whole; 0: nothing is held */
    uint32_t n_held; /* at least 1 where n is not 0 */
    uint32_t *held;  /* rising, counted from 0; owned */
};

static inline bool moe_shards_whole(const struct moe_shards *s)
{
    return s->n > 0 && s->n_held == s->n;
}

/* Sets one shard of n, or (0 of 1) the whole. Does not release *s first; leaves it empty on
 * failure. */
int moe_shards_set(struct moe_shards *s, uint32_t shard, uint32_t n, struct moe_err *err);
void moe_shards_release(struct moe_shards *s);
bool moe_shards_same(const struct moe_shards *a, const struct moe_shards *b);
bool moe_shards_hold(const struct moe_shards *s, uint32_t shard);
/* Counts the items that the held shards have together. */
uint64_t moe_shards_items(const struct moe_shards *s, uint64_t items);
/* NULL, or what is wrong with them. */
const char *moe_shards_problem(const struct moe_shards *s);

/* Adds the shards of another file. Once whole it says 1 of 1, as if it had never been cut.
 * MOE_ERR_USAGE: cut into another number, or one is there already; `sum` stays as it was. */
int moe_shards_join(struct moe_shards *sum, const struct moe_shards *part, struct moe_err *err);
/* MOE_ERR_USAGE names the shards that are missing, and --partial. */
int moe_shards_check_whole(const struct moe_shards *s, struct moe_err *err);
/* "shard 2 of 7", "shards 1, 3-5 of 7", "all". */
void moe_shards_print(const struct moe_shards *s, struct moe_buf *out);

/* A struct moe_shards as a member of a file: "shards: {of: 7, held: [2, 4]}", counted from 1. */
extern const struct moe_member_own moe_shards_member;

/*
 * Origins: what a file of statistics or a trace was made from. An origin is the texts that were run
 * together, in their order, with which pack and options, and the shards of that run that the file
 * holds. A file has one, or the sum of runs over different texts several.
 */

enum { MOE_MAX_ORIGINS = 1 << 12, MOE_MAX_ORIGIN_TEXTS = 1 << 16 };
#define MOE_MAX_ORIGIN_DOCUMENTS (UINT64_C(1) << 40) /* so that no sum overflows */

struct moe_origin {
    uint64_t pack_fingerprint;
    uint64_t options_fingerprint; /* hash of options that affect the figures but are not stored;
                                     0: none */
    uint64_t documents;           /* of all texts, that is of all shards */
    uint32_t n_texts;
    uint64_t *texts; /* [n_texts] in the order they were run; owned. A text's fingerprint is of its
                        documents' bytes, 0 where it has none */
    struct moe_shards shards; /* every n-th document */
    const char *name;         /* of the file it came from, for messages; borrowed, or NULL */
};

struct moe_origins {
    uint32_t n;               /* 0: unknown (imported or synthetic traces) */
    struct moe_origin *items; /* sorted by their texts' fingerprints; owned */
};

void moe_origins_release(struct moe_origins *o);
int moe_origins_copy(struct moe_origins *to, const struct moe_origins *from, struct moe_err *err);
/* Begins one origin without texts yet (room for n_texts) and with one shard. */
int moe_origins_begin(struct moe_origins *o, uint32_t n_texts, uint32_t shard, uint32_t n_shards,
                      struct moe_err *err);
/* Sets what messages call the file that they came from. */
void moe_origins_name(struct moe_origins *o, const char *name);
/* How many documents the file has. */
uint64_t moe_origins_documents(const struct moe_origins *o);
/* The origin of the same texts in the same order; NULL: none. */
const struct moe_origin *moe_origins_find(const struct moe_origins *o,
                                          const struct moe_origin *like);
/* What differs, "other texts", "another pack", "other options", "another shard"; NULL: nothing. */
const char *moe_origins_difference(const struct moe_origins *a, const struct moe_origins *b);
/* NULL, or what is wrong with them, as read from a file. */
const char *moe_origins_problem(const struct moe_origins *o);

/* Adds those of another file, both known. MOE_ERR_USAGE says what would count twice or does not
 * belong together; `sum` may then only be released. */
int moe_origins_join(struct moe_origins *sum, const struct moe_origins *part, struct moe_err *err);
/* After the last join. MOE_ERR_USAGE: a shard is missing and `partial` does not allow that; shards
 * of different texts, which only add up once each of these is whole. */
int moe_origins_check(const struct moe_origins *o, bool partial, struct moe_err *err);
/* A line "Holds shard 2 of 7 of 24 documents"; nothing where all is there. */
void moe_origins_print(const struct moe_origins *o, struct moe_buf *out);

/* The member "origins" of a file, as a group. */
extern const struct moe_record moe_origins_record;

#endif
