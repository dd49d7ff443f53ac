/*
 * Strategies side by side, in one run: the same documents, the same memory for experts, the same
 * link, every strategy in turn, several rounds.
 *
 *     bench_strategies PACK STATISTICS TEXT[,TEXT]... [option=value]...
 *         strategies=A,B,.. each with parts that differ: fate+cache=lru
 *                           (default: all that the device can run)
 *         demand=X,X,...    memory for experts: X times what one token visits (default 2)
 *         loads=X,X,...     a link on which one expert takes X times one layer's computation
 *                           (default 1)
 *         of=prompt         ... times one layer's computation of the whole prompt (default:
 * of=token) speed=X           on the test device, X times as fast as its host, instead of the CPU
 *         prompt=N decode=N tokens of a document that are its prompt, and that are fed one by one
 *                           (default 32 and 32)
 *         join=1            documents shorter than that are joined, one after the other of a text;
 *                           without it they are left out
 *         seconds=X         decoding time of a strategy in a cell and round (default 3)
 *         rounds=N          (default 1)
 *         device=PROFILE    moe-device(5) of this machine with this pack, measured with as many
 *                           threads (1 on the test device): predictions beside what is measured
 *         calib=TRACE       moe-trace(5) of other texts, those of STATISTICS: one more strategy,
 *                           auto, what moe-plan takes for the cell by them (with device= only)
 *
 * One line per strategy: prefill and decode tokens/s, hit rate, accuracy of predictions where any
 * were made, MB read per decoded token, shares of the decoding time spent waiting for loads,
 * waiting for the host, and predicting; what was computed on the host or ahead, at low precision,
 * left out or replaced, in per cent of the activations; mean nats per decoded token, and how much
 * more they are than the first one's (over the same tokens); joules that the processor took per
 * decoded token, - where its counters cannot be read. The first document of a cell warms the
 * cache and is not counted. Strategies that cannot run say why.
 *
 * With device= also: whether the strategy is exact; prefill and decode tokens/s and hit rate in the
 * simulator, on the documents that were measured; measured over predicted decode tokens/s.
 * judge_plans.awk sums that up over cells and runs.
 */
#define _DEFAULT_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/text.h"
#include "kern/kern.h"
#include "strategies_predict.h"

/* ---- Strategies ---- */

/* One strategy in one cell, one round. */
static int run_candidate(const struct bench *b, struct cell cell, const struct candidate *candidate,
                         uint64_t first, struct result *r, struct moe_err *err)
{
    struct moe_engine *e = NULL;
    struct moe_engine_options o = engine_options(b, cell);
    struct span span = {first, 0, (uint32_t)b->n_decode};
    o.exact = candidate->automatic;
    int status = parse_strategy(candidate->text, &o.strategy, err);
    if (status == MOE_OK)
        status = moe_engine_open(&e, b->pack, &o, NULL, err);
    while (status == MOE_OK && span.n_documents < b->n_documents &&
           first + span.n_documents < b->n_traced) {
        if (span.n_documents >= MIN_DOCUMENTS && e->session->stats.decode.seconds > b->seconds)
            break;
        double nats;
        uint64_t document = (first + span.n_documents++) % b->n_documents;
        bool warms = span.n_documents == 1; /* the cache; and tells how much there is time for */
        status = run_document(e->session, b, document, warms ? b->seconds : INFINITY,
                              &span.n_decoded, &nats, err);
        if (warms)
            e->session->stats = (struct moe_stats){0};
        else if (status == MOE_OK && r->nats[document] == 0)
            r->nats[document] = nats;
    }
    if (status == MOE_OK) {
        const struct moe_phase_stats *d = &e->session->stats.decode;
        r->exact = e->exactness.exact;
        r->speeds[r->n_rounds] = (double)d->tokens / d->seconds;
        r->spans[r->n_rounds++] = span;
        moe_stats_add(&r->stats, &e->session->stats);
    }
    moe_engine_close(e);
    return status;
}

/* ---- Printing ---- */

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

/* Mean nats over the documents that both ran, of `r` and of the first strategy. */
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

static void print_prediction(const struct bench *b, struct cell cell,
                             const struct candidate *candidate, const struct result *r,
                             double measured)
{
    const struct prediction p = predict(b, cell, candidate, r);
    printf(" %s |", r->exact ? "yes" : "no");
    if (p.decode > 0)
        printf(" %7.1f | %7.4g | %5.3f | %5.1f |", p.prefill, p.decode, measured / p.decode,
               100 * p.hit_rate);
    else
        printf(" - | - | - | - |");
}

static void print_result(const struct bench *b, struct cell cell, const struct candidate *candidate,
                         struct result *r, const struct result *first)
{
    const char *found = candidate->automatic ? "auto: " : "";
    printf("| %s%-*s | %4g | %4g | ", found, 28 - (int)strlen(found), candidate->text, cell.demand,
           cell.loads);
    if (r->why[0]) {
        printf("cannot run: %s |\n", r->why);
        return;
    }
    const struct moe_phase_stats *p = &r->stats.prefill, *d = &r->stats.decode;
    const struct moe_counts *n = &d->experts;
    double nats, of_first, all = (double)n->activations, speed = median(r->speeds, r->n_rounds);
    compare(b, r, first, &nats, &of_first);
    printf("%7.1f | %7.4g | %5.1f | ", (double)p->tokens / p->seconds, speed,
           percent((double)(n->cache_hits + n->prefetch_hits), all));
    if (n->predicted)
        printf("%5.1f | ", percent((double)n->predicted_right, (double)n->predicted));
    else
        printf("    - | ");
    printf("%6.1f | %5.1f | %5.1f | %5.2f | %5.1f | %5.1f | %5.1f | %5.1f | %6.4f | %+6.2f%% |",
           (double)d->bytes_read / (double)d->tokens * 1e-6, percent(d->stall_seconds, d->seconds),
           percent(d->host_seconds, d->seconds), percent(d->predict_seconds, d->seconds),
           percent((double)(n->host_computed + n->precalculated), all),
           percent((double)n->low_precision, all), percent((double)n->skipped, all),
           percent((double)n->substituted, all), nats,
           of_first > 0 ? 100 * (nats / of_first - 1) : 0);
    if (d->joules > 0)
        printf(" %7.4g |", d->joules / (double)d->tokens);
    else
        printf("       - |");
    if (b->device)
        print_prediction(b, cell, candidate, r, speed);
    printf("\n");
}

static void print_head(const struct bench *b)
{
    const char *head =
        "| strategy | demand | loads | prefill | decode | hits % | predicted % | MB/token | stall "
        "% "
        "| host % | predict % | on host % | low % | skipped % | replaced % | nats | more | J/token "
        "|";
    const char *planned = b->device ? " exact | planned prefill | planned decode "
                                      "| measured/planned | planned hits % |"
                                    : "";
    printf("%s%s\n|", head, planned);
    for (const char *at = head + 1; *at; at++)
        if (*at == '|')
            printf("---|");
    for (const char *at = planned; *at; at++)
        if (*at == '|')
            printf("---|");
    printf("\n");
}

/* Every strategy in turn, round by round, so that what disturbs the machine meets all of them. */
static int run_cell(const struct bench *b, struct candidate *candidates, uint32_t n_candidates,
                    struct cell cell, struct moe_err *err)
{
    struct result *results = moe_alloc(n_candidates + 1, sizeof *results, err);
    int status = results ? MOE_OK : MOE_ERR_MEMORY;
    if (status == MOE_OK && b->calib)
        status = find_automatic(b, cell, &candidates[n_candidates++], err);
    for (uint32_t i = 0; status == MOE_OK && i < n_candidates; i++) {
        results[i].nats = moe_alloc(MAX_DOCUMENTS, sizeof(double), err);
        status = results[i].nats ? MOE_OK : MOE_ERR_MEMORY;
    }
    for (uint64_t round = 0; round < b->rounds && status == MOE_OK; round++)
        for (uint32_t i = 0; i < n_candidates; i++) {
            struct moe_err why = {0};
            if (run_candidate(b, cell, &candidates[i], round * ROUND_STEP, &results[i], &why) !=
                MOE_OK)
                snprintf(results[i].why, sizeof results[i].why, "%.255s", why.text);
        }
    for (uint32_t i = 0; status == MOE_OK && i < n_candidates; i++)
        print_result(b, cell, &candidates[i], &results[i], &results[0]);
    for (uint32_t i = 0; results && i < n_candidates; i++)
        free(results[i].nats);
    free(results);
    return status;
}

/* ---- The run ---- */

/* Seconds that one layer takes for a decoded token with its experts in memory; for predictions also
 * records the documents. */
static int measure_layer(struct bench *b, struct moe_err *err)
{
    struct moe_engine *e = NULL;
    struct moe_engine_options o = {
        .session = {.context = (uint32_t)(b->n_prompt + b->n_decode + 1),
                    .batch = (uint32_t)b->n_prompt},
    };
    double nats;
    moe_strategy_find("resident", &o.strategy);
    int status = moe_engine_open(&e, b->pack, &o, NULL, err);
    if (status == MOE_OK)
        status = read_documents(b, e->model, err);
    for (uint32_t i = 0; i < MIN_DOCUMENTS && status == MOE_OK; i++) {
        uint32_t n_decode = (uint32_t)b->n_decode;
        status = run_document(e->session, b, i, INFINITY, &n_decode, &nats, err);
        if (i == 0)
            e->session->stats = (struct moe_stats){0};
    }
    if (status == MOE_OK) {
        const struct moe_config *c = &e->model->config;
        const struct moe_phase_stats *d = &e->session->stats.decode;
        for (uint32_t i = 0; i < c->n_layers; i++)
            b->n_layers += c->layers[i].moe;
        b->slot_bytes = (double)moe_cache_slot_bytes(e->model->pack, 0);
        b->token_bytes = b->slot_bytes * b->n_layers * c->top_k;
        const struct moe_phase_stats *p = &e->session->stats.prefill;
        b->layer_seconds = d->seconds / (double)d->tokens / c->n_layers;
        if (b->of_prompt)
            b->link_unit = p->seconds / (double)p->tokens * (double)b->n_prompt / c->n_layers;
        else
            b->link_unit = b->layer_seconds;
        printf("layer %.3f ms%s, token's demand %.1f MB, %u documents of %llu + %llu tokens\n",
               1e3 * b->link_unit, b->of_prompt ? " of a prompt" : "", b->token_bytes * 1e-6,
               b->n_documents, (unsigned long long)b->n_prompt, (unsigned long long)b->n_decode);
    }
    if (status == MOE_OK && b->device)
        status = trace_documents(b, e->session, err);
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
    char text[2048], *rest = text, *item;
    struct candidate candidates[MAX_CANDIDATES + 1] = {0}; /* and auto */
    uint32_t n_candidates = 0;
    snprintf(text, sizeof text, "%s", b->strategies_text);
    while (n_candidates < MAX_CANDIDATES && (item = strsep(&rest, ",")))
        snprintf(candidates[n_candidates++].text, sizeof candidates[0].text, "%s", item);
    if (b->speed > 0)
        moe_par_set_threads(1); /* the layer as the device computes it */
    int status = moe_statistics_read(&b->statistics, b->statistics_path, err);
    if (status == MOE_OK)
        status = map_pack(b, err);
    if (status == MOE_OK && b->device_path)
        status = read_device(b, err);
    if (status == MOE_OK && b->calib_path)
        status = moe_trace_open(&b->calib, b->calib_path, err);
    if (status == MOE_OK)
        status = measure_layer(b, err);
    if (status == MOE_OK)
        print_head(b);
    for (uint32_t l = 0; l < b->n_loads; l++)
        for (uint32_t d = 0; d < b->n_demand && status == MOE_OK; d++)
            status = run_cell(b, candidates, n_candidates, (struct cell){b->demand[d], b->loads[l]},
                              err);
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
    if (strncmp(arg, "strategies=", 11) == 0)
        return b->strategies_text = value, true;
    if (strncmp(arg, "demand=", 7) == 0)
        return parse_list(value, b->demand, &b->n_demand);
    if (strncmp(arg, "loads=", 6) == 0)
        return parse_list(value, b->loads, &b->n_loads);
    if (strncmp(arg, "of=", 3) == 0)
        return b->of_prompt = strcmp(value, "prompt") == 0, b->of_prompt || !strcmp(value, "token");
    if (strncmp(arg, "speed=", 6) == 0)
        return moe_parse_double(value, &b->speed);
    if (strncmp(arg, "seconds=", 8) == 0)
        return moe_parse_double(value, &b->seconds);
    if (strncmp(arg, "prompt=", 7) == 0)
        return moe_parse_u64(value, &b->n_prompt) && b->n_prompt > 0 && b->n_prompt <= 512;
    if (strcmp(arg, "join=1") == 0)
        return b->joins = true;
    if (strncmp(arg, "decode=", 7) == 0)
        return moe_parse_u64(value, &b->n_decode) && b->n_decode > 0;
    if (strncmp(arg, "rounds=", 7) == 0)
        return moe_parse_u64(value, &b->rounds) && b->rounds > 0 && b->rounds <= MAX_ROUNDS;
    if (strncmp(arg, "device=", 7) == 0)
        return b->device_path = value, true;
    if (strncmp(arg, "calib=", 6) == 0)
        return b->calib_path = value, true;
    return false;
}

int main(int argc, char **argv)
{
    struct moe_err err = {0};
    struct bench b = {.strategies_text = "resident,ondemand,lru,host,eap,edgemoe,fate,hobbit",
                      .demand = {2},
                      .loads = {1},
                      .n_demand = 1,
                      .n_loads = 1,
                      .seconds = 3,
                      .n_prompt = 32,
                      .n_decode = 32,
                      .rounds = 1,
                      .n_traced = UINT64_MAX};
    bool right = argc >= 4;
    for (int i = 4; i < argc && right; i++)
        right = parse(&b, argv[i]);
    right = right && (b.device_path || !b.calib_path);
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
    moe_trace_close(b.calib);
    moe_trace_close(b.traced);
    free(b.device);
    free(b.ids);
    if (status != MOE_OK)
        fprintf(stderr, "bench_strategies: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
