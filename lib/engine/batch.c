#include "engine/batch.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/batch_drafts.h"
#include "engine/batch_members.h"
#include "engine/encode.h"
#include "run/source.h"

/* ---- Opening and closing ---- */

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
