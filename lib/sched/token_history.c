#include "sched/token_history.h"

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
