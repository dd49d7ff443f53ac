/* What the steps of a calibration measure with. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/text.h"
#include "engine/memory.h"
#include "infer/forward.h"
#include "infer/pass_ops.h"
#include "tune/answers.h"
#include "tune/calibrate_internal.h"
#include "tune/importance.h"
#include "tune/inputs_seen.h"

/* What a process takes beyond what is counted: stacks, buffers of the heap, maps being written. */
enum { SLACK = 8 << 20 };

/* ---- The dense part ---- */

uint32_t calibrate_dense_bits(const struct calibration *c, uint32_t i)
{
    const struct moe_calibrate_options *o = c->options;
    return i >= o->n_dense_bits || moe_dense_has(c->model, &c->dense, o->dense_bits[i])
               ? c->map->pack_dense_bits
               : o->dense_bits[i];
}

int calibrate_choose_rounding(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    MOE_TRY(moe_dense_bits_of_pack(c->model->pack, &c->map->pack_dense_bits, err));
    MOE_TRY(moe_dense_rounding_of(c->model->pack, &c->dense, err));
    if (o->method)
        c->dense.method = o->method;
    for (uint32_t i = 0; i < o->n_dense_bits; i++)
        if (calibrate_dense_bits(c, i) != c->map->pack_dense_bits) {
            snprintf(c->map->dense_method, sizeof c->map->dense_method, "%s",
                     c->dense.method->name);
            c->map->dense_group = c->dense.method->per_row ? 0 : c->dense.group;
        }
    return MOE_OK;
}

/* ---- Bytes ---- */

static uint64_t extent_bytes(const struct moe_expert_extent *e, uint32_t align)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; e->present && s < MOE_PACK_MAX_SEGMENTS; s++)
        bytes += moe_round_up(e->segments[s].stored_bytes, align);
    return bytes;
}

uint64_t calibrate_expert_bytes(const struct calibration *c, uint32_t layer, uint32_t expert,
                                uint32_t variant, uint32_t align)
{
    return extent_bytes(
        moe_pack_expert(c->model->pack, c->map->model_layer[layer], expert, variant), align);
}

uint64_t calibrate_all_bytes(const struct calibration *c, uint32_t variant)
{
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < c->map->n_layers; layer++)
        for (uint32_t e = 0; e < c->map->n_experts; e++) {
            uint32_t usable =
                moe_pack_usable_variant(c->model->pack, c->map->model_layer[layer], e, variant);
            bytes += calibrate_expert_bytes(c, layer, e, usable, 1);
        }
    return bytes;
}

/* Of layers that draft (moe_pack_n_ahead): all but the largest variant of each expert, which is the
 * most that a map leaves there. */
static uint64_t ahead_left_out(const struct moe_pack *pack)
{
    const uint32_t n = moe_pack_n_layers(pack);
    uint64_t bytes = 0;
    for (uint32_t layer = n; layer < n + moe_pack_n_ahead(pack); layer++)
        for (uint32_t e = 0; e < moe_pack_n_experts(pack); e++) {
            uint64_t most = 0;
            for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++) {
                const uint64_t of =
                    extent_bytes(moe_pack_expert(pack, layer, e, v), MOE_PACK_ALIGN);
                most = moe_larger(most, of);
                bytes += of;
            }
            bytes -= most;
        }
    return bytes;
}

/* What the pack has beside them, with room for what provenance says of a map. */
uint64_t calibrate_file_bytes(const struct calibration *c, uint32_t dense_bits)
{
    const struct moe_pack *pack = c->model->pack;
    uint64_t bytes = moe_pack_file_bytes(pack) + MOE_PACK_ALIGN - moe_dense_file_bytes(c->model) +
                     moe_dense_bytes(c->model, &c->dense, dense_bits, MOE_PACK_ALIGN) -
                     ahead_left_out(pack);
    for (uint32_t v = 0; v < moe_pack_n_variants(pack); v++)
        for (uint32_t layer = 0; layer < c->map->n_layers; layer++)
            for (uint32_t e = 0; e < c->map->n_experts; e++)
                bytes -= calibrate_expert_bytes(c, layer, e, v, MOE_PACK_ALIGN);
    return bytes;
}

uint64_t calibrate_dense_bytes(const struct calibration *c, uint32_t bits)
{
    return moe_dense_bytes(c->model, &c->dense, bits, 1);
}

/* ---- Rules ---- */

/* A table for moe_rule_of_table: [model layers][n_experts] from variants[MoE layers][n_experts];
 * NULL: all at `variant`. free() it; NULL: out of memory. */
static uint8_t *make_table(const struct calibration *c, const uint8_t *variants, uint32_t variant,
                           struct moe_err *err)
{
    uint64_t n = c->map->n_experts;
    uint8_t *table = moe_alloc(c->model->config.n_layers, n, err);
    for (uint32_t layer = 0; table && layer < c->map->n_layers; layer++) {
        uint8_t *to = table + c->map->model_layer[layer] * n;
        if (variants)
            memcpy(to, variants + layer * n, n);
        else
            memset(to, (int)variant, n);
    }
    return table;
}

/* ---- Models to measure ---- */

/* The model with its dense part at fewer bits. A method that compensates is given the inputs that
 * the matrices see on the texts to choose on, as moe-quantize --text would. */
static int derive(struct moe_model **out, const struct calibration *c, uint32_t bits,
                  struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const struct moe_inputs_options texts = {.texts = o->texts,
                                             .n_texts = o->n_texts,
                                             .max_tokens = o->max_tokens,
                                             .max_windows = o->max_windows,
                                             .progress = o->progress};
    struct moe_dense_rounding how = c->dense;
    struct moe_inputs_seen *seen = NULL;
    int status = MOE_OK;
    if (how.method->compensates && moe_quant_method_of(how.method, (int)bits)->compensates)
        status = moe_inputs_seen_open(&seen, moe_pack_path(c->model->pack), &texts, err);
    if (status == MOE_OK) {
        how.inputs = seen ? moe_inputs_seen_of(seen) : NULL;
        status = moe_dense_derive(out, c->model, &how, bits, err);
    }
    moe_inputs_seen_close(seen);
    return status;
}

struct moe_rerun_options calibrate_rerun_options(const struct calibration *c, bool keeps_states)
{
    const struct moe_calibrate_options *o = c->options;
    uint32_t context = c->model->config.context_max;
    uint32_t tokens = o->max_tokens < context ? o->max_tokens : context;
    return (struct moe_rerun_options){
        .keeps_states = keeps_states,
        .answer_tokens = o->judge == MOE_JUDGE_NATS ? 0 : tokens,
        .n_variants = moe_pack_n_variants(c->model->pack),
        .progress = o->progress,
    };
}

int calibrate_open_bench(struct bench_model *b, struct calibration *c, uint32_t dense_bits,
                         struct moe_err *err)
{
    const struct moe_rerun_options options = calibrate_rerun_options(c, false);
    *b = c->own;
    if (dense_bits == c->own.dense_bits)
        return MOE_OK;
    *b = (struct bench_model){
        .dense_bits = dense_bits,
        .dense_bytes = calibrate_dense_bytes(c, dense_bits),
    };
    int status = derive(&b->derived, c, dense_bits, err);
    b->model = b->derived;
    if (status == MOE_OK)
        status = moe_rerun_open(&b->rerun, b->model, c->experts, c->corpus, &options, err);
    if (status == MOE_OK && c->check)
        status = moe_rerun_open(&b->check_rerun, b->model, c->experts, c->check, &options, err);
    if (status != MOE_OK)
        calibrate_close_bench(b, c);
    return status;
}

void calibrate_close_bench(struct bench_model *b, const struct calibration *c)
{
    if (b->rerun != c->own.rerun)
        moe_rerun_close(b->rerun);
    if (b->check_rerun != c->own.check_rerun)
        moe_rerun_close(b->check_rerun);
    moe_dense_release(b->derived);
    *b = (struct bench_model){0};
}

int calibrate_measure(struct calibration *c, const struct bench_model *b, bool check,
                      const struct moe_rule *rule, struct moe_loss *loss,
                      struct moe_quality *quality, struct moe_err *err)
{
    const struct moe_quality *reference = check ? &c->check_reference : &c->reference;
    struct moe_quality q;
    MOE_TRY(moe_quality_measure(&q, check ? b->check_rerun : b->rerun, rule, reference, err));
    moe_quality_loss(&q, reference, 0, q.corpus->n_documents, loss);
    if (quality)
        *quality = q;
    else
        moe_quality_release(&q);
    return MOE_OK;
}

int calibrate_measure_variants(struct calibration *c, const struct bench_model *b, bool check,
                               const uint8_t *variants, uint32_t variant, struct moe_loss *loss,
                               struct moe_quality *quality, struct moe_err *err)
{
    uint8_t *table = make_table(c, variants, variant, err);
    struct moe_rule_table at = {table, c->map->n_experts, c->map->top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    int status = table ? calibrate_measure(c, b, check, &rule, loss, quality, err) : MOE_ERR_MEMORY;
    free(table);
    return status;
}

int calibrate_reference(struct calibration *c, struct moe_rerun *rerun, uint32_t variant,
                        struct moe_quality *out, struct moe_err *err)
{
    uint8_t *table = make_table(c, NULL, variant, err);
    struct moe_rule_table at = {table, c->map->n_experts, c->map->top_k};
    const struct moe_rule rule = moe_rule_of_table(&at);
    int status = table ? moe_quality_measure(out, rerun, &rule, NULL, err) : MOE_ERR_MEMORY;
    free(table);
    return status;
}

/* ---- The budget ---- */

/* Of measuring on texts: re-runs, references kept, and a few other measurements at a time. */
static uint64_t bench_bytes(const struct calibration *c, const struct moe_corpus *corpus,
                            const struct moe_rerun_options *rerun, uint64_t n_references)
{
    enum { MEASUREMENTS = 8 };
    uint64_t n_benches = c->options->n_dense_bits > 1 ? 2 : 1;
    return n_benches * moe_rerun_bytes(&c->model->config, corpus, rerun) +
           n_references * moe_quality_bytes(corpus, true) +
           MEASUREMENTS * moe_quality_bytes(corpus, false);
}

struct moe_documents calibrate_documents(const struct calibration *c)
{
    return (struct moe_documents){
        .tokenizer = c->model->tokenizer,
        .max_tokens = c->options->max_tokens,
        .max_windows = c->options->max_windows,
        .pairs = c->options->pairs,
        .decoder_start = c->model->config.decoder_start,
        .answer_start = c->model->config.answer_start,
        .progress = c->options->progress,
    };
}

int calibrate_survey(struct calibration *c, const struct moe_rerun_options *rerun, uint32_t context,
                     struct calibration_need *need, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const struct moe_model *m = c->model;
    struct moe_corpus corpus, check;
    uint64_t bytes = 0, check_bytes = 0, reading = 0, check_reading = 0;
    const uint64_t directory = moe_model_directory_bytes(m), available = moe_available_bytes();
    const uint64_t program = moe_program_bytes(false) + directory +
                             (o->statistics ? moe_statistics_held_bytes(o->statistics) : 0);
    need->budget = o->memory_bytes           ? o->memory_bytes
                   : available == UINT64_MAX ? UINT64_MAX
                                             : available + program;
    uint64_t may_hold = moe_engine_room_of(need->budget, program, context).may_hold;
    moe_experts_every_bytes(m->pack, &need->least, &need->all);
    need->taken = program + moe_model_load_bytes(m, context) + SLACK;
    const struct moe_documents documents = calibrate_documents(c);
    MOE_TRY(moe_corpus_survey(&corpus, &bytes, &reading, &documents, o->texts, o->n_texts, may_hold,
                              err));
    if (o->n_checks)
        MOE_TRY(moe_corpus_survey(&check, &check_bytes, &check_reading, &documents, o->checks,
                                  o->n_checks, may_hold, err));
    need->reading = need->taken + bytes + check_bytes + moe_larger(reading, check_reading);
    if (o->statistics) /* which were read before */
        need->reading = moe_larger(need->reading, program + o->statistics->read_bytes);
    need->taken += bytes + bench_bytes(c, &corpus, rerun, 2);
    need->taken +=
        moe_importance_bytes(&m->config, &corpus, moe_rerun_rows(&corpus, rerun), need->least);
    uint64_t decoding = calibrate_decoding_bytes(c, &corpus),
             check_decoding = o->n_checks ? calibrate_decoding_bytes(c, &check) : 0;
    need->taken += moe_larger(decoding, check_decoding);
    if (o->n_checks)
        need->taken += check_bytes + bench_bytes(c, &check, rerun, 1);
    if (o->n_dense_bits > 1)
        need->taken += m->weights_bytes;
    struct moe_dense_rounding rounding;
    MOE_TRY(moe_dense_rounding_of(m->pack, &rounding, err));
    const struct moe_quant_method *method = o->method ? o->method : rounding.method;
    if (o->n_dense_bits > 0 && method->compensates)
        need->taken += moe_inputs_seen_bytes(m, &corpus) + bytes + reading + directory;
    return MOE_OK;
}

uint64_t calibrate_floor(const struct calibration_need *need)
{
    return moe_larger(need->taken + need->least, need->reading);
}

int calibrate_check_budget(const struct calibration *c, const struct calibration_need *need,
                           struct moe_err *err)
{
    char have[32], wanted[32];
    uint64_t floor = calibrate_floor(need);
    if (need->budget >= floor)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_LIMIT,
                    "%s: a budget of %s is too small: the smallest that works is %s (--memory "
                    "%" PRIu64 "M; shorter or fewer texts need less)",
                    moe_pack_path(c->model->pack), moe_format_at_most(need->budget, have),
                    moe_format_at_least(floor, wanted), (floor + (1 << 20) - 1) >> 20);
}

/*
 * What is measured as it would run: the texts are decoded token by token through a cache of the
 * size that was asked for, empty at first, with experts at the best precision.
 */

/* A way to decode, open. */
struct bench {
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_scores scores;
    struct moe_row *rows; /* [longest source, or 1] */
};

/* Parts that are 0 are off. high_up_to: T1, above which an absent expert is taken low. */
struct way {
    double prefer, skip_below, high_up_to;
};

static const double LOW_POOL = 0.2;

/* lru, with these parts. */
static int set_way(struct moe_strategy *s, const struct way *w, struct moe_err *err)
{
    moe_strategy_find("lru", s);
    s->prefer = w->prefer;
    s->prefer_keeps = w->prefer > 0;
    s->skip_below = w->skip_below;
    if (w->high_up_to > 0) {
        s->miss_precision = MOE_MISS_BY_SCORE;
        s->high_up_to = w->high_up_to;
        s->low_pool = LOW_POOL;
    }
    return moe_strategy_settle(s, err);
}

/* What it came to. */
struct decoded {
    struct moe_loss loss;
    double bytes_per_token, changed_share;
};

static struct moe_session_options session_options(const struct moe_corpus *corpus)
{
    uint32_t source = corpus->longest_source;
    return (struct moe_session_options){.context = corpus->longest,
                                        .n_sequences = 1,
                                        .source_context = source,
                                        .batch = source ? source : 1};
}

/* The low precision of what a strategy takes lower, as of moe-run. */
static uint32_t lowest(const struct calibration *c)
{
    return moe_pack_n_variants(c->model->pack) - 1;
}

/* strategy: of the cache; its parts are copied where they are kept. */
static struct moe_cache_options cache_options(const struct calibration *c,
                                              const struct moe_strategy *strategy,
                                              uint64_t cache_bytes)
{
    const struct moe_config *config = &c->model->config;
    return (struct moe_cache_options){.strategy = strategy,
                                      .low = lowest(c),
                                      .cache_bytes = cache_bytes,
                                      .n_working = config->top_k,
                                      .top_k = config->top_k,
                                      .config = config};
}

static uint64_t decoding_bytes(const struct calibration *c, const struct moe_corpus *corpus,
                               const struct moe_strategy *strategy, uint64_t cache_bytes)
{
    const struct moe_config *config = &c->model->config;
    const struct moe_cache_options cache = cache_options(c, strategy, cache_bytes);
    const struct moe_session_options session = session_options(corpus);
    return moe_cache_bytes(c->model->pack, &cache) + moe_session_bytes(config, &session) +
           moe_scores_bytes(config, session.batch) +
           moe_session_strategy_bytes(c->model, session.batch, strategy, 0) +
           session.batch * sizeof(struct moe_row);
}

static void close_bench(struct bench *b)
{
    if (b->session)
        moe_scores_close(&b->scores);
    moe_session_close(b->session);
    moe_experts_close(b->experts);
    free(b->rows);
}

static int open_bench(struct bench *b, const struct calibration *c, const struct moe_corpus *corpus,
                      const struct moe_strategy *strategy, uint64_t cache_bytes,
                      struct moe_err *err)
{
    const struct moe_session_options session = session_options(corpus);
    *b = (struct bench){.rows = moe_alloc(session.batch, sizeof *b->rows, err)};
    if (!b->rows)
        return MOE_ERR_MEMORY;
    const struct moe_cache_options cache = cache_options(c, strategy, cache_bytes);
    MOE_TRY(moe_experts_open_cached(&b->experts, c->model->pack, c->model->config.top_k, &cache,
                                    NULL, err));
    MOE_TRY(moe_session_open(&b->session, c->model, b->experts, &session, err));
    MOE_TRY(moe_scores_open(&b->scores, b->session, err));
    if (moe_engine_takes_part(strategy))
        MOE_TRY(moe_session_take_strategy(b->session, strategy, NULL, 0, 0, err));
    return MOE_OK;
}

/* Of a pair, what its target attends to. */
static int encode_source(struct bench *b, const struct moe_corpus *corpus, uint32_t document,
                         struct moe_err *err)
{
    uint32_t n = corpus->pairs ? moe_corpus_source(corpus, document) : 0;
    for (uint32_t i = 0; i < n; i++)
        b->rows[i] = (struct moe_row){
            .position = i,
            .token = corpus->source_ids[corpus->pairs[document].source + i],
            .length = n,
        };
    return n ? moe_encode(b->session, b->rows, n, NULL, err) : MOE_OK;
}

/* Decodes a document; adds what it costs to q, if that is not NULL. */
static int decode(struct bench *b, const struct moe_corpus *corpus, uint32_t document,
                  const struct moe_quality *reference, struct moe_quality *q, struct moe_err *err)
{
    const struct moe_config *config = &b->session->model->config;
    const uint32_t *ids = corpus->ids + corpus->first[document];
    uint64_t first = moe_corpus_prediction(corpus, document);
    uint32_t n = moe_corpus_length(corpus, document) - 1, best;
    uint32_t length = config->prefix_lm ? 0 : n;
    double nats;
    MOE_TRY(encode_source(b, corpus, document, err));
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_row row = {0, i, ids[i], length};
        MOE_TRY(moe_forward(b->session, MOE_DECODE, &row, 1, config->n_encoder, config->n_layers,
                            NULL, NULL, err));
        MOE_TRY(moe_score_rows(&b->scores, 0, 1, ids + i + 1, &nats, &best, err));
        if (!q)
            continue;
        q->nats[document] += nats;
        q->changed[document] += best != reference->best[first + i];
    }
    return MOE_OK;
}

static int measure_decoding(struct calibration *c, bool check, const struct moe_strategy *strategy,
                            uint64_t cache_bytes, struct decoded *out, struct moe_err *err)
{
    const struct moe_corpus *corpus = check ? c->check : c->corpus;
    const struct moe_quality *reference = check ? &c->check_reference : &c->reference;
    struct moe_quality q = {.corpus = corpus};
    struct bench b;
    q.nats = moe_alloc(corpus->n_documents, sizeof *q.nats, err);
    q.changed = moe_alloc(corpus->n_documents, sizeof *q.changed, err);
    int status;
    MOE_STEP(open_bench(&b, c, corpus, strategy, cache_bytes, err));
    if (!(q.nats && q.changed))
        MOE_STEP(MOE_ERR_MEMORY);
    for (uint32_t d = 0; d < corpus->n_documents; d++) {
        MOE_STEP(decode(&b, corpus, d, reference, &q, err));
        if (moe_progress_stopped(c->options->progress))
            MOE_STEP(moe_fail(err, MOE_ERR_INTERRUPTED, "stopped"));
    }
    const struct moe_phase_stats *s = &b.session->stats.decode;
    const struct moe_counts *n = &s->experts;
    moe_quality_loss(&q, reference, 0, corpus->n_documents, &out->loss);
    out->bytes_per_token = (double)s->bytes_read / (double)s->tokens;
    out->changed_share =
        (double)(n->substituted + n->skipped + n->low_precision) / (double)n->activations;
out:
    close_bench(&b);
    moe_quality_release(&q);
    return status;
}

/* Which experts stay is what these ways go by. */
static int check_several(const struct calibration *c, const char *option, struct moe_err *err)
{
    if (c->model->config.top_k > 1)
        return MOE_OK;
    return moe_fail(err, MOE_ERR_USAGE,
                    "option --%s: the strongest expert stays, and routers of %s choose no other",
                    option, moe_pack_path(c->model->pack));
}

/*
 * Cache-aware routing (sched/select.h): the largest lambda within a tolerance of its own, in whole
 * hundredths, by bisection. Losses need not rise with lambda: what is found is within the
 * tolerance, as measured.
 */

enum { MOST_HUNDREDTHS = 100, MOST_POINTS = 8 /* the exact one, and 7 halves of 100 */ };

static int measure_routing(struct calibration *c, bool check, double lambda,
                           struct moe_map_preference *out, struct moe_err *err)
{
    struct moe_strategy strategy;
    struct decoded d;
    MOE_TRY(set_way(&strategy, &(struct way){.prefer = lambda}, err));
    MOE_TRY(measure_decoding(c, check, &strategy, c->options->routing_cache, &d, err));
    *out = (struct moe_map_preference){lambda, d.bytes_per_token, d.changed_share, d.loss};
    return MOE_OK;
}

/* Into the curve, which rises. */
static void note_preference(struct moe_map_routing *r, const struct moe_map_preference *p)
{
    uint32_t at = r->n_points++;
    for (; at > 0 && r->points[at - 1].lambda > p->lambda; at--)
        r->points[at] = r->points[at - 1];
    r->points[at] = *p;
}

int calibrate_routing(struct calibration *c, struct moe_err *err)
{
    struct moe_map_routing *r = &c->map->routing;
    struct moe_map_preference p, none, found;
    uint32_t low = 0, high = MOST_HUNDREDTHS;
    MOE_TRY(check_several(c, "routing-tolerance", err));
    *r = (struct moe_map_routing){.keeps = 1,
                                  .tolerance = c->options->routing_tolerance,
                                  .cache_bytes = c->options->routing_cache};
    int status = measure_routing(c, false, 0, &none, err);
    found = none;
    if (status == MOE_OK)
        note_preference(r, &none);
    while (low < high && status == MOE_OK) {
        uint32_t lambda = low + (high - low + 1) / 2;
        moe_progress_report(c->options->progress, "routing", r->n_points, MOST_POINTS);
        status = measure_routing(c, false, lambda / 100.0, &p, err);
        if (status != MOE_OK)
            break;
        note_preference(r, &p);
        if (moe_loss_in(&p.loss, c->map->metric) <= r->tolerance) {
            low = lambda;
            found = p;
        } else {
            high = lambda - 1;
        }
    }
    r->lambda = found.lambda;
    r->loss = found.loss;
    if (status == MOE_OK && c->check) {
        status = measure_routing(c, true, found.lambda, &p, err);
        r->check = p.loss;
    }
    r->there = status == MOE_OK;
    return status;
}

/*
 * Ways to load less, each in rising strength, until one loses twice the tolerance: weaker routing
 * towards the cache, absent experts left out or at the low precision (HOBBIT), and two of these
 * together. What DAOP replaces loses many times as much (tests/bench/routing.sh), and needs a host
 * beside the device.
 */

/* The last one of each kind, at the latest, is followed by zeros. */
enum { MOST_WAYS = 8 };
static const struct way kinds[][MOST_WAYS] = {
    {{.prefer = 0.05},
     {.prefer = 0.1},
     {.prefer = 0.2},
     {.prefer = 0.3},
     {.prefer = 0.4},
     {.prefer = 0.6},
     {.prefer = 1}},
    {{.skip_below = 0.05},
     {.skip_below = 0.1},
     {.skip_below = 0.15},
     {.skip_below = 0.2},
     {.skip_below = 0.25},
     {.skip_below = 0.3},
     {.skip_below = 0.4}},
    {{.high_up_to = 0.9},
     {.high_up_to = 0.8},
     {.high_up_to = 0.7},
     {.high_up_to = 0.6},
     {.high_up_to = 0.5},
     {.high_up_to = 0.4}},
    {{0.05, 0.1, 0},
     {0.1, 0.1, 0},
     {0.1, 0.15, 0},
     {0.2, 0.15, 0},
     {0.2, 0.2, 0},
     {0.3, 0.2, 0},
     {0.4, 0.3, 0}},
    {{0, 0.05, 0.85}, {0, 0.1, 0.8}, {0, 0.15, 0.7}, {0, 0.2, 0.7}, {0, 0.2, 0.6}, {0, 0.3, 0.5}},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };
static const double TOO_MUCH = 2; /* times the tolerance */

static bool is_way(const struct way *w)
{
    return w->prefer > 0 || w->skip_below > 0 || w->high_up_to > 0;
}

/* *lost: in the metric. */
static int measure_way(struct calibration *c, struct moe_map_savings *at, const struct way *w,
                       double *lost, struct moe_err *err)
{
    struct moe_map_saving *way = &at->ways[at->n_ways];
    struct moe_strategy strategy;
    struct decoded d;
    char brief[MOE_STRATEGY_BRIEF];
    MOE_TRY(set_way(&strategy, w, err));
    moe_strategy_brief(&strategy, brief);
    snprintf(way->strategy, sizeof way->strategy, "%.*s", MOE_MAP_WAY - 1, brief);
    MOE_TRY(measure_decoding(c, false, &strategy, at->cache_bytes, &d, err));
    way->bytes_per_token = d.bytes_per_token;
    way->changed_share = d.changed_share;
    way->loss = d.loss;
    if (c->check) {
        MOE_TRY(measure_decoding(c, true, &strategy, at->cache_bytes, &d, err));
        way->check = d.loss;
    }
    *lost = moe_loss_in(&way->loss, c->map->metric);
    at->n_ways++;
    return MOE_OK;
}

/* Whether it is one that the pack can follow. */
static bool is_possible(const struct calibration *c, const struct way *w)
{
    return is_way(w) && (w->high_up_to <= 0 || lowest(c) > 0);
}

/* Of one cache, at most. */
static uint32_t count_ways(const struct calibration *c)
{
    uint32_t n = 0;
    for (int kind = 0; kind < N_KINDS; kind++)
        for (const struct way *w = kinds[kind]; is_possible(c, w); w++)
            n++;
    return n;
}

/* done: ways that were measured, or will not be, in other caches. */
static int measure_savings(struct calibration *c, struct moe_map_savings *at, uint32_t done,
                           struct moe_err *err)
{
    const uint32_t all = c->options->n_caches * count_ways(c);
    const double most = TOO_MUCH * c->map->tolerance;
    static const struct way exact;
    struct moe_strategy lru;
    struct decoded d;
    MOE_TRY(set_way(&lru, &exact, err));
    MOE_TRY(measure_decoding(c, false, &lru, at->cache_bytes, &d, err));
    at->exact_bytes_per_token = d.bytes_per_token;
    for (int kind = 0; kind < N_KINDS; kind++) {
        double lost = 0;
        for (const struct way *w = kinds[kind]; is_possible(c, w); w++, done++) {
            if (lost > most) /* stronger ones lose more */
                continue;
            moe_progress_report(c->options->progress, "savings", done, all);
            MOE_TRY(measure_way(c, at, w, &lost, err));
        }
    }
    return MOE_OK;
}

int calibrate_savings(struct calibration *c, struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    if (o->n_caches)
        MOE_TRY(check_several(c, "expert-memory", err));
    for (uint32_t i = 0; i < o->n_caches; i++) {
        struct moe_map_savings *at = &c->map->savings[c->map->n_savings++];
        *at = (struct moe_map_savings){.cache_bytes = o->caches[i], .low = lowest(c)};
        MOE_TRY(measure_savings(c, at, i * count_ways(c), err));
    }
    return MOE_OK;
}

/* Of a pass over the texts, nothing left out, by a few documents from all over them; the first of
 * these fills the cache and is not timed, unless it is the only one. */
static int time_decoding(struct calibration *c, uint64_t cache_bytes, double *seconds,
                         struct moe_err *err)
{
    enum { TRIED_TOKENS = 256, MOST_TRIED = 5, LEAST_TRIED = 2 };
    static const struct way exact;
    const struct moe_corpus *corpus = c->corpus;
    const uint64_t all = corpus->n_documents;
    uint64_t n = TRIED_TOKENS * all / corpus->n_predicted, n_tokens = 0;
    struct moe_strategy lru;
    struct bench b = {0};
    double began = 0;
    int status;
    n = n < LEAST_TRIED ? LEAST_TRIED : n > MOST_TRIED ? MOST_TRIED : n;
    n = n < all ? n : all;
    MOE_STEP(set_way(&lru, &exact, err));
    MOE_STEP(open_bench(&b, c, corpus, &lru, cache_bytes, err));
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t document = (uint32_t)(i * all / n);
        if (i <= 1)
            began = moe_seconds(), n_tokens = 0;
        n_tokens += moe_corpus_length(corpus, document) - 1;
        MOE_STEP(decode(&b, corpus, document, NULL, NULL, err));
        if (moe_progress_stopped(c->options->progress))
            MOE_STEP(moe_fail(err, MOE_ERR_INTERRUPTED, "stopped"));
    }
    *seconds = (moe_seconds() - began) / (double)n_tokens * (double)corpus->n_predicted;
out:
    close_bench(&b);
    return status;
}

int calibrate_forecast_decoding(struct calibration *c, struct moe_forecast *out,
                                struct moe_err *err)
{
    const struct moe_calibrate_options *o = c->options;
    const double checks =
        c->check ? (double)c->check->n_predicted / (double)c->corpus->n_predicted : 0;
    double pass;
    if (o->routing_tolerance >= 0) {
        MOE_TRY(time_decoding(c, o->routing_cache, &pass, err));
        out->routing = MOST_POINTS + checks;
        out->routing_seconds = out->routing * pass;
    }
    for (uint32_t i = 0; i < o->n_caches; i++) {
        const double passes = 1 + count_ways(c) * (1 + checks);
        MOE_TRY(time_decoding(c, o->caches[i], &pass, err));
        out->savings += passes;
        out->savings_seconds += passes * pass;
    }
    return MOE_OK;
}

uint64_t calibrate_decoding_bytes(const struct calibration *c, const struct moe_corpus *corpus)
{
    const struct moe_calibrate_options *o = c->options;
    struct moe_strategy strategy;
    struct moe_err ignored;
    uint64_t most = 0, bytes;
    if (o->routing_tolerance >= 0 &&
        set_way(&strategy, &(struct way){.prefer = 1}, &ignored) == MOE_OK)
        most = decoding_bytes(c, corpus, &strategy, o->routing_cache);
    for (uint32_t i = 0; i < o->n_caches; i++)
        for (int kind = 0; kind < N_KINDS; kind++) {
            if (set_way(&strategy, &kinds[kind][0], &ignored) != MOE_OK)
                continue;
            bytes = decoding_bytes(c, corpus, &strategy, o->caches[i]);
            most = bytes > most ? bytes : most;
        }
    return most;
}
