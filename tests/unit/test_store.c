/*
 * The store of experts: invariants under random use, pins, staging, several variants, and that a
 * cache behaves as its policy says.
 */
#include "cache/store.h"

#include "../test.h"

enum { N_LAYERS = 3, N_EXPERTS = 8, N_ITEMS_MAX = N_LAYERS * N_EXPERTS * 2 };

static uint32_t key_at(uint32_t layer, uint32_t expert)
{
    return moe_expert_key(N_EXPERTS, layer, expert);
}

static struct moe_loop loop;   /* of stores that are opened */
static struct moe_usage usage; /* what some policies judge by; private to each test program */

static int open_usage(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_usage_init(&usage, N_LAYERS, N_EXPERTS, 2, &err), &err);
    return 0;
}

static int close_usage(void **state)
{
    moe_usage_release(&usage);
    return 0;
}

static struct moe_store *open_store(const char *policy, uint32_t n_cache, uint32_t n_working,
                                    const uint32_t *per_layer, uint32_t n_variants)
{
    struct moe_err err = {0};
    uint32_t class_of[N_ITEMS_MAX];
    for (uint32_t i = 0; i < N_ITEMS_MAX; i++)
        class_of[i] = i % n_variants;
    const struct moe_pool_params pools[2] = {{n_cache, n_working, per_layer},
                                             {n_cache, n_working, per_layer}};
    static const uint64_t class_bytes[2] = {4096, 8192};
    const struct moe_store_params params = {
        .n_layers = N_LAYERS,
        .n_experts = N_EXPERTS,
        .n_variants = n_variants,
        .loop = loop,
        .n_classes = n_variants,
        .pools = pools,
        .class_of = class_of,
        .class_bytes = class_bytes,
        .policy = moe_policy_find(policy),
        .usage = &usage,
        .seed = 1,
    };
    struct moe_store *s = NULL;
    free(usage.follower); /* of the store before */
    usage.follower = NULL;
    assert_ok(moe_policy_follow(params.policy, &usage, 0, &err), &err);
    assert_ok(moe_store_open(&s, &params, &err), &err);
    return s;
}

static void check(const struct moe_store *s)
{
    struct moe_err err = {0};
    if (!moe_store_check(s, &err))
        fail_msg("%s", err.text);
}

/* One expert asked for, loaded and released; true on a hit. */
static bool ask(struct moe_store *s, uint32_t layer, uint32_t expert, uint32_t variant)
{
    uint32_t slot = moe_store_find(s, key_at(layer, expert), variant);
    bool hit = slot != MOE_NO_SLOT;
    if (hit) {
        moe_store_use(s, slot);
    } else {
        slot = moe_store_miss(s, key_at(layer, expert), variant, false);
        assert_int_not_equal(slot, MOE_NO_SLOT);
        assert_int_equal(moe_store_slot(s, slot)->state, MOE_SLOT_LOADING);
    }
    moe_store_ready(s, slot);
    moe_store_release(s, slot);
    check(s);
    return hit;
}

static void lru_keeps_the_latest(void **state)
{
    struct moe_store *s = open_store("lru", 2, 1, NULL, 1);
    assert_false(ask(s, 0, 1, 0));
    assert_false(ask(s, 1, 1, 0)); /* another layer: another expert */
    assert_true(ask(s, 0, 1, 0));
    assert_false(ask(s, 0, 2, 0)); /* layer 1 leaves */
    assert_true(ask(s, 0, 1, 0));
    assert_false(ask(s, 1, 1, 0));
    assert_int_equal(moe_store_counts(s)->evictions, 2);
    moe_store_close(s);
}

static void layers_have_their_own_share(void **state)
{
    static const uint32_t per_layer[N_LAYERS] = {2, 0, 1};
    struct moe_store *s = open_store("lru", 3, 1, per_layer, 1);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(ask(s, 0, 0, 0), round);
        assert_int_equal(ask(s, 0, 1, 0), round);
        assert_int_equal(ask(s, 1, 0, 0), 0); /* passes through */
        assert_int_equal(ask(s, 2, 5, 0), round);
    }
    assert_int_equal(moe_store_counts(s)->evictions, 0);
    moe_store_close(s);
}

static void nothing_is_kept_without_a_cache(void **state)
{
    struct moe_store *s = open_store("lru", 0, 2, NULL, 1);
    assert_false(ask(s, 0, 0, 0));
    assert_false(ask(s, 0, 0, 0));
    moe_store_close(s);
}

/* What scores no more than all that are kept is used from a working slot, as long as half of these
 * are to spare. */
static void what_is_worth_less_passes_through(void **state)
{
    static const float scores[N_EXPERTS] = {3, 2, 1, 1, 1, 2.5f};
    struct moe_store *s = open_store("learned", 2, 4, NULL, 1);
    memcpy(usage.follower->scores, scores, sizeof scores);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(ask(s, 0, 0, 0), again);
        assert_int_equal(ask(s, 0, 1, 0), again);
        assert_false(ask(s, 0, 2, 0));
    }
    assert_int_equal(moe_store_counts(s)->evictions, 0);
    assert_false(ask(s, 0, 5, 0)); /* this one is worth more than 1 */
    assert_int_equal(moe_store_find(s, key_at(0, 1), 0), MOE_NO_SLOT);
    for (uint32_t expert = 2; expert < 5; expert++)
        moe_store_ready(s, moe_store_miss(s, key_at(0, expert), 0, false));
    assert_int_equal(moe_store_counts(s)->evictions, 2); /* the last found too few slots free */
    check(s);
    moe_store_close(s);
}

static void pinned_slots_stay(void **state)
{
    struct moe_store *s = open_store("lru", 2, 0, NULL, 1);
    uint32_t a = moe_store_miss(s, key_at(0, 0), 0, false),
             b = moe_store_miss(s, key_at(0, 1), 0, false);
    moe_store_ready(s, a);
    moe_store_ready(s, b);
    assert_int_equal(moe_store_miss(s, key_at(0, 2), 0, false), MOE_NO_SLOT);
    check(s);
    moe_store_release(s, b);
    uint32_t c = moe_store_miss(s, key_at(0, 2), 0, true);
    assert_int_equal(c, b); /* the only one that might go, though used later */
    assert_int_equal(moe_store_find(s, key_at(0, 1), 0), MOE_NO_SLOT);
    assert_int_equal(moe_store_find(s, key_at(0, 0), 0), a);
    moe_store_close(s);
}

static void staged_experts_do_not_touch_the_cache(void **state)
{
    struct moe_store *s = open_store("lru", 2, 2, NULL, 1);
    ask(s, 0, 0, 0);
    ask(s, 0, 1, 0);
    uint32_t a = moe_store_stage(s, key_at(1, 4), 0, false, false),
             b = moe_store_stage(s, key_at(1, 5), 0, false, false);
    assert_int_not_equal(a, MOE_NO_SLOT);
    assert_int_not_equal(b, MOE_NO_SLOT);
    assert_int_equal(moe_store_stage(s, key_at(1, 6), 0, true, false),
                     MOE_NO_SLOT); /* both still loading */
    moe_store_ready(s, a);
    moe_store_ready(s, b);
    assert_true(moe_store_slot(s, a)->prefetched);
    assert_int_equal(moe_store_stage(s, key_at(1, 6), 0, false, false), MOE_NO_SLOT);
    assert_int_equal(moe_store_stage(s, key_at(1, 6), 0, true, false),
                     MOE_NO_SLOT); /* may still be wanted */
    moe_store_begin_layer(s, 1);   /* its router has chosen */
    assert_int_equal(moe_store_stage(s, key_at(2, 6), 0, true, false),
                     a); /* the older wrong prediction */
    assert_int_equal(moe_store_counts(s)->staged_unused, 1);
    assert_int_equal(moe_store_counts(s)->staged_unused_bytes, 4096);
    assert_true(ask(s, 0, 0, 0));
    assert_true(ask(s, 0, 1, 0));
    assert_true(ask(s, 1, 5, 0)); /* used: admitted, and 0/0 leaves */
    assert_int_equal(moe_store_counts(s)->staged_used, 1);
    assert_false(ask(s, 0, 0, 0));
    check(s);
    moe_store_close(s);
}

/* What was prefetched for a token that is done makes room, whatever its layer. */
static void staged_experts_grow_stale_with_the_token(void **state)
{
    struct moe_store *s = open_store("lru", 0, 1, NULL, 1);
    moe_store_begin_layer(s, 0);
    uint32_t a = moe_store_stage(s, key_at(2, 4), 0, true, false);
    moe_store_ready(s, a);
    moe_store_begin_layer(s, 1);
    assert_int_equal(moe_store_stage(s, key_at(2, 5), 0, true, false), MOE_NO_SLOT);
    moe_store_begin_layer(s, 0); /* the next token */
    assert_int_equal(moe_store_stage(s, key_at(1, 5), 0, true, false), a);
    moe_store_close(s);
}

/* Layer 1 is visited as layer 2 again: what is staged for it in its first visit is not stale, and
 * its experts are not the cache's to lend, before the second one. */
static void staged_experts_wait_for_a_later_visit(void **state)
{
    loop = (struct moe_loop){1, 1, 2};
    struct moe_store *s = open_store("lru", 0, 1, NULL, 1);
    moe_store_begin_layer(s, 1);
    uint32_t a = moe_store_stage(s, key_at(1, 4), 0, true, false);
    moe_store_ready(s, a);
    assert_int_equal(moe_store_stage(s, key_at(1, 5), 0, true, false), MOE_NO_SLOT);
    moe_store_begin_layer(s, 2);
    assert_int_equal(moe_store_stage(s, key_at(1, 5), 0, true, false), a);
    moe_store_close(s);
    s = open_store("lru", 2, 0, NULL, 1);
    assert_false(ask(s, 1, 1, 0));
    assert_false(ask(s, 1, 2, 0));
    moe_store_begin_layer(s, 1);
    assert_int_equal(moe_store_stage(s, key_at(0, 5), 0, false, true), MOE_NO_SLOT);
    moe_store_begin_layer(s, 2);
    assert_int_not_equal(moe_store_stage(s, key_at(0, 5), 0, false, true), MOE_NO_SLOT);
    moe_store_close(s);
    loop = (struct moe_loop){0};
}

static void protected_experts_stay_until_they_are_free(void **state)
{
    struct moe_store *s = open_store("lru", 2, 1, NULL, 1);
    ask(s, 0, 0, 0);
    ask(s, 0, 1, 0);
    moe_store_protect(s, key_at(0, 0), true);
    assert_false(ask(s, 1, 0, 0)); /* 0/1 leaves, though used later */
    assert_true(ask(s, 0, 0, 0));
    moe_store_protect(s, key_at(1, 0), true);
    assert_false(ask(s, 2, 0, 0)); /* no expert may leave: it passes through */
    assert_false(ask(s, 2, 0, 0));
    moe_store_protect(s, key_at(0, 0), false);
    assert_false(ask(s, 2, 0, 0));
    assert_true(ask(s, 2, 0, 0));
    assert_int_equal(moe_store_find(s, key_at(0, 0), 0), MOE_NO_SLOT);
    moe_store_close(s);
}

static void an_expert_takes_the_place_of_another(void **state)
{
    static const uint32_t per_layer[N_LAYERS] = {2, 1, 1};
    struct moe_store *s = open_store("pinned", 4, 1, per_layer, 1);
    ask(s, 0, 0, 0);
    ask(s, 0, 1, 0);
    uint32_t slot = moe_store_find(s, key_at(0, 1), 0);
    assert_int_equal(moe_store_replace(s, key_at(0, 5), key_at(0, 6), 0),
                     MOE_NO_SLOT); /* 5 is not there */
    assert_int_equal(moe_store_replace(s, key_at(0, 1), key_at(0, 0), 0),
                     MOE_NO_SLOT); /* 0 is there already */
    moe_store_use(s, slot);
    assert_int_equal(moe_store_replace(s, key_at(0, 1), key_at(0, 6), 0), MOE_NO_SLOT); /* in use */
    moe_store_release(s, slot);
    assert_int_equal(moe_store_replace(s, key_at(0, 1), key_at(0, 6), 0), slot);
    assert_int_equal(moe_store_slot(s, slot)->state, MOE_SLOT_LOADING);
    check(s);
    moe_store_ready(s, slot);
    assert_true(ask(s, 0, 6, 0));
    assert_false(ask(s, 0, 1, 0));
    assert_true(ask(s, 0, 6, 0));
    moe_store_close(s);
}

static void free_cache_slots_are_not_for_staging(void **state)
{
    struct moe_store *s = open_store("lru", 4, 1, NULL, 1);
    assert_int_not_equal(moe_store_stage(s, key_at(0, 0), 0, false, false), MOE_NO_SLOT);
    assert_int_equal(moe_store_stage(s, key_at(0, 1), 0, false, false), MOE_NO_SLOT);
    moe_store_close(s);
}

/* The cache lends slots of layers that have run, the last of them first, at most half of its slots,
 * and gets them back. */
static void the_cache_lends_slots(void **state)
{
    static const uint32_t per_layer[N_LAYERS] = {2, 2, 2};
    struct moe_store *s = open_store("lru", 6, 1, per_layer, 1);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t expert = 0; expert < 2; expert++)
            ask(s, layer, expert, 0);
    moe_store_begin_layer(s, 1);
    uint32_t own = moe_store_stage(s, key_at(2, 4), 0, true, false);
    assert_int_not_equal(own, MOE_NO_SLOT);
    assert_int_equal(moe_store_stage(s, key_at(2, 5), 0, true, false), MOE_NO_SLOT);
    uint32_t oldest = moe_store_find(s, key_at(1, 0), 0);
    assert_int_equal(moe_store_stage(s, key_at(2, 5), 0, true, true), oldest);
    check(s);
    moe_store_use(s, moe_store_find(s, key_at(1, 1), 0)); /* in use: the layer before lends */
    oldest = moe_store_find(s, key_at(0, 0), 0);
    assert_int_equal(moe_store_stage(s, key_at(2, 6), 0, true, true), oldest);
    assert_int_not_equal(moe_store_stage(s, key_at(2, 7), 0, true, true), MOE_NO_SLOT);
    moe_store_release(s, moe_store_find(s, key_at(1, 1), 0)); /* three are half of six */
    assert_int_equal(moe_store_stage(s, key_at(2, 3), 0, true, true), MOE_NO_SLOT);
    assert_int_equal(moe_store_counts(s)->evictions, 3);
    assert_int_not_equal(moe_store_find(s, key_at(2, 0), 0),
                         MOE_NO_SLOT); /* runs next, and stays */
    check(s);
    moe_store_take_back(s); /* bytes are on their way into them */
    assert_int_not_equal(moe_store_find(s, key_at(2, 6), 0), MOE_NO_SLOT);
    for (uint32_t expert = 4; expert < 8; expert++)
        moe_store_ready(s, moe_store_find(s, key_at(2, expert), 0));
    moe_store_take_back(s);
    check(s);
    assert_int_equal(moe_store_find(s, key_at(2, 6), 0), MOE_NO_SLOT); /* the oldest three left */
    assert_int_not_equal(moe_store_find(s, key_at(2, 7), 0), MOE_NO_SLOT);
    assert_int_equal(moe_store_stage(s, key_at(2, 3), 0, false, false), MOE_NO_SLOT);
    assert_false(ask(s, 0, 0, 0));
    assert_true(ask(s, 0, 1, 0) || ask(s, 0, 0, 0)); /* it keeps again what it lent */
    moe_store_close(s);
}

/* What the cache gives up for a while is what it has not filled, then what its policy evicts, in
 * use or not; of layers the one with most of its slots left. It comes back as it was. */
static void withdrawn_slots_come_back(void **state)
{
    static const uint32_t per_layer[N_LAYERS] = {2, 0, 4};
    struct moe_store *s = open_store("lru", 3, 1, NULL, 1);
    assert_int_equal(moe_store_withdrawn(s), MOE_NO_SLOT);
    ask(s, 0, 0, 0);
    ask(s, 0, 1, 0);
    uint32_t unfilled = moe_store_withdraw(s), oldest = moe_store_find(s, key_at(0, 0), 0);
    check(s);
    assert_true(unfilled != MOE_NO_SLOT && unfilled != oldest);
    assert_int_equal(moe_store_counts(s)->evictions, 0);
    moe_store_protect(s, key_at(0, 0), true); /* until the next pass */
    assert_int_equal(moe_store_withdraw(s), oldest);
    assert_int_equal(moe_store_counts(s)->evictions, 1);
    check(s);
    uint32_t last = moe_store_find(s, key_at(0, 1), 0);
    moe_store_use(s, last);
    assert_int_equal(moe_store_withdraw(s), MOE_NO_SLOT); /* in use */
    moe_store_release(s, last);
    assert_false(ask(s, 1, 0, 0)); /* one slot is left to keep experts */
    assert_false(ask(s, 0, 1, 0));
    assert_true(ask(s, 0, 1, 0));
    assert_int_equal(moe_store_withdrawn(s), oldest);
    moe_store_restore(s);
    assert_int_equal(moe_store_withdrawn(s), unfilled);
    moe_store_restore(s);
    check(s);
    for (int again = 0; again < 2; again++)
        for (uint32_t expert = 0; expert < 3; expert++)
            assert_int_equal(ask(s, 2, expert, 0), again);
    moe_store_close(s);

    s = open_store("lru", 6, 1, per_layer, 1);
    for (uint32_t expert = 0; expert < 4; expert++) {
        ask(s, 0, expert % 2, 0);
        ask(s, 2, expert, 0);
    }
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t n[N_LAYERS] = {0};
        assert_int_not_equal(moe_store_withdraw(s), MOE_NO_SLOT);
        for (uint32_t key = 0; key < N_LAYERS * N_EXPERTS; key++)
            n[key / N_EXPERTS] += moe_store_find(s, key, 0) != MOE_NO_SLOT;
        assert_int_equal(n[0] + n[2], 5 - i);
        assert_true(2 * n[0] + 2 >= n[2] && n[2] + 2 >= 2 * n[0]); /* in proportion */
        check(s);
    }
    assert_int_equal(moe_store_withdraw(s), MOE_NO_SLOT); /* none is left */
    moe_store_close(s);
}

static void a_better_variant_serves_a_lesser_request(void **state)
{
    struct moe_store *s = open_store("lru", 2, 1, NULL, 2);
    assert_false(ask(s, 0, 0, 1));
    assert_false(ask(s, 0, 0, 0)); /* the low one does not serve a high request */
    assert_true(ask(s, 0, 0, 1));
    uint32_t slot = moe_store_find(s, key_at(0, 0), 1);
    assert_int_equal(moe_store_slot(s, slot)->variant, 0);
    assert_false(ask(s, 0, 3, 0));
    assert_true(ask(s, 0, 3, 1)); /* only the high one is there */
    moe_store_close(s);
}

static void a_failed_load_is_forgotten(void **state)
{
    struct moe_store *s = open_store("arc", 2, 1, NULL, 1);
    uint32_t slot = moe_store_miss(s, key_at(0, 0), 0, false);
    moe_store_failed(s, slot);
    check(s);
    assert_int_equal(moe_store_find(s, key_at(0, 0), 0), MOE_NO_SLOT);
    assert_false(ask(s, 0, 0, 0));
    assert_true(ask(s, 0, 0, 0));
    moe_store_close(s);
}

static void given_up_while_loading_it_stays_until_written(void **state)
{
    struct moe_store *s = open_store("lru", 0, 1, NULL, 1);
    uint32_t slot = moe_store_miss(s, key_at(0, 0), 0, false);
    moe_store_release(s, slot);
    check(s);
    assert_int_equal(moe_store_miss(s, key_at(0, 1), 0, false), MOE_NO_SLOT);
    moe_store_ready(s, slot);
    assert_int_equal(moe_store_miss(s, key_at(0, 1), 0, true), slot);
    moe_store_close(s);
}

/* Random use of everything at once, every invariant checked at every step. */
static void invariants_hold_under_random_use(void **state)
{
    const struct moe_policy_ops *ops;
    for (int p = 0; (ops = moe_policy_at(p)) != NULL; p++) {
        static const uint32_t shares[N_LAYERS] = {3, 1, 2};
        for (int variants = 1; variants <= 2; variants++) {
            struct moe_store *s =
                open_store(ops->name, 6, 3, p % 2 ? shares : NULL, (uint32_t)variants);
            uint64_t random = 77 + (uint64_t)p;
            uint32_t pinned[64], n_pinned = 0, taken = 0, withdrawn = 0;
            for (int step = 0; step < 20000; step++) {
                uint32_t layer = (uint32_t)(test_random(&random) % N_LAYERS);
                uint32_t expert = (uint32_t)(test_random(&random) % N_EXPERTS);
                uint32_t variant = (uint32_t)(test_random(&random) % (uint32_t)variants);
                uint32_t slot = moe_store_find(s, key_at(layer, expert), variant);
                const uint32_t chosen[2] = {expert, (expert + 1) % N_EXPERTS};
                const struct moe_choices choices = {layer, 1, chosen, NULL};
                moe_store_protect(s, key_at(layer, expert), test_random(&random) % 4 == 0);
                switch (test_random(&random) % 4) {
                case 0: /* the router */
                    if (n_pinned == 8)
                        break;
                    moe_store_begin_layer(s, layer);
                    moe_usage_begin_tokens(&usage, 1);
                    moe_usage_chosen(&usage, &choices);
                    moe_usage_note(&usage, key_at(layer, expert), 1, variant == 0);
                    if (slot == MOE_NO_SLOT)
                        slot = moe_store_miss(s, key_at(layer, expert), variant, false);
                    else
                        moe_store_use(s, slot);
                    if (slot != MOE_NO_SLOT) {
                        pinned[n_pinned++] = slot;
                        taken++;
                    }
                    break;
                case 1: /* a prefetch */
                    if (slot == MOE_NO_SLOT)
                        moe_store_stage(s, key_at(layer, expert), variant, true,
                                        test_random(&random) % 4 != 0);
                    else if (test_random(&random) % 16 == 0)
                        moe_store_take_back(s);
                    break;
                case 2: /* a completion or a failure */
                    slot = (uint32_t)(test_random(&random) % moe_store_n_slots(s));
                    if (moe_store_slot(s, slot)->state == MOE_SLOT_LOADING) {
                        if (test_random(&random) % 8 || moe_store_slot(s, slot)->pins)
                            moe_store_ready(s, slot);
                        else
                            moe_store_failed(s, slot);
                    }
                    break;
                default: /* done with one; or a pass begins, with more rows or fewer */
                    if (test_random(&random) % 8 == 0)
                        withdrawn += moe_store_withdraw(s) != MOE_NO_SLOT;
                    else if (test_random(&random) % 4 == 0 && moe_store_withdrawn(s) != MOE_NO_SLOT)
                        moe_store_restore(s);
                    if (n_pinned)
                        moe_store_release(s, pinned[--n_pinned]);
                }
                check(s);
                for (uint32_t i = 0; i < n_pinned; i++)
                    assert_true(moe_store_slot(s, pinned[i])->pins > 0);
            }
            assert_true(taken > 2000 && (withdrawn > 100 || ops == &moe_policy_pinned));
            moe_store_close(s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lru_keeps_the_latest),
        cmocka_unit_test(layers_have_their_own_share),
        cmocka_unit_test(nothing_is_kept_without_a_cache),
        cmocka_unit_test(what_is_worth_less_passes_through),
        cmocka_unit_test(pinned_slots_stay),
        cmocka_unit_test(staged_experts_do_not_touch_the_cache),
        cmocka_unit_test(staged_experts_grow_stale_with_the_token),
        cmocka_unit_test(staged_experts_wait_for_a_later_visit),
        cmocka_unit_test(protected_experts_stay_until_they_are_free),
        cmocka_unit_test(an_expert_takes_the_place_of_another),
        cmocka_unit_test(free_cache_slots_are_not_for_staging),
        cmocka_unit_test(the_cache_lends_slots),
        cmocka_unit_test(withdrawn_slots_come_back),
        cmocka_unit_test(a_better_variant_serves_a_lesser_request),
        cmocka_unit_test(a_failed_load_is_forgotten),
        cmocka_unit_test(given_up_while_loading_it_stays_until_written),
        cmocka_unit_test(invariants_hold_under_random_use),
    };
    return cmocka_run_group_tests_name("store", tests, open_usage, close_usage);
}
