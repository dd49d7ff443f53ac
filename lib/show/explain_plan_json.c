/* A plan's explanation for scripts. */
#include "fmt/emit.h"
#include "show/explain.h"
#include "show/explain_figures.h"

static void put_number(struct moe_emit *e, const char *key, double x)
{
    moe_emit_rounded(e, key, 17, x);
}

static void put_next(struct moe_emit *e, const char *key, const struct moe_plan_step *step,
                     double speed)
{
    if (!step) {
        moe_emit_null(e, key);
        return;
    }
    moe_emit_open_map(e, key);
    put_number(e, "amount", step->amount);
    put_number(e, "decode_tokens_per_s", step->decode_tokens_per_second);
    put_number(e, "hit_rate", step->hit_rate);
    put_number(e, "gain", speed > 0 ? step->decode_tokens_per_second / speed - 1 : 0);
    moe_emit_close(e);
}

/* The plan itself, as its file has it in JSON. */
static int put_plan(struct moe_emit *e, const struct moe_plan *plan, struct moe_err *err)
{
    struct moe_buf json = {0};
    int status = moe_plan_write_json(plan, &json, err);
    if (status == MOE_OK)
        moe_emit_json(e, "plan", json.data, json.size - 1); /* without its newline */
    moe_buf_release(&json);
    return status;
}

static void put_bounds(struct moe_emit *e, const struct moe_plan *plan)
{
    static const char *const seconds[MOE_N_BOUNDS] = {"computation_seconds", "link_seconds",
                                                      "prediction_seconds"};
    static const char *const names[MOE_N_BOUNDS] = {"computation", "link", "prediction"};
    struct moe_plan_bounds b = moe_plan_bounds(plan);
    moe_emit_open_map(e, "bounds");
    put_number(e, "total_seconds", b.total);
    for (enum moe_bound i = 0; i < MOE_N_BOUNDS; i++)
        put_number(e, seconds[i], b.seconds[i]);
    moe_emit_text(e, "largest", names[b.largest]);
    moe_emit_close(e);
}

static void put_exactness(struct moe_emit *e, const struct moe_plan *plan)
{
    const struct moe_terms terms = moe_plan_terms(plan);
    const struct moe_exactness x = moe_exactness_of(&terms);
    moe_emit_open_map(e, "exact");
    moe_emit_bool(e, "as_asked", x.exact);
    moe_emit_text(e, "why", x.why);
    moe_emit_close(e);
}

static void put_slots(struct moe_emit *e, const struct moe_plan *plan)
{
    struct moe_plan_slots slots = moe_plan_slots(plan);
    moe_emit_open_map(e, "slots");
    moe_emit_u64(e, "cache", slots.n_cache);
    moe_emit_u64(e, "working", slots.n_working);
    moe_emit_u64(e, "cache_bytes", slots.cache_bytes);
    put_number(e, "share", slots.share);
    put_number(e, "tokens", slots.tokens);
    moe_emit_close(e);
}

static void put_assumptions(struct moe_emit *e, const struct moe_plan *plan)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    moe_emit_open_list(e, "assumptions");
    for (uint32_t i = 0; i < n; i++)
        moe_emit_text(e, NULL, moe_assumption_name(what[i]));
    moe_emit_close(e);
}

static void put_advice(struct moe_emit *e, const struct moe_plan *plan)
{
    struct moe_advice advice[MOE_PLAN_MAX_ALTERNATIVES];
    uint32_t n = moe_plan_advice(plan, advice);
    moe_emit_open_list(e, "advice");
    for (uint32_t i = 0; i < n; i++) {
        moe_emit_open_map(e, NULL);
        moe_emit_text(e, "what", moe_alternative_name(advice[i].what));
        put_number(e, "amount", advice[i].amount);
        put_number(e, "times", advice[i].times);
        if (advice[i].precision[0])
            moe_emit_text(e, "precision", advice[i].precision);
        put_number(e, "gain", advice[i].gain);
        moe_emit_bool(e, "at_most", advice[i].at_most);
        moe_emit_close(e);
    }
    moe_emit_close(e);
}

int moe_explain_plan_json(const struct moe_plan *plan, struct moe_buf *out, struct moe_err *err)
{
    double speed = plan->expected.decode_tokens_per_second;
    double memory = (double)(plan->memory.total ? plan->memory.total : plan->memory.experts);
    struct moe_buf answer = {0};
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_LINE);
    int status = put_plan(&e, plan, err);
    if (status != MOE_OK)
        return status;
    moe_explain_answer(plan, &answer);
    moe_emit_text(&e, "answer", answer.failed ? "" : (const char *)answer.data);
    out->failed |= answer.failed;
    moe_buf_release(&answer);
    put_exactness(&e, plan);
    put_bounds(&e, plan);
    put_slots(&e, plan);
    put_number(&e, "hit_rate_error", moe_plan_hit_rate_error(plan));
    put_next(&e, "next_memory",
             moe_plan_next_step(plan->memory_steps, plan->n_memory_steps, memory), speed);
    put_next(&e, "next_rate",
             moe_plan_next_step(plan->rate_steps, plan->n_rate_steps, plan->pace.load_rate), speed);
    put_advice(&e, plan);
    put_assumptions(&e, plan);
    return moe_emit_end(&e, err);
}
