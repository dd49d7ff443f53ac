/*
 * How routing weights go with the lengths of weighted outputs (HOBBIT fig. 5a), and what keeps them
 * from it:
 *
 *     bench_norms PACK TEXT...
 *
 * Prints a name and Pearson's correlation of weight and length a line, over the activations of all
 * layers, 256 tokens of each document at most: as they are (all); each divided by its sum over the
 * token's experts (token); about the means of each expert (expert); with every output as long as
 * its expert's are in the mean (means), or divided by that (free); of the weight with the length
 * before it is weighted (length).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/mem.h"
#include "base/par.h"
#include "engine/engine.h"
#include "kern/kern.h"
#include "tune/documents.h"

enum { MAX_TOKENS = 256 };

/* Sums over activations: x the weight, y what is compared with it. */
struct sums {
    double n, x, y, xx, xy, yy;
};

/* Of one expert: sums over its activations of powers of the weight w and the output's length l. */
struct expert {
    double n, w, ww, l, wl, ll, wwl, wwll;
};

struct bench {
    struct moe_session *session;
    struct expert *experts; /* [n_layers][n_experts] */
    struct sums token;
    uint32_t chosen[MAX_TOKENS * MOE_MAX_TOP_K]; /* of the pass and layer at work, as are these */
    float weights[MAX_TOKENS * MOE_MAX_TOP_K];
};

static void add(struct sums *s, double x, double y)
{
    s->n += 1;
    s->x += x;
    s->y += y;
    s->xx += x * x;
    s->xy += x * y;
    s->yy += y * y;
}

static double correlation(const struct sums *s)
{
    return (s->xy - s->x * s->y / s->n) /
           sqrt((s->xx - s->x * s->x / s->n) * (s->yy - s->y * s->y / s->n));
}

static void on_routed(void *ctx, uint32_t layer, const struct moe_row *rows, uint32_t n_rows,
                      const float *gate_input, uint64_t hidden_stride, const float *probabilities,
                      uint64_t router_stride, const uint32_t *chosen, const float *weights)
{
    struct bench *b = ctx;
    (void)layer, (void)rows, (void)gate_input, (void)hidden_stride, (void)probabilities;
    (void)router_stride;
    for (uint32_t i = 0; i < n_rows * b->session->model->config.top_k; i++) {
        b->chosen[i] = chosen[i];
        b->weights[i] = weights[i];
    }
}

static void on_computed(void *ctx, uint32_t layer, uint32_t n_rows, const float *outputs,
                        uint64_t stride, const uint32_t *slots)
{
    struct bench *b = ctx;
    const struct moe_config *c = &b->session->model->config;
    const uint32_t k = c->top_k;
    for (uint32_t t = 0; t < n_rows; t++) {
        double lengths[MOE_MAX_TOP_K], all_weights = 0, all_lengths = 0;
        for (uint32_t i = 0; i < k; i++) {
            const float *y = outputs + slots[t * k + i] * stride;
            const double w = (double)b->weights[t * k + i];
            const double l = sqrt((double)moe_kern.dot(y, y, c->hidden));
            struct expert *e = &b->experts[(uint64_t)layer * c->n_experts + b->chosen[t * k + i]];
            lengths[i] = w * l;
            all_weights += w;
            all_lengths += w * l;
            e->n += 1;
            e->w += w;
            e->ww += w * w;
            e->l += l;
            e->ll += l * l;
            e->wl += w * l;
            e->wwl += w * w * l;
            e->wwll += w * w * l * l;
        }
        for (uint32_t i = 0; i < k; i++)
            add(&b->token, (double)b->weights[t * k + i] / all_weights, lengths[i] / all_lengths);
    }
}

static int run_document(void *ctx, const uint32_t *ids, uint64_t n, struct moe_err *err)
{
    struct bench *b = ctx;
    struct moe_row rows[MAX_TOKENS];
    for (uint32_t i = 0; i < n; i++)
        rows[i] = (struct moe_row){0, i, ids[i], 0};
    return moe_forward(b->session, MOE_PREFILL, rows, (uint32_t)n, 0,
                       b->session->model->config.n_layers, NULL, NULL, err);
}

static void print(const struct bench *b)
{
    struct sums all = {0}, expert = {0}, means = {0}, free_of = {0}, length = {0};
    const struct moe_config *c = &b->session->model->config;
    for (uint64_t i = 0; i < (uint64_t)c->n_layers * c->n_experts; i++) {
        const struct expert *e = &b->experts[i];
        if (e->n == 0)
            continue;
        const double m = e->l / e->n; /* its mean length */
        const struct sums own = {e->n, e->w, e->wl, e->ww, e->wwl, e->wwll};
        const struct sums of[] = {
            own,
            {0, 0, 0, own.xx - own.x * own.x / own.n, own.xy - own.x * own.y / own.n,
             own.yy - own.y * own.y / own.n},
            {own.n, own.x, own.x * m, own.xx, own.xx * m, own.xx * m * m},
            {own.n, own.x, own.y / m, own.xx, own.xy / m, own.yy / (m * m)},
            {own.n, own.x, e->l, own.xx, e->wl, e->ll},
        };
        struct sums *const into[] = {&all, &expert, &means, &free_of, &length};
        for (int j = 0; j < 5; j++) {
            into[j]->n += of[j].n;
            into[j]->x += of[j].x;
            into[j]->y += of[j].y;
            into[j]->xx += of[j].xx;
            into[j]->xy += of[j].xy;
            into[j]->yy += of[j].yy;
        }
    }
    expert.n = 1; /* its sums of deviations are 0 */
    printf("all %.4f\ntoken %.4f\nexpert %.4f\nmeans %.4f\nfree %.4f\nlength %.4f\n",
           correlation(&all), correlation(&b->token), correlation(&expert), correlation(&means),
           correlation(&free_of), correlation(&length));
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: bench_norms PACK TEXT...\n");
        return 2;
    }
    static struct bench b;
    struct moe_err err = {0};
    struct moe_engine *engine = NULL;
    const struct moe_engine_options options = {
        .session = {.context = MAX_TOKENS, .batch = MAX_TOKENS}};
    moe_par_set_threads(moe_cores_available());
    int status = moe_kern_select(moe_cpu_detect(), &err);
    if (status == MOE_OK)
        status = moe_engine_open(&engine, argv[1], &options, NULL, &err);
    if (status == MOE_OK) {
        const struct moe_config *c = &engine->session->model->config;
        b.session = engine->session;
        b.experts = moe_alloc((uint64_t)c->n_layers * c->n_experts, sizeof *b.experts, &err);
        status = b.experts ? MOE_OK : MOE_ERR_MEMORY;
        b.session->observer =
            (struct moe_observer){.ctx = &b, .routed = on_routed, .computed = on_computed};
    }
    for (int i = 2; i < argc && status == MOE_OK; i++) {
        const struct moe_documents documents = {
            .tokenizer = b.session->model->tokenizer, .max_tokens = MAX_TOKENS, .max_windows = 1};
        status = moe_documents_each(&documents, argv[i], run_document, &b, &err);
    }
    if (status == MOE_OK)
        print(&b);
    moe_engine_close(engine);
    free(b.experts);
    if (status != MOE_OK)
        fprintf(stderr, "bench_norms: %s\n", err.text);
    return status == MOE_OK ? 0 : 1;
}
