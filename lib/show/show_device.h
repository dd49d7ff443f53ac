/* A device profile (moe-device(5)) for a person. */
#ifndef MOE_SHOW_SHOW_DEVICE_H
#define MOE_SHOW_SHOW_DEVICE_H

#include "base/buf.h"
#include "record/device.h"

/* What is known, with spread, sources, and what a planner makes of it. */
void moe_show_device(const struct moe_device *d, struct moe_buf *out);

#endif
