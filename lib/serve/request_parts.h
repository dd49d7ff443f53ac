/*
 * The parts of reading a request: each reads some keys of the body into the request, which holds
 * what it takes also where it fails. `body` is an object.
 */
#ifndef MOE_SERVE_REQUEST_PARTS_H
#define MOE_SERVE_REQUEST_PARTS_H

#include <jansson.h>

#include "serve/request.h"

/* Begins the sentences. */
#define REQUEST "the request"

/* messages, or prompt. */
int request_read_text(struct moe_request *r, const json_t *body, struct moe_err *err);
/* stop, metadata. */
int request_read_stops(struct moe_request *r, const json_t *body, struct moe_err *err);
int request_read_fields(struct moe_request *r, const json_t *body, struct moe_err *err);
/* Numbers and switches; and refuses what is not done. */
int request_read_options(struct moe_request *r, const json_t *body, struct moe_err *err);

/* A text in the tree, copied to *out. `where` is how the sentence calls it. */
int request_copy_text(char **out, const json_t *value, const char *where, struct moe_err *err);

#endif
