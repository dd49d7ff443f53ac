/* Copies, attention's reading, copies beside computation, launches. Of bench_gpu.c. */
#ifndef TESTS_BENCH_GPU_STREAMS_H
#define TESTS_BENCH_GPU_STREAMS_H

#include "gpu_products.h"

/* ---- The device's limits ---- */

struct inner_copy {
    void *to;
    const void *from;
    uint64_t n_bytes;
};

static void ask_copy(struct bench *b, const void *ctx)
{
    const struct inner_copy *c = ctx;
    moe_gpu_copy(b->gpu, MOE_GPU_COMPUTE, c->to, c->from, c->n_bytes);
}

static void bench_device(struct bench *b)
{
    double link[MAX_RUNS];
    uint64_t link_bytes = b->smoke ? 1 << 16 : 256 << 20;
    struct inner_copy c = {.n_bytes = b->cold_bytes};
    section(b, "device: the limits");
    c.from = take_random(b, c.n_bytes);
    c.to = take(b, c.n_bytes);
    struct moe_bench_figure t = time_work(b, &(struct work){ask_copy, &c, false});
    give_back(b);
    if (!well(b))
        return;
    b->copy_rate = figure(b, (double)copied_bytes(c.n_bytes) / t.median);
    printf("copies inside: %.1f GB/s read and written +-%.0f%% (%llu MiB)\n", b->copy_rate * 1e-9,
           spread(t), (unsigned long long)(c.n_bytes >> 20));
    if (moe_gpu_copy_seconds(0, link_bytes, (int)b->n_runs, link) != 0) {
        moe_fail(&b->err, MOE_ERR_DEVICE, "copies from page-locked memory were not measured");
        return;
    }
    t = moe_bench_summarize(link, b->n_runs);
    printf("from page-locked host memory: %.1f GB/s +-%.0f%%\n",
           figure(b, (double)link_bytes / t.median) * 1e-9, spread(t));
}

/* ---- Attention ---- */

enum { MAX_BLOCKS = 128, MAX_PROMPT = 512 }; /* blocks of the cache, in the longest context */

/* The context's last rows. One in as many layers as make the cache cold again. */
struct reading {
    struct moe_gpu_attention a;
    uint32_t n_rows;
    uint64_t n_layers;
};

static void ask_attention(struct bench *b, const void *ctx)
{
    const struct reading *r = ctx;
    struct moe_gpu_attention a = r->a;
    for (a.layer = 0; a.layer < r->n_layers; a.layer++)
        moe_gpu_attention(b->gpu, &a, r->n_rows);
}

static void attention_at(struct bench *b, const struct attention_shape *s, uint32_t context,
                         uint32_t n_rows, bool f16)
{
    const uint32_t cell = f16 ? sizeof(uint16_t) : sizeof(float);
    const uint64_t n_bytes = attention_bytes(s, context, cell);
    struct reading r = {
        .n_rows = n_rows,
        .n_layers = n_rows > 1 ? 1 : pieces_in_turn(b->cold_bytes, n_bytes),
    };
    struct moe_gpu_attention *a = &r.a;
    uint64_t cells = r.n_layers * s->n_kv_heads * context; /* contexts are multiples of 16 */
    uint32_t n_blocks = (context - 1) / MOE_ATTENTION_CHUNK + 1, blocks[MAX_BLOCKS];
    uint32_t *table = take(b, n_blocks * sizeof *table);
    struct moe_gpu_row of_host[MAX_PROMPT] = {0}, *rows = take(b, n_rows * sizeof *rows);
    for (uint32_t i = 0; i < n_rows; i++)
        of_host[i].position = context - n_rows + i;
    for (uint32_t i = 0; i < n_blocks; i++)
        blocks[i] = i;
    a->kv = (struct moe_gpu_kv){
        .keys = take_random(b, cells * s->key_dim * cell),
        .values = take_random(b, cells * s->value_dim * cell),
        .table = table,
        .keys_as = f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_F32,
        .values_as = f16 ? MOE_LAYOUT_F16 : MOE_LAYOUT_F32,
        .key_bytes = MOE_PANEL_ROWS * s->key_dim * cell,
        .value_bytes = MOE_PANEL_ROWS * s->value_dim * cell,
        .block_positions = context < MOE_ATTENTION_CHUNK ? context : MOE_ATTENTION_CHUNK,
        .per_sequence = n_blocks,
        .key_dim = s->key_dim,
        .value_dim = s->value_dim,
        .value_padded = s->value_dim,
        .n_heads = s->n_kv_heads,
        .n_layers = (uint32_t)r.n_layers,
    };
    a->n_heads = s->n_heads;
    a->queries_stride = s->n_heads * s->key_dim;
    a->attended_stride = s->n_heads * s->value_dim;
    a->queries = take_random(b, n_rows * a->queries_stride * sizeof(float));
    a->attended = take(b, n_rows * a->attended_stride * sizeof(float));
    a->scale = 0.1f;
    a->rows = rows;
    a->end = context;
    a->scratch_bytes = moe_gpu_attention_bytes(s->n_heads, s->value_dim, context);
    a->scratch = take(b, a->scratch_bytes);
    if (well(b))
        moe_gpu_upload(b->gpu, MOE_GPU_COMPUTE, rows, of_host, n_rows * sizeof *rows);
    if (well(b))
        moe_gpu_upload(b->gpu, MOE_GPU_COMPUTE, table, blocks, n_blocks * sizeof *table);
    struct moe_bench_figure t = time_work(b, &(struct work){ask_attention, &r, true});
    double rate = (double)(r.n_layers * n_bytes) / t.median;
    double operations = attention_operations(s, context, n_rows) / t.median;
    if (well(b) && n_rows == 1)
        printf("  context %6u as %s | %8.1f %4.0f%% +-%2.0f%%", context, f16 ? "f16" : "f32",
               figure(b, rate) * 1e-9, figure(b, 100 * rate / b->copy_rate), spread(t));
    else if (well(b))
        printf("  context %6u as %s | %8.2f +-%2.0f%%", context, f16 ? "f16" : "f32",
               figure(b, operations) * 1e-12, spread(t));
    if (well(b))
        printf(" | %8.1f us a layer\n", figure(b, 1e6 * t.median / (double)r.n_layers));
    give_back(b);
}

static void bench_attention(struct bench *b)
{
    static const struct attention_shape real[] = {{"32 heads on 4", 32, 4, 128, 128},
                                                  {"latent, 16 heads", 16, 1, 576, 512}};
    static const struct attention_shape tiny[] = {{"4 heads on 2", 4, 2, 16, 16},
                                                  {"latent, 2 heads", 2, 1, 24, 16}};
    static const uint32_t contexts[] = {1024, 8192, 32768}, short_ones[] = {16, 256, 1024};
    const uint32_t rows[] = {1, b->smoke ? 16 : MAX_PROMPT};
    for (int prompt = 0; prompt < 2; prompt++) {
        section(b, prompt ? "attention of a prompt's last 512 rows, TFLOP/s"
                          : "attention of one row: cache read, GB/s and share of copies' rate");
        for (int i = 0; i < 2; i++) {
            const struct attention_shape *s = b->smoke ? &tiny[i] : &real[i];
            printf("%s, keys of %u, values of %u\n", s->name, s->key_dim, s->value_dim);
            for (int k = 0; k < 6 && well(b); k++)
                attention_at(b, s, b->smoke ? short_ones[k / 2] : contexts[k / 2], rows[prompt],
                             k % 2);
        }
    }
}

/* ---- Copies beside computation ---- */

enum { BAR = 40, ORIGIN = 0, COPY_FROM, COPY_TO, COMPUTE_FROM, COMPUTE_TO };

/* Begins both after one mark; seconds from there to the end of the later. */
static double time_beside(struct bench *b, void *to, const void *from, uint64_t n_bytes,
                          struct moe_gpu_graph *graph)
{
    struct moe_gpu_mark **m = b->marks;
    moe_gpu_mark_set(m[ORIGIN], MOE_GPU_COMPUTE);
    moe_gpu_stream_after(b->gpu, MOE_GPU_COPY, m[ORIGIN]);
    moe_gpu_mark_set(m[COPY_FROM], MOE_GPU_COPY);
    moe_gpu_upload(b->gpu, MOE_GPU_COPY, to, from, n_bytes);
    moe_gpu_mark_set(m[COPY_TO], MOE_GPU_COPY);
    moe_gpu_mark_set(m[COMPUTE_FROM], MOE_GPU_COMPUTE);
    moe_gpu_graph_run(b->gpu, graph);
    moe_gpu_mark_set(m[COMPUTE_TO], MOE_GPU_COMPUTE);
    moe_gpu_finish(b->gpu, &b->err);
    return fmax(moe_gpu_mark_seconds(m[ORIGIN], m[COPY_TO]),
                moe_gpu_mark_seconds(m[ORIGIN], m[COMPUTE_TO]));
}

static double time_upload(struct bench *b, void *to, const void *from, uint64_t n_bytes)
{
    struct moe_gpu_mark **m = b->marks;
    moe_gpu_mark_set(m[COPY_FROM], MOE_GPU_COPY);
    moe_gpu_upload(b->gpu, MOE_GPU_COPY, to, from, n_bytes);
    moe_gpu_mark_set(m[COPY_TO], MOE_GPU_COPY);
    moe_gpu_finish(b->gpu, &b->err);
    return moe_gpu_mark_seconds(m[COPY_FROM], m[COPY_TO]);
}

/* A span on a line as long as `all`. */
static void print_span(struct bench *b, const char *name, int from, int to, double all)
{
    double begin = moe_gpu_mark_seconds(b->marks[ORIGIN], b->marks[from]);
    double end = moe_gpu_mark_seconds(b->marks[ORIGIN], b->marks[to]);
    printf("  %-8s|", name);
    for (int i = 0; i < BAR; i++)
        putchar((i + 0.5) / BAR * all >= begin && (i + 0.5) / BAR * all < end ? '#' : ' ');
    printf("| %.3f to %.3f ms\n", 1e3 * begin, 1e3 * end);
}

/* Each by itself, then both together. */
static void measure_overlap(struct bench *b, const struct work *w, uint64_t n_expert, void *to,
                            const void *from)
{
    double alone[MAX_RUNS] = {0}, both[MAX_RUNS] = {0};
    struct moe_bench_figure compute = time_work(b, w);
    struct moe_gpu_graph *graph = well(b) ? record(b, w) : NULL;
    for (uint32_t i = 0; i <= b->n_runs && well(b); i++) /* the first does not count */
        alone[i ? i - 1 : 0] = time_upload(b, to, from, n_expert);
    for (uint32_t i = 0; i <= b->n_runs && well(b); i++)
        both[i ? i - 1 : 0] = time_beside(b, to, from, n_expert, graph);
    if (well(b)) {
        double last = both[b->n_runs - 1];
        struct moe_bench_figure copy = moe_bench_summarize(alone, b->n_runs);
        struct moe_bench_figure together = moe_bench_summarize(both, b->n_runs);
        double longer = fmax(copy.median, compute.median), sum = copy.median + compute.median;
        printf("upload of %.1f MB %.3f ms +-%.0f%%, computation %.3f ms +-%.0f%%; together %.3f ms "
               "+-%.0f%%: %.2f of the longer, %.2f of the sum; %.0f%% of the shorter hidden\n",
               (double)n_expert * 1e-6, 1e3 * figure(b, copy.median), spread(copy),
               1e3 * figure(b, compute.median), spread(compute), 1e3 * figure(b, together.median),
               spread(together), figure(b, together.median / longer),
               figure(b, together.median / sum),
               100 * hidden_share(copy.median, compute.median, together.median));
        print_span(b, "copy", COPY_FROM, COPY_TO, last);
        print_span(b, "compute", COMPUTE_FROM, COMPUTE_TO, last);
    }
    moe_gpu_graph_close(graph);
}

static void bench_overlap(struct bench *b)
{
    const struct product_shape shape = b->smoke ? (struct product_shape){"", 16, 24, 128}
                                                : (struct product_shape){"", 16, 1408, 2048};
    struct products p = {.shape = &shape, .layout = {MOE_LAYOUT_Q4, 64}, .n = 1};
    struct product_shape expert = {"", 3, shape.rows, shape.cols};
    uint64_t n_expert = product_bytes(&expert, p.layout),
             n_launch = product_bytes(&shape, p.layout);
    section(b, "overlap: an expert's upload on the copy stream beside products on the other");
    uint64_t n_pages = moe_round_up(n_expert, 4096), most = b->cold_bytes;
    uint8_t *host = moe_pages_alloc(n_pages, &b->err);
    bool pinned = host && moe_gpu_pin(b->gpu, host, n_pages, &b->err) == MOE_OK;
    void *to = pinned ? take(b, n_expert) : NULL;
    p.weights = to ? take_random(b, most > n_launch ? most : n_launch) : NULL;
    p.in = take_inputs(b, 1, shape.cols);
    p.out = take_results(b, &shape, 1);
    if (well(b)) {
        /* As many launches as take about as long as the upload. */
        p.n_launches = 1;
        struct work w = {ask_products, &p, true};
        double copy = time_upload(b, to, host, n_expert), launch = time_work(b, &w).median;
        uint64_t at_most = pieces_in_turn(most, n_launch);
        p.n_launches = launch > 0 && copy > launch ? (uint64_t)(copy / launch + 0.5) : 1;
        p.n_launches = p.n_launches > at_most ? at_most : p.n_launches;
        measure_overlap(b, &w, n_expert, to, host);
    }
    give_back(b);
    if (pinned)
        moe_gpu_unpin(b->gpu, host);
    moe_pages_free(host, n_pages);
}

/* ---- Launches ---- */

/* As many norms of one row as there are launches. */
struct norms {
    struct moe_gpu_norm norm;
    uint32_t n;
};

static void ask_norms(struct bench *b, const void *ctx)
{
    const struct norms *s = ctx;
    for (uint32_t i = 0; i < s->n; i++)
        moe_gpu_add_norm(b->gpu, &s->norm, 1);
}

static void bench_launches(struct bench *b)
{
    enum { COLS = 64 };
    struct norms s = {.n = b->smoke ? 10 : 400};
    float *h = take_random(b, COLS * sizeof *h);
    s.norm = (struct moe_gpu_norm){
        .h = h,
        .h_stride = COLS,
        .cols = COLS,
        .weights = take(b, COLS * sizeof *h),
        .eps = 1e-6f,
        .out = {.cols = COLS, .x = take(b, COLS * sizeof *h), .x_stride = COLS},
    };
    section(b, "launches: kernels with next to nothing to do");
    struct moe_bench_figure plain = time_work(b, &(struct work){ask_norms, &s, false});
    struct moe_bench_figure graph = time_work(b, &(struct work){ask_norms, &s, true});
    if (well(b))
        printf("%u in a row: %.2f us each +-%.0f%%, recorded as a graph %.2f us each +-%.0f%%, "
               "%.2f times as fast\n",
               s.n, 1e6 * figure(b, plain.median) / s.n, spread(plain),
               1e6 * figure(b, graph.median) / s.n, spread(graph),
               figure(b, plain.median / graph.median));
    give_back(b);
}

#endif
