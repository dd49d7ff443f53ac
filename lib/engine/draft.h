/*
 * Drafts: tokens that may come next, computed in one pass with the token that is certain. The model
 * itself says afterwards which of them are right, row by row, with the sampler as it is then: an
 * answer's tokens are the same as without drafts, wherever a row's result does not depend on what
 * else is in its pass. What is right of a draft need not be computed again; the rest was in vain,
 * the experts that were loaded for it too.
 *
 * The drafter here looks the text's last tokens up in the text before them (prompt lookup decoding,
 * https://github.com/apoorvumang/prompt-lookup-decoding): what followed there may follow here. A
 * layer of the model may draft as well (infer/forward.h; engine/generate.c has both).
 */
#ifndef MOE_ENGINE_DRAFT_H
#define MOE_ENGINE_DRAFT_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MOE_DRAFT_MOST = 8,   /* tokens of a draft, at most, */
    MOE_DRAFT_BLOCK = 15, /* or of one by a head that drafts blocks */
};

struct moe_draft {
    uint32_t most;  /* tokens of one draft at most, 1..MOE_DRAFT_BLOCK; 0: there are no drafts */
    uint32_t next;  /* how many the next draft has at most */
    uint32_t made;  /* tokens of the last draft */
    uint32_t n;     /* ... of them still to be judged, its last */
    uint32_t trust; /* what is left of it: see moe_draft_is_worth */
    uint32_t ids[MOE_DRAFT_BLOCK]; /* [made] */
};

/* No draft yet. */
void moe_draft_begin(struct moe_draft *d, uint32_t most);

/* Up to `most` tokens that may follow ids[0..n): what followed the last place in them where the
 * longest run of their last tokens stood before, of at least two. Returns how many. Looks at all of
 * them: its time grows with n. */
uint32_t moe_draft_look_up(const uint32_t *ids, uint64_t n, uint32_t most, uint32_t *draft);

/* Drafts for the text ids[0..n), at most `room` tokens. A drafter that was right may draft more
 * next time, one that was wrong fewer: see moe_draft_judge. */
void moe_draft_make(struct moe_draft *d, const uint32_t *ids, uint64_t n, uint64_t room);

/* Shortens a draft that is not judged yet to its first n tokens. */
void moe_draft_cut(struct moe_draft *d, uint32_t n);

/* Whether a drafter that costs something is worth it for this text. A right token adds to what it
 * is trusted with, a wrong one takes from that, so that one which is right less than about one time
 * in five comes to the end of it: after five drafts, if it is never right. */
static inline bool moe_draft_is_worth(const struct moe_draft *d)
{
    return d->trust > 0;
}

/* Whether the draft had this token next, which then is no longer in it. Where it had another, the
 * draft ends, and the next is shorter by half; a draft that was right to its end is followed by one
 * of twice the length. */
bool moe_draft_judge(struct moe_draft *d, uint32_t id);

#endif
