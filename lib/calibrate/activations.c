#include "calibrate/activations.h"

#include <stdlib.h>

#include "base/mem.h"
#include "quant/cholesky.h"

enum { CHUNK = 256 /* tokens whose activations are computed at a time */ };

static void carve(struct moe_activations *a, struct moe_arena *arena)
{
    const struct moe_config *c = a->config;
    uint32_t ff = c->dense_ff > c->expert_ff ? c->dense_ff : c->expert_ff;
    a->ff_stride = moe_round_up(ff > c->shared_ff ? ff : c->shared_ff, MOE_PANEL_ROWS);
    a->gate = moe_arena_take(arena, CHUNK * a->ff_stride, sizeof *a->gate);
    a->up = moe_arena_take(arena, CHUNK * a->ff_stride, sizeof *a->up);
    moe_inputs_carve(&a->inputs, arena, CHUNK, c->hidden);
}

int moe_activations_open(struct moe_activations *a, const struct moe_config *config,
                         struct moe_err *err)
{
    struct moe_arena arena = {0};
    *a = (struct moe_activations){.config = config};
    carve(a, &arena);
    a->block = moe_alloc(arena.used, 1, err);
    if (!a->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = a->block, .size = arena.used};
    carve(a, &arena);
    return MOE_OK;
}

void moe_activations_close(struct moe_activations *a)
{
    free(a->block);
    a->block = NULL;
}

void moe_activations_add(struct moe_activations *a, const struct moe_ffn *ffn, const float *inputs,
                         const uint32_t *rows, uint32_t n, double *moments)
{
    uint32_t width = ffn->up.rows, hidden = a->config->hidden;
    for (uint32_t first = 0; first < n; first += CHUNK) {
        uint32_t here = n - first < CHUNK ? n - first : CHUNK;
        moe_inputs_set(&a->inputs, inputs + (rows ? 0 : first * (uint64_t)hidden), hidden,
                       rows ? rows + first : NULL, here, hidden);
        struct moe_mm mm[2] = {
            moe_inputs_mm(&a->inputs, ffn->up, a->up, a->ff_stride),
        };
        if (ffn->gate.data)
            mm[1] = moe_inputs_mm(&a->inputs, ffn->gate, a->gate, a->ff_stride);
        moe_matmul(mm, ffn->gate.data ? 2 : 1);
        for (uint32_t i = 0; i < here; i++)
            moe_activate_row(a->config, ffn->view, width, NULL, a->gate + i * a->ff_stride,
                             a->up + i * a->ff_stride);
        moe_moments_add(moments, width, a->gate, a->ff_stride, NULL, here);
    }
}
