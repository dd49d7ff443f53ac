/* Reading a trace: with trace_open.c the one place that turns its untrusted bytes into steps. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/file.h"
#include "base/float16.h"
#include "base/hash.h"
#include "base/mem.h"
#include "trace/trace_reader.h"

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
    int status = moe_file_pread(t->fd, t->path, head, sizeof head, t->at, err);
    if (status != MOE_OK)
        return status;
    uint64_t n = moe_get_u32(head + 8), raw_bytes = moe_get_u32(head + 12);
    if (n > left - sizeof head || raw_bytes > max_raw_bytes || n > ZSTD_compressBound(raw_bytes))
        return trace_damaged(t, err, "absurd size");
    moe_buf_clear(&t->stored);
    moe_buf_clear(&t->raw);
    uint8_t *frame = moe_buf_reserve(&t->stored, 8 + n), *raw = moe_buf_reserve(&t->raw, raw_bytes);
    if (!frame || !raw)
        return moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory for a frame", t->path);
    memcpy(frame, head + 8, 8);
    status = moe_file_pread(t->fd, t->path, frame + 8, n, t->at + sizeof head, err);
    if (status != MOE_OK)
        return status;
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
            layer >= moe_trace_first_layer((enum moe_predictor)i)) {
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

int trace_read_tokens(struct moe_trace *t, struct moe_err *err)
{
    const struct trace_layout *f = &t->layout;
    uint64_t stored, layers = t->shape.n_layers;
    int status = trace_read_frame(t, TRACE_TOKENS_HEAD_BYTES + f->frame_tokens * f->token_bytes,
                                  &stored, err);
    if (status != MOE_OK)
        return status;
    struct moe_cursor c = moe_cursor_over(t->raw.data, t->raw.size);
    uint64_t sequence = moe_cursor_u32(&c);
    uint32_t first = moe_cursor_u32(&c), n = moe_cursor_u32(&c), n_prompt = moe_cursor_u32(&c);
    uint32_t so_far = t->first + t->n_tokens; /* of the sequence before this frame */
    bool goes_on = t->met.sequences > 0 && sequence == t->met.sequences - 1 && first == so_far;
    bool is_next = sequence == t->met.sequences && first == 0;
    if (n == 0 || n > f->frame_tokens || first > UINT32_MAX - n ||
        t->raw.size != TRACE_TOKENS_HEAD_BYTES + n * f->token_bytes)
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
    t->met = (struct moe_trace_totals){0};
    t->n_tokens = t->n_prompt = t->first = t->here = 0;
    moe_trace_want(t, UINT32_MAX, 0, 0);
}

void moe_trace_want(struct moe_trace *t, uint32_t parts, uint64_t first, uint32_t every)
{
    t->wanted_parts = parts;
    t->wanted_first = first;
    t->wanted_every = every;
}
