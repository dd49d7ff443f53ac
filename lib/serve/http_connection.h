/* Connections: requests as libmicrohttpd tells of them, their time and their size. */
#ifndef MOE_SERVE_HTTP_CONNECTION_H
#define MOE_SERVE_HTTP_CONNECTION_H

#include "serve/http_exchange.h"

/* Starts libmicrohttpd on h->listener, without a thread of its own. */
int http_start(struct moe_http *h, struct moe_err *err);
/* Closes connections whose request has taken too long to arrive. */
void http_close_late(struct moe_http *h);
/* Looks at exchanges that executors had something to tell of. */
void http_take_told(struct moe_http *h);
/* The client of an exchange has left. */
void http_client_left(struct exchange *x);
/* Ends all exchanges that have connections, so that these can be closed. */
void http_leave_all(struct moe_http *h);

#endif
