/*
 * The wire over MPI, in a shared object of its own (libmoe-mpi.so, ranks/wire.h): the only file
 * that includes mpi.h.
 *
 * Receives are persistent requests, prepared once for a buffer; sends are plain, since the sizes of
 * messages differ from pass to pass. Errors come back as return codes.
 */
#define _GNU_SOURCE /* sched_getaffinity */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks/wire.h"

__attribute__((visibility("default"))) moe_wire_opener moe_wire_mpi;

/* Until a rank is given up. It says every few seconds that it is still at work. */
static const double PATIENCE = 60;

struct lane {
    MPI_Request send, receive; /* receive: persistent */
    bool receives;             /* ... and under way */
    void *buffer;
    uint64_t room;
};

struct mpi_wire {
    struct moe_wire base;
    MPI_Comm comm;
    char name[64];
    struct lane (*peers)[MOE_N_LANES]; /* [n_ranks] */
};

static int failed(struct mpi_wire *w, int code, uint32_t rank, const char *what,
                  struct moe_err *err)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(code, text, &n);
    return moe_fail(err, MOE_ERR_IO, "rank %u: cannot %s rank %u: %.*s", w->base.rank, what, rank,
                    n, text);
}

static int send_message(struct moe_wire *wire, uint32_t to, enum moe_wire_lane lane,
                        const void *data, uint64_t bytes, struct moe_err *err)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    if (bytes > INT32_MAX)
        return moe_fail(err, MOE_ERR_LIMIT, "a message of more than 2 GiB to rank %u", to);
    int got = MPI_Isend(data, (int)bytes, MPI_BYTE, (int)to, (int)lane, w->comm,
                        &w->peers[to][lane].send);
    return got == MPI_SUCCESS ? MOE_OK : failed(w, got, to, "send to", err);
}

static int was_sent(struct moe_wire *wire, uint32_t to, enum moe_wire_lane lane, bool *done,
                    struct moe_err *err)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    int flag = 0, got = MPI_Test(&w->peers[to][lane].send, &flag, MPI_STATUS_IGNORE);
    *done = flag;
    return got == MPI_SUCCESS ? MOE_OK : failed(w, got, to, "send to", err);
}

/* Gives up what a lane is receiving. */
static void stop_receiving(struct lane *l)
{
    if (l->receives)
        MPI_Cancel(&l->receive);
    MPI_Wait(&l->receive, MPI_STATUS_IGNORE);
    l->receives = false;
}

static int receive_message(struct moe_wire *wire, uint32_t from, enum moe_wire_lane lane,
                           void *buffer, uint64_t room, struct moe_err *err)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    struct lane *l = &w->peers[from][lane];
    int got = MPI_SUCCESS;
    if (room > INT32_MAX)
        room = INT32_MAX;
    if (l->receives)
        stop_receiving(l);
    if (l->receive != MPI_REQUEST_NULL && (l->buffer != buffer || l->room != room))
        got = MPI_Request_free(&l->receive);
    if (got == MPI_SUCCESS && l->receive == MPI_REQUEST_NULL)
        got =
            MPI_Recv_init(buffer, (int)room, MPI_BYTE, (int)from, (int)lane, w->comm, &l->receive);
    l->buffer = buffer;
    l->room = room;
    if (got == MPI_SUCCESS)
        got = MPI_Start(&l->receive);
    l->receives = got == MPI_SUCCESS;
    return got == MPI_SUCCESS ? MOE_OK : failed(w, got, from, "receive from", err);
}

static int has_arrived(struct moe_wire *wire, uint32_t from, enum moe_wire_lane lane, bool *done,
                       uint64_t *bytes, struct moe_err *err)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    MPI_Status status;
    int flag = 0, n = 0, got = MPI_Test(&w->peers[from][lane].receive, &flag, &status);
    if (got == MPI_SUCCESS && flag)
        got = MPI_Get_count(&status, MPI_BYTE, &n);
    *done = flag;
    *bytes = (uint64_t)n;
    w->peers[from][lane].receives = !flag;
    return got == MPI_SUCCESS ? MOE_OK : failed(w, got, from, "receive from", err);
}

static void abort_all(struct moe_wire *wire, int exit_status)
{
    MPI_Abort(((struct mpi_wire *)wire)->comm, exit_status);
}

static void release(struct mpi_wire *w)
{
    free(w->peers);
    free(w);
}

static void close_wire(struct moe_wire *wire)
{
    struct mpi_wire *w = (struct mpi_wire *)wire;
    for (uint32_t i = 0; i < w->base.n_ranks; i++)
        for (int lane = 0; lane < MOE_N_LANES; lane++) {
            struct lane *l = &w->peers[i][lane];
            if (l->receive == MPI_REQUEST_NULL)
                continue;
            stop_receiving(l);
            MPI_Request_free(&l->receive);
        }
    MPI_Finalize();
    release(w);
}

static const struct moe_wire_ops mpi_ops = {
    .name = "MPI",
    .send = send_message,
    .sent = was_sent,
    .receive = receive_message,
    .arrived = has_arrived,
    .abort = abort_all,
    .close = close_wire,
};

/* The processors that this rank may run on, each divided by the ranks of this machine that may. */
static int share_cores(struct mpi_wire *w, struct moe_err *err)
{
    MPI_Comm here;
    int n = 0;
    cpu_set_t own, *all;
    CPU_ZERO(&own);
    sched_getaffinity(0, sizeof own, &own);
    MPI_Comm_split_type(w->comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here);
    MPI_Comm_size(here, &n);
    w->base.n_here = (uint32_t)n;
    all = calloc((size_t)n, sizeof *all);
    if (!all)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, here);
    MPI_Comm_free(&here);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        int sharers = 0;
        for (int i = 0; i < n; i++)
            sharers += CPU_ISSET(core, &all[i]) != 0;
        if (CPU_ISSET(core, &own))
            w->base.cores += 1.0 / sharers;
    }
    free(all);
    return MOE_OK;
}

/* Open MPI holds back longer messages over TCP until their receiver is in MPI, too. Rank 0 may
 * compute for long: ranks would wait for it with their outputs, which are shorter
 * (MOE_RANK_OUTPUT_BYTES), where they could compute on. Values that the environment has already
 * stay; other kinds of MPI ignore them. Returns the bytes of the longest that is sent at once. */
static uint64_t send_at_once(void)
{
    static const char *const limits[] = {"OMPI_MCA_btl_tcp_eager_limit",
                                         "OMPI_MCA_btl_tcp_rndv_eager_limit",
                                         "OMPI_MCA_btl_tcp_max_send_size"};
    char bytes[16];
    snprintf(bytes, sizeof bytes, "%d", MOE_WIRE_MPI_AT_ONCE);
    for (int i = 0; i < 3; i++)
        setenv(limits[i], bytes, 0);
    return strtoull(getenv(limits[0]), NULL, 10);
}

int moe_wire_mpi(struct moe_wire **out, struct moe_err *err)
{
    int has = 0, rank = 0, n_ranks = 0;
    *out = NULL;
    const uint64_t at_once = send_at_once();
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &has) != MPI_SUCCESS)
        return moe_fail(err, MOE_ERR_IO, "MPI does not start");
    struct mpi_wire *w = calloc(1, sizeof *w);
    if (!w)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    MPI_Comm_dup(MPI_COMM_WORLD, &w->comm);
    MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(w->comm, &rank);
    MPI_Comm_size(w->comm, &n_ranks);
    w->base = (struct moe_wire){.ops = &mpi_ops,
                                .rank = (uint32_t)rank,
                                .n_ranks = (uint32_t)n_ranks,
                                .bytes = MOE_WIRE_MPI_BYTES,
                                .at_once = at_once,
                                .patience = PATIENCE};
    w->peers = calloc((size_t)n_ranks, sizeof *w->peers);
    int status = !w->peers ? moe_fail(err, MOE_ERR_MEMORY, "out of memory")
                 : has < MPI_THREAD_SERIALIZED
                     ? moe_fail(err, MOE_ERR_UNSUPPORTED,
                                "this MPI was built without threads (it must allow "
                                "MPI_THREAD_SERIALIZED)")
                     : share_cores(w, err);
    if (status != MOE_OK) {
        release(w);
        return status;
    }
    for (int i = 0; i < n_ranks; i++)
        for (int lane = 0; lane < MOE_N_LANES; lane++)
            w->peers[i][lane] =
                (struct lane){.send = MPI_REQUEST_NULL, .receive = MPI_REQUEST_NULL};
    *out = &w->base;
    return MOE_OK;
}
