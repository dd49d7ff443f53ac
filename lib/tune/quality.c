/* Losses over a reference, summed up over documents, with standard errors. */
#include "tune/quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct measuring {
    struct moe_quality *q;
    const struct moe_quality *reference;
};

static void add_document(void *ctx, const struct moe_job *job, const double *nats,
                         const uint32_t *best, uint32_t n)
{
    struct measuring *m = ctx;
    uint64_t first = moe_corpus_prediction(m->q->corpus, job->document);
    double sum = 0;
    uint32_t changed = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += nats[i];
        changed += m->reference && best[i] != m->reference->best[first + i];
    }
    if (m->q->best)
        memcpy(m->q->best + first, best, n * sizeof *best);
    m->q->nats[job->document] = sum;
    m->q->changed[job->document] = changed;
}

static void add_answer(void *ctx, uint32_t document, const struct moe_answer_quality *quality)
{
    ((struct moe_quality *)ctx)->answers[document] = *quality;
}

uint64_t moe_quality_bytes(const struct moe_corpus *corpus, bool reference)
{
    const struct moe_quality *q = NULL;
    uint64_t answer = corpus->n_source_tokens ? sizeof *q->answers : 0;
    return corpus->n_documents * (sizeof *q->nats + sizeof *q->changed + answer) +
           (reference ? corpus->n_predicted * sizeof *q->best : 0);
}

int moe_quality_measure(struct moe_quality *out, struct moe_rerun *r, const struct moe_rule *rule,
                        const struct moe_quality *reference, struct moe_err *err)
{
    const struct moe_corpus *corpus = moe_rerun_corpus(r);
    struct measuring m = {out, reference};
    const struct moe_sink sink = {&m, add_document};
    *out = (struct moe_quality){.corpus = corpus};
    out->nats = moe_alloc(corpus->n_documents, sizeof *out->nats, err);
    out->changed = moe_alloc(corpus->n_documents, sizeof *out->changed, err);
    if (!reference)
        out->best = moe_alloc(corpus->n_predicted, sizeof *out->best, err);
    bool allocated = out->nats && out->changed && (reference || out->best);
    int status = allocated ? moe_rerun_all(r, 0, rule, &sink, err) : MOE_ERR_MEMORY;
    if (status == MOE_OK && moe_rerun_answer_tokens(r)) {
        const struct moe_answer_sink answers = {out, add_answer};
        out->answers = moe_alloc(corpus->n_documents, sizeof *out->answers, err);
        status = out->answers ? moe_rerun_answers(r, rule, &answers, err) : MOE_ERR_MEMORY;
    }
    if (status != MOE_OK)
        moe_quality_release(out);
    return status;
}

void moe_quality_release(struct moe_quality *q)
{
    free(q->nats);
    free(q->changed);
    free(q->best);
    free(q->answers);
    *q = (struct moe_quality){0};
}

/* Standard error of (sum of x) / (sum of y) over n documents: n / (n - 1) of the squared residuals
 * x - ratio * y, over the sum of y. 0 of a single document. */
static double ratio_error(double squares, double sum_y, uint32_t n)
{
    return n > 1 && sum_y > 0 ? sqrt(squares * n / (n - 1)) / sum_y : 0;
}

/* Of answers: the mean over n documents of what `of` says of each, as points below the mean of the
 * reference, which goes to *reference; and the standard error. */
static double points_below(const struct moe_quality *q, const struct moe_quality *over,
                           uint32_t first, uint32_t n,
                           double (*of)(const struct moe_answer_quality *), double *reference,
                           double *error)
{
    double sum = 0, before = 0, squares = 0;
    for (uint32_t d = first; d < first + n; d++) {
        before += of(&over->answers[d]);
        sum += of(&over->answers[d]) - of(&q->answers[d]);
    }
    for (uint32_t d = first; d < first + n; d++) {
        double rest = of(&over->answers[d]) - of(&q->answers[d]) - sum / n;
        squares += rest * rest;
    }
    *reference = before / n;
    *error = 100 * ratio_error(squares, n, n);
    return 100 * sum / n;
}

static double rouge2_of(const struct moe_answer_quality *a)
{
    return a->rouge2;
}

static double right_of(const struct moe_answer_quality *a)
{
    return a->right;
}

static void add_answers_loss(const struct moe_quality *q, const struct moe_quality *over,
                             uint32_t first, uint32_t n, struct moe_loss *out)
{
    out->answers = n;
    out->rouge2_points =
        points_below(q, over, first, n, rouge2_of, &out->reference_rouge2, &out->rouge2_error);
    out->accuracy_points =
        points_below(q, over, first, n, right_of, &out->reference_accuracy, &out->accuracy_error);
}

void moe_quality_loss(const struct moe_quality *q, const struct moe_quality *over, uint32_t first,
                      uint32_t n, struct moe_loss *out)
{
    double nats = 0, before = 0, changed = 0, tokens = 0;
    for (uint32_t d = first; d < first + n; d++) {
        nats += q->nats[d];
        before += over->nats[d];
        changed += (double)q->changed[d] - over->changed[d];
        tokens += moe_corpus_length(q->corpus, d) - 1;
    }
    double ratio = before > 0 ? (nats - before) / before : 0, share = changed / tokens;
    double nats_squares = 0, changed_squares = 0;
    for (uint32_t d = first; d < first + n; d++) {
        double more = q->nats[d] - over->nats[d] - ratio * over->nats[d];
        double other = (double)q->changed[d] - over->changed[d] -
                       share * (moe_corpus_length(q->corpus, d) - 1);
        nats_squares += more * more;
        changed_squares += other * other;
    }
    *out = (struct moe_loss){
        .documents = n,
        .tokens = (uint64_t)tokens,
        .nll = nats / tokens,
        .reference_nll = before / tokens,
        .nll_percent = 100 * ratio,
        .nll_error = 100 * ratio_error(nats_squares, before, n),
        .top1_points = 100 * share,
        .top1_error = 100 * ratio_error(changed_squares, tokens, n),
    };
    if (q->answers && over->answers)
        add_answers_loss(q, over, first, n, out);
}
