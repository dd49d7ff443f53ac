/* Routes: which request is answered by what. */
#ifndef MOE_SERVE_HTTP_ROUTES_H
#define MOE_SERVE_HTTP_ROUTES_H

#include <microhttpd.h>

#include "serve/http_exchange.h"

/* Looks at a request whose headers are there: sets its route, and why it is refused if it is. */
void http_route(struct exchange *x, const char *url, const char *method);
/* Looks again when its body is there. */
void http_route_late(struct exchange *x);
/* Answers a request that is whole or, after it was suspended, has something to send. */
enum MHD_Result http_answer(struct exchange *x, const char *method);

#endif
