/*
 * Passes of a trace, row by row, and what is predicted of each.
 */
#include "sched/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"
#include "sched/history.h"
#include "sched/select.h"

enum { REACH = 3 /* layers ahead that traces have predictions of */ };

struct moe_replay {
    struct moe_trace *trace;
    struct moe_excerpt excerpt;
    uint32_t parts; /* of the trace that are read */
    uint64_t n_taken, n_joined;
    uint32_t batch;
    uint32_t n_layers, n_experts, top_k, keep, depth;
    enum moe_predict_by by;
    double assumed;      /* accuracy; 0: predictions are the trace's, or follow from its choices */
    bool from_choices;   /* the latter */
    bool first_by_token; /* those of a pass's first layer do, by its tokens, whatever the others */
    struct moe_choice_history history;
    void *block; /* memory of the history */

    /* The present pass, and the token after it. */
    uint32_t n_rows;
    uint64_t sequence;
    uint32_t first_index; /* of the first row in it */
    uint32_t *ids;        /* [batch] */
    uint16_t *chosen;     /* [batch][n_layers][top_k] */
    float *weights;       /* likewise */
    uint8_t *computed;    /* [n_layers] whether every row was */
    uint16_t *predicted;  /* [batch][n_layers][reach][keep] */
    float *scores;        /* likewise */
    bool *is_predicted;   /* [batch][n_layers][reach] */
    uint32_t reach;       /* how many predictions of a layer are kept */
    struct moe_trace_token next;
    bool started, ended;

    uint32_t ranked;              /* experts of a layer whose scores are kept; 0: none are wanted */
    uint16_t *best;               /* [n_layers][ranked] the first row's */
    float *probabilities_of_best; /* likewise */

    float *probabilities; /* [batch][n_experts] */
    float *row_scores;    /* [depth][n_experts] */
    float *unimportance;  /* [depth][n_experts] */
    float *scratch;       /* [2 * top_k] */
    struct moe_prediction predictions[MOE_MAX_DEPTH];
};

/* ---- Opening ---- */

static enum moe_predictor predictor_at(enum moe_predict_by by, uint32_t d)
{
    static const enum moe_predictor gates[REACH] = {MOE_PREDICT_GATE_1, MOE_PREDICT_GATE_2,
                                                    MOE_PREDICT_GATE_3};
    static const enum moe_predictor residuals[REACH] = {
        MOE_PREDICT_RESIDUAL_1, MOE_PREDICT_RESIDUAL_2, MOE_PREDICT_RESIDUAL_3};
    if (moe_predicts_from_attention(by))
        return by == MOE_PREDICT_BY_ATTENTION ? MOE_PREDICT_ATTN : MOE_PREDICT_ATTN_1;
    return by == MOE_PREDICT_BY_RESIDUAL ? residuals[d] : gates[d];
}

static int check_predictions(const struct moe_replay *r, const struct moe_statistics *statistics,
                             struct moe_err *err)
{
    const struct moe_trace_shape *t = moe_trace_shape(r->trace);
    if (r->history.recalls && !t->has_ids)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the trace does not say which tokens it is of, which --predict token and "
                        "--protect-tokens go by (a trace that moe-profile makes from texts "
                        "does)");
    if (r->by == MOE_PREDICT_BY_NOTHING || r->assumed > 0)
        return MOE_OK;
    if (moe_predicts_from_paths(r->by)) {
        if (!statistics)
            return moe_fail(err, MOE_ERR_USAGE,
                            "predicting by paths needs statistics of the model (moe-profile PACK "
                            "--text FILE -o FILE makes them)");
        if (statistics->shape.n_layers != t->n_layers ||
            statistics->shape.n_encoder != t->n_encoder ||
            statistics->shape.n_experts != t->n_experts || statistics->shape.top_k != t->top_k)
            return moe_fail(err, MOE_ERR_USAGE, "the statistics are of another model");
        return MOE_OK;
    }
    if (r->from_choices)
        return MOE_OK;
    if (r->reach > REACH)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the strategy predicts %u layers ahead, traces have predictions of %d",
                        r->reach, REACH);
    for (uint32_t d = 0; d < r->reach; d++)
        if (!(t->predictors & 1u << predictor_at(r->by, d)))
            return moe_fail(err, MOE_ERR_USAGE,
                            "the trace has no predictions by %s (a trace that moe-profile makes "
                            "from texts has them; --assume-prediction does without)",
                            moe_predictor_name(predictor_at(r->by, d)));
    return MOE_OK;
}

/* Cache-aware routing goes by the scores of experts that were not chosen. */
static int check_ranked(const struct moe_replay *r, struct moe_err *err)
{
    const struct moe_trace_shape *t = moe_trace_shape(r->trace);
    uint32_t keep = t->keep > t->top_k ? t->keep : t->top_k;
    if (r->ranked == 0 || (t->keep > 0 && keep >= r->ranked))
        return MOE_OK;
    if (t->keep == 0)
        return moe_fail(err, MOE_ERR_USAGE,
                        "the trace has no scores of experts, which --prefer-cached goes by (a "
                        "trace that moe-profile makes from texts has them)");
    return moe_fail(err, MOE_ERR_USAGE,
                    "the trace has the scores of %u experts of a layer, --prefer-cached goes by "
                    "those of %u (moe-profile keeps as many unless told otherwise)",
                    keep, r->ranked);
}

static int open_tables(struct moe_replay *r, struct moe_err *err)
{
    uint64_t n_ranked = (uint64_t)r->n_layers * r->ranked;
    r->best = moe_alloc(n_ranked, sizeof *r->best, err);
    r->probabilities_of_best = moe_alloc(n_ranked, sizeof *r->probabilities_of_best, err);
    uint64_t n_cells = (uint64_t)r->batch * r->n_layers;
    r->ids = moe_alloc(r->batch, sizeof *r->ids, err);
    r->chosen = moe_alloc(n_cells * r->top_k, sizeof *r->chosen, err);
    r->weights = moe_alloc(n_cells * r->top_k, sizeof *r->weights, err);
    r->computed = moe_alloc(r->n_layers, 1, err);
    r->predicted = moe_alloc(n_cells * r->reach * r->keep, sizeof *r->predicted, err);
    r->scores = moe_alloc(n_cells * r->reach * r->keep, sizeof *r->scores, err);
    r->is_predicted = moe_alloc(n_cells * r->reach, sizeof *r->is_predicted, err);
    r->probabilities = moe_alloc((uint64_t)r->batch * r->n_experts, sizeof *r->probabilities, err);
    r->row_scores = moe_alloc((uint64_t)r->depth * r->n_experts, sizeof *r->row_scores, err);
    r->unimportance = moe_alloc((uint64_t)r->depth * r->n_experts, sizeof *r->unimportance, err);
    r->scratch = moe_alloc(2 * (uint64_t)r->top_k, sizeof *r->scratch, err);
    bool all = r->ids && r->chosen && r->weights && r->computed && r->predicted && r->scores &&
               r->is_predicted && r->probabilities && r->row_scores && r->unimportance &&
               r->scratch && r->best && r->probabilities_of_best;
    return all ? MOE_OK : MOE_ERR_MEMORY;
}

static int open_history(struct moe_replay *r, const struct moe_statistics *statistics,
                        struct moe_err *err)
{
    struct moe_arena arena = {0};
    r->history = (struct moe_choice_history){
        .by = r->first_by_token ? MOE_PREDICT_BY_TOKEN
              : r->from_choices ? r->by
                                : MOE_PREDICT_BY_NOTHING,
        .recalls = r->history.recalls,
        .n_layers = r->n_layers,
        .n_experts = r->n_experts,
        .top_k = r->top_k,
        .statistics = statistics,
    };
    if (!r->from_choices && !r->history.recalls) /* which those by tokens do */
        return MOE_OK;
    moe_choice_history_carve(&r->history, &arena, r->batch);
    r->block = moe_alloc(arena.used, 1, err);
    if (!r->block)
        return MOE_ERR_MEMORY;
    arena = (struct moe_arena){.base = r->block, .size = arena.used};
    moe_choice_history_carve(&r->history, &arena, r->batch);
    moe_choice_history_seed(&r->history);
    return MOE_OK;
}

/* The longest source of the excerpt: an encoder sees it whole. */
static int raise_batch(struct moe_replay *r, struct moe_err *err)
{
    const struct moe_trace_token *token = NULL;
    uint64_t taken = 0;
    uint32_t n = 0;
    int status = MOE_OK;
    moe_excerpt_begin(r->trace, r->excerpt, 0);
    while (status == MOE_OK &&
           (status = moe_excerpt_next(r->trace, r->excerpt, &taken, &token, err)) == MOE_OK &&
           token) {
        n = !token->prompt ? 0 : token->index == 0 ? 1 : n + 1;
        r->batch = n > r->batch ? n : r->batch;
    }
    return status;
}

static int open_parts(struct moe_replay *r, const struct moe_statistics *statistics,
                      struct moe_err *err)
{
    MOE_TRY(check_predictions(r, statistics, err));
    MOE_TRY(check_ranked(r, err));
    if (moe_trace_shape(r->trace)->n_encoder)
        MOE_TRY(raise_batch(r, err));
    MOE_TRY(open_tables(r, err));
    return open_history(r, statistics, err);
}

int moe_replay_open(struct moe_replay **out, struct moe_trace *trace, struct moe_excerpt excerpt,
                    uint32_t batch, const struct moe_strategy *strategy,
                    const struct moe_statistics *statistics, struct moe_err *err)
{
    *out = NULL;
    struct moe_replay *r = moe_alloc(1, sizeof *r, err);
    if (!r)
        return MOE_ERR_MEMORY;
    const struct moe_trace_shape *shape = moe_trace_shape(trace);
    r->trace = trace;
    r->excerpt = excerpt;
    r->batch = batch;
    r->n_layers = shape->n_layers;
    r->n_experts = shape->n_experts;
    r->top_k = shape->top_k;
    r->keep = shape->keep;
    r->by = strategy->resident ? MOE_PREDICT_BY_NOTHING : strategy->predict;
    r->depth = strategy->depth;
    r->assumed = r->by == MOE_PREDICT_BY_NOTHING ? 0 : strategy->assumed;
    r->from_choices = !(r->assumed > 0) && moe_predicts_from_choices(r->by);
    if (r->by != MOE_PREDICT_BY_NOTHING && !(r->assumed > 0) &&
        !r->from_choices) { /* at most up to the last layer */
        r->reach = r->depth < r->n_layers ? r->depth : r->n_layers - 1;
        if (r->by == MOE_PREDICT_BY_ATTENTION)
            r->reach = 1; /* of the layer itself */
    }
    r->first_by_token =
        !strategy->resident && moe_strategy_predicts_first(strategy) && !(r->assumed > 0);
    r->history.recalls = !strategy->resident && (strategy->protect_tokens || r->first_by_token);
    if (!strategy->resident && strategy->prefer > 0)
        r->ranked = moe_preference_reach(r->n_experts, r->top_k);
    int status = open_parts(r, statistics, err);
    if (status != MOE_OK) {
        moe_replay_close(r);
        return status;
    }
    r->parts = r->ranked ? MOE_TRACE_NEXT_BEST : 0;
    for (uint32_t d = 0; d < r->reach; d++)
        r->parts |= 1u << predictor_at(r->by, d);
    moe_excerpt_begin(trace, excerpt, r->parts);
    *out = r;
    return MOE_OK;
}

void moe_replay_close(struct moe_replay *r)
{
    if (!r)
        return;
    free(r->block);
    free(r->ids);
    free(r->best);
    free(r->probabilities_of_best);
    free(r->chosen);
    free(r->weights);
    free(r->computed);
    free(r->predicted);
    free(r->scores);
    free(r->is_predicted);
    free(r->probabilities);
    free(r->row_scores);
    free(r->unimportance);
    free(r->scratch);
    free(r);
}

/* ---- Passes ---- */

uint32_t moe_replay_batch(const struct moe_replay *r)
{
    return r->batch;
}

static uint64_t cell_of(const struct moe_replay *r, uint32_t row, uint32_t layer)
{
    return (uint64_t)row * r->n_layers + layer;
}

static void take_layer(struct moe_replay *r, uint32_t row, uint32_t layer)
{
    const struct moe_trace_step step = moe_trace_step(r->trace, layer);
    uint64_t cell = cell_of(r, row, layer);
    r->computed[layer] &= step.experts != NULL;
    if (!step.experts)
        return;
    memcpy(r->chosen + cell * r->top_k, step.experts, r->top_k * sizeof *r->chosen);
    memcpy(r->weights + cell * r->top_k, step.weights, r->top_k * sizeof *r->weights);
    if (row == 0 && r->ranked) {
        uint64_t at = (uint64_t)layer * r->ranked;
        memcpy(r->best + at, step.experts, r->ranked * sizeof *r->best);
        memcpy(r->probabilities_of_best + at, step.scores, r->ranked * sizeof *step.scores);
    }
    for (uint32_t d = 0; d < r->reach; d++) {
        enum moe_predictor by = predictor_at(r->by, d);
        uint64_t at = cell * r->reach + d;
        r->is_predicted[at] = step.predicted[by].experts != NULL;
        if (!r->is_predicted[at])
            continue;
        memcpy(r->predicted + at * r->keep, step.predicted[by].experts,
               r->keep * sizeof *r->predicted);
        memcpy(r->scores + at * r->keep, step.predicted[by].scores, r->keep * sizeof *r->scores);
    }
}

/* The token after the present one, as the excerpt has it or as one of its prompt. */
static int next_token(struct moe_replay *r, struct moe_err *err)
{
    const struct moe_trace_token *token = NULL;
    const uint64_t joined = r->excerpt.prompt;
    int status = MOE_OK;
    if (!joined || r->n_joined < joined)
        status = moe_excerpt_next(r->trace, r->excerpt, &r->n_taken, &token, err);
    if (status == MOE_OK && !token && r->n_joined > 0 && r->n_joined < joined) {
        r->n_taken = 0;
        moe_excerpt_begin(r->trace, r->excerpt, r->parts);
        status = moe_excerpt_next(r->trace, r->excerpt, &r->n_taken, &token, err);
    }
    r->ended = status != MOE_OK || !token;
    if (r->ended)
        return status;
    r->next = *token;
    if (joined) {
        r->next.sequence = r->excerpt.first;
        r->next.index = (uint32_t)r->n_joined++;
        r->next.prompt = true;
    }
    return MOE_OK;
}

int moe_replay_next(struct moe_replay *r, struct moe_replay_pass *pass, struct moe_err *err)
{
    int status = MOE_OK;
    *pass = (struct moe_replay_pass){0};
    if (!r->started)
        status = next_token(r, err);
    r->started = true;
    r->n_rows = 0;
    if (status != MOE_OK || r->ended)
        return status;
    uint64_t sequence = r->sequence = r->next.sequence;
    r->first_index = r->next.index;
    pass->prompt = r->next.prompt;
    pass->first = r->next.index == 0;
    pass->position = r->next.index;
    pass->warms = moe_excerpt_warms(r->excerpt, sequence);
    memset(r->computed, 1, r->n_layers);
    do {
        for (uint32_t layer = 0; layer < r->n_layers; layer++)
            take_layer(r, r->n_rows, layer);
        r->ids[r->n_rows++] = r->next.id;
        status = next_token(r, err);
    } while (status == MOE_OK && !r->ended && pass->prompt && r->next.prompt &&
             r->next.sequence == sequence && r->n_rows < r->batch);
    if (pass->first)
        moe_choice_history_begin_sequence(&r->history);
    moe_choice_history_begin_pass(&r->history, r->ids, r->n_rows);
    pass->n_rows = r->n_rows;
    return status;
}

bool moe_replay_has(const struct moe_replay *r, uint32_t layer)
{
    return r->computed[layer];
}

void moe_replay_chosen(const struct moe_replay *r, uint32_t layer, uint32_t *chosen, float *weights)
{
    for (uint32_t row = 0; row < r->n_rows; row++) {
        uint64_t from = cell_of(r, row, layer) * r->top_k, to = (uint64_t)row * r->top_k;
        for (uint32_t i = 0; i < r->top_k; i++) {
            chosen[to + i] = r->chosen[from + i];
            weights[to + i] = r->weights[from + i];
        }
    }
}

uint32_t moe_replay_ranked(const struct moe_replay *r, uint32_t layer, uint32_t *experts,
                           float *probabilities)
{
    uint64_t at = (uint64_t)layer * r->ranked;
    for (uint32_t i = 0; i < r->ranked; i++)
        experts[i] = r->best[at + i];
    memcpy(probabilities, r->probabilities_of_best + at, r->ranked * sizeof *probabilities);
    return r->ranked;
}

/* ---- Predictions ---- */

/* A row's probabilities from the trace. Scores that rounding made equal keep their order. */
static void spread_scores(const struct moe_replay *r, uint64_t at, float *p)
{
    float above = INFINITY;
    memset(p, 0, r->n_experts * sizeof *p);
    for (uint32_t i = 0; i < r->keep; i++) {
        float score = r->scores[at * r->keep + i];
        if (score >= above)
            score = nextafterf(above, 0);
        p[r->predicted[at * r->keep + i]] = above = score;
    }
}

void moe_replay_note(struct moe_replay *r, uint32_t layer, const uint32_t *chosen,
                     const float *weights)
{
    moe_choice_history_note(&r->history, layer, r->n_rows, chosen, weights);
}

bool moe_replay_expects(const struct moe_replay *r, uint32_t layer, uint8_t *marks)
{
    return r->history.recalls && moe_token_history_mark(&r->history.tokens, layer, marks);
}

/* The first layer that is predicted in `layer`: the next one, or by its attention the same. */
static uint32_t first_predicted(const struct moe_replay *r, uint32_t layer)
{
    return layer + (r->by != MOE_PREDICT_BY_ATTENTION);
}

/* ---- Assumed accuracy ---- */

static uint64_t seed_of(struct moe_assumed_of of)
{
    uint64_t state = of.sequence;
    state = moe_random_next(&state) ^ of.token;
    state = moe_random_next(&state) ^ of.layer;
    return moe_random_next(&state);
}

static bool is_chosen(const uint16_t *chosen, uint32_t top_k, uint32_t expert)
{
    bool found = false;
    for (uint32_t k = 0; k < top_k; k++)
        found |= chosen[k] == expert;
    return found;
}

/* From a drawn expert on, the first that is neither chosen nor predicted; `instead` where there is
 * none. */
static uint32_t draw_other(uint64_t *state, const uint16_t *chosen, uint32_t top_k,
                           uint32_t n_experts, const float *predicted, uint32_t instead)
{
    uint32_t first = (uint32_t)(moe_random_next(state) % n_experts);
    for (uint32_t i = 0; i < n_experts; i++) {
        uint32_t e = (first + i) % n_experts;
        if (predicted[e] == 0 && !is_chosen(chosen, top_k, e))
            return e;
    }
    return instead;
}

void moe_assumed_prediction(struct moe_assumed_of of, double accuracy, const uint16_t *chosen,
                            uint32_t top_k, uint32_t n_experts, float *probabilities)
{
    uint64_t state = seed_of(of);
    float sum = (float)top_k * (float)(top_k + 1) / 2;
    memset(probabilities, 0, n_experts * sizeof *probabilities);
    for (uint32_t k = 0; k < top_k; k++) {
        bool right = (double)(moe_random_next(&state) >> 11) * 0x1p-53 < accuracy;
        uint32_t e = right ? chosen[k]
                           : draw_other(&state, chosen, top_k, n_experts, probabilities, chosen[k]);
        probabilities[e] = (float)(top_k - k) / sum;
    }
}

/* What the row's router is going to choose, as well as is assumed. */
static void assume(const struct moe_replay *r, uint32_t row, uint32_t target, float *p)
{
    const struct moe_assumed_of of = {r->sequence, r->first_index + row, target};
    moe_assumed_prediction(of, r->assumed, r->chosen + cell_of(r, row, target) * r->top_k, r->top_k,
                           r->n_experts, p);
}

/* Predicts the layer d after the first, all rows; false if the trace has no prediction of it. */
static bool predict_layer(struct moe_replay *r, uint32_t layer, uint32_t d, bool from_choices,
                          const uint32_t *chosen)
{
    uint32_t target = first_predicted(r, layer) + d;
    for (uint32_t row = 0; row < r->n_rows; row++) {
        float *p = r->probabilities + (uint64_t)row * r->n_experts;
        uint64_t at = cell_of(r, row, target) * r->reach + d;
        if (r->assumed > 0 && r->computed[target])
            assume(r, row, target, p);
        else if (from_choices)
            moe_choice_history_predict(&r->history, layer, d, row, r->n_rows,
                                       chosen ? chosen + (uint64_t)row * r->top_k : NULL, p);
        else if (r->computed[target] && r->reach > d && r->is_predicted[at])
            spread_scores(r, at, p);
        else
            return false;
    }
    return true;
}

/* What follows `layer`, or MOE_NO_LAYER_YET. chosen: of that layer's rows. */
static uint32_t predict_after(struct moe_replay *r, uint32_t layer, uint32_t depth,
                              bool from_choices, const uint32_t *chosen)
{
    uint32_t left = r->n_layers - first_predicted(r, layer),
             n = depth < r->depth ? depth : r->depth;
    n = n < left ? n : left;
    if (from_choices)
        n = moe_choice_history_reach(&r->history, layer, r->n_rows, n);
    const uint8_t *is_static = moe_trace_shape(r->trace)->is_static + first_predicted(r, layer);
    uint32_t found = 0;
    for (uint32_t d = 0; d < n; d++) {
        if (is_static[d])
            continue;
        if (!predict_layer(r, layer, d, from_choices, chosen))
            break;
        float *scores = r->row_scores + (uint64_t)found * r->n_experts;
        float *unimportance = r->unimportance + (uint64_t)found * r->n_experts;
        moe_tally(r->probabilities, r->n_experts, r->n_rows, r->n_experts, r->top_k, scores,
                  unimportance, r->scratch);
        r->predictions[found++] =
            (struct moe_prediction){first_predicted(r, layer) + d, r->n_rows, scores, unimportance};
    }
    return found;
}

uint32_t moe_replay_predict_first(struct moe_replay *r, uint32_t first, uint32_t depth,
                                  const struct moe_prediction **predictions)
{
    *predictions = r->predictions;
    return predict_after(r, first - 1, depth, r->first_by_token, NULL);
}

uint32_t moe_replay_predict(struct moe_replay *r, uint32_t layer, uint32_t depth,
                            const uint32_t *chosen, const float *weights,
                            const struct moe_prediction **predictions)
{
    if (r->from_choices)
        moe_choice_history_see(&r->history, layer, r->n_rows, chosen);
    uint32_t found = predict_after(r, layer, depth, r->from_choices, chosen);
    if (r->from_choices || r->first_by_token)
        moe_choice_history_add(&r->history, layer, r->n_rows, chosen, weights);
    *predictions = r->predictions;
    return found;
}
