/* Two plans beside each other, a plan beside its run: figures worked out here, and files of runs
 * that are damaged. And heat maps. */
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../plan_fixture.h"
#include "show/compare.h"
#include "show/explain.h"

static char path[128];

static void write_file(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* 10 ms a token: 6 computing, 1 handling, 3 waiting; prompts 1 ms. */
static struct moe_plan *some_plan(void)
{
    struct moe_plan *p = full_plan();
    p->expected.decode_tokens_per_second = 100;
    p->expected.compute_seconds = 6e-3;
    p->expected.handling_seconds = 1e-3;
    p->expected.stall_seconds = 3e-3;
    p->expected.host_seconds = 0;
    p->expected.prefill_tokens_per_second = 1000;
    p->expected.hit_rate = 0.6;
    p->expected.bytes_per_token = 1 << 20;
    p->expected.loads_per_token = 8;
    p->expected.link_seconds = 2e-3;
    return p;
}

static const struct moe_compared *figure(const struct moe_comparison *c, const char *key)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->figures[i].key, key) == 0)
            return &c->figures[i];
    fail_msg("no figure '%s'", key);
    return NULL;
}

static void expect_text(const struct moe_comparison *c, const char *words)
{
    struct moe_buf out = {0};
    char all[8192];
    uint32_t n = 0;
    moe_draw_comparison(c, MOE_PLAIN_SCREEN, &out);
    assert_false(out.failed);
    for (const char *at = (const char *)out.data; *at && n + 1 < sizeof all; at++)
        if ((*at != ' ' && *at != '\n') || (n && all[n - 1] != ' '))
            all[n++] = *at == '\n' ? ' ' : *at;
    all[n] = 0;
    if (!strstr(all, words))
        fail_msg("'%s' is not in\n%s", words, (const char *)out.data);
    moe_buf_release(&out);
}

static void two_plans(void **state)
{
    struct moe_plan *a = some_plan(), *b = some_plan();
    struct moe_comparison c;
    moe_compare_plans(a, b, &c);
    assert_null(moe_compared_most(&c));
    expect_text(&c, "none of their settings");
    expect_text(&c, "The second plan is as fast as the first.");
    b->memory.total *= 2;
    b->memory.context = 256;
    b->pace.loads.interruptions = 5.7;
    b->pace.loads.late = 1.3e-3;
    b->expected.decode_tokens_per_second = 125; /* 8 ms */
    b->expected.stall_seconds = 0.5e-3;
    b->expected.compute_seconds = 6.5e-3;
    a->pack_fingerprint = 1;
    b->pack_fingerprint = 2;
    strcpy(a->evidence.learnt, "some/l.moel");
    a->evidence.learnt_tokens = 1234;
    moe_compare_plans(a, b, &c);
    expect_text(&c, "(0000000000000001)");
    expect_text(&c, "(0000000000000002)");
    assert_float_equal(moe_compared_change(figure(&c, "decode_tokens_per_s")), 0.25, 1e-12);
    assert_float_equal(moe_compared_change(figure(&c, "token_s")), -0.2, 1e-12);
    assert_string_equal(moe_compared_most(&c)->key, "stall_s");
    assert_true(c.n_decode < c.n);
    expect_text(&c, "memory 97.66 KiB -> 195.31 KiB learnt (--learn) l.moel, 1234 tokens -> "
                    "nothing context 512 -> 256");
    expect_text(&c, "other programs slow it 1.5 times -> 5.7 times a wait ends late by 0.20 ms -> "
                    "1.30 ms");
    expect_text(&c, "waiting for loads 3.000 ms 0.500 ms -83.3%");
    expect_text(&c, "experts found in memory 60.0% 60.0% +0.0 points");
    expect_text(&c,
                "The second plan is 25.0% faster than the first. What differs most in a token's "
                "time is waiting for loads: 0.500 ms instead of 3.000.");
    moe_plan_free(a);
    moe_plan_free(b);
}

/* What is not known of one is a dash, and no reason for a verdict. */
static void little_is_known(void **state)
{
    struct moe_plan *a = some_plan(), *b = resident_plan();
    struct moe_comparison c;
    struct moe_buf out = {0};
    struct moe_err err = {0};
    moe_compare_plans(a, b, &c);
    expect_text(&c, "tokens/s of an answer 100.0 -");
    expect_text(&c, "One of the two does not know the speed of an answer.");
    assert_ok(moe_comparison_json(&c, &out, &err), &err);
    assert_null(strstr((const char *)out.data, "nan"));
    moe_plan_free(a);
    moe_plan_free(b);
    moe_buf_release(&out);
}

#define RUN                                                                                        \
    "{\"strategy\": \"fate\", \"memory_budget_bytes\": 100000,\n"                                  \
    "\"prefill\": {\"tokens\": 10, \"tokens_per_s\": 500, \"compute_s\": 0.02},\n"                 \
    "\"decode\": {\"tokens\": 200, \"tokens_per_s\": 80, \"compute_s\": 1.3, \"handling_s\": "     \
    "0.2,\n"                                                                                       \
    "\"stall_s\": 1.0, \"host_wait_s\": 0, \"hit_rate\": 0.5, \"bytes_per_token\": 2097152,\n"     \
    "\"loads\": 3200, \"read_s\": 0.8}}\n"

static void a_run(void **state)
{
    struct moe_plan *p = some_plan();
    struct moe_run_figures run;
    struct moe_comparison c;
    struct moe_err err = {0};
    struct moe_buf out = {0};
    write_file(RUN);
    assert_true(moe_run_figures_is(path));
    assert_ok(moe_run_figures_read(&run, path, &err), &err);
    assert_float_equal(run.decode.components.seconds[MOE_COMPONENT_STALL], 5e-3, 1e-12);
    assert_float_equal(run.decode.loads_per_token, 16, 1e-12);
    assert_float_equal(run.prefill.hit_rate, -1, 0);
    moe_compare_run(p, &run, &c);
    assert_true(c.same_plan);
    assert_string_equal(moe_compared_most(&c)->key, "stall_s");
    assert_float_equal(moe_compared_change(figure(&c, "decode_tokens_per_s")), -0.2, 1e-12);
    expect_text(&c, "The run was 20.0% slower than planned.");
    expect_text(&c, "computing 6.000 ms 6.500 ms +8.3%");
    expect_text(&c, "loads for a token 8.00 16.00 +100.0%");
    expect_text(&c, "experts found in memory 60.0% 50.0% -10.0 points");
    assert_ok(moe_comparison_json(&c, &out, &err), &err);
    assert_non_null(strstr((const char *)out.data, "\"differs_most\": \"stall_s\""));
    /* A run of one answer is beside a first one, and what the plan decides beside what the run had.
     */
    run.answers = 1;
    p->first = p->expected;
    p->first.decode_tokens_per_second = 64;
    p->memory.batch = 64;
    run.batch = 64;
    moe_compare_run(p, &run, &c);
    assert_true(c.same_plan && c.first);
    expect_text(&c, "The run was 25.0% faster than planned.");
    expect_text(&c, "Planned is a first answer");
    p->evidence.prompt_tokens = 512;
    const struct moe_run_figures followed = run;
    run.batch = 16;
    strcpy(run.kv, "q8");
    moe_compare_run(p, &run, &c);
    assert_false(c.same_plan);
    expect_text(&c, "batches of a prompt 64 -> 16 keys and values f16 -> q8");
    /* A run of another pack, or with other things learnt; more of the same is the plan's. */
    run = followed;
    strcpy(run.model, "wide.moe");
    run.fingerprint = p->pack_fingerprint = 1;
    moe_compare_run(p, &run, &c);
    assert_true(c.same_plan);
    run.fingerprint = 2;
    moe_compare_run(p, &run, &c);
    assert_false(c.same_plan);
    expect_text(&c, "-> wide.moe");
    run.fingerprint = 1;
    strcpy(p->evidence.learnt, "some/l.moel");
    moe_compare_run(p, &run, &c);
    assert_false(c.same_plan);
    expect_text(&c, "learnt (--learn) l.moel, 0 tokens -> nothing");
    strcpy(run.learnt, "l.moel");
    run.learnt_tokens = 99;
    moe_compare_run(p, &run, &c);
    assert_true(c.same_plan);
    expect_text(&c, "l.moel, 99 tokens");
    p->evidence.learnt[0] = 0;
    run.learnt[0] = 0;
    run.batch = 16;
    strcpy(run.kv, "q8");
    run.answers = 2;
    run.prefill.tokens = 600;
    moe_compare_run(p, &run, &c);
    expect_text(&c, "The run was 20.0% slower than planned.");
    expect_text(&c, "tokens of a prompt 512 -> 300");
    expect_text(&c, "Prompts do not compare: the plan's have 512 tokens, the run's 300");
    run.prefill.tokens = 2 * 500;
    run.decode.displaced_seconds = 1e-3;
    moe_compare_run(p, &run, &c);
    expect_text(&c, "1.0 ms of a token's time were lost to other programs, or to waiting for a "
                    "thread.");
    expect_text(&c, "tokens/s of a prompt");
    /* Strategies are named by what differs from the table's, and much faster is said so. */
    strcpy(run.strategy, "lru");
    strcpy(run.parts, "--cache learned --prefill popularity");
    run.decode.tokens_per_second = 292 * 100;
    moe_compare_run(p, &run, &c);
    expect_text(&c, "strategy fate+alloc=shallow:1 -> lru+cache=learned+prefill=popularity");
    expect_text(&c, "292 times");
    run.decode.tokens = 3;
    moe_compare_run(p, &run, &c);
    expect_text(&c,
                "The run decoded 3 tokens: too few to judge a plan by; moe-run -n 51 or more is "
                "better.");
    expect_text(&c, "it did not follow this plan");
    moe_plan_free(p);
    moe_buf_release(&out);
}

static void damaged_runs_are_refused(void **state)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"{\"strategy\": \"lru\"}", "no 'decode': not what moe-run --stats-json writes"},
        {"{\"strategy\": \"lru\", \"decode\": {}}", "no 'prefill'"},
        {"{\"strategy\": \"lru\", \"decode\": []}", "no 'decode'"},
        {"{\"decode\": {}, \"prefill\": {}}", "'strategy' is missing"},
        {"{\"strategy\": \"lru\", \"decode\": {\"tokens\": -3}, \"prefill\": {}}",
         "'tokens' is -3, expected 0 or more"},
        {"{\"strategy\": \"lru\", \"decode\": {\"tokens\": \"x\"}, \"prefill\": {}}",
         "a number was expected"},
        {"{\"strategy\": \"lru\", \"decode\": {", "line 1"},
        {"{", "line 1"},
    };
    struct moe_run_figures run;
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(rows); i++) {
        write_file(rows[i].text);
        assert_fails(moe_run_figures_read(&run, path, &err), MOE_ERR_FORMAT, rows[i].words, &err);
    }
    write_file("{\"strategy\": \"lru\", \"decode\": {}, \"prefill\": {}}");
    assert_ok(moe_run_figures_read(&run, path, &err), &err);
    struct moe_plan *p = some_plan();
    struct moe_comparison c;
    moe_compare_run(p, &run, &c);
    expect_text(&c, "One of the two does not know the speed of an answer.");
    moe_plan_free(p);
    unlink(path);
    assert_false(moe_run_figures_is(path));
    assert_true(moe_run_figures_read(&run, path, &err) != MOE_OK);
}

/* ---- Heat maps ---- */

/* No line is wider than the screen, whatever there is to draw; neither are there too many. */
static void a_heat_map_fits(void **state)
{
    static const uint32_t shapes[][2] = {{1, 1}, {2, 8}, {48, 128}, {300, 512}, {4096, 256}};
    struct moe_err err = {0};
    for (size_t i = 0; i < N_ITEMS(shapes); i++)
        for (uint32_t columns = MOE_LEAST_COLUMNS; columns <= MOE_MOST_COLUMNS; columns += 35) {
            const struct moe_screen screen = {.columns = columns};
            struct moe_heat heat;
            struct moe_buf out = {0};
            uint32_t lines = 0, column = 0;
            assert_ok(moe_heat_init(&heat, shapes[i][0], shapes[i][1], &err), &err);
            moe_draw_heat(&heat, screen, &out);
            assert_false(out.failed);
            for (const char *c = (const char *)out.data; *c; c++) {
                column = *c == '\n' ? 0 : column + 1;
                lines += *c == '\n';
                assert_true(column <= columns);
            }
            assert_true(lines <= MOE_HEAT_LINES && lines > 0);
            moe_heat_release(&heat);
            moe_buf_release(&out);
        }
}

static void a_heat_map_has_shades(void **state)
{
    static const uint64_t counts[] = {0, 1, 2, 5, 0, 0, 0, 0};
    struct moe_err err = {0};
    struct moe_heat heat;
    struct moe_buf out = {0};
    assert_ok(moe_heat_of_counts(&heat, counts, 2, 4, &err), &err);
    moe_draw_heat(&heat, MOE_PLAIN_SCREEN, &out);
    assert_string_equal((const char *)out.data, "     0 | .:#|\n     1 |????|\n");
    moe_buf_clear(&out);
    moe_draw_heat(&heat, (struct moe_screen){.columns = 80, .colour = true}, &out);
    assert_string_equal((const char *)out.data,
                        "     0 | \033[38;5;67m.\033[38;5;151m:\033[38;5;209m#\033[0m|\n"
                        "     1 |????|\n");
    moe_heat_release(&heat);
    moe_buf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_plans),       cmocka_unit_test(little_is_known),
        cmocka_unit_test(a_run),           cmocka_unit_test(damaged_runs_are_refused),
        cmocka_unit_test(a_heat_map_fits), cmocka_unit_test(a_heat_map_has_shades),
    };
    snprintf(path, sizeof path, "/tmp/moe-test-compare-%d.json", (int)getpid());
    int failed = cmocka_run_group_tests_name("compare", tests, NULL, NULL);
    unlink(path);
    return failed;
}
