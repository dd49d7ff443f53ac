/* Components of a phase's time: the same in a plan, a simulation and a run. */
#include <stdlib.h>

#include "infer/run_stats.h"
#include "profile/device.h"
#include "show/show.h"

#include "../plan_fixture.h"
#include "../test.h"

/* Whether the text has the key, as YAML or JSON writes it. */
static bool has_key(const struct moe_buf *text, const char *key, bool json)
{
    char wanted[64];
    snprintf(wanted, sizeof wanted, json ? "\"%s\":" : " %s:", key);
    return strstr((const char *)text->data, wanted) != NULL;
}

static void plans_and_runs_name_every_component(void **state)
{
    struct moe_err err = {0};
    struct moe_buf plan = {0}, run = {0};
    struct moe_plan *p = full_plan();
    const struct moe_stats stats = {.decode = {.tokens = 1, .seconds = 1}};
    assert_ok(moe_plan_write(p, false, &plan, &err), &err);
    moe_show_run_json(&stats, &run);
    moe_buf_u8(&plan, 0);
    moe_buf_u8(&run, 0);
    assert_false(plan.failed || run.failed);
    for (enum moe_component i = 0; i < MOE_N_COMPONENTS; i++) {
        const struct moe_component_name *n = moe_component_name(i);
        char prompt[64];
        snprintf(prompt, sizeof prompt, "prefill_%s", n->plan_key);
        if (!n->name || !has_key(&plan, n->plan_key, false) || !has_key(&plan, prompt, false) ||
            !has_key(&run, n->run_key, true))
            fail_msg("component %d is not everywhere", (int)i);
    }
    moe_buf_release(&plan);
    moe_buf_release(&run);
    moe_plan_free(p);
}

static void components_add_up(void **state)
{
    const struct moe_phase_stats phase = {
        .seconds = 2, .handling_seconds = 0.25, .stall_seconds = 0.5, .host_seconds = 0.125};
    const struct moe_components c = moe_phase_components(&phase);
    double sum = 0;
    for (enum moe_component i = 0; i < MOE_N_COMPONENTS; i++)
        sum += c.seconds[i];
    assert_true(sum == 2);
    assert_true(c.seconds[MOE_COMPONENT_COMPUTE] == 1.125);
    assert_true(c.seconds[MOE_COMPONENT_HANDLING] == 0.25);

    struct moe_plan *p = full_plan();
    const struct moe_components decode = moe_plan_components(&p->expected, false),
                                prompts = moe_plan_components(&p->expected, true);
    assert_true(decode.seconds[MOE_COMPONENT_HANDLING] == p->expected.handling_seconds);
    assert_true(decode.seconds[MOE_COMPONENT_HOST] == p->expected.host_seconds);
    assert_true(prompts.seconds[MOE_COMPONENT_STALL] == p->expected.prefill_stall_seconds);
    assert_true(prompts.seconds[MOE_COMPONENT_COMPUTE] == p->expected.prefill_compute_seconds);
    moe_plan_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_and_runs_name_every_component),
        cmocka_unit_test(components_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
