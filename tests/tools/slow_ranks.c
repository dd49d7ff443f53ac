/*
 * Ranks in slow motion: a library that is loaded before libmpi (LD_PRELOAD), by MPI's own interface
 * for such (PMPI). Whatever a rank computes between two calls of MPI takes SLOW_RANKS times as
 * long: it sleeps for the rest. With a network that is slowed as much, several ranks share a few
 * processors as if each had its own: they seldom compute at once, and what the scheduler lets one
 * wait is short beside that. Nor do they wait awake.
 *
 * With SLOW_PAUSE, in seconds, whatever is computed between two looks at the clock is followed by
 * such a sleep, which the clock does not show: so moe-profile --device measures computing as it
 * is after a pause.
 *
 * With SLOW_WIRE=MICROSECONDS:BITS_PER_SECOND:FILE, messages between ranks of this machine take as
 * long as on such a network, through a switch that hands a frame on when it has all of it: what has
 * come is kept from the rank until then. FILE, which the ranks share, has when each was sent. That
 * takes no processor's time, as a switch in user space does (slow_net.c), so ranks with a processor
 * each run as fast as they would on machines of their own, but for the memory that they share. At
 * the end each says, on standard error, the medians of what it computed between a message's arrival
 * and its next one of rows, and of messages' ways: other processes of the machine keep ranks from
 * their processors now and then, for milliseconds, which means do not survive.
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <fcntl.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Below that a stretch between two calls is no computing. Nor is one with a nap in it: a rank that
 * waits looks again and again, and what it takes to wake is the rehearsal's, not the rank's. */
#define LEAST_SECONDS 20e-6

/* A rank that waits looks again after this, of its own time: looking oftener takes processors from
 * ranks that compute, which then find nothing in caches. */
#define LOOK_SECONDS 1e-6

static double owed;          /* seconds to be slept */
static double before;        /* of this thread's processor time, when the last call returned */
static __thread bool napped; /* since then */

static int real_clock(clockid_t clock, struct timespec *t)
{
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "clock_gettime");
    return next(clock, t);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    real_clock(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double number_of(const char *name, double otherwise)
{
    return getenv(name) ? atof(getenv(name)) : otherwise;
}

/* Returns for how long. */
static double sleep_for(double seconds)
{
    const double began = seconds_of(CLOCK_MONOTONIC);
    const struct timespec t = {.tv_sec = (time_t)seconds,
                               .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
    return seconds_of(CLOCK_MONOTONIC) - began;
}

/* ---- A network ---- */

enum { MOST_RANKS = 8, LANES = 4, RING = 256, HELD = 64, LONG_BYTES = 1 << 20, FRAME_BYTES = 9000 };

/* A message that has come and is kept from the rank. */
struct held {
    MPI_Request *request; /* NULL: none */
    double sent, due;
    MPI_Status status;
};

enum { MOST_TIMES = 1 << 16, ROW_BYTES = 1000 /* of a message that has rows */ };

struct times {
    double at[MOST_TIMES];
    int n;
};

static struct {
    double latency, byte;
    double (
        *left)[MOST_RANKS][LANES][RING]; /* [from][to]: when messages had left; NULL: no network */
    uint32_t n_sent[MOST_RANKS][LANES], n_taken[MOST_RANKS][LANES]; /* by this rank */
    double out_free, in_free;                                       /* its link is, then */
    struct held held[HELD];
    int rank;
    double arrived; /* when a message of rows did that none has followed */
    struct times computing, ways;
} wire;

static void add_time(struct times *t, double seconds)
{
    if (t->n < MOST_TIMES)
        t->at[t->n++] = seconds;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of the second half: the first has the prompt, and first visits to memory. */
static double median(struct times *t)
{
    const int n = t->n - t->n / 2;
    qsort(t->at + t->n / 2, (size_t)n, sizeof *t->at, compare);
    return n ? t->at[t->n / 2 + n / 2] : 0;
}

static bool has_wire(void)
{
    static bool looked;
    const char *text = getenv("SLOW_WIRE");
    double microseconds, bits;
    char path[256];
    int n_ranks;
    if (looked || !text)
        return wire.left;
    looked = true;
    PMPI_Comm_rank(MPI_COMM_WORLD, &wire.rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    const size_t bytes = MOST_RANKS * sizeof *wire.left;
    const int fd = sscanf(text, "%lf:%lf:%255s", &microseconds, &bits, path) == 3
                       ? open(path, O_RDWR | O_CREAT, 0600)
                       : -1;
    if (fd < 0 || n_ranks > MOST_RANKS || ftruncate(fd, (off_t)bytes) != 0)
        exit(2);
    wire.left = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (wire.left == MAP_FAILED)
        exit(2);
    wire.latency = 1e-6 * microseconds;
    wire.byte = 8 / bits;
    return true;
}

/* Before the message is sent. */
static void note_sent(int to, int lane, int n)
{
    const double now = seconds_of(CLOCK_MONOTONIC);
    if (n >= ROW_BYTES && wire.arrived > 0) {
        add_time(&wire.computing, now - wire.arrived);
        wire.arrived = 0;
    }
    wire.out_free = (now > wire.out_free ? now : wire.out_free) + n * wire.byte;
    wire.left[wire.rank][to][lane][wire.n_sent[to][lane]++ % RING] = wire.out_free;
}

/* Keeps one that has come. A long one waited for its receiver before it set out. */
static struct held *keep(MPI_Request *request, const MPI_Status *status)
{
    struct held *h = wire.held;
    int n;
    while (h->request && h + 1 < wire.held + HELD)
        h++;
    PMPI_Get_count(status, MPI_BYTE, &n);
    const int from = status->MPI_SOURCE, lane = status->MPI_TAG;
    const double left = wire.left[from][wire.rank][lane][wire.n_taken[from][lane]++ % RING];
    const double there = left + (n > LONG_BYTES ? 3 : 1) * wire.latency +
                         (n < FRAME_BYTES ? n : FRAME_BYTES) * wire.byte;
    wire.in_free += n * wire.byte;
    wire.in_free = there > wire.in_free ? there : wire.in_free;
    *h = (struct held){
        .request = request, .sent = left - n * wire.byte, .due = wire.in_free, .status = *status};
    return h;
}

/* As MPI_Test, of what is received. */
static int test_wire(MPI_Request *request, int *done, MPI_Status *status)
{
    struct held *h = wire.held;
    int got = MPI_SUCCESS;
    while (h < wire.held + HELD && h->request != request)
        h++;
    if (h == wire.held + HELD) {
        got = PMPI_Test(request, done, status);
        if (got != MPI_SUCCESS || !*done || status->MPI_SOURCE < 0) /* nothing was received */
            return got;
        h = keep(request, status);
    }
    const double now = seconds_of(CLOCK_MONOTONIC);
    *done = now >= h->due;
    *status = h->status;
    if (!*done)
        return got;
    h->request = NULL;
    int n;
    PMPI_Get_count(status, MPI_BYTE, &n);
    if (n >= ROW_BYTES) {
        wire.arrived = now;
        add_time(&wire.ways, now - h->sent);
    }
    return got;
}

/* ---- Calls of MPI ---- */

/* How many times as long everything takes. */
static double times(void)
{
    static double n;
    if (n == 0)
        n = number_of("SLOW_RANKS", 1);
    return n;
}

/* What was computed before it gets the time that is missing. */
static void begin_call(void)
{
    const double seconds = seconds_of(CLOCK_THREAD_CPUTIME_ID) - before;
    if (seconds > LEAST_SECONDS && before > 0 && !napped)
        owed += (times() - 1) * seconds;
    napped = false;
    if (owed > LEAST_SECONDS)
        owed -= sleep_for(owed);
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    napped = true;
    return clock_nanosleep(CLOCK_REALTIME, 0, t, left) ? -1 : 0;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    begin_call();
    if (has_wire())
        note_sent(to, tag, n);
    const int got = PMPI_Isend(data, n, type, to, tag, comm, request);
    before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return got;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    begin_call();
    const int got = has_wire() && status != MPI_STATUS_IGNORE ? test_wire(request, done, status)
                                                              : PMPI_Test(request, done, status);
    if (!*done && !wire.left)
        sleep_for(times() * LOOK_SECONDS);
    before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return got;
}

int MPI_Finalize(void)
{
    if (wire.left)
        fprintf(stderr,
                "slow_ranks: rank %d: computing %.3f ms, a message %.3f ms (medians of %d)\n",
                wire.rank, 1e3 * median(&wire.computing), 1e3 * median(&wire.ways), wire.ways.n);
    return PMPI_Finalize();
}

/* ---- A clock ---- */

int clock_gettime(clockid_t clock, struct timespec *t)
{
    static double pause = -1;
    static __thread double looked, slept;
    if (pause < 0)
        pause = number_of("SLOW_PAUSE", 0);
    const int got = real_clock(clock, t);
    if (clock != CLOCK_MONOTONIC || pause == 0 || got != 0)
        return got;
    const double now = (double)t->tv_sec + 1e-9 * (double)t->tv_nsec, shown = now - slept;
    if (now - looked > LEAST_SECONDS)
        slept += sleep_for(pause);
    looked = seconds_of(CLOCK_MONOTONIC);
    t->tv_sec = (time_t)shown;
    t->tv_nsec = (long)((shown - (double)t->tv_sec) * 1e9);
    return 0;
}
