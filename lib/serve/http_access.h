/*
 * Access: who may use the server. Keys; and, against other people's web pages in the browser of a
 * user, the names by which a page may reach it and the origins that may use it.
 *
 * A page of another site cannot read answers without our leave, but its requests would be computed,
 * so a request whose origin is neither the server's own nor allowed is refused. A page whose own
 * name is made to point at the server (DNS rebinding) has the same origin: the server therefore
 * answers only to loopback names, allowed names, those of allowed origins, and, if it listens
 * elsewhere than on loopback, to any IP address, which no name server can give away.
 */
#ifndef MOE_SERVE_HTTP_ACCESS_H
#define MOE_SERVE_HTTP_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_access_keys;

/* Reads a file with one key a line; blank lines and lines that begin with # are ignored. A key has
 * printable ASCII characters without blanks. MOE_ERR_IO: others may read it. MOE_ERR_FORMAT: no
 * key, or one that cannot be sent. */
int moe_access_keys_read(struct moe_access_keys **out, const char *path, struct moe_err *err);
void moe_access_keys_free(struct moe_access_keys *keys); /* NULL is fine */
/* The number, from 1, of the key in a header (NULL: missing) behind these words ("Bearer ", ""); 0:
 * it is none of the keys. Takes the same time whichever characters are right. */
uint32_t moe_access_key_find(const struct moe_access_keys *keys, const char *header,
                             const char *words);

/* A number for the n-th key, from 1, that is the same in every run, not 0. */
uint64_t moe_access_key_owner(const struct moe_access_keys *keys, uint32_t n);

/* What a Host header names: a name or address with or without a port; a loopback one. */
bool moe_access_host_is_valid(const char *host);
bool moe_access_host_is_local(const char *host);
/* "example.com", without a port, or "*": what --allow-host takes. */
bool moe_access_name_is_valid(const char *name);
/* "http://example.com:8080", "null", "*", or of another scheme than the web's "tauri://localhost",
 * or "vscode-webview://" for all of that scheme: what --allow-origin takes. */
bool moe_access_origin_is_valid(const char *origin);

struct moe_access {
    const struct moe_access_keys *keys; /* NULL: anyone may ask */
    const char *const *origins;         /* allowed ones, NULL-terminated; NULL: none */
    const char *const *hosts;           /* names that it has, likewise */
    bool loopback;                      /* it listens only there */
    bool
        local_socket; /* it listens on one, which no page of the web reaches: names do not matter */
};

/* Whether to answer a request with this Host. */
bool moe_access_host_fits(const struct moe_access *a, const char *host);
/* Whether to answer a request with this Origin (NULL: missing, so no browser asks for another
 * site). *foreign: the origin is not the server's own, and the browser needs to be told. */
bool moe_access_origin_fits(const struct moe_access *a, const char *origin, const char *host,
                            bool *foreign);

#endif
