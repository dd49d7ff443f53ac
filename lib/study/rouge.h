/*
 * Rouge: how much of a reference text an answer has, as google's rouge_score counts it with its
 * default tokenizer and without a stemmer (Lin, 2004). Pure.
 *
 * Words are runs of a to z and 0 to 9 of the text in lower case; all other characters separate
 * them. Two characters that are not of ASCII have such a lower case: the Kelvin sign and the dotted
 * capital I, whose dot separates.
 */
#ifndef MOE_STUDY_ROUGE_H
#define MOE_STUDY_ROUGE_H

#include <stdint.h>

#include "base/err.h"

struct moe_rouge {
    double precision, recall, f1; /* 0 to 1 */
};

/* Rouge-n of an answer (UTF-8, NUL at the end): of the runs of n words that both have, each counted
 * as often as it is in the one that has it less often, the share of the answer's and of the
 * reference's, and their harmonic mean. A text of fewer than n words has no runs; its share counts
 * as over one. n: at least 1. */
int moe_rouge_n(struct moe_rouge *out, const char *reference, const char *answer, uint32_t n,
                struct moe_err *err);

#endif
