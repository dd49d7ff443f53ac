#include "sched/request_history.h"

#include <math.h>
#include <string.h>

static uint64_t row_at(const struct moe_request_history *h, uint32_t request, uint32_t layer)
{
    return ((uint64_t)request * h->n_layers + layer) * h->n_experts;
}

void moe_request_history_carve(struct moe_request_history *h, struct moe_arena *arena)
{
    uint64_t rows = (uint64_t)MOE_REQUESTS_KEPT * h->n_layers;
    h->counts = moe_arena_take(arena, (rows + h->n_layers) * h->n_experts, sizeof *h->counts);
    h->norms = moe_arena_take(arena, rows, sizeof *h->norms);
    h->similarity = moe_arena_take(arena, rows, sizeof *h->similarity);
    h->matched = moe_arena_take(arena, MOE_REQUESTS_KEPT, sizeof *h->matched);
    h->number = moe_arena_take(arena, MOE_REQUESTS_KEPT, sizeof *h->number);
}

static float length_of(const float *row, uint32_t n)
{
    float sum = 0;
    for (uint32_t e = 0; e < n; e++)
        sum += row[e] * row[e];
    return sqrtf(sum);
}

/* The place for one more matrix. */
static uint32_t make_room(struct moe_request_history *h)
{
    if (h->n < MOE_REQUESTS_KEPT)
        return h->n++;
    uint32_t least = 0;
    for (uint32_t i = 1; i < h->n; i++)
        if (h->matched[i] < h->matched[least] ||
            (h->matched[i] == h->matched[least] && h->number[i] < h->number[least]))
            least = i;
    return least;
}

/* Keeps a matrix [n_layers][n_experts] as that of the request that has begun last. */
static void keep(struct moe_request_history *h, const float *matrix)
{
    uint32_t to = make_room(h);
    memcpy(h->counts + row_at(h, to, 0), matrix,
           (uint64_t)h->n_layers * h->n_experts * sizeof *matrix);
    for (uint32_t l = 0; l < h->n_layers; l++)
        h->norms[(uint64_t)to * h->n_layers + l] =
            length_of(matrix + (uint64_t)l * h->n_experts, h->n_experts);
    h->matched[to] = 0;
    h->number[to] = h->begun;
}

void moe_request_history_seed(struct moe_request_history *h, const struct moe_requests *requests)
{
    float *now = h->counts + row_at(h, MOE_REQUESTS_KEPT, 0);
    uint64_t n = (uint64_t)h->n_layers * h->n_experts;
    for (uint32_t r = 0; r < requests->n; r++) {
        const uint32_t *counts = moe_requests_at(requests, r, 0);
        for (uint64_t i = 0; i < n; i++)
            now[i] = (float)counts[i];
        keep(h, now);
        h->begun++;
    }
    memset(now, 0, n * sizeof *now);
}

void moe_request_history_begin(struct moe_request_history *h)
{
    float *now = h->counts + row_at(h, MOE_REQUESTS_KEPT, 0);
    uint64_t n = (uint64_t)h->n_layers * h->n_experts;
    if (length_of(now, h->n_experts) > 0) /* of the first layer: it has computed something */
        keep(h, now);
    memset(now, 0, n * sizeof *now);
    memset(h->similarity, 0, (uint64_t)MOE_REQUESTS_KEPT * h->n_layers * sizeof *h->similarity);
    h->begun++;
}

void moe_request_history_add(struct moe_request_history *h, uint32_t layer, uint32_t n,
                             uint32_t top_k, const uint32_t *chosen)
{
    float *now = h->counts + row_at(h, MOE_REQUESTS_KEPT, layer);
    for (uint64_t i = 0; i < (uint64_t)n * top_k; i++)
        now[chosen[i]]++;
    float length = length_of(now, h->n_experts);
    for (uint32_t r = 0; r < h->n; r++) {
        const float *row = h->counts + row_at(h, r, layer);
        uint64_t at = (uint64_t)r * h->n_layers + layer;
        float product = 0;
        for (uint32_t e = 0; e < h->n_experts; e++)
            product += now[e] * row[e];
        h->similarity[at] = product > 0 ? product / (length * h->norms[at]) : 0;
    }
}

uint32_t moe_request_history_match(const struct moe_request_history *h)
{
    uint32_t best = MOE_REQUESTS_KEPT;
    float most = 0;
    for (uint32_t r = 0; r < h->n; r++) {
        float sum = 0;
        for (uint32_t l = 0; l < h->n_layers; l++)
            sum += h->similarity[(uint64_t)r * h->n_layers + l];
        if (best == MOE_REQUESTS_KEPT || sum > most ||
            (sum == most && h->number[r] < h->number[best])) {
            best = r;
            most = sum;
        }
    }
    return best;
}

void moe_request_history_note(struct moe_request_history *h, uint32_t match)
{
    h->matched[match]++;
}

void moe_request_history_shares(const struct moe_request_history *h, uint32_t match, uint32_t layer,
                                float *p)
{
    float sum = 0;
    memcpy(p, h->counts + row_at(h, match, layer), h->n_experts * sizeof *p);
    for (uint32_t e = 0; e < h->n_experts; e++)
        sum += p[e];
    for (uint32_t e = 0; sum > 0 && e < h->n_experts; e++)
        p[e] /= sum;
}
