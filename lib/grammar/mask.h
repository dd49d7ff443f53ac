/*
 * Masks: which tokens may come next at a place of the automaton. Kept by place, the latest that fit
 * into what memory there is. Private to the floor.
 */
#ifndef MOE_GRAMMAR_MASK_H
#define MOE_GRAMMAR_MASK_H

#include "grammar/automaton.h"
#include "grammar/vocabulary.h"

struct mask {
    uint64_t *bits;     /* of ids, as many as there are logits */
    uint32_t n_allowed; /* tokens with text */
    uint32_t place;     /* PLACE_DEAD: it holds none */
};

struct masks {
    const struct moe_vocabulary *vocabulary;
    struct mask *masks; /* [n] */
    uint64_t *bits;     /* [n][words] */
    uint32_t *of_place; /* [MAX_OF_PLACE]: mask + 1 by the place's number; checked */
    uint32_t *at;       /* [longest + 1]: places along a token */
    uint32_t n, next, words;
};

int masks_open(struct masks *m, const struct moe_vocabulary *vocabulary, struct moe_err *err);
void masks_close(struct masks *m);
uint64_t masks_bytes(uint32_t n_logits); /* that they take at most */

/* The one of a place that is kept; NULL: it is to be made. */
const struct mask *masks_find(const struct masks *m, uint32_t place);
/* Makes that of a place. first: nothing of the answer was said, which is a text by itself
 * (moe_tokenizer_said). Statuses as of automaton_step. */
int masks_make(struct masks *m, struct automaton *a, uint32_t place, bool first,
               const struct mask **out);
/* Places have other numbers now. */
void masks_forget(struct masks *m);

#endif
