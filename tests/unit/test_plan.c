/* Plans in their file: round trips member by member, both forms, refusals, the manual's example. */
#include "plan/plan.h"

#include <jansson.h>
#include <unistd.h>

#include "../plan_fixture.h"
#include "../test.h"
#include "base/file.h"
#include "fmt/json.h"
#include "random_strategy.h"

static char path[64];

/* ---- Helpers ---- */

static void write_text(const void *text, uint64_t n)
{
    struct moe_err err = {0};
    assert_ok(moe_file_write_all(path, text, n, &err), &err);
}

static struct moe_plan *read_back(const struct moe_buf *text)
{
    struct moe_err err = {0};
    struct moe_plan *p = NULL;
    write_text(text->data, text->size);
    assert_ok(moe_plan_read(&p, path, &err), &err);
    return p;
}

static struct moe_buf written(const struct moe_plan *p, bool json)
{
    struct moe_err err = {0};
    struct moe_buf text = {0};
    assert_ok(moe_plan_write(p, json, &text, &err), &err);
    return text;
}

#define SAME(field) assert_true(a->field == b->field)
#define SAME_TEXT(field) assert_string_equal(a->field, b->field)

static void assert_same_u32s(const uint32_t *a, const uint32_t *b, uint32_t n)
{
    assert_int_equal(a != NULL, b != NULL);
    for (uint32_t i = 0; a && i < n; i++)
        assert_int_equal(a[i], b[i]);
}

static void assert_same_line(const struct moe_line *a, const struct moe_line *b)
{
    SAME(n);
    for (uint32_t i = 0; i < a->n; i++) {
        SAME(x[i]);
        SAME(y[i]);
    }
}

static void assert_same_places(const struct moe_plan *a, const struct moe_plan *b)
{
    SAME(memory.total), SAME(memory.program), SAME(memory.dense), SAME(memory.kv);
    SAME(memory.work), SAME(memory.experts), SAME(memory.floor), SAME(memory.token);
    SAME(memory.all), SAME(memory.context), SAME(memory.batch);
    SAME(host.total), SAME(host.program), SAME(host.dense), SAME(host.kv);
    SAME(host.work), SAME(host.experts), SAME(host.floor);
    SAME(n_pools);
    for (uint32_t i = 0; i < a->n_pools; i++) {
        SAME(pools[i].slot_bytes), SAME(pools[i].n_cache), SAME(pools[i].n_working);
        assert_same_u32s(a->pools[i].per_layer, b->pools[i].per_layer, a->n_layers);
    }
    SAME(n_contents);
    assert_same_u32s(a->contents, b->contents, a->n_contents);
    SAME(layer_seconds), SAME(load_seconds), SAME(slack_loads);
    SAME(boundary_accuracy), SAME(boundary_stall);
}

static void assert_same_pace(const struct moe_plan *a, const struct moe_plan *b)
{
    SAME(pace.n_variants), SAME(pace.head), SAME(pace.predict), SAME(pace.load_rate),
        SAME(pace.host_slowdown);
    for (int i = 0; i < MOE_N_PIECES; i++)
        assert_same_line(&a->pace.pieces[i], &b->pace.pieces[i]);
    SAME(pace.attend), SAME(pace.positions), SAME(pace.loads.latency), SAME(pace.loads.handling);
    SAME(pace.loads.handling_byte), SAME(pace.loads.slowdown), SAME(pace.loads.wake);
    SAME(pace.loads.late), SAME(pace.loads.interruptions);
    SAME(pace.loads.demands_in_flight), SAME(pace.loads.prefetches_in_flight);
    for (int i = 0; i < MOE_MAX_VARIANTS; i++) {
        SAME_TEXT(variants[i]);
        assert_same_line(&a->pace.experts[i], &b->pace.experts[i]);
    }
}

static void assert_same_expectations(const struct moe_plan *a, const struct moe_plan *b)
{
    SAME_TEXT(evidence.trace), SAME(evidence.trace_sequences), SAME(evidence.trace_tokens);
    SAME(evidence.trace_prompt_tokens);
    SAME_TEXT(evidence.statistics), SAME(evidence.statistics_tokens);
    SAME_TEXT(evidence.device), SAME(evidence.times_measured), SAME(evidence.times_stated),
        SAME(evidence.loads_over_bus);
    SAME(evidence.manner_known);
    SAME_TEXT(evidence.calibration), SAME_TEXT(evidence.calibration_texts), SAME(n_losses);
    for (uint32_t i = 0; i < a->n_losses; i++) {
        SAME_TEXT(losses[i].part), SAME(losses[i].tokens);
        SAME(losses[i].nll_percent), SAME(losses[i].nll_error);
        SAME(losses[i].top1_points), SAME(losses[i].top1_error);
    }
    SAME(expected.decode_tokens_per_second), SAME(expected.prefill_tokens_per_second);
    SAME(expected.hit_rate), SAME(expected.optimal_hit_rate), SAME(expected.accuracy);
    SAME(expected.bytes_per_token), SAME(expected.compute_seconds);
    SAME(expected.stall_seconds), SAME(expected.host_seconds), SAME(expected.link_seconds);
    SAME(expected.handling_seconds), SAME(expected.loads_per_token);
    SAME(expected.decode_error), SAME(expected.skipped_rate);
    SAME(expected.prefill_compute_seconds), SAME(expected.prefill_handling_seconds);
    SAME(expected.prefill_stall_seconds), SAME(expected.prefill_host_seconds);
    SAME(expected.compute_limit_seconds), SAME(expected.link_limit_seconds);
    SAME(evidence.threads), SAME(first.decode_tokens_per_second), SAME(first.hit_rate);
    SAME(first.prefill_tokens_per_second), SAME(first.bytes_per_token);
    for (uint32_t l = 0; l < a->n_layers; l++) {
        SAME(layers[l].hit_rate), SAME(layers[l].accuracy), SAME(layers[l].stall_seconds);
    }
    SAME(n_memory_steps), SAME(n_rate_steps), SAME(n_tried);
    for (uint32_t i = 0; i < MOE_PLAN_MAX_STEPS; i++) {
        SAME(memory_steps[i].amount), SAME(memory_steps[i].decode_tokens_per_second);
        SAME(memory_steps[i].hit_rate);
        SAME(rate_steps[i].amount), SAME(rate_steps[i].decode_tokens_per_second);
        SAME(rate_steps[i].hit_rate);
    }
    for (uint32_t i = 0; i < a->n_tried; i++) {
        SAME_TEXT(tried[i].strategy), SAME(tried[i].decode_tokens_per_second);
        SAME(tried[i].hit_rate);
    }
}

static void assert_same_plan(const struct moe_plan *a, const struct moe_plan *b)
{
    SAME(pack_fingerprint), SAME(n_layers), SAME(n_experts), SAME(top_k);
    SAME_TEXT(pack), SAME_TEXT(high), SAME_TEXT(low);
    SAME(strategy.name), SAME(strategy.describe);
    assert_same(&a->strategy, &b->strategy);
    SAME(strategy.boundary_from), SAME(strategy.thresholds_from);
    assert_same_places(a, b);
    assert_same_pace(a, b);
    assert_same_expectations(a, b);
}

/* Through YAML, and through JSON, which is YAML to its reader. */
static void comes_back(const struct moe_plan *p)
{
    for (int json = 0; json < 2; json++) {
        struct moe_buf first = written(p, json);
        struct moe_plan *again = read_back(&first);
        struct moe_buf second = written(again, json);
        assert_same_plan(p, again);
        assert_string_equal(first.data, second.data);
        moe_plan_free(again);
        moe_buf_release(&first);
        moe_buf_release(&second);
    }
}

/* ---- Round trips ---- */

static void a_full_plan_comes_back(void **state)
{
    struct moe_plan *p = full_plan();
    comes_back(p);
    moe_plan_free(p);
}

static void a_minimal_plan_comes_back(void **state)
{
    struct moe_plan *p = resident_plan();
    struct moe_buf text = written(p, false);
    comes_back(p);
    assert_string_equal(text.data, "# Plan: see moe-plan(5).\n"
                                   "format: moe-plan\n"
                                   "version: 1\n"
                                   "shape:\n"
                                   "  moe_layers: 1\n"
                                   "  experts: 1\n"
                                   "  experts_per_token: 1\n"
                                   "strategy:\n"
                                   "  row: resident\n");
    moe_buf_release(&text);
    moe_plan_free(p);
}

static void a_plan_of_a_shape_comes_back(void **state)
{
    struct moe_plan *p = shape_plan();
    comes_back(p);
    moe_plan_free(p);
}

/* What is below 0 in any way, or not finite, is not known. */
static void what_is_not_known_is_left_out(void **state)
{
    struct moe_plan *p = shape_plan(), *again;
    p->expected.accuracy = -7;
    p->expected.hit_rate = strtod("nan", NULL);
    p->load_seconds = strtod("inf", NULL);
    struct moe_buf text = written(p, false);
    assert_null(strstr((const char *)text.data, "hit_rate"));
    again = read_back(&text);
    assert_true(again->expected.accuracy == -1 && again->expected.hit_rate == -1);
    assert_true(again->load_seconds == 0 && again->expected.stall_seconds == 0);
    assert_int_equal(again->boundary_stall, UINT32_MAX);
    moe_plan_free(again);
    moe_plan_free(p);
    moe_buf_release(&text);
}

static void every_row_comes_back(void **state)
{
    for (int i = 0; moe_strategy_name_at(i); i++) {
        struct moe_plan *p = new_plan(12, 4, 2, moe_strategy_name_at(i));
        comes_back(p);
        moe_plan_free(p);
    }
}

static void random_strategies_come_back(void **state)
{
    struct moe_err err = {0};
    uint64_t seed = 11;
    for (int i = 0; i < 500; i++) {
        struct moe_plan *p = new_plan(12, 4, 2, "lru");
        p->strategy = random_strategy(&seed);
        moe_strategy_drop_idle(&p->strategy, 0);
        assert_ok(moe_strategy_settle(&p->strategy, &err), &err);
        moe_strategy_fit(&p->strategy, p->n_layers, NULL);
        comes_back(p);
        moe_plan_free(p);
    }
}

/* Any order of loading, between the layers too. */
static void contents_keep_their_order(void **state)
{
    enum { LAYERS = 5, EXPERTS = 7, ALL = LAYERS * EXPERTS };
    uint64_t seed = 3;
    for (int round = 0; round < 100; round++) {
        struct moe_plan *p = new_plan(LAYERS, EXPERTS, 2, "lru");
        uint32_t keys[ALL], n = (uint32_t)(test_random(&seed) % (ALL + 1));
        for (uint32_t i = 0; i < ALL; i++) {
            uint32_t j = (uint32_t)(test_random(&seed) % (i + 1));
            keys[i] = keys[j];
            keys[j] = i;
        }
        p->n_pools = 1;
        p->pools[0] = (struct moe_plan_pool){1, ALL, 1, NULL};
        p->n_contents = n;
        p->contents = n ? copy_u32s(keys, n) : NULL;
        comes_back(p);
        moe_plan_free(p);
    }
}

static void contents_are_a_line_for_each_layer(void **state)
{
    struct moe_plan *p = full_plan(); /* 7 2 0 9 4 1 of 4 experts */
    struct moe_buf text = written(p, false);
    assert_non_null(strstr((const char *)text.data, "contents:\n"
                                                    "  layers:\n"
                                                    "    - [2, 0, 1]\n"
                                                    "    - [3, 0]\n"
                                                    "    - [1]\n"
                                                    "  order: [1, 0, 0, 2, 1, 0]\n"));
    moe_buf_release(&text);
    moe_plan_free(p);
}

/* The largest number of each kind that the file takes. */
static void numbers_come_back_to_the_last_bit(void **state)
{
    struct moe_plan *p = new_plan(MOE_PLAN_MAX_LAYERS, 256, 256, "prefetch");
    p->memory.all = UINT64_C(1) << 53;
    p->memory.context = UINT32_MAX;
    p->boundary_stall = MOE_PLAN_MAX_LAYERS;
    p->pack_fingerprint = UINT64_MAX;
    p->layer_seconds = 5e-324;
    p->load_seconds = 1.7976931348623157e308;
    p->expected.hit_rate = 1;
    uint64_t seed = 1;
    for (uint32_t l = 0; l < p->n_layers; l++)
        p->layers[l].stall_seconds = (double)test_random(&seed) * 0x1p-70;
    comes_back(p);
    moe_plan_free(p);
}

static void json_has_the_figures(void **state)
{
    struct moe_err err = {0};
    struct moe_plan *p = full_plan();
    struct moe_buf text = written(p, true);
    json_t *json;
    assert_ok(moe_json_parse(&json, "plan", text.data, text.size, MOE_JSON_CONFIG_MEMORY, &err),
              &err);
    const char *pack, *cache;
    double total, rate, hit_rate, seconds, step, accuracy;
    int per_layer, expert;
    assert_int_equal(
        json_unpack(json, "{s:{s:s}, s:{s:F}, s:{s:{s:s}}, s:[{s:[i]}], s:{s:[[i]]}, s:{s:F}}",
                    "pack", "name", &pack, "memory", "total_bytes", &total, "strategy", "parts",
                    "cache", &cache, "slots", "per_layer", &per_layer, "contents", "layers",
                    &expert, "times", "load_bytes_per_second", &rate),
        0);
    assert_string_equal(pack, p->pack);
    assert_string_equal(cache, "arc");
    assert_true(total == 100000 && rate == 1234567890.125 && per_layer == 3 && expert == 2);
    assert_int_equal(json_unpack(json, "{s:{s:F}, s:{s:{s:[F]}}, s:{s:[{}, {s:F}]}, s:[{}, {s:F}]}",
                                 "expected", "hit_rate", &hit_rate, "times", "combine", "seconds",
                                 &seconds, "outlook", "memory", "decode_tokens_per_second", &step,
                                 "layers", "accuracy", &accuracy),
                     0);
    assert_true(hit_rate == 0.6 && seconds == 0.5 && step == 10 + 1 / 3.0);
    assert_true(accuracy == 1 - 1 / 3.0);
    moe_json_free(json);
    moe_buf_release(&text);
    moe_plan_free(p);
}

/* ---- Refusals ---- */

static void refused(const char *text, int status, const char *part)
{
    struct moe_err err = {0};
    struct moe_plan *p = NULL;
    write_text(text, strlen(text));
    assert_int_equal(moe_plan_read(&p, path, &err), status);
    assert_null(p);
    if (!strstr(err.text, part) || strncmp(err.text, path, strlen(path)) != 0)
        fail_msg("'%s' does not say '%s'", err.text, part);
}

#define HEAD "format: moe-plan\nversion: 1\n"
#define SHAPE(layers, experts, k)                                                                  \
    "shape: {moe_layers: " #layers ", experts: " #experts ", experts_per_token: " #k "}\n"
#define SHAPED HEAD SHAPE(2, 4, 2)
#define LRU SHAPED "strategy: {row: lru, parts: {cache: lru}}\n" /* four lines */

static void damage_of_the_head_is_named(void **state)
{
    refused("format: moe-stats\nversion: 1\n", MOE_ERR_FORMAT, "format is 'moe-stats'");
    refused("format: moe-plan\nversion: 2\n", MOE_ERR_VERSION, "version 2");
    refused(HEAD, MOE_ERR_FORMAT, "'shape' is missing");
    refused(HEAD "shape: {moe_layers: 2, experts: 4}\n", MOE_ERR_FORMAT,
            "line 3 column 8: 'experts_per_token' is missing");
    refused(HEAD SHAPE(0, 4, 2), MOE_ERR_FORMAT, "line 3 column 8: no plan has 0 layers");
    refused(HEAD SHAPE(4097, 4, 2), MOE_ERR_FORMAT, "no plan has 4097 layers");
    refused(HEAD SHAPE(4096, 257, 2), MOE_ERR_FORMAT, "no plan has");
    refused(HEAD SHAPE(2, 4, 5), MOE_ERR_FORMAT, "5 per token");
    refused(HEAD SHAPE(2, 4, 0), MOE_ERR_FORMAT, "0 per token");
    refused(HEAD SHAPE(4294967295, 4294967295, 1), MOE_ERR_FORMAT, "no plan has");
    refused(HEAD SHAPE(4294967296, 1, 1), MOE_ERR_FORMAT, "line 3 column 21: 'moe_layers'");
    refused(LRU "pack: {fingerprint: 123}\n", MOE_ERR_FORMAT,
            "line 5 column 21: 'fingerprint' must have 16 hexadecimal digits");
    refused(LRU "pack: {weight: 123}\n", MOE_ERR_FORMAT, "line 5 column 16: unknown key 'weight'");
    refused(LRU "pack: {name: a}\nshape: 1\n", MOE_ERR_FORMAT,
            "line 6 column 1: 'shape' occurs twice");
    refused(LRU "memory: {total_bytes: 10, dense_bytes: 6, kv_bytes: 5}\n", MOE_ERR_FORMAT,
            "line 5 column 9: the parts have 11 bytes, the total 10");
    refused(LRU "memory: {kv_bytes: 9007199254740993}\n", MOE_ERR_FORMAT, "line 5 column 20");
    refused(LRU "host_memory: {total_bytes: 10, dense_bytes: 6, work_bytes: 5}\n", MOE_ERR_FORMAT,
            "line 5 column 14: the parts have 11 bytes, the total 10");
    refused(LRU "host_memory: {dense_bytes: 6}\n", MOE_ERR_FORMAT, "total_bytes");
    refused(LRU "memory: {kv_bytes: -1}\n", MOE_ERR_FORMAT, "line 5 column 20");
}

static void damage_of_the_strategy_is_named(void **state)
{
    refused(SHAPED, MOE_ERR_FORMAT, "'strategy' is missing");
    refused(SHAPED "strategy: {row: auto}\n", MOE_ERR_FORMAT,
            "line 4 column 17: there is no strategy 'auto'");
    refused(SHAPED "strategy: {row: lru}\n", MOE_ERR_FORMAT, "'parts' is missing");
    refused(SHAPED "strategy: {parts: {init: empty}}\n", MOE_ERR_FORMAT,
            "line 4 column 19: 'cache' is missing");
    refused(SHAPED "strategy: {parts: {cache: lfru}}\n", MOE_ERR_FORMAT,
            "line 4 column 27: 'cache': 'lfru' is not none, ");
    refused(SHAPED "strategy: {parts: {cache: lru, protect: 1}}\n", MOE_ERR_FORMAT,
            "line 4 column 41: 'protect' must be true or false");
    refused(SHAPED "strategy: {parts: {cache: lru, luck: 1}}\n", MOE_ERR_FORMAT,
            "line 4 column 38: unknown key 'luck'");
    refused(SHAPED "strategy: {parts: {cache: lru, protect: true}}\n", MOE_ERR_FORMAT,
            "line 4 column 19: option --protect has no effect here");
    refused(SHAPED "strategy: {row: resident, parts: {cache: lru}}\n", MOE_ERR_FORMAT,
            "every expert is in memory already");
    refused(SHAPED "strategy: {parts: {cache: lru, alloc: shallow}}\n", MOE_ERR_FORMAT,
            "'alloc' must have its number");
    refused(SHAPED "strategy: {parts: {cache: lru, alloc: shallow:1}, boundary_from: luck}\n",
            MOE_ERR_FORMAT, "'boundary_from' is 'luck', not one of: named, statistics, eighth");
    refused(SHAPED "strategy: {parts: {cache: lru, on-miss: load-low}}\n", MOE_ERR_FORMAT,
            "'on-miss' must have its number: load-low:T1");
    refused(SHAPED "strategy: {parts: {cache: lru, skip-below: auto}}\n", MOE_ERR_FORMAT,
            "'skip-below' must be a number");
    refused(SHAPED "strategy: {parts: {cache: lru, predict: gate-next, precalculate: true}}\n",
            MOE_ERR_FORMAT, "'precalculate-from' is missing");
}

static void damage_of_the_slots_is_named(void **state)
{
#define POOL(more) LRU "slots:\n  - {slot_bytes: 10, cache_slots: 3, working_slots: 2" more "}\n"
    refused(LRU "slots: 3\n", MOE_ERR_FORMAT, "'slots' must be a list");
    refused(LRU "slots: [3]\n", MOE_ERR_FORMAT, "must be a mapping");
    refused(LRU "slots: [{slot_bytes: 10, cache_slots: 3}]\n", MOE_ERR_FORMAT,
            "'working_slots' is missing");
    refused(POOL(", per_layer: [3]"), MOE_ERR_FORMAT,
            "line 6 column 67: 'per_layer' must have 2 items, not 1");
    refused(POOL(", per_layer: [1, 1]"), MOE_ERR_FORMAT,
            "line 6 column 67: the layers have 2 slots, 'cache_slots' are 3");
    refused(POOL(", per_layer: [5, 0]"), MOE_ERR_FORMAT,
            "line 6 column 68: an item must be a whole number from 0 to 4");
    refused(LRU "slots: [{slot_bytes: 1, cache_slots: 17, working_slots: 0}]\n", MOE_ERR_FORMAT,
            "must not be more than 16");
    refused(LRU "slots: [{slot_bytes: 1, cache_slots: 1, working_slots: 1048577}]\n",
            MOE_ERR_FORMAT, "'working_slots' must be a whole number from 0 to 1048576");
    refused(POOL("") "memory: {experts_bytes: 49}\n", MOE_ERR_FORMAT,
            "line 6 column 3: the slots have more bytes");
    refused(LRU "slots: [{slot_bytes: 9007199254740992, cache_slots: 1, working_slots: 1048576}, "
                "{slot_bytes: 9007199254740992, cache_slots: 1, working_slots: 1048576}]\n",
            MOE_ERR_FORMAT, "the slots have more bytes");
    refused(SHAPED "strategy: {row: resident}\n"
                   "slots: [{slot_bytes: 1, cache_slots: 1, working_slots: 1}]\n",
            MOE_ERR_FORMAT, "'resident' has no slots");
    struct moe_buf many = {0};
    moe_buf_text(&many, LRU "slots:\n");
    for (int i = 0; i < 65; i++)
        moe_buf_text(&many, "  - {slot_bytes: 1, cache_slots: 1, working_slots: 1}\n");
    refused((const char *)many.data, MOE_ERR_FORMAT, "'slots' must not have more than 64 items");
    moe_buf_release(&many);
}

static void damage_of_the_contents_is_named(void **state)
{
#define SLOTS POOL("") /* six lines */
    refused(SLOTS "contents: {}\n", MOE_ERR_FORMAT, "line 7 column 11: 'layers' is missing");
    refused(SLOTS "contents: {layers: [[0]]}\n", MOE_ERR_FORMAT, "must have 2 items, not 1");
    refused(SLOTS "contents: {layers: [[0], 1]}\n", MOE_ERR_FORMAT,
            "line 7 column 26: an item must be a list");
    refused(SLOTS "contents: {layers: [[0], {1: 2}]}\n", MOE_ERR_FORMAT, "must be a list");
    refused(SLOTS "contents: {layers: [[0, 4], []]}\n", MOE_ERR_FORMAT,
            "line 7 column 25: an item must be a whole number from 0 to 3");
    refused(SLOTS "contents: {layers: [[0], [3, 3]]}\n", MOE_ERR_FORMAT,
            "line 7 column 26: expert 3 occurs twice");
    refused(SLOTS "contents: {layers: [[0, 1], [2, 3]]}\n", MOE_ERR_FORMAT,
            "line 7 column 20: there are 4 experts for 3 slots");
    refused(POOL(", per_layer: [1, 2]") "contents: {layers: [[0, 1], [2]]}\n", MOE_ERR_FORMAT,
            "line 7 column 21: layer 0 has more contents than slots");
    refused(LRU "contents: {layers: [[0], []]}\n", MOE_ERR_FORMAT,
            "there are 1 experts for 0 slots");
    refused(SLOTS "contents: {layers: [[0], [1]], order: [1]}\n", MOE_ERR_FORMAT,
            "line 7 column 39: 'order' must have 2 items, not 1");
    refused(SLOTS "contents: {layers: [[0], [1]], order: [1, 1]}\n", MOE_ERR_FORMAT,
            "line 7 column 43: layer 1 is named more often than it has contents");
    refused(SLOTS "contents: {layers: [[0], [1]], order: [1, 2]}\n", MOE_ERR_FORMAT,
            "line 7 column 43: an item must be a whole number from 0 to 1");
}

static void damage_of_the_times_is_named(void **state)
{
    refused(LRU "times: {head_seconds: -1}\n", MOE_ERR_FORMAT,
            "line 5 column 23: 'head_seconds' must be at least 0");
    refused(LRU "times: {head_seconds: nan}\n", MOE_ERR_FORMAT, "must be a number");
    refused(LRU "times: {head_seconds: 1e999}\n", MOE_ERR_FORMAT, "must be a number");
    refused(LRU "times: {route: {rows: [1], seconds: [1, 2]}}\n", MOE_ERR_FORMAT,
            "line 5 column 16: 'rows' and 'seconds' differ in length");
    refused(LRU "times: {route: {rows: [1]}}\n", MOE_ERR_FORMAT, "differ in length");
    refused(LRU "times: {route: {rows: [2, 2], seconds: [1, 2]}}\n", MOE_ERR_FORMAT,
            "line 5 column 23: 'rows' must be above 0 and rising");
    refused(LRU "times: {dense: {rows: [0, 2], seconds: [1, 2]}}\n", MOE_ERR_FORMAT,
            "'rows' must be above 0");
    refused(LRU "times: {route: {rows: [1, 2], seconds: [1, -2]}}\n", MOE_ERR_FORMAT,
            "line 5 column 44: 'seconds' must be at least 0");
    refused(LRU "times: {route: {rows: [1,2,3,4,5,6,7,8,9], seconds: [1,2,3,4,5,6,7,8,9]}}\n",
            MOE_ERR_FORMAT, "'rows' must not have more than 8 items");
    refused(LRU "times: {pause: {rows: [1], seconds: [1]}}\n", MOE_ERR_FORMAT,
            "unknown key 'pause'");
    refused(LRU "times: {experts: [{rows: [1], seconds: [1]}]}\n", MOE_ERR_FORMAT,
            "'precision' is missing");
    refused(LRU "times: {experts: [{precision: 4}, {precision: 4}]}\n", MOE_ERR_FORMAT,
            "line 5 column 35: precision '4' occurs twice");
    refused(LRU "prefetch: {layer_seconds: 1}\n", MOE_ERR_FORMAT, "'loads' is missing");
    refused(LRU "boundary: {by_stall: 3}\n", MOE_ERR_FORMAT, "line 5 column 22: 'by_stall'");
}

static void damage_of_what_is_expected_is_named(void **state)
{
    refused(LRU "expected: {hit_rate: 1.5}\n", MOE_ERR_FORMAT,
            "line 5 column 22: 'hit_rate' must be from 0 to 1");
    refused(LRU "expected: {hit_rate: -1}\n", MOE_ERR_FORMAT, "must be from 0 to 1");
    refused(LRU "expected: {stall_seconds: -0.5}\n", MOE_ERR_FORMAT, "must be at least 0");
    refused(LRU "layers: [{layer: 2}]\n", MOE_ERR_FORMAT, "line 5 column 18: 'layer' must be");
    refused(LRU "layers: [{hit_rate: 1}]\n", MOE_ERR_FORMAT, "'layer' is missing");
    refused(LRU "layers: [{layer: 1, hit_rate: 1}, {layer: 1}]\n", MOE_ERR_FORMAT,
            "line 5 column 35: layer 1 occurs twice");
    refused(LRU "layers: [{layer: 1}, {layer: 0}, {layer: 1}]\n", MOE_ERR_FORMAT,
            "'layers' must not have more than 2 items");
    refused(LRU "outlook: {memory: [{bytes: 2}, {bytes: 2}]}\n", MOE_ERR_FORMAT,
            "line 5 column 32: 'bytes' must be rising");
    refused(LRU "outlook: {link: [{bytes_per_second: 0}]}\n", MOE_ERR_FORMAT,
            "'bytes_per_second' must be above 0");
    refused(LRU "outlook: {link: [{hit_rate: 0}]}\n", MOE_ERR_FORMAT,
            "'bytes_per_second' is missing");
#define MEASURED "tokens: 5, nll_error_percent: 0, top1_points: 1, top1_error_points: 0"
    refused(LRU "losses: [{" MEASURED ", part: on-miss}]\n", MOE_ERR_FORMAT,
            "'nll_percent' is missing");
    refused(LRU "losses: [{" MEASURED ", nll_percent: -1}]\n", MOE_ERR_FORMAT, "'part' is missing");
    refused(LRU "losses: [{part: a, tokens: 5, nll_percent: 0, nll_error_percent: -1}]\n",
            MOE_ERR_FORMAT, "'nll_error_percent' must be at least 0");
    refused(LRU "losses: [{}, {}, {}, {}]\n", MOE_ERR_FORMAT, "'losses' must not have more than 3");
#undef MEASURED
    refused(LRU "tried: [{strategy: lru, decode_tokens_per_second: 1}, "
                "{strategy: arc, decode_tokens_per_second: 2}]\n",
            MOE_ERR_FORMAT, "line 5 column 55: strategies tried must come fastest first");
    refused(LRU "tried: [{hit_rate: 1}]\n", MOE_ERR_FORMAT, "'strategy' is missing");
    refused(LRU "tried: [{strategy: \"\"}]\n", MOE_ERR_FORMAT, "'strategy' is empty");
    refused(LRU "pace: {}\n", MOE_ERR_FORMAT, "line 5 column 7: unknown key 'pace'");
    struct moe_buf text = {0};
    moe_buf_text(&text, LRU "evidence:\n  device: ");
    for (int i = 0; i < MOE_PLAN_TEXT; i++)
        moe_buf_text(&text, "x");
    refused((const char *)text.data, MOE_ERR_FORMAT,
            "line 6 column 11: 'device' is longer than 255 bytes");
    moe_buf_release(&text);
}

static void damage_of_the_alternatives_is_named(void **state)
{
    refused(LRU "alternatives: [{what: colour, amount: 1, times: 1}]\n", MOE_ERR_FORMAT,
            "'what' is 'colour', not one of: memory, link");
    refused(LRU "alternatives: [{amount: 1, times: 1}]\n", MOE_ERR_FORMAT, "'what' is missing");
    refused(LRU "alternatives: [{what: link, amount: 0, times: 1}]\n", MOE_ERR_FORMAT,
            "'amount' must be above 0");
    refused(LRU "alternatives: [{what: link, amount: 1}]\n", MOE_ERR_FORMAT, "'times' is missing");
    refused(LRU "doubts: [{assumption: luck, by: 1}]\n", MOE_ERR_FORMAT,
            "'assumption' is 'luck', not one of: routing-of-another-model");
    refused(LRU "doubts: [{assumption: few-tokens}]\n", MOE_ERR_FORMAT, "'by' is missing");
    refused(LRU "doubts: [{assumption: few-tokens, by: 1}, {assumption: few-tokens, by: 2}]\n",
            MOE_ERR_FORMAT, "assumption 'few-tokens' occurs twice");
}

static void files_that_are_no_plan_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_plan *p = NULL;
    enum { TOO_MANY = (16 << 20) + 1 };
    char *blanks = malloc(TOO_MANY);
    assert_non_null(blanks);
    memset(blanks, '\n', TOO_MANY);
    write_text(blanks, TOO_MANY);
    free(blanks);
    assert_int_equal(moe_plan_read(&p, path, &err), MOE_ERR_FORMAT);
    assert_non_null(strstr(err.text, path));
    assert_fails(moe_plan_read(&p, "tests/no-such-plan", &err), MOE_ERR_IO, "no-such-plan", &err);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_plan *p;
    assert_fails(moe_plan_new(&p, 0, 4, 1, &err), MOE_ERR_USAGE, "0 layers", &err);
    assert_null(p);
    assert_fails(moe_plan_new(&p, 4096, 257, 1, &err), MOE_ERR_USAGE, "257 experts", &err);
    assert_ok(moe_plan_new(&p, 1, 1 << 20, 1, &err), &err);
    moe_plan_free(p);
    moe_plan_free(NULL);
}

/* ---- The manual ---- */

static void the_manuals_example_is_a_plan(void **state)
{
    struct moe_err err = {0};
    struct moe_buf page = {0};
    assert_ok(moe_file_read_all("man/moe-plan.5", 1 << 20, &page, &err), &err);
    char *at = strstr((char *)page.data, ".Sh EXAMPLES");
    assert_non_null(at);
    at = strchr(strstr(at, ".Bd"), '\n') + 1;
    *strstr(at, ".Ed") = '\0';
    struct moe_buf text = {0};
    moe_buf_text(&text, at);
    struct moe_plan *p = read_back(&text);
    comes_back(p);
    assert_true(p->n_pools && p->n_contents && p->pace.n_variants && p->n_tried);
    assert_true(p->n_memory_steps && p->n_rate_steps && p->layers[0].hit_rate >= 0);
    moe_plan_free(p);
    moe_buf_release(&text);
    moe_buf_release(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_plan_comes_back),
        cmocka_unit_test(a_minimal_plan_comes_back),
        cmocka_unit_test(a_plan_of_a_shape_comes_back),
        cmocka_unit_test(what_is_not_known_is_left_out),
        cmocka_unit_test(every_row_comes_back),
        cmocka_unit_test(random_strategies_come_back),
        cmocka_unit_test(contents_keep_their_order),
        cmocka_unit_test(contents_are_a_line_for_each_layer),
        cmocka_unit_test(numbers_come_back_to_the_last_bit),
        cmocka_unit_test(json_has_the_figures),
        cmocka_unit_test(damage_of_the_head_is_named),
        cmocka_unit_test(damage_of_the_strategy_is_named),
        cmocka_unit_test(damage_of_the_slots_is_named),
        cmocka_unit_test(damage_of_the_contents_is_named),
        cmocka_unit_test(damage_of_the_times_is_named),
        cmocka_unit_test(damage_of_what_is_expected_is_named),
        cmocka_unit_test(damage_of_the_alternatives_is_named),
        cmocka_unit_test(files_that_are_no_plan_are_refused),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(the_manuals_example_is_a_plan),
    };
    snprintf(path, sizeof path, "/tmp/moe-test-plan-%d.yaml", (int)getpid());
    int failed = cmocka_run_group_tests_name("plan", tests, NULL, NULL);
    unlink(path);
    return failed;
}
