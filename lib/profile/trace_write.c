/* Writing traces: tokens gathered into frames; continuing and merging files. */
#define _DEFAULT_SOURCE /* ftruncate */

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/par.h"
#include "profile/trace_internal.h"

/* NAN and negative numbers become 0, too large ones the largest half. */
static uint16_t to_half(float v)
{
    const float largest = 65504;
    return moe_f32_to_f16(!(v > 0) ? 0 : v < largest ? v : largest);
}

static bool is_among(const uint16_t *ids, uint32_t n, uint32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* The k experts with the largest values, except the n_without of `without`, falling; equal ones by
 * number. Always k different ones, for any values. */
static void pick_top(const float *values, uint32_t n, const uint16_t *without, uint32_t n_without,
                     uint32_t k, uint16_t *ids)
{
    uint32_t found = 0;
    for (uint32_t e = 0; e < n; e++) {
        if (found == k && (k == 0 || !(values[e] > values[ids[k - 1]])))
            continue;
        if (is_among(without, n_without, e))
            continue;
        uint32_t at = found < k ? found++ : k - 1;
        for (; at > 0 && values[e] > values[ids[at - 1]]; at--)
            ids[at] = ids[at - 1];
        ids[at] = (uint16_t)e;
    }
}

/* The softmax over all n values, of those kept. */
static void put_probabilities(const float *values, uint32_t n, const uint16_t *ids, uint32_t k,
                              uint16_t *scores)
{
    float sum = 0, best = values[ids[0]];
    for (uint32_t e = 0; e < n; e++)
        sum += expf(values[e] - best);
    for (uint32_t i = 0; i < k; i++)
        scores[i] = to_half(expf(values[ids[i]] - best) / sum);
}

struct put {
    struct moe_trace_writer *w;
    uint32_t layer, at; /* of the first row among the waiting tokens */
    const struct moe_layer_observation *seen;
    const float *router;
    uint64_t router_stride;
};

static void put_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct put *p = ctx;
    const struct moe_trace_shape *s = &p->w->shape;
    const struct trace_layout *f = &p->w->layout;
    uint32_t k = s->top_k, n = s->n_experts;
    for (uint64_t r = (uint64_t)begin; r < (uint64_t)end; r++) {
        uint64_t at = (p->at + r) * s->n_layers + p->layer;
        uint16_t *ids = p->w->waiting.ids + at * f->n_ids,
                 *scores = p->w->waiting.scores + at * f->n_scores;
        p->w->waiting.computed[at] = 1;
        for (uint32_t i = 0; i < k; i++) {
            ids[i] = (uint16_t)p->seen->chosen[r * k + i];
            scores[i] = to_half(p->seen->weights[r * k + i]);
        }
        if (s->keep > 0) {
            const float *router = p->router + r * p->router_stride;
            pick_top(router, n, ids, k, f->n_router - k, ids + k);
            for (uint32_t i = 0; i < f->n_router; i++)
                scores[f->router_scores + i] = to_half(router[ids[i]]);
        }
        for (int i = 0; i < MOE_N_PREDICTORS; i++) {
            if (!(s->predictors & 1u << i) || !p->seen->predicted[i] || s->is_static[p->layer])
                continue;
            const float *values = p->seen->predicted[i] + r * p->seen->stride;
            uint16_t *best = ids + f->predicted_ids[i];
            pick_top(values, n, NULL, 0, s->keep, best);
            put_probabilities(values, n, best, s->keep, scores + f->predicted_scores[i]);
        }
    }
}

void moe_trace_put_ids(struct moe_trace_writer *w, uint32_t first, uint32_t n, const uint32_t *ids)
{
    for (uint32_t i = 0; w->shape.has_ids && i < n; i++)
        w->waiting.tokens[first - w->first + i] = ids[i];
}

void moe_trace_put(struct moe_trace_writer *w, uint32_t layer, uint32_t first, uint32_t n,
                   const struct moe_layer_observation *seen, const float *router,
                   uint64_t router_stride)
{
    struct put p = {w, layer, first - w->first, seen, router, router_stride};
    moe_par_for(n, 4, put_range, &p);
}

/* Writing a trace: tokens gathered until they fill a frame; the header last of all. */

enum {
    ZSTD_LEVEL = 3,
    ZSTD_BYTES = 2 << 20, /* of its context at this level: 1.3 MB for any frame */
};

static void writer_free(struct moe_trace_writer *w)
{
    moe_buf_release(&w->raw);
    moe_buf_release(&w->stored);
    ZSTD_freeCCtx(w->zstd);
    free(w->block);
    free(w);
}

/* ---- Frames ---- */

/* Compresses and writes w->raw. */
static int write_frame(struct moe_trace_writer *w, struct moe_err *err)
{
    uint64_t bound = ZSTD_compressBound(w->raw.size);
    moe_buf_clear(&w->stored);
    uint8_t *frame = moe_buf_reserve(&w->stored, TRACE_FRAME_HEAD_BYTES + bound);
    if (!frame || w->raw.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", w->file.path);
    size_t n = ZSTD_compressCCtx(w->zstd, frame + TRACE_FRAME_HEAD_BYTES, bound, w->raw.data,
                                 w->raw.size, ZSTD_LEVEL);
    if (ZSTD_isError(n))
        return moe_fail(err, MOE_ERR_MEMORY, "%s: zstd: %s", w->file.path, ZSTD_getErrorName(n));
    moe_put_u32(frame + 8, (uint32_t)n);
    moe_put_u32(frame + 12, (uint32_t)w->raw.size);
    moe_put_u64(frame, moe_hash64(frame + 8, TRACE_FRAME_HEAD_BYTES - 8 + n));
    MOE_TRY(moe_outfile_write(&w->file, frame, TRACE_FRAME_HEAD_BYTES + n, w->at, err));
    w->at += TRACE_FRAME_HEAD_BYTES + n;
    return MOE_OK;
}

static int write_description(struct moe_trace_writer *w, struct moe_err *err)
{
    const struct moe_trace_shape *s = &w->shape;
    if (s->n_variants == 0)
        return MOE_OK;
    for (uint32_t v = 0; v < s->n_variants; v++) {
        char name[MOE_NAME_BYTES] = {0};
        strncpy(name, s->variants[v], sizeof name - 1);
        moe_buf_append(&w->raw, name, sizeof name);
    }
    for (uint64_t i = 0; i < (uint64_t)s->n_variants * s->n_layers * s->n_experts; i++)
        moe_buf_u64(&w->raw, s->expert_bytes[i]);
    return write_frame(w, err);
}

/* Which layers choose by the token. */
static int write_static(struct moe_trace_writer *w, struct moe_err *err)
{
    moe_buf_clear(&w->raw);
    moe_buf_append(&w->raw, w->shape.is_static, w->shape.n_layers);
    return write_frame(w, err);
}

/* One byte of the ids of the first n tokens. */
static void put_ids(struct moe_trace_writer *w, uint32_t n, int shift)
{
    for (uint32_t t = 0; t < n; t++)
        moe_buf_u8(&w->raw, (uint8_t)(w->waiting.tokens[t] >> shift));
}

/* One byte of each of a column's values, over the first n tokens. */
static void put_plane(struct moe_trace_writer *w, const struct trace_column *c, uint32_t n,
                      int shift)
{
    uint32_t width = c->is_ids ? w->layout.n_ids : w->layout.n_scores, layers = w->shape.n_layers;
    const uint16_t *values = c->is_ids ? w->waiting.ids : w->waiting.scores;
    if (c->first_layer >= layers)
        return;
    uint64_t bytes = (uint64_t)(layers - c->first_layer) * n * c->n;
    uint8_t *to = moe_buf_reserve(&w->raw, bytes);
    if (!to)
        return;
    w->raw.size += bytes;
    for (uint32_t layer = c->first_layer; layer < layers; layer++)
        for (uint32_t t = 0; t < n; t++) {
            const uint16_t *from = values + ((uint64_t)t * layers + layer) * width + c->at;
            for (uint32_t i = 0; i < c->n; i++)
                *to++ = (uint8_t)(from[i] >> shift);
        }
}

/* Writes the first n of the waiting tokens and moves up the rest. */
static int write_tokens(struct moe_trace_writer *w, uint32_t n, struct moe_err *err)
{
    const struct trace_layout *f = &w->layout;
    uint64_t layers = w->shape.n_layers, left = w->n_tokens - n;
    uint32_t prompt = w->n_prompt <= w->first       ? 0
                      : w->n_prompt - w->first >= n ? n
                                                    : w->n_prompt - w->first;
    moe_buf_clear(&w->raw);
    moe_buf_u32(&w->raw, (uint32_t)(w->totals.sequences - 1));
    moe_buf_u32(&w->raw, w->first);
    moe_buf_u32(&w->raw, n);
    moe_buf_u32(&w->raw, prompt);
    for (uint32_t layer = 0; layer < layers; layer++)
        for (uint32_t t = 0; t < n; t++)
            moe_buf_u8(&w->raw, w->waiting.computed[t * layers + layer]);
    for (int shift = 0; w->shape.has_ids && shift < 8 * TRACE_TOKEN_ID_BYTES; shift += 8)
        put_ids(w, n, shift);
    for (uint32_t i = 0; i < f->n_columns; i++) {
        const struct trace_column *c = &f->columns[i];
        put_plane(w, c, n, 0);
        if (!c->is_ids || f->id_bytes == 2)
            put_plane(w, c, n, 8);
    }
    memmove(w->waiting.computed, w->waiting.computed + n * layers, left * layers);
    if (w->shape.has_ids)
        memmove(w->waiting.tokens, w->waiting.tokens + n, left * sizeof *w->waiting.tokens);
    memmove(w->waiting.ids, w->waiting.ids + n * layers * f->n_ids,
            left * layers * f->n_ids * sizeof *w->waiting.ids);
    memmove(w->waiting.scores, w->waiting.scores + n * layers * f->n_scores,
            left * layers * f->n_scores * sizeof *w->waiting.scores);
    w->first += n;
    w->n_tokens -= n;
    return write_frame(w, err);
}

/* ---- Tokens ---- */

/* Places the arrays of waiting tokens in an arena, which may only count. */
static void place_tokens(struct trace_tokens *t, struct moe_arena *arena,
                         const struct trace_layout *f, const struct moe_trace_shape *shape,
                         uint64_t room)
{
    uint64_t layers = shape->n_layers;
    t->tokens = shape->has_ids ? moe_arena_take(arena, room, sizeof *t->tokens) : NULL;
    t->computed = moe_arena_take(arena, room * layers, sizeof *t->computed);
    t->ids = moe_arena_take(arena, room * layers, f->n_ids * sizeof *t->ids);
    t->scores = moe_arena_take(arena, room * layers, f->n_scores * sizeof *t->scores);
}

/* Makes room for n tokens: a larger block replaces the old one. */
static int make_room(struct moe_trace_writer *w, uint64_t n, struct moe_err *err)
{
    const struct trace_layout *f = &w->layout;
    uint64_t layers = w->shape.n_layers, in_use = w->n_tokens * layers;
    struct trace_tokens larger, *old = &w->waiting;
    struct moe_arena arena = {0};
    if (n <= w->room)
        return MOE_OK;
    place_tokens(&larger, &arena, f, &w->shape, n);
    uint8_t *block = n > UINT32_MAX || arena.overflowed ? NULL : moe_alloc(arena.used, 1, err);
    if (!block)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory for %" PRIu64 " tokens",
                        w->file.path, n);
    arena = (struct moe_arena){.base = block, .size = arena.used};
    place_tokens(&larger, &arena, f, &w->shape, n);
    if (in_use) {
        if (w->shape.has_ids)
            memcpy(larger.tokens, old->tokens, w->n_tokens * sizeof *old->tokens);
        memcpy(larger.computed, old->computed, in_use);
        memcpy(larger.ids, old->ids, in_use * f->n_ids * sizeof *old->ids);
        memcpy(larger.scores, old->scores, in_use * f->n_scores * sizeof *old->scores);
    }
    free(w->block);
    w->block = block;
    w->waiting = larger;
    w->room = (uint32_t)n;
    return MOE_OK;
}

/* Tokens that wait at most when `most` are added: less than a frame, and these. */
static uint64_t room_for(const struct trace_layout *f, uint32_t most)
{
    return (uint64_t)f->frame_tokens - 1 + most;
}

static uint64_t largest_frame(const struct moe_trace_shape *shape, const struct trace_layout *f)
{
    uint64_t tokens = TRACE_TOKENS_HEAD_BYTES + f->frame_tokens * f->token_bytes;
    uint64_t description = trace_description_bytes(shape);
    return tokens > description ? tokens : description;
}

uint64_t moe_trace_writer_bytes(const struct moe_trace_shape *shape, uint32_t most)
{
    struct trace_layout f = trace_layout_of(shape);
    struct trace_tokens waiting;
    struct moe_arena arena = {0};
    place_tokens(&waiting, &arena, &f, shape, room_for(&f, most));
    uint64_t raw = largest_frame(shape, &f),
             stored = TRACE_FRAME_HEAD_BYTES + ZSTD_compressBound(raw);
    return arena.overflowed ? UINT64_MAX
                            : arena.used + moe_buf_room(raw) + moe_buf_room(stored) + ZSTD_BYTES;
}

int moe_trace_reserve(struct moe_trace_writer *w, uint32_t most, struct moe_err *err)
{
    uint64_t raw = largest_frame(&w->shape, &w->layout);
    moe_buf_clear(&w->raw);
    moe_buf_clear(&w->stored);
    if (!moe_buf_reserve(&w->raw, raw) ||
        !moe_buf_reserve(&w->stored, TRACE_FRAME_HEAD_BYTES + ZSTD_compressBound(raw)))
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", w->file.path);
    return make_room(w, room_for(&w->layout, most), err);
}

int moe_trace_begin(struct moe_trace_writer *w, struct moe_err *err)
{
    int status = MOE_OK;
    while (w->n_tokens > 0 && status == MOE_OK)
        status = write_tokens(
            w, w->n_tokens < w->layout.frame_tokens ? w->n_tokens : w->layout.frame_tokens, err);
    w->first = w->n_prompt = 0;
    return status;
}

int moe_trace_add(struct moe_trace_writer *w, uint32_t n, uint32_t n_prompt, struct moe_err *err)
{
    uint64_t so_far = (uint64_t)w->first + w->n_tokens, layers = w->shape.n_layers;
    if (n_prompt > n || (n_prompt > 0 && so_far > w->n_prompt) || so_far + n > UINT32_MAX ||
        w->totals.sequences >= UINT32_MAX)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a prompt after decoded tokens, or more tokens than a trace can have",
                        w->file.path);
    if (so_far == 0 && n > 0)
        w->totals.sequences++;
    while (w->n_tokens >= w->layout.frame_tokens)
        MOE_TRY(write_tokens(w, w->layout.frame_tokens, err));
    MOE_TRY(make_room(w, (uint64_t)w->n_tokens + n, err));
    if (w->shape.has_ids)
        memset(w->waiting.tokens + w->n_tokens, 0, n * sizeof *w->waiting.tokens);
    memset(w->waiting.computed + w->n_tokens * layers, 0, n * layers);
    memset(w->waiting.ids + w->n_tokens * layers * w->layout.n_ids, 0,
           n * layers * w->layout.n_ids * sizeof *w->waiting.ids);
    memset(w->waiting.scores + w->n_tokens * layers * w->layout.n_scores, 0,
           n * layers * w->layout.n_scores * sizeof *w->waiting.scores);
    w->n_tokens += n;
    w->n_prompt += n_prompt;
    w->totals.tokens += n;
    w->totals.prompt_tokens += n_prompt;
    return MOE_OK;
}

/* ---- Beginning and end ---- */

static int write_header(struct moe_trace_writer *w, struct moe_err *err)
{
    const struct moe_trace_shape *s = &w->shape;
    struct moe_buf *b = &w->raw;
    moe_buf_clear(b);
    moe_buf_append(b, TRACE_MAGIC, 4);
    moe_buf_u32(b, MOE_TRACE_VERSION);
    moe_buf_u64(b, w->at);
    moe_buf_u64(b, s->source_fingerprint);
    moe_buf_u32(b, s->n_layers);
    moe_buf_u32(b, s->n_experts);
    moe_buf_u32(b, s->top_k);
    moe_buf_u32(b, s->keep);
    moe_buf_u32(b, s->predictors);
    moe_buf_u32(b, s->n_variants);
    moe_buf_u64(b, w->totals.sequences);
    moe_buf_u64(b, w->totals.tokens);
    moe_buf_u64(b, w->totals.prompt_tokens);
    moe_buf_u32(b, w->n_origins);
    moe_buf_u32(b, s->n_encoder);
    moe_buf_u32(b, s->has_ids);
    moe_buf_u32(b, s->loop.begin | s->loop.n << 10 | s->loop.passes << 20);
    while (b->size < TRACE_CHECKSUM_AT && !b->failed)
        moe_buf_u8(b, 0);
    if (!b->failed)
        moe_buf_u64(b, moe_hash64(b->data, b->size));
    if (b->failed)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", w->file.path);
    return moe_outfile_write(&w->file, b->data, b->size, 0, err);
}

static int new_writer(struct moe_trace_writer **out, const char *path,
                      const struct moe_trace_shape *shape,
                      int (*open)(struct moe_outfile *, const char *, struct moe_err *),
                      struct moe_err *err)
{
    struct moe_trace_writer *w = *out = moe_alloc(1, sizeof *w, err);
    if (!w)
        return MOE_ERR_MEMORY;
    w->at = TRACE_HEADER_BYTES;
    w->shape = *shape;
    w->layout = trace_layout_of(shape);
    w->zstd = ZSTD_createCCtx();
    int status = w->zstd ? open(&w->file, path, err)
                         : moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory for zstd", path);
    if (status != MOE_OK) {
        writer_free(w);
        *out = NULL;
    }
    return status;
}

/* A writer of the file at `path`, which has its beginning; the rest of the writer is the caller's
 * to set. */
static int trace_writer_continue(struct moe_trace_writer **out, const char *path,
                                 const struct moe_trace_shape *shape, struct moe_err *err)
{
    MOE_TRY(new_writer(out, path, shape, moe_outfile_continue, err));
    (*out)->shape.expert_bytes = NULL;
    return MOE_OK;
}

int moe_trace_create(struct moe_trace_writer **out, const char *path,
                     const struct moe_trace_shape *shape, struct moe_err *err)
{
    const char *problem = trace_shape_problem(shape);
    *out = NULL;
    if (problem)
        return moe_fail(err, MOE_ERR_USAGE, "%s: %s", path, problem);
    int status = new_writer(out, path, shape, moe_outfile_open, err);
    if (status != MOE_OK)
        return status;
    struct moe_trace_writer *w = *out;
    status = write_description(w, err);
    if (status == MOE_OK)
        status = write_static(w, err);
    w->shape.expert_bytes = NULL;
    if (status != MOE_OK) {
        moe_trace_abort(w);
        *out = NULL;
    }
    return status;
}

int moe_trace_set_origins(struct moe_trace_writer *w, const struct moe_origins *origins,
                          struct moe_err *err)
{
    w->n_origins = origins->n;
    if (origins->n == 0)
        return MOE_OK;
    moe_buf_clear(&w->raw);
    trace_put_origins(origins, &w->raw);
    if (w->raw.size > TRACE_MAX_ORIGINS_BYTES)
        return moe_fail(err, MOE_ERR_USAGE, "%s: too many texts and shards for a trace",
                        w->file.path);
    return write_frame(w, err);
}

/* For merging: writes a frame of tokens, before compression, of a next sequence (`first`) or the
 * same one. */
static int trace_write_frame(struct moe_trace_writer *w, const struct moe_buf *raw, bool first,
                             struct moe_err *err)
{
    if (first && w->totals.sequences == UINT32_MAX)
        return moe_fail(err, MOE_ERR_USAGE, "%s: more sequences than a trace can have",
                        w->file.path);
    w->totals.sequences += first;
    w->totals.tokens += moe_get_u32(raw->data + 8);
    w->totals.prompt_tokens += moe_get_u32(raw->data + 12);
    moe_buf_clear(&w->raw);
    moe_buf_append(&w->raw, raw->data, raw->size);
    if (!w->raw.failed)
        moe_put_u32(w->raw.data, (uint32_t)(w->totals.sequences - 1));
    return write_frame(w, err);
}

int moe_trace_save(struct moe_trace_writer *w, struct moe_err *err)
{
    MOE_TRY(moe_trace_begin(w, err));
    /* what the header counts must be there before it */
    MOE_TRY(moe_outfile_sync(&w->file, err));
    MOE_TRY(write_header(w, err));
    return moe_outfile_publish(&w->file, err);
}

int moe_trace_commit(struct moe_trace_writer *w, struct moe_err *err)
{
    int status = moe_trace_begin(w, err);
    if (status == MOE_OK)
        status = write_header(w, err);
    status = moe_outfile_end(&w->file, status, err);
    writer_free(w);
    return status;
}

void moe_trace_abort(struct moe_trace_writer *w)
{
    if (!w)
        return;
    moe_outfile_abort(&w->file);
    writer_free(w);
}

/* Going on with a trace that a run saved on the way, after the documents that it is known to hold.
 */

/* Reads up to the end of what the totals count, and checks it. */
static int find_end(struct moe_trace *t, const struct moe_trace_totals *until, struct moe_err *err)
{
    moe_trace_rewind(t);
    while (t->met.sequences < until->sequences || t->met.tokens < until->tokens) {
        if (t->at == t->file_bytes)
            return moe_fail(err, MOE_ERR_USAGE, "%s: holds fewer documents than it should",
                            t->path);
        MOE_TRY(trace_read_tokens(t, err));
    }
    if (t->met.sequences != until->sequences || t->met.tokens != until->tokens)
        return moe_fail(err, MOE_ERR_USAGE, "%s: holds other documents than it should", t->path);
    return MOE_OK;
}

int moe_trace_continue(struct moe_trace_writer **out, struct moe_trace *from,
                       const struct moe_trace_shape *shape, const struct moe_trace_totals *until,
                       struct moe_err *err)
{
    char text[128];
    *out = NULL;
    if (!trace_same_shape(shape, &from->shape))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a trace of another model or with other scores cannot go on here",
                        from->path);
    int status = find_end(from, until, err);
    if (status == MOE_OK)
        status = trace_writer_continue(out, from->path, shape, err);
    if (status != MOE_OK)
        return status;
    struct moe_trace_writer *w = *out;
    w->at = from->at;
    w->totals = from->met;
    w->n_origins = from->origins.n;
    if (ftruncate(w->file.fd, (off_t)w->at) != 0) {
        status = moe_fail(err, MOE_ERR_IO, "%s: cannot be cut to %" PRIu64 " bytes: %s", from->path,
                          w->at, moe_errno_text(errno, text, sizeof text));
        moe_trace_abort(w);
        *out = NULL;
    }
    return status;
}

/*
 * Merging traces by their origins: documents come in the order of one run, each from the trace of
 * its shard.
 */

struct merging {
    uint32_t n;
    struct moe_trace **traces; /* [n] in front of the sequence that comes next */
    struct moe_origins origins;
    struct moe_trace_writer *writer;
};

/* All of it is read once; what follows needs no more than its frames. */
static int check_trace(struct moe_trace *t, struct moe_err *err)
{
    uint64_t all = moe_origins_documents(&t->origins);
    if (t->origins.n == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: is imported and does not say which texts it is from, so it cannot be "
                        "merged",
                        t->path);
    if (t->totals.sequences != all)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: was left by an interrupted run, with %" PRIu64 " of %" PRIu64
                        " documents; --resume finishes it",
                        t->path, t->totals.sequences, all);
    int status = moe_trace_check(t, err);
    trace_release_room(t);
    return status;
}

static int open_one(struct merging *m, const char *path, struct moe_err *err)
{
    struct moe_trace *t;
    MOE_TRY(moe_trace_open(&t, path, err));
    m->traces[m->n++] = t;
    moe_origins_name(&t->origins, t->path);
    MOE_TRY(check_trace(t, err));
    if (!trace_same_shape(&t->shape, &m->traces[0]->shape))
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: is of another model than %s, or has other scores or sizes of experts",
                        path, m->traces[0]->path);
    if (moe_origins_join(&m->origins, &t->origins, err) != MOE_OK)
        return moe_err_prefix(err, "%s", path);
    return MOE_OK;
}

/* Copies the frames of a trace's next sequence under a new number. */
static int copy_sequence(struct moe_trace *t, struct moe_trace_writer *w, struct moe_err *err)
{
    uint32_t n = t->layout.frame_tokens, sequence = 0;
    int status = MOE_OK;
    for (bool first = true; n == t->layout.frame_tokens && t->at < t->file_bytes; first = false) {
        uint64_t stored;
        status = trace_read_frame(
            t, TRACE_TOKENS_HEAD_BYTES + t->layout.frame_tokens * t->layout.token_bytes, &stored,
            err);
        if (status != MOE_OK)
            break;
        if (first)
            sequence = moe_get_u32(t->raw.data);
        else if (moe_get_u32(t->raw.data) != sequence)
            break;
        n = moe_get_u32(t->raw.data + 8);
        t->at += stored;
        status = trace_write_frame(w, &t->raw, first, err);
        if (status != MOE_OK)
            break;
    }
    moe_buf_release(&t->raw);
    moe_buf_release(&t->stored);
    return status;
}

/* The documents of an origin, each from the trace that holds its shard. */
static int copy_documents(struct merging *m, const struct moe_origin *whole, struct moe_err *err)
{
    struct moe_trace **holds = NULL; /* [n_shards] */
    uint32_t n_shards = 0;
    int status = MOE_OK;
    for (uint32_t i = 0; i < m->n && status == MOE_OK; i++) {
        const struct moe_origin *o = moe_origins_find(&m->traces[i]->origins, whole);
        if (o && !holds) {
            n_shards = o->shards.n;
            holds = moe_alloc(n_shards, sizeof *holds, err);
            status = holds ? MOE_OK : MOE_ERR_MEMORY;
        }
        for (uint32_t s = 0; o && holds && s < o->shards.n_held; s++)
            holds[o->shards.held[s]] = m->traces[i];
    }
    for (uint64_t d = 0; d < whole->documents && status == MOE_OK; d++)
        if (holds[d % n_shards])
            status = copy_sequence(holds[d % n_shards], m->writer, err);
    free(holds);
    return status;
}

static int write_all(struct merging *m, const char *to, struct moe_err *err)
{
    int status;
    MOE_STEP(moe_trace_create(&m->writer, to, &m->traces[0]->shape, err));
    MOE_STEP(moe_trace_set_origins(m->writer, &m->origins, err));
    for (uint32_t i = 0; i < m->origins.n; i++)
        MOE_STEP(copy_documents(m, &m->origins.items[i], err));
out:
    if (status == MOE_OK)
        return moe_trace_commit(m->writer, err);
    moe_trace_abort(m->writer);
    return status;
}

int moe_trace_merge(const char *const *paths, uint32_t n, const char *to, bool partial,
                    struct moe_err *err)
{
    struct merging m = {.traces = moe_alloc(n, sizeof *m.traces, err)};
    int status;
    MOE_STEP(m.traces ? MOE_OK : MOE_ERR_MEMORY);
    for (uint32_t i = 0; i < n; i++)
        MOE_STEP(open_one(&m, paths[i], err));
    MOE_STEP(moe_origins_check(&m.origins, partial, err));
    MOE_STEP(write_all(&m, to, err));
out:
    while (m.n > 0)
        moe_trace_close(m.traces[--m.n]);
    moe_origins_release(&m.origins);
    free(m.traces);
    return status;
}
