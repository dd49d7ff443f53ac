/*
 * A step of a beam search: from the candidates that logits give to the texts that are finished and
 * the beams that go on. Internal to the search.
 */
#ifndef MOE_ENGINE_BEAMS_STEP_H
#define MOE_ENGINE_BEAMS_STEP_H

#include "engine/beams.h"

/* A beam of a step that is over: the beam of the step before that it went on from, and how. */
struct node {
    uint32_t parent, token;
};

/* One that goes on. */
struct beam {
    double score; /* the sum of its tokens' log probabilities */
    uint32_t sequence;
    struct node node;
};

/* One that a step may end in. */
struct candidate {
    double score;
    struct node node;
};

/* A finished text. */
struct hypothesis {
    double score; /* by its length */
    uint32_t n_tokens;
    struct node last;
};

struct search {
    struct moe_session *session;
    struct moe_answer *answer;
    const struct moe_ids *history;
    const struct moe_beam_options *options;
    float *logits;
    uint32_t n_prompt;
    uint32_t n_most; /* tokens of a text */
    uint32_t n_kept; /* candidates of a step */
    uint32_t n_steps, n_live, n_next, n_candidates, n_finished;
    bool interrupted;
    struct node *nodes;           /* [n_most][n] beams of the steps so far */
    struct beam *live, *next;     /* [n] */
    struct candidate *candidates; /* [n_kept] best first */
    struct hypothesis *finished;  /* [n] best first */
    uint32_t *path;               /* [n_most] tokens of one beam */
    bool *has_child, *used;       /* [n] by beam; by sequence */
    struct moe_row *rows;         /* [batch] */
};

/* Candidates that a step keeps with n beams: enough for as many to go on as end a text. */
uint32_t beams_n_kept(const struct moe_config *c, uint32_t n);
/* Writes the tokens of a text of n whose last is given to b->path. */
void beams_write_path(const struct search *b, uint32_t n, struct node last);
/* Takes what a beam may go on with, by the logits of a row of the last pass, as candidates. Beams
 * come in their order. */
int beams_consider(struct search *b, uint32_t beam, uint32_t row, struct moe_err *err);
/* Parts the candidates in texts that are finished and beams that go on, in b->next. */
int beams_part(struct search *b, struct moe_err *err);
/* Whether nothing that goes on could become the best. */
bool beams_are_over(const struct search *b);

#endif
