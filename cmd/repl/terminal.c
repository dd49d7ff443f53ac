/* The terminal's modes, kept and given back. */
#define _POSIX_C_SOURCE 200809L /* pselect, sigaction, tcgetpgrp */
#include "terminal.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include "cli.h"

static struct {
    int out;
    struct termios found, silent;
    bool known; /* the two above */
    bool moves;
    volatile sig_atomic_t taken, editing, suspend, resume, resized;
} terminal;

/* ---- Taking and giving ---- */

static void send(const char *sequence)
{
    ssize_t put = terminal.moves ? write(terminal.out, sequence, strlen(sequence)) : 0;
    (void)put; /* a terminal that is gone needs no modes */
}

void terminal_mark_pastes(void)
{
    send("\033[?2004h");
}

static bool in_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

/* From the background this would stop the program. */
static void take_again(void)
{
    if (!terminal.taken || !terminal.known || !in_foreground())
        return;
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal.silent);
    terminal_mark_pastes();
}

void terminal_give_back(void)
{
    int before = errno;
    if (terminal.taken && in_foreground()) {
        send("\033[?2004l");
        if (terminal.known)
            tcsetattr(STDIN_FILENO, TCSANOW, &terminal.found);
    }
    errno = before;
}

bool terminal_moves(void)
{
    return terminal.moves;
}

/* ---- Signals ---- */

void terminal_suspend(void)
{
    struct sigaction plain = {.sa_handler = SIG_DFL}, ours;
    sigset_t stop, before;
    terminal.suspend = 0;
    terminal_give_back();
    sigemptyset(&plain.sa_mask);
    sigaction(SIGTSTP, &plain, &ours);
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    raise(SIGTSTP);
    pthread_sigmask(SIG_UNBLOCK, &stop, &before); /* here it stops */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGTSTP, &ours, NULL);
}

static void on_suspend(int signal_number)
{
    (void)signal_number;
    int before = errno;
    if (terminal.editing)
        terminal.suspend = 1;
    else
        terminal_suspend();
    errno = before;
}

static void on_continue(int signal_number)
{
    (void)signal_number;
    int before = errno;
    terminal.resume = 1;
    if (!terminal.editing)
        take_again();
    errno = before;
}

static void on_resize(int signal_number)
{
    (void)signal_number;
    terminal.resized = 1;
}

/* Its own action, the end, comes when this returns (SA_RESETHAND). */
static void on_end(int signal_number)
{
    terminal_give_back();
    raise(signal_number);
}

/* What is ignored stays so: nohup's SIGHUP, SIGTSTP without job control. */
static void catch_signal(int signal_number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags}, before;
    if (sigaction(signal_number, NULL, &before) == 0 && before.sa_handler == SIG_IGN)
        return;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, &action, NULL);
}

void terminal_take(FILE *out)
{
    const char *term = getenv("TERM");
    terminal.out = fileno(out);
    terminal.moves = isatty(terminal.out) && term && *term && strcmp(term, "dumb") != 0;
    terminal.known = tcgetattr(STDIN_FILENO, &terminal.found) == 0;
    terminal.silent = terminal.found;
    terminal.silent.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    terminal.silent.c_lflag |= NOFLSH; /* Ctrl-C stops an answer, what was typed stays */
    terminal.silent.c_cc[VMIN] = 1;
    terminal.silent.c_cc[VTIME] = 0;
    terminal.taken = 1;
    cli_on_leaving = terminal_give_back;
    catch_signal(SIGTSTP, on_suspend, SA_RESTART);
    catch_signal(SIGCONT, on_continue, SA_RESTART);
    catch_signal(SIGWINCH, on_resize, SA_RESTART);
    catch_signal(SIGHUP, on_end, SA_RESETHAND);
    catch_signal(SIGTERM, on_end, SA_RESETHAND);
    catch_signal(SIGQUIT, on_end, SA_RESETHAND);
    take_again();
}

/* ---- Lines ---- */

void terminal_edits(bool editing)
{
    terminal.suspend = terminal.resume = terminal.resized = 0;
    terminal.editing = editing;
    if (!editing)
        take_again();
}

/* -1: nothing has happened yet. */
static int next_event(void)
{
    volatile sig_atomic_t *const flags[] = {&terminal.suspend, &terminal.resume, &terminal.resized};
    static const enum terminal_event events[] = {TERMINAL_SUSPEND, TERMINAL_CONTINUE,
                                                 TERMINAL_RESIZE};
    for (int i = 0; i < 3; i++) {
        if (*flags[i]) {
            *flags[i] = 0;
            return events[i];
        }
    }
    return cli_stop ? TERMINAL_INTERRUPT : -1;
}

/*
 * A read that waits would take the next byte even after Ctrl-Z where the program is slow to stop:
 * the shell would miss the first letter of "fg". The signals come only while this waits, so that
 * none is missed; or rarely to another thread, which a second shows.
 */
enum terminal_event terminal_wait(void)
{
    static const int signals[] = {SIGINT, SIGTSTP, SIGCONT, SIGWINCH};
    sigset_t ours, before;
    sigemptyset(&ours);
    for (int i = 0; i < 4; i++)
        sigaddset(&ours, signals[i]);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    int event = next_event();
    while (event < 0) {
        struct timespec second = {.tv_sec = 1};
        fd_set in;
        FD_ZERO(&in);
        FD_SET(STDIN_FILENO, &in);
        int n = pselect(STDIN_FILENO + 1, &in, NULL, NULL, &second, &before);
        event = next_event();
        if (event < 0 && n != 0 && !(n < 0 && errno == EINTR))
            event = TERMINAL_BYTE;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    /* Delivers signals that came just before a byte: pselect lets none in when a byte is ready. */
    int missed = event == TERMINAL_BYTE ? next_event() : -1;
    return (enum terminal_event)(missed >= 0 ? missed : event);
}
