/*
 * Followers: what a policy keeps for itself of all that routers choose, one record for all its
 * domains, as the record of use is one for all policies. The policy's entry of the table names the
 * function that opens it (policy.h); the scheduler tells it of every choice, before any of the
 * layer's experts is looked up.
 *
 * A follower gives every expert a score; those of a layer change when its router chooses, and at no
 * other time. It computes by additions, multiplications and divisions in a fixed order alone
 * (exact_math.h): the same on every machine. One thread; it lives in one block of memory, of which
 * it is the beginning.
 */
#ifndef MOE_CACHE_FOLLOWER_H
#define MOE_CACHE_FOLLOWER_H

#include <stdint.h>

#include "base/err.h"

/* What the router of a layer has chosen for the rows of a pass, in their order. */
struct moe_choices {
    uint32_t layer, n_rows;
    const uint32_t *chosen;    /* [n_rows][top_k], below n_experts */
    const uint32_t *sequences; /* [n_rows] whose next token a row is; NULL: all of sequence 0 */
};

struct moe_follower {
    float *scores;     /* [layer][expert] what stays has a high one */
    uint64_t *version; /* [n_layers] choices so far */
    void (*chosen)(struct moe_follower *f, const struct moe_choices *c);
    void (*begin_sequence)(struct moe_follower *f); /* the next token follows none */
};

struct moe_follower_params {
    uint32_t n_layers, n_experts, top_k;
};

#endif
