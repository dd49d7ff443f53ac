/*
 * A page about whatever file it is given: a plan, statistics, a trace, a bit map, a device profile.
 * The figures are those of the terminal's explanations, whose words end each page.
 */
#ifndef MOE_HTML_PAGE_FILE_H
#define MOE_HTML_PAGE_FILE_H

#include "base/buf.h"
#include "base/err.h"

/* timeline: what moe-run --trace-events wrote, drawn below; or NULL. Appends the page to `out`
 * (the caller looks at its failure). Errors of reading; a file that is none of these is read as
 * statistics. */
int moe_page_of_file(const char *path, const char *timeline, struct moe_buf *out,
                     struct moe_err *err);

#endif
