#include "experts/experts.h"

#include "base/clock.h"

void moe_experts_close(struct moe_experts *experts)
{
    if (experts)
        experts->ops->close(experts);
}

double moe_experts_clock(struct moe_experts *self)
{
    return self->lockstep ? self->ops->clock(self) : moe_seconds();
}
