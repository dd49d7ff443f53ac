/*
 * Replays traces through caches of experts, each policy at each size:
 *
 *     replay_trace [--policy NAME,...] [--capacity SIZE,...] [--per-layer] [--by-token] [--all]
 *                  [--half-life TOKENS] [--keep-records] [--cost] [--cold]
 *                  [--learn FILE] [--exact TOKENS] TRACE...
 *     replay_trace --predict | --best TRACE...
 *     replay_trace --precisions T1,T2,SHARE [--capacity SIZE,...] [--half-life TOKENS] TRACE...
 *
 * Prints one table of hit rates for each trace. A capacity is a number of slots (300), so many
 * times what a token visits (2x) or bytes of experts (4000M; sizes are those of the trace's first
 * variant). Without --policy every policy has a row. All layers share the cache, or --per-layer
 * each has an equal share, the first ones what is left over.
 *
 * The tokens of a prompt go through a layer together, so that each distinct expert of them is one
 * lookup, as in engines that compute prompts in a batch; --by-token: every activation is one. The
 * rate is that of decoded tokens; --all: of all lookups. Every use counts as high precision. The
 * experts that a decoded token wants of a layer do not evict one another. Records of use start anew
 * with each sequence, or --keep-records.
 *
 * --cost adds what a policy's decisions and records take of the processor, in microseconds a token:
 * the mean over the sizes, reading the trace apart, with this tool's own accounts, which are the
 * same for all.
 *
 * --cold: each sequence begins with an empty cache and new records, as in a process of its own.
 * --learn: policies that learn go on from this file (moe-profile --learn).
 * --exact: while a token is decoded, policies that follow choices (learned, transition) know the
 * next so many choices of each layer in its text: experts among them stay before all others, the
 * sooner used the longer.
 *
 * --predict prints instead how many of a decoded token's experts are among as many that are
 * predicted 1, 2 and 3 layers before, by the layer's own router (the trace's scores), by the votes
 * of past tokens (cache/paths.h), and by both: the router's probability times the root of 1 +
 * v/1024b, as cache/policy_learned.c has it; and at the end of the token before, by the votes, and
 * by its own.
 *
 * --best prints instead how often the expert that a layer's router puts first, applied 1, 2 and 3
 * layers before, is its first, and is among the chosen; then the same without predictions from and
 * for the second layer. Of all tokens.
 *
 * --precisions prints instead what a decoded token loads, in experts at high precision, where
 * HOBBIT's scores up to T1 want these, up to T2 such at low precision, SHARE of the bytes, and
 * beyond T2 nothing (3.2). What leaves the cache is worth least for its bytes: the penalties that
 * its uses would have cost, each half after --half-life tokens (32); what is worth less than what
 * it would push out passes through. The cache keeps high precision alone, or has a fifth of its
 * bytes for low precision, or one budget for both (with low copies of experts that are there at
 * high precision worth nothing).
 *
 * The last row is the optimum (plan/optimal.h), of one cache for all layers also with --per-layer:
 * decoded tokens' hits, which are the same however prompts are looked up; with --all a dash. Of
 * bytes it has so many slots as experts of the mean size fit into them.
 */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/text.h"
#include "cache/learnt.h"
#include "cache/paths.h"
#include "cache/policy.h"
#include "cache/usage.h"
#include "model/config.h"
#include "plan/optimal.h"
#include "profile/trace.h"

enum { MAX_ITEMS = 64 };

struct options {
    const struct moe_policy_ops *policies[MAX_ITEMS];
    const char *capacities[MAX_ITEMS];
    int n_policies, n_capacities;
    const char *learn; /* NULL: none */
    bool cost, cold, predict, best;
    bool per_layer, by_token, all, keep_records;
    uint32_t exact;
    double half_life;
    double t1, t2, low_share; /* of --precisions; low_share 0: not asked for */
};

/* All choices of a trace, for policies that are told of those to come. */
struct choices {
    uint64_t n;         /* tokens */
    uint64_t *sequence; /* [n] */
    uint16_t *chosen;   /* [n][layers][top_k] */
    bool *there;        /* [n][layers] whether the layer was computed */
};

/* Cached experts that one policy watches. Sizes are in bytes, or in slots where the capacity is. */
struct domain {
    struct moe_policy *policy;
    uint64_t capacity, used;
};

struct cache {
    const struct options *options;
    const struct moe_trace_shape *shape;
    struct moe_usage usage;
    struct domain *domains; /* [n_domains] */
    uint32_t n_domains, n_keys;
    bool in_bytes;
    bool *resident, *pinned;      /* [n_keys] */
    uint32_t *in_prompt;          /* [n_keys] tokens of the prompt under way that want it */
    uint32_t n_prompt;            /* tokens that wait in in_prompt */
    uint32_t *rows;               /* [n_layers][room][top_k] what these chose */
    uint32_t room, *n_rows;       /* n_rows: [n_layers] */
    const struct choices *known;  /* of the trace; NULL: they are not told */
    uint64_t at;                  /* the token */
    float *scores;                /* [n_keys] the follower's own, while others are in their place */
    uint64_t lookups[2], hits[2]; /* decode, prompt */
};

/* ---- The cache ---- */

static uint64_t bytes_of(const struct moe_trace_shape *s, uint32_t key)
{
    return moe_trace_expert_bytes(s, 0, key / s->n_experts, key % s->n_experts);
}

static uint64_t size_of(const struct cache *c, uint32_t key)
{
    return c->in_bytes ? bytes_of(c->shape, key) : 1;
}

static bool may_leave(void *ctx, uint32_t key)
{
    return !((const struct cache *)ctx)->pinned[key];
}

/* n tokens want the expert: one lookup. */
static void look_up(struct cache *c, uint32_t key, uint32_t n, bool prompt)
{
    uint32_t layer = key / c->shape->n_experts;
    struct domain *d = &c->domains[c->n_domains > 1 ? layer : 0];
    const struct moe_policy_ops *ops = d->policy->ops;
    moe_usage_note(&c->usage, key, n, true);
    c->lookups[prompt]++;
    if (c->resident[key]) {
        c->hits[prompt]++;
        ops->use(d->policy, key);
        return;
    }
    if (ops->miss)
        ops->miss(d->policy, key);
    while (d->used + size_of(c, key) > d->capacity) {
        int64_t victim = ops->victim(d->policy, key, may_leave, c);
        if (victim == MOE_NO_KEY)
            return; /* passes through */
        ops->drop(d->policy, (uint32_t)victim);
        c->resident[victim] = false;
        d->used -= size_of(c, (uint32_t)victim);
    }
    ops->admit(d->policy, key);
    c->resident[key] = true;
    d->used += size_of(c, key);
}

/* Tells the record what a layer's router chose for n rows. */
static void choose(struct cache *c, uint32_t layer, const uint32_t *chosen, uint32_t n)
{
    const struct moe_choices choices = {layer, n, chosen, NULL};
    if (n)
        moe_usage_chosen(&c->usage, &choices);
}

/* Puts scores of known choices into the follower's, above all of its own, once `layer` has chosen;
 * with undo, takes them out again. */
static void tell_choices(struct cache *c, uint32_t layer, bool undo)
{
    const struct moe_trace_shape *s = c->shape;
    struct moe_follower *f = c->usage.follower;
    const float most = 1000, later = 2;
    if (!c->known || !f)
        return;
    if (undo)
        memcpy(f->scores, c->scores, c->n_keys * sizeof *f->scores);
    else
        memcpy(c->scores, f->scores, c->n_keys * sizeof *f->scores);
    for (uint32_t l = 0; l < s->n_layers; l++) {
        f->version[l]++;
        for (uint32_t j = c->options->exact; j-- > 0 && !undo;) {
            const uint64_t t = c->at + j + (l <= layer);
            if (t >= c->known->n || c->known->sequence[t] != c->known->sequence[c->at] ||
                !c->known->there[t * s->n_layers + l])
                continue;
            for (uint32_t k = 0; k < s->top_k; k++)
                f->scores[l * s->n_experts +
                          c->known->chosen[(t * s->n_layers + l) * s->top_k + k]] =
                    most - later * (float)j;
        }
    }
}

static void look_up_prompt(struct cache *c)
{
    const struct moe_trace_shape *s = c->shape;
    moe_usage_begin_tokens(&c->usage, c->n_prompt);
    for (uint32_t key = 0; key < c->n_keys; key++) {
        uint32_t layer = key / s->n_experts;
        if (key % s->n_experts == 0)
            choose(c, layer, c->rows + (uint64_t)layer * c->room * s->top_k, c->n_rows[layer]);
        if (c->in_prompt[key])
            look_up(c, key, c->in_prompt[key], true);
        c->in_prompt[key] = 0;
        c->n_rows[layer] = 0;
    }
    c->n_prompt = 0;
}

static void take_token(struct cache *c, const struct moe_trace *t,
                       const struct moe_trace_token *token)
{
    uint32_t n_experts = c->shape->n_experts, top_k = c->shape->top_k;
    bool gather = token->prompt && !c->options->by_token;
    if (c->n_prompt && (!gather || token->index == 0))
        look_up_prompt(c);
    if (token->index == 0 && !c->options->keep_records)
        moe_usage_begin_sequence(&c->usage);
    if (token->index == 0 && c->usage.follower)
        c->usage.follower->begin_sequence(c->usage.follower);
    if (gather)
        c->n_prompt++;
    else
        moe_usage_begin_tokens(&c->usage, 1);
    for (uint32_t layer = 0; layer < c->shape->n_layers; layer++) {
        const uint16_t *experts = moe_trace_step(t, layer).experts;
        uint32_t at = experts ? c->n_rows[layer]++ : 0;
        uint32_t *row = c->rows + ((uint64_t)layer * c->room + at) * top_k;
        for (uint32_t i = 0; experts && i < top_k; i++)
            row[i] = experts[i];
        if (experts && !gather) {
            choose(c, layer, row, 1);
            c->n_rows[layer] = 0;
        }
        for (uint32_t i = 0; experts && i < top_k; i++)
            if (gather)
                c->in_prompt[layer * n_experts + experts[i]]++;
            else
                c->pinned[layer * n_experts + experts[i]] = true;
        if (experts && !gather)
            tell_choices(c, layer, false);
        for (uint32_t i = 0; experts && !gather && i < top_k; i++)
            look_up(c, layer * n_experts + experts[i], 1, token->prompt);
        if (experts && !gather)
            tell_choices(c, layer, true);
        for (uint32_t i = 0; experts && i < top_k; i++)
            c->pinned[layer * n_experts + experts[i]] = false;
    }
}

/* ---- Opening ---- */

/* `text` as slots, or as bytes of experts. */
static int parse_capacity(const struct moe_trace_shape *s, const char *text, uint64_t *capacity,
                          bool *in_bytes, struct moe_err *err)
{
    char times[32];
    double demands;
    size_t n = strlen(text);
    *in_bytes = false;
    if (moe_parse_u64(text, capacity))
        return MOE_OK;
    if (n > 1 && n < sizeof times && text[n - 1] == 'x') {
        memcpy(times, text, n - 1);
        times[n - 1] = '\0';
        if (moe_parse_double(times, &demands) && demands >= 0 && demands < 1e6) {
            *capacity = (uint64_t)(demands * s->top_k * s->n_layers + 0.5);
            return MOE_OK;
        }
    }
    *in_bytes = true;
    if (!moe_parse_bytes(text, capacity))
        return moe_fail(err, MOE_ERR_USAGE,
                        "'%s' is neither slots (300), a multiple of a token's "
                        "demand (2x) nor bytes (4000M)",
                        text);
    if (s->n_variants == 0)
        return moe_fail(err, MOE_ERR_USAGE, "the trace has no sizes of experts");
    return MOE_OK;
}

/* How many experts of the mean size `capacity` holds: slots, or bytes of experts. */
static uint64_t slots_of(const struct moe_trace_shape *s, uint64_t capacity, bool in_bytes)
{
    uint32_t n_keys = s->n_layers * s->n_experts;
    uint64_t bytes = 0;
    for (uint32_t key = 0; key < n_keys; key++)
        bytes += in_bytes ? bytes_of(s, key) : 1;
    double slots = bytes ? (double)capacity * n_keys / (double)bytes : 0;
    return slots > n_keys ? n_keys : (uint64_t)slots;
}

static int open_cache(struct cache *c, const struct options *o, const struct moe_trace_shape *shape,
                      const struct moe_policy_ops *policy, const char *capacity, uint64_t room,
                      struct moe_err *err)
{
    uint64_t total;
    *c = (struct cache){.options = o, .shape = shape};
    c->n_keys = shape->n_layers * shape->n_experts;
    c->n_domains = o->per_layer ? shape->n_layers : 1;
    int status = parse_capacity(shape, capacity, &total, &c->in_bytes, err);
    if (status == MOE_OK)
        status = moe_usage_init(&c->usage, shape->n_layers, shape->n_experts, shape->top_k, err);
    if (status == MOE_OK)
        status = moe_policy_follow(policy, &c->usage, 0, err);
    const struct moe_learnt_origin origin = {shape->source_fingerprint, "the trace's",
                                             shape->n_layers, shape->n_experts, shape->top_k};
    if (status == MOE_OK && o->learn && c->usage.follower && c->usage.follower->learnt)
        status = moe_learnt_read(o->learn, &origin, c->usage.follower, err);
    c->room = (uint32_t)room;
    c->rows = moe_alloc(room * shape->n_layers * shape->top_k, sizeof *c->rows, err);
    c->n_rows = moe_alloc(shape->n_layers, sizeof *c->n_rows, err);
    c->domains = moe_alloc(c->n_domains, sizeof *c->domains, err);
    c->resident = moe_alloc(c->n_keys, sizeof *c->resident, err);
    c->pinned = moe_alloc(c->n_keys, sizeof *c->pinned, err);
    c->in_prompt = moe_alloc(c->n_keys, sizeof *c->in_prompt, err);
    c->scores = moe_alloc(c->n_keys, sizeof *c->scores, err);
    if (status == MOE_OK && !(c->scores && c->domains && c->resident && c->pinned && c->in_prompt &&
                              c->rows && c->n_rows))
        status = MOE_ERR_MEMORY;
    for (uint32_t i = 0; i < c->n_domains && status == MOE_OK; i++) {
        struct domain *d = &c->domains[i];
        d->capacity = total / c->n_domains + (i < total % c->n_domains);
        uint64_t slots = slots_of(shape, d->capacity, c->in_bytes);
        const struct moe_policy_params params = {
            .n_keys = c->n_keys,
            .capacity = slots ? (uint32_t)slots : 1, /* what it knows of its size */
            .seed = 1 + i,
            .usage = &c->usage,
            .half_life = o->half_life,
        };
        status = moe_policy_open(&d->policy, policy, &params, err);
    }
    return status;
}

static void close_cache(struct cache *c)
{
    for (uint32_t i = 0; c->domains && i < c->n_domains; i++)
        moe_policy_close(c->domains[i].policy);
    moe_usage_release(&c->usage);
    free(c->domains);
    free(c->resident);
    free(c->pinned);
    free(c->in_prompt);
    free(c->scores);
    free(c->rows);
    free(c->n_rows);
}

/* ---- The table ---- */

static void print_rate(uint64_t hits, uint64_t lookups)
{
    printf(" %7.2f", lookups ? 100 * (double)hits / (double)lookups : 0);
    fflush(stdout);
}

struct cost {
    double seconds;
    uint64_t tokens;
};

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Goes on with an empty cache. */
static int begin_again(struct cache *c, const struct moe_policy_ops *policy, const char *capacity,
                       uint64_t room, struct moe_err *err)
{
    const struct cache before = *c;
    close_cache(c);
    int status = open_cache(c, before.options, before.shape, policy, capacity, room, err);
    memcpy(c->lookups, before.lookups, sizeof c->lookups);
    memcpy(c->hits, before.hits, sizeof c->hits);
    c->known = before.known;
    c->at = before.at;
    return status;
}

static int read_choices(struct choices *c, struct moe_trace *t, struct moe_err *err)
{
    const struct moe_trace_shape *s = moe_trace_shape(t);
    const struct moe_trace_token *token;
    const uint64_t all = moe_trace_totals(t)->tokens, cells = all * s->n_layers;
    int status = MOE_OK;
    c->sequence = moe_alloc(all, sizeof *c->sequence, err);
    c->chosen = moe_alloc(cells * s->top_k, sizeof *c->chosen, err);
    c->there = moe_alloc(cells, sizeof *c->there, err);
    if (!c->sequence || !c->chosen || !c->there)
        return MOE_ERR_MEMORY;
    moe_trace_rewind(t);
    while (c->n < all && (status = moe_trace_next(t, &token, err)) == MOE_OK && token) {
        c->sequence[c->n] = token->sequence;
        for (uint32_t layer = 0; layer < s->n_layers; layer++) {
            const uint64_t cell = c->n * s->n_layers + layer;
            const uint16_t *experts = moe_trace_step(t, layer).experts;
            c->there[cell] = experts != NULL;
            if (experts)
                memcpy(c->chosen + cell * s->top_k, experts, s->top_k * sizeof *c->chosen);
        }
        c->n++;
    }
    return status;
}

static int replay(struct moe_trace *t, const struct options *o, const struct moe_policy_ops *policy,
                  const char *capacity, const struct choices *known, struct cost *cost,
                  struct moe_err *err)
{
    const struct moe_trace_token *token;
    struct cache c;
    /* A prompt is no longer than all of them. */
    uint64_t room = moe_trace_totals(t)->prompt_tokens + 1;
    int status = open_cache(&c, o, moe_trace_shape(t), policy, capacity, room, err);
    c.known = o->exact ? known : NULL;
    moe_trace_rewind(t);
    while (status == MOE_OK && (status = moe_trace_next(t, &token, err)) == MOE_OK && token) {
        if (o->cold && token->index == 0 && cost->tokens)
            status = begin_again(&c, policy, capacity, room, err);
        if (status != MOE_OK)
            break;
        double began = processor_seconds();
        take_token(&c, t, token);
        c.at++;
        cost->seconds += processor_seconds() - began;
        cost->tokens++;
    }
    if (status == MOE_OK) {
        if (c.n_prompt)
            look_up_prompt(&c);
        uint64_t lookups = c.lookups[0] + (o->all ? c.lookups[1] : 0);
        uint64_t hits = c.hits[0] + (o->all ? c.hits[1] : 0);
        print_rate(hits, lookups);
    }
    close_cache(&c);
    return status;
}

static int print_optimum(struct moe_trace *t, const struct options *o, struct moe_err *err)
{
    struct moe_lookups *l = NULL;
    int status = o->all ? MOE_OK : moe_lookups_read(&l, t, (struct moe_excerpt){0}, err);
    printf("%-16s", "optimal");
    for (int i = 0; i < o->n_capacities && status == MOE_OK; i++) {
        const struct moe_trace_shape *shape = moe_trace_shape(t);
        uint64_t capacity, hits;
        bool in_bytes;
        if (o->all) {
            printf(" %7s", "-");
            continue;
        }
        status = parse_capacity(shape, o->capacities[i], &capacity, &in_bytes, err);
        if (status == MOE_OK)
            status = moe_optimal_hits(l, slots_of(shape, capacity, in_bytes), &hits, err);
        if (status == MOE_OK)
            print_rate(hits, moe_lookups_decoded(l));
    }
    printf("\n");
    moe_lookups_free(l);
    return status;
}

static int print_table(const char *path, const struct options *o, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    struct choices known = {0};
    int status = moe_trace_open(&t, path, err);
    if (status == MOE_OK && o->exact)
        status = read_choices(&known, t, err);
    if (status != MOE_OK)
        goto out;
    printf("%s: hits of %s, %%%s%s\n%-16s", path, o->all ? "all lookups" : "decoded tokens",
           o->per_layer ? ", per layer" : "", o->by_token ? ", prompts by token" : "", "policy");
    for (int i = 0; i < o->n_capacities; i++)
        printf(" %7s", o->capacities[i]);
    printf(o->cost ? "      us\n" : "\n");
    for (int p = 0; p < o->n_policies && status == MOE_OK; p++) {
        struct cost cost = {0};
        printf("%-16s", o->policies[p]->name);
        for (int i = 0; i < o->n_capacities && status == MOE_OK; i++)
            status = replay(t, o, o->policies[p], o->capacities[i], &known, &cost, err);
        if (o->cost && cost.tokens)
            printf(" %7.1f", 1e6 * cost.seconds / (double)cost.tokens);
        printf("\n");
    }
    if (status == MOE_OK)
        status = print_optimum(t, o, err);
out:
    free(known.sequence);
    free(known.chosen);
    free(known.there);
    moe_trace_close(t);
    return status;
}

/* ---- Predictions ---- */

enum { AHEAD = 3, BY_GATE = 0, BY_VOTES, BY_BOTH, N_WAYS, BY_LAST = BY_GATE };

struct predictions {
    const struct moe_trace_shape *shape;
    struct moe_paths paths;
    uint32_t *count, runs;             /* uses by key; tokens */
    float *votes, *scores;             /* [n_experts] zero */
    uint16_t *voted, *best, *whole[2]; /* whole: [n_layers][top_k] of the next token */
    uint64_t right[AHEAD + 1][N_WAYS], n[AHEAD + 1]; /* AHEAD: the next token */
};

static uint32_t count_right(const struct predictions *p, const uint16_t *best,
                            const uint16_t *experts)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->shape->top_k; i++)
        for (uint32_t k = 0; k < p->shape->top_k; k++)
            n += best[i] == experts[k];
    return n;
}

/* The experts of the highest scores, which become 0. */
static void take_best(const struct predictions *p, uint16_t *best)
{
    const struct moe_trace_shape *s = p->shape;
    for (uint32_t i = 0; i < s->top_k; i++) {
        uint32_t at = 0;
        for (uint32_t e = 1; e < s->n_experts; e++)
            at = p->scores[e] > p->scores[at] ? e : at;
        best[i] = p->scores[at] > 0 ? (uint16_t)at : UINT16_MAX;
        p->scores[at] = 0;
    }
    memset(p->scores, 0, s->n_experts * sizeof *p->scores);
}

/* Scores of a layer to come: the router's, if given, and the votes', if wanted. */
static void score_layer(struct predictions *p, uint32_t layer, const struct moe_trace_step *step,
                        int gate, int way)
{
    const struct moe_trace_shape *s = p->shape;
    const float half = 0.5f * (float)s->top_k / (float)s->n_experts;
    uint32_t n = moe_paths_votes(&p->paths, layer, 0, p->votes, p->voted);
    for (uint32_t i = 0; way != BY_VOTES && i < s->keep; i++)
        p->scores[step->predicted[gate].experts[i]] = step->predicted[gate].scores[i];
    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = p->voted[i];
        float b = ((float)p->count[layer * s->n_experts + e] + half) / ((float)p->runs + 0.5f);
        if (way == BY_VOTES)
            p->scores[e] = p->votes[e];
        else if (way == BY_BOTH)
            p->scores[e] *= sqrtf(1 + p->votes[e] / (1024 * b));
        p->votes[e] = 0;
    }
}

static void predict_layers(struct predictions *p, const struct moe_trace *t, uint32_t layer)
{
    const struct moe_trace_shape *s = p->shape;
    for (uint32_t d = 0; d < AHEAD && layer + d + 1 < s->n_layers; d++) {
        const int gate = MOE_PREDICT_GATE_1 + (int)d;
        const struct moe_trace_step step = moe_trace_step(t, layer + d + 1);
        if (!step.experts)
            continue;
        p->n[d] += s->top_k;
        for (int way = BY_GATE; way < N_WAYS; way++) {
            if (way != BY_VOTES && !step.predicted[gate].experts)
                continue;
            score_layer(p, layer + d + 1, &step, gate, way);
            take_best(p, p->best);
            p->right[d][way] += count_right(p, p->best, step.experts);
        }
    }
}

static void predict_token(struct predictions *p, const struct moe_trace *t,
                          const struct moe_trace_token *token)
{
    const struct moe_trace_shape *s = p->shape;
    uint32_t chosen[MOE_MAX_TOP_K];
    if (token->index == 0)
        moe_paths_begin_sequence(&p->paths);
    p->runs++;
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        const struct moe_trace_step step = moe_trace_step(t, layer);
        const struct moe_choices c = {layer, 1, chosen, NULL};
        uint16_t *const whole[] = {p->whole[0] + layer * s->top_k, p->whole[1] + layer * s->top_k};
        if (!step.experts)
            continue;
        if (!token->prompt && token->index > 0) {
            p->n[AHEAD] += s->top_k;
            p->right[AHEAD][BY_LAST] += count_right(p, whole[0], step.experts);
            p->right[AHEAD][BY_VOTES] += count_right(p, whole[1], step.experts);
        }
        for (uint32_t i = 0; i < s->top_k; i++) {
            whole[0][i] = step.experts[i];
            chosen[i] = step.experts[i];
            p->count[layer * s->n_experts + chosen[i]]++;
        }
        moe_paths_add(&p->paths, &c, NULL);
        if (!token->prompt)
            predict_layers(p, t, layer);
    }
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        score_layer(p, layer, NULL, 0, BY_VOTES);
        take_best(p, p->whole[1] + layer * s->top_k);
    }
}

static void carve_predictions(struct predictions *p, struct moe_arena *a)
{
    const struct moe_trace_shape *s = p->shape;
    const struct moe_follower_params params = {s->n_layers, s->n_experts, s->top_k, 0};
    moe_paths_carve(&p->paths, a, &params);
    p->count = moe_arena_take(a, (uint64_t)s->n_layers * s->n_experts, sizeof *p->count);
    p->votes = moe_arena_take(a, s->n_experts, sizeof *p->votes);
    p->scores = moe_arena_take(a, s->n_experts, sizeof *p->scores);
    p->voted = moe_arena_take(a, MOE_PATHS_NEAREST * s->top_k, sizeof *p->voted);
    p->best = moe_arena_take(a, s->top_k, sizeof *p->best);
    for (int i = 0; i < 2; i++)
        p->whole[i] = moe_arena_take(a, (uint64_t)s->n_layers * s->top_k, sizeof *p->whole[i]);
}

static int print_predictions(const char *path, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    struct moe_arena arena = {0};
    int status;
    MOE_STEP(moe_trace_open(&t, path, err));
    struct predictions p = {.shape = moe_trace_shape(t)};
    carve_predictions(&p, &arena);
    arena = (struct moe_arena){.base = moe_alloc(arena.used, 1, err), .size = arena.used};
    MOE_STEP(arena.base ? MOE_OK : MOE_ERR_MEMORY);
    carve_predictions(&p, &arena);
    moe_paths_begin(&p.paths);
    while ((status = moe_trace_next(t, &token, err)) == MOE_OK && token)
        predict_token(&p, t, token);
    printf("%s: right predictions of decoded tokens, %%\n%-16s    gate   votes    both\n", path,
           "");
    for (int d = 0; d <= AHEAD && status == MOE_OK; d++) {
        printf(d < AHEAD ? "%d layers before " : "next token, last ", d + 1);
        for (int way = 0; way < N_WAYS; way++)
            print_rate(p.right[d][way], p.n[d]);
        printf("\n");
    }
out:
    free(arena.base);
    moe_trace_close(t);
    return status;
}

/* Of predictions: all, and those behind the second layer. */
struct firsts {
    uint64_t n, right, chosen;
};

static int print_best(const char *path, struct moe_err *err)
{
    struct moe_trace *t = NULL;
    const struct moe_trace_token *token;
    struct firsts of[AHEAD][2] = {0};
    int status;
    MOE_STEP(moe_trace_open(&t, path, err));
    const struct moe_trace_shape *s = moe_trace_shape(t);
    while ((status = moe_trace_next(t, &token, err)) == MOE_OK && token) {
        for (uint32_t layer = 1; layer < s->n_layers; layer++) {
            const struct moe_trace_step step = moe_trace_step(t, layer);
            for (uint32_t d = 0; step.experts && d < AHEAD; d++) {
                const uint16_t *predicted = step.predicted[MOE_PREDICT_GATE_1 + d].experts;
                if (!predicted)
                    continue;
                bool chosen = false;
                for (uint32_t i = 0; i < s->top_k; i++)
                    chosen |= predicted[0] == step.experts[i];
                for (uint32_t behind = 0; behind <= (layer >= d + 2); behind++) {
                    struct firsts *f = &of[d][behind];
                    f->n++;
                    f->right += predicted[0] == step.experts[0];
                    f->chosen += chosen;
                }
            }
        }
    }
    printf("%s: the expert predicted best, %%\n%-16s    best  chosen  behind the second layer\n",
           path, "");
    for (uint32_t d = 0; d < AHEAD && status == MOE_OK; d++) {
        printf("%u layers before ", d + 1);
        for (int behind = 0; behind < 2; behind++) {
            const struct firsts *f = &of[d][behind];
            print_rate(f->right, f->n);
            print_rate(f->chosen, f->n);
        }
        printf("\n");
    }
out:
    moe_trace_close(t);
    return status;
}

/* ---- Two precisions ---- */

enum { HIGH, LOW, N_PRECISIONS };
enum keeping { KEEP_HIGH, KEEP_SHARES, KEEP_BOTH, N_KEEPINGS };

/* One cache: which copies it has, and how often each expert was wanted at each precision. */
struct copies {
    enum keeping keeping;
    uint32_t n_keys;
    double size[N_PRECISIONS], room[N_PRECISIONS]; /* room[HIGH]: of both with KEEP_BOTH */
    bool *there[N_PRECISIONS], *pinned;            /* [n_keys] */
    double *wanted[N_PRECISIONS];                  /* [n_keys] */
    double loaded;
};

/* What an expert's copy saves for its bytes. */
static double worth(const struct copies *c, uint32_t key, int precision)
{
    if (precision == LOW)
        return c->there[HIGH][key] ? 0 : c->wanted[LOW][key];
    return c->wanted[HIGH][key] + (c->there[LOW][key] ? 0 : c->wanted[LOW][key] * c->size[LOW]);
}

/* Takes the copy in where it is worth more than what has to leave for it. */
static void keep_copy(struct copies *c, uint32_t key, int precision)
{
    const int of = c->keeping == KEEP_BOTH ? HIGH : precision; /* whose room */
    const double value = worth(c, key, precision);
    if (precision == LOW && c->keeping == KEEP_HIGH)
        return;
    while (c->room[of] < c->size[precision]) {
        double least = value;
        uint32_t victim = c->n_keys;
        int what = precision;
        for (int p = 0; p < N_PRECISIONS; p++)
            for (uint32_t k = 0; k < c->n_keys && (of == p || c->keeping == KEEP_BOTH); k++)
                if (c->there[p][k] && !c->pinned[k] && worth(c, k, p) < least) {
                    least = worth(c, k, p);
                    victim = k;
                    what = p;
                }
        if (victim == c->n_keys)
            return;
        c->there[what][victim] = false;
        c->room[of] += c->size[what];
    }
    c->there[precision][key] = true;
    c->room[of] -= c->size[precision];
}

static void want_copies(struct copies *c, const struct options *o, const struct moe_trace_shape *s,
                        const struct moe_trace *t, const struct moe_trace_token *token)
{
    const double now = exp2((double)token->index / o->half_life);
    for (int p = 0; p < N_PRECISIONS && token->index == 0; p++)
        memset(c->wanted[p], 0, c->n_keys * sizeof *c->wanted[p]);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) {
        const struct moe_trace_step step = moe_trace_step(t, layer);
        double sum = 0;
        for (uint32_t i = 0; step.experts && i < s->top_k; i++) {
            sum += (double)step.weights[i];
            c->pinned[layer * s->n_experts + step.experts[i]] = true;
        }
        for (uint32_t i = 0; step.experts && i < s->top_k; i++) {
            const uint32_t key = layer * s->n_experts + step.experts[i];
            double better = 0; /* the weights of those before it, by falling weight */
            for (uint32_t j = 0; j < s->top_k; j++)
                if (step.weights[j] > step.weights[i] ||
                    (j < i && step.weights[j] == step.weights[i]))
                    better += (double)step.weights[j];
            if (better > o->t2 * sum)
                continue;
            const int precision = better > o->t1 * sum ? LOW : HIGH;
            c->wanted[precision][key] += now;
            if (c->there[HIGH][key] || c->there[precision][key])
                continue;
            c->loaded += token->prompt ? 0 : c->size[precision];
            keep_copy(c, key, precision);
        }
        for (uint32_t i = 0; step.experts && i < s->top_k; i++)
            c->pinned[layer * s->n_experts + step.experts[i]] = false;
    }
}

static int load_copies(const struct options *o, struct moe_trace *t, enum keeping keeping,
                       const char *capacity, double *loaded, struct moe_err *err)
{
    const struct moe_trace_shape *s = moe_trace_shape(t);
    const struct moe_trace_token *token;
    struct copies c = {.keeping = keeping, .n_keys = s->n_layers * s->n_experts};
    uint64_t total, n = 0;
    bool in_bytes;
    int status;
    MOE_STEP(parse_capacity(s, capacity, &total, &in_bytes, err));
    const double slots = in_bytes ? (double)slots_of(s, total, true) : (double)total;
    const double low = keeping == KEEP_SHARES ? 0.2 * slots : 0;
    c.size[HIGH] = 1;
    c.size[LOW] = o->low_share;
    c.room[HIGH] = slots - low;
    c.room[LOW] = low;
    c.pinned = moe_alloc(c.n_keys, sizeof *c.pinned, err);
    for (int p = 0; p < N_PRECISIONS; p++) {
        c.there[p] = moe_alloc(c.n_keys, sizeof *c.there[p], err);
        c.wanted[p] = moe_alloc(c.n_keys, sizeof *c.wanted[p], err);
        MOE_STEP(c.pinned && c.there[p] && c.wanted[p] ? MOE_OK : MOE_ERR_MEMORY);
    }
    moe_trace_rewind(t);
    while ((status = moe_trace_next(t, &token, err)) == MOE_OK && token) {
        want_copies(&c, o, s, t, token);
        n += !token->prompt;
    }
    *loaded = n ? c.loaded / (double)n : 0;
out:
    for (int p = 0; p < N_PRECISIONS; p++) {
        free(c.there[p]);
        free(c.wanted[p]);
    }
    free(c.pinned);
    return status;
}

static int print_precisions(const char *path, const struct options *o, struct moe_err *err)
{
    static const char *const names[] = {"high alone", "a fifth for low", "one budget"};
    struct moe_trace *t = NULL;
    int status;
    MOE_STEP(moe_trace_open(&t, path, err));
    printf("%s: experts at high precision that a decoded token loads\n%-16s", path, "");
    for (int i = 0; i < o->n_capacities; i++)
        printf(" %8s", o->capacities[i]);
    printf("\n");
    for (int k = 0; k < N_KEEPINGS; k++) {
        printf("%-16s", names[k]);
        for (int i = 0; i < o->n_capacities; i++) {
            double loaded = 0;
            MOE_STEP(load_copies(o, t, (enum keeping)k, o->capacities[i], &loaded, err));
            printf(" %8.3f", loaded);
        }
        printf("\n");
    }
out:
    moe_trace_close(t);
    return status;
}

/* ---- The command line ---- */

static bool take_precisions(struct options *o, const char *text)
{
    char end;
    return sscanf(text, "%lf,%lf,%lf%c", &o->t1, &o->t2, &o->low_share, &end) == 3 && o->t1 >= 0 &&
           o->t2 >= o->t1 && o->t2 <= 1 && o->low_share > 0 && o->low_share < 1;
}

static bool take_policy(struct options *o, const char *name)
{
    return (o->policies[o->n_policies++] = moe_policy_find(name)) != NULL;
}

static bool take_capacity(struct options *o, const char *text)
{
    o->capacities[o->n_capacities++] = text;
    return true;
}

static bool take_list(struct options *o, char *list, const int *n,
                      bool (*take)(struct options *o, const char *item))
{
    bool good = true;
    for (char *item = strtok(list, ","); item && good; item = strtok(NULL, ","))
        good = *n < MAX_ITEMS && take(o, item);
    return good && *n > 0;
}

static bool parse(struct options *o, int argc, char **argv)
{
    static const struct option names[] = {
        {"policy", required_argument, NULL, 'p'},
        {"capacity", required_argument, NULL, 'c'},
        {"per-layer", no_argument, NULL, 'l'},
        {"keep-records", no_argument, NULL, 'k'},
        {"by-token", no_argument, NULL, 't'},
        {"all", no_argument, NULL, 'a'},
        {"half-life", required_argument, NULL, 'h'},
        {"cost", no_argument, NULL, 's'},
        {"cold", no_argument, NULL, 'C'},
        {"predict", no_argument, NULL, 'P'},
        {"best", no_argument, NULL, 'b'},
        {"learn", required_argument, NULL, 'L'},
        {"exact", required_argument, NULL, 'x'},
        {"precisions", required_argument, NULL, 'T'},
        {0},
    };
    static char usual[] = "0.5x,1x,2x,4x,6x";
    bool good = true;
    uint64_t exact = 0;
    for (int c; good && (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        o->per_layer |= c == 'l';
        o->keep_records |= c == 'k';
        o->by_token |= c == 't';
        o->all |= c == 'a';
        o->cost |= c == 's';
        o->cold |= c == 'C';
        o->predict |= c == 'P';
        o->best |= c == 'b';
        if (c == 'L')
            o->learn = optarg;
        else if (c == 'T')
            good = take_precisions(o, optarg);
        else if (c == 'p')
            good = take_list(o, optarg, &o->n_policies, take_policy);
        else if (c == 'c')
            good = take_list(o, optarg, &o->n_capacities, take_capacity);
        else if (c == 'h')
            good = moe_parse_double(optarg, &o->half_life) && o->half_life > 0;
        else if (c == 'x')
            good = moe_parse_u64(optarg, &exact) && exact > 0 && exact <= 400;
        else
            good = c != '?';
    }
    o->exact = (uint32_t)exact;
    if (o->low_share && !o->half_life)
        o->half_life = 32;
    bool every = o->n_policies == 0;
    for (int i = 0; every && i < MAX_ITEMS && moe_policy_at(i); i++)
        o->policies[o->n_policies++] = moe_policy_at(i);
    return good && optind < argc &&
           (o->n_capacities || take_list(o, usual, &o->n_capacities, take_capacity));
}

int main(int argc, char **argv)
{
    struct moe_err err;
    struct options o = {0};
    if (!parse(&o, argc, argv)) {
        fprintf(stderr, "replay_trace [--policy NAME,...] [--capacity SLOTS|TIMESx|BYTES,...] "
                        "[--per-layer] [--by-token] [--all] [--half-life TOKENS] "
                        "[--keep-records] [--cost] [--cold] [--learn FILE] [--exact TOKENS] "
                        "[--predict] [--best] [--precisions T1,T2,SHARE] TRACE...\n");
        return 2;
    }
    int status = MOE_OK;
    for (int i = optind; i < argc && status == MOE_OK; i++)
        status = o.predict     ? print_predictions(argv[i], &err)
                 : o.best      ? print_best(argv[i], &err)
                 : o.low_share ? print_precisions(argv[i], &o, &err)
                               : print_table(argv[i], &o, &err);
    if (status != MOE_OK)
        fprintf(stderr, "replay_trace: %s\n", err.text);
    return status != MOE_OK;
}
