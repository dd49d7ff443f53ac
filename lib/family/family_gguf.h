/*
 * What the reader of GGUF files hands to files of its own. Internal to lib/family.
 */
#ifndef MOE_FAMILY_GGUF_H
#define MOE_FAMILY_GGUF_H

#include "base/err.h"
#include "fmt/checkpoint.h"
#include "model/config.h"
#include "model/rope.h"

/* Reads the rotary settings into config, which has its heads and widths already. settings: what the
 * family has put into them before. MOE_ERR_FORMAT, MOE_ERR_UNSUPPORTED. */
int family_gguf_rotary(struct moe_config *config, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *settings, struct moe_err *err);

#endif
