/*
 * A panel of a quantized matrix times up to eight inputs, by a block of threads.
 *
 * Four warps read the panel's 16 rows in order of memory, 16 bytes a lane (four rows of one unit),
 * each load used for all inputs; the next section's loads are under way while the current one is
 * unpacked. They leave the exact sums of each (row, column block, input) in shared memory, in two
 * buffers taking turns; one thread per (row, input), in warps of their own, runs the short fma
 * chain over the section before, whose order the results' bits depend on. So the chain's latency
 * overlaps the loads, with one barrier per section.
 *
 * Chosen by counting instructions and bytes in flight (8 to 16 KB a block), not by measuring.
 */
#ifndef MOE_KERNELS_DEV_MATVEC_BYTES_CUH
#define MOE_KERNELS_DEV_MATVEC_BYTES_CUH

#include "dev_integer.cuh"
#include "dev_product.cuh"
#include "dev_share.cuh"
#include "dev_weights.cuh"

enum {
    MATVEC_READERS = DEV_READERS / DEV_WARP /* warps */,
    LINKS = 8 /* blocks that a chain fetches at a time */
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

/* How a warp's step, one or two loads of 16 bytes a lane, covers blocks; steps a warp takes per
 * section; blocks of a section, a multiple of LINKS. */
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
static constexpr MOE_DEVICE_CODE int matvec_steps(int kind, int block, int nt)
{
    int most = kind == MOE_LAYOUT_Q3 ? 2 : 4; /* 3 bits: a step brings its plane, too */
    return larger(1,
                  smaller(most, 32 / (nt * matvec_step(kind, block))) / matvec_loads(kind, block));
}
static constexpr MOE_DEVICE_CODE int matvec_section(int kind, int block, int nt)
{
    return MATVEC_READERS * matvec_steps(kind, block, nt) * matvec_step(kind, block);
}

/* Past the row's end the last block again: loads stay inside, and no chain reads the sums. */
static __device__ __forceinline__ uint32_t matvec_within(const struct dev_product &p, uint32_t b)
{
    return min(b, p.blocks - 1);
}

template <int LOADS> struct matvec_codes {
    uint4 units[LOADS], plane;
};

/* A reading lane's place in a block, always the same. */
struct matvec_lane {
    uint32_t unit; /* of its first load */
    uint32_t quad; /* rows 4 quad .. 4 quad + 3 */
};

template <int KIND, int BLOCK>
static __device__ __forceinline__ struct matvec_codes<matvec_loads(KIND, BLOCK)>
matvec_read(const struct dev_product &p, const uint8_t *panel, const struct matvec_lane &l,
            uint32_t b) {
    const int loads = matvec_loads(KIND, BLOCK);
    struct matvec_codes<loads> codes = {
    };
    const uint8_t *at =
        dev_find_block<KIND, BLOCK>(panel, p.per_record, p.reciprocal, b).codes + l.quad * 16;
#pragma unroll
    for (int i = 0; i < loads; i++)
        codes.units[i] = __ldg((const uint4 *)(at + (i * 8 + l.unit) * DEV_UNIT));
    if (KIND == MOE_LAYOUT_Q3) {
        at += (dev_block_units(KIND, BLOCK) + l.unit / 2) * DEV_UNIT;
        codes.plane = __ldg((const uint4 *)at);
    }
    return codes;
}

/* N words of an input's bytes. */
template <int N>
static __device__ __forceinline__ void matvec_input_words(const int8_t *q, int32_t words[N])
{
    if constexpr (N == 1) {
        words[0] = __ldg((const int *)q);
    } else if constexpr (N == 2) {
        const uint2 v = __ldg((const uint2 *)q);
        words[0] = (int32_t)v.x;
        words[1] = (int32_t)v.y;
    } else {
        const uint4 v = __ldg((const uint4 *)q);
        words[0] = (int32_t)v.x;
        words[1] = (int32_t)v.y;
        words[2] = (int32_t)v.z;
        words[3] = (int32_t)v.w;
    }
}

/* sums[4 t + r]: this lane's part of the products of rows 4 quad + r with inputs t. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void
matvec_sum(const struct matvec_codes<matvec_loads(KIND, BLOCK)> &codes, const struct matvec_lane &l,
           const int8_t *const in[NT], uint32_t b, int32_t sums[4 * NT])
{
    const int n = dev_unit_words(KIND);
#pragma unroll
    for (int k = 0; k < 4 * NT; k++)
        sums[k] = 0;
#pragma unroll
    for (int i = 0; i < matvec_loads(KIND, BLOCK); i++) {
        int32_t x[NT][n];
#pragma unroll
        for (int t = 0; t < NT; t++)
            matvec_input_words<n>(in[t] + b * BLOCK + (i * 8 + l.unit) * (4 * n), x[t]);
        const uint4 &unit = codes.units[i];
        uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w}, plane[4] = {0, 0, 0, 0};
        if (KIND == MOE_LAYOUT_Q3) {
            uint32_t shift = 4 * (l.unit & 1);
            plane[0] = codes.plane.x >> shift;
            plane[1] = codes.plane.y >> shift;
            plane[2] = codes.plane.z >> shift;
            plane[3] = codes.plane.w >> shift;
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

/* Adds up over the lanes that hold other units of the same rows, sharing the results out among
 * them; writes them to sums[input][row] of the block. */
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

/* Factors of the fma chain over LINKS blocks: d * s, m, z. */
struct matvec_links {
    float ds[LINKS], m[LINKS], z[LINKS];
};

template <int KIND, int BLOCK>
static __device__ __forceinline__ void
matvec_fetch(const struct dev_product &p, const uint8_t *panel, uint32_t row, uint64_t scales_at,
             uint32_t b, struct matvec_links *links)
{
#pragma unroll
    for (int k = 0; k < LINKS; k++) {
        uint32_t at = matvec_within(p, b + k);
        struct dev_scales w = dev_block_scales<KIND>(
            dev_find_block<KIND, BLOCK>(panel, p.per_record, p.reciprocal, at).head, row);
        links->ds[k] = w.d * __ldg(p.s + scales_at + at);
        links->m[k] = w.m;
        links->z[k] = KIND == MOE_LAYOUT_MXFP4 ? 0.0f : __ldg(p.z + scales_at + at);
    }
}

/* The block that a lane has in step u of the section that begins at block `first`. */
template <int KIND, int BLOCK>
static __device__ __forceinline__ uint32_t matvec_block(uint32_t mine, int u, uint32_t first)
{
    return first + mine + u * (MATVEC_READERS * matvec_step(KIND, BLOCK));
}

/* The chain over the blocks from `first` to `end` of a section, whose sums are sums[block][t]. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ float
matvec_chain(const struct dev_product &p, const uint8_t *panel, uint32_t row, uint64_t scales_at,
             uint32_t first, const float (*sums)[NT][MOE_PANEL_ROWS], uint32_t t,
             struct matvec_links *next, float y)
{
#pragma unroll 1
    for (int at = 0; at < matvec_section(KIND, BLOCK, NT) && first + at < p.blocks; at += LINKS) {
        struct matvec_links links = *next;
        matvec_fetch<KIND, BLOCK>(p, panel, row, scales_at, first + at + LINKS, next);
#pragma unroll
        for (int k = 0; k < LINKS; k++)
            if (first + at + k < p.blocks) {
                y = fmaf(links.ds[k], sums[at + k][t][row], y);
                if (KIND != MOE_LAYOUT_MXFP4)
                    y = fmaf(links.m[k], links.z[k], y);
            }
    }
    return y;
}

/* ---- A panel ---- */

template <int KIND, int BLOCK, int NT> static constexpr uint32_t matvec_bytes_shared(void)
{
    return 2 * matvec_section(KIND, BLOCK, NT) * NT * MOE_PANEL_ROWS * sizeof(float);
}

/* The block's panel, blockIdx.x; shared: of matvec_bytes_shared. */
template <int KIND, int BLOCK, int NT>
static __device__ __forceinline__ void matvec_bytes_panel(const struct dev_product &p,
                                                          float *shared)
{
    const int section = matvec_section(KIND, BLOCK, NT), steps = matvec_steps(KIND, BLOCK, NT);
    const int loads = matvec_loads(KIND, BLOCK),
              lanes = smaller(DEV_WARP, matvec_lanes(KIND, BLOCK));
    static_assert(section % LINKS == 0, "chains take whole sections");
    float(*sums)[section][NT][MOE_PANEL_ROWS] =
        (float(*)[section][NT][MOE_PANEL_ROWS])shared; /* two of them */
    const uint8_t *panel = p.data + blockIdx.x * p.panel_bytes;
    uint32_t sections = (p.blocks + section - 1) / section;
    bool reads = threadIdx.x < DEV_READERS;

    /* Of a reading thread. */
    uint32_t lane = threadIdx.x % DEV_WARP;
    const struct matvec_lane l = {lane % lanes / 4, lane % 4};
    uint32_t mine = threadIdx.x / DEV_WARP * matvec_step(KIND, BLOCK) + lane / lanes;
    const int8_t *in[NT] = {};
    struct matvec_codes<loads> next_codes[steps] = {
    };
    /* Of a chain's. */
    uint32_t row = threadIdx.x % MOE_PANEL_ROWS;
    uint32_t t = (threadIdx.x - DEV_READERS) / MOE_PANEL_ROWS; /* of a chain */
    bool adds = !reads && t < NT;
    uint64_t scales_at = 0;
    struct matvec_links next_links = {};
    float y = 0;

    if (reads) {
#pragma unroll
        for (int k = 0; k < NT; k++)
            in[k] = (const int8_t *)p.inputs + dev_input_of(p, k) * p.in_stride;
#pragma unroll
        for (int u = 0; u < steps; u++)
            next_codes[u] = matvec_read<KIND, BLOCK>(
                p, panel, l, matvec_within(p, matvec_block<KIND, BLOCK>(mine, u, 0)));
    } else if (adds) {
        scales_at = dev_input_of(p, t) * p.blocks;
        matvec_fetch<KIND, BLOCK>(p, panel, row, scales_at, 0, &next_links);
    }
    for (uint32_t k = 0; k <= sections; k++) {
        if (reads && k < sections) {
#pragma unroll
            for (int u = 0; u < steps; u++) {
                const struct matvec_codes<loads> codes = next_codes[u];
                uint32_t in_section = matvec_block<KIND, BLOCK>(mine, u, 0);
                uint32_t b = k * section + in_section;
                if (k + 1 < sections)
                    next_codes[u] =
                        matvec_read<KIND, BLOCK>(p, panel, l, matvec_within(p, b + section));
                int32_t v[4 * NT];
                matvec_sum<KIND, BLOCK, NT>(codes, l, in, matvec_within(p, b), v);
                matvec_join<KIND, BLOCK, NT>(v, l, sums[k & 1][in_section]);
            }
        } else if (adds && k > 0) {
            y = matvec_chain<KIND, BLOCK, NT>(p, panel, row, scales_at, (k - 1) * section,
                                              sums[(k - 1) & 1], t, &next_links, y);
        }
        __syncthreads();
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

#endif
