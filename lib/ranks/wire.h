/*
 * Wire: messages between the processes of one run, its ranks. Rank 0 talks to each of the others,
 * and they talk to nobody else, but hand rows on to each other (ranks/message.h). How they travel
 * is a table of functions: MPI's are in a shared object that is loaded where a process was started
 * as one of several (ranks/mpi/wire_mpi.c), so that programs start, and are built, without MPI;
 * tests have their own.
 *
 * Nothing here waits: what waits, and for how long, is in ranks.h. One thread at a time.
 */
#ifndef MOE_RANKS_WIRE_H
#define MOE_RANKS_WIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct moe_wire;

/* Messages of a lane arrive in order. A lane has at most one message under way to each rank. */
enum moe_wire_lane {
    MOE_LANE_TALK, /* what a rank is asked and answers */
    MOE_LANE_ROWS, /* many rows, of the request in the other lane */
    MOE_LANE_HINT, /* predictions */
    MOE_N_LANES
};

struct moe_wire_ops {
    const char *name; /* "Open MPI 4.1.4" */
    /* Begins to send; `data` stays as it is until `sent` says that it was. */
    int (*send)(struct moe_wire *wire, uint32_t to, enum moe_wire_lane lane, const void *data,
                uint64_t bytes, struct moe_err *err);
    /* Whether the last message to the rank was sent; true where there was none. */
    int (*sent)(struct moe_wire *wire, uint32_t to, enum moe_wire_lane lane, bool *done,
                struct moe_err *err);
    /* Begins to receive one message of at most `room` bytes, in the place of what the lane was
     * receiving. One that is begun with the same buffer again costs nothing to prepare. */
    int (*receive)(struct moe_wire *wire, uint32_t from, enum moe_wire_lane lane, void *buffer,
                   uint64_t room, struct moe_err *err);
    /* Whether it has arrived, once. */
    int (*arrived)(struct moe_wire *wire, uint32_t from, enum moe_wire_lane lane, bool *done,
                   uint64_t *bytes, struct moe_err *err);
    /* Ends all ranks at once, this process too, with that exit status: some of them do not answer
     * any more. */
    void (*abort)(struct moe_wire *wire, int exit_status);
    /* Every rank closes; nothing is under way but what is received. */
    void (*close)(struct moe_wire *wire);
};

/* First member of every wire. */
struct moe_wire {
    const struct moe_wire_ops *ops;
    uint32_t rank, n_ranks;
    uint32_t n_here;  /* ranks on this machine, this one included */
    double cores;     /* processors that this rank may run on; its part where others may, too */
    uint64_t bytes;   /* of main memory that the wire itself takes, at most, beside messages */
    uint64_t at_once; /* bytes of messages, at most, that are sent before their receiver looks for
                         them, and then lie there in memory of the wire's; 0: none are */
    double patience;  /* seconds without a sign of another rank that are taken for its end */
    bool may_spin;    /* there are processors to wait on */
};

enum {
    MOE_MAX_RANKS = 255,
    /* `bytes` and `at_once` of MPI. A process of Open MPI 4.1 takes 11 MiB beside the program (4
     * ranks, TCP and shared memory, Debian 12). */
    MOE_WIRE_MPI_BYTES = 20 << 20,
    MOE_WIRE_MPI_AT_ONCE = 1 << 20,
};

/* What mpirun or srun say in the environment: the process's number, and of how many; false: it was
 * started alone. */
bool moe_wire_started(uint32_t *rank, uint32_t *n_ranks);

/* The wire of this process; *out is NULL where it was started alone. MOE_ERR_UNSUPPORTED: it is one
 * of several, and this build has no MPI. */
int moe_wire_open(struct moe_wire **out, struct moe_err *err);
void moe_wire_close(struct moe_wire *wire); /* NULL is fine */

/* What the shared object exports, under MOE_WIRE_SYMBOL. */
typedef int moe_wire_opener(struct moe_wire **out, struct moe_err *err);
#define MOE_WIRE_OBJECT "libmoe-mpi.so"
#define MOE_WIRE_SYMBOL "moe_wire_mpi"

#endif
