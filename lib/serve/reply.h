/*
 * Reply: what goes back to a client, in the forms of OpenAI's API: chat.completion and its chunks,
 * text_completion, usage, log probabilities, errors, the list of models. Appended to a buffer,
 * whose `failed` says when memory was short.
 *
 * Texts come in whole characters (engine/answer.h); bytes that are none go out as U+FFFD. The log
 * probabilities are the model's own, as engine/sampler.h says; in /v1/completions the token
 * itself is among the likeliest whether it was or not, and one that is no text is "bytes:\xe2\x80".
 */
#ifndef MOE_SERVE_REPLY_H
#define MOE_SERVE_REPLY_H

#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"
#include "engine/sampler.h"
#include "fmt/emit.h"
#include "serve/request.h"

struct moe_server;
struct moe_server_result;
struct moe_reply;

/* The reply to a request, of which it copies what it needs. `model` is what it calls the model
 * where the request names none, until one has answered. */
int moe_reply_new(struct moe_reply **out, const struct moe_request *r, const char *model,
                  struct moe_err *err);
void moe_reply_free(struct moe_reply *reply); /* NULL is fine */
/* "chatcmpl-..." or "cmpl-...". */
const char *moe_reply_id(const struct moe_reply *reply);

/*
 * What a server tells of the request (moe_server_events), in its order. Of a stream `out` gets what
 * is to be sent now, server-sent events ("data: {...}" and an empty line; the last is
 * "data: [DONE]"). Else it gets the whole when the last choice ends, and nothing before.
 *
 * Where a choice fails a stream gets an error as its last event; else nothing is written:
 * moe_reply_failed says why, and moe_reply_error writes that.
 */
void moe_reply_token(struct moe_reply *reply, uint32_t choice, const struct moe_token_said *said);
void moe_reply_text(struct moe_reply *reply, uint32_t choice, const char *bytes, uint64_t n,
                    struct moe_buf *out);
void moe_reply_ended(struct moe_reply *reply, uint32_t choice,
                     const struct moe_server_result *result, struct moe_buf *out);
/* The first failure of a choice; NULL: none has failed. */
const struct moe_err *moe_reply_failed(const struct moe_reply *reply);

/* The status of HTTP that says the same as an error: 400, 404, 500, ... 429 is for the caller to
 * know: a queue is full where moe_server_submit says MOE_ERR_LIMIT. */
unsigned moe_reply_http_status(const struct moe_err *why);
/* {"error": {"message", "type", "param", "code"}}: param is the key of the request that the
 * sentence names. */
void moe_reply_error(struct moe_buf *out, unsigned http_status, const struct moe_err *why);
/* The same without the object around it. */
struct moe_emit;
void moe_reply_emit_error(struct moe_emit *e, unsigned http_status, const struct moe_err *why);

/* Members of an object: activations, and how many may have changed results, by what was done. */
struct moe_changes;
void moe_reply_emit_changes(struct moe_emit *e, const struct moe_changes *changes);

/* {"object": "list", "data": [{"id", "object": "model", ...}]} */
void moe_reply_models(struct moe_buf *out, const struct moe_server *server);

/*
 * Log probabilities of a choice as its reply will show them: of /v1/chat/completions an object for
 * each token, of /v1/completions four lists. Begins with zeroes.
 */

struct reply_logprobs {
    enum moe_request_kind kind;
    bool with_top;           /* TEXT: the likeliest are wanted */
    uint64_t offset;         /* TEXT: characters before the next token */
    struct moe_buf lists[4]; /* JSON, not closed; CHAT: one */
};

#endif
