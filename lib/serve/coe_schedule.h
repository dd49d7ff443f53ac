/* Names of how requests are scheduled and experts evicted, as options and plans say them. */
#ifndef MOE_SERVE_COE_SCHEDULE_H
#define MOE_SERVE_COE_SCHEDULE_H

#include "serve/coe_dispatch.h"

struct moe_coe_schedule {
    const char *name;
    enum moe_coe_assign assign;
    bool arrange;
    const char *what; /* for people: "to each executor in turn" */
};

/* By number, from 0; NULL: there are no more. */
const struct moe_coe_schedule *moe_coe_schedule_at(uint32_t i);
const char *moe_coe_evict_at(uint32_t i); /* of enum moe_coe_evict */

/* NULL: there is none by that name. */
const struct moe_coe_schedule *moe_coe_schedule_find(const char *name);
/* False: there is none by that name. */
bool moe_coe_evict_find(const char *name, enum moe_coe_evict *out);

#endif
