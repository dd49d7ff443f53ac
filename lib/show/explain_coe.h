/* A plan of a collection of expert models (moe-coe(5)) for a person. */
#ifndef MOE_SHOW_EXPLAIN_COE_H
#define MOE_SHOW_EXPLAIN_COE_H

#include "base/buf.h"
#include "coe/coe_plan.h"
#include "show/draw.h"

/* What each executor has, why, and what was tried. */
void moe_explain_coe_plan(const struct moe_coe_plan *plan, struct moe_screen screen,
                          struct moe_buf *out);

#endif
