/*
 * Request history: which experts whole requests chose, and which of the earlier ones the request
 * under way is most like (MoE-Infinity, arXiv 2401.14361: the expert activation matrix of a
 * sequence, and its collection of them). Runner and simulator predict with the same code. Pure.
 *
 * A request is a sequence; its matrix counts, for each MoE layer, the tokens that chose each
 * expert, its prompt's included. The collection begins with the documents of statistics; without
 * them the first request of a process finds nothing in it.
 */
#ifndef MOE_SCHED_REQUEST_HISTORY_H
#define MOE_SCHED_REQUEST_HISTORY_H

#include <stdint.h>

#include "base/mem.h"
#include "record/requests.h"

/* MOE_REQUESTS_KEPT matrices are kept. When there are more, the one that was matched least makes
 * room, the oldest of these first. */

struct moe_request_history {
    uint32_t n_layers, n_experts;
    uint32_t n;        /* matrices kept */
    uint64_t begun;    /* requests */
    float *counts;     /* [MOE_REQUESTS_KEPT + 1][n_layers][n_experts]; the last: under way */
    float *norms;      /* [MOE_REQUESTS_KEPT][n_layers] lengths of the rows */
    float *similarity; /* [MOE_REQUESTS_KEPT][n_layers] cosine with the row of the one under way */
    uint64_t *matched; /* [MOE_REQUESTS_KEPT] how often it was the most similar */
    uint64_t *number;  /* [MOE_REQUESTS_KEPT] of its request */
};

/* Takes its memory from the arena (which may only count); the shape is set, all else zero. */
void moe_request_history_carve(struct moe_request_history *h, struct moe_arena *arena);

/* Before the first request: the documents of statistics, of the same shape, become the collection.
 */
void moe_request_history_seed(struct moe_request_history *h, const struct moe_requests *requests);
/* A request begins; the one before joins the collection. */
void moe_request_history_begin(struct moe_request_history *h);
/* n tokens' choices in a layer: chosen[n][top_k]. */
void moe_request_history_add(struct moe_request_history *h, uint32_t layer, uint32_t n,
                             uint32_t top_k, const uint32_t *chosen);
/* The kept request that is most similar to the one under way: by the mean over layers of the cosine
 * of the rows; the older among equals. MOE_REQUESTS_KEPT: none is kept. `note` counts it as
 * matched. */
uint32_t moe_request_history_match(const struct moe_request_history *h);
void moe_request_history_note(struct moe_request_history *h, uint32_t match);
/* What a kept request chose in a layer: shares of sum 1, or all 0. p: [n_experts]. */
void moe_request_history_shares(const struct moe_request_history *h, uint32_t match, uint32_t layer,
                                float *p);

#endif
