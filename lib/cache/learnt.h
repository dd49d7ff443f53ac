/*
 * Files of what a cache policy has learnt of a model's choices, moe-learn(5): a run that begins
 * with one decides as if it went on after the run that wrote it. Only what stays in the cache
 * depends on it, never what is computed.
 */
#ifndef MOE_CACHE_LEARNT_H
#define MOE_CACHE_LEARNT_H

#include "cache/policy.h"

/* What a file says. */
struct moe_learnt_about {
    uint64_t source, bytes, n_tokens; /* of the model (below), of the file, that were learnt from */
    uint32_t n_layers, n_experts, top_k;
    uint32_t n_remembered; /* the last tokens, all of their choices are kept */
};

/* Of which model, and its shape as caches know it. */
struct moe_learnt_origin {
    uint64_t source;  /* fingerprint of what its packs are made from; 0: not known */
    const char *name; /* for messages */
    uint32_t n_layers, n_experts, top_k;
};

bool moe_learnt_is(const char *path);
/* Reads all of it, which must be of the model that is wanted (NULL: of any). Errors as
 * moe_learnt_read. */
int moe_learnt_describe(struct moe_learnt_about *out, const char *path,
                        const struct moe_learnt_origin *wanted, struct moe_err *err);

/* Writes the file, atomically. */
int moe_learnt_write(const char *path, const struct moe_learnt_origin *of, struct moe_follower *f,
                     struct moe_err *err);
/* Has the follower go on from a file. MOE_ERR_USAGE: it is of another model; MOE_ERR_FORMAT: it is
 * damaged, or none; MOE_ERR_VERSION. Then the follower has learnt nothing. */
int moe_learnt_read(const char *path, const struct moe_learnt_origin *of, struct moe_follower *f,
                    struct moe_err *err);

#endif
