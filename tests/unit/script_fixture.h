/*
 * Traces written token by token, with predictions where they are wanted, and what a simulation of
 * one needs: an inventory of equal experts, a strategy in words, slots.
 */
#ifndef TESTS_SCRIPT_FIXTURE_H
#define TESTS_SCRIPT_FIXTURE_H

#include <unistd.h>

#include "plan/simulate.h"
#include "sched/strategy.h"

#include "../test.h"

enum { SCRIPT_LAYERS = 4, SCRIPT_EXPERTS = 16, SCRIPT_K = 4, SCRIPT_TOKENS = 160 };

struct script_token {
    bool first, prompt; /* first of its sequence */
    bool skipped[SCRIPT_LAYERS];
    uint32_t chosen[SCRIPT_LAYERS][SCRIPT_K];
    uint32_t predicted[SCRIPT_LAYERS][SCRIPT_K]; /* best first */
};

struct script {
    uint32_t n_layers, n_experts, top_k, keep; /* keep 0: choices only */
    uint32_t n_encoder; /* layers: they see the prompt, the others the rest; 0: all see all */
    uint32_t ahead;     /* layers from a prediction to the layer it is for; 0: one */
    uint32_t n;
    struct script_token tokens[SCRIPT_TOKENS];
};

static char script_path[64];

static inline void script_write(const struct script *s)
{
    struct moe_trace_writer *w = NULL;
    struct moe_err err = {0};
    uint32_t ahead = s->ahead ? s->ahead : 1;
    const struct moe_trace_shape shape = {
        .n_layers = s->n_layers,
        .n_encoder = s->n_encoder,
        .n_experts = s->n_experts,
        .top_k = s->top_k,
        .keep = s->keep,
        .predictors =
            s->keep ? (2u << (MOE_PREDICT_GATE_1 + ahead - 1)) - (1u << MOE_PREDICT_GATE_1) : 0,
    };
    snprintf(script_path, sizeof script_path, "/tmp/moe-script-%d", (int)getpid());
    assert_ok(moe_trace_create(&w, script_path, &shape, &err), &err);
    for (uint32_t t = 0, at = 0; t < s->n; t++, at++) {
        const struct script_token *token = &s->tokens[t];
        if (token->first) {
            assert_ok(moe_trace_begin(w, &err), &err);
            at = 0;
        }
        assert_ok(moe_trace_add(w, 1, token->prompt, &err), &err);
        for (uint32_t l = 0; l < s->n_layers; l++) {
            float weights[SCRIPT_K], router[SCRIPT_EXPERTS], scores[SCRIPT_EXPERTS];
            for (uint32_t e = 0; e < s->n_experts; e++) {
                router[e] = 0.001f;
                scores[e] = -(float)e;
            }
            for (uint32_t i = 0; i < s->top_k; i++) {
                weights[i] = router[token->chosen[l][i]] = 0.5f / (float)(1 << i);
                scores[token->predicted[l][i]] = 4 - 0.5f * (float)i;
            }
            struct moe_layer_observation seen = {
                .chosen = token->chosen[l],
                .weights = weights,
                .stride = SCRIPT_EXPERTS,
            };
            for (uint32_t d = 0; s->keep && d < ahead; d++)
                if (moe_trace_predicts(&shape, MOE_PREDICT_GATE_1 + d, l))
                    seen.predicted[MOE_PREDICT_GATE_1 + d] = scores;
            bool sees = s->n_encoder == 0 || (l < s->n_encoder) == token->prompt;
            if (sees && !token->skipped[l])
                moe_trace_put(w, l, at, 1, &seen, s->keep ? router : NULL, SCRIPT_EXPERTS);
        }
    }
    assert_ok(moe_trace_commit(w, &err), &err);
}

/* The trace of a script; closed with moe_trace_close. */
static inline struct moe_trace *script_trace(const struct script *s)
{
    struct moe_trace *t = NULL;
    struct moe_err err = {0};
    script_write(s);
    assert_ok(moe_trace_open(&t, script_path, &err), &err);
    unlink(script_path);
    return t;
}

/* k different ones, low numbers more often. */
static inline void script_choose(uint64_t *rng, uint32_t n, uint32_t k, uint32_t *chosen)
{
    uint32_t left[SCRIPT_EXPERTS];
    for (uint32_t e = 0; e < n; e++)
        left[e] = e;
    for (uint32_t i = 0; i < k; i++) {
        uint32_t a = i + (uint32_t)(test_random(rng) % (n - i));
        uint32_t b = i + (uint32_t)(test_random(rng) % (n - i));
        a = a < b ? a : b;
        chosen[i] = left[a];
        left[a] = left[i];
    }
}

/* A script of the shape that is set: of 100 tokens `first` begin a sequence; of 100 that begin one
 * or follow a prompt's token, `prompt` belong to the prompt. Three predictions in four are
 * right. */
static inline void script_random(struct script *s, uint64_t *rng, uint32_t first, uint32_t prompt,
                                 bool gaps)
{
    for (uint32_t t = 0; t < s->n; t++) {
        struct script_token *token = &s->tokens[t];
        bool begins = t == 0 || test_random(rng) % 100 < first;
        *token = (struct script_token){.first = begins};
        token->prompt = (begins || s->tokens[t - 1].prompt) && test_random(rng) % 100 < prompt;
        for (uint32_t l = 0; l < s->n_layers; l++) {
            token->skipped[l] = gaps && test_random(rng) % 4 == 0;
            script_choose(rng, s->n_experts, s->top_k, token->chosen[l]);
            memcpy(token->predicted[l], token->chosen[l], sizeof token->chosen[l]);
            if (test_random(rng) % 4 == 0)
                script_choose(rng, s->n_experts, s->top_k, token->predicted[l]);
        }
    }
}

/* "fate+cache=lru", settled and fitted. */
static inline struct moe_strategy script_strategy(const char *words, uint32_t n_layers)
{
    struct moe_strategy s;
    struct moe_err err = {0};
    uint32_t named;
    assert_ok(moe_strategy_parse(words, &s, &named, &err), &err);
    moe_strategy_drop_idle(&s, named);
    assert_ok(moe_strategy_settle(&s, &err), &err);
    moe_strategy_fit(&s, n_layers, NULL);
    return s;
}

/* Experts of so many bytes at a first and half of them at a second precision. */
static inline void script_inventory(struct moe_inventory *i, const struct script *s, uint64_t bytes)
{
    static const char variants[2][MOE_NAME_BYTES] = {"4", "2"};
    const uint64_t sizes[2] = {bytes, bytes / 2};
    struct moe_err err = {0};
    assert_ok(
        moe_inventory_uniform(i, s->n_layers, s->n_experts, s->top_k, variants, sizes, 2, &err),
        &err);
    moe_inventory_set_encoder(i, s->n_encoder);
}

#endif
