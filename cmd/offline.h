/*
 * Shared by the programs whose work takes hours: shards, and the file beside the output that an
 * interrupted run leaves.
 */
#ifndef CMD_OFFLINE_H
#define CMD_OFFLINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* --shard I/N; index counts from 0. */
struct offline_shard {
    uint32_t index, n;
};
/* For CLI_OPT_CUSTOM. */
bool offline_parse_shard(const char *text, void *to, char why[128]);

/* "OUT.part"; free() it. NULL: out of memory. */
char *offline_partial_name(const char *out, struct moe_err *err);

#endif
