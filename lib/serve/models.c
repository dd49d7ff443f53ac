#include "serve/models.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"

/* ---- Names ---- */

/* A pack's name: its file's, without directory and ending; free() it. */
static char *name_of(const char *path, struct moe_err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const char *dot = strrchr(name, '.');
    return moe_strndup(name, dot && dot > name ? (uint64_t)(dot - name) : strlen(name), err);
}

static int list_one(struct moe_server *s, struct moe_err *err)
{
    const struct moe_server_options *o = &s->options;
    struct model *m = &s->models[0];
    m->name = o->name ? moe_strndup(o->name, strlen(o->name), err) : name_of(o->pack, err);
    m->path = moe_strndup(o->pack, strlen(o->pack), err);
    return m->name && m->path ? MOE_OK : MOE_ERR_MEMORY;
}

static int list_collection(struct moe_server *s, struct moe_err *err)
{
    const struct moe_coe_collection *c = s->options.collection;
    for (uint32_t i = 0; i < c->n_models; i++) {
        struct model *m = &s->models[i];
        const char *pack = c->models[i].pack;
        m->name = moe_strndup(c->models[i].name, strlen(c->models[i].name), err);
        m->path = s->options.directory && pack[0] != '/'
                      ? moe_path_join(s->options.directory, pack, err)
                      : moe_strndup(pack, strlen(pack), err);
        if (!m->name || !m->path)
            return MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < c->n_follows; i++)
        s->models[c->follows[i].from].goes_on = true;
    return MOE_OK;
}

int models_list(struct moe_server *s, struct moe_err *err)
{
    const struct moe_coe_collection *c = s->options.collection;
    s->n_models = c ? c->n_models : 1;
    s->models = moe_alloc(s->n_models, sizeof *s->models, err);
    if (!s->models)
        return MOE_ERR_MEMORY;
    return c ? list_collection(s, err) : list_one(s, err);
}

void models_free(struct moe_server *s)
{
    for (uint32_t i = 0; s->models && i < s->n_models; i++) {
        free(s->models[i].name);
        free(s->models[i].path);
    }
    free(s->models);
}

/* ---- Loading ---- */

/* What a batch takes beside its session. */
static uint64_t beside(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    const struct moe_server *s = ctx;
    struct moe_session_options session = s->options.engine.session;
    session.n_sequences = s->options.sequences;
    session.batch = batch;
    return s->options.beside_bytes + moe_batch_bytes(&model->config, &session);
}

int model_load(struct executor *x, uint32_t model, const struct moe_progress *progress,
               struct moe_err *err)
{
    struct moe_server *s = x->server;
    struct loaded *l = &x->loaded[model];
    struct moe_engine_options o = s->options.engine;
    o.device = x->options.device;
    o.session.n_sequences = s->options.sequences;
    o.beside = beside;
    o.beside_ctx = s;
    int status = moe_engine_open(&l->engine, s->models[model].path, &o, progress, err);
    if (status != MOE_OK)
        return status;
    const char *jinja = l->engine->model->chat_template;
    l->format = s->options.format ? s->options.format : jinja[0] ? moe_chat_recognise(jinja) : NULL;
    x->counts.loads++;
    s->memory_bytes = l->engine->budget.total;
    s->floor_bytes = l->engine->budget.floor;
    return MOE_OK;
}

void model_unload(struct executor *x, uint32_t model)
{
    moe_engine_close(x->loaded[model].engine);
    x->loaded[model].engine = NULL;
}
