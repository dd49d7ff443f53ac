/*
 * Policies that judge by the record of use: edgemoe, hobbit, infinity, lfu and lrfu, against
 * examples worked by hand and lrfu also against its definition.
 */
#include <math.h>

#include "cache/policy.h"
#include "sched/strategy.h"

#include "../test.h"

enum { N_KEYS = 40, N_LAYERS = 4, N_EXPERTS = N_KEYS / N_LAYERS, HALF_LIFE = 12 };

/* The keys that one policy has, with a record of use that a test writes. */
struct judged {
    struct moe_policy *policy;
    struct moe_usage usage;
};

static void judged_open(struct judged *j, const char *name, const double *weights, double half_life)
{
    struct moe_err err = {0};
    const struct moe_policy_params params = {.n_keys = N_KEYS,
                                             .capacity = 10,
                                             .usage = &j->usage,
                                             .weights = weights,
                                             .half_life = half_life};
    assert_ok(moe_usage_init(&j->usage, N_LAYERS, N_EXPERTS, 2, &err), &err);
    assert_ok(moe_policy_open(&j->policy, moe_policy_find(name), &params, &err), &err);
}

static void judged_close(struct judged *j)
{
    moe_policy_close(j->policy);
    moe_usage_release(&j->usage);
}

static uint32_t key_of(uint32_t layer, uint32_t expert)
{
    return layer * N_EXPERTS + expert;
}

static void admit(struct judged *j, uint32_t key)
{
    j->policy->ops->admit(j->policy, key);
}

static int64_t victim(const struct judged *j, int64_t incoming)
{
    return j->policy->ops->victim(j->policy, incoming, NULL, NULL);
}

/* Drops the keys in the order in which they leave for `incoming` and compares. */
static void assert_leave(struct judged *j, int64_t incoming, const uint32_t *order, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(victim(j, incoming), order[i]);
        j->policy->ops->drop(j->policy, order[i]);
    }
    assert_int_equal(victim(j, incoming), MOE_NO_KEY);
    for (int i = 0; i < n; i++)
        admit(j, order[i]);
}

/*
 * Four layers, the second (I = 1) at work; one resident key a layer:
 *
 *     layer i   f   d = (i - I) mod 4 in 1..4   f/d   (S - i + I) mod S in 1..4   f / that
 *     0         6   3                           2     1                           6
 *     1         6   4                           1.5   4 (printed: 0)              1.5
 *     2         3   1                           3     3                           1
 *     3         4   2                           2     2                           2
 *
 * The equal ones leave by their last use. Read literally, the layer that runs next goes first and
 * the one that ran just before stays to the end.
 */
static void edgemoe_weighs_frequency_by_the_layers_to_come(void **state)
{
    static const uint64_t frequency[N_LAYERS] = {6, 6, 3, 4};
    static const char *const names[] = {"edgemoe", "edgemoe-literal"};
    for (int literal = 0; literal < 2; literal++) {
        struct judged j;
        judged_open(&j, names[literal], NULL, 0);
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            admit(&j, key_of(layer, 5));
            j.usage.frequency[key_of(layer, 5)] = frequency[layer];
            j.usage.last_ever[key_of(layer, 5)] = 9 - layer;
        }
        static const uint32_t to_come[] = {15, 35, 5, 25}, as_printed[] = {25, 15, 35, 5};
        assert_leave(&j, key_of(1, 0), literal ? as_printed : to_come, N_LAYERS);
        j.usage.layer = 1; /* no key comes in: the layer whose router chose last counts */
        assert_leave(&j, MOE_NO_KEY, literal ? as_printed : to_come, N_LAYERS);
        j.usage.last_ever[key_of(0, 5)] = 1;
        static const uint32_t older[] = {15, 5, 35, 25};
        if (!literal)
            assert_leave(&j, key_of(1, 0), older, N_LAYERS);
        judged_close(&j);
    }
}

/*
 * Layer 1 is visited as layer 2 again (I = 1): it comes in 1 layer, 3 in 2, 0 in 3, so that f/d of
 * 6, 6 and 6 are 6, 3 and 2. While layer 2 is at work it comes in 3: 2, and the others 6 and 3.
 */
static void a_later_visit_comes_first(void **state)
{
    static const uint32_t first[] = {5, 35, 15}, second[] = {15, 5, 35};
    struct judged j;
    judged_open(&j, "edgemoe", NULL, 0);
    j.usage.loop = (struct moe_loop){1, 1, 2};
    for (uint32_t layer = 0; layer < N_LAYERS; layer += layer == 1 ? 2 : 1) {
        admit(&j, key_of(layer, 5));
        j.usage.frequency[key_of(layer, 5)] = 6;
    }
    j.usage.layer = 1;
    assert_leave(&j, MOE_NO_KEY, first, 3);
    assert_leave(&j, key_of(1, 0), first, 3);
    j.usage.layer = 2;
    assert_leave(&j, MOE_NO_KEY, second, 3);
    assert_leave(&j, key_of(1, 0), second, 3);
    moe_usage_note(&j.usage, key_of(1, 5), 1, true);
    assert_int_equal(j.usage.layer, 2); /* and not its owner */
    judged_close(&j);
}

/*
 * Two of the four layers are an encoder's: S is 2. Encoder experts leave first, whatever their
 * frequency: layers that have run, the last one first, before those to come. Of the decoder's,
 * while layer 2 is at work, f/d are 6/2 and 2/1; were the encoder in S, the former would be 6/4.
 */
static void edgemoe_gives_up_encoders_first(void **state)
{
    static const uint64_t frequency[N_LAYERS] = {9, 8, 6, 2};
    static const uint32_t order[N_LAYERS][N_LAYERS] = {
        {5, 15, 35, 25}, {15, 5, 35, 25}, {15, 5, 35, 25}, {15, 5, 35, 25}};
    static const char *const names[] = {"edgemoe", "edgemoe-literal"};
    for (int i = 0; i < 2; i++) {
        struct judged j;
        judged_open(&j, names[i], NULL, 0);
        j.usage.n_encoder = 2;
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            admit(&j, key_of(layer, 5));
            j.usage.frequency[key_of(layer, 5)] = frequency[layer];
        }
        for (uint32_t layer = 0; layer < N_LAYERS; layer++)
            assert_leave(&j, key_of(layer, 0), order[layer], N_LAYERS);
        judged_close(&j);
    }
}

/* What an encoder has used does not return for this answer, to no policy that counts layers. */
static void encoders_do_not_return(void **state)
{
    static const char *const names[] = {"hobbit", "infinity", "lrfu"};
    for (int i = 0; i < 3; i++) {
        struct judged j;
        judged_open(&j, names[i], NULL, 0);
        j.usage.n_encoder = 2;
        moe_usage_begin_tokens(&j.usage, 1); /* of an earlier answer */
        moe_usage_note(&j.usage, key_of(3, 1), 1, false);
        if (j.policy->ops->miss)
            j.policy->ops->miss(j.policy, key_of(3, 1));
        moe_usage_begin_sequence(&j.usage);
        moe_usage_begin_tokens(&j.usage, 100);
        moe_usage_is_source(&j.usage);
        assert_int_equal(j.usage.token, 0);
        for (uint32_t layer = 0; layer < 2; layer++) {
            moe_usage_note(&j.usage, key_of(layer, 1), 100, true);
            if (j.policy->ops->miss)
                j.policy->ops->miss(j.policy, key_of(layer, 1));
            admit(&j, key_of(layer, 1));
        }
        admit(&j, key_of(3, 1));
        static const uint32_t leave[] = {1, 11, 31};
        assert_int_equal(victim(&j, key_of(0, 5)), 1); /* layer 1 is still to come */
        assert_leave(&j, key_of(2, 5), leave, 3);
        moe_usage_begin_tokens(&j.usage, 1);
        assert_leave(&j, key_of(3, 5), leave, 3);
        judged_close(&j);
    }
}

/* In one layer every d is S: frequency alone, then the last use, then the number. */
static void edgemoe_in_one_layer_is_frequency(void **state)
{
    static const char *const names[] = {"edgemoe", "edgemoe-literal"};
    for (int i = 0; i < 2; i++) {
        struct judged j;
        judged_open(&j, names[i], NULL, 0);
        static const uint64_t frequency[] = {3, 2, 2, 7, 2}, last[] = {1, 8, 4, 2, 4};
        for (uint32_t e = 0; e < 5; e++) {
            admit(&j, key_of(2, e));
            j.usage.frequency[key_of(2, e)] = frequency[e];
            j.usage.last_ever[key_of(2, e)] = last[e];
        }
        static const uint32_t order[] = {22, 24, 21, 20, 23};
        assert_leave(&j, key_of(2, 9), order, 5);
        judged_close(&j);
    }
}

static void record(struct judged *j, uint32_t key, uint32_t last, uint32_t count, uint32_t high)
{
    admit(j, key);
    j->usage.last[key] = last;
    j->usage.count[key] = count;
    j->usage.high[key] = high;
}

/*
 * Equation 3 with equal weights, four layers, the second at work, T = 8; four times p:
 *
 *     (layer, expert)   R/T     F/T    H/T    fld    sum
 *     (1, 0)            1       0.5    0.25   1      2.75
 *     (2, 0)            0.875   0.75   0.5    0.75   2.875
 *     (0, 0)            1       1      0.75   0.25   3
 *     (3, 1)            0.25    0.75   0.75   0.5    2.25
 */
static void hobbit_is_equation_3(void **state)
{
    struct judged j;
    judged_open(&j, "hobbit", NULL, 0);
    record(&j, key_of(1, 0), 8, 4, 2);
    record(&j, key_of(2, 0), 7, 6, 4);
    record(&j, key_of(0, 0), 8, 8, 6);
    record(&j, key_of(3, 1), 2, 6, 6);
    j.usage.token = 8;
    static const uint32_t by_sum[] = {31, 10, 20, 0};
    assert_leave(&j, key_of(1, 9), by_sum, 4);
    j.usage.token = 0; /* no token yet: distance alone */
    static const uint32_t by_distance[] = {0, 31, 20, 10};
    assert_leave(&j, key_of(1, 9), by_distance, 4);
    j.usage.layer = 3;
    static const uint32_t from_the_last[] = {20, 10, 0, 31};
    assert_leave(&j, MOE_NO_KEY, from_the_last, 4);
    judged_close(&j);
}

/* Each weight alone orders by its own term. */
static void hobbit_weighs_its_terms(void **state)
{
    static const uint32_t order[MOE_HOBBIT_WEIGHTS][3] = {
        [MOE_WEIGHT_LRU] = {11, 20, 2},
        [MOE_WEIGHT_LFU] = {20, 2, 11},
        [MOE_WEIGHT_LHU] = {2, 11, 20},
        [MOE_WEIGHT_FLD] = {2, 20, 11},
    };
    for (int w = 0; w < MOE_HOBBIT_WEIGHTS; w++) {
        struct judged j;
        double weights[MOE_HOBBIT_WEIGHTS] = {0};
        weights[w] = 1;
        judged_open(&j, "hobbit", weights, 0);
        record(&j, key_of(0, 2), 9, 6, 1);
        record(&j, key_of(1, 1), 3, 7, 2);
        record(&j, key_of(2, 0), 5, 5, 5);
        j.usage.token = 10;
        assert_leave(&j, key_of(1, 9), order[w], 3);
        judged_close(&j);
    }
}

/* Fig. 11: expert 4 is used more, expert 6 more at high precision: lfu would keep 4, lhu keeps
 * 6. */
static void hobbit_keeps_what_is_used_at_high_precision(void **state)
{
    static const double by_use[] = {[MOE_WEIGHT_LFU] = 1, [MOE_WEIGHT_FLD] = 0};
    static const double by_high[] = {[MOE_WEIGHT_LHU] = 1, [MOE_WEIGHT_FLD] = 0};
    for (int high = 0; high < 2; high++) {
        struct judged j;
        judged_open(&j, "hobbit", high ? by_high : by_use, 0);
        admit(&j, key_of(2, 4));
        admit(&j, key_of(2, 6));
        for (uint32_t token = 0; token < 10; token++) {
            moe_usage_begin_tokens(&j.usage, 1);
            if (token < 8)
                moe_usage_note(&j.usage, key_of(2, 4), 1, token < 2);
            if (token % 2)
                moe_usage_note(&j.usage, key_of(2, 6), 1, true);
        }
        assert_int_equal(victim(&j, key_of(2, 0)), key_of(2, high ? 4 : 6));
        judged_close(&j);
    }
}

static void use_once(struct judged *j, uint32_t key)
{
    moe_usage_begin_tokens(&j->usage, 1);
    moe_usage_note(&j->usage, key, 1, true);
}

/* Key 7 is used three times and leaves; back with its fourth use it has four, against two of key 12
 * and three of key 31, which stayed all the time. The next text counts anew, unless records are
 * kept. */
static void lfu_counts_all_uses_of_the_sequence(void **state)
{
    for (int keep = 0; keep < 2; keep++) {
        struct judged j;
        judged_open(&j, "lfu", NULL, 0);
        moe_usage_begin_sequence(&j.usage);
        static const uint32_t uses[] = {7, 7, 7, 12, 31, 31, 12, 31};
        for (size_t i = 0; i < N_ITEMS(uses); i++)
            use_once(&j, uses[i]);
        admit(&j, 7);
        admit(&j, 12);
        admit(&j, 31);
        static const uint32_t by_use[] = {12, 7, 31}; /* 7 and 31 by their last use */
        assert_leave(&j, key_of(2, 0), by_use, 3);
        j.policy->ops->drop(j.policy, 7);
        use_once(&j, 7);
        admit(&j, 7);
        static const uint32_t back[] = {12, 31, 7};
        assert_leave(&j, key_of(2, 0), back, 3);
        if (!keep)
            moe_usage_begin_sequence(&j.usage);
        use_once(&j, 12);
        use_once(&j, 12);
        use_once(&j, 31); /* 7, 31, 12: 0, 1, 2 of this text; 4, 4, 4 of both */
        static const uint32_t anew[] = {7, 31, 12}, kept[] = {7, 12, 31};
        assert_leave(&j, key_of(2, 0), keep ? kept : anew, 3);
        judged_close(&j);
    }
}

/* On random texts lfu and hobbit with all weight on F decide alike, each victim. */
static void lfu_is_hobbit_by_use_alone(void **state)
{
    static const double by_use[] = {[MOE_WEIGHT_LFU] = 1, [MOE_WEIGHT_FLD] = 0};
    for (int keep = 0; keep < 2; keep++) {
        struct judged j[2];
        uint64_t random = 5;
        bool resident[N_KEYS] = {0};
        uint32_t n = 0, n_left = 0;
        judged_open(&j[0], "lfu", NULL, 0);
        judged_open(&j[1], "hobbit", by_use, 0);
        for (uint32_t token = 0; token < 5000; token++) {
            uint64_t r = test_random(&random); /* a hot set that moves */
            uint32_t key = (uint32_t)(r % 3 ? (r >> 8) % 10 + token / 300 * 7 : r >> 8) % N_KEYS;
            int64_t left[2] = {MOE_NO_KEY, MOE_NO_KEY};
            for (int i = 0; i < 2; i++) {
                if (token % 100 == 0 && !keep)
                    moe_usage_begin_sequence(&j[i].usage);
                use_once(&j[i], key);
                if (resident[key])
                    j[i].policy->ops->use(j[i].policy, key);
                else if (n == 12)
                    left[i] = victim(&j[i], key);
                if (left[i] >= 0)
                    j[i].policy->ops->drop(j[i].policy, (uint32_t)left[i]);
                if (!resident[key])
                    admit(&j[i], key);
            }
            assert_int_equal(left[0], left[1]);
            n += !resident[key] && left[0] < 0;
            resident[key] = true;
            n_left += left[0] >= 0;
            if (left[0] >= 0)
                resident[left[0]] = false;
        }
        assert_in_range(n_left, 500, 4900);
        judged_close(&j[0]);
        judged_close(&j[1]);
    }
}

/* n tokens, `uses` of which want a key. */
static void ask(struct judged *j, uint32_t key, uint32_t n, uint32_t uses)
{
    const struct moe_policy_ops *ops = j->policy->ops;
    moe_usage_begin_tokens(&j->usage, n);
    moe_usage_note(&j->usage, key, uses, true);
    ops->miss(j->policy, key);
}

/* A is used by tokens 1 and 2, B by token 3. With a half-life of 1 token C is then 1/4 + 1/2 and 1,
 * and B stays; with one of 4 it is 0.71 + 0.84 = 1.55 and 1, and A does. */
static void lrfu_weighs_recency_against_frequency(void **state)
{
    for (int long_memory = 0; long_memory < 2; long_memory++) {
        struct judged j;
        judged_open(&j, "lrfu", NULL, long_memory ? 4 : 1);
        ask(&j, 7, 1, 1);
        admit(&j, 7);
        ask(&j, 7, 1, 1);
        ask(&j, 3, 1, 1);
        admit(&j, 3);
        assert_int_equal(victim(&j, 0), long_memory ? 3 : 7);
        /* Evicted and back by token 4, it is worth 1 + 3/8 more than one newly come then. */
        j.policy->ops->drop(j.policy, 7);
        ask(&j, 7, 1, 1);
        admit(&j, 7);
        moe_usage_note(&j.usage, key_of(0, 8), 1, true);
        j.policy->ops->miss(j.policy, 8);
        admit(&j, 8);
        j.policy->ops->drop(j.policy, 3);
        assert_int_equal(victim(&j, 0), 8);
        judged_close(&j);
    }
}

/* Half-life 1. A pass of 3 tokens, one of them a use: a third of 1 + 1/2 + 1/4, that is 0.583 and a
 * token later 0.292. Two tokens before that, a use is worth 0.25, one token before 0.5. */
static void lrfu_spreads_the_uses_of_a_pass(void **state)
{
    struct judged j;
    judged_open(&j, "lrfu", NULL, 1);
    for (uint32_t key = 0; key < 3; key++)
        admit(&j, key);
    ask(&j, 0, 1, 1);
    ask(&j, 1, 3, 1);
    ask(&j, 2, 1, 1);
    static const uint32_t order[] = {0, 1, 2};
    assert_leave(&j, 9, order, 3); /* 1/16, 0.292, 1 */
    ask(&j, 0, 3, 3);              /* 1.75 and what is left of 1/16, against 1/8 */
    static const uint32_t then[] = {1, 2, 0};
    assert_leave(&j, 9, then, 3);
    judged_close(&j);
}

/* Layer 0 has run for token 2, layers 1 to 3 for token 1 only: what token 1 used there is as fresh
 * as can be, and differs from what token 2 used in layer 0 only by the distance to the next run. */
static void lrfu_counts_time_layer_by_layer(void **state)
{
    struct judged j;
    judged_open(&j, "lrfu", NULL, 4);
    moe_usage_begin_tokens(&j.usage, 1);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
        admit(&j, key_of(layer, 0));
        moe_usage_note(&j.usage, key_of(layer, 0), 1, true);
        j.policy->ops->miss(j.policy, key_of(layer, 0));
    }
    admit(&j, key_of(0, 1));
    ask(&j, key_of(0, 1), 1, 1);
    /* Expert 0 of layer 0 was not used this time; the others fade by 4, 3, 2, 1 layers more. */
    static const uint32_t order[] = {0, 1, 30, 20, 10};
    assert_leave(&j, key_of(0, 2), order, 5);
    judged_close(&j);
}

/* C as it is defined, from all past uses, one token each. */
struct past {
    struct {
        uint32_t key;
        uint64_t token;
    } uses[2000];
    uint32_t n;
};

static double combined(const struct past *p, uint32_t key, uint64_t now)
{
    double c = 0;
    for (uint32_t i = 0; i < p->n; i++)
        if (p->uses[i].key == key)
            c += pow(0.5, (double)(now - p->uses[i].token) / HALF_LIFE);
    return c;
}

/* Tokens that use one key of one layer each, in a cache of 8: the one that leaves has the least
 * C. */
static void lrfu_equals_its_definition(void **state)
{
    static struct past past;
    struct judged j;
    uint64_t random = 12, spoke[N_LAYERS] = {0};
    bool resident[N_KEYS] = {0};
    int n = 0, leavers = 0;
    past.n = 0;
    judged_open(&j, "lrfu", NULL, HALF_LIFE);
    for (uint32_t token = 1; token <= N_ITEMS(past.uses); token++) {
        uint64_t r = test_random(&random); /* a hot set that moves */
        uint32_t key = (uint32_t)(r % 3 ? (r >> 8) % 10 + token / 300 * 7 : r >> 8) % N_KEYS;
        uint32_t layer = key / N_EXPERTS;
        past.uses[past.n].key = key;
        past.uses[past.n++].token = spoke[layer] = token;
        ask(&j, key, 1, 1);
        if (resident[key])
            continue;
        int64_t left = n == 8 ? victim(&j, key) : MOE_NO_KEY;
        for (uint32_t k = 0; left >= 0 && k < N_KEYS; k++) {
            double worth[2];
            const uint32_t keys[2] = {(uint32_t)left, k};
            for (int i = 0; i < 2; i++) {
                uint32_t of = keys[i] / N_EXPERTS;
                double wait = ((of + N_LAYERS - layer - 1) % N_LAYERS + 1.0) / N_LAYERS;
                worth[i] = combined(&past, keys[i], spoke[of]) * pow(0.5, wait / HALF_LIFE);
            }
            if (resident[k] && worth[0] > worth[1] * (1 + 1e-9))
                fail_msg("token %u: %u left (%g) instead of %u (%g)", token, keys[0], worth[0], k,
                         worth[1]);
        }
        if (left >= 0) {
            assert_true(resident[left]);
            j.policy->ops->drop(j.policy, (uint32_t)left);
            resident[left] = false;
            leavers++;
        } else {
            n++;
        }
        admit(&j, key);
        resident[key] = true;
    }
    assert_in_range(leavers, 100, N_ITEMS(past.uses));
    judged_close(&j);
}

static void some_policies_need_a_record_of_use(void **state)
{
    const struct moe_policy_ops *ops;
    const struct moe_policy_params params = {.n_keys = N_KEYS, .capacity = 4};
    int needy = 0;
    for (int i = 0; (ops = moe_policy_at(i)) != NULL; i++) {
        struct moe_err err = {0};
        struct moe_policy *p = NULL;
        if (ops->needs_usage)
            assert_fails(moe_policy_open(&p, ops, &params, &err), MOE_ERR_USAGE, ops->name, &err);
        else
            assert_ok(moe_policy_open(&p, ops, &params, &err), &err);
        moe_policy_close(p);
        needy += ops->needs_usage;
    }
    assert_int_equal(needy, 8);
}

/*
 * Four layers, the second at work in the third token, 2 experts a token; so layers 0 and 1 have
 * seen 3 tokens, layers 2 and 3 have seen 2:
 *
 *     layer   count   ratio         times 1 - l/4
 *     3       0       0             2.5e-7 (epsilon alone)
 *     0       0       0             1e-6
 *     0       1       1/6           0.1667
 *     3       3       3/4           0.1875
 *     2       2       2/4           0.25 + 0.5e-6
 *     1       2       2/6           0.25 + 0.75e-6
 */
static void infinity_weighs_a_texts_shares_by_layer(void **state)
{
    static const struct {
        uint32_t layer, expert, count;
    } resident[] = {{3, 1, 0}, {0, 1, 0}, {0, 0, 1}, {3, 0, 3}, {2, 0, 2}, {1, 0, 2}};
    enum { N = sizeof resident / sizeof resident[0] };
    struct judged j;
    uint32_t order[N];
    judged_open(&j, "infinity", NULL, 0);
    moe_usage_begin_sequence(&j.usage);
    moe_usage_begin_tokens(&j.usage, 2);
    moe_usage_begin_tokens(&j.usage, 1);
    j.usage.layer = 1;
    for (int i = 0; i < N; i++) {
        order[i] = key_of(resident[i].layer, resident[i].expert);
        j.usage.count[order[i]] = resident[i].count;
        admit(&j, order[i]);
    }
    assert_leave(&j, key_of(1, 5), order, N);
    judged_close(&j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(edgemoe_weighs_frequency_by_the_layers_to_come),
        cmocka_unit_test(a_later_visit_comes_first),
        cmocka_unit_test(edgemoe_gives_up_encoders_first),
        cmocka_unit_test(encoders_do_not_return),
        cmocka_unit_test(edgemoe_in_one_layer_is_frequency),
        cmocka_unit_test(hobbit_is_equation_3),
        cmocka_unit_test(hobbit_weighs_its_terms),
        cmocka_unit_test(hobbit_keeps_what_is_used_at_high_precision),
        cmocka_unit_test(lfu_counts_all_uses_of_the_sequence),
        cmocka_unit_test(lfu_is_hobbit_by_use_alone),
        cmocka_unit_test(lrfu_weighs_recency_against_frequency),
        cmocka_unit_test(lrfu_spreads_the_uses_of_a_pass),
        cmocka_unit_test(lrfu_counts_time_layer_by_layer),
        cmocka_unit_test(lrfu_equals_its_definition),
        cmocka_unit_test(some_policies_need_a_record_of_use),
        cmocka_unit_test(infinity_weighs_a_texts_shares_by_layer),
    };
    return cmocka_run_group_tests_name("policy_scored", tests, NULL, NULL);
}
