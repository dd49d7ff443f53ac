#include "kern/inputs.h"

#include <string.h>

void moe_inputs_carve(struct moe_inputs *in, struct moe_arena *arena, uint32_t n, uint32_t cols)
{
    for (int form = 0; form < 3; form++)
        moe_act_carve(&in->act[form], arena, n, cols);
}

void moe_inputs_set(struct moe_inputs *in, const float *x, uint64_t stride, const uint32_t *rows,
                    uint32_t n, uint32_t cols)
{
    in->x = x;
    in->stride = stride;
    in->rows = rows;
    in->n = n;
    in->cols = cols;
    memset(in->ready, 0, sizeof in->ready);
}

const struct moe_act *moe_inputs_for(struct moe_inputs *in, struct moe_layout layout)
{
    uint32_t block = moe_act_block_for(layout);
    int form = block == 0 ? 0 : block == 32 ? 1 : 2;
    if (!in->ready[form]) {
        moe_act_prepare(&in->act[form], in->x, in->stride, in->rows, in->n, in->cols, block);
        in->ready[form] = true;
    }
    return &in->act[form];
}

struct moe_mm moe_inputs_mm(struct moe_inputs *in, struct moe_mat w, float *y, uint64_t y_stride)
{
    return (struct moe_mm){w, moe_inputs_for(in, w.layout), y, y_stride};
}
