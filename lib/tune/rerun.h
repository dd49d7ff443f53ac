/*
 * Re-runs: documents of a corpus through the model under rules of precision, whole or from a layer
 * on, many to a pass. What calibration measures is measured with this.
 *
 * A job is a document under a tag; the rule decides each of its activations by that tag, so that
 * jobs of one document with different tags lie side by side in a pass. States before a layer are
 * kept for all documents; jobs that begin there cost only the layers from it on.
 *
 * Of a model with an encoder, documents are the targets of pairs. Its layers are the first: their
 * states are those of the sources, and a job that begins in one goes on through the whole decoder,
 * with the source that it made. A job that begins in the decoder attends to the kept source. A rule
 * sees all rows of a source, in the encoder's layers, as the job's.
 *
 * Results are the same bit for bit however jobs are arranged: rows do not depend on their batch.
 */
#ifndef MOE_TUNE_RERUN_H
#define MOE_TUNE_RERUN_H

#include "infer/session.h"
#include "infer/state.h"
#include "tune/answers.h"
#include "tune/documents.h"

struct moe_job {
    uint32_t document, tag;
};

struct moe_rule {
    void *ctx;
    /* Variants of one job's activations in a layer (of the model, a MoE one): all rows of its
     * document (an encoder's layer: of its source), in order. Arguments as of struct moe_assigner.
     */
    void (*assign)(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants);
};

/* Every expert at a variant of its own: table[model layer][n_experts]. The usual rule. */
struct moe_rule_table {
    const uint8_t *table;
    uint32_t n_experts, top_k;
};
struct moe_rule moe_rule_of_table(struct moe_rule_table *table);

struct moe_sink {
    void *ctx;
    /* A job is done: of its document's n predictions (tokens - 1) the nats each cost and the most
     * likely next token. In the order of the jobs. */
    void (*done)(void *ctx, const struct moe_job *job, const double *nats, const uint32_t *best,
                 uint32_t n);
};

struct moe_rerun;

struct moe_rerun_options {
    /* Of a pass, at most; raised to the longest document, or source; 0: 1024. */
    uint32_t rows;
    bool keeps_states;      /* moe_rerun_look and _step will be called */
    uint32_t answer_tokens; /* most tokens that moe_rerun_answers writes; 0: it is not called */
    uint32_t n_variants;    /* of the pack */
    const struct moe_progress *progress; /* asked whether to stop, after each pass; may be NULL */
};

/* Rows of a pass. */
uint32_t moe_rerun_rows(const struct moe_corpus *corpus, const struct moe_rerun_options *options);
/* Bytes that it takes, its session included. Reads only the numbers of the corpus. */
uint64_t moe_rerun_bytes(const struct moe_config *config, const struct moe_corpus *corpus,
                         const struct moe_rerun_options *options);
/* Borrows model, experts and corpus. The session it opens is its own; moe_rerun_session shows it,
 * for observers of passes. MOE_ERR_USAGE: a corpus of pairs, and a model without an encoder; or the
 * other way round. */
int moe_rerun_open(struct moe_rerun **out, struct moe_model *model, struct moe_experts *experts,
                   const struct moe_corpus *corpus, const struct moe_rerun_options *options,
                   struct moe_err *err);
void moe_rerun_close(struct moe_rerun *r); /* NULL is fine */
struct moe_session *moe_rerun_session(struct moe_rerun *r);
const struct moe_corpus *moe_rerun_corpus(const struct moe_rerun *r);

/* Runs the jobs through the layers from `layer` on and gives the results to the sink (NULL: to
 * none). layer is 0 or moe_rerun_layer(). MOE_ERR_INTERRUPTED between two passes. */
int moe_rerun_jobs(struct moe_rerun *r, uint32_t layer, const struct moe_job *jobs, uint64_t n,
                   const struct moe_rule *rule, const struct moe_sink *sink, struct moe_err *err);
/* Every document once, with this tag. */
int moe_rerun_all(struct moe_rerun *r, uint32_t tag, const struct moe_rule *rule,
                  const struct moe_sink *sink, struct moe_err *err);

uint32_t moe_rerun_answer_tokens(const struct moe_rerun *r); /* as in the options */

struct moe_answer_sink {
    void *ctx;
    void (*done)(void *ctx, uint32_t document, const struct moe_answer_quality *quality);
};

/* Of jobs that write answers. */
#define MOE_TAG_ANSWER UINT32_MAX

/* Has every source of the pairs answered under the rule (answers.h) and gives the sink what the
 * answers are worth, in the order of the documents. All jobs have the tag MOE_TAG_ANSWER; in the
 * decoder's layers the rule sees a row at a time. */
int moe_rerun_answers(struct moe_rerun *r, const struct moe_rule *rule,
                      const struct moe_answer_sink *sink, struct moe_err *err);

/* The layer that the kept states are for; 0 when opened. */
uint32_t moe_rerun_layer(const struct moe_rerun *r);
/* Computes that one layer of all documents under the rule. visited: [n_documents][n_experts], bytes
 * set to 1 where a token of the document is routed to the expert, else 0 (all 0 in a dense layer);
 * NULL: not wanted. The states after it replace the kept ones at moe_rerun_step; until then jobs
 * may still begin before it. */
int moe_rerun_look(struct moe_rerun *r, const struct moe_rule *rule, uint8_t *visited,
                   struct moe_err *err);
void moe_rerun_step(struct moe_rerun *r);
void moe_rerun_rewind(struct moe_rerun *r); /* back before layer 0 */

#endif
