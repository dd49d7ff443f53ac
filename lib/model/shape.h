/*
 * Shape: the bytes of a model, from its description, for plans about models whose weights are not
 * here. An estimate where a pack has exact figures: scales, alignment and padding follow
 * quant/layout.h; names and order are ignored.
 */
#ifndef MOE_MODEL_SHAPE_H
#define MOE_MODEL_SHAPE_H

#include <stdint.h>

#include "base/err.h"
#include "model/config.h"
#include "quant/bits.h"

struct moe_shape_bytes {
    uint64_t dense; /* everything but routed experts: embedding, head, attention, norms, ... */
    /* One MoE layer (the first layer of a dense model): norms, projections, router. With an
     * encoder, a decoder layer, including its attention to the encoder's output. */
    uint64_t attention;
    uint64_t router;   /* the router, part of the above */
    uint64_t shared;   /* shared expert, or bypass, of a MoE layer */
    uint64_t dense_ff; /* feed-forward of a dense layer */
    uint64_t head;     /* final norm (or last projection) and head; a tied head counts here as
                          well */
    /* KV cache of one position in all attention layers, f32, with its share of compressed entries.
     * With an encoder: of the decoder, for a position of the text and one of the source. */
    uint64_t kv_position;
    uint64_t expert;             /* one routed expert */
    uint64_t expert_segments[2]; /* gate and up; down */
    /* Learnt numbers, whatever their bits: all, and those that `attention` counts, without the
     * router. */
    uint64_t parameters, attention_parameters;
};

/* As moe-quantize stores them by default. expert_bits, dense_bits: 32, 16, 8, 6, 5, 4, 3, 2 or a
 * type; group: columns that share a scale where rows are too narrow for blocks. Parts that the
 * model lacks are 0. Routers count as 16 bits, though F32 checkpoints have 32. MOE_ERR_USAGE: other
 * bits or groups. */
int moe_shape_bytes(struct moe_shape_bytes *out, const struct moe_config *config,
                    struct moe_bits expert_bits, uint32_t dense_bits, uint32_t group,
                    struct moe_err *err);

#endif
