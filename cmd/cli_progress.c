/* Progress on stderr, a bar or lines, and signals that ask a program to stop. */
#define _POSIX_C_SOURCE 200809L /* sigaction, isatty */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli_private.h"
#include "show/draw.h"

volatile sig_atomic_t cli_stop;
void (*cli_on_leaving)(void);

/* ---- Progress ---- */

enum { LINES_AFTER = 5 }; /* seconds */

static struct {
    char what[128]; /* the step being drawn; empty: none */
    double first_step, began, drawn;
    uint64_t first; /* done when it began */
    bool shown, over;
    bool lines; /* no terminal: a line now and then */
} bar;

/* The time left of long work. Work that was done before the bar began (by the run that is resumed,
 * say) does not count towards the speed. */
static void print_left(uint64_t done, uint64_t total)
{
    double passed = bar.drawn - bar.began;
    const double share = (double)(done - bar.first) / (double)(total - bar.first);
    if (passed < 5 || done <= bar.first || done >= total || share < (passed < 60 ? 0.1 : 0.005))
        return;
    char left[32];
    double seconds = passed * (double)(total - done) / (double)(done - bar.first);
    fprintf(stderr, ", %s left", moe_format_duration(seconds, left));
}

/* Fits one line: a narrow terminal gets fewer cells. */
static void draw_bar(const char *what, uint64_t done, uint64_t total)
{
    enum {
        NAME = 40,
        MOST = 40,
        LEAST = 4,
        REST = 26
    }; /* REST: " [] 100%, 100 min left", and one */
    char cells[MOST + 1];
    int name = (int)strnlen(what, NAME), room = cli_width(STDERR_FILENO) - name - REST;
    int width = room < LEAST ? LEAST : room > MOST ? MOST : room;
    double share = total && done < total ? (double)done / (double)total : total ? 1 : 0;
    int full = (int)(share * width);
    memset(cells, '.', (size_t)width);
    memset(cells, '#', (size_t)full);
    cells[width] = 0;
    bar.shown = true;
    if (total == 0) {
        fprintf(cli_terminal(STDERR_FILENO), "\r\033[K%.*s: %llu", name, what,
                (unsigned long long)done);
        return;
    }
    fprintf(cli_terminal(STDERR_FILENO), "\r\033[K%.*s [%s] %3.0f%%", name, what, cells,
            100 * share);
    print_left(done, total);
}

static void print_line(const char *what, uint64_t done, uint64_t total)
{
    if (total == 0) {
        fprintf(stderr, "%s: %s: %llu\n", cli_name(), what, (unsigned long long)done);
        return;
    }
    fprintf(stderr, "%s: %s: %.0f%%", cli_name(), what,
            done < total ? 100 * (double)done / (double)total : 100);
    print_left(done, total);
    fputc('\n', stderr);
}

static void erase(void)
{
    if (bar.shown)
        fputs("\r\033[K", cli_terminal(STDERR_FILENO));
    bar.shown = false;
    bar.what[0] = 0;
}

static void report_progress(void *ctx, const char *what, uint64_t done, uint64_t total)
{
    (void)ctx;
    double now = moe_seconds();
    if (bar.over)
        return;
    if (bar.first_step == 0)
        bar.first_step = now;
    if (strncmp(bar.what, what, sizeof bar.what - 1) != 0) {
        erase();
        snprintf(bar.what, sizeof bar.what, "%s", what);
        bar.began = now;
        bar.first = done;
    }
    double passed = now - bar.first_step, since = now - bar.drawn;
    /* In a file that people look into: every five seconds, later after a tenth of the time again.
     */
    if (bar.lines ? passed < LINES_AFTER || since < LINES_AFTER || since < passed / 10
                  : passed < 1 || since < 0.1)
        return;
    bar.drawn = now;
    if (bar.lines)
        print_line(what, done, total);
    else
        draw_bar(what, done, total);
}

static struct moe_progress progress_hook = {.stop = &cli_stop};

const struct moe_progress *cli_progress(void)
{
    const char *term = getenv("TERM");
    bar.lines = !isatty(STDERR_FILENO) || (term && strcmp(term, "dumb") == 0);
    bar.over = false;
    progress_hook.report = cli_quiet ? NULL : report_progress;
    return &progress_hook;
}

void cli_progress_done(void)
{
    erase();
    bar.first_step = 0;
}

void cli_progress_over(void)
{
    cli_progress_done();
    bar.over = true;
}

/* ---- Signals ---- */

/* What happens when a program that was asked to stop has not done so, prepared for the handler. */
static struct {
    unsigned seconds;
    bool leave;
    char line[160];
} late;
static char over_limit[192]; /* a line; empty: there is no limit */

static void leave_at_once(void)
{
    if (cli_on_leaving)
        cli_on_leaving();
    _exit(CLI_FAILED);
}

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    if (cli_stop)
        leave_at_once();
    cli_stop = 1;
    alarm(late.seconds);
}

static void on_alarm(int signal_number)
{
    (void)signal_number;
    int before = errno;
    ssize_t put = bar.shown ? write(STDERR_FILENO, "\r\033[K", 4) : 0;
    const char *line = over_limit[0] ? over_limit : late.line;
    put += write(STDERR_FILENO, line, strlen(line));
    if (over_limit[0] || late.leave || put < 0)
        leave_at_once();
    errno = before;
}

static void catch_signal(int signal_number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

static void catch_all(const int *signals, int n, unsigned seconds, bool leave)
{
    late.seconds = seconds;
    late.leave = leave;
    snprintf(late.line, sizeof late.line,
             leave ? "%s: stopped without waiting any longer for what was under way\n"
                   : "%s: still waiting for what is under way; Ctrl-C again leaves\n",
             cli_name());
    catch_signal(SIGALRM, on_alarm, SA_RESTART);
    for (int i = 0; i < n; i++)
        catch_signal(signals[i], on_interrupt, 0);
}

void cli_catch_interrupt(bool conversation)
{
    catch_all((const int[]){SIGINT}, 1, 5, !conversation);
}

void cli_catch_termination(void)
{
    struct sigaction hangup;
    /* nohup has it ignored: keep that */
    bool ignored = sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN;
    catch_all((const int[]){SIGINT, SIGTERM, SIGHUP}, ignored ? 2 : 3, 60, true);
}

void cli_limit(unsigned seconds, const char *line)
{
    if (line)
        snprintf(over_limit, sizeof over_limit, "%s: %s\n", cli_name(), line);
    else
        over_limit[0] = 0;
    catch_signal(SIGALRM, on_alarm, SA_RESTART);
    alarm(seconds);
}

void cli_start_over(void)
{
    alarm(0);
    cli_stop = 0;
}
