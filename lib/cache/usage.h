/*
 * Followers: a policy's own record of all router choices, one for all its domains, as the record of
 * use is one for all policies. The policy's table entry names the function that opens it
 * (policy.h); the scheduler adds every choice before it looks up any of the layer's experts.
 *
 * A follower gives every expert a score, which changes only when the layer's router chooses. It
 * computes by additions, multiplications and divisions in a fixed order (exact_math.h): the same on
 * every machine. One thread; it lives at the start of one block of memory.
 */
#ifndef MOE_CACHE_USAGE_H
#define MOE_CACHE_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/loop.h"

/* A router's choices for the rows of a pass, in order. */
struct moe_choices {
    uint32_t layer, n_rows;
    const uint32_t *chosen;    /* [n_rows][top_k], below n_experts */
    const uint32_t *sequences; /* [n_rows] the sequence of each row; NULL: all of sequence 0 */
};

/* Reads or fills an array of n whole or floating-point numbers, each of `bytes` bytes. False: stop
 * here. */
typedef bool (*moe_part_fn)(void *ctx, void *numbers, uint64_t n, uint32_t bytes);

struct moe_follower {
    float *scores;     /* [layer][expert] high ones stay */
    uint64_t *version; /* [n_layers] choices so far */
    void (*chosen)(struct moe_follower *f, const struct moe_choices *c);
    void (*begin_sequence)(struct moe_follower *f); /* the next token follows none */
    /* Raises the scores [n_experts] of those experts that it expects a layer's next router to
     * choose, too. NULL: it expects nothing. */
    void (*expect)(struct moe_follower *f, uint32_t layer, float *scores);
    /* All that it has learnt, array by array, with n_tokens past tokens (learnt.h). After they are
     * filled (reads) it begins a text; false: it was given what it cannot have learnt, or `part`
     * gave up, and it has forgotten everything. NULL: it keeps nothing. */
    bool (*learnt)(struct moe_follower *f, uint32_t n_tokens, bool reads, moe_part_fn part,
                   void *ctx);
    /* Followers of the same choices, from the same beginning, find out the same: one writes to the
     * tape, others read that. Before the first choice; the tape outlives it. NULL: it cannot. */
    void (*share)(struct moe_follower *f, struct moe_buf *tape, bool reads);
    /* From how many tokens it has learnt; set where `learnt` is. */
    uint64_t (*n_learnt)(const struct moe_follower *f);
    uint32_t step_bytes; /* of the tape, about, for a choice */
    uint32_t n_tokens;   /* past tokens that it remembers at most */
};

struct moe_follower_params {
    uint32_t n_layers, n_experts, top_k;
    uint64_t beside; /* bytes of the slots that it is kept beside, which its own follow; 0: any */
};

/*
 * Usage: the record of which expert was used when and how often, by which policies and initial
 * contents are chosen. One record for all pools and layers of a store, so that counts survive
 * eviction and an expert's precisions share them (HOBBIT 3.4, "priority record").
 *
 * Layers are MoE layers, numbered from 0, visit by visit; a key is owner * n_experts + expert
 * (base/loop.h). Plain data: the scheduler writes, all others read.
 */

struct moe_usage {
    uint32_t n_layers, n_experts;
    uint32_t n_encoder; /* the first layers, which run once over a source and not again for the same
                           answer; set after moe_usage_init */
    struct moe_loop loop; /* likewise */
    uint32_t top_k;       /* experts that a token visits in each layer */
    uint32_t layer;     /* whose router chose last: I (EdgeMoE III-C2), l_i (HOBBIT, equation 3) */
    uint32_t token;     /* tokens of the sequence so far, current one included: T (equation 3) */
    uint32_t pass;      /* tokens of the current pass */
    uint64_t tokens;    /* since opening */
    uint64_t sequences; /* sequences begun, or ended beside others, since opening: records fell */
    /* Per key, in the current sequence or sequences. */
    uint32_t *last;  /* the token (counted like `token`) that used it last: R; 0: none yet */
    uint32_t *count; /* uses: F */
    uint32_t *high;  /* uses at high precision: H */
    /* Per key, since opening, over all sequences. */
    uint64_t *frequency; /* uses, in addition to those of a profile */
    uint64_t *last_ever; /* `tokens` at its last use; 0: never */
    /* The policy's own record of choices, set once this record is open; a block from moe_alloc that
     * this record owns. NULL: none. */
    struct moe_follower *follower;
};

/* Zeroes everything. Release with moe_usage_release, also after a failure. */
int moe_usage_init(struct moe_usage *u, uint32_t n_layers, uint32_t n_experts, uint32_t top_k,
                   struct moe_err *err);
void moe_usage_release(struct moe_usage *u);

/* Adds a router's choices for a layer, before any use of it is noted. */
void moe_usage_chosen(struct moe_usage *u, const struct moe_choices *choices);

/* Begins a sequence and resets its records (HOBBIT 3.4: "at the start of each new sequence ...
 * resets"). */
void moe_usage_begin_sequence(struct moe_usage *u);
/* Ends a sequence of n tokens among several that run side by side and are recorded together, as the
 * papers record one. Uses are not kept by sequence: all counts shrink by its share of the tokens,
 * and recency stays. */
void moe_usage_end_sequence(struct moe_usage *u, uint32_t n);
/* Begins a pass over n further tokens of the sequence. */
void moe_usage_begin_tokens(struct moe_usage *u, uint32_t n);
/* Marks the pass as an encoder's, over a source: its tokens do not count for the sequence. */
void moe_usage_is_source(struct moe_usage *u);
/* Notes that `n` of the pass's tokens use an expert of the layer whose router has chosen: it is
 * computed for them, wherever that is (a skipped one is not used); high: at high precision. */
void moe_usage_note(struct moe_usage *u, uint32_t key, uint32_t n, bool high);

#endif
