/* Joining the other processes of a run, and leaving them. */
#include "join_ranks.h"

#include <stdio.h>
#include <unistd.h>

#include "base/par.h"
#include "cli.h"

static bool has_met; /* the others, or has tried to */

bool ranks_begin(void)
{
    uint32_t rank, n_ranks;
    cli_mute = moe_wire_started(&rank, &n_ranks) && rank > 0;
    return cli_mute;
}

/* Says what makes ranks slow on this machine. */
static void note_cores(const struct moe_wire *wire)
{
    const int threads = moe_par_threads(), may = moe_cores_available();
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (wire->cores < 1)
        cli_note("%u ranks share %d core%s: each waits for the others, start no more than there "
                 "are cores",
                 wire->n_here, may, may == 1 ? "" : "s");
    else if (threads > wire->cores)
        cli_note("%d threads of each of %u ranks here, with %.3g core%s a rank: without -t there "
                 "are as many threads as cores",
                 threads, wire->n_here, wire->cores, wire->cores == 1 ? "" : "s");
    else if (!cli_given("threads") && (uint32_t)may * wire->n_here < cores)
        cli_note("rank 0 may run on %d of %ld cores: mpirun --bind-to none leaves it all", may,
                 cores);
}

/* MPI waits without end for a process that has ended before it came, or that never does. */
static int meet(struct moe_ranks **out, struct moe_err *err)
{
    enum { SECONDS = 60 };
    uint32_t rank, n_ranks;
    char line[150];
    const bool mute = cli_mute, several = moe_wire_started(&rank, &n_ranks);
    has_met = true;
    if (several) {
        snprintf(line, sizeof line,
                 "rank %u has waited %d s for the others: one has ended, or was never started, "
                 "and did not meet them",
                 rank, SECONDS);
        cli_limit(SECONDS + rank, line); /* the first that ends has the others ended */
    }
    cli_mute = false; /* what keeps this process from the others, it says itself */
    int status = moe_ranks_find(out, err);
    if (several)
        cli_limit(0, NULL);
    cli_mute = status == MOE_OK && mute;
    return status;
}

int ranks_join(struct moe_ranks **out, struct moe_err *err)
{
    MOE_TRY(meet(out, err));
    if (!*out)
        return MOE_OK;
    moe_ranks_set_threads(*out, cli_given("threads") ? moe_par_threads() : 0);
    note_cores(moe_ranks_wire(*out));
    return MOE_OK;
}

/* The others wait for this process, which ends: another rank than 0 has rank 0 say why. */
static void leave_without(struct moe_ranks **out)
{
    struct moe_err err;
    if (meet(out, &err) != MOE_OK || !*out) {
        cli_mute = false;
        if (cli_unsaid.status != MOE_OK)
            cli_error(&cli_unsaid);
        return;
    }
    if (cli_unsaid.status == MOE_OK)
        moe_fail(&cli_unsaid, MOE_ERR_USAGE,
                 "it was started to print something and end (--help, --list, --ids): give all "
                 "ranks the same options");
    if (moe_ranks_wire(*out)->rank > 0)
        moe_ranks_fail(*out, &cli_unsaid);
}

int ranks_leave(struct moe_ranks *r, int exit_status)
{
    uint32_t rank, n_ranks;
    if (!has_met && moe_wire_started(&rank, &n_ranks))
        leave_without(&r);
    if (r && moe_ranks_wire(r)->rank > 0)
        exit_status = CLI_DONE;
    moe_ranks_close(r, exit_status);
    return exit_status;
}
