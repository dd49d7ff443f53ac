/*
 * Writes the seeds of fuzz_plan: a plan with every member, one about a shape, and one for each
 * strategy of the table. Run it in tests/fuzz/corpus/plan.
 */
#include <stdio.h>

#include "../plan_fixture.h"
#include "base/file.h"

static int put(const char *name, struct moe_plan *p, struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_plan_write(p, false, &text, err);
    if (status == MOE_OK)
        status = moe_file_write_all(name, text.data, text.size, err);
    moe_buf_release(&text);
    moe_plan_free(p);
    return status;
}

int main(void)
{
    struct moe_err err;
    int status = put("full", full_plan(), &err);
    if (status == MOE_OK)
        status = put("shape", shape_plan(), &err);
    for (int i = 0; moe_strategy_name_at(i) && status == MOE_OK; i++)
        status = put(moe_strategy_name_at(i), new_plan(12, 4, 2, moe_strategy_name_at(i)), &err);
    if (status != MOE_OK)
        fprintf(stderr, "make_plan_seeds: %s\n", err.text);
    return status != MOE_OK;
}
