/*
 * Attention over the KV cache, by chunks of positions: the arithmetic is written in
 * run/attention.c, what a block does with a chunk in dev_attention.cuh.
 *
 *   Prompts: a block walks over the chunks of its tile; what is joined so far lies in `attended`.
 * Tiles of late rows have most to do and start first.
 *   Decode (up to MOE_GPU_SPLIT_ROWS rows): a block per chunk, one of all chunks that there could
 * be: those that a row does not see leave at once, so a recorded launch serves all positions. A
 * second kernel joins the chunks. A context of one chunk takes the prompts' way: one launch.
 *
 * Chains are as long as the definition has them; columns, positions and dimensions lie beside each
 * other. Tensor cores are out: they add in an order of their own. Blocks of 256 threads, a position
 * each, would read queries from shared memory twice as often per product. It has run on no GPU yet:
 * no figures. Registers by the compiler, for 8 columns: 99 on sm_75 and 70 on sm_90, where values
 * are narrow 78 and 48; none are spilled.
 */
#include "dev_attention.cuh"
#include "gpu_context.cuh"

/* ---- Prompts: chunk after chunk ----------------------------------------------------------------
 */

/* The sinks, the divisions. */
template <int T, int H>
static __device__ __forceinline__ void close_run(const struct attend &s, struct tile<T> *tile)
{
    const struct moe_gpu_attention &a = s.a;
    __syncthreads();
    if (threadIdx.x < T && a.sinks) {
        struct column *col = &tile->columns[threadIdx.x];
        col->join = join_of(col->largest, a.sinks[col->head]);
        col->sum = joined(col->join, col->sum, 1);
    }
    __syncthreads();
    for (uint32_t item = threadIdx.x; item < a.kv.value_dim * (T / H); item += ATTEND_THREADS) {
        uint32_t d = item % a.kv.value_dim, first = item / a.kv.value_dim * H;
        for (int t = 0; t < H; t++) {
            const struct column *col = &tile->columns[first + t];
            if (col->out)
                col->out[d] =
                    (a.sinks ? joined(col->join, col->out[d], 0) : col->out[d]) / col->sum;
        }
    }
}

template <int T, int H, typename Cell>
static __global__ void __launch_bounds__(ATTEND_THREADS) walk_chunks(struct attend s)
{
    __shared__ struct tile<T> tile;
    uint32_t first = (gridDim.x - 1 - blockIdx.x) * T; /* long ones first */
    uint32_t left = s.n_together * s.group - first, n = left < T ? left : T;
    for (struct run run = {0, 0}; run.to < n;) {
        run = open_run(s, &tile, 0, first, blockIdx.y, run.to);
        for (uint32_t base = tile.begin / CHUNK * CHUNK; base < tile.end; base += CHUNK)
            attend_chunk<T, H, Cell>(s, &tile, base);
        close_run<T, H>(s, &tile);
    }
}

/* ---- Decode: a block per chunk, then joining ---------------------------------------------------
 */

template <int T, int H, typename Cell>
static __global__ void __launch_bounds__(ATTEND_THREADS) split_chunks(struct attend s)
{
    __shared__ struct tile<T> tile;
    uint32_t chunk = blockIdx.x, base = chunk * CHUNK, row = blockIdx.z;
    uint32_t n_tiles = (s.group + T - 1) / T; /* of a kv head */
    uint32_t begin, end;
    seen_by(s.a, s.a.rows[row].position, &begin, &end);
    if (base >= end || base + CHUNK <= begin)
        return; /* the whole block */
    open_run(s, &tile, row, blockIdx.y % n_tiles * T, blockIdx.y / n_tiles, 0);
    struct column *col = &tile.columns[threadIdx.x < T ? threadIdx.x : 0];
    uint64_t at = ((uint64_t)row * s.a.n_heads + col->head) * s.n_chunks + chunk;
    bool mine = threadIdx.x < T && col->out;
    if (mine)
        col->out = s.out + at * s.a.kv.value_dim;
    attend_chunk<T, H, Cell>(s, &tile, base);
    if (mine) {
        s.largest[at] = col->largest;
        s.sum[at] = col->sum;
    }
}

/* The chunks of a row's head, at most ATTEND_THREADS at a time. */
static __global__ void __launch_bounds__(ATTEND_THREADS) join_chunks(struct attend s)
{
    __shared__ struct join joins[ATTEND_THREADS];
    __shared__ float largest[ATTEND_THREADS], sums[ATTEND_THREADS];
    const struct moe_gpu_attention &a = s.a;
    uint32_t head = blockIdx.x, row = blockIdx.y, me = threadIdx.x, dim = a.kv.value_dim;
    uint32_t begin, end;
    seen_by(a, a.rows[row].position, &begin, &end);
    uint32_t first = begin / CHUNK, n = (end - 1) / CHUNK - first + 1;
    uint64_t at = ((uint64_t)row * a.n_heads + head) * s.n_chunks + first;
    float *out = a.attended + row * a.attended_stride + (uint64_t)head * dim;
    float highest = 0, sum = 0; /* of what is joined */

    for (uint32_t done = 0, m; done < n; done += m) {
        m = min(n - done, (uint32_t)ATTEND_THREADS);
        __syncthreads();
        if (me < m) {
            largest[me] = s.largest[at + done + me];
            sums[me] = s.sum[at + done + me];
        }
        __syncthreads();
        float before = 0; /* the highest in front of mine */
        highest = done ? highest : largest[0];
        for (uint32_t i = 0; i < m; i++) {
            before = i == me ? highest : before;
            highest = largest[i] > highest ? largest[i] : highest;
        }
        if (me < m)
            joins[me] = done + me ? join_of(before, largest[me]) : join{JOIN_FIRST, 0};
        __syncthreads();
        for (uint32_t d = me; d < dim; d += ATTEND_THREADS) {
            const float *part = s.out + (at + done) * dim + d;
            float o = done ? out[d] : 0;
#pragma unroll 4
            for (uint32_t i = 0; i < m; i++)
                o = joined(joins[i], o, part[(uint64_t)i * dim]);
            out[d] = o;
        }
        for (uint32_t i = 0; i < m; i++)
            sum = joined(joins[i], sum, sums[i]);
    }
    if (a.sinks) {
        struct join sink = join_of(highest, a.sinks[head]);
        sum = joined(sink, sum, 1);
        for (uint32_t d = me; d < dim; d += ATTEND_THREADS)
            out[d] = joined(sink, out[d], 0);
    }
    for (uint32_t d = me; d < dim; d += ATTEND_THREADS)
        out[d] /= sum;
}

/* ---- Starting ----------------------------------------------------------------------------------
 */

template <int T, int H, typename Cell>
static void start(struct moe_gpu *g, const struct attend &s, uint32_t n, bool split)
{
    uint32_t n_columns = s.n_together * s.group, n_tiles = (n_columns + T - 1) / T;
    uint32_t kv_heads = s.a.kv.n_heads;
    if (!split) {
        MOE_LAUNCH(g, (walk_chunks<T, H, Cell>), dim3(n_tiles, kv_heads), ATTEND_THREADS, 0, s);
        return;
    }
    MOE_LAUNCH(g, (split_chunks<T, H, Cell>), dim3(s.n_chunks, n_tiles * kv_heads, n),
               ATTEND_THREADS, 0, s);
    MOE_LAUNCH(g, join_chunks, dim3(s.a.n_heads, n), ATTEND_THREADS, 0, s);
}

template <int T, int H>
static void start_for_cells(struct moe_gpu *g, const struct attend &s, uint32_t n, bool split)
{
    if (s.a.kv.f16)
        start<T, H, uint16_t>(g, s, n, split);
    else
        start<T, H, float>(g, s, n, split);
}

static uint32_t chunks_of(uint32_t positions)
{
    return (positions + CHUNK - 1) / CHUNK;
}

extern "C" uint64_t moe_gpu_attention_bytes(uint32_t n_heads, uint32_t value_dim, uint32_t context)
{
    uint64_t chunks = (uint64_t)MOE_GPU_SPLIT_ROWS * n_heads * chunks_of(context);
    return chunks * (value_dim + 2) * sizeof(float);
}

extern "C" void moe_gpu_attention(struct moe_gpu *g, const struct moe_gpu_attention *a, uint32_t n)
{
    uint32_t group = a->n_heads / a->kv.n_heads, n_chunks = chunks_of(a->end);
    bool split = n <= MOE_GPU_SPLIT_ROWS && n_chunks > 1 && a->scratch &&
                 moe_gpu_attention_bytes(a->n_heads, a->kv.value_dim, a->end) <= a->scratch_bytes;
    uint64_t parts = (uint64_t)n * a->n_heads * n_chunks;
    float *scratch = (float *)a->scratch;
    struct attend s = {*a, group, split ? 1 : n, n_chunks, NULL, NULL, NULL};
    if (n == 0)
        return;
    if (split) {
        s.largest = scratch;
        s.sum = scratch + parts;
        s.out = scratch + 2 * parts;
    }
    uint32_t n_columns = s.n_together * group;
    if (n_columns == 1)
        start_for_cells<1, 1>(g, s, n, split);
    else if (n_columns == 2)
        start_for_cells<2, 2>(g, s, n, split);
    else if (n_columns <= 4)
        start_for_cells<4, 4>(g, s, n, split);
    else if (a->kv.value_dim <= NARROW)
        start_for_cells<MAX_COLUMNS, MAX_COLUMNS / 2>(g, s, n, split);
    else
        start_for_cells<MAX_COLUMNS, MAX_COLUMNS>(g, s, n, split);
}
