/*
 * Turns dropped: the last one, or the oldest of a full context.
 *
 * Context shift: a full context loses its oldest part, and the answer goes on.
 *
 * Of a chat whole turns go, the oldest first and never the system's text; when a single one is
 * left, the older half of the answer so far. Of plain text the older half goes. What stays is
 * computed again where it has moved: the next token is the one that would come had the conversation
 * begun without what was dropped. That is another one than with a longer context, so it is counted
 * (moe_stats) and never done unasked.
 */
#ifndef MOE_ENGINE_CONTEXT_SHIFT_H
#define MOE_ENGINE_CONTEXT_SHIFT_H

#include "engine/conversation.h"

/* As moe_conversation_ask, or with a text of NULL moe_conversation_continue; of a question that
 * does not fit as many of the oldest turns are dropped as it takes. MOE_ERR_UNSUPPORTED: the model
 * has an encoder, or its prompts see all of themselves. */
int moe_conversation_shifting(struct moe_conversation *c, const char *text,
                              struct moe_sampler *sampler,
                              const struct moe_generate_options *options, enum moe_stop_reason *why,
                              struct moe_err *err);

/* How many tokens a question takes with the system's text alone, when all turns are dropped. */
int moe_conversation_alone(struct moe_conversation *c, const char *text, uint64_t *n,
                           struct moe_err *err);

/* Drops the last question with all behind it, and appends its text to `question` (NULL: not
 * wanted). False: there is none. */
bool moe_conversation_undo(struct moe_conversation *c, struct moe_buf *question);

#endif
