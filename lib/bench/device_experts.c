#include <stdlib.h>

#include "base/clock.h"
#include "bench/device_private.h"
#include "bench/read_rate.h"

/* ---- The provider ---- */

static int begin(struct moe_experts *self, const struct moe_expert_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err)
{
    struct device_experts *e = (struct device_experts *)self;
    e->request = *request;
    e->n_given = e->n_experts = e->n_rows = 0;
    e->seconds = e->first = 0;
    e->began = moe_seconds();
    return e->loads ? moe_device_loads_begin(e->loads, request->n, err) : MOE_OK;
}

static int next(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct device_experts *e = (struct device_experts *)self;
    int status = e->loads ? moe_device_loads_next(e->loads, err) : MOE_OK;
    if (e->loads && moe_device_loads_one_by_one(e->loads))
        max = 1;
    for (*n = 0; *n < max && e->n_given < e->request.n; ++*n, e->n_given++) {
        which[*n] = e->n_given;
        views[*n] = e->views[e->at];
        e->at = (e->at + 1) % e->n;
    }
    e->last = moe_seconds();
    e->first = e->first > 0 ? e->first : e->last;
    return status;
}

static int poll(struct moe_experts *self, struct moe_err *err)
{
    struct device_experts *e = (struct device_experts *)self;
    return e->loads ? moe_device_loads_poll(e->loads, err) : MOE_OK;
}

static int complete(struct moe_experts *self, uint32_t which, struct moe_err *err)
{
    return MOE_OK;
}

static void release(struct moe_experts *self, uint32_t which)
{
    struct device_experts *e = (struct device_experts *)self;
    double now = moe_seconds();
    e->seconds += now - e->last;
    e->last = now;
    e->n_experts++;
    e->n_rows += e->request.needs[which].n_rows;
}

static void close_nothing(struct moe_experts *self)
{
}

static const struct moe_experts_ops ops = {
    .name = "in turn",
    .begin = begin,
    .next = next,
    .complete = complete,
    .release = release,
    .poll = poll,
    .close = close_nothing,
};

/* ---- The experts ---- */

/* Points the views at every step-th expert that has the variant; returns how many. */
static uint32_t choose(const struct moe_pack *pack, uint32_t variant, uint32_t step,
                       struct moe_expert_view *views, uint32_t max)
{
    uint32_t n_layers = moe_pack_n_layers(pack), n_experts = moe_pack_n_experts(pack);
    uint32_t n = 0, seen = 0;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (uint32_t expert = 0; expert < n_experts; expert++) {
            if (!moe_pack_expert(pack, layer, expert, variant)->present || seen++ % step != 0)
                continue;
            if (views && n < max)
                views[n] =
                    (struct moe_expert_view){.layer = layer, .expert = expert, .variant = variant};
            n++;
        }
    return n;
}

static int read_views(struct device_experts *e, const struct moe_pack *pack,
                      struct moe_arena *arena, struct moe_err *err)
{
    int status = MOE_OK;
    for (uint32_t i = 0; i < e->n && status == MOE_OK; i++)
        status = moe_expert_view_read(&e->views[i], pack, arena, err);
    if (status == MOE_OK && arena->overflowed)
        status = moe_fail(err, MOE_ERR_MEMORY, "out of memory: the experts' size overflows");
    return status;
}

int moe_device_experts_open(struct device_experts *e, const struct moe_pack *pack, uint32_t variant,
                            uint32_t top_k, struct moe_err *err)
{
    *e = (struct device_experts){.base.ops = &ops, .loads = NULL};
    uint32_t all = choose(pack, variant, 1, NULL, 0);
    if (all == 0)
        return MOE_OK;
    uint64_t slot = moe_cache_slot_bytes(pack, variant);
    uint64_t want = moe_cold_bytes() / slot + 1, least = 2 * (uint64_t)top_k;
    want = want < least ? least : want;
    want = want > all ? all : want;
    uint32_t step = (uint32_t)(all / want);
    e->views = moe_alloc(want, sizeof *e->views, err);
    if (!e->views)
        return MOE_ERR_MEMORY;
    choose(pack, variant, step, e->views, (uint32_t)want);
    e->n = (uint32_t)want;
    struct moe_arena arena = {0};
    int status = read_views(e, pack, &arena, err);
    e->memory_bytes = arena.used;
    if (status == MOE_OK) {
        e->memory = moe_pages_alloc(arena.used, err);
        status = e->memory ? MOE_OK : MOE_ERR_MEMORY;
    }
    arena = (struct moe_arena){.base = e->memory, .size = e->memory_bytes};
    if (status == MOE_OK)
        status = read_views(e, pack, &arena, err);
    if (status != MOE_OK)
        moe_device_experts_close(e);
    return status;
}

void moe_device_experts_close(struct device_experts *e)
{
    if (e->memory)
        moe_pages_free(e->memory, e->memory_bytes);
    free(e->views);
    *e = (struct device_experts){0};
}
