/*
 * Log probabilities of a choice as its reply will show them: of /v1/chat/completions an object for
 * each token, of /v1/completions four lists. Begins with zeroes.
 */
#ifndef MOE_SERVE_REPLY_LOGPROBS_H
#define MOE_SERVE_REPLY_LOGPROBS_H

#include "base/buf.h"
#include "fmt/emit.h"
#include "sample/token_said.h"
#include "serve/request.h"

struct reply_logprobs {
    enum moe_request_kind kind;
    bool with_top;           /* TEXT: the likeliest are wanted */
    uint64_t offset;         /* TEXT: characters before the next token */
    struct moe_buf lists[4]; /* JSON, not closed; CHAT: one */
};

void reply_logprobs_begin(struct reply_logprobs *p, const struct moe_request *r);
void reply_logprobs_add(struct reply_logprobs *p, const struct moe_token_said *said);
bool reply_logprobs_failed(const struct reply_logprobs *p);
/* "logprobs": what was added since the last time. */
void reply_logprobs_put(struct reply_logprobs *p, struct moe_emit *e);
void reply_logprobs_release(struct reply_logprobs *p);

#endif
