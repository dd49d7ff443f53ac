/*
 * Sample requests of a collection: how often each expert is used, and how long prompts and answers
 * are (CoServe 4.5: routing is run on a small sample of the application's own requests).
 */
#ifndef MOE_BENCH_COE_SAMPLES_H
#define MOE_BENCH_COE_SAMPLES_H

#include "base/progress.h"
#include "coe/collection.h"
#include "layer/model.h"

struct moe_coe_samples {
    uint64_t n;
    double *usage;          /* [n_models] share of the requests that use it; -1: not known, as it
                               follows results without a share in the collection */
    struct moe_ids prompts; /* all, one after the other */
    double mean_prompt;     /* tokens */
    double mean_answer;     /* ... at most, of the requests that say how many; 0: none does */
};

/* Reads JSON lines of requests (serve/request.h), each alone or as "body" of a line. Prompts are
 * counted as `model`, an opened directory, takes them (NULL: all are ids). Results go on
 * by the collection's shares; where these are missing but rules test nothing, by the rules.
 * MOE_ERR_FORMAT names the line: no request, or no rule takes it. Release with
 * moe_coe_samples_release, also where it fails. */
int moe_coe_samples_read(struct moe_coe_samples *out, const struct moe_coe_collection *collection,
                         const struct moe_model *model, const char *path,
                         const struct moe_progress *progress, struct moe_err *err);
void moe_coe_samples_release(struct moe_coe_samples *s);

#endif
