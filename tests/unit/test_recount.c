/*
 * Figures of strategies, counted again from a trace of the same documents: how many of the routed
 * experts each predictor had named, and how many activations hit a cache, by simulations that are
 * slow and plain.
 */
#include <math.h>

#include "lockstep_fixture.h"

enum { KEYS = LAYERS * EXPERTS, ALL_TOKENS = N_DOCUMENTS * N_ALL };

static struct strategies fixture;

/* What the model did with the documents: [token][layer]. */
static struct {
    uint16_t chosen[TOP_K];
    uint16_t ranked[MOE_N_PREDICTORS][EXPERTS]; /* by falling score */
} seen[ALL_TOKENS][LAYERS];

/* ---- The trace ---- */

static void read_trace(const char *path)
{
    struct moe_err err = {0};
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    assert_ok(moe_trace_open(&t, path, &err), &err);
    for (uint32_t at = 0; at < ALL_TOKENS; at++) {
        assert_ok(moe_trace_next(t, &token, &err), &err);
        assert_non_null(token);
        assert_int_equal(token->sequence * N_ALL + token->index, at);
        for (uint32_t l = 0; l < LAYERS; l++) {
            const struct moe_trace_step step = moe_trace_step(t, l);
            memcpy(seen[at][l].chosen, step.experts, sizeof seen[at][l].chosen);
            for (int p = 0; p < MOE_N_PREDICTORS; p++)
                if (step.predicted[p].experts)
                    memcpy(seen[at][l].ranked[p], step.predicted[p].experts,
                           sizeof seen[at][l].ranked[p]);
        }
    }
    moe_trace_close(t);
}

static int open_all(void **state)
{
    char path[128];
    strategies_set_up(&fixture, "recount", 4);
    snprintf(path, sizeof path, "/tmp/moe-recount-%d.trace", (int)getpid());
    lockstep_write_trace(&fixture, path, EXPERTS, 50);
    read_trace(path);
    unlink(path);
    return 0;
}

static int close_all(void **state)
{
    strategies_tear_down(&fixture);
    return 0;
}

/* ---- Predictions ---- */

static bool has(const uint16_t *list, uint32_t n, uint16_t x)
{
    for (uint32_t i = 0; i < n; i++)
        if (list[i] == x)
            return true;
    return false;
}

/* The best experts by path statistics, from what the layers before had chosen. */
static void rank_paths(uint32_t at, uint32_t layer, enum moe_predictor predictor, uint16_t *ranked)
{
    uint32_t before[TOP_K];
    float scores[EXPERTS];
    for (int k = 0; k < TOP_K; k++)
        before[k] = seen[at][layer - 1].chosen[k];
    moe_path_scores(fixture.statistics, predictor, layer,
                    layer > 1 ? seen[at][layer - 2].chosen[0] : MOE_NO_EXPERT, before, scores);
    for (uint32_t rank = 0; rank < EXPERTS; rank++) {
        uint32_t best = 0;
        for (uint32_t e = 1; e < EXPERTS; e++)
            if (scores[e] > scores[best])
                best = e;
        ranked[rank] = scores[best] > 0 ? (uint16_t)best : MOE_NO_EXPERT; /* never seen */
        scores[best] = -1;
    }
}

/* How many of a token's experts in a layer are among the `n` that the predictor ranks first. */
static uint32_t count_right(uint32_t at, uint32_t layer, enum moe_predictor predictor, uint32_t n)
{
    uint16_t by_path[EXPERTS];
    const uint16_t *ranked = seen[at][layer].ranked[predictor];
    if (predictor == MOE_PREDICT_PREVIOUS)
        ranked = seen[at - 1][layer].chosen;
    if (predictor == MOE_PREDICT_PATH || predictor == MOE_PREDICT_PATH_RANK1)
        rank_paths(at, layer, predictor, by_path);
    if (predictor == MOE_PREDICT_PATH || predictor == MOE_PREDICT_PATH_RANK1)
        ranked = by_path;
    uint32_t right = 0;
    for (int k = 0; k < TOP_K; k++)
        right += has(ranked, n, seen[at][layer].chosen[k]);
    return right;
}

static void predictions_are_as_the_trace_has_them(void **state)
{
    static const struct {
        const char *words;
        enum moe_predictor predictor;
        uint32_t n; /* in the predicted set */
    } wanted[] = {
        /* The 75th percentile of 32 scores is the 24th from below: 8 are above it. */
        {"fate prefill=popularity", MOE_PREDICT_GATE_1, 8},
        {"lru predict=gate-next prefetch=percentile:90", MOE_PREDICT_GATE_1, 3},
        {"lru predict=gate-ahead:1 prefetch=all", MOE_PREDICT_GATE_1, TOP_K},
        /* However far ahead it looks, the last prediction for a layer is made in the layer
         * before. */
        {"hobbit on-miss=load skip-below=0", MOE_PREDICT_GATE_1, TOP_K},
        {"lru predict=gate-residual:1 prefetch=all", MOE_PREDICT_RESIDUAL_1, TOP_K},
        {"lru predict=gate-residual:3 prefetch=percentile:75", MOE_PREDICT_RESIDUAL_1, 8},
        {"lru predict=gate-attention prefetch=all", MOE_PREDICT_ATTN, TOP_K},
        {"lru predict=gate-attention prefetch=percentile:75", MOE_PREDICT_ATTN, 8},
        {"lru predict=gate-attention-before prefetch=all", MOE_PREDICT_ATTN_1, TOP_K},
        {"lru predict=previous prefetch=all", MOE_PREDICT_PREVIOUS, TOP_K},
        {"lru predict=path prefetch=all", MOE_PREDICT_PATH, TOP_K},
        {"lru predict=keys prefetch=all", MOE_PREDICT_PATH_RANK1, TOP_K},
        {"eap prefill=popularity", MOE_PREDICT_PATH, 8},
        {"edgemoe", MOE_PREDICT_PATH, TOP_K},
        {"lru predict=gate-next prefetch=count:1", MOE_PREDICT_GATE_1, TOP_K},
    };
    for (size_t i = 0; i < N_ITEMS(wanted); i++) {
        const struct moe_engine_options o = strategies_options(&fixture, wanted[i].words, 2);
        struct moe_engine *e = strategies_open(&fixture, &o);
        uint64_t right = 0;
        /* On its own attention's input even the first layer is predicted. */
        uint32_t first = wanted[i].predictor == MOE_PREDICT_ATTN ? 0 : 1;
        for (uint32_t d = 0; d < N_DOCUMENTS; d++) {
            strategies_run(e->session, fixture.ids[d], N_PROMPT, N_PROMPT, NULL);
            for (uint32_t t = N_PROMPT; t < N_ALL; t++)
                for (uint32_t l = first; l < LAYERS; l++)
                    right += count_right(d * N_ALL + t, l, wanted[i].predictor, wanted[i].n);
        }
        const struct moe_counts *n = &e->session->stats.decode.experts;
        if (n->predicted_right != right)
            fail_msg("%s: %llu of %llu predicted, the trace says %llu", wanted[i].words,
                     (unsigned long long)n->predicted_right, (unsigned long long)n->predicted,
                     (unsigned long long)right);
        assert_int_equal(n->predicted, N_DOCUMENTS * N_DECODE * (LAYERS - first) * TOP_K);
        assert_true(right > n->predicted / 8 && right < n->predicted);
        moe_engine_close(e);
    }
}

/* ---- Caches ---- */

enum judge { LRU, FIFO, LFU, EDGEMOE, HOBBIT, LRFU };

/* A cache, and all that its policy may want to know, recomputed each time. */
struct plain {
    enum judge judge;
    bool keep;         /* the records of lfu and hobbit outlast a document */
    double weights[4]; /* of equation 3 */
    uint32_t capacity, n;
    bool resident[KEYS], wanted[KEYS]; /* wanted: by the layer at work */
    uint64_t clock, admitted[KEYS], touched[KEYS];
    uint64_t frequency[KEYS];
    uint32_t token, first; /* tokens so far, the one at work included; before the document */
    bool used[KEYS][ALL_TOKENS + 1]; /* by token, counted from 1 */
    uint64_t hits, evictions;
};

/* Layers until `to` runs when `from` is at work. */
static uint32_t layers_until(uint32_t from, uint32_t to)
{
    uint32_t n = 1;
    while ((from + n) % LAYERS != to)
        n++;
    return n;
}

/* The last token up to now that used a key, of those after `first`; 0: none. */
static uint32_t last_use(const struct plain *c, uint32_t key, uint32_t first)
{
    for (uint32_t t = c->token; t > first; t--)
        if (c->used[key][t])
            return t;
    return 0;
}

/* Tokens of those after `first` that used a key. */
static uint32_t uses(const struct plain *c, uint32_t key, uint32_t first)
{
    uint32_t n = 0;
    for (uint32_t t = first + 1; t <= c->token; t++)
        n += c->used[key][t];
    return n;
}

/* HOBBIT's equation 3: p = w_lru R/T + w_lfu F/T + w_lhu H/T + w_fld (1 - ((l_t - l_i + l_n) % l_n)
 * / l_n), every use at high precision. */
static double equation_3(const struct plain *c, uint32_t key, uint32_t layer)
{
    uint32_t first = c->keep ? 0 : c->first, last = last_use(c, key, first);
    double T = c->token - first, R = last ? last - first : 0;
    double F = uses(c, key, first);
    double l_t = key / EXPERTS, l_i = layer, l_n = LAYERS;
    return (c->weights[0] * R + c->weights[1] * F + c->weights[2] * F) / T +
           c->weights[3] * (1 - fmod(l_t - l_i + l_n, l_n) / l_n);
}

/* Uses that halve each 12 tokens, when the key's layer runs next; its time is its layer's own. */
static double faded(const struct plain *c, uint32_t key, uint32_t layer)
{
    uint32_t of = key / EXPERTS;
    double now = (of <= layer ? c->token : c->token - 1) + layers_until(layer, of) / (double)LAYERS;
    double sum = 0;
    for (uint32_t t = 1; t <= c->token; t++)
        sum += c->used[key][t] ? exp2((t - now) / 12) : 0;
    return sum;
}

/* What a key is worth while `layer` is at work. */
static double worth(const struct plain *c, uint32_t key, uint32_t layer)
{
    switch (c->judge) {
    case LRU:
        return (double)c->touched[key];
    case FIFO:
        return (double)c->admitted[key];
    case LFU:
        return uses(c, key, c->keep ? 0 : c->first);
    case EDGEMOE:
        return (double)c->frequency[key] / layers_until(layer, key / EXPERTS);
    case HOBBIT:
        return equation_3(c, key, layer);
    case LRFU:
        return faded(c, key, layer);
    }
    return 0;
}

/* Of keys that are worth the same, the one used before. */
static bool older(const struct plain *c, uint32_t a, uint32_t b)
{
    uint32_t of_a = last_use(c, a, 0), of_b = last_use(c, b, 0);
    return of_a != of_b ? of_a < of_b : a < b;
}

static void make_room(struct plain *c, uint32_t layer)
{
    uint32_t victim = KEYS;
    double least = 0;
    for (uint32_t key = 0; key < KEYS; key++) {
        if (!c->resident[key] || c->wanted[key])
            continue;
        double value = worth(c, key, layer);
        if (victim < KEYS && (value > least || (value == least && !older(c, key, victim))))
            continue;
        victim = key;
        least = value;
    }
    assert_true(victim < KEYS);
    c->resident[victim] = false;
    c->evictions++;
    c->n--;
}

/* One layer of one token. */
static void ask(struct plain *c, uint32_t layer, const uint16_t *chosen)
{
    memset(c->wanted, 0, sizeof c->wanted);
    for (int k = 0; k < TOP_K; k++) {
        uint32_t key = layer * EXPERTS + chosen[k];
        c->wanted[key] = c->used[key][c->token] = true;
        c->frequency[key]++;
    }
    for (uint32_t key = 0; key < KEYS; key++)
        if (c->wanted[key] && c->resident[key]) {
            c->hits++;
            c->touched[key] = ++c->clock;
        }
    for (uint32_t key = 0; key < KEYS; key++) {
        if (!c->wanted[key] || c->resident[key])
            continue;
        if (c->n == c->capacity)
            make_room(c, layer);
        c->resident[key] = true;
        c->admitted[key] = c->clock + 1;
        c->touched[key] = ++c->clock;
        c->n++;
    }
}

static void simulate(struct plain *c)
{
    for (uint32_t l = 0; l < LAYERS; l++)
        memcpy(c->frequency + l * EXPERTS, moe_series_at(fixture.statistics, MOE_S_ACTIVATIONS, l),
               EXPERTS * sizeof *c->frequency);
    for (uint32_t at = 0; at < ALL_TOKENS; at++) {
        c->token = at + 1;
        c->first = at / N_ALL * N_ALL;
        for (uint32_t l = 0; l < LAYERS; l++)
            ask(c, l, seen[at][l].chosen);
    }
}

static void caches_hit_as_plain_ones_do(void **state)
{
    static const struct {
        const char *words;
        enum judge judge;
        double weights[4];
        bool keep;
    } caches[] = {
        {"lru", LRU, {0}, false},
        {"lru cache=fifo", FIFO, {0}, false},
        {"lru cache=lfu", LFU, {0}, false},
        {"lru cache=lfu keep-records=on", LFU, {0}, true},
        {"lru cache=hobbit cache-weights=0,1,0,0", LFU, {0}, false},
        {"lru cache=edgemoe", EDGEMOE, {0}, false},
        {"lru cache=hobbit", HOBBIT, {0.25, 0.25, 0.25, 0.25}, false},
        {"lru cache=hobbit cache-weights=4,1,1,2", HOBBIT, {0.5, 0.125, 0.125, 0.25}, false},
        {"lru cache=hobbit keep-records=on", HOBBIT, {0.25, 0.25, 0.25, 0.25}, true},
        {"lru cache=lrfu", LRFU, {0}, false},
    };
    for (size_t i = 0; i < N_ITEMS(caches); i++)
        for (double demand = 0.5; demand <= 4; demand *= 2) {
            const struct moe_engine_options o =
                strategies_options(&fixture, caches[i].words, demand);
            struct moe_engine *e = strategies_open(&fixture, &o);
            struct plain *c = calloc(1, sizeof *c);
            c->judge = caches[i].judge;
            c->keep = caches[i].keep;
            memcpy(c->weights, caches[i].weights, sizeof c->weights);
            c->capacity = (uint32_t)(demand * LAYERS * TOP_K);
            simulate(c);
            for (int d = 0; d < N_DOCUMENTS; d++)
                strategies_run(e->session, fixture.ids[d], 1, 0, NULL);
            const struct moe_counts *n = &e->session->stats.decode.experts;
            strategies_check_sums(caches[i].words, n, ALL_TOKENS);
            if (n->cache_hits != c->hits || n->evictions != c->evictions)
                fail_msg("%s, %g tokens' demand: %llu hits and %llu evictions, a plain cache has "
                         "%llu and %llu",
                         caches[i].words, demand, (unsigned long long)n->cache_hits,
                         (unsigned long long)n->evictions, (unsigned long long)c->hits,
                         (unsigned long long)c->evictions);
            assert_int_equal(n->misses, n->activations - c->hits);
            assert_true(demand < 2 || c->hits > 0);
            free(c);
            moe_engine_close(e);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_as_the_trace_has_them),
        cmocka_unit_test(caches_hit_as_plain_ones_do),
    };
    return cmocka_run_group_tests_name("recount", tests, open_all, close_all);
}
