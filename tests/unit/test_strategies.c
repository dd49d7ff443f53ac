#define _POSIX_C_SOURCE 200809L
/*
 * Strategies through the engine: whatever does not change results gives the logits of experts in
 * memory, bit for bit; what does is counted, repeats where time plays no part, and is exact again
 * when the parts that approximate have nothing to do.
 */
#include "strategies_fixture.h"

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { N_CONFIGS = 8, FASTEST = 1 };
#else
enum { N_CONFIGS = 60, FASTEST = 4 };
#endif

static struct strategies fixture;
static float *expected; /* [N_ALL] logits of the first document from experts in memory */

static uint64_t logits_bytes(void)
{
    return N_ALL * fixture.logits_stride * sizeof(float);
}

static int open_all(void **state)
{
    strategies_set_up(&fixture, "strategies", 4);
    const struct moe_engine_options o = strategies_options(&fixture, "resident", 0);
    struct moe_engine *e = strategies_open(&fixture, &o);
    expected = calloc(1, logits_bytes());
    strategies_run(e->session, fixture.ids[0], N_PROMPT, N_PROMPT, expected);
    moe_engine_close(e);
    return 0;
}

static int close_all(void **state)
{
    free(expected);
    strategies_tear_down(&fixture);
    return 0;
}

/* ---- One run ---- */

/* How a strategy is run. */
struct setting {
    struct moe_engine_options engine;
    uint32_t part; /* rows of a prompt's batch */
    int threads;
    char text[512];
};

/* The first document; the counts that came of it. */
static struct moe_stats run(const struct setting *s, float *logits)
{
    moe_par_set_threads(s->threads);
    struct moe_engine *e = strategies_open(&fixture, &s->engine);
    strategies_run(e->session, fixture.ids[0], s->part, N_PROMPT, logits);
    struct moe_stats stats = e->session->stats;
    moe_engine_close(e);
    moe_par_set_threads(2);
    strategies_check_sums(s->text, &stats.prefill.experts, N_PROMPT);
    strategies_check_sums(s->text, &stats.decode.experts, N_DECODE);
    /* One begun for the prompt may be used later. */
    const struct moe_counts *p = &stats.prefill.experts, *d = &stats.decode.experts;
    assert_true(p->prefetches_used <= p->prefetches);
    assert_true(p->prefetches_used + d->prefetches_used <= p->prefetches + d->prefetches);
    return stats;
}

static bool run_equals_resident(const struct setting *s, struct moe_stats *stats)
{
    float *logits = calloc(1, logits_bytes());
    *stats = run(s, logits);
    bool equal = memcmp(logits, expected, logits_bytes()) == 0;
    free(logits);
    return equal;
}

static void check_exact(const struct setting *s, struct moe_stats *sum)
{
    struct moe_stats stats;
    if (!run_equals_resident(s, &stats))
        fail_msg("%s: logits differ from resident", s->text);
    for (const struct moe_phase_stats *p = &stats.prefill; p <= &stats.decode; p++) {
        if (p->experts.low_precision + p->experts.skipped + p->experts.substituted +
            p->experts.precalculated)
            fail_msg("%s: counts what may change results", s->text);
    }
    moe_stats_add(sum, &stats);
}

static struct setting setting_of(const char *words, double demand, double speed)
{
    struct setting s = {
        .engine = strategies_options(&fixture, words, demand), .part = N_PROMPT, .threads = 2};
    if (speed > 0)
        s.engine.device =
            (struct moe_device_choice){.test = true, .speed = speed, .link_rate = 8e9};
    snprintf(s.text, sizeof s.text, "%s, %g tokens' demand, %s", words, demand,
             speed > 0 ? "test device" : "cpu");
    return s;
}

/* ---- Exactness ---- */

/* The strategies without the parts that may change results. */
static const char *const exact_strategies[] = {
    "ondemand",
    "lru",
    "host",
    "eap",
    "fate",
    "edgemoe",
    "hobbit on-miss=load skip-below=0",
    "daop precalculate=off degrade=off",
};

static bool needs_second_device(const char *words)
{
    return strncmp(words, "daop", 4) == 0;
}

static void every_row_equals_resident(void **state)
{
    struct moe_stats sum = {0};
    for (size_t i = 0; i < N_ITEMS(exact_strategies); i++)
        for (double speed = needs_second_device(exact_strategies[i]) ? 1 : 0; speed <= FASTEST;
             speed = speed == 0 ? 1 : 4 * speed) {
            struct setting s = setting_of(exact_strategies[i], 2, speed);
            s.engine.exact = true;
            check_exact(&s, &sum);
        }
    assert_true(sum.decode.experts.host_computed > 0 && sum.prefill.experts.host_computed > 0);
    assert_true(sum.decode.experts.prefetch_hits + sum.decode.experts.prefetch_late > 0);
}

/* One of a list of texts, which ends with NULL. */
static const char *draw(uint64_t *random, const char *const *list)
{
    uint64_t n = 0;
    while (list[n])
        n++;
    return list[test_random(random) % n];
}

static void set(struct moe_strategy *s, enum moe_part part, const char *text)
{
    struct moe_err why;
    if (!moe_strategy_set(s, part, text, &why))
        fail_msg("--%s '%s' %s", moe_strategy_part_at(part)->name, text, why.text);
}

static void draw_parts(struct moe_strategy *s, bool host, uint64_t *random)
{
    static const char *const predict[] = {"previous",
                                          "token:3",
                                          "path",
                                          "keys",
                                          "requests:2",
                                          "gate-next",
                                          "gate-ahead:3",
                                          "gate-residual:2",
                                          "gate-attention",
                                          "gate-attention-before",
                                          NULL};
    static const char *const prefetch[] = {"percentile:75",
                                           "count:2",
                                           "slack",
                                           "until-router",
                                           "all",
                                           "all,measured",
                                           "percentile:50,count:3",
                                           "all,until-router",
                                           "percentile:75,slack,measured",
                                           NULL};
    static const char *const alloc[] = {"global",    "per-layer", "shallow",
                                        "shallow:3", "frequency", NULL};
    static const char *const init[] = {"empty", "frequency", "layerwise", NULL};
    static const char *const flag[] = {"on", "off", NULL};
    static const char *const prefill[] = {"routed-order", "popularity", NULL};
    int n_policies = 0;
    while (moe_policy_at(n_policies))
        n_policies++;
    if (test_random(random) % 4)
        set(s, MOE_PART_CACHE, moe_policy_at((int)(test_random(random) % n_policies))->name);
    if (test_random(random) % 4) {
        set(s, MOE_PART_PREDICT, draw(random, predict));
        set(s, MOE_PART_PREFETCH, draw(random, prefetch));
        set(s, MOE_PART_PROTECT, draw(random, flag));
    }
    if (test_random(random) % 2)
        set(s, MOE_PART_ALLOC, draw(random, alloc));
    if (test_random(random) % 2)
        set(s, MOE_PART_INIT, draw(random, init));
    set(s, MOE_PART_KEEP_RECORDS, draw(random, flag));
    set(s, MOE_PART_PREFILL, draw(random, prefill));
    if (test_random(random) % 3 == 0) {
        set(s, MOE_PART_ON_MISS, host ? "compute-host" : "compute-host,or-load");
        set(s, MOE_PART_HOST_DECODES_ONLY, draw(random, flag));
        set(s, MOE_PART_PREFILL_SWAP, draw(random, flag));
    }
}

/* One configuration drawn from `seed`. */
static struct setting draw_setting(uint64_t seed)
{
    static const double demands[] = {0.5, 1, 2, 6};
    struct moe_buf parts = {0};
    uint64_t random = seed;
    double speed = (double[]){0, 0, 1, 4}[test_random(&random) % 4];
    const char *name =
        exact_strategies[test_random(&random) % (N_ITEMS(exact_strategies) - (speed > 0 ? 0 : 1))];
    double demand = demands[test_random(&random) % N_ITEMS(demands)];
    struct setting s = setting_of(name, demand, speed);
    struct moe_engine_options *o = &s.engine;
    draw_parts(&o->strategy, speed > 0, &random);
    moe_strategy_drop_idle(&o->strategy, 0);
    moe_strategy_describe(&o->strategy, &parts);
    o->exact = true;
    o->seed = seed;
    o->staging = 1 + (uint32_t)(test_random(&random) % 8);
    o->lockstep = test_random(&random) % 4 == 0;
    o->link_rate = o->lockstep ? 2e9 : 0;
    if (test_random(&random) % 2) { /* from the file into slots, not in place */
        o->pack_copy = NULL;
        o->piece_bytes = test_random(&random) % 2 ? 4096 : 0;
    }
    s.threads = 1 + (int)(test_random(&random) % 2);
    s.part = 1 + (uint32_t)(test_random(&random) % N_PROMPT);
    snprintf(s.text, sizeof s.text,
             "seed %llu: %s, %g tokens' demand, staging %u, %s speed %g, %s%s%d threads, batch %u",
             (unsigned long long)seed, (const char *)parts.data, demand, o->staging,
             speed > 0 ? "test device" : "cpu", speed, o->lockstep ? "lockstep, " : "",
             o->pack_copy ? "" : "from the file, ", s.threads, s.part);
    moe_buf_release(&parts);
    return s;
}

static void random_parts_equal_resident(void **state)
{
    struct moe_stats sum = {0};
    for (uint64_t seed = 1; seed <= N_CONFIGS; seed++) {
        const struct setting s = draw_setting(seed);
        check_exact(&s, &sum);
    }
    const struct moe_counts *n = &sum.decode.experts;
    print_message("# %d configurations: decode %llu activations, %llu hits, %llu prefetched, %llu "
                  "late, %llu on the host\n",
                  N_CONFIGS, (unsigned long long)n->activations, (unsigned long long)n->cache_hits,
                  (unsigned long long)n->prefetch_hits, (unsigned long long)n->prefetch_late,
                  (unsigned long long)n->host_computed);
    assert_true(n->cache_hits > 40 * N_CONFIGS);
    assert_true(n->prefetch_hits + n->prefetch_late > 4 * N_CONFIGS);
    assert_true(n->host_computed > 4 * N_CONFIGS);
    assert_true(n->predicted_right > 40 * N_CONFIGS);
}

/* ---- What may change results ---- */

/* A strategy, and what it must have done. */
struct approximate {
    const char *words;
    double speed; /* 0: on the CPU */
    bool low, skipped, host, precalculated, substituted;
};

static const struct approximate approximates[] = {
    {"fate", 0, .low = true},
    {"fate", 4, .low = true},
    {"hobbit", 0, .low = true, .skipped = true},
    {"hobbit", 4, .low = true, .skipped = true},
    {"hobbit on-miss=compute-host", 4, .skipped = true, .host = true},
    {"hobbit on-miss=compute-host,load-low", 4, .low = true, .skipped = true, .host = true},
    {"lru on-miss=compute-host,load-low:0.4", 4, .low = true, .host = true},
    {"lru on-miss=compute-host,or-load,load-low:0.4", 0, .low = true},
    {"lru on-miss=compute-host,emergency", 1, .low = true, .host = true},
    {"daop", 1, .host = true, .precalculated = true, .substituted = true},
    {"daop degrade=off prefill-swap=off", 4, .host = true, .precalculated = true,
     .substituted = true},
    {"adapmoe", 0, .skipped = true},
    {"adapmoe", 4, .skipped = true},
    {"lru on-miss=emergency", 0, .low = true},
    {"lru prefer-cached=0.3", 0, .substituted = true},
    {"prefetch prefer-cached=0.3:2 on-miss=compute-host", 4, .host = true, .substituted = true},
    {"fate on-miss=emergency", 4, .low = true},
};

static void check_did(const char *text, bool want, uint64_t n, const char *what)
{
    if (want != (n > 0))
        fail_msg("%s: %s %llu times", text, what, (unsigned long long)n);
}

static void what_may_change_results_is_counted(void **state)
{
    for (size_t i = 0; i < N_ITEMS(approximates); i++) {
        const struct approximate *a = &approximates[i];
        const struct setting s = setting_of(a->words, 2, a->speed);
        struct moe_stats stats, sum = {0};
        bool equal = run_equals_resident(&s, &stats);
        if (equal && !(a->host && !a->precalculated && !a->skipped))
            fail_msg("%s: logits of resident, so nothing was approximated", s.text);
        moe_stats_add(&sum, &stats);
        struct moe_counts n = stats.prefill.experts;
        const struct moe_counts *d = &stats.decode.experts;
        check_did(s.text, a->low, n.low_precision + d->low_precision, "low precision");
        check_did(s.text, a->skipped, n.skipped + d->skipped, "skipped");
        check_did(s.text, a->host, n.host_computed + d->host_computed, "computed on the host");
        check_did(s.text, a->precalculated, d->precalculated, "precalculated");
        check_did(s.text, a->substituted, d->substituted, "substituted");
        check_did(s.text, false, n.precalculated + n.substituted, "predicted in a prompt");
        struct setting exact = s;
        struct moe_err err = {0};
        struct moe_engine *e = NULL;
        exact.engine.exact = true;
        exact.engine.strategy.prefill_falls_back = false;
        assert_fails(moe_engine_open(&e, fixture.pack, &exact.engine, NULL, &err), MOE_ERR_USAGE,
                     "--exact forbids", &err);
    }
}

/* The figures that do not measure time. */
static void check_same(const char *text, const struct moe_stats *a, const struct moe_stats *b)
{
    if (memcmp(&a->prefill.experts, &b->prefill.experts, sizeof a->prefill.experts) != 0 ||
        memcmp(&a->decode.experts, &b->decode.experts, sizeof a->decode.experts) != 0 ||
        a->decode.bytes_read != b->decode.bytes_read)
        fail_msg("%s: another run counted otherwise", text);
}

/* In lockstep, and without a limit that goes by measured times, a run repeats. */
static void lockstep_repeats_approximations(void **state)
{
    float *first = calloc(1, logits_bytes()), *second = calloc(1, logits_bytes());
    for (size_t i = 0; i < N_ITEMS(approximates); i++) {
        struct setting s = setting_of(approximates[i].words, 2, approximates[i].speed);
        s.engine.strategy.prefetch.slack = false;
        s.engine.lockstep = true;
        s.engine.link_rate = 2e9;
        struct moe_stats a = run(&s, first);
        s.threads = 1;
        struct moe_stats b = run(&s, second);
        check_same(s.text, &a, &b);
        if (memcmp(first, second, logits_bytes()) != 0)
            fail_msg("%s: another run gave other logits", s.text);
    }
    free(first);
    free(second);
}

/* Approximating parts that have nothing to do change nothing. */
static void neutral_parts_equal_resident(void **state)
{
    static const struct {
        const char *words;
        double demand, speed;
    } neutral[] = {
        {"hobbit on-miss=load-low:1 skip-below=0", 2, 0},
        {"hobbit on-miss=load-low:1 skip-below=0", 2, 4},
        {"hobbit on-miss=load skip-below=0", 1, 0},
        {"hobbit on-miss=compute-host skip-below=0", 1, 4},
        {"hobbit on-miss=compute-host,load-low:1 skip-below=0", 1, 4},
        {"daop precalculate=off degrade=off", 1, 4},
        {"daop precalculate=off degrade=off prefill-swap=off", 2, 1},
        {"daop", 8, 4}, /* all on the device: no prediction replaces a choice */
        {"daop degrade=off", 8, 1},
        {"host prefill-swap=on", 1, 0}, /* no expert to swap with */
        {"fate prefill=hybrid:0", 2, 0},
        {"adapmoe gate-below=0", 2, 0},
        {"fate prefill=popularity", 2, 4},
        /* Everything is there from the start: nothing is missing. */
        {"lru on-miss=emergency init=layerwise", 8, 0},
        {"lru on-miss=load-low:0 skip-below=50% init=layerwise", 8, 4},
        {"lru prefer-cached=9 init=layerwise", 8, 0},
    };
    for (size_t i = 0; i < N_ITEMS(neutral); i++) {
        const struct setting s = setting_of(neutral[i].words, neutral[i].demand, neutral[i].speed);
        struct moe_stats sum = {0};
        check_exact(&s, &sum);
    }
}

/* Tokens of a model whose layers are visited several times, whose experts the host computes where
 * they are missing. Returns how many it computed. */
static uint64_t run_visits(const char *pack, const char *words, double speed, float *logits)
{
    struct moe_err err = {0};
    struct moe_engine *e;
    struct moe_engine_options o = {
        .expert_memory_bytes = speed > 0 ? 100 << 10 : 0, /* not for all of them */
        .session = {.context = N_ALL, .batch = N_ALL},
        .device = {.test = speed > 0, .speed = speed, .link_rate = 8e9},
    };
    strategies_parse(words, &o.strategy);
    assert_ok(moe_engine_open(&e, pack, &o, NULL, &err), &err);
    const struct moe_config *c = &e->model->config;
    for (uint32_t i = 0; i < N_ALL; i++) {
        const struct moe_row row = {0, i, i * 37 % 250, N_ALL};
        assert_ok(moe_forward(e->session, MOE_DECODE, &row, 1, 0, c->n_layers, NULL, NULL, &err),
                  &err);
        assert_ok(moe_logits(e->session, 0, 1, logits + i * moe_logits_stride(c), &err), &err);
    }
    const uint64_t n = e->session->stats.decode.experts.host_computed;
    moe_engine_close(e);
    return n;
}

static void a_host_computes_for_every_visit(void **state)
{
    enum { MOST = 1 << 10 };
    const struct moe_convert_options options = pack_options("8", 8);
    float *want = calloc(N_ALL * MOST, sizeof *want), *got = calloc(N_ALL * MOST, sizeof *got);
    char pack[64];
    snprintf(pack, sizeof pack, "/tmp/moe-visits-%d.moe", (int)getpid());
    make_pack(pack, DRAWN "/inkling2-loop-a", &options);
    assert_int_equal(run_visits(pack, "resident", 0, want), 0);
    assert_true(run_visits(pack, "lru on-miss=compute-host", 2, got) > N_ALL);
    assert_memory_equal(got, want, N_ALL * MOST * sizeof *want);
    free(want);
    free(got);
    unlink(pack);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_computes_for_every_visit),
        cmocka_unit_test(every_row_equals_resident),
        cmocka_unit_test(random_parts_equal_resident),
        cmocka_unit_test(what_may_change_results_is_counted),
        cmocka_unit_test(lockstep_repeats_approximations),
        cmocka_unit_test(neutral_parts_equal_resident),
    };
    return cmocka_run_group_tests_name("strategies", tests, open_all, close_all);
}
