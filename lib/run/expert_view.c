#include "run/experts.h"

#include <stddef.h>

static const float *bias(const struct moe_expert_class *class_, uint16_t role,
                         const uint8_t *const *segments)
{
    struct moe_mat vector;
    if (!moe_class_matrix_view(class_, role, segments, &vector))
        return NULL;
    return (const float *)(const void *)vector.data;
}

bool moe_expert_view_set(struct moe_expert_view *view, const struct moe_expert_class *class_,
                         const uint8_t *const *segments)
{
    view->gate_bias = bias(class_, MOE_ROLE_GATE_BIAS, segments);
    view->up_bias = bias(class_, MOE_ROLE_UP_BIAS, segments);
    view->down_bias = bias(class_, MOE_ROLE_DOWN_BIAS, segments);
    return moe_class_matrix_view(class_, MOE_ROLE_GATE, segments, &view->gate) &&
           moe_class_matrix_view(class_, MOE_ROLE_UP, segments, &view->up) &&
           moe_class_matrix_view(class_, MOE_ROLE_DOWN, segments, &view->down);
}
