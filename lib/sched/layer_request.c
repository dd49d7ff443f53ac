/* Groups a layer's choices by expert. */
#include "sched/layer_request.h"

#include <string.h>

#include "sched/select.h"

/* NULL where there is no need for it. */
static void *take_if(bool needed, struct moe_arena *arena, uint64_t n, uint64_t size)
{
    return needed ? moe_arena_take(arena, n, size) : NULL;
}

void moe_layer_request_carve(struct moe_layer_request *r, struct moe_arena *arena,
                             const struct moe_request_shape *s)
{
    uint32_t top_k = s->top_k ? s->top_k : 1, n_experts = s->n_experts ? s->n_experts : 1;
    uint64_t pairs = (uint64_t)s->batch * top_k;
    uint64_t experts = moe_round_up(n_experts, MOE_PANEL_ROWS);
    r->n_experts = s->n_experts;
    r->top_k = s->top_k;
    r->n_classes = s->n_variants ? s->n_variants + 1 : 1;
    uint64_t entries = experts * r->n_classes;
    r->chosen = moe_arena_take(arena, pairs, sizeof *r->chosen);
    r->weights = moe_arena_take(arena, pairs, sizeof *r->weights);
    r->variants = take_if(s->n_variants > 0, arena, pairs, 1);
    r->rows = moe_arena_take(arena, pairs, sizeof *r->rows);
    r->sequences = moe_arena_take(arena, s->batch, sizeof *r->sequences);
    r->slot_of = moe_arena_take(arena, pairs, sizeof *r->slot_of);
    r->scales = take_if(s->weighs_inputs, arena, pairs, sizeof *r->scales);
    r->over = take_if(s->limited, arena, pairs, 1);
    r->passing = take_if(s->passes, arena, pairs, sizeof *r->passing);
    r->experts = moe_arena_take(arena, entries, sizeof *r->experts);
    r->n_rows = moe_arena_take(arena, entries, sizeof *r->n_rows);
    r->first = moe_arena_take(arena, entries, sizeof *r->first);
    r->classes = moe_arena_take(arena, entries, 1);
    r->needs = moe_arena_take(arena, entries, sizeof *r->needs);
    r->kinds = moe_arena_take(arena, entries, 1);
    r->ranks = moe_arena_take(arena, entries, 1);
    r->cursor = moe_arena_take(arena, entries, sizeof *r->cursor);
    r->unimportance = moe_arena_take(arena, experts, sizeof *r->unimportance);
}

static bool is_over(const struct moe_layer_request *r, uint64_t activation)
{
    return r->n_over && r->over[activation];
}

/* Expert and class of an activation as one number. */
static uint32_t activation_key_of(const struct moe_layer_request *r, uint64_t activation,
                                  bool assigned)
{
    uint32_t class_ = assigned ? r->variants[activation] : 0;
    if (class_ >= r->n_classes)
        class_ = r->n_classes - 1;
    return r->chosen[activation] * r->n_classes + class_;
}

/* Lists the entries, and the rows that want each. */
static void group_choices(struct moe_layer_request *r, uint32_t n_rows, bool assigned)
{
    uint64_t n_pairs = (uint64_t)n_rows * r->top_k;
    uint32_t total = 0, n_keys = r->n_experts * r->n_classes;
    r->n_entries = 0;
    memset(r->cursor, 0, n_keys * sizeof *r->cursor);
    for (uint64_t i = 0; i < n_pairs; i++)
        r->cursor[activation_key_of(r, i, assigned)] += !is_over(r, i);
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
        uint32_t slot = over ? total++ : r->cursor[activation_key_of(r, i, assigned)]++;
        if (over && r->passing)
            r->weights[i] = r->passing[i];
        r->rows[slot] = (uint32_t)(i / r->top_k);
        r->slot_of[i] = slot;
    }
}

void moe_layer_request_fill(struct moe_layer_request *r, uint32_t n_rows, bool assigned,
                            const uint8_t *precalculated)
{
    group_choices(r, n_rows, assigned);
    for (uint64_t i = 0; r->scales && i < (uint64_t)n_rows * r->top_k; i++)
        r->scales[r->slot_of[i]] = r->weights[i];
    /* How much each expert matters to the row that it matters to most. */
    for (uint32_t i = 0; i < r->n_entries; i++)
        r->unimportance[r->experts[i]] = 2;
    moe_least_unimportance(r->chosen, r->weights, n_rows, r->top_k, r->unimportance);
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
