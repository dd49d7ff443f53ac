#include "run/ahead.h"

#include "base/energy.h"
#include "layer/stages.h"
#include "run/feed_forward.h"
#include "run/session.h"

static int check_rows(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                      const uint32_t *from, struct moe_err *err)
{
    if (s->model->config.n_drafting == 0 || !s->stages->join || !s->phase || n_rows == 0 ||
        n_rows > s->batch)
        return moe_fail(err, MOE_ERR_USAGE, "nothing drafts here: no layer, or no pass before");
    int status = MOE_OK;
    for (uint32_t i = 0; i < n_rows && status == MOE_OK; i++) {
        if (from && (from[i] >= s->batch || (i && from[i] <= from[i - 1])))
            return moe_fail(err, MOE_ERR_USAGE, "row %u: the states that it is made of do not rise",
                            i);
        if (rows[i].sequence >= s->n_sequences || rows[i].position >= s->context)
            return moe_fail(err, MOE_ERR_USAGE,
                            "row %u: sequence %u or position %u is out of range", i,
                            rows[i].sequence, rows[i].position);
        status = moe_check_ids(s->model, &rows[i].token, 1, err);
        if (status == MOE_OK)
            status = moe_kv_take(&s->kv_pool, rows[i].sequence, rows[i].position + 1, err);
    }
    return status;
}

static int run_layer(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_err *err)
{
    if (s->timeline)
        s->stages->reached(s, layer, NULL);
    int status = s->stages->attend(s, layer, rows, n_rows, err);
    if (status == MOE_OK)
        status = moe_feed_forward(s, layer, rows, n_rows, s->phase, err);
    if (s->timeline && status == MOE_OK)
        s->stages->reached(s, layer, "drafts");
    return status;
}

int moe_ahead(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
              const uint32_t *from, struct moe_err *err)
{
    const uint32_t layer = s->model->config.n_layers;
    int status = check_rows(s, rows, n_rows, from, err);
    if (status != MOE_OK)
        return status;
    /* Observers and strategies know the model's layers alone. */
    struct moe_pass_strategy *strategy = s->strategy;
    const struct moe_observer observer = s->observer;
    double started = moe_experts_clock(s->experts), joules = moe_energy_joules(s->energy);
    s->strategy = NULL;
    s->observer = (struct moe_observer){0};
    status = s->stages->join(s, layer, rows, n_rows, from, err);
    if (status == MOE_OK)
        status = run_layer(s, layer, rows, n_rows, err);
    s->strategy = strategy;
    s->observer = observer;
    s->drafts = true;
    s->passed = (struct moe_passed){0};
    s->phase->seconds += moe_experts_clock(s->experts) - started;
    s->phase->joules += moe_energy_joules(s->energy) - joules;
    return status;
}
