/* Joining the other processes of a run, and leaving them. */
#include "join_ranks.h"

#include <unistd.h>

#include "base/par.h"
#include "cli.h"

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

int ranks_join(struct moe_ranks **out, struct moe_err *err)
{
    const bool mute = cli_mute;
    cli_mute = false; /* what keeps this process from the others, it says itself */
    MOE_TRY(moe_ranks_find(out, err));
    cli_mute = mute;
    if (!*out)
        return MOE_OK;
    moe_ranks_set_threads(*out, cli_given("threads") ? moe_par_threads() : 0);
    note_cores(moe_ranks_wire(*out));
    return MOE_OK;
}

int ranks_leave(struct moe_ranks *r, int exit_status)
{
    if (r && moe_ranks_wire(r)->rank > 0)
        exit_status = CLI_DONE;
    moe_ranks_close(r, exit_status);
    return exit_status;
}
