/* What the last answer of a conversation says, from the tokens of its context. */
#ifndef MOE_ENGINE_CONVERSATION_SAYS_H
#define MOE_ENGINE_CONVERSATION_SAYS_H

#include "engine/conversation.h"

/* Appends the answer as it is in the context, special tokens with their texts. */
void conversation_append_answer(const struct moe_conversation *c, struct moe_buf *out);
/* Appends what was shown of it. */
void conversation_append_shown(const struct moe_conversation *c, struct moe_buf *out);
/* The answer as a message, its thought apart; shown: what was shown of it. NULL: memory is short.
 */
struct json_t *conversation_answer_message(const struct moe_conversation *c,
                                           const struct moe_buf *shown, struct moe_err *err);

#endif
