/*
 * Trial: whether something that may not pay off (prefetching) does, by trying both ways during the
 * work. Pure: the caller measures.
 *
 * Tokens run in periods, all of them the usual way but for single ones now and then that go the
 * other way; that becomes the usual one when it took less time than the mean of the periods just
 * before and after, so that a cache that fills, or a text or disk that changes, decides nothing.
 * The first way is with it. After a trial the next one comes MOE_TRIAL_FIRST periods later if the
 * ways changed, else after twice as many as before, up to MOE_TRIAL_MOST.
 */
#ifndef MOE_SCHED_TRIAL_H
#define MOE_SCHED_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MOE_TRIAL_PERIOD = 8, /* tokens */
    MOE_TRIAL_FIRST = 2,  /* periods */
    MOE_TRIAL_MOST = 64,
};

struct moe_trial {
    uint32_t tokens;          /* in the current period */
    bool usual, on;           /* the usual way, and the current period's */
    bool after;               /* the current period follows one that went the other way */
    bool saturated;           /* all tokens of the current period were */
    uint32_t interval, waits; /* periods from trial to trial; until the next */
    double seconds;           /* in the current period */
    double before, other;     /* seconds per token before a trial, and in it */
};

void moe_trial_init(struct moe_trial *t);
/* Whether the token that begins now runs with it. */
bool moe_trial_on(const struct moe_trial *t);
/* That token took `seconds`. The first token of a period is not counted: the one before still
 * affects it. saturated: what it costs could show in the time; without, the way without is not
 * tried. */
void moe_trial_token(struct moe_trial *t, double seconds, bool saturated);

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
