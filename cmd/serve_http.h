/* moe-serve's front door: its options, and serving until a signal ends it. */
#ifndef CMD_SERVE_HTTP_H
#define CMD_SERVE_HTTP_H

#include "cli.h"
#include "serve/http.h"

struct serve_http_options {
    struct moe_http_options http;
    uint32_t port;
    const char *key_file;     /* NULL: no keys */
    const char *access_log;   /* "-": standard output; NULL: none */
    uint32_t socket_mode;     /* as it is written: 600 */
    struct cli_texts origins; /* --allow-origin */
    struct cli_texts hosts;   /* --allow-host */
    double grace;             /* seconds that answers get to end, after a signal */
};

void serve_http_defaults(struct serve_http_options *o);
/* Checks what the table of options cannot. Returns -1 to go on, else the exit status. */
int serve_http_check(struct serve_http_options *o);

/* Serves until cli_stop or until the GPU or another rank fails, then lets answers under way end.
 * The server is borrowed, and may be closed afterwards. *listener: where the GPU has failed the
 * socket for serve_http_anew, else -1; NULL: this process cannot begin anew, and a failure is
 * returned. */
int serve_http(struct moe_server *server, const struct serve_http_options *o, int *listener,
               struct moe_err *err);
/* Executes this program anew, with the socket as systemd would give it: a process that had a GPU
 * when it failed cannot use it again. Returns only if that fails. */
int serve_http_anew(char **argv, int listener, struct moe_err *err);

#endif
