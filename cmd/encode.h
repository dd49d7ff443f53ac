/* moe-run --encode: vectors of texts by models with an encoder, a line of JSON each. */
#ifndef CMD_ENCODE_H
#define CMD_ENCODE_H

#include <stdbool.h>

#include "base/buf.h"
#include "engine/encode.h"

/* That the command line's options are such as a model with an encoder, or one without, has. */
int encode_check_options(const char *pack, const struct moe_config *c, bool encodes,
                         struct moe_err *err);

/* Writes {"tokens", "pooling", "embedding"} for the text (NUL-terminated) if it is one, else for
 * each of its lines. MOE_ERR_LIMIT names the first line that does not fit the context; those before
 * it have been written. */
int encode_texts(struct moe_session *s, const struct moe_buf *text, bool one,
                 enum moe_pooling pooling, struct moe_err *err);

#endif
