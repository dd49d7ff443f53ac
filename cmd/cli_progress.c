/* The progress bar on stderr, and signals that ask a program to stop. */
#define _POSIX_C_SOURCE 200809L /* sigaction, isatty */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli.h"

volatile sig_atomic_t cli_stop;

/* ---- Progress ---- */

static struct {
    const char *what; /* the step being drawn; a literal of the library's */
    double began, drawn;
    uint64_t first; /* done when it began */
    bool shown;
} bar;

/* The time left of long work. Work that was done before the bar began (by the run that is resumed,
 * say) does not count towards the speed. */
static void print_left(uint64_t done, uint64_t total)
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
    print_left(done, total);
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

/* ---- Signals ---- */

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
    /* nohup has it ignored: keep that */
    if (sigaction(SIGHUP, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        catch_signal(SIGHUP);
}
