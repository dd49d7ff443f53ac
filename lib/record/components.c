#include "record/components.h"

static const struct moe_component_name names[MOE_N_COMPONENTS] = {
    [MOE_COMPONENT_COMPUTE] = {"computing", "compute_s", "compute_seconds"},
    [MOE_COMPONENT_HANDLING] = {"handling loads", "handling_s", "handling_seconds"},
    [MOE_COMPONENT_STALL] = {"waiting for loads", "stall_s", "stall_seconds"},
    [MOE_COMPONENT_HOST] = {"waiting for the host", "host_wait_s", "host_seconds"},
};

const struct moe_component_name *moe_component_name(enum moe_component component)
{
    return &names[component];
}

struct moe_components moe_components_of(double total, double handling, double stall, double host)
{
    return (struct moe_components){{
        [MOE_COMPONENT_COMPUTE] = total - handling - stall - host,
        [MOE_COMPONENT_HANDLING] = handling,
        [MOE_COMPONENT_STALL] = stall,
        [MOE_COMPONENT_HOST] = host,
    }};
}
