/* One kind of file each, drawn into a page that was begun. Internal to lib/html. */
#ifndef MOE_HTML_PAGES_H
#define MOE_HTML_PAGES_H

#include "base/err.h"
#include "html/page.h"

/* Read the file and draw its sections. Errors of reading it. */
int page_plan(struct moe_page *p, const char *path, struct moe_err *err);
int page_statistics(struct moe_page *p, const char *path, struct moe_err *err);
int page_trace(struct moe_page *p, const char *path, struct moe_err *err);
int page_map(struct moe_page *p, const char *path, struct moe_err *err);
int page_device(struct moe_page *p, const char *path, struct moe_err *err);
/* A file of at most 64 MiB. MOE_ERR_FORMAT: not a list of events. */
int page_timeline(struct moe_page *p, const char *path, struct moe_err *err);

#endif
