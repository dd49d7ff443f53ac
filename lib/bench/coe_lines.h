/*
 * Lines of sample requests.
 */
#ifndef MOE_BENCH_COE_LINES_H
#define MOE_BENCH_COE_LINES_H

#include "base/progress.h"
#include "serve/request.h"

/* Calls fn with each request of a file of JSON lines, alone or as "body" of a line, until it fails;
 * *request may be taken (then fn sets it to NULL). MOE_ERR_FORMAT names the line; a file without
 * requests is one. */
int moe_coe_each_sample(const char *path,
                        int (*fn)(void *ctx, uint64_t line, struct moe_request **request,
                                  struct moe_err *err),
                        void *ctx, const struct moe_progress *progress, struct moe_err *err);

#endif
