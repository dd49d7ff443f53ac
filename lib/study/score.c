#include "study/score.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/par.h"
#include "kern/kern.h"

enum { LOGITS_BYTES = 4 << 20, FEWEST_ROWS = 8 };

struct job {
    float *logits;
    uint64_t stride;
    uint32_t vocab;
    const uint32_t *targets;
    double *nats;
    uint32_t *best;
};

/* -log softmax(logits)[target], and the likeliest token; overwrites the logits. By way of the
 * likeliest token's probability, which is never too small for a float. */
static double cost(float *logits, uint32_t n, uint32_t target, uint32_t *best)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[top])
            top = i;
    double gap = (double)logits[top] - logits[target];
    moe_kern.softmax(logits, n);
    *best = top;
    return gap - log(logits[top]);
}

static void score_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct job *j = ctx;
    for (int64_t i = begin; i < end; i++)
        j->nats[i] =
            cost(j->logits + (uint64_t)i * j->stride, j->vocab, j->targets[i], &j->best[i]);
}

static uint32_t rows_of(uint64_t row_bytes, uint32_t batch)
{
    uint64_t n = LOGITS_BYTES / row_bytes;
    return n < FEWEST_ROWS ? FEWEST_ROWS : n > batch ? batch : (uint32_t)n;
}

uint64_t moe_scores_bytes(const struct moe_config *config, uint32_t batch)
{
    uint64_t row_bytes = moe_logits_stride(config) * sizeof(float);
    return rows_of(row_bytes, batch) * row_bytes;
}

int moe_scores_open(struct moe_scores *out, struct moe_session *s, struct moe_err *err)
{
    uint64_t row_bytes = moe_logits_stride(&s->model->config) * sizeof(float);
    *out = (struct moe_scores){.s = s, .n_logits = rows_of(row_bytes, s->batch)};
    out->logits = moe_alloc(out->n_logits, row_bytes, err);
    return out->logits ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_scores_close(struct moe_scores *scores)
{
    free(scores->logits);
    scores->logits = NULL;
}

int moe_score_rows(struct moe_scores *scores, uint32_t first, uint32_t n, const uint32_t *targets,
                   double *nats, uint32_t *best, struct moe_err *err)
{
    const struct moe_config *c = &scores->s->model->config;
    int status = moe_check_ids(scores->s->model, targets, n, err);
    for (uint32_t i = 0, part; i < n && status == MOE_OK; i += part) {
        part = n - i < scores->n_logits ? n - i : scores->n_logits;
        struct job j = {scores->logits, moe_logits_stride(c), c->vocab, targets + i, nats + i,
                        best + i};
        status = moe_logits(scores->s, first + i, part, scores->logits, err);
        if (status == MOE_OK)
            moe_par_for(part, 4, score_range, &j);
    }
    return status;
}
