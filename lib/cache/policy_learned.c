/*
 * learned: evicts the expert least likely to be used within the next four tokens, where later uses
 * count less. The likelihood comes from one logistic regression for all layers, which learns from
 * the choices as they come and knows no other text or model: the lowest
 *
 *     z(e) - w/2
 *
 * z is a weighted sum with these terms, for each expert of the layer whose router has chosen:
 *
 *   - ln of its share of the recent choices, fading with half-lives of 2, 8, 32 tokens and not at
 *     all, over the share of a random expert: (m + k/2E) / (n + 1/2) E/k, where m counts the faded
 *     uses and n the faded tokens
 *   - whether it has just been chosen
 *   - ln of how much oftener than on average it is used next, by what followed what (habits.h)
 *   - ln(1 + v/1024b): v are the votes for its layer's next choice that it has of past tokens whose
 *     paths are like this one's (paths.h), b is the share of tokens that used it,
 *     (count + k/2E) / (runs + 1/2)
 *   - the same of the votes for the choice after that, and for the third
 *   - 1
 *
 * w is the wait until its layer runs again, in tokens. The weights begin such that z is the second
 * of these terms, the first votes' and half and 0.4 of the later ones', less 2. Votes change with
 * every layer of a token: refreshed are those of the next layer, of the one at work, and of those a
 * quarter, a half and three quarters of the layers ahead; later ones only of the one at work. Every
 * fifth token of a layer is an example: one for each expert that was used before. Its label is what
 * its first use within four tokens is worth: 1 in the next, then 0.9, 0.8, 0.7. Of a token that is
 * a pass, the example begins before a layer or after it, at random, so that votes from near and far
 * count. The next pass takes one Newton step: the sums of gradients and curvatures of past examples
 * fade by 1% a pass and never fall below a prior of 300, so that early and single examples move
 * little.
 *
 * With texts side by side, each has its own examples: the next tokens are its own, and "just
 * chosen" refers to its row. An expert's score is z at the mean of these terms over the texts in
 * the pass. Uses fade by tokens of all texts together, since they share the cache. The end of one
 * text beside others is not visible: an example is then labelled by the text that takes its number,
 * or given up after 256 tokens of others.
 *
 * What is predicted of a layer is raised by its votes: a score is multiplied by the root of
 * 1 + v/1024b.
 *
 * More half-lives (1, 4, 16, 64), the time since the last use and the number of tokens seen were
 * tried as further terms, and every token of every layer as examples; none was worth its cost.
 */
#include <math.h>

#include "cache/exact_math.h"
#include "cache/habits.h"
#include "cache/paths.h"
#include "cache/scored.h"

enum {
    N_MEANS = 4,
    CHOSEN = N_MEANS, /* terms, in order */
    RATIO,
    VOTES,
    ONE = VOTES + 3,
    N_TERMS,
    N_VOTES = ONE - VOTES,
    HORIZON = 4, /* tokens */
    STRIDE = 5,  /* tokens from example to example, above HORIZON: one waits at a time */
    TURNS = 4,   /* parts of the layers ahead: votes of the first of each are refreshed */
    LANES = 8,   /* experts that are computed side by side: sums are of every LANES-th */
    PATIENCE = 4 * MOE_HABITS_SEQUENCES, /* tokens after which an example's text counts as ended */
};

/* What remains of a use's worth from token to token: 2^(-1/2), 2^(-1/8), 2^(-1/32), 1. */
static const float KEEPS[N_MEANS] = {0.707106781f, 0.917004043f, 0.978572062f, 1};
static const float LEAST = 0x1p-100f; /* keeps everything a normal number */
static const float LN_2 = 0.693147181f, LOG2_E = 1.44269504f;
static const float NEVER = -1000; /* below every logit: experts never used leave first */
static const float DOUBT = 1024;  /* votes that count as much as the mean frequency */
static const float WORTH[HORIZON] = {1, 0.9f, 0.8f, 0.7f}; /* of a use, tokens later */
static const double PRIOR = 300, REMEMBERS = 0.99;
static const double IMPATIENCE = 0.5; /* of a logit, for each token of waiting */

struct learned {
    struct moe_follower base;
    struct moe_habits habits;
    uint32_t stride; /* n_experts, rounded up to whole LANES: rows of terms */
    struct moe_paths paths;
    float *uses;   /* [layer][N_MEANS][n_experts] m */
    float *tokens; /* [layer][N_MEANS] n */
    /* [layer] the example that waits for its label: [N_TERMS][stride] */
    float *example;
    float *label;   /* [layer][n_experts] its labels */
    uint8_t *known; /* [layer][n_experts] whether the expert had been used before */
    uint8_t *waits; /* [n_layers] tokens of its text that the example has waited, from 1 on; 0: none
                       waits */
    uint32_t *text; /* [n_layers] its sequence */
    uint32_t *began;             /* [n_layers] habits.runs when the last example began */
    uint8_t *used;               /* [layer][n_experts] ever */
    float *terms;                /* [layer][N_TERMS][stride] as last scored; 0 behind n_experts */
    float *bases;                /* [layer][n_experts] logits without votes, or NEVER */
    uint16_t *voted;             /* [layer][N_VOTES][n_voices] experts that have votes */
    uint32_t *n_voted, n_voices; /* [layer][N_VOTES] */
    float *votes;                /* [n_experts] scratch, zero */
    float *ratios;               /* [n_voices] scratch */
    uint32_t random;
    float *logits, *errors, *slopes, *sloped; /* [stride] scratch */
    float weights[N_TERMS];
    double curvature[N_TERMS][N_TERMS], gradient[N_TERMS]; /* of examples */
    double exact[N_TERMS];                                 /* the weights */
    uint32_t layer;                                        /* the layer whose router chose last */
    struct moe_buf *tape; /* NULL: none; of each choice a tape_step, the layer's bases, and
                             votes as they are taken */
    bool reads;           /* it, from tape_at on; else writes */
    uint64_t tape_at;
    bool learns; /* an example came since the last step */
};

/* ---- The regression ---- */

/* The curvature as lower * diagonal * its mirror: Cholesky's decomposition without roots. */
static void decompose(const struct learned *t, double lower[N_TERMS][N_TERMS],
                      double diagonal[N_TERMS])
{
    for (int i = 0; i < N_TERMS; i++)
        for (int j = 0; j <= i; j++) {
            double sum = t->curvature[i][j];
            for (int k = 0; k < j; k++)
                sum -= lower[i][k] * diagonal[k] * lower[j][k];
            if (i == j)
                diagonal[i] = sum;
            else
                lower[i][j] = sum / diagonal[j];
        }
}

/* Takes one Newton step: curvature * step = gradient. */
static void newton_step(struct learned *t)
{
    double lower[N_TERMS][N_TERMS], diagonal[N_TERMS], x[N_TERMS];
    decompose(t, lower, diagonal);
    for (int i = 0; i < N_TERMS; i++) {
        x[i] = t->gradient[i];
        for (int k = 0; k < i; k++)
            x[i] -= lower[i][k] * x[k];
    }
    for (int i = N_TERMS; i-- > 0;) {
        x[i] /= diagonal[i];
        for (int k = i + 1; k < N_TERMS; k++)
            x[i] -= lower[k][i] * x[k];
    }
    for (int i = 0; i < N_TERMS; i++) {
        t->exact[i] += x[i];
        t->weights[i] = (float)t->exact[i];
        t->gradient[i] = 0;
        for (int j = 0; j < N_TERMS; j++)
            t->curvature[i][j] *= REMEMBERS;
        t->curvature[i][i] += (1 - REMEMBERS) * PRIOR;
    }
    t->learns = false;
}

static void weigh(const struct learned *t, const float *terms, float *logits)
{
    uint32_t stride = t->stride;
    for (uint32_t e = 0; e < stride; e++)
        logits[e] = 0;
    for (int i = 0; i < N_TERMS; i++) {
        const float weight = t->weights[i], *term = terms + i * stride;
        for (uint32_t e = 0; e < stride; e++)
            logits[e] += weight * term[e];
    }
}

/* The sum of products, always in the same order. */
static double dot(const float *a, const float *b, uint32_t stride)
{
    float sums[LANES] = {0};
    double all = 0;
    for (uint32_t e = 0; e < stride; e += LANES)
        for (int k = 0; k < LANES; k++)
            sums[k] += a[e + k] * b[e + k];
    for (int k = 0; k < LANES; k++)
        all += (double)sums[k];
    return all;
}

/* Adds the layer's example, whose labels are complete. */
static void learn_example(struct learned *t, uint32_t layer)
{
    uint32_t n = t->habits.n_experts, stride = t->stride;
    const float *terms = t->example + (uint64_t)layer * N_TERMS * stride;
    const uint8_t *known = t->known + layer * n;
    const float *label = t->label + layer * n;
    float *errors = t->errors, *slopes = t->slopes, *sloped = t->sloped;
    weigh(t, terms, t->logits);
    for (uint32_t e = 0; e < n; e++) {
        float p = 1 / (1 + moe_exact_exp2(-t->logits[e] * LOG2_E)), counts = known[e];
        errors[e] = counts * (label[e] - p);
        slopes[e] = counts * (p * (1 - p));
    }
    for (int i = 0; i < N_TERMS; i++) {
        const float *term = terms + i * stride;
        t->gradient[i] += dot(errors, term, stride);
        for (uint32_t e = 0; e < stride; e++)
            sloped[e] = slopes[e] * term[e];
        for (int j = 0; j <= i; j++) /* the other half is the same */
            t->curvature[i][j] += dot(sloped, terms + j * stride, stride);
    }
    t->learns = true;
    t->waits[layer] = 0;
}

/* ---- What routers choose ---- */

static void make_terms(struct learned *t, const struct moe_choices *c, float *terms)
{
    uint32_t n = t->habits.n_experts, stride = t->stride, top_k = t->habits.top_k;
    float chance = (float)top_k / (float)n;
    for (int i = 0; i < N_MEANS; i++) {
        float *term = terms + i * stride;
        float per = 1.0f / ((t->tokens[c->layer * N_MEANS + i] + 0.5f) * chance);
        const float *uses = t->uses + ((uint64_t)c->layer * N_MEANS + i) * n;
        for (uint32_t e = 0; e < n; e++)
            term[e] = moe_exact_log2((uses[e] + 0.5f * chance) * per) * LN_2;
    }
    float *ratio = terms + RATIO * stride, *one = terms + ONE * stride;
    moe_habits_ratios(&t->habits, c, ratio, terms + CHOSEN * stride);
    for (uint32_t e = 0; e < n; e++) {
        ratio[e] = moe_exact_log2(ratio[e]) * LN_2;
        one[e] = 1;
    }
}

/* Adds one row's choices, which label the waiting example if it belongs to their text. */
static void take_row(struct learned *t, uint32_t layer, uint32_t sequence, const uint32_t *chosen)
{
    uint32_t n = t->habits.n_experts, top_k = t->habits.top_k;
    for (int i = 0; i < N_MEANS; i++) {
        float *uses = t->uses + ((uint64_t)layer * N_MEANS + i) * n;
        float *tokens = t->tokens + layer * N_MEANS + i, keeps = KEEPS[i];
        for (uint32_t e = 0; e < n; e++) {
            float left = uses[e] * keeps;
            uses[e] = left > LEAST ? left : LEAST;
        }
        for (uint32_t k = 0; k < top_k; k++)
            uses[chosen[k]] += 1;
        *tokens = *tokens * keeps + 1;
    }
    for (uint32_t k = 0; k < top_k; k++)
        t->used[layer * n + chosen[k]] = 1;
    moe_habits_row(&t->habits, layer, sequence, chosen);
    if (!t->waits[layer] || t->text[layer] != sequence)
        return;
    for (uint32_t k = 0; k < top_k; k++)
        t->label[layer * n + chosen[k]] =
            fmaxf(t->label[layer * n + chosen[k]], WORTH[t->waits[layer] - 1]);
    if (t->waits[layer]++ == HORIZON)
        learn_example(t, layer);
}

static float *terms_of(const struct learned *t, uint32_t layer)
{
    return t->terms + (uint64_t)layer * N_TERMS * t->stride;
}

/* Whether the layer wants an example. Layers take turns (follow), so that each token is one in some
 * layer. */
static bool is_due(const struct learned *t, uint32_t layer)
{
    uint32_t runs = t->habits.runs[layer], since = runs - t->began[layer];
    return runs && since >= STRIDE && (!t->waits[layer] || since > PATIENCE);
}

/* The layer's terms are an example, for the text. */
static void begin_example(struct learned *t, uint32_t layer, uint32_t sequence)
{
    uint64_t n = t->habits.n_experts, first = layer * n, n_terms = (uint64_t)N_TERMS * t->stride;
    memcpy(t->example + layer * n_terms, terms_of(t, layer), n_terms * sizeof *t->example);
    memset(t->label + first, 0, n * sizeof *t->label);
    memcpy(t->known + first, t->used + first, n);
    t->waits[layer] = 1;
    t->text[layer] = sequence;
    t->began[layer] = t->habits.runs[layer];
}

/* ---- Votes ---- */

static uint16_t *voted_of(const struct learned *t, uint32_t layer, uint32_t later)
{
    return t->voted + ((uint64_t)layer * N_VOTES + later) * t->n_voices;
}

/* An expert's score, with the votes that it has now. */
static void rescore(struct learned *t, uint32_t layer, uint32_t e)
{
    const float *terms = terms_of(t, layer) + VOTES * t->stride;
    float score = t->bases[layer * t->habits.n_experts + e];
    for (uint32_t later = 0; later < N_VOTES; later++)
        score += t->weights[VOTES + later] * terms[later * t->stride + e];
    t->base.scores[layer * t->habits.n_experts + e] = score;
}

/* Its experts; their number goes to *n. */
static const uint16_t *forget_votes(struct learned *t, uint32_t layer, uint32_t later, uint32_t *n)
{
    const uint16_t *voted = voted_of(t, layer, later);
    float *terms = terms_of(t, layer) + (VOTES + later) * t->stride;
    *n = t->n_voted[layer * N_VOTES + later];
    t->n_voted[layer * N_VOTES + later] = 0;
    for (uint32_t i = 0; i < *n; i++)
        terms[voted[i]] = 0;
    return voted;
}

/* Before the layer's scores are made anew. */
static void forget_all_votes(struct learned *t, uint32_t layer)
{
    uint32_t n;
    for (uint32_t later = 0; later < N_VOTES; later++)
        forget_votes(t, layer, later, &n);
}

/* Counts those for the layer's next choice, or that `later` tokens after it, and what they are in
 * the regression: voted, and t->ratios. Returns how many experts have some. */
static uint32_t count_votes(struct learned *t, uint32_t layer, uint32_t later, uint16_t *voted)
{
    const uint32_t *count = t->habits.count + layer * t->habits.n_experts;
    float half = 0.5f * (float)t->habits.top_k / (float)t->habits.n_experts, *ratios = t->ratios;
    float per = ((float)t->habits.runs[layer] + 0.5f) / DOUBT;
    uint32_t n = moe_paths_votes(&t->paths, layer, later, t->votes, voted);
    for (uint32_t i = 0; i < n; i++) {
        ratios[i] = 1 + t->votes[voted[i]] * per / ((float)(int32_t)count[voted[i]] + half);
        t->votes[voted[i]] = 0;
    }
    for (uint32_t i = 0; i < n; i++)
        ratios[i] = moe_exact_log2(ratios[i]) * LN_2;
    return n;
}

/* count_votes by the tape, or writes them to it. */
static uint32_t share_votes(struct learned *t, uint32_t layer, uint32_t later, uint16_t *voted)
{
    uint32_t n;
    if (!t->reads) {
        n = count_votes(t, layer, later, voted);
        moe_buf_append(t->tape, &n, sizeof n);
        moe_buf_append(t->tape, voted, n * sizeof *voted);
        moe_buf_append(t->tape, t->ratios, n * sizeof *t->ratios);
        return n;
    }
    const uint8_t *at = t->tape->data + t->tape_at;
    memcpy(&n, at, sizeof n);
    memcpy(voted, at + sizeof n, n * sizeof *voted);
    memcpy(t->ratios, at + sizeof n + n * sizeof *voted, n * sizeof *t->ratios);
    t->tape_at += sizeof n + n * (sizeof *voted + sizeof *t->ratios);
    return n;
}

/* shared: others who follow the same choices take the same votes now. */
static void take_votes(struct learned *t, uint32_t layer, uint32_t later, bool shared)
{
    uint32_t first = layer * t->habits.n_experts, n;
    float weight = t->weights[VOTES + later], *ratios = t->ratios;
    float *terms = terms_of(t, layer) + (VOTES + later) * t->stride;
    const uint16_t *before = forget_votes(t, layer, later, &n);
    uint16_t *voted = voted_of(t, layer, later);
    for (uint32_t i = 0; i < n; i++)
        rescore(t, layer, before[i]);
    n = shared && t->tape ? share_votes(t, layer, later, voted)
                          : count_votes(t, layer, later, voted);
    t->n_voted[layer * N_VOTES + later] = n;
    for (uint32_t i = 0; i < n; i++) {
        terms[voted[i]] = ratios[i];
        t->base.scores[first + voted[i]] += weight * ratios[i];
    }
    t->base.version[layer]++;
}

/* Refreshes the votes of layers to come, and begins examples of them. */
static void refresh(struct learned *t, const struct moe_choices *c)
{
    uint32_t n_layers = t->habits.n_layers, quarter = (n_layers + TURNS - 1) / TURNS;
    uint32_t often = c->n_rows > 1 ? 0 : TURNS; /* one in this many that could be an example is */
    for (uint32_t ahead = 1; ahead <= n_layers; ahead++) {
        uint32_t layer = (c->layer + ahead) % n_layers;
        if (ahead > 1 && ahead % quarter != 0 && ahead < n_layers)
            continue;
        take_votes(t, layer, 0, true);
        for (uint32_t later = 1; later < N_VOTES && ahead == n_layers; later++)
            take_votes(t, layer, later, true);
        if (!often || (t->tape && t->reads) || !is_due(t, layer))
            continue;
        t->random = t->random * 1664525 + 1013904223;
        if ((t->random >> 8) % often == 0)
            begin_example(t, layer, c->sequences ? c->sequences[0] : 0);
    }
}

/* A score grows by the root of what its votes are in the regression. */
static void expect(struct moe_follower *f, uint32_t layer, float *scores)
{
    struct learned *t = (struct learned *)f;
    take_votes(t, layer, 0, false);
    const uint16_t *voted = voted_of(t, layer, 0);
    const float *terms = terms_of(t, layer) + VOTES * t->stride;
    for (uint32_t i = 0; i < t->n_voted[layer * N_VOTES]; i++)
        scores[voted[i]] *= moe_exact_exp2(0.5f * LOG2_E * terms[voted[i]]);
}

/* What a choice came to, for those who follow the same choices. */
struct tape_step {
    float weights[N_VOTES]; /* of votes */
    struct moe_paths_nearest near;
};

static void write_step(struct learned *t, uint32_t layer)
{
    const uint32_t n = t->habits.n_experts;
    struct tape_step step = {.near = t->paths.near};
    memcpy(step.weights, t->weights + VOTES, sizeof step.weights);
    moe_buf_append(t->tape, &step, sizeof step);
    moe_buf_append(t->tape, t->bases + layer * n, n * sizeof *t->bases);
}

/* As chosen, which another has followed before. */
static void read_step(struct learned *t, const struct moe_choices *c)
{
    const uint32_t n = t->habits.n_experts, first = c->layer * n;
    const uint8_t *at = t->tape->data + t->tape_at;
    struct tape_step step;
    memcpy(&step, at, sizeof step);
    t->tape_at += sizeof step + n * sizeof *t->bases;
    for (uint64_t i = 0; i < (uint64_t)c->n_rows * t->habits.top_k; i++)
        t->habits.count[first + c->chosen[i]]++;
    t->habits.runs[c->layer] += c->n_rows;
    forget_all_votes(t, c->layer);
    memcpy(t->weights + VOTES, step.weights, sizeof step.weights);
    memcpy(t->bases + first, at + sizeof step, n * sizeof *t->bases);
    memcpy(t->base.scores + first, t->bases + first, n * sizeof *t->bases);
    t->base.version[c->layer]++;
    if (moe_paths_add(&t->paths, c, &step.near))
        refresh(t, c);
}

static void share(struct moe_follower *f, struct moe_buf *tape, bool reads)
{
    struct learned *t = (struct learned *)f;
    t->tape = tape;
    t->reads = reads;
}

static void chosen(struct moe_follower *f, const struct moe_choices *c)
{
    struct learned *t = (struct learned *)f;
    uint32_t n = t->habits.n_experts, layer = c->layer;
    if (t->tape && t->reads) {
        read_step(t, c);
        return;
    }
    float *terms = terms_of(t, layer), *scores = f->scores + layer * n;
    if (layer <= t->layer && t->learns)
        newton_step(t);
    t->layer = layer;
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const struct moe_choices row = {layer, 1, c->chosen + (uint64_t)i * t->habits.top_k,
                                        c->sequences ? c->sequences + i : NULL};
        take_row(t, layer, row.sequences ? *row.sequences : 0, row.chosen);
        if (c->n_rows > 1 && is_due(t, layer)) {
            forget_all_votes(t, layer);
            make_terms(t, &row, terms);
            begin_example(t, layer, row.sequences ? *row.sequences : 0);
        }
    }
    forget_all_votes(t, layer);
    make_terms(t, c, terms);
    weigh(t, terms, t->logits);
    for (uint32_t e = 0; e < n; e++)
        scores[e] = t->used[layer * n + e] ? t->logits[e] : NEVER;
    memcpy(t->bases + layer * n, scores, n * sizeof *scores);
    f->version[layer]++;
    bool votes = moe_paths_add(&t->paths, c, NULL);
    if (t->tape)
        write_step(t, layer);
    if (votes)
        refresh(t, c);
}

/* Drops examples of the previous text, which have no next token. */
static void begin_sequence(struct moe_follower *f)
{
    struct learned *t = (struct learned *)f;
    moe_habits_begin_sequence(&t->habits);
    moe_paths_begin_sequence(&t->paths);
    memset(t->waits, 0, t->habits.n_layers);
}

/* ---- What it has learnt ---- */

/* Begins with nothing: all else is zero. */
static void begin(struct learned *t)
{
    uint32_t n_layers = t->habits.n_layers;
    moe_paths_begin(&t->paths);
    for (uint64_t key = 0; key < (uint64_t)n_layers * t->habits.n_experts; key++)
        t->base.scores[key] = t->bases[key] = NEVER;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        t->began[layer] = 0 - layer % STRIDE;
    t->exact[1] = 1;
    t->exact[VOTES] = 1;
    t->exact[VOTES + 1] = 0.5;
    t->exact[VOTES + 2] = 0.4;
    t->exact[ONE] = -2;
    for (int i = 0; i < N_TERMS; i++) {
        t->curvature[i][i] = PRIOR;
        t->weights[i] = (float)t->exact[i];
    }
}

static bool visit(struct learned *t, uint32_t n_tokens, bool reads, moe_part_fn part, void *ctx)
{
    const struct moe_habits *h = &t->habits;
    const uint64_t n_layers = h->n_layers, n_keys = n_layers * h->n_experts;
    return part(ctx, t->exact, N_TERMS, sizeof *t->exact) &&
           part(ctx, t->curvature, (uint64_t)N_TERMS * N_TERMS, sizeof **t->curvature) &&
           part(ctx, t->uses, n_keys * N_MEANS, sizeof *t->uses) &&
           part(ctx, t->tokens, n_layers * N_MEANS, sizeof *t->tokens) &&
           part(ctx, t->bases, n_keys, sizeof *t->bases) && part(ctx, t->used, n_keys, 1) &&
           part(ctx, h->followed, n_keys * h->n_experts, sizeof *h->followed) &&
           part(ctx, h->tokens, n_keys, sizeof *h->tokens) &&
           part(ctx, h->count, n_keys, sizeof *h->count) &&
           part(ctx, h->runs, n_layers, sizeof *h->runs) &&
           moe_paths_visit(&t->paths, n_tokens, reads, part, ctx);
}

static bool forget_part(void *ctx, void *numbers, uint64_t n, uint32_t bytes)
{
    memset(numbers, 0, n * bytes);
    return true;
}

static bool are_within(const float *x, uint64_t n, float least, float most)
{
    bool good = true;
    for (uint64_t i = 0; i < n; i++)
        good &= x[i] >= least && x[i] <= most;
    return good;
}

/* Whether all numbers are such as could have been learnt. */
static bool makes_sense(const struct learned *t)
{
    const double most = 0x1p50;
    const uint64_t n_layers = t->habits.n_layers, n_keys = n_layers * t->habits.n_experts;
    double lower[N_TERMS][N_TERMS], diagonal[N_TERMS];
    bool good = are_within(t->uses, n_keys * N_MEANS, 0, 0x1p32f) &&
                are_within(t->tokens, n_layers * N_MEANS, 0, 0x1p32f) &&
                are_within(t->bases, n_keys, NEVER, -NEVER);
    for (int i = 0; i < N_TERMS; i++) {
        double beside = 0;
        good &= fabs(t->exact[i]) < -(double)NEVER;
        for (int j = 0; j < i; j++)
            beside += fabs(t->curvature[i][j]);
        good &= beside < most && t->curvature[i][i] >= 1 && t->curvature[i][i] < most;
    }
    decompose(t, lower, diagonal); /* else steps would lead away */
    for (int i = 0; i < N_TERMS; i++)
        good &= diagonal[i] >= 1;
    for (uint64_t key = 0; key < n_keys; key++)
        good &= t->used[key] <= 1 && t->habits.count[key] <= INT32_MAX;
    return good;
}

static bool learnt(struct moe_follower *f, uint32_t n_tokens, bool reads, moe_part_fn part,
                   void *ctx)
{
    struct learned *t = (struct learned *)f;
    const struct moe_habits *h = &t->habits;
    if (t->learns)
        newton_step(t);
    if (!reads)
        return visit(t, n_tokens, false, part, ctx);
    moe_paths_begin(&t->paths);
    bool good = visit(t, n_tokens, true, part, ctx) && makes_sense(t);
    memset(t->gradient, 0, sizeof t->gradient);
    if (!good) {
        visit(t, 0, true, forget_part, NULL);
        begin(t);
    }
    for (int i = 0; i < N_TERMS; i++)
        t->weights[i] = (float)t->exact[i];
    memcpy(f->scores, t->bases, (uint64_t)h->n_layers * h->n_experts * sizeof *t->bases);
    for (uint32_t layer = 0; layer < h->n_layers; layer++) {
        t->began[layer] =
            h->runs[layer] - layer % STRIDE; /* after its next choice at the soonest */
        memset(t->n_voted + layer * N_VOTES, 0, N_VOTES * sizeof *t->n_voted);
        f->version[layer]++;
    }
    begin_sequence(f);
    return good;
}

/* Layers of drafts, or of an encoder, see fewer. */
static uint64_t n_learnt(const struct moe_follower *f)
{
    const struct moe_habits *h = &((const struct learned *)f)->habits;
    uint64_t most = 0;
    for (uint32_t layer = 0; layer < h->n_layers; layer++)
        most = h->runs[layer] > most ? h->runs[layer] : most;
    return most;
}

/* ---- Opening ---- */

static struct moe_follower *follow(struct moe_arena *a, const struct moe_follower_params *p)
{
    uint64_t n = p->n_experts, n_layers = p->n_layers, n_keys = n * n_layers;
    struct learned *at = moe_arena_take(a, 1, sizeof *at);
    struct learned t = {.base = {.chosen = chosen,
                                 .begin_sequence = begin_sequence,
                                 .expect = expect,
                                 .learnt = learnt,
                                 .n_learnt = n_learnt,
                                 .share = share}};
    moe_habits_carve(&t.habits, a, p);
    moe_paths_carve(&t.paths, a, p);
    t.base.scores = moe_arena_take(a, n_keys, sizeof *t.base.scores);
    t.base.version = moe_arena_take(a, n_layers, sizeof *t.base.version);
    t.uses = moe_arena_take(a, n_keys * N_MEANS, sizeof *t.uses);
    t.tokens = moe_arena_take(a, n_layers * N_MEANS, sizeof *t.tokens);
    t.stride = (p->n_experts + LANES - 1) / LANES * LANES;
    t.example = moe_arena_take(a, n_layers * t.stride * N_TERMS, sizeof *t.example);
    t.label = moe_arena_take(a, n_keys, sizeof *t.label);
    t.known = moe_arena_take(a, n_keys, 1);
    t.waits = moe_arena_take(a, n_layers, 1);
    t.text = moe_arena_take(a, n_layers, sizeof *t.text);
    t.began = moe_arena_take(a, n_layers, sizeof *t.began);
    t.used = moe_arena_take(a, n_keys, 1);
    t.terms = moe_arena_take(a, n_layers * t.stride * N_TERMS, sizeof *t.terms);
    t.bases = moe_arena_take(a, n_keys, sizeof *t.bases);
    t.n_voices = MOE_PATHS_NEAREST * p->top_k;
    t.voted = moe_arena_take(a, n_layers * N_VOTES * t.n_voices, sizeof *t.voted);
    t.n_voted = moe_arena_take(a, n_layers * N_VOTES, sizeof *t.n_voted);
    t.votes = moe_arena_take(a, n, sizeof *t.votes);
    t.ratios = moe_arena_take(a, t.n_voices, sizeof *t.ratios);
    t.logits = moe_arena_take(a, t.stride, sizeof *t.logits);
    t.errors = moe_arena_take(a, t.stride, sizeof *t.errors);
    t.slopes = moe_arena_take(a, t.stride, sizeof *t.slopes);
    t.sloped = moe_arena_take(a, t.stride, sizeof *t.sloped);
    if (!at)
        return NULL;
    *at = t;
    at->base.n_tokens = t.paths.room;
    /* Experts have several of the votes. */
    at->base.step_bytes =
        (uint32_t)(sizeof(struct tape_step) + n * sizeof *t.bases +
                   (TURNS + N_VOTES) * (t.n_voices / 2) * (sizeof *t.voted + sizeof *t.ratios));
    begin(at);
    return &at->base;
}

static double logit_then(const struct moe_scored *s, double logit, uint32_t of, uint32_t layer)
{
    if (!moe_scored_returns(s, layer, of))
        return -INFINITY;
    return logit - moe_scored_wait(s, of, layer) * IMPATIENCE;
}

const struct moe_policy_ops moe_policy_learned = {
    .name = "learned",
    .describe = "evicts what is least likely to be used soon, learnt from token to token",
    .needs_usage = true,
    .passes = true,
    .follow = follow,
    .open = moe_scored_open,
    .close = moe_scored_close,
    .use = moe_scored_use,
    .admit = moe_scored_admit,
    .drop = moe_scored_drop,
    .victim = moe_scored_victim,
    .part = moe_scored_followed,
    .score = logit_then,
};
