/*
 * Requests: which experts single documents chose, a sample of those that statistics are about
 * (MoE-Infinity's collection of activation matrices, arXiv 2401.14361). Of all documents those with
 * the smallest hashes stay, so that neither order nor sharding matters.
 */
#ifndef MOE_RECORD_REQUESTS_H
#define MOE_RECORD_REQUESTS_H

#include <stdint.h>

#include "base/err.h"

enum { MOE_REQUESTS_KEPT = 64 };

struct moe_requests {
    uint32_t n_layers, n_experts; /* MoE layers */
    uint32_t n;
    uint64_t *hashes; /* [MOE_REQUESTS_KEPT] rising, of the documents' tokens */
    uint32_t *counts; /* [MOE_REQUESTS_KEPT][n_layers][n_experts] tokens that chose each expert */
};

/* Bytes that one takes. */
uint64_t moe_requests_bytes(uint32_t n_layers, uint32_t n_experts);
/* Released with moe_requests_release, also after a failure. */
int moe_requests_init(struct moe_requests *r, uint32_t n_layers, uint32_t n_experts,
                      struct moe_err *err);
void moe_requests_release(struct moe_requests *r);

/* A place for one more document, its counts zero, for the caller to fill; NULL: its hash is not
 * among the smallest. A document that is there already has a second place. */
uint32_t *moe_requests_add(struct moe_requests *r, uint64_t hash);
/* Adds those of a part, of the same shape. */
void moe_requests_merge(struct moe_requests *sum, const struct moe_requests *part);

static inline uint32_t *moe_requests_at(const struct moe_requests *r, uint32_t request,
                                        uint32_t layer)
{
    return r->counts + ((uint64_t)request * r->n_layers + layer) * r->n_experts;
}

#endif
