/*
 * What the reader of GGUF files, and families that read keys of their own there, have in common.
 * Internal to lib/family.
 */
#ifndef MOE_FAMILY_GGUF_H
#define MOE_FAMILY_GGUF_H

#include "base/err.h"
#include "fmt/checkpoint.h"
#include "model/config.h"
#include "model/rope.h"

/* The tensor whose name has the layer for "%u"; NULL: it is not there. */
const struct moe_tensor *family_gguf_tensor(const struct moe_checkpoint *ck, const char *format,
                                            uint32_t layer);

/*
 * Numbers by layer: an array of one, whole or a truth value, for each of the model's layers (and
 * those for further tokens, perhaps), or one number for all of them. Where the key, which has the
 * architecture's name before it, is missing, `out` stays as it was. MOE_ERR_FORMAT.
 */
int family_gguf_by_layer(const struct moe_config *config, const struct moe_gguf *gguf,
                         const char *name, uint32_t most, uint32_t out[MOE_MAX_LAYERS],
                         struct moe_err *err);

/* Whether the key is an array of numbers; the largest of its numbers. MOE_ERR_FORMAT. */
bool family_gguf_is_list(const struct moe_gguf *gguf, const char *name);
int family_gguf_largest(const struct moe_gguf *gguf, const char *name, uint32_t most, uint32_t *out,
                        struct moe_err *err);

/* Which layers have a window, by "attention.sliding_window_pattern": a truth value for each, or a
 * number n where every n-th has none. every: that number where the key is missing, 0 if it must be
 * there. MOE_ERR_FORMAT. */
int family_gguf_windows(struct moe_config *config, const struct moe_gguf *gguf, uint32_t every,
                        struct moe_err *err);

/* Reads the rotary settings into config, which has its heads and widths already. settings: what the
 * family has put into them before. MOE_ERR_FORMAT, MOE_ERR_UNSUPPORTED. */
int family_gguf_rotary(struct moe_config *config, const struct moe_checkpoint *ck,
                       struct moe_rope_settings *settings, struct moe_err *err);

#endif
