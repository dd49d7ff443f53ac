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

/* Those of sampling come first, in the order of moe_sampling_field. */
const char *const *setting_names(void)
{
    static const char *names[32];
    int n = 0;
    for (const struct moe_sampling_field *f; (f = moe_sampling_field(n)) != NULL; n++)
        names[n] = f->option;
    names[n++] = "seed";
    names[n++] = "n"; /* NULL follows */
    return names;
}

/* What is not of sampling; NULL: it is. */
static uint64_t *large_of(struct console *c, const char *name)
{
    return strcmp(name, "seed") == 0 ? &c->r->sampling->seed
           : strcmp(name, "n") == 0  ? &c->r->max_tokens
                                     : NULL;
}

/* Appends what values there are. */
static void put_about(struct moe_buf *out, int i, const char *name)
{
    const struct moe_sampling_field *f = moe_sampling_field(i);
    if (f)
        moe_buf_printf(out, "%.10g to %.10g; %s", f->low, f->high, f->about);
    else
        moe_buf_text(out, strcmp(name, "seed") == 0
                              ? "a whole number"
                              : "tokens of an answer, or none: as many as come");
}

/* Setting i as it holds, and where it comes from. */
static void show_setting(struct console *c, int i, const char *name)
{
    static const char *const from[] = {[MOE_SAMPLING_DEFAULT] = "default, ",
                                       [MOE_SAMPLING_OF_MODEL] = "the model's, ",
                                       [MOE_SAMPLING_ASKED] = ""};
    const struct moe_sampler_options *model = &c->r->conversation->session->model->sampling;
    const uint64_t *large = large_of(c, name);
    struct moe_sampling_value v = {.origin = MOE_SAMPLING_ASKED};
    struct moe_buf row = {0};
    char value[32] = "none";
    if (!large) {
        moe_sampling_value(c->r->sampling, model, i, &v);
        snprintf(value, sizeof value, "%.10g", v.value);
    } else if (*large != UINT64_MAX) {
        snprintf(value, sizeof value, "%" PRIu64, *large);
    }
    moe_buf_printf(&row, "%-18s %-8s (%s", name, value, from[v.origin]);
    put_about(&row, i, name);
    moe_buf_text(&row, ")");
    moe_buf_u8(&row, 0);
    if (!row.failed)
        console_print((const char *)row.data);
    moe_buf_release(&row);
}

static bool change_setting(struct console *c, int i, const char *name, const char *text)
{
    uint64_t *large = large_of(c, name), whole = UINT64_MAX;
    double real;
    struct moe_err err;
    if (!large)
        return moe_parse_double(text, &real) &&
               moe_sampling_take(c->r->sampling, i, "/set", name, real, &err) == MOE_OK;
    if (!(strcmp(name, "n") == 0 && strcmp(text, "none") == 0) && !moe_parse_u64(text, &whole))
        return false;
    *large = whole;
    return true;
}

static void set_setting(struct console *c, int i, const char *name, const char *text,
                        struct moe_err *err)
{
    struct moe_sampler_options *o = c->r->sampling, before = *o;
    struct moe_buf about = {0};
    if (!change_setting(c, i, name, text)) {
        put_about(&about, i, name);
        moe_buf_u8(&about, 0);
        if (!about.failed)
            fprintf(stderr, "'%s' is not a value of %s: %s\n", text, name,
                    (const char *)about.data);
        moe_buf_release(&about);
        return;
    }
    /* Unless the seed was set, the new sampler must not repeat the draws of the old one. */
    if (strcmp(name, "seed") != 0)
        o->seed++;
    if (console_new_sampler(c, err) != MOE_OK) {
        *o = before;
        cli_error(err);
        return;
    }
    console_tell(c, "%s is %s", name, text);
}

int command_set(struct console *c, const char *arg, struct moe_err *err)
{
    const char *const *names = setting_names();
    size_t n_name = strcspn(arg, " \t");
    const char *value = arg + n_name + strspn(arg + n_name, " \t");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)(n_name < 31 ? n_name : 31), arg);
    for (int i = 0; names[i]; i++) {
        if (!*arg)
            show_setting(c, i, names[i]);
        if (strcmp(name, names[i]) != 0)
            continue;
        if (*value)
            set_setting(c, i, name, value, err);
        else
            show_setting(c, i, name);
        return 0;
    }
    if (!*arg)
        return 0;
    const char *nearest = cli_nearest_name(name, names);
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
