/* moe-profile --show TRACE: what a trace holds. */
#ifndef CMD_PROFILE_TRACE_H
#define CMD_PROFILE_TRACE_H

#include "base/buf.h"
#include "record/trace.h"

/* A few lines for a person. */
void profile_trace_text(const struct moe_trace *t, struct moe_buf *out);
/* The same as one JSON object. */
void profile_trace_json(const struct moe_trace *t, struct moe_buf *out);

#endif
