/*
 * Products of quantized layouts with many inputs: prefill. Their cost is arithmetic.
 *
 * A warp takes one panel (the 16 rows of a tensor core's left operand) and 64 inputs, a block of
 * threads four panels. The inputs' bytes come through shared memory, 128 columns
 * at a time in two buffers; a panel's codes go straight from memory into the operand's registers,
 * unpacked once for all inputs. Lane t of a row's four takes the columns 8t .. 8t+7 of a step of
 * 32, which is what a word of codes holds, and both operands' columns are permuted so; integer sums
 * do not depend on the order. The sums of a column block then enter the fma chains, which stay in
 * registers.
 *
 * Where there are no tensor cores for bytes (before compute capability 8.0) the same lanes form the
 * same sums by dp4a over their eight columns and share them out; everything else is the same code.
 *
 * Per column block of 64 a warp issues 2 matrix instructions and some 20 others for 8 inputs: the
 * chain's fma's are expected to be the limit, not the tensor cores. Not measured.
 */
#include "dev_integer.cuh"
#include "dev_product.cuh"
#include "dev_share.cuh"
#include "dev_weights.cuh"
#include "gpu_products.cuh"

enum {
    WARP = 32,
    PANELS = 4,   /* of a block of threads */
    INPUTS = 64,  /* likewise */
    EIGHT = 8,    /* inputs of one matrix instruction */
    COLUMNS = 128 /* in shared memory at a time */
};

/* ---- Inputs through shared memory ---- */

enum {
    THREADS = PANELS * WARP,
    STEP = 32, /* columns of one matrix instruction */
    STEPS = COLUMNS / STEP,
    PIECES = INPUTS * COLUMNS / 16 / THREADS, /* a thread's loads of 16 bytes */
    /* From input to input: four of them and a step's columns touch all banks once. */
    Q_STRIDE = COLUMNS + 32
};

template <int BLOCK> struct gemm_shared {
    __align__(16) int8_t q[2][INPUTS][Q_STRIDE];
    __align__(16) float s[2][COLUMNS / BLOCK][INPUTS], z[2][COLUMNS / BLOCK][INPUTS];
};

/* A thread's share of the inputs of COLUMNS columns, for shared memory. */
template <int BLOCK> struct gemm_inputs {
    uint4 q[PIECES];
    float s[COLUMNS / BLOCK / 2], z[COLUMNS / BLOCK / 2];
};

/* Which inputs a thread loads: their numbers in the product's arrays. */
struct gemm_sources {
    uint64_t q[PIECES], scales;
};

static __device__ __forceinline__ struct gemm_sources gemm_find(const struct dev_product &p,
                                                                uint32_t first)
{
    struct gemm_sources from;
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        from.q[k] = dev_input_of(p, first + (k * THREADS + threadIdx.x) / (COLUMNS / 16));
    from.scales = dev_input_of(p, first + threadIdx.x % INPUTS);
    return from;
}

template <int BLOCK>
static __device__ __forceinline__ void gemm_read(const struct dev_product &p,
                                                 const struct gemm_sources &from, uint32_t chunk,
                                                 struct gemm_inputs<BLOCK> *to)
{
    const int blocks = COLUMNS / BLOCK;
    uint32_t column = chunk * COLUMNS + threadIdx.x % (COLUMNS / 16) * 16;
#pragma unroll
    for (int k = 0; k < PIECES; k++)
        to->q[k] = column < p.in_stride ? __ldg((const uint4 *)((const int8_t *)p.inputs +
                                                                from.q[k] * p.in_stride + column))
                                        : make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int k = 0; k < blocks / 2; k++) {
        uint32_t b = chunk * blocks + threadIdx.x / INPUTS * (blocks / 2) + k;
        b = min(b, p.blocks - 1);
        to->s[k] = __ldg(p.s + from.scales * p.blocks + b);
        to->z[k] = __ldg(p.z + from.scales * p.blocks + b);
    }
}

template <int BLOCK>
static __device__ __forceinline__ void gemm_keep(const struct gemm_inputs<BLOCK> &from, int buffer,
                                                 struct gemm_shared<BLOCK> *to)
{
    const int blocks = COLUMNS / BLOCK;
#pragma unroll
    for (int k = 0; k < PIECES; k++) {
        uint32_t piece = k * THREADS + threadIdx.x;
        *(uint4 *)&to->q[buffer][piece / (COLUMNS / 16)][piece % (COLUMNS / 16) * 16] = from.q[k];
    }
#pragma unroll
    for (int k = 0; k < blocks / 2; k++) {
        uint32_t b = threadIdx.x / INPUTS * (blocks / 2) + k;
        to->s[buffer][b][threadIdx.x % INPUTS] = from.s[k];
        to->z[buffer][b][threadIdx.x % INPUTS] = from.z[k];
    }
}

/* ---- Weights straight from memory ---- */

/* What a lane needs of its rows g and g + 8 for COLUMNS columns: packed words, the second plane's
 * last, or of grouped kinds the two unpacked ones, and scales. */
static constexpr MOE_DEVICE_CODE int gemm_words(int kind)
{
    return moe_kind_is_grouped(kind)
               ? 2
               : (moe_kind_plane(kind) == 8 ? 2 : 1) + (moe_kind_high_plane(kind) ? 1 : 0);
}
template <int KIND, int BLOCK> struct gemm_weights {
    uint32_t words[STEPS][2][gemm_words(KIND)];
    struct moe_scales scales[COLUMNS / BLOCK][moe_kind_scales(KIND)][2];
};

template <int KIND, int BLOCK>
static __device__ __forceinline__ void gemm_read_weights(const struct dev_product &p,
                                                         const uint8_t *panel, uint32_t chunk,
                                                         struct gemm_weights<KIND, BLOCK> *to)
{
    const int scales = moe_kind_scales(KIND), run_columns = BLOCK / scales;
    const int block_steps = BLOCK / STEP, of_step = STEP / 4 / dev_unit_words(KIND);
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int k = 0; k < COLUMNS / BLOCK; k++) {
        uint32_t b = min(chunk * (COLUMNS / BLOCK) + k, p.blocks - 1);
        struct dev_run run;
#pragma unroll
        for (int i = scales - 1; i >= 0; i--) { /* the block's first run last */
            run = dev_find_run<KIND, run_columns>(panel, p.blocks, p.per_record, p.reciprocal,
                                                  b * scales + i);
#pragma unroll
            for (int half = 0; half < 2; half++)
                to->scales[k][i][half] = dev_run_scale<KIND>(p.kind, run, g + 8 * half);
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int st = 0; st < block_steps; st++) {
                const uint32_t *words = (const uint32_t *)run.codes + g + 8 * half;
                uint32_t *keep = to->words[k * block_steps + st][half];
                if constexpr (moe_kind_is_grouped(KIND)) {
                    const uint32_t row = g + 8 * half, j = t * moe_kind_plane(KIND) / 4;
                    dev_unpack_groups<KIND, 2>(run, row, dev_group_word<KIND>(run, row, j),
                                               dev_signs_word<KIND>(run, row), t, keep);
                    continue;
                }
                /* The unit that columns 8t of the step lie in. */
                uint32_t unit = st * of_step + t * of_step / 4;
                keep[0] = __ldg(words + unit * (DEV_UNIT / 4));
                if constexpr (moe_kind_plane(KIND) == 8)
                    keep[1] = __ldg(words + (unit + 1) * (DEV_UNIT / 4));
                if constexpr (moe_kind_high_plane(KIND) > 0)
                    keep[gemm_words(KIND) - 1] =
                        __ldg(words + (dev_high_plane<KIND, run_columns>() / DEV_UNIT +
                                       dev_high_unit(KIND, unit)) *
                                          (DEV_UNIT / 4));
            }
    }
}

/* The codes of columns 8t .. 8t+3 and 8t+4 .. 8t+7 of a step. */
template <int KIND>
static __device__ __forceinline__ void gemm_unpack(const uint32_t words[gemm_words(KIND)],
                                                   uint32_t codes[2])
{
    const int plane = moe_kind_plane(KIND), more = moe_kind_high_plane(KIND);
    uint32_t t = threadIdx.x % 4;
    if constexpr (moe_kind_is_grouped(KIND)) {
        codes[0] = words[0];
        codes[1] = words[1];
    } else if constexpr (plane == 8) {
        dev_unpack<KIND, 1>(words[0], 0, codes);
        dev_unpack<KIND, 1>(words[1], 0, codes + 1);
    } else {
        uint32_t low = plane == 1   ? words[0] >> 2 * t
                       : plane == 2 ? words[0] >> 4 * (t & 1)
                                    : words[0];
        uint32_t high = more ? words[gemm_words(KIND) - 1] >> 2 * t * more % 8 : 0;
        dev_unpack<KIND, 2>(low, high, codes);
    }
}

/* ---- Sums and chains ---- */

/* c = the sums of a column block for rows g, g + 8 and inputs 2t, 2t + 1 of eight, whose bytes lie
 * at q; a: a step's codes of row g, of g + 8, then the second four columns' of both. */
template <int KIND, int N_STEPS, bool TENSOR>
static __device__ __forceinline__ void gemm_sums(const uint32_t (*a)[4], const int8_t *q,
                                                 int32_t c[4])
{
    uint32_t lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const bool is_signed = dev_is_signed(KIND);
    if constexpr (TENSOR) {
        c[0] = c[1] = c[2] = c[3] = 0;
#pragma unroll
        for (int st = 0; st < N_STEPS; st++) {
            uint2 v = *(const uint2 *)(q + g * Q_STRIDE + st * STEP + 8 * t);
            uint32_t b[2] = {v.x, v.y};
            if constexpr (is_signed)
                dev_mma_s8s8(c, a[st], b);
            else
                dev_mma_u8s8(c, a[st], b);
        }
    } else {
        int32_t v[2 * EIGHT]; /* [input][row g, g + 8], over this lane's columns */
#pragma unroll
        for (int k = 0; k < 2 * EIGHT; k++) {
            v[k] = 0;
#pragma unroll
            for (int st = 0; st < N_STEPS; st++) {
                uint2 b = *(const uint2 *)(q + k / 2 * Q_STRIDE + st * STEP + 8 * t);
                const uint32_t low = a[st][k % 2], high = a[st][k % 2 + 2];
                if constexpr (is_signed) {
                    v[k] = dev_dp4a_ss((int32_t)low, (int32_t)b.x, v[k]);
                    v[k] = dev_dp4a_ss((int32_t)high, (int32_t)b.y, v[k]);
                } else {
                    v[k] = dev_dp4a(low, (int32_t)b.x, v[k]);
                    v[k] = dev_dp4a(high, (int32_t)b.y, v[k]);
                }
            }
        }
        bool owner = true;
        dev_share_sums<2 * EIGHT, 2, 1>(v, lane, &owner); /* lane t's begin with input 2t */
        c[0] = v[0];
        c[2] = v[1];
        c[1] = v[2];
        c[3] = v[3];
    }
}

/* Of a step's codes those of run 0 or 1 of its block, in which lanes hold columns 8t .. 8t+7; and
 * ones in their places. */
static __device__ __forceinline__ void gemm_half(const uint32_t a[4], int run, uint32_t own[4],
                                                 uint32_t ones[4])
{
    uint32_t mine = (int)(threadIdx.x % 4 / 2) == run ? 0xffffffffu : 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        own[i] = a[i] & mine;
        ones[i] = 0x01010101u & mine;
    }
}

/* COLUMNS columns: y[j] are the chains of the j-th eight inputs, as c of gemm_sums. */
template <int KIND, int BLOCK, bool TENSOR>
static __device__ __forceinline__ void
gemm_add(const struct gemm_weights<KIND, BLOCK> &w, const struct gemm_shared<BLOCK> &shared,
         int buffer, uint32_t blocks_left, uint32_t inputs, float y[INPUTS / EIGHT][4])
{
    const int steps = BLOCK / STEP, scales = moe_kind_scales(KIND);
    uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (uint32_t k = 0; k < COLUMNS / BLOCK; k++) {
        if (k >= blocks_left)
            break;
        uint32_t a[steps][4];
#pragma unroll
        for (int st = 0; st < steps; st++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                uint32_t codes[2];
                gemm_unpack<KIND>(w.words[k * steps + st][half], codes);
                a[st][half] = codes[0];
                a[st][half + 2] = codes[1];
            }
#pragma unroll
        for (uint32_t j = 0; j < INPUTS / EIGHT; j++) {
            if (j * EIGHT >= inputs)
                break;
            float2 s = *(const float2 *)&shared.s[buffer][k][j * EIGHT + 2 * t];
            float2 z = *(const float2 *)&shared.z[buffer][k][j * EIGHT + 2 * t];
            const int8_t *q = &shared.q[buffer][j * EIGHT][k * BLOCK];
#pragma unroll
            for (int run = 0; run < scales; run++) {
                int32_t c[4];
                if constexpr (scales == 1) {
                    gemm_sums<KIND, steps, TENSOR>(a, q, c);
                } else {
                    uint32_t own[1][4], ones[1][4];
                    gemm_half(a[0], run, own[0], ones[0]);
                    gemm_sums<KIND, 1, TENSOR>(own, q, c);
                    if constexpr (moe_kind_has_offset(KIND)) {
                        int32_t sums[4];
                        gemm_sums<KIND, 1, TENSOR>(ones, q, sums);
                        z.x = s.x * (float)sums[0];
                        z.y = s.y * (float)sums[1];
                    }
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const struct moe_scales &row = w.scales[k][run][i / 2];
                    y[j][i] = fmaf(row.d * (i % 2 ? s.y : s.x), (float)c[i], y[j][i]);
                    if (moe_kind_has_offset(KIND))
                        y[j][i] = fmaf(row.m, i % 2 ? z.y : z.x, y[j][i]);
                }
            }
        }
    }
}

template <int KIND, int BLOCK, bool TENSOR>
static __global__ void __launch_bounds__(THREADS) gemm_bytes(struct dev_products all)
{
    __shared__ struct gemm_shared<BLOCK> shared;
    const struct dev_product p = dev_this_product(all, dev_this_index(all));
    uint32_t panels = moe_panels(p.rows), first = blockIdx.z * INPUTS;
    if (blockIdx.x * PANELS >= panels || first >= p.n)
        return;
    uint32_t at = blockIdx.x * PANELS + threadIdx.x / WARP; /* this warp's panel */
    const uint8_t *panel = dev_panel(p, min(at, panels - 1));
    uint32_t inputs = min(p.n - first, (uint32_t)INPUTS);
    const uint32_t chunk_blocks = COLUMNS / BLOCK;
    uint32_t chunks = (p.blocks + chunk_blocks - 1) / chunk_blocks;

    const struct gemm_sources from = gemm_find(p, first);
    struct gemm_inputs<BLOCK> next_inputs;
    struct gemm_weights<KIND, BLOCK> next_weights;
    float y[INPUTS / EIGHT][4] = {};
    gemm_read<BLOCK>(p, from, 0, &next_inputs);
    gemm_read_weights<KIND, BLOCK>(p, panel, 0, &next_weights);
    for (uint32_t k = 0; k < chunks; k++) {
        gemm_keep<BLOCK>(next_inputs, k & 1, &shared);
        const struct gemm_weights<KIND, BLOCK> weights = next_weights;
        __syncthreads(); /* and all have read what the next round overwrites */
        if (k + 1 < chunks) {
            gemm_read<BLOCK>(p, from, k + 1, &next_inputs);
            gemm_read_weights<KIND, BLOCK>(p, panel, k + 1, &next_weights);
        }
        gemm_add<KIND, BLOCK, TENSOR>(weights, shared, k & 1, p.blocks - k * chunk_blocks, inputs,
                                      y);
    }

    uint32_t lane = threadIdx.x % WARP;
    if (at < panels)
#pragma unroll
        for (uint32_t j = 0; j < INPUTS / EIGHT; j++)
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                uint32_t input = j * EIGHT + lane % 4 * 2 + i % 2;
                if (input < inputs)
                    dev_store_result(p, first + input, at * MOE_PANEL_ROWS + lane / 4 + i / 2 * 8,
                                     y[j][i]);
            }
}

/* ---- Starting ---- */

void gpu_gemm(struct moe_gpu *g, const struct dev_products *list)
{
    dim3 grid((gpu_most_panels(list) + PANELS - 1) / PANELS, dev_products_height(list),
              (gpu_most_inputs(list) + INPUTS - 1) / INPUTS);
    bool tensor = g->info.compute_major >= 8 && g->math != MOE_GPU_MATH_PORTABLE;
#define START(kind, run)                                                                           \
    do {                                                                                           \
        const int block = dev_block_of(kind, run);                                                 \
        if (tensor)                                                                                \
            MOE_LAUNCH(g, (gemm_bytes<kind, block, true>), grid, THREADS, 0, *list);               \
        else                                                                                       \
            MOE_LAUNCH(g, (gemm_bytes<kind, block, false>), grid, THREADS, 0, *list);              \
    } while (0)
    DEV_BY_QUANTIZED(list->list[0].kind, list->list[0].block, START);
#undef START
}
