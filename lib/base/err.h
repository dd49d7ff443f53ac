/*
 * Errors: one polarity, one message.
 *
 * Every function that can fail returns `int`: 0 is success, a negative value is an `enum
 * moe_status`. Functions whose failure needs explaining take `struct moe_err *err` last (NULL is
 * allowed); they write one complete sentence naming what, where and what to do, and leave `err`
 * untouched on success. Nothing here allocates; a moe_err belongs to one thread.
 */
#ifndef MOE_BASE_ERR_H
#define MOE_BASE_ERR_H

#ifdef __cplusplus
extern "C" {
#endif

/* Values are grouped with gaps and never renumbered. */
enum moe_status {
    MOE_OK = 0,
    MOE_ERR_USAGE = -10,       /* the caller asked for something that makes no sense */
    MOE_ERR_IO = -20,          /* the operating system refused: read, write, open, space */
    MOE_ERR_FORMAT = -30,      /* an input file is damaged or of a wrong kind */
    MOE_ERR_VERSION = -31,     /* an input file has a version this program does not read */
    MOE_ERR_UNSUPPORTED = -32, /* an input file is sound but asks for what is not implemented */
    MOE_ERR_LIMIT = -40,       /* a requested check or limit did not hold */
    MOE_ERR_MEMORY = -50,      /* out of memory */
    MOE_ERR_DEVICE = -60,      /* no device, or the device failed */
    MOE_ERR_INTERRUPTED = -70, /* stopped at the user's request; what is done is kept */
};

struct moe_err {
    int status;     /* an enum moe_status */
    char text[512]; /* one sentence, no newline, NUL-terminated */
};

#if defined(__GNUC__)
#define MOE_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#else
#define MOE_PRINTF(fmt_index, args_index)
#endif

/* Fills `err` (if not NULL) with `status` and the formatted text; returns `status`.
 * Control characters that a hostile file may have put into a name come out as '?'. */
int moe_fail(struct moe_err *err, int status, const char *format, ...) MOE_PRINTF(3, 4);

/* Puts "PREFIX: " in front of an error already written; returns err->status
 * (MOE_ERR_IO where err is NULL, so that a caller may `return moe_err_prefix(...)` only when it
 * holds an err; use moe_fail otherwise). */
int moe_err_prefix(struct moe_err *err, const char *format, ...) MOE_PRINTF(2, 3);

/* Replaces `path`, where the error begins with it, by a `name` that means more to the user. */
void moe_err_rename(struct moe_err *err, const char *path, const char *name);

/* Returns from the calling function with the status of a call that fails. For functions that own
 * nothing they must free on the way out. */
#define MOE_TRY(call)                                                                              \
    do {                                                                                           \
        int try_status = (call);                                                                   \
        if (try_status != MOE_OK)                                                                  \
            return try_status;                                                                     \
    } while (0)

/* Goes to the calling function's label `out`, with `status` set, when a call fails. For functions
 * that free there what they own. */
#define MOE_STEP(call)                                                                             \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != MOE_OK)                                                                      \
            goto out;                                                                              \
    } while (0)

/* Replaces control characters by '?': a name must not move the cursor of the user's terminal, nor
 * break a line. Keeps bytes from 0x80 up, which are UTF-8 in every sound case. */
void moe_blank_controls(char *text);
/* The same for line feeds only: of names in output that others read, where terminals are shown the
 * other control characters in a form of their own. */
void moe_blank_line_feeds(char *text);

/* The text of errno value `code`, in a thread-safe way; never NULL. `buffer` may be used. */
const char *moe_errno_text(int code, char *buffer, unsigned long buffer_bytes);

#ifdef __cplusplus
}
#endif

#endif
