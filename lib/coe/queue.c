#include "coe/queue.h"

#include <stdlib.h>

#include "base/mem.h"

/* Neighbours that use the same expert. */
struct group {
    struct group *next;
    uint32_t expert;
    struct moe_coe_request *first, **last;
};

struct moe_coe_queue {
    bool arrange;
    uint64_t n;
    struct group *first, *final; /* NULL: it is empty */
    uint32_t n_experts;
    struct group **of_expert; /* [n_experts] its last group; NULL: nobody waits for it */
};

int moe_coe_queue_open(struct moe_coe_queue **out, uint32_t n_experts, bool arrange,
                       struct moe_err *err)
{
    *out = NULL;
    struct moe_coe_queue *q = moe_alloc(1, sizeof *q, err);
    if (!q)
        return MOE_ERR_MEMORY;
    *q = (struct moe_coe_queue){.arrange = arrange, .n_experts = n_experts};
    q->of_expert = moe_alloc(n_experts, sizeof(struct group *), err);
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
    for (struct group *g = q->first, *next; g; g = next) {
        next = g->next;
        free(g);
    }
    free(q->of_expert);
    free(q);
}

static struct group *add_group(struct moe_coe_queue *q, uint32_t expert, struct moe_err *err)
{
    struct group *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return NULL;
    *g = (struct group){.expert = expert};
    g->last = &g->first;
    *(q->first ? &q->final->next : &q->first) = g;
    q->final = g;
    q->of_expert[expert] = g;
    return g;
}

int moe_coe_queue_push(struct moe_coe_queue *q, struct moe_coe_request *r, struct moe_err *err)
{
    struct group *g = q->of_expert[r->expert];
    if (!g || (!q->arrange && g != q->final))
        g = add_group(q, r->expert, err);
    if (!g)
        return MOE_ERR_MEMORY;
    r->next = NULL;
    *g->last = r;
    g->last = &r->next;
    q->n++;
    return MOE_OK;
}

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

struct moe_coe_request *moe_coe_queue_take(struct moe_coe_queue *q, uint32_t most, uint32_t *n)
{
    struct group *g = q->first;
    struct moe_coe_request *all, **end;
    *n = 0;
    if (!g || most == 0)
        return NULL;
    all = g->first;
    for (end = &g->first; *end && *n < most; ++*n)
        end = &(*end)->next;
    g->first = *end;
    *end = NULL;
    q->n -= *n;
    if (!g->first) {
        q->first = g->next;
        if (q->of_expert[g->expert] == g)
            q->of_expert[g->expert] = NULL;
        free(g);
    }
    return all;
}

uint64_t moe_coe_queue_length(const struct moe_coe_queue *q)
{
    return q->n;
}
