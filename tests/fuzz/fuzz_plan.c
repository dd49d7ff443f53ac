/* A plan. What is accepted must come back the same from YAML and from JSON. */
/* Readers: plan/plan.c fmt/record.c */
#define _GNU_SOURCE
#include "mutate.h"
#include "plan/plan.h"

static void check_round_trip(const struct moe_plan *plan, bool json)
{
    struct moe_err err;
    struct moe_buf first = {0}, second = {0};
    struct moe_plan *again;
    if (moe_plan_write(plan, json, &first, &err) != MOE_OK ||
        moe_record_parse(&moe_plan_format, &again, "fuzz", first.data, first.size, &err) !=
            MOE_OK ||
        moe_plan_write(again, json, &second, &err) != MOE_OK)
        abort();
    if (json)
        fuzz_check_json(&first);
    moe_plan_free(again);
    fuzz_same(&first, &second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct moe_err err;
    struct moe_plan *plan;
    n = fuzz_begin(data, n);
    if (FUZZ_TRY(moe_plan_read(&plan, fuzz_file(data, n), &err)) == MOE_OK) {
        struct moe_plan *alike;
        moe_plan_terms(plan);
        if (moe_plan_new(&alike, plan->n_layers, plan->n_experts, plan->top_k, &err) != MOE_OK)
            abort(); /* what can be read can be made */
        moe_plan_free(alike);
        check_round_trip(plan, false);
        check_round_trip(plan, true);
        moe_plan_free(plan);
    }
    return 0;
}

FUZZ_MUTATE_TEXT
