/*
 * Fitting: slots by hand, and what models without weights have and refuse. Packs: test_fit_pack.c.
 */
#include "plan/fitting.h"

#include "script_fixture.h"

/* ---- Slots by hand ---- */

static void slots_by_hand(void **state)
{
    static const struct {
        const char *words;
        uint64_t bytes; /* slots of 10 */
        bool named;
        uint32_t staging, working, staged;
        uint64_t cache_bytes;
    } cases[] = {
        /* top_k 4. Nothing kept: a layer's experts at work. */
        {"ondemand", 1000, false, 0, 4, 0, 0},
        {"ondemand", 1000, true, 0, 4, 0, 0},
        /* A cache that holds a layer's experts needs two beside it, a smaller one all of them. */
        {"lru", 1000, false, 0, 2, 0, 0},
        {"lru", 60, false, 0, 2, 0, 0},
        {"lru", 59, false, 0, 4, 0, 0},
        /* Named bytes are the cache's own; working slots come on top. */
        {"lru", 1000, true, 0, 4, 0, 1000},
        {"lru", 5, true, 0, 4, 0, 5},
        /* Prefetched experts are in the cache's slots, or, without one, in as many as top_k; or in
           as many as are named, but never more than half, nor more than working slots leave. */
        {"prefetch", 1000, false, 0, 2, 0, 0},
        {"prefetch", 1000, true, 0, 4, 0, 1000},
        {"prefetch", 1000, true, 7, 11, 7, 930},
        {"prefetch", 60, false, 4, 5, 3, 0},
        {"prefetch", 59, false, 4, 5, 1, 0},
        {"prefetch", 40, false, 4, 4, 0, 0},
        {"prefetch", 50, true, 4, 6, 2, 30},
        {"prefetch", 9, true, 4, 4, 0, 9},
        {"ondemand+predict=gate-next+prefetch=all", 1000, true, 0, 8, 4, 0},
        {"edgemoe", 1000, true, 0, 4, 0, 1000},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const struct moe_strategy s = script_strategy(cases[i].words, 4);
        const struct moe_slots slots =
            moe_slots_of(&s, cases[i].bytes, cases[i].named, 10, 4, cases[i].staging);
        if (slots.working != cases[i].working || slots.staging != cases[i].staged ||
            slots.cache_bytes != cases[i].cache_bytes)
            fail_msg("%s in %d: %u work, %u staged, %d kept", cases[i].words, (int)cases[i].bytes,
                     slots.working, slots.staging, (int)slots.cache_bytes);
    }
}

/* ---- Models without weights ---- */

enum { PAGE = 4096, EXPERT = 10 * PAGE };

static struct moe_inventory one, two, three; /* precisions; 4 layers of 8 experts, top 2 */

static void make_inventories(void)
{
    static const char names[3][MOE_NAME_BYTES] = {"8", "4", "2"};
    static const uint64_t bytes[3] = {EXPERT, EXPERT / 2, EXPERT / 5};
    struct moe_err err = {0};
    assert_ok(moe_inventory_uniform(&two, 4, 8, 2, names, bytes, 2, &err), &err);
    assert_ok(moe_inventory_uniform(&three, 4, 8, 2, names, bytes, 3, &err), &err);
    assert_ok(moe_inventory_uniform(&one, 4, 8, 2, names, bytes, 1, &err), &err);
}

static int fit(const struct moe_shape_fit *shape, const char *words, uint64_t bytes,
               struct moe_fitted *out, struct moe_err *err)
{
    const struct moe_fitter f = moe_fitter_of_shape(shape);
    struct moe_strategy s;
    assert_true(moe_strategy_find(words, &s));
    return f.fit(f.ctx, &s, &(struct moe_fit_room){.bytes = bytes}, out, err);
}

static void shapes(void **state)
{
    struct moe_fitted f;
    struct moe_err err = {0};
    struct moe_shape_fit shape = {
        .inventory = &two,
        .memory =
            {.total = 30 * EXPERT + 1000, .program = 400, .dense = 300, .kv = 200, .work = 100},
    };
    /* 30 experts: two at work. */
    assert_ok(fit(&shape, "lru", 0, &f, &err), &err);
    assert_true(f.high == 0 && f.low == 1 && f.staging == 0);
    assert_int_equal(f.pools.n_classes, 2);
    assert_int_equal(f.pools.pools[0].n_cache, 28);
    assert_int_equal(f.pools.pools[0].n_working, 2);
    assert_int_equal(f.pools.n_slots, 30);
    assert_int_equal(f.memory.experts, 30 * EXPERT);
    assert_int_equal(f.memory.all, 32 * EXPERT);
    assert_int_equal(f.memory.token, 8 * EXPERT);
    assert_int_equal(f.memory.floor, 1000 + 2 * EXPERT);
    /* Another budget than asked for. */
    assert_ok(fit(&shape, "lru", 10 * EXPERT + 1000, &f, &err), &err);
    assert_int_equal(f.pools.pools[0].n_cache, 8);
    assert_int_equal(f.memory.total, 10 * EXPERT + 1000);
    assert_fails(fit(&shape, "lru", 999, &f, &err), MOE_ERR_LIMIT,
                 "a budget of 999 B is too small: the smallest that works is ", &err);
    assert_fails(fit(&shape, "lru", 1000 + 2 * EXPERT - 1, &f, &err), MOE_ERR_LIMIT, "too small",
                 &err);
    assert_ok(fit(&shape, "lru", 1000 + 2 * EXPERT, &f, &err), &err);
    assert_int_equal(f.pools.pools[0].n_cache, 0);
    /* All of them. */
    assert_fails(fit(&shape, "resident", 0, &f, &err), MOE_ERR_LIMIT, "not all experts fit", &err);
    assert_ok(fit(&shape, "resident", 32 * EXPERT + 1000, &f, &err), &err);
    assert_true(f.pools.n_classes == 0 && f.memory.experts == 32 * EXPERT);
    /* Bytes named for the experts alone: working slots come on top, and may be too much. */
    shape.expert_memory = 10 * EXPERT;
    assert_ok(fit(&shape, "lru", 0, &f, &err), &err);
    assert_int_equal(f.pools.pools[0].n_cache, 10);
    assert_int_equal(f.memory.experts, 12 * EXPERT);
    assert_int_equal(f.memory.floor, 1000 + 12 * EXPERT);
    assert_fails(fit(&shape, "lru", 11 * EXPERT + 1000, &f, &err), MOE_ERR_LIMIT,
                 "with the memory that is named for experts", &err);
    shape.memory.total = 0;
    assert_ok(fit(&shape, "lru", 5 * EXPERT, &f, &err), &err);
    assert_int_equal(f.pools.pools[0].n_cache, 5);
    assert_int_equal(f.memory.total, 0);
}

/* What a policy keeps of choices is taken from the experts' memory, and is less where there is
 * little. */
/* Bits that a cache keeps are those of a type, too; the first variant that has them is taken. */
static void types_have_bits(void **state)
{
    static const char names[4][MOE_NAME_BYTES] = {"q6_k", "iq4_ksd8", "iq4_xs", "4"};
    static const uint64_t bytes[4] = {EXPERT, EXPERT / 2, EXPERT / 3, EXPERT / 4};
    struct moe_inventory types;
    struct moe_fitted f;
    struct moe_err err = {0};
    struct moe_shape_fit shape = {.inventory = &types, .memory = {.total = 20 * EXPERT}};
    assert_ok(moe_inventory_uniform(&types, 4, 8, 2, names, bytes, 4, &err), &err);
    assert_ok(fit(&shape, "fate", 0, &f, &err), &err);
    assert_true(f.high == 2 && f.low == 3);
    moe_inventory_release(&types);
}

static void policies_take_memory(void **state)
{
    static const char *const policies[] = {"transition", "learned"};
    const struct moe_follower_params choices = {two.n_layers, two.n_experts, two.top_k,
                                                30 * EXPERT};
    const struct moe_follower_params few = {two.n_layers, two.n_experts, two.top_k, 2 * EXPERT};
    for (int i = 0; i < 2; i++) {
        struct moe_fitted f;
        struct moe_err err = {0};
        struct moe_strategy s;
        assert_true(moe_strategy_find("lru", &s));
        s.cache = moe_policy_find(policies[i]);
        uint64_t keeps = moe_policy_follow_bytes(s.cache, &choices);
        struct moe_shape_fit shape = {.inventory = &two,
                                      .memory = {.total = 30 * EXPERT + keeps, .program = 0}};
        assert_true(keeps > 2 * two.n_layers * two.n_experts * two.n_experts); /* its counts */
        const struct moe_fitter fitter = moe_fitter_of_shape(&shape);
        assert_ok(fitter.fit(fitter.ctx, &s, NULL, &f, &err), &err);
        assert_int_equal(f.pools.n_slots, 30);
        assert_int_equal(f.memory.experts, 30 * EXPERT + keeps);
        assert_int_equal(f.memory.floor, 2 * EXPERT + moe_policy_follow_bytes(s.cache, &few));
        assert_ok(fit(&shape, "lru", 30 * EXPERT, &f, &err), &err);
        assert_int_equal(f.memory.experts, 30 * EXPERT);
    }
}

/* Blocks of a KV cache are lent from the first on that slots can be made of: more memory never has
 * less for experts by more than a block. */
static void blocks_are_lent_one_by_one(void **state)
{
    enum { BLOCK = 2 * EXPERT, BLOCKS = 12, OWN = 1000 };
    struct moe_fitted f;
    struct moe_err err = {0};
    const struct moe_shape_fit shape = {
        .inventory = &one,
        .memory = {.total = 1, .program = OWN, .kv = BLOCKS * BLOCK},
        .kv = {.n_blocks = BLOCKS, .block_positions = 256, .block_bytes = BLOCK},
    };
    const uint64_t beside = OWN + BLOCKS * BLOCK;
    uint64_t most = 0, fewest = UINT64_MAX, lent_most = 0;
    for (uint64_t more = 2 * EXPERT; more < 31 * EXPERT; more += EXPERT / 4) {
        assert_ok(fit(&shape, "lru", beside + more, &f, &err), &err);
        const struct moe_plan_memory *m = &f.memory;
        assert_true(m->program + m->kv + m->experts <= m->total);
        assert_int_equal(m->kv + m->kv_lent, BLOCKS * BLOCK);
        if (m->experts + BLOCK < most)
            fail_msg("%d bytes of experts, and %d with less memory", (int)m->experts, (int)most);
        most = m->experts > most ? m->experts : most;
        lent_most = m->kv_lent > lent_most ? m->kv_lent : lent_most;
        if (m->kv_lent > 0 && m->kv_lent < fewest)
            fewest = m->kv_lent;
    }
    assert_true(fewest < (BLOCKS - 1) * BLOCK / 2);
    assert_int_equal(lent_most, (BLOCKS - 1) * BLOCK);
}

static void parts_that_cannot_run(void **state)
{
    struct moe_fitted f;
    struct moe_err err = {0};
    struct moe_shape_fit shape = {.inventory = &one, .expert_memory = 10 * EXPERT};
    assert_fails(fit(&shape, "hobbit", 0, &f, &err), MOE_ERR_USAGE,
                 "strategy hobbit uses a lower precision, and the model has none below '8'", &err);
    assert_fails(fit(&shape, "eap", 0, &f, &err), MOE_ERR_USAGE,
                 "strategy eap has --predict path, which goes by what experts do", &err);
    const struct moe_statistics some = {0};
    shape.statistics = &some;
    assert_ok(fit(&shape, "eap", 0, &f, &err), &err);
    assert_fails(fit(&shape, "daop", 0, &f, &err), MOE_ERR_USAGE, "nothing beside it", &err);
    /* Fiddler's strategy works without a host, Fate's without a second precision. */
    assert_ok(fit(&shape, "host", 0, &f, &err), &err);
    assert_int_equal(f.strategy.miss_place, MOE_MISS_LOAD);
    assert_ok(fit(&shape, "fate", 0, &f, &err), &err);
    assert_int_equal(f.strategy.prefill, MOE_PREFILL_POPULARITY);
    shape.has_host = true;
    assert_ok(fit(&shape, "daop", 0, &f, &err), &err);
    assert_int_equal(f.strategy.miss_place, MOE_MISS_COMPUTE_HOST);
    /* Two precisions. Fate keeps experts at 4 bits where not all fit. */
    shape = (struct moe_shape_fit){.inventory = &two, .expert_memory = 10 * EXPERT};
    assert_ok(fit(&shape, "hobbit", 0, &f, &err), &err);
    assert_true(f.high == 0 && f.low == 1 && f.pools.pools[1].n_cache == 0);
    assert_ok(fit(&shape, "fate", 0, &f, &err), &err);
    assert_true(f.high == 1 && f.low == 1);
    assert_int_equal(f.pools.pools[0].n_cache, 0);
    assert_int_equal(f.pools.pools[1].n_cache, 20);
    /* Three: the hybrid prefill takes the lowest and is no longer left out. */
    shape.inventory = &three;
    assert_ok(fit(&shape, "fate", 0, &f, &err), &err);
    assert_true(f.high == 1 && f.low == 2 && f.strategy.needs_low &&
                !f.strategy.prefill_falls_back);
    assert_int_equal(f.strategy.prefill, MOE_PREFILL_HYBRID);
    shape.inventory = &two;
    shape.low = "3";
    assert_fails(fit(&shape, "hobbit", 0, &f, &err), MOE_ERR_USAGE, "no variant '3'", &err);
    shape.low = "8";
    assert_fails(fit(&shape, "hobbit", 0, &f, &err), MOE_ERR_USAGE, "none below '8'", &err);
    shape.low = NULL;
    shape.exact = true;
    assert_fails(fit(&shape, "hobbit", 0, &f, &err), MOE_ERR_USAGE, "--exact forbids", &err);
    assert_ok(fit(&shape, "fate", 0, &f, &err), &err);
    assert_true(f.high == 0 && f.strategy.prefill == MOE_PREFILL_POPULARITY);
}

static int open_all(void **state)
{
    make_inventories();
    return 0;
}

static int close_all(void **state)
{
    moe_inventory_release(&one);
    moe_inventory_release(&two);
    moe_inventory_release(&three);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_by_hand),         cmocka_unit_test(shapes),
        cmocka_unit_test(policies_take_memory),  cmocka_unit_test(blocks_are_lent_one_by_one),
        cmocka_unit_test(parts_that_cannot_run), cmocka_unit_test(types_have_bits),
    };
    return cmocka_run_group_tests_name("fitting", tests, open_all, close_all);
}
