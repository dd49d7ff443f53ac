/*
 * moe-profile --coe: what the models of a collection cost on this machine.
 */
#ifndef CMD_PROFILE_COE_H
#define CMD_PROFILE_COE_H

#include <stdint.h>

struct profile_coe {
    const char *out, *requests;            /* requests: NULL: there are no samples */
    uint32_t prompt_tokens, answer_tokens; /* 0: as the samples have them, else a default */
    uint32_t max_batch;
    uint64_t memory, gpu_memory; /* limits; 0: what is free */
};

/* Returns the exit status. */
int profile_coe(const char *collection, const struct profile_coe *options);

#endif
