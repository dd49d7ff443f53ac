/*
 * What the files of re-runs share. Internal to study/rerun*.c.
 */
#ifndef MOE_CALIBRATE_RERUN_PRIVATE_H
#define MOE_CALIBRATE_RERUN_PRIVATE_H

#include "calibrate/rerun.h"
#include "run/source.h"

enum { RERUN_NONE = UINT32_MAX };

struct moe_rerun {
    struct moe_rerun_options options;
    const struct moe_corpus *corpus;
    struct moe_session *session;
    struct moe_scores scores;
    struct moe_assigner assigner;
    uint32_t hidden, n_layers, n_encoder;
    /* Before layer `layer` and after it: [n_predicted][hidden], without each document's last token,
     * as everywhere here: it predicts nothing. Of sources, while the layer is the encoder's:
     * [n_source_tokens][hidden]; after it the first of these is what decoders attend to. */
    float *states[2], *source_states[2];
    /* The same before the layer whose choice of positions `layer` shares (model/config.h); NULL: no
     * layer shares one. */
    float *choosing_states;
    uint32_t layer, looked; /* looked: the layer that the second ones come from; RERUN_NONE: none */
    uint32_t *held;         /* [n_sources] the document whose kept source each has; RERUN_NONE */
    /* The pass under way: jobs in sequences 0, 1, ... */
    uint32_t n_jobs;
    const struct moe_job *jobs;
    const struct moe_rule *rule;
    uint8_t *visited;
    struct moe_row *rows; /* [batch] */
    float *in, *out;      /* [batch][hidden] */
    double *nats;         /* [batch] */
    uint32_t *targets, *best;
    /* Answers to the pass's sources; `answering`: they are being written, and a pass through the
     * decoder has a row of each that goes on. */
    struct moe_answers answers;
    bool answering;
};

/* Rows of a job in a layer. */
static inline uint32_t rerun_rows(const struct moe_rerun *r, const struct moe_job *job,
                                  uint32_t layer)
{
    return layer < r->n_encoder ? moe_corpus_source(r->corpus, job->document)
                                : moe_corpus_length(r->corpus, job->document) - 1;
}

/* Sets the pass's jobs: as many of these as it takes. */
void rerun_take_jobs(struct moe_rerun *r, const struct moe_job *jobs, uint64_t n);
/* The sources of its jobs through layers [begin, end) of the encoder. look: the states after them
 * go to r->out; else these are the last layers, and the sources what the jobs attend to. */
int rerun_encode(struct moe_rerun *r, uint32_t begin, uint32_t end, bool look, struct moe_err *err);
/* One pass through layers [begin, end) of the jobs that fit, the encoder's first; *n: how many they
 * were. r->out has the states after a pass of one layer. */
int rerun_pass(struct moe_rerun *r, uint32_t begin, uint32_t end, const struct moe_job *jobs,
               uint64_t *n, struct moe_err *err);
/* Has the assigner that the session asks call the rule. */
void rerun_assign(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                  const uint32_t *chosen, const float *weights, uint8_t *variants);
/* No source is encoded as the kept states say. */
void rerun_forget_sources(struct moe_rerun *r);

#endif
