#include "serve/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/mem.h"
#include "engine/prompt.h"
#include "serve/host_tier.h"
#include "serve/memory.h"

enum { MAX_TEMPLATE_BYTES = 4 << 20 };

/* ---- Names ---- */

/* A pack is a collection of one, named as its file is, without directory and ending. */
static int collect_one(struct moe_server *s, struct moe_err *err)
{
    const struct moe_server_options *o = &s->options;
    struct moe_coe_collection *c = moe_alloc(1, sizeof *c, err);
    s->own = c;
    if (!c || !(c->models = moe_alloc(1, sizeof *c->models, err)))
        return MOE_ERR_MEMORY;
    const char *slash = strrchr(o->pack, '/'), *name = slash ? slash + 1 : o->pack;
    const char *dot = strrchr(name, '.');
    int n = dot && dot > name ? (int)(dot - name) : (int)strlen(name);
    c->n_models = 1;
    c->models[0].probability = 1;
    if (o->name)
        snprintf(c->models[0].name, sizeof c->models[0].name, "%s", o->name);
    else
        snprintf(c->models[0].name, sizeof c->models[0].name, "%.*s", n, name);
    return MOE_OK;
}

static char *path_of(const struct moe_server *s, const char *pack, struct moe_err *err)
{
    if (s->own)
        pack = s->options.pack;
    else if (s->options.directory && pack[0] != '/')
        return moe_path_join(s->options.directory, pack, err);
    return moe_strndup(pack, strlen(pack), err);
}

/* Of all models, where the options say one. */
static int read_template(struct moe_server *s, struct moe_err *err)
{
    if (!s->options.template_file)
        return MOE_OK;
    int status = moe_file_read_all(s->options.template_file, MAX_TEMPLATE_BYTES, &s->template, err);
    moe_buf_u8(&s->template, 0);
    if (status == MOE_OK && s->template.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "%s: out of memory", s->options.template_file);
    s->template.size -= s->template.size > 0;
    return status;
}

int models_list(struct moe_server *s, struct moe_err *err)
{
    int status = s->options.collection ? MOE_OK : collect_one(s, err);
    if (status != MOE_OK)
        return status;
    const struct moe_coe_collection *c = s->own ? s->own : s->options.collection;
    s->collection = c;
    s->models = moe_alloc(c->n_models, sizeof *s->models, err);
    if (!s->models)
        return MOE_ERR_MEMORY;
    s->n_models = c->n_models;
    for (uint32_t i = 0; i < c->n_models; i++) {
        struct model *m = &s->models[i];
        m->name = moe_strndup(c->models[i].name, strlen(c->models[i].name), err);
        m->path = path_of(s, c->models[i].pack, err);
        if (!m->name || !m->path)
            return MOE_ERR_MEMORY;
    }
    for (uint32_t i = 0; i < c->n_follows; i++)
        s->models[c->follows[i].from].goes_on = true;
    return read_template(s, err);
}

void models_free(struct moe_server *s)
{
    for (uint32_t i = 0; s->models && i < s->n_models; i++) {
        free(s->models[i].name);
        free(s->models[i].path);
        free(s->models[i].broken);
    }
    moe_buf_release(&s->template);
    free(s->models);
    free(s->needs);
    moe_coe_collection_free(s->own);
}

/* ---- Loading ---- */

/* What a batch takes beside its session, of an engine that has all memory. */
static uint64_t beside(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    const struct moe_server *s = ctx;
    struct moe_session_options session = s->options.engine.session;
    session.n_sequences = s->options.sequences;
    session.batch = batch;
    return s->options.beside_bytes + s->request_bytes_max +
           moe_batch_bytes(&model->config, &session);
}

static struct moe_engine_options options_of(const struct executor *x, const struct model *m)
{
    struct moe_server *s = x->server;
    struct moe_engine_options o = s->options.engine;
    o.device = x->options.device;
    if (s->whole) {
        o.session.n_sequences = s->options.sequences;
        o.beside = beside;
        o.beside_ctx = s;
        return o;
    }
    o.shares = true;
    o.memory_bytes = x->options.device.cuda ? x->host_expert_bytes : memory_of_model(x, m);
    o.gpu_memory_bytes = memory_of_model(x, m);
    o.program_bytes = m->directory;
    return o;
}

/* What was read from disk for an engine that is open: from its pack itself, or through `image`. */
static uint64_t read_for(const struct moe_engine *e, const struct moe_pack_image *image,
                         bool was_there)
{
    uint64_t dense = e->gpu ? e->budget.gpu.dense : e->budget.dense;
    if (image->bytes)
        return was_there ? 0 : image->n;
    return dense + (e->strategy.resident ? e->budget.all : 0);
}

/* A model whose template cannot be used still completes texts. */
static int open_chat(const struct moe_server *s, const struct model *m, struct loaded *l,
                     struct moe_err *err)
{
    char name[128];
    const char *template = s->options.template_file ? (const char *)s->template.data : NULL;
    snprintf(name, sizeof name, "the chat template of '%s'", m->name);
    l->no_chat = (struct moe_err){0};
    int status = moe_prompt_open_chat(&l->chat, l->engine->model, name, template, s->template.size,
                                      &l->no_chat);
    return status == MOE_ERR_MEMORY ? moe_fail(err, status, "%s", l->no_chat.text) : MOE_OK;
}

int model_load(struct executor *x, uint32_t model, const struct moe_progress *progress,
               struct moe_err *err)
{
    struct moe_server *s = x->server;
    const struct model *m = &s->models[model];
    struct loaded *l = &x->loaded[model];
    if (m->broken)
        return moe_fail(err, m->broken_status, "%s", m->broken);
    struct moe_engine_options o = options_of(x, m);
    struct moe_pack_image image = {NULL, 0};
    int status = MOE_OK;
    l->from_host = false;
    if (memory_is_whole(x, m))
        status = host_tier_hold(s, model, x->options.device.cuda, &image, &l->from_host, err);
    if (status != MOE_OK)
        return status;
    o.image = image.bytes ? &image : NULL;
    status = moe_engine_open(&l->engine, m->path, &o, progress, err);
    if (image.bytes)
        host_tier_release(s, model, status != MOE_ERR_FORMAT);
    if (status != MOE_OK)
        return status;
    l->read_bytes = read_for(l->engine, &image, l->from_host);
    status = open_chat(s, m, l, err);
    if (status != MOE_OK) {
        moe_engine_close(l->engine);
        l->engine = NULL;
    }
    return status;
}

void model_unload(struct executor *x, uint32_t model)
{
    struct loaded *l = &x->loaded[model];
    moe_chat_free(l->chat);
    moe_engine_close(l->engine);
    free(l->why);
    l->chat = NULL;
    l->engine = NULL;
    l->why = NULL;
}
