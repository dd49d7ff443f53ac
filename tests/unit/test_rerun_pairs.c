/*
 * Re-runs of pairs, on random models with an encoder: from every layer of both stacks, whatever
 * stands in a pass beside it, a target's nats are those of the pair alone, bit for bit; and what
 * that measures of experts.
 */
#include "base/par.h"
#include "infer/forward.h"
#include "kern/kern.h"
#include "tune/answers.h"
#include "tune/importance.h"

#include "random_model.h"

enum { N_MODELS = 12, N_PAIRS = 7, LONGEST = 14, UPPER = 0, LOWER = 1 };

static char pack[64];

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(pack, sizeof pack, "/tmp/moe-rerun-pairs-%d.moe", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    unlink(pack);
    return 0;
}

/* ---- A model and its pairs ---- */

struct bench {
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session; /* for a pair alone */
    struct moe_scores scores;
    struct moe_assigner assigner;
    struct moe_corpus corpus;
    uint64_t first[N_PAIRS + 1];
    struct moe_corpus_pair pairs[N_PAIRS + 1];
    uint32_t ids[N_PAIRS * LONGEST], source_ids[N_PAIRS * LONGEST];
    /* The rule: experts of layers from `from` on at the tag's variant, the others at the upper. */
    uint32_t from, tag;
    uint8_t *seen; /* [n_layers][n_experts] by the pair that ran alone */
};

static void assign_tag(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                       const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct bench *b = ctx;
    memset(variants, layer >= b->from ? (int)job->tag : UPPER,
           (uint64_t)n_rows * b->model->config.top_k);
}

static void assign_alone(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                         const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    struct bench *b = ctx;
    const struct moe_config *c = &b->model->config;
    for (uint32_t i = 0; i < n_rows * c->top_k; i++) {
        variants[i] = (uint8_t)(layer >= b->from ? b->tag : UPPER);
        b->seen[layer * c->n_experts + chosen[i]] = 1;
    }
}

/* Lengths fall, then rise: passes of few rows take some of them together. */
static void draw_pairs(struct bench *b, uint64_t random)
{
    struct moe_corpus *c = &b->corpus;
    const struct moe_config *config = &b->model->config;
    *c = (struct moe_corpus){.n_documents = N_PAIRS,
                             .first = b->first,
                             .ids = b->ids,
                             .pairs = b->pairs,
                             .source_ids = b->source_ids};
    for (uint32_t d = 0; d < N_PAIRS; d++) {
        uint32_t n = 2 + random_below(&random, LONGEST - 1),
                 n_source = 1 + random_below(&random, LONGEST);
        for (uint32_t i = 0; i < n; i++)
            b->ids[c->n_tokens++] =
                i ? random_below(&random, config->vocab) : config->decoder_start;
        for (uint32_t i = 0; i < n_source; i++)
            b->source_ids[c->n_source_tokens++] = random_below(&random, config->vocab);
        b->first[d + 1] = c->n_tokens;
        b->pairs[d + 1].source = c->n_source_tokens;
        c->longest = n > c->longest ? n : c->longest;
        c->longest_source = n_source > c->longest_source ? n_source : c->longest_source;
    }
    c->n_predicted = c->n_tokens - N_PAIRS;
}

static void open_bench(struct bench *b, uint64_t seed)
{
    struct moe_err err = {0};
    const struct moe_session_options options = {
        .context = LONGEST, .source_context = LONGEST, .batch = LONGEST, .n_variants = 2};
    *b = (struct bench){.tag = UPPER};
    assert_ok(moe_model_open(&b->model, pack, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_every(&b->experts, b->model->pack, 0, NULL, &err), &err);
    assert_ok(moe_session_open(&b->session, b->model, b->experts, &options, &err), &err);
    assert_ok(moe_scores_open(&b->scores, b->session, &err), &err);
    b->assigner = (struct moe_assigner){b, assign_alone};
    b->session->assigner = &b->assigner;
    b->seen = calloc(b->model->config.n_layers, b->model->config.n_experts);
    assert_non_null(b->seen);
    draw_pairs(b, seed + 500);
}

static void close_bench(struct bench *b)
{
    moe_scores_close(&b->scores);
    moe_session_close(b->session);
    moe_experts_close(b->experts);
    moe_model_close(b->model);
    free(b->seen);
}

static struct moe_rerun *open_rerun(struct bench *b, uint32_t rows)
{
    struct moe_err err = {0};
    struct moe_rerun *r;
    const struct moe_rerun_options options = {.rows = rows, .keeps_states = true, .n_variants = 2};
    assert_ok(moe_rerun_open(&r, b->model, b->experts, &b->corpus, &options, &err), &err);
    return r;
}

/* One pair in a session of its own: nats and likeliest tokens of its target. */
static void run_alone(struct bench *b, uint32_t document, double *nats, uint32_t *best)
{
    struct moe_err err = {0};
    const struct moe_config *c = &b->model->config;
    struct moe_row rows[LONGEST];
    uint32_t n_source = c->n_encoder ? moe_corpus_source(&b->corpus, document) : 0,
             n = moe_corpus_length(&b->corpus, document) - 1;
    const uint32_t *ids = b->ids + b->first[document];
    memset(b->seen, 0, c->n_layers * c->n_experts);
    for (uint32_t i = 0; i < n_source; i++)
        rows[i] = (struct moe_row){0, i, b->source_ids[b->pairs[document].source + i], n_source};
    if (n_source)
        assert_ok(moe_encode(b->session, rows, n_source, NULL, &err), &err);
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, i, ids[i], 0};
    assert_ok(
        moe_forward(b->session, MOE_PREFILL, rows, n, c->n_encoder, c->n_layers, NULL, NULL, &err),
        &err);
    assert_ok(moe_score_rows(&b->scores, 0, n, ids + 1, nats, best, &err), &err);
}

/* ---- The same nats ---- */

static void compare_with_alone(void *ctx, const struct moe_job *job, const double *nats,
                               const uint32_t *best, uint32_t n)
{
    struct bench *b = ctx;
    double alone[LONGEST];
    uint32_t best_alone[LONGEST];
    b->tag = job->tag;
    run_alone(b, job->document, alone, best_alone);
    assert_int_equal(n, moe_corpus_length(&b->corpus, job->document) - 1);
    assert_memory_equal(nats, alone, n * sizeof *nats);
    assert_memory_equal(best, best_alone, n * sizeof *best);
}

/* Who visits the layer's experts is what each pair's own run said. */
static void check_visited(struct bench *b, uint32_t layer, const uint8_t *visited)
{
    double nats[LONGEST];
    uint32_t best[LONGEST], n = b->model->config.n_experts;
    b->tag = UPPER;
    for (uint32_t d = 0; d < N_PAIRS; d++) {
        run_alone(b, d, nats, best);
        assert_memory_equal(visited + d * n, b->seen + layer * n, n);
    }
}

static void check_from_every_layer(struct bench *b, uint32_t rows)
{
    /* Each pair under both tags, some twice, in an order that no pass keeps. */
    static const struct moe_job jobs[] = {{3, 0}, {3, 1}, {0, 1}, {6, 1}, {1, 0}, {5, 1},
                                          {2, 1}, {4, 0}, {4, 1}, {3, 1}, {0, 0}, {6, 0}};
    struct moe_err err = {0};
    struct moe_rerun *r = open_rerun(b, rows);
    const struct moe_config *c = &b->model->config;
    const struct moe_rule rule = {b, assign_tag};
    const struct moe_sink sink = {b, compare_with_alone};
    uint8_t visited[N_PAIRS * RANDOM_MAX_EXPERTS];
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        b->from = layer;
        assert_int_equal(moe_rerun_layer(r), layer);
        assert_ok(moe_rerun_jobs(r, layer, jobs, N_ITEMS(jobs), &rule, &sink, &err), &err);
        if (layer % 2) /* what the whole model overwrites is made anew */
            assert_ok(moe_rerun_jobs(r, 0, jobs, 3, &rule, &sink, &err), &err);
        assert_ok(moe_rerun_jobs(r, layer, jobs + 2, 4, &rule, &sink, &err), &err);
        assert_ok(moe_rerun_look(r, &rule, visited, &err), &err);
        check_visited(b, layer, visited);
        moe_rerun_step(r);
    }
    moe_rerun_rewind(r);
    b->from = 0;
    assert_ok(moe_rerun_all(r, LOWER, &rule, &sink, &err), &err);
    moe_rerun_close(r);
}

static void nats_are_those_of_the_pair_alone(void **state)
{
    static const struct random_variant variants[] = {{"8", 8, 0}, {"4", 4, 0}};
    uint32_t n_changed = 0;
    for (uint64_t seed = 0; seed < N_MODELS; seed++) {
        struct random_model m;
        struct bench b;
        double nats[2][LONGEST];
        uint32_t best[LONGEST];
        random_stacks_draw(&m, seed);
        random_model_write_variants(&m, &m.c, 8, variants, 2, pack);
        open_bench(&b, seed);
        for (b.tag = UPPER; b.tag <= LOWER; b.tag++)
            run_alone(&b, 0, nats[b.tag], best);
        n_changed += nats[0][0] != nats[1][0];
        check_from_every_layer(&b, seed % 2 ? 1 : 0);
        close_bench(&b);
        random_model_free(&m);
    }
    assert_true(n_changed > N_MODELS / 2); /* variants differ where there are experts */
}

/* Texts of a prefix LM that are scored have no prompt: a row sees what stands before it. */
static void prefix_models_see_no_prompt(void **state)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        struct random_model m;
        struct bench b;
        random_prefix_draw(&m, seed);
        random_model_write(&m, 8, pack);
        open_bench(&b, seed);
        b.corpus.pairs = NULL;
        b.corpus.n_source_tokens = b.corpus.longest_source = 0;
        b.from = UINT32_MAX;
        struct moe_err err = {0};
        struct moe_rerun *r = open_rerun(&b, 0);
        const struct moe_rule rule = {&b, assign_tag};
        const struct moe_sink sink = {&b, compare_with_alone};
        assert_ok(moe_rerun_all(r, UPPER, &rule, &sink, &err), &err);
        moe_rerun_close(r);
        close_bench(&b);
        random_model_free(&m);
    }
}

/* A corpus of texts, or a model without an encoder. */
static void pairs_and_models_belong_together(void **state)
{
    struct random_model m;
    struct moe_err err = {0};
    struct bench b;
    struct moe_rerun *r;
    const struct moe_rerun_options options = {.n_variants = 2};
    random_stacks_draw(&m, 1);
    random_model_write(&m, 8, pack);
    open_bench(&b, 1);
    b.corpus.pairs = NULL;
    assert_fails(moe_rerun_open(&r, b.model, b.experts, &b.corpus, &options, &err), MOE_ERR_USAGE,
                 "takes pairs", &err);
    close_bench(&b);
    random_model_free(&m);
}

/* States are kept of sources and targets, before and after a layer. */
static void bytes_count_the_sources(void **state)
{
    struct random_model m;
    struct bench b;
    struct moe_rerun_options options = {.rows = 64, .n_variants = 2};
    random_stacks_draw(&m, 2);
    random_model_write(&m, 8, pack);
    open_bench(&b, 2);
    const struct moe_config *c = &b.model->config;
    uint64_t without = moe_rerun_bytes(c, &b.corpus, &options), more;
    options.keeps_states = true;
    more = moe_rerun_bytes(c, &b.corpus, &options) - without;
    uint64_t states = (b.corpus.n_predicted + b.corpus.n_source_tokens + 64) * c->hidden;
    /* Each array is rounded up, and has a red zone in sanitized builds. */
    assert_in_range(more, 2 * states * sizeof(float), 2 * states * sizeof(float) + 12 * 64);
    /* Longer sources take room in the session, too. */
    b.corpus.longest_source += 40;
    options.keeps_states = false;
    options.rows = LONGEST + 60;
    uint64_t longer = moe_rerun_bytes(c, &b.corpus, &options);
    b.corpus.longest_source -= 40;
    options.rows = 0;
    assert_true(longer > 0 && moe_rerun_bytes(c, &b.corpus, &options) > 0);
    close_bench(&b);
    random_model_free(&m);
}

/* ---- Importance ---- */

/* The model with a lower variant that is the upper one but for one expert, whose output is turned
 * round and made larger. */
static void write_with_a_bad_expert(struct random_model *m, uint32_t layer, uint32_t expert)
{
    struct moe_err err = {0};
    static const struct random_variant v[] = {{"8", 8, 0}, {"bad", 8, 0}};
    struct moe_pack_variant variants[] = {{.name = "8", .method = "rtn"},
                                          {.name = "bad", .method = "rtn"}};
    struct moe_buf description = {0};
    struct moe_pack_writer *w = NULL;
    uint64_t n = (uint64_t)m->c.hidden * m->c.expert_ff;
    moe_config_write(&m->c, &description);
    assert_ok(moe_pack_create(&w, pack, m->c.n_layers, m->c.n_experts, variants, 2, 1, 0, &err),
              &err);
    assert_ok(moe_pack_put_section(w, MOE_PACK_MODEL, description.data, description.size, &err),
              &err);
    random_put_tokenizer(w, &err);
    random_put_dense(m, w, random_layout(8));
    random_put_experts(m, w, &v[0], 0);
    for (uint64_t i = 0; i < n; i++)
        m->expert[layer][expert][MOE_E_DOWN][i] *= -60;
    random_put_experts(m, w, &v[1], 1);
    for (uint64_t i = 0; i < n; i++)
        m->expert[layer][expert][MOE_E_DOWN][i] /= -60;
    assert_ok(moe_pack_commit(w, &err), &err);
    moe_buf_release(&description);
}

/* Targets become what the model says itself: whatever changes it costs something. */
static void make_targets_likely(struct bench *b)
{
    double nats[LONGEST];
    uint32_t best[LONGEST];
    for (uint32_t d = 0; d < N_PAIRS; d++)
        for (uint32_t i = 1; i < moe_corpus_length(&b->corpus, d); i++) {
            run_alone(b, d, nats, best);
            b->ids[b->first[d] + i] = best[i - 1];
        }
}

/* The layer's expert that most rows of the pairs choose. */
static uint32_t busiest(struct bench *b, uint32_t layer)
{
    uint32_t n[RANDOM_MAX_EXPERTS] = {0}, most = 0;
    double nats[LONGEST];
    uint32_t best[LONGEST];
    for (uint32_t d = 0; d < N_PAIRS; d++) {
        run_alone(b, d, nats, best);
        for (uint32_t e = 0; e < b->model->config.n_experts; e++)
            n[e] += b->seen[layer * b->model->config.n_experts + e];
    }
    for (uint32_t e = 0; e < b->model->config.n_experts; e++)
        most = n[e] > n[most] ? e : most;
    return most;
}

/* Importances of all experts; whether the bad one leads: of all others nothing differs. */
static bool bad_one_leads(struct bench *b, uint32_t layer, uint32_t bad)
{
    struct moe_err err = {0};
    const struct moe_config *c = &b->model->config;
    struct moe_map *map;
    struct moe_quality base;
    uint8_t table[RANDOM_MAX_LAYERS * RANDOM_MAX_EXPERTS] = {0};
    struct moe_rule_table at = {table, c->n_experts, c->top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    const struct moe_importance_options options = {.upper = UPPER, .lower = LOWER, .n_shards = 1};
    struct moe_rerun *r = open_rerun(b, 0);
    uint32_t n = c->n_moe_layers * c->n_experts;
    uint32_t first = c->layers[layer].moe_index * c->n_experts;
    assert_ok(moe_map_new(&map, n / c->n_experts, c->n_experts, c->top_k, &err), &err);
    for (uint32_t l = 0, i = 0; l < c->n_layers; l++)
        if (c->layers[l].moe)
            map->model_layer[i++] = l;
    assert_ok(moe_quality_measure(&base, r, &rule, NULL, &err), &err);
    assert_ok(moe_importance_exact(map, r, &base, &options, &err), &err);
    for (uint32_t e = 0; e < n; e++) { /* the others are the same in both variants */
        assert_int_equal(map->importances.known[e], 1);
        assert_int_equal(map->importances.nats[e] != 0, e == first + bad);
    }
    /* As the whole model measures it. */
    struct moe_quality low;
    double sum = 0;
    table[layer * c->n_experts + bad] = LOWER;
    assert_ok(moe_quality_measure(&low, r, &rule, &base, &err), &err);
    for (uint32_t d = 0; d < N_PAIRS; d++)
        sum += low.nats[d] - base.nats[d];
    assert_true(map->importances.nats[first + bad] == sum);
    /* Estimates name it as well. */
    struct moe_map *estimated;
    assert_ok(moe_map_new(&estimated, n / c->n_experts, c->n_experts, c->top_k, &err), &err);
    memcpy(estimated->model_layer, map->model_layer,
           map->n_layers * sizeof *estimated->model_layer);
    assert_ok(moe_importance_proxy(estimated, r, &base, &options, &err), &err);
    for (uint32_t e = 0; e < n; e++)
        assert_int_equal(estimated->importances.nats[e] > 0, e == first + bad);
    moe_map_free(estimated);
    moe_map_free(map);
    moe_quality_release(&base);
    moe_quality_release(&low);
    moe_rerun_close(r);
    return sum > 0;
}

static void a_bad_expert_of_either_stack_leads(void **state)
{
    uint32_t n_encoder = 0, n_decoder = 0, n_leads = 0;
    for (uint64_t seed = 0; seed < N_MODELS / 2; seed++) {
        struct random_model m;
        random_stacks_draw(&m, seed);
        for (uint32_t layer = 0; layer < m.c.n_layers; layer++) {
            struct bench b;
            uint32_t bad;
            if (!m.c.layers[layer].moe)
                continue;
            write_with_a_bad_expert(&m, layer, 0);
            open_bench(&b, seed);
            bad = busiest(&b, layer);
            close_bench(&b);
            write_with_a_bad_expert(&m, layer, bad);
            open_bench(&b, seed);
            make_targets_likely(&b);
            n_leads += bad_one_leads(&b, layer, bad);
            close_bench(&b);
            n_encoder += layer < m.c.n_encoder;
            n_decoder += layer >= m.c.n_encoder;
        }
        random_model_free(&m);
    }
    assert_true(n_encoder > 4 && n_decoder > 4);
    assert_true(n_leads + 1 >= n_encoder + n_decoder); /* noise may be of use once */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nats_are_those_of_the_pair_alone),
        cmocka_unit_test(prefix_models_see_no_prompt),
        cmocka_unit_test(pairs_and_models_belong_together),
        cmocka_unit_test(bytes_count_the_sources),
        cmocka_unit_test(a_bad_expert_of_either_stack_leads),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
