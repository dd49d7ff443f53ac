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

static void begin_period(struct moe_trial *t, bool on)
{
    t->on = on;
    t->tokens = 0;
    t->seconds = 0;
    t->saturated = true;
}

void moe_trial_init(struct moe_trial *t)
{
    *t = (struct moe_trial){.usual = true, .interval = MOE_TRIAL_FIRST, .waits = 1};
    begin_period(t, true);
}

bool moe_trial_on(const struct moe_trial *t)
{
    return t->on;
}

/* The period after a trial is over: compares. */
static void decide(struct moe_trial *t, double seconds)
{
    bool faster = t->other < (t->before + seconds) / 2;
    t->usual ^= faster;
    t->interval = faster ? MOE_TRIAL_FIRST : 2 * t->interval;
    if (t->interval > MOE_TRIAL_MOST)
        t->interval = MOE_TRIAL_MOST;
    t->waits = t->interval;
}

void moe_trial_token(struct moe_trial *t, double seconds, bool saturated)
{
    if (t->tokens++ > 0)
        t->seconds += seconds;
    t->saturated &= saturated;
    if (t->tokens < MOE_TRIAL_PERIOD)
        return;
    double mean = t->seconds / (MOE_TRIAL_PERIOD - 1);
    bool tried = t->on != t->usual;
    if (tried)
        t->other = mean;
    else if (t->after)
        decide(t, mean);
    t->after = tried;
    t->waits -= !tried && t->waits > 0;
    bool tries = !tried && t->waits == 0 && (t->saturated || !t->usual);
    t->before = tries ? mean : t->before;
    begin_period(t, tries ? !t->usual : t->usual);
}

uint32_t moe_slack_loads(double layer_seconds, double load_seconds, uint32_t least)
{
    if (!(layer_seconds > 0) || !(load_seconds > 0))
        return least ? least : 1;
    /* Undoes rounding just below a whole number. */
    double n = layer_seconds / load_seconds * (1 + 1e-9);
    return n >= UINT32_MAX ? UINT32_MAX : n > least ? (uint32_t)n : least;
}
