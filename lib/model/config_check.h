/*
 * What the checks of a description share (config.c, config_mixing.c). Internal to lib/model.
 */
#ifndef MOE_MODEL_CONFIG_CHECK_H
#define MOE_MODEL_CONFIG_CHECK_H

#include <stddef.h>

#include "model/config.h"

struct moe_range {
    const char *key;
    uint32_t value, low, high;
};

/* MOE_ERR_FORMAT for the first that lies outside. `name` begins the error text, here and below. */
int moe_config_check_ranges(const char *name, const struct moe_range *ranges, size_t n,
                            struct moe_err *err);

/* Of how layers look at other tokens: attention, positions, windows, encoders, recurrent states. */
int moe_config_check_mixing(const struct moe_config *c, const char *name, struct moe_err *err);

#endif
