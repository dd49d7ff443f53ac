/* What GGUF files say of recurrent states: which layers have them, how wide they are, and rates. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "convert/convert.h"
#include "family/read.h"
#include "fmt/checkpoint.h"

#include "../forge_gguf.h"
#include "../make_pack.h"

#define FIXTURE(name) "tests/fixtures/" name "/model.gguf"

static struct moe_config config;

static int read_config(const char *path, struct moe_err *err)
{
    struct moe_checkpoint *ck = NULL;
    int status = moe_checkpoint_open(&ck, path, err);
    if (status == MOE_OK)
        status = moe_config_read_gguf(&config, ck, err);
    moe_checkpoint_close(ck);
    return status;
}

static void read_ok(const char *path)
{
    struct moe_err err = {0};
    assert_ok(read_config(path, &err), &err);
}

/* A copy of the file with another number for a key. */
static const char *with_number(const char *source, const char *key, uint32_t value)
{
    struct moe_err err = {0};
    struct moe_buf file = {0};
    assert_ok(moe_file_read_all(source, 1 << 28, &file, &err), &err);
    set_u32_key(file.data, file.size, key, value);
    FILE *out = fopen(in_dir("changed.gguf"), "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file.data, 1, file.size, out), file.size);
    assert_int_equal(fclose(out), 0);
    moe_buf_release(&file);
    return in_dir("changed.gguf");
}

static void layers_and_widths_are_read(void **state)
{
    (void)state;
    read_ok(FIXTURE("qwen3.5-moe"));
    assert_string_equal(config.family, "qwen3_5_moe_text");
    assert_memory_equal(config.layer_is_recurrent, "\1\1\1\0", 4);
    assert_true(config.state_heads == 6 && config.state_key_heads == 2);
    assert_true(config.state_key_dim == 10 && config.state_value_dim == 14);
    assert_true(config.conv_width == 4 && config.rope_dim == 6 && config.attn_gate);
    assert_true(config.state_keys_in_turn);
    assert_int_equal(moe_config_state_key_head(&config, 3), 1);
    read_ok(FIXTURE("qwen3-next-a"));
    assert_string_equal(config.family, "qwen3_next");
    assert_true(config.norm_topk && !config.state_keys_in_turn);
    assert_int_equal(moe_config_state_key_head(&config, 3), 1);
    assert_int_equal(moe_config_state_key_head(&config, 1), 0);
    read_ok(with_number(FIXTURE("qwen3-next-a"), "full_attention_interval", 2));
    assert_memory_equal(config.layer_is_recurrent, "\1\0\1\0", 4);
}

static void numbers_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *file, *key;
        uint32_t value;
        const char *words;
    } cases[] = {
        {FIXTURE("qwen3.5-moe"), "full_attention_interval", 0, "must be at least 1"},
        {FIXTURE("qwen3.5-moe"), "ssm.inner_size", 85, "6 heads of a state cannot share 85 values"},
        {FIXTURE("qwen3.5-moe"), "ssm.time_step_rank", 0, "0 heads of a state cannot share 84"},
        {FIXTURE("qwen3.5-moe"), "ssm.group_count", 4, "6 heads of a state cannot share 4 key"},
    };
    for (size_t i = 0; i < N_ITEMS(cases); i++) {
        struct moe_err err = {0};
        assert_fails(read_config(with_number(cases[i].file, cases[i].key, cases[i].value), &err),
                     MOE_ERR_FORMAT, cases[i].words, &err);
    }
}

/* They are -exp of what is computed with. */
static void rates_are_negative(void **state)
{
    (void)state;
    struct moe_err err = {0};
    struct moe_checkpoint *ck = NULL;
    struct moe_convert_report report;
    const struct moe_convert_options options = pack_options("4", 8);
    const char *path = with_number(FIXTURE("qwen3.5-moe"), "full_attention_interval", 4);
    assert_ok(moe_checkpoint_open(&ck, path, &err), &err);
    const struct moe_tensor *t = moe_checkpoint_find(ck, "blk.1.ssm_a");
    assert_non_null(t);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, (long)(t->offset + 2 * sizeof(float)), SEEK_SET), 0);
    assert_int_equal(fwrite(&(float){0.5f}, sizeof(float), 1, file), 1);
    assert_int_equal(fclose(file), 0);
    moe_checkpoint_close(ck);
    assert_fails(moe_convert_checkpoint(path, in_dir("x.moe"), &options, &report, &err),
                 MOE_ERR_FORMAT, "'blk.1.ssm_a': a value is 0.5, only negative ones", &err);
    assert_true(access(in_dir("x.moe"), F_OK) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_and_widths_are_read),
        cmocka_unit_test(numbers_that_make_no_sense_are_refused),
        cmocka_unit_test(rates_are_negative),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
