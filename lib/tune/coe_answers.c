/* Sample requests of a collection: reading them, answering those without an answer. */
#define _POSIX_C_SOURCE 200809L /* nanosleep, pthread */

#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/text.h"
#include "engine/prompt.h"
#include "serve/lines.h"
#include "serve/server.h"
#include "tune/coe_bench.h"

struct answering {
    struct moe_coe_samples *out;
    const struct moe_coe_collection *collection;
    struct moe_server *server;
    const char *path;
    pthread_mutex_t mutex; /* guards what follows, and the usage */
    uint64_t n_ended;
    struct moe_err failed; /* the first that did */
};

/* "a > b > c". Under the mutex. */
static void count_answer(struct answering *a, const char *route)
{
    while (*route) {
        size_t n = strcspn(route, " ");
        for (uint32_t i = 0; i < a->collection->n_models; i++) {
            const char *name = a->collection->models[i].name;
            if (strlen(name) == n && memcmp(name, route, n) == 0)
                a->out->usage[i] += 1;
        }
        route += n + strspn(route + n, " >");
    }
}

static void ended(void *ctx, uint32_t choice, const struct moe_server_result *result)
{
    struct answering *a = ctx;
    (void)choice;
    pthread_mutex_lock(&a->mutex);
    a->n_ended++;
    if (result->status == MOE_OK && result->route)
        count_answer(a, result->route);
    else if (result->status != MOE_OK && a->failed.status == MOE_OK)
        a->failed = *result->err;
    pthread_mutex_unlock(&a->mutex);
}

static int submit(void *ctx, uint64_t line, struct moe_request **request, struct moe_err *err)
{
    struct answering *a = ctx;
    struct moe_err why;
    const struct moe_server_events events = {.ctx = a, .ended = ended};
    (*request)->n = 1;
    int status = moe_server_submit(a->server, *request, &events, NULL, &why);
    if (status != MOE_OK)
        return moe_fail(err, status, "%s: line %" PRIu64 ": %s", a->path, line, why.text);
    *request = NULL;
    return MOE_OK;
}

/* Until all have ended, or the first has failed. */
static int wait_for_all(struct answering *a, const struct moe_progress *progress,
                        struct moe_err *err)
{
    for (;;) {
        pthread_mutex_lock(&a->mutex);
        uint64_t n = a->n_ended;
        struct moe_err failed = a->failed;
        pthread_mutex_unlock(&a->mutex);
        moe_progress_report(progress, "answers", n, a->out->n);
        if (failed.status != MOE_OK)
            return moe_fail(err, failed.status, "%s: %s", a->path, failed.text);
        if (n == a->out->n)
            return MOE_OK;
        if (moe_progress_stopped(progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
}

bool moe_coe_samples_unknown(const struct moe_coe_samples *s,
                             const struct moe_coe_collection *collection)
{
    for (uint32_t i = 0; i < collection->n_models; i++)
        if (s->usage[i] < 0)
            return true;
    return false;
}

int moe_coe_samples_answer(struct moe_coe_samples *s, const struct moe_coe_collection *collection,
                           const char *directory, const char *path, uint64_t memory_bytes,
                           const struct moe_progress *progress, struct moe_err *err)
{
    struct answering a = {
        .out = s, .collection = collection, .path = path, .mutex = PTHREAD_MUTEX_INITIALIZER};
    const struct moe_server_options options = {
        .collection = collection,
        .directory = directory,
        .engine = {.memory_bytes = memory_bytes},
        .evict = MOE_COE_TWO_STAGE,
        .max_queue = s->n < UINT32_MAX ? (uint32_t)s->n : UINT32_MAX,
    };
    int status = moe_server_open(&a.server, &options, progress, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t i = 0; i < collection->n_models; i++)
        s->usage[i] = 0;
    status = moe_coe_each_sample(path, submit, &a, NULL, err);
    if (status == MOE_OK)
        status = wait_for_all(&a, progress, err);
    moe_server_close(a.server);
    for (uint32_t i = 0; i < collection->n_models; i++)
        s->usage[i] /= (double)s->n;
    return status;
}

/* ---- Lines ---- */

static int read_line(struct moe_request **q, const char *path, uint64_t number, int got,
                     const char *text, uint64_t n, struct moe_err *err)
{
    struct moe_err why;
    if (got == LINES_INPUT_TOO_LONG)
        return moe_fail(err, MOE_ERR_FORMAT,
                        "%s: line %" PRIu64 ": the request is longer than %d MiB", path, number,
                        MOE_LINES_MAX_BYTES >> 20);
    int status = lines_read_request(q, text, n, NULL, &why);
    return status == MOE_OK
               ? MOE_OK
               : moe_fail(err, status, "%s: line %" PRIu64 ": %s", path, number, why.text);
}

int moe_coe_each_sample(const char *path,
                        int (*fn)(void *ctx, uint64_t line, struct moe_request **request,
                                  struct moe_err *err),
                        void *ctx, const struct moe_progress *progress, struct moe_err *err)
{
    struct lines_input in;
    const char *line;
    uint64_t n, found = 0;
    int got = LINES_INPUT_END, status = lines_input_open(&in, path, err);
    while (status == MOE_OK && (got = lines_input_next(&in, progress ? progress->stop : NULL, &line,
                                                       &n, err)) > LINES_INPUT_END) {
        struct moe_request *q = NULL;
        if (got == LINES_INPUT_LINE && moe_all_blank(line, n))
            continue;
        found++;
        status = read_line(&q, path, in.n_lines, got, line, n, err);
        if (status == MOE_OK)
            status = fn(ctx, in.n_lines, &q, err);
        moe_request_free(q);
        moe_progress_report(progress, "sample requests", found, 0);
        if (status == MOE_OK && moe_progress_stopped(progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    lines_input_close(&in);
    status = status == MOE_OK && got < 0 ? got : status;
    return status == MOE_OK && found == 0
               ? moe_fail(err, MOE_ERR_FORMAT, "%s: there are no requests", path)
               : status;
}

/* ---- Samples ---- */

struct reading {
    struct moe_coe_samples *out;
    const struct moe_coe_collection *collection;
    const struct moe_model *model;
    struct moe_chat *chat; /* NULL: it has none */
    const char *path;
    uint64_t n_answers;
    bool *unknown; /* [n_models] follows results whose shares are not known */
};

/* ---- Usage ---- */

/* Whether shares say which results of an expert continue; *tested: a rule looks at them. */
static bool has_shares(const struct moe_coe_collection *c, uint32_t expert, bool *tested)
{
    bool shares = true;
    *tested = false;
    for (uint32_t i = 0; i < c->n_follows; i++) {
        const struct moe_coe_follow *f = &c->follows[i];
        if (f->from != expert)
            continue;
        shares = shares && f->share >= 0;
        *tested = *tested || f->test.equals[0] || f->test.matches[0];
    }
    return shares;
}

/* Adds a request, or the share of it that gets here, to an expert and its followers. There are no
 * circles. */
static void use(struct reading *r, uint32_t expert, double part)
{
    const struct moe_coe_collection *c = r->collection;
    bool tested;
    r->out->usage[expert] += part;
    bool shares = has_shares(c, expert, &tested);
    for (uint32_t i = 0; i < c->n_follows; i++) {
        const struct moe_coe_follow *f = &c->follows[i];
        if (f->from != expert)
            continue;
        if (!shares && tested) {
            r->unknown[f->to] = true;
            continue;
        }
        use(r, f->to, shares ? part * f->share : part);
        if (!shares) /* the first rule takes them all */
            return;
    }
}

/* What follows an expert that is not known is not known either. */
static void spread_unknown(struct reading *r)
{
    const struct moe_coe_collection *c = r->collection;
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < c->n_follows; i++)
            if (r->unknown[c->follows[i].from] && !r->unknown[c->follows[i].to])
                more = r->unknown[c->follows[i].to] = true;
    }
}

/* ---- Requests ---- */

static const char *field(void *ctx, const char *name)
{
    return moe_request_field(ctx, name);
}

static int add_ids(struct reading *r, const struct moe_request *q, struct moe_err *err)
{
    struct moe_ids *ids = &r->out->prompts;
    const struct moe_languages languages = {q->source_language, q->target_language};
    uint32_t target;
    for (uint32_t i = 0; i < q->n_inputs; i++) {
        const struct moe_request_input *p = &q->inputs[i];
        if (p->text && q->suffix)
            MOE_TRY(moe_prompt_between(r->model, p->text, p->n, q->suffix, ids, err));
        else if (p->text && (q->source_language || q->target_language))
            MOE_TRY(moe_prompt_source(r->model, &languages, p->text, p->n, ids, &target, err));
        else if (p->text)
            MOE_TRY(moe_prompt_prefixed(r->model, q->prefix_text, p->text, p->n, ids, err));
        for (uint64_t k = 0; p->ids && k < p->n; k++)
            MOE_TRY(moe_ids_push(ids, p->ids[k], err));
    }
    const struct moe_chat_input input = {.messages = q->messages,
                                         .tools = q->tools,
                                         .variables = q->variables,
                                         .add_generation_prompt = true,
                                         .now = moe_chat_today()};
    if (q->kind == MOE_REQUEST_CHAT && r->chat)
        return moe_prompt_chat(r->model, r->chat, &input, UINT64_MAX - 1, ids, NULL, err);
    for (size_t i = 0; i < json_array_size(q->messages); i++) {
        const char *text = moe_chat_text(json_array_get(q->messages, i));
        if (text)
            MOE_TRY(moe_prompt_plain(r->model, text, strlen(text), ids, err));
    }
    return MOE_OK;
}

static int add_request(void *ctx, uint64_t line, struct moe_request **request, struct moe_err *err)
{
    struct reading *r = ctx;
    struct moe_request *q = *request;
    const struct moe_coe_collection *c = r->collection;
    uint32_t expert = q->model ? moe_coe_find(c, q->model) : MOE_COE_NONE;
    if (expert == MOE_COE_NONE && q->model && strcmp(q->model, "auto") != 0)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: line %" PRIu64 ": there is no expert '%s'",
                        r->path, line, q->model);
    if (expert == MOE_COE_NONE)
        expert = c->n_models == 1 ? 0 : moe_coe_route(c, field, q);
    if (expert == MOE_COE_NONE)
        return moe_fail(err, MOE_ERR_FORMAT, "%s: line %" PRIu64 ": no rule takes this request",
                        r->path, line);
    use(r, expert, 1);
    r->out->n++;
    if (q->max_tokens != UINT64_MAX) {
        r->out->mean_answer += (double)q->max_tokens;
        r->n_answers++;
    }
    return add_ids(r, q, err);
}

int moe_coe_samples_read(struct moe_coe_samples *out, const struct moe_coe_collection *collection,
                         const struct moe_model *model, const char *path,
                         const struct moe_progress *progress, struct moe_err *err)
{
    struct reading r = {.out = out, .collection = collection, .model = model, .path = path};
    *out = (struct moe_coe_samples){0};
    out->usage = moe_alloc(collection->n_models, sizeof *out->usage, err);
    r.unknown = moe_alloc(collection->n_models, sizeof *r.unknown, err);
    int status;
    MOE_STEP(out->usage && r.unknown ? MOE_OK : MOE_ERR_MEMORY);
    if (model)
        MOE_STEP(moe_prompt_open_chat(&r.chat, model, "the chat template", NULL, 0, err));
    MOE_STEP(moe_coe_each_sample(path, add_request, &r, progress, err));
    spread_unknown(&r);
    for (uint32_t i = 0; i < collection->n_models; i++)
        out->usage[i] = r.unknown[i] ? -1 : out->usage[i] / (double)out->n;
    out->mean_prompt = (double)out->prompts.n / (double)out->n;
    out->mean_answer /= r.n_answers ? (double)r.n_answers : 1;
out:
    free(r.unknown);
    moe_chat_free(r.chat);
    return status;
}

void moe_coe_samples_release(struct moe_coe_samples *s)
{
    free(s->usage);
    moe_ids_release(&s->prompts);
    *s = (struct moe_coe_samples){0};
}
