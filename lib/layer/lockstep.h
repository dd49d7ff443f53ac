/*
 * Lockstep: the modelled clock of a run moves on by what its pace says computing takes, at the
 * places where the simulator's does (plan/pace.h). Nothing happens in a session without a pace.
 */
#ifndef MOE_LAYER_LOCKSTEP_H
#define MOE_LAYER_LOCKSTEP_H

#include "layer/session.h"

/* Something was computed that takes so long. */
static inline void moe_lockstep_took(struct moe_session *s, double seconds)
{
    if (s->experts->ops->computed)
        s->experts->ops->computed(s->experts, seconds);
}

/* A piece of a layer was computed for so many rows. */
static inline void moe_lockstep_piece(struct moe_session *s, enum moe_piece piece, uint32_t rows)
{
    if (s->pace)
        moe_lockstep_took(s, moe_pace_piece(s->pace, piece, rows));
}

/* One with attention in it was, by these rows. */
static inline void moe_lockstep_attention(struct moe_session *s, enum moe_piece piece,
                                          const struct moe_row *rows, uint32_t n_rows)
{
    double positions = 0;
    for (uint32_t i = 0; s->pace && i < n_rows; i++)
        positions += rows[i].position + 1;
    if (s->pace)
        moe_lockstep_took(s, moe_pace_attention(s->pace, piece, n_rows, positions));
}

/* Matrices of an expert were: its last (down), or those before it. */
static inline void moe_lockstep_expert(struct moe_session *s, uint32_t variant, uint32_t rows,
                                       bool last)
{
    if (s->pace)
        moe_lockstep_took(s, moe_pace_expert_part(s->pace, variant, rows, last));
}

#endif
