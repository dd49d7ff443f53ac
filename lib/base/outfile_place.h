/*
 * Places and names of outputs while they are unfinished. Internal to outfile.c and outfile_place.c.
 */
#ifndef MOE_BASE_OUTFILE_PLACE_H
#define MOE_BASE_OUTFILE_PLACE_H

#include <stddef.h>

#include "base/err.h"

/* "DIR/NAME.moe-unfinished-" of an output DIR/NAME, with room for the letters after it; free() it.
 * NULL: out of memory. */
char *outfile_unfinished(const char *target, struct moe_err *err);
/* Puts other letters behind the first n bytes of such a name. */
void outfile_draw_letters(char *name, size_t n);
/* Removes what killed writers of the same output left. */
void outfile_sweep(const char *target);

#endif
