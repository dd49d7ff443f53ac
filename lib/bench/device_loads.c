/*
 * Loads beside computation, for the device bench: what computing takes while loads go on, and after
 * a wait for one.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "bench/device_private.h"
#include "bench/read_rate.h"
#include "experts/expert_load.h"
#include "io/loader.h"

enum { LEAST_LOADS = 8, MAX_LOADS = 64 };

struct device_loads {
    const struct moe_pack *pack;
    uint32_t variant;
    struct moe_loader *loader;
    uint8_t *buffers; /* of `largest` bytes each */
    uint64_t largest, stored;
    uint32_t n_buffers, n_requests, n_under_way;
    uint32_t *free, next, n_free; /* a ring of buffers: n_free from `next` on */
    uint64_t random, sleeps;
    enum device_loading how;
};

/* The largest first segment of the variant: bytes in memory and in the file. */
static void find_largest(struct device_loads *l)
{
    for (uint32_t layer = 0; layer < moe_pack_n_layers(l->pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(l->pack); e++) {
            if (!moe_pack_expert(l->pack, layer, e, l->variant)->present)
                continue;
            const struct moe_expert_segment which = {layer, e, l->variant, 0};
            const struct moe_load load = moe_expert_load(l->pack, &which);
            uint64_t raw = moe_round_up(load.raw_bytes, MOE_LOAD_ALIGN);
            uint64_t stored = moe_round_up(load.stored_bytes, MOE_LOAD_ALIGN);
            l->largest = raw > l->largest ? raw : l->largest;
            if (load.stored_bytes < load.raw_bytes && stored > l->stored)
                l->stored = stored;
        }
}

int moe_device_loads_open(struct device_loads **out, const struct moe_pack *pack, uint32_t variant,
                          uint32_t top_k, struct moe_err *err)
{
    struct device_loads *l = moe_alloc(1, sizeof *l, err);
    *out = NULL;
    if (!l)
        return MOE_ERR_MEMORY;
    l->pack = pack;
    l->variant = variant;
    l->n_requests = top_k > LEAST_LOADS ? top_k : LEAST_LOADS;
    l->n_requests = l->n_requests < MAX_LOADS ? l->n_requests : MAX_LOADS;
    find_largest(l);
    if (l->largest == 0) {
        free(l);
        return MOE_OK;
    }
    const struct moe_loader_options options = {.fd = moe_pack_fd(pack),
                                               .path = moe_pack_path(pack),
                                               .verify = true,
                                               .n_requests = l->n_requests,
                                               .compressed_bytes = l->n_requests * l->stored};
    /* As many as the caches do not hold, each in its turn, as a run's slots are: what is loaded
     * into a few buffers over and over stays in the caches and leaves the memory to computing. */
    l->n_buffers = l->n_requests + (uint32_t)(moe_cold_bytes() / l->largest);
    l->buffers = moe_pages_alloc(l->n_buffers * l->largest, err);
    l->free = moe_alloc(l->n_buffers, sizeof *l->free, err);
    int status =
        l->buffers && l->free ? moe_loader_open(&l->loader, &options, err) : MOE_ERR_MEMORY;
    if (l->buffers)
        memset(l->buffers, 0, l->n_buffers * l->largest); /* the pages are there */
    while (l->free && l->n_free < l->n_buffers) {
        l->free[l->n_free] = l->n_free;
        l->n_free++;
    }
    *out = l;
    return status;
}

void moe_device_loads_close(struct device_loads *l)
{
    if (!l)
        return;
    moe_loader_close(l->loader); /* first: it writes into the buffers */
    moe_pages_free(l->buffers, l->n_buffers * l->largest);
    free(l->free);
    free(l);
}

/* A load of an expert drawn at random. */
static int submit(struct device_loads *l, struct moe_err *err)
{
    struct moe_expert_segment which = {.variant = l->variant};
    do { /* Knuth's MMIX constants */
        l->random = l->random * 6364136223846793005u + 1442695040888963407u;
        which.layer = (uint32_t)(l->random >> 33) % moe_pack_n_layers(l->pack);
        which.expert = (uint32_t)(l->random >> 48) % moe_pack_n_experts(l->pack);
    } while (!moe_pack_expert(l->pack, which.layer, which.expert, l->variant)->present);
    uint32_t buffer = l->free[l->next], handle;
    l->next = (l->next + 1) % l->n_buffers;
    l->n_free--;
    struct moe_load load = moe_expert_load(l->pack, &which);
    load.to = l->buffers + buffer * l->largest;
    load.priority = l->how == DEVICE_WAITED ? MOE_LOAD_DEMAND : MOE_LOAD_PREFETCH;
    load.tag = buffer;
    l->n_under_way++;
    return moe_loader_submit(l->loader, &load, &handle, err);
}

static int take(struct device_loads *l, const struct moe_load_done *done, uint32_t n,
                struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < n; i++) {
        l->free[(l->next + l->n_free++) % l->n_buffers] = (uint32_t)done[i].tag;
        l->n_under_way--;
        if (done[i].status != MOE_OK)
            status = moe_fail(err, done[i].status, "%s: %s", moe_pack_path(l->pack),
                              moe_loader_error(l->loader));
    }
    return status;
}

/* Sleeps until a load has ended. */
static int wait(struct device_loads *l, struct moe_err *err)
{
    struct moe_load_done done;
    double before = moe_loader_stats(l->loader)->wait_seconds;
    uint32_t n = moe_loader_wait(l->loader, &done, 1);
    l->sleeps += moe_loader_stats(l->loader)->wait_seconds > before;
    return take(l, &done, n, err);
}

int moe_device_loads_set(struct device_loads *l, enum device_loading how, struct moe_err *err)
{
    int status = MOE_OK;
    while (l->n_under_way > 0 && status == MOE_OK)
        status = wait(l, err);
    l->how = how;
    return status == MOE_OK ? moe_device_loads_poll(l, err) : status;
}

int moe_device_loads_begin(struct device_loads *l, uint32_t n, struct moe_err *err)
{
    int status = MOE_OK;
    moe_loader_hold(l->loader);
    for (uint32_t i = 0;
         l->how == DEVICE_WAITED && i < n && l->n_under_way < l->n_requests && status == MOE_OK;
         i++)
        status = submit(l, err);
    moe_loader_let_go(l->loader);
    return status;
}

int moe_device_loads_poll(struct device_loads *l, struct moe_err *err)
{
    struct moe_load_done done[MAX_LOADS];
    if (l->how != DEVICE_BACKGROUND)
        return MOE_OK; /* what is waited for is taken there */
    int status = take(l, done, moe_loader_poll(l->loader, done, MAX_LOADS), err);
    moe_loader_hold(l->loader);
    while (status == MOE_OK && l->n_under_way < l->n_requests)
        status = submit(l, err);
    moe_loader_let_go(l->loader);
    return status;
}

int moe_device_loads_next(struct device_loads *l, struct moe_err *err)
{
    return l->how == DEVICE_WAITED && l->n_under_way > 0 ? wait(l, err) : MOE_OK;
}

bool moe_device_loads_one_by_one(const struct device_loads *l)
{
    return l->how == DEVICE_WAITED;
}

double moe_device_loads_seconds(const struct device_loads *l)
{
    const struct moe_loader_stats *s = moe_loader_stats(l->loader);
    return s->work_seconds + s->wait_seconds;
}

uint64_t moe_device_loads_sleeps(const struct device_loads *l)
{
    return l->sleeps;
}
