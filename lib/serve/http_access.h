/*
 * Access: who may use the server. Keys; and, against other people's web pages in the browser of
 * this machine's user, the names by which a page may reach it and the origins that may use it.
 *
 * A page of another site cannot read answers without our leave, but its requests would be computed,
 * so a request whose origin is neither the server's own nor allowed is refused. A page whose own
 * name is made to point at 127.0.0.1 (DNS rebinding) has the same origin: a server on a loopback
 * address therefore answers only to loopback names and those of allowed origins.
 */
#ifndef MOE_SERVE_HTTP_ACCESS_H
#define MOE_SERVE_HTTP_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_access_keys;

/* Reads a file with one key a line; blank lines and lines that begin with # are ignored. A key has
 * printable ASCII characters without blanks. MOE_ERR_FORMAT: no key, or one that cannot be sent. */
int moe_access_keys_read(struct moe_access_keys **out, const char *path, struct moe_err *err);
void moe_access_keys_free(struct moe_access_keys *keys); /* NULL is fine */
/* Whether an Authorization header (NULL: missing) is "Bearer KEY" with one of the keys. Takes the
 * same time whichever characters are right. */
bool moe_access_key_fits(const struct moe_access_keys *keys, const char *authorization);

/* What a Host header (NULL: missing) or an origin names. */
bool moe_access_host_is_local(const char *host);
/* "http://example.com:8080" or "https://...", "null" or "*": what --allow-origin takes. */
bool moe_access_origin_is_valid(const char *origin);

struct moe_access {
    const struct moe_access_keys *keys; /* NULL: anyone may ask */
    const char *const *origins;         /* allowed ones, NULL-terminated; NULL: none */
    bool loopback;                      /* it listens only there */
};

/* Whether to answer a request with this Host. */
bool moe_access_host_fits(const struct moe_access *a, const char *host);
/* Whether to answer a request with this Origin (NULL: missing, so no browser asks for another
 * site). *foreign: the origin is not the server's own, and the browser needs to be told. */
bool moe_access_origin_fits(const struct moe_access *a, const char *origin, const char *host,
                            bool *foreign);

#endif
