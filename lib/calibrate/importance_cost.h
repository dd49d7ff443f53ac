/*
 * What measuring importances costs, in passes of one row through a MoE layer: for progress while it
 * is done, and for a forecast before.
 */
#ifndef MOE_CALIBRATE_IMPORTANCE_COST_H
#define MOE_CALIBRATE_IMPORTANCE_COST_H

#include "model/config.h"
#include "study/corpus.h"

struct moe_importance_cost {
    const struct moe_config *config; /* both borrowed */
    const struct moe_corpus *corpus;
    double *row; /* [n_layers] of a row from there to its stack's end, the head included */
};

/* MOE_ERR_MEMORY. Close also after an error. */
int moe_importance_cost_open(struct moe_importance_cost *c, const struct moe_config *config,
                             const struct moe_corpus *corpus, struct moe_err *err);
void moe_importance_cost_close(struct moe_importance_cost *c);

/* Of a job that begins at the layer. */
double moe_importance_job_cost(const struct moe_importance_cost *c, uint32_t document,
                               uint32_t layer);
/* Of looking at a layer: all rows of the texts through it. */
double moe_importance_look_cost(const struct moe_importance_cost *c, uint32_t layer);
/* Of all documents through all layers and the head: one pass over the texts. */
double moe_importance_pass_cost(const struct moe_importance_cost *c);

#endif
