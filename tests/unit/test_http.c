/* The front door over a server whose answers the tests themselves give, piece by piece. */
#define _DEFAULT_SOURCE
#include "prompt/chat_answer.h"
#include "serve/http.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "../test.h"
#include "base/buf.h"
#include "serve/server.h"

/* ---- A server ---- */

enum { ID = 77 };

static struct {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct moe_request *request; /* of the only one that it takes */
    struct moe_server_events events;
    bool cancelled;
    bool answers_at_once;      /* before the submitting function returns */
    const char *fails_at_once; /* ... with this message */
    bool ends_cancelled;
    int refuses; /* a status */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};

static void say(const char *text)
{
    fake.events.part(
        fake.events.ctx, 0,
        &(struct moe_answer_part){.kind = MOE_PART_CONTENT, .bytes = text, .n = strlen(text)});
}

static void end(int status, const char *words, enum moe_stop_reason why)
{
    struct moe_err err = {0};
    if (status != MOE_OK)
        moe_fail(&err, status, "%s", words);
    const struct moe_server_result result = {
        .status = status, .err = &err, .why = why, .n_prompt = 3, .n_tokens = 2, .model = "fake"};
    fake.events.ended(fake.events.ctx, 0, &result);
}

int moe_server_submit_body(struct moe_server *s, enum moe_request_kind kind, struct moe_buf *body,
                           const struct moe_server_events *events, uint64_t *id,
                           struct moe_err *err)
{
    struct moe_request *r;
    struct moe_err why;
    (void)s;
    if (fake.refuses)
        return moe_fail(err, fake.refuses, "the queue is full");
    *id = ID;
    int status = moe_request_parse(&r, kind, body->data ? (const void *)body->data : "", body->size,
                                   NULL, &why);
    if (status == MOE_OK)
        status = events->read(events->ctx, r, &why);
    if (status != MOE_OK) {
        moe_request_free(r);
        events->refused(events->ctx, &why);
        return MOE_OK;
    }
    pthread_mutex_lock(&fake.lock);
    fake.events = *events;
    fake.request = r;
    pthread_cond_broadcast(&fake.news);
    pthread_mutex_unlock(&fake.lock);
    if (fake.answers_at_once) {
        say("at once");
        end(MOE_OK, NULL, MOE_STOP_EOS);
    } else if (fake.fails_at_once) {
        end(MOE_ERR_LIMIT, fake.fails_at_once, MOE_STOP_EOS);
    }
    return MOE_OK;
}

void moe_server_refuse_unread(struct moe_server *s)
{
    (void)s;
}

void moe_server_cancel(struct moe_server *s, uint64_t id)
{
    (void)s;
    assert_int_equal(id, ID);
    pthread_mutex_lock(&fake.lock);
    bool first = !fake.cancelled;
    fake.cancelled = true;
    pthread_cond_broadcast(&fake.news);
    pthread_mutex_unlock(&fake.lock);
    if (first && fake.ends_cancelled)
        end(MOE_OK, NULL, MOE_STOP_USER);
}

bool moe_server_describe(struct moe_server *s, uint32_t i, struct moe_server_model *out)
{
    *out = (struct moe_server_model){.name = moe_server_model(s, i)};
    return out->name != NULL;
}

int moe_server_describe_name(struct moe_server *s, const char *name, bool listed,
                             struct moe_server_model *out, struct moe_err *err)
{
    moe_server_describe(s, 0, out);
    return strcmp(name, out->name) == 0 ? MOE_OK : moe_fail(err, MOE_ERR_USAGE, "not served");
}

const char *moe_server_model(const struct moe_server *s, uint32_t i)
{
    (void)s;
    return i == 0 ? "fake" : NULL;
}

void moe_server_template(struct moe_server *s, const char *name, struct moe_buf *out)
{
    (void)s, (void)name, (void)out;
}

uint32_t moe_server_sequences(const struct moe_server *s)
{
    (void)s;
    return 1;
}

void moe_server_count(struct moe_server *s, struct moe_server_counts *out)
{
    (void)s;
    *out = (struct moe_server_counts){0};
}

static bool has_request(void)
{
    return fake.request != NULL;
}

static bool is_cancelled(void)
{
    return fake.cancelled;
}

static bool now(bool (*what)(void))
{
    pthread_mutex_lock(&fake.lock);
    bool is = what();
    pthread_mutex_unlock(&fake.lock);
    return is;
}

/* Half a minute is never too short. */
static void wait_for(bool (*what)(void))
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 30;
    int code = 0;
    pthread_mutex_lock(&fake.lock);
    while (!what() && code == 0)
        code = pthread_cond_timedwait(&fake.news, &fake.lock, &until);
    pthread_mutex_unlock(&fake.lock);
    assert_int_equal(code, 0);
}

/* ---- A client ---- */

static struct moe_http *door;
static uint32_t door_connections = 1024;

static void open_door(uint64_t buffers)
{
    struct moe_err err = {0};
    struct moe_http_options o;
    moe_http_options_default(&o);
    o.port = 0;
    o.buffer_bytes = buffers;
    o.silence_seconds = 0.25;
    o.max_connections = door_connections;
    fake.request = NULL;
    fake.cancelled = fake.answers_at_once = fake.ends_cancelled = false;
    fake.fails_at_once = NULL;
    fake.refuses = MOE_OK;
    assert_ok(moe_http_open(&door, NULL, &o, &err), &err);
}

static void close_door(void)
{
    moe_http_close(door);
    moe_request_free(fake.request);
    fake.request = NULL;
}

static int dial_from(const char *address)
{
    int small = 4096, fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in own = {.sin_family = AF_INET};
    assert_int_equal(inet_pton(AF_INET, address, &own.sin_addr), 1);
    assert_int_equal(bind(fd, (const struct sockaddr *)&own, sizeof own), 0);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port =
                                       htons((uint16_t)atoi(strrchr(moe_http_url(door), ':') + 1)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static int dial(void)
{
    return dial_from("127.0.0.1");
}

static int ask(bool stream)
{
    const char *body = stream ? "{\"prompt\":\"x\",\"stream\":true}" : "{\"prompt\":\"x\"}";
    char text[256];
    int fd = dial();
    int n = snprintf(text, sizeof text,
                     "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                     "Content-Length: %zu\r\n\r\n%s",
                     strlen(body), body);
    assert_int_equal(send(fd, text, (size_t)n, 0), n);
    return fd;
}

/* Reads until `words` are there (NULL: to the end), and asserts that they are. */
static void hear(int fd, struct moe_buf *heard, const char *words)
{
    char piece[4096];
    ssize_t n = 1;
    moe_buf_text(heard, ""); /* ends with a NUL from now on */
    while (n > 0 && !(words && strstr((const char *)heard->data, words))) {
        n = recv(fd, piece, sizeof piece, 0);
        if (n > 0)
            moe_buf_append(heard, piece, (uint64_t)n);
    }
    if (words && !strstr((const char *)heard->data, words))
        fail_msg("'%s' is missing in: %s", words, (const char *)heard->data);
}

static void hears(int fd, const char *first, const char *second)
{
    struct moe_buf heard = {0};
    hear(fd, &heard, NULL);
    if (!strstr((const char *)heard.data, first) || !strstr((const char *)heard.data, second))
        fail_msg("'%s' or '%s' is missing in: %s", first, second, (const char *)heard.data);
    moe_buf_release(&heard);
    close(fd);
}

/* ---- Tests ---- */

static void a_stream_is_handed_on_piece_by_piece(void **state)
{
    (void)state;
    struct moe_buf heard = {0};
    open_door(1 << 20);
    int fd = ask(true);
    wait_for(has_request);
    say("alpha");
    hear(fd, &heard, "alpha");
    say("beta");
    hear(fd, &heard, "beta");
    assert_null(strstr((const char *)heard.data, "[DONE]"));
    end(MOE_OK, NULL, MOE_STOP_EOS);
    hear(fd, &heard, "[DONE]");
    assert_non_null(strstr((const char *)heard.data, "HTTP/1.1 200"));
    moe_buf_release(&heard);
    close(fd);
    close_door();
    assert_false(fake.cancelled);
}

static void an_answer_may_come_before_it_is_waited_for(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        open_door(1 << 20);
        fake.answers_at_once = true;
        hears(ask(stream), "HTTP/1.1 200", "at once");
        close_door();
    }
}

static void who_leaves_is_cancelled(void **state)
{
    (void)state;
    for (int begun = 0; begun < 2; begun++) {
        struct moe_buf heard = {0};
        open_door(1 << 20);
        int fd = ask(true);
        wait_for(has_request);
        if (begun) {
            say("alpha");
            hear(fd, &heard, "alpha");
        }
        close(fd);
        wait_for(is_cancelled);
        say("nobody hears it");
        end(MOE_OK, NULL, MOE_STOP_USER);
        moe_buf_release(&heard);
        close_door();
    }
}

static void who_stops_sending_gets_the_answer(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        open_door(1 << 20);
        int fd = ask(stream);
        wait_for(has_request);
        shutdown(fd, SHUT_WR);
        usleep(100 * 1000); /* the door hears of it */
        say("alpha");
        end(MOE_OK, NULL, MOE_STOP_EOS);
        hears(fd, "HTTP/1.1 200", "alpha");
        assert_false(now(is_cancelled));
        close_door();
    }
}

static void silent_streams_begin_and_go_on(void **state)
{
    (void)state;
    struct moe_buf heard = {0};
    open_door(1 << 20);
    int fd = ask(true);
    wait_for(has_request);
    hear(fd, &heard, ": \n\n");
    assert_non_null(strstr((const char *)heard.data, "HTTP/1.1 200"));
    say("alpha");
    hear(fd, &heard, "alpha");
    moe_buf_clear(&heard);
    hear(fd, &heard, ": \n\n");
    end(MOE_OK, NULL, MOE_STOP_EOS);
    hear(fd, &heard, "[DONE]");
    moe_buf_release(&heard);
    close(fd);
    close_door();
}

static void who_does_not_read_is_cut_off(void **state)
{
    (void)state;
    static char text[4096];
    memset(text, 'x', sizeof text - 1);
    open_door(256 << 10);
    int fd = ask(true);
    wait_for(has_request);
    for (int i = 0; i < 10000 && !now(is_cancelled); i++)
        say(text); /* what the system's own buffers hold comes first; it never waits */
    wait_for(is_cancelled);
    end(MOE_OK, NULL, MOE_STOP_USER);
    struct moe_buf heard = {0};
    hear(fd, &heard, NULL);
    assert_null(strstr((const char *)heard.data, "[DONE]"));
    moe_buf_release(&heard);
    close(fd);
    close_door();
}

static void an_answer_beyond_the_buffers_is_refused(void **state)
{
    (void)state;
    static char text[4096];
    memset(text, 'x', sizeof text - 1);
    open_door(64 << 10);
    int fd = ask(false);
    wait_for(has_request);
    for (int i = 0; i < 5; i++)
        say(text);
    wait_for(is_cancelled);
    end(MOE_OK, NULL, MOE_STOP_USER);
    hears(fd, "HTTP/1.1 503", "more memory");
    close_door();
}

static void failures_have_a_status_or_come_in_the_stream(void **state)
{
    (void)state;
    for (int stream = 0; stream < 2; stream++) { /* which begins by itself after a moment */
        open_door(1 << 20);
        fake.fails_at_once = stream ? "too long a prompt" : NULL;
        int fd = ask(stream);
        wait_for(has_request);
        if (!stream)
            end(MOE_ERR_LIMIT, "too long a prompt", MOE_STOP_EOS);
        hears(fd, "HTTP/1.1 400", "too long a prompt");
        close_door();
    }
    struct moe_buf heard = {0};
    open_door(1 << 20);
    int fd = ask(true);
    wait_for(has_request);
    say("alpha");
    hear(fd, &heard, "alpha");
    end(MOE_ERR_IO, "the disk is gone", MOE_STOP_EOS);
    hears(fd, "data: {\"error\"", "the disk is gone");
    moe_buf_release(&heard);
    close_door();
}

static void a_full_queue_says_when_to_come_back(void **state)
{
    (void)state;
    open_door(1 << 20);
    fake.refuses = MOE_ERR_LIMIT;
    hears(ask(true), "HTTP/1.1 429", "Retry-After: 1");
    close_door();
}

static void the_end_waits_for_answers(void **state)
{
    (void)state;
    volatile sig_atomic_t at_once = 1;
    open_door(1 << 20);
    fake.ends_cancelled = true;
    int fd = ask(false);
    wait_for(has_request);
    assert_int_equal(moe_http_finish(door, 0.01, NULL), 1);
    assert_int_equal(moe_http_finish(door, 1000, &at_once), 1);
    close_door();
    assert_true(fake.cancelled);
    close(fd);

    open_door(1 << 20);
    fd = ask(false);
    wait_for(has_request);
    say("in time");
    end(MOE_OK, NULL, MOE_STOP_EOS);
    assert_int_equal(moe_http_finish(door, 1000, NULL), 0);
    hears(fd, "HTTP/1.1 200", "in time");
    close_door();
}

/* What RFC 9112 (9110 for `Host`) asks of a server, and an answer that shows it. After an answer
 * that `keeps` the connection comes one to a request that follows on it; after others it is closed.
 */
#define OF_HOST "Host: localhost\r\n"
#define POST "POST /v1/completions HTTP/1.1\r\n" OF_HOST
#define FINE "{\"prompt\":\"x\"}" /* 14 bytes */
enum { CLOSES, KEEPS };
static const struct requirement {
    const char *what, *request, *status;
    int keeps;
} requirements[] = {
    {"2.2: empty lines before a request are left out",
     "\r\nGET /health HTTP/1.1\r\n" OF_HOST "\r\n", "200", KEEPS},
    {"2.2: no blank before the first header", "GET /health HTTP/1.1\r\n X: y\r\n" OF_HOST "\r\n",
     "400", CLOSES},
    {"2.2: no carriage return within a line", "GET /health HTTP/1.1\r\nX: a\rb\r\n" OF_HOST "\r\n",
     "400", CLOSES},
    {"2.3: versions are written in capitals", "GET /health http/1.1\r\n" OF_HOST "\r\n", "400",
     CLOSES},
    {"2.3: another major version", "GET /health HTTP/2.0\r\n" OF_HOST "\r\n", "505", CLOSES},
    {"2.3: a later minor version", "GET /health HTTP/1.2\r\n" OF_HOST "\r\n", "200", KEEPS},
    {"3: a line of three parts", "GET /health\r\n" OF_HOST "\r\n", "400", CLOSES},
    {"3.1: an unknown method", "FOO /health HTTP/1.1\r\n" OF_HOST "\r\n", "405", KEEPS},
    {"3.2: no blank in a target", "GET /hea lth HTTP/1.1\r\n" OF_HOST "\r\n", "400", CLOSES},
    {"3.2: a Host", "GET /health HTTP/1.1\r\n\r\n", "400", CLOSES},
    {"3.2: not two", "GET /health HTTP/1.1\r\n" OF_HOST OF_HOST "\r\n", "400", CLOSES},
    {"3.2: which is one", "GET /health HTTP/1.1\r\nHost: a b\r\n\r\n", "400", CLOSES},
    {"3.2: not empty", "GET /health HTTP/1.1\r\nHost:\r\n\r\n", "400", CLOSES},
    {"3.2: none before HTTP/1.1", "GET /health HTTP/1.0\r\n\r\n", "200", CLOSES},
    {"3.2.1: a path", "GET health HTTP/1.1\r\n" OF_HOST "\r\n", "400", CLOSES},
    {"3.2.1: a query is not the path's", "GET /health?a=%2f HTTP/1.1\r\n" OF_HOST "\r\n", "200",
     KEEPS},
    {"3.2.2: a whole target", "GET http://localhost/health HTTP/1.1\r\n" OF_HOST "\r\n", "200",
     KEEPS},
    {"3.2.2: whose host counts", "GET http://evil.example/health HTTP/1.1\r\n" OF_HOST "\r\n",
     "403", KEEPS},
    {"3.2.4: *", "OPTIONS * HTTP/1.1\r\n" OF_HOST "\r\n", "204", KEEPS},
    {"3986, 6.2.2: an encoded slash is no slash", "GET /v1%2fmodels HTTP/1.1\r\n" OF_HOST "\r\n",
     "404", KEEPS},
    {"3986, 6.2.2: an encoded letter is one", "GET /%761/models HTTP/1.1\r\n" OF_HOST "\r\n", "200",
     KEEPS},
    {"3986: an encoded NUL ends nothing", "GET /health%00x HTTP/1.1\r\n" OF_HOST "\r\n", "404",
     KEEPS},
    {"5: a colon", "GET /health HTTP/1.1\r\nX\r\n" OF_HOST "\r\n", "400", CLOSES},
    {"5: a name", "GET /health HTTP/1.1\r\n: x\r\n" OF_HOST "\r\n", "400", CLOSES},
    {"5: blanks behind a value", "GET /health HTTP/1.1\r\nHost: localhost \t\r\n\r\n", "200",
     KEEPS},
    {"5.1: no blank after a name", "GET /health HTTP/1.1\r\n" OF_HOST "Content-Length : 5\r\n\r\n",
     "400", CLOSES},
    {"6.1: chunked with a length",
     POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400", CLOSES},
    {"6.1: a coding that is not known", POST "Transfer-Encoding: gzip\r\n\r\n" FINE, "400", CLOSES},
    {"6.1: nor beside chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "400",
     CLOSES},
    {"6.1: nor behind it", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", "400",
     CLOSES},
    {"6.1: chunked once",
     POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400",
     CLOSES},
    {"6.1: no coding in HTTP/1.0",
     "POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400", CLOSES},
    {"6.2: a length is digits", POST "Content-Length: +14\r\n\r\n" FINE, "400", CLOSES},
    {"6.2: that are not too many", POST "Content-Length: 99999999999999999999999\r\n\r\n" FINE,
     "413", CLOSES},
    {"6.3: not two lengths", POST "Content-Length: 14\r\nContent-Length: 15\r\n\r\n" FINE, "400",
     CLOSES},
    {"6.3: not twice the same", POST "Content-Length: 14\r\nContent-Length: 14\r\n\r\n" FINE, "400",
     CLOSES},
    {"6.3: nor in a list", POST "Content-Length: 14, 14\r\n\r\n" FINE, "400", CLOSES},
    {"6.3: a body where none is wanted",
     "GET /health HTTP/1.1\r\n" OF_HOST "Content-Length: 5\r\n\r\nabcde", "200", KEEPS},
    {"7: a body by its length", POST "Content-Length: 14\r\n\r\n" FINE, "200", KEEPS},
    {"7.1: a body in chunks, with an extension and a trailer",
     POST "Transfer-Encoding: Chunked\r\n\r\n6;a=b\r\n{\"prom\r\n8\r\npt\":\"x\"}\r\n0\r\n"
          "Content-Length: 3\r\n\r\n",
     "200", KEEPS},
    {"7.1: sizes are hexadecimal", POST "Transfer-Encoding: chunked\r\n\r\n0xe\r\n" FINE, "400",
     CLOSES},
    {"7.1: without a sign", POST "Transfer-Encoding: chunked\r\n\r\n-1\r\n" FINE, "400", CLOSES},
    {"7.1: that are not too large",
     POST "Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\n" FINE, "413", CLOSES},
    {"7.1: a chunk ends with its line",
     POST "Transfer-Encoding: chunked\r\n\r\ne\r\n" FINE "0\r\n\r\n", "400", CLOSES},
    {"9.3: close", "GET /health HTTP/1.1\r\n" OF_HOST "Connection: close\r\n\r\n", "200", CLOSES},
    {"9.3: keep-alive of HTTP/1.0", "GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", "200",
     KEEPS},
    {"9110, 10.1.1: leave to go on", POST "Content-Length: 14\r\nExpect: 100-continue\r\n\r\n" FINE,
     "100", KEEPS},
};

static void requests_keep_to_http(void **state)
{
    (void)state;
    static const char next[] = "HEAD /nothing HTTP/1.1\r\n" OF_HOST "Connection: close\r\n\r\n";
    open_door(1 << 20);
    for (size_t i = 0; i < sizeof requirements / sizeof *requirements; i++) {
        const struct requirement *r = &requirements[i];
        struct moe_buf heard = {0};
        int fd = dial();
        fake.answers_at_once = true;
        assert_int_equal(send(fd, r->request, strlen(r->request), 0), strlen(r->request));
        assert_int_equal(send(fd, next, sizeof next - 1, 0), sizeof next - 1);
        hear(fd, &heard, NULL);
        const char *said = (const char *)heard.data;
        bool goes_on =
            strstr(said, "HTTP/1.1 404 Not Found\r\n") != NULL &&
            (strcmp(r->status, "404") != 0 || strstr(strstr(said, " 404 ") + 1, " 404 "));
        if (strncmp(said, "HTTP/1.1 ", 9) != 0 || strncmp(said + 9, r->status, 3) != 0 ||
            goes_on != (r->keeps == KEEPS))
            fail_msg("%s: %s", r->what, said);
        moe_buf_release(&heard);
        close(fd);
        moe_request_free(fake.request);
        fake.request = NULL;
    }
    close_door();
}

/* A refused request has its answer though its body never comes. */
static void refused_bodies_are_not_waited_for(void **state)
{
    static const struct {
        const char *head, *status, *words;
    } cases[] = {{POST "Content-Length: 5000000\r\n\r\n{", "HTTP/1.1 413 ", "larger than 4"},
                 {POST "Transfer-Encoding: chunked\r\nContent-Encoding: br\r\n\r\n",
                  "HTTP/1.1 415 ", "'br'"},
                 {"POST /v1/messages/none HTTP/1.1\r\n" OF_HOST "Content-Length: 9\r\n\r\n",
                  "HTTP/1.1 404 ", "{\"type\":\"error\""}};
    int fds[3];
    (void)state;
    open_door(1 << 20);
    for (int i = 0; i < 3; i++) {
        fds[i] = dial();
        assert_int_equal(send(fds[i], cases[i].head, strlen(cases[i].head), 0),
                         strlen(cases[i].head));
    }
    for (int i = 0; i < 3; i++)
        hears(fds[i], cases[i].status, cases[i].words);
    int fd = dial();
    static const char metrics[] = "GET /metrics HTTP/1.1\r\n" OF_HOST "Connection: close\r\n\r\n";
    assert_int_equal(send(fd, metrics, sizeof metrics - 1, 0), sizeof metrics - 1);
    hears(fd, "moe_http_late_total 0\n", "route=\"/v1/completions\",status=\"415\"} 1\n");
    close_door();
}

/* Sends a body with a Content-Encoding, and wants the status and the words in its answer. */
static void sends_encoded(const char *coding, const struct moe_buf *body, const char *status,
                          const char *words)
{
    struct moe_buf text = {0};
    moe_buf_printf(&text,
                   POST "Connection: close\r\nContent-Encoding: %s\r\nContent-Length: %zu\r\n\r\n",
                   coding, (size_t)body->size);
    moe_buf_append(&text, body->data, body->size);
    int fd = dial();
    fake.answers_at_once = true;
    assert_int_equal(send(fd, text.data, text.size, 0), text.size);
    hears(fd, status, words);
    moe_buf_release(&text);
    moe_request_free(fake.request);
    fake.request = NULL;
}

enum coding { TELLS_SIZE, HIDES_SIZE, GZIP, N_CODINGS };

static void append_frame(struct moe_buf *to, const char *text, size_t n, enum coding coding)
{
    const bool tells_size = coding == TELLS_SIZE;
    if (coding == GZIP) {
        z_stream z = {.next_in = (Bytef *)text, .avail_in = (uInt)n};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY),
                         Z_OK);
        z.avail_out = (uInt)deflateBound(&z, n);
        z.next_out = moe_buf_reserve(to, z.avail_out);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        to->size += z.total_out;
        deflateEnd(&z);
        return;
    }
    ZSTD_CCtx *zstd = ZSTD_createCCtx();
    uint8_t *end = moe_buf_reserve(to, ZSTD_compressBound(n));
    assert_true(zstd && end);
    ZSTD_CCtx_setParameter(zstd, ZSTD_c_contentSizeFlag, tells_size);
    size_t got = ZSTD_compress2(zstd, end, ZSTD_compressBound(n), text, n);
    assert_false(ZSTD_isError(got));
    to->size += got;
    ZSTD_freeCCtx(zstd);
}

static void compressed_bodies_keep_to_the_limits(void **state)
{
    enum { LIMIT = 4 << 20 }; /* of any body */
    (void)state;
    char *blanks = malloc(LIMIT + 1);
    assert_non_null(blanks);
    memset(blanks, ' ', LIMIT + 1);
    open_door(8 << 20);
    for (enum coding c = 0; c < N_CODINGS; c++) {
        const char *name = c == GZIP ? "gzip" : "zstd", *also = c == GZIP ? "X-Gzip" : "Zstd";
        struct moe_buf body = {0};
        append_frame(&body, FINE, sizeof FINE - 1, c);
        sends_encoded(name, &body, "HTTP/1.1 200", "");
        sends_encoded(c == GZIP ? "gzip \t" : "zstd ", &body, "HTTP/1.1 200", ""); /* RFC 9112, 5 */
        append_frame(&body, blanks, LIMIT + 1 - sizeof FINE, c); /* several: up to the limit */
        sends_encoded(also, &body, "HTTP/1.1 200", "");
        append_frame(&body, " ", 1, c); /* and beyond */
        sends_encoded(name, &body, "HTTP/1.1 413", "larger than 4");
        moe_buf_clear(&body);
        append_frame(&body, blanks, LIMIT + 1, c);
        sends_encoded(name, &body, "HTTP/1.1 413", "larger than 4");
        moe_buf_clear(&body);
        append_frame(&body, FINE, sizeof FINE - 1, c);
        body.data[body.size - 2] ^= c == GZIP; /* the length that gzip's end says */
        body.size -= c != GZIP;
        sends_encoded(name, &body, "HTTP/1.1 400", "cannot be decompressed");
        body.size -= 2;
        sends_encoded(name, &body, "HTTP/1.1 400", "cannot be decompressed");
        sends_encoded("deflate", &body, "HTTP/1.1 415", "'deflate'");
        sends_encoded("gzip, zstd", &body, "Accept-Encoding: gzip, zstd", "'gzip, zstd'");
        moe_buf_clear(&body);
        append_frame(&body, "", 0, c);
        sends_encoded(name, &body, "HTTP/1.1 400", "");
        moe_buf_release(&body);
    }
    const struct moe_buf plain = {.data = (uint8_t *)FINE, .size = sizeof FINE - 1};
    sends_encoded("identity", &plain, "HTTP/1.1 200", "");
    sends_encoded("zstd", &plain, "HTTP/1.1 400", "cannot be decompressed");
    sends_encoded("gzip", &plain, "HTTP/1.1 400", "cannot be decompressed");
    int fd = dial(); /* nothing stays booked */
    static const char metrics[] = "GET /metrics HTTP/1.1\r\n" OF_HOST "Connection: close\r\n\r\n";
    assert_int_equal(send(fd, metrics, sizeof metrics - 1, 0), sizeof metrics - 1);
    hears(fd, "HTTP/1.1 200", "moe_http_buffered_bytes 0\n");
    close_door();
    open_door(2 << 20); /* whose buffers have no room for what may come out of several frames */
    struct moe_buf body = {0};
    append_frame(&body, FINE, sizeof FINE - 1, TELLS_SIZE);
    sends_encoded("zstd", &body, "HTTP/1.1 200", "");
    append_frame(&body, " ", 1, TELLS_SIZE);
    sends_encoded("zstd", &body, "HTTP/1.1 503", "too many requests");
    moe_buf_clear(&body);
    append_frame(&body, FINE, sizeof FINE - 1, GZIP); /* of which all is known */
    append_frame(&body, " ", 1, GZIP);
    sends_encoded("gzip", &body, "HTTP/1.1 200", "");
    moe_buf_release(&body);
    struct moe_buf bomb = {0};
    for (int gzip = 0; gzip < 2; gzip++) {
        moe_buf_clear(&bomb);
        append_frame(&bomb, blanks, LIMIT + 1 - sizeof FINE, gzip ? GZIP : TELLS_SIZE);
        sends_encoded(gzip ? "gzip" : "zstd", &bomb, "HTTP/1.1 503", "too many requests");
    }
    moe_buf_release(&bomb);
    close_door();
    free(blanks);
}

/* ---- Clients that take more than their share ---- */

static int send_from(const char *address, const char *text)
{
    int fd = dial_from(address);
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
    return fd;
}

static void half_sent_requests_give_way(void **state)
{
    (void)state;
    static const char half[] = "GET /health HTTP/1.1\r\nHost: local",
                      rest[] = "host\r\n"
                               "Connection: close\r\n\r\n";
    enum { FLOOD = 60 };
    int flood[FLOOD];
    door_connections = 8;
    open_door(1 << 20);
    int slow = send_from("127.0.0.3", half);
    for (int i = 0; i < FLOOD; i++)
        flood[i] = send_from("127.0.0.2", half);
    hears(send_from("127.0.0.1", "GET /health HTTP/1.1\r\nHost: localhost\r\n"
                                 "Connection: close\r\n\r\n"),
          "HTTP/1.1 200", "ok");
    assert_int_equal(send(slow, rest, sizeof rest - 1, MSG_NOSIGNAL), sizeof rest - 1);
    hears(slow, "HTTP/1.1 200", "ok"); /* it had one connection, as it may */
    for (int i = 0; i < FLOOD; i++)
        close(flood[i]);
    close_door();
    door_connections = 1024;
}

static void bodies_that_do_not_go_on_give_way(void **state)
{
    (void)state;
    static char head[16 << 10];
    enum { FLOOD = 5 };
    for (int same = 0; same < 2; same++) { /* the honest client has the same address or another */
        int flood[FLOOD];
        open_door(64 << 10);
        fake.answers_at_once = true;
        int n = snprintf(head, sizeof head,
                         "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                         "Content-Length: %zu\r\n\r\n",
                         sizeof head);
        memset(head + n, ' ', sizeof head - 1 - (size_t)n);
        for (int i = 0; i < FLOOD; i++)
            flood[i] = send_from(same ? "127.0.0.1" : "127.0.0.2", head);
        usleep(same ? 1200 * 1000 : 100 * 1000);
        hears(ask(false), "HTTP/1.1 200", "at once");
        for (int i = 0; i < FLOOD; i++)
            close(flood[i]);
        close_door();
    }
}

/* A figure of /metrics, asked on a connection of its own. */
static unsigned long figure(const char *name)
{
    struct moe_buf heard = {0};
    int fd =
        send_from("127.0.0.9", "GET /metrics HTTP/1.1\r\n" OF_HOST "Connection: close\r\n\r\n");
    hear(fd, &heard, NULL);
    const char *at = strstr((const char *)heard.data, name);
    assert_non_null(at);
    unsigned long value = strtoul(at + strlen(name), NULL, 10);
    moe_buf_release(&heard);
    close(fd);
    return value;
}

/* Who closes a connection within a request leaves nothing behind, long before requests are late;
 * who closes only its half, without having said all, has it closed. */
static void half_sent_requests_end_with_their_clients(void **state)
{
    (void)state;
#define HALF_BODY "POST /v1/completions HTTP/1.1\r\n" OF_HOST "Content-Length: 100\r\n\r\n{\"pro"
#define WHOLE "GET /health HTTP/1.1\r\n" OF_HOST "\r\n"
    static const char *const sent[] = {
        "",
        "GET /hea",
        "GET /health HTTP/1.1\r\nHost: local",
        HALF_BODY,
        "POST /v1/completions HTTP/1.1\r\n" OF_HOST
        "Transfer-Encoding: chunked\r\n\r\n10\r\n{\"pro",
        "POST /nowhere HTTP/1.1\r\n" OF_HOST "Content-Length: 100\r\n\r\n{\"pro",
        WHOLE "GET /hea",
        WHOLE HALF_BODY,
    };
    enum { N = sizeof sent / sizeof sent[0] };
    open_door(1 << 20);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < N; i++) {
            struct moe_buf heard = {0};
            int fd = send_from("127.0.0.1", sent[i]);
            if (half) {
                shutdown(fd, SHUT_WR);
                hear(fd, &heard, NULL); /* to the end */
                moe_buf_release(&heard);
            }
            close(fd);
        }
    while (figure("\nmoe_http_connections ") > 1)
        usleep(1000);
    assert_int_equal(figure("\nmoe_http_buffered_bytes "), 0);
    assert_int_equal(figure("\nmoe_http_late_total "), 0);
    close_door();
}

/* Answers that are there at once count as those that come: who asks for one again and again and
 * does not read does not fill memory. */
static void kept_responses_that_nobody_reads_are_counted(void **state)
{
    (void)state;
    enum { LONG = 600 << 10, N = 12 };
    struct moe_buf body = {0}, heard = {0};
    char ask[160], status[13] = "";
    int clients[N], n_served = 0;
    open_door(4 << 20);
    fake.answers_at_once = true;
    moe_buf_text(&body, "{\"input\":\"x\",\"metadata\":{\"k\":\"");
    for (int i = 0; i < LONG; i++)
        moe_buf_u8(&body, 'x');
    moe_buf_text(&body, "\"}}");
    int fd = dial();
    int n = snprintf(ask, sizeof ask,
                     "POST /v1/responses HTTP/1.1\r\n" OF_HOST
                     "Connection: close\r\nContent-Length: %llu\r\n\r\n",
                     (unsigned long long)body.size);
    assert_int_equal(send(fd, ask, (size_t)n, 0), n);
    for (uint64_t at = 0; at < body.size; at += (uint64_t)n)
        assert_true((n = (int)send(fd, body.data + at, body.size - at, 0)) > 0);
    hear(fd, &heard, NULL);
    close(fd);
    const char *id = strstr((const char *)heard.data, "\"id\":\"resp_");
    assert_non_null(id);
    n = snprintf(ask, sizeof ask, "GET /v1/responses/%.*s HTTP/1.1\r\n" OF_HOST "\r\n",
                 (int)strcspn(id + 6, "\""), id + 6);
    for (int i = 0; i < N; i++) {
        clients[i] = send_from("127.0.0.1", ask);
        assert_int_equal(recv(clients[i], status, 12, MSG_WAITALL), 12);
        n_served += strcmp(status, "HTTP/1.1 200") == 0;
    }
    assert_in_range(n_served, 1, (4 << 20) / LONG);
    assert_string_equal(status, "HTTP/1.1 503");
    for (int i = 0; i < N; i++)
        close(clients[i]);
    moe_buf_release(&heard);
    moe_buf_release(&body);
    close_door();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_keep_to_http),
        cmocka_unit_test(refused_bodies_are_not_waited_for),
        cmocka_unit_test(compressed_bodies_keep_to_the_limits),
        cmocka_unit_test(a_stream_is_handed_on_piece_by_piece),
        cmocka_unit_test(an_answer_may_come_before_it_is_waited_for),
        cmocka_unit_test(who_leaves_is_cancelled),
        cmocka_unit_test(who_stops_sending_gets_the_answer),
        cmocka_unit_test(silent_streams_begin_and_go_on),
        cmocka_unit_test(half_sent_requests_give_way),
        cmocka_unit_test(half_sent_requests_end_with_their_clients),
        cmocka_unit_test(kept_responses_that_nobody_reads_are_counted),
        cmocka_unit_test(bodies_that_do_not_go_on_give_way),
        cmocka_unit_test(who_does_not_read_is_cut_off),
        cmocka_unit_test(an_answer_beyond_the_buffers_is_refused),
        cmocka_unit_test(failures_have_a_status_or_come_in_the_stream),
        cmocka_unit_test(a_full_queue_says_when_to_come_back),
        cmocka_unit_test(the_end_waits_for_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
