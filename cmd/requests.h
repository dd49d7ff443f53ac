/* --requests of moe-run and moe-serve: lines of JSON, served side by side. */
#ifndef CMD_REQUESTS_H
#define CMD_REQUESTS_H

#include "cli.h"
#include "serve/lines.h"
#include "serve/server.h"

struct requests_options {
    const char *input, *output;
    bool resume;
};

/* Their rows of an option table; mode_: the mode that --requests chooses, or 0. */
/* clang-format off */
#define REQUESTS_OPTIONS(o, mode_) \
    {CLI_OPT_TEXT(0, "requests", "FILE", &(o).input), \
     .help = "answer its lines of JSON; - is stdin", .mode = (mode_)}, \
    {CLI_OPT_OUTPUT('o', "output", "FILE", &(o).output), \
     .help = "results, else on standard output", .needs = "requests", .or_stdout = true}, \
    {CLI_OPT_FLAG(0, "resume", &(o).resume), .help = "leave out what has a result there", \
     .needs = "output"}
/* clang-format on */

/* Opens a server with room for what requests take beside it. Where `sequences` is 0 as many as fit
 * the memory, at most MOE_SERVER_SEQUENCES. */
int requests_open(struct moe_server **out, const struct requests_options *o,
                  const struct moe_server_options *server, struct moe_err *err);
/* Serves them all, and says how many there were; Ctrl-C ends it with what is finished. */
int requests_serve(struct moe_server *server, const struct requests_options *o,
                   struct moe_err *err);

/* What --exact promises, of all that the server computed, also where Ctrl-C has ended it: `status`,
 * or MOE_ERR_LIMIT with the counts. */
int requests_check_exact(struct moe_server *server, int status, struct moe_err *err);

#endif
