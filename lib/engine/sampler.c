/* The sampler: which token comes next, and what is said of its choice. */
#include "engine/sampler.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/random.h"

struct candidate {
    float logit;
    uint32_t id;
};

struct moe_sampler {
    struct moe_sampler_options options;
    uint32_t vocab;
    struct moe_sampler_draws draws;
    float *penalised;             /* vocab logits, where a penalty or a mask changes some */
    struct candidate *candidates; /* vocab */
    float *weights;               /* of the candidates, or of all: vocab */
    double *blocks;               /* their sums, BLOCK at a time */
    float inverse_temperature;
};

enum {
    FIRST_TOP_P = 256, /* how many of the likeliest top-p looks at first */
    BLOCK = 256,       /* weights summed at a time, so that a draw need not walk all */
};

/* Uniform in [0, 1). */
static double uniform(struct moe_sampler *s)
{
    return (double)(moe_random_xoshiro(s->draws.random) >> 11) * 0x1p-53;
}

struct moe_sampler_draws moe_sampler_get_draws(const struct moe_sampler *s)
{
    return s->draws;
}

void moe_sampler_set_draws(struct moe_sampler *s, const struct moe_sampler_draws *draws)
{
    s->draws = *draws;
}

/* ---- Opening ---- */

/* Written so that a NaN fails. */
static int check_options(const struct moe_sampler_options *o, struct moe_err *err)
{
    if (!(o->temperature >= 0 && o->temperature <= FLT_MAX))
        return moe_fail(err, MOE_ERR_USAGE, "temperature %g: at least 0 was expected",
                        o->temperature);
    if (!(o->top_p >= 0 && o->top_p <= 1))
        return moe_fail(err, MOE_ERR_USAGE, "top-p %g: 0 to 1 was expected", o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return moe_fail(err, MOE_ERR_USAGE, "min-p %g: 0 to 1 was expected", o->min_p);
    if (!(o->repeat_penalty > 0 && o->repeat_penalty <= FLT_MAX))
        return moe_fail(err, MOE_ERR_USAGE, "repeat penalty %g: above 0 was expected",
                        o->repeat_penalty);
    return MOE_OK;
}

/* A sampler and its arrays from the arena, or NULL where it only counts. */
static struct moe_sampler *carve(struct moe_arena *arena, uint32_t vocab)
{
    struct moe_sampler none, *s = moe_arena_take(arena, 1, sizeof *s), *to = s ? s : &none;
    to->penalised = moe_arena_take(arena, vocab, sizeof *to->penalised);
    to->candidates = moe_arena_take(arena, vocab, sizeof *to->candidates);
    to->weights = moe_arena_take(arena, vocab, sizeof *to->weights);
    to->blocks = moe_arena_take(arena, (uint64_t)vocab / BLOCK + 1, sizeof *to->blocks);
    return s;
}

uint64_t moe_sampler_bytes(uint32_t vocab)
{
    struct moe_arena arena = {0};
    carve(&arena, vocab);
    return arena.used;
}

int moe_sampler_new(struct moe_sampler **out, const struct moe_sampler_options *options,
                    uint32_t vocab, struct moe_err *err)
{
    int status = vocab ? check_options(options, err)
                       : moe_fail(err, MOE_ERR_USAGE, "a sampler needs a vocabulary");
    struct moe_arena arena = {.size = moe_sampler_bytes(vocab)};
    if (status == MOE_OK && !(arena.base = moe_alloc(1, arena.size, err)))
        status = MOE_ERR_MEMORY;
    if (status != MOE_OK)
        return status;
    struct moe_sampler *s = *out = carve(&arena, vocab);
    s->options = *options;
    s->vocab = vocab;
    /* Kept finite: the likeliest token's 0 times infinity would be NaN. */
    double inverse = options->temperature > 0 ? 1 / options->temperature : 0;
    s->inverse_temperature = inverse < FLT_MAX ? (float)inverse : FLT_MAX;
    uint64_t state = options->seed;
    for (int i = 0; i < 4; i++)
        s->draws.random[i] = moe_random_next(&state);
    return MOE_OK;
}

const struct moe_sampler_options *moe_sampler_asked(const struct moe_sampler *s)
{
    return &s->options;
}

void moe_sampler_free(struct moe_sampler *s)
{
    free(s);
}

/* ---- Logits ---- */

/* Each recent token once, however often it came: the penalty is taken from the original. */
static const float *penalise(struct moe_sampler *s, const float *logits, const uint32_t *recent,
                             uint64_t n_recent)
{
    float penalty = (float)s->options.repeat_penalty;
    if (penalty == 1 || n_recent == 0 || s->options.repeat_window == 0)
        return logits;
    memcpy(s->penalised, logits, s->vocab * sizeof *logits);
    uint64_t from = n_recent > s->options.repeat_window ? n_recent - s->options.repeat_window : 0;
    for (uint64_t i = from; i < n_recent; i++) {
        uint32_t id = recent[i];
        if (id < s->vocab)
            s->penalised[id] = logits[id] > 0 ? logits[id] / penalty : logits[id] * penalty;
    }
    return s->penalised;
}

/* What is not allowed becomes NaN, which is never drawn, and nothing else is. */
static const float *leave_allowed(struct moe_sampler *s, const float *logits,
                                  const uint64_t *allowed)
{
    for (uint32_t id = 0; id < s->vocab; id++)
        s->penalised[id] = moe_is_allowed(allowed, id) ? moe_logit_sane(logits[id]) : NAN;
    return s->penalised;
}

/* The lowest id among the highest. A NaN compares false and is passed over. */
static uint32_t greedy(const float *logits, uint32_t n)
{
    uint32_t best[4] = {0};
    float highest[4];
    for (int j = 0; j < 4; j++)
        highest[j] = moe_logit_sane(logits[0]);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) { /* four at a time: they do not wait for one another */
        for (uint32_t j = 0; j < 4; j++) {
            bool higher = logits[i + j] > highest[j];
            best[j] = higher ? i + j : best[j];
            highest[j] = higher ? logits[i + j] : highest[j];
        }
    }
    for (; i < n; i++) {
        if (logits[i] > highest[0]) {
            highest[0] = logits[i];
            best[0] = i;
        }
    }
    for (int j = 1; j < 4; j++) {
        if (highest[j] > highest[0] || (highest[j] == highest[0] && best[j] < best[0])) {
            highest[0] = highest[j];
            best[0] = best[j];
        }
    }
    return best[0];
}

/* ---- The likeliest k ---- */

static bool is_likelier(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/* Restores the heap, whose root is the least likely, below `at`. */
static void sift_down(struct candidate *heap, uint32_t n, uint32_t at)
{
    struct candidate moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && is_likelier(heap[child], heap[child + 1]))
            child++;
        if (!is_likelier(moved, heap[child]))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

/* The k likeliest of the logits, likeliest first, into candidates[0..k). */
static void select_likeliest(struct moe_sampler *s, const float *logits, uint32_t k)
{
    struct candidate *heap = s->candidates;
    for (uint32_t i = 0; i < k; i++)
        heap[i] = (struct candidate){moe_logit_sane(logits[i]), i};
    for (uint32_t i = k / 2; i-- > 0;)
        sift_down(heap, k, i);
    for (uint32_t i = k; i < s->vocab; i++) {
        /* Ids grow, so a tie with the root loses; a NaN compares false. */
        if (logits[i] > heap[0].logit) {
            heap[0] = (struct candidate){moe_logit_sane(logits[i]), i};
            sift_down(heap, k, 0);
        }
    }
    for (uint32_t n = k; n-- > 1;) {
        struct candidate last = heap[n];
        heap[n] = heap[0];
        heap[0] = last;
        sift_down(heap, n, 0);
    }
}

/* ---- Weights ---- */

static inline uint32_t bits_of(float v)
{
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

/*
 * exp((logit - highest) / T) to a relative error of a few 1e-6, as bits, in operations that the
 * compiler turns into vector code: a large vocabulary would otherwise spend more time in exp than
 * the rest of the sampler needs. Comparisons are between integers for the same reason (those of
 * floats may trap). 0 below exp(-80), below `least` (min-p's share: the likeliest's weight is 1),
 * and for a NaN.
 */
static inline uint32_t weight_bits(float logit, float highest, float scale, uint32_t least)
{
    float x = (logit - highest) * scale;
    float y = x * 1.44269504f;     /* in base 2 */
    float shifted = y + 0x1.8p23f; /* leaves the nearest integer in the low bits */
    float f = y - (shifted - 0x1.8p23f);
    float power = 0.000154035304f;
    power = power * f + 0.00133335581f;
    power = power * f + 0.00961812911f;
    power = power * f + 0.0555041087f;
    power = power * f + 0.240226507f;
    power = power * f + 0.693147181f;
    power = power * f + 1.0f;
    uint32_t bits = bits_of(power) + (bits_of(shifted) << 23);
    int32_t magnitude = (int32_t)(bits_of(x) & 0x7fffffff);
    bits = magnitude < 0x42a00000 ? bits : 0; /* 80.0f */
    return (int32_t)bits >= (int32_t)least ? bits : 0;
}

/* Sums of BLOCK weights each; returns their total. */
static double sum_blocks(struct moe_sampler *s, uint32_t n)
{
    double total = 0;
    for (uint32_t begin = 0; begin < n; begin += BLOCK) {
        uint32_t end = n - begin < BLOCK ? n : begin + BLOCK;
        double sum[4] = {0};
        uint32_t i = begin;
        for (; i + 4 <= end; i += 4) {
            for (int j = 0; j < 4; j++)
                sum[j] += s->weights[i + (uint32_t)j];
        }
        for (; i < end; i++)
            sum[0] += s->weights[i];
        total += s->blocks[begin / BLOCK] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
    return total;
}

static inline float weight(float logit, float highest, float scale, uint32_t least)
{
    uint32_t bits = weight_bits(logit, highest, scale, least);
    float w;
    memcpy(&w, &bits, sizeof w);
    return w;
}

/* Weights of all logits, in id order; returns their sum. */
static double weigh_all(struct moe_sampler *s, const float *logits, float highest, float least)
{
    float *weights = s->weights, scale = s->inverse_temperature;
    for (uint32_t i = 0; i < s->vocab; i++)
        weights[i] = weight(logits[i], highest, scale, bits_of(least));
    return sum_blocks(s, s->vocab);
}

/* Weights of candidates[0..n); returns their sum. */
static double weigh_candidates(struct moe_sampler *s, uint32_t n, float highest)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += s->weights[i] = weight(s->candidates[i].logit, highest, s->inverse_temperature, 0);
    return sum;
}

/* ---- Top-k, top-p, min-p, draw ---- */

/* How many of the first n candidates reach the share `top_p` of total; n + 1 when all do not. */
static uint32_t reach(const struct moe_sampler *s, uint32_t n, double total)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += s->weights[i];
        if (sum >= s->options.top_p * total)
            return i + 1;
    }
    return n + 1;
}

/* Candidates after top-k and top-p, likeliest first, with their weights. Returns their number. */
static uint32_t choose_candidates(struct moe_sampler *s, const float *logits, float highest)
{
    uint32_t n = s->vocab, k = s->options.top_k;
    if (k && k < n) {
        select_likeliest(s, logits, k);
        uint32_t kept = reach(s, k, weigh_candidates(s, k, highest));
        return kept < k ? kept : k;
    }
    double total = weigh_all(s, logits, highest, 0);
    /* Few tokens usually hold the share: more are sorted only where they do not. */
    for (k = FIRST_TOP_P;; k = k < n / 8 ? k * 8 : n) {
        k = k < n ? k : n;
        select_likeliest(s, logits, k);
        weigh_candidates(s, k, highest);
        uint32_t kept = reach(s, k, total);
        if (kept <= k)
            return kept;
        if (k == n)
            return n;
    }
}

/* The place of the weight drawn among the first n, whose blocks are summed. */
static uint32_t draw(struct moe_sampler *s, uint32_t n, double total)
{
    double at = uniform(s) * total;
    uint32_t block = 0, last = 0;
    while ((block + 1) * BLOCK < n && s->blocks[block] <= at)
        at -= s->blocks[block++];
    for (uint32_t i = block * BLOCK; i < n; i++) {
        if (s->weights[i] <= 0)
            continue;
        if (s->weights[i] > at)
            return i;
        at -= s->weights[i];
        last = i; /* rounding may leave `at` just past the end */
    }
    return last;
}

static uint32_t sample(struct moe_sampler *s, const float *logits)
{
    float least = (float)s->options.min_p;
    uint32_t likeliest = greedy(logits, s->vocab);
    float highest = logits[likeliest];
    if (!(fabsf(highest) < FLT_MAX)) /* infinite, or nothing but NaN */
        return likeliest;
    if ((!s->options.top_k || s->options.top_k >= s->vocab) && s->options.top_p >= 1) {
        double total = weigh_all(s, logits, highest, least);
        return draw(s, s->vocab, total);
    }
    uint32_t n = choose_candidates(s, logits, highest);
    for (uint32_t i = 0; i < n; i++)
        s->weights[i] = s->weights[i] >= least ? s->weights[i] : 0;
    double total = sum_blocks(s, n);
    return s->candidates[draw(s, n, total)].id;
}

bool moe_sampler_is_greedy(const struct moe_sampler *s)
{
    return s->options.temperature == 0 && s->options.repeat_penalty == 1;
}

uint32_t moe_sampler_next_allowed(struct moe_sampler *s, const float *logits,
                                  const uint64_t *allowed, const uint32_t *recent,
                                  uint64_t n_recent)
{
    logits = penalise(s, logits, recent, n_recent);
    if (allowed)
        logits = leave_allowed(s, logits, allowed);
    uint32_t id = s->options.temperature == 0 ? greedy(logits, s->vocab) : sample(s, logits);
    for (uint32_t i = 0; i < s->vocab && allowed && !moe_is_allowed(allowed, id); i++)
        id = i;
    return id;
}

uint32_t moe_sampler_next(struct moe_sampler *s, const float *logits, const uint32_t *recent,
                          uint64_t n_recent)
{
    return moe_sampler_next_allowed(s, logits, NULL, recent, n_recent);
}

/* ---- What is said of a token ---- */

/* The n likeliest, in order: each that belongs among those found so far takes its place there. */
static uint32_t find_likeliest(const float *logits, uint32_t vocab, uint32_t n,
                               uint32_t likeliest[MOE_MAX_TOP_TOKENS])
{
    uint32_t found = 0;
    for (uint32_t id = 0; id < vocab && n > 0; id++) {
        float logit = moe_logit_sane(logits[id]);
        if (found == n && logit <= moe_logit_sane(logits[likeliest[n - 1]]))
            continue;
        uint32_t at = found < n ? found++ : n - 1;
        for (; at > 0 && moe_logit_sane(logits[likeliest[at - 1]]) < logit; at--)
            likeliest[at] = likeliest[at - 1];
        likeliest[at] = id;
    }
    return found;
}

struct moe_logit_scale moe_logit_scale_of(const float *logits, uint32_t vocab, uint32_t likeliest)
{
    struct moe_logit_scale s = {.largest = moe_logit_sane(logits[likeliest])};
    double sum = 0;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp(moe_logit_sane(logits[i]) - s.largest);
    s.log_sum = log(sum);
    return s;
}

static struct moe_token_chance chance_of(const struct moe_tokenizer *tok, const float *logits,
                                         uint32_t id, struct moe_logit_scale s)
{
    struct moe_token_chance c = {
        .id = id, .log_probability = moe_logit_sane(logits[id]) - s.largest - s.log_sum};
    c.bytes = moe_tokenizer_bytes(tok, id, &c.n_bytes);
    return c;
}

void moe_token_say(struct moe_token_said *said, const struct moe_tokenizer *tok,
                   const float *logits, uint32_t vocab, uint32_t id, uint32_t n_top)
{
    uint32_t likeliest[MOE_MAX_TOP_TOKENS] = {0};
    uint32_t n = n_top < MOE_MAX_TOP_TOKENS ? n_top : MOE_MAX_TOP_TOKENS;
    uint32_t found = find_likeliest(logits, vocab, n ? n : 1, likeliest);
    struct moe_logit_scale scale = moe_logit_scale_of(logits, vocab, likeliest[0]);
    said->n_top = n ? found : 0;
    said->token = chance_of(tok, logits, id, scale);
    for (uint32_t i = 0; i < said->n_top; i++)
        said->top[i] = chance_of(tok, logits, likeliest[i], scale);
}

/* ---- As JSON ---- */

static void put_chance(struct moe_emit *e, const struct moe_token_chance *c)
{
    moe_emit_bytes(e, "token", c->bytes, c->n_bytes);
    moe_emit_rounded(e, "logprob", 9, moe_log_probability_shown(c->log_probability));
    moe_emit_open_list(e, "bytes");
    for (uint32_t i = 0; i < c->n_bytes; i++)
        moe_emit_u64(e, NULL, c->bytes[i]);
    moe_emit_close(e);
}

void moe_token_said_json(const struct moe_token_said *said, struct moe_buf *out)
{
    struct moe_emit e;
    moe_emit_begin_json(&e, out, MOE_EMIT_COMPACT);
    put_chance(&e, &said->token);
    moe_emit_open_list(&e, "top_logprobs");
    for (uint32_t i = 0; i < said->n_top; i++) {
        moe_emit_open_map(&e, NULL);
        put_chance(&e, &said->top[i]);
        moe_emit_close(&e);
    }
    moe_emit_close(&e);
    moe_emit_end_item(&e, NULL);
}
