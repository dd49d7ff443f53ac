/*
 * Progress hook: how a long library call reports progress, learns that it should stop, and decides
 * when to save. The library never prints; cmd/ draws the bar.
 */
#ifndef MOE_BASE_PROGRESS_H
#define MOE_BASE_PROGRESS_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct moe_progress {
    /* Called now and then from the calling thread; NULL: no reports. `what` names the step; total
     * 0: unknown. */
    void (*report)(void *ctx, const char *what, uint64_t done, uint64_t total);
    void *ctx;
    /* Set by a signal handler: finish the current step and return MOE_ERR_INTERRUPTED. May be
     * NULL. */
    const volatile sig_atomic_t *stop;
};

static inline void moe_progress_report(const struct moe_progress *p, const char *what,
                                       uint64_t done, uint64_t total)
{
    if (p && p->report)
        p->report(p->ctx, what, done, total);
}

static inline bool moe_progress_stopped(const struct moe_progress *p)
{
    return p && p->stop && __atomic_load_n(p->stop, __ATOMIC_RELAXED);
}

/* Decides when a long call saves its work. */
struct moe_saving {
    double began, saved; /* moe_seconds */
};

/* Due after a tenth of a second, then whenever as much time has passed again as until the last
 * save, and at least every 30 seconds: a kill costs at most half of the work so far. */
static inline bool moe_saving_due(const struct moe_saving *s, double now)
{
    double wait = s->saved - s->began;
    return now - s->saved > (wait < 0.1 ? 0.1 : wait > 30 ? 30 : wait);
}

#endif
