/* Importance: measured against the naive way, down to the last digit; estimated against its
 * definition and against what was measured. */
#include <math.h>

#include "model_fixture.h"
#include "tune/importance.h"

enum { N_EXPERTS = 32, N_LAYERS = 12, TOP_K = 4, UPPER = 0, LOWER = 1, MAX_TOKENS = 20 };

static const char texts[] = "The cat sat on the mat.\n"
                            "<|endoftext|>\n"
                            "def f(x):\n    return x + 1\n"
                            "<|endoftext|>\n"
                            "Tom has 3 apples and buys 4 more. He has 7 apples now.\n"
                            "<|endoftext|>\n"
                            "Yes.\n";

/* The bundled model with its experts at 4 and 2 bits, and a few short documents. */
struct bench {
    char pack[128], text[128];
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_corpus *corpus;
    struct moe_rerun *rerun;
    struct moe_quality base;
    struct moe_map *map;
    uint8_t table[N_LAYERS * N_EXPERTS]; /* of `rule` */
    struct moe_rule_table of_table;
    struct moe_rule rule;
    volatile sig_atomic_t stop;
    struct moe_progress progress;
};

static struct moe_map *new_map(void)
{
    struct moe_err err = {0};
    struct moe_map *map;
    assert_ok(moe_map_new(&map, N_LAYERS, N_EXPERTS, TOP_K, &err), &err);
    for (uint32_t l = 0; l < N_LAYERS; l++)
        map->model_layer[l] = l;
    return map;
}

static void open_rerun(struct bench *b, uint32_t rows)
{
    struct moe_err err = {0};
    const struct moe_rerun_options options = {
        .rows = rows, .keeps_states = true, .n_variants = 2, .progress = &b->progress};
    assert_ok(moe_rerun_open(&b->rerun, b->model, b->experts, b->corpus, &options, &err), &err);
    memset(b->table, UPPER, sizeof b->table);
    b->of_table = (struct moe_rule_table){b->table, N_EXPERTS, TOP_K};
    b->rule = moe_rule_of_table(&b->of_table);
    assert_ok(moe_quality_measure(&b->base, b->rerun, &b->rule, NULL, &err), &err);
}

static int bench_open(void **state)
{
    struct moe_err err = {0};
    struct bench *b = calloc(1, sizeof *b);
    *state = b;
    b->progress.stop = &b->stop;
    const struct moe_convert_options options = pack_options("4,2", 8);
    snprintf(b->pack, sizeof b->pack, "/tmp/moe-test-importance-%d.moe", (int)getpid());
    bundled_pack(b->pack, &options);
    snprintf(b->text, sizeof b->text, "/tmp/moe-test-importance-%d.txt", (int)getpid());
    FILE *f = fopen(b->text, "w");
    fputs(texts, f);
    fclose(f);
    const char *const paths[] = {b->text};
    assert_ok(moe_model_open(&b->model, b->pack, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_every(&b->experts, b->model->pack, 0, NULL, &err), &err);
    const struct moe_documents documents = {
        .tokenizer = b->model->tokenizer, .max_tokens = MAX_TOKENS, .max_windows = 1};
    assert_ok(moe_corpus_read(&b->corpus, &documents, paths, 1, &err), &err);
    assert_int_equal(b->corpus->n_documents, 4);
    b->map = new_map();
    open_rerun(b, 0);
    return 0;
}

static void close_rerun(struct bench *b)
{
    moe_quality_release(&b->base);
    moe_rerun_close(b->rerun);
}

static int bench_close(void **state)
{
    struct bench *b = *state;
    close_rerun(b);
    moe_map_free(b->map);
    moe_corpus_free(b->corpus);
    moe_experts_close(b->experts);
    moe_model_close(b->model);
    unlink(b->pack);
    unlink(b->text);
    free(b);
    return 0;
}

/* ---- Measuring ---- */

/* Only experts that these tests look at: of some layers a few. The others count as known. */
static bool looked_at(uint32_t layer, uint32_t expert)
{
    return (layer == 0 || layer == 7 || layer == 11) && expert % 4 == 1;
}

static void ask_for_some(struct moe_map *map)
{
    for (uint32_t i = 0; i < N_LAYERS * N_EXPERTS; i++)
        map->importances.known[i] = !looked_at(i / N_EXPERTS, i % N_EXPERTS);
}

static int measure(struct bench *b, struct moe_map *map, uint32_t shard, uint32_t n_shards,
                   int (*saved)(void *ctx, struct moe_err *err), void *ctx, struct moe_err *err)
{
    const struct moe_importance_options options = {.upper = UPPER,
                                                   .lower = LOWER,
                                                   .shard = shard,
                                                   .n_shards = n_shards,
                                                   .progress = &b->progress,
                                                   .saved = saved,
                                                   .ctx = ctx};
    return moe_importance_exact(map, b->rerun, &b->base, &options, err);
}

static void assert_same(const struct moe_map *a, const struct moe_map *b)
{
    const struct moe_importances *x = &a->importances, *y = &b->importances;
    uint32_t n = N_LAYERS * N_EXPERTS;
    assert_memory_equal(x->known, y->known, n);
    assert_memory_equal(x->nats, y->nats, n * sizeof *x->nats);
    assert_memory_equal(x->error, y->error, n * sizeof *x->error);
    assert_memory_equal(x->changed, y->changed, n * sizeof *x->changed);
    assert_memory_equal(x->visited, y->visited, n * sizeof *x->visited);
}

/* The whole model over the whole text, once for each expert. */
static void the_naive_way(struct bench *b, struct moe_map *naive)
{
    struct moe_importances *x = &naive->importances;
    ask_for_some(naive);
    for (uint32_t i = 0; i < N_LAYERS * N_EXPERTS; i++) {
        struct moe_err err = {0};
        struct moe_quality q;
        double n = b->corpus->n_documents, sum = 0, squares = 0;
        if (x->known[i])
            continue;
        b->table[i] = LOWER;
        assert_ok(moe_quality_measure(&q, b->rerun, &b->rule, &b->base, &err), &err);
        b->table[i] = UPPER;
        for (uint32_t d = 0; d < b->corpus->n_documents; d++)
            sum += q.nats[d] - b->base.nats[d];
        for (uint32_t d = 0; d < b->corpus->n_documents; d++) {
            double difference = q.nats[d] - b->base.nats[d];
            squares += (difference - sum / n) * (difference - sum / n);
            x->changed[i] += q.changed[d];
        }
        x->nats[i] = sum;
        x->error[i] = sqrt(n * squares / (n - 1));
        x->known[i] = 1;
        moe_quality_release(&q);
    }
}

/* An expert costs nothing exactly where no token visits it: results at 2 bits are never those at
 * 4. */
static void exact_is_what_the_naive_way_measures(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *naive = new_map();
    uint32_t n_unvisited = 0;
    ask_for_some(b->map);
    assert_ok(measure(b, b->map, 0, 1, NULL, NULL, &err), &err);
    the_naive_way(b, naive);
    const struct moe_importances *x = &b->map->importances, *y = &naive->importances;
    for (uint32_t i = 0; i < N_LAYERS * N_EXPERTS; i++) {
        assert_int_equal(x->known[i], 1);
        assert_true(x->nats[i] == y->nats[i]);
        assert_int_equal(x->changed[i], y->changed[i]);
        assert_true(fabs(x->error[i] - y->error[i]) <= 1e-12 * y->error[i]);
        if (looked_at(i / N_EXPERTS, i % N_EXPERTS)) {
            assert_int_equal(x->visited[i] == 0, x->nats[i] == 0);
            n_unvisited += x->visited[i] < b->corpus->n_documents;
        }
    }
    assert_true(n_unvisited > 0); /* some documents were spared */
    assert_true(x->there && x->exact);
    assert_int_equal(x->lower, LOWER);
    moe_map_free(naive);
}

static void digits_do_not_depend_on_threads_or_rows(void **state)
{
    static const struct {
        int threads;
        uint32_t rows;
    } ways[] = {{1, 0}, {2, 0}, {2, 1}, {1, 50}};
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *first = NULL;
    int before = moe_par_threads();
    for (size_t i = 0; i < N_ITEMS(ways); i++) {
        close_rerun(b);
        moe_par_set_threads(ways[i].threads);
        open_rerun(b, ways[i].rows);
        struct moe_map *map = new_map();
        ask_for_some(map);
        assert_ok(measure(b, map, 0, 1, NULL, NULL, &err), &err);
        if (first) {
            assert_same(first, map);
            moe_map_free(map);
        } else {
            first = map;
        }
    }
    moe_map_free(first);
    close_rerun(b);
    moe_par_set_threads(before);
    open_rerun(b, 0);
}

static void shards_make_the_whole(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *whole = new_map(), *parts = new_map();
    ask_for_some(whole);
    ask_for_some(parts);
    assert_ok(measure(b, whole, 0, 1, NULL, NULL, &err), &err);
    for (uint32_t shard = 0; shard < 3; shard++) {
        assert_ok(measure(b, parts, shard, 3, NULL, NULL, &err), &err);
        for (uint32_t i = 0; i < N_LAYERS * N_EXPERTS; i++)
            if (looked_at(i / N_EXPERTS, i % N_EXPERTS))
                assert_int_equal(parts->importances.known[i], i % 3 <= shard);
    }
    assert_same(whole, parts);
    moe_map_free(whole);
    moe_map_free(parts);
}

struct saving {
    struct bench *bench;
    uint32_t n_saved, stop_after;
};

static int count_saved(void *ctx, struct moe_err *err)
{
    struct saving *s = ctx;
    (void)err;
    if (++s->n_saved == s->stop_after)
        s->bench->stop = 1;
    return MOE_OK;
}

static int refuse_to_save(void *ctx, struct moe_err *err)
{
    ++*(uint32_t *)ctx;
    return moe_fail(err, MOE_ERR_IO, "no space left");
}

static void what_is_known_survives_an_interruption(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *whole = new_map(), *resumed = new_map();
    struct saving saving = {.bench = b};
    ask_for_some(whole);
    ask_for_some(resumed);
    assert_ok(measure(b, whole, 0, 1, count_saved, &saving, &err), &err);
    assert_int_equal(saving.n_saved, 3 * 8);
    saving = (struct saving){.bench = b, .stop_after = 11};
    assert_fails(measure(b, resumed, 0, 1, count_saved, &saving, &err), MOE_ERR_INTERRUPTED, "",
                 &err);
    assert_true(saving.n_saved >= 11 && saving.n_saved < 24);
    b->stop = 0;
    assert_ok(measure(b, resumed, 0, 1, count_saved, &saving, &err), &err);
    assert_int_equal(saving.n_saved, 24);
    assert_same(whole, resumed);
    moe_map_free(whole);
    moe_map_free(resumed);
}

static void a_failed_save_stops_it(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *map = new_map();
    uint32_t n_tried = 0;
    ask_for_some(map);
    assert_fails(measure(b, map, 0, 1, refuse_to_save, &n_tried, &err), MOE_ERR_IO, "no space",
                 &err);
    assert_int_equal(n_tried, 1);
    moe_map_free(map);
}

/* What the progress bar shows: it rises to its end. */
struct shown {
    uint64_t done, total;
    bool rising;
};

static void show(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    struct shown *s = ctx;
    if (strcmp(what, "importance") != 0)
        return;
    s->rising = s->rising && done >= s->done && done <= total && (!s->total || total == s->total);
    s->done = done;
    s->total = total;
}

static void progress_ends_where_it_said(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *map = new_map();
    struct shown shown = {.rising = true};
    ask_for_some(map);
    b->progress.report = show;
    b->progress.ctx = &shown;
    assert_ok(measure(b, map, 0, 1, NULL, NULL, &err), &err);
    b->progress.report = NULL;
    assert_true(shown.rising);
    assert_true(shown.total > 0);
    assert_true(shown.total - shown.done <= 1); /* rounded down */
    moe_map_free(map);
}

static void what_does_not_belong_together_is_refused(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *map = new_map();
    struct moe_importance_options options = {.upper = UPPER, .lower = LOWER, .n_shards = 0};
    assert_fails(moe_importance_exact(map, b->rerun, &b->base, &options, &err), MOE_ERR_USAGE,
                 "shard", &err);
    options.n_shards = 1;
    options.lower = 2;
    assert_fails(moe_importance_exact(map, b->rerun, &b->base, &options, &err), MOE_ERR_USAGE,
                 "2 variants", &err);
    options.lower = LOWER;
    map->importances.there = true;
    assert_fails(moe_importance_exact(map, b->rerun, &b->base, &options, &err), MOE_ERR_USAGE,
                 "estimated", &err);
    map->importances.exact = true;
    map->importances.lower = UPPER;
    assert_fails(moe_importance_exact(map, b->rerun, &b->base, &options, &err), MOE_ERR_USAGE,
                 "measured", &err);
    struct moe_quality other = b->base;
    other.best = NULL;
    map->importances.there = false;
    assert_fails(moe_importance_exact(map, b->rerun, &other, &options, &err), MOE_ERR_USAGE,
                 "reference", &err);
    map->n_experts = 8;
    assert_fails(moe_importance_proxy(map, b->rerun, &b->base, &options, &err), MOE_ERR_USAGE,
                 "8 experts", &err);
    map->n_experts = N_EXPERTS;
    moe_map_free(map);
}

/* ---- Estimating ---- */

/* What a layer's pass showed of each activation. */
struct seen {
    struct bench *bench;
    uint32_t n_rows;
    uint32_t *chosen; /* [rows][TOP_K] */
    float *weights;   /* [rows][TOP_K] */
    float *outputs;   /* [rows][TOP_K][hidden] */
    double *stream;   /* [rows] its square */
};

static void see_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                       const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                       uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct seen *s = ctx;
    s->n_rows = n_rows;
    s->chosen = calloc(n_rows * TOP_K, sizeof *s->chosen);
    s->weights = calloc(n_rows * TOP_K, sizeof *s->weights);
    memcpy(s->chosen, chosen, n_rows * TOP_K * sizeof *chosen);
    memcpy(s->weights, weights, n_rows * TOP_K * sizeof *weights);
}

static void see_computed(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                         uint64_t stride, const uint32_t *slots)
{
    struct seen *s = ctx;
    const struct moe_session *session = moe_rerun_session(s->bench->rerun);
    uint32_t hidden = session->model->config.hidden;
    s->outputs = calloc((uint64_t)n_rows * TOP_K * hidden, sizeof *s->outputs);
    s->stream = calloc(n_rows, sizeof *s->stream);
    for (uint32_t i = 0; i < n_rows * TOP_K; i++)
        memcpy(s->outputs + (uint64_t)i * hidden, outputs + slots[i] * stride,
               hidden * sizeof *outputs);
    for (uint32_t i = 0; i < n_rows; i++)
        for (uint32_t k = 0; k < hidden; k++) {
            double h = session->states.h[i * session->states.stride + k];
            s->stream[i] += h * h;
        }
}

/* The first layer under the rule, all documents in one pass. */
static struct seen see_first_layer(struct bench *b)
{
    struct moe_err err = {0};
    struct seen seen = {.bench = b};
    struct moe_observer *observer = &moe_rerun_session(b->rerun)->observer;
    *observer = (struct moe_observer){.ctx = &seen, .routed = see_routed, .computed = see_computed};
    moe_rerun_rewind(b->rerun);
    assert_ok(moe_rerun_look(b->rerun, &b->rule, NULL, &err), &err);
    *observer = (struct moe_observer){0};
    assert_int_equal(seen.n_rows, b->corpus->n_predicted);
    return seen;
}

static void release_seen(struct seen *s)
{
    free(s->chosen);
    free(s->weights);
    free(s->outputs);
    free(s->stream);
}

/* Errors of the first layer's experts, from two passes. */
static void first_layer_errors(struct bench *b, double errors[N_EXPERTS])
{
    struct seen upper = see_first_layer(b);
    memset(b->table, LOWER, N_EXPERTS);
    struct seen lower = see_first_layer(b);
    memset(b->table, UPPER, N_EXPERTS);
    uint32_t hidden = b->model->config.hidden;
    memset(errors, 0, N_EXPERTS * sizeof *errors);
    for (uint32_t i = 0; i < upper.n_rows * TOP_K; i++) {
        double sum = 0;
        for (uint32_t k = 0; k < hidden; k++) {
            double d = (double)upper.weights[i] * ((double)upper.outputs[i * hidden + k] -
                                                   (double)lower.outputs[i * hidden + k]);
            sum += d * d;
        }
        errors[upper.chosen[i]] += sum / upper.stream[i / TOP_K];
    }
    release_seen(&upper);
    release_seen(&lower);
}

/* Nats of all experts together at the lower precision, over those at the upper one. */
static double whole_loss(struct bench *b)
{
    struct moe_err err = {0};
    struct moe_quality q;
    double loss = 0;
    memset(b->table, LOWER, sizeof b->table);
    assert_ok(moe_quality_measure(&q, b->rerun, &b->rule, &b->base, &err), &err);
    memset(b->table, UPPER, sizeof b->table);
    for (uint32_t d = 0; d < b->corpus->n_documents; d++)
        loss += q.nats[d] - b->base.nats[d];
    moe_quality_release(&q);
    return loss;
}

static void estimates_share_the_loss_out(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *map = new_map();
    const struct moe_importances *x = &map->importances;
    const struct moe_importance_options options = {.upper = UPPER, .lower = LOWER, .n_shards = 1};
    double shared = 0, first_layer = 0, errors[N_EXPERTS], sum = 0;
    assert_ok(moe_importance_proxy(map, b->rerun, &b->base, &options, &err), &err);
    assert_true(x->there && !x->exact);
    for (uint32_t i = 0; i < N_LAYERS * N_EXPERTS; i++) {
        assert_int_equal(x->known[i], 1);
        assert_int_equal(x->visited[i] == 0, x->nats[i] == 0);
        assert_true(x->nats[i] >= 0);
        shared += x->nats[i];
    }
    assert_true(fabs(shared - fabs(whole_loss(b))) < 1e-9 * shared);
    first_layer_errors(b, errors);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        sum += errors[e];
        first_layer += x->nats[e];
    }
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        assert_true(fabs(x->nats[e] / first_layer - errors[e] / sum) < 1e-9);
    moe_map_free(map);
}

static void estimates_do_not_depend_on_threads_or_rows(void **state)
{
    struct bench *b = *state;
    struct moe_err err = {0};
    struct moe_map *one = new_map(), *two = new_map();
    const struct moe_importance_options options = {.upper = UPPER, .lower = LOWER, .n_shards = 1};
    int before = moe_par_threads();
    for (int n = 1; n <= 2; n++) {
        close_rerun(b);
        moe_par_set_threads(n);
        open_rerun(b, n == 1 ? 0 : 1);
        assert_ok(moe_importance_proxy(n == 1 ? one : two, b->rerun, &b->base, &options, &err),
                  &err);
    }
    assert_same(one, two);
    close_rerun(b);
    moe_par_set_threads(before);
    open_rerun(b, 0);
    moe_map_free(one);
    moe_map_free(two);
}

int main(void)
{
    const struct CMUnitTest measured[] = {
        cmocka_unit_test(exact_is_what_the_naive_way_measures),
        cmocka_unit_test(digits_do_not_depend_on_threads_or_rows),
        cmocka_unit_test(shards_make_the_whole),
        cmocka_unit_test(what_is_known_survives_an_interruption),
        cmocka_unit_test(a_failed_save_stops_it),
        cmocka_unit_test(progress_ends_where_it_said),
        cmocka_unit_test(what_does_not_belong_together_is_refused),
        cmocka_unit_test(estimates_share_the_loss_out),
        cmocka_unit_test(estimates_do_not_depend_on_threads_or_rows),
    };
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    return cmocka_run_group_tests(measured, bench_open, bench_close);
}
