/* /set and /stop: what changes how the next answers are drawn and end. */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/text.h"
#include "cli.h"
#include "commands.h"
#include "run_options.h"

/* ---- Numbers and tokens ---- */

/* Those of sampling come first, in the order of moe_sampling_field. */
const char *const *setting_names(void)
{
    static const char *names[32];
    int n = 0;
    for (const struct moe_sampling_field *f; (f = moe_sampling_field(n)) != NULL; n++)
        names[n] = f->option;
    names[n++] = "seed";
    names[n++] = "n";
    names[n++] = "min-tokens";
    names[n++] = "logit-bias";
    names[n++] = "stop-token-id"; /* NULL follows */
    return names;
}

/* The large numbers that are not of sampling; NULL: it is another setting. */
static uint64_t *large_of(struct console *c, const char *name)
{
    return strcmp(name, "seed") == 0         ? &c->r->sampling->seed
           : strcmp(name, "n") == 0          ? &c->r->max_tokens
           : strcmp(name, "min-tokens") == 0 ? &c->r->min_tokens
                                             : NULL;
}

/* Appends what values there are. */
static void put_about(struct moe_buf *out, int i, const char *name)
{
    static const char *const about[][2] = {
        {"seed", "a whole number"},
        {"n", "tokens of an answer, or none: as many as come"},
        {"min-tokens", "tokens of an answer at least"},
        {"logit-bias", "ids of tokens, each with what is added to its logit: 15043-1.5 220-inf; "
                       "or none"},
        {"stop-token-id", "ids of tokens that end an answer, or none"},
    };
    const struct moe_sampling_field *f = moe_sampling_field(i);
    if (f)
        moe_buf_printf(out, "%.10g to %.10g; %s", f->low, f->high, f->about);
    for (size_t k = 0; k < sizeof about / sizeof *about; k++)
        if (strcmp(name, about[k][0]) == 0)
            moe_buf_text(out, about[k][1]);
}

/* Appends a list of tokens as it is set. */
static void put_tokens(struct moe_buf *out, const struct console *c, const char *name)
{
    const struct moe_sampler_options *o = c->r->sampling;
    const bool biases = strcmp(name, "logit-bias") == 0;
    const uint64_t n = biases ? o->n_biases : c->r->stop_ids->n;
    for (uint64_t i = 0; i < n; i++)
        if (biases)
            moe_buf_printf(out, "%" PRIu32 "%+.10g ", o->biases[i].id, (double)o->biases[i].bias);
        else
            moe_buf_printf(out, "%" PRIu32 " ", c->r->stop_ids->ids[i]);
    if (n == 0)
        moe_buf_text(out, "none ");
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
    if (moe_sampling_value(c->r->sampling, model, i, &v))
        snprintf(value, sizeof value, "%.10g", v.value);
    else if (large && *large != UINT64_MAX)
        snprintf(value, sizeof value, "%" PRIu64, *large);
    moe_buf_printf(&row, "%-18s ", name);
    if (moe_sampling_field(i) || large)
        moe_buf_printf(&row, "%-8s ", value);
    else
        put_tokens(&row, c, name);
    moe_buf_printf(&row, "(%s", from[v.origin]);
    put_about(&row, i, name);
    moe_buf_text(&row, ")");
    moe_buf_u8(&row, 0);
    if (!row.failed)
        console_print((const char *)row.data);
    moe_buf_release(&row);
}

/* Puts a list of tokens in the place of the one before: of biases (allocated; the one before stays
 * for the caller to free) or of what ends answers. MOE_ERR_USAGE: the text is no such list. */
static int change_tokens(struct console *c, bool biased, const char *text, struct moe_err *err)
{
    static const char blanks[] = " \t,";
    const uint32_t vocab = c->r->conversation->session->model->config.vocab;
    struct moe_sampler_options *o = c->r->sampling;
    struct moe_logit_bias *biases = moe_alloc(strlen(text), sizeof *biases, err);
    struct moe_ids ids = {0};
    uint32_t n = 0;
    int status = biases ? MOE_OK : MOE_ERR_MEMORY;
    if (strcmp(text, "none") == 0)
        text += strlen(text);
    while (status == MOE_OK && *(text += strspn(text, blanks))) {
        char word[64];
        uint64_t id = UINT64_MAX;
        const size_t length = strcspn(text, blanks);
        snprintf(word, sizeof word, "%.*s", (int)(length < 63 ? length : 63), text);
        text += length;
        if (biased)
            id = run_options_bias(word, &biases[n]) ? biases[n++].id : UINT64_MAX;
        else if (!moe_parse_u64(word, &id))
            id = UINT64_MAX;
        status = id >= vocab ? MOE_ERR_USAGE : moe_ids_push(&ids, (uint32_t)id, err);
    }
    if (status == MOE_OK && biased) {
        o->biases = biases;
        o->n_biases = n;
        biases = NULL;
    } else if (status == MOE_OK) {
        moe_ids_release(c->r->stop_ids);
        *c->r->stop_ids = ids;
        ids = (struct moe_ids){0};
    }
    free(biases);
    moe_ids_release(&ids);
    return status;
}

/* MOE_ERR_USAGE: the text is no value of it. */
static int change_setting(struct console *c, int i, const char *name, const char *text,
                          struct moe_err *err)
{
    uint64_t *large = large_of(c, name), whole = UINT64_MAX;
    double real;
    if (moe_sampling_field(i))
        return moe_parse_double(text, &real)
                   ? moe_sampling_take(c->r->sampling, i, "/set", name, real, err)
                   : MOE_ERR_USAGE;
    if (!large)
        return change_tokens(c, strcmp(name, "logit-bias") == 0, text, err);
    if (!(strcmp(name, "n") == 0 && strcmp(text, "none") == 0) && !moe_parse_u64(text, &whole))
        return MOE_ERR_USAGE;
    *large = whole;
    return MOE_OK;
}

static void set_setting(struct console *c, int i, const char *name, const char *text,
                        struct moe_err *err)
{
    struct moe_sampler_options *o = c->r->sampling, before = *o;
    struct moe_buf about = {0};
    int status = change_setting(c, i, name, text, err);
    if (status == MOE_ERR_USAGE || status == MOE_ERR_FORMAT) {
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
    if (status == MOE_OK)
        status = console_new_sampler(c, err);
    const struct moe_logit_bias *left = status == MOE_OK ? before.biases : o->biases;
    if (o->biases != before.biases)
        free((void *)left);
    if (status != MOE_OK) {
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
