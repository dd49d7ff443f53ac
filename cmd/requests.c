/* --requests of moe-run and moe-serve. */
#define _POSIX_C_SOURCE 200809L /* strnlen */
#include "requests.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"

int requests_open(struct moe_server **out, const struct requests_options *o,
                  const struct moe_server_options *server, struct moe_err *err)
{
    struct moe_server_options so = *server;
    so.beside_bytes += moe_lines_bytes(o->input);
    so.sequences = server->sequences ? server->sequences : MOE_SERVER_SEQUENCES;
    for (;;) {
        int status = moe_server_open(out, &so, cli_progress(), err);
        cli_progress_done();
        if (status != MOE_ERR_LIMIT || server->sequences || so.sequences == 1)
            return status;
        so.sequences /= 2;
        cli_detail("the memory is too small for as many sequences: trying %u", so.sequences);
    }
}

static int print_line(void *ctx, const void *line, uint64_t n, struct moe_err *err)
{
    (void)ctx;
    return cli_write(line, n) ? MOE_OK : cli_flush(err);
}

int requests_serve(struct moe_server *server, const struct requests_options *o, struct moe_err *err)
{
    const char *output = o->output && strcmp(o->output, "-") != 0 ? o->output : NULL;
    const struct moe_lines_options lines = {.input = o->input,
                                            .output = output,
                                            .resume = o->resume,
                                            .put = print_line,
                                            .stop = &cli_stop};
    struct moe_lines_counts counts;
    if (o->resume && !output)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --resume: standard output has no results yet "
                        "(-o FILE)");
    cli_catch_termination();
    int status = moe_lines_serve(server, &lines, &counts, err);
    const uint64_t n = counts.n_served + counts.n_refused + counts.n_failed;
    const uint64_t n_why = strnlen(counts.why.text, 400);
    if (counts.n_refused)
        cli_note("%" PRIu64 " of %" PRIu64 " requests got an error (see their results)",
                 counts.n_refused, n);
    if (counts.n_before)
        cli_detail("%" PRIu64 " requests had a result before", counts.n_before);
    if (status == MOE_ERR_INTERRUPTED && output)
        moe_fail(err, status, "interrupted; --resume serves the requests that are left");
    if (status == MOE_OK && counts.n_failed)
        status = moe_fail(err, MOE_ERR_IO, "%" PRIu64 " of %" PRIu64 " requests failed%s: %.*s",
                          counts.n_failed, n, output ? ", and --resume serves them again" : "",
                          (int)moe_utf8_complete((const uint8_t *)counts.why.text, n_why),
                          counts.why.text);
    return status;
}

int requests_check_exact(struct moe_server *server, int status, struct moe_err *err)
{
    struct moe_err inexact;
    struct moe_server_counts *counts = moe_alloc(1, sizeof *counts, &inexact);
    if (status != MOE_OK && status != MOE_ERR_INTERRUPTED) {
        free(counts);
        return status;
    }
    if (counts)
        moe_server_count(server, counts);
    int got = counts ? moe_changes_check(&counts->changes, &inexact) : MOE_ERR_MEMORY;
    free(counts);
    if (got == MOE_OK)
        return status;
    *err = inexact;
    return got;
}
