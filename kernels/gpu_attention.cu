/*
 * Attention over the KV cache, by chunks of positions: infer/cpu_attention.c defines the
 * arithmetic, dev_attention.cuh holds a block's work on one chunk.
 *
 *   Prefill: a block walks over the chunks of its tile; the chunks joined so far lie in `attended`.
 * Tiles of late rows have the most work and start first.
 *   Decode (up to MOE_GPU_SPLIT_ROWS rows): a block per chunk of the whole context. Blocks whose
 * chunk a row does not see leave at once, so a recorded launch serves all positions. Where these
 * are fewer than the device has processors, tiles have fewer columns: the cache then is read more
 * than once, but from the device's own cache, and by more blocks at a time. The last block of a
 * tile to finish joins its chunks. One block reads the others' results more slowly than many would:
 * where that takes longer than another launch, a second kernel joins them, with a block per head.
 *   Around it: each block that needs a decoded row's queries finishes them itself, straight into
 * shared memory; the blocks of its own chunk finish its key and value. The byte forms of the
 * outputs are made by the block that writes them, if it has whole chunks of 64 columns of them.
 *   Where the cache has codes, queries are finished and turned before, and outputs turned back
 * after, each by a launch of its own.
 *
 * The fma chains are as long as the definition has them; columns, positions and dimensions are
 * computed side by side. Tensor cores cannot be used: they add in an order of their own. A load
 * from shared memory fills registers at 128 bytes a cycle, also where all threads read the same:
 * that, not the arithmetic, limits walking, so a thread of walk_wide has 8 by 8 sums, and reads 16
 * numbers for 64 products where one of walk_chunks reads 10 for 16. Registers on sm_90: walking 74,
 * wide 121, splitting 128, all without spills.
 */
#include "dev_arrivals.cuh"
#include "dev_attention.cuh"
#include "dev_prepare.cuh"
#include "gpu_context.cuh"

/* Blocks per multiprocessor for which the compiler keeps registers free; 0: its own choice. */
enum {
    WIDE_BLOCKS = 4,
    WALK_BLOCKS = 0,
    WALK_NARROW_BLOCKS = 7,
    SPLIT_BLOCKS = 2,
    JOIN_BLOCKS = 4
};

/* ---- What is attended ---- */

/* The sinks, the divisions. */
template <int T, int H, int Q>
static __device__ __forceinline__ void close_run(const struct attend &s, struct tile<T, Q> *tile)
{
    const struct moe_gpu_attention &a = s.a;
    __syncthreads();
    if (threadIdx.x < T && a.sinks) {
        struct column *col = &tile->columns[threadIdx.x];
        col->join = join_of(col->largest, a.sinks[col->head]);
        col->sum = joined(col->join, col->sum, 1);
    }
    __syncthreads();
    for (uint32_t item = threadIdx.x; item < a.kv.value_dim * (T / H); item += blockDim.x) {
        uint32_t d = item % a.kv.value_dim, first = item / a.kv.value_dim * H;
        for (int t = 0; t < H; t++) {
            const struct column *col = &tile->columns[first + t];
            if (col->out)
                col->out[d] =
                    (a.sinks ? joined(col->join, col->out[d], 0) : col->out[d]) / col->sum;
        }
    }
}

/* Makes the byte forms of the outputs of a run's columns. */
template <int T, int Q>
static __device__ __forceinline__ void prepare_run(const struct attend &s,
                                                   const struct tile<T, Q> &tile, struct run run)
{
    const struct moe_gpu_attention &a = s.a;
    uint32_t n_columns = run.to - run.from, dim = a.kv.value_dim;
    uint32_t n_pieces = s.piece == PIECE_COLUMN ? n_columns : 1;
    uint32_t chunks = dev_prepare_chunks(s.piece == PIECE_COLUMN ? dim : n_columns * dim);
    if (s.piece == PIECE_NONE)
        return;
    __syncthreads(); /* all outputs are written */
    for (uint32_t item = threadIdx.x / DEV_WARP; item < n_pieces * chunks;
         item += blockDim.x / DEV_WARP) {
        const struct column &col = tile.columns[run.from + item / chunks];
        uint32_t part = a.out_parts > 1 ? col.head : 0;
        uint32_t first = (col.head - part) * dim / DEV_PREPARE_CHUNK;
        dev_prepare_chunk(a.attended + col.row * a.attended_stride + (uint64_t)part * dim,
                          first + item % chunks, s.act, (uint64_t)part * s.n + col.row);
    }
}

/* ---- Chunk after chunk ---- */

template <int T, int H, int K, int V>
static __global__ void __launch_bounds__(ATTEND_THREADS,
                                         H < MAX_COLUMNS ? WALK_NARROW_BLOCKS : WALK_BLOCKS)
    walk_chunks(struct attend s)
{
    __shared__ struct tile<T> tile;
    uint32_t first = (gridDim.x - 1 - blockIdx.x) * T; /* long ones first */
    uint32_t left = s.n_together * s.group - first, n = left < T ? left : T;
    for (struct run run = {0, 0}; run.to < n;) {
        run = open_run(s, &tile, first, blockIdx.y, run.to);
        if (s.fresh)
            finish_fresh(s, &tile, blockIdx.y, true);
        for (uint32_t base = tile.begin / CHUNK * CHUNK; base < tile.end; base += CHUNK)
            attend_chunk<T, H, K, V>(s, &tile, base);
        close_run<T, H>(s, &tile);
        prepare_run(s, tile, run);
    }
}

/* The same for prompts: W neighbouring dimensions of a value are a thread's. */
template <int W, int K, int V>
static __global__ void __launch_bounds__(ATTEND_THREADS, WIDE_BLOCKS) walk_wide(struct attend s)
{
    __shared__ struct tile<WIDE_COLUMNS, WIDE_QUERY_PART> tile;
    uint32_t first = (gridDim.x - 1 - blockIdx.x) * WIDE_COLUMNS; /* long ones first */
    uint32_t left = s.n_together * s.group - first;
    for (struct run run = {0, 0}; run.to < min(left, (uint32_t)WIDE_COLUMNS);) {
        run = open_run(s, &tile, first, blockIdx.y, run.to);
        for (uint32_t base = tile.begin / CHUNK * CHUNK; base < tile.end; base += CHUNK)
            attend_wide<W, K, V>(s, &tile, base);
        close_run<WIDE_COLUMNS, WIDE>(s, &tile);
        prepare_run(s, tile, run);
    }
}

/* ---- A block per chunk, then joining ---- */

/* Of a row's head and a chunk, in scratch. */
static __device__ __forceinline__ uint64_t place_of(const struct attend &s,
                                                    const struct column &col, uint32_t chunk)
{
    return ((uint64_t)col.row * s.a.n_heads + col.head) * s.n_chunks + chunk;
}

/* Plans how m chunks from `first` on are joined, for the columns of a tile, a warp for each;
 * `more`: others were joined before. The largest of a chunk is never NaN, so maxima are free to be
 * joined in any order. */
template <int T, int Q>
static __device__ __forceinline__ void plan_joins(const struct attend &s, struct tile<T, Q> *tile,
                                                  uint32_t first, uint32_t m, bool more)
{
    uint32_t lane = threadIdx.x % DEV_WARP;
    for (int t = threadIdx.x / DEV_WARP; t < T; t += blockDim.x / DEV_WARP) {
        struct column *col = &tile->columns[t];
        uint64_t at = place_of(s, *col, first);
        float highest = more ? col->largest : -INFINITY;
        if (!col->out)
            continue; /* the whole warp */
        for (uint32_t from = 0; from < m; from += DEV_WARP) {
            uint32_t i = from + lane;
            float mine = i < m ? s.largest[at + i] : -INFINITY, up_to_me = mine;
            for (uint32_t by = 1; by < DEV_WARP; by *= 2) {
                float other = __shfl_up_sync(DEV_FULL_MASK, up_to_me, by);
                up_to_me = lane >= by && other > up_to_me ? other : up_to_me;
            }
            float before = __shfl_up_sync(DEV_FULL_MASK, up_to_me, 1);
            before = lane == 0 || highest > before ? highest : before;
            if (i < m) {
                bool is_first = !more && i == 0;
                tile->joins[t][i] = is_first ? join{JOIN_FIRST, 0} : join_of(before, mine);
                tile->sums[t][i] = s.sum[at + i];
            }
            float last = __shfl_sync(DEV_FULL_MASK, up_to_me, DEV_WARP - 1);
            highest = last > highest ? last : highest;
        }
        if (lane == 0)
            col->largest = highest;
    }
}

/* Joins these chunks' outputs of W neighbouring dimensions as planned. */
template <int T, int W, int Q>
static __device__ __forceinline__ void join_outputs(const struct attend &s, struct tile<T, Q> *tile,
                                                    uint32_t first, uint32_t m, bool more)
{
    const int AHEAD = W > 1 ? 8 : 16; /* chunks read before they are joined */
    uint32_t dim = s.a.kv.value_dim;
    for (uint32_t item = threadIdx.x; item < T * (dim / W); item += blockDim.x) {
        uint32_t t = item / (dim / W), d = item % (dim / W) * W;
        const struct column *col = &tile->columns[t];
        if (!col->out)
            continue;
        const float *parts = s.out + place_of(s, *col, first) * dim + d;
        struct alignas(W * sizeof(float)) some {
            float v[W];
        };
        float o[W];
        for (int k = 0; k < W; k++)
            o[k] = more ? col->out[d + k] : 0;
        for (uint32_t from = 0; from < m; from += AHEAD) {
            some part[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                part[i] = *(const some *)(parts + (uint64_t)min(from + i, m - 1) * dim);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                struct join how = {JOIN_NONE, 0};
                if (from + i < m)
                    how = tile->joins[t][from + i];
                for (int k = 0; k < W; k++)
                    o[k] = joined(how, o[k], part[i].v[k]);
            }
        }
        for (int k = 0; k < W; k++)
            col->out[d + k] = o[k];
    }
}

/* Joins all chunks that the run's row sees, which lie in scratch. */
template <int T, int Q>
static __device__ __forceinline__ void join_run(const struct attend &s, struct tile<T, Q> *tile,
                                                struct run run)
{
    uint32_t first = tile->begin / CHUNK, end = (tile->end - 1) / CHUNK + 1, t = threadIdx.x;
    uint32_t dim = s.a.kv.value_dim;
    for (uint32_t c = first, m; c < end; c += m) {
        m = min(end - c, (uint32_t)JOINED);
        __syncthreads();
        plan_joins(s, tile, c, m, c > first);
        __syncthreads();
        if (t < T && tile->columns[t].out) {
            float sum = tile->columns[t].sum;
#pragma unroll 8
            for (uint32_t i = 0; i < m; i++)
                sum = joined(tile->joins[t][i], sum, tile->sums[t][i]);
            tile->columns[t].sum = sum;
        }
        if (dim % 4 == 0 && T * dim >= 4 * blockDim.x)
            join_outputs<T, 4>(s, tile, c, m, c > first);
        else
            join_outputs<T, 1>(s, tile, c, m, c > first);
    }
    close_run<T, 1>(s, tile);
    prepare_run(s, *tile, run);
}

template <int T, int K, int V>
static __global__ void __launch_bounds__(ROW_THREADS, SPLIT_BLOCKS) split_chunks(struct attend s)
{
    __shared__ struct tile<T, ROW_QUERY_PART> tile;
    uint32_t chunk = blockIdx.x, base = chunk * CHUNK, row = blockIdx.z;
    uint32_t n_tiles = (s.group + T - 1) / T, kv_head = blockIdx.y / n_tiles;
    uint32_t number = blockIdx.y % n_tiles, begin, end;
    seen_by(s.a, s.a.rows[row].position, &begin, &end);
    if (base >= end || base + CHUNK <= begin)
        return; /* the whole block */
    struct run run = open_row(s, &tile, row, number * T, kv_head);
    uint64_t head = dev_kv_head(s.a.kv, s.a.layer, tile.sequence, base, kv_head);
    if (T < MAX_COLUMNS) /* else there are other blocks to wait with */
        bring_values<V>(s, head, max(begin, base) - base, min(end - base, (uint32_t)CHUNK), number,
                        n_tiles);
    if (s.fresh)
        finish_fresh(s, &tile, kv_head, end <= base + CHUNK);
    uint32_t n_seen = (end - 1) / CHUNK - begin / CHUNK + 1;
    bool alone = n_seen == 1 && s.arrivals;
    struct column *col = &tile.columns[threadIdx.x < T ? threadIdx.x : 0];
    uint64_t at = place_of(s, *col, chunk);
    float *attended = threadIdx.x < T ? col->out : NULL;
    if (attended && !alone)
        col->out = s.out + at * s.a.kv.value_dim;
    attend_row<T, K, V>(s, &tile, base, head);
    if (alone) {
        close_run<T, 1>(s, &tile);
        prepare_run(s, tile, run);
        return;
    }
    if (attended) {
        s.largest[at] = col->largest;
        s.sum[at] = col->sum;
    }
    if (!s.arrivals || !dev_last_arrival(&s.arrivals[row * gridDim.y + blockIdx.y], n_seen))
        return;
    if (attended)
        col->out = attended;
    join_run(s, &tile, run);
}

/* Joins the chunks of a row's head, where they are too many for the last block of a tile. */
static __global__ void __launch_bounds__(ATTEND_THREADS, JOIN_BLOCKS) join_chunks(struct attend s)
{
    __shared__ struct tile<1> tile;
    uint32_t head = blockIdx.x;
    struct run run = open_row(s, &tile, blockIdx.y, head % s.group, head / s.group);
    join_run(s, &tile, run);
}

/* ---- Starting ---- */

/* The part of the byte forms that blocks of T columns each can make: only whole chunks of their own
 * columns, else none. */
static enum out_piece piece_of(const struct attend &s, uint32_t T)
{
    uint32_t dim = s.a.kv.value_dim, group = s.group;
    if (!s.a.out || !dev_prepare_wanted(*s.a.out) || dev_has_scales(s.a.kv.values_as))
        return PIECE_NONE;
    if (s.a.out_parts > 1 || dim % DEV_PREPARE_CHUNK == 0)
        return PIECE_COLUMN;
    bool groups = s.a.kv.n_heads == 1 || group * dim % DEV_PREPARE_CHUNK == 0;
    bool tiles = group <= T || T * dim % DEV_PREPARE_CHUNK == 0;
    return s.n_together == 1 && groups && tiles ? PIECE_RUN : PIECE_NONE;
}

/* Many rows, T columns at a time. */
template <int T, int H, int K, int V> static void walk(struct moe_gpu *g, struct attend *s)
{
    uint32_t n_tiles = (s->n_together * s->group + T - 1) / T;
    s->piece = piece_of(*s, T);
    MOE_LAUNCH(g, (walk_chunks<T, H, K, V>), dim3(n_tiles, s->a.kv.n_heads), ATTEND_THREADS, 0, *s);
}

template <int W, int K, int V> static void walk_prompt(struct moe_gpu *g, struct attend *s)
{
    uint32_t n_tiles = (s->n_together * s->group + WIDE_COLUMNS - 1) / WIDE_COLUMNS;
    s->piece = piece_of(*s, WIDE_COLUMNS);
    MOE_LAUNCH(g, (walk_wide<W, K, V>), dim3(n_tiles, s->a.kv.n_heads), ATTEND_THREADS, 0, *s);
}

template <int K, int V> static void walk_columns(struct moe_gpu *g, struct attend *s)
{
    uint32_t n_columns = s->n_together * s->group, dim = s->a.kv.value_dim;
    uint64_t full = (uint64_t)(n_columns / WIDE_COLUMNS) * s->a.kv.n_heads;
    bool wide = full >= (uint64_t)g->info.n_processors && dim % 4 == 0 && !s->fresh;
#ifdef MOE_FEW_TILES
    if (wide)
        walk_prompt<4, K, V>(g, s);
    else if (n_columns == 1)
        walk<1, 1, K, V>(g, s);
    else
        walk<MAX_COLUMNS, MAX_COLUMNS, K, V>(g, s);
#else
    if (wide && dim <= NARROW)
        walk_prompt<2, K, V>(g, s);
    else if (wide)
        walk_prompt<4, K, V>(g, s);
    else if (n_columns == 1)
        walk<1, 1, K, V>(g, s);
    else if (n_columns == 2)
        walk<2, 2, K, V>(g, s);
    else if (n_columns <= 4)
        walk<4, 4, K, V>(g, s);
    else if (s->a.kv.value_dim <= NARROW)
        walk<MAX_COLUMNS, MAX_COLUMNS / 2, K, V>(g, s);
    else
        walk<MAX_COLUMNS, MAX_COLUMNS, K, V>(g, s);
#endif
}

/* Columns of a tile of one row: as many as leave a block for each of the device's processors, and
 * no fewer than the byte forms are made of. */
static uint32_t columns_of(const struct moe_gpu *g, const struct attend &s)
{
    uint32_t T = MAX_COLUMNS;
    while (T / 2 >= s.group)
        T /= 2;
    for (; T > 2; T /= 2) {
        uint64_t n_tiles = (uint64_t)s.n * s.a.kv.n_heads * ((s.group + T - 1) / T);
        bool enough = n_tiles * s.n_chunks >= (uint64_t)g->info.n_processors;
        if (enough || piece_of(s, T / 2) != piece_of(s, T))
            break;
    }
    return T;
}

/* Few rows: a block for each chunk of each. */
template <int T, int K, int V> static void split(struct moe_gpu *g, struct attend *s)
{
    const struct moe_gpu_attention &a = s->a;
    uint32_t n_tiles = (s->group + T - 1) / T * a.kv.n_heads;
    bool joined_at_once = (uint64_t)T * a.kv.value_dim * s->n_chunks <= JOINED_AT_ONCE &&
                          (uint64_t)s->n * n_tiles <= GPU_ARRIVALS;
    s->arrivals = joined_at_once || s->n_chunks == 1 ? g->arrivals : NULL;
    s->piece = piece_of(*s, s->arrivals ? T : 1);
    MOE_LAUNCH(g, (split_chunks<T, K, V>), dim3(s->n_chunks, n_tiles, s->n), ROW_THREADS, 0, *s);
    if (!s->arrivals)
        MOE_LAUNCH(g, join_chunks, dim3(a.n_heads, s->n), ATTEND_THREADS, 0, *s);
}

template <int K, int V> static void split_columns(struct moe_gpu *g, struct attend *s)
{
    switch (columns_of(g, *s)) {
    case 1:
        return split<1, K, V>(g, s);
#ifndef MOE_FEW_TILES
    case 2:
        return split<2, K, V>(g, s);
    case 4:
        return split<4, K, V>(g, s);
#endif
    default:
        return split<MAX_COLUMNS, K, V>(g, s);
    }
}

template <int K, int V> static void attend_all(struct moe_gpu *g, struct attend *s, bool apart)
{
    if (apart)
        split_columns<K, V>(g, s);
    else
        walk_columns<K, V>(g, s);
}

/* Turns the heads of a row, by a warp a run of dimensions. */
static __global__ void __launch_bounds__(ATTEND_THREADS)
    turn_heads(float *x, uint64_t stride, uint32_t n_heads, uint32_t dim)
{
    const uint32_t runs = (dim + DEV_TURNED - 1) / DEV_TURNED, lane = threadIdx.x % DEV_WARP;
    uint32_t item = blockIdx.y * ATTEND_WARPS + threadIdx.x / DEV_WARP;
    if (item >= n_heads * runs)
        return; /* the whole warp */
    uint32_t first = item % runs * DEV_TURNED, n = min(dim - first, (uint32_t)DEV_TURNED);
    float *from = x + blockIdx.x * stride + (uint64_t)(item / runs) * dim + first;
    struct dev_run_of r;
#pragma unroll
    for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++)
        r.x[j] = j * DEV_WARP + lane < n ? from[j * DEV_WARP + lane] : 0;
    dev_turn(&r, n);
#pragma unroll
    for (uint32_t j = 0; j < DEV_TURNED / DEV_WARP; j++)
        if (j * DEV_WARP + lane < n)
            from[j * DEV_WARP + lane] = r.x[j];
}

static void turn(struct moe_gpu *g, float *x, uint64_t stride, uint32_t n_heads, uint32_t dim,
                 uint32_t n)
{
    uint32_t items = n_heads * ((dim + DEV_TURNED - 1) / DEV_TURNED);
    MOE_LAUNCH(g, turn_heads, dim3(n, (items + ATTEND_WARPS - 1) / ATTEND_WARPS), ATTEND_THREADS, 0,
               x, stride, n_heads, dim);
}

static uint32_t chunks_of(uint32_t positions)
{
    return (positions + CHUNK - 1) / CHUNK;
}

extern "C" void moe_gpu_attention(struct moe_gpu *g, const struct moe_gpu_attention *a, uint32_t n)
{
    uint32_t dim = a->kv.value_dim, n_chunks = chunks_of(a->end);
    bool room = a->scratch && moe_gpu_attention_bytes(a->n_heads, dim, a->end) <= a->scratch_bytes;
    bool apart = n <= MOE_GPU_SPLIT_ROWS && (n_chunks == 1 || room);
    uint64_t parts = (uint64_t)n * a->n_heads * n_chunks;
    struct attend s = {};
    if (n == 0)
        return;
    s.a = *a;
    s.n = n;
    s.group = a->n_heads / a->kv.n_heads;
    s.n_together = apart ? 1 : n;
    s.n_chunks = n_chunks;
    if (a->out)
        s.act = *a->out;
    if (a->fresh)
        s.heads = *a->fresh;
    const bool coded = dev_has_scales(a->kv.keys_as);
    s.fresh = a->fresh && n == 1 && a->kv.key_dim <= QUERY_PART && !coded;
    if (a->fresh && !s.fresh)
        moe_gpu_finish_heads(g, a->fresh, n);
    if (apart && room) {
        s.out = (float *)a->scratch; /* first: it is read by fours */
        s.largest = s.out + parts * dim;
        s.sum = s.largest + parts;
    }
    if (coded)
        turn(g, (float *)a->queries, a->queries_stride, a->n_heads, a->kv.key_dim, n);
    if (a->kv.keys_as == MOE_LAYOUT_F32)
        attend_all<MOE_LAYOUT_F32, MOE_LAYOUT_F32>(g, &s, apart);
    else if (a->kv.keys_as == MOE_LAYOUT_F16)
        attend_all<MOE_LAYOUT_F16, MOE_LAYOUT_F16>(g, &s, apart);
    else if (a->kv.keys_as == MOE_LAYOUT_Q4)
        attend_all<MOE_LAYOUT_Q4, MOE_LAYOUT_Q4>(g, &s, apart);
    else if (a->kv.values_as == MOE_LAYOUT_Q4)
        attend_all<MOE_LAYOUT_Q8, MOE_LAYOUT_Q4>(g, &s, apart);
    else
        attend_all<MOE_LAYOUT_Q8, MOE_LAYOUT_Q8>(g, &s, apart);
    if (coded)
        turn(g, a->attended, a->attended_stride, a->n_heads, dim, n);
    if (a->out && s.piece == PIECE_NONE)
        moe_gpu_prepare(g, a->attended, a->attended_stride, n, a->out_parts, dim, a->out);
}
