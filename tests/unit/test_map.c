/* Bit maps: round trips member by member, both forms, refusals, shards, the manual's example. */
#include "pack/map.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "../map_fixture.h"
#include "base/file.h"
#include "fmt/json.h"

static char path[64];

/* ---- Helpers ---- */

static struct moe_map *read_back(const struct moe_buf *text)
{
    struct moe_err err = {0};
    struct moe_map *m = NULL;
    assert_ok(moe_file_write_all(path, text->data, text->size, &err), &err);
    assert_ok(moe_map_read(&m, path, &err), &err);
    return m;
}

static struct moe_buf written(const struct moe_map *m, bool json)
{
    struct moe_err err = {0};
    struct moe_buf text = {0};
    assert_ok(moe_map_write(m, json, &text, &err), &err);
    return text;
}

#define SAME(field) assert_true(a->field == b->field)
#define SAME_TEXT(field) assert_string_equal(a->field, b->field)
#define SAME_ARRAY(field, n) assert_memory_equal(a->field, b->field, (n) * sizeof *a->field)

static void assert_same_loss(const struct moe_loss *a, const struct moe_loss *b)
{
    SAME(documents), SAME(tokens), SAME(nll), SAME(reference_nll), SAME(nll_percent);
    SAME(nll_error), SAME(top1_points), SAME(top1_error);
}

static void assert_same_measurements(const struct moe_map *a, const struct moe_map *b)
{
    SAME(n_texts), SAME(n_uniform);
    for (uint32_t i = 0; i < a->n_texts; i++) {
        SAME_TEXT(texts[i].name), SAME(texts[i].documents), SAME(texts[i].tokens);
        SAME(texts[i].hash), SAME(texts[i].check), SAME(texts[i].known);
        assert_same_loss(&a->texts[i].loss, &b->texts[i].loss);
    }
    for (uint32_t i = 0; i < a->n_uniform; i++) {
        SAME_TEXT(uniform[i].experts), SAME(uniform[i].dense_bits), SAME(uniform[i].bytes);
        assert_same_loss(&a->uniform[i].loss, &b->uniform[i].loss);
    }
}

static void assert_same_importances(const struct moe_map *a, const struct moe_map *b)
{
    uint32_t n = a->n_layers * a->n_experts;
    SAME(importances.there), SAME(importances.exact), SAME(importances.upper);
    SAME(importances.lower), SAME(importances.dense_bits);
    SAME_ARRAY(importances.known, n);
    SAME_ARRAY(importances.nats, n);
    SAME_ARRAY(importances.error, n);
    SAME_ARRAY(importances.changed, n);
    SAME_ARRAY(importances.visited, n);
}

static void assert_same_choices(const struct moe_map *a, const struct moe_map *b)
{
    SAME(choice.there), SAME(choice.dense_bits), SAME(choice.expert_bytes);
    SAME(choice.dense_bytes), SAME(choice.expected);
    SAME_ARRAY(choice.variant, a->n_layers * a->n_experts);
    assert_same_loss(&a->choice.loss, &b->choice.loss);
    assert_same_loss(&a->choice.check, &b->choice.check);
    assert_string_equal(a->dense_method, b->dense_method);
    SAME(dense_group);
    SAME(fate.there), SAME(fate.share), SAME(fate.high), SAME(fate.low), SAME(fate.n_points);
    assert_same_loss(&a->fate.loss, &b->fate.loss);
    assert_same_loss(&a->fate.check, &b->fate.check);
    for (uint32_t i = 0; i < a->fate.n_points; i++) {
        SAME(fate.points[i].share);
        assert_same_loss(&a->fate.points[i].unpopular, &b->fate.points[i].unpopular);
        assert_same_loss(&a->fate.points[i].popular, &b->fate.points[i].popular);
    }
    SAME(hobbit.there), SAME(hobbit.t1), SAME(hobbit.t2), SAME(hobbit.high_share);
    SAME(hobbit.low_share), SAME(hobbit.skipped_share), SAME(hobbit.high), SAME(hobbit.low);
    assert_same_loss(&a->hobbit.loss, &b->hobbit.loss);
    SAME(hobbit.n_cuts);
    for (uint32_t i = 0; i < a->hobbit.n_cuts; i++) {
        SAME(hobbit.cuts[i].share);
        assert_same_loss(&a->hobbit.cuts[i].low, &b->hobbit.cuts[i].low);
        assert_same_loss(&a->hobbit.cuts[i].skipped, &b->hobbit.cuts[i].skipped);
    }
    SAME_ARRAY(hobbit.scores, MOE_SCORE_BINS);
    SAME_ARRAY(hobbit.weights, MOE_HOBBIT_WEIGHTS);
    SAME(hobbit.weighed), SAME(hobbit.low_pool), SAME(hobbit.penalty);
    SAME(hobbit.default_penalty);
    SAME(routing.there), SAME(routing.lambda), SAME(routing.keeps), SAME(routing.tolerance);
    SAME(routing.cache_bytes), SAME(routing.n_points);
    assert_same_loss(&a->routing.loss, &b->routing.loss);
    assert_same_loss(&a->routing.check, &b->routing.check);
    for (uint32_t i = 0; i < a->routing.n_points; i++) {
        SAME(routing.points[i].lambda), SAME(routing.points[i].bytes_per_token);
        SAME(routing.points[i].replaced_share);
        assert_same_loss(&a->routing.points[i].loss, &b->routing.points[i].loss);
    }
    SAME(n_savings);
    for (uint32_t i = 0; i < a->n_savings; i++) {
        SAME(savings[i].cache_bytes), SAME(savings[i].low), SAME(savings[i].n_ways);
        SAME(savings[i].exact_bytes_per_token);
        for (uint32_t w = 0; w < a->savings[i].n_ways; w++) {
            SAME_TEXT(savings[i].ways[w].strategy), SAME(savings[i].ways[w].bytes_per_token);
            SAME(savings[i].ways[w].changed_share);
            assert_same_loss(&a->savings[i].ways[w].loss, &b->savings[i].ways[w].loss);
            assert_same_loss(&a->savings[i].ways[w].check, &b->savings[i].ways[w].check);
        }
    }
}

static void assert_same_map(const struct moe_map *a, const struct moe_map *b)
{
    SAME(n_layers), SAME(n_experts), SAME(top_k), SAME(source_fingerprint);
    SAME_ARRAY(model_layer, a->n_layers);
    SAME(pack_fingerprint), SAME(n_variants), SAME(pack_dense_bits), SAME(metric);
    SAME(tolerance), SAME(target_bytes), SAME(max_tokens);
    for (uint32_t v = 0; v < a->n_variants; v++)
        SAME_TEXT(variants[v]), SAME_TEXT(methods[v]);
    SAME(expert_group);
    assert_same_measurements(a, b);
    assert_same_importances(a, b);
    assert_same_choices(a, b);
}

/* Through YAML, and through JSON, which is YAML to its reader. */
static void comes_back(const struct moe_map *m)
{
    for (int json = 0; json < 2; json++) {
        struct moe_buf first = written(m, json);
        struct moe_map *again = read_back(&first);
        struct moe_buf second = written(again, json);
        assert_same_map(m, again);
        assert_string_equal(first.data, second.data);
        moe_map_free(again);
        moe_buf_release(&first);
        moe_buf_release(&second);
    }
}

static void comes_back_and_goes(struct moe_map *m)
{
    comes_back(m);
    moe_map_free(m);
}

/* ---- Round trips ---- */

static void full_maps_come_back(void **state)
{
    for (uint64_t seed = 0; seed < 50; seed++)
        comes_back_and_goes(full_map(seed));
}

static void a_map_that_knows_nothing_comes_back(void **state)
{
    struct moe_map *m = new_map(2, 3, 1);
    struct moe_buf text = written(m, false);
    assert_string_equal(text.data, "# Bit map: see moe-map(5).\n"
                                   "format: moe-map\n"
                                   "version: 1\n"
                                   "source_fingerprint: \"0123456789abcdef\"\n"
                                   "pack_fingerprint: \"ffffffffffffffff\"\n"
                                   "dense_bits: 8\n"
                                   "max_document_tokens: 256\n"
                                   "shape:\n"
                                   "  moe_layers: 2\n"
                                   "  experts: 3\n"
                                   "  experts_per_token: 1\n"
                                   "  model_layers: [0, 1]\n"
                                   "variants: [\"8\", \"4d8\", \"2\"]\n"
                                   "metric: nll\n");
    moe_buf_release(&text);
    comes_back_and_goes(m);
}

static void shards_and_estimates_come_back(void **state)
{
    struct moe_map *begun = new_map(2, 3, 1);
    begun->importances.there = begun->importances.exact = true; /* and none known yet */
    begun->importances.lower = 2;
    set_shard(begun, 1, 2);
    begun->importances.dense_bits = 8;
    comes_back_and_goes(begun);
    comes_back_and_goes(shard_map(1, 0));
    comes_back_and_goes(shard_map(1, 1));
    comes_back_and_goes(estimated_map(1));
}

/* Unmeasured parts within sections that are there. */
static void parts_may_be_missing(void **state)
{
    struct moe_map *m = full_map(4);
    static const struct moe_loss none;
    m->choice.check = m->fate.loss = m->fate.check = m->hobbit.loss = none;
    m->fate.n_points = 0;
    memset(m->hobbit.cuts, 0, sizeof m->hobbit.cuts);
    m->hobbit.n_cuts = 0;
    m->hobbit.weighed = false;
    memset(m->hobbit.scores, 0, sizeof m->hobbit.scores);
    memset(m->hobbit.weights, 0, sizeof m->hobbit.weights);
    m->hobbit.low_pool = m->hobbit.penalty = m->hobbit.default_penalty = 0;
    memset(&m->routing, 0, sizeof m->routing);
    comes_back_and_goes(m);
}

static void a_layer_is_a_line(void **state)
{
    struct moe_map *m = new_map(2, 3, 1);
    static const double nats[] = {0.5, 0, -0.25};
    m->importances.there = m->importances.exact = m->choice.there = true;
    m->importances.lower = 2;
    m->importances.dense_bits = m->choice.dense_bits = 8;
    set_shard(m, 0, 1);
    for (int i = 3; i < 6; i++) {
        m->importances.known[i] = i != 4;
        m->importances.nats[i] = nats[i - 3];
        m->importances.visited[i] = (uint32_t)i;
        m->choice.variant[i] = (uint8_t)(i - 3);
    }
    struct moe_buf text = written(m, false);
    assert_non_null(strstr((const char *)text.data, "importances:\n"
                                                    "  exact: true\n"
                                                    "  upper: \"8\"\n"
                                                    "  lower: \"2\"\n"
                                                    "  dense_bits: 8\n"
                                                    "  shards: {of: 1, held: [1]}\n"
                                                    "  layers:\n"
                                                    "    - layer: 1\n"
                                                    "      experts: [0, 2]\n"
                                                    "      nats: [0.5, -0.25]\n"
                                                    "      error_nats: [0, 0]\n"
                                                    "      changed_tokens: [0, 0]\n"
                                                    "      visited_documents: [3, 5]\n"));
    assert_non_null(strstr((const char *)text.data, "  layers:\n"
                                                    "    - [\"8\", \"8\", \"8\"]\n"
                                                    "    - [\"8\", \"4d8\", \"2\"]\n"));
    moe_buf_release(&text);
    moe_map_free(m);
}

static void numbers_that_are_not_finite_are_not_written(void **state)
{
    struct moe_err err = {0};
    struct moe_buf text = {0};
    struct moe_map *m = full_map(6);
    m->importances.nats[7] = nan("");
    assert_fails(moe_map_write(m, false, &text, &err), MOE_ERR_USAGE, "'nats'", &err);
    m->importances.nats[7] = 0;
    m->uniform[1].loss.nll_error = HUGE_VAL;
    assert_fails(moe_map_write(m, true, &text, &err), MOE_ERR_USAGE, "'nll_error_percent'", &err);
    m->uniform[1].loss.nll_error = 0;
    m->hobbit.scores[9] = -HUGE_VAL;
    assert_fails(moe_map_write(m, false, &text, &err), MOE_ERR_USAGE, "'scores'", &err);
    moe_buf_release(&text);
    moe_map_free(m);
}

static void json_has_the_figures(void **state)
{
    struct moe_err err = {0};
    struct moe_map *m = full_map(8);
    struct moe_buf text = written(m, true);
    json_t *json;
    assert_ok(moe_json_parse(&json, "map", text.data, text.size, MOE_JSON_CONFIG_MEMORY, &err),
              &err);
    const char *name, *variant;
    double tolerance, nats, percent, share, lhu;
    json_int_t documents;
    int layer, visited;
    assert_int_equal(
        json_unpack(json, "{s:F, s:{s:[i]}, s:[{s:s, s:{s:F, s:I}}], s:{s:[{s:[F], s:[i]}]}}",
                    "tolerance_percent", &tolerance, "shape", "model_layers", &layer, "texts",
                    "name", &name, "loss", "nll_percent", &percent, "documents", &documents,
                    "importances", "layers", "nats", &nats, "visited_documents", &visited),
        0);
    assert_true(tolerance == m->tolerance && layer == 1 && nats == m->importances.nats[0]);
    assert_string_equal(name, m->texts[0].name);
    assert_true(percent == m->texts[0].loss.nll_percent);
    assert_true(documents == (json_int_t)m->texts[0].loss.documents);
    assert_int_equal(visited, m->importances.visited[0]);
    assert_int_equal(json_unpack(json, "{s:{s:[[s]]}, s:{s:[{}, {s:F}]}, s:{s:{s:F}}}", "choice",
                                 "layers", &variant, "fate", "curve", "share", &share, "hobbit",
                                 "weights", "lhu", &lhu),
                     0);
    assert_string_equal(variant, m->variants[m->choice.variant[0]]);
    assert_true(share == 1 / 3.0 && lhu == m->hobbit.weights[MOE_WEIGHT_LHU]);
    moe_json_free(json);
    moe_buf_release(&text);
    moe_map_free(m);
}

static void losses_are_in_the_metric(void **state)
{
    struct moe_loss loss = {.nll_percent = 1, .nll_error = 2, .top1_points = 3, .top1_error = 4};
    assert_true(moe_loss_in(&loss, MOE_METRIC_NLL) == 1);
    assert_true(moe_loss_error(&loss, MOE_METRIC_NLL) == 2);
    assert_true(moe_loss_in(&loss, MOE_METRIC_TOP1) == 3);
    assert_true(moe_loss_error(&loss, MOE_METRIC_TOP1) == 4);
    loss.rouge2_points = 5;
    loss.rouge2_error = 6;
    loss.accuracy_points = 7;
    loss.accuracy_error = 8;
    struct moe_map map = {.metric = MOE_METRIC_TOP1};
    static const struct {
        enum moe_judge judge;
        const char *name;
        double loss;
    } judges[] = {{MOE_JUDGE_NATS, "nats", 3},
                  {MOE_JUDGE_ROUGE2, "rouge2", 5},
                  {MOE_JUDGE_ACCURACY, "accuracy", 7}};
    for (size_t i = 0; i < N_ITEMS(judges); i++) {
        map.judge = judges[i].judge;
        assert_string_equal(moe_judge_name(map.judge), judges[i].name);
        assert_true(moe_map_loss(&map, &loss) == judges[i].loss);
        assert_true(moe_map_loss_error(&map, &loss) == judges[i].loss + 1);
    }
    assert_string_equal(moe_metric_name(MOE_METRIC_NLL), "nll");
    assert_string_equal(moe_metric_name(MOE_METRIC_TOP1), "top1");
}

/* ---- Refusals ---- */

/* A map of nine lines with line `at` replaced; line 10 is appended. */
static void refused_as(int at, const char *line, int status, const char *words)
{
    static const char *const lines[] = {
        "format: moe-map",
        "version: 1",
        "source_fingerprint: \"0123456789abcdef\"",
        "pack_fingerprint: \"0123456789abcdef\"",
        "dense_bits: 8",
        "max_document_tokens: 256",
        "shape: {moe_layers: 2, experts: 3, experts_per_token: 1, model_layers: [1, 2]}",
        "variants: [\"8\", \"4\", \"2\"]",
        "metric: nll",
        "",
    };
    struct moe_err err = {0};
    struct moe_map *m = NULL;
    struct moe_buf text = {0};
    for (int i = 1; i <= (int)N_ITEMS(lines); i++)
        moe_buf_printf(&text, "%s\n", i == at ? line : lines[i - 1]);
    assert_fails(moe_record_parse(&moe_map_format, &m, "x.map", text.data, text.size, &err), status,
                 words, &err);
    assert_null(m);
    assert_int_equal(strncmp(err.text, "x.map: ", 7), 0);
    moe_buf_release(&text);
}

static void refused(int at, const char *line, const char *words)
{
    refused_as(at, line, MOE_ERR_FORMAT, words);
}

#define LOSS_BUT(documents, tokens, rest)                                                          \
    "{documents: " documents ", tokens: " tokens ", nats_per_token: 2, "                           \
    "reference_nats_per_token: 2, " rest "}"
#define LOSS                                                                                       \
    LOSS_BUT("1", "9",                                                                             \
             "nll_percent: 0, nll_error_percent: 0, top1_points: 0, "                              \
             "top1_error_points: 0")
#define PAIR "high: \"4\", low: \"2\""

static void nothing_is_refused_without_damage(void **state)
{
    struct moe_err err = {0};
    struct moe_map *m;
    static const char text[] =
        "{format: moe-map, version: 1, source_fingerprint: \"0123456789abcdef\", "
        "pack_fingerprint: \"0123456789abcdef\", dense_bits: 8, max_document_tokens: 256, "
        "shape: {moe_layers: 2, experts: 3, experts_per_token: 1, model_layers: [1, 2]}, "
        "variants: [\"8\", \"4\", \"2\"], metric: nll, "
        "rungs: [{experts: \"8\", dense_bits: 8, bytes: 1, loss: " LOSS "}], "
        "choice: {dense_bits: 8, expert_bytes: 1, dense_bytes: 1, expected_percent: 1, "
        "layers: [[\"8\", \"4\", \"2\"], [\"8\", \"8\", \"8\"]]}, "
        "fate: {share: 1, " PAIR "}, "
        "hobbit: {t1: 0.5, t2: 0.5, high_share: 1, low_share: 0, skipped_share: 0, " PAIR "}}";
    assert_ok(moe_record_parse(&moe_map_format, &m, "x.map", text, sizeof text - 1, &err), &err);
    assert_int_equal(m->choice.variant[2], 2);
    moe_map_free(m);
}

static void damage_of_the_head_is_named(void **state)
{
    refused(1, "format: moe-plan", "format is 'moe-plan'");
    refused_as(2, "version: 2", MOE_ERR_VERSION, "version 2");
    refused(3, "", "'source_fingerprint' is missing");
    refused(3, "source_fingerprint: 12", "line 3 column 21: 'source_fingerprint' must have 16");
    refused(4, "", "'pack_fingerprint' is missing");
    refused(5, "dense_bits: 0", "line 5 column 13: 'dense_bits' must be from 1 to 32");
    refused(5, "dense_bits: 33", "line 5 column 13: 'dense_bits' must be");
    refused(6, "max_document_tokens: -1", "line 6 column 22");
    refused(7, "", "'shape' is missing");
#define SHAPE(layers, experts, k, rest)                                                            \
    "shape: {moe_layers: " #layers ", experts: " #experts ", experts_per_token: " #k rest "}"
    refused(7, SHAPE(0, 3, 1, ""), "line 7 column 8: no bit map has 0 layers");
    refused(7, SHAPE(1025, 3, 1, ""), "line 7 column 8: no bit map has 1025 layers");
    refused(7, SHAPE(2, 4097, 1, ""), "4097 experts");
    refused(7, SHAPE(1024, 1025, 1, ""), "line 7 column 8: no bit map has");
    refused(7, SHAPE(2, 3, 4, ""), "4 per token");
    refused(7, SHAPE(2, 3, 0, ""), "0 per token");
    refused(7, SHAPE(4294967295, 4294967295, 1, ""), "no bit map has");
    refused(7, SHAPE(2, 3, 1, ""), "line 7 column 8: 'model_layers' is missing");
    refused(7, SHAPE(2, 3, 1, ", model_layers: [0]"), "must have 2 items, not 1");
    refused(7, SHAPE(2, 3, 1, ", model_layers: [3, 3]"),
            "line 7 column 76: 'model_layers' must be rising");
    refused(7, SHAPE(2, 3, 1, ", model_layers: [3, 1024]"), "line 7 column 76: an item must be");
    refused(8, "variants: []", "line 8 column 11: 'variants' must have 1 to 8 items");
    refused(8, "variants: [1, 2, 3, 4, 5, 6, 7, 8, 9]", "'variants' must have 1 to 8 items");
    refused(8, "variants: [8, 4, 8]", "line 8 column 18: variant '8' occurs twice");
    refused(8, "variants: [8, \"\"]", "line 8 column 15: a variant's name must have");
    refused(8, "variants: [0123456789012345678901234567890123456789012345678901234567890123]",
            "line 8 column 12: a variant's name must have 1 to 63 bytes");
    refused(8, "variants: [[8]]", "line 8 column 12: an item must be a text");
    refused(9, "metric: bleu", "line 9 column 9: 'metric' is 'bleu', not one of: nll, top1");
    refused(10, "judge: bleu",
            "line 10 column 8: 'judge' is 'bleu', not one of: nats, rouge2, accuracy");
    refused(10, "judge: []", "line 10 column 8");
    refused(10, "tolerance_percent: -1", "line 10 column 20: 'tolerance_percent' must be at least");
    refused(10, "tolerance_percent: nan", "line 10 column 20: 'tolerance_percent' must be a num");
    refused(10, "tolerance_points: 1", "line 10 column 19: unknown key 'tolerance_points'");
    refused(10, "colour: 1", "line 10 column 9: unknown key 'colour'");
    refused(10, "metric: nll", "line 10 column 1: 'metric' occurs twice");
}

static void damage_of_measurements_is_named(void **state)
{
#define TEXT(rest) "texts: [{name: a, documents: 1, tokens: 9, hash: \"0123456789abcdef\"" rest "}]"
    refused(10, TEXT(""), "line 10 column 9: 'check' is missing");
    refused(10, TEXT(", check: 1"), "line 10 column 77: 'check' must be true or false");
    refused(10, TEXT(", check: true, seen: 1"), "unknown key 'seen'");
    refused(10, "texts: [{name: \"\"}]", "line 10 column 16: 'name' is empty");
#define TEXT_LOSS(loss) TEXT(", check: true, loss: " loss)
    refused(10, TEXT_LOSS("{}"), "line 10 column 89: 'documents' is missing");
    refused(10, TEXT_LOSS("{documents: 9007199254740993}"), "line 10 column 101: 'documents' must");
    refused(10,
            TEXT_LOSS(LOSS_BUT("2", "1",
                               "nll_percent: 0, nll_error_percent: 0, "
                               "top1_points: 0, top1_error_points: 0")),
            "line 10 column 89: 'loss' must have 'tokens'");
    refused(10,
            TEXT_LOSS(LOSS_BUT("0", "0",
                               "nll_percent: 0, nll_error_percent: 0, "
                               "top1_points: 0, top1_error_points: 0")),
            "'loss' must have 'tokens'");
#define ANSWERS(n, points)                                                                         \
    "nll_percent: 0, nll_error_percent: 0, top1_points: 0, top1_error_points: 0, answers: " n      \
    ", reference_rouge2: 1, rouge2_points: " points ", rouge2_error_points: 0, "                   \
    "reference_accuracy: 0, accuracy_points: 0, accuracy_error_points: 0"
    refused(10, TEXT_LOSS(LOSS_BUT("2", "9", ANSWERS("1", "0"))), "as many 'answers' as");
    refused(10, TEXT_LOSS(LOSS_BUT("2", "9", ANSWERS("2", "101"))), "'rouge2_points' must be");
    refused(10,
            TEXT_LOSS(LOSS_BUT("1", "9",
                               "nll_percent: 0, nll_error_percent: 0, top1_points: 0, "
                               "top1_error_points: 0, answers: 1")),
            "'reference_rouge2' is missing");
    refused(10, TEXT_LOSS(LOSS_BUT("1", "1", "nll_percent: inf")), "'nll_percent' must be a num");
    refused(10, TEXT_LOSS(LOSS_BUT("1", "1", "nll_percent: 1e999")), "'nll_percent' must be a num");
    refused(10, TEXT_LOSS(LOSS_BUT("1", "1", "nll_percent: 0, nll_error_percent: -1")),
            "'nll_error_percent' must be at least 0");
    refused(10,
            TEXT_LOSS(LOSS_BUT("1", "1", "nll_percent: 0, nll_error_percent: 0, top1_points: 101")),
            "'top1_points' must be from 0 to 100");
#define UNIFORM(experts) "{experts: \"" experts "\", dense_bits: 8, bytes: 1, loss: " LOSS "}"
    refused(10, "rungs: [" UNIFORM("3") "]", "line 10 column 19: '3' is none of the variants");
    refused(10, "rungs: [" UNIFORM("8") ", " UNIFORM("8") "]",
            "experts '8' with 8 dense_bits are there twice");
#define UNIFORM_TYPE "{experts: \"8\", dense_bits: 6, dense_type: q6_k, bytes: 1, loss: " LOSS "}"
    refused(10, "rungs: [" UNIFORM("8") ", " UNIFORM_TYPE ", " UNIFORM_TYPE "]",
            "experts '8' with q6_k dense_bits are there twice");
    refused(10, "rungs: [1]", "line 10 column 9: an item must be a mapping");
    struct moe_buf many = {0};
    moe_buf_text(&many, "texts: [");
    for (int i = 0; i <= MOE_MAP_MAX_TEXTS; i++)
        moe_buf_text(&many, "{}, ");
    moe_buf_text(&many, "]");
    refused(10, (const char *)many.data, "line 10 column 8: 'texts' must not have more than 64");
    moe_buf_release(&many);
    struct moe_buf text = {0};
    moe_buf_text(&text, "texts: [{name: ");
    for (int i = 0; i < MOE_MAP_TEXT; i++)
        moe_buf_text(&text, "x");
    moe_buf_text(&text, "}]");
    refused(10, (const char *)text.data, "line 10 column 16: 'name' is longer than 255 bytes");
    moe_buf_release(&text);
}

static void damage_of_importances_is_named(void **state)
{
#define WHOLE "shards: {of: 1, held: [1]}"
#define LAYERS(layers)                                                                             \
    "importances: {exact: true, upper: \"4\", lower: \"2\", dense_bits: 8, layers: [" layers       \
    "], " WHOLE "}"
#define ROWS "error_nats: [1, 1, 1], changed_tokens: [1, 1, 1], visited_documents: [1, 1, 1]}"
    refused(10, "importances: {upper: \"4\", lower: \"2\", dense_bits: 8}", "'exact' is missing");
    refused(10, "importances: {exact: true, upper: \"3\"}", "'3' is none of the variants");
    refused(10, "importances: {exact: true, upper: \"2\", lower: \"2\", dense_bits: 8, " WHOLE "}",
            "line 10 column 47: 'lower' must be a lower variant than 'upper'");
    refused(10, LAYERS("{layer: 2}"),
            "line 10 column 84: 'layer' must be a whole number from 0 to");
    refused(10, LAYERS("{nats: [1, 1, 1], " ROWS), "line 10 column 76: 'layer' is missing");
    refused(10, LAYERS("1"), "line 10 column 76: an item must be a mapping");
    refused(10, LAYERS("{layer: 0, nats: [1, 1, 1], " ROWS ", {layer: 0, nats: [1, 1, 1], " ROWS),
            "'layer' must be rising");
    refused(10, LAYERS("{layer: 0, nats: [1, 1], " ROWS), "'nats' must have 3 items, not 2");
    refused(10, LAYERS("{layer: 0, nats: [1, ~, 1], " ROWS), "line 10 column 97: an item must be");
    refused(10, LAYERS("{layer: 0, nats: [1, nan, 1], " ROWS), "an item must be a number");
    refused(10, LAYERS("{layer: 0, experts: [0, 1], nats: [1, 1, 1], " ROWS),
            "'nats' must have 2 items, not 3");
    refused(10, LAYERS("{layer: 0, experts: [], nats: [1, 1, 1], " ROWS),
            "line 10 column 96: 'experts' must have 1 to 3 items");
    refused(10, LAYERS("{layer: 0, experts: [0, 1, 2, 2], nats: [1, 1, 1], " ROWS),
            "'experts' must have 1 to 3 items");
    refused(10, LAYERS("{layer: 0, experts: [0, 2, 2], nats: [1, 1, 1], " ROWS),
            "line 10 column 103: 'experts' must be rising");
    refused(10, LAYERS("{layer: 0, experts: [0, 3], nats: [1, 1], " ROWS),
            "an item must be a whole number from 0 to 2");
    refused(10, LAYERS("{layer: 0, nats: [1, 1, 1], error_nats: [1, -1, 1]}"),
            "line 10 column 120: 'error_nats' must be at least 0");
    refused(10,
            LAYERS("{layer: 0, nats: [1, 1, 1], error_nats: [1, 1, 1], "
                   "changed_tokens: [1, 4294967296, 1]}"),
            "an item must be a whole number from 0 to 4294967295");
    refused(10,
            LAYERS("{layer: 0, nats: [1, 1, 1], error_nats: [1, 1, 1], "
                   "changed_tokens: [1, 1, 1]}"),
            "'visited_documents' is missing");
    refused(10,
            "importances: {exact: false, upper: \"4\", lower: \"2\", dense_bits: 8, "
            "layers: [{layer: 0, nats: [1, 1, 1], " ROWS "], " WHOLE "}",
            "unknown key 'error_nats'");
    refused(10,
            "importances: {exact: false, upper: \"4\", lower: \"2\", dense_bits: 8, layers: []}",
            "'shards' is missing");
#define SHARDS(shards, experts)                                                                    \
    "importances: {exact: false, upper: \"4\", lower: \"2\", dense_bits: 8, shards: " shards       \
    ", layers: [{layer: 0, experts: [" experts "], nats: [1, 1], visited_documents: [1, 1]}]}"
    refused(10, SHARDS("{of: 3, held: [2, 2]}", "0, 1"), "'held' must be rising");
    refused(10, SHARDS("{of: 3, held: [0]}", "0, 1"), "'held' counts shards from 1");
    refused(10, SHARDS("{of: 0, held: []}", "0, 1"), "'of' must be from 1 to");
    refused(10, SHARDS("{of: 2, held: [1]}", "0, 1"), "layer 0 expert 1 is of another shard");
}

static void damage_of_the_choice_is_named(void **state)
{
#define CHOICE(rest)                                                                               \
    "choice: {dense_bits: 8, expert_bytes: 1, dense_bytes: 1, expected_percent: 1" rest "}"
    refused(10, "choice: {expert_bytes: 1, dense_bytes: 1, expected_percent: 1}",
            "line 10 column 9: 'dense_bits' is missing");
    refused(10, "choice: {dense_bits: 8, expert_bytes: 1, dense_bytes: 1, expected_points: 1}",
            "'expected_percent' is missing");
    refused(10, CHOICE(", dense_type: q6_k"), "line 10 column 91: 'q6_k' is no type of 8 bits");
    refused(10, CHOICE(", dense_type: \"8\""), "'8' is no type of 8 bits");
    refused(10, CHOICE(", dense_type: iq2_xxs"), "'iq2_xxs' is no type");
    refused(10, CHOICE(""), "line 10 column 9: 'layers' is missing");
    refused(10, CHOICE(", layers: [[8, 8, 8]]"), "'layers' must have 2 items, not 1");
    refused(10, CHOICE(", layers: [[8, 8, 8], 8]"), "line 10 column 99: an item must be a list");
    refused(10, CHOICE(", layers: [[8, 8, 8], [8, 8]]"),
            "line 10 column 99: a layer must have 3 items, not 2");
    refused(10, CHOICE(", layers: [[8, 8, 8], [8, 8, 3]]"),
            "line 10 column 106: '3' is none of the variants");
    refused(10, CHOICE(", layers: [[8, 8, 8], [8, 8, [8]]]"), "an item must be a text");
    refused(10, CHOICE(", loss: 3"), "'loss' must be a mapping");
}

#define HOBBIT_OPEN(t1, high)                                                                      \
    "hobbit: {t1: " t1 ", t2: 0.6, high_share: " high                                              \
    ", low_share: 0.25, skipped_share: 0.25, " PAIR
#define HOBBIT(t1, high, rest) HOBBIT_OPEN(t1, high) rest "}"

/* 100 scores: `first`, and as many of a hundredth as are missing. */
static void scores_refused(const char *first, const char *words)
{
    struct moe_buf text = {0};
    moe_buf_printf(&text, HOBBIT_OPEN("0.5", "0.5") ", scores: [%s", first);
    for (int i = strchr(first, ',') ? 2 : 1; i < MOE_SCORE_BINS; i++)
        moe_buf_text(&text, ", 0.01");
    moe_buf_text(&text, "]}");
    refused(10, (const char *)text.data, words);
    moe_buf_release(&text);
}

static void damage_of_fate_and_hobbit_is_named(void **state)
{
    refused(10, "fate: {share: 1.5, " PAIR "}", "line 10 column 15: 'share' must be from 0 to 1");
    refused(10, "fate: {share: 1, high: \"2\", low: \"4\"}",
            "line 10 column 34: 'low' must be a lower variant than 'high'");
    refused(10, "fate: {share: 1, " PAIR ", curve: [{share: 0.5}, {share: 0.5}]}",
            "line 10 column 61: 'share' must be rising");
    refused(10, "fate: {share: 1, " PAIR ", curve: [{}]}", "'share' is missing");
    refused(10, HOBBIT("0.7", "0.5", ""), "line 10 column 14: 't1' must not be above 't2'");
    refused(10, HOBBIT("-0.1", "0.5", ""), "'t1' must be from 0 to 1");
    refused(10, HOBBIT("0.5", "0.5001", ""), "line 10 column 40: 'high_share', 'low_share' and");
    refused(10, HOBBIT("0.5", "0.5", ", cuts: [{share: 0.1}, {share: 0.1}]"),
            "line 10 column 125: 'share' must be rising");
    refused(10, HOBBIT("0.5", "0.5", ", cuts: [{share: 0.1, lower: 1}]"), "unknown key 'lower'");
    refused(10, HOBBIT("0.5", "0.5", ", scores: [1]"), "'scores' must have 100 items, not 1");
    refused(10,
            HOBBIT("0.5", "0.5",
                   ", weights: {lru: 0.5, lfu: 0.5, lhu: 0.1, fld: 0}, "
                   "low_pool_share: 0, penalty_per_activation: 0, "
                   "default_penalty_per_activation: 0"),
            "line 10 column 113: 'weights' must sum to 1");
    refused(10, HOBBIT("0.5", "0.5", ", weights: {lru: 2, lfu: -1, lhu: 0, fld: 0}"),
            "'lru' must be from 0 to 1");
    refused(10, HOBBIT("0.5", "0.5", ", weights: {lru: 1, lfu: 0, lhu: 0, fld: 0}"),
            "'low_pool_share' is missing");
    refused(10, HOBBIT("0.5", "0.5", ", low_pool_share: 0"), "unknown key 'low_pool_share'");
    scores_refused("0.02", "'scores' must sum to 1, not 1.01");
    scores_refused("0.01, -0.01", "line 10 column 119: 'scores' must be at least 0");
    scores_refused("1e308, 1e308", "'scores' must sum to 1, not inf");
}

static void damage_of_savings_is_named(void **state)
{
#define SAVINGS(bytes, rest)                                                                       \
    "{cache_bytes: " bytes ", low: \"2\", exact_bytes_per_token: 7" rest "}"
    refused(10, "savings: [" SAVINGS("5", "") ", " SAVINGS("5", "") "]",
            "'cache_bytes' must be rising");
    refused(10, "savings: [" SAVINGS("0", "") "]", "'cache_bytes' must be at least 1");
    refused(10, "savings: [{cache_bytes: 5, low: \"3\"}]", "'3' is none of the variants");
    refused(10,
            "savings: [" SAVINGS("5", ", ways: [{strategy: lru, bytes_per_token: 1, "
                                      "changed_share: 0.5}]") "]",
            "'lru' has no 'loss'");
    refused(10,
            "savings: [" SAVINGS("5", ", ways: [{strategy: lru, bytes_per_token: 1, "
                                      "changed_share: 1.5}]") "]",
            "'changed_share' must be from 0 to 1");
}

static void files_that_are_no_map_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_map *m = NULL;
    assert_fails(moe_map_read(&m, "tests/no-such-map", &err), MOE_ERR_IO, "no-such-map", &err);
    assert_fails(moe_record_parse(&moe_map_format, &m, "x", "[1]", 3, &err), MOE_ERR_FORMAT,
                 "not a mapping", &err);
    assert_null(m);
}

/* On one line: no prefix of it is accepted as the whole. Under sanitizers every seventh is tried:
 * most cut one of many alike lines. */
static void what_is_cut_off_is_refused(void **state)
{
    enum { EACH_CUT = SANITIZED ? 7 : 1 };
    struct moe_err err = {0};
    struct moe_map *whole = full_map(10), *m;
    struct moe_buf text = written(whole, true);
    for (uint64_t n = 0; n + 2 < text.size; n += EACH_CUT)
        assert_int_not_equal(moe_record_parse(&moe_map_format, &m, "cut", text.data, n, &err),
                             MOE_OK);
    moe_buf_release(&text);
    moe_map_free(whole);
}

static void shapes_that_do_not_fit_are_refused(void **state)
{
    struct moe_err err = {0};
    struct moe_map *m;
    assert_fails(moe_map_new(&m, 0, 4, 1, &err), MOE_ERR_USAGE, "0 layers", &err);
    assert_null(m);
    assert_fails(moe_map_new(&m, 1024, 1025, 1, &err), MOE_ERR_USAGE, "1025 experts", &err);
    assert_fails(moe_map_new(&m, 2, 4, 5, &err), MOE_ERR_USAGE, "5 per token", &err);
    assert_ok(moe_map_new(&m, 1024, 1024, 1, &err), &err);
    assert_true(m->tolerance < 0 && m->model_layer[1023] == 1023);
    moe_map_free(m);
    moe_map_free(NULL);
}

/* ---- Shards ---- */

static void importances_are_taken_over(void **state)
{
    struct moe_err err = {0};
    uint64_t seed = 2;
    struct moe_map *whole = new_map(3, 5, 2), *merged = new_map(3, 5, 2);
    fill_texts(whole, &seed);
    fill_importances(whole, &seed);
    seed = 2;
    fill_texts(merged, &seed); /* and no importances yet */
    assert_false(moe_map_complete(merged));
    for (uint32_t shard = 0; shard < 2; shard++) {
        struct moe_map *known = shard_map(2, shard);
        assert_false(moe_map_complete(known));
        assert_ok(moe_map_adopt(merged, known, &err), &err);
        assert_int_equal(moe_map_complete(merged), shard == 1);
        assert_ok(moe_map_adopt(merged, known, &err), &err); /* known to both */
        moe_map_free(known);
    }
    assert_same_map(whole, merged);
    moe_map_free(merged);
    moe_map_free(whole);
}

/* Shard i of n of a map of 15 experts, saying so. */
static struct moe_map *nth_shard(uint32_t i, uint32_t n)
{
    uint64_t seed = 2;
    struct moe_map *m = new_map(3, 5, 2);
    fill_texts(m, &seed);
    fill_importances(m, &seed);
    for (uint32_t e = 0; e < 15; e++)
        if (e % n != i) {
            m->importances.known[e] = 0;
            m->importances.nats[e] = m->importances.error[e] = 0;
            m->importances.changed[e] = m->importances.visited[e] = 0;
        }
    set_shard(m, i, n);
    m->tolerance = i; /* need not be the same */
    return m;
}

static void merge_and_free(struct moe_map *to, struct moe_map *from)
{
    struct moe_err err = {0};
    assert_ok(moe_map_merge(to, from, &err), &err);
    moe_map_free(from);
}

/* In any order, in one go or in two, and with shards that have no experts. */
static void shards_merge_to_the_whole(void **state)
{
    struct moe_err err = {0};
    for (uint32_t n = 3; n <= 30; n += 27) {
        struct moe_map *whole = nth_shard(0, 1), *merged = nth_shard(1, n),
                       *some = nth_shard(n - 1, n);
        for (uint32_t i = 2; i < n - 1; i++)
            merge_and_free(some, nth_shard(i, n));
        assert_ok(moe_map_check_finished(some, &err), &err);
        comes_back(some);
        merge_and_free(merged, some);
        assert_fails(moe_map_check_whole(merged, &err), MOE_ERR_USAGE, "shard 1 of", &err);
        struct moe_map *twice = nth_shard(1, n), *first = nth_shard(0, n);
        assert_fails(moe_map_merge(merged, twice, &err), MOE_ERR_USAGE,
                     "would count twice: shard 2 of", &err);
        merge_and_free(merged, first);
        moe_map_free(twice);
        assert_ok(moe_map_check_whole(merged, &err), &err);
        assert_same_map(whole, merged);
        assert_true(moe_shards_whole(&merged->importances.shards));
        whole->importances.known[3] = 0;
        assert_fails(moe_map_check_finished(whole, &err), MOE_ERR_USAGE, "14 of 15 importances",
                     &err);
        moe_map_free(merged);
        moe_map_free(whole);
    }
}

static struct moe_map *sum, *part;

static int make_shards(void **state)
{
    sum = shard_map(7, 0);
    part = shard_map(7, 1);
    return 0;
}

static int free_shards(void **state)
{
    moe_map_free(sum);
    moe_map_free(part);
    return 0;
}

/* A member of `part` is another, and `sum` stays as it was. */
#define DIFFERS(change, words) FAILS(moe_map_merge, change, words)
#define FAILS(call, change, words)                                                                 \
    do {                                                                                           \
        struct moe_err err = {0};                                                                  \
        make_shards(state);                                                                        \
        change;                                                                                    \
        assert_fails(call(sum, part, &err), MOE_ERR_USAGE, words, &err);                           \
        struct moe_map *before = shard_map(7, 0);                                                  \
        assert_same_map(before, sum);                                                              \
        moe_map_free(before);                                                                      \
        free_shards(state);                                                                        \
    } while (0)

static void what_does_not_belong_together_is_refused(void **state)
{
    DIFFERS(part->top_k = 1, "another shape");
    DIFFERS(part->model_layer[2] = 9, "another shape");
    DIFFERS(part->n_experts = 4, "another shape");
    DIFFERS(part->source_fingerprint++, "source_fingerprint");
    DIFFERS(part->pack_fingerprint++, "pack_fingerprint");
    DIFFERS(part->n_variants = 2, "another set of variants");
    DIFFERS(strcpy(part->variants[1], "4"), "another set of variants");
    DIFFERS(part->pack_dense_bits = 4, "another dense part");
    DIFFERS(part->metric = MOE_METRIC_TOP1, "another metric");
    DIFFERS(part->max_tokens = 128, "max_document_tokens");
    DIFFERS(strcpy(part->texts[1].name, "b"), "texts");
    DIFFERS(part->texts[0].tokens++, "texts");
    DIFFERS(part->texts[0].documents++, "texts");
    DIFFERS(part->texts[1].hash++, "texts");
    DIFFERS(part->texts[2].check = false, "texts");
    DIFFERS(part->n_texts = 1, "texts");
    DIFFERS(part->importances.exact = false, "another method");
    DIFFERS(part->importances.upper = 0, "another upper variant");
    DIFFERS(part->importances.lower = 1, "another lower variant");
    DIFFERS(part->importances.dense_bits = 8, "dense part beside importances");
}

static void figures_must_agree_in_every_digit(void **state)
{
    /* Number 8 of all is expert 3 of layer 1. */
#define BOTH_KNOW(change)                                                                          \
    FAILS(                                                                                         \
        moe_map_adopt,                                                                             \
        {                                                                                          \
            moe_map_free(part);                                                                    \
            part = shard_map(7, 0);                                                                \
            change;                                                                                \
        },                                                                                         \
        "layer 1 expert 3 has another importance")
    BOTH_KNOW(part->importances.nats[8] = nextafter(part->importances.nats[8], 1));
    BOTH_KNOW(part->importances.error[8] = nextafter(part->importances.error[8], 1));
    BOTH_KNOW(part->importances.changed[8]++);
    BOTH_KNOW(part->importances.visited[8]++);
}

/* Shards need not be judged on the same texts. */
static void texts_to_judge_on_may_differ(void **state)
{
    struct moe_err err = {0};
    make_shards(state);
    part->n_texts = 2;
    assert_ok(moe_map_merge(sum, part, &err), &err);
    assert_true(moe_map_complete(sum));
    free_shards(state);
}

/* ---- The manual ---- */

static void the_manuals_example_is_a_map(void **state)
{
    struct moe_err err = {0};
    struct moe_buf page = {0};
    assert_ok(moe_file_read_all("man/moe-map.5", 1 << 20, &page, &err), &err);
    char *at = strstr((char *)page.data, ".Sh EXAMPLES");
    assert_non_null(at);
    at = strchr(strstr(at, ".Bd"), '\n') + 1;
    *strstr(at, ".Ed") = '\0';
    struct moe_buf text = {0};
    moe_buf_text(&text, at);
    struct moe_map *m = read_back(&text);
    comes_back(m);
    assert_true(m->n_texts && m->n_uniform && m->choice.there && m->fate.n_points);
    assert_true(m->hobbit.weighed && m->hobbit.n_cuts && moe_map_complete(m));
    moe_map_free(m);
    moe_buf_release(&text);
    moe_buf_release(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_maps_come_back),
        cmocka_unit_test(a_map_that_knows_nothing_comes_back),
        cmocka_unit_test(shards_and_estimates_come_back),
        cmocka_unit_test(parts_may_be_missing),
        cmocka_unit_test(a_layer_is_a_line),
        cmocka_unit_test(numbers_that_are_not_finite_are_not_written),
        cmocka_unit_test(json_has_the_figures),
        cmocka_unit_test(losses_are_in_the_metric),
        cmocka_unit_test(nothing_is_refused_without_damage),
        cmocka_unit_test(damage_of_the_head_is_named),
        cmocka_unit_test(damage_of_measurements_is_named),
        cmocka_unit_test(damage_of_importances_is_named),
        cmocka_unit_test(damage_of_the_choice_is_named),
        cmocka_unit_test(damage_of_fate_and_hobbit_is_named),
        cmocka_unit_test(damage_of_savings_is_named),
        cmocka_unit_test(files_that_are_no_map_are_refused),
        cmocka_unit_test(what_is_cut_off_is_refused),
        cmocka_unit_test(shapes_that_do_not_fit_are_refused),
        cmocka_unit_test(importances_are_taken_over),
        cmocka_unit_test(shards_merge_to_the_whole),
        cmocka_unit_test(what_does_not_belong_together_is_refused),
        cmocka_unit_test(figures_must_agree_in_every_digit),
        cmocka_unit_test(texts_to_judge_on_may_differ),
        cmocka_unit_test(the_manuals_example_is_a_map),
    };
    snprintf(path, sizeof path, "/tmp/moe-test-map-%d.yaml", (int)getpid());
    int failed = cmocka_run_group_tests_name("map", tests, NULL, NULL);
    unlink(path);
    return failed;
}
