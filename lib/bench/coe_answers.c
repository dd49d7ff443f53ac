#define _POSIX_C_SOURCE 200809L /* nanosleep, pthread */
#include "bench/coe_answers.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "bench/coe_lines.h"
#include "serve/server.h"

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
static void count(struct answering *a, const char *route)
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
        count(a, result->route);
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
