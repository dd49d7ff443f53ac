/*
 * Kept responses: those of /v1/responses that clients may go on from, or read again, by their ids.
 * In memory, within a bound: the oldest make room. Only its owner sees a response. Any thread may
 * call.
 */
#ifndef MOE_SERVE_KEPT_RESPONSES_H
#define MOE_SERVE_KEPT_RESPONSES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

struct kept_responses;

/* most_bytes: of all together; 0: none is kept. */
int kept_responses_open(struct kept_responses **out, uint64_t most_bytes, struct moe_err *err);
void kept_responses_close(struct kept_responses *k); /* NULL is fine */

/* Keeps a response and the conversation that it ends, as JSON texts, which it takes; the first
 * n_asked messages were there before it. One that is too large, or finds no memory, is not kept. */
void kept_responses_put(struct kept_responses *k, const char *id, uint64_t owner,
                        struct moe_buf *response, struct moe_buf *conversation, uint32_t n_asked);
/* Appends what is kept (NULL: not wanted). False: there is no such response of this owner. */
bool kept_responses_get(struct kept_responses *k, const char *id, uint64_t owner,
                        struct moe_buf *response, struct moe_buf *conversation, uint32_t *n_asked);
/* Appends the response that has an item with this id. */
bool kept_responses_with_item(struct kept_responses *k, const char *item, uint64_t owner,
                              struct moe_buf *response);
bool kept_responses_drop(struct kept_responses *k, const char *id, uint64_t owner);

#endif
