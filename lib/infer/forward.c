/*
 * The forward pass around its layers (sched/pass.h): what rows may be computed, states in, states
 * out, head; sources and drafts.
 */
#include "infer/forward.h"

#include <string.h>

#include "base/clock.h"
#include "base/energy.h"
#include "base/par.h"
#include "infer/kv_pool.h"
#include "infer/pass_ops.h"
#include "infer/recurrent.h"
#include "infer/router.h"
#include "infer/session.h"
#include "infer/stages.h"
#include "infer/state.h"
#include "ranks/ranks.h"

int moe_check_ids(const struct moe_model *m, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] >= m->config.vocab)
            return moe_fail(err, MOE_ERR_FORMAT,
                            "%s: the text has token %u, and the model embeds only %u (the "
                            "tokenizer knows %u)",
                            moe_pack_path(m->pack), ids[i], m->config.vocab,
                            moe_tokenizer_n_tokens(m->tokenizer));
    return MOE_OK;
}

/* Checks that the rows can be computed, and reserves room for them in the KV cache. */
static int check_rows(struct moe_session *s, bool encode, const struct moe_row *rows,
                      uint32_t n_rows, struct moe_err *err)
{
    uint32_t n_texts = encode ? s->n_sources : s->n_sequences;
    uint32_t context = encode ? s->source_context : s->context;
    if (n_rows == 0 || n_rows > s->batch)
        return moe_fail(err, MOE_ERR_USAGE, "a pass takes 1 to %u rows, not %u", s->batch, n_rows);
    if (moe_par_threads() > s->n_threads) /* scratch memory is per thread */
        return moe_fail(err, MOE_ERR_USAGE, "the session was opened for %d threads, not %d",
                        s->n_threads, moe_par_threads());
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct moe_row *r = &rows[i];
        if (r->sequence >= n_texts || r->position >= context || r->length > context ||
            (r->length && r->length <= r->position))
            return moe_fail(err, MOE_ERR_USAGE,
                            "row %u: %s %u or position %u of %u is out of range", i,
                            encode ? "source" : "sequence", r->sequence, r->position, r->length);
        MOE_TRY(moe_check_ids(s->model, &r->token, 1, err));
        if (!encode)
            MOE_TRY(moe_kv_take(&s->kv_pool, r->sequence, r->position + 1, err));
    }
    return MOE_OK;
}

/* Rows [first, *end) of a pass follow each other in one sequence. */
static struct moe_row run_at(const struct moe_row *rows, uint32_t n_rows, uint32_t first,
                             uint32_t *end)
{
    for (*end = first + 1; *end < n_rows && rows[*end].sequence == rows[first].sequence &&
                           rows[*end].position == rows[*end - 1].position + 1;)
        ++*end;
    return rows[first];
}

/* Reserves room in layers with a window for what these rows see and what they write. */
static int take_windows(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        struct moe_err *err)
{
    struct moe_kv_pool *pool = &s->kv_pool;
    if (!pool->n_slots)
        return MOE_OK;
    moe_kv_windows_pass(pool);
    for (uint32_t i = 0, end; i < n_rows; i = end) {
        const struct moe_row r = run_at(rows, n_rows, i, &end);
        moe_kv_windows_run(pool, r.sequence, r.position, r.position + end - i);
    }
    moe_kv_windows_keep(pool);
    for (uint32_t i = 0, end; i < n_rows; i = end) {
        const struct moe_row r = run_at(rows, n_rows, i, &end);
        MOE_TRY(moe_kv_windows_take(pool, r.sequence, r.position, r.position + end - i, err));
    }
    return MOE_OK;
}

/* Texts end before the rows that replace what was there, until these are computed. */
static void cut_texts(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows)
{
    for (uint32_t i = 0; i < n_rows; i++) {
        struct moe_sequence *q = &s->sequences[rows[i].sequence];
        q->n = q->n < rows[i].position ? q->n : rows[i].position;
    }
}

/* Sequences begin anew with rows at position 0. True where one begins, there or by
 * moe_sequence_sync, and no other is under way. */
static bool begin_sequences(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows)
{
    bool begun = s->begins;
    uint32_t n_gone = 0;
    uint64_t n_left = 0;
    s->begins = false;
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i].position > 0)
            continue;
        begun = true;
        n_gone += s->sequences[rows[i].sequence].n_recorded;
        s->sequences[rows[i].sequence].n_recorded = 0;
    }
    for (uint32_t i = 0; i < s->n_sequences; i++)
        n_left += s->sequences[i].n_recorded;
    if (n_gone && n_left && s->pass.scheduler)
        moe_scheduler_end_sequence(s->pass.scheduler, n_gone);
    return begun && n_left == 0;
}

/* Has the blocks of the KV cache take memory that hold the texts, and those that the rows will be
 * in. texts: that is all that is needed; else other layers may have positions behind them. */
static void hold_blocks(struct moe_session *s, bool texts, const struct moe_row *rows,
                        uint32_t n_rows)
{
    for (uint32_t i = 0; i < s->n_sequences; i++)
        moe_kv_need(&s->kv_pool, i, s->sequences[i].n);
    for (uint32_t i = 0, end; i < n_rows; i = end) {
        const struct moe_row r = run_at(rows, n_rows, i, &end);
        moe_kv_need(&s->kv_pool, r.sequence, r.position + end - i);
    }
    moe_kv_need_known(&s->kv_pool, s->kv_keeps);
    moe_session_hold(s, texts, false);
}

/* Tells those that keep records of sequences and tokens. Sequences side by side are recorded
 * together: the records start anew when none is under way. Sources are none: records of a sequence
 * begin with its decoder. */
static void begin_pass(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                       uint32_t n_rows)
{
    const struct moe_experts_ops *ops = s->experts->ops;
    const bool begins = s->begins;
    bool first = phase != MOE_ENCODE && begin_sequences(s, rows, n_rows);
    if (s->led)
        first = begins;
    for (uint32_t i = 0; i < n_rows && phase != MOE_ENCODE; i++)
        s->sequences[rows[i].sequence].n_recorded++;
    if (first && s->pass.scheduler)
        moe_scheduler_begin_sequence(s->pass.scheduler);
    if (s->stages->give_back) /* first: slots come back into what was borrowed of them */
        s->stages->give_back(s, n_rows);
    if (ops->begin_tokens)
        ops->begin_tokens(s->experts, n_rows, phase != MOE_DECODE, s->phase);
    if (s->ranks)
        moe_ranks_begin_pass(s->ranks, n_rows, phase != MOE_DECODE, first);
    s->rows = rows;
    s->n_rows = n_rows;
    moe_session_begin_pass(s, phase == MOE_DECODE, first);
}

/* Layers [begin, end), one by one or as they were recorded; the last of them may be other ranks'.
 */
static int compute_layers(struct moe_session *s, uint32_t begin, uint32_t end,
                          const float *hidden_in, float *hidden_out, struct moe_err *err)
{
    const struct moe_layer_desc *layers = s->model->config.layers;
    const uint32_t all = end;
    for (end = begin; end < all && !layers[end].away;)
        end++;
    MOE_TRY(moe_pass_expect(&s->pass, begin, end, err));
    MOE_TRY(moe_session_await(s, MOE_DENSE_TABLES, 0, err));
    MOE_TRY(s->stages->enter(s, s->rows, s->n_rows, hidden_in, err));
    if (s->stages->replay && s->stages->replay(s, s->n_rows, begin, end))
        moe_session_count_alone(s, layers[end].moe_index - layers[begin].moe_index);
    else
        MOE_TRY(moe_pass_layers(&s->pass, begin, end, err));
    if (end < all)
        MOE_TRY(moe_session_layers_elsewhere(s, end, all, err));
    MOE_TRY(moe_session_await(s, MOE_DENSE_END, 0, err));
    return s->stages->leave(s, s->n_rows, hidden_out, err);
}

/* Notes what lies in the states from now on. A text that begins anew has no kept states. */
static void note_passed(struct moe_session *s, bool whole, const struct moe_row *rows,
                        uint32_t n_rows)
{
    s->drafts = false;
    s->passed = (struct moe_passed){rows[0].position, whole ? n_rows : 0};
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i].sequence != 0 || rows[i].position != rows[0].position + i)
            s->passed.n = 0;
        if (s->kept_ends && rows[i].position == 0)
            s->kept_ends[rows[i].sequence] = MOE_NO_STATE;
    }
}

/* When something began, by each clock that phases count. */
struct started {
    double seconds, joules, processor;
};

static struct started start(struct moe_session *s)
{
    return (struct started){moe_experts_clock(s->experts), moe_energy_joules(s->energy),
                            moe_thread_seconds()};
}

/* Adds what has passed since then to a phase, if there is one; returns the seconds. */
static double add_time(struct moe_session *s, struct moe_phase_stats *phase,
                       const struct started *since)
{
    const struct started now = start(s);
    if (!phase)
        return 0;
    phase->seconds += now.seconds - since->seconds;
    phase->joules += now.joules - since->joules;
    if (!s->experts->lockstep && !s->stages->device_bytes)
        phase->processor_seconds += now.processor - since->processor;
    return now.seconds - since->seconds;
}

/* Checks that the rows can be computed, and takes what they need of the KV cache. */
static int take_rows(struct moe_session *s, bool encode, const struct moe_row *rows,
                     uint32_t n_rows, uint32_t begin, uint32_t end, struct moe_err *err)
{
    MOE_TRY(check_rows(s, encode, rows, n_rows, err));
    if (!encode)
        MOE_TRY(take_windows(s, rows, n_rows, err));
    MOE_TRY(moe_recurrent_check(s, rows, n_rows, begin, end, err));
    return moe_sources_check(s, encode, rows, n_rows, begin, end, err);
}

int moe_forward(struct moe_session *s, enum moe_phase phase, const struct moe_row *rows,
                uint32_t n_rows, uint32_t layer_begin, uint32_t layer_end, const float *hidden_in,
                float *hidden_out, struct moe_err *err)
{
    bool encode = phase == MOE_ENCODE;
    if (!s->led)
        MOE_TRY(take_rows(s, encode, rows, n_rows, layer_begin, layer_end, err));
    struct moe_phase_stats *const phases[] = {[MOE_PREFILL] = &s->stats.prefill,
                                              [MOE_DECODE] = &s->stats.decode,
                                              [MOE_ENCODE] = &s->stats.encode};
    struct moe_phase_stats *stats = phases[phase];
    s->phase = stats;
    if (!encode)
        cut_texts(s, rows, n_rows);
    note_passed(s, !encode && layer_end == s->model->config.n_layers, rows, n_rows);
    const bool whole = layer_begin == s->model->config.n_encoder &&
                       layer_end == s->model->config.n_layers && !hidden_in;
    if (s->kv_grows && !encode) /* before slots come back into what blocks give back */
        hold_blocks(s, whole, rows, n_rows);
    begin_pass(s, phase, rows, n_rows);
    const struct started started = start(s);
    int status = compute_layers(s, layer_begin, layer_end, hidden_in, hidden_out, err);
    double seconds = add_time(s, stats, &started);
    if (s->experts->ops->end_tokens)
        s->experts->ops->end_tokens(s->experts, seconds);
    if (status != MOE_OK)
        return status;
    stats->tokens += n_rows;
    for (uint32_t i = 0; i < n_rows && whole && !encode; i++)
        moe_sequence_append(s, &rows[i]);
    return MOE_OK;
}

int moe_encode(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows, float *output,
               struct moe_err *err)
{
    uint32_t end = s->model->config.n_encoder;
    MOE_TRY(moe_forward(s, MOE_ENCODE, rows, n_rows, 0, end, NULL, NULL, err));
    return moe_encode_keep(s, rows, n_rows, output, err);
}

int moe_logits(struct moe_session *s, uint32_t first, uint32_t n, float *logits,
               struct moe_err *err)
{
    const struct started started = start(s);
    struct moe_model *const model = s->model;
    int status = moe_session_await(s, MOE_DENSE_HEAD, 0, err);
    if (s->drafts && model->drafter)
        s->model = model->drafter;
    if (status == MOE_OK)
        status = s->stages->logits(s, first, n, logits, err);
    s->model = model;
    add_time(s, s->phase, &started);
    return status;
}

const float *moe_last_state(struct moe_session *s, uint32_t row)
{
    const struct started started = start(s);
    const float *state = s->stages->last(s, row);
    add_time(s, s->phase, &started);
    return state;
}

int moe_greedy(struct moe_session *s, uint32_t row, uint32_t *token, struct moe_err *err)
{
    const struct started started = start(s);
    int status = s->stages->greedy(s, row, token, err);
    add_time(s, s->phase, &started);
    return status;
}

/* ---- Sources: what a pass must contain ---- */

/* One source's rows, from rows[0] on; *n of them. */
static int check_source(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t *n, struct moe_err *err)
{
    const struct moe_row *r = &rows[0];
    struct moe_encoded *source = &s->sources[r->sequence];
    bool whole = r->length > 0 && r->length <= n_rows && source->pending == 0;
    for (uint32_t i = 0; whole && i < r->length; i++)
        whole =
            rows[i].sequence == r->sequence && rows[i].position == i && rows[i].length == r->length;
    if (!whole)
        return moe_fail(err, MOE_ERR_USAGE,
                        "source %u of %u positions is not in the pass once, whole and in order",
                        r->sequence, r->length);
    source->pending = *n = r->length;
    return MOE_OK;
}

static int check_attended(const struct moe_session *s, const struct moe_row *row,
                          struct moe_err *err)
{
    uint32_t source = s->attends[row->sequence];
    return s->sources[source].length ? MOE_OK
                                     : moe_fail(err, MOE_ERR_USAGE,
                                                "sequence %u attends to source %u, which is not "
                                                "encoded",
                                                row->sequence, source);
}

/* The sequence's rows from rows[0] on: a prompt is in the pass with all of them or not at all.
 * *n of them. */
static int check_prompt(const struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                        uint32_t *n, struct moe_err *err)
{
    uint32_t n_prompt = s->prompts[rows[0].sequence].n;
    *n = 1;
    if (rows[0].position >= n_prompt)
        return MOE_OK;
    bool whole = n_prompt <= n_rows;
    for (uint32_t i = 0; whole && i < n_prompt; i++)
        whole = rows[i].sequence == rows[0].sequence && rows[i].position == i;
    *n = n_prompt;
    return whole
               ? MOE_OK
               : moe_fail(err, MOE_ERR_USAGE,
                          "the prompt of %u positions of sequence %u is not in the pass whole and "
                          "in order",
                          n_prompt, rows[0].sequence);
}

int moe_sources_check(struct moe_session *s, bool encode, const struct moe_row *rows,
                      uint32_t n_rows, uint32_t begin, uint32_t end, struct moe_err *err)
{
    uint32_t n_encoder = s->model->config.n_encoder, n = 1;
    if (encode ? end > n_encoder : begin < n_encoder)
        return moe_fail(err, MOE_ERR_USAGE,
                        "layers %u to %u are not the %s's: the encoder has the first %u", begin,
                        end, encode ? "encoder" : "decoder", n_encoder);
    for (uint32_t i = 0; i < s->n_sources; i++)
        s->sources[i].pending = 0;
    for (uint32_t i = 0; i < n_rows && s->n_sources; i += n)
        MOE_TRY(encode ? check_source(s, rows + i, n_rows - i, &n, err)
                       : check_attended(s, rows + i, err));
    for (uint32_t i = 0; i < n_rows && s->prompts; i += n)
        MOE_TRY(check_prompt(s, rows + i, n_rows - i, &n, err));
    for (uint32_t i = 0; i < s->n_sources; i++)
        if (s->sources[i].pending)
            s->sources[i].length = 0;
    return MOE_OK;
}

/* ---- What decoders attend to ---- */

int moe_encode_keep(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                    float *output, struct moe_err *err)
{
    const struct started started = start(s);
    int status = MOE_OK;
    for (uint32_t l = s->model->config.n_encoder; l < s->model->config.n_layers; l++)
        if (status == MOE_OK) /* each makes keys and values of them */
            status = moe_session_await(s, MOE_DENSE_LAYER, l, err);
    if (status == MOE_OK)
        status = s->stages->keep_sources(s, rows, n_rows, output, err);
    for (uint32_t i = 0; i < n_rows && status == MOE_OK; i += rows[i].length) {
        struct moe_encoded *source = &s->sources[rows[i].sequence];
        source->length = source->pending;
        source->number = ++s->n_encoded;
    }
    add_time(s, &s->stats.encode, &started);
    return status;
}

void moe_sequence_attend(struct moe_session *s, uint32_t sequence, uint32_t source)
{
    s->attends[sequence] = source;
}

void moe_sequence_prompt(struct moe_session *s, uint32_t sequence, uint32_t n, uint32_t prefix)
{
    s->prompts[sequence] = (struct moe_prompt){n, prefix};
}

/* ---- Layers that draft ---- */

static int check_drafting_rows(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                               const uint32_t *from, struct moe_err *err)
{
    if (s->model->config.n_drafting == 0 || !s->stages->join || !s->phase || n_rows == 0 ||
        n_rows > s->batch)
        return moe_fail(err, MOE_ERR_USAGE,
                        "no draft here: the model has no layer for it, or no pass came before");
    for (uint32_t i = 0; i < n_rows; i++) {
        if (from && (from[i] >= s->batch || (i && from[i] <= from[i - 1])))
            return moe_fail(err, MOE_ERR_USAGE,
                            "row %u: the rows it starts from are not in ascending order", i);
        if (rows[i].sequence >= s->n_sequences || rows[i].position >= s->context)
            return moe_fail(err, MOE_ERR_USAGE,
                            "row %u: sequence %u or position %u is out of range", i,
                            rows[i].sequence, rows[i].position);
        MOE_TRY(moe_check_ids(s->model, &rows[i].token, 1, err));
        MOE_TRY(moe_kv_take(&s->kv_pool, rows[i].sequence, rows[i].position + 1, err));
    }
    return MOE_OK;
}

/* The head's layers, which are behind the model's: it is the session's model meanwhile. block: the
 * rows are of blocks. */
static int draft_by_head(struct moe_session *s, bool block, const struct moe_row *rows,
                         uint32_t n_rows, const uint32_t *from, struct moe_err *err)
{
    struct moe_model *const model = s->model;
    s->model = model->drafter;
    s->first_layer = model->config.n_layers;
    const struct moe_config *c = &s->model->config;
    const uint32_t end = block || c->draft_block == 0 ? c->n_layers : 0;
    int status = block ? s->stages->enter(s, rows, n_rows, NULL, err)
                       : s->stages->join(s, 0, rows, n_rows, from, err);
    for (uint32_t layer = 0; layer < end && status == MOE_OK; layer++) {
        MOE_STEP(s->stages->attend(s, layer, rows, n_rows, err));
        MOE_STEP(s->stages->dense(s, layer, n_rows, err));
    }
out:
    s->model = model;
    s->first_layer = 0;
    return status;
}

static int draft(struct moe_session *s, bool block, const struct moe_row *rows, uint32_t n_rows,
                 const uint32_t *from, struct moe_err *err)
{
    const uint32_t layer = s->model->config.n_layers;
    MOE_TRY(check_drafting_rows(s, rows, n_rows, from, err));
    for (uint32_t i = 0; s->kv_grows && i < n_rows; i++)
        moe_kv_need(&s->kv_pool, rows[i].sequence, rows[i].position + 1);
    if (s->kv_grows)
        moe_session_hold(s, false, true);
    const struct moe_observer observer = s->observer; /* which knows the model's layers only */
    const struct started started = start(s);
    s->observer = (struct moe_observer){0};
    s->rows = rows;
    s->n_rows = n_rows;
    moe_session_begin_pass(s, false, false);
    s->pass.drafts = true;
    int status;
    MOE_STEP(moe_session_await(s, MOE_DENSE_TABLES, 0, err));
    if (s->model->drafter) {
        MOE_STEP(draft_by_head(s, block, rows, n_rows, from, err));
    } else {
        MOE_STEP(moe_session_await(s, MOE_DENSE_LAYER, layer, err));
        MOE_STEP(s->stages->join(s, layer, rows, n_rows, from, err));
        MOE_STEP(moe_pass_layers(&s->pass, layer, layer + 1, err));
    }
out:
    s->pass.drafts = false;
    s->observer = observer;
    s->drafts = true;
    s->passed = (struct moe_passed){0};
    add_time(s, s->phase, &started);
    return status;
}

int moe_ahead(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
              const uint32_t *from, struct moe_err *err)
{
    return draft(s, false, rows, n_rows, from, err);
}

int moe_ahead_follow(struct moe_session *s, uint32_t token, float *logits, struct moe_err *err)
{
    struct moe_model *const model = s->model;
    const struct started started = start(s);
    if (model->config.drafter.markov_rank == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the head's tokens do not depend on each other");
    MOE_TRY(moe_check_ids(model, &token, 1, err));
    s->model = model->drafter;
    int status = s->stages->follow(s, token, logits, err);
    s->model = model;
    add_time(s, s->phase, &started);
    return status;
}

int moe_ahead_block(struct moe_session *s, const struct moe_row *rows, uint32_t n_rows,
                    struct moe_err *err)
{
    if (s->model->config.drafter.block == 0)
        return moe_fail(err, MOE_ERR_USAGE, "no block here: no head that drafts such was taken");
    return draft(s, true, rows, n_rows, NULL, err);
}
