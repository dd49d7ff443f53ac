/*
 * A panel of a quantized matrix times up to eight inputs, by a block of threads.
 *
 * Four or eight warps read the panel's 16 rows in order of memory, 16 bytes a lane (four rows of
 * one unit), each used for all inputs. A lane copies what it will need into shared memory, up to
 * RING pieces ahead, and is the only one to read it: no barrier, few registers, and in decode
 * everything that a block needs is under way from its start. They leave the exact sums of each
 * (row, run of columns, input) in shared memory, in two buffers taking turns; one thread per (row,
 * input), in warps of their own, runs the short fma chain over the section before, whose order the
 * results' bits depend on, with factors that these warps copied sections ahead. So the chain's
 * latency overlaps the loads, with one barrier per section.
 */
#ifndef MOE_KERNELS_DEV_MATVEC_BYTES_CUH
#define MOE_KERNELS_DEV_MATVEC_BYTES_CUH

#include "dev_copy.cuh"
#include "dev_integer.cuh"
#include "dev_product.cuh"
#include "dev_share.cuh"
#include "dev_weights.cuh"

enum {
    RING = 8,   /* pieces of 16 bytes that a reading lane has under way */
    LINKS = 8,  /* runs that a chain takes at a time */
    FACTORS = 3 /* sections whose factors have room */
};

static constexpr MOE_DEVICE_CODE int smaller(int a, int b)
{
    return a < b ? a : b;
}

static constexpr MOE_DEVICE_CODE int larger(int a, int b)
{
    return a > b ? a : b;
}

/* ---- The exact sums of a run ---- */

/* How a warp's step, one or two loads of 16 bytes a lane, covers runs; runs of a section, a
 * multiple of LINKS and of what all warps take in a step. */
static constexpr MOE_DEVICE_CODE int matvec_lanes(int kind, int run) /* for a run's units */
{
    return 4 * dev_run_units(kind, run);
}
static constexpr MOE_DEVICE_CODE int matvec_loads(int kind, int run)
{
    return larger(1, matvec_lanes(kind, run) / DEV_WARP);
}
static constexpr MOE_DEVICE_CODE int matvec_step(int kind, int run)
{
    return larger(1, DEV_WARP / matvec_lanes(kind, run));
}
static constexpr MOE_DEVICE_CODE int matvec_section(int kind, int run, int nt)
{
    return larger(nt <= 2 ? 16 : LINKS, dev_matvec_readers(nt) / DEV_WARP * matvec_step(kind, run));
}

/* A step's pieces of a lane: loads, and as many of the second plane; steps ahead; bytes of an only
 * input that come with them. With 2 and 3 bits none do: they would be 16 a lane, which dev_copy
 * brings past the first-level cache, though all blocks want the same ones. Measured on an H200 with
 * 2 and 3 bits, gate and up of 8 experts: 254 and 338 GB/s where the input came so, while two
 * inputs, read when they are needed, made 1033 and 1278. */
static constexpr MOE_DEVICE_CODE int matvec_pieces(int kind, int run)
{
    return matvec_loads(kind, run) * (moe_kind_high_plane(kind) ? 2 : 1);
}
static constexpr MOE_DEVICE_CODE int matvec_ahead(int kind, int run)
{
    return RING / matvec_pieces(kind, run);
}
static constexpr MOE_DEVICE_CODE int matvec_input_bytes(int kind, int run, int nt)
{
    const int words = dev_unit_words(kind);
    return nt == 1 && words < 4 ? 4 * words * matvec_loads(kind, run) : 0;
}

/* Runs of a row. */
template <int KIND>
static inline __host__ __device__ uint32_t matvec_runs(const struct dev_product &p)
{
    return p.blocks * moe_kind_scales(KIND);
}

/* Past the row's end the last run again: loads stay inside, and no chain reads the sums. */
template <int KIND>
static __device__ __forceinline__ uint32_t matvec_within(const struct dev_product &p, uint32_t b)
{
    return min(b, matvec_runs<KIND>(p) - 1);
}

template <int KIND, int RUN>
static __device__ __forceinline__ struct dev_run matvec_find(const struct dev_product &p,
                                                             const uint8_t *panel, uint32_t b)
{
    return dev_find_run<KIND, RUN>(panel, p.blocks, p.per_record, p.reciprocal, b);
}

/* A reading lane's place in a run, always the same. */
struct matvec_lane {
    uint32_t unit; /* of its first load */
    uint32_t quad; /* rows 4 quad .. 4 quad + 3 */
};

/* A step's pieces in shared memory, spaced by all readers. */
struct matvec_slot {
    uint4 *pieces;
    uint8_t *input; /* of a single input, if it comes with them */
};

template <int KIND, int RUN, int NT>
static __device__ __forceinline__ void
matvec_copy(const struct dev_product &p, const uint8_t *panel, const struct matvec_lane &l,
            const int8_t *input, uint32_t readers, uint32_t b, const struct matvec_slot &to)
{
    const int loads = matvec_loads(KIND, RUN), bytes = 4 * dev_unit_words(KIND);
    const struct dev_run run = matvec_find<KIND, RUN>(p, panel, b);
    const uint8_t *at = run.codes + l.quad * 16;
#pragma unroll
    for (int i = 0; i < loads; i++) {
        uint32_t unit = i * 8 + l.unit;
        dev_copy<16>(to.pieces + i * readers, at + (run.unit + unit) * DEV_UNIT);
        if constexpr (matvec_input_bytes(KIND, RUN, NT) > 0)
            dev_copy<bytes>(to.input + i * bytes, input + b * RUN + unit * bytes);
    }
    if (moe_kind_high_plane(KIND))
#pragma unroll
        for (int i = 0; i < loads; i++)
            dev_copy<16>(to.pieces + (loads + i) * readers,
                         at + dev_high_plane<KIND, RUN>() +
                             dev_high_unit(KIND, run.unit + i * 8 + l.unit) * DEV_UNIT);
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
    } else if constexpr (N == 8) {
        matvec_input_words<4, SHARED>(q, words);
        matvec_input_words<4, SHARED>((const uint8_t *)q + 16, words + 4);
    } else {
        const uint4 v = SHARED ? *(const uint4 *)q : __ldg((const uint4 *)q);
        words[0] = (int32_t)v.x;
        words[1] = (int32_t)v.y;
        words[2] = (int32_t)v.z;
        words[3] = (int32_t)v.w;
    }
}

/* sums[4 t + r]: this lane's part of the products of rows 4 quad + r with inputs t. */
template <int KIND, int RUN, int NT>
static __device__ __forceinline__ void
matvec_sum(const struct dev_product &p, const uint8_t *panel, const struct matvec_slot &from,
           const struct matvec_lane &l, const int8_t *const in[NT], uint32_t readers, uint32_t b,
           int32_t sums[4 * NT])
{
    const int n = dev_unit_words(KIND), loads = matvec_loads(KIND, RUN);
#pragma unroll
    for (int k = 0; k < 4 * NT; k++)
        sums[k] = 0;
#pragma unroll
    for (int i = 0; i < loads; i++) {
        int32_t x[NT][n];
        if (matvec_input_bytes(KIND, RUN, NT))
            matvec_input_words<n, true>(from.input + i * (4 * n), x[0]);
        else
#pragma unroll
            for (int t = 0; t < NT; t++)
                matvec_input_words<n, false>(in[t] + b * RUN + (i * 8 + l.unit) * (4 * n), x[t]);
        const uint4 unit = from.pieces[i * readers];
        uint32_t words[4] = {unit.x, unit.y, unit.z, unit.w}, plane[4] = {0, 0, 0, 0};
        if (moe_kind_high_plane(KIND)) {
            const uint4 high = from.pieces[(loads + i) * readers];
            uint32_t first = b % moe_kind_scales(KIND) * dev_run_units(KIND, RUN);
            uint32_t shift =
                moe_kind_is_grouped(KIND) ? 0 : dev_high_shift(KIND, first + i * 8 + l.unit);
            plane[0] = high.x >> shift;
            plane[1] = high.y >> shift;
            plane[2] = high.z >> shift;
            plane[3] = high.w >> shift;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            uint32_t c[n];
            if constexpr (moe_kind_is_grouped(KIND)) {
                const struct dev_run run = matvec_find<KIND, RUN>(p, panel, b);
                dev_unpack_groups<KIND, n>(run, 4 * l.quad + r, words[r], plane[r],
                                           dev_first_eight<KIND>(run, l.unit), c);
            } else {
                dev_unpack<KIND, n>(words[r], plane[r], c);
            }
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int k = 0; k < n; k++)
                    sums[4 * t + r] = dev_is_signed(KIND)
                                          ? dev_dp4a_ss((int32_t)c[k], x[t][k], sums[4 * t + r])
                                          : dev_dp4a(c[k], x[t][k], sums[4 * t + r]);
        }
    }
}

/* Adds up over the lanes that hold other units of the same rows, sharing the results out among
 * them; writes them to sums[input][row] of the run. */
template <int KIND, int RUN, int NT>
static __device__ __forceinline__ void matvec_join(int32_t v[4 * NT], const struct matvec_lane &l,
                                                   float (*to)[MOE_PANEL_ROWS])
{
    const int lanes = smaller(DEV_WARP, matvec_lanes(KIND, RUN)); /* of a run in a step */
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

/* What a section's links take: what each run's scale is made of; s and z of each input. */
template <int KIND, int SECTION, int NT> struct matvec_factors {
    __align__(16) uint8_t heads[SECTION][16 * dev_scale_pieces(KIND)];
    float scales[NT][SECTION][2];
};

/* Asks for the factors of the section from run `first` on; called by all n threads that add, this
 * one is number i. A group, even if the row has no such section. */
template <int KIND, int RUN, int NT>
static __device__ __forceinline__ void
matvec_fetch(const struct dev_product &p, const uint8_t *panel, uint32_t first, uint32_t i,
             uint32_t n, struct matvec_factors<KIND, matvec_section(KIND, RUN, NT), NT> *to)
{
    const int section = matvec_section(KIND, RUN, NT), scales = moe_kind_scales(KIND);
    const uint32_t pieces = dev_scale_pieces(KIND), runs = matvec_runs<KIND>(p);
    for (uint32_t k = i; k < section * pieces && first + k / pieces < runs; k += n)
        dev_copy<16>(&to->heads[k / pieces][k % pieces * 16],
                     dev_scale_piece<KIND>(matvec_find<KIND, RUN>(p, panel, first + k / pieces),
                                           k % pieces));
    for (uint32_t k = i; k < section * NT; k += n) {
        uint32_t t = k / section, b = k % section;
        uint64_t at = dev_input_of(p, t) * p.blocks + (first + b) / scales;
        if (first + b < runs) {
            dev_copy<4>(&to->scales[t][b][0], p.s + at);
            if (scales == 1)
                dev_copy<4>(&to->scales[t][b][1], p.z + at);
        }
    }
    dev_copies_end();
}

/* z of a run that is half a block, of input t: its s times the sum of the input's bytes. */
static __device__ __forceinline__ float matvec_half_z(const struct dev_product &p, uint32_t t,
                                                      uint32_t run, float s)
{
    const uint4 q = __ldg(
        (const uint4 *)((const int8_t *)p.inputs + dev_input_of(p, t) * p.in_stride + run * 16));
    const uint32_t ones = 0x01010101u;
    int32_t sum = dev_dp4a(ones, (int32_t)q.x, dev_dp4a(ones, (int32_t)q.y, 0));
    sum = dev_dp4a(ones, (int32_t)q.z, dev_dp4a(ones, (int32_t)q.w, sum));
    return s * (float)sum;
}

/* The chain over a section of n runs from run `first` on, whose sums are sums[run][t]. */
template <int KIND, int RUN, int NT>
static __device__ __forceinline__ float
matvec_chain(const struct dev_product &p, uint32_t first, uint32_t row, uint32_t t,
             const float (*sums)[NT][MOE_PANEL_ROWS],
             const struct matvec_factors<KIND, matvec_section(KIND, RUN, NT), NT> &f, uint32_t n,
             float y)
{
#pragma unroll 1
    for (uint32_t at = 0; at < n; at += LINKS) {
        float ds[LINKS], m[LINKS], z[LINKS], sum[LINKS];
#pragma unroll
        for (int k = 0; k < LINKS; k++) {
            const uint8_t *head = f.heads[at + k];
            struct moe_scales w = dev_scale_of<KIND, true>(
                p.kind, [&](int piece) { return head + 16 * piece; },
                (first + at + k) % dev_span_scales(KIND), row);
            ds[k] = w.d * f.scales[t][at + k][0];
            m[k] = w.m;
            if (moe_kind_has_offset(KIND))
                z[k] = moe_kind_scales(KIND) == 1
                           ? f.scales[t][at + k][1]
                           : matvec_half_z(p, t, matvec_within<KIND>(p, first + at + k),
                                           f.scales[t][at + k][0]);
            sum[k] = sums[at + k][t][row];
        }
#pragma unroll
        for (int k = 0; k < LINKS; k++)
            if (at + k < n) {
                y = fmaf(ds[k], sum[k], y);
                if (moe_kind_has_offset(KIND))
                    y = fmaf(m[k], z[k], y);
            }
    }
    return y;
}

/* ---- A panel ---- */

/* Shared memory of a block, without the readers' ring behind it. */
template <int KIND, int RUN, int NT> struct matvec_bytes_stage {
    struct matvec_factors<KIND, matvec_section(KIND, RUN, NT), NT> factors[FACTORS];
    __align__(16) float sums[2][matvec_section(KIND, RUN, NT)][NT][MOE_PANEL_ROWS];
};

/* The share of a warp among four or, with one input, eight: n_warps. */
static inline __host__ __device__ uint32_t matvec_share(uint32_t n, uint32_t n_warps)
{
    return n_warps == DEV_READERS / DEV_WARP ? n / (DEV_READERS / DEV_WARP)
                                             : n / (dev_matvec_readers(1) / DEV_WARP);
}

/* Steps that a reading warp takes over the runs of a product. */
template <int KIND, int RUN>
static inline __host__ __device__ uint32_t matvec_steps(uint32_t runs, uint32_t warp,
                                                        uint32_t n_warps)
{
    uint32_t all = (runs + matvec_step(KIND, RUN) - 1) / matvec_step(KIND, RUN);
    return matvec_share(all + n_warps - 1 - warp, n_warps);
}

template <int KIND, int RUN, int NT>
static uint32_t matvec_bytes_shared(const struct dev_product &p, uint32_t readers)
{
    uint32_t steps = matvec_steps<KIND, RUN>(matvec_runs<KIND>(p), 0, readers / DEV_WARP);
    uint32_t slots = steps < matvec_ahead(KIND, RUN) ? steps : matvec_ahead(KIND, RUN);
    return sizeof(struct matvec_bytes_stage<KIND, RUN, NT>) +
           slots * readers * (16 * matvec_pieces(KIND, RUN) + matvec_input_bytes(KIND, RUN, NT));
}

/* The block's panel, blockIdx.x; shared: of matvec_bytes_shared. */
template <int KIND, int RUN, int NT>
static __device__ __forceinline__ void matvec_bytes_panel(const struct dev_product &p,
                                                          uint32_t readers, float *shared)
{
    const int section = matvec_section(KIND, RUN, NT), step = matvec_step(KIND, RUN);
    const int pieces = matvec_pieces(KIND, RUN), ahead = matvec_ahead(KIND, RUN);
    const int input_bytes = matvec_input_bytes(KIND, RUN, NT);
    const int lanes = smaller(DEV_WARP, matvec_lanes(KIND, RUN));
    static_assert(section % LINKS == 0, "chains take whole sections");
    typedef struct matvec_bytes_stage<KIND, RUN, NT> stage_t;
    stage_t *stage = (stage_t *)shared;
    const uint8_t *panel = dev_panel(p, blockIdx.x);
    uint32_t runs = matvec_runs<KIND>(p), sections = (runs + section - 1) / section;
    bool reads = threadIdx.x < readers;

    /* For reading threads. */
    uint32_t warp = threadIdx.x / DEV_WARP, n_warps = readers / DEV_WARP;
    uint32_t lane = threadIdx.x % DEV_WARP;
    const struct matvec_lane l = {lane % lanes / 4, lane % 4};
    uint32_t steps = reads ? matvec_steps<KIND, RUN>(runs, warp, n_warps) : 0, j = 0;
    uint32_t slots = min(matvec_steps<KIND, RUN>(runs, 0, n_warps), (uint32_t)ahead);
    uint4 *ring = (uint4 *)(stage + 1) + threadIdx.x;
    uint8_t *ring_of_input =
        (uint8_t *)(stage + 1) + slots * pieces * readers * 16 + threadIdx.x * input_bytes;
    const int8_t *in[NT] = {};
    auto slot = [&](uint32_t i) {
        uint32_t at = i % ahead * readers;
        return matvec_slot{ring + at * pieces, ring_of_input + at * input_bytes};
    };
    auto run_of = [&](uint32_t i) { return (i * n_warps + warp) * step + lane / lanes; };
    auto ask = [&](uint32_t i) {
        if (i < steps)
            matvec_copy<KIND, RUN, NT>(p, panel, l, in[0], readers,
                                       matvec_within<KIND>(p, run_of(i)), slot(i));
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
            matvec_fetch<KIND, RUN, NT>(p, panel, k * section, number, n_adding,
                                        &stage->factors[k]);
    }
    for (uint32_t k = 0; k <= sections; k++) {
        if (reads) {
#pragma unroll 1
            for (uint32_t end = min(steps, (k + 1) * matvec_share(section / step, n_warps));
                 j < end; j++) {
                int32_t v[4 * NT];
                dev_copies_wait<ahead - 1>();
                matvec_sum<KIND, RUN, NT>(p, panel, slot(j), l, in, readers,
                                          matvec_within<KIND>(p, run_of(j)), v);
                ask(j + ahead);
                matvec_join<KIND, RUN, NT>(v, l, stage->sums[k & 1][run_of(j) - k * section]);
            }
        } else {
            if (k > 0) {
                matvec_fetch<KIND, RUN, NT>(p, panel, (k + FACTORS - 2) * section, number, n_adding,
                                            &stage->factors[(k + FACTORS - 2) % FACTORS]);
                if (adds)
                    y = matvec_chain<KIND, RUN, NT>(
                        p, (k - 1) * section, row, t, stage->sums[(k - 1) & 1],
                        stage->factors[(k - 1) % FACTORS],
                        min(runs - (k - 1) * section, (uint32_t)section), y);
            }
            dev_copies_wait<FACTORS - 2>();
        }
        __syncthreads();
    }
    if (adds && t < p.n)
        dev_store_result(p, t, blockIdx.x * MOE_PANEL_ROWS + row, y);
}

#endif
