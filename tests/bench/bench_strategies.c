/*
 * Strategies side by side, in one run: the same documents, the same memory for experts, the same
 * link, every row in turn, several rounds.
 *
 *     bench_strategies PACK STATISTICS TEXT[,TEXT]... [option=value]...
 *         rows=A,B,...      rows of the table, each with parts that differ: fate+cache=lru
 *                           (default: all that the device can run)
 *         demand=X,X,...    memory for experts: X times what one token visits (default 2)
 *         loads=X,X,...     a link on which one expert takes X times one layer's computation
 *                           (default 1)
 *         speed=X           on the test device, X times as fast as its host, instead of the CPU
 *         prompt=N decode=N tokens of a document that are its prompt, and that are fed one by one
 *                           (default 32 and 32)
 *         seconds=X         decoding time of a row in a cell and round (default 3)
 *         rounds=N          (default 1)
 *
 * One line per row: prefill and decode tokens/s, hit rate, accuracy of predictions where any were
 * made, MB read per decoded token, shares of the decoding time spent waiting for loads, waiting for
 * the host, and predicting; what was computed on the host or ahead, at low precision, left out or
 * replaced, in per cent of the activations; mean nats per decoded token, and how much more they are
 * than the first row's (over the same tokens). The first document of a cell warms the cache and is
 * not counted. Rows that cannot run say why.
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "base/text.h"
#include "kern/kern.h"
#include "run/documents.h"
#include "run/engine.h"

enum { MAX_ROWS = 64, MAX_SIZES = 16, MAX_DOCUMENTS = 4096, MIN_DOCUMENTS = 3, MIN_TOKENS = 8 };

struct bench {
    const char *pack, *statistics_path, *texts, *rows_text;
    double demand[MAX_SIZES], loads[MAX_SIZES], speed, seconds;
    uint32_t n_demand, n_loads;
    uint64_t n_prompt, n_decode, rounds;
    struct moe_statistics *statistics;
    void *copy;
    uint64_t copy_bytes;
    uint32_t *ids; /* [n_documents][n_prompt + n_decode + 1] */
    uint32_t n_documents;
    double token_bytes, slot_bytes, layer_seconds;
    uint32_t n_layers;
};

/* What one row did in a cell, all rounds together. */
struct result {
    char label[128], why[256];
    struct moe_stats stats;
    uint32_t n_documents;
    double
        *nats; /* [MAX_DOCUMENTS] of each document's decoded tokens, the first time; 0: not run */
    double speeds[64];
    uint32_t n_speeds;
};

/* ---- Documents ---------------------------------------------------------------------------------
 */

static int take_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct bench *b = ctx;
    uint64_t length = b->n_prompt + b->n_decode + 1;
    if (n >= length && b->n_documents < MAX_DOCUMENTS)
        memcpy(b->ids + b->n_documents++ * length, ids, length * sizeof *ids);
    return MOE_OK;
}

/* Documents of all texts in turn. */
static int read_documents(struct bench *b, const struct moe_model *m, struct moe_err *err)
{
    char paths[4096], *rest = paths, *path;
    uint64_t length = b->n_prompt + b->n_decode + 1;
    uint32_t first[16] = {0}, n_texts = 0;
    snprintf(paths, sizeof paths, "%s", b->texts);
    uint32_t *all = moe_alloc(MAX_DOCUMENTS * length, sizeof *all, err);
    b->ids = moe_alloc(MAX_DOCUMENTS * length, sizeof *b->ids, err);
    int status = all && b->ids ? MOE_OK : MOE_ERR_MEMORY;
    while (status == MOE_OK && n_texts < 15 && (path = strsep(&rest, ","))) {
        const struct moe_documents d = {.tokenizer = m->tokenizer, .max_tokens = (uint32_t)length};
        status = moe_documents_each(&d, path, take_document, b, err);
        first[++n_texts] = b->n_documents;
    }
    if (status == MOE_OK && b->n_documents < MIN_DOCUMENTS)
        status = moe_fail(err, MOE_ERR_USAGE, "too few documents of %llu tokens",
                          (unsigned long long)length);
    if (status == MOE_OK) {
        uint32_t n = 0;
        memcpy(all, b->ids, b->n_documents * length * sizeof *all);
        for (uint32_t i = 0; n < b->n_documents; i++)
            for (uint32_t t = 0; t < n_texts; t++)
                if (first[t] + i < first[t + 1])
                    memcpy(b->ids + n++ * length, all + (first[t] + i) * length,
                           length * sizeof *all);
    }
    free(all);
    return status;
}

static double cost(const float *logits, uint32_t n, uint32_t target)
{
    float most = logits[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - most);
    return log(sum) - ((double)logits[target] - most);
}

/* One document: its prompt at once, the rest token by token, until decoding has taken `limit`
 * seconds of all documents together. *nats: of what was decoded, or 0 when that was not all. */
static int run_document(struct moe_session *s, const struct bench *b, uint32_t document,
                        double limit, double *nats, struct moe_err *err)
{
    const struct moe_config *c = &s->model->config;
    const uint32_t *ids = b->ids + document * (b->n_prompt + b->n_decode + 1);
    struct moe_row rows[512];
    float *logits = moe_alloc(moe_logits_stride(c), sizeof *logits, err);
    int status = logits ? MOE_OK : MOE_ERR_MEMORY;
    uint32_t n_prompt = (uint32_t)b->n_prompt;
    for (uint32_t i = 0; i < n_prompt; i++)
        rows[i] = (struct moe_row){0, i, ids[i]};
    if (status == MOE_OK)
        status = moe_forward(s, MOE_PREFILL, rows, n_prompt, 0, c->n_layers, NULL, NULL, err);
    *nats = 0;
    for (uint32_t i = n_prompt; i < n_prompt + b->n_decode && status == MOE_OK; i++) {
        if (s->stats.decode.seconds > limit && s->stats.decode.tokens >= MIN_TOKENS) {
            *nats = 0;
            break;
        }
        const struct moe_row row = {0, i, ids[i]};
        status = moe_forward(s, MOE_DECODE, &row, 1, 0, c->n_layers, NULL, NULL, err);
        if (status == MOE_OK) {
            moe_logits(s, 0, 1, logits);
            *nats += cost(logits, c->vocab, ids[i + 1]);
        }
    }
    free(logits);
    return status;
}

/* ---- Rows --------------------------------------------------------------------------------------
 */

/* "fate+cache=lru+degrade=on" */
static int parse_row(const char *text, struct moe_strategy *s, struct moe_err *err)
{
    char buffer[256], *rest = buffer, *item, why[128];
    uint32_t named = 0;
    snprintf(buffer, sizeof buffer, "%s", text);
    item = strsep(&rest, "+");
    if (!moe_strategy_row(item, s))
        return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a row", item);
    while ((item = strsep(&rest, "+"))) {
        enum moe_part part;
        char *value = strchr(item, '=');
        if (value)
            *value++ = 0;
        if (!value || !moe_strategy_part_find(item, &part))
            return moe_fail(err, MOE_ERR_USAGE, "'%s' is not a part", item);
        for (char *p = value; *p; p++) /* commas separate rows */
            *p = *p == ';' ? ',' : *p;
        if (!moe_strategy_set(s, part, value, why))
            return moe_fail(err, MOE_ERR_USAGE, "'%s' %s", value, why);
        named |= 1u << part;
    }
    moe_strategy_drop_idle(s, named);
    return MOE_OK;
}

static struct moe_engine_options engine_options(const struct bench *b, double demand, double loads)
{
    struct moe_engine_options o = {
        .statistics = b->statistics,
        .expert_memory_bytes = (uint64_t)(demand * b->token_bytes + 0.5),
        .pack_copy = b->copy,
        .pack_copy_bytes = b->copy_bytes,
        .link_rate = b->slot_bytes / (loads * b->layer_seconds),
        .session = {.context = (uint32_t)(b->n_prompt + b->n_decode + 1),
                    .batch = (uint32_t)b->n_prompt},
    };
    if (b->speed > 0) {
        o.device = (struct moe_device_choice){true, b->speed, o.link_rate};
        o.link_rate = 0;
    }
    return o;
}

/* One row in one cell, one round. Rounds begin at different documents. */
static int run_row(const struct bench *b, const char *row, double demand, double loads,
                   uint32_t round, struct result *r, struct moe_err *err)
{
    struct moe_engine *e = NULL;
    struct moe_engine_options o = engine_options(b, demand, loads);
    double nats;
    int status = parse_row(row, &o.strategy, err);
    if (status == MOE_OK)
        status = moe_engine_open(&e, b->pack, &o, NULL, err);
    for (uint32_t i = 0; status == MOE_OK; i++) {
        uint32_t document = (uint32_t)(round * 7 + i) % b->n_documents;
        status = run_document(e->session, b, document, b->seconds, &nats, err);
        if (i == 0) /* warms the cache */
            e->session->stats = (struct moe_stats){0};
        else if (status == MOE_OK && r->nats[document] == 0)
            r->nats[document] = nats;
        if (i + 1 >= MIN_DOCUMENTS &&
            (e->session->stats.decode.seconds > b->seconds || i + 1 >= b->n_documents))
            break;
    }
    if (status == MOE_OK) {
        const struct moe_phase_stats *d = &e->session->stats.decode;
        r->speeds[r->n_speeds++ % 64] = (double)d->tokens / d->seconds;
        moe_stats_add(&r->stats, &e->session->stats);
    }
    moe_engine_close(e);
    return status;
}

/* ---- Printing ----------------------------------------------------------------------------------
 */

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* Mean nats over the documents that both ran, of `r` and of the first row. */
static uint32_t compare(const struct bench *b, const struct result *r, const struct result *first,
                        double *nats, double *of_first)
{
    uint32_t n = 0;
    *nats = *of_first = 0;
    for (uint32_t i = 0; i < b->n_documents; i++) {
        if (r->nats[i] == 0 || first->nats[i] == 0)
            continue;
        *nats += r->nats[i];
        *of_first += first->nats[i];
        n++;
    }
    double tokens = (double)n * (double)b->n_decode;
    *nats /= n ? tokens : 1;
    *of_first /= n ? tokens : 1;
    return n;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void print_result(const struct bench *b, double demand, double loads, struct result *r,
                         const struct result *first)
{
    if (r->why[0]) {
        printf("| %-28s | %4g | %4g | cannot run: %s |\n", r->label, demand, loads, r->why);
        return;
    }
    const struct moe_phase_stats *p = &r->stats.prefill, *d = &r->stats.decode;
    const struct moe_counts *n = &d->experts;
    double nats, of_first, all = (double)n->activations;
    compare(b, r, first, &nats, &of_first);
    qsort(r->speeds, r->n_speeds, sizeof *r->speeds, by_value);
    printf("| %-28s | %4g | %4g | %7.1f | %7.2f | %5.1f | ", r->label, demand, loads,
           (double)p->tokens / p->seconds, r->speeds[r->n_speeds / 2],
           percent((double)(n->cache_hits + n->prefetch_hits), all));
    if (n->predicted)
        printf("%5.1f | ", percent((double)n->predicted_right, (double)n->predicted));
    else
        printf("    - | ");
    printf("%6.1f | %5.1f | %5.1f | %5.2f | %5.1f | %5.1f | %5.1f | %5.1f | %6.4f | %+6.2f%% |\n",
           (double)d->bytes_read / (double)d->tokens * 1e-6, percent(d->stall_seconds, d->seconds),
           percent(d->host_seconds, d->seconds), percent(d->predict_seconds, d->seconds),
           percent((double)(n->host_computed + n->precalculated), all),
           percent((double)n->low_precision, all), percent((double)n->skipped, all),
           percent((double)n->substituted, all), nats,
           of_first > 0 ? 100 * (nats / of_first - 1) : 0);
    fflush(stdout);
}

static int run_cell(const struct bench *b, char **rows, uint32_t n_rows, double demand,
                    double loads, struct moe_err *err)
{
    struct result *results = moe_alloc(n_rows, sizeof *results, err);
    int status = results ? MOE_OK : MOE_ERR_MEMORY;
    for (uint32_t i = 0; status == MOE_OK && i < n_rows; i++) {
        snprintf(results[i].label, sizeof results[i].label, "%s", rows[i]);
        results[i].nats = moe_alloc(MAX_DOCUMENTS, sizeof(double), err);
        status = results[i].nats ? MOE_OK : MOE_ERR_MEMORY;
    }
    for (uint32_t round = 0; round < b->rounds && status == MOE_OK; round++)
        for (uint32_t i = 0; i < n_rows; i++) {
            struct moe_err why = {0};
            if (run_row(b, rows[i], demand, loads, round, &results[i], &why) != MOE_OK)
                snprintf(results[i].why, sizeof results[i].why, "%.255s", why.text);
        }
    for (uint32_t i = 0; status == MOE_OK && i < n_rows; i++)
        print_result(b, demand, loads, &results[i], &results[0]);
    for (uint32_t i = 0; results && i < n_rows; i++)
        free(results[i].nats);
    free(results);
    return status;
}

/* ---- The run -----------------------------------------------------------------------------------
 */

/* Seconds that one layer takes for a decoded token with its experts in memory. */
static int measure_layer(struct bench *b, struct moe_err *err)
{
    struct moe_engine *e = NULL;
    struct moe_engine_options o = {
        .session = {.context = (uint32_t)(b->n_prompt + b->n_decode + 1),
                    .batch = (uint32_t)b->n_prompt},
    };
    double nats;
    moe_strategy_row("resident", &o.strategy);
    int status = moe_engine_open(&e, b->pack, &o, NULL, err);
    if (status == MOE_OK)
        status = read_documents(b, e->model, err);
    for (uint32_t i = 0; i < MIN_DOCUMENTS && status == MOE_OK; i++) {
        status = run_document(e->session, b, i, b->seconds, &nats, err);
        if (i == 0)
            e->session->stats = (struct moe_stats){0};
    }
    if (status == MOE_OK) {
        const struct moe_config *c = &e->model->config;
        const struct moe_phase_stats *d = &e->session->stats.decode;
        for (uint32_t i = 0; i < c->n_layers; i++)
            b->n_layers += c->layer_is_moe[i];
        b->slot_bytes = (double)moe_cache_slot_bytes(e->model->pack, 0);
        b->token_bytes = b->slot_bytes * b->n_layers * c->top_k;
        b->layer_seconds = d->seconds / (double)d->tokens / c->n_layers;
        printf("layer %.3f ms, token's demand %.1f MB, %u documents of %llu + %llu tokens\n",
               1e3 * b->layer_seconds, b->token_bytes * 1e-6, b->n_documents,
               (unsigned long long)b->n_prompt, (unsigned long long)b->n_decode);
    }
    moe_engine_close(e);
    return status;
}

static int map_pack(struct bench *b, struct moe_err *err)
{
    int fd = open(b->pack, O_RDONLY | O_CLOEXEC);
    off_t n = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    b->copy =
        n <= 0 ? MAP_FAILED : mmap(NULL, (size_t)n, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (fd >= 0)
        close(fd);
    if (b->copy == MAP_FAILED)
        return moe_fail(err, MOE_ERR_IO, "%s cannot be mapped", b->pack);
    b->copy_bytes = (uint64_t)n;
    return MOE_OK;
}

static int run(struct bench *b, struct moe_err *err)
{
    char text[2048], *rest = text, *rows[MAX_ROWS];
    uint32_t n_rows = 0;
    snprintf(text, sizeof text, "%s", b->rows_text);
    while (n_rows < MAX_ROWS && (rows[n_rows] = strsep(&rest, ",")))
        n_rows++;
    if (b->speed > 0)
        moe_par_set_threads(1); /* the layer as the device computes it */
    int status = moe_statistics_read(&b->statistics, b->statistics_path, err);
    if (status == MOE_OK)
        status = map_pack(b, err);
    if (status == MOE_OK)
        status = measure_layer(b, err);
    printf(
        "| row | demand | loads | prefill | decode | hits %% | predicted %% | MB/token | stall %% "
        "| host %% | predict %% | on host %% | low %% | skipped %% | replaced %% | nats | more "
        "|\n|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t l = 0; l < b->n_loads; l++)
        for (uint32_t d = 0; d < b->n_demand && status == MOE_OK; d++)
            status = run_cell(b, rows, n_rows, b->demand[d], b->loads[l], err);
    return status;
}

static bool parse_list(const char *text, double *values, uint32_t *n)
{
    char buffer[256], *rest = buffer, *item;
    snprintf(buffer, sizeof buffer, "%s", text);
    for (*n = 0; *n < MAX_SIZES && (item = strsep(&rest, ",")); ++*n)
        if (!moe_parse_double(item, &values[*n]) || !(values[*n] > 0))
            return false;
    return *n > 0;
}

static bool parse(struct bench *b, const char *arg)
{
    const char *value = strchr(arg, '=');
    if (!value++)
        return false;
    if (strncmp(arg, "rows=", 5) == 0)
        return b->rows_text = value, true;
    if (strncmp(arg, "demand=", 7) == 0)
        return parse_list(value, b->demand, &b->n_demand);
    if (strncmp(arg, "loads=", 6) == 0)
        return parse_list(value, b->loads, &b->n_loads);
    if (strncmp(arg, "speed=", 6) == 0)
        return moe_parse_double(value, &b->speed);
    if (strncmp(arg, "seconds=", 8) == 0)
        return moe_parse_double(value, &b->seconds);
    if (strncmp(arg, "prompt=", 7) == 0)
        return moe_parse_u64(value, &b->n_prompt) && b->n_prompt > 0 && b->n_prompt <= 512;
    if (strncmp(arg, "decode=", 7) == 0)
        return moe_parse_u64(value, &b->n_decode) && b->n_decode > 0;
    if (strncmp(arg, "rounds=", 7) == 0)
        return moe_parse_u64(value, &b->rounds) && b->rounds > 0;
    return false;
}

int main(int argc, char **argv)
{
    struct moe_err err = {0};
    struct bench b = {.rows_text = "resident,ondemand,lru,host,eap,edgemoe,fate,hobbit",
                      .demand = {2},
                      .loads = {1},
                      .n_demand = 1,
                      .n_loads = 1,
                      .seconds = 3,
                      .n_prompt = 32,
                      .n_decode = 32,
                      .rounds = 1};
    bool right = argc >= 4;
    for (int i = 4; i < argc && right; i++)
        right = parse(&b, argv[i]);
    if (!right) {
        fprintf(stderr, "usage: bench_strategies PACK STATISTICS TEXT[,TEXT]... [option=value]... "
                        "(see the file's head)\n");
        return 2;
    }
    b.pack = argv[1];
    b.statistics_path = argv[2];
    b.texts = argv[3];
    setvbuf(stdout, NULL, _IOLBF, 0);
    moe_par_set_threads(moe_cores_available());
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = run(&b, &err);
    if (b.copy && b.copy != MAP_FAILED)
        munmap(b.copy, b.copy_bytes);
    moe_statistics_free(b.statistics);
    free(b.ids);
    if (status != MOE_OK)
        fprintf(stderr, "bench_strategies: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
