/*
 * Allocation and initial contents against the papers' formulas worked by hand, and what must hold
 * of every allocation.
 */
#include "sched/placement.h"

#include "../test.h"

/* ---- Slots per layer ---- */

/* Qwen1.5-MoE (Fate 4.4): 24 layers of 60 experts, L = 3. */
enum { FATE_LAYERS = 24, FATE_EXPERTS = 60, FATE_L = 3 };

static void fate(uint32_t cache_total, uint32_t *per_layer)
{
    moe_allocate(MOE_ALLOC_SHALLOW, FATE_L, cache_total, FATE_LAYERS, 0, FATE_EXPERTS, NULL,
                 per_layer);
}

/* cache_deep = (600 - 3 * 60) / (24 - 3) = 20. */
static void test_shallow_with_memory_enough(void **state)
{
    uint32_t slots[FATE_LAYERS];
    fate(600, slots);
    for (int l = 0; l < FATE_LAYERS; l++)
        assert_int_equal(slots[l], l < FATE_L ? 60 : 20);
    /* (610 - 180) / 21 = 20, and 10 are over. */
    fate(610, slots);
    for (int l = 0; l < FATE_LAYERS; l++)
        assert_int_equal(slots[l], l < FATE_L ? 60 : l < FATE_L + 10 ? 21 : 20);
}

/* "If memory resources are limited ... sequentially to the first L layers". */
static void test_shallow_with_memory_short(void **state)
{
    static const uint32_t cases[][4] = {
        {0, 0, 0, 0}, {59, 59, 0, 0}, {60, 60, 0, 0}, {150, 60, 60, 30}, {180, 60, 60, 60}};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t slots[FATE_LAYERS];
        fate(cases[i][0], slots);
        for (int l = 0; l < FATE_LAYERS; l++)
            assert_int_equal(slots[l], l < FATE_L ? cases[i][1 + l] : 0);
    }
}

static void test_shallow_boundaries(void **state)
{
    uint32_t slots[4];
    moe_allocate(MOE_ALLOC_SHALLOW, 0, 10, 4, 0, 8, NULL, slots); /* no shallow layer: equal */
    assert_memory_equal(slots, ((const uint32_t[]){3, 3, 2, 2}), sizeof slots);
    moe_allocate(MOE_ALLOC_SHALLOW, 4, 20, 4, 0, 8, NULL, slots); /* nothing but shallow layers */
    assert_memory_equal(slots, ((const uint32_t[]){8, 8, 4, 0}), sizeof slots);
    moe_allocate(MOE_ALLOC_SHALLOW, 99, 99, 4, 0, 8, NULL, slots);
    assert_memory_equal(slots, ((const uint32_t[]){8, 8, 8, 8}), sizeof slots);
}

static void test_equal(void **state)
{
    uint32_t slots[3];
    moe_allocate(MOE_ALLOC_PER_LAYER, 0, 11, 3, 0, 4, NULL, slots);
    assert_memory_equal(slots, ((const uint32_t[]){4, 4, 3}), sizeof slots);
    moe_allocate(MOE_ALLOC_GLOBAL, 0, 11, 3, 0, 4, NULL, slots);
    assert_memory_equal(slots, ((const uint32_t[]){4, 4, 3}), sizeof slots);
    moe_allocate(MOE_ALLOC_PER_LAYER, 0, UINT32_MAX, 3, 0, 4, NULL, slots);
    assert_memory_equal(slots, ((const uint32_t[]){4, 4, 4}), sizeof slots);
}

/* Two slots each; of the two over one goes where the third expert is used 9 times, one to 7. */
static void test_by_frequency(void **state)
{
    static const uint64_t frequencies[3][4] = {{50, 5, 60, 1}, {9, 20, 30, 8}, {2, 7, 11, 10}};
    static const uint64_t equal[3][4] = {{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}};
    uint32_t slots[3];
    moe_allocate(MOE_ALLOC_FREQUENCY, 0, 8, 3, 0, 4, frequencies[0], slots);
    assert_memory_equal(slots, ((const uint32_t[]){2, 3, 3}), sizeof slots);
    moe_allocate(MOE_ALLOC_FREQUENCY, 0, 7, 3, 0, 4, frequencies[0], slots);
    assert_memory_equal(slots, ((const uint32_t[]){2, 3, 2}), sizeof slots);
    moe_allocate(MOE_ALLOC_FREQUENCY, 0, 1, 3, 0, 4, frequencies[0], slots); /* 60 is the highest */
    assert_memory_equal(slots, ((const uint32_t[]){1, 0, 0}), sizeof slots);
    moe_allocate(MOE_ALLOC_FREQUENCY, 0, 10, 3, 0, 4, frequencies[0], slots); /* 1, 8 or 2 */
    assert_memory_equal(slots, ((const uint32_t[]){3, 4, 3}), sizeof slots);
    moe_allocate(MOE_ALLOC_FREQUENCY, 0, 8, 3, 0, 4, equal[0], slots);
    assert_memory_equal(slots, ((const uint32_t[]){3, 3, 2}), sizeof slots);
}

/* Mixtral at DAOP's cache ratio of 46.9%: 120 of 32 * 8 experts, 3 a layer and 24 over. */
static void test_by_frequency_of_mixtral(void **state)
{
    uint64_t frequencies[32][8];
    uint32_t slots[32];
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t e = 0; e < 8; e++)
            frequencies[l][e] = 1000 * e + l; /* the fourth best: 4000 + l */
    moe_allocate(MOE_ALLOC_FREQUENCY, 0, 120, 32, 0, 8, frequencies[0], slots);
    for (uint32_t l = 0; l < 32; l++)
        assert_int_equal(slots[l], l < 8 ? 3 : 4);
}

/* The rules are about the decoder's layers, here three of four experts; two of an encoder get what
 * these cannot take. */
static void test_decoder_first(void **state)
{
    static const uint64_t frequencies[5][4] = {
        {90, 90, 90, 90}, {90, 90, 90, 90}, {5, 4, 3, 2}, {9, 8, 7, 1}, {6, 5, 1, 1}};
    static const struct {
        enum moe_alloc alloc;
        uint32_t n_slots, slots[5];
    } cases[] = {
        {MOE_ALLOC_PER_LAYER, 7, {0, 0, 3, 2, 2}}, {MOE_ALLOC_PER_LAYER, 15, {2, 1, 4, 4, 4}},
        {MOE_ALLOC_SHALLOW, 7, {0, 0, 4, 2, 1}},   {MOE_ALLOC_SHALLOW, 20, {4, 4, 4, 4, 4}},
        {MOE_ALLOC_FREQUENCY, 7, {0, 0, 2, 3, 2}}, {MOE_ALLOC_FREQUENCY, 13, {1, 0, 4, 4, 4}},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t slots[5];
        moe_allocate(cases[i].alloc, 1, cases[i].n_slots, 5, 2, 4, frequencies[0], slots);
        assert_memory_equal(slots, cases[i].slots, sizeof slots);
    }
}

static void test_every_allocation(void **state)
{
    static uint64_t frequencies[12 * 20];
    uint64_t random = 2;
    for (int round = 0; round < 4000; round++) {
        uint32_t n_layers = 1 + (uint32_t)(test_random(&random) % 12);
        uint32_t n_experts = 1 + (uint32_t)(test_random(&random) % 20);
        uint32_t n_keys = n_layers * n_experts, slots[12], sum = 0;
        uint32_t n_slots = (uint32_t)(test_random(&random) % (n_keys + 5));
        uint32_t boundary = (uint32_t)(test_random(&random) % (n_layers + 2));
        enum moe_alloc alloc = (enum moe_alloc)(round % 4);
        for (uint32_t i = 0; i < n_keys; i++)
            frequencies[i] = test_random(&random) % 9;
        moe_allocate(alloc, boundary, n_slots, n_layers, 0, n_experts, frequencies, slots);
        for (uint32_t l = 0; l < n_layers; l++) {
            assert_true(slots[l] <= n_experts);
            sum += slots[l];
            if (alloc == MOE_ALLOC_FREQUENCY && n_slots < n_keys)
                assert_in_range(slots[l], n_slots / n_layers, n_slots / n_layers + 1);
        }
        assert_int_equal(sum, n_slots < n_keys ? n_slots : n_keys);
    }
}

/* ---- Initial contents ---- */

enum { N_LAYERS = 3, N_EXPERTS = 4, N_KEYS = N_LAYERS * N_EXPERTS };

static const uint64_t seen[N_LAYERS][N_EXPERTS] = {{3, 9, 0, 3}, {8, 0, 0, 0}, {1, 2, 7, 9}};

static void assert_initial(enum moe_init init, const uint32_t *per_layer, uint32_t n_slots,
                           const uint32_t *want, uint32_t n_want)
{
    uint32_t keys[N_KEYS], order[N_KEYS];
    uint32_t n =
        moe_initial(init, per_layer, n_slots, N_LAYERS, 1, N_EXPERTS, seen[0], keys, order);
    assert_int_equal(n, n_want);
    assert_memory_equal(keys, want, n * sizeof *keys);
}

static void test_initial_empty(void **state)
{
    assert_initial(MOE_INIT_EMPTY, NULL, N_KEYS, (const uint32_t[]){0}, 0);
}

/* EdgeMoE III-C2: "the experts having the highest frequency of usage". Keys 1 and 11 were used 9
 * times, 4: 8, 10: 7, 0 and 3: 3, 9: 2, 8: once, the others never: they take what room is left. */
static void test_initial_by_frequency(void **state)
{
    static const uint32_t want[] = {1, 11, 4, 10, 0, 3, 9, 8, 2, 5, 6, 7};
    for (uint32_t n = 0; n <= N_ITEMS(want); n++)
        assert_initial(MOE_INIT_FREQUENCY, NULL, n, want, n);
}

static void test_initial_by_frequency_per_layer(void **state)
{
    static const uint32_t two_each[] = {2, 2, 2}, uneven[] = {0, 3, 3};
    assert_initial(MOE_INIT_FREQUENCY, two_each, 6, (const uint32_t[]){1, 11, 4, 10, 0, 5}, 6);
    assert_initial(MOE_INIT_FREQUENCY, uneven, 6, (const uint32_t[]){11, 4, 10, 9, 5, 6}, 6);
    assert_initial(MOE_INIT_FREQUENCY, two_each, 3, (const uint32_t[]){1, 11, 4}, 3);
}

/* "We load ... expert weights sequentially". */
static void test_initial_layer_by_layer(void **state)
{
    static const uint32_t per_layer[] = {2, 0, 3};
    assert_initial(MOE_INIT_LAYERWISE, NULL, 6, (const uint32_t[]){0, 1, 2, 3, 4, 5}, 6);
    assert_initial(MOE_INIT_LAYERWISE, per_layer, 5, (const uint32_t[]){0, 1, 8, 9, 10}, 5);
    assert_initial(MOE_INIT_LAYERWISE, per_layer, 3, (const uint32_t[]){0, 1, 8}, 3);
}

/* EdgeMoE III-C2: "When initializing the expert buffer, we load encoder expert weights
 * sequentially", here those of the first layer; what room is left is the decoder's. */
static void test_initial_encoder_first(void **state)
{
    static const uint32_t want[] = {0, 1, 2, 3, 11, 4, 10, 9, 8, 5, 6, 7};
    for (uint32_t n = 0; n <= N_ITEMS(want); n++)
        assert_initial(MOE_INIT_ENCODER, NULL, n, want, n);
    static const uint32_t two_each[] = {2, 2, 2};
    assert_initial(MOE_INIT_ENCODER, two_each, 6, (const uint32_t[]){0, 1, 11, 4, 10, 5}, 6);
}

/* Against picking the best that is left, again and again. */
static void test_initial_against_picking(void **state)
{
    enum { LAYERS = 5, EXPERTS = 11, KEYS = LAYERS * EXPERTS };
    uint64_t random = 3, frequencies[KEYS];
    for (int round = 0; round < 500; round++) {
        uint32_t per_layer[LAYERS], left[LAYERS], keys[KEYS], order[KEYS];
        uint32_t n_slots = (uint32_t)(test_random(&random) % (KEYS + 1)), n_want = 0;
        bool taken[KEYS] = {false}, shared = round % 2;
        for (uint32_t i = 0; i < KEYS; i++)
            frequencies[i] = test_random(&random) % 13;
        for (uint32_t l = 0; l < LAYERS; l++)
            left[l] = per_layer[l] = (uint32_t)(test_random(&random) % (EXPERTS + 1));
        uint32_t n = moe_initial(MOE_INIT_FREQUENCY, shared ? NULL : per_layer, n_slots, LAYERS, 2,
                                 EXPERTS, frequencies, keys, order);
        for (;; n_want++) {
            uint32_t best = KEYS;
            for (uint32_t i = 0; i < KEYS; i++)
                if (!taken[i] && (shared || left[i / EXPERTS] > 0) &&
                    (best == KEYS || frequencies[i] > frequencies[best]))
                    best = i;
            if (best == KEYS || n_want == n_slots)
                break;
            assert_true(n_want < n);
            assert_int_equal(keys[n_want], best);
            taken[best] = true;
            left[best / EXPERTS] -= !shared;
        }
        assert_int_equal(n, n_want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shallow_with_memory_enough),
        cmocka_unit_test(test_shallow_with_memory_short),
        cmocka_unit_test(test_shallow_boundaries),
        cmocka_unit_test(test_equal),
        cmocka_unit_test(test_by_frequency),
        cmocka_unit_test(test_by_frequency_of_mixtral),
        cmocka_unit_test(test_decoder_first),
        cmocka_unit_test(test_every_allocation),
        cmocka_unit_test(test_initial_empty),
        cmocka_unit_test(test_initial_by_frequency),
        cmocka_unit_test(test_initial_by_frequency_per_layer),
        cmocka_unit_test(test_initial_layer_by_layer),
        cmocka_unit_test(test_initial_encoder_first),
        cmocka_unit_test(test_initial_against_picking),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
