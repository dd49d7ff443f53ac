/* Traces drawn from statistics. */
#include "plan/synthesis.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/random.h"
#include "base/rank.h"
#include "plan/routing_figures.h"

/*
 * Draws the scores of synthesis.h: documents, layers and tokens of the model described there.
 */
struct draw_sizes {
    double skew;
    double correlation; /* of what is not popularity, from one token to the next: 0 to 1 */
    double noise[MOE_FIGURES_AHEAD]; /* of predictors, as a multiple of the scores' own spread */
};

/* One layer of the present document. */
struct draw_layer {
    uint64_t random, random_noise;
    uint32_t n_tokens;                 /* drawn so far */
    float *popular, *document, *state; /* [n_experts] */
};

struct draw {
    uint32_t n_layers, n_experts;
    uint64_t seed;
    struct draw_sizes sizes;
    float *quantiles; /* [n_experts] of the normal distribution */
    struct draw_layer *layers;
    float *block; /* holds the layers' arrays */
};

/* Released with draw_release, also after a failure. Each layer's popular experts are drawn. */
static int draw_init(struct draw *d, uint32_t n_layers, uint32_t n_experts, uint64_t seed,
                     struct moe_err *err);
static void draw_release(struct draw *d);

/* Begins a document in the first `n_layers` layers. The same number is the same document. */
static void draw_begin(struct draw *d, uint32_t n_layers, uint64_t document);
/* The next token of a layer: scores [n_experts], of a spread that does not depend on the sizes;
 * predicted: [MOE_FIGURES_AHEAD][stride], the scores as predictors see them, or NULL. Later draws
 * do not depend on whether predictions were asked for. */
static void draw_token(struct draw *d, uint32_t layer, float *scores, float *predicted,
                       uint64_t stride);

enum {
    BLOCK = 64, /* tokens drawn at a time */
    /* Of the trial: enough for figures within a point, few enough to draw again for every step of
     * the search. */
    TRIAL_LAYERS = 8,
    TRIAL_DOCUMENTS = 128,
    TRIAL_TOKENS = 8, /* of a document, at least */
    TRIAL_SCORES = 1 << 20,
    STEPS = 15, /* of each search, at most */
};
static const double CLOSE = 1e-3; /* of a figure: a trial is coarser */

struct synthesizer {
    const struct moe_synthesis *in;
    struct moe_routing_figures wanted; /* of the shape */
    uint32_t n_tokens;                 /* of a document */
    struct draw draw;
    struct moe_routing_figures_tally tally;
    float *scores;            /* [BLOCK][n_experts] */
    float *predicted;         /* [MOE_FIGURES_AHEAD][BLOCK][n_experts] */
    float *weights;           /* [BLOCK][top_k] */
    uint32_t *best;           /* [BLOCK][top_k] */
    uint32_t *best_predicted; /* [top_k] */
    /* Of the present token: chosen, and predicted by each predictor; then, chosen before. */
    uint16_t *ids;    /* [1 + MOE_FIGURES_AHEAD][top_k] */
    uint16_t *before; /* [n_layers][top_k] */
};

static bool stopped(const struct synthesizer *s)
{
    return moe_progress_stopped(s->in->progress);
}

/* A document is next, of those that are written or counted. */
static int go_on(const struct synthesizer *s, uint64_t document, struct moe_err *err)
{
    const uint64_t n = (uint64_t)s->in->sequences * (s->in->statistics ? 2 : 1);
    moe_progress_report(s->in->progress, "drawing a trace", document, n);
    return stopped(s) ? moe_fail(err, MOE_ERR_INTERRUPTED, "stopped") : MOE_OK;
}

/* ---- Drawing ---- */

static void narrow(const uint32_t *from, uint32_t n, uint16_t *to)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint16_t)from[i];
}

/* Draws row `row` of the block, a layer's next token, and counts it. has_before: it is not the
 * first of its document. Its experts go to s->best; the first n_predictors predictors predict. */
static void draw_row(struct synthesizer *s, uint32_t layer, uint32_t row, bool has_before,
                     uint32_t n_predictors)
{
    uint64_t n = s->draw.n_experts, k = s->tally.top_k;
    float *scores = s->scores + row * n, *predicted = s->predicted + row * n;
    uint16_t *before = s->before + layer * k;
    const uint16_t *predicted_ids[MOE_FIGURES_AHEAD] = {NULL};
    draw_token(&s->draw, layer, scores, n_predictors ? predicted : NULL, BLOCK * n);
    moe_best(scores, (uint32_t)n, (uint32_t)k, s->best + row * k);
    narrow(s->best + row * k, (uint32_t)k, s->ids);
    for (uint32_t i = 0; i < n_predictors; i++) {
        uint16_t *ids = s->ids + (1 + i) * k;
        moe_best(predicted + i * BLOCK * n, (uint32_t)n, (uint32_t)k, s->best_predicted);
        narrow(s->best_predicted, (uint32_t)k, ids);
        predicted_ids[i] = ids;
    }
    moe_routing_figures_tally_add(&s->tally, layer, s->ids, has_before ? before : NULL,
                                  predicted_ids, (uint32_t)k);
    narrow(s->best + row * k, (uint32_t)k, before);
}

/* ---- Finding the sizes ---- */

static uint32_t least(uint32_t a, uint64_t b)
{
    return a < b ? a : (uint32_t)b;
}

/* The beginnings of the trace's first documents, in its first layers; of none once it is to stop.
 */
static struct moe_routing_figures try_sizes(struct synthesizer *s, bool predict)
{
    uint32_t n_layers = least(TRIAL_LAYERS, s->draw.n_layers);
    uint64_t fit = TRIAL_SCORES / ((uint64_t)s->draw.n_experts * n_layers); /* tokens */
    uint32_t n_documents = least(least(TRIAL_DOCUMENTS, s->in->sequences), 1 + fit / TRIAL_TOKENS);
    uint32_t n_tokens = least(s->n_tokens, TRIAL_TOKENS + fit / n_documents);
    moe_routing_figures_tally_clear(&s->tally);
    for (uint32_t document = 0; document < n_documents && !stopped(s); document++) {
        draw_begin(&s->draw, n_layers, document);
        for (uint32_t layer = 0; layer < n_layers; layer++)
            for (uint32_t t = 0; t < n_tokens; t++)
                draw_row(s, layer, 0, t > 0, predict ? MOE_FIGURES_AHEAD : 0);
    }
    return moe_routing_figures_of_tally(&s->tally);
}

/* Where the size lies whose figure, which rises with it, is the wanted one. */
struct bracket {
    double low, high;
    double under, over; /* what the ends' figures lack, below 0, and have too much; 0: not tried */
    double at;          /* to be tried */
    double *moved;      /* under or over */
    bool found;
};

static const double FIRST = 0.5; /* to be tried of any size */

/* From `at` on, unless it is 0. */
static struct bracket bracket_of(double most, double at)
{
    return (struct bracket){.high = most, .at = at > 0 ? at : FIRST};
}

/* False position between ends that were tried; one that stays twice counts by half, or the other
 * would move in ever smaller steps. As long as one was not, twice as far. */
static void narrow_bracket(struct bracket *b, double figure, double wanted)
{
    double more = figure - wanted, tried = b->at;
    bool low = !(more > 0); /* without a figure a larger size may give one */
    b->found = fabs(more) <= CLOSE || b->high - b->low < CLOSE * b->high;
    if (b->found)
        return;
    double *end = low ? &b->low : &b->high, *off = low ? &b->under : &b->over;
    double *other = low ? &b->over : &b->under;
    *other /= b->moved == off ? 2 : 1;
    b->moved = off;
    *end = tried;
    *off = isnan(more) ? 0 : more;
    if (b->under < 0 && b->over > 0)
        b->at = b->low + (b->high - b->low) * b->under / (b->under - b->over);
    else if (low)
        b->at = fmin(2 * tried, (tried + b->high) / 2);
    else
        b->at = fmax(tried / 2, (tried + b->low) / 2);
}

static void find_size(struct synthesizer *s, double *size, double most, bool of_reuse)
{
    struct bracket b = bracket_of(most, *size);
    for (int i = 0; i < STEPS && !b.found; i++) {
        *size = b.at;
        struct moe_routing_figures got = try_sizes(s, false);
        narrow_bracket(&b, of_reuse ? got.reuse : got.busiest,
                       of_reuse ? s->wanted.reuse : s->wanted.busiest);
    }
}

/* Popularity decides which experts are busiest, correlation which are used again; each influences
 * the other a little, hence two rounds. Predictors come last, all at once: the less noise, the
 * better. */
static struct moe_routing_figures find_sizes(struct synthesizer *s)
{
    struct draw_sizes *sizes = &s->draw.sizes;
    struct bracket noise[MOE_FIGURES_AHEAD];
    struct moe_routing_figures got;
    bool found = false;
    for (int round = 0; round < 2; round++) {
        find_size(s, &sizes->skew, 16, false);
        find_size(s, &sizes->correlation, 1, true);
    }
    for (int p = 0; p < MOE_FIGURES_AHEAD; p++)
        noise[p] = bracket_of(32, 0);
    for (int i = 0; i < STEPS && !found; i++) {
        found = true;
        for (int p = 0; p < MOE_FIGURES_AHEAD; p++)
            sizes->noise[p] = noise[p].at;
        got = try_sizes(s, true);
        for (int p = 0; p < MOE_FIGURES_AHEAD; p++) {
            if (!noise[p].found)
                narrow_bracket(&noise[p], -got.accuracy[p], -s->wanted.accuracy[p]);
            found &= noise[p].found;
        }
    }
    return got;
}

/* ---- Writing ---- */

/* Scores become probabilities; the chosen experts' weights are these, of sum 1. */
static void finish_row(const struct synthesizer *s, uint32_t row)
{
    uint64_t n = s->draw.n_experts, k = s->tally.top_k;
    float *scores = s->scores + row * n, *weights = s->weights + row * k;
    const uint32_t *best = s->best + row * k;
    float largest = scores[best[0]], all = 0, chosen = 0;
    for (uint32_t e = 0; e < n; e++)
        all += scores[e] = expf(scores[e] - largest);
    for (uint32_t e = 0; e < n; e++)
        scores[e] /= all;
    for (uint32_t i = 0; i < k; i++)
        chosen += weights[i] = scores[best[i]];
    for (uint32_t i = 0; i < k; i++)
        weights[i] /= chosen;
}

/* Draws a layer for some tokens; what is seen of it stays until the next. */
static struct moe_layer_observation draw_layer_rows(struct synthesizer *s, uint32_t layer,
                                                    uint32_t first, uint32_t n_rows)
{
    uint64_t n = s->draw.n_experts;
    uint32_t n_encoder = s->in->shape.n_encoder;
    uint32_t n_predictors = least(MOE_FIGURES_AHEAD, layer < n_encoder ? layer : layer - n_encoder);
    /* The first token of the layer. */
    uint32_t begin = n_encoder && layer >= n_encoder ? s->in->prompt_tokens : 0;
    struct moe_layer_observation seen = {.chosen = s->best, .weights = s->weights, .stride = n};
    for (uint32_t row = 0; row < n_rows; row++) {
        draw_row(s, layer, row, first + row > begin, n_predictors);
        finish_row(s, row);
    }
    for (uint32_t i = 0; i < n_predictors; i++)
        seen.predicted[MOE_PREDICT_GATE_1 + i] = s->predicted + i * BLOCK * n;
    return seen;
}

static void write_layer(struct synthesizer *s, struct moe_trace_writer *w, uint32_t layer,
                        uint32_t first, uint32_t n_rows)
{
    struct moe_layer_observation seen = draw_layer_rows(s, layer, first, n_rows);
    moe_trace_put(w, layer, first, n_rows, &seen, s->scores, s->draw.n_experts);
}

/* A source and its target do not share a pass: returns how many of the next n tokens go together.
 */
static uint32_t of_one_stack(const struct synthesizer *s, uint32_t at, uint32_t n)
{
    uint32_t n_prompt = s->in->prompt_tokens;
    return s->in->shape.n_encoder && at < n_prompt ? least(n, n_prompt - at) : n;
}

static bool sees(const struct synthesizer *s, uint32_t layer, bool prompt)
{
    uint32_t n_encoder = s->in->shape.n_encoder;
    return n_encoder == 0 || (layer < n_encoder) == prompt;
}

static int write_documents(struct synthesizer *s, struct moe_trace_writer *w, struct moe_err *err)
{
    moe_routing_figures_tally_clear(&s->tally);
    for (uint32_t document = 0; document < s->in->sequences; document++) {
        MOE_TRY(go_on(s, document, err));
        draw_begin(&s->draw, s->draw.n_layers, document);
        MOE_TRY(moe_trace_begin(w, err));
        for (uint32_t at = 0, n; at < s->n_tokens; at += n) {
            n = of_one_stack(s, at, least(BLOCK, s->n_tokens - at));
            uint32_t n_prompt = at < s->in->prompt_tokens ? least(n, s->in->prompt_tokens - at) : 0;
            MOE_TRY(moe_trace_add(w, n, n_prompt, err));
            for (uint32_t layer = 0; layer < s->draw.n_layers; layer++) {
                if (sees(s, layer, n_prompt > 0))
                    write_layer(s, w, layer, at, n);
            }
        }
    }
    return MOE_OK;
}

/* ---- Statistics ---- */

static void count_layers(struct synthesizer *s, uint32_t at, uint32_t n, bool prompt)
{
    struct moe_statistics *statistics = s->in->statistics;
    for (uint32_t layer = 0; layer < s->draw.n_layers; layer++) {
        if (!sees(s, layer, prompt))
            continue;
        bool decoder = s->in->shape.n_encoder && layer >= s->in->shape.n_encoder;
        struct moe_layer_observation seen = draw_layer_rows(s, layer, at, n);
        seen.by_token = s->in->shape.is_static[layer] != 0;
        moe_statistics_observe(statistics, layer, decoder ? at - s->in->prompt_tokens : at, n,
                               &seen);
    }
}

/* Documents that are not in the trace: what is counted was not looked at. */
static int count_documents(struct synthesizer *s, struct moe_err *err)
{
    for (uint32_t i = 0; s->in->statistics && i < s->in->sequences; i++) {
        const uint64_t document = (uint64_t)s->in->sequences + i;
        MOE_TRY(go_on(s, document, err));
        draw_begin(&s->draw, s->draw.n_layers, document);
        MOE_TRY(
            moe_statistics_begin(s->in->statistics, moe_hash64(&document, sizeof document), err));
        for (uint32_t at = 0, n; at < s->n_tokens; at += n) {
            n = of_one_stack(s, at, least(BLOCK, s->n_tokens - at));
            count_layers(s, at, n, at < s->in->prompt_tokens);
        }
        MOE_TRY(moe_statistics_end(s->in->statistics, err));
    }
    return MOE_OK;
}

/* ---- The whole trace ---- */

static bool is_share(double x)
{
    return x >= 0 && x <= 1;
}

static int check(const char *path, const struct moe_synthesis *in, struct moe_err *err)
{
    const struct moe_routing_figures *m = &in->figures;
    bool shares = is_share(m->reuse) && is_share(m->busiest);
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        shares = shares && is_share(m->accuracy[i]);
    if (!shares)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a synthetic trace needs shares between 0 and 1 of experts used again, "
                        "on the busiest quarter, and predicted",
                        path);
    if ((m->n_experts == 0) != (m->top_k == 0) || m->top_k > m->n_experts)
        return moe_fail(err, MOE_ERR_USAGE, "%s: the figures of no model: %u experts, %u per token",
                        path, m->n_experts, m->top_k);
    uint64_t tokens = (uint64_t)in->prompt_tokens + in->decoded_tokens;
    if (in->sequences == 0 || tokens == 0 || tokens > UINT32_MAX)
        return moe_fail(err, MOE_ERR_USAGE,
                        "%s: a synthetic trace needs at least one sequence, of 1 to %u tokens",
                        path, UINT32_MAX);
    return MOE_OK;
}

static void synthesizer_release(struct synthesizer *s)
{
    draw_release(&s->draw);
    moe_routing_figures_tally_release(&s->tally);
    free(s->scores);
    free(s->predicted);
    free(s->weights);
    free(s->best);
    free(s->best_predicted);
    free(s->ids);
    free(s->before);
}

static int synthesizer_init(struct synthesizer *s, const struct moe_synthesis *in,
                            struct moe_err *err)
{
    uint64_t layers = in->shape.n_layers, n = in->shape.n_experts, k = in->shape.top_k;
    *s = (struct synthesizer){
        .in = in, .wanted = in->figures, .n_tokens = in->prompt_tokens + in->decoded_tokens};
    moe_routing_figures_move(&s->wanted, (uint32_t)n, (uint32_t)k);
    int status = draw_init(&s->draw, (uint32_t)layers, (uint32_t)n, in->seed, err);
    if (status == MOE_OK)
        status = moe_routing_figures_tally_init(&s->tally, (uint32_t)layers, (uint32_t)n,
                                                (uint32_t)k, err);
    if (status != MOE_OK)
        return status;
    s->scores = moe_alloc(BLOCK * n, sizeof *s->scores, err);
    s->predicted = moe_alloc(MOE_FIGURES_AHEAD * BLOCK * n, sizeof *s->predicted, err);
    s->weights = moe_alloc(BLOCK * k, sizeof *s->weights, err);
    s->best = moe_alloc(BLOCK * k, sizeof *s->best, err);
    s->best_predicted = moe_alloc(k, sizeof *s->best_predicted, err);
    s->ids = moe_alloc((1 + MOE_FIGURES_AHEAD) * k, sizeof *s->ids, err);
    s->before = moe_alloc(layers * k, sizeof *s->before, err);
    return s->scores && s->predicted && s->weights && s->best && s->best_predicted && s->ids &&
                   s->before
               ? MOE_OK
               : MOE_ERR_MEMORY;
}

int moe_synthesize_trace(const char *path, const struct moe_synthesis *synthesis,
                         struct moe_routing_figures *reached, struct moe_err *err)
{
    struct synthesizer s = {0};
    struct moe_trace_writer *w = NULL;
    struct moe_trace_shape shape = synthesis->shape;
    shape.keep = moe_trace_default_keep(shape.n_experts, shape.top_k);
    shape.predictors =
        1u << MOE_PREDICT_GATE_1 | 1u << MOE_PREDICT_GATE_2 | 1u << MOE_PREDICT_GATE_3;
    int status;
    MOE_STEP(check(path, synthesis, err));
    MOE_STEP(moe_trace_create(&w, path, &shape, err)); /* checks the shape, too */
    MOE_STEP(synthesizer_init(&s, synthesis, err));
    struct moe_routing_figures trial = find_sizes(&s);
    MOE_STEP(write_documents(&s, w, err));
    *reached = moe_routing_figures_of_tally(&s.tally);
    for (int i = 0; i < MOE_FIGURES_AHEAD; i++)
        if (isnan(reached->accuracy[i]))
            reached->accuracy[i] = trial.accuracy[i];
    MOE_STEP(count_documents(&s, err));
    status = moe_trace_commit(w, err);
    w = NULL;
out:
    moe_trace_abort(w);
    synthesizer_release(&s);
    return status;
}

/* ---- Draws ---- */

/* Both as in the bundled model on the texts that routing_figures.c names. The share of the
 * correlation between tokens that lasts for the whole document: 53% of a document's activations are
 * then on its own busiest quarter (in the model 52.5%). */
#define TOPIC_SHARE 0.5
/* Standard deviation of scores before softmax: the best expert's probability is then 0.36 on
 * average (in the model 0.35). */
#define SPREAD 2.0

/* ---- Numbers ---- */

/* Independent streams. */
enum stream { POPULAR, SCORES, NOISE };

static uint64_t stream_of(const struct draw *d, enum stream stream, uint64_t document,
                          uint64_t layer)
{
    const uint64_t key[] = {d->seed, stream, document, layer};
    return moe_hash64(key, sizeof key);
}

/* Nearly normal, mean 0 and variance 1: the sum of four uniform numbers, of 16 bits each. */
static float normal(uint64_t *random)
{
    const float deviation = 37837.23f; /* sqrt(4 * (2^32 - 1) / 12) */
    uint64_t z = moe_random_next(random);
    int32_t sum = (int32_t)((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return (float)(sum - 2 * 0xffff) / deviation;
}

/* The p-quantile of the normal distribution. */
static float quantile(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 48; i++) {
        double middle = (low + high) / 2;
        if (erfc(-middle / sqrt(2)) / 2 < p)
            low = middle;
        else
            high = middle;
    }
    return (float)low;
}

/* A draw of all experts together: evenly spaced quantiles in random order. Independent draws would
 * make one layer of few experts much more uneven than the next. */
static void shuffle(const struct draw *d, uint64_t *random, float *out)
{
    memcpy(out, d->quantiles, d->n_experts * sizeof *out);
    for (uint32_t i = d->n_experts - 1; i > 0; i--) {
        uint32_t j = (uint32_t)((moe_random_next(random) >> 32) * (i + 1) >> 32);
        float swapped = out[i];
        out[i] = out[j];
        out[j] = swapped;
    }
}

/* ---- Scores ---- */

static int draw_init(struct draw *d, uint32_t n_layers, uint32_t n_experts, uint64_t seed,
                     struct moe_err *err)
{
    *d = (struct draw){.n_layers = n_layers, .n_experts = n_experts, .seed = seed};
    d->quantiles = moe_alloc(n_experts, sizeof *d->quantiles, err);
    d->layers = moe_alloc(n_layers, sizeof *d->layers, err);
    d->block = moe_alloc((uint64_t)n_layers * n_experts, 3 * sizeof *d->block, err);
    if (!d->quantiles || !d->layers || !d->block)
        return MOE_ERR_MEMORY;
    for (uint32_t e = 0; e < n_experts; e++)
        d->quantiles[e] = quantile((e + 0.5) / n_experts);
    for (uint32_t l = 0; l < n_layers; l++) {
        struct draw_layer *layer = &d->layers[l];
        uint64_t random = stream_of(d, POPULAR, 0, l);
        layer->popular = d->block + 3 * (uint64_t)l * n_experts;
        layer->document = layer->popular + n_experts;
        layer->state = layer->document + n_experts;
        shuffle(d, &random, layer->popular);
    }
    return MOE_OK;
}

static void draw_release(struct draw *d)
{
    free(d->quantiles);
    free(d->layers);
    free(d->block);
    *d = (struct draw){0};
}

static void draw_begin(struct draw *d, uint32_t n_layers, uint64_t document)
{
    for (uint32_t l = 0; l < n_layers; l++) {
        struct draw_layer *layer = &d->layers[l];
        layer->random = stream_of(d, SCORES, document, l);
        layer->random_noise = stream_of(d, NOISE, document, l);
        layer->n_tokens = 0;
        shuffle(d, &layer->random, layer->document);
    }
}

static void draw_token(struct draw *d, uint32_t l, float *scores, float *predicted, uint64_t stride)
{
    struct draw_layer *layer = &d->layers[l];
    /* Apart from popularity a score has variance 1: one part lasts, the other drifts. */
    double lasting = TOPIC_SHARE * d->sizes.correlation, drifting = 1 - lasting;
    double keep = layer->n_tokens++ ? (d->sizes.correlation - lasting) / drifting : 0;
    double scale = SPREAD / sqrt(1 + d->sizes.skew * d->sizes.skew);
    float of_state = (float)keep, of_new = (float)sqrt(1 - keep * keep);
    float of_popular = (float)(scale * d->sizes.skew), of_document = (float)(scale * sqrt(lasting)),
          of_drift = (float)(scale * sqrt(drifting));
    for (uint32_t e = 0; e < d->n_experts; e++) {
        layer->state[e] = of_state * layer->state[e] + of_new * normal(&layer->random);
        scores[e] = of_popular * layer->popular[e] + of_document * layer->document[e] +
                    of_drift * layer->state[e];
    }
    for (int i = 0; predicted && i < MOE_FIGURES_AHEAD; i++) {
        /* Predictions are as confident as the router. */
        double noise = d->sizes.noise[i], shrink = 1 / sqrt(1 + noise * noise);
        float of_score = (float)shrink, of_noise = (float)(SPREAD * noise * shrink);
        for (uint32_t e = 0; e < d->n_experts; e++)
            predicted[i * stride + e] =
                of_score * scores[e] + of_noise * normal(&layer->random_noise);
    }
}
