/* The command line of moe-serve: its options, checked. */
#ifndef CMD_SERVE_OPTIONS_H
#define CMD_SERVE_OPTIONS_H

#include "cli.h"
#include "serve/server.h"
#include "serve_http.h"
#include "strategy_options.h"

struct serve_options {
    const char *chat_template;
    struct strategy_options strategy;
    struct moe_server_options server;
    struct serve_http_options http;
};

extern struct serve_options serve_opt; /* of the process */

/* Parses and checks. Returns -1 when the program should go on, otherwise the status to exit with.
 * *path: of the pack. */
int serve_options_parse(int argc, char **argv, const char **path);

#endif
