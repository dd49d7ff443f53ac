#include "infer/layer_request.h"

#include <math.h>
#include <string.h>

#include "infer/state.h"
#include "sched/select.h"

void moe_layer_request_carve(struct moe_layer_request *r, struct moe_arena *arena,
                             const struct moe_config *c, uint32_t batch, uint32_t n_variants)
{
    uint32_t top_k = c->top_k ? c->top_k : 1, n_experts = c->n_experts ? c->n_experts : 1;
    uint64_t pairs = (uint64_t)batch * top_k;
    uint64_t experts = moe_round_up(n_experts, MOE_PANEL_ROWS);
    r->n_classes = n_variants ? n_variants + 1 : 1;
    uint64_t entries = experts * r->n_classes;
    r->chosen = moe_arena_take(arena, pairs, sizeof *r->chosen);
    r->weights = moe_arena_take(arena, pairs, sizeof *r->weights);
    r->variants = moe_arena_take(arena, n_variants ? pairs : 0, 1);
    r->rows = moe_arena_take(arena, pairs, sizeof *r->rows);
    r->sequences = moe_arena_take(arena, batch, sizeof *r->sequences);
    r->slot_of = moe_arena_take(arena, pairs, sizeof *r->slot_of);
    r->scales = c->weigh_inputs ? moe_arena_take(arena, pairs, sizeof *r->scales) : NULL;
    r->over = moe_arena_take(arena, c->expert_capacity ? pairs : 0, 1);
    r->passing = moe_arena_take(arena, c->overflow_passes ? pairs : 0, sizeof *r->passing);
    r->experts = moe_arena_take(arena, entries, sizeof *r->experts);
    r->n_rows = moe_arena_take(arena, entries, sizeof *r->n_rows);
    r->first = moe_arena_take(arena, entries, sizeof *r->first);
    r->classes = moe_arena_take(arena, entries, 1);
    r->needs = moe_arena_take(arena, entries, sizeof *r->needs);
    r->kinds = moe_arena_take(arena, entries, 1);
    r->cursor = moe_arena_take(arena, entries, sizeof *r->cursor);
    r->unimportance = moe_arena_take(arena, experts, sizeof *r->unimportance);
}

int moe_layer_request_check(const struct moe_layer_request *r, const struct moe_config *c,
                            uint32_t layer, uint32_t n_rows, struct moe_err *err)
{
    for (uint64_t i = 0; i < (uint64_t)n_rows * c->top_k; i++)
        if (isnan(r->weights[i]))
            return moe_fail(err, MOE_ERR_FORMAT,
                            "layer %u: the router's scores are not numbers (damaged weights?)",
                            layer);
    return MOE_OK;
}

/* One row's choices, after those of the rows before it. */
static void limit_row(struct moe_layer_request *r, const struct moe_config *c, uint32_t row)
{
    for (uint64_t at = (uint64_t)row * c->top_k, end = at + c->top_k; at < end; at++) {
        r->over[at] = r->cursor[r->chosen[at]]++ >= c->expert_capacity;
        if (!r->over[at])
            continue;
        if (c->overflow_passes)
            r->passing[at] = r->weights[at];
        r->weights[at] = 0;
        r->n_over++;
    }
}

void moe_layer_request_limit(struct moe_layer_request *r, const struct moe_config *c,
                             uint32_t layer, const struct moe_prompt *prompts,
                             const struct moe_row *rows, uint32_t n_rows)
{
    bool limited = c->expert_capacity && (prompts || moe_config_in_encoder(c, layer));
    r->n_over = 0;
    if (!limited)
        return;
    memset(r->over, 0, (uint64_t)n_rows * c->top_k);
    for (uint32_t i = 0; i < n_rows; i++) {
        if (prompts && rows[i].position >= prompts[rows[i].sequence].n)
            continue;
        if (rows[i].position == 0)
            memset(r->cursor, 0, c->n_experts * sizeof *r->cursor);
        limit_row(r, c, i);
    }
}

static bool is_over(const struct moe_layer_request *r, uint64_t activation)
{
    return r->n_over && r->over[activation];
}

/* Expert and class of an activation as one number. */
static uint32_t key_of(const struct moe_layer_request *r, uint64_t activation, bool assigned)
{
    uint32_t class_ = assigned ? r->variants[activation] : 0;
    if (class_ >= r->n_classes)
        class_ = r->n_classes - 1;
    return r->chosen[activation] * r->n_classes + class_;
}

/* Lists the entries, and the rows that want each. */
static void group(struct moe_layer_request *r, const struct moe_config *c, uint32_t n_rows,
                  bool assigned)
{
    uint64_t n_pairs = (uint64_t)n_rows * c->top_k;
    uint32_t total = 0, n_keys = c->n_experts * r->n_classes;
    r->n_entries = 0;
    memset(r->cursor, 0, n_keys * sizeof *r->cursor);
    for (uint64_t i = 0; i < n_pairs; i++)
        r->cursor[key_of(r, i, assigned)] += !is_over(r, i);
    for (uint32_t key = 0; key < n_keys; key++) {
        uint32_t count = r->cursor[key], entry = r->n_entries;
        if (count == 0)
            continue;
        r->experts[entry] = key / r->n_classes;
        r->classes[entry] = (uint8_t)(key % r->n_classes);
        r->n_rows[entry] = count;
        r->first[entry] = total;
        r->n_entries++;
        r->cursor[key] = total;
        total += count;
    }
    for (uint64_t i = 0; i < n_pairs; i++) {
        bool over = is_over(r, i);
        uint32_t slot = over ? total++ : r->cursor[key_of(r, i, assigned)]++;
        if (over && c->overflow_passes)
            r->weights[i] = r->passing[i];
        r->rows[slot] = (uint32_t)(i / c->top_k);
        r->slot_of[i] = slot;
    }
}

void moe_layer_request_fill(struct moe_layer_request *r, const struct moe_config *c,
                            uint32_t n_rows, bool assigned, const uint8_t *precalculated)
{
    group(r, c, n_rows, assigned);
    for (uint64_t i = 0; c->weigh_inputs && i < (uint64_t)n_rows * c->top_k; i++)
        r->scales[r->slot_of[i]] = r->weights[i];
    /* How much each expert matters to the row that it matters to most. */
    for (uint32_t i = 0; i < r->n_entries; i++)
        r->unimportance[r->experts[i]] = 2;
    moe_least_unimportance(r->chosen, r->weights, n_rows, c->top_k, r->unimportance);
    for (uint32_t i = 0; i < r->n_entries; i++) {
        bool left_out = assigned && r->classes[i] == r->n_classes - 1;
        r->needs[i] = (struct moe_need){
            .expert = r->experts[i],
            .n_rows = r->n_rows[i],
            .unimportance = r->unimportance[r->experts[i]],
            .precalculated = precalculated && precalculated[r->experts[i]],
        };
        r->kinds[i] = left_out ? MOE_ENTRY_SKIPPED : MOE_ENTRY_SLOT;
    }
}
