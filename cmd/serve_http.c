/* moe-serve over HTTP: keys, origins, serving until a signal. */
#define _DEFAULT_SOURCE /* nanosleep */
#include "serve_http.h"

#include <time.h>

void serve_http_defaults(struct serve_http_options *o)
{
    moe_http_options_default(&o->http);
    o->port = o->http.port;
    o->grace = 20;
}

int serve_http_check(struct serve_http_options *o)
{
    for (int i = 0; i < o->origins.n; i++)
        if (!moe_access_origin_is_valid(o->origins.items[i]))
            return cli_misuse("option --allow-origin: '%s' is none of http://HOST[:PORT], "
                              "https://HOST[:PORT], SCHEME://[HOST], null and *",
                              o->origins.items[i]);
    for (int i = 0; i < o->hosts.n; i++)
        if (!moe_access_name_is_valid(o->hosts.items[i]))
            return cli_misuse("option --allow-host: '%s' is neither a name without a port nor *",
                              o->hosts.items[i]);
    o->http.port = (uint16_t)o->port;
    o->http.origins = o->origins.items;
    o->http.hosts = o->hosts.items;
    return -1;
}

static void wait_for_signal(void)
{
    const struct timespec while_ = {.tv_nsec = 200 * 1000 * 1000};
    while (!cli_stop)
        nanosleep(&while_, NULL); /* a signal interrupts it */
}

static void tell(const struct moe_http *h, const struct serve_http_options *o)
{
    cli_note("listening at %s", moe_http_url(h));
    if (moe_http_max_connections(h) < o->http.max_connections)
        cli_note("at most %u connections: the process may not open more files (ulimit -n)",
                 moe_http_max_connections(h));
    if (!o->http.keys && !moe_http_is_local(h))
        cli_note("anyone who reaches this address may use it: --api-key-file would ask for a key");
}

int serve_http(struct moe_server *server, const struct serve_http_options *o, struct moe_err *err)
{
    struct serve_http_options with = *o;
    struct moe_access_keys *keys = NULL;
    struct moe_http *h = NULL;
    int status = o->key_file ? moe_access_keys_read(&keys, o->key_file, err) : MOE_OK;
    with.http.keys = keys;
    if (status == MOE_OK)
        status = moe_http_open(&h, server, &with.http, err);
    if (status == MOE_OK) {
        tell(h, &with);
        wait_for_signal();
        uint32_t left = moe_http_finish(h, o->grace, NULL);
        if (left)
            cli_note("%u answers were not finished", left);
    }
    moe_http_close(h);
    moe_access_keys_free(keys);
    return status;
}
