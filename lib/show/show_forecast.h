/* What a calibration will take (moe-calibrate --dry-run), for a person or as JSON. */
#ifndef MOE_SHOW_SHOW_FORECAST_H
#define MOE_SHOW_SHOW_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/err.h"

/* Passes are over all texts; parts of one count as parts. */
struct moe_forecast {
    uint64_t documents, tokens; /* of the texts to choose on; tokens to predict */
    uint64_t tried;             /* documents that were run to know this */
    uint64_t budget;            /* bytes; UINT64_MAX: none */
    uint64_t least, whole;      /* bytes that do; that keep all experts in memory */
    uint32_t shard, n_shards;   /* shard counts from 0 */
    uint64_t experts, in_shard; /* of the model; of the shard */
    uint64_t known;             /* ... of these, by an earlier run */
    double pass_seconds;
    double before; /* passes: references and uniform bitwidths */
    double search; /* passes: importances of the shard that are not known */
    double total;  /* passes: of both, for all shards from their beginning */
    bool chooses;  /* and then chooses, which takes as many passes as it takes */
};

void moe_show_forecast(const struct moe_forecast *f, struct moe_buf *out);
/* One object, with times in seconds. */
int moe_show_forecast_json(const struct moe_forecast *f, struct moe_buf *out, struct moe_err *err);

#endif
