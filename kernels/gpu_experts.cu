/*
 * Experts: gate and up of all jobs with few rows in one launch, which ends with their activation
 * and its byte forms (gpu_matvec.cu); those of other jobs in one launch per kind of layout, then
 * the activation, a warp for 64 columns of a row. Down likewise.
 */
#include "dev_weights.cuh"
#include "gpu_products.cuh"

enum { ACTIVATE_WARPS = 4, MAX_JOBS = 32 /* whose products are listed at once */ };

/* ---- Activation ---- */

static struct dev_activate activation_of(const struct moe_gpu_experts *e)
{
    return {e->gate, e->up, e->ff_stride, e->activation, *e->mid};
}

static __global__ void activate_kernel(struct dev_activate a, uint32_t first)
{
    uint32_t chunk = blockIdx.y * ACTIVATE_WARPS + threadIdx.x / DEV_WARP;
    if (chunk < dev_prepare_chunks(a.mid.cols)) /* for a whole warp */
        dev_activate_chunk(a, (uint64_t)first + blockIdx.x, chunk);
}

void gpu_activate_rows(struct moe_gpu *g, const struct moe_gpu_experts *e, uint32_t first,
                       uint32_t n)
{
    uint32_t chunks = dev_prepare_chunks(e->mid->cols);
    if (n > 0)
        MOE_LAUNCH(g, activate_kernel, dim3(n, (chunks + ACTIVATE_WARPS - 1) / ACTIVATE_WARPS),
                   ACTIVATE_WARPS * DEV_WARP, 0, activation_of(e), first);
}

/* The jobs' rows usually follow each other: one launch then. */
static void activate_jobs(struct moe_gpu *g, const struct moe_gpu_experts *e,
                          const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    uint32_t first = 0, n = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        if (jobs[i].first != first + n) {
            gpu_activate_rows(g, e, first, n);
            first = jobs[i].first;
            n = 0;
        }
        n += jobs[i].n;
    }
    gpu_activate_rows(g, e, first, n);
}

/* ---- Products of a job ---- */

static struct moe_gpu_product in_product(const struct moe_gpu_experts *e,
                                         const struct moe_gpu_job *job, const struct moe_mat *w,
                                         const float *bias, float *y)
{
    struct moe_gpu_product p = {};
    p.w = *w;
    p.act = e->in;
    p.rows = e->rows ? e->rows + job->first : NULL;
    p.first = job->first;
    p.n = job->n;
    p.y = y + job->first * e->ff_stride;
    p.y_stride = e->ff_stride;
    p.bias = bias;
    return p;
}

static struct moe_gpu_product gate_product(const struct moe_gpu_experts *e,
                                           const struct moe_gpu_job *job)
{
    return in_product(e, job, &job->weights.gate, job->weights.gate_bias, e->gate);
}

static struct moe_gpu_product up_product(const struct moe_gpu_experts *e,
                                         const struct moe_gpu_job *job)
{
    return in_product(e, job, &job->weights.up, job->weights.up_bias, e->up);
}

static struct moe_gpu_product down_product(const struct moe_gpu_experts *e,
                                           const struct moe_gpu_job *job)
{
    struct moe_gpu_product p = {};
    p.w = job->weights.down;
    p.act = e->mid;
    p.first = job->first;
    p.n = job->n;
    p.y = e->out + job->first * e->out_stride;
    p.y_stride = e->out_stride;
    p.bias = job->weights.down_bias;
    return p;
}

/* ---- Lists ---- */

/* A job's products before its activation: gate and up, or only up. */
static uint32_t products_in(const struct moe_gpu_experts *e)
{
    return dev_is_gated(e->activation) ? 2 : 1;
}

struct dev_products gpu_list(const struct moe_gpu *g)
{
    struct dev_products list = {};
    list.arrivals = g->arrivals;
    return list;
}

static void push_product(struct dev_products *list, struct moe_gpu_product product,
                         enum dev_matrix matrix, uint32_t out, uint32_t item)
{
    struct dev_product *p = &list->list[list->n++];
    *p = gpu_describe_product(&product);
    p->matrix = (uint8_t)matrix;
    p->out = out;
    p->item = item;
}

void gpu_list_pair(struct dev_products *list, const struct moe_gpu_experts *e,
                   const struct moe_gpu_job *job)
{
    uint32_t item = list->n / products_in(e);
    list->activate = activation_of(e);
    if (dev_is_gated(e->activation))
        push_product(list, gate_product(e, job), DEV_GATE, job->first, item);
    push_product(list, up_product(e, job), DEV_UP, job->first, item);
    list->n_pairs = list->n;
}

void gpu_list_down(struct dev_products *list, const struct moe_gpu_experts *e,
                   const struct moe_gpu_job *job)
{
    push_product(list, down_product(e, job), DEV_DOWN, job->first, 0);
}

/* ---- Jobs ---- */

static void start_pairs(struct moe_gpu *g, struct dev_products *list)
{
    if (list->n > 0)
        gpu_matvec(g, list);
    list->n = list->n_pairs = 0;
}

/* Computes gate and up, then their activation, for jobs that do not share launches with it. */
static void start_in(struct moe_gpu *g, const struct moe_gpu_experts *e,
                     const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    struct moe_gpu_product list[2 * MAX_JOBS] = {};
    for (uint32_t i = 0; i < n_jobs; i++) {
        list[2 * i] = gate_product(e, &jobs[i]);
        list[2 * i + 1] = up_product(e, &jobs[i]);
    }
    moe_gpu_matmul(g, list, 2 * n_jobs);
    activate_jobs(g, e, jobs, n_jobs);
}

/* Lists the job, after starting those listed so far if there is no room for it; false: it cannot
 * share a launch with its activation. */
static bool list_job(struct moe_gpu *g, struct dev_products *pairs, const struct moe_gpu_experts *e,
                     const struct moe_gpu_job *job)
{
    const struct moe_gpu_product two[] = {up_product(e, job), gate_product(e, job)};
    uint32_t each = products_in(e);
    for (int tries = 0; tries < 2 && gpu_can_list(two, each); tries++) {
        if (pairs->n + each <= DEV_MAX_PRODUCTS) {
            gpu_list_pair(pairs, e, job);
            if (gpu_can_activate(pairs))
                return true;
            pairs->n_pairs = pairs->n -= each;
        }
        start_pairs(g, pairs);
    }
    return false;
}

extern "C" void moe_gpu_experts_in(struct moe_gpu *g, const struct moe_gpu_experts *e,
                                   const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    struct dev_products pairs = gpu_list(g);
    struct moe_gpu_job others[MAX_JOBS];
    uint32_t n_others = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        if (!list_job(g, &pairs, e, &jobs[i]))
            others[n_others++] = jobs[i];
        if (n_others == MAX_JOBS) {
            start_in(g, e, others, n_others);
            n_others = 0;
        }
    }
    start_pairs(g, &pairs);
    if (n_others > 0)
        start_in(g, e, others, n_others);
}

extern "C" void moe_gpu_experts_out(struct moe_gpu *g, const struct moe_gpu_experts *e,
                                    const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    struct moe_gpu_product list[MAX_JOBS];
    for (uint32_t i = 0, n = 0; i < n_jobs; i++) {
        list[n++] = down_product(e, &jobs[i]);
        if (n == MAX_JOBS || i + 1 == n_jobs) {
            moe_gpu_matmul(g, list, n);
            n = 0;
        }
    }
}
