/*
 * Cache-aware routing (sched/prefer.h): the largest lambda within a tolerance of its own, in whole
 * hundredths, by bisection. Each is measured as it would run: the texts are decoded token by token
 * through a cache of the size that was asked for, empty at first, with experts at the best
 * precision. Losses need not rise with lambda: what is found is within the tolerance, as measured.
 */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "calibrate/calibrate_private.h"
#include "run/pass_strategy.h"
#include "run/source.h"
#include "study/score.h"

enum { MOST_HUNDREDTHS = 100 };

/* A way to decode, open. */
struct bench {
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_pass_strategy *strategy;
    struct moe_scores scores;
    struct moe_row *rows; /* [longest source, or 1] */
};

static struct moe_session_options session_options(const struct moe_corpus *corpus)
{
    uint32_t source = corpus->longest_source;
    return (struct moe_session_options){.context = corpus->longest,
                                        .n_sequences = 1,
                                        .source_context = source,
                                        .batch = source ? source : 1};
}

static int strategy_of(struct moe_strategy *out, double lambda, struct moe_err *err)
{
    moe_strategy_find("lru", out);
    out->prefer = lambda;
    out->prefer_keeps = lambda > 0 ? 1 : 0;
    return moe_strategy_settle(out, err);
}

/* strategy: of the cache; its parts are copied where they are kept. */
static struct moe_cache_options cache_options(const struct calibration *c,
                                              const struct moe_strategy *strategy)
{
    const struct moe_config *config = &c->model->config;
    return (struct moe_cache_options){.strategy = strategy,
                                      .cache_bytes = c->options->routing_cache,
                                      .n_working = config->top_k,
                                      .top_k = config->top_k,
                                      .n_encoder = config->n_encoder,
                                      .layer_is_static = config->layer_is_static};
}

uint64_t calibrate_routing_bytes(const struct calibration *c, const struct moe_corpus *corpus)
{
    const struct moe_config *config = &c->model->config;
    struct moe_strategy strategy;
    struct moe_err ignored;
    if (c->options->routing_tolerance < 0 || strategy_of(&strategy, 1, &ignored) != MOE_OK)
        return 0;
    const struct moe_cache_options cache = cache_options(c, &strategy);
    const struct moe_session_options session = session_options(corpus);
    return moe_cache_bytes(c->model->pack, &cache) + moe_session_bytes(config, &session) +
           moe_scores_bytes(config, session.batch) +
           moe_pass_strategy_bytes(c->model, session.batch, &strategy, 0) +
           session.batch * sizeof(struct moe_row);
}

static void close_bench(struct bench *b)
{
    if (b->session)
        moe_scores_close(&b->scores);
    moe_pass_strategy_close(b->strategy);
    moe_session_close(b->session);
    moe_experts_close(b->experts);
    free(b->rows);
}

static int open_bench(struct bench *b, const struct calibration *c, const struct moe_corpus *corpus,
                      double lambda, struct moe_err *err)
{
    struct moe_strategy strategy;
    const struct moe_session_options session = session_options(corpus);
    *b = (struct bench){.rows = moe_alloc(session.batch, sizeof *b->rows, err)};
    int status = b->rows ? strategy_of(&strategy, lambda, err) : MOE_ERR_MEMORY;
    const struct moe_cache_options cache = cache_options(c, &strategy);
    if (status == MOE_OK)
        status = moe_experts_open_cached(&b->experts, c->model->pack, c->model->config.top_k,
                                         &cache, NULL, err);
    if (status == MOE_OK)
        status = moe_session_open(&b->session, c->model, b->experts, &session, err);
    if (status == MOE_OK)
        status = moe_scores_open(&b->scores, b->session, err);
    if (status == MOE_OK && lambda > 0)
        status = moe_pass_strategy_open(&b->strategy, b->session, &strategy, NULL, 0, 0, err);
    if (status == MOE_OK)
        b->session->strategy = b->strategy;
    return status;
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

/* Decodes a document; q gets what it costs. */
static int decode(struct bench *b, const struct moe_corpus *corpus, uint32_t document,
                  const struct moe_quality *reference, struct moe_quality *q, struct moe_err *err)
{
    const struct moe_config *config = &b->session->model->config;
    const uint32_t *ids = corpus->ids + corpus->first[document];
    uint64_t first = moe_corpus_prediction(corpus, document);
    uint32_t n = moe_corpus_length(corpus, document) - 1, best;
    uint32_t length = config->prefix_lm ? 0 : n;
    double nats;
    int status = encode_source(b, corpus, document, err);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        const struct moe_row row = {0, i, ids[i], length};
        status = moe_forward(b->session, MOE_DECODE, &row, 1, config->n_encoder, config->n_layers,
                             NULL, NULL, err);
        if (status == MOE_OK)
            status = moe_score_rows(&b->scores, 0, 1, ids + i + 1, &nats, &best, err);
        if (status != MOE_OK)
            break;
        q->nats[document] += nats;
        q->changed[document] += best != reference->best[first + i];
    }
    return status;
}

static int measure(struct calibration *c, bool check, double lambda, struct moe_map_preference *out,
                   struct moe_err *err)
{
    const struct moe_corpus *corpus = check ? c->check : c->corpus;
    const struct moe_quality *reference = check ? &c->check_reference : &c->reference;
    struct moe_quality q = {.corpus = corpus};
    struct bench b;
    q.nats = moe_alloc(corpus->n_documents, sizeof *q.nats, err);
    q.changed = moe_alloc(corpus->n_documents, sizeof *q.changed, err);
    int status = open_bench(&b, c, corpus, lambda, err);
    if (status == MOE_OK && !(q.nats && q.changed))
        status = MOE_ERR_MEMORY;
    for (uint32_t d = 0; d < corpus->n_documents && status == MOE_OK; d++) {
        status = decode(&b, corpus, d, reference, &q, err);
        if (status == MOE_OK && moe_progress_stopped(c->options->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    if (status == MOE_OK) {
        const struct moe_phase_stats *s = &b.session->stats.decode;
        out->lambda = lambda;
        moe_quality_loss(&q, reference, 0, corpus->n_documents, &out->loss);
        out->bytes_per_token = (double)s->bytes_read / (double)s->tokens;
        out->replaced_share = (double)s->experts.substituted / (double)s->experts.activations;
    }
    close_bench(&b);
    moe_quality_release(&q);
    return status;
}

/* Into the curve, which rises. */
static void note(struct moe_map_routing *r, const struct moe_map_preference *p)
{
    uint32_t at = r->n_points++;
    for (; at > 0 && r->points[at - 1].lambda > p->lambda; at--)
        r->points[at] = r->points[at - 1];
    r->points[at] = *p;
}

int calibrate_routing(struct calibration *c, struct moe_err *err)
{
    struct moe_map_routing *r = &c->map->routing;
    const struct moe_config *config = &c->model->config;
    struct moe_map_preference p, none, found;
    uint32_t low = 0, high = MOST_HUNDREDTHS;
    if (config->top_k < 2)
        return moe_fail(err, MOE_ERR_USAGE,
                        "option --routing-tolerance: the strongest expert stays, and routers of %s "
                        "choose no other",
                        moe_pack_path(c->model->pack));
    *r = (struct moe_map_routing){.keeps = 1,
                                  .tolerance = c->options->routing_tolerance,
                                  .cache_bytes = c->options->routing_cache};
    int status = measure(c, false, 0, &none, err);
    found = none;
    if (status == MOE_OK)
        note(r, &none);
    while (low < high && status == MOE_OK) {
        uint32_t lambda = low + (high - low + 1) / 2;
        moe_progress_report(c->options->progress, "routing", r->n_points, r->n_points + 4);
        status = measure(c, false, lambda / 100.0, &p, err);
        if (status != MOE_OK)
            break;
        note(r, &p);
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
        status = measure(c, true, found.lambda, &p, err);
        r->check = p.loss;
    }
    r->there = status == MOE_OK;
    return status;
}
