#define _POSIX_C_SOURCE 200809L
/*
 * Experts behind a cache give the tokens of experts in memory: bit for bit, whatever the budget,
 * the policy, the threads, the loader's delays, prefetching right or wrong, and lockstep.
 */
#include <fcntl.h>
#include <stdatomic.h>

#include "io/loader.h"

#include "../load_delay.h"
#include "model_fixture.h"

/* Under sanitizers only a part, which takes as long. Under the thread sanitizer reading threads do
 * all loads, since it cannot see what the kernel writes for io_uring. */
#ifdef __SANITIZE_THREAD__
enum { N_CONFIGS = 24 };
static const enum moe_load_backend any_backend = MOE_LOAD_PREAD;
#elif defined __SANITIZE_ADDRESS__
enum { N_CONFIGS = 16 };
static const enum moe_load_backend any_backend = MOE_LOAD_AUTO;
#else
enum { N_CONFIGS = 72 };
static const enum moe_load_backend any_backend = MOE_LOAD_AUTO;
#endif

enum { MAX_EXPERTS = 64 };
enum { N_PROMPT = 24, N_DECODE = 8, N_ALL = N_PROMPT + N_DECODE, BATCH = 64 };

static struct fixture fixture;
static uint32_t ids[N_ALL];
static float *expected;    /* logits of every position, from resident experts */
static char packs[2][128]; /* plain, compressed */

static void run(struct moe_session *s, uint32_t part, float *logits, struct moe_err *err,
                int *status)
{
    uint64_t stride = moe_logits_stride(&s->model->config);
    uint32_t n_layers = s->model->config.n_layers;
    *status = MOE_OK;
    for (uint32_t first = 0; first < N_ALL && *status == MOE_OK;) {
        struct moe_row rows[N_ALL];
        uint32_t n = first < N_PROMPT ? part : 1;
        n = first < N_PROMPT && first + n > N_PROMPT ? N_PROMPT - first : n;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = (struct moe_row){0, first + i, ids[first + i], 0};
        *status =
            moe_forward(s, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0, n_layers, NULL, NULL, err);
        if (*status == MOE_OK)
            *status = moe_logits(s, 0, n, logits + first * stride, err);
        first += n;
    }
}

static uint64_t logits_bytes(void)
{
    return N_ALL * moe_logits_stride(&fixture.model->config) * sizeof(float);
}

static int open_all(void **state)
{
    struct moe_err err = {0};
    uint64_t random = 3;
    int status;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    for (int i = 0; i < 2; i++) {
        snprintf(packs[i], sizeof packs[i], "/tmp/moe-cached-%d-%d.moe", i, (int)getpid());
        struct moe_convert_options options = pack_options("4d8,2", 8);
        options.zstd_level = i ? 3 : 0;
        bundled_pack(packs[i], &options);
    }
    assert_ok(moe_model_open(&fixture.model, packs[0], 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&fixture.experts, fixture.model->pack, 0, NULL, NULL, &err),
              &err);
    const struct moe_session_options so = {.batch = BATCH};
    assert_ok(moe_session_open(&fixture.session, fixture.model, fixture.experts, &so, &err), &err);
    for (int i = 0; i < N_ALL; i++)
        ids[i] = (uint32_t)(test_random(&random) % 4000);
    expected = calloc(1, logits_bytes());
    run(fixture.session, N_PROMPT, expected, &err, &status);
    assert_ok(status, &err);
    return 0;
}

static int close_all(void **state)
{
    snprintf(fixture.path, sizeof fixture.path, "%s", packs[0]);
    fixture_close(&fixture);
    unlink(packs[1]);
    free(expected);
    return 0;
}

/* ---- Random configurations ---- */

struct predictor {
    struct moe_experts *experts;
    uint64_t random;
    bool on;
};

/* Predicts the next layer's experts at random: it is right by luck only, which is the point. */
static void predict(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                    const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                    uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct predictor *g = ctx;
    struct moe_err err = {0};
    uint32_t n_experts = fixture.model->config.n_experts;
    float scores[MAX_EXPERTS], unimportance[MAX_EXPERTS];
    if (!g->on || layer + 1 >= fixture.model->config.n_layers)
        return;
    for (uint32_t e = 0; e < n_experts; e++) {
        scores[e] = (float)(test_random(&g->random) % 1000) / 1000;
        unimportance[e] = (float)(test_random(&g->random) % 3) / 2;
    }
    const struct moe_prediction p = {layer + 1, n_rows, scores, unimportance};
    assert_ok(moe_scheduler_predicted(g->experts->scheduler, &p, 1, &err), &err);
}

static void check_counts(const struct moe_phase_stats *p, uint64_t n_rows)
{
    const struct moe_config *c = &fixture.model->config;
    const struct moe_counts *n = &p->experts;
    assert_int_equal(n->activations, n_rows * c->n_layers * c->top_k);
    assert_int_equal(n->activations,
                     n->cache_hits + n->prefetch_hits + n->prefetch_late + n->misses);
    assert_int_equal(n->low_precision + n->skipped + n->substituted, 0);
    assert_true(n->prefetches_used <= n->prefetches);
}

/* A strategy of parts that may not change results. */
static void draw_strategy(struct moe_strategy *s, uint64_t *random)
{
    struct moe_err err = {0};
    int n_policies = 0;
    while (moe_policy_at(n_policies))
        n_policies++;
    assert_true(moe_strategy_find("lru", s));
    s->cache = moe_policy_at((int)(test_random(random) % (uint64_t)n_policies));
    s->alloc = (enum moe_alloc)(test_random(random) % 3);
    s->boundary = 1 + (uint32_t)(test_random(random) % 3);
    s->init = test_random(random) % 2 ? MOE_INIT_LAYERWISE : MOE_INIT_EMPTY;
    s->prefill = test_random(random) % 2 ? MOE_PREFILL_POPULARITY : MOE_PREFILL_ROUTED;
    if (test_random(random) % 2) {
        s->predict = MOE_PREDICT_BY_GATE;
        s->depth = 1;
        s->protect = test_random(random) % 2;
        switch (test_random(random) % 4) {
        case 0:
            s->prefetch.top_k = true;
            break;
        case 1:
            s->prefetch.percentile = 75;
            break;
        case 2:
            s->prefetch.until_router = true;
            break;
        default:
            s->prefetch.count = 2;
            break;
        }
        s->prefetch.slack = test_random(random) % 2;
        s->prefetch.measured = test_random(random) % 2;
    }
    assert_ok(moe_strategy_settle(s, &err), &err);
}

/* One configuration drawn from `seed`; says it in `text`. */
static void check_configuration(uint64_t seed, char *text, size_t text_bytes, uint64_t *hits,
                                uint64_t *prefetched)
{
    struct moe_err err = {0};
    uint64_t random = seed, delays = seed * 77;
    struct moe_strategy strategy;
    struct moe_buf parts = {0};
    struct predictor g = {.random = seed};
    int status;
    draw_strategy(&strategy, &random);
    moe_strategy_describe(&strategy, &parts);
    bool compressed = test_random(&random) % 3 == 0;
    struct moe_model *model = NULL;
    assert_ok(moe_model_open(&model, packs[compressed], 0, NULL, &err), &err);
    uint64_t slot = moe_cache_slot_bytes(model->pack, 0);
    static const uint32_t sizes[] = {0, 1, 2, 4, 24, 48, 96, 192, 384};
    struct moe_cache_options o = {
        .strategy = &strategy,
        .cache_bytes = sizes[test_random(&random) % N_ITEMS(sizes)] * slot,
        .n_working = 1 + (uint32_t)(test_random(&random) % 8),
        .seed = seed,
        .loader =
            {
                .backend = test_random(&random) % 2 ? any_backend : MOE_LOAD_PREAD,
                .buffered = test_random(&random) % 2,
                .verify = true,
                .lockstep = test_random(&random) % 4 == 0,
                .prefetch_depth = strategy.prefetch.until_router,
                .piece_bytes = test_random(&random) % 2 ? 4096 : 0,
            },
    };
    g.on = strategy.predict != MOE_PREDICT_BY_NOTHING;
    if (o.loader.lockstep)
        o.loader.rate = 1e9;
    else if (test_random(&random) % 2) {
        o.loader.fault = delay;
        o.loader.fault_ctx = &delays;
    }
    int threads = 1 + (int)(test_random(&random) % 2);
    uint32_t part = 1 + (uint32_t)(test_random(&random) % N_PROMPT);
    snprintf(text, text_bytes, "seed %llu: %s, %u slots + %u, %s%s, %d threads, batches of %u",
             (unsigned long long)seed, (const char *)parts.data, (unsigned)(o.cache_bytes / slot),
             o.n_working, compressed ? "compressed, " : "", o.loader.lockstep ? "lockstep, " : "",
             threads, part);
    moe_buf_release(&parts);

    moe_par_set_threads(threads);
    const struct moe_session_options so = {.batch = BATCH};
    struct moe_session *s = NULL;
    assert_ok(moe_experts_open_cached(&g.experts, model->pack, model->config.top_k, &o, NULL, &err),
              &err);
    assert_ok(moe_session_open(&s, model, g.experts, &so, &err), &err);
    s->observer.ctx = &g;
    s->observer.routed = predict;
    float *logits = calloc(1, logits_bytes());
    run(s, part, logits, &err, &status);
    if (status != MOE_OK)
        fail_msg("%s: %s", text, err.text);
    if (memcmp(logits, expected, logits_bytes()) != 0)
        fail_msg("%s: logits differ from resident", text);
    check_counts(&s->stats.prefill, part > 1 ? N_PROMPT - (N_PROMPT % part == 1) : 0);
    check_counts(&s->stats.decode, N_ALL - s->stats.prefill.tokens);
    *hits += s->stats.prefill.experts.cache_hits + s->stats.decode.experts.cache_hits;
    *prefetched += s->stats.prefill.experts.prefetch_hits + s->stats.decode.experts.prefetch_hits +
                   s->stats.prefill.experts.prefetch_late + s->stats.decode.experts.prefetch_late;
    free(logits);
    moe_session_close(s);
    moe_experts_close(g.experts);
    moe_model_close(model);
    moe_par_set_threads(2);
}

static void every_configuration_equals_resident(void **state)
{
    char text[512];
    uint64_t hits = 0, prefetched = 0;
    for (uint64_t seed = 1; seed <= N_CONFIGS; seed++)
        check_configuration(seed, text, sizeof text, &hits, &prefetched);
    print_message("# %d configurations, %llu cache hits, %llu prefetches used\n", N_CONFIGS,
                  (unsigned long long)hits, (unsigned long long)prefetched);
    assert_true(hits > 8 * N_CONFIGS);
    assert_true(prefetched > 8 * N_CONFIGS);
}

/* ---- Faults ---- */

struct broken {
    atomic_ullong n, fail_from; /* reads from this one on fail; several threads ask */
};

static int fail_later(void *ctx, uint64_t offset, uint64_t n_bytes)
{
    struct broken *b = ctx;
    return atomic_fetch_add(&b->n, 1) >= atomic_load(&b->fail_from) ? -5 /* EIO */ : 0;
}

/* A read error ends the pass with a message; once the disk works again, so does the session. */
static void a_read_error_ends_the_answer_and_nothing_else(void **state)
{
    struct moe_err err = {0};
    struct broken broken = {.fail_from = 30};
    struct moe_experts *experts = NULL;
    struct moe_session *s = NULL;
    int status;
    const struct moe_cache_options o = {
        .cache_bytes = 8 * moe_cache_slot_bytes(fixture.model->pack, 0),
        .n_working = 4,
        .loader = {.backend = any_backend,
                   .verify = true,
                   .fault = fail_later,
                   .fault_ctx = &broken},
    };
    const struct moe_session_options so = {.batch = BATCH};
    assert_ok(moe_experts_open_cached(&experts, fixture.model->pack, fixture.model->config.top_k,
                                      &o, NULL, &err),
              &err);
    assert_ok(moe_session_open(&s, fixture.model, experts, &so, &err), &err);
    float *logits = calloc(1, logits_bytes());
    for (int round = 0; round < 20; round++) {
        atomic_store(&broken.n, 0);
        atomic_store(&broken.fail_from, (uint64_t)round * 7);
        run(s, N_PROMPT, logits, &err, &status);
        assert_int_equal(status, MOE_ERR_IO);
        assert_non_null(strstr(err.text, "layer "));
        assert_non_null(strstr(err.text, "expert "));
    }
    atomic_store(&broken.fail_from, UINT64_MAX);
    run(s, N_PROMPT, logits, &err, &status);
    assert_ok(status, &err);
    assert_memory_equal(logits, expected, logits_bytes());
    free(logits);
    moe_session_close(s);
    moe_experts_close(experts);
}

/* ---- Weights that arrive behind the first passes ---- */

static struct moe_model *open_behind(const char *path)
{
    struct moe_model *model;
    struct moe_err err = {0};
    assert_ok(moe_model_open_directory(&model, path, &err), &err);
    assert_ok(moe_model_load_behind(model, 0, NULL, NULL, &err), &err);
    return model;
}

static void arriving_weights_equal_resident(void **state)
{
    for (int i = 0; i < 6; i++) {
        struct moe_model *model;
        struct moe_experts *experts;
        struct moe_session *s;
        struct moe_err err = {0};
        const struct moe_session_options so = {.batch = BATCH};
        float *logits = calloc(1, logits_bytes());
        int status;
        moe_par_set_threads(1 + i / 2);
        model = open_behind(packs[i % 2]);
        assert_ok(moe_experts_open_arriving(&experts, model->pack, 0, NULL, &err), &err);
        assert_ok(moe_session_open(&s, model, experts, &so, &err), &err);
        do { /* what is read is counted, and once */
            run(s, i % 2 ? N_PROMPT : 1, logits, &err, &status);
            assert_ok(status, &err);
            assert_memory_equal(logits, expected, logits_bytes());
        } while (moe_stats_all(&s->stats).bytes_read < experts->resident_bytes);
        assert_int_equal(moe_stats_all(&s->stats).bytes_read, experts->resident_bytes);
        free(logits);
        moe_session_close(s);
        moe_experts_close(experts);
        assert_ok(moe_experts_open_arriving(&experts, model->pack, 0, NULL, &err), &err);
        moe_experts_close(experts); /* while it reads */
        moe_model_close(model);
        moe_model_close(open_behind(packs[i % 2])); /* while it reads */
    }
    moe_par_set_threads(2);
}

/* A pass that reads a text ends when asked to, and is done again. */
static void passes_can_be_stopped(void **state)
{
    const struct moe_session_options so = {.batch = BATCH};
    volatile sig_atomic_t stop = 1;
    const struct moe_progress passes = {.stop = &stop};
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *s;
    struct moe_err err = {0};
    float *logits = calloc(1, logits_bytes());
    int status;
    assert_ok(moe_model_open_directory(&model, packs[0], &err), &err);
    assert_ok(moe_model_load_behind(model, 0, NULL, NULL, &err), &err);
    model->passes = &passes;
    assert_ok(moe_experts_open_arriving(&experts, model->pack, 0, &passes, &err), &err);
    assert_ok(moe_session_open(&s, model, experts, &so, &err), &err);
    run(s, N_PROMPT, logits, &err, &status);
    assert_int_equal(status, MOE_ERR_INTERRUPTED);
    assert_string_equal(err.text, "stopped");
    stop = 0;
    run(s, N_PROMPT, logits, &err, &status);
    assert_ok(status, &err);
    assert_memory_equal(logits, expected, logits_bytes());
    free(logits);
    moe_session_close(s);
    moe_experts_close(experts);
    moe_model_close(model);
}

/* Turns over a bit of the pack. */
static void damage(const struct moe_extent *extent)
{
    const int fd = open(packs[0], O_RDWR);
    uint8_t byte;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)extent->offset), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)extent->offset), 1);
    close(fd);
}

/* ... in each expert of the last layer. */
static void damage_last_layer(void)
{
    const struct moe_config *c = &fixture.model->config;
    for (uint32_t e = 0; e < c->n_experts; e++)
        damage(&moe_pack_expert(fixture.model->pack, c->n_layers - 1, e, 0)->segments[0]);
}

static void damaged_dense_weights_are_errors_of_passes(void **state)
{
    static const char *const names[] = {"embed", "layers.1.attn.q", "head"};
    const struct moe_session_options so = {.batch = BATCH};
    struct moe_pack *pack = fixture.model->pack;
    float *logits = calloc(1, logits_bytes());
    for (int i = 0; i < 3; i++) {
        struct moe_experts *experts;
        struct moe_session *s;
        struct moe_err err = {0};
        char text[64];
        int status;
        const struct moe_pack_tensor *t = moe_pack_tensor_find(pack, names[i]);
        if (!t)
            continue; /* a head that is the embedding */
        snprintf(text, sizeof text, "tensor '%s': checksum mismatch", names[i]);
        damage(&t->extent);
        struct moe_model *model = open_behind(packs[0]);
        assert_ok(moe_experts_open_resident(&experts, pack, 0, NULL, NULL, &err), &err);
        assert_ok(moe_session_open(&s, model, experts, &so, &err), &err);
        for (int k = 0; k < 2; k++) {
            run(s, N_PROMPT, logits, &err, &status);
            assert_int_equal(status, MOE_ERR_FORMAT);
            assert_non_null(strstr(err.text, text));
        }
        damage(&t->extent); /* undone */
        run(s, N_PROMPT, logits, &err, &status);
        assert_ok(status, &err);
        assert_memory_equal(logits, expected, logits_bytes());
        moe_session_close(s);
        moe_experts_close(experts);
        moe_model_close(model);
    }
    free(logits);
}

static void damaged_experts_are_errors_of_passes_that_need_them(void **state)
{
    const struct moe_session_options so = {.batch = BATCH};
    const struct moe_config *c = &fixture.model->config;
    struct moe_pack *pack = fixture.model->pack;
    char text[64];
    struct moe_experts *experts;
    struct moe_session *s;
    struct moe_err err = {0};
    float *logits = calloc(1, logits_bytes());
    int status;
    damage_last_layer();
    snprintf(text, sizeof text, "layer %u expert 0 variant", c->n_layers - 1);
    assert_fails(moe_experts_open_resident(&experts, pack, 0, NULL, NULL, &err), MOE_ERR_FORMAT,
                 text, &err);
    assert_ok(moe_experts_open_arriving(&experts, pack, 0, NULL, &err), &err);
    assert_ok(moe_session_open(&s, fixture.model, experts, &so, &err), &err);
    snprintf(text, sizeof text, "layer %u expert ", c->n_layers - 1);
    for (int i = 0; i < 2; i++) {
        run(s, N_PROMPT, logits, &err, &status);
        assert_int_equal(status, MOE_ERR_FORMAT);
        assert_non_null(strstr(err.text, text));
    }
    damage_last_layer(); /* undone */
    run(s, N_PROMPT, logits, &err, &status);
    assert_ok(status, &err);
    assert_memory_equal(logits, expected, logits_bytes());
    free(logits);
    moe_session_close(s);
    moe_experts_close(experts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_configuration_equals_resident),
        cmocka_unit_test(a_read_error_ends_the_answer_and_nothing_else),
        cmocka_unit_test(arriving_weights_equal_resident),
        cmocka_unit_test(passes_can_be_stopped),
        cmocka_unit_test(damaged_dense_weights_are_errors_of_passes),
        cmocka_unit_test(damaged_experts_are_errors_of_passes_that_need_them),
    };
    return cmocka_run_group_tests_name("cached", tests, open_all, close_all);
}
