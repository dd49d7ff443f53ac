/*
 * A panel of a matrix of floats times up to eight inputs, by a block of threads: as with quantized
 * layouts (dev_matvec_bytes.cuh), warps bring sections of 128 columns into shared memory, some
 * sections ahead; the chains run beside them. A chain takes four cycles a column: with 4096 columns
 * the chain is what a matrix waits for, unless it is large. Of kinds that have scales the warps
 * also decode a section, while the chains go over the one before it.
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

/* Weights of a section, times their scales, of kinds that have some. */
template <int KIND> struct matvec_decoded {
    float w[moe_kind_is_scaled(KIND) ? MATVEC_COLUMNS * MOE_PANEL_ROWS : 1];
};

template <int KIND, int NT> struct matvec_floats_stage {
    struct matvec_floats_section<KIND, NT> sections[MATVEC_SECTIONS];
    struct matvec_decoded<KIND> decoded[2];
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

/* Decodes a section's first n columns, which begin with column `begin` of the panel; by all reading
 * threads. MATVEC_CHAIN columns from a multiple of it on have one scale. */
template <int KIND, int NT>
static __device__ __forceinline__ void
matvec_decode(const struct matvec_floats_section<KIND, NT> &section,
              const struct dev_float_panel &panel, uint32_t readers, uint32_t begin, uint32_t n,
              struct matvec_decoded<KIND> *to)
{
    const uint32_t row = threadIdx.x % MOE_PANEL_ROWS;
    for (uint32_t c = threadIdx.x / MOE_PANEL_ROWS * MATVEC_CHAIN; c < n;
         c += readers / MOE_PANEL_ROWS * MATVEC_CHAIN) {
        const float scale = dev_float_scale<KIND>(panel, begin + c, row);
#pragma unroll
        for (int i = 0; i < MATVEC_CHAIN; i++) /* behind the last column in vain */
            to->w[(c + i) * MOE_PANEL_ROWS + row] =
                dev_float_value<KIND, true>(panel.own.kind, section.weights,
                                            (c + i) * MOE_PANEL_ROWS + row) *
                scale;
    }
}

/* Weights and inputs of a chain's next columns. */
struct matvec_floats_links {
    float w[MATVEC_CHAIN], x[MATVEC_CHAIN];
};

/* A row's weight in a column of the section. */
template <int KIND, int NT>
static __device__ __forceinline__ float
matvec_weight(const struct matvec_floats_section<KIND, NT> &section,
              const struct matvec_decoded<KIND> &decoded, uint32_t c, uint32_t row)
{
    if (moe_kind_is_scaled(KIND))
        return decoded.w[c * MOE_PANEL_ROWS + row];
    return dev_float_value<KIND, true>(KIND, section.weights, c * MOE_PANEL_ROWS + row);
}

/* From column `first` of a section on. */
template <int KIND, int NT>
static __device__ __forceinline__ void
matvec_fetch_floats(const struct matvec_floats_section<KIND, NT> &section,
                    const struct matvec_decoded<KIND> &decoded, uint32_t row, uint32_t t,
                    uint32_t first, struct matvec_floats_links *links)
{
#pragma unroll
    for (int i = 0; i < MATVEC_CHAIN; i++) {
        links->w[i] = matvec_weight<KIND, NT>(section, decoded, first + i, row);
        links->x[i] = section.x[t][first + i];
    }
}

/* The chain over a section of n columns: while it goes over some, the next are fetched. */
template <int KIND, int NT>
static __device__ __forceinline__ float
matvec_chain_floats(const struct matvec_floats_section<KIND, NT> &section,
                    const struct matvec_decoded<KIND> &decoded, uint32_t row, uint32_t t,
                    uint32_t n, float y)
{
    struct matvec_floats_links next;
    uint32_t c = 0;
    matvec_fetch_floats(section, decoded, row, t, 0, &next);
#pragma unroll 2
    for (; c + MATVEC_CHAIN <= n; c += MATVEC_CHAIN) {
        const struct matvec_floats_links links = next;
        /* Behind the last column in vain, but within the section. */
        matvec_fetch_floats(section, decoded, row, t, (c + MATVEC_CHAIN) % MATVEC_COLUMNS, &next);
#pragma unroll
        for (int i = 0; i < MATVEC_CHAIN; i++)
            y = fmaf(links.w[i], links.x[i], y);
    }
#pragma unroll 1
    for (; c < n; c++)
        y = fmaf(matvec_weight<KIND, NT>(section, decoded, c, row), section.x[t][c], y);
    return y;
}

/* The block's panel, blockIdx.x; shared: a matvec_floats_stage. */
template <int KIND, int NT>
static __device__ __forceinline__ void matvec_floats_panel(const struct dev_product &p,
                                                           uint32_t readers, float *shared)
{
    struct matvec_floats_stage<KIND, NT> *stage = (struct matvec_floats_stage<KIND, NT> *)shared;
    const auto panel =
        dev_find_floats<KIND>(p.data + blockIdx.x * p.panel_bytes, p.kind, p.per_record, p.cols);
    /* The chains go over a section when it is there, or has been decoded meanwhile. */
    constexpr uint32_t behind = moe_kind_is_scaled(KIND), ahead = MATVEC_SECTIONS - 1 - behind;
    uint32_t n_sections = (p.cols + MATVEC_COLUMNS - 1) / MATVEC_COLUMNS;
    bool reads = threadIdx.x < readers;
    const float *in[NT] = {}; /* of a reading thread */
    /* Of a chain's. */
    uint32_t row = threadIdx.x % MOE_PANEL_ROWS, t = (threadIdx.x - readers) / MOE_PANEL_ROWS;
    bool adds = !reads && t < NT;
    float y = 0;

    auto section = [&](uint32_t k) -> struct matvec_floats_section<KIND, NT> & {
        return stage->sections[k % MATVEC_SECTIONS];
    };
    auto columns = [&](uint32_t k) {
        return min(p.cols - k * MATVEC_COLUMNS, (uint32_t)MATVEC_COLUMNS);
    };
    auto ask = [&](uint32_t k) {
        matvec_copy_floats<KIND, NT>(p, panel.values, in, readers, k * MATVEC_COLUMNS, &section(k));
    };
    if (reads) {
#pragma unroll
        for (int k = 0; k < NT; k++)
            in[k] = (const float *)p.inputs + dev_input_of(p, k) * p.in_stride;
#pragma unroll 1
        for (uint32_t k = 0; k < ahead; k++)
            ask(k);
    }
#pragma unroll 1
    for (uint32_t k = 0; k < n_sections + behind; k++) {
        if (reads)
            dev_copies_wait<ahead - 1>();
        __syncthreads(); /* section k is there, the one before it decoded; the chains have left the
                            one before that */
        if (reads) {
            ask(k + ahead);
            if (behind && k < n_sections)
                matvec_decode<KIND, NT>(section(k), panel, readers, k * MATVEC_COLUMNS, columns(k),
                                        &stage->decoded[k % 2]);
        } else if (adds && k + 1 > behind) {
            /* threadIdx.y is 0, but the compiler cannot tell: with one input it would know that t
             * is the same in all lanes, and move inputs through uniform registers, which takes
             * longer than the chain. */
            y = matvec_chain_floats<KIND, NT>(section(k - behind), stage->decoded[(k - behind) % 2],
                                              row, t + threadIdx.y, columns(k - behind), y);
        }
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

#endif
