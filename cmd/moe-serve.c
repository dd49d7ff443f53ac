/* moe-serve: answers requests of many callers with one or many models. See man/moe-serve.1. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "serve/server.h"
#include "serve_options.h"

/* ---- The server ---- */

struct serve {
    const char *path;
    struct moe_statistics *statistics;
    struct moe_server *server;
};

/* Sets the engine's options of the strategy; with none given the engine chooses. */
static int choose_strategy(struct serve *v, struct moe_err *err)
{
    struct moe_engine_options *e = &serve_opt.server.engine;
    const struct strategy_options *o = &serve_opt.strategy;
    struct moe_strategy strategy;
    bool automatic;
    int status = strategy_options_apply(o, &strategy, &automatic, err);
    if (status == MOE_OK && o->statistics)
        status = moe_statistics_read(&v->statistics, o->statistics, err);
    if (status != MOE_OK)
        return status;
    if (!automatic)
        e->strategy = strategy;
    e->exact = o->exact;
    e->statistics = v->statistics;
    e->low_variant = o->low;
    e->staging = o->staging;
    e->device = o->device;
    return MOE_OK;
}

static int open_server(struct serve *v, struct moe_err *err)
{
    struct moe_server_options *o = &serve_opt.server;
    int status = choose_strategy(v, err);
    if (status != MOE_OK)
        return status;
    o->pack = v->path;
    status = moe_server_open(&v->server, o, cli_progress(), err);
    cli_progress_done();
    return status;
}

static void close_serve(struct serve *v)
{
    moe_server_close(v->server);
    moe_statistics_free(v->statistics);
}

int main(int argc, char **argv)
{
    struct moe_err err = {0};
    struct serve v = {0};
    int status = serve_options_parse(argc, argv, &v.path);
    if (status >= 0)
        return status;
    cli_catch_termination();
    status = open_server(&v, &err);
    if (status == MOE_OK)
        status = serve_http(v.server, &serve_opt.http, &err);
    close_serve(&v);
    return cli_finish(status == MOE_OK ? CLI_DONE : cli_error(&err));
}
