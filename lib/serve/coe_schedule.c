#include "serve/coe_schedule.h"

#include <string.h>

static const struct moe_coe_schedule schedules[] = {
    {"fcfs", MOE_COE_ASSIGN_FEWEST, false,
     "in the order of their coming, each where the fewest requests wait"},
    {"round-robin", MOE_COE_ASSIGN_ROUND_ROBIN, false,
     "in the order of their coming, to each executor in turn"},
    {"arrange", MOE_COE_ASSIGN_ROUND_ROBIN, true,
     "to each executor in turn, and there behind requests for the same expert"},
    {"coserve", MOE_COE_ASSIGN_LEAST, true,
     "where all executors are done soonest, and there behind requests for the same expert"},
};
static const char *const evictions[] = {
    [MOE_COE_LRU] = "lru", [MOE_COE_FIFO] = "fifo", [MOE_COE_TWO_STAGE] = "two-stage"};

const struct moe_coe_schedule *moe_coe_schedule_at(uint32_t i)
{
    return i < sizeof schedules / sizeof *schedules ? &schedules[i] : NULL;
}

const char *moe_coe_evict_at(uint32_t i)
{
    return i < sizeof evictions / sizeof *evictions ? evictions[i] : NULL;
}

const struct moe_coe_schedule *moe_coe_schedule_find(const char *name)
{
    const struct moe_coe_schedule *s;
    for (uint32_t i = 0; (s = moe_coe_schedule_at(i)) != NULL; i++)
        if (strcmp(s->name, name) == 0)
            return s;
    return NULL;
}

bool moe_coe_evict_find(const char *name, enum moe_coe_evict *out)
{
    const char *s;
    for (uint32_t i = 0; (s = moe_coe_evict_at(i)) != NULL; i++)
        if (strcmp(s, name) == 0) {
            *out = (enum moe_coe_evict)i;
            return true;
        }
    return false;
}
