/* A trace (moe-trace(5)): a few lines for a person, JSON for scripts. */
#ifndef MOE_SHOW_SHOW_TRACE_H
#define MOE_SHOW_SHOW_TRACE_H

#include "base/buf.h"
#include "trace/trace.h"

/* A few lines for a person. */
void moe_show_trace(const struct moe_trace *t, struct moe_buf *out);
/* The same as one JSON object. */
void moe_show_trace_json(const struct moe_trace *t, struct moe_buf *out);

#endif
