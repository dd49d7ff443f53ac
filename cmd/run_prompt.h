/* What moe-run reads to continue or answer: a text, or a conversation with its template. */
#ifndef CMD_RUN_PROMPT_H
#define CMD_RUN_PROMPT_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/conversation.h"
#include "engine/engine.h"
#include "infer/model.h"
#include "prompt/chat.h"
#include "text/tokenizer.h"

struct prompt {
    struct moe_buf text; /* NUL-terminated */
    uint64_t unread;     /* bytes of a file too long to hold; 0: the text was read */
    uint64_t bytes;      /* that the prompt takes in memory beyond a budget's margin */
};

/* Reads the prompt: `text` if it is not NULL, else the file, else ("-" or NULL) standard input.
 * MOE_ERR_FORMAT: it contains NUL bytes; MOE_ERR_LIMIT: standard input has more than may_hold
 * bytes; a file that has more is not read (p->unread). Its text is released in any case. */
int prompt_read(struct prompt *p, const char *text, const char *file, uint64_t may_hold,
                struct moe_err *err);
/* Sets p->bytes for the first most_tokens tokens of the prompt. whole: MOE_ERR_LIMIT if it has
 * more. */
int prompt_survey(struct prompt *p, const struct moe_model *model, uint64_t most_tokens, bool whole,
                  struct moe_err *err);
/* MOE_ERR_LIMIT where it was not read. */
int prompt_check_read(const struct prompt *p, uint64_t may_hold, struct moe_err *err);

/* The chat of the template in `file`, or of the model's own where file is NULL. *chat NULL: raw, or
 * neither has one. Release it with moe_chat_free. */
int prompt_chat(const char *file, bool raw, const struct moe_model *model, const char *pack,
                struct moe_chat **chat, struct moe_err *err);

/* ---- Conversations that are read whole, and what a model would be fed ---- */

struct json_t;

/* Takes the text of a file of messages: their JSON array, or an object with "messages" and perhaps
 * "tools" and "chat_template_kwargs". *json holds what the conversation borrows: release it with
 * moe_json_free when the conversation is done. */
int messages_take(struct moe_conversation *talk, const char *file, const struct moe_buf *text,
                  struct json_t **json, struct moe_err *err);

/* Reads the tools of a file: their JSON array, or an object with "tools"; choice: as below. Release
 * the array with moe_json_free. */
int tools_read(const char *file, const char *choice, struct json_t **tools, struct moe_err *err);
/* Holds calls of the conversation's tools to form and schemas; choice: "auto", "none", "required",
 * or the name of the one to call; NULL: auto. *grammar and *constraint stay NULL where answers are
 * free; release both, the constraint first. */
int messages_hold_calls(struct moe_conversation *talk, struct moe_engine *engine,
                        const char *choice, struct moe_grammar **grammar,
                        struct moe_constraint **constraint, struct moe_err *err);
/* Prints the last message of a conversation, and why it ended, as an object of JSON. */
int messages_print_answer(const struct moe_conversation *talk, enum moe_stop_reason why,
                          struct moe_err *err);

/* Prints what would be fed for an answer, exactly, and a line with its ids. text: the question;
 * NULL: the conversation has it. */
int messages_show_prompt(struct moe_conversation *talk, const char *text, struct moe_err *err);

#endif
