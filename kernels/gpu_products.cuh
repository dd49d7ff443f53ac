/*
 * Lists of products, made by gpu_matmul.cu and gpu_experts.cu, computed by gpu_matvec.cu,
 * gpu_gemm.cu and gpu_gemm_floats.cu.
 */
#ifndef MOE_KERNELS_GPU_PRODUCTS_CUH
#define MOE_KERNELS_GPU_PRODUCTS_CUH

#include "dev_product.cuh"

/* The product as kernels receive it; nothing follows. */
struct dev_product gpu_describe_product(const struct moe_gpu_product *product);
/* Whether one launch takes all of them. */
bool gpu_can_list(const struct moe_gpu_product *list, uint32_t n_list);

/* An empty list. */
struct dev_products gpu_list(const struct moe_gpu *g);
/* Adds a job's gate and up, followed by their activation. Pairs come first in a list. */
void gpu_list_pair(struct dev_products *list, const struct moe_gpu_experts *e,
                   const struct moe_gpu_job *job);
/* A job's down. */
void gpu_list_down(struct dev_products *list, const struct moe_gpu_experts *e,
                   const struct moe_gpu_job *job);
/* Activates rows first .. first + n, in a separate launch. */
void gpu_activate_rows(struct moe_gpu *g, const struct moe_gpu_experts *e, uint32_t first,
                       uint32_t n);

/* The largest of a list. */
uint32_t gpu_most_panels(const struct dev_products *list);
uint32_t gpu_most_inputs(const struct dev_products *list);

/* Products with up to GPU_MATVEC_INPUTS inputs, of any layouts, pairs with their activation. */
void gpu_matvec(struct moe_gpu *g, const struct dev_products *list);
/* Whether there are counters for the activations of the list's pairs. */
bool gpu_can_activate(const struct dev_products *list);
/* Products with more: all of the same kind and blocks, no pairs. */
void gpu_gemm(struct moe_gpu *g, const struct dev_products *list);
void gpu_gemm_floats(struct moe_gpu *g, const struct dev_products *list);

/* Computes one product by MOE_GPU_MATH_BF16; false, and nothing done, if that math does not apply.
 */
bool gpu_gemm_bf16(struct moe_gpu *g, const struct moe_gpu_product *product);

#endif
