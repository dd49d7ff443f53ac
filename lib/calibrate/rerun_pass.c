/*
 * Passes of re-runs. Of models with an encoder a pass has two parts: the sources of its jobs, and
 * the jobs' documents, which attend to them.
 *
 * Jobs that begin in the encoder have a source each, as their rule makes it. Those that begin in
 * the decoder attend to the kept ones: the keys and values of these are made of the encoder's kept
 * output and stay in the session until another needs the room, for any number of jobs.
 */
#include <string.h>

#include "calibrate/rerun_private.h"

/* ---- Precision ---- */

void rerun_assign(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
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
void rerun_take_jobs(struct moe_rerun *r, const struct moe_job *jobs, uint64_t n)
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

void rerun_forget_sources(struct moe_rerun *r)
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
int rerun_encode(struct moe_rerun *r, uint32_t begin, uint32_t end, bool look, struct moe_err *err)
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

/* Has a layer before `begin` choose the positions that this one's rows see, if it shares a choice:
 * nothing else that it computes is wanted. */
static int choose_again(struct moe_rerun *r, uint32_t n_rows, uint32_t begin, struct moe_err *err)
{
    uint32_t layer = moe_config_beginning(&r->session->model->config, begin);
    uint8_t *visited = r->visited;
    if (layer == begin)
        return MOE_OK;
    r->visited = NULL;
    int status =
        moe_forward(r->session, MOE_PREFILL, r->rows, n_rows, layer, layer + 1,
                    layer ? states_of_jobs(r, r->choosing_states, layer) : NULL, NULL, err);
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
    int status = choose_again(r, n_rows, begin, err);
    if (status != MOE_OK)
        return status;
    return moe_forward(r->session, MOE_PREFILL, r->rows, n_rows, begin, end,
                       from_states ? states_of_jobs(r, r->states[0], begin) : NULL,
                       end < r->n_layers ? r->out : NULL, err);
}

int rerun_pass(struct moe_rerun *r, uint32_t begin, uint32_t end, const struct moe_job *jobs,
               uint64_t *n, struct moe_err *err)
{
    int status = MOE_OK;
    rerun_take_jobs(r, jobs, *n);
    *n = r->n_jobs;
    if (moe_progress_stopped(r->options.progress))
        return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    if (begin < r->n_encoder)
        status = rerun_encode(r, begin, end < r->n_encoder ? end : r->n_encoder,
                              end <= r->n_encoder, err);
    else if (r->n_encoder)
        status = attend_kept(r, err);
    if (status == MOE_OK && end > r->n_encoder)
        status = run_documents(r, begin < r->n_encoder ? r->n_encoder : begin, end, err);
    return status;
}
