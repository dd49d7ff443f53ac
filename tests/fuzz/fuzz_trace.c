/*
 * A trace.
 *
 * The reader's checks lie behind checksums and compression that no mutation gets right. So the
 * input is the header's 68 bytes from byte 16 on, then frames before compression, each after its
 * length (u32); the target makes a file of that, but for what the length's upper bits want wrong.
 * What is accepted must come back the same when appended to a new trace, and when merged. A length
 * may say that another file begins after its frame: both are merged.
 */
/* Readers: profile/trace_read.c profile/trace_write.c */
#define _GNU_SOURCE
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/hash.h"
#include "mutate.h"
#include "profile/trace_internal.h"
#include "show/show.h"

enum { SHAPE_AT = 16, SHAPE_BYTES = 68, MAX_FRAME = 1 << 16 };
/* Upper bits of a frame's length. */
enum {
    NOT_COMPRESSED = 1 << 27,
    WRONG_CHECKSUM = 1 << 26,
    WRONG_SIZE = 1 << 25,
    WRONG_HEADER = 1 << 24, /* its checksum; with WRONG_SIZE the file's length in it */
    NEXT_FILE = 1 << 28,
    LENGTHS = 1 << 24,
};

static void put_frame(struct moe_buf *file, const uint8_t *raw, uint32_t n, uint32_t wrong)
{
    uint64_t at = file->size, bound = ZSTD_compressBound(n);
    uint8_t *frame = moe_buf_reserve(file, TRACE_FRAME_HEAD_BYTES + bound);
    if (!frame)
        abort();
    size_t stored = n;
    if (wrong & NOT_COMPRESSED)
        memcpy(frame + TRACE_FRAME_HEAD_BYTES, raw, n);
    else
        stored = ZSTD_compress(frame + TRACE_FRAME_HEAD_BYTES, bound, raw, n, 1);
    moe_put_u32(frame + 8, (uint32_t)stored);
    moe_put_u32(frame + 12, wrong & WRONG_SIZE ? n + 1 : n);
    moe_put_u64(frame, moe_hash64(frame + 8, TRACE_FRAME_HEAD_BYTES - 8 + stored));
    frame[0] ^= (wrong & WRONG_CHECKSUM) != 0;
    file->size = at + TRACE_FRAME_HEAD_BYTES + stored;
}

/* The next file that the input stands for. */
static void make_file(struct moe_cursor *at, struct moe_buf *file)
{
    struct moe_cursor c = *at;
    uint32_t wrong = 0;
    moe_buf_append(file, TRACE_MAGIC, 4);
    moe_buf_u32(file, MOE_TRACE_VERSION);
    moe_buf_u64(file, 0);
    for (int i = 0; i < TRACE_HEADER_BYTES - SHAPE_AT; i++)
        moe_buf_u8(file, i < SHAPE_BYTES ? moe_cursor_u8(&c) : 0);
    if (file->failed)
        abort();
    while (!(wrong & NEXT_FILE) && moe_cursor_left(&c) >= 4) {
        uint32_t head = moe_cursor_u32(&c), want = head % LENGTHS;
        uint64_t left = moe_cursor_left(&c), take = want < left ? want : left;
        wrong |= head;
        put_frame(file, moe_cursor_take(&c, take), (uint32_t)(take < MAX_FRAME ? take : MAX_FRAME),
                  head);
    }
    *at = c;
    if (file->failed)
        abort();
    bool wrong_size = wrong & WRONG_HEADER && wrong & WRONG_SIZE;
    moe_put_u64(file->data + 8, file->size + wrong_size);
    moe_put_u64(file->data + TRACE_CHECKSUM_AT, moe_hash64(file->data, TRACE_CHECKSUM_AT));
    file->data[TRACE_CHECKSUM_AT] ^= wrong & WRONG_HEADER && !wrong_size;
}

/* Reads all steps; `same`: of another trace, which has the same choices. */
static int read_all(struct moe_trace *t, struct moe_trace *same, struct moe_err *err)
{
    const struct moe_trace_token *token, *other;
    const struct moe_trace_shape *shape = moe_trace_shape(t);
    int status;
    while ((status = moe_trace_next(t, &token, err)) == MOE_OK && token) {
        if (same && (moe_trace_next(same, &other, err) != MOE_OK || !other ||
                     other->sequence != token->sequence || other->id != token->id ||
                     other->prompt != token->prompt))
            abort();
        for (uint32_t l = 0; l < shape->n_layers; l++) {
            struct moe_trace_step step = moe_trace_step(t, l);
            for (uint32_t i = 0; step.experts && i < shape->top_k; i++)
                if (step.experts[i] >= shape->n_experts)
                    abort();
            if (!same)
                continue;
            struct moe_trace_step its = moe_trace_step(same, l);
            if (!step.experts != !its.experts ||
                (step.experts && (memcmp(step.experts, its.experts, shape->top_k * 2) != 0 ||
                                  memcmp(step.weights, its.weights, shape->top_k * 4) != 0)))
                abort();
        }
    }
    return status;
}

/* The trace at `path` has what `t` has, which is read from its beginning. */
static void check_same(struct moe_trace *t, const char *path)
{
    struct moe_err err;
    struct moe_trace *again;
    moe_trace_rewind(t);
    if (moe_trace_open(&again, path, &err) != MOE_OK || read_all(again, t, &err) != MOE_OK ||
        memcmp(moe_trace_totals(t), moe_trace_totals(again), sizeof *moe_trace_totals(t)) != 0)
        abort();
    moe_trace_close(again);
}

static void use(struct moe_trace *t, const char *from, const char *to)
{
    struct moe_err err;
    struct moe_buf text = {0};
    const struct moe_trace_token *token;
    if (FUZZ_TRY(moe_trace_merge((const char *const[]){from}, 1, to, true, &err)) == MOE_OK)
        check_same(t, to);
    moe_trace_rewind(t);
    moe_trace_want(t, MOE_TRACE_NEXT_BEST, 1, 2);
    while (moe_trace_next(t, &token, &err) == MOE_OK && token)
        if (token->sequence % 2 == 0)
            abort();
    moe_show_trace(t, &text);
    moe_buf_clear(&text);
    moe_show_trace_json(t, &text);
    fuzz_check_json(&text);
    moe_buf_release(&text);
}

/* A trace of both holds the documents of both. */
static void merge_two(struct moe_trace *t, const char *from, const char *other, const char *to)
{
    struct moe_err err;
    struct moe_trace *part, *sum;
    const char *both[] = {from, other};
    if (FUZZ_TRY(moe_trace_merge(both, 2, to, false, &err)) != MOE_OK &&
        FUZZ_TRY(moe_trace_merge(both, 2, to, true, &err)) != MOE_OK)
        return;
    if (moe_trace_open(&part, other, &err) != MOE_OK || moe_trace_open(&sum, to, &err) != MOE_OK ||
        read_all(sum, NULL, &err) != MOE_OK ||
        moe_trace_totals(sum)->tokens !=
            moe_trace_totals(t)->tokens + moe_trace_totals(part)->tokens)
        abort();
    moe_trace_close(part);
    moe_trace_close(sum);
}

/* A trace that reads can be continued at its end, and is the same then; one that does not is
 * refused or cut. */
static void check_continue(const char *path, bool sound)
{
    struct moe_err err;
    struct moe_trace_writer *w;
    struct moe_trace *t, *again;
    if (FUZZ_TRY(moe_trace_open_part(&t, path, &err)) != MOE_OK)
        return;
    const struct moe_trace_totals until = *moe_trace_totals(t);
    if (FUZZ_TRY(moe_trace_continue(&w, t, moe_trace_shape(t), &until, &err)) == MOE_OK) {
        if (moe_trace_commit(w, &err) != MOE_OK || moe_trace_open(&again, path, &err) != MOE_OK ||
            read_all(again, NULL, &err) != MOE_OK ||
            moe_trace_totals(again)->sequences != until.sequences ||
            moe_trace_totals(again)->tokens != until.tokens)
            abort();
        moe_trace_close(again);
    } else if (sound && !fuzz_failed) {
        abort();
    }
    moe_trace_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char from[96], other[96], to[96];
    struct moe_err err;
    struct moe_trace *t;
    struct moe_buf file = {0};
    n = fuzz_begin(data, n);
    struct moe_cursor at = moe_cursor_over(data, n);
    fuzz_path("from", from);
    fuzz_path("other", other);
    fuzz_path("to", to);
    make_file(&at, &file);
    if (moe_file_write_all(from, file.data, file.size, &err) != MOE_OK || !moe_trace_is(from))
        abort();
    bool two = moe_cursor_left(&at) > 0;
    moe_buf_clear(&file);
    if (two)
        make_file(&at, &file);
    if (two && moe_file_write_all(other, file.data, file.size, &err) != MOE_OK)
        abort();
    bool sound = false;
    if (FUZZ_TRY(moe_trace_open(&t, from, &err)) == MOE_OK) {
        sound = FUZZ_TRY(read_all(t, NULL, &err)) == MOE_OK;
        if (sound)
            use(t, from, to);
        if (sound && two)
            merge_two(t, from, other, to);
        moe_trace_close(t);
    }
    check_continue(from, sound);
    moe_buf_release(&file);
    unlink(from);
    unlink(other);
    unlink(to);
    return 0;
}

FUZZ_MUTATE_PIECES(.front = SHAPE_BYTES, .head = 4, .length_bytes = 4)
