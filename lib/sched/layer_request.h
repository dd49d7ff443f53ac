/*
 * Layer request: the experts that the rows of a pass choose in a MoE layer, grouped by expert. The
 * groups, "entries", are what the scheduler, or another provider of experts, is asked for. One
 * request is filled again for every layer.
 */
#ifndef MOE_SCHED_LAYER_REQUEST_H
#define MOE_SCHED_LAYER_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mem.h"
#include "sched/scheduler.h"

struct moe_layer_request {
    uint32_t n_experts, top_k;
    uint32_t moe;   /* the layer's index among MoE layers */
    uint32_t layer; /* the model's layer that owns its experts */

    /* Activations. */
    uint32_t *chosen;    /* [batch][top_k] */
    float *weights;      /* [batch][top_k] */
    uint8_t *variants;   /* [batch][top_k] as assigned; NULL: there is no assigner */
    uint32_t *rows;      /* [batch * top_k] rows of the batch, grouped by entry */
    uint32_t *sequences; /* [batch] of the rows */
    uint32_t *slot_of; /* [batch][top_k] where it lies in that order, as do the experts' outputs */
    float *scales;   /* [batch * top_k] of experts' inputs, by slot; NULL: weights scale outputs */
    uint8_t *over;   /* [batch][top_k] beyond the expert's capacity; NULL: there is none */
    float *passing;  /* [batch][top_k] their weights; NULL: their rows do not pass the expert */
    uint32_t n_over; /* in this layer: they belong to no entry and come after all entries; their
                        outputs are zeros, or their rows' inputs (passing) */

    /* Entries: an expert once for each class of rows that want it. With an assigner a class is a
     * variant, the last one what is left out; otherwise there is one. Room for n_experts *
     * n_classes. */
    uint32_t n_entries, n_classes;
    uint32_t *experts;
    uint32_t *n_rows, *first; /* its part of `rows` */
    uint8_t *classes;
    struct moe_need *needs; /* as the scheduler wants them */
    uint8_t *kinds;         /* what becomes of them: enum moe_entry_kind */
    uint8_t *ranks; /* which process computes them, where several share experts out (share.h) */

    uint32_t *cursor;    /* [entries] scratch for grouping */
    float *unimportance; /* [n_experts] least score of equation 2 (select.h) */
};

struct moe_request_shape {
    uint32_t n_experts, top_k, batch;
    uint32_t n_variants; /* that an assigner chooses from; 0: there is none */
    bool weighs_inputs;  /* weights scale what experts take in */
    bool limited;        /* experts have a capacity */
    bool passes;         /* ... and rows beyond it pass them */
};

/* Takes its arrays from the arena, which may only count. */
void moe_layer_request_carve(struct moe_layer_request *r, struct moe_arena *arena,
                             const struct moe_request_shape *shape);

/* Groups the first n_rows rows' choices into entries, ascending by expert and class. assigned:
 * `variants` counts, and its last class is left out. precalculated: [n_experts] those computed a
 * layer early (DAOP IV-C), or NULL. */
void moe_layer_request_fill(struct moe_layer_request *r, uint32_t n_rows, bool assigned,
                            const uint8_t *precalculated);

#endif
