/* Responses of /v1/responses that are kept in memory: a list, the oldest first. */
#define _GNU_SOURCE /* memmem */
#include "serve/kept_responses.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct kept {
    struct kept *next;
    char id[40];
    uint64_t owner;
    struct moe_buf response, conversation;
    uint32_t n_asked;
};

struct kept_responses {
    pthread_mutex_t lock;
    struct kept *first, **last;
    uint64_t bytes, most_bytes;
};

static uint64_t bytes_of(const struct kept *one)
{
    return sizeof *one + one->response.room + one->conversation.room;
}

static void free_kept(struct kept *one)
{
    moe_buf_release(&one->response);
    moe_buf_release(&one->conversation);
    free(one);
}

/* Takes out the one that a link leads to. */
static void drop(struct kept_responses *k, struct kept **at)
{
    struct kept *one = *at;
    *at = one->next;
    if (!one->next)
        k->last = at;
    k->bytes -= bytes_of(one);
    free_kept(one);
}

/* The link that leads to a response; to NULL: there is none. */
static struct kept **find_kept(struct kept_responses *k, const char *id, uint64_t owner)
{
    struct kept **at = &k->first;
    while (*at && ((*at)->owner != owner || strcmp((*at)->id, id) != 0))
        at = &(*at)->next;
    return at;
}

int kept_responses_open(struct kept_responses **out, uint64_t most_bytes, struct moe_err *err)
{
    struct kept_responses *k = *out = moe_alloc(1, sizeof *k, err);
    if (!k)
        return MOE_ERR_MEMORY;
    k->last = &k->first;
    k->most_bytes = most_bytes;
    pthread_mutex_init(&k->lock, NULL);
    return MOE_OK;
}

void kept_responses_close(struct kept_responses *k)
{
    if (!k)
        return;
    while (k->first)
        drop(k, &k->first);
    pthread_mutex_destroy(&k->lock);
    free(k);
}

void kept_responses_put(struct kept_responses *k, const char *id, uint64_t owner,
                        struct moe_buf *response, struct moe_buf *conversation, uint32_t n_asked)
{
    struct kept *one = calloc(1, sizeof *one);
    const bool failed = response->failed || conversation->failed;
    if (one) {
        snprintf(one->id, sizeof one->id, "%s", id);
        one->owner = owner;
        one->response = *response;
        one->conversation = *conversation;
        one->n_asked = n_asked;
        *response = *conversation = (struct moe_buf){0};
    }
    pthread_mutex_lock(&k->lock);
    const bool fits = one && !failed && bytes_of(one) <= k->most_bytes;
    while (fits && k->bytes + bytes_of(one) > k->most_bytes)
        drop(k, &k->first);
    if (fits) {
        *k->last = one;
        k->last = &one->next;
        k->bytes += bytes_of(one);
    }
    pthread_mutex_unlock(&k->lock);
    if (one && !fits)
        free_kept(one);
}

bool kept_responses_get(struct kept_responses *k, const char *id, uint64_t owner,
                        struct moe_buf *response, struct moe_buf *conversation, uint32_t *n_asked)
{
    pthread_mutex_lock(&k->lock);
    const struct kept *one = *find_kept(k, id, owner);
    if (one && response)
        moe_buf_append(response, one->response.data, one->response.size);
    if (one && conversation)
        moe_buf_append(conversation, one->conversation.data, one->conversation.size);
    if (one && n_asked)
        *n_asked = one->n_asked;
    pthread_mutex_unlock(&k->lock);
    return one != NULL;
}

bool kept_responses_with_item(struct kept_responses *k, const char *item, uint64_t owner,
                              struct moe_buf *response)
{
    char member[80];
    const int n = snprintf(member, sizeof member, "\"id\":\"%.60s\"", item);
    pthread_mutex_lock(&k->lock);
    const struct kept *one = k->first;
    while (one && (one->owner != owner || !one->response.size ||
                   !memmem(one->response.data, one->response.size, member, (size_t)n)))
        one = one->next;
    if (one)
        moe_buf_append(response, one->response.data, one->response.size);
    pthread_mutex_unlock(&k->lock);
    return one != NULL;
}

bool kept_responses_drop(struct kept_responses *k, const char *id, uint64_t owner)
{
    pthread_mutex_lock(&k->lock);
    struct kept **at = find_kept(k, id, owner);
    const bool found = *at != NULL;
    if (found)
        drop(k, at);
    pthread_mutex_unlock(&k->lock);
    return found;
}
