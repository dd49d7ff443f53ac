/*
 * Requests from lines of JSON: a result for each, whatever others are like; what is read ahead is
 * bounded; and a run that ended anywhere is gone on with, so that every request has one result.
 */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"
#include "model_fixture.h"

#include <jansson.h>

#include "serve/lines.h"
#include "serve/server.h"

static char pack[128];
static struct moe_server *server;

static int open_all(void **state)
{
    struct moe_err err;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    fixture_pack(pack, 4);
    /* A queue that is shorter than what is read ahead. */
    const struct moe_server_options o = {.pack = pack,
                                         .name = "tiny",
                                         .engine = {.session = {.context = 256}},
                                         .sequences = 2,
                                         .max_queue = 3};
    assert_ok(moe_server_open(&server, &o, NULL, &err), &err);
    return make_dir(state);
}

static int close_all(void **state)
{
    moe_server_close(server);
    unlink(pack);
    return remove_dir(state);
}

/* ---- Serving ---- */

struct taken {
    struct moe_buf text;
    uint64_t n, n_bytes, most; /* lines; where `most` is not 0 the next one fails */
    bool keeps;
};

static int take(void *ctx, const void *line, uint64_t n, struct moe_err *err)
{
    struct taken *t = ctx;
    if (t->most && t->n == t->most)
        return moe_fail(err, MOE_ERR_IO, "standard output: closed");
    assert_int_equal(((const char *)line)[n - 1], '\n');
    t->n++;
    t->n_bytes += n;
    if (t->keeps)
        moe_buf_append(&t->text, line, n);
    return MOE_OK;
}

static struct moe_lines_counts serve(const char *requests, uint64_t n, struct taken *t)
{
    struct moe_lines_counts counts;
    struct moe_err err;
    write_in_dir("in", requests, n);
    const struct moe_lines_options o = {.input = in_dir("in"), .put = take, .ctx = t};
    assert_ok(moe_lines_serve(server, &o, &counts, &err), &err);
    return counts;
}

/* The result of that line among n bytes of results, or NULL; *n_found of them. */
static json_t *find(const char *results, uint64_t n, int line, int *n_found)
{
    json_t *found = NULL;
    char id[32];
    snprintf(id, sizeof id, "batch_req_%d", line);
    *n_found = 0;
    for (const char *at = results, *end; at < results + n; at = end + 1) {
        end = memchr(at, '\n', (size_t)(results + n - at));
        assert_non_null(end);
        json_t *one = json_loadb(at, (size_t)(end - at), 0, NULL);
        assert_non_null(one);
        assert_int_equal(json_object_size(one), 4);
        if (strcmp(json_string_value(json_object_get(one, "id")), id) == 0) {
            ++*n_found;
            json_decref(found);
            found = json_incref(one);
        }
        json_decref(one);
    }
    return found;
}

static json_t *result_of(const struct taken *t, int line)
{
    int n;
    json_t *one = find((const char *)t->text.data, t->text.size, line, &n);
    assert_int_equal(n, 1);
    return one;
}

static void check_refused(const struct taken *t, int line, const char *id, const char *words)
{
    json_t *one = result_of(t, line), *custom = json_object_get(one, "custom_id");
    const char *why = json_string_value(json_object_get(json_object_get(one, "error"), "message"));
    assert_true(json_is_null(json_object_get(one, "response")));
    assert_string_equal(json_is_null(custom) ? "" : json_string_value(custom), id);
    if (!why || !strstr(why, words))
        fail_msg("line %d: '%s' should contain '%s'", line, why ? why : "no error", words);
    json_decref(one);
}

/* The number of choices of an answer, whose object is of that kind. */
static size_t check_answered(const struct taken *t, int line, const char *object)
{
    json_t *one = result_of(t, line), *response = json_object_get(one, "response");
    json_t *body = json_object_get(response, "body");
    assert_true(json_is_null(json_object_get(one, "error")));
    assert_int_equal(json_integer_value(json_object_get(response, "status_code")), 200);
    assert_string_equal(json_string_value(json_object_get(response, "request_id")),
                        json_string_value(json_object_get(body, "id")));
    assert_string_equal(json_string_value(json_object_get(body, "object")), object);
    size_t n = json_array_size(json_object_get(body, "choices"));
    json_decref(one);
    return n;
}

/* ---- Tests ---- */

#define SHORT "\"max_tokens\": 2, \"seed\": 1"

static void every_line_has_its_result(void **state)
{
    (void)state;
    static const char requests[] =
        "\xef\xbb\xbf{\"custom_id\": \"one\", \"prompt\": \"a\", " SHORT "}\r\n"
        "\n"
        " \t\n"
        "{\"id\": 4, \"prompt\": [5, 6], \"n\": 3, \"stream\": true, " SHORT "}\n"
        "{\"custom_id\": \"five\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": "
        "{\"prompt\": \"b\", " SHORT "}}\n"
        "no JSON\n"
        "{\"custom_id\": \"seven\", \"prompt\": \"\xff\"}\n"
        "{\"prompt\": \"c\", \"temperature\": 9}\n"
        "{\"custom_id\": \"nine\", \"url\": \"/v1/embeddings\", \"body\": {\"prompt\": \"d\"}}\n"
        "{\"custom_id\": \"ten\", \"method\": \"GET\", \"body\": {\"prompt\": \"d\"}}\n"
        "{\"custom_id\": \"eleven\", \"body\": 3}\n"
        "{\"custom_id\": {\"a\": 1}, \"prompt\": \"e\"}\n"
        "{\"custom_id\": \"thirteen\"}\n"
        "[1]\n"
        "{\"custom_id\": \"fifteen\", \"model\": \"other\", \"prompt\": \"f\", " SHORT "}\n"
        "{\"custom_id\": \"sixteen\", \"prompt\": [999999999]}\n"
        "{\"custom_id\": \"seventeen\", \"messages\": [{\"role\": \"user\", \"content\": \"\"}]}\n"
        "{\"id\": \"x\", \"custom_id\": \"last\", \"prompt\": \"g\", " SHORT "}";
    struct taken t = {.keeps = true};
    struct moe_lines_counts counts = serve(requests, sizeof requests - 1, &t);
    assert_int_equal(counts.n_served, 5);
    assert_int_equal(counts.n_refused, 11);
    assert_int_equal(t.n, 16);
    assert_int_equal(check_answered(&t, 1, "text_completion"), 1);
    assert_int_equal(check_answered(&t, 4, "text_completion"), 3);
    assert_int_equal(check_answered(&t, 5, "text_completion"), 1);
    assert_int_equal(check_answered(&t, 18, "text_completion"), 1);
    json_t *four = result_of(&t, 4), *last = result_of(&t, 18);
    assert_int_equal(json_integer_value(json_object_get(four, "custom_id")), 4);
    assert_string_equal(json_string_value(json_object_get(last, "custom_id")), "last");
    json_decref(four);
    json_decref(last);
    check_refused(&t, 6, "", "line 1 column");
    check_refused(&t, 7, "seven", "0xff");
    check_refused(&t, 8, "", "'temperature' is 9");
    check_refused(&t, 9, "nine", "'url' is neither");
    check_refused(&t, 10, "ten", "'method' is not POST");
    check_refused(&t, 11, "eleven", "'body' is not an object");
    check_refused(&t, 12, "", "'custom_id' is neither");
    check_refused(&t, 13, "thirteen", "neither 'messages' nor 'prompt'");
    check_refused(&t, 14, "", "not a JSON object");
    assert_int_equal(check_answered(&t, 15, "text_completion"), 1); /* by whatever name */
    check_refused(&t, 16, "sixteen", "999999999");
    check_refused(&t, 17, "seventeen", "chat template");
    moe_buf_release(&t.text);
    struct taken none = {0};
    assert_int_equal(serve("", 0, &none).n_served, 0);
    assert_int_equal(serve("\n\n", 2, &none).n_served, 0);
    assert_int_equal(none.n, 0);
}

#ifdef __SANITIZE_ADDRESS__
enum { KEEPS_FREED = 1 }; /* memory that is freed, for a while */
#else
enum { KEEPS_FREED = 0 };
#endif

static void what_is_read_ahead_is_bounded(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const char line[] =
        "{\"custom_id\": \"%06d\", \"prompt\": \"x\", \"top_p\": 2, \"pad\": "
        "\"%0400d\"}\n";
    struct moe_buf in = {0};
    struct taken t = {0};
    for (int i = 0; i < N; i++)
        moe_buf_printf(&in, line, i, i);
    assert_false(in.failed);
    write_in_dir("in", in.data, in.size);
    uint64_t size = in.size;
    moe_buf_release(&in);
    struct moe_lines_counts counts;
    struct moe_err err;
    uint64_t before = moe_peak_rss_bytes();
    const struct moe_lines_options o = {.input = in_dir("in"), .put = take, .ctx = &t};
    assert_ok(moe_lines_serve(server, &o, &counts, &err), &err);
    assert_int_equal(t.n, N);
    assert_int_equal(counts.n_refused, N);
    assert_true(KEEPS_FREED || moe_peak_rss_bytes() - before < size / 4);
    /* A line that is longer than any may be. */
    struct taken kept = {.keeps = true};
    moe_buf_text(&in, "{\"prompt\": \"");
    for (uint64_t n = 0; n < MOE_LINES_MAX_BYTES + (1 << 20); n += 64)
        moe_buf_printf(&in, "%064d", 1);
    moe_buf_text(&in, "\"}\n{\"prompt\": \"a\", " SHORT "}\n");
    assert_int_equal(serve((char *)in.data, in.size, &kept).n_served, 1);
    check_refused(&kept, 1, "", "longer than 4 MiB");
    check_answered(&kept, 2, "text_completion");
    moe_buf_clear(&kept.text);
    /* ... and does not end. */
    assert_int_equal(serve((char *)in.data, MOE_LINES_MAX_BYTES + 3, &kept).n_refused, 1);
    check_refused(&kept, 1, "", "longer than 4 MiB");
    moe_buf_release(&in);
    moe_buf_release(&kept.text);
}

static int serve_to_file(bool resume, struct moe_lines_counts *counts, struct moe_err *err)
{
    const struct moe_lines_options o = {
        .input = in_dir("in"), .output = in_dir("out"), .resume = resume};
    return moe_lines_serve(server, &o, counts, err);
}

static struct moe_buf read_out(void)
{
    struct moe_buf text = {0};
    struct moe_err err;
    assert_ok(moe_file_read_all(in_dir("out"), 1 << 24, &text, &err), &err);
    return text;
}

/* Results cut off at any byte, as a kill leaves them. */
static void a_run_is_gone_on_with(void **state)
{
    (void)state;
    enum { N = 9, EMPTY = 4 };
    struct moe_lines_counts counts;
    struct moe_err err;
    struct moe_buf in = {0};
    uint64_t random = 7;
    for (int i = 1; i <= N; i++) /* two have the same id, one none, one is bad */
        moe_buf_printf(&in, i == EMPTY ? "\n" : "{%s\"prompt\": \"%d\", " SHORT "%s}\n",
                       i == 2   ? ""
                       : i == 3 ? "\"custom_id\": 3.0e1, "
                                : "\"custom_id\": \"\\u00e9\", ",
                       i, i == 5 ? ", \"top_p\": 7" : "");
    write_in_dir("in", in.data, in.size);
    unlink(in_dir("out"));
    assert_ok(serve_to_file(true, &counts, &err), &err); /* nothing is there yet */
    struct moe_buf whole = read_out();
    for (int round = 0; round < 30; round++) {
        uint64_t kept =
            round < 2 ? (uint64_t)round * whole.size : test_random(&random) % whole.size;
        uint64_t n_lines = 0;
        for (uint64_t i = 0; i < kept; i++)
            n_lines += whole.data[i] == '\n';
        write_in_dir("out", whole.data, kept);
        assert_ok(serve_to_file(true, &counts, &err), &err);
        assert_int_equal(counts.n_before, n_lines);
        assert_int_equal(counts.n_served + counts.n_refused, N - 1 - n_lines);
        struct moe_buf now = read_out();
        for (int i = 1; i <= N; i++) {
            int n_found;
            json_decref(find((char *)now.data, now.size, i, &n_found));
            assert_int_equal(n_found, i != EMPTY);
        }
        moe_buf_release(&now);
    }
    moe_buf_release(&whole);
    moe_buf_release(&in);
}

static void what_is_not_its_output_is_left_alone(void **state)
{
    (void)state;
    static const char requests[] = "{\"custom_id\": \"a\", \"prompt\": \"x\", " SHORT "}\n";
    static const struct {
        const char *out, *words;
        int status;
    } others[] = {
        {"text\n", "line 1 is not a result", MOE_ERR_FORMAT},
        {"{\"id\": \"batch_req_0\", \"custom_id\": \"a\"}\n", "not a result", MOE_ERR_FORMAT},
        {"{\"id\": \"batch_req_99999999999\"}\n", "not a result", MOE_ERR_FORMAT},
        {"{\"id\": 1}\n", "not a result", MOE_ERR_FORMAT},
        {"[]\n", "not a result", MOE_ERR_FORMAT},
        {"{\"id\": \"batch_req_1\", \"custom_id\": \"b\"}\n", "another custom_id", MOE_ERR_USAGE},
    };
    struct moe_lines_counts counts;
    struct moe_err err;
    write_in_dir("in", requests, strlen(requests));
    for (size_t i = 0; i < N_ITEMS(others); i++) {
        write_in_dir("out", others[i].out, strlen(others[i].out));
        assert_fails(serve_to_file(false, &counts, &err), MOE_ERR_USAGE, "exists", &err);
        assert_fails(serve_to_file(true, &counts, &err), others[i].status, others[i].words, &err);
        struct moe_buf now = read_out();
        assert_string_equal((char *)now.data, others[i].out);
        moe_buf_release(&now);
    }
    write_in_dir("out", "", 0); /* as one that is new */
    assert_ok(serve_to_file(false, &counts, &err), &err);
    assert_int_equal(counts.n_served, 1);
    unlink(in_dir("in"));
    unlink(in_dir("out"));
    assert_fails(serve_to_file(false, &counts, &err), MOE_ERR_IO, "in", &err);
    assert_false(moe_path_exists(in_dir("out")));
}

static volatile sig_atomic_t stop;

static int take_and_stop(void *ctx, const void *line, uint64_t n, struct moe_err *err)
{
    stop = 1;
    return take(ctx, line, n, err);
}

static void what_hinders_ends_it(void **state)
{
    (void)state;
    struct moe_buf in = {0};
    struct taken t = {.most = 3};
    struct moe_lines_counts counts;
    struct moe_err err;
    for (int i = 0; i < 40; i++)
        moe_buf_printf(&in, "{\"prompt\": \"%d\", \"max_tokens\": 20, \"seed\": 1}\n", i);
    write_in_dir("in", in.data, in.size);
    moe_buf_release(&in);
    struct moe_lines_options o = {.input = in_dir("in"), .put = take, .ctx = &t};
    assert_fails(moe_lines_serve(server, &o, &counts, &err), MOE_ERR_IO, "closed", &err);
    assert_int_equal(t.n, 3);
    assert_int_equal(counts.n_served, 3);
    t = (struct taken){0};
    o.put = take_and_stop;
    o.stop = &stop;
    assert_fails(moe_lines_serve(server, &o, &counts, &err), MOE_ERR_INTERRUPTED, "interrupted",
                 &err);
    assert_true(t.n > 0 && t.n < 40);
    assert_int_equal(counts.n_served, t.n);
    stop = 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_line_has_its_result),
        cmocka_unit_test(what_is_read_ahead_is_bounded),
        cmocka_unit_test(a_run_is_gone_on_with),
        cmocka_unit_test(what_is_not_its_output_is_left_alone),
        cmocka_unit_test(what_hinders_ends_it),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
