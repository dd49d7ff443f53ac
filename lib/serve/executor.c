/* Executors: one thread each, which loads models and computes their answers. */
#define _POSIX_C_SOURCE 200809L /* pthread */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "engine/prompt.h"
#include "gpu.h"
#include "serve/server_internal.h"

/* ---- Dispatching ---- */

/* Assumed before anything is measured: the proportions of a small model on an SSD. */
#define FIRST_K 0.2     /* seconds for each request */
#define FIRST_B 0.1     /* ... and for each batch */
#define FIRST_RATE 1e9  /* bytes per second of a load */
#define HOST_RATE 1e10  /* ... from main memory, onto a GPU */
#define LEARN_SHARE 0.2 /* weight of the latest measurement in predictions */

static const char *const processors[] = {"cpu", "cuda"};
enum { N_PROCESSORS = sizeof processors / sizeof *processors };

static uint32_t processor_of(const struct executor *x)
{
    return x->options.device.cuda ? 1 : 0;
}

/* ---- Costs ---- */

/* Assumed costs of the server's kinds, until something is measured. */
static int guess_costs(const struct moe_server *s, struct moe_coe_costs **out, struct moe_err *err)
{
    struct moe_coe_costs *c = moe_alloc(1, sizeof *c, err);
    *out = c;
    if (!c)
        return MOE_ERR_MEMORY;
    uint32_t n_kinds = s->n_kinds;
    c->processors = moe_alloc(N_PROCESSORS, sizeof *c->processors, err);
    c->kinds = moe_alloc(n_kinds, sizeof *c->kinds, err);
    c->costs = moe_alloc((uint64_t)n_kinds * N_PROCESSORS, sizeof *c->costs, err);
    c->models = moe_alloc(s->n_models, sizeof *c->models, err);
    if (!c->processors || !c->kinds || !c->costs || !c->models)
        return MOE_ERR_MEMORY;
    for (; c->n_processors < N_PROCESSORS; c->n_processors++)
        snprintf(c->processors[c->n_processors].name, sizeof c->processors[0].name, "%s",
                 processors[c->n_processors]);
    for (; c->n_kinds < n_kinds; c->n_kinds++) {
        snprintf(c->kinds[c->n_kinds].name, sizeof c->kinds[0].name, "kind-%u", c->n_kinds);
        for (uint32_t on = 0; on < N_PROCESSORS; on++)
            c->costs[c->n_costs++] = (struct moe_coe_kind_cost){
                .cost = {.per_request = FIRST_K, .per_batch = FIRST_B, .max_batch = UINT32_MAX},
                .kind = c->n_kinds,
                .on = on};
    }
    for (; c->n_models < s->n_models; c->n_models++) {
        const struct model *m = &s->models[c->n_models];
        struct moe_coe_model_cost *to = &c->models[c->n_models];
        *to = (struct moe_coe_model_cost){.probability = -1, .kind = m->kind};
        snprintf(to->name, sizeof to->name, "%s", m->name);
        snprintf(to->architecture, sizeof to->architecture, "kind-%u", m->kind);
        for (uint32_t on = 0; on < N_PROCESSORS; on++) {
            struct moe_coe_cost *cost = &c->costs[m->kind * N_PROCESSORS + on].cost;
            double seconds = (double)m->file_bytes / FIRST_RATE;
            cost->load = seconds > cost->load ? seconds : cost->load;
            cost->load_from_host = cost->load * FIRST_RATE / HOST_RATE;
        }
    }
    return MOE_OK;
}

/* Threads of a processor's executors, which are alike; 0: none. */
static uint32_t team_on(const struct moe_server *s, uint32_t processor)
{
    uint32_t i = 0;
    while (i < s->n_executors && processor_of(&s->executors[i]) != processor)
        i++;
    return i < s->n_executors ? (uint32_t)s->executors[i].options.n_threads : 0;
}

/* Sets the experts of dispatch, their sizes on each executor, and costs for each processor. */
static int describe_models(struct moe_server *s, const struct moe_coe_costs *c, struct moe_err *err)
{
    MOE_TRY(moe_coe_costs_experts(&s->all, c, s->collection, NULL, err));
    s->sizes = moe_alloc((uint64_t)s->n_executors * s->n_models, sizeof *s->sizes, err);
    if (!s->sizes)
        return MOE_ERR_MEMORY;
    for (uint32_t k = 0; k < s->n_executors; k++) {
        uint64_t *sizes = s->sizes + (uint64_t)k * s->n_models;
        for (uint32_t i = 0; i < s->n_models; i++)
            sizes[i] = memory_as_listed(&s->executors[k], &s->models[i]);
        s->size_rows[k] = sizes;
    }
    for (uint32_t p = 0; p < N_PROCESSORS; p++) {
        s->costs[p] = moe_alloc(s->all->n_kinds, sizeof *s->costs[p], err);
        if (!s->costs[p])
            return MOE_ERR_MEMORY;
        s->processors[p] = moe_coe_costs_processor(c, processors[p]);
        if (s->processors[p] != MOE_COE_NONE)
            moe_coe_costs_table(c, s->processors[p], team_on(s, p), s->costs[p]);
    }
    for (uint32_t i = 0; i < s->n_executors; i++)
        if (s->processors[processor_of(&s->executors[i])] == MOE_COE_NONE)
            return moe_fail(err, MOE_ERR_USAGE, "the costs have no processor '%s'",
                            processors[processor_of(&s->executors[i])]);
    return MOE_OK;
}

/* Limits batches to the sessions that memory allows. */
static int limit_batches(struct moe_server *s, struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n_executors && !s->whole; i++)
        for (uint32_t m = 0; m < s->n_models; m++) {
            struct moe_session_options o;
            struct moe_coe_cost *cost =
                &s->costs[processor_of(&s->executors[i])][s->all->experts[m].kind];
            uint32_t on = s->processors[processor_of(&s->executors[i])];
            if (s->models[m].is_broken || s->all->experts[m].not_on >> on & 1)
                continue;
            int status = memory_session(&s->executors[i], &s->models[m], &o, err);
            if (status != MOE_OK)
                return status;
            cost->max_batch = o.n_sequences < cost->max_batch ? o.n_sequences : cost->max_batch;
        }
    return MOE_OK;
}

/* ---- Opening ---- */

static bool in_host(const void *ctx, uint32_t model)
{
    return host_tier_has(ctx, model);
}

static int open_dispatch(struct moe_server *s, struct moe_err *err)
{
    const struct moe_coe_schedule *schedule = s->options.schedule;
    struct moe_coe_executor_options executors[MOE_SERVER_MAX_EXECUTORS] = {0};
    for (uint32_t i = 0; i < s->n_executors; i++) {
        const struct executor *x = &s->executors[i];
        executors[i] = (struct moe_coe_executor_options){
            .costs = s->costs[processor_of(x)],
            .expert_bytes = x->expert_bytes,
            .batch_bytes = x->batch_bytes,
            .processor = s->processors[processor_of(x)],
        };
    }
    const struct moe_coe_options o = {
        .all = s->all,
        .n_executors = s->n_executors,
        .executors = executors,
        .sizes = s->size_rows,
        .in_host = in_host,
        .ctx = s,
        .arrange = schedule->arrange,
        .assign = schedule->assign,
        .evict = s->options.evict,
    };
    return moe_coe_dispatch_open(&s->dispatch, &o, err);
}

int dispatching_open(struct moe_server *s, struct moe_err *err)
{
    struct moe_coe_costs *guessed = NULL;
    int status;
    MOE_STEP(s->options.costs ? MOE_OK : guess_costs(s, &guessed, err));
    MOE_STEP(describe_models(s, guessed ? guessed : s->options.costs, err));
    MOE_STEP(limit_batches(s, err));
    MOE_STEP(open_dispatch(s, err));
out:
    moe_coe_costs_free(guessed);
    return status;
}

void dispatching_close(struct moe_server *s)
{
    moe_coe_dispatch_close(s->dispatch);
    moe_coe_experts_free(s->all);
    free(s->sizes);
    for (uint32_t p = 0; p < N_PROCESSORS; p++)
        free(s->costs[p]);
}

/* ---- Learning ---- */

static void learn_cost(double *value, double seen)
{
    *value += LEARN_SHARE * (seen - *value);
}

static struct moe_coe_cost *cost_of(struct executor *x, uint32_t model)
{
    struct moe_server *s = x->server;
    return &s->costs[processor_of(x)][s->all->experts[model].kind];
}

/* Update the predicted costs from the time that a batch of n jobs, or loading a model, took, unless
 * the costs were measured beforehand. Under the mutex. */
static void dispatching_learn_batch(struct executor *x, uint32_t model, uint32_t n, double seconds)
{
    struct moe_coe_cost *cost = cost_of(x, model);
    double each = n ? (seconds - cost->per_batch) / n : 0;
    if (!x->server->options.costs && each > 0)
        learn_cost(&cost->per_request, each);
}

static void dispatching_learn_load(struct executor *x, uint32_t model, double seconds)
{
    struct moe_coe_cost *cost = cost_of(x, model);
    if (!x->server->options.costs)
        learn_cost(x->loaded[model].from_host ? &cost->load_from_host : &cost->load, seconds);
}

enum { MAX_TEMPLATE_BYTES = 4 << 20 };

/* ---- Names ---- */

/* Makes a collection of one pack, named like its file without directory and ending. */
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

/* Reads the template for all models, if the options name one. */
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
    if (!s->options.collection)
        MOE_TRY(collect_one(s, err));
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
    MOE_TRY(aliases_list(s, err));
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
    aliases_free(s);
    free(s->models);
    free(s->needs);
    moe_coe_collection_free(s->own);
}

/* ---- Loading ---- */

/* What a batch takes beside its session, in an engine that has all memory. */
static uint64_t session_beside_bytes(const void *ctx, const struct moe_model *model, uint32_t batch)
{
    const struct moe_server *s = ctx;
    struct moe_session_options session = s->options.engine.session;
    session.n_sequences = s->options.sequences;
    session.batch = batch;
    return s->options.beside_bytes + s->request_bytes_max +
           (1 + s->n_executors) * s->reading_bytes + moe_generator_bytes(&model->config, &session);
}

static struct moe_engine_options options_of(const struct executor *x, const struct model *m)
{
    struct moe_server *s = x->server;
    struct moe_engine_options o = s->options.engine;
    o.first_token_first = s->n_models == 1; /* of several, loads are timed and come in turn */
    o.passes = &s->passes;
    o.device = x->options.device;
    if (s->whole) {
        o.session.n_sequences = s->options.sequences;
        o.beside = session_beside_bytes;
        o.beside_ctx = s;
        return o;
    }
    o.shares = true;
    o.memory_bytes = x->options.device.cuda ? x->host_expert_bytes : memory_of_model(x, m);
    o.gpu_memory_bytes = memory_of_model(x, m);
    o.program_bytes = 0; /* the server's own is counted apart from its models */
    struct moe_session_options session;
    struct moe_err none;
    if (memory_session(x, m, &session, &none) == MOE_OK && session.kv_grows) {
        session.context = o.session.context ? o.session.context : session.context;
        o.session = session;
        o.grows = true;
    }
    return o;
}

/* Bytes read from disk while an engine opened: from its pack itself, or through `image`. */
static uint64_t read_for(const struct moe_engine *e, const struct moe_pack_image *image,
                         bool was_there)
{
    uint64_t dense = e->gpu ? e->budget.gpu.dense : e->budget.host.dense;
    if (image->bytes)
        return was_there ? 0 : image->n;
    return dense + (e->strategy.resident && !e->arriving ? e->budget.all : 0);
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

/* Has a model in the executor's memory. On errors it is not there. */
static int model_load(struct executor *x, uint32_t model, const struct moe_progress *progress,
                      struct moe_err *err)
{
    struct moe_server *s = x->server;
    const struct model *m = &s->models[model];
    struct loaded *l = &x->loaded[model];
    if (m->is_broken)
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
    if (o.learn && l->engine->strategy.resident && s->options.prompt_cache.tell)
        s->options.prompt_cache.tell(
            "--learn: nothing is learnt, because every expert is in memory");
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
    void (*tell)(const char *line) = x->server->options.prompt_cache.tell;
    struct moe_err err;
    if (l->engine && moe_engine_save_learnt(l->engine, &err) != MOE_OK && tell)
        tell(err.text);
    moe_chat_free(l->chat);
    moe_engine_close(l->engine);
    free(l->why);
    l->chat = NULL;
    l->engine = NULL;
    l->why = NULL;
}

/* ---- Models ---- */

/* Removes the models that must leave; only one of the executor's threads may call it at a time. The
 * mutex is held before and after. */
static void unload_leaving(struct executor *x)
{
    struct moe_server *s = x->server;
    for (uint32_t m = 0; m < s->n_models; m++) {
        struct loaded *l = &x->loaded[m];
        if (!l->leaves)
            continue;
        bool there = l->state == MODEL_READY;
        l->leaves = false;
        l->state = MODEL_ABSENT;
        pthread_mutex_unlock(&s->mutex);
        model_unload(x, m);
        pthread_mutex_lock(&s->mutex);
        x->counts.models_bytes -= there ? memory_of_model(x, &s->models[m]) : 0;
    }
}

/* Notes what clients may ask about it, of an engine that has all memory also what was not known
 * before. Under the mutex. */
static void note_loaded(struct moe_server *s, struct model *m, const struct loaded *l)
{
    const struct moe_chat *chat = l->chat;
    if (s->whole) {
        s->needs[0].config = l->engine->model->config;
        m->sampling = l->engine->model->sampling;
        m->file_bytes = moe_pack_file_bytes(l->engine->model->pack);
        m->fingerprint = moe_pack_fingerprint(l->engine->model->pack);
    }
    m->chats = chat != NULL;
    m->calls = m->thinks = false;
    if (chat)
        moe_chat_can(chat, &m->calls, &m->thinks);
}

/* Loads a model and notes the result. The mutex is held before and after. */
static void load_model(struct executor *x, uint32_t model)
{
    struct moe_server *s = x->server;
    struct loaded *l = &x->loaded[model];
    struct moe_err err;
    double began = moe_seconds();
    l->state = MODEL_LOADING;
    pthread_mutex_unlock(&s->mutex);
    int status = model_load(x, model, s->opening, &err);
    char *why = status == MOE_OK ? NULL : moe_strndup(err.text, strlen(err.text), NULL);
    pthread_mutex_lock(&s->mutex);
    if (status == MOE_OK) {
        l->state = MODEL_READY;
        note_loaded(s, &s->models[model], l);
        x->counts.loads++;
        x->counts.host_loads += l->from_host;
        x->counts.bytes_read += l->read_bytes;
        if (!s->counts.inexact[0])
            memcpy(s->counts.inexact, l->engine->exactness.why, sizeof s->counts.inexact);
        x->counts.models_bytes += memory_of_model(x, &s->models[model]);
        dispatching_learn_load(x, model, moe_seconds() - began);
    } else {
        l->state = MODEL_FAILED;
        l->status = status;
        l->why = why;
    }
}

void executor_load(struct executor *x, uint32_t model)
{
    struct moe_server *s = x->server;
    pthread_mutex_lock(&s->mutex);
    load_model(x, model);
    if (x->loaded[model].state == MODEL_FAILED && !s->own) { /* who asks for it tries again */
        moe_coe_forget(s->dispatch, x->index, model);
        x->loaded[model].state = MODEL_ABSENT;
        model_unload(x, model);
    }
    pthread_mutex_unlock(&s->mutex);
}

/* Marks evicted models, which dispatch names until its next call. Under the mutex. */
static void note_leaving(struct executor *x, const struct moe_coe_batch *batch)
{
    for (uint32_t i = 0; i < batch->n_evicted; i++)
        x->loaded[batch->evicted[i]].leaves = true;
}

/* Keeps the oldest text that waits for it on disk; without a free sequence it is lost. */
static void keep_oldest(struct executor *x)
{
    const uint32_t sequence = moe_generator_free_sequence(x->batch);
    moe_prompt_cache_save_oldest(x->server->prompt_cache, &x->unkept, x->loaded[x->model].engine,
                                 sequence);
}

static void close_batch(struct executor *x)
{
    if (!x->batch)
        return;
    struct moe_server *s = x->server;
    while (x->unkept.n)
        keep_oldest(x);
    pthread_mutex_lock(&s->mutex);
    job_count(x);
    s->counts.preempted += moe_generator_state(x->batch)->n_preempted;
    pthread_mutex_unlock(&s->mutex);
    moe_generator_close(x->batch);
    if (!s->whole)
        moe_engine_close_session(x->loaded[x->model].engine);
    x->batch = NULL;
    x->model = MOE_COE_NONE;
}

/* Opens a session and a batch for a loaded model. */
static int open_batch(struct executor *x, uint32_t model, struct moe_err *err)
{
    const struct moe_server *s = x->server;
    struct moe_engine *engine = x->loaded[model].engine;
    struct moe_session_options o;
    int status = MOE_OK;
    if (x->model == model)
        return MOE_OK;
    close_batch(x);
    if (!s->whole)
        status = memory_session(x, &s->models[model], &o, err);
    if (status == MOE_OK && !s->whole) {
        o.kv_grows = engine->apart;
        status = moe_engine_open_session(engine, &o, err);
    }
    if (status != MOE_OK)
        return status;
    if (!s->whole && engine->gpu) /* the rest of both parts is for recordings */
        moe_gpu_set_budget(engine->gpu, memory_of_model(x, &s->models[model]) + x->batch_bytes);
    status = moe_generator_open(&x->batch, engine->session, engine->session->n_sequences, 0, err);
    if (status != MOE_OK) {
        if (!s->whole)
            moe_engine_close_session(engine);
        return status;
    }
    x->model = model;
    x->room = engine->session->n_sequences;
    x->seen = engine->session->stats;
    x->seen_changes = moe_engine_changes(engine);
    return MOE_OK;
}

/* Makes sure the batch's model is there: waits for the loader, or loads it. The mutex is held
 * before and after. */
static int have_model(struct executor *x, const struct moe_coe_batch *batch, struct moe_err *err)
{
    struct moe_server *s = x->server;
    struct loaded *l = &x->loaded[batch->expert];
    double began = moe_seconds();
    note_leaving(x, batch);
    if (x->model != MOE_COE_NONE && x->model != batch->expert) {
        pthread_mutex_unlock(&s->mutex);
        close_batch(x); /* the new model needs its memory */
        pthread_mutex_lock(&s->mutex);
    }
    while (x->to_load != MOE_COE_NONE && (batch->load || x->to_load == batch->expert))
        pthread_cond_wait(&x->is_loaded, &s->mutex);
    if (batch->load) {
        unload_leaving(x);
        load_model(x, batch->expert);
    }
    x->counts.load_seconds += moe_seconds() - began;
    if (l->state == MODEL_READY)
        return MOE_OK;
    int status = moe_fail(err, l->status, "%s", l->why ? l->why : "out of memory");
    l->state = MODEL_ABSENT;
    model_unload(x, batch->expert); /* also frees the reason */
    return status;
}

/* Lets the loader bring the next model. Under the mutex. */
static void prefetch(struct executor *x)
{
    struct moe_coe_batch what;
    if (x->server->options.no_prefetch || x->to_load != MOE_COE_NONE || !x->has_loader ||
        !moe_coe_prefetch(x->server->dispatch, x->index, &what))
        return;
    note_leaving(x, &what);
    x->to_load = what.expert;
    x->counts.prefetched++;
    pthread_cond_signal(&x->load);
}

/* The loader's thread. */
static void *run_loader(void *arg)
{
    struct executor *x = arg;
    struct moe_server *s = x->server;
    moe_par_alone(true);
    pthread_mutex_lock(&s->mutex);
    while (!s->closing) {
        if (x->to_load == MOE_COE_NONE) {
            pthread_cond_wait(&x->load, &s->mutex);
            continue;
        }
        unload_leaving(x);
        load_model(x, x->to_load);
        x->to_load = MOE_COE_NONE;
        pthread_cond_signal(&x->is_loaded);
    }
    x->to_load = MOE_COE_NONE;
    pthread_cond_signal(&x->is_loaded);
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

/* ---- Jobs ---- */

static void begin_all(struct executor *x, struct moe_coe_request *list, int status,
                      const struct moe_err *err)
{
    for (struct moe_coe_request *r = list, *next; r; r = next) {
        next = r->next; /* r may be gone afterwards */
        if (status == MOE_OK)
            job_begin(x, (struct job *)r);
        else if (status == MOE_ERR_INTERRUPTED) /* the server ends */
            job_end(x, (struct job *)r, MOE_OK, NULL);
        else
            job_end(x, (struct job *)r, status, err);
    }
}

/* Marks requests that left the queue. Under the mutex. */
static void mark_taken(struct moe_coe_request *list)
{
    for (struct moe_coe_request *r = list; r; r = r->next) {
        ((struct job *)r)->state = JOB_TAKEN;
        ((struct job *)r)->taken = true;
    }
}

/* Ends cancelled jobs; the mutex is held before and after. */
static void end_cancelled(struct executor *x)
{
    struct moe_server *s = x->server;
    struct job *j;
    while ((j = x->cancelled) != NULL) {
        x->cancelled = j->next_cancelled;
        pthread_mutex_unlock(&s->mutex);
        if (j->in_batch)
            job_stop(x, j);
        else
            job_end(x, j, MOE_OK, NULL);
        pthread_mutex_lock(&s->mutex);
    }
}

/* Whether a request for another model has waited long enough to go first. Under the mutex. */
static bool others_first(const struct executor *x, uint32_t model)
{
    const struct moe_server *s = x->server;
    const struct moe_coe_request *other = moe_coe_other(s->dispatch, x->index, model);
    return other && moe_seconds() - ((const struct job *)other)->came > s->options.patience;
}

/* ---- Turns ---- */

/*
 * Clients share the places of a batch. One goes to who has the fewest, and of these to who was
 * given least, in positions computed. Where all are taken a client that has two more than another
 * gives one of them to it, and one that has one more does so after a turn of TURN tokens, if it was
 * given more by as many. What rests keeps its text: most of it is found in the KV cache when it
 * goes on.
 */
enum { TURN = 64 };

static bool comes_before(const struct job *a, const struct job *b)
{
    return moe_coe_client_before(&a->of->client->turn, &b->of->client->turn);
}

/* Of the jobs that rest the one whose turn it is; NULL: none. */
static struct job *next_resting(const struct executor *x)
{
    struct job *best = NULL;
    for (struct job *j = x->jobs; j; j = j->next)
        if (j->rests && !j->cancelled && (!best || !comes_before(best, j)))
            best = j; /* of one client's, the first that came */
    return best;
}

/* The running job that gives its place to a client that waits; NULL: none has to. */
static struct job *who_gives_way(const struct executor *x, const struct moe_coe_client *to)
{
    struct job *last = NULL;
    for (struct job *j = x->jobs; j; j = j->next) {
        const struct moe_coe_client *has = &j->of->client->turn;
        bool turn_is_over =
            j->work.decoded - j->turn_began.decoded >= TURN && has->given > to->given + TURN;
        if (!j->rests && j->taken && has != to && !j->cancelled &&
            has->running > to->running + (turn_is_over ? 0 : 1) && (!last || comes_before(last, j)))
            last = j;
    }
    return last;
}

/* The next job that gets a place. *resumed: it rested; else the caller begins it. NULL: none. The
 * mutex is held before and after. */
static struct job *next_job(struct executor *x, bool *resumed)
{
    struct moe_server *s = x->server;
    const struct moe_coe_client *client;
    struct job *rested = next_resting(x), *other;
    bool waits = !s->closing && !others_first(x, x->model) &&
                 moe_coe_more_of(s->dispatch, x->index, &client);
    uint32_t n;
    if (!rested && !waits)
        return NULL;
    *resumed = rested && !(waits && moe_coe_client_before(client, &rested->of->client->turn));
    if (*resumed)
        client = &rested->of->client->turn;
    if (x->n_running - x->n_resting >= x->room &&
        (!(other = who_gives_way(x, client)) || !job_rest(x, other)))
        return NULL;
    if (*resumed) {
        job_resume(x, rested);
        return rested;
    }
    struct moe_coe_request *list = moe_coe_more(s->dispatch, x->index, 1, &n);
    mark_taken(list);
    return (struct job *)list;
}

/* Gives places to jobs that wait for the batch's model or rest; *n: those that are new. The mutex
 * is held before and after. */
static void share_places(struct executor *x, uint32_t *n)
{
    struct moe_server *s = x->server;
    struct job *j;
    bool resumed;
    *n = 0;
    for (struct job *each = x->jobs; each; each = each->next)
        job_bill(each);
    for (;;) {
        double began = moe_seconds();
        j = next_job(x, &resumed);
        x->counts.schedule_seconds += moe_seconds() - began;
        if (!j)
            break;
        if (resumed)
            continue;
        ++*n;
        pthread_mutex_unlock(&s->mutex);
        job_begin(x, j);
        pthread_mutex_lock(&s->mutex);
    }
}

/* What other ranks were asked for, and how long they were waited for. */
static void count_ranks(struct moe_server *s)
{
    const struct moe_ranks *ranks = s->options.engine.ranks;
    s->counts.n_ranks = ranks ? moe_ranks_wire(ranks)->n_ranks - 1 : 0;
    for (uint32_t i = 0; i < s->counts.n_ranks; i++)
        moe_ranks_glance(ranks, i + 1, &s->counts.ranks[i]);
}

/* Computes a batch, and jobs that join it, to the end. False: its model is not there. The mutex is
 * held before and after. */
static bool compute_batch(struct executor *x, struct moe_coe_batch *batch)
{
    struct moe_server *s = x->server;
    struct moe_err err;
    if (s->closing) {
        bool is_there = x->loaded[batch->expert].state == MODEL_READY;
        pthread_mutex_unlock(&s->mutex);
        begin_all(x, batch->requests, MOE_ERR_INTERRUPTED, NULL);
        pthread_mutex_lock(&s->mutex);
        return is_there;
    }
    int status = have_model(x, batch, &err);
    bool there = status == MOE_OK;
    pthread_mutex_unlock(&s->mutex);
    if (there)
        status = open_batch(x, batch->expert, &err);
    double began = moe_seconds(), begun = began;
    uint32_t n_jobs = batch->n, n;
    begin_all(x, batch->requests, status, &err);
    pthread_mutex_lock(&s->mutex);
    while (x->n_running > 0) {
        prefetch(x);
        pthread_mutex_unlock(&s->mutex);
        moe_generator_step(x->batch);
        pthread_mutex_lock(&s->mutex);
        job_count(x);
        count_ranks(s);
        end_cancelled(x);
        share_places(x, &n);
        double now = moe_seconds();
        x->counts.busy_seconds += now - began;
        began = now;
        n_jobs += n;
    }
    if (status == MOE_OK)
        dispatching_learn_batch(x, batch->expert, n_jobs, began - begun);
    return there;
}

/* ---- The thread ---- */

/* Takes the next batch; false: no request waits. Under the mutex. */
static bool next_batch(struct executor *x, struct moe_coe_batch *batch)
{
    struct moe_server *s = x->server;
    double began = moe_seconds();
    uint32_t first = moe_coe_first(s->dispatch, x->index);
    if (first != MOE_COE_NONE && first == x->model && others_first(x, first))
        moe_coe_give_way(s->dispatch, x->index);
    bool some = moe_coe_next(s->dispatch, x->index, began, batch);
    if (some)
        mark_taken(batch->requests);
    x->counts.schedule_seconds += moe_seconds() - began;
    return some;
}

static void *executor_run(void *arg)
{
    struct executor *x = arg;
    struct moe_server *s = x->server;
    struct moe_coe_batch batch;
    moe_par_set_team(x->options.n_threads);
    pthread_mutex_lock(&s->mutex);
    for (;;) {
        end_cancelled(x);
        if (next_batch(x, &batch)) {
            if (batch.expert != x->model)
                x->counts.switches++;
            x->counts.model = s->models[batch.expert].name;
            if (compute_batch(x, &batch))
                moe_coe_done(s->dispatch, x->index, moe_seconds());
            else
                moe_coe_failed(s->dispatch, x->index, moe_seconds());
            x->counts.model = NULL;
        } else if (s->closing) {
            break;
        } else if (x->unkept.n && x->batch) {
            pthread_mutex_unlock(&s->mutex);
            keep_oldest(x);
            pthread_mutex_lock(&s->mutex);
        } else {
            pthread_cond_wait(&x->wake, &s->mutex);
        }
    }
    pthread_mutex_unlock(&s->mutex);
    close_batch(x);
    return NULL;
}

int executor_start(struct executor *x, struct moe_err *err)
{
    const struct moe_server *s = x->server;
    bool wants_loader = s->n_models > 1 && !s->options.no_prefetch;
    x->has_loader = wants_loader && pthread_create(&x->loader, NULL, run_loader, x) == 0;
    x->started = pthread_create(&x->thread, NULL, executor_run, x) == 0;
    return x->started && (x->has_loader || !wants_loader)
               ? MOE_OK
               : moe_fail(err, MOE_ERR_MEMORY, "out of memory: the threads of an executor");
}

void executor_join(struct executor *x)
{
    if (x->has_loader)
        pthread_join(x->loader, NULL);
    if (x->started)
        pthread_join(x->thread, NULL);
}
