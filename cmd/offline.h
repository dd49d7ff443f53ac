/*
 * Shared by the programs whose work takes hours: shards, the file beside the output that an
 * interrupted run leaves, and what is left out of texts.
 */
#ifndef CMD_OFFLINE_H
#define CMD_OFFLINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "tune/documents.h"

/* --shard I/N; index counts from 0. */
struct offline_shard {
    uint32_t index, n;
};
/* For CLI_OPT_CUSTOM. text NULL: the place in Slurm's job array, as the environment has it
 * (SLURM_ARRAY_TASK_ID, _COUNT, _MIN and _MAX). */
bool offline_parse_shard(const char *text, void *to, struct moe_err *why);

/* "OUT.part"; free() it. NULL: out of memory. */
char *offline_partial_name(const char *out, struct moe_err *err);
/* Once the output is in its place, and not before: until then it is all there is. */
void offline_remove_partial(const char *partial);

/* Says in numbers what of the texts was not looked at, and what would have it looked at; nothing
 * where all was. */
void offline_note_left_out(const struct moe_left_out *left_out, const char *but);

#endif
