/*
 * A layer with a recurrent state on the processor: products make queries, keys, values, gates and
 * numbers for each head; the kind of state decides how they update the state and what is read from
 * it; a product makes the output.
 *
 * Defined token by token: every sum runs over what a row has, in one order, and states are changed
 * row after row, so that the same bits come of any batch. Channels, and panels of the state, do not
 * know each other: threads share these and not the rows.
 */
#include <math.h>
#include <string.h>

#include "base/par.h"
#include "infer/cpu_stages.h"
#include "kern/kern.h"
#include "kern/kern_math.h"

/* What the layer makes of the states' xn, by those of the matrices that it has. */
static void project_in(struct moe_session *s, const struct cpu_state_pass *p)
{
    struct moe_inputs *from = &s->states.inputs;
    const struct moe_layer *l = p->layer;
    struct cpu_recurrent *w = p->w;
    bool select = p->c->state_kind == MOE_STATE_SELECT;
    const bool low[2] = {l->state_z_down.data != NULL, l->state_decay_down.data != NULL && !select};
    const struct {
        const struct moe_mat *mat;
        float *to;
        uint64_t stride;
        bool of_values; /* in Mamba */
    } all[] = {
        {&l->state_q, w->mixed, p->r->stride, true},
        {&l->state_k, w->mixed + p->r->keys_at, p->r->stride, true},
        {&l->state_v, w->mixed + p->r->values_at, p->r->stride, false},
        {low[0] ? &l->state_z_down : &l->state_z, low[0] ? w->low[0] : w->gate,
         low[0] ? w->low_stride : w->values_stride, false},
        {&l->state_scale, w->out, w->values_stride, false},
        {&l->state_beta, w->beta, w->heads_stride, false},
        {low[1] ? &l->state_decay_down : &l->state_decay, low[1] ? w->low[1] : w->decay,
         low[1] ? w->low_stride : w->decay_stride, true},
    };
    struct moe_mm in[sizeof all / sizeof all[0]];
    int n = 0;
    moe_inputs_set(from, s->states.xn, s->states.stride, NULL, p->n_rows, p->c->hidden);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].mat->data && !(select && all[i].of_values))
            in[n++] = moe_inputs_mm(from, *all[i].mat, all[i].to, all[i].stride);
    moe_matmul(in, n);
    n = 0;
    for (int i = 0; i < 2; i++) {
        if (!low[i])
            continue;
        const struct moe_mat *mat = i == 0 ? &l->state_z : &l->state_decay;
        moe_inputs_set(&w->from_low[i], w->low[i], w->low_stride, NULL, p->n_rows, mat->cols);
        in[n++] = moe_inputs_mm(&w->from_low[i], *mat, i == 0 ? w->gate : w->decay,
                                i == 0 ? w->values_stride : w->decay_stride);
    }
    moe_matmul(in, n);
}

void stages_cpu_recurrent(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                          uint32_t n_rows)
{
    static void (*const kinds[])(struct cpu_state_pass * p) = {
        [MOE_STATE_DELTA] = stages_cpu_state_delta,   [MOE_STATE_KDA] = stages_cpu_state_delta,
        [MOE_STATE_CONV] = stages_cpu_short_conv,     [MOE_STATE_SCAN] = stages_cpu_state_scan,
        [MOE_STATE_SELECT] = stages_cpu_state_select, [MOE_STATE_FADE] = stages_cpu_state_fade,
    };
    const struct moe_config *c = &s->model->config;
    struct cpu_work *work = s->device;
    struct cpu_recurrent *w = &work->recurrent;
    struct cpu_state_pass p = {.c = c,
                               .layer = &s->model->layers[layer],
                               .r = &work->states,
                               .w = w,
                               .rows = rows,
                               .n_rows = n_rows,
                               .number = layer,
                               .state = c->layers[layer].recurrent_index};
    project_in(s, &p);
    kinds[c->state_kind](&p);
    moe_inputs_set(&w->from_out, w->out, w->values_stride, NULL, n_rows, p.layer->state_o.cols);
    struct moe_mm out = moe_inputs_mm(&w->from_out, p.layer->state_o, work->sum, s->states.stride);
    moe_matmul(&out, 1);
    moe_recurrent_advance(s, layer, rows, n_rows);
}

/*
 * A short convolution (LFM2) on the processor (recurrent.c): values that were scaled value by value
 * go through a causal convolution over the last tokens; the gate scales what comes out. A channel's
 * sum runs over its taps, the oldest first.
 */

enum { CHUNK = 256 }; /* channels */

/* n channels of a row, from `at` on: out, where the scales were, becomes what the layer gives. */
static void convolve_row(const struct cpu_state_pass *p, uint32_t row, uint32_t at, uint32_t n)
{
    uint32_t channels = p->c->hidden, n_taps = p->r->n_taps;
    uint64_t stride = p->r->stride, here = row * p->w->values_stride + at;
    const float *weights = p->layer->state_conv + at;
    float *taps = moe_recurrent_taps(p->r, p->rows[row].sequence, p->state) + at;
    float *out = p->w->out + here;
    float x[CHUNK] = {0}, sum[CHUNK] = {0};
    moe_kern.mul_add(out, p->w->mixed + row * stride + at, n, x);
    for (uint32_t t = 0; t < n_taps; t++) {
        if (p->rows[row].position == 0)
            memset(taps + t * stride, 0, n * sizeof *taps);
        moe_kern.mul_add(weights + (uint64_t)t * channels, taps + t * stride, n, sum);
    }
    moe_kern.mul_add(weights + (uint64_t)n_taps * channels, x, n, sum);
    for (uint32_t t = 0; t < n_taps; t++)
        memcpy(taps + t * stride, t + 1 < n_taps ? taps + (t + 1) * stride : x, n * sizeof *x);
    memset(out, 0, n * sizeof *out);
    moe_kern.mul_add(p->w->gate + here, sum, n, out);
}

static void convolve_short(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        uint32_t at = (uint32_t)i * CHUNK, left = p->c->hidden - at;
        for (uint32_t row = 0; row < p->n_rows; row++)
            convolve_row(p, row, at, left < CHUNK ? left : CHUNK);
    }
}

void stages_cpu_short_conv(struct cpu_state_pass *p)
{
    moe_par_for((p->c->hidden + CHUNK - 1) / CHUNK, 1, convolve_short, p);
}

/*
 * What kinds of recurrent states share on the processor (recurrent.c): the causal convolution of
 * queries, keys and values, and where panels of a state lie.
 */

/* ---- The convolution ---- */

/* A part of a row of the convolution: queries, keys or values. */
struct part {
    uint64_t at;          /* in a row */
    uint32_t n, channels; /* of the part; of all whose weights lie together: */
    const float *weights, *bias;
};

static struct part part_of(const struct cpu_state_pass *p, int i)
{
    const struct moe_layer *l = p->layer;
    uint32_t keys = p->c->state_key_heads * p->c->state_key_dim;
    if (p->c->state_kind == MOE_STATE_SELECT)
        keys = 0; /* are not convolved */
    uint32_t values = p->c->state_heads * p->c->state_value_dim, all = 2 * keys + values;
    bool scan = p->c->state_kind == MOE_STATE_SCAN; /* values, keys, queries */
    const uint32_t first[3] = {scan ? values + keys : 0, scan ? values : keys, scan ? 0 : 2 * keys};
    const struct part parts[3] = {
        {0, keys, keys, l->state_conv_q, NULL},
        {p->r->keys_at, keys, keys, l->state_conv_k, NULL},
        {p->r->values_at, values, values, l->state_conv, NULL},
    };
    struct part part = parts[i];
    if (!l->state_conv_q) { /* one convolution for all three */
        part.channels = all;
        part.weights = l->state_conv + first[i];
        part.bias = l->state_conv_bias ? l->state_conv_bias + first[i] : NULL;
    }
    return part;
}

static uint32_t chunks_of(uint32_t n)
{
    return (n + CHUNK - 1) / CHUNK;
}

/* n channels of a part, from `first` on, of all rows. */
static void convolve_chunk(const struct cpu_state_pass *p, const struct part *part, uint32_t first,
                           uint32_t n)
{
    uint32_t channels = part->channels, n_taps = p->r->n_taps;
    uint64_t at = part->at + first;
    const float *weights = part->weights + first, *bias = part->bias;
    float sum[CHUNK];
    for (uint32_t i = 0; i < p->n_rows; i++) {
        float *x = p->w->mixed + i * p->r->stride + at;
        float *taps = moe_recurrent_taps(p->r, p->rows[i].sequence, p->state) + at;
        memset(sum, 0, sizeof sum);
        if (bias)
            memcpy(sum, bias + first, n * sizeof *sum);
        for (uint32_t t = 0; t < n_taps; t++) {
            float *tap = taps + t * p->r->stride;
            if (p->rows[i].position == 0)
                memset(tap, 0, n * sizeof *tap);
            moe_kern.mul_add(weights + (uint64_t)t * channels, tap, n, sum);
        }
        moe_kern.mul_add(weights + (uint64_t)n_taps * channels, x, n, sum);
        for (uint32_t t = 0; t < n_taps; t++)
            memcpy(taps + t * p->r->stride, t + 1 < n_taps ? taps + (t + 1) * p->r->stride : x,
                   n * sizeof *x);
        moe_kern.silu(sum, n, x);
    }
}

static void convolve(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        int64_t chunk = i;
        struct part part = part_of(p, 0);
        for (int k = 1; chunk >= chunks_of(part.n); part = part_of(p, k++))
            chunk -= chunks_of(part.n);
        uint32_t from = (uint32_t)chunk * CHUNK, left = part.n - from;
        convolve_chunk(p, &part, from, left < CHUNK ? left : CHUNK);
    }
}

void stages_cpu_convolve(struct cpu_state_pass *p)
{
    uint32_t n_chunks = 0;
    for (int i = 0; i < 3; i++)
        n_chunks += chunks_of(part_of(p, i).n);
    moe_par_for(n_chunks, 1, convolve, p);
}

/* ---- Convolutions beside attention (Inkling, MOE_STATE_TAPS) ---- */

struct taps {
    const struct moe_recurrent *r;
    const struct moe_row *rows;
    const struct cpu_taps *of;
    uint32_t n_rows, state;
};

/* The weights of n channels, from `first` on, for the token that is `back` before the row. */
static const float *taps_weights(const struct taps *p, uint64_t row, uint32_t back, uint32_t first,
                                 uint32_t n, float *room)
{
    const struct cpu_taps *of = p->of;
    uint32_t n_taps = p->r->n_taps;
    if (!of->own)
        return of->weights + (uint64_t)(n_taps - back) * of->n + first;
    const float *own = of->own + row * of->own_stride + back;
    for (uint32_t d = 0; d < n; d++)
        room[d] = of->weights[(uint64_t)back * of->n + first + d] +
                  own[(uint64_t)((first + d) / of->head) * (n_taps + 1)];
    return room;
}

static void add_taps(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct taps *p = ctx;
    const struct cpu_taps *of = p->of;
    uint32_t n_taps = p->r->n_taps;
    for (uint32_t chunk = (uint32_t)begin; chunk < (uint32_t)end; chunk++) {
        uint32_t first = chunk * CHUNK, n = of->n - first < CHUNK ? of->n - first : CHUNK;
        for (uint32_t i = 0; i < p->n_rows; i++) {
            float *x = of->x + i * of->stride + first, sum[CHUNK] = {0}, room[CHUNK];
            float *taps = moe_recurrent_taps(p->r, p->rows[i].sequence, p->state) + of->at + first;
            for (uint32_t t = 0; t < n_taps; t++) {
                float *tap = taps + t * p->r->stride;
                if (p->rows[i].position == 0)
                    memset(tap, 0, n * sizeof *tap);
                moe_kern.mul_add(taps_weights(p, i, n_taps - t, first, n, room), tap, n, sum);
            }
            moe_kern.mul_add(taps_weights(p, i, 0, first, n, room), x, n, sum);
            for (uint32_t t = 0; t < n_taps; t++)
                memcpy(taps + t * p->r->stride, t + 1 < n_taps ? taps + (t + 1) * p->r->stride : x,
                       n * sizeof *x);
            moe_kern.add(sum, n, x);
            if (of->scale != 1)
                moe_kern.scale(of->scale, n, x);
        }
    }
}

void stages_cpu_add_taps(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                         uint32_t n_rows, const struct cpu_taps *taps)
{
    struct taps p = {.r = &((struct cpu_work *)s->device)->states,
                     .rows = rows,
                     .of = taps,
                     .n_rows = n_rows,
                     .state = s->model->config.layers[layer].recurrent_index};
    moe_par_for(chunks_of(taps->n), 1, add_taps, &p);
}

/* ---- Panels of the state ---- */

float *stages_cpu_state_panel(const struct cpu_state_pass *p, uint32_t row, uint32_t head,
                              uint32_t panel)
{
    float *state = moe_recurrent_panel(p->r, p->rows[row].sequence, p->state, head, panel);
    if (p->rows[row].position == 0)
        memset(state, 0, p->r->panel * sizeof *state);
    return state;
}

/*
 * Gated DeltaNet, and KDA with a decay for each key, on the processor (recurrent.c): after the
 * convolution queries and keys become unit vectors; the state takes a step for each token; a norm,
 * and the gate.
 */

/* ---- Before and after the state ---- */

static void make_unit(float *x, uint32_t n, float factor)
{
    moe_kern.scale(factor / sqrtf(moe_kern.dot(x, x, n) + 1e-6f), n, x);
}

/* Of a head: one, or of KDA one for each key. */
static uint32_t decays_of(const struct moe_config *c)
{
    return c->state_kind == MOE_STATE_KDA ? c->state_key_dim : 1;
}

static void prepare_delta_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    const struct moe_config *c = p->c;
    uint32_t each = decays_of(c);
    float factor = 1.0f / sqrtf((float)c->state_key_dim);
    for (int64_t i = begin; i < end; i++) {
        float *x = p->w->mixed + (uint64_t)i * p->r->stride;
        float *beta = p->w->beta + (uint64_t)i * p->w->heads_stride;
        float *decay = p->w->decay + (uint64_t)i * p->w->decay_stride;
        for (uint32_t head = 0; head < c->state_key_heads; head++) {
            make_unit(x + head * c->state_key_dim, c->state_key_dim, factor);
            make_unit(x + p->r->keys_at + head * c->state_key_dim, c->state_key_dim, 1);
        }
        for (uint32_t head = 0; head < c->state_heads; head++) {
            float rate = moe_math_exp(p->layer->state_rate[head]);
            beta[head] = moe_math_sigmoid(beta[head]);
            for (uint32_t k = head * each; k < (head + 1) * each; k++) {
                float step = decay[k] + p->layer->state_step[k];
                decay[k] =
                    moe_math_exp(c->decay_floor < 0 ? c->decay_floor * moe_math_sigmoid(rate * step)
                                                    : -(rate * moe_math_softplus(step)));
            }
        }
    }
}

static void finish_delta_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    uint32_t n = p->c->state_value_dim;
    for (int64_t i = begin; i < end; i++)
        for (uint32_t head = 0; head < p->c->state_heads; head++) {
            uint64_t at = (uint64_t)i * p->w->values_stride + head * n;
            float *out = p->w->out + at;
            moe_kern.rms_norm(out, p->layer->state_norm, n, p->c->norm_eps, out);
            bool sigmoid = p->c->state_kind == MOE_STATE_KDA || p->c->state_sigmoid;
            if (!sigmoid)
                moe_kern.swiglu(p->w->gate + at, out, n, out);
            for (uint32_t r = 0; sigmoid && r < n; r++)
                out[r] *= moe_math_sigmoid(p->w->gate[at + r]);
        }
}

/* ---- The state ---- */

/* All rows of one panel of a head's values. */
static void step_delta_panel(const struct cpu_state_pass *p, uint32_t head, uint32_t panel)
{
    const struct moe_config *c = p->c;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    uint32_t keys = moe_config_state_key_head(c, head) * c->state_key_dim;
    uint64_t values = head * c->state_value_dim + first;
    uint32_t each = decays_of(c);
    float same[MOE_MAX_HEAD_DIM];
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride;
        const uint64_t at = i * p->w->heads_stride + head;
        const float *decay = p->w->decay + i * p->w->decay_stride + head * each;
        float y[MOE_PANEL_ROWS] = {0};
        for (uint32_t k = 0; each == 1 && k < c->state_key_dim; k++)
            same[k] = *decay;
        memcpy(y, x + p->r->values_at + values, n * sizeof *y);
        moe_kern.delta_step(stages_cpu_state_panel(p, i, head, panel), x + p->r->keys_at + keys,
                            x + keys, y, c->state_key_dim, each == 1 ? same : decay, p->w->beta[at],
                            y);
        memcpy(p->w->out + i * p->w->values_stride + values, y, n * sizeof *y);
    }
}

static void step_delta_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++)
        step_delta_panel(p, (uint32_t)(i / p->r->n_panels), (uint32_t)(i % p->r->n_panels));
}

void stages_cpu_state_delta(struct cpu_state_pass *p)
{
    stages_cpu_convolve(p);
    moe_par_for(p->n_rows, 1, prepare_delta_rows, p);
    moe_par_for((int64_t)p->c->state_heads * p->r->n_panels, 1, step_delta_panels, p);
    moe_par_for(p->n_rows, 1, finish_delta_rows, p);
}

/*
 * Mamba-2 on the processor (recurrent.c): after the convolution a head's state decays by a number
 * of the token's and takes its values in, scaled by the same number's step, along the token's keys;
 * what queries read of it, and a part of the values themselves, go through the gate and a norm over
 * the heads that share keys.
 *
 * transformers' prompts take no step below "time_step_min" of some configurations, its single
 * tokens do, as other implementations' all: so do these.
 */

/* beta = the token's steps, decay = what they leave of a state. */
static void prepare_scan_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++) {
        float *step = p->w->beta + (uint64_t)i * p->w->heads_stride;
        float *decay = p->w->decay + (uint64_t)i * p->w->decay_stride;
        for (uint32_t head = 0; head < p->c->state_heads; head++) {
            step[head] = moe_math_softplus(decay[head] + p->layer->state_step[head]);
            decay[head] = moe_math_exp(-(moe_math_exp(p->layer->state_rate[head]) * step[head]));
        }
    }
}

/* All rows of one panel of a head's values. */
static void step_scan_panel(const struct cpu_state_pass *p, uint32_t head, uint32_t panel)
{
    const struct moe_config *c = p->c;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    uint32_t keys = moe_config_state_key_head(c, head) * c->state_key_dim;
    uint64_t values = head * c->state_value_dim + first;
    float skip = p->layer->state_skip[head];
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride, *value = x + p->r->values_at + values;
        const uint64_t at = i * p->w->heads_stride + head;
        float y[MOE_PANEL_ROWS] = {0};
        memcpy(y, value, n * sizeof *y);
        moe_kern.scale(p->w->beta[at], n, y);
        moe_kern.scan_step(stages_cpu_state_panel(p, i, head, panel), x + p->r->keys_at + keys,
                           x + keys, y, c->state_key_dim,
                           p->w->decay[i * p->w->decay_stride + head], y);
        moe_kern.axpy(skip, value, n, y);
        memcpy(p->w->out + i * p->w->values_stride + values, y, n * sizeof *y);
    }
}

static void step_scan_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    for (int64_t i = begin; i < end; i++)
        step_scan_panel(p, (uint32_t)(i / p->r->n_panels), (uint32_t)(i % p->r->n_panels));
}

static void finish_scan_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    uint32_t values = p->c->state_heads * p->c->state_value_dim;
    uint32_t n = values / p->c->state_key_heads;
    for (int64_t i = begin; i < end; i++) {
        float *out = p->w->out + (uint64_t)i * p->w->values_stride;
        moe_kern.swiglu(p->w->gate + (uint64_t)i * p->w->values_stride, out, values, out);
        for (uint32_t at = 0; at < values; at += n)
            moe_kern.rms_norm(out + at, p->layer->state_norm + at, n, p->c->norm_eps, out + at);
    }
}

void stages_cpu_state_scan(struct cpu_state_pass *p)
{
    stages_cpu_convolve(p);
    moe_par_for(p->n_rows, 1, prepare_scan_rows, p);
    moe_par_for((int64_t)p->c->state_heads * p->r->n_panels, 1, step_scan_panels, p);
    moe_par_for(p->n_rows, 1, finish_scan_rows, p);
}

/*
 * Mamba on the processor (recurrent.c): only values are convolved; products of them make keys,
 * queries and, through a vector, the steps of each value. Every cell of the state decays by a
 * number of its own and takes its value in, scaled by the step; what queries read of it, and a part
 * of the values themselves, are gated.
 */

static void norm_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    const struct moe_config *c = p->c;
    for (int64_t i = begin; i < end; i++) {
        float *query = p->w->mixed + (uint64_t)i * p->r->stride, *key = query + p->r->keys_at;
        float *low = p->w->low[1] + (uint64_t)i * p->w->low_stride;
        moe_kern.rms_norm(query, p->layer->state_q_norm, c->state_key_dim, c->norm_eps, query);
        moe_kern.rms_norm(key, p->layer->state_k_norm, c->state_key_dim, c->norm_eps, key);
        moe_kern.rms_norm(low, p->layer->state_decay_norm, c->state_step_rank, c->norm_eps, low);
    }
}

/* Keys, queries and steps out of values. */
static void project_values(struct cpu_state_pass *p)
{
    const struct moe_layer *l = p->layer;
    struct cpu_recurrent *w = p->w;
    uint64_t stride = p->r->stride;
    moe_inputs_set(&w->from_out, w->mixed + p->r->values_at, stride, NULL, p->n_rows,
                   l->state_k.cols);
    struct moe_mm in[] = {
        moe_inputs_mm(&w->from_out, l->state_q, w->mixed, stride),
        moe_inputs_mm(&w->from_out, l->state_k, w->mixed + p->r->keys_at, stride),
        moe_inputs_mm(&w->from_out, l->state_decay_down, w->low[1], w->low_stride),
    };
    moe_matmul(in, sizeof in / sizeof in[0]);
    moe_par_for(p->n_rows, 4, norm_rows, p);
    moe_inputs_set(&w->from_low[1], w->low[1], w->low_stride, NULL, p->n_rows, l->state_decay.cols);
    in[0] = moe_inputs_mm(&w->from_low[1], l->state_decay, w->decay, w->decay_stride);
    moe_matmul(in, 1);
}

/* All rows of one panel of values. */
static void step_select_panel(const struct cpu_state_pass *p, uint32_t panel)
{
    const struct moe_config *c = p->c;
    const struct moe_layer *l = p->layer;
    uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
    float rates[MOE_MAX_SELECTED * MOE_PANEL_ROWS] = {0}, steps[MOE_PANEL_ROWS] = {0};
    n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
    for (uint32_t k = 0; k < c->state_key_dim; k++)
        memcpy(rates + k * MOE_PANEL_ROWS, l->state_rate + (uint64_t)k * c->state_value_dim + first,
               n * sizeof *rates);
    for (uint32_t i = 0; i < p->n_rows; i++) {
        const float *x = p->w->mixed + i * p->r->stride, *value = x + p->r->values_at + first;
        const float *decay = p->w->decay + i * p->w->decay_stride + first;
        uint64_t at = i * p->w->values_stride + first;
        float y[MOE_PANEL_ROWS] = {0};
        for (uint32_t r = 0; r < n; r++) {
            steps[r] = moe_math_softplus(decay[r] + l->state_step[first + r]);
            y[r] = value[r] * steps[r];
        }
        moe_kern.select_step(stages_cpu_state_panel(p, i, 0, panel), rates, steps,
                             x + p->r->keys_at, x, y, c->state_key_dim, y);
        moe_kern.mul_add(l->state_skip + first, value, n, y);
        moe_kern.swiglu(p->w->gate + at, y, n, p->w->out + at);
    }
}

static void step_select_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    for (int64_t i = begin; i < end; i++)
        step_select_panel(ctx, (uint32_t)i);
}

void stages_cpu_state_select(struct cpu_state_pass *p)
{
    stages_cpu_convolve(p);
    project_values(p);
    moe_par_for(p->r->n_panels, 4, step_select_panels, p);
}

/*
 * Lightning attention (MiniMax-01) on the processor (recurrent.c): a head's state decays by a
 * factor of head and layer and takes the token's values in along its keys; what queries read of it
 * goes through a norm over all heads and the gates.
 */

/* What a token leaves of a head's state: slopes as those of ALiBi, less steep from layer to layer.
 */
static float fade_of(const struct moe_config *c, uint32_t layer, uint32_t head)
{
    double slope = exp2(-8.0 * (head + 1) / c->state_heads);
    return (float)exp(-slope * (1 - layer / (c->n_layers - 1 + 1e-5) + 1e-5));
}

static void prepare_fade_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    uint32_t keys = p->c->state_key_heads * p->c->state_key_dim;
    uint32_t values = p->c->state_heads * p->c->state_value_dim;
    for (int64_t i = begin; i < end; i++) {
        float *x = p->w->mixed + (uint64_t)i * p->r->stride;
        moe_kern.silu(x, keys, x);
        moe_kern.silu(x + p->r->keys_at, keys, x + p->r->keys_at);
        moe_kern.silu(x + p->r->values_at, values, x + p->r->values_at);
    }
}

/* All rows of one panel of a head's values. */
static void step_fade_panels(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    const struct moe_config *c = p->c;
    for (int64_t at = begin; at < end; at++) {
        uint32_t head = (uint32_t)(at / p->r->n_panels), panel = (uint32_t)(at % p->r->n_panels);
        uint32_t first = panel * MOE_PANEL_ROWS, n = c->state_value_dim - first;
        uint64_t keys = (uint64_t)head * c->state_key_dim;
        uint64_t values = (uint64_t)head * c->state_value_dim + first;
        float fade = fade_of(c, p->number, head);
        n = n < MOE_PANEL_ROWS ? n : MOE_PANEL_ROWS;
        for (uint32_t i = 0; i < p->n_rows; i++) {
            const float *x = p->w->mixed + i * p->r->stride;
            float y[MOE_PANEL_ROWS] = {0};
            memcpy(y, x + p->r->values_at + values, n * sizeof *y);
            moe_kern.scan_step(stages_cpu_state_panel(p, i, head, panel), x + p->r->keys_at + keys,
                               x + keys, y, c->state_key_dim, fade, y);
            memcpy(p->w->out + i * p->w->values_stride + values, y, n * sizeof *y);
        }
    }
}

static void finish_fade_rows(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct cpu_state_pass *p = ctx;
    uint32_t values = p->c->state_heads * p->c->state_value_dim;
    for (int64_t i = begin; i < end; i++) {
        uint64_t at = (uint64_t)i * p->w->values_stride;
        float *out = p->w->out + at;
        moe_kern.rms_norm(out, p->layer->state_norm, values, moe_config_latent_eps(p->c), out);
        for (uint32_t r = 0; r < values; r++)
            out[r] *= moe_math_sigmoid(p->w->gate[at + r]);
    }
}

void stages_cpu_state_fade(struct cpu_state_pass *p)
{
    moe_par_for(p->n_rows, 1, prepare_fade_rows, p);
    moe_par_for((int64_t)p->c->state_heads * p->r->n_panels, 1, step_fade_panels, p);
    moe_par_for(p->n_rows, 1, finish_fade_rows, p);
}
