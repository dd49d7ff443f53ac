/*
 * The scheduler's decisions: a channel that does what the test says stands for the loader.
 */
#include "sched/scheduler.h"

#include <math.h>

#include "../test.h"

enum { N_LAYERS = 4, N_EXPERTS = 8, TOP_K = 2, N_KEYS = N_LAYERS * N_EXPERTS, MAX_LOADS = 256 };

struct load {
    uint32_t slot, segment, handle;
    enum moe_load_priority priority;
};

/* Loads under way, in the order in which they were asked for, and those that have ended. */
struct channel {
    struct load loads[MAX_LOADS];
    uint32_t n, next_handle;
    struct moe_arrival done[MAX_LOADS];
    uint32_t n_done;
    uint32_t promoted, cancelled;
    bool sticky;  /* cancelled loads go on for a while */
    double limit; /* of prefetches in flight */
};

static uint32_t key_at(uint32_t layer, uint32_t expert)
{
    return moe_expert_key(N_EXPERTS, layer, expert);
}

static int submit(void *ctx, uint32_t slot, uint32_t segment, enum moe_load_priority priority,
                  float score, uint32_t *handle, struct moe_err *err)
{
    struct channel *c = ctx;
    *handle = c->next_handle++;
    c->loads[c->n++] = (struct load){slot, segment, *handle, priority};
    return MOE_OK;
}

static void promote(void *ctx, uint32_t handle)
{
    ((struct channel *)ctx)->promoted++;
}

static struct moe_arrival forget(struct channel *c, uint32_t i)
{
    const struct moe_arrival a = {c->loads[i].slot, c->loads[i].segment, MOE_OK};
    c->n--;
    memmove(c->loads + i, c->loads + i + 1, (c->n - i) * sizeof *c->loads);
    return a;
}

static bool cancel(void *ctx, uint32_t handle)
{
    struct channel *c = ctx;
    uint32_t i = 0;
    c->cancelled++;
    if (c->sticky)
        return false;
    while (c->loads[i].handle != handle)
        i++;
    forget(c, i);
    return true;
}

/* Load i has ended; the scheduler learns of it when it asks. */
static void deliver(struct channel *c, uint32_t i)
{
    c->done[c->n_done++] = forget(c, i);
}

/* After a wait something has ended: the oldest load. */
static uint32_t reap(void *ctx, bool wait, struct moe_arrival *done, uint32_t max)
{
    struct channel *c = ctx;
    uint32_t n = 0;
    if (wait && c->n_done == 0 && c->n > 0)
        deliver(c, 0);
    while (n < max && c->n_done > 0)
        done[n++] = c->done[--c->n_done];
    return n;
}

static void limit_prefetches(void *ctx, double bytes)
{
    ((struct channel *)ctx)->limit = bytes;
}

static int failure(void *ctx, struct moe_err *err)
{
    return moe_fail(err, MOE_ERR_IO, "no load fails here");
}

static struct channel channel;
static struct moe_counts counts;
static struct moe_inventory inventory;
static struct moe_loan loan; /* of the schedulers that are opened */

static int open_inventory(void **state)
{
    static const char variants[2][MOE_NAME_BYTES] = {"8", "4"};
    static const uint64_t bytes[2] = {16000, 4000};
    struct moe_err err = {0};
    return moe_inventory_uniform(&inventory, N_LAYERS, N_EXPERTS, TOP_K, variants, bytes, 2, &err);
}

static int release_inventory(void **state)
{
    moe_inventory_release(&inventory);
    return 0;
}

/* A cache of so many experts at high precision (variant 0), and, with low > 0, at low (1), over a
 * channel that takes so many loads at a time. */
static struct moe_scheduler *open_narrow(struct moe_strategy *strategy, uint32_t high, uint32_t low,
                                         uint32_t working, const uint64_t *frequency,
                                         const uint32_t *contents, uint32_t n_contents,
                                         uint32_t room)
{
    struct moe_err err = {0};
    const struct moe_pools pools = {
        .n_classes = 2,
        .n_slots = high + low + 2 * working,
        .loan = loan,
        .pools = {{high, working, NULL}, {low, working, NULL}},
    };
    channel = (struct channel){0};
    counts = (struct moe_counts){0};
    const struct moe_scheduler_options options = {
        .inventory = &inventory,
        .strategy = strategy,
        .low = 1,
        .pools = &pools,
        .frequency = frequency,
        .contents = contents,
        .n_contents = n_contents,
        .n_requests = room + MOE_PACK_MAX_SEGMENTS - 1,
        .channel = {.ctx = &channel,
                    .submit = submit,
                    .promote = promote,
                    .cancel = cancel,
                    .reap = reap,
                    .failure = failure,
                    .limit_prefetches = limit_prefetches},
    };
    struct moe_scheduler *s = NULL;
    assert_ok(moe_scheduler_open(&s, &options, &err), &err);
    moe_scheduler_begin_sequence(s);
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    assert_ok(moe_scheduler_fill(s, NULL, &err), &err);
    return s;
}

static struct moe_scheduler *open_scheduler(struct moe_strategy *strategy, uint32_t high,
                                            uint32_t low, uint32_t working)
{
    static const uint64_t frequency[N_KEYS];
    static const uint32_t nothing[1];
    return open_narrow(strategy, high, low, working, frequency, nothing, 0, MAX_LOADS);
}

static struct moe_strategy strategy_of(const char *name)
{
    struct moe_strategy s;
    struct moe_err err = {0};
    assert_true(moe_strategy_find(name, &s));
    assert_ok(moe_strategy_settle(&s, &err), &err);
    moe_strategy_fit(&s, N_LAYERS, NULL);
    return s;
}

/* Load i arrives. */
static void arrive(struct moe_scheduler *s, uint32_t i)
{
    struct moe_err err = {0};
    deliver(&channel, i);
    assert_ok(moe_scheduler_poll(s, &err), &err);
}

static void arrive_all(struct moe_scheduler *s)
{
    while (channel.n > 0)
        arrive(s, 0);
}

static void request(struct moe_scheduler *s, uint32_t layer, const struct moe_need *needs,
                    uint32_t n)
{
    struct moe_err err = {0};
    assert_ok(moe_scheduler_request(s, layer, needs, n, &err), &err);
}

/* Entries in slots that are not released yet. */
static uint32_t n_open(const struct moe_scheduler *s)
{
    uint32_t n, open = 0;
    const struct moe_entry *e = moe_scheduler_entries(s, &n);
    for (uint32_t i = 0; i < n; i++)
        open += e[i].state != MOE_ENTRY_DONE;
    return open;
}

static void release_all(struct moe_scheduler *s)
{
    struct moe_err err = {0};
    arrive_all(s);
    while (n_open(s) > 0) {
        uint32_t which, n;
        assert_ok(moe_scheduler_next(s, 1, &which, &n, &err), &err);
        assert_int_equal(n, 1);
        assert_ok(moe_scheduler_complete(s, which, &err), &err);
        moe_scheduler_release(s, which);
    }
    arrive_all(s);
    assert_true(moe_store_check(moe_scheduler_store(s), &err));
}

/* One token's layer from request to release. */
static void pass(struct moe_scheduler *s, uint32_t layer, uint32_t a, uint32_t b)
{
    const struct moe_need needs[] = {{a, 1, 0, false, false}, {b, 1, 0.5f, false, false}};
    request(s, layer, needs, 2);
    release_all(s);
}

static const struct moe_entry *entry(struct moe_scheduler *s, uint32_t i)
{
    uint32_t n;
    return &moe_scheduler_entries(s, &n)[i];
}

/* A prediction of one row: the experts of `best` fall from 1 by a tenth, the others have
 * nothing. */
static struct moe_prediction predict(uint32_t layer, const uint32_t *best, uint32_t n,
                                     float *scores, float *unimportance)
{
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        scores[e] = 0.001f * (float)(N_EXPERTS - e);
        unimportance[e] = 2;
    }
    for (uint32_t i = 0; i < n; i++) {
        scores[best[i]] = 1 - 0.1f * (float)i;
        unimportance[best[i]] = i < TOP_K ? 0.5f * (float)i : 2;
    }
    return (struct moe_prediction){layer, 1, scores, unimportance};
}

/* ---- Visits ---- */

/* Layer 1 is visited as layer 2 again: its experts are loaded once for both, and what is predicted
 * of the second visit is not given up when the first one's router chooses otherwise. */
static void visits_share_experts(void **state)
{
    static const struct moe_loop loop = {1, 1, 2};
    static const uint32_t soon[] = {1, 2}, later[] = {3, 5};
    struct moe_err err = {0};
    float scores[2][N_EXPERTS], unimportance[2][N_EXPERTS];
    struct moe_strategy strategy = strategy_of("fate");
    strategy.prefetch = (struct moe_prefetch_limits){.top_k = true};
    strategy.alloc = MOE_ALLOC_GLOBAL;
    strategy.depth = 2;
    moe_inventory_set_loop(&inventory, &loop);
    struct moe_scheduler *s = open_scheduler(&strategy, 8, 0, 8);
    pass(s, 1, 1, 2);
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    const struct moe_prediction both[] = {predict(1, soon, 2, scores[0], unimportance[0]),
                                          predict(2, later, 2, scores[1], unimportance[1])};
    assert_ok(moe_scheduler_predicted(s, both, 2, &err), &err);
    assert_int_equal(channel.n, 2);
    pass(s, 1, 1, 2);
    assert_int_equal(channel.cancelled, 0);
    pass(s, 2, 3, 5);
    assert_int_equal(counts.loads, 2 + 2);
    assert_int_equal(counts.predicted_right, 4);
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    pass(s, 1, 3, 5); /* the next token's first visit, */
    pass(s, 2, 1, 2); /* and its second */
    assert_int_equal(counts.loads, 2 + 2);
    assert_int_equal(moe_scheduler_usage(s)->count[key_at(1, 3)], 2);
    moe_scheduler_close(s);
    release_inventory(NULL);
    open_inventory(NULL);
}

/* ---- What becomes of activations ---- */

static void hits_and_misses_add_up(void **state)
{
    struct moe_strategy strategy = strategy_of("lru");
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 0, 2);
    pass(s, 0, 1, 2);
    pass(s, 1, 1, 2);
    pass(s, 0, 1, 3); /* 1 is there; 3 takes the place of layer 0's 2 */
    pass(s, 0, 2, 3);
    assert_int_equal(counts.activations, 8);
    assert_int_equal(counts.cache_hits, 2);
    assert_int_equal(counts.misses, 6);
    assert_int_equal(counts.loads, 6);
    assert_int_equal(counts.evictions, 2);
    moe_scheduler_close(s);
}

/* HOBBIT fig. 6: a miss of an important expert is loaded high, of a less important one low, of an
 * unimportant one not at all; what is there is used whatever its score is. */
static void hobbit_s_three_classes_are_for_misses_alone(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 4, 2);
    const struct moe_need needs[] = {
        {0, 1, 0, false, false}, {1, 1, 0.7f, false, false}, {2, 1, 0.95f, false, false}};
    request(s, 0, needs, 3);
    assert_int_equal(entry(s, 0)->kind, MOE_ENTRY_SLOT);
    assert_int_equal(entry(s, 0)->variant, 0);
    assert_int_equal(entry(s, 1)->kind, MOE_ENTRY_SLOT);
    assert_int_equal(entry(s, 1)->variant, 1);
    assert_int_equal(entry(s, 2)->kind, MOE_ENTRY_SKIPPED);
    assert_int_equal(channel.n, 2);
    release_all(s);
    assert_int_equal(counts.low_precision, 1);
    assert_int_equal(counts.skipped, 1);
    /* Important now: the low one does not do. Unimportant, but there at high precision. */
    const struct moe_need again[] = {{0, 1, 0.95f, false, false}, {1, 1, 0.2f, false, false}};
    request(s, 0, again, 2);
    assert_int_equal(entry(s, 0)->variant, 0);
    assert_int_equal(entry(s, 1)->variant, 0);
    assert_int_equal(channel.n, 1);
    release_all(s);
    assert_int_equal(counts.cache_hits, 1);
    assert_int_equal(counts.misses, 3);
    assert_int_equal(counts.activations, counts.cache_hits + counts.misses + counts.skipped);
    const struct moe_usage *u = moe_scheduler_usage(s);
    assert_int_equal(u->count[1], 2);
    assert_int_equal(u->high[1], 1);
    moe_scheduler_close(s);
}

/* What is skipped is not used: equation 3's R, F and H, and the frequency over all sequences, stay
 * as they were. */
static void a_skipped_expert_is_not_used(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 4, 2);
    const struct moe_usage *u = moe_scheduler_usage(s);
    const struct moe_need first[] = {{0, 1, 0, false, false}, {2, 1, 0.2f, false, false}};
    request(s, 0, first, 2);
    release_all(s);
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    /* 2 is as unimportant as 3, but it is there and is computed. */
    const struct moe_need second[] = {
        {0, 1, 0, false, false}, {2, 1, 0.95f, false, false}, {3, 1, 0.95f, false, false}};
    request(s, 0, second, 3);
    release_all(s);
    assert_int_equal(counts.skipped, 1);
    assert_int_equal(u->token, 2);
    static const struct {
        uint32_t expert, last, count;
    } want[] = {{0, 2, 2}, {2, 2, 2}, {3, 0, 0}};
    for (size_t i = 0; i < N_ITEMS(want); i++) {
        assert_int_equal(u->last[want[i].expert], want[i].last);
        assert_int_equal(u->last_ever[want[i].expert], want[i].last);
        assert_int_equal(u->count[want[i].expert], want[i].count);
        assert_int_equal(u->frequency[want[i].expert], want[i].count);
    }
    assert_int_equal(u->high[3], 0);
    moe_scheduler_close(s);
}

static void an_emergency_takes_what_is_quick(void **state)
{
    struct moe_strategy strategy = strategy_of("lru");
    struct moe_err err = {0};
    strategy.miss_precision = MOE_MISS_EMERGENCY;
    assert_ok(moe_strategy_settle(&strategy, &err), &err);
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 0, 2);
    const struct moe_need needs[] = {{5, 1, 0, false, false}};
    request(s, 0, needs, 1);
    assert_int_equal(entry(s, 0)->variant, 1); /* even the best expert */
    release_all(s);
    assert_int_equal(counts.low_precision, 1);
    moe_scheduler_close(s);
}

static void a_host_computes_what_is_missing(void **state)
{
    static const uint64_t frequency[N_KEYS] = {[3] = 5};
    static const uint32_t contents[] = {3};
    struct moe_strategy strategy = strategy_of("host");
    struct moe_scheduler *s = open_narrow(&strategy, 4, 0, 2, frequency, contents, 1, MAX_LOADS);
    pass(s, 0, 3, 4);
    assert_int_equal(counts.cache_hits, 1);
    assert_int_equal(counts.host_computed, 1);
    assert_int_equal(entry(s, 1)->kind, MOE_ENTRY_HOST);
    assert_int_equal(counts.loads, 1); /* the filling */
    const struct moe_need early[] = {{6, 1, 0, true, false}};
    request(s, 1, early, 1);
    assert_int_equal(entry(s, 0)->kind, MOE_ENTRY_PRECALCULATED);
    assert_int_equal(counts.precalculated, 1);
    moe_scheduler_close(s);
}

/* HOBBIT's cooperative mode (4 and 5.4): the host computes what is absent, an important expert at
 * the high precision, a less important one at the low one (fig. 6), an unimportant one not at all;
 * what is there is used, though the low one does not do for an important expert. */
static void a_host_computes_at_the_precision_of_the_score(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_err err = {0};
    assert_true(moe_strategy_set(&strategy, MOE_PART_ON_MISS, "compute-host,load-low", NULL));
    assert_ok(moe_strategy_settle(&strategy, &err), &err);
    assert_true(strategy.needs_host && strategy.needs_low);
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 4, 2);
    /* A prompt's are loaded (5.4: "only uses the GPU during the prefill stage"). */
    moe_scheduler_begin_tokens(s, 2, true, &counts);
    const struct moe_need prompt[] = {{0, 2, 0, false, false}, {1, 1, 0.7f, false, false}};
    request(s, 0, prompt, 2);
    assert_true(entry(s, 0)->kind == MOE_ENTRY_SLOT && entry(s, 0)->variant == 0);
    assert_true(entry(s, 1)->kind == MOE_ENTRY_SLOT && entry(s, 1)->variant == 1);
    release_all(s);
    assert_true(counts.misses == 3 && counts.low_precision == 1 && counts.loads == 2);
    counts = (struct moe_counts){0};
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    const struct moe_need absent[] = {
        {2, 1, 0, false, false}, {3, 1, 0.7f, false, false}, {4, 1, 0.95f, false, false}};
    request(s, 0, absent, 3);
    assert_true(entry(s, 0)->kind == MOE_ENTRY_HOST && entry(s, 0)->variant == 0);
    assert_true(entry(s, 1)->kind == MOE_ENTRY_HOST && entry(s, 1)->variant == 1);
    assert_int_equal(entry(s, 2)->kind, MOE_ENTRY_SKIPPED);
    assert_true(counts.host_computed == 2 && counts.low_precision == 1 && counts.skipped == 1);
    const struct moe_need there[] = {{1, 1, 0.7f, false, false}, {0, 1, 0.95f, false, false}};
    request(s, 0, there, 2);
    assert_true(entry(s, 0)->kind == MOE_ENTRY_SLOT && entry(s, 0)->variant == 1);
    assert_true(entry(s, 1)->kind == MOE_ENTRY_SLOT && entry(s, 1)->variant == 0);
    release_all(s);
    assert_true(counts.cache_hits == 2 && counts.low_precision == 2);
    const struct moe_need matters[] = {{1, 1, 0, false, false}};
    request(s, 0, matters, 1);
    assert_true(entry(s, 0)->kind == MOE_ENTRY_HOST && entry(s, 0)->variant == 0);
    assert_true(counts.host_computed == 3 && counts.low_precision == 2 && counts.loads == 0);
    moe_scheduler_close(s);
}

/* ---- Prompts ---- */

/* Fate fig. 6: loads fall by popularity; what is there comes first because it is ready. */
static void prompts_go_by_popularity(void **state)
{
    struct moe_strategy strategy = strategy_of("lru");
    strategy.prefill = MOE_PREFILL_POPULARITY;
    struct moe_scheduler *s = open_scheduler(&strategy, 16, 0, 8);
    pass(s, 0, 2, 4);
    moe_scheduler_begin_tokens(s, 20, true, &counts);
    const struct moe_need needs[] = {{1, 4, 0, false, false},
                                     {2, 2, 0, false, false},
                                     {3, 9, 0, false, false},
                                     {4, 1, 0, false, false},
                                     {5, 3, 0, false, false}};
    request(s, 0, needs, 5);
    const uint32_t *order = moe_scheduler_order(s);
    static const uint32_t want[] = {2, 0, 4, 1, 3}; /* experts 3, 1, 5, 2, 4 */
    assert_memory_equal(order, want, sizeof want);
    static const uint32_t loads[] = {3, 1, 5};
    assert_int_equal(channel.n, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(moe_store_slot(moe_scheduler_store(s), channel.loads[i].slot)->key %
                             N_EXPERTS,
                         loads[i]);
    release_all(s);
    moe_scheduler_close(s);
}

static void the_least_popular_quarter_comes_at_low_precision(void **state)
{
    struct moe_strategy strategy = strategy_of("fate");
    struct moe_err err = {0};
    strategy.prefill_falls_back = false;
    assert_ok(moe_strategy_settle(&strategy, &err), &err);
    struct moe_scheduler *s = open_scheduler(&strategy, 16, 0, 8);
    moe_scheduler_begin_tokens(s, 20, true, &counts);
    const struct moe_need needs[] = {{1, 4, 0, false, false},
                                     {2, 2, 0, false, false},
                                     {3, 9, 0, false, false},
                                     {4, 3, 0, false, false}};
    request(s, 0, needs, 4);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(entry(s, i)->variant, i == 1);
    release_all(s);
    assert_int_equal(counts.low_precision, 2); /* rows */
    /* By what was predicted, where something was: now it is expert 5, which has many rows. */
    float scores[N_EXPERTS] = {0, 9, 8, 7, 0, 6}, unimportance[N_EXPERTS] = {0};
    const struct moe_prediction p = {1, 20, scores, unimportance};
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    const struct moe_need next[] = {{2, 1, 0, false, false}, {5, 9, 0, false, false}};
    request(s, 1, next, 2);
    assert_int_equal(entry(s, 0)->variant, 0);
    assert_int_equal(entry(s, 1)->variant, 1);
    assert_int_equal(counts.prefetch_late, 10);
    release_all(s);
    moe_scheduler_close(s);
}

/* DAOP's algorithm 1: the busiest of the host changes places with the idlest of the device. */
static void a_prompt_swaps_experts(void **state)
{
    static const uint64_t frequency[N_KEYS];
    static const uint32_t contents[] = {0, 1, 2};
    struct moe_strategy strategy = strategy_of("daop");
    strategy.alloc = MOE_ALLOC_GLOBAL;
    struct moe_scheduler *s = open_narrow(&strategy, 3, 0, 2, frequency, contents, 3, MAX_LOADS);
    moe_scheduler_begin_tokens(s, 20, true, &counts);
    /* Host: 5 (10 rows), 6 (4). Device: 1 (0 rows), 2 (4), 0 (7). 5 replaces 1; 6 stays: 4 rows are
     * not more than 1.05 times 4. */
    const struct moe_need needs[] = {{0, 7, 0, false, false},
                                     {2, 4, 0, false, false},
                                     {5, 10, 0, false, false},
                                     {6, 4, 0, false, false}};
    request(s, 0, needs, 4);
    assert_int_equal(channel.n, 1);
    assert_int_equal(entry(s, 2)->kind, MOE_ENTRY_SLOT);
    assert_int_equal(entry(s, 3)->kind, MOE_ENTRY_HOST);
    release_all(s);
    assert_int_equal(counts.cache_hits, 11);
    assert_int_equal(counts.misses, 10);
    assert_int_equal(counts.host_computed, 4);
    uint8_t present[N_EXPERTS];
    static const uint8_t want[N_EXPERTS] = {1, 0, 1, 0, 0, 1, 0, 0};
    moe_scheduler_present(s, 0, present);
    assert_memory_equal(present, want, sizeof want);
    /* Not while decoding. */
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    pass(s, 0, 6, 7);
    assert_int_equal(counts.host_computed, 6);
    moe_scheduler_close(s);
}

static uint32_t n_cached(struct moe_scheduler *s)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < moe_store_n_slots(moe_scheduler_store(s)); i++)
        n += moe_store_slot(moe_scheduler_store(s), i)->state == MOE_SLOT_READY;
    return n;
}

/* Slots leave for blocks of the KV cache and for rows together, and come back when they are fewer.
 */
static void rows_and_blocks_borrow_together(void **state)
{
    struct moe_strategy strategy = strategy_of("lru");
    struct moe_err err = {0};
    loan = (struct moe_loan){.rows = 4,
                             .row_bytes = 100,
                             .own_blocks = 2,
                             .n_blocks = 9,
                             .block_positions = 10,
                             .block_bytes = 5000};
    const uint64_t slot = inventory.classes[0].slot_bytes;
    struct moe_scheduler *s = open_scheduler(&strategy, 8, 0, 2);
    for (uint32_t e = 0; e < N_EXPERTS; e += 2)
        pass(s, 0, e, e + 1);
    assert_int_equal(n_cached(s), 8);
    static const struct {
        uint32_t blocks, rows;
    } cases[] = {{2, 4}, {3, 1}, {3, 150}, {6, 4}, {6, 54}, {9, 4}, {0, 20}, {1, 1}};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const uint64_t bytes = moe_loan_bytes(&loan, cases[i].rows, cases[i].blocks);
        uint64_t lent = counts.lent;
        moe_scheduler_set_blocks(s, cases[i].blocks, false);
        assert_int_equal(counts.lent, lent); /* with the pass */
        moe_scheduler_begin_tokens(s, cases[i].rows, cases[i].rows > 4, &counts);
        for (uint32_t e = 0; e < N_EXPERTS; e += 2)
            pass(s, 0, e, e + 1);
        assert_int_equal(n_cached(s), 8 - (bytes + slot - 1) / slot);
        assert_true(moe_store_check(moe_scheduler_store(s), &err));
    }
    moe_scheduler_set_blocks(s, 9, true);
    assert_int_equal(n_cached(s), 8 - (7 * 5000 + slot - 1) / slot);
    assert_int_equal(moe_loan_blocks(&loan, 0), 0);
    assert_int_equal(moe_loan_blocks(&loan, 20), 2);
    assert_int_equal(moe_loan_blocks(&loan, 21), 3);
    assert_int_equal(moe_loan_blocks(&loan, 1000), 9);
    moe_scheduler_close(s);
    loan = (struct moe_loan){0};
}

enum { PROMPT = 40 };

/* Algorithm 1 as the paper prints it: the busiest of the host against the idlest of the device,
 * then the next of both, until either side has no more. */
static void plain_algorithm_1(const uint32_t *rows, uint8_t *on_device)
{
    bool paired[N_EXPERTS] = {false};
    uint8_t before[N_EXPERTS];
    memcpy(before, on_device, sizeof before);
    for (;;) {
        int busy = -1, idle = -1;
        for (int e = 0; e < N_EXPERTS; e++) {
            if (!paired[e] && !before[e] && (busy < 0 || rows[e] > rows[busy]))
                busy = e;
            if (!paired[e] && before[e] && (idle < 0 || rows[e] < rows[idle]))
                idle = e;
        }
        if (busy < 0 || idle < 0)
            return;
        paired[busy] = paired[idle] = true;
        if (rows[busy] * 100 > rows[idle] * 105) {
            on_device[busy] = 1;
            on_device[idle] = 0;
        }
    }
}

/* A pass of the prompt through one layer: tokens [first, first + n). */
static void prompt_pass(struct moe_scheduler *s, uint32_t layer, uint32_t chosen[][TOP_K],
                        uint32_t first, uint32_t n)
{
    struct moe_need needs[N_EXPERTS];
    uint32_t rows[N_EXPERTS] = {0}, n_needs = 0;
    for (uint32_t t = first; t < first + n; t++)
        for (int k = 0; k < TOP_K; k++)
            rows[chosen[t][k]]++;
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        if (rows[e])
            needs[n_needs++] = (struct moe_need){e, rows[e], 0, false, false};
    request(s, layer, needs, n_needs);
    release_all(s);
}

/* A prompt in passes of any size, over a channel that takes two loads at a time: afterwards the
 * experts are where algorithm 1 puts them by all of its tokens. What was decoded ends a prompt. */
static void a_prompt_in_parts_swaps_as_a_whole(void **state)
{
    static const uint64_t frequency[N_KEYS];
    static const uint32_t contents[] = {0, 1, 2, 8, 9, 10, 16, 17, 18, 24, 25, 26};
    struct moe_strategy strategy = strategy_of("daop");
    uint8_t want[N_LAYERS][N_EXPERTS], present[N_EXPERTS];
    uint64_t random = 5, n_moves = 0;
    strategy.alloc = MOE_ALLOC_PER_LAYER;
    struct moe_scheduler *s =
        open_narrow(&strategy, N_ITEMS(contents), 0, 2, frequency, contents, N_ITEMS(contents), 2);
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        moe_scheduler_present(s, layer, want[layer]);
    for (int prompt = 0; prompt < 200; prompt++) {
        uint32_t chosen[N_LAYERS][PROMPT][TOP_K], rows[N_LAYERS][N_EXPERTS] = {{0}};
        for (uint32_t layer = 0; layer < N_LAYERS; layer++)
            for (int t = 0; t < PROMPT; t++) {
                uint32_t a = (uint32_t)(test_random(&random) % N_EXPERTS);
                uint32_t b = (a + 1 + (uint32_t)(test_random(&random) % 2)) % N_EXPERTS;
                rows[layer][chosen[layer][t][0] = a]++;
                rows[layer][chosen[layer][t][1] = b]++;
            }
        for (uint32_t first = 0, n; first < PROMPT; first += n) {
            n = 1 + (uint32_t)(test_random(&random) % 12);
            n = n < PROMPT - first ? n : PROMPT - first;
            moe_scheduler_begin_tokens(s, n, true, &counts);
            for (uint32_t layer = 0; layer < N_LAYERS; layer++)
                prompt_pass(s, layer, chosen[layer], first, n);
        }
        for (uint32_t layer = 0; layer < N_LAYERS; layer++) {
            uint8_t before[N_EXPERTS];
            memcpy(before, want[layer], sizeof before);
            plain_algorithm_1(rows[layer], want[layer]);
            moe_scheduler_present(s, layer, present);
            assert_memory_equal(present, want[layer], sizeof present);
            n_moves += memcmp(before, present, sizeof before) != 0;
        }
        if (prompt % 2) {
            moe_scheduler_begin_tokens(s, 1, false, &counts);
            pass(s, 0, 6, 7);
        } else {
            moe_scheduler_begin_sequence(s);
        }
    }
    assert_true(n_moves > 400);
    moe_scheduler_close(s);
}

/* ---- Predictions ---- */

static void a_right_prediction_is_a_prefetch_hit_a_wrong_one_is_cancelled(void **state)
{
    struct moe_strategy strategy = strategy_of("fate");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    strategy.prefetch = (struct moe_prefetch_limits){.top_k = true};
    strategy.alloc = MOE_ALLOC_GLOBAL;
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 0, 4);
    pass(s, 0, 1, 2);
    struct moe_prediction p = predict(1, (const uint32_t[]){4, 6, 7}, 3, scores, unimportance);
    assert_int_equal(moe_scheduler_wants_prediction(s, 0), 1);
    assert_int_equal(moe_scheduler_wants_prediction(s, N_LAYERS - 1), 0);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    assert_int_equal(channel.n, 2);
    assert_int_equal(channel.loads[0].priority, MOE_LOAD_PREFETCH);
    deliver(&channel, 0);
    pass(s, 1, 4, 5);
    assert_int_equal(counts.prefetch_hits, 1);
    assert_int_equal(counts.misses, 3);
    assert_int_equal(channel.cancelled, 1);
    assert_int_equal(counts.predicted, 2);
    assert_int_equal(counts.predicted_right, 1);
    assert_int_equal(counts.prefetches, 2);
    assert_int_equal(counts.prefetches_used, 1);
    moe_scheduler_close(s);
}

/* What a prediction has begun to load at high precision does not delay what the router asks for: an
 * expert that low precision suffices for is loaded at that, an unimportant one is skipped, an
 * important one waits for what is under way; what has arrived is used. (HOBBIT 3.2 says so of
 * misses.) */
static void a_wrong_precision_under_way_delays_nothing(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    struct moe_scheduler *s = open_scheduler(&strategy, 8, 0, 4);
    static const struct {
        float unimportance;
        bool arrives;
        enum moe_entry_kind kind;
        uint32_t variant, late, hits, cancelled;
    } cases[] = {
        {0, false, MOE_ENTRY_SLOT, 0, 1, 0, 0},        {0.7f, false, MOE_ENTRY_SLOT, 1, 0, 0, 1},
        {0.95f, false, MOE_ENTRY_SKIPPED, 1, 0, 0, 1}, {0.7f, true, MOE_ENTRY_SLOT, 0, 0, 1, 0},
        {0.95f, true, MOE_ENTRY_SLOT, 0, 0, 1, 0},
    };
    for (uint32_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t expert = 2 + i, cancelled = channel.cancelled;
        moe_scheduler_begin_tokens(s, 1, false, &counts);
        counts = (struct moe_counts){0};
        pass(s, 0, 0, 1);
        struct moe_prediction p = predict(1, &expert, 1, scores, unimportance);
        assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
        assert_int_equal(channel.n, 1);
        if (cases[i].arrives)
            arrive(s, 0);
        const struct moe_need needs[] = {{expert, 1, cases[i].unimportance, false, false}};
        request(s, 1, needs, 1);
        assert_int_equal(entry(s, 0)->kind, cases[i].kind);
        assert_int_equal(entry(s, 0)->variant, cases[i].variant);
        assert_int_equal(channel.cancelled - cancelled, cases[i].cancelled);
        release_all(s);
        assert_int_equal(counts.prefetch_late, cases[i].late);
        assert_int_equal(counts.prefetch_hits, cases[i].hits);
    }
    moe_scheduler_close(s);
}

/* What a prediction is loading is not there yet, so that the host computes it and the load is given
 * up; one whose computation can begin is waited for, and so is every one of a prompt, which HOBBIT
 * has the device compute. */
static void a_host_waits_for_no_load(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    assert_true(moe_strategy_set(&strategy, MOE_PART_ON_MISS, "compute-host,load-low", NULL));
    assert_ok(moe_strategy_settle(&strategy, &err), &err);
    inventory.classes[0].n_segments = inventory.classes[1].n_segments = 2;
    struct moe_scheduler *s = open_scheduler(&strategy, 8, 0, 4);
    static const struct {
        bool prompt;
        uint32_t arrived; /* of two segments */
        enum moe_entry_kind kind;
        uint32_t hosted, late, hits, cancelled;
    } cases[] = {
        {false, 0, MOE_ENTRY_HOST, 1, 0, 0, 2},
        {false, 1, MOE_ENTRY_SLOT, 0, 1, 0, 0},
        {false, 2, MOE_ENTRY_SLOT, 0, 0, 1, 0},
        {true, 0, MOE_ENTRY_SLOT, 0, 1, 0, 0},
    };
    for (uint32_t i = 0; i < N_ITEMS(cases); i++) {
        uint32_t expert = 2 + i, cancelled = channel.cancelled;
        moe_scheduler_begin_tokens(s, 1, true, &counts);
        pass(s, 0, 0, 1);
        moe_scheduler_begin_tokens(s, 1, cases[i].prompt, &counts);
        counts = (struct moe_counts){0};
        pass(s, 0, 0, 1);
        struct moe_prediction p = predict(1, &expert, 1, scores, unimportance);
        assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
        assert_int_equal(channel.n, 2);
        for (uint32_t k = 0; k < cases[i].arrived; k++)
            arrive(s, 0);
        const struct moe_need needs[] = {{expert, 1, 0, false, false}};
        request(s, 1, needs, 1);
        assert_int_equal(entry(s, 0)->kind, cases[i].kind);
        assert_int_equal(channel.cancelled - cancelled, cases[i].cancelled);
        release_all(s);
        assert_int_equal(counts.host_computed, cases[i].hosted);
        assert_int_equal(counts.prefetch_late, cases[i].late);
        assert_int_equal(counts.prefetch_hits, cases[i].hits);
    }
    inventory.classes[0].n_segments = inventory.classes[1].n_segments = 1;
    moe_scheduler_close(s);
}

/* One that was given up and is still being written is loaded again when that is over. */
static void a_cancelled_load_may_be_wanted_again(void **state)
{
    struct moe_strategy strategy = strategy_of("fate");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    strategy.prefetch = (struct moe_prefetch_limits){.top_k = true};
    strategy.alloc = MOE_ALLOC_GLOBAL;
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 0, 4);
    struct moe_prediction p = predict(1, (const uint32_t[]){4, 6}, 2, scores, unimportance);
    pass(s, 0, 1, 2);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    channel.sticky = true;
    const struct moe_need other[] = {{0, 1, 0, false, false}};
    request(s, 1, other, 1);
    assert_int_equal(channel.cancelled, 2);
    const struct moe_need needs[] = {{4, 1, 0, false, false}};
    request(s, 1, needs, 1);
    assert_int_equal(entry(s, 0)->state, MOE_ENTRY_WANTS_SLOT);
    channel.sticky = false;
    deliver(&channel, 0); /* no longer useful */
    deliver(&channel, 0);
    assert_ok(moe_scheduler_poll(s, &err), &err);
    assert_int_equal(entry(s, 0)->state, MOE_ENTRY_HAS_SLOT);
    release_all(s);
    moe_scheduler_close(s);
}

/* Prefetches that a prediction of five absent experts of layer 1 begins, for a prompt or a token,
 * beside a full cache of eight and two working slots. */
static uint32_t staged_for(struct moe_scheduler *s, uint32_t n_rows)
{
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    for (uint32_t layer = 0; layer < N_LAYERS; layer++)
        pass(s, layer, 1, 2);
    moe_scheduler_begin_tokens(s, n_rows, n_rows > 1, &counts);
    pass(s, 0, 1, 2);
    struct moe_prediction p =
        predict(1, (const uint32_t[]){3, 4, 5, 6, 7}, 5, scores, unimportance);
    p.n_rows = n_rows;
    for (uint32_t e = 3; n_rows > 1 && e < N_EXPERTS; e++)
        unimportance[e] = 0;
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    return channel.n;
}

/* Staging goes on in slots of the cache, those of layers that have run: for a token as many as it
 * visits, for a prompt twice as many; decoding has them back. */
static void the_cache_stages_more(void **state)
{
    struct moe_strategy strategy = strategy_of("prefetch");
    struct moe_err err = {0};
    strategy.prefetch = (struct moe_prefetch_limits){.percentile = 25};
    struct moe_scheduler *s = open_scheduler(&strategy, 8, 0, 2);
    assert_int_equal(staged_for(s, 1), 4);
    moe_scheduler_close(s);
    s = open_scheduler(&strategy, 8, 0, 2);
    assert_int_equal(staged_for(s, 9), 4); /* two of layer 0, which has just run */
    for (uint32_t e = 1; e < 3; e++)
        for (uint32_t layer = 0; layer < N_LAYERS; layer++)
            assert_int_equal(moe_store_find(moe_scheduler_store(s), key_at(layer, e), 0) ==
                                 MOE_NO_SLOT,
                             layer == 0);
    arrive_all(s);
    assert_true(moe_store_check(moe_scheduler_store(s), &err));
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    pass(s, 0, 1, 2);
    uint64_t misses = counts.misses;
    pass(s, 0, 1, 2);
    pass(s, 2, 1, 2);
    assert_int_equal(counts.misses, misses); /* all eight are kept again */
    assert_true(moe_store_check(moe_scheduler_store(s), &err));
    moe_scheduler_close(s);
}

/* ---- Static routing ---- */

static const struct moe_need known_a[] = {{1, 1, 0, false, false}, {2, 1, 0.5f, false, false}};
static const struct moe_need known_b[] = {{5, 1, 0, false, false}, {6, 1, 0.5f, false, false}};

/* Layers 1 and 3 say at the start of a pass what they will ask for: it is loaded in their order
 * before any router, beside room for what a layer between misses, and nothing of it is a miss. */
static void known_experts_are_loaded_when_the_pass_begins(void **state)
{
    struct moe_err err = {0};
    inventory.is_static[1] = inventory.is_static[3] = 1;
    for (int predicts = 0; predicts < 2; predicts++) {
        struct moe_strategy strategy = strategy_of(predicts ? "edgemoe" : "lru");
        struct moe_scheduler *s = open_scheduler(&strategy, 2, 0, 6);
        assert_ok(moe_scheduler_known(s, 1, known_a, 2, &err), &err);
        assert_ok(moe_scheduler_known(s, 3, known_b, 2, &err), &err);
        assert_int_equal(channel.n, predicts ? 4 : 0);
        for (uint32_t i = 0; i < channel.n; i++) {
            const struct moe_slot *x =
                moe_store_slot(moe_scheduler_store(s), channel.loads[i].slot);
            assert_int_equal(x->key / N_EXPERTS, i < 2 ? 1 : 3);
            assert_int_equal(x->key % N_EXPERTS, (i < 2 ? 1 : 5) + i % 2);
        }
        pass(s, 0, 3, 4); /* both find a slot, and take none of these */
        assert_int_equal(counts.misses, 2);
        pass(s, 1, 1, 2);
        pass(s, 2, 3, 4);
        pass(s, 3, 5, 6);
        assert_int_equal(counts.misses, predicts ? 4 : 8);
        assert_int_equal(counts.prefetch_hits, predicts ? 4 : 0);
        assert_int_equal(counts.known, predicts ? 4 : 0);
        assert_int_equal(counts.known_prefetches, predicts ? 4 : 0);
        assert_int_equal(counts.prefetches, counts.known_prefetches);
        assert_int_equal(counts.prefetches_used, counts.prefetches);
        assert_int_equal(counts.predicted, 0);
        assert_int_equal(counts.prefetch_wasted_bytes, 0);
        moe_scheduler_close(s);
    }
    inventory.is_static[1] = inventory.is_static[3] = 0;
}

/* What is cached and will be asked for stays, whatever layers before miss; after its layer it is
 * like any other, and what is known of a pass is forgotten with the next. */
static void known_experts_stay_until_they_are_used(void **state)
{
    struct moe_strategy strategy = strategy_of("prefetch");
    struct moe_err err = {0};
    strategy.cache = &moe_policy_lru;
    inventory.is_static[3] = 1;
    struct moe_scheduler *s = open_scheduler(&strategy, 4, 0, 2);
    struct moe_store *store = moe_scheduler_store(s);
    pass(s, 3, 5, 6);
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    assert_ok(moe_scheduler_known(s, 3, known_b, 2, &err), &err);
    for (uint32_t layer = 0; layer < 3; layer++) {
        pass(s, layer, 1, 2);
        pass(s, layer, 3, 4);
    }
    uint64_t misses = counts.misses;
    pass(s, 3, 5, 6);
    assert_int_equal(counts.misses, misses);
    assert_int_equal(counts.known_prefetches, 0);
    /* Of a pass that ended early. */
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    assert_ok(moe_scheduler_known(s, 3, known_b, 2, &err), &err);
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    for (uint32_t layer = 0; layer < 3; layer++) {
        pass(s, layer, 1, 2);
        pass(s, layer, 3, 4);
    }
    assert_int_equal(moe_store_find(store, key_at(3, 5), 0), MOE_NO_SLOT);
    assert_int_equal(moe_store_find(store, key_at(3, 6), 0), MOE_NO_SLOT);
    assert_int_equal(counts.known, 2);
    moe_scheduler_close(s);
    inventory.is_static[3] = 0;
}

/* A staged expert that a miss has pushed out is asked for again. */
static void known_experts_that_were_pushed_out_come_again(void **state)
{
    struct moe_strategy strategy = strategy_of("edgemoe");
    struct moe_err err = {0};
    inventory.is_static[3] = 1;
    struct moe_scheduler *s = open_scheduler(&strategy, 0, 0, 4); /* nothing is kept */
    const struct moe_need four[] = {{1, 1, 0, false, false},
                                    {2, 1, 0, false, false},
                                    {3, 1, 0, false, false},
                                    {4, 1, 0, false, false}};
    assert_ok(moe_scheduler_known(s, 3, known_b, 2, &err), &err);
    assert_int_equal(channel.n, 2);
    arrive_all(s);
    request(s, 0, four, 4);
    release_all(s);
    pass(s, 1, 1, 2);
    pass(s, 3, 5, 6);
    assert_int_equal(counts.prefetch_hits, 2);
    assert_true(counts.known_prefetches > 2);
    moe_scheduler_close(s);
    inventory.is_static[3] = 0;
}

/* STI: all of a layer is loaded, in order, what is chosen is used, and the next layer follows; with
 * few slots the rest passes through them. */
static void layers_are_streamed_whole(void **state)
{
    struct moe_strategy strategy = strategy_of("sti");
    struct moe_err err = {0};
    for (uint32_t working = 3; working <= 2 * N_EXPERTS; working++) {
        struct moe_scheduler *s = open_scheduler(&strategy, 0, 0, working);
        for (uint32_t token = 0; token < 3; token++) {
            moe_scheduler_begin_tokens(s, 1, false, &counts);
            for (uint32_t layer = 0; layer < N_LAYERS; layer++)
                pass(s, layer, (layer + token) % N_EXPERTS, (layer + token + 3) % N_EXPERTS);
            arrive_all(s);
            assert_true(moe_store_check(moe_scheduler_store(s), &err));
            assert_int_equal(counts.loads, (token + 1) * N_KEYS);
        }
        assert_int_equal(counts.activations, 3 * 2 * N_LAYERS);
        assert_int_equal(counts.misses + counts.prefetch_hits + counts.prefetch_late,
                         counts.activations);
        assert_true(working < N_EXPERTS || counts.prefetch_hits > 0);
        moe_scheduler_close(s);
    }
}

/* EdgeMoE III-C2 where the first two layers are an encoder's: the buffer begins with its experts in
 * their order; a source loads what is absent once, in the order of the request, into slots of the
 * encoder's; nothing is predicted for the decoder, and the source's rows are not its tokens. */
static void an_encoder_loads_once_for_a_source(void **state)
{
    struct moe_strategy strategy = strategy_of("edgemoe");
    static const uint64_t frequency[N_KEYS] = {[2 * N_EXPERTS + 5] = 3, [3 * N_EXPERTS + 6] = 4};
    struct moe_need needs[N_EXPERTS];
    inventory.n_encoder = 2;
    struct moe_scheduler *s = open_narrow(&strategy, 18, 0, 2, frequency, NULL, 0, MAX_LOADS);
    struct moe_store *store = moe_scheduler_store(s);
    for (uint32_t e = 0; e < 2 * N_EXPERTS; e++)
        assert_int_not_equal(moe_store_find(store, key_at(e / N_EXPERTS, e % N_EXPERTS), 0),
                             MOE_NO_SLOT);
    assert_int_not_equal(moe_store_find(store, key_at(2, 5), 0), MOE_NO_SLOT);
    assert_int_not_equal(moe_store_find(store, key_at(3, 6), 0), MOE_NO_SLOT);
    moe_scheduler_close(s);

    s = open_narrow(&strategy, 10, 0, 2, frequency, NULL, 0, MAX_LOADS);
    store = moe_scheduler_store(s);
    moe_scheduler_begin_tokens(s, 40, true, &counts);
    counts = (struct moe_counts){0};
    for (uint32_t e = 0; e < N_EXPERTS; e++)
        needs[e] = (struct moe_need){e, 5, 0, false, false};
    request(s, 0, needs, N_EXPERTS);
    assert_int_equal(counts.cache_hits, 40);
    assert_int_equal(moe_scheduler_wants_prediction(s, 0), 1);
    release_all(s);
    request(s, 1, needs, N_EXPERTS);
    assert_int_equal(counts.cache_hits, 40 + 2 * 5);
    assert_int_equal(moe_scheduler_wants_prediction(s, 1), 0);
    for (uint32_t i = 0; i < channel.n; i++)
        assert_int_equal(moe_store_slot(store, channel.loads[i].slot)->key % N_EXPERTS, 2 + i);
    release_all(s);
    assert_int_equal(counts.loads, N_EXPERTS - 2);
    assert_int_equal(moe_scheduler_usage(s)->token, 1); /* begun with the fixture */
    moe_scheduler_begin_tokens(s, 1, false, &counts);
    pass(s, 2, 5, 6);
    pass(s, 3, 5, 6);
    pass(s, 2, 5, 6);
    assert_int_equal(moe_scheduler_wants_prediction(s, 3), 0);
    assert_int_equal(counts.misses - (N_EXPERTS - 2) * 5, 4); /* the encoder's left, not these */
    moe_scheduler_close(s);
    inventory.n_encoder = 0;
}

/* HOBBIT fig. 8: layer 3 is looked at only because everything predicted for layer 2 is there. */
static void depth_goes_on_while_everything_is_present(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_err err = {0};
    float scores[2][N_EXPERTS], unimportance[2][N_EXPERTS];
    struct moe_scheduler *s = open_scheduler(&strategy, 8, 4, 4);
    pass(s, 2, 1, 2);
    assert_int_equal(moe_scheduler_wants_prediction(s, 1), 2);
    const struct moe_prediction p[] = {
        predict(2, (const uint32_t[]){1, 2}, 2, scores[0], unimportance[0]),
        predict(3, (const uint32_t[]){5, 6}, 2, scores[1], unimportance[1])};
    pass(s, 1, 3, 4);
    assert_ok(moe_scheduler_predicted(s, p, 2, &err), &err);
    assert_int_equal(channel.n, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(
            moe_store_slot(moe_scheduler_store(s), channel.loads[i].slot)->key / N_EXPERTS, 3);
    arrive_all(s);
    const struct moe_prediction q[] = {
        predict(2, (const uint32_t[]){1, 7}, 2, scores[0], unimportance[0]), p[1]};
    assert_ok(moe_scheduler_predicted(s, q, 2, &err), &err);
    assert_int_equal(channel.n, 1); /* 7 of layer 2; layer 3 has to wait */
    moe_scheduler_close(s);
}

/* HOBBIT 3.3: predicted experts are masked, and come at the precision that their score deserves. */
static void predicted_experts_are_protected_and_graded(void **state)
{
    struct moe_strategy strategy = strategy_of("hobbit");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    struct moe_scheduler *s = open_scheduler(&strategy, 2, 2, 4);
    pass(s, 1, 1, 2);
    struct moe_prediction p = predict(1, (const uint32_t[]){1, 2}, 2, scores, unimportance);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    pass(s, 0, 3, 4); /* does not push layer 1's out, though they are older */
    pass(s, 1, 1, 2);
    assert_int_equal(counts.cache_hits, 2);
    p = predict(2, (const uint32_t[]){5, 6}, 2, scores, unimportance);
    unimportance[6] = 0.7f;
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    assert_int_equal(channel.n, 2);
    assert_int_equal(moe_store_slot(moe_scheduler_store(s), channel.loads[0].slot)->variant, 0);
    assert_int_equal(moe_store_slot(moe_scheduler_store(s), channel.loads[1].slot)->variant, 1);
    moe_scheduler_close(s);
}

/* EdgeMoE: one after the other, by falling probability, until the router has chosen. */
static void one_load_at_a_time_until_the_router(void **state)
{
    struct moe_strategy strategy = strategy_of("edgemoe");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    struct moe_scheduler *s = open_scheduler(&strategy, 2, 0, 4);
    pass(s, 0, 1, 2);
    struct moe_prediction p = predict(1, (const uint32_t[]){7, 3, 5}, 3, scores, unimportance);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    static const uint32_t want[] = {7, 3};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(channel.n, 1);
        uint32_t slot = channel.loads[0].slot;
        assert_int_equal(moe_store_slot(moe_scheduler_store(s), slot)->key % N_EXPERTS, want[i]);
        arrive(s, 0);
    }
    assert_int_equal(channel.n, 1); /* 5 is on its way when the router has chosen */
    pass(s, 1, 3, 7);
    assert_int_equal(counts.prefetch_hits, 2);
    assert_int_equal(counts.prefetches, 3);
    assert_int_equal(channel.cancelled, 1);
    assert_int_equal(channel.n, 0);
    moe_scheduler_close(s);
}

/* Fate 4.3: n = T / t_expert loads at most; by count, too. */
static void loads_are_limited_by_slack_and_count(void **state)
{
    struct moe_strategy strategy = strategy_of("fate");
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    strategy.prefetch = (struct moe_prefetch_limits){.percentile = 25, .slack = true};
    strategy.alloc = MOE_ALLOC_GLOBAL;
    struct moe_scheduler *s = open_scheduler(&strategy, 2, 0, 8);
    pass(s, 0, 1, 2);
    struct moe_prediction p = predict(1, (const uint32_t[]){7, 3, 5, 4}, 4, scores, unimportance);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    assert_int_equal(channel.n, 1); /* nothing is known of the times yet */
    arrive_all(s);
    pass(s, 1, 0, 1);
    pass(s, 0, 1, 2);
    /* Fate 3.2: two of 6 ms in 13 ms. */
    assert_true(channel.limit == 0);
    moe_scheduler_end_tokens(s, true, 0.013 * N_LAYERS, 0, 0.006, 1);
    /* Half of a layer's time, as bytes of loads at high precision (in pages). */
    assert_true(fabs(channel.limit - 0.5 * 0.013 / 0.006 * 16384) < 1e-6);
    p = predict(1, (const uint32_t[]){4, 3, 5, 6}, 4, scores, unimportance);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    assert_int_equal(channel.n, 2);
    moe_scheduler_close(s);
}

/* A decoded token whose layers compute for `layer` seconds and whose one load takes `load`; how
 * many loads a prediction of four begins then. */
static uint32_t prefetched_after(struct moe_scheduler *s, double layer, double load)
{
    struct moe_err err = {0};
    float scores[N_EXPERTS], unimportance[N_EXPERTS];
    arrive_all(s);
    pass(s, 1, 0, 1); /* nothing that is staged stays */
    pass(s, 0, 1, 2);
    moe_scheduler_end_tokens(s, true, layer * N_LAYERS, 0, load, 1);
    struct moe_prediction p = predict(1, (const uint32_t[]){4, 3, 5, 6}, 4, scores, unimportance);
    assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
    return channel.n;
}

/* n = T / t_expert is 0 where a load takes longer than a layer, and does not stay 0: demand loads
 * measure on. */
static void slow_loads_are_not_prefetched(void **state)
{
    struct moe_strategy strategy = strategy_of("fate");
    strategy.prefetch.percentile = 25;
    strategy.alloc = MOE_ALLOC_GLOBAL;
    assert_true(strategy.prefetch.slack && strategy.prefetch.slack_least == 0);
    for (uint32_t least = 0; least < 2; least++) {
        strategy.prefetch.slack_least = least;
        struct moe_scheduler *s = open_scheduler(&strategy, 2, 0, 8);
        assert_int_equal(prefetched_after(s, 5e-3, 6e-3), least);
        assert_int_equal(prefetched_after(s, 5e-3, 6e-3), least);
        uint32_t n = 0, tokens = 0;
        while (n <= least && ++tokens < 100) /* the link has become fast; the mean follows */
            n = prefetched_after(s, 5e-3, 1e-3);
        assert_in_range(tokens, 1, 10);
        moe_scheduler_close(s);
    }
}

/* ---- Everything at once ---- */

/* Random strategies, requests, predictions, arrivals in any order: counts add up, the store's
 * invariants hold, and every request comes to its end. */
static void any_strategy_survives_any_order(void **state)
{
    static const uint64_t frequency[N_KEYS];
    static const uint32_t nothing[1];
    struct moe_err err = {0};
    uint64_t random = 12345, total = 0;
    for (int round = 0; round < 200; round++) {
        const char *name;
        int n_names = 0;
        while (moe_strategy_name_at(n_names))
            n_names++;
        do
            name = moe_strategy_name_at((int)(test_random(&random) % (uint64_t)n_names));
        while (strcmp(name, "resident") == 0);
        struct moe_strategy strategy = strategy_of(name);
        strategy.prefill_falls_back = false;
        assert_ok(moe_strategy_settle(&strategy, &err), &err);
        uint32_t high = (uint32_t)(test_random(&random) % 12);
        uint32_t low = (uint32_t)(test_random(&random) % 6);
        uint32_t working = 1 + (uint32_t)(test_random(&random) % 5);
        uint32_t room = 1 + (uint32_t)(test_random(&random) % 8);
        if (test_random(&random) % 2)
            strategy.alloc = MOE_ALLOC_GLOBAL;
        struct moe_scheduler *s =
            open_narrow(&strategy, high, low, working, frequency, nothing, 0, room);
        for (int step = 0; step < 60; step++) {
            uint32_t layer = (uint32_t)step % N_LAYERS, n = 0;
            bool prefill = step / N_LAYERS % 4 == 0;
            struct moe_need needs[N_EXPERTS];
            float scores[N_EXPERTS], unimportance[N_EXPERTS];
            if (layer == 0)
                moe_scheduler_begin_tokens(s, prefill ? 9 : 1, prefill, &counts);
            for (uint32_t e = 0; e < N_EXPERTS; e++) {
                scores[e] = (float)(test_random(&random) % 100) / 100;
                unimportance[e] = (float)(test_random(&random) % 100) / 50;
                if (test_random(&random) % 3 == 0)
                    needs[n++] =
                        (struct moe_need){e, prefill ? 1 + (uint32_t)(test_random(&random) % 9) : 1,
                                          (float)(test_random(&random) % 100) / 99, false, false};
            }
            channel.sticky = test_random(&random) % 4 == 0;
            request(s, layer, needs, n);
            for (uint32_t i = 0; i < n; i++)
                total += needs[i].n_rows;
            const struct moe_prediction p = {layer + 1, prefill ? 9 : 1, scores, unimportance};
            if (layer + 1 < N_LAYERS && moe_scheduler_wants_prediction(s, layer))
                assert_ok(moe_scheduler_predicted(s, &p, 1, &err), &err);
            while (n_open(s) > 0) {
                uint32_t which[N_EXPERTS], n_ready;
                assert_true(channel.n <= room);
                if (channel.n)
                    arrive(s, (uint32_t)(test_random(&random) % channel.n));
                if (!moe_store_check(moe_scheduler_store(s), &err))
                    fail_msg("%s: %s", name, err.text);
                if (test_random(&random) % 2)
                    continue;
                uint32_t most = 1 + (uint32_t)(test_random(&random) % 3);
                assert_ok(moe_scheduler_next(s, most, which, &n_ready, &err), &err);
                assert_true(n_ready > 0 && n_ready <= most);
                for (uint32_t i = n_ready; i-- > 0;) {
                    const struct moe_entry *e = entry(s, which[i]);
                    assert_ok(moe_scheduler_complete(s, which[i], &err), &err);
                    assert_int_equal(moe_store_slot(moe_scheduler_store(s), e->slot)->key %
                                         N_EXPERTS,
                                     needs[which[i]].expert);
                    moe_scheduler_release(s, which[i]);
                }
            }
        }
        assert_int_equal(counts.activations, counts.cache_hits + counts.prefetch_hits +
                                                 counts.prefetch_late + counts.misses +
                                                 counts.host_computed + counts.skipped);
        moe_scheduler_close(s);
    }
    assert_true(total > 50000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(visits_share_experts),
        cmocka_unit_test(hits_and_misses_add_up),
        cmocka_unit_test(hobbit_s_three_classes_are_for_misses_alone),
        cmocka_unit_test(a_skipped_expert_is_not_used),
        cmocka_unit_test(an_emergency_takes_what_is_quick),
        cmocka_unit_test(a_host_computes_what_is_missing),
        cmocka_unit_test(a_host_computes_at_the_precision_of_the_score),
        cmocka_unit_test(prompts_go_by_popularity),
        cmocka_unit_test(the_least_popular_quarter_comes_at_low_precision),
        cmocka_unit_test(a_prompt_swaps_experts),
        cmocka_unit_test(a_prompt_in_parts_swaps_as_a_whole),
        cmocka_unit_test(rows_and_blocks_borrow_together),
        cmocka_unit_test(a_right_prediction_is_a_prefetch_hit_a_wrong_one_is_cancelled),
        cmocka_unit_test(a_wrong_precision_under_way_delays_nothing),
        cmocka_unit_test(a_host_waits_for_no_load),
        cmocka_unit_test(a_cancelled_load_may_be_wanted_again),
        cmocka_unit_test(the_cache_stages_more),
        cmocka_unit_test(depth_goes_on_while_everything_is_present),
        cmocka_unit_test(an_encoder_loads_once_for_a_source),
        cmocka_unit_test(known_experts_are_loaded_when_the_pass_begins),
        cmocka_unit_test(known_experts_stay_until_they_are_used),
        cmocka_unit_test(known_experts_that_were_pushed_out_come_again),
        cmocka_unit_test(layers_are_streamed_whole),
        cmocka_unit_test(predicted_experts_are_protected_and_graded),
        cmocka_unit_test(one_load_at_a_time_until_the_router),
        cmocka_unit_test(loads_are_limited_by_slack_and_count),
        cmocka_unit_test(slow_loads_are_not_prefetched),
        cmocka_unit_test(any_strategy_survives_any_order),
    };
    return cmocka_run_group_tests_name("scheduler", tests, open_inventory, release_inventory);
}
