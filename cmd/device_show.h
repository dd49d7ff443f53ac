/* moe-profile --show: a device profile for a person. */
#ifndef CMD_DEVICE_SHOW_H
#define CMD_DEVICE_SHOW_H

#include "base/buf.h"
#include "record/device.h"

/* What is known, with spread, sources, and what a planner makes of it. */
void device_show_text(const struct moe_device *d, struct moe_buf *out);

#endif
