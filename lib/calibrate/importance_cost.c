#include "calibrate/importance_cost.h"

#include <stdlib.h>

#include "base/mem.h"
#include "model/shape.h"

/* Each layer and the head take the time of the weights that a token meets there. */
int moe_importance_cost_open(struct moe_importance_cost *c, const struct moe_config *config,
                             const struct moe_corpus *corpus, struct moe_err *err)
{
    struct moe_shape_bytes bytes;
    *c = (struct moe_importance_cost){.config = config, .corpus = corpus};
    c->row = moe_alloc(config->n_layers, sizeof *c->row, err);
    int status = c->row ? moe_shape_bytes(&bytes, config, (struct moe_bits){8, 8}, 8, 64, err)
                        : MOE_ERR_MEMORY;
    if (status != MOE_OK)
        return status;
    double moe = (double)(bytes.attention + bytes.shared + config->top_k * bytes.expert);
    double dense = (double)(bytes.attention + bytes.dense_ff);
    double after = (double)bytes.head / moe;
    for (uint32_t layer = config->n_layers; layer-- > 0;) {
        if (layer + 1 == config->n_encoder)
            after = 0;
        after += config->layer_is_moe[layer] ? 1 : dense / moe;
        c->row[layer] = after;
    }
    return MOE_OK;
}

void moe_importance_cost_close(struct moe_importance_cost *c)
{
    free(c->row);
    *c = (struct moe_importance_cost){0};
}

double moe_importance_job_cost(const struct moe_importance_cost *c, uint32_t document,
                               uint32_t layer)
{
    uint32_t n_encoder = c->config->n_encoder;
    double rows = moe_corpus_length(c->corpus, document) - 1;
    if (layer >= n_encoder)
        return rows * c->row[layer];
    return moe_corpus_source(c->corpus, document) * c->row[layer] + rows * c->row[n_encoder];
}

double moe_importance_look_cost(const struct moe_importance_cost *c, uint32_t layer)
{
    return (double)(layer < c->config->n_encoder ? c->corpus->n_source_tokens
                                                 : c->corpus->n_predicted);
}

double moe_importance_pass_cost(const struct moe_importance_cost *c)
{
    double sum = 0;
    for (uint32_t d = 0; d < c->corpus->n_documents; d++)
        sum += moe_importance_job_cost(c, d, 0);
    return sum;
}
