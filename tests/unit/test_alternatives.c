/*
 * What a plan says would help: machines made so that one thing holds the model up, and that thing
 * is the first that is advised. And what it takes for granted: the weakest first.
 */
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "plan/planner.h"
#include "plan/synthesis.h"
#include "show/explain_figures.h"

enum { LAYERS = 6, EXPERTS = 16, TOP_K = 2, EXPERT_BYTES = 1 << 20, MIB = 1 << 20 };

static struct moe_trace *trace;
static struct moe_inventory inventory;
static char path[128];

static int open_all(void **state)
{
    struct moe_err err = {0};
    struct moe_routing_figures reached;
    const struct moe_synthesis in = {
        .shape = {.n_layers = LAYERS, .n_experts = EXPERTS, .top_k = TOP_K},
        .figures = moe_routing_figures_bundled,
        .sequences = 4,
        .prompt_tokens = 8,
        .decoded_tokens = 32,
        .seed = 3,
    };
    static const char names[1][MOE_NAME_BYTES] = {"4"};
    const uint64_t bytes = EXPERT_BYTES;
    snprintf(path, sizeof path, "/tmp/moe-alternatives-%d.trace", (int)getpid());
    assert_ok(moe_synthesize_trace(path, &in, &reached, &err), &err);
    assert_ok(moe_trace_open(&trace, path, &err), &err);
    assert_ok(moe_inventory_uniform(&inventory, LAYERS, EXPERTS, TOP_K, names, &bytes, 1, &err),
              &err);
    return 0;
}

static int close_all(void **state)
{
    moe_trace_close(trace);
    moe_inventory_release(&inventory);
    unlink(path);
    return 0;
}

/* A machine of so many bytes per second of memory and of loads, and a budget with room for a share
 * of the experts besides 2 MiB for the context, 1 for batches and 1 for the rest. */
struct machine {
    double memory_rate, load_rate, share;
    const char *strategy;
    bool measured, stated; /* as evidence */
    bool bits;             /* other bits may be tried */
};

static struct moe_plan *plan_for(const struct machine *m)
{
    struct moe_err err = {0};
    struct moe_plan *plan;
    struct moe_strategy s;
    struct moe_pace pace;
    struct moe_device device = {.name = "made",
                                .host.memory_bytes_per_second.value = m->memory_rate};
    const struct moe_weights weights = {
        .n_layers = LAYERS,
        .n_moe_layers = LAYERS,
        .top_k = TOP_K,
        .attention_bytes = MIB,
        .head_bytes = MIB,
        .n_variants = 1,
        .expert_bytes = {EXPERT_BYTES},
    };
    const uint64_t all = (uint64_t)LAYERS * EXPERTS * EXPERT_BYTES;
    const struct moe_shape_fit shape = {
        .inventory = &inventory,
        .memory = {.total = (uint64_t)(m->share * (double)all) + 4 * MIB,
                   .program = MIB / 2,
                   .dense = MIB / 2,
                   .kv = 2 * MIB,
                   .work = MIB,
                   .context = 1024,
                   .batch = 8},
    };
    struct moe_planner p = {
        .inventory = &inventory,
        .fitter = moe_fitter_of_shape(&shape),
        .trace = trace,
        .pace = &pace,
        .n_bits = m->bits ? 3 : 0,
        .bits = {{"4", EXPERT_BYTES}, {"3", 0.76 * EXPERT_BYTES}, {"2", 0.53 * EXPERT_BYTES}},
    };
    assert_ok(moe_pace_of_bandwidth(&pace, &device, &weights, MOE_TIER_STORAGE, m->load_rate, &err),
              &err);
    assert_true(moe_strategy_find(m->strategy, &s));
    assert_ok(moe_strategy_settle(&s, &err), &err);
    assert_ok(moe_plan_new(&plan, LAYERS, EXPERTS, TOP_K, &err), &err);
    plan->evidence.times_measured = m->measured;
    plan->evidence.link_stated = m->stated;
    strcpy(plan->evidence.trace, "a.trace");
    assert_ok(moe_planner_make(&p, &s, plan, &err), &err);
    return plan;
}

static const struct moe_plan_alternative *find(const struct moe_plan *plan,
                                               enum moe_alternative what, double times)
{
    for (uint32_t i = 0; i < plan->n_alternatives; i++)
        if (plan->alternatives[i].what == what &&
            (times == 0 || fabs(plan->alternatives[i].times - times) < 1e-9))
            return &plan->alternatives[i];
    fail_msg("no alternative '%s' of %g", moe_alternative_name(what), times);
    return NULL;
}

static void expect_advice(const struct machine *m, enum moe_alternative first)
{
    struct moe_plan *plan = plan_for(m);
    struct moe_advice advice[MOE_PLAN_MAX_ALTERNATIVES];
    uint32_t n = moe_plan_advice(plan, advice);
    assert_true(n > 0);
    if (advice[0].what != first)
        fail_msg("%s %g (%+.1f%%) is advised, not %s", moe_alternative_name(advice[0].what),
                 advice[0].times, 100 * advice[0].gain, moe_alternative_name(first));
    for (uint32_t i = 1; i < n; i++)
        assert_true(advice[i].gain <= advice[i - 1].gain);
    moe_plan_free(plan);
}

/* Room for three quarters of the experts, and loads that take ten times as long as a layer. */
static const struct machine short_of_memory = {2e11, 5e8, 0.75, "lru", true, false, false};
/* An eighth of them: twice that is still little. */
static const struct machine slow_link = {2e11, 5e8, 0.125, "lru", true, false, false};
/* Loads cost next to nothing. */
static const struct machine slow_processor = {1e9, 1e12, 0.4, "lru", true, false, false};

static void memory_is_advised_where_it_is_short(void **state)
{
    expect_advice(&short_of_memory, MOE_ALTERNATIVE_MEMORY);
}

static void a_link_is_advised_where_it_is_slow(void **state)
{
    expect_advice(&slow_link, MOE_ALTERNATIVE_LINK);
}

static void a_processor_is_advised_where_it_is_slow(void **state)
{
    expect_advice(&slow_processor, MOE_ALTERNATIVE_PROCESSOR);
}

/* Each is what the simulator says of a plan that has it from the start. */
static void alternatives_are_plans_of_their_own(void **state)
{
    struct machine other = slow_link;
    struct moe_plan *plan = plan_for(&slow_link), *changed;
    other.load_rate *= 2;
    changed = plan_for(&other);
    assert_float_equal(find(plan, MOE_ALTERNATIVE_LINK, 2)->decode_tokens_per_second,
                       changed->expected.decode_tokens_per_second, 1e-9);
    moe_plan_free(changed);
    other = slow_link;
    other.memory_rate *= 2;
    changed = plan_for(&other);
    assert_float_equal(find(plan, MOE_ALTERNATIVE_PROCESSOR, 2)->decode_tokens_per_second,
                       changed->expected.decode_tokens_per_second, 1e-9);
    moe_plan_free(changed);
    /* Half the context leaves 1 MiB to experts. */
    other = slow_link;
    other.share += 1.0 / (LAYERS * EXPERTS);
    changed = plan_for(&other);
    assert_float_equal(find(plan, MOE_ALTERNATIVE_CONTEXT, 0.5)->decode_tokens_per_second,
                       changed->expected.decode_tokens_per_second, 1e-9);
    assert_float_equal(find(plan, MOE_ALTERNATIVE_CONTEXT, 0.5)->amount, 512, 0);
    moe_plan_free(changed);
    moe_plan_free(plan);
    /* Half a small budget has no room for a layer's experts. */
    other = slow_link;
    other.share = 3.0 / (LAYERS * EXPERTS);
    plan = plan_for(&other);
    assert_true(find(plan, MOE_ALTERNATIVE_MEMORY, 0.5)->decode_tokens_per_second < 0);
    moe_plan_free(plan);
}

/* Narrower experts: the next two bitwidths below, with more slots and shorter loads. */
static void fewer_bits_are_tried(void **state)
{
    struct machine m = slow_link;
    m.bits = true;
    struct moe_plan *plan = plan_for(&m);
    const struct moe_plan_alternative *three = NULL;
    uint32_t n = 0;
    for (uint32_t i = 0; i < plan->n_alternatives; i++)
        if (plan->alternatives[i].what == MOE_ALTERNATIVE_EXPERTS && n++ == 0)
            three = &plan->alternatives[i];
    assert_int_equal(n, 2);
    assert_string_equal(three->precision, "3");
    assert_string_equal(three[1].precision, "2");
    assert_true(three->decode_tokens_per_second > plan->expected.decode_tokens_per_second);
    assert_true(three[1].decode_tokens_per_second > three->decode_tokens_per_second);
    assert_true(three->bytes_per_token < plan->expected.bytes_per_token);
    assert_int_equal(three->loss_tokens, 0);
    moe_plan_free(plan);
}

/* Everything fits: with half the memory there is a cache, a link does not matter. */
static void all_in_memory(void **state)
{
    const struct machine m = {2e11, 5e8, 1, "resident", true, false, false};
    struct moe_plan *plan = plan_for(&m);
    assert_string_equal(find(plan, MOE_ALTERNATIVE_MEMORY, 0.5)->strategy, "lru");
    assert_true(find(plan, MOE_ALTERNATIVE_MEMORY, 0.5)->decode_tokens_per_second <
                plan->expected.decode_tokens_per_second);
    for (uint32_t i = 0; i < plan->n_alternatives; i++)
        assert_true(plan->alternatives[i].what != MOE_ALTERNATIVE_LINK);
    assert_int_equal(plan->n_doubts, 0);
    moe_plan_free(plan);
}

/* The order follows from the machine, not from a list. */
static void expect_doubts(const struct machine *m, enum moe_assumption first,
                          enum moe_assumption second)
{
    struct moe_plan *plan = plan_for(m);
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    uint32_t n = moe_plan_assumptions(plan, what);
    assert_true(plan->n_doubts >= 2 && n >= plan->n_doubts);
    for (uint32_t i = 0; i < plan->n_doubts; i++) {
        assert_true(plan->doubts[i].decode_tokens_per_second <=
                    plan->expected.decode_tokens_per_second * (1 + 1e-9));
        assert_true(i == 0 || plan->doubts[i - 1].decode_tokens_per_second <=
                                  plan->doubts[i].decode_tokens_per_second);
        assert_int_equal(what[i], plan->doubts[i].what);
    }
    assert_int_equal(what[0], first);
    assert_int_equal(what[1], second);
    moe_plan_free(plan);
}

static void the_weakest_assumption_moves_most(void **state)
{
    struct machine m = slow_link;
    m.measured = false;
    m.stated = true;
    m.share = 0.5; /* some are found */
    expect_doubts(&m, MOE_ASSUME_NOMINAL, MOE_ASSUME_FEW_TOKENS);
    m = slow_processor;
    m.measured = false;
    m.stated = true;
    struct moe_plan *plan = plan_for(&m);
    assert_int_equal(plan->doubts[0].what, MOE_ASSUME_BANDWIDTH);
    assert_float_equal(plan->expected.decode_tokens_per_second /
                           plan->doubts[0].decode_tokens_per_second,
                       1.3, 0.01);
    moe_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_advised_where_it_is_short),
        cmocka_unit_test(a_link_is_advised_where_it_is_slow),
        cmocka_unit_test(a_processor_is_advised_where_it_is_slow),
        cmocka_unit_test(alternatives_are_plans_of_their_own),
        cmocka_unit_test(fewer_bits_are_tried),
        cmocka_unit_test(all_in_memory),
        cmocka_unit_test(the_weakest_assumption_moves_most),
    };
    return cmocka_run_group_tests_name("alternatives", tests, open_all, close_all);
}
