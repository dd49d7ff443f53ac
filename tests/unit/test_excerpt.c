/*
 * Excerpts of a trace: which tokens a replay takes, and which of them simulator and optimum count.
 */
#include <unistd.h>

#include "plan/optimal.h"
#include "plan/simulate.h"

#include "../test.h"

/* One layer, an expert a token. */
enum { EXPERTS = 8, CACHED = 2, WORKING = 1 };

static char path[128];
static struct moe_trace *trace;

/* A word is a sequence: 'A' a prompt's token, 'a' a decoded one, by their expert. */
static const char *const sequences[] = {"ABab", "CDcdc", "Aab", "EFe", "Bbc"};

static int set_up(void **state)
{
    static const float weight = 1;
    const struct moe_trace_shape shape = {.n_layers = 1, .n_experts = EXPERTS, .top_k = 1};
    struct moe_trace_writer *w = NULL;
    struct moe_err err = {0};
    snprintf(path, sizeof path, "/tmp/moe-excerpt-%d", (int)getpid());
    assert_ok(moe_trace_create(&w, path, &shape, &err), &err);
    for (size_t s = 0; s < N_ITEMS(sequences); s++) {
        assert_ok(moe_trace_begin(w, &err), &err);
        for (uint32_t t = 0; sequences[s][t]; t++) {
            bool prompt = sequences[s][t] < 'a';
            uint32_t expert = (uint32_t)(sequences[s][t] - (prompt ? 'A' : 'a'));
            const struct moe_layer_observation seen = {.chosen = &expert, .weights = &weight};
            assert_ok(moe_trace_add(w, 1, prompt, &err), &err);
            moe_trace_put(w, 0, t, 1, &seen, NULL, 0);
        }
    }
    assert_ok(moe_trace_commit(w, &err), &err);
    assert_ok(moe_trace_open(&trace, path, &err), &err);
    return 0;
}

static int tear_down(void **state)
{
    moe_trace_close(trace);
    unlink(path);
    return 0;
}

/* The tokens that are taken: '|' before a sequence, a warming one in brackets. */
static void check_taken(struct moe_excerpt e, const char *want)
{
    char taken[128] = "", *at = taken;
    struct moe_strategy s;
    struct moe_replay *r = NULL;
    struct moe_replay_pass pass;
    struct moe_err err = {0};
    assert_true(moe_strategy_find("lru", &s));
    assert_ok(moe_replay_open(&r, trace, e, 1, &s, NULL, &err), &err);
    for (;;) {
        uint32_t expert;
        float weight;
        assert_ok(moe_replay_next(r, &pass, &err), &err);
        if (pass.n_rows == 0)
            break;
        if (pass.first)
            *at++ = pass.warms ? '(' : '|';
        moe_replay_chosen(r, 0, &expert, &weight);
        *at++ = (char)((pass.prompt ? 'A' : 'a') + expert);
    }
    moe_replay_close(r);
    assert_string_equal(taken, want);
}

static void tokens_are_chosen(void **state)
{
    check_taken((struct moe_excerpt){0}, "|ABab|CDcdc|Aab|EFe|Bbc");
    check_taken((struct moe_excerpt){.every = 2}, "|ABab|Aab|Bbc");
    check_taken((struct moe_excerpt){.first = 1}, "|CDcdc|Aab|EFe|Bbc");
    check_taken((struct moe_excerpt){.first = 1, .every = 2}, "|CDcdc|EFe");
    check_taken((struct moe_excerpt){.first = 1, .every = 2, .max_tokens = 6}, "|CDcdc|E");
    check_taken((struct moe_excerpt){.cut = 3}, "|ABa|CDc|Aab|EFe|Bbc");
    check_taken((struct moe_excerpt){.first = 1, .cut = 3, .max_tokens = 6, .warm = 1}, "(CDc|Aab");
    check_taken((struct moe_excerpt){.every = 2, .warm = 2}, "(ABab(Aab|Bbc");
    check_taken((struct moe_excerpt){.first = 5}, "");
}

static struct moe_simulated simulate(struct moe_excerpt e, struct moe_simulated_layer *layer)
{
    static const char variants[1][MOE_NAME_BYTES] = {"4"};
    static const uint64_t bytes = 4096;
    struct moe_inventory inventory;
    struct moe_strategy s;
    struct moe_pools pools;
    struct moe_simulated out;
    struct moe_pace pace = {.n_variants = 1, .head = 0.5, .load_rate = 4096};
    struct moe_err err = {0};
    moe_line_add(&pace.experts[0], 1, 1);
    assert_true(moe_strategy_find("lru", &s));
    assert_ok(moe_strategy_settle(&s, &err), &err);
    assert_ok(moe_inventory_uniform(&inventory, 1, EXPERTS, 1, variants, &bytes, 1, &err), &err);
    moe_pools_size(&pools, &inventory, &s, 0, 0, CACHED * bytes, WORKING);
    const struct moe_simulation in = {
        .trace = trace,
        .excerpt = e,
        .scheduler = {.inventory = &inventory, .strategy = &s, .pools = &pools},
        .pace = &pace,
        .batch = 1,
    };
    assert_ok(moe_simulate(&in, &out, layer, &err), &err);
    moe_inventory_release(&inventory);
    return out;
}

/* Tokens 1.5 s each with their expert there, 1 s more while it is loaded. With two places, lru:
 * A B loads, a b hits; then C D loads, c d c hits; A loads, a hits, b loads. */
static void warming_sequences_are_not_counted(void **state)
{
    struct moe_simulated_layer layer;
    struct moe_simulated s = simulate((struct moe_excerpt){.max_tokens = 12, .warm = 0}, &layer);
    assert_int_equal(s.prefill.tokens, 5);
    assert_int_equal(s.decode.tokens, 7);
    assert_int_equal(s.decode.experts.cache_hits, 6);
    assert_int_equal(layer.activations, 7);

    s = simulate((struct moe_excerpt){.max_tokens = 12, .warm = 2}, &layer);
    assert_int_equal(s.prefill.tokens, 1);
    assert_int_equal(s.prefill.experts.loads, 1);
    assert_int_equal(s.decode.tokens, 2);
    assert_int_equal(s.decode.experts.cache_hits, 1);
    assert_int_equal(s.decode.experts.misses, 1);
    assert_int_equal(s.decode.bytes, 4096);
    assert_float_equal(s.prefill.seconds, 2.5, 1e-9);
    assert_float_equal(s.decode.seconds, 4, 1e-9);
    assert_float_equal(s.decode.stall_seconds, 1, 1e-9);
    assert_int_equal(layer.activations, 2);
    assert_int_equal(layer.hits, 1);

    /* ... but they do warm: alone, the third sequence finds nothing of the first's. */
    s = simulate((struct moe_excerpt){.every = 2, .max_tokens = 7, .warm = 1}, &layer);
    assert_int_equal(s.prefill.experts.cache_hits, 1);
    assert_int_equal(s.decode.experts.cache_hits, 2);
    s = simulate((struct moe_excerpt){.first = 2, .max_tokens = 3}, &layer);
    assert_int_equal(s.prefill.experts.cache_hits, 0);
    assert_int_equal(s.decode.experts.cache_hits, 1);
}

/* Of "ABab|CDcdc|Aab" the last two lookups count: of a, asked for just before, and of b, which
 * would have to be kept from the first sequence on. */
static void the_optimum_counts_the_same(void **state)
{
    struct moe_lookups *l = NULL;
    uint64_t hits;
    struct moe_err err = {0};
    const struct moe_excerpt e = {.max_tokens = 12, .warm = 2};
    assert_ok(moe_lookups_read(&l, trace, e, &err), &err);
    assert_int_equal(moe_lookups_decoded(l), 2);
    assert_ok(moe_optimal_hits(l, 1, &hits, &err), &err);
    assert_int_equal(hits, 1);
    assert_ok(moe_optimal_hits(l, 2, &hits, &err), &err);
    assert_int_equal(hits, 2);
    moe_lookups_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_are_chosen),
        cmocka_unit_test(warming_sequences_are_not_counted),
        cmocka_unit_test(the_optimum_counts_the_same),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
