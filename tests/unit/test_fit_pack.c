/*
 * Fitting a pack: what it says of a strategy and a memory is what the engine then does.
 */
#include "engine/memory.h"

#include "sched/strategy.h"

#include "strategies_fixture.h"

static struct strategies fixture;

static int open_all(void **state)
{
    strategies_set_up(&fixture, "fit", 4);
    return 0;
}

static int close_all(void **state)
{
    strategies_tear_down(&fixture);
    return 0;
}

static int fit(const struct moe_engine_options *o, uint64_t bytes, struct moe_fitted *out,
               struct moe_err *err)
{
    struct moe_pack_fit *f = NULL;
    assert_ok(moe_pack_fit_open(&f, fixture.pack, o, err), err);
    const struct moe_fitter fitter = moe_pack_fit_fitter(f);
    const struct moe_fit_room room = {.bytes = bytes};
    int status = fitter.fit(fitter.ctx, &o->strategy, &room, out, err);
    moe_pack_fit_close(f);
    return status;
}

/* What a fit says for a process of this size is what the engine then does. */
static void compare(const char *what, const struct moe_fitted *f, const struct moe_engine *e)
{
    const struct moe_budget *b = &e->budget;
    char said[MOE_STRATEGY_BRIEF], runs[MOE_STRATEGY_BRIEF];
    moe_strategy_brief(&f->strategy, said);
    moe_strategy_brief(&e->strategy, runs);
    assert_string_equal(said, runs);
    if (f->pools.n_slots != b->n_slots || f->memory.experts != b->host.experts)
        fail_msg("%s: %u slots of %d bytes were said, %u of %d there are", what, f->pools.n_slots,
                 (int)f->memory.experts, b->n_slots, (int)b->host.experts);
    assert_int_equal(f->memory.dense, b->host.dense);
    assert_int_equal(f->memory.kv, b->host.kv);
    assert_int_equal(f->memory.work, b->host.work);
    assert_int_equal(f->memory.all, b->all);
    assert_int_equal(f->memory.token, b->token);
    assert_int_equal(f->memory.batch, b->batch);
}

static const char *const rows[] = {
    "ondemand", "lru",  "prefetch", "prefetch predict=previous", "eap", "edgemoe", "fate",
    "hobbit",   "host", "daop",     "lru cache=learned"};

static void an_engine_is_as_it_was_said(void **state)
{
    static const double demands[] = {0.2, 1, 2.5, 7, 9};
    uint32_t refused = 0;
    for (size_t i = 0; i < N_ITEMS(rows) * N_ITEMS(demands); i++) {
        struct moe_err err = {0}, err_engine = {0};
        struct moe_fitted f;
        struct moe_engine *e = NULL;
        const char *words = rows[i / N_ITEMS(demands)];
        const struct moe_engine_options o =
            strategies_options(&fixture, words, demands[i % N_ITEMS(demands)]);
        int said = fit(&o, 0, &f, &err);
        int opened = moe_engine_open(&e, fixture.pack, &o, NULL, &err_engine);
        if (opened != said)
            fail_msg("%s: %d was said (%s), the engine %d (%s)", words, said, err.text, opened,
                     err_engine.text);
        if (opened == MOE_OK)
            compare(words, &f, e);
        else
            assert_string_equal(err.text, err_engine.text);
        refused += opened != MOE_OK;
        moe_engine_close(e);
        if (opened != MOE_OK)
            continue;
        /* The same memory, named later. */
        struct moe_engine_options unnamed = o;
        struct moe_fitted later;
        unnamed.expert_memory_bytes = 0;
        assert_ok(fit(&unnamed, o.expert_memory_bytes, &later, &err), &err);
        assert_int_equal(later.pools.n_slots, f.pools.n_slots);
    }
    assert_true(refused >= 5 && refused < 20);
}

/* Within a budget of the whole process, where both count the process alike. */
static void budgets_are_split_alike(void **state)
{
    static const uint32_t above_floor[] = {0, 1, 3, 6, 9, 14}; /* MiB */
    enum {
        PROGRAM = 64 << 20
    }; /* more than reading statistics takes, which a fit does not count */
    uint64_t most_slots = 0;
    for (size_t r = 0; r < N_ITEMS(rows); r++) {
        struct moe_err err = {0};
        struct moe_fitted f;
        struct moe_engine_options o = strategies_options(&fixture, rows[r], 0);
        o.program_bytes = PROGRAM;
        o.session.batch = 0; /* to be chosen */
        o.memory_bytes = (uint64_t)1 << 40;
        if (fit(&o, 0, &f, &err) == MOE_ERR_USAGE)
            continue;
        struct moe_engine *e = strategies_open(&fixture, &o);
        /* A fit counts the process's memory as the program's. */
        uint64_t others = e->budget.host.program - PROGRAM, floor = f.memory.floor;
        moe_engine_close(e);
        for (size_t i = 0; i < N_ITEMS(above_floor); i++) {
            struct moe_err err_engine = {0};
            o.memory_bytes = floor + ((uint64_t)above_floor[i] << 20);
            int said = fit(&o, 0, &f, &err);
            if (said != MOE_OK)
                continue; /* the process has grown: the fit cannot know what the engine then has */
            struct moe_engine_options same = o;
            same.program_bytes = f.memory.program - others;
            assert_ok(moe_engine_open(&e, fixture.pack, &same, NULL, &err_engine), &err_engine);
            assert_int_equal(e->budget.host.program, f.memory.program);
            uint64_t all =
                f.memory.program + f.memory.dense + f.memory.kv + f.memory.work + f.memory.experts;
            if (all > o.memory_bytes)
                fail_msg("%s takes %d bytes of %d, %d of them for experts", rows[r], (int)all,
                         (int)o.memory_bytes, (int)f.memory.experts);
            compare(rows[r], &f, e);
            if (f.pools.n_slots > most_slots)
                most_slots = f.pools.n_slots;
            moe_engine_close(e);
        }
    }
    assert_true(most_slots > 100);
}

/* What a policy keeps of choices is part of the floor, to the byte. */
static void policies_take_memory(void **state)
{
    struct moe_err err = {0};
    struct moe_fitted lru, learned;
    struct moe_engine_options o = strategies_options(&fixture, "lru", 0);
    o.memory_bytes = (uint64_t)1 << 30; /* a sanitizer keeps what the tests before this freed */
    assert_ok(fit(&o, 0, &lru, &err), &err);
    struct moe_engine_options l = strategies_options(&fixture, "lru cache=learned", 0);
    l.memory_bytes = o.memory_bytes;
    assert_ok(fit(&l, 0, &learned, &err), &err);
    struct moe_engine *e = strategies_open(&fixture, &l);
    const struct moe_config *c = &e->model->config;
    const struct moe_follower_params choices = {c->n_layers, c->n_experts, c->top_k, 1};
    uint64_t keeps = moe_policy_follow_bytes(moe_policy_find("learned"), &choices);
    assert_true(keeps > 0);
    assert_int_equal(learned.memory.floor - lru.memory.floor, keeps);
    moe_engine_close(e);
}

/* More memory has no smaller batch (but where it comes to hold all experts, and passes read none),
 * and no less room for experts; and one floor. */
static void a_larger_budget_has_no_less(void **state)
{
    enum { STEPS = SANITIZED ? 30 : 110, STEP = (20 << 20) / STEPS };
    static const char *const words[] = {"ondemand", "lru", "prefetch", "fate", ""};
    /* One, two, and 64 blocks of the KV cache. */
    static const uint32_t contexts[] = {CALIBRATION_TOKENS, 512, 16384};
    for (size_t i = 0; i < 3 * N_ITEMS(words); i++) {
        const size_t r = i / 3;
        struct moe_err err = {0};
        struct moe_fitted f, before = {0};
        bool named = words[r][0] != '\0', grows = false;
        struct moe_engine_options o = strategies_options(&fixture, named ? words[r] : "lru", 0);
        struct moe_pack_fit *p = NULL;
        o.session.batch = 0;
        o.session.context = contexts[i % 3];
        o.memory_bytes = 1;
        if (!named)
            o.strategy = (struct moe_strategy){0};
        assert_ok(moe_pack_fit_open(&p, fixture.pack, &o, &err), &err);
        const struct moe_fitter fitter = moe_pack_fit_fitter(p);
        assert_int_equal(fitter.fit(fitter.ctx, &o.strategy, NULL, &f, &err), MOE_ERR_LIMIT);
        assert_non_null(strstr(err.text, "the smallest that works is"));
        assert_ok(fitter.fit(fitter.ctx, &o.strategy,
                             &(struct moe_fit_room){.bytes = (uint64_t)1 << 40}, &f, &err),
                  &err);
        const uint64_t floor = f.memory.floor;
        uint64_t most_experts = 0;
        uint32_t n_batches = 0;
        assert_int_equal(fitter.fit(fitter.ctx, &o.strategy,
                                    &(struct moe_fit_room){.bytes = floor - 1}, &f, &err),
                         MOE_ERR_LIMIT);
        for (uint32_t k = 0; k < STEPS; k++) {
            const uint64_t bytes = floor + (uint64_t)k * STEP;
            assert_ok(fitter.fit(fitter.ctx, &o.strategy, &(struct moe_fit_room){.bytes = bytes},
                                 &f, &err),
                      &err);
            assert_int_equal(f.memory.floor, floor);
            uint32_t had = before.pools.n_slots - before.staging;
            bool resident = f.strategy.resident;
            bool smaller = f.memory.batch < before.memory.batch;
            if ((smaller && resident == before.strategy.resident) ||
                (before.strategy.resident && !resident) ||
                (!resident && i % 3 < 2 && f.pools.n_slots - f.staging < had))
                fail_msg("%s: with %d bytes a batch of %u and %u slots, with less %u and %u",
                         words[r], (int)bytes, f.memory.batch, f.pools.n_slots - f.staging,
                         before.memory.batch, had);
            n_batches += f.memory.batch != before.memory.batch;
            /* Of a long cache less may be lent where a batch becomes larger: a block. */
            if (!resident && f.memory.experts + f.pools.loan.block_bytes < most_experts)
                fail_msg("%s, a context of %u: with %d bytes %d are for experts, with less %d",
                         words[r], contexts[i % 3], (int)bytes, (int)f.memory.experts,
                         (int)most_experts);
            if (!resident && f.memory.experts > most_experts)
                most_experts = f.memory.experts;
            grows |= f.memory.kv_lent > 0;
            before = f;
        }
        assert_true(n_batches > 2);
        if (grows != (i % 3 && r > 0)) /* on demand nothing is kept */
            fail_msg("%s, a context of %u: the KV cache %s", words[r], contexts[i % 3],
                     grows ? "grows" : "does not grow");
        moe_pack_fit_close(p);
    }
}

/* A search for the best strategy must not find that everything fits everywhere. */
static void resident_needs_room_for_all(void **state)
{
    struct moe_engine_options o = strategies_options(&fixture, "resident", 1);
    struct moe_fitted fitted;
    struct moe_err err = {0};
    assert_fails(fit(&o, 0, &fitted, &err), MOE_ERR_LIMIT, "not all experts fit", &err);
    uint64_t all = fitted.memory.all;
    assert_int_equal(all, (uint64_t)LAYERS * EXPERTS * fixture.slot_bytes);
    assert_fails(fit(&o, all - 1, &fitted, &err), MOE_ERR_LIMIT, "not all experts fit", &err);
    assert_ok(fit(&o, all, &fitted, &err), &err);
    assert_true(fitted.strategy.resident);
    assert_int_equal(fitted.pools.n_classes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_engine_is_as_it_was_said),
        cmocka_unit_test(budgets_are_split_alike),
        cmocka_unit_test(policies_take_memory),
        cmocka_unit_test(a_larger_budget_has_no_less),
        cmocka_unit_test(resident_needs_room_for_all),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
