/*
 * Inventories of packs, traces and of equal experts; how pools share a cache, by hand.
 */
#include "infer/expert_pools.h"
#include "sched/inventory.h"
#include "sched/placement.h"

#include "model_fixture.h"

enum { PAGE = 4096 };

static const char names[2][MOE_NAME_BYTES] = {"8", "4"};

/* ---- Equal experts ---- */

static void equal_experts(void **state)
{
    static const uint64_t bytes[2] = {3 * PAGE, PAGE + 1};
    struct moe_inventory i;
    struct moe_err err = {0};
    assert_ok(moe_inventory_uniform(&i, 3, 5, 2, names, bytes, 2, &err), &err);
    assert_true(i.n_layers == 3 && i.n_experts == 5 && i.top_k == 2 && i.n_model_layers == 3);
    assert_true(i.n_classes == 2 && i.n_variants == 2);
    for (uint32_t l = 0; l < 3; l++)
        assert_int_equal(i.model_layer[l], l);
    assert_int_equal(moe_inventory_class(&i, moe_inventory_key(&i, 2, 4), 0)->slot_bytes, 3 * PAGE);
    assert_int_equal(moe_inventory_class(&i, moe_inventory_key(&i, 2, 4), 1)->slot_bytes, 2 * PAGE);
    assert_int_equal(moe_inventory_class(&i, moe_inventory_key(&i, 2, 4), 1)->segment_bytes[0],
                     PAGE + 1);
    assert_int_equal(moe_inventory_load_bytes(&i, moe_inventory_key(&i, 1, 1), 1, 0), 2 * PAGE);
    assert_int_equal(moe_inventory_stored(&i, moe_inventory_key(&i, 1, 1), 1)[0], PAGE + 1);
    assert_int_equal(moe_inventory_all_bytes(&i, 0), 15 * 3 * PAGE);
    assert_int_equal(moe_inventory_slot_bytes(&i, 1), 2 * PAGE);
    assert_true(moe_inventory_mean_load(&i, 1) == 2 * PAGE);
    assert_int_equal(moe_inventory_variant(&i, "4"), 1);
    assert_int_equal(moe_inventory_variant(&i, "3"), 2);
    assert_int_equal(moe_inventory_usable(&i, moe_inventory_key(&i, 0, 0), 1), 1);
    assert_int_equal(moe_inventory_usable(&i, moe_inventory_key(&i, 0, 0), 2),
                     0); /* there is none: the best */
    moe_inventory_release(&i);
    moe_inventory_release(&i);
}

/* Layers 1 and 2 are visited three times. */
static void experts_of_visits_are_their_owners(void **state)
{
    static const uint64_t bytes[2] = {3 * PAGE, PAGE + 1};
    static const struct moe_loop loop = {1, 2, 3};
    struct moe_inventory i;
    struct moe_err err = {0};
    uint64_t uses[8 * 2];
    assert_ok(moe_inventory_uniform(&i, 8, 2, 1, names, bytes, 2, &err), &err);
    moe_inventory_set_loop(&i, &loop);
    static const uint32_t owners[8] = {0, 1, 2, 1, 2, 1, 2, 7};
    for (uint32_t l = 0; l < 8; l++) {
        assert_int_equal(moe_inventory_key(&i, l, 1), 2 * owners[l] + 1);
        assert_int_equal(moe_inventory_owns(&i, l), owners[l] == l);
        uses[2 * l] = l;
        uses[2 * l + 1] = 100;
    }
    assert_int_equal(moe_inventory_all_bytes(&i, 0), 4 * 2 * 3 * PAGE);
    assert_int_equal(moe_loop_owners(&loop, 8), 4);
    assert_true(moe_loop_next(&loop, 1, 2) == 3 && moe_loop_next(&loop, 1, 6) == 1 &&
                moe_loop_next(&loop, 7, 3) == 7 && moe_loop_next(&loop, 0, 3) == 0);
    uint64_t *by_key = moe_inventory_uses(&i, uses, 8, &err);
    static const uint64_t want[8 * 2] = {0, 100, 1 + 3 + 5, 300, 2 + 4 + 6, 300, 0, 0,
                                         0, 0,   0,         0,   0,         0,   7, 100};
    assert_memory_equal(by_key, want, sizeof want);
    /* Shares are equal, those of visits their owner's, which takes no more than it has experts. */
    const struct moe_strategy strategy = {.alloc = MOE_ALLOC_PER_LAYER};
    static const uint32_t all[8] = {2, 2, 2, 0, 0, 0, 0, 2}, few[8] = {1, 2, 2, 0, 0, 0, 0, 0};
    uint32_t per_layer[8];
    moe_allocate_owners(&strategy, &i, 10, by_key, per_layer);
    assert_memory_equal(per_layer, all, sizeof all);
    moe_allocate_owners(&strategy, &i, 5, by_key, per_layer);
    assert_memory_equal(per_layer, few, sizeof few);
    free(by_key);
    moe_inventory_release(&i);
}

/* ---- Traces ---- */

/* Two layers of two: at 8 bits 1, 2, 3 pages and none, at 4 bits 1 page each but for the first. */
static uint64_t sizes[8] = {PAGE, 2 * PAGE, 3 * PAGE, 0, 0, PAGE, PAGE, PAGE};

static struct moe_trace_shape shape_with_sizes(void)
{
    struct moe_trace_shape s = {
        .n_layers = 2, .n_experts = 2, .top_k = 1, .n_variants = 2, .expert_bytes = sizes};
    memcpy(s.variants, names, sizeof names);
    return s;
}

static void sizes_of_a_trace(void **state)
{
    const struct moe_trace_shape shape = shape_with_sizes();
    struct moe_inventory i;
    struct moe_err err = {0};
    assert_ok(moe_inventory_of_trace(&i, &shape, 0, &err), &err);
    assert_true(i.n_classes == 2 && i.n_variants == 2);
    assert_string_equal(i.variants[1], "4");
    /* Slots as large as experts are in the mean; a load moves what the expert has. */
    assert_int_equal(i.classes[0].slot_bytes, 2 * PAGE);
    assert_int_equal(i.classes[1].slot_bytes, PAGE);
    assert_int_equal(moe_inventory_load_bytes(&i, moe_inventory_key(&i, 1, 0), 0, 0), 3 * PAGE);
    assert_true(moe_inventory_mean_load(&i, 0) == (1 + 2 + 3 + 1) * PAGE / 4.0);
    assert_int_equal(moe_inventory_usable(&i, moe_inventory_key(&i, 1, 1), 0), 1);
    assert_int_equal(moe_inventory_usable(&i, moe_inventory_key(&i, 0, 0), 1), 0);
    moe_inventory_release(&i);
}

static void a_trace_without_sizes(void **state)
{
    const struct moe_trace_shape shape = {.n_layers = 2, .n_experts = 3, .top_k = 1};
    struct moe_inventory i;
    struct moe_err err = {0};
    assert_fails(moe_inventory_of_trace(&i, &shape, 0, &err), MOE_ERR_USAGE, "--expert-size", &err);
    moe_inventory_release(&i);
    assert_ok(moe_inventory_of_trace(&i, &shape, 5 * PAGE, &err), &err);
    assert_int_equal(moe_inventory_all_bytes(&i, 0), 30 * PAGE);
    moe_inventory_release(&i);
}

/* A file may say anything. */
static void sizes_that_cannot_be(void **state)
{
    struct moe_trace_shape shape = shape_with_sizes();
    struct moe_inventory i;
    struct moe_err err = {0};
    uint64_t bad[8];
    shape.expert_bytes = bad;
    memcpy(bad, sizes, sizeof bad);
    bad[7] = 0; /* the last expert has none at all */
    assert_fails(moe_inventory_of_trace(&i, &shape, 0, &err), MOE_ERR_FORMAT,
                 "layer 1 expert 1 has no size", &err);
    moe_inventory_release(&i);
    memcpy(bad, sizes, sizeof bad);
    bad[5] = UINT64_MAX;
    assert_fails(moe_inventory_of_trace(&i, &shape, 0, &err), MOE_ERR_FORMAT,
                 "layer 0 expert 1 is larger than", &err);
    moe_inventory_release(&i);
}

/* ---- Pools ---- */

static void pools_by_hand(void **state)
{
    static const uint64_t bytes[2] = {4 * PAGE, 2 * PAGE};
    struct moe_inventory i;
    struct moe_pools p;
    struct moe_err err = {0};
    struct moe_strategy lru, hobbit;
    moe_strategy_find("lru", &lru);
    moe_strategy_find("hobbit", &hobbit);
    hobbit.low_pool = 0.2;
    assert_ok(moe_strategy_settle(&hobbit, &err), &err);
    assert_ok(moe_inventory_uniform(&i, 2, 10, 2, names, bytes, 2, &err), &err);
    /* One precision: all of it to its class, which alone has working slots. */
    moe_pools_size(&p, &i, &lru, 0, 0, 31 * PAGE, 3);
    assert_true(p.pools[0].n_cache == 7 && p.pools[0].n_working == 3);
    assert_true(p.pools[1].n_cache == 0 && p.pools[1].n_working == 0);
    assert_true(p.n_slots == 10 && p.bytes == 40 * PAGE && p.n_classes == 2);
    /* No more than there are; one working slot at least. */
    moe_pools_size(&p, &i, &lru, 1, 1, 1000 * PAGE, 0);
    assert_true(p.pools[0].n_cache == 0 && p.pools[1].n_cache == 20 && p.n_slots == 21);
    /* A fifth of 60 pages for the low precision: 48 pages are 12 slots, 12 are 6. */
    moe_pools_size(&p, &i, &hobbit, 0, 1, 60 * PAGE, 2);
    assert_true(p.pools[0].n_cache == 12 && p.pools[1].n_cache == 6);
    assert_true(p.pools[0].n_working == 2 && p.pools[1].n_working == 2);
    assert_int_equal(p.bytes, (14 * 4 + 8 * 2) * PAGE);
    moe_inventory_release(&i);
    /* Three experts in slots of 2 pages, one, kept at 4 bits, in one of 1: 6/7 and 1/7. */
    const struct moe_trace_shape shape = shape_with_sizes();
    assert_ok(moe_inventory_of_trace(&i, &shape, 0, &err), &err);
    moe_pools_size(&p, &i, &lru, 0, 0, 7 * PAGE, 1);
    assert_true(p.pools[0].n_cache == 3 && p.pools[1].n_cache == 1);
    moe_pools_size(&p, &i, &lru, 0, 0, 5 * PAGE, 1);
    assert_true(p.pools[0].n_cache == 2 && p.pools[1].n_cache == 0);
    moe_inventory_release(&i);
}

/* ---- Packs ---- */

static void of_a_pack(void **state)
{
    char path[128];
    struct moe_err err = {0};
    struct moe_pack *pack = NULL;
    struct moe_inventory i;
    const struct moe_convert_options options = pack_options("4d8,2", 8);
    snprintf(path, sizeof path, "/tmp/moe-inventory-%d.moe", (int)getpid());
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    bundled_pack(path, &options);
    assert_ok(moe_pack_open(&pack, path, &err), &err);
    assert_ok(moe_inventory_of_pack(&i, pack, 4, NULL, &err), &err);
    assert_true(i.n_layers == 12 && i.n_experts == 32 && i.top_k == 4 && i.n_model_layers == 12);
    assert_string_equal(i.variants[0], "4d8");
    assert_string_equal(i.variants[1], "2");
    assert_int_equal(i.n_classes, 2);
    uint64_t sum = 0;
    for (uint32_t l = 0; l < i.n_layers; l++)
        for (uint32_t e = 0; e < i.n_experts; e++)
            for (uint32_t v = 0; v < 2; v++) {
                const struct moe_expert_extent *x = moe_pack_expert(pack, l, e, v);
                const struct moe_size_class *c =
                    moe_inventory_class(&i, moe_inventory_key(&i, l, e), v);
                uint64_t slot = 0;
                assert_int_equal(i.class_of[(l * 32 + e) * 2 + v], x->class_index);
                for (uint32_t s = 0; s < c->n_segments; s++) {
                    assert_int_equal(moe_inventory_stored(&i, moe_inventory_key(&i, l, e), v)[s],
                                     x->segments[s].stored_bytes);
                    assert_int_equal(
                        moe_inventory_load_bytes(&i, moe_inventory_key(&i, l, e), v, s) % PAGE, 0);
                    slot += (c->segment_bytes[s] + PAGE - 1) / PAGE * PAGE;
                }
                assert_int_equal(c->slot_bytes, slot);
                sum += v == 0 ? slot : 0;
            }
    assert_int_equal(moe_inventory_all_bytes(&i, 0), sum);
    assert_int_equal(moe_inventory_mean_bytes(&i, 0), sum / (12 * 32));
    i.class_of[0] = i.class_of[1]; /* one expert of another class, as a map's may be */
    uint64_t high = moe_inventory_slot_bytes(&i, 0), low = moe_inventory_slot_bytes(&i, 1);
    assert_int_equal(moe_inventory_all_bytes(&i, 0), sum - high + low);
    assert_int_equal(moe_inventory_mean_bytes(&i, 0), (sum - high + low) / (12 * 32));
    assert_int_equal(moe_inventory_slot_bytes(&i, 1), moe_cache_slot_bytes(pack, 1));
    assert_true(moe_inventory_slot_bytes(&i, 0) > moe_inventory_slot_bytes(&i, 1));
    moe_inventory_release(&i);
    moe_pack_close(pack);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_experts),
        cmocka_unit_test(sizes_of_a_trace),
        cmocka_unit_test(experts_of_visits_are_their_owners),
        cmocka_unit_test(a_trace_without_sizes),
        cmocka_unit_test(sizes_that_cannot_be),
        cmocka_unit_test(pools_by_hand),
        cmocka_unit_test(of_a_pack),
    };
    return cmocka_run_group_tests_name("inventory", tests, NULL, NULL);
}
