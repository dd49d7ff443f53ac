/*
 * What the trace's reader and writer share: the numbers of man/moe-trace.5 and the order of values
 * in a frame. Internal to trace/ and its tests.
 */
#ifndef MOE_TRACE_TRACE_FORMAT_H
#define MOE_TRACE_TRACE_FORMAT_H

#include "base/file.h"
#include "trace/trace.h"

#define TRACE_MAGIC "MOET"

enum {
    TRACE_HEADER_BYTES = 96,
    TRACE_CHECKSUM_AT = TRACE_HEADER_BYTES - 8, /* of the header's bytes before it */
    TRACE_FRAME_HEAD_BYTES = 16,                /* checksum, stored bytes, raw bytes */
    TRACE_TOKENS_HEAD_BYTES = 16,               /* of a frame of tokens, before its values */
    TRACE_TOKEN_ID_BYTES = 4,
    TRACE_FRAME_BYTES = 1 << 20,     /* what a frame's values should not exceed */
    TRACE_MAX_FRAME_BYTES = 1 << 24, /* what they may */
    TRACE_MAX_FRAME_TOKENS = 256,
    TRACE_MAX_ORIGINS_BYTES = 1 << 28,
    TRACE_MAX_COLUMNS = 2 * (2 + MOE_N_PREDICTORS),
};

/* Values of one kind: n for each token in each layer from first_layer on. Expert ids and scores are
 * both 16 bits wide and have arrays of their own. */
struct trace_column {
    bool is_ids;
    uint32_t at, n; /* in a token-layer's ids or scores */
    uint32_t first_layer;
    uint32_t needs; /* one of moe_trace_want's bits; 0: always read */
};

struct trace_layout {
    uint32_t n_columns, n_ids, n_scores; /* of a token-layer, the early layers' gaps included */
    struct trace_column columns[TRACE_MAX_COLUMNS];
    /* Their places among the ids and scores of a token-layer. */
    uint32_t router_ids, router_scores, n_router;
    uint32_t predicted_ids[MOE_N_PREDICTORS], predicted_scores[MOE_N_PREDICTORS];
    uint32_t id_bytes;     /* 1 or 2 in files */
    uint64_t token_bytes;  /* of a token in a frame, before compression */
    uint32_t frame_tokens; /* of a full frame */
};

/* NULL, or what is wrong with a shape. */
const char *trace_shape_problem(const struct moe_trace_shape *shape);
/* Of a shape without problems. */
struct trace_layout trace_layout_of(const struct moe_trace_shape *shape);

/* Whether both have the same layers, scores and sizes of experts, and are of the same model. */
bool trace_same_shape(const struct moe_trace_shape *a, const struct moe_trace_shape *b);

/* The version that a trace of this shape is written as. */
uint32_t trace_version(const struct moe_trace_shape *shape);

/* Before compression: of the frame that names the variants and gives experts' sizes. */
uint64_t trace_description_bytes(const struct moe_trace_shape *shape);

#endif
