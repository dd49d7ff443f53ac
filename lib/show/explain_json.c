/* A plan's explanation for scripts. */
#include <inttypes.h>

#include "show/explain_parts.h"

static void put_number(struct moe_buf *out, const char *before, double x)
{
    moe_buf_printf(out, "%s%.17g", before, x);
}

static void put_next(struct moe_buf *out, const char *before, const struct moe_plan_step *step,
                     double speed)
{
    moe_buf_text(out, before);
    if (!step) {
        moe_buf_text(out, "null");
        return;
    }
    put_number(out, "{\"amount\": ", step->amount);
    put_number(out, ", \"decode_tokens_per_s\": ", step->decode_tokens_per_second);
    put_number(out, ", \"hit_rate\": ", step->hit_rate);
    put_number(out, ", \"gain\": ", speed > 0 ? step->decode_tokens_per_second / speed - 1 : 0);
    moe_buf_text(out, "}");
}

static void put_assumptions(const struct moe_plan *plan, struct moe_buf *out)
{
    static const char *const names[MOE_N_ASSUMPTIONS] = {
        "routing-of-another-model",
        "times-from-bandwidth",
        "routing-drawn",
        "few-tokens",
        "no-statistics",
        "texts-alike",
    };
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    moe_buf_text(out, ", \"assumptions\": [");
    for (uint32_t i = 0; i < n; i++)
        moe_buf_printf(out, "%s\"%s\"", i ? ", " : "", names[what[i]]);
    moe_buf_text(out, "]");
}

int moe_explain_plan_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    static const char *const names[MOE_N_BOUNDS] = {"computation", "link", "foresight"};
    struct moe_plan_bounds b = moe_plan_bounds(plan);
    struct moe_explain_slots slots = moe_explain_slots(plan);
    double speed = plan->expected.decode_tokens_per_second;
    double memory = (double)(plan->memory.total ? plan->memory.total : plan->memory.experts);
    moe_buf_text(out, "{\"plan\": ");
    int status = moe_plan_write_json(plan, out, err);
    if (status != MOE_OK)
        return status;
    while (out->size && out->data[out->size - 1] == '\n')
        out->size--;
    put_number(out, ", \"bounds\": {\"total_seconds\": ", b.total);
    for (enum moe_bound i = 0; i < MOE_N_BOUNDS; i++)
        moe_buf_printf(out, ", \"%s_seconds\": %.17g", names[i], b.seconds[i]);
    moe_buf_printf(out, ", \"largest\": \"%s\"}", names[b.largest]);
    moe_buf_printf(out,
                   ", \"slots\": {\"cache\": %" PRIu64 ", \"working\": %" PRIu64
                   ", \"cache_bytes\": %" PRIu64,
                   slots.n_cache, slots.n_working, slots.cache_bytes);
    put_number(out, ", \"share\": ", slots.share);
    put_number(out, ", \"tokens\": ", slots.tokens);
    put_number(out, "}, \"hit_rate_error\": ", moe_plan_hit_rate_error(plan));
    put_next(out, ", \"next_memory\": ",
             moe_plan_next_step(plan->memory_steps, plan->n_memory_steps, memory), speed);
    put_next(out, ", \"next_rate\": ",
             moe_plan_next_step(plan->rate_steps, plan->n_rate_steps, plan->pace.load_rate), speed);
    put_assumptions(plan, out);
    moe_buf_text(out, "}\n");
    return MOE_OK;
}
