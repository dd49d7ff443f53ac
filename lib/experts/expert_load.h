/*
 * Segments of experts as loads for the loader.
 */
#ifndef MOE_EXPERTS_EXPERT_LOAD_H
#define MOE_EXPERTS_EXPERT_LOAD_H

#include "base/err.h"
#include "io/loader.h"
#include "pack/pack.h"

/* One segment of an expert of the pack; the layer is the model's. */
struct moe_expert_segment {
    uint32_t layer, expert, variant, segment;
};

/* How to load it: its place in the file, its sizes and checksum. */
struct moe_load moe_expert_load(const struct moe_pack *pack, const struct moe_expert_segment *s);

/* "layer 3 expert 17 variant 4 segment 1: why" as an error; returns status. */
int moe_expert_load_failed(struct moe_err *err, int status, const struct moe_pack *pack,
                           const struct moe_expert_segment *s, const char *why);

#endif
