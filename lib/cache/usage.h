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
#ifndef MOE_CACHE_USAGE_H
#define MOE_CACHE_USAGE_H

#include <stdbool.h>
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

/*
 * Usage: the record of which expert was used when and how often, by which policies and initial
 * contents are chosen. One record for all pools and layers of a store, so that counts survive
 * eviction and an expert's precisions share them (HOBBIT 3.4, "priority record").
 *
 * Layers are MoE layers, numbered from 0; a key is layer * n_experts + expert. Plain data: the
 * scheduler writes, all others read.
 */

struct moe_usage {
    uint32_t n_layers, n_experts;
    uint32_t n_encoder; /* layers, the first ones, that run once over a source and not again for the
                           same answer; set after moe_usage_init */
    uint32_t top_k;     /* experts that a token visits in each layer */
    uint32_t layer;     /* whose router chose last: I (EdgeMoE III-C2), l_i (HOBBIT, equation 3) */
    uint32_t token;  /* tokens of the sequence so far, the one at work included: T (equation 3) */
    uint32_t pass;   /* tokens of the pass at work */
    uint64_t tokens; /* since opening */
    uint64_t sequences; /* begun, or ended beside others, since opening: records fell */
    /* Per key, of the sequence under way, or of all that are. */
    uint32_t *last;  /* the token (counted like `token`) that used it last: R; 0: none yet */
    uint32_t *count; /* uses: F */
    uint32_t *high;  /* of these at high precision: H */
    /* Per key, since opening, over all sequences. */
    uint64_t *frequency; /* uses, on top of those of a profile where there is one */
    uint64_t *last_ever; /* `tokens` when it was used last; 0: never */
    /* What the policy keeps for itself of choices (usage.h), set once the record is open; a
     * block from moe_alloc that is the record's. NULL: nothing. */
    struct moe_follower *follower;
};

/* Everything zero. Released with moe_usage_release, also after a failure. */
int moe_usage_init(struct moe_usage *u, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                   struct moe_err *err);
void moe_usage_release(struct moe_usage *u);

/* What the router of a layer has chosen, before any use of it is noted. */
void moe_usage_chosen(struct moe_usage *u, const struct moe_choices *choices);

/* A new sequence: its records start afresh (HOBBIT 3.4: "at the start of each new sequence ...
 * resets"). */
void moe_usage_begin_sequence(struct moe_usage *u);
/* A sequence of n tokens has ended, of several that run side by side and are recorded together, as
 * the papers record one: what is left is the others'. Whose uses were whose is not kept; all counts
 * shrink by its share of the tokens, and recency stays. */
void moe_usage_end_sequence(struct moe_usage *u, uint32_t n);
/* A pass over n further tokens of the sequence begins. */
void moe_usage_begin_tokens(struct moe_usage *u, uint32_t n);
/* That pass is an encoder's, over a source: its tokens are not the sequence's. */
void moe_usage_is_source(struct moe_usage *u);
/* `n` of the pass's tokens use an expert of the layer whose router has chosen: it is computed for
 * them, wherever that is (one that is skipped is not used); high: at high precision. */
void moe_usage_note(struct moe_usage *u, uint32_t layer, uint32_t expert, uint32_t n, bool high);

#endif
