/*
 * The one answer of moe-run -p, -f or a text on standard input: streamed, or its tokens as JSON.
 */
#ifndef CMD_ANSWER_ONCE_H
#define CMD_ANSWER_ONCE_H

#include "base/err.h"
#include "engine/conversation.h"
#include "engine/engine.h"

/* Asks `text` (NULL: what the conversation ends with) with the options of the command line and
 * prints the answer, which follows the constraint (NULL: there is none). started: moe_seconds()
 * when the program began. What the session counted is in its stats. A negative status without a
 * text in err: standard output failed, and cli_finish says so. */
int answer_once(const struct moe_engine *engine, struct moe_conversation *talk, const char *text,
                struct moe_constraint *constraint, double started, struct moe_err *err);

#endif
