/*
 * Routers on a GPU. The host has to know which experts a layer wants, and waits for that alone: the
 * router's choice and the predictions travel together, and while they travel the device computes
 * what does not depend on them.
 */
#include "base/clock.h"
#include "gpu/stages_gpu.h"

/* How long the host asks again and again whether a router has chosen, and moves loads on, before it
 * sleeps: the device's part of a layer takes about as long. */
#define SPIN_SECONDS 200e-6

static void ask_router(struct moe_session *s, uint32_t layer, uint32_t n_rows)
{
    const struct moe_gpu_act in = stages_gpu_ffn_inputs(s, layer);
    const struct moe_gpu_router router = stages_gpu_router(s, layer);
    const struct moe_gpu_then then = {.router = &router, .n = n_rows};
    struct moe_gpu_product list[2];
    uint32_t n = stages_gpu_list_routers(s, layer, &in, n_rows, list);
    moe_gpu_matmul_then(gpu_of(s), list, n, &then);
}

/* Waits until the router's choice is here; loads move on meanwhile. */
static int await_router(struct moe_session *s, struct moe_err *err)
{
    struct gpu_work *g = s->device;
    double started = moe_seconds();
    int status = MOE_OK;
    while (status == MOE_OK && s->experts->ops->poll && !moe_gpu_mark_passed(g->routed) &&
           moe_seconds() - started < SPIN_SECONDS)
        status = moe_poll_loads(s, err);
    return status == MOE_OK ? moe_gpu_mark_wait(g->routed, err) : status;
}

int stages_gpu_route(struct moe_session *s, uint32_t layer, const struct moe_row *rows,
                     uint32_t n_rows, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const struct moe_layer_request *r = &s->request;
    struct gpu_work *g = s->device;
    uint64_t n = (uint64_t)n_rows * c->top_k;
    ask_router(s, layer, n_rows);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, r->chosen, g->ff.chosen, n * sizeof *r->chosen);
    moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, r->weights, g->ff.weights, n * sizeof *r->weights);
    stages_gpu_ask_ahead(s, layer, n_rows);
    if (g->needs_rows)
        moe_gpu_download(g->gpu, MOE_GPU_COMPUTE, s->states.xn, g->hidden.x,
                         n_rows * g->hidden_stride * sizeof(float));
    moe_gpu_mark_set(g->routed, MOE_GPU_COMPUTE);
    stages_gpu_run_beside(s, layer, n_rows);
    int status = await_router(s, err);
    return status == MOE_OK ? moe_layer_request_check(r, c, layer, n_rows, err) : status;
}
