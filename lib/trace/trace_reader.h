/*
 * A trace being read, shared by trace_open.c and trace_read.c. Internal to trace/.
 */
#ifndef MOE_TRACE_TRACE_READER_H
#define MOE_TRACE_TRACE_READER_H

#include <zstd.h>

#include "base/buf.h"
#include "base/file.h"
#include "trace/trace_format.h"

struct moe_trace {
    char *path;
    int fd;
    uint64_t file_bytes, at; /* of the next frame */
    uint64_t first_tokens_at;
    struct moe_trace_shape shape;
    uint64_t *expert_bytes;
    struct moe_origins origins;
    struct trace_layout layout;
    struct moe_trace_totals totals, met; /* met: so far, in frames decoded */
    ZSTD_DCtx *zstd;
    struct moe_buf stored, raw;

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

#endif
