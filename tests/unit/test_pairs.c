/*
 * Pairs of a source and a target through the probe, on random models with an encoder: what the
 * statistics and the trace say is what the routers chose, in both stacks, whatever the batch.
 */
#include <math.h>

#include "base/par.h"
#include "infer/forward.h"
#include "kern/kern.h"
#include "profile/statistics.h"
#include "sched/replay.h"
#include "show/explain.h"
#include "show/show.h"
#include "tune/perplexity.h"
#include "tune/probe.h"

#include "random_model.h"

enum { N_MODELS = 24, N_PAIRS = 3, MAX_LENGTH = 24 };

static char pack[64], trace_path[64];

struct pair {
    uint32_t n_source, n_target, source[MAX_LENGTH], target[MAX_LENGTH];
};

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(pack, sizeof pack, "/tmp/moe-pairs-%d.moe", (int)getpid());
    snprintf(trace_path, sizeof trace_path, "/tmp/moe-pairs-%d.trace", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    unlink(pack);
    unlink(trace_path);
    return 0;
}

static void draw_pair(struct pair *p, const struct moe_config *c, uint64_t *random)
{
    p->n_source = 1 + random_below(random, MAX_LENGTH);
    p->n_target = 2 + random_below(random, MAX_LENGTH - 1);
    for (uint32_t i = 0; i < MAX_LENGTH; i++) {
        p->source[i] = random_below(random, c->vocab);
        p->target[i] = i ? random_below(random, c->vocab) : c->decoder_start;
    }
}

/* Statistics, written out, and the trace of all pairs in passes of so many rows at most. */
static void run(const struct pair *pairs, uint32_t batch, struct moe_statistics **statistics,
                struct moe_buf *text)
{
    struct moe_err err = {0};
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_probe *probe;
    struct moe_trace_writer *w;
    const struct moe_session_options options = {.context = MAX_LENGTH, .batch = batch};
    assert_ok(moe_model_open(&model, pack, MAX_LENGTH, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&experts, model->pack, 0, NULL, NULL, &err), &err);
    assert_ok(moe_session_open(&session, model, experts, &options, &err), &err);
    struct moe_statistics_shape shape = moe_model_statistics_shape(model);
    shape.max_tokens = MAX_LENGTH;
    shape.prompt_percent = 50;
    assert_ok(moe_statistics_new(statistics, &shape, &err), &err);
    struct moe_trace_shape traced = {.n_layers = shape.n_layers,
                                     .n_encoder = shape.n_encoder,
                                     .n_experts = shape.n_experts,
                                     .top_k = shape.top_k,
                                     .keep = shape.n_experts,
                                     .predictors = MOE_TRACE_PREDICTORS};
    moe_config_static_layers(&model->config, traced.is_static);
    assert_ok(moe_trace_create(&w, trace_path, &traced, &err), &err);
    assert_ok(moe_probe_open(&probe, session, *statistics, &err), &err);
    moe_probe_set_trace(probe, w);
    for (int i = 0; i < N_PAIRS; i++)
        assert_ok(moe_probe_pair(probe, pairs[i].source, pairs[i].n_source, pairs[i].target,
                                 pairs[i].n_target, &err),
                  &err);
    moe_probe_close(probe);
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_statistics_write(*statistics, text, &err), &err);
    moe_session_close(session);
    moe_experts_close(experts);
    moe_model_close(model);
}

/* The trace holds each pair as a sequence, and its choices are those counted. */
static void check_trace(const struct pair *pairs, const struct moe_statistics *s)
{
    struct moe_err err = {0};
    struct moe_trace *t;
    const struct moe_trace_token *token;
    uint64_t *left = calloc((uint64_t)s->shape.n_layers * s->shape.n_experts, sizeof *left);
    memcpy(left, s->series[MOE_S_ACTIVATIONS],
           (uint64_t)s->shape.n_layers * s->shape.n_experts * sizeof *left);
    assert_ok(moe_trace_open(&t, trace_path, &err), &err);
    for (uint64_t i = 0; i < N_PAIRS; i++)
        for (uint32_t at = 0; at < pairs[i].n_source + pairs[i].n_target - 1; at++) {
            assert_ok(moe_trace_next(t, &token, &err), &err);
            assert_non_null(token);
            assert_int_equal(token->sequence, i);
            assert_int_equal(token->prompt, at < pairs[i].n_source);
            for (uint32_t l = 0; l < s->shape.n_layers; l++) {
                const uint16_t *experts = moe_trace_step(t, l).experts;
                assert_int_equal(experts != NULL, token->prompt == (l < s->shape.n_encoder));
                for (uint32_t k = 0; experts && k < s->shape.top_k; k++)
                    left[(uint64_t)l * s->shape.n_experts + experts[k]]--;
            }
        }
    for (uint64_t i = 0; i < (uint64_t)s->shape.n_layers * s->shape.n_experts; i++)
        assert_int_equal(left[i], 0);
    assert_ok(moe_trace_next(t, &token, &err), &err);
    assert_null(token);
    moe_trace_close(t);
    free(left);
}

/* Targets have no prompt, and one expert a token no second: nothing is told of these. */
static void check_shown(const struct moe_statistics *s)
{
    struct moe_buf shown = {0};
    struct moe_err err = {0};
    assert_ok(moe_show_statistics(s, MOE_PLAIN_SCREEN, &shown, &err), &err);
    assert_ok(moe_explain_statistics(s, MOE_PLAIN_SCREEN, &shown, &shown, &err), &err);
    moe_buf_u8(&shown, 0);
    const char *text = (const char *)shown.data;
    assert_non_null(strstr(text, "Mean weight by rank: "));
    assert_null(strstr(text, "nan"));
    assert_int_equal(strstr(text, "HOBBIT's scores") != NULL, s->shape.top_k > 1);
    moe_buf_release(&shown);
}

static void pairs_are_counted_in_both_stacks(void **state)
{
    int n_run = 0;
    for (uint64_t seed = 0; n_run < N_MODELS; seed++) {
        struct random_model m;
        struct pair pairs[N_PAIRS];
        struct moe_statistics *s, *again;
        struct moe_buf text = {0}, text_again = {0};
        uint64_t random = seed + 100, n_source = 0, n_target = 0;
        random_stacks_draw(&m, seed);
        uint32_t n_moe = m.c.n_moe_layers;
        if (m.c.layers[m.c.n_encoder].moe_index == n_moe) { /* the decoder has no experts */
            random_model_free(&m);
            continue;
        }
        n_run++;
        random_model_write(&m, 16, pack);
        for (int i = 0; i < N_PAIRS; i++) {
            draw_pair(&pairs[i], &m.c, &random);
            n_source += pairs[i].n_source;
            n_target += pairs[i].n_target - 1;
        }
        run(pairs, MAX_LENGTH, &s, &text);
        assert_int_equal(s->totals[MOE_TOTAL_TOKENS], n_target);
        assert_int_equal(s->totals[MOE_TOTAL_SOURCE], s->shape.n_encoder ? n_source : 0);
        if (s->shape.n_encoder)
            check_trace(pairs, s);
        check_shown(s);
        run(pairs, 1, &again, &text_again);
        assert_int_equal(text_again.size, text.size);
        assert_memory_equal(text_again.data, text.data, text.size);
        moe_buf_release(&text);
        moe_buf_release(&text_again);
        moe_statistics_free(s);
        moe_statistics_free(again);
        random_model_free(&m);
    }
}

/* ---- Judging ---- */

struct tally {
    double nats;
    uint64_t n;
};

static void take_token(void *ctx, double nats, uint32_t best, double divergence)
{
    struct tally *t = ctx;
    t->nats += nats;
    t->n++;
}

/* The mean cost of a target given its source, and its answer, against a plain loop; tokens are 'a'
 * as the tokenizer knows no others. */
static void answers_are_judged(void **state)
{
    char text_path[64];
    snprintf(text_path, sizeof text_path, "/tmp/moe-pairs-%d.jsonl", (int)getpid());
    for (uint64_t seed = 0; seed < 8; seed++) {
        struct random_model m;
        struct moe_err err = {0};
        struct moe_model *model;
        struct moe_experts *experts;
        struct moe_session *s;
        struct moe_perplexity p;
        struct tally t = {0};
        random_stacks_draw(&m, seed);
        random_model_write(&m, 16, pack);
        FILE *f = fopen(text_path, "w");
        assert_non_null(f);
        fputs("{\"source\": \"aaa\", \"target\": \"aaaa\"}\n"
              "{\"source\": \"a\", \"target\": \"aa\"}\n",
              f);
        fclose(f);
        const struct moe_session_options options = {.context = MAX_LENGTH, .batch = 4};
        assert_ok(moe_model_open(&model, pack, MAX_LENGTH, NULL, &err), &err);
        assert_ok(moe_experts_open_resident(&experts, model->pack, 0, NULL, NULL, &err), &err);
        assert_ok(moe_session_open(&s, model, experts, &options, &err), &err);
        struct moe_perplexity_options po = {
            .answers = true, .max_doc_tokens = 6, .token = take_token, .ctx = &t};
        assert_ok(moe_perplexity(s, text_path, &po, &p, &err), &err);
        assert_int_equal(p.n_documents, 2);
        assert_int_equal(p.n_tokens, 6);
        assert_true(fabs(p.nll - t.nats / (double)t.n) < 1e-12);

        float *logits = calloc(moe_logits_stride(&m.c), sizeof *logits);
        static const uint32_t n_source[2] = {3, 1}, n_target[2] = {4, 2};
        double nats = 0;
        for (int i = 0; i < 2; i++) {
            struct moe_row rows[3];
            for (uint32_t k = 0; k < n_source[i]; k++)
                rows[k] = (struct moe_row){.position = k, .length = n_source[i]};
            assert_ok(moe_encode(s, rows, n_source[i], NULL, &err), &err);
            for (uint32_t k = 0; k < n_target[i]; k++) {
                const struct moe_row row = {.position = k, .token = k ? 0 : m.c.decoder_start};
                double sum = 0;
                assert_ok(moe_forward(s, MOE_DECODE, &row, 1, m.c.n_encoder, m.c.n_layers, NULL,
                                      NULL, &err),
                          &err);
                assert_ok(moe_logits(s, 0, 1, logits, &err), &err);
                for (uint32_t v = 0; v < m.c.vocab; v++)
                    sum += exp((double)logits[v] - (double)logits[0]);
                nats += log(sum);
            }
        }
        if (!(fabs(p.nll - nats / 6) < 1e-5))
            fail_msg("seed %d: %.9g nats, by hand %.9g", (int)seed, p.nll, nats / 6);
        assert_true(p.rouge2 >= 0 && p.rouge2 <= 1 && p.accuracy >= 0 && p.accuracy <= 1);
        po.answers = false;
        assert_ok(moe_perplexity(s, text_path, &po, &p, &err), &err);
        assert_true(p.rouge2 < 0 && p.accuracy < 0);
        po.window = 4;
        assert_fails(moe_perplexity(s, text_path, &po, &p, &err), MOE_ERR_USAGE, "", &err);
        free(logits);
        moe_session_close(s);
        moe_experts_close(experts);
        moe_model_close(model);
        random_model_free(&m);
    }
    unlink(text_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pairs_are_counted_in_both_stacks),
                                       cmocka_unit_test(answers_are_judged)};
    return cmocka_run_group_tests_name("pairs", tests, set_up, tear_down);
}
