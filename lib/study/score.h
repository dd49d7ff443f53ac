/*
 * Scores: what the predictions of a finished pass cost in nats, for all that measures them.
 */
#ifndef MOE_STUDY_SCORE_H
#define MOE_STUDY_SCORE_H

#include <stdint.h>

#include "base/err.h"
#include "run/session.h"

/* Room for some rows' logits: a few megabytes, since it counts in every memory budget. */
struct moe_scores {
    struct moe_session *s; /* borrowed */
    float *logits;         /* [n_logits][moe_logits_stride] */
    uint32_t n_logits;
};

/* Bytes of it for a session of so many rows. */
uint64_t moe_scores_bytes(const struct moe_config *config, uint32_t batch);
int moe_scores_open(struct moe_scores *out, struct moe_session *s, struct moe_err *err);
void moe_scores_close(struct moe_scores *scores);

/* Of rows [first, first + n) of the session's last pass, which must have ended with the last layer:
 * nats[i] = -log P(targets[i]), and the most likely next token (the lower number of equal ones).
 * Good to a few 1e-7 nats, and the same for any number of threads and every instruction set. */
int moe_score_rows(struct moe_scores *scores, uint32_t first, uint32_t n, const uint32_t *targets,
                   double *nats, uint32_t *best, struct moe_err *err);

#endif
