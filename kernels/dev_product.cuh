/*
 * Products as their kernels receive them: a list by value, one grid for all of it. Blocks find
 * their product by blockIdx.y.
 */
#ifndef MOE_KERNELS_DEV_PRODUCT_CUH
#define MOE_KERNELS_DEV_PRODUCT_CUH

#include "gpu_context.cuh"
#include "quant/layout.h"

/* y[i] = w times an input, plus `bias`, for i < n. */
struct dev_product {
    const uint8_t *data;
    const float *bias;  /* [rows], or NULL */
    const void *inputs; /* rows of floats, or of bytes with s and z beside them */
    const float *s, *z;
    const uint32_t *rows_of; /* input rows_of[i], or first + i * step */
    float *y;
    uint64_t y_stride;
    uint64_t in_stride; /* values from input to input */
    uint64_t panel_bytes;
    uint32_t rows, cols, blocks;
    uint32_t per_record, reciprocal; /* blocks of a full record; dev_reciprocal of it */
    uint32_t first, step, n;
};

/* Which of an expert's matrices. */
enum dev_matrix { DEV_GATE, DEV_UP, DEV_DOWN };

/* At most 4 KB, which is what arguments of a kernel may have. */
enum { DEV_MAX_PRODUCTS = 32 };
struct dev_products {
    /* With a table each product is one for n_chosen experts: matrix[k] of table[chosen[a]] times
     * input a / share, into row a. */
    const struct moe_gpu_gated *table;
    const uint32_t *chosen;
    uint32_t n_chosen, share;
    uint8_t matrix[DEV_MAX_PRODUCTS];
    uint32_t n;
    struct dev_product list[DEV_MAX_PRODUCTS];
};
static_assert(sizeof(struct dev_products) <= 4096, "arguments of a kernel");

/* Rows of blocks that the list wants. */
static inline uint32_t dev_products_height(const struct dev_products *p)
{
    return p->table ? p->n * p->n_chosen : p->n;
}

/* The product of this block. */
static __device__ __forceinline__ struct dev_product
dev_this_product(const struct dev_products &all)
{
    if (!all.table)
        return all.list[blockIdx.y];
    uint32_t k = blockIdx.y / all.n_chosen, a = blockIdx.y % all.n_chosen;
    const struct moe_gpu_gated *expert = &all.table[__ldg(all.chosen + a)];
    struct dev_product p = all.list[k];
    if (all.matrix[k] == DEV_GATE) {
        p.data = expert->gate.data;
        p.bias = expert->gate_bias;
    } else if (all.matrix[k] == DEV_UP) {
        p.data = expert->up.data;
        p.bias = expert->up_bias;
    } else {
        p.data = expert->down.data;
        p.bias = expert->down_bias;
    }
    p.first = a / all.share;
    p.y += a * p.y_stride;
    return p;
}

/* Which input result i is made of; past the last result, that of the last. */
static __device__ __forceinline__ uint64_t dev_input_of(const struct dev_product &p, uint32_t i)
{
    i = min(i, p.n - 1);
    return p.rows_of ? __ldg(p.rows_of + i) : p.first + (uint64_t)i * p.step;
}

/* Result i of row `row`, which may lie in the last panel's excess. */
static __device__ __forceinline__ void dev_store_result(const struct dev_product &p, uint32_t i,
                                                        uint32_t row, float v)
{
    if (row >= p.rows)
        v = 0;
    else if (p.bias)
        v += __ldg(p.bias + row);
    p.y[i * p.y_stride + row] = v;
}

/* ---- Kernels for few inputs --------------------------------------------------------------------
 * They take tiles of 1, 2, 4 or 8. A block of theirs has threads that read and, in warps of their
 * own, one per row of a panel and input that adds.
 */

enum { GPU_FEW_ROWS = 8, DEV_READERS = 128 };

static constexpr MOE_DEVICE_CODE int dev_few_threads(int nt)
{
    return DEV_READERS + (nt == 1 ? 32 : MOE_PANEL_ROWS * nt);
}

/* start(tile) for n inputs. */
#define DEV_BY_TILE(n, start)                                                                      \
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

/* ---- Starting them -----------------------------------------------------------------------------
 * The products of a list are of one layout kind and one size of blocks; max_panels and max_n are
 * the largest among them.
 */

/* The product as kernels receive it. */
struct dev_product gpu_describe_product(const struct moe_gpu_product *product);

/* Starts the kernel for them. All n are above GPU_FEW_ROWS, or none is. */
void gpu_multiply(struct moe_gpu *g, struct moe_layout layout, const struct dev_products *list,
                  uint32_t max_panels, uint32_t max_n);
/* What it starts. */
void gpu_multiply_few(struct moe_gpu *g, struct moe_layout layout, const struct dev_products *list,
                      uint32_t max_panels, uint32_t max_n);
void gpu_multiply_many(struct moe_gpu *g, struct moe_layout layout, const struct dev_products *list,
                       uint32_t max_panels, uint32_t max_n);
void gpu_multiply_floats(struct moe_gpu *g, uint16_t kind, const struct dev_products *list,
                         uint32_t max_panels, uint32_t max_n);

/* One product by MOE_GPU_MATH_BF16; false, and nothing done, when that is not to be. */
bool gpu_multiply_bf16(struct moe_gpu *g, const struct moe_gpu_product *product);

#endif
