/*
 * Perplexity: mean nats per token of a text, cut into documents or into windows. Of a model with an
 * encoder it is that of targets given their sources (documents.h, pairs), which answers may be
 * judged by as well: EdgeMoE's models by Rouge-2.
 */
#ifndef MOE_TUNE_PERPLEXITY_H
#define MOE_TUNE_PERPLEXITY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/progress.h"
#include "engine/engine.h"
#include "tune/documents.h"

struct moe_perplexity_options {
    uint32_t max_doc_tokens; /* of a document or window, the prefix included; 0: 256 */
    uint32_t max_windows;    /* of a document (documents.h); 0: all */
    uint32_t window;         /* > 0: the whole file in windows of this many tokens instead */
    double decode_share; /* of each text's tokens, the last ones, computed one by one as decoding
                            does: strategies that may change results differ there */
    /* Of pairs: also generates an answer to each source, greedily, of at most max_doc_tokens. */
    bool answers;
    /* What the model predicts goes into the file `logits`, or is compared with what another one's
     * run wrote into the file `against`. At most one of them; NULL: neither. */
    const char *logits, *against;
    const struct moe_progress *progress;
    /* For every predicted token, in order: the nats it cost, the most likely next token, and of
     * `against` the divergence; for comparing two packs token by token. May be NULL. */
    void (*token)(void *ctx, double nats, uint32_t best, double divergence);
    void *ctx;
};

/* Looks at the file (engine.h, survey): *bytes that scoring it takes beside a session. */
int moe_perplexity_survey(const char *path, const struct moe_perplexity_options *options,
                          const struct moe_model *model, const struct moe_engine_room *room,
                          uint64_t *bytes, struct moe_err *err);

struct moe_perplexity {
    double nll;           /* mean nats per predicted token */
    uint64_t n_tokens;    /* predicted tokens */
    uint64_t n_documents; /* or windows, or pairs */
    struct moe_left_out left_out;
    /* Of answers, means over the pairs: F1 of Rouge-2 (answers.h), and the share that equal the
     * target, apart from blanks around them. -1: none were generated. */
    double rouge2, accuracy;
    /* Of `against`: the mean Kullback-Leibler divergence of the predictions from those of the file,
     * in nats, its standard error, and the share of tokens at which both find the same most likely.
     */
    double divergence, divergence_error, same_top;
    double seconds;
};

/* Documents are separated by lines that hold only the end-of-text token's text; each is tokenized
 * by itself (the newline before a separator belongs to the separator), prefixed with end-of-text,
 * cut into windows of max_doc_tokens; all tokens but a window's first are predicted. window N: the
 * file's tokens are cut into windows of N; in each the first is replaced by bos where the tokenizer
 * adds one, and the second half is scored, as llama.cpp's perplexity tool does. */
int moe_perplexity(struct moe_session *s, const char *path,
                   const struct moe_perplexity_options *options, struct moe_perplexity *out,
                   struct moe_err *err);

#endif
