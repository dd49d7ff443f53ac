/* moe-serve over HTTP: keys, origins, the access log, serving until a signal, what systemd hears,
 * beginning anew after a GPU's failure. */
#define _DEFAULT_SOURCE /* nanosleep */
#include "serve_http.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "serve/server.h"

void serve_http_defaults(struct serve_http_options *o)
{
    moe_http_options_default(&o->http);
    o->port = o->http.port;
    o->grace = 20;
    o->socket_mode = 600;
}

int serve_http_check(struct serve_http_options *o)
{
    for (int i = 0; i < o->origins.n; i++)
        if (!moe_access_origin_is_valid(o->origins.items[i]))
            return cli_misuse("option --allow-origin: '%s' is none of http://HOST[:PORT], "
                              "https://HOST[:PORT], SCHEME://[HOST], null and *",
                              o->origins.items[i]);
    for (int i = 0; i < o->hosts.n; i++)
        if (!moe_access_name_is_valid(o->hosts.items[i]))
            return cli_misuse("option --allow-host: '%s' is neither a name without a port nor *",
                              o->hosts.items[i]);
    if (o->socket_mode > 777 || o->socket_mode % 10 > 7 || o->socket_mode / 10 % 10 > 7)
        return cli_misuse("option --socket-mode: '%u' is not a mode like 600 or 660",
                          o->socket_mode);
    o->http.socket_mode =
        o->socket_mode / 100 << 6 | o->socket_mode / 10 % 10 << 3 | o->socket_mode % 10;
    o->http.port = (uint16_t)o->port;
    o->http.origins = o->origins.items;
    o->http.hosts = o->hosts.items;
    return -1;
}

/* ---- systemd ---- */

/* The socket that the service manager listens at for this process (LISTEN_FDS, sd_listen_fds(3)),
 * or -1. */
enum { FIRST = 3 };
static int inherited_listener(void)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || strtol(pid, NULL, 10) != (long)getpid() || strtol(n, NULL, 10) < 1)
        return -1;
    unsetenv("LISTEN_PID");
    fcntl(FIRST, F_SETFD, FD_CLOEXEC);
    fcntl(FIRST, F_SETFL, fcntl(FIRST, F_GETFL) | O_NONBLOCK);
    return FIRST;
}

/* Tells the service manager, where there is one (NOTIFY_SOCKET, sd_notify(3)). */
static void notify(const char *what)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    size_t n = path ? strlen(path) : 0;
    int fd = n && n < sizeof to.sun_path ? socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
    if (fd < 0)
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') /* an abstract name */
        to.sun_path[0] = 0;
    sendto(fd, what, strlen(what), MSG_NOSIGNAL, (const struct sockaddr *)&to,
           (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n));
    close(fd);
}

/* ---- Serving ---- */

/* Opens a named pipe for reading, too, so that it neither waits for a reader nor misses one. */
static int open_access_log(struct serve_http_options *o, struct moe_err *err)
{
    char text[64];
    struct stat file;
    if (!o->access_log)
        return MOE_OK;
    bool is_pipe = stat(o->access_log, &file) == 0 && S_ISFIFO(file.st_mode);
    o->http.access_log =
        strcmp(o->access_log, "-") == 0
            ? STDOUT_FILENO
            : open(o->access_log, (is_pipe ? O_RDWR : O_WRONLY) | O_APPEND | O_CREAT | O_CLOEXEC,
                   0640);
    return o->http.access_log >= 0 ? MOE_OK
                                   : moe_fail(err, MOE_ERR_IO, "%s: cannot open: %s", o->access_log,
                                              moe_errno_text(errno, text, sizeof text));
}

/* Waits until a signal ends the server, or the GPU's or a rank's failure: true. */
static bool wait_for_the_end(struct moe_server *server, struct moe_err *failure)
{
    const struct timespec while_ = {.tv_nsec = 200 * 1000 * 1000};
    while (!cli_stop && !moe_server_has_failed(server, failure))
        nanosleep(&while_, NULL); /* a signal interrupts it */
    return !cli_stop;
}

static void tell(const struct moe_http *h, const struct serve_http_options *o)
{
    cli_note("listening at %s", moe_http_url(h));
    if (moe_http_max_connections(h) < o->http.max_connections)
        cli_note("at most %u connections: the process may not open more files (ulimit -n)",
                 moe_http_max_connections(h));
    if (!o->http.keys && !moe_http_is_local(h))
        cli_note("anyone who reaches this address may use it: --api-key-file would ask for a key");
}

int serve_http(struct moe_server *server, const struct serve_http_options *o, int *listener,
               struct moe_err *err)
{
    struct serve_http_options with = *o;
    struct moe_err failure = {0};
    struct moe_access_keys *keys = NULL;
    struct moe_http *h = NULL;
    int status;
    if (listener)
        *listener = -1;
    MOE_STEP(o->key_file ? moe_access_keys_read(&keys, o->key_file, err) : MOE_OK);
    with.http.keys = keys;
    with.http.listener = inherited_listener();
    MOE_STEP(open_access_log(&with, err));
    MOE_STEP(moe_http_open(&h, server, &with.http, err));
    tell(h, &with);
    notify("READY=1");
    if (wait_for_the_end(server, &failure) && listener) {
        *listener = moe_http_share_listener(h);
        cli_note("%s: moe-serve begins anew", failure.text);
        notify("RELOADING=1");
    } else {
        notify("STOPPING=1");
    }
    uint32_t left = moe_http_finish(h, o->grace, NULL);
    if (left)
        cli_note("%u answers were not finished", left);
    if (failure.status != MOE_OK && (!listener || *listener < 0))
        status = moe_fail(err, failure.status, "%s", failure.text);
out:
    moe_http_close(h);
    moe_access_keys_free(keys);
    if (with.http.access_log > STDERR_FILENO)
        close(with.http.access_log);
    return status;
}

int serve_http_anew(char **argv, int listener, struct moe_err *err)
{
    char pid[24], text[64];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    if (setenv("LISTEN_PID", pid, 1) == 0 && setenv("LISTEN_FDS", "1", 1) == 0 &&
        dup2(listener, FIRST) == FIRST)
        execv("/proc/self/exe", argv);
    return moe_fail(err, MOE_ERR_IO, "moe-serve cannot begin anew: %s",
                    moe_errno_text(errno, text, sizeof text));
}
