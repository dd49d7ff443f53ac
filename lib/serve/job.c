#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/server_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/prompt.h"
#include "engine/sampler.h"
#include "grammar/constraint.h"

/* ---- The list of requests ---- */

/* An id names its slot and says which of its users it was. */
static uint64_t id_of(const struct moe_server *s, uint32_t slot)
{
    return s->n_asked * s->n_slots + slot;
}

int asked_new(struct asked **out, struct moe_server *s, struct moe_request *r,
              const struct moe_server_events *events, struct moe_err *err)
{
    uint64_t bytes = sizeof(struct asked) + r->n * sizeof(struct job) + moe_request_bytes(r);
    if (s->n_free == 0)
        return moe_fail(err, MOE_ERR_LIMIT, "the queue is full: %u requests wait or run (later)",
                        s->n_slots);
    /* One that is larger by itself may come when no other is there. */
    if (s->n_free < s->n_slots && s->request_bytes + bytes > s->request_bytes_max)
        return moe_fail(err, MOE_ERR_LIMIT,
                        "the queue is full: the requests in it take all of its memory (later)");
    struct asked *a = moe_alloc(1, sizeof *a + r->n * sizeof(struct job), err);
    if (!a)
        return MOE_ERR_MEMORY;
    s->n_asked++;
    a->slot = s->free_slots[--s->n_free];
    a->id = id_of(s, a->slot);
    a->bytes = bytes;
    s->request_bytes += bytes;
    a->request = r;
    a->events = *events;
    a->came = moe_seconds();
    a->n_left = r->n;
    pthread_mutex_init(&a->telling, NULL);
    for (uint32_t i = 0; i < r->n; i++)
        a->jobs[i] = (struct job){.of = a, .choice = i, .state = JOB_ENDED};
    s->slots[a->slot] = a;
    *out = a;
    return MOE_OK;
}

void asked_free(struct moe_server *s, struct asked *a, bool with_request)
{
    s->slots[a->slot] = NULL;
    s->free_slots[s->n_free++] = a->slot;
    s->request_bytes -= a->bytes;
    for (uint32_t i = 0; i < a->request->n; i++) {
        moe_buf_release(&a->jobs[i].text);
        moe_buf_release(&a->jobs[i].said);
        moe_buf_release(&a->jobs[i].route);
        free(a->jobs[i].stops);
        moe_constraint_free(a->jobs[i].constraint);
    }
    pthread_mutex_destroy(&a->telling);
    if (with_request)
        moe_request_free(a->request);
    free(a);
}

struct asked *asked_find(const struct moe_server *s, uint64_t id)
{
    struct asked *a = s->slots[id % s->n_slots];
    return a && a->id == id ? a : NULL;
}

/* ---- Figures ---- */

void job_count(struct executor *x)
{
    if (!x->batch)
        return;
    struct moe_server_counts *c = &x->server->counts;
    const struct moe_stats *now = &x->loaded[x->model].engine->session->stats;
    c->prompt_tokens += now->prompt_tokens - x->seen.prompt_tokens;
    c->generated_tokens += now->generated_tokens - x->seen.generated_tokens;
    c->drafted_tokens += now->drafted_tokens - x->seen.drafted_tokens;
    c->accepted_tokens += now->accepted_tokens - x->seen.accepted_tokens;
    const struct moe_phase_stats a = moe_stats_all(now), b = moe_stats_all(&x->seen);
    c->activations += a.experts.activations - b.experts.activations;
    c->hits += a.experts.cache_hits - b.experts.cache_hits;
    c->hits += a.experts.prefetch_hits - b.experts.prefetch_hits;
    x->counts.bytes_read += a.bytes_read - b.bytes_read;
    const struct moe_changes changes = moe_engine_changes(x->loaded[x->model].engine);
    const struct moe_changes new = moe_changes_since(&changes, &x->seen_changes);
    moe_changes_add(&c->changes, &new);
    x->counts.running = x->n_running;
    x->seen = *now;
    x->seen_changes = changes;
}

/* ---- Queueing ---- */

int job_queue(struct moe_server *s, struct job *j, struct moe_err *err)
{
    double began = moe_seconds();
    MOE_TRY(moe_coe_submit(s->dispatch, &j->queued, began, &j->executor, err));
    j->state = JOB_WAITS;
    j->came = began;
    s->counts.schedule_seconds += moe_seconds() - began;
    pthread_cond_signal(&s->executors[j->executor].wake);
    return MOE_OK;
}

/* ---- Telling ---- */

static void tell_text(struct job *j, const char *bytes, uint64_t n)
{
    const struct moe_server_events *e = &j->of->events;
    if (!e->text || n == 0)
        return;
    pthread_mutex_lock(&j->of->telling);
    e->text(e->ctx, j->choice, bytes, n);
    pthread_mutex_unlock(&j->of->telling);
}

static void tell_token(struct job *j, const struct moe_token_said *said)
{
    const struct moe_server_events *e = &j->of->events;
    pthread_mutex_lock(&j->of->telling);
    e->token(e->ctx, j->choice, said);
    pthread_mutex_unlock(&j->of->telling);
}

/* What was held, since nothing follows it. */
static void tell_held(struct job *j)
{
    const struct moe_token_said *said = (const struct moe_token_said *)(void *)j->said.data;
    for (uint64_t i = 0; i < j->said.size / sizeof *said; i++)
        tell_token(j, &said[i]);
    tell_text(j, (const char *)j->text.data, j->text.size);
}

static void forget_cancelled(struct executor *x, const struct job *j)
{
    for (struct job **at = &x->cancelled; *at; at = &(*at)->next_cancelled)
        if (*at == j) {
            *at = j->next_cancelled;
            return;
        }
}

/* The last that is heard of a job. */
static void finish(struct executor *x, struct job *j, struct moe_server_result *result)
{
    struct moe_server *s = x->server;
    struct asked *a = j->of;
    double now = moe_seconds();
    moe_buf_u8(&j->route, 0);
    result->model = s->models[j->queued.expert].name;
    if (s->own && a->request->model) /* by whatever name: clients compare it with theirs */
        result->model = a->request->model;
    result->route = j->route.failed ? result->model : (const char *)j->route.data;
    result->seconds = now - a->came;
    result->queue_seconds = (j->began ? j->began : now) - a->came;
    if (a->events.ended) {
        pthread_mutex_lock(&a->telling);
        a->events.ended(a->events.ctx, j->choice, result);
        pthread_mutex_unlock(&a->telling);
    }
    pthread_mutex_lock(&s->mutex);
    j->state = JOB_ENDED;
    forget_cancelled(x, j);
    job_count(x);
    s->counts.cached_tokens += result->n_cached;
    if (result->status != MOE_OK)
        s->counts.failed++;
    else if (result->why == MOE_STOP_USER)
        s->counts.cancelled++;
    else
        s->counts.ended++;
    if (--a->n_left == 0) {
        asked_free(s, a, true);
        if (s->n_free == s->n_slots)
            pthread_cond_broadcast(&s->idle);
    }
    pthread_mutex_unlock(&s->mutex);
}

void job_end(struct executor *x, struct job *j, int status, const struct moe_err *err)
{
    struct moe_server_result result = {
        .status = status, .err = status == MOE_OK ? NULL : err, .why = MOE_STOP_USER};
    finish(x, j, &result);
}

/* ---- Running ---- */

static int hear(void *ctx, const char *bytes, uint64_t n)
{
    struct job *j = ctx;
    if (j->holds)
        moe_buf_append(&j->text, bytes, n);
    else
        tell_text(j, bytes, n);
    return j->text.failed ? MOE_ERR_MEMORY : MOE_OK;
}

static int hear_token(void *ctx, const struct moe_token_said *said)
{
    struct job *j = ctx;
    if (j->holds)
        moe_buf_append(&j->said, said, sizeof *said);
    else
        tell_token(j, said);
    return j->said.failed ? MOE_ERR_MEMORY : MOE_OK;
}

/* Adds what its model did for it, and perhaps for others. */
static void note_changes(struct job *j, bool took_over)
{
    struct moe_changes now = moe_engine_changes(j->x->loaded[j->x->model].engine);
    if (!took_over)
        now = moe_changes_since(&now, &j->before);
    moe_changes_add(&j->changes, &now);
}

/* Hands a result to the next model. */
static void go_on(struct executor *x, struct job *j, uint32_t next)
{
    struct moe_server *s = x->server;
    struct moe_err err;
    int status = MOE_OK;
    moe_buf_clear(&j->text);
    moe_buf_clear(&j->said);
    pthread_mutex_lock(&s->mutex);
    bool cancelled = j->cancelled;
    if (!cancelled) {
        j->queued.expert = next;
        s->counts.follow_ons++;
        status = job_queue(s, j, &err);
    }
    pthread_mutex_unlock(&s->mutex);
    if (cancelled || status != MOE_OK)
        job_end(x, j, status, &err);
}

static void ended(void *ctx, const struct moe_batch_result *r)
{
    struct job *j = ctx;
    struct executor *x = j->x;
    struct moe_server *s = x->server;
    uint32_t next = MOE_COE_NONE;
    j->in_batch = 0;
    x->n_running--;
    note_changes(j, r->n_cached > 0);
    free(j->stops);
    j->stops = NULL;
    moe_constraint_free(j->constraint);
    j->constraint = NULL;
    if (r->status == MOE_OK && r->why != MOE_STOP_USER && j->holds)
        next = moe_coe_next_expert(s->collection, j->queued.expert, (const char *)j->text.data,
                                   j->text.size);
    if (next != MOE_COE_NONE) {
        go_on(x, j, next);
        return;
    }
    if (j->holds)
        tell_held(j);
    struct moe_server_result result = {
        .status = r->status,
        .err = r->err,
        .why = r->why,
        .n_prompt = r->n_prompt,
        .n_tokens = r->n_tokens,
        .n_cached = r->n_cached,
        .n_drafted = r->n_drafted,
        .n_accepted = r->n_accepted,
        .ttft_seconds = r->ttft_seconds,
        .changes = j->changes,
    };
    finish(x, j, &result);
}

/* The ids that the answer goes on from. */
static int make_prompt(const struct loaded *l, const char *name, const struct moe_request *r,
                       struct moe_ids *ids, struct moe_err *err)
{
    const struct moe_model *model = l->engine->model;
    const struct moe_chat_input input = {.messages = r->messages,
                                         .tools = r->tools,
                                         .variables = r->variables,
                                         .add_generation_prompt = true,
                                         .now = moe_chat_today()};
    if (r->kind == MOE_REQUEST_CHAT && l->no_chat.status)
        return moe_fail(err, l->no_chat.status, "%s", l->no_chat.text);
    if (r->kind == MOE_REQUEST_CHAT && !l->chat)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model '%s' has no chat template: ask for a completion of text", name);
    if (r->kind == MOE_REQUEST_CHAT)
        return moe_prompt_chat(model, l->chat, &input, l->engine->session->context, ids, err);
    if (!r->ids)
        return moe_prompt_prefixed(model, r->prefix_text, r->prompt, r->n_prompt, ids, err);
    for (uint64_t i = 0; i < r->n_ids; i++)
        MOE_TRY(moe_ids_push(ids, r->ids[i], err));
    return MOE_OK;
}

static void add_to_route(struct job *j, const char *name)
{
    if (j->route.size)
        moe_buf_text(&j->route, " > ");
    moe_buf_text(&j->route, name);
}

/* A text that cannot fit is refused before its ids take memory. */
static int check_length(const struct executor *x, const struct moe_request *r, struct moe_err *err)
{
    const struct moe_session *s = x->loaded[x->model].engine->session;
    const char *const texts[] = {r->prompt, r->prefix_text};
    for (int i = 0; i < 2; i++) {
        if (texts[i])
            MOE_TRY(moe_prompt_check_length(s->model, texts[i], strlen(texts[i]), s->context, err));
    }
    return MOE_OK;
}

static int begin(struct executor *x, struct job *j, const struct moe_ids *ids, struct moe_err *err)
{
    const struct loaded *l = &x->loaded[j->queued.expert];
    const struct moe_request *r = j->of->request;
    struct moe_sampler_options sampling = r->sampling;
    struct moe_sampler *sampler;
    sampling.seed = moe_request_seed(r, j->choice);
    moe_sampling_complete(&sampling, &l->engine->model->sampling);
    int status = MOE_OK;
    if (r->grammar)
        status = moe_engine_constrain(l->engine, r->grammar, &j->constraint, err);
    if (status == MOE_OK)
        status = moe_sampler_new(&sampler, &sampling, l->engine->model->config.vocab, err);
    if (status != MOE_OK)
        return status;
    const struct moe_batch_request request = {
        .prompt = ids->ids,
        .n_prompt = ids->n,
        .sampler = sampler,
        .options = {.constraint = j->constraint,
                    .max_tokens = r->max_tokens,
                    .ignore_eos = r->ignore_eos,
                    .draft = r->draft ? x->server->options.draft : 0,
                    .draft_ahead = r->draft && x->server->options.engine.ahead,
                    .stop_texts = j->stops,
                    .started = j->of->came,
                    .text = hear,
                    .token = r->logprobs && j->of->events.token ? hear_token : NULL,
                    .n_top = r->top_logprobs,
                    .ctx = j},
        .ended = ended,
    };
    status = moe_batch_add(x->batch, &request, &j->in_batch, err);
    if (status != MOE_OK)
        moe_sampler_free(sampler);
    return status;
}

void job_begin(struct executor *x, struct job *j)
{
    const struct loaded *l = &x->loaded[j->queued.expert];
    const struct moe_request *r = j->of->request;
    struct moe_ids ids = {0};
    struct moe_err err;
    if (!j->began)
        j->began = moe_seconds();
    j->x = x;
    j->before = moe_engine_changes(l->engine);
    j->holds = x->server->models[j->queued.expert].goes_on;
    add_to_route(j, x->server->models[j->queued.expert].name);
    int status = check_length(x, r, &err);
    if (status == MOE_OK)
        status = make_prompt(l, x->server->models[j->queued.expert].name, r, &ids, &err);
    if (status == MOE_OK) {
        j->stops = moe_prompt_stops(r->stops, r->kind == MOE_REQUEST_CHAT ? l->chat : NULL, &err);
        status = j->stops ? begin(x, j, &ids, &err) : MOE_ERR_MEMORY;
    }
    moe_ids_release(&ids);
    if (status == MOE_OK)
        x->n_running++;
    else
        job_end(x, j, status, &err);
}

void job_stop(struct executor *x, struct job *j)
{
    moe_batch_cancel(x->batch, j->in_batch);
}
