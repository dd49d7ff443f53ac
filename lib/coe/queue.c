#include "coe/queue.h"

#include <stdlib.h>

#include "base/mem.h"

/* Neighbours that use the same expert. */
struct moe_coe_group {
    struct moe_coe_group *next, *previous;
    uint32_t expert;
    struct moe_coe_request *first, *last;
};

struct moe_coe_queue {
    bool arrange;
    uint64_t n;
    struct moe_coe_group *first, *final; /* NULL: it is empty */
    uint32_t n_experts;
    struct moe_coe_group **of_expert; /* [n_experts] its last group; NULL: nobody waits for it */
};

int moe_coe_queue_open(struct moe_coe_queue **out, uint32_t n_experts, bool arrange,
                       struct moe_err *err)
{
    *out = NULL;
    struct moe_coe_queue *q = moe_alloc(1, sizeof *q, err);
    if (!q)
        return MOE_ERR_MEMORY;
    *q = (struct moe_coe_queue){.arrange = arrange, .n_experts = n_experts};
    q->of_expert = moe_alloc(n_experts, sizeof(struct moe_coe_group *), err);
    if (!q->of_expert) {
        moe_coe_queue_close(q);
        return MOE_ERR_MEMORY;
    }
    *out = q;
    return MOE_OK;
}

void moe_coe_queue_close(struct moe_coe_queue *q)
{
    if (!q)
        return;
    for (struct moe_coe_group *g = q->first, *next; g; g = next) {
        next = g->next;
        free(g);
    }
    free(q->of_expert);
    free(q);
}

/* ---- Groups ---- */

static void append(struct moe_coe_queue *q, struct moe_coe_group *g)
{
    g->next = NULL;
    g->previous = q->final;
    *(q->final ? &q->final->next : &q->first) = g;
    q->final = g;
}

static void unlink_group(struct moe_coe_queue *q, struct moe_coe_group *g)
{
    *(g->previous ? &g->previous->next : &q->first) = g->next;
    *(g->next ? &g->next->previous : &q->final) = g->previous;
}

static struct moe_coe_group *add_group(struct moe_coe_queue *q, uint32_t expert,
                                       struct moe_err *err)
{
    struct moe_coe_group *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return NULL;
    *g = (struct moe_coe_group){.expert = expert};
    append(q, g);
    q->of_expert[expert] = g;
    return g;
}

static void drop_if_empty(struct moe_coe_queue *q, struct moe_coe_group *g)
{
    if (g->first)
        return;
    unlink_group(q, g);
    if (q->of_expert[g->expert] == g)
        q->of_expert[g->expert] = NULL;
    free(g);
}

void moe_coe_queue_rotate(struct moe_coe_queue *q)
{
    struct moe_coe_group *g = q->first;
    if (!g || !g->next)
        return;
    unlink_group(q, g);
    append(q, g);
}

/* ---- Requests ---- */

int moe_coe_queue_push(struct moe_coe_queue *q, struct moe_coe_request *r, struct moe_err *err)
{
    struct moe_coe_group *g = q->of_expert[r->expert];
    if (!g || (!q->arrange && g != q->final))
        g = add_group(q, r->expert, err);
    if (!g)
        return MOE_ERR_MEMORY;
    r->group = g;
    r->next = NULL;
    r->previous = g->last;
    *(g->last ? &g->last->next : &g->first) = r;
    g->last = r;
    q->n++;
    return MOE_OK;
}

void moe_coe_queue_remove(struct moe_coe_queue *q, struct moe_coe_request *r)
{
    struct moe_coe_group *g = r->group;
    *(r->previous ? &r->previous->next : &g->first) = r->next;
    *(r->next ? &r->next->previous : &g->last) = r->previous;
    r->next = r->previous = NULL;
    q->n--;
    drop_if_empty(q, g);
}

static struct moe_coe_request *take(struct moe_coe_queue *q, struct moe_coe_group *g, uint32_t most,
                                    uint32_t *n)
{
    *n = 0;
    if (!g || most == 0)
        return NULL;
    struct moe_coe_request *all = g->first, *last = all;
    for (*n = 1; *n < most && last->next; ++*n)
        last = last->next;
    g->first = last->next;
    *(g->first ? &g->first->previous : &g->last) = NULL;
    last->next = NULL;
    q->n -= *n;
    drop_if_empty(q, g);
    return all;
}

struct moe_coe_request *moe_coe_queue_take(struct moe_coe_queue *q, uint32_t most, uint32_t *n)
{
    return take(q, q->first, most, n);
}

struct moe_coe_request *moe_coe_queue_take_of(struct moe_coe_queue *q, uint32_t expert,
                                              uint32_t most, uint32_t *n)
{
    struct moe_coe_group *g = q->arrange ? q->of_expert[expert] : q->first;
    return take(q, g && g->expert == expert ? g : NULL, most, n);
}

/* ---- Looking ---- */

bool moe_coe_queue_waits(const struct moe_coe_queue *q, uint32_t expert)
{
    return q->of_expert[expert] != NULL;
}

uint32_t moe_coe_queue_first(const struct moe_coe_queue *q)
{
    return q->first ? q->first->expert : MOE_COE_NONE;
}

uint32_t moe_coe_queue_second(const struct moe_coe_queue *q)
{
    return q->first && q->first->next ? q->first->next->expert : MOE_COE_NONE;
}

const struct moe_coe_request *moe_coe_queue_other(const struct moe_coe_queue *q, uint32_t expert)
{
    const struct moe_coe_group *g = q->first;
    while (g && g->expert == expert)
        g = g->next;
    return g ? g->first : NULL;
}

uint64_t moe_coe_queue_length(const struct moe_coe_queue *q)
{
    return q->n;
}
