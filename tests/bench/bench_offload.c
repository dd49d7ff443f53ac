/*
 * Experts that do not fit: how fast a model runs with them behind a cache, or behind a plain
 * mapping of the pack, which is the idea most peers rely on.
 *
 *     bench_offload PACK TEXT[,TEXT]... [option=value]...
 *         mode=lru|lfu|arc|random|fifo|ondemand|resident|mmap|mmap-random|mmap-willneed
 *         memory=SIZE        bound of the process (cached modes)
 *         demand=X           expert cache of X times what one token visits
 *         loads=X            a link on which one expert takes X times one layer's computation
 *         layer=SECONDS      that computation, where it has been measured (mode=resident prints it)
 *         ram=1              serve loads from a copy in memory
 *         warm=16 tokens=32  tokens before and while measuring, fed one by one; of several texts
 *                            each gives an equal part of both
 *         depth=N piece=SIZE reads in flight, bytes of each (default: the loader's)
 *         rate=SIZE          bytes to read for the disk's bandwidth, right before and right after
 *
 * Prints one line: mode, cache, link, tokens/s, hit rate, bytes per token, share of the time
 * stalled, GB/s while anything was being read; with rate= also, in a second line, what the disk
 * gives by the same reads in the same run, which share of that arrived while computation was
 * stalled, and CPU time. For loads=X a layer's computation is measured first, with all experts in
 * memory.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "engine/engine.h"
#include "kern/kern.h"

#include "bench_reads.h"

struct bench {
    const char *pack, *text, *mode;
    uint64_t memory, warm, tokens, rate, depth, piece;
    double demand, loads, layer;
    bool ram;
    struct moe_ids ids;
};

/* ---- Experts behind a mapping ---- */

struct mapped {
    struct moe_experts base;
    const struct moe_pack *pack;
    const uint8_t *file;
    uint64_t bytes;
    bool will_need;
    const struct moe_layer_request *request;
    uint32_t n_given;
};

static int begin(struct moe_experts *self, const struct moe_layer_request *request,
                 struct moe_phase_stats *phase, struct moe_err *err)
{
    struct mapped *m = (struct mapped *)self;
    m->request = request;
    m->n_given = 0;
    for (uint32_t i = 0; m->will_need && i < request->n_entries; i++) {
        const struct moe_expert_extent *x =
            moe_pack_expert(m->pack, request->layer, request->needs[i].expert, 0);
        const struct moe_extent *last = &x->segments[1];
        uint64_t from = x->segments[0].offset, to = last->offset + last->stored_bytes;
        madvise((void *)(uintptr_t)(m->file + from), to - from, MADV_WILLNEED);
    }
    return MOE_OK;
}

static int next(struct moe_experts *self, uint32_t max, uint32_t *which,
                struct moe_expert_view *views, uint32_t *n, struct moe_err *err)
{
    struct mapped *m = (struct mapped *)self;
    for (*n = 0; *n < max && m->n_given < m->request->n_entries; ++*n, m->n_given++) {
        uint32_t expert = m->request->needs[m->n_given].expert;
        const struct moe_expert_extent *x = moe_pack_expert(m->pack, m->request->layer, expert, 0);
        const struct moe_expert_class *class_ = moe_pack_class_at(m->pack, x->class_index);
        const uint8_t *segments[MOE_PACK_MAX_SEGMENTS];
        for (uint32_t i = 0; i < class_->n_segments; i++)
            segments[i] = m->file + x->segments[i].offset;
        which[*n] = m->n_given;
        views[*n].layer = m->request->layer;
        views[*n].expert = expert;
        moe_expert_view_set(&views[*n], class_, segments);
    }
    return MOE_OK;
}

static void release(struct moe_experts *self, uint32_t which)
{
}

static void close_mapped(struct moe_experts *self)
{
    struct mapped *m = (struct mapped *)self;
    munmap((void *)(uintptr_t)m->file, m->bytes);
    free(m);
}

static const struct moe_experts_ops mapped_ops = {
    .name = "mmap",
    .begin = begin,
    .next = next,
    .release = release,
    .close = close_mapped,
};

static int open_mapped(struct moe_experts **out, const struct moe_pack *pack, const char *mode,
                       struct moe_err *err)
{
    struct mapped *m = moe_alloc(1, sizeof *m, err);
    if (!m)
        return MOE_ERR_MEMORY;
    m->base.ops = &mapped_ops;
    m->pack = pack;
    m->bytes = moe_pack_file_bytes(pack);
    m->will_need = strcmp(mode, "mmap-willneed") == 0;
    m->file = mmap(NULL, m->bytes, PROT_READ, MAP_SHARED, moe_pack_fd(pack), 0);
    if (m->file == MAP_FAILED)
        return moe_fail(err, MOE_ERR_IO, "%s: cannot be mapped", moe_pack_path(pack));
    if (strcmp(mode, "mmap-random") == 0)
        madvise((void *)(uintptr_t)m->file, m->bytes, MADV_RANDOM);
    *out = &m->base;
    return MOE_OK;
}

/* ---- Measuring ---- */

/* Feeds tokens [first, first + n) one by one; seconds they took. */
static int feed(struct moe_session *s, const struct bench *b, uint64_t first, uint64_t n,
                double *seconds, struct moe_err *err)
{
    float *logits = moe_alloc(moe_logits_stride(&s->model->config), sizeof *logits, err);
    int status = logits ? MOE_OK : MOE_ERR_MEMORY;
    double started = moe_seconds();
    for (uint64_t i = first; i < first + n && status == MOE_OK; i++) {
        struct moe_row row = {0, (uint32_t)i, b->ids.ids[i], 0};
        status = moe_forward(s, MOE_DECODE, &row, 1, 0, s->model->config.n_layers, NULL, NULL, err);
        if (status == MOE_OK)
            status = moe_logits(s, 0, 1, logits, err);
    }
    *seconds = moe_seconds() - started;
    free(logits);
    return status;
}

/* The token ids of one text. */
static int read_text(const struct moe_model *m, const char *path, struct moe_ids *ids,
                     struct moe_err *err)
{
    struct moe_buf text = {0};
    int status = moe_file_read_all(path, 1 << 28, &text, err);
    if (status == MOE_OK)
        status =
            moe_tokenizer_encode(m->tokenizer, (const char *)text.data, text.size, true, ids, err);
    moe_buf_release(&text);
    return status;
}

/* Parts of all texts: first those to warm up with, then those to measure. */
static int read_ids(struct bench *b, const struct moe_model *m, struct moe_err *err)
{
    char paths[4096], *rest = paths, *path;
    uint64_t n_texts = 1, total = b->warm + b->tokens, n_warm = 0, n_measured = 0;
    snprintf(paths, sizeof paths, "%s", b->text);
    for (const char *c = b->text; *c; c++)
        n_texts += *c == ',';
    b->ids.ids = moe_alloc(total, sizeof *b->ids.ids, err);
    int status = b->ids.ids ? MOE_OK : MOE_ERR_MEMORY;
    for (uint64_t i = 1; status == MOE_OK && (path = strsep(&rest, ",")); i++) {
        struct moe_ids ids = {0};
        uint64_t warm = b->warm * i / n_texts - n_warm;
        uint64_t measured = b->tokens * i / n_texts - n_measured;
        status = read_text(m, path, &ids, err);
        if (status == MOE_OK && ids.n < warm + measured)
            status = moe_fail(err, MOE_ERR_USAGE, "%s: too short", path);
        if (status == MOE_OK) {
            memcpy(b->ids.ids + n_warm, ids.ids, warm * sizeof *ids.ids);
            memcpy(b->ids.ids + b->warm + n_measured, ids.ids + warm, measured * sizeof *ids.ids);
        }
        n_warm += warm;
        n_measured += measured;
        moe_ids_release(&ids);
    }
    b->ids.n = total;
    return status;
}

/* Seconds that one layer takes with its experts in memory. */
static int layer_seconds(struct bench *b, double *out, struct moe_err *err)
{
    struct moe_engine *e = NULL;
    double seconds = 0;
    struct moe_engine_options o = {0};
    moe_strategy_find("resident", &o.strategy);
    o.session.context = (uint32_t)(b->warm + b->tokens);
    o.session.batch = 1;
    int status = moe_engine_open(&e, b->pack, &o, NULL, err);
    if (status == MOE_OK && !b->ids.n)
        status = read_ids(b, e->model, err);
    if (status == MOE_OK)
        status = feed(e->session, b, 0, b->warm, &seconds, err);
    if (status == MOE_OK)
        *out = seconds / (double)b->warm / e->model->config.n_layers;
    moe_engine_close(e);
    return status;
}

static int set_options(struct bench *b, struct moe_engine_options *o, double *layer,
                       struct moe_err *err)
{
    o->session.context = (uint32_t)(b->warm + b->tokens);
    o->session.batch = 1;
    o->memory_bytes = b->memory;
    o->pack_in_ram = b->ram;
    o->queue_depth = (uint32_t)b->depth;
    o->piece_bytes = (uint32_t)b->piece;
    const struct moe_policy_ops *policy = moe_policy_find(b->mode);
    moe_strategy_find(policy ? "lru" : "ondemand", &o->strategy);
    if (policy)
        o->strategy.cache = policy;
    else if (!moe_strategy_find(b->mode, &o->strategy) && strncmp(b->mode, "mmap", 4))
        return moe_fail(err, MOE_ERR_USAGE, "mode '%s' is not known", b->mode);
    if (b->demand == 0 && b->loads == 0)
        return MOE_OK;
    struct moe_model *m = NULL;
    int status = moe_model_open_directory(&m, b->pack, err);
    if (status != MOE_OK)
        return status;
    double slot = (double)moe_cache_slot_bytes(m->pack, 0);
    o->expert_memory_bytes =
        (uint64_t)(b->demand * slot * m->config.n_layers * m->config.top_k + 0.5);
    moe_model_close(m);
    *layer = b->layer;
    if (b->loads > 0 && *layer == 0)
        status = layer_seconds(b, layer, err);
    if (b->loads > 0 && status == MOE_OK)
        o->link_rate = slot / (b->loads * *layer);
    return status;
}

/* What the disk gives for this pack's experts, read as a cache reads them. */
static int disk_rate(const struct bench *b, const struct moe_pack *pack, struct read_figures *out,
                     struct moe_err *err)
{
    uint64_t n = 0;
    struct reads r = {.random = 88172645463325252u};
    uint32_t n_experts = moe_pack_n_experts(pack);
    struct moe_load *loads = moe_alloc(
        (uint64_t)moe_pack_n_layers(pack) * n_experts * MOE_PACK_MAX_SEGMENTS, sizeof *loads, err);
    if (!loads)
        return MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < moe_pack_n_layers(pack) * n_experts; i++) {
        const struct moe_expert_extent *x = moe_pack_expert(pack, i / n_experts, i % n_experts, 0);
        for (uint32_t k = 0; x->present && k < moe_pack_class_at(pack, x->class_index)->n_segments;
             k++) {
            const struct moe_extent *s = &x->segments[k];
            loads[n++] = (struct moe_load){.offset = s->offset, .stored_bytes = s->stored_bytes};
            r.largest = s->stored_bytes > r.largest ? s->stored_bytes : r.largest;
        }
    }
    r.loads = loads;
    r.n_loads = n;
    const struct moe_loader_options o = {.fd = moe_pack_fd(pack),
                                         .path = moe_pack_path(pack),
                                         .queue_depth = (uint32_t)b->depth,
                                         .piece_bytes = (uint32_t)b->piece};
    int status = n ? reads_measure(&r, o, b->rate, out, err)
                   : moe_fail(err, MOE_ERR_USAGE, "%s: no experts", moe_pack_path(pack));
    free(loads);
    return status;
}

static void print_row(const struct bench *b, const struct moe_phase_stats *p, double seconds)
{
    double n = (double)b->tokens, all = (double)p->experts.activations;
    printf("| %-13s | %6.2f | %6.2f | %8.2f | %6.2f%% | %8.1f | %5.1f%% | %5.2f |\n", b->mode,
           b->demand, b->loads, n / seconds,
           all > 0 ? 100 * (double)(p->experts.cache_hits + p->experts.prefetch_hits) / all : 0,
           (double)p->bytes_read / n * 1e-6, 100 * p->stall_seconds / seconds,
           p->read_seconds > 0 ? (double)p->bytes_read / p->read_seconds * 1e-9 : 0);
}

static int run(struct bench *b, struct moe_err *err)
{
    struct moe_engine_options o = {0};
    struct moe_engine *e = NULL;
    struct read_figures before = {0}, after = {0};
    double seconds = 0, layer = 0, cpu = 0;
    int status = set_options(b, &o, &layer, err);
    if (status == MOE_OK)
        status = moe_engine_open(&e, b->pack, &o, NULL, err);
    if (status == MOE_OK && !b->ids.n)
        status = read_ids(b, e->model, err);
    if (status == MOE_OK && strncmp(b->mode, "mmap", 4) == 0) {
        moe_experts_close(e->experts);
        e->experts = NULL;
        status = open_mapped(&e->experts, e->model->pack, b->mode, err);
        e->session->experts = e->experts;
    }
    if (status == MOE_OK)
        status = feed(e->session, b, 0, b->warm, &seconds, err);
    if (status == MOE_OK) {
        e->session->stats = (struct moe_stats){0};
        if (b->rate)
            status = disk_rate(b, e->model->pack, &before, err);
        cpu = cpu_seconds();
        if (status == MOE_OK)
            status = feed(e->session, b, b->warm, b->tokens, &seconds, err);
        cpu = cpu_seconds() - cpu;
        if (b->rate && status == MOE_OK)
            status = disk_rate(b, e->model->pack, &after, err);
    }
    if (status == MOE_OK) {
        const struct moe_phase_stats *p = &e->session->stats.decode;
        double gb = (double)p->bytes_read * 1e-9;
        print_row(b, p, seconds);
        if (b->rate && p->stall_seconds > 0)
            printf("  disk %.2f and %.2f GB/s before and after (%.0f CPU ms/GB); stalled %.3f s, "
                   "%.2f GB/s then: %.0f %% of their mean; CPU %.2f s, %.0f ms/GB\n",
                   before.bytes_per_second * 1e-9, after.bytes_per_second * 1e-9,
                   500 * (before.cpu_per_gb + after.cpu_per_gb), p->stall_seconds,
                   p->stall_bytes / p->stall_seconds * 1e-9,
                   200 * p->stall_bytes / p->stall_seconds /
                       (before.bytes_per_second + after.bytes_per_second),
                   cpu, gb > 0 ? 1e3 * cpu / gb : 0);
    }
    if (status == MOE_OK && strcmp(b->mode, "resident") == 0)
        printf("layer=%.6f\n", seconds / (double)b->tokens / e->model->config.n_layers);
    moe_engine_close(e);
    return status;
}

static bool parse(struct bench *b, const char *arg)
{
    const char *value = strchr(arg, '=');
    size_t n = value ? (size_t)(value++ - arg) : 0;
    uint64_t one = 0;
    if (n == 4 && strncmp(arg, "mode", n) == 0)
        return b->mode = value, true;
    if (n == 6 && strncmp(arg, "memory", n) == 0)
        return moe_parse_bytes(value, &b->memory);
    if (n == 6 && strncmp(arg, "demand", n) == 0)
        return moe_parse_double(value, &b->demand);
    if (n == 5 && strncmp(arg, "loads", n) == 0)
        return moe_parse_double(value, &b->loads);
    if (n == 5 && strncmp(arg, "layer", n) == 0)
        return moe_parse_double(value, &b->layer);
    if (n == 4 && strncmp(arg, "warm", n) == 0)
        return moe_parse_u64(value, &b->warm);
    if (n == 6 && strncmp(arg, "tokens", n) == 0)
        return moe_parse_u64(value, &b->tokens);
    if (n == 4 && strncmp(arg, "rate", n) == 0)
        return moe_parse_bytes(value, &b->rate);
    if (n == 5 && strncmp(arg, "depth", n) == 0)
        return moe_parse_u64(value, &b->depth);
    if (n == 5 && strncmp(arg, "piece", n) == 0)
        return moe_parse_bytes(value, &b->piece);
    if (n == 3 && strncmp(arg, "ram", n) == 0 && moe_parse_u64(value, &one))
        return b->ram = one != 0, true;
    return false;
}

int main(int argc, char **argv)
{
    struct moe_err err = {0};
    struct bench b = {.mode = "lru", .warm = 16, .tokens = 32};
    bool right = argc >= 3;
    for (int i = 3; i < argc && right; i++)
        right = parse(&b, argv[i]);
    if (!right) {
        fprintf(stderr, "usage: bench_offload PACK TEXT [option=value]... (see the file's head)\n");
        return 2;
    }
    b.pack = argv[1];
    b.text = argv[2];
    moe_par_set_threads(moe_cores_available());
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = run(&b, &err);
    moe_ids_release(&b.ids);
    if (status != MOE_OK)
        fprintf(stderr, "bench_offload: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
