/* Which names a server's models have, and what clients are told of them. */
#define _POSIX_C_SOURCE 200809L /* pthread */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "serve/server_internal.h"

/* The name for requests without a model, if rules lead to models. */
#define BY_RULES "auto"
/* What clients of Ollama add to names. */
#define LATEST ":latest"

/* ---- Names ---- */

const char *moe_server_model(const struct moe_server *s, uint32_t i)
{
    const struct moe_coe_collection *c = s->collection;
    uint32_t n_rules = c->n_routes || c->n_scores;
    if (i < s->n_models)
        return s->models[i].name;
    i -= s->n_models;
    if (i < n_rules)
        return BY_RULES;
    i -= n_rules;
    return i < s->n_aliases ? s->aliases[i].name : NULL;
}

/* Refuses a name, and lists those served. */
static int refuse_name(const struct moe_server *s, const char *name, struct moe_err *err)
{
    char names[256] = "";
    const char *served;
    for (uint32_t i = 0; (served = moe_server_model(s, i)) != NULL; i++) {
        size_t n = strlen(names);
        if (n + strlen(served) + sizeof ", ..." > sizeof names) {
            strcpy(names + n, ", ...");
            break;
        }
        snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", served);
    }
    return moe_fail(err, MOE_ERR_USAGE, "the model '%.100s' is not served here; these are: %s",
                    name, names);
}

/* Whether the first n bytes are the whole of a name. */
static bool is_name(const char *name, const char *bytes, size_t n)
{
    return strlen(name) == n && memcmp(name, bytes, n) == 0;
}

/* The model whose name, or alias, the first n bytes are. */
static uint32_t find_bytes(const struct moe_server *s, const char *bytes, size_t n)
{
    for (uint32_t i = 0; i < s->n_models; i++)
        if (is_name(s->models[i].name, bytes, n))
            return i;
    for (uint32_t i = 0; i < s->n_aliases; i++)
        if (is_name(s->aliases[i].name, bytes, n))
            return s->aliases[i].model;
    return MOE_COE_NONE;
}

static uint32_t find_name(const struct moe_server *s, const char *name)
{
    size_t n = name ? strlen(name) : 0, m = strlen(LATEST);
    uint32_t found = name ? find_bytes(s, name, n) : MOE_COE_NONE;
    if (found == MOE_COE_NONE && n > m && strcmp(name + n - m, LATEST) == 0)
        found = find_bytes(s, name, n - m);
    return found;
}

static bool takes_any_name(const struct moe_server *s)
{
    return s->own ? !s->options.strict_names : s->options.any_name;
}

static const char *field(void *ctx, const char *name)
{
    return moe_request_field(ctx, name);
}

int model_choose(const struct moe_server *s, struct moe_request *r, uint32_t *model,
                 struct moe_err *err)
{
    *model = find_name(s, r->model);
    if (*model != MOE_COE_NONE)
        return MOE_OK;
    if (r->model && strcmp(r->model, BY_RULES) != 0 && !takes_any_name(s))
        return refuse_name(s, r->model, err);
    *model = s->own ? 0 : moe_coe_route(s->collection, field, r);
    if (*model == MOE_COE_NONE && s->options.any_name)
        *model = 0;
    if (*model == MOE_COE_NONE)
        return moe_fail(err, MOE_ERR_USAGE,
                        "no rule of the collection accepts the request: name a 'model'");
    return MOE_OK;
}

bool model_answers_as(const struct moe_server *s, const char *name)
{
    return name && (s->own || find_name(s, name) != MOE_COE_NONE);
}

/* ---- Aliases ---- */

int aliases_list(struct moe_server *s, struct moe_err *err)
{
    const char *const *given = s->options.aliases;
    uint32_t n = 0;
    while (given && given[n])
        n++;
    if (n && !(s->aliases = moe_alloc(n, sizeof *s->aliases, err)))
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        const char *equals = strchr(given[i], '='), *of = equals ? equals + 1 : NULL;
        size_t length = equals ? (size_t)(equals - given[i]) : strlen(given[i]);
        struct alias a = {.model = of ? find_bytes(s, of, strlen(of)) : s->own ? 0 : MOE_COE_NONE};
        if (!of && !s->own)
            return moe_fail(err, MOE_ERR_USAGE,
                            "the alias '%s' is of no model: a collection takes NAME=MODEL",
                            given[i]);
        if (a.model == MOE_COE_NONE)
            return moe_fail(err, MOE_ERR_USAGE, "the alias '%s': there is no model '%s'", given[i],
                            of);
        if (length == 0 || is_name(BY_RULES, given[i], length) ||
            find_bytes(s, given[i], length) != MOE_COE_NONE)
            return moe_fail(err, MOE_ERR_USAGE, "the alias '%.*s' is %s", (int)length, given[i],
                            length ? "a name already" : "empty");
        if (!(a.name = moe_strndup(given[i], length, err)))
            return MOE_ERR_MEMORY;
        s->aliases[s->n_aliases++] = a;
    }
    return MOE_OK;
}

void aliases_free(struct moe_server *s)
{
    for (uint32_t i = 0; i < s->n_aliases; i++)
        free(s->aliases[i].name);
    free(s->aliases);
}

/* ---- What is known of a model ---- */

static void describe_model(struct moe_server *s, uint32_t model, struct moe_server_model *out)
{
    const struct model *m = &s->models[model];
    struct stat file;
    out->model = m->name;
    out->modified = stat(m->path, &file) == 0 ? (int64_t)file.st_mtime : 0;
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->n_executors; i++)
        out->loaded |= s->executors[i].loaded[model].state == MODEL_READY;
    out->chats = m->chats;
    out->calls = m->calls;
    out->thinks = m->thinks;
    pthread_mutex_unlock(&s->mutex);
    if (m->is_broken)
        return;
    const struct moe_needs *needs = &s->needs[m->kind];
    out->file_bytes = m->file_bytes;
    out->fingerprint = m->fingerprint;
    out->parameters = m->parameters;
    out->weights = m->weights;
    out->format = m->format;
    out->sampling = &m->sampling;
    out->family = needs->config.family;
    out->context = memory_context(s, needs);
    out->most_context = needs->config.context_max;
    out->vocab = needs->config.vocab;
    out->hidden = needs->config.hidden;
    out->n_layers = needs->config.n_layers;
}

bool moe_server_describe(struct moe_server *s, uint32_t i, struct moe_server_model *out)
{
    *out = (struct moe_server_model){
        .name = moe_server_model(s, i), .family = "", .weights = "", .format = ""};
    uint32_t model = out->name ? find_name(s, out->name) : MOE_COE_NONE;
    if (model != MOE_COE_NONE)
        describe_model(s, model, out);
    return out->name != NULL;
}

int moe_server_describe_name(struct moe_server *s, const char *name, bool listed,
                             struct moe_server_model *out, struct moe_err *err)
{
    uint32_t model = find_name(s, name);
    bool served = model != MOE_COE_NONE || strcmp(name, BY_RULES) == 0 || s->options.any_name ||
                  (!listed && takes_any_name(s));
    *out = (struct moe_server_model){.name = name, .family = "", .weights = "", .format = ""};
    if (model == MOE_COE_NONE && s->own && served)
        model = 0;
    if (model != MOE_COE_NONE)
        describe_model(s, model, out);
    return served ? MOE_OK : refuse_name(s, name, err);
}

void moe_server_template(struct moe_server *s, const char *name, struct moe_buf *out)
{
    const uint32_t model = find_name(s, name), m = model == MOE_COE_NONE ? 0 : model;
    bool found = s->options.template_file != NULL;
    if (found)
        moe_buf_append(out, s->template.data, s->template.size);
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->n_executors && !found; i++) {
        const struct loaded *l = &s->executors[i].loaded[m];
        uint64_t n;
        if (l->state != MODEL_READY)
            continue;
        const uint8_t *text = moe_pack_section(l->engine->model->pack, MOE_PACK_CHAT, &n);
        moe_buf_append(out, text, text ? n : 0);
        found = true;
    }
    pthread_mutex_unlock(&s->mutex);
}

uint32_t moe_server_sequences(const struct moe_server *s)
{
    return s->options.sequences;
}
