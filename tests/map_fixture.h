/* Bit maps for the tests of their file and the fuzzer's seeds. */
#ifndef TESTS_MAP_FIXTURE_H
#define TESTS_MAP_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pack/map.h"
#include "test.h"

static inline double random_share(uint64_t *seed)
{
    return (double)(test_random(seed) >> 11) * 0x1p-53;
}

/* Every other one with answers. */
static inline struct moe_loss random_loss(uint64_t *seed)
{
    uint64_t documents = 1 + test_random(seed) % 1000;
    struct moe_loss loss = {
        .documents = documents,
        .tokens = documents + test_random(seed) % 100000,
        .nll = 5 * random_share(seed),
        .reference_nll = 5 * random_share(seed),
        .nll_percent = 40 * random_share(seed) - 20,
        .nll_error = random_share(seed),
        .top1_points = 100 * random_share(seed),
        .top1_error = random_share(seed),
    };
    if (documents % 2) {
        loss.answers = documents;
        loss.reference_rouge2 = random_share(seed);
        loss.rouge2_points = 200 * random_share(seed) - 100;
        loss.rouge2_error = random_share(seed);
        loss.reference_accuracy = random_share(seed);
        loss.accuracy_points = 200 * random_share(seed) - 100;
        loss.accuracy_error = random_share(seed);
    }
    return loss;
}

/* Shares of n parts of a whole. */
static inline void random_shares(uint64_t *seed, double *shares, uint32_t n)
{
    double left = 1;
    for (uint32_t i = 0; i + 1 < n; i++)
        left -= shares[i] = left * random_share(seed) / 8;
    shares[n - 1] = left;
}

static inline struct moe_map *new_map(uint32_t n_layers, uint32_t n_experts, uint32_t top_k)
{
    static const char *const variants[] = {"8", "4d8", "2"};
    struct moe_err err;
    struct moe_map *m;
    if (moe_map_new(&m, n_layers, n_experts, top_k, &err) != MOE_OK)
        abort();
    m->source_fingerprint = 0x0123456789abcdef;
    m->pack_fingerprint = UINT64_MAX;
    m->n_variants = 3;
    for (uint32_t v = 0; v < 3; v++)
        strcpy(m->variants[v], variants[v]);
    m->pack_dense_bits = 8;
    m->max_tokens = 256;
    return m;
}

static inline void fill_texts(struct moe_map *m, uint64_t *seed)
{
    m->n_texts = 3;
    for (uint32_t i = 0; i < m->n_texts; i++) {
        struct moe_map_text *text = &m->texts[i];
        snprintf(text->name, sizeof text->name, "caf\xc3\xa9 \"%u\": #1.txt", (unsigned)i);
        text->documents = 10 + i;
        text->tokens = UINT64_C(1) << (40 + i);
        text->hash = test_random(seed);
        text->check = i == 2;
        text->known = i != 1;
        if (text->known)
            text->loss = random_loss(seed);
    }
}

static inline void set_shard(struct moe_map *m, uint32_t shard, uint32_t n)
{
    struct moe_err err;
    moe_shards_release(&m->importances.shards);
    if (moe_shards_set(&m->importances.shards, shard, n, &err) != MOE_OK)
        abort();
}

static inline void fill_importances(struct moe_map *m, uint64_t *seed)
{
    struct moe_importances *to = &m->importances;
    to->there = to->exact = true;
    to->upper = 1;
    to->lower = 2;
    to->dense_bits = 4;
    set_shard(m, 0, 1);
    for (uint32_t i = 0; i < m->n_layers * m->n_experts; i++) {
        to->known[i] = 1;
        to->nats[i] = 2e-3 * random_share(seed) - 1e-3;
        to->error[i] = random_share(seed);
        to->changed[i] = (uint32_t)test_random(seed);
        to->visited[i] = (uint32_t)test_random(seed) % 7;
    }
}

static inline void fill_choice(struct moe_map *m, uint64_t *seed)
{
    m->choice.there = true;
    for (uint32_t i = 0; i < m->n_layers * m->n_experts; i++)
        m->choice.variant[i] = (uint8_t)(test_random(seed) % m->n_variants);
    m->choice.dense_bits = (uint32_t)moe_parse_width("iq4_xs");
    m->choice.expert_bytes = UINT64_C(1) << 53;
    m->choice.dense_bytes = 123456789;
    m->choice.expected = random_share(seed);
    m->choice.loss = random_loss(seed);
    m->choice.check = random_loss(seed);
}

static inline void fill_fate(struct moe_map *m, uint64_t *seed)
{
    m->fate = (struct moe_map_fate){
        .there = true, .share = 0.3, .loss = random_loss(seed), .high = 0, .low = 2, .n_points = 3};
    m->fate.check = random_loss(seed);
    for (uint32_t i = 0; i < m->fate.n_points; i++)
        m->fate.points[i] = (struct moe_map_point){i / 3.0, random_loss(seed),
                                                   i ? random_loss(seed) : (struct moe_loss){0}};
}

static inline void fill_hobbit(struct moe_map *m, uint64_t *seed)
{
    double shares[3];
    random_shares(seed, shares, 3);
    m->hobbit = (struct moe_map_hobbit){
        .there = true,
        .t1 = random_share(seed) / 2,
        .t2 = 0.5 + random_share(seed) / 2,
        .high_share = shares[0],
        .low_share = shares[1],
        .skipped_share = shares[2],
        .loss = random_loss(seed),
        .high = 1,
        .low = 2,
        .weighed = true,
        .low_pool = random_share(seed),
        .penalty = random_share(seed),
        .default_penalty = 1 + random_share(seed),
    };
    m->hobbit.n_cuts = 2;
    for (uint32_t i = 0; i < m->hobbit.n_cuts; i++)
        m->hobbit.cuts[i] =
            (struct moe_map_cut){(1 + i) / 7.0, random_loss(seed), random_loss(seed)};
    random_shares(seed, m->hobbit.scores, MOE_SCORE_BINS);
    random_shares(seed, m->hobbit.weights, MOE_HOBBIT_WEIGHTS);
}

static inline void fill_routing(struct moe_map *m, uint64_t *seed)
{
    m->routing = (struct moe_map_routing){
        .there = true,
        .lambda = 3 * random_share(seed),
        .keeps = 2,
        .tolerance = random_share(seed),
        .cache_bytes = 12345678,
        .loss = random_loss(seed),
        .check = random_loss(seed),
        .n_points = 3,
    };
    for (uint32_t i = 0; i < m->routing.n_points; i++)
        m->routing.points[i] =
            (struct moe_map_preference){i / 3.0, 1e6 * random_share(seed), random_share(seed),
                                        i ? random_loss(seed) : (struct moe_loss){0}};
}

static inline void fill_savings(struct moe_map *m, uint64_t *seed)
{
    m->n_savings = 2;
    for (uint32_t i = 0; i < m->n_savings; i++) {
        struct moe_map_savings *s = &m->savings[i];
        *s = (struct moe_map_savings){.cache_bytes = 1000 + i,
                                      .low = 2 - i,
                                      .exact_bytes_per_token = 1e6 * random_share(seed),
                                      .n_ways = 2};
        for (uint32_t w = 0; w < s->n_ways; w++) {
            struct moe_map_saving *way = &s->ways[w];
            snprintf(way->strategy, sizeof way->strategy, "lru+skip-below=0.%u", w + 1);
            way->bytes_per_token = 1e6 * random_share(seed);
            way->changed_share = random_share(seed);
            way->loss = random_loss(seed);
            if (w)
                way->check = random_loss(seed);
        }
    }
}

/* Every member has a value. */
static inline struct moe_map *full_map(uint64_t seed)
{
    struct moe_map *m = new_map(3, 5, 2);
    for (uint32_t l = 0; l < m->n_layers; l++)
        m->model_layer[l] = 2 * l + 1;
    m->metric = seed % 2 ? MOE_METRIC_TOP1 : MOE_METRIC_NLL;
    m->judge = (enum moe_judge)((seed / 2 + 2) % MOE_N_JUDGES);
    m->tolerance = random_share(&seed);
    m->target_bytes = 98765;
    strcpy(m->dense_method, "linear");
    for (uint32_t v = 0; v < m->n_variants; v++)
        strcpy(m->methods[v], v ? "trellis" : "copy");
    m->expert_group = 128;
    m->dense_group = 128;
    fill_texts(m, &seed);
    m->n_uniform = 2;
    m->uniform[0] = (struct moe_uniform){"8", 8, 1000, random_loss(&seed)};
    m->uniform[1] =
        (struct moe_uniform){"8", (uint32_t)moe_parse_width("q8_0"), 500, random_loss(&seed)};
    fill_importances(m, &seed);
    fill_choice(m, &seed);
    fill_fate(m, &seed);
    fill_hobbit(m, &seed);
    fill_routing(m, &seed);
    fill_savings(m, &seed);
    return m;
}

/* What shard number `shard` of two of full_map(seed) knows: every second expert. */
static inline struct moe_map *shard_map(uint64_t seed, uint32_t shard)
{
    struct moe_map *m = new_map(3, 5, 2);
    fill_texts(m, &seed);
    fill_importances(m, &seed);
    set_shard(m, shard, 2);
    for (uint32_t i = 0; i < m->n_layers * m->n_experts; i++)
        if (i % 2 != shard) {
            m->importances.known[i] = 0;
            m->importances.nats[i] = m->importances.error[i] = 0;
            m->importances.changed[i] = m->importances.visited[i] = 0;
        }
    return m;
}

/* Nothing but estimates. */
static inline struct moe_map *estimated_map(uint64_t seed)
{
    struct moe_map *m = new_map(2, 4, 1);
    fill_importances(m, &seed);
    m->importances.exact = false;
    memset(m->importances.error, 0, 8 * sizeof *m->importances.error);
    memset(m->importances.changed, 0, 8 * sizeof *m->importances.changed);
    return m;
}

#endif
