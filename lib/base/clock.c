/* Clocks, and the time that a hypervisor took from this machine. */
#define _POSIX_C_SOURCE 200809L

#include "base/clock.h"

#include <stdio.h>
#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double moe_seconds(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double moe_thread_seconds(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

void moe_wait_at_most(pthread_cond_t *changed, pthread_mutex_t *lock, int milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += milliseconds / 1000;
    until.tv_nsec += milliseconds % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(changed, lock, &until);
}

/* ---- Stolen time ---- */

struct moe_ticks moe_ticks_now(void)
{
    double user, nice, system, idle, wait, irq, soft_irq, stolen;
    struct moe_ticks ticks = {0, 0};
    FILE *f = fopen("/proc/stat", "r");
    if (!f)
        return ticks;
    if (fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &wait, &irq,
               &soft_irq, &stolen) == 8)
        ticks = (struct moe_ticks){user + nice + system + idle + wait + irq + soft_irq + stolen,
                                   stolen};
    fclose(f);
    return ticks;
}
