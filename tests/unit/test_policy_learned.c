/*
 * Policies that follow what routers choose: transition and learned, against hand-computed cases and
 * plain implementations of their definitions in double precision.
 */
#define _DEFAULT_SOURCE /* scratch_dir.h */
#include <math.h>
#include <pthread.h>

#include "base/file.h"
#include "base/hash.h"
#include "cache/exact_math.h"
#include "cache/learnt.h"
#include "cache/policy.h"

#include "../scratch_dir.h"
#include "../test.h"

enum { N_LAYERS = 3, N_EXPERTS = 12, N_KEYS = N_LAYERS * N_EXPERTS, TOP_K = 2, N_TOKENS = 300 };

static const char *const names[] = {"transition", "learned"};

/* [token][layer] a hot set that moves, and what follows what. */
static uint32_t tokens[N_TOKENS][N_LAYERS][TOP_K];

static int draw(void **state)
{
    uint64_t random = 5;
    for (uint32_t t = 0; t < N_TOKENS; t++)
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            uint64_t r = test_random(&random);
            uint32_t a = (uint32_t)(r % 3 || t == 0 ? (r >> 8) % 5 + t / 80 * 2
                                                    : tokens[t - 1][l][0] * 5 + 1) %
                         N_EXPERTS;
            tokens[t][l][0] = a;
            tokens[t][l][1] = (a + 1 + (uint32_t)(r >> 32) % (N_EXPERTS - 1)) % N_EXPERTS;
        }
    return 0;
}

static void open_usage(struct moe_usage *u, const char *name)
{
    struct moe_err err = {0};
    assert_ok(moe_usage_init(u, N_LAYERS, N_EXPERTS, TOP_K, &err), &err);
    assert_ok(moe_policy_follow(moe_policy_find(name), u, 0, &err), &err);
}

static void choose(struct moe_usage *u, uint32_t layer, const uint32_t *chosen, uint32_t n_rows)
{
    const struct moe_choices c = {layer, n_rows, chosen, NULL};
    moe_usage_chosen(u, &c);
}

static float score(const struct moe_usage *u, uint32_t layer, uint32_t expert)
{
    return u->follower->scores[layer * N_EXPERTS + expert];
}

/* ---- Arithmetic ---- */

static void logarithms_and_powers_are_close(void **state)
{
    for (double x = 1e-35; x < 1e35; x *= 1.0137) {
        double wants = log2((double)(float)x), got = (double)moe_exact_log2((float)x);
        assert_true(fabs(got - wants) <= 4e-7 * fmax(1, fabs(wants)));
    }
    for (double x = -125.9; x < 126; x += 0.0371) {
        double wants = exp2((double)(float)x), got = (double)moe_exact_exp2((float)x);
        assert_true(fabs(got - wants) <= 4e-7 * wants);
    }
    assert_true(moe_exact_log2(1) == 0 && moe_exact_log2(8) == 3 &&
                moe_exact_log2(0x1p-100f) == -100);
    for (double x = 1e-300; x < 1e300; x *= 1.173)
        assert_true(fabs(moe_exact_log2_double(x) - log2(x)) <= 4e-16 * fmax(1, fabs(log2(x))));
    for (double x = -1021.9; x < 1022; x += 0.371)
        assert_true(fabs(moe_exact_exp2_double(x) - exp2(x)) <= 4e-16 * exp2(x));
    assert_true(moe_exact_log2_double(1) == 0 && moe_exact_log2_double(0x1p-1000) == -1000);
    assert_true(moe_exact_exp2_double(0) == 1 && moe_exact_exp2_double(-INFINITY) == 0x1p-1022);
    assert_true(moe_exact_exp2(0) == 1 && moe_exact_exp2(-3) == 0.125f);
    assert_true(moe_exact_exp2(-1e9f) == 0x1p-126f && moe_exact_exp2(1e9f) == 0x1p127f);
}

/* ---- Transition ---- */

/*
 * One layer of 12 experts, 2 a token: {0, 1}, {2, 3}, {0, 1}. After the third, S = {0, 1}, each was
 * followed once, by 2 and 3. With k/2E = 1/12 and 3 tokens: of 2, count 1,
 *
 *     b = (1 + 1/12) / 3.5 = 0.309524    ratio = (1 + 4b) / 5 / b = 1.446154
 *     C = 2^(-1/8), so that log2 C + log2 ratio = -0.125 + 0.532221 = 0.407221
 *
 * Of 0, count 2, b = 0.595238, N = 0: ratio 4/5; C = 1 + 2^(-2/8): 0.880411 - 0.321928. Of 5, never
 * used: ratio 4/5, C = 2^-100.
 */
static void transition_of_three_tokens(void **state)
{
    static const uint32_t rows[3][TOP_K] = {{0, 1}, {2, 3}, {0, 1}};
    struct moe_usage u;
    open_usage(&u, "transition");
    for (int i = 0; i < 3; i++)
        choose(&u, 0, rows[i], 1);
    assert_true(fabs((double)score(&u, 0, 2) - 0.407221) < 1e-5);
    assert_true(fabs((double)score(&u, 0, 3) - 0.407221) < 1e-5);
    assert_true(fabs((double)score(&u, 0, 0) - (log2(1 + exp2(-2.0 / 8)) - 0.321928)) < 1e-5);
    assert_true(fabs((double)score(&u, 0, 5) - (-100 - 0.321928)) < 1e-4);
    /* Another text: {2, 3} follows nothing, so that 2 was still followed once, by 0 and 1. */
    u.follower->begin_sequence(u.follower);
    choose(&u, 0, rows[1], 1);
    double b = (2 + 1.0 / 12) / 4.5, worth = exp2(-1.0 / 8) + exp2(-3.0 / 8);
    double wants = log2(worth) + log2((1 + 4 * b) / 5 / b);
    assert_true(fabs((double)score(&u, 0, 0) - wants) < 1e-5);
    moe_usage_release(&u);
}

/* The definition, from all tokens of a layer up to `now`. */
static double naive_ratio(uint32_t layer, uint32_t now, uint32_t e)
{
    double count = 0, sum = 0;
    for (uint32_t t = 0; t <= now; t++)
        count += tokens[t][layer][0] == e || tokens[t][layer][1] == e;
    double b = (count + 0.5 * TOP_K / N_EXPERTS) / (now + 1 + 0.5);
    for (uint32_t i = 0; i < TOP_K; i++) {
        uint32_t a = tokens[now][layer][i];
        double n = 0, followed = 0;
        for (uint32_t t = 0; t < now; t++)
            if (tokens[t][layer][0] == a || tokens[t][layer][1] == a) {
                n++;
                followed += tokens[t + 1][layer][0] == e || tokens[t + 1][layer][1] == e;
            }
        sum += (followed + 4 * b) / (n + 4);
    }
    return sum / TOP_K / b;
}

static double naive_uses(uint32_t layer, uint32_t now, uint32_t e, double half_life)
{
    double c = 0;
    for (uint32_t t = 0; t <= now; t++)
        if (tokens[t][layer][0] == e || tokens[t][layer][1] == e)
            c += exp2(-(double)(now - t) / half_life);
    return c;
}

static void transition_equals_its_definition(void **state)
{
    struct moe_usage u;
    open_usage(&u, "transition");
    for (uint32_t t = 0; t < 120; t++)
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            choose(&u, l, tokens[t][l], 1);
            for (uint32_t e = 0; e < N_EXPERTS; e++) {
                double c = naive_uses(l, t, e, 8);
                double wants = (c > 0 ? log2(c) : -100) + log2(naive_ratio(l, t, e));
                assert_true(fabs((double)score(&u, l, e) - wants) < 1e-4);
            }
        }
    moe_usage_release(&u);
}

/* Of the same score leaves the one whose layer runs last; a score an eighth lower beats a whole
 * token's wait. */
static void what_waits_longest_leaves(void **state)
{
    static const uint32_t row[TOP_K] = {0, 1};
    struct moe_usage u;
    struct moe_err err = {0};
    struct moe_policy *p = NULL;
    open_usage(&u, "transition");
    const struct moe_policy_params params = {.n_keys = N_KEYS, .capacity = 4, .usage = &u};
    const struct moe_policy_ops *ops = moe_policy_find("transition");
    assert_ok(moe_policy_open(&p, ops, &params, &err), &err);
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        choose(&u, l, row, 1);
        ops->admit(p, l * N_EXPERTS);
    }
    assert_int_equal(ops->victim(p, 1 * N_EXPERTS + 5, NULL, NULL), 1 * N_EXPERTS);
    assert_int_equal(ops->victim(p, 0 * N_EXPERTS + 5, NULL, NULL), 0);
    u.follower->scores[2 * N_EXPERTS] -= 0.09f; /* waits 2/3 of a token less than layer 1's */
    u.follower->version[2]++;
    assert_int_equal(ops->victim(p, 1 * N_EXPERTS + 5, NULL, NULL), 2 * N_EXPERTS);
    moe_policy_close(p);
    moe_usage_release(&u);
}

/* ---- Learned ---- */

enum { TERMS = 10 };

/* All but votes and 1. */
static void naive_terms(uint32_t layer, uint32_t t, uint32_t e, double *x)
{
    static const double half_lives[] = {2, 8, 32, 1e15};
    for (int i = 0; i < 4; i++) {
        double n = 0;
        for (uint32_t s = 0; s <= t; s++)
            n += exp2(-(double)(t - s) / half_lives[i]);
        x[i] = log((naive_uses(layer, t, e, half_lives[i]) + 0.5 * TOP_K / N_EXPERTS) / (n + 0.5) *
                   N_EXPERTS / TOP_K);
    }
    x[4] = tokens[t][layer][0] == e || tokens[t][layer][1] == e;
    x[5] = log(naive_ratio(layer, t, e));
}

/* Adds to w what solves a w = g, by elimination. */
static void naive_step(double a[TERMS][TERMS], const double *g, double *w)
{
    double m[TERMS][TERMS + 1];
    for (int i = 0; i < TERMS; i++) {
        memcpy(m[i], a[i], sizeof a[i]);
        m[i][TERMS] = g[i];
    }
    for (int i = 0; i < TERMS; i++)
        for (int r = 0; r < TERMS; r++)
            for (int j = TERMS; r != i && j >= i; j--)
                m[r][j] -= m[r][i] / m[i][i] * m[i][j];
    for (int i = 0; i < TERMS; i++)
        w[i] += m[i][TERMS] / m[i][i];
}

/* Sums of shares by distance, in the same arithmetic, since equal ones decide who votes. */
struct naive_paths {
    uint32_t likeness[N_TOKENS];
    double later[N_LAYERS][2][N_EXPERTS]; /* votes */
};

static bool has(uint32_t t, uint32_t layer, uint32_t e)
{
    return tokens[t][layer][0] == e || tokens[t][layer][1] == e;
}

static void naive_compare(struct naive_paths *p, uint32_t t, uint32_t layer)
{
    for (uint32_t d = 1; d <= t; d++) {
        uint32_t l = p->likeness[d];
        int same = has(t - d, layer, tokens[t][layer][0]) + has(t - d, layer, tokens[t][layer][1]);
        p->likeness[d] = l - l / 8 + (uint32_t)same * (8064 / TOP_K);
    }
}

/* The votes for what layer `of` chooses next, or `later` tokens after that, of each expert, after
 * `layer` of token t. false: nothing votes. */
static bool naive_votes(const struct naive_paths *p, uint32_t t, uint32_t layer, uint32_t of,
                        uint32_t later, double *votes)
{
    uint32_t then = later + (of <= layer);
    bool taken[N_TOKENS] = {0};
    memset(votes, 0, N_EXPERTS * sizeof *votes);
    for (int n = 0; n < 8; n++) {
        uint32_t best = 0;
        for (uint32_t d = 1; d <= t; d++)
            if (!taken[d] && p->likeness[d] > (best ? p->likeness[best] : 0))
                best = d;
        if (!best)
            return n > 0;
        taken[best] = true;
        double s = p->likeness[best] / 64512.0;
        bool was = then < best || (then == best && of <= layer);
        for (int i = 0; was && i < TOP_K; i++)
            votes[tokens[t - best + then][of][i]] += exp(8 * s);
    }
    return true;
}

/* An example: terms of all experts that were used, and what their first use within the next four
 * tokens is worth. */
struct naive_example {
    double x[N_EXPERTS][TERMS], label[N_EXPERTS];
    bool known[N_EXPERTS];
    int waits;
    uint32_t began;
};

/* The later votes of a layer are those after its own last choice. */
static void naive_all_terms(struct naive_paths *p, uint32_t t, uint32_t layer, uint32_t of,
                            struct naive_example *out)
{
    double votes[N_EXPERTS];
    uint32_t now = of <= layer ? t : t - 1; /* its last choice */
    naive_votes(p, t, layer, of, 0, votes);
    for (uint32_t later = 1; of == layer && later < 3; later++)
        naive_votes(p, t, layer, of, later, p->later[of][later - 1]);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        double count = naive_uses(of, now, e, 1e15);
        naive_terms(of, now, e, out->x[e]);
        double b = (count + 0.5 * TOP_K / N_EXPERTS) / (now + 1.5);
        out->x[e][6] = log(1 + votes[e] / (1024 * b));
        out->x[e][7] = log(1 + p->later[of][0][e] / (1024 * b));
        out->x[e][8] = log(1 + p->later[of][1][e] / (1024 * b));
        out->x[e][9] = 1;
        out->known[e] = count > 0;
        out->label[e] = 0;
    }
}

static double weighed(const double *w, const double *x)
{
    double z = 0;
    for (int i = 0; i < TERMS; i++)
        z += w[i] * x[i];
    return z;
}

static void naive_learn(const struct naive_example *x, const double *w, double a[TERMS][TERMS],
                        double *g)
{
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        double p = 1 / (1 + exp(-weighed(w, x->x[e])));
        for (int i = 0; x->known[e] && i < TERMS; i++) {
            g[i] += (x->label[e] - p) * x->x[e][i];
            for (int j = 0; j < TERMS; j++)
                a[i][j] += p * (1 - p) * x->x[e][i] * x->x[e][j];
        }
    }
}

/* Before the first example z is the term of half-life 8 and the votes' less 2. */
static void learned_equals_its_definition(void **state)
{
    double a[TERMS][TERMS] = {{0}}, g[TERMS] = {0}, w[TERMS] = {0, 1, 0, 0, 0, 0, 1, 0.5, 0.4, -2};
    struct naive_example examples[N_LAYERS] = {0}, now;
    struct naive_paths paths = {0};
    struct moe_usage u;
    uint32_t random = 0;
    bool learns = false;
    open_usage(&u, "learned");
    for (uint32_t l = 0; l < N_LAYERS; l++)
        examples[l].began = 0 - l % 5;
    for (int i = 0; i < TERMS; i++)
        a[i][i] = 300;
    for (uint32_t t = 0; t < 100; t++) {
        if (learns) {
            naive_step(a, g, w);
            for (int i = 0; i < TERMS; i++) {
                g[i] = 0;
                for (int j = 0; j < TERMS; j++)
                    a[i][j] *= 0.99;
                a[i][i] += 3;
            }
        }
        learns = false;
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            struct naive_example *of = &examples[l];
            choose(&u, l, tokens[t][l], 1);
            for (int i = 0; of->waits && i < TOP_K; i++)
                of->label[tokens[t][l][i]] =
                    fmax(of->label[tokens[t][l][i]], 1.1 - 0.1 * of->waits);
            if (of->waits && of->waits++ == 4) {
                naive_learn(of, w, a, g);
                of->waits = 0;
                learns = true;
            }
            double votes[N_EXPERTS];
            naive_compare(&paths, t, l);
            bool any = naive_votes(&paths, t, l, l, 0, votes);
            naive_all_terms(&paths, t, l, l, &now);
            for (uint32_t ahead = 1; any && ahead <= N_LAYERS; ahead++) { /* a quarter: 1 layer */
                uint32_t m = (l + ahead) % N_LAYERS, runs = m <= l ? t + 1 : t;
                if (!runs || runs - examples[m].began < 5 || examples[m].waits)
                    continue;
                random = random * 1664525 + 1013904223;
                if ((random >> 8) % 4 == 0) {
                    naive_all_terms(&paths, t, l, m, &examples[m]);
                    examples[m].waits = 1;
                    examples[m].began = runs;
                }
            }
            for (uint32_t m = l + 1; any && m < N_LAYERS;
                 m++) { /* what predictions are raised by */
                float scores[N_EXPERTS];
                naive_all_terms(&paths, t, l, m, &now);
                for (uint32_t e = 0; e < N_EXPERTS; e++)
                    scores[e] = 0.125f;
                u.follower->expect(u.follower, m, scores);
                for (uint32_t e = 0; e < N_EXPERTS && t > 0; e++)
                    assert_true(fabs((double)scores[e] - 0.125 * exp(0.5 * now.x[e][6])) < 1e-4);
            }
            naive_all_terms(&paths, t, l, l, &now);
            for (uint32_t e = 0; e < N_EXPERTS; e++) {
                double z = weighed(w, now.x[e]);
                if (!now.known[e])
                    assert_true(score(&u, l, e) == -1000);
                else if (fabs((double)score(&u, l, e) - z) > 1e-4)
                    fail_msg("token %u, layer %u, expert %u: %g, not %g", t, l, e,
                             (double)score(&u, l, e), z);
            }
        }
    }
    assert_true(fabs(w[9] + 2) > 0.05 && fabs(w[6] - 1) > 0.001); /* it has learnt something */
    moe_usage_release(&u);
}

/* ---- What it has learnt ---- */

static const struct moe_learnt_origin origin = {77, "the model", N_LAYERS, N_EXPERTS, TOP_K};

static void choose_all(struct moe_usage *u, uint32_t from, uint32_t to)
{
    for (uint32_t t = from; t < to; t++)
        for (uint32_t l = 0; l < N_LAYERS; l++)
            choose(u, l, tokens[t][l], 1);
}

/* The next text's first token is scored as by the one that learnt; where there is room for fewer
 * past tokens, nearly so. */
static void what_was_learnt_goes_on(void **state)
{
    struct moe_err err = {0};
    struct moe_usage a, b, few;
    open_usage(&a, "learned");
    open_usage(&b, "learned");
    assert_ok(moe_usage_init(&few, N_LAYERS, N_EXPERTS, TOP_K, &err), &err);
    assert_ok(moe_policy_follow(moe_policy_find("learned"), &few, 100000, &err), &err);
    assert_true(few.follower->n_tokens > 0 && few.follower->n_tokens < a.follower->n_tokens);
    choose_all(&a, 0, 200);
    assert_ok(moe_learnt_write(in_dir("learnt"), &origin, a.follower, &err), &err);
    assert_ok(moe_learnt_read(in_dir("learnt"), &origin, b.follower, &err), &err);
    assert_ok(moe_learnt_read(in_dir("learnt"), &origin, few.follower, &err), &err);
    for (uint32_t k = 0; k < N_KEYS; k++)
        assert_true(b.follower->scores[k] == few.follower->scores[k]);
    a.follower->begin_sequence(a.follower);
    choose_all(&a, 200, 201);
    choose_all(&b, 200, 201);
    choose_all(&few, 200, 201);
    double apart = 0;
    for (uint32_t k = 0; k < N_KEYS; k++) {
        assert_true(a.follower->scores[k] == b.follower->scores[k]);
        apart = fmax(apart, fabs((double)(a.follower->scores[k] - few.follower->scores[k])));
    }
    assert_true(apart > 0 && apart < 3);
    moe_usage_release(&a);
    moe_usage_release(&b);
    moe_usage_release(&few);
}

static bool poison(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    memset(numbers, *(const int *)ctx, n * bytes);
    return true;
}

/* All zero but the curvature of 10 terms; *beside: a number off its diagonal. */
struct curved {
    int n_arrays;
    double beside;
};
static bool curve(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    struct curved *c = ctx;
    double *curvature = numbers;
    memset(numbers, 0, n * bytes);
    if (c->n_arrays++ == 1) {
        for (int i = 0; i < 10; i++)
            curvature[11 * i] = 300;
        curvature[10] = c->beside;
    }
    return true;
}

/* After a file that cannot be read nothing is known: what follows is scored as after none. */
static void what_is_wrong_is_not_learnt(void **state)
{
    struct moe_err err = {0};
    struct moe_usage a, b, fresh;
    struct moe_buf file = {0};
    open_usage(&a, "learned");
    open_usage(&b, "learned");
    open_usage(&fresh, "learned");
    choose_all(&a, 0, 50);
    assert_ok(moe_learnt_write(in_dir("learnt"), &origin, a.follower, &err), &err);
    assert_ok(moe_file_read_all(in_dir("learnt"), 1 << 20, &file, &err), &err);
    struct moe_learnt_origin other = origin;
    other.source = 78;
    assert_fails(moe_learnt_read(in_dir("learnt"), &other, b.follower, &err), MOE_ERR_USAGE,
                 "another model", &err);
    other = origin;
    other.n_experts++;
    assert_fails(moe_learnt_read(in_dir("learnt"), &other, b.follower, &err), MOE_ERR_USAGE,
                 "another number of layers", &err);
    for (uint64_t at = 0; at < file.size; at += at < 3000 ? 7 : 4999) {
        file.data[at] ^= 4;
        write_in_dir("learnt", file.data, file.size);
        assert_true(moe_learnt_read(in_dir("learnt"), &origin, b.follower, &err) < 0);
        file.data[at] ^= 4;
    }
    for (uint64_t n = 0; n < file.size; n += file.size / 10) {
        struct moe_learnt_about about = {0};
        write_in_dir("learnt", file.data, n);
        assert_true(moe_learnt_read(in_dir("learnt"), &origin, b.follower, &err) < 0);
        assert_fails(moe_learnt_describe(&about, in_dir("learnt"), NULL, &err), MOE_ERR_FORMAT,
                     n ? "its size is not what its header says" : "it is empty", &err);
    }
    for (int byte = 0; byte < 256; byte += 51)
        assert_false(b.follower->learnt(b.follower, 10, true, poison, &byte));
    struct curved plain = {0, 0}, away = {0, 1e6};
    assert_true(a.follower->learnt(a.follower, 10, true, curve, &plain));
    assert_false(b.follower->learnt(b.follower, 10, true, curve, &away));
    choose_all(&b, 0, 30);
    choose_all(&fresh, 0, 30);
    assert_memory_equal(b.follower->scores, fresh.follower->scores, N_KEYS * sizeof(float));
    moe_buf_release(&file);
    moe_usage_release(&a);
    moe_usage_release(&b);
    moe_usage_release(&fresh);
}

/* ---- Both ---- */

/* A hash of all scores over all tokens. */
static void *hash_scores(void *name)
{
    static uint64_t hashes[64];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int n;
    struct moe_usage u;
    uint64_t hash = 0;
    open_usage(&u, name);
    for (uint32_t t = 0; t < N_TOKENS; t++)
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            choose(&u, l, tokens[t][l], 1);
            hash = moe_hash64_chain(hash, u.follower->scores, N_KEYS * sizeof(float));
        }
    moe_usage_release(&u);
    pthread_mutex_lock(&lock);
    uint64_t *out = &hashes[n++];
    *out = hash;
    pthread_mutex_unlock(&lock);
    return out;
}

/* The same bits on any thread, and on any machine: those written here. */
static void scores_are_the_same_everywhere(void **state)
{
    static const uint64_t wants[] = {0x62de64921eef0c88, 0xf446f5943095e089};
    for (int i = 0; i < 2; i++) {
        pthread_t threads[4];
        for (int k = 0; k < 4; k++)
            assert_int_equal(pthread_create(&threads[k], NULL, hash_scores, (void *)names[i]), 0);
        for (int k = 0; k < 4; k++) {
            void *got;
            assert_int_equal(pthread_join(threads[k], &got), 0);
            if (*(uint64_t *)got != wants[i])
                fail_msg("%s: %#llx", names[i], (unsigned long long)*(uint64_t *)got);
        }
    }
}

/* A prompt in one pass leaves what its tokens one by one do: transition's scores. */
static void a_pass_is_its_tokens_one_by_one(void **state)
{
    struct moe_usage one, all;
    uint32_t rows[40][TOP_K];
    open_usage(&one, "transition");
    open_usage(&all, "transition");
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        for (uint32_t t = 0; t < N_ITEMS(rows); t++) {
            memcpy(rows[t], tokens[t][l], sizeof rows[t]);
            choose(&one, l, rows[t], 1);
        }
        choose(&all, l, rows[0], N_ITEMS(rows));
        for (uint32_t e = 0; e < N_EXPERTS; e++)
            assert_true(score(&one, l, e) == score(&all, l, e));
    }
    moe_usage_release(&one);
    moe_usage_release(&all);
}

/* Two texts side by side: each token follows its own text's, and both speak of what comes next.
 * Texts that always say the same are then as good as one. */
static void texts_side_by_side_follow_themselves(void **state)
{
    static const uint32_t rows[2][2][TOP_K] = {{{0, 1}, {4, 5}}, {{2, 3}, {6, 7}}};
    static const uint32_t sequences[2] = {7, 9};
    struct moe_usage u;
    open_usage(&u, "transition");
    for (int t = 0; t < 21; t++) {
        const struct moe_choices c = {0, 2, rows[t % 2][0], sequences};
        moe_usage_chosen(&u, &c);
    }
    /* After {0, 1} and {4, 5} come {2, 3} and {6, 7}: each after its own half of S, ten times. */
    double b = (10 + 1.0 / 12) / 42.5, ratio = (10 + 8 * b) / 14 / 2 / b;
    double worth = 0;
    for (int age = 2; age < 41; age += 4)
        worth += exp2(-(age + 1) / 8.0);
    assert_true(fabs((double)score(&u, 0, 2) - log2(worth) - log2(ratio)) < 1e-4);
    moe_usage_release(&u);
}

/* Two texts side by side say the same, each expert every fourth token: what comes in two tokens is
 * likelier than what has just been chosen, though the other text chooses that in the same pass. */
static void examples_are_labelled_by_their_own_text(void **state)
{
    static const uint32_t sequences[2] = {3, 8};
    struct moe_usage u;
    open_usage(&u, "learned");
    for (uint32_t t = 0; t < 400; t++)
        for (uint32_t l = 0; l < N_LAYERS; l++) {
            const uint32_t first = t % 4 * TOP_K,
                           rows[2][TOP_K] = {{first, first + 1}, {first, first + 1}};
            const struct moe_choices c = {l, 2, rows[0], sequences};
            moe_usage_chosen(&u, &c);
        }
    uint32_t now = 399 % 4, then = (now + 2) % 4; /* the expert of two tokens later */
    assert_true(score(&u, 0, then * TOP_K) > score(&u, 0, now * TOP_K));
    moe_usage_release(&u);
}

/* A text of one token leaves no example: nothing is learnt from what another text says next. */
static void texts_do_not_label_one_another(void **state)
{
    struct moe_usage u;
    open_usage(&u, "learned");
    for (uint32_t t = 0; t < 60; t++) {
        u.follower->begin_sequence(u.follower);
        for (uint32_t l = 0; l < N_LAYERS; l++)
            choose(&u, l, tokens[t][l], 1);
    }
    struct naive_example now;
    struct naive_paths paths = {0}; /* a text's token follows none here, either */
    for (uint32_t l = 0; l < N_LAYERS; l++) {
        naive_compare(&paths, 59, l);
        naive_all_terms(&paths, 59, l, 0, &now);
    }
    for (uint32_t e = 0; e < N_EXPERTS; e++) { /* still as at first */
        double uses = naive_uses(0, 59, e, 8), n = 0;
        for (uint32_t t = 0; t < 60; t++)
            n += exp2(-(double)t / 8);
        double share = log((uses + 0.5 * TOP_K / N_EXPERTS) / (n + 0.5) * N_EXPERTS / TOP_K);
        double z = share + now.x[e][6] + 0.5 * now.x[e][7] + 0.4 * now.x[e][8] - 2;
        assert_true(uses == 0 || fabs((double)score(&u, 0, e) - z) < 1e-4);
    }
    moe_usage_release(&u);
}

/* Counts of 16 bits: a row that is full halves, and what it says stays nearly the same. */
static void full_counts_halve(void **state)
{
    static const uint32_t rows[2][TOP_K] = {{0, 1}, {2, 3}};
    struct moe_usage u;
    float before = 0;
    open_usage(&u, "transition");
    for (int t = 0; t < 2 * 70001; t++) {
        choose(&u, 0, rows[t % 2], 1);
        if (t == 2 * 65000 + 1)
            before = score(&u, 0, 0);
    }
    assert_true(fabs((double)(score(&u, 0, 0) - before)) < 1e-3);
    moe_usage_release(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithms_and_powers_are_close),
        cmocka_unit_test(transition_of_three_tokens),
        cmocka_unit_test(transition_equals_its_definition),
        cmocka_unit_test(what_waits_longest_leaves),
        cmocka_unit_test(learned_equals_its_definition),
        cmocka_unit_test_setup_teardown(what_was_learnt_goes_on, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_not_learnt, make_dir, remove_dir),
        cmocka_unit_test(scores_are_the_same_everywhere),
        cmocka_unit_test(a_pass_is_its_tokens_one_by_one),
        cmocka_unit_test(texts_side_by_side_follow_themselves),
        cmocka_unit_test(examples_are_labelled_by_their_own_text),
        cmocka_unit_test(texts_do_not_label_one_another),
        cmocka_unit_test(full_counts_halve),
    };
    return cmocka_run_group_tests_name("policy_learned", tests, draw, NULL);
}
