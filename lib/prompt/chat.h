/*
 * Chat: conversations written by the model's own template.
 *
 * A chat is a checkpoint's Jinja template (prompt/jinja.h) with what it needs from the tokenizer.
 * No formats are coded in: what a template accepts, how an answer ends and where thoughts go is
 * found by rendering short conversations when the template is opened.
 *
 * Messages are a JSON array as in OpenAI's API and transformers: objects with "role", "content" (a
 * text, or parts of type "text"), "reasoning_content", "tool_calls", "tool_call_id", "name", and
 * whatever else the template reads. Tools are an array, further variables ("enable_thinking",
 * "documents", ...) an object.
 */
#ifndef MOE_PROMPT_CHAT_H
#define MOE_PROMPT_CHAT_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "base/allowance.h"
#include "base/buf.h"
#include "base/err.h"

struct json_t;
struct moe_gguf;
struct moe_tokenizer;
struct moe_chat; /* immutable; threads may render at once */

/* ---- Templates ---- */

/* Appends the template of a checkpoint's directory: chat_template.jinja (and the tool_use.jinja in
 * additional_chat_templates beside it), or tokenizer_config.json's "chat_template". Named templates
 * become a JSON list of {"name", "template"}, as in tokenizer_config.json. Appends nothing if there
 * is none. */
int moe_chat_read_template(const char *dir, struct moe_buf *out, struct moe_err *err);
/* The same from a GGUF file's keys. */
int moe_chat_read_gguf(const struct moe_gguf *gguf, struct moe_buf *out, struct moe_err *err);

/* Opens n bytes of template: Jinja, a list as above ("default", or else the first, for
 * conversations without tools, "tool_use" for those with), or the JSON object of a
 * tokenizer_config.json that has one. `name` begins error texts and is copied; tok is used only
 * here. Release *out with moe_chat_free. MOE_ERR_FORMAT: damaged; MOE_ERR_UNSUPPORTED,
 * MOE_ERR_LIMIT: beyond what is rendered here. */
int moe_chat_open(struct moe_chat **out, const char *name, const char *source, uint64_t n,
                  const struct moe_tokenizer *tok, struct moe_err *err);
void moe_chat_free(struct moe_chat *chat); /* NULL is fine */

/* ---- Rendering ---- */

struct moe_chat_input {
    const struct json_t *messages;  /* an array */
    const struct json_t *tools;     /* an array; NULL or empty: none */
    const struct json_t *variables; /* an object, or NULL */
    bool add_generation_prompt;     /* ends with the opening of an answer */
    bool continues; /* the last message is an answer that goes on (moe_prompt_chat) */
    struct tm now;  /* some templates show the date */
    struct moe_allowance *allowance; /* what rendering may cost; NULL: the usual */
};

/*
 * Appends the conversation as the template writes it. words (may be NULL) receives a struct
 * moe_span for every piece that comes from the caller's texts, for moe_tokenizer_encode_chat:
 * special tokens spelled there are plain text.
 *
 * Messages are passed to the template as they are, except in forms that it was found not to accept:
 * parts where it takes texts, and the reverse; arguments of tool calls as text where it takes an
 * object, and the reverse; a content of null or none where it would write "None" or fail; the
 * role "developer" where it knows only "system"; a thought under the other names of its member;
 * several system texts, or questions, in a row where it takes one, which are joined; a system text
 * behind a question, which becomes one; a system text where it takes none, which begins the
 * question; calls of tools where it leaves them out, which are written into the content; and where
 * it has no place for tools, these and how to call them, which are told in the system text, and
 * what tools said, which is a question.
 *
 * All of the caller's texts are such pieces, also those of variables.
 *
 * MOE_ERR_USAGE: the template refuses the conversation (raise_exception), in its own words with
 * line and column; MOE_ERR_FORMAT, MOE_ERR_LIMIT: it did something not allowed.
 */
int moe_chat_render(const struct moe_chat *chat, const struct moe_chat_input *input,
                    struct moe_buf *out, struct moe_buf *words, struct moe_err *err);

/* The local time, or that of SOURCE_DATE_EPOCH in the environment (seconds since 1970, UTC), so
 * that a text with the date can be reproduced. */
struct tm moe_chat_today(void);

/* ---- Messages ---- */

/* Makes a message from n bytes of text. Bytes that are not UTF-8 become U+FFFD, and so do NULs:
 * JSON holds neither. NULL: out of memory. Release with moe_json_free (fmt/json.h). */
struct json_t *moe_chat_message(const char *role, const char *text, uint64_t n,
                                struct moe_err *err);
/* Checks messages from a file or request: a non-empty array of objects with a role. MOE_ERR_FORMAT;
 * `name` begins the error text. */
int moe_chat_check_messages(const char *name, const struct json_t *messages, struct moe_err *err);
/* The message's content if it is a text, else NULL. Borrowed. */
const char *moe_chat_text(const struct json_t *message);
/* Appends the content if it is a text, or the texts of its parts. */
void moe_chat_append_content(const struct json_t *message, struct moe_buf *out);
bool moe_chat_has_role(const struct json_t *message, const char *role);

/* What the template writes in the place of a system text where there is none; NULL: nothing. */
const char *moe_chat_own_system(const struct moe_chat *chat);

/* ---- Answers ---- */

/* Texts that end an answer, beside the model's own eos: the special tokens that the template writes
 * after an answer's text and after a tool call at the end of a conversation, or the plain text
 * there. NULL-terminated; the chat owns them. */
const char *const *moe_chat_stops(const struct moe_chat *chat);
/* The one of them that begins calls too, which the template writes as messages of another role, and
 * *then, what follows it there; NULL: calls begin in another way. Borrowed. */
const char *moe_chat_call_stop(const struct moe_chat *chat, const char **then);

/* What the n bytes rendered before an answer end with: the beginning of a thought, or the end of
 * one. */
enum moe_chat_thought { MOE_THOUGHT_NONE, MOE_THOUGHT_OPEN, MOE_THOUGHT_OVER };
enum moe_chat_thought moe_chat_thought_before(const struct moe_chat *chat, const void *rendered,
                                              uint64_t n);

/* Whether a template's variables ("enable_thinking" and its other names, "reasoning_effort") say
 * that no thought is wanted. */
bool moe_chat_no_thought(const struct json_t *variables);
/* What ends a thought where that is written: before a content, or as far as it is the same before a
 * call, where one may come. *stop: the one of moe_chat_stops with which such an end begins; NULL:
 * none. Both borrowed; NULL: thoughts are not known. */
const char *moe_chat_thought_end(const struct moe_chat *chat, bool can_call, const char **stop);
/* The message member from which the template takes a thought. */
const char *moe_chat_thought_member(const struct moe_chat *chat);
/* Whether calls of tools, and thoughts, are known in the form in which the template writes them. */
void moe_chat_can(const struct moe_chat *chat, bool *calls, bool *thinks);

#endif
