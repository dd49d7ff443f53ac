/* Drafts by looking the last tokens up in the text before them. */
#include "engine/draft.h"

#include <string.h>

enum {
    LEAST_ALIKE = 2, /* tokens that a place must have in common with the end */
    MOST_ALIKE = 8,  /* that are compared */
    FIRST_LENGTH = 2,
    FIRST_TRUST = 5,
    MOST_TRUST = 16,
    RIGHT = 4, /* times as much trust as a wrong token takes */
};

void moe_draft_begin(struct moe_draft *d, uint32_t most)
{
    *d = (struct moe_draft){.most = most > MOE_DRAFT_BLOCK ? MOE_DRAFT_BLOCK : most,
                            .trust = FIRST_TRUST};
    d->next = d->most < FIRST_LENGTH ? d->most : FIRST_LENGTH;
}

uint32_t moe_draft_look_up(const uint32_t *ids, uint64_t n, uint32_t most, uint32_t *draft)
{
    uint64_t best = 0, best_end = 0;
    for (uint64_t end = n ? n - 1 : 0; end >= LEAST_ALIKE && best < MOST_ALIKE; end--) {
        if (ids[end - 1] != ids[n - 1])
            continue;
        uint64_t alike = 1;
        while (alike < MOST_ALIKE && alike < end && ids[end - 1 - alike] == ids[n - 1 - alike])
            alike++;
        if (alike >= LEAST_ALIKE && alike > best) {
            best = alike;
            best_end = end;
        }
    }
    if (!best)
        return 0;
    uint32_t found = n - best_end < most ? (uint32_t)(n - best_end) : most;
    memcpy(draft, ids + best_end, found * sizeof *draft);
    return found;
}

void moe_draft_make(struct moe_draft *d, const uint32_t *ids, uint64_t n, uint64_t room)
{
    uint32_t most = room < d->next ? (uint32_t)room : d->next;
    d->n = most ? moe_draft_look_up(ids, n, most, d->ids) : 0;
    d->made = d->n;
}

void moe_draft_cut(struct moe_draft *d, uint32_t n)
{
    d->n = n < d->n ? n : d->n;
    d->made = d->n;
}

bool moe_draft_judge(struct moe_draft *d, uint32_t id)
{
    if (!d->n)
        return false;
    if (d->ids[d->made - d->n] != id) {
        d->n = 0;
        d->next = d->next > 1 ? d->next / 2 : 1;
        d->trust -= d->trust > 0;
        return false;
    }
    d->trust = d->trust + RIGHT < MOST_TRUST ? d->trust + RIGHT : MOST_TRUST;
    if (--d->n == 0 && d->made == d->next)
        d->next = 2 * d->next < d->most ? 2 * d->next : d->most;
    return true;
}
