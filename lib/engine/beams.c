/* The search for the best of several texts. */
#include "engine/beams.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/rank.h"
#include "engine/sampler.h"
#include "infer/forward.h"

/* A beam of a step that is over: the beam of the step before that it went on from, and how. */
struct node {
    uint32_t parent, token;
};

/* One that goes on. */
struct beam {
    double score; /* the sum of its tokens' log probabilities */
    uint32_t sequence;
    struct node node;
};

/* A candidate of a step: a beam and the token that may follow it. */
struct candidate {
    double score;
    struct node node;
};

/* A finished text. */
struct hypothesis {
    double score; /* by its length */
    uint32_t n_tokens;
    struct node last;
};

struct search {
    struct moe_session *session;
    struct moe_answer *answer;
    const struct moe_ids *history;
    const struct moe_beam_options *options;
    float *logits;
    uint32_t n_prompt;
    uint32_t n_given; /* tokens that a text has before its first one and count: what a decoder's
                         begins with behind its start */
    uint32_t n_most;  /* tokens of a text */
    uint32_t n_kept;  /* candidates of a step */
    uint32_t n_steps, n_live, n_next, n_candidates, n_finished;
    bool interrupted;
    struct node *nodes;           /* [n_most][n] beams of the steps so far */
    struct beam *live, *next;     /* [n] */
    struct candidate *candidates; /* [n_kept] best first */
    struct hypothesis *finished;  /* [n] best first */
    uint32_t *path;               /* [n_most] tokens of one beam */
    bool *has_child, *used;       /* [n] by beam; by sequence */
    struct moe_row *rows;         /* [batch] */
};

/* Candidates kept per step: enough that n can go on even if the others end their text. */
static uint32_t n_candidates_kept(const struct moe_config *c, uint32_t n)
{
    return (c->n_eos > 1 ? 1 + c->n_eos : 2) * n;
}

/* ---- Texts of beams ---- */

/* Collects into b->path the n tokens of the text that ends with `last`. */
static void write_path(const struct search *b, uint32_t n, struct node last)
{
    for (; n > 0; n--) {
        b->path[n - 1] = last.token;
        if (n > 1)
            last = b->nodes[(uint64_t)(n - 2) * b->options->n + last.parent];
    }
}

/* Whether a stop text has appeared with the last of n tokens. */
static int has_stop_text(const struct search *b, uint32_t n, struct node last, bool *has,
                         struct moe_err *err)
{
    const struct moe_model *m = b->session->model;
    const char *const *stops = b->answer->options->stop_texts;
    uint64_t longest = 0, n_before = 0;
    uint32_t first = n - 1, n_bytes;
    struct moe_buf text = {0};
    *has = false;
    for (const char *const *stop = stops; stop && *stop; stop++)
        longest = strlen(*stop) > longest ? strlen(*stop) : longest;
    if (longest == 0)
        return MOE_OK;
    write_path(b, n, last);
    bool inside = false;
    while (first > 0 && n_before < longest) {
        moe_answer_bytes(m, NULL, b->path[--first], &inside, &n_bytes);
        n_before += n_bytes;
    }
    bool begins = first == 0 && b->answer->begins;
    for (uint32_t i = first; i < n; i++) {
        const uint8_t *bytes = moe_answer_bytes(m, NULL, b->path[i], &begins, &n_bytes);
        moe_buf_append(&text, bytes, n_bytes);
    }
    moe_buf_u8(&text, 0);
    bool failed = text.failed;
    for (const char *const *stop = stops; !failed && *stop; stop++)
        for (uint64_t i = 0; **stop && i + strlen(*stop) < text.size; i++)
            *has = *has || memcmp(text.data + i, *stop, strlen(*stop)) == 0;
    moe_buf_release(&text);
    return failed ? moe_fail(err, MOE_ERR_MEMORY, "out of memory: a beam's text") : MOE_OK;
}

/* ---- A step ---- */

/* Takes a candidate, if it is among the best. They come in the order in which equals are ranked. */
static void consider(struct search *b, struct candidate c)
{
    uint32_t at = b->n_candidates;
    if (at == b->n_kept && !(c.score > b->candidates[--at].score))
        return;
    b->n_candidates = at + 1;
    for (; at > 0 && b->candidates[at - 1].score < c.score; at--)
        b->candidates[at] = b->candidates[at - 1];
    b->candidates[at] = c;
}

/* Takes what a beam may go on with, by the logits of a row of the last pass, as candidates. Beams
 * come in their order. */
static int consider_row(struct search *b, uint32_t beam, uint32_t row, struct moe_err *err)
{
    uint32_t vocab = b->session->model->config.vocab, likeliest;
    int status = moe_logits(b->session, row, 1, b->logits, err);
    if (status != MOE_OK)
        return status;
    for (uint32_t id = 0; id < vocab; id++)
        b->logits[id] = moe_logit_sane(b->logits[id]);
    moe_best(b->logits, vocab, 1, &likeliest);
    const struct moe_logit_scale scale = moe_logit_scale_of(b->logits, vocab, likeliest);
    double before = b->live[beam].score - scale.largest - scale.log_sum;
    for (uint32_t id = 0; id < vocab; id++)
        consider(b, (struct candidate){before + b->logits[id], {beam, id}});
    return MOE_OK;
}

/* Keeps a finished text, if it is among the best. */
static void finish_candidate(struct search *b, const struct candidate *c)
{
    uint32_t n = b->options->n, at = b->n_finished;
    struct hypothesis h = {.n_tokens = b->n_steps + 1, .last = c->node};
    h.score = c->score / pow(b->n_given + h.n_tokens, b->options->length_penalty);
    if (at == n && !(h.score > b->finished[--at].score))
        return;
    b->n_finished = at + 1;
    for (; at > 0 && b->finished[at - 1].score < h.score; at--)
        b->finished[at] = b->finished[at - 1];
    b->finished[at] = h;
}

/* Parts the candidates in texts that are finished and beams that go on, in b->next. */
static int part_candidates(struct search *b, struct moe_err *err)
{
    uint32_t n = b->options->n;
    int status = MOE_OK;
    b->n_next = 0;
    for (uint32_t i = 0; i < b->n_candidates && status == MOE_OK; i++) {
        const struct candidate *c = &b->candidates[i];
        bool ends = moe_answer_is_end(b->answer, c->node.token) || b->n_steps + 1 == b->n_most;
        if (!ends)
            status = has_stop_text(b, b->n_steps + 1, c->node, &ends, err);
        if (ends && i < n)
            finish_candidate(b, c);
        else if (!ends && b->n_next < n)
            b->next[b->n_next++] = (struct beam){.score = c->score, .node = c->node};
    }
    return status;
}

/* Whether nothing that goes on could become the best. */
static bool is_over(const struct search *b)
{
    const struct moe_beam_options *o = b->options;
    if (b->n_next == 0)
        return true;
    if (b->n_finished < o->n)
        return false;
    bool longest = o->early == MOE_EARLY_NEVER && o->length_penalty > 0;
    double length = b->n_given + (longest ? b->n_most : b->n_steps + 1);
    return o->early == MOE_EARLY_YES || b->next[0].score / pow(length, o->length_penalty) <=
                                            b->finished[b->n_finished - 1].score;
}

/* ---- Memory ---- */

static void take_search(struct search *b, struct moe_arena *arena, const struct moe_config *c,
                        uint32_t n, uint32_t n_most, uint32_t batch)
{
    b->nodes = moe_arena_take(arena, (uint64_t)n_most * n, sizeof *b->nodes);
    b->live = moe_arena_take(arena, n, sizeof *b->live);
    b->next = moe_arena_take(arena, n, sizeof *b->next);
    b->candidates = moe_arena_take(arena, n_candidates_kept(c, n), sizeof *b->candidates);
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
    take_search(&b, &arena, config, options->n, context, batch);
    return arena.used;
}

/* ---- Going on ---- */

/* The first continuation of a beam keeps its sequence; others fork into the sequences of beams
 * without one. */
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
        moe_sequence_rewind(s, b->live[i].sequence, 0);
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

static int advance_beams(struct search *b, struct moe_err *err)
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
        moe_sequence_rewind(b->session, b->live[i].sequence, 0);
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
    while (beam < b->n_live) {
        uint32_t n_before = beam;
        for (n_rows = 0; n_rows < s->batch && beam < b->n_live; n_rows++) {
            if (position == first)
                write_path(b, b->n_steps, b->live[beam].node);
            uint32_t id = position < b->n_prompt ? b->history->ids[position]
                                                 : b->path[position - b->n_prompt];
            b->rows[n_rows] = (struct moe_row){b->live[beam].sequence, position, id, n_all};
            if (++position == n_all) {
                position = first;
                beam++;
            }
        }
        MOE_TRY(moe_forward(s, phase, b->rows, n_rows, c->n_encoder, c->n_layers, NULL, NULL, err));
        for (uint32_t i = 0, at = n_before; i < n_rows; i++) {
            if (b->rows[i].position + 1 == n_all)
                MOE_TRY(consider_row(b, at++, i, err));
        }
    }
    return MOE_OK;
}

static int search(struct search *b, uint32_t last, struct moe_err *err)
{
    const volatile sig_atomic_t *stop = b->answer->options->stop;
    MOE_TRY(consider_row(b, 0, last, err));
    MOE_TRY(part_candidates(b, err));
    while (!is_over(b) && !(b->interrupted = stop && *stop)) {
        MOE_TRY(advance_beams(b, err));
        MOE_TRY(compute(b, err));
        MOE_TRY(part_candidates(b, err));
    }
    return MOE_OK;
}

/* ---- The answer ---- */

/* The best that is finished; where the search was interrupted before, the best that was going on.
 */
static struct hypothesis best_of(const struct search *b)
{
    if (b->n_finished)
        return b->finished[0];
    return (struct hypothesis){
        .score = b->next[0].score / pow(b->n_given + b->n_steps + 1, b->options->length_penalty),
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
    write_path(b, best.n_tokens, best.last);
    stats->answers++;
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

/* Leaves the prompt in sequence 0 if it is to stay and has room there, and nothing in the
 * others. */
static void tidy(struct search *b, bool keep)
{
    struct moe_session *s = b->session;
    struct moe_err none;
    keep = keep && !s->model->config.rope_original;
    if (keep && !b->used[0])
        moe_sequence_fork(s, b->live[0].sequence, 0, b->n_prompt, &none);
    else
        moe_sequence_rewind(s, 0, keep ? b->n_prompt : 0);
    for (uint32_t i = 1; i < b->options->n; i++)
        moe_sequence_rewind(s, i, 0);
}

int moe_beams_search(struct moe_session *s, struct moe_ids *history, struct moe_answer *answer,
                     float *logits, uint32_t last, struct moe_err *err)
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
        .n_given = c->n_encoder ? (uint32_t)history->n - 1 : 0,
        .n_most = (uint32_t)(o->max_tokens < most ? o->max_tokens : most),
        .n_kept = n_candidates_kept(c, o->beams.n),
        .n_live = 1,
    };
    struct moe_arena arena = {0};
    take_search(&b, &arena, c, o->beams.n, b.n_most, s->batch);
    arena.base = moe_alloc(1, arena.size = arena.used, err);
    if (!arena.base)
        return MOE_ERR_MEMORY;
    arena.used = 0;
    take_search(&b, &arena, c, o->beams.n, b.n_most, s->batch);
    for (uint32_t i = 1; s->n_sources && i < o->beams.n; i++)
        moe_sequence_attend(s, i, s->attends[0]);
    memset(b.used, 0, o->beams.n * sizeof *b.used);
    b.used[0] = true;
    b.live[0] = (struct beam){0};
    int status = search(&b, last, err);
    tidy(&b, status == MOE_OK);
    if (status == MOE_OK)
        status = deliver(&b, history, err);
    free(arena.base);
    return status;
}
