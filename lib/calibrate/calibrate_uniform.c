/*
 * What every uniform bitwidth costs, and the two that bracket the tolerance (EdgeMoE III-B:
 * "enumerates through the available bitwidths for all experts").
 */
#include <stdio.h>

#include "calibrate/calibrate_private.h"

static int measure_one(struct calibration *c, const struct bench_model *b, uint32_t variant,
                       struct moe_err *err)
{
    struct moe_uniform *u = &c->map->uniform[c->map->n_uniform];
    int status = calibrate_measure_variants(c, b, false, NULL, variant, &u->loss, NULL, err);
    snprintf(u->experts, sizeof u->experts, "%s", c->map->variants[variant]);
    u->dense_bits = b->dense_bits;
    u->bytes = calibrate_all_bytes(c, variant) + b->dense_bytes;
    c->map->n_uniform += status == MOE_OK;
    return status;
}

int calibrate_uniform(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    uint64_t n = c->map->n_variants + o->n_dense_bits, done = 0;
    int status = MOE_OK;
    c->map->n_uniform = 0;
    for (uint32_t v = 0; v < c->map->n_variants && status == MOE_OK; v++) {
        status = measure_one(c, &c->own, v, err);
        moe_progress_report(o->progress, "uniform bitwidths", ++done, n);
    }
    for (uint32_t i = 0; i < o->n_dense_bits && status == MOE_OK; i++) {
        struct bench_model b;
        if (o->dense_bits[i] == c->own.dense_bits)
            continue;
        status = calibrate_open_bench(&b, c, o->dense_bits[i], err);
        if (status != MOE_OK)
            break;
        status = measure_one(c, &b, 0, err);
        calibrate_close_bench(&b, c);
        moe_progress_report(o->progress, "uniform bitwidths", ++done, n);
    }
    return status;
}

int calibrate_bounds(struct calibration *c, struct moe_err *err)
{
    const struct moe_map *map = c->map;
    const struct moe_uniform *best = NULL;
    uint64_t fewest = UINT64_MAX;
    c->lower = 0;
    for (uint32_t v = 0; v < map->n_variants; v++) {
        uint64_t bytes = calibrate_all_bytes(c, v);
        bool within = map->tolerance < 0 || calibrate_within(c, &map->uniform[v].loss);
        if (bytes < fewest)
            c->lower = v;
        fewest = bytes < fewest ? bytes : fewest;
        if (within && (!best || map->uniform[v].bytes < best->bytes))
            best = &map->uniform[v];
    }
    if (!best)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the tolerance of %g cannot be met: not even the highest precision is "
                        "within it",
                        map->tolerance);
    c->upper = (uint32_t)(best - map->uniform);
    /* Nothing to choose: importances then compare the best with the lowest. */
    if (map->tolerance < 0 || c->upper == c->lower)
        c->upper = 0;
    return MOE_OK;
}
