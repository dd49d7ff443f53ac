/*
 * Answers: what a model with an encoder writes, token by token the likeliest, to sources that are
 * encoded; and how good that is, as EdgeMoE judges its models.
 */
#ifndef MOE_STUDY_ANSWERS_H
#define MOE_STUDY_ANSWERS_H

#include "base/buf.h"
#include "base/mem.h"
#include "study/score.h"

/* Answers of sequences 0 to n - 1, side by side. */
struct moe_answers {
    uint32_t limit;    /* tokens of each, at most */
    uint32_t *ids;     /* [n_sequences][limit] */
    uint32_t *lengths; /* [n_sequences] */
    /* Those that go on, in the order of a pass's rows: one row each. */
    uint32_t n_active;
    uint32_t *active;
    struct moe_row *rows;  /* [n_sequences] */
    uint32_t *last, *best; /* [n_sequences] */
    double *nats;
    struct moe_buf text; /* of the answer that is judged */
};

/* Room for so many; the text grows by itself. */
void moe_answers_carve(struct moe_answers *a, struct moe_arena *arena, uint32_t n_sequences,
                       uint32_t limit);
void moe_answers_release(struct moe_answers *a); /* what is not the arena's */

/* Writes answers to the sources that the first n sequences of the session attend to; they end with
 * a token that ends answers, which is no part of them, or at the limit. Between two steps,
 * `active` is what goes on. scores: of the session. */
int moe_answers_write(struct moe_answers *a, struct moe_scores *scores, uint32_t n,
                      struct moe_err *err);

struct moe_answer_quality {
    double rouge2; /* F1 of Rouge-2 (rouge.h) */
    bool right;    /* it equals the target, but for blanks around them */
};

/* Of a sequence's answer; target: UTF-8 with a NUL behind it. */
int moe_answers_judge(struct moe_answers *a, const struct moe_tokenizer *tokenizer,
                      uint32_t sequence, const char *target, struct moe_answer_quality *out,
                      struct moe_err *err);

#endif
