/* Reading traces: header, frames, tokens, excerpts. */
#define _GNU_SOURCE /* F_DUPFD_CLOEXEC */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "profile/trace.h"
#include "profile/trace_internal.h"

/* Files have these numbers. */
_Static_assert(MOE_PREDICT_GATE_1 == 1 && MOE_PREDICT_ATTN == 4 && MOE_PREDICT_ATTN_1 == 5 &&
                   MOE_PREDICT_RESIDUAL_1 == 6 && MOE_PREDICT_RESIDUAL_3 == 8,
               "moe-trace(5) numbers predictors");

uint32_t moe_trace_default_keep(uint32_t n_experts, uint32_t top_k)
{
    uint32_t quarter = (n_experts + 3) / 4, keep = quarter > 2 * top_k ? quarter : 2 * top_k;
    return keep < n_experts ? keep : n_experts;
}

/* The first layer that a predictor predicts in a decoder: the number of layers it looks back. */
static uint32_t earliest_layer(enum moe_predictor predictor)
{
    switch (predictor) {
    case MOE_PREDICT_GATE_1:
    case MOE_PREDICT_ATTN_1:
    case MOE_PREDICT_RESIDUAL_1:
        return 1;
    case MOE_PREDICT_GATE_2:
    case MOE_PREDICT_RESIDUAL_2:
        return 2;
    case MOE_PREDICT_GATE_3:
    case MOE_PREDICT_RESIDUAL_3:
        return 3;
    default:
        return 0;
    }
}

bool moe_trace_predicts(const struct moe_trace_shape *shape, enum moe_predictor predictor,
                        uint32_t layer)
{
    uint32_t first = layer < shape->n_encoder ? 0 : shape->n_encoder;
    return layer - first >= earliest_layer(predictor) && !shape->is_static[layer];
}

static void add_column(struct trace_layout *f, const struct moe_trace_shape *shape, bool is_ids,
                       uint32_t n, uint32_t first_layer, uint32_t needs)
{
    uint32_t *width = is_ids ? &f->n_ids : &f->n_scores;
    if (n == 0)
        return;
    f->columns[f->n_columns++] = (struct trace_column){is_ids, *width, n, first_layer, needs};
    *width += n;
    if (first_layer < shape->n_layers)
        f->token_bytes +=
            (uint64_t)n * (is_ids ? f->id_bytes : 2) * (shape->n_layers - first_layer);
}

struct trace_layout trace_layout_of(const struct moe_trace_shape *shape)
{
    struct trace_layout f = {.id_bytes = shape->n_experts > 256 ? 2 : 1};
    uint32_t k = shape->top_k, keep = shape->keep;
    f.n_router = keep > k ? keep : k;
    f.token_bytes = shape->n_layers + /* whether each was computed */
                    (shape->has_ids ? TRACE_TOKEN_ID_BYTES : 0);
    add_column(&f, shape, true, k, 0, 0);
    add_column(&f, shape, false, k, 0, 0);
    f.router_scores = f.n_scores;
    if (keep > 0) {
        add_column(&f, shape, true, f.n_router - k, 0, MOE_TRACE_NEXT_BEST);
        add_column(&f, shape, false, f.n_router, 0, MOE_TRACE_NEXT_BEST);
    }
    for (int i = 0; i < MOE_N_PREDICTORS; i++) {
        if (!(shape->predictors & 1u << i))
            continue;
        uint32_t first = earliest_layer((enum moe_predictor)i);
        f.predicted_ids[i] = f.n_ids;
        f.predicted_scores[i] = f.n_scores;
        add_column(&f, shape, true, keep, first, 1u << i);
        add_column(&f, shape, false, keep, first, 1u << i);
    }
    f.frame_tokens = (uint32_t)(TRACE_FRAME_BYTES / f.token_bytes);
    f.frame_tokens = f.frame_tokens > TRACE_MAX_FRAME_TOKENS ? TRACE_MAX_FRAME_TOKENS
                     : f.frame_tokens == 0                   ? 1
                                                             : f.frame_tokens;
    return f;
}

uint64_t trace_description_bytes(const struct moe_trace_shape *shape)
{
    return shape->n_variants *
           (MOE_NAME_BYTES + sizeof(uint64_t) * (uint64_t)shape->n_layers * shape->n_experts);
}

bool trace_same_shape(const struct moe_trace_shape *a, const struct moe_trace_shape *b)
{
    bool same = a->n_layers == b->n_layers && a->n_experts == b->n_experts &&
                a->n_encoder == b->n_encoder && a->top_k == b->top_k && a->keep == b->keep &&
                memcmp(&a->loop, &b->loop, sizeof a->loop) == 0 && a->predictors == b->predictors &&
                a->n_variants == b->n_variants && a->source_fingerprint == b->source_fingerprint &&
                a->has_ids == b->has_ids && memcmp(a->is_static, b->is_static, a->n_layers) == 0;
    for (uint32_t v = 0; same && v < a->n_variants; v++)
        same = strcmp(a->variants[v], b->variants[v]) == 0;
    uint64_t n = (uint64_t)a->n_variants * a->n_layers * a->n_experts;
    if (same && n && a->expert_bytes && b->expert_bytes)
        same = memcmp(a->expert_bytes, b->expert_bytes, n * sizeof *a->expert_bytes) == 0;
    return same;
}

const char *trace_shape_problem(const struct moe_trace_shape *s)
{
    if (s->n_layers == 0 || s->n_layers > MOE_MAX_LAYERS || s->n_experts == 0 ||
        s->n_experts > MOE_MAX_EXPERTS ||
        (uint64_t)s->n_layers * s->n_experts > MOE_RECORD_MAX_EXPERTS)
        return "no or too many layers or experts";
    if (s->n_encoder >= s->n_layers)
        return "an encoder and no decoder";
    const struct moe_loop *l = &s->loop;
    if ((l->begin || l->n || l->passes) &&
        (l->n == 0 || l->passes < 2 || l->begin < s->n_encoder || l->begin > TRACE_LOOP_MOST ||
         l->n > TRACE_LOOP_MOST || l->begin + (uint64_t)l->n * l->passes > s->n_layers))
        return "a loop of layers that it does not have";
    if (s->top_k == 0 || s->top_k > s->n_experts)
        return "the number of experts chosen is beyond those there are";
    if (s->keep > s->n_experts)
        return "more scores kept than there are experts";
    if ((s->predictors & ~(uint32_t)MOE_TRACE_PREDICTORS) != 0 || (s->predictors && !s->keep))
        return "predictors that a trace cannot hold";
    if (s->n_variants > MOE_MAX_VARIANTS)
        return "too many variants";
    if (trace_layout_of(s).token_bytes > TRACE_MAX_FRAME_BYTES)
        return "a token takes too many bytes: keep fewer scores";
    return NULL;
}

/* Opening a trace: its header, the experts' sizes, room for a frame. */

/* `part`: of a trace that is being written, where the header may be behind what follows. */
static int read_header(struct moe_trace *t, uint64_t file_bytes, bool part, uint32_t *n_origins,
                       struct moe_err *err)
{
    uint8_t header[TRACE_HEADER_BYTES] = {0};
    struct moe_trace_shape *s = &t->shape;
    uint64_t there = file_bytes < sizeof header ? file_bytes : sizeof header;
    MOE_TRY(moe_file_pread(t->fd, t->path, header, there, 0, err));
    if (memcmp(header, TRACE_MAGIC, 4) != 0)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: not a trace (it does not begin with %s); traces of other engines are "
                        "read by moe-profile --import",
                        t->path, TRACE_MAGIC);
    struct moe_cursor c = moe_cursor_over(header, TRACE_CHECKSUM_AT);
    moe_cursor_take(&c, 4);
    uint32_t version = moe_cursor_u32(&c);
    if (there == sizeof header && version != MOE_TRACE_VERSION)
        return moe_fail(err, MOE_ERR_VERSION,
                        "%s: trace version %" PRIu32 ", this program reads version %d", t->path,
                        version, MOE_TRACE_VERSION);
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
    uint32_t has_ids = moe_cursor_u32(&c), loop = moe_cursor_u32(&c);
    s->has_ids = has_ids == 1;
    s->loop = (struct moe_loop){loop & TRACE_LOOP_MOST, loop >> 10 & TRACE_LOOP_MOST, loop >> 20};
    const char *problem = trace_shape_problem(s);
    if (!problem && has_ids > 1)
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
    while (n < MOE_NAME_BYTES && name[n] > ' ' && name[n] < 0x7f)
        n++;
    for (uint64_t i = n; i < MOE_NAME_BYTES; i++)
        if (name[i] != '\0')
            return false;
    return n > 0 && n < MOE_NAME_BYTES;
}

static int read_description(struct moe_trace *t, struct moe_err *err)
{
    struct moe_trace_shape *s = &t->shape;
    uint64_t bytes = trace_description_bytes(s), stored;
    if (bytes == 0)
        return MOE_OK;
    MOE_TRY(trace_read_frame(t, bytes, &stored, err));
    if (t->raw.size != bytes)
        return trace_damaged(t, err, "not as long as the experts' sizes");
    memcpy(s->variants, t->raw.data, (uint64_t)s->n_variants * MOE_NAME_BYTES);
    for (uint32_t v = 0; v < s->n_variants; v++)
        if (!name_valid(s->variants[v]))
            return trace_damaged(t, err, "a variant without a name");
    uint64_t n = (uint64_t)s->n_variants * s->n_layers * s->n_experts;
    if (!(t->expert_bytes = moe_alloc(n, sizeof *t->expert_bytes, err)))
        return MOE_ERR_MEMORY;
    const uint8_t *sizes = t->raw.data + (uint64_t)s->n_variants * MOE_NAME_BYTES;
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
    MOE_TRY(trace_read_frame(t, s->n_layers, &stored, err));
    bool valid = t->raw.size == s->n_layers;
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
    int status;
    t->fd = fd;
    if (!(t->path = moe_strndup(path, strlen(path), err)) || !(t->zstd = ZSTD_createDCtx()))
        MOE_STEP(moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path));
    MOE_STEP(read_header(t, file_bytes, part, &n_origins, err));
    t->at = TRACE_HEADER_BYTES;
    MOE_STEP(read_description(t, err));
    MOE_STEP(read_static(t, err));
    MOE_STEP(trace_take_origins(t, n_origins, err));
    t->first_tokens_at = t->at;
    moe_trace_want(t, UINT32_MAX, 0, 0);
    t->layout = trace_layout_of(&t->shape);
    MOE_STEP(make_room(t, err));
out:
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
    MOE_TRY(open_trace(out, t->path, fd, t->file_bytes, false, err));
    if (t->kept) {
        (*out)->kept = t->kept;
        pthread_mutex_lock(&t->kept->lock);
        t->kept->n_readers++;
        pthread_mutex_unlock(&t->kept->lock);
    }
    return MOE_OK;
}

/* ---- Frames that stay in memory ---- */

int moe_trace_keep(struct moe_trace *t, uint64_t bytes, struct moe_err *err)
{
    if (t->kept)
        return MOE_OK;
    t->kept = moe_alloc(1, sizeof *t->kept, err);
    if (!t->kept)
        return MOE_ERR_MEMORY;
    pthread_mutex_init(&t->kept->lock, NULL);
    t->kept->n_readers = 1;
    t->kept->room = bytes;
    return MOE_OK;
}

static void leave_kept(struct trace_kept *k)
{
    pthread_mutex_lock(&k->lock);
    bool last = --k->n_readers == 0;
    pthread_mutex_unlock(&k->lock);
    if (!last)
        return;
    for (uint32_t i = 0; i < k->n; i++)
        free(k->frames[i].raw);
    free(k->frames);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

/* Frame number i; stored 0: it is not known. What it points to stays. */
static struct trace_frame kept_frame(struct trace_kept *k, uint32_t i)
{
    struct trace_frame f = {0};
    pthread_mutex_lock(&k->lock);
    if (i < k->n)
        f = k->frames[i];
    pthread_mutex_unlock(&k->lock);
    return f;
}

/* Keeps the frame that t->raw has, whole or its head; without memory for it, it is read again. */
static void keep_frame(struct moe_trace *t, uint64_t stored, bool whole)
{
    struct trace_kept *k = t->kept;
    pthread_mutex_lock(&k->lock);
    if (t->frame >= k->n) {
        uint32_t n = 2 * t->frame + 64;
        struct trace_frame *more = realloc(k->frames, n * sizeof *more);
        if (more) {
            memset(more + k->n, 0, (n - k->n) * sizeof *more);
            k->frames = more;
            k->n = n;
        }
    }
    struct trace_frame *f = t->frame < k->n ? &k->frames[t->frame] : NULL;
    if (f) {
        f->stored = stored;
        f->raw_bytes = t->raw.size;
        memcpy(f->head, t->raw.data, sizeof f->head);
    }
    if (f && whole && !f->raw && t->raw.size <= k->room && (f->raw = malloc(t->raw.size))) {
        memcpy(f->raw, t->raw.data, t->raw.size);
        k->room -= t->raw.size;
    }
    pthread_mutex_unlock(&k->lock);
}

void moe_trace_close(struct moe_trace *t)
{
    if (!t)
        return;
    if (t->fd >= 0)
        close(t->fd);
    if (t->kept)
        leave_kept(t->kept);
    ZSTD_freeDCtx(t->zstd);
    trace_release_room(t);
    moe_origins_release(&t->origins);
    free(t->expert_bytes);
    free(t->path);
    free(t);
}

/* Reading a trace: the one place that turns its untrusted bytes into steps. */

const struct moe_trace_shape *moe_trace_shape(const struct moe_trace *t)
{
    return &t->shape;
}

const struct moe_trace_totals *moe_trace_totals(const struct moe_trace *t)
{
    return &t->totals;
}

uint64_t moe_trace_file_bytes(const struct moe_trace *t)
{
    return t->file_bytes;
}

int trace_damaged(const struct moe_trace *t, struct moe_err *err, const char *what)
{
    return moe_fail(err, MOE_ERR_FORMAT, "%s: frame at byte %" PRIu64 ": %s (file damaged)",
                    t->path, t->at, what);
}

/* ---- Frames ---- */

int trace_read_frame(struct moe_trace *t, uint64_t max_raw_bytes, uint64_t *stored,
                     struct moe_err *err)
{
    uint8_t head[TRACE_FRAME_HEAD_BYTES];
    uint64_t left = t->file_bytes - t->at;
    if (left < sizeof head)
        return trace_damaged(t, err, "ends within its head");
    MOE_TRY(moe_file_pread(t->fd, t->path, head, sizeof head, t->at, err));
    uint64_t n = moe_get_u32(head + 8), raw_bytes = moe_get_u32(head + 12);
    if (n > left - sizeof head || raw_bytes > max_raw_bytes || n > ZSTD_compressBound(raw_bytes))
        return trace_damaged(t, err, "impossible size");
    moe_buf_clear(&t->stored);
    moe_buf_clear(&t->raw);
    uint8_t *frame = moe_buf_reserve(&t->stored, 8 + n), *raw = moe_buf_reserve(&t->raw, raw_bytes);
    if (!frame || !raw)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory for a frame", t->path);
    memcpy(frame, head + 8, 8);
    MOE_TRY(moe_file_pread(t->fd, t->path, frame + 8, n, t->at + sizeof head, err));
    if (moe_hash64(frame, 8 + n) != moe_get_u64(head))
        return trace_damaged(t, err, "checksum mismatch");
    size_t got = ZSTD_getFrameContentSize(frame + 8, n) == raw_bytes
                     ? ZSTD_decompressDCtx(t->zstd, raw, raw_bytes, frame + 8, n)
                     : 0;
    if (got != raw_bytes || raw_bytes == 0)
        return trace_damaged(t, err, "does not expand to what it says");
    t->raw.size = raw_bytes;
    *stored = sizeof head + n;
    return MOE_OK;
}

/* The values of a column, from `raw` on; gives what follows them. */
static const uint8_t *take_column(struct moe_trace *t, const struct trace_column *c,
                                  const uint8_t *raw)
{
    uint64_t layers = t->shape.n_layers;
    uint64_t n = c->first_layer < layers ? (layers - c->first_layer) * t->n_tokens * c->n : 0;
    const uint8_t *low = raw, *high = c->is_ids && t->layout.id_bytes == 1 ? NULL : raw + n;
    if (c->needs && !(t->wanted_parts & c->needs))
        return raw + (high ? 2 * n : n);
    for (uint64_t layer = c->first_layer; layer < layers; layer++)
        for (uint64_t token = 0; token < t->n_tokens; token++) {
            uint64_t row = token * layers + layer;
            uint16_t *ids = t->ids + row * t->layout.n_ids + c->at;
            float *scores = t->scores + row * t->layout.n_scores + c->at;
            for (uint32_t i = 0; i < c->n; i++) {
                uint16_t value = (uint16_t)(*low++ | (high ? *high++ << 8 : 0));
                if (c->is_ids)
                    ids[i] = value;
                else
                    scores[i] = moe_f16_to_f32(value);
            }
        }
    return raw + (high ? 2 * n : n);
}

static bool experts_valid(struct moe_trace *t, const uint16_t *ids, uint32_t n)
{
    t->n_lists++;
    for (uint32_t i = 0; i < n; i++) {
        if (ids[i] >= t->shape.n_experts || t->seen_at[ids[i]] == t->n_lists)
            return false;
        t->seen_at[ids[i]] = t->n_lists;
    }
    return true;
}

static bool scores_valid(const float *scores, uint32_t n, bool computed)
{
    bool valid = true;
    for (uint32_t i = 0; i < n; i++)
        valid = valid && (computed ? scores[i] >= 0 && scores[i] <= 65504 : scores[i] == 0);
    return valid;
}

static bool ids_valid(struct moe_trace *t, const uint16_t *ids, uint32_t n, bool computed)
{
    if (computed)
        return experts_valid(t, ids, n);
    bool valid = true;
    for (uint32_t i = 0; i < n; i++)
        valid = valid && ids[i] == 0;
    return valid;
}

/* Every list that is wanted has distinct experts in range; what was not computed is zero. A
 * source's tokens are not computed by the decoder, nor a target's by the encoder. */
static bool row_valid(struct moe_trace *t, uint64_t row, uint32_t layer)
{
    bool in_source = row / t->shape.n_layers < t->n_prompt;
    const struct trace_layout *f = &t->layout;
    const uint16_t *ids = t->ids + row * f->n_ids;
    const float *scores = t->scores + row * f->n_scores;
    bool computed = t->computed[row], valid = t->computed[row] <= 1;
    if (t->shape.n_encoder && in_source != (layer < t->shape.n_encoder))
        valid = t->computed[row] == 0;
    bool next_best = t->wanted_parts & MOE_TRACE_NEXT_BEST;
    valid = valid && ids_valid(t, ids, next_best ? f->n_router : t->shape.top_k, computed) &&
            scores_valid(scores, t->shape.top_k, computed);
    if (next_best && t->shape.keep > 0)
        valid = valid && scores_valid(scores + f->router_scores, f->n_router, computed);
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        if (t->shape.predictors & t->wanted_parts & 1u << i &&
            layer >= earliest_layer((enum moe_predictor)i)) {
            bool there = computed && moe_trace_predicts(&t->shape, (enum moe_predictor)i, layer);
            valid = valid && ids_valid(t, ids + f->predicted_ids[i], t->shape.keep, there) &&
                    scores_valid(scores + f->predicted_scores[i], t->shape.keep, there);
        }
    return valid;
}

static bool is_wanted(const struct moe_trace *t, uint64_t sequence)
{
    return t->wanted_every == 0 ||
           (sequence >= t->wanted_first && (sequence - t->wanted_first) % t->wanted_every == 0);
}

/* The next frame of tokens, from memory where it is kept: as much of it as is wanted. *raw may lie
 * in *f. */
static int next_frame(struct moe_trace *t, struct trace_frame *f, struct moe_cursor *raw,
                      uint64_t *stored, struct moe_err *err)
{
    const struct trace_layout *l = &t->layout;
    if (t->kept)
        *f = kept_frame(t->kept, t->frame);
    *stored = f->stored;
    if (f->stored && (f->raw || !is_wanted(t, moe_get_u32(f->head)))) {
        *raw = moe_cursor_over(f->raw ? f->raw : f->head, f->raw_bytes);
        return MOE_OK;
    }
    MOE_TRY(trace_read_frame(t, TRACE_TOKENS_HEAD_BYTES + l->frame_tokens * l->token_bytes, stored,
                             err));
    if (t->kept && t->raw.size >= TRACE_TOKENS_HEAD_BYTES)
        keep_frame(t, *stored, is_wanted(t, moe_get_u32(t->raw.data)));
    *raw = moe_cursor_over(t->raw.data, t->raw.size);
    return MOE_OK;
}

int trace_read_tokens(struct moe_trace *t, struct moe_err *err)
{
    const struct trace_layout *f = &t->layout;
    struct trace_frame kept = {0};
    uint64_t stored, layers = t->shape.n_layers;
    struct moe_cursor c;
    MOE_TRY(next_frame(t, &kept, &c, &stored, err));
    const uint64_t raw_bytes = c.size;
    uint64_t sequence = moe_cursor_u32(&c);
    uint32_t first = moe_cursor_u32(&c), n = moe_cursor_u32(&c), n_prompt = moe_cursor_u32(&c);
    uint32_t so_far = t->first + t->n_tokens; /* of the sequence before this frame */
    bool goes_on = t->met.sequences > 0 && sequence == t->met.sequences - 1 && first == so_far;
    bool is_next = sequence == t->met.sequences && first == 0;
    if (n == 0 || n > f->frame_tokens || first > UINT32_MAX - n ||
        raw_bytes != TRACE_TOKENS_HEAD_BYTES + n * f->token_bytes)
        return trace_damaged(t, err, "not as long as its tokens");
    if ((!goes_on && !is_next) || n_prompt > n ||
        (goes_on && n_prompt > 0 && t->n_prompt < t->n_tokens))
        return trace_damaged(t, err, "its tokens do not follow those before");
    t->first = first;
    t->n_tokens = n;
    t->n_prompt = n_prompt;
    t->met.sequences += is_next;
    t->met.tokens += n;
    t->met.prompt_tokens += n_prompt;
    t->frame++;
    if (!is_wanted(t, sequence)) {
        t->at += stored;
        return MOE_OK;
    }
    const uint8_t *raw = moe_cursor_take(&c, n * layers);
    for (uint64_t layer = 0; layer < layers; layer++)
        for (uint64_t token = 0; token < n; token++)
            t->computed[token * layers + layer] = *raw++;
    for (uint32_t token = 0; token < n; token++)
        t->tokens[token] = 0;
    for (int shift = 0; t->shape.has_ids && shift < 8 * TRACE_TOKEN_ID_BYTES; shift += 8)
        for (uint32_t token = 0; token < n; token++)
            t->tokens[token] |= (uint32_t)*raw++ << shift;
    for (uint32_t i = 0; i < f->n_columns; i++)
        raw = take_column(t, &f->columns[i], raw);
    for (uint64_t row = 0; row < n * layers; row++)
        if (!row_valid(t, row, (uint32_t)(row % layers)))
            return trace_damaged(t, err, "experts or scores that cannot be");
    t->at += stored;
    return MOE_OK;
}

int moe_trace_next(struct moe_trace *t, const struct moe_trace_token **token, struct moe_err *err)
{
    *token = NULL;
    bool more = ++t->here < t->n_tokens;
    while (!more || !is_wanted(t, t->met.sequences - 1)) {
        if (t->at == t->file_bytes) {
            t->here = t->n_tokens;
            return memcmp(&t->met, &t->totals, sizeof t->met) == 0
                       ? MOE_OK
                       : trace_damaged(t, err, "the file's end, but not all tokens were there");
        }
        int status = trace_read_tokens(t, err);
        if (status != MOE_OK)
            return status;
        t->here = 0;
        more = true;
    }
    t->token = (struct moe_trace_token){
        .sequence = t->met.sequences - 1,
        .index = t->first + t->here,
        .id = t->tokens[t->here],
        .prompt = t->here < t->n_prompt,
    };
    *token = &t->token;
    return MOE_OK;
}

struct moe_trace_step moe_trace_step(const struct moe_trace *t, uint32_t layer)
{
    const struct trace_layout *f = &t->layout;
    uint64_t row = (uint64_t)t->here * t->shape.n_layers + layer;
    const uint16_t *ids = t->ids + row * f->n_ids;
    const float *scores = t->scores + row * f->n_scores;
    struct moe_trace_step step = {0};
    if (!t->computed[row])
        return step;
    step.experts = ids;
    step.weights = scores;
    if (t->shape.keep > 0 && t->wanted_parts & MOE_TRACE_NEXT_BEST)
        step.scores = scores + f->router_scores;
    for (int i = 0; i < MOE_N_PREDICTORS; i++)
        if (t->shape.predictors & t->wanted_parts & 1u << i &&
            moe_trace_predicts(&t->shape, (enum moe_predictor)i, layer)) {
            step.predicted[i].experts = ids + f->predicted_ids[i];
            step.predicted[i].scores = scores + f->predicted_scores[i];
        }
    return step;
}

void moe_trace_rewind(struct moe_trace *t)
{
    t->at = t->first_tokens_at;
    t->frame = 0;
    t->met = (struct moe_trace_totals){0};
    t->n_tokens = t->n_prompt = t->first = t->here = 0;
    moe_trace_want(t, UINT32_MAX, 0, 0);
}

int moe_trace_check(struct moe_trace *t, struct moe_err *err)
{
    const struct moe_trace_token *token;
    int status;
    do
        status = moe_trace_next(t, &token, err);
    while (status == MOE_OK && token);
    moe_trace_rewind(t);
    return status;
}

void moe_trace_want(struct moe_trace *t, uint32_t parts, uint64_t first, uint32_t every)
{
    t->wanted_parts = parts;
    t->wanted_first = first;
    t->wanted_every = every;
}

/* The origins of a trace: the frame that says them. */

void trace_put_origins(const struct moe_origins *origins, struct moe_buf *raw)
{
    for (uint32_t i = 0; i < origins->n; i++) {
        const struct moe_origin *o = &origins->items[i];
        moe_buf_u64(raw, o->pack_fingerprint);
        moe_buf_u64(raw, o->options_fingerprint);
        moe_buf_u64(raw, o->documents);
        moe_buf_u32(raw, o->n_texts);
        moe_buf_u32(raw, o->shards.n);
        moe_buf_u32(raw, o->shards.n_held);
        moe_buf_u32(raw, 0);
        for (uint32_t t = 0; t < o->n_texts; t++)
            moe_buf_u64(raw, o->texts[t]);
        for (uint32_t s = 0; s < o->shards.n_held; s++)
            moe_buf_u32(raw, o->shards.held[s] + 1);
    }
}

static int take_origin(struct moe_trace *t, struct moe_cursor *c, struct moe_origin *o,
                       struct moe_err *err)
{
    o->pack_fingerprint = moe_cursor_u64(c);
    o->options_fingerprint = moe_cursor_u64(c);
    o->documents = moe_cursor_u64(c);
    uint32_t n_texts = moe_cursor_u32(c);
    o->shards.n = moe_cursor_u32(c);
    uint32_t n_held = moe_cursor_u32(c);
    if (moe_cursor_u32(c) != 0 || n_texts == 0 || n_texts > MOE_MAX_ORIGIN_TEXTS || n_held == 0 ||
        n_held > MOE_MAX_SHARDS || o->documents > MOE_MAX_ORIGIN_DOCUMENTS)
        return trace_damaged(t, err, "an origin with impossible numbers");
    if (8 * (uint64_t)n_texts + 4 * (uint64_t)n_held > moe_cursor_left(c))
        return trace_damaged(t, err, "an origin that is cut off");
    o->texts = moe_alloc(n_texts, sizeof *o->texts, err);
    o->shards.held = moe_alloc(n_held, sizeof *o->shards.held, err);
    if (!o->texts || !o->shards.held)
        return MOE_ERR_MEMORY;
    while (o->n_texts < n_texts)
        o->texts[o->n_texts++] = moe_cursor_u64(c);
    while (o->shards.n_held < n_held) /* 0 becomes too large a number */
        o->shards.held[o->shards.n_held++] = moe_cursor_u32(c) - 1;
    return MOE_OK;
}

int trace_take_origins(struct moe_trace *t, uint32_t n, struct moe_err *err)
{
    uint64_t stored;
    if (n == 0)
        return MOE_OK;
    MOE_TRY(trace_read_frame(t, TRACE_MAX_ORIGINS_BYTES, &stored, err));
    struct moe_cursor c = moe_cursor_over(t->raw.data, t->raw.size);
    t->origins.items = moe_alloc(n, sizeof *t->origins.items, err);
    if (!t->origins.items)
        return MOE_ERR_MEMORY;
    while (t->origins.n < n)
        MOE_TRY(take_origin(t, &c, &t->origins.items[t->origins.n++], err));
    const char *problem = moe_origins_problem(&t->origins);
    if (!problem && (c.failed || moe_cursor_left(&c) > 0))
        problem = "not as long as its origins";
    if (!problem && t->totals.sequences > moe_origins_documents(&t->origins))
        problem = "more sequences than its shards have documents";
    if (problem)
        return trace_damaged(t, err, problem);
    t->at += stored;
    return MOE_OK;
}

const struct moe_origins *moe_trace_origins(const struct moe_trace *t)
{
    return &t->origins;
}

/* ---- Excerpts ---- */

struct moe_excerpt moe_excerpt_of(const struct moe_trace *trace, uint64_t max_tokens)
{
    uint64_t tokens = moe_trace_totals(trace)->tokens;
    struct moe_excerpt e = {.max_tokens = max_tokens};
    if (max_tokens && tokens > max_tokens)
        e.every = (uint32_t)((tokens + max_tokens - 1) / max_tokens);
    if (e.every > moe_trace_totals(trace)->sequences)
        e.every = 0; /* a few long sequences */
    return e;
}

bool moe_excerpt_one(const struct moe_trace *trace, struct moe_excerpt e, uint32_t i,
                     struct moe_excerpt *one)
{
    const uint64_t all = moe_trace_totals(trace)->sequences, every = e.every ? e.every : 1;
    const uint64_t n = all > e.first ? (all - e.first + every - 1) / every : 0;
    const uint64_t taken = n < e.cold ? n : e.cold;
    if (i >= taken)
        return false;
    *one = e;
    one->cold = 0;
    one->warm = 0;
    one->first = e.first + i * n / taken * every;
    one->every = (uint32_t)all; /* the next is beyond the end */
    return true;
}

void moe_excerpt_begin(struct moe_trace *trace, struct moe_excerpt e, uint32_t parts)
{
    moe_trace_rewind(trace);
    moe_trace_want(trace, parts, e.first, e.every ? e.every : e.first ? 1 : 0);
}

static bool is_taken(const struct moe_excerpt *e, const struct moe_trace_token *t)
{
    return t->sequence >= e->first && (!e->every || (t->sequence - e->first) % e->every == 0) &&
           (!e->cut || t->index < e->cut);
}

int moe_excerpt_next(struct moe_trace *trace, struct moe_excerpt e, uint64_t *taken,
                     const struct moe_trace_token **token, struct moe_err *err)
{
    int status;
    *token = NULL;
    if (e.max_tokens && *taken == e.max_tokens)
        return MOE_OK;
    do
        status = moe_trace_next(trace, token, err);
    while (status == MOE_OK && *token && !is_taken(&e, *token));
    *taken += status == MOE_OK && *token;
    return status;
}
