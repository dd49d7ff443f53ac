/* Files of shapes: those shipped against what is published of their models, what layers that are
 * not like the settings take, and damage. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../scratch_dir.h"
#include "../test.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "model/family.h"
#include "model/shape_file.h"

static struct moe_bits four = {4, 4};

static void read_shape(struct moe_shape_file *out, const char *name)
{
    struct moe_err err = {0};
    char path[300];
    snprintf(path, sizeof path, "profiles/shapes/%.200s", name);
    assert_ok(moe_shape_file_read(out, path, &err), &err);
}

static void shapes_weigh_what_is_published(void **state)
{
    DIR *shapes = opendir("profiles/shapes");
    int n = 0, published = 0;
    assert_non_null(shapes);
    for (struct dirent *e; (e = readdir(shapes)); n++) {
        static struct moe_shape_file s;
        struct moe_shape_bytes bytes, whole;
        struct moe_err err = {0};
        if (!strstr(e->d_name, ".json")) {
            n--;
            continue;
        }
        read_shape(&s, e->d_name);
        assert_ok(moe_shape_file_bytes(&bytes, &s, four, 8, 64, &err), &err);
        assert_ok(moe_shape_file_bytes(&whole, &s, (struct moe_bits){16, 16}, 16, 64, &err), &err);
        if (!s.name[0] || s.config.n_experts == 0)
            fail_msg("%s: no name, or no experts", e->d_name);
        if (s.runs && !moe_family_find(s.config.family))
            fail_msg("%s: nothing runs family %s", e->d_name, s.config.family);
        const struct moe_loop loop = moe_config_moe_loop(&s.config);
        /* 16 bits are two bytes each, but for vectors and what fills a panel. */
        double experts = (double)s.config.n_experts * moe_loop_owners(&loop, s.config.n_moe_layers);
        double per =
            ((double)whole.dense + (double)whole.expert * experts) / (double)bytes.parameters;
        if (per < 1.99 || per > 2.03)
            fail_msg("%s: %g bytes for a parameter at 16 bits", e->d_name, per);
        if (s.parameters > 0 && fabs((double)bytes.parameters / s.parameters - 1) > 0.01)
            fail_msg("%s: %g parameters, published are %g", e->d_name, (double)bytes.parameters,
                     s.parameters);
        published += s.parameters > 0;
    }
    closedir(shapes);
    assert_true(n >= 37 && published >= 32);
}

/* Experts at 4 bits in groups of 64 with a scale and a zero of 16 bits: 4.5 bits a weight, and the
 * rest at 8.5. */
static void four_bits_are_a_known_size(void **state)
{
    static struct moe_shape_file s;
    struct moe_shape_bytes b;
    struct moe_err err = {0};
    read_shape(&s, "qwen3-30b-a3b.json");
    assert_ok(moe_shape_file_bytes(&b, &s, four, 8, 64, &err), &err);
    assert_int_equal(b.expert, (uint64_t)(3 * 2048 * 768 * 4.5 / 8));
    double experts = 48 * 128 * (double)b.expert, rest = (double)b.dense;
    assert_true(fabs(experts / (28991029248.0 * 4.5 / 8) - 1) < 1e-9);
    assert_true(fabs(rest / ((double)(b.parameters - 28991029248) * 8.5 / 8) - 1) < 0.01);
}

static void layers_of_two_kinds(void **state)
{
    static struct moe_shape_file two;
    struct moe_shape_bytes b;
    struct moe_err err = {0};
    assert_ok(moe_shape_file_read(&two, "tests/data/two-kinds.json", &err), &err);
    assert_false(two.runs);
    assert_non_null(strstr(two.why, "not implemented"));
    /* 25 layers keep 1024 positions at most, 5 keep all. */
    assert_int_equal(moe_shape_file_kv_bytes(&two, 100, 4),
                     4 * 100 * (25 * UINT64_C(4096) + 5 * 2048));
    assert_int_equal(moe_shape_file_kv_bytes(&two, 4096, 4),
                     4 * (25 * UINT64_C(4096) * 1024 + 5 * UINT64_C(2048) * 4096));
    assert_int_equal(moe_shape_file_kv_bytes(&two, 4096, 2),
                     2 * (25 * UINT64_C(4096) * 1024 + 5 * UINT64_C(2048) * 4096));
    assert_ok(moe_shape_file_bytes(&b, &two, four, 16, 64, &err), &err);
    assert_int_equal(b.attention_parameters, (25 * 34603520 + 5 * 49021952) / 30);
    assert_true(
        fabs((double)(b.attention - b.router) / (2.0 * (double)b.attention_parameters) - 1) < 0.01);

    /* Gemma-4 has such layers and runs: each keeps keys and values of all positions. */
    static struct moe_shape_file runs;
    assert_ok(moe_shape_file_read(&runs, "profiles/shapes/gemma-4-26b-a4b.json", &err), &err);
    assert_true(runs.runs && runs.n_kinds == 0);
    assert_ok(moe_shape_file_bytes(&b, &runs, four, 16, 64, &err), &err);
    assert_int_equal(b.kv_position, 4 * (25 * UINT64_C(4096) + 5 * 2048));
    assert_true(fabs((double)b.parameters / 25.2e9 - 1) < 0.01);

    static struct moe_shape_file plain;
    read_shape(&plain, "mixtral-8x7b.json");
    assert_true(plain.runs && plain.n_kinds == 0);
    assert_int_equal(moe_shape_file_kv_bytes(&plain, 4096, 4), 0);
}

#define CONFIG                                                                                     \
    "\"num_hidden_layers\": 2, \"hidden_size\": 64, \"vocab_size\": 128, "                         \
    "\"max_position_embeddings\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 4, "    \
    "\"intermediate_size\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 2"

#define AS "\"runs\": false, \"why\": \"x\", \"as\": {\"model_type\": \"mixtral\"}"

static int read_text(struct moe_shape_file *out, const char *text, struct moe_err *err)
{
    const char *path = in_dir("shape.json");
    assert_ok(moe_file_write_all(path, text, strlen(text), err), err);
    return moe_shape_file_read(out, path, err);
}

/* A state is kept whatever the length, and moved for each token. */
static void layers_with_states(void **state)
{
    static struct moe_shape_file s;
    struct moe_shape_bytes b;
    struct moe_err err = {0};
    assert_ok(read_text(&s,
                        "{\"model_type\": \"unheard\", " CONFIG ", \"moe_shape\": {" AS
                        ", \"layers\": ["
                        "{\"kind\": \"state\", \"count\": 1, \"attention_parameters\": 16384, "
                        "\"kv_values\": 0, \"state_values\": 4000}, "
                        "{\"kind\": \"full\", \"count\": 1, \"attention_parameters\": 16384, "
                        "\"kv_values\": 64}]}}",
                        &err),
              &err);
    assert_int_equal(moe_shape_file_kv_bytes(&s, 1000, 4), 4 * (4000 + 64 * 1000));
    assert_int_equal(moe_shape_file_kv_bytes(&s, 1000, 2), 4 * 4000 + 2 * 64 * 1000);
    assert_ok(moe_shape_file_bytes(&b, &s, four, 16, 64, &err), &err);
    assert_int_equal(b.attention_parameters, 16384);
    double state_bytes = 8.0 * 4000 / 2;
    assert_true(fabs((double)(b.attention - b.router) / (2.0 * 16384 + state_bytes) - 1) < 0.05);
}

static void refused(const char *shape, int status, const char *words)
{
    static struct moe_shape_file s;
    struct moe_err err = {0};
    char text[2048];
    snprintf(text, sizeof text, "{\"model_type\": \"unheard\", " CONFIG ", \"moe_shape\": %s}",
             shape);
    assert_fails(read_text(&s, text, &err), status, words, &err);
}

#define KIND "\"kind\": \"a\", \"attention_parameters\": 4096, \"kv_values\": 8"

static void damage_is_named(void **state)
{
    static struct moe_shape_file s;
    struct moe_err err = {0};
    assert_ok(read_text(&s, "{\"model_type\": \"mixtral\", " CONFIG "}", &err), &err);
    assert_true(s.runs && !s.name[0]);
    assert_ok(
        read_text(&s, "{\"model_type\": \"unheard\", " CONFIG ", \"moe_shape\": {" AS "}}", &err),
        &err);
    assert_false(s.runs);
    refused("{}", MOE_ERR_UNSUPPORTED, "unheard");
    refused("[]", MOE_ERR_FORMAT, "'moe_shape' must be an object");
    refused("{\"as\": 1}", MOE_ERR_FORMAT, "'as' must be an object");
    refused("{\"as\": {\"model_type\": \"mixtral\"}}", MOE_ERR_FORMAT, "'runs' must be false");
    refused("{\"runs\": false, \"as\": {\"model_type\": \"mixtral\"}}", MOE_ERR_FORMAT,
            "'why' is missing");
    refused("{" AS ", \"parameters\": -1}", MOE_ERR_FORMAT, "'parameters' must be from 0");
    refused("{" AS ", \"parameters\": 1e300}", MOE_ERR_FORMAT, "'parameters' must be from 0");
    refused("{" AS ", \"layers\": 1}", MOE_ERR_FORMAT, "'layers' must be a list");
    refused("{" AS ", \"layers\": [1]}", MOE_ERR_FORMAT, "a list of objects");
    refused("{" AS ", \"layers\": [{}]}", MOE_ERR_FORMAT, "'kind' is missing");
    refused("{" AS ", \"layers\": [{" KIND ", \"count\": 3}]}", MOE_ERR_FORMAT,
            "are 3 in all, the model has 2");
    refused("{" AS ", \"layers\": [{" KIND ", \"count\": 2, \"window\": -1}]}", MOE_ERR_FORMAT,
            "'window'");
    refused("{" AS ", \"layers\": [{},{},{},{},{},{},{},{},{}]}", MOE_ERR_FORMAT,
            "at most 8 kinds");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_weigh_what_is_published),
        cmocka_unit_test(four_bits_are_a_known_size),
        cmocka_unit_test(layers_of_two_kinds),
        cmocka_unit_test_setup_teardown(layers_with_states, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(damage_is_named, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
