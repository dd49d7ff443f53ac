/* Device profiles: round trip, refusals, what follows from the figures, and the profiles shipped.
 */
#include "../test.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "fmt/yaml.h"
#include "profile/device.h"

static char path[64];

static struct moe_figure measured(double value)
{
    return (struct moe_figure){.value = value, .min = value / 2, .max = 2 * value, .n_runs = 5};
}

static struct moe_figure given(double value, const char *source)
{
    struct moe_figure f = {.value = value};
    snprintf(f.source, sizeof f.source, "%s", source);
    return f;
}

/* Every member has a value. */
static struct moe_device *full(void)
{
    struct moe_device *d = calloc(1, sizeof *d);
    assert_non_null(d);
    strcpy(d->name, "a \"machine\": with # signs");
    strcpy(d->source, "a test");
    strcpy(d->host.source, "sysfs");
    strcpy(d->host.name, "CPU");
    strcpy(d->host.cpu_level, "avx2");
    d->host.cores = given(12, "");
    d->host.threads = given(6, "");
    d->host.memory_bytes = given(68719476736, "the label, \\ and all");
    d->host.memory_bytes_per_second = measured(2.5e10);
    strcpy(d->accelerator.source, "its box");
    strcpy(d->accelerator.name, "GPU");
    d->accelerator.shares_memory = true;
    d->accelerator.memory_bytes = given(25769803776, "");
    d->accelerator.memory_bytes_per_second = given(936e9, "its box");
    d->accelerator.link_bytes_per_second = measured(16e9);
    d->accelerator.link_piece_seconds = given(6e-6, "its box");
    d->accelerator.launch_seconds = given(4e-6, "");
    d->accelerator.trip_seconds = measured(2e-5);
    strcpy(d->storage.source, "reads");
    strcpy(d->storage.name, "SSD");
    d->storage.direct = true;
    d->storage.bytes_per_second = given(5e8, "");
    d->storage.latency_seconds = measured(1e-4);
    d->storage.read_bytes = given(1048576, "");
    d->storage.n_reads = 2;
    for (uint32_t i = 0; i < 2; i++)
        d->storage.reads[i] =
            (struct moe_device_reads){1 + 3 * i, measured(1e9 * (1 + i)), measured(1.1e-3)};
    d->storage.n_bursts = 2;
    for (uint32_t i = 0; i < 2; i++)
        d->storage.bursts[i] = (struct moe_device_burst){1 + 7 * i, 1048576, measured(1e-3),
                                                         measured(1e-3 * (1 + 5 * i))};
    d->storage.n_handling = 2;
    for (uint32_t i = 0; i < 2; i++)
        d->storage.handling[i] =
            (struct moe_device_handling){4096 + i * 1048576, measured(1e-5 * (1 + 9 * i))};
    d->has_model = true;
    struct moe_device_model *m = &d->model;
    strcpy(m->source, "its layers");
    m->source_fingerprint = 0x0123456789abcdef;
    m->layers = 3;
    m->moe_layers = 2;
    m->experts_per_token = 4;
    m->positions = 64;
    m->far_positions = 512;
    m->far_attention = measured(1.5);
    m->head_seconds = measured(0.25);
    m->interruptions = measured(1.125);
    m->loading_slowdown = measured(1.25);
    m->loading_steal = measured(0.0625);
    m->wake = measured(3e-5);
    m->late = measured(2e-4);
    m->n_variants = 2;
    strcpy(m->variants[0].name, "8");
    strcpy(m->variants[1].name, "4d8");
    m->variants[0].bytes = given(1048576, "");
    m->variants[1].bytes = given(786432, "");
    m->n_batches = 2;
    for (uint32_t i = 0; i < 2; i++) {
        double k = i ? 10 : 1;
        m->batches[i] = (struct moe_device_batch){
            .rows = i ? 21 : 1,
            .attention = measured(1 * k),
            .router = measured(2 * k),
            .shared = measured(3 * k),
            .combine = measured(4 * k),
            .dense = measured(5 * k),
            .expert_rows = measured(i ? 5 : 1),
            .n_experts = 2,
            .experts = {measured(0.5 * k), measured(0.25 * k)},
        };
    }
    d->n_timed = 2;
    for (uint32_t i = 0; i < 2; i++)
        d->timed[i] = (struct moe_device_timed){.model = "a model",
                                                .moe_layers = 24,
                                                .experts = 60 + i,
                                                .experts_per_token = 4,
                                                .layer = given(13e-3, "a paper")};
    d->timed[1].load = given(6e-3, "a paper");
    d->timed[1].load_bytes = given(17301504, "");
    return d;
}

static void write_text(const char *text)
{
    struct moe_err err = {0};
    assert_ok(moe_file_write_all(path, text, strlen(text), &err), &err);
}

static struct moe_device *read_text(const char *text)
{
    struct moe_err err = {0};
    struct moe_device *d = NULL;
    write_text(text);
    assert_ok(moe_device_read(&d, path, &err), &err);
    return d;
}

static void what_is_written_is_read_back(void **state)
{
    struct moe_err err = {0};
    struct moe_buf first = {0}, second = {0};
    struct moe_device *d = full();
    assert_ok(moe_device_write(d, false, &first, &err), &err);
    struct moe_device *again = read_text((const char *)first.data);
    assert_ok(moe_device_write(again, false, &second, &err), &err);
    assert_string_equal(first.data, second.data);
    assert_string_equal(again->name, d->name);
    assert_string_equal(again->host.memory_bytes.source, "the label, \\ and all");
    assert_true(again->host.memory_bytes.value == 68719476736.0);
    assert_true(again->storage.direct && again->accelerator.shares_memory && again->has_model);
    assert_true(again->model.source_fingerprint == 0x0123456789abcdef);
    assert_true(again->model.batches[1].experts[1].max == 5);
    assert_int_equal(again->model.batches[1].experts[1].n_runs, 5);
    assert_int_equal(again->n_timed, 2);
    assert_int_equal(again->storage.n_bursts, 2);
    assert_int_equal(again->storage.bursts[1].loads, 8);
    assert_true(again->storage.bursts[1].bytes == 1048576 &&
                again->storage.bursts[1].first_seconds.value == 1e-3 &&
                again->storage.bursts[1].seconds.value == 6e-3);
    assert_int_equal(again->storage.n_handling, 2);
    assert_int_equal(again->storage.handling[1].bytes, 4096 + 1048576);
    assert_int_equal(again->model.far_positions, 512);
    assert_true(again->model.interruptions.value == 1.125 &&
                again->model.loading_slowdown.value == 1.25 &&
                again->model.loading_steal.value == 0.0625 && again->model.wake.max == 6e-5 &&
                again->model.late.value == 2e-4);
    assert_string_equal(again->timed[1].load.source, "a paper");
    moe_buf_release(&first);
    moe_buf_release(&second);
    free(again);
    free(d);
}

static void json_has_the_same_members(void **state)
{
    struct moe_err err = {0};
    struct moe_buf text = {0};
    struct moe_device *d = full();
    double value = 0, most = 0, expert = 0;
    const char *name, *source;
    assert_ok(moe_device_write(d, true, &text, &err), &err);
    json_t *json = json_loadb((const char *)text.data, text.size, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(json);
    assert_int_equal(json_unpack(json, "{s:s, s:{s:{s:F, s:s}}, s:{s:[{},{s:{s:F}}]}}", "name",
                                 &name, "host", "memory_bytes", "value", &value, "source", &source,
                                 "storage", "reads", "bytes_per_second", "max", &most),
                     0);
    assert_string_equal(name, d->name);
    assert_string_equal(source, d->host.memory_bytes.source);
    assert_true(value == 68719476736.0 && most == 4e9);
    assert_int_equal(json_unpack(json, "{s:{s:[{s:{s:{s:F}}}, {}]}}", "model", "batches",
                                 "expert_seconds", "4d8", "value", &expert),
                     0);
    assert_true(expert == 0.25);
    json_decref(json);
    moe_buf_release(&text);
    free(d);
}

static void near(double got, double expected)
{
    if (!(fabs(got - expected) <= 1e-12 * expected))
        fail_msg("%.17g, expected %.17g", got, expected);
}

static void what_follows_is_right(void **state)
{
    struct moe_device *d = full();
    /* Times at 1 and 21 rows are t and 10 t. */
    struct moe_line route = moe_device_part_line(d, MOE_DEVICE_ROUTE);
    struct moe_line attention = moe_device_part_line(d, MOE_DEVICE_ATTENTION);
    near(moe_line_at(&route, 1), 3);
    near(moe_line_at(&attention, 1), 1);
    near(moe_device_layer_seconds(d, true, 1), 10);
    near(moe_device_layer_seconds(d, false, 1), 6);
    near(moe_device_layer_seconds(d, true, 11), 55);
    near(moe_device_layer_seconds(d, true, 21), 100);
    near(moe_device_layer_seconds(d, true, 41), 190);
    assert_int_equal(moe_device_variant(d, "4d8"), 1);
    assert_int_equal(moe_device_variant(d, "4"), -1);
    near(moe_device_expert_seconds(d, 1, 1), 0.25);
    near(moe_device_expert_seconds(d, 1, 3), 1.375);
    near(moe_device_expert_seconds(d, 0, 9), 9.5);
    near(moe_device_head_seconds(d), 0.25);
    near(moe_device_load_rate(d, MOE_TIER_STORAGE), 2e9);
    near(moe_device_load_rate(d, MOE_TIER_HOST), 16e9);
    /* 1.1 ms for 1 MiB alone, of which 0.1 ms are latency. */
    near(moe_device_load_seconds(d, MOE_TIER_STORAGE, 2097152), 2.1e-3);
    near(moe_device_load_seconds(d, MOE_TIER_HOST, 8000000000), 0.5);
    double load, byte;
    moe_device_handling(d, &load, &byte);
    near(byte, 9e-5 / 1048576);
    near(load, 1e-5 - 4096 * byte);
    d->storage.n_handling = 1; /* all of it for the load */
    moe_device_handling(d, &load, &byte);
    assert_true(byte == 0 && load == 1e-5);
    d->storage.n_handling = 0;
    moe_device_handling(d, &load, &byte);
    assert_true(byte == 0 && load == 0);
    free(d);
}

static void times_are_of_models_of_one_shape(void **state)
{
    struct moe_device *d = full();
    assert_ptr_equal(moe_device_find_timed(d, 24, 60, 4), &d->timed[0]);
    assert_ptr_equal(moe_device_find_timed(d, 24, 61, 4), &d->timed[1]);
    assert_null(moe_device_find_timed(d, 24, 62, 4));
    assert_null(moe_device_find_timed(d, 23, 60, 4));
    assert_null(moe_device_find_timed(d, 24, 60, 2));
    free(d);
}

static void what_is_not_known_is_nan(void **state)
{
    struct moe_device *d = read_text("format: moe-device\nversion: 1\nname: x\n"
                                     "storage: {bytes_per_second: 5e7}\n");
    near(moe_device_load_rate(d, MOE_TIER_STORAGE), 5e7);
    near(moe_device_load_seconds(d, MOE_TIER_STORAGE, 100000000), 2);
    assert_true(isnan(moe_device_load_rate(d, MOE_TIER_HOST)));
    assert_true(isnan(moe_device_load_seconds(d, MOE_TIER_HOST, 1)));
    assert_true(isnan(moe_device_layer_seconds(d, true, 1)));
    assert_true(isnan(moe_device_expert_seconds(d, 0, 1)));
    assert_true(isnan(moe_device_head_seconds(d)));
    assert_false(d->has_model);
    free(d);
}

static void refused(const char *text, int status, const char *part)
{
    struct moe_err err = {0};
    struct moe_device *d = NULL;
    write_text(text);
    assert_int_equal(moe_device_read(&d, path, &err), status);
    assert_null(d);
    if (!strstr(err.text, part) || strncmp(err.text, path, strlen(path)) != 0)
        fail_msg("'%s' does not say '%s'", err.text, part);
}

#define HEAD "format: moe-device\nversion: 1\nname: x\n"
#define MODEL                                                                                      \
    HEAD "model:\n  source_fingerprint: \"0123456789abcdef\"\n  layers: 1\n  moe_layers: "         \
         "1\n  experts_per_token: 1\n  positions: 1\n"

static void damage_is_named(void **state)
{
    refused("format: moe-stats\nversion: 1\n", MOE_ERR_FORMAT, "format is 'moe-stats'");
    refused("format: moe-device\nversion: 2\nname: x\n", MOE_ERR_VERSION, "version 2");
    refused("format: moe-device\nversion: 1\n", MOE_ERR_FORMAT, "'name' is missing");
    refused(HEAD "host: {cores: 4, speed: 1}\n", MOE_ERR_FORMAT,
            "line 4 column 25: unknown key 'speed'");
    refused(HEAD "host: {cores: {value: 4, mean: 1}}\n", MOE_ERR_FORMAT, "unknown key 'mean'");
    refused(HEAD "host: {cores: 0}\n", MOE_ERR_FORMAT, "'cores' must be above zero");
    refused(HEAD "host: {cores: -4}\n", MOE_ERR_FORMAT, "'cores' must be above zero");
    refused(HEAD "host: {memory_bytes: 18446744073709551616}\n", MOE_ERR_FORMAT,
            "'memory_bytes' must not be above 1e+18");
    refused(HEAD "host: {memory_bytes: {value: 1, min: 1, max: 1e19, runs: 2}}\n", MOE_ERR_FORMAT,
            "'memory_bytes' must not be above 1e+18");
    refused(HEAD "host: {cores: inf}\n", MOE_ERR_FORMAT, "'cores' must be a number");
    refused(HEAD "host: {cores: 1e999}\n", MOE_ERR_FORMAT, "'cores' must be a number");
    refused(HEAD "host: {cores: [4]}\n", MOE_ERR_FORMAT, "'value' is missing");
    refused(HEAD "host: {cores: {source: here}}\n", MOE_ERR_FORMAT, "'value' is missing");
    refused(HEAD "host: {cores: {value: 4, runs: 5}}\n", MOE_ERR_FORMAT, "'min' is missing");
    refused(HEAD "host: {cores: {value: 4, runs: 5, min: 5, max: 6}}\n", MOE_ERR_FORMAT,
            "outside of min and max");
    refused(HEAD "host: {cores: {value: 4, min: 3, max: 6}}\n", MOE_ERR_FORMAT,
            "'min' without 'runs'");
    refused(
        HEAD
        "timed: [{model: a, moe_layers: 1, experts: 4, experts_per_token: 1, load_seconds: 1}]\n",
        MOE_ERR_FORMAT, "'load_seconds' without 'load_bytes'");
    refused(HEAD "timed: [{model: a, moe_layers: 1, experts: 4, experts_per_token: 1}, {model: b, "
                 "moe_layers: 1, experts: 4, experts_per_token: 1}]\n",
            MOE_ERR_FORMAT, "a model of this shape occurs twice");
    refused(HEAD "timed: [{model: a, experts: 4, experts_per_token: 1}]\n", MOE_ERR_FORMAT,
            "'moe_layers' is missing");
    refused(HEAD "accelerator: {memory_bytes: 1}\n", MOE_ERR_FORMAT, "'name' is missing");
    refused(HEAD "storage: {reads: [{in_flight: 2}, {in_flight: 2}]}\n", MOE_ERR_FORMAT,
            "'in_flight' must be rising");
    refused(HEAD "storage: {reads: [{in_flight: 0}]}\n", MOE_ERR_FORMAT,
            "'in_flight' must be from 1");
    refused(HEAD "storage: {reads: [7]}\n", MOE_ERR_FORMAT, "must be a mapping");
    refused(HEAD "storage: {handling: [{bytes: 8, seconds: 1}, {bytes: 8, seconds: 1}]}\n",
            MOE_ERR_FORMAT, "'bytes' must be rising");
    refused(HEAD "storage: {handling: [{bytes: 8}]}\n", MOE_ERR_FORMAT, "'seconds' is missing");
    refused(HEAD "storage: {handling: [{bytes: 8, seconds: -1}]}\n", MOE_ERR_FORMAT,
            "'seconds' must be above zero");
    refused(HEAD "storage: {handling: 8}\n", MOE_ERR_FORMAT, "must be a list");
    refused(HEAD "storage: {bursts: [{loads: 8, bytes: 1}]}\n", MOE_ERR_FORMAT,
            "'seconds' is missing");
    refused(HEAD "storage: {bursts: [{loads: 8, bytes: 1, seconds: 1}]}\n", MOE_ERR_FORMAT,
            "'first_seconds' must be above 0 and at most 'seconds'");
    refused(HEAD "storage: {bursts: [{loads: 8, bytes: 1, first_seconds: 2, seconds: 1}]}\n",
            MOE_ERR_FORMAT, "'first_seconds' must be above 0 and at most 'seconds'");
    refused(HEAD "storage: {bursts: [{loads: 0, bytes: 1}]}\n", MOE_ERR_FORMAT,
            "'loads' must be from 1");
    refused(HEAD "storage: {bursts: [{loads: 1}]}\n", MOE_ERR_FORMAT, "'bytes' is missing");
    refused(MODEL "  far_positions: 64\n", MOE_ERR_FORMAT,
            "'far_positions' without 'far_attention_seconds'");
    refused(MODEL "  far_attention_seconds: 64\n", MOE_ERR_FORMAT,
            "'far_attention_seconds' without 'far_positions'");
    refused(MODEL "  far_positions: 1\n  far_attention_seconds: 1\n", MOE_ERR_FORMAT,
            "'far_positions' must be above 'positions'");
    refused(MODEL "  interruptions: 0.5\n", MOE_ERR_FORMAT, "'interruptions' must not be below 1");
    refused(MODEL "  wake_seconds: 0\n", MOE_ERR_FORMAT, "'wake_seconds' must be above zero");
    refused(HEAD "model: {layers: 1}\n", MOE_ERR_FORMAT, "'source_fingerprint' is missing");
    refused(HEAD "model: {source_fingerprint: \"123\"}\n", MOE_ERR_FORMAT, "16 hexadecimal digits");
    refused(MODEL "  variants: [{name: \"4\"}, {name: \"4\"}]\n", MOE_ERR_FORMAT,
            "variant '4' occurs twice");
    refused(MODEL
            "  variants: [{name: \"4\"}]\n  batches: [{rows: 1, expert_seconds: {\"2\": 1}}]\n",
            MOE_ERR_FORMAT, "'2' is none of the variants");
    refused(MODEL "  batches: [{rows: 8}, {rows: 1}]\n", MOE_ERR_FORMAT, "'rows' must be rising");
    refused(MODEL "  batches: [{rows: 1},{rows: 2},{rows: 3},{rows: 4},{rows: 5},{rows: 6},"
                  "{rows: 7},{rows: 8},{rows: 9}]\n",
            MOE_ERR_FORMAT, "'batches' must not have more than 8");
}

static void a_file_is_told_by_its_format(void **state)
{
    write_text("# comment\nformat: moe-device\nversion: 1\n");
    assert_true(moe_yaml_file_is(path, "moe-device"));
    assert_false(moe_yaml_file_is(path, "moe-dev"));
    write_text("kind: x\nold_format: moe-device\n");
    assert_false(moe_yaml_file_is(path, "moe-device"));
    write_text("");
    assert_false(moe_yaml_file_is(path, "moe-device"));
    assert_false(moe_yaml_file_is("/tmp", "moe-device"));
    assert_false(moe_yaml_file_is("/tmp/moe-test-none/x", "moe-device"));
}

static void long_texts_are_refused(void **state)
{
    char text[2 * MOE_DEVICE_TEXT];
    int n = snprintf(text, sizeof text, "format: moe-device\nversion: 1\nname: ");
    memset(text + n, 'x', MOE_DEVICE_TEXT);
    strcpy(text + n + MOE_DEVICE_TEXT, "\n");
    refused(text, MOE_ERR_FORMAT, "'name' is longer than");
    strcpy(text + n + MOE_DEVICE_TEXT - 1, "\n");
    free(read_text(text));
}

/* What has no source of its own stands in a section, or a file, that has one. */
static void shipped_profiles_are_read_and_have_sources(void **state)
{
    struct moe_err err = {0};
    DIR *dir = opendir("profiles");
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char name[300];
        struct moe_device *d = NULL;
        if (!strstr(e->d_name, ".yaml"))
            continue;
        snprintf(name, sizeof name, "profiles/%.200s", e->d_name);
        assert_ok(moe_device_read(&d, name, &err), &err);
        if (!d->source[0] || !d->host.name[0] + !d->accelerator.name[0] > 1)
            fail_msg("%s: no source or no processor", name);
        if (isnan(moe_device_load_rate(d, MOE_TIER_STORAGE)) &&
            isnan(moe_device_load_rate(d, MOE_TIER_HOST)))
            fail_msg("%s: says nothing about loading", name);
        free(d);
        n++;
    }
    closedir(dir);
    assert_true(n >= 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(json_has_the_same_members),
        cmocka_unit_test(what_follows_is_right),
        cmocka_unit_test(times_are_of_models_of_one_shape),
        cmocka_unit_test(what_is_not_known_is_nan),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(a_file_is_told_by_its_format),
        cmocka_unit_test(long_texts_are_refused),
        cmocka_unit_test(shipped_profiles_are_read_and_have_sources),
    };
    snprintf(path, sizeof path, "/tmp/moe-test-device-%d.yaml", (int)getpid());
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
