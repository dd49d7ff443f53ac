/*
 * What a server did, as a JSON object for programs.
 */
#ifndef MOE_SHOW_SHOW_SERVER_H
#define MOE_SHOW_SHOW_SERVER_H

#include "base/buf.h"
#include "base/err.h"
#include "serve/server.h"

/* The counts, in their words, with the peak of this process. */
int moe_show_server_json(const struct moe_server_counts *c, struct moe_buf *out,
                         struct moe_err *err);

#endif
