/* Computes one expert by itself: activation, biases, products. */
#include "infer/expert_compute.h"

#include <stdlib.h>

#include "kern/kern.h"
#include "kern/kern_math.h"
#include "kern/matmul.h"

struct moe_expert_compute {
    const struct moe_config *config;
    uint32_t max_rows;
    uint64_t stride;  /* of gate and up */
    float *gate, *up; /* [max_rows][stride] */
    struct moe_inputs from_x, from_gate;
};

/* ---- Parts of an expert ---- */

/* gate[i] = gelu(gate[i]) * up[i], gelu(x) = x / 2 * (1 + tanh(x * (a + b * x * x))), a = sqrt(2 /
 * pi), b = 0.044715 a, each step rounded: around one kernel, so that all its variants agree. */
static void geglu(const float *up, uint32_t width, float *gate)
{
    enum { PIECE = 64 };
    float t[PIECE];
    for (uint32_t at = 0; at < width; at += PIECE) {
        uint32_t n = width - at < PIECE ? width - at : PIECE;
        for (uint32_t i = 0; i < n; i++)
            t[i] = gate[at + i] * (0.797884561f + 0.0356774081f * (gate[at + i] * gate[at + i]));
        moe_kern.tanh(t, n, t);
        for (uint32_t i = 0; i < n; i++)
            gate[at + i] = 0.5f * gate[at + i] * (1.0f + t[i]) * up[at + i];
    }
}

/* gate[i] = min(silu(gate[i]), limit) * clamp(up[i], -limit, limit). */
static void swiglu_clipped(float limit, uint32_t width, float *gate, float *up)
{
    moe_kern.clamp(limit, width, up);
    moe_kern.silu(gate, width, gate);
    for (uint32_t i = 0; i < width; i++)
        gate[i] = moe_math_at_most(gate[i], limit) * up[i];
}

/* gate[i] = alpha * tanh(gate[i] / alpha) * sigmoid(gate[i]) * limit * tanh(up[i] / limit). */
static void situ(float alpha, float limit, uint32_t width, float *gate, float *up)
{
    enum { PIECE = 64 };
    float t[PIECE];
    for (uint32_t at = 0; at < width; at += PIECE) {
        uint32_t n = width - at < PIECE ? width - at : PIECE;
        for (uint32_t i = 0; i < n; i++)
            t[i] = gate[at + i] / alpha;
        moe_kern.tanh(t, n, t);
        for (uint32_t i = 0; i < n; i++)
            gate[at + i] = alpha * t[i] * moe_math_sigmoid(gate[at + i]);
        for (uint32_t i = 0; i < n; i++)
            t[i] = limit > 0 ? up[at + i] / limit : up[at + i];
        if (limit > 0)
            moe_kern.tanh(t, n, t);
        for (uint32_t i = 0; i < n; i++)
            gate[at + i] *= limit > 0 ? limit * t[i] : t[i];
    }
}

void moe_activate_row(const struct moe_config *config, uint32_t layer,
                      const struct moe_expert_view *view, uint32_t width, const float *scale,
                      float *gate, float *up)
{
    float limit = view ? config->layers[layer].expert_limit : config->layers[layer].dense_limit;
    enum moe_act_kind kind = view ? config->expert_act : config->dense_act;
    if (scale) {
        moe_kern.scale(*scale, width, gate);
        moe_kern.scale(*scale, width, up);
    }
    if (view && view->gate_bias)
        moe_kern.add(view->gate_bias, width, gate);
    if (view && view->up_bias)
        moe_kern.add(view->up_bias, width, up);
    switch (kind) {
    case MOE_ACT_SWIGLU:
        moe_kern.swiglu(gate, up, width, gate);
        break;
    case MOE_ACT_SWIGLU_CLAMPED:
        moe_kern.swiglu_clamped(gate, up, width, config->act_alpha, config->act_limit, gate);
        break;
    case MOE_ACT_GEGLU:
        geglu(up, width, gate);
        break;
    case MOE_ACT_REGLU:
        moe_kern.relu(gate, width, gate);
        for (uint32_t i = 0; i < width; i++)
            gate[i] *= up[i];
        break;
    case MOE_ACT_SWIGLU_LIMITED:
        moe_kern.clamp(config->act_limit, width, up);
        for (uint32_t i = 0; i < width; i++)
            gate[i] = moe_math_at_most(gate[i], config->act_limit);
        moe_kern.swiglu(gate, up, width, gate);
        break;
    case MOE_ACT_SWIGLU_CLIPPED:
        if (limit > 0)
            swiglu_clipped(limit, width, gate, up);
        else
            moe_kern.swiglu(gate, up, width, gate);
        break;
    case MOE_ACT_SITU:
        situ(config->act_alpha, config->act_limit, width, gate, up);
        break;
    case MOE_ACT_RELU:
        moe_kern.relu(up, width, gate);
        break;
    case MOE_ACT_RELU2:
        moe_kern.relu(up, width, up);
        memset(gate, 0, width * sizeof *gate);
        moe_kern.mul_add(up, up, width, gate);
        break;
    case MOE_ACT_SILU:
        moe_kern.silu(up, width, gate);
        break;
    }
}

void moe_add_down_bias(const struct moe_expert_view *view, uint32_t n, float *out, uint64_t stride)
{
    for (uint32_t i = 0; view->down_bias && i < n; i++)
        moe_kern.add(view->down_bias, view->down.rows, out + i * stride);
}

/* ---- Memory ---- */

/* One block; NULL on an arena that only counts. */
static struct moe_expert_compute *carve_compute(struct moe_arena *arena,
                                                const struct moe_config *config, uint32_t max_rows)
{
    struct moe_expert_compute *place = moe_arena_take(arena, 1, sizeof *place);
    struct moe_expert_compute c = {.config = config,
                                   .max_rows = max_rows,
                                   .stride = moe_round_up(config->expert_ff, MOE_PANEL_ROWS)};
    c.gate = moe_arena_take(arena, max_rows * c.stride, sizeof *c.gate);
    c.up = moe_arena_take(arena, max_rows * c.stride, sizeof *c.up);
    moe_inputs_carve(&c.from_x, arena, max_rows, config->hidden);
    moe_inputs_carve(&c.from_gate, arena, max_rows, config->expert_ff);
    if (place)
        *place = c;
    return place;
}

uint64_t moe_expert_compute_bytes(const struct moe_config *config, uint32_t max_rows)
{
    struct moe_arena arena = {0};
    carve_compute(&arena, config, max_rows);
    return arena.overflowed ? UINT64_MAX : arena.used;
}

int moe_expert_compute_open(struct moe_expert_compute **out, const struct moe_config *config,
                            uint32_t max_rows, struct moe_err *err)
{
    uint64_t bytes = moe_expert_compute_bytes(config, max_rows);
    struct moe_arena arena = {.base = moe_alloc(bytes, 1, err), .size = bytes};
    *out = arena.base ? carve_compute(&arena, config, max_rows) : NULL;
    return *out ? MOE_OK : MOE_ERR_MEMORY;
}

void moe_expert_compute_close(struct moe_expert_compute *c)
{
    free(c); /* the first of its block */
}

/* ---- Computing ---- */

void moe_expert_compute(struct moe_expert_compute *c, const struct moe_expert_view *view,
                        const float *x, uint64_t x_stride, const uint32_t *rows,
                        const float *scales, uint32_t n, float *out, uint64_t out_stride)
{
    moe_inputs_set(&c->from_x, x, x_stride, rows, n, view->up.cols);
    struct moe_mm in[2] = {moe_inputs_mm(&c->from_x, view->up, c->up, c->stride)};
    if (view->gate.data)
        in[1] = moe_inputs_mm(&c->from_x, view->gate, c->gate, c->stride);
    moe_matmul(in, view->gate.data ? 2 : 1);
    for (uint32_t i = 0; i < n; i++)
        moe_activate_row(c->config, view->layer, view, view->up.rows, scales ? &scales[i] : NULL,
                         c->gate + i * c->stride, c->up + i * c->stride);
    moe_inputs_set(&c->from_gate, c->gate, c->stride, NULL, n, view->down.cols);
    struct moe_mm down = moe_inputs_mm(&c->from_gate, view->down, out, out_stride);
    moe_matmul(&down, 1);
    moe_add_down_bias(view, n, out, out_stride);
}
