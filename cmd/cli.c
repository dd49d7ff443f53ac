#define _POSIX_C_SOURCE 200809L /* sigaction, isatty */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/par.h"
#include "base/text.h"
#include "gpu.h"
#include "kern/kern.h"

bool cli_quiet, cli_verbose;
volatile sig_atomic_t cli_stop;

enum { MAX_OPTIONS = 96, FIRST_LONG = 256 };

static const struct cli_program *program;
static const struct cli_option *table[MAX_OPTIONS]; /* the program's rows, then the common ones */
static bool given[MAX_OPTIONS];
static int n_rows;

static struct {
    uint32_t threads;
    const char *cpu;
    bool help, version;
} common;

static const struct cli_option common_options[] = {
    {.kind = CLI_HEADING, .help = "Common"},
    {CLI_OPT_U32('t', "threads", "N", &common.threads, 1, MOE_MAX_THREADS),
     .shown = "cores available", .help = "threads that compute"},
    {CLI_OPT_TEXT(0, "cpu", "LEVEL", &common.cpu), .shown = "best",
     .help = "scalar, avx2, avx512, neon or neon-dot"},
    {CLI_OPT_FLAG('q', "quiet", &cli_quiet), .help = "errors only"},
    {CLI_OPT_FLAG('v', "verbose", &cli_verbose), .help = "more on stderr"},
    {CLI_OPT_FLAG('h', "help", &common.help), .help = "this text"},
    {CLI_OPT_FLAG('V', "version", &common.version), .help = "version, instruction set, build"},
    {.kind = CLI_END},
};

/* ---- Messages ---- */

static void say(const char *format, va_list args, const char *tail)
{
    cli_progress_done();
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "%s: %s%s\n", program->name, text, tail);
}

int cli_misuse(const char *format, ...)
{
    char tail[64];
    snprintf(tail, sizeof tail, " (see %s --help)", program->name);
    va_list args;
    va_start(args, format);
    say(format, args, tail);
    va_end(args);
    return CLI_MISUSE;
}

int cli_exit_status(int moe_status)
{
    switch (moe_status) {
    case MOE_OK:
        return CLI_DONE;
    case MOE_ERR_USAGE:
        return CLI_MISUSE;
    case MOE_ERR_FORMAT:
    case MOE_ERR_VERSION:
    case MOE_ERR_UNSUPPORTED:
        return CLI_BAD_INPUT;
    case MOE_ERR_LIMIT:
        return CLI_LIMIT;
    default:
        return CLI_FAILED;
    }
}

int cli_error(const struct moe_err *err)
{
    cli_progress_done();
    fprintf(stderr, "%s: %s\n", program->name, err->text);
    return cli_exit_status(err->status);
}

void cli_note(const char *format, ...)
{
    if (cli_quiet)
        return;
    va_list args;
    va_start(args, format);
    say(format, args, "");
    va_end(args);
}

void cli_detail(const char *format, ...)
{
    if (!cli_verbose)
        return;
    va_list args;
    va_start(args, format);
    say(format, args, "");
    va_end(args);
}

/* The first failure's errno: later flushes of an emptied buffer would succeed. */
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
    if (fwrite(bytes, 1, n, stdout) != n && !stdout_errno)
        stdout_errno = errno;
    return stdout_works();
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

int cli_finish(int status)
{
    cli_progress_done();
    struct moe_err err;
    /* One failure, one line: where the program has failed already, it has said why. */
    if (cli_flush(&err) != MOE_OK && status == CLI_DONE)
        return cli_error(&err);
    return status;
}

bool cli_may_colour(int fd)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fd) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
}

bool cli_may_draw(int fd)
{
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"}; /* the first that is set */
    static const char *const spellings[] = {"UTF-8", "utf8", "utf-8", "UTF8"};
    const char *locale = NULL;
    bool utf8 = false;
    for (int i = 0; i < 3 && !(locale && *locale); i++)
        locale = getenv(names[i]);
    for (int i = 0; i < 4 && locale; i++)
        utf8 |= strstr(locale, spellings[i]) != NULL;
    return utf8 && cli_may_colour(fd);
}

/* ---- --help and --version ---- */

static void print_help(void)
{
    enum { COLUMN = 26 };
    for (int i = 0; program->usage[i]; i++)
        printf("%s %s %s\n", i ? "      " : "Usage:", program->name, program->usage[i]);
    printf("%s\n", program->summary);
    for (int i = 0; i < n_rows; i++) {
        const struct cli_option *o = table[i];
        if (!o->help)
            continue;
        if (o->kind == CLI_HEADING) {
            printf("\n%s:\n", o->help);
            continue;
        }
        char left[64];
        if (o->letter)
            snprintf(left, sizeof left, "  -%c, --%s", o->letter, o->name);
        else
            snprintf(left, sizeof left, "      --%s", o->name);
        if (o->arg)
            snprintf(left + strlen(left), sizeof left - strlen(left), " %s%s", o->arg,
                     o->kind == CLI_TEXTS ? "..." : "");
        printf("%-*s %s%s", COLUMN, left, strlen(left) > COLUMN ? " " : "", o->help);
        if (o->shown)
            printf(" [%s]", o->shown);
        putchar('\n');
    }
    printf("\nExamples:\n");
    for (int i = 0; program->examples[i]; i++)
        printf("  %s\n", program->examples[i]);
}

static void print_version(void)
{
#ifdef _OPENMP
    const char *openmp = "yes";
#else
    const char *openmp = "no";
#endif
    printf("%s (moe-toolkit) " MOE_VERSION "\ncpu: %s, OpenMP: %s, CUDA: %s\n", program->name,
           moe_cpu_level_name(moe_kern.level), openmp, moe_gpu_build());
}

/* ---- Parsing ---- */

static int refuse(const struct cli_option *o, const char *text, const char *why)
{
    return cli_misuse("option --%s: '%s' %s", o->name, text, why);
}

static int set_whole(const struct cli_option *o, const char *text)
{
    uint64_t value;
    if (!moe_parse_u64(text, &value) || value < o->min || value > o->max) {
        char why[96];
        if (o->max == UINT64_MAX)
            snprintf(why, sizeof why, "is not a whole number from %llu up",
                     (unsigned long long)o->min);
        else
            snprintf(why, sizeof why, "is not a whole number from %llu to %llu",
                     (unsigned long long)o->min, (unsigned long long)o->max);
        return refuse(o, text, why);
    }
    if (o->kind == CLI_U32)
        *(uint32_t *)o->to = (uint32_t)value;
    else
        *(uint64_t *)o->to = value;
    return CLI_DONE;
}

static int set_real(const struct cli_option *o, const char *text)
{
    double value;
    bool share = o->kind == CLI_SHARE;
    if (!(share ? moe_parse_share(text, &value) : moe_parse_double(text, &value)) ||
        value < o->low || value > o->high) {
        char why[96];
        snprintf(why, sizeof why, "is not a %s from %g to %g",
                 share ? "share (5% or 0.05)" : "number", o->low, o->high);
        return refuse(o, text, why);
    }
    *(double *)o->to = value;
    return CLI_DONE;
}

static int set_choice(const struct cli_option *o, const char *text)
{
    char why[160] = "is not one of";
    for (int i = 0; o->choices[i]; i++) {
        if (strcmp(text, o->choices[i]) == 0) {
            *(int *)o->to = i;
            return CLI_DONE;
        }
        size_t n = strlen(why);
        snprintf(why + n, sizeof why - n, "%s %s", i ? "," : "", o->choices[i]);
    }
    return refuse(o, text, why);
}

static int add_text(const struct cli_option *o, const char *text)
{
    struct cli_texts *list = o->to;
    const char **items = realloc(list->items, ((size_t)list->n + 2) * sizeof *items);
    if (!items) {
        struct moe_err err;
        moe_fail(&err, MOE_ERR_MEMORY, "out of memory while reading the command line");
        return cli_error(&err);
    }
    items[list->n++] = text;
    items[list->n] = NULL;
    list->items = items;
    return CLI_DONE;
}

static int set(const struct cli_option *o, const char *text)
{
    char why[128];
    switch (o->kind) {
    case CLI_FLAG:
        *(bool *)o->to = true;
        return CLI_DONE;
    case CLI_TEXT:
        *(const char **)o->to = text;
        return CLI_DONE;
    case CLI_TEXTS:
        return add_text(o, text);
    case CLI_U32:
    case CLI_U64:
        return set_whole(o, text);
    case CLI_DOUBLE:
    case CLI_SHARE:
        return set_real(o, text);
    case CLI_BYTES:
        return moe_parse_bytes(text, o->to) ? CLI_DONE
                                            : refuse(o, text, "is not a size like 512M or 4GiB");
    case CLI_RATE:
        return moe_parse_rate(text, o->to) ? CLI_DONE : refuse(o, text, "is not a rate like 2GB/s");
    case CLI_CHOICE:
        return set_choice(o, text);
    case CLI_CUSTOM:
        return o->parse(text, o->to, why) ? CLI_DONE : refuse(o, text, why);
    case CLI_END:
    case CLI_HEADING:
        break;
    }
    return CLI_MISUSE;
}

static int row_of_letter(int letter)
{
    for (int i = 0; i < n_rows; i++)
        if (letter && table[i]->letter == letter)
            return i;
    return -1;
}

/* What getopt_long could not place: `c` is its answer, `word` the long option it was at. */
static int refuse_option(int c, const char *word)
{
    if (optopt >= FIRST_LONG) {
        const char *name = table[optopt - FIRST_LONG]->name;
        return c == ':' ? cli_misuse("option --%s needs an argument", name)
                        : cli_misuse("option --%s takes no argument", name);
    }
    if (optopt)
        return c == ':' ? cli_misuse("option -%c needs an argument", optopt)
                        : cli_misuse("unknown option -%c", optopt);
    size_t n = strcspn(word, "=");
    int alike = 0;
    for (int i = 0; n > 2 && i < n_rows; i++)
        alike += table[i]->name && strncmp(table[i]->name, word + 2, n - 2) == 0;
    return cli_misuse("%s option '%.*s'", alike > 1 ? "ambiguous" : "unknown", (int)n, word);
}

static int parse_options(int argc, char **argv)
{
    char letters[2 * MAX_OPTIONS + 2] = ":"; /* ':' first: tell a missing argument apart */
    struct option longs[MAX_OPTIONS + 1] = {{0}};
    int n_longs = 0;
    for (int i = 0; i < n_rows; i++) {
        const struct cli_option *o = table[i];
        if (o->kind == CLI_HEADING)
            continue;
        longs[n_longs++] =
            (struct option){.name = o->name, .has_arg = o->arg != NULL, .val = FIRST_LONG + i};
        if (o->letter) {
            char row[3] = {o->letter, o->arg ? ':' : 0, 0};
            strcat(letters, row);
        }
    }
    opterr = 0;
    for (;;) {
        int c = getopt_long(argc, argv, letters, longs, NULL);
        if (c == -1)
            return CLI_DONE;
        if (c == '?' || c == ':')
            return refuse_option(c, argv[optind - 1]);
        int row = c >= FIRST_LONG ? c - FIRST_LONG : row_of_letter(c);
        given[row] = true;
        int status = set(table[row], optarg);
        if (status != CLI_DONE)
            return status;
    }
}

/*
 * GNU's OpenMP waits at the end of every parallel loop by spinning for milliseconds, which is ruin
 * as soon as anything else wants the processor: with one busy neighbour on two cores, decode ran at
 * 32 tokens/s instead of 56. A short spin costs nothing on a quiet machine, but the runtime reads
 * the setting before main: so the program starts itself once more with it, unless the user has set
 * one of the variables.
 */
static void shorten_spinning(char **argv)
{
    if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY"))
        return;
    if (setenv("GOMP_SPINCOUNT", "1000", 0) == 0)
        execv("/proc/self/exe", argv); /* where that fails, spinning is what we get */
}

int cli_parse(const struct cli_program *p, int argc, char **argv, char ***args, int *n_args)
{
    shorten_spinning(argv);
    program = p;
    for (const struct cli_option *o = p->options; o->kind != CLI_END; o++)
        table[n_rows++] = o;
    for (const struct cli_option *o = common_options; o->kind != CLI_END; o++)
        table[n_rows++] = o;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is a write error like any other */
    common.threads = (uint32_t)moe_cores_available();

    int status = parse_options(argc, argv);
    if (status != CLI_DONE)
        return status;
    if (common.help) {
        print_help();
        return cli_finish(CLI_DONE);
    }
    enum moe_cpu_level level = moe_cpu_detect();
    if (common.cpu) {
        int named = moe_cpu_level_parse(common.cpu);
        if (named < 0)
            return cli_misuse("option --cpu: '%s' is not one of scalar, avx2, avx512, neon, "
                              "neon-dot",
                              common.cpu);
        level = (enum moe_cpu_level)named;
    }
    struct moe_err err;
    if (moe_kern_select(level, &err) != MOE_OK)
        return cli_error(&err);
    moe_par_set_threads((int)common.threads);
    if (common.version) {
        print_version();
        return cli_finish(CLI_DONE);
    }
    *args = argv + optind;
    *n_args = argc - optind;
    return -1;
}

bool cli_given(const char *name)
{
    for (int i = 0; i < n_rows; i++)
        if (table[i]->name && strcmp(table[i]->name, name) == 0)
            return given[i];
    return false;
}

/* ---- Progress and interruption ---- */

static struct {
    const char *what; /* the step being drawn; a library's literal */
    double began, drawn;
    uint64_t first; /* done when it began */
    bool shown;
} bar;

/* Of long work, once it is clear how fast it goes: what was done before the bar began (a resumed
 * run's, say) tells nothing of that. */
static void say_left(uint64_t done, uint64_t total)
{
    double passed = bar.drawn - bar.began;
    if (passed < 5 || done <= bar.first || done >= total)
        return;
    double left = passed * (double)(total - done) / (double)(done - bar.first);
    if (left < 100)
        fprintf(stderr, ", %.0f s left", left);
    else if (left < 100 * 60)
        fprintf(stderr, ", %.0f min left", left / 60);
    else
        fprintf(stderr, ", %.1f h left", left / 3600);
}

static void draw_bar(const char *what, uint64_t done, uint64_t total)
{
    enum { WIDTH = 30 };
    char cells[WIDTH + 1];
    double share = total && done < total ? (double)done / (double)total : total ? 1 : 0;
    int full = (int)(share * WIDTH);
    memset(cells, '.', WIDTH);
    memset(cells, '#', (size_t)full);
    cells[WIDTH] = 0;
    fprintf(stderr, "\r\033[K%.40s [%s] %3.0f%%", what, cells, 100 * share);
    say_left(done, total);
    bar.shown = true;
}

static void report(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    double now = moe_seconds();
    if (!bar.what || strcmp(bar.what, what) != 0) {
        cli_progress_done();
        bar.what = what;
        bar.began = now;
        bar.first = done;
    }
    if (now - bar.began < 1 || (bar.shown && now - bar.drawn < 0.1))
        return;
    bar.drawn = now;
    draw_bar(what, done, total);
}

static struct moe_progress progress_hook = {.stop = &cli_stop};

const struct moe_progress *cli_progress(void)
{
    const char *term = getenv("TERM");
    bool drawable = isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
    progress_hook.report = drawable && !cli_quiet ? report : NULL;
    return &progress_hook;
}

void cli_progress_done(void)
{
    if (bar.shown)
        fputs("\r\033[K", stderr);
    bar.shown = false;
    bar.what = NULL;
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (cli_stop)
        _exit(CLI_FAILED);
    cli_stop = 1;
}

static void catch_signal(int signal_number)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

void cli_catch_interrupt(void)
{
    catch_signal(SIGINT);
}

void cli_catch_termination(void)
{
    struct sigaction before;
    catch_signal(SIGINT);
    catch_signal(SIGTERM);
    /* nohup ignores it, and means it */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        catch_signal(SIGHUP);
}
