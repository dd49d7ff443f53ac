/*
 * Lockstep: the modelled clock of a run moves on by what its pace says computing takes, at the
 * places where the simulator's does (plan/pace.h). Nothing happens in a session without a pace.
 */
#ifndef MOE_RUN_LOCKSTEP_H
#define MOE_RUN_LOCKSTEP_H

#include "run/session.h"

/* A piece of a layer was computed for so many rows. */
void moe_lockstep_piece(struct moe_session *s, enum moe_piece piece, uint32_t rows);
/* A part of an expert was: the last (down), or what comes before it. */
void moe_lockstep_expert(struct moe_session *s, uint32_t variant, uint32_t rows, bool last);
/* Predictions for n layers ahead were made. */
void moe_lockstep_predict(struct moe_session *s, uint32_t n);
/* The head, at the end of a pass through the last layer. */
void moe_lockstep_head(struct moe_session *s);
/* Somebody waited until the modelled clock showed `due`; returns for how long. */
double moe_lockstep_wait(struct moe_session *s, double due);

#endif
