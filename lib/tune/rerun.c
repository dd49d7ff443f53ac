/* Passes run again from a layer on. */
#include "tune/rerun.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "infer/forward.h"
#include "model/config.h"

/*
 * What the files of re-runs share.
 */
enum { RERUN_NONE = UINT32_MAX };

struct moe_rerun {
    struct moe_rerun_options options;
    const struct moe_corpus *corpus;
    struct moe_session *session;
    struct moe_scores scores;
    struct moe_assigner assigner;
    uint32_t hidden, n_layers, n_encoder;
    /* Before layer `layer` and after it: [n_predicted][hidden], without each document's last token,
     * as everywhere here: it predicts nothing. Of sources, while the layer is the encoder's:
     * [n_source_tokens][hidden]; after it the first of these is what decoders attend to. */
    float *states[2], *source_states[2];
    /* The same before the layer whose choice of positions `layer` shares (model/config.h); NULL: no
     * layer shares one. */
    float *choosing_states;
    uint32_t layer, looked; /* looked: the layer that the second ones come from; RERUN_NONE: none */
    uint32_t *held;         /* [n_sources] the document whose kept source each has; RERUN_NONE */
    /* The pass under way: jobs in sequences 0, 1, ... */
    uint32_t n_jobs;
    const struct moe_job *jobs;
    const struct moe_rule *rule;
    uint8_t *visited;
    struct moe_row *rows; /* [batch] */
    float *in, *out;      /* [batch][hidden] */
    double *nats;         /* [batch] */
    uint32_t *targets, *best;
    /* Answers to the pass's sources; `answering`: they are being written, and a decoder pass has
     * one row for each active one. */
    struct moe_answers answers;
    bool answering;
};

/* Rows of a job in a layer. */
static inline uint32_t rerun_rows(const struct moe_rerun *r, const struct moe_job *job,
                                  uint32_t layer)
{
    return layer < r->n_encoder ? moe_corpus_source(r->corpus, job->document)
                                : moe_corpus_length(r->corpus, job->document) - 1;
}

/* Sets the pass's jobs, as many as fit. */
static void rerun_take_jobs(struct moe_rerun *r, const struct moe_job *jobs, uint64_t n);
/* The sources of its jobs through layers [begin, end) of the encoder. look: the states after them
 * go to r->out; else these are the last layers, and the sources what the jobs attend to. */
static int rerun_encode(struct moe_rerun *r, uint32_t begin, uint32_t end, bool look,
                        struct moe_err *err);
/* One pass through layers [begin, end) of the jobs that fit, the encoder's first; *n: how many they
 * were. r->out has the states after a pass of one layer. */
static int rerun_pass(struct moe_rerun *r, uint32_t begin, uint32_t end, const struct moe_job *jobs,
                      uint64_t *n, struct moe_err *err);
/* Has the assigner that the session asks call the rule. */
static void rerun_assign(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                         const uint32_t *chosen, const float *weights, uint8_t *variants);
/* No source is encoded as the kept states say. */
static void rerun_forget_sources(struct moe_rerun *r);

enum { DEFAULT_ROWS = 1024, MAX_SEQUENCES = 64 };

/* ---- Opening ---- */

static struct moe_session_options session_options(const struct moe_corpus *corpus,
                                                  const struct moe_rerun_options *options)
{
    uint32_t rows = options->rows ? options->rows : DEFAULT_ROWS;
    uint32_t context = corpus->longest > 2 ? corpus->longest - 1 : 1; /* in rows */
    uint32_t source = corpus->longest_source, longest;
    context = context > options->answer_tokens ? context : options->answer_tokens;
    longest = context > source ? context : source;
    rows = rows > longest ? rows : longest;
    uint32_t n = 2 * (rows / longest); /* documents are shorter than the longest */
    return (struct moe_session_options){
        .context = context,
        .n_sequences = n < MAX_SEQUENCES ? n : MAX_SEQUENCES,
        .source_context = source,
        .batch = rows,
        .n_variants = options->n_variants,
    };
}

/* Everything but session and scores, in one block with the object in front; NULL on an arena that
 * only counts. */
static struct moe_rerun *place_rerun(struct moe_arena *arena, const struct moe_config *config,
                                     const struct moe_corpus *corpus,
                                     const struct moe_rerun_options *options)
{
    struct moe_rerun *place = moe_arena_take(arena, 1, sizeof *place);
    const struct moe_session_options session = session_options(corpus, options);
    uint64_t batch = session.batch, hidden = moe_config_state_width(config);
    struct moe_rerun r = {.options = *options,
                          .corpus = corpus,
                          .hidden = moe_config_state_width(config),
                          .n_layers = config->n_layers,
                          .n_encoder = config->n_encoder,
                          .looked = RERUN_NONE};
    r.rows = moe_arena_take(arena, batch, sizeof *r.rows);
    r.nats = moe_arena_take(arena, batch, sizeof *r.nats);
    r.targets = moe_arena_take(arena, batch, sizeof *r.targets);
    r.best = moe_arena_take(arena, batch, sizeof *r.best);
    moe_answers_carve(&r.answers, arena, session.n_sequences, options->answer_tokens);
    r.held = moe_arena_take(arena, session.n_sequences, sizeof *r.held);
    if (options->keeps_states) {
        bool shares = moe_config_count_layers(config, MOE_LAYER(shares_choice)) > 0;
        r.in = moe_arena_take(arena, batch * hidden, sizeof *r.in);
        r.out = moe_arena_take(arena, batch * hidden, sizeof *r.out);
        for (int i = 0; i < 2; i++) {
            r.states[i] = moe_arena_take(arena, corpus->n_predicted * hidden, sizeof *r.in);
            r.source_states[i] =
                moe_arena_take(arena, corpus->n_source_tokens * hidden, sizeof *r.in);
        }
        if (shares)
            r.choosing_states = moe_arena_take(arena, corpus->n_predicted * hidden, sizeof *r.in);
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
    place_rerun(&arena, config, corpus, options);
    uint64_t jobs = (uint64_t)corpus->n_documents * sizeof(struct moe_job);
    uint64_t bytes =
        moe_session_bytes(config, &session) + moe_scores_bytes(config, session.batch) + jobs;
    return !arena.overflowed && moe_add_u64(bytes, arena.used, &bytes) ? bytes : UINT64_MAX;
}

int moe_rerun_open(struct moe_rerun **out, struct moe_model *model, struct moe_experts *experts,
                   const struct moe_corpus *corpus, const struct moe_rerun_options *options,
                   struct moe_err *err)
{
    struct moe_arena arena = {0};
    *out = NULL;
    place_rerun(&arena, &model->config, corpus, options);
    if (arena.overflowed)
        return moe_fail(err, MOE_ERR_MEMORY, "out of memory: the texts' states overflow");
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, err), .size = arena.used};
    if (!arena.base)
        return MOE_ERR_MEMORY;
    struct moe_rerun *r = place_rerun(&arena, &model->config, corpus, options);
    const struct moe_session_options session = session_options(corpus, options);
    int status = MOE_OK;
    if ((corpus->pairs != NULL) != (r->n_encoder > 0))
        MOE_STEP(moe_fail(err, MOE_ERR_USAGE,
                          r->n_encoder ? "the model has an encoder: it takes pairs"
                                       : "the model has no encoder: it takes texts"));
    MOE_STEP(moe_session_open(&r->session, model, experts, &session, err));
    MOE_STEP(moe_scores_open(&r->scores, r->session, err));
out:
    if (status != MOE_OK) {
        moe_rerun_close(r);
        return status;
    }
    r->assigner = (struct moe_assigner){r, rerun_assign};
    r->session->assigner = &r->assigner;
    rerun_forget_sources(r);
    *out = r;
    return MOE_OK;
}

void moe_rerun_close(struct moe_rerun *r)
{
    if (!r)
        return;
    if (r->session)
        moe_scores_close(&r->scores);
    moe_answers_release(&r->answers);
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

/* ---- Jobs ---- */

static int give_results(struct moe_rerun *r, const struct moe_sink *sink, struct moe_err *err)
{
    uint32_t n_rows = 0, at = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++)
        n_rows += rerun_rows(r, &r->jobs[j], r->n_encoder);
    MOE_TRY(moe_score_rows(&r->scores, 0, n_rows, r->targets, r->nats, r->best, err));
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t length = rerun_rows(r, &r->jobs[j], r->n_encoder);
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
        int status = rerun_pass(r, layer, r->n_layers, jobs + done, &taken, err);
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

/* ---- Answers ---- */

uint32_t moe_rerun_answer_tokens(const struct moe_rerun *r)
{
    return r->options.answer_tokens;
}

/* For the pass's jobs, whose sources are encoded. */
static int answer_jobs(struct moe_rerun *r, const struct moe_answer_sink *sink, struct moe_err *err)
{
    const struct moe_tokenizer *tokenizer = r->session->model->tokenizer;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        const uint32_t document = r->jobs[j].document;
        r->answers.begins[j] =
            moe_answers_begin(tokenizer, r->corpus->ids + r->corpus->first[document],
                              moe_corpus_length(r->corpus, document));
    }
    r->answering = true;
    int status = moe_answers_write(&r->answers, &r->scores, r->n_jobs, err);
    r->answering = false;
    for (uint32_t j = 0; j < r->n_jobs && status == MOE_OK; j++) {
        struct moe_answer_quality quality;
        uint32_t document = r->jobs[j].document;
        status = moe_answers_judge(&r->answers, tokenizer, j,
                                   r->corpus->target_text + r->corpus->pairs[document].text,
                                   &quality, err);
        if (status == MOE_OK)
            sink->done(sink->ctx, document, &quality);
    }
    return status;
}

int moe_rerun_answers(struct moe_rerun *r, const struct moe_rule *rule,
                      const struct moe_answer_sink *sink, struct moe_err *err)
{
    struct moe_job *jobs = every_document(r, MOE_TAG_ANSWER, err);
    int status = jobs ? MOE_OK : MOE_ERR_MEMORY;
    r->rule = rule;
    for (uint64_t done = 0; done < r->corpus->n_documents && status == MOE_OK; done += r->n_jobs) {
        rerun_take_jobs(r, jobs + done, r->corpus->n_documents - done);
        if (moe_progress_stopped(r->options.progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
        if (status == MOE_OK)
            status = rerun_encode(r, 0, r->n_encoder, false, err);
        if (status == MOE_OK)
            status = answer_jobs(r, sink, err);
    }
    free(jobs);
    return status;
}

/* ---- States ---- */

uint32_t moe_rerun_layer(const struct moe_rerun *r)
{
    return r->layer;
}

/* Keeps the states after the layer. */
static void keep_states(struct moe_rerun *r)
{
    bool encode = r->layer < r->n_encoder;
    float *states = encode ? r->source_states[1] : r->states[1];
    uint64_t at = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t document = r->jobs[j].document;
        uint64_t to =
            encode ? r->corpus->pairs[document].source : moe_corpus_prediction(r->corpus, document);
        uint64_t length = rerun_rows(r, &r->jobs[j], r->layer);
        memcpy(states + to * r->hidden, r->out + at * r->hidden,
               length * r->hidden * sizeof *r->out);
        at += length;
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
        status = rerun_pass(r, r->layer, r->layer + 1, jobs + done, &taken, err);
        if (status == MOE_OK && r->layer + 1 < r->n_layers)
            keep_states(r);
    }
    r->visited = NULL;
    r->looked = status == MOE_OK ? r->layer : RERUN_NONE;
    free(jobs);
    return status;
}

void moe_rerun_step(struct moe_rerun *r)
{
    float **states = r->layer < r->n_encoder ? r->source_states : r->states, *before = states[0];
    if (r->looked != r->layer)
        return; /* the states after this layer are not known */
    states[0] = states[1];
    states[1] = before;
    if (r->choosing_states &&
        moe_config_beginning(&r->session->model->config, r->layer + 1) == r->layer) {
        states[1] = r->choosing_states;
        r->choosing_states = before;
    }
    r->layer++;
    r->looked = RERUN_NONE;
}

void moe_rerun_rewind(struct moe_rerun *r)
{
    r->layer = 0;
    r->looked = RERUN_NONE;
    rerun_forget_sources(r);
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

/*
 * Passes of re-runs. Of models with an encoder a pass has two parts: the sources of its jobs, and
 * the jobs' documents, which attend to them.
 *
 * Jobs that begin in the encoder have a source each, as their rule makes it. Those that begin in
 * the decoder attend to the kept ones: the keys and values of these are made of the encoder's kept
 * output and stay in the session until another needs the room, for any number of jobs.
 */

/* ---- Precision ---- */

static void rerun_assign(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                         const uint32_t *chosen, const float *weights, uint8_t *variants)
{
    struct moe_rerun *r = ctx;
    uint32_t k = r->session->model->config.top_k, n_experts = r->session->model->config.n_experts;
    uint64_t at = 0;
    (void)rows, (void)n_rows;
    bool answering = r->answering && layer >= r->n_encoder;
    for (uint32_t j = 0; j < (answering ? r->answers.n_active : r->n_jobs); j++) {
        const struct moe_job *job = &r->jobs[answering ? r->answers.active[j] : j];
        uint64_t n = answering ? 1 : rerun_rows(r, job, layer), pairs = n * k;
        r->rule->assign(r->rule->ctx, layer, job, (uint32_t)n, chosen + at, weights + at,
                        variants + at);
        uint8_t *visited = r->visited ? r->visited + (uint64_t)job->document * n_experts : NULL;
        for (uint64_t i = 0; visited && i < pairs; i++)
            visited[chosen[at + i]] = 1;
        at += pairs;
    }
}

/* ---- Which jobs ---- */

/* As many of the jobs as one pass takes. */
static void rerun_take_jobs(struct moe_rerun *r, const struct moe_job *jobs, uint64_t n)
{
    const struct moe_session *s = r->session;
    uint64_t n_rows = 0, n_source = 0;
    r->jobs = jobs;
    for (r->n_jobs = 0; r->n_jobs < n && r->n_jobs < s->n_sequences; r->n_jobs++) {
        n_rows += rerun_rows(r, &jobs[r->n_jobs], r->n_encoder);
        n_source += r->n_encoder ? rerun_rows(r, &jobs[r->n_jobs], 0) : 0;
        if (n_rows > s->batch || n_source > s->batch)
            break;
    }
}

/* ---- Sources ---- */

static void rerun_forget_sources(struct moe_rerun *r)
{
    for (uint32_t i = 0; i < r->session->n_sources; i++)
        r->held[i] = RERUN_NONE;
}

/* Appends the rows of a document's source to the pass; states: what to begin from, or NULL. */
static void put_source(struct moe_rerun *r, uint32_t document, uint32_t slot, const float *states,
                       uint32_t *n_rows)
{
    uint64_t from = r->corpus->pairs[document].source;
    uint32_t length = moe_corpus_source(r->corpus, document);
    if (states)
        memcpy(r->in + (uint64_t)*n_rows * r->hidden, states + from * r->hidden,
               (uint64_t)length * r->hidden * sizeof *r->in);
    for (uint32_t i = 0; i < length; i++)
        r->rows[(*n_rows)++] = (struct moe_row){slot, i, r->corpus->source_ids[from + i], length};
}

/* The jobs' own sources through layers [begin, end) of the encoder; up to its end, they are what
 * the jobs attend to. */
static int rerun_encode(struct moe_rerun *r, uint32_t begin, uint32_t end, bool look,
                        struct moe_err *err)
{
    uint32_t n_rows = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        put_source(r, r->jobs[j].document, j, begin ? r->source_states[0] : NULL, &n_rows);
        r->held[j] = RERUN_NONE;
        moe_sequence_attend(r->session, j, j);
    }
    int status = moe_forward(r->session, MOE_ENCODE, r->rows, n_rows, begin, end,
                             begin ? r->in : NULL, look ? r->out : NULL, err);
    return status == MOE_OK && !look ? moe_encode_keep(r->session, r->rows, n_rows, NULL, err)
                                     : status;
}

/* Where the session has, or is to have, a document's kept source: a place that no job of the pass
 * before this one needs. */
static uint32_t find_place(const struct moe_rerun *r, uint32_t job)
{
    const struct moe_session *s = r->session;
    uint32_t document = r->jobs[job].document, place = RERUN_NONE;
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (r->held[i] == document)
            return i;
    for (uint32_t i = 0; i < s->n_sources && place == RERUN_NONE; i++) {
        bool needed = false;
        for (uint32_t j = 0; j < r->n_jobs && !needed; j++)
            needed = r->held[i] == r->jobs[j].document;
        place = needed ? RERUN_NONE : i;
    }
    return place; /* there are as many as sequences */
}

/* Has the jobs attend to the kept sources. */
static int attend_kept(struct moe_rerun *r, struct moe_err *err)
{
    uint32_t n_rows = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t place = find_place(r, j);
        if (r->held[place] != r->jobs[j].document)
            put_source(r, r->jobs[j].document, place, r->source_states[0], &n_rows);
        r->held[place] = r->jobs[j].document;
        moe_sequence_attend(r->session, j, place);
    }
    if (n_rows == 0)
        return MOE_OK;
    /* Through no layers: only what the decoder attends to is made of the states. */
    int status = moe_forward(r->session, MOE_ENCODE, r->rows, n_rows, r->n_encoder, r->n_encoder,
                             r->in, NULL, err);
    if (status == MOE_OK)
        status = moe_encode_keep(r->session, r->rows, n_rows, NULL, err);
    if (status != MOE_OK)
        rerun_forget_sources(r);
    return status;
}

/* ---- Documents ---- */

/* The kept states of the jobs' rows, side by side. */
static const float *states_of_jobs(struct moe_rerun *r, const float *states, uint32_t layer)
{
    float *to = r->in;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint64_t from = moe_corpus_prediction(r->corpus, r->jobs[j].document);
        uint64_t n = (uint64_t)rerun_rows(r, &r->jobs[j], layer) * r->hidden;
        memcpy(to, states + from * r->hidden, n * sizeof *to);
        to += n;
    }
    return r->in;
}

/* If the layer shares its choice of positions, runs the layer before `begin` that makes it; only
 * the choice is used, and nobody sees the rest. */
static int choose_again(struct moe_rerun *r, uint32_t n_rows, uint32_t begin, struct moe_err *err)
{
    uint32_t layer = moe_config_beginning(&r->session->model->config, begin);
    uint8_t *visited = r->visited;
    const struct moe_observer observer = r->session->observer;
    if (layer == begin)
        return MOE_OK;
    r->visited = NULL;
    r->session->observer = (struct moe_observer){0};
    int status =
        moe_forward(r->session, MOE_PREFILL, r->rows, n_rows, layer, layer + 1,
                    layer ? states_of_jobs(r, r->choosing_states, layer) : NULL, NULL, err);
    r->session->observer = observer;
    r->visited = visited;
    return status;
}

static int run_documents(struct moe_rerun *r, uint32_t begin, uint32_t end, struct moe_err *err)
{
    bool from_states = begin > r->n_encoder;
    /* A text that is scored has no prompt that sees all of itself. */
    bool prefix_lm = r->session->model->config.prefix_lm;
    uint32_t n_rows = 0;
    for (uint32_t j = 0; j < r->n_jobs; j++) {
        uint32_t document = r->jobs[j].document, length = rerun_rows(r, &r->jobs[j], begin);
        const uint32_t *ids = r->corpus->ids + r->corpus->first[document];
        for (uint32_t i = 0; i < length; i++, n_rows++) {
            r->rows[n_rows] = (struct moe_row){j, i, ids[i], prefix_lm ? 0 : length};
            r->targets[n_rows] = ids[i + 1];
        }
    }
    MOE_TRY(choose_again(r, n_rows, begin, err));
    return moe_forward(r->session, MOE_PREFILL, r->rows, n_rows, begin, end,
                       from_states ? states_of_jobs(r, r->states[0], begin) : NULL,
                       end < r->n_layers ? r->out : NULL, err);
}

static int rerun_pass(struct moe_rerun *r, uint32_t begin, uint32_t end, const struct moe_job *jobs,
                      uint64_t *n, struct moe_err *err)
{
    rerun_take_jobs(r, jobs, *n);
    *n = r->n_jobs;
    if (moe_progress_stopped(r->options.progress))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    if (begin < r->n_encoder)
        MOE_TRY(rerun_encode(r, begin, end < r->n_encoder ? end : r->n_encoder, end <= r->n_encoder,
                             err));
    else if (r->n_encoder)
        MOE_TRY(attend_kept(r, err));
    if (end > r->n_encoder)
        MOE_TRY(run_documents(r, begin < r->n_encoder ? r->n_encoder : begin, end, err));
    return MOE_OK;
}
