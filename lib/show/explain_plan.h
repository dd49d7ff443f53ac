/* The explanation of a plan in sections. Internal to explain_plan.c, explain_speed.c and
 * explain_advice.c. */
#ifndef MOE_SHOW_EXPLAIN_PLAN_H
#define MOE_SHOW_EXPLAIN_PLAN_H

#include "base/buf.h"
#include "show/draw.h"
#include "show/explain_figures.h"

struct explanation {
    const struct moe_plan *plan;
    struct moe_screen screen;
    struct moe_buf *out;
};

enum { EXPLAIN_BAR = 24 };

/* explain_speed.c; each says nothing where the plan has no figures for it. */
void explain_bounds(const struct explanation *x);
void explain_layers(const struct explanation *x);
void explain_steps(const struct explanation *x);
void explain_tried(const struct explanation *x);

/* explain_advice.c: what helps most, in a paragraph; what each alternative would give, a table. */
void explain_advice(const struct explanation *x);
void explain_alternatives(const struct explanation *x);

#endif
