/* Where experts lie, seen from a forward pass. */
#include "infer/experts.h"

#include <stddef.h>
#include <stdio.h>

#include "base/clock.h"
#include "model/tensor_roles.h"

void moe_experts_close(struct moe_experts *experts)
{
    if (experts)
        experts->ops->close(experts);
}

double moe_experts_clock(struct moe_experts *self)
{
    return self->lockstep ? self->ops->clock(self) : moe_seconds();
}

/* ---- Views ---- */

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
    view->gate = (struct moe_mat){0};
    moe_class_matrix_view(class_, MOE_ROLE_GATE, segments, &view->gate);
    return moe_class_matrix_view(class_, MOE_ROLE_UP, segments, &view->up) &&
           moe_class_matrix_view(class_, MOE_ROLE_DOWN, segments, &view->down);
}

int moe_expert_class_check(const struct moe_expert_class *class_, const struct moe_config *config,
                           const char *path, struct moe_err *err)
{
    uint32_t n_wanted = 0;
    for (int part = 0; part < MOE_E_N_PARTS; part++) {
        uint32_t rows, cols;
        uint16_t role = (uint16_t)(MOE_ROLE_GATE + part);
        bool found = false;
        if (!moe_expert_part_shape(config, part, &rows, &cols))
            continue;
        n_wanted++;
        for (uint32_t k = 0; k < class_->n_matrices; k++)
            found |= class_->matrices[k].role == role && class_->matrices[k].rows == rows &&
                     class_->matrices[k].cols == cols;
        if (!found)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: an expert class lacks the %u x %u matrix of role %u", path, rows,
                            cols, role);
    }
    if (class_->n_matrices > n_wanted)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: an expert class has %u matrices and biases, the model's have %u", path,
                        class_->n_matrices, n_wanted);
    return MOE_OK;
}

int moe_expert_view_read(struct moe_expert_view *view, const struct moe_pack *pack,
                         struct moe_arena *arena, struct moe_err *err)
{
    const struct moe_expert_extent *e =
        moe_pack_expert(pack, view->layer, view->expert, view->variant);
    const struct moe_expert_class *class_ = moe_pack_class_at(pack, e->class_index);
    const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
    for (uint32_t i = 0; i < class_->n_segments; i++) {
        uint8_t *at = moe_arena_take(arena, class_->segment_bytes[i], 1);
        segments[i] = at;
        if (!at)
            continue; /* measuring */
        char what[128];
        snprintf(what, sizeof what, "layer %u expert %u variant %s", view->layer, view->expert,
                 moe_pack_variant_at(pack, view->variant)->name);
        int status = moe_pack_read(pack, &e->segments[i], at, what, err);
        if (status != MOE_OK)
            return status;
    }
    if (!arena->base)
        return MOE_OK;
    if (!moe_expert_view_set(view, class_, segments))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "%s: layer %u expert %u lacks an up or down matrix", moe_pack_path(pack),
                        view->layer, view->expert);
    return MOE_OK;
}

/* ---- Loads ---- */

struct moe_expert_segment moe_expert_segment_of(const struct moe_inventory *i, uint32_t key,
                                                uint32_t variant, uint32_t segment)
{
    return (struct moe_expert_segment){moe_inventory_model_layer(i, key),
                                       moe_inventory_expert(i, key), variant, segment};
}

struct moe_load moe_expert_load(const struct moe_pack *pack, const struct moe_expert_segment *s)
{
    const struct moe_extent *x =
        &moe_pack_expert(pack, s->layer, s->expert, s->variant)->segments[s->segment];
    return (struct moe_load){.offset = x->offset,
                             .stored_bytes = x->stored_bytes,
                             .raw_bytes = x->raw_bytes,
                             .checksum = x->checksum};
}

int moe_expert_load_failed(struct moe_err *err, int status, const struct moe_pack *pack,
                           const struct moe_expert_segment *s, const char *why)
{
    return moe_fail(err, status, "layer %u expert %u variant %s segment %u: %s", s->layer,
                    s->expert, moe_pack_variant_at(pack, s->variant)->name, s->segment, why);
}
