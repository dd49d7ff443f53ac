/* What a collection's models cost: fits of made measurements, sample requests, architectures. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../test.h"

#include <math.h>

#include "../scratch_dir.h"
#include "tune/coe_bench.h"

/* seconds = k * n + b up to `full` requests; beyond, they follow one another. */
static struct moe_coe_batch_curve curve(double k, double b, uint32_t n_points, uint32_t full)
{
    struct moe_coe_batch_curve c = {.n = n_points};
    for (uint32_t i = 0; i < n_points; i++) {
        uint32_t n = 1u << i;
        c.points[i].requests = n;
        c.points[i].seconds = n <= full ? k * n + b : (k * full + b) * n / full;
        c.points[i].bytes = 1000 + 40 * (uint64_t)n;
    }
    return c;
}

static void lines_are_found_exactly(void **state)
{
    static const double lines[][2] = {{0.01, 0.5}, {3, 0}, {0, 2}, {1e-6, 1e-3}};
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct moe_coe_batch_curve c = curve(lines[i][0], lines[i][1], 6, UINT32_MAX);
        double k, b;
        moe_coe_batch_fit(&c, &k, &b);
        assert_true(fabs(k - lines[i][0]) < 1e-9 && fabs(b - lines[i][1]) < 1e-9);
    }
}

static void noise_is_fitted_by_least_squares(void **state)
{
    /* By hand: sums 7 of n, 15 of t, 21 of n n, 42 of n t; K = (3 * 42 - 7 * 15) / (3 * 21 - 49).
     */
    struct moe_coe_batch_curve c = {.n = 3, .points = {{1, 4, 0}, {2, 3, 0}, {4, 8, 0}}};
    double k, b;
    (void)state;
    moe_coe_batch_fit(&c, &k, &b);
    assert_true(fabs(k - 1.5) < 1e-12 && fabs(b - 1.5) < 1e-12);
}

static void neither_is_below_0(void **state)
{
    struct moe_coe_batch_curve steep = {.n = 2, .points = {{1, 1, 0}, {2, 4, 0}}};
    struct moe_coe_batch_curve falling = {.n = 2, .points = {{1, 4, 0}, {2, 2, 0}}};
    struct moe_coe_batch_curve alone = {.n = 1, .points = {{1, 0.25, 77}}};
    double k, b;
    (void)state;
    moe_coe_batch_fit(&steep, &k, &b);
    assert_true(b == 0 && fabs(k - 9.0 / 5) < 1e-12); /* sum of n t over sum of n n */
    moe_coe_batch_fit(&falling, &k, &b);
    assert_true(k == 0 && b == 3);
    moe_coe_batch_fit(&alone, &k, &b);
    assert_true(k == 0.25 && b == 0);
    assert_int_equal(moe_coe_batch_level(&alone), 1);
    assert_int_equal(moe_coe_batch_request_bytes(&alone), 77);
    assert_false(moe_coe_batch_levelled(&alone));
}

static void throughput_levels_off(void **state)
{
    (void)state;
    /* Each request: 0.1 + 0.9 / n until 8 run side by side, then no less. */
    struct moe_coe_batch_curve c = curve(0.1, 0.9, 4, 8);
    assert_false(moe_coe_batch_levelled(&c));
    c = curve(0.1, 0.9, 5, 8);
    assert_false(moe_coe_batch_levelled(&c)); /* 16 was not better than 8, but 8 was than 4 */
    c = curve(0.1, 0.9, 6, 8);
    assert_true(moe_coe_batch_levelled(&c));
    assert_int_equal(moe_coe_batch_level(&c), 8);
    /* One slow moment does not end it, and does not choose a smaller batch. */
    c = curve(0.1, 0.9, 3, 8);
    c.points[2].seconds *= 3;
    assert_false(moe_coe_batch_levelled(&c));
    c = curve(0.1, 0.9, 6, 8);
    c.points[4].seconds *= 0.97;
    assert_int_equal(moe_coe_batch_level(&c), 8);
    /* What is within 5% of the best will do, what is above will not. */
    c = (struct moe_coe_batch_curve){4, {{1, 1, 0}, {2, 1, 0}, {4, 1.04, 0}, {8, 2, 0}}};
    assert_int_equal(moe_coe_batch_level(&c), 4);
    c.points[2].seconds = 1.08;
    assert_int_equal(moe_coe_batch_level(&c), 8);
    /* Nothing to gain side by side. */
    c = curve(1, 0, 3, UINT32_MAX);
    assert_true(moe_coe_batch_levelled(&c));
    assert_int_equal(moe_coe_batch_level(&c), 1);
}

static void requests_share_what_the_batch_takes(void **state)
{
    struct moe_coe_batch_curve c = curve(0.1, 0.9, 6, 8); /* 1000 and 40 each */
    (void)state;
    assert_int_equal(moe_coe_batch_level(&c), 8);
    assert_int_equal(moe_coe_batch_request_bytes(&c), 1000 / 8 + 40);
    c.points[3].bytes++;
    assert_int_equal(moe_coe_batch_request_bytes(&c), 1000 / 8 + 40 + 1); /* never too few */
}

/* ---- Samples ---- */

#define HEAD                                                                                       \
    "format: moe-coe\nversion: 1\nexperts:\n  - {name: a, pack: a.moe}\n"                          \
    "  - {name: b, pack: b.moe}\n  - {name: x, pack: x.moe}\n  - {name: y, pack: y.moe}\n"         \
    "routes:\n  - {field: topic, equals: a, expert: a}\n"                                          \
    "  - {field: topic, equals: b, expert: b}\nfollows:\n"

/* Prompts are ids: no tokenizer is needed. */
#define ASKS(topic) "{\"prompt\": [1, 2, 3], \"metadata\": {\"topic\": \"" topic "\"}}\n"

static int sample(const char *follows, const char *lines, struct moe_coe_samples *out,
                  struct moe_err *err)
{
    char text[2048];
    struct moe_coe_collection *c = NULL;
    snprintf(text, sizeof text, "%s%s", HEAD, follows);
    int status =
        moe_record_parse(&moe_coe_collection_format, &c, "c.yaml", text, strlen(text), err);
    if (status == MOE_OK)
        status = moe_file_write_all(in_dir("r.jsonl"), lines, strlen(lines), err);
    if (status == MOE_OK)
        status = moe_coe_samples_read(out, c, NULL, in_dir("r.jsonl"), NULL, err);
    moe_coe_collection_free(c);
    return status;
}

/* a, b, x, y; -1: not known. */
static void check_usage(const char *follows, const char *lines, double a, double b, double x,
                        double y)
{
    struct moe_coe_samples s;
    struct moe_err err;
    const double want[] = {a, b, x, y};
    assert_ok(sample(follows, lines, &s, &err), &err);
    for (int i = 0; i < 4; i++)
        if (fabs(s.usage[i] - want[i]) > 1e-12)
            fail_msg("usage of %c: %g, not %g", "abxy"[i], s.usage[i], want[i]);
    moe_coe_samples_release(&s);
}

static void usage_is_counted(void **state)
{
    static const char lines[] = ASKS("a") ASKS("a") "\n" ASKS("b") ASKS("a");
    static const char all[] = "  - {after: a, expert: x}\n  - {after: x, expert: y}\n";
    static const char shares[] = "  - {after: a, matches: ok, expert: x, share: 0.5}\n"
                                 "  - {after: b, expert: x, share: 1}\n"
                                 "  - {after: x, matches: ok, expert: y, share: 0.2}\n";
    static const char tested[] = "  - {after: b, matches: ok, expert: x}\n"
                                 "  - {after: x, expert: y}\n";
    (void)state;
    check_usage(all, lines, 0.75, 0.25, 0.75, 0.75);
    check_usage(shares, lines, 0.75, 0.25, 0.625, 0.125);
    check_usage(tested, lines, 0.75, 0.25, -1, -1);
    /* The first rule takes all. */
    check_usage("  - {after: a, expert: x}\n  - {after: a, expert: y}\n", lines, 0.75, 0.25, 0.75,
                0);
    /* Nobody asked b: nothing is unknown. */
    check_usage(tested, ASKS("a"), 1, 0, 0, 0);
    check_usage(all, "{\"model\": \"auto\", \"prompt\": [1], \"metadata\": {\"topic\": \"b\"}}", 0,
                1, 0, 0);
    /* By name, and as lines of the batch API. */
    check_usage(all,
                "{\"model\": \"b\", \"prompt\": [1]}\n"
                "{\"custom_id\": \"1\", \"body\": {\"model\": \"x\", \"prompt\": [1]}}",
                0, 0.5, 0.5, 0.5);
}

static void lengths_are_averaged(void **state)
{
    struct moe_coe_samples s;
    struct moe_err err;
    (void)state;
    assert_ok(sample("  - {after: a, expert: x}\n  - {after: a, expert: y}\n",
                     "{\"model\": \"a\", \"prompt\": [1, 2, 3, 4], \"max_tokens\": 10}\n"
                     "{\"model\": \"b\", \"prompt\": [7, 8], \"max_tokens\": 5}\n",
                     &s, &err),
              &err);
    assert_int_equal(s.n, 2);
    assert_true(s.mean_prompt == 3 && s.mean_answer == 7.5);
    assert_int_equal(s.prompts.n, 6);
    assert_int_equal(s.prompts.ids[4], 7);
    moe_coe_samples_release(&s);
}

static void bad_samples_are_named(void **state)
{
    static const char follows[] = "  - {after: a, expert: x}\n  - {after: a, expert: y}\n";
    static const struct {
        const char *lines, *words;
    } bad[] = {
        {"", "there are no requests"},
        {ASKS("a") "nonsense\n", "line 2: "},
        {ASKS("a") ASKS("c"), "line 2: no rule takes this request"},
        {"{\"prompt\": [1], \"model\": \"z\"}\n", "line 1: there is no expert 'z'"},
        {"{\"prompt\": 7}\n", "line 1: "},
        {"[1]\n", "line 1: "},
        {"{\"body\": 7}\n", "line 1: "},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(bad); i++) {
        struct moe_coe_samples s;
        struct moe_err err;
        assert_fails(sample(follows, bad[i].lines, &s, &err), MOE_ERR_FORMAT, bad[i].words, &err);
        moe_coe_samples_release(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_found_exactly),
        cmocka_unit_test(noise_is_fitted_by_least_squares),
        cmocka_unit_test(neither_is_below_0),
        cmocka_unit_test(throughput_levels_off),
        cmocka_unit_test(requests_share_what_the_batch_takes),
        cmocka_unit_test(usage_is_counted),
        cmocka_unit_test(lengths_are_averaged),
        cmocka_unit_test(bad_samples_are_named),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
