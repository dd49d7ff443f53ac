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
 */
#define _GNU_SOURCE /* RTLD_NEXT */
#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

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

int sched_yield(void)
{
    static int (*next)(void);
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "sched_yield");
    napped = true;
    return next();
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request)
{
    begin_call();
    const int got = PMPI_Isend(data, n, type, to, tag, comm, request);
    before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return got;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    begin_call();
    const int got = PMPI_Test(request, done, status);
    if (!*done)
        sleep_for(times() * LOOK_SECONDS);
    before = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    return got;
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
