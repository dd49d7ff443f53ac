/*
 * A MoE layer whose experts are all on the device, for few rows: routers and the shared expert's
 * gate and up; gate and up of the chosen; all downs. These three launches end with the work between
 * them (dev_follow.cuh): the router's choice, the activations, the weighted sum, the next norm.
 */
#include "dev_weights.cuh"
#include "gpu_products.cuh"

static struct moe_gpu_job shared_job(const struct moe_gpu_moe *m, uint32_t n)
{
    return {*m->shared_weights, 0, n};
}

static void choose_experts(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    struct dev_products list = gpu_list(g, n);
    const struct moe_gpu_then then = {m->router, NULL, n};
    list.follow.router = *m->router;
    if (m->shared) {
        const struct moe_gpu_job job = shared_job(m, n);
        gpu_list_pair(&list, m->shared, &job);
    }
    uint32_t router = list.n;
    for (uint32_t i = 0; i < m->n_routers; i++)
        list.list[list.n++] = gpu_describe_product(&m->routers[i]);
    list.list[router].then = DEV_THEN_ROUTE;
    if (gpu_can_follow(&list)) {
        gpu_matvec(g, &list);
        return;
    }
    moe_gpu_matmul_then(g, m->routers, m->n_routers, &then);
    if (m->shared) {
        const struct moe_gpu_job job = shared_job(m, n);
        moe_gpu_experts_in(g, m->shared, &job, 1);
    }
}

/* A list that begins with products for each activation. */
static struct dev_products list_chosen(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    struct dev_products list = gpu_list(g, n);
    list.table = m->table;
    list.chosen = m->router->chosen;
    list.share = m->router->top_k;
    list.n_chosen = n * list.share;
    return list;
}

static void start_chosen(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    struct dev_products list = list_chosen(g, m, n);
    const struct moe_gpu_job one = {*m->like, 0, 1};
    gpu_list_pair(&list, m->routed, &one);
    list.n_each = list.n;
    bool follows = gpu_can_follow(&list);
    for (uint32_t i = 0; !follows && i < list.n; i++)
        list.list[i].then = DEV_THEN_NOTHING;
    gpu_matvec(g, &list);
    if (!follows)
        gpu_activate_rows(g, m->routed, 0, list.n_chosen);
}

static void finish_experts(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    struct dev_products list = list_chosen(g, m, n);
    const struct moe_gpu_job one = {*m->like, 0, 1};
    gpu_list_down(&list, m->routed, &one);
    list.n_each = list.n;
    if (m->shared) {
        const struct moe_gpu_job job = shared_job(m, n);
        gpu_list_down(&list, m->shared, &job);
    }
    list.follow.combine = *m->combine;
    list.follow.n_parts = dev_products_height(&list);
    if (m->norm)
        list.follow.norm = *m->norm;
    for (uint32_t i = 0; i < list.n; i++)
        list.list[i].then = DEV_THEN_COMBINE;
    bool follows = gpu_can_follow(&list);
    for (uint32_t i = 0; !follows && i < list.n; i++)
        list.list[i].then = DEV_THEN_NOTHING;
    gpu_matvec(g, &list);
    if (!follows)
        moe_gpu_combine(g, m->combine, m->norm, n);
}

extern "C" void moe_gpu_moe(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    if (n == 0)
        return;
    choose_experts(g, m, n);
    start_chosen(g, m, n);
    finish_experts(g, m, n);
}
