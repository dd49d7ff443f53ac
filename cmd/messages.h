/*
 * Conversations that are read whole, and what a model would be fed.
 */
#ifndef CMD_MESSAGES_H
#define CMD_MESSAGES_H

#include "base/buf.h"
#include "base/err.h"
#include "engine/conversation.h"

struct json_t;

/* Takes the text of a file of messages: their JSON array, or an object with "messages" and perhaps
 * "tools" and "chat_template_kwargs". *json holds what the conversation borrows: release it with
 * moe_json_free when the conversation is done. */
int messages_take(struct moe_conversation *talk, const char *file, const struct moe_buf *text,
                  struct json_t **json, struct moe_err *err);

/* Prints what would be fed for an answer, exactly, and a line with its ids. text: the question;
 * NULL: the conversation has it. */
int messages_show_prompt(struct moe_conversation *talk, const char *text, struct moe_err *err);

#endif
