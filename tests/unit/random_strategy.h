/* Strategies at random, and whether two are the same. */
#ifndef TESTS_RANDOM_STRATEGY_H
#define TESTS_RANDOM_STRATEGY_H

#include "../test.h"
#include "sched/exactness.h"
#include "sched/strategy.h"

/* Everything but the strategy's name and description. */
static inline void assert_same(const struct moe_strategy *a, const struct moe_strategy *b)
{
#define SAME(field) assert_true(a->field == b->field)
    SAME(resident), SAME(needs_profile), SAME(needs_low), SAME(needs_host);
    SAME(predict), SAME(depth), SAME(first_by_token), SAME(protect), SAME(protect_tokens);
    SAME(prefetch.percentile), SAME(prefetch.count), SAME(prefetch.slack),
        SAME(prefetch.slack_least);
    SAME(prefetch.until_router), SAME(prefetch.top_k), SAME(prefetch.measured);
    SAME(cache), SAME(keep_records), SAME(low_pool), SAME(alloc), SAME(boundary), SAME(init);
    SAME(buffer), SAME(cache_bits), SAME(host_falls_back), SAME(miss_place), SAME(miss_precision),
        SAME(high_up_to), SAME(by_scores), SAME(skip_below), SAME(skip_by_scores),
        SAME(host_decodes_only);
    SAME(gate_below), SAME(prefer), SAME(prefer_keeps), SAME(prefer_by_map);
    SAME(prefill), SAME(low_share), SAME(prefill_falls_back), SAME(prefill_swap);
    SAME(precalculate), SAME(precalculate_from), SAME(degrade), SAME(degrade_most);
    for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
        SAME(weights[i]);
#undef SAME
}

/* Whether it may change results on some pack. */
static inline bool may_change(const struct moe_strategy *s)
{
    const struct moe_terms terms = {.strategy = s, .any_pack = true};
    return !moe_exactness_of(&terms).exact;
}

static inline double random_share(uint64_t *seed)
{
    double fine = (double)(test_random(seed) >> 11) * 0x1p-53;
    return test_random(seed) % 2 ? fine : (double)(int)(fine * 100) / 100;
}

/* Its parts, some of them idle: moe_strategy_drop_idle. */
static inline struct moe_strategy random_strategy(uint64_t *seed)
{
    struct moe_strategy s = {0};
#define DRAW(n) (test_random(seed) % (n))
    s.predict = (enum moe_predict_by)DRAW(10);
    bool deep = s.predict == MOE_PREDICT_BY_GATE || s.predict == MOE_PREDICT_BY_RESIDUAL ||
                s.predict == MOE_PREDICT_BY_TOKEN;
    s.depth = deep ? 1 + (uint32_t)DRAW(MOE_MAX_DEPTH) : s.predict != MOE_PREDICT_BY_NOTHING;
    s.first_by_token = s.predict == MOE_PREDICT_BY_GATE && s.depth == 1 && DRAW(2);
    s.prefetch.percentile = DRAW(2) ? 99 * random_share(seed) : 0;
    s.prefetch.count = DRAW(2) ? (uint32_t)test_random(seed) : 0;
    s.prefetch.slack = DRAW(2);
    s.prefetch.slack_least = s.prefetch.slack ? (uint32_t)DRAW(3) : 0;
    s.prefetch.until_router = DRAW(2);
    s.prefetch.top_k = DRAW(2);
    s.prefetch.measured = DRAW(2);
    s.protect = DRAW(2);
    s.protect_tokens = DRAW(2);
    int n_policies = 0;
    while (moe_policy_at(n_policies))
        n_policies++;
    s.cache = moe_policy_at((int)DRAW(n_policies + 1));
    if (DRAW(2)) {
        double sum = 0;
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
            sum += s.weights[i] = random_share(seed) + 0.01;
        for (int i = 0; i < MOE_HOBBIT_WEIGHTS; i++)
            s.weights[i] /= sum;
    }
    s.keep_records = DRAW(2);
    s.low_pool = random_share(seed);
    s.alloc = (enum moe_alloc)DRAW(4);
    s.boundary = s.alloc == MOE_ALLOC_SHALLOW ? (uint32_t)DRAW(5) - 1 : 0; /* or MOE_SHALLOW_AUTO */
    s.init = (enum moe_init)DRAW(3);
    s.buffer = (uint32_t)DRAW(4);
    s.miss_place = (enum moe_miss_place)DRAW(2);
    s.miss_precision = (enum moe_miss_precision)DRAW(3);
    s.by_scores = s.miss_precision == MOE_MISS_BY_SCORE && DRAW(2);
    s.skip_by_scores = DRAW(4) == 0;
    s.high_up_to = s.by_scores                             ? 0.6
                   : s.miss_precision == MOE_MISS_BY_SCORE ? random_share(seed)
                                                           : 0;
    s.skip_below = s.skip_by_scores ? 0.1 : (1 - s.high_up_to) * random_share(seed);
    s.gate_below = DRAW(4) ? 0 : random_share(seed);
    s.prefer = DRAW(4) ? 0 : 3 * random_share(seed);
    s.prefer_keeps = s.prefer > 0 ? 1 + (uint32_t)DRAW(3) : 0;
    s.host_falls_back = s.miss_place == MOE_MISS_COMPUTE_HOST && DRAW(2);
    s.host_decodes_only = DRAW(2);
    s.cache_bits = (uint32_t)DRAW(17);
    s.prefill = (enum moe_prefill)DRAW(3);
    s.low_share = s.prefill == MOE_PREFILL_HYBRID ? random_share(seed) : 0;
    s.prefill_falls_back = s.prefill == MOE_PREFILL_HYBRID && DRAW(2);
    s.prefill_swap = DRAW(2);
    s.precalculate = DRAW(2);
    s.precalculate_from = s.precalculate ? (uint32_t)DRAW(9) : 0;
    s.degrade = DRAW(2);
    s.degrade_most = (uint32_t)DRAW(3);
#undef DRAW
    return s;
}

#endif
