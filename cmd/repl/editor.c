/* Line editing with libedit. */
#define _POSIX_C_SOURCE 200809L /* mkdir */
#define _XOPEN_SOURCE 700       /* fileno */
#include "editor.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

#include "base/buf.h"
#include "base/mem.h"
#include "cli.h"
#include "terminal.h"

/* ---- Pasted text ---- */

/* What a terminal sends before pasted text. */
#define PASTE_BEGINS "\033[200~"

enum { MAX_CHARACTERS = 16 << 20 };

static const wchar_t END[] = L"\033[201~";
enum { N_END = sizeof END / sizeof END[0] - 1 };

static bool is_break(wchar_t c)
{
    return c == L'\n' || c == L'\r';
}

/* The terminal has swapped the two bytes of lines that end in two. */
static void tidy_pasted(wchar_t *text, size_t n)
{
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        if (is_break(text[i])) {
            bool pair = i + 1 < n && is_break(text[i + 1]) && text[i] != text[i + 1];
            text[to++] = L'\n';
            i += pair;
        } else if (text[i]) {
            text[to++] = text[i];
        }
    }
    if (to > 0 && text[to - 1] == L'\n')
        to--;
    text[to] = 0;
}

/* Reads all of the text in any case, so that none of it is taken for keys. */
/* Reads up to the mark of the paste's end. The text, which the caller frees, with one newline at
 * the end of each line but the last; NULL: it was too long, there is no memory for it, or Ctrl-C
 * came. */
static wchar_t *paste_read(EditLine *el)
{
    wchar_t *text = NULL, c;
    size_t n = 0, room = 0, matched = 0;
    bool whole = true;
    while (matched < N_END && el_wgetc(el, &c) > 0) {
        matched = c == END[matched] ? matched + 1 : c == END[0] ? 1 : 0;
        if (whole && n == room) {
            room = room ? 2 * room : 4096;
            wchar_t *larger = n < MAX_CHARACTERS ? realloc(text, room * sizeof *text) : NULL;
            whole = larger != NULL;
            text = larger ? larger : text;
        }
        if (whole)
            text[n++] = c;
    }
    if (!whole || matched < N_END) {
        free(text);
        return NULL;
    }
    tidy_pasted(text, n - N_END);
    return text;
}

/* ---- Where a line ends on the screen ---- */

struct layout {
    int n_prompt;        /* its columns */
    const wchar_t *text; /* [n], borrowed */
    size_t n;
    size_t n_drawn;  /* how many were drawn row by row, not as typed */
    int drawn_width; /* of the terminal then */
};

struct place {
    int row, column; /* from the prompt's beginning */
};

static void break_line(struct place *p)
{
    *p = (struct place){p->row + 1, 0};
}

static void advance_place(struct place *p, int columns, int width)
{
    if (p->column + columns > width)
        break_line(p);
    p->column += columns;
    if (p->column >= width)
        break_line(p);
}

/* Columns of a character at this column, as libedit shows it: ^X, \U+1234, \U+12345. */
static int columns_of(wchar_t c, int column)
{
    if (c == L'\t')
        return 8 - column % 8;
    if (iswprint((wint_t)c))
        return wcwidth(c);
    return iswcntrl((wint_t)c) ? 2 : c > 0xffff ? 8 : 7;
}

/*
 * Terminals rejoin rows for a new width where text wrapped by itself. It did not where libedit drew
 * a row without its final blanks.
 */
static struct place layout_end(const struct layout *l, int width)
{
    struct place drawn = {0}, now = {0};
    int blanks = 0; /* at the end, which the terminal may not have */
    advance_place(&drawn, l->n_prompt, l->drawn_width);
    advance_place(&now, l->n_prompt, width);
    for (size_t i = 0; i < l->n; i++) {
        wchar_t c = l->text[i];
        int row = drawn.row, columns = columns_of(c, drawn.column);
        if (c == L'\n') {
            break_line(&drawn);
            break_line(&now);
            blanks = 0;
            continue;
        }
        advance_place(&drawn, columns, l->drawn_width);
        if (c == L' ') {
            bool cut = drawn.row > row && i < l->n_drawn && width != l->drawn_width;
            blanks = cut ? 0 : blanks + 1;
            if (cut && now.column > 0)
                break_line(&now);
            continue;
        }
        for (; blanks > 0; blanks--)
            advance_place(&now, 1, width);
        advance_place(&now, columns, width);
    }
    for (; blanks > 0; blanks--)
        advance_place(&now, 1, width);
    return now;
}

/* ---- The file that keeps inputs ---- */

/* ${XDG_STATE_HOME:-~/.local/state}/moe-toolkit/history, with its directories created; NULL: there
 * is no such place. The caller frees it. */
static char *history_path(void)
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

struct editor {
    EditLine *el;
    History *history;
    char *history_path; /* NULL: there is none */
    FILE *out;          /* the terminal itself */
    const char *prompt; /* of the line being read */
    int width;          /* of the terminal when the line was last laid out */
    size_t n_seen;      /* characters of the line before the last key */
    size_t n_drawn;     /* of them, those that were drawn row by row, not as they were typed */
    struct pasted pasted;
    bool pasting; /* between the marks of a paste */
    void (*choose)(void *ctx, const char *text, struct choices *c);
    void *ctx;
};

static struct editor *editor_of(EditLine *el)
{
    struct editor *e;
    el_get(el, EL_CLIENTDATA, &e);
    return e;
}

/* ---- Where things are on the screen ---- */

static struct place place_of(const struct editor *e, bool end, int width)
{
    const LineInfoW *line = el_wline(e->el);
    const struct layout l = {.n_prompt = (int)strlen(e->prompt),
                             .text = line->buffer,
                             .n = (size_t)((end ? line->lastchar : line->cursor) - line->buffer),
                             .n_drawn = e->n_drawn,
                             .drawn_width = e->width};
    return layout_end(&l, width);
}

/* Puts the cursor behind the text, so that what is printed next comes below all of it. */
static void go_to_end(const struct editor *e)
{
    int width = cli_width(fileno(e->out));
    struct place here = place_of(e, false, width), end = place_of(e, true, width);
    if (!terminal_moves())
        return;
    if (end.row > here.row)
        fprintf(e->out, "\033[%dB", end.row - here.row);
    fputc('\r', e->out);
    if (end.column > 0)
        fprintf(e->out, "\033[%dC", end.column);
    fflush(e->out);
}

/* Shows the line from where the cursor is. */
static void draw_line(struct editor *e)
{
    const LineInfoW *line = el_wline(e->el);
    e->width = cli_width(fileno(e->out));
    e->n_drawn = (size_t)(line->lastchar - line->buffer);
    el_resize(e->el);
    el_set(e->el, EL_REFRESH);
}

/* Shows the line again where it began, after the terminal has laid out its text for a new width. */
static void show_resized(struct editor *e)
{
    struct place here = place_of(e, false, cli_width(fileno(e->out)));
    if (terminal_moves()) {
        fputc('\r', e->out);
        if (here.row > 0)
            fprintf(e->out, "\033[%dA", here.row);
        fputs("\033[J", e->out);
        fflush(e->out);
    }
    draw_line(e);
}

/* While the program was stopped the terminal was another's. */
static void show_again(struct editor *e)
{
    el_set(e->el, EL_PREP_TERM, 0); /* or libedit believes that nothing has changed */
    el_set(e->el, EL_PREP_TERM, 1);
    terminal_mark_pastes();
    draw_line(e);
}

/* ---- Keys ---- */

/* Waits for a byte, serving signals meanwhile. False: Ctrl-C. */
static bool wait_for_byte(struct editor *e)
{
    for (;;) {
        switch (terminal_wait()) {
        case TERMINAL_BYTE:
            return true;
        case TERMINAL_INTERRUPT:
            return false;
        case TERMINAL_SUSPEND:
            go_to_end(e);
            fputs("\n", stderr);
            terminal_suspend();
            break;
        case TERMINAL_CONTINUE:
            show_again(e);
            break;
        case TERMINAL_RESIZE:
            show_resized(e);
            break;
        }
    }
}

/* libedit's own reader retries after a signal and would ignore Ctrl-C. */
static int read_key(EditLine *el, wchar_t *key)
{
    struct editor *e = editor_of(el);
    const LineInfoW *line = el_wline(el);
    mbstate_t state = {0};
    size_t n_line = (size_t)(line->lastchar - line->buffer);
    if (!e->pasting && n_line == 0)
        e->pasted = (struct pasted){0};
    if (n_line != e->n_seen && !(n_line == e->n_seen + 1 && line->cursor == line->lastchar))
        e->n_drawn = n_line;
    e->n_seen = n_line;
    for (;;) {
        char byte;
        if (!wait_for_byte(e))
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

/* ---- Pasting ---- */

static unsigned char paste(EditLine *el, int key)
{
    (void)key;
    struct editor *e = editor_of(el);
    const LineInfoW *line = el_wline(el);
    bool start = line->cursor == line->buffer;
    e->pasting = true;
    wchar_t *text = paste_read(el);
    e->pasting = false;
    bool inserted = text && *text && el_winsertstr(el, text) == 0;
    if (inserted)
        e->pasted = (struct pasted){.some = true, .start = e->pasted.start || start};
    free(text);
    return inserted ? CC_REFRESH : CC_REFRESH_BEEP;
}

/* ---- Completion ---- */

/* Inserts what all choices have in common, and lists them where that is nothing more. */
static unsigned char complete(EditLine *el, int key)
{
    (void)key;
    struct editor *e = editor_of(el);
    const LineInfo *line = el_line(el);
    struct choices c = {.end = ""};
    struct moe_buf text = {0}, more = {0};
    unsigned char outcome = CC_ERROR;
    moe_buf_append(&text, line->buffer, (uint64_t)(line->cursor - line->buffer));
    moe_buf_u8(&text, 0);
    if (!text.failed && !e->pasted.start)
        e->choose(e->ctx, (const char *)text.data, &c);
    size_t common = c.failed ? 0 : choices_common(&c);
    if (common > c.typed)
        moe_buf_append(&more, c.words[0] + c.typed, common - c.typed);
    if (c.n == 1 && !c.failed)
        moe_buf_text(&more, c.end);
    if (more.size > 0 && !more.failed && el_insertstr(el, (const char *)more.data) == 0) {
        outcome = CC_REFRESH;
    } else if (c.n > 1 && !c.failed) {
        go_to_end(e);
        fputc('\n', stderr);
        choices_list(&c, cli_width(fileno(e->out)));
        draw_line(e);
        outcome = CC_NORM;
    }
    choices_release(&c);
    moe_buf_release(&text);
    moe_buf_release(&more);
    return outcome;
}

/* ---- History ---- */

void editor_remember(struct editor *e, const char *input)
{
    HistEvent event;
    if (!*input)
        return;
    history(e->history, &event, H_ENTER, input);
    if (e->history_path && history(e->history, &event, H_SAVE, e->history_path) < 0)
        cli_detail("%s: cannot write the history", e->history_path);
}

static void open_history(struct editor *e)
{
    HistEvent event;
    history(e->history, &event, H_SETSIZE, 1000);
    history(e->history, &event, H_SETUNIQUE, 1);
    e->history_path = history_path();
    if (e->history_path)
        history(e->history, &event, H_LOAD, e->history_path);
    el_set(e->el, EL_HIST, history, e->history);
}

/* ---- Opening, closing ---- */

static char *show_prompt(EditLine *el)
{
    return (char *)editor_of(el)->prompt;
}

/*
 * Makes libedit turn echo off between lines. It applies el_set(EL_SETTY) only when it finds the
 * terminal changed by the user, so a bit that it does not know is changed here.
 */
static void silence(struct editor *e)
{
    struct termios modes;
    el_set(e->el, EL_SETTY, "-x", "-echo", "-icanon", "+noflsh", NULL);
    if (tcgetattr(STDIN_FILENO, &modes) == 0) {
        modes.c_lflag |= NOFLSH;
        tcsetattr(STDIN_FILENO, TCSANOW, &modes);
    }
}

/* After the user's ~/.editrc, which may change what keys do. False: out of memory. */
static bool bind_keys(struct editor *e)
{
    bool vi = false;
    const char *editor = NULL;
    if (el_get(e->el, EL_EDITOR, &editor) == 0 && editor)
        vi = strcmp(editor, "vi") == 0;
    /* Of other names libedit makes copies, which it never frees. */
    return el_wset(e->el, EL_ADDFN, L"moe-paste", L"Take pasted text as it is", paste) == 0 &&
           el_wset(e->el, EL_ADDFN, L"moe-complete", L"Complete or list", complete) == 0 &&
           el_set(e->el, EL_BIND, PASTE_BEGINS, "moe-paste", NULL) == 0 &&
           (!vi || el_set(e->el, EL_BIND, "-a", PASTE_BEGINS, "moe-paste", NULL) == 0) &&
           el_set(e->el, EL_BIND, "^I", "moe-complete", NULL) == 0;
}

static bool open_libedit(struct editor *e)
{
    /* The locale decodes keys; without one, terminals send UTF-8 all the same. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    e->out = cli_terminal(cli_is_terminal(STDOUT_FILENO) ? STDOUT_FILENO : STDERR_FILENO);
    e->el = el_init("moe-run", stdin, e->out, cli_terminal(STDERR_FILENO));
    e->history = history_init();
    /* Without memory for its keys the editor works and knows none. */
    if (!e->el || !e->history || el_set(e->el, EL_EDITOR, "emacs") != 0 ||
        el_set(e->el, EL_BIND, "^R", "em-inc-search-prev", NULL) != 0)
        return false;
    open_history(e);
    el_set(e->el, EL_CLIENTDATA, e);
    el_set(e->el, EL_PROMPT, show_prompt);
    el_source(e->el, NULL); /* the user's ~/.editrc */
    el_set(e->el, EL_GETCFN, read_key);
    return bind_keys(e);
}

int editor_open(struct editor **out, void (*choose)(void *ctx, const char *text, struct choices *c),
                void *ctx, struct moe_err *err)
{
    struct editor *e = moe_alloc(1, sizeof *e, err);
    *out = NULL;
    if (!e)
        return MOE_ERR_MEMORY;
    e->prompt = "";
    e->choose = choose;
    e->ctx = ctx;
    errno = 0;
    if (!open_libedit(e)) {
        int status = errno == ENOMEM
                         ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: the editor of lines")
                         : moe_fail(err, MOE_ERR_IO, "cannot edit lines on this terminal");
        editor_close(e);
        return status;
    }
    terminal_take(e->out);
    silence(e);
    *out = e;
    return MOE_OK;
}

void editor_close(struct editor *e)
{
    if (!e)
        return;
    if (e->el) {
        el_set(e->el, EL_EDITMODE, 0); /* or it would drop what was typed for whom comes next */
        el_end(e->el);
    }
    terminal_give_back();
    if (e->history)
        history_end(e->history);
    free(e->history_path);
    free(e);
}

/* ---- Reading ---- */

enum reading editor_read(struct editor *e, const char *prompt, struct moe_buf *to,
                         struct pasted *pasted)
{
    int n = 0;
    e->prompt = prompt;
    e->pasted = (struct pasted){0};
    e->width = cli_width(fileno(e->out));
    e->n_seen = e->n_drawn = 0;
    cli_start_over();
    terminal_edits(true);
    const char *typed = el_gets(e->el, &n);
    bool stopped = cli_stop;
    if (stopped) {
        go_to_end(e);
        fputs("^C\n", stderr);
    }
    terminal_edits(false);
    if (stopped) {
        const LineInfo *info = el_line(e->el);
        cli_start_over();
        return info->lastchar > info->buffer || to->size ? READ_DROPPED : READ_CANCELLED;
    }
    if (!typed || n <= 0)
        return READ_END;
    if (typed[n - 1] == '\n')
        n--;
    moe_buf_append(to, typed, (uint64_t)n);
    *pasted = e->pasted;
    return READ_LINE;
}
