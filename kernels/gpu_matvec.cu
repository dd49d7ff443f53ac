/*
 * Products with up to eight inputs: decode. Their cost is reading the weights once.
 *
 * A block of threads takes one panel of 16 rows (dev_matvec_bytes.cuh, dev_matvec_floats.cuh).
 * Products of a list share a launch whatever their layouts are (queries, keys and values; gate and
 * up of several experts). A kernel for each layout would take fewer registers, but lists of several
 * layouts would need as many launches, and the many kernels would take several times as long to
 * compile.
 *
 * Gate and up end with their activation, which is short and has blocks all over the device: 64
 * columns by whichever block is the last to deliver them. What one block computes for a row, a norm
 * or a router's choice, has a launch of its own: at the end of a product it begins on a
 * multiprocessor whose instruction cache does not hold it, with few threads, which takes longer
 * than the launch (H200, 2048 columns: a product of 16.4 us and its norm 29.1, a norm's
 * launch 5.1).
 */
#include "dev_arrivals.cuh"
#include "dev_matvec_bytes.cuh"
#include "dev_matvec_floats.cuh"
#include "gpu_products.cuh"

/* ---- Kernels ---- */

template <int KIND, int RUN, int NT>
static __device__ __forceinline__ void matvec_panel(const struct dev_product &p, float *shared)
{
    uint32_t readers = blockDim.x - dev_matvec_adders(NT);
    if constexpr (RUN == 0)
        matvec_floats_panel<KIND, NT>(p, readers, shared);
    else
        matvec_bytes_panel<KIND, RUN, NT>(p, readers, shared);
}

/* Bounds for the compiler: the most threads, and blocks that a multiprocessor should hold. With one
 * input this means 64 registers, so that six of the smaller blocks fit. */
static constexpr int matvec_most_threads(int nt)
{
    return nt == 1 ? 320 : dev_matvec_readers(nt) + dev_matvec_adders(nt);
}
static constexpr int matvec_blocks(int nt)
{
    return nt <= 2 ? 3 : 2;
}

enum { ACTIVATED_PANELS = DEV_PREPARE_CHUNK / MOE_PANEL_ROWS /* at a time */ };

/* Counters that each activation of a product with `panels` panels needs. */
static __host__ __device__ uint32_t activation_counters(uint32_t panels)
{
    return (panels + ACTIVATED_PANELS - 1) / ACTIVATED_PANELS;
}

/* Called by all threads of a block that has stored its results of product `index`. Not inlined, so
 * that it is compiled once and adds no registers to the products. */
static MOE_NOINLINE __device__ void activate_if_last(const struct dev_products &all, uint32_t index)
{
    const struct dev_product &p = all.list[index];
    bool is_each = index < all.n_each;
    uint32_t out = is_each ? blockIdx.y % all.n_chosen : p.out;
    uint32_t item = is_each ? out : p.item;
    uint32_t panels = moe_panels(p.rows), chunk = blockIdx.x / ACTIVATED_PANELS;
    uint32_t here = min(panels - chunk * ACTIVATED_PANELS, (uint32_t)ACTIVATED_PANELS);
    uint32_t *counter = all.arrivals + item * activation_counters(panels) + chunk;
    if (!dev_last_arrival(counter, dev_is_gated(all.activate.how) ? 2 * here : here))
        return;
    for (uint32_t i = threadIdx.x / DEV_WARP; i < p.n; i += blockDim.x / DEV_WARP)
        dev_activate_chunk(all.activate, out + i, chunk);
}

template <int NT>
static __global__ void __launch_bounds__(matvec_most_threads(NT), matvec_blocks(NT))
    matvec_products(const __grid_constant__ struct dev_products all)
{
    MOE_DYNAMIC_SHARED(float, shared);
    const uint32_t index = dev_this_index(all);
    const struct dev_product p = dev_this_product(all, index);
    if (blockIdx.x >= moe_panels(p.rows))
        return;
#define PANEL(kind, run) matvec_panel<kind, run, NT>(p, shared)
    DEV_BY_QUANTIZED(p.kind, p.block, PANEL);
    DEV_BY_FLOAT(p.kind, PANEL);
#undef PANEL
    if (index < all.n_pairs)
        activate_if_last(all, index);
}

/* ---- Starting ---- */

/* start(tile) for n inputs. With MOE_FEW_TILES two tiles of the four are compiled, in half the
 * time: for builds that show that kernels compile, or that they keep to their memory. */
#ifdef MOE_FEW_TILES
#define BY_TILE(n, start)                                                                          \
    do {                                                                                           \
        if ((n) <= 1)                                                                              \
            start(1);                                                                              \
        else                                                                                       \
            start(8);                                                                              \
    } while (0)
#else
#define BY_TILE(n, start)                                                                          \
    do {                                                                                           \
        if ((n) <= 1)                                                                              \
            start(1);                                                                              \
        else if ((n) <= 2)                                                                         \
            start(2);                                                                              \
        else if ((n) <= 4)                                                                         \
            start(4);                                                                              \
        else                                                                                       \
            start(8);                                                                              \
    } while (0)
#endif

template <int KIND, int RUN, int NT>
static uint32_t shared_of_panel(const struct dev_product *p, uint32_t readers)
{
    if constexpr (RUN == 0)
        return sizeof(struct matvec_floats_stage<KIND, NT>);
    else
        return matvec_bytes_shared<KIND, RUN, NT>(*p, readers);
}

template <int NT> static uint32_t shared_of(const struct dev_product *p, uint32_t readers)
{
#define SHARED(kind, run) return shared_of_panel<kind, run, NT>(p, readers)
    DEV_BY_QUANTIZED(p->kind, p->block, SHARED);
    DEV_BY_FLOAT(p->kind, SHARED);
#undef SHARED
    return 0;
}

/* Shared memory that a block of any product of the list needs. */
template <int NT> static uint32_t shared_of_list(const struct dev_products *list, uint32_t readers)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct dev_product *p = &list->list[i];
        uint32_t own = shared_of<NT>(p, readers);
        most = own > most ? own : most;
    }
    return most;
}

static uint64_t count_panels(const struct dev_products *list)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < list->n; i++)
        n += (uint64_t)moe_panels(list->list[i].rows) * (i < list->n_each ? list->n_chosen : 1);
    return list->n_parts ? n * list->n_parts : n;
}

/* Many blocks share a multiprocessor's memory; few blocks have more loads in flight each. */
template <int NT>
static uint32_t readers_of(const struct moe_gpu *g, const struct dev_products *list)
{
    bool few = count_panels(list) <= 3 * (uint64_t)g->info.n_processors;
    return few ? dev_matvec_readers(NT) : DEV_READERS;
}

template <int NT>
static void start_products(struct moe_gpu *g, dim3 grid, const struct dev_products *list)
{
    uint32_t readers = readers_of<NT>(g, list);
    MOE_LAUNCH(g, matvec_products<NT>, grid, readers + dev_matvec_adders(NT),
               shared_of_list<NT>(list, readers), *list);
}

void gpu_matvec(struct moe_gpu *g, const struct dev_products *list)
{
    dim3 grid(gpu_most_panels(list), dev_products_height(list));
#define START(nt) start_products<nt>(g, grid, list)
    BY_TILE(gpu_most_inputs(list), START);
#undef START
}

bool gpu_can_activate(const struct dev_products *list)
{
    for (uint32_t i = 0; i < list->n_pairs; i++) {
        const struct dev_product *p = &list->list[i];
        uint64_t items = i < list->n_each ? list->n_chosen : p->item + 1;
        if (items * activation_counters(moe_panels(p->rows)) > GPU_ARRIVALS)
            return false;
    }
    return true;
}
