/* Requests from their submission to their last event: the list of requests, and their choices as
 * jobs of executors. */
#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/server_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/calls.h"
#include "engine/prompt.h"
#include "engine/sampler.h"
#include "gpu.h"
#include "grammar/constraint.h"
#include "prompt/chat.h"
#include "prompt/chat_answer.h"

enum { MARK_TOKENS = 32 }; /* at a prompt's end, where what opens a thought is looked for */

/* ---- The list of requests ---- */

/* An id names its slot and the slot's user. */
static uint64_t request_id(const struct moe_server *s, uint32_t slot)
{
    return s->n_requests * s->n_slots + slot;
}

/* What the least served of those who have requests was given. */
static double least_given(const struct moe_server *s)
{
    double least = INFINITY;
    for (const struct client *c = s->clients; c; c = c->next)
        if (c->n_requests > 0 && c->turn.given < least)
            least = c->turn.given;
    return least;
}

/* The client with this id. Who has no requests is remembered only while he was given more than
 * those who have; who comes was given as much as the least served of them. */
static struct client *client_find(struct moe_server *s, uint64_t id, struct moe_err *err)
{
    const double least = least_given(s);
    struct client *found = NULL, *c;
    uint32_t n_idle = 0;
    for (struct client **at = &s->clients; (c = *at) != NULL;) {
        if (c->id == id)
            found = c;
        if (c->id != id && c->n_requests == 0 &&
            (c->turn.given <= least || ++n_idle > s->n_slots)) {
            *at = c->next;
            free(c);
        } else {
            at = &c->next;
        }
    }
    if (!found) {
        if (!(found = moe_alloc(1, sizeof *found, err)))
            return NULL;
        *found = (struct client){.id = id, .next = s->clients};
        s->clients = found;
    }
    if (least < INFINITY && found->turn.given < least)
        found->turn.given = least;
    return found;
}

/* Requests that take more than this part of the queue's memory are large. */
enum { LARGE_PART = 64, NUMBER_BYTES = 16 /* of a vector's number as text */ };

static uint64_t bytes_if_large(const struct moe_server *s, uint64_t bytes)
{
    return bytes > s->request_bytes_max / LARGE_PART ? bytes : 0;
}

/* Of the queue's memory large requests leave a quarter to small ones. */
static bool large_fit(const struct moe_server *s, uint64_t bytes)
{
    return s->request_bytes + bytes <= s->request_bytes_max &&
           s->large_bytes + bytes <= s->request_bytes_max / 4 * 3;
}

/* Books a listed request's memory in place of what was booked for it before. The only request may
 * take any.
 */
static int request_book(struct moe_server *s, struct request *a, uint64_t bytes,
                        struct moe_err *err)
{
    const uint64_t had = a->bytes, large = bytes_if_large(s, bytes);
    s->request_bytes -= had;
    s->large_bytes -= bytes_if_large(s, had);
    const uint64_t small = s->request_bytes - s->large_bytes + bytes;
    bool fits = s->n_slots - s->n_free == 1 || large_fit(s, bytes) ||
                (!large && (s->request_bytes + bytes <= s->request_bytes_max ||
                            small <= s->request_bytes_max / 4));
    a->bytes = fits ? bytes : had;
    s->request_bytes += a->bytes;
    s->large_bytes += bytes_if_large(s, a->bytes);
    return fits ? MOE_OK
                : moe_fail(err, MOE_ERR_LIMIT,
                           "the queue is full: the requests in it take all of its memory%s (later)",
                           large ? " that is for large ones" : "");
}

static void count_choices(struct request *a, uint32_t n)
{
    a->client->n_choices += n - a->n_counted;
    a->n_counted = n;
}

/* Lists a request. Under the mutex. */
static int request_new(struct request **out, struct moe_server *s,
                       const struct moe_server_events *events, struct moe_err *err)
{
    if (s->closing)
        return moe_fail(err, MOE_ERR_LIMIT, "the server is ending");
    if (s->n_free == 0)
        return moe_fail(err, MOE_ERR_LIMIT, "the queue is full: %u requests wait or run (later)",
                        s->n_slots);
    struct client *client = client_find(s, events->client, err);
    struct request *a = client ? moe_alloc(1, sizeof *a, err) : NULL;
    if (!a)
        return MOE_ERR_MEMORY;
    client->n_requests++;
    a->client = client;
    count_choices(a, 1);
    s->n_requests++;
    a->slot = s->free_slots[--s->n_free];
    a->id = request_id(s, a->slot);
    a->events = *events;
    a->came = moe_seconds();
    a->ids_of = MOE_COE_NONE;
    pthread_mutex_init(&a->telling, NULL);
    pthread_mutex_init(&a->preparing, NULL);
    s->slots[a->slot] = a;
    *out = a;
    return MOE_OK;
}

/* Gives back its place and its memory, before its client hears of the end and asks for more. Under
 * the mutex. */
static void request_unlist(struct moe_server *s, struct request *a)
{
    s->slots[a->slot] = NULL;
    s->free_slots[s->n_free++] = a->slot;
    s->n_unlisted++;
    s->request_bytes -= a->bytes;
    s->large_bytes -= bytes_if_large(s, a->bytes);
    a->client->n_requests--;
    count_choices(a, 0);
}

/* Frees it once it is unlisted and its last event is over. Without the mutex. */
static void request_free(struct moe_server *s, struct request *a, bool with_request)
{
    for (uint32_t i = 0; a->jobs && i < a->request->n; i++) {
        moe_buf_release(&a->jobs[i].text);
        moe_buf_release(&a->jobs[i].said);
        moe_buf_release(&a->jobs[i].route);
        free(a->jobs[i].stops);
        free(a->jobs[i].biases);
        moe_ids_release(&a->jobs[i].stop_ids);
        free(a->jobs[i].pooled);
        moe_constraint_free(a->jobs[i].constraint);
    }
    pthread_mutex_destroy(&a->telling);
    pthread_mutex_destroy(&a->preparing);
    moe_ids_release(&a->ids);
    moe_buf_release(&a->body);
    for (uint32_t m = 0; a->calls && m < s->n_models; m++)
        moe_grammar_free(a->calls[m]);
    free(a->calls);
    if (with_request)
        moe_request_free(a->request);
    free(a->jobs);
    free(a);
    pthread_mutex_lock(&s->mutex);
    if (--s->n_unlisted == 0)
        pthread_cond_broadcast(&s->idle);
    pthread_mutex_unlock(&s->mutex);
}

static struct request *request_find(const struct moe_server *s, uint64_t id)
{
    struct request *a = s->slots[id % s->n_slots];
    return a && a->id == id ? a : NULL;
}

/* ---- Queueing ---- */

/* Its job has its place no more. Under the mutex. */
static void give_place_back(struct job *j)
{
    if (j->taken)
        j->of->client->turn.running--;
    j->taken = false;
}

static int job_queue(struct moe_server *s, struct job *j, struct moe_err *err)
{
    double began = moe_seconds();
    MOE_TRY(moe_coe_submit(s->dispatch, &j->queued, began, &j->executor, err));
    j->state = JOB_WAITS;
    j->came = began;
    s->counts.schedule_seconds += moe_seconds() - began;
    pthread_cond_signal(&s->executors[j->executor].wake);
    return MOE_OK;
}

void request_cancel(struct moe_server *s, struct request *a)
{
    atomic_store(&a->cancelled, true);
    for (uint32_t i = 0; a->jobs && i < a->request->n; i++) {
        struct job *j = &a->jobs[i];
        struct executor *x = &s->executors[j->executor];
        if (j->state == JOB_ENDED || j->cancelled)
            continue;
        if (j->state == JOB_WAITS)
            moe_coe_withdraw(s->dispatch, j->executor, &j->queued);
        j->state = JOB_TAKEN;
        j->cancelled = true;
        j->next_cancelled = x->cancelled;
        x->cancelled = j;
        pthread_cond_signal(&x->wake);
    }
}

/* Queues all jobs, or none. Under the mutex. */
static int queue_all(struct moe_server *s, struct request *a, uint32_t model, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < a->request->n && status == MOE_OK; i++) {
        a->jobs[i].queued.expert = model;
        status = job_queue(s, &a->jobs[i], err);
    }
    for (uint32_t i = 0; i < a->request->n && status != MOE_OK; i++)
        if (a->jobs[i].state == JOB_WAITS)
            moe_coe_withdraw(s->dispatch, a->jobs[i].executor, &a->jobs[i].queued);
    return status;
}

/* ---- A full queue ---- */

static bool only_waits(const struct request *a)
{
    for (uint32_t i = 0; a->jobs && i < a->request->n; i++)
        if (a->jobs[i].state != JOB_WAITS || a->jobs[i].began > 0)
            return false;
    return a->jobs || a->waits_to_be_read;
}

/* The request that gives way to n more choices of `client`: the latest that only waits, of who has
 * most; NULL: nobody has more than that client would have. */
static struct request *find_oustable(const struct moe_server *s, uint64_t client, uint32_t n)
{
    struct request *best = NULL;
    uint32_t most = n;
    for (const struct client *c = s->clients; c; c = c->next)
        most += c->id == client ? c->n_choices : 0;
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct request *a = s->slots[i];
        uint32_t has = a ? a->client->n_choices : 0;
        if (has > most && only_waits(a) &&
            (!best || has > best->client->n_choices ||
             (has == best->client->n_choices && a->id > best->id)))
            best = a;
    }
    return best;
}

static void leave_list(struct to_read *list, const struct request *a)
{
    for (struct request **at = &list->first; *at; at = &(*at)->next_to_read)
        if (*at == a) {
            if (!(*at = a->next_to_read))
                list->last = at;
            return;
        }
}

/* Has another client's request give way to n more choices of `client`; tell_ousted tells it. Under
 * the mutex. False: none. */
static bool oust_for(struct moe_server *s, uint64_t client, uint32_t n, struct request **ousted)
{
    struct request *a = s->closing ? NULL : find_oustable(s, client, n);
    if (!a)
        return false;
    for (uint32_t i = 0; a->jobs && i < a->request->n; i++)
        moe_coe_withdraw(s->dispatch, a->jobs[i].executor, &a->jobs[i].queued);
    if (a->waits_to_be_read) {
        leave_list(&s->quick, a);
        leave_list(&s->slow, a);
    }
    request_unlist(s, a);
    s->counts.failed += a->jobs ? a->request->n : 0;
    s->counts.ousted++;
    a->next_to_read = *ousted;
    *ousted = a;
    return true;
}

static void tell_ousted(struct moe_server *s, struct request *ousted)
{
    struct moe_err err;
    moe_fail(&err, MOE_ERR_MEMORY,
             "the queue is full, and this client has more of it than others: ask again later");
    const struct moe_server_result result = {.status = MOE_ERR_MEMORY, .err = &err, .model = ""};
    for (struct request *a = ousted, *next; a; a = next) {
        next = a->next_to_read;
        if (!a->jobs)
            a->events.refused(a->events.ctx, &err);
        for (uint32_t i = 0; a->jobs && a->events.ended && i < a->request->n; i++)
            a->events.ended(a->events.ctx, i, &result);
        request_free(s, a, true);
    }
}

/* Lists a request and books its memory; others give way. *out: listed, though memory may be short.
 * Under the mutex. */
static int request_enter(struct request **out, struct moe_server *s, uint64_t bytes,
                         const struct moe_server_events *events, struct request **ousted,
                         struct moe_err *err)
{
    int status;
    do
        status = request_new(out, s, events, err);
    while (status == MOE_ERR_LIMIT && oust_for(s, events->client, 1, ousted));
    MOE_TRY(status);
    do
        status = request_book(s, *out, bytes, err);
    while (status == MOE_ERR_LIMIT && oust_for(s, events->client, 0, ousted));
    return status;
}

static bool pools(const struct moe_request *r)
{
    return r->task == MOE_TASK_MEAN || r->task == MOE_TASK_LAST;
}

/* The vectors of embeddings while they are made, as numbers and as text. */
static uint64_t vectors_bytes(const struct moe_server *s, const struct moe_request *r,
                              uint32_t model)
{
    const struct model *m = &s->models[model];
    const uint64_t n =
        pools(r) && !m->is_broken ? (uint64_t)r->n * s->needs[m->kind].config.hidden : 0;
    const uint64_t text = n * NUMBER_BYTES;
    return n * sizeof(double) +
           (text < MOE_REQUEST_MAX_REPLY_BYTES ? text : MOE_REQUEST_MAX_REPLY_BYTES);
}

/* Gives a listed request what it asks for: `r`, which it owns if MOE_OK. Under the mutex. */
static int request_begin(struct moe_server *s, struct request *a, struct moe_request *r,
                         uint32_t model, struct request **ousted, struct moe_err *err)
{
    int status;
    if (atomic_load(&a->cancelled))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped: the server is closing");
    uint64_t bytes =
        sizeof *a + r->n * sizeof(struct job) + moe_request_bytes(r) + vectors_bytes(s, r, model);
    do
        status = request_book(s, a, bytes, err);
    while (status == MOE_ERR_LIMIT && oust_for(s, a->client->id, r->n, ousted));
    MOE_TRY(status);
    if (!(a->jobs = moe_alloc(r->n, sizeof *a->jobs, err)))
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < r->n; i++)
        a->jobs[i] = (struct job){
            .queued.client = &a->client->turn, .of = a, .choice = i, .state = JOB_ENDED};
    a->request = r;
    a->n_left = r->n;
    count_choices(a, r->n);
    return queue_all(s, a, model, err);
}

int moe_server_submit(struct moe_server *s, struct moe_request *r,
                      const struct moe_server_events *events, uint64_t *id, struct moe_err *err)
{
    struct request *a = NULL, *ousted = NULL;
    uint32_t model;
    int status = model_choose(s, r, &model, err);
    if (status != MOE_OK)
        return status;
    memory_look_again(s, model);
    pthread_mutex_lock(&s->mutex);
    status = request_enter(&a, s, 0, events, &ousted, err);
    if (status == MOE_OK)
        status = request_begin(s, a, r, model, &ousted, err);
    s->counts.refused += status == MOE_ERR_LIMIT;
    if (status != MOE_OK && a)
        request_unlist(s, a);
    s->counts.requests += status == MOE_OK;
    if (status == MOE_OK && id)
        *id = a->id;
    pthread_mutex_unlock(&s->mutex);
    if (status != MOE_OK && a)
        request_free(s, a, false);
    tell_ousted(s, ousted);
    return status;
}

/* ---- Reading ----
 *
 * What is read in a moment is never behind more than one request that is not: those that turn out
 * to take longer, or are long, wait in a list of their own. Among clients reading has its turns,
 * too: reading is charged as positions that were computed.
 */

enum {
    QUICK_STEPS = 200 * 1000,
    QUICK_BYTES = 256 << 10,
    QUICK_IN_ROW = 8,      /* before a slow one of the same client has its turn */
    POSITION_STEPS = 1000, /* of reading, that count as a position */
    POSITION_BYTES = 8,    /* ... of a body, which becomes a prompt */
};

static void wait_to_be_read(struct moe_server *s, struct request *a, struct to_read *list)
{
    a->waits_to_be_read = true;
    a->next_to_read = NULL;
    *list->last = a;
    list->last = &a->next_to_read;
    pthread_cond_signal(&s->wants_reading);
}

int moe_server_submit_body(struct moe_server *s, enum moe_request_kind kind, struct moe_buf *body,
                           const struct moe_server_events *events, uint64_t *id,
                           struct moe_err *err)
{
    struct request *a = NULL, *ousted = NULL;
    pthread_mutex_lock(&s->mutex);
    int status = request_enter(&a, s, sizeof *a + body->room, events, &ousted, err);
    if (status != MOE_OK && a)
        request_unlist(s, a);
    s->counts.refused += status == MOE_ERR_LIMIT;
    if (status == MOE_OK) {
        a->kind = kind;
        a->body = *body;
        *body = (struct moe_buf){0};
        *id = a->id;
        wait_to_be_read(s, a, a->body.size > QUICK_BYTES ? &s->slow : &s->quick);
    }
    pthread_mutex_unlock(&s->mutex);
    if (status != MOE_OK && a)
        request_free(s, a, false);
    tell_ousted(s, ousted);
    return status;
}

void moe_server_refuse_unread(struct moe_server *s)
{
    pthread_mutex_lock(&s->mutex);
    for (uint32_t i = 0; i < s->n_slots; i++)
        if (s->slots[i] && !s->slots[i]->request)
            atomic_store(&s->slots[i]->cancelled, true);
    pthread_mutex_unlock(&s->mutex);
}

struct moe_allowance moe_server_allowance(const struct moe_server *s)
{
    return (struct moe_allowance){.max_steps = MOE_READ_STEPS, .max_bytes = s->reading_bytes};
}

/* Reads a request; *again: it takes more than a moment, and that may be had later. */
static int request_read(const struct moe_server *s, struct request *a, bool quick, bool *again,
                        uint64_t *steps, struct moe_request **r, struct moe_err *err)
{
    struct moe_allowance allowance = moe_server_allowance(s);
    *again = false;
    *steps = 0;
    if (atomic_load(&a->cancelled))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped: the server is closing");
    allowance.cancelled = &a->cancelled;
    if (quick)
        allowance.max_steps = QUICK_STEPS;
    int status = moe_request_parse(r, a->kind, a->body.data ? (const void *)a->body.data : "",
                                   a->body.size, &allowance, err);
    *again = quick && status != MOE_OK && allowance.steps > QUICK_STEPS;
    *steps = allowance.steps;
    return status;
}

/* Reads a request and queues what it asks for, or refuses it. */
static void request_take(struct moe_server *s, struct request *a, bool quick)
{
    struct moe_request *r = NULL;
    struct request *ousted = NULL;
    struct moe_err err;
    uint32_t model;
    bool again;
    uint64_t steps, n_body = a->body.size;
    int status = request_read(s, a, quick, &again, &steps, &r, &err);
    if (!again)
        moe_buf_release(&a->body);
    if (status == MOE_OK)
        status = model_choose(s, r, &model, &err);
    if (status == MOE_OK)
        memory_look_again(s, model);
    if (status == MOE_OK)
        status = a->events.read(a->events.ctx, r, &err);
    pthread_mutex_lock(&s->mutex);
    a->client->turn.given += (double)(steps / POSITION_STEPS + n_body / POSITION_BYTES);
    if (status == MOE_OK)
        status = request_begin(s, a, r, model, &ousted, &err);
    if (again && !atomic_load(&a->cancelled))
        wait_to_be_read(s, a, &s->slow);
    else
        again = false;
    s->counts.requests += status == MOE_OK;
    s->counts.refused += status == MOE_ERR_LIMIT;
    if (status != MOE_OK && !again)
        request_unlist(s, a);
    pthread_mutex_unlock(&s->mutex);
    tell_ousted(s, ousted);
    if (status == MOE_OK || again)
        return;
    moe_request_free(r);
    a->events.refused(a->events.ctx, &err);
    request_free(s, a, false);
}

static bool reads_before(const struct request *a, const struct request *b)
{
    return a->client->turn.given < b->client->turn.given;
}

/* The request whose client was given least, the first of these; NULL: none. */
static struct request *next_to_read(const struct to_read *list)
{
    struct request *best = list->first;
    for (struct request *a = best ? best->next_to_read : NULL; a; a = a->next_to_read)
        if (reads_before(a, best))
            best = a;
    return best;
}

void *requests_read(void *server)
{
    struct moe_server *s = server;
    int in_row = 0;
    pthread_mutex_lock(&s->mutex);
    while (!s->closing || s->quick.first || s->slow.first) {
        struct request *fast = next_to_read(&s->quick), *slow = next_to_read(&s->slow);
        if (!fast && !slow) {
            pthread_cond_wait(&s->wants_reading, &s->mutex);
            continue;
        }
        bool quick = fast && (!slow || (in_row < QUICK_IN_ROW && !reads_before(slow, fast)) ||
                              reads_before(fast, slow));
        struct request *a = quick ? fast : slow;
        leave_list(quick ? &s->quick : &s->slow, a);
        a->waits_to_be_read = false;
        in_row = quick ? in_row + 1 : 0;
        pthread_mutex_unlock(&s->mutex);
        request_take(s, a, quick);
        pthread_mutex_lock(&s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
    return NULL;
}

void moe_server_cancel(struct moe_server *s, uint64_t id)
{
    pthread_mutex_lock(&s->mutex);
    struct request *a = request_find(s, id);
    if (a)
        request_cancel(s, a);
    pthread_mutex_unlock(&s->mutex);
}

void moe_server_drain(struct moe_server *s)
{
    pthread_mutex_lock(&s->mutex);
    while (s->n_free < s->n_slots || s->n_unlisted > 0)
        pthread_cond_wait(&s->idle, &s->mutex);
    pthread_mutex_unlock(&s->mutex);
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
    c->stopped_drafts += now->stopped_drafts - x->seen.stopped_drafts;
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

/* ---- Events ---- */

static int report_part(void *ctx, const struct moe_answer_part *part)
{
    struct job *j = ctx;
    const struct moe_server_events *e = &j->of->events;
    if (e->part) {
        pthread_mutex_lock(&j->of->telling);
        e->part(e->ctx, j->choice, part);
        pthread_mutex_unlock(&j->of->telling);
    }
    return MOE_OK;
}

static void report_begin(const struct job *j)
{
    const struct moe_server_events *e = &j->of->events;
    const struct moe_grammar *calls = j->of->calls ? j->of->calls[j->queued.expert] : NULL;
    if (e->begun) {
        pthread_mutex_lock(&j->of->telling);
        e->begun(e->ctx, j->of->ids.n, j->of->n_left_out, calls ? moe_grammar_notes(calls) : NULL);
        pthread_mutex_unlock(&j->of->telling);
    }
}

static int report_text(struct job *j, const char *bytes, uint64_t n)
{
    struct moe_err err;
    if (j->reader)
        return moe_answer_reader_add(j->reader, bytes, n, &err);
    return n ? report_part(
                   j, &(struct moe_answer_part){.kind = MOE_PART_CONTENT, .bytes = bytes, .n = n})
             : MOE_OK;
}

static void report_token(struct job *j, const struct moe_token_said *said)
{
    const struct moe_server_events *e = &j->of->events;
    pthread_mutex_lock(&j->of->telling);
    e->token(e->ctx, j->choice, said);
    pthread_mutex_unlock(&j->of->telling);
}

/* Reports text and tokens held back, now that no model follows. */
static int flush_held(struct job *j)
{
    const struct moe_token_said *said = (const struct moe_token_said *)(void *)j->said.data;
    for (uint64_t i = 0; i < j->said.size / sizeof *said; i++)
        report_token(j, &said[i]);
    return report_text(j, (const char *)j->text.data, j->text.size);
}

void job_bill(struct job *j)
{
    double done = (double)(j->work.read + j->work.decoded);
    j->of->client->turn.given += done - j->billed;
    j->billed = done;
}

static void forget_cancelled(struct executor *x, const struct job *j)
{
    for (struct job **at = &x->cancelled; *at; at = &(*at)->next_cancelled)
        if (*at == j) {
            *at = j->next_cancelled;
            return;
        }
}

/* A failure of a device, or of another rank, is one of the process. Under the mutex. */
static void look_at_device(const struct executor *x, uint32_t model)
{
    struct moe_server *s = x->server;
    const struct moe_engine *engine = x->loaded[model].engine;
    if (s->failure.status == MOE_OK && s->gpu)
        moe_gpu_finish(s->gpu, &s->failure);
    if (s->failure.status == MOE_OK && engine && engine->gpu)
        moe_gpu_status(engine->gpu, &s->failure);
    if (s->failure.status == MOE_OK && s->options.engine.ranks)
        moe_ranks_status(s->options.engine.ranks, &s->failure);
}

/* Reports a job's end and forgets it. */
static void job_finish(struct executor *x, struct job *j, struct moe_server_result *result)
{
    struct moe_server *s = x->server;
    struct request *a = j->of;
    double now = moe_seconds();
    moe_buf_u8(&j->route, 0);
    result->model = s->models[j->queued.expert].name;
    if (model_answers_as(s, a->request->model)) /* clients compare it with theirs */
        result->model = a->request->model;
    result->route = j->route.failed ? result->model : (const char *)j->route.data;
    result->seconds = now - a->came;
    result->queue_seconds = (j->began ? j->began : now) - a->came;
    pthread_mutex_lock(&s->mutex);
    if (result->err && (result->err->status == MOE_ERR_DEVICE || s->options.engine.ranks))
        look_at_device(x, j->queued.expert);
    j->state = JOB_ENDED;
    if (j->cancelled)
        forget_cancelled(x, j);
    job_bill(j);
    give_place_back(j);
    count_choices(a, a->n_counted - 1);
    job_count(x);
    s->counts.cached_tokens += result->n_cached;
    if (result->status != MOE_OK)
        s->counts.failed++;
    else if (result->why == MOE_STOP_USER)
        s->counts.cancelled++;
    else
        s->counts.ended++;
    if (--a->n_left == 0)
        request_unlist(s, a);
    pthread_mutex_unlock(&s->mutex);
    pthread_mutex_lock(&a->telling);
    if (a->events.ended)
        a->events.ended(a->events.ctx, j->choice, result);
    bool last = ++a->n_told == a->request->n;
    pthread_mutex_unlock(&a->telling);
    if (last)
        request_free(s, a, true);
}

void job_end(struct executor *x, struct job *j, int status, const struct moe_err *err)
{
    struct moe_server_result result = {
        .status = status, .err = status == MOE_OK ? NULL : err, .why = MOE_STOP_USER};
    job_finish(x, j, &result);
}

/* ---- Running ---- */

static int on_text(void *ctx, const char *bytes, uint64_t n)
{
    struct job *j = ctx;
    if (!j->holds)
        return report_text(j, bytes, n);
    moe_buf_append(&j->text, bytes, n);
    return j->text.failed ? MOE_ERR_MEMORY : MOE_OK;
}

static int on_token(void *ctx, const struct moe_token_said *said)
{
    struct job *j = ctx;
    if (j->holds)
        moe_buf_append(&j->said, said, sizeof *said);
    else
        report_token(j, said);
    return j->said.failed ? MOE_ERR_MEMORY : MOE_OK;
}

/* Adds the changes that its model made for it, and perhaps for others. */
static void note_changes(struct job *j, bool took_over)
{
    struct moe_changes now = moe_engine_changes(j->x->loaded[j->x->model].engine);
    if (!took_over)
        now = moe_changes_since(&now, &j->before);
    moe_changes_add(&j->changes, &now);
}

/* Passes a result to the next model. */
static void follow_on(struct executor *x, struct job *j, uint32_t next)
{
    struct moe_server *s = x->server;
    struct moe_err err;
    int status = MOE_OK;
    moe_buf_clear(&j->text);
    moe_buf_clear(&j->said);
    pthread_mutex_lock(&s->mutex);
    bool cancelled = j->cancelled;
    give_place_back(j);
    if (!cancelled) {
        j->queued.expert = next;
        s->counts.follow_ons++;
        status = job_queue(s, j, &err);
    }
    pthread_mutex_unlock(&s->mutex);
    if (cancelled || status != MOE_OK)
        job_end(x, j, status, &err);
}

/* Takes a state of the prompt into the mean, or in place of the one before. */
static void on_state(void *ctx, uint32_t position, const float *state)
{
    struct job *j = ctx;
    const bool mean = j->of->request->task == MOE_TASK_MEAN && position > 0;
    for (uint32_t i = 0; i < j->n_pooled; i++)
        j->pooled[i] = mean ? j->pooled[i] + ((double)state[i] - j->pooled[i]) / (position + 1.0)
                            : (double)state[i];
}

static void end_reader(struct job *j)
{
    moe_answer_reader_free(j->reader);
    j->reader = NULL;
}

/* Under the mutex. */
static void job_wake(struct executor *x, struct job *j)
{
    j->rests = false;
    x->n_resting--;
    x->server->request_bytes -= moe_generator_rest_bytes(x->batch);
    x->server->large_bytes -= moe_generator_rest_bytes(x->batch);
}

static void leave_batch(struct executor *x, struct job *j)
{
    struct job **at = &x->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->in_batch = 0;
    x->n_running--;
    pthread_mutex_lock(&x->server->mutex);
    if (j->rests)
        job_wake(x, j);
    pthread_mutex_unlock(&x->server->mutex);
}

/* The stop text if it is one of the request's. */
static const char *asked_stop(const struct moe_request *r, const char *stop)
{
    for (uint32_t i = 0; stop && i < r->n_stops; i++)
        if (r->stops[i] == stop)
            return stop;
    return NULL;
}

static void on_ended(void *ctx, const struct moe_generate_result *r)
{
    struct moe_err err;
    struct job *j = ctx;
    struct executor *x = j->x;
    struct moe_server *s = x->server;
    uint32_t next = MOE_COE_NONE;
    leave_batch(x, j);
    /* Where the next turn is known to depart from the prompt, states behind the answer are of no
     * use to it. */
    const uint64_t again = j->of->again;
    const bool departs = again && again + 1 < r->n_prompt;
    if (s->prompt_cache)
        moe_prompt_wait(&x->unkept, &(struct moe_prompt_text){j->of->events.owner, r->ids,
                                                              departs ? again + 1 : r->n_ids});
    note_changes(j, r->n_cached > 0);
    free(j->stops);
    free(j->biases);
    moe_ids_release(&j->stop_ids);
    j->stops = NULL;
    j->biases = NULL;
    moe_constraint_free(j->constraint);
    j->constraint = NULL;
    if (r->status == MOE_OK && r->why != MOE_STOP_USER && j->holds)
        next = moe_coe_next_expert(s->collection, j->queued.expert, (const char *)j->text.data,
                                   j->text.size);
    if (next != MOE_COE_NONE) {
        end_reader(j);
        follow_on(x, j, next);
        return;
    }
    int told = j->holds ? flush_held(j) : MOE_OK;
    if (told == MOE_OK && j->reader)
        told = moe_answer_reader_end(j->reader,
                                     r->why == MOE_STOP_LENGTH || r->why == MOE_STOP_CONTEXT, &err);
    end_reader(j);
    const struct moe_err lost = {MOE_ERR_MEMORY, "out of memory: the answer's text"};
    struct moe_server_result result = {
        .status = r->status == MOE_OK ? told : r->status,
        .err = (r->status == MOE_OK && told != MOE_OK) || (r->err && !r->err->text[0]) ? &lost
                                                                                       : r->err,
        .why = r->why,
        .stop_text = asked_stop(j->of->request, r->stop_text),
        .n_prompt = r->n_prompt,
        .n_tokens = r->n_tokens,
        .n_cached = r->n_cached,
        .n_drafted = r->n_drafted,
        .n_accepted = r->n_accepted,
        .ttft_seconds = r->ttft_seconds,
        .state = j->pooled,
        .n_state = j->n_pooled,
        .changes = j->changes,
    };
    if (result.status == MOE_ERR_FORMAT && result.err) { /* of the model: the request was sound */
        err = *result.err;
        result.status = err.status = MOE_ERR_IO;
        result.err = &err;
    }
    job_finish(x, j, &result);
}

/* Positions that a prompt may have: one that is only to be counted, those that the model was made
 * for. */
static uint32_t most_positions(const struct moe_session *s, const struct moe_request *r)
{
    uint32_t most = s->model->config.context_max;
    const bool counts = r->task == MOE_TASK_IDS || r->task == MOE_TASK_TEXT;
    return counts && most > s->context ? most : s->context;
}

/* What a prompt that could have more leaves of the context. */
static uint64_t answer_room(const struct loaded *l, const struct moe_request *r)
{
    const uint64_t part = l->engine->session->context / 4;
    return r->max_tokens < part ? r->max_tokens : part;
}

/* Makes the ids of what is between two texts; other files have what the answer leaves of the
 * context.
 */
static int make_between(const struct moe_server *s, const struct loaded *l,
                        const struct moe_request *r, const struct moe_request_input *p,
                        struct moe_ids *ids, struct moe_err *err)
{
    struct moe_prompt_file files[MOE_REQUEST_MAX_FILES];
    for (uint32_t i = 0; i < r->n_files; i++)
        files[i] = (struct moe_prompt_file){r->files[i].name, r->files[i].text};
    MOE_TRY(moe_prompt_between(l->engine->model, p->text, p->n, r->suffix, ids, err));
    return moe_prompt_files(l->engine->model, files, r->n_files,
                            l->engine->session->context - answer_room(l, r), s->reading_bytes, ids,
                            err);
}

/* Makes the ids that the answer continues. */
static int make_prompt(const struct moe_server *s, const struct loaded *l, const char *name,
                       struct request *a, struct moe_err *err)
{
    const struct moe_model *model = l->engine->model;
    const struct moe_request *r = a->request;
    struct moe_allowance allowance = moe_server_allowance(s);
    const struct moe_chat_input chat = {.messages = r->messages,
                                        .tools = r->tools,
                                        .variables = r->variables,
                                        .add_generation_prompt = !r->continues,
                                        .continues = r->continues,
                                        .now = moe_chat_today(),
                                        .allowance = &allowance};
    allowance.cancelled = &a->cancelled;
    if (r->kind == MOE_REQUEST_CHAT && l->no_chat.status)
        return moe_fail(err, l->no_chat.status, "%s", l->no_chat.text);
    if (r->kind == MOE_REQUEST_CHAT && !l->chat)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "the model '%s' has no chat template: request a text completion instead",
                        name);
    const uint32_t most = most_positions(l->engine->session, r);
    a->n_left_out = 0;
    if (r->kind == MOE_REQUEST_CHAT && r->truncates)
        return moe_prompt_chat_end(model, l->chat, &chat, most, answer_room(l, r), &a->ids,
                                   &a->again, &a->n_left_out, err);
    if (r->kind == MOE_REQUEST_CHAT)
        return moe_prompt_chat(model, l->chat, &chat, most, &a->ids, &a->again, err);
    const struct moe_request_input *p = &r->inputs[a->ids_input];
    const struct moe_languages languages = {r->source_language, r->target_language};
    a->target = pools(r) ? 0 : model->config.answer_start;
    if (p->text && r->bare)
        MOE_TRY(moe_tokenizer_encode(model->tokenizer, p->text, p->n, r->special, &a->ids, err));
    else if (p->text && pools(r))
        MOE_TRY(moe_prompt_plain(model, p->text, p->n, &a->ids, err));
    else if (r->suffix)
        MOE_TRY(make_between(s, l, r, p, &a->ids, err));
    else if (p->text && (r->source_language || r->target_language))
        MOE_TRY(moe_prompt_source(model, &languages, p->text, p->n, &a->ids, &a->target, err));
    else if (p->text)
        MOE_TRY(moe_prompt_prefixed(model, r->prefix_text, p->text, p->n, &a->ids, err));
    for (uint64_t i = 0; p->ids && i < p->n; i++)
        MOE_TRY(moe_ids_push(&a->ids, p->ids[i], err));
    a->again = a->ids.n;
    return MOE_OK;
}

static void add_to_route(struct job *j, const char *name)
{
    if (j->route.size)
        moe_buf_text(&j->route, " > ");
    moe_buf_text(&j->route, name);
}

/* Refuses a prompt that cannot fit before its ids take memory. */
static int check_length(const struct executor *x, const struct request *a, struct moe_err *err)
{
    const struct moe_session *s = x->loaded[x->model].engine->session;
    const struct moe_request *r = a->request;
    const struct moe_request_input *p = r->inputs ? &r->inputs[a->ids_input] : NULL;
    const char *const texts[] = {p ? p->text : NULL, r->prefix_text, r->suffix};
    const uint32_t most = most_positions(s, r);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i])
            MOE_TRY(moe_prompt_check_length(s->model, texts[i], strlen(texts[i]), most,
                                            x->server->reading_bytes, err));
    }
    return p && p->ids && p->n > most && r->task != MOE_TASK_TEXT
               ? moe_prompt_too_long(&s->model->config, p->n, false, most, err)
               : MOE_OK;
}

/* Makes the request's prompt for the model of a choice, which the others then find; fails for all
 * of them alike. Its ids are constant from then on, until another model has its turn. */
static int prepare_prompt(struct executor *x, const struct job *j, struct moe_err *err)
{
    const uint32_t model = j->queued.expert;
    struct request *a = j->of;
    const uint32_t input = j->choice / a->request->n_each;
    if (a->ids_of != model || a->ids_input != input) {
        a->ids.n = 0;
        a->ids_input = input;
        a->why.status = check_length(x, a, &a->why);
        if (a->why.status == MOE_OK)
            a->why.status = make_prompt(x->server, &x->loaded[model], x->server->models[model].name,
                                        a, &a->why);
        a->ids_of = model;
    }
    return a->why.status == MOE_OK ? MOE_OK : moe_fail(err, a->why.status, "%s", a->why.text);
}

/* Makes biases of the model's tokens from those of the request. */
static int make_biases(struct job *j, const struct moe_model *model, uint32_t *n_out,
                       struct moe_err *err)
{
    const struct moe_request *r = j->of->request;
    struct moe_ids ids = {0};
    struct moe_buf out = {0};
    int status = MOE_OK;
    for (uint32_t i = 0; i < r->n_biases && status == MOE_OK; i++) {
        const struct moe_request_bias *b = &r->biases[i];
        struct moe_logit_bias token = b->token;
        ids.n = 0;
        if (b->text)
            status =
                moe_tokenizer_encode(model->tokenizer, b->text, strlen(b->text), false, &ids, err);
        else if (token.id >= model->config.vocab)
            status = moe_fail(err, MOE_ERR_FORMAT,
                              "the request: 'logit_bias' names token %u: the model has %u",
                              token.id, model->config.vocab);
        else
            status = moe_ids_push(&ids, token.id, err);
        for (uint64_t k = 0; k < ids.n && status == MOE_OK; k++) {
            token.id = ids.ids[k];
            moe_buf_append(&out, &token, sizeof token);
        }
    }
    moe_ids_release(&ids);
    if (status == MOE_OK && out.failed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the biases of tokens");
    if (status != MOE_OK)
        moe_buf_release(&out);
    *n_out = (uint32_t)(out.size / sizeof *j->biases);
    j->biases = (struct moe_logit_bias *)(void *)out.data;
    return status;
}

/* A thought that the prompt opens and nobody wants ends at once; a grammar that the request gives
 * holds what follows it. */
static struct moe_thought_options thought_options(const struct loaded *l, const struct job *j)
{
    const struct moe_request *r = j->of->request;
    struct moe_thought_options t = moe_thought_options_of(
        l->chat, r->callable, j->thought == MOE_THOUGHT_OPEN, r->callable && !r->grammar);
    t.apart = t.chat && t.opened && r->grammar;
    t.most = t.opened && r->no_thought ? 0 : r->thought_tokens;
    return t;
}

static int add_to_batch(struct executor *x, struct job *j, struct moe_err *err)
{
    const struct loaded *l = &x->loaded[j->queued.expert];
    const struct moe_request *r = j->of->request;
    struct moe_sampler_options sampling = r->sampling;
    struct moe_sampler *sampler;
    sampling.seed = moe_request_seed(r, j->choice);
    moe_sampling_complete(&sampling, &l->engine->model->sampling);
    int status = make_biases(j, l->engine->model, &sampling.n_biases, err);
    sampling.biases = j->biases;
    if (status != MOE_OK)
        return status;
    if (r->grammar)
        status = moe_engine_constrain(l->engine, r->grammar, NULL, &j->constraint, err);
    else if (j->of->calls && j->of->calls[j->queued.expert])
        status = moe_engine_constrain(l->engine, j->of->calls[j->queued.expert],
                                      moe_chat_marks(l->chat), &j->constraint, err);
    const uint32_t vocab = l->engine->model->config.vocab;
    for (uint32_t i = 0; i < r->n_stop_ids && status == MOE_OK; i++)
        status = r->stop_ids[i] < vocab
                     ? moe_ids_push(&j->stop_ids, r->stop_ids[i], err)
                     : moe_fail(err, MOE_ERR_FORMAT,
                                "the request: 'stop_token_ids' names token %u: the model has %u",
                                r->stop_ids[i], vocab);
    if (status == MOE_OK && r->suffix)
        status = moe_prompt_between_ends(l->engine->model, &j->stop_ids, err);
    if (status == MOE_OK)
        status = moe_sampler_new(&sampler, &sampling, vocab, err);
    if (status != MOE_OK)
        return status;
    struct moe_generate_request request = {
        .prompt = j->of->ids.ids,
        .n_prompt = j->of->ids.n,
        .target = j->of->target,
        .sampler = sampler,
        .options = {.constraint = j->constraint,
                    .min_tokens = r->min_tokens,
                    .max_tokens = j->pooled ? 0 : r->max_tokens,
                    .ignore_eos = r->ignore_eos,
                    .stop_ids = j->stop_ids.ids,
                    .n_stop_ids = (uint32_t)j->stop_ids.n,
                    .draft = r->draft ? x->server->options.draft : 0,
                    .draft_ahead = r->draft && x->server->options.engine.ahead,
                    .again = j->of->again,
                    .stop_texts = j->stops,
                    .marks = j->reader ? moe_chat_marks(l->chat) : NULL,
                    .started = j->of->came,
                    .text = on_text,
                    .token = (r->logprobs || r->n_shown < r->n_each) && j->of->events.token
                                 ? on_token
                                 : NULL,
                    .state = j->pooled ? on_state : NULL,
                    .scores = r->logprobs && r->echo,
                    .n_top = r->top_logprobs,
                    .ctx = j},
        .owner = j->of->events.owner,
        .work = &j->work,
        .ended = on_ended,
    };
    if (j->reader)
        request.options.thought = thought_options(l, j);
    if (j->reader && r->callable)
        request.options.call_stop = moe_chat_call_stop(l->chat, &request.options.call_then);
    const uint32_t sequence = moe_generator_free_sequence(x->batch);
    const struct moe_prompt_text text = {request.owner, request.prompt, request.n_prompt};
    if (x->server->prompt_cache && sequence != UINT32_MAX)
        moe_prompt_cache_load(x->server->prompt_cache, l->engine, sequence, &text);
    status = moe_generator_add(x->batch, &request, &j->in_batch, err);
    if (status != MOE_OK)
        moe_sampler_free(sampler);
    return status;
}

/* What a prompt ends with. */
static enum moe_chat_thought thought_before(const struct loaded *l, const struct moe_ids *ids)
{
    struct moe_buf end = {0};
    for (uint64_t i = ids->n > MARK_TOKENS ? ids->n - MARK_TOKENS : 0; i < ids->n; i++) {
        uint32_t n = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(l->engine->model->tokenizer, ids->ids[i], &n);
        moe_buf_append(&end, bytes, n);
    }
    enum moe_chat_thought thought = end.failed || !end.size
                                        ? MOE_THOUGHT_NONE
                                        : moe_chat_thought_before(l->chat, end.data, end.size);
    moe_buf_release(&end);
    return thought;
}

enum { CALLS_PART = 8 /* of the steps: those that compute wait meanwhile */ };

/* Makes the grammar of calls in the form of a choice's model, which the others share. */
static int prepare_calls(struct executor *x, const struct job *j, enum moe_chat_thought thought,
                         struct moe_err *err)
{
    const struct moe_server *s = x->server;
    struct request *a = j->of;
    const struct moe_request *r = a->request;
    struct moe_allowance allowance = moe_server_allowance(s);
    const struct moe_calls_wanted wanted = {.tools = r->callable,
                                            .must = r->must_call,
                                            .parallel = r->parallel_calls,
                                            .thought = thought,
                                            .no_thought = r->no_thought};
    allowance.cancelled = &a->cancelled;
    allowance.max_steps /= CALLS_PART;
    if (!r->callable || r->grammar || (a->calls && a->calls[j->queued.expert]))
        return MOE_OK;
    if (!a->calls && !(a->calls = moe_alloc(s->n_models, sizeof(struct moe_grammar *), err)))
        return MOE_ERR_MEMORY;
    return moe_calls_grammar(&a->calls[j->queued.expert], x->loaded[j->queued.expert].chat, &wanted,
                             &allowance, err);
}

/* A chat's answer is read for thoughts and calls. */
static int begin_reader(struct executor *x, struct job *j, struct moe_err *err)
{
    const struct loaded *l = &x->loaded[j->queued.expert];
    const struct moe_request *r = j->of->request;
    if (r->kind != MOE_REQUEST_CHAT || !l->chat)
        return MOE_OK;
    j->thought = thought_before(l, &j->of->ids);
    MOE_TRY(prepare_calls(x, j, j->thought, err));
    return moe_answer_reader_new(&j->reader, l->chat, r->callable, j->thought == MOE_THOUGHT_OPEN,
                                 report_part, j, err);
}

/* What is asked of a prompt without an answer. */
static int do_task(struct executor *x, struct job *j, struct moe_err *err)
{
    const struct moe_engine *engine = x->loaded[j->queued.expert].engine;
    const struct request *a = j->of;
    struct moe_server_result result = {.n_prompt = a->ids.n,
                                       .ids = a->ids.ids,
                                       .text = &j->text,
                                       .tokenizer = engine->model->tokenizer,
                                       .context = engine->session->context};
    for (uint64_t i = 0; i < a->ids.n && a->request->task == MOE_TASK_TEXT; i++) {
        uint32_t n = 0;
        const uint8_t *bytes = moe_tokenizer_bytes(result.tokenizer, a->ids.ids[i], &n);
        if (a->ids.ids[i] >= moe_tokenizer_n_tokens(result.tokenizer))
            return moe_fail(err, MOE_ERR_FORMAT, "the request: 'tokens[%llu]' is not a token's id",
                            (unsigned long long)i);
        moe_buf_append(&j->text, bytes, n);
        if (j->text.size > MOE_REQUEST_MAX_REPLY_BYTES / 2) /* the reply has it twice */
            return moe_fail(err, MOE_ERR_FORMAT,
                            "the request: the text of 'tokens' takes more than %d MiB: send fewer "
                            "at a time",
                            MOE_REQUEST_MAX_REPLY_BYTES >> 21);
    }
    if (j->text.failed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the text of ids");
    job_finish(x, j, &result);
    return MOE_OK;
}

static int begin_state(struct job *j, const struct loaded *l, struct moe_err *err)
{
    free(j->pooled); /* of the model before */
    j->n_pooled = l->engine->model->config.hidden;
    j->pooled = moe_alloc(j->n_pooled, sizeof *j->pooled, err);
    return j->pooled ? MOE_OK : MOE_ERR_MEMORY;
}

/* Says the texts of a prompt's ids, where they come before the answer. */
static int echo_ids(const struct loaded *l, struct job *j)
{
    const struct moe_request *r = j->of->request;
    const struct moe_ids *ids = &j->of->ids;
    struct moe_buf text = {0};
    if (!r->echo || !r->inputs[j->of->ids_input].ids)
        return MOE_OK;
    for (uint64_t i = 0; i < ids->n; i++) {
        bool begins = false;
        uint32_t n = 0;
        const uint8_t *bytes = moe_answer_bytes(l->engine->model, NULL, ids->ids[i], &begins, &n);
        moe_buf_append(&text, bytes, n);
    }
    int status = text.failed ? MOE_ERR_MEMORY
                 : text.size ? on_text(j, (const char *)text.data, text.size)
                             : MOE_OK;
    moe_buf_release(&text);
    return status;
}

void job_begin(struct executor *x, struct job *j)
{
    const struct loaded *l = &x->loaded[j->queued.expert];
    const struct moe_request *r = j->of->request;
    struct moe_err err;
    if (!j->began)
        j->began = moe_seconds();
    j->x = x;
    j->before = moe_engine_changes(l->engine);
    j->holds = x->server->models[j->queued.expert].goes_on;
    add_to_route(j, x->server->models[j->queued.expert].name);
    pthread_mutex_lock(&j->of->preparing);
    int status = prepare_prompt(x, j, &err);
    if (status == MOE_OK && pools(r))
        status = begin_state(j, l, &err);
    if (status == MOE_OK && (r->task == MOE_TASK_IDS ||
                             r->task == MOE_TASK_TEXT)) { /* of one choice: nobody shares it */
        pthread_mutex_unlock(&j->of->preparing);
        if (do_task(x, j, &err) != MOE_OK)
            job_end(x, j, err.status, &err);
        return;
    }
    if (status == MOE_OK)
        status = begin_reader(x, j, &err);
    if (status == MOE_OK) {
        report_begin(j);
        j->stops = moe_prompt_stops(r->stops, r->kind == MOE_REQUEST_CHAT ? l->chat : NULL, &err);
        status = !j->stops || echo_ids(l, j) != MOE_OK
                     ? moe_fail(&err, MOE_ERR_MEMORY, "out of memory: the answer's text")
                     : add_to_batch(x, j, &err);
    }
    if (++j->of->n_begun >= r->n) {
        moe_ids_release(&j->of->ids);
        j->of->ids_of = MOE_COE_NONE;
    }
    pthread_mutex_unlock(&j->of->preparing);
    if (status != MOE_OK) {
        end_reader(j);
        job_end(x, j, status, &err);
        return;
    }
    j->turn_began = j->work;
    j->next = x->jobs;
    x->jobs = j;
    x->n_running++;
}

bool job_rest(struct executor *x, struct job *j)
{
    struct moe_server *s = x->server;
    uint64_t bytes = moe_generator_rest_bytes(x->batch);
    if (!large_fit(s, bytes) || !moe_generator_rest(x->batch, j->in_batch))
        return false;
    s->request_bytes += bytes;
    s->large_bytes += bytes;
    s->counts.rested++;
    x->n_resting++;
    j->rests = true;
    give_place_back(j);
    return true;
}

void job_resume(struct executor *x, struct job *j)
{
    struct moe_server *s = x->server;
    job_wake(x, j);
    j->turn_began = j->work;
    j->taken = true;
    j->of->client->turn.running++;
    pthread_mutex_unlock(&s->mutex);
    moe_generator_resume(x->batch, j->in_batch);
    pthread_mutex_lock(&s->mutex);
}

void job_stop(struct executor *x, struct job *j)
{
    moe_generator_cancel(x->batch, j->in_batch);
}
