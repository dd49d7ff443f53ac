/* A rank other than 0: its experts, attention and layers, computed as rank 0 asks for them. */
#include "infer/rank_worker.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "infer/cpu_stages.h"
#include "infer/expert_compute.h"
#include "infer/session.h"
#include "sched/pass.h"
#include "sched/share.h"

struct moe_rank_shape moe_rank_shape_of(const struct moe_model *model,
                                        const struct moe_session_options *o)
{
    const struct moe_config *c = &model->config;
    struct moe_rank_shape s = {.n_experts = c->n_experts,
                               .top_k = c->top_k,
                               .batch = o->batch,
                               .stride = moe_padded(c->hidden)};
    for (uint32_t layer = 0; layer < c->n_layers + c->n_drafting; layer++)
        s.n_layers += c->layers[layer].moe;
    if (moe_config_count_layers(c, MOE_LAYER(elsewhere)) == 0)
        return s;
    const struct moe_kv kv = moe_session_kv(c, o);
    s.context = o->context;
    s.n_sequences = o->n_sequences ? o->n_sequences : 1;
    s.kv_blocks = kv.whole.n_blocks;
    s.kv_kind = o->kv_kind;
    s.n_table = s.n_sequences * kv.per_sequence;
    if (moe_config_count_layers(c, MOE_LAYER(away)) == 0)
        return s;
    s.stride = moe_config_state_width(c);
    s.n_whole = c->n_layers;
    s.n_slots = kv.windows.n_blocks ? s.kv_blocks : 0;
    s.n_table += s.n_slots;
    s.n_snapshots = o->n_snapshots;
    s.takes_back = o->takes_back;
    return s;
}

struct worker {
    struct moe_ranks *ranks;
    struct moe_wire *wire;
    const struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session; /* of layers, or their attention, that it has; NULL: of none */
    struct moe_row *attending;   /* [batch] the rows of its pass */
    bool predicts;               /* the strategy takes predictions */
    struct moe_rank_shape shape;
    struct moe_expert_compute *compute;
    struct moe_expert_view views[MOE_MAX_TOP_K];
    struct moe_layer_request request;
    struct moe_pass pass;
    uint32_t *model_layer; /* [n_layers] */
    uint8_t *is_static;    /* [n_layers] */
    uint8_t *ask, *hint, *answers[2];
    /* Of whole layers: the rank that has those before, 0: rank 0, whose rows are handed on here;
     * what it sends, and what is handed on. */
    uint32_t before, n_told; /* messages about memory so far */
    uint8_t *handed, *handing;
    uint8_t *at;    /* the message at work: ask or handed */
    uint8_t *block; /* holds the messages, the rows and the request's arrays */
    uint64_t block_bytes;
    float *rows;    /* [batch][stride] of large passes, which have their own lane */
    const float *x; /* of the request at work */
    /* The answer that is being written. */
    uint32_t turn, n_rows;
    uint32_t n_activations; /* of whole layers */
    /* What it has done. */
    uint64_t at_pass; /* 0: none has begun */
    uint32_t at_moe;  /* the layer that was asked for last */
    double pass_began, busy;
    struct moe_phase_stats phase;
    double host_seconds, predict_seconds; /* of the driver: none here */
};

static void carve(struct worker *w, struct moe_arena *arena, const struct moe_config *c)
{
    const struct moe_rank_shape *s = &w->shape;
    const struct moe_request_shape shape = {.n_experts = s->n_experts,
                                            .top_k = s->top_k,
                                            .batch = s->batch,
                                            .weighs_inputs = c->weigh_inputs,
                                            .limited = true};
    if (s->n_whole == 0)
        moe_layer_request_carve(&w->request, arena, &shape);
    w->ask = moe_arena_take(arena, moe_rank_ask_room(s), 1);
    w->hint = moe_arena_take(arena, moe_rank_hints_room(s), 1);
    if (s->n_whole) {
        w->handed = moe_arena_take(arena, moe_rank_ask_room(s), 1);
        w->handing = moe_arena_take(arena, moe_rank_ask_room(s), 1);
    }
    for (int i = 0; i < 2; i++)
        w->answers[i] = moe_arena_take(arena, moe_rank_answer_room(s), 1);
    if (s->batch > MOE_RANK_ROWS_WITHIN)
        w->rows = moe_arena_take(arena, s->batch * s->stride, sizeof *w->rows);
    if (s->n_table)
        w->attending = moe_arena_take(arena, s->batch, sizeof *w->attending);
    w->model_layer = moe_arena_take(arena, s->n_layers, sizeof *w->model_layer);
    w->is_static = moe_arena_take(arena, s->n_layers, 1);
}

uint64_t moe_rank_worker_bytes(const struct moe_model *model, const struct moe_rank_shape *shape)
{
    struct worker w = {.shape = *shape};
    struct moe_arena arena = {0};
    uint64_t sum;
    carve(&w, &arena, &model->config);
    const uint32_t n_rows = shape->n_whole ? 0 : moe_rank_output_rows(shape);
    bool fits = moe_add_u64(arena.used,
                            n_rows ? moe_expert_compute_bytes(&model->config, n_rows) : 0, &sum);
    return fits && !arena.overflowed ? sum : UINT64_MAX;
}

/* ---- Answers ---- */

/* Sends the rows of outputs that are there; one message is on its way while the next is written. */
static int send_outputs(struct worker *w, struct moe_err *err)
{
    uint8_t *answer = w->answers[w->turn];
    const struct moe_rank_head *asked = (const struct moe_rank_head *)(const void *)w->at;
    const struct moe_rank_head head = {.kind = MOE_RANK_OUTPUTS,
                                       .moe = asked->moe,
                                       .n_rows = w->n_rows,
                                       .n = w->n_activations,
                                       .request = asked->request};
    if (w->n_rows == 0 && asked->kind != MOE_RANK_LAYERS)
        return MOE_OK;
    memcpy(answer, &head, sizeof head);
    MOE_TRY(moe_ranks_wait_sent(w->ranks, err));
    MOE_TRY(w->wire->ops->send(w->wire, 0, MOE_LANE_TALK, answer,
                               moe_rank_outputs_at(answer, &w->shape, w->n_rows).bytes, err));
    w->turn ^= 1;
    w->n_rows = w->n_activations = 0;
    return MOE_OK;
}

static int compute_expert(struct worker *w, uint32_t which, const struct moe_expert_view *view,
                          struct moe_err *err)
{
    const struct moe_layer_request *q = &w->request;
    const uint32_t most = moe_rank_output_rows(&w->shape);
    for (uint32_t at = q->first[which], n, end = at + q->n_rows[which]; at < end; at += n) {
        if (w->n_rows == most)
            MOE_TRY(send_outputs(w, err));
        n = end - at < most - w->n_rows ? end - at : most - w->n_rows;
        MOE_TRY(moe_ranks_go_on(w->ranks, err));
        const struct moe_rank_outputs o = moe_rank_outputs_at(w->answers[w->turn], &w->shape, most);
        for (uint32_t i = 0; i < n; i++)
            o.places[w->n_rows + i] = at + i;
        moe_expert_compute(w->compute, view, w->x, w->shape.stride, q->rows + at,
                           q->scales ? q->scales + at : NULL, n,
                           o.rows + w->n_rows * w->shape.stride, w->shape.stride);
        w->n_rows += n;
    }
    return MOE_OK;
}

/* ---- The driver's operations ---- */

static int ask_provider(void *ctx, uint32_t layer, struct moe_err *err)
{
    struct worker *w = ctx;
    struct moe_experts *e = w->experts;
    return e->ops->begin(e, &w->request, &w->phase, err);
}

static int next_ready(void *ctx, uint32_t max, uint32_t *which, uint32_t *n, struct moe_err *err)
{
    struct worker *w = ctx;
    struct moe_experts *e = w->experts;
    return e->ops->next(e, max, which, w->views, n, err);
}

static void release_entry(void *ctx, uint32_t which)
{
    struct moe_experts *e = ((struct worker *)ctx)->experts;
    e->ops->release(e, which);
}

/* All of an expert once its last segment is there. */
static int compute_entries(void *ctx, const uint32_t *which, uint32_t n, bool last,
                           struct moe_err *err)
{
    struct worker *w = ctx;
    for (uint32_t i = 0; i < n && last; i++)
        MOE_TRY(compute_expert(w, which[i], &w->views[i], err));
    return MOE_OK;
}

static const struct moe_pass_ops worker_ops = {
    .experts = compute_entries,
    .ask = ask_provider,
    .next = next_ready,
    .release = release_entry,
};

/* ---- What is asked ---- */

static int bad_message(struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_FORMAT, "rank 0 asks for what this rank does not know");
}

static void end_pass(struct worker *w)
{
    const struct moe_experts *e = w->experts;
    if (w->at_pass && e->ops->end_tokens)
        e->ops->end_tokens(w->experts, moe_seconds() - w->pass_began);
    w->phase.tokens++;
}

static void begin_pass(struct worker *w, const struct moe_rank_head *head)
{
    struct moe_experts *e = w->experts;
    const struct moe_pass_rows rows = {
        .n = head->n_rows, .at_once = 1, .decode = !head->prefill, .first = head->first};
    if (head->pass != w->at_pass) {
        end_pass(w);
        w->at_pass = head->pass;
        w->pass_began = moe_seconds();
        if (head->first && e->scheduler)
            moe_scheduler_begin_sequence(e->scheduler);
        if (e->ops->begin_tokens)
            e->ops->begin_tokens(e, head->n_pass, head->prefill, &w->phase);
    }
    moe_pass_begin(&w->pass, &rows, &w->phase.experts, &w->host_seconds, &w->predict_seconds);
}

/* Rows of a large pass, which come in a lane of their own. That they are there is said: then the
 * next rank gets them. */
static int wait_for_rows(struct worker *w, uint32_t n_rows, struct moe_err *err)
{
    struct moe_wire *wire = w->wire;
    const double began = moe_seconds();
    uint64_t bytes;
    bool done = false;
    for (uint32_t naps = 0;;) {
        MOE_TRY(wire->ops->arrived(wire, w->before, MOE_LANE_ROWS, &done, &bytes, err));
        if (done)
            break;
        if (moe_seconds() - began > wire->patience)
            return moe_fail(err, MOE_ERR_IO, "rank %u asks and sends no rows", w->before);
        moe_ranks_nap(w->ranks, &naps);
    }
    return bytes == n_rows * w->shape.stride * sizeof(float) ? moe_ranks_say_alive(w->ranks, err)
                                                             : bad_message(err);
}

static int listen_for_rows(struct worker *w, struct moe_err *err)
{
    struct moe_wire *wire = w->wire;
    return w->rows ? wire->ops->receive(wire, w->before, MOE_LANE_ROWS, w->rows,
                                        w->shape.batch * w->shape.stride * sizeof *w->rows, err)
                   : MOE_OK;
}

static int compute_asked(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const struct moe_rank_shape *s = &w->shape;
    struct moe_layer_request *q = &w->request;
    if (head->n_rows == 0 || head->n_rows > s->batch || head->moe >= s->n_layers || s->n_whole)
        return bad_message(err);
    const uint64_t pairs = (uint64_t)head->n_rows * s->top_k;
    const struct moe_rank_ask a = moe_rank_ask_at(w->at, s, head->n_rows, head->n_over > 0);
    if (bytes != a.bytes)
        return bad_message(err);
    for (uint64_t i = 0; i < pairs; i++)
        if (a.chosen[i] >= s->n_experts)
            return bad_message(err);
    if (!a.x)
        MOE_TRY(wait_for_rows(w, head->n_rows, err));
    w->x = a.x ? a.x : w->rows;
    memcpy(q->chosen, a.chosen, pairs * sizeof *q->chosen);
    memcpy(q->weights, a.weights, pairs * sizeof *q->weights);
    memcpy(q->sequences, a.sequences, head->n_rows * sizeof *q->sequences);
    q->n_over = head->n_over;
    if (q->n_over)
        memcpy(q->over, a.over, pairs);
    begin_pass(w, head);
    w->at_moe = head->moe;
    MOE_TRY(moe_pass_own_experts(&w->pass, head->moe, err));
    MOE_TRY(send_outputs(w, err));
    return a.x ? MOE_OK : listen_for_rows(w, err);
}

/* The rows that something is asked for, and w->x, what they are. */
static int take_rows(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const struct moe_session *s = w->session;
    const uint32_t n = head->n_rows;
    if (!s || n == 0 || n > w->shape.batch || head->moe >= head->n ||
        head->n > w->model->config.n_layers)
        return bad_message(err);
    const struct moe_rank_attend a = moe_rank_attend_at(w->at, &w->shape, n);
    if (bytes != a.bytes)
        return bad_message(err);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_rank_row *r = &a.rows[i];
        if (r->sequence >= s->n_sequences || r->position >= s->context || r->length > s->context ||
            r->token >= w->model->config.vocab)
            return bad_message(err);
        w->attending[i] = (struct moe_row){r->sequence, r->position, r->token, r->length};
    }
    w->x = a.x ? a.x : w->rows;
    return a.x ? MOE_OK : wait_for_rows(w, n, err);
}

/* Sends some rows' results, the first of them number `first`. */
static int send_rows(struct worker *w, const float *rows, uint32_t first, uint32_t n,
                     struct moe_err *err)
{
    const struct moe_rank_outputs o = moe_rank_outputs_at(w->answers[w->turn], &w->shape, n);
    memcpy(o.rows, rows, n * w->shape.stride * sizeof *rows);
    for (w->n_rows = 0; w->n_rows < n; w->n_rows++)
        o.places[w->n_rows] = first + w->n_rows;
    return send_outputs(w, err);
}

/* The attention of one of this rank's layers. */
static int attend(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const uint32_t layer = head->moe, n = head->n_rows, each = moe_rank_output_rows(&w->shape);
    const uint64_t stride = w->shape.stride;
    struct moe_session *s = w->session;
    MOE_TRY(take_rows(w, bytes, err));
    if (w->model->whole_layers || !w->model->layers[layer].o.data)
        return bad_message(err);
    for (uint32_t first = 0; first < n; first += each) { /* results of some are on their way then */
        const uint32_t n_part = n - first < each ? n - first : each;
        MOE_TRY(moe_ranks_go_on(w->ranks, err));
        memcpy(s->states.xn, w->x + first * stride, n_part * stride * sizeof *w->x);
        MOE_TRY(stages_cpu_mix(s, layer, w->attending + first, n_part, err));
        MOE_TRY(send_rows(w, ((const struct cpu_work *)s->device)->sum, first, n_part, err));
    }
    return n <= MOE_RANK_ROWS_WITHIN ? MOE_OK : listen_for_rows(w, err);
}

/* Hands on the message at work, with what its rows have become, to the rank that has the layers
 * from `layer` on, and says so. */
static int hand_on(struct worker *w, uint32_t layer, struct moe_err *err)
{
    struct moe_wire *wire = w->wire;
    struct moe_rank_head *head = (struct moe_rank_head *)(void *)w->handing;
    const uint32_t to = w->model->config.layers[layer].elsewhere - 1;
    const float *rows = w->session->passing;
    memcpy(head, w->at, sizeof *head);
    head->moe = layer;
    const uint64_t rows_bytes = head->n_rows * w->shape.stride * sizeof *rows;
    const struct moe_rank_attend from = moe_rank_attend_at(w->at, &w->shape, head->n_rows),
                                 a = moe_rank_attend_at(w->handing, &w->shape, head->n_rows);
    memcpy(a.rows, from.rows, head->n_rows * sizeof *a.rows);
    if (a.x)
        memcpy(a.x, rows, rows_bytes);
    MOE_TRY(wire->ops->send(wire, to, MOE_LANE_TALK, head, a.bytes, err));
    if (!a.x)
        MOE_TRY(wire->ops->send(wire, to, MOE_LANE_ROWS, rows, rows_bytes, err));
    return send_outputs(w, err);
}

/* This rank's layers, as a whole: a pass of its session. */
static int compute_layers(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const uint32_t n = head->n_rows, each = moe_rank_output_rows(&w->shape);
    struct moe_session *s = w->session;
    const struct moe_layer_desc *layers = w->model->config.layers;
    uint32_t end = head->moe;
    MOE_TRY(take_rows(w, bytes, err));
    while (w->model->whole_layers && end < head->n && !layers[end].away)
        end++;
    if (end == head->moe)
        return bad_message(err);
    if (end < head->n) /* the rows of the pass before lie in what it computes in */
        MOE_TRY(moe_ranks_wait_handed_on(w->ranks, layers[end].elsewhere - 1, err));
    const uint64_t before = moe_stats_all(&s->stats).experts.activations;
    s->begins = head->first;
    MOE_TRY(moe_forward(s, head->prefill ? MOE_PREFILL : MOE_DECODE, w->attending, n, head->moe,
                        end, w->x, s->passing, err));
    w->n_activations = (uint32_t)(moe_stats_all(&s->stats).experts.activations - before);
    if (end < head->n)
        MOE_TRY(hand_on(w, end, err));
    for (uint32_t first = 0; first < n && end == head->n; first += each)
        MOE_TRY(send_rows(w, s->passing + first * w->shape.stride, first,
                          n - first < each ? n - first : each, err));
    return n <= MOE_RANK_ROWS_WITHIN ? MOE_OK : listen_for_rows(w, err);
}

/* Which blocks sequences have, and where windows of blocks lie. Those of what is not computed yet
 * may be any. */
static int take_table(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const uint32_t *table = (const uint32_t *)(const void *)(w->at + bytes) - head->n;
    if (head->n == 0 || head->n != w->shape.n_table || bytes != moe_rank_table_bytes(&w->shape))
        return bad_message(err);
    if (!w->session)
        return MOE_OK;
    struct moe_kv_pool *pool = &w->session->kv_pool;
    const uint32_t n = head->n - w->shape.n_slots, *slots = table + n;
    for (uint32_t i = 0; i < n; i++)
        pool->table[i] = table[i] < pool->n_blocks ? table[i] : 0;
    for (uint32_t i = 0; i < w->shape.n_slots && pool->n_slots; i++)
        pool->slot_of[i] = slots[i] < pool->n_slots ? slots[i] : MOE_NO_BLOCK;
    return MOE_OK;
}

static int copy_block(struct worker *w, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    if (head->moe >= w->shape.kv_blocks || head->n >= w->shape.kv_blocks)
        return bad_message(err);
    if (w->session)
        w->session->stages->copy_block(w->session, head->moe, head->n);
    return MOE_OK;
}

static int copy_states(struct worker *w, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const struct moe_rank_shape *shape = &w->shape;
    const uint64_t n = (uint64_t)shape->n_sequences * (1 + shape->takes_back) + shape->n_snapshots;
    if (!w->session || !w->session->led || head->moe >= n || head->n >= n)
        return bad_message(err);
    w->session->stages->copy_states(w->session, head->moe, head->n);
    return MOE_OK;
}

/* Predictions begin prefetches, where the strategy here has them. */
static int take_hints(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->hint;
    struct moe_prediction predictions[MOE_RANK_HINTS];
    struct moe_scheduler *scheduler = w->experts->scheduler;
    if (bytes < sizeof *head || head->n > MOE_RANK_HINTS ||
        bytes != MOE_ALIGN + head->n * moe_rank_hint_bytes(&w->shape))
        return bad_message(err);
    /* Not of layers that the pass has come to, nor of another pass. */
    uint32_t n = 0;
    for (uint32_t i = 0; i < head->n && head->pass == w->at_pass; i++) {
        const struct moe_rank_hint h = moe_rank_hint_at(w->hint, &w->shape, i);
        if (h.of[0] >= w->shape.n_layers)
            return bad_message(err);
        if (h.of[0] > w->at_moe)
            predictions[n++] = (struct moe_prediction){h.of[0], h.of[1], h.scores, h.unimportance};
    }
    return scheduler && n && w->predicts ? moe_scheduler_predicted(scheduler, predictions, n, err)
                                         : MOE_OK;
}

static int tell_figures(struct worker *w, struct moe_err *err)
{
    const struct moe_experts *e = w->experts;
    const bool whole = w->model->whole_layers;
    const struct moe_phase_stats phase = whole ? moe_stats_all(&w->session->stats) : w->phase;
    const struct moe_counts *n = &phase.experts;
    struct moe_rank_figures f = {
        .head = {.kind = MOE_RANK_FIGURES},
        .activations = n->activations - n->elsewhere,
        .hits = n->cache_hits + n->prefetch_hits,
        .misses = n->misses + n->prefetch_late,
        .loads = n->loads,
        .bytes_read = phase.bytes_read,
        .resident_bytes = e->resident_bytes_max,
        .peak_rss_bytes = moe_peak_rss_bytes(),
        .busy_seconds = w->busy,
        .n_attends = whole ? 0 : w->model->attends,
        .n_layers = whole ? w->model->attends : 0,
        .kv_bytes = w->session ? w->session->stages->kv(w->session)->bytes : 0,
    };
    for (uint32_t key = 0; key < w->shape.n_layers * w->shape.n_experts; key++)
        f.n_experts += moe_rank_holds(moe_ranks_holders(w->ranks), key, (uint8_t)w->wire->rank);
    MOE_TRY(moe_ranks_wait_sent(w->ranks, err));
    MOE_TRY(w->wire->ops->send(w->wire, 0, MOE_LANE_TALK, &f, sizeof f, err));
    return moe_ranks_wait_sent(w->ranks, err);
}

static int answer(struct worker *w, uint64_t bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->at;
    const double began = moe_seconds();
    int status;
    switch (head->kind) {
    case MOE_RANK_TELL:
        return tell_figures(w, err);
    case MOE_RANK_TABLE:
        w->n_told++;
        return take_table(w, bytes, err);
    case MOE_RANK_COPY:
        w->n_told++;
        return copy_block(w, err);
    case MOE_RANK_STATES:
        w->n_told++;
        return copy_states(w, err);
    case MOE_RANK_LAYERS:
        status = compute_layers(w, bytes, err);
        break;
    case MOE_RANK_ASK:
        status = compute_asked(w, bytes, err);
        break;
    case MOE_RANK_ATTEND:
        status = attend(w, bytes, err);
        break;
    default:
        return bad_message(err);
    }
    w->busy += moe_seconds() - began;
    return status;
}

static int listen(struct worker *w, enum moe_wire_lane lane, struct moe_err *err)
{
    struct moe_wire *wire = w->wire;
    return lane == MOE_LANE_TALK
               ? wire->ops->receive(wire, 0, lane, w->ask, moe_rank_ask_room(&w->shape), err)
               : wire->ops->receive(wire, 0, lane, w->hint, moe_rank_hints_room(&w->shape), err);
}

static int listen_to_before(struct worker *w, struct moe_err *err)
{
    return w->before ? w->wire->ops->receive(w->wire, w->before, MOE_LANE_TALK, w->handed,
                                             moe_rank_ask_room(&w->shape), err)
                     : MOE_OK;
}

/* Computes what is handed on here, once rank 0 has told what it depends on. *waits, bytes: such a
 * message is there. */
static int answer_before(struct worker *w, bool *waits, uint64_t *bytes, struct moe_err *err)
{
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->handed;
    if (w->before && !*waits)
        MOE_TRY(w->wire->ops->arrived(w->wire, w->before, MOE_LANE_TALK, waits, bytes, err));
    if (!*waits || (*bytes >= sizeof *head && head->n_over != w->n_told))
        return MOE_OK;
    if (*bytes < sizeof *head || head->kind != MOE_RANK_LAYERS)
        return bad_message(err);
    w->at = w->handed;
    MOE_TRY(answer(w, *bytes, err));
    w->at = w->ask;
    *waits = false;
    return listen_to_before(w, err);
}

/* Does what rank 0 asks until it ends. */
static int serve(struct worker *w, struct moe_err *err)
{
    struct moe_wire *wire = w->wire;
    struct moe_experts *e = w->experts;
    const struct moe_rank_head *head = (const struct moe_rank_head *)(const void *)w->ask;
    uint64_t bytes, n_handed = 0;
    bool asked, hinted, waits = false;
    w->at = w->ask;
    MOE_TRY(listen_to_before(w, err));
    MOE_TRY(listen(w, MOE_LANE_TALK, err));
    MOE_TRY(listen(w, MOE_LANE_HINT, err));
    MOE_TRY(listen_for_rows(w, err));
    for (uint32_t naps = 0;;) {
        MOE_TRY(wire->ops->arrived(wire, 0, MOE_LANE_TALK, &asked, &bytes, err));
        if (asked && (bytes < sizeof *head || head->kind == MOE_RANK_END))
            return bytes < sizeof *head ? bad_message(err) : MOE_OK;
        if (asked)
            MOE_TRY(answer(w, bytes, err));
        if (asked)
            MOE_TRY(listen(w, MOE_LANE_TALK, err));
        const bool waited = waits;
        MOE_TRY(answer_before(w, &waits, &n_handed, err));
        asked |= waits != waited;
        MOE_TRY(wire->ops->arrived(wire, 0, MOE_LANE_HINT, &hinted, &bytes, err));
        if (hinted)
            MOE_TRY(take_hints(w, bytes, err));
        if (hinted)
            MOE_TRY(listen(w, MOE_LANE_HINT, err));
        if (e->scheduler)
            MOE_TRY(moe_scheduler_poll(e->scheduler, err));
        if (asked || hinted)
            naps = 0;
        else
            moe_ranks_nap(w->ranks, &naps);
    }
}

/* ---- Opening ---- */

static int open_worker(struct worker *w, struct moe_err *err)
{
    const struct moe_config *c = &w->model->config;
    struct moe_arena arena = {0};
    carve(w, &arena, c);
    w->block_bytes = arena.used;
    w->block = arena.overflowed ? NULL : moe_pages_alloc(w->block_bytes, err);
    if (!w->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = w->block, .size = w->block_bytes};
    carve(w, &arena, c);
    for (uint32_t layer = 0, n = 0; n < w->shape.n_layers; layer++)
        if (c->layers[layer].moe)
            w->model_layer[n++] = layer;
    uint32_t first = 0;
    while (first < w->shape.n_whole && c->layers[first].away)
        first++;
    if (first > 0 && w->shape.n_whole)
        w->before = c->layers[first - 1].elsewhere - 1;
    w->pass = (struct moe_pass){
        .ops = &worker_ops,
        .ctx = w,
        .shape = {.n_layers = w->shape.n_layers,
                  .loop = moe_config_moe_loop(c),
                  .n_experts = w->shape.n_experts,
                  .top_k = w->shape.top_k,
                  .n_model_layers = c->n_layers,
                  .n_listed = w->shape.n_layers,
                  .model_layer = w->model_layer,
                  .is_static = w->is_static},
        .scheduler = w->experts->scheduler,
        .request = &w->request,
        .holders = moe_ranks_holders(w->ranks),
        .self = (uint8_t)w->wire->rank,
    };
    return w->shape.n_whole
               ? MOE_OK
               : moe_expert_compute_open(&w->compute, c, moe_rank_output_rows(&w->shape), err);
}

int moe_rank_work(struct moe_ranks *ranks, const struct moe_model *model,
                  struct moe_experts *experts, struct moe_session *session,
                  const struct moe_rank_shape *shape, bool predicts, struct moe_err *err)
{
    struct worker w = {.ranks = ranks,
                       .wire = moe_ranks_wire(ranks),
                       .model = model,
                       .experts = experts,
                       .session = session,
                       .predicts = predicts,
                       .shape = *shape};
    int status = open_worker(&w, err);
    if (status == MOE_OK) {
        moe_ranks_say_state(ranks, MOE_RANK_READY, 0, 0);
        status = serve(&w, err);
    }
    moe_expert_compute_close(w.compute);
    moe_pages_free(w.block, w.block_bytes);
    return status;
}
