#include "experts/slot_uses.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

int slot_uses_open(struct slot_uses *u, struct moe_gpu *gpu, uint32_t n_slots, struct moe_err *err)
{
    *u = (struct slot_uses){.gpu = gpu, .before = moe_alloc(n_slots, 1, err)};
    if (!u->before)
        return MOE_ERR_MEMORY;
    memset(u->before, SLOT_USES_MARKS, n_slots);
    int status = MOE_OK;
    for (uint32_t i = 0; i < SLOT_USES_MARKS && status == MOE_OK; i++)
        status = moe_gpu_mark_open(&u->marks[i], gpu, false, err);
    return status;
}

void slot_uses_close(struct slot_uses *u)
{
    for (uint32_t i = 0; i < SLOT_USES_MARKS; i++)
        moe_gpu_mark_close(u->marks[i]);
    free(u->before);
}

static void note(struct slot_uses *u, uint32_t slot)
{
    u->before[slot] = (uint8_t)u->mark;
    u->used = true;
}

void slot_uses_give(struct slot_uses *u, uint32_t slot)
{
    note(u, slot);
    u->n_given++;
}

void slot_uses_take_back(struct slot_uses *u, uint32_t slot)
{
    note(u, slot);
    u->n_given--;
}

static void set_mark(struct slot_uses *u)
{
    if (!u->used)
        return;
    moe_gpu_mark_set(u->marks[u->mark], MOE_GPU_COMPUTE);
    u->mark = (u->mark + 1) % SLOT_USES_MARKS;
    u->used = false;
}

void slot_uses_begin(struct slot_uses *u)
{
    if (u->n_given > 0)
        moe_gpu_finish(u->gpu, NULL); /* a failure shows in the next load */
    u->n_given = 0;
    set_mark(u);
}

void slot_uses_overwrite(struct slot_uses *u, uint32_t slot)
{
    set_mark(u);
    if (u->before[slot] < SLOT_USES_MARKS)
        moe_gpu_stream_after(u->gpu, MOE_GPU_COPY, u->marks[u->before[slot]]);
    u->before[slot] = SLOT_USES_MARKS;
}
