/* /set and /stop: what changes how the next answers are drawn and end. */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli.h"
#include "commands.h"

/* ---- Numbers ---- */

const char *const setting_names[] = {"temp",           "top-k", "top-p", "min-p",
                                     "repeat-penalty", "seed",  "n",     NULL};

/* A number that /set changes: the one of three pointers that is not NULL. */
struct setting {
    double *real;
    uint32_t *whole;
    uint64_t *large;  /* UINT64_MAX is "none" where there is no largest */
    double low, high; /* of reals and wholes */
    const char *about;
};

enum { N_SETTINGS = 7 };

/* In the order of the names, which begin as in moe_sampling_value. `o` holds the values. */
static void list_settings(struct console *c, struct moe_sampler_options *o,
                          struct setting settings[N_SETTINGS])
{
    const struct setting all[N_SETTINGS] = {
        {&o->temperature, NULL, NULL, 0, 100, "0 to 100; 0: always the likeliest token"},
        {NULL, &o->top_k, NULL, 0, 1000000, "0 to 1000000 of the likeliest tokens; 0: all"},
        {&o->top_p, NULL, NULL, 0, 1, "0 to 1, the likeliest tokens' share; 1: all"},
        {&o->min_p, NULL, NULL, 0, 1, "0 to 1 of the likeliest's share at least; 0: all"},
        {&o->repeat_penalty, NULL, NULL, 0.1, 10, "0.1 to 10; 1: none"},
        {NULL, NULL, &o->seed, 0, 0, "a whole number"},
        {NULL, NULL, &c->r->max_tokens, 0, 0, "tokens of an answer, or none: as many as come"},
    };
    memcpy(settings, all, sizeof all);
}

static void value_of(const struct setting *s, char out[32])
{
    if (s->real)
        snprintf(out, 32, "%g", *s->real);
    else if (s->whole)
        snprintf(out, 32, "%" PRIu32, *s->whole);
    else if (*s->large == UINT64_MAX)
        snprintf(out, 32, "none");
    else
        snprintf(out, 32, "%" PRIu64, *s->large);
}

/* Setting i as it holds, and where it comes from. */
static void show_setting(struct console *c, int i)
{
    static const char *const from[] = {[MOE_SAMPLING_DEFAULT] = "default, ",
                                       [MOE_SAMPLING_OF_MODEL] = "the model's, ",
                                       [MOE_SAMPLING_ASKED] = ""};
    const struct moe_sampler_options *model = &c->r->conversation->session->model->sampling;
    struct moe_sampler_options holds = *c->r->sampling;
    struct setting settings[N_SETTINGS];
    struct moe_sampling_value v = {.origin = MOE_SAMPLING_ASKED};
    char value[32], row[160];
    moe_sampling_complete(&holds, model);
    list_settings(c, &holds, settings);
    if (settings[i].real || settings[i].whole)
        moe_sampling_value(c->r->sampling, model, i, &v);
    value_of(&settings[i], value);
    snprintf(row, sizeof row, "%-14s %-8s (%s%s)", setting_names[i], value, from[v.origin],
             settings[i].about);
    console_print(row);
}

static bool change_setting(const struct setting *s, const char *text, bool may_be_none)
{
    uint64_t whole = UINT64_MAX;
    double real = 0;
    if (s->real) {
        if (!moe_parse_double(text, &real) || real < s->low || real > s->high)
            return false;
        *s->real = real;
        return true;
    }
    if (!(may_be_none && strcmp(text, "none") == 0) && !moe_parse_u64(text, &whole))
        return false;
    if (s->whole && (double)whole > s->high)
        return false;
    if (s->whole)
        *s->whole = (uint32_t)whole;
    else
        *s->large = whole;
    return true;
}

static void set_setting(struct console *c, const char *name, struct setting *s, const char *text,
                        struct moe_err *err)
{
    struct moe_sampler_options *o = c->r->sampling, before = *o;
    char value[32];
    if (!change_setting(s, text, s->large == &c->r->max_tokens)) {
        fprintf(stderr, "'%s' is not a value of %s: %s\n", text, name, s->about);
        return;
    }
    /* Unless the seed was set, the new sampler must not repeat the draws of the old one. */
    if (s->large != &o->seed)
        o->seed++;
    if (console_new_sampler(c, err) != MOE_OK) {
        *o = before;
        cli_error(err);
        return;
    }
    value_of(s, value);
    console_tell(c, "%s is %s", name, value);
}

int command_set(struct console *c, const char *arg, struct moe_err *err)
{
    struct setting settings[N_SETTINGS];
    size_t n_name = strcspn(arg, " \t");
    const char *value = arg + n_name + strspn(arg + n_name, " \t");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(n_name < 31 ? n_name : 31), arg);
    list_settings(c, c->r->sampling, settings);
    for (int i = 0; i < N_SETTINGS; i++) {
        if (!*arg)
            show_setting(c, i);
        if (strcmp(name, setting_names[i]) != 0)
            continue;
        if (*value)
            set_setting(c, name, &settings[i], value, err);
        else
            show_setting(c, i);
        return 0;
    }
    if (!*arg)
        return 0;
    const char *nearest = cli_nearest_name(name, setting_names);
    if (nearest)
        fprintf(stderr, "unknown setting '%s'; did you mean %s? /set lists all\n", name, nearest);
    else
        fprintf(stderr, "unknown setting '%s'; /set lists all\n", name);
    return 0;
}

/* ---- Stop texts ---- */

/* \n, \t and \\ in `text` are the characters that they name; NULL: out of memory. */
static char *unescape(const char *text)
{
    char *out = strdup(text), *to = out;
    for (const char *from = text; out && *from; from++) {
        static const char names[] = "nt\\", meant[] = "\n\t\\";
        const char *name = *from == '\\' && from[1] ? strchr(names, from[1]) : NULL;
        *to++ = name ? meant[name - names] : *from;
        from += name != NULL;
    }
    if (out)
        *to = 0;
    return out;
}

static void show_stops(const struct console *c)
{
    const char *const *stop = c->r->stop_texts;
    if (!stop || !*stop) {
        console_tell(c, "no text stops an answer; /stop TEXT adds one");
        return;
    }
    for (; *stop; stop++) {
        fputc('\'', stderr);
        for (const char *at = *stop; *at; at++)
            fprintf(stderr, *at == '\n' ? "\\n" : *at == '\t' ? "\\t" : "%c", *at);
        fputs("'\n", stderr);
    }
}

/* Takes `text`, which strdup or the like made. */
static bool append_stop(struct console *c, char *text)
{
    char **more = text ? realloc(c->stops, (c->n_stops + 2) * sizeof *more) : NULL;
    if (!more) {
        free(text);
        return false;
    }
    more[c->n_stops++] = text;
    more[c->n_stops] = NULL;
    c->stops = more;
    return true;
}

void settings_release(struct console *c)
{
    for (size_t i = 0; i < c->n_stops; i++)
        free(c->stops[i]);
    free(c->stops);
    c->stops = NULL;
    c->n_stops = 0;
}

int command_stop(struct console *c, const char *arg, struct moe_err *err)
{
    bool works = true;
    if (strcmp(arg, "-") == 0) {
        c->r->stop_texts = NULL;
        settings_release(c);
    } else if (*arg) {
        /* The first one of ours comes after those of the command line. */
        const char *const *given = c->stops ? NULL : c->r->stop_texts;
        for (; given && *given && works; given++)
            works = append_stop(c, strdup(*given));
        works = works && append_stop(c, unescape(arg));
        c->r->stop_texts = (const char *const *)c->stops;
    }
    if (!works)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the stop texts");
    show_stops(c);
    return 0;
}
