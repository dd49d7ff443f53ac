/*
 * Prefill's products by cuBLAS, on weights and inputs rounded to bf16: a matrix is unpacked into
 * scratch, row after row, then multiplied with sums in f32.
 *
 * Unpacking reads a matrix once and writes two bytes a weight, which cuBLAS reads; from some number
 * of inputs on the tensor cores' speed makes up for that (gpu_ops.h, MOE_GPU_BF16_ROWS).
 */
#include "dev_weights.cuh"
#include "gpu_products.cuh"

#include <limits.h>

enum { THREADS = 256 };

/* ---- Unpacking ----
 * A thread takes one row's columns of a unit; a warp two units of a panel's 16 rows, so that it
 * reads 128 bytes in a row. Float layouts go by four columns.
 */

template <int KIND> static constexpr MOE_DEVICE_CODE uint32_t unit_columns()
{
    return KIND == MOE_LAYOUT_F32 || KIND == MOE_LAYOUT_F16 || KIND == MOE_LAYOUT_BF16 ||
                   moe_kind_is_scaled(KIND)
               ? 4
               : 4 * dev_unit_words(KIND);
}

/* Weights unit * columns .. of row `row` of a panel, as moe_layout_load_row has them, but for the
 * row's factor, which is that of the results (dev_store_result). */
template <int KIND, int RUN>
static __device__ __forceinline__ void load_unit(const struct dev_product &p, const uint8_t *panel,
                                                 uint32_t row, uint32_t unit, float *w)
{
    const uint32_t columns = unit_columns<KIND>();
    if constexpr (RUN == 0) {
        const auto floats = dev_find_floats<KIND>(panel, p.kind, p.per_record, p.cols);
#pragma unroll
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t c = unit * columns + k;
            w[k] = c < p.cols ? dev_float_weight<KIND>(floats, c, row) : 0.0f;
        }
    } else {
        const int words = dev_unit_words(KIND), units = dev_run_units(KIND, RUN);
        const struct dev_run run =
            dev_find_run<KIND, RUN>(panel, p.blocks, p.per_record, p.reciprocal, unit / units);
        const struct moe_scales scale = dev_run_scale<KIND>(p.kind, run, row);
        uint32_t j = run.unit + unit % units, high = 0, codes[words];
        if constexpr (moe_kind_is_grouped(KIND)) {
            dev_unpack_groups<KIND, words>(run, row, dev_group_word<KIND>(run, row, j),
                                           dev_signs_word<KIND>(run, row),
                                           dev_first_eight<KIND>(run, j), codes);
        } else {
            if (moe_kind_high_plane(KIND))
                high = __ldg((const uint32_t *)(run.codes + dev_high_plane<KIND, RUN>() +
                                                dev_high_unit(KIND, j) * DEV_UNIT) +
                             row) >>
                       dev_high_shift(KIND, j);
            dev_unpack<KIND, words>(__ldg((const uint32_t *)(run.codes + j * DEV_UNIT) + row), high,
                                    codes);
        }
#pragma unroll
        for (uint32_t k = 0; k < columns; k++) {
            uint32_t code = codes[k / 4] >> 8 * (k % 4) & 0xff;
            w[k] = scale.d * (dev_is_signed(KIND) ? (float)(int8_t)code : (float)code);
            if (moe_kind_has_offset(KIND))
                w[k] += scale.m;
        }
    }
}

template <int KIND, int RUN>
static __global__ void __launch_bounds__(THREADS)
    unpack_kernel(struct dev_product p, uint32_t units, uint16_t *to)
{
    uint32_t unit = (blockIdx.y * THREADS + threadIdx.x) / MOE_PANEL_ROWS;
    uint32_t in_panel = threadIdx.x % MOE_PANEL_ROWS;
    uint32_t row = blockIdx.x * MOE_PANEL_ROWS + in_panel;
    if (unit >= units || row >= p.rows)
        return;
    const uint32_t columns = unit_columns<KIND>();
    float w[columns];
    load_unit<KIND, RUN>(p, dev_panel(p, blockIdx.x), in_panel, unit, w);
    to += (uint64_t)row * p.cols + unit * columns;
#pragma unroll
    for (uint32_t k = 0; k < columns; k++)
        if (unit * columns + k < p.cols)
            to[k] = moe_f32_to_bf16(w[k]);
}

template <int KIND, int RUN>
static void start_unpack(struct moe_gpu *g, const struct dev_product &p, uint16_t *to)
{
    uint32_t units = (p.cols + unit_columns<KIND>() - 1) / unit_columns<KIND>();
    dim3 grid(moe_panels(p.rows), (units * MOE_PANEL_ROWS + THREADS - 1) / THREADS);
    MOE_LAUNCH(g, (unpack_kernel<KIND, RUN>), grid, THREADS, 0, p, units, to);
}

static void unpack(struct moe_gpu *g, const struct dev_product &p, uint16_t *to)
{
#define START(kind, run) start_unpack<kind, run>(g, p, to)
    DEV_BY_QUANTIZED(p.kind, p.block, START);
    DEV_BY_FLOAT(p.kind, START);
#undef START
}

/* ---- Inputs, results ---- */

/* to[i] = input of result i. */
static __global__ void __launch_bounds__(THREADS)
    round_inputs(struct dev_product p, const float *x, uint64_t x_stride, uint16_t *to)
{
    uint32_t column = blockIdx.y * THREADS + threadIdx.x;
    if (column < p.cols)
        to[(uint64_t)blockIdx.x * p.cols + column] =
            moe_f32_to_bf16(x[dev_input_of(p, blockIdx.x) * x_stride + column]);
}

/* Finishes results as other products do when storing: adds biases, zeroes the rows that fill up the
 * last panel. */
static __global__ void __launch_bounds__(THREADS) finish_results(struct dev_product p)
{
    uint32_t row = blockIdx.y * THREADS + threadIdx.x;
    if (row < moe_panels(p.rows) * MOE_PANEL_ROWS)
        dev_store_result(p, blockIdx.x, row,
                         row < p.rows ? p.y[blockIdx.x * p.y_stride + row] : 0.0f);
}

/* ---- Products ---- */

static bool note_blas(struct moe_gpu *g, cublasStatus_t result, const char *what)
{
    if (result != CUBLAS_STATUS_SUCCESS && gpu_works(g))
        moe_fail(&g->failure, MOE_ERR_DEVICE,
                 "CUDA device %d failed: %s: %s (start again, or with --device cpu)", g->index,
                 what, g->blas_functions->status_text(result));
    return result == CUBLAS_STATUS_SUCCESS;
}

enum { SCRATCH_ALIGN = 256 }; /* as cuBLAS wants it */

static uint64_t matrix_bytes(uint64_t n_values)
{
    return (n_values * sizeof(uint16_t) + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

/* Where the scratch begins, aligned. */
static uint8_t *scratch_of(void *memory)
{
    uintptr_t at = (uintptr_t)memory;
    return (uint8_t *)((at + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN);
}

extern "C" uint64_t moe_gpu_math_bytes(uint64_t max_weights, uint64_t max_inputs)
{
    return SCRATCH_ALIGN + MOE_GPU_BLAS_BYTES + matrix_bytes(max_weights) +
           matrix_bytes(max_inputs);
}

/* A product without parts. */
static void multiply(struct moe_gpu *g, const struct moe_gpu_product *product,
                     const struct moe_gpu_act *act)
{
    const struct dev_product p = gpu_describe_product(product);
    uint64_t n_weights = (uint64_t)p.rows * p.cols;
    uint16_t *weights = (uint16_t *)(scratch_of(g->math_scratch) + MOE_GPU_BLAS_BYTES);
    uint16_t *inputs = weights + matrix_bytes(n_weights) / 2;
    unpack(g, p, weights);
    MOE_LAUNCH(g, round_inputs, dim3(p.n, (p.cols + THREADS - 1) / THREADS), THREADS, 0, p, act->x,
               act->x_stride, inputs);
    /* By columns, as BLAS sees memory: y [rows x n] = transposed w [cols x rows] x [cols x n]. */
    const float one = 1, zero = 0;
    if (gpu_works(g) &&
        note_blas(g,
                  g->blas_functions->gemm(g->blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)p.rows, (int)p.n,
                                          (int)p.cols, &one, weights, CUDA_R_16BF, (int)p.cols,
                                          inputs, CUDA_R_16BF, (int)p.cols, &zero, p.y, CUDA_R_32F,
                                          (int)p.y_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                  "cublasGemmEx"))
        gpu_asked(g, MOE_GPU_COMPUTE, cudaSuccess, "cublasGemmEx");
    if (p.bias || p.rows % MOE_PANEL_ROWS)
        MOE_LAUNCH(g, finish_results,
                   dim3(p.n, (moe_panels(p.rows) * MOE_PANEL_ROWS + THREADS - 1) / THREADS),
                   THREADS, 0, p);
    g->bf16_rows += p.n;
}

/* Whether it pays for one part's product. */
static bool pays(const struct moe_gpu *g, uint64_t n, uint64_t n_weights)
{
    return n >= g->bf16_from_rows && n * n_weights >= g->bf16_from_work;
}

bool gpu_gemm_bf16(struct moe_gpu *g, const struct moe_gpu_product *product)
{
    struct moe_gpu_product part = *product;
    struct moe_gpu_act act = *product->act;
    const struct moe_mat *w = &product->w;
    uint64_t n_weights = (uint64_t)w->rows * w->cols, n_inputs = (uint64_t)product->n * w->cols;
    if (g->math != MOE_GPU_MATH_BF16 || !pays(g, product->n, n_weights) || !act.x ||
        product->y_stride > INT_MAX ||
        moe_gpu_math_bytes(n_weights, n_inputs) > g->math_scratch_bytes)
        return false;
    part.n_parts = 0;
    for (uint32_t i = 0; i < (product->n_parts ? product->n_parts : 1); i++) {
        multiply(g, &part, &act);
        part.w.data += moe_panels(w->rows) * moe_layout_panel_bytes(w->layout, w->cols);
        part.y += product->y_part;
        act.x += product->in_part;
    }
    return true;
}

extern "C" void moe_gpu_set_bf16_rule(struct moe_gpu *g, uint32_t rows, uint64_t work)
{
    g->bf16_from_rows = rows;
    g->bf16_from_work = work;
}

extern "C" int moe_gpu_set_math(struct moe_gpu *g, enum moe_gpu_math math, void *scratch,
                                uint64_t scratch_bytes, struct moe_err *err)
{
    if (math == MOE_GPU_MATH_BF16 && g->info.compute_major < 8)
        return moe_fail(err, MOE_ERR_USAGE,
                        "CUDA device %d (%s, compute capability %d.%d) has no tensor cores for "
                        "bf16: --bf16-prompts needs 8.0 or later",
                        g->index, g->info.name, g->info.compute_major, g->info.compute_minor);
    if (math == MOE_GPU_MATH_BF16 && !g->blas && gpu_works(g)) {
        gpu_note(g, cudaSetDevice(g->index), "cudaSetDevice");
        g->blas_functions = gpu_blas_load(err);
        if (!g->blas_functions)
            return MOE_ERR_DEVICE;
        cublasStatus_t result = g->blas_functions->create(&g->blas);
        if (result != CUBLAS_STATUS_SUCCESS) {
            g->blas = NULL;
            (void)cudaGetLastError(); /* cuBLAS's own calls' */
            return moe_fail(err, MOE_ERR_DEVICE, "CUDA device %d: cuBLAS cannot start: %s",
                            g->index, g->blas_functions->status_text(result));
        }
        note_blas(g, g->blas_functions->set_stream(g->blas, g->streams[MOE_GPU_COMPUTE]),
                  "cublasSetStream");
    }
    if (math == MOE_GPU_MATH_BF16 && scratch_bytes >= moe_gpu_math_bytes(0, 0) && gpu_works(g))
        note_blas(
            g, g->blas_functions->set_workspace(g->blas, scratch_of(scratch), MOE_GPU_BLAS_BYTES),
            "cublasSetWorkspace");
    if (!gpu_works(g))
        return moe_gpu_status(g, err);
    g->math = math;
    g->math_scratch = scratch;
    g->math_scratch_bytes = scratch_bytes;
    return MOE_OK;
}

extern "C" uint64_t moe_gpu_bf16_rows(const struct moe_gpu *g)
{
    return g->bf16_rows;
}
