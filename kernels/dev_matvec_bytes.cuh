/*
 * A panel of a quantized matrix times up to eight inputs, by a block of threads.
 *
 * Four or eight warps read the panel's 16 rows in order of memory, 16 bytes a lane (four rows of
 * one unit), each used for all inputs. A lane copies what it will need into shared memory, up to
 * RING pieces ahead, and is the only one to read it: no barrier, few registers, and in decode all
 * of a block's loads are in flight from the start. They leave the exact sums of each (row, column
 * block, input) in shared memory, in two alternating buffers; separate warps, one thread per (row,
 * input), run the short fma chain over the section before, whose order determines the results'
 * bits, with factors that these warps copied sections ahead. So the chain's latency overlaps the
 * loads, with one barrier per section.
 */
#ifndef MOE_KERNELS_DEV_MATVEC_BYTES_CUH
#define MOE_KERNELS_DEV_MATVEC_BYTES_CUH

#include "dev_copy.cuh"
#include "dev_integer.cuh"
#include "dev_product.cuh"
#include "dev_share.cuh"
#include "dev_weights.cuh"

enum {
    RING = 8,   /* pieces of 16 bytes that a reading lane has in flight */
    LINKS = 8,  /* blocks that a chain takes at a time */
    FACTORS = 3 /* sections with room for their factors */
};

static constexpr MOE_DEVICE_CODE int smaller(int a, int b)
{
    return a < b ? a : b;
}

static constexpr MOE_DEVICE_CODE int larger(int a, int b)
{
    return a > b ? a : b;
}

/* ---- The exact sums of a block ---- */

/* How a warp's step, one or two loads of 16 bytes a lane, covers blocks; a section's blocks, a
 * multiple of LINKS and of what all warps take in a step. */
static constexpr MOE_DEVICE_CODE int matvec_lanes(int kind, int block) /* for a block's units */
{
    return 4 * dev_block_units(kind, block);
}
static constexpr MOE_DEVICE_CODE int matvec_loads(int kind, int block)
{
    return larger(1, matvec_lanes(kind, block) / DEV_WARP);
}
static constexpr MOE_DEVICE_CODE int matvec_step(int kind, int block)
{
    return larger(1, DEV_WARP / matvec_lanes(kind, block));
}
static constexpr MOE_DEVICE_CODE int matvec_section(int kind, int block, int nt)
{
    return larger(nt <= 2 ? 16 : LINKS,
                  dev_matvec_readers(nt) / DEV_WARP * matvec_step(kind, block));
}

/* A step's pieces of a lane: loads, and 3 bits' plane; steps ahead; bytes of a single input that
 * come with them. With 2 and 3 bits none do: they would be 16 a lane, which dev_copy brings past
 * the first-level cache, though all blocks want the same ones. Measured on an H200 with 2 and 3
 * bits, gate and up of 8 experts: 254 and 338 GB/s with the input in the ring, while two inputs,
 * read when needed, reached 1033 and 1278. */
static constexpr MOE_DEVICE_CODE int matvec_pieces(int kind, int block)
{
    return matvec_loads(kind, block) + (kind == MOE_LAYOUT_Q3);
}
static constexpr MOE_DEVICE_CODE int matvec_ahead(int kind, int block)
{
    return RING / matvec_pieces(kind, block);
}
static constexpr MOE_DEVICE_CODE int matvec_input_bytes(int kind, int block, int nt)
{
    const int words = dev_unit_words(kind);
    return nt == 1 && words < 4 ? 4 * words * matvec_loads(kind, block) : 0;
}

/* Past the row's end repeats the last block: loads stay inside, and no chain reads the sums. */
static __device__ __forceinline__ uint32_t matvec_within(const struct dev_product &p, uint32_t b)
{
    return min(b, p.blocks - 1);
}

/* A reading lane's fixed place in a block. */
struct matvec_lane {
    uint32_t unit; /* of its first load */
    uint32_t quad; /* rows 4 quad .. 4 quad + 3 */
};

/* A step's pieces in shared memory, spaced by all readers. */
struct matvec_slot {
    uint4 *pieces;
    uint8_t *input; /* of a single input, if it comes with them */
};

template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void
matvec_copy(const struct dev_product &p, const uint8_t *panel, const struct matvec_lane &l,
            const int8_t *input, uint32_t readers, uint32_t b, const struct matvec_slot &to)
{
    const int loads = matvec_loads(KIND, BLOCK), bytes = 4 * dev_unit_words(KIND);
    const uint8_t *at =
        dev_find_block<KIND, BLOCK>(panel, p.per_record, p.reciprocal, b).codes + l.quad * 16;
#pragma unroll
    for (int i = 0; i < loads; i++) {
        uint32_t unit = i * 8 + l.unit;
        dev_copy<16>(to.pieces + i * readers, at + unit * DEV_UNIT);
        if (matvec_input_bytes(KIND, BLOCK, NT))
            dev_copy<bytes>(to.input + i * bytes, input + b * BLOCK + unit * bytes);
    }
    if (KIND == MOE_LAYOUT_Q3) {
        at += (dev_block_units(KIND, BLOCK) + l.unit / 2) * DEV_UNIT;
        dev_copy<16>(to.pieces + loads * readers, at);
    }
}

/* N words of an input's bytes, in shared memory or not. */
template <int N, bool SHARED>
static __device__ __forceinline__ void matvec_input_words(const void *q, int32_t words[N])
{
    if constexpr (N == 1) {
        words[0] = SHARED ? *(const int *)q : __ldg((const int *)q);
    } else if constexpr (N == 2) {
        const uint2 v = SHARED ? *(const uint2 *)q : __ldg((const uint2 *)q);
        words[0] = (int32_t)v.x;
        words[1] = (int32_t)v.y;
    } else {
        const uint4 v = SHARED ? *(const uint4 *)q : __ldg((const uint4 *)q);
        words[0] = (int32_t)v.x;
        words[1] = (int32_t)v.y;
        words[2] = (int32_t)v.z;
        words[3] = (int32_t)v.w;
    }
}

/* sums[4 t + r]: this lane's part of the products of rows 4 quad + r with inputs t. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void
matvec_sum(const struct matvec_slot &from, const struct matvec_lane &l, const int8_t *const in[NT],
           uint32_t readers, uint32_t b, int32_t sums[4 * NT])
{
    const int n = dev_unit_words(KIND), loads = matvec_loads(KIND, BLOCK);
#pragma unroll
    for (int k = 0; k < 4 * NT; k++)
        sums[k] = 0;
#pragma unroll
    for (int i = 0; i < loads; i++) {
        int32_t x[NT][n];
        if (matvec_input_bytes(KIND, BLOCK, NT))
            matvec_input_words<n, true>(from.input + i * (4 * n), x[0]);
        else
#pragma unroll
            for (int t = 0; t < NT; t++)
                matvec_input_words<n, false>(in[t] + b * BLOCK + (i * 8 + l.unit) * (4 * n), x[t]);
        const uint4 unit = from.pieces[i * readers];
        uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w}, plane[4] = {0, 0, 0, 0};
        if (KIND == MOE_LAYOUT_Q3) {
            const uint4 high = from.pieces[loads * readers];
            uint32_t shift = 4 * (l.unit & 1);
            plane[0] = high.x >> shift;
            plane[1] = high.y >> shift;
            plane[2] = high.z >> shift;
            plane[3] = high.w >> shift;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t c[n];
            dev_unpack<KIND, n>(words[r], plane[r], c);
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int k = 0; k < n; k++)
                    sums[4 * t + r] = KIND == MOE_LAYOUT_MXFP4
                                          ? dev_dp4a_ss((int32_t)c[k], x[t][k], sums[4 * t + r])
                                          : dev_dp4a(c[k], x[t][k], sums[4 * t + r]);
        }
    }
}

/* Adds up over the lanes that hold other units of the same rows, dividing the results among them;
 * writes them to sums[input][row] of the block. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void matvec_join(int32_t v[4 * NT], const struct matvec_lane &l,
                                                   float (*to)[MOE_PANEL_ROWS])
{
    const int lanes = smaller(DEV_WARP, matvec_lanes(KIND, BLOCK)); /* of a block in a step */
    const int have = larger(1, 4 * NT / (lanes / 4));
    bool owner = true;
    uint32_t index = dev_share_sums<4 * NT, lanes / 2, 4>(v, threadIdx.x % DEV_WARP, &owner);
    if constexpr (have % 4 == 0) {
#pragma unroll
        for (int k = 0; k < have; k += 4)
            *(float4 *)&to[(index + k) / 4][l.quad * 4] =
                make_float4((float)v[k], (float)v[k + 1], (float)v[k + 2], (float)v[k + 3]);
    } else if (owner) {
#pragma unroll
        for (int k = 0; k < have; k++)
            to[(index + k) / 4][l.quad * 4 + (index + k) % 4] = (float)v[k];
    }
}

/* ---- The chain ---- */

/* Factors of a section's links: d and m of each block, or its exponents; s and z of each input. */
template <int SECTION, int NT> struct matvec_factors {
    __align__(16) uint8_t heads[SECTION][DEV_HEAD];
    float scales[NT][SECTION][2];
};

/* Requests the factors of the section from block `first` on; called by all n adding threads, of
 * which this one is number i. Makes a group, even if the row has no such section. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void
matvec_fetch(const struct dev_product &p, const uint8_t *panel, uint32_t first, uint32_t i,
             uint32_t n, struct matvec_factors<matvec_section(KIND, BLOCK, NT), NT> *to)
{
    const int section = matvec_section(KIND, BLOCK, NT);
    const uint32_t parts = KIND == MOE_LAYOUT_MXFP4 ? 1 : DEV_HEAD / 16; /* of a head */
    for (uint32_t k = i; k < section * parts && first + k / parts < p.blocks; k += n)
        dev_copy<16>(
            &to->heads[k / parts][k % parts * 16],
            dev_find_block<KIND, BLOCK>(panel, p.per_record, p.reciprocal, first + k / parts).head +
                k % parts * 16);
    for (uint32_t k = i; k < section * NT; k += n) {
        uint32_t t = k / section, b = k % section;
        uint64_t at = dev_input_of(p, t) * p.blocks + first + b;
        if (first + b < p.blocks) {
            dev_copy<4>(&to->scales[t][b][0], p.s + at);
            dev_copy<4>(&to->scales[t][b][1], p.z + at);
        }
    }
    dev_copies_end();
}

/* Runs the chain over a section of n blocks, whose sums are sums[block][t]. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ float
matvec_chain(uint32_t row, uint32_t t, const float (*sums)[NT][MOE_PANEL_ROWS],
             const struct matvec_factors<matvec_section(KIND, BLOCK, NT), NT> &f, uint32_t n,
             float y)
{
#pragma unroll 1
    for (uint32_t at = 0; at < n; at += LINKS) {
        float ds[LINKS], m[LINKS], z[LINKS], sum[LINKS];
#pragma unroll
        for (int k = 0; k < LINKS; k++) {
            struct dev_scales w = dev_block_scales<KIND, true>(f.heads[at + k], row);
            ds[k] = w.d * f.scales[t][at + k][0];
            m[k] = w.m;
            z[k] = f.scales[t][at + k][1];
            sum[k] = sums[at + k][t][row];
        }
#pragma unroll
        for (int k = 0; k < LINKS; k++)
            if (at + k < n) {
                y = fmaf(ds[k], sum[k], y);
                if (KIND != MOE_LAYOUT_MXFP4)
                    y = fmaf(m[k], z[k], y);
            }
    }
    return y;
}

/* ---- A panel ---- */

/* Shared memory of a block, without the readers' ring after it. */
template <int KIND, int BLOCK, int NT> struct matvec_bytes_stage {
    struct matvec_factors<matvec_section(KIND, BLOCK, NT), NT> factors[FACTORS];
    __align__(16) float sums[2][matvec_section(KIND, BLOCK, NT)][NT][MOE_PANEL_ROWS];
};

/* The share of a warp among four or, with one input, eight: n_warps. */
static inline __host__ __device__ uint32_t matvec_share(uint32_t n, uint32_t n_warps)
{
    return n_warps == DEV_READERS / DEV_WARP ? n / (DEV_READERS / DEV_WARP)
                                             : n / (dev_matvec_readers(1) / DEV_WARP);
}

/* Steps that a reading warp takes over the blocks of a product. */
template <int KIND, int BLOCK>
static inline __host__ __device__ uint32_t matvec_steps(uint32_t blocks, uint32_t warp,
                                                        uint32_t n_warps)
{
    uint32_t all = (blocks + matvec_step(KIND, BLOCK) - 1) / matvec_step(KIND, BLOCK);
    return matvec_share(all + n_warps - 1 - warp, n_warps);
}

template <int KIND, int BLOCK, int NT>
static uint32_t matvec_bytes_shared(uint32_t blocks, uint32_t readers)
{
    uint32_t steps = matvec_steps<KIND, BLOCK>(blocks, 0, readers / DEV_WARP);
    uint32_t slots = steps < matvec_ahead(KIND, BLOCK) ? steps : matvec_ahead(KIND, BLOCK);
    return sizeof(struct matvec_bytes_stage<KIND, BLOCK, NT>) +
           slots * readers *
               (16 * matvec_pieces(KIND, BLOCK) + matvec_input_bytes(KIND, BLOCK, NT));
}

/* Computes the block's panel, blockIdx.x; shared: of matvec_bytes_shared. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void matvec_bytes_panel(const struct dev_product &p,
                                                          uint32_t readers, float *shared)
{
    const int section = matvec_section(KIND, BLOCK, NT), step = matvec_step(KIND, BLOCK);
    const int pieces = matvec_pieces(KIND, BLOCK), ahead = matvec_ahead(KIND, BLOCK);
    const int input_bytes = matvec_input_bytes(KIND, BLOCK, NT);
    const int lanes = smaller(DEV_WARP, matvec_lanes(KIND, BLOCK));
    static_assert(section % LINKS == 0, "chains take whole sections");
    typedef struct matvec_bytes_stage<KIND, BLOCK, NT> stage_t;
    stage_t *stage = (stage_t *)shared;
    const uint8_t *panel = p.data + blockIdx.x * p.panel_bytes;
    uint32_t sections = (p.blocks + section - 1) / section;
    bool reads = threadIdx.x < readers;

    /* For reading threads. */
    uint32_t warp = threadIdx.x / DEV_WARP, n_warps = readers / DEV_WARP;
    uint32_t lane = threadIdx.x % DEV_WARP;
    const struct matvec_lane l = {lane % lanes / 4, lane % 4};
    uint32_t steps = reads ? matvec_steps<KIND, BLOCK>(p.blocks, warp, n_warps) : 0, j = 0;
    uint32_t slots = min(matvec_steps<KIND, BLOCK>(p.blocks, 0, n_warps), (uint32_t)ahead);
    uint4 *ring = (uint4 *)(stage + 1) + threadIdx.x;
    uint8_t *ring_of_input =
        (uint8_t *)(stage + 1) + slots * pieces * readers * 16 + threadIdx.x * input_bytes;
    const int8_t *in[NT] = {};
    auto slot = [&](uint32_t i) {
        uint32_t at = i % ahead * readers;
        return matvec_slot{ring + at * pieces, ring_of_input + at * input_bytes};
    };
    auto block_of = [&](uint32_t i) { return (i * n_warps + warp) * step + lane / lanes; };
    auto ask = [&](uint32_t i) {
        if (i < steps)
            matvec_copy<KIND, BLOCK, NT>(p, panel, l, in[0], readers, matvec_within(p, block_of(i)),
                                         slot(i));
        dev_copies_end();
    };
    /* For chain threads. */
    uint32_t number = threadIdx.x - readers, n_adding = blockDim.x - readers;
    uint32_t row = threadIdx.x % MOE_PANEL_ROWS, t = number / MOE_PANEL_ROWS;
    bool adds = !reads && t < NT;
    float y = 0;

    if (reads) {
#pragma unroll
        for (int k = 0; k < NT; k++)
            in[k] = (const int8_t *)p.inputs + dev_input_of(p, k) * p.in_stride;
#pragma unroll 1
        for (uint32_t i = 0; i < ahead; i++)
            ask(i);
    } else {
        for (uint32_t k = 0; k + 1 < FACTORS; k++)
            matvec_fetch<KIND, BLOCK, NT>(p, panel, k * section, number, n_adding,
                                          &stage->factors[k]);
    }
    for (uint32_t k = 0; k <= sections; k++) {
        if (reads) {
#pragma unroll 1
            for (uint32_t end = min(steps, (k + 1) * matvec_share(section / step, n_warps));
                 j < end; j++) {
                int32_t v[4 * NT];
                dev_copies_wait<ahead - 1>();
                matvec_sum<KIND, BLOCK, NT>(slot(j), l, in, readers, matvec_within(p, block_of(j)),
                                            v);
                ask(j + ahead);
                matvec_join<KIND, BLOCK, NT>(v, l, stage->sums[k & 1][block_of(j) - k * section]);
            }
        } else {
            if (k > 0) {
                matvec_fetch<KIND, BLOCK, NT>(p, panel, (k + FACTORS - 2) * section, number,
                                              n_adding,
                                              &stage->factors[(k + FACTORS - 2) % FACTORS]);
                if (adds)
                    y = matvec_chain<KIND, BLOCK, NT>(
                        row, t, stage->sums[(k - 1) & 1], stage->factors[(k - 1) % FACTORS],
                        min(p.blocks - (k - 1) * section, (uint32_t)section), y);
            }
            dev_copies_wait<FACTORS - 2>();
        }
        __syncthreads();
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

#endif
