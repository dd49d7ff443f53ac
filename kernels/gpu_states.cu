/*
 * Recurrent states: the convolution, and the token's step of each kind.
 *
 * A thread has a channel, or one value of a head's state: 16 neighbours share a panel, so that its
 * cells are read and written together, and the keys and queries that they all need come from the
 * cache. A step is a chain of fma's over the keys, as the definition has it, and rows follow each
 * other: what a prompt takes is rows times keys, however many threads there are. So a thread holds
 * its cells in registers from row to row where they have the usual numbers of keys, and the next
 * row's keys and queries are on their way to shared memory during a step.
 */
#include "dev_vector.cuh"
#include "gpu_context.cuh"
#include "gpu_states.h"

/* ---- The convolution ---- */

enum { CONVOLVE_THREADS = 128, N_PARTS = 3, HELD_TAPS = 4, CONVOLVED_AHEAD = 8 };

/* Queries, keys or values of a row: where they begin, how many; how many lie together in the
 * weights. */
struct conv_part {
    uint64_t at;
    uint32_t n, channels;
    const float *weights, *bias;
};

struct convolve {
    struct moe_gpu_recurrent r;
    uint32_t n_rows;
    struct conv_part parts[N_PARTS];
};

/* Sums a channel for a row whose input is x, the oldest input first; x joins the last inputs. */
static __device__ __forceinline__ float convolve_value(const struct moe_gpu_recurrent &r,
                                                       const struct conv_part &p, uint32_t channel,
                                                       uint32_t row, float x)
{
    const struct moe_gpu_row at = r.rows[row];
    const struct moe_gpu_states &m = r.states;
    float *taps = m.memory + at.sequence * m.sequence + r.layer * m.layer + p.at + channel;
    const float *weights = p.weights + channel;
    float sum = p.bias ? p.bias[channel] : 0;
    for (uint32_t t = 0; t < m.n_taps; t++) {
        float tap = at.position ? taps[t * m.stride] : 0;
        sum = fmaf(weights[(uint64_t)t * p.channels], tap, sum);
        if (t > 0)
            taps[(t - 1) * m.stride] = tap;
    }
    if (m.n_taps > 0)
        taps[(m.n_taps - 1) * m.stride] = x;
    return fmaf(weights[(uint64_t)m.n_taps * p.channels], x, sum);
}

/* What is convolved of a row, and where the result goes. */
static __device__ __forceinline__ float convolved_input(const struct moe_gpu_recurrent &r,
                                                        const struct conv_part &p, uint32_t channel,
                                                        uint32_t row)
{
    float x = r.mixed[row * r.states.stride + p.at + channel];
    return r.kind == MOE_STATE_CONV ? fmaf(r.out[row * r.values_stride + channel], x, 0.0f) : x;
}

static __device__ __forceinline__ void put_convolved(const struct moe_gpu_recurrent &r,
                                                     const struct conv_part &p, uint32_t channel,
                                                     uint32_t row, float sum)
{
    uint64_t at = row * r.values_stride + channel;
    if (r.kind == MOE_STATE_CONV)
        r.out[at] = fmaf(r.gate[at], sum, 0.0f);
    else
        r.mixed[row * r.states.stride + p.at + channel] = moe_math_silu(sum);
}

/* Sums a channel for all rows, with the last inputs in registers: HELD_TAPS at most. Reads inputs
 * CONVOLVED_AHEAD rows at a time. */
static __device__ __forceinline__ void convolve_held(const struct moe_gpu_recurrent &r,
                                                     const struct conv_part &p, uint32_t channel,
                                                     uint32_t n_rows)
{
    const struct moe_gpu_states &m = r.states;
    const float *weights = p.weights + channel;
    float *layer = m.memory + r.layer * m.layer + p.at + channel, *taps = NULL;
    float bias = p.bias ? p.bias[channel] : 0, held[HELD_TAPS] = {}, by[HELD_TAPS] = {};
    float by_input = weights[(uint64_t)m.n_taps * p.channels];
#pragma unroll
    for (uint32_t t = 0; t < HELD_TAPS; t++)
        by[t] = t < m.n_taps ? weights[(uint64_t)t * p.channels] : 0;
    for (uint32_t first = 0; first < n_rows; first += CONVOLVED_AHEAD) {
        float x[CONVOLVED_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < CONVOLVED_AHEAD; i++)
            if (first + i < n_rows)
                x[i] = convolved_input(r, p, channel, first + i);
#pragma unroll
        for (uint32_t i = 0; i < CONVOLVED_AHEAD; i++) {
            if (first + i >= n_rows)
                break;
            const struct moe_gpu_row at = r.rows[first + i];
            float *of = layer + at.sequence * m.sequence, sum = bias;
#pragma unroll
            for (uint32_t t = 0; t < HELD_TAPS; t++) {
                if (of != taps && taps && t < m.n_taps)
                    taps[t * m.stride] = held[t];
                if (of != taps && t < m.n_taps)
                    held[t] = of[t * m.stride];
                held[t] = at.position ? held[t] : 0;
            }
            taps = of;
#pragma unroll
            for (uint32_t t = 0; t < HELD_TAPS; t++)
                if (t < m.n_taps) {
                    sum = fmaf(by[t], held[t], sum);
                    held[t] =
                        t + 1 < m.n_taps && t + 1 < HELD_TAPS ? held[(t + 1) % HELD_TAPS] : x[i];
                }
            put_convolved(r, p, channel, first + i, fmaf(by_input, x[i], sum));
        }
    }
#pragma unroll
    for (uint32_t t = 0; t < HELD_TAPS; t++)
        if (t < m.n_taps)
            taps[t * m.stride] = held[t];
}

static __global__ void convolve_kernel(struct convolve c)
{
    const struct moe_gpu_recurrent &r = c.r;
    uint32_t channel = blockIdx.x * CONVOLVE_THREADS + threadIdx.x, part = 0;
    while (part < N_PARTS && channel >= c.parts[part].n)
        channel -= c.parts[part++].n;
    if (part == N_PARTS)
        return;
    const struct conv_part &p = c.parts[part];
    if (r.states.n_taps <= HELD_TAPS) {
        convolve_held(r, p, channel, c.n_rows);
        return;
    }
    for (uint32_t i = 0; i < c.n_rows; i++)
        put_convolved(r, p, channel, i,
                      convolve_value(r, p, channel, i, convolved_input(r, p, channel, i)));
}

/* Lists the parts that are convolved; others are empty. */
static void list_parts(const struct moe_gpu_recurrent *r, struct conv_part parts[N_PARTS])
{
    uint32_t keys = r->kind == MOE_STATE_SELECT ? 0 : r->n_key_heads * r->key_dim;
    uint32_t values = r->n_heads * r->value_dim, all = 2 * keys + values;
    bool scan = r->kind == MOE_STATE_SCAN; /* weights are of values, keys, queries */
    const uint32_t first[N_PARTS] = {scan ? values + keys : 0, scan ? values : keys,
                                     scan ? 0 : 2 * keys};
    const struct conv_part apart[N_PARTS] = {
        {0, keys, keys, r->conv_q, NULL},
        {r->states.keys_at, keys, keys, r->conv_k, NULL},
        {r->states.values_at, values, values, r->conv, NULL},
    };
    for (int i = 0; i < N_PARTS; i++) {
        parts[i] = apart[i];
        if (r->conv_q)
            continue;
        parts[i].channels = all;
        parts[i].weights = r->conv + first[i];
        parts[i].bias = r->conv_bias ? r->conv_bias + first[i] : NULL;
    }
}

extern "C" void moe_gpu_convolve(struct moe_gpu *g, const struct moe_gpu_recurrent *r, uint32_t n)
{
    struct convolve c = {*r, n, {}};
    list_parts(r, c.parts);
    uint32_t channels = c.parts[0].n + c.parts[1].n + c.parts[2].n;
    if (n > 0)
        MOE_LAUNCH(g, convolve_kernel, (channels + CONVOLVE_THREADS - 1) / CONVOLVE_THREADS,
                   CONVOLVE_THREADS, 0, c);
}

/* ---- Before a step ---- */

enum { READY_THREADS = 256, READY_WARPS = READY_THREADS / DEV_WARP };

/* Decays of a head: one or, for KDA, one for each key. */
static __device__ __forceinline__ uint32_t decays_of(const struct moe_gpu_recurrent &r)
{
    return r.kind == MOE_STATE_KDA ? r.key_dim : 1;
}

/* Scales keys to length 1 and queries to length `factor`; each warp takes one at a time. */
static __device__ void make_units(const struct moe_gpu_recurrent &r, float *mixed)
{
    float factor = 1.0f / sqrtf((float)r.key_dim);
    for (uint32_t i = threadIdx.x / DEV_WARP; i < 2 * r.n_key_heads; i += READY_WARPS) {
        bool keys = i >= r.n_key_heads;
        uint32_t head = keys ? i - r.n_key_heads : i;
        float *x = mixed + (keys ? r.states.keys_at : 0) + (uint64_t)head * r.key_dim;
        float squares = dev_warp_squares(r.key_dim, [&](uint32_t k) { return x[k]; });
        float scale = (keys ? 1.0f : factor) / sqrtf(squares + 1e-6f);
        for (uint32_t k = threadIdx.x % DEV_WARP; k < r.key_dim; k += DEV_WARP)
            x[k] *= scale;
    }
}

/* Computes a row's steps and decays; one block per row. */
static __global__ void __launch_bounds__(READY_THREADS) ready_kernel(struct moe_gpu_recurrent r)
{
    uint64_t row = blockIdx.x;
    float *beta = r.beta + row * r.heads_stride, *decay = r.decay + row * r.decay_stride;
    if (r.kind == MOE_STATE_SCAN) {
        for (uint32_t head = threadIdx.x; head < r.n_heads; head += READY_THREADS) {
            beta[head] = moe_math_softplus(decay[head] + r.step[head]);
            decay[head] = moe_math_exp(-(moe_math_exp(r.rate[head]) * beta[head]));
        }
        return;
    }
    make_units(r, r.mixed + row * r.states.stride);
    for (uint32_t head = threadIdx.x; head < r.n_heads; head += READY_THREADS)
        beta[head] = moe_math_sigmoid(beta[head]);
    uint32_t each = decays_of(r);
    for (uint32_t k = threadIdx.x; k < r.n_heads * each; k += READY_THREADS) {
        float rate = moe_math_exp(r.rate[k / each]);
        decay[k] = moe_math_exp(-(rate * moe_math_softplus(decay[k] + r.step[k])));
    }
}

/* ---- A step ---- */

enum { STEP_THREADS = 64, STEP_PANELS = STEP_THREADS / MOE_PANEL_ROWS };

/* A value of a head at a row: its cells of the state, one for each key and MOE_PANEL_ROWS apart,
 * and their changes. */
struct step {
    float *state;
    bool begins; /* the cells count as zeros */
    const float *keys, *queries, *decay;
    float value;
};

static __device__ __forceinline__ float cell_of(const struct step &s, uint32_t k)
{
    return s.begins ? 0.0f : s.state[(uint64_t)k * MOE_PANEL_ROWS];
}

static __device__ __forceinline__ void take_in(const struct step &s, uint32_t k, float cell,
                                               float *y)
{
    s.state[(uint64_t)k * MOE_PANEL_ROWS] = cell;
    *y = fmaf(cell, s.queries[k], *y);
}

/* kern.h's delta_step for one value; apart: each key has its own decay. */
static __device__ float step_delta(const struct step &s, uint32_t n, bool apart, float beta)
{
    float m = 0, y = 0;
    for (uint32_t k = 0; k < n; k++) {
        float cell = cell_of(s, k) * s.decay[apart ? k : 0];
        s.state[(uint64_t)k * MOE_PANEL_ROWS] = cell;
        m = fmaf(cell, s.keys[k], m);
    }
    float d = (s.value - m) * beta;
    for (uint32_t k = 0; k < n; k++)
        take_in(s, k, fmaf(s.keys[k], d, s.state[(uint64_t)k * MOE_PANEL_ROWS]), &y);
    return y;
}

/* The same for scan_step. */
static __device__ float step_scan(const struct step &s, uint32_t n)
{
    float y = 0, decay = *s.decay;
    for (uint32_t k = 0; k < n; k++)
        take_in(s, k, fmaf(s.keys[k], s.value, cell_of(s, k) * decay), &y);
    return y;
}

/* The same for select_step; rates of a value lie `apart`. */
static __device__ float step_select(const struct step &s, uint32_t n, const float *rates,
                                    uint32_t apart, float step)
{
    float y = 0;
    for (uint32_t k = 0; k < n; k++) {
        float e = moe_math_exp(-(rates[(uint64_t)k * apart] * step));
        take_in(s, k, fmaf(s.keys[k], s.value, cell_of(s, k) * e), &y);
    }
    return y;
}

/* Value d of a head at a row; panel: where the head's panel with it begins in a layer's states. */
static __device__ float step_value(const struct moe_gpu_recurrent &r, uint32_t row, uint32_t head,
                                   uint32_t d, uint64_t panel)
{
    const struct moe_gpu_states &m = r.states;
    const struct moe_gpu_row at = r.rows[row];
    const float *mixed = r.mixed + row * m.stride;
    uint32_t key_head = r.keys_in_turn ? head % r.n_key_heads : head / (r.n_heads / r.n_key_heads);
    const float *queries = mixed + key_head * r.key_dim;
    const float *decay = r.decay + row * r.decay_stride;
    const float *beta = r.beta + row * r.heads_stride + head;
    float value = mixed[m.values_at + (uint64_t)head * r.value_dim + d];
    struct step s = {
        m.memory + at.sequence * m.sequence + r.layer * m.layer + panel + d % MOE_PANEL_ROWS,
        at.position == 0,
        queries + m.keys_at,
        queries,
        decay + head * decays_of(r),
        value,
    };
    if (r.kind == MOE_STATE_DELTA || r.kind == MOE_STATE_KDA)
        return step_delta(s, r.key_dim, decays_of(r) > 1, *beta);
    if (r.kind == MOE_STATE_SCAN) {
        s.value = value * *beta;
        return fmaf(r.skip[head], value, step_scan(s, r.key_dim));
    }
    float step = moe_math_softplus(decay[d] + r.step[d]);
    s.value = value * step;
    float y = step_select(s, r.key_dim, r.rate + d, r.value_dim, step);
    return moe_math_swiglu(r.gate[row * r.values_stride + d], fmaf(r.skip[d], value, y));
}

static __global__ void __launch_bounds__(STEP_THREADS)
    step_kernel(struct moe_gpu_recurrent r, uint32_t n_rows)
{
    const struct moe_gpu_states &m = r.states;
    uint32_t panel = blockIdx.x * STEP_PANELS + threadIdx.x / MOE_PANEL_ROWS;
    uint32_t head = panel / m.n_panels;
    uint32_t d = panel % m.n_panels * MOE_PANEL_ROWS + threadIdx.x % MOE_PANEL_ROWS;
    if (head >= r.n_heads || d >= r.value_dim)
        return;
    uint64_t at = m.n_taps * m.stride + panel * m.panel;
    for (uint32_t i = 0; i < n_rows; i++)
        r.out[i * r.values_stride + (uint64_t)head * r.value_dim + d] =
            step_value(r, i, head, d, at);
}

/* ---- Steps with a state in registers ---- */

/* A row's step: values of the whole block, in shared memory, and of the thread. */
template <int N> struct alignas(16) held_row {
    float keys[N], queries[N], decays[N];
};
struct held_value {
    float value, beta, decay;
};

/* A thread's share of a row on its way to shared memory, and its own. */
template <int N, bool APART> struct held_next {
    enum { SHARE = N / STEP_THREADS };
    float keys[SHARE], queries[SHARE], decays[SHARE];
    struct held_value own;
};

template <int N, bool APART>
static __device__ __forceinline__ void read_next(const struct moe_gpu_recurrent &r, uint32_t row,
                                                 uint32_t head, uint32_t d,
                                                 struct held_next<N, APART> *next)
{
    const struct moe_gpu_states &m = r.states;
    const float *mixed = r.mixed + row * m.stride;
    const float *decay = r.decay + row * r.decay_stride + (uint64_t)head * (APART ? N : 1);
    uint32_t key_head = r.keys_in_turn ? head % r.n_key_heads : head / (r.n_heads / r.n_key_heads);
#pragma unroll
    for (int i = 0; i < next->SHARE; i++) {
        uint32_t k = threadIdx.x + i * STEP_THREADS;
        next->queries[i] = mixed[(uint64_t)key_head * N + k];
        next->keys[i] = mixed[m.keys_at + (uint64_t)key_head * N + k];
        next->decays[i] = APART ? decay[k] : 0;
    }
    next->own = {mixed[m.values_at + (uint64_t)head * r.value_dim + d],
                 r.beta[row * r.heads_stride + head], APART ? 0 : *decay};
}

template <int N, bool APART>
static __device__ __forceinline__ void hand_over(const struct held_next<N, APART> &next,
                                                 struct held_row<N> *row)
{
#pragma unroll
    for (int i = 0; i < next.SHARE; i++) {
        uint32_t k = threadIdx.x + i * STEP_THREADS;
        row->keys[k] = next.keys[i];
        row->queries[k] = next.queries[i];
        if (APART)
            row->decays[k] = next.decays[i];
    }
}

/* step_delta and step_scan for cells in registers. */
template <int N, bool APART>
static __device__ __forceinline__ float delta_held(float (&cell)[N], const struct held_row<N> &row,
                                                   const struct held_value &own)
{
    float m = 0, y = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        cell[k] = cell[k] * (APART ? row.decays[k] : own.decay);
        m = fmaf(cell[k], row.keys[k], m);
    }
    float d = (own.value - m) * own.beta;
    __syncwarp(); /* keys are read again: there are no registers for them beside the cells */
#pragma unroll
    for (int k = 0; k < N; k++) {
        cell[k] = fmaf(row.keys[k], d, cell[k]);
        y = fmaf(cell[k], row.queries[k], y);
    }
    return y;
}

template <int N>
static __device__ __forceinline__ float scan_held(float (&cell)[N], const struct held_row<N> &row,
                                                  const struct held_value &own)
{
    float y = 0, value = own.value * own.beta;
#pragma unroll
    for (int k = 0; k < N; k++) {
        cell[k] = fmaf(row.keys[k], value, cell[k] * own.decay);
        y = fmaf(cell[k], row.queries[k], y);
    }
    return y;
}

template <int N, enum moe_state_kind KIND>
static __global__ void __launch_bounds__(STEP_THREADS)
    step_held(struct moe_gpu_recurrent r, uint32_t n_rows)
{
    const bool APART = KIND == MOE_STATE_KDA;
    __shared__ struct held_row<N> rows[2];
    const struct moe_gpu_states &m = r.states;
    uint32_t panel = blockIdx.x * STEP_PANELS + threadIdx.x / MOE_PANEL_ROWS;
    uint32_t head = panel / m.n_panels; /* the block's */
    uint32_t d = panel % m.n_panels * MOE_PANEL_ROWS + threadIdx.x % MOE_PANEL_ROWS;
    float *layer = m.memory + r.layer * m.layer + m.n_taps * m.stride + panel * m.panel +
                   threadIdx.x % MOE_PANEL_ROWS;
    float *state = NULL, cell[N] = {};
    struct held_next<N, APART> next;
    read_next(r, 0, head, d, &next);
    for (uint32_t i = 0; i < n_rows; i++) {
        struct moe_gpu_row at = r.rows[i];
        struct held_value own = next.own;
        struct held_row<N> *row = &rows[i % 2];
        float *of = layer + at.sequence * m.sequence;
        hand_over(next, row);
        __syncthreads(); /* the one before the last is done with, this one is there */
        if (i + 1 < n_rows)
            read_next(r, i + 1, head, d, &next);
        if (of != state) {
#pragma unroll
            for (int k = 0; k < N; k++)
                if (state)
                    state[(uint64_t)k * MOE_PANEL_ROWS] = cell[k];
#pragma unroll
            for (int k = 0; k < N; k++)
                cell[k] = of[(uint64_t)k * MOE_PANEL_ROWS];
            state = of;
        }
        if (at.position == 0) {
#pragma unroll
            for (int k = 0; k < N; k++)
                cell[k] = 0;
        }
        float y;
        if (KIND == MOE_STATE_SCAN)
            y = fmaf(r.skip[head], own.value, scan_held<N>(cell, *row, own));
        else
            y = delta_held<N, APART>(cell, *row, own);
        r.out[i * r.values_stride + (uint64_t)head * r.value_dim + d] = y;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        state[(uint64_t)k * MOE_PANEL_ROWS] = cell[k];
}

template <int N>
static void start_held(struct moe_gpu *g, const struct moe_gpu_recurrent *r, uint32_t blocks,
                       uint32_t n)
{
    if (r->kind == MOE_STATE_DELTA)
        MOE_LAUNCH(g, (step_held<N, MOE_STATE_DELTA>), blocks, STEP_THREADS, 0, *r, n);
    else if (r->kind == MOE_STATE_KDA)
        MOE_LAUNCH(g, (step_held<N, MOE_STATE_KDA>), blocks, STEP_THREADS, 0, *r, n);
    else
        MOE_LAUNCH(g, (step_held<N, MOE_STATE_SCAN>), blocks, STEP_THREADS, 0, *r, n);
}

extern "C" void moe_gpu_step_states(struct moe_gpu *g, const struct moe_gpu_recurrent *r,
                                    uint32_t n)
{
    uint32_t panels = r->n_heads * r->states.n_panels;
    if (n == 0)
        return;
    if (r->kind != MOE_STATE_SELECT)
        MOE_LAUNCH(g, ready_kernel, n, READY_THREADS, 0, *r);
    uint32_t blocks = (panels + STEP_PANELS - 1) / STEP_PANELS;
    bool whole = r->value_dim % STEP_THREADS == 0; /* a block's values are of one head */
    if (r->kind != MOE_STATE_SELECT && whole && r->key_dim == 64)
        start_held<64>(g, r, blocks, n);
    else if (r->kind != MOE_STATE_SELECT && whole && r->key_dim == 128)
        start_held<128>(g, r, blocks, n);
    else
        MOE_LAUNCH(g, step_kernel, blocks, STEP_THREADS, 0, *r, n);
}
