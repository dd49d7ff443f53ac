/*
 * The simulator's clock against examples worked by hand, what its figures always add up to, and
 * what it refuses. That it decides as moe-run does is test_lockstep.c's.
 */
#include "sched/share.h"
#include "script_fixture.h"

#include <math.h>

#include "plan/optimal.h"

/* An expert takes a second, in pieces of a quarter. */
enum { EXPERT = 64 * 4096, PIECE = EXPERT / 4 };

static const struct moe_line none = {0};

static struct moe_line constant(double seconds)
{
    return (struct moe_line){2, {1, 2}, {seconds, seconds}};
}

/* A layer: route 0.5, beside 0.25, an expert 0.75, combine 0.125; the head 0.5. */
static struct moe_pace round_pace(void)
{
    struct moe_pace p = {.n_variants = 2, .head = 0.5, .load_rate = EXPERT};
    p.pieces[MOE_PIECE_ROUTE] = constant(0.5);
    p.pieces[MOE_PIECE_BESIDE] = constant(0.25);
    p.pieces[MOE_PIECE_COMBINE] = constant(0.125);
    p.experts[0] = p.experts[1] = constant(0.75);
    return p;
}

/* ---- Running ---- */

struct setting {
    const char *strategy;
    uint32_t n_cache, n_working, batch;
    struct moe_pace pace;
    struct moe_excerpt excerpt;
    uint64_t host_bytes;
};

/* What simulations share; NULL: nothing. */
static struct moe_tapes *tapes;

static int try_run(const struct script *script, const struct setting *set,
                   struct moe_simulated *out, struct moe_simulated_layer *layers,
                   struct moe_err *err)
{
    struct moe_inventory inventory;
    struct moe_pools pools = {.n_classes = 2};
    script_inventory(&inventory, script, EXPERT);
    const struct moe_strategy strategy = script_strategy(set->strategy, script->n_layers);
    for (uint32_t c = 0; c < 2; c++)
        pools.pools[c] = (struct moe_pool_params){c ? 0 : set->n_cache, set->n_working, NULL};
    pools.n_slots = set->n_cache + 2 * set->n_working;
    struct moe_trace *trace = script_trace(script);
    const struct moe_simulation in = {
        .trace = trace,
        .excerpt = set->excerpt,
        .scheduler = {.inventory = &inventory,
                      .strategy = &strategy,
                      .high = 0,
                      .low = 1,
                      .pools = &pools,
                      .seed = 7},
        .pace = &set->pace,
        .batch = set->batch ? set->batch : 1,
        .piece_bytes = PIECE,
        .host_bytes = set->host_bytes,
        .tapes = tapes,
    };
    int status = moe_simulate(&in, out, layers, err);
    moe_trace_close(trace);
    moe_inventory_release(&inventory);
    return status;
}

static struct moe_simulated run(const struct script *script, const struct setting *set)
{
    struct moe_simulated out;
    struct moe_err err = {0};
    assert_ok(try_run(script, set, &out, NULL, &err), &err);
    return out;
}

static void equals(const char *what, double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-9))
        fail_msg("%s: %.12g, by hand %.12g", what, got, expected);
}

/* Seconds and bytes (in experts) of a phase. */
static void check(const struct moe_simulated_phase *p, double seconds, double stall, double link,
                  double experts)
{
    equals("seconds", p->seconds, seconds);
    equals("stall", p->stall_seconds, stall);
    equals("link", p->link_seconds, link);
    equals("compute", p->compute_seconds, seconds - stall);
    equals("bytes", (double)p->bytes / EXPERT, experts);
}

/* ---- By hand ---- */

/* Each token chooses expert 0 in each layer, or 0 and 1. */
static struct script constant_script(uint32_t n_layers, uint32_t top_k, uint32_t n)
{
    struct script s = {.n_layers = n_layers, .n_experts = 4, .top_k = top_k, .n = n};
    for (uint32_t t = 0; t < n; t++) {
        s.tokens[t].first = t == 0;
        for (uint32_t l = 0; l < n_layers; l++)
            for (uint32_t i = 0; i < top_k; i++)
                s.tokens[t].chosen[l][i] = s.tokens[t].predicted[l][i] = i;
    }
    return s;
}

/* The load begins when the router has chosen and takes 1; the shared expert hides 0.25 of it. */
static void on_demand(void **state)
{
    const struct script s = constant_script(2, 1, 3);
    const struct setting set = {"ondemand", 0, 1, 1, round_pace(), {0}, 0};
    const struct moe_simulated out = run(&s, &set);
    check(&out.decode, 3 * (2 * 2.375 + 0.5), 3 * 2 * 0.75, 6, 6);
    assert_int_equal(out.decode.tokens, 3);
    assert_int_equal(out.decode.experts.misses, 6);
    assert_int_equal(out.token_layers, 6);
    assert_true(out.prefill.tokens == 0 && out.prefill.seconds == 0);
}

/* Each of a load's four pieces takes a sixteenth more, each group of experts an eighth. */
static void pieces_and_groups_have_costs_of_their_own(void **state)
{
    const struct script s = constant_script(2, 1, 3);
    struct setting set = {"ondemand", 0, 1, 1, round_pace(), {0}, 0};
    set.pace.loads.piece = 0.0625;
    set.pace.joint = 0.125;
    const struct moe_simulated out = run(&s, &set);
    check(&out.decode, 3 * (2 * 2.75 + 0.5), 3 * 2 * 1.0, 3 * 2 * 1.25, 6);
    equals("a layer", moe_pace_layer(&set.pace, 0, 1), 0.5 + 0.25 + 0.125 + 0.125 + 0.75);
}

/* The host has one place, which holds expert 0 of layer 0 at first; then every load takes the place
 * of the other layer's: 2 seconds from storage, and the 1 over the link. */
static void two_links_in_series(void **state)
{
    const struct script s = constant_script(2, 1, 3);
    struct setting set = {"ondemand", 0, 1, 1, round_pace(), {0}, 0};
    set.pace.storage_rate = EXPERT / 2.0;
    struct moe_simulated out = run(&s, &set);
    check(&out.decode, 3 * (2 * 2.375 + 0.5) + 5 * 2, 0.75 + 5 * 2.75, 6, 6);
    equals("storage", out.decode.storage_seconds, 10);
    equals("from storage", (double)out.decode.storage_bytes / EXPERT, 5);
    assert_int_equal(out.decode.host_hits, 1);
    assert_int_equal(out.decode.disk_loads, 5);
    set.pace.storage_piece_seconds = 0.25;
    out = run(&s, &set);
    equals("storage, by pieces", out.decode.storage_seconds, 15);
    set.host_bytes = 2 * EXPERT; /* a place for each layer's first expert: all that is used */
    out = run(&s, &set);
    check(&out.decode, 3 * (2 * 2.375 + 0.5), 3 * 2 * 0.75, 6, 6);
    assert_int_equal(out.decode.host_hits, 6);
    assert_true(out.decode.storage_bytes == 0);
    set.host_bytes = 8 * EXPERT; /* all */
    out = run(&s, &set);
    check(&out.decode, 3 * (2 * 2.375 + 0.5), 3 * 2 * 0.75, 6, 6);
}

/* While one expert crosses the link the next is read: two of a layer take 2 + 2 and 1, not 6. */
static void links_in_series_overlap(void **state)
{
    struct script s = constant_script(1, 2, 1);
    for (uint32_t i = 0; i < 2; i++)
        s.tokens[0].chosen[0][i] = s.tokens[0].predicted[0][i] = i + 2;
    struct setting set = {"ondemand", 0, 2, 1, round_pace(), {0}, 0};
    set.pace.storage_rate = EXPERT / 2.0;
    const struct moe_simulated out = run(&s, &set);
    /* Chosen at 0.5; the first is there at 3.5 and computed at 4.25, the second at 5.5. */
    check(&out.decode, 5.5 + 0.75 + 0.125 + 0.5, 2.75 + 1.25, 2, 2);
    equals("storage", out.decode.storage_seconds, 4);
}

/* Three rows of a source, in one pass whatever the batch, through two layers and no head; then two
 * tokens of its target through the two others. With all cached the encoder's load once for the
 * source, and predictions are made in each stack but for its first layer. */
static void a_source_goes_through_the_encoder_alone(void **state)
{
    struct script s = constant_script(4, 1, 5);
    s.n_encoder = 2;
    s.keep = 2;
    for (uint32_t t = 0; t < 3; t++)
        s.tokens[t].prompt = true;
    const struct setting set = {"ondemand", 0, 1, 1, round_pace(), {0}, 0};
    const struct moe_simulated out = run(&s, &set);
    check(&out.prefill, 2 * 2.375, 2 * 0.75, 2, 2);
    check(&out.decode, 2 * (2 * 2.375 + 0.5), 2 * 2 * 0.75, 4, 4);
    assert_int_equal(out.prefill.experts.activations, 6);
    assert_int_equal(out.token_layers, 3 * 2 + 2 * 2);
    const struct setting ahead = {"prefetch", 4, 2, 1, round_pace(), {0}, 0};
    const struct moe_simulated cached = run(&s, &ahead);
    assert_int_equal(cached.prefill.experts.loads, 2);
    assert_int_equal(cached.decode.experts.loads, 2);
    assert_int_equal(cached.prefill.experts.predicted, 3);
    assert_int_equal(cached.decode.experts.predicted, 2);
    assert_int_equal(cached.decode.experts.cache_hits, 2);
}

/* "From the decoder's layer n on", whatever layers an encoder has before. */
static void layers_to_pre_calculate_are_the_decoder_s(void **state)
{
    struct moe_pace pace = round_pace();
    struct script s = constant_script(4, 1, 6);
    s.n_encoder = 2;
    s.keep = 2;
    pace.host_slowdown = 2;
    for (uint32_t t = 0; t < 6; t++) {
        s.tokens[t].prompt = t < 2;
        s.tokens[t].predicted[3][0] = 1;
    }
    for (uint32_t from = 1; from <= 2; from++) {
        char words[80];
        snprintf(words, sizeof words, "daop+init=layerwise+alloc=global+precalculate-from=%u",
                 from);
        const struct setting set = {words, 0, 1, 1, pace, {0}, 0};
        const struct moe_simulated out = run(&s, &set);
        assert_int_equal(out.decode.experts.precalculated, from == 1 ? 4 : 0);
    }
}

/* Two loads: one arrives at 1, is computed until 1.75; the other at 2. */
static void the_second_load_hides_behind_the_first_expert(void **state)
{
    const struct script s = constant_script(1, 2, 1);
    const struct setting set = {"ondemand", 0, 2, 1, round_pace(), {0}, 0};
    const struct moe_simulated out = run(&s, &set);
    check(&out.decode, 0.5 + 2.75 + 0.125 + 0.5, 0.75 + 0.25, 2, 2);
}

/* With room for one the second load waits for the first expert: from 1.75 to 2.75. */
static void a_slot_is_free_when_its_expert_is_computed(void **state)
{
    const struct script s = constant_script(1, 2, 1);
    const struct setting set = {"ondemand", 0, 1, 1, round_pace(), {0}, 0};
    const struct moe_simulated out = run(&s, &set);
    check(&out.decode, 0.5 + 3.5 + 0.125 + 0.5, 0.75 + 1, 2, 2);
}

static void what_is_kept_does_not_stall(void **state)
{
    const struct script s = constant_script(2, 2, 2);
    const struct setting set = {"lru", 8, 2, 1, round_pace(), {0}, 0};
    struct moe_simulated out = run(&s, &set);
    /* The first token as above twice, the second computes 2 * (0.5 + 0.25 + 2 * 0.75 + 0.125). */
    check(&out.decode, (2 * 3.375 + 0.5) + (2 * 2.375 + 0.5), 2, 4, 4);
    assert_int_equal(out.decode.experts.cache_hits, 4);
    assert_int_equal(out.decode.experts.misses, 4);
    /* Filled before the first token: loading that costs no time that is counted. */
    const struct setting filled = {"lru+init=layerwise", 8, 2, 1, round_pace(), {0}, 0};
    out = run(&s, &filled);
    check(&out.decode, 2 * (2 * 2.375 + 0.5), 0, 0, 0);
    assert_int_equal(out.decode.experts.cache_hits, 8);
}

/* A load of 1: the next layer's is on its way from 1.5 to 2.5 while this one computes; its router
 * has chosen at 2.875. */
static void a_prefetch_hides(void **state)
{
    struct script s = constant_script(2, 1, 1);
    s.keep = 4;
    struct setting set = {"prefetch+prefetch=count:1", 4, 4, 1, round_pace(), {0}, 0};
    struct moe_simulated out = run(&s, &set);
    check(&out.decode, 2.375 + 1.625 + 0.5, 0.75, 2, 2);
    assert_int_equal(out.decode.experts.prefetch_hits, 1);
    assert_int_equal(out.decode.experts.prefetches_used, 1);
    /* Predicting takes its time too, once: after the last layer there is none. */
    set.pace.predict = 0.0625;
    out = run(&s, &set);
    check(&out.decode, 2.375 + 1.625 + 0.5, 0.75 - 0.0625, 2, 2);
    /* A load of 2: under way from 2.5 to 4.5, the router has chosen at 3.875, the shared expert is
     * done at 4.125. */
    set.pace.predict = 0;
    set.pace.load_rate = EXPERT / 2.0;
    out = run(&s, &set);
    check(&out.decode, 4.5 + 0.75 + 0.125 + 0.5, 1.75 + 0.375, 4, 2);
    assert_int_equal(out.decode.experts.prefetch_late, 1);
}

/* A token that misses in each of two layers of 2.5, loads of 1: each is asked for, waited for, and
 * taken; the second token finds both. */
static void loads_take_the_processor_too(void **state)
{
    struct script s = constant_script(2, 1, 2);
    struct setting set = {"lru", 4, 1, 1, round_pace(), {0}, 0};
    const struct moe_simulated before = run(&s, &set);
    set.pace.loads = (struct moe_link_costs){.latency = 0.25, .wake = 0.5};
    set.pace.loads.handling = 0.0625;
    struct moe_simulated out = run(&s, &set);
    double loads = (double)out.decode.experts.loads;
    equals("loads", loads, 2);
    equals("handling", out.decode.handling_seconds, loads * 0.0625);
    /* The link begins at once: what the thread handles, it need not wait. */
    equals("stall", out.decode.stall_seconds,
           before.decode.stall_seconds + loads * (0.25 - 0.0625));
    equals("compute", out.decode.compute_seconds, before.decode.compute_seconds + loads * 0.5);
    equals("seconds", out.decode.seconds, before.decode.seconds + loads * (0.25 + 0.5));
    /* A layer's attention: 0.125 for each position; tokens at 0 and 1 see 1 and 2. */
    set.pace.loads = (struct moe_link_costs){0};
    set.pace.attend = 0.125;
    out = run(&s, &set);
    equals("positions", out.decode.positions, 3);
    equals("attention", out.decode.compute_seconds, before.decode.compute_seconds + 2 * 3 * 0.125);
}

/* As before, but for the wrong expert: given up at 3.875, its piece goes on until 4. */
static void a_wrong_prefetch_delays_by_no_more_than_a_piece(void **state)
{
    struct script s = constant_script(2, 1, 1);
    s.keep = 4;
    s.tokens[0].predicted[1][0] = 2;
    struct setting set = {"prefetch+prefetch=count:1", 4, 4, 1, round_pace(), {0}, 0};
    set.pace.load_rate = EXPERT / 2.0;
    struct moe_simulated out = run(&s, &set);
    check(&out.decode, 6 + 0.75 + 0.125 + 0.5, 1.75 + 1.875, 5.5, 2.75);
    assert_int_equal(out.decode.experts.misses, 2);
    assert_int_equal(out.decode.experts.loads, 3);
    assert_int_equal(out.decode.experts.prefetch_wasted_bytes, 3 * PIECE);
    assert_int_equal(out.decode.experts.prefetches_used, 0);
    assert_int_equal(out.decode.experts.predicted, 1);
    assert_int_equal(out.decode.experts.predicted_right, 0);
}

/* Five tokens of a prompt by twos: two rows for one expert take 1.25, for two 0.75 each. */
static void prompts_go_in_passes(void **state)
{
    struct script s = constant_script(1, 1, 6);
    for (uint32_t t = 0; t < 5; t++)
        s.tokens[t].prompt = true;
    s.tokens[3].chosen[0][0] = 1;
    struct setting set = {"lru+init=layerwise", 4, 1, 2, round_pace(), {0}, 0};
    set.pace.pieces[MOE_PIECE_ROUTE] = (struct moe_line){2, {1, 2}, {0.5, 0.875}};
    set.pace.experts[0] = (struct moe_line){2, {1, 2}, {0.75, 1.25}};
    const struct moe_simulated out = run(&s, &set);
    double rest = 0.25 + 0.125 + 0.5; /* and a head for each pass */
    check(&out.prefill, (0.875 + 1.25 + rest) + (0.875 + 2 * 0.75 + rest) + (0.5 + 0.75 + rest), 0,
          0, 0);
    check(&out.decode, 0.5 + 0.75 + rest, 0, 0, 0);
    assert_true(out.prefill.tokens == 5 && out.decode.tokens == 1 && out.token_layers == 6);
}

/* Where the host is six times as slow: an expert there takes 4.5 from when the router has chosen,
 * the second begins when the first is done. */
static void the_host_computes_one_after_the_other(void **state)
{
    const struct script s = constant_script(1, 2, 1);
    struct setting set = {"lru+on-miss=compute-host", 0, 1, 1, round_pace(), {0}, 0};
    set.pace.host_slowdown = 6;
    const struct moe_simulated out = run(&s, &set);
    equals("seconds", out.decode.seconds, 0.5 + 9 + 0.125 + 0.5);
    equals("host", out.decode.host_seconds, 9 - 0.25);
    equals("compute", out.decode.compute_seconds, 0.5 + 0.25 + 0.125 + 0.5);
    assert_int_equal(out.decode.experts.host_computed, 2);
}

/* Of two equal weights the second expert's score is 0.5: at the low precision, which takes a third
 * of the time here. */
static void the_host_computes_at_two_precisions(void **state)
{
    const struct script s = constant_script(1, 2, 1);
    struct setting set = {"lru+on-miss=compute-host,load-low:0.4", 0, 1, 1, round_pace(), {0}, 0};
    set.pace.host_slowdown = 6;
    set.pace.experts[1] = constant(0.25);
    const struct moe_simulated out = run(&s, &set);
    equals("seconds", out.decode.seconds, 0.5 + 6 + 0.125 + 0.5);
    equals("host", out.decode.host_seconds, 6 - 0.25);
    assert_int_equal(out.decode.experts.host_computed, 2);
    assert_int_equal(out.decode.experts.low_precision, 1);
}

/* What a token did not compute takes no time, as imported traces have it. */
static void layers_may_be_missing(void **state)
{
    struct script s = constant_script(2, 1, 2);
    s.tokens[0].skipped[1] = true;
    const struct setting set = {"ondemand", 0, 1, 1, round_pace(), {0}, 0};
    const struct moe_simulated out = run(&s, &set);
    check(&out.decode, (2.375 + 0.5) + (2 * 2.375 + 0.5), 3 * 0.75, 3, 3);
    assert_int_equal(out.decode.experts.activations, 3);
}

/* A load that one phase began and the other gives up is taken back where it was counted: the last
 * token of the prompt expects layer 1 and does not compute it, the first decoded one does. */
static void a_load_is_given_up_where_it_was_counted(void **state)
{
    struct script s = constant_script(2, 1, 3);
    s.tokens[0].prompt = s.tokens[1].prompt = true;
    s.tokens[0].chosen[1][0] = 1;
    s.tokens[1].skipped[1] = true;
    s.tokens[2].skipped[0] = true;
    struct setting set = {"lru+predict=previous+prefetch=all", 1, 4, 1, round_pace(), {0}, 0};
    set.pace.load_rate = EXPERT / 16.0;
    const struct moe_simulated out = run(&s, &set);
    assert_int_equal(out.decode.experts.loads, 1);
    assert_int_equal(out.decode.bytes, EXPERT);
    assert_true(out.prefill.bytes < 4 * EXPERT && out.prefill.bytes > 2 * EXPERT);
}

static void excerpts(void **state)
{
    struct script s = {.n_layers = 2, .n_experts = 4, .top_k = 1, .n = 20};
    uint64_t rng = 1;
    script_random(&s, &rng, 0, 0, false);
    for (uint32_t t = 0; t < 20; t++) { /* four sequences of two and three */
        s.tokens[t].first = t % 5 == 0;
        s.tokens[t].prompt = t % 5 < 2;
    }
    static const struct {
        uint32_t every;
        uint64_t max_tokens;
        uint32_t prompt, decoded;
    } cases[] = {{0, 0, 8, 12}, {1, 0, 8, 12}, {2, 0, 4, 6}, {3, 0, 4, 6},
                 {4, 0, 2, 3},  {0, 7, 4, 3},  {2, 6, 3, 3}, {2, 11, 4, 6}};
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        const struct setting set = {"lru",
                                    4,
                                    1,
                                    8,
                                    round_pace(),
                                    {.every = cases[i].every, .max_tokens = cases[i].max_tokens},
                                    0};
        const struct moe_simulated out = run(&s, &set);
        assert_int_equal(out.prefill.tokens, cases[i].prompt);
        assert_int_equal(out.decode.tokens, cases[i].decoded);
    }
}

/* Each text by itself finds a cache that knows none of the others; together they are as many. */
static void first_answers(void **state)
{
    struct script s = {.n_layers = 2, .n_experts = 4, .top_k = 1, .n = 20};
    for (uint32_t t = 0; t < 20; t++) { /* four texts of five tokens, which all choose expert 0 */
        s.tokens[t].first = t % 5 == 0;
        s.tokens[t].prompt = t % 5 < 2;
    }
    struct setting set = {"lru", 4, 1, 8, round_pace(), {0}, 0};
    assert_int_equal(run(&s, &set).prefill.experts.loads, 2);
    for (uint32_t cold = 1; cold < 6; cold++) {
        const uint32_t texts = cold < 4 ? cold : 4;
        set.excerpt.cold = cold;
        const struct moe_simulated out = run(&s, &set);
        assert_int_equal(out.prefill.tokens, 2 * texts);
        assert_int_equal(out.decode.tokens, 3 * texts);
        assert_int_equal(out.prefill.experts.loads, 2 * texts);
        assert_int_equal(out.prefill.bytes, 2 * texts * (uint64_t)EXPERT);
    }
}

/* ---- Always ---- */

static const char *const strategies[] = {
    "ondemand",
    "lru",
    "lru+cache=lfu",
    "lru+cache=arc+alloc=per-layer",
    "lru+cache=random",
    "lru+cache=fifo+alloc=shallow:1",
    "lru+cache=lrfu",
    "lru+cache=transition",
    "lru+cache=learned+alloc=per-layer",
    "lru+cache=hobbit+keep-records=on",
    "lru+cache=edgemoe+prefill=popularity",
    "lru+init=layerwise",
    "prefetch",
    "prefetch+protect=on+prefetch=count:1",
    "prefetch+predict=previous",
    "prefetch+prefetch=until-router,all",
    "prefetch+prefetch=percentile:75,slack",
    "prefetch+prefetch=all,measured",
    "fate+prefill=popularity",
    "hobbit",
    "hobbit+skip-below=0",
    "lru+on-miss=compute-host",
    "hobbit+on-miss=compute-host;load-low",
    "lru+on-miss=compute-host;emergency",
    "daop+init=layerwise+alloc=global",
};

static void check_phase(const char *what, const struct moe_simulated_phase *p)
{
    const struct moe_counts *c = &p->experts;
    uint64_t sum = c->cache_hits + c->prefetch_hits + c->prefetch_late + c->misses +
                   c->host_computed + c->precalculated + c->skipped;
    if (sum != c->activations)
        fail_msg("%s: %d activations, %d accounted for", what, (int)c->activations, (int)sum);
    assert_true(c->predicted_right <= c->predicted && c->predicted <= c->activations);
    equals(what, p->compute_seconds + p->stall_seconds + p->host_seconds, p->seconds);
    assert_true(p->stall_seconds >= 0 && p->host_seconds >= 0);
    assert_true(p->link_seconds >= 0 && p->compute_seconds >= -1e-9);
    /* No load is larger than an expert at its best, and only prefetches are given up. */
    assert_true(p->bytes <= c->loads * EXPERT);
    assert_true(p->bytes + c->prefetches * EXPERT >= (c->loads - c->prefetches) * (EXPERT / 2));
}

static void check_layers(const struct script *s, const struct moe_simulated *out,
                         const struct moe_simulated_layer *layers)
{
    struct moe_simulated_layer sum = {0};
    const struct moe_counts *c = &out->decode.experts;
    for (uint32_t l = 0; l < s->n_layers; l++) {
        sum.activations += layers[l].activations;
        sum.hits += layers[l].hits;
        sum.predicted += layers[l].predicted;
        sum.predicted_right += layers[l].predicted_right;
        sum.stall_seconds += layers[l].stall_seconds;
    }
    assert_int_equal(sum.activations, c->activations);
    assert_int_equal(sum.hits, c->cache_hits + c->prefetch_hits);
    assert_int_equal(sum.predicted, c->predicted);
    assert_int_equal(sum.predicted_right, c->predicted_right);
    equals("stall by layer", sum.stall_seconds, out->decode.stall_seconds);
}

static uint64_t optimum(const struct script *s, uint64_t capacity)
{
    struct moe_lookups *l = NULL;
    struct moe_err err = {0};
    uint64_t hits;
    struct moe_trace *t = script_trace(s);
    assert_ok(moe_lookups_read(&l, t, (struct moe_excerpt){0}, &err), &err);
    assert_ok(moe_optimal_hits(l, capacity, &hits, &err), &err);
    moe_lookups_free(l);
    moe_trace_close(t);
    return hits;
}

static void figures_add_up(void **state)
{
    uint64_t rng = 3, stalled = 0, late = 0, below_optimum = 0, from_storage = 0;
    for (uint32_t round = 0; round < 40 * N_ITEMS(strategies); round++) {
        const char *what = strategies[round % N_ITEMS(strategies)];
        struct script s = {.n_layers = 1 + (uint32_t)(test_random(&rng) % SCRIPT_LAYERS),
                           .n_experts = 4 + (uint32_t)(test_random(&rng) % 13),
                           .keep = 4,
                           .ahead = 3,
                           .n = 20 + (uint32_t)(test_random(&rng) % 100)};
        s.top_k = 1 + (uint32_t)(test_random(&rng) % SCRIPT_K);
        bool gaps = test_random(&rng) % 3 == 0;
        script_random(&s, &rng, 5, 80, gaps);
        struct setting set = {what,
                              (uint32_t)(test_random(&rng) % (s.n_layers * s.n_experts + 1)),
                              s.top_k + (uint32_t)(test_random(&rng) % 4),
                              1 + (uint32_t)(test_random(&rng) % 9),
                              round_pace(),
                              {0},
                              EXPERT * (test_random(&rng) % 24)};
        set.pace.load_rate = EXPERT * (0.25 + (double)(test_random(&rng) % 16));
        if (test_random(&rng) % 2) {
            set.pace.storage_rate = EXPERT * (0.25 + (double)(test_random(&rng) % 4));
            set.pace.storage_piece_seconds = (double)(test_random(&rng) % 2) / 8;
            set.pace.loads.piece = (double)(test_random(&rng) % 2) / 16;
            set.pace.joint = (double)(test_random(&rng) % 2) / 4;
        }
        set.pace.host_slowdown = 1 + (double)(test_random(&rng) % 3);
        if (test_random(&rng) % 3 == 0)
            set.pace.pieces[MOE_PIECE_BESIDE] = none;
        struct moe_simulated out, again;
        struct moe_simulated_layer layers[SCRIPT_LAYERS], layers_again[SCRIPT_LAYERS];
        struct moe_err err = {0};
        assert_ok(try_run(&s, &set, &out, layers, &err), &err);
        assert_ok(try_run(&s, &set, &again, layers_again, &err), &err);
        assert_memory_equal(&out, &again, sizeof out);
        assert_memory_equal(layers, layers_again, s.n_layers * sizeof *layers);
        check_phase(what, &out.prefill);
        check_phase(what, &out.decode);
        check_layers(&s, &out, layers);
        double seconds = out.prefill.seconds + out.decode.seconds;
        double link = out.prefill.link_seconds + out.decode.link_seconds;
        double bytes = (double)(out.prefill.bytes + out.decode.bytes);
        double moved = bytes / set.pace.load_rate + bytes / PIECE * set.pace.loads.piece;
        if (link > seconds + PIECE / set.pace.load_rate + set.pace.loads.piece + 1e-9)
            fail_msg("%s: the link was busy for %g of %g s", what, link, seconds);
        if (!gaps) /* what a missing layer was to have may still be under way */
            equals(what, moved, link);
        bytes = (double)(out.prefill.storage_bytes + out.decode.storage_bytes);
        if (bytes > 0 && !gaps)
            equals(what,
                   bytes / set.pace.storage_rate + bytes / PIECE * set.pace.storage_piece_seconds,
                   out.prefill.storage_seconds + out.decode.storage_seconds);
        from_storage += bytes > 0;
        stalled += out.decode.stall_seconds > 0;
        late += out.decode.experts.prefetch_late > 0;
        const struct moe_strategy strategy = script_strategy(what, s.n_layers);
        if (strategy.predict || strategy.init || strategy.needs_low || strategy.needs_host)
            continue;
        uint64_t most = optimum(&s, set.n_cache);
        if (out.decode.experts.cache_hits > most)
            fail_msg("%s: %d hits, the optimum has %d", what, (int)out.decode.experts.cache_hits,
                     (int)most);
        below_optimum += out.decode.experts.cache_hits < most;
    }
    assert_true(stalled > 100 && late > 10 && below_optimum > 100 && from_storage > 100);
}

/* What `learned` makes of choices is taken over from another simulation of the same passes: of any
 * batch that holds every prompt, or of the same. Nothing else becomes of it. */
static void passes_are_followed_once(void **state)
{
    static const uint32_t batches[] = {12, 40, 3, 9, 3, 2, 40};
    static const char *const those[] = {"lru+cache=learned", "prefetch"};
    uint64_t rng = 5;
    for (uint32_t round = 0; round < 20; round++) {
        struct script s = {
            .n_layers = 3, .n_experts = 12, .top_k = 2, .keep = 4, .ahead = 3, .n = 90};
        struct moe_tapes *shared;
        struct moe_err err = {0};
        script_random(&s, &rng, 5, 80, false);
        assert_ok(moe_tapes_open(&shared, 1 << 20, &err), &err);
        for (uint32_t i = 0; i < N_ITEMS(batches) * N_ITEMS(those); i++) {
            const struct setting set = {those[i % N_ITEMS(those)],
                                        4 + i,
                                        4,
                                        batches[i / N_ITEMS(those)],
                                        round_pace(),
                                        {0},
                                        0};
            const struct moe_simulated alone = run(&s, &set);
            tapes = shared;
            const struct moe_simulated out = run(&s, &set);
            tapes = NULL;
            assert_memory_equal(&out, &alone, sizeof out);
        }
        moe_tapes_close(shared);
    }
}

/* ---- Refusals ---- */

static void refusals(void **state)
{
    struct moe_simulated out;
    struct moe_err err = {0};
    struct script s = constant_script(4, 1, 2);
    struct setting set = {"prefetch", 4, 4, 1, round_pace(), {0}, 0};
    assert_fails(try_run(&s, &set, &out, NULL, &err), MOE_ERR_USAGE,
                 "the trace has no predictions by", &err);
    s.keep = 4;
    assert_ok(try_run(&s, &set, &out, NULL, &err), &err);
    set.strategy = "prefetch+predict=gate-residual";
    assert_fails(try_run(&s, &set, &out, NULL, &err), MOE_ERR_USAGE,
                 "the trace has no predictions by", &err);
    set.strategy = "prefetch+predict=gate-ahead:2";
    assert_fails(try_run(&s, &set, &out, NULL, &err), MOE_ERR_USAGE,
                 moe_predictor_name(MOE_PREDICT_GATE_2), &err);
    set.strategy = "prefetch+predict=path";
    assert_fails(try_run(&s, &set, &out, NULL, &err), MOE_ERR_USAGE,
                 "predicting by paths needs statistics", &err);
    set.strategy = "lru+on-miss=compute-host";
    assert_fails(try_run(&s, &set, &out, NULL, &err), MOE_ERR_USAGE, "it needs a second device",
                 &err);
}

/* Traces hold predictions of three layers ahead; where there are no more layers, a greater depth
 * changes nothing.
 */
static void nobody_looks_further_than_traces_do(void **state)
{
    struct moe_replay *r = NULL;
    struct moe_err err = {0};
    const struct moe_strategy deep = script_strategy("prefetch+predict=gate-ahead:4", 4);
    struct script s = constant_script(2, 1, 2);
    s.keep = 4;
    struct moe_trace *t = script_trace(&s);
    assert_ok(moe_replay_open(&r, t, (struct moe_excerpt){0}, 1, &deep, NULL, &err), &err);
    moe_replay_close(r);
    moe_trace_close(t);
    const struct moe_trace_shape shape = {
        .n_layers = 6, .n_experts = 4, .top_k = 1, .keep = 4, .predictors = MOE_TRACE_PREDICTORS};
    struct moe_trace_writer *w = NULL;
    assert_ok(moe_trace_create(&w, script_path, &shape, &err), &err);
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&t, script_path, &err), &err);
    unlink(script_path);
    assert_fails(moe_replay_open(&r, t, (struct moe_excerpt){0}, 1, &deep, NULL, &err),
                 MOE_ERR_USAGE, "predicts 4 layers ahead, traces have predictions of 3", &err);
    moe_trace_close(t);
}

static void a_trace_of_another_shape(void **state)
{
    const struct script s = constant_script(2, 1, 2), other = constant_script(3, 1, 2);
    struct moe_inventory inventory;
    struct moe_simulated out;
    struct moe_err err = {0};
    const struct moe_strategy strategy = script_strategy("lru", 3);
    const struct moe_pools pools = {.n_classes = 2, .n_slots = 2, .pools = {{0, 1, 0}, {0, 1, 0}}};
    const struct moe_pace pace = round_pace();
    script_inventory(&inventory, &other, EXPERT);
    struct moe_trace *trace = script_trace(&s);
    const struct moe_simulation in = {
        .trace = trace,
        .scheduler = {.inventory = &inventory, .strategy = &strategy, .pools = &pools},
        .pace = &pace,
        .batch = 1,
    };
    assert_fails(moe_simulate(&in, &out, NULL, &err), MOE_ERR_USAGE,
                 "2 layers of 4 experts, 1 a token, not 3 of 4, 1", &err);
    moe_trace_close(trace);
    moe_inventory_release(&inventory);
}

/* ---- Several machines ---- */

/* Leaves a machine its own experts. */
static void keep_own(struct moe_inventory *inv, const uint8_t *holders, uint8_t self)
{
    for (uint32_t key = 0; key < moe_inventory_n_keys(inv); key++)
        for (uint32_t v = 0; v < inv->n_variants && !moe_rank_holds(holders, key, self); v++)
            inv->class_of[moe_expert_copy(inv->n_variants, key, v)] = UINT32_MAX;
}

/* Each token wants expert 0, which is here, and 1, which is another machine's: both are loaded. By
 * hand, from a layer's begin: the router has chosen at 0.5, the message is there at 1, the expert
 * loaded at 2 and computed at 2.75, its outputs are back at 3.25 and added at 3.375. Here expert 0
 * is computed at 2.25. Only further messages would be handled. */
static void another_machine_computes(void **state)
{
    const struct script script = constant_script(2, 2, 3);
    struct moe_pace pace = round_pace();
    enum { NO = MOE_NO_RANK };
    const uint8_t holders[16] = {0, NO, 1, NO, 0, NO, 0, NO, 0, NO, 1, NO, 0, NO, 0, NO};
    const struct moe_strategy strategy = script_strategy("ondemand", 2);
    struct moe_inventory inventories[2];
    struct moe_simulation machines[2];
    struct moe_simulated out;
    struct moe_simulated_work work = {0};
    struct moe_err err = {0};
    struct moe_pools pools = {.n_classes = 2, .n_slots = 2};
    pools.pools[0].n_working = pools.pools[1].n_working = 1;
    struct moe_trace *trace = script_trace(&script);
    for (uint8_t i = 0; i < 2; i++) {
        script_inventory(&inventories[i], &script, EXPERT);
        keep_own(&inventories[i], holders, i);
        machines[i] = (struct moe_simulation){
            .trace = trace,
            .scheduler = {.inventory = &inventories[i],
                          .strategy = &strategy,
                          .low = 1,
                          .pools = &pools},
            .pace = &pace,
            .batch = 1,
            .piece_bytes = PIECE,
        };
    }
    struct moe_simulated_rank rank = {&machines[1], {.latency = 0.5, .handling = 0.0625}};
    machines[0].holders = holders;
    machines[0].ranks = &rank;
    machines[0].n_ranks = 1;
    machines[0].row_bytes = 1024;
    machines[0].work = &work;
    assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
    equals("seconds", out.decode.seconds, 3 * (2 * 3.375 + 0.5));
    equals("waiting for the other", out.decode.host_seconds, 3 * 2 * 1.0);
    equals("work there", work.busy_seconds, 3 * 2 * 1.75);
    assert_int_equal(work.activations, 6);
    assert_int_equal(work.bytes, 6 * EXPERT);
    assert_int_equal(work.messages, 6);
    assert_int_equal(out.decode.bytes, 6 * EXPERT);
    assert_int_equal(out.decode.experts.elsewhere, 6);
    /* A millionth of a second for each byte, there and back. */
    const double before = out.decode.seconds;
    rank.wire.byte = 1.0 / (1 << 20);
    work = (struct moe_simulated_work){0};
    assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
    equals("bytes take time", out.decode.seconds - before,
           (double)(work.bytes_sent + work.bytes_received) / (1 << 20));
    assert_in_range(work.bytes_sent, 6 * 1024, 6 * 2048);
    /* ... and as much of both processors, which one of them waits for. */
    const double with_bytes = out.decode.seconds;
    rank.wire.handling_byte = 1.0 / (1 << 20);
    const double busy_before = work.busy_seconds;
    work = (struct moe_simulated_work){0};
    assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
    equals("bytes are handled", out.decode.seconds - with_bytes,
           2 * (double)(work.bytes_sent + work.bytes_received) / (1 << 20));
    equals("... there, too", work.busy_seconds - busy_before,
           (double)(work.bytes_sent + work.bytes_received) / (1 << 20));
    rank.wire.handling_byte = 0;
    /* A whole layer there, and not both layers' second experts: its expert is loaded there, too. */
    static const uint8_t owners[2] = {0, 1};
    const uint8_t by_layer[16] = {0, NO, 0, NO, 0, NO, 0, NO, 1, NO, 1, NO, 1, NO, 1, NO};
    for (uint8_t i = 0; i < 2; i++) {
        moe_inventory_release(&inventories[i]);
        script_inventory(&inventories[i], &script, EXPERT);
        keep_own(&inventories[i], by_layer, i);
    }
    rank.wire.byte = 0;
    machines[0].holders = by_layer;
    machines[0].owners = owners;
    work = (struct moe_simulated_work){0};
    assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
    const double alone = out.decode.seconds - out.decode.host_seconds;
    equals("waiting for the other's layer", out.decode.host_seconds,
           work.busy_seconds + 3 * 2 * 0.5);
    equals("a layer each, and the head", alone, work.busy_seconds + 3 * 0.5);
    assert_int_equal(work.messages, 3);
    assert_int_equal(work.activations, 6);
    assert_int_equal(out.decode.experts.activations, 6);
    rank.wire.byte = 1.0 / (1 << 20);
    work = (struct moe_simulated_work){0};
    const double without_bytes = out.decode.seconds;
    assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
    equals("its bytes take time", out.decode.seconds - without_bytes,
           (double)(work.bytes_sent + work.bytes_received) / (1 << 20));
    machines[0].owners = NULL;
    machines[0].holders = holders;
    for (uint8_t i = 0; i < 2; i++) {
        moe_inventory_release(&inventories[i]);
        script_inventory(&inventories[i], &script, EXPERT);
        keep_own(&inventories[i], holders, i);
    }
    /* Interruptions make computing longer, and not what the way there and back takes. */
    double seconds[2];
    pace.loads.interruptions = 2;
    for (int i = 0; i < 2; i++) {
        rank.wire.latency = 0.5 + i;
        assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
        seconds[i] = out.decode.seconds;
    }
    equals("a longer way", seconds[1] - seconds[0], 3 * 2 * 2.0);
    moe_trace_close(trace);
    /* A prompt of 20 rows: its message takes the way once, and so do outputs, which are two
     * messages. With larger rows the first waits until the other is ready for it, there and back
     * once more. */
    struct script prompt = constant_script(2, 2, 20);
    for (uint32_t t = 0; t < prompt.n; t++)
        prompt.tokens[t].prompt = true;
    trace = script_trace(&prompt);
    pace.loads.interruptions = 0;
    machines[0].trace = machines[1].trace = trace;
    machines[0].batch = machines[1].batch = prompt.n;
    for (uint32_t large = 0; large < 2; large++) {
        machines[0].row_bytes = large ? 60 << 10 : 32 << 10;
        for (int i = 0; i < 2; i++) {
            rank.wire.latency = 100 + i;
            assert_ok(moe_simulate(&machines[0], &out, NULL, &err), &err);
            seconds[i] = out.prefill.seconds;
        }
        equals("a prompt's longer way", seconds[1] - seconds[0], 2 * (large ? 4.0 : 2.0));
    }
    moe_trace_close(trace);
    moe_inventory_release(&inventories[0]);
    moe_inventory_release(&inventories[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_demand),
        cmocka_unit_test(pieces_and_groups_have_costs_of_their_own),
        cmocka_unit_test(two_links_in_series),
        cmocka_unit_test(links_in_series_overlap),
        cmocka_unit_test(a_source_goes_through_the_encoder_alone),
        cmocka_unit_test(layers_to_pre_calculate_are_the_decoder_s),
        cmocka_unit_test(the_second_load_hides_behind_the_first_expert),
        cmocka_unit_test(a_slot_is_free_when_its_expert_is_computed),
        cmocka_unit_test(what_is_kept_does_not_stall),
        cmocka_unit_test(a_prefetch_hides),
        cmocka_unit_test(a_wrong_prefetch_delays_by_no_more_than_a_piece),
        cmocka_unit_test(loads_take_the_processor_too),
        cmocka_unit_test(prompts_go_in_passes),
        cmocka_unit_test(the_host_computes_one_after_the_other),
        cmocka_unit_test(the_host_computes_at_two_precisions),
        cmocka_unit_test(layers_may_be_missing),
        cmocka_unit_test(a_load_is_given_up_where_it_was_counted),
        cmocka_unit_test(excerpts),
        cmocka_unit_test(first_answers),
        cmocka_unit_test(figures_add_up),
        cmocka_unit_test(passes_are_followed_once),
        cmocka_unit_test(refusals),
        cmocka_unit_test(nobody_looks_further_than_traces_do),
        cmocka_unit_test(a_trace_of_another_shape),
        cmocka_unit_test(another_machine_computes),
    };
    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
