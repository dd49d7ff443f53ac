/*
 * Many clients of an HTTP server at once, well behaved or not, from one thread.
 *
 *   http_load -p PORT [-n CLIENTS] [-r ROUNDS] [-X METHOD] [-P PATH] [-H HEADER]... [-f BODY] ...
 *   http_load -p PORT -w FILE ...          sends the file's bytes as they are
 *
 *   -s BYTES   sends only so many and waits      -t BYTES   reads at most so many each 0.1 s
 *   -d BYTES   leaves after so many were read    -T SECONDS stays no longer (60)
 *   -S ADDRESS comes from there (127.0.0.2), each client from the next address; -A: all from it
 *   -U PATH    connects to a local socket        -l         prints how long whole answers took, in
 * ms -e FILE    counts whole answers of status 200 with this text in the body -o FILE    writes the
 * body of the last answer, -D FILE its head
 *
 * Prints one line: how many requests were begun, their statuses, how many answers were whole, had
 * the text, were cut off, how many connections the server closed without a word, how many clients
 * left, and how many were still waiting at the end.
 */
#define _GNU_SOURCE /* memmem, strcasestr */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"

enum { MAX_STATUS = 600, PIECE = 64 << 10 };

static struct {
    int port, clients, rounds;
    const char *from, *local, *method, *path, *expect_file, *body_file, *out_file, *head_file;
    uint64_t send, leave, pace;
    bool same_address, latency;
    double seconds;
} opt = {
    .clients = 1, .rounds = 1, .path = "/", .send = UINT64_MAX, .leave = UINT64_MAX, .seconds = 60};

struct client {
    uint32_t number;
    int fd; /* -1: at its end */
    int round;
    uint64_t sent;
    double began;
    struct moe_buf in;
};

static struct {
    uint64_t begun, status[MAX_STATUS], whole, expected, cut, closed, left, open;
} count;

static struct moe_buf request, expected, latencies; /* latencies: doubles */
static int poll_fd;
static unsigned running;

/* ---- Answers ---- */

/* The value of a header of the head at `text`, or NULL. */
static const char *header(const char *text, const char *end, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = strstr(text, "\r\n"); line && line < end; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':')
            return line + n + 1 + strspn(line + n + 1, " ");
    }
    return NULL;
}

/* Appends the body as it was before it was cut into chunks. False: the last one is missing. */
static bool join_chunks(const char *from, const char *end, struct moe_buf *body)
{
    for (;;) {
        char *after;
        unsigned long n = strtoul(from, &after, 16);
        if (after == from || end - after < 2 || memcmp(after, "\r\n", 2) != 0)
            return false;
        from = after + 2;
        if (n == 0)
            return true;
        if ((unsigned long)(end - from) < n + 2)
            return false;
        moe_buf_append(body, from, n);
        from += n + 2;
    }
}

static bool has_expected(const struct moe_buf *body)
{
    return expected.size && body->size &&
           memmem(body->data, body->size, expected.data, expected.size);
}

static void save(const char *path, const void *bytes, uint64_t n)
{
    struct moe_err err;
    if (path && moe_file_write_all(path, bytes, n, &err) != MOE_OK)
        fprintf(stderr, "http_load: %s\n", err.text);
}

/* What came until the connection's end. */
static void judge(const struct moe_buf *in)
{
    const char *text = (const char *)in->data, *end = text + in->size;
    const char *end_of_head = text ? strstr(text, "\r\n\r\n") : NULL;
    int status;
    while (end_of_head && strncmp(text, "HTTP/1.1 1", 10) == 0) { /* the answer is to come */
        text = end_of_head + 4;
        end_of_head = strstr(text, "\r\n\r\n");
    }
    if (!end_of_head || sscanf(text, "HTTP/1.%*c %d", &status) != 1 || status < 0 ||
        status >= MAX_STATUS) {
        count.closed++;
        return;
    }
    count.status[status]++;
    struct moe_buf body = {0};
    const char *from = end_of_head + 4;
    const char *length = header(text, end_of_head, "Content-Length");
    bool whole = true;
    if (header(text, end_of_head, "Transfer-Encoding")) {
        whole = join_chunks(from, end, &body);
    } else {
        moe_buf_append(&body, from, (uint64_t)(end - from));
        whole = !length || strtoull(length, NULL, 10) == body.size ||
                (opt.method && strcmp(opt.method, "HEAD") == 0);
    }
    count.whole += whole;
    count.cut += !whole;
    count.expected += whole && status == 200 && has_expected(&body);
    save(opt.head_file, text, (uint64_t)(end_of_head + 2 - text));
    save(opt.out_file, body.data ? (const char *)body.data : "", body.size);
    moe_buf_release(&body);
}

/* ---- Clients ---- */

static void begin(struct client *c)
{
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)opt.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    const struct sockaddr *at = opt.local ? (struct sockaddr *)&local : (struct sockaddr *)&to;
    snprintf(local.sun_path, sizeof local.sun_path, "%s", opt.local ? opt.local : "");
    c->fd = socket(at->sa_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    c->sent = 0;
    c->began = moe_seconds();
    count.begun++;
    if (opt.pace) { /* what is not read stays with the server */
        int small = 4096;
        setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    }
    struct sockaddr_in own = {.sin_family = AF_INET};
    if (opt.from && (inet_pton(AF_INET, opt.from, &own.sin_addr) != 1 ||
                     !(own.sin_addr.s_addr = htonl(ntohl(own.sin_addr.s_addr) +
                                                   (opt.same_address ? 0 : c->number))) ||
                     bind(c->fd, (const struct sockaddr *)&own, sizeof own) != 0)) {
        perror("http_load: bind");
        exit(1);
    }
    if (c->fd < 0 ||
        (connect(c->fd, at, opt.local ? sizeof local : sizeof to) != 0 && errno != EINPROGRESS)) {
        perror("http_load: connect");
        exit(1);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, c->fd, &event);
    running++;
}

static int by_length(const void *a, const void *b)
{
    const double d = *(const double *)a - *(const double *)b;
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

static void print_latencies(void)
{
    double *all = (double *)(void *)latencies.data;
    uint64_t n = latencies.size / sizeof *all;
    if (n == 0)
        return;
    qsort(all, n, sizeof *all, by_length);
    printf(" p50=%.1f p95=%.1f p99=%.1f max=%.1f", all[n / 2], all[n * 95 / 100], all[n * 99 / 100],
           all[n - 1]);
}

static void end(struct client *c, uint64_t *kind)
{
    const uint64_t whole = count.whole;
    if (kind)
        (*kind)++;
    else
        judge(&c->in);
    const double ms = 1e3 * (moe_seconds() - c->began);
    if (opt.latency && count.whole > whole)
        moe_buf_append(&latencies, &ms, sizeof ms);
    close(c->fd);
    c->fd = -1;
    running--;
    moe_buf_release(&c->in);
    if (++c->round < opt.rounds)
        begin(c);
}

static void put(struct client *c)
{
    uint64_t wanted = request.size < opt.send ? request.size : opt.send;
    while (c->sent < wanted) {
        ssize_t n = send(c->fd, request.data + c->sent, wanted - c->sent, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            c->sent = wanted; /* it takes no more: what it says comes next */
        if (n <= 0)
            break;
        c->sent += (uint64_t)n;
    }
    if (c->sent == wanted) {
        struct epoll_event event = {.events = opt.pace ? 0 : EPOLLIN, .data.ptr = c};
        epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &event);
    }
}

/* At most `most` bytes; an end of the connection ends the client. */
static void get(struct client *c, uint64_t most)
{
    static char piece[PIECE];
    ssize_t n = recv(c->fd, piece, most < PIECE ? most : PIECE, 0);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n <= 0) {
        end(c, NULL);
        return;
    }
    moe_buf_append(&c->in, piece, (uint64_t)n);
    if (c->in.size >= opt.leave)
        end(c, &count.left);
}

static void run(struct client *clients)
{
    enum { EVENTS = 256 };
    struct epoll_event events[EVENTS];
    double began = moe_seconds(), read_at = began;
    while (running && moe_seconds() - began < opt.seconds) {
        int n = epoll_wait(poll_fd, events, EVENTS, opt.pace ? 20 : 200);
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT)
                put(c);
            if (c->fd >= 0 && !opt.pace && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                get(c, PIECE);
        }
        if (opt.pace && moe_seconds() - read_at >= 0.1) {
            read_at = moe_seconds();
            for (int i = 0; i < opt.clients; i++)
                if (clients[i].fd >= 0)
                    get(&clients[i], opt.pace);
        }
    }
    count.open = running;
}

/* ---- The command line ---- */

static int read_options(int argc, char **argv, struct moe_buf *headers, struct moe_err *err)
{
    int letter, status = MOE_OK;
    const char *raw = NULL;
    while ((letter = getopt(argc, argv, "p:n:r:X:P:H:f:w:s:t:d:T:e:o:D:S:U:Al")) != -1 &&
           status == MOE_OK)
        switch (letter) {
        case 'p':
            opt.port = atoi(optarg);
            break;
        case 'n':
            opt.clients = atoi(optarg);
            break;
        case 'r':
            opt.rounds = atoi(optarg);
            break;
        case 'X':
            opt.method = optarg;
            break;
        case 'P':
            opt.path = optarg;
            break;
        case 'H':
            moe_buf_printf(headers, "%s\r\n", optarg);
            break;
        case 'f':
            opt.body_file = optarg;
            break;
        case 'w':
            raw = optarg;
            break;
        case 's':
            opt.send = strtoull(optarg, NULL, 10);
            break;
        case 't':
            opt.pace = strtoull(optarg, NULL, 10);
            break;
        case 'd':
            opt.leave = strtoull(optarg, NULL, 10);
            break;
        case 'A':
            opt.same_address = true;
            break;
        case 'l':
            opt.latency = true;
            break;
        case 'U':
            opt.local = optarg;
            break;
        case 'S':
            opt.from = optarg;
            break;
        case 'T':
            opt.seconds = atof(optarg);
            break;
        case 'e':
            status = moe_file_read_all(optarg, 1 << 24, &expected, err);
            break;
        case 'o':
            opt.out_file = optarg;
            break;
        case 'D':
            opt.head_file = optarg;
            break;
        default:
            return moe_fail(err, MOE_ERR_USAGE, "see the source");
        }
    if (status == MOE_OK && raw)
        return moe_file_read_all(raw, 1 << 28, &request, err);
    struct moe_buf body = {0};
    if (status == MOE_OK && opt.body_file)
        status = moe_file_read_all(opt.body_file, 1 << 28, &body, err);
    moe_buf_printf(&request, "%s %s HTTP/1.1\r\n",
                   opt.method      ? opt.method
                   : opt.body_file ? "POST"
                                   : "GET",
                   opt.path);
    if (!headers->data || !strcasestr((const char *)headers->data, "host:"))
        moe_buf_printf(&request, "Host: 127.0.0.1:%d\r\n", opt.port);
    moe_buf_text(&request, "Connection: close\r\n");
    if (opt.body_file)
        moe_buf_printf(&request, "Content-Type: application/json\r\nContent-Length: %llu\r\n",
                       (unsigned long long)body.size);
    if (headers->data)
        moe_buf_text(&request, (const char *)headers->data);
    moe_buf_text(&request, "\r\n");
    moe_buf_append(&request, body.data, body.size);
    moe_buf_release(&body);
    return status;
}

int main(int argc, char **argv)
{
    struct moe_err err;
    struct moe_buf headers = {0};
    struct rlimit files;
    if (read_options(argc, argv, &headers, &err) != MOE_OK) {
        fprintf(stderr, "http_load: %s\n", err.text);
        return 2;
    }
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    poll_fd = epoll_create1(0);
    struct client *clients = calloc((size_t)opt.clients, sizeof *clients);
    if (!clients || poll_fd < 0)
        return 1;
    for (int i = 0; i < opt.clients; i++) {
        clients[i].number = (uint32_t)i;
        begin(&clients[i]);
    }
    run(clients);
    printf("begun=%llu", (unsigned long long)count.begun);
    for (int i = 0; i < MAX_STATUS; i++)
        if (count.status[i])
            printf(" s%d=%llu", i, (unsigned long long)count.status[i]);
    printf(" whole=%llu expected=%llu cut=%llu closed=%llu left=%llu open=%llu",
           (unsigned long long)count.whole, (unsigned long long)count.expected,
           (unsigned long long)count.cut, (unsigned long long)count.closed,
           (unsigned long long)count.left, (unsigned long long)count.open);
    print_latencies();
    putchar('\n');
    for (int i = 0; i < opt.clients; i++) {
        if (clients[i].fd >= 0)
            close(clients[i].fd);
        moe_buf_release(&clients[i].in);
    }
    free(clients);
    moe_buf_release(&headers);
    moe_buf_release(&request);
    moe_buf_release(&expected);
    moe_buf_release(&latencies);
    return 0;
}
