/* moe-plan --shape with several budgets, or none: a line for each. */
#ifndef CMD_PLAN_BUDGETS_H
#define CMD_PLAN_BUDGETS_H

#include "plan_inputs.h"

/* What it plans where none is given. */
#define PLAN_BUDGETS "4GB,8GB,16GB,32GB"

/* budgets: sizes with commas. To stdout: which model, and whether moe-run knows it; then for each
 * size bits, cache, tokens/s and MB a token, or that it does not fit. MOE_ERR_USAGE: a size that is
 * none; MOE_ERR_LIMIT: nothing fits. */
int plan_budgets(const struct plan_options *o, const char *budgets, struct moe_err *err);

#endif
