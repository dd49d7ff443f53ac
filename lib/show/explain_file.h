/*
 * Explaining whatever file it is given: a plan (of a model or a collection), statistics, a trace, a
 * bit map, a device profile, a pack; and a plan beside another or beside its run.
 */
#ifndef MOE_SHOW_EXPLAIN_FILE_H
#define MOE_SHOW_EXPLAIN_FILE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/err.h"
#include "show/draw.h"

/* For a person, or as JSON; picture: what follows `out` and may have terminal sequences, though no
 * names from the file. MOE_ERR_FORMAT: damaged, or nothing that is known; errors of reading
 * it. */
int moe_explain_file(const char *path, bool json, struct moe_screen screen, struct moe_buf *out,
                     struct moe_buf *picture, struct moe_err *err);
/* `path`: a plan; `other`: a plan, or what moe-run --stats-json wrote. */
int moe_compare_files(const char *path, const char *other, bool json, struct moe_screen screen,
                      struct moe_buf *out, struct moe_err *err);

#endif
