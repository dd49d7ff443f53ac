/*
 * Layer request: which experts the rows of a pass want of a MoE layer. The router (and a strategy
 * or an assigner after it) chooses; the choices are grouped by expert; the groups, "entries", are
 * what the experts' provider is asked for.
 *
 * A session has one, which every layer fills again.
 */
#ifndef MOE_INFER_LAYER_REQUEST_H
#define MOE_INFER_LAYER_REQUEST_H

#include <stdint.h>

#include "base/mem.h"
#include "infer/experts.h"
#include "model/config.h"

struct moe_prompt;
struct moe_row;

/*
 * Assigning precision: calibration says, activation by activation, at which of a pack's variants an
 * expert is computed. Entries are then per expert and variant, so that one pass can hold rows under
 * different rules; a row's result is the same as in a pass of its own.
 */
struct moe_assigner {
    void *ctx;
    /* The router of a MoE layer has chosen for n_rows rows. variants: [n_rows][top_k] out, below
     * the session's n_variants or MOE_LEFT_OUT; chosen and weights as the observer sees them. An
     * expert that is not stored at a variant is computed at the best it has. */
    void (*assign)(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants);
};

/* In the place of a variant: the activation adds nothing; the other weights stay (HOBBIT 3.2). */
enum { MOE_LEFT_OUT = 0xff };

struct moe_layer_request {
    /* Of activations. */
    uint32_t *chosen;    /* [batch][top_k] */
    float *weights;      /* [batch][top_k] */
    uint8_t *variants;   /* [batch][top_k] as assigned; not without an assigner */
    uint32_t *rows;      /* [batch * top_k] rows of the batch, grouped by entry */
    uint32_t *sequences; /* [batch] of the rows */
    uint32_t *slot_of; /* [batch][top_k] where it lies in that order, as do the experts' outputs */
    float *scales;  /* [batch * top_k] of what experts take in, by slot; not without weigh_inputs */
    uint8_t *over;  /* [batch][top_k] beyond the expert's capacity; not without one */
    float *passing; /* [batch][top_k] their weights; not unless overflow_passes */
    uint32_t n_over; /* of the layer at work: they belong to no entry and lie behind all of these,
                        their outputs zeros, or what their rows brought (overflow_passes) */

    /* Of entries: an expert once for each class of rows that want it. With an assigner a class is a
     * variant, the last one what is left out; otherwise there is one. Room for n_experts *
     * n_classes. */
    uint32_t n_entries, n_classes;
    uint32_t *experts;
    uint32_t *n_rows, *first; /* its part of `rows` */
    uint8_t *classes;
    struct moe_need *needs; /* as the scheduler wants them */
    uint8_t *kinds;         /* what becomes of them: enum moe_entry_kind */

    uint32_t *cursor;    /* [entries] scratch for grouping */
    float *unimportance; /* [n_experts] least score of equation 2 (sched/select.h) */
};

/* Room for `batch` rows; n_variants as in the session's options. */
void moe_layer_request_carve(struct moe_layer_request *r, struct moe_arena *arena,
                             const struct moe_config *config, uint32_t batch, uint32_t n_variants);

/* Counts the rows of each source, or prompt, that an expert takes, in their order, and marks the
 * choices beyond its capacity (expert_capacity): their weights become 0, those of rows that pass it
 * until the choices are grouped. prompts: by sequence, in a model that has them; else the layer is
 * an encoder's, or nothing is marked. */
void moe_layer_request_limit(struct moe_layer_request *r, const struct moe_config *config,
                             uint32_t layer, const struct moe_prompt *prompts,
                             const struct moe_row *rows, uint32_t n_rows);

/* Groups the first n_rows rows' choices into entries, ascending by expert and class. assigned:
 * `variants` counts, and its last class is left out. precalculated: [n_experts] those of DAOP's
 * pre-calculation, or NULL. */
void moe_layer_request_fill(struct moe_layer_request *r, const struct moe_config *config,
                            uint32_t n_rows, bool assigned, const uint8_t *precalculated);

/* MOE_ERR_FORMAT when one of the weights that the router of model layer `layer` gave is not a
 * number. */
int moe_layer_request_check(const struct moe_layer_request *r, const struct moe_config *config,
                            uint32_t layer, uint32_t n_rows, struct moe_err *err);

#endif
