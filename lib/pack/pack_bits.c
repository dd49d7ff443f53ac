/* The bits of an expert class, and of a variant by its name. */
#include "pack/pack_bits.h"

bool moe_class_bits(const struct moe_expert_class *class_, struct moe_bits *out)
{
    *out = (struct moe_bits){0};
    for (uint32_t i = 0; i < class_->n_matrices; i++) {
        const struct moe_class_matrix *m = &class_->matrices[i];
        if (m->role == MOE_ROLE_GATE || m->role == MOE_ROLE_UP)
            out->gate_up = moe_layout_bits(m->layout.kind);
        else if (m->role == MOE_ROLE_DOWN)
            out->down = moe_layout_bits(m->layout.kind);
    }
    return out->gate_up > 0 && out->down > 0;
}

bool moe_class_has_gate(const struct moe_expert_class *class_)
{
    bool has = false;
    for (uint32_t i = 0; i < class_->n_matrices; i++)
        has |= class_->matrices[i].role == MOE_ROLE_GATE;
    return has;
}

bool moe_variant_bits(const struct moe_pack_variant *variant, struct moe_bits *out)
{
    return moe_parse_variant(variant->name, out);
}
