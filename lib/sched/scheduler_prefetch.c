/*
 * Predictions: the predicted set of each layer, and the prefetches that follow from it.
 */
#include "sched/scheduler_state.h"

#include <string.h>

#include "base/float16.h"
#include "sched/precision.h"

enum { PROMPT_LOANS = 2 /* times top_k */ };

/* Whether what is said of layers to come is loaded before they run. */
static bool prefetches(const struct moe_scheduler *s)
{
    return s->strategy.predict != MOE_PREDICT_BY_NOTHING && !s->strategy.precalculate;
}

/* Of so many layers to come those that are worth predicting now. */
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

void scheduler_mark_unpopular(struct moe_scheduler *s)
{
    memset(s->marks, 0, s->n);
    if (!s->prefill || s->strategy.prefill != MOE_PREFILL_HYBRID)
        return;
    for (uint32_t i = 0; i < s->n; i++)
        s->numbers[i] = s->entries[i].need.n_rows;
    if (!s->is_predicted[s->layer])
        moe_least_popular(s->numbers, s->n, s->strategy.low_share, s->marks);
    for (uint32_t i = 0; s->is_predicted[s->layer] && i < s->n; i++)
        s->marks[i] = s->predicted[scheduler_key(s, s->layer, s->entries[i].need.expert)] ==
                      PREDICTED_UNPOPULAR;
}

/* The variant that an expert to come deserves; UINT32_MAX: none. */
static uint32_t worth(const struct moe_scheduler *s, uint64_t key, float unimportance,
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
    return low ? s->low[key] : s->high[key];
}

static void unguard(struct moe_scheduler *s, uint32_t layer)
{
    if (!s->guarded[layer])
        return;
    for (uint32_t e = 0; e < s->n_experts; e++)
        moe_store_protect(s->store, layer, e, false);
    s->guarded[layer] = 0;
}

/* The predicted set of a layer. */
static void remember(struct moe_scheduler *s, const struct moe_prediction *p,
                     const uint32_t *experts, uint32_t n)
{
    uint8_t *set = s->predicted + scheduler_key(s, p->layer, 0);
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

uint32_t scheduler_predict_layer(struct moe_scheduler *s, const struct moe_prediction *p)
{
    uint32_t *experts = s->numbers, n_missing = 0;
    uint32_t n = moe_select(&s->strategy.prefetch, p, s->n_experts, s->top_k, experts);
    uint32_t n_set = n_named(s, p, experts, n);
    uint32_t most = s->strategy.prefetch.count && p->n_rows == 1 ? s->strategy.prefetch.count : n;
    if (s->strategy.prefetch.slack && p->n_rows == 1) {
        uint32_t paid = moe_slack_loads(s->layer_seconds.value, s->load_seconds.value,
                                        s->strategy.prefetch.slack_least);
        most = paid < most ? paid : most;
    }
    if (s->strategy.protect) /* else what is protected is not for predictions to say */
        unguard(s, p->layer);
    remember(s, p, experts, n_set);
    for (uint32_t i = 0; i < n; i++) {
        uint64_t key = scheduler_key(s, p->layer, experts[i]);
        uint32_t variant =
            worth(s, key, p->unimportance[experts[i]], s->predicted[key] == PREDICTED_UNPOPULAR);
        if (s->strategy.protect && i < n_set && variant != UINT32_MAX) {
            moe_store_protect(s->store, p->layer, experts[i], true);
            s->guarded[p->layer] = 1;
        }
        if (variant == UINT32_MAX ||
            moe_store_find(s->store, p->layer, experts[i], variant) != MOE_NO_SLOT)
            continue;
        if (n_missing++ < most)
            s->queue[s->n_queue++] = (struct candidate){p->layer, experts[i], variant,
                                                        moe_round_f16(p->scores[experts[i]])};
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
        n_predicted += !s->is_known[x->layer];
    }
    if (predicted)
        *predicted = n_predicted;
    return s->n_prefetched = kept;
}

/* How many slots of the cache may stage what is prefetched. A prompt takes most experts of a layer,
 * which are computed for long: with room for a few more of them the link works on. Its own loads
 * come first. Simulated, twice top_k gain up to 9%, and more slots nothing but misses. */
static uint32_t may_borrow(const struct moe_scheduler *s)
{
    if (!s->prefill)
        return 0;
    for (uint32_t i = 0; i < s->n; i++)
        if (s->entries[i].state == MOE_ENTRY_WANTS_SLOT)
            return 0;
    return PROMPT_LOANS * s->top_k;
}

/* Whether a layer that is streamed has the expert among those that its router chose: these load by
 * themselves. */
static bool is_chosen(const struct moe_scheduler *s, const struct candidate *c)
{
    bool chosen = false;
    for (uint32_t i = 0; s->strategy.stream && c->layer == s->layer && i < s->n; i++)
        chosen |= s->entries[i].need.expert == c->expert;
    return chosen;
}

/* What is to be prefetched next, of the nearest layer: the place in the queue or in what is known,
 * where *candidate stands; NULL: nothing, or not now. */
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

int scheduler_feed_prefetches(struct moe_scheduler *s, struct moe_err *err)
{
    if (s->at_queue == s->n_queue && s->at_known == s->n_known)
        return MOE_OK;
    uint32_t lend = may_borrow(s), *at;
    const struct candidate *c;
    while (scheduler_has_room(s) && (at = next_prefetch(s, &c)) != NULL) {
        bool known = at == &s->at_known;
        if (is_chosen(s, c) ||
            moe_store_find(s->store, c->layer, c->expert, c->variant) != MOE_NO_SLOT) {
            ++*at;
            continue;
        }
        /* What is known reaches far ahead: it leaves room for what nearer layers miss. */
        if (known && !moe_store_has_spare(s->store, c->layer, c->expert, c->variant, s->top_k))
            return MOE_OK;
        uint32_t slot = moe_store_stage(s->store, c->layer, c->expert, c->variant, true, lend);
        if (slot == MOE_NO_SLOT)
            return MOE_OK;
        ++*at;
        s->prefetched[s->n_prefetched++] = slot;
        s->counts->prefetches++;
        s->counts->known_prefetches += known;
        int status = scheduler_load(s, slot, MOE_LOAD_PREFETCH, c->score, err);
        if (status != MOE_OK)
            return status;
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

int moe_scheduler_known(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
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
        uint32_t expert = needs[i].expert;
        uint32_t variant =
            worth(s, scheduler_key(s, layer, expert), needs[i].unimportance, s->marks[i]);
        if (variant == UINT32_MAX)
            continue;
        moe_store_protect(s->store, layer, expert, true);
        s->known[s->n_known] = (struct candidate){layer, expert, variant, urgency(s, layer)};
        s->n_known++;
    }
    s->guarded[layer] = 1;
    s->is_known[layer] = true;
    return scheduler_feed_prefetches(s, err);
}

void scheduler_known_after(struct moe_scheduler *s, uint32_t layer)
{
    uint64_t unused = moe_store_counts(s->store)->staged_unused;
    uint32_t at = 0;
    while (at < s->n_known && s->known[at].layer <= layer)
        at++;
    if (s->at_known < at || unused != s->unused)
        s->at_known = at;
    s->unused = unused;
}

void scheduler_forget_known(struct moe_scheduler *s)
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
            moe_store_protect(s->store, layer, e, true);
    s->guarded[layer] = 1;
}

void scheduler_forget_expected(struct moe_scheduler *s)
{
    for (uint32_t layer = 0; s->strategy.protect_tokens && layer < s->n_layers; layer++)
        unguard(s, layer);
}

/* ---- Whole layers ---- */

void scheduler_stream(struct moe_scheduler *s, uint32_t layer)
{
    if (s->streaming == layer)
        return;
    s->streaming = layer;
    s->n_queue -= s->at_queue;
    memmove(s->queue, s->queue + s->at_queue, s->n_queue * sizeof *s->queue);
    s->at_queue = 0;
    if (s->n_queue > s->n_experts) /* what no slot was free for */
        s->n_queue = s->n_experts;
    for (uint32_t e = 0; e < s->n_experts; e++)
        s->queue[s->n_queue++] =
            (struct candidate){layer, e, s->high[scheduler_key(s, layer, e)], 1};
}

int scheduler_end_stream(struct moe_scheduler *s, uint32_t layer, struct moe_err *err)
{
    int status = MOE_OK;
    for (;;) {
        bool queued = s->at_queue < s->n_queue && s->queue[s->at_queue].layer <= layer;
        if (status != MOE_OK || (!queued && n_under_way(s, NULL) == 0))
            return status;
        uint32_t at = s->at_queue;
        status = scheduler_feed_prefetches(s, err);
        bool stuck = status == MOE_OK && s->at_queue == at;
        if (stuck && s->n_in_flight == 0)
            return status;
        if (stuck)
            status = scheduler_reap(s, true, err);
    }
}

void scheduler_drop_stale(struct moe_scheduler *s)
{
    uint32_t kept = 0;
    if (s->strategy.stream)
        return; /* nothing is given up */
    for (uint32_t i = 0; i < s->n_prefetched; i++) {
        uint32_t slot = s->prefetched[i];
        const struct moe_slot *x = moe_store_slot(s->store, slot);
        if (x->state != MOE_SLOT_LOADING || x->use != MOE_SLOT_STAGED || s->given_up[slot])
            continue;
        if (x->layer != s->layer) {
            s->prefetched[kept++] = slot;
            continue;
        }
        scheduler_give_up(s, slot);
    }
    s->n_prefetched = kept;
    while (s->at_queue < s->n_queue && s->queue[s->at_queue].layer <= s->layer)
        s->at_queue++;
    s->is_predicted[s->layer] = false;
    unguard(s, s->layer);
}
