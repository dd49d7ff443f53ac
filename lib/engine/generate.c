/* The generator: requests that wait, texts that run, passes over them, drafts. */
#include "engine/generate.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/par.h"
#include "engine/beams.h"
#include "engine/draft.h"
#include "engine/encode.h"
#include "engine/prompt.h"
#include "infer/forward.h"
#include "infer/stages.h"

#define OWNER_SCORES (UINT64_C(1) << 63) /* and the request's number */

enum {
    LOGITS_ROWS = 8,    /* rows whose logits are computed at a time, where several texts run */
    WORTH_WAITING = 16, /* shared positions from which on a request waits for another's */
    LOOK_AHEAD = 64,    /* waiting requests that are looked at behind one that must wait */
    DRAFT_ROWS = 16,    /* rows of a pass that texts share, the certain ones and the drafted ones:
                           more texts than that have no drafts, since their pass reads weights for
                           all of them anyway */
    MOST_AGAIN = 3,     /* with recurrent states the pass of a draft in vain is computed again with
                           the next one; after this many tokens there is no draft, so that states are
                           kept further on */
    WORTH_KEEPING = 32, /* positions from a snapshot to the next that a prompt is read in two pieces
                           for */
    NEXT_SNAPSHOT = 256, /* ... without that */
};

/* How moe_generate ended. */
struct outcome {
    int status;
    enum moe_stop_reason why;
    struct moe_err err;
};

/* A request, waiting or running. */
struct member {
    struct member *next; /* while it waits */
    uint64_t id;
    struct moe_generate_request request; /* without its prompt, which is in the history or source */
    struct moe_ids source;               /* where there is an encoder */
    struct moe_ids own_history;
    struct moe_ids *history; /* the whole text: its own, or that of moe_generate's caller */
    struct outcome *outcome; /* of moe_generate, whose text stays in its sequence; else NULL */
    struct moe_answer answer;
    uint64_t n_prompt;
    uint64_t n_scored;  /* of the prompt, told already (options.scores) */
    uint64_t n_done;    /* ids of the history that are computed */
    uint64_t n_to_read; /* ids that were not, when its text was last read as a prompt */
    uint32_t n_again;   /* ids behind n_done that were, until their states were taken back */
    uint64_t n_cached;  /* of the prompt: found computed */
    uint64_t n_drafted, n_accepted; /* tokens; of these, that were right */
    struct moe_draft draft;
    uint64_t keeps[2]; /* ids of the history that a snapshot is made behind; 0: there is none */
    uint64_t n_kept;   /* ... the last one was */
    uint32_t to_draft; /* while the layer that drafts is at work, tokens of the next draft */
    double ttft_seconds;
    bool has_run;
    bool reads;                          /* its text is computed as a prompt, up to its end */
    bool stops_before_end;               /* ... first up to its last token, for options.read */
    bool waits_for_source;               /* it runs, and its source is not encoded */
    struct moe_sampler_options sampling; /* of one that rests, which has no sampler */
    struct moe_sampler_draws draws;
};

struct moe_generator {
    struct moe_session *session; /* borrowed */
    uint32_t n_texts;            /* at a time */
    uint32_t prompt_rows;
    uint64_t n_added;
    struct moe_generator_state state;
    struct member **running;      /* [n_texts] by sequence; NULL: it is free */
    struct member *first, **last; /* those that wait */
    struct member *resting;
    struct moe_row *rows;   /* [batch] of the last pass */
    struct member **of_row; /* [batch] */
    uint32_t *from;         /* [batch] states that the layer that drafts goes on from */
    float *logits;          /* [logits_rows][moe_logits_stride] */
    uint8_t *block;         /* holds these arrays */
};

/* ---- Opening and closing ---- */

static uint32_t logits_rows(uint32_t n_texts)
{
    return n_texts > 1 ? LOGITS_ROWS : 1;
}

/* Takes the arrays from the arena, or only counts them. */
static void take_arrays(struct moe_generator *g, struct moe_arena *arena,
                        const struct moe_config *config, uint32_t n_texts, uint32_t batch)
{
    g->running = moe_arena_take(arena, n_texts, sizeof *g->running);
    g->rows = moe_arena_take(arena, batch, sizeof *g->rows);
    g->of_row = moe_arena_take(arena, batch, sizeof *g->of_row);
    g->from = moe_arena_take(arena, batch, sizeof *g->from);
    g->logits =
        moe_arena_take(arena, logits_rows(n_texts) * moe_logits_stride(config), sizeof *g->logits);
}

/* Of a text: it doubles as it grows. */
static uint64_t history_bytes(uint32_t context, uint32_t source)
{
    return 2 * ((uint64_t)context + source) * sizeof(uint32_t);
}

uint64_t moe_generator_bytes(const struct moe_config *config,
                             const struct moe_session_options *session)
{
    struct moe_generator g;
    struct moe_arena arena = {0};
    uint32_t source = config->n_encoder == 0    ? 0
                      : session->source_context ? session->source_context
                                                : session->context;
    uint32_t whole = config->prefix_lm ? session->context : source; /* rows of one pass at least */
    take_arrays(&g, &arena, config, session->n_sequences,
                session->batch < whole ? whole : session->batch);
    return arena.used +
           session->n_sequences * (moe_sampler_bytes(config->vocab) + sizeof(struct member) +
                                   history_bytes(session->context, source));
}

int moe_generator_open(struct moe_generator **out, struct moe_session *s, uint32_t n_texts,
                       uint32_t prompt_rows, struct moe_err *err)
{
    *out = NULL;
    if (n_texts > s->batch)
        return moe_fail(err, MOE_ERR_USAGE, "a pass of %u rows cannot decode %u sequences",
                        s->batch, n_texts);
    struct moe_generator *g = moe_alloc(1, sizeof *g, err);
    if (!g)
        return MOE_ERR_MEMORY;
    g->session = s;
    g->prompt_rows = prompt_rows && prompt_rows < s->batch ? prompt_rows : s->batch;
    g->last = &g->first;
    struct moe_arena arena = {0};
    take_arrays(g, &arena, &s->model->config, n_texts, s->batch);
    g->block = arena.base = moe_alloc(1, arena.size = arena.used, err);
    if (!g->block) {
        moe_generator_close(g);
        return MOE_ERR_MEMORY;
    }
    g->n_texts = n_texts;
    arena.used = 0;
    take_arrays(g, &arena, &s->model->config, n_texts, s->batch);
    *out = g;
    return MOE_OK;
}

/* Frees a member that neither waits nor runs. NULL is fine. */
static void free_member(struct member *m)
{
    if (!m)
        return;
    moe_buf_release(&m->answer.pending);
    if (!m->outcome)
        moe_sampler_free(m->request.sampler);
    moe_ids_release(&m->source);
    moe_ids_release(&m->own_history);
    free(m);
}

static void free_members(struct member *m)
{
    for (struct member *next; m; m = next) {
        next = m->next;
        free_member(m);
    }
}

/* The sequence gives back what it has, but for the text of moe_generate; returns its member, which
 * runs no more. */
static struct member *stop_running(struct moe_generator *g, uint32_t sequence)
{
    struct member *m = g->running[sequence];
    if (!m->outcome && moe_sequence_length(g->session, sequence) == m->n_done)
        moe_sequence_snapshot(g->session, sequence, true);
    moe_sequence_rewind(g->session, sequence, m->outcome ? (uint32_t)m->n_done : 0);
    g->running[sequence] = NULL;
    g->state.n_running--;
    m->n_done = 0;
    m->n_again = 0;
    m->draft.n = 0;
    return m;
}

void moe_generator_close(struct moe_generator *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->n_texts; i++)
        if (g->running[i])
            free_member(stop_running(g, i));
    free_members(g->first);
    free_members(g->resting);
    free(g->block);
    free(g);
}

const struct moe_generator_state *moe_generator_state(const struct moe_generator *g)
{
    return &g->state;
}

uint32_t moe_generator_free_sequence(const struct moe_generator *g)
{
    for (uint32_t i = 0; i < g->n_texts; i++)
        if (!g->running[i])
            return i;
    return UINT32_MAX;
}

/* ---- Adding ---- */

/* Positions that a sequence may have when it is the only one. */
static uint32_t most_positions(const struct moe_session *s)
{
    uint64_t room = (uint64_t)s->kv_pool.n_blocks * s->kv_pool.block_positions;
    return room < s->context ? (uint32_t)room : s->context;
}

static int check_options(const struct moe_generator *g, const struct moe_generate_options *o,
                         struct moe_err *err)
{
    const struct moe_session *s = g->session;
    if (o->beams.n && o->constraint)
        return moe_fail(err, MOE_ERR_USAGE,
                        "a search with beams follows no grammar: leave one of them out");
    if (o->beams.n && g->n_texts > 1)
        return moe_fail(err, MOE_ERR_USAGE, "a search with beams has the session for itself");
    if (o->state && (!s->stages->last || s->model->config.n_encoder))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "states of a prompt are had on the processor only, without an encoder");
    if (o->draft && s->state_ends && !s->kept_ends)
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "this session's recurrent states take no token back: no drafts here");
    if (o->scores && (s->model->config.n_encoder || s->prompts))
        return moe_fail(err, MOE_ERR_UNSUPPORTED,
                        "a prompt's log probabilities: the model sees all of a prompt at once");
    if (o->draft_ahead && s->model->config.n_drafting == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the model was opened without a layer that drafts");
    return MOE_OK;
}

/* A request for the text that is, or begins with, n ids. */
static int check_request(const struct moe_generator *g, const struct moe_generate_options *o,
                         const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    const struct moe_session *s = g->session;
    uint32_t most = most_positions(s);
    if (n == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the prompt is empty");
    if (n > most)
        return moe_prompt_too_long(&s->model->config, n, false, most, err);
    MOE_TRY(moe_check_ids(s->model, ids, n, err));
    return check_options(g, o, err);
}

static int push_all(struct moe_ids *to, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    MOE_TRY(moe_ids_reserve(to, n, err));
    for (uint64_t i = 0; i < n; i++)
        MOE_TRY(moe_ids_push(to, ids[i], err));
    return MOE_OK;
}

/* Queues a member whose history and source are set. */
static void enqueue(struct moe_generator *g, struct member *m)
{
    const struct moe_generate_options *o = &m->request.options;
    m->request.options.source = m->source.n ? m->source.ids : o->source;
    m->id = ++g->n_added;
    moe_answer_begin(&m->answer, g->session->model, most_positions(g->session), o);
    const uint32_t block = o->draft_ahead ? g->session->model->config.drafter.block : 0;
    moe_draft_begin(&m->draft, block && o->draft ? block - 1 : o->draft);
    if (o->draft_ahead && o->draft && !g->session->model->drafter) /* made for one token */
        m->draft.next = 1;
    *g->last = m;
    g->last = &m->next;
    g->state.n_waiting++;
}

int moe_generator_add(struct moe_generator *g, const struct moe_generate_request *request,
                      uint64_t *id, struct moe_err *err)
{
    const struct moe_config *c = &g->session->model->config;
    const uint64_t n = request->n_prompt;
    if (c->n_encoder && n) {
        MOE_TRY(moe_check_source(g->session, n, err));
        MOE_TRY(moe_check_ids(g->session->model, request->prompt, n, err));
        MOE_TRY(check_options(g, &request->options, err));
    } else {
        MOE_TRY(check_request(g, &request->options, request->prompt, n, err));
    }
    struct member *m = moe_alloc(1, sizeof *m, err);
    if (!m)
        return MOE_ERR_MEMORY;
    m->history = &m->own_history;
    int status = push_all(c->n_encoder ? &m->source : m->history, request->prompt, n, err);
    if (status == MOE_OK && c->n_encoder)
        status = moe_ids_push(m->history, c->decoder_start, err);
    if (status == MOE_OK && c->n_encoder && request->target)
        status = moe_ids_push(m->history, request->target, err);
    if (status != MOE_OK) {
        free_member(m);
        return status;
    }
    m->request = *request;
    m->request.prompt = NULL;
    m->request.options.n_source = m->source.n;
    m->n_prompt = n;
    enqueue(g, m);
    if (request->options.scores) /* only its own, so that all of it is computed */
        m->request.owner = OWNER_SCORES | m->id;
    *id = m->id;
    return MOE_OK;
}

/* Takes one that waits. */
static struct member *take_waiting(struct moe_generator *g, struct member **at)
{
    struct member *m = *at;
    *at = m->next;
    if (!*at)
        g->last = at;
    g->state.n_waiting--;
    m->next = NULL;
    return m;
}

/* ---- Ending ---- */

/* Says how it ended, and frees a member that neither waits nor runs. */
static void finish_member(struct member *m, int status, const struct moe_err *err)
{
    const struct moe_err unsaid = {0};
    const int shown = moe_answer_end(&m->answer, status);
    const struct moe_generate_result result = {
        .why = m->answer.why,
        .stop_text = m->answer.stop_text,
        .status = shown,
        .err = shown == MOE_OK    ? NULL
               : status == MOE_OK ? &unsaid
                                  : err,
        .ids = m->history->ids,
        .n_ids = m->history->n,
        .n_prompt = m->n_prompt,
        .n_tokens = m->answer.n_tokens,
        .n_cached = m->n_cached,
        .n_drafted = m->n_drafted,
        .n_accepted = m->n_accepted,
        .ttft_seconds = m->ttft_seconds,
        .seconds = moe_seconds() - m->request.options.started,
    };
    if (m->outcome)
        *m->outcome = (struct outcome){shown, result.why, shown == MOE_OK ? unsaid : *result.err};
    else if (m->request.ended)
        m->request.ended(m->request.options.ctx, &result);
    free_member(m);
}

static void finish_by_user(struct member *m)
{
    m->answer.why = MOE_STOP_USER;
    finish_member(m, MOE_OK, NULL);
}

/* NULL: it does not rest. */
static struct member *take_resting(struct moe_generator *g, uint64_t id)
{
    struct member **at = &g->resting;
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    struct member *m = *at;
    if (m) {
        *at = m->next;
        m->next = NULL;
    }
    return m;
}

void moe_generator_cancel(struct moe_generator *g, uint64_t id)
{
    for (uint32_t i = 0; i < g->n_texts; i++)
        if (g->running[i] && g->running[i]->id == id) {
            finish_by_user(stop_running(g, i));
            return;
        }
    for (struct member **at = &g->first; *at; at = &(*at)->next)
        if ((*at)->id == id) {
            finish_by_user(take_waiting(g, at));
            return;
        }
    struct member *m = take_resting(g, id);
    if (m)
        finish_by_user(m);
}

/* Ends who has the row's text, after an error or because the user stopped the pass. */
static void fail_row(struct moe_generator *g, uint32_t row, int status, const struct moe_err *err)
{
    struct member *m = stop_running(g, g->rows[row].sequence);
    if (status == MOE_ERR_INTERRUPTED)
        finish_by_user(m);
    else
        finish_member(m, status, err);
}

/* Ends everyone who has one of the first n_rows of a pass that failed. */
static void fail_rows(struct moe_generator *g, uint32_t n_rows, int status,
                      const struct moe_err *err)
{
    for (uint32_t i = 0; i < n_rows; i++)
        if (g->running[g->rows[i].sequence])
            fail_row(g, i, status, err);
}

static bool is_stopped(const struct member *m)
{
    const volatile sig_atomic_t *stop = m->request.options.stop;
    return stop && *stop;
}

/* ---- Beginning to run ---- */

/* Chooses where to make snapshots of a text whose first n ids are there: where it departs from
 * texts before it, as others may, and where the next turn will, or before the last token, which has
 * to be computed again for its logits. */
static void plan_snapshots(const struct moe_session *s, uint32_t sequence, struct member *m,
                           uint32_t n)
{
    const uint64_t last = m->history->n - 1, again = m->request.options.again;
    const uint64_t at[2] = {s->sequences[sequence].n_alike, again < last ? again : last};
    m->n_kept = n;
    for (int i = 0; i < 2; i++) {
        bool worth = s->kv_pool.n_snapshots && again && at[i] >= n + (uint64_t)WORTH_KEEPING;
        m->keeps[i] = worth && at[i] <= last ? at[i] : 0;
    }
}

/* The end of the text's next piece: the first place of a snapshot behind `from`, or `most`. */
static uint64_t next_keep(const struct member *m, uint64_t from, uint64_t most)
{
    for (int i = 0; i < 2; i++)
        if (m->keeps[i] > from && m->keeps[i] < most)
            most = m->keeps[i];
    return most;
}

/* Makes the snapshot that is due of a text. */
static void keep_states(struct moe_generator *g, uint32_t sequence)
{
    struct member *m = g->running[sequence];
    const bool planned = m->n_done == m->keeps[0] || m->n_done == m->keeps[1];
    if (moe_sequence_length(g->session, sequence) != m->n_done ||
        (!planned && m->n_done < m->n_kept + NEXT_SNAPSHOT))
        return;
    moe_sequence_snapshot(g->session, sequence, planned);
    m->n_kept = m->n_done;
}

/* Brings a sequence to the member's text, with room for a token more. What others left there was
 * for other sources, where there are some: the member's is encoded later. */
static int sync_text(struct moe_generator *g, uint32_t sequence, struct member *m,
                     struct moe_err *err)
{
    struct moe_session *s = g->session;
    const struct moe_generate_options *o = &m->request.options;
    const uint32_t n = (uint32_t)m->history->n, most = most_positions(s);
    const uint32_t wanted = n < most ? n + 1 : most;
    uint32_t n_known = 0;
    m->waits_for_source = o->source != NULL;
    if (m->waits_for_source || (s->prompts && !o->goes_on))
        moe_sequence_rewind(s, sequence, 0);
    if (o->state) { /* nothing is taken over: all states are wanted */
        moe_sequence_own(s, sequence, m->request.owner);
        moe_sequence_rewind(s, sequence, 0);
        MOE_TRY(moe_sequence_reserve(s, sequence, wanted, err));
    } else if (m->waits_for_source) {
        moe_sequence_attend(s, sequence, sequence);
        MOE_TRY(moe_sequence_reserve(s, sequence, wanted, err));
    } else {
        moe_sequence_own(s, sequence, m->request.owner);
        MOE_TRY(moe_sequence_sync(s, sequence, m->history->ids, n, wanted, &n_known, err));
    }
    if (s->prompts && n_known == 0)
        moe_prompt_mark(s, sequence, m->history->ids, m->n_prompt);
    m->n_done = n_known;
    m->n_to_read = n - n_known;
    m->n_again = 0;
    m->draft.n = 0;
    plan_snapshots(s, sequence, m, n_known);
    /* A decoder's first token is no prompt: that was the source. */
    m->reads = m->n_to_read > 1 || (n_known == 0 && s->model->config.n_encoder == 0);
    return MOE_OK;
}

/* A text that gave up its sequence waits in front of all others: what was computed of it may have
 * to be computed again. */
static void wait_in_front(struct moe_generator *g, struct member *m)
{
    m->next = g->first;
    g->first = m;
    if (!m->next)
        g->last = &m->next;
    g->state.n_waiting++;
}

bool moe_generator_rest(struct moe_generator *g, uint64_t id)
{
    uint32_t i = 0;
    while (i < g->n_texts && !(g->running[i] && g->running[i]->id == id))
        i++;
    if (i == g->n_texts || g->running[i]->outcome)
        return false;
    struct member *m = stop_running(g, i);
    m->sampling = *moe_sampler_asked(m->request.sampler);
    m->draws = moe_sampler_get_draws(m->request.sampler);
    moe_sampler_free(m->request.sampler);
    m->request.sampler = NULL;
    m->next = g->resting;
    g->resting = m;
    return true;
}

uint64_t moe_generator_rest_bytes(const struct moe_generator *g)
{
    return sizeof(struct member) + history_bytes(g->session->context, g->session->source_context);
}

void moe_generator_resume(struct moe_generator *g, uint64_t id)
{
    struct moe_err err;
    struct member *m = take_resting(g, id);
    if (!m)
        return;
    int status =
        moe_sampler_new(&m->request.sampler, &m->sampling, g->session->model->config.vocab, &err);
    if (status != MOE_OK) {
        finish_member(m, status, &err);
        return;
    }
    moe_sampler_set_draws(m->request.sampler, &m->draws);
    wait_in_front(g, m);
}

/* The youngest that runs gives its blocks back. */
static void make_room(struct moe_generator *g)
{
    uint32_t youngest = UINT32_MAX;
    for (uint32_t i = 0; i < g->n_texts; i++)
        if (g->running[i] &&
            (youngest == UINT32_MAX || g->running[i]->id > g->running[youngest]->id))
            youngest = i;
    wait_in_front(g, stop_running(g, youngest));
    g->state.n_preempted++;
}

/* A running text is another one, or its rows are: what it still has in common is kept. */
static void read_again(struct moe_generator *g, uint32_t sequence)
{
    struct moe_err full;
    if (sync_text(g, sequence, g->running[sequence], &full) != MOE_OK)
        wait_in_front(g, stop_running(g, sequence));
}

static bool is_far(const struct moe_session *s, const struct member *m)
{
    uint32_t original = s->model->config.rope_original;
    return original && m->history->n > original;
}

/* Length of the common beginning of two members' texts that one could take over. */
static uint64_t n_alike(const struct moe_session *s, const struct member *m,
                        const struct member *from)
{
    uint64_t most = m->history->n - 1, n = 0;
    /* A text goes with its source, or with all of its prompt. */
    if (s->n_sources || s->prompts || is_far(s, m) != is_far(s, from) ||
        m->request.owner != from->request.owner)
        return 0;
    most = from->history->n < most ? from->history->n : most;
    while (n < most && m->history->ids[n] == from->history->ids[n])
        n++;
    if (!s->state_ends)
        return n;
    uint64_t keep = next_keep(from, from->n_done, n + 1); /* only snapshots have states */
    return keep <= n ? keep : 0;
}

/* Whether a running text is about to compute what a waiting member could then take over. */
static bool is_being_computed(const struct moe_generator *g, const struct member *m)
{
    const struct moe_session *s = g->session;
    /* With states it could take over all of it, or nothing yet. */
    const uint64_t least = s->state_ends ? 0 : WORTH_WAITING;
    uint64_t soon = 0;
    for (uint32_t i = 0; i < g->n_texts; i++) {
        const struct member *r = g->running[i];
        uint64_t n = r && r->history->n - r->n_done > least ? n_alike(s, m, r) : 0;
        if (r && n > r->n_done + least && n > soon)
            soon = n;
    }
    return soon && soon > WORTH_WAITING + moe_sequence_known(s, m->request.owner, m->history->ids,
                                                             (uint32_t)m->history->n);
}

/* The first that waits and need not wait for another's text; NULL: there is none. */
static struct member **next_waiting(struct moe_generator *g)
{
    struct member **at = &g->first;
    for (int i = 0; *at && i < LOOK_AHEAD; i++, at = &(*at)->next)
        if (!is_being_computed(g, *at))
            return at;
    return NULL;
}

/* The layer that drafts reads what the last pass left of the text in sequence 0 before another pass
 * overwrites it: its keys and values would have a gap otherwise. */
static int read_passed(struct moe_generator *g, const struct member *m, struct moe_err *err)
{
    const struct moe_session *s = g->session;
    const struct moe_passed passed = s->passed;
    uint64_t end = m->n_done < m->history->n - 1 ? m->n_done : m->history->n - 1;
    if (s->model->config.n_drafting == 0 || passed.n == 0 || passed.first >= end)
        return MOE_OK;
    uint32_t n = end - passed.first < passed.n ? (uint32_t)(end - passed.first) : passed.n;
    for (uint32_t i = 0; i < n; i++)
        g->rows[i] =
            (struct moe_row){0, passed.first + i, m->history->ids[passed.first + i + 1], 0};
    return moe_ahead(g->session, g->rows, n, NULL, err);
}

/* Books the first time that a member runs. */
static int begin_running(struct moe_generator *g, uint32_t sequence, struct member *m,
                         struct moe_err *err)
{
    struct moe_session *s = g->session;
    const struct moe_generate_options *o = &m->request.options;
    if (!m->has_run) {
        m->has_run = true;
        m->n_cached = m->n_done;
        m->n_scored = 1;
        if (o->scores && o->token && m->n_prompt)
            MOE_TRY(moe_answer_say(&m->answer, m->history->ids[0], NULL));
        m->stops_before_end = o->read && s->state_ends && m->n_done + 1 < m->history->n;
        s->stats.prompt_tokens += s->n_sources ? o->n_source : m->n_prompt - m->n_done;
    }
    return sequence == 0 ? read_passed(g, m, err) : MOE_OK;
}

/* Waiting requests begin to run, as far as there are sequences, and room for their text and a token
 * more. */
static void admit(struct moe_generator *g)
{
    struct moe_err err;
    struct member **at;
    for (uint32_t i = 0; i < g->n_texts && g->first; i++) {
        if (g->running[i])
            continue;
        if (!(at = next_waiting(g)))
            return;
        int status = sync_text(g, i, *at, &err);
        if (status != MOE_OK && g->state.n_running > 0)
            return;
        struct member *m = g->running[i] = take_waiting(g, at);
        g->state.n_running++;
        if (status == MOE_OK)
            status = begin_running(g, i, m, &err);
        if (status != MOE_OK)
            finish_member(stop_running(g, i), status, &err);
    }
}

/* ---- Drawing ---- */

static bool is_decoding(const struct member *m)
{
    return !m->waits_for_source && !m->reads;
}

/* Logits of a row, and the token that was drawn of them, where one was. */
struct row_logits {
    const float *of; /* NULL: they are not needed */
    bool is_drawn;
    uint32_t id;
};

/* Takes the token after a row, or with beams all that come. *another: the text is another one from
 * now on. */
static int take_token(struct moe_generator *g, struct member *m, uint32_t row,
                      const struct row_logits *logits, uint32_t *id, bool *another,
                      struct moe_err *err)
{
    struct moe_session *s = g->session;
    struct moe_answer *a = &m->answer;
    const struct moe_generate_options *o = &m->request.options;
    const uint64_t n_before = a->n_tokens;
    if (o->beams.n) {
        int status = moe_beams_search(s, m->history, a, g->logits, row, err);
        m->n_done = moe_sequence_length(s, g->rows[row].sequence);
        a->ended = true;
        return status;
    }
    if (logits->is_drawn)
        *id = logits->id;
    else if (logits->of)
        MOE_TRY(moe_answer_draw(a, m->request.sampler, logits->of, m->history, id, err));
    else
        MOE_TRY(moe_greedy(s, row, id, err));
    if (a->ended)
        return MOE_OK;
    if (n_before == 0) {
        s->stats.ttft_seconds = m->ttft_seconds = moe_seconds() - o->started;
        s->stats.answers++;
    }
    int status = moe_answer_take(a, *id, logits->of, m->history, err);
    s->stats.generated_tokens += a->n_tokens - n_before;
    if (status == MOE_OK && a->ended && a->why == MOE_STOP_CONTEXT && o->full) {
        status = o->full(o->full_ctx, another, err);
        a->ended = !*another;
    }
    return status;
}

/* A drafted token that was right is computed: it is that of the row behind `row`. */
static void judge(struct moe_generator *g, struct member *m, uint32_t id)
{
    struct moe_stats *stats = &g->session->stats;
    if (!moe_draft_judge(&m->draft, id)) {
        if (g->session->model->drafter && m->draft.most && !moe_draft_is_worth(&m->draft)) {
            m->draft.most = 0;
            stats->stopped_drafts++;
        }
        return;
    }
    m->n_done++;
    m->n_accepted++;
    stats->accepted_tokens++;
    stats->decode.tokens++;
}

/* Draws the next token after a row whose text is computed up to it. */
static void draw(struct moe_generator *g, uint32_t row, const struct row_logits *logits)
{
    const uint32_t sequence = g->rows[row].sequence;
    struct member *m = g->running[sequence];
    struct moe_err err = {0};
    bool another = false;
    uint32_t id = 0;
    int status = MOE_OK;
    if (!m->answer.ended)
        status = take_token(g, m, row, logits, &id, &another, &err);
    moe_answer_count(&m->answer, &g->session->stats);
    if (status != MOE_OK || m->answer.ended) {
        finish_member(stop_running(g, sequence), status, &err);
        return;
    }
    judge(g, m, id);
    /* LongRoPE: a text that has grown beyond the original context has other frequencies than the
     * rows in the cache: all of it is computed again, as the code published with Phi-3.5-MoE does.
     * So a token depends only on the text before it. */
    if (another || is_far(g->session, m) != g->session->sequences[sequence].far)
        read_again(g, sequence);
}

/* Whether a row is its text's last: its logits pick the next token. */
static bool is_last(const struct moe_generator *g, uint32_t row)
{
    const struct moe_row *r = &g->rows[row];
    const struct member *m = g->running[r->sequence];
    return m && m->n_done == m->history->n && r->position + 1 == m->history->n;
}

/* Whether a row's logits say how likely the prompt's next token is, and nobody knows yet. */
static bool is_scored(const struct moe_generator *g, uint32_t row)
{
    const struct moe_row *r = &g->rows[row];
    const struct member *m = g->running[r->sequence];
    return m && m->request.options.scores && m->request.options.token &&
           r->position + 1 < m->n_prompt && r->position + 1 >= m->n_scored;
}

static void score(struct moe_generator *g, uint32_t row, const float *logits)
{
    const struct moe_row *r = &g->rows[row];
    struct member *m = g->running[r->sequence];
    const struct moe_err none = {0};
    m->n_scored = r->position + 2;
    int status = moe_answer_say(&m->answer, m->history->ids[r->position + 1], logits);
    if (status != MOE_OK)
        finish_member(stop_running(g, r->sequence), status, &none);
}

/* Whether the device chooses the token, or a search draws by itself. */
static bool needs_no_logits(const struct moe_generator *g, const struct member *m)
{
    const struct moe_generate_options *o = &m->request.options;
    return o->beams.n || m->answer.ended ||
           (g->n_texts == 1 && g->session->stages->greedy &&
            moe_sampler_is_greedy(m->request.sampler) && !o->token && !o->constraint &&
            !o->thought.apart && o->thought.most == UINT64_MAX &&
            m->answer.n_tokens >= o->min_tokens);
}

/* ---- Several at a time ---- */

struct drawing {
    struct moe_generator *g;
    uint32_t first;
    struct row_logits *rows;
};

/* Draws what depends on the text and its logits alone. */
static void draw_range(void *ctx, int64_t begin, int64_t end, int thread)
{
    const struct drawing *d = ctx;
    struct moe_err err;
    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        struct row_logits *l = &d->rows[i];
        struct member *m = d->g->running[d->g->rows[d->first + i].sequence];
        l->is_drawn = is_last(d->g, d->first + (uint32_t)i) && !m->answer.ended &&
                      !m->request.options.beams.n && !m->request.options.constraint &&
                      m->answer.n_tokens >= m->request.options.min_tokens &&
                      moe_answer_draw(&m->answer, m->request.sampler, l->of, m->history, &l->id,
                                      &err) == MOE_OK;
    }
}

/* Draws what comes after rows [first, first + n) that are the last of their texts, or become it as
 * drafted tokens turn out right; and tells prompts' scores. */
static void draw_rows(struct moe_generator *g, uint32_t first, uint32_t n)
{
    const uint64_t stride = moe_logits_stride(&g->session->model->config);
    const uint32_t most = logits_rows(g->n_texts);
    struct row_logits rows[LOGITS_ROWS] = {0};
    const struct row_logits none = {0};
    struct moe_err err;
    for (uint32_t end = first + n, some; first < end; first += some) {
        some = 1;
        bool scored = is_scored(g, first);
        if (!scored && !is_last(g, first))
            continue;
        if (!scored && needs_no_logits(g, g->running[g->rows[first].sequence])) {
            draw(g, first, &none);
            continue;
        }
        some = end - first < most ? end - first : most;
        int status = moe_logits(g->session, first, some, g->logits, &err);
        for (uint32_t i = 0; i < some; i++)
            rows[i] = (struct row_logits){.of = g->logits + i * stride};
        if (status == MOE_OK && some > 1)
            moe_par_for(some, 1, draw_range, &(struct drawing){g, first, rows});
        for (uint32_t i = 0; i < some; i++)
            if (!is_scored(g, first + i) && !is_last(g, first + i))
                continue;
            else if (status == MOE_OK && is_last(g, first + i))
                draw(g, first + i, &rows[i]);
            else if (status == MOE_OK)
                score(g, first + i, rows[i].of);
            else
                fail_row(g, first + i, status, &err);
    }
}

/* ---- Passes ---- */

/* Adds the member's next n ids, drafted ones behind its text, as rows of a pass. */
static void add_rows(struct moe_generator *g, uint32_t sequence, uint32_t *n_rows, uint64_t n)
{
    struct member *m = g->running[sequence];
    const struct moe_draft *d = &m->draft;
    for (uint64_t at = m->n_done, end = at + n; at < end; at++, ++*n_rows) {
        g->rows[*n_rows] = (struct moe_row){
            .sequence = sequence,
            .position = (uint32_t)at,
            .token = at < m->history->n ? m->history->ids[at] : d->ids[at - m->history->n],
            .length = (uint32_t)m->history->n + d->n,
        };
        g->of_row[*n_rows] = m;
    }
}

static int compute(struct moe_generator *g, enum moe_phase phase, uint32_t n_rows)
{
    struct moe_session *s = g->session;
    struct moe_err err;
    int status = moe_forward(s, phase, g->rows, n_rows, s->model->config.n_encoder,
                             s->model->config.n_layers, NULL, NULL, &err);
    for (uint32_t i = 0; i < n_rows && status == MOE_OK; i++) {
        struct member *m = g->of_row[i];
        if (g->rows[i].position >= m->history->n) /* drafted: not computed before it is right */
            continue;
        if (m->request.options.state && g->rows[i].position < m->n_prompt)
            m->request.options.state(m->request.options.ctx, g->rows[i].position,
                                     moe_last_state(s, i));
        m->n_done++;
        m->n_again = 0;
        m->reads = m->reads && m->n_done < m->history->n;
        if (m->request.work)
            ++*(phase == MOE_DECODE ? &m->request.work->decoded : &m->request.work->read);
        if (g->rows[i].position + 1 == m->n_done)
            keep_states(g, g->rows[i].sequence);
    }
    if (status != MOE_OK)
        fail_rows(g, n_rows, status, &err);
    return status;
}

static void make_drafts(struct moe_generator *g);
static void settle_drafts(struct moe_generator *g, uint32_t n_rows);

/* Computes a token for everyone whose last one is not computed, and those drafted after it. */
static void decode(struct moe_generator *g)
{
    struct moe_session *s = g->session;
    struct moe_err full;
    uint32_t n_rows = 0, n_members = 0;
    for (uint32_t i = 0; i < g->n_texts; i++) {
        struct member *m = g->running[i];
        while (g->running[i] && is_decoding(m) &&
               moe_sequence_reserve(s, i, (uint32_t)m->history->n, &full) != MOE_OK)
            make_room(g);
    }
    make_drafts(g);
    for (uint32_t i = 0; i < g->n_texts; i++) {
        struct member *m = g->running[i];
        if (!m || !is_decoding(m))
            continue;
        add_rows(g, i, &n_rows, 1 + m->n_again + m->draft.n);
        n_members++;
    }
    if (n_rows == 0 || compute(g, MOE_DECODE, n_rows) != MOE_OK)
        return;
    s->stats.decode.tokens -= n_rows - n_members; /* what is drafted counts when it is right */
    draw_rows(g, 0, n_rows);
    settle_drafts(g, n_rows);
}

/* The oldest running text after `after` that is read, or whose source is; n_texts: none. */
static uint32_t next_to_read(const struct moe_generator *g, bool source, uint64_t after)
{
    uint32_t n = g->n_texts, oldest = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct member *m = g->running[i];
        if (m && m->id > after && !is_decoding(m) && m->waits_for_source == source &&
            (oldest == n || m->id < g->running[oldest]->id))
            oldest = i;
    }
    return oldest;
}

/* How many rows of the member's text go into a pass that has n_rows; 0: it waits for another. A
 * prompt that sees all of itself comes whole, and with it what it was answered so far. */
static uint32_t piece(const struct moe_generator *g, const struct member *m, uint32_t n_rows)
{
    uint64_t left = next_keep(m, m->n_done, m->history->n - m->stops_before_end) - m->n_done;
    uint32_t room = g->prompt_rows - n_rows;
    if (!g->session->prompts)
        return left < room ? (uint32_t)left : room;
    return n_rows == 0 || left <= room ? (uint32_t)left : 0;
}

/* Hands over prompts that are computed but for their last token. */
static void hand_over(struct moe_generator *g)
{
    struct moe_err err = {0};
    for (uint32_t i = 0; i < g->n_texts; i++) {
        struct member *m = g->running[i];
        if (!m || !m->stops_before_end || m->n_done + 1 < m->history->n)
            continue;
        m->stops_before_end = m->reads = false;
        int status = m->request.options.read(m->request.options.read_ctx, &err);
        if (status != MOE_OK)
            finish_member(stop_running(g, i), status, &err);
    }
}

/* Computes a piece of the texts that are read, the oldest first. */
static void prefill(struct moe_generator *g)
{
    uint32_t n_rows = 0, i, n;
    uint64_t after = 0;
    while (n_rows < g->prompt_rows && (i = next_to_read(g, false, after)) < g->n_texts) {
        struct member *m = g->running[i];
        const uint64_t left = m->history->n - m->n_done;
        after = m->id;
        if (m->n_to_read > g->session->batch)
            moe_progress_report(m->request.options.progress, "reading the prompt",
                                m->n_to_read - left, m->n_to_read);
        if (is_stopped(m))
            finish_by_user(stop_running(g, i));
        else if ((n = piece(g, m, n_rows)) > 0)
            add_rows(g, i, &n_rows, n);
        else
            break;
    }
    if (n_rows == 0 || compute(g, MOE_PREFILL, n_rows) != MOE_OK)
        return;
    hand_over(g);
    for (uint32_t row = 0, some; row < n_rows; row += some) {
        for (some = 0; row + some < n_rows && is_scored(g, row + some);)
            some++;
        if (some || is_last(g, row))
            draw_rows(g, row, some ? some : 1);
        some += some == 0;
    }
    settle_drafts(g, n_rows);
}

/* Encodes whole sources, as many as a pass takes, the oldest first. */
static void encode(struct moe_generator *g)
{
    struct moe_session *s = g->session;
    struct moe_err err;
    uint32_t n_rows = 0, i;
    uint64_t after = 0;
    while ((i = next_to_read(g, true, after)) < g->n_texts) {
        const struct member *m = g->running[i];
        const struct moe_generate_options *o = &m->request.options;
        if (o->n_source > s->batch - n_rows)
            break;
        after = m->id;
        if (is_stopped(m)) {
            finish_by_user(stop_running(g, i));
            continue;
        }
        moe_source_rows(g->rows + n_rows, i, o->source, (uint32_t)o->n_source);
        n_rows += (uint32_t)o->n_source;
    }
    int status = n_rows ? moe_encode(s, g->rows, n_rows, NULL, &err) : MOE_OK;
    if (status != MOE_OK)
        fail_rows(g, n_rows, status, &err);
    for (uint32_t row = 0; row < n_rows && status == MOE_OK; row++)
        g->running[g->rows[row].sequence]->waits_for_source = false;
}

void moe_generator_step(struct moe_generator *g)
{
    admit(g);
    encode(g);
    decode(g);
    prefill(g);
}

/* ---- Drafts ---- */

/*
 * A drafted row takes blocks of the KV cache only where some are free: nobody makes room for it.
 * Within its share of a pass's rows a draft that was wrong is followed by a shorter one
 * (engine/draft.h).
 */

static uint32_t smaller(uint32_t a, uint64_t b)
{
    return b < a ? (uint32_t)b : a;
}

/* Rows of a pass that are left for drafts, shared by those that decode. */
struct shares {
    uint32_t left, members;
};

static struct shares shares_of(const struct moe_generator *g)
{
    const struct moe_session *s = g->session;
    struct shares shares = {0, 0};
    uint32_t certain = 0;
    for (uint32_t i = 0; i < g->n_texts; i++)
        if (g->running[i] && is_decoding(g->running[i])) {
            shares.members++;
            certain += 1 + g->running[i]->n_again;
        }
    /* What states have to compute again must fit the next pass, beside a token of everyone else. */
    uint32_t others = s->state_ends ? g->n_texts - shares.members : 0;
    uint32_t batch = s->batch > others ? s->batch - others : 0;
    uint32_t most = batch < DRAFT_ROWS ? batch : DRAFT_ROWS;
    shares.left = most > certain ? most - certain : 0;
    return shares;
}

/* The next member's share; it takes `used` of it. */
static uint32_t next_share(const struct shares *shares)
{
    return shares->members ? shares->left / shares->members : 0;
}

static void take_share(struct shares *shares, uint32_t used)
{
    shares->left -= used;
    shares->members--;
}

/* How many tokens, at most `most`, a text's draft may have: what its pass with the tokens that are
 * computed again, the context, the answer, LongRoPE's frequencies and free blocks have room for. */
static uint32_t room_for(struct moe_generator *g, uint32_t sequence, uint32_t most)
{
    const struct member *m = g->running[sequence];
    const struct moe_answer *a = &m->answer;
    const uint64_t n = m->history->n;
    const uint32_t original = a->model->config.rope_original;
    struct moe_err full;
    if (m->n_again > MOST_AGAIN)
        return 0;
    most = smaller(most, m->draft.next);
    most = smaller(most, a->context - n);
    most = smaller(most, a->options->max_tokens - a->n_tokens - 1);
    if (original && n <= original)
        most = smaller(most, original - n);
    while (most && moe_sequence_reserve(g->session, sequence, (uint32_t)n + most, &full) != MOE_OK)
        most--;
    return most;
}

/* Those that are about to decode get drafts, as many tokens as the pass has rows for. */
static void make_drafts(struct moe_generator *g)
{
    struct shares shares = shares_of(g);
    for (uint32_t i = 0; i < g->n_texts; i++) {
        struct member *m = g->running[i];
        if (!m || !is_decoding(m))
            continue;
        struct moe_draft *d = &m->draft;
        uint32_t most = d->most ? room_for(g, i, next_share(&shares)) : 0;
        if (m->request.options.draft_ahead)
            moe_draft_cut(d, most);
        else if (d->most)
            moe_draft_make(d, m->history->ids, m->history->n, most);
        if (d->n)
            moe_sequence_keep(g->session, i);
        m->n_drafted += d->n;
        g->session->stats.drafted_tokens += d->n;
        take_share(&shares, d->n);
    }
}

/* ---- The layer that drafts ---- */

/* The layer reads rows of those that want its drafts, where the token after is known. *n: how many.
 * It reads nothing of what a sequence has taken over: there its keys and values are those of the
 * other text, whose next token may have been another; a draft may be worse for it. */
static int read_ahead(struct moe_generator *g, uint32_t n_rows, uint32_t *n, struct moe_err *err)
{
    *n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct moe_row r = g->rows[row];
        const struct member *m = g->running[r.sequence];
        if (!m || !m->request.options.draft_ahead || !m->draft.most ||
            r.position + 1 >= m->history->n || r.position >= m->n_done + m->n_again)
            continue;
        g->from[*n] = row;
        g->rows[(*n)++] =
            (struct moe_row){r.sequence, r.position, m->history->ids[r.position + 1], 0};
    }
    return *n ? moe_ahead(g->session, g->rows, *n, g->from, err) : MOE_OK;
}

/* Keeps of n rows those that drafts go on from, and the states that they are in. */
static uint32_t keep_ends(struct moe_generator *g, uint32_t n_rows)
{
    struct shares shares = shares_of(g);
    uint32_t n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct moe_row r = g->rows[row];
        struct member *m = g->running[r.sequence];
        if (r.position + 2 != m->history->n || !is_decoding(m) || !m->draft.most)
            continue;
        m->to_draft = room_for(g, r.sequence, next_share(&shares));
        take_share(&shares, m->to_draft);
        moe_draft_cut(&m->draft, 0);
        if (!m->to_draft)
            continue;
        g->from[n] = row;
        g->rows[n++] = r;
    }
    return n;
}

/* The first of a row's largest logits. */
static uint32_t likeliest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Drafts one more token for each of n rows: the likeliest by the layer's own states. */
static int draw_ahead(struct moe_generator *g, uint32_t n, struct moe_err *err)
{
    const struct moe_config *c = &g->session->model->config;
    const uint64_t stride = moe_logits_stride(c);
    for (uint32_t i = 0, end; i < n; i = end) {
        uint32_t first = g->from[i];
        for (end = i + 1; end < n && g->from[end] - first < logits_rows(g->n_texts); end++)
            ;
        MOE_TRY(moe_logits(g->session, first, g->from[end - 1] - first + 1, g->logits, err));
        for (uint32_t k = i; k < end; k++) {
            const struct member *m = g->running[g->rows[k].sequence];
            struct moe_draft *d = &g->running[g->rows[k].sequence]->draft;
            float *logits = g->logits + (g->from[k] - first) * stride;
            if (c->drafter.markov_rank)
                MOE_TRY(moe_ahead_follow(
                    g->session, d->n ? d->ids[d->n - 1] : m->history->ids[m->history->n - 1],
                    logits, err));
            d->ids[d->n++] = likeliest(logits, c->vocab);
            d->made = d->n;
        }
    }
    return MOE_OK;
}

/* Makes the layer's next rows from those of n whose drafts are to have more tokens. */
static uint32_t advance_members(struct moe_generator *g, uint32_t n)
{
    uint32_t more = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_row r = g->rows[i];
        const struct member *m = g->running[r.sequence];
        const struct moe_draft *d = &m->draft;
        if (d->n >= m->to_draft)
            continue;
        g->from[more] = g->from[i];
        g->rows[more++] = (struct moe_row){r.sequence, r.position + 1, d->ids[d->n - 1], 0};
    }
    return more;
}

/* A head's blocks for n texts. Each row has a text's last token and the position before it. *n
 * becomes the rows of all blocks. */
static int draft_blocks(struct moe_generator *g, uint32_t *n, struct moe_err *err)
{
    const struct moe_config *head = &g->session->model->drafter->config;
    const uint32_t mask = head->mask_token,
                   known = !head->from_anchor; /* rows that draft nothing */
    uint32_t n_texts = *n, n_drafts = 0, at;
    *n = 0;
    for (uint32_t i = 0; i < n_texts; i++)
        *n += known + g->running[g->rows[i].sequence]->to_draft;
    at = *n;
    for (uint32_t i = n_texts; i-- > 0;) { /* blocks come to lie behind the rows not yet read */
        const struct moe_row r = g->rows[i];
        const uint32_t first = r.position + 1,
                       end = first + known + g->running[r.sequence]->to_draft;
        for (uint32_t position = end; position-- > first;)
            g->rows[--at] =
                (struct moe_row){r.sequence, position, position > first ? mask : r.token, end};
    }
    MOE_TRY(moe_ahead_block(g->session, g->rows, *n, err));
    for (uint32_t i = 0; i < *n; i++)
        if (!known || (i && g->rows[i].sequence == g->rows[i - 1].sequence)) {
            g->from[n_drafts] = i;
            g->rows[n_drafts++] = g->rows[i];
        }
    return draw_ahead(g, n_drafts, err);
}

static void draft_ahead(struct moe_generator *g, uint32_t n_rows)
{
    struct moe_err err;
    uint32_t n_read;
    int status = read_ahead(g, n_rows, &n_read, &err);
    uint32_t n = status == MOE_OK ? keep_ends(g, n_read) : n_read;
    if (n > 0 && status == MOE_OK && g->session->model->config.drafter.block) {
        status = draft_blocks(g, &n, &err);
        if (status != MOE_OK)
            fail_rows(g, n, status, &err);
        return;
    }
    while (n > 0 && status == MOE_OK) {
        status = draw_ahead(g, n, &err);
        if (status != MOE_OK || (n = advance_members(g, n)) == 0)
            break;
        status = moe_ahead(g->session, g->rows, n, g->from, &err);
        for (uint32_t i = 0; i < n; i++)
            g->from[i] = i;
    }
    if (status != MOE_OK)
        fail_rows(g, n, status, &err);
}

/* After the tokens of a pass of n_rows are drawn: rejected drafts are taken back, and the layer
 * that drafts, where there is one, reads the rows and drafts for the next pass. The rows are lost
 * afterwards. */
static void settle_drafts(struct moe_generator *g, uint32_t n_rows)
{
    for (uint32_t i = 0; i < g->n_texts; i++) {
        struct member *m = g->running[i];
        if (!m || moe_sequence_length(g->session, i) == m->n_done)
            continue;
        uint32_t n = moe_sequence_rewind(g->session, i, (uint32_t)m->n_done);
        m->n_again = n ? (uint32_t)m->n_done - n : 0;
        m->n_done = n;
        m->reads = n == 0;
        m->n_to_read = m->history->n;
    }
    if (g->session->model->config.n_drafting)
        draft_ahead(g, n_rows);
}

/* ---- One text ---- */

int moe_generate(struct moe_session *s, struct moe_sampler *sampler, struct moe_ids *history,
                 const struct moe_generate_options *options, enum moe_stop_reason *why,
                 struct moe_err *err)
{
    struct moe_generator *g;
    struct outcome outcome = {.status = MOE_OK};
    MOE_TRY(moe_generator_open(&g, s, 1, 0, err));
    int status = check_request(g, options, history->ids, history->n, err);
    if (status == MOE_OK && options->source)
        status = moe_check_source(s, options->n_source, err);
    struct member *m = status == MOE_OK ? moe_alloc(1, sizeof *m, err) : NULL;
    if (m) {
        m->request = (struct moe_generate_request){.sampler = sampler, .options = *options};
        m->history = history;
        m->n_prompt = history->n;
        m->outcome = &outcome;
        enqueue(g, m);
        while (g->state.n_waiting + g->state.n_running > 0)
            moe_generator_step(g);
        status = outcome.status;
        *why = outcome.why;
        if (status != MOE_OK && err)
            *err = outcome.err;
    } else if (status == MOE_OK) {
        status = MOE_ERR_MEMORY;
    }
    moe_generator_close(g);
    return status;
}
