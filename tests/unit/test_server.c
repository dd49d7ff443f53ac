/*
 * A server's answers are those of each model alone, whatever runs beside them; what ends one does
 * not end others; and every request hears its end once.
 */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "model_fixture.h"
#include "profile/statistics.h"

#include <pthread.h>
#include <time.h>

#include "../server_fixture.h"

enum { N = 12, CONTEXT = 256, SEED = 5, N_MODELS = 4 };

/* Every schedule with an eviction in turn, on two executors with the next one. Under sanitizers two
 * executors only, which go through more. */
enum { IN_TURN = 3, LEAST_EXECUTORS = SANITIZED ? 2 : 1 };

static const int bits[N_MODELS] = {4, 8, 3, 2}; /* the same weights, and different answers */
static char packs[N_MODELS][128];

/* ---- One model ---- */

static void write_requests(struct asked asked[N], const char *more)
{
    static const char *const prompts[] = {"Once upon a time", "The cat", "def f(x):", "1 + 1 ="};
    uint64_t random = SEED;
    for (int i = 0; i < N; i++)
        snprintf(
            asked[i].json, sizeof asked[i].json,
            "{\"prompt\": \"%s, %d\", \"max_tokens\": %d, \"seed\": %d, \"temperature\": %g%s}",
            prompts[i % 4], i, 1 + (int)(test_random(&random) % 40), i, i % 3 ? 0.9 : 0.0, more);
}

static void ask_alone(const char *path, const struct asked asked[N], struct moe_buf want[N])
{
    const struct moe_engine_options o = {.session = {.context = CONTEXT}};
    struct moe_engine *e;
    struct moe_err err;
    assert_ok(moe_engine_open(&e, path, &o, NULL, &err), &err);
    for (int i = 0; i < N; i++) {
        struct moe_request *r = request_of(&asked[i]);
        answer_alone(e, r, &want[i]);
        moe_request_free(r);
    }
    moe_engine_close(e);
}

static struct moe_server *open_server(uint32_t sequences, uint32_t max_queue)
{
    const struct moe_server_options o = {
        .pack = packs[0],
        .engine = {.session = {.context = CONTEXT}},
        .sequences = sequences,
        .max_queue = max_queue,
    };
    struct moe_server *s;
    struct moe_err err;
    assert_ok(moe_server_open(&s, &o, NULL, &err), &err);
    return s;
}

static void answers_are_those_of_the_model_alone(void **state)
{
    static struct asked asked[N];
    struct moe_buf want[N] = {{0}};
    struct moe_server_counts counts;
    (void)state;
    write_requests(asked, "");
    ask_alone(packs[0], asked, want);
    for (uint32_t sequences = 1; sequences <= 4; sequences += 3) {
        struct moe_server *s = open_server(sequences, 0);
        for (int i = 0; i < N; i++)
            submit(s, &asked[i]);
        moe_server_drain(s);
        moe_server_count(s, &counts);
        assert_int_equal(counts.requests, N);
        assert_int_equal(counts.ended, N);
        assert_int_equal(counts.waiting + counts.running, 0);
        assert_int_equal(counts.executors[0].switches, 1);
        moe_server_close(s);
        for (int i = 0; i < N; i++) {
            assert_int_equal(asked[i].n_ended, 1);
            assert_int_equal(asked[i].result.status, MOE_OK);
            assert_int_equal(asked[i].text.size, want[i].size);
            if (want[i].size)
                assert_memory_equal(asked[i].text.data, want[i].data, want[i].size);
        }
    }
    for (int i = 0; i < N; i++) {
        moe_buf_release(&asked[i].text);
        moe_buf_release(&want[i]);
    }
}

static void some_are_cancelled_and_closing_ends_the_rest(void **state)
{
    static struct asked asked[N];
    (void)state;
    write_requests(asked, ", \"ignore_eos\": true");
    struct moe_server *s = open_server(2, 0);
    for (int i = 0; i < N; i++)
        submit(s, &asked[i]);
    moe_server_cancel(s, asked[N - 1].id); /* waits */
    moe_server_cancel(s, asked[0].id);     /* runs, or soon does */
    moe_server_cancel(s, 1234567);         /* nobody */
    moe_server_close(s);
    for (int i = 0; i < N; i++) {
        assert_int_equal(asked[i].n_ended, 1);
        assert_int_equal(asked[i].result.status, MOE_OK);
        moe_buf_release(&asked[i].text);
    }
    assert_int_equal(asked[N - 1].result.why, MOE_STOP_USER);
}

/* ---- Bodies ---- */

static int n_heard, n_refused; /* under telling_order */
static pthread_mutex_t telling_order = PTHREAD_MUTEX_INITIALIZER;

/* A client that sends bodies: what it heard, and when in the order of all. */
struct sender {
    struct asked asked;
    int read_at, refused_at; /* 1: first; 0: never */
    struct moe_err why;
};

static int hear_read(void *ctx, struct moe_request *r, struct moe_err *err)
{
    (void)r, (void)err;
    pthread_mutex_lock(&telling_order);
    ((struct sender *)ctx)->read_at = ++n_heard;
    pthread_mutex_unlock(&telling_order);
    return MOE_OK;
}

static void hear_refused(void *ctx, const struct moe_err *why)
{
    struct sender *b = ctx;
    pthread_mutex_lock(&telling_order);
    b->why = *why;
    b->refused_at = ++n_heard;
    n_refused++;
    pthread_mutex_unlock(&telling_order);
}

static void send_body(struct moe_server *s, struct sender *b, const char *json)
{
    const struct moe_server_events events = {
        .ctx = b, .read = hear_read, .refused = hear_refused, .part = hear, .ended = end};
    struct moe_buf body = {0};
    struct moe_err err;
    moe_buf_text(&body, json);
    assert_ok(moe_server_submit_body(s, MOE_REQUEST_TEXT, &body, &events, &b->asked.id, &err),
              &err);
    assert_null(body.data);
}

/* A grammar that reading gives up on after all of its steps. */
static char *endless_body(void)
{
    struct moe_buf body = {0};
    moe_buf_text(&body, "{\"prompt\":\"x\",\"grammar\":\"root ::= \\\"a\\\"");
    for (int i = 0; i < 2000; i++)
        moe_buf_text(&body, " (\\\"a\\\"{100000}){0}");
    moe_buf_text(&body, "\"}");
    assert_false(body.failed);
    return (char *)body.data;
}

static void bodies_are_read_beside_and_quick_ones_first(void **state)
{
    enum { SLOW = 6 };
    static struct sender slow[SLOW], quick, wrong;
    struct moe_server *s = open_server(1, 0);
    struct moe_buf want = {0};
    struct moe_err err;
    char *endless = endless_body();
    (void)state;
    n_heard = n_refused = 0;
    strcpy(quick.asked.json, "{\"prompt\": \"The cat\", \"max_tokens\": 9, \"temperature\": 0}");
    for (int i = 0; i < SLOW; i++)
        send_body(s, &slow[i], endless);
    send_body(s, &quick, quick.asked.json);
    send_body(s, &wrong, "{\"prompt\": 5}");
    moe_server_drain(s);
    assert_true(quick.read_at > 0 &&
                quick.read_at <= 3); /* one or two may have been begun before */
    assert_int_equal(wrong.read_at, 0);
    assert_true(wrong.refused_at > 0 && wrong.refused_at <= 4);
    assert_non_null(strstr(wrong.why.text, "'prompt'"));
    for (int i = 0; i < SLOW; i++) {
        assert_int_equal(slow[i].why.status, MOE_ERR_FORMAT);
        assert_non_null(strstr(slow[i].why.text, "more than 8000000 steps"));
    }
    moe_server_close(s);

    const struct moe_engine_options o = {.session = {.context = CONTEXT}};
    struct moe_engine *e;
    assert_ok(moe_engine_open(&e, packs[0], &o, NULL, &err), &err);
    struct moe_request *r = request_of(&quick.asked);
    answer_alone(e, r, &want);
    assert_int_equal(want.size, quick.asked.text.size);
    assert_memory_equal(want.data, quick.asked.text.data, want.size);
    moe_request_free(r);
    moe_engine_close(e);
    moe_buf_release(&want);
    moe_buf_release(&quick.asked.text);
    free(endless);
}

static void reading_ends_with_its_client_and_with_the_server(void **state)
{
    enum { ALL = 40 };
    static struct sender all[ALL];
    struct moe_server *s = open_server(1, 0);
    char *endless = endless_body();
    (void)state;
    n_heard = n_refused = 0;
    for (int i = 0; i < ALL; i++)
        send_body(s, &all[i], endless);
    for (int i = 0; i < ALL / 2; i++)
        moe_server_cancel(s, all[i].asked.id);
    moe_server_close(s);
    assert_int_equal(n_heard, ALL);
    assert_int_equal(n_refused, ALL);
    int n_stopped = 0;
    for (int i = 0; i < ALL; i++)
        n_stopped += all[i].why.status == MOE_ERR_INTERRUPTED;
    assert_true(n_stopped > ALL - 5); /* the first were perhaps done */
    free(endless);
}

static void set_tokens(struct asked *a, int seed, int tokens)
{
    snprintf(a->json, sizeof a->json, "{\"prompt\": \"The cat\", \"seed\": %d, \"max_tokens\": %d}",
             seed, tokens);
}

/* One client fills the queue and all places of the batch; another one gets in, has its answer
 * before the first of these, and none of them is harmed but one that only waited. */
static void clients_share_places_and_the_queue(void **state)
{
    enum { MANY = 8, PLACES = 4, LONG = 200 };
    static struct asked many[N], few;
    struct moe_buf want[N] = {{0}};
    struct moe_server_counts counts;
    (void)state;
    for (int i = 0; i < N; i++)
        set_tokens(&many[i], i, LONG);
    set_tokens(&few, 0, 4);
    ask_alone(packs[0], many, want);
    struct moe_server *s = open_server(PLACES, MANY);
    for (int i = 0; i < MANY; i++)
        submit_as(s, &many[i], 1);
    do
        moe_server_count(s, &counts);
    while (counts.running < PLACES);
    submit_as(s, &few, 2);
    assert_int_equal(many[MANY - 1].n_ended, 1);
    assert_int_equal(many[MANY - 1].result.status, MOE_ERR_MEMORY);
    assert_non_null(strstr(many[MANY - 1].err.text, "queue"));
    moe_server_drain(s);
    moe_server_count(s, &counts);
    assert_int_equal(counts.ousted, 1);
    assert_true(counts.rested > 0);
    moe_server_close(s);
    assert_int_equal(few.result.n_tokens, 4);
    for (int i = 0; i < MANY - 1; i++) {
        assert_int_equal(many[i].result.status, MOE_OK);
        assert_int_equal(many[i].text.size, want[i].size);
        assert_memory_equal(many[i].text.data, want[i].data, want[i].size);
        assert_true(many[i].result.n_tokens < LONG || few.ended_at < many[i].ended_at);
    }
    for (int i = 0; i < N; i++)
        moe_buf_release(&want[i]);
    for (int i = 0; i < MANY; i++)
        moe_buf_release(&many[i].text);
    moe_buf_release(&few.text);
}

static void nobody_learns_of_anothers_prompts(void **state)
{
    static struct asked asked;
    (void)state;
    struct moe_server *s = open_server(2, 0);
    snprintf(
        asked.json, sizeof asked.json,
        "{\"prompt\": \"Once upon a time there was a little girl who had a red hat and a dog. One "
        "day the girl and the dog went to the park to play with a big red ball\", "
        "\"max_tokens\": 1}");
    const struct {
        uint64_t who;
        bool cached;
    } rows[] = {{1, false}, {1, true}, {2, false}, {2, true}, {0, false}, {0, true}};
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        submit_as(s, &asked, rows[i].who);
        moe_server_drain(s);
        assert_int_equal(asked.result.n_cached > 0, rows[i].cached);
    }
    moe_server_close(s);
    moe_buf_release(&asked.text);
}

static void what_cannot_be_served_is_refused(void **state)
{
    static struct asked asked[4];
    struct moe_server *s = open_server(1, 2);
    const struct moe_server_events events = {0};
    struct moe_err err;
    (void)state;
    struct moe_request *r;
    for (int i = 0; i < 2; i++) {
        strcpy(asked[i].json, "{\"prompt\": \"x\", \"max_tokens\": 200, \"ignore_eos\": true}");
        submit(s, &asked[i]);
    }
    r = request_of(&asked[0]);
    assert_fails(moe_server_submit(s, r, &events, NULL, &err), MOE_ERR_LIMIT, "full", &err);
    moe_request_free(r);
    moe_server_drain(s);
    char ids[1024] = "{\"prompt\": [1";
    for (int i = 0; i < 300; i++)
        strcat(ids, ",1");
    strcpy(asked[2].json, strcat(ids, "]}"));
    strcpy(asked[3].json, "{\"prompt\": \"x\", \"max_tokens\": 2}");
    submit(s, &asked[2]);
    submit(s, &asked[3]);
    moe_server_drain(s);
    assert_int_equal(asked[2].result.status, MOE_ERR_LIMIT);
    assert_non_null(strstr(asked[2].err.text, "context"));
    assert_int_equal(asked[3].result.status, MOE_OK);
    moe_server_close(s);
    for (int i = 0; i < 4; i++)
        moe_buf_release(&asked[i].text);
}

enum { ONE_BY_ONE = 20 };

struct one_by_one {
    struct moe_server *server;
    struct moe_server_events events;
    int asked, refused;
};

/* Asks again as soon as it hears of the end, as a client does that waits for each answer. */
static void ask_again(void *ctx, uint32_t choice, const struct moe_server_result *result)
{
    struct one_by_one *o = ctx;
    static struct asked asked = {.json = "{\"prompt\": \"x\", \"max_tokens\": 1}"};
    struct moe_request *r = o->asked < ONE_BY_ONE ? request_of(&asked) : NULL;
    struct moe_err err;
    (void)choice, (void)result;
    if (!r)
        return;
    o->asked++;
    if (moe_server_submit(o->server, r, &o->events, NULL, &err) != MOE_OK) {
        o->refused++;
        moe_request_free(r);
    }
}

/* What a request had of the queue is free before its client hears of the end. */
static void who_asks_one_by_one_is_never_refused(void **state)
{
    struct one_by_one o = {.server = open_server(1, 1)};
    struct moe_server_counts counts;
    (void)state;
    o.events = (struct moe_server_events){.ctx = &o, .ended = ask_again};
    ask_again(&o, 0, NULL);
    moe_server_drain(o.server);
    moe_server_count(o.server, &counts);
    assert_int_equal(o.refused, 0);
    assert_int_equal(counts.ended, ONE_BY_ONE);
    moe_server_close(o.server);
}

/* The least memory that works for these options. */
static uint64_t floor_of(struct moe_server_options o)
{
    struct moe_server_counts counts;
    struct moe_server *s;
    struct moe_err err;
    o.engine.memory_bytes = 0;
    assert_ok(moe_server_open(&s, &o, NULL, &err), &err);
    moe_server_count(s, &counts);
    moe_server_close(s);
    return counts.floor_bytes + (1 << 20); /* as --memory says it: opening varies a little */
}

/* Statistics were read before anything is open: where that took more, it is the least. */
static void statistics_were_read_before(void **state)
{
    struct moe_statistics *read;
    struct moe_model *model;
    struct moe_server_options o = {.pack = packs[0], .engine = {.session = {.context = CONTEXT}}};
    struct moe_server *s;
    struct moe_err err;
    (void)state;
    const uint64_t without = floor_of(o);
    assert_ok(moe_model_open_directory(&model, packs[0], &err), &err);
    struct moe_statistics_shape shape = moe_model_statistics_shape(model);
    shape.max_tokens = 1;
    assert_ok(moe_statistics_new(&read, &shape, &err), &err);
    o.engine.statistics = read;
    assert_in_range(floor_of(o), without, without + (1 << 20)); /* what is held of them */
    read->read_bytes = without;
    const uint64_t with = floor_of(o);
    assert_true(with > without);
    o.engine.memory_bytes = without;
    assert_fails(moe_server_open(&s, &o, NULL, &err), MOE_ERR_LIMIT, "too small", &err);
    moe_statistics_free(read);
    moe_model_close(model);
}

/* Submits copies of a request until one is refused, `most` at most; returns how many were not. */
static int submit_copies(struct moe_server *s, enum moe_request_kind kind,
                         const struct moe_buf *json, int most)
{
    const struct moe_server_events events = {0};
    struct moe_err err;
    int status = MOE_OK, accepted = -1;
    for (; status == MOE_OK && accepted < most; accepted++) {
        struct moe_request *r;
        assert_ok(moe_request_parse(&r, kind, (char *)json->data, json->size, NULL, &err), &err);
        status = moe_server_submit(s, r, &events, NULL, &err);
        if (status != MOE_OK)
            moe_request_free(r);
    }
    if (status != MOE_OK && status != MOE_ERR_LIMIT)
        fail_msg("%s", err.text);
    if (status != MOE_OK)
        print_message("# %d were accepted: %s\n", accepted, err.text);
    return accepted;
}

/* With a prompt of n bytes. */
static int fill_queue(struct moe_server *s, size_t n, int most)
{
    struct moe_buf json = {0};
    moe_buf_text(&json, "{\"max_tokens\": 200, \"ignore_eos\": true, \"prompt\": \"");
    for (size_t i = 0; i < n; i++)
        moe_buf_u8(&json, 'x');
    moe_buf_text(&json, "\"}");
    int accepted = submit_copies(s, MOE_REQUEST_TEXT, &json, most);
    moe_buf_release(&json);
    return accepted;
}

/* Embeddings of N_TEXTS texts. */
enum { N_TEXTS = 40 };

static int fill_with_vectors(struct moe_server *s)
{
    struct moe_buf json = {0};
    moe_buf_text(&json, "{\"input\": [\"x\"");
    for (int i = 1; i < N_TEXTS; i++)
        moe_buf_text(&json, ", \"x\"");
    moe_buf_text(&json, "]}");
    int accepted = submit_copies(s, MOE_REQUEST_EMBEDDINGS, &json, 100);
    moe_buf_release(&json);
    return accepted;
}

static uint64_t n_finished(struct moe_server *s)
{
    struct moe_server_counts counts;
    moe_server_count(s, &counts);
    return counts.ended + counts.failed + counts.cancelled;
}

/* The queue has 1 MiB, or a part of the memory where that is more, as under sanitizers. What ends
 * while it is filled makes room again, a moment before it is counted: one more at most, since one
 * is computed at a time. */
static void large_requests_leave_room_for_small_ones(void **state)
{
    struct moe_server_options o = {
        .pack = packs[0], .engine = {.session = {.context = CONTEXT}}, .sequences = 1};
    struct moe_server *s;
    struct moe_err err;
    (void)state;
    o.engine.memory_bytes = floor_of(o);
    const uint64_t part = o.engine.memory_bytes / 32, queue = part > 1 << 20 ? part : 1 << 20;
    assert_ok(moe_server_open(&s, &o, NULL, &err), &err);
    assert_int_equal(fill_queue(s, 1, 1), 1);
    uint64_t before = n_finished(s);
    int accepted = fill_queue(s, 200 << 10, 100);
    assert_in_range(accepted, 1, queue / (200 << 10) + (n_finished(s) - before) + 1);
    fill_queue(s, queue / 40, 100); /* large: over 1/64 of the queue */
    assert_int_equal(fill_queue(s, 1000, 50), 50);
    moe_server_close(s);

    struct moe_server_model m;
    assert_ok(moe_server_open(&s, &o, NULL, &err), &err);
    assert_true(moe_server_describe(s, 0, &m));
    const uint64_t vectors = N_TEXTS * m.hidden * 3 * sizeof(double); /* as numbers and as text */
    assert_int_equal(fill_queue(s, 1, 1), 1);
    before = n_finished(s);
    accepted = fill_with_vectors(s);
    assert_in_range(accepted, 1, queue / vectors + (n_finished(s) - before) / N_TEXTS + 1);
    moe_server_close(s);
}

/* ---- Collections ---- */

/* Requests say which model they begin with; results of the first go on, some to the second, some to
 * the third. */
static struct moe_coe_collection *make_collection(void)
{
    struct moe_coe_collection *c;
    struct moe_buf text = {0};
    struct moe_err err;
    moe_buf_text(&text, "format: moe-coe\nversion: 1\nexperts:\n");
    for (int i = 0; i < N_MODELS; i++)
        moe_buf_printf(&text, "  - {name: m%d, pack: %s, probability: 0.%d}\n", i, packs[i], 5 - i);
    moe_buf_text(&text, "routes:\n");
    for (int i = 0; i < 2; i++)
        moe_buf_printf(&text, "  - {field: kind, equals: k%d, expert: m%d}\n", i, i);
    moe_buf_text(&text, "  - {expert: m3}\nfollows:\n"
                        "  - {after: m0, matches: '[aeiou] [a-m]', expert: m1}\n"
                        "  - {after: m0, matches: '[a-z]', expert: m2}\n");
    assert_false(text.failed);
    assert_ok(moe_record_parse(&moe_coe_collection_format, &c, "test", text.data, text.size, &err),
              &err);
    moe_buf_release(&text);
    return c;
}

enum { N_ROUTED = 24 };

struct expected {
    struct moe_buf text;
    uint32_t model;
};

/* What the collection's rules give when each model answers alone. */
static void follow_alone(const struct moe_coe_collection *c, const struct asked *asked,
                         struct expected *want)
{
    struct moe_engine *engines[N_MODELS];
    struct moe_err err;
    for (int i = 0; i < N_MODELS; i++) {
        const struct moe_engine_options o = {.session = {.context = CONTEXT}};
        assert_ok(moe_engine_open(&engines[i], packs[i], &o, NULL, &err), &err);
    }
    for (int i = 0; i < N_ROUTED; i++) {
        struct moe_request *r = request_of(&asked[i]);
        uint32_t at = i % 3 == 2 ? 3 : (uint32_t)(i % 3);
        for (uint32_t next = at; next != MOE_COE_NONE;
             next =
                 moe_coe_next_expert(c, at, (const char *)want[i].text.data, want[i].text.size)) {
            at = next;
            moe_buf_clear(&want[i].text);
            answer_alone(engines[at], r, &want[i].text);
        }
        want[i].model = at;
        moe_request_free(r);
    }
    for (int i = 0; i < N_MODELS; i++)
        moe_engine_close(engines[i]);
}

static void write_routed(struct asked *asked)
{
    uint64_t random = SEED;
    for (int i = 0; i < N_ROUTED; i++)
        snprintf(
            asked[i].json, sizeof asked[i].json,
            "{\"prompt\": \"A dog %d\", \"max_tokens\": %d, \"seed\": %d, \"temperature\": 0.8, "
            "\"metadata\": {\"kind\": \"k%d\"}}",
            i, 1 + (int)(test_random(&random) % 16), i, i % 3);
}

/* Returns how many models were loaded. */
static uint64_t check_routed(const struct moe_server_options *o, const struct expected *want)
{
    uint64_t loads = 0;
    static struct asked asked[N_ROUTED];
    struct moe_server_counts counts;
    struct moe_server *s;
    struct moe_err err;
    write_routed(asked);
    assert_ok(moe_server_open(&s, o, NULL, &err), &err);
    for (int i = 0; i < N_ROUTED; i++)
        submit(s, &asked[i]);
    moe_server_drain(s);
    moe_server_count(s, &counts);
    assert_int_equal(counts.ended, N_ROUTED);
    assert_int_equal(counts.failed, 0);
    assert_true(counts.follow_ons > 0);
    for (uint32_t i = 0; i < counts.n_executors; i++)
        loads += counts.executors[i].loads;
    moe_server_close(s);
    for (int i = 0; i < N_ROUTED; i++) {
        assert_int_equal(asked[i].n_ended, 1);
        if (asked[i].text.size != want[i].text.size ||
            (want[i].text.size &&
             memcmp(asked[i].text.data, want[i].text.data, want[i].text.size) != 0))
            fail_msg("%s, %s: request %d (m%u): '%.*s' instead of '%.*s'", o->schedule->name,
                     moe_coe_evict_at(o->evict), i, want[i].model, (int)asked[i].text.size,
                     (const char *)asked[i].text.data, (int)want[i].text.size,
                     (const char *)want[i].text.data);
        moe_buf_release(&asked[i].text);
    }
    return loads;
}

static void collections_answer_as_each_model_alone(void **state)
{
    static struct asked asked[N_ROUTED];
    struct moe_coe_collection *c = make_collection();
    struct expected want[N_ROUTED];
    static const struct moe_server_executor two[2];
    const struct moe_coe_schedule *schedule;
    uint32_t n_at[N_MODELS] = {0};
    (void)state;
    memset(want, 0, sizeof want);
    write_routed(asked);
    follow_alone(c, asked, want);
    for (int i = 0; i < N_ROUTED; i++)
        n_at[want[i].model]++;
    assert_true(n_at[1] > 8 && n_at[2] > 0 && n_at[3] == 8); /* some go on */
    for (uint32_t n = LEAST_EXECUTORS; n <= 2; n++) {
        struct moe_server_options o = {
            .collection = c,
            .engine = {.session = {.context = CONTEXT}, .program_bytes = 64 << 20},
            .executors = two,
            .n_executors = n,
            .sequences = 4,
        };
        o.schedule = moe_coe_schedule_find("fcfs");
        uint64_t least = floor_of(o);
        for (uint32_t i = 0; (schedule = moe_coe_schedule_at(i)) != NULL; i++)
            for (uint32_t evict = (i + n) % IN_TURN; moe_coe_evict_at(evict); evict += IN_TURN) {
                o.schedule = schedule;
                o.evict = (enum moe_coe_evict)evict;
                /* Nothing, some models, or all have room. */
                o.engine.memory_bytes = evict == 0 ? least : evict == 2 ? 0 : least + n * (3 << 20);
                uint64_t loads = check_routed(&o, want);
                if (evict == 0 && !schedule->arrange)
                    assert_true(loads > N_MODELS); /* they took turns */
                else if (evict == 2)
                    assert_true(loads <= n * N_MODELS);
            }
    }
    for (int i = 0; i < N_ROUTED; i++)
        moe_buf_release(&want[i].text);
    moe_coe_collection_free(c);
}

static struct moe_server *open_collection(const struct moe_coe_collection *c, uint64_t memory,
                                          uint32_t max_queue)
{
    const struct moe_server_options o = {
        .collection = c,
        .engine = {.session = {.context = CONTEXT},
                   .program_bytes = 64 << 20,
                   .memory_bytes = memory},
        .sequences = 4,
        .max_queue = max_queue,
    };
    struct moe_server *s;
    struct moe_err err;
    assert_ok(moe_server_open(&s, &o, NULL, &err), &err);
    return s;
}

static uint64_t least_memory(const struct moe_coe_collection *c)
{
    const struct moe_server_options o = {
        .collection = c,
        .engine = {.session = {.context = CONTEXT}, .program_bytes = 64 << 20},
        .sequences = 4,
    };
    return floor_of(o);
}

/* Opening ends when asked to, and what it reports is where to ask. */
static void stop_at(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    *(volatile sig_atomic_t *)ctx = 1;
}

static void opening_can_be_stopped(void **state)
{
    volatile sig_atomic_t stop = 0;
    const struct moe_progress progress = {stop_at, (void *)&stop, &stop};
    struct moe_coe_collection *c = make_collection();
    const struct moe_server_options one = {.pack = packs[0],
                                           .engine = {.session = {.context = CONTEXT}}},
                                    several = {.collection = c,
                                               .engine = {.session = {.context = CONTEXT},
                                                          .program_bytes = 64 << 20}};
    struct moe_server *s;
    struct moe_err err;
    for (int i = 0; i < 2; i++) {
        stop = i == 0;
        assert_fails(moe_server_open(&s, i ? &several : &one, &progress, &err), MOE_ERR_INTERRUPTED,
                     "stopped", &err);
        assert_null(s);
    }
    moe_coe_collection_free(c);
}

/* One pack is not there, another one is damaged once it is known: their requests end with that. */
static void a_broken_model_fails_alone(void **state)
{
    static struct asked asked[N_ROUTED];
    struct moe_coe_collection *c = make_collection();
    char kept[160];
    (void)state;
    char missing[160];
    snprintf(missing, sizeof missing, "%s.m3.moe", packs[3]);
    strcpy(c->models[3].pack, missing);
    write_routed(asked);
    struct moe_server *s = open_collection(c, least_memory(c), 0); /* holds one at a time */
    const struct moe_server_events none = {0};
    struct moe_err err;
    strcpy(asked[0].json, "{\"model\": \"other\", \"prompt\": \"x\"}");
    struct moe_request *unknown = request_of(&asked[0]);
    assert_fails(moe_server_submit(s, unknown, &none, NULL, &err), MOE_ERR_USAGE,
                 "the model 'other' is not served here; these are: ", &err);
    assert_non_null(strstr(err.text, "m1, m2"));
    moe_request_free(unknown);
    write_routed(asked);
    snprintf(kept, sizeof kept, "%s.kept", packs[1]);
    assert_int_equal(rename(packs[1], kept), 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N_ROUTED; i++)
            submit(s, &asked[i]);
        moe_server_drain(s);
        for (int i = 0; i < N_ROUTED; i++) {
            const struct moe_server_result *r = &asked[i].result;
            bool broken = (round < 2 && i % 3 == 2) || (round == 0 && strcmp(r->model, "m1") == 0);
            assert_int_equal(asked[i].n_ended, 1);
            if (r->status != (broken ? MOE_ERR_IO : MOE_OK))
                fail_msg("round %d, request %d of %s: status %d", round, i, r->model, r->status);
            if (broken)
                assert_non_null(strstr(asked[i].err.text, i % 3 == 2 ? "m3.moe" : packs[1]));
        }
        if (round == 0) /* it comes back */
            assert_int_equal(rename(kept, packs[1]), 0);
        if (round == 1) /* what was missing at the start comes, too */
            assert_int_equal(link(packs[3], missing), 0);
    }
    moe_server_close(s);
    unlink(missing);
    for (int i = 0; i < N_ROUTED; i++)
        moe_buf_release(&asked[i].text);
    moe_coe_collection_free(c);
}

static void cancelled_at_any_moment_others_are_unharmed(void **state)
{
    static struct asked asked[N_ROUTED];
    struct moe_coe_collection *c = make_collection();
    struct expected want[N_ROUTED];
    struct moe_server_counts counts;
    uint64_t random = SEED;
    (void)state;
    memset(want, 0, sizeof want);
    write_routed(asked);
    follow_alone(c, asked, want);
    struct moe_server *s = open_collection(c, least_memory(c), 0);
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N_ROUTED; i++)
            submit(s, &asked[i]);
        for (int i = 0; i < N_ROUTED / 2; i++) {
            const struct timespec pause = {.tv_nsec = (long)(test_random(&random) % 20000000)};
            nanosleep(&pause, NULL);
            moe_server_cancel(s, asked[test_random(&random) % N_ROUTED].id);
        }
        moe_server_drain(s);
        for (int i = 0; i < N_ROUTED; i++) {
            assert_int_equal(asked[i].n_ended, 1);
            assert_int_equal(asked[i].result.status, MOE_OK);
            if (asked[i].result.why == MOE_STOP_USER)
                continue;
            assert_int_equal(asked[i].text.size, want[i].text.size);
            if (want[i].text.size)
                assert_memory_equal(asked[i].text.data, want[i].text.data, want[i].text.size);
        }
    }
    moe_server_count(s, &counts);
    assert_true(counts.cancelled > 0 && counts.ended > 0);
    assert_int_equal(counts.cancelled + counts.ended, 4 * N_ROUTED);
    moe_server_close(s);
    for (int i = 0; i < N_ROUTED; i++) {
        moe_buf_release(&want[i].text);
        moe_buf_release(&asked[i].text);
    }
    moe_coe_collection_free(c);
}

/* Who waits for another model gets its turn, though requests for the first never cease. */
static void nobody_starves(void **state)
{
    static struct asked busy[64], other;
    struct moe_coe_collection *c = make_collection();
    struct moe_server_options o = {
        .collection = c,
        .engine = {.session = {.context = CONTEXT}},
        .sequences = 2,
        .patience = 0.05,
    };
    struct moe_server *s;
    struct moe_err err;
    (void)state;
    assert_ok(moe_server_open(&s, &o, NULL, &err), &err);
    for (int i = 0; i < 64; i++) {
        snprintf(busy[i].json, sizeof busy[i].json,
                 "{\"model\": \"m1\", \"prompt\": \"%d\", \"max_tokens\": 60, "
                 "\"ignore_eos\": true}",
                 i);
        submit(s, &busy[i]);
        if (i == 3) {
            strcpy(other.json, "{\"model\": \"m2\", \"prompt\": \"x\", \"max_tokens\": 2}");
            submit(s, &other);
        }
    }
    moe_server_drain(s);
    int later = 0;
    for (int i = 0; i < 64; i++) {
        later += busy[i].ended_at > other.ended_at;
        moe_buf_release(&busy[i].text);
    }
    if (later <= 30)
        fail_msg("%d of 64 ended after it; it took %.3f s of %.3f", later, other.result.seconds,
                 busy[63].result.seconds);
    moe_buf_release(&other.text);
    moe_server_close(s);
    moe_coe_collection_free(c);
}

/* Submitting and cancelling take as long when thousands wait as when hundreds do. */
static void a_long_queue_costs_no_time(void **state)
{
    enum { MANY = 10000, PART = 1000 };
    static struct asked asked[MANY];
    static struct moe_request *requests[MANY];
    struct moe_coe_collection *c = make_collection();
    const struct moe_server_events events = {0};
    double first = 1e9, last = 1e9;
    (void)state;
    struct moe_server *s = open_collection(c, 0, MANY);
    strcpy(asked[0].json, "{\"prompt\": \"x\", \"max_tokens\": 500, \"ignore_eos\": true}");
    for (int i = 0; i < MANY; i++) {
        snprintf(asked[i].json, sizeof asked[i].json,
                 "{\"model\": \"m%d\", \"prompt\": \"x\", \"max_tokens\": 200}", i % 3 + 1);
        requests[i] = request_of(&asked[i]);
    }
    /* The best of ten parts: others use the machine, too. */
    for (int i = 0; i < MANY; i += PART / 5) {
        struct moe_err err;
        double began = moe_seconds();
        for (int k = i; k < i + PART / 5; k++)
            assert_ok(moe_server_submit(s, requests[k], &events, &asked[k].id, &err), &err);
        double took = moe_seconds() - began;
        if (i < MANY / 4)
            first = took < first ? took : first;
        if (i >= MANY * 3 / 4)
            last = took < last ? took : last;
    }
    if (last > 5 * first + 1e-3)
        fail_msg("%d requests took %.6f s at first, %.6f s in the end", PART / 5, first, last);
    for (int i = MANY - 1; i >= 0; i--)
        moe_server_cancel(s, asked[i].id);
    moe_server_drain(s);
    moe_server_close(s);
    moe_coe_collection_free(c);
}

static int open_all(void **state)
{
    struct moe_err err;
    (void)state;
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    for (int i = 0; i < N_MODELS; i++)
        fixture_pack(packs[i], bits[i]);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_MODELS; i++)
        unlink(packs[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_the_model_alone),
        cmocka_unit_test(some_are_cancelled_and_closing_ends_the_rest),
        cmocka_unit_test(bodies_are_read_beside_and_quick_ones_first),
        cmocka_unit_test(reading_ends_with_its_client_and_with_the_server),
        cmocka_unit_test(clients_share_places_and_the_queue),
        cmocka_unit_test(nobody_learns_of_anothers_prompts),
        cmocka_unit_test(what_cannot_be_served_is_refused),
        cmocka_unit_test(who_asks_one_by_one_is_never_refused),
        cmocka_unit_test(large_requests_leave_room_for_small_ones),
        cmocka_unit_test(collections_answer_as_each_model_alone),
        cmocka_unit_test(opening_can_be_stopped),
        cmocka_unit_test(statistics_were_read_before),
        cmocka_unit_test(a_broken_model_fails_alone),
        cmocka_unit_test(cancelled_at_any_moment_others_are_unharmed),
        cmocka_unit_test(nobody_starves),
        cmocka_unit_test(a_long_queue_costs_no_time),
    };
    return cmocka_run_group_tests_name("server", tests, open_all, close_all);
}
