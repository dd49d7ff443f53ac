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
    float *changed;               /* vocab logits, where a penalty or a mask changes some */
    struct candidate *candidates; /* vocab */
    float *weights;               /* of the candidates, or of all: vocab */
    double *blocks;               /* their sums, BLOCK at a time */
    float inverse_temperature;
};

enum {
    DRY_LONGEST = 64, /* a repeat this much longer than allowed weighs as much as longer ones */
    FIRST_TOP_P = 64, /* how many of the likeliest top-p looks at first */
    BLOCK = 256,      /* weights summed at a time, so that a draw need not walk all */
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
    if (s->draws.surprise == 0)
        s->draws.surprise = 2 * s->options.mirostat_tau;
}

/* ---- Opening ---- */

/* Kept finite: the likeliest token's 0 times infinity would be NaN. */
static float scale_of(double temperature)
{
    const double inverse = temperature > 0 ? 1 / temperature : 0;
    return inverse < FLT_MAX ? (float)inverse : FLT_MAX;
}

/* A sampler and its arrays from the arena, or NULL where it only counts. */
static struct moe_sampler *carve_sampler(struct moe_arena *arena, uint32_t vocab)
{
    struct moe_sampler none, *s = moe_arena_take(arena, 1, sizeof *s), *to = s ? s : &none;
    to->changed = moe_arena_take(arena, vocab, sizeof *to->changed);
    to->candidates = moe_arena_take(arena, vocab, sizeof *to->candidates);
    to->weights = moe_arena_take(arena, vocab, sizeof *to->weights);
    to->blocks = moe_arena_take(arena, (uint64_t)vocab / BLOCK + 1, sizeof *to->blocks);
    return s;
}

uint64_t moe_sampler_bytes(uint32_t vocab)
{
    struct moe_arena arena = {0};
    carve_sampler(&arena, vocab);
    return arena.used;
}

int moe_sampler_new(struct moe_sampler **out, const struct moe_sampler_options *options,
                    uint32_t vocab, struct moe_err *err)
{
    int status = vocab ? moe_sampling_check(options, err)
                       : moe_fail(err, MOE_ERR_USAGE, "a sampler needs a vocabulary");
    struct moe_arena arena = {.size = moe_sampler_bytes(vocab)};
    if (status == MOE_OK && !(arena.base = moe_alloc(1, arena.size, err)))
        status = MOE_ERR_MEMORY;
    if (status != MOE_OK)
        return status;
    struct moe_sampler *s = *out = carve_sampler(&arena, vocab);
    s->options = *options;
    s->vocab = vocab;
    s->inverse_temperature = scale_of(options->temperature);
    uint64_t state = options->seed;
    for (int i = 0; i < 4; i++)
        s->draws.random[i] = moe_random_next(&state);
    s->draws.surprise = 2 * options->mirostat_tau;
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

static void add_biases(struct moe_sampler *s)
{
    for (uint32_t i = 0; i < s->options.n_biases; i++)
        if (s->options.biases[i].id < s->vocab)
            s->changed[s->options.biases[i].id] += s->options.biases[i].bias;
}

static bool penalises(const struct moe_sampler_options *o)
{
    return o->repeat_window &&
           (o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0);
}

/* Each of n recent tokens once: the repeat penalty and that of presence however often it came. */
static void penalise(struct moe_sampler *s, const uint32_t *recent, uint64_t n)
{
    const float repeat = (float)s->options.repeat_penalty,
                presence = (float)s->options.presence_penalty,
                frequency = (float)s->options.frequency_penalty;
    float *counts = s->weights;
    for (uint64_t i = 0; i < n; i++)
        if (recent[i] < s->vocab)
            counts[recent[i]] = 0;
    for (uint64_t i = 0; i < n; i++)
        if (recent[i] < s->vocab)
            counts[recent[i]]++;
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t id = recent[i];
        if (id >= s->vocab || counts[id] == 0)
            continue;
        const float logit = s->changed[id];
        s->changed[id] =
            (logit > 0 ? logit / repeat : logit * repeat) - (counts[id] * frequency + presence);
        counts[id] = 0;
    }
}

/* Whether the text of tokens[0..n) up to byte `end` of the last one ends with `breaker`. */
static bool ends_with(const struct moe_tokenizer *tok, const uint32_t *tokens, uint64_t n,
                      uint32_t end, const char *breaker)
{
    uint64_t left = strlen(breaker);
    for (; left && n > 0; n--) {
        uint32_t size;
        const uint8_t *bytes = moe_tokenizer_bytes(tok, tokens[n - 1], &size);
        for (end = end < size ? end : size; left && end > 0; left--)
            if (bytes[--end] != (uint8_t)breaker[left - 1])
                return false;
        end = UINT32_MAX;
    }
    return !left;
}

/* Whether a breaker ends in the last of n tokens. */
static bool breaks(const struct moe_sampler *s, const struct moe_tokenizer *tok,
                   const uint32_t *tokens, uint64_t n)
{
    static const char *const usual[] = {"\n", ":", "\"", "*", NULL};
    const char *const *breaker = s->options.dry_breakers ? s->options.dry_breakers : usual;
    uint32_t size = 0;
    if (!tok || tokens[n - 1] >= s->vocab)
        return false;
    moe_tokenizer_bytes(tok, tokens[n - 1], &size);
    for (; *breaker; breaker++)
        for (uint32_t end = 1; end <= size; end++)
            if (**breaker && ends_with(tok, tokens, n, end, *breaker))
                return true;
    return false;
}

/* DRY: what came after a text's earlier occurrences of its end would go on repeating. */
static void penalise_repeats(struct moe_sampler *s, const struct moe_tokenizer *tok,
                             const uint32_t *recent, uint64_t n)
{
    const struct moe_sampler_options *o = &s->options;
    const uint64_t allowed = o->dry_allowed_length;
    float *penalty = s->weights;
    uint64_t most = 0; /* tokens of a repeat: back to a breaker */
    while (most < allowed + DRY_LONGEST && most < n && !breaks(s, tok, recent, n - most))
        most++;
    if (n == 0 || most < allowed)
        return;
    for (uint64_t i = 1; i < n; i++)
        if (recent[i] < s->vocab)
            penalty[recent[i]] = 0;
    for (uint64_t i = 1; i < n; i++) {
        const uint32_t next = recent[i];
        uint64_t length = 0;
        while (length < most && length < i && recent[i - 1 - length] == recent[n - 1 - length])
            length++;
        if (length < allowed || next >= s->vocab)
            continue;
        const double p = o->dry_multiplier * pow(o->dry_base, (double)(length - allowed));
        if (p > penalty[next] && !breaks(s, tok, &next, 1)) /* looked at only where it matters */
            penalty[next] = p < FLT_MAX ? (float)p : FLT_MAX;
    }
    for (uint64_t i = 1; i < n; i++)
        if (recent[i] < s->vocab) {
            s->changed[recent[i]] -= penalty[recent[i]];
            penalty[recent[i]] = 0;
        }
}

/* The last ids of a window, and how many. */
static const uint32_t *last_of(const struct moe_drawn_after *after, uint32_t window, uint64_t *n)
{
    *n = after->n_recent < window ? after->n_recent : window;
    return after->recent + (after->n_recent - *n);
}

/* What is left out becomes NaN, which is never drawn, and nothing else is. */
static void leave_out(struct moe_sampler *s, const struct moe_drawn_after *after)
{
    for (uint32_t id = 0; id < s->vocab; id++)
        s->changed[id] = !after->allowed || moe_is_allowed(after->allowed, id)
                             ? moe_logit_sane(s->changed[id])
                             : NAN;
    for (uint64_t i = 0; after->without && i < after->without->n; i++)
        s->changed[after->without->ids[i]] = NAN;
}

static bool changes_logits(const struct moe_sampler_options *o)
{
    return o->n_biases || penalises(o) || (o->dry_multiplier != 0 && o->dry_window);
}

/* The logits that tokens are chosen by. */
static const float *change(struct moe_sampler *s, const float *logits,
                           const struct moe_drawn_after *after)
{
    const struct moe_sampler_options *o = &s->options;
    uint64_t n;
    if (!changes_logits(o) && !after->allowed && !after->without)
        return logits;
    memcpy(s->changed, logits, s->vocab * sizeof *logits);
    add_biases(s);
    const uint32_t *recent = last_of(after, o->repeat_window, &n);
    if (penalises(o))
        penalise(s, recent, n);
    recent = last_of(after, o->dry_window, &n);
    if (o->dry_multiplier != 0)
        penalise_repeats(s, after->tokenizer, recent, n);
    if (after->allowed || after->without)
        leave_out(s, after);
    return s->changed;
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

static void make_heap(struct candidate *heap, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i);
}

/* Of a heap: likeliest first. */
static void sort_heap(struct candidate *heap, uint32_t n)
{
    while (n-- > 1) {
        struct candidate last = heap[n];
        heap[n] = heap[0];
        heap[0] = last;
        sift_down(heap, n, 0);
    }
}

/* The k likeliest of the logits, likeliest first, into candidates[0..k). */
static void select_likeliest(struct moe_sampler *s, const float *logits, uint32_t k)
{
    struct candidate *heap = s->candidates;
    for (uint32_t i = 0; i < k; i++)
        heap[i] = (struct candidate){moe_logit_sane(logits[i]), i};
    make_heap(heap, k);
    for (uint32_t i = k; i < s->vocab; i++) {
        /* Ids grow, so a tie with the root loses; a NaN compares false. */
        if (logits[i] > heap[0].logit) {
            heap[0] = (struct candidate){moe_logit_sane(logits[i]), i};
            sift_down(heap, k, 0);
        }
    }
    sort_heap(heap, k);
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
static double weigh_all(struct moe_sampler *s, const float *logits, float highest, float scale,
                        float least)
{
    float *weights = s->weights;
    for (uint32_t i = 0; i < s->vocab; i++)
        weights[i] = weight(logits[i], highest, scale, bits_of(least));
    return sum_blocks(s, s->vocab);
}

/* Weights of candidates[0..n) at temperature 1; returns their sum. */
static double weigh_candidates(struct moe_sampler *s, uint32_t n, float highest)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += s->weights[i] = weight(s->candidates[i].logit, highest, 1, 0);
    return sum;
}

static double sum_of(const float *weights, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += weights[i];
    return sum;
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

/* ---- Which candidates stay ---- */

/* What top-n-sigma keeps has at least this share of the likeliest's. */
static float share_of_sigmas(const struct moe_sampler *s, const float *logits)
{
    double sum = 0, squares = 0, n = 0;
    if (s->options.top_n_sigma <= 0)
        return 0;
    for (uint32_t i = 0; i < s->vocab; i++)
        if (logits[i] > -FLT_MAX && ++n > 0)
            sum += logits[i];
    for (uint32_t i = 0; i < s->vocab; i++)
        if (logits[i] > -FLT_MAX)
            squares += (logits[i] - sum / n) * (logits[i] - sum / n);
    return n > 0 ? (float)exp(-s->options.top_n_sigma * sqrt(squares / n)) : 0;
}

static bool uses_typical(const struct moe_sampler_options *o)
{
    return o->typical_p > 0 && o->typical_p < 1;
}

static bool uses_xtc(const struct moe_sampler_options *o)
{
    return o->xtc_probability > 0 && o->xtc_threshold <= 0.5;
}

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

/* Buckets of logits, in their order: sign, exponent and three bits of the mantissa. */
enum { BUCKETS = 1 << 12 };
static inline uint32_t bucket_of(float logit)
{
    const uint32_t bits = bits_of(moe_logit_sane(logit) + 0.0f); /* -0 is 0 */
    return (bits ^ ((uint32_t) - (int32_t)(bits >> 31) | 0x80000000u)) >> 20;
}

/* The candidates of the highest buckets whose weights, which are there, hold the share `top_p` of
 * total; likeliest first. Returns how many. */
static uint32_t gather_buckets(struct moe_sampler *s, const float *logits, double total)
{
    const double wanted = s->options.top_p * total * (1 + 1e-9); /* in any order of adding */
    double sums[BUCKETS] = {0}, sum = 0;
    uint32_t n = 0, least = BUCKETS;
    for (uint32_t i = 0; i < s->vocab; i++)
        sums[bucket_of(logits[i])] += s->weights[i];
    while (least > 0 && sum < wanted)
        sum += sums[--least];
    for (uint32_t i = 0; i < s->vocab; i++)
        if (bucket_of(logits[i]) >= least)
            s->candidates[n++] = (struct candidate){moe_logit_sane(logits[i]), i};
    make_heap(s->candidates, n);
    sort_heap(s->candidates, n);
    return n;
}

/* Has the candidates that top-p keeps of all tokens of at least this share, likeliest first, and
 * perhaps more. Few tokens usually hold the share: more are looked for only where they do not. */
static uint32_t gather_top_p(struct moe_sampler *s, const float *logits, float highest, float least)
{
    const double total = weigh_all(s, logits, highest, 1, least);
    uint32_t n = s->vocab < FIRST_TOP_P ? s->vocab : FIRST_TOP_P;
    select_likeliest(s, logits, n);
    weigh_candidates(s, n, highest);
    uint32_t kept = reach(s, n, total);
    if (kept > n && n < s->vocab) {
        weigh_all(s, logits, highest, 1, least);
        n = gather_buckets(s, logits, total);
        weigh_candidates(s, n, highest);
        kept = reach(s, n, total);
    }
    return kept < n ? kept : n;
}

/* All of at least this share, by their ids. */
static uint32_t gather_all(struct moe_sampler *s, const float *logits, float highest, float least)
{
    uint32_t n = 0;
    weigh_all(s, logits, highest, 1, least);
    for (uint32_t i = 0; i < s->vocab; i++) {
        if (s->weights[i] <= 0)
            continue;
        s->weights[n] = s->weights[i];
        s->candidates[n++] = (struct candidate){logits[i], i};
    }
    return n;
}

/* How many of n candidates, likeliest first, have at least this share of the first's weight. */
static uint32_t keep_least(const struct moe_sampler *s, uint32_t n, float least)
{
    while (n > 1 && s->weights[n - 1] < least)
        n--;
    return n;
}

static double entropy_of(const struct moe_sampler *s, uint32_t n, double total)
{
    double entropy = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double p = s->weights[i] / total;
        entropy -= p > 0 ? p * log(p) : 0;
    }
    return entropy;
}

/* Keeps the candidates, likeliest first, whose surprise is nearest to the expected one, until they
 * hold the share: they are neighbours. Returns how many. */
static uint32_t keep_typical(struct moe_sampler *s, uint32_t n, float highest)
{
    const double total = sum_of(s->weights, n);
    const double expected = highest + log(total) - entropy_of(s, n, total); /* as a logit */
    uint32_t from = 0, to;
    double sum = 0;
    while (from < n && s->candidates[from].logit > expected)
        from++;
    to = from;
    while ((from > 0 || to < n) && sum <= s->options.typical_p * total) {
        if (to == n || (from > 0 && s->candidates[from - 1].logit - expected <=
                                        expected - s->candidates[to].logit))
            sum += s->weights[--from];
        else
            sum += s->weights[to++];
    }
    memmove(s->candidates, s->candidates + from, (to - from) * sizeof *s->candidates);
    memmove(s->weights, s->weights + from, (to - from) * sizeof *s->weights);
    return to - from;
}

/* XTC: of n candidates it leaves out those above the threshold, but for the least likely of them.
 * Returns how many stay. */
static uint32_t leave_out_likeliest(struct moe_sampler *s, uint32_t n)
{
    const double least = s->options.xtc_threshold * sum_of(s->weights, n);
    uint32_t last = n, left = 0;
    if (uniform(s) >= s->options.xtc_probability)
        return n;
    for (uint32_t i = 0; i < n; i++)
        if (s->weights[i] >= least &&
            (last == n || !is_likelier(s->candidates[i], s->candidates[last])))
            last = i;
    for (uint32_t i = 0; i < n; i++) {
        if (s->weights[i] >= least && i != last)
            continue;
        s->candidates[left] = s->candidates[i];
        s->weights[left++] = s->weights[i];
    }
    return left;
}

/* Finds the candidates that stay, with their weights at temperature 1; returns how many. */
static uint32_t find_candidates(struct moe_sampler *s, const float *logits, float highest,
                                float least)
{
    const struct moe_sampler_options *o = &s->options;
    const bool few = o->top_k && o->top_k < s->vocab, typical = uses_typical(o);
    uint32_t n;
    if (few || typical) {
        n = few ? o->top_k : s->vocab;
        select_likeliest(s, logits, n);
        weigh_candidates(s, n, highest);
        n = keep_least(s, n, least);
        if (typical)
            n = keep_typical(s, n, highest);
        const uint32_t kept = o->top_p < 1 ? reach(s, n, sum_of(s->weights, n)) : n;
        n = kept < n ? kept : n;
    } else if (o->top_p < 1) {
        n = keep_least(s, gather_top_p(s, logits, highest, least), least);
    } else {
        const float share = (float)o->min_p > least ? (float)o->min_p : least;
        return gather_all(s, logits, highest, share);
    }
    return keep_least(s, n, (float)o->min_p * s->weights[0]);
}

/* ---- Draws ---- */

/* The temperature for n candidates: higher, the more they are alike. */
static double temperature_for(const struct moe_sampler *s, uint32_t n)
{
    const struct moe_sampler_options *o = &s->options;
    const double low = o->temperature - o->dynatemp_range;
    if (o->dynatemp_range == 0 || n < 2)
        return o->temperature;
    const double from = low > 0 ? low : 0, to = o->temperature + o->dynatemp_range;
    const double part = entropy_of(s, n, sum_of(s->weights, n)) / log(n);
    return from + (to - from) * pow(part, o->dynatemp_exponent);
}

/* Among what stays of the candidates. */
static uint32_t draw_candidate(struct moe_sampler *s, const float *logits, float highest,
                               float least)
{
    uint32_t n = find_candidates(s, logits, highest, least), best = 0;
    if (uses_xtc(&s->options))
        n = leave_out_likeliest(s, n);
    const double temperature = temperature_for(s, n);
    for (uint32_t i = 1; i < n; i++)
        if (is_likelier(s->candidates[i], s->candidates[best]))
            best = i;
    if (temperature <= 0)
        return s->candidates[best].id;
    const float scale = scale_of(temperature), top = s->candidates[best].logit;
    for (uint32_t i = 0; i < n; i++)
        s->weights[i] = weight(s->candidates[i].logit, top, scale, 0);
    return s->candidates[draw(s, n, sum_blocks(s, n))].id;
}

/* Mirostat 2: tokens more surprising than a limit are left out, which follows from how surprising
 * those drawn were. */
static uint32_t draw_by_surprise(struct moe_sampler *s, const float *logits, uint32_t likeliest)
{
    const double total = weigh_all(s, logits, logits[likeliest], s->inverse_temperature, 0);
    const double least = total * exp2(-s->draws.surprise);
    for (uint32_t i = 0; i < s->vocab; i++)
        s->weights[i] = s->weights[i] >= least || i == likeliest ? s->weights[i] : 0;
    const double kept = sum_blocks(s, s->vocab);
    const uint32_t id = draw(s, s->vocab, kept);
    const double surprise = -log2(s->weights[id] / kept);
    s->draws.surprise -= s->options.mirostat_eta * (surprise - s->options.mirostat_tau);
    return id;
}

static bool needs_candidates(const struct moe_sampler *s)
{
    const struct moe_sampler_options *o = &s->options;
    return (o->top_k && o->top_k < s->vocab) || o->top_p < 1 || uses_typical(o) || uses_xtc(o) ||
           o->dynatemp_range > 0;
}

/* Whether the likeliest is drawn. */
static bool takes_likeliest(const struct moe_sampler_options *o)
{
    return o->temperature == 0 &&
           (o->mirostat || (!uses_typical(o) && !uses_xtc(o) && o->dynatemp_range == 0));
}

static uint32_t sample(struct moe_sampler *s, const float *logits)
{
    const struct moe_sampler_options *o = &s->options;
    uint32_t likeliest = greedy(logits, s->vocab);
    float highest = logits[likeliest];
    /* infinite, or nothing but NaN */
    if (!(fabsf(highest) < FLT_MAX) || takes_likeliest(o))
        return likeliest;
    if (o->mirostat)
        return draw_by_surprise(s, logits, likeliest);
    float least = share_of_sigmas(s, logits);
    if (needs_candidates(s))
        return draw_candidate(s, logits, highest, least);
    if ((float)o->min_p > least)
        least = (float)o->min_p;
    if (least > 0) /* shares are those at temperature 1 */
        least = powf(least, s->inverse_temperature);
    return draw(s, s->vocab, weigh_all(s, logits, highest, s->inverse_temperature, least));
}

bool moe_sampler_is_greedy(const struct moe_sampler *s)
{
    return takes_likeliest(&s->options) && !changes_logits(&s->options);
}

uint32_t moe_sampler_draw(struct moe_sampler *s, const float *logits,
                          const struct moe_drawn_after *after)
{
    uint32_t id = sample(s, change(s, logits, after));
    for (uint32_t i = 0; i < s->vocab && after->allowed && !moe_is_allowed(after->allowed, id); i++)
        id = i;
    return id;
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
        .id = id,
        .log_probability = logits ? moe_logit_sane(logits[id]) - s.largest - s.log_sum : NAN};
    c.bytes = moe_tokenizer_bytes(tok, id, &c.n_bytes);
    return c;
}

void moe_token_say(struct moe_token_said *said, const struct moe_tokenizer *tok,
                   const float *logits, uint32_t vocab, uint32_t id, uint32_t n_top)
{
    uint32_t likeliest[MOE_MAX_TOP_TOKENS] = {0};
    uint32_t n = n_top < MOE_MAX_TOP_TOKENS ? n_top : MOE_MAX_TOP_TOKENS;
    said->n_top = 0;
    said->hidden = moe_tokenizer_is_special(tok, id);
    said->token = chance_of(tok, NULL, id, (struct moe_logit_scale){0});
    if (!logits)
        return;
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
