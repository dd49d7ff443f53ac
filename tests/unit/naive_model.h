/*
 * What a description means, in straightforward double precision: every position computed from the
 * start, keys and values of latent attention made in full. It shares nothing with the library but
 * the shapes.
 */
#ifndef TESTS_NAIVE_MODEL_H
#define TESTS_NAIVE_MODEL_H

#include "random_model.h"

struct naive_choice {
    uint32_t experts[MOE_MAX_TOP_K];
    double weights[MOE_MAX_TOP_K], probabilities[RANDOM_MAX_EXPERTS];
    double ranks[RANDOM_MAX_EXPERTS]; /* what it chose by; -INFINITY: it could not */
};

struct naive {
    const struct random_model *m;
    uint32_t n;                   /* positions */
    const uint32_t *ids;          /* [n] */
    double *h, *x, *out;          /* [n][hidden] */
    double *entered;              /* [n][hidden] h as it came into the layer */
    double *q, *k;                /* [n][heads][head_dim] */
    double *v;                    /* [n][heads][value_dim] */
    double *logits;               /* [n][vocab] */
    struct naive_choice *choices; /* [layers][n] */
    double margin;                /* how close a choice of experts was to another one, at least */
    bool encoder;                 /* of n positions of a source; x is its output in the end */
    const struct naive *source;   /* a decoder's: what it attends to */
    uint32_t taken[RANDOM_MAX_EXPERTS]; /* rows of the layer at work by expert, in an encoder */
    uint32_t n_over;                    /* choices beyond a capacity so far */
    uint32_t n_prompt,
        prefix; /* with prefix_lm: positions of the prompt, and of those seen by it */
};

/* y[rows] = w[rows][cols] x, plus bias where there is one. */
static inline void naive_multiply(const float *w, const float *bias, uint32_t rows, uint32_t cols,
                                  const double *x, double *y)
{
    for (uint32_t r = 0; r < rows; r++) {
        y[r] = bias ? bias[r] : 0;
        for (uint32_t c = 0; c < cols; c++)
            y[r] += (double)w[(uint64_t)r * cols + c] * x[c];
    }
}

static inline void naive_rms(const float *w, uint32_t n, double eps, double *x)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint32_t i = 0; i < n; i++)
        x[i] = x[i] / sqrt(sum / n + eps) * w[i];
}

static inline void naive_norm(const struct naive *t, const float *w, const float *b,
                              const double *from, double *to)
{
    const struct moe_config *c = &t->m->c;
    double mean = 0, sum = 0;
    for (uint32_t i = 0; i < c->hidden && c->norm_kind != MOE_NORM_RMS; i++)
        mean += from[i] / c->hidden;
    for (uint32_t i = 0; i < c->hidden; i++)
        sum += (from[i] - mean) * (from[i] - mean);
    for (uint32_t i = 0; i < c->hidden; i++)
        to[i] =
            (from[i] - mean) / sqrt(sum / c->hidden + (double)c->norm_eps) * w[i] + (b ? b[i] : 0);
}

static inline void naive_clamp(double limit, uint32_t n, double *x)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = fmax(-limit, fmin(x[i], limit));
}

static inline void naive_rotate(const struct naive *t, uint32_t position, double *x)
{
    const struct moe_config *c = &t->m->c;
    bool far = c->rope_original && t->n > c->rope_original;
    uint32_t half = c->rope_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        double f = far               ? c->rope_freqs_long[i]
                   : c->n_rope_freqs ? c->rope_freqs[i]
                                     : pow(c->rope_theta, -2.0 * i / c->rope_dim);
        double scale = far ? c->rope_scale_long : c->rope_scale;
        double co = cos(position * f) * scale, si = sin(position * f) * scale;
        double a = x[i], b = x[i + half];
        x[i] = a * co - b * si;
        x[i + half] = b * co + a * si;
    }
}

/* What a block takes in of a row of the stream. */
static inline void naive_input(const struct naive *t, const float *w, const float *b,
                               const double *from, double *to)
{
    if (t->m->c.norm_place == MOE_NORM_BEFORE)
        naive_norm(t, w, b, from, to);
    else
        memcpy(to, from, t->m->c.hidden * sizeof *to);
}

/* ---- Attention ---- */

/* Queries, or keys: norm, clipping, rotation. */
static inline void naive_finish(const struct naive *t, const float *norm, uint32_t heads,
                                uint32_t position, double *x)
{
    const struct moe_config *c = &t->m->c;
    if (c->qk_norm == MOE_QK_NORM_FULL)
        naive_rms(norm, heads * c->head_dim, (double)c->norm_eps, x);
    for (uint32_t h = 0; h < heads; h++)
        if (c->qk_norm == MOE_QK_NORM_HEAD)
            naive_rms(norm, c->head_dim, (double)c->norm_eps, x + h * c->head_dim);
    if (c->clip_qkv > 0)
        naive_clamp((double)c->clip_qkv, heads * c->head_dim, x);
    for (uint32_t h = 0; h < heads; h++)
        naive_rotate(t, position, x + h * c->head_dim);
    for (uint32_t h = 0; h < heads; h++)
        if (c->qk_norm == MOE_QK_NORM_ROTATED)
            naive_rms(norm, c->head_dim, (double)c->norm_eps, x + h * c->head_dim);
}

/* Latent attention: the head's keys are [rotated part for all | k_up's transpose times latent]. */
static inline void naive_latent(struct naive *t, float *const *w, uint32_t p, double *q)
{
    const struct moe_config *c = &t->m->c;
    const double *x = t->x + p * c->hidden;
    double down[4096], kv[4096];
    uint32_t nope = c->head_dim - c->rope_dim;
    if (c->q_rank) {
        naive_multiply(w[MOE_T_Q_DOWN], NULL, c->q_rank, c->hidden, x, down);
        naive_rms(w[MOE_T_Q_DOWN_NORM], c->q_rank, (double)moe_config_latent_eps(c), down);
        x = down;
    }
    naive_multiply(w[MOE_T_Q], NULL, c->n_heads * c->head_dim, c->q_rank ? c->q_rank : c->hidden, x,
                   q);
    naive_multiply(w[MOE_T_KV_DOWN], NULL, c->kv_rank + c->rope_dim, c->hidden,
                   t->x + p * c->hidden, kv);
    naive_rms(w[MOE_T_KV_DOWN_NORM], c->kv_rank, (double)moe_config_latent_eps(c), kv);
    naive_rotate(t, p, kv + c->kv_rank);
    for (uint32_t h = 0; h < c->n_heads; h++) {
        double *k = t->k + (p * c->n_heads + h) * c->head_dim;
        naive_rotate(t, p, q + h * c->head_dim);
        memcpy(k, kv + c->kv_rank, c->rope_dim * sizeof *k);
        for (uint32_t j = 0; j < nope; j++) {
            k[c->rope_dim + j] = 0;
            for (uint32_t r = 0; r < c->kv_rank; r++)
                k[c->rope_dim + j] +=
                    (double)w[MOE_T_K_UP][(h * c->kv_rank + r) * nope + j] * kv[r];
        }
        naive_multiply(w[MOE_T_V_UP] + h * c->value_dim * c->kv_rank, NULL, c->value_dim,
                       c->kv_rank, kv, t->v + (p * c->n_heads + h) * c->value_dim);
    }
}

static inline void naive_heads(struct naive *t, float *const *w, uint32_t p, double *q)
{
    const struct moe_config *c = &t->m->c;
    const double *x = t->x + p * c->hidden;
    uint32_t kv_width = c->n_kv_heads * c->head_dim, group = c->n_heads / c->n_kv_heads;
    double k[4096], v[4096];
    naive_multiply(w[MOE_T_Q], w[MOE_T_Q_BIAS], c->n_heads * c->head_dim, c->hidden, x, q);
    naive_multiply(w[MOE_T_K], w[MOE_T_K_BIAS], kv_width, c->hidden, x, k);
    naive_multiply(w[MOE_T_V], w[MOE_T_V_BIAS], kv_width, c->hidden, x, v);
    naive_finish(t, w[MOE_T_Q_NORM], c->n_heads, p, q);
    naive_finish(t, w[MOE_T_K_NORM], c->n_kv_heads, p, k);
    if (c->clip_qkv > 0)
        naive_clamp((double)c->clip_qkv, kv_width, v);
    for (uint32_t h = 0; h < c->n_heads; h++) {
        memcpy(t->k + (p * c->n_heads + h) * c->head_dim, k + h / group * c->head_dim,
               c->head_dim * sizeof *k);
        memcpy(t->v + (p * c->n_heads + h) * c->head_dim, v + h / group * c->head_dim,
               c->head_dim * sizeof *v);
    }
}

/* As T5 has them: half of the buckets one distance wide, the rest growing up to a distance. */
static inline uint32_t naive_bucket(const struct moe_config *c, bool both_ways, int distance)
{
    int n = (int)c->n_buckets, first = 0, far = distance < 0 ? -distance : 0;
    if (both_ways) {
        n /= 2;
        first = distance > 0 ? n : 0;
        far = abs(distance);
    }
    int exact = n / 2;
    if (far >= exact) {
        double grown = log((double)far / exact) / log((double)c->bucket_distance / exact);
        far = exact + (int)(grown * (n - exact));
        far = far < n ? far : n - 1;
    }
    return (uint32_t)(first + far);
}

/* One head's query at p over the first n of keys and values that lie as t's. */
static inline void naive_see(const struct naive *t, const double *k, const double *v,
                             const double *bias, uint32_t p, uint32_t h, uint32_t begin,
                             uint32_t end, double sink, double *out)
{
    const struct moe_config *c = &t->m->c;
    const double *q = t->q + (p * c->n_heads + h) * c->head_dim;
    double shares[512], sum = sink;
    for (uint32_t i = begin; i < end; i++) {
        double score = 0;
        for (uint32_t d = 0; d < c->head_dim; d++)
            score += q[d] * k[(i * c->n_heads + h) * c->head_dim + d];
        shares[i] = exp(score * (double)c->attn_scale + (bias ? bias[i] : 0));
        sum += shares[i];
    }
    for (uint32_t d = 0; d < c->value_dim; d++) {
        out[d] = 0;
        for (uint32_t i = begin; i < end; i++)
            out[d] += shares[i] / sum * v[(i * c->n_heads + h) * c->value_dim + d];
    }
}

static inline void naive_attend(const struct naive *t, uint32_t layer, uint32_t p, uint32_t h,
                                double *out)
{
    const struct moe_config *c = &t->m->c;
    const float *sinks = t->m->dense[layer][MOE_T_SINKS];
    uint32_t begin = c->layers[layer].windowed && p + 1 > c->window ? p + 1 - c->window : 0;
    uint32_t end = t->encoder ? t->n : p + 1 > t->prefix ? p + 1 : t->prefix;
    const float *positions = t->m->dense[t->encoder ? 0 : c->n_encoder][MOE_T_POSITION_BIAS];
    double bias[512] = {0};
    for (uint32_t i = begin; c->positions == MOE_POSITIONS_BUCKETS && i < end; i++)
        bias[i] = positions[naive_bucket(c, t->encoder, (int)i - (int)p) * c->n_heads + h];
    naive_see(t, t->k, t->v, bias, p, h, begin, end, sinks ? exp((double)sinks[h]) : 0, out);
}

static inline void naive_attention(struct naive *t, uint32_t layer)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[layer];
    double attended[4096];
    for (uint32_t p = 0; p < t->n; p++) {
        double *q = t->q + p * c->n_heads * c->head_dim;
        naive_input(t, w[MOE_T_ATTN_NORM], w[MOE_T_ATTN_NORM_BIAS], t->h + p * c->hidden,
                    t->x + p * c->hidden);
        if (c->kv_rank)
            naive_latent(t, w, p, q);
        else
            naive_heads(t, w, p, q);
    }
    for (uint32_t p = 0; p < t->n; p++) {
        for (uint32_t h = 0; h < c->n_heads; h++)
            naive_attend(t, layer, p, h, attended + h * c->value_dim);
        naive_multiply(w[MOE_T_O], w[MOE_T_O_BIAS], c->hidden, c->n_heads * c->value_dim, attended,
                       t->out + p * c->hidden);
    }
}

/* To the source: keys and values of all its rows by this layer's matrices. */
static inline void naive_cross(struct naive *t, uint32_t layer)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[layer];
    uint32_t n_source = t->source->n, group = c->n_heads / c->n_kv_heads;
    double one[2][4096], attended[4096];
    double *k = calloc(n_source * c->n_heads * c->head_dim, sizeof *k);
    double *v = calloc(n_source * c->n_heads * c->head_dim, sizeof *v);
    for (uint32_t i = 0; i < n_source; i++) {
        const double *x = t->source->x + i * c->hidden;
        naive_multiply(w[MOE_T_CROSS_K], w[MOE_T_CROSS_K_BIAS], c->n_kv_heads * c->head_dim,
                       c->hidden, x, one[0]);
        naive_multiply(w[MOE_T_CROSS_V], w[MOE_T_CROSS_V_BIAS], c->n_kv_heads * c->head_dim,
                       c->hidden, x, one[1]);
        for (uint32_t h = 0; h < c->n_heads; h++) {
            uint32_t from = h / group * c->head_dim, to = (i * c->n_heads + h) * c->head_dim;
            memcpy(k + to, one[0] + from, c->head_dim * sizeof *k);
            memcpy(v + to, one[1] + from, c->head_dim * sizeof *v);
        }
    }
    for (uint32_t p = 0; p < t->n; p++) {
        double *x = t->x + p * c->hidden, *q = t->q + p * c->n_heads * c->head_dim;
        naive_norm(t, w[MOE_T_CROSS_NORM], w[MOE_T_CROSS_NORM_BIAS], t->h + p * c->hidden, x);
        naive_multiply(w[MOE_T_CROSS_Q], w[MOE_T_CROSS_Q_BIAS], c->n_heads * c->head_dim, c->hidden,
                       x, q);
        for (uint32_t h = 0; h < c->n_heads; h++)
            naive_see(t, k, v, NULL, p, h, 0, n_source, 0, attended + h * c->value_dim);
        naive_multiply(w[MOE_T_CROSS_O], w[MOE_T_CROSS_O_BIAS], c->hidden,
                       c->n_heads * c->value_dim, attended, t->out + p * c->hidden);
    }
    free(k);
    free(v);
}

/* ---- Feed-forward ---- */

static inline double naive_act(const struct moe_config *c, enum moe_act_kind kind, double g,
                               double u)
{
    double limit = (double)c->act_limit, alpha = (double)c->act_alpha;
    switch (kind) {
    case MOE_ACT_RELU:
        return fmax(u, 0);
    case MOE_ACT_REGLU:
        return fmax(g, 0) * u;
    case MOE_ACT_SILU:
        return u / (1 + exp(-u));
    case MOE_ACT_SWIGLU_CLAMPED:
        g = fmin(g, limit);
        return g / (1 + exp(-alpha * g)) * (fmax(-limit, fmin(u, limit)) + 1);
    default:
        return g / (1 + exp(-g)) * u;
    }
}

/* w: gate (NULL: there is none), up and down. */
static inline void naive_gated(const struct moe_config *c, float *const *w, const float *gate_bias,
                               const float *up_bias, const float *down_bias, uint32_t ff,
                               enum moe_act_kind kind, const double *x, double *out)
{
    double gate[4096] = {0}, up[4096];
    if (w[0])
        naive_multiply(w[0], gate_bias, ff, c->hidden, x, gate);
    naive_multiply(w[1], up_bias, ff, c->hidden, x, up);
    for (uint32_t i = 0; i < ff; i++)
        up[i] = naive_act(c, kind, gate[i], up[i]);
    naive_multiply(w[2], down_bias, c->hidden, ff, up, out);
}

static inline void naive_softmax(double *x, uint32_t n)
{
    double largest = x[0], sum = 0;
    for (uint32_t i = 0; i < n; i++)
        largest = fmax(largest, x[i]);
    for (uint32_t i = 0; i < n; i++)
        sum += x[i] = exp(x[i] - largest);
    for (uint32_t i = 0; i < n; i++)
        x[i] /= sum;
}

static inline void naive_margin(struct naive *t, double distance)
{
    t->margin = fmin(t->margin, fabs(distance));
}

/* The k best of n by falling value; the distance to the next best counts as margin. */
static inline void naive_top(struct naive *t, const double *values, uint32_t n, uint32_t k,
                             uint32_t *chosen)
{
    bool taken[RANDOM_MAX_EXPERTS] = {false};
    double last = 0;
    for (uint32_t i = 0; i <= k && i < n; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < n; e++)
            if (!taken[e] && (best == UINT32_MAX || values[e] > values[best]))
                best = e;
        if (i > 0)
            naive_margin(t, last - values[best]);
        last = values[best];
        taken[best] = true;
        if (i < k)
            chosen[i] = best;
    }
}

/* Sparsemixer: the softmax at `winner` over those near it. */
static inline double naive_mix(struct naive *t, const double *s, uint32_t n, uint32_t winner,
                               uint32_t without)
{
    double sum = 0, limit = 2 * (double)t->m->c.router_jitter;
    for (uint32_t e = 0; e < n; e++) {
        double distance = (s[winner] - s[e]) / fmax(fabs(s[e]), s[winner]);
        if (e == without)
            continue;
        if (e != winner)
            naive_margin(t, distance - limit);
        if (!(distance > limit))
            sum += exp(s[e] - s[winner]);
    }
    return 1 / sum;
}

/* What a router ranks its experts by: values[e], biased; -INFINITY beyond the best groups. */
static inline void naive_ranks(struct naive *t, const float *choice_bias, const double *values,
                               double *ranks)
{
    const struct moe_config *c = &t->m->c;
    uint32_t n = c->n_experts, size = c->n_groups ? n / c->n_groups : n, groups[RANDOM_MAX_EXPERTS];
    double best[RANDOM_MAX_EXPERTS];
    for (uint32_t e = 0; e < n; e++)
        ranks[e] = values[e] + (choice_bias ? (double)choice_bias[e] : 0);
    if (!c->n_groups)
        return;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (uint32_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(first, ranks[e]));
            first = fmax(first, ranks[e]);
        }
        best[g] = c->router_kind == MOE_ROUTER_SIGMOID ? first + second : first;
    }
    naive_top(t, best, c->n_groups, c->top_groups, groups);
    for (uint32_t e = 0; e < n; e++) {
        bool in = false;
        for (uint32_t g = 0; g < c->top_groups; g++)
            in |= groups[g] == e / size;
        ranks[e] = in ? ranks[e] : -INFINITY;
    }
}

/* By falling value. */
static inline void naive_sort(struct naive *t, const double *values, uint32_t k, uint32_t *chosen)
{
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = i + 1; j < k; j++) {
            uint32_t first = chosen[i];
            naive_margin(t, values[first] - values[chosen[j]]);
            if (values[chosen[j]] > values[first]) {
                chosen[i] = chosen[j];
                chosen[j] = first;
            }
        }
}

/* What a router makes of its scores: [n_experts]. */
static inline void naive_choose(struct naive *t, const float *choice_bias, const double *scores,
                                struct naive_choice *choice)
{
    const struct moe_config *c = &t->m->c;
    uint32_t n = c->n_experts, k = c->top_k;
    double sum = 0, all = 0;
    double *p = choice->probabilities;
    uint32_t *chosen = choice->experts;
    memcpy(p, scores, n * sizeof *p);
    if (c->router_kind == MOE_ROUTER_SIGMOID)
        for (uint32_t e = 0; e < n; e++)
            p[e] = 1 / (1 + exp(-scores[e]));
    else
        naive_softmax(p, n);
    naive_ranks(t, choice_bias, p, choice->ranks);
    naive_top(t, choice->ranks, n, k, chosen);
    if (choice_bias)
        naive_sort(t, p, k, chosen);
    for (uint32_t i = 0; i < k; i++)
        choice->weights[i] = p[chosen[i]];
    if (c->router_kind == MOE_ROUTER_TOPK_SOFTMAX) {
        for (uint32_t i = 0; i < k; i++)
            choice->weights[i] = scores[chosen[i]];
        naive_softmax(choice->weights, k);
    } else if (c->router_kind == MOE_ROUTER_SPARSEMIXER) {
        choice->weights[0] = naive_mix(t, scores, n, chosen[0], UINT32_MAX);
        choice->weights[1] = naive_mix(t, scores, n, chosen[1], chosen[0]);
    }
    for (uint32_t e = 0; e < n; e++)
        all += p[e];
    for (uint32_t e = 0; e < n; e++)
        p[e] /= all;
    for (uint32_t i = 0; i < k; i++)
        sum += choice->weights[i];
    for (uint32_t i = 0; i < k; i++)
        choice->weights[i] *= (double)c->routed_scale / (c->norm_topk ? sum : 1);
}

static inline void naive_route(struct naive *t, uint32_t layer, const double *x,
                               struct naive_choice *choice)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[layer];
    double scores[RANDOM_MAX_EXPERTS];
    naive_multiply(w[MOE_T_ROUTER], w[MOE_T_ROUTER_BIAS], c->n_experts, c->hidden, x, scores);
    naive_choose(t, w[MOE_T_CHOICE_BIAS], scores, choice);
}

/* By the token alone, each with the same weight. */
static inline void naive_look_up(struct naive *t, uint32_t layer, uint32_t p,
                                 struct naive_choice *choice)
{
    const struct moe_config *c = &t->m->c;
    for (uint32_t k = 0; k < c->top_k; k++) {
        uint32_t e = (uint32_t)t->m->dense[layer][MOE_T_ROUTES][t->ids[p] * c->top_k + k];
        choice->experts[k] = e;
        choice->probabilities[e] = 1.0 / c->top_k;
        choice->weights[k] = (double)c->routed_scale / c->top_k;
    }
}

static inline void naive_feed_forward(struct naive *t, uint32_t layer, uint32_t p)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[layer];
    const double *x = t->x + p * c->hidden;
    double *out = t->out + p * c->hidden, one[4096], scale = 0;
    if (!c->layers[layer].moe) {
        naive_gated(c, &w[MOE_T_GATE], NULL, w[MOE_T_UP_BIAS], w[MOE_T_DOWN_BIAS], c->dense_ff,
                    c->dense_act, x, out);
        return;
    }
    struct naive_choice *choice = &t->choices[layer * t->n + p];
    if (c->layers[layer].static_routing)
        naive_look_up(t, layer, p, choice);
    else
        naive_route(t, layer,
                    c->router_early && !c->parallel_blocks ? t->entered + p * c->hidden : x,
                    choice);
    memset(out, 0, c->hidden * sizeof *out);
    for (uint32_t k = 0; k < c->top_k; k++) {
        float *const *e = t->m->expert[layer][choice->experts[k]];
        double passes = 0;
        if ((t->encoder || p < t->n_prompt) && c->expert_capacity &&
            t->taken[choice->experts[k]]++ >= c->expert_capacity) {
            passes = c->overflow_passes ? choice->weights[k] : 0;
            choice->weights[k] = 0;
            t->n_over++;
        }
        naive_gated(c, e, e[MOE_E_GATE_BIAS], e[MOE_E_UP_BIAS], e[MOE_E_DOWN_BIAS], c->expert_ff,
                    c->expert_act, x, one);
        for (uint32_t i = 0; i < c->hidden; i++)
            out[i] += choice->weights[k] * one[i] + passes * x[i];
    }
    for (uint32_t i = 0; c->soft_bypass && i < c->hidden; i++) {
        naive_multiply(w[MOE_T_BYPASS] + i * c->hidden, NULL, 1, c->hidden, x, one);
        out[i] += tanh(one[0]);
    }
    if (c->shared_ff) {
        naive_gated(c, &w[MOE_T_SHARED_GATE_PROJ], NULL, NULL, NULL, c->shared_ff, c->dense_act, x,
                    one);
        if (c->shared_gate)
            naive_multiply(w[MOE_T_SHARED_GATE], NULL, 1, c->hidden, x, &scale);
        for (uint32_t i = 0; i < c->hidden; i++)
            out[i] += one[i] / (c->shared_gate ? 1 + exp(-scale) : 1);
    }
    for (uint32_t i = 0; i < c->hidden; i++)
        out[i] *= (double)c->moe_scale;
}

/* ---- All of it ---- */

static inline void naive_add(struct naive *t, const float *norm, const float *norm_bias)
{
    for (uint32_t p = 0; t->m->c.norm_place == MOE_NORM_AFTER && p < t->n; p++)
        naive_norm(t, norm, norm_bias, t->out + p * t->m->c.hidden, t->out + p * t->m->c.hidden);
    for (uint32_t i = 0; i < t->n * t->m->c.hidden; i++)
        t->h[i] += (double)t->m->c.residual_scale * t->out[i];
}

static inline void naive_layer(struct naive *t, uint32_t layer)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[layer];
    for (uint32_t i = 0; c->extra_positions == layer && layer > 0 && i < t->n * c->hidden; i++)
        t->h[i] += (double)t->m->dense[0][MOE_T_EXTRA_POSITIONS][i];
    memcpy(t->entered, t->h, t->n * c->hidden * sizeof *t->h);
    naive_attention(t, layer);
    naive_add(t, w[MOE_T_ATTN_NORM], w[MOE_T_ATTN_NORM_BIAS]);
    if (t->source) {
        naive_cross(t, layer);
        naive_add(t, NULL, NULL);
    }
    memset(t->taken, 0, sizeof t->taken);
    for (uint32_t p = 0; p < t->n; p++) {
        bool side = c->parallel_blocks;
        naive_input(t, w[side ? MOE_T_ATTN_NORM : MOE_T_FFN_NORM],
                    w[side ? MOE_T_ATTN_NORM_BIAS : MOE_T_FFN_NORM_BIAS],
                    (side ? t->entered : t->h) + p * c->hidden, t->x + p * c->hidden);
        naive_feed_forward(t, layer, p);
    }
    naive_add(t, w[MOE_T_FFN_NORM], w[MOE_T_FFN_NORM_BIAS]);
}

/* Layers [begin, end) of a text of n ids. */
static inline void naive_stack(struct naive *t, const uint32_t *ids, uint32_t n, uint32_t begin,
                               uint32_t end)
{
    const struct moe_config *c = &t->m->c;
    t->n = n;
    t->ids = ids;
    t->margin = 1;
    t->h = calloc(n * c->hidden, sizeof *t->h);
    t->x = calloc(n * c->hidden, sizeof *t->x);
    t->entered = calloc(n * c->hidden, sizeof *t->entered);
    t->out = calloc(n * c->hidden, sizeof *t->out);
    t->q = calloc(n * c->n_heads * c->head_dim, sizeof *t->q);
    t->k = calloc(n * c->n_heads * c->head_dim, sizeof *t->k);
    t->v = calloc(n * c->n_heads * c->value_dim, sizeof *t->v);
    t->choices = calloc(n * c->n_layers, sizeof *t->choices);
    for (uint32_t p = 0; p < n; p++)
        for (uint32_t i = 0; i < c->hidden; i++)
            t->h[p * c->hidden + i] =
                (double)c->embed_scale * t->m->dense[0][MOE_T_EMBED][ids[p] * c->hidden + i];
    for (uint32_t i = 0; c->positions == MOE_POSITIONS_LEARNT && i < n * c->hidden; i++)
        t->h[i] += (double)t->m->dense[0][MOE_T_POSITIONS][i];
    for (uint32_t i = 0; c->positions == MOE_POSITIONS_SINUSOIDS && i < n * c->hidden; i++) {
        uint32_t half = c->hidden / 2, k = i % c->hidden;
        double angle =
            (i / c->hidden + c->first_position) * pow(1e4, -(double)(k % half) / (half - 1));
        t->h[i] += k < half ? sin(angle) : cos(angle);
    }
    for (uint32_t layer = begin; layer < end; layer++)
        naive_layer(t, layer);
}

/* An encoder's output, x, and choices. */
static inline void naive_encode(struct naive *t, const struct random_model *m, const uint32_t *ids,
                                uint32_t n)
{
    const struct moe_config *c = &m->c;
    *t = (struct naive){.m = m, .encoder = true};
    naive_stack(t, ids, n, 0, c->n_encoder);
    for (uint32_t p = 0; p < n; p++)
        naive_norm(t, m->dense[0][MOE_T_ENCODER_NORM], m->dense[0][MOE_T_ENCODER_NORM_BIAS],
                   t->h + p * c->hidden, t->x + p * c->hidden);
}

/* What the head takes of a row. */
static inline void naive_last(const struct naive *t, const double *h, double *x)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[0];
    if (!c->last_projection) {
        naive_norm(t, w[MOE_T_FINAL_NORM], w[MOE_T_FINAL_NORM_BIAS], h, x);
        return;
    }
    naive_multiply(w[MOE_T_LAST_PROJECTION], w[MOE_T_LAST_PROJECTION_BIAS], c->hidden, c->hidden, h,
                   x);
    for (uint32_t i = 0; i < c->hidden; i++)
        x[i] /= 1 + exp(-x[i]);
}

/* Logits and choices of a decoder's text of n ids, t being set as far as it matters. */
static inline void naive_text(struct naive *t, const uint32_t *ids, uint32_t n)
{
    const struct moe_config *c = &t->m->c;
    float *const *w = t->m->dense[0];
    naive_stack(t, ids, n, c->n_encoder, c->n_layers);
    t->logits = calloc(n * c->vocab, sizeof *t->logits);
    for (uint32_t p = 0; p < n; p++) {
        naive_last(t, t->h + p * c->hidden, t->x);
        naive_multiply(w[c->tied_head ? MOE_T_EMBED : MOE_T_HEAD], w[MOE_T_HEAD_BIAS], c->vocab,
                       c->hidden, t->x, t->logits + p * c->vocab);
        for (uint32_t i = 0; i < c->vocab; i++)
            t->logits[p * c->vocab + i] *= (double)c->logit_scale;
    }
}

/* ... that attends to a source. */
static inline void naive_decode(struct naive *t, const struct random_model *m,
                                const struct naive *source, const uint32_t *ids, uint32_t n)
{
    *t = (struct naive){.m = m, .source = source};
    naive_text(t, ids, n);
}

/* ... that begins with a prompt, `prefix` of whose positions see each other. */
static inline void naive_prompted(struct naive *t, const struct random_model *m,
                                  const uint32_t *ids, uint32_t n, uint32_t n_prompt,
                                  uint32_t prefix)
{
    *t = (struct naive){.m = m, .n_prompt = n_prompt, .prefix = prefix};
    naive_text(t, ids, n);
}

/* ... of a model without an encoder. */
static inline void naive_run(struct naive *t, const struct random_model *m, const uint32_t *ids,
                             uint32_t n)
{
    naive_decode(t, m, NULL, ids, n);
}

static inline void naive_free(struct naive *t)
{
    free(t->h);
    free(t->x);
    free(t->entered);
    free(t->out);
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->logits);
    free(t->choices);
}

#endif
