#define _POSIX_C_SOURCE 200809L /* mkdir, isatty, pselect */
#include "repl.h"

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/clock.h"
#include "cli.h"
#include "console.h"
#include "show/show_run.h"

/* ---- Shared with moe-run -p ---- */

int repl_stream(void *ctx, const char *bytes, uint64_t n)
{
    (void)ctx;
    return cli_write(bytes, n) ? MOE_OK : MOE_ERR_IO;
}

void repl_explain_stop(enum moe_stop_reason why, uint32_t context)
{
    if (why == MOE_STOP_CONTEXT)
        cli_note("the context of %u tokens is full: the answer stops here", context);
}

/* ---- Talking ---- */

void console_tell(const struct console *c, const char *text)
{
    FILE *terminal = c->colour ? cli_terminal(STDERR_FILENO) : NULL;
    if (terminal)
        fputs("\033[2m", terminal);
    fputs(text, stderr);
    if (terminal)
        fputs("\033[0m", terminal);
    fputc('\n', stderr);
}

/* ---- Answers ---- */

int console_new_sampler(struct console *c, struct moe_err *err)
{
    struct moe_sampler *fresh;
    int status = moe_sampler_new(&fresh, c->r->sampling,
                                 c->r->conversation->session->model->config.vocab, err);
    if (status != MOE_OK)
        return status;
    moe_sampler_free(c->sampler);
    c->sampler = fresh;
    return MOE_OK;
}

static void footer(const struct console *c)
{
    if (cli_quiet)
        return;
    struct moe_buf line = {0};
    moe_show_run_line(&c->r->conversation->session->stats, &line);
    if (!line.failed)
        console_tell(c, (const char *)line.data);
    moe_buf_release(&line);
}

static void tell_full(const struct console *c)
{
    bool encoder = c->r->conversation->session->model->config.n_encoder > 0;
    console_tell(c, encoder ? "-c sets a longer context"
                            : "/reset empties the context; -c sets a longer one");
}

int console_answer(struct console *c, const char *text, struct moe_err *err)
{
    struct repl *r = c->r;
    struct moe_session *s = r->conversation->session;
    struct moe_generate_options o = {
        .beams = r->beams,
        .max_tokens = r->max_tokens,
        .ignore_eos = r->ignore_eos,
        .stop_texts = r->stop_texts,
        .stop = &cli_stop,
        .started = moe_seconds(),
        .text = repl_stream,
    };
    enum moe_stop_reason why = MOE_STOP_EOS;
    s->stats = (struct moe_stats){0};
    cli_start_over();
    err->text[0] = 0;
    int status = text ? moe_conversation_ask(r->conversation, text, c->sampler, &o, &why, err)
                      : moe_conversation_continue(r->conversation, c->sampler, &o, &why, err);
    cli_start_over();
    if (status != MOE_OK && !err->text[0])
        return cli_flush(err) != MOE_OK ? MOE_ERR_IO : moe_fail(err, status, "the answer failed");
    if (status != MOE_OK) {
        cli_error(err);
        if (status == MOE_ERR_LIMIT)
            tell_full(c);
        return MOE_OK;
    }
    putchar('\n');
    if (cli_flush(err) != MOE_OK)
        return MOE_ERR_IO;
    moe_engine_finish_stats(r->engine, &s->stats);
    moe_stats_add(r->total, &s->stats);
    repl_explain_stop(why, s->context);
    if (why == MOE_STOP_CONTEXT)
        tell_full(c);
    if (why == MOE_STOP_LENGTH)
        console_tell(c, "(stopped after -n tokens; /continue resumes)");
    footer(c);
    return MOE_OK;
}

/* ---- Reading ---- */

static char *show_prompt(EditLine *el)
{
    struct console *c;
    el_get(el, EL_CLIENTDATA, &c);
    return (char *)c->prompt;
}

static volatile sig_atomic_t continued;

static void on_continue(int signal_number)
{
    (void)signal_number;
    continued = 1;
}

/* While the program was stopped the terminal was another's: sets it up and shows the line again. */
static void show_again(EditLine *el)
{
    continued = 0;
    el_set(el, EL_PREP_TERM, 0); /* or the editor believes that nothing has changed */
    el_set(el, EL_PREP_TERM, 1);
    el_set(el, EL_REFRESH);
}

/*
 * Waits until a byte is there or Ctrl-C was pressed. A read that waits would take the next byte
 * even after Ctrl-Z where the program is slow to stop: the shell would miss the first letter of
 * "fg". The signals come only while it waits, so that none is missed.
 */
static void wait_for_byte(EditLine *el)
{
    sigset_t ours, before;
    int n = 0;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGCONT);
    while (n == 0 && !cli_stop) {
        fd_set in;
        FD_ZERO(&in);
        FD_SET(STDIN_FILENO, &in);
        pthread_sigmask(SIG_BLOCK, &ours, &before);
        if (!cli_stop && !continued)
            n = pselect(STDIN_FILENO + 1, &in, NULL, NULL, NULL, &before);
        if (n < 0 && errno == EINTR)
            n = 0;
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (continued) {
            show_again(el);
            n = 0; /* what was there may have been another's */
        }
    }
}

/* libedit's own reader retries after a signal and would ignore Ctrl-C. */
static int read_key(EditLine *el, wchar_t *key)
{
    mbstate_t state = {0};
    for (;;) {
        char byte;
        wait_for_byte(el);
        if (cli_stop)
            return -1;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && !cli_stop && cli_may_retry(STDIN_FILENO, false))
            continue;
        if (n <= 0)
            return (int)n;
        size_t used = mbrtowc(key, &byte, 1, &state);
        if (used == (size_t)-2)
            continue; /* more bytes to come */
        if (used == (size_t)-1)
            *key = L'?';
        return 1;
    }
}

enum reading {
    READ_LINE,
    READ_DROPPED,   /* Ctrl-C: what was typed is dropped */
    READ_CANCELLED, /* Ctrl-C with nothing typed */
    READ_END,
};

/* Appends one line without its newline to c->text; *line: its offset. */
static enum reading read_line(struct console *c, const char *prompt, uint64_t *line)
{
    int n = 0;
    c->prompt = prompt;
    cli_start_over();
    continued = 0;
    const char *typed = el_gets(c->el, &n);
    if (cli_stop) {
        const LineInfo *info = el_line(c->el);
        fputs("^C\n", stderr);
        cli_start_over();
        return info->lastchar > info->buffer || c->text.size ? READ_DROPPED : READ_CANCELLED;
    }
    if (!typed || n <= 0)
        return READ_END;
    *line = c->text.size;
    moe_buf_append(&c->text, typed, (uint64_t)n);
    if (!c->text.failed && c->text.data[c->text.size - 1] == '\n')
        c->text.data[--c->text.size] = 0;
    return READ_LINE;
}

static bool line_is(const struct console *c, uint64_t line, const char *text)
{
    return strcmp((const char *)c->text.data + line, text) == 0;
}

/* Reads an input into c->text: one line, continued lines, or a block between lines of """. */
static enum reading read_input(struct console *c)
{
    static const char fence[] = "\"\"\"";
    uint64_t line = 0;
    moe_buf_clear(&c->text);
    c->verbatim = false;
    enum reading got = read_line(c, "> ", &line);
    if (got != READ_LINE || c->text.failed)
        return got;
    if (line_is(c, line, fence)) {
        moe_buf_clear(&c->text);
        c->verbatim = true;
        while ((got = read_line(c, ". ", &line)) == READ_LINE && !c->text.failed) {
            if (line_is(c, line, fence)) {
                /* Without the newline before the fence. */
                c->text.size = line ? line - 1 : 0;
                c->text.data[c->text.size] = 0;
                return READ_LINE;
            }
            moe_buf_u8(&c->text, '\n');
        }
        return got;
    }
    while (got == READ_LINE && c->text.size && !c->text.failed &&
           c->text.data[c->text.size - 1] == '\\') {
        c->text.data[c->text.size - 1] = '\n';
        got = read_line(c, ". ", &line);
    }
    return got;
}

/* ---- History ---- */

/* ${XDG_STATE_HOME:-~/.local/state}/moe-toolkit/history, with its directories created; NULL: there
 * is no such place. */
static char *find_history_path(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct moe_buf path = {0};
    if (state && *state == '/')
        moe_buf_text(&path, state);
    else if (home && *home == '/')
        moe_buf_printf(&path, "%s/.local/state", home);
    else
        return NULL;
    moe_buf_text(&path, "/moe-toolkit/history");
    if (path.failed)
        return NULL;
    char *text = (char *)path.data;
    for (char *slash = strchr(text + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(text, 0700); /* may exist; if it cannot be made, saving fails */
        *slash = '/';
    }
    return text;
}

static void remember(struct console *c, const char *input)
{
    HistEvent event;
    if (!*input)
        return;
    history(c->history, &event, H_ENTER, input);
    if (c->history_path && history(c->history, &event, H_SAVE, c->history_path) < 0)
        cli_detail("%s: cannot write the history", c->history_path);
}

/* ---- The loop ---- */

static bool open_console(struct console *c)
{
    /* The locale decodes keys; without one, terminals send UTF-8 all the same. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    c->colour = cli_may_colour(STDERR_FILENO);
    c->el = el_init("moe-run", stdin,
                    cli_terminal(isatty(STDOUT_FILENO) ? STDOUT_FILENO : STDERR_FILENO),
                    cli_terminal(STDERR_FILENO));
    c->history = history_init();
    /* Without memory for its keys the editor is there and knows none. */
    if (!c->el || !c->history || el_set(c->el, EL_EDITOR, "emacs") != 0 ||
        el_set(c->el, EL_BIND, "^R", "em-inc-search-prev", NULL) != 0)
        return false;
    HistEvent event;
    history(c->history, &event, H_SETSIZE, 1000);
    history(c->history, &event, H_SETUNIQUE, 1);
    c->history_path = find_history_path();
    if (c->history_path)
        history(c->history, &event, H_LOAD, c->history_path);
    el_set(c->el, EL_CLIENTDATA, c);
    el_set(c->el, EL_PROMPT, show_prompt);
    el_set(c->el, EL_HIST, history, c->history);
    el_source(c->el, NULL); /* the user's ~/.editrc */
    el_set(c->el, EL_GETCFN, read_key);
    return true;
}

static void close_console(struct console *c)
{
    if (c->el)
        el_end(c->el);
    if (c->history)
        history_end(c->history);
    moe_sampler_free(c->sampler);
    moe_buf_release(&c->text);
    free(c->history_path);
}

/* 0: go on; 1: leave; negative: fatal. */
static int handle_input(struct console *c, enum reading got, struct moe_err *err)
{
    if (got == READ_END) {
        fputc('\n', stderr);
        return 1;
    }
    if (got == READ_DROPPED) {
        c->leaving = false;
        return 0;
    }
    if (got == READ_CANCELLED) {
        bool again = c->leaving;
        c->leaving = true;
        if (!again)
            console_tell(c, "(Ctrl-C again, Ctrl-D or /quit leaves)");
        return again;
    }
    c->leaving = false;
    if (c->text.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the input");
    char *input = (char *)c->text.data;
    remember(c, input);
    if (input[0] == '/' && !c->verbatim)
        return console_command(c, input, err);
    return console_answer(c, input[0] ? input : NULL, err);
}

int repl_run(struct repl *repl)
{
    struct console c = {.r = repl};
    struct moe_err err = {0};
    int status = MOE_OK;
    struct sigaction go_on = {.sa_handler = on_continue, .sa_flags = SA_RESTART};
    sigemptyset(&go_on.sa_mask);
    sigaction(SIGCONT, &go_on, NULL);
    cli_catch_interrupt(true);
    errno = 0;
    if (!open_console(&c))
        status = errno == ENOMEM
                     ? moe_fail(&err, MOE_ERR_MEMORY, "out of memory: the editor of lines")
                     : moe_fail(&err, MOE_ERR_IO, "cannot edit lines on this terminal");
    if (status == MOE_OK)
        status = console_new_sampler(&c, &err);
    if (status == MOE_OK)
        console_greet(&c);
    while (status == MOE_OK)
        status = handle_input(&c, read_input(&c), &err);
    close_console(&c);
    return status < 0 ? cli_error(&err) : CLI_DONE;
}
