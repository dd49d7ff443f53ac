/* Statistics as scripts see them: the documented keys, sums and shares. */
#include "../test.h"

#include <jansson.h>

#include "fmt/json.h"
#include "show/show.h"

/* A count of each kind that no other kind has, so that a mix-up shows. */
static const struct moe_stats SAMPLE = {
    .prefill = {.tokens = 10,
                .seconds = 2,
                .experts.activations = 1 + 2 + 4 + 8 + 16 + 32 + 64,
                .experts.cache_hits = 1,
                .experts.prefetch_hits = 2,
                .experts.prefetch_late = 4,
                .experts.misses = 8,
                .experts.host_computed = 16,
                .experts.precalculated = 32,
                .experts.skipped = 64,
                .experts.low_precision = 3,
                .experts.substituted = 5,
                .experts.predicted = 90,
                .experts.predicted_right = 60,
                .experts.prefetch_wasted_bytes = 700,
                .experts.loads = 11,
                .bytes_read = 5000,
                .bytes_uploaded = 7000,
                .host_hits = 6,
                .disk_loads = 5,
                .experts.evictions = 9,
                .stall_seconds = 0.5},
    .decode = {.tokens = 5,
               .seconds = 1,
               .experts.activations = 10,
               .experts.cache_hits = 6,
               .experts.prefetch_hits = 1,
               .experts.prefetch_late = 1,
               .experts.misses = 2,
               .experts.predicted = 8,
               .experts.predicted_right = 4,
               .experts.loads = 3,
               .bytes_read = 1000,
               .bytes_uploaded = 3000,
               .host_hits = 1,
               .disk_loads = 2,
               .experts.evictions = 2,
               .stall_seconds = 0.25},
    .ttft_seconds = 2.5,
    .prompt_tokens = 10,
    .generated_tokens = 6,
    .resident_expert_bytes_max = 12345,
    .peak_rss_bytes = 99999,
    .memory_budget_bytes = 100000,
    .strategy = "lru",
    .cache = "arc",
    .alloc = "per-layer",
    .device = "cpu",
    .settings = {.kv = "f16", .precision = "q4", .low_precision = "q2"},
};

static json_t *written(const struct moe_stats *stats)
{
    struct moe_buf out = {0};
    struct moe_err err = {0};
    moe_show_run_json(stats, &out);
    assert_false(out.failed);
    json_t *json;
    assert_ok(moe_json_parse(&json, "stats", out.data, out.size, MOE_JSON_CONFIG_MEMORY, &err),
              &err);
    moe_buf_release(&out);
    return json;
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("'%s' is missing or no number", key);
    return json_number_value(value);
}

static void assert_near(const json_t *object, const char *key, double want)
{
    double got = number(object, key);
    if (got < want - 1e-4 || got > want + 1e-4)
        fail_msg("'%s' is %f, expected %f", key, got, want);
}

static const char *const NUMBERS[] = {"answers",
                                      "context_tokens",
                                      "batch_tokens",
                                      "threads",
                                      "prompt_tokens",
                                      "generated_tokens",
                                      "ttft_s",
                                      "prefill_tokens_per_s",
                                      "decode_tokens_per_s",
                                      "expert_activations",
                                      "cache_hits",
                                      "prefetch_hits",
                                      "prefetch_late",
                                      "misses",
                                      "host_computed",
                                      "precalculated",
                                      "skipped",
                                      "low_precision",
                                      "substituted",
                                      "hit_rate",
                                      "prefetch_accuracy",
                                      "prefetch_wasted_bytes",
                                      "loads",
                                      "bytes_read",
                                      "bytes_per_token",
                                      "stall_s",
                                      "compute_s",
                                      "evictions",
                                      "resident_expert_bytes_max",
                                      "peak_rss_bytes",
                                      "memory_budget_bytes"};

static void every_key_of_the_contract_is_there(void **state)
{
    const struct moe_stats nothing = {.prompt_tokens = 0};
    const struct moe_stats *both[] = {&SAMPLE, &nothing};
    for (int i = 0; i < 2; i++) {
        json_t *json = written(both[i]);
        for (size_t k = 0; k < N_ITEMS(NUMBERS); k++) {
            double v = number(json, NUMBERS[k]);
            assert_true(i == 0 || v == 0); /* nothing counted: 0, not a division by it */
        }
        assert_string_equal(json_string_value(json_object_get(json, "strategy")), i ? "" : "lru");
        assert_string_equal(json_string_value(json_object_get(json, "cache")), i ? "" : "arc");
        assert_string_equal(json_string_value(json_object_get(json, "alloc")),
                            i ? "" : "per-layer");
        assert_string_equal(json_string_value(json_object_get(json, "device")), i ? "" : "cpu");
        moe_json_free(json);
    }
}

static void activations_add_up(void **state)
{
    static const char *const kinds[] = {"cache_hits",    "prefetch_hits", "prefetch_late", "misses",
                                        "host_computed", "precalculated", "skipped"};
    static const char *const counts[] = {"expert_activations",
                                         "low_precision",
                                         "substituted",
                                         "loads",
                                         "bytes_read",
                                         "evictions",
                                         "prefetch_wasted_bytes",
                                         "stall_s",
                                         "compute_s",
                                         "bytes_uploaded",
                                         "host_hits",
                                         "disk_loads"};
    json_t *json = written(&SAMPLE);
    const json_t *prefill = json_object_get(json, "prefill");
    const json_t *decode = json_object_get(json, "decode");
    const json_t *levels[] = {json, prefill, decode};
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (size_t k = 0; k < N_ITEMS(kinds); k++)
            sum += number(levels[i], kinds[k]);
        assert_near(levels[i], "expert_activations", sum);
        assert_near(levels[i], "hit_rate",
                    (number(levels[i], "cache_hits") + number(levels[i], "prefetch_hits")) / sum);
    }
    for (size_t k = 0; k < N_ITEMS(counts); k++)
        assert_near(json, counts[k], number(prefill, counts[k]) + number(decode, counts[k]));
    for (size_t k = 0; k < N_ITEMS(kinds); k++)
        assert_near(json, kinds[k], number(prefill, kinds[k]) + number(decode, kinds[k]));
    moe_json_free(json);
}

static void rates_are_what_they_say(void **state)
{
    json_t *json = written(&SAMPLE);
    assert_near(json, "prefill_tokens_per_s", 5);
    assert_near(json, "decode_tokens_per_s", 5);
    assert_near(json, "bytes_per_token", 200); /* of decode: prefill shares loads among tokens */
    assert_near(json, "prefetch_accuracy", 64.0 / 137);
    assert_near(json, "stall_s", 0.75);
    assert_near(json, "compute_s", 2.25);
    assert_near(json, "ttft_s", 2.5);
    assert_near(json, "memory_budget_bytes", 100000);
    assert_near(json_object_get(json, "prefill"), "bytes_per_token", 500);
    moe_json_free(json);
}

/* Only where there was something to choose. */
static void the_place_of_predictions(void **state)
{
    struct moe_stats s = SAMPLE;
    struct moe_buf out = {0};
    json_t *json = written(&s);
    moe_show_run(&s, &out);
    assert_null(json_object_get(json, "predict_on"));
    assert_null(json_object_get(json, "predict_gpu_us"));
    assert_null(strstr((char *)out.data, "predict "));
    moe_json_free(json);
    moe_buf_clear(&out);
    snprintf(s.predict_on, sizeof s.predict_on, "host");
    s.predict_gpu_seconds = 25e-6;
    s.predict_host_seconds = 12.5e-6;
    json = written(&s);
    moe_show_run(&s, &out);
    assert_string_equal(json_string_value(json_object_get(json, "predict_on")), "host");
    assert_near(json, "predict_gpu_us", 25);
    assert_near(json, "predict_host_us", 12.5);
    assert_non_null(strstr((char *)out.data,
                           "predict  on the host; for one row 25.0 us on the GPU, "
                           "12.5 us on the host\n"));
    moe_json_free(json);
    moe_buf_release(&out);
}

/* Joules of the phases and per token of each, or why there are none. */
static void energy_is_told_or_why_not(void **state)
{
    struct moe_stats s = SAMPLE, sum = SAMPLE;
    struct moe_buf out = {0};
    s.prefill.joules = 20;
    s.decode.joules = 5;
    moe_stats_add(&sum, &s);
    moe_stats_add(&sum, &s);
    assert_true(sum.prefill.joules == 40 && sum.decode.joules == 10);
    json_t *json = written(&s);
    assert_true(number(json, "energy_joules") == 25);
    assert_true(number(json, "prefill_joules_per_token") == 2);
    assert_true(number(json, "decode_joules_per_token") == 1);
    assert_null(json_object_get(json, "energy_unavailable"));
    moe_json_free(json);
    s.decode.tokens = 0;
    json = written(&s);
    assert_true(json_is_null(json_object_get(json, "decode_joules_per_token")));
    moe_json_free(json);
    moe_show_run(&SAMPLE, &out);
    assert_non_null(strstr((char *)out.data, "energy   0.000 J of the processor"));
    snprintf(s.no_energy, sizeof s.no_energy, "no counters");
    json = written(&s);
    assert_true(json_is_null(json_object_get(json, "energy_joules")));
    assert_true(json_is_null(json_object_get(json, "prefill_joules_per_token")));
    assert_string_equal(json_string_value(json_object_get(json, "energy_unavailable")),
                        "no counters");
    moe_json_free(json);
    moe_buf_clear(&out);
    moe_show_run(&s, &out);
    assert_non_null(strstr((char *)out.data, "energy   unavailable: no counters\n"));
    moe_buf_release(&out);
}

static void sums_join(void **state)
{
    struct moe_stats sum = SAMPLE, part = SAMPLE;
    part.ttft_seconds = 1;
    part.peak_rss_bytes = 5;
    part.resident_expert_bytes_max = 22222;
    snprintf(part.strategy, sizeof part.strategy, "fate");
    moe_stats_add(&sum, &part);
    json_t *json = written(&sum), *one = written(&SAMPLE);
    static const char *const doubled[] = {"prompt_tokens",
                                          "generated_tokens",
                                          "expert_activations",
                                          "cache_hits",
                                          "prefetch_hits",
                                          "prefetch_late",
                                          "misses",
                                          "host_computed",
                                          "precalculated",
                                          "skipped",
                                          "low_precision",
                                          "substituted",
                                          "prefetch_wasted_bytes",
                                          "loads",
                                          "bytes_read",
                                          "bytes_uploaded",
                                          "host_hits",
                                          "disk_loads",
                                          "stall_s",
                                          "compute_s",
                                          "evictions"};
    for (size_t k = 0; k < N_ITEMS(doubled); k++)
        assert_near(json, doubled[k], 2 * number(one, doubled[k]));
    assert_near(json, "hit_rate", number(one, "hit_rate"));
    assert_near(json, "prefetch_accuracy", number(one, "prefetch_accuracy"));
    assert_near(json, "ttft_s", 1);
    assert_near(json, "peak_rss_bytes", 99999);
    assert_near(json, "resident_expert_bytes_max", 22222);
    assert_string_equal(json_string_value(json_object_get(json, "strategy")), "fate");
    moe_json_free(json);
    moe_json_free(one);
}

/* An encoder's passes are a phase of their own, and a part of the whole; without one there is no
 * such phase. */
static void encoders_have_a_phase(void **state)
{
    struct moe_stats s = SAMPLE, sum = SAMPLE;
    struct moe_buf out = {0};
    json_t *json = written(&SAMPLE);
    assert_null(json_object_get(json, "encode"));
    assert_null(json_object_get(json_object_get(json, "prefill"), "over_capacity"));
    moe_json_free(json);
    s.encode = SAMPLE.prefill;
    s.encode.tokens = 40;
    s.encode.over_capacity = 17;
    s.encode.experts.skipped = s.encode.experts.low_precision = 0;
    s.encode.experts.activations -= 64;
    s.encode.joules = 30;
    json = written(&s);
    const json_t *encode = json_object_get(json, "encode");
    assert_near(encode, "tokens", 40);
    assert_near(encode, "tokens_per_s", 20);
    assert_near(encode, "over_capacity", 17);
    assert_near(encode, "expert_activations", 127 - 64);
    assert_near(json, "expert_activations", 127 + 10 + 127 - 64);
    assert_near(json, "bytes_read", 11000);
    assert_near(json, "stall_s", 1.25);
    assert_near(json, "compute_s", 3.75);
    assert_near(json, "energy_joules", 30);
    assert_near(json_object_get(json, "prefill"), "tokens", 10);
    moe_json_free(json);

    moe_show_run(&s, &out);
    assert_non_null(strstr((char *)out.data, "encode       40 tokens in 2.000 s: 20.0 tokens/s\n"));
    assert_non_null(strstr((char *)out.data, "capacity 17 choices beyond an expert's"));
    assert_non_null(strstr((char *)out.data, "200 activations"));
    moe_buf_clear(&out);
    moe_show_run(&SAMPLE, &out);
    assert_null(strstr((char *)out.data, "encode"));
    assert_null(strstr((char *)out.data, "capacity"));
    moe_buf_release(&out);

    moe_stats_add(&sum, &s);
    moe_stats_add(&sum, &s);
    assert_int_equal(sum.encode.tokens, 80);
    assert_int_equal(sum.encode.over_capacity, 34);
    assert_int_equal(moe_stats_all(&sum).tokens, 3 * 15 + 80);

    /* What its passes changed, --exact hears of. */
    struct moe_err err = {0};
    struct moe_stats changed = {.encode.experts = {.activations = 9, .low_precision = 2},
                                .exact_required = true};
    assert_fails(moe_stats_check_exact(&changed, &err), MOE_ERR_LIMIT,
                 "of 9 activations 2 at low precision", &err);
    changed.encode.experts.low_precision = 0;
    changed.encode.over_capacity = 2; /* a part of the model */
    assert_ok(moe_stats_check_exact(&changed, &err), &err);
}

static void names_cannot_break_the_object(void **state)
{
    struct moe_stats s = SAMPLE;
    snprintf(s.strategy, sizeof s.strategy, "a\"b\\c\nd");
    json_t *json = written(&s);
    assert_string_equal(json_string_value(json_object_get(json, "strategy")), "a\"b\\c\nd");
    moe_json_free(json);
}

static void texts_tell_the_same(void **state)
{
    struct moe_buf out = {0};
    moe_show_run(&SAMPLE, &out);
    assert_non_null(strstr((char *)out.data, "strategy lru (cache arc, per-layer) on cpu\n"));
    assert_non_null(strstr((char *)out.data, "137 activations"));
    assert_non_null(strstr((char *)out.data, "hit rate 7.30%")); /* 10 of 137 */
    assert_non_null(strstr((char *)out.data, "0.750 s stalled"));
    assert_non_null(strstr((char *)out.data, "to the GPU, 7 loads from host memory, 7 from disk"));
    assert_non_null(strstr((char *)out.data, "65.3% of 98 activations predicted")); /* 64 */
    assert_non_null(strstr((char *)out.data, "48 activations computed on it, 32 of them"));
    assert_non_null(strstr((char *)out.data, "3 at low precision, 64 left out, 32 from an earlier "
                                             "state, 5 not the router's choice"));
    moe_buf_clear(&out);
    /* What keeps no cache says nothing of one. */
    struct moe_stats resident = SAMPLE;
    snprintf(resident.strategy, sizeof resident.strategy, "resident");
    snprintf(resident.cache, sizeof resident.cache, "none");
    moe_buf_clear(&out);
    moe_show_run(&resident, &out);
    assert_non_null(strstr((char *)out.data, "strategy resident on cpu\n"));
    /* Nor of guesses and changes, where there were none. */
    const struct moe_stats plain = {.device = "cpu"};
    moe_buf_clear(&out);
    moe_show_run(&plain, &out);
    assert_null(strstr((char *)out.data, "predicted"));
    assert_null(strstr((char *)out.data, "changed"));
    moe_buf_release(&out);
}

/* The line below an answer says what fits, and of reading nothing where nothing was read. */
static void the_line_fits(void **state)
{
    struct moe_buf out = {0};
    const char *whole = "5.0 tok/s, 2.50 s to first token, not exact, 7% hits, 200 B/token read";
    for (int width = 0; width <= 200; width++) {
        moe_buf_clear(&out);
        moe_show_run_line(&SAMPLE, width, &out);
        assert_true(out.size <= (uint64_t)width);
        assert_true(!out.size || strncmp((char *)out.data, whole, out.size) == 0);
        assert_int_equal(width >= (int)strlen(whole), out.size == strlen(whole));
    }
    moe_buf_clear(&out);
    moe_show_run_line(&SAMPLE, 43, &out);
    assert_string_equal((char *)out.data, "5.0 tok/s, 2.50 s to first token, not exact");
    const struct moe_stats resident = {.decode = {.tokens = 45, .seconds = 0.5},
                                       .ttft_seconds = 0.061};
    moe_buf_clear(&out);
    moe_show_run_line(&resident, 80, &out);
    assert_string_equal((char *)out.data, "90 tok/s, 0.06 s to first token");
    const struct moe_stats slow = {.decode = {.tokens = 3, .seconds = 8}, .ttft_seconds = 21};
    moe_buf_clear(&out);
    moe_show_run_line(&slow, 80, &out);
    assert_string_equal((char *)out.data, "0.38 tok/s, 21.00 s to first token");
    moe_buf_release(&out);
}

/* ---- Exactness ---- */

static void expect_exactness(const struct moe_stats *stats, bool asked, bool done, const char *says)
{
    struct moe_buf out = {0};
    json_t *json = written(stats), *exact = json_object_get(json, "exact");
    assert_int_equal(json_is_true(json_object_get(exact, "required")), stats->exact_required);
    assert_int_equal(json_is_true(json_object_get(exact, "as_asked")), asked);
    assert_int_equal(json_is_true(json_object_get(exact, "as_done")), done);
    assert_string_equal(json_string_value(json_object_get(exact, "why")), stats->inexact);
    moe_show_run(stats, &out);
    assert_non_null(strstr((char *)out.data, says));
    moe_buf_clear(&out);
    moe_show_run_line(stats, 200, &out);
    assert_true(!strstr((char *)out.data, "not exact") == done);
    moe_buf_release(&out);
    moe_json_free(json);
}

static void exactness_is_judged_twice(void **state)
{
    struct moe_stats s = {.device = "cpu", .exact_required = true};
    expect_exactness(&s, true, true,
                     "exact    yes: nothing that was asked for may change results\n");
    strcpy(s.inexact, "--skip-below 10%");
    expect_exactness(&s, false, true,
                     "exact    as done: nothing was changed; what may: --skip-below");
    s.decode.experts.skipped = 1;
    expect_exactness(&s, false, false, "exact    no: --skip-below 10%\n");
}

/* Each of these is enough, in either phase: it has changed results, whatever had let it. */
static void one_change_breaks_exact(void **state)
{
    for (int i = 0; i < 2 * 4; i++) {
        struct moe_stats s = {.device = "cpu"};
        struct moe_err err = {0};
        struct moe_counts *n = i % 2 ? &s.prefill.experts : &s.decode.experts;
        uint64_t *const changes[] = {&n->low_precision, &n->skipped, &n->precalculated,
                                     &n->substituted};
        static const char *const says[] = {"of 7 activations 1 at low precision", " 1 left out",
                                           " 1 from an earlier state",
                                           " 1 not the router's choice"};
        n->activations = 7;
        assert_ok(moe_stats_check_exact(&s, &err), &err);
        *changes[i / 2] = 1;
        assert_false(moe_stats_exact(&s));
        assert_fails(moe_stats_check_exact(&s, &err), MOE_ERR_LIMIT, "--exact did not hold", &err);
        assert_non_null(strstr(err.text, says[i / 2]));
    }
    /* The host computes as the CPU does, bit for bit, but not as a GPU. */
    struct moe_stats s = {.device = "test", .decode.experts.host_computed = 3};
    struct moe_err err = {0};
    assert_ok(moe_stats_check_exact(&s, &err), &err);
    strcpy(s.device, "cuda");
    assert_fails(moe_stats_check_exact(&s, &err), MOE_ERR_LIMIT, " 3 on the host beside a GPU",
                 &err);
    s = (struct moe_stats){.device = "cuda", .bf16_rows = 9};
    assert_fails(moe_stats_check_exact(&s, &err), MOE_ERR_LIMIT, " 9 rows in bf16", &err);
    s = (struct moe_stats){
        .device = "cuda", .settings.kv = "q8", .prefill.tokens = 4, .decode.tokens = 2};
    assert_fails(moe_stats_check_exact(&s, &err), MOE_ERR_LIMIT, " 6 rows with keys and values of",
                 &err);
    strcpy(s.settings.kv, "f16");
    assert_ok(moe_stats_check_exact(&s, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exactness_is_judged_twice),
        cmocka_unit_test(one_change_breaks_exact),
        cmocka_unit_test(every_key_of_the_contract_is_there),
        cmocka_unit_test(activations_add_up),
        cmocka_unit_test(rates_are_what_they_say),
        cmocka_unit_test(the_place_of_predictions),
        cmocka_unit_test(energy_is_told_or_why_not),
        cmocka_unit_test(sums_join),
        cmocka_unit_test(encoders_have_a_phase),
        cmocka_unit_test(names_cannot_break_the_object),
        cmocka_unit_test(texts_tell_the_same),
        cmocka_unit_test(the_line_fits),
    };
    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
