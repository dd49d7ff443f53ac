/*
 * A panel of a matrix of floats times up to eight inputs, by a block of threads: as with quantized
 * layouts (dev_matvec_bytes.cuh), warps bring sections of 128 columns into shared memory, some
 * sections ahead; the chains run beside them. A chain takes four cycles a column: with 4096 columns
 * the chain is what a matrix waits for, unless it is large.
 */
#ifndef MOE_KERNELS_DEV_MATVEC_FLOATS_CUH
#define MOE_KERNELS_DEV_MATVEC_FLOATS_CUH

#include "dev_copy.cuh"
#include "dev_product.cuh"
#include "dev_weights.cuh"

enum {
    MATVEC_COLUMNS = 128, /* of a section */
    MATVEC_SECTIONS = 5,  /* that have room */
    MATVEC_CHAIN = 8      /* columns that a chain fetches at a time */
};

template <int KIND, int NT> struct matvec_floats_section {
    __align__(16) uint8_t weights[MATVEC_COLUMNS * dev_column_bytes<KIND>()];
    float x[NT][MATVEC_COLUMNS];
};

template <int KIND, int NT> struct matvec_floats_stage {
    struct matvec_floats_section<KIND, NT> sections[MATVEC_SECTIONS];
};

/* Asks for the section from column `first` on; by all reading threads. A
 * group. */
template <int KIND, int NT>
static __device__ __forceinline__ void
matvec_copy_floats(const struct dev_product &p, const uint8_t *panel, const float *const in[NT],
                   uint32_t readers, uint32_t first, struct matvec_floats_section<KIND, NT> *to)
{
    const uint32_t column_bytes = sizeof to->weights / MATVEC_COLUMNS;
    uint32_t n = first < p.cols ? min(p.cols - first, (uint32_t)MATVEC_COLUMNS) : 0;
    panel += (uint64_t)first * column_bytes;
    for (uint32_t at = threadIdx.x * 16; at < n * column_bytes; at += readers * 16)
        dev_copy<16>(to->weights + at, panel + at);
#pragma unroll
    for (int t = 0; t < NT; t++)
        if (threadIdx.x < n)
            dev_copy<4>(&to->x[t][threadIdx.x], in[t] + first + threadIdx.x);
    dev_copies_end();
}

/* Weights and inputs of a chain's next columns. */
struct matvec_floats_links {
    float w[MATVEC_CHAIN], x[MATVEC_CHAIN];
};

/* From column `first` of a section on that begins with column `begin` of the panel. Columns of a
 * chain have one scale. */
template <int KIND, int NT>
static __device__ __forceinline__ void
matvec_fetch_floats(const struct matvec_floats_section<KIND, NT> &section,
                    const struct dev_float_panel &panel, uint32_t begin, uint32_t row, uint32_t t,
                    uint32_t first, struct matvec_floats_links *links)
{
    const float scale = dev_float_scale<KIND>(panel, begin + first, row);
#pragma unroll
    for (int i = 0; i < MATVEC_CHAIN; i++) {
        links->w[i] = dev_float_value<KIND, true>(panel.own.kind, section.weights,
                                                  (first + i) * MOE_PANEL_ROWS + row) *
                      scale;
        links->x[i] = section.x[t][first + i];
    }
}

/* The chain over a section of n columns: while it goes over some, the next are fetched. */
template <int KIND, int NT>
static __device__ __forceinline__ float
matvec_chain_floats(const struct matvec_floats_section<KIND, NT> &section,
                    const struct dev_float_panel &panel, uint32_t begin, uint32_t row, uint32_t t,
                    uint32_t n, float y)
{
    struct matvec_floats_links next;
    uint32_t c = 0;
    matvec_fetch_floats(section, panel, begin, row, t, 0, &next);
#pragma unroll 2
    for (; c + MATVEC_CHAIN <= n; c += MATVEC_CHAIN) {
        const struct matvec_floats_links links = next;
        /* Behind the last column in vain, but within the panel. */
        matvec_fetch_floats(section, panel, begin, row, t, (c + MATVEC_CHAIN) % MATVEC_COLUMNS,
                            &next);
#pragma unroll
        for (int i = 0; i < MATVEC_CHAIN; i++)
            y = fmaf(links.w[i], links.x[i], y);
    }
#pragma unroll 1
    for (; c < n; c++)
        y = fmaf(
            dev_float_value<KIND, true>(panel.own.kind, section.weights, c * MOE_PANEL_ROWS + row) *
                dev_float_scale<KIND>(panel, begin + c, row),
            section.x[t][c], y);
    return y;
}

/* The block's panel, blockIdx.x; shared: a matvec_floats_stage. */
template <int KIND, int NT>
static __device__ __forceinline__ void matvec_floats_panel(const struct dev_product &p,
                                                           uint32_t readers, float *shared)
{
    struct matvec_floats_section<KIND, NT> *sections =
        ((struct matvec_floats_stage<KIND, NT> *)shared)->sections;
    const auto panel =
        dev_find_floats<KIND>(p.data + blockIdx.x * p.panel_bytes, p.kind, p.per_record, p.cols);
    uint32_t n_sections = (p.cols + MATVEC_COLUMNS - 1) / MATVEC_COLUMNS;
    bool reads = threadIdx.x < readers;
    const float *in[NT] = {}; /* of a reading thread */
    /* Of a chain's. */
    uint32_t row = threadIdx.x % MOE_PANEL_ROWS, t = (threadIdx.x - readers) / MOE_PANEL_ROWS;
    bool adds = !reads && t < NT;
    float y = 0;

    auto ask = [&](uint32_t k) {
        matvec_copy_floats<KIND, NT>(p, panel.values, in, readers, k * MATVEC_COLUMNS,
                                     &sections[k % MATVEC_SECTIONS]);
    };
    if (reads) {
#pragma unroll
        for (int k = 0; k < NT; k++)
            in[k] = (const float *)p.inputs + dev_input_of(p, k) * p.in_stride;
#pragma unroll 1
        for (uint32_t k = 0; k + 1 < MATVEC_SECTIONS; k++)
            ask(k);
    }
#pragma unroll 1
    for (uint32_t k = 0; k < n_sections; k++) {
        if (reads)
            dev_copies_wait<MATVEC_SECTIONS - 2>();
        __syncthreads(); /* section k is there, and the chains have left the one before it */
        if (reads)
            ask(k + MATVEC_SECTIONS - 1);
        else if (adds)
            /* threadIdx.y is 0, but the compiler cannot tell: with one input it would know that t
             * is the same in all lanes, and move inputs through uniform registers, which takes
             * longer than the chain. */
            y = matvec_chain_floats(sections[k % MATVEC_SECTIONS], panel, k * MATVEC_COLUMNS, row,
                                    t + threadIdx.y,
                                    min(p.cols - k * MATVEC_COLUMNS, (uint32_t)MATVEC_COLUMNS), y);
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

#endif
