/* JSON Lines service: reads requests from a file, submits them and writes their answers. */
#define _POSIX_C_SOURCE 200809L /* pthread */
#include "serve/lines.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/text.h"
#include "fmt/emit.h"
#include "serve/reply.h"
#include "serve/server.h"

enum { LOOK_MS = 100 /* between checks of the stop flag, and of a full queue */ };

/* A request being served: owned by the reader until submitted, then by the server's threads, then
 * by the writer. */
struct task {
    struct lines *of;
    struct task *next, *before; /* in the list of running or ended tasks */
    uint64_t line, bytes;
    char *id; /* JSON, or NULL */
    uint64_t in_server;
    uint32_t n_choices, n_ended;
    bool dropped; /* cancelled: no result */
    struct moe_reply *reply;
    struct moe_buf body;
    struct moe_changes changes; /* of the choice whose passes did most */
    bool refused;               /* with `why` */
    struct moe_err why;
};

struct lines {
    struct moe_server *server;
    const struct moe_lines_options *options;
    struct moe_lines_counts counts;
    struct lines_output output;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct task *running, *ended, **last_ended;
    uint32_t n_ahead;
    uint64_t ahead_bytes;
    bool all_read;
    int status; /* of writing */
    struct moe_err err;
};

/* ---- Tasks ---- */

static void task_free(struct task *t)
{
    if (!t)
        return;
    moe_reply_free(t->reply);
    moe_buf_release(&t->body);
    free(t->id);
    free(t);
}

static struct task *task_new(struct lines *l, uint64_t line, uint64_t bytes, struct moe_err *err)
{
    struct task *t = moe_alloc(1, sizeof *t, err);
    if (t)
        *t = (struct task){.of = l, .line = line, .bytes = bytes};
    return t;
}

/* Hands the task to the writer. Under the mutex. */
static void task_end(struct task *t)
{
    struct lines *l = t->of;
    t->next = NULL;
    *l->last_ended = t;
    l->last_ended = &t->next;
    pthread_cond_broadcast(&l->changed);
}

static void task_refuse(struct task *t, const struct moe_err *why)
{
    t->refused = true;
    t->why = *why;
}

/* ---- Events of the server ---- */

static void on_part(void *ctx, uint32_t choice, const struct moe_answer_part *part)
{
    struct task *t = ctx;
    moe_reply_part(t->reply, choice, part, &t->body);
}

static void on_token(void *ctx, uint32_t choice, const struct moe_token_said *said)
{
    moe_reply_token(((struct task *)ctx)->reply, choice, said);
}

static void on_end(void *ctx, uint32_t choice, const struct moe_server_result *result)
{
    struct task *t = ctx;
    struct lines *l = t->of;
    moe_reply_ended(t->reply, choice, result, &t->body);
    t->dropped |= result->status == MOE_OK && result->why == MOE_STOP_USER;
    if (result->changes.activations > t->changes.activations)
        t->changes = result->changes;
    if (++t->n_ended < t->n_choices)
        return;
    if (moe_reply_failed(t->reply))
        task_refuse(t, moe_reply_failed(t->reply));
    pthread_mutex_lock(&l->mutex);
    if (t->before)
        t->before->next = t->next;
    else
        l->running = t->next;
    if (t->next)
        t->next->before = t->before;
    task_end(t);
    pthread_mutex_unlock(&l->mutex);
}

/* ---- Writing ---- */

static void write_result(const struct task *t, struct moe_buf *line)
{
    struct moe_emit e;
    char id[40];
    snprintf(id, sizeof id, LINES_RESULT_ID "%" PRIu64, t->line);
    moe_emit_begin_json(&e, line, MOE_EMIT_COMPACT);
    moe_emit_text(&e, "id", id);
    if (t->id)
        moe_emit_json(&e, "custom_id", t->id, strlen(t->id));
    else
        moe_emit_null(&e, "custom_id");
    if (t->refused) {
        moe_emit_null(&e, "response");
        moe_reply_emit_error(&e, moe_reply_http_status(&t->why), &t->why);
    } else {
        moe_emit_open_map(&e, "response");
        moe_emit_u64(&e, "status_code", 200);
        moe_emit_text(&e, "request_id", moe_reply_id(t->reply));
        moe_emit_json(&e, "body", t->body.data, t->body.size);
        moe_emit_close(&e);
        moe_emit_null(&e, "error");
    }
    if (!moe_changes_none(&t->changes)) {
        moe_emit_open_map(&e, "inexact");
        moe_reply_emit_changes(&e, &t->changes);
        moe_emit_close(&e);
    }
    moe_emit_end(&e, NULL);
    line->failed |= t->body.failed;
}

/* The next task that has ended; NULL: no more will. Under the mutex. */
static struct task *next_ended(struct lines *l)
{
    while (!l->ended && !(l->all_read && l->n_ahead == 0))
        pthread_cond_wait(&l->changed, &l->mutex);
    struct task *t = l->ended;
    if (t && !(l->ended = t->next))
        l->last_ended = &l->ended;
    return t;
}

static void *write_results(void *arg)
{
    struct lines *l = arg;
    struct moe_buf line = {0};
    struct moe_err err;
    struct task *t;
    pthread_mutex_lock(&l->mutex);
    while ((t = next_ended(l)) != NULL) {
        const bool failed = t->refused && moe_reply_http_status(&t->why) >= 500;
        const bool counts = l->status == MOE_OK && !t->dropped;
        const bool wanted = counts && !(failed && l->options->output);
        pthread_mutex_unlock(&l->mutex);
        int status = MOE_OK;
        moe_buf_clear(&line);
        if (wanted) {
            write_result(t, &line);
            status = lines_output_put(&l->output, &line, &err);
        }
        pthread_mutex_lock(&l->mutex);
        if (status != MOE_OK) {
            l->status = status;
            l->err = err;
        } else if (counts) {
            l->counts.n_served += !t->refused;
            l->counts.n_refused += t->refused && !failed;
            if (failed && l->counts.n_failed++ == 0)
                l->counts.why = t->why;
        }
        l->n_ahead--;
        l->ahead_bytes -= t->bytes;
        pthread_cond_broadcast(&l->changed);
        task_free(t);
    }
    pthread_mutex_unlock(&l->mutex);
    moe_buf_release(&line);
    return NULL;
}

/* ---- Reading ---- */

/* The error of writing, or MOE_ERR_INTERRUPTED if *stop is set; else MOE_OK. Under the mutex. */
static int check_end(const struct lines *l, struct moe_err *err)
{
    if (l->status != MOE_OK)
        *err = l->err;
    else if (l->options->stop && *l->options->stop)
        return moe_fail(err, MOE_ERR_INTERRUPTED, "interrupted");
    return l->status;
}

/* Waits until there is room for a task, and takes it. */
static int take_room(struct lines *l, const struct task *t, struct moe_err *err)
{
    int status;
    pthread_mutex_lock(&l->mutex);
    while ((status = check_end(l, err)) == MOE_OK &&
           (l->n_ahead >= MOE_LINES_AHEAD ||
            (l->n_ahead > 0 && l->ahead_bytes + t->bytes > MOE_LINES_AHEAD_BYTES)))
        moe_wait_at_most(&l->changed, &l->mutex, LOOK_MS);
    if (status == MOE_OK) {
        l->n_ahead++;
        l->ahead_bytes += t->bytes;
    }
    pthread_mutex_unlock(&l->mutex);
    return status;
}

/* Submits a request, later if the queue is full; takes it in any case. A refusal by the server
 * becomes its result. The task is gone afterwards. */
static int submit_task(struct lines *l, struct task *t, struct moe_request *r, struct moe_err *err)
{
    const struct moe_server_events events = {
        .ctx = t, .part = on_part, .token = on_token, .ended = on_end};
    struct moe_err why;
    int status = MOE_OK, refused = MOE_ERR_LIMIT;
    pthread_mutex_lock(&l->mutex);
    t->next = l->running;
    if (t->next)
        t->next->before = t;
    l->running = t;
    pthread_mutex_unlock(&l->mutex);
    while (status == MOE_OK && refused == MOE_ERR_LIMIT) {
        refused = moe_server_submit(l->server, r, &events, &t->in_server, &why);
        if (refused == MOE_OK)
            return MOE_OK;
        pthread_mutex_lock(&l->mutex);
        status = check_end(l, err);
        if (status == MOE_OK && refused == MOE_ERR_LIMIT)
            moe_wait_at_most(&l->changed, &l->mutex, LOOK_MS);
        pthread_mutex_unlock(&l->mutex);
    }
    moe_request_free(r);
    pthread_mutex_lock(&l->mutex);
    l->running = t->next; /* only this thread inserts in front */
    if (t->next)
        t->next->before = NULL;
    task_refuse(t, &why);
    t->dropped = status != MOE_OK;
    task_end(t);
    pthread_mutex_unlock(&l->mutex);
    return status;
}

static int serve_line(struct lines *l, struct task *t, const char *line, bool too_long,
                      struct moe_err *err)
{
    struct moe_allowance allowance = moe_server_allowance(l->server);
    struct moe_request *r = NULL;
    struct moe_err why = {0};
    int status = take_room(l, t, err);
    if (status != MOE_OK) {
        task_free(t);
        return status;
    }
    if (too_long)
        moe_fail(&why, MOE_ERR_FORMAT, "the request is longer than %d MiB",
                 MOE_LINES_MAX_BYTES >> 20);
    else if (lines_read_request(&r, line, t->bytes, &allowance, &why) == MOE_OK &&
             moe_reply_new(&t->reply, r, moe_server_model(l->server, 0), &why) == MOE_OK) {
        t->n_choices = r->n;
        return submit_task(l, t, r, err);
    }
    moe_request_free(r);
    task_refuse(t, &why);
    pthread_mutex_lock(&l->mutex);
    task_end(t);
    pthread_mutex_unlock(&l->mutex);
    return MOE_OK;
}

static int read_lines(struct lines *l, struct lines_input *in, struct moe_err *err)
{
    const char *line;
    uint64_t n;
    int got, status = MOE_OK;
    while (status == MOE_OK &&
           (got = lines_input_next(in, l->options->stop, &line, &n, err)) != LINES_INPUT_END) {
        bool has = false;
        if (got < 0)
            return got;
        if (got == LINES_INPUT_LINE && moe_all_blank(line, n))
            continue;
        struct task *t = task_new(l, in->n_lines, n, err);
        status = t ? lines_read_id(&t->id, line, n, err) : MOE_ERR_MEMORY;
        if (status == MOE_OK)
            status = lines_output_has(&l->output, in->n_lines, t->id, &has, err);
        l->counts.n_before += has;
        if (status != MOE_OK || has)
            task_free(t);
        else
            status = serve_line(l, t, line, got == LINES_INPUT_TOO_LONG, err);
    }
    return status;
}

/* ---- The whole ---- */

/* Ends the reading; cancels running tasks if it ended badly. */
static void end_reading(struct lines *l, bool cancel)
{
    pthread_mutex_lock(&l->mutex);
    l->all_read = true;
    for (const struct task *t = l->running; t && cancel; t = t->next)
        moe_server_cancel(l->server, t->in_server);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
}

/* Waits for running tasks, until those must be cancelled too. */
static int wait_for_rest(struct lines *l, struct moe_err *err)
{
    int status;
    pthread_mutex_lock(&l->mutex);
    while ((status = check_end(l, err)) == MOE_OK && l->n_ahead > 0)
        moe_wait_at_most(&l->changed, &l->mutex, LOOK_MS);
    pthread_mutex_unlock(&l->mutex);
    return status;
}

static int serve_all(struct lines *l, struct lines_input *in, struct moe_err *err)
{
    pthread_t writer;
    if (pthread_create(&writer, NULL, write_results, l) != 0)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: a thread for results");
    int status = read_lines(l, in, err);
    if (status == MOE_OK)
        status = wait_for_rest(l, err);
    end_reading(l, status != MOE_OK);
    pthread_join(writer, NULL);
    moe_server_drain(l->server); /* it has reported all ends, but may not have freed everything */
    if (status == MOE_OK && l->status != MOE_OK) {
        *err = l->err;
        status = l->status;
    }
    return status;
}

int moe_lines_serve(struct moe_server *server, const struct moe_lines_options *options,
                    struct moe_lines_counts *counts, struct moe_err *err)
{
    struct lines l = {.server = server, .options = options};
    struct lines_input in;
    int status = lines_input_open(&in, options->input, err);
    if (status == MOE_OK)
        status = lines_output_open(&l.output, options, err);
    if (status == MOE_OK) {
        l.last_ended = &l.ended;
        pthread_mutex_init(&l.mutex, NULL);
        pthread_cond_init(&l.changed, NULL);
        status = serve_all(&l, &in, err);
        status = lines_output_close(&l.output, status, err);
        pthread_cond_destroy(&l.changed);
        pthread_mutex_destroy(&l.mutex);
    }
    lines_input_close(&in);
    *counts = l.counts;
    return status;
}
