/*
 * Uses of an expert cache's slots on a GPU: a slot is overwritten, on the stream that copies, only
 * after the work queued on the stream that computes has used it, and the host does not wait.
 *
 * A mark is set after all uses since the one before it. There are a few, set in turn: one that is
 * reused waits longer than necessary, never too short.
 */
#ifndef MOE_EXPERTS_SLOT_USES_H
#define MOE_EXPERTS_SLOT_USES_H

#include <stdbool.h>
#include <stdint.h>

#include "gpu.h"

enum { SLOT_USES_MARKS = 8 };

struct slot_uses {
    struct moe_gpu *gpu; /* borrowed */
    struct moe_gpu_mark *marks[SLOT_USES_MARKS];
    uint32_t mark;    /* the next to be set */
    bool used;        /* a slot, since the last one was set */
    uint8_t *before;  /* [slots] the mark after its last use; SLOT_USES_MARKS: none */
    uint32_t n_given; /* and not taken back */
};

/* MOE_ERR_MEMORY, MOE_ERR_DEVICE. Closed also after that. */
int slot_uses_open(struct slot_uses *u, struct moe_gpu *gpu, uint32_t n_slots, struct moe_err *err);
void slot_uses_close(struct slot_uses *u);

/* Work queued on the compute stream between these two calls uses the slot. */
void slot_uses_give(struct slot_uses *u, uint32_t slot);
void slot_uses_take_back(struct slot_uses *u, uint32_t slot);
/* The next request begins. What was not taken back was given up by an error: waits for the GPU. */
void slot_uses_begin(struct slot_uses *u);

/* Copies queued from now on may overwrite the slot. */
void slot_uses_overwrite(struct slot_uses *u, uint32_t slot);

#endif
