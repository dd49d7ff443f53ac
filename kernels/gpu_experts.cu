/*
 * Experts: gate and up of all jobs in a launch per kind of layout, their activation together with
 * its byte forms in one, down in one per kind. A warp of the second takes 64 columns of a row.
 *
 * The activation could be the first launch's epilogue where a block of threads owned 64 rows of
 * both gate and up; blocks own 16 rows so that decoding has enough of them. Not measured: it has
 * run on no GPU yet.
 */
#include "dev_prepare.cuh"
#include "dev_product.cuh"

enum { ACTIVATE_WARPS = 4, MAX_JOBS = 32 /* whose products are listed at once */ };

/* ---- Activation --------------------------------------------------------------------------------
 */

struct activate {
    float *gate;
    const float *up;
    uint64_t stride;
    struct moe_gpu_activation how;
    struct moe_gpu_act mid;
    uint32_t first;
};

static __device__ __forceinline__ float activate_one(const struct moe_gpu_activation &how,
                                                     float gate, float up)
{
    return how.clamped ? moe_math_swiglu_clamped(gate, up, how.alpha, how.limit)
                       : moe_math_swiglu(gate, up);
}

/* gate becomes the activation of gate and up, mid's byte forms that of it. */
static __global__ void activate_kernel(struct activate a)
{
    uint32_t chunk = blockIdx.y * ACTIVATE_WARPS + threadIdx.x / DEV_WARP;
    if (chunk >= dev_prepare_chunks(a.mid.cols))
        return; /* a whole warp */
    uint64_t row = (uint64_t)a.first + blockIdx.x;
    float *gate = a.gate + row * a.stride;
    const float *up = a.up + row * a.stride;
    float values[2];
    for (int half = 0; half < 2; half++) {
        uint32_t column =
            chunk * DEV_PREPARE_CHUNK + half * DEV_PREPARE_HALF + threadIdx.x % DEV_WARP;
        values[half] = 0;
        if (column < a.mid.cols)
            gate[column] = values[half] = activate_one(a.how, gate[column], up[column]);
    }
    dev_prepare_values(values, chunk, a.mid, row);
}

static void activate_rows(struct moe_gpu *g, const struct moe_gpu_experts *e, uint32_t first,
                          uint32_t n)
{
    struct activate a = {e->gate, e->up, e->ff_stride, e->activation, *e->mid, first};
    uint32_t chunks = dev_prepare_chunks(e->mid->cols);
    if (n > 0)
        MOE_LAUNCH(g, activate_kernel, dim3(n, (chunks + ACTIVATE_WARPS - 1) / ACTIVATE_WARPS),
                   ACTIVATE_WARPS * DEV_WARP, 0, a);
}

/* Jobs' rows follow each other as a rule: one launch then. */
static void activate_jobs(struct moe_gpu *g, const struct moe_gpu_experts *e,
                          const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    uint32_t first = 0, n = 0;
    for (uint32_t i = 0; i < n_jobs; i++) {
        if (jobs[i].first != first + n) {
            activate_rows(g, e, first, n);
            first = jobs[i].first;
            n = 0;
        }
        n += jobs[i].n;
    }
    activate_rows(g, e, first, n);
}

/* ---- Experts that the host knows ---------------------------------------------------------------
 */

static struct moe_gpu_product in_product(const struct moe_gpu_experts *e,
                                         const struct moe_gpu_job *job, const struct moe_mat *w,
                                         const float *bias, float *y)
{
    const uint32_t *rows = e->rows ? e->rows + job->first : NULL;
    return {*w,           e->in, rows, job->first, 1, job->n, y + job->first * e->ff_stride,
            e->ff_stride, bias};
}

static struct moe_gpu_product out_product(const struct moe_gpu_experts *e,
                                          const struct moe_gpu_job *job)
{
    return {job->weights.down,
            e->mid,
            NULL,
            job->first,
            1,
            job->n,
            e->out + job->first * e->out_stride,
            e->out_stride,
            job->weights.down_bias};
}

extern "C" void moe_gpu_experts_in(struct moe_gpu *g, const struct moe_gpu_experts *e,
                                   const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    struct moe_gpu_product list[2 * MAX_JOBS];
    for (uint32_t i = 0, n = 0; i < n_jobs; i++) {
        const struct moe_gpu_gated *w = &jobs[i].weights;
        list[n++] = in_product(e, &jobs[i], &w->gate, w->gate_bias, e->gate);
        list[n++] = in_product(e, &jobs[i], &w->up, w->up_bias, e->up);
        if (n == 2 * MAX_JOBS || i + 1 == n_jobs) {
            moe_gpu_matmul(g, list, n);
            n = 0;
        }
    }
    activate_jobs(g, e, jobs, n_jobs);
}

extern "C" void moe_gpu_experts_out(struct moe_gpu *g, const struct moe_gpu_experts *e,
                                    const struct moe_gpu_job *jobs, uint32_t n_jobs)
{
    struct moe_gpu_product list[MAX_JOBS];
    for (uint32_t i = 0, n = 0; i < n_jobs; i++) {
        list[n++] = out_product(e, &jobs[i]);
        if (n == MAX_JOBS || i + 1 == n_jobs) {
            moe_gpu_matmul(g, list, n);
            n = 0;
        }
    }
}

/* ---- Experts that the device chose -------------------------------------------------------------
 */

/* A product for all activations: the n-th of the list. */
static void list_chosen(struct dev_products *list, enum dev_matrix matrix, const struct moe_mat *w,
                        const struct moe_gpu_act *act, float *y, uint64_t y_stride)
{
    struct moe_gpu_product p = {*w, act, NULL, 0, 1, 1, y, y_stride, NULL};
    list->matrix[list->n] = (uint8_t)matrix;
    list->list[list->n++] = gpu_describe_product(&p);
}

static struct dev_products chosen_list(const struct moe_gpu_chosen *c, uint32_t share)
{
    struct dev_products list = {};
    list.table = c->table;
    list.chosen = c->chosen;
    list.n_chosen = c->n;
    list.share = share;
    return list;
}

extern "C" void moe_gpu_experts_chosen(struct moe_gpu *g, const struct moe_gpu_experts *e,
                                       const struct moe_gpu_chosen *c)
{
    const struct moe_mat *gate = &c->like->gate, *up = &c->like->up, *down = &c->like->down;
    if (c->n == 0)
        return;
    struct dev_products in = chosen_list(c, c->top_k);
    list_chosen(&in, DEV_GATE, gate, e->in, e->gate, e->ff_stride);
    if (gate->layout.kind != up->layout.kind || gate->layout.group != up->layout.group) {
        gpu_multiply(g, gate->layout, &in, moe_panels(gate->rows), 1);
        in.n = 0;
    }
    list_chosen(&in, DEV_UP, up, e->in, e->up, e->ff_stride);
    gpu_multiply(g, up->layout, &in, moe_panels(up->rows), 1);
    activate_rows(g, e, 0, c->n);
    struct dev_products out = chosen_list(c, 1);
    list_chosen(&out, DEV_DOWN, down, e->mid, e->out, e->out_stride);
    gpu_multiply(g, down->layout, &out, moe_panels(down->rows), 1);
}
