/*
 * What the programs print: standard output and standard error pass through streams of ours.
 *
 * On a terminal these show control characters instead of sending them: what a program prints may
 * come from a file or a model, and must not move the cursor, set the window's title or change the
 * keyboard. They also finish what a write has only begun, wherever it goes.
 */
#define _GNU_SOURCE /* fopencookie */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli.h"
#include "cli_private.h"

/* ---- Streams ---- */

enum { CHUNK = 4096 };

struct channel {
    int fd;
    bool as_is;      /* it is no terminal, or what is printed is ours */
    uint8_t held[4]; /* the beginning of a character */
    uint8_t n_held;
};

static struct channel channels[] = {{.fd = STDOUT_FILENO}, {.fd = STDERR_FILENO}};

bool cli_may_retry(int fd, bool writing)
{
    struct pollfd file = {.fd = fd, .events = writing ? POLLOUT : POLLIN};
    return errno == EINTR || (errno == EAGAIN && (poll(&file, 1, -1) >= 0 || errno == EINTR));
}

static bool write_whole(int fd, const uint8_t *bytes, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && cli_may_retry(fd, true))
            continue;
        if (put == 0)
            errno = EIO; /* or it would be tried forever */
        if (put <= 0)
            return false;
        bytes += put;
        n -= (size_t)put;
    }
    return true;
}

/* Bytes of whole characters, with room for one more character at the end of `shown`. */
static bool show_bytes(struct channel *c, const uint8_t *bytes, uint64_t n)
{
    uint8_t shown[CHUNK];
    size_t n_shown = 0;
    for (uint64_t at = 0; at < n;) {
        int length;
        n_shown += (size_t)moe_text_visible(bytes + at, n - at, &length, shown + n_shown);
        at += (uint64_t)length;
        if (n_shown > CHUNK - MOE_VISIBLE_BYTES || at == n) {
            if (!write_whole(c->fd, shown, n_shown))
                return false;
            n_shown = 0;
        }
    }
    return true;
}

/* Holds a character whose bytes come in several writes until it is complete. */
static ssize_t stream_write(void *cookie, const char *text, size_t n)
{
    struct channel *c = cookie;
    const uint8_t *bytes = (const uint8_t *)text;
    size_t at = 0;
    if (c->as_is)
        return write_whole(c->fd, bytes, n) ? (ssize_t)n : 0;
    while (c->n_held > 0 && at < n) {
        c->held[c->n_held++] = bytes[at++];
        uint64_t whole = moe_utf8_complete(c->held, c->n_held);
        if (!show_bytes(c, c->held, whole))
            return 0;
        c->n_held -= (uint8_t)whole;
        memmove(c->held, c->held + whole, c->n_held);
    }
    uint64_t whole = moe_utf8_complete(bytes + at, n - at);
    if (!show_bytes(c, bytes + at, whole))
        return 0;
    for (at += whole; at < n; at++)
        c->held[c->n_held++] = bytes[at];
    return (ssize_t)n;
}

bool cli_is_terminal(int fd)
{
    return isatty(fd) && !(fd == STDOUT_FILENO && getenv("OMPI_COMM_WORLD_SIZE"));
}

static FILE *open_stream(struct channel *c, FILE *plain)
{
    FILE *stream = fopencookie(c, "w", (cookie_io_functions_t){.write = stream_write});
    if (!stream)
        return plain;
    c->as_is = !cli_is_terminal(c->fd);
    if (c->fd == STDERR_FILENO)
        setvbuf(stream, NULL, _IONBF, 0);
    else if (!c->as_is)
        setvbuf(stream, NULL, _IOLBF, 0);
    return stream;
}

static FILE *plain_out, *plain_err;

void cli_open_output(void)
{
    plain_out = stdout;
    plain_err = stderr;
    stdout = open_stream(&channels[0], stdout);
    stderr = open_stream(&channels[1], stderr);
}

FILE *cli_terminal(int fd)
{
    fflush(fd == STDOUT_FILENO ? stdout : stderr);
    return fd == STDOUT_FILENO ? plain_out : plain_err;
}

int cli_width(int fd)
{
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/* ---- Standard output ---- */

/* Of the first failure: later flushes of the emptied buffer would succeed. */
static int stdout_errno;

static bool stdout_works(void)
{
    errno = 0;
    if (fflush(stdout) != 0 && !stdout_errno)
        stdout_errno = errno;
    return !ferror(stdout) && !stdout_errno;
}

bool cli_write(const void *bytes, uint64_t n)
{
    errno = 0;
    if (n > 0 && fwrite(bytes, 1, n, stdout) != n && !stdout_errno)
        stdout_errno = errno;
    return stdout_works();
}

int cli_print(int status, struct moe_buf *text, struct moe_err *err)
{
    if (status == MOE_OK && text->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory");
    if (status == MOE_OK)
        cli_write(text->data, text->size);
    moe_buf_release(text);
    return status;
}

int cli_print_as_is(int status, struct moe_buf *text, struct moe_err *err)
{
    struct channel *c = &channels[0];
    bool before = c->as_is;
    fflush(stdout);
    c->as_is = true;
    status = cli_print(status, text, err);
    c->as_is = before;
    return status;
}

int cli_save(int status, struct moe_buf *text, const char *path, struct moe_err *err)
{
    if (status == MOE_OK && text->failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", path);
    fflush(stdout); /* "-" comes after it */
    if (status == MOE_OK)
        status = moe_file_write_all(path, text->data, text->size, err);
    moe_buf_release(text);
    return status;
}

int cli_flush(struct moe_err *err)
{
    char text[128];
    if (stdout_works())
        return MOE_OK;
    return moe_fail(err, MOE_ERR_IO, "standard output: %s",
                    stdout_errno ? moe_errno_text(stdout_errno, text, sizeof text)
                                 : "a write failed");
}

/* The beginning of a character that did not come. */
static void show_held(struct channel *c)
{
    show_bytes(c, c->held, c->n_held);
    c->n_held = 0;
}

int cli_finish(int status)
{
    cli_progress_done();
    struct moe_err err;
    int flushed = cli_flush(&err);
    show_held(&channels[0]);
    show_held(&channels[1]);
    /* One failure, one line: a program that has failed already has said why. */
    if (flushed != MOE_OK && status == CLI_DONE)
        return cli_error(&err);
    return status;
}
