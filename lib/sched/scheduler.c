/*
 * The scheduler: slots and the loads that fill them; predictions; opening and the cache's first
 * contents; passes; what becomes of the experts that a router chose.
 */
#include "sched/scheduler.h"

#include <stdlib.h>
#include <string.h>

#include "base/float16.h"
#include "base/mem.h"
#include "base/rank.h"
#include "profile/trace.h"
#include "sched/placement.h"
#include "sched/select.h"
#include "sched/trial.h"

/* ---- State ---- */

/* The loads that fill one slot. */
struct slot_loads {
    uint32_t n_segments;
    uint32_t arrived;                        /* bit per segment */
    uint32_t in_flight;                      /* bit per segment */
    uint32_t handles[MOE_PACK_MAX_SEGMENTS]; /* of segments in flight */
    bool failed;
};

/* An expert worth prefetching, in its turn. */
struct candidate {
    uint32_t layer; /* that wants it */
    uint32_t key, variant;
    float score;
};

enum predicted_as { NOT_PREDICTED = 0, PREDICTED, PREDICTED_UNPOPULAR };

struct moe_scheduler {
    const struct moe_inventory *inventory;
    uint32_t n_layers, n_encoder, n_experts, top_k; /* the inventory's */
    struct moe_strategy strategy;
    /* By key, variants: the best there is, the high one to be used, and the low one (the same as
     * the high one where there is none). */
    uint32_t *best, *high, *low;
    struct moe_usage usage;
    struct moe_store *store;
    struct moe_channel channel;
    uint32_t *contents; /* [n_contents] of the cache at the start */
    uint32_t n_contents;
    struct moe_counts *counts, before;
    struct moe_store_counts seen; /* the store's, as last added to counts */
    bool prefill;
    bool source; /* the pass at work is the encoder's */

    struct moe_loan loan;
    uint32_t loan_rows, loan_blocks; /* that borrow now */
    uint64_t lent_bytes;             /* of slots, now */

    struct slot_loads *loads;         /* [n_slots] */
    uint32_t n_requests, n_in_flight; /* segments */
    uint8_t *given_up; /* [n_slots] failed or cancelled, and still held or under way */

    uint32_t layer;            /* of the request */
    struct moe_entry *entries; /* [n_experts] */
    uint32_t *order;           /* [n_experts] */
    uint32_t n, n_open;        /* entries; of these, not done */

    uint8_t *predicted;      /* [layer][expert] enum predicted_as */
    bool *is_predicted;      /* [layer] */
    uint8_t *guarded;        /* [layer] some of its experts are protected */
    struct candidate *queue; /* [max(2, depth) * n_experts] of the nearest layer first */
    uint32_t n_queue, at_queue;
    uint32_t
        streaming; /* layer whose experts were queued last, to be loaded whole; UINT32_MAX: none */
    /* What layers with static routing will want in this pass, in the order of the layers. */
    struct candidate *known; /* [their number * n_experts] */
    uint32_t n_known, at_known;
    bool *is_known;       /* [layer] it is in the list */
    uint64_t unused;      /* staged experts that left unused so far: some may be wanted again */
    uint32_t *prefetched; /* [n_slots] whose prefetches have begun and were not seen to end */
    uint32_t n_prefetched;
    struct moe_trial trial;
    struct moe_fading layer_seconds, load_seconds; /* for n = T / t_expert (Fate 4.3) */
    double load_bytes;                             /* of a load at the high variant, in the mean */

    /* Of a prompt under way, for DAOP's algorithm 1. */
    bool *in_prompt;      /* [layer] it has been through this one */
    uint32_t *swap_rows;  /* [layer][expert] its rows so far */
    uint8_t *swap_before; /* [layer][expert] which were in the cache before it */

    uint8_t *marks;         /* [2 * n_experts] scratch */
    uint32_t *numbers;      /* [2 * n_experts] scratch */
    float *raised;          /* [n_experts] scratch */
    struct moe_swap *swaps; /* [n_experts / 2 + 1] scratch */
};

static uint32_t key_of(const struct moe_scheduler *s, uint32_t layer, uint32_t expert)
{
    return moe_inventory_key(s->inventory, layer, expert);
}

/* Its place in tables by layer, in which each visit has its own. */
static uint32_t place_of(const struct moe_scheduler *s, uint32_t layer, uint32_t expert)
{
    return layer * s->n_experts + expert;
}

/* Whether this process has the expert: others may be another's. */
static bool is_here(const struct moe_scheduler *s, uint32_t key)
{
    return s->best[key] != UINT32_MAX;
}

/* Loads that a call begins start together when it ends. */
static void hold_loads(const struct moe_scheduler *s)
{
    if (s->channel.hold)
        s->channel.hold(s->channel.ctx, true);
}

static int let_go(const struct moe_scheduler *s, int status)
{
    if (s->channel.hold)
        s->channel.hold(s->channel.ctx, false);
    return status;
}

/*
 * Slots as the scheduler sees them, and the loads that fill them, segment by segment.
 */

enum { ARRIVALS = 32 /* taken at once */ };

/* ---- Slots ---- */

/* Like moe_store_find, but without what was given up and is still under way. */
static uint32_t find_slot(const struct moe_scheduler *s, uint32_t key, uint32_t variant)
{
    if (!is_here(s, key))
        return MOE_NO_SLOT;
    uint32_t slot = moe_store_find(s->store, key, variant);
    while (slot != MOE_NO_SLOT && s->given_up[slot]) {
        uint32_t better = moe_store_slot(s->store, slot)->variant;
        slot = better ? moe_store_find(s->store, key, better - 1) : MOE_NO_SLOT;
    }
    return slot;
}

void moe_scheduler_present(const struct moe_scheduler *s, uint32_t layer, uint8_t *present)
{
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t key = key_of(s, layer, e);
        uint32_t slot = find_slot(s, key, s->low[key]);
        present[e] = slot != MOE_NO_SLOT && moe_store_slot(s->store, slot)->state == MOE_SLOT_READY;
    }
}

void moe_scheduler_cached(const struct moe_scheduler *s, uint32_t layer, uint8_t *cached)
{
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t key = key_of(s, layer, e);
        uint32_t slot = find_slot(s, key, s->high[key]);
        cached[e] = slot != MOE_NO_SLOT && moe_store_slot(s->store, slot)->use == MOE_SLOT_CACHED;
    }
}

/* Evictions and wasted prefetches since the last look go to the tokens under way. */
static void account(struct moe_scheduler *s)
{
    const struct moe_store_counts *now = moe_store_counts(s->store);
    s->counts->evictions += now->evictions - s->seen.evictions;
    s->counts->prefetches_used += now->staged_used - s->seen.staged_used;
    s->counts->prefetch_wasted_bytes += now->staged_unused_bytes - s->seen.staged_unused_bytes;
    s->seen = *now;
}

/* ---- Loads ---- */

/* Whether one more load can be taken now. */
static bool has_room(const struct moe_scheduler *s)
{
    return s->n_in_flight + MOE_PACK_MAX_SEGMENTS <= s->n_requests;
}

/* Submits every segment of the expert that the slot is for, in order. */
static int submit_segments(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                           float score, struct moe_err *err)
{
    struct slot_loads *l = &s->loads[slot];
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    *l = (struct slot_loads){.n_segments = s->inventory->classes[x->class_index].n_segments};
    for (uint32_t i = 0; i < l->n_segments; i++) {
        MOE_TRY(s->channel.submit(s->channel.ctx, slot, i, priority, score, &l->handles[i], err));
        l->in_flight |= 1u << i;
        s->n_in_flight++;
    }
    return MOE_OK;
}

/* Gives the loads of a slot up. True: nothing of them is under way, the slot is forgotten; false:
 * they will be reported as failed. */
static bool give_up_slot(struct moe_scheduler *s, uint32_t slot)
{
    struct slot_loads *l = &s->loads[slot];
    l->failed = true;
    for (uint32_t i = 0; i < l->n_segments; i++) {
        if ((l->in_flight & 1u << i) && s->channel.cancel(s->channel.ctx, l->handles[i])) {
            l->in_flight &= ~(1u << i);
            s->n_in_flight--;
        }
    }
    s->given_up[slot] = l->in_flight != 0;
    if (l->in_flight == 0)
        moe_store_failed(s->store, slot);
    return l->in_flight == 0;
}

/* Begins to fill a slot; one that nothing holds is free again after a failure. */
static int load_slot(struct moe_scheduler *s, uint32_t slot, enum moe_load_priority priority,
                     float score, struct moe_err *err)
{
    s->given_up[slot] = 0;
    s->counts->loads++;
    int status = submit_segments(s, slot, priority, score, err);
    if (status == MOE_OK)
        return MOE_OK;
    s->loads[slot].failed = true;
    s->given_up[slot] = 1;
    if (moe_store_slot(s->store, slot)->pins == 0)
        give_up_slot(s, slot);
    return status;
}

/* A prefetch under way has become a demand. */
static void promote_slot(struct moe_scheduler *s, uint32_t slot)
{
    for (uint32_t i = 0; i < s->loads[slot].n_segments; i++)
        if (s->loads[slot].in_flight & 1u << i)
            s->channel.promote(s->channel.ctx, s->loads[slot].handles[i]);
}

/* All loads of a slot have ended. A failed slot that an entry holds stays its own until the entry
 * is released. */
static void arrived(struct moe_scheduler *s, uint32_t slot)
{
    if (s->channel.loaded)
        s->channel.loaded(s->channel.ctx, slot);
    if (!s->loads[slot].failed && !s->given_up[slot]) {
        moe_store_ready(s->store, slot);
    } else if (moe_store_slot(s->store, slot)->pins == 0) {
        moe_store_failed(s->store, slot);
        s->given_up[slot] = 0;
    } else {
        s->given_up[slot] = 1;
    }
}

/* Takes in what has ended; wait: sleeps until something has, MOE_ERR_IO when nothing is under way.
 */
static int reap_loads(struct moe_scheduler *s, bool wait, struct moe_err *err)
{
    struct moe_arrival done[ARRIVALS];
    uint32_t n = s->channel.reap(s->channel.ctx, wait, done, ARRIVALS);
    for (uint32_t i = 0; i < n; i++) {
        struct slot_loads *l = &s->loads[done[i].slot];
        l->in_flight &= ~(1u << done[i].segment);
        s->n_in_flight--;
        if (done[i].status == MOE_OK)
            l->arrived |= 1u << done[i].segment;
        else
            l->failed = true;
        if (l->in_flight == 0)
            arrived(s, done[i].slot);
        else if (done[i].status != MOE_OK)
            s->given_up[done[i].slot] = 1; /* nothing should wait for the rest */
    }
    if (wait && n == 0)
        return moe_fail(err, MOE_ERR_IO, "an entry waits for an expert that is not being loaded");
    return MOE_OK;
}

/*
 * Predictions: the predicted set of each layer, and the prefetches that follow from it.
 */

/* The share of a token's time from which on the link may be what it waits for: below, loads that
 * are never used cost nothing. */
static const double SATURATED = 0.9;
/* The share of a layer's time that a demand may wait for pieces of prefetches before it. */
static const double MOST_WAIT = 0.5;

/* Whether what is said of layers to come is loaded before they run. */
static bool prefetches(const struct moe_scheduler *s)
{
    return s->strategy.predict != MOE_PREDICT_BY_NOTHING && !s->strategy.precalculate;
}

/* How many of the next `left` layers are worth predicting now. */
static uint32_t wanted_of(const struct moe_scheduler *s, uint32_t left)
{
    if (!prefetches(s))
        return 0;
    if (s->strategy.prefetch.measured && !s->prefill && !moe_trial_on(&s->trial))
        return 0;
    return s->strategy.depth < left ? s->strategy.depth : left;
}

uint32_t moe_scheduler_wants_prediction(const struct moe_scheduler *s, uint32_t layer)
{
    /* What an encoder chooses says nothing of the decoder, which begins with another text. */
    uint32_t end = layer < s->n_encoder ? s->n_encoder : s->n_layers, left = end - 1 - layer;
    left += s->strategy.predict == MOE_PREDICT_BY_ATTENTION; /* its own router is to come, too */
    return wanted_of(s, left);
}

uint32_t moe_scheduler_wants_first(const struct moe_scheduler *s, uint32_t first)
{
    uint32_t end = first < s->n_encoder ? s->n_encoder : s->n_layers;
    return moe_strategy_predicts_first(&s->strategy) ? wanted_of(s, end - first) : 0;
}

/* Marks the entries of the request whose experts prompts take at low precision: s->marks. */
static void mark_unpopular(struct moe_scheduler *s)
{
    memset(s->marks, 0, s->n);
    if (!s->prefill || s->strategy.prefill != MOE_PREFILL_HYBRID)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        s->numbers[i] = s->entries[i].need.n_rows;
    if (!s->is_predicted[s->layer])
        moe_least_popular(s->numbers, s->n, s->strategy.low_share, s->marks);
    for (uint32_t i = 0; s->is_predicted[s->layer] && i < s->n; i++)
        s->marks[i] =
            s->predicted[place_of(s, s->layer, s->entries[i].need.expert)] == PREDICTED_UNPOPULAR;
}

/* The variant that an expert to come deserves; UINT32_MAX: none. */
static uint32_t worth(const struct moe_scheduler *s, uint32_t key, float unimportance,
                      bool unpopular)
{
    enum moe_importance importance = MOE_IMPORTANT;
    bool by_score = s->strategy.miss_precision == MOE_MISS_BY_SCORE;
    if (by_score || s->strategy.skip_below > 0)
        importance =
            moe_importance_of(unimportance, s->strategy.high_up_to, 1 - s->strategy.skip_below);
    if (importance == MOE_UNIMPORTANT && s->strategy.skip_below > 0)
        return UINT32_MAX;
    bool low = unpopular || (by_score && importance != MOE_IMPORTANT);
    return low ? s->low[key] : s->high[key]; /* UINT32_MAX: another process has it */
}

static void unguard(struct moe_scheduler *s, uint32_t layer)
{
    if (!s->guarded[layer])
        return;
    for (uint32_t e = 0; e < s->n_experts; e++)
        moe_store_protect(s->store, key_of(s, layer, e), false);
    s->guarded[layer] = 0;
}

/* The predicted set of a layer. */
static void remember(struct moe_scheduler *s, const struct moe_prediction *p,
                     const uint32_t *experts, uint32_t n)
{
    uint8_t *set = s->predicted + place_of(s, p->layer, 0);
    memset(set, NOT_PREDICTED, s->n_experts);
    s->is_predicted[p->layer] = true;
    bool hybrid = p->n_rows > 1 && s->strategy.prefill == MOE_PREFILL_HYBRID;
    uint32_t n_unpopular = hybrid ? (uint32_t)(s->strategy.low_share * n) : 0;
    for (uint32_t i = 0; i < n; i++)
        set[experts[i]] = i < n - n_unpopular ? PREDICTED : PREDICTED_UNPOPULAR;
}

/* How many of the ranked candidates are the predicted set. Where no limit says which experts a
 * prediction names, every expert is a candidate; the set then is as large as the router's choice
 * will be, or, for a prompt, holds the experts that some row chooses. */
static uint32_t n_named(const struct moe_scheduler *s, const struct moe_prediction *p,
                        const uint32_t *experts, uint32_t n)
{
    if (s->strategy.prefetch.percentile > 0 || s->strategy.prefetch.top_k)
        return n;
    if (p->n_rows == 1)
        return n < s->top_k ? n : s->top_k;
    while (n > 0 && p->unimportance[experts[n - 1]] > 1)
        n--;
    return n;
}

/* Loads that fit into the time until the next router (Fate 4.3). */
static uint32_t paid_loads(const struct moe_scheduler *s)
{
    return moe_slack_loads(s->layer_seconds.value, s->load_seconds.value,
                           s->strategy.prefetch.slack_least);
}

/* A token's prediction, its scores raised by what the cache's policy expects: of the experts that a
 * trace would keep, as it would keep them, so that a replay ranks as the run did. */
static struct moe_prediction expect_too(struct moe_scheduler *s, const struct moe_prediction *p)
{
    struct moe_follower *f = s->usage.follower;
    struct moe_prediction raised = *p;
    if (p->n_rows != 1 || !f || !f->expect)
        return raised;
    uint32_t keep = moe_trace_default_keep(s->n_experts, s->top_k), n = 0;
    memset(s->raised, 0, s->n_experts * sizeof *s->raised);
    for (uint32_t e = 0; e < s->n_experts; e++)
        if (p->scores[e] != 0)
            s->numbers[n++] = e;
    if (n > keep) { /* else all are kept, as in a replay */
        moe_best(p->scores, s->n_experts, keep, s->numbers);
        n = keep;
    }
    for (uint32_t i = 0; i < n; i++)
        s->raised[s->numbers[i]] = moe_round_f16(p->scores[s->numbers[i]]);
    f->expect(f, p->layer, s->raised);
    raised.scores = s->raised;
    return raised;
}

/* Remembers the predicted set of a layer and queues what is missing of it behind what is queued;
 * returns how many. */
static uint32_t predict_layer(struct moe_scheduler *s, const struct moe_prediction *prediction)
{
    const struct moe_prediction raised = expect_too(s, prediction), *p = &raised;
    uint32_t *experts = s->numbers, n_missing = 0;
    uint32_t n = moe_select(&s->strategy.prefetch, p, s->n_experts, s->top_k, experts);
    uint32_t n_set = n_named(s, p, experts, n);
    uint32_t most = s->strategy.prefetch.count && p->n_rows == 1 ? s->strategy.prefetch.count : n;
    if (s->strategy.prefetch.slack && p->n_rows == 1) {
        uint32_t paid = paid_loads(s);
        most = paid < most ? paid : most;
    }
    if (s->strategy.protect) /* else what is protected is not for predictions to say */
        unguard(s, p->layer);
    remember(s, p, experts, n_set);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = key_of(s, p->layer, experts[i]);
        bool unpopular = s->predicted[place_of(s, p->layer, experts[i])] == PREDICTED_UNPOPULAR;
        uint32_t variant = worth(s, key, p->unimportance[experts[i]], unpopular);
        if (s->strategy.protect && i < n_set && variant != UINT32_MAX) {
            moe_store_protect(s->store, key, true);
            s->guarded[p->layer] = 1;
        }
        if (variant == UINT32_MAX || moe_store_find(s->store, key, variant) != MOE_NO_SLOT)
            continue;
        if (n_missing++ < most)
            s->queue[s->n_queue++] =
                (struct candidate){p->layer, key, variant, moe_round_f16(p->scores[experts[i]])};
    }
    return n_missing;
}

/* Prefetches under way; *predicted: those that follow from predictions. */
static uint32_t n_under_way(struct moe_scheduler *s, uint32_t *predicted)
{
    uint32_t kept = 0, n_predicted = 0;
    for (uint32_t i = 0; i < s->n_prefetched; i++) {
        const struct moe_slot *x = moe_store_slot(s->store, s->prefetched[i]);
        if (x->state != MOE_SLOT_LOADING || x->use != MOE_SLOT_STAGED)
            continue;
        s->prefetched[kept++] = s->prefetched[i];
        n_predicted += !s->is_known[x->key / s->n_experts];
    }
    if (predicted)
        *predicted = n_predicted;
    return s->n_prefetched = kept;
}

/* Whether slots of the cache may stage what is prefetched: a prompt's own loads come first. How
 * many do needs no rule of its own: limits by what a token visits, and by what the link has time
 * for, were simulated, and gained nothing (man/moe-strategies.7, --staging). */
static bool may_borrow(const struct moe_scheduler *s)
{
    for (uint32_t i = 0; s->prefill && i < s->n; i++)
        if (s->entries[i].state == MOE_ENTRY_WANTS_SLOT)
            return false;
    return true;
}

/* Whether a layer that is streamed has the expert among those that its router chose: these load by
 * themselves. */
static bool is_chosen(const struct moe_scheduler *s, const struct candidate *c)
{
    bool chosen = false;
    for (uint32_t i = 0; s->strategy.stream && i < s->n; i++)
        chosen |= key_of(s, s->layer, s->entries[i].need.expert) == c->key;
    return chosen;
}

/* The next prefetch, nearest layer first: its place in the queue or in the list of known experts,
 * with *candidate there; NULL: none, or not now. */
static uint32_t *next_prefetch(struct moe_scheduler *s, const struct candidate **candidate)
{
    uint32_t n_predicted;
    n_under_way(s, &n_predicted);
    bool waits = s->strategy.prefetch.until_router && n_predicted > 0;
    const struct candidate *queued =
        s->at_queue < s->n_queue && !waits ? &s->queue[s->at_queue] : NULL;
    const struct candidate *known = s->at_known < s->n_known ? &s->known[s->at_known] : NULL;
    bool takes_known = known && (!queued || known->layer < queued->layer);
    *candidate = takes_known ? known : queued;
    return takes_known ? &s->at_known : queued ? &s->at_queue : NULL;
}

/* Begins queued prefetches, as far as there is room. */
static int feed_prefetches(struct moe_scheduler *s, struct moe_err *err)
{
    if (s->at_queue == s->n_queue && s->at_known == s->n_known)
        return MOE_OK;
    const bool lend = may_borrow(s);
    const struct candidate *c;
    uint32_t *at;
    while (has_room(s) && (at = next_prefetch(s, &c)) != NULL) {
        bool known = at == &s->at_known;
        if (is_chosen(s, c) || moe_store_find(s->store, c->key, c->variant) != MOE_NO_SLOT) {
            ++*at;
            continue;
        }
        /* What is known reaches far ahead: it leaves room for what nearer layers miss. */
        bool own = !known || moe_store_has_spare(s->store, c->key, c->variant, s->top_k);
        if (!own && !lend)
            return MOE_OK;
        uint32_t slot = moe_store_stage(s->store, c->key, c->variant, own, lend);
        if (slot == MOE_NO_SLOT)
            return MOE_OK;
        ++*at;
        s->prefetched[s->n_prefetched++] = slot;
        s->counts->prefetches++;
        s->counts->known_prefetches += known;
        MOE_TRY(load_slot(s, slot, MOE_LOAD_PREFETCH, c->score, err));
    }
    return MOE_OK;
}

/* ---- Known experts ---- */

/* The nearer a layer, the more urgent, whatever is predicted of layers behind it. */
static float urgency(const struct moe_scheduler *s, uint32_t layer)
{
    uint32_t first = s->n_known ? s->known[0].layer : layer;
    return 1 / (float)(layer - first + 1);
}

static int prefetch_known(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                          uint32_t n, struct moe_err *err)
{
    bool hybrid = s->prefill && s->strategy.prefill == MOE_PREFILL_HYBRID;
    if (!prefetches(s) || s->strategy.stream)
        return MOE_OK;
    memset(s->marks, 0, n);
    for (uint32_t i = 0; i < n; i++)
        s->numbers[i] = needs[i].n_rows;
    if (hybrid)
        moe_least_popular(s->numbers, n, s->strategy.low_share, s->marks);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t key = key_of(s, layer, needs[i].expert);
        uint32_t variant = worth(s, key, needs[i].unimportance, s->marks[i]);
        if (variant == UINT32_MAX)
            continue;
        moe_store_protect(s->store, key, true);
        s->known[s->n_known] = (struct candidate){layer, key, variant, urgency(s, layer)};
        s->n_known++;
    }
    s->guarded[layer] = 1;
    s->is_known[layer] = true;
    return feed_prefetches(s, err);
}

int moe_scheduler_known(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                        uint32_t n, struct moe_err *err)
{
    hold_loads(s);
    return let_go(s, prefetch_known(s, layer, needs, n, err));
}

/* The pass has come to this layer: known experts of later layers are prefetched from now on. */
static void skip_known(struct moe_scheduler *s, uint32_t layer)
{
    uint64_t unused = moe_store_counts(s->store)->staged_unused;
    uint32_t at = 0;
    while (at < s->n_known && s->known[at].layer <= layer)
        at++;
    if (s->at_known < at || unused != s->unused)
        s->at_known = at;
    s->unused = unused;
}

/* Forgets what was known of a pass. */
static void forget_known(struct moe_scheduler *s)
{
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        if (s->is_known[layer])
            unguard(s, layer);
    memset(s->is_known, 0, s->n_layers * sizeof *s->is_known);
    s->n_known = s->at_known = 0;
}

/* ---- What tokens used last ---- */

void moe_scheduler_expected(struct moe_scheduler *s, uint32_t layer, const uint8_t *marks)
{
    if (!s->strategy.protect_tokens)
        return;
    for (uint32_t e = 0; e < s->n_experts; e++)
        if (marks[e])
            moe_store_protect(s->store, key_of(s, layer, e), true);
    s->guarded[layer] = 1;
}

/* ... and what was expected of it. */
static void forget_expected(struct moe_scheduler *s)
{
    for (uint32_t layer = 0; s->strategy.protect_tokens && layer < s->n_layers; layer++)
        unguard(s, layer);
}

/* ---- Whole layers ---- */

/* Where layers are loaded whole: queues all experts of a layer behind what is queued, once in a
 * pass. */
static void stream_layer(struct moe_scheduler *s, uint32_t layer)
{
    if (s->streaming == layer)
        return;
    s->streaming = layer;
    s->n_queue -= s->at_queue;
    memmove(s->queue, s->queue + s->at_queue, s->n_queue * sizeof *s->queue);
    s->at_queue = 0;
    if (s->n_queue > s->n_experts) /* what no slot was free for */
        s->n_queue = s->n_experts;
    for (uint32_t e = 0; e < s->n_experts; e++) {
        uint32_t key = key_of(s, layer, e);
        if (is_here(s, key))
            s->queue[s->n_queue++] = (struct candidate){layer, key, s->high[key], 1};
    }
}

/* Waits until the queued experts of such a layer have come through, as far as slots are free of
 * what is used. */
static int end_stream(struct moe_scheduler *s, uint32_t layer, struct moe_err *err)
{
    for (;;) {
        bool queued = s->at_queue < s->n_queue && s->queue[s->at_queue].layer <= layer;
        if (!queued && n_under_way(s, NULL) == 0)
            return MOE_OK;
        uint32_t at = s->at_queue;
        MOE_TRY(feed_prefetches(s, err));
        bool stuck = s->at_queue == at;
        if (stuck && s->n_in_flight == 0)
            return MOE_OK;
        if (stuck)
            MOE_TRY(reap_loads(s, true, err));
    }
}

/* Whether the expert has been predicted for a later visit of its layer. */
static bool is_wanted_later(const struct moe_scheduler *s, uint32_t key)
{
    const uint32_t owner = key / s->n_experts, expert = key % s->n_experts;
    const struct moe_loop *loop = &s->inventory->loop;
    uint32_t visit = s->layer;
    bool wanted = false;
    while ((visit = moe_loop_next(loop, owner, visit + 1)) > s->layer && !wanted)
        wanted = s->is_predicted[visit] && s->predicted[place_of(s, visit, expert)];
    return wanted;
}

/* Gives up prefetches for the layer whose router has chosen, those that it did not choose; its
 * predictions are forgotten. */
static void drop_stale(struct moe_scheduler *s)
{
    uint32_t kept = 0;
    if (s->strategy.stream)
        return; /* nothing is given up */
    for (uint32_t i = 0; i < s->n_prefetched; i++) {
        uint32_t slot = s->prefetched[i];
        const struct moe_slot *x = moe_store_slot(s->store, slot);
        if (x->state != MOE_SLOT_LOADING || x->use != MOE_SLOT_STAGED || s->given_up[slot])
            continue;
        if (x->key / s->n_experts != moe_loop_owner(&s->inventory->loop, s->layer) ||
            is_wanted_later(s, x->key)) {
            s->prefetched[kept++] = slot;
            continue;
        }
        give_up_slot(s, slot);
    }
    s->n_prefetched = kept;
    while (s->at_queue < s->n_queue && s->queue[s->at_queue].layer <= s->layer)
        s->at_queue++;
    s->is_predicted[s->layer] = false;
    unguard(s, s->layer);
}

/* ---- Opening ---- */

static const uint64_t *placement_of(const struct moe_scheduler_options *o)
{
    return o->placement ? o->placement : o->frequency;
}

/* The variants of each expert that are used. */
static int list_variants(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                         struct moe_err *err)
{
    const struct moe_inventory *inv = s->inventory;
    uint64_t n_keys = (uint64_t)inv->n_layers * inv->n_experts;
    s->best = moe_alloc(n_keys, sizeof *s->best, err);
    s->high = moe_alloc(n_keys, sizeof *s->high, err);
    s->low = moe_alloc(n_keys, sizeof *s->low, err);
    if (!s->best || !s->high || !s->low)
        return MOE_ERR_MEMORY;
    for (uint32_t key = 0; key < n_keys; key++) {
        s->best[key] = moe_inventory_usable(inv, key, 0);
        s->high[key] = moe_inventory_usable(inv, key, o->high);
        s->low[key] = moe_inventory_usable(inv, key, o->low);
        if (!s->strategy.needs_low || s->low[key] < s->high[key])
            s->low[key] = s->high[key];
    }
    return MOE_OK;
}

/* n_slots in the proportions of `planned`, which are more; returns whether they are. */
static bool share_planned(uint32_t n_slots, const uint32_t *planned, uint32_t n_layers,
                          uint32_t *per_layer)
{
    uint64_t all = 0, upto = 0;
    for (uint32_t l = 0; l < n_layers; l++)
        all += planned[l];
    for (uint32_t l = 0; l < n_layers && all > n_slots; l++) {
        uint64_t before = upto * n_slots / all;
        upto += planned[l];
        per_layer[l] = (uint32_t)(upto * n_slots / all - before);
    }
    return all > n_slots;
}

/* Divides each pool's slots among the layers where the strategy, or else the plan, says so.
 * per_layer: [classes][layers], for the pools to point into. */
static void share_layers(const struct moe_scheduler *s, const uint64_t *frequency,
                         struct moe_pools *pools, uint32_t *per_layer)
{
    for (uint32_t c = 0; c < pools->n_classes; c++) {
        struct moe_pool_params *pool = &pools->pools[c];
        uint32_t *share = per_layer + (uint64_t)c * s->n_layers;
        if (pool->per_layer) {
            if (share_planned(pool->n_cache, pool->per_layer, s->n_layers, share))
                pool->per_layer = share;
        } else if (s->strategy.alloc != MOE_ALLOC_GLOBAL) {
            moe_allocate_owners(&s->strategy, s->inventory, pool->n_cache, frequency, share);
            pool->per_layer = share;
        }
    }
}

static int open_store(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                      struct moe_err *err)
{
    uint64_t class_bytes[MOE_MAX_CLASSES];
    struct moe_pools pools = *o->pools;
    uint32_t *per_layer =
        moe_alloc((uint64_t)pools.n_classes * s->n_layers, sizeof *per_layer, err);
    if (!per_layer)
        return MOE_ERR_MEMORY;
    share_layers(s, placement_of(o), &pools, per_layer);
    for (uint32_t c = 0; c < pools.n_classes; c++)
        class_bytes[c] = s->inventory->classes[c].slot_bytes;
    const struct moe_store_params params = {
        .n_layers = s->n_layers,
        .n_experts = s->n_experts,
        .n_variants = s->inventory->n_variants,
        .loop = s->inventory->loop,
        .n_classes = pools.n_classes,
        .pools = pools.pools,
        .class_of = s->inventory->class_of,
        .class_bytes = class_bytes,
        .policy = s->strategy.cache ? s->strategy.cache : &moe_policy_lru,
        .usage = &s->usage,
        .weights = moe_strategy_weights(&s->strategy),
        .half_life = s->strategy.half_life,
        .seed = o->seed,
    };
    int status = moe_store_open(&s->store, &params, err);
    free(per_layer);
    return status;
}

static int open_tables(struct moe_scheduler *s, struct moe_err *err)
{
    uint64_t n_keys = (uint64_t)s->n_layers * s->n_experts;
    uint32_t n_slots = moe_store_n_slots(s->store);
    s->entries = moe_alloc(s->n_experts, sizeof *s->entries, err);
    s->order = moe_alloc(s->n_experts, sizeof *s->order, err);
    s->loads = moe_alloc(n_slots, sizeof *s->loads, err);
    s->given_up = moe_alloc(n_slots, 1, err);
    s->predicted = moe_alloc(n_keys, 1, err);
    s->is_predicted = moe_alloc(s->n_layers, sizeof *s->is_predicted, err);
    s->guarded = moe_alloc(s->n_layers, 1, err);
    uint64_t n_queued = s->strategy.depth > 2 ? s->strategy.depth : 2;
    s->queue = moe_alloc(n_queued * s->n_experts, sizeof *s->queue, err);
    uint64_t n_static = 0;
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        n_static += s->inventory->is_static[layer];
    s->known = moe_alloc(n_static * s->n_experts, sizeof *s->known, err);
    s->is_known = moe_alloc(s->n_layers, sizeof *s->is_known, err);
    s->prefetched = moe_alloc(n_slots, sizeof *s->prefetched, err);
    s->in_prompt = moe_alloc(s->n_layers, sizeof *s->in_prompt, err);
    s->swap_rows = moe_alloc(n_keys, sizeof *s->swap_rows, err);
    s->swap_before = moe_alloc(n_keys, 1, err);
    s->marks = moe_alloc(2 * (uint64_t)s->n_experts, 1, err);
    s->numbers = moe_alloc(2 * (uint64_t)s->n_experts, sizeof *s->numbers, err);
    s->raised = moe_alloc(s->n_experts, sizeof *s->raised, err);
    s->swaps = moe_alloc(s->n_experts / 2 + 1, sizeof *s->swaps, err);
    bool all = s->entries && s->order && s->loads && s->given_up && s->predicted &&
               s->is_predicted && s->guarded && s->queue && s->known && s->is_known &&
               s->prefetched && s->in_prompt && s->swap_rows && s->swap_before && s->marks &&
               s->numbers && s->raised && s->swaps;
    return all ? MOE_OK : MOE_ERR_MEMORY;
}

/* What is loaded first. Without a plan every expert is offered in its turn: only the store knows
 * which pool, and which layer's share of it, has room. */
static int list_contents(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                         struct moe_err *err)
{
    uint32_t n_keys = s->n_layers * s->n_experts;
    s->contents = moe_alloc(n_keys, sizeof *s->contents, err);
    uint32_t *order = moe_alloc(n_keys, sizeof *order, err);
    int status;
    MOE_STEP(s->contents && order ? MOE_OK : MOE_ERR_MEMORY);
    if (o->contents) {
        s->n_contents = o->n_contents < n_keys ? o->n_contents : n_keys;
        memcpy(s->contents, o->contents, s->n_contents * sizeof *s->contents);
    } else if (s->strategy.init != MOE_INIT_EMPTY) {
        s->n_contents = moe_initial(s->strategy.init, NULL, n_keys, s->n_layers, s->n_encoder,
                                    s->n_experts, placement_of(o), s->contents, order);
    }
out:
    free(order);
    return status;
}

static int open_parts(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                      struct moe_err *err)
{
    MOE_TRY(moe_usage_init(&s->usage, s->n_layers, s->n_experts, s->top_k, err));
    s->usage.n_encoder = s->n_encoder;
    s->usage.loop = s->inventory->loop;
    if (s->strategy.cache)
        MOE_TRY(moe_policy_follow(s->strategy.cache, &s->usage, o->pools->bytes, err));
    if (o->frequency)
        memcpy(s->usage.frequency, o->frequency,
               (uint64_t)s->n_layers * s->n_experts * sizeof *o->frequency);
    MOE_TRY(list_variants(s, o, err));
    MOE_TRY(open_store(s, o, err));
    MOE_TRY(open_tables(s, err));
    return list_contents(s, o, err);
}

/* The same with uses by key. */
static int open_by_key(struct moe_scheduler *s, const struct moe_scheduler_options *o,
                       struct moe_err *err)
{
    struct moe_scheduler_options by_key = *o;
    uint64_t *frequency = NULL, *placement = NULL;
    int status;
    if (o->frequency)
        MOE_STEP((frequency = moe_inventory_uses(s->inventory, o->frequency, s->n_layers, err))
                     ? MOE_OK
                     : MOE_ERR_MEMORY);
    if (o->placement)
        MOE_STEP((placement = moe_inventory_uses(s->inventory, o->placement, s->n_layers, err))
                     ? MOE_OK
                     : MOE_ERR_MEMORY);
    by_key.frequency = frequency;
    by_key.placement = placement;
    MOE_STEP(open_parts(s, &by_key, err));
out:
    free(frequency);
    free(placement);
    return status;
}

int moe_scheduler_open(struct moe_scheduler **out, const struct moe_scheduler_options *o,
                       struct moe_err *err)
{
    *out = NULL;
    struct moe_scheduler *s = moe_alloc(1, sizeof *s, err);
    if (!s)
        return MOE_ERR_MEMORY;
    s->inventory = o->inventory;
    s->n_layers = o->inventory->n_layers;
    s->n_encoder = o->inventory->n_encoder;
    s->n_experts = o->inventory->n_experts;
    s->top_k = o->inventory->top_k;
    s->strategy = *o->strategy;
    s->channel = o->channel;
    s->loan = o->pools->loan;
    s->n_requests = o->n_requests;
    s->layer_seconds.value = o->layer_seconds;
    s->load_seconds.value = o->load_seconds;
    s->load_bytes = moe_inventory_mean_load(o->inventory, o->high);
    s->counts = &s->before;
    moe_trial_init(&s->trial);
    int status = open_by_key(s, o, err);
    if (status != MOE_OK) {
        moe_scheduler_close(s);
        return status;
    }
    *out = s;
    return MOE_OK;
}

void moe_scheduler_close(struct moe_scheduler *s)
{
    if (!s)
        return;
    moe_store_close(s->store);
    moe_usage_release(&s->usage);
    free(s->best);
    free(s->high);
    free(s->low);
    free(s->contents);
    free(s->loads);
    free(s->given_up);
    free(s->entries);
    free(s->order);
    free(s->predicted);
    free(s->is_predicted);
    free(s->guarded);
    free(s->queue);
    free(s->known);
    free(s->is_known);
    free(s->prefetched);
    free(s->in_prompt);
    free(s->swap_rows);
    free(s->swap_before);
    free(s->marks);
    free(s->numbers);
    free(s->raised);
    free(s->swaps);
    free(s);
}

struct moe_store *moe_scheduler_store(struct moe_scheduler *s)
{
    return s->store;
}

uint32_t moe_scheduler_variant(const struct moe_scheduler *s, uint32_t layer, uint32_t expert)
{
    return s->high[key_of(s, layer, expert)];
}

const struct moe_usage *moe_scheduler_usage(const struct moe_scheduler *s)
{
    return &s->usage;
}

/* ---- First contents ---- */

/* Begins to load an expert into the cache, where there is room for it and it is not there yet. */
static int fill_one(struct moe_scheduler *s, uint32_t key, struct moe_err *err)
{
    uint32_t variant = s->high[key];
    if (!is_here(s, key) || !has_room(s) || find_slot(s, key, variant) != MOE_NO_SLOT)
        return MOE_OK;
    uint32_t slot = moe_store_fill(s->store, key, variant);
    return slot == MOE_NO_SLOT ? MOE_OK : load_slot(s, slot, MOE_LOAD_DEMAND, 0, err);
}

/* What of prefetches is in flight follows T and t_expert, too. */
static void limit_prefetches(const struct moe_scheduler *s)
{
    double layer = s->layer_seconds.value, load = s->load_seconds.value;
    if (s->channel.limit_prefetches && layer > 0 && load > 0)
        s->channel.limit_prefetches(s->channel.ctx, MOST_WAIT * layer / load * s->load_bytes);
}

int moe_scheduler_fill(struct moe_scheduler *s, const struct moe_progress *progress,
                       struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n_contents; i++) {
        while (!has_room(s))
            MOE_TRY(reap_loads(s, true, err));
        MOE_TRY(fill_one(s, s->contents[i], err));
        moe_progress_report(progress, "filling the cache", i, s->n_contents);
        if (moe_progress_stopped(progress))
            return moe_fail(err, MOE_ERR_INTERRUPTED, "stopped");
    }
    while (s->n_in_flight)
        MOE_TRY(reap_loads(s, true, err));
    limit_prefetches(s);
    return MOE_OK;
}

/* ---- Passes ---- */

static void finish_entry(struct moe_scheduler *s, struct moe_entry *e)
{
    uint32_t slot = e->slot;
    bool held = e->state == MOE_ENTRY_HAS_SLOT;
    e->state = MOE_ENTRY_DONE;
    s->n_open--;
    if (!held)
        return;
    moe_store_release(s->store, slot);
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    if (s->given_up[slot] && x->pins == 0 && x->state == MOE_SLOT_LOADING)
        give_up_slot(s, slot);
}

/* Releases what an earlier request (one that ended in an error) still holds. */
static void drop_request(struct moe_scheduler *s)
{
    for (uint32_t i = 0; s->n_open > 0 && i < s->n; i++)
        if (s->entries[i].state != MOE_ENTRY_DONE)
            finish_entry(s, &s->entries[i]);
}

void moe_scheduler_begin_sequence(struct moe_scheduler *s)
{
    if (!s->strategy.keep_records)
        moe_usage_begin_sequence(&s->usage);
    if (s->usage.follower)
        s->usage.follower->begin_sequence(s->usage.follower);
    memset(s->in_prompt, 0, s->n_layers * sizeof *s->in_prompt);
}

void moe_scheduler_end_sequence(struct moe_scheduler *s, uint32_t n)
{
    if (!s->strategy.keep_records)
        moe_usage_end_sequence(&s->usage, n);
}

static uint64_t slot_bytes(const struct moe_scheduler *s, uint32_t slot)
{
    return s->inventory->classes[moe_store_slot(s->store, slot)->class_index].slot_bytes;
}

static void lend_slot(struct moe_scheduler *s, uint32_t slot, bool lent)
{
    s->lent_bytes += lent ? slot_bytes(s, slot) : -slot_bytes(s, slot);
    if (s->channel.lend)
        s->channel.lend(s->channel.ctx, slot, lent);
}

/* Has slots lent to the rows and blocks, and no more than they take. */
static void lend(struct moe_scheduler *s)
{
    const uint64_t bytes = moe_loan_bytes(&s->loan, s->loan_rows, s->loan_blocks);
    struct moe_err ignored; /* what waits for a load that failed says so */
    uint32_t slot;
    drop_request(s);
    while ((slot = moe_store_withdrawn(s->store)) != MOE_NO_SLOT &&
           s->lent_bytes - slot_bytes(s, slot) >= bytes) {
        moe_store_restore(s->store);
        lend_slot(s, slot, false);
    }
    while (s->lent_bytes < bytes) {
        slot = moe_store_withdraw(s->store);
        if (slot != MOE_NO_SLOT) {
            s->counts->lent++;
            lend_slot(s, slot, true);
        } else if (s->n_in_flight == 0 || reap_loads(s, true, &ignored) != MOE_OK) {
            return;
        }
    }
}

void moe_scheduler_begin_tokens(struct moe_scheduler *s, uint32_t n, bool prefill,
                                struct moe_counts *counts)
{
    account(s);
    s->counts = counts;
    s->prefill = prefill;
    s->source = false;
    s->streaming = UINT32_MAX;
    s->n_queue = s->strategy.stream ? s->at_queue : s->n_queue;
    forget_known(s);
    forget_expected(s);
    if (!prefill) {
        memset(s->in_prompt, 0, s->n_layers * sizeof *s->in_prompt);
        moe_store_take_back(s->store);
    }
    moe_store_begin_token(s->store);
    moe_usage_begin_tokens(&s->usage, n);
    s->loan_rows = n;
    if (s->loan.row_bytes || s->loan.block_bytes)
        lend(s);
}

void moe_scheduler_leave_counts(struct moe_scheduler *s)
{
    account(s);
    s->counts = &s->before;
}

void moe_scheduler_set_blocks(struct moe_scheduler *s, uint32_t n, bool now)
{
    s->loan_blocks = n < s->loan.n_blocks ? n : s->loan.n_blocks;
    if (now && s->loan.block_bytes)
        lend(s);
}

void moe_scheduler_end_tokens(struct moe_scheduler *s, bool measure, double seconds, double stalled,
                              double reading, uint64_t loads)
{
    if (!measure)
        return;
    if (seconds > stalled && s->n_layers > s->n_encoder)
        moe_fading_add(&s->layer_seconds, (seconds - stalled) / (s->n_layers - s->n_encoder));
    if (loads)
        moe_fading_add(&s->load_seconds, reading / (double)loads);
    limit_prefetches(s);
    if (s->strategy.prefetch.measured)
        moe_trial_token(&s->trial, seconds, reading >= SATURATED * seconds);
}

/*
 * Requests: the router has chosen, and each expert becomes a hit, a load, or something else.
 */

/* The lowest precision that suffices for an expert of the request, wherever it is computed. */
static uint32_t acceptable(const struct moe_scheduler *s, enum moe_importance importance,
                           bool unpopular, uint32_t key)
{
    bool low = unpopular || s->strategy.miss_precision == MOE_MISS_EMERGENCY ||
               (s->strategy.miss_precision == MOE_MISS_BY_SCORE && importance != MOE_IMPORTANT);
    return low ? s->low[key] : s->high[key];
}

static bool computes_on_host(const struct moe_scheduler *s)
{
    return s->strategy.miss_place == MOE_MISS_COMPUTE_HOST &&
           !(s->prefill && s->strategy.host_decodes_only);
}

/* Bytes of a slot's segments that are still under way. */
static uint64_t bytes_under_way(const struct moe_scheduler *s, uint32_t slot)
{
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->loads[slot].n_segments; i++)
        if (s->loads[slot].in_flight & 1u << i)
            bytes += moe_inventory_load_bytes(s->inventory, x->key, x->variant, i);
    return bytes;
}

static uint64_t bytes_to_load(const struct moe_scheduler *s, uint32_t key, uint32_t variant)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < moe_inventory_class(s->inventory, key, variant)->n_segments; i++)
        bytes += moe_inventory_load_bytes(s->inventory, key, variant, i);
    return bytes;
}

/* Whether the segments that the first part of an expert's work needs are there. */
static bool can_begin(const struct slot_loads *l)
{
    uint32_t first = l->n_segments > 1 ? (1u << (l->n_segments - 1)) - 1 : 1;
    return (l->arrived & first) == first;
}

/* Whether what a slot holds is under way by a prediction, and would keep its expert waiting longer
 * than is needed: an expert to be skipped waits for nothing, one that the host can compute not for
 * the first segments (HOBBIT 4: it computes what is not in the GPU's memory), one that low
 * precision suffices for not for more bytes than these. */
static bool delays(const struct moe_scheduler *s, uint32_t slot, uint32_t variant, bool skips)
{
    const struct moe_slot *x = moe_store_slot(s->store, slot);
    if (x->state != MOE_SLOT_LOADING || x->use != MOE_SLOT_STAGED || x->pins > 0)
        return false;
    return skips || (computes_on_host(s) && !can_begin(&s->loads[slot])) ||
           (x->variant != variant && bytes_under_way(s, slot) > bytes_to_load(s, x->key, variant));
}

/* What becomes of one expert, once the router has chosen. */
static void decide(struct moe_scheduler *s, struct moe_entry *e, bool unpopular)
{
    uint32_t key = key_of(s, s->layer, e->need.expert);
    uint64_t rows = e->need.n_rows;
    struct moe_counts *c = s->counts;
    enum moe_importance importance =
        moe_importance_of(e->need.unimportance, s->strategy.high_up_to, 1 - s->strategy.skip_below);
    e->variant = acceptable(s, importance, unpopular, key);
    uint32_t slot = MOE_NO_SLOT;
    /* The gate has taken its weight. */
    bool left_out = s->strategy.gate_below > 0 && !s->prefill && e->need.unimportance >= 1;
    bool precalculated = e->need.precalculated && !left_out;
    bool skips = importance == MOE_UNIMPORTANT && s->strategy.skip_below > 0;
    if (!precalculated && !left_out)
        slot = find_slot(s, key, e->variant);
    if (slot != MOE_NO_SLOT && delays(s, slot, e->variant, skips)) {
        give_up_slot(s, slot);
        slot = find_slot(s, key, e->variant);
    }
    bool skipped = left_out || (!precalculated && slot == MOE_NO_SLOT && skips);
    if (!skipped) /* what is not computed is no use: R and F of equation 3 (HOBBIT 3.4) */
        moe_usage_note(&s->usage, key, (uint32_t)rows, e->variant == s->high[key]);
    c->activations += rows;
    c->known += s->is_known[s->layer] ? rows : 0;
    if (s->is_predicted[s->layer]) {
        c->predicted += rows;
        c->predicted_right += s->predicted[place_of(s, s->layer, e->need.expert)] ? rows : 0;
    }
    e->slot = MOE_NO_SLOT;
    e->state = MOE_ENTRY_DONE;
    if (e->need.elsewhere) {
        e->kind = MOE_ENTRY_ELSEWHERE;
        c->elsewhere += rows;
        return;
    }
    if (precalculated) {
        e->kind = MOE_ENTRY_PRECALCULATED;
        c->precalculated += rows;
        c->low_precision += s->high[key] > s->best[key] ? rows : 0;
        return;
    }
    if (slot != MOE_NO_SLOT) {
        const struct moe_slot *x = moe_store_slot(s->store, slot);
        e->slot = slot;
        e->variant = x->variant;
        e->state = MOE_ENTRY_HAS_SLOT;
        if (x->state == MOE_SLOT_LOADING && x->prefetched) {
            c->prefetch_late += rows;
            promote_slot(s, slot);
        } else if (x->state == MOE_SLOT_LOADING) {
            c->misses += rows;
        } else if (x->prefetched) {
            c->prefetch_hits += rows;
        } else {
            c->cache_hits += rows;
        }
        moe_store_use(s->store, slot);
    } else if (skipped) {
        e->kind = MOE_ENTRY_SKIPPED;
        c->skipped += rows;
        return;
    } else if (computes_on_host(s)) {
        e->kind = MOE_ENTRY_HOST;
        c->host_computed += rows;
    } else {
        e->state = MOE_ENTRY_WANTS_SLOT;
        c->misses += rows;
    }
    c->low_precision += e->variant > s->best[key] ? rows : 0;
}

/* Puts one expert in the place of another, waiting for room, and for the other if it has just been
 * moved there itself. */
static int swap_one(struct moe_scheduler *s, struct moe_swap swap, struct moe_err *err)
{
    uint32_t in_key = key_of(s, s->layer, swap.in);
    uint32_t out_key = key_of(s, s->layer, swap.out);
    uint32_t out = find_slot(s, out_key, s->high[out_key]);
    while (!has_room(s) || (out != MOE_NO_SLOT && s->loads[out].in_flight != 0))
        MOE_TRY(reap_loads(s, true, err));
    uint32_t slot = moe_store_replace(s->store, out_key, in_key, s->high[in_key]);
    return slot == MOE_NO_SLOT ? MOE_OK : load_slot(s, slot, MOE_LOAD_DEMAND, 0, err);
}

/* DAOP's algorithm 1: experts of a prompt change places before anything is computed. A prompt that
 * comes in several passes is counted as a whole. */
static int swap_places(struct moe_scheduler *s, struct moe_err *err)
{
    uint32_t at = place_of(s, s->layer, 0);
    uint32_t *rows = s->swap_rows + at;
    uint8_t *before = s->swap_before + at, *now = s->marks;
    moe_scheduler_cached(s, s->layer, now);
    if (!s->in_prompt[s->layer]) {
        s->in_prompt[s->layer] = true;
        memset(rows, 0, s->n_experts * sizeof *rows);
        memcpy(before, now, s->n_experts);
    }
    for (uint32_t i = 0; i < s->n; i++)
        rows[s->entries[i].need.expert] += s->entries[i].need.n_rows;
    uint32_t n = moe_swaps_so_far(rows, before, now, s->n_experts, MOE_SWAP_FACTOR, s->swaps,
                                  s->numbers, s->marks + s->n_experts);
    for (uint32_t i = 0; i < n; i++)
        MOE_TRY(swap_one(s, s->swaps[i], err));
    return MOE_OK;
}

/* Whether an expert of the request is in the cache proper, not in staging. */
static bool is_cached(const struct moe_scheduler *s, const struct moe_entry *e)
{
    uint32_t key = key_of(s, s->layer, e->need.expert);
    uint32_t slot = find_slot(s, key, s->low[key]);
    return slot != MOE_NO_SLOT && moe_store_slot(s->store, slot)->use == MOE_SLOT_CACHED;
}

/* Sorts the order by falling rows; equal ones stay in the order of their ids. */
static void order_by_popularity(struct moe_scheduler *s)
{
    for (uint32_t i = 1; i < s->n; i++) {
        uint32_t entry = s->order[i], at = i;
        for (; at > 0 && s->entries[s->order[at - 1]].need.n_rows < s->entries[entry].need.n_rows;
             at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = entry;
    }
}

static int feed_demands(struct moe_scheduler *s, struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n; i++) {
        struct moe_entry *e = &s->entries[s->order[i]];
        if (e->state != MOE_ENTRY_WANTS_SLOT)
            continue;
        if (!has_room(s))
            return MOE_OK;
        /* The same load was given up before and still writes into its slot. */
        uint32_t key = key_of(s, s->layer, e->need.expert);
        uint32_t old = moe_store_find(s->store, key, e->variant);
        if (old != MOE_NO_SLOT && moe_store_slot(s->store, old)->variant == e->variant)
            continue;
        uint32_t slot = moe_store_miss(s->store, key, e->variant, e->policy_knows);
        e->policy_knows = true;
        if (slot == MOE_NO_SLOT)
            continue;
        e->slot = slot;
        e->state = MOE_ENTRY_HAS_SLOT;
        MOE_TRY(load_slot(s, slot, MOE_LOAD_DEMAND, 0, err));
    }
    return MOE_OK;
}

/* Finds slots for entries that still want one, and begins queued prefetches, as far as there is
 * room. */
static int feed(struct moe_scheduler *s, struct moe_err *err)
{
    MOE_TRY(feed_demands(s, err));
    return feed_prefetches(s, err);
}

/* The layer is there when all of it is; then the next one of the pass begins to come. */
static int stream_on(struct moe_scheduler *s, struct moe_err *err)
{
    bool last = s->layer + 1 == s->n_layers || s->layer + 1 == s->n_encoder;
    MOE_TRY(end_stream(s, s->layer, err));
    if (last)
        return MOE_OK;
    stream_layer(s, s->layer + 1);
    return feed(s, err);
}

void moe_scheduler_chosen(struct moe_scheduler *s, const struct moe_choices *choices)
{
    moe_usage_chosen(&s->usage, choices);
}

static int begin_request(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                         uint32_t n, struct moe_err *err)
{
    reap_loads(s, false, err);
    drop_request(s);
    if (layer < s->n_encoder && !s->source)
        moe_usage_is_source(&s->usage);
    s->source = layer < s->n_encoder;
    s->layer = s->usage.layer = layer;
    moe_store_begin_layer(s->store, layer);
    skip_known(s, layer);
    s->n = s->n_open = n;
    for (uint32_t i = 0; i < n; i++) {
        s->entries[i] = (struct moe_entry){.need = needs[i]};
        s->order[i] = i;
    }
    int status = MOE_OK;
    if (s->strategy.stream)
        stream_layer(s, layer);
    if (s->prefill && s->strategy.prefill_swap)
        status = swap_places(s, err);
    mark_unpopular(s);
    /* What is cached is pinned first, so that making room for the rest cannot take it. */
    for (uint32_t i = 0; i < n; i++)
        s->numbers[i] = is_cached(s, &s->entries[i]);
    for (uint32_t i = 0; i < n; i++)
        if (s->numbers[i])
            decide(s, &s->entries[i], s->marks[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!s->numbers[i])
            decide(s, &s->entries[i], s->marks[i]);
    for (uint32_t i = 0; i < n; i++)
        s->n_open -= s->entries[i].state == MOE_ENTRY_DONE;
    drop_stale(s);
    if (s->prefill && s->strategy.prefill != MOE_PREFILL_ROUTED)
        order_by_popularity(s);
    if (status == MOE_OK)
        status = feed(s, err);
    return status == MOE_OK && s->strategy.stream ? stream_on(s, err) : status;
}

int moe_scheduler_request(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                          uint32_t n, struct moe_err *err)
{
    hold_loads(s);
    return let_go(s, begin_request(s, layer, needs, n, err));
}

static int take_predictions(struct moe_scheduler *s, const struct moe_prediction *predictions,
                            uint32_t n, struct moe_err *err)
{
    /* Others predict layers beyond the next one worse from afar than they will from near. */
    bool on = s->strategy.predict == MOE_PREDICT_BY_TOKEN;
    uint32_t n_missing = 0;
    s->n_queue = s->at_queue = 0;
    for (uint32_t d = 0; d < n && (on || n_missing == 0); d++)
        n_missing += predict_layer(s, &predictions[d]);
    return feed(s, err);
}

int moe_scheduler_predicted(struct moe_scheduler *s, const struct moe_prediction *predictions,
                            uint32_t n, struct moe_err *err)
{
    hold_loads(s);
    return let_go(s, take_predictions(s, predictions, n, err));
}

/* ---- Entries as they arrive ---- */

const struct moe_entry *moe_scheduler_entries(const struct moe_scheduler *s, uint32_t *n)
{
    *n = s->n;
    return s->entries;
}

const uint32_t *moe_scheduler_order(const struct moe_scheduler *s)
{
    return s->order;
}

static int poll_loads(struct moe_scheduler *s, struct moe_err *err)
{
    if (s->n_in_flight == 0)
        return MOE_OK;
    reap_loads(s, false, err);
    return feed(s, err);
}

int moe_scheduler_poll(struct moe_scheduler *s, struct moe_err *err)
{
    hold_loads(s);
    return let_go(s, poll_loads(s, err));
}

/* Names entries that can begin, at most max in all. */
static int name_ready(struct moe_scheduler *s, uint32_t max, uint32_t *which, uint32_t *n,
                      struct moe_err *err)
{
    for (uint32_t i = 0; i < s->n && *n < max; i++) {
        struct moe_entry *e = &s->entries[s->order[i]];
        if (e->state != MOE_ENTRY_HAS_SLOT || e->given)
            continue;
        if (s->loads[e->slot].failed)
            return s->channel.failure(s->channel.ctx, err);
        if (!can_begin(&s->loads[e->slot]))
            continue;
        which[(*n)++] = s->order[i];
        e->given = true;
    }
    return MOE_OK;
}

static int next_ready(struct moe_scheduler *s, uint32_t max, uint32_t *which, uint32_t *n,
                      struct moe_err *err)
{
    for (*n = 0;;) {
        MOE_TRY(poll_loads(s, err));
        MOE_TRY(feed(s, err)); /* poll feeds nothing while nothing is under way */
        MOE_TRY(name_ready(s, max, which, n, err));
        if (*n > 0)
            return MOE_OK;
        MOE_TRY(reap_loads(s, true, err));
    }
}

int moe_scheduler_next(struct moe_scheduler *s, uint32_t max, uint32_t *which, uint32_t *n,
                       struct moe_err *err)
{
    hold_loads(s);
    return let_go(s, next_ready(s, max, which, n, err));
}

int moe_scheduler_complete(struct moe_scheduler *s, uint32_t which, struct moe_err *err)
{
    uint32_t slot = s->entries[which].slot;
    while (moe_store_slot(s->store, slot)->state != MOE_SLOT_READY) {
        if (s->loads[slot].failed)
            return s->channel.failure(s->channel.ctx, err);
        MOE_TRY(reap_loads(s, true, err));
    }
    return MOE_OK;
}

void moe_scheduler_release(struct moe_scheduler *s, uint32_t which)
{
    finish_entry(s, &s->entries[which]);
    if (s->n_open == 0)
        account(s);
}
