/* The commands of the interactive prompt, one function each, in a table. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "console.h"
#include "show/explain.h"
#include "show/show_run.h"

static void print_line(const char *text)
{
    fprintf(stderr, "%s\n", text);
}

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
    moe_show_run(&total, &text);
    fputs(text.failed ? "out of memory\n" : (const char *)text.data, stderr);
    moe_buf_release(&text);
    return 0;
}

static bool has_encoder(const struct console *c)
{
    return c->r->conversation->session->model->config.n_encoder > 0;
}

static int do_reset(struct console *c, const char *arg, struct moe_err *err)
{
    if (has_encoder(c)) {
        console_tell(c, "there is nothing to forget: each input is a source of its own");
        return 0;
    }
    moe_conversation_reset(c->r->conversation);
    console_tell(c, "the context is empty");
    return 0;
}

static int do_system(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_conversation *talk = c->r->conversation;
    if (has_encoder(c))
        console_tell(c, "there is no place for a system text: each input is a source of its own");
    else if (!*arg && talk->n_turns && talk->turns[0].role == MOE_CHAT_SYSTEM) {
        print_line(talk->turns[0].text);
    } else if (!*arg) {
        console_tell(c, "there is no system text; /system TEXT sets one, /system - removes it");
    } else if (moe_conversation_system(c->r->conversation, strcmp(arg, "-") ? arg : NULL, err) !=
               MOE_OK) {
        cli_error(err);
    } else {
        console_tell(c, "a new conversation begins");
    }
    return 0;
}

static int do_strategy(struct console *c, const char *arg, struct moe_err *err)
{
    const struct moe_engine *e = c->r->engine;
    if (*arg)
        console_tell(c, "the strategy is fixed when moe-run starts (--strategy)");
    struct moe_buf exactness = {0};
    print_line(e->strategy.name);
    print_line(e->strategy.describe);
    if (!e->strategy.resident)
        print_line(e->parts);
    if (e->fallback)
        print_line(e->fallback);
    if (moe_strategy_boundary_from(&e->strategy))
        fprintf(stderr, "shallow:%u (%s)\n", e->strategy.boundary,
                moe_strategy_boundary_from(&e->strategy));
    moe_explain_exactness(&e->exactness, &exactness);
    print_line(exactness.failed ? "out of memory" : (const char *)exactness.data);
    moe_buf_release(&exactness);
    return 0;
}

static int do_memory(struct console *c, const char *arg, struct moe_err *err)
{
    struct moe_buf text = {0};
    char peak[32];
    moe_budget_write_text(&c->r->engine->budget, &text);
    fprintf(stderr, "%s         %llu tokens of context in use, peak of the process %s\n",
            text.failed ? "out of memory\n"
            : text.data ? (const char *)text.data
                        : "",
            (unsigned long long)c->r->conversation->history.n,
            moe_format_bytes(moe_peak_rss_bytes(), peak));
    moe_buf_release(&text);
    return 0;
}

/* A number that /set changes: the one of three pointers that is not NULL. Reals and wholes have a
 * range, the largest value of `large` is UINT64_MAX. */
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
        /* Unless the seed was set, the new sampler must not repeat the draws of the old one. */
        if (good && s->large != &o->seed)
            o->seed++;
        if (!good) {
            fprintf(stderr, "'%s' is not a value of %s\n", value, s->name);
        } else if (console_new_sampler(c, err) != MOE_OK) {
            *o = before;
            cli_error(err);
        }
        return 0;
    }
    if (*arg)
        fprintf(stderr, "unknown setting '%.*s'; there are:\n", (int)n_name, arg);
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
    return console_answer(c, NULL, err);
}

static int do_quit(struct console *c, const char *arg, struct moe_err *err)
{
    return 1;
}

static const struct command commands[] = {
    {"help", "", "this list", do_help},
    {"stats", "", "time and memory used so far", do_stats},
    {"memory", "", "where memory goes", do_memory},
    {"strategy", "", "how experts are kept and loaded", do_strategy},
    {"system", "TEXT", "set the system text (- removes it) and begin again", do_system},
    {"set", "NAME VALUE", "temp, top-k, top-p, min-p, repeat-penalty, seed, n", do_set},
    {"continue", "", "continue the last answer (an empty line does the same)", do_continue},
    {"reset", "", "forget the conversation", do_reset},
    {"quit", "", "leave (Ctrl-D does the same)", do_quit},
};

static int do_help(struct console *c, const char *arg, struct moe_err *err)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(stderr, "/%s %-*s %s\n", commands[i].name, (int)(20 - strlen(commands[i].name)),
                commands[i].arg, commands[i].help);
    print_line(
        "A line ending in \\ continues on the next; text between lines of \"\"\" is taken whole.");
    print_line("Ctrl-C stops an answer; at an empty prompt, pressed twice, it leaves.");
    return 0;
}

void console_greet(const struct console *c)
{
    const struct moe_conversation *talk = c->r->conversation;
    const struct moe_config *m = &talk->session->model->config;
    char line[512];
    if (cli_quiet)
        return;
    snprintf(line, sizeof line, "%s: %s, %u layers, %u experts (%u per token); %s. /help",
             c->r->pack, m->family, m->n_layers, m->n_experts, m->top_k,
             m->n_encoder   ? "each input is a source of its own, without history"
             : talk->format ? moe_chat_name(talk->format)
                            : "plain continuation");
    console_tell(c, line);
}

int console_command(struct console *c, char *line, struct moe_err *err)
{
    char *name = line + 1, *end = name + strlen(name);
    while (end > name && strchr(" \t", end[-1]))
        *--end = 0;
    size_t n = strcspn(name, " \t");
    const char *arg = name + n + strspn(name + n, " \t");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strlen(commands[i].name) == n && strncmp(commands[i].name, name, n) == 0)
            return commands[i].run(c, arg, err);
    fprintf(stderr, "unknown command /%.*s; /help lists them\n", (int)n, name);
    return 0;
}
