/*
 * Origins: what a file of statistics or a trace was made from. An origin is the texts that were run
 * together, in their order, with which pack and options, and the shards of that run that the file
 * holds. A file has one, or the sum of runs over different texts several.
 */
#ifndef MOE_RECORD_ORIGINS_H
#define MOE_RECORD_ORIGINS_H

#include "record/shards.h"

enum { MOE_MAX_ORIGINS = 1 << 12, MOE_MAX_ORIGIN_TEXTS = 1 << 16 };
#define MOE_MAX_ORIGIN_DOCUMENTS (UINT64_C(1) << 40) /* so that no sum overflows */

struct moe_origin {
    uint64_t pack_fingerprint;
    uint64_t options_fingerprint; /* of what else changes the figures and the file does not say
                                     itself; 0: nothing */
    uint64_t documents;           /* of all texts, that is of all shards */
    uint32_t n_texts;
    uint64_t *texts; /* [n_texts] in the order they were run; owned. A text's fingerprint is of its
                        documents' bytes, 0 where it has none */
    struct moe_shards shards; /* every n-th document */
    const char *name;         /* of the file it came from, for messages; borrowed, or NULL */
};

struct moe_origins {
    uint32_t n;               /* 0: not known, of files of earlier versions and imported ones */
    struct moe_origin *items; /* by rising fingerprints of texts, so in one order always; owned */
};

void moe_origins_release(struct moe_origins *o);
int moe_origins_copy(struct moe_origins *to, const struct moe_origins *from, struct moe_err *err);
/* One origin without texts yet (room for n_texts), and its one shard. */
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
 * belong together; `sum` is then only good to be released. */
int moe_origins_join(struct moe_origins *sum, const struct moe_origins *part, struct moe_err *err);
/* After the last join. MOE_ERR_USAGE: a shard is missing and `partial` does not allow that; shards
 * of different texts, which only add up once each of these is whole. */
int moe_origins_check(const struct moe_origins *o, bool partial, struct moe_err *err);
/* A line "Holds shard 2 of 7 of 24 documents"; nothing where all is there. */
void moe_origins_print(const struct moe_origins *o, struct moe_buf *out);

/* The member "origins" of a file, as a group; it may be missing. */
extern const struct moe_record moe_origins_record;

#endif
