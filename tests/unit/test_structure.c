/* Structure: closures against examples made by hand, continuations against moe_generate. */
#include "base/clock.h"
#include "base/file.h"
#include "engine/generate.h"
#include "model_fixture.h"
#include "study/structure.h"

/* ---- What a text is like ---- */

struct example {
    const char *text;
    bool brackets, quotes, answer;
};

static void assert_closures(const struct example *examples, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct example *e = &examples[i];
        struct moe_closure c = moe_closure_of(e->text, strlen(e->text));
        if (c.brackets != e->brackets || c.quotes != e->quotes || c.answer != e->answer)
            fail_msg("%s: brackets %d, quotes %d, answer %d", e->text, c.brackets, c.quotes,
                     c.answer);
    }
}

static void test_brackets(void **state)
{
    static const struct example examples[] = {
        {"", true, true, false},
        {"f(a[1], {b: (2)})", true, true, false},
        {"f(a", false, true, false},
        {"f)a(", false, true, false},
        {"([)]", false, true, false},
        {"(]", false, true, false},
        {"{[()]}}", false, true, false},
        {"1) first", false, true, false},
        /* Strings and docstrings hide theirs, apostrophes do not. */
        {"print(\"a) b\")", true, true, false},
        {"print(\"(\")", true, true, false},
        {"print(')')", false, true, false},
        {"\"\"\"a) \" b\n(\"\"\" ()", true, true, false},
        {"'''it's ('''", true, true, false},
        {"\xe2\x80\x9c(\xe2\x80\x9d", false, true, false},
        /* What a string that never ends hides does not count either. */
        {"(a) \"b)", true, false, false},
        {"(a \"b)", false, false, false},
    };
    assert_closures(examples, N_ITEMS(examples));
}

static void test_depth(void **state)
{
    char text[514];
    memset(text, '[', 257);
    memset(text + 257, ']', 257);
    assert_false(moe_closure_of(text, 514).brackets);
    assert_true(moe_closure_of(text + 1, 512).brackets);
    assert_false(moe_closure_of(text + 1, 511).brackets);
}

static void test_quotes(void **state)
{
    static const struct example examples[] = {
        {"\"Hi,\" she said. \"It's\nme.\"", true, true, false},
        {"\"Hi,\" she said. \"It's me.", true, false, false},
        {"It's Jim's 5' board", true, true, false},
        {"\"a\\\"b\"", true, true, false},
        {"\"a\\\\\" b", true, true, false},
        {"\"a\\", true, false, false},
        {"\\\"a", true, false, false}, /* a backslash outside strings is nothing */
        {"\"\"", true, true, false},
        {"\"\"\"", true, false, false},
        {"\"\"\" a \"\"", true, false, false},
        {"\"\"\" a \"\"\"\"", true, false, false},
        {"''' a '' ", true, false, false},
        {"''' \"\"\" '''", true, true, false},
        {"\" ''' \"", true, true, false},
        {"\xe2\x80\x9cHi,\xe2\x80\x9d she said.", true, true, false},
        {"\xe2\x80\x9cShe said \xe2\x80\x9cno\xe2\x80\x9d\xe2\x80\x9d", true, true, false},
        {"\xe2\x80\x9cHi", true, false, false},
        {"Hi\xe2\x80\x9d \xe2\x80\x9c", true, false, false},
        {"\"\xe2\x80\x9c\"", true, true, false},
        {"\xe2\x80", true, true, false},
    };
    assert_closures(examples, N_ITEMS(examples));
}

static void test_answers(void **state)
{
    static const struct example examples[] = {
        {"So 5 + 5 = 10\n#### 10", true, true, true},
        {"#### 7", true, true, true},
        {"x\n#### -1,234.5 \r\n\n  \n", true, true, true},
        {"x\n#### 10\nand more", true, true, false},
        {"x #### 10", true, true, false},
        {"x\n### 10", true, true, false},
        {"x\n##### 10", true, true, false},
        {"x\n####10", true, true, false},
        {"x\n#### ", true, true, false},
        {"x\n#### -", true, true, false},
        {"x\n#### .5", true, true, false},
        {"x\n#### 10 eggs", true, true, false},
        {"x\n#### ten", true, true, false},
        {"\n\n", true, true, false},
    };
    assert_closures(examples, N_ITEMS(examples));
}

/* Any bytes at all: it ends, and looks at nothing beyond them. */
static void test_any_bytes(void **state)
{
    static const char pieces[] = "\"'\\([{)]}#0 \n\xe2\x80\x9c\x9d";
    uint64_t seed = 3;
    for (int round = 0; round < 5000; round++) {
        uint64_t n = test_random(&seed) % 24;
        char *text = malloc(n ? n : 1);
        for (uint64_t i = 0; i < n; i++)
            text[i] = pieces[test_random(&seed) % (sizeof pieces - 1)];
        struct moe_closure c = moe_closure_of(text, n);
        if (n && memchr(")]}", text[0], 3))
            assert_false(c.brackets);
        free(text);
    }
}

/* ---- Continuing ---- */

enum { DOCUMENTS = 7, MAX_NEW = 60 };

static const char *const paths[] = {"tests/data/math.valid.txt", "tests/data/code.valid.txt"};
static struct fixture fixture;
static struct moe_corpus *corpus;

static int group_setup(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    fixture_open(&fixture, 4, 4, 40);
    assert_ok(moe_corpus_read(&corpus, fixture.model->tokenizer, paths, 2, 128, NULL, &err), &err);
    return 0;
}

static int group_teardown(void **state)
{
    moe_corpus_free(corpus);
    fixture_close(&fixture);
    return 0;
}

/* What was written, by document of the corpus. */
struct written {
    struct moe_buf text[DOCUMENTS];
    bool ended[DOCUMENTS];
    uint32_t first, n;
};

static void keep(void *ctx, uint32_t document, const char *text, uint64_t n, bool ended)
{
    struct written *w = ctx;
    assert_in_range(document, w->first, w->first + DOCUMENTS - 1);
    assert_int_equal(w->text[document - w->first].size, 0);
    moe_buf_append(&w->text[document - w->first], text, n);
    w->ended[document - w->first] = ended;
    w->n++;
}

static void release(struct written *w)
{
    for (int d = 0; d < DOCUMENTS; d++)
        moe_buf_release(&w->text[d]);
}

static int append(void *ctx, const char *bytes, uint64_t n)
{
    moe_buf_append(ctx, bytes, n);
    return MOE_OK;
}

/* One document alone, as moe-run --temp 0 writes. */
static void continue_alone(struct moe_session *s, uint32_t document, uint64_t n_prompt,
                           struct moe_buf *text, bool *ended)
{
    struct moe_err err = {0};
    struct moe_sampler_options greedy;
    struct moe_sampler *sampler;
    struct moe_ids history = {0};
    uint64_t n_done = 0;
    enum moe_stop_reason why;
    const uint32_t *ids = corpus->ids + corpus->first[document];
    moe_sampler_options_default(&greedy);
    greedy.temperature = 0;
    assert_ok(moe_sampler_new(&sampler, &greedy, s->model->config.vocab, &err), &err);
    for (uint64_t i = 0; i < n_prompt; i++) {
        uint32_t n;
        const uint8_t *bytes = moe_tokenizer_bytes(s->model->tokenizer, ids[i], &n);
        assert_ok(moe_ids_push(&history, ids[i], &err), &err);
        if (i > 0) /* the first is the end-of-text token */
            moe_buf_append(text, bytes, n);
    }
    const struct moe_generate_options options = {
        .max_tokens = MAX_NEW,
        .started = moe_seconds(),
        .text = append,
        .ctx = text,
    };
    assert_ok(moe_generate(s, sampler, &history, &n_done, &options, &why, &err), &err);
    *ended = why == MOE_STOP_EOS;
    assert_true(*ended || why == MOE_STOP_LENGTH);
    moe_ids_release(&history);
    moe_sampler_free(sampler);
}

static struct moe_structure_options options_of(struct written *w, double share)
{
    return (struct moe_structure_options){
        .documents = DOCUMENTS, .prompt_share = share, .max_new = MAX_NEW, .wrote = keep, .ctx = w};
}

/* Side by side in a session of four sequences, whose batches do not hold two prompts, they come out
 * as alone; so do the counts. */
static void test_as_alone(void **state)
{
    struct moe_err err = {0};
    struct moe_map_structure out, sums = {0};
    struct written w = {.first = 0};
    struct moe_structure_options options = options_of(&w, 0.7);
    assert_ok(moe_structure_measure(fixture.session, corpus, 0, &options, &out, &err), &err);
    assert_int_equal(w.n, DOCUMENTS);
    for (uint32_t d = 0; d < DOCUMENTS; d++) {
        struct moe_buf text = {0};
        bool ended;
        uint64_t n_prompt = (uint64_t)(0.7 * moe_corpus_length(corpus, d));
        continue_alone(fixture.session, d, n_prompt, &text, &ended);
        assert_int_equal(w.text[d].size, text.size);
        assert_memory_equal(w.text[d].data, text.data, text.size);
        assert_int_equal(w.ended[d], ended);
        struct moe_closure c = moe_closure_of((const char *)text.data, text.size);
        sums.brackets += c.brackets;
        sums.quotes += c.quotes;
        sums.answers += c.answer;
        sums.ended += ended;
        moe_buf_release(&text);
    }
    assert_string_equal(out.text, "math.valid.txt");
    assert_int_equal(out.documents, DOCUMENTS);
    assert_int_equal(out.brackets, sums.brackets);
    assert_int_equal(out.quotes, sums.quotes);
    assert_int_equal(out.answers, sums.answers);
    assert_int_equal(out.ended, sums.ended);
    assert_in_range(out.ended, 1, DOCUMENTS - 1); /* some end, some are cut off by the limit */
    release(&w);
}

/* Sessions of one sequence, of more sequences than rows in a pass, and of all at once agree. */
static void test_any_batch(void **state)
{
    static const uint32_t shapes[][2] = {{1, 64}, {3, 2}, {8, 256}};
    struct moe_err err = {0};
    struct moe_map_structure first, out;
    struct written wanted = {.first = corpus->texts[1].first_document};
    struct moe_structure_options options = options_of(&wanted, 0.5);
    assert_ok(moe_structure_measure(fixture.session, corpus, 1, &options, &first, &err), &err);
    assert_int_equal(first.answers, UINT32_MAX); /* code has none */
    for (size_t i = 0; i < N_ITEMS(shapes); i++) {
        struct moe_session *s;
        struct written got = {.first = wanted.first};
        const struct moe_session_options shape = {
            .context = 200, .n_sequences = shapes[i][0], .batch = shapes[i][1]};
        assert_ok(moe_session_open(&s, fixture.model, fixture.experts, &shape, &err), &err);
        options.ctx = &got;
        assert_ok(moe_structure_measure(s, corpus, 1, &options, &out, &err), &err);
        for (int d = 0; d < DOCUMENTS; d++) {
            assert_int_equal(got.text[d].size, wanted.text[d].size);
            assert_memory_equal(got.text[d].data, wanted.text[d].data, got.text[d].size);
        }
        assert_int_equal(out.brackets, first.brackets);
        assert_int_equal(out.quotes, first.quotes);
        assert_int_equal(out.ended, first.ended);
        release(&got);
        moe_session_close(s);
    }
    release(&wanted);
}

static uint64_t n_ids(const char *text, uint64_t n)
{
    struct moe_err err = {0};
    struct moe_ids ids = {0};
    assert_ok(moe_tokenizer_encode(fixture.model->tokenizer, text, n, false, &ids, &err), &err);
    uint64_t count = ids.n;
    moe_ids_release(&ids);
    return count;
}

/* A limit, or the context's end, cuts a document off; it is judged as it stands then. */
static void test_cut_off(void **state)
{
    struct moe_err err = {0};
    struct moe_map_structure out;
    struct written w = {0};
    struct moe_structure_options options = options_of(&w, 0.5);
    uint64_t n_prompt = moe_corpus_length(corpus, 0) / 2;
    options.documents = 1;
    options.max_new = 1;
    assert_ok(moe_structure_measure(fixture.session, corpus, 0, &options, &out, &err), &err);
    assert_int_equal(out.documents, 1);
    assert_int_equal(out.ended, 0);
    assert_int_equal(out.answers, 0);
    assert_in_range(n_ids((const char *)w.text[0].data, w.text[0].size), n_prompt - 1, n_prompt);
    release(&w);

    struct moe_session *s;
    const struct moe_session_options shape = {.context = (uint32_t)n_prompt + 1};
    assert_ok(moe_session_open(&s, fixture.model, fixture.experts, &shape, &err), &err);
    memset(&w, 0, sizeof w);
    options.max_new = MAX_NEW;
    assert_ok(moe_structure_measure(s, corpus, 0, &options, &out, &err), &err);
    assert_int_equal(out.ended, 0);
    assert_in_range(n_ids((const char *)w.text[0].data, w.text[0].size), n_prompt, n_prompt + 1);
    options.prompt_share = 1;
    assert_fails(moe_structure_measure(s, corpus, 0, &options, &out, &err), MOE_ERR_LIMIT,
                 "does not fit the context", &err);
    moe_session_close(s);
    release(&w);
}

static void test_originals(void **state)
{
    struct moe_err err = {0};
    struct moe_map_structure out;
    char path[64];
    static const char text[] = "f(x) = \"y\"\n#### 4\n<|endoftext|>\nf(x\n<|endoftext|>\n"
                               "\"f(x)\n<|endoftext|>\na\n#### 12\n";
    static const char plain[] = "one (\n<|endoftext|>\ntwo\n";
    const struct moe_tokenizer *tok = fixture.model->tokenizer;
    snprintf(path, sizeof path, "/tmp/moe-test-structure-%d.txt", (int)getpid());
    const char *one[] = {path};
    for (int i = 0; i < 2; i++) {
        struct moe_corpus *c;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(i ? plain : text, file);
        assert_int_equal(fclose(file), 0);
        assert_ok(moe_corpus_read(&c, tok, one, 1, 64, NULL, &err), &err);
        assert_ok(moe_structure_originals(tok, c, 0, 0, &out, &err), &err);
        assert_int_equal(out.documents, i ? 2 : 4);
        assert_int_equal(out.brackets, i ? 1 : 3);
        assert_int_equal(out.quotes, i ? 2 : 3);
        assert_int_equal(out.answers, i ? UINT32_MAX : 2);
        assert_int_equal(out.ended, i ? 2 : 4);
        assert_ok(moe_structure_originals(tok, c, 0, 2, &out, &err), &err);
        assert_int_equal(out.documents, 2);
        assert_int_equal(out.answers, i ? UINT32_MAX : 1);
        assert_fails(moe_structure_originals(tok, c, 1, 0, &out, &err), MOE_ERR_USAGE,
                     "no text 1 among 1", &err);
        moe_corpus_free(c);
    }
    unlink(path);
}

static void test_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_map_structure out;
    struct moe_structure_options options = {.prompt_share = 0, .max_new = 1};
    assert_fails(moe_structure_measure(fixture.session, corpus, 0, &options, &out, &err),
                 MOE_ERR_USAGE, "a prompt of 0", &err);
    options = (struct moe_structure_options){.prompt_share = 0.5};
    assert_fails(moe_structure_measure(fixture.session, corpus, 0, &options, &out, &err),
                 MOE_ERR_USAGE, "0 tokens after it", &err);
    volatile sig_atomic_t stop = 1;
    const struct moe_progress progress = {.stop = &stop};
    options =
        (struct moe_structure_options){.prompt_share = 0.5, .max_new = 1, .progress = &progress};
    assert_fails(moe_structure_measure(fixture.session, corpus, 0, &options, &out, &err),
                 MOE_ERR_INTERRUPTED, "stopped", &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_brackets),  cmocka_unit_test(test_depth),
        cmocka_unit_test(test_quotes),    cmocka_unit_test(test_answers),
        cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_as_alone),
        cmocka_unit_test(test_any_batch), cmocka_unit_test(test_cut_off),
        cmocka_unit_test(test_originals), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
