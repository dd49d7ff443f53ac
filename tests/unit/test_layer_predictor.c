/*
 * The layer predictor on random small models: every kind of prediction against what is recomputed
 * from the routers' inputs and choices, for prompts and single tokens, several layers ahead.
 */
#include "base/par.h"
#include "base/rank.h"
#include "infer/layer_predictor.h"
#include "infer/router.h"
#include "kern/kern.h"
#include "profile/trace.h"
#include "sched/select.h"
#include "tune/probe.h"

#include "naive_model.h"

enum { N_IDS = 40, N_MODELS = 40, BATCH = 17, DEPTH = 3 };

/* Closer values than this may come out in either order. */
static const double MARGIN = 1e-5;

static char path[128];

/* What the token before, or the layer before, chose. */
struct choice {
    bool known;
    uint32_t experts[MOE_MAX_TOP_K];
    double weights[MOE_MAX_TOP_K];
};

struct watch {
    struct random_model m;
    struct moe_model *model;
    struct moe_experts *experts;
    struct moe_session *session;
    struct moe_statistics *statistics;
    struct moe_layer_predictor *predictor;
    enum moe_predict_by by;
    double tolerance;
    bool ranked; /* precise enough for ranks */
    uint64_t random;
    struct choice before[RANDOM_MAX_LAYERS]; /* of the pass's last row so far, by model layer */
    uint32_t best[RANDOM_MAX_LAYERS][BATCH]; /* of the pass's rows, by MoE layer */
    double rows[BATCH][RANDOM_MAX_EXPERTS];  /* the prediction recomputed */
    double margin; /* of the choices of routers that are no softmax, at least */
    uint32_t n_predictions, n_ranked, n_several;
};

static int set_up(void **state)
{
    struct moe_err err = {0};
    assert_ok(moe_kern_select(moe_cpu_detect(), &err), &err);
    moe_par_set_threads(2);
    snprintf(path, sizeof path, "/tmp/moe-predictor-%d.moe", (int)getpid());
    return 0;
}

static int tear_down(void **state)
{
    unlink(path);
    return 0;
}

static void draw_ids(const struct watch *w, uint64_t random, uint32_t *ids)
{
    for (int i = 0; i < N_IDS; i++)
        ids[i] = random_below(&random, w->m.c.vocab);
}

/* A random model with experts, and its statistics over one text. */
static void open_watch(struct watch *w, uint64_t *seed, int bits)
{
    struct moe_err err = {0};
    struct moe_probe *probe = NULL;
    const struct moe_session_options options = {.batch = BATCH};
    uint32_t ids[N_IDS];
    *w = (struct watch){.tolerance = bits == 32 ? 1e-5 : 0.05, .ranked = bits == 32};
    for (random_model_draw(&w->m, *seed); !w->m.c.n_experts; random_model_draw(&w->m, *seed)) {
        random_model_free(&w->m);
        ++*seed;
    }
    w->random = *seed;
    random_model_write(&w->m, bits, path);
    assert_ok(moe_model_open(&w->model, path, 0, NULL, &err), &err);
    assert_ok(moe_experts_open_resident(&w->experts, w->model->pack, 0, NULL, NULL, &err), &err);
    assert_ok(moe_session_open(&w->session, w->model, w->experts, &options, &err), &err);
    struct moe_statistics_shape shape = moe_model_statistics_shape(w->model);
    shape.max_tokens = N_IDS;
    shape.prompt_percent = 50;
    assert_ok(moe_statistics_new(&w->statistics, &shape, &err), &err);
    assert_ok(moe_probe_open(&probe, w->session, w->statistics, &err), &err);
    draw_ids(w, *seed + 1000, ids);
    assert_ok(moe_probe_document(probe, ids, N_IDS, &err), &err);
    moe_probe_close(probe);
}

static void close_watch(struct watch *w)
{
    moe_statistics_free(w->statistics);
    moe_session_close(w->session);
    moe_experts_close(w->experts);
    moe_model_close(w->model);
    random_model_free(&w->m);
}

/* ---- What is to be predicted ---- */

/* Routers that are no softmax: scores whose softmax has the router's choice first, in the
 * proportions of its weights. */
static void grade(struct watch *w, const float *choice_bias, double *scores)
{
    const struct moe_config *c = &w->m.c;
    struct naive t = {.m = &w->m, .margin = INFINITY};
    struct naive_choice choice;
    double graded[RANDOM_MAX_EXPERTS], least = INFINITY, most = -INFINITY;
    bool own_order = c->choice_bias || c->router_kind == MOE_ROUTER_SIGMOID;
    naive_choose(&t, choice_bias, scores, &choice);
    w->margin = fmin(w->margin, t.margin);
    for (uint32_t e = 0; e < c->n_experts; e++)
        least = choice.ranks[e] > -INFINITY ? fmin(least, choice.ranks[e]) : least;
    for (uint32_t e = 0; e < c->n_experts && own_order; e++)
        scores[e] = log(fmax(choice.ranks[e] - least, 0) + 0x1p-10);
    least = INFINITY;
    memcpy(graded, scores, c->n_experts * sizeof *graded);
    double best = scores[choice.experts[0]];
    for (uint32_t k = 0; k < c->top_k; k++) {
        uint32_t e = choice.experts[k];
        bool equal = k > 0 && choice.weights[k] == choice.weights[0];
        if (c->router_kind == MOE_ROUTER_SPARSEMIXER || (own_order && k > 0))
            graded[e] = best + (equal ? -0x1p-10 : log(choice.weights[k] / choice.weights[0]));
        least = fmin(least, graded[e]);
        scores[e] = -INFINITY; /* marked */
    }
    for (uint32_t e = 0; e < c->n_experts; e++)
        most = fmax(most, scores[e]);
    for (uint32_t e = 0; e < c->n_experts; e++)
        graded[e] -= scores[e] == -INFINITY ? 0 : fmax(0, most - least + 0x1p-10);
    memcpy(scores, graded, c->n_experts * sizeof *graded);
}

/* The softmax of a layer's router for one row, from the gate's input of another layer, or from the
 * stream there. */
static void router_says(struct watch *w, uint32_t layer, const float *gate_input,
                        const float *stream, double *p)
{
    const struct moe_config *c = &w->m.c;
    const struct moe_layer *l = &w->model->layers[layer];
    const struct naive norm = {.m = &w->m};
    double x[4096];
    float row[4096];
    for (uint32_t i = 0; i < c->hidden; i++)
        x[i] = (double)(w->by == MOE_PREDICT_BY_GATE ? gate_input : stream)[i];
    if (w->by == MOE_PREDICT_BY_RESIDUAL)
        naive_norm(&norm, w->m.dense[layer][MOE_T_FFN_NORM], w->m.dense[layer][MOE_T_FFN_NORM_BIAS],
                   x, x);
    for (uint32_t e = 0; e < c->n_experts; e++) {
        moe_layout_load_row(&l->router, e, row);
        naive_multiply(row, NULL, 1, c->hidden, x, &p[e]);
        if (w->m.dense[layer][MOE_T_ROUTER_BIAS])
            p[e] += (double)w->m.dense[layer][MOE_T_ROUTER_BIAS][e];
    }
    if (!moe_router_is_softmax(c))
        grade(w, w->m.dense[layer][MOE_T_CHOICE_BIAS], p);
    naive_softmax(p, c->n_experts);
}

/* Scores of path statistics after the choices of MoE layer m, as shares. */
static void paths_say(const struct watch *w, uint32_t m, uint32_t row, const uint32_t *chosen,
                      double *p)
{
    const struct moe_config *c = &w->m.c;
    bool pairs = w->by == MOE_PREDICT_BY_PATH && c->top_k > 1;
    float scores[RANDOM_MAX_EXPERTS];
    double sum = 0;
    moe_path_scores(w->statistics, pairs ? MOE_PREDICT_PATH : MOE_PREDICT_PATH_RANK1, m + 1,
                    m > 0 ? (uint16_t)w->best[m - 1][row] : MOE_NO_EXPERT, chosen + row * c->top_k,
                    scores);
    for (uint32_t e = 0; e < c->n_experts; e++)
        sum += (double)scores[e];
    for (uint32_t e = 0; e < c->n_experts; e++)
        p[e] = (double)scores[e] / sum;
}

static void token_before_says(const struct watch *w, uint32_t layer, double *p)
{
    double sum = 0;
    memset(p, 0, w->m.c.n_experts * sizeof *p);
    for (uint32_t i = 0; i < w->m.c.top_k; i++)
        sum += w->before[layer].weights[i];
    for (uint32_t i = 0; i < w->m.c.top_k; i++)
        p[w->before[layer].experts[i]] = w->before[layer].weights[i] / sum;
}

/* ---- Comparing ---- */

/* A row's experts by falling probability; false where two of the best k + 1 are too close, but not
 * equal. */
static bool rank_row(const double *p, uint32_t n, uint32_t k, uint32_t *order)
{
    bool sure = true;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;
        for (; at > 0 && p[i] > p[order[at - 1]]; at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    for (uint32_t i = 0; i < k && i + 1 < n; i++) {
        double distance = p[order[i]] - p[order[i + 1]];
        sure &= distance == 0 || distance > MARGIN;
    }
    return sure;
}

/* Scores rank experts as `want` does, where that is clear. */
static void compare_ranks(const float *scores, const double *want, uint32_t n, double margin)
{
    for (uint32_t a = 0; a < n; a++)
        for (uint32_t b = 0; b < n; b++)
            if (want[a] > want[b] + margin)
                assert_true(scores[a] > scores[b]);
}

/* Counts over rows, summed probabilities and least scores of equation 2. */
static void compare(struct watch *w, const struct moe_prediction *p, uint32_t n_rows)
{
    const struct moe_config *c = &w->m.c;
    double least[RANDOM_MAX_EXPERTS], count[RANDOM_MAX_EXPERTS] = {0};
    double both[RANDOM_MAX_EXPERTS] = {0};
    /* Of the token before, weights are kept as half-precision numbers. */
    double tolerance = w->tolerance + (w->by == MOE_PREDICT_BY_PREVIOUS ? 1e-3 : 0);
    bool sure = w->ranked;
    w->n_predictions++;
    /* Another choice then is as good. */
    if (w->margin < (w->ranked ? MARGIN : INFINITY))
        return;
    for (uint32_t e = 0; e < c->n_experts; e++)
        least[e] = 2;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t order[RANDOM_MAX_EXPERTS];
        double sum = 0, before = 0;
        sure &= rank_row(w->rows[r], c->n_experts, c->top_k, order);
        for (uint32_t i = 0; i < c->top_k; i++)
            sum += w->rows[r][order[i]];
        for (uint32_t i = 0; i < c->top_k && w->rows[r][order[i]] > 0; i++) {
            count[order[i]]++;
            least[order[i]] = fmin(least[order[i]], before / sum);
            before += w->rows[r][order[i]];
        }
        /* Means are of what a trace would keep, as half-precision numbers. */
        for (uint32_t i = 0; i < moe_trace_default_keep(c->n_experts, c->top_k); i++)
            both[order[i]] += w->rows[r][order[i]] / (2 * n_rows);
    }
    if (n_rows == 1)
        for (uint32_t e = 0; e < c->n_experts; e++)
            assert_true(fabs((double)p->scores[e] - w->rows[0][e]) <= tolerance);
    if (!sure)
        return;
    w->n_ranked++;
    w->n_several += n_rows > 1;
    for (uint32_t e = 0; e < c->n_experts; e++) {
        both[e] += count[e];
        if (n_rows > 1)
            assert_true(floor((double)p->scores[e]) == count[e]);
        if (count[e] == 0)
            assert_true(p->unimportance[e] > 1);
        else
            assert_true(fabs((double)p->unimportance[e] - least[e]) < 1e-4 + tolerance);
    }
    if (n_rows > 1)
        tolerance += 1e-3;
    compare_ranks(p->scores, n_rows > 1 ? both : w->rows[0], c->n_experts, MARGIN + tolerance);
}

static uint32_t number_of(const struct moe_config *c, uint32_t layer)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i < layer; i++)
        m += c->layers[i].moe;
    return m;
}

/* How many layers ahead should be predicted. */
static uint32_t should_predict(const struct watch *w, uint32_t layer, uint32_t n_rows,
                               uint32_t depth)
{
    uint32_t n = 0;
    if (w->by == MOE_PREDICT_BY_PATH || w->by == MOE_PREDICT_BY_KEYS)
        depth = depth < 1 ? depth : 1;
    if (w->by == MOE_PREDICT_BY_NOTHING || (w->by == MOE_PREDICT_BY_PREVIOUS && n_rows > 1))
        depth = 0;
    for (uint32_t l = layer + 1; l < w->m.c.n_layers && n < depth; l++)
        if (w->m.c.layers[l].moe && (w->by != MOE_PREDICT_BY_PREVIOUS || w->before[l].known))
            n++;
    return n;
}

static void look(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                 const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                 uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct watch *w = ctx;
    const struct moe_config *c = &w->m.c;
    const struct moe_prediction *p;
    uint32_t m = number_of(c, layer), depth = random_below(&w->random, DEPTH + 1), target = layer;
    uint32_t n = moe_predict_layers(w->predictor, layer, n_rows, depth, &p);
    assert_int_equal(n, should_predict(w, layer, n_rows, depth));
    for (uint32_t d = 0; d < n; d++) {
        while (!c->layers[++target].moe)
            continue;
        w->margin = INFINITY;
        for (uint32_t r = 0; r < n_rows; r++)
            if (w->by == MOE_PREDICT_BY_PREVIOUS)
                token_before_says(w, target, w->rows[r]);
            else if (w->by == MOE_PREDICT_BY_PATH || w->by == MOE_PREDICT_BY_KEYS)
                paths_say(w, m, r, chosen, w->rows[r]);
            else
                router_says(w, target, gate_input + r * hidden_stride,
                            w->session->states.h + r * hidden_stride, w->rows[r]);
        assert_int_equal(p[d].layer, m + 1 + d);
        assert_int_equal(p[d].n_rows, n_rows);
        compare(w, &p[d], n_rows);
    }
    w->before[layer].known = true;
    for (uint32_t i = 0; i < c->top_k; i++) {
        w->before[layer].experts[i] = chosen[(n_rows - 1) * c->top_k + i];
        w->before[layer].weights[i] = (double)weights[(n_rows - 1) * c->top_k + i];
    }
    for (uint32_t r = 0; r < n_rows; r++)
        w->best[m][r] = chosen[r * c->top_k];
}

/* ---- Running ---- */

static void pass(struct watch *w, const uint32_t *ids, uint32_t first, uint32_t n)
{
    struct moe_err err = {0};
    struct moe_row rows[BATCH];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, first + i, ids[first + i], 0};
    assert_ok(moe_forward(w->session, n > 1 ? MOE_PREFILL : MOE_DECODE, rows, n, 0, w->m.c.n_layers,
                          NULL, NULL, &err),
              &err);
}

/* A text in two passes and single tokens, then another that begins with one. */
static void watch_texts(struct watch *w, enum moe_predict_by by)
{
    struct moe_err err = {0};
    const struct moe_strategy strategy = {.predict = by, .depth = DEPTH};
    uint32_t ids[N_IDS];
    w->by = by;
    memset(w->before, 0, sizeof w->before);
    assert_ok(moe_layer_predictor_open(&w->predictor, w->session, &strategy, w->statistics, &err),
              &err);
    w->session->observer = (struct moe_observer){.ctx = w, .routed = look};
    draw_ids(w, w->random, ids);
    pass(w, ids, 0, BATCH);
    pass(w, ids, BATCH, 9);
    for (uint32_t i = BATCH + 9; i < N_IDS; i++)
        pass(w, ids, i, 1);
    moe_layer_predictor_begin_sequence(w->predictor);
    memset(w->before, 0, sizeof w->before);
    pass(w, ids + 1, 0, 1);
    pass(w, ids + 1, 1, 1);
    pass(w, ids + 1, 2, 5);
    w->session->observer = (struct moe_observer){0};
    moe_layer_predictor_close(w->predictor);
}

struct kind {
    enum moe_predict_by by;
    const char *name;
    uint32_t n_predictions, n_ranked, n_several;
};

static void watch_models(struct kind *kinds, uint32_t n_kinds, uint32_t n_models, int bits)
{
    for (uint64_t seed = 1, n = 0; n < n_models; seed++, n++) {
        struct watch w;
        open_watch(&w, &seed, bits);
        for (struct kind *k = kinds; k < kinds + n_kinds; k++) {
            w.n_predictions = w.n_ranked = w.n_several = 0;
            watch_texts(&w, k->by);
            k->n_predictions += w.n_predictions;
            k->n_ranked += w.n_ranked;
            k->n_several += w.n_several;
        }
        close_watch(&w);
    }
    for (struct kind *k = kinds; k < kinds + n_kinds; k++) {
        print_message("# %s at %d bits: %u predictions, %u with ranks, %u of several rows\n",
                      k->name, bits, k->n_predictions, k->n_ranked, k->n_several);
        assert_true(k->n_predictions >= 5 * n_models);
    }
}

static void every_kind_says_what_it_should(void **state)
{
    struct kind kinds[] = {{.by = MOE_PREDICT_BY_PREVIOUS, .name = "previous"},
                           {.by = MOE_PREDICT_BY_PATH, .name = "path"},
                           {.by = MOE_PREDICT_BY_KEYS, .name = "keys"},
                           {.by = MOE_PREDICT_BY_GATE, .name = "gate"},
                           {.by = MOE_PREDICT_BY_RESIDUAL, .name = "residual"}};
    watch_models(kinds, N_ITEMS(kinds), N_MODELS, 32);
    for (size_t i = 0; i < N_ITEMS(kinds); i++) {
        bool decode_only = kinds[i].by == MOE_PREDICT_BY_PREVIOUS;
        assert_true(kinds[i].n_ranked > kinds[i].n_predictions / 2);
        assert_true(decode_only ? kinds[i].n_several == 0 : kinds[i].n_several > N_MODELS);
    }
}

/* Inputs are quantized as well then, so the scores are near only. */
static void quantized_routers_speak_alike(void **state)
{
    struct kind kinds[] = {{.by = MOE_PREDICT_BY_GATE, .name = "gate"},
                           {.by = MOE_PREDICT_BY_RESIDUAL, .name = "residual"}};
    watch_models(kinds, N_ITEMS(kinds), 8, 8);
    watch_models(kinds, N_ITEMS(kinds), 8, 4);
}

/* ---- The router's own choice ---- */

/* The layer's own router in place of the next MoE layer's: what is predicted of that one is what
 * the router of this one has just chosen. */
static void look_at_itself(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                           const float *gate_input, uint64_t hidden_stride,
                           const float *probabilities, uint64_t router_stride,
                           const uint32_t *chosen, const float *weights)
{
    struct watch *w = ctx;
    const struct moe_config *c = &w->m.c;
    struct moe_layer *layers = w->model->layers;
    uint32_t next = layer + 1, best[RANDOM_MAX_EXPERTS];
    const struct moe_prediction *p;
    float unimportance[MOE_MAX_TOP_K];
    while (next < c->n_layers && !c->layers[next].moe)
        next++;
    if (next == c->n_layers || n_rows > 1)
        return;
    const struct moe_layer kept = layers[next];
    layers[next].router = layers[layer].router;
    layers[next].router_bias = layers[layer].router_bias;
    layers[next].choice_bias = layers[layer].choice_bias;
    assert_int_equal(moe_predict_layers(w->predictor, layer, 1, 1, &p), 1);
    layers[next] = kept;
    moe_unimportance(weights, c->top_k, unimportance);
    /* Equal weights are kept apart by a thousandth. */
    bool equal = c->router_kind == MOE_ROUTER_SPARSEMIXER && weights[0] == weights[1];
    for (uint32_t k = 0; k < c->top_k; k++)
        assert_true(fabsf(p->unimportance[chosen[k]] - unimportance[k]) < (equal ? 3e-4f : 1e-6f));
    moe_best(p->scores, c->n_experts, c->n_experts, best);
    for (uint32_t i = 0; i < c->n_experts; i++) {
        bool is_chosen = false;
        for (uint32_t k = 0; k < c->top_k; k++)
            is_chosen |= chosen[k] == best[i];
        assert_int_equal(is_chosen, i < c->top_k);
        assert_int_equal(p->unimportance[best[i]] <= 1, i < c->top_k);
    }
    w->n_predictions++;

    /* The same function gives the choice and the weights themselves, bit by bit. */
    float scores[2][RANDOM_MAX_EXPERTS + MOE_PANEL_ROWS], scratch[2 * RANDOM_MAX_EXPERTS];
    uint32_t again[MOE_MAX_TOP_K];
    float as[MOE_MAX_TOP_K];
    const struct moe_router_use use = {
        .layer = &layers[layer],
        .act = moe_inputs_for(&w->session->states.inputs, layers[layer].router.layout),
        .scores = scores[0],
    };
    moe_router_scores(c, &use, 1, moe_router_stride(c));
    moe_route_scores(c, layers[layer].choice_bias, scores[0], scratch, again, as);
    assert_memory_equal(again, chosen, c->top_k * sizeof *again);
    assert_memory_equal(as, weights, c->top_k * sizeof *as);
    assert_memory_equal(scores[0], probabilities, c->n_experts * sizeof *scores[0]);
}

static void a_router_predicts_its_own_choice(void **state)
{
    static const struct moe_strategy strategy = {.predict = MOE_PREDICT_BY_GATE, .depth = 1};
    uint32_t n_mixers = 0, n_grouped = 0, n_biased = 0, n_others = 0;
    for (uint64_t seed = 1, n = 0; n < 2 * N_MODELS; seed++, n++) {
        struct watch w;
        struct moe_err err = {0};
        uint32_t ids[N_IDS];
        open_watch(&w, &seed, n % 2 ? 8 : 32);
        const struct moe_config *c = &w.m.c;
        assert_ok(moe_layer_predictor_open(&w.predictor, w.session, &strategy, NULL, &err), &err);
        w.session->observer = (struct moe_observer){.ctx = &w, .routed = look_at_itself};
        draw_ids(&w, seed, ids);
        for (uint32_t i = 0; i < N_IDS; i++)
            pass(&w, ids, i, 1);
        w.session->observer = (struct moe_observer){0};
        moe_layer_predictor_close(w.predictor);
        bool mixes = c->router_kind == MOE_ROUTER_SPARSEMIXER;
        n_mixers += mixes ? w.n_predictions : 0;
        n_grouped += c->n_groups ? w.n_predictions : 0;
        n_biased += c->choice_bias ? w.n_predictions : 0;
        n_others += mixes || c->n_groups ? 0 : w.n_predictions;
        close_watch(&w);
    }
    print_message("# %u predictions of mixers, %u of groups, %u with a bias, %u of others\n",
                  n_mixers, n_grouped, n_biased, n_others);
    assert_true(n_mixers > 500 && n_grouped > 200 && n_biased > 200 && n_others > 500);
}

static void nothing_is_said_by_nobody(void **state)
{
    struct watch w;
    uint64_t seed = 1;
    open_watch(&w, &seed, 32);
    watch_texts(&w, MOE_PREDICT_BY_NOTHING);
    assert_int_equal(w.n_predictions, 0);
    close_watch(&w);
}

/* ---- Opening ---- */

static void paths_need_statistics_of_the_model(void **state)
{
    static const enum moe_predict_by kinds[] = {MOE_PREDICT_BY_PATH, MOE_PREDICT_BY_KEYS};
    struct watch w;
    uint64_t seed = 1;
    open_watch(&w, &seed, 32);
    for (int i = 0; i < 2; i++) {
        struct moe_err err = {0};
        const struct moe_strategy strategy = {.predict = kinds[i], .depth = 1};
        struct moe_layer_predictor *f = NULL;
        assert_fails(moe_layer_predictor_open(&f, w.session, &strategy, NULL, &err), MOE_ERR_USAGE,
                     "needs statistics", &err);
        w.statistics->shape.source_fingerprint++;
        assert_fails(moe_layer_predictor_open(&f, w.session, &strategy, w.statistics, &err),
                     MOE_ERR_USAGE, "another model", &err);
        w.statistics->shape.source_fingerprint--;
        assert_null(f);
    }
    close_watch(&w);
}

/* Memory for residual predictions grows with depth and batch, as its streams under norms do. */
static void memory_is_reported(void **state)
{
    struct watch w;
    uint64_t seed = 1;
    for (open_watch(&w, &seed, 32); moe_model_statistics_shape(w.model).n_layers < 3; seed++) {
        close_watch(&w);
        open_watch(&w, &seed, 32);
    }
    const struct moe_strategy one = {.predict = MOE_PREDICT_BY_RESIDUAL, .depth = 1};
    const struct moe_strategy two = {.predict = MOE_PREDICT_BY_RESIDUAL, .depth = 2};
    uint64_t rows = (uint64_t)w.m.c.hidden * sizeof(float);
    uint64_t bytes = moe_layer_predictor_bytes(w.model, BATCH, &one);
    assert_true(moe_layer_predictor_bytes(w.model, BATCH, &two) >= bytes + BATCH * rows);
    assert_true(moe_layer_predictor_bytes(w.model, 2 * BATCH, &one) >= bytes + BATCH * rows);
    close_watch(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_says_what_it_should),
        cmocka_unit_test(quantized_routers_speak_alike),
        cmocka_unit_test(a_router_predicts_its_own_choice),
        cmocka_unit_test(nothing_is_said_by_nobody),
        cmocka_unit_test(paths_need_statistics_of_the_model),
        cmocka_unit_test(memory_is_reported),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
