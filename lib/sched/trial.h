/*
 * Trial: whether something that may not pay off (prefetching) does, by trying both ways during the
 * work. Pure: the caller measures.
 *
 * Tokens run in periods: the first with it, the second without, from then on the way that has
 * measured faster so far, except that one in MOE_TRIAL_EVERY goes the other way. Both means are
 * exponential moving averages, so that a change of text or of disk is noticed.
 */
#ifndef MOE_SCHED_TRIAL_H
#define MOE_SCHED_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MOE_TRIAL_PERIOD = 8, /* tokens */
    MOE_TRIAL_EVERY = 8,  /* periods: one in this many goes the other way */
};

struct moe_trial {
    uint32_t tokens, periods; /* in the current period; begun so far */
    bool on;                  /* the current period's way */
    double seconds;           /* in the current period */
    double mean[2];           /* seconds per token without and with; 0: not tried yet */
    uint64_t periods_on, periods_off;
};

void moe_trial_init(struct moe_trial *t);
/* Whether the token that begins now runs with it. */
bool moe_trial_on(const struct moe_trial *t);
/* That token took `seconds`. The first token of a period is not counted: the one before still
 * affects it. */
void moe_trial_token(struct moe_trial *t, double seconds);

/* Exponential moving average, the newest value weighing an eighth; 0: no value yet. For T and
 * t_expert (Fate 4.3) as they are measured. */
struct moe_fading {
    double value;
};
void moe_fading_add(struct moe_fading *f, double x);

/* n = T / t_expert (Fate 4.3): loads that fit into the time between two routers, at least `least`.
 * 0 does not last: demand loads go on measuring t_expert. Without both times: 1, or `least` if that
 * is more. */
uint32_t moe_slack_loads(double layer_seconds, double load_seconds, uint32_t least);

#endif
