/* What earlier tokens chose: of a token, of requests, of layers. */
#include "sched/history.h"

#include <math.h>
#include <string.h>

#include "base/float16.h"

enum { N_SETS = MOE_TOKENS_KEPT / MOE_TOKENS_WAYS };
_Static_assert((N_SETS & (N_SETS - 1)) == 0, "sets are numbered by a token's last bits");

void moe_token_history_carve(struct moe_token_history *h, struct moe_arena *arena, uint32_t batch)
{
    uint64_t n = (uint64_t)MOE_TOKENS_KEPT * h->n_layers * h->top_k;
    h->ids = moe_arena_take(arena, MOE_TOKENS_KEPT, sizeof *h->ids);
    h->used = moe_arena_take(arena, MOE_TOKENS_KEPT, sizeof *h->used);
    h->chosen = moe_arena_take(arena, n, sizeof *h->chosen);
    h->weights = moe_arena_take(arena, n, sizeof *h->weights);
    h->rows = moe_arena_take(arena, batch, sizeof *h->rows);
    h->row_ids = moe_arena_take(arena, batch, sizeof *h->row_ids);
}

static uint64_t at(const struct moe_token_history *h, uint32_t place, uint32_t layer)
{
    return ((uint64_t)place * h->n_layers + layer) * h->top_k;
}

/* The token's place, which may have been another's. */
static uint32_t place_of(struct moe_token_history *h, uint32_t id)
{
    uint32_t first = id % N_SETS * MOE_TOKENS_WAYS, oldest = first;
    for (uint32_t i = first; i < first + MOE_TOKENS_WAYS; i++) {
        if (h->used[i] && h->ids[i] == id)
            return i;
        if (h->used[i] < h->used[oldest])
            oldest = i;
    }
    h->ids[oldest] = id;
    memset(h->chosen + at(h, oldest, 0), 0, (uint64_t)h->n_layers * h->top_k * sizeof *h->chosen);
    return oldest;
}

void moe_token_history_begin_pass(struct moe_token_history *h, const uint32_t *ids, uint32_t n_rows)
{
    h->n_rows = n_rows;
    for (uint32_t row = 0; row < n_rows; row++) {
        uint32_t place = place_of(h, ids[row]);
        h->used[place] = ++h->now;
        h->rows[row] = place;
        h->row_ids[row] = ids[row];
    }
}

/* In a long pass another row may have taken a row's place. */
static bool has_place(const struct moe_token_history *h, uint32_t row)
{
    return row < h->n_rows && h->ids[h->rows[row]] == h->row_ids[row];
}

bool moe_token_history_recall(const struct moe_token_history *h, uint32_t row, uint32_t layer,
                              const uint16_t **chosen, const uint16_t **weights)
{
    if (!has_place(h, row))
        return false;
    uint64_t from = at(h, h->rows[row], layer);
    *chosen = h->chosen + from;
    *weights = h->weights + from;
    return **chosen != 0;
}

bool moe_token_history_mark(const struct moe_token_history *h, uint32_t layer, uint8_t *marks)
{
    const uint16_t *chosen, *weights;
    bool any = false;
    for (uint32_t row = 0; row < h->n_rows; row++) {
        if (!moe_token_history_recall(h, row, layer, &chosen, &weights))
            continue;
        for (uint32_t i = 0; i < h->top_k; i++)
            marks[chosen[i] - 1] = 1;
        any = true;
    }
    return any;
}

void moe_token_history_add(struct moe_token_history *h, uint32_t layer, uint32_t n_rows,
                           const uint32_t *chosen, const float *weights)
{
    for (uint32_t row = 0; row < n_rows; row++) {
        if (!has_place(h, row))
            continue;
        uint64_t to = at(h, h->rows[row], layer), from = (uint64_t)row * h->top_k;
        for (uint32_t i = 0; i < h->top_k; i++) {
            h->chosen[to + i] = (uint16_t)(chosen[from + i] + 1);
            h->weights[to + i] = moe_f32_to_f16(weights[from + i]);
        }
    }
}

/* ---- Requests ---- */

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
static void keep_matrix(struct moe_request_history *h, const float *matrix)
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
        keep_matrix(h, now);
        h->begun++;
    }
    memset(now, 0, n * sizeof *now);
}

void moe_request_history_begin(struct moe_request_history *h)
{
    float *now = h->counts + row_at(h, MOE_REQUESTS_KEPT, 0);
    uint64_t n = (uint64_t)h->n_layers * h->n_experts;
    if (length_of(now, h->n_experts) > 0) /* of the first layer: it has computed something */
        keep_matrix(h, now);
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

/* ---- Choices ---- */

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
