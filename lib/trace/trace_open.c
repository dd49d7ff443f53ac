/* Opening a trace: its header, the experts' sizes, room for a frame. */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "base/mem.h"
#include "trace/trace_reader.h"

/* `part`: of a trace that is being written, where the header may be behind what follows. */
static int read_header(struct moe_trace *t, uint64_t file_bytes, bool part, uint32_t *n_origins,
                       bool *has_static, struct moe_err *err)
{
    uint8_t header[TRACE_HEADER_BYTES] = {0};
    struct moe_trace_shape *s = &t->shape;
    uint64_t there = file_bytes < sizeof header ? file_bytes : sizeof header;
    int status = moe_file_pread(t->fd, t->path, header, there, 0, err);
    if (status != MOE_OK)
        return status;
    if (memcmp(header, TRACE_MAGIC, 4) != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: not a trace (it does not begin with %s); traces of other engines are "
                        "read by moe-profile --import",
                        t->path, TRACE_MAGIC);
    struct moe_cursor c = moe_cursor_over(header, TRACE_CHECKSUM_AT);
    moe_cursor_take(&c, 4);
    uint32_t version = moe_cursor_u32(&c);
    if (there == sizeof header && (version == 0 || version > MOE_TRACE_VERSION))
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: a trace of version %" PRIu32 "; this program reads versions up to %d",
                        t->path, version, MOE_TRACE_VERSION);
    t->file_bytes = moe_cursor_u64(&c);
    if (there < sizeof header)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: ends within its header (cut off)", t->path);
    if (moe_hash64(header, TRACE_CHECKSUM_AT) != moe_get_u64(header + TRACE_CHECKSUM_AT))
        return moe_fail(err, MOE_ERR_FORMAT, "%s: header: checksum mismatch (file damaged)",
                        t->path);
    if (part)
        t->file_bytes = file_bytes;
    if (t->file_bytes != file_bytes)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: has %" PRIu64 " of %" PRIu64 " bytes (%s)",
                        t->path, file_bytes, t->file_bytes,
                        file_bytes < t->file_bytes ? "cut off" : "file damaged");
    *has_static = version >= 4;
    s->has_ids = version >= 5;
    s->source_fingerprint = moe_cursor_u64(&c);
    s->n_layers = moe_cursor_u32(&c);
    s->n_experts = moe_cursor_u32(&c);
    s->top_k = moe_cursor_u32(&c);
    s->keep = moe_cursor_u32(&c);
    s->predictors = moe_cursor_u32(&c);
    s->n_variants = moe_cursor_u32(&c);
    t->totals.sequences = moe_cursor_u64(&c);
    t->totals.tokens = moe_cursor_u64(&c);
    t->totals.prompt_tokens = moe_cursor_u64(&c);
    *n_origins = moe_cursor_u32(&c);
    s->n_encoder = moe_cursor_u32(&c);
    uint64_t reserved = moe_cursor_u64(&c);
    const char *problem = trace_shape_problem(s);
    if (!problem && (reserved != 0 || (version == 1 && *n_origins != 0) ||
                     (version < 3 && s->n_encoder != 0) || (version == 3 && s->n_encoder == 0)))
        problem = "reserved bytes are not zero";
    if (!problem && *n_origins > MOE_MAX_ORIGINS)
        problem = "more origins than there can be";
    if (!problem &&
        (t->totals.prompt_tokens > t->totals.tokens || t->totals.sequences > t->totals.tokens))
        problem = "its numbers of tokens contradict each other";
    return problem ? moe_fail(err, MOE_ERR_FORMAT, "%s: header: %s", t->path, problem) : MOE_OK;
}

static bool name_valid(const char *name)
{
    uint64_t n = 0;
    while (n < MOE_PACK_NAME_BYTES && name[n] > ' ' && name[n] < 0x7f)
        n++;
    for (uint64_t i = n; i < MOE_PACK_NAME_BYTES; i++)
        if (name[i] != '\0')
            return false;
    return n > 0 && n < MOE_PACK_NAME_BYTES;
}

static int read_description(struct moe_trace *t, struct moe_err *err)
{
    struct moe_trace_shape *s = &t->shape;
    uint64_t bytes = trace_description_bytes(s), stored;
    if (bytes == 0)
        return MOE_OK;
    int status = trace_read_frame(t, bytes, &stored, err);
    if (status != MOE_OK)
        return status;
    if (t->raw.size != bytes)
        return trace_damaged(t, err, "not as long as the experts' sizes");
    memcpy(s->variants, t->raw.data, (uint64_t)s->n_variants * MOE_PACK_NAME_BYTES);
    for (uint32_t v = 0; v < s->n_variants; v++)
        if (!name_valid(s->variants[v]))
            return trace_damaged(t, err, "a variant without a name");
    uint64_t n = (uint64_t)s->n_variants * s->n_layers * s->n_experts;
    if (!(t->expert_bytes = moe_alloc(n, sizeof *t->expert_bytes, err)))
        return MOE_ERR_MEMORY;
    const uint8_t *sizes = t->raw.data + (uint64_t)s->n_variants * MOE_PACK_NAME_BYTES;
    for (uint64_t i = 0; i < n; i++)
        t->expert_bytes[i] = moe_get_u64(sizes + 8 * i);
    s->expert_bytes = t->expert_bytes;
    t->at += stored;
    return MOE_OK;
}

/* Which layers choose by the token. */
static int read_static(struct moe_trace *t, struct moe_err *err)
{
    struct moe_trace_shape *s = &t->shape;
    uint64_t stored;
    int status = trace_read_frame(t, s->n_layers, &stored, err);
    if (status != MOE_OK)
        return status;
    bool any = s->has_ids || memchr(t->raw.data, 1, t->raw.size);
    bool valid = t->raw.size == s->n_layers && any;
    for (uint64_t i = 0; valid && i < t->raw.size; i++)
        valid = t->raw.data[i] <= 1;
    if (!valid)
        return trace_damaged(t, err, "no list of layers that choose by the token");
    memcpy(s->is_static, t->raw.data, s->n_layers);
    t->at += stored;
    return MOE_OK;
}

static int make_room(struct moe_trace *t, struct moe_err *err)
{
    uint64_t rows = (uint64_t)t->layout.frame_tokens * t->shape.n_layers;
    t->tokens = moe_alloc(t->layout.frame_tokens, sizeof *t->tokens, err);
    t->computed = moe_alloc(rows, 1, err);
    t->ids = moe_alloc(rows, t->layout.n_ids * sizeof *t->ids, err);
    t->scores = moe_alloc(rows, t->layout.n_scores * sizeof *t->scores, err);
    t->seen_at = moe_alloc(t->shape.n_experts, sizeof *t->seen_at, err);
    return t->tokens && t->computed && t->ids && t->scores && t->seen_at ? MOE_OK : MOE_ERR_MEMORY;
}

void trace_release_room(struct moe_trace *t)
{
    free(t->tokens);
    free(t->computed);
    free(t->ids);
    free(t->scores);
    free(t->seen_at);
    t->tokens = NULL;
    t->computed = NULL;
    t->ids = NULL;
    t->scores = NULL;
    t->seen_at = NULL;
    moe_buf_release(&t->stored);
    moe_buf_release(&t->raw);
}

bool moe_trace_is(const char *path)
{
    uint8_t start[4];
    uint64_t bytes;
    int fd = moe_file_open(path, &bytes, NULL);
    bool is = fd >= 0 && bytes >= sizeof start &&
              moe_file_pread(fd, path, start, sizeof start, 0, NULL) == MOE_OK &&
              memcmp(start, TRACE_MAGIC, sizeof start) == 0;
    if (fd >= 0)
        close(fd);
    return is;
}

/* Takes fd over, a negative one as the status of opening it. */
static int open_trace(struct moe_trace **out, const char *path, int fd, uint64_t file_bytes,
                      bool part, struct moe_err *err)
{
    *out = NULL;
    if (fd < 0)
        return fd;
    struct moe_trace *t = moe_alloc(1, sizeof *t, err);
    if (!t) {
        close(fd);
        return MOE_ERR_MEMORY;
    }
    uint32_t n_origins = 0;
    bool has_static = false;
    int status = MOE_OK;
    t->fd = fd;
    if (!(t->path = moe_strndup(path, strlen(path), err)) || !(t->zstd = ZSTD_createDCtx()))
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path);
    if (status == MOE_OK)
        status = read_header(t, file_bytes, part, &n_origins, &has_static, err);
    t->at = TRACE_HEADER_BYTES;
    if (status == MOE_OK)
        status = read_description(t, err);
    if (status == MOE_OK && has_static)
        status = read_static(t, err);
    if (status == MOE_OK)
        status = trace_take_origins(t, n_origins, err);
    t->first_tokens_at = t->at;
    moe_trace_want(t, UINT32_MAX, 0, 0);
    if (status == MOE_OK) {
        t->layout = trace_layout_of(&t->shape);
        status = make_room(t, err);
    }
    if (status == MOE_OK)
        *out = t;
    else
        moe_trace_close(t);
    return status;
}

int moe_trace_open(struct moe_trace **out, const char *path, struct moe_err *err)
{
    uint64_t bytes = 0;
    int fd = moe_file_open(path, &bytes, err);
    return open_trace(out, path, fd, bytes, false, err);
}

int moe_trace_open_part(struct moe_trace **out, const char *path, struct moe_err *err)
{
    uint64_t bytes = 0;
    int fd = moe_file_open(path, &bytes, err);
    return open_trace(out, path, fd, bytes, true, err);
}

int moe_trace_another(struct moe_trace **out, const struct moe_trace *t, struct moe_err *err)
{
    int fd = fcntl(t->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0)
        fd = moe_fail(err, MOE_ERR_IO, "%s: cannot open again: %s", t->path, strerror(errno));
    return open_trace(out, t->path, fd, t->file_bytes, false, err);
}

void moe_trace_close(struct moe_trace *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    ZSTD_freeDCtx(t->zstd);
    trace_release_room(t);
    moe_origins_release(&t->origins);
    free(t->expert_bytes);
    free(t->path);
    free(t);
}
