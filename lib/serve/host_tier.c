#define _POSIX_C_SOURCE 200809L /* pthread, st_mtim */
#include "serve/host_tier.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "serve/memory.h"

enum place { AWAY, COMING, THERE };

/* A pack in memory. The pool says which ones have room; who reads one holds it. */
struct image {
    enum place place;
    uint32_t n_holds;
    struct moe_pack_image file; /* owned */
    struct stat of;             /* the file when it was read: another one is read anew */
};

struct host_tier {
    struct moe_coe_pool *pool;
    struct image *images; /* [n_models] */
    uint64_t *sizes;      /* [n_models] */
    uint32_t *evicted;    /* [n_models] */
    pthread_cond_t came;  /* one is there, or could not be read */
    uint64_t bytes;
    uint32_t n; /* there */
};

/* ---- Opening ---- */

int host_tier_open(struct moe_server *s, struct moe_err *err)
{
    if (s->host_bytes == 0)
        return MOE_OK;
    struct host_tier *h = moe_alloc(1, sizeof *h, err);
    if (!h)
        return MOE_ERR_MEMORY;
    s->host = h;
    pthread_cond_init(&h->came, NULL);
    h->images = moe_alloc(s->n_models, sizeof *h->images, err);
    h->sizes = moe_alloc(s->n_models, sizeof *h->sizes, err);
    h->evicted = moe_alloc(s->n_models, sizeof *h->evicted, err);
    if (!h->images || !h->sizes || !h->evicted)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < s->n_models; i++)
        h->sizes[i] = memory_in_tier(s, i) ? moe_round_up(s->models[i].file_bytes, MOE_PACK_ALIGN)
                                           : UINT64_MAX;
    int status = moe_coe_pool_open(&h->pool, s->all, s->host_bytes, s->options.evict, err);
    if (status == MOE_OK)
        moe_coe_pool_set_sizes(h->pool, h->sizes);
    return status;
}

void host_tier_close(struct moe_server *s)
{
    struct host_tier *h = s->host;
    if (!h)
        return;
    for (uint32_t i = 0; h->images && i < s->n_models; i++)
        moe_pack_image_free(&h->images[i].file);
    moe_coe_pool_close(h->pool);
    pthread_cond_destroy(&h->came);
    free(h->images);
    free(h->sizes);
    free(h->evicted);
    free(h);
    s->host = NULL;
}

bool host_tier_has(const struct moe_server *s, uint32_t model)
{
    return s->host && s->host->images[model].place == THERE;
}

void host_tier_count(const struct moe_server *s, uint64_t *bytes, uint32_t *n)
{
    *bytes = s->host ? s->host->bytes : 0;
    *n = s->host ? s->host->n : 0;
}

/* ---- Reading ---- */

static bool is_closing(void *server)
{
    struct moe_server *s = server;
    pthread_mutex_lock(&s->mutex);
    bool closing = s->closing;
    pthread_mutex_unlock(&s->mutex);
    return closing;
}

static bool is_as_read(const char *path, const struct stat *was)
{
    struct stat now;
    return stat(path, &now) == 0 && now.st_dev == was->st_dev && now.st_ino == was->st_ino &&
           now.st_size == was->st_size && now.st_mtim.tv_sec == was->st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == was->st_mtim.tv_nsec;
}

/* Takes an image that nobody holds out of the tier: free_image. Under the mutex. */
static struct moe_pack_image take_out(struct host_tier *h, uint32_t model)
{
    struct image *i = &h->images[model];
    struct moe_pack_image file = i->file;
    if (i->place == THERE) {
        h->bytes -= h->sizes[model];
        h->n--;
    }
    *i = (struct image){.place = AWAY};
    return file;
}

/* Makes room and holds it. False: there is none. The mutex is held before and after. */
static bool make_room(struct moe_server *s, uint32_t model)
{
    struct host_tier *h = s->host;
    uint32_t n;
    if (!moe_coe_pool_admit(h->pool, model, h->evicted, &n))
        return false;
    moe_coe_pool_hold(h->pool, model);
    h->images[model].place = COMING;
    h->images[model].n_holds = 1;
    /* Freed under the mutex: what others read meanwhile would be beside it. */
    for (uint32_t i = 0; i < n; i++) {
        struct moe_pack_image file = take_out(h, h->evicted[i]);
        moe_pack_image_free(&file);
    }
    return true;
}

/* Reads what has room. The mutex is held before and after. */
static int bring(struct moe_server *s, uint32_t model, struct moe_err *err)
{
    struct host_tier *h = s->host;
    struct image *i = &h->images[model];
    pthread_mutex_unlock(&s->mutex);
    /* A file that changes after this is read anew next time. */
    const char *path = s->models[model].path;
    int status = stat(path, &i->of) == 0
                     ? MOE_OK
                     : moe_fail(err, MOE_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (status == MOE_OK)
        status = moe_pack_image_read(&i->file, path, h->sizes[model], is_closing, s, err);
    pthread_mutex_lock(&s->mutex);
    if (status == MOE_OK) {
        i->place = THERE;
        h->bytes += h->sizes[model];
        h->n++;
    } else {
        moe_coe_pool_drop(h->pool, model);
        struct moe_pack_image file = take_out(h, model);
        moe_pack_image_free(&file);
    }
    pthread_cond_broadcast(&h->came);
    return status;
}

int host_tier_hold(struct moe_server *s, uint32_t model, bool may_read,
                   struct moe_pack_image *image, bool *was_there, struct moe_err *err)
{
    struct host_tier *h = s->host;
    int status = MOE_OK;
    *image = (struct moe_pack_image){NULL, 0};
    *was_there = false;
    if (!h || h->sizes[model] == UINT64_MAX)
        return MOE_OK;
    struct image *i = &h->images[model];
    pthread_mutex_lock(&s->mutex);
    while (i->place == COMING && may_read)
        pthread_cond_wait(&h->came, &s->mutex);
    if (i->place == THERE && i->n_holds == 0 && !is_as_read(s->models[model].path, &i->of)) {
        moe_coe_pool_drop(h->pool, model);
        struct moe_pack_image file = take_out(h, model);
        moe_pack_image_free(&file);
    }
    if (i->place == THERE) {
        *was_there = true;
        i->n_holds++;
        moe_coe_pool_use(h->pool, model);
        moe_coe_pool_hold(h->pool, model);
    } else if (may_read && i->place == AWAY && make_room(s, model)) {
        status = bring(s, model, err);
    }
    if (status == MOE_OK && i->place == THERE)
        *image = i->file;
    pthread_mutex_unlock(&s->mutex);
    return status;
}

void host_tier_release(struct moe_server *s, uint32_t model, bool keep)
{
    struct host_tier *h = s->host;
    struct moe_pack_image file = {NULL, 0};
    pthread_mutex_lock(&s->mutex);
    moe_coe_pool_release(h->pool, model);
    if (--h->images[model].n_holds == 0 && !keep) {
        moe_coe_pool_drop(h->pool, model);
        file = take_out(h, model);
    }
    pthread_mutex_unlock(&s->mutex);
    moe_pack_image_free(&file);
}

int host_tier_fill(struct moe_server *s, const struct moe_progress *progress, struct moe_err *err)
{
    struct host_tier *h = s->host;
    uint32_t model;
    int status = MOE_OK;
    if (!h)
        return MOE_OK;
    pthread_mutex_lock(&s->mutex);
    while (status == MOE_OK && (model = moe_coe_pool_likeliest(h->pool)) != MOE_COE_NONE) {
        moe_progress_report(progress, "packs into main memory", h->bytes, s->host_bytes);
        if (moe_progress_stopped(progress)) {
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        } else if (make_room(s, model)) {
            if (bring(s, model, NULL) == MOE_OK) {
                moe_coe_pool_release(h->pool, model);
                h->images[model].n_holds--;
            } else {
                h->sizes[model] = UINT64_MAX; /* requests for it say why */
            }
        }
    }
    pthread_mutex_unlock(&s->mutex);
    return status;
}
