#include "study/rerun.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "study/score.h"

enum { DEFAULT_ROWS = 1024, MAX_SEQUENCES = 64 };

struct moe_rerun {
    struct moe_rerun_options options;
    const struct moe_corpus *corpus;
    struct moe_session *session;
    struct moe_scores scores;
    struct moe_assigner assigner;
    uint32_t hidden, n_layers;
    /* Before layer `layer` and after it: [n_predicted][hidden], without each document's last token,
     * as everywhere here: it predicts nothing. */
    float *states[2];
    uint32_t layer, looked; /* looked: the layer that states[1] come from; UINT32_MAX: none */
    /* The pass under way: jobs in sequences 0, 1, ... */
    uint32_t n_jobs;
    const struct moe_job *jobs;
    const struct moe_rule *rule;
    uint8_t *visited;
    struct moe_row *rows; /* [batch] */
    float *in, *out;      /* [batch][hidden] */
    double *nats;         /* [batch] */
    uint32_t *targets, *best;
};

static uint32_t rows_of(const struct moe_rerun *r, const struct moe_job *job)
{
    return moe_corpus_length(r->corpus, job->document) - 1;
}

/* ---- Opening ---- */

static struct moe_session_options session_options(const struct moe_corpus *corpus,
                                                  const struct moe_rerun_options *options)
{
    uint32_t rows = options->rows ? options->rows : DEFAULT_ROWS;
    uint32_t longest = corpus->longest > 2 ? corpus->longest - 1 : 1; /* in rows */
    rows = rows > longest ? rows : longest;
    uint32_t n = 2 * (rows / longest); /* documents are shorter than the longest */
    return (struct moe_session_options){
        .context = longest,
        .n_sequences = n < MAX_SEQUENCES ? n : MAX_SEQUENCES,
        .batch = rows,
        .n_variants = options->n_variants,
    };
}

/* Everything but session and scores, in one block with the object in front; NULL on an arena that
 * only counts. */
static struct moe_rerun *carve(struct moe_arena *arena, const struct moe_config *config,
                               const struct moe_corpus *corpus,
                               const struct moe_rerun_options *options)
{
    struct moe_rerun *place = moe_arena_take(arena, 1, sizeof *place);
    uint64_t batch = session_options(corpus, options).batch, hidden = config->hidden;
    struct moe_rerun r = {.options = *options,
                          .corpus = corpus,
                          .hidden = config->hidden,
                          .n_layers = config->n_layers,
                          .looked = UINT32_MAX};
    r.rows = moe_arena_take(arena, batch, sizeof *r.rows);
    r.nats = moe_arena_take(arena, batch, sizeof *r.nats);
    r.targets = moe_arena_take(arena, batch, sizeof *r.targets);
    r.best = moe_arena_take(arena, batch, sizeof *r.best);
    if (options->keeps_states) {
        r.in = moe_arena_take(arena, batch * hidden, sizeof *r.in);
        r.out = moe_arena_take(arena, batch * hidden, sizeof *r.out);
        for (int i = 0; i < 2; i++)
            r.states[i] = moe_arena_take(arena, corpus->n_predicted * hidden, sizeof *r.in);
    }
    if (place)
        *place = r;
    return place;
}

uint32_t moe_rerun_rows(const struct moe_corpus *corpus, const struct moe_rerun_options *options)
{
    return session_options(corpus, options).batch;
}

uint64_t moe_rerun_bytes(const struct moe_config *config, const struct moe_corpus *corpus,
                         const struct moe_rerun_options *options)
{
    struct moe_arena arena = {0};
    struct moe_session_options session = session_options(corpus, options);
    carve(&arena, config, corpus, options);
    uint64_t jobs = (uint64_t)corpus->n_documents * sizeof(struct moe_job);
    uint64_t bytes =
        moe_session_bytes(config, &session) + moe_scores_bytes(config, session.batch) + jobs;
    return !arena.overflowed && moe_add_u64(bytes, arena.used, &bytes) ? bytes : UINT64_MAX;
}

static void assign(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                   const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    struct moe_rerun *r = ctx;
    uint32_t k = r->session->model->config.top_k, n_experts = r->session->model->config.n_experts;
    uint64_t at = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint64_t n = rows_of(r, &r->jobs[j]), pairs = n * k;
        r->rule->assign(r->rule->ctx, layer, &r->jobs[j], (uint32_t)n, chosen + at, weights + at,
                        variants + at);
        uint8_t *visited =
            r->visited ? r->visited + (uint64_t)r->jobs[j].document * n_experts : NULL;
        for (uint64_t i = 0; visited && i < pairs; i++)
            visited[chosen[at + i]] = 1;
        at += pairs;
    }
}

int moe_rerun_open(struct moe_rerun **out, struct moe_model *model, struct moe_experts *experts,
                   const struct moe_corpus *corpus, const struct moe_rerun_options *options,
                   struct moe_err *err)
{
    struct moe_arena arena = {0};
    *out = NULL;
    carve(&arena, &model->config, corpus, options);
    if (arena.overflowed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the texts' states overflow");
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, err), .size = arena.used};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_rerun *r = carve(&arena, &model->config, corpus, options);
    const struct moe_session_options session = session_options(corpus, options);
    int status = moe_session_open(&r->session, model, experts, &session, err);
    if (status == MOE_OK)
        status = moe_scores_open(&r->scores, r->session, err);
    if (status != MOE_OK) {
        moe_rerun_close(r);
        return status;
    }
    r->assigner = (struct moe_assigner){r, assign};
    r->session->assigner = &r->assigner;
    *out = r;
    return MOE_OK;
}

void moe_rerun_close(struct moe_rerun *r)
{
    if (!r)
        return;
    if (r->session)
        moe_scores_close(&r->scores);
    moe_session_close(r->session);
    free(r); /* the first of its block */
}

struct moe_session *moe_rerun_session(struct moe_rerun *r)
{
    return r->session;
}

const struct moe_corpus *moe_rerun_corpus(const struct moe_rerun *r)
{
    return r->corpus;
}

/* ---- Passes ---- */

/* As many of the jobs as one pass takes; sets r->rows. Returns their rows. */
static uint32_t fill_pass(struct moe_rerun *r, const struct moe_job *jobs, uint64_t n)
{
    uint32_t n_rows = 0;
    r->jobs = jobs;
    for (r->n_jobs = 0; r->n_jobs < n && r->n_jobs < r->session->n_sequences; r->n_jobs++) {
        uint32_t length = rows_of(r, &jobs[r->n_jobs]);
        if (n_rows + length > r->session->batch)
            break;
        const uint32_t *ids = r->corpus->ids + r->corpus->first[jobs[r->n_jobs].document];
        for (uint32_t i = 0; i < length; i++, n_rows++) {
            r->rows[n_rows] = (struct moe_row){r->n_jobs, i, ids[i], length};
            r->targets[n_rows] = ids[i + 1];
        }
    }
    return n_rows;
}

/* One pass of the jobs that fit; *n: how many they were. */
static int run_pass(struct moe_rerun *r, uint32_t begin, uint32_t end, const struct moe_job *jobs,
                    uint64_t *n, struct moe_err *err)
{
    uint32_t n_rows = fill_pass(r, jobs, *n), at = 0;
    bool keep = end < r->n_layers;
    for (uint32_t j = 0; begin > 0 && j < r->n_jobs; j++) {
        uint64_t from = moe_corpus_prediction(r->corpus, jobs[j].document);
        uint64_t length = rows_of(r, &jobs[j]);
        memcpy(r->in + (uint64_t)at * r->hidden, r->states[0] + from * r->hidden,
               length * r->hidden * sizeof *r->in);
        at += (uint32_t)length;
    }
    *n = r->n_jobs;
    if (moe_progress_stopped(r->options.progress))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    return moe_forward(r->session, MOE_PREFILL, r->rows, n_rows, begin, end, begin ? r->in : NULL,
                       keep ? r->out : NULL, err);
}

static int give_results(struct moe_rerun *r, const struct moe_sink *sink, struct moe_err *err)
{
    uint32_t n_rows = 0, at = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++)
        n_rows += rows_of(r, &r->jobs[j]);
    int status = moe_score_rows(&r->scores, 0, n_rows, r->targets, r->nats, r->best, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t length = rows_of(r, &r->jobs[j]);
        sink->done(sink->ctx, &r->jobs[j], r->nats + at, r->best + at, length);
        at += length;
    }
    return MOE_OK;
}

int moe_rerun_jobs(struct moe_rerun *r, uint32_t layer, const struct moe_job *jobs, uint64_t n,
                   const struct moe_rule *rule, const struct moe_sink *sink, struct moe_err *err)
{
    if (layer != 0 && layer != r->layer)
        return moe_fail(err, MOE_ERR_USAGE, "states are kept before layer %u, not %u", r->layer,
                        layer);
    r->rule = rule;
    for (uint64_t done = 0, taken; done < n; done += taken) {
        taken = n - done;
        int status = run_pass(r, layer, r->n_layers, jobs + done, &taken, err);
        if (status == MOE_OK && sink)
            status = give_results(r, sink, err);
        if (status != MOE_OK)
            return status;
    }
    return MOE_OK;
}

/* A job for every document; free() it. */
static struct moe_job *every_document(const struct moe_rerun *r, uint32_t tag, struct moe_err *err)
{
    struct moe_job *jobs = moe_alloc(r->corpus->n_documents, sizeof *jobs, err);
    for (uint32_t d = 0; jobs && d < r->corpus->n_documents; d++)
        jobs[d] = (struct moe_job){d, tag};
    return jobs;
}

int moe_rerun_all(struct moe_rerun *r, uint32_t tag, const struct moe_rule *rule,
                  const struct moe_sink *sink, struct moe_err *err)
{
    struct moe_job *jobs = every_document(r, tag, err);
    int status =
        jobs ? moe_rerun_jobs(r, 0, jobs, r->corpus->n_documents, rule, sink, err) : MOE_ERR_MEMORY;
    free(jobs);
    return status;
}

/* ---- States ---- */

uint32_t moe_rerun_layer(const struct moe_rerun *r)
{
    return r->layer;
}

static void keep_states(struct moe_rerun *r)
{
    uint32_t at = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint64_t to = moe_corpus_prediction(r->corpus, r->jobs[j].document);
        uint64_t length = rows_of(r, &r->jobs[j]);
        memcpy(r->states[1] + to * r->hidden, r->out + (uint64_t)at * r->hidden,
               length * r->hidden * sizeof *r->out);
        at += (uint32_t)length;
    }
}

int moe_rerun_look(struct moe_rerun *r, const struct moe_rule *rule, uint8_t *visited,
                   struct moe_err *err)
{
    uint32_t n = r->corpus->n_documents;
    struct moe_job *jobs = every_document(r, 0, err);
    int status = jobs ? MOE_OK : MOE_ERR_MEMORY;
    if (visited)
        memset(visited, 0, (uint64_t)n * r->session->model->config.n_experts);
    r->rule = rule;
    r->visited = visited;
    for (uint64_t done = 0, taken; done < n && status == MOE_OK; done += taken) {
        taken = n - done;
        status = run_pass(r, r->layer, r->layer + 1, jobs + done, &taken, err);
        if (status == MOE_OK && r->layer + 1 < r->n_layers)
            keep_states(r);
    }
    r->visited = NULL;
    r->looked = status == MOE_OK ? r->layer : UINT32_MAX;
    free(jobs);
    return status;
}

void moe_rerun_step(struct moe_rerun *r)
{
    float *before = r->states[0];
    if (r->looked != r->layer)
        return; /* the states after this layer are not known */
    r->states[0] = r->states[1];
    r->states[1] = before;
    r->layer++;
    r->looked = UINT32_MAX;
}

void moe_rerun_rewind(struct moe_rerun *r)
{
    r->layer = 0;
    r->looked = UINT32_MAX;
}

/* ---- The usual rule ---- */

static void assign_table(void *ctx, uint32_t layer, const struct moe_job *job, uint32_t n_rows,
                         const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    const struct moe_rule_table *t = ctx;
    const uint8_t *of = t->table + (uint64_t)layer * t->n_experts;
    for (uint64_t i = 0; i < (uint64_t)n_rows * t->top_k; i++)
        variants[i] = of[chosen[i]];
}

struct moe_rule moe_rule_of_table(struct moe_rule_table *table)
{
    return (struct moe_rule){table, assign_table};
}
