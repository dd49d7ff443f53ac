#define _DEFAULT_SOURCE /* mkdtemp */
/* How tokens are drawn: what the model's makers publish, in a checkpoint, a GGUF file and a pack;
 * and what holds of that, of what is asked for, and of the defaults. */
#include <math.h>

#include "../make_pack.h"
#include "fmt/gguf.h"
#include "infer/model.h"
#include "model/sampling.h"

#include "../scratch_dir.h" /* last: `dir` is a parameter above */

static void check_value(const struct moe_sampler_options *asked,
                        const struct moe_sampler_options *model, const char *name, double value,
                        enum moe_sampling_origin origin)
{
    struct moe_sampling_value v;
    int i = 0;
    while (moe_sampling_value(asked, model, i, &v) && strcmp(v.field->name, name) != 0)
        i++;
    assert_string_equal(v.field->name, name);
    assert_true(v.value == value);
    assert_int_equal(v.origin, origin);
}

static void what_is_asked_for_comes_first(void **state)
{
    struct moe_sampler_options asked, model;
    (void)state;
    moe_sampling_unsaid(&asked);
    moe_sampling_unsaid(&model);
    asked.top_k = 0;
    asked.min_p = 0.5;
    asked.seed = 9;
    model.top_k = 7;
    model.temperature = 0.25;
    check_value(&asked, &model, "temperature", 0.25, MOE_SAMPLING_OF_MODEL);
    check_value(&asked, &model, "top_k", 0, MOE_SAMPLING_ASKED);
    check_value(&asked, &model, "top_p", 0.95, MOE_SAMPLING_DEFAULT);
    check_value(&asked, &model, "min_p", 0.5, MOE_SAMPLING_ASKED);
    check_value(&asked, &model, "repeat_penalty", 1, MOE_SAMPLING_DEFAULT);
    check_value(&asked, NULL, "temperature", 0.8, MOE_SAMPLING_DEFAULT);
    moe_sampling_complete(&asked, &model);
    assert_true(asked.temperature == 0.25 && asked.top_k == 0 && asked.top_p == 0.95);
    assert_true(asked.min_p == 0.5 && asked.repeat_penalty == 1 && asked.repeat_window == 64);
    assert_int_equal(asked.seed, 9);
    moe_sampling_unsaid(&asked);
    moe_sampling_complete(&asked, NULL);
    assert_true(asked.temperature == 0.8 && asked.top_k == 40 && asked.min_p == 0.05);
}

/* Whether a value has an effect, as statistics tell by: with these values, by their names. */
static void what_has_no_effect_is_idle(void **state)
{
    static const struct {
        const char *name;
        double value;
        const char *other;
        double with;
        bool idle;
    } cases[] = {
        {"presence_penalty", 1.5, "repeat_window", 64, false},
        {"presence_penalty", 1.5, "repeat_window", 0, true},
        {"frequency_penalty", 0, "repeat_window", 64, true},
        {"repeat_window", 9, "frequency_penalty", 0, true},
        {"repeat_window", 9, "frequency_penalty", 0.5, false},
        {"dry_base", 2, "dry_multiplier", 0, true},
        {"dry_base", 2, "dry_multiplier", 1, false},
        {"top_k", 5, "mirostat", 2, true},
        {"top_k", 5, "temperature", 0, true},
        {"top_k", 5, "temperature", 1, false},
        {"mirostat_tau", 5, "mirostat", 0, true},
        {"mirostat_tau", 5, "mirostat", 2, false},
        {"xtc_threshold", 0.2, "xtc_probability", 0, true},
        {"xtc_probability", 0.5, "xtc_threshold", 0.6, true},
        {"xtc_probability", 0.5, "xtc_threshold", 0.2, false},
        {"typical_p", 1, "mirostat", 0, true},
        {"top_n_sigma", -1, "mirostat", 0, true},
        {"dynatemp_exponent", 2, "dynatemp_range", 0.5, false},
    };
    (void)state;
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_sampler_options o;
        struct moe_sampling_value v;
        struct moe_err err;
        const struct moe_sampling_field *f;
        moe_sampling_unsaid(&o);
        for (int k = 0; (f = moe_sampling_field(k)) != NULL; k++) {
            if (strcmp(f->name, cases[i].name) == 0)
                assert_ok(moe_sampling_take(&o, k, "x", f->name, cases[i].value, &err), &err);
            if (strcmp(f->name, cases[i].other) == 0)
                assert_ok(moe_sampling_take(&o, k, "x", f->name, cases[i].with, &err), &err);
        }
        for (int k = 0; moe_sampling_value(&o, NULL, k, &v); k++)
            if (strcmp(v.field->name, cases[i].name) == 0 && v.idle != cases[i].idle)
                fail_msg("%s with %s %g", cases[i].name, cases[i].other, cases[i].with);
    }
}

/* What a generation_config.json says, as a pack keeps it; "": nothing. */
static void check_hf(const char *json, const char *kept)
{
    struct moe_sampler_options said, again;
    struct moe_buf out = {0};
    struct moe_err err = {0};
    write_in_dir("generation_config.json", json, strlen(json));
    assert_ok(moe_sampling_read_hf(&said, dir, &err), &err);
    assert_ok(moe_sampling_write(&said, &out, &err), &err);
    moe_buf_u8(&out, 0);
    assert_string_equal(out.data, kept);
    assert_ok(moe_sampling_parse(&again, "x", out.data, out.size - 1, &err), &err);
    struct moe_sampling_value a, b;
    for (int i = 0; moe_sampling_value(&said, NULL, i, &a); i++)
        assert_true(moe_sampling_value(&again, NULL, i, &b) && a.value == b.value &&
                    a.origin == b.origin);
    moe_buf_release(&out);
}

static void checkpoints_say_it(void **state)
{
    static const struct {
        const char *json, *says;
    } bad[] = {
        {"{\"temperature\": -1}", "'temperature' is -1, expected 0 to 100"},
        {"{\"top_p\": 2}", "'top_p' is 2, expected 0 to 1"},
        {"{\"top_k\": 2.5}", "'top_k' is 2.5, expected a whole number"},
        {"{\"top_k\": -7}", "'top_k' is -7"},
        {"{\"repetition_penalty\": 0}", "'repetition_penalty' is 0"},
        {"{\"temperature\": \"hot\"}", "'temperature' is a text"},
        {"{\"typical_p\": 1.5}", "'typical_p' is 1.5, expected 0 to 1"},
        {"{\"do_sample\": 1}", "'do_sample'"},
        {"[]", "generation_config.json"},
        {"{", "generation_config.json"},
    };
    struct moe_sampler_options said;
    struct moe_err err = {0};
    (void)state;
    assert_ok(moe_sampling_read_hf(&said, dir, &err), &err); /* without the file */
    check_value(&said, NULL, "temperature", 0.8, MOE_SAMPLING_DEFAULT);
    check_hf("{\"eos_token_id\": 2}", "");
    check_hf("{\"temperature\": null}", "");
    check_hf("{\"do_sample\": true, \"temperature\": 0.6, \"top_k\": 20, \"top_p\": 0.95}",
             "{\"temperature\":0.6,\"top_k\":20,\"top_p\":0.95}");
    check_hf("{\"top_k\": -1, \"min_p\": 0.1, \"repetition_penalty\": 1.05}",
             "{\"top_k\":0,\"min_p\":0.1,\"repeat_penalty\":1.05}");
    check_hf("{\"do_sample\": true, \"typical_p\": 0.9}", "{\"typical_p\":0.9}");
    check_hf("{\"do_sample\": false, \"temperature\": 0.6}", "{\"temperature\":0}");
    for (size_t i = 0; i < N_ITEMS(bad); i++) {
        write_in_dir("generation_config.json", bad[i].json, strlen(bad[i].json));
        assert_fails(moe_sampling_read_hf(&said, dir, &err), MOE_ERR_FORMAT, bad[i].says, &err);
    }
    assert_fails(moe_sampling_parse(&said, "a.moe", "{\"top_p\": 7}", 12, &err), MOE_ERR_FORMAT,
                 "a.moe: 'top_p' is 7", &err);
}

static void put_key(struct moe_buf *b, const char *name, uint32_t type)
{
    moe_buf_u64(b, strlen(name));
    moe_buf_text(b, name);
    moe_buf_u32(b, type);
}

static void put_float(struct moe_buf *b, const char *name, float value)
{
    enum { F32 = 6 };
    put_key(b, name, F32);
    moe_buf_append(b, &value, sizeof value);
}

static void gguf_files_say_it(void **state)
{
    enum { I32 = 5 };
    struct moe_buf file = {0}, kept = {0};
    struct moe_sampler_options said;
    struct moe_gguf *gguf;
    struct moe_err err = {0};
    (void)state;
    moe_buf_text(&file, "GGUF");
    moe_buf_u32(&file, 3);
    moe_buf_u64(&file, 0);
    moe_buf_u64(&file, 11);
    put_float(&file, "general.sampling.temp", 0.2f);
    put_key(&file, "general.sampling.top_k", I32);
    moe_buf_u32(&file, 20);
    put_float(&file, "general.sampling.top_p", 0.9f);
    put_float(&file, "general.sampling.min_p", 0);
    put_key(&file, "general.sampling.penalty_last_n", I32);
    moe_buf_u32(&file, (uint32_t)-1);
    put_float(&file, "general.sampling.penalty_repeat", 1.1f);
    put_float(&file, "general.sampling.xtc_probability", 0.5f);
    put_float(&file, "general.sampling.xtc_threshold", 0.15f);
    put_key(&file, "general.sampling.mirostat", I32);
    moe_buf_u32(&file, 2);
    put_float(&file, "general.sampling.mirostat_tau", 4.5f);
    put_float(&file, "general.sampling.mirostat_eta", 0.2f);
    write_in_dir("a.gguf", file.data, file.size);
    assert_ok(moe_gguf_open(&gguf, in_dir("a.gguf"), &err), &err);
    assert_ok(moe_sampling_read_gguf(&said, gguf, &err), &err);
    assert_ok(moe_sampling_write(&said, &kept, &err), &err);
    moe_buf_u8(&kept, 0);
    assert_string_equal(kept.data, "{\"temperature\":0.2,\"top_k\":20,\"top_p\":0.9,\"min_p\":0,"
                                   "\"repeat_penalty\":1.1,\"repeat_window\":1000000,"
                                   "\"xtc_probability\":0.5,\"xtc_threshold\":0.15,"
                                   "\"mirostat\":2,\"mirostat_tau\":4.5,\"mirostat_eta\":0.2}");
    moe_gguf_close(gguf);
    moe_buf_release(&file);
    moe_buf_release(&kept);
}

/* The bundled model says temperature 0.8 and top-p 0.95; packs of its pack keep that. */
static void packs_keep_it(void **state)
{
    const struct moe_convert_options first = pack_options("8", 8), again = pack_options("4", 0);
    struct moe_convert_report report;
    struct moe_err err = {0};
    (void)state;
    make_pack(in_dir("a.moe"), TINY_MOE, &first);
    assert_ok(moe_convert_pack(in_dir("a.moe"), in_dir("b.moe"), &again, &report, &err), &err);
    for (int i = 0; i < 2; i++) {
        struct moe_sampler_options nothing;
        struct moe_model *model;
        moe_sampling_unsaid(&nothing);
        assert_ok(moe_model_open_directory(&model, in_dir(i ? "b.moe" : "a.moe"), &err), &err);
        check_value(&nothing, &model->sampling, "temperature", 0.8, MOE_SAMPLING_OF_MODEL);
        check_value(&nothing, &model->sampling, "top_p", 0.95, MOE_SAMPLING_OF_MODEL);
        check_value(&nothing, &model->sampling, "top_k", 40, MOE_SAMPLING_DEFAULT);
        moe_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_asked_for_comes_first),
        cmocka_unit_test(what_has_no_effect_is_idle),
        cmocka_unit_test_setup_teardown(checkpoints_say_it, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(gguf_files_say_it, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(packs_keep_it, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
