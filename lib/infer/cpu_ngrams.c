/*
 * Embeddings of n-grams (Qwen4): what a layer adds to the streams of the last tokens, as
 * transformers' Qwen4ExpTextPLELayer computes it. With t[0] the row's token, t[i] the one i
 * positions before it, and ngram_end in its place where that or one between them is ngram_end, or
 * the text has none:
 *
 *   hash      of n tokens: t[0] * ngram_factors[0] ^ ... ^ t[n - 1] * ngram_factors[n - 1]
 *   embedding of head h, one of ngram_heads for each n from 2 to ngrams: row hash % ngram_sizes[h]
 *             of the rows of the table that are the head's, which follow those of the heads before
 *   key[i], value: products of all heads' embeddings side by side, a key for each stream
 *   score s[i] = norm(key[i]) . norm(x[i]) / sqrt(hidden)
 *   weight w[i] = sigmoid(sign(s[i]) * sqrt(max(|s[i]|, 1e-6)))
 *   kept u[i] = norm(w[i] * value)
 *   stream x[i] += w[i] * value + silu(sum over taps t, oldest first, of conv[t] * u[i] of the row
 *             (ngram_taps - 1 - t) * ngrams positions before)
 *
 * Of rows before a pass the sequence's recurrent state has u and t (infer/recurrent.h).
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "infer/cpu_stages.h"
#include "kern/kern.h"
#include "kern/kern_math.h"
#include "model/config.h"

enum { CHUNK = 256 }; /* channels */

struct ngrams {
    const struct moe_session *s;
    const struct moe_config *c;
    const struct moe_ngrams *of;
    const struct moe_row *rows;
    uint32_t n_rows;
};

static struct cpu_ngrams *work_of(const struct ngrams *g)
{
    return &((struct cpu_work *)g->s->device)->ngrams;
}

static float *streams_of(const struct ngrams *g, uint64_t row)
{
    const struct cpu_streams *st = &((struct cpu_work *)g->s->device)->streams;
    return st->streams + row * st->stride;
}

/* ---- Which embeddings ---- */

/* The rows of the table that row i of the pass takes; its token goes into the state. */
static void find_embeddings(const struct ngrams *g, uint32_t i)
{
    const struct moe_config *c = g->c;
    const struct moe_recurrent *r = &((struct cpu_work *)g->s->device)->states;
    const struct moe_row *row = &g->rows[i];
    float *tokens = moe_recurrent_beside(r, row->sequence) + r->beside_rows * r->beside_stride;
    uint32_t *found = work_of(g)->rows + (uint64_t)i * (c->ngrams - 1) * c->ngram_heads;
    uint32_t head = 0, first = 0;
    uint64_t hash = row->token * c->ngram_factors[0];
    bool ended = false;
    for (uint32_t n = 1; n < c->ngrams; n++) {
        uint32_t token = c->ngram_end;
        if (n <= row->position && !ended)
            token = (uint32_t)tokens[(row->position - n) % c->ngrams];
        ended |= token == c->ngram_end;
        hash ^= token * c->ngram_factors[n];
        for (uint32_t k = 0; k < c->ngram_heads; k++, first += c->ngram_sizes[head++])
            found[head] = first + (uint32_t)(hash % c->ngram_sizes[head]);
    }
    tokens[row->position % c->ngrams] = (float)row->token;
}

static void load_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct ngrams *g = ctx;
    const struct cpu_ngrams *w = work_of(g);
    uint32_t n = (g->c->ngrams - 1) * g->c->ngram_heads, dim = g->c->ngram_dim;
    uint32_t joined = moe_config_ngrams_joined(g->c);
    float *whole = w->joined + (uint64_t)thread * w->joined_stride;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t k = 0; k < n; k++) {
            uint32_t row = w->rows[(uint64_t)i * n + k];
            moe_layout_load_row(&g->of->table, row / joined, whole);
            memcpy(w->embeds + (uint64_t)i * w->embeds_stride + (uint64_t)k * dim,
                   whole + (uint64_t)(row % joined) * dim, dim * sizeof *whole);
        }
}

/* ---- What becomes of them ---- */

/* keys of a row become what is convolved. */
static void weigh_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct ngrams *g = ctx;
    const struct moe_config *c = g->c;
    const struct cpu_ngrams *w = work_of(g);
    float *query = w->joined + (uint64_t)thread * w->joined_stride;
    uint32_t n = c->hidden;
    for (int64_t i = begin; i < end; i++)
        for (uint64_t k = 0, at = 0; k < c->n_streams; k++, at += n) {
            float *key = w->keys + (uint64_t)i * w->keys_stride + at;
            moe_kern.rms_norm(key, g->of->key_norm + at, n, c->norm_eps, key);
            moe_kern.rms_norm(streams_of(g, (uint64_t)i) + at, g->of->query_norm + at, n,
                              c->norm_eps, query);
            float score = moe_kern.dot(key, query, n) / sqrtf((float)n);
            float root = sqrtf(fmaxf(fabsf(score), 1e-6f));
            float weight = moe_math_sigmoid(score > 0 ? root : score < 0 ? -root : 0);
            w->weights[(uint64_t)i * MOE_MAX_STREAMS + k] = weight;
            memcpy(key, w->value + (uint64_t)i * w->value_stride, n * sizeof *key);
            moe_kern.scale(weight, n, key);
            moe_kern.rms_norm(key, g->of->conv_norm + at, n, c->norm_eps, key);
        }
}

/* n channels of a stream, from `at` on, of all rows. */
static void convolve_chunk(const struct ngrams *g, uint32_t stream, uint32_t at, uint32_t n)
{
    const struct moe_config *c = g->c;
    const struct cpu_ngrams *w = work_of(g);
    const struct moe_recurrent *r = &((struct cpu_work *)g->s->device)->states;
    uint32_t channels = c->n_streams * c->hidden, back = c->ngram_taps - 1;
    uint64_t first = (uint64_t)stream * c->hidden + at;
    for (uint32_t i = 0; i < g->n_rows; i++) {
        const uint32_t position = g->rows[i].position;
        const float *value = w->value + i * w->value_stride + at;
        float *kept = moe_recurrent_beside(r, g->rows[i].sequence) + first;
        float *here = w->keys + i * w->keys_stride + first, *x = streams_of(g, i) + first;
        float sum[CHUNK] = {0};
        for (uint32_t t = 0; t < back; t++)
            if ((back - t) * c->ngrams <= position)
                moe_kern.mul_add(g->of->conv + (uint64_t)t * channels + first,
                                 kept + (position - (back - t) * c->ngrams) % r->beside_rows *
                                            r->beside_stride,
                                 n, sum);
        moe_kern.mul_add(g->of->conv + (uint64_t)back * channels + first, here, n, sum);
        moe_kern.silu(sum, n, sum);
        moe_kern.axpy(w->weights[i * MOE_MAX_STREAMS + stream], value, n, sum);
        moe_kern.add(sum, n, x);
        if (back)
            memcpy(kept + position % r->beside_rows * r->beside_stride, here, n * sizeof *here);
    }
}

static void convolve(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct ngrams *g = ctx;
    uint32_t each = (g->c->hidden + CHUNK - 1) / CHUNK;
    for (uint32_t i = (uint32_t)begin; i < (uint32_t)end; i++) {
        uint32_t at = i % each * CHUNK, left = g->c->hidden - at;
        convolve_chunk(g, i / each, at, left < CHUNK ? left : CHUNK);
    }
}

void stages_cpu_ngrams(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                       uint32_t n_rows)
{
    const struct moe_config *c = &s->model->config;
    struct cpu_ngrams *w = &((struct cpu_work *)s->device)->ngrams;
    struct ngrams g = {s, c, &s->model->layers[layer].ngrams, rows, n_rows};
    for (uint32_t i = 0; i < n_rows; i++)
        find_embeddings(&g, i);
    moe_par_for(n_rows, 1, load_rows, &g);
    moe_inputs_set(&w->from_embeds, w->embeds, w->embeds_stride, NULL, n_rows, g.of->key.cols);
    struct moe_mm mm[] = {
        moe_inputs_mm(&w->from_embeds, g.of->key, w->keys, w->keys_stride),
        moe_inputs_mm(&w->from_embeds, g.of->value, w->value, w->value_stride),
    };
    moe_matmul(mm, 2);
    moe_par_for(n_rows, 1, weigh_rows, &g);
    moe_par_for((int64_t)c->n_streams * ((c->hidden + CHUNK - 1) / CHUNK), 1, convolve, &g);
}
