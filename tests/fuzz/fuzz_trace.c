/*
 * A trace, or a routing trace to import (text that begins with '#' or '{').
 *
 * The reader's checks lie behind checksums and compression that no mutation gets right. So the
 * input of a trace is the header's 64 bytes from byte 16 on, then frames before compression, each
 * after its length (u32); the target makes a file of that. What is accepted must come back the same
 * when appended to a new trace.
 */
#define _GNU_SOURCE
#include "fuzz.h"

#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "record/trace_format.h"

enum { SHAPE_AT = 16, SHAPE_BYTES = 64, MAX_FRAME = 1 << 16 };

static void put_frame(struct moe_buf *file, const uint8_t *raw, uint32_t n)
{
    uint64_t at = file->size, bound = ZSTD_compressBound(n);
    uint8_t *frame = moe_buf_reserve(file, TRACE_FRAME_HEAD_BYTES + bound);
    if (!frame)
        abort();
    size_t stored = ZSTD_compress(frame + TRACE_FRAME_HEAD_BYTES, bound, raw, n, 1);
    moe_put_u32(frame + 8, (uint32_t)stored);
    moe_put_u32(frame + 12, n);
    moe_put_u64(frame, moe_hash64(frame + 8, TRACE_FRAME_HEAD_BYTES - 8 + stored));
    file->size = at + TRACE_FRAME_HEAD_BYTES + stored;
}

/* The file that the input stands for. */
static void make_file(const uint8_t *data, uint64_t n, struct moe_buf *file)
{
    struct moe_cursor c = moe_cursor_over(data, n);
    moe_buf_append(file, TRACE_MAGIC, 4);
    moe_buf_u32(file, MOE_TRACE_VERSION);
    moe_buf_u64(file, 0);
    for (int i = 0; i < TRACE_HEADER_BYTES - SHAPE_AT; i++)
        moe_buf_u8(file, i < SHAPE_BYTES ? moe_cursor_u8(&c) : 0);
    while (moe_cursor_left(&c) >= 4) {
        uint32_t want = moe_cursor_u32(&c);
        uint64_t left = moe_cursor_left(&c), take = want < left ? want : left;
        put_frame(file, moe_cursor_take(&c, take), (uint32_t)(take < MAX_FRAME ? take : MAX_FRAME));
    }
    if (file->failed)
        abort();
    moe_put_u64(file->data + 8, file->size);
    moe_put_u64(file->data + TRACE_CHECKSUM_AT, moe_hash64(file->data, TRACE_CHECKSUM_AT));
}

/* Reads all steps. */
static int read_all(struct moe_trace *t, struct moe_err *err)
{
    const struct moe_trace_token *token;
    int status;
    while ((status = moe_trace_next(t, &token, err)) == MOE_OK && token)
        for (uint32_t l = 0; l < moe_trace_shape(t)->n_layers; l++) {
            struct moe_trace_step step = moe_trace_step(t, l);
            for (uint32_t i = 0; step.experts && i < moe_trace_shape(t)->top_k; i++)
                if (step.experts[i] >= moe_trace_shape(t)->n_experts)
                    abort();
        }
    return status;
}

static void check_append(struct moe_trace *t, const char *to)
{
    struct moe_err err;
    struct moe_trace_writer *w;
    struct moe_trace *again;
    if (moe_trace_create(&w, to, moe_trace_shape(t), &err) != MOE_OK ||
        moe_trace_append(w, t, &err) != MOE_OK || moe_trace_commit(w, &err) != MOE_OK ||
        moe_trace_open(&again, to, &err) != MOE_OK || read_all(again, &err) != MOE_OK)
        abort();
    moe_trace_close(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char from[64], to[64];
    struct moe_err err;
    struct moe_trace *t;
    struct moe_buf file = {0};
    snprintf(from, sizeof from, "/tmp/moe-fuzz-%d", (int)getpid());
    snprintf(to, sizeof to, "/tmp/moe-fuzz-%d-to", (int)getpid());
    bool foreign = n > 0 && (data[0] == '#' || data[0] == '{');
    if (!foreign)
        make_file(data, n, &file);
    if (moe_file_write_all(from, foreign ? data : file.data, foreign ? n : file.size, &err) !=
        MOE_OK)
        abort();
    if (!foreign || moe_trace_import(from, to, &err) == MOE_OK) {
        int status = moe_trace_open(&t, foreign ? to : from, &err);
        if (status == MOE_OK)
            status = read_all(t, &err);
        if (status == MOE_OK)
            check_append(t, to);
        else if (foreign)
            abort();
        moe_trace_close(t);
    }
    moe_buf_release(&file);
    unlink(from);
    unlink(to);
    return 0;
}
