/* The option table, messages and exit status of all programs. */
#define _POSIX_C_SOURCE 200809L /* isatty */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/file.h"
#include "base/par.h"
#include "base/text.h"
#include "cli_private.h"
#include "kern/kern.h"
#include "ranks/wire.h"

bool cli_quiet, cli_verbose, cli_mute;
struct moe_err cli_unsaid;

enum { MAX_OPTIONS = 192, FIRST_LONG = 256 };

static const struct cli_program *program;
static const struct cli_option *table[MAX_OPTIONS]; /* the program's, then the common ones */
static bool given[MAX_OPTIONS];
static int n_options;

static struct {
    uint32_t threads;
    const char *cpu;
    int shell;        /* an enum cli_shell, or -1 */
    const char *page; /* of the manual, or NULL */
    bool help, version;
} common = {.shell = -1};

static const char *cpu_word(int i)
{
    return i < MOE_CPU_N_LEVELS ? moe_cpu_level_name((enum moe_cpu_level)i) : NULL;
}
static const char *const shells[] = {"bash", "zsh", "fish", NULL}; /* as enum cli_shell */

static bool name_page(const char *text, void *to, struct moe_err *why)
{
    *(const char **)to = text ? text : program->name;
    return true;
}

static const struct cli_option common_options[] = {
    {.kind = CLI_LIST, .help = "Common"},
    {CLI_OPT_U32('t', "threads", "N", &common.threads, 1, MOE_MAX_THREADS), .shown = "cores"},
    {CLI_OPT_TEXT(0, "cpu", "LEVEL", &common.cpu), .shown = "best", .word = cpu_word},
    {CLI_OPT_FLAG('q', "quiet", &cli_quiet), .excludes = "verbose"},
    {CLI_OPT_FLAG('h', "help", &common.help)},
    {CLI_OPT_FLAG('v', "verbose", &cli_verbose)},
    {CLI_OPT_CUSTOM(0, "manual", "PAGE", &common.page, name_page), .alone = true},
    {CLI_OPT_FLAG('V', "version", &common.version)},
    {CLI_OPT_CHOICE(0, "completion", "SHELL", &common.shell, shells)},
    {.kind = CLI_END},
};

/* ---- Messages ---- */

const char *cli_name(void)
{
    return program->name;
}

/* status: of an error; MOE_OK: it is none. */
static void say_line(int status, const char *text, const char *tail)
{
    cli_progress_done();
    if (!cli_mute)
        fprintf(stderr, "%s: %s%s\n", program->name, text, tail);
    else if (status != MOE_OK && cli_unsaid.status == MOE_OK)
        moe_fail(&cli_unsaid, status, "%s%s", text, tail);
}

static void say(int status, const char *format, va_list args, const char *tail)
{
    char text[1024];
    vsnprintf(text, sizeof text, format, args);
    moe_blank_controls(text);
    say_line(status, text, tail);
}

int cli_misuse(const char *format, ...)
{
    char tail[64];
    snprintf(tail, sizeof tail, " (see %s --help)", program->name);
    va_list args;
    va_start(args, format);
    say(MOE_ERR_USAGE, format, args, tail);
    va_end(args);
    return CLI_MISUSE;
}

static int exit_status(int moe_status)
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
    say_line(err->status, err->text, "");
    return exit_status(err->status);
}

void cli_note(const char *format, ...)
{
    if (cli_quiet)
        return;
    va_list args;
    va_start(args, format);
    say(MOE_OK, format, args, "");
    va_end(args);
}

void cli_detail(const char *format, ...)
{
    if (!cli_verbose)
        return;
    va_list args;
    va_start(args, format);
    say(MOE_OK, format, args, "");
    va_end(args);
}

bool cli_may_colour(int fd)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return cli_is_terminal(fd) && !(no_color && *no_color) && !(term && strcmp(term, "dumb") == 0);
}

static bool may_draw(int fd)
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

/* COLUMNS, which a person sets for what goes to a pager or a file; 0: it is not set. */
static int columns_asked_for(void)
{
    const char *columns = getenv("COLUMNS");
    uint64_t n = 0;
    if (!columns || !moe_parse_u64(columns, &n))
        return 0;
    return n < MOE_MOST_COLUMNS ? (int)n : MOE_MOST_COLUMNS;
}

struct moe_screen cli_screen(int fd)
{
    int asked_for = columns_asked_for();
    int columns = cli_is_terminal(fd) ? cli_width(fd) : asked_for ? asked_for : MOE_USUAL_COLUMNS;
    columns = columns < MOE_LEAST_COLUMNS ? MOE_LEAST_COLUMNS : columns;
    columns = columns > MOE_MOST_COLUMNS ? MOE_MOST_COLUMNS : columns;
    return (struct moe_screen){(uint32_t)columns, may_draw(fd), cli_may_colour(fd)};
}

void cli_fit(int fd, struct moe_buf *text)
{
    if (cli_is_terminal(fd) || columns_asked_for())
        moe_draw_fit(text, cli_screen(fd));
}

void cli_say(const char *format, ...)
{
    char line[1024];
    struct moe_buf text = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    moe_buf_text(&text, line);
    cli_fit(STDOUT_FILENO, &text);
    if (!text.failed && text.size)
        fwrite(text.data, 1, text.size, stdout);
    moe_buf_release(&text);
}

/* ---- Parsing ---- */

static int option_of_letter(int letter)
{
    for (int i = 0; i < n_options; i++)
        if (letter && table[i]->letter == letter)
            return i;
    return -1;
}

/* What getopt_long refused: `c` is what it returned, `word` the argument it had reached. */
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
    for (int i = 0; n > 2 && i < n_options; i++)
        alike += table[i]->name && strncmp(table[i]->name, word + 2, n - 2) == 0;
    if (alike > 1)
        return cli_misuse("ambiguous option '%.*s'", (int)n, word);
    const char *names[MAX_OPTIONS + 1], *nearest;
    char wrong[64];
    int n_names = 0;
    for (int i = 0; i < n_options; i++)
        if (table[i]->name)
            names[n_names++] = table[i]->name;
    names[n_names] = NULL;
    snprintf(wrong, sizeof wrong, "%.*s", (int)n, word);
    nearest = cli_nearest_name(wrong, names);
    return cli_misuse("unknown option '%.*s'%s%s%s", (int)n, word,
                      nearest ? "; did you mean --" : "", nearest ? nearest : "",
                      nearest ? "?" : "");
}

static void add_options(const struct cli_option *options)
{
    for (const struct cli_option *o = options; o->kind != CLI_END && n_options < MAX_OPTIONS; o++)
        table[n_options++] = o;
}

static int parse_options(int argc, char **argv)
{
    char letters[2 * MAX_OPTIONS + 2] = ":"; /* ':' first: a missing argument returns ':' */
    struct option longs[MAX_OPTIONS + 1] = {{0}};
    int n_longs = 0;
    for (int i = 0; i < n_options; i++) {
        const struct cli_option *o = table[i];
        if (!o->name)
            continue;
        longs[n_longs++] = (struct option){.name = o->name,
                                           .has_arg = o->alone ? optional_argument
                                                      : o->arg ? required_argument
                                                               : no_argument,
                                           .val = FIRST_LONG + i};
        if (o->letter) {
            char added[3] = {o->letter, o->arg ? ':' : 0, 0};
            strcat(letters, added);
        }
    }
    opterr = 0;
    for (;;) {
        int c = getopt_long(argc, argv, letters, longs, NULL);
        if (c == -1)
            return CLI_DONE;
        if (c == '?' || c == ':')
            return refuse_option(c, argv[optind - 1]);
        int which = c >= FIRST_LONG ? c - FIRST_LONG : option_of_letter(c);
        given[which] = true;
        const char *arg = optarg;
        if (table[which]->alone && !arg && optind < argc && argv[optind][0] != '-')
            arg = argv[optind++];
        int status = cli_set(table[which], arg);
        if (status != CLI_DONE)
            return status;
    }
}

/* ---- What goes together ---- */

static int exclude(const char *name, const char *other)
{
    return cli_misuse("options --%s and --%s exclude each other", name, other);
}

static uint32_t modes_of(const struct cli_option *o)
{
    const struct cli_option *more = program->more;
    while (more && more->kind != CLI_END && more != o)
        more++;
    return o->modes ? o->modes : o->mode ? o->mode : more == o ? program->more_modes : 0;
}

/* Takes the next of some names in a text. */
static bool take_name(const char **names, char name[64])
{
    const char *at = *names ? *names : "";
    int n = 0;
    *name = '\0';
    if (sscanf(at, "%63s%n", name, &n) != 1)
        return false;
    *names = at + n;
    return true;
}

/* The message for an option that needs another: one of those named, or one that chooses a mode. */
static int say_needed(const struct cli_option *o, const char *names)
{
    char list[256] = "", name[64], last[64] = "";
    const bool by_name = names != NULL;
    size_t n = 0;
    for (int i = 0; names ? take_name(&names, name) : i < n_options; i++) {
        if (!names && !(table[i]->name && table[i]->mode & modes_of(o)))
            continue;
        if (last[0] && n < sizeof list)
            n += (size_t)snprintf(list + n, sizeof list - n, "%s--%s", n ? ", " : "", last);
        snprintf(last, sizeof last, "%s", names ? name : table[i]->name);
    }
    return cli_misuse("option --%s %s %s%s--%s", o->name, by_name ? "needs" : "goes with", list,
                      n ? " or " : "", last);
}

static int check_names(const struct cli_option *o)
{
    const char *excludes = o->excludes, *needs = o->needs;
    char name[64];
    while (take_name(&excludes, name))
        if (cli_given(name))
            return exclude(o->name, name);
    bool there = !needs;
    while (take_name(&needs, name))
        there |= cli_given(name);
    return there ? -1 : say_needed(o, o->needs);
}

/* -1, or the exit status after a message: options that do not go together. */
static int check_together(void)
{
    const struct cli_option *chosen = NULL;
    for (int i = 0; i < n_options; i++)
        if (given[i] && table[i]->mode > (chosen ? chosen->mode : 0))
            chosen = table[i];
    uint32_t mode = chosen ? chosen->mode : CLI_USUAL;
    for (int i = 0; i < n_options; i++) {
        const struct cli_option *o = table[i];
        uint32_t modes = given[i] ? modes_of(o) : 0;
        if (modes && !(modes & mode))
            return chosen ? exclude(chosen->name, o->name) : say_needed(o, NULL);
        int status = given[i] ? check_names(o) : -1;
        if (status >= 0)
            return status;
    }
    return -1;
}

/* The file that an option names to be written, or NULL. */
static const char *output_of(int i)
{
    const char *path = given[i] && table[i]->output ? *(const char **)table[i]->to : NULL;
    return path && table[i]->or_stdout && strcmp(path, "-") == 0 ? NULL : path;
}

/* Whether another word of the command line, or what follows its '=', is that file. */
static bool is_named_again(const char *path, int argc, char **argv)
{
    struct stat out, other;
    if (stat(path, &out) != 0 || !S_ISREG(out.st_mode))
        return false;
    for (int i = 1; i < argc; i++) {
        const char *value = argv[i][0] == '-' ? strchr(argv[i], '=') : NULL;
        value = value ? value + 1 : argv[i];
        bool itself = path >= argv[i] && path <= argv[i] + strlen(argv[i]);
        if (!itself && stat(value, &other) == 0 && other.st_dev == out.st_dev &&
            other.st_ino == out.st_ino)
            return true;
    }
    return false;
}

/* -1, or the exit status after a message: an output cannot be written, would replace what is read,
 * or two are one file. */
static int try_outputs(int argc, char **argv)
{
    for (int i = 0; i < n_options; i++) {
        struct moe_err err;
        const char *path = output_of(i);
        for (int j = 0; j < i && path; j++)
            if (output_of(j) && strcmp(output_of(j), path) == 0)
                return cli_misuse("options --%s and --%s name the same file", table[j]->name,
                                  table[i]->name);
        if (path && !table[i]->in_order && strcmp(path, "-") == 0)
            return cli_misuse("option --%s: is not written in one go, as standard output is; name "
                              "a file",
                              table[i]->name);
        if (path && is_named_again(path, argc, argv))
            return cli_misuse("%s: would be overwritten, but is the input; choose another output",
                              path);
        if (path && (table[i]->in_order ? moe_outfile_try_text : moe_outfile_try)(path, &err) != 0)
            return cli_error(&err);
    }
    return -1;
}

int cli_parse(const struct cli_program *p, int argc, char **argv, char ***args, int *n_args)
{
    cli_open_output();
    program = p;
    add_options(p->options);
    if (p->more)
        add_options(p->more);
    add_options(common_options);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is a write error like any other */
    common.threads = (uint32_t)moe_default_threads();

    int status = parse_options(argc, argv);
    if (status != CLI_DONE)
        return status;
    if (common.help) {
        cli_print_help(p, common_options);
        return cli_finish(CLI_DONE);
    }
    if (common.page) {
        status = cli_print_manual(common.page);
        return status == CLI_DONE ? cli_finish(CLI_DONE) : status;
    }
    if (common.shell >= 0) {
        cli_print_completion((enum cli_shell)common.shell, p->name, table, n_options);
        return cli_finish(CLI_DONE);
    }
    if (common.cpu) {
        int named = moe_cpu_level_parse(common.cpu);
        if (named < 0)
            return cli_misuse("option --cpu: '%s' is not one of scalar, avx2, avx512, neon, "
                              "neon-dot",
                              common.cpu);
        struct moe_err err;
        if (moe_kern_select((enum moe_cpu_level)named, &err) != MOE_OK)
            return cli_error(&err);
    }
    moe_par_set_threads((int)common.threads);
    if (common.version) {
        cli_print_version(p);
        return cli_finish(CLI_DONE);
    }
    *args = argv + optind;
    *n_args = argc - optind;
    for (int i = optind; i < argc; i++)
        if (!*argv[i])
            return cli_misuse("'' names no file");
    uint32_t rank, n_ranks;
    if (!p->joins_ranks && !cli_given("shard") && moe_wire_started(&rank, &n_ranks)) {
        cli_mute = rank > 0;
        return cli_misuse("each of %u ranks would do the same work: start one process, without "
                          "mpirun or srun",
                          n_ranks);
    }
    status = check_together();
    return status < 0 ? try_outputs(argc, argv) : status;
}

bool cli_given(const char *name)
{
    for (int i = 0; i < n_options; i++)
        if (table[i]->name && strcmp(table[i]->name, name) == 0)
            return given[i];
    return false;
}
