/*
 * Recurrent states, and entries of layers that compress: the same bits for any batch, thread count
 * and company, where a text may go on from, forks, files, and what they take of memory.
 */
#include <string.h>

#include "base/file.h"
#include "engine/context_file.h"
#include "engine/generate.h"
#include "infer/compressed.h"
#include "infer/recurrent.h"
#include "model/config.h"
#include "model/tensor_roles.h"
#include "model_fixture.h"

enum { N_IDS = 70, N_SEQUENCES = 3 };

static char context_path[64];

struct recurrent {
    struct fixture f;
    uint16_t kv_kind;
    uint32_t ids[N_IDS];
    uint64_t stride;
    float *want; /* [N_IDS][stride] logits after each token, computed one by one */
};

static void open_with_snapshots(struct recurrent *r, uint32_t batch, uint32_t context,
                                uint32_t n_snapshots)
{
    struct moe_err err = {0};
    struct fixture *f = &r->f;
    const struct moe_session_options options = {.context = context,
                                                .n_sequences = N_SEQUENCES,
                                                .batch = batch,
                                                .kv_kind = r->kv_kind,
                                                .takes_back = true,
                                                .n_snapshots = n_snapshots};
    moe_session_close(f->session);
    assert_ok(moe_session_open(&f->session, f->model, f->experts, &options, &err), &err);
}

static void open_session(struct recurrent *r, uint32_t batch)
{
    open_with_snapshots(r, batch, 256, 0);
}

static int forward(struct fixture *f, const struct moe_row *rows, uint32_t n, struct moe_err *err)
{
    return moe_forward(f->session, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0,
                       f->model->config.n_layers, NULL, NULL, err);
}

static struct moe_row row_of(const struct recurrent *r, uint32_t sequence, uint32_t i)
{
    return (struct moe_row){sequence, i, r->ids[i], 0};
}

/* Computes tokens [first, end) of a sequence in passes of `batch`; the logits must be the wanted.
 */
static void compute(struct recurrent *r, uint32_t sequence, uint32_t first, uint32_t end,
                    uint32_t batch)
{
    struct moe_err err = {0};
    struct moe_row rows[N_IDS];
    float *logits = calloc(batch, r->stride * sizeof *logits);
    for (uint32_t at = first, n; at < end; at += n) {
        n = end - at < batch ? end - at : batch;
        for (uint32_t i = 0; i < n; i++)
            rows[i] = row_of(r, sequence, at + i);
        assert_ok(forward(&r->f, rows, n, &err), &err);
        assert_ok(moe_logits(r->f.session, 0, n, logits, &err), &err);
        assert_memory_equal(logits, r->want + at * r->stride, n * r->stride * sizeof *logits);
    }
    free(logits);
}

/* A pack of the checkpoint with more positions: texts of several blocks of the KV cache. */
static void make_long_pack(const char *path, const char *checkpoint,
                           const struct moe_convert_options *options)
{
    char command[512], wide[96];
    snprintf(wide, sizeof wide, "%s.wide", path);
    snprintf(command, sizeof command,
             "cp -r '%s' '%s' && sed -i -E 's/(max_position_embeddings|model_max_length)\": 256/"
             "\\1\": 1024/' '%s/config.json'",
             checkpoint, wide, wide);
    assert_int_equal(system(command), 0);
    make_pack(path, wide, options);
    snprintf(command, sizeof command, "rm -r '%s'", wide);
    assert_int_equal(system(command), 0);
}

static int open_kind(void **state, const char *checkpoint, uint16_t kv_kind)
{
    struct moe_err err = {0};
    struct recurrent *r = *state = calloc(1, sizeof *r);
    r->kv_kind = kv_kind;
    const struct moe_convert_options options = pack_options("8", 8);
    snprintf(context_path, sizeof context_path, "/tmp/moe-recurrent-%d.context", (int)getpid());
    snprintf(r->f.path, sizeof r->f.path, "/tmp/moe-recurrent-%d.moe", (int)getpid());
    make_long_pack(r->f.path, checkpoint, &options);
    assert_ok(moe_model_open(&r->f.model, r->f.path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&r->f.experts, r->f.model->pack, 0, NULL, NULL, &err),
              &err);
    r->stride = moe_logits_stride(&r->f.model->config);
    r->want = calloc(N_IDS, r->stride * sizeof *r->want);
    open_session(r, N_IDS);
    for (uint32_t i = 0; i < N_IDS; i++) {
        r->ids[i] = i * 37 % 251;
        const struct moe_row row = row_of(r, 0, i);
        assert_ok(forward(&r->f, &row, 1, &err), &err);
        assert_ok(moe_logits(r->f.session, 0, 1, r->want + i * r->stride, &err), &err);
    }
    return 0;
}

static int open_all(void **state, const char *checkpoint)
{
    return open_kind(state, checkpoint, MOE_LAYOUT_F32);
}

static int open_compressed(void **state)
{
    return open_all(state, DRAWN "/deepseek-v4-a");
}

static int open_compressed_f16(void **state)
{
    return open_kind(state, DRAWN "/deepseek-v4-b", MOE_LAYOUT_F16);
}

static int open_compressed_q8(void **state)
{
    return open_kind(state, DRAWN "/deepseek-v4-a", MOE_LAYOUT_Q8);
}

static int open_compressed_q4(void **state)
{
    return open_kind(state, DRAWN "/deepseek-v4-a", MOE_LAYOUT_Q4);
}

static int open_delta(void **state)
{
    return open_all(state, DRAWN "/qwen3-next-a");
}

static int open_short_conv(void **state)
{
    return open_all(state, DRAWN "/lfm2-moe-a");
}

static int open_scan(void **state)
{
    return open_all(state, DRAWN "/granite4-a");
}

static int open_halves(void **state)
{
    return open_all(state, DRAWN "/nemotron-h-a");
}

static int open_kda(void **state)
{
    return open_all(state, DRAWN "/kimi-linear-a");
}

/* Convolutions beside attention. */
static int open_cca(void **state)
{
    return open_all(state, DRAWN "/zaya-a");
}

static int open_taps(void **state)
{
    return open_all(state, DRAWN "/inkling-a");
}

static int open_own_taps(void **state)
{
    return open_all(state, DRAWN "/inkling2-a");
}

/* The same where layers are visited three times, each time with states of their own. */
static int open_loop(void **state)
{
    return open_all(state, DRAWN "/inkling2-loop-a");
}

/* Beside states, keys that an indexer pools (GLM-5.3). */
static int open_pools(void **state)
{
    return open_all(state, DRAWN "/glm5.3");
}

static int open_select(void **state)
{
    return open_all(state, DRAWN "/jamba-a");
}

static int close_all(void **state)
{
    struct recurrent *r = *state;
    fixture_close(&r->f);
    free(r->want);
    free(r);
    return 0;
}

static void test_any_batch_gives_the_same_bits(void **state)
{
    struct recurrent *r = *state;
    static const uint32_t batches[] = {2, 3, 16, 33, N_IDS};
    for (int threads = 1; threads <= 3; threads += 2) {
        moe_par_set_threads(threads);
        open_session(r, N_IDS);
        for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++)
            compute(r, 1, 0, N_IDS, batches[i]); /* each begins the text anew */
    }
    moe_par_set_threads(2);
    open_session(r, N_IDS);
}

static void test_company_changes_nothing(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    struct moe_row rows[2 * 5 + 1];
    float *logits = calloc(sizeof rows / sizeof rows[0], r->stride * sizeof *logits);
    for (uint32_t at = 0; at + 5 <= N_IDS; at += 5) {
        for (uint32_t i = 0; i < 5; i++) { /* row by row of two, and one that begins again */
            rows[2 * i] = row_of(r, 0, at + i);
            rows[2 * i + 1] = row_of(r, 2, at + i);
        }
        rows[10] = row_of(r, 1, 0);
        assert_ok(forward(&r->f, rows, 11, &err), &err);
        assert_ok(moe_logits(r->f.session, 0, 11, logits, &err), &err);
        for (uint32_t i = 0; i < 10; i++)
            assert_memory_equal(logits + i * r->stride, r->want + (at + i / 2) * r->stride,
                                r->stride * sizeof *logits);
        assert_memory_equal(logits + 10 * r->stride, r->want, r->stride * sizeof *logits);
    }
    free(logits);
}

static void test_a_text_goes_on_from_its_end_alone(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    compute(r, 0, 0, 20, 8);
    assert_int_equal(moe_sequence_from(r->f.session, 0, 20), 20);
    assert_int_equal(moe_sequence_from(r->f.session, 0, 19), 0);
    const struct moe_row again = row_of(r, 0, 19), gap = row_of(r, 0, 21), other = row_of(r, 1, 7);
    assert_fails(forward(&r->f, &again, 1, &err), MOE_ERR_USAGE,
                 "is not that of the positions before it", &err);
    assert_fails(forward(&r->f, &gap, 1, &err), MOE_ERR_USAGE, "position 21 of sequence 0", &err);
    moe_sequence_rewind(r->f.session, 1, 0);
    assert_fails(forward(&r->f, &other, 1, &err), MOE_ERR_USAGE,
                 "is not that of the positions before it", &err);
    const struct moe_row jump[2] = {row_of(r, 0, 20), row_of(r, 0, 22)};
    assert_fails(forward(&r->f, jump, 2, &err), MOE_ERR_USAGE, "position 22", &err);
    compute(r, 0, 20, 40, 7); /* nothing of that was computed */
    moe_sequence_rewind(r->f.session, 0, 0);
    compute(r, 0, 0, 10, 10);
}

static void test_layers_go_on_by_themselves(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    uint32_t n_layers = r->f.model->config.n_layers;
    struct moe_row rows[6];
    for (uint32_t i = 0; i < 6; i++)
        rows[i] = row_of(r, 0, i);
    float *hidden = calloc(6, moe_config_state_width(&r->f.model->config) * sizeof *hidden);
    assert_ok(moe_forward(r->f.session, MOE_PREFILL, rows, 6, 0, 2, NULL, hidden, &err), &err);
    assert_int_equal(moe_sequence_from(r->f.session, 0, 6), 0);
    for (int again = 0; again < 2; again++)
        assert_ok(moe_forward(r->f.session, MOE_PREFILL, rows, 6, 2, n_layers, hidden, NULL, &err),
                  &err);
    assert_int_equal(moe_sequence_from(r->f.session, 0, 6), 6);
    compute(r, 0, 6, 12, 3);
    free(hidden);
}

static void test_forks_take_the_states(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    moe_sequence_rewind(r->f.session, 1, 0);
    moe_sequence_rewind(r->f.session, 2, 0);
    compute(r, 0, 0, 30, 30);
    assert_ok(moe_sequence_fork(r->f.session, 0, 1, 30, &err), &err);
    compute(r, 0, 30, 40, 4);
    compute(r, 1, 30, N_IDS, 9);
    compute(r, 0, 40, 50, 1);
    assert_ok(moe_sequence_fork(r->f.session, 0, 2, 35, &err), &err); /* its state is gone */
    assert_int_equal(moe_sequence_from(r->f.session, 2, 35), 0);
    compute(r, 2, 0, 5, 5);
}

/* Drafts that were wrong: other tokens, which end within a group or a pool, or complete some. */
static void take_back_others(struct recurrent *r, uint32_t first, uint32_t n)
{
    struct moe_row rows[N_IDS];
    struct moe_err err = {0};
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = row_of(r, 0, first + i);
        rows[i].token = (rows[i].token + 100) % 251;
    }
    assert_ok(forward(&r->f, rows, n, &err), &err);
    assert_int_equal(moe_sequence_rewind(r->f.session, 0, first + n - 1), first);
}

static void test_a_text_goes_back_to_kept_states(void **state)
{
    struct recurrent *r = *state;
    compute(r, 0, 0, 21, 21);
    moe_sequence_keep(r->f.session, 0);
    for (uint32_t n = 1; n < 12; n++)
        take_back_others(r, 21, n);
    for (int times = 0; times < 2; times++) { /* over several groups, and to be changed again */
        compute(r, 0, 21, 60, times ? 39 : 4);
        assert_int_equal(moe_sequence_rewind(r->f.session, 0, 47), 21);
    }
    compute(r, 0, 21, N_IDS, 5);
    assert_int_equal(moe_sequence_rewind(r->f.session, 0, 20), 0);
}

static void test_nothing_is_known_of_other_texts(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    uint32_t n_known = 7;
    compute(r, 0, 0, N_IDS, N_IDS);
    assert_int_equal(moe_sequence_known(r->f.session, 0, r->ids, N_IDS), 0);
    moe_sequence_rewind(r->f.session, 1, 0);
    assert_ok(moe_sequence_sync(r->f.session, 1, r->ids, N_IDS, N_IDS, &n_known, &err), &err);
    assert_int_equal(n_known, 0);
}

/* Has a sequence begin with the first n ids; returns how many it need not compute. */
static uint32_t begin_text(struct recurrent *r, uint32_t sequence, uint32_t n)
{
    struct moe_err err = {0};
    uint32_t n_known = 0;
    moe_sequence_rewind(r->f.session, sequence, 0);
    assert_ok(moe_sequence_sync(r->f.session, sequence, r->ids, n, n, &n_known, &err), &err);
    return n_known;
}

static void test_texts_begin_at_snapshots(void **state)
{
    struct recurrent *r = *state;
    open_with_snapshots(r, N_IDS, 256, 3);
    struct moe_session *s = r->f.session;
    compute(r, 0, 0, 20, 7);
    for (int i = 0; i < 3; i++) /* once */
        moe_sequence_snapshot(s, 0, true);
    compute(r, 0, 20, 41, 16);
    moe_sequence_snapshot(s, 0, false);
    assert_int_equal(moe_sequence_known(s, 0, r->ids, 42), 41);
    assert_int_equal(moe_sequence_known(s, 1, r->ids, 42), 0); /* another owner's */
    assert_int_equal(begin_text(r, 1, N_IDS), 41);             /* beside it */
    compute(r, 1, 41, N_IDS, 9);
    compute(r, 0, 41, 60, 5);
    assert_int_equal(begin_text(r, 2, 41), 20);
    compute(r, 2, 20, N_IDS, N_IDS);
    assert_int_equal(begin_text(r, 0, N_IDS), 41); /* after it */
    compute(r, 0, 41, 50, 1);
    moe_sequence_snapshot(s, 0, false);
    assert_int_equal(begin_text(r, 1, 45), 41);
    compute(r, 1, 41, 60, 3);
    moe_sequence_snapshot(s, 1, false); /* in the place of the one at 50 */
    assert_int_equal(begin_text(r, 2, N_IDS), 60);
    compute(r, 2, 60, N_IDS, 4);
    assert_int_equal(begin_text(r, 0, 60), 41);
    r->ids[30]++; /* another text from there on */
    assert_int_equal(begin_text(r, 0, N_IDS), 20);
    assert_int_equal(s->sequences[0].n_alike, 30);
    r->ids[30]--;
    compute(r, 0, 20, N_IDS, N_IDS);
    open_session(r, N_IDS);
}

/* ---- Answers that go on from snapshots ---- */

enum { N_TEXTS = 14, TEXT = 330, ANSWER = 9 };

struct answered {
    uint32_t prompt[TEXT];
    uint32_t n, n_answer;
    uint32_t answer[ANSWER];
    uint64_t n_cached;
    bool ended;
};

static int hear_token(void *ctx, const struct moe_token_said *said)
{
    struct answered *a = ctx;
    a->answer[a->n_answer++] = said->token.id;
    return MOE_OK;
}

static void end_answer(void *ctx, const struct moe_generate_result *result)
{
    struct answered *a = ctx;
    assert_int_equal(result->status, MOE_OK);
    a->n_cached = result->n_cached;
    a->ended = true;
}

static void ask(struct moe_generator *g, struct answered *a, uint32_t draft)
{
    static const struct moe_sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    struct moe_err err;
    uint64_t id;
    struct moe_generate_request request = {.prompt = a->prompt,
                                           .n_prompt = a->n,
                                           .options = {.max_tokens = ANSWER,
                                                       .ignore_eos = true,
                                                       .draft = draft,
                                                       .token = hear_token,
                                                       .again = a->n - a->n % 7,
                                                       .ctx = a},
                                           .ended = end_answer};
    assert_ok(moe_sampler_new(&request.sampler, &greedy, 256, &err), &err);
    assert_ok(moe_generator_add(g, &request, &id, &err), &err);
}

/* Texts that begin like others, or go on from their answers, over several blocks of the cache. */
static void make_texts(struct answered *texts, uint64_t *random)
{
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        struct answered *a = &texts[i];
        const struct answered *from = &texts[i ? test_random(random) % i : 0];
        uint32_t same = i ? (uint32_t)(test_random(random) % (from->n + 1)) : 0;
        a->n = same + 1 + (uint32_t)(test_random(random) % (TEXT - same));
        memcpy(a->prompt, from->prompt, same * sizeof *a->prompt);
        for (uint32_t k = same; k < a->n; k++)
            a->prompt[k] = (uint32_t)(test_random(random) % 250);
    }
}

static void test_answers_are_those_of_texts_alone(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err;
    struct moe_generator *g;
    struct answered *want = calloc(N_TEXTS, sizeof *want), *got = calloc(N_TEXTS, sizeof *got);
    uint64_t random = 5, n_cached = 0;
    make_texts(want, &random);
    memcpy(got, want, N_TEXTS * sizeof *got);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        open_with_snapshots(r, 64, 512, 0);
        assert_ok(moe_generator_open(&g, r->f.session, 1, 0, &err), &err);
        for (ask(g, &want[i], 0); !want[i].ended;)
            moe_generator_step(g);
        assert_int_equal(want[i].n_cached, 0);
        moe_generator_close(g);
    }
    open_with_snapshots(r, 48, 512, 5);
    assert_ok(moe_generator_open(&g, r->f.session, N_SEQUENCES, 31, &err), &err);
    for (uint32_t i = 0; i < N_TEXTS; i += 2) { /* two at a time */
        ask(g, &got[i], 0);
        ask(g, &got[i + 1], 3);
        while (!got[i].ended || !got[i + 1].ended)
            moe_generator_step(g);
    }
    moe_generator_close(g);
    for (uint32_t i = 0; i < N_TEXTS; i++) {
        assert_int_equal(got[i].n_answer, ANSWER);
        assert_memory_equal(got[i].answer, want[i].answer, sizeof got[i].answer);
        n_cached += got[i].n_cached;
    }
    assert_in_range(n_cached, 500, N_TEXTS * TEXT);
    open_session(r, N_IDS);
    free(want);
    free(got);
}

static void test_memory_is_booked(void **state)
{
    struct recurrent *r = *state;
    const struct moe_config *c = &r->f.model->config;
    const struct moe_recurrent one = moe_recurrent_shape(c, 1), two = moe_recurrent_shape(c, 2);
    struct moe_session_options options = {.context = 256, .n_sequences = 1, .batch = 4};
    /* 3 layers; 2 key heads of 12, 4 heads of 20 values in two panels, 3 tokens before. */
    assert_int_equal(one.bytes, 3 * (3 * (32 + 32 + 80) + 4 * 2 * 12 * 16) * 4);
    assert_int_equal(two.bytes, 2 * one.bytes);
    /* One layer of attention with two heads of 16. */
    assert_int_equal(moe_session_kv_bytes(c, &options), 256 * 2 * (16 + 16) * 4);
    uint64_t before = moe_session_bytes(c, &options), more = 256 * 2 * (16 + 16) * 4 + one.bytes;
    options.n_sequences = 2;
    assert_in_range(moe_session_bytes(c, &options) - before, more, more + 8192);
    before = moe_session_bytes(c, &options);
    options.n_snapshots = 5;
    assert_in_range(moe_session_bytes(c, &options) - before, 5 * one.bytes, 5 * one.bytes + 4096);
}

static void test_memory_of_inputs_is_booked(void **state)
{
    const struct recurrent *r = *state;
    /* 3 layers; 44 values of the 2 tokens before. */
    assert_int_equal(moe_recurrent_shape(&r->f.model->config, 1).bytes, 3 * 2 * 48 * 4);
}

static void test_memory_of_scans_is_booked(void **state)
{
    const struct recurrent *r = *state;
    /* 3 layers; 12 queries, 12 keys and 80 values of the 3 tokens before; 8 heads of 12 x 10. */
    assert_int_equal(moe_recurrent_shape(&r->f.model->config, 1).bytes,
                     3 * (3 * (16 + 16 + 80) + 8 * 12 * 16) * 4);
}

static void test_one_layer_of_halves_attends(void **state)
{
    const struct recurrent *r = *state;
    const struct moe_config *c = &r->f.model->config;
    const struct moe_session_options options = {.context = 256, .n_sequences = 1, .batch = 1};
    assert_int_equal(c->layers[c->n_layers].attention_index, 1);
    assert_true(moe_config_attends(c, 3));
    assert_int_equal(moe_session_kv_bytes(c, &options), 256 * 2 * (12 + 16) * 4);
}

static void test_memory_of_selections_is_booked(void **state)
{
    const struct recurrent *r = *state;
    /* 4 layers; of the 3 tokens before 72 values, with room for 6 keys and queries; 5 panels. */
    assert_int_equal(moe_recurrent_shape(&r->f.model->config, 1).bytes,
                     4 * (3 * (16 + 16 + 80) + 5 * 6 * 16) * 4);
}

static void test_memory_of_entries_is_booked(void **state)
{
    const struct recurrent *r = *state;
    const struct moe_session_options options = {
        .context = 256, .n_sequences = 2, .kv_kind = MOE_LAYOUT_F32};
    /* Twice: of 8 positions values and logarithms, 48 for attention and 32 for the indexer, whose
     * keys have 16; entries of 24, once as values with room for 32: 65 and 33 of them, in 16s. */
    uint64_t choosing = 8 * 2 * (48 + 32) + 80 * 16 + 80 * (24 + 32);
    uint64_t seeing_all = 8 * 2 * 32 + 48 * (24 + 32);
    assert_int_equal(moe_compressed_shape(&r->f.model->config, &options).bytes,
                     2 * (2 * choosing + seeing_all) * 4);
}

/* Writes the first n positions of sequence 0, and has another session begin with the file; returns
 * how many it had. */
static uint64_t keep_and_take(struct recurrent *r, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_context_file file;
    const struct moe_context c = {.ids = {.ids = r->ids, .n = n}, .n_done = n};
    assert_ok(moe_context_write(context_path, r->f.session, 0, &c, &err), &err);
    open_session(r, N_IDS);
    assert_ok(moe_context_open(&file, context_path, r->f.session, "", &err), &err);
    uint64_t n_done = file.context.n_done;
    assert_int_equal(moe_context_most(&file, r->f.session), n_done);
    assert_ok(moe_context_put(&file, r->f.session, 0, n_done, &err), &err);
    moe_context_close(&file);
    return n_done;
}

static void test_files_keep_the_states(void **state)
{
    struct recurrent *r = *state;
    compute(r, 0, 0, 30, 30);
    assert_int_equal(keep_and_take(r, 30), 30);
    compute(r, 0, 30, 40, 4);
    assert_int_equal(keep_and_take(r, 40), 40);
    compute(r, 0, 40, N_IDS, 7);
    /* They have gone on. */
    assert_int_equal(keep_and_take(r, 50), 0);
    compute(r, 0, 0, 20, 20);
    moe_sequence_keep(r->f.session, 0);
    compute(r, 0, 20, 24, 4);
    assert_int_equal(moe_sequence_rewind(r->f.session, 0, 22), 20);
    assert_int_equal(keep_and_take(r, 22), 20);
    compute(r, 0, 20, N_IDS, 9);
    unlink(context_path);
}

/* Wherever the text ends; and the file of what came from a file is that file: nothing of what the
 * session held before is in it. */
static void test_files_end_within_any_group(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    for (uint32_t n = 1; n < N_IDS; n += n < 24 ? 1 : 7) {
        struct moe_buf first = {0}, again = {0};
        const struct moe_context c = {.ids = {.ids = r->ids, .n = n}, .n_done = n};
        compute(r, 0, 0, n, 16);
        assert_int_equal(keep_and_take(r, n), n);
        assert_ok(moe_file_read_all(context_path, 1 << 24, &first, &err), &err);
        compute(r, 0, n, n + 1, 1);
        moe_sequence_rewind(r->f.session, 0, 0);
        compute(r, 0, 0, N_IDS, N_IDS); /* more than the file will hold */
        compute(r, 0, 0, n, 5);
        assert_ok(moe_context_write(context_path, r->f.session, 0, &c, &err), &err);
        assert_ok(moe_file_read_all(context_path, 1 << 24, &again, &err), &err);
        assert_int_equal(first.size, again.size);
        assert_memory_equal(first.data, again.data, first.size);
        moe_buf_release(&first);
        moe_buf_release(&again);
    }
    unlink(context_path);
}

static void test_files_are_taken_whole(void **state)
{
    struct recurrent *r = *state;
    struct moe_err err = {0};
    struct moe_context_file file;
    const struct moe_context c = {.ids = {.ids = r->ids, .n = 30}, .n_done = 30};
    compute(r, 0, 0, 30, 30);
    assert_ok(moe_context_write(context_path, r->f.session, 0, &c, &err), &err);
    const struct moe_session_options narrow = {.context = 20, .batch = N_IDS};
    moe_session_close(r->f.session);
    assert_ok(moe_session_open(&r->f.session, r->f.model, r->f.experts, &narrow, &err), &err);
    assert_ok(moe_context_open(&file, context_path, r->f.session, "", &err), &err);
    assert_int_equal(moe_context_most(&file, r->f.session), 0);
    moe_context_close(&file);
    open_session(r, N_IDS);
    /* What the last layer has, before the checksum that ends the file. */
    FILE *f = fopen(context_path, "r+b");
    assert_int_equal(fseek(f, -12, SEEK_END), 0);
    assert_int_equal(fputc(fgetc(f) ^ 4, f) == EOF, 0);
    fclose(f);
    assert_ok(moe_context_open(&file, context_path, r->f.session, "", &err), &err);
    assert_fails(moe_context_put(&file, r->f.session, 0, 30, &err), MOE_ERR_FORMAT,
                 r->f.model->config.state_heads ? "of its recurrent states" : "of its entries",
                 &err);
    moe_context_close(&file);
    compute(r, 0, 0, 10, 10); /* begins anew all the same */
    unlink(context_path);
}

int main(void)
{
    struct moe_err err = {0};
    const struct CMUnitTest delta[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_layers_go_on_by_themselves),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_files_are_taken_whole),
        cmocka_unit_test(test_nothing_is_known_of_other_texts),
        cmocka_unit_test(test_memory_is_booked),
    };
    const struct CMUnitTest compressed[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_layers_go_on_by_themselves),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_a_text_goes_back_to_kept_states),
        cmocka_unit_test(test_nothing_is_known_of_other_texts),
        cmocka_unit_test(test_memory_of_entries_is_booked),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_files_are_taken_whole),
        cmocka_unit_test(test_files_end_within_any_group),
    };
    const struct CMUnitTest compressed_f16[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_back_to_kept_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_files_end_within_any_group),
    };
    const struct CMUnitTest pools[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_a_text_goes_back_to_kept_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_files_end_within_any_group),
    };
    const struct CMUnitTest short_conv[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_layers_go_on_by_themselves),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_memory_of_inputs_is_booked),
    };
    const struct CMUnitTest scan[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_layers_go_on_by_themselves),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_memory_of_scans_is_booked),
    };
    const struct CMUnitTest halves[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_one_layer_of_halves_attends),
    };
    const struct CMUnitTest kda[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_files_keep_the_states),
    };
    const struct CMUnitTest select[] = {
        cmocka_unit_test(test_texts_begin_at_snapshots),
        cmocka_unit_test(test_answers_are_those_of_texts_alone),
        cmocka_unit_test(test_any_batch_gives_the_same_bits),
        cmocka_unit_test(test_company_changes_nothing),
        cmocka_unit_test(test_a_text_goes_on_from_its_end_alone),
        cmocka_unit_test(test_forks_take_the_states),
        cmocka_unit_test(test_files_keep_the_states),
        cmocka_unit_test(test_memory_of_selections_is_booked),
    };
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    int failed = cmocka_run_group_tests_name("recurrent", delta, open_delta, close_all);
    failed += cmocka_run_group_tests_name("halves", halves, open_halves, close_all);
    failed += cmocka_run_group_tests_name("kda", kda, open_kda, close_all);
    failed += cmocka_run_group_tests_name("cca", kda, open_cca, close_all);
    failed += cmocka_run_group_tests_name("taps", kda, open_taps, close_all);
    failed += cmocka_run_group_tests_name("own taps", kda, open_own_taps, close_all);
    failed += cmocka_run_group_tests_name("loop", kda, open_loop, close_all);
    failed += cmocka_run_group_tests_name("select", select, open_select, close_all);
    failed += cmocka_run_group_tests_name("compressed", compressed, open_compressed, close_all);
    failed += cmocka_run_group_tests_name("compressed, f16", compressed_f16, open_compressed_f16,
                                          close_all);
    failed += cmocka_run_group_tests_name("compressed, q8", compressed_f16, open_compressed_q8,
                                          close_all);
    failed += cmocka_run_group_tests_name("compressed, q4", compressed_f16, open_compressed_q4,
                                          close_all);
    failed += cmocka_run_group_tests_name("pools", pools, open_pools, close_all);
    failed += cmocka_run_group_tests_name("scan", scan, open_scan, close_all);
    return failed +
           cmocka_run_group_tests_name("short convolution", short_conv, open_short_conv, close_all);
}
