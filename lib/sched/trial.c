/* Trials of something both ways, and running means of measurements. */
#include "sched/trial.h"

static const double NEWEST = 0.125; /* weight of the newest value in a moving average */

static void fade(double *mean, double x)
{
    *mean = *mean > 0 ? *mean + NEWEST * (x - *mean) : x;
}

void moe_fading_add(struct moe_fading *f, double x)
{
    fade(&f->value, x);
}

/* The way of the period that begins: the second tries without, after that the faster one, and every
 * MOE_TRIAL_EVERYth the other. */
static bool next_way(const struct moe_trial *t)
{
    if (t->periods_off == 0)
        return false;
    bool faster = t->mean[true] <= t->mean[false];
    return t->periods % MOE_TRIAL_EVERY == 0 ? !faster : faster;
}

static void begin_period(struct moe_trial *t, bool on)
{
    t->on = on;
    t->tokens = 0;
    t->seconds = 0;
    t->periods++;
    t->periods_on += on;
    t->periods_off += !on;
}

void moe_trial_init(struct moe_trial *t)
{
    *t = (struct moe_trial){0};
    begin_period(t, true);
}

bool moe_trial_on(const struct moe_trial *t)
{
    return t->on;
}

void moe_trial_token(struct moe_trial *t, double seconds)
{
    if (t->tokens++ > 0)
        t->seconds += seconds;
    if (t->tokens < MOE_TRIAL_PERIOD)
        return;
    fade(&t->mean[t->on], t->seconds / (MOE_TRIAL_PERIOD - 1));
    begin_period(t, next_way(t));
}

uint32_t moe_slack_loads(double layer_seconds, double load_seconds, uint32_t least)
{
    if (!(layer_seconds > 0) || !(load_seconds > 0))
        return least ? least : 1;
    /* Undoes rounding just below a whole number. */
    double n = layer_seconds / load_seconds * (1 + 1e-9);
    return n >= UINT32_MAX ? UINT32_MAX : n > least ? (uint32_t)n : least;
}
