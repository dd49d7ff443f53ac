/* Texts read through a window: the documents, ids and fingerprints of a whole file, wherever lines
 * and separators lie; beginnings of a text's ids; surveys that bound both. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"
#include "base/hash.h"
#include "tokenizer_fixture.h"
#include "tune/documents.h"

enum { WINDOW = 256 << 10, MAX_TOKENS = 24 };

static const char separator[] = "<|endoftext|>";

/* ---- Documents ---- */

struct seen {
    struct moe_tokenizer *tok;
    const char *text; /* what is left of the file */
    uint64_t n;
    uint64_t n_documents, fingerprint, longest, n_ids;
};

/* The next document that is not empty, of a text that is whole in memory: cut as the header says.
 */
static uint64_t next_document(struct seen *s, const char **from)
{
    uint64_t length = strlen(separator);
    while (s->n) {
        uint64_t end = s->n, after = s->n;
        for (uint64_t line = 0; line < s->n;) {
            const char *newline = memchr(s->text + line, '\n', s->n - line);
            uint64_t stop = newline ? (uint64_t)(newline - s->text) : s->n;
            if (stop - line == length && memcmp(s->text + line, separator, length) == 0) {
                end = line;
                after = newline ? stop + 1 : s->n;
                break;
            }
            line = stop + 1;
        }
        *from = s->text;
        s->text += after;
        s->n -= after;
        if (end && (*from)[end - 1] == '\n')
            end--;
        if (end)
            return end;
    }
    return 0;
}

static int check_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    (void)err;
    struct seen *s = ctx;
    const char *text;
    uint64_t bytes = next_document(s, &text);
    assert_true(bytes > 0);
    struct moe_ids all = encode(s->tok, text, bytes, false);
    uint64_t wanted = all.n + 1 < MAX_TOKENS ? all.n + 1 : MAX_TOKENS;
    assert_int_equal(n, wanted);
    assert_int_equal(ids[0], moe_tokenizer_separator(s->tok));
    assert_memory_equal(ids + 1, all.ids, (n - 1) * sizeof *ids);
    moe_ids_release(&all);
    s->n_documents++;
    s->fingerprint = moe_hash64_chain(s->fingerprint, text, bytes);
    s->longest = bytes > s->longest ? bytes : s->longest;
    s->n_ids += n;
    return MOE_OK;
}

static void check_text(struct moe_tokenizer *tok, const char *text, uint64_t n)
{
    struct moe_err err = {0};
    struct moe_documents_size size;
    uint64_t n_documents, fingerprint;
    struct seen s = {.tok = tok, .text = text, .n = n};
    const struct moe_documents d = {.tokenizer = tok, .max_tokens = MAX_TOKENS, .max_windows = 1};
    write_in_dir("text", text, n);
    const char *path = in_dir("text");
    assert_ok(moe_documents_each(&d, path, check_document, &s, &err), &err);
    assert_int_equal(next_document(&s, &text), 0);
    assert_ok(moe_documents_count(&d, path, &n_documents, &fingerprint, &err), &err);
    assert_int_equal(n_documents, s.n_documents);
    assert_int_equal(fingerprint, s.fingerprint);
    for (uint64_t may_hold = 0; may_hold <= n; may_hold += n + 1 - may_hold) {
        assert_ok(moe_documents_survey(&d, &path, 1, may_hold, &size, &err), &err);
        assert_int_equal(size.n, s.n_documents);
        assert_int_equal(size.longest, s.longest);
        assert_true(size.most_ids >= s.n_ids && size.bytes >= s.longest);
    }
}

static void texts_with_edges(void **state)
{
    static const char *const texts[] = {
        "",
        "\n",
        "one",
        "one\n",
        "one\n\n",
        "<|endoftext|>",
        "<|endoftext|>\n",
        "<|endoftext|>\n<|endoftext|>\none",
        "one\n<|endoftext|>",
        "one\n<|endoftext|>\n",
        "one\n<|endoftext|>\n\n<|endoftext|>\ntwo\n",
        "one <|endoftext|>\ntwo\n<|endoftext|> \n<|endoftext|>x\n<|endoftext\n<|endoftext|>\nthree",
        "\n<|endoftext|>\n\n\n<|endoftext|>\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_text(*state, texts[i], strlen(texts[i]));
}

/* Separators at every place around the edge of the window, in short and in long lines. */
static void separators_at_the_edge_of_the_window(void **state)
{
    enum { ROOM = 2 * WINDOW };
    char *text = malloc(ROOM);
    for (int at = -20; at <= 4; at++)
        for (int shape = 0; shape < 3; shape++) {
            uint64_t n = (uint64_t)(WINDOW + at);
            for (uint64_t i = 0; i < n; i++)
                text[i] = shape < 2 && i % 70 == 69 ? '\n' : "a bc d"[i % 6];
            text[n - 1] = shape == 1 ? ' ' : '\n'; /* 1: not on a line of its own */
            n += (uint64_t)snprintf(text + n, ROOM - n, "%s\nthe end of it", separator);
            check_text(*state, text, n);
        }
    free(text);
}

static void random_texts(void **state)
{
    static const char *const parts[] = {
        "word ",  "\n", "<|endoftext|>\n",   "<|endoftext|>", "a",
        "\n\n\n", " ",  "\n<|endoftext|>\n", "\xff",          "\xe4\xbd\xa0"};
    uint64_t random = 19;
    char *text = malloc(1 << 17);
    for (int turn = 0; turn < 40; turn++) {
        uint64_t n = 0, most = test_random(&random) % 2000;
        for (uint64_t i = 0; i < most; i++) {
            const char *part = parts[test_random(&random) % (sizeof parts / sizeof *parts)];
            memcpy(text + n, part, strlen(part));
            n += strlen(part);
        }
        check_text(*state, text, n);
    }
    free(text);
}

/* Windows of a document, one behind the other. */
struct in_windows {
    const struct moe_documents *d;
    struct moe_ids all; /* of the document */
    uint64_t at, n;     /* ids met, windows */
};

static int check_window(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    (void)err;
    struct in_windows *w = ctx;
    assert_int_equal(ids[0], moe_tokenizer_separator(w->d->tokenizer));
    assert_in_range(n, 2, w->d->max_tokens);
    assert_true(n == w->d->max_tokens || w->at + n - 1 == w->all.n);
    assert_memory_equal(ids + 1, w->all.ids + w->at, (n - 1) * sizeof *ids);
    w->at += n - 1;
    w->n++;
    return MOE_OK;
}

/* Documents of every length about the edges of windows, and one of many: nothing is lost or met
 * twice, and what is left out is counted. */
static void documents_in_windows(void **state)
{
    struct moe_err err = {0};
    char *text = malloc(1 << 20);
    for (uint32_t words = 1; words <= 80; words++)
        for (uint32_t windows = 0; windows < 4; windows++) {
            struct moe_left_out left_out = {0};
            struct moe_documents_size size;
            struct moe_documents d = {.tokenizer = *state,
                                      .max_tokens = 2 + words % MAX_TOKENS,
                                      .max_windows = windows,
                                      .left_out = &left_out};
            struct in_windows w = {.d = &d};
            uint64_t n = 0, counted, fingerprint;
            for (uint32_t i = 0; i < (words == 80 ? 5000 : words); i++)
                n += (uint64_t)snprintf(text + n, 32, "%sword", i ? " " : "");
            w.all = encode(*state, text, n, false);
            write_in_dir("windows", text, n);
            const char *path = in_dir("windows");
            assert_ok(moe_documents_each(&d, path, check_window, &w, &err), &err);
            uint64_t each = d.max_tokens - 1, whole = (w.all.n + each - 1) / each;
            assert_int_equal(w.n, windows && windows < whole ? windows : whole);
            assert_int_equal(left_out.of, w.all.n);
            assert_int_equal(left_out.tokens, w.all.n - w.at);
            assert_int_equal(left_out.documents, w.at < w.all.n);
            d.left_out = NULL;
            assert_ok(moe_documents_count(&d, path, &counted, &fingerprint, &err), &err);
            assert_int_equal(counted, w.n);
            assert_ok(moe_documents_survey(&d, &path, 1, 1 << 20, &size, &err), &err);
            assert_true(size.n >= w.n && size.most_ids >= w.at + w.n);
            moe_ids_release(&w.all);
        }
    free(text);
}

/* One line of two megabytes: a document of one piece and one of many. */
static void long_documents_stop_early(void **state)
{
    enum { N = 2 << 20 };
    struct moe_err err = {0};
    struct moe_documents_size size[2];
    const struct moe_documents d = {
        .tokenizer = *state, .max_tokens = MAX_TOKENS, .max_windows = 1};
    char *text = malloc(N);
    for (int i = 0; i < 2; i++) {
        memset(text, 'a', N);
        for (uint64_t at = 0; i == 1 && at < N; at += 6)
            text[at] = ' ';
        write_in_dir("long", text, N);
        const char *path = in_dir("long");
        assert_ok(moe_documents_survey(&d, &path, 1, N, &size[i], &err), &err);
        assert_int_equal(size[i].longest, N);
    }
    /* The text itself is counted, and what merging takes: next to nothing for short words. */
    assert_true(size[1].bytes < N + (1 << 20));
    assert_true(size[0].bytes > 30 * (uint64_t)N && size[0].bytes < 40 * (uint64_t)N);
    free(text);
}

static void files_that_are_none(void **state)
{
    struct moe_err err = {0};
    struct moe_documents_size size;
    uint64_t n, fingerprint;
    const struct moe_documents d = {
        .tokenizer = *state, .max_tokens = MAX_TOKENS, .max_windows = 1};
    const char *path = "/nowhere/text";
    assert_fails(moe_documents_survey(&d, &path, 1, 0, &size, &err), MOE_ERR_IO, "cannot open",
                 &err);
    assert_fails(moe_documents_count(&d, path, &n, &fingerprint, &err), MOE_ERR_IO, "cannot open",
                 &err);
    assert_fails(moe_documents_each(&d, "/", check_document, NULL, &err), MOE_ERR_FORMAT,
                 "directory", &err);
}

/* Texts that other models' documents are separated in are cut where they say. */
static void another_separator(void **state)
{
    static const char text[] = "one\n<|end|>\ntwo\n<|end|>\nthree\n<|endoftext|>\nfour <|end|>\n";
    struct moe_err err = {0};
    uint64_t n, fingerprint;
    struct moe_documents d = {.tokenizer = *state, .max_tokens = 1024};
    write_in_dir("text", text, sizeof text - 1);
    assert_ok(moe_documents_count(&d, in_dir("text"), &n, &fingerprint, &err), &err);
    assert_int_equal(n, 2);
    d.separator = "<|end|>";
    assert_ok(moe_documents_count(&d, in_dir("text"), &n, &fingerprint, &err), &err);
    assert_int_equal(n, 3);
}

/* ---- Beginnings ---- */

static const char *const kinds[] = {"deepseek",  "deepseek-coder", "deepseek-llm", "gpt2",
                                    "gpt4o",     "granite",        "llama2",       "llama3",
                                    "metaspace", "normalized",     "olmo",         "phi3",
                                    "prefix",    "qwen2",          "steps",        "unknown"};

struct parts {
    struct moe_ids all;
    uint64_t keep;
};

/* Takes all but a few. */
static int take(void *ctx, struct moe_ids *ids, struct moe_err *err)
{
    struct parts *p = ctx;
    uint64_t n = ids->n - p->keep;
    for (uint64_t i = 0; i < n; i++)
        assert_ok(moe_ids_push(&p->all, ids->ids[i], err), err);
    memmove(ids->ids, ids->ids + n, p->keep * sizeof *ids->ids);
    ids->n = p->keep;
    return MOE_OK;
}

static void assert_begins(const struct moe_ids *all, const struct moe_ids *start, uint64_t least)
{
    assert_true(start->n >= (least < all->n ? least : all->n) && start->n <= all->n);
    if (start->n)
        assert_memory_equal(start->ids, all->ids, start->n * sizeof *all->ids);
}

/* Of every kind of tokenizer: normalizers, added tokens that take white space, unknown characters.
 */
static void beginnings_are_those_of_the_whole(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_buf text = {0};
    char path[256];
    assert_ok(moe_file_read_all(FIXTURES "/stress.txt", 1 << 24, &text, &err), &err);
    uint64_t random = 7;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        snprintf(path, sizeof path, FIXTURES "/%s", kinds[k]);
        struct moe_tokenizer *tok = read_hf(path);
        for (int turn = 0; turn < 60; turn++) {
            uint64_t from = test_random(&random) % (text.size - 1);
            uint64_t n = test_random(&random) % 3000 % (text.size - from);
            uint64_t least = test_random(&random) % 40;
            const char *part = (const char *)text.data + from;
            struct moe_ids all = {0}, start = {0}, left = {0};
            struct moe_tokenizer_survey survey;
            struct parts p = {.keep = least / 2};
            if (moe_tokenizer_encode(tok, part, n, false, &all, &err) != MOE_OK)
                continue; /* a byte that this vocabulary lacks */
            assert_ok(moe_tokenizer_encode_start(tok, part, n, least, &start, &err), &err);
            assert_begins(&all, &start, least);
            assert_ok(moe_tokenizer_look(tok, part, n, UINT64_MAX, &survey, &err), &err);
            assert_true(survey.least_ids <= all.n);
            assert_true(moe_tokenizer_memory(tok, n, survey.longest_piece) <=
                        moe_tokenizer_memory(tok, n, UINT64_MAX));
            assert_ok(moe_tokenizer_encode_parts(tok, part, n, least + 1, take, &p, &left, &err),
                      &err);
            for (uint64_t i = 0; i < left.n; i++)
                assert_ok(moe_ids_push(&p.all, left.ids[i], &err), &err);
            assert_int_equal(p.all.n, all.n);
            assert_begins(&all, &p.all, all.n);
            moe_ids_release(&all);
            moe_ids_release(&start);
            moe_ids_release(&left);
            moe_ids_release(&p.all);
        }
        moe_tokenizer_free(tok);
    }
    moe_buf_release(&text);
}

/* ---- Pairs ---- */

struct pairs_seen {
    struct moe_tokenizer *tok;
    const char *const (*texts)[2];
    int n;
};

static int check_pair(void *ctx, const struct moe_pair *pair, struct moe_err *err)
{
    struct pairs_seen *s = ctx;
    const char *const *texts = s->texts[s->n++];
    struct moe_ids ids = {0};
    uint64_t n;
    for (int i = 0; i < 2; i++) {
        const uint32_t *got = i ? pair->target + 1 : pair->source;
        ids.n = 0;
        assert_ok(moe_tokenizer_encode_whole(s->tok, texts[i], strlen(texts[i]), true, &ids, err),
                  err);
        n = ids.n + (uint64_t)i < MAX_TOKENS ? ids.n : MAX_TOKENS - (uint64_t)i;
        assert_int_equal(i ? pair->n_target - 1 : pair->n_source, n);
        assert_memory_equal(got, ids.ids, n * sizeof *got);
    }
    assert_int_equal(pair->target[0], 7);
    assert_string_equal(pair->target_text, texts[1]);
    moe_ids_release(&ids);
    return MOE_OK;
}

static void lines_of_pairs(void **state)
{
    static const char text[] =
        "{\"source\": \"one two\", \"target\": \"three\"}\n\n"
        "{\"target\": \"a\\nb\", \"n\": [1, {}], \"source\": \"<|endoftext|>\"}\n"
        "{\"source\":\"the quick brown fox jumps over the lazy dog and the lazy dog sleeps on and "
        "on and on\",\"target\":\"\\u00e9\"}";
    static const char *const texts[][2] = {
        {"one two", "three"},
        {"<|endoftext|>", "a\nb"},
        {"the quick brown fox jumps over the lazy dog and the lazy dog sleeps on and on and on",
         "\xc3\xa9"}};
    static const struct {
        const char *line, *says;
    } wrong[] = {
        {"{\"source\": \"a\"}", "pair 2*\"target\""},
        {"{\"target\": \"a\"}", "pair 2*\"source\""},
        {"[1]", "pair 2*an object"},
        {"{\"source\": 1, \"target\": \"a\"}", "pair 2"},
        {"{\"source\": \"\", \"target\": \"a\"}", "pair 2*empty text"},
        {"{\"source\": \"a\", \"target\": \"\"}", "pair 2*empty text"},
        {"{\"source\": \"a\", \"target\": \"b\"} x", "pair 2"},
    };
    struct moe_err err = {0};
    struct moe_documents d = {
        .tokenizer = *state, .max_tokens = MAX_TOKENS, .pairs = true, .decoder_start = 7};
    struct moe_documents_size size;
    struct pairs_seen seen = {*state, texts, 0};
    uint64_t n, fingerprint;
    write_in_dir("pairs", text, sizeof text - 1);
    const char *path = in_dir("pairs");
    assert_ok(moe_pairs_each(&d, path, check_pair, &seen, &err), &err);
    assert_int_equal(seen.n, 3);
    assert_ok(moe_documents_count(&d, path, &n, &fingerprint, &err), &err);
    assert_int_equal(n, 3);
    assert_ok(moe_documents_survey(&d, &path, 1, 1 << 20, &size, &err), &err);
    assert_int_equal(size.n, 3);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char file[200], first[32], *star = NULL;
        int bytes = snprintf(file, sizeof file,
                             "{\"source\": \"one two\", \"target\": "
                             "\"three\"}\n%s\n",
                             wrong[i].line);
        write_in_dir("pairs", file, (uint64_t)bytes);
        seen.n = 0;
        snprintf(first, sizeof first, "%s", wrong[i].says);
        star = strchr(first, '*');
        if (star)
            *star = 0;
        assert_fails(moe_pairs_each(&d, in_dir("pairs"), check_pair, &seen, &err), MOE_ERR_FORMAT,
                     first, &err);
        if (star && !strstr(err.text, star + 1))
            fail_msg("'%s' does not say '%s'", err.text, star + 1);
        assert_int_equal(seen.n, 1);
    }
}

static int set_up(void **state)
{
    *state = read_hf(BUNDLED "/tiny-moe");
    return make_dir(state);
}

static int tear_down(void **state)
{
    moe_tokenizer_free(*state);
    return remove_dir(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_with_edges),
        cmocka_unit_test(separators_at_the_edge_of_the_window),
        cmocka_unit_test(random_texts),
        cmocka_unit_test(documents_in_windows),
        cmocka_unit_test(long_documents_stop_early),
        cmocka_unit_test(files_that_are_none),
        cmocka_unit_test(another_separator),
        cmocka_unit_test(lines_of_pairs),
        cmocka_unit_test(beginnings_are_those_of_the_whole),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
