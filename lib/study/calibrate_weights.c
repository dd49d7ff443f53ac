/* HOBBIT's weights and pools, found on a trace (plan/tuning.h). */
#include "plan/tuning.h"
#include "study/calibrate_parts.h"

/* Of the trace: enough for penalties to settle, few enough to try hundreds of settings. */
enum { TOKEN_LAYERS = 20000 };
/* Sizes of the cache, in the experts that one token visits. */
static const double demands[] = {1, 2, 4};
enum { N_SIZES = sizeof demands / sizeof *demands };

/* Row hobbit with the thresholds that were found. */
static int settle_row(const struct moe_map_hobbit *hobbit, struct moe_strategy *out,
                      struct moe_err *err)
{
    if (!moe_strategy_find("hobbit", out))
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "there is no row hobbit");
    out->high_up_to = hobbit->t1;
    out->skip_below = 1 - hobbit->t2;
    return moe_strategy_settle(out, err);
}

static int check_shape(const struct calibration *c, const struct moe_trace_shape *shape,
                       struct moe_err *err)
{
    if (shape->source_fingerprint != c->map->source_fingerprint ||
        shape->n_layers != c->map->n_layers || shape->n_experts != c->map->n_experts ||
        shape->top_k != c->map->top_k)
        return moe_fail(err, MOE_ERR_USAGE, "%s: is a trace of another model", c->options->trace);
    return MOE_OK;
}

int calibrate_weights(struct calibration *c, struct moe_err *err)
{
    struct moe_map_hobbit *hobbit = &c->map->hobbit;
    struct moe_inventory inventory = {0};
    struct moe_trace *trace = NULL;
    struct moe_strategy strategy;
    struct moe_tuned tuned;
    uint64_t sizes[N_SIZES];
    int status = moe_trace_open(&trace, c->options->trace, err);
    if (status == MOE_OK)
        status = check_shape(c, moe_trace_shape(trace), err);
    if (status == MOE_OK)
        status = moe_inventory_of_pack(&inventory, c->model->pack, c->map->top_k, err);
    if (status == MOE_OK)
        status = settle_row(hobbit, &strategy, err);
    if (status == MOE_OK) {
        double token = (double)moe_inventory_slot_bytes(&inventory, hobbit->high) * c->map->top_k *
                       c->map->n_layers;
        for (int i = 0; i < N_SIZES; i++)
            sizes[i] = (uint64_t)(demands[i] * token);
        const struct moe_tuning tuning = {
            .inventory = &inventory,
            .trace = trace,
            .excerpt = moe_excerpt_of(trace, TOKEN_LAYERS / c->map->n_layers + 1),
            .strategy = strategy,
            .high = hobbit->high,
            .low = hobbit->low,
            .cache_bytes = sizes,
            .n_sizes = N_SIZES,
            .progress = c->options->progress,
        };
        status = moe_tune_hobbit(&tuning, &tuned, err);
    }
    if (status == MOE_OK) {
        hobbit->weighed = true;
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
            hobbit->weights[i] = tuned.weights[i];
        hobbit->low_pool = tuned.low_pool;
        hobbit->penalty = tuned.penalty;
        hobbit->default_penalty = tuned.default_penalty;
    }
    moe_inventory_release(&inventory);
    moe_trace_close(trace);
    return status;
}
