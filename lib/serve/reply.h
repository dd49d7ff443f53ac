/*
 * Reply: what a client receives, in the forms of OpenAI's API: chat.completion and its chunks,
 * text_completion, usage, log probabilities, errors. Appended to a buffer, whose `failed` says that
 * memory was short.
 *
 * Of a chat, thoughts are "reasoning_content", and calls of tools "tool_calls": in a stream a
 * call's name comes first, then its arguments as they are written. A call that is malformed is
 * content; where a stream had begun it, "warnings" of the choice says so.
 *
 * Texts come in whole characters (engine/answer.h); bytes that are not text become U+FFFD. The log
 * probabilities are the model's own, as engine/sampler.h says; in /v1/completions the token itself
 * is always listed among the likeliest, and one that is not text is "bytes:\xe2\x80".
 */
#ifndef MOE_SERVE_REPLY_H
#define MOE_SERVE_REPLY_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/sampler.h"
#include "fmt/emit.h"
#include "serve/request.h"

struct moe_server_result;
struct moe_answer_part;
struct moe_reply;

/* Makes the reply to a request; copies what it needs. `model` names the model if the request does
 * not, until one has answered. */
int moe_reply_new(struct moe_reply **out, const struct moe_request *r, const char *model,
                  struct moe_err *err);
void moe_reply_free(struct moe_reply *reply); /* NULL is fine */
/* Of a complete answer that may be kept (/v1/responses): appends the whole reply, and the
 * conversation, a JSON list of messages, with what was answered. */
bool moe_reply_keep(struct moe_reply *reply, const char *conversation, struct moe_buf *response,
                    struct moe_buf *out);
/* Of a kept response with this id: appends a page of the items that it answers, the first n_asked
 * messages of its conversation; the latest first unless `ascending`, those after an item's id (""
 * for none), `limit` at most. MOE_ERR_USAGE: there is no such item. */
int moe_reply_items(struct moe_buf *out, const struct moe_buf *conversation, uint32_t n_asked,
                    const char *id, bool ascending, const char *after, uint64_t limit,
                    struct moe_err *err);
/* Whether its stream is JSON lines, not server-sent events. */
bool moe_reply_is_lines(const struct moe_reply *reply);
/* "chatcmpl-..." or "cmpl-...". */
const char *moe_reply_id(const struct moe_reply *reply);

/* Of the prompts of the choices that have ended. */
uint64_t moe_reply_prompt_tokens(const struct moe_reply *r);
/*
 * The server's events for the request (moe_server_events), in order. For a stream, `out` gets what
 * must be sent now, server-sent events ("data: {...}" and an empty line; the last is "data:
 * [DONE]"). Otherwise it gets everything when the last choice ends, and nothing before.
 *
 * If a choice fails, a stream gets an error as its last event; otherwise nothing is written:
 * moe_reply_failed says why, and moe_reply_error writes that.
 */
/* The answers begin, to a prompt of n_prompt tokens without n_left_out messages of it. */
void moe_reply_begun(struct moe_reply *reply, uint64_t n_prompt, uint32_t n_left_out);
/* A token before its text. True: the reply keeps what is said of it. */
bool moe_reply_token(struct moe_reply *reply, uint32_t choice, const struct moe_token_said *said);
void moe_reply_part(struct moe_reply *reply, uint32_t choice, const struct moe_answer_part *part,
                    struct moe_buf *out);
void moe_reply_ended(struct moe_reply *reply, uint32_t choice,
                     const struct moe_server_result *result, struct moe_buf *out);
/* The first failure of a choice; NULL: none. */
const struct moe_err *moe_reply_failed(const struct moe_reply *reply);

/* The HTTP status for an error: 400, 404, 500, ... Callers decide on 429: moe_server_submit returns
 * MOE_ERR_LIMIT for a full queue. */
unsigned moe_reply_http_status(const struct moe_err *why);
/* Writes, in the form of the API (NULL: completions), {"error": {"message", "type", "param",
 * "code"}}: param is the request's key that the sentence names. */
void moe_reply_error(struct moe_buf *out, const struct moe_reply_api *api, unsigned http_status,
                     const struct moe_err *why);
/* The same without the surrounding object. */
struct moe_emit;
void moe_reply_emit_error(struct moe_emit *e, unsigned http_status, const struct moe_err *why);

/* Writes an object's members: activations, and how many may have changed results, by cause. */
struct moe_changes;
void moe_reply_emit_changes(struct moe_emit *e, const struct moe_changes *changes);

#endif
