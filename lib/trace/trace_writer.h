/*
 * A trace being written, shared by trace_write.c and trace_put.c. Internal to trace/.
 */
#ifndef MOE_TRACE_TRACE_WRITER_H
#define MOE_TRACE_TRACE_WRITER_H

#include <zstd.h>

#include "base/buf.h"
#include "base/file.h"
#include "trace/trace_format.h"

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
    uint32_t n_prompt; /* of the sequence so far */
    struct trace_tokens waiting;
    uint8_t *block; /* holds them */
};

/* A writer of the file at `path`, which has its beginning; the rest of the writer is the caller's
 * to set. */
int trace_writer_continue(struct moe_trace_writer **out, const char *path,
                          const struct moe_trace_shape *shape, struct moe_err *err);

/* For merging: writes a frame of tokens, before compression, of a next sequence (`first`) or the
 * same one. */
int trace_write_frame(struct moe_trace_writer *w, const struct moe_buf *raw, bool first,
                      struct moe_err *err);

/* Appends the origins as their frame has them. */
void trace_put_origins(const struct moe_origins *origins, struct moe_buf *raw);

#endif
