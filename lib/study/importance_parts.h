/*
 * What measuring and estimating importance have in common; private to them.
 */
#ifndef MOE_STUDY_IMPORTANCE_PARTS_H
#define MOE_STUDY_IMPORTANCE_PARTS_H

#include "study/importance.h"

/* Checks that map, texts and options belong together and says in the map what its importances are,
 * of the pack's own dense part unless it says so already. MOE_ERR_USAGE: they do not, or the map
 * holds importances of another kind. */
int moe_importance_begin(struct moe_map *map, struct moe_rerun *r, const struct moe_quality *base,
                         const struct moe_importance_options *options, bool exact,
                         struct moe_err *err);

#endif
