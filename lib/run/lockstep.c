#include "run/lockstep.h"

static void took(struct moe_session *s, double seconds)
{
    if (s->experts->ops->computed)
        s->experts->ops->computed(s->experts, seconds);
}

void moe_lockstep_piece(struct moe_session *s, enum moe_piece piece, uint32_t rows)
{
    if (s->pace)
        took(s, moe_pace_piece(s->pace, piece, rows));
}

void moe_lockstep_expert(struct moe_session *s, uint32_t variant, uint32_t rows, bool last)
{
    if (s->pace)
        took(s, moe_pace_expert_part(s->pace, variant, rows, last));
}

void moe_lockstep_predict(struct moe_session *s, uint32_t n)
{
    if (s->pace)
        took(s, s->pace->predict * n);
}

void moe_lockstep_head(struct moe_session *s)
{
    if (s->pace)
        took(s, s->pace->head);
}

double moe_lockstep_wait(struct moe_session *s, double due)
{
    double now = moe_experts_clock(s->experts);
    if (due <= now)
        return 0;
    took(s, due - now);
    return due - now;
}
