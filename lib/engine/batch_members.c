#include "engine/batch_members.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/encode.h"
#include "engine/prompt.h"
#include "run/source.h"

enum {
    WORTH_WAITING = 16, /* positions that another computes: fewer are as well computed twice */
    LOOK_AHEAD = 64,    /* of those that wait behind one that does */
};

void batch_free_member(struct member *m)
{
    if (!m)
        return;
    moe_buf_release(&m->answer.pending);
    moe_sampler_free(m->request.sampler);
    moe_ids_release(&m->source);
    moe_ids_release(&m->history);
    free(m);
}

/* ---- Waiting and running ---- */

/* A decoder's first token is no prompt: that was the source. */
bool batch_is_decoding(const struct member *m)
{
    return (m->n_done > 0 || m->source.n) && !m->waits_for_source &&
           m->history.n - m->n_done == 1 + m->n_again;
}

void batch_fail_rows(struct moe_batch *b, uint32_t n_rows, int status, const struct moe_err *err)
{
    for (uint32_t i = 0; i < n_rows; i++)
        if (b->running[b->rows[i].sequence])
            batch_finish(batch_stop_running(b, b->rows[i].sequence), status, err);
}

/* Positions that a sequence may have when it is alone. */
static uint32_t most_positions(const struct moe_session *s)
{
    uint64_t room = (uint64_t)s->kv_pool.n_blocks * s->kv_pool.block_positions;
    return room < s->context ? (uint32_t)room : s->context;
}

int moe_batch_add(struct moe_batch *b, const struct moe_batch_request *request, uint64_t *id,
                  struct moe_err *err)
{
    const struct moe_config *c = &b->session->model->config;
    uint32_t most = most_positions(b->session);
    if (request->n_prompt == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the prompt is empty");
    if (c->n_encoder) {
        int fits = moe_check_source(b->session, request->n_prompt, err);
        if (fits != MOE_OK)
            return fits;
    } else if (request->n_prompt > most)
        return moe_prompt_too_long(c, request->n_prompt, false, most, err);
    int status = moe_check_ids(b->session->model, request->prompt, request->n_prompt, err);
    if (status == MOE_OK)
        status = moe_drafting_check(b->session, &request->options, err);
    if (status != MOE_OK)
        return status;
    struct member *m = moe_alloc(1, sizeof *m, err);
    if (!m)
        return MOE_ERR_MEMORY;
    struct moe_ids *read = c->n_encoder ? &m->source : &m->history;
    for (uint64_t i = 0; i < request->n_prompt && status == MOE_OK; i++)
        status = moe_ids_push(read, request->prompt[i], err);
    if (status == MOE_OK && c->n_encoder)
        status = moe_ids_push(&m->history, c->decoder_start, err);
    if (status != MOE_OK) {
        batch_free_member(m);
        return status;
    }
    m->request = *request;
    m->request.prompt = NULL;
    m->request.options.source = m->source.ids;
    m->request.options.n_source = m->source.n;
    m->n_prompt = request->n_prompt;
    m->id = *id = ++b->n_added;
    moe_answer_begin(&m->answer, b->session->model, most, &m->request.options);
    moe_drafting_begin(&m->drafting, request->options.draft, request->options.draft_ahead);
    *b->last = m;
    b->last = &m->next;
    b->state.n_waiting++;
    return MOE_OK;
}

/* Takes one that waits. */
static struct member *take_waiting(struct moe_batch *b, struct member **at)
{
    struct member *m = *at;
    *at = m->next;
    if (!*at)
        b->last = at;
    b->state.n_waiting--;
    m->next = NULL;
    return m;
}

struct member *batch_stop_running(struct moe_batch *b, uint32_t sequence)
{
    struct member *m = b->running[sequence];
    moe_sequence_end(b->session, sequence);
    b->running[sequence] = NULL;
    b->state.n_running--;
    m->n_done = 0;
    m->n_again = 0;
    m->drafting.draft.n = 0;
    return m;
}

/* Tells how it ended, and forgets a member that neither waits nor runs. */
void batch_finish(struct member *m, int status, const struct moe_err *err)
{
    struct moe_err said = {0};
    double started = m->request.options.started;
    if (status != MOE_OK)
        said = *err;
    int shown = moe_answer_end(&m->answer, status);
    if (status == MOE_OK && shown != MOE_OK)
        moe_fail(&said, shown, "the answer's text was not taken");
    const struct moe_batch_result result = {
        .why = m->answer.why,
        .status = shown,
        .err = shown == MOE_OK ? NULL : &said,
        .n_prompt = m->n_prompt,
        .n_tokens = m->answer.n_tokens,
        .n_cached = m->n_cached,
        .n_drafted = m->n_drafted,
        .n_accepted = m->n_accepted,
        .ttft_seconds = m->ttft_seconds,
        .seconds = moe_seconds() - started,
    };
    if (m->request.ended)
        m->request.ended(m->request.options.ctx, &result);
    batch_free_member(m);
}

void batch_finish_by_user(struct member *m)
{
    m->answer.why = MOE_STOP_USER;
    batch_finish(m, MOE_OK, NULL);
}

void moe_batch_cancel(struct moe_batch *b, uint64_t id)
{
    for (uint32_t i = 0; i < b->session->n_sequences; i++)
        if (b->running[i] && b->running[i]->id == id) {
            batch_finish_by_user(batch_stop_running(b, i));
            return;
        }
    for (struct member **at = &b->first; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            batch_finish_by_user(take_waiting(b, at));
            return;
        }
}

void batch_begin_again(struct moe_batch *b, uint32_t sequence)
{
    struct member *m = batch_stop_running(b, sequence);
    m->next = b->first;
    b->first = m;
    if (!m->next)
        b->last = &m->next;
    b->state.n_waiting++;
}

void batch_make_room(struct moe_batch *b)
{
    uint32_t youngest = UINT32_MAX;
    for (uint32_t i = 0; i < b->session->n_sequences; i++)
        if (b->running[i] &&
            (youngest == UINT32_MAX || b->running[i]->id > b->running[youngest]->id))
            youngest = i;
    batch_begin_again(b, youngest);
    b->state.n_preempted++;
}

/* ---- Texts that begin alike ---- */

static bool is_far(const struct moe_session *s, const struct member *m)
{
    uint32_t original = s->model->config.rope_original;
    return original && m->history.n > original;
}

/* How many ids two members' texts begin with alike, of those that one could take over. */
static uint64_t n_alike(const struct moe_session *s, const struct member *m,
                        const struct member *from)
{
    uint64_t most = m->history.n - 1, n = 0;
    /* A text goes with its source, or with all of its prompt, or with a state that moves on. */
    if (s->n_sources || s->prompts || s->stands)
        return 0;
    most = from->history.n < most ? from->history.n : most;
    if (is_far(s, m) != is_far(s, from))
        return 0;
    while (n < most && m->history.ids[n] == from->history.ids[n])
        n++;
    return n;
}

/* Whether one that runs is about to compute what a waiting member could then take over. */
static bool is_being_computed(const struct moe_batch *b, const struct member *m)
{
    const struct moe_session *s = b->session;
    uint64_t soon = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        const struct member *r = b->running[i];
        uint64_t n = r && r->history.n - r->n_done > WORTH_WAITING ? n_alike(s, m, r) : 0;
        if (r && n > r->n_done + WORTH_WAITING && n > soon)
            soon = n;
    }
    return soon &&
           soon > WORTH_WAITING + moe_sequence_known(s, m->history.ids, (uint32_t)m->history.n);
}

/* ---- Beginning to run ---- */

/* The first that waits and need not wait for another's text; NULL: there is none. */
static struct member **next_waiting(struct moe_batch *b)
{
    struct member **at = &b->first;
    for (int i = 0; *at && i < LOOK_AHEAD; i++, at = &(*at)->next)
        if (!is_being_computed(b, *at))
            return at;
    return NULL;
}

/* Room for `wanted` positions of the member in a sequence. What others left there was of other
 * sources, where there are some: the member's is encoded later. */
static int begin(struct moe_session *s, uint32_t sequence, struct member *m, uint32_t wanted,
                 uint32_t *n_known)
{
    struct moe_err full;
    m->waits_for_source = s->n_sources > 0;
    if (!m->waits_for_source) {
        int status = moe_sequence_begin(s, sequence, m->history.ids, (uint32_t)m->history.n, wanted,
                                        n_known, &full);
        if (status == MOE_OK && s->prompts)
            moe_prompt_mark(s, sequence, m->history.ids, m->n_prompt);
        return status;
    }
    moe_sequence_attend(s, sequence, sequence);
    return moe_sequence_reserve(s, sequence, wanted, &full);
}

void batch_admit(struct moe_batch *b)
{
    struct moe_session *s = b->session;
    struct member **at;
    for (uint32_t i = 0; i < s->n_sequences && b->first; i++) {
        if (b->running[i])
            continue;
        if (!(at = next_waiting(b)))
            return;
        struct member *m = *at;
        uint32_t wanted = (uint32_t)m->history.n + 1, n_known = 0;
        if (wanted > most_positions(s))
            wanted = most_positions(s);
        if (begin(s, i, m, wanted, &n_known) != MOE_OK)
            return;
        b->running[i] = take_waiting(b, at);
        b->state.n_running++;
        m->n_done = n_known;
        m->far = is_far(s, m);
        if (!m->has_run) {
            m->has_run = true;
            m->n_cached = n_known;
            s->stats.prompt_tokens += m->n_prompt - n_known;
        }
    }
}
