/*
 * A MoE layer whose experts are all on the device, for few rows: routers and the shared expert's
 * gate and up; the router's choice; gate and up of the chosen; all downs; the weighted sum and the
 * next norm.
 */
#include "gpu_products.cuh"

static struct moe_gpu_job shared_job(const struct moe_gpu_moe *m, uint32_t n)
{
    return {*m->shared_weights, 0, n};
}

/* A list that begins with pairs; their activations follow in a launch of their own if there are
 * more than counters for them: then false. */
static bool start_pairs(struct moe_gpu *g, struct dev_products *list)
{
    bool activates = gpu_can_activate(list);
    if (!activates)
        list->n_pairs = 0;
    gpu_matvec(g, list);
    return activates;
}

static void choose_experts(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    struct dev_products list = gpu_list(g);
    if (m->shared) {
        const struct moe_gpu_job job = shared_job(m, n);
        gpu_list_pair(&list, m->shared, &job);
    }
    for (uint32_t i = 0; i < m->n_routers; i++)
        list.list[list.n++] = gpu_describe_product(&m->routers[i]);
    if (!start_pairs(g, &list))
        gpu_activate_rows(g, m->shared, 0, n);
    moe_gpu_route(g, m->router, n);
}

/* A list that begins with products for each activation. */
static struct dev_products list_chosen(struct moe_gpu *g, const struct moe_gpu_moe *m, uint32_t n)
{
    struct dev_products list = gpu_list(g);
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
    if (!start_pairs(g, &list))
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
    gpu_matvec(g, &list);
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
