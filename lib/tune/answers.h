/*
 * How good answers are: Rouge, accuracy, losses over a reference.
 */
#ifndef MOE_TUNE_ANSWERS_H
#define MOE_TUNE_ANSWERS_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "infer/session.h"

/*
 * Rouge: how much of a reference text an answer has, as google's rouge_score counts it with its
 * default tokenizer and without a stemmer (Lin, 2004). Pure.
 *
 * Words are runs of a to z and 0 to 9 of the text in lower case; all other characters separate
 * them. Two non-ASCII characters lower-case to ASCII: the Kelvin sign and the dotted capital I,
 * whose dot separates.
 */

struct moe_rouge {
    double precision, recall, f1; /* 0 to 1 */
};

/* Rouge-n of an answer (UTF-8, NUL at the end): precision, recall and F1 over n-grams of words,
 * with clipped counts. A text of fewer than n words has no n-grams; its share is then divided by 1.
 * n: at least 1. */
int moe_rouge_n(struct moe_rouge *out, const char *reference, const char *answer, uint32_t n,
                struct moe_err *err);

/*
 * Scores: what the predictions of a finished pass cost in nats, for all that measures them.
 */

/* Room for some rows' logits: a few megabytes, since it counts in every memory budget. */
struct moe_scores {
    struct moe_session *s; /* borrowed */
    float *logits;         /* [n_logits][moe_logits_stride] */
    uint32_t n_logits;
    /* Sees the logits of n rows, n_logits at most, before they are scored. NULL: nobody does. */
    int (*look)(void *ctx, const float *logits, uint64_t stride, uint32_t n,
                const uint32_t *targets, struct moe_err *err);
    void *ctx;
};

/* Bytes that it takes for a session with batches of `batch` rows. */
uint64_t moe_scores_bytes(const struct moe_config *config, uint32_t batch);
int moe_scores_open(struct moe_scores *out, struct moe_session *s, struct moe_err *err);
void moe_scores_close(struct moe_scores *scores);

/* Of rows [first, first + n) of the session's last pass, which must have ended with the last layer:
 * nats[i] = -log P(targets[i]), and the most likely next token (the lower number of equal ones).
 * Good to a few 1e-7 nats, and the same for any number of threads and every instruction set. */
int moe_score_rows(struct moe_scores *scores, uint32_t first, uint32_t n, const uint32_t *targets,
                   double *nats, uint32_t *best, struct moe_err *err);

/*
 * Answers: what a model with an encoder writes, token by token the likeliest, to sources that are
 * encoded; and how good that is, as EdgeMoE judges its models.
 */

/* Answers of sequences 0 to n - 1, side by side. */
struct moe_answers {
    uint32_t limit;    /* tokens of each, at most */
    uint32_t *ids;     /* [n_sequences][limit] */
    uint32_t *lengths; /* [n_sequences] */
    uint32_t *begins;  /* [n_sequences] what each begins with, a language; 0: the model chooses */
    /* The active answers, in the order of a pass's rows: one row each. */
    uint32_t n_active;
    uint32_t *active;
    struct moe_row *rows;  /* [n_sequences] */
    uint32_t *last, *best; /* [n_sequences] */
    double *nats;
    struct moe_buf text; /* of the answer that is judged */
};

/* Makes room for n; the text grows by itself. */
void moe_answers_carve(struct moe_answers *a, struct moe_arena *arena, uint32_t n_sequences,
                       uint32_t limit);
void moe_answers_release(struct moe_answers *a); /* what is not the arena's */

/* What an answer that is judged by this target begins with: its language, or 0. target: as of
 * struct moe_pair; at least one token. */
uint32_t moe_answers_begin(const struct moe_tokenizer *tokenizer, const uint32_t *target,
                           uint64_t n_target);

/* Writes answers to the sources that the first n sequences of the session attend to. Each begins as
 * `begins` says, which is set, and ends before a token that ends answers, or at the limit. Between
 * two steps `active` lists those that continue. scores: of the session. */
int moe_answers_write(struct moe_answers *a, struct moe_scores *scores, uint32_t n,
                      struct moe_err *err);

struct moe_answer_quality {
    double rouge2; /* F1 of Rouge-2 */
    bool right;    /* it equals the target, apart from blanks around them */
};

/* Of a sequence's answer; target: UTF-8 with a NUL behind it. */
int moe_answers_judge(struct moe_answers *a, const struct moe_tokenizer *tokenizer,
                      uint32_t sequence, const char *target, struct moe_answer_quality *out,
                      struct moe_err *err);

#endif
