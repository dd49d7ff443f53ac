#define _POSIX_C_SOURCE 200809L /* mkdir, isatty */
#include "repl.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "cli.h"

struct console {
    struct repl *r;
    EditLine *el;
    History *history;
    char *history_path; /* NULL: not kept */
    struct moe_sampler *sampler;
    const char *prompt;  /* of the line being read */
    struct moe_buf text; /* the input so far */
    bool verbatim;       /* it came between lines of """: a slash is no command */
    bool leaving;        /* Ctrl-C was pressed at an empty prompt */
    bool colour;
};

/* ---- Parts that moe-run -p uses too -----------------------------------------------------------
 */

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

/* ---- Talking ----------------------------------------------------------------------------------
 */

/* Everything but answers goes to stderr: stdout may be a file although stdin is a terminal. */
static void tell(const struct console *c, const char *text)
{
    if (c->colour)
        fprintf(stderr, "\033[2m%s\033[0m\n", text);
    else
        fprintf(stderr, "%s\n", text);
}

static void print_line(const char *text)
{
    fprintf(stderr, "%s\n", text);
}

/* ---- Answers ----------------------------------------------------------------------------------
 */

static int new_sampler(struct console *c, struct moe_err *err)
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
    moe_stats_write_line(&c->r->conversation->session->stats, &line);
    if (!line.failed)
        tell(c, (const char *)line.data);
    moe_buf_release(&line);
}

/* Asks, or continues when text is NULL. Only a write error on stdout is fatal. */
static int answer(struct console *c, const char *text, struct moe_err *err)
{
    struct repl *r = c->r;
    struct moe_session *s = r->conversation->session;
    struct moe_generate_options o = {
        .max_tokens = r->max_tokens,
        .ignore_eos = r->ignore_eos,
        .stop_texts = r->stop_texts,
        .stop = &cli_stop,
        .started = moe_seconds(),
        .text = repl_stream,
    };
    enum moe_stop_reason why = MOE_STOP_EOS;
    s->stats = (struct moe_stats){0};
    cli_stop = 0;
    err->text[0] = 0;
    int status = text ? moe_conversation_ask(r->conversation, text, c->sampler, &o, &why, err)
                      : moe_conversation_continue(r->conversation, c->sampler, &o, &why, err);
    cli_stop = 0;
    if (status != MOE_OK && !err->text[0])
        return cli_flush(err) != MOE_OK ? MOE_ERR_IO : moe_fail(err, status, "the answer failed");
    if (status != MOE_OK) {
        cli_error(err);
        if (status == MOE_ERR_LIMIT)
            tell(c, "/reset starts with an empty context; -c sets a longer one");
        return MOE_OK;
    }
    putchar('\n');
    if (cli_flush(err) != MOE_OK)
        return MOE_ERR_IO;
    moe_engine_finish_stats(r->engine, &s->stats);
    moe_stats_add(r->total, &s->stats);
    repl_explain_stop(why, s->context);
    if (why == MOE_STOP_CONTEXT)
        tell(c, "/reset starts with an empty context; -c sets a longer one");
    if (why == MOE_STOP_LENGTH)
        tell(c, "(stopped after -n tokens: /continue goes on)");
    footer(c);
    return MOE_OK;
}

/* ---- Slash commands ---------------------------------------------------------------------------
 */

struct command {
    const char *name, *arg, *help;
    /* 0: go on; 1: leave; negative: a fatal error, in err. */
    int (*run)(struct console *c, const char *arg, struct moe_err *err);
};

static int do_help(struct console *c, const char *arg, struct moe_err *err);

static int do_stats(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf text = {0};
    struct moe_stats total = *c->r->total;
    moe_engine_finish_stats(c->r->engine, &total);
    moe_stats_write_text(&total, &text);
    if (!text.failed)
        fputs((const char *)text.data, stderr);
    moe_buf_release(&text);
    return 0;
}

static int do_reset(struct console *c, const char *arg, struct moe_err *err)
{
    moe_conversation_reset(c->r->conversation);
    tell(c, "the context is empty");
    return 0;
}

static int do_system(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_conversation *talk = c->r->conversation;
    if (!*arg && talk->n_turns && talk->turns[0].role == MOE_CHAT_SYSTEM) {
        print_line(talk->turns[0].text);
    } else if (!*arg) {
        tell(c, "there is no system text; /system TEXT sets one, /system - removes it");
    } else if (moe_conversation_system(c->r->conversation, strcmp(arg, "-") ? arg : NULL, err) !=
               MOE_OK) {
        cli_error(err);
    } else {
        tell(c, "a new conversation begins");
    }
    return 0;
}

static int do_strategy(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_engine *e = c->r->engine;
    if (*arg)
        tell(c, "the strategy is chosen when moe-run starts: --strategy, --cache, --alloc");
    if (e->strategy == MOE_STRATEGY_RESIDENT)
        print_line("resident: all experts in memory, each at its highest stored precision");
    else if (e->strategy == MOE_STRATEGY_ONDEMAND)
        print_line("ondemand: experts are loaded as they are needed, none is kept");
    else
        fprintf(stderr, "%s: %u slots for experts, cache policy %s\n",
                moe_strategy_name(e->strategy), e->budget.n_slots, e->policy);
    return 0;
}

static int do_memory(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf text = {0};
    char peak[32];
    moe_budget_write_text(&c->r->engine->budget, &text);
    fprintf(stderr, "%s         %llu tokens of context in use, peak of the process %s\n",
            text.failed || !text.data ? "" : (const char *)text.data,
            (unsigned long long)c->r->conversation->history.n,
            moe_format_bytes(moe_peak_rss_bytes(), peak));
    moe_buf_release(&text);
    return 0;
}

/* What /set knows: a number from low to high, whole where `whole` says where it goes. */
struct setting {
    const char *name;
    double *real;
    uint32_t *whole;
    uint64_t *large;
    double low, high;
};

static int do_set(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_sampler_options *o = c->r->sampling, before = *o;
    const struct setting settings[] = {
        {"temp", &o->temperature, NULL, NULL, 0, 100},
        {"top-k", NULL, &o->top_k, NULL, 0, 1000000},
        {"top-p", &o->top_p, NULL, NULL, 0, 1},
        {"min-p", &o->min_p, NULL, NULL, 0, 1},
        {"repeat-penalty", &o->repeat_penalty, NULL, NULL, 0.1, 10},
        {"seed", NULL, NULL, &o->seed, 0, 0},
        {"n", NULL, NULL, &c->r->max_tokens, 0, 0},
    };
    size_t n_name = strcspn(arg, " \t");
    const char *value = arg + n_name + strspn(arg + n_name, " \t");
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        const struct setting *s = &settings[i];
        uint64_t whole = 0;
        double real = 0;
        if (strlen(s->name) != n_name || strncmp(s->name, arg, n_name) != 0)
            continue;
        bool good = s->real ? moe_parse_double(value, &real) && real >= s->low && real <= s->high
                            : moe_parse_u64(value, &whole) && (s->large || whole <= s->high);
        if (good && s->real)
            *s->real = real;
        else if (good && s->whole)
            *s->whole = (uint32_t)whole;
        else if (good)
            *s->large = whole;
        /* Without a seed of its own the new sampler must not repeat the old one's draws. */
        if (good && s->large != &o->seed)
            o->seed++;
        if (!good) {
            fprintf(stderr, "'%s' is no value for %s\n", value, s->name);
        } else if (new_sampler(c, err) != MOE_OK) {
            *o = before;
            cli_error(err);
        }
        return 0;
    }
    if (*arg)
        fprintf(stderr, "nothing to set is called '%.*s'; there are:\n", (int)n_name, arg);
    char n[32] = "no limit";
    if (c->r->max_tokens != UINT64_MAX)
        snprintf(n, sizeof n, "%llu", (unsigned long long)c->r->max_tokens);
    fprintf(stderr, "temp %g, top-k %u, top-p %g, min-p %g, repeat-penalty %g, seed %llu, n %s\n",
            o->temperature, o->top_k, o->top_p, o->min_p, o->repeat_penalty,
            (unsigned long long)o->seed, n);
    return 0;
}

static int do_continue(struct console *c, const char *arg, struct moe_err *err)
{
    return answer(c, NULL, err);
}

static int do_quit(struct console *c, const char *arg, struct moe_err *err)
{
    return 1;
}

static const struct command commands[] = {
    {"help", "", "this list", do_help},
    {"stats", "", "what all answers so far took", do_stats},
    {"memory", "", "where memory goes", do_memory},
    {"strategy", "", "how experts are kept", do_strategy},
    {"system", "TEXT", "set the system text (- removes it) and start anew", do_system},
    {"set", "NAME VALUE", "temp, top-k, top-p, min-p, repeat-penalty, seed, n", do_set},
    {"continue", "", "go on with the last answer (an empty line does the same)", do_continue},
    {"reset", "", "forget the conversation", do_reset},
    {"quit", "", "leave (Ctrl-D does the same)", do_quit},
};

static int do_help(struct console *c, const char *arg, struct moe_err *err)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(stderr, "/%s %-*s %s\n", commands[i].name, (int)(20 - strlen(commands[i].name)),
                commands[i].arg, commands[i].help);
    print_line(
        "A line ending in \\ goes on in the next; text between lines of \"\"\" is taken whole.");
    print_line("Ctrl-C stops an answer; at an empty prompt, pressed twice, it leaves.");
    return 0;
}

static int run_command(struct console *c, char *line, struct moe_err *err)
{
    char *name = line + 1, *end = name + strlen(name);
    while (end > name && strchr(" \t", end[-1]))
        *--end = 0;
    size_t n = strcspn(name, " \t");
    const char *arg = name + n + strspn(name + n, " \t");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strlen(commands[i].name) == n && strncmp(commands[i].name, name, n) == 0)
            return commands[i].run(c, arg, err);
    fprintf(stderr, "/%.*s is no command; /help lists them\n", (int)n, name);
    return 0;
}

/* ---- Reading ----------------------------------------------------------------------------------
 */

static char *show_prompt(EditLine *el)
{
    struct console *c;
    el_get(el, EL_CLIENTDATA, &c);
    return (char *)c->prompt;
}

/* libedit's own reader tries again after a signal, so Ctrl-C would not come through. */
static int read_key(EditLine *el, wchar_t *key)
{
    mbstate_t state = {0};
    (void)el;
    for (;;) {
        char byte;
        ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n < 0 && errno == EINTR && !cli_stop)
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
    READ_DROPPED,   /* Ctrl-C, and what was typed is forgotten */
    READ_CANCELLED, /* Ctrl-C with nothing typed */
    READ_END,
};

/* One line without its newline, appended to c->text; *line: where it begins. */
static enum reading read_line(struct console *c, const char *prompt, uint64_t *line)
{
    int n = 0;
    c->prompt = prompt;
    cli_stop = 0;
    const char *typed = el_gets(c->el, &n);
    if (cli_stop) {
        const LineInfo *info = el_line(c->el);
        fputs("^C\n", stderr);
        cli_stop = 0;
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

/* A whole input into c->text: one line, continued lines, or a block between lines of """. */
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

/* ---- History ----------------------------------------------------------------------------------
 */

/* ${XDG_STATE_HOME:-~/.local/state}/moe-toolkit/history, its directories made; NULL: nowhere. */
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
        mkdir(text, 0700); /* may exist; if it cannot be made, saving says so with -v */
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
        cli_detail("%s: the history cannot be written", c->history_path);
}

/* ---- The loop ---------------------------------------------------------------------------------
 */

static bool open_console(struct console *c)
{
    /* Keys are decoded by the locale; a terminal without one still sends UTF-8. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
    c->colour = cli_may_colour(STDERR_FILENO);
    c->el = el_init("moe-run", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    c->history = history_init();
    if (!c->el || !c->history)
        return false;
    HistEvent event;
    history(c->history, &event, H_SETSIZE, 1000);
    history(c->history, &event, H_SETUNIQUE, 1);
    c->history_path = find_history_path();
    if (c->history_path)
        history(c->history, &event, H_LOAD, c->history_path);
    el_set(c->el, EL_CLIENTDATA, c);
    el_set(c->el, EL_PROMPT, show_prompt);
    el_set(c->el, EL_EDITOR, "emacs");
    el_set(c->el, EL_HIST, history, c->history);
    el_set(c->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
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

static void greet(const struct console *c)
{
    const struct moe_conversation *talk = c->r->conversation;
    const struct moe_config *m = &talk->session->model->config;
    char line[512];
    if (cli_quiet)
        return;
    snprintf(line, sizeof line, "%s: %s, %u layers, %u experts of which %u at work; %s. /help",
             c->r->pack, m->family, m->n_layers, m->n_experts, m->top_k,
             talk->format ? moe_chat_name(talk->format) : "plain continuation");
    tell(c, line);
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
            tell(c, "(Ctrl-C again, Ctrl-D or /quit leaves)");
        return again;
    }
    c->leaving = false;
    if (c->text.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the input");
    char *input = (char *)c->text.data;
    remember(c, input);
    if (input[0] == '/' && !c->verbatim)
        return run_command(c, input, err);
    return answer(c, input[0] ? input : NULL, err);
}

int repl_run(struct repl *repl)
{
    struct console c = {.r = repl};
    struct moe_err err = {0};
    int status = MOE_OK;
    cli_catch_interrupt();
    if (!open_console(&c))
        status = moe_fail(&err, MOE_ERR_IO, "the terminal cannot be used for line editing");
    if (status == MOE_OK)
        status = new_sampler(&c, &err);
    if (status == MOE_OK)
        greet(&c);
    while (status == MOE_OK)
        status = handle_input(&c, read_input(&c), &err);
    close_console(&c);
    return status < 0 ? cli_error(&err) : CLI_DONE;
}
