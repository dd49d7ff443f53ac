/* Programs that mpirun or srun may start as several processes, the ranks of one run. */
#ifndef CMD_JOIN_RANKS_H
#define CMD_JOIN_RANKS_H

#include <stdbool.h>

#include "ranks/ranks.h"

/* First of all. True on a rank other than 0, whose messages are rank 0's to say from then on. */
bool ranks_begin(void);
/* Meets the others; *out is NULL where this process runs alone. Each rank then computes with as
 * many threads as it has processors, but for -t. */
int ranks_join(struct moe_ranks **out, struct moe_err *err);
/* Last of all, since it may end this process. One that has not met the others, as with an option
 * that is wrong, does now, so that none of them waits for it: rank 0 says what another rank failed
 * with (cli_unsaid). Returns the exit status: of another rank than 0 that has met the others 0,
 * because what fails there is said by rank 0, which ends with it. */
int ranks_leave(struct moe_ranks *r, int exit_status);

#endif
