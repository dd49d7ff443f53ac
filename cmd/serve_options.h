/* The command line of moe-serve: its options, checked. */
#ifndef CMD_SERVE_OPTIONS_H
#define CMD_SERVE_OPTIONS_H

#include "cli.h"
#include "requests.h"
#include "serve/server.h"
#include "serve_http.h"
#include "strategy_options.h"

/* What --executors names. */
struct serve_executors {
    uint32_t n;
    struct moe_server_executor of[MOE_SERVER_MAX_EXECUTORS];
};

struct serve_options {
    const char *collection, *costs, *plan, *stats_json;
    struct serve_executors executors;
    struct strategy_drafter draft;
    struct strategy_options strategy;
    struct requests_options requests;
    struct moe_server_options server;
    struct serve_http_options http;
    struct cli_texts aliases;
};

extern struct serve_options serve_opt; /* of the process */

/* Parses and checks. Returns -1 when the program should go on, otherwise the status to exit with.
 * *path: of the pack; NULL: there is a collection. */
int serve_options_parse(int argc, char **argv, const char **path);

#endif
