/* What is sent back: headers, errors, streams. Each returns libmicrohttpd's result. */
#ifndef MOE_SERVE_HTTP_RESPOND_H
#define MOE_SERVE_HTTP_RESPOND_H

#include <microhttpd.h>

#include "serve/http_exchange.h"

/* The headers of the request by name; NULL: not there. */
const char *http_header(const struct exchange *x, const char *name);

/* Sends x->out, which is whole. */
enum MHD_Result http_respond(struct exchange *x, unsigned status, const char *type);
/* Sends nothing but the status, and the headers that tell a browser what it may ask. */
enum MHD_Result http_respond_preflight(struct exchange *x);
/* Sends an error in the API's form. */
enum MHD_Result http_respond_error(struct exchange *x, unsigned status, const struct moe_err *why);
/* Sends what comes into x->out, until it is done. */
enum MHD_Result http_respond_stream(struct exchange *x);
/* The chat page. */
enum MHD_Result http_respond_page(struct exchange *x);

#endif
