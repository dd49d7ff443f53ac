/*
 * Shared by statistics.c and its neighbours: the document being observed.
 */
#ifndef MOE_PROFILE_STATISTICS_INTERNAL_H
#define MOE_PROFILE_STATISTICS_INTERNAL_H

#include "profile/statistics.h"

enum { MOE_DOCUMENT_BUCKETS = 1 << 12 };

struct moe_statistics_document {
    uint8_t *block;    /* holds the arrays */
    uint32_t n_tokens; /* seen in the first layer of the decoder */
    uint32_t n_source; /* ... of the encoder, where there is one */
    uint64_t hash;
    uint16_t *chosen; /* [layers][max_tokens][k] */
    float *weights;   /* [layers][max_tokens][k] */
    /* Of its source, then of its target; a token's bucket is its id's last bits. */
    bool has_ids;
    uint32_t *ids;    /* [max_tokens] */
    uint32_t *before; /* [max_tokens] the token before it in its bucket, + 1; 0: it is the first */
    uint32_t *newest; /* [MOE_DOCUMENT_BUCKETS] the last one in it, + 1 */
    /* Per layer and predictor, for prompts: experts that some token's predicted k held. */
    uint8_t *predicted;  /* [layers][predictors][E] */
    bool *was_predicted; /* [layers][predictors] */
    bool *by_token;      /* [layers] */
    uint64_t *counts;    /* [3][layers][E] scratch of the document's end */
    float *scores;       /* [E] scratch: path predictions */
    uint16_t *order;     /* [E] scratch */
};

/* Bytes of the arrays of the largest document; UINT64_MAX: more than there can be. */
uint64_t moe_document_bytes(const struct moe_statistics_shape *shape);
/* Statistics that are only read never need one. */
void moe_document_free(struct moe_statistics_document *document);

static inline uint16_t *moe_document_chosen(const struct moe_statistics *s, uint32_t layer,
                                            uint32_t token)
{
    return s->document->chosen + ((uint64_t)layer * s->shape.max_tokens + token) * s->shape.top_k;
}

static inline float *moe_document_weights(const struct moe_statistics *s, uint32_t layer,
                                          uint32_t token)
{
    return s->document->weights + ((uint64_t)layer * s->shape.max_tokens + token) * s->shape.top_k;
}

/* Tokens of the document that a layer sees. */
static inline uint32_t moe_document_tokens(const struct moe_statistics *s, uint32_t layer)
{
    return layer < s->shape.n_encoder ? s->document->n_source : s->document->n_tokens;
}

/* A share or cosine as a fixed-point number; what is not a number counts as 0. */
static inline int64_t moe_fixed(double x)
{
    double scaled = x * (double)(1 << MOE_FIXED_BITS);
    return scaled != scaled ? 0 : (int64_t)(scaled + (scaled < 0 ? -0.5 : 0.5));
}

static inline uint64_t moe_path_key(uint32_t layer, uint32_t before2, uint32_t before1,
                                    uint32_t expert)
{
    return (uint64_t)layer << 48 | (uint64_t)before2 << 32 | (uint64_t)before1 << 16 | expert;
}

#endif
