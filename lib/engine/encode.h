/*
 * What an encoder makes of a text by itself: its output, pooled to one vector.
 */
#ifndef MOE_ENGINE_ENCODE_H
#define MOE_ENGINE_ENCODE_H

#include <stdint.h>

#include "base/err.h"
#include "infer/session.h"

/* MOE_ERR_LIMIT where a source of n ids does not fit the session; MOE_ERR_USAGE where it is empty.
 */
int moe_check_source(const struct moe_session *s, uint64_t n, struct moe_err *err);
/* The rows [n] of a source. */
void moe_source_rows(struct moe_row *rows, uint32_t source, const uint32_t *ids, uint32_t n);

/* What becomes of the rows of a source, the tokens that end it among them. */
enum moe_pooling {
    MOE_POOL_MEAN,
    MOE_POOL_FIRST,
    MOE_POOL_LAST,
};

/* Bytes that pooling takes beside a session whose passes have `batch` rows. */
uint64_t moe_encode_bytes(const struct moe_config *config, uint32_t batch);
/* Encodes n ids as source 0 and pools the encoder's normalized output to out[hidden]. Errors as of
 * moe_check_source, and of the pass. */
int moe_encode_pooled(struct moe_session *s, const uint32_t *ids, uint64_t n,
                      enum moe_pooling pooling, float *out, struct moe_err *err);

#endif
