#include "sched/choice_history.h"

#include <string.h>

#include "base/float16.h"

static bool knows_token_before(const struct moe_choice_history *r)
{
    return r->by == MOE_PREDICT_BY_PREVIOUS || r->by == MOE_PREDICT_BY_TOKEN;
}

void moe_choice_history_carve(struct moe_choice_history *r, struct moe_arena *arena, uint32_t batch)
{
    uint64_t n = (uint64_t)r->n_layers * r->top_k;
    if (r->recalls) {
        r->tokens.n_layers = r->n_layers;
        r->tokens.top_k = r->top_k;
        moe_token_history_carve(&r->tokens, arena, batch);
    }
    if (knows_token_before(r)) {
        r->chosen = moe_arena_take(arena, n, sizeof *r->chosen);
        r->weights = moe_arena_take(arena, n, sizeof *r->weights);
        r->known = moe_arena_take(arena, r->n_layers, sizeof *r->known);
    } else if (moe_predicts_from_paths(r->by)) {
        r->best = moe_arena_take(arena, batch, sizeof *r->best);
    } else if (r->by == MOE_PREDICT_BY_REQUESTS) {
        r->requests.n_layers = r->n_layers;
        r->requests.n_experts = r->n_experts;
        moe_request_history_carve(&r->requests, arena);
    }
}

void moe_choice_history_seed(struct moe_choice_history *r)
{
    if (r->by == MOE_PREDICT_BY_REQUESTS && r->statistics)
        moe_request_history_seed(&r->requests, &r->statistics->requests);
}

void moe_choice_history_begin_sequence(struct moe_choice_history *r)
{
    if (r->known)
        memset(r->known, 0, r->n_layers * sizeof *r->known);
    r->best_rows = 0;
    r->match = MOE_REQUESTS_KEPT;
    if (r->by == MOE_PREDICT_BY_REQUESTS)
        moe_request_history_begin(&r->requests);
}

void moe_choice_history_begin_pass(struct moe_choice_history *r, const uint32_t *ids,
                                   uint32_t n_rows)
{
    if (r->recalls)
        moe_token_history_begin_pass(&r->tokens, ids, n_rows);
}

void moe_choice_history_note(struct moe_choice_history *r, uint32_t layer, uint32_t n_rows,
                             const uint32_t *chosen, const float *weights)
{
    if (r->recalls)
        moe_token_history_add(&r->tokens, layer, n_rows, chosen, weights);
}

void moe_choice_history_see(struct moe_choice_history *r, uint32_t layer, uint32_t n_rows,
                            const uint32_t *chosen)
{
    if (r->by != MOE_PREDICT_BY_REQUESTS)
        return;
    moe_request_history_add(&r->requests, layer, n_rows, r->top_k, chosen);
    r->match = moe_request_history_match(&r->requests);
    if (r->match < MOE_REQUESTS_KEPT)
        moe_request_history_note(&r->requests, r->match);
}

/* Whether something is known of a row in a layer, by its token or the one before. */
static bool has_any(const struct moe_choice_history *r, uint32_t layer, uint32_t n_rows)
{
    const uint16_t *chosen, *weights;
    bool any = n_rows == 1 && r->known[layer];
    for (uint32_t row = 0; !any && r->by == MOE_PREDICT_BY_TOKEN && row < n_rows; row++)
        any = moe_token_history_recall(&r->tokens, row, layer, &chosen, &weights);
    return any;
}

uint32_t moe_choice_history_reach(const struct moe_choice_history *r, uint32_t layer,
                                  uint32_t n_rows, uint32_t n)
{
    if (moe_predicts_from_paths(r->by)) { /* statistics reach one layer of the decoder ahead */
        bool decodes = layer >= r->statistics->shape.n_encoder;
        return decodes && n > 0;
    }
    if (r->by == MOE_PREDICT_BY_REQUESTS)
        return r->match < MOE_REQUESTS_KEPT ? n : 0;
    uint32_t reach = 0;
    while (reach < n && has_any(r, layer + 1 + reach, n_rows))
        reach++;
    return reach;
}

static void make_sum_one(float *p, uint32_t n)
{
    float sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += p[i];
    for (uint32_t i = 0; sum > 0 && i < n; i++)
        p[i] /= sum;
}

static void predict_from_token_before(const struct moe_choice_history *r, uint32_t layer, float *p)
{
    uint64_t from = (uint64_t)layer * r->top_k;
    memset(p, 0, r->n_experts * sizeof *p);
    for (uint32_t i = 0; r->known[layer] && i < r->top_k; i++)
        p[r->chosen[from + i]] = r->weights[from + i];
}

/* A new token's experts may be those of the one before, which only the first row follows. */
static void predict_from_token(const struct moe_choice_history *r, uint32_t layer, uint32_t row,
                               uint32_t n_rows, float *p)
{
    const uint16_t *chosen, *weights;
    bool knows = moe_token_history_recall(&r->tokens, row, layer, &chosen, &weights);
    if (!knows && n_rows == 1) {
        predict_from_token_before(r, layer, p);
        return;
    }
    memset(p, 0, r->n_experts * sizeof *p);
    for (uint32_t i = 0; knows && i < r->top_k; i++)
        p[chosen[i] - 1] = moe_f16_to_f32(weights[i]);
}

void moe_choice_history_predict(const struct moe_choice_history *r, uint32_t layer, uint32_t d,
                                uint32_t row, uint32_t n_rows, const uint32_t *chosen, float *p)
{
    if (r->by == MOE_PREDICT_BY_PREVIOUS) {
        predict_from_token_before(r, layer + 1 + d, p);
    } else if (r->by == MOE_PREDICT_BY_TOKEN) {
        predict_from_token(r, layer + 1 + d, row, n_rows, p);
    } else if (r->by == MOE_PREDICT_BY_REQUESTS) {
        moe_request_history_shares(&r->requests, r->match, layer + 1 + d, p);
    } else {
        bool pairs = r->by == MOE_PREDICT_BY_PATH && r->top_k > 1;
        bool has_best = layer > r->statistics->shape.n_encoder && r->best_layer == layer - 1 &&
                        r->best_rows == n_rows;
        moe_path_scores(r->statistics, pairs ? MOE_PREDICT_PATH : MOE_PREDICT_PATH_RANK1, layer + 1,
                        has_best ? r->best[row] : MOE_NO_EXPERT, chosen, p);
    }
    make_sum_one(p, r->n_experts);
}

void moe_choice_history_add(struct moe_choice_history *r, uint32_t layer, uint32_t n_rows,
                            const uint32_t *chosen, const float *weights)
{
    uint32_t k = r->top_k;
    if (knows_token_before(r)) {
        uint64_t last = (uint64_t)(n_rows - 1) * k, to = (uint64_t)layer * k;
        memcpy(r->chosen + to, chosen + last, k * sizeof *r->chosen);
        for (uint32_t i = 0; i < k; i++)
            r->weights[to + i] = moe_round_f16(weights[last + i]);
        r->known[layer] = true;
    } else if (moe_predicts_from_paths(r->by)) {
        for (uint64_t i = 0; i < n_rows; i++)
            r->best[i] = (uint16_t)chosen[i * k];
        r->best_layer = layer;
        r->best_rows = n_rows;
    }
}
