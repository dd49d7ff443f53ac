/*
 * The pass driver: the order of a pass's decisions, over the caller's operations.
 */
#include "sched/pass.h"

#include <string.h>

#include "base/clock.h"
#include "base/rank.h"
#include "sched/history.h"
#include "sched/share.h"

bool moe_pass_predicts(const struct moe_strategy *strategy)
{
    return strategy->predict != MOE_PREDICT_BY_NOTHING || moe_strategy_recalls(strategy);
}

void moe_pass_carve(struct moe_pass *p, struct moe_arena *arena)
{
    const struct moe_pass_shape *s = &p->shape;
    p->due = moe_arena_take(arena, s->n_experts, sizeof *p->due);
    p->early = moe_arena_take(arena, 2, sizeof *p->early);
    p->barred = moe_arena_take(arena, s->n_experts, sizeof *p->barred);
    p->expected = moe_arena_take(arena, s->n_experts, 1);
    p->present = moe_arena_take(arena, s->n_experts, 1);
    p->precalculated = moe_arena_take(arena, s->n_experts, 1);
    p->preference =
        (struct moe_preference){.lambda = p->strategy.prefer, .keeps = p->strategy.prefer_keeps};
    if (p->strategy.prefer > 0)
        moe_preference_carve(&p->preference, arena, s->n_layers, s->n_experts, s->top_k);
}

void moe_pass_begin(struct moe_pass *p, const struct moe_pass_rows *rows, struct moe_counts *counts,
                    double *host_seconds, double *predict_seconds)
{
    p->n_rows = rows->n;
    p->at_once = rows->at_once;
    p->decode = rows->decode;
    p->positions = rows->positions;
    p->counts = counts;
    p->host_seconds = host_seconds;
    p->predict_seconds = predict_seconds;
    for (int i = 0; p->strategy.precalculate && i < 2; i++)
        p->early[i].choice.n = 0;
    if (rows->first && p->strategy.prefer > 0)
        moe_preference_begin_sequence(&p->preference);
}

int moe_pass_poll(const struct moe_pass *p, struct moe_err *err)
{
    return p->ops->poll   ? p->ops->poll(p->ctx, err)
           : p->scheduler ? moe_scheduler_poll(p->scheduler, err)
                          : MOE_OK;
}

/* ---- The log ---- */

static void log_numbers(const struct moe_pass *p, const char *what, const uint32_t *numbers,
                        uint32_t n)
{
    if (!p->log)
        return;
    moe_buf_printf(p->log, "layer %u %s", p->moe, what);
    for (uint32_t i = 0; i < n; i++)
        moe_buf_printf(p->log, " %u", numbers[i]);
    moe_buf_text(p->log, "\n");
}

/* What became of the request, and of all loads so far. */
static void log_request(const struct moe_pass *p)
{
    const struct moe_layer_request *r = p->request;
    const struct moe_counts *c = p->counts;
    if (!p->log)
        return;
    log_numbers(p, "asks for", r->experts, r->n_entries);
    for (uint32_t i = 0; i < r->n_entries; i++)
        moe_buf_printf(p->log, "  expert %u, %u rows: kind %u\n", r->experts[i], r->n_rows[i],
                       r->kinds[i]);
    moe_buf_printf(p->log, "  %llu hits, %llu late, %llu loads, %llu prefetches\n",
                   (unsigned long long)(c->cache_hits + c->prefetch_hits),
                   (unsigned long long)c->prefetch_late, (unsigned long long)c->loads,
                   (unsigned long long)c->prefetches);
}

/* ---- The modelled clock ---- */

static void took_seconds(const struct moe_pass *p, double seconds)
{
    if (p->pace)
        p->ops->took(p->ctx, seconds);
}

static void took_piece(const struct moe_pass *p, enum moe_piece piece)
{
    if (p->pace)
        took_seconds(p, moe_pace_piece(p->pace, piece, p->n_rows));
}

/* A piece with attention in it. */
static void took_attention(const struct moe_pass *p, enum moe_piece piece)
{
    if (p->pace)
        took_seconds(p, moe_pace_attention(p->pace, piece, p->n_rows, p->positions));
}

static uint32_t variant_of(const struct moe_pass *p, uint32_t which)
{
    uint32_t n;
    const struct moe_entry *e = &moe_scheduler_entries(p->scheduler, &n)[which];
    return e->kind == MOE_ENTRY_SLOT
               ? moe_store_slot(moe_scheduler_store(p->scheduler), e->slot)->variant
               : e->variant;
}

/* Entries were computed up to their last segment, or that was. */
static void took_experts(const struct moe_pass *p, const uint32_t *which, uint32_t n, bool last)
{
    const double share = last ? 1 - MOE_PACE_FIRST_PART : MOE_PACE_FIRST_PART;
    if (!p->pace || !p->scheduler)
        return;
    if (!last)
        took_seconds(p, p->pace->joint);
    for (uint32_t i = 0; i < n; i++)
        took_seconds(p, share * moe_pace_expert(p->pace, variant_of(p, which[i]),
                                                p->request->n_rows[which[i]]));
}

/* ---- Layers ---- */

/* The first MoE layer from a layer of the model on. */
static uint32_t layer_from(const struct moe_pass_shape *s, uint32_t layer)
{
    uint32_t m = 0;
    while (m < s->n_listed && s->model_layer[m] < layer)
        m++;
    return m;
}

/* The end of the layer's stack: the encoder's, or the decoder's. */
static uint32_t stack_end(const struct moe_pass_shape *s, uint32_t moe)
{
    return moe < s->n_encoder ? s->n_encoder : s->n_layers;
}

/* Whether a layer is computed: a trace may have gaps. */
static bool is_computed(const struct moe_pass *p, uint32_t moe)
{
    return !p->replay || moe_replay_has(p->replay, moe);
}

/* Whether the strategy predicts or remembers in the layer at work. */
static bool predicts(const struct moe_pass *p)
{
    return !p->drafts && moe_pass_predicts(&p->strategy);
}

static bool is_one_decoded(const struct moe_pass *p)
{
    return p->decode && p->n_rows == 1;
}

/* ---- The host ---- */

static int begin_on_host(struct moe_pass *p, const struct moe_host_work *work, double *due,
                         struct moe_err *err)
{
    log_numbers(p, work->early ? "early on the host" : "on the host", &work->expert, 1);
    if (p->ops->begin_on_host)
        MOE_TRY(p->ops->begin_on_host(p->ctx, work, err));
    if (p->pace)
        *due = p->host_free_at = moe_pace_host(p->pace, p->ops->clock(p->ctx), p->host_free_at,
                                               work->variant, work->n_rows);
    return MOE_OK;
}

static void wait_for_host(struct moe_pass *p, const struct moe_host_work *work, double due)
{
    double waited = p->ops->wait_for_host ? p->ops->wait_for_host(p->ctx, work) : 0;
    if (p->pace) {
        waited = due - p->ops->clock(p->ctx);
        if (waited <= 0)
            return;
        took_seconds(p, waited);
    }
    *p->host_seconds += waited;
}

/* Experts of the request that the host computes now. */
static int begin_host_entries(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    const struct moe_layer_request *r = p->request;
    for (uint32_t i = 0; i < r->n_entries; i++) {
        if (r->kinds[i] != MOE_ENTRY_HOST)
            continue;
        const struct moe_host_work work = {.layer = layer,
                                           .moe = p->moe,
                                           .expert = r->experts[i],
                                           .variant = variant_of(p, i),
                                           .n_rows = r->n_rows[i],
                                           .place = i};
        MOE_TRY(begin_on_host(p, &work, &p->due[i], err));
    }
    return MOE_OK;
}

/* Waits for the layer's experts on the host, begun now or a layer before. */
static void collect_from_host(struct moe_pass *p, uint32_t layer)
{
    const struct moe_layer_request *r = p->request;
    const struct moe_early *early = &p->early[p->moe % 2];
    for (uint32_t i = 0; i < r->n_entries; i++) {
        struct moe_host_work work = {.layer = layer, .moe = p->moe, .place = i, .entry = i};
        if (r->kinds[i] == MOE_ENTRY_HOST) {
            wait_for_host(p, &work, p->due[i]);
        } else if (r->kinds[i] == MOE_ENTRY_PRECALCULATED) {
            uint32_t k = 0;
            while (early->choice.experts[k] != r->experts[i])
                k++;
            work.early = true;
            work.place = k;
            wait_for_host(p, &work, early->due[k]);
        }
    }
}

/* ---- Predictions ---- */

/* Hands n predictions to the scheduler, after the time that making them takes. */
static int hand_on(struct moe_pass *p, const struct moe_prediction *predictions, uint32_t n,
                   struct moe_err *err)
{
    if (p->pace)
        took_seconds(p, p->pace->predict * n);
    log_numbers(p, "predicts", &n, 1);
    if (n == 0)
        return MOE_OK;
    if (p->holders && p->ops->hint)
        MOE_TRY(p->ops->hint(p->ctx, predictions, n, err));
    return moe_scheduler_predicted(p->scheduler, predictions, n, err);
}

/* DAOP IV-C: decides the next layer's experts, and the host begins those that are its own. */
static int precalculate(struct moe_pass *p, const struct moe_prediction *prediction,
                        struct moe_err *err)
{
    const struct moe_pass_shape *s = &p->shape;
    uint32_t next = p->moe + 1, layer = s->model_layer[next];
    struct moe_early *early = &p->early[next % 2];
    struct moe_predicted *choice = &early->choice;
    if (p->pace)
        took_seconds(p, p->pace->predict);
    early->moe = next;
    moe_scheduler_present(p->scheduler, next, p->present);
    if (p->ops->judge) {
        p->ops->judge(p->ctx, layer, prediction, p->present, early);
    } else {
        moe_best(prediction->scores, s->n_experts, s->top_k, choice->experts);
        moe_predicted_choice(prediction->scores, p->present, s->n_experts, s->top_k,
                             moe_strategy_replaces(&p->strategy), choice, p->barred);
        memcpy(early->weights, choice->scores, choice->n * sizeof *early->weights);
    }
    for (uint32_t k = 0; k < choice->n; k++) {
        if (!choice->on_host[k])
            continue;
        const struct moe_host_work work = {
            .layer = layer,
            .moe = next,
            .expert = choice->experts[k],
            .variant = moe_scheduler_variant(p->scheduler, next, choice->experts[k]),
            .n_rows = 1,
            .early = true,
            .place = k,
            .weights = &early->weights[k]};
        MOE_TRY(begin_on_host(p, &work, &early->due[k], err));
    }
    return MOE_OK;
}

/* Predicts layers to come by what this layer's router chose, or what it chose by. */
static int predict_after_router(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    const struct moe_prediction *predictions;
    uint32_t next = p->moe + 1, n = 0;
    bool early = p->strategy.precalculate && is_one_decoded(p) &&
                 next < stack_end(&p->shape, p->moe) && !p->shape.is_static[next] &&
                 next >= p->shape.n_encoder + p->strategy.precalculate_from;
    uint32_t depth = early ? 1 : moe_scheduler_wants_prediction(p->scheduler, p->moe);
    double started = moe_seconds();
    if (p->ops->predict)
        n = p->ops->predict(p->ctx, layer, depth, &predictions);
    if (p->replay)
        n = moe_replay_predict(p->replay, p->moe, depth, p->request->chosen, p->request->weights,
                               &predictions);
    int status =
        early && n > 0 ? precalculate(p, predictions, err) : hand_on(p, predictions, n, err);
    *p->predict_seconds += moe_seconds() - started;
    return status;
}

/* Predicts this layer's experts, or the next one's, by its attention's input. What a router chooses
 * before attention need not be predicted. */
static int predict_before_attention(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    const struct moe_prediction *predictions;
    bool known = p->shape.routes_early && p->strategy.predict == MOE_PREDICT_BY_ATTENTION;
    uint32_t n = 0;
    if (p->drafts || !moe_predicts_from_attention(p->strategy.predict) || known ||
        !is_computed(p, p->moe) || !moe_scheduler_wants_prediction(p->scheduler, p->moe))
        return MOE_OK;
    double started = moe_seconds();
    if (p->ops->predict_before)
        n = p->ops->predict_before(p->ctx, layer, &predictions);
    if (p->replay)
        n = moe_replay_predict(p->replay, p->moe, 1, p->request->chosen, p->request->weights,
                               &predictions);
    int status = hand_on(p, predictions, n, err);
    *p->predict_seconds += moe_seconds() - started;
    return status;
}

/* ---- Requests ---- */

/* Puts the experts predicted for the layer in place of the router's choice, where that pays.
 * Returns which of them were computed early, [n_experts]; NULL: none. */
static const uint8_t *take_early(struct moe_pass *p)
{
    struct moe_layer_request *r = p->request;
    struct moe_early *early = &p->early[p->moe % 2];
    const struct moe_predicted *choice = &early->choice;
    uint32_t top_k = p->shape.top_k;
    bool has_choice = choice->n > 0 && early->moe == p->moe && p->n_rows == 1;
    if (has_choice)
        moe_scheduler_present(p->scheduler, p->moe, p->present);
    if (!has_choice || !moe_predicted_pays(choice, r->chosen, top_k, p->present)) {
        early->choice.n = 0;
        return NULL;
    }
    p->counts->substituted += moe_predicted_others(choice, r->chosen, top_k);
    memset(p->precalculated, 0, p->shape.n_experts);
    for (uint32_t k = 0; k < choice->n; k++)
        p->precalculated[choice->experts[k]] = choice->on_host[k];
    memcpy(r->chosen, choice->experts, choice->n * sizeof *r->chosen);
    memcpy(r->weights, early->weights, choice->n * sizeof *r->weights);
    return p->precalculated;
}

/* Cache-aware routing: cached experts take the place of some that the router chose. */
static void take_preferred(struct moe_pass *p, uint32_t layer)
{
    struct moe_layer_request *r = p->request;
    struct moe_preference *f = &p->preference;
    if (p->ops->rank)
        p->ops->rank(p->ctx, layer, f);
    else
        f->n = moe_replay_ranked(p->replay, p->moe, f->experts, f->probabilities);
    moe_scheduler_cached(p->scheduler, p->moe, f->cached);
    uint32_t n_others = moe_preference_choose(f, p->moe, r->chosen);
    p->counts->substituted += n_others;
    if (n_others > 0 && p->ops->weigh)
        p->ops->weigh(p->ctx, layer, f);
    /* Else the weights are probabilities, which suffices: only a row's shares of them count. */
    for (uint32_t k = 0, i = 0; n_others > 0 && !p->ops->weigh && k < f->top_k; k++) {
        while (f->experts[i] != r->chosen[k])
            i++;
        r->weights[k] = f->probabilities[i];
    }
}

/* What the strategy makes of the router's choice. Returns what take_early does. */
static const uint8_t *take_choice(struct moe_pass *p, uint32_t layer)
{
    struct moe_layer_request *r = p->request;
    if (p->drafts)
        return NULL;
    const uint8_t *precalculated = p->strategy.precalculate ? take_early(p) : NULL;
    if (p->strategy.prefer > 0 && is_one_decoded(p) && !p->shape.is_static[p->moe])
        take_preferred(p, layer);
    if (p->strategy.gate_below > 0 && is_one_decoded(p))
        moe_gate_below(r->weights, p->shape.top_k, p->strategy.gate_below);
    if (predicts(p) && p->replay)
        moe_replay_note(p->replay, p->moe, r->chosen, r->weights);
    else if (predicts(p))
        p->ops->note(p->ctx, layer);
    return precalculated;
}

static int ask_scheduler(struct moe_pass *p, struct moe_err *err)
{
    struct moe_layer_request *r = p->request;
    const struct moe_choices choices = {p->moe, p->n_rows, r->chosen, r->sequences};
    uint32_t n;
    moe_scheduler_chosen(p->scheduler, &choices);
    MOE_TRY(moe_scheduler_request(p->scheduler, p->moe, r->needs, r->n_entries, err));
    const struct moe_entry *entries = moe_scheduler_entries(p->scheduler, &n);
    for (uint32_t i = 0; i < n; i++)
        r->kinds[i] = (uint8_t)entries[i].kind;
    return MOE_OK;
}

/* Marks the entries that another process computes. */
static void mark_elsewhere(const struct moe_pass *p)
{
    struct moe_layer_request *r = p->request;
    uint64_t first = moe_expert_key(p->shape.n_experts, moe_loop_owner(&p->shape.loop, p->moe), 0);
    moe_share_request(r, p->holders + MOE_HOLDERS * first);
    for (uint32_t i = 0; i < r->n_entries; i++) {
        if (r->ranks[i] == p->self)
            continue;
        r->needs[i].elsewhere = true;
        r->kinds[i] = MOE_ENTRY_ELSEWHERE;
    }
}

/* The router has chosen: asks for the experts. */
static int request_experts(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    const uint8_t *precalculated = take_choice(p, layer);
    bool assigned = p->ops->assign && p->ops->assign(p->ctx, layer);
    moe_layer_request_fill(p->request, p->n_rows, assigned, precalculated);
    p->request->layer = moe_pass_owner(p, p->moe);
    p->request->moe = p->moe;
    if (p->holders)
        mark_elsewhere(p);
    if (p->ops->ask)
        MOE_TRY(p->ops->ask(p->ctx, layer, err));
    if (p->scheduler)
        MOE_TRY(ask_scheduler(p, err));
    log_request(p);
    return MOE_OK;
}

/* ---- Experts as they arrive ---- */

static int compute_part(struct moe_pass *p, const uint32_t *which, uint32_t n, bool last,
                        struct moe_err *err)
{
    int status = p->ops->experts ? p->ops->experts(p->ctx, which, n, last, err) : MOE_OK;
    took_experts(p, which, n, last);
    return status;
}

/* Computes the entries in slots, each as it becomes ready. */
static int compute_experts(struct moe_pass *p, struct moe_err *err)
{
    const struct moe_layer_request *r = p->request;
    uint32_t which[MOE_MAX_TOP_K], n_here = 0;
    for (uint32_t i = 0; i < r->n_entries; i++)
        n_here += r->kinds[i] == MOE_ENTRY_SLOT;
    for (uint32_t done = 0, n; done < n_here; done += n) {
        MOE_TRY(p->ops->next ? p->ops->next(p->ctx, p->at_once, which, &n, err)
                             : moe_scheduler_next(p->scheduler, p->at_once, which, &n, err));
        log_numbers(p, "computes entries", which, n);
        MOE_TRY(compute_part(p, which, n, false, err));
        for (uint32_t i = 0; p->scheduler && i < n; i++)
            MOE_TRY(moe_scheduler_complete(p->scheduler, which[i], err));
        MOE_TRY(compute_part(p, which, n, true, err));
        for (uint32_t i = 0; i < n; i++) {
            if (p->ops->release)
                p->ops->release(p->ctx, which[i]);
            else
                moe_scheduler_release(p->scheduler, which[i]);
        }
    }
    return MOE_OK;
}

/* Waits for what other processes compute of the layer. */
static int collect_from_elsewhere(struct moe_pass *p, struct moe_err *err)
{
    for (bool all = p->holders == NULL; !all;) {
        MOE_TRY(p->ops->collect(p->ctx, &all, err));
        MOE_TRY(moe_pass_poll(p, err));
    }
    return MOE_OK;
}

int moe_pass_own_experts(struct moe_pass *p, uint32_t moe, struct moe_err *err)
{
    p->moe = moe;
    MOE_TRY(request_experts(p, p->shape.model_layer[moe], err));
    return compute_experts(p, err);
}

/* ---- A layer ---- */

/* What a MoE layer does before its attention. */
static int before_attention(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    if (!p->shape.routes_early)
        return predict_before_attention(p, layer, err);
    if (!is_computed(p, p->moe))
        return MOE_OK;
    MOE_TRY(p->ops->choose(p->ctx, layer, err));
    MOE_TRY(request_experts(p, layer, err));
    if (!predicts(p) || !moe_strategy_predicts_early(&p->strategy))
        return MOE_OK;
    return moe_predicts_from_attention(p->strategy.predict)
               ? predict_before_attention(p, layer, err)
               : predict_after_router(p, layer, err);
}

static int attend_layer(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    if (p->ops->attend)
        return p->ops->attend(p->ctx, layer, err);
    MOE_TRY(moe_pass_poll(p, err));
    return moe_pass_poll(p, err);
}

static int compute_beside(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    bool any = p->pace && p->pace->pieces[MOE_PIECE_BESIDE].n > 0;
    if (p->ops->beside)
        MOE_TRY(p->ops->beside(p->ctx, layer, &any, err));
    took_piece(p, MOE_PIECE_BESIDE);
    return any ? moe_pass_poll(p, err) : MOE_OK;
}

/* A MoE layer after its attention. */
static int run_moe(struct moe_pass *p, uint32_t layer, struct moe_err *err)
{
    if (p->ops->alone && p->ops->alone(p->ctx, layer))
        return MOE_OK;
    MOE_TRY(p->ops->route(p->ctx, layer, err));
    took_attention(p, MOE_PIECE_ROUTE);
    /* What came during attention makes room for more. */
    MOE_TRY(p->shape.routes_early ? moe_pass_poll(p, err) : request_experts(p, layer, err));
    MOE_TRY(begin_host_entries(p, layer, err));
    if (p->holders)
        MOE_TRY(p->ops->begin_elsewhere(p->ctx, err));
    bool has_predicted = p->shape.routes_early && moe_strategy_predicts_early(&p->strategy);
    if (predicts(p) && !has_predicted && !moe_predicts_from_attention(p->strategy.predict))
        MOE_TRY(predict_after_router(p, layer, err));
    MOE_TRY(compute_beside(p, layer, err));
    MOE_TRY(compute_experts(p, err));
    collect_from_host(p, layer);
    MOE_TRY(collect_from_elsewhere(p, err));
    int status = p->ops->combine ? p->ops->combine(p->ctx, layer, err) : MOE_OK;
    took_piece(p, MOE_PIECE_COMBINE);
    return status;
}

static int run_layer(struct moe_pass *p, uint32_t layer, bool is_moe, struct moe_err *err)
{
    if (p->ops->begin_layer)
        p->ops->begin_layer(p->ctx, layer);
    if (is_moe)
        MOE_TRY(before_attention(p, layer, err));
    MOE_TRY(attend_layer(p, layer, err));
    if (is_moe)
        return is_computed(p, p->moe) ? run_moe(p, layer, err) : MOE_OK;
    int status = p->ops->dense ? p->ops->dense(p->ctx, layer, err) : MOE_OK;
    took_attention(p, MOE_PIECE_DENSE);
    return status;
}

int moe_pass_layers(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err)
{
    const struct moe_pass_shape *s = &p->shape;
    int status = MOE_OK;
    p->moe = layer_from(s, begin);
    for (uint32_t layer = begin; layer < end && status == MOE_OK; layer++) {
        bool is_moe = p->moe < s->n_listed && s->model_layer[p->moe] == layer;
        status = run_layer(p, layer, is_moe, err);
        p->moe += is_moe;
    }
    if (p->pace && end == s->n_model_layers) /* an encoder has no head */
        took_seconds(p, p->pace->head);
    return status;
}

/* ---- Before the layers ---- */

/* Asks for the experts of layers with static routing: the tokens name them. */
static int ask_known(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err)
{
    struct moe_layer_request *r = p->request;
    for (uint32_t m = begin; p->scheduler && m < end; m++) {
        if (!p->shape.is_static[m] || !is_computed(p, m))
            continue;
        if (p->replay)
            moe_replay_chosen(p->replay, m, r->chosen, r->weights);
        if (p->ops->known)
            p->ops->known(p->ctx, p->shape.model_layer[m]);
        moe_layer_request_fill(r, p->n_rows, false, NULL);
        MOE_TRY(moe_scheduler_known(p->scheduler, m, r->needs, r->n_entries, err));
    }
    return MOE_OK;
}

/* Protects the experts that the tokens used last. Not for a prompt, whose tokens used nearly all.
 */
static void protect_expected(struct moe_pass *p, uint32_t begin, uint32_t end)
{
    for (uint32_t m = begin; m < end; m++) {
        if (p->shape.is_static[m] || !is_computed(p, m))
            continue;
        memset(p->expected, 0, p->shape.n_experts);
        if (p->replay ? moe_replay_expects(p->replay, m, p->expected)
                      : p->ops->expects(p->ctx, p->shape.model_layer[m], p->expected))
            moe_scheduler_expected(p->scheduler, m, p->expected);
    }
}

int moe_pass_expect(struct moe_pass *p, uint32_t begin, uint32_t end, struct moe_err *err)
{
    const struct moe_prediction *predictions;
    uint32_t first = layer_from(&p->shape, begin), last = layer_from(&p->shape, end);
    p->moe = first;
    MOE_TRY(ask_known(p, first, last, err));
    if (!p->scheduler || first == last || !moe_strategy_recalls(&p->strategy))
        return MOE_OK;
    if (p->strategy.protect_tokens && p->decode)
        protect_expected(p, first, last);
    uint32_t depth = moe_scheduler_wants_first(p->scheduler, first);
    if (depth == 0)
        return MOE_OK;
    double started = moe_seconds();
    uint32_t n =
        p->replay ? moe_replay_predict_first(p->replay, first, depth, &predictions)
                  : p->ops->predict_first(p->ctx, p->shape.model_layer[first], depth, &predictions);
    int status = hand_on(p, predictions, n, err);
    *p->predict_seconds += moe_seconds() - started;
    return status;
}
