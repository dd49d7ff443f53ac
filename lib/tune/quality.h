/*
 * Quality: what a way to run a model costs over the reference, document by document.
 */
#ifndef MOE_TUNE_QUALITY_H
#define MOE_TUNE_QUALITY_H

#include "pack/map.h"
#include "tune/rerun.h"

/* One measurement. Arrays are owned; released with moe_quality_release. */
struct moe_quality {
    const struct moe_corpus *corpus; /* borrowed */
    double *nats;                    /* [n_documents] summed over their predictions */
    uint32_t
        *changed;   /* [n_documents] predictions whose most likely token is not the reference's */
    uint32_t *best; /* [n_predicted], of a reference only */
    /* [n_documents] of answers to the sources of pairs; NULL: none were written. */
    struct moe_answer_quality *answers;
};

/* Bytes of one. */
uint64_t moe_quality_bytes(const struct moe_corpus *corpus, bool reference);
/* Runs the whole corpus under the rule, and where the re-run has answer_tokens has every source
 * answered. reference: what `changed` compares with; NULL: this is the
 * reference itself. */
int moe_quality_measure(struct moe_quality *out, struct moe_rerun *r, const struct moe_rule *rule,
                        const struct moe_quality *reference, struct moe_err *err);
void moe_quality_release(struct moe_quality *q);

/* What q costs over `over`, of documents [first, first + n). Both may be other measurements of the
 * same corpus than the reference: paired differences. Standard errors take documents as
 * independent: of a ratio of sums over them (Cochran, Sampling Techniques, 6.3). */
void moe_quality_loss(const struct moe_quality *q, const struct moe_quality *over, uint32_t first,
                      uint32_t n, struct moe_loss *out);

#endif
