/*
 * Attention on one chunk of positions, a private part of gpu_attention.cu.
 *
 * A block works on a tile: up to 8 columns, which are (row, head) pairs that share a kv head, so
 * that a key or a value is read once for all of them. One warp computes a column's largest score
 * and sum. Prompts have enough columns for tiles of 32, and moving numbers from shared memory to
 * registers takes the most time: a thread has 8 positions by 8 columns, then 4 dimensions by 8
 * columns, and each number it reads serves 4 or 8 products. Fewer rows: for scores, a thread has
 * two positions (the cache's panels make 16 neighbouring positions one piece of memory) and all
 * columns; for outputs, a thread has a dimension, and all columns or half of them. One row has
 * fewer blocks than the device has room for, and waiting for the cache takes the most time. So
 * twice as many threads have at most an eighth as many sums each, and read ahead.
 */
#ifndef MOE_KERNELS_DEV_ATTENTION_CUH
#define MOE_KERNELS_DEV_ATTENTION_CUH

#include "dev_heads.cuh"
#include "dev_kv.cuh"
#include "kern/kern.h" /* MOE_ATTENTION_CHUNK */

enum {
    CHUNK = MOE_ATTENTION_CHUNK,
    ATTEND_THREADS = 128,
    ATTEND_WARPS = ATTEND_THREADS / DEV_WARP,
    EACH = CHUNK / ATTEND_THREADS, /* positions of a thread */
    QUERY_PART = 256,              /* dimensions of queries in shared memory at a time */
    MAX_COLUMNS = 8,
    ROW_THREADS = 256, /* of a block with one row */
    ROW_QUERY_PART = 640,
    WIDE_COLUMNS = 32, /* of a prompt's tile */
    WIDE_QUERY_PART = 64,
    WIDE = 8,           /* columns of a thread there, and positions */
    JOINED = CHUNK / 2, /* split chunks joined at a time */
    /* Most chunk outputs that the last block joins: joining more would take longer than another
       launch. */
    JOINED_AT_ONCE = 1 << 16,
    NARROW = 64, /* widths of values that leave half of the threads idle */
};

/* Pieces in which the byte forms of `attended` are made: a column's part of a row, or a run's,
 * which then belongs to one row. */
enum out_piece { PIECE_NONE, PIECE_COLUMN, PIECE_RUN };

/* The argument of all kernels here. */
struct attend {
    struct moe_gpu_attention a; /* without its pointers to the host */
    bool fresh;                 /* one row, of `heads`; queries come from there */
    struct moe_gpu_heads heads;
    enum out_piece piece; /* of byte forms that are made with attention */
    struct moe_gpu_act act;
    uint32_t n;           /* rows */
    uint32_t group;       /* heads that share a kv head */
    uint32_t n_together;  /* rows whose columns are cut into tiles together */
    uint32_t n_chunks;    /* split: of scratch, for each row and head */
    float *out;           /* split: [rows][heads][chunks][value_dim] */
    float *largest, *sum; /* split: [rows][heads][chunks] */
    uint32_t *arrivals;   /* split: of each row's tiles; NULL: chunks are joined later */
};

/* ---- Joining chunks ---- */

enum join_kind { JOIN_NONE, JOIN_FIRST, JOIN_ABOVE, JOIN_BELOW };

/* How a chunk joins those before: it is the first, its `largest` is larger, or it is not. */
struct join {
    int kind;
    float factor;
};

static __device__ __forceinline__ struct join join_of(float before, float largest)
{
    if (largest > before)
        return {JOIN_ABOVE, moe_math_exp(before - largest)};
    return {JOIN_BELOW, moe_math_exp(largest - before)};
}

/* A sum, or a dimension of an output. Without branches: chains of these are long. */
static __device__ __forceinline__ float joined(struct join j, float before, float v)
{
    bool above = j.kind == JOIN_ABOVE;
    float sum = fmaf(above ? before : v, j.factor, above ? v : before);
    return j.kind == JOIN_NONE ? before : j.kind == JOIN_FIRST ? v : sum;
}

/* ---- Tiles ---- */

/* One row's head in a tile. */
struct column {
    const float *query;
    float *out;          /* [value_dim] joined */
    uint32_t begin, end; /* positions it sees; none: not a column of this run */
    uint32_t row, head;
    bool empty; /* nothing has been joined yet */
    float largest, sum;
    struct join join; /* for the current chunk */
};

/* T columns, with Q dimensions of their queries. */
template <int T, int Q = QUERY_PART> struct alignas(16) tile {
    enum {
        GAP = T > MAX_COLUMNS ? 4 : 0, /* spreads over banks what a warp reads or writes at once */
        QUERIES = T + GAP,
        SCORES = CHUNK + GAP,
    };
    union {
        struct dev_stage stage; /* of norms, before all else */
        struct {
            float query[Q * QUERIES]; /* [dimension][column] */
            float scores[T * SCORES]; /* [column][place in chunk], then e to these */
        };
        struct { /* of split chunks, after all else */
            struct join joins[T > MAX_COLUMNS ? 1 : T][JOINED];
            float sums[T > MAX_COLUMNS ? 1 : T][JOINED];
        };
    };
    struct column columns[T];
    uint32_t begin, end;        /* positions that any column sees */
    uint32_t sequence, kv_head; /* whose cells it reads */
};

/* Positions that a row sees. */
static __device__ __forceinline__ void seen_by(const struct moe_gpu_attention &a, uint32_t position,
                                               uint32_t *begin, uint32_t *end)
{
    *end = position + 1;
    *begin = a.window && *end > a.window ? *end - a.window : 0;
}

/* Columns of a tile that belong to one sequence and are computed together. */
struct run {
    uint32_t from, to;
};

static __device__ __forceinline__ void set_column(const struct attend &s, struct column *col,
                                                  uint32_t row, uint32_t head, uint32_t position)
{
    const struct moe_gpu_attention &a = s.a;
    col->row = row;
    col->head = head;
    col->query = a.queries + row * a.queries_stride + (uint64_t)head * a.kv.key_dim;
    col->out = a.attended + row * a.attended_stride + (uint64_t)head * a.kv.value_dim;
    seen_by(a, position, &col->begin, &col->end);
}

/* Opens a tile of one row, whose columns are heads of the kv head from number `first` on. */
template <int T, int Q>
static __device__ __forceinline__ struct run open_row(const struct attend &s,
                                                      struct tile<T, Q> *tile, uint32_t row,
                                                      uint32_t first, uint32_t kv_head)
{
    const struct moe_gpu_row at = s.a.rows[row];
    uint32_t n = min(s.group - first, (uint32_t)T), t = threadIdx.x;
    if (t < T) {
        struct column *col = &tile->columns[t];
        *col = {};
        col->empty = true;
        if (t < n)
            set_column(s, col, row, kv_head * s.group + first + t, at.position);
    }
    if (t == 0) {
        seen_by(s.a, at.position, &tile->begin, &tile->end);
        tile->sequence = at.sequence;
        tile->kv_head = kv_head;
    }
    __syncthreads();
    return {0, n};
}

/* Opens the run that begins with column `from` of the tile; column t of it is number first + t
 * among those of the rows and the kv head. */
template <int T, int Q>
static __device__ struct run open_run(const struct attend &s, struct tile<T, Q> *tile,
                                      uint32_t first, uint32_t kv_head, uint32_t from)
{
    const struct moe_gpu_attention &a = s.a;
    uint32_t left = s.n_together * s.group - first, n = left < T ? left : T, t = threadIdx.x;
    uint32_t sequence = a.rows[(first + from) / s.group].sequence;
    struct run run = {from, from + 1};
    while (run.to < n && a.rows[(first + run.to) / s.group].sequence == sequence)
        run.to++;
    __syncthreads(); /* the last run is done */
    if (t < T) {
        struct column *col = &tile->columns[t];
        *col = {};
        col->empty = true;
        uint32_t row = (first + t) / s.group, head = kv_head * s.group + (first + t) % s.group;
        if (run.from <= t && t < run.to)
            set_column(s, col, row, head, a.rows[row].position);
    }
    __syncthreads();
    if (t == 0) {
        tile->sequence = sequence;
        tile->kv_head = kv_head;
        tile->begin = UINT32_MAX;
        tile->end = 0;
        for (uint32_t i = run.from; i < run.to; i++) {
            tile->begin = min(tile->begin, tile->columns[i].begin);
            tile->end = max(tile->end, tile->columns[i].end);
        }
    }
    __syncthreads();
    return run;
}

/* Finishes the row's queries of a run's columns in the tile and, if `stores`, writes its key and
 * value to the cache. Other blocks may do the same: their inputs stay unchanged. */
template <int T, int Q>
static __device__ __forceinline__ void finish_fresh(const struct attend &s, struct tile<T, Q> *tile,
                                                    uint32_t kv_head, bool stores)
{
    const struct moe_gpu_heads &h = s.heads;
    float r_queries = dev_norm_heads(h, DEV_QUERIES, 0, &tile->stage);
    float r_keys = stores ? dev_norm_heads(h, DEV_KEYS, 0, &tile->stage) : 0;
    __syncthreads(); /* the stage is where queries go */
    for (int item = threadIdx.x / DEV_WARP; item < (stores ? T + 2 : T);
         item += blockDim.x / DEV_WARP) {
        int kind = item < T ? DEV_QUERIES : item == T ? DEV_KEYS : DEV_VALUES;
        uint32_t head = kind == DEV_QUERIES ? tile->columns[item].head : kv_head;
        uint32_t position = h.rows[0].position;
        uint64_t cells = dev_kv_head(h.kv, h.layer, h.rows[0].sequence, position, kv_head);
        auto put = [&](uint32_t d, float v) {
            if (kind == DEV_QUERIES)
                tile->query[d * T + item] = v * s.a.scale;
            else if (kind == DEV_KEYS)
                dev_put_key(h.kv, cells, position, d, v);
            else
                dev_put_value(h.kv, cells, position, d, v);
        };
        /* Columns that fill up the tile have a head, too; their values are never read. */
        dev_finish_head(h, kind, 0, head, kind == DEV_KEYS ? r_keys : r_queries, put);
    }
    __syncthreads();
}

/* ---- One chunk ---- */

/* Computes scores of the positions base + [begin, end), for all columns. */
template <int T, int K>
static __device__ __forceinline__ void score(const struct attend &s, struct tile<T> *tile,
                                             uint32_t base, uint32_t begin, uint32_t end)
{
    const struct moe_gpu_kv &kv = s.a.kv;
    uint64_t head = dev_kv_head(kv, s.a.layer, tile->sequence, base, tile->kv_head);
    dev_keys<K> keys[EACH];
    float sum[EACH][T] = {};
    bool any = false;
    for (int i = 0; i < EACH; i++) {
        uint32_t p = threadIdx.x + i * ATTEND_THREADS;
        any = any || (p >= begin && p < end);
        /* Positions whose scores are not read may use any existing key. */
        p = p < begin || p >= end ? begin : p;
        keys[i].open(kv, head, p);
    }
    for (uint32_t first = 0; first < kv.key_dim; first += QUERY_PART) {
        uint32_t n = min(kv.key_dim - first, (uint32_t)QUERY_PART);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < n * T && !s.fresh; i += ATTEND_THREADS) {
            const float *q = tile->columns[i % T].query;
            tile->query[i] = q ? q[first + i / T] * s.a.scale : 0.0f;
        }
        __syncthreads();
        if (any) {
#pragma unroll 4
            for (uint32_t c = 0; c < n; c++)
                for (int i = 0; i < EACH; i++) {
                    float k = keys[i].template read<1>(first + c).number(0);
                    for (int t = 0; t < T; t++)
                        sum[i][t] = fmaf(k, tile->query[c * T + t], sum[i][t]);
                }
        }
    }
    for (int i = 0; i < EACH; i++) {
        uint32_t p = threadIdx.x + i * ATTEND_THREADS;
        for (int t = 0; t < T && p >= begin && p < end; t++)
            tile->scores[t * CHUNK + p] = sum[i][t];
    }
    __syncthreads();
}

/* Turns each column's scores into e to these, with their sum, and plans how the chunk is joined. */
template <int T, int Q>
static __device__ __forceinline__ void share(struct tile<T, Q> *tile, uint32_t base)
{
    uint32_t lane = threadIdx.x % DEV_WARP;
    for (int t = threadIdx.x / DEV_WARP; t < T; t += blockDim.x / DEV_WARP) {
        struct column *col = &tile->columns[t];
        float *x = tile->scores + t * tile->SCORES, largest = -INFINITY, sum = 0;
        uint32_t begin = max(col->begin, base), end = min(col->end, base + CHUNK);
        auto sees = [&](uint32_t p) { return base + p >= begin && base + p < end; };
        for (uint32_t p = lane; p < CHUNK; p += DEV_WARP)
            largest = sees(p) && x[p] > largest ? x[p] : largest;
        largest = dev_warp_max(largest);
        for (uint32_t p = lane; p < CHUNK; p += DEV_WARP)
            x[p] = sees(p) ? moe_math_exp(x[p] - largest) : 0.0f;
        __syncwarp();
        for (uint32_t p = lane; lane < MOE_LANES && p < CHUNK; p += MOE_LANES)
            sum += x[p];
        sum = dev_warp_join(sum);
        if (lane == 0) {
            col->join = {JOIN_NONE, 0};
            if (begin < end) {
                col->join = col->empty ? join{JOIN_FIRST, 0} : join_of(col->largest, largest);
                col->sum = joined(col->join, col->sum, sum);
                if (col->join.kind != JOIN_BELOW)
                    col->largest = largest;
                col->empty = false;
            }
        }
    }
    __syncthreads();
}

/* Joins the chunk's outputs to those of the columns. */
template <int T, int H, int V>
static __device__ __forceinline__ void blend(const struct attend &s, struct tile<T> *tile,
                                             uint32_t base, uint32_t begin, uint32_t end)
{
    const struct moe_gpu_kv &kv = s.a.kv;
    uint64_t head = dev_kv_head(kv, s.a.layer, tile->sequence, base, tile->kv_head);
    begin -= begin % 4; /* e is 0 in front */
    for (uint32_t item = threadIdx.x; item < kv.value_dim * (T / H); item += ATTEND_THREADS) {
        uint32_t d = item % kv.value_dim, first = item / kv.value_dim * H, p = begin;
        const float *e = tile->scores + first * CHUNK;
        float o[H] = {};
        dev_values<V> v;
        v.open(kv, head, d);
#pragma unroll 2
        for (; p + 4 <= end; p += 4) {
            float x[4];
            for (int i = 0; i < 4; i++)
                x[i] = v.template read<1>(p + i).number(0);
            for (int t = 0; t < H; t++) {
                float4 by = *(const float4 *)(e + t * CHUNK + p);
                o[t] = fmaf(x[0], by.x, o[t]);
                o[t] = fmaf(x[1], by.y, o[t]);
                o[t] = fmaf(x[2], by.z, o[t]);
                o[t] = fmaf(x[3], by.w, o[t]);
            }
        }
        for (; p < end; p++) {
            float x = v.template read<1>(p).number(0);
            for (int t = 0; t < H; t++)
                o[t] = fmaf(x, e[t * CHUNK + p], o[t]);
        }
        for (int t = 0; t < H; t++) {
            const struct column *col = &tile->columns[first + t];
            if (col->join.kind != JOIN_NONE)
                col->out[d] =
                    joined(col->join, col->join.kind == JOIN_FIRST ? 0 : col->out[d], o[t]);
        }
    }
}

/* Computes the chunk that begins at position `base`; some column sees some of it. */
template <int T, int H, int K, int V>
static __device__ __forceinline__ void attend_chunk(const struct attend &s, struct tile<T> *tile,
                                                    uint32_t base)
{
    uint32_t begin = max(tile->begin, base) - base, end = min(tile->end - base, (uint32_t)CHUNK);
    score<T, K>(s, tile, base, begin, end);
    share<T>(tile, base);
    blend<T, H, V>(s, tile, base, begin, end);
}

/* ---- One chunk of one row ---- */

/* Calls take(i, at(i)) for i from 0 to n - 1 in order; what at(i) reads is requested AHEAD to 2 *
 * AHEAD - 1 items before it is needed. */
template <int AHEAD, typename Item, typename At, typename Take>
static __device__ __forceinline__ void read_ahead(uint32_t n, At at, Take take)
{
    Item now[AHEAD], next[AHEAD];
    uint32_t first = 0;
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if ((uint32_t)i < n)
            next[i] = at(i);
#pragma unroll 1
    for (; first + AHEAD <= n; first += AHEAD) {
        uint32_t after = first + AHEAD;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            now[i] = next[i];
        if (after + AHEAD <= n) {
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                next[i] = at(after + i);
        } else {
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (after + i < n)
                    next[i] = at(after + i);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            take(first + i, now[i]);
    }
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (first + i < n)
            take(first + i, next[i]);
}

/* Prefetches the values at the positions base + [begin, end): lines of memory with number `mine`
 * modulo `of`; other tiles of the same kv head fetch theirs. */
template <int V>
static __device__ __forceinline__ void bring_values(const struct attend &s, uint64_t head,
                                                    uint32_t begin, uint32_t end, uint32_t mine,
                                                    uint32_t of)
{
    const uint32_t LINE = 128, bytes = V == MOE_LAYOUT_Q4 ? 8 : dev_row_bytes<V>();
    const struct moe_gpu_kv &kv = s.a.kv;
    const uint8_t *v = dev_kv_values(kv, head) + begin * bytes;
    uint32_t lines = ((end - begin) * bytes + LINE - 1) / LINE, n = kv.value_padded / 16 * lines;
    for (uint32_t i = threadIdx.x * of + mine; i < n; i += ROW_THREADS * of) {
        const uint8_t *line =
            v + (uint64_t)(i / lines) * kv.block_positions * bytes + (uint64_t)(i % lines) * LINE;
#ifdef __CUDA_ARCH__
        asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
#else
        (void)line;
#endif
    }
}

/* Scores of the positions base + [begin, end): a thread has T products, of P positions with C
 * columns. */
template <int T, int K>
static __device__ __forceinline__ void score_row(const struct attend &s,
                                                 struct tile<T, ROW_QUERY_PART> *tile,
                                                 uint64_t head, uint32_t begin, uint32_t end)
{
    const int P = T < 4 ? 1 : 2, C = T / P, AHEAD = dev_has_scales(K) ? 8 : T < 4 ? 32 : 16;
    static_assert(CHUNK / P * (T / C) == ROW_THREADS, "an item for each thread");
    typedef dev_cells<K, P> some;
    typedef together<float, C> queries;
    const struct moe_gpu_kv &kv = s.a.kv;
    uint32_t p = threadIdx.x % (CHUNK / P) * P, column = threadIdx.x / (CHUNK / P) * C;
    bool any = p < end && p + P > begin;
    float sum[P][C] = {};
    dev_keys<K> keys;
    keys.open(kv, head, p);
    for (uint32_t first = 0; first < kv.key_dim; first += ROW_QUERY_PART) {
        uint32_t n = min(kv.key_dim - first, (uint32_t)ROW_QUERY_PART);
        if (!s.fresh) {
            __syncthreads();
#pragma unroll 4
            for (uint32_t i = threadIdx.x; i < n * T; i += ROW_THREADS) {
                const float *q = tile->columns[i % T].query;
                tile->query[i] = q ? q[first + i / T] * s.a.scale : 0.0f;
            }
            __syncthreads();
        }
        auto at = [&](uint32_t c) { return keys.template read<P>(first + c); };
        auto take = [&](uint32_t c, const some &k) {
            const queries q = *(const queries *)(tile->query + c * T + column);
#pragma unroll
            for (int i = 0; i < P; i++)
#pragma unroll
                for (int t = 0; t < C; t++)
                    sum[i][t] = fmaf(k.number(i), q.v[t], sum[i][t]);
        };
        if (any)
            read_ahead<AHEAD, some>(n, at, take);
    }
#pragma unroll
    for (int i = 0; i < P; i++)
#pragma unroll
        for (int t = 0; t < C; t++)
            if (p + i >= begin && p + i < end)
                tile->scores[(column + t) * CHUNK + p + i] = sum[i][t];
    __syncthreads();
}

/* The chunk's outputs: a thread has dimensions, each of H columns. */
template <int T, int H, int V>
static __device__ __forceinline__ void blend_row(const struct attend &s,
                                                 const struct tile<T, ROW_QUERY_PART> *tile,
                                                 uint64_t head, uint32_t begin, uint32_t end)
{
    const int AHEAD = dev_has_scales(V) ? 2 : T < 4 ? 8 : 4; /* of four positions each */
    struct four {
        dev_cells<V, 1> v[4];
    };
    const struct moe_gpu_kv &kv = s.a.kv;
    begin -= begin % 4; /* e is 0 in front */
    uint32_t n = end - begin;
    for (uint32_t item = threadIdx.x; item < kv.value_dim * (T / H); item += ROW_THREADS) {
        uint32_t d = item % kv.value_dim, first = item / kv.value_dim * H;
        const float *e = tile->scores + first * CHUNK + begin;
        float o[H] = {};
        dev_values<V> v;
        v.open(kv, head, d);
        auto at = [&](uint32_t i) {
            const uint32_t p = begin + i * 4;
            return four{v.template read<1>(p), v.template read<1>(p + 1), v.template read<1>(p + 2),
                        v.template read<1>(p + 3)};
        };
        auto take = [&](uint32_t i, const four &x) {
#pragma unroll
            for (int t = 0; t < H; t++) {
                float4 by = *(const float4 *)(e + t * CHUNK + i * 4);
                o[t] = fmaf(x.v[0].number(0), by.x, o[t]);
                o[t] = fmaf(x.v[1].number(0), by.y, o[t]);
                o[t] = fmaf(x.v[2].number(0), by.z, o[t]);
                o[t] = fmaf(x.v[3].number(0), by.w, o[t]);
            }
        };
        read_ahead<AHEAD, four>(n / 4, at, take);
        for (uint32_t p = n - n % 4; p < n; p++) {
            float x = v.template read<1>(begin + p).number(0);
            for (int t = 0; t < H; t++)
                o[t] = fmaf(x, e[t * CHUNK + p], o[t]);
        }
#pragma unroll
        for (int t = 0; t < H; t++)
            if (tile->columns[first + t].out)
                tile->columns[first + t].out[d] = o[t];
    }
}

/* The only chunk of a tile; it begins at position `base`, and its row sees some of it. */
template <int T, int K, int V>
static __device__ __forceinline__ void attend_row(const struct attend &s,
                                                  struct tile<T, ROW_QUERY_PART> *tile,
                                                  uint32_t base, uint64_t head)
{
    uint32_t begin = max(tile->begin, base) - base, end = min(tile->end - base, (uint32_t)CHUNK);
    score_row<T, K>(s, tile, head, begin, end);
    share(tile, base);
    if (s.a.kv.value_dim < ROW_THREADS && T > 1)
        blend_row<T, (T + 1) / 2, V>(s, tile, head, begin, end);
    else
        blend_row<T, T, V>(s, tile, head, begin, end);
}

/* ---- One chunk of a prompt's tile ---- */

/* A thread's place in the block: 32 groups of positions or dimensions, 4 of columns; eight
 * neighbours share the columns. */
struct wide {
    uint32_t group, columns;
};

static __device__ __forceinline__ struct wide wide_place(void)
{
    uint32_t lane = threadIdx.x % DEV_WARP;
    return {threadIdx.x / DEV_WARP * 8 + lane % 8, lane / 8};
}

/* Computes scores of the chunk's positions, for all columns; those outside of [begin, end) are
 * arbitrary. */
template <int K, int T, int Q>
static __device__ __forceinline__ void score_wide(const struct attend &s, struct tile<T, Q> *tile,
                                                  uint64_t head, uint32_t begin, uint32_t end)
{
    typedef dev_cells<K, WIDE> some;
    static_assert(CHUNK / WIDE * (T / WIDE) == ATTEND_THREADS, "an item for each thread");
    const struct moe_gpu_kv &kv = s.a.kv;
    const struct wide at = wide_place();
    uint32_t p = at.group * WIDE, column = at.columns * WIDE;
    dev_keys<K> keys;
    keys.open(kv, head, p);
    float sum[WIDE][WIDE] = {}; /* [column][position] */
    for (uint32_t first = 0; first < kv.key_dim; first += Q) {
        uint32_t n = min(kv.key_dim - first, (uint32_t)Q);
        __syncthreads();
#pragma unroll 4
        for (uint32_t i = threadIdx.x; i < Q * T; i += ATTEND_THREADS) {
            uint32_t c = i % Q, t = i / Q;
            const float *q = tile->columns[t].query;
            if (c < n)
                tile->query[c * tile->QUERIES + t] = q ? q[first + c] * s.a.scale : 0.0f;
        }
        __syncthreads();
        auto read = [&](uint32_t c) { return keys.template read<WIDE>(first + c); };
        auto take = [&](uint32_t c, const some &k) {
            float q[WIDE];
#pragma unroll
            for (int t = 0; t < WIDE; t += 4) {
                float4 four = *(const float4 *)(tile->query + c * tile->QUERIES + column + t);
                q[t] = four.x, q[t + 1] = four.y, q[t + 2] = four.z, q[t + 3] = four.w;
            }
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                float x = k.number(i);
#pragma unroll
                for (int t = 0; t < WIDE; t++)
                    sum[t][i] = fmaf(x, q[t], sum[t][i]);
            }
        };
        if (p < end && p + WIDE > begin)
            read_ahead<K == MOE_LAYOUT_F16 ? 2 : 1, some>(n, read, take);
    }
#pragma unroll
    for (int t = 0; t < WIDE; t++)
#pragma unroll
        for (int i = 0; i < WIDE; i += 4)
            *(float4 *)(tile->scores + (column + t) * tile->SCORES + p + i) =
                make_float4(sum[t][i], sum[t][i + 1], sum[t][i + 2], sum[t][i + 3]);
    __syncthreads();
}

/* Joins the chunk's outputs to those of the columns; a thread has every fourth column. */
template <int W, int V, int T, int Q>
static __device__ __forceinline__ void blend_wide(const struct attend &s, struct tile<T, Q> *tile,
                                                  uint64_t head, uint32_t begin, uint32_t end)
{
    const int APART = T / WIDE;
    typedef dev_cells<V, W> some;
    struct four {
        some v[4];
    };
    const struct moe_gpu_kv &kv = s.a.kv;
    const struct wide place = wide_place();
    begin -= begin % 4; /* e is 0 in front */
    uint32_t n = end - begin;
    const float *e = tile->scores + place.columns * tile->SCORES + begin;
    for (uint32_t d = place.group * W; d < kv.value_dim; d += ATTEND_THREADS / APART * W) {
        float o[WIDE][W] = {};
        dev_values<V> v;
        v.open(kv, head, d);
        auto read = [&](uint32_t i) {
            four x;
#pragma unroll
            for (int k = 0; k < 4; k++)
                x.v[k] = v.template read<W>(begin + i * 4 + k);
            return x;
        };
        auto take = [&](uint32_t i, const four &x) {
#pragma unroll
            for (int t = 0; t < WIDE; t++) {
                float4 by = *(const float4 *)(e + t * APART * tile->SCORES + i * 4);
#pragma unroll
                for (int w = 0; w < W; w++) {
                    o[t][w] = fmaf(x.v[0].number(w), by.x, o[t][w]);
                    o[t][w] = fmaf(x.v[1].number(w), by.y, o[t][w]);
                    o[t][w] = fmaf(x.v[2].number(w), by.z, o[t][w]);
                    o[t][w] = fmaf(x.v[3].number(w), by.w, o[t][w]);
                }
            }
        };
        read_ahead<1, four>(n / 4, read, take);
        for (uint32_t p = n - n % 4; p < n; p++) {
            some x = v.template read<W>(begin + p);
#pragma unroll
            for (int t = 0; t < WIDE; t++)
#pragma unroll
                for (int w = 0; w < W; w++)
                    o[t][w] = fmaf(x.number((int)w), e[t * APART * tile->SCORES + p], o[t][w]);
        }
#pragma unroll
        for (int t = 0; t < WIDE; t++) {
            const struct column *col = &tile->columns[place.columns + t * APART];
            struct join how = col->join;
            if (how.kind != JOIN_NONE)
#pragma unroll
                for (int w = 0; w < W; w++)
                    col->out[d + w] =
                        joined(how, how.kind == JOIN_FIRST ? 0 : col->out[d + w], o[t][w]);
        }
    }
}

/* The chunk that begins at position `base`; some column sees some of it. */
template <int W, int K, int V, int T, int Q>
static __device__ __forceinline__ void attend_wide(const struct attend &s, struct tile<T, Q> *tile,
                                                   uint32_t base)
{
    uint64_t head = dev_kv_head(s.a.kv, s.a.layer, tile->sequence, base, tile->kv_head);
    uint32_t begin = max(tile->begin, base) - base, end = min(tile->end - base, (uint32_t)CHUNK);
    score_wide<K>(s, tile, head, begin, end);
    share(tile, base);
    blend_wide<W, V>(s, tile, head, begin, end);
}

#endif
