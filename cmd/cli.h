/*
 * The command line of all programs: option table, --help, messages, exit status, progress, SIGINT.
 *
 * A program has one static table of options: the single source for parsing, for --help and, through
 * --help and tests/check-man.sh, for the man pages. An option points at the variable it sets; these
 * belong to the program, hold the defaults before parsing, and live in a static struct. The options
 * that every program has (-t, --cpu, -q, -v, -h, -V) are added here.
 *
 * Everything here belongs to the main thread; a program has one command line, hence one state.
 */
#ifndef CMD_CLI_H
#define CMD_CLI_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/progress.h"
#include "show/draw.h"

/* What an option takes, and the type of the variable it sets; or how --help shows the options that
 * follow, under the title .help. */
enum cli_kind {
    CLI_END = 0,   /* ends the table */
    CLI_HEADING,   /* a line each, with .help */
    CLI_LIST,      /* side by side, without .help: the man page explains them */
    CLI_ELSEWHERE, /* not at all: .shown names the page that has them */
    CLI_FLAG,      /* nothing; bool, set to true */
    CLI_TEXT,      /* const char *, borrowed from argv */
    CLI_TEXTS,     /* struct cli_texts; the option may be repeated */
    CLI_U32,       /* uint32_t in min..max */
    CLI_U64,       /* uint64_t in min..max; max UINT64_MAX: no upper end */
    CLI_DOUBLE,    /* double in low..high */
    CLI_BYTES,     /* uint64_t from "4G" */
    CLI_BYTES0,    /* the same, or 0 */
    CLI_RATE,      /* double, bytes per second, from "1.2GB/s" */
    CLI_SHARE,     /* double in low..high, from "1%" or "0.01" */
    CLI_CHOICE,    /* int, the index of the word in .choices */
    CLI_CUSTOM,    /* what .parse makes of it */
};

/* The arguments of a repeated option, in order. NULL-terminated once n > 0. */
struct cli_texts {
    const char **items; /* [n + 1], borrowed from argv; freed at exit by the system */
    int n;
};

struct cli_option {
    enum cli_kind kind;
    char letter;       /* short form, or 0 */
    const char *name;  /* long form without its dashes */
    const char *arg;   /* name of the argument in --help: "N"; NULL for flags */
    const char *shown; /* default as --help shows it, or NULL */
    const char *help;  /* one short line */
    void *to;          /* the variable */
    uint64_t min, max;
    double low, high;
    const char *const *choices; /* NULL-terminated */
    /* Words that shells complete it by, NULL past the end: where there are no choices. */
    const char *(*word)(int i);
    /* CLI_CUSTOM: reads `text` into `to`. On failure returns false, and `why` continues a message
     * that ends with the argument in quotes: "is not a list of 16, 8, 4, 3, 2"; where it says
     * nothing, the message lists the words. */
    bool (*parse)(const char *text, void *to, struct moe_err *why);
    /* CLI_CUSTOM: the option may come without its argument, last or before another option; text is
     * NULL then. */
    bool alone;
    bool output;    /* CLI_TEXT: a file that the program will write, tried before it begins */
    bool in_order;  /* ... in one go, so that it may be "-", a pipe or a device */
    bool or_stdout; /* ... in pieces; "-" is standard output */
    /* What it goes with. A program's modes are bits of its own, CLI_USUAL the one that no option
     * chooses; where several are chosen, the highest counts. */
    uint32_t mode;        /* that giving it chooses; 0: none */
    uint32_t modes;       /* that it belongs to; 0: all, or the one that it chooses */
    const char *excludes; /* names of options that it does not go with, "raw system" */
    const char *needs;    /* ... of which one must be given */
};

/* For readable tables:
 *   { CLI_OPT_FLAG('v', "list", &o.list), .help = "list what is inside" },
 *   { CLI_OPT_U32(0, "group", "N", &o.group, 16, 256), .shown = "64", .help = "..." },
 */
/* clang-format off */
#define CLI_OPT_FLAG(l, n, t)            .kind = CLI_FLAG, .letter = l, .name = n, .to = t
#define CLI_OPT_TEXT(l, n, a, t)         .kind = CLI_TEXT, .letter = l, .name = n, .arg = a, .to = t
#define CLI_OPT_OUTPUT(l, n, a, t)       CLI_OPT_TEXT(l, n, a, t), .output = true
#define CLI_OPT_STREAM(l, n, a, t)       CLI_OPT_OUTPUT(l, n, a, t), .in_order = true
#define CLI_OPT_TEXTS(l, n, a, t)        .kind = CLI_TEXTS, .letter = l, .name = n, .arg = a, .to = t
#define CLI_OPT_U32(l, n, a, t, lo, hi)  .kind = CLI_U32, .letter = l, .name = n, .arg = a, .to = t, \
                                         .min = lo, .max = hi
#define CLI_OPT_U64(l, n, a, t, lo, hi)  .kind = CLI_U64, .letter = l, .name = n, .arg = a, .to = t, \
                                         .min = lo, .max = hi
#define CLI_OPT_DOUBLE(l, n, a, t, lo, hi) .kind = CLI_DOUBLE, .letter = l, .name = n, .arg = a, \
                                         .to = t, .low = lo, .high = hi
#define CLI_OPT_BYTES(l, n, a, t)        .kind = CLI_BYTES, .letter = l, .name = n, .arg = a, .to = t
#define CLI_OPT_BYTES0(l, n, a, t)       .kind = CLI_BYTES0, .letter = l, .name = n, .arg = a, .to = t
#define CLI_OPT_RATE(l, n, a, t)         .kind = CLI_RATE, .letter = l, .name = n, .arg = a, .to = t
#define CLI_OPT_SHARE(l, n, a, t, lo, hi) .kind = CLI_SHARE, .letter = l, .name = n, .arg = a, \
                                         .to = t, .low = lo, .high = hi
#define CLI_OPT_CHOICE(l, n, a, t, c)    .kind = CLI_CHOICE, .letter = l, .name = n, .arg = a, \
                                         .to = t, .choices = c
#define CLI_OPT_CUSTOM(l, n, a, t, p)    .kind = CLI_CUSTOM, .letter = l, .name = n, .arg = a, \
                                         .to = t, .parse = p
/* clang-format on */

enum { CLI_USUAL = 1 }; /* the mode of a program that no option chooses */

struct cli_program {
    const char *name;                 /* "moe-run" */
    const char *summary;              /* one sentence for --help */
    const char *const *usage;         /* lines without the name, NULL-terminated */
    const struct cli_option *options; /* ends with CLI_END */
    const struct cli_option *more;    /* likewise: further options, not in --help; or NULL */
    uint32_t more_modes;              /* .modes of those */
    const char *const *examples;      /* whole commands, NULL-terminated */
    bool joins_ranks;                 /* under mpirun its processes work together */
};

/* Exit status of the programs. */
enum {
    CLI_DONE = 0,
    CLI_FAILED = 1,    /* out of memory, input or output error, no such device, interrupted */
    CLI_MISUSE = 2,    /* the command line is wrong */
    CLI_BAD_INPUT = 3, /* an input file is damaged, or of a wrong kind or version */
    CLI_LIMIT = 4,     /* a limit that was asked for does not hold: budget, tolerance, context */
};

/*
 * Parses. Returns -1 when the program should go on, otherwise the status to exit with (after
 * --help, --version or a message). *args gets the arguments that are not options, *n_args their
 * number. Refuses options that do not go together. Also ignores SIGPIPE (a closed pipe becomes a
 * write error), sets the number of threads and selects the kernels. Outputs that cannot be written
 * are refused here, before hours of work for them.
 */
int cli_parse(const struct cli_program *program, int argc, char **argv, char ***args, int *n_args);

/* For CLI_CUSTOM: the name of a rounding method, into a const struct moe_quant_method pointer; a
 * bitwidth or type (quant/bits.h) into an int. */
bool cli_parse_method(const char *text, void *to, struct moe_err *why);
bool cli_parse_width(const char *text, void *to, struct moe_err *why);
/* Names for cli_option.word: of rounding methods, and of how a collection is served. */
const char *cli_method_word(int i);
const char *cli_schedule_word(int i);
const char *cli_evict_word(int i);

/* The one of `names` (NULL-terminated) that `word` is probably meant to be: spelled with _ for -,
 * what other programs call it, one that it is the beginning of, or one at most two letters away;
 * NULL: none. */
const char *cli_nearest_name(const char *word, const char *const *names);

/* True when the option of that long name was on the command line. */
bool cli_given(const char *name);

extern bool cli_quiet, cli_verbose; /* -q, -v */
extern bool cli_mute;               /* another process of the same run has the messages */
extern struct moe_err cli_unsaid;   /* the first error that was mute; status MOE_OK: none was */

/* ---- Messages, all on stderr, one line each, after "NAME: " ---- */

/* Misuse: adds "(see NAME --help)". Returns CLI_MISUSE. */
int cli_misuse(const char *format, ...) MOE_PRINTF(1, 2);
/* The error's text. Returns the exit status of err->status. */
int cli_error(const struct moe_err *err);
void cli_note(const char *format, ...) MOE_PRINTF(1, 2);   /* not with -q */
void cli_detail(const char *format, ...) MOE_PRINTF(1, 2); /* only with -v */

/* Last call of a program: flushes stdout. Returns `status`, or CLI_FAILED after a message when
 * something could not be written to stdout. */
int cli_finish(int status);
/* Writes to stdout and flushes. False: not all was written; cli_flush then says why. */
bool cli_write(const void *bytes, uint64_t n);
/* Writes *text to stdout, or replaces the file by it, if `status` is MOE_OK and nothing in it
 * failed; then releases it. Returns `status`, or an error of its own. */
int cli_print(int status, struct moe_buf *text, struct moe_err *err);
int cli_save(int status, struct moe_buf *text, const char *path, struct moe_err *err);
/* The same for text with terminal sequences (cli_may_colour) and without names from files. */
int cli_print_as_is(int status, struct moe_buf *text, struct moe_err *err);
/* Flushes stdout. MOE_ERR_IO when this or an earlier write failed. */
int cli_flush(struct moe_err *err);
/* The terminal itself behind stdout or stderr (its descriptor), for sequences of ours and for
 * libedit. What stdout and stderr are given goes through a stream that shows control characters
 * other than newline and tab, as <1B>, if it is a terminal. */
FILE *cli_terminal(int fd);

/* Whether a person sees what goes to fd. Open MPI's mpirun has its processes write into terminals
 * of its own, and sends on what they write: that counts as redirected. */
bool cli_is_terminal(int fd);
/* Columns of the terminal behind fd as they are now; 80 where there is none. */
int cli_width(int fd);
/* Whether colours may be used: fd is a terminal (other than TERM=dumb), and NO_COLOR is not set. */
bool cli_may_colour(int fd);
/* What can be drawn on: the terminal behind fd (with blocks in a UTF-8 locale), or plain text of 80
 * columns. */
struct moe_screen cli_screen(int fd);
/* Breaks lines of a text for people that would not fit the terminal behind fd. */
void cli_fit(int fd, struct moe_buf *text);
/* printf for such a text, of at most 1024 bytes. */
void cli_say(const char *format, ...) MOE_PRINTF(1, 2);

/* ---- Progress and interruption ---- */

/* A hook that draws a bar on stderr once steps have taken a second or, where stderr is no terminal,
 * writes a line every few seconds; neither with -q. Its `stop` is cli_stop. The messages above
 * erase the bar first. */
const struct moe_progress *cli_progress(void);
void cli_progress_done(void); /* erases the bar */
void cli_progress_over(void); /* and draws none until the next cli_progress: a text is on its way */

/* Set by SIGINT once cli_catch_interrupt was called. While it is set, another SIGINT ends the
 * program at once with CLI_FAILED; cli_start_over clears it and arms it again. Reads are
 * interrupted (EINTR). What is under way may not come to its end (a disk that does not answer): the
 * program leaves by itself with CLI_FAILED and a line after 5 seconds or, of a conversation, says
 * that Ctrl-C does. */
extern volatile sig_atomic_t cli_stop;
void cli_catch_interrupt(bool conversation);
void cli_start_over(void);
/* Called where a signal ends the program at once; safe in a signal handler. NULL: nothing. */
extern void (*cli_on_leaving)(void);
/* The same for SIGINT, SIGTERM and SIGHUP, for programs with something to clean up or to keep,
 * which get a minute. */
void cli_catch_termination(void);

/* Ends the program with CLI_FAILED and this line, of at most 150 bytes, unless cli_limit(0, NULL)
 * comes within these seconds: for what waits without end and returns no error. */
void cli_limit(unsigned seconds, const char *line);

/* After a read or write of this descriptor has failed: whether to try again at once (it was
 * interrupted, or is non-blocking and now ready; waits for that). */
bool cli_may_retry(int fd, bool writing);

#endif
