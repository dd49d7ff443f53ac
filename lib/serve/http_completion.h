/* Completions: a request to the server, and its answer on the way out. */
#ifndef MOE_SERVE_HTTP_COMPLETION_H
#define MOE_SERVE_HTTP_COMPLETION_H

#include <microhttpd.h>

#include "serve/http_exchange.h"

/* Submits a request whose body is there (then its stage is EXCHANGE_WAITING, and its connection is
 * to be suspended), or begins to send what there is of its answer, or waits on. */
enum MHD_Result http_complete(struct exchange *x);

#endif
