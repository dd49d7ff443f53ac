/*
 * The simulator: passes over rows, layer by layer, in the order of infer/forward.c.
 */
#include "plan/simulate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/rank.h"
#include "cache/link.h"
#include "model/config.h" /* MOE_MAX_TOP_K */
#include "profile/device.h"
#include "sched/history.h"
#include "sched/host_places.h"
#include "sched/placement.h"
#include "sched/select.h"

/*
 * The simulator's channel: segments of experts on a modelled link (cache/link.h), or on two in
 * series: from storage into places of the host's memory, and from there into a device's slots, as
 * infer/experts_tiers.h moves them.
 */
/* A segment under way. */
struct simulate_cargo {
    uint32_t slot, segment;
    struct moe_simulated_phase *phase; /* which counted its bytes */
    uint64_t bytes;
    enum moe_load_priority priority;
    float score;
    enum {
        CARGO_LOADING = 0,
        CARGO_WAITING,
        CARGO_READING
    } state;              /* over the last link; before it */
    uint32_t copy, place; /* of its expert */
};

struct simulate_link {
    const struct moe_inventory *inventory;
    const struct moe_store *store;     /* set once there is one, before the first load */
    struct moe_simulated_phase *phase; /* which counts the bytes */
    struct moe_link link;
    struct moe_link_item *items;
    struct simulate_cargo *cargo; /* [n_items] */
    uint32_t *free_items, n_free, n_items;
    double stalled; /* seconds waited so far */

    /* What lies behind: without it (tiers false) everything is where the link begins. */
    bool tiers;
    struct moe_host_places places;
    struct moe_link storage, waiting; /* the second orders what waits for a place */
    struct moe_link_item *storage_items, *waiting_items;
    bool stirred; /* something ended: what waits may start */
};

/* The scheduler's options have their pools. */
int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                       struct moe_err *err);
void simulate_link_close(struct simulate_link *l);
struct moe_channel simulate_link_channel(struct simulate_link *l);
/* Computation took `seconds`: loads went on meanwhile. */
void simulate_link_advance(struct simulate_link *l, double seconds);

/* Experts predicted in place of a router's choice (DAOP IV-C); choice.n 0: none. */
struct early {
    uint32_t layer;
    struct moe_predicted choice;
    double due[MOE_MAX_TOP_K]; /* when those on the host are computed */
};

struct simulator {
    const struct moe_simulation *in;
    const struct moe_inventory *inventory;
    struct moe_strategy strategy;
    struct moe_replay *replay;
    struct moe_scheduler *scheduler;
    struct moe_store *store;

    struct simulate_link channel;

    struct moe_simulated_phase *phase;
    struct moe_simulated uncounted; /* sequences that only fill caches */
    struct moe_simulated_layer *layers;
    double link_seen, worked_seen, storage_seen;
    double positions; /* that the rows of the pass attend to */
    bool decode, warms;
    double host_free_at;

    struct moe_need *needs;           /* [n_experts] of the layer's request */
    double *due;                      /* [n_experts] when entries on the host are computed */
    float *unimportance;              /* [n_experts] */
    uint32_t *rows;                   /* [n_experts] */
    uint32_t *chosen;                 /* [batch][top_k] of the layer */
    float *weights;                   /* [batch][top_k] */
    uint8_t *precalculated, *present; /* [n_experts] */
    uint8_t *expected;                /* [n_experts] */
    uint32_t *barred;                 /* [n_experts] */
    struct early early[2];            /* this layer's and the next one's, by layer modulo 2 */
    bool has_precalculated;
    struct moe_preference preference;
    void *preference_block; /* its memory */
};

static void took(struct simulator *s, double seconds)
{
    simulate_link_advance(&s->channel, seconds);
}

static void took_piece(struct simulator *s, enum moe_piece piece, uint32_t rows)
{
    took(s, moe_pace_piece(s->in->pace, piece, rows));
}

static void took_attention(struct simulator *s, enum moe_piece piece, uint32_t rows)
{
    took(s, moe_pace_attention(s->in->pace, piece, rows, s->positions));
}

/* ---- A layer ---- */

/* Puts the experts predicted for the layer in place of the router's choice, where that pays. */
static void take_predicted(struct simulator *s, uint32_t layer, uint32_t n_rows)
{
    struct early *early = &s->early[layer % 2];
    const struct moe_predicted *f = &early->choice;
    s->has_precalculated = f->n > 0 && early->layer == layer && n_rows == 1;
    if (s->has_precalculated) {
        moe_scheduler_present(s->scheduler, layer, s->present);
        s->has_precalculated = moe_predicted_pays(f, s->chosen, s->inventory->top_k, s->present);
    }
    if (!s->has_precalculated) {
        early->choice.n = 0;
        return;
    }
    memset(s->precalculated, 0, s->inventory->n_experts);
    s->phase->experts.substituted += moe_predicted_others(f, s->chosen, s->inventory->top_k);
    for (uint32_t k = 0; k < f->n; k++)
        s->precalculated[f->experts[k]] = f->on_host[k];
    memcpy(s->chosen, f->experts, f->n * sizeof *s->chosen);
    memcpy(s->weights, f->scores, f->n * sizeof *s->weights);
}

/* Cache-aware routing: experts in the cache replace some of the router's choice. Their weights are
 * probabilities, which suffices: only shares of a row's weight count here. */
static void take_preferred(struct simulator *s, uint32_t layer)
{
    struct moe_preference *p = &s->preference;
    p->n = moe_replay_ranked(s->replay, layer, p->experts, p->probabilities);
    moe_scheduler_cached(s->scheduler, layer, p->cached);
    uint32_t n_others = moe_preference_choose(p, layer, s->chosen);
    s->phase->experts.substituted += n_others;
    for (uint32_t k = 0, i = 0; n_others > 0 && k < p->top_k; k++) {
        while (p->experts[i] != s->chosen[k])
            i++;
        s->weights[k] = p->probabilities[i];
    }
}

/* The distinct experts of the pass, ascending. Returns how many. */
static uint32_t list_needs(struct simulator *s, uint32_t n_rows)
{
    uint32_t k = s->inventory->top_k, n = 0;
    for (uint32_t e = 0; e < s->inventory->n_experts; e++) {
        s->rows[e] = 0;
        s->unimportance[e] = 2;
    }
    for (uint64_t i = 0; i < (uint64_t)n_rows * k; i++)
        s->rows[s->chosen[i]]++;
    moe_least_unimportance(s->chosen, s->weights, n_rows, k, s->unimportance);
    for (uint32_t e = 0; e < s->inventory->n_experts; e++)
        if (s->rows[e])
            s->needs[n++] = (struct moe_need){
                .expert = e,
                .n_rows = s->rows[e],
                .unimportance = s->unimportance[e],
                .precalculated = s->has_precalculated && s->precalculated[e],
            };
    return n;
}

/* Asks the host for an expert; returns when it will be computed. */
static double ask_host(struct simulator *s, uint32_t variant, uint32_t rows)
{
    s->host_free_at =
        moe_pace_host(s->in->pace, s->channel.link.clock, s->host_free_at, variant, rows);
    return s->host_free_at;
}

/* DAOP IV-C: decides the next layer's experts and begins those on the host. */
static void precalculate(struct simulator *s, uint32_t next, const struct moe_prediction *p)
{
    struct early *early = &s->early[next % 2];
    early->layer = next;
    moe_scheduler_present(s->scheduler, next, s->present);
    moe_best(p->scores, s->inventory->n_experts, s->inventory->top_k, early->choice.experts);
    moe_predicted_choice(p->scores, s->present, s->inventory->n_experts, s->inventory->top_k,
                         moe_strategy_replaces(&s->strategy), &early->choice, s->barred);
    const struct moe_predicted *choice = &early->choice;
    for (uint32_t k = 0, high = s->in->scheduler.high; k < choice->n; k++)
        if (choice->on_host[k])
            early->due[k] = ask_host(
                s,
                moe_inventory_usable(
                    s->inventory, moe_inventory_key(s->inventory, next, choice->experts[k]), high),
                1);
}

static int predict(struct simulator *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_prediction *predictions;
    bool early = s->strategy.precalculate && s->decode && n_rows == 1 &&
                 layer + 1 < s->inventory->n_layers && !s->inventory->is_static[layer + 1] &&
                 layer + 1 >= s->inventory->n_encoder + s->strategy.precalculate_from;
    uint32_t depth = early ? 1 : moe_scheduler_wants_prediction(s->scheduler, layer);
    uint32_t n = moe_replay_predict(s->replay, layer, depth, s->chosen, s->weights, &predictions);
    took(s, s->in->pace->predict * n);
    if (n == 0)
        return MOE_OK;
    if (!early)
        return moe_scheduler_predicted(s->scheduler, predictions, n, err);
    precalculate(s, layer + 1, predictions);
    return MOE_OK;
}

/* Before a layer's attention: predictions by its input. */
static int predict_by_attention(struct simulator *s, uint32_t layer, uint32_t n_rows,
                                struct moe_err *err)
{
    bool known = s->inventory->routes_early && s->strategy.predict == MOE_PREDICT_BY_ATTENTION;
    bool wanted = moe_predicts_from_attention(s->strategy.predict) && !known &&
                  moe_replay_has(s->replay, layer) &&
                  moe_scheduler_wants_prediction(s->scheduler, layer) > 0;
    return wanted ? predict(s, layer, n_rows, err) : MOE_OK;
}

static uint32_t variant_of(const struct simulator *s, const struct moe_entry *e)
{
    return e->kind == MOE_ENTRY_SLOT ? moe_store_slot(s->store, e->slot)->variant : e->variant;
}

/* Computes what comes before the last segment of n entries, or the last. */
static void compute_part(struct simulator *s, const struct moe_entry *entries,
                         const uint32_t *which, uint32_t n, bool last)
{
    if (!last)
        took(s, s->in->pace->joint);
    for (uint32_t i = 0; i < n; i++) {
        const struct moe_entry *e = &entries[which[i]];
        took(s, moe_pace_expert_part(s->in->pace, variant_of(s, e), e->need.n_rows, last));
    }
}

/* Computes the entries in slots as they arrive. */
static int compute(struct simulator *s, uint32_t n_rows, struct moe_err *err)
{
    uint32_t n_entries, n_here = 0, which[MOE_MAX_TOP_K];
    const struct moe_entry *entries = moe_scheduler_entries(s->scheduler, &n_entries);
    for (uint32_t i = 0; i < n_entries; i++)
        n_here += entries[i].kind == MOE_ENTRY_SLOT;
    for (uint32_t done = 0, n; done < n_here; done += n) {
        int status =
            moe_scheduler_next(s->scheduler, n_rows == 1 ? MOE_MAX_TOP_K : 1, which, &n, err);
        if (status != MOE_OK)
            return status;
        compute_part(s, entries, which, n, false);
        for (uint32_t i = 0; i < n && status == MOE_OK; i++)
            status = moe_scheduler_complete(s->scheduler, which[i], err);
        if (status != MOE_OK)
            return status;
        compute_part(s, entries, which, n, true);
        for (uint32_t i = 0; i < n; i++)
            moe_scheduler_release(s->scheduler, which[i]);
    }
    return MOE_OK;
}

static void wait_for_host(struct simulator *s, double due)
{
    double now = s->channel.link.clock;
    if (due <= now)
        return;
    took(s, due - now);
    s->phase->host_seconds += due - now;
}

/* Waits for the layer's experts on the host. */
static void collect(struct simulator *s, uint32_t layer)
{
    uint32_t n;
    const struct moe_entry *entries = moe_scheduler_entries(s->scheduler, &n);
    const struct early *early = &s->early[layer % 2];
    for (uint32_t i = 0; i < n; i++) {
        if (entries[i].kind == MOE_ENTRY_HOST) {
            wait_for_host(s, s->due[i]);
        } else if (entries[i].kind == MOE_ENTRY_PRECALCULATED) {
            uint32_t k = 0;
            while (early->choice.experts[k] != entries[i].need.expert)
                k++;
            wait_for_host(s, early->due[k]);
        }
    }
}

/* Adds to the layer's own figures. */
static void count_layer(struct simulator *s, uint32_t layer, const struct moe_counts *before,
                        double stall_before)
{
    const struct moe_counts *now = &s->phase->experts;
    if (!s->layers || !s->decode || s->warms)
        return;
    struct moe_simulated_layer *l = &s->layers[layer];
    l->activations += now->activations - before->activations;
    l->hits += now->cache_hits - before->cache_hits + now->prefetch_hits - before->prefetch_hits;
    l->predicted += now->predicted - before->predicted;
    l->predicted_right += now->predicted_right - before->predicted_right;
    l->stall_seconds += s->channel.stalled - stall_before;
}

/* The router has chosen: what becomes of the layer's experts. */
static int request(struct simulator *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    moe_replay_chosen(s->replay, layer, s->chosen, s->weights);
    take_predicted(s, layer, n_rows);
    if (s->strategy.prefer > 0 && s->decode && n_rows == 1 && !s->inventory->is_static[layer])
        take_preferred(s, layer);
    if (s->strategy.gate_below > 0 && s->decode && n_rows == 1)
        moe_gate_below(s->weights, s->inventory->top_k, s->strategy.gate_below);
    moe_replay_note(s->replay, layer, s->chosen, s->weights);
    uint32_t n_needs = list_needs(s, n_rows);
    const struct moe_choices choices = {layer, n_rows, s->chosen, NULL};
    moe_scheduler_chosen(s->scheduler, &choices);
    return moe_scheduler_request(s->scheduler, layer, s->needs, n_needs, err);
}

/* Loads move on while attention is computed. */
static int poll_twice(struct simulator *s, struct moe_err *err)
{
    int status = moe_scheduler_poll(s->scheduler, err);
    return status == MOE_OK ? moe_scheduler_poll(s->scheduler, err) : status;
}

/* Attention, the router, and what they tell the scheduler, in one order or the other. */
static int route(struct simulator *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    bool by_attention = moe_predicts_from_attention(s->strategy.predict);
    bool early = s->inventory->routes_early;
    bool predicted = early && moe_strategy_predicts_early(&s->strategy);
    int status = MOE_OK;
    if (early)
        status = request(s, layer, n_rows, err);
    if (status == MOE_OK && predicted)
        status = by_attention ? predict_by_attention(s, layer, n_rows, err)
                              : predict(s, layer, n_rows, err);
    if (status == MOE_OK && early)
        status = poll_twice(s, err);
    if (status != MOE_OK)
        return status;
    took_attention(s, MOE_PIECE_ROUTE, n_rows);
    status = early ? moe_scheduler_poll(s->scheduler, err) : request(s, layer, n_rows, err);
    if (status != MOE_OK)
        return status;
    uint32_t n;
    const struct moe_entry *entries = moe_scheduler_entries(s->scheduler, &n);
    for (uint32_t i = 0; i < n; i++)
        if (entries[i].kind == MOE_ENTRY_HOST)
            s->due[i] = ask_host(s, entries[i].variant, entries[i].need.n_rows);
    return predicted || by_attention ? MOE_OK : predict(s, layer, n_rows, err);
}

static int run_moe_layer(struct simulator *s, uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    const struct moe_counts before = s->phase->experts;
    double stall_before = s->channel.stalled;
    int status = route(s, layer, n_rows, err);
    if (status != MOE_OK)
        return status;
    if (s->in->pace->pieces[MOE_PIECE_BESIDE].n) {
        took_piece(s, MOE_PIECE_BESIDE, n_rows);
        status = moe_scheduler_poll(s->scheduler, err);
    }
    if (status == MOE_OK)
        status = compute(s, n_rows, err);
    if (status != MOE_OK)
        return status;
    collect(s, layer);
    took_piece(s, MOE_PIECE_COMBINE, n_rows);
    count_layer(s, layer, &before, stall_before);
    return MOE_OK;
}

/* ---- A pass ---- */

/* A source goes through the layers of the encoder, each token of its target through the decoder's;
 * without an encoder every pass goes through all. */
static bool passes(const struct moe_inventory *inv, const struct moe_pass *pass, uint32_t layer)
{
    return inv->n_model_encoder == 0 || pass->prompt == (layer < inv->n_model_encoder);
}

/* What layers with static routing will ask for is known now. */
static int ask_known(struct simulator *s, const struct moe_pass *pass, struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    int status = MOE_OK;
    s->has_precalculated = false;
    for (uint32_t layer = 0; layer < inv->n_layers && status == MOE_OK; layer++) {
        if (!inv->is_static[layer] || !passes(inv, pass, inv->model_layer[layer]) ||
            !moe_replay_has(s->replay, layer))
            continue;
        moe_replay_chosen(s->replay, layer, s->chosen, s->weights);
        uint32_t n = list_needs(s, pass->n_rows);
        status = moe_scheduler_known(s->scheduler, layer, s->needs, n, err);
    }
    return status;
}

/* What the pass's tokens used last is expected again, and loaded first where they predict. */
static int expect(struct simulator *s, const struct moe_pass *pass, struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    const struct moe_prediction *predictions;
    uint32_t first = inv->n_model_encoder && !pass->prompt ? inv->n_encoder : 0;
    for (uint32_t layer = first; s->decode && s->strategy.protect_tokens && layer < inv->n_layers;
         layer++) {
        memset(s->expected, 0, inv->n_experts);
        bool asks = !inv->is_static[layer] && moe_replay_has(s->replay, layer);
        if (asks && moe_replay_expects(s->replay, layer, s->expected))
            moe_scheduler_expected(s->scheduler, layer, s->expected);
    }
    uint32_t depth = moe_scheduler_wants_first(s->scheduler, first);
    if (depth == 0)
        return MOE_OK;
    uint32_t n = moe_replay_predict_first(s->replay, first, depth, &predictions);
    took(s, s->in->pace->predict * n);
    return n ? moe_scheduler_predicted(s->scheduler, predictions, n, err) : MOE_OK;
}

static int run_pass(struct simulator *s, struct moe_simulated *out, const struct moe_pass *pass,
                    struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    s->decode = !pass->prompt;
    s->warms = pass->warms;
    struct moe_simulated *counted = s->warms ? &s->uncounted : out;
    s->phase = s->channel.phase = pass->prompt ? &counted->prefill : &counted->decode;
    if (pass->first)
        moe_scheduler_begin_sequence(s->scheduler);
    if (pass->first && s->strategy.prefer > 0)
        moe_preference_begin_sequence(&s->preference);
    moe_scheduler_begin_tokens(s->scheduler, pass->n_rows, pass->prompt, &s->phase->experts);
    s->early[0].choice.n = s->early[1].choice.n = 0;
    s->positions = moe_pace_positions(pass->position, pass->n_rows);
    double started = s->channel.link.clock, host_before = s->phase->host_seconds;
    uint64_t loads_before = s->phase->experts.loads;
    double stalled_before = s->channel.stalled;
    int status = ask_known(s, pass, err);
    if (status == MOE_OK)
        status = expect(s, pass, err);
    for (uint32_t layer = 0, moe = 0; layer < inv->n_model_layers && status == MOE_OK; layer++) {
        bool is_moe = moe < inv->n_layers && inv->model_layer[moe] == layer;
        if (!passes(inv, pass, layer)) {
            moe += is_moe;
            continue;
        }
        bool early = is_moe && inv->routes_early && moe_replay_has(s->replay, moe);
        if (is_moe && !early)
            status = predict_by_attention(s, moe, pass->n_rows, err);
        if (status == MOE_OK && !early)
            status = poll_twice(s, err);
        if (status != MOE_OK)
            return status;
        if (!is_moe)
            took_attention(s, MOE_PIECE_DENSE, pass->n_rows);
        else if (moe_replay_has(s->replay, moe))
            status = run_moe_layer(s, moe, pass->n_rows, err);
        moe += is_moe;
    }
    if (inv->n_model_encoder == 0 || !pass->prompt) /* an encoder has no head */
        took(s, s->in->pace->head);
    double seconds = s->channel.link.clock - started;
    double stalled = s->channel.stalled - stalled_before;
    double worked = s->channel.link.worked_seconds - s->worked_seen;
    moe_scheduler_end_tokens(s->scheduler, s->decode && s->phase->tokens > 0, seconds, stalled,
                             s->channel.link.busy_seconds - s->link_seen,
                             s->phase->experts.loads - loads_before);
    s->phase->tokens += pass->n_rows;
    s->phase->seconds += seconds;
    s->phase->stall_seconds += stalled;
    s->phase->handling_seconds += worked;
    s->phase->positions += s->positions;
    s->phase->compute_seconds +=
        moe_components_of(seconds, worked, stalled, s->phase->host_seconds - host_before)
            .seconds[MOE_COMPONENT_COMPUTE];
    s->worked_seen = s->channel.link.worked_seconds;
    s->phase->link_seconds += s->channel.link.busy_seconds - s->link_seen;
    s->link_seen = s->channel.link.busy_seconds;
    s->phase->storage_seconds += s->channel.storage.busy_seconds - s->storage_seen;
    s->storage_seen = s->channel.storage.busy_seconds;
    uint32_t n_layers = inv->n_model_encoder == 0 ? inv->n_layers
                        : pass->prompt            ? inv->n_encoder
                                                  : inv->n_layers - inv->n_encoder;
    out->token_layers += (uint64_t)pass->n_rows * n_layers;
    return status;
}

/* ---- Opening ---- */

static int open_tables(struct simulator *s, struct moe_err *err)
{
    uint32_t n = s->inventory->n_experts;
    uint64_t n_chosen = (uint64_t)moe_replay_batch(s->replay) * s->inventory->top_k;
    s->needs = moe_alloc(n, sizeof *s->needs, err);
    s->due = moe_alloc(n, sizeof *s->due, err);
    s->unimportance = moe_alloc(n, sizeof *s->unimportance, err);
    s->rows = moe_alloc(n, sizeof *s->rows, err);
    s->barred = moe_alloc(n, sizeof *s->barred, err);
    s->precalculated = moe_alloc(n, 1, err);
    s->present = moe_alloc(n, 1, err);
    s->expected = moe_alloc(n, 1, err);
    s->chosen = moe_alloc(n_chosen, sizeof *s->chosen, err);
    s->weights = moe_alloc(n_chosen, sizeof *s->weights, err);
    return s->needs && s->due && s->unimportance && s->rows && s->barred && s->precalculated &&
                   s->present && s->expected && s->chosen && s->weights
               ? MOE_OK
               : MOE_ERR_MEMORY;
}

static int open_preference(struct simulator *s, struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    struct moe_arena arena = {0};
    if (!(s->strategy.prefer > 0))
        return MOE_OK;
    s->preference =
        (struct moe_preference){.lambda = s->strategy.prefer, .keeps = s->strategy.prefer_keeps};
    moe_preference_carve(&s->preference, &arena, inv->n_layers, inv->n_experts, inv->top_k);
    s->preference_block = moe_alloc(arena.used, 1, err);
    if (!s->preference_block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = s->preference_block, .size = arena.used};
    moe_preference_carve(&s->preference, &arena, inv->n_layers, inv->n_experts, inv->top_k);
    return MOE_OK;
}

static int check(const struct moe_simulation *in, struct moe_err *err)
{
    const struct moe_trace_shape *t = moe_trace_shape(in->trace);
    const struct moe_inventory *inv = in->scheduler.inventory;
    if (t->n_layers != inv->n_layers || t->n_experts != inv->n_experts ||
        t->n_encoder != inv->n_encoder || t->top_k != inv->top_k ||
        memcmp(t->is_static, inv->is_static, inv->n_layers) != 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the trace is of another model: %u layers of %u experts, %u a token, not "
                        "%u of %u, %u",
                        t->n_layers, t->n_experts, t->top_k, inv->n_layers, inv->n_experts,
                        inv->top_k);
    if (in->scheduler.strategy->needs_host && !(in->pace->host_slowdown >= 1))
        return moe_fail(err, MOE_ERR_USAGE,
                        "strategy %s computes experts beside the device: it needs a second device",
                        in->scheduler.strategy->name);
    return MOE_OK;
}

static int open_simulator(struct simulator *s, struct moe_err *err)
{
    const struct moe_simulation *in = s->in;
    s->inventory = in->scheduler.inventory;
    s->strategy = *in->scheduler.strategy;
    s->phase = s->channel.phase = &s->uncounted.prefill;
    int status = moe_replay_open(&s->replay, in->trace, in->excerpt, in->batch, &s->strategy,
                                 in->statistics, err);
    if (status == MOE_OK)
        status = simulate_link_open(&s->channel, in, err);
    if (status == MOE_OK)
        status = open_tables(s, err);
    if (status == MOE_OK)
        status = open_preference(s, err);
    if (status != MOE_OK)
        return status;
    struct moe_scheduler_options o = in->scheduler;
    o.n_requests = s->channel.n_items;
    o.channel = simulate_link_channel(&s->channel);
    status = moe_scheduler_open(&s->scheduler, &o, err);
    if (status != MOE_OK)
        return status;
    s->channel.store = s->store = moe_scheduler_store(s->scheduler);
    status = moe_scheduler_fill(s->scheduler, NULL, err);
    s->link_seen = s->channel.link.busy_seconds;
    s->worked_seen = s->channel.link.worked_seconds;
    s->storage_seen = s->channel.storage.busy_seconds;
    return status;
}

static void close_simulator(struct simulator *s)
{
    moe_scheduler_close(s->scheduler);
    moe_replay_close(s->replay);
    simulate_link_close(&s->channel);
    free(s->preference_block);
    free(s->needs);
    free(s->due);
    free(s->unimportance);
    free(s->rows);
    free(s->barred);
    free(s->precalculated);
    free(s->present);
    free(s->expected);
    free(s->chosen);
    free(s->weights);
}

int moe_simulate(const struct moe_simulation *in, struct moe_simulated *out,
                 struct moe_simulated_layer *layers, struct moe_err *err)
{
    struct simulator s = {.in = in, .layers = layers};
    struct moe_pass pass;
    *out = (struct moe_simulated){0};
    if (layers)
        memset(layers, 0, in->scheduler.inventory->n_layers * sizeof *layers);
    int status = check(in, err);
    if (status == MOE_OK)
        status = open_simulator(&s, err);
    while (status == MOE_OK) {
        status = moe_replay_next(s.replay, &pass, err);
        if (status != MOE_OK || pass.n_rows == 0)
            break;
        status = run_pass(&s, out, &pass, err);
        if (status == MOE_OK && moe_progress_stopped(in->progress))
            status = moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    if (status == MOE_OK) /* evictions at the end count for the last pass */
        moe_scheduler_begin_tokens(s.scheduler, 0, false, &s.uncounted.decode.experts);
    close_simulator(&s);
    return status;
}

/* ---- The modelled link: what lies behind ---- */

static uint32_t low_of(const struct moe_scheduler_options *o)
{
    return o->strategy->needs_low ? o->low : o->high;
}

/* The places hold what the host tier would be filled with. */
static int fill_places(struct simulate_link *l, const struct moe_scheduler_options *o,
                       struct moe_err *err)
{
    const struct moe_inventory *inv = l->inventory;
    struct moe_host_wish *wishes =
        moe_alloc(2 * (uint64_t)inv->n_layers * inv->n_experts, sizeof *wishes, err);
    if (!wishes)
        return MOE_ERR_MEMORY;
    uint32_t n = moe_host_places_assign(&l->places, inv, o->high, low_of(o), o->frequency, wishes);
    for (uint32_t i = 0; i < n; i++) {
        struct moe_host_place *x = &l->places.places[l->places.of_copy[wishes[i].copy]];
        x->arrived = (1u << inv->classes[x->class_index].n_segments) - 1;
    }
    moe_host_places_settle(&l->places, wishes, n);
    free(wishes);
    return MOE_OK;
}

static int open_tiers(struct simulate_link *l, const struct moe_simulation *in, struct moe_err *err)
{
    const struct moe_scheduler_options *o = &in->scheduler;
    const struct moe_inventory *inv = l->inventory;
    struct moe_host_sizes sizes;
    moe_host_sizes_of(&sizes, inv, o->pools, o->high, low_of(o), in->host_bytes);
    if (sizes.whole)
        return MOE_OK;
    l->tiers = true;
    l->storage_items = moe_alloc(l->n_items, sizeof *l->storage_items, err);
    l->waiting_items = moe_alloc(l->n_items, sizeof *l->waiting_items, err);
    int status = moe_host_places_open(&l->places, inv->n_layers * inv->n_experts * inv->n_variants,
                                      sizes.n, inv->n_classes, err);
    if (status == MOE_OK && (!l->storage_items || !l->waiting_items))
        status = MOE_ERR_MEMORY;
    if (status != MOE_OK)
        return status;
    moe_link_init(&l->storage, l->storage_items, l->n_items, l->link.piece_bytes,
                  in->pace->storage_rate);
    l->storage.costs.piece = in->pace->storage_piece_seconds;
    /* A device computes: loads take nothing of its time. Both links then have one clock. */
    l->link.costs =
        (struct moe_link_costs){.piece = in->pace->loads.piece, .latency = in->pace->loads.latency};
    moe_link_init(&l->waiting, l->waiting_items, l->n_items, MOE_LINK_PIECE_BYTES, 0);
    return fill_places(l, o, err);
}

/* ---- Opening ---- */

int simulate_link_open(struct simulate_link *l, const struct moe_simulation *in,
                       struct moe_err *err)
{
    l->inventory = in->scheduler.inventory;
    l->n_items = in->scheduler.pools->n_slots * MOE_PACK_MAX_SEGMENTS;
    if (in->scheduler.n_requests && l->n_items > in->scheduler.n_requests)
        l->n_items = in->scheduler.n_requests;
    l->items = moe_alloc(l->n_items, sizeof *l->items, err);
    l->cargo = moe_alloc(l->n_items, sizeof *l->cargo, err);
    l->free_items = moe_alloc(l->n_items, sizeof *l->free_items, err);
    if (!l->items || !l->cargo || !l->free_items)
        return MOE_ERR_MEMORY;
    while (l->n_free < l->n_items) {
        l->free_items[l->n_free] = l->n_items - 1 - l->n_free;
        l->n_free++;
    }
    moe_link_init(&l->link, l->items, l->n_items,
                  in->piece_bytes ? in->piece_bytes : MOE_LINK_PIECE_BYTES, in->pace->load_rate);
    l->link.costs = moe_strategy_loads(in->scheduler.strategy, in->pace->loads);
    return in->pace->storage_rate > 0 ? open_tiers(l, in, err) : MOE_OK;
}

void simulate_link_close(struct simulate_link *l)
{
    free(l->items);
    free(l->cargo);
    free(l->free_items);
    free(l->storage_items);
    free(l->waiting_items);
    moe_host_places_close(&l->places);
}

/* ---- From storage, through places, as experts_tiers.c ---- */

static void release_place(struct simulate_link *l, uint32_t item)
{
    moe_host_places_unpin(&l->places, l->cargo[item].place);
    l->stirred = true;
}

static void load(struct simulate_link *l, uint32_t item)
{
    struct simulate_cargo *x = &l->cargo[item];
    x->state = CARGO_LOADING;
    moe_link_add(&l->link, item, x->bytes, x->priority, x->score);
}

/* Starts what waits for a place, if that is possible. */
static void go_on(struct simulate_link *l, uint32_t item)
{
    struct simulate_cargo *x = &l->cargo[item];
    uint32_t bit = 1u << x->segment, place = moe_host_places_find(&l->places, x->copy);
    if (place == MOE_NO_PLACE)
        place = moe_host_places_take(&l->places, moe_store_slot(l->store, x->slot)->class_index,
                                     x->copy);
    if (place == MOE_NO_PLACE || l->places.places[place].loading & bit)
        return;
    moe_link_drop(&l->waiting, item);
    moe_host_places_pin(&l->places, place);
    x->place = place;
    if (l->places.places[place].arrived & bit) {
        load(l, item);
        return;
    }
    x->state = CARGO_READING;
    l->places.places[place].loading |= bit;
    x->phase->storage_bytes += x->bytes;
    moe_link_add(&l->storage, item, x->bytes, x->priority, x->score);
}

static void all_go_on(struct simulate_link *l)
{
    while (l->stirred) {
        l->stirred = false;
        for (uint32_t i = moe_link_first(&l->waiting), after; i != MOE_LINK_NONE; i = after) {
            after = moe_link_after(&l->waiting, i);
            go_on(l, i);
        }
    }
}

/* What has come from storage goes on. */
static void attend(struct simulate_link *l)
{
    uint32_t item;
    while ((item = moe_link_take_arrived(&l->storage)) != MOE_LINK_NONE) {
        struct moe_host_place *place = &l->places.places[l->cargo[item].place];
        place->loading &= ~(1u << l->cargo[item].segment);
        place->arrived |= 1u << l->cargo[item].segment;
        l->stirred = true;
        load(l, item);
    }
    all_go_on(l);
}

/* Advances both links to the end of the next piece from storage, or by `most`; returns how far. */
static double step(struct simulate_link *l, double most)
{
    double seconds = fmin(moe_link_next_piece(&l->storage), most);
    moe_link_advance(&l->storage, seconds);
    moe_link_advance(&l->link, seconds);
    return seconds;
}

void simulate_link_advance(struct simulate_link *l, double seconds)
{
    if (!l->tiers) {
        moe_link_advance(&l->link, seconds);
        return;
    }
    while (seconds > 0) {
        seconds -= step(l, seconds);
        attend(l);
    }
}

/* Until something arrives in a slot, or nothing is under way. */
static void wait_for_arrival(struct simulate_link *l)
{
    if (!l->tiers) {
        moe_link_wait(&l->link);
        return;
    }
    attend(l);
    for (double next; (next = moe_link_next_piece(&l->link)) > 0; attend(l)) {
        if (isinf(next) && isinf(moe_link_next_piece(&l->storage)))
            return;
        step(l, next);
    }
}

/* ---- The channel ---- */

static int submit(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err)
{
    struct simulate_link *l = ctx;
    const struct moe_slot *x = moe_store_slot(l->store, slot);
    if (l->n_free == 0)
        return moe_fail(err, MOE_ERR_LIMIT, "more loads under way than there is room for");
    uint32_t item = l->free_items[--l->n_free];
    uint64_t bytes = moe_inventory_load_bytes(l->inventory, x->key, x->variant, segment);
    l->cargo[item] = (struct simulate_cargo){
        .slot = slot,
        .segment = segment,
        .phase = l->phase,
        .bytes = bytes,
        .priority = priority,
        .score = score,
        .copy = moe_expert_copy(l->inventory->n_variants, x->key, x->variant),
    };
    l->phase->bytes += bytes;
    *handle = item;
    if (!l->tiers) {
        load(l, item);
        return MOE_OK;
    }
    if (segment == 0) {
        uint32_t place = moe_host_places_find(&l->places, l->cargo[item].copy);
        const struct moe_size_class *c = &l->inventory->classes[x->class_index];
        bool hit =
            place != MOE_NO_PLACE && l->places.places[place].arrived == (1u << c->n_segments) - 1;
        l->phase->host_hits += hit;
        l->phase->disk_loads += !hit;
    }
    l->cargo[item].state = CARGO_WAITING;
    moe_link_add(&l->waiting, item, 1, priority, score);
    l->stirred = true;
    all_go_on(l);
    return MOE_OK;
}

static void promote(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    struct simulate_cargo *x = &l->cargo[handle];
    x->priority = MOE_LOAD_DEMAND;
    x->score = 0;
    moe_link_promote(x->state == CARGO_WAITING   ? &l->waiting
                     : x->state == CARGO_READING ? &l->storage
                                                 : &l->link,
                     handle, MOE_LOAD_DEMAND, 0);
}

/* The bytes not moved yet are never moved. */
static bool cancel(void *ctx, uint32_t handle)
{
    struct simulate_link *l = ctx;
    struct simulate_cargo *x = &l->cargo[handle];
    uint64_t moved = x->state == CARGO_LOADING ? l->items[handle].started : 0;
    if (x->state == CARGO_WAITING) {
        moe_link_drop(&l->waiting, handle);
    } else if (x->state == CARGO_READING) {
        uint64_t read = l->storage_items[handle].started;
        x->phase->storage_bytes -= x->bytes - read;
        x->phase->experts.prefetch_wasted_bytes += read;
        l->places.places[x->place].loading &= ~(1u << x->segment);
        moe_link_drop(&l->storage, handle);
    } else {
        moe_link_drop(&l->link, handle);
    }
    if (l->tiers && x->state != CARGO_WAITING)
        release_place(l, handle);
    x->phase->bytes -= x->bytes - moved;
    x->phase->experts.prefetch_wasted_bytes += moved;
    l->free_items[l->n_free++] = handle;
    return true;
}

static uint32_t reap(void *ctx, bool wait, struct moe_arrival *done, uint32_t max)
{
    struct simulate_link *l = ctx;
    uint32_t n = 0, item;
    if (l->tiers)
        attend(l);
    if (wait) {
        double before = l->link.clock, worked = l->link.worked_seconds;
        wait_for_arrival(l);
        l->stalled += l->link.clock - before - (l->link.worked_seconds - worked);
    }
    while (n < max && (item = moe_link_take_arrived(&l->link)) != MOE_LINK_NONE) {
        done[n++] = (struct moe_arrival){l->cargo[item].slot, l->cargo[item].segment, MOE_OK};
        l->free_items[l->n_free++] = item;
        if (l->tiers) {
            moe_host_places_copied(&l->places, l->cargo[item].place);
            release_place(l, item);
        }
    }
    if (l->tiers)
        all_go_on(l);
    return n;
}

/* Nothing fails on a modelled link. */
static int failure(void *ctx, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_IO, "a modelled load failed");
}

struct moe_channel simulate_link_channel(struct simulate_link *l)
{
    return (struct moe_channel){l, submit, promote, cancel, reap, NULL, failure};
}
