/* A request's way from one state to the next, and the lists that go with them. */
#include "io/loader_state.h"

void loader_request_read(struct moe_loader *l, uint32_t item, double now)
{
    struct loader_request *r = &l->requests[item];
    r->state = REQUEST_READING;
    r->since = now;
    moe_link_add(&l->queue, item, loader_read_bytes(&r->load), r->load.priority, r->load.score);
}

void loader_request_ready(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    r->state = REQUEST_READY;
    r->next = MOE_LINK_NONE;
    if (l->first_ready == MOE_LINK_NONE)
        l->first_ready = item;
    else
        l->requests[l->last_ready].next = item;
    l->last_ready = item;
}

void loader_request_unready(struct moe_loader *l, uint32_t item)
{
    uint32_t before = MOE_LINK_NONE;
    for (uint32_t i = l->first_ready; i != item; i = l->requests[i].next)
        before = i;
    if (before == MOE_LINK_NONE)
        l->first_ready = l->requests[item].next;
    else
        l->requests[before].next = l->requests[item].next;
    if (l->last_ready == item)
        l->last_ready = before;
}

void loader_request_free(struct moe_loader *l, uint32_t item)
{
    struct loader_request *r = &l->requests[item];
    if (!l->stats.direct && r->bytes_in > 0)
        loader_file_forget(&l->file, r->load.offset, loader_read_bytes(&r->load));
    if (r->stored && loader_is_compressed(&r->load))
        staging_give(&l->staging, item);
    r->state = REQUEST_FREE;
    r->next = l->free_request;
    l->free_request = item;
    l->n_requests--;
}
