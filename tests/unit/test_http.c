/* The front door over a server whose answers the tests themselves give, piece by piece. */
#define _DEFAULT_SOURCE
#include "serve/http.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

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
    bool answers_at_once; /* before the submitting function returns */
    bool ends_cancelled;
    int refuses; /* a status */
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};

static void say(const char *text)
{
    fake.events.text(fake.events.ctx, 0, text, strlen(text));
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

int moe_server_submit(struct moe_server *s, struct moe_request *r,
                      const struct moe_server_events *events, uint64_t *id, struct moe_err *err)
{
    (void)s;
    if (fake.refuses)
        return moe_fail(err, fake.refuses, "the queue is full");
    pthread_mutex_lock(&fake.lock);
    fake.events = *events;
    fake.request = r;
    pthread_cond_broadcast(&fake.news);
    pthread_mutex_unlock(&fake.lock);
    if (fake.answers_at_once) {
        say("at once");
        end(MOE_OK, NULL, MOE_STOP_EOS);
    }
    *id = ID;
    return MOE_OK;
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

const struct moe_sampler_options *moe_server_sampling(const struct moe_server *s, uint32_t i)
{
    (void)s, (void)i;
    return NULL;
}

const char *moe_server_model(const struct moe_server *s, uint32_t i)
{
    (void)s;
    return i == 0 ? "fake" : NULL;
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

static void open_door(uint64_t buffers)
{
    struct moe_err err = {0};
    struct moe_http_options o;
    moe_http_options_default(&o);
    o.port = 0;
    o.buffer_bytes = buffers;
    fake.request = NULL;
    fake.cancelled = fake.answers_at_once = fake.ends_cancelled = false;
    fake.refuses = MOE_OK;
    assert_ok(moe_http_open(&door, NULL, &o, &err), &err);
}

static void close_door(void)
{
    moe_http_close(door);
    moe_request_free(fake.request);
    fake.request = NULL;
}

static int ask(bool stream)
{
    const char *body = stream ? "{\"prompt\":\"x\",\"stream\":true}" : "{\"prompt\":\"x\"}";
    char text[256];
    int small = 4096, fd = socket(AF_INET, SOCK_STREAM, 0);
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port =
                                       htons((uint16_t)atoi(strrchr(moe_http_url(door), ':') + 1)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
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
    for (int stream = 0; stream < 2; stream++) {
        open_door(1 << 20);
        int fd = ask(stream);
        wait_for(has_request);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_handed_on_piece_by_piece),
        cmocka_unit_test(an_answer_may_come_before_it_is_waited_for),
        cmocka_unit_test(who_leaves_is_cancelled),
        cmocka_unit_test(who_does_not_read_is_cut_off),
        cmocka_unit_test(an_answer_beyond_the_buffers_is_refused),
        cmocka_unit_test(failures_have_a_status_or_come_in_the_stream),
        cmocka_unit_test(a_full_queue_says_when_to_come_back),
        cmocka_unit_test(the_end_waits_for_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
