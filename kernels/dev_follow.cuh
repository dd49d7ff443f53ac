/*
 * Work that follows a product, done by the block that finishes last.
 *
 * A decoded token's products are short, and so is the work between them: as a separate launch a
 * norm, a router's choice or an activation would cost more to start than to compute. Here it ends
 * the launch whose results it uses. Other blocks leave at once, so this costs each an atomic
 * addition, and at the end one block's time, which a separate launch would cost, too.
 */
#ifndef MOE_KERNELS_DEV_FOLLOW_CUH
#define MOE_KERNELS_DEV_FOLLOW_CUH

#include "dev_arrivals.cuh"
#include "dev_product.cuh"
#include "dev_route.cuh"
#include "dev_rows.cuh"

/* Counters: of the norm, the router, then one for each chunk or panel. */
enum { FOLLOW_NORM, FOLLOW_ROUTE, FOLLOW_FIRST };
enum { FOLLOW_PANELS = DEV_PREPARE_CHUNK / MOE_PANEL_ROWS /* of a chunk */ };

/* Counters from FOLLOW_FIRST on for an item of products with `panels` panels. */
static inline __host__ __device__ uint32_t dev_follow_counters(int then, uint32_t panels)
{
    if (then == DEV_THEN_ACTIVATE)
        return (panels + FOLLOW_PANELS - 1) / FOLLOW_PANELS;
    return then == DEV_THEN_COMBINE ? panels : 0;
}

/* What a block has computed. */
struct dev_made {
    int then;
    uint32_t panels, out, n, item; /* panels of the product; the others as its own */
};

static __device__ void follow_activate(const struct dev_follow &f, const struct dev_made &m)
{
    uint32_t chunk = blockIdx.x / FOLLOW_PANELS;
    uint32_t chunks = dev_follow_counters(m.then, m.panels);
    uint32_t here = min(m.panels - chunk * FOLLOW_PANELS, (uint32_t)FOLLOW_PANELS);
    uint32_t *counter = f.arrivals + FOLLOW_FIRST + m.item * chunks + chunk;
    if (!dev_last_arrival(counter, dev_is_gated(f.activate.how) ? 2 * here : here))
        return;
    for (uint32_t i = threadIdx.x / DEV_WARP; i < m.n; i += blockDim.x / DEV_WARP)
        dev_activate_chunk(f.activate, m.out + i, chunk);
}

static __device__ void follow_norm(const struct dev_follow &f, uint32_t panels, float *shared)
{
    if (!f.norm.h || !dev_last_arrival(f.arrivals + FOLLOW_NORM, panels))
        return;
    for (uint32_t row = 0; row < f.n; row++)
        dev_add_norm_row(f.norm, row, (struct dev_stage *)shared);
}

static __device__ void follow_route(const struct dev_follow &f, uint32_t panels, float *shared)
{
    uint32_t warp = threadIdx.x / DEV_WARP, each = dev_route_bytes(f.router.n_experts) / 4;
    if (!dev_last_arrival(f.arrivals + FOLLOW_ROUTE, panels))
        return;
    if (warp < f.n)
        dev_route_row(f.router, warp, shared + warp * each);
}

static __device__ void follow_combine(const struct dev_follow &f, uint32_t panels, float *shared)
{
    uint32_t column = blockIdx.x * MOE_PANEL_ROWS + threadIdx.x % MOE_PANEL_ROWS;
    uint32_t row = threadIdx.x / MOE_PANEL_ROWS;
    if (!dev_last_arrival(f.arrivals + FOLLOW_FIRST + blockIdx.x, f.n_parts))
        return;
    if (row < f.n && column < f.combine.cols)
        dev_combine_value(f.combine, row, column);
    follow_norm(f, panels, shared);
}

/* Called by all threads of a block that has stored its results. Not inlined, so that it is compiled
 * once and adds no registers to the products' kernels. */
static MOE_NOINLINE __device__ void dev_follow_product(const struct dev_follow &f,
                                                       struct dev_made m, float *shared)
{
    switch (m.then) {
    case DEV_THEN_ACTIVATE:
        follow_activate(f, m);
        break;
    case DEV_THEN_ROUTE:
        follow_route(f, m.panels, shared);
        break;
    case DEV_THEN_COMBINE:
        follow_combine(f, m.panels, shared);
        break;
    case DEV_THEN_NORM:
        follow_norm(f, m.panels, shared);
        break;
    }
}

/* Its shared memory in bytes. */
static inline uint32_t dev_follow_bytes(const struct dev_follow &f, int then)
{
    if (then == DEV_THEN_ROUTE)
        return f.n * dev_route_bytes(f.router.n_experts);
    return then == DEV_THEN_NORM || then == DEV_THEN_COMBINE ? sizeof(struct dev_stage) : 0;
}

#endif
