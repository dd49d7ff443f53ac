/*
 * Re-runs: whatever is batched, tagged, begun at a layer or read from disk, a document's nats are
 * those of the plain forward pass, bit for bit.
 */
#include "base/cpu.h"
#include "tune/perplexity.h"
#include "tune/quality.h"

#include "model_fixture.h"

enum { UPPER = 0, LOWER = 1, MAX_DOCUMENTS = 8 };

static struct {
    char path[128], text[128];
    struct moe_model *model;
    struct moe_experts *every;
    struct moe_corpus *corpus;
} f;

/* The first documents of a bundled text, so that tests stay short. */
static void write_text(void)
{
    FILE *in = fopen("tests/data/math.calib.txt", "r"), *out;
    char line[4096];
    snprintf(f.text, sizeof f.text, "/tmp/moe-test-rerun-%d.txt", (int)getpid());
    out = fopen(f.text, "w");
    assert_non_null(in);
    assert_non_null(out);
    for (int n = 0; n < MAX_DOCUMENTS && fgets(line, sizeof line, in);) {
        n += strcmp(line, "<|endoftext|>\n") == 0;
        fputs(line, out);
    }
    fclose(in);
    fclose(out);
}

static int setup_with(const char *checkpoint)
{
    struct moe_err err;
    snprintf(f.path, sizeof f.path, "/tmp/moe-test-rerun-%d.moe", (int)getpid());
    const struct moe_convert_options options = pack_options("4,2", 8);
    write_text();
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    make_pack(f.path, checkpoint, &options);
    assert_ok(moe_model_open(&f.model, f.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_every(&f.every, f.model->pack, 0, NULL, &err), &err);
    const char *paths[] = {f.text};
    const struct moe_documents documents = {
        .tokenizer = f.model->tokenizer, .max_tokens = 200, .max_windows = 1};
    assert_ok(moe_corpus_read(&f.corpus, &documents, paths, 1, &err), &err);
    assert_int_equal(f.corpus->n_documents, MAX_DOCUMENTS);
    return 0;
}

static int setup(void **state)
{
    return setup_with(TINY_MOE);
}

/* Rows see positions that a layer before theirs has chosen. */
static int setup_sharing(void **state)
{
    return setup_with(DRAWN "/glm5-b");
}

/* Routers add what the router before made. */
static int setup_routers(void **state)
{
    return setup_with(DRAWN "/zaya-a");
}

static int teardown(void **state)
{
    moe_corpus_free(f.corpus);
    moe_experts_close(f.every);
    moe_model_close(f.model);
    unlink(f.path);
    unlink(f.text);
    return 0;
}

/* ---- Naive: one document after the other through a plain session ---- */

struct tokens {
    double nats[4096], divergences[4096];
    uint32_t best[4096], n;
};

static void note_token(void *ctx, double nats, uint32_t best, double divergence)
{
    struct tokens *t = ctx;
    t->nats[t->n] = nats;
    t->divergences[t->n] = divergence;
    t->best[t->n++] = best;
}

/* Writes what is predicted into `logits`, or compares it with `against`; NULL: neither. */
static struct moe_perplexity run_with(uint32_t variant, const char *logits, const char *against,
                                      struct tokens *out)
{
    struct moe_err err;
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_perplexity p;
    const struct moe_session_options options = {.context = 256};
    const struct moe_perplexity_options how = {.max_doc_tokens = 200,
                                               .max_windows = 1,
                                               .logits = logits,
                                               .against = against,
                                               .token = note_token,
                                               .ctx = out};
    out->n = 0;
    assert_ok(moe_experts_open_resident(&experts, f.model->pack, variant, NULL, NULL, &err), &err);
    assert_ok(moe_session_open(&session, f.model, experts, &options, &err), &err);
    assert_ok(moe_perplexity(session, f.text, &how, &p, &err), &err);
    moe_session_close(session);
    moe_experts_close(experts);
    return p;
}

static void run_plainly(uint32_t variant, struct tokens *out)
{
    run_with(variant, NULL, NULL, out);
}

/* A sink that keeps every job's tokens, in the order of the jobs. */
static void keep_tokens(void *ctx, const struct moe_job *job, const double *nats,
                        const uint32_t *best, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        note_token(ctx, nats[i], best[i], 0);
}

static void assert_same(const struct tokens *a, uint32_t from_a, const struct tokens *b,
                        uint32_t from_b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_true(a->nats[from_a + i] == b->nats[from_b + i]);
        assert_int_equal(a->best[from_a + i], b->best[from_b + i]);
    }
}

static struct moe_rerun *open_rerun(struct moe_experts *experts, uint32_t rows)
{
    struct moe_err err;
    struct moe_rerun *r;
    const struct moe_rerun_options options = {.rows = rows, .keeps_states = true, .n_variants = 2};
    assert_ok(moe_rerun_open(&r, f.model, experts, f.corpus, &options, &err), &err);
    return r;
}

/* ---- Rules ---- */

/* All at the variant that the tag names. */
static void assign_tag(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                       const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    memset(variants, (int)job->tag, (uint64_t)n_rows * f.model->config.top_k);
}
static const struct moe_rule by_tag = {NULL, assign_tag};

/* In layers from `ctx` on all at the tag's variant, before that at the best. */
static void assign_tag_from(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                            const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    uint32_t from = *(const uint32_t *)ctx;
    memset(variants, layer >= from ? (int)job->tag : UPPER,
           (uint64_t)n_rows * f.model->config.top_k);
}

/* Only each token's best expert is computed. */
static void assign_best_only(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                             const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    uint32_t k = f.model->config.top_k;
    for (uint64_t i = 0; i < (uint64_t)n_rows * k; i++)
        variants[i] = i % k == 0 ? UPPER : MOE_LEFT_OUT;
}

/* ---- Tests ---- */

static void test_plain(void **state)
{
    static struct tokens plain[2], seen;
    struct moe_err err;
    for (uint32_t v = 0; v < 2; v++)
        run_plainly(v, &plain[v]);
    assert_int_equal(plain[0].n, f.corpus->n_predicted);
    assert_true(memcmp(plain[0].nats, plain[1].nats, plain[0].n * sizeof *plain[0].nats) != 0);
    static const uint32_t sizes[] = {0, 200, 333};
    for (size_t i = 0; i < N_ITEMS(sizes); i++) {
        struct moe_rerun *r = open_rerun(f.every, sizes[i]);
        for (uint32_t v = 0; v < 2; v++) {
            const struct moe_sink sink = {&seen, keep_tokens};
            seen.n = 0;
            assert_ok(moe_rerun_all(r, v, &by_tag, &sink, &err), &err);
            assert_int_equal(seen.n, plain[v].n);
            assert_same(&seen, 0, &plain[v], 0, seen.n);
        }
        moe_rerun_close(r);
    }
}

/* Jobs of both tags side by side in a pass. */
static void test_tags_side_by_side(void **state)
{
    static struct tokens plain[2], seen;
    struct moe_job jobs[2 * MAX_DOCUMENTS];
    struct moe_err err;
    for (uint32_t v = 0; v < 2; v++)
        run_plainly(v, &plain[v]);
    for (uint32_t i = 0; i < 2 * MAX_DOCUMENTS; i++)
        jobs[i] = (struct moe_job){i / 2, i % 2};
    struct moe_rerun *r = open_rerun(f.every, 900);
    const struct moe_sink sink = {&seen, keep_tokens};
    seen.n = 0;
    assert_ok(moe_rerun_jobs(r, 0, jobs, N_ITEMS(jobs), &by_tag, &sink, &err), &err);
    for (uint32_t i = 0, at = 0; i < N_ITEMS(jobs); i++) {
        uint32_t n = moe_corpus_length(f.corpus, jobs[i].document) - 1;
        assert_same(&seen, at, &plain[jobs[i].tag],
                    (uint32_t)moe_corpus_prediction(f.corpus, jobs[i].document), n);
        at += n;
    }
    moe_rerun_close(r);
}

/* From a layer on, from kept states: as the whole model with that rule. */
static void test_from_a_layer(void **state)
{
    static struct tokens whole, part;
    struct moe_err err;
    uint32_t from = 0, n_layers = f.model->config.n_layers;
    uint8_t *visited = calloc(MAX_DOCUMENTS, f.model->config.n_experts);
    const struct moe_rule rule = {&from, assign_tag_from};
    struct moe_rerun *r = open_rerun(f.every, 500);
    assert_non_null(visited);
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        from = layer;
        if (layer % 4 == 3 || layer == 0 || layer + 1 == n_layers || n_layers < 8) {
            const struct moe_sink to_whole = {&whole, keep_tokens}, to_part = {&part, keep_tokens};
            whole.n = part.n = 0;
            assert_ok(moe_rerun_all(r, LOWER, &rule, &to_whole, &err), &err);
            struct moe_job jobs[2] = {{1, LOWER}, {6, LOWER}};
            assert_ok(moe_rerun_jobs(r, layer, jobs, 2, &rule, &to_part, &err), &err);
            uint32_t n = moe_corpus_length(f.corpus, 1) - 1;
            assert_same(&part, 0, &whole, (uint32_t)moe_corpus_prediction(f.corpus, 1), n);
            assert_same(&part, n, &whole, (uint32_t)moe_corpus_prediction(f.corpus, 6),
                        moe_corpus_length(f.corpus, 6) - 1);
        }
        /* Tag 0 keeps the best everywhere: the states are those of the upper precision. */
        assert_ok(moe_rerun_look(r, &rule, visited, &err), &err);
        for (uint32_t d = 0; d < MAX_DOCUMENTS; d++) {
            uint32_t n = 0;
            for (uint32_t e = 0; e < f.model->config.n_experts; e++)
                n += visited[d * f.model->config.n_experts + e];
            assert_in_range(n, f.model->layers[layer].is_moe ? f.model->config.top_k : 0,
                            f.model->layers[layer].is_moe ? f.model->config.n_experts : 0);
        }
        assert_int_equal(moe_rerun_layer(r), layer);
        moe_rerun_step(r);
        assert_int_equal(moe_rerun_layer(r), layer + 1);
    }
    const struct moe_job job = {0, 0};
    moe_rerun_rewind(r);
    assert_fails(moe_rerun_jobs(r, 3, &job, 1, &rule, NULL, &err), MOE_ERR_USAGE, "layer", &err);
    moe_rerun_close(r);
    free(visited);
}

/* Layers that do not fit are read when they are asked for, with the same results. */
static void test_little_memory(void **state)
{
    static struct tokens plain, seen;
    struct moe_err err;
    struct moe_experts *experts;
    uint64_t least, all;
    moe_experts_every_bytes(f.model->pack, &least, &all);
    assert_true(least < all / 4);
    assert_fails(moe_experts_open_every(&experts, f.model->pack, least - 1, NULL, &err),
                 MOE_ERR_LIMIT, "one layer's experts", &err);
    run_plainly(LOWER, &plain);
    const uint64_t sizes[] = {least, 3 * least + least / 2};
    for (size_t i = 0; i < N_ITEMS(sizes); i++) {
        assert_ok(moe_experts_open_every(&experts, f.model->pack, sizes[i], NULL, &err), &err);
        assert_true(experts->resident_bytes <= sizes[i]);
        struct moe_rerun *r = open_rerun(experts, 400);
        const struct moe_sink sink = {&seen, keep_tokens};
        seen.n = 0;
        assert_ok(moe_rerun_all(r, LOWER, &by_tag, &sink, &err), &err);
        assert_same(&seen, 0, &plain, 0, plain.n);
        assert_true(moe_rerun_session(r)->stats.prefill.bytes_read > 0);
        moe_rerun_close(r);
        moe_experts_close(experts);
    }
}

/* What is left out gives zeros, the rest what it gave before. */
struct outputs {
    float *values; /* [activations][hidden] of layer 0, in the order of the router */
    uint64_t n;
};

static void keep_outputs(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                         uint64_t stride, const uint32_t *slots)
{
    struct outputs *o = ctx;
    uint64_t hidden = f.model->config.hidden, pairs = (uint64_t)n_rows * f.model->config.top_k;
    for (uint64_t i = 0; layer == 0 && i < pairs; i++, o->n++)
        memcpy(o->values + o->n * hidden, outputs + slots[i] * stride, hidden * sizeof(float));
}

static void test_left_out(void **state)
{
    struct moe_err err;
    uint64_t hidden = f.model->config.hidden, k = f.model->config.top_k;
    struct outputs seen[2];
    struct moe_rerun *r = open_rerun(f.every, 300);
    const struct moe_rule best_only = {NULL, assign_best_only};
    const struct moe_rule *rules[] = {&by_tag, &best_only};
    const struct moe_job job = {2, UPPER};
    uint64_t n = (moe_corpus_length(f.corpus, 2) - 1) * k;
    for (int i = 0; i < 2; i++) {
        seen[i] = (struct outputs){.values = calloc(n, hidden * sizeof(float))};
        assert_non_null(seen[i].values);
        moe_rerun_session(r)->observer =
            (struct moe_observer){.ctx = &seen[i], .computed = keep_outputs};
        assert_ok(moe_rerun_jobs(r, 0, &job, 1, rules[i], NULL, &err), &err);
        assert_int_equal(seen[i].n, n);
    }
    for (uint64_t i = 0; i < n; i++)
        for (uint64_t c = 0; c < hidden; c++) {
            float all = seen[0].values[i * hidden + c], some = seen[1].values[i * hidden + c];
            assert_true(i % k == 0 ? some == all : some == 0);
        }
    assert_int_equal(moe_rerun_session(r)->stats.prefill.experts.skipped,
                     (n - n / k) * 12 /* layers */);
    moe_rerun_close(r);
    free(seen[0].values);
    free(seen[1].values);
}

/* Sums, shares and standard errors, worked by hand. */
static void test_loss(void **state)
{
    uint64_t first[] = {0, 11, 22, 43}; /* documents of 10, 10 and 20 predictions */
    struct moe_corpus corpus = {.n_documents = 3, .first = first};
    double before[] = {10, 20, 30}, after[] = {11, 20, 35};
    uint32_t none[] = {0, 0, 0}, changed[] = {1, 0, 3};
    const struct moe_quality reference = {.corpus = &corpus, .nats = before, .changed = none};
    const struct moe_quality q = {.corpus = &corpus, .nats = after, .changed = changed};
    struct moe_loss loss;
    moe_quality_loss(&q, &reference, 0, 3, &loss);
    assert_int_equal(loss.documents, 3);
    assert_int_equal(loss.tokens, 40);
    assert_float_equal(loss.nll, 66.0 / 40, 1e-12);
    assert_float_equal(loss.reference_nll, 60.0 / 40, 1e-12);
    assert_float_equal(loss.nll_percent, 10, 1e-12);
    /* residuals 1 - 1, 0 - 2, 5 - 3: sqrt(8 * 3 / 2) / 60 */
    assert_float_equal(loss.nll_error, 100 * 3.4641016151377544 / 60, 1e-9);
    assert_float_equal(loss.top1_points, 10, 1e-12);
    /* residuals 1 - 1, 0 - 1, 3 - 2: sqrt(2 * 3 / 2) / 40 */
    assert_float_equal(loss.top1_error, 100 * 1.7320508075688772 / 40, 1e-9);
    moe_quality_loss(&q, &reference, 2, 1, &loss);
    assert_int_equal(loss.tokens, 20);
    assert_float_equal(loss.nll_percent, 100 * 5.0 / 30, 1e-9);
    assert_float_equal(loss.nll_error, 0, 0);
    moe_quality_loss(&q, &q, 0, 3, &loss);
    assert_float_equal(loss.nll_percent, 0, 0);
    assert_float_equal(loss.top1_points, 0, 0);
}

/* Of answers: means below the reference's, in points. */
static void test_loss_of_answers(void **state)
{
    uint64_t first[] = {0, 11, 22, 43, 54};
    struct moe_corpus corpus = {.n_documents = 4, .first = first};
    double nats[] = {10, 20, 30, 10};
    uint32_t none[] = {0, 0, 0, 0};
    struct moe_answer_quality before[] = {{1, true}, {0.5, false}, {0.25, false}, {0.25, true}},
                              after[] = {{0.5, false}, {0.5, false}, {0.25, true}, {0, false}};
    const struct moe_quality reference = {
        .corpus = &corpus, .nats = nats, .changed = none, .answers = before};
    struct moe_quality q = {.corpus = &corpus, .nats = nats, .changed = none, .answers = after};
    struct moe_loss loss;
    moe_quality_loss(&q, &reference, 0, 4, &loss);
    assert_int_equal(loss.answers, 4);
    assert_float_equal(loss.reference_rouge2, 0.5, 1e-12);
    /* differences 0.5, 0, 0, 0.25: mean 0.1875, squares around it 0.171875 */
    assert_float_equal(loss.rouge2_points, 18.75, 1e-9);
    assert_float_equal(loss.rouge2_error, 100 * sqrt(0.171875 * 4 / 3) / 4, 1e-9);
    assert_float_equal(loss.reference_accuracy, 0.5, 1e-12);
    /* differences 1, 0, -1, 1: mean 0.25, squares 2.75 */
    assert_float_equal(loss.accuracy_points, 25, 1e-9);
    assert_float_equal(loss.accuracy_error, 100 * sqrt(2.75 * 4 / 3) / 4, 1e-9);
    moe_quality_loss(&q, &reference, 1, 1, &loss);
    assert_int_equal(loss.answers, 1);
    assert_float_equal(loss.rouge2_points, 0, 1e-12);
    q.answers = NULL;
    moe_quality_loss(&q, &reference, 0, 4, &loss);
    assert_int_equal(loss.answers, 0);
}

static void test_quality(void **state)
{
    static struct tokens plain;
    struct moe_err err;
    struct moe_quality reference, lower;
    uint8_t *table = calloc(f.model->config.n_layers, f.model->config.n_experts);
    struct moe_rule_table at = {table, f.model->config.n_experts, f.model->config.top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    struct moe_rerun *r = open_rerun(f.every, 0);
    assert_non_null(table);
    assert_ok(moe_quality_measure(&reference, r, &rule, NULL, &err), &err);
    memset(table, LOWER, f.model->config.n_layers * f.model->config.n_experts);
    assert_ok(moe_quality_measure(&lower, r, &rule, &reference, &err), &err);
    run_plainly(LOWER, &plain);
    for (uint32_t d = 0, i = 0; d < f.corpus->n_documents; d++) {
        double sum = 0;
        uint32_t changed = 0;
        for (uint32_t n = 1; n < moe_corpus_length(f.corpus, d); n++, i++) {
            sum += plain.nats[i];
            changed += plain.best[i] != reference.best[i];
        }
        assert_true(sum == lower.nats[d]);
        assert_int_equal(changed, lower.changed[d]);
        assert_int_equal(reference.changed[d], 0);
    }
    moe_quality_release(&reference);
    moe_quality_release(&lower);
    moe_rerun_close(r);
    free(table);
}

/* ---- Predictions in files ---- */

/* A file's probabilities at a token: header and rows as perplexity.c describes them. */
static void read_probabilities(FILE *file, uint32_t vocab, uint32_t token, double *out)
{
    double sum = 0;
    assert_int_equal(fseek(file, 16 + (long)token * (12 + 2 * (long)vocab) + 12, SEEK_SET), 0);
    for (uint32_t v = 0; v < vocab; v++) {
        uint8_t two[2];
        assert_int_equal(fread(two, 1, 2, file), 2);
        out[v] = exp(-(double)moe_f16_to_f32((uint16_t)(two[0] | two[1] << 8)));
        sum += out[v];
    }
    for (uint32_t v = 0; v < vocab; v++)
        out[v] /= sum;
}

static void test_divergence(void **state)
{
    static struct tokens upper, lower, same;
    const uint32_t vocab = f.model->config.vocab;
    double *p = calloc(vocab, sizeof *p), *q = calloc(vocab, sizeof *q), mean = 0, squares = 0;
    char names[2][128];
    FILE *files[2];
    uint32_t n_same = 0;
    for (int v = UPPER; v <= LOWER; v++) {
        snprintf(names[v], sizeof names[v], "/tmp/moe-test-rerun-%d.%d", (int)getpid(), v);
        run_with((uint32_t)v, names[v], NULL, v == UPPER ? &upper : &lower);
        files[v] = fopen(names[v], "r");
        assert_non_null(files[v]);
    }
    struct moe_perplexity got = run_with(UPPER, NULL, names[UPPER], &same);
    assert_true(fabs(got.divergence) < 1e-6 && got.same_top == 1);
    got = run_with(LOWER, NULL, names[UPPER], &lower);
    for (uint32_t i = 0; i < lower.n; i++) {
        double sum = 0;
        read_probabilities(files[UPPER], vocab, i, p);
        read_probabilities(files[LOWER], vocab, i, q);
        for (uint32_t v = 0; v < vocab; v++)
            sum += p[v] * log(p[v] / q[v]);
        assert_true(fabs(sum - lower.divergences[i]) < 1e-4 + 1e-3 * sum);
        mean += sum / lower.n;
        squares += sum * sum / lower.n;
        n_same += upper.best[i] == lower.best[i];
    }
    assert_true(fabs(got.divergence - mean) < 1e-3 * mean && mean > 1e-3);
    assert_true(fabs(got.divergence_error - sqrt((squares - mean * mean) / lower.n)) < 1e-2 * mean);
    assert_true(fabs(got.same_top - (double)n_same / lower.n) < 1e-12 && got.same_top < 1);
    for (int v = 0; v < 2; v++) {
        fclose(files[v]);
        unlink(names[v]);
    }
    free(p);
    free(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_divergence),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_tags_side_by_side),
        cmocka_unit_test(test_from_a_layer),
        cmocka_unit_test(test_little_memory),
        cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_loss_of_answers),
        cmocka_unit_test(test_quality),
    };
    const struct CMUnitTest sharing[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_tags_side_by_side),
        cmocka_unit_test(test_from_a_layer),
    };
    return cmocka_run_group_tests(tests, setup, teardown) +
           cmocka_run_group_tests_name("rerun: layers share a choice of positions", sharing,
                                       setup_sharing, teardown) +
           cmocka_run_group_tests_name("rerun: routers that see earlier ones", sharing,
                                       setup_routers, teardown);
}
