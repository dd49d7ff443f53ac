/*
 * Trial: whether something that may not pay (prefetching) pays, by trying both ways while the work
 * goes on. Pure: times are told.
 *
 * Tokens run in periods: the first with it, the second without, from then on with what has
 * measured faster so far, but for one in MOE_TRIAL_EVERY with the other. The two means fade, so
 * that a change of text or of disk is noticed.
 */
#ifndef MOE_SCHED_TRIAL_H
#define MOE_SCHED_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MOE_TRIAL_PERIOD = 8, /* tokens */
    MOE_TRIAL_EVERY = 8,  /* periods: one of so many is the other way */
};

struct moe_trial {
    uint32_t tokens, periods; /* of the period under way; begun so far */
    bool on;                  /* this period's way */
    double seconds;           /* of the period under way */
    double mean[2];           /* seconds per token without and with; 0: not tried yet */
    uint64_t periods_on, periods_off;
};

void moe_trial_init(struct moe_trial *t);
/* Whether the token that begins now is done with it. */
bool moe_trial_on(const struct moe_trial *t);
/* That token took so long. The first token of a period is not counted: it still feels the one
 * before. */
void moe_trial_token(struct moe_trial *t, double seconds);

/* Mean of what was told, fading: the newest counts an eighth; 0: nothing was told. For T and
 * t_expert (Fate 4.3) as they are measured. */
struct moe_fading {
    double value;
};
void moe_fading_add(struct moe_fading *f, double x);

/* n = T / t_expert (Fate 4.3): loads that the time between two routers pays for, at least `least`.
 * Without both times: `least`. */
uint32_t moe_slack_loads(double layer_seconds, double load_seconds, uint32_t least);

#endif
