/*
 * Hyper-connections (DeepSeek-V4, Hy4): a residual stream that is n_streams side by side. A block's
 * matrix makes of all streams x, under one norm without weights, numbers r for each of them; with
 * its biases b and scales a, e for stream_eps:
 *
 *   in[i]     = sigmoid(r * a[0] + b) + e: the block takes in the sum of in[i] * x[i]
 *   out[i]    = stream_magnitude * sigmoid(r * a[1] + b)
 *   each[i][k]: rows are softmax(r * a[2] + b) + e, then columns are divided by their sum + e, and
 *             stream_rounds - 1 times rows and columns in turn (Sinkhorn and Knopp)
 *   behind it x[k] = out[k] * (the block's output) + sum of each[i][k] * x[i]
 *
 * With 0 rounds out[i] is that + e, and each[i][k] is 1 where i is k, else 0.
 *
 * Residual attention (Kimi-K3): streams are those that were kept, and the present one, which is the
 * last and alone changes; the block's output is added to it or begins the next one.
 *
 *   in[i]  = softmax over i of the sum of scores * norm(x[i])
 *
 * With stream_normed (Inkling-2) that sum is divided by the root of hidden, and the block takes in
 * in[i] * norm(x[i]), without weights of the norm; of a single stream, what it is.
 *
 * Layers that are visited several times (base/loop.h, Inkling-2 Mini): when a pass through them is
 * over, the streams that it began are put aside, y, and the next one begins with the others. What a
 * block takes in there, and each of what queries, keys and values take in, x, becomes
 *
 *   (1 - tanh(f)) * x + tanh(g) * m, before its norm, where
 *   m = the sum of in[i] * norm(y[i]) by scores of its own, as with stream_normed
 *   f and g: products of a vector that is a product of norm(x) and norm(m), side by side
 *
 * Gated streams (Qwen4): every stream has a norm of its own, n[i]. Of all of these, side by side,
 * a matrix makes numbers r, and two others, with silu of the first one's numbers / n_streams
 * between them, a gate g for each value:
 *
 *   the block takes in 1 / n_streams * sum of sigmoid(g[i]) * n[i], without another norm
 *   out[i] = stream_magnitude * sigmoid(r[i] / n_streams); behind it x[k] += out[k] * its output
 *
 * Sums go by rising i, or by rising k, each product and sum rounded. Behind the last layer the head
 * takes the sum of in[i] * x[i], or the mean of streams (stream_mean, GLM-5.3).
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "infer/cpu_stages.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/config.h"

struct mix {
    const struct moe_session *s;
    const struct moe_streams_mix *by;
    uint32_t first, n_streams;
};

static float *streams_of(const struct moe_session *s, uint64_t row)
{
    const struct cpu_streams *st = &((struct cpu_work *)s->device)->streams;
    return st->streams + row * st->stride;
}

void stages_cpu_streams_begin(struct moe_session *s, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    uint32_t n = moe_config_streams_before(c, 0);
    for (uint32_t i = 0; i < n_rows; i++) {
        memset(streams_of(s, i), 0, moe_config_state_width(c) * sizeof(float));
        for (uint32_t k = 0; k < n; k++)
            memcpy(streams_of(s, i) + (uint64_t)k * c->hidden, s->states.h + i * s->states.stride,
                   c->hidden * sizeof(float));
    }
}

void stages_cpu_streams_set(struct moe_session *s, uint32_t n_rows, const float *states)
{
    uint64_t width = moe_config_state_width(&s->model->config);
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(streams_of(s, i), states + i * width, width * sizeof(float));
}

void stages_cpu_streams_get(const struct moe_session *s, uint32_t n_rows, float *states)
{
    uint64_t width = moe_config_state_width(&s->model->config);
    for (uint32_t i = 0; i < n_rows; i++)
        memcpy(states + i * width, streams_of(s, i), width * sizeof(float));
}

/* What a norm without weights multiplies x by. */
static float norm_factor(const float *x, uint32_t n, float eps)
{
    float lane[MOE_LANES] = {0};
    for (uint32_t d = 0; d < n; d++)
        lane[d % MOE_LANES] = fmaf(x[d], x[d], lane[d % MOE_LANES]);
    return moe_math_rms_scale(moe_math_join(lane), n, eps);
}

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct mix *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)m->s->device)->streams;
    uint32_t width = c->n_streams * c->hidden;
    for (int64_t i = begin; i < end; i++) {
        const float *x = streams_of(m->s, m->first + (uint64_t)i);
        float *to = st->normed + (uint64_t)i * st->normed_stride;
        memcpy(to, x, width * sizeof *to);
        moe_kern.scale(norm_factor(x, width, c->norm_eps), width, to);
    }
}

static void divide_rows(uint32_t n, float eps, float *each)
{
    for (uint32_t i = 0; i < n; i++) {
        float sum = 0;
        for (uint32_t k = 0; k < n; k++)
            sum += each[i * n + k];
        for (uint32_t k = 0; k < n; k++)
            each[i * n + k] /= sum + eps;
    }
}

static void divide_columns(uint32_t n, float eps, float *each)
{
    for (uint32_t k = 0; k < n; k++) {
        float sum = 0;
        for (uint32_t i = 0; i < n; i++)
            sum += each[i * n + k];
        for (uint32_t i = 0; i < n; i++)
            each[i * n + k] /= sum + eps;
    }
}

/* A row's numbers become in, out and each. */
static void finish_mix(const struct moe_config *c, const struct moe_streams_mix *by, float *mix)
{
    uint32_t n = c->n_streams;
    float eps = c->stream_eps, *each = mix + 2 * n;
    for (uint32_t i = 0; i < n; i++)
        mix[i] = moe_math_sigmoid(mix[i] * by->scale[0] + by->bias[i]) + eps;
    if (by->of.rows == n) /* behind the last layer */
        return;
    for (uint32_t i = n; i < 2 * n; i++)
        mix[i] = c->stream_magnitude * moe_math_sigmoid(mix[i] * by->scale[1] + by->bias[i]) +
                 (c->stream_rounds ? 0 : eps);
    if (c->stream_rounds == 0)
        return;
    for (uint32_t i = 0; i < n * n; i++)
        each[i] = each[i] * by->scale[2] + by->bias[2 * n + i];
    for (uint32_t i = 0; i < n; i++)
        moe_kern.softmax(each + i * n, n);
    for (uint32_t i = 0; i < n * n; i++)
        each[i] += eps;
    divide_columns(n, eps, each);
    for (uint32_t round = 1; round < c->stream_rounds; round++) {
        divide_rows(n, eps, each);
        divide_columns(n, eps, each);
    }
}

/* A row's streams under their norms. */
static void norm_each(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct mix *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)m->s->device)->streams;
    for (int64_t i = begin; i < end; i++)
        for (uint64_t k = 0, at = 0; k < c->n_streams; k++, at += c->hidden)
            moe_kern.rms_norm(streams_of(m->s, m->first + (uint64_t)i) + at, m->by->norm + at,
                              c->hidden, c->norm_eps,
                              st->normed + (uint64_t)i * st->normed_stride + at);
}

static void silu_gates(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct mix *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)m->s->device)->streams;
    for (int64_t i = begin; i < end; i++) {
        float *low = st->low + (uint64_t)i * st->low_stride;
        moe_kern.scale(1 / (float)c->n_streams, c->stream_rank, low);
        moe_kern.silu(low, c->stream_rank, low);
    }
}

static void take_in_gated(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct mix *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)m->s->device)->streams;
    uint32_t n = c->n_streams;
    for (int64_t i = begin; i < end; i++) {
        const float *normed = st->normed + (uint64_t)i * st->normed_stride;
        const float *gates = st->gates + (uint64_t)i * st->normed_stride;
        float *mix = st->mix + (uint64_t)i * st->mix_stride;
        float *h = m->s->states.h + (m->first + (uint64_t)i) * m->s->states.stride;
        for (uint32_t k = 0; m->by->of.data && k < n; k++)
            mix[n + k] = c->stream_magnitude * moe_math_sigmoid(mix[k] / (float)n);
        memset(h, 0, c->hidden * sizeof *h);
        for (uint64_t k = 0, at = 0; k < n; k++, at += c->hidden)
            for (uint32_t d = 0; d < c->hidden; d++)
                h[d] += moe_math_sigmoid(gates[at + d]) * normed[at + d];
        moe_kern.scale(1 / (float)n, c->hidden, h);
    }
}

static void gated_in(struct mix *m, struct cpu_streams *st, uint32_t n)
{
    const struct moe_config *c = &m->s->model->config;
    moe_par_for(n, 8, norm_each, m);
    moe_inputs_set(&st->from_all, st->normed, st->normed_stride, NULL, n, c->n_streams * c->hidden);
    struct moe_mm mm[2] = {moe_inputs_mm(&st->from_all, m->by->down, st->low, st->low_stride)};
    if (m->by->of.data) /* not behind the last layer */
        mm[1] = moe_inputs_mm(&st->from_all, m->by->of, st->mix, st->mix_stride);
    moe_matmul(mm, m->by->of.data ? 2 : 1);
    moe_par_for(n, 8, silu_gates, m);
    moe_inputs_set(&st->from_low, st->low, st->low_stride, NULL, n, c->stream_rank);
    mm[0] = moe_inputs_mm(&st->from_low, m->by->up, st->gates, st->normed_stride);
    moe_matmul(mm, 1);
    moe_par_for(n, 8, take_in_gated, m);
}

/* in of residual attention: of n streams, by their scores. normed: [hidden] room. */
static void score_streams(const struct moe_config *c, const float *x, const float *scores,
                          uint32_t n, float *normed, float *mix)
{
    float factor = c->stream_normed ? 1 / sqrtf((float)c->hidden) : 1;
    float eps = c->stream_normed ? c->stream_eps : c->norm_eps;
    for (uint32_t k = 0; k < n; k++) {
        float lane[MOE_LANES] = {0};
        moe_kern.rms_norm(x + (uint64_t)k * c->hidden, scores, c->hidden, eps, normed);
        for (uint32_t d = 0; d < c->hidden; d++)
            lane[d % MOE_LANES] += normed[d];
        mix[k] = moe_math_join(lane) * factor;
    }
    moe_kern.softmax(mix, n);
}

static void score_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct mix *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)m->s->device)->streams;
    for (int64_t i = begin; i < end; i++)
        score_streams(c, streams_of(m->s, m->first + (uint64_t)i), m->by->scores, m->n_streams,
                      st->normed + (uint64_t)i * st->normed_stride,
                      st->mix + (uint64_t)i * st->mix_stride);
}

/* h = the sum of n streams times mix, each under a norm where the model has them so. */
static void sum_streams(const struct moe_config *c, const float *x, const float *mix, uint32_t n,
                        float *h)
{
    memset(h, 0, c->hidden * sizeof *h);
    for (uint32_t k = 0; k < n; k++, x += c->hidden) {
        float factor = mix[k];
        if (c->stream_normed)
            factor *= norm_factor(x, c->hidden, c->stream_eps);
        for (uint32_t d = 0; d < c->hidden; d++)
            h[d] += factor * x[d];
    }
}

/* ---- Messages from pass to pass ---- */

/* A pass through the loop begins: puts aside the streams that the one before began, which begin
 * anew. */
static void begin_pass(const struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    uint64_t first = moe_config_streams_before(c, 2 * layer), n = moe_config_told_streams(c);
    for (uint32_t i = 0; i < n_rows; i++) {
        float *x = streams_of(s, i), *begun = x + first * c->hidden;
        memcpy(x + (uint64_t)c->n_streams * c->hidden, begun, n * c->hidden * sizeof *x);
        memset(begun, 0, n * c->hidden * sizeof *x);
    }
}

struct tell {
    const struct moe_session *s;
    const struct moe_message *by;
    float *x; /* what is told, rows stride apart */
    uint64_t stride;
};

static void write_messages(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct tell *t = ctx;
    const struct moe_config *c = &t->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)t->s->device)->streams;
    uint32_t n = moe_config_told_streams(c);
    for (int64_t i = begin; i < end; i++) {
        const float *told = streams_of(t->s, (uint64_t)i) + (uint64_t)c->n_streams * c->hidden;
        float *mix = st->mix + (uint64_t)i * st->mix_stride;
        float *message = st->message + (uint64_t)i * st->normed_stride;
        float *both = st->both + (uint64_t)i * st->both_stride;
        score_streams(c, told, t->by->scores, n, st->normed + (uint64_t)i * st->normed_stride, mix);
        sum_streams(c, told, mix, n, message);
        memcpy(both, t->x + (uint64_t)i * t->stride, c->hidden * sizeof *both);
        memcpy(both + c->hidden, message, c->hidden * sizeof *both);
        for (int k = 0; k < 2; k++, both += c->hidden)
            moe_kern.scale(norm_factor(both, c->hidden, c->norm_eps), c->hidden, both);
    }
}

static void take_messages(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct tell *t = ctx;
    const struct moe_config *c = &t->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)t->s->device)->streams;
    for (int64_t i = begin; i < end; i++) {
        const uint64_t row = (uint64_t)i * st->normed_stride;
        const float *message = st->message + row;
        float *x = t->x + (uint64_t)i * t->stride, *forget = st->forget + row;
        float *gates = st->gates + row;
        moe_kern.tanh(forget, c->hidden, forget);
        moe_kern.tanh(gates, c->hidden, gates);
        for (uint32_t d = 0; d < c->hidden; d++)
            x[d] = (1 - forget[d]) * x[d] + gates[d] * message[d];
    }
}

/* Mixes the layer's messages into n rows of x, from the first row of the pass on. */
static void tell(struct moe_session *s, uint32_t layer, enum moe_told what, float *x,
                 uint64_t stride, uint32_t n)
{
    struct cpu_streams *st = &((struct cpu_work *)s->device)->streams;
    const struct moe_config *c = &s->model->config;
    struct tell t = {s, &s->model->layers[layer].messages[what], x, stride};
    moe_par_for(n, 8, write_messages, &t);
    moe_inputs_set(&st->from_both, st->both, st->both_stride, NULL, n, 2 * c->hidden);
    struct moe_mm mm[2] = {moe_inputs_mm(&st->from_both, t.by->down, st->low, st->low_stride)};
    moe_matmul(mm, 1);
    moe_inputs_set(&st->from_low, st->low, st->low_stride, NULL, n, c->loop_rank);
    mm[0] = moe_inputs_mm(&st->from_low, t.by->forget, st->forget, st->normed_stride);
    mm[1] = moe_inputs_mm(&st->from_low, t.by->told, st->gates, st->normed_stride);
    moe_matmul(mm, 2);
    moe_par_for(n, 8, take_messages, &t);
}

/* ---- What keys and values take in ---- */

struct own {
    const struct moe_session *s;
    const float *scores, *norm;
    float *to;
    uint32_t n_streams;
};

static void mix_own_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct own *o = ctx;
    const struct moe_config *c = &o->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)o->s->device)->streams;
    for (int64_t i = begin; i < end; i++) {
        const float *x = streams_of(o->s, (uint64_t)i);
        float *mix = st->mix + (uint64_t)i * st->mix_stride;
        float *to = o->to + (uint64_t)i * moe_padded(c->hidden);
        if (o->scores) {
            score_streams(c, x, o->scores, o->n_streams,
                          st->normed + (uint64_t)i * st->normed_stride, mix);
            sum_streams(c, x, mix, o->n_streams, to);
        } else {
            memcpy(to, x, c->hidden * sizeof *to);
        }
    }
}

static void norm_own_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct own *o = ctx;
    const struct moe_config *c = &o->s->model->config;
    for (int64_t i = begin; i < end; i++) {
        float *to = o->to + (uint64_t)i * moe_padded(c->hidden);
        moe_kern.rms_norm(to, o->norm, c->hidden, c->norm_eps, to);
    }
}

void stages_cpu_streams_own(struct moe_session *s, uint32_t layer, enum moe_told what,
                            uint32_t n_rows, const float *scores, const float *norm, float *to)
{
    const struct moe_config *c = &s->model->config;
    struct own o = {s, scores, norm, to, moe_config_streams_before(c, 2 * layer)};
    moe_par_for(n_rows, 8, mix_own_rows, &o);
    if (moe_config_is_told(c, layer))
        tell(s, layer, what, to, moe_padded(c->hidden), n_rows);
    moe_par_for(n_rows, 8, norm_own_rows, &o);
}

/* ---- What a block takes in ---- */

static void take_in_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct mix *m = ctx;
    const struct moe_config *c = &m->s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)m->s->device)->streams;
    for (int64_t i = begin; i < end; i++) {
        uint64_t row = m->first + (uint64_t)i;
        const float *x = streams_of(m->s, row);
        float *mix = st->mix + (uint64_t)i * st->mix_stride;
        float *h = m->s->states.h + row * m->s->states.stride;
        for (uint32_t k = 0; !m->by && k < m->n_streams; k++)
            mix[k] = 1 / (float)m->n_streams;
        if (m->by && !m->by->scores)
            finish_mix(c, m->by, mix);
        sum_streams(c, x, mix, m->n_streams, h);
    }
}

void stages_cpu_streams_in(struct moe_session *s, uint32_t block, uint32_t first, uint32_t n)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer *l = &s->model->layers[block / 2];
    struct cpu_streams *st = &((struct cpu_work *)s->device)->streams;
    bool last = block == 2 * c->n_layers;
    struct mix m = {.s = s,
                    .by = last        ? &s->model->last_mix
                          : block % 2 ? &l->ffn_mix
                                      : &l->attn_mix};
    m.first = first;
    m.n_streams = last && c->stream_layers ? c->n_streams : moe_config_streams_before(c, block);
    st->block = block;
    const bool told = !last && moe_config_is_told(c, block / 2);
    if (told && block % 2 == 0 && (block / 2 - c->loop.begin) % c->loop.n == 0)
        begin_pass(s, block / 2, n);
    if (c->stream_rank) {
        gated_in(&m, st, n);
        return;
    }
    if (c->stream_normed && m.n_streams == 1) {
        for (uint32_t i = first; i < first + n; i++)
            memcpy(s->states.h + i * s->states.stride, streams_of(s, i), c->hidden * sizeof(float));
        return;
    }
    if (last && c->stream_mean) {
        m.by = NULL;
    } else if (m.by->scores) {
        moe_par_for(n, 8, score_rows, &m);
    } else {
        moe_par_for(n, 8, norm_rows, &m);
        moe_inputs_set(&st->from_all, st->normed, st->normed_stride, NULL, n,
                       c->n_streams * c->hidden);
        struct moe_mm mm = moe_inputs_mm(&st->from_all, m.by->of, st->mix, st->mix_stride);
        moe_matmul(&mm, 1);
    }
    moe_par_for(n, 8, take_in_rows, &m);
    if (told)
        tell(s, block / 2, block % 2 ? MOE_TELLS_FFN : MOE_TELLS_Q, s->states.h, s->states.stride,
             n);
}

void stages_cpu_streams_out(struct moe_session *s, uint32_t row, const float *out)
{
    const struct moe_config *c = &s->model->config;
    const struct cpu_streams *st = &((struct cpu_work *)s->device)->streams;
    const float *mix = st->mix + row * st->mix_stride, *each = mix + 2 * (uint64_t)c->n_streams;
    float *x = streams_of(s, row), before[MOE_MAX_STREAMS];
    uint32_t n = c->n_streams;
    if (c->stream_layers) {
        bool begins = moe_config_begins_stream(c, st->block);
        x += (uint64_t)(moe_config_streams_before(c, st->block) - !begins) * c->hidden;
        moe_kern.add(out, c->hidden, x);
        return;
    }
    for (uint32_t d = 0; d < c->hidden; d++) {
        for (uint32_t i = 0; i < n; i++)
            before[i] = x[(uint64_t)i * c->hidden + d];
        for (uint32_t k = 0; k < n; k++) {
            float sum = c->stream_rounds ? 0 : before[k];
            for (uint32_t i = 0; i < n && c->stream_rounds; i++)
                sum += each[i * n + k] * before[i];
            x[(uint64_t)k * c->hidden + d] = mix[n + k] * out[d] + sum;
        }
    }
}
