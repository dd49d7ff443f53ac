/*
 * Shape: what a model weighs, from its description alone, for plans about models whose weights are
 * not here. Estimates where the pack's own figures are exact: scales, alignment and padding follow
 * quant/layout.h, names and order do not matter.
 */
#ifndef MOE_MODEL_SHAPE_H
#define MOE_MODEL_SHAPE_H

#include <stdint.h>

#include "base/err.h"
#include "model/config.h"
#include "quant/bits.h"

struct moe_shape_bytes {
    uint64_t dense; /* all that is not a routed expert: embedding, head, attention, norms, ... */
    /* Of one MoE layer (without any: of the first): norms, projections, router. With an encoder of
     * one of the decoder, whose attention to the encoder's output is part of it. */
    uint64_t attention;
    uint64_t router;   /* ... of these the router */
    uint64_t shared;   /* shared expert, or bypass, of one MoE layer */
    uint64_t dense_ff; /* feed-forward of one layer without experts */
    uint64_t head;     /* final norm (or last projection) and head; a tied one counts here too */
    /* KV cache of one position, all layers of attention, f32; its part of entries as well. With an
     * encoder all of the decoder's, for a position of the text and one of its source. */
    uint64_t kv_position;
    uint64_t expert;             /* one routed expert */
    uint64_t expert_segments[2]; /* gate and up; down */
    /* Numbers that the model learnt, whatever bits they have: all; and what `attention` counts
     * without the router. */
    uint64_t parameters, attention_parameters;
};

/* expert_bits, dense_bits: of 32, 16, 8, 4, 3 and 2; group: columns that share a scale. Parts that
 * the model does not have are 0. A checkpoint in F32 keeps its routers at 32 bits, here they are
 * taken to have 16. MOE_ERR_USAGE: no such bits or group. */
int moe_shape_bytes(struct moe_shape_bytes *out, const struct moe_config *config,
                    struct moe_bits expert_bits, uint32_t dense_bits, uint32_t group,
                    struct moe_err *err);

#endif
