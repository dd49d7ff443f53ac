/*
 * What the trace's reader and writer share: the numbers of man/moe-trace.5 and the order of values
 * in a frame.
 */
#ifndef MOE_PROFILE_TRACE_INTERNAL_H
#define MOE_PROFILE_TRACE_INTERNAL_H

#include <pthread.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/file.h"
#include "profile/trace.h"

#define TRACE_MAGIC "MOET"

enum {
    TRACE_HEADER_BYTES = 96,
    TRACE_CHECKSUM_AT = TRACE_HEADER_BYTES - 8, /* of the header's bytes before it */
    TRACE_FRAME_HEAD_BYTES = 16,                /* checksum, stored bytes, raw bytes */
    TRACE_TOKENS_HEAD_BYTES = 16,               /* of a frame of tokens, before its values */
    TRACE_LOOP_MOST = (1 << 10) - 1,            /* of a loop's first layer, and of its layers */
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

/* Before compression: of the frame that names the variants and gives experts' sizes. */
uint64_t trace_description_bytes(const struct moe_trace_shape *shape);

/*
 * A trace being read, shared by trace_read.c.
 */

/* Frames that stay in memory, shared by readers of a file. */
struct trace_kept {
    pthread_mutex_t lock;
    uint32_t n_readers;
    uint64_t room; /* bytes left */
    uint32_t n;
    struct trace_frame {
        uint64_t stored, raw_bytes;            /* as trace_read_frame says; stored 0: not known */
        uint8_t head[TRACE_TOKENS_HEAD_BYTES]; /* of the raw bytes */
        uint8_t *raw;                          /* NULL: only the head is kept */
    } * frames;                                /* [n] by their order in the file */
};

struct moe_trace {
    char *path;
    int fd;
    uint64_t file_bytes, at; /* of the next frame */
    uint64_t first_tokens_at;
    struct moe_trace_shape shape;
    uint64_t *expert_bytes;
    struct moe_origins origins;
    struct trace_layout layout;
    struct moe_trace_totals totals, met; /* met: in frames decoded until now */
    ZSTD_DCtx *zstd;
    struct moe_buf stored, raw;
    struct trace_kept *kept; /* NULL: nothing is */
    uint32_t frame;          /* of tokens, the next one's number */

    /* The frame at hand, decoded. */
    uint32_t *tokens;  /* [tokens] their ids; none where the shape has none */
    uint8_t *computed; /* [tokens][n_layers] */
    uint16_t *ids;     /* [tokens][n_layers][n_ids] */
    float *scores;     /* [tokens][n_layers][n_scores] */
    uint64_t *seen_at; /* [n_experts] the last list that held each */
    uint64_t n_lists;
    uint32_t n_tokens, n_prompt, first, here; /* here: of the token at hand in the frame */
    uint32_t wanted_parts, wanted_every;      /* moe_trace_want */
    uint64_t wanted_first;
    struct moe_trace_token token;
};

/* MOE_ERR_FORMAT about the frame at t->at. */
int trace_damaged(const struct moe_trace *t, struct moe_err *err, const char *what);
/* Reads the frame at t->at into t->raw and leaves t->at in front of it; *stored gets its length in
 * the file. max_raw_bytes bounds what it may expand to. */
int trace_read_frame(struct moe_trace *t, uint64_t max_raw_bytes, uint64_t *stored,
                     struct moe_err *err);
/* Reads the origins' frame, which has n of them, at t->at; n 0: there is none. */
int trace_take_origins(struct moe_trace *t, uint32_t n, struct moe_err *err);
/* Decodes and checks the frame of tokens at t->at, and goes on behind it. */
int trace_read_tokens(struct moe_trace *t, struct moe_err *err);
/* Frees what moe_trace_next decodes into: no token can be read any more. */
void trace_release_room(struct moe_trace *t);

/*
 * A trace being written, shared by trace_write.c.
 */

/* Tokens that are not written yet. */
struct trace_tokens {
    uint8_t *computed;      /* [room][n_layers] */
    uint32_t *tokens;       /* [room] their ids; none where the shape has none */
    uint16_t *ids, *scores; /* [room][n_layers][n_ids], [n_scores] */
};

struct moe_trace_writer {
    struct moe_outfile file;
    uint64_t at; /* where the next frame goes */
    struct moe_trace_shape shape;
    struct trace_layout layout;
    struct moe_trace_totals totals;
    uint32_t n_origins;
    ZSTD_CCtx *zstd;
    struct moe_buf raw, stored; /* of the frame at work */

    /* The sequence's tokens from `first` on that are not written yet. */
    uint32_t first, n_tokens, room;
    uint32_t n_prompt; /* of the sequence until now */
    struct trace_tokens waiting;
    uint8_t *block; /* holds them */
};

/* Appends the origins as their frame has them. */
void trace_put_origins(const struct moe_origins *origins, struct moe_buf *raw);

#endif
