/* Many answers side by side, a token of each in every pass. */
#include "engine/batch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/drafting.h"
#include "engine/generate.h"
#include "engine/prompt.h"
#include "infer/forward.h"

/*
 * A batch's members: the requests that wait, the sequences that run, and how one becomes the other.
 */
/* A request, waiting or running. */
struct member {
    struct member *next; /* while it waits */
    uint64_t id;
    struct moe_batch_request request; /* without its prompt, which is in `history` */
    struct moe_ids source;            /* where there is an encoder */
    struct moe_ids history;
    struct moe_answer answer;
    uint64_t n_prompt;
    uint64_t n_done;   /* ids of the history that are computed */
    uint32_t n_again;  /* ... and of those behind it, that were: their states were taken back */
    uint64_t n_cached; /* of the prompt: found computed */
    uint64_t n_drafted, n_accepted; /* tokens; of these, that were right */
    struct moe_drafting drafting;
    uint32_t to_draft; /* while the layer that drafts is at work, tokens of its next draft */
    double ttft_seconds;
    bool has_run;
    bool waits_for_source; /* it runs, and its source is not encoded */
    bool far;              /* LongRoPE: they were computed for a text beyond the original context */
};

struct moe_batch {
    struct moe_session *session; /* borrowed */
    uint32_t prompt_rows;
    uint64_t n_added;
    struct moe_batch_state state;
    struct member **running;      /* [n_sequences] by sequence; NULL: it is free */
    struct member *first, **last; /* those that wait */
    struct moe_row *rows;         /* [batch] */
    struct member **of_row;       /* [batch] */
    uint32_t *from;               /* [batch] states that the layer that drafts goes on from */
    float *logits;                /* [LOGITS_ROWS][moe_logits_stride] */
    uint8_t *block;               /* holds these arrays */
};

enum { BATCH_LOGITS_ROWS = 8 }; /* at a time */

/* Whether all of its text but the last token is computed, or was: a step draws its next one. */
bool batch_is_decoding(const struct member *m);
/* What has failed in a pass ends everyone who has one of the first n_rows. */
void batch_fail_rows(struct moe_batch *b, uint32_t n_rows, int status, const struct moe_err *err);

/* Frees a member that neither waits nor runs. NULL is fine. */
void batch_free_member(struct member *m);
/* The sequence gives back what it has; its member, which is returned, runs no more. */
struct member *batch_stop_running(struct moe_batch *b, uint32_t sequence);
/* ... and waits in front of all others: what was computed of it may have to be computed again. */
void batch_begin_again(struct moe_batch *b, uint32_t sequence);
/* The youngest that runs begins again. */
void batch_make_room(struct moe_batch *b);
/* Tells how it ended, and frees a member that neither waits nor runs. */
void batch_finish(struct member *m, int status, const struct moe_err *err);
/* ... that it was the user who ended it. */
void batch_finish_by_user(struct member *m);
/* Those whose time has come begin to run, as far as there are sequences and room for their text and
 * a token more. */
void batch_admit(struct moe_batch *b);

/*
 * Drafts of a batch's members. A pass has few rows for them (MOE_BATCH_DRAFT_ROWS with the tokens
 * that are certain), which its members share: alone a draft is as long as it may be, and with as
 * many members as that there is none, since a pass of so many reads weights for all of them anyway.
 * Within that a draft that was wrong is followed by a shorter one (engine/draft.h).
 *
 * A drafted row takes blocks of the KV cache only where some are free: nobody makes room for it.
 * What is in the cache of a draft in vain lies behind the text's end, where the next pass
 * overwrites it, and no other text takes it over.
 */

enum { MOE_BATCH_DRAFT_ROWS = 16 };

/* Those that are about to decode get drafts, as many tokens as the pass has rows for. */
void batch_drafts_make(struct moe_batch *b);

/* After the tokens of a pass of n_rows are drawn: recurrent states that draft in vain have changed
 * go back, and the layer that drafts, where there is one, reads the rows and drafts what the next
 * pass is to have. The rows are no longer there afterwards. */
void batch_drafts_after(struct moe_batch *b, uint32_t n_rows);

/* ---- Many answers side by side, a token of each in every pass: opening and closing ---- */

/* Takes the arrays from the arena, or only counts them. */
static void carve(struct moe_batch *b, struct moe_arena *arena, const struct moe_config *config,
                  uint32_t n_sequences, uint32_t batch)
{
    b->running = moe_arena_take(arena, n_sequences, sizeof *b->running);
    b->rows = moe_arena_take(arena, batch, sizeof *b->rows);
    b->of_row = moe_arena_take(arena, batch, sizeof *b->of_row);
    b->from = moe_arena_take(arena, batch, sizeof *b->from);
    b->logits =
        moe_arena_take(arena, BATCH_LOGITS_ROWS * moe_logits_stride(config), sizeof *b->logits);
}

uint64_t moe_batch_bytes(const struct moe_config *config, const struct moe_session_options *session)
{
    struct moe_batch b;
    struct moe_arena arena = {0};
    uint32_t source = config->n_encoder == 0    ? 0
                      : session->source_context ? session->source_context
                                                : session->context;
    uint32_t whole = config->prefix_lm ? session->context : source; /* stands in one pass */
    carve(&b, &arena, config, session->n_sequences,
          session->batch < whole ? whole : session->batch);
    uint64_t history =
        2 * ((uint64_t)session->context + source) * sizeof(uint32_t); /* it doubles as it grows */
    return arena.used + session->n_sequences *
                            (moe_sampler_bytes(config->vocab) + sizeof(struct member) + history);
}

int moe_batch_open(struct moe_batch **out, struct moe_session *s, uint32_t prompt_rows,
                   struct moe_err *err)
{
    *out = NULL;
    if (s->n_sequences > s->batch)
        return moe_fail(err, MOE_ERR_USAGE, "a pass of %u rows cannot decode %u sequences",
                        s->batch, s->n_sequences);
    struct moe_batch *b = moe_alloc(1, sizeof *b, err);
    if (!b)
        return MOE_ERR_MEMORY;
    b->session = s;
    b->prompt_rows = prompt_rows && prompt_rows < s->batch ? prompt_rows : s->batch;
    b->last = &b->first;
    struct moe_arena arena = {0};
    carve(b, &arena, &s->model->config, s->n_sequences, s->batch);
    b->block = arena.base = moe_alloc(1, arena.size = arena.used, err);
    if (!b->block) {
        moe_batch_close(b);
        return MOE_ERR_MEMORY;
    }
    arena.used = 0;
    carve(b, &arena, &s->model->config, s->n_sequences, s->batch);
    *out = b;
    return MOE_OK;
}

void moe_batch_close(struct moe_batch *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; b->running && i < b->session->n_sequences; i++) {
        if (b->running[i])
            moe_sequence_end(b->session, i);
        batch_free_member(b->running[i]);
    }
    for (struct member *m = b->first, *next; m; m = next) {
        next = m->next;
        batch_free_member(m);
    }
    free(b->block);
    free(b);
}

const struct moe_batch_state *moe_batch_state(const struct moe_batch *b)
{
    return &b->state;
}

/* ---- Passes ---- */

/* The member's next n ids, those drafted after its text, as rows of a pass. */
static void add_rows(struct moe_batch *b, uint32_t sequence, uint32_t *n_rows, uint64_t n)
{
    struct member *m = b->running[sequence];
    const struct moe_draft *d = &m->drafting.draft;
    for (uint64_t at = m->n_done, end = at + n; at < end; at++, ++*n_rows) {
        b->rows[*n_rows] = (struct moe_row){
            .sequence = sequence,
            .position = (uint32_t)at,
            .token = at < m->history.n ? m->history.ids[at] : d->ids[at - m->history.n],
            .length = (uint32_t)m->history.n + d->n,
        };
        b->of_row[*n_rows] = m;
    }
}

/* LongRoPE: a text that has grown beyond the original context is computed again (generate.c). */
static void note_length(struct moe_batch *b, uint32_t sequence)
{
    const struct member *m = b->running[sequence];
    uint32_t original = b->session->model->config.rope_original;
    if (!m->far && original && m->history.n > original)
        batch_begin_again(b, sequence);
}

/* A drafted token that was right is computed: it is the row behind `row`. */
static void judge(struct moe_batch *b, uint32_t row, struct member *m, uint32_t id)
{
    struct moe_session *s = b->session;
    if (!moe_draft_judge(&m->drafting.draft, id))
        return;
    m->n_done++;
    m->n_accepted++;
    s->stats.accepted_tokens++;
    s->stats.decode.tokens++;
    moe_sequence_computed(s, &b->rows[row + 1], 1);
}

/* Draws the next token of a row whose sequence is computed up to it. */
static void draw(struct moe_batch *b, uint32_t row, const float *logits)
{
    struct moe_session *s = b->session;
    uint32_t sequence = b->rows[row].sequence;
    struct member *m = b->running[sequence];
    struct moe_err err = {0};
    uint32_t id = 0;
    int status = MOE_OK;
    if (!m->answer.ended) {
        uint64_t n_before = m->answer.n_tokens;
        status = moe_answer_draw(&m->answer, m->request.sampler, logits, &m->history, &id, &err);
        if (n_before == 0)
            m->ttft_seconds = moe_seconds() - m->request.options.started;
        if (status == MOE_OK && !m->answer.ended)
            status = moe_answer_take(&m->answer, id, logits, &m->history, &err);
        moe_answer_count(&m->answer, &s->stats);
        s->stats.generated_tokens += m->answer.n_tokens - n_before;
        if (status != MOE_OK && !err.text[0])
            moe_fail(&err, status, "the answer's text was not taken");
    }
    if (status != MOE_OK || m->answer.ended) {
        batch_finish(batch_stop_running(b, sequence), status, &err);
        return;
    }
    judge(b, row, m, id);
    note_length(b, sequence);
}

/* Whether the row is the last that is computed of its text, of which nothing else is to be. */
static bool is_last(const struct moe_batch *b, uint32_t row)
{
    const struct moe_row *r = &b->rows[row];
    const struct member *m = b->running[r->sequence];
    return m && m->n_done == m->history.n && r->position + 1 == m->history.n;
}

/* What comes after rows [first, first + n), where they are the last of their sequences or, drafted,
 * come to be. */
static void draw_rows(struct moe_batch *b, uint32_t first, uint32_t n)
{
    uint64_t stride = moe_logits_stride(&b->session->model->config);
    struct moe_err err;
    for (uint32_t end = first + n, some; first < end; first += some) {
        some = 1;
        if (!is_last(b, first))
            continue;
        some = end - first < BATCH_LOGITS_ROWS ? end - first : BATCH_LOGITS_ROWS;
        int status = moe_logits(b->session, first, some, b->logits, &err);
        for (uint32_t i = 0; i < some; i++)
            if (!is_last(b, first + i))
                continue;
            else if (status == MOE_OK)
                draw(b, first + i, b->logits + i * stride);
            else
                batch_finish(batch_stop_running(b, b->rows[first + i].sequence), status, &err);
    }
}

static int compute(struct moe_batch *b, enum moe_phase phase, uint32_t n_rows)
{
    struct moe_session *s = b->session;
    struct moe_err err;
    int status = moe_forward(s, phase, b->rows, n_rows, s->model->config.n_encoder,
                             s->model->config.n_layers, NULL, NULL, &err);
    for (uint32_t i = 0; i < n_rows && status == MOE_OK; i++) {
        struct member *m = b->of_row[i];
        if (b->rows[i].position >= m->history.n) /* drafted: not computed before it is right */
            continue;
        m->n_done++;
        m->n_again = 0;
        moe_sequence_computed(s, &b->rows[i], 1);
    }
    if (status != MOE_OK)
        batch_fail_rows(b, n_rows, status, &err);
    return status;
}

/* A token for everyone who has a last one that is not computed, and those drafted after it that are
 * right. */
static void decode(struct moe_batch *b)
{
    struct moe_session *s = b->session;
    struct moe_err full;
    uint32_t n_rows = 0, n_members = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        struct member *m = b->running[i];
        while (b->running[i] && batch_is_decoding(m) &&
               moe_sequence_reserve(s, i, (uint32_t)m->history.n, &full) != MOE_OK)
            batch_make_room(b);
    }
    batch_drafts_make(b);
    for (uint32_t i = 0; i < s->n_sequences; i++) {
        struct member *m = b->running[i];
        if (!m || !batch_is_decoding(m))
            continue;
        add_rows(b, i, &n_rows, 1 + m->n_again + m->drafting.draft.n);
        n_members++;
    }
    if (n_rows == 0 || compute(b, MOE_DECODE, n_rows) != MOE_OK)
        return;
    s->stats.decode.tokens -= n_rows - n_members; /* what is drafted counts when it is right */
    draw_rows(b, 0, n_rows);
    batch_drafts_after(b, n_rows);
}

/* The oldest whose text is not computed, of those after `after`; n_sequences: none. */
static uint32_t next_prompt(const struct moe_batch *b, uint64_t after)
{
    uint32_t n = b->session->n_sequences, oldest = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct member *m = b->running[i];
        if (m && m->id > after && !batch_is_decoding(m) && !m->waits_for_source &&
            (oldest == n || m->id < b->running[oldest]->id))
            oldest = i;
    }
    return oldest;
}

/* How many rows of the member's text stand in a pass that has n_rows; 0: it waits for another. A
 * prompt that sees all of itself comes whole, and what it was answered so far with it. */
static uint32_t piece(const struct moe_batch *b, const struct member *m, uint32_t n_rows)
{
    uint64_t left = m->history.n - m->n_done;
    uint32_t room = b->prompt_rows - n_rows;
    if (!b->session->prompts)
        return left < room ? (uint32_t)left : room;
    return n_rows == 0 || left <= room ? (uint32_t)left : 0;
}

/* A piece of the texts that are not computed, the oldest first. */
static void prefill(struct moe_batch *b)
{
    uint32_t n_rows = 0, i, n;
    uint64_t after = 0;
    while (n_rows < b->prompt_rows && (i = next_prompt(b, after)) < b->session->n_sequences) {
        struct member *m = b->running[i];
        after = m->id;
        if (m->request.options.stop && *m->request.options.stop)
            batch_finish_by_user(batch_stop_running(b, i));
        else if ((n = piece(b, m, n_rows)) > 0)
            add_rows(b, i, &n_rows, n);
        else
            break;
    }
    if (n_rows == 0 || compute(b, MOE_PREFILL, n_rows) != MOE_OK)
        return;
    for (uint32_t row = 0; row < n_rows; row++)
        if (is_last(b, row))
            draw_rows(b, row, 1);
    batch_drafts_after(b, n_rows);
}

/* The oldest whose source waits, of those after `after`; n_sequences: none. */
static uint32_t next_source(const struct moe_batch *b, uint64_t after)
{
    uint32_t n = b->session->n_sequences, oldest = n;
    for (uint32_t i = 0; i < n; i++) {
        const struct member *m = b->running[i];
        if (m && m->id > after && m->waits_for_source &&
            (oldest == n || m->id < b->running[oldest]->id))
            oldest = i;
    }
    return oldest;
}

/* Whole sources, as many as a pass takes, the oldest first. */
static void encode(struct moe_batch *b)
{
    struct moe_session *s = b->session;
    struct moe_err err;
    uint32_t n_rows = 0, i;
    uint64_t after = 0;
    while ((i = next_source(b, after)) < s->n_sequences) {
        struct member *m = b->running[i];
        if (m->source.n > s->batch - n_rows)
            break;
        after = m->id;
        if (m->request.options.stop && *m->request.options.stop) {
            batch_finish_by_user(batch_stop_running(b, i));
            continue;
        }
        moe_source_rows(b->rows + n_rows, i, m->source.ids, (uint32_t)m->source.n);
        n_rows += (uint32_t)m->source.n;
    }
    int status = n_rows ? moe_encode(s, b->rows, n_rows, NULL, &err) : MOE_OK;
    if (status != MOE_OK)
        batch_fail_rows(b, n_rows, status, &err);
    for (uint32_t row = 0; row < n_rows && status == MOE_OK; row++)
        b->running[b->rows[row].sequence]->waits_for_source = false;
}

void moe_batch_step(struct moe_batch *b)
{
    batch_admit(b);
    encode(b);
    decode(b);
    prefill(b);
}

/* ---- Members ---- */

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

/* ---- Drafts ---- */

static uint32_t smaller(uint32_t a, uint64_t b)
{
    return b < a ? (uint32_t)b : a;
}

/* ---- Room ---- */

/* Rows of a pass, shared by those that decode. */
struct shares {
    uint32_t left, members;
};

static struct shares shares_of(const struct moe_batch *b)
{
    const struct moe_session *s = b->session;
    struct shares shares = {0, 0};
    uint32_t certain = 0;
    for (uint32_t i = 0; i < s->n_sequences; i++)
        if (b->running[i] && batch_is_decoding(b->running[i])) {
            shares.members++;
            certain += 1 + b->running[i]->n_again;
        }
    /* What states have to compute again must fit the next pass, beside a token of everyone else. */
    uint32_t others = s->stands ? s->n_sequences - shares.members : 0;
    uint32_t batch = s->batch > others ? s->batch - others : 0;
    uint32_t most = batch < MOE_BATCH_DRAFT_ROWS ? batch : MOE_BATCH_DRAFT_ROWS;
    shares.left = most > certain ? most - certain : 0;
    return shares;
}

/* The next member's share, of which `used` will be taken. */
static uint32_t share(const struct shares *shares)
{
    return shares->members ? shares->left / shares->members : 0;
}

static void take(struct shares *shares, uint32_t used)
{
    shares->left -= used;
    shares->members--;
}

/* How many tokens, at most `most`, a sequence's draft may have: it has blocks for them. */
static uint32_t room_for(struct moe_batch *b, uint32_t sequence, uint32_t most)
{
    const struct member *m = b->running[sequence];
    struct moe_err full;
    uint32_t rows = 1 + m->n_again + most;
    most = smaller(most, moe_drafting_room(&m->answer, &m->history, rows, m->n_again, m->far));
    most = smaller(most, m->drafting.draft.next);
    while (most && moe_sequence_reserve(b->session, sequence, (uint32_t)m->history.n + most,
                                        &full) != MOE_OK)
        most--;
    return most;
}

void batch_drafts_make(struct moe_batch *b)
{
    struct shares shares = shares_of(b);
    for (uint32_t i = 0; i < b->session->n_sequences; i++) {
        struct member *m = b->running[i];
        if (!m || !batch_is_decoding(m))
            continue;
        struct moe_draft *d = &m->drafting.draft;
        uint32_t most = d->most ? room_for(b, i, share(&shares)) : 0;
        if (m->drafting.ahead)
            moe_draft_cut(d, most);
        else if (d->most)
            moe_draft_make(d, m->history.ids, m->history.n, most);
        if (d->n)
            moe_sequence_mark(b->session, i, (uint32_t)m->n_done);
        m->n_drafted += d->n;
        b->session->stats.drafted_tokens += d->n;
        take(&shares, d->n);
    }
}

/* ---- The layer that drafts ---- */

/* It reads rows of those that want its drafts, where the token after is known. *n: how many. Of
 * what a sequence has taken over it reads nothing: there its keys and values are those of the other
 * text, whose next token may have been another; a draft may be worse for it. */
static int read_ahead(struct moe_batch *b, uint32_t n_rows, uint32_t *n, struct moe_err *err)
{
    *n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct moe_row r = b->rows[row];
        const struct member *m = b->running[r.sequence];
        if (!m || !m->drafting.ahead || r.position + 1 >= m->history.n)
            continue;
        b->from[*n] = row;
        b->rows[(*n)++] =
            (struct moe_row){r.sequence, r.position, m->history.ids[r.position + 1], 0};
    }
    return *n ? moe_ahead(b->session, b->rows, *n, b->from, err) : MOE_OK;
}

/* Of n rows those stay that drafts go on from, with the states that they are in. */
static uint32_t keep_ends(struct moe_batch *b, uint32_t n_rows)
{
    struct shares shares = shares_of(b);
    uint32_t n = 0;
    for (uint32_t row = 0; row < n_rows; row++) {
        const struct moe_row r = b->rows[row];
        struct member *m = b->running[r.sequence];
        if (r.position + 2 != m->history.n || !batch_is_decoding(m) || !m->drafting.draft.most)
            continue;
        m->to_draft = room_for(b, r.sequence, share(&shares));
        take(&shares, m->to_draft);
        moe_draft_cut(&m->drafting.draft, 0);
        if (!m->to_draft)
            continue;
        b->from[n] = row;
        b->rows[n++] = r;
    }
    return n;
}

/* A token more for each of n rows: the likeliest by the layer's own states. */
static int draw_ahead(struct moe_batch *b, uint32_t n, struct moe_err *err)
{
    const struct moe_config *c = &b->session->model->config;
    const uint64_t stride = moe_logits_stride(c);
    for (uint32_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && b->from[end] - b->from[i] < BATCH_LOGITS_ROWS; end++)
            ;
        uint32_t first = b->from[i];
        int status = moe_logits(b->session, first, b->from[end - 1] - first + 1, b->logits, err);
        if (status != MOE_OK)
            return status;
        for (uint32_t k = i; k < end; k++) {
            struct moe_draft *d = &b->running[b->rows[k].sequence]->drafting.draft;
            d->ids[d->n++] =
                moe_drafting_likeliest(b->logits + (b->from[k] - first) * stride, c->vocab);
            d->made = d->n;
        }
    }
    return MOE_OK;
}

/* Of n rows the layer's next ones for those that are to have more tokens. */
static uint32_t go_on(struct moe_batch *b, uint32_t n)
{
    uint32_t more = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_row r = b->rows[i];
        const struct member *m = b->running[r.sequence];
        const struct moe_draft *d = &m->drafting.draft;
        if (d->n >= m->to_draft)
            continue;
        b->from[more] = b->from[i];
        b->rows[more++] = (struct moe_row){r.sequence, r.position + 1, d->ids[d->n - 1], 0};
    }
    return more;
}

static void draft_ahead(struct moe_batch *b, uint32_t n_rows)
{
    struct moe_err err;
    uint32_t n_read;
    int status = read_ahead(b, n_rows, &n_read, &err);
    uint32_t n = status == MOE_OK ? keep_ends(b, n_read) : n_read;
    while (n > 0 && status == MOE_OK) {
        status = draw_ahead(b, n, &err);
        if (status != MOE_OK || (n = go_on(b, n)) == 0)
            break;
        status = moe_ahead(b->session, b->rows, n, b->from, &err);
        for (uint32_t i = 0; i < n; i++)
            b->from[i] = i;
    }
    if (status != MOE_OK)
        batch_fail_rows(b, n, status, &err);
}

/* ---- After a pass ---- */

/* A draft in vain has left the states behind it. */
static void go_back(struct moe_batch *b, uint32_t sequence)
{
    struct member *m = b->running[sequence];
    uint32_t n = moe_sequence_back(b->session, sequence, (uint32_t)m->n_done);
    if (n < m->n_done && n > 0)
        m->n_again = (uint32_t)m->n_done - n;
    m->n_done = n;
}

void batch_drafts_after(struct moe_batch *b, uint32_t n_rows)
{
    const struct moe_session *s = b->session;
    for (uint32_t i = 0; i < s->n_sequences && s->stands; i++)
        if (b->running[i] && b->running[i]->n_done > 0)
            go_back(b, i);
    if (s->model->config.n_drafting)
        draft_ahead(b, n_rows);
}
