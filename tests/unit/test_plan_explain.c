/* The explanation of a plan, from one filled by hand: figures that are worked out here. */
#include "../test.h"

#include <jansson.h>
#include <math.h>

#include "show/explain.h"
#include "show/explain_figures.h"

enum { LAYERS = 4, EXPERTS = 8, TOP_K = 2 };

/* Two pools: slots of 1 MiB shared out among layers, and of 256 KiB. */
static uint32_t per_layer[LAYERS] = {8, 3, 3, 2}, low_per_layer[LAYERS] = {0, 1, 1, 2};
static uint32_t contents[] = {0, 1, 2, 9, 31};
static struct moe_plan_layer layers[LAYERS] = {
    {1, -1, 0}, {0.5, 0.75, 1e-3}, {0.7, 0.85, 0.5e-3}, {0.6, 0.8, 0.5e-3}};
static struct moe_plan_tried tried[] = {{"fate+cache=lrfu", 200, 0.7}, {"lru", 100, 0.4}};

/* 5 ms a token: 3 computing, 2 waiting. In memory it would be 2 ms, the link alone 4. */
static struct moe_plan filled(void)
{
    struct moe_plan p = {
        .pack_fingerprint = 7,
        .pack = "some.moe",
        .n_layers = LAYERS,
        .n_experts = EXPERTS,
        .top_k = TOP_K,
        .memory = {.total = 64 << 20,
                   .program = 8 << 20,
                   .dense = 16 << 20,
                   .kv = 4 << 20,
                   .work = 4 << 20,
                   .experts = 24 << 20,
                   .floor = 40 << 20,
                   .token = 8 << 20,
                   .all = 32 << 20,
                   .context = 512,
                   .batch = 16},
        .high = "8",
        .low = "2",
        .n_pools = 2,
        .pools = {{1 << 20, 16, 4, per_layer}, {1 << 18, 4, 2, low_per_layer}},
        .n_contents = N_ITEMS(contents),
        .contents = contents,
        .layer_seconds = 1e-3,
        .load_seconds = 0.4e-3,
        .slack_loads = 2,
        .boundary_accuracy = 1,
        .boundary_stall = UINT32_MAX,
        .pace = {.load_rate = 2.5e9, .loads = {.interruptions = 2}},
        .evidence = {.trace = "a.trace",
                     .trace_sequences = 9,
                     .trace_tokens = 1000,
                     .trace_prompt_tokens = 100,
                     .statistics = "s.yaml",
                     .statistics_tokens = 5000,
                     .device = "a board",
                     .times_measured = true},
        .expected = {.decode_tokens_per_second = 200,
                     .prefill_tokens_per_second = 1234.56,
                     .hit_rate = 0.7,
                     .optimal_hit_rate = 0.8,
                     .accuracy = 0.8,
                     .bytes_per_token = 2.5 * (1 << 20),
                     .compute_seconds = 3e-3,
                     .stall_seconds = 2e-3,
                     .link_seconds = 1e-3,
                     .compute_limit_seconds = 2e-3,
                     .link_limit_seconds = 4e-3},
        .layers = layers,
        .n_memory_steps = 3,
        .memory_steps = {{48 << 20, 100, 0.5}, {64 << 20, 200, 0.7}, {80 << 20, 250, 0.9}},
        .n_rate_steps = 2,
        .rate_steps = {{2.5e9, 200, 0.7}, {5e9, 300, 0.75}},
        .n_tried = N_ITEMS(tried),
        .tried = tried,
    };
    moe_strategy_find("fate", &p.strategy);
    moe_strategy_fit(&p.strategy, LAYERS, NULL);
    assert_int_equal(moe_strategy_settle(&p.strategy, NULL), MOE_OK);
    return p;
}

static void expect_bounds(const struct moe_plan *p, double computation, double link,
                          double prediction, enum moe_bound largest)
{
    struct moe_plan_bounds b = moe_plan_bounds(p);
    assert_float_equal(b.seconds[MOE_BOUND_COMPUTATION], computation, 1e-9);
    assert_float_equal(b.seconds[MOE_BOUND_LINK], link, 1e-9);
    assert_float_equal(b.seconds[MOE_BOUND_PREDICTION], prediction, 1e-9);
    assert_float_equal(computation + link + prediction, b.total, 1e-9);
    assert_int_equal(b.largest, largest);
}

static void bounds(void **state)
{
    struct moe_plan p = filled();
    expect_bounds(&p, 2e-3, 2e-3, 1e-3, MOE_BOUND_COMPUTATION);
    p.expected.link_limit_seconds = 4.9e-3;
    expect_bounds(&p, 2e-3, 2.9e-3, 0.1e-3, MOE_BOUND_LINK);
    p.expected.link_limit_seconds = 1e-3; /* hides behind computation */
    expect_bounds(&p, 2e-3, 0, 3e-3, MOE_BOUND_PREDICTION);
    p.expected.link_limit_seconds = 9e-3; /* host computation beats the link */
    expect_bounds(&p, 2e-3, 3e-3, 0, MOE_BOUND_LINK);
    p.expected.compute_limit_seconds = 9e-3;
    expect_bounds(&p, 5e-3, 0, 0, MOE_BOUND_COMPUTATION);
    p.expected.compute_limit_seconds = p.expected.link_limit_seconds = NAN; /* not known */
    expect_bounds(&p, 0, 0, 5e-3, MOE_BOUND_PREDICTION);
    p.expected.host_seconds = 1e-3;
    expect_bounds(&p, 0, 0, 6e-3, MOE_BOUND_PREDICTION);
}

/* 2 sqrt(0.7 * 0.3 / 900) = 0.030550... */
static void error_of_the_hit_rate(void **state)
{
    struct moe_plan p = filled();
    assert_float_equal(moe_plan_hit_rate_error(&p), 0.0305505, 1e-6);
    p.expected.hit_rate = 1;
    assert_float_equal(moe_plan_hit_rate_error(&p), 0, 0);
    p.evidence.trace_prompt_tokens = 1000;
    assert_float_equal(moe_plan_hit_rate_error(&p), 1, 0);
}

static void next_step(void **state)
{
    struct moe_plan p = filled();
    const double mib = 1 << 20;
    assert_ptr_equal(moe_plan_next_step(p.memory_steps, 3, 64 * mib), &p.memory_steps[2]);
    assert_ptr_equal(moe_plan_next_step(p.memory_steps, 3, 63.97 * mib), &p.memory_steps[2]);
    assert_ptr_equal(moe_plan_next_step(p.memory_steps, 3, 50 * mib), &p.memory_steps[1]);
    assert_null(moe_plan_next_step(p.memory_steps, 3, 80 * mib));
    assert_null(moe_plan_next_step(p.memory_steps, 0, 0));
}

static void expect_assumptions(const struct moe_plan *p, uint32_t n,
                               const enum moe_assumption *want)
{
    enum moe_assumption what[MOE_N_ASSUMPTIONS];
    assert_int_equal(moe_plan_assumptions(p, what), n);
    assert_memory_equal(what, want, n * sizeof *want);
}

static void assumptions(void **state)
{
    struct moe_plan p = filled();
    expect_assumptions(&p, 2, (enum moe_assumption[]){MOE_ASSUME_FEW_TOKENS, MOE_ASSUME_ALIKE});
    p.evidence.trace_tokens = 1 << 20;
    expect_assumptions(&p, 1, (enum moe_assumption[]){MOE_ASSUME_ALIKE});
    p.evidence.trace[0] = p.evidence.statistics[0] = 0;
    p.evidence.times_measured = false;
    expect_assumptions(&p, 4,
                       (enum moe_assumption[]){MOE_ASSUME_ROUTING, MOE_ASSUME_BANDWIDTH,
                                               MOE_ASSUME_NO_STATISTICS, MOE_ASSUME_ALIKE});
    p.evidence.manner_known = true;
    expect_assumptions(&p, 4,
                       (enum moe_assumption[]){MOE_ASSUME_BANDWIDTH, MOE_ASSUME_FIGURES,
                                               MOE_ASSUME_NO_STATISTICS, MOE_ASSUME_ALIKE});
    p.evidence.times_stated = true;
    expect_assumptions(
        &p, 3,
        (enum moe_assumption[]){MOE_ASSUME_FIGURES, MOE_ASSUME_NO_STATISTICS, MOE_ASSUME_ALIKE});
}

static void slots_and_layers(void **state)
{
    struct moe_plan p = filled();
    struct moe_plan_slots s = moe_plan_slots(&p);
    assert_int_equal(s.n_cache, 20);
    assert_int_equal(s.n_working, 6);
    assert_int_equal(s.cache_bytes, 17 << 20);
    assert_float_equal(s.share, 20.0 / 32, 0);
    assert_float_equal(s.tokens, 17.0 / 8, 0);
    struct moe_plan_span l = moe_plan_span(&p, 0, 2);
    assert_int_equal(l.slots, 12);
    assert_int_equal(l.filled, 4);
    assert_float_equal(l.hit_rate, 0.75, 1e-9);
    assert_float_equal(l.accuracy, 0.75, 1e-9); /* of layer 1 alone */
    assert_float_equal(l.stall_seconds, 1e-3, 1e-12);
    p.pools[0].per_layer = p.pools[1].per_layer = NULL;
    assert_false(moe_plan_span(&p, 0, 4).own_slots);
}

static void expect_line(const char *text, const char *line)
{
    if (!strstr(text, line))
        fail_msg("'%s' is not in\n%s", line, text);
}

static void check_screen(const struct moe_buf *out, int most)
{
    int lines = 0, columns = 0;
    assert_false(out->failed);
    for (const char *c = (const char *)out->data; *c; c++) {
        assert_true((unsigned char)*c < 0x80);
        columns = *c == '\n' ? 0 : columns + 1;
        lines += *c == '\n';
        if (columns > 80)
            fail_msg("longer than 80 columns: %.*s", 80, c - 80);
    }
    if (lines > most)
        fail_msg("%d lines:\n%s", lines, (const char *)out->data);
}

/* One line of all words. */
static const char *words_of(const struct moe_buf *out)
{
    static char words[16384];
    uint32_t n = 0;
    for (const char *c = (const char *)out->data; *c && n + 1 < sizeof words; c++)
        if ((*c != ' ' && *c != '\n') || (n && words[n - 1] != ' '))
            words[n++] = *c == '\n' ? ' ' : *c;
    words[n] = 0;
    return words;
}

static void text(void **state)
{
    struct moe_plan p = filled();
    struct moe_buf out = {0};
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    check_screen(&out, 100);
    const char *t = (const char *)out.data;
    /* The answer first, the spelling last. */
    expect_line(t, "Slow because a token waits for 30% of its experts to be read from the "
                   "disk.\n\nsome.moe in 64.0 "
                   "MiB, on a board: simulated\n");
    assert_ptr_equal(strstr(t, "Slow because"), t);
    assert_string_equal(t + out.size - strlen("    fate+alloc=shallow:1\n"),
                        "    fate+alloc=shallow:1\n");
    expect_line(t, "  an answer  about 200 tokens/s\n  a prompt   about 1200 tokens/s\n");
    expect_line(t, "  the program                        8.00 MiB   12%  ###\n");
    expect_line(t, "  experts                            24.0 MiB   38%  ##########\n");
    expect_line(t, "  unused                             8.00 MiB   12%  ###\n");
    expect_line(words_of(&out), "20 of all 32 experts (17.0 MiB of 32.0 MiB) have room at a time, "
                                "2.1 times what a token uses.");
    expect_line(t, "\nWhere a token's time goes, 5.0 ms\n");
    expect_line(t, "  computing                                      2.0 ms  40%  #######\n");
    expect_line(t, "  reading that nobody could avoid                2.0 ms  40%  #######\n");
    expect_line(t, "  reading that a perfect guess would have saved  1.0 ms  20%  ####\n");
    expect_line(t, "  Upper bound for this memory, not reachable: about 250 tokens/s.\n");
    expect_line(words_of(&out),
                "Meanwhile the processor computes, interrupted by other programs: 3.0 ms; "
                "waits for the disk: 2.0 ms.");
    expect_line(t, "  layer  in memory    waits  guessed  slots  at the start\n");
    expect_line(t, "  1            50%   1.0 ms      75%      4             1  ###########\n");
    expect_line(t, "  > 64.0 MiB       200        70%  ##########################\n");
    expect_line(t, "The next step up, 80.0 MiB: about 250 tokens/s, +25%.");
    expect_line(t, "A token reads 2.50 MiB; the disk (2.50 GB/s) is busy 20% of the time.");
    expect_line(t, "     200  fate+cache=lrfu\n");
    expect_line(t, "  1. The trace has few tokens");
    expect_line(words_of(&out), "is known to +- 3.1 points.");
    static const char *const gone[] = {"limits",
                                       "deserve",
                                       "0.000",
                                       " 0%",
                                       "host",
                                       "What the model "
                                       "says may"};
    for (size_t i = 0; i < N_ITEMS(gone); i++)
        if (strstr(t, gone[i]))
            fail_msg("'%s' is in\n%s", gone[i], t);
    moe_buf_clear(&out);
    for (uint32_t i = 0; i < p.n_memory_steps; i++)
        p.memory_steps[i].decode_tokens_per_second = p.expected.decode_tokens_per_second;
    moe_explain_plan(&p, (struct moe_screen){.columns = 80, .blocks = true}, &out);
    assert_null(strstr((const char *)out.data, "next step up")); /* which gains nothing */
    expect_line(words_of(&out), "is known to \xc2\xb1 3.1 points.");
    layers[0].accuracy = 0.8;
    moe_buf_clear(&out);
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    assert_null(strstr(words_of(&out), "hard to guess")); /* as hard as the rest */
    layers[0].accuracy = 0.5;
    moe_buf_clear(&out);
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    expect_line(words_of(&out), "What the first layer will use is hard to guess.");
    layers[0].accuracy = -1;
    p.n_losses = 2;
    p.losses[0] = (struct moe_plan_loss){"on-miss", 4321, 1.25, 0.25, 3.5, 0.5};
    p.losses[1] = (struct moe_plan_loss){"prefill", 1234, -0.5, 0.125, 0.75, 0.25};
    strcpy(p.evidence.calibration, "map.yaml");
    strcpy(p.evidence.calibration_texts, "a.txt, b.txt");
    moe_buf_clear(&out);
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    check_screen(&out, 100);
    expect_line(
        words_of(&out),
        "Inexact: what the model says may change through --on-miss: at worst +1.25% (+-0.25) "
        "nats/token, 3.5% other top tokens; through --prefill: -0.5% (+-0.125) nats/token, "
        "0.75% other "
        "top tokens. Measured on 4321 tokens of a.txt and others.");
    moe_buf_release(&out);
}

static struct moe_plan_alternative alternative(enum moe_alternative what, double amount,
                                               double times, double speed)
{
    return (struct moe_plan_alternative){.what = what,
                                         .amount = amount,
                                         .times = times,
                                         .decode_tokens_per_second = speed,
                                         .prefill_tokens_per_second = 1500,
                                         .hit_rate = 0.75,
                                         .bytes_per_token = 1 << 20};
}

/* Of a plan with alternatives: these alone, in a table and the best in a sentence. */
static void alternatives(void **state)
{
    struct moe_plan p = filled();
    struct moe_buf out = {0};
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_MEMORY, 128 << 20, 2, 210);
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_MEMORY, 32 << 20, 0.5, -1);
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_PROCESSOR, 2, 2, 201);
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_EXPERTS, 1 << 19, 0.5, 300);
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_EXPERTS, 1 << 18, 0.25, 350);
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_CONTEXT, 256, 0.5, 199);
    strcpy(p.alternatives[3].precision, "4");
    p.alternatives[3].loss_tokens = 999;
    p.alternatives[3].loss_percent = 1.5;
    p.alternatives[3].loss_error = 0.25;
    strcpy(p.alternatives[4].precision, "2");
    p.n_doubts = 2;
    p.doubts[0] = (struct moe_plan_doubt){MOE_ASSUME_ALIKE, 0.03, 150};
    p.doubts[1] = (struct moe_plan_doubt){MOE_ASSUME_FEW_TOKENS, 0.0305505, 190};
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    check_screen(&out, 120);
    const char *t = (const char *)out.data, *words = words_of(&out);
    expect_line(t, "                                tokens/s  change  prompt     reads  found\n");
    expect_line(t, "  as planned                         200            1200  2.50 MiB    70%\n");
    expect_line(t, "  twice the memory, 128 MiB          210     +5%    1500  1.00 MiB    75%\n");
    expect_line(t, "  half the memory, 32.0 MiB            -\n");
    expect_line(t, "  -: less than the smallest that works, 40.0 MiB.\n");
    assert_null(strstr(t, "of prompt tokens"));
    expect_line(t, "  experts at 2 bits (*)              350    +75%");
    /* A faster part that is slower has its reason beside it, where waits end late. */
    assert_null(strstr(words, "may come out slower"));
    p.pace.loads.late = 1.3e-3;
    p.alternatives[2].decode_tokens_per_second = 150;
    strcpy(p.alternatives[4].precision, "iq2_kt");
    moe_buf_clear(&out);
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    expect_line((const char *)out.data, "  experts at iq2_kt (*)              350    +75%");
    expect_line(words_of(&out), "every wait ends 1.3 ms late");
    p.pace.loads.late = 0;
    p.alternatives[2].what = MOE_ALTERNATIVE_BATCH;
    p.alternatives[2].decode_tokens_per_second = -1;
    p.alternatives[5].decode_tokens_per_second = 200;
    p.alternatives[5].prefill_tokens_per_second = p.expected.prefill_tokens_per_second;
    moe_buf_clear(&out);
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    words = words_of(&out);
    expect_line(words, "-: there is no room to compute this many prompt tokens at a time.");
    expect_line(words, "No difference: half the context, 256 tokens.");
    expect_line(words, "4 bits: +1.5% (+-0.25) nats/token, how much a text surprises the model, on "
                       "999 tokens. Others were not measured (moe-calibrate).");
    expect_line(words, "an answer about 200 tokens/s, 150 with other texts");
    expect_line(words, "1. Other texts use the experts");
    expect_line(words, "If 3 points fewer are in memory: about 150 tokens/s, -25%.");
    expect_line(words, "2. The trace has few tokens");
    for (uint32_t columns = MOE_LEAST_COLUMNS; columns <= MOE_MOST_COLUMNS; columns += 20) {
        moe_buf_clear(&out);
        moe_explain_plan(&p, (struct moe_screen){.columns = columns}, &out);
        expect_line((const char *)out.data, "+75%");
    }
    moe_buf_release(&out);
}

/* The most a plan can have is not much more than two screens, without its alternatives; long names
 * are cut. */
static void largest(void **state)
{
    enum { MANY = 1000 };
    static struct moe_plan_layer many[MANY];
    static struct moe_plan_tried most[MOE_PLAN_MAX_TRIED];
    static uint32_t slots[MANY];
    struct moe_plan p = filled();
    struct moe_buf out = {0};
    p.n_layers = MANY;
    p.layers = many;
    p.pools[0].per_layer = p.pools[1].per_layer = slots;
    p.n_memory_steps = p.n_rate_steps = MOE_PLAN_MAX_STEPS;
    p.n_tried = MOE_PLAN_MAX_TRIED;
    p.tried = most;
    p.evidence.times_measured = false;
    p.evidence.trace[0] = p.evidence.statistics[0] = 0;
    memset(p.pack, 'n', sizeof p.pack - 1);
    memset(p.evidence.device, 'd', sizeof p.evidence.device - 1);
    memset(p.evidence.calibration, 'c', sizeof p.evidence.calibration - 1);
    memset(p.evidence.calibration_texts, 't', sizeof p.evidence.calibration_texts - 1);
    p.n_losses = MOE_PLAN_MAX_LOSSES;
    p.losses[0] = p.losses[1] =
        (struct moe_plan_loss){"on-miss", (uint64_t)1 << 53, -99.999, 99.999, 99.999, 99.999};
    strcpy(p.losses[1].part, "prefill");
    for (uint32_t i = 0; i < MOE_PLAN_MAX_STEPS; i++)
        p.memory_steps[i] = p.rate_steps[i] = (struct moe_plan_step){1e12 + i * 1e10, 9999.9, 1};
    for (uint32_t i = 0; i < MOE_PLAN_MAX_TRIED; i++)
        memset(most[i].strategy, 's', sizeof most[i].strategy - 1);
    for (uint32_t i = 0; i < MOE_PLAN_MAX_ALTERNATIVES; i++) {
        p.alternatives[i] = alternative(MOE_ALTERNATIVE_EXPERTS, 1e15, 1.234, 99999.9);
        memset(p.alternatives[i].precision, 'p', sizeof p.alternatives[i].precision - 1);
    }
    for (int i = 0; moe_strategy_name_at(i); i++) {
        moe_strategy_find(moe_strategy_name_at(i), &p.strategy);
        moe_strategy_fit(&p.strategy, MANY, NULL);
        moe_buf_clear(&out);
        moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
        check_screen(&out, 110);
        p.n_alternatives = MOE_PLAN_MAX_ALTERNATIVES - 6; /* as many as are made */
        moe_buf_clear(&out);
        moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
        check_screen(&out, 130);
        p.n_alternatives = 0;
        moe_buf_clear(&out);
        moe_explain_plan_briefly(&p, MOE_PLAIN_SCREEN, &out);
        check_screen(&out, 60);
    }
    moe_buf_release(&out);
}

/* Everything in memory: no slots, no loads, no layers to list. */
static void resident(void **state)
{
    struct moe_plan p = filled();
    struct moe_buf out = {0};
    moe_strategy_find("resident", &p.strategy);
    p.n_pools = p.n_contents = p.n_memory_steps = p.n_rate_steps = p.n_tried = 0;
    p.expected = (struct moe_plan_expected){.decode_tokens_per_second = 500,
                                            .hit_rate = 1,
                                            .optimal_hit_rate = 1,
                                            .accuracy = -1,
                                            .compute_seconds = 2e-3,
                                            .compute_limit_seconds = 2e-3};
    moe_explain_plan(&p, MOE_PLAIN_SCREEN, &out);
    check_screen(&out, 50);
    expect_line(words_of(&out), "All experts are in memory from the start: nothing");
    expect_line((const char *)out.data, "All experts are in memory. More memory would not help.\n");
    assert_null(strstr((const char *)out.data, "slots"));
    assert_null(strstr((const char *)out.data, "reading that"));
    /* What less would cost. */
    p.n_memory_steps = 1;
    p.memory_steps[0] = (struct moe_plan_step){60 << 20, 500, 1};
    p.alternatives[p.n_alternatives++] = alternative(MOE_ALTERNATIVE_MEMORY, 32 << 20, 0.5, 100);
    moe_buf_clear(&out);
    moe_explain_answer(&p, &out);
    assert_string_equal((const char *)out.data,
                        "All experts are in memory. More memory would not help; 60.0 MiB is "
                        "enough. 32.0 MiB would be 0.20 times as fast.");
    assert_null(strstr((const char *)out.data, "nan"));
    p.memory_steps[0].amount = 20 << 20; /* less than the half of which the alternative tells */
    moe_buf_clear(&out);
    moe_explain_answer(&p, &out);
    assert_string_equal((const char *)out.data,
                        "All experts are in memory. More memory would not help; 20.0 MiB is "
                        "enough.");
    moe_buf_release(&out);
}

/* What the file says of itself, and the figures that follow. */
static void json(void **state)
{
    struct moe_plan p = filled();
    struct moe_buf out = {0};
    struct moe_err err = {0};
    json_t *root;
    double share, gain;
    const char *largest_bound, *row;
    json_int_t slots;
    assert_ok(moe_explain_plan_json(&p, &out, &err), &err);
    assert_false(out.failed);
    root = json_loadb((const char *)out.data, out.size, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    assert_int_equal(json_unpack(root, "{s:{s:{s:s}},s:{s:s},s:{s:I,s:F},s:{s:F},s:[ss]}", "plan",
                                 "strategy", "row", &row, "bounds", "largest", &largest_bound,
                                 "slots", "cache", &slots, "share", &share, "next_rate", "gain",
                                 &gain, "assumptions", &(const char *){0}, &(const char *){0}),
                     0);
    assert_string_equal(row, "fate");
    assert_string_equal(largest_bound, "computation");
    assert_int_equal(slots, 20);
    assert_float_equal(share, 0.625, 0);
    assert_float_equal(gain, 0.5, 1e-12);
    json_decref(root);
    moe_buf_release(&out);
}

static void expect_answer(const struct moe_plan *p, const char *answer)
{
    struct moe_buf out = {0};
    moe_explain_answer(p, &out);
    assert_string_equal((const char *)out.data, answer);
    moe_buf_release(&out);
}

static void answers(void **state)
{
    struct moe_plan p = filled();
    expect_answer(&p,
                  "Slow because a token waits for 30% of its experts to be read from the disk.");
    p.expected.skipped_rate = 0.1;
    expect_answer(&p, "Slow because a token waits for 20% of its experts to be read from the disk, "
                      "and leaves out 10%.");
    p.expected.skipped_rate = 0;
    p.memory_steps[2] = (struct moe_plan_step){80 << 20, 1080, 1};
    expect_answer(&p, "Slow because a token waits for 30% of its experts to be read from the disk. "
                      "80.0 MiB (+16.0) "
                      "holds all of them: 5.4 times as fast.");
    p.memory_steps[2].amount = 1200 << 20;
    expect_answer(&p, "Slow because a token waits for 30% of its experts to be read from the disk. "
                      "1.17 GiB (+1.11) "
                      "holds all of them: 5.4 times as fast.");
    p.memory_steps[2] = (struct moe_plan_step){80 << 20, 210, 1};
    expect_answer(
        &p, "Almost as fast as with all experts in memory, though a token waits for 30% of "
            "its experts to be read from the disk. 80.0 MiB (+16.0) holds all of them: 5% faster.");
    p.host.total = 1 << 30;
    expect_answer(&p,
                  "Almost as fast as with all experts in memory, though a token waits for 30% of "
                  "its experts to be brought from main memory. 80.0 MiB (+16.0) holds all of them: "
                  "5% faster.");
    p.expected.decode_tokens_per_second = -1;
    expect_answer(&p, "The plan does not say how fast it is.");
}

/* A plan that knows nothing but its strategy. */
static void empty(void **state)
{
    struct moe_plan *p;
    struct moe_buf out = {0};
    struct moe_err err = {0};
    assert_ok(moe_plan_new(&p, 3, 4, 2, &err), &err);
    assert_true(moe_strategy_find("lru", &p->strategy));
    moe_explain_plan(p, MOE_PLAIN_SCREEN, &out);
    check_screen(&out, 50);
    const char *t = (const char *)out.data;
    assert_null(strstr(t, "nan"));
    assert_null(strstr(t, "-1"));
    assert_null(strstr(t, "What bounds"));
    expect_line(t, "The plan does not say how fast it is.\n\na model in 0 B for experts: ");
    moe_plan_free(p);
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds),           cmocka_unit_test(error_of_the_hit_rate),
        cmocka_unit_test(next_step),        cmocka_unit_test(assumptions),
        cmocka_unit_test(slots_and_layers), cmocka_unit_test(text),
        cmocka_unit_test(alternatives),     cmocka_unit_test(largest),
        cmocka_unit_test(resident),         cmocka_unit_test(json),
        cmocka_unit_test(answers),          cmocka_unit_test(empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
