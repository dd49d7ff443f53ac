#include "serve/http_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* An answer may take this part of all buffers. */
enum { ANSWER_PART = 4 };
/* An empty buffer keeps at most this much. */
enum { KEPT_BYTES = 16 << 10 };

struct exchange *exchange_new(struct moe_http *h, struct MHD_Connection *connection)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    *x = (struct exchange){
        .http = h, .connection = connection, .route = MOE_HTTP_ELSEWHERE, .watched = -1};
    x->holders = 1;
    pthread_mutex_lock(&h->lock);
    x->next = h->exchanges;
    x->link = &h->exchanges;
    if (x->next)
        x->next->link = &x->next;
    h->exchanges = x;
    pthread_mutex_unlock(&h->lock);
    return x;
}

void exchange_hold(struct exchange *x)
{
    pthread_mutex_lock(&x->http->lock);
    x->holders++;
    pthread_mutex_unlock(&x->http->lock);
}

void exchange_release(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool last = --x->holders == 0;
    if (last) {
        *x->link = x->next;
        if (x->next)
            x->next->link = x->link;
        h->buffered -= x->booked;
    }
    pthread_cond_broadcast(&h->fewer);
    pthread_mutex_unlock(&h->lock);
    if (!last)
        return;
    if (x->completion)
        x->free_completion(x->completion);
    moe_buf_release(&x->body);
    moe_buf_release(&x->out);
    free(x);
}

void exchange_set_stage(struct exchange *x, enum exchange_stage stage)
{
    pthread_mutex_lock(&x->http->lock);
    x->stage = stage;
    pthread_mutex_unlock(&x->http->lock);
}

void exchange_wake(struct moe_http *h)
{
    uint64_t one = 1;
    ssize_t put = write(h->wake, &one, sizeof one);
    (void)put; /* full: it is awake */
}

void exchange_tell(struct exchange *x)
{
    struct moe_http *h = x->http;
    if (x->told || !x->connection)
        return;
    x->holders++;
    if (!h->told)
        exchange_wake(h);
    x->told = true;
    x->next_told = h->told;
    h->told = x;
}

struct exchange *exchange_next_told(struct moe_http *h, bool *suspended, bool *is_cut)
{
    pthread_mutex_lock(&h->lock);
    struct exchange *x = h->told;
    if (x) {
        h->told = x->next_told;
        x->told = false;
        *suspended = x->suspended;
        *is_cut = x->cut;
        x->suspended = false;
    }
    pthread_mutex_unlock(&h->lock);
    return x;
}

static void cut(struct exchange *x)
{
    struct moe_http *h = x->http;
    if (x->cut)
        return;
    x->cut = true;
    h->counts.cut++;
    h->buffered -= x->booked;
    x->booked = 0;
    if (x->stage == EXCHANGE_WAITING) /* else it may be in use: it goes with its connection */
        moe_buf_release(&x->out);
    exchange_tell(x);
}

void exchange_book(struct exchange *x, uint64_t n)
{
    struct moe_http *h = x->http;
    if (x->cut)
        return;
    x->booked += n;
    h->buffered += n;
    if (x->booked > h->options.buffer_bytes / ANSWER_PART)
        cut(x);
    while (h->buffered > h->options.buffer_bytes) {
        struct exchange *most = NULL;
        for (struct exchange *other = h->exchanges; other; other = other->next)
            if (!other->cut && (!most || other->booked > most->booked))
                most = other;
        cut(most);
    }
}

void exchange_put(struct exchange *x, const struct moe_buf *bytes)
{
    if (x->cut || x->gone || (!bytes->size && !bytes->failed))
        return;
    moe_buf_append(&x->out, bytes->data, bytes->size);
    exchange_book(x, bytes->size);
    if (x->out.failed || bytes->failed)
        cut(x);
    exchange_tell(x);
}

bool exchange_receive(struct exchange *x, const char *bytes, uint64_t n)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    bool fits = !x->cut && h->buffered + n <= h->options.buffer_bytes;
    if (fits) {
        h->buffered += n;
        x->booked += n;
    }
    pthread_mutex_unlock(&h->lock);
    if (fits)
        moe_buf_append(&x->body, bytes, n);
    return fits && !x->body.failed;
}

void exchange_drop_body(struct exchange *x)
{
    struct moe_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    if (!x->cut) {
        h->buffered -= x->body.size;
        x->booked -= x->body.size;
    }
    pthread_mutex_unlock(&h->lock);
    moe_buf_release(&x->body);
}

/* Keeps the memory of what was taken from growing. */
static void drop_taken(struct exchange *x)
{
    uint64_t left = x->out.size - x->taken;
    if (left > x->taken)
        return;
    memmove(x->out.data, x->out.data + x->taken, left);
    x->out.size = left;
    x->taken = 0;
    if (left == 0 && x->out.room > KEPT_BYTES)
        moe_buf_release(&x->out);
}

int64_t exchange_take(struct exchange *x, char *to, uint64_t n, bool *done)
{
    struct moe_http *h = x->http;
    int64_t took = -1;
    pthread_mutex_lock(&h->lock);
    *done = false;
    if (!x->cut && !x->gone) {
        uint64_t left = x->out.size - x->taken;
        took = (int64_t)(left < n ? left : n);
        if (took > 0)
            memcpy(to, x->out.data + x->taken, (size_t)took);
        x->taken += (uint64_t)took;
        x->booked -= (uint64_t)took;
        h->buffered -= (uint64_t)took;
        *done = took == 0 && x->done;
        x->suspended = took == 0 && !x->done;
    }
    if (took > 0)
        drop_taken(x);
    pthread_mutex_unlock(&h->lock);
    return took;
}
