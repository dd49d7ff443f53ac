/* Error values: a status and one line of text. */
#define _POSIX_C_SOURCE 200809L /* the strerror_r that returns int */
#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void moe_blank_controls(char *text)
{
    for (unsigned char *p = (unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            *p = '?';
}

void moe_blank_line_feeds(char *text)
{
    while ((text = strchr(text, '\n')))
        *text = '?';
}

static int failv(struct moe_err *err, int status, const char *format, va_list args)
{
    if (err) {
        err->status = status;
        vsnprintf(err->text, sizeof err->text, format, args);
        moe_blank_controls(err->text);
    }
    return status;
}

int moe_fail(struct moe_err *err, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    failv(err, status, format, args);
    va_end(args);
    return status;
}

int moe_err_prefix(struct moe_err *err, const char *format, ...)
{
    if (!err)
        return MOE_ERR_IO;
    struct moe_err old = *err;
    va_list args;
    va_start(args, format);
    failv(err, old.status, format, args);
    va_end(args);
    size_t n = strlen(err->text);
    snprintf(err->text + n, sizeof err->text - n, ": %s", old.text);
    return err->status;
}

void moe_err_rename(struct moe_err *err, const char *path, const char *name)
{
    size_t n = strlen(path);
    if (!err || strncmp(err->text, path, n) != 0)
        return;
    struct moe_err old = *err;
    moe_fail(err, old.status, "%s%s", name, old.text + n);
}

const char *moe_errno_text(int code, char *buffer, unsigned long buffer_bytes)
{
    /* The POSIX strerror_r fills the buffer, the GNU one may return a static string: taking the
     * result through an if on its type would need an extension, so ask for POSIX and check. */
    if (strerror_r(code, buffer, buffer_bytes) != 0)
        snprintf(buffer, buffer_bytes, "error %d", code);
    return buffer;
}
