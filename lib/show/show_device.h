/* A device profile (moe-device(5)) for a person. */
#ifndef MOE_SHOW_SHOW_DEVICE_H
#define MOE_SHOW_SHOW_DEVICE_H

#include "base/buf.h"
#include "record/device.h"
#include "show/draw.h"

/* What is known, with its spread and sources, and what loads cost against computation. */
void moe_show_device(const struct moe_device *d, struct moe_screen screen, struct moe_buf *out);

#endif
