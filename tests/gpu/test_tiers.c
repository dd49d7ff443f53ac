#define _POSIX_C_SOURCE 200809L
/*
 * Experts in three tiers: the bytes of every view are the pack's, whatever lies in the GPU's, the
 * host's memory or on disk, whatever the policy, the order of requests, prefetches right or wrong,
 * and loads given up.
 */

#include "infer/host_tier.h"

#include "../load_delay.h"
#include "tiers_fixture.h"

/* Under sanitizers a part, which takes as long. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { N_CONFIGS = 20 };
#else
enum { N_CONFIGS = 60 };
#endif

static struct moe_gpu *gpu;
static char paths[2][128];
static struct moe_pack *packs[2]; /* plain, compressed */
static struct tiers_truth truth;

static int open_all(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    for (int i = 0; i < 2; i++)
        packs[i] = tiers_pack(paths[i], i ? 3 : 0);
    assert_ok(moe_gpu_open(&gpu, 0, &err), &err);
    tiers_truth_open(&truth, packs[0], gpu);
    return 0;
}

static int close_all(void **state)
{
    for (int i = 0; i < 2; i++) {
        moe_pack_close(packs[i]);
        unlink(paths[i]);
    }
    tiers_truth_close(&truth, gpu);
    assert_int_equal(moe_gpu_allocated_bytes(gpu), 0);
    moe_gpu_close(gpu);
    return 0;
}

/* ---- Random configurations ---- */

static void draw_strategy(struct moe_strategy *s, uint64_t *random)
{
    static const char *const rows[] = {"lru",  "lru",    "lru",     "prefetch",
                                       "fate", "hobbit", "ondemand"};
    struct moe_err err = {0};
    int n_policies = 0;
    while (moe_policy_at(n_policies))
        n_policies++;
    assert_true(moe_strategy_find(rows[test_random(random) % N_ITEMS(rows)], s));
    if (strcmp(s->name, "lru") == 0) {
        s->cache = moe_policy_at((int)(test_random(random) % (uint64_t)n_policies));
        s->alloc = (enum moe_alloc)(test_random(random) % 3);
        s->boundary = 1 + (uint32_t)(test_random(random) % 3);
        s->init = test_random(random) % 2 ? MOE_INIT_LAYERWISE : MOE_INIT_EMPTY;
        if (test_random(random) % 2) {
            s->predict = MOE_PREDICT_BY_GATE;
            s->depth = 1;
            s->prefetch.count = test_random(random) % 2 ? 2 : 0;
            s->prefetch.until_router = s->prefetch.count == 0;
        }
    }
    s->cache_bits = 0;
    if (s->boundary > LAYERS)
        s->boundary = 2;
    assert_ok(moe_strategy_settle(s, &err), &err);
}

static struct moe_cache_options draw_options(const struct moe_strategy *strategy,
                                             const struct moe_pack *pack, uint64_t *delays,
                                             uint64_t *random)
{
    static const uint32_t sizes[] = {0, 1, 4, 24, 96, 384};
    struct moe_cache_options o = {
        .strategy = strategy,
        .top_k = TOP_K,
        .low = 1,
        .cache_bytes = sizes[test_random(random) % N_ITEMS(sizes)] * moe_cache_slot_bytes(pack, 0),
        .n_working = 1 + (uint32_t)(test_random(random) % 8),
        .seed = *random,
        .gpu = gpu,
        .loader =
            {
                .backend = test_random(random) % 2 ? MOE_LOAD_PREAD : MOE_LOAD_AUTO,
                .buffered = test_random(random) % 2,
                .verify = true,
                .lockstep = test_random(random) % 4 == 0,
                .prefetch_depth = strategy->prefetch.until_router,
                .piece_bytes = test_random(random) % 2 ? 4096 : 0,
            },
    };
#ifdef __SANITIZE_THREAD__
    o.loader.backend = MOE_LOAD_PREAD;
#endif
    if (o.loader.lockstep) {
        o.loader.rate = 1e9;
        o.disk_rate = test_random(random) % 2 ? 2e8 : 0;
    } else if (test_random(random) % 2) {
        o.loader.fault = delay;
        o.loader.fault_ctx = delays;
    }
    return o;
}

static void check_configuration(uint64_t seed, struct moe_phase_stats *sums, int *n_whole)
{
    struct moe_err err = {0};
    uint64_t random = seed, delays = seed * 77, least, all, before = moe_gpu_allocated_bytes(gpu);
    struct moe_strategy strategy;
    draw_strategy(&strategy, &random);
    const struct moe_pack *pack = packs[test_random(&random) % 3 == 0];
    struct moe_cache_options o = draw_options(&strategy, pack, &delays, &random);
    moe_cache_host_bytes(pack, &o, &least, &all);
    assert_true(least <= all);
    switch (test_random(&random) % 4) {
    case 0:
        o.host_bytes = all;
        break;
    case 1:
        o.host_bytes = least;
        break;
    default:
        o.host_bytes = least + test_random(&random) % (all - least + 1);
    }
    setenv("MOE_SHIM_LATE", test_random(&random) % 2 ? "1" : "0", 1);
    struct tiers_drive d = {.gpu = gpu,
                            .truth = &truth,
                            .random = seed,
                            .experts = tiers_open(pack, &o),
                            .predicts = strategy.predict != MOE_PREDICT_BY_NOTHING,
                            .compute_seconds = 1e-5};
    assert_int_equal(moe_gpu_allocated_bytes(gpu) - before, moe_cache_bytes(pack, &o));
    for (int i = 0; i < 6; i++)
        if (tiers_pass(&d, &err) != MOE_OK)
            fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
    assert_int_equal(d.phase.host_hits + d.phase.disk_loads, d.phase.experts.loads);
    if (o.host_bytes == all) {
        assert_int_equal(d.phase.disk_loads, 0);
        assert_int_equal(d.phase.bytes_read, 0);
        ++*n_whole;
    }
    assert_true(d.phase.experts.loads == 0 || d.phase.bytes_uploaded > 0);
    moe_experts_close(d.experts);
    sums->host_hits += d.phase.host_hits;
    sums->disk_loads += d.phase.disk_loads;
    sums->tokens += d.n_checked;
    sums->experts.cache_hits += d.phase.experts.cache_hits;
    sums->experts.prefetches_used += d.phase.experts.prefetches_used;
    sums->experts.prefetch_wasted_bytes += d.phase.experts.prefetch_wasted_bytes;
    unsetenv("MOE_SHIM_LATE");
}

static void every_view_has_the_bytes_of_the_pack(void **state)
{
    struct moe_phase_stats sums = {0};
    int n_whole = 0;
    for (uint64_t seed = 1; seed <= N_CONFIGS; seed++)
        check_configuration(seed, &sums, &n_whole);
    print_message(
        "# %d configurations (%d with all experts in host memory), %llu views, %llu loads "
        "from host memory, %llu from disk, %llu prefetches used\n",
        N_CONFIGS, n_whole, (unsigned long long)sums.tokens, (unsigned long long)sums.host_hits,
        (unsigned long long)sums.disk_loads, (unsigned long long)sums.experts.prefetches_used);
    assert_true(n_whole > N_CONFIGS / 10);
    /* How many loads are in time goes by the link's speed: the shim's is known. */
    uint64_t each = strncmp(moe_gpu_info(gpu)->name, "shim", 4) == 0 ? N_CONFIGS : 0;
    assert_true(sums.host_hits > 20 * each && sums.disk_loads > 20 * each);
    assert_true(sums.experts.cache_hits > 8 * each);
    assert_true(sums.experts.prefetches_used > 4 * each);
    assert_true(sums.experts.prefetch_wasted_bytes > 0 || each == 0);
}

/* ---- Modelled time ---- */

static struct tiers_drive lockstep_run(const struct moe_cache_options *o, uint64_t seed)
{
    struct moe_err err = {0};
    struct tiers_drive d = {.gpu = o->gpu,
                            .truth = &truth,
                            .random = seed,
                            .experts = tiers_open(packs[0], o),
                            .predicts = true,
                            .compute_seconds = 3e-5};
    for (int i = 0; i < 8; i++)
        assert_ok(tiers_pass(&d, &err), &err);
    moe_experts_close(d.experts);
    return d;
}

/* With all experts in host memory loads end in the order, and at the times, that the model says:
 * those of the same cache on the host over a link of the same rate. With fewer, every run is like
 * the one before, and takes longer. */
static void lockstep_equals_the_model(void **state)
{
    struct moe_strategy strategy;
    uint64_t least, all;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        moe_strategy_find(seed % 2 ? "prefetch" : "hobbit", &strategy);
        struct moe_cache_options o = {
            .strategy = &strategy,
            .top_k = TOP_K,
            .low = 1,
            .cache_bytes = 40 * moe_cache_slot_bytes(packs[0], 0),
            .n_working = 8,
            .loader = {.lockstep = true, .rate = 4e8, .verify = true, .piece_bytes = 16384},
        };
        struct tiers_drive host = lockstep_run(&o, seed);
        o.gpu = gpu;
        moe_cache_host_bytes(packs[0], &o, &least, &all);
        o.host_bytes = all;
        struct tiers_drive whole = lockstep_run(&o, seed);
        assert_int_equal(whole.trail, host.trail);
        assert_memory_equal(&whole.phase.experts, &host.phase.experts, sizeof host.phase.experts);
        assert_int_equal(whole.phase.bytes_uploaded, host.phase.bytes_read);
        assert_true(whole.phase.stall_seconds == host.phase.stall_seconds);
        assert_true(whole.phase.read_seconds == host.phase.read_seconds);
        o.host_bytes = (least + all) / 2;
        o.disk_rate = 1e8;
        struct tiers_drive part = lockstep_run(&o, seed), again = lockstep_run(&o, seed);
        assert_int_equal(part.trail, again.trail);
        assert_true(part.phase.disk_loads > 0 && part.phase.host_hits > 0);
        assert_true(part.phase.stall_seconds == again.phase.stall_seconds);
        assert_true(part.phase.stall_seconds > whole.phase.stall_seconds);
    }
}

/* ---- The host tier ---- */

/* The most frequent experts are there from the start, and are evicted last. */
static void the_most_frequent_are_in_host_memory(void **state)
{
    enum { N = 100 };
    struct moe_err err = {0};
    struct moe_inventory inventory;
    struct moe_expert_pools pools;
    struct moe_host_tier tier;
    struct moe_loader *loader = NULL;
    struct moe_strategy lru;
    uint64_t frequency[LAYERS * EXPERTS], random = 11;
    moe_strategy_find("lru", &lru);
    for (uint64_t i = 0; i < N_ITEMS(frequency); i++)
        frequency[i] = test_random(&random) << 10 | i; /* no two alike */
    const struct moe_cache_options o = {
        .strategy = &lru,
        .n_working = N, /* so many places, too */
        .gpu = gpu,
        .loader = {.verify = true},
    };
    assert_ok(moe_inventory_of_pack(&inventory, packs[1], TOP_K, NULL, &err), &err);
    moe_expert_pools_size(&pools, packs[1], &inventory, &o);
    assert_false(pools.host.whole);
    assert_ok(moe_loader_open(&loader, &pools.disk, &err), &err);
    assert_ok(moe_host_tier_open(&tier, packs[1], &inventory, &pools, gpu, &err), &err);
    assert_ok(moe_host_tier_fill(&tier, loader, pools.disk.n_requests, 0, 0, frequency, NULL, &err),
              &err);
    assert_int_equal(tier.places.n_places, N);
    uint64_t least_in = UINT64_MAX, most_out = 0;
    for (uint32_t i = 0; i < LAYERS * EXPERTS; i++) {
        uint32_t place = moe_host_places_find(&tier.places, moe_expert_copy(VARIANTS, i, 0));
        if (place == MOE_NO_PLACE) {
            most_out = frequency[i] > most_out ? frequency[i] : most_out;
            continue;
        }
        least_in = frequency[i] < least_in ? frequency[i] : least_in;
        assert_true(
            moe_host_places_complete(&tier.places, &inventory, moe_expert_copy(VARIANTS, i, 0)));
        const struct moe_expert_class *class_ = moe_pack_class_at(
            packs[1], moe_pack_expert(packs[1], i / EXPERTS, i % EXPERTS, 0)->class_index);
        const uint8_t *segments[MOE_PACK_MAX_SEGMENTS] = {0};
        struct moe_expert_view view = {.layer = i / EXPERTS, .expert = i % EXPERTS};
        for (uint32_t s = 0; s < class_->n_segments; s++)
            segments[s] = moe_host_tier_at(&tier, place, s);
        moe_expert_view_set(&view, class_, segments);
        for (int m = 0; m < MATRICES; m++)
            tiers_compare(&truth, &view, m, tiers_matrix(&view, m)->data);
    }
    assert_true(least_in > most_out);
    for (uint64_t before = 0, n = 0; n < N; n++) { /* copies that are not in use come in */
        uint32_t copy = moe_expert_copy(VARIANTS, (uint32_t)n, 1);
        uint32_t oldest = tier.places.classes[tier.places.places[0].class_index].oldest;
        uint32_t leaves = tier.places.places[oldest].copy / VARIANTS;
        assert_int_equal(
            moe_host_places_take(&tier.places, tier.places.places[0].class_index, copy), oldest);
        moe_host_places_copied(&tier.places, oldest);
        assert_true(frequency[leaves] > before);
        before = frequency[leaves];
    }
    moe_loader_close(loader);
    moe_host_tier_close(&tier);
    moe_inventory_release(&inventory);
}

static void refused(const struct moe_cache_options *o, const char *words)
{
    struct moe_err err = {0};
    struct moe_experts *experts = NULL;
    assert_fails(moe_experts_open_cached(&experts, packs[0], TOP_K, o, NULL, &err), MOE_ERR_LIMIT,
                 words, &err);
    assert_null(experts);
}

/* Strategies that compute on the host find every expert there, or are refused. */
static void the_host_sees_all_experts_or_none(void **state)
{
    struct moe_err err = {0};
    struct moe_strategy strategy;
    uint64_t least, all;
    static const char *const names[] = {"host", "daop", "hobbit"};
    for (int i = 0; i < 3; i++) {
        moe_strategy_find(names[i], &strategy);
        bool hobbit = i == 2; /* in its cooperative mode: the host has both precisions */
        if (hobbit)
            moe_strategy_set(&strategy, MOE_PART_ON_MISS, "compute-host,load-low", NULL);
        strategy.init = MOE_INIT_LAYERWISE;
        strategy.alloc = MOE_ALLOC_GLOBAL;
        assert_ok(moe_strategy_settle(&strategy, &err), &err);
        assert_true(strategy.needs_host);
        struct moe_cache_options o = {
            .strategy = &strategy,
            .top_k = TOP_K,
            .cache_bytes = 40 * moe_cache_slot_bytes(packs[0], 0),
            .n_working = 4,
            .low = hobbit,
            .gpu = gpu,
            .loader = {.verify = true},
        };
        moe_cache_host_bytes(packs[1], &o, &least, &all);
        assert_int_equal(least, all);
        o.host_bytes = all;
        struct tiers_drive d = {
            .gpu = gpu, .truth = &truth, .random = 3, .experts = tiers_open(packs[1], &o)};
        for (int k = 0; k < 4; k++)
            assert_ok(tiers_pass(&d, &err), &err);
        assert_true(d.phase.experts.host_computed > 0);
        for (uint32_t e = 0; e < EXPERTS; e++)
            tiers_check_host(&d, LAYERS - 1, e,
                             moe_scheduler_variant(d.experts->scheduler, LAYERS - 1, e));
        moe_experts_close(d.experts);
        moe_cache_host_bytes(packs[0], &o, &least, &all);
        o.host_bytes = all - 4096;
        refused(&o, "computes experts on the host");
    }
}

/* ---- Resident ---- */

static void resident_experts_are_the_packs(void **state)
{
    struct moe_err err = {0};
    for (int i = 0; i < 8; i++) {
        struct moe_experts *experts = NULL;
        const struct moe_pack *pack = packs[i % 2];
        uint32_t variant = (uint32_t)i / 2 % 2;
        bool on_gpu = i < 4;
        static struct tiers_drive d;
        d = (struct tiers_drive){.gpu = on_gpu ? gpu : NULL, .truth = &truth};
        assert_ok(moe_experts_open_resident(&experts, pack, variant, d.gpu, NULL, &err), &err);
        const struct moe_expert_view *views = moe_experts_resident_views(experts);
        for (uint32_t k = 0; k < LAYERS * EXPERTS; k++) {
            d.views[d.n_views++] = views[k];
            assert_int_equal(views[k].layer, k / EXPERTS);
            assert_int_equal(views[k].expert, k % EXPERTS);
            assert_int_equal(views[k].variant, variant);
            for (int m = 0; m < MATRICES; m++)
                tiers_fetch(&d, k, m);
        }
        tiers_look(&d, true);
        moe_experts_close(experts);
    }
    const struct moe_cache_options o = {.n_working = 4};
    struct moe_experts *cached = tiers_open(packs[0], &o);
    assert_null(moe_experts_resident_views(cached));
    moe_experts_close(cached);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_view_has_the_bytes_of_the_pack),
        cmocka_unit_test(lockstep_equals_the_model),
        cmocka_unit_test(the_most_frequent_are_in_host_memory),
        cmocka_unit_test(the_host_sees_all_experts_or_none),
        cmocka_unit_test(resident_experts_are_the_packs),
    };
    return cmocka_run_group_tests_name("tiers", tests, open_all, close_all);
}
