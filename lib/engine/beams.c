#include "engine/beams.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/beams_step.h"
#include "run/source.h"

/* ---- Memory ---- */

static void carve(struct search *b, struct moe_arena *arena, const struct moe_config *c, uint32_t n,
                  uint32_t n_most, uint32_t batch)
{
    b->nodes = moe_arena_take(arena, (uint64_t)n_most * n, sizeof *b->nodes);
    b->live = moe_arena_take(arena, n, sizeof *b->live);
    b->next = moe_arena_take(arena, n, sizeof *b->next);
    b->candidates = moe_arena_take(arena, beams_n_kept(c, n), sizeof *b->candidates);
    b->finished = moe_arena_take(arena, n, sizeof *b->finished);
    b->path = moe_arena_take(arena, n_most, sizeof *b->path);
    b->has_child = moe_arena_take(arena, n, sizeof *b->has_child);
    b->used = moe_arena_take(arena, n, sizeof *b->used);
    b->rows = moe_arena_take(arena, batch, sizeof *b->rows);
}

uint64_t moe_beams_bytes(const struct moe_config *config, const struct moe_beam_options *options,
                         uint32_t context, uint32_t batch)
{
    struct search b;
    struct moe_arena arena = {0};
    carve(&b, &arena, config, options->n, context, batch);
    return arena.used;
}

/* ---- Going on ---- */

/* The first that goes on from a beam keeps its sequence; others fork into those that nothing goes
 * on from. */
static int fork_sequences(struct search *b, struct moe_err *err)
{
    struct moe_session *s = b->session;
    uint32_t n_positions = b->n_prompt + b->n_steps, free_one = 0;
    int status = MOE_OK;
    memset(b->has_child, 0, b->options->n * sizeof *b->has_child);
    for (uint32_t i = 0; i < b->n_next; i++) {
        uint32_t parent = b->next[i].node.parent;
        b->next[i].sequence = b->has_child[parent] ? UINT32_MAX : b->live[parent].sequence;
        b->has_child[parent] = true;
    }
    for (uint32_t i = 0; i < b->n_live; i++) {
        if (b->has_child[i])
            continue;
        moe_sequence_end(s, b->live[i].sequence);
        b->used[b->live[i].sequence] = false;
    }
    for (uint32_t i = 0; i < b->n_next && status == MOE_OK; i++) {
        if (b->next[i].sequence != UINT32_MAX)
            continue;
        while (b->used[free_one])
            free_one++;
        b->used[free_one] = true;
        b->next[i].sequence = free_one;
        status = moe_sequence_fork(s, b->live[b->next[i].node.parent].sequence, free_one,
                                   n_positions, err);
    }
    return status;
}

static int go_on(struct search *b, struct moe_err *err)
{
    struct beam *before = b->live;
    int status = fork_sequences(b, err);
    for (uint32_t i = 0; i < b->n_next; i++)
        b->nodes[(uint64_t)b->n_steps * b->options->n + i] = b->next[i].node;
    b->live = b->next;
    b->next = before;
    b->n_live = b->n_next;
    b->n_steps++;
    b->n_candidates = 0;
    return status;
}

/* LongRoPE: texts that have grown beyond the original context are computed again (generate.c). */
static uint32_t first_to_compute(struct search *b, uint32_t n_all)
{
    uint32_t original = b->session->model->config.rope_original;
    if (!original || n_all != original + 1)
        return n_all - 1;
    for (uint32_t i = 0; i < b->n_live; i++)
        moe_sequence_end(b->session, b->live[i].sequence);
    return 0;
}

/* Computes what the beams have got, and finds the next step's candidates. */
static int compute(struct search *b, struct moe_err *err)
{
    struct moe_session *s = b->session;
    const struct moe_config *c = &s->model->config;
    uint32_t n_all = b->n_prompt + b->n_steps, n_rows = 0, beam = 0;
    uint32_t first = first_to_compute(b, n_all), position = first;
    enum moe_phase phase = first + 1 == n_all ? MOE_DECODE : MOE_PREFILL;
    int status = MOE_OK;
    while (beam < b->n_live && status == MOE_OK) {
        uint32_t n_before = beam;
        for (n_rows = 0; n_rows < s->batch && beam < b->n_live; n_rows++) {
            if (position == first)
                beams_write_path(b, b->n_steps, b->live[beam].node);
            uint32_t id = position < b->n_prompt ? b->history->ids[position]
                                                 : b->path[position - b->n_prompt];
            b->rows[n_rows] = (struct moe_row){b->live[beam].sequence, position, id, n_all};
            if (++position == n_all) {
                position = first;
                beam++;
            }
        }
        status = moe_forward(s, phase, b->rows, n_rows, c->n_encoder, c->n_layers, NULL, NULL, err);
        for (uint32_t i = 0, at = n_before; i < n_rows && status == MOE_OK; i++)
            if (b->rows[i].position + 1 == n_all)
                status = beams_consider(b, at++, i, err);
    }
    return status;
}

static int search(struct search *b, uint32_t last, struct moe_err *err)
{
    const volatile sig_atomic_t *stop = b->answer->options->stop;
    int status = beams_consider(b, 0, last, err);
    if (status == MOE_OK)
        status = beams_part(b, err);
    while (status == MOE_OK && !beams_are_over(b) && !(b->interrupted = stop && *stop)) {
        status = go_on(b, err);
        if (status == MOE_OK)
            status = compute(b, err);
        if (status == MOE_OK)
            status = beams_part(b, err);
    }
    return status;
}

/* ---- The answer ---- */

/* The best that is finished; where the search was interrupted before, the best that was going on.
 */
static struct hypothesis best_of(const struct search *b)
{
    if (b->n_finished)
        return b->finished[0];
    return (struct hypothesis){
        .score = b->next[0].score / pow(b->n_steps + 1, b->options->length_penalty),
        .n_tokens = b->n_steps + 1,
        .last = b->next[0].node,
    };
}

static int deliver(const struct search *b, struct moe_ids *history, struct moe_err *err)
{
    struct moe_stats *stats = &b->session->stats;
    struct moe_answer *a = b->answer;
    const struct moe_generate_options *asked = a->options;
    struct moe_generate_options all = *asked;
    const struct hypothesis best = best_of(b);
    int status = MOE_OK;
    all.stop = NULL; /* what was found is shown whole */
    all.token = NULL;
    a->options = &all;
    beams_write_path(b, best.n_tokens, best.last);
    stats->beams = b->options->n;
    stats->beam_score = best.score;
    stats->ttft_seconds = moe_seconds() - asked->started;
    for (uint32_t i = 0; i < best.n_tokens && status == MOE_OK && !a->ended; i++)
        status = moe_answer_take(a, b->path[i], NULL, history, err);
    stats->generated_tokens += a->n_tokens;
    a->options = asked;
    if (b->interrupted) {
        a->ended = true;
        a->why = MOE_STOP_USER;
    }
    return status;
}

/* Leaves the prompt in sequence 0 if it is to be kept and has room there, and nothing in the
 * others. Returns the positions that are left. */
static uint32_t tidy(struct search *b, bool keep)
{
    struct moe_session *s = b->session;
    struct moe_err none;
    keep = keep && !s->model->config.rope_original;
    if (!keep)
        moe_sequence_end(s, 0);
    else if (!b->used[0])
        keep = moe_sequence_fork(s, b->live[0].sequence, 0, b->n_prompt, &none) == MOE_OK;
    for (uint32_t i = 1; i < b->options->n; i++)
        moe_sequence_end(s, i);
    return keep ? b->n_prompt : 0;
}

int moe_beams_search(struct moe_session *s, struct moe_ids *history, uint64_t *n_done,
                     struct moe_answer *answer, float *logits, uint32_t last, struct moe_err *err)
{
    const struct moe_generate_options *o = answer->options;
    const struct moe_config *c = &s->model->config;
    uint64_t most = s->context - history->n + 1; /* the last need not be computed */
    if (o->beams.n > s->n_sequences)
        return moe_fail(err, MOE_ERR_USAGE, "%u beams need as many sequences, and there are %u",
                        o->beams.n, s->n_sequences);
    struct search b = {
        .session = s,
        .answer = answer,
        .history = history,
        .options = &o->beams,
        .logits = logits,
        .n_prompt = (uint32_t)history->n,
        .n_most = (uint32_t)(o->max_tokens < most ? o->max_tokens : most),
        .n_kept = beams_n_kept(c, o->beams.n),
        .n_live = 1,
    };
    struct moe_arena arena = {0};
    carve(&b, &arena, c, o->beams.n, b.n_most, s->batch);
    arena.base = moe_alloc(1, arena.size = arena.used, err);
    if (!arena.base)
        return MOE_ERR_MEMORY;
    arena.used = 0;
    carve(&b, &arena, c, o->beams.n, b.n_most, s->batch);
    for (uint32_t i = 1; s->n_sources && i < o->beams.n; i++)
        moe_sequence_attend(s, i, s->attends[0]);
    memset(b.used, 0, o->beams.n * sizeof *b.used);
    b.used[0] = true;
    b.live[0] = (struct beam){0};
    int status = search(&b, last, err);
    *n_done = tidy(&b, status == MOE_OK);
    if (status == MOE_OK)
        status = deliver(&b, history, err);
    free(arena.base);
    return status;
}
