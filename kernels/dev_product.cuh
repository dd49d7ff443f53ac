/*
 * Products as their kernels receive them: a list by value, one grid for all of it. Blocks find
 * their product by blockIdx.y.
 */
#ifndef MOE_KERNELS_DEV_PRODUCT_CUH
#define MOE_KERNELS_DEV_PRODUCT_CUH

#include "dev_activate.cuh"
#include "gpu_context.cuh"
#include "quant/layout.h"

/* Which of an expert's matrices. */
enum dev_matrix { DEV_GATE, DEV_UP, DEV_DOWN };

/* y[i] = w times an input, plus `bias`, for i < n. */
struct dev_product {
    const uint8_t *data;
    const float *bias;  /* [rows], or NULL */
    const void *inputs; /* rows of floats, or of bytes with s and z beside them */
    const float *s, *z;
    const uint32_t *rows_of; /* input rows_of[i], or first + i */
    float *y;
    uint64_t y_stride;
    uint64_t in_stride; /* values from input to input */
    uint64_t panel_bytes;
    uint32_t rows, cols, blocks;
    /* Blocks of a full record, and dev_reciprocal of it; of scaled kinds the layout's group. */
    uint32_t per_record, reciprocal;
    uint32_t first, n;
    uint32_t out;        /* of activations: the number of y[0] */
    uint32_t item;       /* which activation it belongs to */
    uint8_t kind, block; /* layout; columns of a block, 0 of floats */
    uint8_t matrix;      /* enum dev_matrix */
};

/* At most 4 KB, the limit of a kernel's arguments. */
enum { DEV_MAX_PRODUCTS = 28 };
struct dev_products {
    /* The first n_each products are each computed for n_chosen experts: matrix of table[chosen[a]]
     * times input a / share, into row a; for gate and up input a / share, for down input a. */
    const struct moe_gpu_gated *table;
    const uint32_t *chosen;
    uint32_t n_chosen, share, n_each;
    uint32_t n_parts, in_part, y_part; /* above 0: for a list of one product */
    uint32_t n;
    /* The first n_pairs products, gate and up or only up, are followed by their activation: by 64
     * columns, each by whichever block is the last to deliver them. */
    uint32_t n_pairs;
    uint32_t *arrivals; /* [GPU_ARRIVALS] */
    struct dev_activate activate;
    struct dev_product list[DEV_MAX_PRODUCTS];
};
static_assert(sizeof(struct dev_products) <= 4096, "arguments of a kernel");

/* Rows of blocks that the list needs. */
static inline uint32_t dev_products_height(const struct dev_products *p)
{
    return p->n_parts ? p->n_parts : p->n_each * p->n_chosen + p->n - p->n_each;
}

static __device__ __forceinline__ struct dev_product dev_this_part(const struct dev_products &all)
{
    struct dev_product p = all.list[0];
    uint32_t part = blockIdx.y;
    p.data += (uint64_t)part * moe_panels(p.rows) * p.panel_bytes;
    if (p.block)
        p.first = part * p.n;
    else
        p.inputs = (const float *)p.inputs + part * all.in_part;
    p.y += part * all.y_part;
    return p;
}

/* Where the product of this block is in the list. */
static __device__ __forceinline__ uint32_t dev_this_index(const struct dev_products &all)
{
    uint32_t n_chosen = all.n_each * all.n_chosen;
    if (all.n_parts)
        return 0;
    return blockIdx.y < n_chosen ? blockIdx.y / all.n_chosen : all.n_each + blockIdx.y - n_chosen;
}

/* The product of this block, number `index` of the list. */
static __device__ __forceinline__ struct dev_product
dev_this_product(const struct dev_products &all, uint32_t index)
{
    if (all.n_parts)
        return dev_this_part(all);
    if (index >= all.n_each)
        return all.list[index];
    uint32_t a = blockIdx.y % all.n_chosen;
    const struct moe_gpu_gated *expert = &all.table[__ldg(all.chosen + a)];
    struct dev_product p = all.list[index];
    if (p.matrix == DEV_GATE) {
        p.data = expert->gate.data;
        p.bias = expert->gate_bias;
    } else if (p.matrix == DEV_UP) {
        p.data = expert->up.data;
        p.bias = expert->up_bias;
    } else {
        p.data = expert->down.data;
        p.bias = expert->down_bias;
    }
    p.first = p.matrix == DEV_DOWN ? a : a / all.share;
    p.y += a * p.y_stride;
    return p;
}

/* The input of result i; past the last result, that of the last. */
static __device__ __forceinline__ uint64_t dev_input_of(const struct dev_product &p, uint32_t i)
{
    i = min(i, p.n - 1);
    return p.rows_of ? __ldg(p.rows_of + i) : (uint64_t)p.first + i;
}

/* The records of a panel, behind the factors of its rows. */
static __device__ __forceinline__ const uint8_t *dev_panel(const struct dev_product &p, uint32_t i)
{
    return p.data + i * p.panel_bytes + moe_kind_front(p.kind);
}

/* Stores result i of row `row`, which may lie in the last panel's excess. */
static __device__ __forceinline__ void dev_store_result(const struct dev_product &p, uint32_t i,
                                                        uint32_t row, float v)
{
    if (moe_kind_front(p.kind))
        v *= __ldg((const float *)(p.data + row / MOE_PANEL_ROWS * p.panel_bytes) +
                   row % MOE_PANEL_ROWS);
    if (row >= p.rows)
        v = 0;
    else if (p.bias)
        v += __ldg(p.bias + row);
    p.y[i * p.y_stride + row] = v;
}

/* ---- Matvec kernels ----
 * They take tiles of 1, 2, 4 or 8 inputs. A block has reading threads and, in separate warps, one
 * adding thread per row of a panel and input. With one input twice as many threads read if there
 * are few blocks. */

enum { GPU_MATVEC_INPUTS = 8, DEV_READERS = 128 };

/* The most. */
static constexpr MOE_DEVICE_CODE int dev_matvec_readers(int nt)
{
    return nt == 1 ? 2 * DEV_READERS : DEV_READERS;
}

static constexpr MOE_DEVICE_CODE int dev_matvec_adders(int nt)
{
    return nt == 1 ? 32 : MOE_PANEL_ROWS * nt;
}

/* ---- By layout ----
 * start(kind, run) for a layout's kind or the one that it varies, the columns of its blocks, and
 * those of its runs (dev_weights.cuh).
 */

#define DEV_BY_BLOCK(kind, block, start)                                                           \
    do {                                                                                           \
        if ((block) == 32)                                                                         \
            start(kind, 32);                                                                       \
        else                                                                                       \
            start(kind, 64);                                                                       \
    } while (0)

#define DEV_BY_QUANTIZED(kind, block, start)                                                       \
    switch (moe_kind_base(kind)) {                                                                 \
    case MOE_LAYOUT_Q8:                                                                            \
        DEV_BY_BLOCK(MOE_LAYOUT_Q8, block, start);                                                 \
        break;                                                                                     \
    case MOE_LAYOUT_Q5:                                                                            \
        DEV_BY_BLOCK(MOE_LAYOUT_Q5, block, start);                                                 \
        break;                                                                                     \
    case MOE_LAYOUT_Q4:                                                                            \
        DEV_BY_BLOCK(MOE_LAYOUT_Q4, block, start);                                                 \
        break;                                                                                     \
    case MOE_LAYOUT_Q3:                                                                            \
        DEV_BY_BLOCK(MOE_LAYOUT_Q3, block, start);                                                 \
        break;                                                                                     \
    case MOE_LAYOUT_Q2:                                                                            \
        DEV_BY_BLOCK(MOE_LAYOUT_Q2, block, start);                                                 \
        break;                                                                                     \
    case MOE_LAYOUT_MXFP4:                                                                         \
        start(MOE_LAYOUT_MXFP4, 32);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_Q4_0:                                                                          \
        start(MOE_LAYOUT_Q4_0, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q5_0:                                                                          \
        start(MOE_LAYOUT_Q5_0, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q6_0:                                                                          \
        start(MOE_LAYOUT_Q6_0, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q8_0:                                                                          \
        start(MOE_LAYOUT_Q8_0, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_IQ4_NL:                                                                        \
        start(MOE_LAYOUT_IQ4_NL, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_Q4_K:                                                                          \
        start(MOE_LAYOUT_Q4_K, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q5_K:                                                                          \
        start(MOE_LAYOUT_Q5_K, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_IQ4_XS:                                                                        \
        start(MOE_LAYOUT_IQ4_XS, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_TQ2_0:                                                                         \
        start(MOE_LAYOUT_TQ2_0, 32);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ1_S:                                                                         \
        start(MOE_LAYOUT_IQ1_S, 32);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_XXS:                                                                       \
        start(MOE_LAYOUT_IQ2_XXS, 32);                                                             \
        break;                                                                                     \
    case MOE_LAYOUT_IQ3_XXS:                                                                       \
        start(MOE_LAYOUT_IQ3_XXS, 32);                                                             \
        break;                                                                                     \
    case MOE_LAYOUT_IQ3_S:                                                                         \
        start(MOE_LAYOUT_IQ3_S, 32);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_Q1_0:                                                                          \
        start(MOE_LAYOUT_Q1_0, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q2_0:                                                                          \
        start(MOE_LAYOUT_Q2_0, 32);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_TQ1_0:                                                                         \
        start(MOE_LAYOUT_TQ1_0, 32);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_KS:                                                                        \
        start(MOE_LAYOUT_IQ2_KS, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ3_KS:                                                                        \
        start(MOE_LAYOUT_IQ3_KS, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ4_KS:                                                                        \
        start(MOE_LAYOUT_IQ4_KS, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ5_KS:                                                                        \
        start(MOE_LAYOUT_IQ5_KS, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ1_KT:                                                                        \
        start(MOE_LAYOUT_IQ1_KT, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_KT:                                                                        \
        start(MOE_LAYOUT_IQ2_KT, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ3_KT:                                                                        \
        start(MOE_LAYOUT_IQ3_KT, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ4_KT:                                                                        \
        start(MOE_LAYOUT_IQ4_KT, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_KL:                                                                        \
        start(MOE_LAYOUT_IQ2_KL, 32);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ1_M:                                                                         \
        start(MOE_LAYOUT_IQ1_M, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_XS:                                                                        \
        start(MOE_LAYOUT_IQ2_XS, 16);                                                              \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_S:                                                                         \
        start(MOE_LAYOUT_IQ2_S, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_Q2_K:                                                                          \
        start(MOE_LAYOUT_Q2_K, 16);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q3_K:                                                                          \
        start(MOE_LAYOUT_Q3_K, 16);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_Q6_K:                                                                          \
        start(MOE_LAYOUT_Q6_K, 16);                                                                \
        break;                                                                                     \
    case MOE_LAYOUT_IQ2_K:                                                                         \
        start(MOE_LAYOUT_IQ2_K, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ3_K:                                                                         \
        start(MOE_LAYOUT_IQ3_K, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ4_K:                                                                         \
        start(MOE_LAYOUT_IQ4_K, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ5_K:                                                                         \
        start(MOE_LAYOUT_IQ5_K, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_IQ6_K:                                                                         \
        start(MOE_LAYOUT_IQ6_K, 16);                                                               \
        break;                                                                                     \
    case MOE_LAYOUT_NVFP4:                                                                         \
        start(MOE_LAYOUT_NVFP4, 16);                                                               \
        break;                                                                                     \
    }

#define DEV_BY_FLOAT(kind, start)                                                                  \
    switch (kind) {                                                                                \
    case MOE_LAYOUT_F32:                                                                           \
        start(MOE_LAYOUT_F32, 0);                                                                  \
        break;                                                                                     \
    case MOE_LAYOUT_F16:                                                                           \
        start(MOE_LAYOUT_F16, 0);                                                                  \
        break;                                                                                     \
    case MOE_LAYOUT_BF16:                                                                          \
        start(MOE_LAYOUT_BF16, 0);                                                                 \
        break;                                                                                     \
    case MOE_LAYOUT_F8:                                                                            \
    case MOE_LAYOUT_F8_B:                                                                          \
    case MOE_LAYOUT_I8:                                                                            \
        start(MOE_LAYOUT_F8, 0);                                                                   \
        break;                                                                                     \
    case MOE_LAYOUT_NF4:                                                                           \
    case MOE_LAYOUT_FP4:                                                                           \
        start(MOE_LAYOUT_NF4, 0);                                                                  \
        break;                                                                                     \
    }

#endif
